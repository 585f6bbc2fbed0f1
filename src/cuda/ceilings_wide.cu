/* SPDX-License-Identifier: Apache-2.0
 *
 * Products by wgmma that never wait for memory, for sm_90: what tensor cores do at best. A block's
 * two groups of four warps multiply 64 rows each by 256, as those of wide.cu, and take what lies in
 * shared memory in turn.
 */
#include "cuda/ceilings.cuh"
#include "cuda/wide.cuh"

extern "C" __global__ void __launch_bounds__(2 * GROUP)
    multiply_wide(const qn__cuda_multiply_args a)
{
    extern __shared__ __align__(1024) char room[];
    char *stages = room + (-shared_address(room) & 1023);
    const int group = threadIdx.x / GROUP;
    float c[128];
    for (int i = threadIdx.x; i < QN__CUDA_MULTIPLY_STAGES * QN__CUDA_MULTIPLY_STAGE / 4;
         i += 2 * GROUP)
        ((uint32_t *)stages)[i] = two_numbers(i);
    written_for_copies();
    __syncthreads();
    for (int64_t round = 0; round < a.rounds; round++) {
        const char *x = stages + (int)(round % QN__CUDA_MULTIPLY_STAGES) * QN__CUDA_MULTIPLY_STAGE;
        const uint64_t xd = tile_descriptor(x + group * 64 * 128),
                       wd = tile_descriptor(x + ROWS * 128);
        products_begin();
#pragma unroll
        for (int i = 0; i < DEEP / 16; i++)
            wide_product(c, xd + 2 * i, wd + 2 * i, round > 0 || i > 0);
        products_end();
        products_wait<1>();
    }
    products_wait<0>();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 128; i++) {
        settled(c[i]);
        sum += c[i];
    }
    keep(__float_as_uint(sum), a.result);
}
