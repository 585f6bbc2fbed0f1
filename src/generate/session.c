/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: a model with a KV cache. One scope a step; the graph of a step is recorded anew each
 * time and finds its plan again, so there is no second way of running a model.
 *
 * A call that fails leaves the session's tokens as they were: the cache still has their keys and
 * values, or, where sliding layers had to give some up (a rewind, too, can ask for those), the next
 * call runs the tokens again, which is why such sessions remember them.
 */
#include "base/error.h"
#include "base/sized.h"
#include "core/device.h"
#include "core/scope.h"
#include "generate/session.h"

#include <stdlib.h>

enum { PREFILL_CHUNK = 512, MOST_POSITIONS = 1 << 30 };

struct qn_session {
    qn_model *model;
    qn__cache cache;
    int64_t length;  /* tokens taken; the cache has so many positions, or fewer: see catch_up */
    int64_t context; /* tokens that it takes */
    int64_t chunk, batch;
    bool remembers; /* some layer's cache is a ring */
    int32_t *ids;   /* [batch, room], where it remembers */
    int64_t room;
    const qn_flag *cancel;
    void (*progress)(void *user, int64_t done, int64_t total);
    void *progress_user;
    float *logits; /* [batch, vocab] */
    bool has_logits;
    qn_array *token; /* i32 [1, 1], retained: the greedy choice, on the device */
    int32_t token_value;
};

static qn_status check_options(const qn_session_options *o, qn_error *err)
{
    if (o->context < 0 || o->context > MOST_POSITIONS || o->prefill_chunk < 0 || o->batch < 0 ||
        o->batch > 1024)
        return qn__fail(err, QN_INVALID,
                        "session: context %lld, chunk %lld or batch %d is out of "
                        "range",
                        (long long)o->context, (long long)o->prefill_chunk, o->batch);
    return QN_OK;
}

/* The windows of sliding layers; with `limit`, every layer sees that many positions at most, of
 * which those that do not slide keep the first `keep`. */
static void set_windows(qn_session *session, const qn__decoder_config *c, int64_t limit,
                        int64_t keep)
{
    for (int i = 0; i < c->n_layers; i++) {
        int64_t window = c->layer[i].sliding ? c->window : 0;
        bool limited = limit && (!window || limit < window);
        if (limited)
            window = limit;
        if (!window || window >= session->context)
            continue;
        qn__cache_set_window(&session->cache, i, window, limited ? keep : 0, session->chunk);
        session->remembers = true;
    }
}

static qn_status begin_cache(qn_session *session, const qn__decoder *m, int64_t limit, int64_t keep,
                             qn_error *err)
{
    const qn__decoder_config *c = &m->config;
    bool half = c->dtype == QN_BF16 && m->products == QN_PRODUCTS_AUTO;
    qn__cache_shape shape = {.n_layers = (int)c->n_layers,
                             .batch = session->batch,
                             .heads = c->n_kv_heads,
                             .key_dim = c->head_dim,
                             .value_dim = c->head_dim,
                             .dtype = half ? QN_BF16 : QN_F32};
    if (qn__cache_begin(&session->cache, &shape, err) != QN_OK)
        return err->code;
    set_windows(session, c, limit, keep);
    return QN_OK;
}

