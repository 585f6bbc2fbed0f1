/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations. A message that was typed is made into JSON here; one from a file stays as it was,
 * with whatever else a template may look at.
 */
#include "cli/conversation.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_MESSAGES = 100000 };

void message_free(message *m)
{
    free(m->role);
    free(m->content);
    free(m->json);
}

void conversation_cut(conversation *c, size_t n)
{
    while (c->n > n)
        message_free(&c->messages[--c->n]);
}

void conversation_free(conversation *c)
{
    conversation_cut(c, 0);
    free(c->messages);
    free(c->tools);
    *c = (conversation){0};
}

message conversation_pop(conversation *c)
{
    return c->messages[--c->n];
}

void conversation_push(conversation *c, message m)
{
    c->messages[c->n++] = m; /* where it was */
}

/* Takes over m, also when it fails. */
static qn_status insert_message(conversation *c, size_t at, message m, qn_error *err)
{
    bool full = c->n == c->room;
    size_t room = full ? c->room * 2 + 16 : c->room;
    message *all = full ? realloc(c->messages, room * sizeof *all) : c->messages;
    if (all) {
        c->messages = all;
        c->room = room;
    }
    if (!all || !m.role || !m.json) {
        message_free(&m);
        return qn__fail_memory(err, "a message");
    }
    memmove(all + at + 1, all + at, (c->n - at) * sizeof *all);
    all[at] = m;
    c->n++;
    return QN_OK;
}

static char *copy_bytes(const char *data, size_t n)
{
    char *copy = malloc(n + 1);
    if (copy) {
        memcpy(copy, data, n);
        copy[n] = 0;
    }
    return copy;
}

/* {"role":...,"content":...}; NULL when memory is out. */
static char *message_json(const char *role, const char *content, size_t size)
{
    char *json = NULL;
    size_t n;
    FILE *out = open_memstream(&json, &n);
    if (!out)
        return NULL;
    fprintf(out, "{\"role\":\"%s\",\"content\":", role);
    print_json_string(out, content, size);
    fputc('}', out);
    bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad) {
        free(json);
        return NULL;
    }
    return json;
}

static qn_status add_at(conversation *c, size_t at, const char *role, const char *content,
                        size_t size, qn_error *err)
{
    size_t valid = qn__utf8_check(content, size);
    if (valid != size)
        return qn__fail(err, QN_FORMAT, "the %s is not valid UTF-8 at byte %zu",
                        strcmp(role, "user") ? "message" : "prompt", valid);
    message m = {.role = strdup(role),
                 .content = copy_bytes(content, size),
                 .content_size = size,
                 .json = message_json(role, content, size)};
    if (!m.content) {
        free(m.json);
        m.json = NULL;
    }
    return insert_message(c, at, m, err);
}

qn_status conversation_add(conversation *c, const char *role, const char *content, size_t size,
                           qn_error *err)
{
    return add_at(c, c->n, role, content, size, err);
}

qn_status conversation_system(conversation *c, const char *content, size_t size, qn_error *err)
{
    bool has = c->n && !strcmp(c->messages[0].role, "system");
    if (size && add_at(c, 0, "system", content, size, err) != QN_OK)
        return err->code;
    if (has) { /* the old one, behind the new one */
        size_t at = size ? 1 : 0;
        message_free(&c->messages[at]);
        memmove(c->messages + at, c->messages + at + 1, (c->n - at - 1) * sizeof *c->messages);
        c->n--;
    }
    return QN_OK;
}

/* ---- files
 * -------------------------------------------------------------------------------------------------
 */

static qn_status parse_message(conversation *c, const qn__json_at *at, qn_error *err)
{
    qn__json_at content;
    const char *role, *text = NULL;
    if (!cJSON_IsObject(at->node))
        return qn__json_fail(at, QN_FORMAT, err,
                             "a message must be an object with role and content");
    if (qn__json_get_string(at, "role", &role, err) != QN_OK)
        return err->code;
    bool has = qn__json_find(at, "content", &content);
    if (has && !cJSON_IsString(content.node) && !cJSON_IsArray(content.node))
        return qn__json_fail(&content, QN_FORMAT, err,
                             "content must be a text or an array of parts");
    if (!has && !cJSON_HasObjectItem(at->node, "tool_calls"))
        return qn__json_fail(at, QN_FORMAT, err, "the message has no content");
    if (has && cJSON_IsString(content.node))
        text = content.node->valuestring;
    message m = {.role = strdup(role),
                 .content = text ? strdup(text) : NULL,
                 .content_size = text ? strlen(text) : 0,
                 .json = cJSON_PrintUnformatted(at->node)};
    return insert_message(c, c->n, m, err);
}

