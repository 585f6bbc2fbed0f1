/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax along an axis, the maximum taken off first.
 */
#include "ops/ops.h"

qn_array *qn_softmax(qn_scope *s, qn_array *x, int axis)
{
    x = qn__input(s, x, "softmax");
    axis = x ? qn__axis(s, "softmax", x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    if (!qn__is_float((qn_dtype)x->dtype))
        x = qn_cast(s, x, QN_F32);
    if (axis != x->ndim - 1) {
        qn_array *y = qn_softmax(s, qn_swap_axes(s, x, axis, -1), -1);
        return qn_swap_axes(s, y, axis, -1);
    }
    qn_dtype type = (qn_dtype)x->dtype;
    x = qn_contiguous(s, qn_cast(s, x, qn__dtype_compute(type)));
    if (qn__is_poison(s, x))
        return qn__poison(s);
    qn_array *y = qn__record(s, QN__OP_SOFTMAX, (qn_dtype)x->dtype, x->ndim, x->shape, 1, &x, NULL);
    return qn_cast(s, y, type);
}

static qn_array *decompose_softmax(qn_scope *s, const qn_array *node)
{
    qn_array *x = node->in[0];
    qn_array *e = qn_exp(s, qn_subtract(s, x, qn_stop_gradient(s, qn_max(s, x, -1, true))));
    return qn_divide(s, e, qn_sum(s, e, -1, true));
}

/* y (t - sum(y t)): the same for cotangent and tangent */
static qn_array *softmax_slope(qn_scope *s, const qn_array *node, qn_array *t)
{
    qn_array *y = qn_softmax(s, node->in[0], -1);
    qn_array *mean = qn_sum(s, qn_multiply(s, y, t), -1, true);
    return qn_multiply(s, y, qn_subtract(s, t, mean));
}

static void vjp_softmax(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                        qn_array **grads)
{
    (void)want;
    grads[0] = softmax_slope(s, node, ct);
}

static qn_array *jvp_softmax(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return softmax_slope(s, node, tangents[0]);
}

const qn__op_def qn__softmax_op = {.name = "softmax",
                                   .class = QN__KERNEL,
                                   .decompose = decompose_softmax,
                                   .vjp = vjp_softmax,
                                   .jvp = jvp_softmax};
