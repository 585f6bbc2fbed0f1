/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear both ways on packed weights, preparing, and the plain strided matmul in f32, over vec_*.h:
 * for tiers without a dot product of bf16 pairs.
 *
 * Approach as in the AVX-512 files, but every product is an f32 fma: x is rounded to bf16 and
 * widened again when it is prepared, bf16 weights are widened in registers (a pair's low half is
 * the even k). Tiles of 6 rows x one panel of 16 lanes: twelve chains in the sixteen registers of
 * AVX2, one fma chain an output in order of k, which alone fixes the bits.
 *
 * Beyond what vec_ref.h and dense.inl list, vec_*.h gives here v_load_even and v_load_odd (the even
 * and odd ones of 16 pairs of bf16, in f32).
 */

#include "widen.inl"

#define ALWAYS static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 6,
    CHUNK_UNITS = 256, /* 16 KB of a panel, in the first cache */
    BAND_ROWS = 96,    /* 192 KB of x, in the second, for each of */
    GROUP_PANELS = 3,
    TURNED_ROWS = 128 /* a divisor of CHUNK_UNITS */
};

/* --- prepare: f32 [chunk][block][k][rows], in the order in which linear reads it. A block is
 * TILE_ROWS rows, the last what is left; k is padded to even for bf16 --- */

static size_t even_k(bool half, size_t k)
{
    return half ? (k + 1) / 2 * 2 : k;
}

static size_t chunk_k(bool half)
{
    return CHUNK_UNITS * (half ? 2 : 1);
}

static size_t rows_of_block(size_t first, size_t m)
{
    return m - first < TILE_ROWS ? m - first : TILE_ROWS;
}

/* Where column i of the block that begins with row `first` stands in prepared x[m, padded], in
 * floats. */
static size_t place_in_x(bool half, size_t first, size_t m, size_t i, size_t padded)
{
    size_t chunk = chunk_k(half), begin = i / chunk * chunk,
           length = padded - begin < chunk ? padded - begin : chunk;
    return begin * m + first * length + (i - begin) * rows_of_block(first, m);
}

static vf rounded_to_bf16(vf v)
{
    uint16_t narrow[16];
    v_store_bf16(narrow, v);
    return v_load_bf16(narrow);
}

/* n elements of a row, and zeros up to padded. */
ALWAYS void prepare_lanes(bool round, float *to, size_t rows, const float *in, size_t n,
                          size_t padded)
{
    vf v = n == 16 ? v_load(in) : v_load_n(in, n, 0.0f);
    if (round)
        v = rounded_to_bf16(v);
    float lanes[16];
    v_store(lanes, v);
    for (size_t j = 0; j < padded; j++)
        to[j * rows] = lanes[j];
}

/* half: for pairs. */
static void prepare_rows(bool half, bool round, void *dst, const float *x, size_t ldx, size_t m,
                         size_t k, size_t m0, size_t m1)
{
    size_t padded = even_k(half, k);
    for (size_t r = m0, end; r < m1; r = end) {
        size_t first = r / TILE_ROWS * TILE_ROWS, rows = rows_of_block(first, m);
        end = first + rows < m1 ? first + rows : m1;
        for (size_t i = 0; i < padded; i += 16) {
            float *to = (float *)dst + place_in_x(half, first, m, i, padded);
            for (size_t row = r; row < end; row++)
                prepare_lanes(round, to + (row - first), rows, x + row * ldx + i,
                              k - i < 16 ? k - i : 16, padded - i < 16 ? padded - i : 16);
        }
    }
}

static void prepare_f32_vec(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                            size_t k, size_t m0, size_t m1)
{
    (void)l;
    prepare_rows(false, false, dst, x, ldx, m, k, m0, m1);
}

static void prepare_bf16_vec(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                             size_t k, size_t m0, size_t m1)
{
    (void)l;
    prepare_rows(true, true, dst, x, ldx, m, k, m0, m1);
}

/* --- linear --- */

typedef struct tile_args {
    const float *w; /* panel, at the first unit */
    const float *x; /* block, at the first unit */
    size_t units;
    float *sums; /* [rows][16] */
} tile_args;

#define EACH_ROW(F) F(0) F(1) F(2) F(3) F(4) F(5)

