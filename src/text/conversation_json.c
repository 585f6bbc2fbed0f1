/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations as JSON. What is read becomes another conversation first, so that a text that is
 * wrong anywhere leaves the one that there is. A message's own bytes are kept, not what a tree
 * would make of them.
 */
#include "text/conversation.h"

#include "base/buffers.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_scan.h"

#include <stdlib.h>

enum { MOST_MESSAGES = 100000 };

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct message_reader {
    qn__json_scan scan;
    const char *name, *list; /* in messages: NAME: LIST[3]: ... */
    size_t index;
    qn_error *err;
} message_reader;

/* Without a byte: the text may be one that was made of what the user wrote. Always false. */
static bool refuse_message(message_reader *r, qn_status code, const char *what)
{
    if (r->scan.status == QN_OK) {
        r->scan.status = code;
        qn__fail(r->err, code, "%s: %s[%zu]: %s", r->name, r->list, r->index, what);
    }
    return false;
}

/* A text at the reader's place, once; what has no such type is `wrong`. */
static bool read_words(message_reader *r, const char **out, size_t *n, const char *wrong)
{
    qn__json_text text;
    if (*out)
        return refuse_message(r, QN_FORMAT, "a key stands twice");
    qn__json_kind kind = qn__json_peek(&r->scan);
    if (kind != QN__JSON_STRING && kind != QN__JSON_FAILED)
        return refuse_message(r, QN_FORMAT, wrong);
    if (!qn__json_read_string(&r->scan, &text))
        return false;
    if (!(*out = qn__copy_bytes(text.data, text.size)))
        return refuse_message(r, QN_MEMORY, "out of memory");
    *n = text.size;
    return true;
}

static bool read_member(message_reader *r, const qn__json_text *key, qn_chat_message *said,
                        bool *enough)
{
    static const char no_text[] = "content must be a text or an array of parts";
    size_t n;
    if (qn__json_text_is(key, "role"))
        return read_words(r, &said->role, &n, "role must be a text");
    bool content = qn__json_text_is(key, "content"), calls = qn__json_text_is(key, "tool_calls");
    qn__json_kind kind = qn__json_peek(&r->scan);
    *enough |= (content && kind != QN__JSON_NULL) || calls;
    return content && kind != QN__JSON_NULL && kind != QN__JSON_ARRAY
               ? read_words(r, &said->content, &said->content_size, no_text)
               : qn__json_skip(&r->scan, NULL);
}

/* Appends the message at the reader's place. */
static bool read_message(message_reader *r, qn_conversation *c)
{
    qn__json_text key;
    qn__message m = {0};
    bool enough = false;
    qn__json_kind kind = qn__json_peek(&r->scan);
    const char *from = r->scan.at;
    if (kind != QN__JSON_OBJECT)
        return kind != QN__JSON_FAILED &&
               refuse_message(r, QN_FORMAT, "a message must be an object with role and content");
    qn__json_enter_object(&r->scan);
    while (qn__json_next_key(&r->scan, &key) && read_member(r, &key, &m.said, &enough))
        ;
    if (r->scan.status == QN_OK && !m.said.role)
        refuse_message(r, QN_FORMAT, "the message has no role");
    else if (r->scan.status == QN_OK && !enough)
        refuse_message(r, QN_FORMAT, "the message has no content");
    else if (r->scan.status == QN_OK)
        m.json = qn__copy_bytes(from, (size_t)(r->scan.at - from));
    qn_status status = qn__conversation_insert(c, c->n, &m, NULL);
    return status == QN_OK || refuse_message(r, QN_MEMORY, "out of memory");
}

static bool read_messages(message_reader *r, qn_conversation *c)
{
    qn__json_enter_array(&r->scan);
    for (r->index = 0; qn__json_next_item(&r->scan); r->index++) {
        if (r->index >= MOST_MESSAGES)
            return refuse_message(r, QN_LIMIT, "more than 100000 messages");
        if (!read_message(r, c))
            return false;
    }
    return r->scan.status == QN_OK;
}

static bool read_variables(message_reader *r, qn_conversation *c)
{
    qn__json_text key, value;
    qn__json_enter_object(&r->scan);
    while (qn__json_next_key(&r->scan, &key)) {
        char *name = qn__copy_bytes(key.data, key.size);
        qn_error wrong = {0};
        if (!name)
            qn__fail_memory(&wrong, "a variable");
        else if (qn__json_skip(&r->scan, &value))
            qn_conversation_set_variable(c, name, value.data, value.size, &wrong);
        free(name);
        if (wrong.code != QN_OK)
            qn__json_scan_fail(&r->scan, wrong.code, "%s", wrong.message);
    }
    return r->scan.status == QN_OK;
}

static bool read_tools(message_reader *r, qn_conversation *c)
{
    qn__json_text value;
    qn_error wrong = {0};
    if (qn__json_skip(&r->scan, &value) &&
        qn_conversation_set_tools(c, value.data, value.size, &wrong) != QN_OK)
        qn__json_scan_fail(&r->scan, wrong.code, "%s", wrong.message);
    return r->scan.status == QN_OK;
}

