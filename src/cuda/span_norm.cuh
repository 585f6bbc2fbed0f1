/* SPDX-License-Identifier: Apache-2.0
 *
 * Two norms by a launch of one row on units (byte_row.cuh): y = norm(added + norm(x)), which its
 * blocks multiply, and the sum, which goes to memory.
 *
 * Problem: such norms by a launch of their own are 1.3 us from end to end. Every block needs all of
 * the row, and what all warps do between that and its products is slow by its instructions.
 * Approach: the launch that made x has put the sums of squares of its quads beside it (norm.cuh).
 * Of these one warp, that which makes results later, makes the scale, while the others have their
 * columns on the way; they meet it once. Then they give it the sum's squares, and meet it again.
 * Each of them has one span.
 */
#ifndef QN_CUDA_SPAN_NORM_CUH
#define QN_CUDA_SPAN_NORM_CUH

#include "cuda/bulk.cuh"
#include "cuda/bytes.cuh"
#include "cuda/norm.cuh"
#include "cuda/tiles.cuh"

/* A lane's eight columns of a span; of those behind the row there are none left, and zeros. */
template <class U, bool ALIGNED>
static __device__ void load_span(const float *x, int columns, float4 (&v)[2])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float *from = x + j * columns_behind<U>();
        v[j] = columns <= 0 ? make_float4(0, 0, 0, 0)
               : ALIGNED    ? *(const float4 *)from
                            : make_float4(from[0], from[1], from[2], from[3]);
    }
}

/* How a scale comes to the warps that multiply. */
struct norm_scales {
    /* Barriers, in the code itself: of numbers that are not, a block would have all 16. Both scales
     * come by one, since between them all meet at the other. */
    enum { SCALE = 1, SQUARES };
    uint32_t room; /* of a scale */
    float *given;  /* sums of squares, where bytes of x come to later */
    int threads;

    template <int BARRIER> __device__ void arrive() const
    {
        asm volatile("bar.arrive %0, %1;" ::"n"(BARRIER), "r"(threads) : "memory");
    }
    template <int BARRIER> __device__ void meet() const
    {
        asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "r"(threads) : "memory");
    }
    /* By the warp that makes them, which waits here for x. */
    __device__ void make(const qn__cuda_linears_args &a) const
    {
        const int lane = threadIdx.x % 32;
        const float n = (float)(int)a.k, nth = known_now(reciprocal_of(n)), eps = a.eps;
        const squares_of_row row((int)a.k, lane);
        const float4 *from = (const float4 *)a.at[QN__CUDA_SQUARES] + row.first,
                     *next = (const float4 *)given + row.first;
        wait_behind((int)room | row.left | (int)(intptr_t)from | (int)(intptr_t)next |
                    __float_as_int(nth) | __float_as_int(eps) | __float_as_int(a.eps_behind));
        float by = eps;
#pragma unroll 1
        for (;; from = next, by = a.eps_behind) {
            const float scale = quick_scale_of(row.sum(from), n, nth, by);
            if (lane == 0)
                *shared_place<float>(room) = scale;
            arrive<SCALE>();
            if (from == next)
                return;
            meet<SQUARES>();
        }
    }
    /* By the others. */
    __device__ float take() const
    {
        meet<SCALE>();
        return *shared_place<const float>(room);
    }
    /* By a warp, of its span, a lane of which has two quads from this column on. */
    template <class U> __device__ void give(const float4 (&v)[2], int column) const
    {
        given[column / 4] = quad_sum(v[0]);
        given[(column + columns_behind<U>()) / 4] = quad_sum(v[1]);
        arrive<SQUARES>();
    }
};

/* A lane's columns of its warp's span. NORMS: whether there may be norms. */
template <class U, bool NORMS> struct span_norm {
    const qn__cuda_linears_args &a;
    const int column, columns; /* the first one, and how many there are from it on */
    float4 weight[2], behind[2];

    /* Before x is waited for. */
    __device__ span_norm(const qn__cuda_linears_args &args, int first)
        : a(args), column(first), columns((int)a.k - first)
    {
        if (is_wanted()) {
            load(QN__CUDA_NORM_OF_X, weight);
            load(QN__CUDA_NORM_OF_SUM, behind);
        }
    }
    __device__ bool is_wanted() const
    {
        return NORMS && a.at[QN__CUDA_NORM_OF_X];
    }
    __device__ void load(int k, float4 (&v)[2]) const
    {
        load_span<U, true>((const float *)a.at[k] + column, columns, v);
    }
    static __device__ void scale(float4 (&v)[2], float by, const float4 (&weight)[2])
    {
#pragma unroll
        for (int j = 0; j < 2; j++)
            v[j] = normed(v[j], by, weight[j]);
    }
    /* Some block's warp of that number puts the sum where it goes. While loads are on their way,
     * another thing is done. */
    template <class F>
    __device__ void make(float4 (&v)[2], const norm_scales &scales, const F &meanwhile) const
    {
        float4 added[2];
        float *sum = (float *)a.at[QN__CUDA_SUM_WITH_X] + column;
        load(0, v);
        load(QN__CUDA_ADDED_TO_X, added);
        meanwhile();
        scale(v, scales.take(), weight);
#pragma unroll
        for (int j = 0; j < 2; j++)
            v[j] = sum_of(v[j], added[j]);
        scales.give<U>(v, column);
        if (blockIdx.x == min(threadIdx.x / 32, gridDim.x - 1) && columns > 0)
#pragma unroll
            for (int j = 0; j < 2; j++)
                *(float4 *)(sum + j * columns_behind<U>()) = v[j];
        scale(v, scales.take(), behind);
    }
};

#endif
