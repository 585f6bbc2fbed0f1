/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows by index. Those of a matrix in floats or in units may become f32, get a factor and a norm in
 * the same launch: with them a step begins, each launch of which would wait for the one before.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

static bool takes_rows(const qn_array *node)
{
    return !node->in[0]->layout || qn__cuda_has_units(node->in[0]->layout);
}

/* Rows of floats that lie in whole vectors of four. */
static bool is_matrix(const qn__operand *x)
{
    return (x->dtype == QN_F32 || x->dtype == QN_BF16 || x->dtype == QN_F16) && x->ndim == 2 &&
           x->stride[1] == 1 && x->stride[0] % 4 == 0 && x->shape[1] % 4 == 0 &&
           x->offset % 16 == 0;
}

static bool launch_take(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0], *ids = &call->operand[1];
    qn__cuda_take_args args = {.n_ids = qn__cuda_elements(ids),
                               .columns = 1,
                               .x_rows = x->shape[0],
                               .x_stride = x->stride[0],
                               .type = x->dtype};
    qn__cu_function function = b->cuda->kernels[QN__CUDA_KERNEL_take];
    uint8_t at[QN__CUDA_TAKE_AT] = {0, 1, 2};
    memset(at + QN__CUDA_TAKE_WEIGHT, QN__CUDA_NONE, sizeof at - QN__CUDA_TAKE_WEIGHT);
    for (int i = 1; i < x->ndim; i++)
        args.columns *= x->shape[i];
    if (x->layout) {
        function = qn__cuda_take_units(b->cuda, x->layout, &args.units);
    } else {
        args.row = qn__cuda_view_of(x, 1, x->ndim);
        args.size = (int64_t)qn__dtype_size((qn_dtype)x->dtype);
    }
    if (!qn__cuda_add(b, function, x->layout ? args.n_ids : args.n_ids * args.columns, x->layout,
                      &args, sizeof args, call, QN__CUDA_TAKE_AT, at))
        return false;
    if (args.n_ids && args.columns)
        b->bound->launches[b->bound->n_launches - 1].takes = x->layout || is_matrix(x);
    return true;
}

const qn__cuda_routine qn__cuda_take = {QN__OP_TAKE, takes_rows, launch_take, 1 << 0};

/* ---- what stands behind ---------------------------------------------------------------------- */

/* The newest launch, if it takes rows that nothing is done with yet but a factor. */
static qn__cuda_launch *newest_take(const qn__cuda_binder *b, uint32_t **at)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (!last || !last->takes)
        return NULL;
    *at = bound->at + last->first_at;
    return (*at)[QN__CUDA_TAKE_WEIGHT] == QN__CUDA_AT_NONE ? last : NULL;
}

/* Whether a result may be written while other blocks still read. */
static bool may_write_beside(const qn__cuda_binder *b, const qn__operand *result,
                             const uint32_t *at)
{
    const qn__operand *operands = b->binding->operands;
    return !qn__cuda_overlap(result, &operands[at[0]]) &&
           !qn__cuda_overlap(result, &operands[at[1]]);
}

/* The launch's rows are f32: a block each. */
static void take_values(const qn__cuda_binder *b, qn__cuda_launch *launch, int64_t rows)
{
    if (launch->function != b->cuda->kernels[QN__CUDA_KERNEL_take])
        return;
    launch->function = b->cuda->kernels[QN__CUDA_KERNEL_take_values];
    launch->blocks = (unsigned)(rows < QN__CUDA_BLOCKS ? rows : QN__CUDA_BLOCKS);
}

bool qn__cuda_convert_taken(qn__cuda_binder *b, const qn__call *call, bool scaled, float factor)
{
    uint32_t *at;
    qn__cuda_launch *last = newest_take(b, &at);
    if (!last)
        return false;
    qn__cuda_take_args *args = (qn__cuda_take_args *)(b->bound->args + last->args);
    if (args->scaled || !qn__cuda_is_for_call_alone(b, call, 0, &b->binding->operands[at[2]]) ||
        !may_write_beside(b, &call->operand[1], at))
        return false;
    args->scaled = scaled;
    args->factor = factor;
    at[2] = call->first_operand + 1;
    take_values(b, last, args->n_ids);
    return true;
}

bool qn__cuda_norm_taken(qn__cuda_binder *b, const qn__call *call, const qn__cuda_norm_args *norm)
{
    uint32_t *at;
    qn__cuda_launch *last = newest_take(b, &at);
    if (!last)
        return false;
    const qn__operand *y = &b->binding->operands[at[2]], *normed = &call->operand[2];
    qn__cuda_take_args *args = (qn__cuda_take_args *)(b->bound->args + last->args);
    if (!norm->quads || !norm->has_weight || !norm->early || norm->rows != args->n_ids ||
        norm->n != args->columns || norm->n > 4 * QN__CUDA_THREADS * QN__CUDA_TAKE_QUADS ||
        y->dtype != QN_F32 || !qn__cuda_same_place(&call->operand[0], y) ||
        qn__cuda_overlap(normed, y) || !may_write_beside(b, normed, at) ||
        !may_write_beside(b, y, at))
        return false;
    at[QN__CUDA_TAKE_WEIGHT] = call->first_operand + 1;
    at[QN__CUDA_TAKE_NORMED] = call->first_operand + 2;
    args->eps = (float)norm->eps;
    take_values(b, last, args->n_ids);
    qn__cuda_may_round(b, QN__CUDA_TAKE_NORMED, QN__CUDA_TAKE_ROUNDED,
                       offsetof(qn__cuda_take_args, turned), QN__CUDA_ROUNDS_EITHER);
    return true;
}
