/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a request. One table says what there is; whatever else a request has is refused by
 * its name, and null is as good as absent. Names are OpenAI's, and llama-server's where that has
 * more.
 */
#include "server/inside.h"

#include "base/utf8.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { OF_CHAT = 1, OF_COMPLETIONS = 2, OF_BOTH = 3 };

/* A request that is being read. */
typedef struct reading {
    const qn__server *server;
    qn__job *job;
    qn__json_at messages, prompt, variables; /* node NULL: absent */
} reading;

typedef struct field {
    const char *name;
    unsigned of;
    /* NULL: a number (least < most) that goes to `offset` of the job */
    qn_status (*take)(reading *r, const qn__json_at *at, qn_error *err);
    size_t offset;
    bool integer;
    double least, most;
} field;

/* ---- fields that are more than a number ------------------------------------------------------ */

/* The name that models have here, or its last part, in any case. */
static qn_status take_model(reading *r, const qn__json_at *at, qn_error *err)
{
    const char *given, *name = r->server->options.name, *slash = strrchr(name, '/');
    if (qn__json_as_string(at, &given, err) != QN_OK)
        return err->code;
    if (!strcasecmp(given, name) || (slash && !strcasecmp(given, slash + 1)))
        return QN_OK;
    char quoted[64];
    return qn__json_fail(at, QN_NOT_FOUND, err, "there is no model \"%s\"; the one here is \"%s\"",
                         qn__utf8_quote(quoted, sizeof quoted, given, strlen(given)), name);
}

static qn_status take_messages(reading *r, const qn__json_at *at, qn_error *err)
{
    if (!cJSON_IsArray(at->node))
        return qn__json_fail(at, QN_FORMAT, err, "expected an array of messages");
    r->messages = *at;
    return QN_OK;
}

static qn_status take_prompt(reading *r, const qn__json_at *at, qn_error *err)
{
    (void)err;
    r->prompt = *at;
    return QN_OK;
}

static qn_status take_variables(reading *r, const qn__json_at *at, qn_error *err)
{
    if (!cJSON_IsObject(at->node))
        return qn__json_fail(at, QN_FORMAT, err, "expected an object");
    r->variables = *at;
    return QN_OK;
}

static qn_status take_stream(reading *r, const qn__json_at *at, qn_error *err)
{
    return qn__json_as_bool(at, &r->job->stream, err);
}

static qn_status take_stream_options(reading *r, const qn__json_at *at, qn_error *err)
{
    qn__json_at child;
    if (!cJSON_IsObject(at->node))
        return qn__json_fail(at, QN_FORMAT, err, "expected an object");
    if (!qn__json_first(at, &child))
        return QN_OK;
    do
        if (strcmp(child.key, "include_usage") != 0)
            return qn__json_fail(&child, QN_UNSUPPORTED, err, "not supported; include_usage is");
    while (qn__json_next(&child));
    return qn__json_opt_bool(at, "include_usage", &r->job->include_usage, err);
}

static qn_status take_ignore_eos(reading *r, const qn__json_at *at, qn_error *err)
{
    return qn__json_as_bool(at, &r->job->ignore_eos, err);
}

static qn_status take_stop(reading *r, const qn__json_at *at, qn_error *err)
{
    qn__json_at item = *at;
    qn__job *j = r->job;
    if (cJSON_IsArray(at->node) && !qn__json_first(at, &item))
        return QN_OK;
    do {
        const char *text;
        if (qn__json_as_string(&item, &text, err) != QN_OK)
            return err->code;
        size_t n = strlen(text);
        if (n < 1 || n > LONGEST_STOP || j->n_stops == MOST_STOPS)
            return qn__json_fail(&item, QN_LIMIT, err, "at most %d texts of 1 to %d bytes stop",
                                 MOST_STOPS, LONGEST_STOP);
        if (!(j->stops[j->n_stops++] = strdup(text)))
            return qn__fail_memory(err, "a stop string");
    } while (cJSON_IsArray(at->node) && qn__json_next(&item));
    return QN_OK;
}

static qn_status take_bias(reading *r, const qn__json_at *at, qn_error *err)
{
    qn__json_at child;
    qn__job *j = r->job;
    if (!cJSON_IsObject(at->node))
        return qn__json_fail(at, QN_FORMAT, err, "expected an object of token ids");
    free(j->biases);
    j->biases = calloc((size_t)cJSON_GetArraySize(at->node) + 1, sizeof *j->biases);
    if (!j->biases)
        return qn__fail_memory(err, "biases");
    if (!qn__json_first(at, &child))
        return QN_OK;
    do {
        double bias;
        char *end;
        long long id = strtoll(child.key, &end, 10);
        bool digits = child.key[0] >= '0' && child.key[0] <= '9' && !*end;
        if (!digits || id >= r->server->info.vocab_size)
            return qn__json_fail(&child, QN_INVALID, err, "token ids are 0..%lld",
                                 (long long)r->server->info.vocab_size - 1);
        if (qn__json_as_number(&child, -100, 100, &bias, err) != QN_OK)
            return err->code;
        j->biases[j->n_biases++] =
            (qn_token_bias){(int32_t)id, bias > -100 ? (float)bias : -INFINITY};
    } while (qn__json_next(&child));
    return QN_OK;
}

