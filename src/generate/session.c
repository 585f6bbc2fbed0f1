/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: a model with a KV cache, and sequences that go in lockstep. One scope a step; the graph
 * of a step is recorded anew each time and finds its plan again, so there is no second way of
 * running a model.
 *
 * Where a device runs behind what the host enqueues, the step that takes the tokens which are being
 * drawn is enqueued before these are read. Its tokens count when the caller comes back with them;
 * the cache has one position more until then, and any other call gives it back
 * (qn__session_settle).
 *
 * A call that fails leaves the session's tokens as they were: the cache still has their keys and
 * values, or, where sliding layers gave some up that a rewind asks for, the next call runs the
 * tokens again.
 */
#include "base/error.h"
#include "base/sized.h"
#include "core/device.h"
#include "core/scope.h"
#include "generate/session.h"

#include <stdlib.h>

enum { MOST_POSITIONS = 1 << 30 };

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

static qn_status begin_sequences(qn_session *session, const qn__model_cache_options *options,
                                 qn_error *err)
{
    size_t batch = (size_t)session->n_sequences;
    size_t vocab = (size_t)session->model->decoder.config.vocab;
    session->logits = malloc(batch * vocab * sizeof(float));
    session->sequences = calloc(batch, sizeof *session->sequences);
    session->ahead.ids = calloc(batch, sizeof *session->ahead.ids);
    if (!session->logits || !session->sequences || !session->ahead.ids)
        return qn__fail_memory(err, "a session");
    qn__cache_room room = {
        .sequences = session->n_sequences, .positions = session->context, .reach = session->chunk};
    if (qn__model_cache(&session->cache, session->model, &room, options, err) != QN_OK)
        return err->code;
    for (size_t b = 0; b < batch; b++)
        qn__sequence_begin(&session->sequences[b], &session->cache);
    return QN_OK;
}

static qn_status begin_drafter(qn_session *session, qn_model *draft, qn_error *err)
{
    if (!draft)
        return QN_OK;
    if (session->n_sequences != 1)
        return qn__fail(err, QN_UNSUPPORTED, "a draft model is for sessions of one sequence");
    return qn__drafter_begin(&session->drafter, draft, session->model, 1, session->context,
                             session->cancel, err);
}

static qn_status choose_adapter(qn_session *session, int asked, qn_error *err)
{
    int32_t adapter;
    if (qn__model_adapter(session->model, asked, &adapter, err) != QN_OK)
        return err->code;
    for (int64_t b = 0; b < session->n_sequences; b++)
        session->sequences[b].adapter = adapter;
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
    if (o->keep < 0 || o->keep > QN__PAGE || (o->keep && (!o->rotate || o->keep >= limit)))
        return qn__fail(
            err, QN_INVALID,
            "session: keep %lld; a rotating session keeps 0 to %d first tokens, fewer than its "
            "context of %lld",
            (long long)o->keep, QN__PAGE, (long long)limit);
    if (limit > c->max_positions)
        qn__log(model->device, QN_LOG_WARN,
                "a context of %lld positions is longer than the %lld that the model was "
                "trained for; text beyond those may be poor",
                (long long)limit, (long long)c->max_positions);
    qn_session *session = calloc(1, sizeof *session);
    if (!session)
        return qn__fail_memory(err, "a session");
    session->n_sequences = o->batch ? o->batch : 1;
    session->chunk = o->prefill_chunk ? o->prefill_chunk : qn__device_step_tokens(model->device);
    session->chunk = session->chunk < limit ? session->chunk : limit;
    session->context = o->rotate ? MOST_POSITIONS : limit;
    session->cancel = o->cancel;
    session->progress = o->progress;
    session->progress_user = o->progress_user;
    atomic_fetch_add(&model->refs, 1);
    session->model = model;
    qn__model_cache_options cache_options = {.keys = o->cache_type_k,
                                             .values = o->cache_type_v,
                                             .limit = o->rotate ? limit : 0,
                                             .keep = o->keep};
    if (begin_sequences(session, &cache_options, err) != QN_OK ||
        begin_drafter(session, o->draft, err) != QN_OK ||
        choose_adapter(session, o->adapter, err) != QN_OK) {
        qn_session_close(session);
        return err->code;
    }
    *out = session;
    return QN_OK;
}

uint64_t qn_model_cache_bytes(const qn_model *model, const qn_session_options *options)
{
    qn_session_options o;
    qn_error err = {0};
    if (qn__sized_in(&o, sizeof o, options, "qn_session_options", &err) != QN_OK ||
        check_options(&o, &err) != QN_OK)
        return 0;
    qn__model_cache_options cache = {
        .keys = o.cache_type_k, .values = o.cache_type_v, .limit = o.rotate ? o.context : 0};
    return qn__model_cache_bytes(model, o.context, &cache);
}

