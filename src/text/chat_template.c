/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's chat: its own templates, where it has any, and the way from a conversation to ids. The
 * rendered text is tokenized in one piece; control tokens match only where the template wrote them.
 * As in transformers these are the special tokens and the other added ones that a template's source
 * mentions.
 *
 * What ends a reply is found by trying: a conversation with a reply of known text is rendered, and
 * the control token that follows it is one. generation_config.json should name it, but is missing
 * or wrong in many repacked models.
 */
#include "text/chat_messages.h"
#include "text/chat_templates.h"
#include "jinja/jinja.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

#include "base/hash.h"
#include "base/json_scan.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_ENDS = 16 };

struct qn_chat {
    const qn_tokenizer *tokenizer;
    qn__template_set templates;
    const qn__named_template *chosen; /* NULL: by the rules of transformers */
    bool *control;                    /* by id: matches nowhere in data */
    int32_t ends[MOST_ENDS];          /* control tokens behind replies */
    size_t n_ends;
};

/* ---- opening -------------------------------------------------------------------------------- */

/* Marks the added tokens of a set that the template's source mentions. */
static void mark_control(qn_chat *chat, const qn__added_set *set, const qn__named_template *item)
{
    for (size_t i = 0; i < set->n; i++) {
        const qn__added_token *t = &set->tokens[i];
        bool space = t->text[strspn(t->text, " \t\r\n")] == 0;
        if (!space && memmem(item->source, item->n, t->text, t->n))
            chat->control[t->id] = true;
    }
}

/* The longest control token of a set at s[0..n): its id, and its length in *longest where it is
 * longer than that. */
static int32_t control_at(const qn_chat *chat, const qn__added_set *set, const char *s, size_t n,
                          size_t *longest, int32_t id)
{
    for (size_t i = 0; i < set->n; i++) {
        const qn__added_token *t = &set->tokens[i];
        bool control = (t->flags & QN__ADDED_SPECIAL) || chat->control[t->id];
        if (control && t->n > *longest && t->n <= n && memcmp(s, t->text, t->n) == 0) {
            *longest = t->n;
            id = t->id;
        }
    }
    return id;
}

static const char probe_reply[] = "quernfindswhatendsthisreply";

/* Renders one conversation and looks behind the reply. False: the template takes another kind of
 * conversation, or nothing stands there. Memory that is out is *err. */
static bool find_end(qn_chat *chat, const qn__named_template *item, const char *json, qn_error *err)
{
    qn_text text = {0};
    qn_error failure = {0};
    qn_template_options options = {.size = sizeof options,
                                   .trusted = chat->templates.variables,
                                   .steps = 1000000,
                                   .output = 1 << 20,
                                   .memory = 64 << 20};
    qn_template_render(item->t, json, strlen(json), &options, &text, NULL, &failure);
    if (failure.code == QN_MEMORY)
        qn__fail_memory(err, "a chat");
    size_t size = sizeof probe_reply - 1, longest = 0;
    const char *hit = NULL;
    for (const char *at = text.data; failure.code == QN_OK && at; at = hit + size) {
        const char *next = memmem(at, (size_t)(text.data + text.n - at), probe_reply, size);
        if (!next)
            break;
        hit = next;
    }
    int32_t id = -1;
    bool found = false;
    if (hit) {
        const char *s = hit + size + strspn(hit + size, " \t\r\n");
        size_t n = (size_t)(text.data + text.n - s);
        found = n > 0;
        id = control_at(chat, &chat->tokenizer->raw, s, n, &longest, id);
        id = control_at(chat, &chat->tokenizer->normalized, s, n, &longest, id);
    }
    for (size_t i = 0; i < chat->n_ends; i++)
        id = chat->ends[i] == id ? -1 : id;
    if (id >= 0 && chat->n_ends < MOST_ENDS)
        chat->ends[chat->n_ends++] = id;
    qn_text_free(&text);
    return found;
}

