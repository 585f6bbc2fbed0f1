/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling: the largest logit of each row by many blocks, then a block a row.
 */
#include "cuda/cuda.h"

enum { PARTS = 128, ROW_THREADS = 1024 };

static bool takes_sample(const qn_array *node)
{
    return node->in[0]->dtype == QN_F32;
}

static bool launch_sample(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_sample_args args = {.rows = x->shape[0], .vocab = x->shape[1], .parts = PARTS};
    qn__cuda_grid grid = {args.rows, ROW_THREADS, 0};
    const uint8_t operands[] = {0, 1, 2, 3, QN__CUDA_SCRATCH, QN__CUDA_BEHIND};
    qn__cuda_want_scratch(b, (size_t)(args.rows * PARTS) * 8);
    qn__cuda_want_behind(b, (size_t)(args.rows * args.vocab) * sizeof(float));
    return qn__cuda_add(b, b->cuda->kernels[QN__CUDA_KERNEL_sample_best], args.rows * PARTS, true,
                        &args, sizeof args, call, 6, operands) &&
           qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_sample], &grid, &args, sizeof args,
                             call, 6, operands);
}

const qn__cuda_routine qn__cuda_sample = {QN__OP_SAMPLE, takes_sample, launch_sample, -1};