void qn_session_close(qn_session *session)
{
    if (!session)
        return;
    for (int64_t b = 0; session->sequences && b < session->n_sequences; b++)
        qn__sequence_end(&session->sequences[b]);
    qn__model_step_end(&session->ahead.step);
    qn__cache_end(&session->cache);
    qn__batch_free(&session->batch);
    qn__draws_free(&session->draws);
    qn__draft_end(&session->draft);
    qn__drafter_end(&session->drafter);
    qn_model_close(session->model);
    free(session->ahead.ids);
    free(session->sequences);
    free(session->logits);
    free(session->ids);
    free(session);
}

/* ---- one step
 * -------------------------------------------------------------------------------------------- */

/* Tokens ids[b * stride + 0 .. n) of each sequence become a step; results of the newest `outputs`
 * of them are wanted. */
static qn_status begin_step(qn_session *session, const int32_t *ids, size_t stride, int64_t n,
                            int64_t outputs, qn_error *err)
{
    qn__batch_begin(&session->batch, &session->cache);
    for (int64_t b = 0; b < session->n_sequences; b++)
        if (qn__batch_add(&session->batch, &session->sequences[b], ids + (size_t)b * stride, n,
                          outputs, err) != QN_OK) {
            qn__batch_end(NULL, &session->batch);
            return err->code;
        }
    return QN_OK;
}

/* Begins the step's scope; on failure the step is given up. */
static qn_scope *begin_scope(qn_session *session, qn_error *err)
{
    qn_scope *s = qn_scope_begin(session->model->device);
    if (!s) {
        qn__batch_end(NULL, &session->batch);
        qn__fail_memory(err, "a step");
    }
    return s;
}

/* Of a call's wanted results those that a step gives: outputs first .. first + outputs - 1. */
typedef struct results {
    const qn__wanted *of;
    int64_t first, outputs;
} results;

/* Copies the step's results to where they are wanted. */
static void read_results(qn_session *session, qn_scope *s, const results *r, qn_array *logits,
                         qn_array *drawn)
{
    int64_t vocab = session->model->decoder.config.vocab;
    float *out = r->of->logits ? r->of->logits + r->first * vocab : NULL;
    for (int64_t b = 0; out && b < session->n_sequences; b++, out += r->of->outputs * vocab)
        qn_read_f32(s, qn_slice(s, logits, 1, b * r->outputs, (b + 1) * r->outputs, 1), out,
                    (size_t)(r->outputs * vocab));
    if (drawn)
        qn_read(s, drawn, r->of->drawn + r->first,
                (size_t)(session->n_sequences * r->outputs) * sizeof *r->of->drawn);
}

/* Runs the tokens of begin_step. */
static qn_status run_tokens(qn_session *session, const int32_t *ids, size_t stride, int64_t n,
                            const results *r, qn_error *err)
{
    if (begin_step(session, ids, stride, n, r->outputs, err) != QN_OK)
        return err->code;
    qn_scope *s = begin_scope(session, err);
    if (!s)
        return err->code;
    qn_array *logits = qn__decoder_run(s, &session->model->decoder, &session->batch);
    qn_array *drawn = NULL, *targets[2];
    int n_targets = 0;
    if (r->outputs && r->of->logits)
        targets[n_targets++] = logits;
    if (r->outputs && r->of->drawn)
        targets[n_targets++] = drawn = qn__draws_record(s, &session->draws, (size_t)r->first,
                                                        (size_t)session->batch.n_outputs, logits);
    s->cancel = session->cancel;
    qn__batch_eval(s, &session->batch, targets, n_targets);
    qn__batch_end(s, &session->batch);
    if (r->outputs)
        read_results(session, s, r, logits, drawn);
    return qn__scope_end(s, err);
}

static qn_status check_tokens(const qn_session *session, const int32_t *ids, size_t n,
                              qn_error *err)
{
    int64_t room = session->context - session->length;
    if (n > (size_t)room && !session->length)
        return qn__fail(err, QN_LIMIT,
                        "a prompt of %zu tokens does not fit a context of %lld; use a larger "
                        "context or a shorter prompt",
                        n, (long long)session->context);
    if (n > (size_t)room)
        return qn__fail(err, QN_LIMIT,
                        "%zu tokens behind %lld do not fit a context of %lld; use a larger context "
                        "or a shorter prompt",
                        n, (long long)session->length, (long long)session->context);
    return qn__model_check_tokens(session->model, ids, n * (size_t)session->n_sequences, err);
}

