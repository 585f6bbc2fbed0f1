/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of a batch: an object with "prompt" or "messages" and settings by the names of OpenAI and
 * llama-server, or a request of OpenAI's batches, which has such an object as its "body". What is
 * not known is refused by its name; what is null is not there.
 */
#include "cli/batch_line.h"
#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(arguments, field)

typedef struct field field;
typedef qn_status take_fn(batch_line *l, const field *f, const qn__json_at *value, qn_error *err);

struct field {
    const char *name;
    take_fn *take;
    size_t offset; /* in arguments */
    double least, most;
};

/* ---- settings -------------------------------------------------------------------------------- */

static qn_status take_integer(batch_line *l, const field *f, const qn__json_at *value,
                              qn_error *err)
{
    int64_t *to = (int64_t *)((char *)&l->arguments + f->offset);
    return qn__json_as_int(value, (int64_t)f->least, (int64_t)f->most, to, err);
}

static qn_status take_number(batch_line *l, const field *f, const qn__json_at *value, qn_error *err)
{
    double *to = (double *)((char *)&l->arguments + f->offset);
    return qn__json_as_number(value, f->least, f->most, to, err);
}

static qn_status take_flag(batch_line *l, const field *f, const qn__json_at *value, qn_error *err)
{
    return qn__json_as_bool(value, (bool *)((char *)&l->arguments + f->offset), err);
}

static qn_status add_stop(batch_line *l, const qn__json_at *value, qn_error *err)
{
    arguments *a = &l->arguments;
    const char *text;
    if (qn__json_as_string(value, &text, err) != QN_OK)
        return err->code;
    if (!*text || a->n_stop_strings == MOST_STOP_STRINGS)
        return qn__json_fail(value, QN_INVALID, err, *text ? "more than %d texts" : "it is empty",
                             MOST_STOP_STRINGS);
    a->stop_strings[a->n_stop_strings++] = text;
    return QN_OK;
}

/* A text, or an array of texts. */
static qn_status take_stop(batch_line *l, const field *f, const qn__json_at *value, qn_error *err)
{
    (void)f;
    qn__json_at item;
    l->arguments.n_stop_strings = 0;
    if (!cJSON_IsArray(value->node))
        return add_stop(l, value, err);
    bool any = qn__json_first(value, &item);
    for (; any && add_stop(l, &item, err) == QN_OK; any = qn__json_next(&item))
        ;
    return err->code;
}

static qn_status add_bias(batch_line *l, const qn__json_at *at, int64_t id,
                          const qn__json_at *value, qn_error *err)
{
    arguments *a = &l->arguments;
    double bias = -INFINITY; /* llama-server: false forbids a token */
    if (a->n_biases == MOST_BIASES)
        return qn__json_fail(at, QN_LIMIT, err, "more than %d tokens", MOST_BIASES);
    if (!cJSON_IsFalse(value->node) && qn__json_as_number(value, -1e6, 1e6, &bias, err) != QN_OK)
        return err->code;
    a->biases[a->n_biases++] = (qn_token_bias){(int32_t)id, (float)bias};
    return QN_OK;
}

/* One of [[id, bias] ...] or of {"id": bias ...}. */
static qn_status take_bias(batch_line *l, const qn__json_at *item, qn_error *err)
{
    qn__json_at id, value;
    int64_t number = 0;
    if (item->key) {
        char *end;
        number = strtoll(item->key, &end, 10);
        if (end == item->key || *end || number < 0 || number > INT32_MAX)
            return qn__json_fail(item, QN_INVALID, err, "the name must be a token's number");
        return add_bias(l, item, number, item, err);
    }
    if (!qn__json_first(item, &id) || !cJSON_IsArray(item->node))
        return qn__json_fail(item, QN_FORMAT, err, "expected [id, bias]");
    value = id;
    if (qn__json_as_int(&id, 0, INT32_MAX, &number, err) != QN_OK)
        return err->code;
    return qn__json_next(&value) ? add_bias(l, item, number, &value, err)
                                 : qn__json_fail(item, QN_FORMAT, err, "expected [id, bias]");
}