/* rows x one panel, sums in and out; constants at every call. */
ALWAYS void vec_tile(int f32, int rows, const tile_args *a)
{
    const float *w = a->w, *x = a->x;
#define DECLARE(r)                                                                                 \
    vf c##r = v_set(0.0f);                                                                         \
    if (rows > r)                                                                                  \
        c##r = v_load(a->sums + 16 * r);
    EACH_ROW(DECLARE)
#undef DECLARE
    for (size_t u = 0; u < a->units; u++, w += 16) {
        if (rows == 1)
            __builtin_prefetch((const char *)w + 4096);
        vf lanes = f32 ? v_load(w) : v_load_even(w);
#define STEP(r)                                                                                    \
    if (rows > r)                                                                                  \
        c##r = v_fma_into(c##r, x[r], lanes);
        EACH_ROW(STEP)
        x += rows;
        if (f32)
            continue;
        lanes = v_load_odd(w);
        EACH_ROW(STEP)
#undef STEP
        x += rows;
    }
#define SAVE(r)                                                                                    \
    if (rows > r)                                                                                  \
        v_store(a->sums + 16 * r, c##r);
    EACH_ROW(SAVE)
#undef SAVE
}

static void vec_tile_of(bool half, size_t rows, const tile_args *a)
{
    switch (rows + (half ? 0 : TILE_ROWS)) {
#define SHAPE(r)                                                                                   \
    case r + 1: vec_tile(0, r + 1, a); break;                                                      \
    case TILE_ROWS + r + 1: vec_tile(1, r + 1, a); break;
        EACH_ROW(SHAPE)
#undef SHAPE
    default: break;
    }
}

/* How a weight is read: its own words, pairs of bf16 or f32, or columns that are widened first. */
typedef struct vec_source {
    bool half, wide;
    size_t k, units; /* columns, padded for pairs; words */
} vec_source;

/* `count` units at w, of which the first is unit u, meet rows m0 .. m1 - 1: sixteen columns of y,
 * of which `left` are there, from column c on. */
static void vec_panel_rows(const qn__cpu_linear *a, const vec_source *s, const float *w, size_t u,
                           size_t count, size_t c, size_t left, bool resume, size_t m0, size_t m1)
{
    size_t lanes = left < 16 ? left : 16;
    float sums[TILE_ROWS * 16];
    tile_args t = {w, NULL, count, sums};
    for (size_t r = m0; r < m1; r += TILE_ROWS) {
        size_t rows = rows_of_block(r, a->m);
        float *y = a->y + r * a->ldy + c;
        for (size_t i = 0; i < rows; i++)
            v_store(sums + 16 * i, resume ? v_load_n(y + i * a->ldy, lanes, 0.0f) : v_set(0.0f));
        t.x = (const float *)a->x + place_in_x(s->half, r, a->m, u * s->k / s->units, s->k);
        vec_tile_of(s->half, rows, &t);
        for (size_t i = 0; i < rows; i++)
            v_store_n(y + i * a->ldy, lanes, v_load(sums + 16 * i));
    }
}

/* One panel and a chunk of units for rows m0 .. m1 - 1; the sums of earlier chunks come from y. */
static void vec_panel_chunk(const qn__cpu_linear *a, const vec_source *s, size_t p, size_t u,
                            size_t count, size_t m0, size_t m1)
{
    _Alignas(64) float wide[CHUNK_UNITS * 16];
    const float *w = (const float *)a->w + (p * s->units + u) * 16;
    if (s->wide) {
        size_t columns = a->layout->columns;
        widen_panel(a->layout, a->unpack, a->w, a->k, p, u / columns,
                    (count + columns - 1) / columns, wide);
        w = wide;
    }
    vec_panel_rows(a, s, w, u, count, p * 16, a->n - p * 16, u > 0, m0, m1);
}

/* Each chunk of a few panels meets all rows before the next: it comes from memory once. Up to a
 * block of rows there is one chunk, but of what is widened. */
static void linear_from(const qn__cpu_linear *a, const vec_source *s, size_t p0, size_t p1)
{
    bool few = a->m <= TILE_ROWS;
    size_t group = few ? 1 : GROUP_PANELS, chunk = few && !s->wide ? s->units : CHUNK_UNITS;
    for (size_t p = p0; p < p1; p += group) {
        size_t last = p1 - p < group ? p1 : p + group;
        for (size_t u = 0; u < s->units; u += chunk) {
            size_t count = s->units - u < chunk ? s->units - u : chunk;
            for (size_t m0 = a->m0; m0 < a->m1; m0 += BAND_ROWS)
                for (size_t q = p; q < last; q++)
                    vec_panel_chunk(a, s, q, u, count, m0,
                                    a->m1 - m0 < BAND_ROWS ? a->m1 : m0 + BAND_ROWS);
        }
    }
}

static void linear_f32_vec(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    vec_source s = {false, a->layout->columns > 1, a->k, a->k};
    linear_from(a, &s, p0, p1);
}

static void linear_bf16_vec(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    vec_source s = {true, false, even_k(true, a->k), (a->k + 1) / 2};
    linear_from(a, &s, p0, p1);
}

/* --- the transposed product: blocks of W are turned into panels for the tiles above --- */

static void prepare_back_f32_vec(void *dst, const float *x, size_t ldx, size_t m, size_t k,
                                 size_t m0, size_t m1)
{
    prepare_rows(false, false, dst, x, ldx, m, k, m0, m1);
}

static void prepare_back_bf16_vec(void *dst, const float *x, size_t ldx, size_t m, size_t k,
                                  size_t m0, size_t m1)
{
    prepare_rows(false, true, dst, x, ldx, m, k, m0, m1);
}

/* Columns c0 .. c1 - 1 of W's rows n0 .. n0 + count - 1 (n0 a multiple of 16) as f32 panels
 * [column / 16][count][16]; `wide` is room for 16 rows of these columns. */
static void turn_block(const qn__cpu_linear *a, bool round, size_t c0, size_t c1, size_t n0,
                       size_t count, float *wide, float *to)
{
    size_t columns = a->layout->columns, units = (c1 - c0 + columns - 1) / columns;
    for (size_t n = 0; n < count; n += 16) {
        float block[256];
        size_t rows = count - n < 16 ? count - n : 16;
        widen_panel(a->layout, a->unpack, a->w, a->k, (n0 + n) / 16, c0 / columns, units, wide);
        for (size_t i = 0; round && i < units * columns; i++)
            v_store(wide + 16 * i, rounded_to_bf16(v_load(wide + 16 * i)));
        for (size_t c = 0; c < c1 - c0; c += 16) {
            float *at = to + (c * count + n * 16);
            v_turn(rows < 16 ? block : at, wide + c * 16, 16);
            if (rows < 16)
                memcpy(at, block, rows * 64);
        }
    }
}

static void linear_back_vec(const qn__cpu_linear *a, bool round, size_t p0, size_t p1)
{
    _Alignas(64) float turned[TURNED_ROWS * 256], wide[256 * 16];
    size_t columns = qn__cpu_back_panels(a->layout) * 16;
    size_t end = p1 * 16 < a->k ? p1 * 16 : a->k;
    vec_source s = {.k = a->n, .units = a->n};
    memset(wide, 0, sizeof wide);
    for (size_t c = p0 * 16; c < end; c += columns) {
        size_t c1 = end - c < columns ? end : c + columns;
        for (size_t n = 0; n < a->n; n += TURNED_ROWS) {
            size_t count = a->n - n < TURNED_ROWS ? a->n - n : TURNED_ROWS;
            turn_block(a, round, c, c1, n, count, wide, turned);
            for (size_t m0 = a->m0; m0 < a->m1; m0 += BAND_ROWS)
                for (size_t q = c; q < c1; q += 16)
                    vec_panel_rows(a, &s, turned + (q - c) * count, n, count, q, end - q,
                                   n > 0 || a->add, m0,
                                   a->m1 - m0 < BAND_ROWS ? a->m1 : m0 + BAND_ROWS);
        }
    }
}

static void back_f32_vec(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    linear_back_vec(a, false, p0, p1);
}

static void back_bf16_vec(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    linear_back_vec(a, true, p0, p1);
}

/* --- plain strided matmul --- */

#define DENSE_EACH EACH_ROW
enum { DENSE_TILE_ROWS = TILE_ROWS, DENSE_PARTS = 1 };

#include "dense.inl"

static void fill_vec_products(qn__cpu_kernels *t)
{
    t->prepare[QN__CPU_F32] = prepare_f32_vec;
    t->prepare[QN__CPU_BF16] = prepare_bf16_vec;
    t->linear[QN__CPU_F32] = linear_f32_vec;
    t->linear[QN__CPU_BF16] = linear_bf16_vec;
    t->linear_back[QN__CPU_F32] = back_f32_vec;
    t->linear_back[QN__CPU_BF16] = back_bf16_vec;
    t->prepare_back[QN__CPU_F32] = prepare_back_f32_vec;
    t->prepare_back[QN__CPU_BF16] = prepare_back_bf16_vec;
    t->dense = dense_rows;
    t->dense_panels = dense_lay_out;
}