static qn_status parse_messages(conversation *c, const qn__json_at *list, qn_error *err)
{
    qn__json_at item;
    if (!qn__json_first(list, &item))
        return qn__json_fail(list, QN_FORMAT, err, "there is no message");
    do {
        if (c->n >= MOST_MESSAGES)
            return qn__json_fail(list, QN_LIMIT, err, "more than %d messages", MOST_MESSAGES);
        if (parse_message(c, &item, err) != QN_OK)
            return err->code;
    } while (qn__json_next(&item));
    return QN_OK;
}

static qn_status take_tools(conversation *c, const qn__json_at *tools, qn_error *err)
{
    if (!cJSON_IsArray(tools->node))
        return qn__json_fail(tools, QN_FORMAT, err, "tools must be an array");
    char *text = cJSON_PrintUnformatted(tools->node);
    if (!text)
        return qn__fail_memory(err, "tools");
    free(c->tools);
    c->tools = text;
    return QN_OK;
}

qn_status conversation_take(conversation *c, const qn__json_at *object, qn_error *err)
{
    qn__json_at list, tools;
    qn_status status = qn__json_get_array(object, "messages", &list, err);
    if (status == QN_OK && qn__json_find(object, "tools", &tools))
        status = take_tools(c, &tools, err);
    return status == QN_OK ? parse_messages(c, &list, err) : status;
}

qn_status conversation_parse(conversation *c, const char *name, const char *text, size_t size,
                             qn_error *err)
{
    cJSON *root = NULL;
    qn_status status = qn__json_parse(&root, name, text, size, err);
    qn__json_at at = qn__json_root(name, root);
    if (status == QN_OK && cJSON_IsObject(root))
        status = conversation_take(c, &at, err);
    else if (status == QN_OK && cJSON_IsArray(root))
        status = parse_messages(c, &at, err);
    else if (status == QN_OK)
        status = qn__json_fail(&at, QN_FORMAT, err, "messages are an array, or an object with one");
    cJSON_Delete(root);
    return status;
}

qn_status conversation_read_tools(conversation *c, const char *path, qn_error *err)
{
    cJSON *root = NULL;
    if (qn__json_read(&root, path, LARGEST_INPUT, err) != QN_OK)
        return err->code;
    qn__json_at at = qn__json_root(path, root);
    qn_status status = take_tools(c, &at, err);
    cJSON_Delete(root);
    return status;
}

qn_status conversation_save(const conversation *c, const char *path, qn_error *err)
{
    qn__writer *writer;
    qn_status status = qn__writer_open(&writer, path, 0, QN__WRITER_REPLACE, err);
    if (status != QN_OK)
        return status;
    for (size_t i = 0; status == QN_OK && i < c->n; i++) {
        const char *json = c->messages[i].json;
        status = qn__writer_write(writer, i ? ",\n " : "[", i ? 3 : 1, err);
        if (status == QN_OK)
            status = qn__writer_write(writer, json, strlen(json), err);
    }
    if (status == QN_OK)
        status = qn__writer_write(writer, c->n ? "]\n" : "[]\n", c->n ? 2 : 3, err);
    if (status == QN_OK)
        return qn__writer_commit(writer, err);
    qn__writer_abort(writer);
    return status;
}

/* ---- to the model ---------------------------------------------------------------------------- */

qn_status chat_form_open(qn_chat **chat, const qn_tokenizer *tokenizer, const char *path,
                         const arguments *a, qn_error *err)
{
    if (qn_chat_open(chat, tokenizer, path, err) != QN_OK || !a->template_name)
        return err->code;
    return qn_chat_choose(*chat, a->template_name, err);
}

