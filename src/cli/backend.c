/* SPDX-License-Identifier: Apache-2.0
 *
 * Other backends; see backend.h.
 */
#include "cli/backend.h"
#include "base/buffers.h"
#include "base/error.h"
#include "base/hash.h"
#include "cli/line.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>

bool backend_is_other(const arguments *a)
{
    return a->backend && strcmp(a->backend, "native") != 0;
}

bool backend_fits(const option_user *user, const arguments *a)
{
    qn_error err = {0};
    size_t at = 0;
    if (!a->backend)
        return true;
    if (qn_backend_find(a->backend, &err) != QN_OK) {
        fprintf(stderr, "quern %s: --backend: %s\n", user->name, err.message);
        return false;
    }
    if (!backend_is_other(a))
        return true;
    if (!(user->of & (OF_GENERATE | OF_CHAT))) {
        fprintf(stderr, "quern %s: the backend %s cannot do that, native can\n", user->name,
                a->backend);
        return false;
    }
    for (const option *o; (o = options_next(user->of, &at));)
        if (!(o->of & OF_BACKENDS) && options_given(o, a)) {
            fprintf(stderr, "quern %s: --%s is not possible with the backend %s, native has it\n",
                    user->name, o->name, a->backend);
            return false;
        }
    return true;
}

qn_status backend_open(qn_backend **out, const arguments *a, qn_error *err)
{
    char path[PATH_ROOM];
    const qn_backend_options options = {.size = sizeof options, .cancel = &interrupted};
    *out = NULL;
    return locate_model(a->model, path, err) == QN_OK
               ? qn_backend_open(out, a->backend, path, &options, err)
               : err->code;
}

/* ---- replies --------------------------------------------------------------------------------- */

typedef struct emitted {
    reply *reply;
    bool print;
} emitted;

static bool emit_token(void *user, int32_t id, const char *text, size_t n)
{
    emitted *e = user;
    (void)id;
    if (e->print && n && (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0))
        e->reply->write_failed = true;
    return qn__text_append(&e->reply->text, text, n) && !e->reply->write_failed;
}

/* The texts of a conversation; NULL when memory is out. */
static qn_chat_message *messages_of(const qn_conversation *c)
{
    size_t n = qn_conversation_length(c);
    qn_chat_message *list = calloc(n + 1, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i] = *qn_conversation_message(c, i);
    return list;
}

qn_status backend_reply(qn_backend *b, const arguments *a, const qn_conversation *c, bool raw,
                        reply *r, bool print, qn_error *err)
{
    emitted e = {.reply = r, .print = print};
    qn_sampling sampling = *qn_backend_sampling(b);
    qn_generation_options options = QN_INIT(qn_generation_options);
    size_t n = qn_conversation_length(c);
    const qn_chat_message *last = qn_conversation_message(c, n - 1);
    qn_chat_message *messages = messages_of(c);
    if (!messages)
        return qn__fail_memory(err, "a chat");
    sampling.seed = qn__hash_seed();
    qn__settings_apply(&a->settings, &sampling, &options);
    qn_status status = raw ? qn_backend_generate(b, last->content, last->content_size, &options,
                                                 emit_token, &e, err)
                           : qn_backend_chat(b, messages, n, &options, emit_token, &e, err);
    free(messages);
    r->metrics.size = sizeof r->metrics;
    qn_backend_get_metrics(b, &r->metrics);
    if (r->write_failed) {
        *err = (qn_error){0};
        return qn__fail(err, QN_IO, "standard output cannot be written");
    }
    return status;
}

/* ---- quern chat ------------------------------------------------------------------------------ */

/* False: the chat ends, with *code. */
static bool answer_message(qn_backend *b, const arguments *a, qn_conversation *c,
                           const qn_text *line, bool terminal, int *code)
{
    qn_error err = {0};
    reply r = {0};
    size_t before = qn_conversation_length(c);
    qn_status status = qn_conversation_add(c, "user", line->data, line->n, &err);
    if (status == QN_OK)
        status = backend_reply(b, a, c, false, &r, true, &err);
    if (!r.write_failed && (r.text.n || status == QN_OK)) /* a reply may be empty */
        putchar('\n');
    fflush(stdout);
    if (status == QN_OK)
        status =
            qn_conversation_add(c, "assistant", r.text.data ? r.text.data : "", r.text.n, &err);
    if (status != QN_OK) {
        qn_conversation_cut(c, before);
        int failure = failed(&err);
        *code = terminal && !r.write_failed ? *code : failure;
    }
    reply_free(&r);
    atomic_store(&interrupted, false);
    return status == QN_OK || terminal;
}

static void complete_nothing(const char *line, completions *c)
{
    (void)line;
    (void)c;
}

static int converse_with(qn_backend *b, const arguments *a, qn_conversation *c, bool terminal)
{
    line_reader *lines = line_open(terminal, !a->no_history, complete_nothing);
    qn_text line = {0};
    int code = 0;
    bool goes_on = lines != NULL;
    while (goes_on) {
        line_result result = line_read(lines, terminal ? "> " : "", &line);
        goes_on = result == LINE_READ;
        if (result == LINE_INTERRUPTED)
            code = terminal ? 0 : 130;
        else if (result == LINE_FAILED)
            code = 1;
        else if (goes_on && line.n && line.data[0] == '/')
            fprintf(stderr,
                    "quern chat: the backend native has commands, %s has none; Ctrl-D ends\n",
                    a->backend);
        else if (goes_on && line.n) {
            line_remember(lines, line.data);
            goes_on = answer_message(b, a, c, &line, terminal, &code);
        }
    }
    qn_text_free(&line);
    line_close(lines);
    return code;
}

int backend_chat(const arguments *a, bool terminal)
{
    qn_error err = {0};
    qn_backend *b = NULL;
    qn_conversation *c = NULL;
    int code;
    if (backend_open(&b, a, &err) == QN_OK && qn_conversation_new(&c, NULL, &err) == QN_OK &&
        (!a->system || qn_conversation_set_system(c, a->system, strlen(a->system), &err) == QN_OK))
        code = converse_with(b, a, c, terminal);
    else
        code = failed(&err);
    qn_conversation_free(c);
    qn_backend_close(b);
    return code;
}
