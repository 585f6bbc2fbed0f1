/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU kernel table.
 *
 * Problem: one set of small kernels makes the CPU backend fast, in several instruction-set tiers,
 * and the thread team must be able to cut the work anywhere without changing a bit of the result.
 *
 * Approach: a table of function pointers, filled from the C reference upwards (ref, avx2, avx512,
 * amx). A kernel sees pointers, sizes and strides only; it allocates nothing, locks nothing and
 * cannot fail. Each works on a range of independent units (rows, panels, elements) that the caller
 * chooses. Scratch comes from the caller, 64-byte aligned.
 *
 * Invariants, within one tier:
 *  - A result does not depend on the range cuts, on the number of rows M, on how rows are grouped,
 *    on alignment, nor (in attention) on whether a row runs in prefill or in decode, or on the
 *    cache's capacity. A reduction's order depends on the reduced length only.
 *  - Elementwise maps, conversions, row kernels and rope give the same bits in every tier (one
 *    source for all).
 *  - x is never written; outputs do not overlap inputs unless the comment says so.
 *
 * Strides and lengths count elements, not bytes. "bf16" and "f16" are uint16_t. size_t ranges are
 * half-open.
 */
#ifndef QN_CPU_KERNELS_H
#define QN_CPU_KERNELS_H

#include "quant/layout.h"

/* Types of elements: of keys and values, and of the operands of products. */
typedef enum qn__cpu_type {
    QN__CPU_F32,
    QN__CPU_BF16,
    QN__CPU_INT8,      /* products alone: bytes with a scale a group (int8.inl) */
    QN__CPU_INT8_ROWS, /* the same with a scale a row */
    QN__CPU_PRODUCTS,
    QN__CPU_BACK_PRODUCTS = QN__CPU_BF16 + 1, /* of gradients */
    QN__CPU_F16 = QN__CPU_PRODUCTS            /* keys and values alone */
} qn__cpu_type;

/* Elementwise functions. All take and return f32 (or f64); NaN in, NaN out. */
typedef enum qn__cpu_map {
    QN__CPU_EXP,
    QN__CPU_LOG,
    QN__CPU_TANH,
    QN__CPU_SIGMOID,
    QN__CPU_SIN,
    QN__CPU_COS,
    QN__CPU_ERF,
    QN__CPU_RSQRT,
    QN__CPU_SQRT,
    QN__CPU_MAP_COUNT
} qn__cpu_map;

/* Packed weights W[N, K] are units of 16 rows, a panel: quant/layout.h. 64-byte aligned. */
#define QN__CPU_PANEL QN__UNIT_ROWS

static inline size_t qn__cpu_panels(size_t n)
{
    return (n + QN__CPU_PANEL - 1) / QN__CPU_PANEL;
}

/* Bytes of prepared x[m, k] for any layout and products, in any tier (see prepare). */
static inline size_t qn__cpu_prepared_bytes(size_t m, size_t k)
{
    return m * ((k + 255) / 256) * 1024 + 64;
}

/* Panels of columns whose units linear_back takes apart together: 192 columns or so; of plain
 * numbers, which can be cut anywhere, those of a tile, so that it may take many rows at a time. */
static inline size_t qn__cpu_back_panels(const qn__layout *l)
{
    if (l->columns < QN__CPU_PANEL)
        return 3;
    return (l->columns < 192 ? 192 / l->columns * l->columns : l->columns) / QN__CPU_PANEL;
}

/* Takes one unit apart: a byte for each code, [column / 4][16 rows][4], scale and bias for each
 * step of columns, [step][16]. Layouts without biases leave these alone. */
typedef void qn__cpu_unpack(const qn__layout *l, const uint8_t *unit, uint8_t *codes, float *scale,
                            float *bias);

/* Where a tier wants linear to be cut. */
typedef struct qn__cpu_cut {
    size_t block_rows;  /* rows that lie together in prepared x, or a multiple; at most 24 */
    size_t tile_panels; /* panels of its tiles for many rows: a cut inside one costs half a tile */
    size_t band_rows;   /* rows of a unit of work with many rows, a multiple of block_rows */
} qn__cpu_cut;

