/* SPDX-License-Identifier: Apache-2.0
 *
 * A block read or replaced at a place that is data: a position that moves from step to step makes
 * no new plan. The place is clamped so that the block lies inside. slice_update.c has the place as
 * a parameter.
 */
#include "ops/ops.h"

/* The start as contiguous i32 [ndim]; NULL with the failure recorded. */
static qn_array *start_of(qn_scope *s, const char *name, qn_array *x, qn_array *start)
{
    start = qn__input(s, start, name);
    if (!start)
        return NULL;
    if (start->ndim != 1 || start->shape[0] != x->ndim || x->layout ||
        qn__is_float((qn_dtype)start->dtype)) {
        qn__op_fail(s, name, x, start, "the start must be integers, one for each axis");
        return NULL;
    }
    start = qn__indices(s, start);
    return qn__is_poison(s, start) ? NULL : start;
}

qn_array *qn_slice_at(qn_scope *s, qn_array *x, qn_array *start, const int64_t *sizes)
{
    x = qn__input(s, x, "slice_at");
    start = x ? start_of(s, "slice_at", x, start) : NULL;
    if (!start)
        return qn__poison(s);
    for (int i = 0; i < x->ndim; i++)
        if (sizes[i] < 0 || sizes[i] > x->shape[i])
            return qn__op_fail(s, "slice_at", x, NULL, "the block is larger than the array");
    qn_array *in[] = {x, start};
    return qn__record(s, QN__OP_SLICE_AT, (qn_dtype)x->dtype, x->ndim, sizes, 2, in, NULL);
}

qn_array *qn_slice_update_at(qn_scope *s, qn_array *x, qn_array *update, qn_array *start)
{
    x = qn__input(s, x, "slice_update_at");
    update = x ? qn__input(s, update, "slice_update_at") : NULL;
    start = update ? start_of(s, "slice_update_at", x, start) : NULL;
    if (!start)
        return qn__poison(s);
    bool fits = x->ndim == update->ndim && !update->layout;
    for (int i = 0; fits && i < x->ndim; i++)
        fits = update->shape[i] <= x->shape[i];
    if (!fits)
        return qn__op_fail(s, "slice_update_at", x, update, "the update is larger than the array");
    qn_array *in[] = {x, qn_cast(s, update, (qn_dtype)x->dtype), start};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__record(s, QN__OP_SLICE_UPDATE_AT, (qn_dtype)x->dtype, x->ndim, x->shape, 3, in,
                      NULL);
}

/* The place along one axis, clamped, of shape []. */
static qn_array *place_of(qn_scope *s, qn_array *start, int axis, int64_t size, int64_t block)
{
    qn_array *at = qn_reshape(s, qn_slice(s, start, 0, axis, axis + 1, 1), 0, NULL);
    return qn_clip(s, at, qn_scalar(s, QN_I32, 0), qn_scalar(s, QN_I32, (double)(size - block)));
}

static qn_array *decompose_slice_at(qn_scope *s, const qn_array *node)
{
    qn_array *x = node->in[0];
    for (int i = 0; i < node->ndim && !qn__is_poison(s, x); i++) {
        qn_array *at = place_of(s, node->in[1], i, x->shape[i], node->shape[i]);
        x = qn_take(s, x, qn_add(s, at, qn_arange(s, QN_I32, node->shape[i])), i);
    }
    return x;
}

/* Every element looks whether it lies in the block. */
static qn_array *decompose_slice_update_at(qn_scope *s, const qn_array *node)
{
    qn_array *x = node->in[0], *u = node->in[1], *hit = NULL;
    for (int i = 0; i < node->ndim && !qn__is_poison(s, u); i++) {
        int64_t n = node->shape[i], block = u->shape[i], along[QN_MAX_NDIM];
        qn_array *at = place_of(s, node->in[2], i, n, block);
        qn_array *from = qn_subtract(s, qn_arange(s, QN_I32, n), at);
        qn_array *in = qn_logical_and(s, qn_greater_equal(s, from, qn_scalar(s, QN_I32, 0)),
                                      qn_less(s, from, qn_scalar(s, QN_I32, (double)block)));
        for (int d = 0; d < node->ndim; d++)
            along[d] = d == i ? n : 1;
        in = qn_reshape(s, in, node->ndim, along);
        hit = hit ? qn_logical_and(s, hit, in) : in;
        u = qn_take(s, u, from, i);
    }
    return hit ? qn_where(s, hit, u, x) : u;
}

static void vjp_slice_at(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                         qn_array **grads)
{
    const qn_array *x = node->in[0];
    if (want[0])
        grads[0] = qn_slice_update_at(s, qn__zeros_like(s, x), ct, node->in[1]);
}

static qn_array *jvp_slice_at(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return tangents[0] ? qn_slice_at(s, tangents[0], node->in[1], node->shape) : NULL;
}

static void vjp_slice_update_at(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                                qn_array **grads)
{
    const qn_array *u = node->in[1];
    if (want[0])
        grads[0] = qn_slice_update_at(s, ct, qn__zeros_like(s, u), node->in[2]);
    if (want[1])
        grads[1] = qn_slice_at(s, ct, node->in[2], u->shape);
}

static qn_array *jvp_slice_update_at(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    if (!tangents[0] && !tangents[1])
        return NULL;
    const qn_array *u = node->in[1];
    qn_array *x = tangents[0], *t = tangents[1];
    if (!x)
        x = qn__zeros_like(s, node);
    if (!t)
        t = qn__zeros_like(s, u);
    return qn_slice_update_at(s, x, t, node->in[2]);
}

const qn__op_def qn__slice_at_op = {.name = "slice_at",
                                    .class = QN__KERNEL,
                                    .decompose = decompose_slice_at,
                                    .vjp = vjp_slice_at,
                                    .jvp = jvp_slice_at};
const qn__op_def qn__slice_update_at_op = {.name = "slice_update_at",
                                           .class = QN__KERNEL,
                                           .decompose = decompose_slice_update_at,
                                           .vjp = vjp_slice_update_at,
                                           .jvp = jvp_slice_update_at,
                                           .in_place = true};
