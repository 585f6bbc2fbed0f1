/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines with two answers, as TRL has them: "chosen" and "rejected", texts behind a text "prompt",
 * or messages behind those of "prompt"; without one it is the messages that both begin with.
 * Messages are put together as they are written, so that a template sees what the file says.
 */
#include "train/example.h"

#include "base/buffers.h"
#include "base/error.h"
#include "base/json_scan.h"
#include "text/conversation.h"

#include <stdlib.h>
#include <string.h>

/* Members as they are written; without a text: absent. */
typedef struct preference {
    qn__json_text prompt, chosen, rejected, tools, variables;
    bool texts; /* not messages */
} preference;

/* ---- members --------------------------------------------------------------------------------- */

static bool read_member(qn__json_scan *scan, const qn__json_text *key, preference *p)
{
    const struct {
        const char *name;
        qn__json_text *text;
    } members[] = {{"prompt", &p->prompt},
                   {"chosen", &p->chosen},
                   {"rejected", &p->rejected},
                   {"tools", &p->tools},
                   {"chat_template_kwargs", &p->variables}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (qn__json_text_is(key, members[i].name))
            return qn__json_peek(scan) == QN__JSON_NULL ? qn__json_skip(scan, NULL)
                                                        : qn__json_skip(scan, members[i].text);
    return qn__json_skip(scan, NULL);
}

/* All three are texts, or all are messages. */
static qn_status check_kinds(preference *p, qn_error *err)
{
    const qn__json_text *const parts[] = {&p->chosen, &p->rejected, &p->prompt};
    int texts = 0, lists = 0;
    for (int i = 0; i < 3; i++) {
        texts += parts[i]->data && *parts[i]->data == '"';
        lists += parts[i]->data && *parts[i]->data == '[';
    }
    p->texts = texts > 0;
    if (!p->chosen.data || !p->rejected.data)
        return qn__fail(err, QN_FORMAT,
                        "\"%s\" is not there; a preference has \"chosen\" and "
                        "\"rejected\"",
                        p->chosen.data ? "rejected" : "chosen");
    if (texts && !p->prompt.data)
        return qn__fail(err, QN_FORMAT, "\"prompt\" is not there; answers that are texts need one");
    if (texts + lists != 2 + (p->prompt.data != NULL) || (texts && lists))
        return qn__fail(
            err, QN_FORMAT,
            "\"prompt\", \"chosen\" and \"rejected\" must all be texts, or all lists of "
            "messages");
    return QN_OK;
}

static qn_status read_members(const char *name, const char *line, size_t n, preference *p,
                              qn_error *err)
{
    qn__json_scan scan;
    qn__json_text key;
    qn__json_scan_begin(&scan, name, line, n, err);
    scan.allow_nul = true;
    qn__json_enter_object(&scan);
    while (qn__json_next_key(&scan, &key) && read_member(&scan, &key, p))
        ;
    return qn__json_scan_end(&scan) == QN_OK ? check_kinds(p, err) : err->code;
}

/* ---- as conversations ------------------------------------------------------------------------ */

/* A list's items without its brackets; a text as a message of that role. */
static bool put_messages(qn_text *out, const preference *p, const qn__json_text *part,
                         const char *role)
{
    if (!p->texts)
        return qn__text_append(out, part->data + 1, part->size - 2);
    return qn__text_puts(out, "{\"role\":\"") && qn__text_puts(out, role) &&
           qn__text_puts(out, "\",\"content\":") && qn__text_append(out, part->data, part->size) &&
           qn__text_puts(out, "}");
}

static bool put_option(qn_text *out, const char *name, const qn__json_text *value)
{
    return !value->data ||
           (qn__text_puts(out, ",\"") && qn__text_puts(out, name) && qn__text_puts(out, "\":") &&
            qn__text_append(out, value->data, value->size));
}

/* Whether a list has no item. */
static bool is_empty(const qn__json_text *list)
{
    return list->size - 2 == strspn(list->data + 1, " \t\r\n");
}

/* The prompt, and the answer unless that is NULL. */
static qn_status parse_answer(const preference *p, const qn__json_text *answer, const char *name,
                              qn_conversation *c, qn_error *err)
{
    qn_text text = {0};
    bool both = p->prompt.data && (p->texts || (!is_empty(&p->prompt) && !is_empty(answer)));
    bool ok = qn__text_puts(&text, "{\"messages\":[") &&
              (!p->prompt.data || put_messages(&text, p, &p->prompt, "user")) &&
              (!both || qn__text_puts(&text, ",")) && put_messages(&text, p, answer, "assistant") &&
              qn__text_puts(&text, "]") && put_option(&text, "tools", &p->tools) &&
              put_option(&text, "chat_template_kwargs", &p->variables) && qn__text_puts(&text, "}");
    if (!ok)
        qn__fail_memory(err, "a preference");
    else
        qn_conversation_parse(c, name, text.data, text.n, err);
    qn_text_free(&text);
    return err->code;
}

/* Messages that both begin with. */
static size_t common_messages(const qn_conversation *a, const qn_conversation *b)
{
    size_t n = 0, most = qn_conversation_length(a);
    most = qn_conversation_length(b) < most ? qn_conversation_length(b) : most;
    while (n < most &&
           !strcmp(qn_conversation_message_json(a, n), qn_conversation_message_json(b, n)))
        n++;
    return n;
}

static size_t count_items(const qn__json_text *list, qn_error *err)
{
    qn__json_scan scan;
    size_t n = 0;
    qn__json_scan_begin(&scan, "prompt", list->data, list->size, err);
    qn__json_enter_array(&scan);
    while (qn__json_next_item(&scan) && qn__json_skip(&scan, NULL))
        n++;
    qn__json_scan_end(&scan);
    return n;
}

static qn_status encode_answers(const qn__example_form *f, const preference *p, qn_conversation *a,
                                qn_conversation *b, qn__example *out, qn_error *err)
{
    qn_tokens asked = {0};
    size_t n = p->texts ? 1 : p->prompt.data ? count_items(&p->prompt, err) : common_messages(a, b);
    if (n < 1)
        return qn__fail(err, QN_INVALID,
                        p->prompt.data ? "\"prompt\" has no message"
                                       : "\"chosen\" and \"rejected\" begin with no message "
                                         "that they share: there is no prompt");
    if (n >= qn_conversation_length(a) || n >= qn_conversation_length(b))
        return qn__fail(err, QN_INVALID, "\"%s\" has no message behind the prompt",
                        n >= qn_conversation_length(a) ? "chosen" : "rejected");
    qn_conversation_parse_special(a, f->parse_special);
    qn_conversation_parse_special(b, f->parse_special);
    if (qn_conversation_ids(a, false, &out->ids, err) == QN_OK &&
        qn_conversation_ids(b, false, &out->other, err) == QN_OK) {
        qn_conversation_cut(a, n);
        qn_conversation_ids(a, true, &asked, err);
    }
    qn__example_ask(out, &asked);
    qn_tokens_free(&asked);
    return err->code;
}

static qn_status read_as_chats(const qn__example_form *f, const preference *p, const char *name,
                               qn__example *out, qn_error *err)
{
    qn_conversation *a = NULL, *b = NULL;
    if (qn_conversation_new(&a, f->chat, err) == QN_OK &&
        qn_conversation_new(&b, f->chat, err) == QN_OK &&
        parse_answer(p, &p->chosen, name, a, err) == QN_OK &&
        parse_answer(p, &p->rejected, name, b, err) == QN_OK)
        encode_answers(f, p, a, b, out, err);
    qn_conversation_free(a);
    qn_conversation_free(b);
    return err->code;
}

/* ---- as texts -------------------------------------------------------------------------------- */

static qn_status encode_both(const qn__example_form *f, const char *prompt, const char *answer,
                             qn_tokens *out, qn_error *err)
{
    qn_text both = {0};
    if (!qn__text_puts(&both, prompt) || !qn__text_puts(&both, answer))
        qn__fail_memory(err, "a preference");
    else
        qn__example_encode(f, both.data, both.n, true, out, err);
    qn_text_free(&both);
    return err->code;
}

/* One behind the other, for a model that knows no chats. */
static qn_status read_as_texts(const qn__example_form *f, const qn__json_at *line, qn__example *out,
                               qn_error *err)
{
    const char *prompt, *chosen, *rejected;
    qn_tokens asked = {0};
    if (qn__json_get_string(line, "prompt", &prompt, err) == QN_OK &&
        qn__json_get_string(line, "chosen", &chosen, err) == QN_OK &&
        qn__json_get_string(line, "rejected", &rejected, err) == QN_OK &&
        encode_both(f, prompt, chosen, &out->ids, err) == QN_OK &&
        encode_both(f, prompt, rejected, &out->other, err) == QN_OK)
        qn__example_encode(f, prompt, strlen(prompt), false, &asked, err);
    qn__example_ask(out, &asked);
    qn_tokens_free(&asked);
    return err->code;
}

qn_status qn__preference_read(const qn__example_form *f, const char *name, const char *json,
                              size_t n, const qn__json_at *line, qn__example *out, qn_error *err)
{
    preference p = {0};
    if (read_members(name, json, n, &p, err) != QN_OK)
        return err->code;
    bool chats = !p.texts || qn__example_knows_chats(f);
    if ((chats ? read_as_chats(f, &p, name, out, err) : read_as_texts(f, line, out, err)) != QN_OK)
        return err->code;
    if (out->ids.n == out->other.n &&
        !memcmp(out->ids.ids, out->other.ids, out->ids.n * sizeof *out->ids.ids))
        return qn__fail(err, QN_INVALID, "\"chosen\" and \"rejected\" are the same tokens");
    return QN_OK;
}