/* y[M, N] = x[M, K] W[N, K]^T on packed weights; or for gradients y[M, K] = x[M, N] W[N, K]. */
typedef struct qn__cpu_linear {
    const qn__layout *layout;
    qn__cpu_unpack *unpack; /* of the layout, NULL for plain floats */
    const void *w;          /* packed, 64-byte aligned */
    size_t n, k, m;
    size_t m0, m1; /* the rows wanted; m0 a multiple of the cut's block_rows, m1, too, or m */
    const void *x; /* prepared rows, from prepare with the same m, k (for gradients n), layout */
    float *y;      /* [M][ldy] */
    size_t ldy;
    bool add; /* gradients alone: sums go on from what y holds */
} qn__cpu_linear;

/*
 * C[m, n] = sum over k of A[m, k] B[k, n], plain arrays, any strides (also zero or negative) for A
 * and B; C's columns are adjacent. K = 0 gives zeros. With `add` sums go on from what C holds. The
 * f64 form has the same fields.
 */
typedef struct qn__cpu_dense {
    size_t n, k;
    const float *a;
    ptrdiff_t ras, cas; /* A[m, k] = a[m * ras + k * cas] */
    const float *b;
    ptrdiff_t rbs, cbs; /* B[k, n] = b[k * rbs + n * cbs] */
    float *c;
    ptrdiff_t ldc;
    bool add;
    const float *panels; /* B as dense_panels has it, or NULL; f32 alone */
} qn__cpu_dense;

typedef struct qn__cpu_dense_f64 {
    size_t n, k;
    const double *a;
    ptrdiff_t ras, cas;
    const double *b;
    ptrdiff_t rbs, cbs;
    double *c;
    ptrdiff_t ldc;
    bool add;
} qn__cpu_dense_f64;

/*
 * Rotary embedding of rows (tokens) of heads. Row r, head h starts at x + r * x_row + h * x_head.
 * The first 2 * half elements of a head rotate by row r's cos[half], sin[half]; elements from
 * 2 * half on are copied. y may be x. Pairs are (i, i + half), or (2i, 2i + 1) when interleaved:
 * y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin, each product rounded.
 */
typedef struct qn__cpu_rope {
    size_t heads, d, half;
    int interleaved;
    const float *x;
    size_t x_row, x_head;
    float *y;
    size_t y_row, y_head;
    const float *cos, *sin; /* row r at + r * cs_row (0: the same for all) */
    size_t cs_row;
} qn__cpu_rope;

typedef struct qn__cpu_rope_f64 {
    size_t heads, d, half;
    int interleaved;
    const double *x;
    size_t x_row, x_head;
    double *y;
    size_t y_row, y_head;
    const double *cos, *sin;
    size_t cs_row;
} qn__cpu_rope_f64;

#define QN__CPU_KEY_GROUP 16

static inline size_t qn__cpu_key_place(size_t d, size_t s, size_t i)
{
    return s / QN__CPU_KEY_GROUP * QN__CPU_KEY_GROUP * d + i * QN__CPU_KEY_GROUP +
           s % QN__CPU_KEY_GROUP;
}

/* Keys and values lie in pages of 64 positions; 16 pages are a span. */
enum { QN__CPU_PAGE = 64, QN__CPU_SPAN = 16 * QN__CPU_PAGE };

/* clang-format off */
/*
 * Attention of one KV head: tokens x the query heads that share it. Position s of their sequence lies
 * in page p = pages[s / 64], of which this head has, from at + p * page on,
 *   keys:   groups of 16, transposed: element qn__cpu_key_place(d, s % 64, i)
 *   values: element s % 64 * dv + i
 *   either in a layout: row s % 64 of the units of 64 rows
 * Only pages that a range touches are read, and in them nothing but whole groups of 16 keys; what lies
 * outside a token's range is never used (it may be NaN).
 * Token t sees keys begin[t] .. end[t] - 1 and, where there are any, keys 0 .. keep - 1 (64 at most;
 * begin[t] is then 0 or not below keep, and what lies between in page 0 is no NaN). score =
 * scale * (q . k), then softcap * tanh(score / softcap) when softcap > 0. sink[h], when given, joins
 * the softmax's denominator as one more logit. A token without keys gives zeros.
 */
