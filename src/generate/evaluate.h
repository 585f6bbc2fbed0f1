/* SPDX-License-Identifier: Apache-2.0
 *
 * What one row of logits says of one token.
 */
#ifndef QN_GENERATE_EVALUATE_H
#define QN_GENERATE_EVALUATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn__row_loss {
    double loss;         /* -log q(id), in nats */
    double against_loss; /* -log p(id) */
    double kl;           /* KL(p || q) */
    bool same_top;
} qn__row_loss;

/* q, p: logits [vocab]. p NULL: of q alone. */
qn__row_loss qn__row_measure(const float *p, const float *q, size_t vocab, int32_t id);

#endif
