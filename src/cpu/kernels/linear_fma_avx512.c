/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: linear on packed bf16 weights by f32 fma, for processors on which vdpbf16ps is slow (on
 * a Xeon of 2023 it does a quarter of the products a cycle that it does on Zen 5).
 *
 * vdpbf16ps adds to a sum first the product of the odd elements, then that of the even ones, each
 * exact and rounded once with the sum, denormals zero everywhere. So two fma in that order have its
 * bits, and it is no tier of its own: the faster of the two is taken, by a measurement.
 *
 * x lies as f32, [k][8 rows], odd k before even; a chunk of three panels is widened the same way on
 * the stack, [k][16], and all rows of a band pass it: that is the f32 kernel's tile. The next chunk
 * is prefetched meanwhile. Up to 8 rows, where memory is what is waited for, the dot product is as
 * good, and x lies as it wants it.
 */
#include "linear_avx512.h"
#include "transpose_avx512.h"
#include "vec_avx512.h"

enum {
    FEW_ROWS = 8,
    FMA_PANELS = 3,
    FMA_UNITS = 64, /* pairs widened at a time: 24 KB of three panels, in the first cache */
    FMA_ROWS = 192  /* of a band: 96 KB of x a chunk */
};

#define ALWAYS static inline __attribute__((always_inline))

/* Rows first .. last - 1 of a block of `rows`. */
static void prepare_fma_block(uint32_t *block, const float *x, size_t ldx, size_t k, size_t rows,
                              size_t first, size_t last)
{
    __mmask16 lanes = (__mmask16)(v_first(last) & ~v_first(first));
    size_t whole = (k + 1) / 2 * 2;
    for (size_t i = 0; i < k; i += 16) {
        __m512i r[16];
        for (size_t j = 0; j < 16; j++)
            r[j] = j < first || j >= last ? _mm512_setzero_si512()
                                          : v_round_bf16(_mm512_maskz_loadu_ps(
                                                v_first(k - i < 16 ? k - i : 16), x + j * ldx + i));
        transpose_16x16(r);
        for (size_t j = 0; j < 16 && i + j < whole; j++)
            _mm512_mask_storeu_epi32(block + (i + (j ^ 1)) * rows, lanes, r[j]);
    }
}

static void prepare_back_fma(void *dst, const float *x, size_t ldx, size_t m, size_t k, size_t m0,
                             size_t m1)
{
    size_t whole = (k + 1) / 2 * 2;
    for (size_t r = m0; r < m1;) {
        size_t block = r / 8 * 8, rows = m - block < 8 ? m - block : 8,
               last = m1 - block < rows ? m1 - block : rows;
        prepare_fma_block((uint32_t *)dst + block * whole, x + block * ldx, ldx, k, rows, r - block,
                          last);
        r = block + last;
    }
}

static void prepare_fma(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                        size_t k, size_t m0, size_t m1)
{
    if (m <= FEW_ROWS)
        qn__cpu_prepare_bf16_avx512(l, dst, x, ldx, m, k, m0, m1);
    else
        prepare_back_fma(dst, x, ldx, m, k, m0, m1);
}

/* Units of `panels` panels as [panel][unit][2][16] f32, odd before even. */
static void widen(float *to, const char *w, size_t panel_bytes, size_t panels, size_t units)
{
    for (size_t p = 0; p < panels; p++, w += panel_bytes)
        for (size_t u = 0; u < units; u++, to += 32) {
            __m512i pair = _mm512_load_si512(w + u * 64);
            _mm512_store_si512(to, vi_and(pair, vi_set((int)0xffff0000)));
            _mm512_store_si512(to + 16, _mm512_slli_epi32(pair, 16));
        }
}

/* Units u .. u + n - 1 of panels p .. p + panels - 1 by the rows m0 .. m1 - 1; `next` is what comes
 * after them. */