bool chat_form_exists(const chat_form *form)
{
    return qn_chat_has_template(form->chat) || qn_chat_format_of(form->tokenizer) != QN_CHAT_NONE;
}

/* VALUE as JSON where it is that, else as a text. */
static void print_variable(FILE *out, const char *variable)
{
    const char *value = strchr(variable, '=') + 1;
    cJSON *parsed = NULL;
    qn_error ignored = {0};
    print_json_string(out, variable, (size_t)(value - 1 - variable));
    fputc(':', out);
    if (qn__json_parse(&parsed, "value", value, strlen(value), &ignored) == QN_OK)
        fputs(value, out);
    else
        print_json_string(out, value, strlen(value));
    fputc(',', out);
    cJSON_Delete(parsed);
}

/* The object that templates take. */
static qn_status request_json(const conversation *c, const chat_form *form, char **json, size_t *n,
                              qn_error *err)
{
    *json = NULL;
    FILE *out = open_memstream(json, n);
    if (!out)
        return qn__fail_memory(err, "a chat");
    fputc('{', out);
    bool prompt_given = false;
    for (size_t i = 0; i < form->arguments->n_template_vars; i++) {
        print_variable(out, form->arguments->template_vars[i]);
        prompt_given |= !strncmp(form->arguments->template_vars[i], "add_generation_prompt=", 22);
    }
    if (!prompt_given)
        fprintf(out, "\"add_generation_prompt\":%s,", form->no_prompt ? "false" : "true");
    if (c->tools)
        fprintf(out, "\"tools\":%s,", c->tools);
    fprintf(out, "\"messages\":[");
    for (size_t i = 0; i < c->n; i++)
        fprintf(out, "%s%s", i ? "," : "", c->messages[i].json);
    fprintf(out, "]}");
    bool bad = ferror(out) != 0;
    return fclose(out) != 0 || bad ? qn__fail_memory(err, "a chat") : QN_OK;
}

/* By one of the built-in formats, which know texts alone. */
static qn_status built_in_ids(const conversation *c, const chat_form *form, qn_tokens *out,
                              qn_error *err)
{
    qn_chat_message *messages = calloc(c->n + 1, sizeof *messages);
    if (!messages)
        return qn__fail_memory(err, "a chat");
    qn_status status = QN_OK;
    if (c->tools || form->arguments->n_template_vars || form->arguments->parse_special)
        status = qn__fail(
            err, QN_UNSUPPORTED,
            "the model has no chat template, so tools, template variables and --parse-special "
            "cannot be given");
    for (size_t i = 0; status == QN_OK && i < c->n; i++) {
        const message *m = &c->messages[i];
        messages[i] = (qn_chat_message){m->role, m->content, m->content_size};
        if (!m->content)
            status = qn__fail(err, QN_UNSUPPORTED,
                              "message %zu has no text, and the model has no chat "
                              "template of its own",
                              i);
    }
    if (status == QN_OK)
        status = qn_chat_encode(form->tokenizer, messages, c->n, !form->no_prompt, out, err);
    free(messages);
    return status;
}

qn_status conversation_ids(const conversation *c, const chat_form *form, qn_tokens *out,
                           qn_error *err)
{
    char *json;
    size_t n;
    if (!qn_chat_has_template(form->chat))
        return built_in_ids(c, form, out, err);
    qn_status status = request_json(c, form, &json, &n, err);
    if (status == QN_OK)
        status = qn_chat_render_ids(
            form->chat, json, n, form->arguments->parse_special ? QN_PARSE_SPECIAL : 0, out, err);
    free(json);
    return status;
}

qn_status conversation_text(const conversation *c, const chat_form *form, qn_text *out,
                            qn_error *err)
{
    char *json;
    size_t n;
    if (!qn_chat_has_template(form->chat)) {
        qn_tokens ids = {0};
        qn_status status = built_in_ids(c, form, &ids, err);
        if (status == QN_OK)
            status = qn_tokenizer_decode(form->tokenizer, ids.ids, ids.n, 0, out, err);
        qn_tokens_free(&ids);
        return status;
    }
    qn_status status = request_json(c, form, &json, &n, err);
    if (status == QN_OK)
        status = qn_chat_render(form->chat, json, n, out, NULL, err);
    free(json);
    return status;
}
