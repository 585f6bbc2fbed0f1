/* SPDX-License-Identifier: Apache-2.0
 *
 * What turns logits into logarithms of probabilities.
 */
#ifndef QN_GENERATE_LOGPROBS_H
#define QN_GENERATE_LOGPROBS_H

#include "quern/model.h"

/* log(sum(exp(logits))), which a logit less is its token's log probability. QN_INVALID: they are no
 * numbers. */
qn_status qn__log_total(const qn_device *device, const float *logits, size_t vocab, double *total,
                        qn_error *err);

#endif
