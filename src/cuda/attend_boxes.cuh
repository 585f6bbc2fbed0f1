/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of a cache in bf16 brought by the tensor copy engine of sm_90, into a ring of stages. Keys
 * come as they lie in the cache, rows of 16 keys for each group and dimension, the halves of a row
 * exchanged as page_room has them (attend_half.cuh); values 64 columns after the other, of each
 * rows of 128 bytes as tensor.cuh has them.
 */
#ifndef QN_CUDA_ATTEND_BOXES_CUH
#define QN_CUDA_ATTEND_BOXES_CUH

#include "cuda/attend_half.cuh"
#include "cuda/tensor.cuh"

enum {
    PART_BYTES = 8192, /* 64 rows of 64 columns of values, which lie together */
    KEY_ROWS = 256     /* of a box of keys */
};

/* Asks for the keys, or the values, of the page that lies at `place`. One thread. */
template <int D>
static __device__ void ask_keys_of(const qn__cuda_attend_args &a, const qn__cuda_map &keys,
                                   char *to, int g, int64_t place, uint64_t *full)
{
    const int row = (int)((place * a.k_page + g * a.k_head) / QN__CUDA_KEY_GROUP);
    barrier_expect(full, PAGE * D * 2);
#pragma unroll
    for (int j = 0; j < D * 4 / KEY_ROWS; j++)
        copy_box(to + j * KEY_ROWS * 32, &keys, full, 0, row + j * KEY_ROWS);
}

template <int D>
static __device__ void ask_values_of(const qn__cuda_attend_args &a, const qn__cuda_map &values,
                                     char *to, int g, int64_t place, uint64_t *full)
{
    const int row = (int)((place * a.v_page + g * a.v_head) / D);
    barrier_expect(full, PAGE * D * 2);
#pragma unroll
    for (int j = 0; j < D / 64; j++)
        copy_box(to + j * PART_BYTES, &values, full, j * 64, row);
}

/* Values behind the last key become zeros, whatever the cache has there. */
template <int D> static __device__ void clear_values(char *values, int end)
{
    for (int k = threadIdx.x % 32; k < (PAGE - end) * 8; k += 32)
#pragma unroll
        for (int j = 0; j < D / 64; j++)
            *(uint4 *)(values + j * PART_BYTES + (end * 8 + k) * 16) = make_uint4(0, 0, 0, 0);
    written_for_copies();
    __syncwarp();
}

/* The weighted values of 16 columns of a page in parts of 64. */
static __device__ void part_columns(const char *values, const uint32_t (&p)[4][4], int columns,
                                    float (&v)[2][4])
{
    const int lane = threadIdx.x % 32, row = lane % 16, piece = columns % 4 * 2 + lane / 16;
    const uint4 *part = (const uint4 *)(values + columns / 4 * PART_BYTES);
    weigh_columns<8>(part + row * 8 + (piece ^ (row & 7)), p, v);
}

#endif