/* Contents as text, else as parts; the reply as the last message, else with another behind it. */
static void find_ends(qn_chat *chat, const qn__named_template *item, qn_error *err)
{
    static const char *const forms[2][2] = {{"\"", "\""},
                                            {"[{\"type\":\"text\",\"text\":\"", "\"}]"}};
    for (int i = 0; item->t && i < 4; i++) {
        const char *before = forms[i / 2][0], *behind = forms[i / 2][1];
        char json[600], more[200] = "";
        if (i % 2)
            snprintf(more, sizeof more, ",{\"role\":\"user\",\"content\":%sc%s}", before, behind);
        snprintf(json, sizeof json,
                 "{\"messages\":[{\"role\":\"user\",\"content\":%sa%s},{\"role\":\"assistant\","
                 "\"content\":%s%s%s}%s],\"add_generation_prompt\":false}",
                 before, behind, before, probe_reply, behind, more);
        if (find_end(chat, item, json, err) || err->code != QN_OK)
            return;
    }
}

qn_status qn_chat_open(qn_chat **out, const qn_tokenizer *tokenizer, const char *directory,
                       qn_error *err)
{
    qn_error own = {0}; /* the caller's may hold an older failure */
    *out = NULL;
    qn_chat *chat = calloc(1, sizeof *chat);
    if (chat) {
        chat->tokenizer = tokenizer;
        chat->control = calloc((size_t)qn_tokenizer_vocab_size(tokenizer) + 1, sizeof(bool));
    }
    if (!chat || !chat->control)
        qn__fail_memory(&own, "a chat");
    else
        qn__template_set_read(&chat->templates, directory, &own);
    for (size_t i = 0; own.code == QN_OK && i < chat->templates.n; i++) {
        mark_control(chat, &tokenizer->raw, &chat->templates.items[i]);
        mark_control(chat, &tokenizer->normalized, &chat->templates.items[i]);
    }
    for (size_t i = 0; own.code == QN_OK && i < chat->templates.n; i++)
        find_ends(chat, &chat->templates.items[i], &own);
    if (own.code != QN_OK) {
        qn_chat_close(chat);
        return qn__fail(err, own.code, "%s", own.message);
    }
    *out = chat;
    return QN_OK;
}

void qn_chat_close(qn_chat *chat)
{
    if (!chat)
        return;
    qn__template_set_free(&chat->templates);
    free(chat->control);
    free(chat);
}

/* ---- which template ------------------------------------------------------------------------- */

bool qn_chat_has_template(const qn_chat *chat)
{
    return chat->templates.n > 0;
}

const char *qn_chat_template_name(const qn_chat *chat, size_t i)
{
    return i < chat->templates.n ? chat->templates.items[i].name : NULL;
}

/* "a", "b" ... of the templates there are, cut where it gets long. */
static const char *list_names(const qn_chat *chat, char *out, size_t size)
{
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < chat->templates.n && n + 50 < size; i++) {
        const char *name = chat->templates.items[i].name;
        char quoted[40];
        qn__utf8_quote(quoted, sizeof quoted, name, strlen(name));
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", quoted);
    }
    return out;
}

qn_status qn_chat_choose(qn_chat *chat, const char *name, qn_error *err)
{
    char names[400], quoted[80];
    const qn__named_template *found = name ? qn__template_set_find(&chat->templates, name) : NULL;
    if (name && !found) {
        qn__utf8_quote(quoted, sizeof quoted, name, strlen(name));
        if (chat->templates.n == 0)
            return qn__fail(err, QN_NOT_FOUND, "no chat template \"%s\": the model has none",
                            quoted);
        return qn__fail(err, QN_NOT_FOUND, "no chat template \"%s\": the model has %s", quoted,
                        list_names(chat, names, sizeof names));
    }
    chat->chosen = found;
    return QN_OK;
}

/* Whether the request has tools; also checks that it is JSON. */
static qn_status has_tools(const char *json, size_t n, bool *tools, qn_error *err)
{
    qn__json_scan scan;
    qn__json_text key;
    qn__json_scan_begin(&scan, "the chat", json, n, err);
    scan.allow_nul = true;
    qn__json_enter_object(&scan);
    while (qn__json_next_key(&scan, &key)) {
        if (key.size == 5 && memcmp(key.data, "tools", 5) == 0)
            *tools = qn__json_peek(&scan) != QN__JSON_NULL;
        qn__json_skip(&scan, NULL);
    }
    return qn__json_scan_end(&scan);
}

