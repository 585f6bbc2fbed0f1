/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with quantised matrices that are plain arrays: how they are launched.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

enum { CHAINS = 8, FEW = 64, FEW_ROWS = 16, MANY_ROWS = 32, COLUMNS = 32 };

static bool takes_quantized(const qn_array *node)
{
    const qn_array *x = node->in[0], *words = node->in[1];
    return node->dtype == QN_F32 && x->shape[2] <= INT32_MAX && x->shape[1] <= INT32_MAX &&
           words->shape[1] * x->shape[2] / 4 <= INT32_MAX; /* words of a matrix */
}

static bool launch_quantized(qn__cuda_binder *b, const qn__call *call)
{
    const qn__quantized_params *p = call->params;
    const qn__operand *x = &call->operand[0], *words = &call->operand[1],
                      *scales = &call->operand[2], *y = &call->operand[call->n_operands - 1];
    const qn__cuda_quantized_args args = {.m = x->shape[1],
                                          .n = words->shape[1],
                                          .k = x->shape[2],
                                          .matrices = words->shape[0],
                                          .group = p->group_size,
                                          .type = scales->dtype,
                                          .vectors = x->offset % 16 == 0};
    /* the widths that there are kernels for, two each, in the order of kernels.def */
    const int width = p->bits == 8 ? 5 : p->bits - 2;
    const bool many = args.m > FEW;
    const int64_t tiles =
        many ? qn__cuda_parts(args.m, MANY_ROWS) * qn__cuda_parts(args.n, CHAINS * COLUMNS)
             : qn__cuda_parts(args.m, FEW_ROWS) * qn__cuda_parts(args.n, COLUMNS);
    const qn__cuda_grid grid = {x->shape[0] * tiles, CHAINS * 32, 0};
    const uint8_t ids = p->chosen ? 4 : QN__CUDA_NONE, last = (uint8_t)(call->n_operands - 1);
    return !qn__cuda_elements(y) ||
           qn__cuda_add_grid(
               b, b->cuda->kernels[QN__CUDA_KERNEL_quantized_few_2 + 2 * width + many], &grid,
               &args, sizeof args, call, 6, (const uint8_t[]){0, 1, 2, 3, ids, last});
}

const qn__cuda_routine qn__cuda_quantized = {QN__OP_QUANTIZED_MATMUL, takes_quantized,
                                             launch_quantized, 0};
