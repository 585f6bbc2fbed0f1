/* SPDX-License-Identifier: Apache-2.0
 *
 * Views: other shapes, orders and parts of the same storage. They record a node so that gradients
 * can follow them, but evaluating one costs nothing: readers use its strides.
 */
#include "ops/ops.h"

/* ---- reshape
 * ---------------------------------------------------------------------------------------- */

/* Strides that show x's elements, in row-major order, under a new shape; false when none do. Works
 * through runs of axes of x that are contiguous with each other. */
static bool reshape_strides(const qn_array *x, int ndim, const int64_t *shape, int64_t *stride)
{
    int from = 0, to = 0;
    while (from < x->ndim || to < ndim) {
        int from_end = from, to_end = to;
        int64_t n_from = from < x->ndim ? x->shape[from_end++] : 1;
        int64_t n_to = to < ndim ? shape[to_end++] : 1;
        while (n_from != n_to) {
            if (n_from < n_to) {
                if (from_end == x->ndim)
                    return false;
                n_from *= x->shape[from_end++];
            } else {
                if (to_end == ndim)
                    return false;
                n_to *= shape[to_end++];
            }
        }
        int64_t step = 1; /* of the innermost axis of the run that is longer than 1 */
        int last = from_end - 1;
        while (last > from && x->shape[last] == 1)
            last--;
        if (last >= from)
            step = x->stride[last];
        int64_t expect = step;
        for (int i = last; i >= from && i >= 0; i--) {
            if (x->shape[i] != 1 && x->stride[i] != expect)
                return false;
            expect *= x->shape[i];
        }
        for (int i = to_end - 1; i >= to; i--) {
            stride[i] = step;
            step *= shape[i];
        }
        from = from_end;
        to = to_end;
    }
    return true;
}

qn_array *qn_reshape(qn_scope *s, qn_array *x, int ndim, const int64_t *shape)
{
    x = qn__input(s, x, "reshape");
    if (!x)
        return qn__poison(s);
    if (ndim < 0 || ndim > QN_MAX_NDIM || x->layout)
        return qn__op_fail(s, "reshape", x, NULL, "too many axes, or packed");
    int64_t full[QN_MAX_NDIM], stride[QN_MAX_NDIM], n = 1;
    int unknown = -1;
    for (int i = 0; i < ndim; i++) {
        full[i] = shape[i];
        if (shape[i] == -1 && unknown < 0)
            unknown = i;
        else if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n))
            return qn__op_fail(s, "reshape", x, NULL, "not a shape");
    }
    int64_t have = qn__elements(x);
    if (unknown >= 0) {
        full[unknown] = n ? have / n : 0;
        n *= full[unknown];
    }
    if (n != have) {
        qn_array wanted = {.ndim = (uint8_t)ndim, .dtype = x->dtype};
        memcpy(wanted.shape, full, (size_t)ndim * sizeof *full);
        return qn__op_fail(s, "reshape", x, &wanted, "element counts differ");
    }
    if (x->ndim == ndim && !memcmp(x->shape, full, (size_t)ndim * sizeof *full))
        return x;
    if (x->flags & QN__CONTIGUOUS || have == 0) {
        qn__row_major(ndim, full, stride);
    } else if (!reshape_strides(x, ndim, full, stride)) {
        x = qn_contiguous(s, x);
        if (qn__is_poison(s, x))
            return x;
        qn__row_major(ndim, full, stride);
    }
    return qn__record_view(s, QN__OP_RESHAPE, x, ndim, full, stride, x->offset, NULL);
}

qn_array *qn_expand_dims(qn_scope *s, qn_array *x, int axis)
{
    x = qn__input(s, x, "expand_dims");
    if (!x)
        return qn__poison(s);
    int at = axis < 0 ? axis + x->ndim + 1 : axis;
    if (at < 0 || at > x->ndim || x->ndim == QN_MAX_NDIM)
        return qn__op_fail(s, "expand_dims", x, NULL, "no such place for an axis");
    int64_t shape[QN_MAX_NDIM];
    for (int i = 0, k = 0; i <= x->ndim; i++)
        shape[i] = i == at ? 1 : x->shape[k++];
    return qn_reshape(s, x, x->ndim + 1, shape);
}

qn_array *qn_squeeze(qn_scope *s, qn_array *x, int axis)
{
    x = qn__input(s, x, "squeeze");
    int at = x ? qn__axis(s, "squeeze", x, axis) : -1;
    if (at < 0)
        return qn__poison(s);
    if (x->shape[at] != 1)
        return qn__op_fail(s, "squeeze", x, NULL, "the axis is longer than 1");
    int64_t shape[QN_MAX_NDIM];
    for (int i = 0, k = 0; i < x->ndim; i++)
        if (i != at)
            shape[k++] = x->shape[i];
    return qn_reshape(s, x, x->ndim - 1, shape);
}

