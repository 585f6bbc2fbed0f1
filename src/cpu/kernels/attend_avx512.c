/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: attention. The driver is attend.inl; here are its two products, tiles of up to 4 rows x
 * 4 registers with named accumulators (clang 14 keeps arrays in memory), bf16 widened on the way
 * in.
 */
#include "kernels.h"
#include "vec_avx512.h"

#include "vec_math.inl"

#define ALWAYS       static inline __attribute__((always_inline))
#define FOUR_ROWS(F) F(0) F(1) F(2) F(3)

ALWAYS vf v_lane_numbers(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* Sixteen elements i .. of a cache array; mask says which exist. */
ALWAYS __m512 cache_load(int bf16, const void *p, size_t i, __mmask16 mask)
{
    if (!bf16)
        return mask == 0xffff ? _mm512_loadu_ps((const float *)p + i)
                              : _mm512_maskz_loadu_ps(mask, (const float *)p + i);
    const uint16_t *h = (const uint16_t *)p + i;
    __m256i u =
        mask == 0xffff ? _mm256_loadu_si256((const __m256i *)h) : _mm256_maskz_loadu_epi16(mask, h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(u), 16));
}

/* rows x (16 groups) keys, constants at every call; k at the first group, groups d * 16 apart. */
ALWAYS void scores_tile(int bf16, int rows, int groups, const float *const *q, size_t d,
                        const char *k, float *const *p, size_t j0, const char *ahead)
{
    size_t apart = 16 * d, step = bf16 ? 2 : 4;
#define DECLARE(r)                                                                                 \
    __m512 c##r##0 = _mm512_setzero_ps(), c##r##1 = c##r##0, c##r##2 = c##r##0, c##r##3 = c##r##0;
    FOUR_ROWS(DECLARE)
#undef DECLARE
    const float *q0 = q[0], *q1 = rows > 1 ? q[1] : q0, *q2 = rows > 2 ? q[2] : q0,
                *q3 = rows > 3 ? q[3] : q0;
    for (size_t i = 0; i < d; i++) {
        __m512 k0 = cache_load(bf16, k, 0, 0xffff), k1 = k0, k2 = k0, k3 = k0;
        if (groups > 1)
            k1 = cache_load(bf16, k, apart, 0xffff);
        if (groups > 2)
            k2 = cache_load(bf16, k, 2 * apart, 0xffff);
        if (groups > 3)
            k3 = cache_load(bf16, k, 3 * apart, 0xffff);
        if (groups == 4 && ahead) { /* as many bytes as this step reads */
            for (size_t line = 0; line < step; line += 1)
                _mm_prefetch(ahead + 64 * line, _MM_HINT_T0);
            ahead += 64 * step;
        }
        k += 16 * step;
#define STEP(r)                                                                                    \
    if (rows > r) {                                                                                \
        __m512 x = _mm512_set1_ps(q##r[i]);                                                        \
        c##r##0 = _mm512_fmadd_ps(x, k0, c##r##0);                                                 \
        if (groups > 1)                                                                            \
            c##r##1 = _mm512_fmadd_ps(x, k1, c##r##1);                                             \
        if (groups > 2)                                                                            \
            c##r##2 = _mm512_fmadd_ps(x, k2, c##r##2);                                             \
        if (groups > 3)                                                                            \
            c##r##3 = _mm512_fmadd_ps(x, k3, c##r##3);                                             \
    }
        FOUR_ROWS(STEP)
#undef STEP
    }
#define SAVE(r)                                                                                    \
    if (rows > r) {                                                                                \
        float *o = p[r] + 16 * j0;                                                                 \
        _mm512_storeu_ps(o, c##r##0);                                                              \
        if (groups > 1)                                                                            \
            _mm512_storeu_ps(o + 16, c##r##1);                                                     \
        if (groups > 2)                                                                            \
            _mm512_storeu_ps(o + 32, c##r##2);                                                     \
        if (groups > 3)                                                                            \
            _mm512_storeu_ps(o + 48, c##r##3);                                                     \
    }
    FOUR_ROWS(SAVE)
#undef SAVE
}

ALWAYS void scores_groups(int bf16, int rows, const float *const *q, size_t d, const char *k,
                          size_t j0, size_t j1, float *const *p, const void *ahead)
{
    size_t group = 16 * d * (bf16 ? 2 : 4);
    if (j1 - j0 == 4) {
        scores_tile(bf16, rows, 4, q, d, k, p, 0, ahead);
        return;
    }
    if (j1 - j0 >= 2) {
        scores_tile(bf16, rows, 2, q, d, k + j0 * group, p, j0, NULL);
        j0 += 2;
    }
    if (j0 < j1)
        scores_tile(bf16, rows, 1, q, d, k + j0 * group, p, j0, NULL);
}

static void attend_scores(int rows, qn__cpu_type type, const float *const *q, size_t d,
                          const void *k, size_t j0, size_t j1, float *const *p, const void *ahead)
{
    switch (rows + (type == QN__CPU_BF16 ? 4 : 0)) {
#define SHAPE(r)                                                                                   \
    case r + 1: scores_groups(0, r + 1, q, d, k, j0, j1, p, ahead); break;                         \
    case r + 5: scores_groups(1, r + 1, q, d, k, j0, j1, p, ahead); break;
        FOUR_ROWS(SHAPE)
#undef SHAPE
    default: break;
    }
}

/* rows x (16 parts) dimensions from i0 on, constants at every call but i0; mask: lanes of the last
 * part. */
ALWAYS void values_tile(int bf16, int rows, int parts, float *const *acc, const float *fade,
                        const float *const *p, const void *v, size_t ldv, size_t s0, size_t s1,
                        size_t i0, __mmask16 mask, const char *ahead)
{
#define DECLARE(r)                                                                                 \
    __m512 c##r##0 = _mm512_setzero_ps(), c##r##1 = c##r##0, c##r##2 = c##r##0, c##r##3 = c##r##0; \
    if (rows > r) {                                                                                \
        __m512 f = _mm512_set1_ps(fade[r]);                                                        \
        const float *o = acc[r] + i0;                                                              \
        c##r##0 = _mm512_mul_ps(f, _mm512_loadu_ps(o));                                            \
        if (parts > 1) {                                                                           \
            c##r##1 = _mm512_mul_ps(f, _mm512_loadu_ps(o + 16));                                   \
            c##r##2 = _mm512_mul_ps(f, _mm512_loadu_ps(o + 32));                                   \
            c##r##3 = _mm512_mul_ps(f, _mm512_loadu_ps(o + 48));                                   \
        }                                                                                          \
    }
    FOUR_ROWS(DECLARE)
#undef DECLARE
    const float *p0 = p[0], *p1 = rows > 1 ? p[1] : p0, *p2 = rows > 2 ? p[2] : p0,
                *p3 = rows > 3 ? p[3] : p0;
    for (size_t s = s0; s < s1; s++) {
        size_t at = s * ldv + i0;
        __m512 v0 = cache_load(bf16, v, at, parts == 1 ? mask : 0xffff), v1 = v0, v2 = v0, v3 = v0;
        if (parts > 1) {
            v1 = cache_load(bf16, v, at + 16, 0xffff);
            v2 = cache_load(bf16, v, at + 32, 0xffff);
            v3 = cache_load(bf16, v, at + 48, 0xffff);
        }
        if (parts > 1 && ahead) { /* as many bytes as this step reads */
            for (size_t line = 0; line < (bf16 ? 2 : 4); line++)
                _mm_prefetch(ahead + 64 * line, _MM_HINT_T0);
            ahead += bf16 ? 128 : 256;
        }
#define STEP(r)                                                                                    \
    if (rows > r) {                                                                                \
        __m512 x = _mm512_set1_ps(p##r[s]);                                                        \
        c##r##0 = _mm512_fmadd_ps(x, v0, c##r##0);                                                 \
        if (parts > 1) {                                                                           \
            c##r##1 = _mm512_fmadd_ps(x, v1, c##r##1);                                             \
            c##r##2 = _mm512_fmadd_ps(x, v2, c##r##2);                                             \
            c##r##3 = _mm512_fmadd_ps(x, v3, c##r##3);                                             \
        }                                                                                          \
    }
        FOUR_ROWS(STEP)
#undef STEP
    }
#define SAVE(r)                                                                                    \
    if (rows > r) {                                                                                \
        float *o = acc[r] + i0;                                                                    \
        _mm512_storeu_ps(o, c##r##0);                                                              \
        if (parts > 1) {                                                                           \
            _mm512_storeu_ps(o + 16, c##r##1);                                                     \
            _mm512_storeu_ps(o + 32, c##r##2);                                                     \
            _mm512_storeu_ps(o + 48, c##r##3);                                                     \
        }                                                                                          \
    }
    FOUR_ROWS(SAVE)
#undef SAVE
}

ALWAYS void values_parts(int bf16, int rows, float *const *acc, const float *fade,
                         const float *const *p, const void *v, size_t ldv, size_t s0, size_t s1,
                         size_t dv, const void *ahead)
{
    size_t i = 0;
    for (; i + 64 <= dv; i += 64)
        values_tile(bf16, rows, 4, acc, fade, p, v, ldv, s0, s1, i, 0xffff,
                    ahead ? (const char *)ahead + i * 64 * (bf16 ? 2 : 4) : NULL);
    for (; i < dv; i += 16)
        values_tile(bf16, rows, 1, acc, fade, p, v, ldv, s0, s1, i,
                    v_first(dv - i < 16 ? dv - i : 16), NULL);
}

static void attend_values(int rows, qn__cpu_type type, float *const *acc, const float *fade,
                          const float *const *p, const void *v, size_t ldv, size_t s0, size_t s1,
                          size_t dv, const void *ahead)
{
    switch (rows + (type == QN__CPU_BF16 ? 4 : 0)) {
#define SHAPE(r)                                                                                   \
    case r + 1: values_parts(0, r + 1, acc, fade, p, v, ldv, s0, s1, dv, ahead); break;            \
    case r + 5: values_parts(1, r + 1, acc, fade, p, v, ldv, s0, s1, dv, ahead); break;
        FOUR_ROWS(SHAPE)
#undef SHAPE
    default: break;
    }
}

#include "widen.inl"

#include "attend_pages.inl"

#include "attend.inl"

void qn__cpu_fill_attend_avx512(qn__cpu_kernels *t)
{
    attend_fill(t);
}
