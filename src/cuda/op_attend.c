/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache: writing it, attending to it. Positions are read on the device, so a
 * step's launches are the same at every position.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

_Static_assert((int)QN__KEY_GROUP == (int)QN__CUDA_KEY_GROUP, "keys lie as the kernels read them");

static bool is_cache(const qn_array *cache)
{
    return cache->dtype == QN_F32 || cache->dtype == QN_BF16;
}

static bool launch_write(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *rows = &call->operand[1], *y = &call->operand[3];
    bool keys = call->op == QN__OP_WRITE_KEYS;
    qn__cuda_write_args args = {.batch_stride = y->stride[0],
                                .head_stride = y->stride[1],
                                .capacity = keys ? y->shape[2] * QN__KEY_GROUP : y->shape[2],
                                .keys = keys,
                                .half = y->dtype == QN_BF16,
                                .n_offsets = qn__cuda_elements(&call->operand[2])};
    memcpy(args.shape, rows->shape, sizeof args.shape);
    memcpy(args.stride, rows->stride, sizeof args.stride);
    return QN__CUDA_ADD(b, write_cache, qn__cuda_elements(rows), false, args, call, 1, 2, 3);
}

/* Kept first keys are the CPU's alone. */
static bool takes_write(const qn_array *node)
{
    return is_cache(node) && !((const qn__write_params *)node->params)->pinned;
}

const qn__cuda_routine qn__cuda_write_keys = {QN__OP_WRITE_KEYS, takes_write, launch_write};
const qn__cuda_routine qn__cuda_write_values = {QN__OP_WRITE_VALUES, takes_write, launch_write};

enum { LONGEST = 2048 }; /* elements of a head: what the kernel's shared memory holds */

static bool takes_attend(const qn_array *node)
{
    return is_cache(node->in[1]) && node->in[1]->dtype == node->in[2]->dtype &&
           node->in[0]->shape[3] <= LONGEST && node->in[2]->shape[3] <= LONGEST;
}

/* A block has one query row. */
static bool launch_attend(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *q = &call->operand[0], *k = &call->operand[1], *v = &call->operand[2],
                      *y = &call->operand[4];
    const qn__attention_params *p = call->params;
    qn__cuda_attend_args args = {.batch = q->shape[0],
                                 .heads = q->shape[1],
                                 .groups = k->shape[1],
                                 .length = q->shape[2],
                                 .d = q->shape[3],
                                 .e = v->shape[3],
                                 .k_batch = k->stride[0],
                                 .k_head = k->stride[1],
                                 .v_batch = v->stride[0],
                                 .v_head = v->stride[1],
                                 .v_row = v->stride[2],
                                 .capacity = v->shape[2],
                                 .window = p->window,
                                 .half = k->dtype == QN_BF16,
                                 .n_offsets = qn__cuda_elements(&call->operand[3]),
                                 .scale = p->scale,
                                 .softcap = p->softcap};
    memcpy(args.q_stride, q->stride, sizeof args.q_stride);
    memcpy(args.y_stride, y->stride, sizeof args.y_stride);
    return QN__CUDA_ADD(b, attend, args.batch * args.heads * args.length, true, args, call, 0, 1, 2,
                        3, 4);
}

const qn__cuda_routine qn__cuda_attend = {QN__OP_ATTEND, takes_attend, launch_attend};