qn_status qn_session_open(qn_session **out, qn_model *model, const qn_session_options *options,
                          qn_error *err)
{
    qn_session_options given, *o = &given;
    const qn__decoder_config *c = &model->decoder.config;
    qn_error local = {0};
    err = err ? err : &local;
    *out = NULL;
    qn_status status = qn__sized_in(&given, sizeof given, options, "qn_session_options", err);
    if (status == QN_OK)
        status = check_options(o, err);
    if (status != QN_OK)
        return status;
    if (!model->decoder.embedding)
        return qn__fail(err, QN_STATE, "the model was opened without its weights");
    int64_t limit = o->context ? o->context : c->max_positions;
    if (o->keep < 0 || o->keep > QN__PINNED || (o->keep && (!o->rotate || o->keep >= limit)))
        return qn__fail(
            err, QN_INVALID,
            "session: keep %lld; a rotating session keeps 0 to %d first tokens, fewer than its "
            "context of %lld",
            (long long)o->keep, QN__PINNED, (long long)limit);
    if (limit > c->max_positions)
        qn__log(model->device, QN_LOG_WARN,
                "a context of %lld positions is longer than the %lld that the model was "
                "trained for; text beyond those may be poor",
                (long long)limit, (long long)c->max_positions);
    qn_session *session = calloc(1, sizeof *session);
    if (!session)
        return qn__fail_memory(err, "a session");
    session->batch = o->batch ? o->batch : 1;
    session->chunk = o->prefill_chunk ? o->prefill_chunk : PREFILL_CHUNK;
    session->chunk = session->chunk < limit ? session->chunk : limit;
    session->context = o->rotate ? MOST_POSITIONS : limit;
    session->cancel = o->cancel;
    session->progress = o->progress;
    session->progress_user = o->progress_user;
    session->logits = malloc((size_t)(session->batch * c->vocab) * sizeof(float));
    if (!session->logits ||
        begin_cache(session, &model->decoder, o->rotate ? limit : 0, o->keep, err) != QN_OK) {
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
    free(session->ids);
    free(session);
}

/* ---- one step
 * -------------------------------------------------------------------------------------------- */

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

/* Tokens ids[b * stride + 0 .. n) of each sequence. What of the logits is wanted: none, those of
 * the last token (into session->logits), or all ([batch, n, vocab] rows `row` apart, into out). */
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
    if (status != QN_OK)
        qn__fail(err, status, "%s", qn_scope_error(s));
    qn_scope_end(s);
    return status;
}

static qn_status check_tokens(const qn_session *session, const int32_t *ids, size_t n,
                              qn_error *err)
{
    int64_t room = session->context - session->length;
    if (n > (size_t)room)
        return qn__fail(err, QN_LIMIT,
                        "%zu tokens behind %lld do not fit a context of %lld; use a larger context "
                        "or a shorter prompt",
                        n, (long long)session->length, (long long)session->context);
    for (size_t i = 0; i < n * (size_t)session->batch; i++)
        if (ids[i] < 0 || ids[i] >= session->model->decoder.config.vocab)
            return qn__fail(err, QN_INVALID, "token %zu is %d, the vocabulary has %lld", i, ids[i],
                            (long long)session->model->decoder.config.vocab);
    return QN_OK;
}

/* Keeps n tokens of each sequence behind those that count; they count when session->length says so.
 */
static qn_status remember(qn_session *session, const int32_t *ids, int64_t n, qn_error *err)
{
    int64_t want = session->length + n;
    if (!session->remembers)
        return QN_OK;
    if (want > session->room) {
        int64_t room = want + want / 2 + 256;
        int32_t *all = malloc((size_t)(session->batch * room) * sizeof *all);
        if (!all)
            return qn__fail_memory(err, "a session's tokens");
        for (int64_t b = 0; b < session->batch && session->length; b++)
            memcpy(all + b * room, session->ids + b * session->room,
                   (size_t)session->length * sizeof *all);
        free(session->ids);
        session->ids = all;
        session->room = room;
    }
    for (int64_t b = 0; b < session->batch && n; b++)
        memcpy(session->ids + b * session->room + session->length, ids + b * n,
               (size_t)n * sizeof *ids);
    return QN_OK;
}

/* Runs the tokens that the cache lacks: a ring had given up what a rewind asked for. */
static qn_status catch_up(qn_session *session, qn_error *err)
{
    qn_status status = QN_OK;
    while (status == QN_OK && session->cache.length < session->length) {
        int64_t at = session->cache.length, left = session->length - at;
        status = run_tokens(session, session->ids + at, (size_t)session->room,
                            left < session->chunk ? left : session->chunk, false, NULL, 0, err);
    }
    return status;
}

