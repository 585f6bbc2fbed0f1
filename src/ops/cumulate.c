/* SPDX-License-Identifier: Apache-2.0
 *
 * Running sums, products, maxima and minima. The nodes work along the last axis of a row-major
 * array; the constructor brings the wanted one there. Sums have derivatives of their own, the
 * others those of the decomposition: log2(n) steps, each combining with the element 1, 2, 4 ...
 * places before.
 */
#include "ops/ops.h"

static qn_dtype running_type(qn__cumulation what, qn_dtype type)
{
    return what == QN__CUMSUM || what == QN__CUMPROD ? qn__sum_type(type) : type;
}

static qn_array *cumulate(qn_scope *s, qn__cumulation what, qn_array *x, int axis, bool reverse,
                          bool exclusive)
{
    static const char *const names[] = {"cumsum", "cumprod", "cummax", "cummin"};
    x = qn__input(s, x, names[what]);
    axis = x ? qn__axis(s, names[what], x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    if (x->layout)
        return qn__op_fail(s, names[what], x, NULL, "packed");
    qn_dtype type = running_type(what, (qn_dtype)x->dtype);
    x = qn_cast(s, x, type);
    x = qn_contiguous(s, qn_swap_axes(s, x, axis, -1));
    if (qn__is_poison(s, x))
        return x;
    qn__cumulate_params params = {what, reverse, exclusive};
    qn_array *y = qn__record(s, what == QN__CUMSUM ? QN__OP_CUMSUM : QN__OP_CUMULATE, type, x->ndim,
                             x->shape, 1, &x, &params);
    return axis == x->ndim - 1 ? y : qn_swap_axes(s, y, axis, -1);
}

qn_array *qn_cumsum(qn_scope *s, qn_array *x, int axis, bool reverse, bool exclusive)
{
    return cumulate(s, QN__CUMSUM, x, axis, reverse, exclusive);
}

qn_array *qn_cumprod(qn_scope *s, qn_array *x, int axis, bool reverse, bool exclusive)
{
    return cumulate(s, QN__CUMPROD, x, axis, reverse, exclusive);
}

qn_array *qn_cummax(qn_scope *s, qn_array *x, int axis, bool reverse)
{
    return cumulate(s, QN__CUMMAX, x, axis, reverse, false);
}

qn_array *qn_cummin(qn_scope *s, qn_array *x, int axis, bool reverse)
{
    return cumulate(s, QN__CUMMIN, x, axis, reverse, false);
}

static qn_array *combine(qn_scope *s, int what, qn_array *a, qn_array *b)
{
    switch (what) {
    case QN__CUMSUM: return qn_add(s, a, b);
    case QN__CUMPROD: return qn_multiply(s, a, b);
    case QN__CUMMAX: return qn_maximum(s, a, b);
    default: return qn_minimum(s, a, b);
    }
}

static qn_array *decompose_cumulate(qn_scope *s, const qn_array *node)
{
    const qn__cumulate_params *p = node->params;
    int64_t n = node->shape[node->ndim - 1];
    qn_dtype type = (qn_dtype)node->dtype, wide = qn__dtype_compute(type);
    qn_array *y = qn_cast(s, node->in[0], wide);
    if (p->reverse)
        y = qn_flip(s, y, -1);
    for (int64_t d = 1; d < n; d *= 2) {
        qn_array *both =
            combine(s, p->cumulation, qn_slice(s, y, -1, 0, n - d, 1), qn_slice(s, y, -1, d, n, 1));
        qn_array *parts[] = {qn_slice(s, y, -1, 0, d, 1), both};
        y = qn_concatenate(s, parts, 2, -1);
    }
    if (p->exclusive && n) {
        int64_t shape[QN_MAX_NDIM];
        memcpy(shape, node->shape, sizeof shape);
        shape[node->ndim - 1] = 1;
        qn_array *first = qn_full(s, wide, node->ndim, shape, p->cumulation == QN__CUMPROD);
        qn_array *parts[] = {first, qn_slice(s, y, -1, 0, n - 1, 1)};
        y = qn_concatenate(s, parts, 2, -1);
    }
    if (p->reverse)
        y = qn_flip(s, y, -1);
    return qn_cast(s, y, type);
}

/* The cotangents are summed from the other end. */
static void vjp_cumsum(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                       qn_array **grads)
{
    (void)want;
    const qn__cumulate_params *p = node->params;
    grads[0] = qn_cumsum(s, ct, -1, !p->reverse, p->exclusive);
}

static qn_array *jvp_cumsum(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    const qn__cumulate_params *p = node->params;
    return qn_cumsum(s, tangents[0], -1, p->reverse, p->exclusive);
}

const qn__op_def qn__cumsum_op = {.name = "cumsum",
                                  .class = QN__KERNEL,
                                  .params_size = sizeof(qn__cumulate_params),
                                  .decompose = decompose_cumulate,
                                  .vjp = vjp_cumsum,
                                  .jvp = jvp_cumsum};
const qn__op_def qn__cumulate_op = {.name = "cumulate",
                                    .class = QN__KERNEL,
                                    .params_size = sizeof(qn__cumulate_params),
                                    .decompose = decompose_cumulate};
