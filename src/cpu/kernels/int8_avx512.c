/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: units of weights, and linear by exact products of bytes (vpdpbusd).
 *
 * Tiles of 4 rows x 3 panels: 12 integer and 12 f32 accumulators; a quad of columns costs 12 dot
 * products on the two pipes that also do the step's 12 multiplications and 12 or 24 fmas, which
 * sets the bound: 8/10 of the peak for steps of 32 without bias, 16/19 for 64 with. Conversions,
 * masks and loads hide beside the dot products.
 *
 * Up to 24 rows, eight at a time straight from units: unpacking waits for memory while nothing is
 * multiplied, and too few rows follow to make up for it.
 *
 * Accumulators have names because clang 14 keeps arrays of them in memory.
 */
#include "linear_avx512.h"
#include "vec_avx512.h"

#include "units.inl"

#define INT8_DIRECT_ROWS 24
#define INT8_TILE        byte_tiles
enum { INT8_ROWS = 4, INT8_PANELS = 3 };

#include "int8.inl"

#include "int8_vec.inl"

ALWAYS uint32_t word_at(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}

ALWAYS float float_at(const uint8_t *p)
{
    float f;
    memcpy(&f, p, 4);
    return f;
}

/* rows x panels (2 or 3), constants at every call. */
ALWAYS void byte_tile(int rows, int panels, int biased, const int8_args *a)
{
    const uint8_t *w = a->codes, *x = a->x, *meta = a->meta;
    const float *scale = a->scale, *bias = a->bias;
    const __mmask16 all = 0xffff, last = v_first(a->last);
#define LANES(p) (panels == p + 1 ? last : all) /* p > 0 */
#define BEGIN(r)                                                                                   \
    __m512 f##r##0 = _mm512_setzero_ps(), f##r##1 = f##r##0, f##r##2 = f##r##0;                    \
    if (a->resume && rows > r) {                                                                   \
        const float *y = a->y + r * a->ldy;                                                        \
        f##r##0 = _mm512_maskz_loadu_ps(all, y);                                                   \
        f##r##1 = _mm512_maskz_loadu_ps(LANES(1), y + 16);                                         \
        if (panels > 2)                                                                            \
            f##r##2 = _mm512_maskz_loadu_ps(LANES(2), y + 32);                                     \
    }
    INT8_EACH_ROW(BEGIN)
#undef BEGIN
    for (size_t s = 0; s < a->steps; s++) {
#define START(r)                                                                                   \
    __m512i c##r##0 = _mm512_set1_epi32(rows > r ? (int)word_at(meta + 4 * (rows + r)) : 0),       \
            c##r##1 = c##r##0, c##r##2 = c##r##0;
        INT8_EACH_ROW(START)
#undef START
        for (size_t q = 0; q < a->quads; q++) {
            __m512i w0 = _mm512_load_si512(w), w1 = w0, w2 = w0;
            w1 = _mm512_load_si512(w + INT8_PANEL_CODES);
            if (panels > 2)
                w2 = _mm512_load_si512(w + 2 * INT8_PANEL_CODES);
#define STEP(r)                                                                                    \
    if (rows > r) {                                                                                \
        __m512i v = _mm512_set1_epi32((int)word_at(x + 4 * r));                                    \
        c##r##0 = vi_dot_with(c##r##0, w0, v);                                                     \
        c##r##1 = vi_dot_with(c##r##1, w1, v);                                                     \
        if (panels > 2)                                                                            \
            c##r##2 = vi_dot_with(c##r##2, w2, v);                                                 \
    }
            INT8_EACH_ROW(STEP)
#undef STEP
            w += 64;
            x += 4 * rows;
        }
        __m512 s0 = _mm512_load_ps(scale), s1 = s0, s2 = s0, b0 = s0, b1 = s0, b2 = s0;
        s1 = _mm512_load_ps(scale + INT8_PANEL_SCALES);
        if (panels > 2)
            s2 = _mm512_load_ps(scale + 2 * INT8_PANEL_SCALES);
        if (biased) {
            b0 = _mm512_load_ps(bias);
            b1 = _mm512_load_ps(bias + INT8_PANEL_SCALES);
            if (panels > 2)
                b2 = _mm512_load_ps(bias + 2 * INT8_PANEL_SCALES);
        }
#define ADD(r, p)                                                                                  \
    if (panels > p) {                                                                              \
        f##r##p = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c##r##p), _mm512_mul_ps(s##p, v), f##r##p);   \
        if (biased)                                                                                \
            f##r##p = _mm512_fmadd_ps(b##p, t, f##r##p);                                           \
    }
#define END(r)                                                                                     \
    if (rows > r) {                                                                                \
        __m512 v = _mm512_set1_ps(float_at(meta + 4 * r)), t = v;                                  \
        if (biased)                                                                                \
            t = _mm512_set1_ps(float_at(meta + 4 * (2 * rows + r)));                               \
        ADD(r, 0)                                                                                  \
        ADD(r, 1)                                                                                  \
        ADD(r, 2)                                                                                  \
    }
        INT8_EACH_ROW(END)
#undef END
#undef ADD
        meta += 12 * rows;
        scale += 16;
        bias += 16;
    }
#define SAVE(r)                                                                                    \
    if (rows > r) {                                                                                \
        float *y = a->y + r * a->ldy;                                                              \
        _mm512_mask_storeu_ps(y, all, f##r##0);                                                    \
        _mm512_mask_storeu_ps(y + 16, LANES(1), f##r##1);                                          \
        if (panels > 2)                                                                            \
            _mm512_mask_storeu_ps(y + 32, LANES(2), f##r##2);                                      \
    }
    INT8_EACH_ROW(SAVE)
#undef SAVE
#undef LANES
}

ALWAYS void byte_tile_of(int biased, size_t rows, size_t panels, const int8_args *a)
{
    switch (rows * 2 + panels - 4) {
#define SHAPE(r)                                                                                   \
    case r * 2: byte_tile(r + 1, 2, biased, a); break;                                             \
    case r * 2 + 1: byte_tile(r + 1, 3, biased, a); break;
        INT8_EACH_ROW(SHAPE)
#undef SHAPE
    default: break;
    }
}

static void byte_tiles(size_t rows, size_t panels, const int8_args *a)
{
    if (panels == 1)
        int8_vec(rows, panels, a);
    else if (a->biased)
        byte_tile_of(1, rows, panels, a);
    else
        byte_tile_of(0, rows, panels, a);
}

void qn__cpu_prepare_int8_avx512(const qn__layout *l, void *dst, const float *x, size_t ldx,
                                 size_t m, size_t k, size_t m0, size_t m1, int whole)
{
    int8_prepare(l, dst, x, ldx, m, k, m0, m1, whole);
}

void qn__cpu_linear_int8_avx512(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    linear_int8(a, p0, p1);
}

void qn__cpu_fill_int8_avx512(qn__cpu_kernels *t)
{
    fill_vec_int8(t);
}
