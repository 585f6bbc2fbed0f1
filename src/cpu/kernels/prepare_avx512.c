/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: preparing activations for products in f32 and bf16.
 *
 * A transpose of 32-bit words (one f32, or a pair of bf16 neighbours in k) to [word][8 rows]
 * blocks. The last block has m % 8 rows and is [word][m % 8], so that x takes no more room than its
 * elements. Rows are independent: a cut inside a block writes its own lanes only.
 */
#include "linear_avx512.h"
#include "transpose_avx512.h"
#include "vec_avx512.h"

/* Sixteen f32 from element i of a row, zeros from `left` on. */
static inline __m512 row_f32(const float *row, size_t i, size_t left)
{
    return _mm512_maskz_loadu_ps(v_first(left < 16 ? left : 16), row + i);
}

/* Sixteen words from element i of a row. */
static inline __m512i row_words(bool half, const float *row, size_t i, size_t left)
{
    if (!half)
        return _mm512_castps_si512(row_f32(row, i, left));
    uint16_t h[32];
    v_store_bf16(h, row_f32(row, i, left));
    v_store_bf16(h + 16, left > 16 ? row_f32(row, i + 16, left - 16) : _mm512_setzero_ps());
    return _mm512_loadu_si512(h);
}

/* Rows first .. last - 1 of a block of `rows` (at most 8) rows. */
static void prepare_block(bool half, uint32_t *block, const float *x, size_t ldx, size_t k,
                          size_t rows, size_t first, size_t last)
{
    size_t wide = half ? 2 : 1, words = (k + wide - 1) / wide;
    __mmask16 lanes = (__mmask16)(v_first(last) & ~v_first(first));
    for (size_t u = 0; u < words; u += 16) {
        __m512i r[16];
        for (size_t j = 0; j < 16; j++)
            r[j] = j < first || j >= last ? _mm512_setzero_si512()
                                          : row_words(half, x + j * ldx, u * wide, k - u * wide);
        transpose_16x16(r);
        for (size_t j = 0; j < 16 && u + j < words; j++)
            _mm512_mask_storeu_epi32(block + (u + j) * rows, lanes, r[j]);
    }
}

static void prepare_words(bool half, void *dst, const float *x, size_t ldx, size_t m, size_t k,
                          size_t m0, size_t m1)
{
    size_t wide = half ? 2 : 1, words = (k + wide - 1) / wide;
    for (size_t r = m0; r < m1;) {
        size_t block = r / 8 * 8, rows = m - block < 8 ? m - block : 8,
               last = m1 - block < rows ? m1 - block : rows;
        uint32_t *to = (uint32_t *)dst + block * words;
        if (rows == 1 && !half) {
            memcpy(to, x + block * ldx, k * 4);
        } else if (rows == 1) { /* decode: already in order */
            for (size_t u = 0; u < words; u += 16)
                _mm512_mask_storeu_epi32(to + u, v_first(words - u < 16 ? words - u : 16),
                                         row_words(half, x + block * ldx, 2 * u, k - 2 * u));
        } else {
            prepare_block(half, to, x + block * ldx, ldx, k, rows, r - block, last);
        }
        r = block + last;
    }
}

static void prepare_f32_avx512(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                               size_t k, size_t m0, size_t m1)
{
    (void)l;
    prepare_words(false, dst, x, ldx, m, k, m0, m1);
}

void qn__cpu_prepare_bf16_avx512(const qn__layout *l, void *dst, const float *x, size_t ldx,
                                 size_t m, size_t k, size_t m0, size_t m1)
{
    (void)l;
    prepare_words(true, dst, x, ldx, m, k, m0, m1);
}

static void prepare_back_f32_avx512(void *dst, const float *x, size_t ldx, size_t m, size_t k,
                                    size_t m0, size_t m1)
{
    prepare_words(false, dst, x, ldx, m, k, m0, m1);
}

static void prepare_back_bf16_avx512(void *dst, const float *x, size_t ldx, size_t m, size_t k,
                                     size_t m0, size_t m1)
{
    prepare_words(true, dst, x, ldx, m, k, m0, m1);
}

void qn__cpu_fill_prepare_avx512(qn__cpu_kernels *t)
{
    t->prepare_back[QN__CPU_F32] = prepare_back_f32_avx512;
    t->prepare_back[QN__CPU_BF16] = prepare_back_bf16_avx512;
    t->prepare[QN__CPU_F32] = prepare_f32_avx512;
    t->prepare[QN__CPU_BF16] = qn__cpu_prepare_bf16_avx512;
}
