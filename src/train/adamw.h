/* SPDX-License-Identifier: Apache-2.0
 *
 * AdamW (arXiv:1711.05101): m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, and with both divided
 * by 1 - b^step, p = p (1 - lr decay) - lr m / (sqrt(v) + eps).
 */
#ifndef QN_TRAIN_ADAMW_H
#define QN_TRAIN_ADAMW_H

#include "quern/ops.h"

typedef struct qn__adamw {
    double learning_rate, beta1, beta2, eps, decay;
    int64_t step; /* 1 for the first */
} qn__adamw;

enum { QN__ADAMW_ARRAYS = 3 }; /* a parameter and what AdamW keeps for it: p, m, v */

/* Records the step of one parameter, state[p, m, v], with gradient g, all of one shape: next[]. The
 * coefficients are numbers of the graph, so that others make no new plan. */
void qn__adamw_record(qn_scope *s, const qn__adamw *o, qn_array *const *state, qn_array *g,
                      qn_array **next);

/* The factor that brings the norm of n gradients, taken as one, down to `most`; 1 where it is not
 * above. As PyTorch's clip_grad_norm_. */
qn_array *qn__clip_factor(qn_scope *s, qn_array *const *gradients, int n, double most);

#endif
