/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions. The node always reduces the last axes of its input: the constructor brings the wanted
 * one there as a view. The order of the sum depends on the reduced length only.
 */
#include "ops/ops.h"

static qn_dtype reduced_type(qn__reduction reduction, qn_dtype type)
{
    if (reduction == QN__ARGMAX)
        return QN_I32;
    if (reduction == QN__LOGSUMEXP)
        return qn__is_float(type) ? qn__dtype_compute(type) : QN_F32;
    return reduction == QN__SUM ? qn__sum_type(type) : type;
}

/* Brings the axis to reduce to the end: as a view, or the whole array as one row, so that the order
 * of a sum over all axes does not depend on how they are cut. */
static qn_array *axis_last(qn_scope *s, qn_array *x, int axis)
{
    if (axis == QN_ALL_AXES)
        return qn_reshape(s, x, 1, (const int64_t[]){-1});
    if (axis == x->ndim - 1)
        return x;
    int order[QN_MAX_NDIM];
    for (int i = 0, k = 0; i < x->ndim; i++)
        if (i != axis)
            order[k++] = i;
    order[x->ndim - 1] = axis;
    return qn_transpose(s, x, order);
}

static qn_array *reduce(qn_scope *s, qn__reduction reduction, qn_array *x, int axis, bool keep)
{
    static const char *const names[] = {"sum", "max", "logsumexp", "argmax"};
    const char *name = names[reduction];
    x = qn__input(s, x, name);
    if (!x)
        return qn__poison(s);
    if (axis != QN_ALL_AXES && (axis = qn__axis(s, name, x, axis)) < 0)
        return qn__poison(s);
    int64_t reduced = axis == QN_ALL_AXES ? qn__elements(x) : x->shape[axis];
    if ((reduced == 0 && reduction != QN__SUM) || x->layout)
        return qn__op_fail(s, name, x, NULL, "nothing to reduce, or packed");
    int64_t kept[QN_MAX_NDIM];
    for (int i = 0; i < x->ndim; i++)
        kept[i] = axis == QN_ALL_AXES || i == axis ? 1 : x->shape[i];
    int ndim = x->ndim;
    qn_dtype type = reduced_type(reduction, (qn_dtype)x->dtype);
    if (reduction == QN__LOGSUMEXP || reduction == QN__SUM)
        x = qn_cast(s, x, type);
    x = qn__is_poison(s, x) ? x : axis_last(s, x, axis);
    if (qn__is_poison(s, x))
        return qn__poison(s);
    qn__reduce_params params = {reduction};
    qn_array *y = qn__record(s, QN__OP_REDUCE, type, x->ndim - 1, x->shape, 1, &x, &params);
    return keep ? qn_reshape(s, y, ndim, kept) : y;
}

qn_array *qn_sum(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    return reduce(s, QN__SUM, x, axis, keep_dims);
}

qn_array *qn_max(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    return reduce(s, QN__MAX, x, axis, keep_dims);
}

/* Of 16-bit floats: computed in f32, rounded once. */
qn_array *qn_logsumexp(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    x = qn__input(s, x, "logsumexp");
    if (!x)
        return qn__poison(s);
    qn_array *y = reduce(s, QN__LOGSUMEXP, x, axis, keep_dims);
    return qn__is_float((qn_dtype)x->dtype) ? qn_cast(s, y, (qn_dtype)x->dtype) : y;
}

qn_array *qn_argmax(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    return reduce(s, QN__ARGMAX, x, axis, keep_dims);
}

/* Integers through their complement -1 - x: -x wraps for the least one, and for unsigned types. */
qn_array *qn_min(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    x = qn__input(s, x, "min");
    if (!x)
        return qn__poison(s);
    if (x->dtype == QN_BOOL)
        return qn_logical_not(s, qn_max(s, qn_logical_not(s, x), axis, keep_dims));
    if (!qn__is_float((qn_dtype)x->dtype)) {
        qn_array *ones = qn__scalar_like(s, x, -1);
        return qn_subtract(s, ones, qn_max(s, qn_subtract(s, ones, x), axis, keep_dims));
    }
    return qn_negative(s, qn_max(s, qn_negative(s, x), axis, keep_dims));
}

