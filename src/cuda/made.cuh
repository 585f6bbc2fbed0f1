/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes bytes for products of bytes, as cpu/kernels/int8.inl makes them: columns with a
 * scale for 32 of them or a longer step, by the blocks that multiply them (bytes.cuh) or, of
 * several rows, by a launch ahead; or rows with one scale each, by such a launch. Of these a step's
 * scale is 1, so that sums of codes without scales are whole numbers to the end, and a result is
 * multiplied by the row's: its bits do not depend on the order of sums. For ternary_wide.cu such
 * rows have no steps, and their bytes lie in the order of the columns.
 */
#ifndef QN_CUDA_MADE_CUH
#define QN_CUDA_MADE_CUH

#include "cuda/common.cuh"
#include "cuda/norm.cuh"
#include "quant/layout.h"

/* Of a row and a step of columns: what a byte of x is worth, and what the bytes' sum adds: to a
 * product's sum where 0 has a code, else, worth as much, to what a bias is multiplied by. */
struct byte_step {
    float scale;
    int added;
};

/* What a row, or a step, of largest magnitude `top` is multiplied by to be bytes. */
static __device__ float to_bytes(float top)
{
    const float inverse = top > 0 ? 127.0f / top : 0.0f;
    return inverse <= 3.4028235e38f ? inverse : 0.0f; /* the largest may be a denormal */
}

/* Of bits of a magnitude: a number, no less than 2^-60. */
static __device__ bool is_amid(uint32_t bits)
{
    return bits - 0x21800000u < 0x7f800000u - 0x21800000u;
}

/* The same of such a magnitude: by a quotient of 256ths, which are far from the ends. */
static __device__ float quick_to_bytes(float top)
{
    const float part = top * (1.0f / 256);
    return quotient(127.0f / 256, part, reciprocal_of(part));
}

/* The largest magnitude, as bits, which are in the order of magnitudes: above all numbers stand
 * infinity and what is no number, and either makes a result that is none. */
static __device__ uint32_t magnitude_of(float v)
{
    return __float_as_uint(v) & 0x7fffffffu;
}
static __device__ uint32_t top_of(float4 v)
{
    return max(max(magnitude_of(v.x), magnitude_of(v.y)),
               max(magnitude_of(v.z), magnitude_of(v.w)));
}

/* The largest of magnitudes; what is no number wins. */
static __device__ float larger_magnitude(float most, float a, float b)
{
    asm("{\n.reg .f32 a, b;\nabs.f32 a, %1;\nabs.f32 b, %2;\nmax.NaN.f32 %0, %0, a;\n"
        "max.NaN.f32 %0, %0, b;\n}"
        : "+f"(most)
        : "f"(a), "f"(b));
    return most;
}

/* The larger of two. */
static __device__ float larger_magnitude(float a, float b)
{
    float most;
    asm("{\n.reg .f32 a, b;\nabs.f32 a, %1;\nabs.f32 b, %2;\nmax.NaN.f32 %0, a, b;\n}"
        : "=f"(most)
        : "f"(a), "f"(b));
    return most;
}
/* Of eight, in as few steps as there can be. */
static __device__ float largest_magnitude(const float4 (&v)[2])
{
    return larger_magnitude(larger_magnitude(larger_magnitude(v[0].x, v[0].y),
                                             larger_magnitude(v[0].z, v[0].w)),
                            larger_magnitude(larger_magnitude(v[1].x, v[1].y),
                                             larger_magnitude(v[1].z, v[1].w)));
}

/* Of a row, of which each thread of a block of THREADS has some; no less than the least. */
static __device__ float top_of_block(uint32_t top, uint32_t *room)
{
    top = __reduce_max_sync(~0u, top);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = top;
    __syncthreads();
    top = magnitude_of(QN__LEAST_OF_ROW);
    for (int i = 0; i < THREADS / 32; i++)
        top = max(top, room[i]);
    __syncthreads();
    return __uint_as_float(top);
}

/* Four columns as bytes; *sum gets their sum over the `lanes` lanes that have a step. */
static __device__ uint32_t bytes_by(float4 v, float inverse, int lanes, int *sum)
{
    const int b0 = __float2int_rn(v.x * inverse), b1 = __float2int_rn(v.y * inverse),
              b2 = __float2int_rn(v.z * inverse), b3 = __float2int_rn(v.w * inverse);
    *sum = b0 + b1 + b2 + b3;
    for (int m = 1; m < lanes; m *= 2)
        *sum += __shfl_xor_sync(~0u, *sum, m);
    return (b0 & 255) | (b1 & 255) << 8 | (b2 & 255) << 16 | (uint32_t)b3 << 24;
}

/* A row that a launch has made bytes: its scale, in 16 bytes, the steps, and the bytes. Where steps
 * have scales the row's is 1. */
struct made_row {
    const char *at;
    int columns, step; /* padded */

    __device__ byte_step *steps() const
    {
        return (byte_step *)(at + 16);
    }
    __device__ char *bytes() const
    {
        return (char *)(steps() + columns / step);
    }
};

static __device__ made_row made_row_of(const void *rows, int64_t row, int columns, int step)
{
    return {(const char *)rows + row * QN__CUDA_MADE_ROW(columns, step), columns, step};
}

/* Quad q of a row of that largest magnitude, or each step by its own, as bytes; lanes have quads
 * that follow each other, all of a warp. */
static __device__ void put_bytes(const made_row &to, const qn__cuda_byte_form &form, int q,
                                 float4 v, float top)
{
    const int of_step = (int)form.step / 4;
    if (form.by_step) {
        uint32_t bits = top_of(v);
        for (int m = 1; m < max(of_step, 8); m *= 2) /* of shorter steps two have a scale */
            bits = max(bits, __shfl_xor_sync(~0u, bits, m));
        top = __uint_as_float(bits);
    }
    int sum;
    const uint32_t word = bytes_by(v, to_bytes(top), of_step, &sum);
    const float worth = top / 127.0f, of_row = form.by_step ? 1.0f : worth,
                of = form.by_step ? worth : 1.0f;
    const int in_step = q & (of_step - 1); /* of 4, 8 or 16 quads */
    ((uint32_t *)to.bytes())[q - in_step + q % 4 * (of_step / 4) + in_step / 4] = word;
    if (in_step == 0)
        to.steps()[q / of_step] = {of, form.biased ? __float_as_int(of * (float)sum)
                                                   : -(int)form.zero * sum};
    if (q == 0)
        *(float *)to.at = of_row;
}

/* A row of bytes in their order begins with what one is worth and with their sum. */
struct made_head {
    float scale;
    int sum;
};

static __device__ char *ordered_row(void *rows, int64_t row, int columns)
{
    return (char *)rows + row * QN__CUDA_ORDERED_ROW(columns);
}

/* Its quad q; gives the bytes' sum. */
static __device__ int put_ordered(char *row, int q, float4 v, float inverse)
{
    int sum;
    ((uint32_t *)(row + QN__CUDA_MADE_HEAD))[q] = bytes_by(v, inverse, 1, &sum);
    return sum;
}

/* Its head, of sums that the block's threads have. */
static __device__ void put_head(char *row, float top, int sum, uint32_t *room)
{
    sum = __reduce_add_sync(~0u, sum);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = (uint32_t)sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
        for (int i = 0; i < THREADS / 32; i++)
            sum += (int)room[i];
        *(made_head *)row = {top / 127.0f, sum};
    }
    __syncthreads();
}

#endif
