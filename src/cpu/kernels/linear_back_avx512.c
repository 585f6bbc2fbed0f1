/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: linear back, the transposed product on packed weights, y[M, K] = g[M, N] W[N, K], for
 * gradients.
 *
 * A panel holds 16 values of n side by side, so the sum over n runs across lanes: a tile of 4 rows
 * x 6 columns keeps 24 accumulators, steps over panels, and folds lanes by v_sum's tree at the end
 * of every 128 panels; those parts add up in y from left to right. Six columns of 128 panels are
 * first gathered and widened to f32 on the stack, where all rows use them. Bits depend on N alone.
 */
#include "kernels.h"
#include "vec_avx512.h"

#include "widen.inl"

enum {
    BACK_PANELS = 128,
    BACK_COLUMNS = 6,
    BACK_ROWS = 4,
    WIDE_PANELS = 4, /* of other weights, widened at a time */
    WIDE_COLUMNS = 256
};

#define ALWAYS static inline __attribute__((always_inline))

typedef struct back_tile_args {
    const float *w; /* [panels][6][16] */
    const float *g; /* first row, first panel */
    size_t ldg;
    size_t panels;
    __mmask16 last; /* lanes of the last panel */
    float *y;       /* first row, first column */
    size_t ldy, columns;
    int add;
} back_tile_args;

/* Columns c .. c + 5 of panels p0 .. p1 - 1 as f32, zeros past column k. */
static void back_gather(const qn__cpu_linear_back *a, size_t c, size_t p0, size_t p1, float *to)
{
    bool f32 = a->layout->columns == 1;
    size_t panel_bytes = (f32 ? a->k : (a->k + 1) / 2) * 64;
    for (size_t p = p0; p < p1; p++, to += BACK_COLUMNS * 16) {
        const char *panel = (const char *)a->w + p * panel_bytes;
        for (size_t j = 0; j < BACK_COLUMNS; j++) {
            __m512 v = _mm512_setzero_ps();
            if (c + j < a->k && f32)
                v = _mm512_load_ps(panel + (c + j) * 64);
            else if (c + j < a->k) { /* the pair's low half is the even column */
                __m512i u = _mm512_load_si512(panel + (c + j) / 2 * 64);
                u = j % 2 ? _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000))
                          : _mm512_slli_epi32(u, 16);
                v = _mm512_castsi512_ps(u);
            }
            _mm512_store_ps(to + j * 16, v);
        }
    }
}

#define BACK_EACH(F) F(0) F(1) F(2) F(3)

