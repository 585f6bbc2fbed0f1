/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: a pull iterator over a session. Tokens are drawn on the device; logits are read where
 * their probabilities are wanted.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/sized.h"
#include "generate/session.h"

#include <stdlib.h>
#include <string.h>

struct qn_generation {
    qn_session *session;
    qn__reply reply;
    qn__guesses guesses;                 /* behind the newest token, in the session with it */
    size_t row;                          /* of what was drawn the next one, guesses.n + 1 at most */
    int32_t drawn[1 + QN__MOST_GUESSES]; /* behind that token, behind each guess */
    float *logits; /* [most guesses + 1, vocab]: theirs, where the reply wants them */
    double prefill_seconds, decode_seconds;
};

/* ---- guesses --------------------------------------------------------------------------------- */

/* Tokens in the session that would not be there without guesses: those that are not said yet, and
 * the newest one. */
static int64_t ahead(const qn_generation *g)
{
    return g->guesses.n ? (int64_t)(g->guesses.n - g->row) + (g->row > 0) : 0;
}

/* Takes the newest n tokens out of the session; there are no guesses any more. */
static void drop_guesses(qn_generation *g, int64_t n)
{
    if (!g->guesses.n)
        return;
    qn_session_rewind(g->session, qn_session_length(g->session) - n);
    qn__guesses_learn(&g->guesses, g->row);
    g->row = 0;
}

/* Tokens that may be said behind the next one. */
static size_t room_for_guesses(const qn_generation *g)
{
    const qn__reply *r = &g->reply;
    int64_t room = qn_session_context(g->session) - qn_session_length(g->session) - 1;
    int64_t wanted = r->max_tokens - (int64_t)qn__reply_generated(r) - 1;
    int64_t most = room < wanted ? room : wanted;
    return most > 0 ? (size_t)most : 0;
}

static qn_status make_guesses(qn_generation *g, qn_error *err)
{
    qn__guesses *u = &g->guesses;
    const qn__reply *r = &g->reply;
    size_t room = room_for_guesses(g);
    qn__guesses_from_text(u, r->history, r->n_history, room);
    if (u->n || !u->draft.most)
        return QN_OK;
    qn__draft_job job = {.draft = &g->session->draft, .reply = r, .guesses = u, .room = room};
    return qn__drafter_run(&g->session->drafter, &job, 1, INT64_MAX, err);
}

/* Runs n tokens, the last ones of which are the newest that was said and guesses behind it, and
 * draws behind each of these. */
static qn_status run(qn_generation *g, const int32_t *ids, size_t n, qn_error *err)
{
    qn_session *session = g->session;
    const qn__guesses *u = &g->guesses;
    size_t vocab = (size_t)session->model->decoder.config.vocab;
    qn__wanted wanted = {.outputs = 1 + (int64_t)u->n, .logits = g->logits, .drawn = g->drawn};
    if (qn__draws_begin(&session->draws, 1 + u->n, vocab, err) != QN_OK ||
        qn__reply_draw(&g->reply, &session->draws, 0, u->id, u->n, err) != QN_OK)
        return err->code;
    return qn__session_run(session, ids, n, &wanted, err);
}

static qn_status set_next_draw(void *by, qn_session *session, int64_t more, qn_error *err)
{
    qn_generation *g = by;
    size_t vocab = (size_t)session->model->decoder.config.vocab;
    if ((int64_t)qn__reply_generated(&g->reply) + more >= g->reply.max_tokens)
        return qn__fail(err, QN_LIMIT, "there are tokens enough");
    if (qn__draws_begin(&session->draws, 1, vocab, err) != QN_OK)
        return err->code;
    return more ? qn__reply_draw_behind(&g->reply, &session->draws, 0, 0, err)
                : qn__reply_draw(&g->reply, &session->draws, 0, NULL, 0, err);
}

/* Whether nothing but the next token is wanted of a step, which may then be enqueued ahead. */
static bool goes_by_one(const qn_generation *g)
{
    return !g->logits && !g->guesses.text.most && !g->guesses.draft.most;
}

/* The next of what was drawn; where that is no guess, the others are dropped. */
static qn_status take_row(qn_generation *g, int32_t *id, qn_error *err)
{
    const qn__guesses *u = &g->guesses;
    size_t vocab = (size_t)g->session->model->decoder.config.vocab;
    const float *logits = g->logits ? g->logits + g->row * vocab : NULL;
    *id = g->drawn[g->row];
    qn_status status = qn__reply_take_draw(&g->reply, *id, logits, err);
    if (status != QN_OK)
        return status;
    if (g->row < u->n && *id == u->id[g->row])
        g->row++;
    else
        drop_guesses(g, (int64_t)(u->n - g->row));
    return QN_OK;
}

static qn_status begin_guesses(qn_generation *g, qn_error *err)
{
    size_t text = (size_t)g->reply.prompt_lookup, draft = (size_t)g->reply.draft_tokens;
    size_t vocab = (size_t)g->session->model->decoder.config.vocab;
    size_t most = text > draft ? text : draft;
    if (draft && !g->session->drafter.model)
        return qn__fail(err, QN_INVALID, "draft_tokens %zu, but the session has no draft model",
                        draft);
    qn__guesses_begin(&g->guesses, text, draft);
    if (!qn__reply_wants_logits(&g->reply))
        return QN_OK;
    g->logits = malloc((most + 1) * vocab * sizeof *g->logits);
    return g->logits ? QN_OK : qn__fail_memory(err, "logits");
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

/* Runs what the session lacks, with guesses behind it but for the prompt. */
static qn_status run_newest(qn_generation *g, qn_error *err)
{
    const qn__reply *r = &g->reply;
    if (!qn__reply_generated(r))
        return run(g, r->history + r->n_before, r->n_history - r->n_before, err);
    int32_t ids[1 + QN__MOST_GUESSES] = {r->history[r->n_history - 1]};
    if (goes_by_one(g))
        return qn__session_step(g->session, ids, set_next_draw, g, g->drawn, err);
    qn_status status = make_guesses(g, err);
    memcpy(ids + 1, g->guesses.id, g->guesses.n * sizeof *ids);
    if (status == QN_OK)
        status = run(g, ids, 1 + g->guesses.n, err);
    if (status != QN_OK)
        g->guesses.n = 0;
    return status;
}

static qn_status choose(qn_generation *g, int32_t *id, qn_error *err)
{
    int64_t before = qn_session_length(g->session);
    bool waiting = g->guesses.n > 0; /* drawn, and not said */
    qn_status status = waiting ? QN_OK : run_newest(g, err);
    if (status != QN_OK)
        return status;
    status = take_row(g, id, err);
    if (status != QN_OK && !waiting && !g->guesses.n)
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
        (!first && qn_session_length(g->session) - ahead(g) >= qn_session_context(g->session))) {
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
    if (r->finish != QN_FINISH_NONE) {
        drop_guesses(g, ahead(g));
        qn__session_settle(g->session);
    }
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
                          .finish = r->finish,
                          .guessed_tokens = g->guesses.made,
                          .right_tokens = g->guesses.right};
    return qn__sized_out(out, &metrics, sizeof metrics);
}

void qn_generation_end(qn_generation *g)
{
    if (!g)
        return;
    drop_guesses(g, ahead(g));
    free(g->logits);
    qn__reply_end(&g->reply);
    free(g);
}
