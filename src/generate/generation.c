/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: a pull iterator over a session. Greedy choices without a penalty are made on the device and
 * only the token is read; everything else samples from logits.
 */
#include "base/error.h"
#include "base/sized.h"
#include "generate/model.h"
#include "generate/session.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct qn_generation {
    qn_session *session;
    qn_sampling sampling;
    int64_t max_tokens;
    int32_t *stop;
    size_t n_stop;
    int32_t *history; /* what the session has, prompt and generated */
    size_t n_history, n_prompt, n_before, room; /* n_prompt: with the n_before ones in the session */
    qn_metrics metrics;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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

/* The model's stop tokens and the caller's. */
static bool take_stops(qn_generation *g, const qn_generation_options *o)
{
    const qn_model *m = qn__session_model(g->session);
    if (o->ignore_stop)
        return true;
    g->stop = malloc((m->n_stop + o->n_stop + 1) * sizeof *g->stop);
    if (!g->stop)
        return false;
    memcpy(g->stop, m->stop, m->n_stop * sizeof *g->stop);
    if (o->n_stop)
        memcpy(g->stop + m->n_stop, o->stop, o->n_stop * sizeof *g->stop);
    g->n_stop = m->n_stop + o->n_stop;
    return true;
}

qn_status qn_generation_begin(qn_generation **out, qn_session *session, const int32_t *ids,
                              size_t n, const qn_generation_options *options, qn_error *err)
{
    qn_generation_options given, *o = &given;
    qn_sampling sampling;
    *out = NULL;
    qn_status status = qn__sized_in(&given, sizeof given, options, "qn_generation_options", err);
    if (status == QN_OK)
        status = qn__sized_in(&sampling, sizeof sampling, given.sampling, "qn_sampling", err);
    if (status != QN_OK)
        return status;
    if (!n)
        return qn__fail(err, QN_INVALID, "there is no prompt: generation needs at least one token");
    qn_generation *g = calloc(1, sizeof *g);
    if (!g)
        return qn__fail_memory(err, "a generation");
    g->session = session;
    g->sampling = sampling;
    g->max_tokens = o->max_tokens ? o->max_tokens : INT64_MAX;
    if (!take_stops(g, o) || !reserve_history(g, o->n_before + n)) {
        qn_generation_end(g);
        return qn__fail_memory(err, "a generation");
    }
    if (o->n_before)
        memcpy(g->history, o->before, o->n_before * sizeof *ids);
    memcpy(g->history + o->n_before, ids, n * sizeof *ids);
    g->n_before = o->n_before;
    g->n_history = g->n_prompt = o->n_before + n;
    g->metrics.prompt_tokens = n;
    *out = g;
    return QN_OK;
}

static bool greedy(const qn_generation *g)
{
    const qn_sampling *p = &g->sampling;
    return p->temperature == 0 && (p->repeat_penalty == 0 || p->repeat_penalty == 1);
}

static qn_status sample_logits(qn_generation *g, int32_t *id, qn_error *err)
{
    const qn_model *m = qn__session_model(g->session);
    float *logits = (float *)qn_session_logits(g->session); /* ours to overwrite: read once */
    *id = qn_sample(logits, (size_t)m->decoder.config.vocab, &g->sampling, g->history,
                    g->n_history, err);
    return *id < 0 ? (err && err->code ? err->code : QN_INVALID) : QN_OK;
}

static qn_status choose(qn_generation *g, int32_t *id, qn_error *err)
{
    if (g->n_history == g->n_prompt) {
        qn_status status = qn_session_append(g->session, g->history + g->n_before,
                                             g->n_prompt - g->n_before, err);
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

qn_status qn_generation_next(qn_generation *g, int32_t *id, qn_error *err)
{
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
    if (is_stop(g, next)) {
        g->metrics.finish = QN_FINISH_STOP;
        return QN_OK;
    }
    g->history[g->n_history++] = next;
    g->metrics.generated_tokens++;
    *id = next;
    return QN_OK;
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
    free(g->stop);
    free(g->history);
    free(g);
}
