/* SPDX-License-Identifier: Apache-2.0
 *
 * quern chat: a conversation, on a terminal or through a pipe.
 *
 * What a reply takes over from the turns before is the library's business (quern/conversation.h).
 */
#include "cli/chat.h"
#include "base/buffers.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/complete.h"
#include "cli/reply.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void chat_failed(chat *s, const qn_error *err)
{
    int status = failed(err);
    if (!s->terminal)
        s->status = status;
}

/* ---- replies
 * -----------------------------------------------------------------------------------------------
 */

/* Whether it is the context that has no room. */
static bool is_too_long(const chat *s)
{
    qn_tokens ids = {0};
    qn_error ignored = {0};
    qn_conversation_ids(s->conversation, true, &ids, &ignored);
    size_t n = ids.n;
    qn_tokens_free(&ids);
    return n > (size_t)qn_session_context(s->session);
}

static void advise(qn_error *err, const char *advice)
{
    size_t n = strlen(err->message);
    snprintf(err->message + n, sizeof err->message - n, "%s", advice);
}

/* *kept: the tokens that ran before. */
static qn_status begin_reply(chat *s, qn_generation **g, size_t *kept, qn_error *err)
{
    qn_sampling sampling;
    qn_generation_options options = generation_of(s->arguments, s->model.model, &sampling);
    int64_t seed = s->arguments->settings.seed;
    sampling.seed = (seed >= 0 ? (uint64_t)seed : s->seed) + s->replies;
    qn_status status = qn_conversation_begin_reply(g, s->conversation, s->session, &options, err);
    if (status == QN_LIMIT && is_too_long(s))
        advise(err,
               "; it stays as it was (/reset begins anew, -c gives more room, --rotate forgets "
               "the oldest)");
    *kept = (size_t)qn_session_length(s->session);
    return status;
}

/* What is said behind a reply on a terminal. */
static void note_end(const chat *s, const reply *r, qn_status status)
{
    if (status == QN_CANCELLED)
        note("stopped");
    else if (r->metrics.finish == QN_FINISH_LENGTH &&
             qn_session_length(s->session) >= qn_session_context(s->session))
        note("the context of %lld tokens is full", (long long)qn_session_context(s->session));
    else if (r->metrics.finish == QN_FINISH_LENGTH && s->arguments->settings.max_tokens < 0)
        note("the model's limit of %llu tokens a reply; /set max-tokens N gives more",
             (unsigned long long)r->metrics.generated_tokens);
}

bool chat_answer(chat *s)
{
    qn_error err = {0};
    qn_generation *g;
    wrapper wrap = {.width = s->terminal ? terminal_width() : 0};
    reply r = {.wrap = wrap.width ? &wrap : NULL};
    size_t kept = 0;
    qn_status status = begin_reply(s, &g, &kept, &err);
    if (status == QN_OK)
        status = reply_run(&r, g, true, &err);
    bool said = status == QN_OK || (r.text.n && !r.write_failed);
    if (said) {
        putchar('\n');
        fflush(stdout);
        s->replies++;
        qn_error late = {0};
        said = qn_conversation_add(s->conversation, "assistant", r.text.data ? r.text.data : "",
                                   r.text.n, &late) == QN_OK;
        if (!said)
            chat_failed(s, &late);
    }
    if (s->terminal && (status == QN_OK || status == QN_CANCELLED))
        note_end(s, &r, status);
    else if (status != QN_OK)
        chat_failed(s, &err);
    if (s->stats && r.metrics.prompt_tokens)
        reply_print_speed(&r.metrics, kept);
    s->done = s->done || r.write_failed || (status == QN_CANCELLED && !s->terminal);
    if (r.write_failed)
        s->status = 1;
    atomic_store(&interrupted, false);
    reply_free(&r);
    return said;
}

static void say(chat *s, const qn_text *text)
{
    qn_error err = {0};
    qn_text whole = {0};
    size_t before = qn_conversation_length(s->conversation);
    bool ok = qn__text_append(&whole, s->attached.data, s->attached.n) &&
              qn__text_append(&whole, text->data, text->n);
    if (!ok)
        qn__fail_memory(&err, "a message");
    else
        qn_conversation_add(s->conversation, "user", whole.data, whole.n, &err);
    qn_text_free(&whole);
    if (err.code != QN_OK)
        chat_failed(s, &err);
    else if (chat_answer(s))
        s->attached.n = 0;
    else
        qn_conversation_cut(s->conversation, before);
}

