/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations, and the way to ids. Each message is kept as the JSON that templates take: one that
 * was typed is made into it once, one that came as JSON stays as it was, with whatever else a
 * template may look at.
 */
#include "text/conversation.h"

#include "base/buffers.h"
#include "base/error.h"
#include "base/json_scan.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_VARIABLES = 1000 };

char *qn__copy_bytes(const char *s, size_t n)
{
    char *copy = malloc(n + 1);
    if (copy) {
        memcpy(copy, s, n);
        copy[n] = 0;
    }
    return copy;
}

/* ---- messages -------------------------------------------------------------------------------- */

static void free_message(qn__message *m)
{
    free((char *)m->said.role);
    free((char *)m->said.content);
    free(m->json);
}

static void free_variable(qn__variable *v)
{
    free(v->name);
    free(v->json);
}

qn_status qn_conversation_new(qn_conversation **out, const qn_chat *chat, qn_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return qn__fail_memory(err, "a conversation");
    (*out)->chat = chat;
    return QN_OK;
}

void qn__conversation_clear(qn_conversation *c)
{
    qn_conversation_cut(c, 0);
    for (size_t i = 0; i < c->n_variables; i++)
        free_variable(&c->variables[i]);
    free(c->messages);
    free(c->variables);
    free(c->tools);
    *c = (qn_conversation){.chat = c->chat};
}

void qn_conversation_free(qn_conversation *c)
{
    if (c)
        qn__conversation_clear(c);
    free(c);
}

qn_status qn__conversation_insert(qn_conversation *c, size_t at, qn__message *m, qn_error *err)
{
    bool full = c->n == c->room;
    size_t room = full ? c->room * 2 + 16 : c->room;
    qn__message *all = full ? realloc(c->messages, room * sizeof *all) : c->messages;
    if (all) {
        c->messages = all;
        c->room = room;
    }
    if (!all || !m->said.role || !m->json) {
        free_message(m);
        return qn__fail_memory(err, "a message");
    }
    memmove(all + at + 1, all + at, (c->n - at) * sizeof *all);
    all[at] = *m;
    c->n++;
    return QN_OK;
}

static qn_status check_words(const char *what, const char *s, size_t n, qn_error *err)
{
    size_t valid = qn__utf8_check(s, n);
    return valid == n
               ? QN_OK
               : qn__fail(err, QN_FORMAT, "the %s is not valid UTF-8 at byte %zu", what, valid);
}

/* {"role":...,"content":...}; NULL when memory is out. */
static char *write_message(const char *role, const char *content, size_t n)
{
    qn_text json = {0};
    if (qn__text_puts(&json, "{\"role\":") && qn__text_append_json(&json, role, strlen(role)) &&
        qn__text_puts(&json, ",\"content\":") && qn__text_append_json(&json, content, n) &&
        qn__text_puts(&json, "}"))
        return json.data;
    qn_text_free(&json);
    return NULL;
}

static qn_status add_message(qn_conversation *c, size_t at, const char *role, const char *content,
                             size_t n, qn_error *err)
{
    const char *what = strcmp(role, "user") ? "message" : "prompt";
    if (check_words("role", role, strlen(role), err) != QN_OK ||
        check_words(what, content, n, err) != QN_OK)
        return QN_FORMAT;
    qn__message m = {
        .said = {.role = strdup(role), .content = qn__copy_bytes(content, n), .content_size = n}};
    if (m.said.content)
        m.json = write_message(role, content, n);
    return qn__conversation_insert(c, at, &m, err);
}

qn_status qn_conversation_add(qn_conversation *c, const char *role, const char *content, size_t n,
                              qn_error *err)
{
    return add_message(c, c->n, role, n ? content : "", n, err);
}

qn_status qn_conversation_set_system(qn_conversation *c, const char *content, size_t n,
                                     qn_error *err)
{
    bool has = c->n && !strcmp(c->messages[0].said.role, "system");
    qn_status status = n ? add_message(c, 0, "system", content, n, err) : QN_OK;
    if (has && status == QN_OK) { /* the old one, behind the new one */
        size_t at = n ? 1 : 0;
        free_message(&c->messages[at]);
        memmove(c->messages + at, c->messages + at + 1, (c->n - at - 1) * sizeof *c->messages);
        c->n--;
    }
    return status;
}

