/* SPDX-License-Identifier: Apache-2.0
 *
 * NAME(x) along the last axis. So far each row loses its mean: write here what it computes.
 */
#include "ops/ops.h"

/* Integers become f32; 16-bit floats are computed in f32 and rounded at the end. */
qn_array *qn_NAME(qn_scope *s, qn_array *x)
{
    x = qn__input(s, x, "NAME");
    if (!x)
        return qn__poison(s);
    if (!x->ndim)
        return qn__op_fail(s, "NAME", x, NULL, "there is no last axis");
    qn_dtype type = qn__is_float((qn_dtype)x->dtype) ? (qn_dtype)x->dtype : QN_F32;
    x = qn_contiguous(s, qn_cast(s, x, qn__dtype_compute(type)));
    if (qn__is_poison(s, x))
        return qn__poison(s);
    qn_array *y = qn__record(s, QN__OP_ID, (qn_dtype)x->dtype, x->ndim, x->shape, 1, &x, NULL);
    return qn_cast(s, y, type);
}

/* The same with simpler operations: what the operation means, what runs on devices without a kernel, and
 * where its derivatives come from. A kernel is added in docs/howto/add-kernel.md. */
static qn_array *decompose_NAME(qn_scope *s, const qn_array *node)
{
    qn_array *x = node->in[0];
    return qn_subtract(s, x, qn_mean(s, x, -1, true));
}

const qn__op_def qn__NAME_op = {
    .name = "NAME", .class = QN__KERNEL, .decompose = decompose_NAME};
