/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: linear on packed weights, y[M, N] = x[M, K] W[N, K]^T, bf16 by vdpbf16ps and f32 by fma.
 *
 * Both types are streams of 32-bit units (a bf16 pair or one f32): a panel is [unit][16 outputs], x
 * is [unit][rows] in blocks of 8 rows (prepare_avx512.c). One accumulator lane an output, one step
 * a unit, in order of k: this alone fixes the bits, whatever the tile, the chunk (sums pass through
 * y exactly) or the company.
 *
 * Up to 8 rows: one panel (two, for more than 4 rows) streams past once, prefetched across its end;
 * one stream was faster than several on Zen 4 although a chain of dot products is 6 cycles a step.
 * More rows: tiles of 8 rows x 3 panels; a chunk of 3 panels stays in the second cache while all
 * rows of a band pass (chunks for the first cache were slower: sums come and go too often), and the
 * last rows ask for the next one.
 *
 * The step is inline assembly because gcc 12 copies the accumulator of the dot-product intrinsic;
 * accumulators have names because clang 14 keeps arrays of them in memory.
 */
#include "linear_avx512.h"
#include "vec_avx512.h"

#include "widen.inl"

enum {
    WIDE_COLUMNS = 256, /* of other weights, widened at a time for products in f32 */
    CHUNK_UNITS = 1024, /* 192 KB of three panels, in the second cache */
    BAND_ROWS = 512,    /* rows of x per pass over the panels */
    AHEAD_UNITS = 64    /* prefetch distance of W's streams together, 4 KB; of x 2 KB */
};

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS __m512 dot_step(int f32, __m512 c, __m512 w, __m512 x)
{
#if defined(QN_EMULATED_ISA)
    return f32 ? _mm512_fmadd_ps(w, x, c) : _mm512_dpbf16_ps(c, w, x);
#else
    if (f32)
        __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(w), "v"(x));
    else
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(w), "v"(x));
    return c;
#endif
}

/* What each row of a tile does: F(row) is applied for 0 .. 7, dead rows vanish as `rows` is a
 * constant. */
#define EACH_ROW(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)