/* ---- messages
 * ---------------------------------------------------------------------------------------------- */

static bool ends_with(const qn_text *text, const char *end)
{
    size_t n = strlen(end);
    return text->n >= n && !memcmp(text->data + text->n - n, end, n);
}

/* Further lines of a message: until `end` stands at the end of one, or, with a backslash, while it
 * does. */
static line_result read_more(chat *s, qn_text *message, bool quoted)
{
    qn_text line = {0};
    line_result result = LINE_READ;
    while (quoted ? message->n < 6 || !ends_with(message, "\"\"\"") : ends_with(message, "\\")) {
        if (!quoted)
            message->n--;
        result = line_read(s->lines, s->terminal ? ". " : "", &line);
        if (result != LINE_READ)
            break;
        if (message->n + line.n >= LARGEST_INPUT || !qn__text_append(message, "\n", 1) ||
            !qn__text_append(message, line.data, line.n)) {
            fprintf(stderr, "quern: a message exceeds %d bytes\n", LARGEST_INPUT);
            result = LINE_FAILED;
            break;
        }
    }
    qn_text_free(&line);
    message->data[message->n] = 0;
    return result == LINE_END ? LINE_READ : result; /* what has come is the message */
}

/* """text""" without its quotes; the ones at the end are missing where the input ended. */
static void strip_quotes(qn_text *message)
{
    if (message->n >= 6 && ends_with(message, "\"\"\""))
        message->n -= 3;
    message->data[message->n] = 0;
    memmove(message->data, message->data + 3, message->n - 2);
    message->n -= 3;
}

/* The next message; *quoted: it stood between """ and is no command. */
static line_result read_message(chat *s, qn_text *message, bool *quoted)
{
    line_result result = line_read(s->lines, s->terminal ? "> " : "", message);
    if (result != LINE_READ)
        return result;
    if (message->n && message->data[message->n - 1] == '\r')
        message->data[--message->n] = 0;
    *quoted = message->n >= 3 && !memcmp(message->data, "\"\"\"", 3);
    result = read_more(s, message, *quoted);
    if (result != LINE_READ)
        return result;
    line_remember(s->lines, message->data); /* all of its lines are one of the history */
    if (*quoted)
        strip_quotes(message);
    return LINE_READ;
}

/* At the prompt: the first Ctrl-C drops the line, the second ends. */
static void prompt_interrupted(chat *s, int times)
{
    atomic_store(&interrupted, false);
    if (!s->terminal)
        s->status = 130;
    else
        fprintf(stderr, "\n");
    if (s->terminal && times == 1)
        note("Ctrl-C again, or Ctrl-D, ends the chat");
    s->done = !s->terminal || times > 1;
}

static void converse(chat *s)
{
    qn_text message = {0};
    int interrupts = 0;
    while (!s->done) {
        bool quoted = false;
        line_result result = read_message(s, &message, &quoted);
        interrupts = result == LINE_INTERRUPTED ? interrupts + 1 : 0;
        if (result == LINE_INTERRUPTED)
            prompt_interrupted(s, interrupts);
        else if (result == LINE_FAILED)
            s->status = s->done = 1;
        else if (result == LINE_END)
            break;
        else if (!quoted && message.n && message.data[0] == '/' && !strchr(message.data, '\n'))
            chat_command_run(s, message.data);
        else if (message.n)
            say(s, &message);
    }
    if (s->terminal && !s->done)
        putchar('\n'); /* behind the prompt at which Ctrl-D came */
    qn_text_free(&message);
}

/* ---- the run
 * -----------------------------------------------------------------------------------------------
 */

qn_status chat_wake(chat *s, const char *path, const char *advice, qn_error *err)
{
    qn_session *session = NULL;
    if (open_session(&session, s->arguments, &s->model, err) != QN_OK ||
        qn_conversation_restore(s->conversation, session, path, err) != QN_OK) {
        if (err->code == QN_STATE)
            advise(err, advice);
        qn_session_close(session);
        return err->code;
    }
    qn_session_close(s->session);
    s->session = session;
    return conversation_fill(s->conversation, s->arguments, err);
}

