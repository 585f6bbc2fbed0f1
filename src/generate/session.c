/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: a model with a KV cache. One scope a step; the graph of a step is recorded anew each time
 * and finds its plan again, so there is no second way of running a model.
 */
#include "base/error.h"
#include "core/scope.h"
#include "generate/session.h"

#include <stdlib.h>

enum { PREFILL_CHUNK = 512 };

struct qn_session {
    qn_model *model;
    qn__cache cache;
    int64_t context, chunk, batch;
    const atomic_bool *cancel;
    float *logits;      /* [batch, vocab] */
    bool has_logits;
    qn_array *token;    /* i32 [1, 1], retained: the greedy choice, on the device */
    int32_t token_value;
};

qn_status qn_session_open(qn_session **out, qn_model *model, const qn_session_options *options,
                          qn_error *err)
{
    const qn_session_options none = {0}, *o = options ? options : &none;
    const qn__decoder_config *c = &model->decoder.config;
    *out = NULL;
    if (o->context < 0 || o->context > (1 << 30) || o->prefill_chunk < 0 || o->batch < 0 ||
        o->batch > 1024)
        return qn__fail(err, QN_INVALID, "session: context %lld, chunk %lld or batch %d is out of "
                        "range", (long long)o->context, (long long)o->prefill_chunk, o->batch);
    qn_session *session = calloc(1, sizeof *session);
    if (!session)
        return qn__fail_memory(err, "a session");
    session->batch = o->batch ? o->batch : 1;
    session->context = o->context ? o->context : c->max_positions;
    session->chunk = o->prefill_chunk ? o->prefill_chunk : PREFILL_CHUNK;
    session->cancel = o->cancel;
    session->logits = malloc((size_t)(session->batch * c->vocab) * sizeof(float));
    qn__cache_shape shape = {.n_layers = (int)c->n_layers, .batch = session->batch,
                             .heads = c->n_kv_heads, .key_dim = c->head_dim,
                             .value_dim = c->head_dim,
                             .dtype = c->dtype == QN_BF16 ? QN_BF16 : QN_F32};
    if (!session->logits || qn__cache_begin(&session->cache, &shape, err) != QN_OK) {
        free(session->logits);
        free(session);
        return qn__fail_memory(err, "a session");
    }
    atomic_fetch_add(&model->refs, 1);
    session->model = model;
    *out = session;
    return QN_OK;
}

void qn_session_close(qn_session *session)
{
    if (!session)
        return;
    qn__cache_end(&session->cache);
    qn_release(session->token);
    qn_model_close(session->model);
    free(session->logits);
    free(session);
}

/* ---- one step -------------------------------------------------------------------------------------------- */

/* Evaluates the cache's targets and `result` (which may be NULL) and commits. */
static qn_status run_step(qn_session *session, qn_scope *s, qn_array *result)
{
    int n;
    qn_array *const *targets = qn__cache_targets(s, &session->cache, &n);
    qn_array **all = s ? qn__scope_alloc(s, ((size_t)n + 1) * sizeof *all) : NULL;
    if (all) {
        memcpy(all, targets, (size_t)n * sizeof *all);
        if (result)
            all[n++] = result;
        s->cancel = session->cancel;
        qn_eval_many(s, all, n);
    }
    qn__cache_commit(s, &session->cache);
    return qn_scope_status(s);
}

/* The last of each sequence's hidden states: [B, L, D] -> [B, 1, D]. */
static qn_array *last_position(qn_scope *s, qn_array *hidden)
{
    return qn_slice(s, hidden, 1, -1, INT64_MAX, 1);
}

/* Tokens ids[b * stride + 0 .. n) of each sequence. What of the logits is wanted: none, those of the
 * last token (into session->logits), or all ([batch, n, vocab] rows `row` apart, into out). */
static qn_status run_tokens(qn_session *session, const int32_t *ids, size_t stride, int64_t n,
                            bool last, float *out, size_t out_stride, qn_error *err)
{
    const qn__decoder *m = &session->model->decoder;
    int64_t vocab = m->config.vocab, shape[] = {session->batch, n};
    qn_scope *s = qn_scope_begin(session->model->device);
    int32_t *rows = s ? qn__scope_alloc(s, (size_t)(session->batch * n) * sizeof *rows) : NULL;
    for (int64_t b = 0; rows && b < session->batch; b++)
        memcpy(rows + b * n, ids + (size_t)b * stride, (size_t)n * sizeof *rows);
    if (rows) {
        qn__cache_step(s, &session->cache, n);
        qn_array *tokens = qn_from(s, QN_I32, 2, shape, rows);
        qn_array *hidden = qn__decoder_hidden(s, m, tokens, &session->cache, NULL);
        qn_array *logits = NULL;
        if (last || out)
            logits = qn__decoder_logits(s, m, out ? hidden : last_position(s, hidden));
        run_step(session, s, logits);
        if (last)
            qn_read_f32(s, logits, session->logits, (size_t)(session->batch * vocab));
        for (int64_t b = 0; out && b < session->batch; b++)
            qn_read_f32(s, qn_slice(s, logits, 0, b, b + 1, 1), out + (size_t)b * out_stride,
                        (size_t)(n * vocab));
    }
    qn_status status = qn_scope_status(s);
    if (status != QN_OK) {
        qn__fail(err, status, "%s", qn_scope_error(s));
        qn__cache_rewind(&session->cache, 0); /* committed, but its results were lost */
    }
    qn_scope_end(s);
    return status;
}

