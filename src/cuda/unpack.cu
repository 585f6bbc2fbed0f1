/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights in units as rows in bf16, for products of many rows of x (wide.cu): scale times code plus
 * bias in f32, rounded once.
 *
 * A warp has 16 rows by 64 columns, a lane eight neighbouring columns of four rows, so that eight
 * lanes store a line of 128 bytes.
 */
#include "cuda/common.cuh"
#include "cuda/unpack.cuh"

enum { TILE = 16, PIECE = 64 };

template <class U> static __device__ void unpack(const qn__cuda_unpack_args &a)
{
    enum { LANES = PIECE / 8, ROWS = 32 / LANES, TURNS = TILE / ROWS };
    const int lane = threadIdx.x % 32, column = lane % LANES * 8, row = lane / LANES,
              pieces = (int)(a.padded / PIECE), units = (int)((a.k + U::COLUMNS - 1) / U::COLUMNS);
    const int64_t all = (a.n + TILE - 1) / TILE * pieces,
                  warps = (int64_t)gridDim.x * blockDim.x / 32;
    uint16_t *to = (uint16_t *)a.at[1] + a.first * a.padded;
    wait_for_others();
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < all; i += warps) {
        const int64_t tile = i / pieces;
        const int c = (int)(i % pieces) * PIECE + column, in = c % U::COLUMNS, s = in / U::STEP,
                  quad = in / 4 & ~3, t = in / 4 & 3;
        const uint8_t *u = (const uint8_t *)a.at[0] + (tile * units + c / U::COLUMNS) * U::BYTES;
        uint32_t codes[TURNS][2];
        step_values values[TURNS];
#pragma unroll
        for (int j = 0; j < TURNS; j++) {
            const int r = row + ROWS * j;
            codes[j][0] = U::code(u, quad, t, r);
            codes[j][1] = U::code(u, quad, t + 1, r);
            values[j] = unpacked<U>::values(U::scale(u, s, r), U::bias(u, s, r));
        }
#pragma unroll
        for (int j = 0; j < TURNS; j++) {
            const int64_t r = tile * TILE + row + ROWS * j;
            const uint2 low = unpacked<U>::four(codes[j][0], values[j]),
                        high = unpacked<U>::four(codes[j][1], values[j]);
            if (r < a.n)
                *(uint4 *)(to + r * a.padded + c) = make_uint4(low.x, low.y, high.x, high.y);
        }
    }
}

#define UNPACK_KERNEL(name, ...)                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        unpack_##name(const __grid_constant__ qn__cuda_unpack_args a)                              \
    {                                                                                              \
        unpack<__VA_ARGS__>(a);                                                                    \
    }
#define CUDA_UNITS(id, name, ...) UNPACK_KERNEL(name, __VA_ARGS__)
#include "cuda/units.def"
#undef CUDA_UNITS
