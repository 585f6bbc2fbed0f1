/* SPDX-License-Identifier: Apache-2.0 */
/* What the AVX-512 tier's linear lends to those that override it. */
#ifndef QN_CPU_LINEAR_AVX512_H
#define QN_CPU_LINEAR_AVX512_H

#include <immintrin.h>

#include "kernels.h"

/* A tile of 1 to 8 rows x 1 to 3 panels. A unit is 64 bytes of a panel, 16 outputs: one f32 each,
 * or a pair of bf16. */
typedef struct tile_args {
    const char *w; /* first panel, at the first unit */
    size_t panel_bytes;
    const float *x; /* block of rows, at the first unit */
    size_t units;
    float *y;
    size_t ldy;
    int resume;     /* take sums from y */
    __mmask16 last; /* lanes of the last panel that exist */
    size_t ahead;   /* bytes from a panel to the one of the next group; 0: no prefetch */
    size_t next;    /* bytes to what the second cache is to have next */
    int ask;        /* ... of these panels, a bit each */
} tile_args;

void qn__cpu_tile_f32_avx512(size_t rows, size_t panels, const tile_args *a);

/* How fma adds as the dot product does: denormals are zero, all exceptions masked, to nearest. For
 * products alone: what is widened on the way may pass through denormals. */
enum { QN__DOT_PRODUCT_CSR = 0x9fc0 };

/* Products of gradients: rows of W, turned, lie as f32; rounded to bf16 as pairs, for the dot
 * product; or rounded as f32, odd rows before even ones, which gives the same bits. */
typedef enum qn__turned { QN__TURNED_F32, QN__TURNED_PAIRS, QN__TURNED_WORDS } qn__turned;

void qn__cpu_back_avx512(const qn__cpu_linear *a, qn__turned kind, size_t p0, size_t p1);

/* Units u .. u + units - 1 of W's rows, turned, [panel][room][16 columns], meet all rows that are
 * wanted: up to three panels of y, from panel p on. `all` units is what x has. */
void qn__cpu_turned_rows_avx512(const qn__cpu_linear *a, qn__turned kind, const float *w,
                                size_t room, size_t units, size_t p, size_t panels, size_t u,
                                size_t all);

/* Products of bf16, by the dot product. */
void qn__cpu_prepare_bf16_avx512(const qn__layout *l, void *dst, const float *x, size_t ldx,
                                 size_t m, size_t k, size_t m0, size_t m1);
void qn__cpu_linear_bf16_avx512(const qn__cpu_linear *a, size_t p0, size_t p1);

/* Products of bytes; whole: all of a row has one scale. */
void qn__cpu_prepare_int8_avx512(const qn__layout *l, void *dst, const float *x, size_t ldx,
                                 size_t m, size_t k, size_t m0, size_t m1, int whole);
void qn__cpu_linear_int8_avx512(const qn__cpu_linear *a, size_t p0, size_t p1);

#endif
