/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings of sampling and generation; see settings.h.
 */
#include "request/settings.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OTHERS = 3 };

qn__settings qn__settings_begin(void)
{
    return (qn__settings){.temperature = NAN,
                          .top_p = NAN,
                          .min_p = NAN,
                          .repeat_penalty = NAN,
                          .presence_penalty = NAN,
                          .frequency_penalty = NAN,
                          .max_tokens = QN__UNSAID,
                          .top_k = QN__UNSAID,
                          .repeat_last = QN__UNSAID,
                          .seed = QN__UNSAID,
                          .logprobs = QN__UNSAID,
                          .top_logprobs = QN__UNSAID,
                          .most_top_logprobs = MOST_TOP_LOGPROBS,
                          .samplers = QN_INIT(qn_sampling)};
}

static void forget_stops(qn__settings *s)
{
    for (size_t i = 0; i < s->n_stops; i++)
        free(s->stops[i]);
    free(s->stops);
    s->stops = NULL;
    s->n_stops = 0;
}

void qn__settings_free(qn__settings *s)
{
    forget_stops(s);
    free(s->biases);
    *s = qn__settings_begin();
}

/* ---- lists ----------------------------------------------------------------------------------- */

qn_status qn__settings_stop(qn__settings *s, const char *text, qn_error *err)
{
    size_t n = strlen(text);
    if (n < 1 || n > LONGEST_STOP || s->n_stops == MOST_STOPS)
        return qn__fail(err, QN_LIMIT, "at most %d texts of 1 to %d bytes stop", MOST_STOPS,
                        LONGEST_STOP);
    if (!s->stops && !(s->stops = calloc(MOST_STOPS, sizeof *s->stops)))
        return qn__fail_memory(err, "stop strings");
    s->stops[s->n_stops] = strdup(text);
    return s->stops[s->n_stops++] ? QN_OK : qn__fail_memory(err, "a stop string");
}

/* Room doubles at powers of two. */
qn_status qn__settings_bias(qn__settings *s, int64_t id, double bias, qn_error *err)
{
    size_t n = s->n_biases;
    if (id < 0 || id > INT32_MAX || (s->vocab_size && id >= s->vocab_size))
        return qn__fail(err, QN_INVALID, "token ids are 0..%lld",
                        s->vocab_size ? (long long)s->vocab_size - 1 : INT32_MAX);
    if (!(n & (n - 1))) {
        qn_token_bias *more = realloc(s->biases, (n ? 2 * n : 1) * sizeof *more);
        if (!more)
            return qn__fail_memory(err, "biases");
        s->biases = more;
    }
    s->biases[s->n_biases++] = (qn_token_bias){(int32_t)id, (float)bias};
    return QN_OK;
}

/* ---- fields that are more than a number ------------------------------------------------------ */

/* Says where what went wrong stands. */
static qn_status fail_at(const qn__json_at *at, const qn_error *why, qn_error *err)
{
    return qn__json_fail(at, why->code, err, "%s", why->message);
}

static qn_status take_max_tokens(void *to, const qn__field *f, const qn__json_at *value,
                                 qn_error *err)
{
    qn__settings *s = to;
    int64_t before = s->max_tokens;
    if (qn__take_integer(to, f, value, err) != QN_OK)
        return err->code;
    return before == QN__UNSAID || before == s->max_tokens
               ? QN_OK
               : qn__json_fail(value, QN_INVALID, err,
                               "max_tokens, max_completion_tokens and n_predict are one, and "
                               "differ: %lld, %lld",
                               (long long)before, (long long)s->max_tokens);
}

/* A text, or an array of texts. */
static qn_status take_stop(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    qn__json_at item = *value;
    qn__settings *s = to;
    bool list = cJSON_IsArray(value->node), any = !list || qn__json_first(value, &item);
    (void)f;
    if (!(s->stops = calloc(MOST_STOPS, sizeof *s->stops))) /* [] is none, too */
        return qn__fail_memory(err, "stop strings");
    for (; any; any = list && qn__json_next(&item)) {
        const char *text;
        qn_error why = {0};
        if (qn__json_as_string(&item, &text, err) != QN_OK)
            return err->code;
        if (qn__settings_stop(s, text, &why) != QN_OK)
            return fail_at(&item, &why, err);
    }
    return QN_OK;
}

