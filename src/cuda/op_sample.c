/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling: one launch, in which few rows have several blocks each.
 */
#include "cuda/cuda.h"

enum { MOST_PARTS = 128, ROW_THREADS = 1024 };

static bool takes_sample(const qn_array *node)
{
    return node->in[0]->dtype == QN_F32;
}

static bool launch_sample(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_sample_args args = {.rows = x->shape[0],
                                 .vocab = x->shape[1],
                                 .parts = 1,
                                 .early = qn__cuda_is_fixed(b, &call->operand[1])};
    if (args.rows && args.rows <= QN__CUDA_SHARED_ROWS)
        args.parts = b->cuda->processors / args.rows;
    args.parts = args.parts > MOST_PARTS ? MOST_PARTS : args.parts < 1 ? 1 : args.parts;
    qn__cuda_grid grid = {args.rows * args.parts, ROW_THREADS, 0};
    qn__cuda_want_scratch(b, (size_t)(args.rows * args.parts) * 8);
    qn__cuda_want_behind(b, (size_t)(args.rows * args.vocab) * sizeof(float));
    return QN__CUDA_ADD_GRID(b, sample, &grid, args, call, 0, 1, 2, 3, QN__CUDA_SCRATCH,
                             QN__CUDA_BEHIND);
}

const qn__cuda_routine qn__cuda_sample = {QN__OP_SAMPLE, takes_sample, launch_sample, 0};