qn_array *qn_mean(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    x = qn__input(s, x, "mean");
    if (!x)
        return qn__poison(s);
    int at = axis == QN_ALL_AXES ? 0 : qn__axis(s, "mean", x, axis);
    if (at < 0)
        return qn__poison(s);
    double n = (double)(axis == QN_ALL_AXES ? qn__elements(x) : x->shape[at]);
    qn_array *sum = qn_sum(s, x, axis, keep_dims);
    if (qn__is_poison(s, sum))
        return sum;
    if (!qn__is_float((qn_dtype)sum->dtype))
        sum = qn_cast(s, sum, QN_F32);
    return qn_divide(s, sum, qn__scalar_like(s, sum, n));
}

/* As argmax of what is smallest where x is largest. */
qn_array *qn_argmin(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    x = qn__input(s, x, "argmin");
    if (!x)
        return qn__poison(s);
    bool real = qn__is_float((qn_dtype)x->dtype);
    return qn_argmax(s, real ? qn_negative(s, x) : qn_bitwise_not(s, x), axis, keep_dims);
}

qn_array *qn_any(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    qn_array *n = qn_sum(s, qn_cast(s, x, QN_BOOL), axis, keep_dims);
    return qn_not_equal(s, n, qn_scalar(s, QN_I32, 0));
}

qn_array *qn_all(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    return qn_logical_not(s, qn_any(s, qn_logical_not(s, x), axis, keep_dims));
}

/* Halves are multiplied until one element is left: the order depends on the length only, and the
 * gradient is right where elements are 0. 16-bit floats are computed in f32, rounded once. */
qn_array *qn_prod(qn_scope *s, qn_array *x, int axis, bool keep_dims)
{
    x = qn__input(s, x, "prod");
    if (!x || (axis != QN_ALL_AXES && (axis = qn__axis(s, "prod", x, axis)) < 0))
        return qn__poison(s);
    qn_dtype type = reduced_type(QN__SUM, (qn_dtype)x->dtype), wide = qn__dtype_compute(type);
    int64_t kept[QN_MAX_NDIM];
    int ndim = x->ndim;
    for (int i = 0; i < ndim; i++)
        kept[i] = axis == QN_ALL_AXES || i == axis ? 1 : x->shape[i];
    qn_array *y = axis_last(s, qn_cast(s, x, wide), axis);
    while (!qn__is_poison(s, y) && y->shape[y->ndim - 1] > 1) {
        int64_t n = y->shape[y->ndim - 1], half = n / 2;
        qn_array *product =
            qn_multiply(s, qn_slice(s, y, -1, 0, half, 1), qn_slice(s, y, -1, half, 2 * half, 1));
        qn_array *parts[] = {product, qn_slice(s, y, -1, 2 * half, n, 1)};
        y = n % 2 ? qn_concatenate(s, parts, 2, -1) : product;
    }
    if (qn__is_poison(s, y))
        return y;
    if (y->shape[y->ndim - 1] == 0)
        y = qn_ones(s, wide, y->ndim - 1, y->shape);
    else
        y = qn_squeeze(s, y, -1);
    y = qn_cast(s, y, type);
    return keep_dims ? qn_reshape(s, y, ndim, kept) : y;
}

qn_array *qn_var(qn_scope *s, qn_array *x, int axis, int64_t ddof, bool keep_dims)
{
    x = qn__input(s, x, "var");
    int at = !x ? -1 : axis == QN_ALL_AXES ? 0 : qn__axis(s, "var", x, axis);
    if (at < 0)
        return qn__poison(s);
    double n = (double)(axis == QN_ALL_AXES ? qn__elements(x) : x->shape[at]);
    qn_dtype type = qn__is_float((qn_dtype)x->dtype) ? (qn_dtype)x->dtype : QN_F32;
    x = qn_cast(s, x, qn__dtype_compute(type));
    qn_array *off = qn_square(s, qn_subtract(s, x, qn_mean(s, x, axis, true)));
    qn_array *sum = qn_sum(s, off, axis, keep_dims);
    return qn_cast(s, qn_divide(s, sum, qn__scalar_like(s, x, n - (double)ddof)), type);
}

