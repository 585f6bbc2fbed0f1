/* SPDX-License-Identifier: Apache-2.0
 *
 * Gathers and scatters by index beyond rows: along any axis, one element an index, N-d indices. All
 * of them become rows along axis 0 (take, scatter_add and the operation SCATTER here) of a reshaped
 * array.
 */
#include "ops/ops.h"

/* Axis `axis` brought to the front; `back` is the order that undoes it. */
static qn_array *axis_first(qn_scope *s, qn_array *x, int axis, int *back)
{
    int order[QN_MAX_NDIM];
    for (int i = 0, k = 1; i < x->ndim; i++)
        if (i != axis)
            order[k++] = i;
    order[0] = axis;
    for (int i = 0; i < x->ndim; i++)
        back[order[i]] = i;
    return axis ? qn_transpose(s, x, order) : x;
}

/* x [V, rest], ids [...], update [ids..., rest] */
static qn_array *scatter_rows(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update,
                              qn_scatter_mode mode)
{
    if (mode == QN_SCATTER_ADD)
        return qn_scatter_add(s, x, ids, update);
    bool fits = !qn__is_float((qn_dtype)ids->dtype) && x->ndim >= 1 && !x->layout &&
                update->ndim == ids->ndim + x->ndim - 1 && mode <= QN_SCATTER_MIN;
    for (int i = 0; fits && i < update->ndim; i++)
        fits = update->shape[i] == (i < ids->ndim ? ids->shape[i] : x->shape[i - ids->ndim + 1]);
    if (!fits)
        return qn__op_fail(s, "scatter", x, update, "update must be as take's result");
    qn_array *in[] = {x, qn__indices(s, ids),
                      qn_contiguous(s, qn_cast(s, update, (qn_dtype)x->dtype))};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    qn__scatter_params params = {mode};
    return qn__record(s, QN__OP_SCATTER, (qn_dtype)x->dtype, x->ndim, x->shape, 3, in, &params);
}

