/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: requests from any thread, steps from one.
 */
#include "generate/engine.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/sized.h"
#include "core/device.h"
#include "core/scope.h"

#include <stdlib.h>
#include <string.h>

enum { PARALLEL = 16, QUEUE = 256 };
enum {
    CATCH_UP = 64
}; /* tokens that a draft model runs of each request, beside others, in a step */
static const uint64_t default_bytes = (uint64_t)4 << 30, beside_bytes = (uint64_t)512 << 20;

/* ---- opening and closing --------------------------------------------------------------------- */

/* Fills in what the options leave open. */
static qn_status check_engine(const qn_model *model, qn_engine_options *o, qn_error *err)
{
    const qn__decoder_config *c = &model->decoder.config;
    if (o->context < 0 || o->parallel < 0 || o->parallel > 4096 || o->cache_tokens < 0 ||
        o->step_tokens < 0 || o->queue < 0 || o->context > c->max_positions)
        return qn__fail(err, QN_INVALID,
                        "engine: context %lld (the model has %lld), parallel %d, cache_tokens "
                        "%lld, step_tokens %lld or queue %d is out of range",
                        (long long)o->context, (long long)c->max_positions, o->parallel,
                        (long long)o->cache_tokens, (long long)o->step_tokens, o->queue);
    if (!model->decoder.embedding)
        return qn__fail(err, QN_STATE, "the model was opened without its weights");
    o->context = o->context ? o->context : c->max_positions;
    o->parallel = o->parallel ? o->parallel : PARALLEL;
    int64_t all = o->context * o->parallel; /* more than that nobody can use */
    o->cache_tokens = o->cache_tokens < all ? o->cache_tokens : all;
    o->step_tokens = o->step_tokens ? o->step_tokens : qn__device_step_tokens(model->device);
    o->step_tokens = o->step_tokens < all ? o->step_tokens : all;
    o->queue = o->queue ? o->queue : QUEUE;
    if (o->step_tokens < o->parallel) /* the next token of each must fit a step */
        o->step_tokens = o->parallel;
    return QN_OK;
}

/* Of a cache that nobody said the size of. Requests wait for its pages, but fail where the device
 * has no memory for these: so no more than it has, less what steps need beside them. */
static uint64_t usual_bytes(qn_device *device)
{
    uint64_t room = qn__pool_room(device), beside = room / 4;
    room -= beside < beside_bytes ? beside : beside_bytes;
    return room < default_bytes ? room : default_bytes;
}

/* Tokens of a cache that nobody said the size of: all that there can be, or as many as fit. */
static int64_t usual_tokens(const qn_engine *e, const qn__model_cache_options *options)
{
    uint64_t one = qn__model_cache_bytes(e->model, e->context, options),
             context = (uint64_t)e->context, all = context * (uint64_t)e->parallel,
             fit = one ? usual_bytes(e->model->device) * context / one : all,
             ends = (uint64_t)(e->parallel - 1) * QN__PAGE; /* each sequence ends within a page */
    if (fit >= all)
        return (int64_t)all;
    fit = fit > ends ? fit - ends : 0;
    return (int64_t)(fit > context ? fit : context);
}

static qn_status begin_engine_cache(qn_engine *e, const qn_engine_options *o, qn_error *err)
{
    qn__model_cache_options options = {.keys = o->cache_type_k, .values = o->cache_type_v};
    qn__cache_room room = {.sequences = e->parallel,
                           .positions = e->context,
                           .total = o->cache_tokens ? o->cache_tokens : usual_tokens(e, &options),
                           .reach = e->step_tokens};
    return qn__model_cache(&e->cache, e->model, &room, &options, err);
}

static qn_status begin_engine(qn_engine *e, const qn_engine_options *o, qn_error *err)
{
    e->context = o->context;
    e->step_tokens = o->step_tokens;
    e->parallel = o->parallel;
    e->queue = o->queue;
    e->reuses = !o->no_prefix_reuse;
    e->running = calloc((size_t)o->parallel, sizeof *e->running);
    e->drafts = calloc((size_t)o->parallel, sizeof *e->drafts);
    e->drawn = malloc((size_t)o->step_tokens * sizeof *e->drawn);
    e->row = malloc((size_t)e->model->decoder.config.vocab * sizeof *e->row);
    if (!e->running || !e->drafts || !e->drawn || !e->row)
        return qn__fail_memory(err, "an engine");
    if (begin_engine_cache(e, o, err) != QN_OK)
        return err->code;
    if (o->draft && qn__drafter_begin(&e->drafter, o->draft, e->model, o->parallel, o->context,
                                      NULL, err) != QN_OK)
        return err->code;
    return qn__prefix_begin(&e->prefix, &e->cache, err);
}