static void fma_chunk(const qn__cpu_linear *a, size_t p, size_t panels, size_t u, size_t n,
                      size_t m0, size_t m1, const char *next)
{
    _Alignas(64) float wide[FMA_PANELS * FMA_UNITS * 32];
    size_t units = (a->k + 1) / 2, panel_bytes = units * 64, left = a->n - (p + panels - 1) * 16;
    widen(wide, (const char *)a->w + p * panel_bytes + u * 64, panel_bytes, panels, n);
    tile_args t = {.w = (const char *)wide,
                   .panel_bytes = n * 128,
                   .units = n * 2,
                   .ldy = a->ldy,
                   .resume = u > 0,
                   .last = v_first(left < 16 ? left : 16)};
    size_t share = (n * 8 + m1 - m0 - 1) / (m1 - m0); /* lines of a panel for a block of 8 rows */
    for (size_t r = m0; r < m1; r += 8, next += share * 64) {
        size_t rows = a->m - r < 8 ? a->m - r : 8;
        for (size_t i = 0; i < share; i++)
            for (size_t j = 0; j < FMA_PANELS; j++)
                _mm_prefetch(next + j * panel_bytes + i * 64, _MM_HINT_T1);
        t.x = (const float *)a->x + 2 * (r * units + u * rows);
        t.y = a->y + r * a->ldy + p * 16;
        qn__cpu_tile_f32_avx512(rows, panels, &t);
    }
}

static void fma_band(const qn__cpu_linear *a, size_t p0, size_t p1, size_t m0, size_t m1)
{
    size_t units = (a->k + 1) / 2;
    for (size_t u = 0; u < units; u += FMA_UNITS) {
        size_t n = units - u < FMA_UNITS ? units - u : FMA_UNITS;
        for (size_t p = p0; p < p1; p += FMA_PANELS) {
            bool more = p + FMA_PANELS < p1;
            const char *next =
                (const char *)a->w +
                ((more ? p + FMA_PANELS : p0) * units + (more ? u : u + FMA_UNITS)) * 64;
            fma_chunk(a, p, p1 - p < FMA_PANELS ? p1 - p : FMA_PANELS, u, n, m0, m1, next);
        }
    }
}

static void linear_fma(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    if (a->m <= FEW_ROWS) {
        qn__cpu_linear_bf16_avx512(a, p0, p1);
        return;
    }
    unsigned before = _mm_getcsr();
    _mm_setcsr(QN__DOT_PRODUCT_CSR);
    for (size_t m0 = a->m0; m0 < a->m1; m0 += FMA_ROWS)
        fma_band(a, p0, p1, m0, a->m1 - m0 < FMA_ROWS ? a->m1 : m0 + FMA_ROWS);
    _mm_setcsr(before);
}

static void back_fma(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    qn__cpu_back_avx512(a, QN__TURNED_WORDS, p0, p1);
}

void qn__cpu_fill_fma_avx512(qn__cpu_kernels *t)
{
    t->linear_back[QN__CPU_BF16] = back_fma;
    t->prepare_back[QN__CPU_BF16] = prepare_back_fma;
    t->linear[QN__CPU_BF16] = linear_fma;
    t->prepare[QN__CPU_BF16] = prepare_fma;
    t->cut[QN__CPU_BF16] = (qn__cpu_cut){8, 2 * FMA_PANELS, 96};
}

/* ---- which is faster --------------------------------------------------------------------------
 */

#if defined(QN_EMULATED_ISA)
int qn__cpu_dot_is_slow_avx512(void)
{
    return 0;
}
#else

#define TIMED_SUMS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)

/* What the time stamp counter gives for `n` steps of twelve independent sums. */
ALWAYS uint64_t time_steps(int fma, int n)
{
    __m512 one = _mm512_set1_ps(1);
#define DECLARE(i)    __m512 c##i = one;
    TIMED_SUMS(DECLARE)
#undef DECLARE
    uint64_t begun = __rdtsc();
    for (int i = 0; i < n; i++) {
#define STEP(i)                                                                                    \
    if (fma)                                                                                       \
        __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(c##i) : "v"(one));                        \
    else                                                                                           \
        __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(c##i) : "v"(one));
        TIMED_SUMS(STEP)
#undef STEP
    }
    return __rdtsc() - begun;
}

int qn__cpu_dot_is_slow_avx512(void)
{
    uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
    for (int i = 0; i < 8; i++) { /* a dot product does what two fma do */
        uint64_t dot = time_steps(0, 64), fma = time_steps(1, 128);
        best[0] = dot < best[0] ? dot : best[0];
        best[1] = fma < best[1] ? fma : best[1];
    }
    return best[0] > best[1] + best[1] / 4;
}
#endif
