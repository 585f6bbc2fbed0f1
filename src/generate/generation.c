/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: a pull iterator over a session. Plain greedy choices are made on the device and only
 * the token is read; everything else samples from a copy of the logits.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/sized.h"
#include "generate/guess.h"
#include "generate/reply.h"
#include "generate/session.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_GUESSES = 4 };

/* Guesses behind the newest token, which ran in one step with it. */
typedef struct guesses {
    int32_t id[QN__MOST_GUESSES];
    size_t most, now; /* at once, at most; as the last ones turned out */
    size_t n, row;    /* so many; the row of `logits` that is next, n + 1 at most */
    float *logits;    /* [n + 1, vocab]: behind the newest token, behind each guess */
} guesses;

struct qn_generation {
    qn_session *session;
    qn__reply reply;
    guesses guesses;
    double prefill_seconds, decode_seconds;
};

/* ---- guesses --------------------------------------------------------------------------------- */

/* Tokens in the session that would not be there without guesses: those that are not said yet, and
 * the newest one. */
static int64_t ahead(const guesses *u)
{
    return (int64_t)(u->n - u->row) + (u->row > 0);
}

/* Takes the newest n tokens out of the session; there are no guesses any more. */
static void drop_guesses(qn_generation *g, int64_t n)
{
    if (!g->guesses.n)
        return;
    qn_session_rewind(g->session, qn_session_length(g->session) - n);
    g->guesses.n = g->guesses.row = 0;
}

/* Runs the newest token and guesses behind it, where there are any. */
static qn_status run_guesses(qn_generation *g, qn_error *err)
{
    guesses *u = &g->guesses;
    const qn__reply *r = &g->reply;
    int64_t room = qn_session_context(g->session) - qn_session_length(g->session) - 1;
    int64_t wanted = r->max_tokens - (int64_t)qn__reply_generated(r) - 1;
    int64_t most = room < wanted ? room : wanted;
    most = most < (int64_t)u->now ? most : (int64_t)u->now;
    int32_t ids[1 + QN__MOST_GUESSES] = {r->history[r->n_history - 1]};
    size_t n = most > 0 ? qn__guess(r->history, r->n_history, ids + 1, (size_t)most) : 0;
    qn_status status = QN_OK;
    if (n)
        status = qn_session_score(g->session, ids, n + 1, u->logits, err);
    if (!n || status != QN_OK)
        return status;
    memcpy(u->id, ids + 1, n * sizeof *ids);
    u->n = n;
    return QN_OK;
}

/* Chooses from the next row; where that is no guess, the others are dropped. */
static qn_status choose_row(qn_generation *g, int32_t *id, qn_error *err)
{
    guesses *u = &g->guesses;
    size_t vocab = (size_t)g->session->model->decoder.config.vocab, n = u->n;
    qn_status status = qn__reply_choose(&g->reply, u->logits + u->row * vocab, id, err);
    if (status != QN_OK)
        return status;
    if (u->row < n && *id == u->id[u->row]) {
        u->row++;
        return QN_OK;
    }
    if (u->row == n) /* all were right */
        u->now = 2 * u->now < u->most ? 2 * u->now : u->most;
    else
        u->now = u->row + 1;
    drop_guesses(g, (int64_t)(n - u->row));
    return QN_OK;
}

static qn_status begin_guesses(qn_generation *g, qn_error *err)
{
    int32_t most = g->reply.prompt_lookup;
    guesses *u = &g->guesses;
    u->most = (size_t)most;
    u->now = most < FIRST_GUESSES ? (size_t)most : FIRST_GUESSES;
    size_t vocab = (size_t)g->session->model->decoder.config.vocab;
    u->logits = most ? malloc((u->most + 1) * vocab * sizeof *u->logits) : NULL;
    return u->logits || !most ? QN_OK : qn__fail_memory(err, "guesses");
}

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
    if (qn__reply_begin(&g->reply, session->model, ids, n, options, err) != QN_OK ||
        begin_guesses(g, err) != QN_OK) {
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

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Runs what the session lacks, and chooses. */
static qn_status choose(qn_generation *g, int32_t *id, qn_error *err)
{
    qn__reply *r = &g->reply;
    bool first = qn__reply_generated(r) == 0;
    qn_status status = QN_OK;
    if (!first && g->guesses.most && !g->guesses.n)
        status = run_guesses(g, err);
    if (status != QN_OK)
        return status;
    if (g->guesses.n)
        return choose_row(g, id, err);
    if (!first && qn__reply_is_greedy(r))
        return qn_session_step_greedy(g->session, r->history[r->n_history - 1], id, err);
    size_t from = first ? r->n_before : r->n_history - 1;
    int64_t before = qn_session_length(g->session);
    status = qn_session_append(g->session, r->history + from, r->n_history - from, err);
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
        (!first &&
         qn_session_length(g->session) - ahead(&g->guesses) >= qn_session_context(g->session))) {
        r->finish = QN_FINISH_LENGTH;
        return QN_OK;
    }
    double begun = qn__seconds();
    int32_t next;
    qn_status status = choose(g, &next, err);
    if (status != QN_OK)
        return status;
    *(first ? &g->prefill_seconds : &g->decode_seconds) += qn__seconds() - begun;
    status = qn__reply_accept(r, next, id, err);
    if (r->finish != QN_FINISH_NONE)
        drop_guesses(g, ahead(&g->guesses));
    return status;
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
    drop_guesses(g, ahead(&g->guesses));
    free(g->guesses.logits);
    qn__reply_end(&g->reply);
    free(g);
}