qn_status qn__session_remember(qn_session *session, const int32_t *ids, int64_t n, qn_error *err)
{
    int64_t want = session->length + n;
    if (want > session->room) {
        int64_t room = want + want / 2 + 256;
        int32_t *all = malloc((size_t)(session->n_sequences * room) * sizeof *all);
        if (!all)
            return qn__fail_memory(err, "a session's tokens");
        for (int64_t b = 0; b < session->n_sequences && session->length; b++)
            memcpy(all + b * room, session->ids + b * session->room,
                   (size_t)session->length * sizeof *all);
        free(session->ids);
        session->ids = all;
        session->room = room;
    }
    for (int64_t b = 0; b < session->n_sequences && n; b++)
        memcpy(session->ids + b * session->room + session->length, ids + b * n,
               (size_t)n * sizeof *ids);
    return QN_OK;
}

/* Rewinds the sequences, which then all have `length` positions, or none: where one had to give up
 * more than the others, these do, too. */
static void rewind_sequences(qn_session *session, int64_t length)
{
    int64_t first = qn__sequence_rewind(&session->sequences[0], length);
    bool same = true;
    for (int64_t b = 1; b < session->n_sequences; b++)
        same &= qn__sequence_rewind(&session->sequences[b], length) == first;
    for (int64_t b = 0; b < session->n_sequences && !same; b++)
        qn__sequence_rewind(&session->sequences[b], 0);
}

void qn__session_settle(qn_session *session)
{
    qn__model_step_end(&session->ahead.step);
    rewind_sequences(session, session->length);
}

qn_status qn__session_catch_up(qn_session *session, qn_error *err)
{
    qn_status status = QN_OK;
    qn__session_settle(session);
    while (status == QN_OK && session->sequences[0].length < session->length) {
        int64_t at = session->sequences[0].length, left = session->length - at;
        status = run_tokens(session, session->ids + at, (size_t)session->room,
                            left < session->chunk ? left : session->chunk, &(results){.outputs = 0},
                            err);
    }
    return status;
}

/* Before a call's own tokens run. */
static qn_status prepare(qn_session *session, const int32_t *ids, size_t n, qn_error *err)
{
    session->has_logits = false;
    if (check_tokens(session, ids, n, err) != QN_OK ||
        qn__session_remember(session, ids, (int64_t)n, err) != QN_OK)
        return err->code;
    return qn__session_catch_up(session, err);
}

/* After them: they count, or on failure are forgotten. */
static qn_status conclude(qn_session *session, size_t n, qn_status status)
{
    if (status == QN_OK)
        session->length += (int64_t)n;
    else
        qn__session_settle(session);
    return status;
}

static void tell_progress(const qn_session *session, size_t done, size_t total)
{
    if (session->progress && total > (size_t)session->chunk)
        session->progress(session->progress_user, (int64_t)done, (int64_t)total);
}

qn_status qn__session_run(qn_session *session, const int32_t *ids, size_t n,
                          const qn__wanted *wanted, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    qn_status status = prepare(session, ids, n, err);
    size_t chunk = (size_t)session->chunk;
    int64_t before = (int64_t)n - wanted->outputs; /* tokens of which nothing is wanted */
    for (size_t i = 0; status == QN_OK && i < n; i += chunk) {
        size_t take = n - i < chunk ? n - i : chunk;
        int64_t first = (int64_t)i - before, end = first + (int64_t)take;
        results r = {.of = wanted, .first = first > 0 ? first : 0};
        r.outputs = end > r.first ? end - r.first : 0;
        tell_progress(session, i, n);
        status = run_tokens(session, ids + i, n, (int64_t)take, &r, err);
    }
    tell_progress(session, n, n); /* also when it failed: the end */
    return conclude(session, n, status);
}

/* ---- one token behind the other -------------------------------------------------------------- */

/* Enqueues a step of one token of each sequence: ids, or where that is NULL what `before` draws. */
static qn_status enqueue(qn_session *session, const int32_t *ids, const qn__model_step *before,
                         qn__model_step *step, qn_error *err)
{
    int32_t *places = session->ahead.ids;
    for (int64_t b = 0; !ids && b < session->n_sequences; b++)
        places[b] = (int32_t)b;
    if (begin_step(session, ids ? ids : places, 1, 1, 1, err) != QN_OK)
        return err->code;
    if (!ids)
        qn__batch_give(&session->batch, before->drawn, session->n_sequences);
    return qn__model_step_enqueue(step, session->model, &session->batch, &session->draws, false,
                                  session->cancel, err);
}

