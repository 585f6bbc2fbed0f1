/* SPDX-License-Identifier: Apache-2.0
 *
 * A span of units by the bytes of x on tensor cores, whose products have eight columns: those of
 * one row of x, or of up to eight.
 */
#ifndef QN_CUDA_BYTE_STEPS_CUH
#define QN_CUDA_BYTE_STEPS_CUH

#include "cuda/bytes.cuh"
#include "cuda/mma.cuh"
#include "cuda/tiles.cuh"

/* A step's sums, onto c: codes of two rows of w by a lane's words of x. */
template <int WORDS>
static __device__ void add_products(int (&c)[4], const uint2 (&code)[WORDS],
                                    const uint32_t (&w)[WORDS])
{
    if (WORDS == 1)
        mma_bytes(c, code[0].x, code[0].y, w[0]);
#pragma unroll
    for (int i = 0; i + 1 < WORDS; i += 2)
        mma_bytes(c, code[i].x, code[i].y, code[i + 1].x, code[i + 1].y, w[i], w[i + 1]);
}

/* What sums of bytes begin with, which are less than 2^22: they are then the last bits of a float
 * of 1.5 * 2^23, and that taken from it leaves them. */
enum { ZERO_BITS = 0x4b400000 };

/* How the eight columns of a product, of which a lane has the bytes of number g and the sums of
 * numbers 2 t and 2 t + 1, are at most W rows of x: one row is all of them, each of four is two, so
 * that a lane has one row's sums, and eight are one each. */
template <int W> struct row_columns {
    enum { OWN = W == 8 ? 2 : 1 }; /* rows of which a lane has sums */
    static __device__ int row_of_bytes(int g)
    {
        return W == 1 ? 0 : W == 4 ? g / 2 : g;
    }
    static __device__ int row_of_sums(int t)
    {
        return W == 1 ? 0 : OWN * t;
    }
};

/* A step's products, added to f: of rows 2 g and 2 g + 1, which lie side by side and are the
 * product's rows g and g + 8, by OWN rows of x. */
template <class U, int OWN>
static __device__ void multiply_row(const uint8_t *u, int s, const uint32_t (&w)[U::STEP / 16],
                                    const byte_step (&x)[OWN], int g, int t, float f[2 * OWN])
{
    enum { WORDS = U::STEP / 16 };
    int c[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = U::BIASED ? ZERO_BITS : ZERO_BITS + x[i % OWN].added;
    uint2 code[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        code[i] = U::codes(u, s * (U::STEP / 4) + 4 * i, t, g);
    const float2 scale = U::scales(u, s, g), bias = U::biases(u, s, g);
    add_products<WORDS>(c, code, w);
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        float *const to = f + 2 * o;
        to[0] = fmaf(__int_as_float(c[o]) - 12582912.0f, scale.x * x[o].scale, to[0]);
        to[1] = fmaf(__int_as_float(c[2 + o]) - 12582912.0f, scale.y * x[o].scale, to[1]);
        if (U::BIASED) {
            to[0] = fmaf(bias.x, __int_as_float(x[o].added), to[0]);
            to[1] = fmaf(bias.y, __int_as_float(x[o].added), to[1]);
        }
    }
}

/* What is known of steps of a lane's rows of x, of which the next one's lie `behind` bytes from the
 * first one's. */
template <int OWN> struct steps_of_lane {
    const byte_step *first;
    int behind;

    __device__ const byte_step *at(int o) const
    {
        return o ? (const byte_step *)((const char *)first + behind) : first;
    }
};

/* n units of a span, of M tiles that lie `apart` bytes from each other. bytes, steps: the lane's.
 */
template <class U, int M, bool WHOLE, int OWN>
static __device__ void multiply_rows(const uint8_t *units, int n, int apart, const char *bytes,
                                     const steps_of_lane<OWN> &steps, int g, int t,
                                     float f[][2 * OWN])
{
    enum { UNITS = SPAN / U::COLUMNS, STEPS = U::COLUMNS / U::STEP, WORDS = U::STEP / 16 };
#pragma unroll(WHOLE ? UNITS : 1)
    for (int i = 0; i < (WHOLE ? UNITS : n); i++)
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            __align__(16) uint32_t w[WORDS];
            words_of_x<U>(bytes + i * U::COLUMNS + s * U::STEP, w);
            byte_step x[OWN];
#pragma unroll
            for (int o = 0; o < OWN; o++)
                x[o] = steps.at(o)[i * STEPS + s];
#pragma unroll
            for (int m = 0; m < M; m++)
                multiply_row<U, OWN>(units + m * apart + i * U::BYTES, s, w, x, g, t, f[m]);
        }
}