static void vjp_reshape(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                        qn_array **grads)
{
    (void)want;
    grads[0] = qn_reshape(s, ct, node->in[0]->ndim, node->in[0]->shape);
}

static qn_array *jvp_reshape(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return qn_reshape(s, tangents[0], node->ndim, node->shape);
}

const qn__op_def qn__reshape_op = {
    .name = "reshape", .class = QN__VIEW, .vjp = vjp_reshape, .jvp = jvp_reshape};

/* ---- transpose
 * ---------------------------------------------------------------------------------------- */

qn_array *qn_transpose(qn_scope *s, qn_array *x, const int *order)
{
    x = qn__input(s, x, "transpose");
    if (!x)
        return qn__poison(s);
    qn__transpose_params params = {{0}};
    int64_t shape[QN_MAX_NDIM], stride[QN_MAX_NDIM];
    unsigned seen = 0;
    for (int i = 0; i < x->ndim; i++) {
        int from = order ? order[i] : x->ndim - 1 - i;
        if (from < 0)
            from += x->ndim;
        if (from < 0 || from >= x->ndim || seen & 1u << from)
            return qn__op_fail(s, "transpose", x, NULL, "the order is not a permutation");
        seen |= 1u << from;
        params.order[i] = from;
        shape[i] = x->shape[from];
        stride[i] = x->stride[from];
    }
    return qn__record_view(s, QN__OP_TRANSPOSE, x, x->ndim, shape, stride, x->offset, &params);
}

qn_array *qn_swap_axes(qn_scope *s, qn_array *x, int a, int b)
{
    x = qn__input(s, x, "swap_axes");
    a = x ? qn__axis(s, "swap_axes", x, a) : -1;
    b = a >= 0 ? qn__axis(s, "swap_axes", x, b) : -1;
    if (b < 0)
        return qn__poison(s);
    int order[QN_MAX_NDIM];
    for (int i = 0; i < x->ndim; i++)
        order[i] = i == a ? b : i == b ? a : i;
    return qn_transpose(s, x, order);
}

static void vjp_transpose(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                          qn_array **grads)
{
    (void)want;
    const qn__transpose_params *p = node->params;
    int back[QN_MAX_NDIM];
    for (int i = 0; i < node->ndim; i++)
        back[p->order[i]] = i;
    grads[0] = qn_transpose(s, ct, back);
}

static qn_array *jvp_transpose(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    const qn__transpose_params *p = node->params;
    return qn_transpose(s, tangents[0], p->order);
}

const qn__op_def qn__transpose_op = {.name = "transpose",
                                     .class = QN__VIEW,
                                     .params_size = sizeof(qn__transpose_params),
                                     .vjp = vjp_transpose,
                                     .jvp = jvp_transpose};

/* ---- broadcast
 * ---------------------------------------------------------------------------------------- */

qn_array *qn_broadcast_to(qn_scope *s, qn_array *x, int ndim, const int64_t *shape)
{
    x = qn__input(s, x, "broadcast_to");
    if (!x)
        return qn__poison(s);
    if (ndim < x->ndim || ndim > QN_MAX_NDIM)
        return qn__op_fail(s, "broadcast_to", x, NULL, "fewer axes wanted than it has");
    int64_t stride[QN_MAX_NDIM] = {0};
    int lead = ndim - x->ndim;
    bool same = !lead;
    for (int i = 0; i < x->ndim; i++) {
        if (x->shape[i] != 1 && x->shape[i] != shape[lead + i])
            return qn__op_fail(s, "broadcast_to", x, NULL, "does not broadcast to that shape");
        same &= x->shape[i] == shape[lead + i];
        stride[lead + i] = x->shape[i] == 1 ? 0 : x->stride[i];
    }
    if (same)
        return x;
    return qn__record_view(s, QN__OP_BROADCAST, x, ndim, shape, stride, x->offset, NULL);
}

static void vjp_broadcast(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                          qn_array **grads)
{
    (void)want;
    grads[0] = qn__unbroadcast(s, ct, node->in[0]);
}

static qn_array *jvp_broadcast(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return qn_broadcast_to(s, tangents[0], node->ndim, node->shape);
}

const qn__op_def qn__broadcast_op = {
    .name = "broadcast_to", .class = QN__VIEW, .vjp = vjp_broadcast, .jvp = jvp_broadcast};

/* ---- slice
 * ---------------------------------------------------------------------------------------------- */

/* Python's rule for one end: negative counts from the end, then clamped. */
static int64_t clamp_end(int64_t at, int64_t n)
{
    if (at < 0)
        at += n;
    return at < 0 ? 0 : at > n ? n : at;
}

/* Python's rule for one end of a slice with a negative step: -1 stands before the first element. */
static int64_t clamp_back(int64_t at, int64_t n)
{
    if (at < 0)
        at += n;
    return at < 0 ? -1 : at >= n ? n - 1 : at;
}