static qn_status take_biases(batch_line *l, const field *f, const qn__json_at *value, qn_error *err)
{
    (void)f;
    qn__json_at item;
    l->arguments.n_biases = 0;
    if (!cJSON_IsArray(value->node) && !cJSON_IsObject(value->node))
        return qn__json_fail(value, QN_FORMAT, err, "expected {\"id\": bias} or [[id, bias]]");
    bool any = qn__json_first(value, &item);
    for (; any && take_bias(l, &item, err) == QN_OK; any = qn__json_next(&item))
        ;
    return err->code;
}

/* "top_k;temperature", or an array of such names. */
static qn_status take_samplers(batch_line *l, const field *f, const qn__json_at *value,
                               qn_error *err)
{
    (void)f;
    char names[400] = "";
    size_t n = 0;
    qn__json_at item;
    bool is_list = cJSON_IsArray(value->node), any = true;
    if (is_list)
        any = qn__json_first(value, &item);
    else
        item = *value;
    for (; any; any = is_list && qn__json_next(&item)) {
        const char *name;
        if (qn__json_as_string(&item, &name, err) != QN_OK)
            return err->code;
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ";" : "", name);
        if (n >= sizeof names)
            return qn__json_fail(value, QN_LIMIT, err, "too many names");
    }
    qn_error wrong = {0};
    if (qn_sampling_set_chain(&l->arguments.samplers, names, &wrong) != QN_OK)
        return qn__json_fail(value, wrong.code, err, "%s", wrong.message);
    return QN_OK;
}

/* true, with top_logprobs, as in chats; or how many, as in completions. */
static qn_status take_logprobs(batch_line *l, const field *f, const qn__json_at *value,
                               qn_error *err)
{
    if (!cJSON_IsBool(value->node))
        return take_integer(l, f, value, err);
    l->arguments.logprobs = cJSON_IsTrue(value->node) ? 0 : -1;
    return QN_OK;
}

static qn_status take_top_logprobs(batch_line *l, const field *f, const qn__json_at *value,
                                   qn_error *err)
{
    return qn__json_as_int(value, (int64_t)f->least, (int64_t)f->most, &l->top_logprobs, err);
}

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

static qn_status take_variables(batch_line *l, const field *f, const qn__json_at *value,
                                qn_error *err)
{
    (void)f;
    qn__json_at item;
    if (!cJSON_IsObject(value->node))
        return qn__json_fail(value, QN_FORMAT, err, "expected an object");
    bool any = qn__json_first(value, &item);
    for (; any && add_variable(l, &item, err) == QN_OK; any = qn__json_next(&item))
        ;
    return err->code;
}

/* What stands elsewhere, or says nothing here. */
static qn_status take_text(batch_line *l, const field *f, const qn__json_at *value, qn_error *err)
{
    const char *text;
    (void)l;
    (void)f;
    return qn__json_as_string(value, &text, err);
}

static qn_status take_later(batch_line *l, const field *f, const qn__json_at *value, qn_error *err)
{
    (void)l;
    (void)f;
    (void)value;
    return err->code;
}

/* n: 1, stream: false */
static qn_status take_only(batch_line *l, const field *f, const qn__json_at *value, qn_error *err)
{
    (void)l;
    bool is = f->most > 0 ? cJSON_IsNumber(value->node) && value->node->valuedouble == f->most
                          : cJSON_IsFalse(value->node);
    return is ? QN_OK
              : qn__json_fail(value, QN_UNSUPPORTED, err, "only %s is supported",
                              f->most > 0 ? "1" : "false");
}

static const field fields[] = {
    {"prompt", take_later, 0, 0, 0},
    {"messages", take_later, 0, 0, 0},
    {"tools", take_later, 0, 0, 0},
    {"chat_template_kwargs", take_variables, 0, 0, 0},
    {"max_tokens", take_integer, AT(max_tokens), 1, 1e9},
    {"max_completion_tokens", take_integer, AT(max_tokens), 1, 1e9},
    {"n_predict", take_integer, AT(max_tokens), 1, 1e9},
    {"temperature", take_number, AT(temperature), 0, 1e6},
    {"top_k", take_integer, AT(top_k), 0, INT32_MAX},
    {"top_p", take_number, AT(top_p), 0, 1},
    {"min_p", take_number, AT(min_p), 0, 1},
    {"repeat_penalty", take_number, AT(repeat_penalty), 1e-3, 1e3},
    {"presence_penalty", take_number, AT(presence_penalty), -1e3, 1e3},
    {"frequency_penalty", take_number, AT(frequency_penalty), -1e3, 1e3},
    {"samplers", take_samplers, 0, 0, 0},
    {"seed", take_integer, AT(seed), 0, 9007199254740991},
    {"stop", take_stop, 0, 0, 0},
    {"logit_bias", take_biases, 0, 0, 0},
    {"ignore_eos", take_flag, AT(ignore_eos), 0, 0},
    {"logprobs", take_logprobs, AT(logprobs), 0, 1000},
    {"top_logprobs", take_top_logprobs, 0, 0, 1000},
    {"n", take_only, 0, 0, 1},
    {"stream", take_only, 0, 0, 0},
    {"model", take_text, 0, 0, 0},
};

