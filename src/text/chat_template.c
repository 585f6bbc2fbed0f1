/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's chat: its own templates (chat_template.jinja, else tokenizer_config.json's), where it
 * has any, and the way from a conversation to ids. The rendered text is tokenized in one piece;
 * control tokens match only where the template wrote them. As in transformers these are the
 * special tokens and the other added ones that the template's source mentions.
 */
#include "text/template.h"
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "base/json_scan.h"

#include <stdlib.h>

enum { LARGEST_CONFIG = 32 << 20 };

struct qn_chat {
    const qn_tokenizer *tokenizer;
    qn_template *normal, *with_tools; /* either may be NULL */
    bool *control;                    /* by id: matches nowhere in data */
    char *trusted;                    /* JSON: bos_token and others */
};

/* Marks the added tokens of a set that the template's source mentions. */
static void mark_control(qn_chat *chat, const qn__added_set *set, const char *source, size_t n)
{
    for (size_t i = 0; i < set->n; i++) {
        const qn__added_token *t = &set->tokens[i];
        bool space = t->text[strspn(t->text, " \t\r\n")] == 0;
        if (!space && memmem(source, n, t->text, t->n))
            chat->control[t->id] = true;
    }
}

static qn_status add_template(qn_chat *chat, qn_template **place, const char *name,
                              const char *source, size_t n, qn_error *err)
{
    if (*place)
        return QN_OK;
    mark_control(chat, &chat->tokenizer->raw, source, n);
    mark_control(chat, &chat->tokenizer->normalized, source, n);
    return qn_template_new(place, name, source, n, err);
}

static qn_status read_jinja(qn_chat *chat, const char *directory, const char *name,
                            qn_template **place, qn_error *err)
{
    char *path, *source;
    size_t n;
    qn_error missing = {0};
    qn_status status = qn__path_resolve(directory, name, strlen(name), &path, &missing);
    if (status == QN_NOT_FOUND)
        return QN_OK;
    if (status != QN_OK)
        return qn__fail(err, status, "%s", missing.message);
    status = qn__file_read(path, QN__LARGEST_TEMPLATE, &source, &n, err);
    if (status == QN_OK) {
        status = add_template(chat, place, path, source, n, err);
        free(source);
    }
    free(path);
    return status;
}

/* "chat_template": a text, or a list of {"name", "template"}. */
static qn_status read_listed(qn_chat *chat, const qn__json_at *at, qn_error *err)
{
    const char *name, *source;
    qn__json_at item;
    if (cJSON_IsString(at->node))
        return add_template(chat, &chat->normal, at->file, at->node->valuestring,
                            strlen(at->node->valuestring), err);
    if (!qn__json_first(at, &item))
        return QN_OK;
    do {
        if (qn__json_get_string(&item, "name", &name, err) != QN_OK ||
            qn__json_get_string(&item, "template", &source, err) != QN_OK)
            return err->code;
        qn_template **place = strcmp(name, "default") == 0    ? &chat->normal
                              : strcmp(name, "tool_use") == 0 ? &chat->with_tools
                                                              : NULL;
        if (place && add_template(chat, place, at->file, source, strlen(source), err) != QN_OK)
            return err->code;
    } while (qn__json_next(&item));
    return QN_OK;
}

/* Keeps the named special tokens as JSON for the templates. */
static qn_status keep_tokens(qn_chat *chat, const qn__json_at *config, qn_error *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    cJSON *kept = cJSON_CreateObject();
    bool ok = kept != NULL;
    for (size_t i = 0; ok && i < sizeof names / sizeof *names; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(config->node, names[i]);
        if (cJSON_IsObject(v))
            v = cJSON_GetObjectItemCaseSensitive(v, "content");
        if (cJSON_IsString(v))
            ok = cJSON_AddStringToObject(kept, names[i], v->valuestring) != NULL;
    }
    chat->trusted = ok ? cJSON_PrintUnformatted(kept) : NULL;
    cJSON_Delete(kept);
    return chat->trusted ? QN_OK : qn__fail_memory(err, "a chat");
}

static qn_status read_chat_config(qn_chat *chat, const char *directory, qn_error *err)
{
    static const char name[] = "tokenizer_config.json";
    char *path;
    cJSON *root = NULL;
    qn_error missing = {0};
    qn_status status = qn__path_resolve(directory, name, sizeof name - 1, &path, &missing);
    if (status == QN_NOT_FOUND)
        return QN_OK;
    if (status != QN_OK)
        return qn__fail(err, status, "%s", missing.message);
    status = qn__json_read(&root, path, LARGEST_CONFIG, err);
    if (status == QN_OK) {
        qn__json_at config = qn__json_root(path, root), at;
        status = keep_tokens(chat, &config, err);
        /* Files of their own replace the templates of this one, as in transformers. */
        if (status == QN_OK && !chat->normal && !chat->with_tools &&
            qn__json_find(&config, "chat_template", &at))
            status = read_listed(chat, &at, err);
        cJSON_Delete(root);
    }
    free(path);
    return status;
}

qn_status qn_chat_open(qn_chat **out, const qn_tokenizer *tokenizer, const char *directory,
                       qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    *out = NULL;
    qn_chat *chat = calloc(1, sizeof *chat);
    if (chat) {
        chat->tokenizer = tokenizer;
        chat->control = calloc((size_t)qn_tokenizer_vocab_size(tokenizer) + 1, sizeof(bool));
    }
    if (!chat || !chat->control)
        qn__fail_memory(err, "a chat");
    else if (read_jinja(chat, directory, "chat_template.jinja", &chat->normal, err) == QN_OK &&
             read_jinja(chat, directory, "chat_templates/tool_use.jinja", &chat->with_tools, err) ==
                 QN_OK)
        read_chat_config(chat, directory, err);
    if (err->code != QN_OK) {
        qn_chat_close(chat);
        return err->code;
    }
    *out = chat;
    return QN_OK;
}

void qn_chat_close(qn_chat *chat)
{
    if (!chat)
        return;
    qn_template_free(chat->normal);
    qn_template_free(chat->with_tools);
    free(chat->control);
    cJSON_free(chat->trusted);
    free(chat);
}

bool qn_chat_has_template(const qn_chat *chat)
{
    return chat->normal || chat->with_tools;
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

qn_status qn_chat_render(const qn_chat *chat, const char *json, size_t n, qn_text *out,
                         qn_spans *data, qn_error *err)
{
    bool tools = false;
    qn_status status = has_tools(json, n, &tools, err);
    if (status != QN_OK)
        return status;
    const qn_template *t = tools && chat->with_tools ? chat->with_tools : chat->normal;
    if (!t)
        return qn__fail(err, QN_UNSUPPORTED, "the model has no chat template for this chat");
    qn_template_options options = {.size = sizeof options, .trusted = chat->trusted};
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