/* OpenAI's -100 forbids a token, as llama-server's false does. */
static qn_status add_bias(qn__settings *s, const qn__json_at *at, int64_t id,
                          const qn__json_at *value, qn_error *err)
{
    double bias = -INFINITY;
    qn_error why = {0};
    if (!cJSON_IsFalse(value->node) && qn__json_as_number(value, -1e6, 1e6, &bias, err) != QN_OK)
        return err->code;
    return qn__settings_bias(s, id, bias > -100 ? bias : -INFINITY, &why) == QN_OK
               ? QN_OK
               : fail_at(at, &why, err);
}

/* One of {"id": bias ...} or of [[id, bias] ...]. */
static qn_status take_bias(qn__settings *s, const qn__json_at *item, qn_error *err)
{
    qn__json_at id, value;
    int64_t number;
    if (item->key) {
        char *end;
        bool digits = item->key[0] >= '0' && item->key[0] <= '9';
        number = strtoll(item->key, &end, 10);
        return add_bias(s, item, digits && !*end ? number : -1, item, err);
    }
    if (!cJSON_IsArray(item->node) || cJSON_GetArraySize(item->node) != 2)
        return qn__json_fail(item, QN_FORMAT, err, "expected [id, bias]");
    qn__json_first(item, &id);
    value = id;
    qn__json_next(&value);
    if (qn__json_as_int(&id, 0, INT32_MAX, &number, err) != QN_OK)
        return err->code;
    return add_bias(s, item, number, &value, err);
}

static qn_status take_biases(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    qn__json_at item;
    qn__settings *s = to;
    qn_status status = QN_OK;
    (void)f;
    if (!cJSON_IsArray(value->node) && !cJSON_IsObject(value->node))
        return qn__json_fail(value, QN_FORMAT, err, "expected {\"id\": bias} or [[id, bias]]");
    if (!(s->biases = calloc(1, sizeof *s->biases)))
        return qn__fail_memory(err, "biases");
    bool any = qn__json_first(value, &item);
    for (; any && status == QN_OK; any = qn__json_next(&item))
        status = take_bias(s, &item, err);
    return status;
}

/* "top_k;temperature", or an array of such names. */
static qn_status take_samplers(void *to, const qn__field *f, const qn__json_at *value,
                               qn_error *err)
{
    char names[400] = "";
    size_t n = 0;
    qn__json_at item = *value;
    qn_error why = {0};
    bool list = cJSON_IsArray(value->node), any = !list || qn__json_first(value, &item);
    (void)f;
    for (; any; any = list && qn__json_next(&item)) {
        const char *name;
        if (qn__json_as_string(&item, &name, err) != QN_OK)
            return err->code;
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ";" : "", name);
        if (n >= sizeof names)
            return qn__json_fail(value, QN_LIMIT, err, "too many names");
    }
    return qn_sampling_set_chain(&((qn__settings *)to)->samplers, names, &why) == QN_OK
               ? QN_OK
               : fail_at(value, &why, err);
}

static qn_status take_eos(void *to, const qn__field *f, const qn__json_at *value, qn_error *err)
{
    qn__settings *s = to;
    (void)f;
    if (qn__json_as_bool(value, &s->ignore_eos, err) != QN_OK)
        return err->code;
    s->keep_eos = !s->ignore_eos;
    return QN_OK;
}

