/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops that read memory or multiply as fast as a GPU can, and do nothing else: its ceilings
 * (ceilings.c).
 */
#include "cuda/bulk.cuh"
#include "cuda/ceilings.cuh"

enum { AT_ONCE = 4, SUMS = QN__CUDA_MULTIPLY_SUMS };

/* 16 bytes that nobody needs again. */
static __device__ uint4 load_once(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* By loads: an H200 comes to 91 % so of what read_bulk does. */
extern "C" __global__ void __launch_bounds__(QN__CUDA_READ_THREADS)
    read_memory(const qn__cuda_read_args a)
{
    enum { STEP = QN__CUDA_READ_THREADS * AT_ONCE };
    const int64_t n = a.turns * (QN__CUDA_READ_TURN / 16);
    const uint4 *data = (const uint4 *)a.data + blockIdx.x * n + threadIdx.x;
    uint32_t all = 0;
    for (int64_t i = 0; i < n; i += STEP) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            v[k] = load_once(data + i + k * QN__CUDA_READ_THREADS);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            all ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    keep(all, a.result);
}

/* By the copy engine, whose ring one thread of a block keeps full. */
extern "C" __global__ void read_bulk(const qn__cuda_read_args a)
{
#if __CUDA_ARCH__ >= 900
    enum { RING = QN__CUDA_READ_RING, BYTES = QN__CUDA_READ_TURN };
    extern __shared__ __align__(128) char ring[];
    __shared__ uint64_t full[RING];
    const char *data = a.data + blockIdx.x * a.turns * BYTES;
    if (threadIdx.x)
        return;
    for (int i = 0; i < RING; i++)
        barrier_begin(&full[i], 1);
    barriers_begun();
    for (int i = 0; i < a.turns + RING; i++) {
        const int at = i % RING;
        if (i >= RING)
            barrier_wait(&full[at], i / RING + 1 & 1);
        if (i < a.turns) {
            barrier_expect(&full[at], BYTES);
            copy_bulk(ring + at * BYTES, data + (int64_t)i * BYTES, BYTES, &full[at]);
        }
    }
#endif
}

/* mma.sync. */
extern "C" __global__ void __launch_bounds__(QN__CUDA_MULTIPLY_THREADS)
    multiply(const qn__cuda_multiply_args a)
{
    uint32_t v[6];
    float c[SUMS][4] = {};
    for (int i = 0; i < 6; i++)
        v[i] = two_numbers(threadIdx.x * 6 + i);
    for (int64_t round = 0; round < a.rounds; round++)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            mma_bf16(c[i], v[0], v[1], v[2], v[3], v[4], v[5]);
    float sum = 0;
    for (int i = 0; i < SUMS; i++)
        sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    keep(__float_as_uint(sum), a.result);
}
