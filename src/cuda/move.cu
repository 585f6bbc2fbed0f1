/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that move elements: a thread an element, or several that lie side by side.
 */
#include "cuda/common.cuh"

extern "C" __global__ void arange(qn__cuda_arange_args a)
{
    wait_for_others();
    void *y = a.at[0];
    FOR_EACH(i, a.n)
    {
        switch (a.type) {
        case QN_U8:
        case QN_I8: ((uint8_t *)y)[i] = (uint8_t)i; break;
        case QN_U16:
        case QN_I16: ((uint16_t *)y)[i] = (uint16_t)i; break;
        case QN_U32:
        case QN_I32: ((uint32_t *)y)[i] = (uint32_t)i; break;
        case QN_U64:
        case QN_I64: ((int64_t *)y)[i] = i; break;
        case QN_F16: ((__half *)y)[i] = __float2half_rn((float)(double)i); break;
        case QN_BF16: ((uint16_t *)y)[i] = bf16_of_f32((float)(double)i); break;
        case QN_F32: ((float *)y)[i] = (float)(double)i; break;
        default: ((double *)y)[i] = (double)i; break;
        }
    }
}

/* A block: what it writes is little. */
extern "C" __global__ void put(const __grid_constant__ qn__cuda_put_args a)
{
    int first = 0;
    wait_for_others();
    for (int p = 0; p < a.n; p++) {
        for (int i = first + (int)threadIdx.x; a.at[p] && i < a.end[p]; i += THREADS)
            ((uint32_t *)a.at[p])[i - first] = a.words[i];
        first = a.end[p];
        __syncthreads(); /* a later piece may lie over an earlier one */
    }
}

extern "C" __global__ void copy(const __grid_constant__ qn__cuda_copy_args a)
{
    const bool small = a.n <= INT32_MAX;
    wait_for_others();
    FOR_EACH(i, a.n)
    {
        const int64_t to =
            a.to_offset + (small ? offset_of_small(a.to, (uint32_t)i) : offset_of(a.to, i));
        const int64_t from = small ? offset_of_small(a.from, (uint32_t)i) : offset_of(a.from, i);
        if (a.size == 16)
            ((uint4 *)a.at[1])[to] = ((const uint4 *)a.at[0])[from];
        else
            move_element(a.at[1], to, a.at[0], from, a.size);
    }
}

extern "C" __global__ void take_along_last(qn__cuda_along_args a)
{
    wait_for_others();
    const int32_t *ids = (const int32_t *)a.at[1];
    const uint64_t zero = 0;
    FOR_EACH(i, a.n)
    {
        int64_t id = ids[i];
        if (id < 0 || id >= a.last)
            move_element(a.at[2], i, &zero, 0, a.size);
        else
            move_element(a.at[2], i, a.at[0], offset_of(a.lead, i) + id * a.last_stride, a.size);
    }
}
