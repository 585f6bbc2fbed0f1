/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: linear back, the transposed product on packed weights, y[M, K] = x[M, N] W[N, K], for
 * gradients.
 *
 * Blocks of W are widened and turned into panels of 16 columns, for the tiles of the products
 * forward: one chain an output in order of n, of f32 or of pairs of bf16. A turned block stays in
 * the second cache while all rows pass; with many of them, turning costs little beside the
 * products.
 */
#include "linear_avx512.h"
#include "transpose_avx512.h"
#include "vec_avx512.h"

#include "widen.inl"

enum {
    MOST_COLUMNS = 256, /* of a layout's unit */
    TILE_PANELS = 3,
    BLOCK = 192 * 256, /* words of a turned block: in the second cache */
    MOST_UNITS = 512   /* of a panel in it */
};

/* Sixteen rows n of W, turned, r[n] lane k, as units of a panel. */
static void store_turned(qn__turned kind, bool exact, vi *r, float *to)
{
    for (size_t i = 0; i < 16 && kind != QN__TURNED_F32 && !exact; i++)
        r[i] = v_round_bf16(v_float(r[i]));
    if (kind == QN__TURNED_PAIRS)
        for (size_t i = 0; i < 16; i += 2)
            _mm512_store_si512(to + 8 * i, vi_or(_mm512_srli_epi32(r[i], 16), r[i + 1]));
    else
        for (size_t i = 0; i < 16; i++)
            _mm512_store_si512(to + 16 * (kind == QN__TURNED_WORDS ? i ^ 1 : i), r[i]);
}

/* Sixteen rows n of sixteen columns, pairs of columns as units hold them, as pairs of rows: squares
 * of two by two are turned, then each goes to its mirror image's place. */
static void turn_pairs(const uint8_t *units, float *to)
{
    const __m512i square =
        _mm512_broadcast_i32x4(_mm_set_epi32(0x0f0e0b0a, 0x0d0c0908, 0x07060302, 0x05040100));
    __m512i r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        r[i] = _mm512_shuffle_epi8(_mm512_load_si512(units + 64 * i), square);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_epi64(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi64(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m512i even0 = _mm512_shuffle_i32x4(t[i], t[i + 2], 0x88);
        __m512i even1 = _mm512_shuffle_i32x4(t[i + 4], t[i + 6], 0x88);
        __m512i odd0 = _mm512_shuffle_i32x4(t[i], t[i + 2], 0xdd);
        __m512i odd1 = _mm512_shuffle_i32x4(t[i + 4], t[i + 6], 0xdd);
        _mm512_store_si512(to + 16 * i, _mm512_shuffle_i32x4(even0, even1, 0x88));
        _mm512_store_si512(to + 16 * (i + 2), _mm512_shuffle_i32x4(odd0, odd1, 0x88));
        _mm512_store_si512(to + 16 * (i + 4), _mm512_shuffle_i32x4(even0, even1, 0xdd));
        _mm512_store_si512(to + 16 * (i + 6), _mm512_shuffle_i32x4(odd0, odd1, 0xdd));
    }
}

/* Columns c0 .. c1 - 1 of W's rows n0 .. n0 + count - 1 (n0 a multiple of 16) as panels
 * [column / 16][room][16]; `wide` is room for 16 rows of these columns. What is behind the last row
 * is zeros. */
static void turn_block(const qn__cpu_linear *a, qn__turned kind, size_t c0, size_t c1, size_t n0,
                       size_t count, size_t room, float *wide, float *to)
{
    const qn__layout *l = a->layout;
    size_t columns = l->columns, units = (c1 - c0 + columns - 1) / columns;
    bool exact = l->encoding == &qn__encodings[QN__BF16];
    bool pairs = exact && kind == QN__TURNED_PAIRS && (c1 - c0) % 16 == 0;
    for (size_t n = 0; n < count; n += 16) {
        size_t rows = count - n < 16 ? count - n : 16, at = kind == QN__TURNED_PAIRS ? n / 2 : n;
        if (pairs && rows == 16) {
            size_t along = (a->k + columns - 1) / columns;
            const uint8_t *from =
                (const uint8_t *)a->w + ((n0 + n) / 16 * along + c0 / columns) * 64;
            for (size_t c = 0; c < c1 - c0; c += 16)
                turn_pairs(from + c * 32, to + c * room + at * 16);
            continue;
        }
        widen_panel(l, a->unpack, a->w, a->k, (n0 + n) / 16, c0 / columns, units, wide);
        for (size_t c = 0; c < c1 - c0; c += 16) {
            vi r[16];
            for (size_t i = 0; i < 16; i++)
                r[i] = _mm512_load_si512(wide + (c + i) * 16);
            transpose_16x16(r);
            for (size_t i = rows; i < 16; i++)
                r[i] = _mm512_setzero_si512();
            store_turned(kind, exact, r, to + c * room + at * 16);
        }
    }
}

void qn__cpu_back_avx512(const qn__cpu_linear *a, qn__turned kind, size_t p0, size_t p1)
{
    _Alignas(64) float turned[BLOCK], wide[MOST_COLUMNS * 16];
    size_t columns = qn__cpu_back_panels(a->layout) * 16, end = p1 * 16 < a->k ? p1 * 16 : a->k;
    size_t pair = kind == QN__TURNED_PAIRS ? 2 : 1; /* rows of a unit */
    size_t room = BLOCK / ((columns + 15) / 16 * 16) / 16 * 16, step;
    room = room < MOST_UNITS ? room : MOST_UNITS;
    step = room * pair;
    size_t all = kind == QN__TURNED_F32 ? a->n : (a->n + 1) / 2 * 2 / pair;
    memset(wide, 0, sizeof wide);
    for (size_t c = p0 * 16; c < end; c += columns) {
        size_t c1 = end - c < columns ? end : c + columns, last = qn__cpu_panels(c1);
        for (size_t n = 0; n < a->n; n += step) {
            size_t count = a->n - n < step ? a->n - n : step, u = n / pair;
            size_t units = all - u < room ? all - u : room;
            turn_block(a, kind, c, c1, n, count, room, wide, turned);
            for (size_t p = c / 16; p < last; p += TILE_PANELS)
                qn__cpu_turned_rows_avx512(a, kind, turned + (p * 16 - c) * room, room, units, p,
                                           last - p < TILE_PANELS ? last - p : TILE_PANELS, u, all);
        }
    }
}

static void back_f32_avx512(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    qn__cpu_back_avx512(a, QN__TURNED_F32, p0, p1);
}

static void back_bf16_avx512(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    qn__cpu_back_avx512(a, QN__TURNED_PAIRS, p0, p1);
}

void qn__cpu_fill_back_avx512(qn__cpu_kernels *t)
{
    t->linear_back[QN__CPU_F32] = back_f32_avx512;
    t->linear_back[QN__CPU_BF16] = back_bf16_avx512;
}