ALWAYS void back_tile(int rows, const back_tile_args *a)
{
#define DECLARE(r)                                                                                 \
    __m512 c##r##0 = _mm512_setzero_ps(), c##r##1 = c##r##0, c##r##2 = c##r##0, c##r##3 = c##r##0, \
           c##r##4 = c##r##0, c##r##5 = c##r##0;
    BACK_EACH(DECLARE)
#undef DECLARE
    const float *w = a->w, *g = a->g;
    for (size_t p = 0; p < a->panels; p++) {
        __mmask16 mask = p + 1 == a->panels ? a->last : (__mmask16)0xffff;
        __m512 w0 = _mm512_load_ps(w), w1 = _mm512_load_ps(w + 16), w2 = _mm512_load_ps(w + 32);
        __m512 w3 = _mm512_load_ps(w + 48), w4 = _mm512_load_ps(w + 64),
               w5 = _mm512_load_ps(w + 80);
#define STEP(r)                                                                                    \
    if (rows > r) {                                                                                \
        __m512 x = _mm512_maskz_loadu_ps(mask, g + r * a->ldg);                                    \
        if (rows == 4) /* the next tile's line */                                                  \
            _mm_prefetch((const char *)(g + (r + 4) * a->ldg), _MM_HINT_T0);                       \
        c##r##0 = _mm512_fmadd_ps(x, w0, c##r##0);                                                 \
        c##r##1 = _mm512_fmadd_ps(x, w1, c##r##1);                                                 \
        c##r##2 = _mm512_fmadd_ps(x, w2, c##r##2);                                                 \
        c##r##3 = _mm512_fmadd_ps(x, w3, c##r##3);                                                 \
        c##r##4 = _mm512_fmadd_ps(x, w4, c##r##4);                                                 \
        c##r##5 = _mm512_fmadd_ps(x, w5, c##r##5);                                                 \
    }
        BACK_EACH(STEP)
#undef STEP
        w += BACK_COLUMNS * 16;
        g += 16;
    }
#define SAVE(r)                                                                                    \
    if (rows > r) {                                                                                \
        float *y = a->y + r * a->ldy;                                                              \
        float s[BACK_COLUMNS] = {v_sum(c##r##0), v_sum(c##r##1), v_sum(c##r##2),                   \
                                 v_sum(c##r##3), v_sum(c##r##4), v_sum(c##r##5)};                  \
        for (size_t j = 0; j < a->columns; j++)                                                    \
            y[j] = a->add ? y[j] + s[j] : s[j];                                                    \
    }
    BACK_EACH(SAVE)
#undef SAVE
}

/* The gathered columns of panels p .. p1 - 1 meet all rows; their part is added from p = 1 on. */
static void back_rows(const qn__cpu_linear_back *a, const float *w, size_t c, size_t columns,
                      size_t p, size_t p1)
{
    size_t tail = a->n % 16;
    back_tile_args t = {w,
                        a->g + p * 16,
                        a->ldg,
                        p1 - p,
                        p1 == qn__cpu_panels(a->n) && tail ? v_first(tail) : 0xffff,
                        a->y + c,
                        a->ldy,
                        columns < BACK_COLUMNS ? columns : BACK_COLUMNS,
                        p > 0};
    for (size_t r = 0; r < a->m;
         r += BACK_ROWS, t.g += BACK_ROWS * a->ldg, t.y += BACK_ROWS * a->ldy) {
        if (a->m - r >= 4)
            back_tile(4, &t);
        else if (a->m - r == 3)
            back_tile(3, &t);
        else if (a->m - r == 2)
            back_tile(2, &t);
        else
            back_tile(1, &t);
    }
}

static void back_direct(const qn__cpu_linear_back *a, size_t k0, size_t k1)
{
    _Alignas(64) float w[BACK_PANELS * BACK_COLUMNS * 16];
    size_t panels = qn__cpu_panels(a->n);
    for (size_t c = k0; c < k1; c += BACK_COLUMNS)
        for (size_t p = 0; p < panels; p += BACK_PANELS) {
            size_t p1 = panels - p < BACK_PANELS ? panels : p + BACK_PANELS;
            back_gather(a, c, p, p1, w);
            back_rows(a, w, c, k1 - c, p, p1);
        }
}

/* Weights that are neither f32 nor bf16: a few panels are widened, then go six columns at a time.
 */
static void back_widened(const qn__cpu_linear_back *a, size_t k0, size_t k1)
{
    _Alignas(64) float wide[WIDE_PANELS * WIDE_COLUMNS * 16];
    _Alignas(64) float w[WIDE_PANELS * BACK_COLUMNS * 16];
    const qn__layout *l = a->layout;
    size_t panels = qn__cpu_panels(a->n);
    for (size_t c0 = k0; c0 < k1; c0 += WIDE_COLUMNS) {
        size_t n = k1 - c0 < WIDE_COLUMNS ? k1 - c0 : WIDE_COLUMNS;
        for (size_t p = 0; p < panels; p += WIDE_PANELS) {
            size_t p1 = panels - p < WIDE_PANELS ? panels : p + WIDE_PANELS;
            for (size_t q = p; q < p1; q++)
                widen_panel(l, a->unpack, a->w, a->k, q, c0 / l->columns,
                            (n + l->columns - 1) / l->columns, wide + (q - p) * WIDE_COLUMNS * 16);
            for (size_t c = 0; c < n; c += BACK_COLUMNS) {
                size_t columns = n - c < BACK_COLUMNS ? n - c : BACK_COLUMNS;
                for (size_t q = 0; q < p1 - p; q++)
                    memcpy(w + q * BACK_COLUMNS * 16, wide + (q * WIDE_COLUMNS + c) * 16,
                           columns * 64);
                back_rows(a, w, c0 + c, columns, p, p1);
            }
        }
    }
}

static void linear_back_avx512(const qn__cpu_linear_back *a, size_t k0, size_t k1)
{
    bool direct = a->layout->columns == 1 || a->layout->encoding == &qn__encodings[QN__BF16];
    (direct ? back_direct : back_widened)(a, k0, k1);
}

void qn__cpu_fill_back_avx512(qn__cpu_kernels *t)
{
    t->linear_back = linear_back_avx512;
}
