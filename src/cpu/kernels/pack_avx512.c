/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: packing weights and preparing activations.
 *
 * Both are transposes of 32-bit units (one f32, or a pair of bf16 neighbours in k): weights to
 * [unit][16 rows] panels, activations to [unit][8 rows] blocks. The last block of x has m % 8 rows
 * and is [unit][m % 8], so that x takes no more room than its elements. Rows are independent: a cut
 * inside a panel or block writes its own lanes only.
 */
#include "kernels.h"
#include "transpose_avx512.h"
#include "vec_avx512.h"

/* Sixteen f32 from element i of a source row, zeros from `left` on. */
static inline __m512 source_f32(qn__cpu_type type, const char *row, size_t i, size_t left)
{
    __mmask16 m = v_first(left < 16 ? left : 16);
    if (type == QN__CPU_F32)
        return _mm512_maskz_loadu_ps(m, row + 4 * i);
    __m256i h = _mm256_maskz_loadu_epi16(m, row + 2 * i);
    if (type == QN__CPU_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Sixteen packed units from element i of a source row (i + 16 or, for bf16, i + 32 elements at most
 * `left`). */
static inline __m512i source_units(qn__cpu_type type, qn__cpu_type src, const char *row, size_t i,
                                   size_t left)
{
    if (type == QN__CPU_F32)
        return _mm512_castps_si512(source_f32(src, row, i, left));
    if (src == QN__CPU_BF16)
        return _mm512_maskz_loadu_epi16(left < 32 ? (__mmask32)((1ul << left) - 1) : ~(__mmask32)0,
                                        row + 2 * i);
    uint16_t h[32];
    v_store_bf16(h, source_f32(src, row, i, left));
    v_store_bf16(h + 16, left > 16 ? source_f32(src, row, i + 16, left - 16) : _mm512_setzero_ps());
    return _mm512_loadu_si512(h);
}

static size_t units_of(qn__cpu_type type, size_t k)
{
    return type == QN__CPU_BF16 ? (k + 1) / 2 : k;
}

/* Rows first .. last - 1 of one panel (0 <= first < last <= 16); lanes says which to write, those
 * past `last` as zeros. */
static void pack_panel(qn__cpu_type type, char *panel, size_t k, qn__cpu_type src, const char *from,
                       size_t row_bytes, size_t first, size_t last, __mmask16 lanes)
{
    size_t units = units_of(type, k), wide = type == QN__CPU_BF16 ? 2 : 1;
    for (size_t u = 0; u < units; u += 16) {
        __m512i r[16];
        for (size_t j = 0; j < 16; j++)
            r[j] = j < first || j >= last ? _mm512_setzero_si512()
                                          : source_units(type, src, from + (j - first) * row_bytes,
                                                         u * wide, k - u * wide);
        transpose_16x16(r);
        for (size_t j = 0; j < 16 && u + j < units; j++)
            _mm512_mask_storeu_epi32(panel + (u + j) * 64, lanes, r[j]);
    }
}

static void pack_rows_avx512(qn__cpu_type type, void *w, size_t n, size_t k, qn__cpu_type src,
                             const void *from, size_t ld, size_t n0, size_t n1)
{
    size_t row_bytes = ld * (src == QN__CPU_F32 ? 4 : 2),
           panel_bytes = qn__cpu_panel_bytes(type, k);
    for (size_t row = n0; row < n1;) {
        size_t panel = row / 16, first = row % 16,
               last = n1 - panel * 16 < 16 ? n1 - panel * 16 : 16;
        size_t end = panel * 16 + last == n ? 16 : last; /* the last row brings the padding */
        pack_panel(type, (char *)w + panel * panel_bytes, k, src,
                   (const char *)from + (row - n0) * row_bytes, row_bytes, first, last,
                   (__mmask16)(v_first(end) & ~v_first(first)));
        row = panel * 16 + last;
    }
}

/* Rows first .. last - 1 of a block of `rows` (at most 8) rows. */
static void prepare_block(qn__cpu_type type, uint32_t *block, const float *x, size_t ldx, size_t k,
                          size_t rows, size_t first, size_t last)
{
    size_t units = units_of(type, k), wide = type == QN__CPU_BF16 ? 2 : 1;
    __mmask16 lanes = (__mmask16)(v_first(last) & ~v_first(first));
    for (size_t u = 0; u < units; u += 16) {
        __m512i r[16];
        for (size_t j = 0; j < 16; j++)
            r[j] = j < first || j >= last
                       ? _mm512_setzero_si512()
                       : source_units(type, QN__CPU_F32, (const char *)(x + j * ldx), u * wide,
                                      k - u * wide);
        transpose_16x16(r);
        for (size_t j = 0; j < 16 && u + j < units; j++)
            _mm512_mask_storeu_epi32(block + (u + j) * rows, lanes, r[j]);
    }
}

static void prepare_avx512(qn__cpu_type type, void *dst, const float *x, size_t ldx, size_t m,
                           size_t k, size_t m0, size_t m1)
{
    size_t units = units_of(type, k);
    for (size_t r = m0; r < m1;) {
        size_t block = r / 8 * 8, rows = m - block < 8 ? m - block : 8,
               last = m1 - block < rows ? m1 - block : rows;
        uint32_t *to = (uint32_t *)dst + block * units;
        if (rows == 1 && type == QN__CPU_F32) {
            memcpy(to, x + block * ldx, k * 4);
        } else if (rows == 1) { /* decode: already in order */
            for (size_t u = 0; u < units; u += 16)
                _mm512_mask_storeu_epi32(to + u, v_first(units - u < 16 ? units - u : 16),
                                         source_units(type, QN__CPU_F32,
                                                      (const char *)(x + block * ldx), 2 * u,
                                                      k - 2 * u));
        } else {
            prepare_block(type, to, x + block * ldx, ldx, k, rows, r - block, last);
        }
        r = block + last;
    }
}

void qn__cpu_fill_pack_avx512(qn__cpu_kernels *t)
{
    t->pack_rows = pack_rows_avx512;
    t->prepare = prepare_avx512;
}
