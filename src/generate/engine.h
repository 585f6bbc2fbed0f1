/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine inside. engine.c is what any thread may call, schedule.c decides who runs, and what a
 * step is made of; both under the engine's lock. A step itself runs without it: what it touches
 * (sequences, the cache, the prefix tree, the batch) belongs to the thread that steps.
 *
 * Where the device runs behind what the host enqueues, the next step is enqueued before the tokens
 * of the one under way are read. Nothing of a step refers to a request: one that ends, at a token
 * that stops it or because someone cancels it, leaves rows behind that nobody reads.
 */
#ifndef QN_GENERATE_ENGINE_H
#define QN_GENERATE_ENGINE_H

#include "generate/draft.h"
#include "generate/pace.h"
#include "generate/step.h"
#include "nn/prefix.h"
#include "quern/engine.h"

#include <pthread.h>

typedef enum qn__request_state { QN__WAITING, QN__RUNNING, QN__DONE } qn__request_state;

/* A request's part of a step. */
typedef struct qn__request_rows {
    int64_t n;      /* rows; 0: none */
    int64_t from;   /* its positions before them */
    int64_t output; /* the first of the step's outputs that is its; -1: none */
} qn__request_rows;

static const qn__request_rows qn__no_rows = {.output = -1};

struct qn_request {
    qn_engine *engine;
    struct qn_request *next; /* in the queue, of those that wait */
    qn__reply reply;
    qn__sequence sequence;
    qn__request_state state;
    bool cancelled, closed; /* closed: freed by the engine once it is done */
    int priority;
    int32_t adapter;                  /* the number of the model's; 0: none */
    uint64_t number;                  /* in the order of adding */
    int64_t reserved[QN__MOST_KINDS]; /* pages that it may come to need */
    size_t n_given;                   /* of what was generated, to the caller */
    qn_logprob *logprobs;       /* [1 + n_logprobs, 1 + n_top], of tokens from the second row on */
    size_t n_logprobs;          /* of so many tokens */
    qn_logprob *given_logprobs; /* [1 + n_top], of the token that was given last */
    qn_error error;             /* of the request itself */
    qn__request_rows rows, ahead; /* of the step under way, and of the one behind it */
    qn__guesses guesses;          /* behind its newest token: each has an output, too */
    qn__draft draft;
    size_t cached;                      /* tokens of its prompt that were known */
    double added, begun, first, newest; /* seconds of the clock */
};

struct qn_engine {
    qn_model *model;
    qn__cache cache;
    qn__prefix prefix;
    bool reuses;
    qn__batch batch;
    qn__model_step step, ahead; /* under way, and enqueued behind it */
    double read;                /* when the step before was */
    int64_t context, step_tokens;
    int parallel, queue;
    pthread_mutex_t lock;
    pthread_cond_t work, news; /* something to do; something to read */
    bool closing;
    qn_request *first; /* waiting, in the order in which they will run */
    int n_waiting;
    qn_request **running; /* [parallel] */
    int n_running;
    int64_t reserved[QN__MOST_KINDS];
    uint64_t n_added;
    int64_t n_open; /* requests that are not freed */
    qn__pace pace;
    qn__draws draws;       /* of a step */
    int32_t *drawn;        /* [step_tokens] */
    float *row;            /* [vocab] logits, of a request that wants them */
    qn__drafter drafter;   /* of options->draft */
    qn__draft_job *drafts; /* [parallel] */
    qn_engine_stats stats;
};

/* ---- schedule.c, under the lock ---- */

/* Puts a request among those that wait. */
void qn__schedule_enqueue(qn_engine *engine, qn_request *request);

/* Ends what was cancelled, and lets those that wait begin where there is room. */
void qn__schedule(qn_engine *engine);

/* How many guesses may stand behind a request's newest token; 0: it has tokens to run before. */
size_t qn__schedule_room(const qn_engine *engine, const qn_request *request);

/* Whether its next token is being drawn, by the step under way. */
bool qn__schedule_is_drawing(const qn_request *request);

/* Fills the batch of the next step, guesses with it. Of requests whose next token is being drawn
 * the rows come first, with what the step under way draws (qn__batch_give). */
void qn__schedule_fill(qn_engine *engine);

/* The step under way took so long. */
void qn__schedule_learn(qn_engine *engine, double seconds);

/* A request is done: its pages go back, and what they hold is remembered. `error` NULL: it
 * succeeded. */
void qn__schedule_finish(qn_engine *engine, qn_request *request, const qn_error *error);

/* Frees a request that nobody knows any more. */
void qn__request_free(qn_request *request);

#endif