static qn_status take_logprobs(reading *r, const qn__json_at *at, qn_error *err)
{
    if (r->job->chat)
        return qn__json_as_bool(at, &r->job->logprobs, err);
    r->job->logprobs = true;
    return qn__json_as_int(at, 0, MOST_TOP_LOGPROBS, &r->job->top_logprobs, err);
}

/* Of these, one value alone: what happens anyway. */
static qn_status take_echo(reading *r, const qn__json_at *at, qn_error *err)
{
    bool echo = false;
    (void)r;
    if (qn__json_as_bool(at, &echo, err) != QN_OK || !echo)
        return err->code;
    return qn__json_fail(at, QN_UNSUPPORTED, err, "a prompt is not repeated; false is supported");
}

static qn_status take_format(reading *r, const qn__json_at *at, qn_error *err)
{
    const char *type = "";
    (void)r;
    if (qn__json_get_string(at, "type", &type, err) != QN_OK || !strcmp(type, "text"))
        return err->code;
    return qn__json_fail(at, QN_UNSUPPORTED, err, "of types, \"text\" is supported");
}

/* Who asks: OpenAI's own servers look for abuse with it; it changes nothing. */
static qn_status take_user(reading *r, const qn__json_at *at, qn_error *err)
{
    const char *user;
    (void)r;
    return qn__json_as_string(at, &user, err);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define AT(name) offsetof(qn__job, name)
#define NUMBER(name, of, least, most)                                                              \
    {                                                                                              \
#name, of, NULL, AT(name), false, least, most                                              \
    }
#define INTEGER(name, of, least, most)                                                             \
    {                                                                                              \
#name, of, NULL, AT(name), true, least, most                                               \
    }
#define LARGEST 9007199254740991.0

static const field fields[] = {
    {"model", OF_BOTH, take_model},
    {"messages", OF_CHAT, take_messages},
    {"prompt", OF_COMPLETIONS, take_prompt},
    {"stream", OF_BOTH, take_stream},
    {"stream_options", OF_BOTH, take_stream_options},
    INTEGER(max_tokens, OF_BOTH, 1, LARGEST),
    INTEGER(max_completion_tokens, OF_CHAT, 1, LARGEST),
    INTEGER(n, OF_BOTH, 1, MOST_CHOICES),
    {"stop", OF_BOTH, take_stop},
    INTEGER(seed, OF_BOTH, -1, LARGEST),
    NUMBER(temperature, OF_BOTH, 0, 1e6),
    NUMBER(top_p, OF_BOTH, 0, 1),
    NUMBER(min_p, OF_BOTH, 0, 1),
    INTEGER(top_k, OF_BOTH, 0, INT32_MAX),
    NUMBER(repeat_penalty, OF_BOTH, 1e-3, 1e3),
    {"repeat_last_n", OF_BOTH, NULL, AT(repeat_last), true, -1, INT32_MAX},
    NUMBER(presence_penalty, OF_BOTH, -1e3, 1e3),
    NUMBER(frequency_penalty, OF_BOTH, -1e3, 1e3),
    {"logit_bias", OF_BOTH, take_bias},
    {"logprobs", OF_BOTH, take_logprobs},
    INTEGER(top_logprobs, OF_CHAT, 0, MOST_TOP_LOGPROBS),
    {"ignore_eos", OF_BOTH, take_ignore_eos},
    {"chat_template_kwargs", OF_CHAT, take_variables},
    {"response_format", OF_CHAT, take_format},
    {"echo", OF_COMPLETIONS, take_echo},
    {"user", OF_BOTH, take_user},
};

enum { N_FIELDS = sizeof fields / sizeof *fields };

static qn_status fail_unknown(const reading *r, const qn__json_at *at, qn_error *err)
{
    char names[400] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].of & (r->job->chat ? OF_CHAT : OF_COMPLETIONS))
            n +=
                (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? " " : "", fields[i].name);
    char key[64];
    return qn__fail(err, QN_UNSUPPORTED, "%s: not supported; what is: %s",
                    qn__utf8_quote(key, sizeof key, at->key, strlen(at->key)), names);
}

static qn_status take_field(reading *r, const qn__json_at *at, qn_error *err)
{
    const field *f = fields;
    while (f < fields + N_FIELDS &&
           (strcmp(f->name, at->key) != 0 || !(f->of & (r->job->chat ? OF_CHAT : OF_COMPLETIONS))))
        f++;
    if (f == fields + N_FIELDS)
        return fail_unknown(r, at, err);
    if (cJSON_IsNull(at->node))
        return QN_OK;
    if (f->take)
        return f->take(r, at, err);
    void *place = (char *)r->job + f->offset;
    return f->integer ? qn__json_as_int(at, (int64_t)f->least, (int64_t)f->most, place, err)
                      : qn__json_as_number(at, f->least, f->most, place, err);
}