/* Enqueues the step behind this one; where that cannot be, there is none. */
static void go_ahead(qn_session *session, const qn__model_step *before, qn__set_draws *set,
                     void *by)
{
    qn_error unused = {0};
    if (!qn__model_step_can_be_followed(before, session->model) ||
        session->length >= session->context || set(by, session, 1, &unused) != QN_OK)
        return;
    session->ahead.by = by;
    enqueue(session, NULL, before, &session->ahead.step, &unused);
}

/* Whether the step that was enqueued ahead is of these tokens, and the same caller's. */
static bool is_enqueued(const qn_session *session, const int32_t *ids, const void *by)
{
    return session->ahead.step.drawn && session->ahead.by == by &&
           !memcmp(session->ahead.ids, ids, (size_t)session->n_sequences * sizeof *ids);
}

qn_status qn__session_step(qn_session *session, const int32_t *ids, qn__set_draws *set, void *by,
                           int32_t *drawn, qn_error *err)
{
    qn__model_step step = {0};
    qn_status status;
    session->has_logits = false;
    if (is_enqueued(session, ids, by)) {
        if (qn__session_remember(session, ids, 1, err) != QN_OK)
            return err->code;
        step = session->ahead.step;
        session->ahead.step = (qn__model_step){0};
        status = QN_OK;
    } else {
        status = prepare(session, ids, 1, err);
        if (status == QN_OK)
            status = set(by, session, 0, err);
        if (status == QN_OK)
            status = enqueue(session, ids, NULL, &step, err);
        qn__model_step_forget_graph(&step);
    }
    if (conclude(session, 1, status) != QN_OK)
        return status;
    go_ahead(session, &step, set, by);
    status = qn__model_step_read(&step, session->model->device, session->ahead.ids, err);
    qn__model_step_forget_graph(&session->ahead.step);
    qn__model_step_end(&step);
    if (status == QN_OK) {
        memcpy(drawn, session->ahead.ids, (size_t)session->n_sequences * sizeof *drawn);
        return QN_OK;
    }
    session->length--;
    qn__session_settle(session);
    return status;
}

qn_status qn_session_append(qn_session *session, const int32_t *ids, size_t n, qn_error *err)
{
    qn__wanted last = {.outputs = n ? 1 : 0, .logits = session->logits};
    qn_status status = qn__session_run(session, ids, n, &last, err);
    session->has_logits = status == QN_OK && n > 0;
    return status;
}

qn_status qn_session_score(qn_session *session, const int32_t *ids, size_t n, float *out,
                           qn_error *err)
{
    return qn__session_run(session, ids, n, &(qn__wanted){(int64_t)n, out, NULL}, err);
}

qn_status qn_session_step_greedy(qn_session *session, int32_t token, int32_t *next, qn_error *err)
{
    if (session->n_sequences != 1)
        return qn__fail(err, QN_INVALID,
                        "a step of one token is for sessions of one sequence; "
                        "qn_session_step_greedy_batch takes one of each");
    return qn_session_step_greedy_batch(session, &token, next, err);
}

static qn_status draw_greedily(void *by, qn_session *session, int64_t more, qn_error *err)
{
    (void)by;
    (void)more;
    return qn__draws_begin(&session->draws, (size_t)session->n_sequences,
                           (size_t)session->model->decoder.config.vocab, err);
}

qn_status qn_session_step_greedy_batch(qn_session *session, const int32_t *tokens, int32_t *next,
                                       qn_error *err)
{
    size_t n = (size_t)session->n_sequences;
    qn_error local = {0};
    err = err ? err : &local;
    qn_status status = qn__session_step(session, tokens, draw_greedily, session, next, err);
    for (size_t b = 0; status == QN_OK && b < n; b++)
        if (next[b] < 0) {
            qn_session_rewind(session, session->length - 1);
            status = qn__draws_fail(&QN_INIT(qn_sampling), err);
        }
    return status;
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
    qn__session_settle(session);
    session->length = length;
    rewind_sequences(session, length);
}

int64_t qn_session_rewind_to(qn_session *session, const int32_t *ids, size_t n)
{
    int64_t same = 0;
    if (session->n_sequences == 1)
        while (same < session->length && (size_t)same + 1 < n && session->ids[same] == ids[same])
            same++;
    qn_session_rewind(session, same);
    if (session->sequences[0].length < session->length) /* they would run anyway */
        session->length = session->sequences[0].length;
    return session->length;
}

const int32_t *qn_session_tokens(const qn_session *session)
{
    return session->ids;
}

size_t qn_session_cache_bytes(const qn_session *session)
{
    return qn__cache_bytes(&session->cache);
}