static qn_status check_tokens(const qn_session *session, const int32_t *ids, size_t n,
                              qn_error *err)
{
    int64_t room = session->context - session->cache.length;
    if (n > (size_t)room)
        return qn__fail(err, QN_LIMIT,
                        "%zu tokens behind %lld do not fit a context of %lld; use a larger context "
                        "or a shorter prompt",
                        n, (long long)session->cache.length, (long long)session->context);
    for (size_t i = 0; i < n * (size_t)session->batch; i++)
        if (ids[i] < 0 || ids[i] >= session->model->decoder.config.vocab)
            return qn__fail(err, QN_INVALID, "token %zu is %d, the vocabulary has %lld", i, ids[i],
                            (long long)session->model->decoder.config.vocab);
    return QN_OK;
}

static qn_status run_chunks(qn_session *session, const int32_t *ids, size_t n, float *out,
                            qn_error *err)
{
    session->has_logits = false;
    qn_status status = check_tokens(session, ids, n, err);
    size_t vocab = (size_t)session->model->decoder.config.vocab;
    for (size_t i = 0; status == QN_OK && i < n; i += (size_t)session->chunk) {
        size_t left = n - i, take = left < (size_t)session->chunk ? left : (size_t)session->chunk;
        bool last = !out && take == left;
        status = run_tokens(session, ids + i, n, (int64_t)take, last, out ? out + i * vocab : NULL,
                            n * vocab, err);
    }
    session->has_logits = status == QN_OK && n > 0 && !out;
    return status;
}

qn_status qn_session_append(qn_session *session, const int32_t *ids, size_t n, qn_error *err)
{
    return run_chunks(session, ids, n, NULL, err);
}

qn_status qn_session_score(qn_session *session, const int32_t *ids, size_t n, float *out,
                           qn_error *err)
{
    return run_chunks(session, ids, n, out, err);
}

/* ---- greedy, on the device --------------------------------------------------------------------------------- */

/* The token array: what the last step left on the device, or a new one. */
static qn_array *take_token(qn_scope *s, qn_session *session, int32_t token)
{
    qn_array *old = session->token;
    session->token = NULL;
    if (old && session->token_value == token)
        return qn_donate(s, old);
    qn_release(old);
    return qn_from(s, QN_I32, 2, (const int64_t[]){1, 1}, &token);
}

qn_status qn_session_step_greedy(qn_session *session, int32_t token, int32_t *next, qn_error *err)
{
    session->has_logits = false;
    if (session->batch != 1)
        return qn__fail(err, QN_INVALID, "greedy steps are for sessions of one sequence");
    qn_status checked = check_tokens(session, &token, 1, err);
    if (checked != QN_OK)
        return checked;
    const qn__decoder *m = &session->model->decoder;
    qn_scope *s = qn_scope_begin(session->model->device);
    qn_array *current = NULL;
    if (s) {
        current = take_token(s, session, token);
        qn__cache_step(s, &session->cache, 1);
        qn_array *hidden = qn__decoder_hidden(s, m, current, &session->cache, NULL);
        qn_array *best = qn_argmax(s, qn__decoder_logits(s, m, hidden), -1, false); /* [1, 1] */
        current = qn_slice_update(s, current, best, (const int64_t[]){0, 0});
        run_step(session, s, current);
        qn_read(s, current, next, sizeof *next);
    }
    qn_status status = qn_scope_status(s);
    if (status == QN_OK) {
        session->token = qn_retain(current);
        session->token_value = *next;
    } else {
        qn__fail(err, status, "%s", qn_scope_error(s));
        qn__cache_rewind(&session->cache, 0);
    }
    qn_scope_end(s);
    return status;
}

/* ---- queries ----------------------------------------------------------------------------------------------- */

const float *qn_session_logits(const qn_session *session)
{
    return session->has_logits ? session->logits : NULL;
}

int64_t qn_session_length(const qn_session *session)
{
    return session->cache.length;
}

int64_t qn_session_context(const qn_session *session)
{
    return session->context;
}

void qn_session_rewind(qn_session *session, int64_t length)
{
    qn__cache_rewind(&session->cache, length);
    session->has_logits = false;
}

size_t qn_session_cache_bytes(const qn_session *session)
{
    return qn__cache_bytes(&session->cache);
}

qn_model *qn__session_model(const qn_session *session)
{
    return session->model;
}
