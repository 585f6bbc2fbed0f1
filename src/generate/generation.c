/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: a pull iterator over a session. Plain greedy choices are made on the device and only
 * the token is read; everything else samples from a copy of the logits.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/sized.h"
#include "generate/reply.h"
#include "generate/session.h"

#include <stdlib.h>

struct qn_generation {
    qn_session *session;
    qn__reply reply;
    double prefill_seconds, decode_seconds;
};

qn_status qn_generation_begin(qn_generation **out, qn_session *session, const int32_t *ids,
                              size_t n, const qn_generation_options *options, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    *out = NULL;
    if (session->n_sequences != 1)
        return qn__fail(
            err, QN_UNSUPPORTED,
            "generation is for sessions of one sequence, this one has %lld; qn_session_append "
            "and qn_sample on each row of qn_session_logits serve several",
            (long long)session->n_sequences);
    qn_generation *g = calloc(1, sizeof *g);
    if (!g)
        return qn__fail_memory(err, "a generation");
    g->session = session;
    if (qn__reply_begin(&g->reply, session->model, ids, n, options, err) != QN_OK) {
        qn_generation_end(g);
        return err->code;
    }
    *out = g;
    return QN_OK;
}

qn_status qn_generation_text(qn_generation *g, bool all, qn_text *out, qn_error *err)
{
    return qn__reply_text(&g->reply, all, out, err);
}

/* Runs what the session lacks, and chooses. */
static qn_status choose(qn_generation *g, int32_t *id, qn_error *err)
{
    qn__reply *r = &g->reply;
    bool first = qn__reply_generated(r) == 0;
    if (!first && qn__reply_is_greedy(r))
        return qn_session_step_greedy(g->session, r->history[r->n_history - 1], id, err);
    size_t from = first ? r->n_before : r->n_history - 1;
    int64_t before = qn_session_length(g->session);
    qn_status status = qn_session_append(g->session, r->history + from, r->n_history - from, err);
    if (status != QN_OK)
        return status;
    status = qn__reply_choose(r, qn_session_logits(g->session), id, err);
    if (status != QN_OK)
        qn_session_rewind(g->session, before); /* so that it can be tried again */
    return status;
}

qn_status qn_generation_next(qn_generation *g, int32_t *id, qn_error *err)
{
    qn_error local = {0};
    qn__reply *r = &g->reply;
    err = err ? err : &local;
    *id = -1;
    if (r->finish != QN_FINISH_NONE)
        return QN_OK;
    bool first = qn__reply_generated(r) == 0;
    if ((int64_t)qn__reply_generated(r) >= r->max_tokens ||
        (!first && qn_session_length(g->session) >= qn_session_context(g->session))) {
        r->finish = QN_FINISH_LENGTH;
        return QN_OK;
    }
    double begun = qn__seconds();
    int32_t next;
    qn_status status = choose(g, &next, err);
    if (status != QN_OK)
        return status;
    *(first ? &g->prefill_seconds : &g->decode_seconds) += qn__seconds() - begun;
    return qn__reply_accept(r, next, id, err);
}

const qn_logprob *qn_generation_logprobs(const qn_generation *g, size_t *n)
{
    bool any = g->reply.logprobs && qn__reply_generated(&g->reply);
    *n = any ? g->reply.n_top + 1 : 0;
    return any ? g->reply.logprobs : NULL;
}

qn_status qn_generation_get_metrics(const qn_generation *g, qn_metrics *out)
{
    const qn__reply *r = &g->reply;
    qn_memory_stats memory = QN_INIT(qn_memory_stats);
    qn_device_memory(g->session->model->device, &memory);
    qn_metrics metrics = {.prompt_tokens = r->n_prompt - r->n_before,
                          .generated_tokens = qn__reply_generated(r),
                          .prefill_seconds = g->prefill_seconds,
                          .decode_seconds = g->decode_seconds,
                          .peak_bytes = memory.peak,
                          .finish = r->finish};
    return qn__sized_out(out, &metrics, sizeof metrics);
}

void qn_generation_end(qn_generation *g)
{
    if (!g)
        return;
    qn__reply_end(&g->reply);
    free(g);
}
