/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention outside a cache: how it is launched. Of queries that would not fill a block's rows it
 * is decomposed, and so are heads that are longer than the kernels' rows.
 */
#include "core/dtype.h"
#include "core/scope.h"
#include "cuda/cuda.h"

enum { ROWS = 64, THREADS = 128, NARROW = 64, WIDEST = 128 };

static int64_t width_of(int64_t d, int64_t e)
{
    return d > NARROW || e > NARROW ? WIDEST : NARROW;
}

static bool takes_attention(const qn_array *node)
{
    const qn__attention_params *p = node->params;
    const qn_array *q = node->in[0], *k = node->in[1], *mask = p->has_mask ? node->in[3] : NULL;
    const qn__cuda *cuda = node->scope->device->state;
    const int64_t d = q->shape[3], e = node->shape[3];
    return node->dtype == QN_F32 && q->shape[2] >= ROWS && d > 0 && d <= WIDEST && e <= WIDEST &&
           QN__CUDA_ATTENTION_SHARED(width_of(d, e)) <= cuda->most_shared && k->shape[2] > 0 &&
           k->shape[2] <= INT32_MAX / 2 && q->shape[2] <= INT32_MAX / 2 &&
           q->shape[0] * q->shape[1] <= INT32_MAX / ROWS &&
           (!mask || (mask->ndim <= 4 && (mask->dtype == QN_F32 || mask->dtype == QN_BOOL)));
}

/* Whether rows are read 16 bytes at a time. */
static bool has_vector_rows(const qn__operand *o)
{
    return o->stride[3] == 1 && o->offset % 16 == 0 && o->shape[3] % 4 == 0 &&
           (o->stride[0] | o->stride[1] | o->stride[2]) % 4 == 0;
}

static bool launch_attention(qn__cuda_binder *b, const qn__call *call)
{
    const qn__attention_params *p = call->params;
    const qn__operand *q = &call->operand[0], *k = &call->operand[1], *v = &call->operand[2],
                      *y = &call->operand[call->n_operands - 1],
                      *mask = p->has_mask ? &call->operand[3] : NULL;
    qn__cuda_attention_args args = {.batch = (int32_t)q->shape[0],
                                    .heads = (int32_t)q->shape[1],
                                    .shared = (int32_t)(q->shape[1] / k->shape[1]),
                                    .length = (int32_t)q->shape[2],
                                    .keys = (int32_t)k->shape[2],
                                    .d = (int32_t)q->shape[3],
                                    .e = (int32_t)v->shape[3],
                                    .window = p->window,
                                    .scale = p->scale,
                                    .softcap = p->softcap,
                                    .causal = p->causal != 0,
                                    .adds = mask && mask->dtype == QN_F32,
                                    .q_vectors = has_vector_rows(q),
                                    .k_vectors = has_vector_rows(k),
                                    .v_vectors = has_vector_rows(v)};
    memcpy(args.q_stride, q->stride, sizeof args.q_stride);
    memcpy(args.k_stride, k->stride, sizeof args.k_stride);
    memcpy(args.v_stride, v->stride, sizeof args.v_stride);
    memcpy(args.y_stride, y->stride, sizeof args.y_stride);
    for (int i = 0; mask && i < mask->ndim; i++)
        args.mask_stride[4 - mask->ndim + i] = mask->shape[i] == 1 ? 0 : mask->stride[i];
    const int64_t width = width_of(args.d, args.e),
                  blocks = qn__cuda_parts(args.length, ROWS) * args.batch * args.heads;
    const qn__cuda_grid grid = {blocks, THREADS, QN__CUDA_ATTENTION_SHARED(width)};
    uint8_t next = 3;
    const uint8_t at_mask = p->has_mask ? next++ : QN__CUDA_NONE,
                  at_sinks = p->has_sinks ? next++ : QN__CUDA_NONE,
                  at_first = p->has_first ? next++ : QN__CUDA_NONE;
    if (!blocks || !args.e)
        return true;
    return width == NARROW ? QN__CUDA_ADD_GRID(b, attention_64, &grid, args, call, 0, 1, 2, at_mask,
                                               at_sinks, at_first, next)
                           : QN__CUDA_ADD_GRID(b, attention_128, &grid, args, call, 0, 1, 2,
                                               at_mask, at_sinks, at_first, next);
}

const qn__cuda_routine qn__cuda_attention = {QN__OP_ATTENTION, takes_attention, launch_attention,
                                             0};