/* clang-format on */
typedef struct qn__cpu_pages {
    qn__cpu_type type;        /* F32, BF16 or F16 */
    const qn__layout *layout; /* NULL: elements of the type */
    qn__cpu_unpack *unpack;   /* of the layout */
    const void *at;           /* 64-byte aligned with a layout */
    size_t page;              /* bytes */
} qn__cpu_pages;

typedef struct qn__cpu_attend {
    size_t d, dv; /* length of a key and of a value */
    qn__cpu_pages k, v;
    const int32_t *pages;
    size_t tokens, heads;
    const float *q; /* token t, head h at q + t * q_token + h * q_head */
    size_t q_token, q_head;
    float *o; /* [dv] at o + t * o_token + h * o_head */
    size_t o_token, o_head;
    const int32_t *begin, *end; /* [tokens] */
    const float *sink;          /* [heads] or NULL */
    float scale, softcap;
    size_t keep;
} qn__cpu_attend;

/* Writes keys or values of one KV head (f32 rows, rounded to the type) at places at .. at + n - 1
 * of a page, which must not end before. */
typedef struct qn__cpu_cache_write {
    qn__cpu_type type;
    bool keys;
    void *page; /* the head's part of it */
    size_t d;   /* length of a row */
    size_t at, n;
    const float *rows;
    size_t ld_rows;
} qn__cpu_cache_write;