qn_array *qn_scatter(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update, int axis,
                     qn_scatter_mode mode)
{
    x = qn__input(s, x, "scatter");
    ids = x ? qn__input(s, ids, "scatter") : NULL;
    update = ids ? qn__input(s, update, "scatter") : NULL;
    axis = update ? qn__axis(s, "scatter", x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    if (update->ndim != ids->ndim + x->ndim - 1)
        return qn__op_fail(s, "scatter", x, update, "update must be as take's result");
    /* update [before..., ids..., after...] -> [ids..., before..., after...] */
    int order[QN_MAX_NDIM], back[QN_MAX_NDIM];
    for (int i = 0; i < update->ndim; i++)
        order[i] = i < ids->ndim ? axis + i : i < ids->ndim + axis ? i - ids->ndim : i;
    qn_array *y = scatter_rows(s, axis_first(s, x, axis, back), ids,
                               axis ? qn_transpose(s, update, order) : update, mode);
    return axis ? qn_transpose(s, y, back) : y;
}

/* ---- derivatives
 * ----------------------------------------------------------------------------------- */

/* For each update whether it is the last of those with its index, as numbers of ct's type. */
static qn_array *winners(qn_scope *s, const qn_array *node, const qn_array *ct)
{
    qn_array *ids = node->in[1], *u = node->in[2];
    int64_t n = qn__elements(ids), rows = node->shape[0];
    qn_array *turn = qn_arange(s, QN_I32, n), *flat = qn_reshape(s, ids, 1, &n);
    qn_array *last = scatter_rows(s, qn_full(s, QN_I32, 1, &rows, -1), flat, turn, QN_SCATTER_MAX);
    qn_array *won = qn_equal(s, qn_take(s, last, flat, 0), turn);
    int64_t shape[QN_MAX_NDIM];
    for (int i = 0; i < u->ndim; i++)
        shape[i] = i < ids->ndim ? ids->shape[i] : 1;
    return qn_cast(s, qn_reshape(s, won, u->ndim, shape), (qn_dtype)ct->dtype);
}

/* Which elements of x and of the update are in the result, as numbers; several equal ones share. */
static void shares(qn_scope *s, const qn_array *node, const qn_array *like, qn_array **of_x,
                   qn_array **of_update)
{
    const qn__scatter_params *p = node->params;
    qn_array *x = node->in[0], *ids = node->in[1], *u = node->in[2];
    qn_array *y = scatter_rows(s, x, ids, u, (qn_scatter_mode)p->mode);
    qn_dtype type = (qn_dtype)like->dtype;
    qn_array *hit_x = qn_cast(s, qn_equal(s, x, y), type);
    qn_array *hit_u = qn_cast(s, qn_equal(s, u, qn_take(s, y, ids, 0)), type);
    qn_array *count = qn_scatter_add(s, hit_x, ids, hit_u);
    *of_x = qn_divide(s, hit_x, count);
    qn_array *sharing = qn_take(s, count, ids, 0); /* 0 for an index that lies outside */
    *of_update = qn_divide(s, hit_u, qn_maximum(s, sharing, qn__scalar_like(s, sharing, 1)));
}

static void vjp_scatter(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                        qn_array **grads)
{
    const qn__scatter_params *p = node->params;
    qn_array *ids = node->in[1], *of_x, *of_update;
    const qn_array *u = node->in[2];
    if (p->mode == QN_SCATTER_SET) {
        if (want[0])
            grads[0] = scatter_rows(s, ct, ids, qn__zeros_like(s, u), QN_SCATTER_SET);
        if (want[2])
            grads[2] = qn_multiply(s, qn_take(s, ct, ids, 0), winners(s, node, ct));
        return;
    }
    shares(s, node, ct, &of_x, &of_update);
    if (want[0])
        grads[0] = qn_multiply(s, ct, of_x);
    if (want[2])
        grads[2] = qn_multiply(s, qn_take(s, ct, ids, 0), of_update);
}

static qn_array *jvp_scatter(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    const qn__scatter_params *p = node->params;
    const qn_array *x = node->in[0], *u = node->in[2];
    qn_array *tx = tangents[0], *tu = tangents[2], *of_x, *of_update;
    if (!tx && !tu)
        return NULL;
    if (!tx)
        tx = qn__zeros_like(s, x);
    if (!tu)
        tu = qn__zeros_like(s, u);
    if (p->mode == QN_SCATTER_SET)
        return scatter_rows(s, tx, node->in[1], tu, QN_SCATTER_SET);
    shares(s, node, tx, &of_x, &of_update);
    return qn_scatter_add(s, qn_multiply(s, tx, of_x), node->in[1], qn_multiply(s, tu, of_update));
}

const qn__op_def qn__scatter_op = {.name = "scatter",
                                   .class = QN__KERNEL,
                                   .params_size = sizeof(qn__scatter_params),
                                   .vjp = vjp_scatter,
                                   .jvp = jvp_scatter,
                                   .in_place = true};

/* ---- one element an index, along an axis
 * ----------------------------------------------------------------- */

/* The axis last, others broadcast to `shape`'s: x [rest..., V], ids [rest..., K]. */
static qn_array *axis_to_end(qn_scope *s, qn_array *x, int axis, const qn_array *like)
{
    int64_t shape[QN_MAX_NDIM];
    int order[QN_MAX_NDIM];
    for (int i = 0, k = 0; i < x->ndim; i++) {
        shape[i] = i == axis ? x->shape[i] : like->shape[i];
        if (i != axis)
            order[k++] = i;
    }
    order[x->ndim - 1] = axis;
    x = qn_broadcast_to(s, x, x->ndim, shape);
    return axis == x->ndim - 1 ? x : qn_transpose(s, x, order);
}

/* Indices along the last of x [..., V] as indices into x as one row; -1 where outside. */
static qn_array *flat_indices(qn_scope *s, const qn_array *x, qn_array *ids)
{
    int64_t v = x->shape[x->ndim - 1], rows = 1;
    for (int i = 0; i + 1 < x->ndim; i++)
        rows *= x->shape[i];
    const int64_t wide[] = {rows, ids->shape[ids->ndim - 1]};
    qn_array *at = qn_reshape(s, qn__indices(s, ids), 2, wide);
    qn_array *row = qn_expand_dims(s, qn_arange(s, QN_I32, rows), 1);
    qn_array *flat = qn_add(s, at, qn_multiply(s, row, qn_scalar(s, QN_I32, (double)v)));
    qn_array *in = qn_logical_and(s, qn_greater_equal(s, at, qn_scalar(s, QN_I32, 0)),
                                  qn_less(s, at, qn_scalar(s, QN_I32, (double)v)));
    return qn_where(s, in, flat, qn_scalar(s, QN_I32, -1));
}

/* Checks the pair of take_along and put_along; a non-negative axis, or -1. */
static int along_axis(qn_scope *s, const char *name, qn_array *x, qn_array *ids, int axis)
{
    axis = qn__axis(s, name, x, axis);
    if (axis < 0)
        return -1;
    bool fits = !qn__is_float((qn_dtype)ids->dtype) && ids->ndim == x->ndim && !x->layout &&
                qn__elements(x) <= INT32_MAX;
    for (int i = 0; fits && i < x->ndim; i++)
        fits = i == axis || ids->shape[i] == x->shape[i] || ids->shape[i] == 1;
    if (fits)
        return axis;
    qn__op_fail(
        s, name, x, ids,
        "indices must be integers of the array's shape but along the axis, and at most 2^31 - 1 "
        "elements");
    return -1;
}

/* The order that puts the last axis back to `axis`. */
static qn_array *axis_from_end(qn_scope *s, qn_array *x, int axis)
{
    int order[QN_MAX_NDIM];
    for (int i = 0; i < x->ndim; i++)
        order[i] = i < axis ? i : i == axis ? x->ndim - 1 : i - 1;
    return axis == x->ndim - 1 ? x : qn_transpose(s, x, order);
}

qn_array *qn_take_along(qn_scope *s, qn_array *x, qn_array *ids, int axis)
{
    x = qn__input(s, x, "take_along");
    ids = x ? qn__input(s, ids, "take_along") : NULL;
    axis = ids ? along_axis(s, "take_along", x, ids, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    qn_array *from = axis_to_end(s, x, axis, x), *at = axis_to_end(s, ids, axis, x);
    if (s->error.code != QN_OK)
        return qn__poison(s);
    qn_array *flat = qn_reshape(s, from, 1, (const int64_t[]){-1});
    qn_array *y = qn_take(s, flat, flat_indices(s, from, at), 0);
    y = qn_reshape(s, y, at->ndim, at->shape);
    return qn__is_poison(s, y) ? y : axis_from_end(s, y, axis);
}

qn_array *qn_put_along(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update, int axis,
                       qn_scatter_mode mode)
{
    x = qn__input(s, x, "put_along");
    ids = x ? qn__input(s, ids, "put_along") : NULL;
    update = ids ? qn__input(s, update, "put_along") : NULL;
    axis = update ? along_axis(s, "put_along", x, ids, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    qn_array *to = axis_to_end(s, x, axis, x), *at = axis_to_end(s, ids, axis, x);
    if (s->error.code != QN_OK)
        return qn__poison(s);
    int64_t shape[QN_MAX_NDIM];
    memcpy(shape, x->shape, sizeof shape);
    shape[axis] = ids->shape[axis];
    update = qn_broadcast_to(s, update, x->ndim, shape);
    if (qn__is_poison(s, update))
        return update;
    const int64_t all = -1;
    qn_array *u = qn_reshape(s, axis_to_end(s, update, axis, update), 1, &all);
    qn_array *ids_flat = qn_reshape(s, flat_indices(s, to, at), 1, &all);
    qn_array *flat = qn_reshape(s, to, 1, &all);
    if (s->error.code != QN_OK)
        return qn__poison(s);
    qn_array *y = qn_reshape(s, scatter_rows(s, flat, ids_flat, u, mode), to->ndim, to->shape);
    return qn__is_poison(s, y) ? y : axis_from_end(s, y, axis);
}

/* ---- N-d indices
 * -------------------------------------------------------------------------------------------- */

/* x [A, B, ..., rest...] with its first k axes as one, and ids [..., k] as numbers of that axis, -1
 * where one lies outside. NULL with the failure recorded. */
static qn_array *rows_by_index(qn_scope *s, const char *name, qn_array *x, qn_array **ids)
{
    qn_array *at = *ids;
    int k = at->ndim ? (int)at->shape[at->ndim - 1] : 0;
    int64_t rows = 1, shape[QN_MAX_NDIM];
    bool fits =
        !qn__is_float((qn_dtype)at->dtype) && at->ndim >= 1 && k >= 1 && k <= x->ndim && !x->layout;
    for (int i = 0; fits && i < k; i++)
        fits = !__builtin_mul_overflow(rows, x->shape[i], &rows) && rows <= INT32_MAX;
    if (!fits) {
        qn__op_fail(s, name, x, at, "indices must be integers [..., k], k at most the axes");
        return NULL;
    }
    at = qn__indices(s, at);
    qn_array *flat = qn_scalar(s, QN_I32, 0), *in = qn_scalar(s, QN_BOOL, 1);
    for (int i = 0; i < k; i++) {
        qn_array *n = qn_scalar(s, QN_I32, (double)x->shape[i]);
        qn_array *one = qn_squeeze(s, qn_slice(s, at, -1, i, i + 1, 1), -1);
        flat = qn_add(s, qn_multiply(s, flat, n), one);
        in = qn_logical_and(s, in, qn_greater_equal(s, one, qn_scalar(s, QN_I32, 0)));
        in = qn_logical_and(s, in, qn_less(s, one, n));
    }
    *ids = qn_where(s, in, flat, qn_scalar(s, QN_I32, -1));
    shape[0] = rows;
    for (int i = k; i < x->ndim; i++)
        shape[i - k + 1] = x->shape[i];
    x = qn_reshape(s, x, x->ndim - k + 1, shape);
    return qn__is_poison(s, *ids) ? NULL : x;
}

qn_array *qn_gather_nd(qn_scope *s, qn_array *x, qn_array *ids)
{
    x = qn__input(s, x, "gather_nd");
    ids = x ? qn__input(s, ids, "gather_nd") : NULL;
    qn_array *rows = ids ? rows_by_index(s, "gather_nd", x, &ids) : NULL;
    return rows ? qn_take(s, rows, ids, 0) : qn__poison(s);
}

qn_array *qn_scatter_nd(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update,
                        qn_scatter_mode mode)
{
    x = qn__input(s, x, "scatter_nd");
    ids = x ? qn__input(s, ids, "scatter_nd") : NULL;
    update = ids ? qn__input(s, update, "scatter_nd") : NULL;
    qn_array *rows = update ? rows_by_index(s, "scatter_nd", x, &ids) : NULL;
    if (!rows)
        return qn__poison(s);
    return qn_reshape(s, scatter_rows(s, rows, ids, update, mode), x->ndim, x->shape);
}
