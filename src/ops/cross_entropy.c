/* SPDX-License-Identifier: Apache-2.0
 *
 * Cross-entropy of logits against targets, by log-sum-exp: logsumexp(x) - x[target].
 */
#include "ops/ops.h"

qn_array *qn_cross_entropy(qn_scope *s, qn_array *logits, qn_array *targets)
{
    logits = qn__input(s, logits, "cross_entropy");
    targets = logits ? qn__input(s, targets, "cross_entropy") : NULL;
    if (!targets)
        return qn__poison(s);
    if (!qn__one_a_row(targets, logits) || qn__is_float((qn_dtype)targets->dtype))
        return qn__op_fail(s, "cross_entropy", logits, targets,
                           "logits must be [..., V], targets integers [...]");
    qn_array *in[] = {qn_cast(s, logits, qn__dtype_compute((qn_dtype)logits->dtype)), targets};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__record(s, QN__OP_CROSS_ENTROPY, (qn_dtype)in[0]->dtype, targets->ndim,
                      targets->shape, 2, in, NULL);
}

static qn_array *decompose_cross_entropy(qn_scope *s, const qn_array *node)
{
    qn_array *x = node->in[0];
    return qn_subtract(s, qn_logsumexp(s, x, -1, false), qn_take_along_last(s, x, node->in[1]));
}

const qn__op_def qn__cross_entropy_op = {
    .name = "cross_entropy", .class = QN__KERNEL, .decompose = decompose_cross_entropy};