/* The axes become one, the last; what `reduce_one` makes of it depends on its length only. */
qn_array *qn_over_axes(qn_scope *s, qn_reduction *reduce_one, qn_array *x, const int *axes, int n,
                       bool keep_dims)
{
    x = qn__input(s, x, "over_axes");
    if (!x)
        return qn__poison(s);
    unsigned reduced = 0;
    for (int i = 0; i < n; i++) {
        int axis = qn__axis(s, "over_axes", x, axes[i]);
        if (axis < 0)
            return qn__poison(s);
        if (reduced & 1u << axis)
            return qn__op_fail(s, "over_axes", x, NULL, "an axis is named twice");
        reduced |= 1u << axis;
    }
    if (!n)
        return qn__op_fail(s, "over_axes", x, NULL, "no axis is named");
    int order[QN_MAX_NDIM], k = 0;
    int64_t shape[QN_MAX_NDIM], kept[QN_MAX_NDIM], length = 1;
    for (int i = 0; i < x->ndim; i++) {
        kept[i] = reduced & 1u << i ? 1 : x->shape[i];
        if (!(reduced & 1u << i)) {
            shape[k] = x->shape[i];
            order[k++] = i;
        }
    }
    for (int i = 0, last = k; i < x->ndim; i++)
        if (reduced & 1u << i) {
            length *= x->shape[i];
            order[last++] = i;
        }
    shape[k] = length;
    int ndim = x->ndim;
    qn_array *y = qn_reshape(s, qn_transpose(s, x, order), k + 1, shape);
    y = reduce_one(s, y, -1, false);
    return keep_dims ? qn_reshape(s, y, ndim, kept) : y;
}

/* ---- derivatives: y [...], x [..., n]
 * ------------------------------------------------------------------ */

static qn_array *spread(qn_scope *s, qn_array *y, const qn_array *x)
{
    return qn_broadcast_to(s, qn_expand_dims(s, y, -1), x->ndim, x->shape);
}

/* The weights of each element in the reduction's derivative; NULL: all ones. */
static qn_array *slopes(qn_scope *s, const qn_array *node)
{
    const qn__reduce_params *p = node->params;
    qn_array *x = node->in[0];
    if (p->reduction == QN__LOGSUMEXP)
        return qn_softmax(s, x, -1);
    if (p->reduction == QN__MAX) { /* ties share */
        qn_array *hit = qn_equal(s, x, spread(s, qn_max(s, x, -1, false), x));
        hit = qn_cast(s, hit, (qn_dtype)x->dtype);
        return qn_divide(s, hit, spread(s, qn_sum(s, hit, -1, false), x));
    }
    return NULL;
}

static void vjp_reduce(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                       qn_array **grads)
{
    (void)want;
    const qn__reduce_params *p = node->params;
    if (p->reduction == QN__ARGMAX)
        return;
    qn_array *g = spread(s, ct, node->in[0]), *w = slopes(s, node);
    grads[0] = w ? qn_multiply(s, g, w) : g;
}

static qn_array *jvp_reduce(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    const qn__reduce_params *p = node->params;
    if (p->reduction == QN__ARGMAX)
        return NULL;
    qn_array *w = slopes(s, node);
    return qn_sum(s, w ? qn_multiply(s, tangents[0], w) : tangents[0], -1, false);
}

const qn__op_def qn__reduce_op = {.name = "reduce",
                                  .class = QN__KERNEL,
                                  .params_size = sizeof(qn__reduce_params),
                                  .vjp = vjp_reduce,
                                  .jvp = jvp_reduce};