qn_status qn_engine_open(qn_engine **out, qn_model *model, const qn_engine_options *options,
                         qn_error *err)
{
    qn_engine_options o;
    qn_error local = {0};
    err = err ? err : &local;
    *out = NULL;
    if (qn__sized_in(&o, sizeof o, options, "qn_engine_options", err) != QN_OK ||
        check_engine(model, &o, err) != QN_OK)
        return err->code;
    qn_engine *e = calloc(1, sizeof *e);
    if (!e)
        return qn__fail_memory(err, "an engine");
    atomic_fetch_add(&model->refs, 1);
    e->model = model;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, &attributes);
    pthread_cond_init(&e->news, &attributes);
    pthread_condattr_destroy(&attributes);
    if (begin_engine(e, &o, err) != QN_OK) {
        qn_engine_close(e);
        return err->code;
    }
    *out = e;
    return QN_OK;
}

static void free_engine(qn_engine *e)
{
    qn__prefix_end(&e->prefix);
    if (e->cache.kept)
        qn__cache_end(&e->cache);
    qn__batch_free(&e->batch);
    qn__draws_free(&e->draws);
    qn__drafter_end(&e->drafter);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->news);
    pthread_mutex_destroy(&e->lock);
    qn_model_close(e->model);
    free(e->running);
    free(e->drafts);
    free(e->drawn);
    free(e->row);
    free(e);
}

