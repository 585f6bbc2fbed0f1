/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations over the last axis, and rope.
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
    if (args.quads && args.rows == 1 && qn__cuda_leave_norm(b, call))
        return true;
    if (!QN__CUDA_ADD(b, rms_norm, args.rows, true, args, call, 0, p->has_weight ? 1 : 0,
                      (uint8_t)(call->n_operands - 1), QN__CUDA_NONE))
        return false;
    if (args.quads && args.rows)
        qn__cuda_may_round(b, 2, 3, offsetof(qn__cuda_norm_args, turned));
    return true;
}

const qn__cuda_routine qn__cuda_rms_norm = {QN__OP_RMS_NORM, takes_rms_norm, launch_rms_norm, -1};

enum { FEW_ROWS = 64, HEADS = 4, MOST_BLOCKS = 1 << 20 };

static qn__cuda_rope_part rope_part(const qn__call *call)
{
    const qn__operand *x = &call->operand[0], *offset = &call->operand[1], *y = &call->operand[3];
    qn__cuda_rope_part part = {
        .half = call->operand[2].shape[0],
        .traditional = ((const qn__rope_params *)call->params)->traditional,
        .row_offset = offset->ndim == 2,
        .batch_offset = offset->ndim == 2 ? offset->shape[1] : qn__cuda_elements(offset) > 1,
        .each = x->shape[0] * x->shape[2] > FEW_ROWS && x->shape[1] % HEADS == 0 ? HEADS : 1};
    memcpy(part.shape, x->shape, sizeof part.shape);
    memcpy(part.x_stride, x->stride, sizeof part.x_stride);
    memcpy(part.y_stride, y->stride, sizeof part.y_stride);
    return part;
}

/* A thread has one pair, or one of the elements that do not rotate; of many rows, that of some
 * heads. Keys are turned in the launch that turns queries. */
static bool launch_rope(qn__cuda_binder *b, const qn__call *call)
{
    qn__cuda_rope_part part = rope_part(call);
    bool wide = call->operand[0].dtype == QN_F64,
         early = qn__cuda_is_fixed(b, &call->operand[1]) && qn__cuda_is_fixed(b, &call->operand[2]);
    int64_t work = part.shape[0] * part.shape[1] / part.each * part.shape[2] *
                   (part.shape[3] - part.half),
            blocks = qn__cuda_parts(work, QN__CUDA_THREADS);
    qn__cuda_grid grid = {blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, QN__CUDA_THREADS, 0};
    qn__cuda_rope_args *first = qn__cuda_beside(b, QN__CUDA_KERNEL_rope, call, 4);
    if (first && first->wide == wide) {
        first->part[1] = part;
        first->early = first->early && early;
        qn__cuda_put_beside(b, call, 4, (unsigned)grid.blocks);
        return true;
    }
    qn__cuda_rope_args args = {.part = {part}, .blocks = grid.blocks, .wide = wide, .early = early};
    const uint8_t none = QN__CUDA_NONE, operands[] = {0, 1, 2, 3, none, none, none, none};
    return qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_rope], &grid, &args, sizeof args,
                             call, 8, operands);
}

const qn__cuda_routine qn__cuda_rope = {QN__OP_ROPE, NULL, launch_rope, -1};