/* The same elements from the other end, then turned round. */
static qn_array *slice_backwards(qn_scope *s, qn_array *x, int axis, int64_t start, int64_t stop,
                                 int64_t step)
{
    int64_t n = x->shape[axis];
    start = clamp_back(start, n);
    stop = clamp_back(stop, n);
    step = step == INT64_MIN ? INT64_MAX : -step;
    int64_t count = start > stop ? (start - stop - 1) / step + 1 : 0;
    int64_t first = count ? start - (count - 1) * step : 0;
    return qn_flip(s, qn_slice(s, x, axis, first, count ? start + 1 : 0, step), axis);
}

qn_array *qn_slice(qn_scope *s, qn_array *x, int axis, int64_t start, int64_t stop, int64_t step)
{
    x = qn__input(s, x, "slice");
    axis = x ? qn__axis(s, "slice", x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    if (step == 0 || x->layout)
        return qn__op_fail(s, "slice", x, NULL, "the step must not be 0, the array plain");
    int64_t n = x->shape[axis];
    if (step < 0)
        return slice_backwards(s, x, axis, start, stop, step);
    start = clamp_end(start, n);
    stop = clamp_end(stop, n);
    int64_t shape[QN_MAX_NDIM], stride[QN_MAX_NDIM];
    memcpy(shape, x->shape, sizeof shape);
    memcpy(stride, x->stride, sizeof stride);
    shape[axis] = stop > start ? (stop - start - 1) / step + 1 : 0;
    if (shape[axis] < 2) { /* a huge step must not meet a multiplication */
        stop = start + shape[axis];
        step = 1;
    }
    if (shape[axis] == n)
        return x;
    stride[axis] *= step;
    qn__slice_params params = {axis, start, stop, step};
    int64_t offset = shape[axis] ? x->offset + start * x->stride[axis] : x->offset;
    return qn__record_view(s, QN__OP_SLICE, x, x->ndim, shape, stride, offset, &params);
}

/* Puts ct back among zeros. */
static qn_array *unslice(qn_scope *s, qn_array *ct, const qn_array *x, const qn__slice_params *p)
{
    int axis = (int)p->axis;
    int64_t start[QN_MAX_NDIM] = {0};
    qn_array *zeros = qn_zeros(s, (qn_dtype)ct->dtype, x->ndim, x->shape);
    if (p->step > 1) {
        qn_array *at = qn_multiply(s, qn_arange(s, QN_I32, ct->shape[axis]),
                                   qn_scalar(s, QN_I32, (double)p->step));
        at = qn_add(s, at, qn_scalar(s, QN_I32, (double)p->start));
        return qn_scatter(s, zeros, at, ct, axis, QN_SCATTER_SET);
    }
    start[axis] = p->start;
    return qn_slice_update(s, zeros, ct, start);
}

static void vjp_slice(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                      qn_array **grads)
{
    (void)want;
    grads[0] = unslice(s, ct, node->in[0], node->params);
}

static qn_array *jvp_slice(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    const qn__slice_params *p = node->params;
    return qn_slice(s, tangents[0], (int)p->axis, p->start, p->stop, p->step);
}

const qn__op_def qn__slice_op = {.name = "slice",
                                 .class = QN__VIEW,
                                 .params_size = sizeof(qn__slice_params),
                                 .vjp = vjp_slice,
                                 .jvp = jvp_slice};

/* ---- flip
 * ------------------------------------------------------------------------------------------------
 */

qn_array *qn_flip(qn_scope *s, qn_array *x, int axis)
{
    x = qn__input(s, x, "flip");
    axis = x ? qn__axis(s, "flip", x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    if (x->layout)
        return qn__op_fail(s, "flip", x, NULL, "packed");
    if (x->shape[axis] < 2)
        return x;
    int64_t stride[QN_MAX_NDIM];
    memcpy(stride, x->stride, sizeof stride);
    stride[axis] = -stride[axis];
    int64_t offset = x->offset + (x->shape[axis] - 1) * x->stride[axis];
    qn__flip_params params = {axis};
    return qn__record_view(s, QN__OP_FLIP, x, x->ndim, x->shape, stride, offset, &params);
}

static void vjp_flip(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                     qn_array **grads)
{
    (void)want;
    grads[0] = qn_flip(s, ct, (int)((const qn__flip_params *)node->params)->axis);
}

static qn_array *jvp_flip(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return qn_flip(s, tangents[0], (int)((const qn__flip_params *)node->params)->axis);
}

const qn__op_def qn__flip_op = {.name = "flip",
                                .class = QN__VIEW,
                                .params_size = sizeof(qn__flip_params),
                                .vjp = vjp_flip,
                                .jvp = jvp_flip};