/* The only row's span of M tiles. All columns of a product would be that row: they are steps,
 * column s with the bytes of step s and zeros for the others, so that a lane has the sums of two,
 * and makes of those alone what follows. Each lane in turn adds its own, in the order of steps, as
 * multiply_rows does; lanes with t = 3 have the last. */
template <class U, int M>
static __device__ void multiply_steps(const uint8_t *units, int apart, const char *bytes,
                                      const byte_step *steps, int g, int t, float (&f)[M][2])
{
    static_assert(SPAN / U::STEP % 8 == 0, "");
    enum {
        STEPS = SPAN / U::STEP,
        AT_ONCE = 8,
        OWN = 2,
        OF_UNIT = U::COLUMNS / U::STEP,
        WORDS = U::STEP / 16
    };
#pragma unroll
    for (int first = 0; first < STEPS; first += AT_ONCE) {
        __align__(16) uint32_t mine[WORDS];
        byte_step x[OWN];
        int c[M][4];
        words_of_x<U>(bytes + (first + g) * U::STEP, mine);
#pragma unroll
        for (int o = 0; o < OWN; o++)
            x[o] = steps[first + OWN * t + o];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[m][i] = is_of_highs(U(), i % OWN) ? 0
                          : U::BIASED               ? ZERO_BITS
                                                    : ZERO_BITS + x[i % OWN].added;
#pragma unroll
        for (int s = 0; s < AT_ONCE; s++) {
            uint32_t w[WORDS];
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                w[i] = g == s ? mine[i] : 0;
#pragma unroll
            for (int m = 0; m < M; m++) {
                const uint8_t *u = units + m * apart + (first + s) / OF_UNIT * U::BYTES;
                const int quad = (first + s) % OF_UNIT * (U::STEP / 4);
                uint2 code[WORDS];
#pragma unroll
                for (int i = 0; i < WORDS; i++)
                    code[i] = codes_as_they_lie(U(), u, quad + 4 * i, t, g);
                add_products(c[m], code, w);
            }
        }
        float2 sum[M][OWN], scale[M][OWN], bias[M][OWN];
#pragma unroll
        for (int m = 0; m < M; m++) {
            values_of_steps(U(), units + m * apart, first + OWN * t, t, g, scale[m], bias[m]);
#pragma unroll
            for (int o = 0; o < OWN; o++) {
                scale[m][o] = times(scale[m][o], make_float2(x[o].scale, x[o].scale));
                if (is_of_highs(U(), o)) {
                    c[m][o] = (c[m][o] >> 4) + ZERO_BITS;
                    c[m][2 + o] = (c[m][2 + o] >> 4) + ZERO_BITS;
                }
                sum[m][o] = make_float2(__int_as_float(c[m][o]) - 12582912.0f,
                                        __int_as_float(c[m][2 + o]) - 12582912.0f);
            }
        }
#pragma unroll
        for (int from = 0; from < 4; from++)
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int o = 0; o < OWN; o++) {
                    f[m][0] = fmaf(sum[m][o].x, scale[m][o].x, f[m][0]);
                    f[m][1] = fmaf(sum[m][o].y, scale[m][o].y, f[m][1]);
                    if (U::BIASED) {
                        f[m][0] = fmaf(bias[m][o].x, __int_as_float(x[o].added), f[m][0]);
                        f[m][1] = fmaf(bias[m][o].y, __int_as_float(x[o].added), f[m][1]);
                    }
                }
                if (from < 3 || first + AT_ONCE < STEPS) {
                    f[m][0] = __shfl_sync(~0u, f[m][0], from, 4);
                    f[m][1] = __shfl_sync(~0u, f[m][1], from, 4);
                }
            }
    }
}

#endif
