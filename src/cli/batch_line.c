/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of a batch: an object with "prompt" or "messages" and settings (request/settings.h), or a
 * request of OpenAI's batches, which has such an object as its "body".
 */
#include "cli/batch_line.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qn_status add_variable(batch_line *l, const qn__json_at *value, qn_error *err)
{
    arguments *a = &l->arguments;
    size_t i = 0, n = strlen(value->key);
    if (strchr(value->key, '=') || !strcmp(value->key, "messages") || !strcmp(value->key, "tools"))
        return qn__json_fail(value, QN_INVALID, err, "a template's variable cannot be called that");
    while (i < a->n_template_vars &&
           (strncmp(a->template_vars[i], value->key, n) || a->template_vars[i][n] != '='))
        i++;
    if (i == MOST_TEMPLATE_VARS)
        return qn__json_fail(value, QN_LIMIT, err, "more than %d variables", MOST_TEMPLATE_VARS);
    char *json = cJSON_PrintUnformatted(value->node);
    char *text = json ? malloc(n + strlen(json) + 2) : NULL;
    if (text)
        sprintf(text, "%s=%s", value->key, json);
    free(json);
    if (!text)
        return qn__fail_memory(err, "a variable");
    l->variables[i] = text; /* a name stands in an object once */
    a->template_vars[i] = text;
    a->n_template_vars += i == a->n_template_vars;
    return QN_OK;
}

static qn_status take_variables(void *to, const qn__field *f, const qn__json_at *value,
                                qn_error *err)
{
    (void)f;
    qn__json_at item;
    if (!cJSON_IsObject(value->node))
        return qn__json_fail(value, QN_FORMAT, err, "expected an object");
    bool any = qn__json_first(value, &item);
    for (; any && add_variable(to, &item, err) == QN_OK; any = qn__json_next(&item))
        ;
    return err->code;
}

/* n: 1, stream: false */
static qn_status take_only(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    (void)to;
    bool is = f->most > 0 ? cJSON_IsNumber(value->node) && value->node->valuedouble == f->most
                          : cJSON_IsFalse(value->node);
    return is ? QN_OK
              : qn__json_fail(value, QN_UNSUPPORTED, err, "only %s is supported",
                              f->most > 0 ? "1" : "false");
}

#define AT(field) offsetof(batch_line, field)

static const qn__field of_line[] = {
    {"prompt", qn__take_value, AT(prompt), 0, 0},
    {"messages", qn__take_value, AT(messages), 0, 0},
    {"tools", qn__take_value, AT(tools), 0, 0},
    {"chat_template_kwargs", take_variables, 0, 0, 0},
    {"n", take_only, 0, 0, 1},
    {"stream", take_only, 0, 0, 0},
    {"model", qn__take_ignored, 0, 0, 0},
};

static const qn__field of_envelope[] = {{"custom_id", qn__take_ignored, 0, 0, 0},
                                        {"method", qn__take_ignored, 0, 0, 0},
                                        {"url", qn__take_ignored, 0, 0, 0},
                                        {"body", qn__take_value, AT(body), 0, 0}};

enum {
    N_OF_LINE = sizeof of_line / sizeof *of_line,
    N_OF_ENVELOPE = sizeof of_envelope / sizeof *of_envelope
};

/* ---- the prompt ------------------------------------------------------------------------------ */

static qn_status take_ids(batch_line *l, const qn__json_at *prompt, qn_error *err)
{
    qn__json_at item;
    int n = cJSON_GetArraySize(prompt->node);
    l->ids.ids = malloc(((size_t)n + 1) * sizeof *l->ids.ids);
    if (!l->ids.ids)
        return qn__fail_memory(err, "a prompt");
    l->ids.capacity = (size_t)n + 1;
    bool any = qn__json_first(prompt, &item);
    for (; any; any = qn__json_next(&item)) {
        int64_t id;
        if (qn__json_as_int(&item, 0, INT32_MAX, &id, err) != QN_OK)
            return err->code;
        l->ids.ids[l->ids.n++] = (int32_t)id;
    }
    return l->ids.n ? QN_OK : qn__json_fail(prompt, QN_INVALID, err, "it is empty");
}

/* A text is what -p is to quern generate. */
static qn_status take_prompt(batch_line *l, const batch_model *m, const qn__json_at *prompt,
                             qn_error *err)
{
    const char *text;
    bool raw = l->arguments.raw;
    if (cJSON_IsArray(prompt->node))
        return take_ids(l, prompt, err);
    if (qn__json_as_string(prompt, &text, err) != QN_OK)
        return err->code;
    if (raw || !chat_form_exists(m->chat, m->tokenizer))
        return qn_tokenizer_encode(m->tokenizer, text, strlen(text),
                                   QN_ADD_SPECIAL | (raw ? QN_PARSE_SPECIAL : 0), &l->ids, err);
    return message_encode(m->chat, &l->arguments, text, strlen(text), &l->ids, err);
}