static qn_status template_for(const qn_chat *chat, bool tools, const qn_template **out,
                              qn_error *err)
{
    char names[400];
    const qn__named_template *item = chat->chosen;
    if (!item && tools)
        item = qn__template_set_find(&chat->templates, "tool_use");
    if (!item)
        item = qn__template_set_find(&chat->templates, "default");
    if (!item && chat->templates.n > 0)
        return qn__fail(err, QN_UNSUPPORTED,
                        "the model has no default chat template; choose one by its name: %s",
                        list_names(chat, names, sizeof names));
    if (!item)
        return qn__fail(err, QN_UNSUPPORTED, "the model has no chat template");
    *out = item->t;
    return item->t ? QN_OK : qn__fail(err, item->error.code, "%s", item->error.message);
}

const qn_tokenizer *qn__chat_tokenizer(const qn_chat *chat)
{
    return chat->tokenizer;
}

static uint64_t mix_words(uint64_t h, const char *s)
{
    return qn__hash_bytes(s, strlen(s), h);
}

uint64_t qn__chat_fingerprint(const qn_chat *chat)
{
    uint64_t h = 1;
    if (chat->templates.n == 0)
        return mix_words(h, qn_chat_format_name(qn_chat_format_of(chat->tokenizer)));
    for (size_t i = 0; i < chat->templates.n; i++) {
        const qn__named_template *t = &chat->templates.items[i];
        h = qn__hash_bytes(t->source, t->n, mix_words(h, t->name));
    }
    if (chat->templates.variables)
        h = mix_words(h, chat->templates.variables);
    return chat->chosen ? mix_words(h, chat->chosen->name) : h;
}

/* ---- rendering ------------------------------------------------------------------------------ */

size_t qn_chat_ends(const qn_chat *chat, int32_t *ids, size_t capacity)
{
    for (size_t i = 0; i < chat->n_ends && i < capacity; i++)
        ids[i] = chat->ends[i];
    return chat->n_ends;
}

qn_status qn_chat_render(const qn_chat *chat, const char *json, size_t n, qn_text *out,
                         qn_spans *data, qn_error *err)
{
    bool tools = false;
    const qn_template *t;
    qn_status status = has_tools(json, n, &tools, err);
    if (status == QN_OK)
        status = template_for(chat, tools, &t, err);
    if (status != QN_OK)
        return status;
    qn_template_options options = {
        .size = sizeof options, .trusted = chat->templates.variables, .drop_nulls = true};
    return qn_template_render(t, json, n, &options, out, data, err);
}

qn_status qn_chat_render_ids(const qn_chat *chat, const char *json, size_t n, unsigned flags,
                             qn_tokens *out, qn_error *err)
{
    qn_text text = {0};
    qn_spans data = {0};
    qn_status status = qn_chat_render(chat, json, n, &text, &data, err);
    if (status == QN_OK) {
        qn__added_data guard = {data.spans, data.n, chat->control};
        bool everywhere = (flags & QN_PARSE_SPECIAL) != 0;
        status = qn__tokenizer_encode_data(chat->tokenizer, text.data, text.n,
                                           everywhere ? NULL : &guard, QN_PARSE_SPECIAL, out, err);
    }
    qn_text_free(&text);
    qn_spans_free(&data);
    return status;
}

qn_status qn_chat_apply(const qn_chat *chat, const qn_chat_message *messages, size_t n,
                        bool add_prompt, qn_tokens *out, qn_error *err)
{
    qn_text json = {0};
    if (!qn_chat_has_template(chat))
        return qn_chat_encode(chat->tokenizer, messages, n, add_prompt, out, err);
    qn_status status = qn__chat_messages_json(messages, n, add_prompt, &json, err);
    if (status == QN_OK)
        status = qn_chat_render_ids(chat, json.data, json.n, 0, out, err);
    qn_text_free(&json);
    return status;
}
