/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: linear back, the transposed product on packed weights, y[M, K] = x[M, N] W[N, K], for
 * gradients.
 *
 * Blocks of W are widened and turned into panels of 16 columns, for the tiles of products in f32:
 * one fma chain an output in order of n. A turned block stays in the second cache while all rows
 * pass; with many of them, turning costs little beside the products.
 */
#include "linear_avx512.h"
#include "transpose_avx512.h"
#include "vec_avx512.h"

#include "widen.inl"

enum { TURNED_ROWS = 128, TILE_PANELS = 3 };

/* Columns c0 .. c1 - 1 of W's rows n0 .. n0 + count - 1 (n0 a multiple of 16) as f32 panels
 * [column / 16][count][16]; `wide` is room for 16 rows of these columns. */
static void turn_block(const qn__cpu_linear *a, size_t c0, size_t c1, size_t n0, size_t count,
                       float *wide, float *to)
{
    size_t columns = a->layout->columns, units = (c1 - c0 + columns - 1) / columns;
    for (size_t n = 0; n < count; n += 16) {
        size_t rows = count - n < 16 ? count - n : 16;
        widen_panel(a->layout, a->unpack, a->w, a->k, (n0 + n) / 16, c0 / columns, units, wide);
        for (size_t c = 0; c < c1 - c0; c += 16) {
            __m512i r[16];
            for (size_t i = 0; i < 16; i++)
                r[i] = _mm512_load_si512(wide + (c + i) * 16);
            transpose_16x16(r);
            for (size_t i = 0; i < rows; i++)
                _mm512_store_si512(to + c * count + (n + i) * 16, r[i]);
        }
    }
}

static void linear_back_avx512(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    _Alignas(64) float turned[TURNED_ROWS * 256], wide[256 * 16];
    size_t columns = qn__cpu_back_panels(a->layout) * 16;
    size_t end = p1 * 16 < a->k ? p1 * 16 : a->k;
    memset(wide, 0, sizeof wide);
    for (size_t c = p0 * 16; c < end; c += columns) {
        size_t c1 = end - c < columns ? end : c + columns, last = qn__cpu_panels(c1);
        for (size_t n = 0; n < a->n; n += TURNED_ROWS) {
            size_t count = a->n - n < TURNED_ROWS ? a->n - n : TURNED_ROWS;
            turn_block(a, c, c1, n, count, wide, turned);
            for (size_t p = c / 16; p < last; p += TILE_PANELS)
                qn__cpu_turned_rows_avx512(a, turned + (p * 16 - c) * count, count, p,
                                           last - p < TILE_PANELS ? last - p : TILE_PANELS, n);
        }
    }
}

void qn__cpu_fill_back_avx512(qn__cpu_kernels *t)
{
    t->linear_back = linear_back_avx512;
}
