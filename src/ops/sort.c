/* SPDX-License-Identifier: Apache-2.0
 *
 * Sorting: one operation gives the order of each row, everything else gathers by it, so that
 * gradients come from the gather.
 */
#include "ops/ops.h"

static qn_array *argsort(qn_scope *s, const char *name, qn_array *x, int axis, bool descending)
{
    x = qn__input(s, x, name);
    axis = x ? qn__axis(s, name, x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    if (x->layout || x->shape[axis] > INT32_MAX)
        return qn__op_fail(s, name, x, NULL, "packed, or longer than 2^31 - 1");
    x = qn_contiguous(s, qn_swap_axes(s, x, axis, -1));
    if (qn__is_poison(s, x))
        return x;
    qn__argsort_params params = {descending};
    qn_array *y = qn__record(s, QN__OP_ARGSORT, QN_I32, x->ndim, x->shape, 1, &x, &params);
    return axis == x->ndim - 1 ? y : qn_swap_axes(s, y, axis, -1);
}

qn_array *qn_argsort(qn_scope *s, qn_array *x, int axis, bool descending)
{
    return argsort(s, "argsort", x, axis, descending);
}

qn_array *qn_sort(qn_scope *s, qn_array *x, int axis, bool descending)
{
    return qn_take_along(s, x, argsort(s, "sort", x, axis, descending), axis);
}

/* A whole sort: no order within the parts is promised, so one is as good. */
static bool within(qn_scope *s, const char *name, qn_array *x, int axis, int64_t kth)
{
    x = qn__input(s, x, name);
    axis = x ? qn__axis(s, name, x, axis) : -1;
    if (axis < 0)
        return false;
    if (kth < -x->shape[axis] || kth >= x->shape[axis]) {
        qn__op_fail(s, name, x, NULL, "the element to part at lies outside of the axis");
        return false;
    }
    return true;
}

qn_array *qn_partition(qn_scope *s, qn_array *x, int64_t kth, int axis)
{
    return within(s, "partition", x, axis, kth) ? qn_sort(s, x, axis, false) : qn__poison(s);
}

qn_array *qn_argpartition(qn_scope *s, qn_array *x, int64_t kth, int axis)
{
    return within(s, "argpartition", x, axis, kth) ? qn_argsort(s, x, axis, false) : qn__poison(s);
}

qn_status qn_topk(qn_scope *s, qn_array *x, int64_t k, int axis, qn_array **values,
                  qn_array **indices)
{
    qn_array *first = qn__poison(s), *in = qn__input(s, x, "topk");
    int at = in ? qn__axis(s, "topk", in, axis) : -1;
    if (at >= 0 && (k < 0 || k > in->shape[at]))
        qn__op_fail(s, "topk", in, NULL, "k is larger than the axis");
    else if (at >= 0)
        first = qn_slice(s, argsort(s, "topk", in, at, true), at, 0, k, 1);
    if (values)
        *values = at >= 0 ? qn_take_along(s, in, first, at) : first;
    if (indices)
        *indices = first;
    return qn_scope_status(s);
}

static void vjp_argsort(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                        qn_array **grads)
{
    (void)s, (void)node, (void)ct, (void)want, (void)grads;
}

static qn_array *jvp_argsort(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    (void)s, (void)node, (void)tangents;
    return NULL;
}

const qn__op_def qn__argsort_op = {.name = "argsort",
                                   .class = QN__KERNEL,
                                   .params_size = sizeof(qn__argsort_params),
                                   .vjp = vjp_argsort,
                                   .jvp = jvp_argsort};