/* ---- together -------------------------------------------------------------------------------- */

static uint64_t random_seed(void)
{
    uint64_t seed = 0;
    if (getentropy(&seed, sizeof seed) != 0)
        seed = (uint64_t)time(NULL);
    return seed;
}

/* What the model asks for, and what the request says instead. */
static void set_sampling(qn__job *j, const qn__server *s)
{
    qn_sampling *p = &j->sampling;
    *p = *s->defaults.sampling;
    if (!isnan(j->temperature))
        p->temperature = (float)j->temperature;
    if (!isnan(j->top_p))
        p->top_p = j->top_p > 0 ? (float)j->top_p : FLT_MIN; /* 0 leaves one token */
    if (!isnan(j->min_p))
        p->min_p = (float)j->min_p;
    if (j->top_k >= 0)
        p->top_k = (int32_t)j->top_k;
    if (!isnan(j->repeat_penalty))
        p->repeat_penalty = (float)j->repeat_penalty;
    if (j->repeat_last != INT64_MIN)
        p->repeat_last = (int32_t)j->repeat_last;
    p->presence_penalty = (float)j->presence_penalty;
    p->frequency_penalty = (float)j->frequency_penalty;
    p->seed = j->seed >= 0 ? (uint64_t)j->seed : random_seed();
    p->bias = j->biases;
    p->n_bias = j->n_biases;
}

static qn_status check_together(const reading *r, qn_error *err)
{
    const qn__job *j = r->job;
    if (j->include_usage && !j->stream)
        return qn__fail(err, QN_INVALID, "stream_options: there is no stream");
    if (j->top_logprobs && !j->logprobs)
        return qn__fail(err, QN_INVALID, "top_logprobs: logprobs is not true");
    if (j->max_tokens && j->max_completion_tokens && j->max_tokens != j->max_completion_tokens)
        return qn__fail(err, QN_INVALID, "max_tokens and max_completion_tokens differ");
    if (j->chat ? !r->messages.node : !r->prompt.node)
        return qn__fail(err, QN_INVALID, "%s: missing", j->chat ? "messages" : "prompt");
    return QN_OK;
}

static qn_status make_prompts(reading *r, qn_error *err)
{
    qn__job *j = r->job;
    if (!j->chat)
        return qn__prompt_tokens(r->server, &r->prompt, j, err);
    j->prompts = calloc(1, sizeof *j->prompts);
    if (!j->prompts)
        return qn__fail_memory(err, "a prompt");
    j->n_prompts = 1;
    return qn__chat_tokens(r->server, &r->messages, r->variables.node ? &r->variables : NULL,
                           j->prompts, err);
}

static qn_status read_fields(reading *r, const qn__json_at *root, qn_error *err)
{
    qn__json_at at;
    qn__job *j = r->job;
    if (!cJSON_IsObject(root->node))
        return qn__json_fail(root, QN_FORMAT, err, "expected a JSON object");
    if (qn__json_first(root, &at))
        do
            if (take_field(r, &at, err) != QN_OK)
                return err->code;
        while (qn__json_next(&at));
    if (check_together(r, err) != QN_OK || make_prompts(r, err) != QN_OK)
        return err->code;
    set_sampling(j, r->server);
    j->generation = (qn_generation_options){.size = sizeof j->generation,
                                            .max_tokens = j->max_tokens ? j->max_tokens
                                                                        : j->max_completion_tokens,
                                            .ban_stop = j->ignore_eos,
                                            .prompt_lookup = r->server->options.prompt_lookup,
                                            .draft_tokens = r->server->options.draft_tokens,
                                            .stop_strings = (const char *const *)j->stops,
                                            .n_stop_strings = j->n_stops,
                                            .logprobs = j->logprobs,
                                            .top_logprobs = (int32_t)j->top_logprobs};
    return QN_OK;
}

qn_status qn__job_parse(qn__job *job, const qn__server *server, bool chat, const char *body,
                        size_t n, qn_error *err)
{
    cJSON *root = NULL;
    *job = (qn__job){.chat = chat,
                     .n = 1,
                     .temperature = NAN,
                     .top_p = NAN,
                     .min_p = NAN,
                     .repeat_penalty = NAN,
                     .top_k = -1,
                     .repeat_last = INT64_MIN,
                     .seed = -1};
    reading r = {.server = server, .job = job};
    if (qn__json_parse(&root, "request", body, n, err) == QN_OK) {
        qn__json_at at = qn__json_root("request", root);
        read_fields(&r, &at, err);
    }
    cJSON_Delete(root);
    return err->code;
}

void qn__job_free(qn__job *job)
{
    for (size_t i = 0; i < job->n_prompts; i++)
        qn_tokens_free(&job->prompts[i]);
    for (size_t i = 0; i < job->n_stops; i++)
        free(job->stops[i]);
    free(job->prompts);
    free(job->biases);
    *job = (qn__job){0};
}
