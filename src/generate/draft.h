/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts: guesses by a smaller model of the same vocabulary, its most probable tokens. A drafter
 * runs it for any number of replies side by side; each has a sequence of its own, which follows the
 * reply: what it has run that is not said goes, what is said that it has not run comes first.
 */
#ifndef QN_GENERATE_DRAFT_H
#define QN_GENERATE_DRAFT_H

#include "generate/guess.h"
#include "generate/reply.h"
#include "nn/batch.h"

typedef struct qn__drafter {
    qn_model *model; /* kept open; NULL: there is none */
    qn__cache cache;
    qn__batch batch;
    int64_t context, vocab; /* of both models the smaller */
    int32_t *best;          /* [sequences] */
    const qn_flag *cancel;
} qn__drafter;

/* One reply's sequence. Zero: nothing has run. */
typedef struct qn__draft {
    qn__sequence sequence;
    int32_t *ids; /* that it ran, and that it is to run */
    size_t n, room;
} qn__draft;

/* For so many sequences of so many positions; `cancel`, which may be NULL, is polled. QN_INVALID:
 * the tokens are not those of the model that checks. */
qn_status qn__drafter_begin(qn__drafter *drafter, qn_model *model, const qn_model *checks,
                            int64_t sequences, int64_t positions, const qn_flag *cancel,
                            qn_error *err);
void qn__drafter_end(qn__drafter *drafter);

void qn__draft_end(qn__draft *draft);

/* A reply that wants guesses, `room` at most. */
typedef struct qn__draft_job {
    qn__draft *draft;
    const qn__reply *reply;
    qn__guesses *guesses; /* which has none yet */
    size_t room;
    bool late; /* set by qn__drafter_run: it has more to run than `most`, and gets no guesses yet */
} qn__draft_job;

/* Fills the guesses of all jobs. Of what was said and has not run, `most` tokens of each run. A
 * reply that does not fit the smaller model gets no guesses. */
qn_status qn__drafter_run(qn__drafter *drafter, qn__draft_job *jobs, size_t n_jobs, int64_t most,
                          qn_error *err);

#endif
