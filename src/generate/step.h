/* SPDX-License-Identifier: Apache-2.0
 *
 * A step: a batch of tokens through a model, and what is drawn behind its outputs. It is enqueued,
 * and read when its tokens are wanted; where the device runs behind what the host enqueues, the
 * next one is enqueued before that, on tokens that nobody has seen yet (qn__batch_give).
 */
#ifndef QN_GENERATE_STEP_H
#define QN_GENERATE_STEP_H

#include "generate/draws.h"
#include "generate/model.h"

/* Zero: none. */
typedef struct qn__model_step {
    qn_scope *scope;   /* its graph, while that is needed */
    qn_array *logits;  /* [1, n_outputs, V], the scope's, where they are kept */
    qn_array *drawn;   /* i32 [n_outputs], retained; NULL: it has no outputs */
    int64_t n_outputs; /* of the batch */
    double begun;      /* seconds of the clock */
    /* Where it has outputs, what the host wrote for it, retained: a device may write the next
     * step's while it runs, to other places. Some may be NULL. */
    qn_array *written[QN__DRAWS_WRITTEN + 1];
} qn__model_step;

/* Enqueues the batch, whose positions count then, and the draws of its outputs. `keeps_logits`:
 * they are evaluated, too. Where the device does not run ahead it waits, and an error is this
 * call's. On failure there is no step, and the batch is given up. */
qn_status qn__model_step_enqueue(qn__model_step *step, const qn_model *model, qn__batch *batch,
                                 const qn__draws *draws, bool keeps_logits, const qn_flag *cancel,
                                 qn_error *err);

/* Whether it was enqueued, and not ended. */
bool qn__model_step_is_under_way(const qn__model_step *step);

/* Waits for the step; drawn [n_outputs] receives its tokens, each -1 where none could be drawn. */
qn_status qn__model_step_read(const qn__model_step *step, qn_device *device, int32_t *drawn,
                              qn_error *err);

/* Whether a step may be enqueued behind it before it is read: its graph is forgotten, or the next
 * one would copy the cache, which both refer to. */
bool qn__model_step_can_be_followed(const qn__model_step *step, const qn_model *model);

/* Ends its scope, where its draws are all that is wanted of it. The step before is to be ended
 * then, not earlier: so the step behind next finds its buffers where this one's before were, and
 * two steps that take turns are all that a device has to keep ready. */
void qn__model_step_forget_graph(qn__model_step *step);

/* Gives up all of it; it may still run. */
void qn__model_step_end(qn__model_step *step);

#endif
