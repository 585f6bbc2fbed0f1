/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions inside.
 */
#ifndef QN_GENERATE_SESSION_H
#define QN_GENERATE_SESSION_H

#include "generate/draft.h"
#include "generate/step.h"

struct qn_session {
    qn_model *model;
    qn__cache cache;
    qn__sequence *sequences; /* [n_sequences] */
    qn__batch batch;
    int64_t length; /* tokens taken; the sequences have so many positions, or fewer: see catch_up */
    int64_t context; /* tokens that it takes */
    int64_t chunk;
    int64_t n_sequences;
    int32_t *ids; /* [n_sequences, room] */
    int64_t room;
    const qn_flag *cancel;
    void (*progress)(void *user, int64_t done, int64_t total);
    void *progress_user;
    float *logits; /* [n_sequences, vocab] */
    bool has_logits;
    qn__draws draws;
    struct {
        qn__model_step step; /* the one that runs behind the tokens that count, if any */
        int32_t *ids;        /* its tokens, once those before are read */
        void *by;            /* whose it is */
    } ahead;
    qn__drafter drafter; /* of options->draft */
    qn__draft draft;
};

/* Runs the tokens that the cache lacks: a layer had given up what a rewind asked for. */
qn_status qn__session_catch_up(qn_session *session, qn_error *err);

/* Keeps n tokens of each sequence behind those that count; they count when session->length says so.
 */
qn_status qn__session_remember(qn_session *session, const int32_t *ids, int64_t n, qn_error *err);

/* What of the newest `outputs` of a call's tokens is wanted. */
typedef struct qn__wanted {
    int64_t outputs;
    float *logits;  /* [n_sequences, outputs, vocab]; NULL: none */
    int32_t *drawn; /* by session->draws, whose rows are these outputs'; NULL: none. Of one
                       sequence, or of one output each. */
} qn__wanted;

/* Runs n tokens of each sequence, ids [n_sequences, n], and gives what is wanted. */
qn_status qn__session_run(qn_session *session, const int32_t *ids, size_t n,
                          const qn__wanted *wanted, qn_error *err);

/* Sets session->draws for what is drawn behind the next token of each sequence (more is 0), or
 * behind the one after it (1), which is being drawn: sequence b's at place b of what they are
 * given. Fails where what would be drawn is not wanted. */
typedef qn_status qn__set_draws(void *by, qn_session *session, int64_t more, qn_error *err);

/* Runs one token of each sequence and gives what is drawn behind them. Who comes back with these,
 * as the same `by`, finds their step under way. */
qn_status qn__session_step(qn_session *session, const int32_t *ids, qn__set_draws *set, void *by,
                           int32_t *drawn, qn_error *err);

/* Gives up a step that was enqueued ahead, and positions that do not count. */
void qn__session_settle(qn_session *session);

#endif
