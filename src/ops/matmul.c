/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products of plain arrays, batched and broadcast. Linear layers are linear.c.
 */
#include "ops/ops.h"

/* The broadcast of the leading axes (all but two) of both; -1 when they do not fit. */
static int batch_shape(const qn_array *a, const qn_array *b, int64_t *shape)
{
    qn_array la = *a, lb = *b;
    la.ndim = (uint8_t)(a->ndim - 2);
    lb.ndim = (uint8_t)(b->ndim - 2);
    return qn__broadcast_shapes(&la, &lb, shape);
}

static qn_array *with_batch(qn_scope *s, qn_array *x, int n_batch, const int64_t *batch)
{
    int64_t shape[QN_MAX_NDIM];
    memcpy(shape, batch, (size_t)n_batch * sizeof *shape);
    shape[n_batch] = x->shape[x->ndim - 2];
    shape[n_batch + 1] = x->shape[x->ndim - 1];
    return qn_broadcast_to(s, x, n_batch + 2, shape);
}

/* Batches by one matrix are one product of all their rows: so is its gradient, which would be one
 * a batch and their sum. */
static bool is_one_product(const qn_array *a, const qn_array *b)
{
    return a->ndim > 2 && b->ndim == 2 && (a->flags & QN__CONTIGUOUS);
}

static qn_array *one_product(qn_scope *s, qn_array *a, qn_array *b)
{
    int64_t shape[QN_MAX_NDIM], rows[] = {1, a->shape[a->ndim - 1]};
    for (int i = 0; i < a->ndim - 1; i++)
        rows[0] *= a->shape[i];
    memcpy(shape, a->shape, sizeof shape);
    shape[a->ndim - 1] = b->shape[1];
    return qn_reshape(s, qn_matmul(s, qn_reshape(s, a, 2, rows), b), a->ndim, shape);
}

qn_array *qn_matmul(qn_scope *s, qn_array *a, qn_array *b)
{
    a = qn__input(s, a, "matmul");
    b = a ? qn__input(s, b, "matmul") : NULL;
    if (!b)
        return qn__poison(s);
    if (!a->ndim || !b->ndim)
        return qn__op_fail(s, "matmul", a, b, "a scalar has no rows: use multiply");
    if (a->ndim == 1) {
        qn_array *y = qn_matmul(s, qn_expand_dims(s, a, 0), b);
        return qn__is_poison(s, y) ? y : qn_squeeze(s, y, b->ndim == 1 ? -1 : -2);
    }
    if (b->ndim == 1)
        return qn_squeeze(s, qn_matmul(s, a, qn_expand_dims(s, b, 1)), -1);
    int64_t shape[QN_MAX_NDIM];
    int n_batch = batch_shape(a, b, shape);
    if (n_batch < 0 || a->shape[a->ndim - 1] != b->shape[b->ndim - 2] || a->layout || b->layout)
        return qn__op_fail(s, "matmul", a, b,
                           "the inner sizes differ, the batches do not broadcast, or packed");
    if (is_one_product(a, b))
        return one_product(s, a, b);
    qn_dtype type = qn__dtype_promote((qn_dtype)a->dtype, (qn_dtype)b->dtype);
    if (!qn__is_float(type))
        type = QN_F32;
    qn_dtype compute = qn__dtype_compute(type);
    qn_array *in[] = {qn_cast(s, a, compute), qn_cast(s, b, compute)};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    in[0] = with_batch(s, in[0], n_batch, shape);
    in[1] = with_batch(s, in[1], n_batch, shape);
    if (s->error.code != QN_OK)
        return qn__poison(s);
    shape[n_batch] = a->shape[a->ndim - 2];
    shape[n_batch + 1] = b->shape[b->ndim - 1];
    qn_array *y = qn__record(s, QN__OP_MATMUL, compute, n_batch + 2, shape, 2, in, NULL);
    return qn_cast(s, y, type);
}

static void vjp_matmul(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                       qn_array **grads)
{
    if (want[0])
        grads[0] = qn_matmul(s, ct, qn_swap_axes(s, node->in[1], -1, -2));
    if (want[1])
        grads[1] = qn_matmul(s, qn_swap_axes(s, node->in[0], -1, -2), ct);
}

static qn_array *jvp_matmul(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    qn_array *a = t[0] ? qn_matmul(s, t[0], node->in[1]) : NULL;
    qn_array *b = t[1] ? qn_matmul(s, node->in[0], t[1]) : NULL;
    return a && b ? qn_add(s, a, b) : a ? a : b;
}

const qn__op_def qn__matmul_op = {
    .name = "matmul", .class = QN__KERNEL, .vjp = vjp_matmul, .jvp = jvp_matmul};
