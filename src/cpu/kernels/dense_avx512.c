/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: plain f32 matmul with any strides, C[m, n] = sum over k of A[m, k] B[k, n].
 *
 * Tiles of 8 rows x 48 columns; an output is one fma chain in order of k, so no cut changes a bit.
 * A chunk of B, 128 k x 48 columns, is laid out on the stack (transposed there when its k is
 * contiguous) and used by all rows of the range; A is broadcast from where it is. With few rows and
 * adjacent columns B is read in place. Sums pass between chunks through C.
 */
#include "kernels.h"
#include "transpose_avx512.h"
#include "vec_avx512.h"

enum { DENSE_K = 128, DENSE_COLUMNS = 48, DENSE_COPY_ROWS = 12 };

#define ALWAYS        static inline __attribute__((always_inline))
#define DENSE_EACH(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)

typedef struct dense_tile_args {
    const float *a;
    ptrdiff_t ras, cas;
    const float *b; /* [k][step], columns adjacent */
    ptrdiff_t step;
    float *c;
    ptrdiff_t ldc;
    size_t k;
    __mmask16 last;
    int resume;
} dense_tile_args;

/* rows x parts (of 16 columns), constants at every call. */
ALWAYS void dense_tile(int rows, int parts, const dense_tile_args *t)
{
    const float *a = t->a, *b = t->b;
    __mmask16 m0 = parts == 1 ? t->last : 0xffff, m1 = parts == 2 ? t->last : 0xffff, m2 = t->last;
#define DECLARE(r)                                                                                 \
    __m512 c##r##0 = _mm512_setzero_ps(), c##r##1 = c##r##0, c##r##2 = c##r##0;                    \
    if (rows > r && t->resume) {                                                                   \
        const float *c = t->c + r * t->ldc;                                                        \
        c##r##0 = _mm512_maskz_loadu_ps(m0, c);                                                    \
        if (parts > 1)                                                                             \
            c##r##1 = _mm512_maskz_loadu_ps(m1, c + 16);                                           \
        if (parts > 2)                                                                             \
            c##r##2 = _mm512_maskz_loadu_ps(m2, c + 32);                                           \
    }
    DENSE_EACH(DECLARE)
#undef DECLARE
    for (size_t k = 0; k < t->k; k++) {
        __m512 b0 = _mm512_maskz_loadu_ps(m0, b), b1 = b0, b2 = b0;
        if (parts > 1)
            b1 = _mm512_maskz_loadu_ps(m1, b + 16);
        if (parts > 2)
            b2 = _mm512_maskz_loadu_ps(m2, b + 32);
#define STEP(r)                                                                                    \
    if (rows > r) {                                                                                \
        __m512 x = _mm512_set1_ps(a[r * t->ras]);                                                  \
        c##r##0 = _mm512_fmadd_ps(x, b0, c##r##0);                                                 \
        if (parts > 1)                                                                             \
            c##r##1 = _mm512_fmadd_ps(x, b1, c##r##1);                                             \
        if (parts > 2)                                                                             \
            c##r##2 = _mm512_fmadd_ps(x, b2, c##r##2);                                             \
    }
        DENSE_EACH(STEP)
#undef STEP
        a += t->cas;
        b += t->step;
    }
#define SAVE(r)                                                                                    \
    if (rows > r) {                                                                                \
        float *c = t->c + r * t->ldc;                                                              \
        _mm512_mask_storeu_ps(c, m0, c##r##0);                                                     \
        if (parts > 1)                                                                             \
            _mm512_mask_storeu_ps(c + 16, m1, c##r##1);                                            \
        if (parts > 2)                                                                             \
            _mm512_mask_storeu_ps(c + 32, m2, c##r##2);                                            \
    }
    DENSE_EACH(SAVE)
#undef SAVE
}

static void dense_tile_of(size_t rows, size_t parts, const dense_tile_args *t)
{
    switch (rows * 3 + parts - 4) {
#define SHAPE(r)                                                                                   \
    case r * 3: dense_tile(r + 1, 1, t); break;                                                    \
    case r * 3 + 1: dense_tile(r + 1, 2, t); break;                                                \
    case r * 3 + 2: dense_tile(r + 1, 3, t); break;
        DENSE_EACH(SHAPE)
#undef SHAPE
    default: break;
    }
}

/* B[k0 .. k0 + nk - 1, n0 .. n0 + nn - 1] as [nk][48], zeros past nn. */
static void dense_copy(const qn__cpu_dense *a, size_t k0, size_t nk, size_t n0, size_t nn,
                       float *to)
{
    const float *b = a->b + (ptrdiff_t)k0 * a->rbs + (ptrdiff_t)n0 * a->cbs;
    for (size_t j = 0; j < nn; j += 16) {
        size_t wide = nn - j < 16 ? nn - j : 16;
        const float *bj = b + (ptrdiff_t)j * a->cbs;
        if (a->rbs == 1 && a->cbs != 1) {
            for (size_t k = 0; k < nk; k += 16) {
                size_t deep = nk - k < 16 ? nk - k : 16;
                __m512i r[16];
                for (size_t i = 0; i < 16; i++)
                    r[i] = i < wide ? _mm512_maskz_loadu_epi32(v_first(deep),
                                                               bj + (ptrdiff_t)i * a->cbs + k)
                                    : _mm512_setzero_si512();
                transpose_16x16(r);
                for (size_t i = 0; i < deep; i++)
                    _mm512_store_si512(to + (k + i) * DENSE_COLUMNS + j, r[i]);
            }
            continue;
        }
        for (size_t k = 0; k < nk; k++) {
            float *row = to + k * DENSE_COLUMNS + j;
            const float *from = bj + (ptrdiff_t)k * a->rbs;
            if (a->cbs == 1)
                _mm512_store_ps(row, _mm512_maskz_loadu_ps(v_first(wide), from));
            else
                for (size_t i = 0; i < 16; i++)
                    row[i] = i < wide ? from[(ptrdiff_t)i * a->cbs] : 0.0f;
        }
    }
}

static void dense_avx512(const qn__cpu_dense *a, size_t m0, size_t m1)
{
    _Alignas(64) float copy[DENSE_K * DENSE_COLUMNS];
    int in_place = a->cbs == 1 && m1 - m0 < DENSE_COPY_ROWS;
    for (size_t n = 0; n < a->n; n += DENSE_COLUMNS) {
        size_t nn = a->n - n < DENSE_COLUMNS ? a->n - n : DENSE_COLUMNS, parts = (nn + 15) / 16;
        for (size_t k = 0; k == 0 || k < a->k; k += DENSE_K) {
            size_t nk = a->k - k < DENSE_K ? a->k - k : DENSE_K;
            dense_tile_args t = {NULL,
                                 a->ras,
                                 a->cas,
                                 copy,
                                 DENSE_COLUMNS,
                                 NULL,
                                 a->ldc,
                                 nk,
                                 v_first(nn - 16 * (parts - 1)),
                                 k > 0 || a->add};
            if (in_place) {
                t.b = a->b + (ptrdiff_t)k * a->rbs + (ptrdiff_t)n;
                t.step = a->rbs;
            } else {
                dense_copy(a, k, nk, n, nn, copy);
            }
            for (size_t m = m0; m < m1; m += 8) {
                t.a = a->a + (ptrdiff_t)m * a->ras + (ptrdiff_t)k * a->cas;
                t.c = a->c + (ptrdiff_t)m * a->ldc + (ptrdiff_t)n;
                dense_tile_of(m1 - m < 8 ? m1 - m : 8, parts, &t);
            }
        }
    }
}

void qn__cpu_fill_dense_avx512(qn__cpu_kernels *t)
{
    t->dense = dense_avx512;
}
