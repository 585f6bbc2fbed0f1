/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows by index (an embedding look-up is the common case), and its adjoint, scatter_add.
 */
#include "ops/ops.h"

/* x [V, rest...], ids [...] -> [ids..., rest...]; other axes are brought to the front and back. */
qn_array *qn_take(qn_scope *s, qn_array *x, qn_array *ids, int axis)
{
    x = qn__input(s, x, "take");
    ids = x ? qn__input(s, ids, "take") : NULL;
    axis = ids ? qn__axis(s, "take", x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    if (qn__is_float((qn_dtype)ids->dtype) || (x->layout && (axis != 0 || x->ndim != 2)) ||
        x->ndim + ids->ndim - 1 > QN_MAX_NDIM)
        return qn__op_fail(s, "take", x, ids, "indices must be integers");
    if (axis) {
        int order[QN_MAX_NDIM], back[QN_MAX_NDIM];
        for (int i = 0, k = 1; i < x->ndim; i++)
            if (i != axis)
                order[k++] = i;
        order[0] = axis;
        qn_array *rows = qn_take(s, qn_transpose(s, x, order), ids, 0);
        for (int i = 0; i < axis; i++)
            back[i] = ids->ndim + i;
        for (int i = 0; i < ids->ndim; i++)
            back[axis + i] = i;
        for (int i = axis + 1; i < x->ndim; i++)
            back[ids->ndim + i - 1] = ids->ndim + i - 1;
        return qn_transpose(s, rows, back);
    }
    int64_t shape[QN_MAX_NDIM];
    memcpy(shape, ids->shape, sizeof shape);
    for (int i = 1; i < x->ndim; i++)
        shape[ids->ndim + i - 1] = x->shape[i];
    qn_array *in[] = {x, qn__indices(s, ids)};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__record(s, QN__OP_TAKE, (qn_dtype)x->dtype, ids->ndim + x->ndim - 1, shape, 2, in,
                      NULL);
}

static void vjp_take(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                     qn_array **grads)
{
    const qn_array *x = node->in[0];
    if (want[0])
        grads[0] = qn_scatter_add(s, qn__zeros_like(s, x), node->in[1], ct);
}

static qn_array *jvp_take(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return tangents[0] ? qn_take(s, tangents[0], node->in[1], 0) : NULL;
}

const qn__op_def qn__take_op = {
    .name = "take", .class = QN__KERNEL, .vjp = vjp_take, .jvp = jvp_take};

qn_array *qn_scatter_add(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update)
{
    x = qn__input(s, x, "scatter_add");
    ids = x ? qn__input(s, ids, "scatter_add") : NULL;
    update = ids ? qn__input(s, update, "scatter_add") : NULL;
    if (!update)
        return qn__poison(s);
    bool fits = !qn__is_float((qn_dtype)ids->dtype) && x->ndim >= 1 && !x->layout &&
                update->ndim == ids->ndim + x->ndim - 1;
    for (int i = 0; fits && i < update->ndim; i++)
        fits = update->shape[i] == (i < ids->ndim ? ids->shape[i] : x->shape[i - ids->ndim + 1]);
    if (!fits)
        return qn__op_fail(s, "scatter_add", x, update, "update must be [ids..., rest of x...]");
    qn_array *in[] = {x, qn__indices(s, ids),
                      qn_contiguous(s, qn_cast(s, update, (qn_dtype)x->dtype))};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__record(s, QN__OP_SCATTER_ADD, (qn_dtype)x->dtype, x->ndim, x->shape, 3, in, NULL);
}

static void vjp_scatter_add(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                            qn_array **grads)
{
    if (want[0])
        grads[0] = ct;
    if (want[2])
        grads[2] = qn_take(s, ct, node->in[1], 0);
}

static qn_array *jvp_scatter_add(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    if (!tangents[0] && !tangents[2])
        return NULL;
    qn_array *x = tangents[0];
    if (!x)
        x = qn__zeros_like(s, node);
    return tangents[2] ? qn_scatter_add(s, x, node->in[1], tangents[2]) : x;
}

const qn__op_def qn__scatter_add_op = {.name = "scatter_add",
                                       .class = QN__KERNEL,
                                       .vjp = vjp_scatter_add,
                                       .jvp = jvp_scatter_add,
                                       .in_place = true};
