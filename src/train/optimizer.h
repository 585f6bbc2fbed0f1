/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step does with gradients. Each optimiser keeps moments beside a parameter: m, and Adam and
 * AdamW v, too.
 *
 *     AdamW  m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, and with both divided by 1 - b^step,
 *            p = p (1 - lr decay) - lr m / (sqrt(v) + eps)         (arXiv:1711.05101)
 *     Adam   the same of g + decay p, without the factor of p      (arXiv:1412.6980)
 *     SGD    m = b1 m + g + decay p, p = p - lr m
 *     Lion   p = p (1 - lr decay) - lr sign(b1 m + (1 - b1) g), m = b2 m + (1 - b2) g
 *                                                                  (arXiv:2302.06675)
 */
#ifndef QN_TRAIN_OPTIMIZER_H
#define QN_TRAIN_OPTIMIZER_H

#include "quern/train.h"

typedef struct qn__optimizer {
    qn_optimizer kind;
    double learning_rate, beta1, beta2, eps, decay;
    int64_t step; /* 1 for the first */
} qn__optimizer;

enum { QN__OPTIMIZER_ARRAYS = 3 }; /* a parameter and its moments at most: p, m, v */

int qn__optimizer_arrays(qn_optimizer kind);

/* Records the step of one parameter, state[p, m, v], with gradient g, all of one shape: next[].
 * State is f32 or, rounded each time, another float; g is f32. The
 * coefficients are numbers of the graph, so that others make no new plan. */
void qn__optimizer_record(qn_scope *s, const qn__optimizer *o, qn_array *const *state, qn_array *g,
                          qn_array **next);

/* The factor that brings the norm of n gradients, taken as one, down to `most`; 1 where it is not
 * above. As PyTorch's clip_grad_norm_. */
qn_array *qn__clip_factor(qn_scope *s, qn_array *const *gradients, int n, double most);

#endif
