/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that move elements without computing.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

static bool takes_all(const qn_array *node)
{
    (void)node;
    return true;
}

static int64_t size_of(const qn__operand *o)
{
    return (int64_t)qn__dtype_size((qn_dtype)o->dtype);
}

static bool launch_arange(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *y = &call->operand[0];
    qn__cuda_arange_args args = {.n = qn__cuda_elements(y), .type = y->dtype};
    return QN__CUDA_ADD(b, arange, args.n, false, args, call, 0);
}

const qn__cuda_routine qn__cuda_arange = {QN__OP_ARANGE, takes_all, launch_arange, 0};

/* ---- copies ---------------------------------------------------------------------------------- */

/* Operand `from` into the block of operand `to` that begins at an offset and has from's shape. */
static bool add_block_copy(qn__cuda_binder *b, const qn__call *call, int from, int to,
                           int64_t offset)
{
    const qn__operand *x = &call->operand[from], *y = &call->operand[to];
    qn__cuda_copy_args args = {.from = qn__cuda_view_of(x, 0, x->ndim),
                               .to = qn__cuda_view_of(y, 0, y->ndim),
                               .n = qn__cuda_elements(x),
                               .to_offset = offset,
                               .size = size_of(x)};
    memcpy(args.to.shape, args.from.shape, sizeof args.to.shape);
    return QN__CUDA_ADD(b, copy, args.n, false, args, call, (uint8_t)from, (uint8_t)to);
}

bool qn__cuda_prepare_copy(qn__cuda_binder *b, const qn__call *call)
{
    return add_block_copy(b, call, 0, (int)call->n_operands - 1, 0);
}

static bool launch_concatenate(qn__cuda_binder *b, const qn__call *call)
{
    int n = (int)call->n_operands - 1;
    int axis = (int)((const qn__concatenate_params *)call->params)->axis;
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (!add_block_copy(b, call, i, n, at * call->operand[n].stride[axis]))
            return false;
        at += call->operand[i].shape[axis];
    }
    return true;
}

const qn__cuda_routine qn__cuda_concatenate = {QN__OP_CONCATENATE, takes_all, launch_concatenate,
                                               0};

/* The output holds the old values already. */
static bool launch_slice_update(qn__cuda_binder *b, const qn__call *call)
{
    const qn__slice_update_params *p = call->params;
    const qn__operand *y = &call->operand[2];
    int64_t at = 0;
    for (int i = 0; i < y->ndim; i++)
        at += p->start[i] * y->stride[i];
    return add_block_copy(b, call, 1, 2, at);
}

const qn__cuda_routine qn__cuda_slice_update = {QN__OP_SLICE_UPDATE, takes_all, launch_slice_update,
                                                0};

/* ---- by index -------------------------------------------------------------------------------- */

static bool launch_take_along_last(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0], *ids = &call->operand[1];
    int last = x->ndim - 1;
    qn__cuda_along_args args = {.lead = qn__cuda_view_of(x, 0, last),
                                .n = qn__cuda_elements(ids),
                                .last = x->shape[last],
                                .last_stride = x->stride[last],
                                .size = size_of(x)};
    return QN__CUDA_ADD(b, take_along_last, args.n, false, args, call, 0, 1, 2);
}

const qn__cuda_routine qn__cuda_take_along_last = {QN__OP_TAKE_ALONG_LAST, takes_all,
                                                   launch_take_along_last, 0};