static const field envelope[] = {{"custom_id", take_text, 0, 0, 0},
                                 {"method", take_text, 0, 0, 0},
                                 {"url", take_text, 0, 0, 0},
                                 {"body", take_later, 0, 0, 0}};

enum { N_FIELDS = sizeof fields / sizeof *fields, N_ENVELOPE = sizeof envelope / sizeof *envelope };

static const field *find_field(const field *of, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(of[i].name, name))
            return &of[i];
    return NULL;
}

static qn_status unknown_field(const qn__json_at *value, const field *known, size_t n,
                               qn_error *err)
{
    const char *names[N_FIELDS];
    for (size_t i = 0; i < n; i++)
        names[i] = known[i].name;
    const char *nearest = options_nearest(value->key, names, n);
    return qn__json_fail(value, QN_UNSUPPORTED, err,
                         nearest ? "not supported; did you mean %s?"
                                 : "not supported; man quern-batch lists what is",
                         nearest);
}

/* `also`: a field of the envelope that may stand among the others; NULL: none. */
static qn_status take_fields(batch_line *l, const qn__json_at *object, const field *known, size_t n,
                             const char *also, qn_error *err)
{
    qn__json_at value;
    bool any = qn__json_first(object, &value);
    for (; any && err->code == QN_OK; any = qn__json_next(&value)) {
        const field *f = find_field(known, n, value.key);
        if (cJSON_IsNull(value.node) || (also && !strcmp(value.key, also)))
            continue;
        if (f)
            f->take(l, f, &value, err);
        else
            unknown_field(&value, known, n, err);
    }
    return err->code;
}

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
    qn__json_at prompt, messages, tools;
    bool has_prompt = qn__json_find(body, "prompt", &prompt);
    bool has_messages = qn__json_find(body, "messages", &messages);
    if (has_prompt == has_messages)
        return qn__json_fail(body, QN_INVALID, err, "give \"prompt\" or \"messages\"%s",
                             has_prompt ? ", not both" : "");
    if (has_prompt && qn__json_find(body, "tools", &tools))
        return qn__json_fail(&tools, QN_INVALID, err, "tools belong to messages");
    return has_prompt ? take_prompt(l, m, &prompt, err) : take_messages(l, m, body, err);
}

/* ---- the line -------------------------------------------------------------------------------- */

/* What OpenAI's batches call their endpoints. */
static qn_status check_envelope(batch_line *l, const qn__json_at *line, qn_error *err)
{
    const char *method = "POST", *url = "/v1/chat/completions";
    qn__json_at at;
    if (take_fields(l, line, envelope, N_ENVELOPE, NULL, err) != QN_OK ||
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
    if (take_fields(l, &body, fields, N_FIELDS, wrapped ? NULL : "custom_id", err) != QN_OK)
        return err->code;
    if (l->top_logprobs >= 0 && l->arguments.logprobs < 0)
        return qn__json_fail(&body, QN_INVALID, err, "top_logprobs needs \"logprobs\": true");
    if (l->top_logprobs >= 0)
        l->arguments.logprobs = l->top_logprobs;
    return encode_body(l, m, &body, err);
}

qn_status batch_line_read(batch_line *l, const batch_model *model, const qn_text *text,
                          uint64_t number, uint64_t index, qn_error *err)
{
    char name[40];
    int64_t seed = model->arguments->seed;
    *l = (batch_line){.arguments = *model->arguments, .top_logprobs = -1};
    l->arguments.seed = (int64_t)((uint64_t)(seed > 0 ? seed : 0) + index);
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
    cJSON_Delete(l->tree);
    qn_tokens_free(&l->ids);
    free(l->custom_id);
}
