/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of CUDA's operations, made from cuda.def, and what their files share.
 */
#include "cuda/cuda.h"

#define CUDA_ROUTINE(id, symbol) extern const qn__cuda_routine symbol;
#include "cuda/cuda.def"
#undef CUDA_ROUTINE

const qn__cuda_routine *const qn__cuda_routines[QN__OP_COUNT] = {
#define CUDA_ROUTINE(id, symbol) [QN__OP_##id] = &symbol,
#include "cuda/cuda.def"
#undef CUDA_ROUTINE
};

_Static_assert((int)QN__CUDA_AXES == (int)QN_MAX_NDIM, "args.h has room for every axis");

int64_t qn__cuda_elements(const qn__operand *o)
{
    int64_t n = 1;
    for (int i = 0; i < o->ndim; i++)
        n *= o->shape[i];
    return n;
}

int64_t qn__cuda_rows(const qn__operand *o)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < o->ndim; i++)
        n *= o->shape[i];
    return n;
}

qn__cuda_view qn__cuda_view_of(const qn__operand *o, int first, int ndim)
{
    qn__cuda_view view = {.ndim = ndim > first ? ndim - first : 0};
    for (int i = first; i < ndim; i++) {
        view.shape[i - first] = o->shape[i];
        view.stride[i - first] = o->stride[i];
    }
    return view;
}