static qn_status take_messages(batch_line *l, const batch_model *m, const qn__json_at *body,
                               qn_error *err)
{
    qn_conversation *c;
    if (qn_conversation_new(&c, m->chat, err) != QN_OK)
        return err->code;
    if (conversation_take(c, body, err) == QN_OK)
        conversation_encode(c, &l->arguments, &l->ids, err);
    qn_conversation_free(c);
    return err->code;
}

static qn_status encode_body(batch_line *l, const batch_model *m, const qn__json_at *body,
                             qn_error *err)
{
    bool has_prompt = l->prompt.node;
    if (has_prompt == (l->messages.node != NULL))
        return qn__json_fail(body, QN_INVALID, err, "give \"prompt\" or \"messages\"%s",
                             has_prompt ? ", not both" : "");
    if (has_prompt && l->tools.node)
        return qn__json_fail(&l->tools, QN_INVALID, err, "tools belong to messages");
    return has_prompt ? take_prompt(l, m, &l->prompt, err) : take_messages(l, m, body, err);
}

/* ---- the line -------------------------------------------------------------------------------- */

/* What OpenAI's batches call their endpoints. */
static qn_status check_envelope(batch_line *l, const qn__json_at *line, qn_error *err)
{
    const char *method = "POST", *url = "/v1/chat/completions";
    qn__json_at at;
    const qn__fields table = {of_envelope, N_OF_ENVELOPE, l};
    if (qn__fields_read(line, &table, 1, err) != QN_OK ||
        qn__json_opt_string(line, "method", &method, err) != QN_OK ||
        qn__json_opt_string(line, "url", &url, err) != QN_OK)
        return err->code;
    bool chat = !strcmp(url, "/v1/chat/completions"), raw = !strcmp(url, "/v1/completions");
    if (strcmp(method, "POST") != 0 && qn__json_find(line, "method", &at))
        return qn__json_fail(&at, QN_UNSUPPORTED, err, "only POST is supported");
    if (!chat && !raw && qn__json_find(line, "url", &at))
        return qn__json_fail(&at, QN_UNSUPPORTED, err,
                             "only /v1/chat/completions and /v1/completions are supported");
    l->arguments.raw |= raw;
    return QN_OK;
}

static qn_status take_custom_id(batch_line *l, const qn__json_at *line, qn_error *err)
{
    const char *id = NULL;
    if (qn__json_opt_string(line, "custom_id", &id, err) != QN_OK || !id)
        return err->code;
    l->custom_id = strdup(id);
    return l->custom_id ? QN_OK : qn__fail_memory(err, "a line");
}

static qn_status read_object(batch_line *l, const batch_model *m, const qn__json_at *line,
                             qn_error *err)
{
    qn__json_at body = *line;
    if (!cJSON_IsObject(line->node))
        return qn__json_fail(line, QN_FORMAT, err, "expected an object");
    if (take_custom_id(l, line, err) != QN_OK)
        return err->code;
    bool wrapped = cJSON_HasObjectItem(line->node, "body");
    if (wrapped && (check_envelope(l, line, err) != QN_OK ||
                    qn__json_get_object(line, "body", &body, err) != QN_OK))
        return err->code;
    const qn__fields others[] = {{of_line, N_OF_LINE, l}, {of_envelope, !wrapped, l}}; /* its id */
    if (qn__settings_read(&l->settings, &body, others, 2, err) != QN_OK)
        return err->code;
    return encode_body(l, m, &body, err);
}

qn_status batch_line_read(batch_line *l, const batch_model *model, const qn_text *text,
                          uint64_t number, qn_error *err)
{
    char name[40];
    *l = (batch_line){.arguments = *model->arguments, .settings = qn__settings_begin()};
    l->settings.vocab_size = model->vocab_size;
    snprintf(name, sizeof name, "line %llu", (unsigned long long)number);
    if (qn__json_parse(&l->tree, name, text->data, text->n, err) != QN_OK)
        return err->code;
    qn__json_at line = qn__json_root(name, l->tree);
    return read_object(l, model, &line, err);
}

void batch_line_free(batch_line *l)
{
    for (size_t i = 0; i < MOST_TEMPLATE_VARS; i++)
        free(l->variables[i]);
    qn__settings_free(&l->settings);
    cJSON_Delete(l->tree);
    qn_tokens_free(&l->ids);
    free(l->custom_id);
}
