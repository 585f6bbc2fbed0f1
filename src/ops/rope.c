/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding (arXiv:2104.09864). The result keeps x's storage order, so that heads
 * that are a view of a projection stay one.
 */
#include "ops/ops.h"

/* [B, L] holds the positions themselves, anything else that of the first. */
static bool by_position(const qn_array *offset, const qn_array *x)
{
    return offset->ndim == 2 && offset->shape[0] == x->shape[0] && offset->shape[1] == x->shape[2];
}

static bool offset_fits(const qn_array *offset, const qn_array *x)
{
    int64_t n = qn__elements(offset);
    return !qn__is_float((qn_dtype)offset->dtype) &&
           (n == 1 || by_position(offset, x) || (offset->ndim == 1 && n == x->shape[0]));
}

qn_array *qn_rope(qn_scope *s, qn_array *x, qn_array *offset, qn_array *frequency, bool traditional)
{
    x = qn__input(s, x, "rope");
    offset = x ? qn__input(s, offset, "rope") : NULL;
    frequency = offset ? qn__input(s, frequency, "rope") : NULL;
    if (!frequency)
        return qn__poison(s);
    int64_t rotated = frequency->ndim == 1 ? 2 * frequency->shape[0] : 0;
    if (x->ndim != 4 || rotated < 2 || rotated > x->shape[3])
        return qn__op_fail(s, "rope", x, frequency,
                           "x must be [B, H, L, D], frequency [R/2], R <= D");
    if (!offset_fits(offset, x))
        return qn__op_fail(s, "rope", x, offset,
                           "offset must be an integer, one for each batch, or one for each "
                           "position: [B, L]");
    if (!by_position(offset, x))
        offset = qn_reshape(s, offset, 1, (const int64_t[]){-1});
    qn_dtype type = (qn_dtype)x->dtype, compute = qn__dtype_compute(type);
    qn__rope_params params = {traditional};
    qn_array *in[] = {qn_cast(s, x, compute), qn_contiguous(s, qn_cast(s, offset, QN_I32)),
                      qn_contiguous(s, qn_cast(s, frequency, compute))};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    x = in[0];
    int64_t stride[4];
    bool dense = x->stride[3] == 1 && x->stride[1] == x->shape[3] &&
                 x->stride[2] == x->shape[1] * x->shape[3] &&
                 (x->shape[0] == 1 || x->stride[0] == x->shape[2] * x->stride[2]);
    if (dense) /* stored [B, L, H, D]; the stride of a single batch may be anything */
        memcpy(stride, (int64_t[]){x->shape[2] * x->stride[2], x->stride[1], x->stride[2], 1},
               sizeof stride);
    else
        qn__row_major(4, x->shape, stride);
    qn_array *y = qn__record_strided(s, QN__OP_ROPE, compute, 4, x->shape, stride, 3, in, &params);
    return qn_cast(s, y, type);
}

/* Angles [B or 1, 1, L, R/2] of the node's positions. */
static qn_array *angles(qn_scope *s, const qn_array *node)
{
    const qn_array *x = node->in[0];
    qn_dtype type = (qn_dtype)node->dtype;
    bool each = by_position(node->in[1], x);
    const int64_t shape[] = {each ? x->shape[0] : -1, 1, each ? x->shape[2] : 1, 1};
    qn_array *position = qn_reshape(s, node->in[1], 4, shape);
    if (!each)
        position =
            qn_add(s, position,
                   qn_reshape(s, qn_arange(s, QN_I32, x->shape[2]), 2, (const int64_t[]){-1, 1}));
    return qn_multiply(s, qn_cast(s, position, type), node->in[2]);
}

static qn_array *decompose_rope(qn_scope *s, const qn_array *node)
{
    const qn__rope_params *p = node->params;
    qn_array *x = node->in[0], *angle = angles(s, node);
    int64_t half = node->in[2]->shape[0], d = x->shape[3];
    qn_array *cos = qn_cos(s, angle), *sin = qn_sin(s, angle);
    qn_array *a =
        p->traditional ? qn_slice(s, x, 3, 0, 2 * half, 2) : qn_slice(s, x, 3, 0, half, 1);
    qn_array *b =
        p->traditional ? qn_slice(s, x, 3, 1, 2 * half, 2) : qn_slice(s, x, 3, half, 2 * half, 1);
    qn_array *ra = qn_subtract(s, qn_multiply(s, a, cos), qn_multiply(s, b, sin));
    qn_array *rb = qn_add(s, qn_multiply(s, b, cos), qn_multiply(s, a, sin));
    if (s->error.code != QN_OK)
        return qn__poison(s);
    if (p->traditional) {
        qn_array *pairs[] = {qn_expand_dims(s, ra, -1), qn_expand_dims(s, rb, -1)};
        int64_t joined[] = {x->shape[0], x->shape[1], x->shape[2], 2 * half};
        ra = qn_reshape(s, qn_concatenate(s, pairs, 2, -1), 4, joined);
    } else {
        ra = qn_concatenate(s, (qn_array *[]){ra, rb}, 2, -1);
    }
    if (2 * half == d)
        return ra;
    return qn_concatenate(s, (qn_array *[]){ra, qn_slice(s, x, 3, 2 * half, d, 1)}, 2, -1);
}

/* A rotation's transpose is that by the opposite angles. */
static void vjp_rope(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                     qn_array **grads)
{
    const qn__rope_params *p = node->params;
    if (want[0])
        grads[0] = qn_rope(s, ct, node->in[1], qn_negative(s, node->in[2]), p->traditional);
    if (want[2]) {
        qn_array *y = decompose_rope(s, node);
        if (!qn__is_poison(s, y))
            qn_vjp(s, y, ct, &node->in[2], 1, &grads[2]);
    }
}

const qn__op_def qn__rope_op = {.name = "rope",
                                .class = QN__KERNEL,
                                .params_size = sizeof(qn__rope_params),
                                .decompose = decompose_rope,
                                .vjp = vjp_rope};
