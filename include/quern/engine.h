/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine: many requests to one model, which come and go while others run. Each step runs the
 * next token of every request that has begun and a piece of the prompts that have not; what
 * requests have in common at their beginning is run once. A request's tokens are those that it
 * would get alone: to the bit on the CPU, and on CUDA where the model is batch_invariant.
 *
 *     qn_engine *engine;
 *     qn_engine_open(&engine, model, NULL, &err);
 *     qn_request *request;
 *     qn_request_add(&request, engine, ids, n, NULL, &err);
 *     while (qn_engine_step(engine, &busy, &err) == QN_OK && busy)
 *         while (qn_request_next(request, &id, &err) == QN_OK && id >= 0)
 *             ...
 *
 * One thread at a time steps an engine; any thread may add requests, and each request may be read
 * and cancelled by any thread.
 */
#ifndef QUERN_ENGINE_H
#define QUERN_ENGINE_H

#include "quern/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_engine qn_engine;
typedef struct qn_request qn_request;

typedef struct qn_engine_options {
    size_t size;          /* sizeof(qn_engine_options) */
    int64_t context;      /* tokens of a request at most, prompt and reply; 0: the model's */
    int parallel;         /* requests that run side by side, at most; 0: 16 */
    int64_t cache_tokens; /* tokens of all requests for which the cache has room; 0: as many as
                             `parallel` requests of `context`, or as fit 4 GiB and what the device
                             has free, at least one of these */
    int64_t step_tokens;  /* of a step, at most; 0: 512, on a GPU 2048. Does not change a bit of the
                             result where the model is batch_invariant, or on the CPU */
    int queue;            /* requests that wait, at most; 0: 256 */
    bool no_prefix_reuse; /* run every prompt whole */
    const char *cache_type_k, *cache_type_v; /* as qn_session_options' */
    qn_model *draft;                         /* as qn_session_options' */
} qn_engine_options;

/* The engine keeps the model open. */
QN_API qn_status qn_engine_open(qn_engine **out, qn_model *model, const qn_engine_options *options,
                                qn_error *err);

/* Ends all requests with QN_CANCELLED; they must still be closed. No thread may be in
 * qn_engine_step. NULL is accepted. */
QN_API void qn_engine_close(qn_engine *engine);

/* Runs one step. *busy: whether there is more to do. A request that fails has its own error, and
 * the others go on; what is returned here concerns the engine. On a GPU the next step may be under
 * way when it returns: what is added or cancelled meanwhile counts from the one behind that. */
QN_API qn_status qn_engine_step(qn_engine *engine, bool *busy, qn_error *err);

/* Waits until there is something to do, for `seconds` at most; returns whether there is. */
QN_API bool qn_engine_wait(qn_engine *engine, double seconds);

typedef struct qn_engine_stats {
    size_t size;              /* sizeof(qn_engine_stats) */
    int64_t running, waiting; /* requests */
    uint64_t steps;
    uint64_t prompt_tokens; /* run */
    uint64_t cached_tokens; /* of prompts, not run since they were known */
    uint64_t generated_tokens;
    uint64_t preempted; /* requests that had to give their pages back, and ran again */
    uint64_t cache_bytes, cache_most_bytes; /* pages in use, those of known beginnings too; all */
    uint64_t guessed_tokens, right_tokens;  /* guesses that were checked, and those of them right */
    uint64_t steps_ahead; /* of the steps, enqueued before the tokens of the one before were read:
                             on a GPU, as long as all that run want nothing but tokens of it, and
                             no guesses */
} qn_engine_stats;

/* QN_INVALID: out->size was not set. */
QN_API qn_status qn_engine_get_stats(qn_engine *engine, qn_engine_stats *out);

/* ---- requests -------------------------------------------------------------------------------- */

typedef struct qn_request_options {
    size_t size;                             /* sizeof(qn_request_options) */
    const qn_generation_options *generation; /* borrowed until add returns; NULL: greedy. n_before
                                                must be 0: the engine knows what has run. */
    int priority; /* higher ones run first, and may take the place of lower ones */
    int adapter;  /* as qn_session_options' */
} qn_request_options;

/* Adds a prompt of n tokens. QN_LIMIT: it does not fit the context or the cache; QN_BUSY: the queue
 * is full, try again later; QN_STATE: the engine is closing. */
QN_API qn_status qn_request_add(qn_request **out, qn_engine *engine, const int32_t *ids, size_t n,
                                const qn_request_options *options, qn_error *err);

/* The next token; -1: there is none yet, or it has ended (qn_request_finish tells). A failure of
 * the request itself is returned once its tokens have been given. */
QN_API qn_status qn_request_next(qn_request *request, int32_t *id, qn_error *err);

/* Waits until qn_request_next has something to say, for `seconds` at most; returns whether it has.
 * Another thread must step the engine. */
QN_API bool qn_request_wait(qn_request *request, double seconds);

/* As qn_generation_text, of the tokens that there are, also of those that were not given yet. */
QN_API qn_status qn_request_text(qn_request *request, qn_text *out, qn_error *err);

/* As qn_generation_logprobs, of the token that qn_request_next gave last. Valid until the next call
 * of that. */
QN_API const qn_logprob *qn_request_logprobs(qn_request *request, size_t *n);

/* QN_FINISH_NONE as long as it goes on, and after a failure. */
QN_API qn_finish qn_request_finish(qn_request *request);

typedef struct qn_request_metrics {
    size_t size; /* sizeof(qn_request_metrics) */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    double queued_seconds;  /* until it ran */
    double prefill_seconds; /* from there to its first token */
    double decode_seconds;  /* and to the newest one */
} qn_request_metrics;

/* QN_INVALID: out->size was not set. */
QN_API qn_status qn_request_get_metrics(qn_request *request, qn_request_metrics *out);

/* It ends with QN_CANCELLED before the next step. */
QN_API void qn_request_cancel(qn_request *request);

/* Cancels it if need be, and frees it. NULL is accepted. */
QN_API void qn_request_close(qn_request *request);

#ifdef __cplusplus
}
#endif
#endif