typedef struct qn__cpu_kernels {
    const char *tier; /* "ref", "avx2", "avx512", "amx" */

    /* --- linear: packed weights --- */

    /* By layout; NULL for plain floats. */
    qn__cpu_unpack *unpack[QN__LAYOUT_COUNT];

    qn__cpu_cut cut[QN__CPU_PRODUCTS];

    /*
     * Lays out rows m0 .. m1 - 1 of x[m, k] (row stride ldx, x points to row 0) for linear into
     * dst. Rows are independent; cuts at multiples of the cut's block_rows avoid sharing cache
     * lines. With few rows each thread may prepare its own copy; with many, prepare in one phase
     * and multiply in the next. One entry for each kind of products:
     *   F32   x as it is, times the weight's values in f32
     *   BF16  x rounded to bf16; of weights in bf16 alone
     *   INT8  x as bytes, a scale for each group of columns; of layouts with steps
     *   INT8_ROWS  the same, a scale for each row
     */
    void (*prepare[QN__CPU_PRODUCTS])(const qn__layout *l, void *dst, const float *x, size_t ldx,
                                      size_t m, size_t k, size_t m0, size_t m1);
    /* Panels p0 .. p1 - 1 (output columns 16 p0 .. 16 p1 - 1, cut at n) of rows m0 .. m1 - 1. Fast
     * from about 4 panels a call. */
    void (*linear[QN__CPU_PRODUCTS])(const qn__cpu_linear *a, size_t p0, size_t p1);
    /* The transposed product: columns 16 p0 .. 16 p1 - 1, cut at k, of rows m0 .. m1 - 1; x from
     * prepare_back, cut as for F32. p0 is a multiple of qn__cpu_back_panels. Fast from about 100
     * rows a call, which turns blocks of W anew. With products in BF16 both x and W's values are
     * rounded to bf16. */
    void (*linear_back[QN__CPU_BACK_PRODUCTS])(const qn__cpu_linear *a, size_t p0, size_t p1);
    void (*prepare_back[QN__CPU_BACK_PRODUCTS])(void *dst, const float *x, size_t ldx, size_t m,
                                                size_t k, size_t m0, size_t m1);

    /* --- plain strided matmul: rows m0 .. m1 - 1 --- */
    void (*dense)(const qn__cpu_dense *a, size_t m0, size_t m1);
    void (*dense_f64)(const qn__cpu_dense_f64 *a, size_t m0, size_t m1);
    /* B's columns 16 p0 .. 16 p1 - 1 in `to`, where panel p is [k][16] from 16 k p on, zeros past
     * column n: for products of many rows. NULL: the tier reads B where it is. */
    void (*dense_panels)(const qn__cpu_dense *a, size_t p0, size_t p1, float *to);

    /* --- rows r0 .. r1 - 1; row r of x at x + r * ldx; y may be x --- */
    /* y = (x / sqrt(mean(x^2) + eps)) * w: the normalised value is rounded, then multiplied; w NULL
     * means ones */
    void (*rms_norm)(float *y, size_t ldy, const float *x, size_t ldx, const float *w, float eps,
                     size_t n, size_t r0, size_t r1);
    void (*softmax)(float *y, size_t ldy, const float *x, size_t ldx, size_t n, size_t r0,
                    size_t r1);
    /* scale times the product with the Hadamard matrix of n = 2^k: sums and differences of elements
     * that lie 1, 2, 4 ... apart */
    void (*hadamard)(float *y, size_t ldy, const float *x, size_t ldx, float scale, size_t n,
                     size_t r0, size_t r1);
    /* one result a row, at out[r]. Empty rows: sum 0, max -inf, argmax 0, logsumexp -inf. */
    void (*logsumexp)(float *out, const float *x, size_t ldx, size_t n, size_t r0, size_t r1);
    void (*sum)(float *out, const float *x, size_t ldx, size_t n, size_t r0, size_t r1);
    void (*max)(float *out, const float *x, size_t ldx, size_t n, size_t r0,
                size_t r1); /* NaN wins */
    /* the first index of the largest; the first NaN, if any */
    void (*argmax)(int64_t *out, const float *x, size_t ldx, size_t n, size_t r0, size_t r1);

    void (*rms_norm_f64)(double *y, size_t ldy, const double *x, size_t ldx, const double *w,
                         double eps, size_t n, size_t r0, size_t r1);
    void (*softmax_f64)(double *y, size_t ldy, const double *x, size_t ldx, size_t n, size_t r0,
                        size_t r1);
    void (*hadamard_f64)(double *y, size_t ldy, const double *x, size_t ldx, double scale, size_t n,
                         size_t r0, size_t r1);
    void (*logsumexp_f64)(double *out, const double *x, size_t ldx, size_t n, size_t r0, size_t r1);
    void (*sum_f64)(double *out, const double *x, size_t ldx, size_t n, size_t r0, size_t r1);
    void (*max_f64)(double *out, const double *x, size_t ldx, size_t n, size_t r0, size_t r1);
    void (*argmax_f64)(int64_t *out, const double *x, size_t ldx, size_t n, size_t r0, size_t r1);

    /* --- rope: rows r0 .. r1 - 1 --- */
    void (*rope)(const qn__cpu_rope *a, size_t r0, size_t r1);
    void (*rope_f64)(const qn__cpu_rope_f64 *a, size_t r0, size_t r1);

    /* --- elementwise, n contiguous elements, any alignment; y may be x --- */
    void (*map[QN__CPU_MAP_COUNT])(float *y, const float *x, size_t n);
    void (*map_f64[QN__CPU_MAP_COUNT])(double *y, const double *x, size_t n);
    void (*pow)(float *y, const float *x, const float *e, size_t n);
    void (*pow_f64)(double *y, const double *x, const double *e, size_t n);
    void (*f32_from_bf16)(float *y, const uint16_t *x, size_t n);
    void (*bf16_from_f32)(uint16_t *y, const float *x,
                          size_t n); /* nearest even; NaN stays a (quiet) NaN */
    void (*f32_from_f16)(float *y, const uint16_t *x, size_t n);
    void (*f16_from_f32)(uint16_t *y, const float *x,
                         size_t n); /* nearest even, overflow to infinity */

    /*
     * --- sampling: the n logits x of one token, in blocks of 64 ---
     * The weight of a logit is exp((logit - max) * scale), that of NaN is 0. `tops`, one a block,
     * lets passes leave blocks out.
     */
    /* The largest of each block, -inf for NaN; returns the largest of all. */
    float (*block_tops)(const float *x, size_t n, float *tops);
    /* Sums of the weights of what reaches `floor`, a block each; returns the sum of all. `tops` and
     * `sums` may be NULL. */
    double (*weigh)(const float *x, size_t n, const float *tops, float max, float scale,
                    float floor, double *sums);
    /* The weights of one block, 0 for what does not reach `floor` and past the n-th. */
    void (*weigh_block)(const float *x, size_t n, float max, float scale, float floor,
                        float weight[64]);
    /* The weight of all, of what is above high, and of what lies in low..high. */
    void (*split)(const float *x, size_t n, float max, float scale, float low, float high,
                  double sums[3]);
    /* Copies what lies in low..high, in its order; returns how many. */
    size_t (*collect)(const float *x, size_t n, const float *tops, float low, float high,
                      float *out);

    /* --- attention --- */
    void (*cache_write)(const qn__cpu_cache_write *a);
    /*
     * All tokens and heads of one call; the caller cuts prefill into tiles of tokens (about 64 /
     * heads is good) and gives each (KV head, tile) to a thread, or each of its spans.
     * attend: what span number `span` gives them, into a state. attend_merge: that of a later span
     * joins that of the spans before. attend_finish: the output. States merge left to right, so one
     * thread that does all spans gets the bits of many that do one each.
     */
    void (*attend)(const qn__cpu_attend *a, size_t span, float *state, void *scratch);
    void (*attend_merge)(const qn__cpu_attend *a, float *state, const float *later);
    void (*attend_finish)(const qn__cpu_attend *a, const float *state);
    /* Bytes of a state and of attend's scratch, for any tier; multiples of 64. */
    size_t (*attend_state)(size_t tokens, size_t heads, size_t dv);
    size_t (*attend_scratch)(size_t tokens, size_t heads, size_t d, size_t dv);
} qn__cpu_kernels;