void qn_conversation_cut(qn_conversation *c, size_t n)
{
    while (c->n > n)
        free_message(&c->messages[--c->n]);
}

size_t qn_conversation_length(const qn_conversation *c)
{
    return c->n;
}

const qn_chat_message *qn_conversation_message(const qn_conversation *c, size_t i)
{
    return i < c->n ? &c->messages[i].said : NULL;
}

const char *qn_conversation_message_json(const qn_conversation *c, size_t i)
{
    return i < c->n ? c->messages[i].json : NULL;
}

/* ---- what the template gets besides ---------------------------------------------------------- */

/* A copy of a JSON value; NULL on failure. */
static char *copy_json(const char *what, const char *json, size_t n, qn__json_kind kind,
                       qn_error *err)
{
    qn__json_scan scan;
    qn__json_text value;
    qn__json_scan_begin(&scan, what, json, n, err);
    scan.allow_nul = true;
    qn__json_kind is = qn__json_peek(&scan);
    if (kind == QN__JSON_ARRAY && is != kind && is != QN__JSON_FAILED)
        qn__json_scan_fail(&scan, QN_FORMAT, "expected an array");
    qn__json_skip(&scan, &value);
    if (qn__json_scan_end(&scan) != QN_OK)
        return NULL;
    char *copy = qn__copy_bytes(value.data, value.size);
    if (!copy)
        qn__fail_memory(err, what);
    return copy;
}

qn_status qn_conversation_set_tools(qn_conversation *c, const char *json, size_t n, qn_error *err)
{
    qn_error local = {0};
    char *tools = json ? copy_json("tools", json, n, QN__JSON_ARRAY, &local) : NULL;
    if (local.code != QN_OK)
        return qn__fail(err, local.code, "%s", local.message);
    free(c->tools);
    c->tools = tools;
    return QN_OK;
}

static qn_status add_variable(qn_conversation *c, qn__variable *v, qn_error *err)
{
    qn__variable *all = NULL;
    bool full = c->n_variables == MOST_VARIABLES;
    if (v->name && v->json && !full)
        all = realloc(c->variables, (c->n_variables + 1) * sizeof *all);
    if (!all) {
        free_variable(v);
        return full ? qn__fail(err, QN_LIMIT, "more than %d template variables", MOST_VARIABLES)
                    : qn__fail_memory(err, "a variable");
    }
    c->variables = all;
    all[c->n_variables++] = *v;
    return QN_OK;
}

qn_status qn_conversation_set_variable(qn_conversation *c, const char *name, const char *json,
                                       size_t n, qn_error *err)
{
    qn_error local = {0};
    size_t at = 0, size = strlen(name);
    if (!strcmp(name, "messages") || !strcmp(name, "tools"))
        return qn__fail(err, QN_INVALID, "%s are no variable of templates: give them as such",
                        name);
    if (check_words("name of a variable", name, size, err) != QN_OK)
        return QN_FORMAT;
    qn__variable v = {.json = json ? copy_json(name, json, n, QN__JSON_NULL, &local) : NULL};
    if (local.code != QN_OK)
        return qn__fail(err, local.code, "%s", local.message);
    while (at < c->n_variables && strcmp(c->variables[at].name, name) != 0)
        at++;
    if (json && at == c->n_variables) {
        v.name = strdup(name);
        return add_variable(c, &v, err);
    }
    if (json) {
        free(c->variables[at].json);
        c->variables[at].json = v.json;
    } else if (at < c->n_variables) {
        free_variable(&c->variables[at]);
        c->variables[at] = c->variables[--c->n_variables];
    }
    return QN_OK;
}

void qn_conversation_parse_special(qn_conversation *c, bool parse)
{
    c->parse_special = parse;
}

/* ---- to the model ---------------------------------------------------------------------------- */