/* true, maybe with top_logprobs, as in chats; or how many, as in completions. */
static qn_status take_logprobs(void *to, const qn__field *f, const qn__json_at *value,
                               qn_error *err)
{
    if (!cJSON_IsBool(value->node))
        return qn__take_integer(to, f, value, err);
    ((qn__settings *)to)->logprobs = cJSON_IsTrue(value->node) ? 0 : -1;
    return QN_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define AT(name) offsetof(qn__settings, name)
#define LARGEST  9007199254740991.0

static const qn__field table[] = {
    {"max_tokens", take_max_tokens, AT(max_tokens), 1, LARGEST},
    {"max_completion_tokens", take_max_tokens, AT(max_tokens), 1, LARGEST},
    {"n_predict", take_max_tokens, AT(max_tokens), 1, LARGEST},
    {"temperature", qn__take_number, AT(temperature), 0, 1e6},
    {"top_p", qn__take_number, AT(top_p), 0, 1},
    {"min_p", qn__take_number, AT(min_p), 0, 1},
    {"top_k", qn__take_integer, AT(top_k), 0, INT32_MAX},
    {"repeat_penalty", qn__take_number, AT(repeat_penalty), 1e-3, 1e3},
    {"repeat_last_n", qn__take_integer, AT(repeat_last), -1, INT32_MAX},
    {"presence_penalty", qn__take_number, AT(presence_penalty), -1e3, 1e3},
    {"frequency_penalty", qn__take_number, AT(frequency_penalty), -1e3, 1e3},
    {"samplers", take_samplers, 0, 0, 0},
    {"seed", qn__take_integer, AT(seed), -1, LARGEST},
    {"stop", take_stop, 0, 0, 0},
    {"logit_bias", take_biases, 0, 0, 0},
    {"ignore_eos", take_eos, 0, 0, 0},
    {"logprobs", take_logprobs, AT(logprobs), 0, MOST_TOP_LOGPROBS},
    {"top_logprobs", qn__take_integer, AT(top_logprobs), 0, MOST_TOP_LOGPROBS},
};

qn_status qn__settings_read(qn__settings *s, const qn__json_at *object, const qn__fields *others,
                            size_t n_others, qn_error *err)
{
    qn__fields tables[MOST_OTHERS + 1] = {{table, sizeof table / sizeof *table, s}};
    for (size_t i = 0; i < n_others; i++)
        tables[i + 1] = others[i];
    if (qn__fields_read(object, tables, n_others + 1, err) != QN_OK)
        return err->code;
    if (s->top_logprobs != QN__UNSAID && s->logprobs < 0)
        return qn__json_fail(object, QN_INVALID, err, "top_logprobs needs \"logprobs\": true");
    if (s->top_logprobs != QN__UNSAID)
        s->logprobs = s->top_logprobs;
    return s->logprobs <= s->most_top_logprobs
               ? QN_OK
               : qn__json_fail(object, QN_LIMIT, err, "log probabilities are of 0..%lld, not %lld",
                               (long long)s->most_top_logprobs, (long long)s->logprobs);
}

/* ---- together -------------------------------------------------------------------------------- */

static void set_number(float *to, double value)
{
    if (!isnan(value))
        *to = (float)value;
}

/* A penalty that is said looks as far back as is usual, however far the model's own does. */
static void apply_penalties(const qn__settings *s, qn_sampling *p)
{
    set_number(&p->repeat_penalty, s->repeat_penalty);
    set_number(&p->presence_penalty, s->presence_penalty);
    set_number(&p->frequency_penalty, s->frequency_penalty);
    if (s->repeat_last != QN__UNSAID)
        p->repeat_last = (int32_t)s->repeat_last;
    else if (!isnan(s->repeat_penalty))
        p->repeat_last = 0;
}

void qn__settings_apply(const qn__settings *s, qn_sampling *p, qn_generation_options *g)
{
    set_number(&p->temperature, s->temperature);
    set_number(&p->top_p,
               s->top_p > 0 ? s->top_p : s->top_p + (double)FLT_MIN); /* 0 leaves one token */
    set_number(&p->min_p, s->min_p);
    apply_penalties(s, p);
    if (s->top_k >= 0)
        p->top_k = (int32_t)s->top_k;
    if (s->seed >= 0)
        p->seed = (uint64_t)s->seed;
    if (s->samplers.chain[0] != QN_SAMPLER_END)
        memcpy(p->chain, s->samplers.chain, sizeof p->chain);
    if (s->biases) {
        p->bias = s->biases;
        p->n_bias = s->n_biases;
    }
    g->sampling = p;
    if (s->max_tokens > 0)
        g->max_tokens = s->max_tokens;
    if (s->stops) {
        g->stop_strings = (const char *const *)s->stops;
        g->n_stop_strings = s->n_stops;
    }
    g->ban_stop = (g->ban_stop || s->ignore_eos) && !s->keep_eos;
    if (s->logprobs != QN__UNSAID) {
        g->logprobs = s->logprobs >= 0;
        g->top_logprobs = g->logprobs ? (int32_t)s->logprobs : 0;
    }
}
