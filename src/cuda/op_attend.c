/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache: writing it, attending to it. Which rows are whose, and which pages, is
 * read on the device, so a step's launches are the same whatever it runs.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

_Static_assert((int)QN__KEY_GROUP == (int)QN__CUDA_KEY_GROUP && (int)QN__PAGE == (int)QN__CUDA_PAGE,
               "keys lie as the kernels read them");

static bool is_cache(const qn_array *cache)
{
    return cache->dtype == QN_F32 || cache->dtype == QN_BF16;
}

static bool launch_write(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *rows = &call->operand[1], *y = &call->operand[3];
    qn__cuda_write_args args = {.page = y->stride[0],
                                .head = y->stride[1],
                                .pages = y->shape[0],
                                .keys = call->op == QN__OP_WRITE_KEYS,
                                .half = y->dtype == QN_BF16};
    memcpy(args.shape, rows->shape, sizeof args.shape);
    memcpy(args.stride, rows->stride, sizeof args.stride);
    return QN__CUDA_ADD(b, write_cache, qn__cuda_elements(rows), false, args, call, 1, 2, 3);
}

const qn__cuda_routine qn__cuda_write_keys = {QN__OP_WRITE_KEYS, is_cache, launch_write};
const qn__cuda_routine qn__cuda_write_values = {QN__OP_WRITE_VALUES, is_cache, launch_write};

enum { LONGEST = 2048 }; /* elements of a head: what the kernel's shared memory holds */

static bool takes_attend(const qn_array *node)
{
    return is_cache(node->in[1]) && node->in[1]->dtype == node->in[2]->dtype &&
           node->in[0]->shape[3] <= LONGEST && node->in[2]->shape[3] <= LONGEST;
}

/* A block has one query row of a tile. */
static bool launch_attend(qn__cuda_binder *b, const qn__call *call)
{
    const qn__attention_params *p = call->params;
    const qn__operand *q = &call->operand[0], *k = &call->operand[1], *v = &call->operand[2],
                      *tiles = &call->operand[3], *table = &call->operand[4],
                      *y = &call->operand[5 + p->has_sinks];
    qn__cuda_attend_args args = {.heads = q->shape[1],
                                 .groups = k->shape[1],
                                 .length = q->shape[2],
                                 .d = q->shape[3],
                                 .e = v->shape[3],
                                 .k_page = k->stride[0],
                                 .k_head = k->stride[1],
                                 .v_page = v->stride[0],
                                 .v_head = v->stride[1],
                                 .pages = k->shape[0],
                                 .tiles = tiles->shape[0],
                                 .tile = qn__attend_tile(q->shape[1] / k->shape[1]),
                                 .sequences = table->shape[0],
                                 .width = table->shape[1],
                                 .window = p->window,
                                 .keep = p->keep,
                                 .half = k->dtype == QN_BF16,
                                 .has_sinks = p->has_sinks,
                                 .scale = p->scale,
                                 .softcap = p->softcap};
    memcpy(args.q_stride, q->stride, sizeof args.q_stride);
    memcpy(args.y_stride, y->stride, sizeof args.y_stride);
    return QN__CUDA_ADD(b, attend, args.tiles * args.tile * args.heads, true, args, call, 0, 1, 2,
                        3, 4, p->has_sinks ? 5 : 0, (uint8_t)(5 + p->has_sinks));
}

const qn__cuda_routine qn__cuda_attend = {QN__OP_ATTEND, takes_attend, launch_attend};
