/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations over the last axis.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

/* All axes but the last multiplied. */
static int64_t rows_of(const qn__operand *o)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < o->ndim; i++)
        n *= o->shape[i];
    return n;
}

static bool takes_reduce(const qn_array *node)
{
    const qn__reduce_params *p = node->params;
    return !node->in[0]->layout &&
           (p->reduction != QN__LOGSUMEXP || node->dtype == QN_F32 || node->dtype == QN_F64);
}

enum { LONG_ROW = 4096, PARTS = 128, QUADS_OF_ROW = 8 * QN__CUDA_THREADS };

/* Of long rows that lie side by side: parts of a row, then the best of these. */
static bool launch_argmax(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_argmax_args args = {.rows = rows_of(x), .n = x->shape[x->ndim - 1], .parts = PARTS};
    qn__cuda_want_scratch(b, (size_t)(args.rows * PARTS) * 8);
    return QN__CUDA_ADD(b, argmax_parts, args.rows * PARTS, true, args, call, 0, QN__CUDA_SCRATCH,
                        1) &&
           QN__CUDA_ADD(b, argmax_join, args.rows, true, args, call, 0, QN__CUDA_SCRATCH, 1);
}

static bool is_long_argmax(const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    int64_t stride = 1;
    if (((const qn__reduce_params *)call->params)->reduction != QN__ARGMAX || x->dtype != QN_F32 ||
        x->ndim < 1 || x->shape[x->ndim - 1] < LONG_ROW)
        return false;
    for (int i = x->ndim - 1; i >= 0; stride *= x->shape[i--])
        if (x->shape[i] > 1 && x->stride[i] != stride)
            return false;
    return true;
}

static bool launch_reduce(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    int last = x->ndim - 1;
    if (is_long_argmax(call))
        return launch_argmax(b, call);
    qn__cuda_reduce_args args = {.lead = qn__cuda_view_of(x, 0, last),
                                 .rows = rows_of(x),
                                 .n = last < 0 ? 1 : x->shape[last],
                                 .stride = last < 0 ? 0 : x->stride[last],
                                 .reduction = ((const qn__reduce_params *)call->params)->reduction,
                                 .type = x->dtype};
    return QN__CUDA_ADD(b, reduce, args.rows, true, args, call, 0, 1);
}

const qn__cuda_routine qn__cuda_reduce = {QN__OP_REDUCE, takes_reduce, launch_reduce, -1};

static bool launch_softmax(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_softmax_args args = {
        .rows = rows_of(x), .n = x->shape[x->ndim - 1], .wide = x->dtype == QN_F64};
    return QN__CUDA_ADD(b, softmax, args.rows, true, args, call, 0, 1);
}

const qn__cuda_routine qn__cuda_softmax = {QN__OP_SOFTMAX, NULL, launch_softmax, -1};

static bool takes_rms_norm(const qn_array *node)
{
    return (node->dtype == QN_F32 || node->dtype == QN_F64) &&
           !((const qn__norm_params *)node->params)->has_bias;
}

static bool launch_rms_norm(qn__cuda_binder *b, const qn__call *call)
{
    const qn__norm_params *p = call->params;
    const qn__operand *x = &call->operand[0];
    qn__cuda_norm_args args = {.rows = rows_of(x),
                               .n = x->shape[x->ndim - 1],
                               .has_weight = p->has_weight,
                               .wide = x->dtype == QN_F64,
                               .eps = (double)p->eps};
    int64_t places = (int64_t)(x->offset | call->operand[call->n_operands - 1].offset |
                               (p->has_weight ? call->operand[1].offset : 0));
    args.quads = !args.wide && args.n % 4 == 0 && args.n / 4 <= QUADS_OF_ROW && places % 16 == 0;
    args.early = !p->has_weight || qn__cuda_is_fixed(b, &call->operand[1]);
    if (!QN__CUDA_ADD(b, rms_norm, args.rows, true, args, call, 0, p->has_weight ? 1 : 0,
                      (uint8_t)(call->n_operands - 1), QN__CUDA_NONE))
        return false;
    if (args.quads && args.rows)
        qn__cuda_may_round(b, 2, 3, offsetof(qn__cuda_norm_args, turned));
    return true;
}

const qn__cuda_routine qn__cuda_rms_norm = {QN__OP_RMS_NORM, takes_rms_norm, launch_rms_norm, -1};