void qn_engine_close(qn_engine *e)
{
    if (!e)
        return;
    qn_error closed = {0};
    qn__fail(&closed, QN_CANCELLED, "the engine was closed");
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    qn__model_step_end(&e->step);
    qn__model_step_end(&e->ahead);
    while (e->n_running)
        qn__schedule_finish(e, e->running[0], &closed);
    while (e->first)
        qn__schedule_finish(e, e->first, &closed);
    pthread_cond_broadcast(&e->news);
    bool last = e->n_open == 0;
    pthread_mutex_unlock(&e->lock);
    if (last)
        free_engine(e);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Guesses for the requests whose newest token is all that they have to run; without the lock. Where
 * the draft model fails they go on without. */
static void guess_for_all(qn_engine *e)
{
    size_t n = 0;
    for (int i = 0; i < e->n_running; i++) {
        qn_request *r = e->running[i];
        size_t room = qn__schedule_room(e, r);
        qn__guesses_from_text(&r->guesses, r->reply.history, r->reply.n_history, room);
        if (!r->guesses.n && r->guesses.draft.most && room)
            e->drafts[n++] = (qn__draft_job){&r->draft, &r->reply, &r->guesses, room, false};
    }
    qn_error err = {0};
    int64_t most = e->n_running == 1 ? e->step_tokens : CATCH_UP;
    if (!n || qn__drafter_run(&e->drafter, e->drafts, n, most, &err) == QN_OK)
        return;
    qn__log(e->model->device, QN_LOG_WARN, "no guesses in this step: %s", err.message);
    for (size_t i = 0; i < n; i++)
        e->drafts[i].guesses->n = 0;
}

/* How each request of the next step draws behind its outputs; *logits: whether one wants theirs. */
static qn_status set_draws(qn_engine *e, bool *logits, qn_error *err)
{
    size_t n = (size_t)e->batch.n_outputs, vocab = (size_t)e->model->decoder.config.vocab;
    *logits = false;
    qn_status status = qn__draws_begin(&e->draws, n, vocab, err);
    for (int i = 0; status == QN_OK && i < e->n_running; i++) {
        qn_request *r = e->running[i];
        size_t row = (size_t)r->ahead.output;
        if (r->ahead.output < 0)
            continue;
        *logits |= qn__reply_wants_logits(&r->reply);
        status =
            qn__schedule_is_drawing(r)
                ? qn__reply_draw_behind(&r->reply, &e->draws, row, (int32_t)r->rows.output, err)
                : qn__reply_draw(&r->reply, &e->draws, row, r->guesses.id, r->guesses.n, err);
    }
    return status;
}

/* Enqueues the next step, if it has rows, and gives up the lock meanwhile. Draws are set with it: a
 * reply's history, which others read, may move to have room for guesses. */
static qn_status enqueue_next(qn_engine *e, qn_error *err)
{
    bool keeps_logits;
    if (!e->batch.n_tokens)
        return QN_OK;
    if (set_draws(e, &keeps_logits, err) != QN_OK) {
        qn__batch_end(NULL, &e->batch);
        return err->code;
    }
    pthread_mutex_unlock(&e->lock);
    qn_status status =
        qn__model_step_enqueue(&e->ahead, e->model, &e->batch, &e->draws, keeps_logits, NULL, err);
    pthread_mutex_lock(&e->lock);
    return status;
}

/* The step under way is over, and the next one is; one that nobody wants any more is given up. */
static void move_on(qn_engine *e)
{
    bool wanted = false;
    qn__model_step_forget_graph(&e->ahead);
    qn__model_step_end(&e->step);
    e->step = e->ahead;
    e->ahead = (qn__model_step){0};
    for (int i = 0; i < e->n_running; i++) {
        qn_request *r = e->running[i];
        r->rows = r->ahead;
        r->ahead = qn__no_rows;
        wanted |= r->rows.n > 0;
    }
    if (!wanted)
        qn__model_step_end(&e->step);
}

/* What a row of the step's outputs gave the request: a token, and logits where it wants them. */
static qn_status take_draw(qn_engine *e, qn_request *r, int64_t output, qn_error *err)
{
    qn_scope *s = e->step.scope;
    int64_t vocab = e->model->decoder.config.vocab;
    if (!qn__reply_wants_logits(&r->reply))
        return qn__reply_take_draw(&r->reply, e->drawn[output], NULL, err);
    qn_array *row = qn_slice(s, e->step.logits, 1, output, output + 1, 1);
    if (qn_read_f32(s, row, e->row, (size_t)vocab) != QN_OK)
        return qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    return qn__reply_take_draw(&r->reply, e->drawn[output], e->row, err);
}

/* Keeps the log-probabilities of the token that was taken. */
static qn_status keep_logprobs(qn_request *r, qn_error *err)
{
    size_t n = r->reply.n_top + 1, at = qn__reply_generated(&r->reply);
    if (!r->reply.logprobs || !at)
        return QN_OK;
    qn_logprob *all = realloc(r->logprobs, (at + 1) * n * sizeof *all);
    if (!all)
        return qn__fail_memory(err, "log-probabilities");
    memcpy(all + at * n, r->reply.logprobs, n * sizeof *all);
    r->logprobs = all;
    r->n_logprobs = at;
    return QN_OK;
}

/* A token of a request, or its failure; whether it goes on. */
static bool take_token(qn_engine *e, qn_request *r, int32_t token, qn_error *err)
{
    qn__reply *reply = &r->reply;
    int32_t id = -1;
    if (err->code == QN_OK && qn__reply_accept(reply, token, &id, err) == QN_OK && id >= 0) {
        keep_logprobs(r, err);
        e->stats.generated_tokens++;
    }
    r->newest = qn__seconds();
    r->first = r->first == 0 ? r->newest : r->first;
    bool full = (int64_t)qn__reply_generated(reply) >= reply->max_tokens ||
                (int64_t)reply->n_history > e->context;
    if (err->code == QN_OK && reply->finish == QN_FINISH_NONE && full)
        reply->finish = QN_FINISH_LENGTH;
    return err->code == QN_OK && reply->finish == QN_FINISH_NONE;
}

/* A request's tokens of the step: the next one and, as long as it is what was guessed, those behind
 * it. Logits are read without the lock. */
static void take_tokens_of(qn_engine *e, qn_request *r)
{
    qn_error err = {0};
    int64_t n = (int64_t)r->guesses.n, right = 0, ran = r->sequence.length - n;
    bool goes_on, first = r->first == 0;
    for (;; right++) {
        int32_t token = e->drawn[r->rows.output + right];
        pthread_mutex_unlock(&e->lock);
        take_draw(e, r, r->rows.output + right, &err);
        pthread_mutex_lock(&e->lock);
        goes_on = take_token(e, r, token, &err);
        if (!goes_on || right == n || token != r->guesses.id[right])
            break;
    }
    if (n)
        qn__sequence_rewind(&r->sequence, ran + right);
    e->stats.guessed_tokens += (uint64_t)n;
    e->stats.right_tokens += (uint64_t)right;
    qn__guesses_learn(&r->guesses, (size_t)right);
    if (!goes_on)
        qn__schedule_finish(e, r, err.code == QN_OK ? NULL : &err);
    else if (first && e->reuses)
        qn__prefix_keep(&e->prefix, &r->sequence, r->reply.history, (int64_t)r->reply.n_history);
}

static void take_tokens(qn_engine *e)
{
    for (int i = e->n_running - 1; i >= 0; i--) {
        qn_request *r = e->running[i];
        int64_t outputs = r->rows.output >= 0 ? 1 + (int64_t)r->guesses.n : 0;
        if (!r->rows.n)
            continue;
        e->stats.prompt_tokens += (uint64_t)(r->rows.n - (r->first > 0 ? outputs : 0));
        if (outputs)
            take_tokens_of(e, r);
    }
    e->stats.steps++;
}

/* All requests of the step that did not run end with the error; but where memory was short and
 * known beginnings held some, these go, and the step is tried again. */
static void fail_step(qn_engine *e, const qn_error *err)
{
    bool forgot = false;
    while ((err->code == QN_LIMIT || err->code == QN_MEMORY) && qn__prefix_forget(&e->prefix))
        forgot = true;
    qn__cache_trim(&e->cache);
    for (int i = e->n_running - 1; i >= 0; i--) {
        qn_request *r = e->running[i];
        if (!forgot && r->rows.n)
            qn__schedule_finish(e, r, err);
        else
            r->rows = qn__no_rows;
    }
}

/* What was enqueued failed as it ran, and with it what was enqueued behind it: nobody knows what
 * the cache's pages hold that they wrote. */
static void fail_steps(qn_engine *e, const qn_error *err)
{
    qn__model_step_end(&e->ahead);
    while (qn__prefix_forget(&e->prefix))
        ;
    for (int i = 0; i < e->n_running; i++) {
        qn_request *r = e->running[i];
        const qn__request_rows *first = r->rows.n ? &r->rows : &r->ahead;
        if (first->n)
            qn__sequence_rewind(&r->sequence, first->from);
        r->ahead = qn__no_rows;
    }
    fail_step(e, err);
}

/* The first step, or the next one where it needs the tokens of the one before. */
static void start_step(qn_engine *e)
{
    qn_error err = {0};
    qn__schedule(e);
    pthread_mutex_unlock(&e->lock);
    guess_for_all(e);
    pthread_mutex_lock(&e->lock);
    qn__schedule_fill(e);
    qn_status status = enqueue_next(e, &err);
    move_on(e);
    if (status != QN_OK)
        fail_step(e, &err);
}

/* Enqueues the step behind the one under way, where all can go on whose tokens it draws. Where
 * there is no memory for it, it comes once that one's are there. */
static void enqueue_ahead(qn_engine *e)
{
    qn_error unused = {0};
    bool all = qn__model_step_can_be_followed(&e->step, e->model);
    for (int i = 0; i < e->n_running; i++)
        all &=
            !qn__schedule_is_drawing(e->running[i]) || qn__reply_goes_ahead(&e->running[i]->reply);
    if (!all)
        return;
    qn__schedule(e);
    qn__schedule_fill(e);
    bool any = e->batch.n_tokens > 0;
    if (enqueue_next(e, &unused) == QN_OK)
        e->stats.steps_ahead += any;
    else
        for (int i = 0; i < e->n_running; i++)
            e->running[i]->ahead = qn__no_rows;
}

/* Reads the step under way, without the lock. */
static void take_step(qn_engine *e)
{
    qn_error err = {0};
    pthread_mutex_unlock(&e->lock);
    qn_status status = qn__model_step_read(&e->step, e->model->device, e->drawn, &err);
    pthread_mutex_lock(&e->lock);
    double read = qn__seconds(), begun = e->step.begun > e->read ? e->step.begun : e->read;
    e->read = read;
    if (status != QN_OK) {
        fail_steps(e, &err);
        return;
    }
    qn__schedule_learn(e, read - begun);
    take_tokens(e);
}

qn_status qn_engine_step(qn_engine *e, bool *busy, qn_error *err)
{
    (void)err; /* what fails belongs to a request */
    pthread_mutex_lock(&e->lock);
    if (!qn__model_step_is_under_way(&e->step))
        start_step(e);
    if (qn__model_step_is_under_way(&e->step)) {
        enqueue_ahead(e);
        take_step(e);
        move_on(e);
    }
    pthread_cond_broadcast(&e->news);
    *busy = e->n_running || e->n_waiting;
    pthread_mutex_unlock(&e->lock);
    return QN_OK;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static struct timespec time_after(double seconds)
{
    double at = qn__seconds() + (seconds < 1e9 ? seconds : 1e9);
    time_t whole = (time_t)at;
    return (struct timespec){whole, (long)((at - (double)whole) * 1e9)};
}

bool qn_engine_wait(qn_engine *e, double seconds)
{
    struct timespec end = time_after(seconds);
    pthread_mutex_lock(&e->lock);
    bool late = false;
    while (!e->n_running && !e->n_waiting && !e->closing && !late)
        late = pthread_cond_timedwait(&e->work, &e->lock, &end) != 0;
    bool busy = e->n_running || e->n_waiting;
    pthread_mutex_unlock(&e->lock);
    return busy;
}

qn_status qn_engine_get_stats(qn_engine *e, qn_engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    qn_engine_stats stats = e->stats;
    stats.running = e->n_running;
    stats.waiting = e->n_waiting;
    stats.cache_bytes = qn__cache_bytes(&e->cache);
    stats.cache_most_bytes = qn__cache_most_bytes(&e->cache);
    pthread_mutex_unlock(&e->lock);
    return qn__sized_out(out, &stats, sizeof stats);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Frees the request; under its engine's lock. */
void qn__request_free(qn_request *r)
{
    r->engine->n_open--;
    qn__reply_end(&r->reply);
    free(r->logprobs);
    free(r->given_logprobs);
    free(r);
}

static qn_status check_prompt(const qn_engine *e, const int32_t *ids, size_t n, qn_error *err)
{
    if (n > (size_t)e->context)
        return qn__fail(err, QN_LIMIT, "a prompt of %zu tokens does not fit a context of %lld", n,
                        (long long)e->context);
    return qn__model_check_tokens(e->model, ids, n, err);
}

/* The pages that the request may come to need; whether the cache has so many. */
static qn_status reserve_worst(const qn_engine *e, qn_request *r, qn_error *err)
{
    int64_t prompt = (int64_t)r->reply.n_prompt, most = r->reply.max_tokens;
    int64_t positions = most < e->context - prompt ? prompt + most : e->context;
    for (int k = 0; k < e->cache.n_kinds; k++) {
        r->reserved[k] = qn__cache_most_pages(&e->cache, &e->cache.kind[k], positions);
        if (r->reserved[k] > e->cache.kind[k].pages.most)
            return qn__fail(err, QN_LIMIT,
                            "a prompt of %lld tokens and up to %lld more do not fit the cache, "
                            "which has room for %lld; ask for fewer",
                            (long long)prompt, (long long)(positions - prompt),
                            (long long)e->cache.kind[k].pages.most * QN__PAGE);
    }
    return QN_OK;
}

static qn_status begin_reply(const qn_engine *e, qn_request *r, const int32_t *ids, size_t n,
                             const qn_generation_options *generation, qn_error *err)
{
    if (qn__reply_begin(&r->reply, e->model, ids, n, generation, err) != QN_OK)
        return err->code;
    if (r->reply.draft_tokens && !e->drafter.model)
        return qn__fail(err, QN_INVALID, "draft_tokens %d, but the engine has no draft model",
                        r->reply.draft_tokens);
    qn__guesses_begin(&r->guesses, (size_t)r->reply.prompt_lookup, (size_t)r->reply.draft_tokens);
    if (r->reply.n_before)
        return qn__fail(err, QN_INVALID, "a request has no tokens before its prompt");
    r->given_logprobs = calloc(r->reply.n_top + 1, sizeof *r->given_logprobs);
    if (!r->given_logprobs)
        return qn__fail_memory(err, "a request");
    return reserve_worst(e, r, err);
}

qn_status qn_request_add(qn_request **out, qn_engine *e, const int32_t *ids, size_t n,
                         const qn_request_options *options, qn_error *err)
{
    qn_request_options o;
    qn_error local = {0};
    err = err ? err : &local;
    *out = NULL;
    if (qn__sized_in(&o, sizeof o, options, "qn_request_options", err) != QN_OK ||
        check_prompt(e, ids, n, err) != QN_OK)
        return err->code;
    qn_request *r = calloc(1, sizeof *r);
    if (!r)
        return qn__fail_memory(err, "a request");
    r->engine = e;
    r->priority = o.priority;
    r->added = qn__seconds();
    qn_status status = qn__model_adapter(e->model, o.adapter, &r->adapter, err);
    if (status == QN_OK)
        status = begin_reply(e, r, ids, n, o.generation, err);
    pthread_mutex_lock(&e->lock);
    if (status == QN_OK && e->closing)
        status = qn__fail(err, QN_STATE, "the engine is closing");
    if (status == QN_OK && e->n_waiting >= e->queue)
        status = qn__fail(err, QN_BUSY, "%d requests wait already; try again later", e->n_waiting);
    if (status == QN_OK) {
        r->number = e->n_added++;
        e->n_open++;
        qn__schedule_enqueue(e, r);
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    if (status != QN_OK) {
        qn__reply_end(&r->reply);
        free(r->given_logprobs);
        free(r);
        return status;
    }
    *out = r;
    return QN_OK;
}

/* Tokens that were not given yet. */
static size_t not_given(const qn_request *r)
{
    return qn__reply_generated(&r->reply) - r->n_given;
}

/* Those of the token that is given, where the step that may run meanwhile does not move them. */
static void give_logprobs(qn_request *r)
{
    size_t n = r->reply.n_top + 1;
    if (r->n_given <= r->n_logprobs)
        memcpy(r->given_logprobs, r->logprobs + r->n_given * n, n * sizeof *r->given_logprobs);
}

qn_status qn_request_next(qn_request *r, int32_t *id, qn_error *err)
{
    pthread_mutex_lock(&r->engine->lock);
    qn_status status = QN_OK;
    *id = -1;
    if (not_given(r)) {
        *id = r->reply.history[r->reply.n_prompt + r->n_given++];
        give_logprobs(r);
    } else if (r->error.code != QN_OK)
        status = qn__fail(err, r->error.code, "%s", r->error.message);
    pthread_mutex_unlock(&r->engine->lock);
    return status;
}

bool qn_request_wait(qn_request *r, double seconds)
{
    qn_engine *e = r->engine;
    struct timespec end = time_after(seconds);
    pthread_mutex_lock(&e->lock);
    bool late = false;
    while (!not_given(r) && r->state != QN__DONE && !late)
        late = pthread_cond_timedwait(&e->news, &e->lock, &end) != 0;
    bool news = not_given(r) || r->state == QN__DONE;
    pthread_mutex_unlock(&e->lock);
    return news;
}

qn_status qn_request_text(qn_request *r, qn_text *out, qn_error *err)
{
    qn_error local = {0};
    pthread_mutex_lock(&r->engine->lock);
    qn_status status = qn__reply_text(&r->reply, r->state == QN__DONE, out, err ? err : &local);
    pthread_mutex_unlock(&r->engine->lock);
    return status;
}

const qn_logprob *qn_request_logprobs(qn_request *r, size_t *n)
{
    pthread_mutex_lock(&r->engine->lock);
    bool any = r->n_given && r->n_given <= r->n_logprobs;
    pthread_mutex_unlock(&r->engine->lock);
    *n = any ? r->reply.n_top + 1 : 0;
    return any ? r->given_logprobs : NULL;
}

qn_finish qn_request_finish(qn_request *r)
{
    pthread_mutex_lock(&r->engine->lock);
    bool ended = r->state == QN__DONE && r->error.code == QN_OK && !not_given(r);
    qn_finish finish = ended ? r->reply.finish : QN_FINISH_NONE;
    pthread_mutex_unlock(&r->engine->lock);
    return finish;
}

qn_status qn_request_get_metrics(qn_request *r, qn_request_metrics *out)
{
    pthread_mutex_lock(&r->engine->lock);
    double now = qn__seconds(), begun = r->begun > 0 ? r->begun : now;
    double first = r->first > 0 ? r->first : begun;
    qn_request_metrics metrics = {.prompt_tokens = r->reply.n_prompt,
                                  .cached_tokens = r->cached,
                                  .generated_tokens = qn__reply_generated(&r->reply),
                                  .queued_seconds = begun - r->added,
                                  .prefill_seconds = first - begun,
                                  .decode_seconds = r->first > 0 ? r->newest - first : 0};
    pthread_mutex_unlock(&r->engine->lock);
    return qn__sized_out(out, &metrics, sizeof metrics);
}

void qn_request_cancel(qn_request *r)
{
    pthread_mutex_lock(&r->engine->lock);
    r->cancelled = true;
    pthread_cond_signal(&r->engine->work);
    pthread_mutex_unlock(&r->engine->lock);
}

void qn_request_close(qn_request *r)
{
    if (!r)
        return;
    qn_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    r->cancelled = r->closed = true;
    if (r->state == QN__DONE)
        qn__request_free(r);
    bool last = e->closing && e->n_open == 0;
    pthread_mutex_unlock(&e->lock);
    if (last)
        free_engine(e);
}