/* Before a call's own tokens run. */
static qn_status prepare(qn_session *session, const int32_t *ids, size_t n, qn_error *err)
{
    session->has_logits = false;
    if (check_tokens(session, ids, n, err) != QN_OK ||
        remember(session, ids, (int64_t)n, err) != QN_OK)
        return err->code;
    return catch_up(session, err);
}

/* After them: they count, or on failure are forgotten. */
static qn_status conclude(qn_session *session, size_t n, qn_status status)
{
    if (status == QN_OK)
        session->length += (int64_t)n;
    else
        qn__cache_rewind(&session->cache, session->length);
    return status;
}

static void tell_progress(const qn_session *session, size_t done, size_t total)
{
    if (session->progress && total > (size_t)session->chunk)
        session->progress(session->progress_user, (int64_t)done, (int64_t)total);
}

static qn_status run_chunks(qn_session *session, const int32_t *ids, size_t n, float *out,
                            qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    qn_status status = prepare(session, ids, n, err);
    size_t vocab = (size_t)session->model->decoder.config.vocab;
    for (size_t i = 0; status == QN_OK && i < n; i += (size_t)session->chunk) {
        size_t left = n - i, take = left < (size_t)session->chunk ? left : (size_t)session->chunk;
        bool last = !out && take == left;
        tell_progress(session, i, n);
        status = run_tokens(session, ids + i, n, (int64_t)take, last, out ? out + i * vocab : NULL,
                            n * vocab, err);
    }
    session->has_logits = status == QN_OK && n > 0 && !out;
    tell_progress(session, n, n); /* also when it failed: the end */
    return conclude(session, n, status);
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

/* ---- greedy, on the device
 * --------------------------------------------------------------------------------- */

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
    qn_error local = {0};
    err = err ? err : &local;
    if (session->batch != 1)
        return qn__fail(err, QN_INVALID, "greedy steps are for sessions of one sequence");
    if (prepare(session, &token, 1, err) != QN_OK)
        return err->code;
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
    }
    qn_scope_end(s);
    return conclude(session, 1, status);
}

/* ---- queries
 * -----------------------------------------------------------------------------------------------
 */

const float *qn_session_logits(const qn_session *session)
{
    return session->has_logits ? session->logits : NULL;
}

int64_t qn_session_length(const qn_session *session)
{
    return session->length;
}

int64_t qn_session_context(const qn_session *session)
{
    return session->context;
}

void qn_session_rewind(qn_session *session, int64_t length)
{
    session->has_logits = false;
    if (length < 0 || length >= session->length)
        return;
    session->length = length;
    qn__cache_rewind(&session->cache, length);
}

uint64_t qn_model_cache_bytes(const qn_model *model, int64_t positions)
{
    const qn__decoder_config *c = &model->decoder.config;
    int64_t n = positions > 0 && positions <= MOST_POSITIONS ? positions : c->max_positions;
    qn_session session = {.batch = 1, .context = n, .chunk = n < PREFILL_CHUNK ? n : PREFILL_CHUNK};
    qn_error err = {0};
    if (begin_cache(&session, &model->decoder, 0, 0, &err) != QN_OK)
        return 0;
    session.cache.capacity = (n + QN__CACHE_CHUNK - 1) / QN__CACHE_CHUNK * QN__CACHE_CHUNK;
    uint64_t bytes = qn__cache_bytes(&session.cache);
    qn__cache_end(&session.cache);
    return bytes;
}

size_t qn_session_cache_bytes(const qn_session *session)
{
    return qn__cache_bytes(&session->cache);
}

qn_model *qn__session_model(const qn_session *session)
{
    return session->model;
}

int64_t qn__session_batch(const qn_session *session)
{
    return session->batch;
}