static bool read_object(message_reader *r, qn_conversation *c)
{
    qn__json_text key;
    bool messages = false;
    qn__json_enter_object(&r->scan);
    while (qn__json_next_key(&r->scan, &key)) {
        bool list = qn__json_text_is(&key, "messages"), tools = qn__json_text_is(&key, "tools");
        bool variables = qn__json_text_is(&key, "chat_template_kwargs");
        bool special = qn__json_text_is(&key, "parse_special");
        if ((list && messages) || (tools && c->tools) || (variables && c->n_variables))
            return qn__json_scan_fail(&r->scan, QN_FORMAT, "the key stands twice");
        bool null = qn__json_peek(&r->scan) == QN__JSON_NULL;
        messages |= list && !null;
        if (null)
            qn__json_skip(&r->scan, NULL);
        else if (list)
            read_messages(r, c);
        else if (tools)
            read_tools(r, c);
        else if (variables)
            read_variables(r, c);
        else if (special)
            qn__json_read_bool(&r->scan, &c->parse_special);
        else
            qn__json_skip(&r->scan, NULL);
    }
    return messages || qn__json_scan_fail(&r->scan, QN_FORMAT, "there are no messages");
}

qn_status qn_conversation_parse(qn_conversation *c, const char *name, const char *json, size_t n,
                                qn_error *err)
{
    qn_error local = {0};
    qn_conversation next = {.chat = c->chat};
    message_reader r = {.name = name, .list = "messages", .err = &local};
    qn__json_scan_begin(&r.scan, name, json, n, &local);
    r.scan.allow_nul = true;
    qn__json_kind kind = qn__json_peek(&r.scan);
    if (kind == QN__JSON_OBJECT)
        read_object(&r, &next);
    else if (kind == QN__JSON_ARRAY)
        read_messages(&r, &next);
    else if (kind != QN__JSON_FAILED)
        qn__json_scan_fail(&r.scan, QN_FORMAT, "messages are an array, or an object with one");
    if (qn__json_scan_end(&r.scan) != QN_OK) {
        qn__conversation_clear(&next);
        return qn__fail(err, local.code, "%s", local.message);
    }
    qn__conversation_clear(c);
    *c = next;
    return QN_OK;
}

qn_status qn_conversation_add_json(qn_conversation *c, const char *json, size_t n, qn_error *err)
{
    qn_error local = {0};
    message_reader r = {.name = "a message", .list = "messages", .index = c->n, .err = &local};
    size_t before = c->n;
    qn__json_scan_begin(&r.scan, "a message", json, n, &local);
    r.scan.allow_nul = true;
    read_message(&r, c);
    if (qn__json_scan_end(&r.scan) == QN_OK)
        return QN_OK;
    qn_conversation_cut(c, before);
    return qn__fail(err, local.code, "%s", local.message);
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool put_messages(const qn_conversation *c, qn_text *out)
{
    bool ok = qn__text_puts(out, "[");
    for (size_t i = 0; ok && i < c->n; i++)
        ok = qn__text_puts(out, i ? ",\n " : "") && qn__text_puts(out, c->messages[i].json);
    return ok && qn__text_puts(out, "]");
}

static bool put_variables(const qn_conversation *c, qn_text *out)
{
    bool ok = qn__text_puts(out, ",\n \"chat_template_kwargs\":{");
    for (size_t i = 0; ok && i < c->n_variables; i++) {
        const qn__variable *v = &c->variables[i];
        ok = qn__text_puts(out, i ? "," : "") &&
             qn__text_append_json(out, v->name, strlen(v->name)) && qn__text_puts(out, ":") &&
             qn__text_puts(out, v->json);
    }
    return ok && qn__text_puts(out, "}");
}

qn_status qn_conversation_to_json(const qn_conversation *c, qn_text *out, qn_error *err)
{
    size_t before = out->n;
    bool plain = !c->tools && !c->n_variables && !c->parse_special;
    bool ok = qn__text_puts(out, plain ? "" : "{\"messages\":") && put_messages(c, out);
    if (c->tools)
        ok = ok && qn__text_puts(out, ",\n \"tools\":") && qn__text_puts(out, c->tools);
    if (c->n_variables)
        ok = ok && put_variables(c, out);
    if (c->parse_special)
        ok = ok && qn__text_puts(out, ",\n \"parse_special\":true");
    if (ok && qn__text_puts(out, plain ? "\n" : "}\n"))
        return QN_OK;
    out->n = before;
    return qn__fail_memory(err, "a conversation");
}

qn_status qn_conversation_write(const qn_conversation *c, const char *path, qn_error *err)
{
    qn_text json = {0};
    qn_status status = qn_conversation_to_json(c, &json, err);
    if (status == QN_OK)
        status = qn__file_write(path, json.data, json.n, QN__WRITER_REPLACE, err);
    qn_text_free(&json);
    return status;
}
