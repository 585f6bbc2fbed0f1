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

/* Leaves out axes of one element, and makes one of two that lie in both like one. */
static void join_view_axes(qn__cuda_view *from, qn__cuda_view *to)
{
    int64_t n = 0;
    for (int64_t i = 0; i < from->ndim; i++) {
        const int64_t size = from->shape[i];
        if (size == 1)
            continue;
        bool joins = n > 0 && from->stride[n - 1] == size * from->stride[i] &&
                     to->stride[n - 1] == size * to->stride[i];
        if (joins)
            from->shape[n - 1] *= size;
        else
            from->shape[n++] = size;
        from->stride[n - 1] = from->stride[i];
        to->stride[n - 1] = to->stride[i];
    }
    from->ndim = to->ndim = n;
    memcpy(to->shape, from->shape, sizeof to->shape);
}

/* Several elements that lie side by side in both are one of up to 16 bytes. */
static void widen_elements(qn__cuda_copy_args *args, uint64_t places)
{
    const int64_t last = args->from.ndim - 1;
    if (last < 0 || args->from.stride[last] != 1 || args->to.stride[last] != 1)
        return;
    while (args->size < 16) {
        bool even = args->from.shape[last] % 2 == 0 && args->to_offset % 2 == 0 &&
                    places % (2 * (uint64_t)args->size) == 0;
        for (int64_t i = 0; i < last; i++)
            even = even && args->from.stride[i] % 2 == 0 && args->to.stride[i] % 2 == 0;
        if (!even)
            return;
        for (int64_t i = 0; i < last; i++) {
            args->from.stride[i] /= 2;
            args->to.stride[i] /= 2;
        }
        args->from.shape[last] /= 2;
        args->to.shape[last] /= 2;
        args->to_offset /= 2;
        args->n /= 2;
        args->size *= 2;
    }
}

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
    if (!args.n)
        return true;
    memcpy(args.to.shape, args.from.shape, sizeof args.to.shape);
    join_view_axes(&args.from, &args.to);
    widen_elements(&args, (uint64_t)(x->offset | y->offset));
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