/*
 * Fills t with the best tier that the machine has, or with force_tier ("ref", "avx2" ...; NULL:
 * best). Returns 0, or -1 when the tier is unknown or the machine lacks it (t is then the
 * reference).
 */
int qn__cpu_kernels_fill(qn__cpu_kernels *t, const char *force_tier);

/* Which tier filled the entry at `offset` of t: the lowest whose table has it, too. */
const char *qn__cpu_kernel_tier(const qn__cpu_kernels *t, size_t offset);

/* The tiers of this architecture, lowest first; NULL behind the last. */
const char *qn__cpu_tier_name(int i);

/* The tiers' parts, for kernels.c alone: each overrides what it has. */
void qn__cpu_fill_ref_products(qn__cpu_kernels *t);
void qn__cpu_fill_ref_rows(qn__cpu_kernels *t);
void qn__cpu_fill_ref_f64(qn__cpu_kernels *t);
void qn__cpu_fill_ref_attend(qn__cpu_kernels *t);
void qn__cpu_fill_ref_int8(qn__cpu_kernels *t);
void qn__cpu_fill_products_avx2(qn__cpu_kernels *t);
void qn__cpu_fill_int8_avx2(qn__cpu_kernels *t);
void qn__cpu_fill_rows_avx2(qn__cpu_kernels *t);
void qn__cpu_fill_attend_avx2(qn__cpu_kernels *t);
void qn__cpu_fill_products_neon(qn__cpu_kernels *t);
void qn__cpu_fill_int8_neon(qn__cpu_kernels *t);
void qn__cpu_fill_rows_neon(qn__cpu_kernels *t);
void qn__cpu_fill_attend_neon(qn__cpu_kernels *t);
void qn__cpu_fill_linear_avx512(qn__cpu_kernels *t);
void qn__cpu_fill_prepare_avx512(qn__cpu_kernels *t);
void qn__cpu_fill_int8_avx512(qn__cpu_kernels *t);
void qn__cpu_fill_back_avx512(qn__cpu_kernels *t);
void qn__cpu_fill_dense_avx512(qn__cpu_kernels *t);
void qn__cpu_fill_rows_avx512(qn__cpu_kernels *t);
void qn__cpu_fill_attend_avx512(qn__cpu_kernels *t);
/* bf16 by f32 fma in the dot product's order, with its bits, for processors where that is faster;
 * whether this is one is measured, in some microseconds. */
void qn__cpu_fill_fma_avx512(qn__cpu_kernels *t);
int qn__cpu_dot_is_slow_avx512(void);
void qn__cpu_fill_linear_amx(qn__cpu_kernels *t);
void qn__cpu_fill_int8_amx(qn__cpu_kernels *t);

#endif