/* rows x panels tile, 1 <= rows <= 8, 1 <= panels <= 3; constants at every call. */
ALWAYS void tile(int f32, int rows, int panels, const tile_args *a)
{
    const char *w = a->w;
    const float *x = a->x;
    size_t pb = a->panel_bytes, left = a->units;
    __mmask16 all = 0xffff;
#define DECLARE(r) __m512 c##r##0, c##r##1, c##r##2;
    EACH_ROW(DECLARE)
#undef DECLARE
#define CLEAR(r) c##r##0 = c##r##1 = c##r##2 = _mm512_setzero_ps();
    EACH_ROW(CLEAR)
#undef CLEAR
    if (a->resume) {
#define RESUME(r)                                                                                  \
    if (rows > r) {                                                                                \
        const float *y = a->y + r * a->ldy;                                                        \
        c##r##0 = _mm512_maskz_loadu_ps(panels == 1 ? a->last : all, y);                           \
        if (panels > 1)                                                                            \
            c##r##1 = _mm512_maskz_loadu_ps(panels == 2 ? a->last : all, y + 16);                  \
        if (panels > 2)                                                                            \
            c##r##2 = _mm512_maskz_loadu_ps(panels == 3 ? a->last : all, y + 32);                  \
    }
        EACH_ROW(RESUME)
#undef RESUME
    }
    size_t distance = AHEAD_UNITS / (size_t)panels, jump = distance * 64;
    size_t near = a->ahead && left > distance ? left - distance
                                              : 0; /* units before the prefetch changes group */
    for (int part = 0; part < 2; part++) {
        size_t n = part == 0 ? near : left - near;
        if (part == 1)
            jump += a->ahead - (a->ahead ? pb : 0);
        for (; n > 0; n--) {
            __m512 w0 = _mm512_load_ps(w), w1 = w0, w2 = w0;
            if (panels > 1)
                w1 = _mm512_load_ps(w + pb);
            if (panels > 2)
                w2 = _mm512_load_ps(w + 2 * pb);
            if (a->ahead) {
                _mm_prefetch(w + jump, _MM_HINT_T0);
                if (panels > 1)
                    _mm_prefetch(w + pb + jump, _MM_HINT_T0);
                if (panels > 2)
                    _mm_prefetch(w + 2 * pb + jump, _MM_HINT_T0);
            }
            if (a->ask & 1)
                _mm_prefetch(w + a->next, _MM_HINT_T1);
            if (panels > 1 && a->ask & 2)
                _mm_prefetch(w + pb + a->next, _MM_HINT_T1);
            if (panels > 2 && a->ask & 4)
                _mm_prefetch(w + 2 * pb + a->next, _MM_HINT_T1);
#define STEP(r)                                                                                    \
    if (rows > r) {                                                                                \
        __m512 v = _mm512_set1_ps(x[r]);                                                           \
        c##r##0 = dot_step(f32, c##r##0, w0, v);                                                   \
        if (panels > 1)                                                                            \
            c##r##1 = dot_step(f32, c##r##1, w1, v);                                               \
        if (panels > 2)                                                                            \
            c##r##2 = dot_step(f32, c##r##2, w2, v);                                               \
    }
            EACH_ROW(STEP)
#undef STEP
            if (rows == 8 && !a->ahead) /* the hardware stops at each page of the stream of x */
                _mm_prefetch((const char *)(x + 8 * AHEAD_UNITS), _MM_HINT_T0);
            w += 64;
            x += rows;
        }
    }
#define SAVE(r)                                                                                    \
    if (rows > r) {                                                                                \
        float *y = a->y + r * a->ldy;                                                              \
        _mm512_mask_storeu_ps(y, panels == 1 ? a->last : all, c##r##0);                            \
        if (panels > 1)                                                                            \
            _mm512_mask_storeu_ps(y + 16, panels == 2 ? a->last : all, c##r##1);                   \
        if (panels > 2)                                                                            \
            _mm512_mask_storeu_ps(y + 32, panels == 3 ? a->last : all, c##r##2);                   \
    }
    EACH_ROW(SAVE)
#undef SAVE
}

/* Turns the run-time shape into constants. */
#define SHAPES(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8)

ALWAYS void tile_of(int f32, size_t rows, size_t panels, const tile_args *a)
{
    switch (rows * 3 + panels - 1) {
#define SHAPE(r)                                                                                   \
    case r * 3: tile(f32, r, 1, a); break;                                                         \
    case r * 3 + 1: tile(f32, r, 2, a); break;                                                     \
    case r * 3 + 2: tile(f32, r, 3, a); break;
        SHAPES(SHAPE)
#undef SHAPE
    default: break;
    }
}

static void tile_bf16(size_t rows, size_t panels, const tile_args *a)
{
    tile_of(0, rows, panels, a);
}

void qn__cpu_tile_f32_avx512(size_t rows, size_t panels, const tile_args *a)
{
    tile_of(1, rows, panels, a);
}

static __mmask16 lanes_of_panel(size_t n, size_t panel)
{
    size_t left = n - panel * QN__CPU_PANEL;
    return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

typedef void tile_fn(size_t rows, size_t panels, const tile_args *a);

/* Up to 8 rows: each group of panels once, straight through. */
static void linear_few(tile_fn *multiply, const qn__cpu_linear *a, size_t p0, size_t p1,
                       size_t units)
{
    size_t panel_bytes = units * 64, group = a->m <= 4 ? 1 : 2;
    for (size_t p = p0; p < p1; p += group) {
        size_t panels = p1 - p < group ? p1 - p : group;
        tile_args t = {(const char *)a->w + p * panel_bytes,
                       panel_bytes,
                       a->x,
                       units,
                       a->y + p * 16,
                       a->ldy,
                       0,
                       lanes_of_panel(a->n, p + panels - 1),
                       panels * panel_bytes};
        multiply(a->m, panels, &t);
    }
}

/* Which panels of what comes next a block of rows asks for, with so many blocks left: the last
 * three one each, of two the first, which has all its rows, two. */
static int asked_by(size_t blocks, size_t left)
{
    if (blocks < 3)
        return blocks < 2 ? 7 : left == 2 ? 3 : 4;
    return left > 3 ? 0 : 1 << (3 - left);
}

/* One chunk of units of a group of panels, at t->w, meets rows m0 .. m1 - 1. */
static void multiply_rows(tile_fn *multiply, const qn__cpu_linear *a, tile_args *t, size_t p,
                          size_t panels, size_t u, size_t units, size_t m0, size_t m1)
{
    size_t blocks = (m1 - m0 + 7) / 8;
    t->resume = u > 0 || a->add;
    for (size_t r = m0; r < m1; r += 8) {
        t->ask = t->next ? asked_by(blocks, (m1 - r + 7) / 8) : 0;
        size_t rows = a->m - r < 8 ? a->m - r : 8;
        t->x = (const float *)a->x + r * units + u * rows;
        t->y = a->y + r * a->ldy + p * 16;
        multiply(rows, panels, t);
    }
}

static void linear_band(tile_fn *multiply, const qn__cpu_linear *a, size_t p, size_t panels,
                        size_t m0, size_t m1, size_t units)
{
    size_t panel_bytes = units * 64;
    tile_args t = {
        .panel_bytes = panel_bytes, .ldy = a->ldy, .last = lanes_of_panel(a->n, p + panels - 1)};
    for (size_t u = 0; u < units; u += CHUNK_UNITS) {
        t.w = (const char *)a->w + p * panel_bytes + u * 64;
        t.units = units - u < CHUNK_UNITS ? units - u : CHUNK_UNITS;
        t.next = u + CHUNK_UNITS < units ? CHUNK_UNITS * 64 : 3 * panel_bytes - u * 64;
        multiply_rows(multiply, a, &t, p, panels, u, units, m0, m1);
    }
}

static void linear_direct(tile_fn *multiply, const qn__cpu_linear *a, size_t p0, size_t p1,
                          size_t units)
{
    if (a->m <= 8) {
        linear_few(multiply, a, p0, p1, units);
        return;
    }
    for (size_t m0 = a->m0; m0 < a->m1; m0 += BAND_ROWS) {
        size_t m1 = a->m1 - m0 < BAND_ROWS ? a->m1 : m0 + BAND_ROWS;
        for (size_t p = p0; p < p1; p += 3)
            linear_band(multiply, a, p, p1 - p < 3 ? p1 - p : 3, m0, m1, units);
    }
}

void qn__cpu_linear_bf16_avx512(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    linear_direct(tile_bf16, a, p0, p1, (a->k + 1) / 2);
}

/* Weights that are not f32: a chunk of columns of a group of panels is widened into the first
 * caches, where it meets all rows. */
static void linear_widened(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    _Alignas(64) float wide[3 * WIDE_COLUMNS * 16];
    const qn__layout *l = a->layout;
    size_t group = a->m <= 8 ? 1 : 3;
    for (size_t p = p0; p < p1; p += group) {
        size_t panels = p1 - p < group ? p1 - p : group;
        tile_args t = {(const char *)wide,
                       WIDE_COLUMNS * 64,
                       NULL,
                       0,
                       NULL,
                       a->ldy,
                       0,
                       lanes_of_panel(a->n, p + panels - 1),
                       0};
        for (size_t c = 0; c < a->k; c += WIDE_COLUMNS) {
            t.units = a->k - c < WIDE_COLUMNS ? a->k - c : WIDE_COLUMNS;
            for (size_t q = 0; q < panels; q++)
                widen_panel(l, a->unpack, a->w, a->k, p + q, c / l->columns,
                            (t.units + l->columns - 1) / l->columns, wide + q * WIDE_COLUMNS * 16);
            multiply_rows(qn__cpu_tile_f32_avx512, a, &t, p, panels, c, a->k, a->m0, a->m1);
        }
    }
}

static void linear_f32_avx512(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    if (a->layout->columns == 1)
        linear_direct(qn__cpu_tile_f32_avx512, a, p0, p1, a->k);
    else
        linear_widened(a, p0, p1);
}

void qn__cpu_turned_rows_avx512(const qn__cpu_linear *a, qn__turned kind, const float *w,
                                size_t room, size_t units, size_t p, size_t panels, size_t u,
                                size_t all)
{
    tile_args t = {(const char *)w,
                   room * 64,
                   NULL,
                   units,
                   NULL,
                   a->ldy,
                   0,
                   lanes_of_panel(a->k, p + panels - 1),
                   0};
    unsigned before = _mm_getcsr();
    if (kind == QN__TURNED_WORDS)
        _mm_setcsr(QN__DOT_PRODUCT_CSR);
    multiply_rows(kind == QN__TURNED_PAIRS ? tile_bf16 : qn__cpu_tile_f32_avx512, a, &t, p, panels,
                  u, all, a->m0, a->m1);
    _mm_setcsr(before);
}

void qn__cpu_fill_linear_avx512(qn__cpu_kernels *t)
{
    t->linear[QN__CPU_F32] = linear_f32_avx512;
    t->linear[QN__CPU_BF16] = qn__cpu_linear_bf16_avx512;
}