/* The object that templates take. */
static qn_status write_request(const qn_conversation *c, bool add_prompt, qn_text *out,
                               qn_error *err)
{
    bool told = false, ok = qn__text_puts(out, "{");
    for (size_t i = 0; ok && i < c->n_variables; i++) {
        const qn__variable *v = &c->variables[i];
        ok = qn__text_append_json(out, v->name, strlen(v->name)) && qn__text_puts(out, ":") &&
             qn__text_puts(out, v->json) && qn__text_puts(out, ",");
        told |= !strcmp(v->name, "add_generation_prompt");
    }
    if (!told)
        ok = ok && qn__text_puts(out, "\"add_generation_prompt\":") &&
             qn__text_puts(out, add_prompt ? "true," : "false,");
    if (c->tools)
        ok = ok && qn__text_puts(out, "\"tools\":") && qn__text_puts(out, c->tools) &&
             qn__text_puts(out, ",");
    ok = ok && qn__text_puts(out, "\"messages\":[");
    for (size_t i = 0; ok && i < c->n; i++)
        ok = qn__text_puts(out, i ? "," : "") && qn__text_puts(out, c->messages[i].json);
    return ok && qn__text_puts(out, "]}") ? QN_OK : qn__fail_memory(err, "a chat");
}

/* By one of the built-in formats, which know texts alone. */
static qn_status encode_built_in(const qn_conversation *c, bool add_prompt, qn_tokens *out,
                                 qn_error *err)
{
    if (c->tools || c->n_variables || c->parse_special)
        return qn__fail(err, QN_UNSUPPORTED,
                        "the model has no chat template, so tools, template variables and parsing "
                        "special tokens are not possible");
    qn_chat_message *messages = calloc(c->n + 1, sizeof *messages);
    if (!messages)
        return qn__fail_memory(err, "a chat");
    qn_status status = QN_OK;
    for (size_t i = 0; status == QN_OK && i < c->n; i++) {
        messages[i] = c->messages[i].said;
        if (!messages[i].content)
            status = qn__fail(err, QN_UNSUPPORTED,
                              "message %zu has no text, and the model has no chat template of its "
                              "own",
                              i);
    }
    if (status == QN_OK)
        status = qn_chat_apply(c->chat, messages, c->n, add_prompt, out, err);
    free(messages);
    return status;
}

static qn_status check_chat(const qn_conversation *c, qn_error *err)
{
    return c->chat
               ? QN_OK
               : qn__fail(err, QN_STATE, "the conversation is of messages alone: it has no chat");
}

qn_status qn_conversation_ids(const qn_conversation *c, bool add_prompt, qn_tokens *out,
                              qn_error *err)
{
    qn_text json = {0};
    if (check_chat(c, err) != QN_OK)
        return QN_STATE;
    if (!qn_chat_has_template(c->chat))
        return encode_built_in(c, add_prompt, out, err);
    qn_status status = write_request(c, add_prompt, &json, err);
    if (status == QN_OK)
        status = qn_chat_render_ids(c->chat, json.data, json.n,
                                    c->parse_special ? QN_PARSE_SPECIAL : 0, out, err);
    qn_text_free(&json);
    return status;
}

qn_status qn_conversation_text(const qn_conversation *c, bool add_prompt, qn_text *out,
                               qn_error *err)
{
    qn_text json = {0};
    qn_tokens ids = {0};
    qn_status status = check_chat(c, err);
    if (status != QN_OK)
        return status;
    if (qn_chat_has_template(c->chat)) {
        status = write_request(c, add_prompt, &json, err);
        if (status == QN_OK)
            status = qn_chat_render(c->chat, json.data, json.n, out, NULL, err);
    } else {
        status = encode_built_in(c, add_prompt, &ids, err);
        if (status == QN_OK)
            status = qn_tokenizer_decode(qn__chat_tokenizer(c->chat), ids.ids, ids.n, 0, out, err);
    }
    qn_tokens_free(&ids);
    qn_text_free(&json);
    return status;
}
