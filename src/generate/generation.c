/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: a pull iterator over a session. Plain greedy choices are made on the device and only
 * the token is read; everything else samples from a copy of the logits. Text is decoded when it is
 * asked for or when stop strings have to be looked for.
 */
#include "base/error.h"
#include "base/sized.h"
#include "generate/model.h"
#include "generate/sampling.h"
#include "generate/session.h"
#include "generate/stops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct qn_generation {
    qn_session *session;
    qn_sampling sampling;
    qn_token_bias *bias; /* the caller's, and of banned stop tokens */
    int64_t max_tokens;
    int32_t *stop;
    size_t n_stop;
    int32_t *history; /* what the session has, prompt and generated */
    size_t n_history, n_prompt, n_before,
        room;             /* n_prompt: with the n_before ones in the session */
    float *logits;        /* [vocab] the sampler's */
    qn_logprob *logprobs; /* [1 + n_top], where they are kept */
    size_t n_top;
    qn_decoder *decoder; /* NULL: no text was wanted yet */
    size_t n_decoded;    /* of history, from n_prompt on */
    qn__stops stops;
    qn_metrics metrics;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static size_t vocab_size(const qn_generation *g)
{
    return (size_t)qn__session_model(g->session)->decoder.config.vocab;
}

static bool reserve_history(qn_generation *g, size_t n)
{
    if (n <= g->room)
        return true;
    size_t room = n + n / 2 + 256;
    int32_t *history = realloc(g->history, room * sizeof *history);
    if (!history)
        return false;
    g->history = history;
    g->room = room;
    return true;
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* A stop string; where it is the name of a special token, that token, too. */
static qn_status add_stop_string(qn_generation *g, const char *string, qn_error *err)
{
    const qn_tokenizer *t = qn__session_model(g->session)->tokenizer;
    if (qn__stops_add(&g->stops, string, err) != QN_OK)
        return err->code;
    int32_t id = qn_tokenizer_find(t, string);
    if (id >= 0 && qn_tokenizer_is_special(t, id))
        g->stop[g->n_stop++] = id;
    return QN_OK;
}

/* The model's stop tokens and strings, and the caller's. */
static qn_status take_stops(qn_generation *g, const qn_generation_options *o, qn_error *err)
{
    const qn_model *m = qn__session_model(g->session);
    size_t n_strings = m->tokenizer ? m->n_stop_strings : 0;
    if (o->n_stop_strings && !m->tokenizer)
        return qn__fail(err, QN_STATE,
                        "stop strings need the model's tokenizer, without which it was opened");
    g->stop = malloc((m->n_stop + o->n_stop + n_strings + o->n_stop_strings + 1) * sizeof *g->stop);
    if (!g->stop)
        return qn__fail_memory(err, "a generation");
    memcpy(g->stop, m->stop, m->n_stop * sizeof *g->stop);
    if (o->n_stop)
        memcpy(g->stop + m->n_stop, o->stop, o->n_stop * sizeof *g->stop);
    g->n_stop = m->n_stop + o->n_stop;
    for (size_t i = 0; i < n_strings; i++)
        if (add_stop_string(g, m->stop_strings[i], err) != QN_OK)
            return err->code;
    for (size_t i = 0; i < o->n_stop_strings; i++)
        if (add_stop_string(g, o->stop_strings[i], err) != QN_OK)
            return err->code;
    return QN_OK;
}

/* The settings, with biases of our own. */
static qn_status take_sampling(qn_generation *g, const qn_generation_options *o, qn_error *err)
{
    size_t vocab = vocab_size(g);
    qn_sampling *p = &g->sampling;
    if (qn__sized_in(p, sizeof *p, o->sampling, "qn_sampling", err) != QN_OK ||
        qn__sampling_check(p, vocab, err) != QN_OK)
        return err->code;
    g->bias = malloc((p->n_bias + g->n_stop + 1) * sizeof *g->bias);
    if (!g->bias)
        return qn__fail_memory(err, "a generation");
    if (p->n_bias)
        memcpy(g->bias, p->bias, p->n_bias * sizeof *g->bias);
    for (size_t i = 0; o->ban_stop && i < g->n_stop; i++)
        if (g->stop[i] >= 0 && (size_t)g->stop[i] < vocab)
            g->bias[p->n_bias++] = (qn_token_bias){g->stop[i], -INFINITY};
    p->bias = g->bias;
    return QN_OK;
}

static qn_status take_logprobs(qn_generation *g, const qn_generation_options *o, qn_error *err)
{
    if (!o->logprobs)
        return QN_OK;
    if (o->top_logprobs < 0 || o->top_logprobs > 1000)
        return qn__fail(err, QN_INVALID, "top_logprobs %d; give 0 to 1000", o->top_logprobs);
    g->n_top = (size_t)o->top_logprobs;
    g->logprobs = malloc((g->n_top + 1) * sizeof *g->logprobs);
    return g->logprobs ? QN_OK : qn__fail_memory(err, "a generation");
}

static qn_status take_prompt(qn_generation *g, const int32_t *ids, size_t n,
                             const qn_generation_options *o, qn_error *err)
{
    if (!reserve_history(g, o->n_before + n))
        return qn__fail_memory(err, "a generation");
    if (o->n_before)
        memcpy(g->history, o->before, o->n_before * sizeof *ids);
    memcpy(g->history + o->n_before, ids, n * sizeof *ids);
    g->n_before = o->n_before;
    g->n_history = g->n_prompt = g->n_decoded = o->n_before + n;
    g->metrics.prompt_tokens = n;
    return QN_OK;
}

qn_status qn_generation_begin(qn_generation **out, qn_session *session, const int32_t *ids,
                              size_t n, const qn_generation_options *options, qn_error *err)
{
    qn_generation_options given, *o = &given;
    qn_error local = {0};
    err = err ? err : &local;
    *out = NULL;
    if (qn__sized_in(&given, sizeof given, options, "qn_generation_options", err) != QN_OK)
        return err->code;
    if (!n)
        return qn__fail(err, QN_INVALID, "there is no prompt: generation needs at least one token");
    if (qn__session_batch(session) != 1)
        return qn__fail(
            err, QN_UNSUPPORTED,
            "generation is for sessions of one sequence, this one has %lld; qn_session_append "
            "and qn_sample on each row of qn_session_logits serve several",
            (long long)qn__session_batch(session));
    qn_generation *g = calloc(1, sizeof *g);
    if (!g)
        return qn__fail_memory(err, "a generation");
    int64_t limit = qn__session_model(session)->max_tokens;
    g->session = session;
    g->max_tokens = o->max_tokens ? o->max_tokens : limit ? limit : INT64_MAX;
    g->logits = malloc(vocab_size(g) * sizeof *g->logits);
    if (!g->logits)
        qn__fail_memory(err, "a generation");
    else if (take_stops(g, o, err) == QN_OK && take_sampling(g, o, err) == QN_OK &&
             take_logprobs(g, o, err) == QN_OK)
        take_prompt(g, ids, n, o, err);
    if (o->ignore_stop) {
        g->n_stop = 0;
        qn__stops_end(&g->stops);
    }
    if (err->code != QN_OK) {
        qn_generation_end(g);
        return err->code;
    }
    *out = g;
    return QN_OK;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Decodes what has been generated, and looks for stop strings in it. */
static qn_status decode_new(qn_generation *g, bool flush, qn_error *err)
{
    const qn_tokenizer *t = qn__session_model(g->session)->tokenizer;
    size_t before = g->stops.text.n;
    if (!t)
        return qn__fail(err, QN_STATE,
                        "text needs the model's tokenizer, without which it was opened");
    if (!g->decoder && !(g->decoder = qn_decoder_new(t, QN_SKIP_SPECIAL)))
        return qn__fail_memory(err, "a generation's text");
    qn_status status = QN_OK;
    while (status == QN_OK && g->n_decoded < g->n_history && !g->stops.found)
        status = qn_decoder_push(g->decoder, g->history[g->n_decoded++], &g->stops.text, err);
    if (status == QN_OK && flush && !g->stops.found)
        status = qn_decoder_flush(g->decoder, &g->stops.text, err);
    qn__stops_look(&g->stops, before);
    return status;
}

qn_status qn_generation_text(qn_generation *g, bool all, qn_text *out, qn_error *err)
{
    bool last = all || g->metrics.finish != QN_FINISH_NONE;
    qn_status status = decode_new(g, last, err);
    return status == QN_OK ? qn__stops_give(&g->stops, last, out, err) : status;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool greedy(const qn_generation *g)
{
    return qn__sampling_is_argmax(&g->sampling) && !g->logprobs;
}

static qn_status sample_logits(qn_generation *g, int32_t *id, qn_error *err)
{
    const float *logits = qn_session_logits(g->session);
    memcpy(g->logits, logits, vocab_size(g) * sizeof *logits);
    qn_device *device = qn__session_model(g->session)->device;
    *id = qn_sample(device, g->logits, vocab_size(g), &g->sampling, g->history, g->n_history,
                    g->n_history - g->n_prompt, err);
    if (*id < 0)
        return err->code;
    return g->logprobs ? qn_logprobs(device, logits, vocab_size(g), *id, g->n_top, g->logprobs, err)
                       : QN_OK;
}

static qn_status choose(qn_generation *g, int32_t *id, qn_error *err)
{
    if (g->n_history == g->n_prompt) {
        qn_status status =
            qn_session_append(g->session, g->history + g->n_before, g->n_prompt - g->n_before, err);
        return status == QN_OK ? sample_logits(g, id, err) : status;
    }
    int32_t last = g->history[g->n_history - 1];
    if (greedy(g))
        return qn_session_step_greedy(g->session, last, id, err);
    qn_status status = qn_session_append(g->session, &last, 1, err);
    return status == QN_OK ? sample_logits(g, id, err) : status;
}

static bool is_stop(const qn_generation *g, int32_t id)
{
    for (size_t i = 0; i < g->n_stop; i++)
        if (g->stop[i] == id)
            return true;
    return false;
}

/* Takes the token that was chosen; *id stays -1 where it ends the generation. */
static qn_status accept_token(qn_generation *g, int32_t next, int32_t *id, qn_error *err)
{
    if (is_stop(g, next)) {
        g->metrics.finish = QN_FINISH_STOP;
        return QN_OK;
    }
    g->history[g->n_history++] = next;
    g->metrics.generated_tokens++;
    *id = next;
    if (!g->stops.n)
        return QN_OK;
    qn_status status = decode_new(g, false, err);
    if (g->stops.found)
        g->metrics.finish = QN_FINISH_STOP;
    return status;
}

qn_status qn_generation_next(qn_generation *g, int32_t *id, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    *id = -1;
    if (g->metrics.finish != QN_FINISH_NONE)
        return QN_OK;
    bool first = g->n_history == g->n_prompt;
    if ((int64_t)(g->n_history - g->n_prompt) >= g->max_tokens ||
        (!first && qn_session_length(g->session) >= qn_session_context(g->session))) {
        g->metrics.finish = QN_FINISH_LENGTH;
        return QN_OK;
    }
    double begun = now();
    if (!reserve_history(g, g->n_history + 1))
        return qn__fail_memory(err, "a generation");
    int32_t next;
    qn_status status = choose(g, &next, err);
    if (status != QN_OK)
        return status;
    *(first ? &g->metrics.prefill_seconds : &g->metrics.decode_seconds) += now() - begun;
    return accept_token(g, next, id, err);
}

const qn_logprob *qn_generation_logprobs(const qn_generation *g, size_t *n)
{
    bool any = g->logprobs && g->n_history > g->n_prompt;
    *n = any ? g->n_top + 1 : 0;
    return any ? g->logprobs : NULL;
}

qn_status qn_generation_get_metrics(const qn_generation *g, qn_metrics *out)
{
    qn_metrics metrics = g->metrics;
    qn_memory_stats memory = QN_INIT(qn_memory_stats);
    qn_device_memory(qn__session_model(g->session)->device, &memory);
    metrics.peak_bytes = memory.peak;
    return qn__sized_out(out, &metrics, sizeof metrics);
}

void qn_generation_end(qn_generation *g)
{
    if (!g)
        return;
    qn__stops_end(&g->stops);
    qn_decoder_free(g->decoder);
    free(g->logprobs);
    free(g->logits);
    free(g->bias);
    free(g->stop);
    free(g->history);
    free(g);
}