/* Before an hour's conversation, not behind it. */
static qn_status check_bed(const arguments *a, qn_error *err)
{
    if (!a->prompt_cache || a->prompt_cache_ro)
        return QN_OK;
    char *folder = qn__path_parent(a->prompt_cache);
    if (!folder)
        qn__fail_memory(err, "a path");
    else if (access(folder, W_OK) != 0)
        qn__fail(err, QN_IO, "%s: nothing can be written into %s: %s", a->prompt_cache, folder,
                 strerror(errno));
    free(folder);
    return err->code;
}

/* What --prompt-cache has, else an empty one. */
static qn_status open_conversation(chat *s, qn_error *err)
{
    const arguments *a = s->arguments;
    if (check_bed(a, err) != QN_OK || qn_conversation_new(&s->conversation, s->form, err) != QN_OK)
        return err->code;
    if (a->prompt_cache && access(a->prompt_cache, F_OK) == 0)
        return chat_wake(s, a->prompt_cache,
                         "; without --prompt-cache, /load takes the messages alone", err);
    return open_session(&s->session, a, &s->model, err) == QN_OK
               ? conversation_fill(s->conversation, a, err)
               : err->code;
}

static qn_status open_chat(chat *s, qn_error *err)
{
    const arguments *a = s->arguments;
    const qn_tokenizer *t = qn_model_tokenizer(s->model.model);
    if (chat_form_open(&s->form, t, s->model.path, a, err) != QN_OK)
        return err->code;
    if (!chat_form_exists(s->form, t))
        return qn__fail(
            err, QN_UNSUPPORTED,
            "%s: the model has no chat template, nor the tokens of a known chat format; quern "
            "generate --raw continues text",
            s->model.path);
    if (open_conversation(s, err) != QN_OK || !a->system)
        return err->code;
    return qn_conversation_set_system(s->conversation, a->system, strlen(a->system), err);
}

static void greet(const chat *s)
{
    const arguments *a = s->arguments;
    size_t n = qn_conversation_length(s->conversation);
    fprintf(stderr, "%s%s%s; /help lists the commands\n", colour_code(stderr, COLOUR_BOLD),
            a->model ? a->model : "the built-in model", colour_code(stderr, COLOUR_NONE));
    if (a->prompt_cache && n)
        note("%zu messages from %s", n, a->prompt_cache);
}

/* At the end, with --prompt-cache. Ctrl-C, which may have brought it about, does not stop this. */
static void go_to_sleep(chat *s)
{
    const arguments *a = s->arguments;
    qn_error err = {0};
    atomic_store(&interrupted, false);
    if (a->prompt_cache && !a->prompt_cache_ro &&
        qn_conversation_save(s->conversation, s->session, a->prompt_cache, &err) != QN_OK)
        s->status = failed(&err);
}

int command_chat(arguments *a)
{
    chat s = {.arguments = a,
              .stats = a->verbose,
              .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO),
              .seed = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 20};
    qn_error err = {0};
    if (a->prompt_cache_ro && !a->prompt_cache) {
        fprintf(stderr, "quern chat: --prompt-cache-ro goes with --prompt-cache FILE\n");
        return 2;
    }
    catch_interrupts(false);
    if (backend_is_other(a))
        return backend_chat(a, s.terminal);
    s.status = open_loaded(&s.model, a, false);
    if (!s.status && open_chat(&s, &err) != QN_OK)
        s.status = failed(&err);
    if (!s.status && !(s.lines = line_open(s.terminal, !a->no_history, complete_line))) {
        fprintf(stderr, "quern: the terminal cannot be used: out of memory\n");
        s.status = 1;
    }
    if (s.lines) {
        if (s.terminal)
            greet(&s);
        converse(&s);
        go_to_sleep(&s);
    }
    line_close(s.lines);
    qn_session_close(s.session);
    qn_conversation_free(s.conversation);
    qn_text_free(&s.attached);
    qn_chat_close(s.form);
    close_loaded(&s.model);
    return s.status;
}
