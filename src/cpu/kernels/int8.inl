/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear by exact products of bytes, over vec_*.h, after units.inl: what the tiers share.
 *
 * A group of x's columns (32, or a step of the weight's where that is longer; or the whole row)
 * becomes signed bytes and one scale: the largest magnitude is 127. Within a step of columns the
 * products with the weight's codes are summed as integers, exactly, so their order is nobody's
 * concern; then
 *
 *     y = fma(sum of (code - zero) x, scale of the weight * scale of x, y)
 *     y = fma(bias of the weight, scale of x * sum of x, y)      where the layout has biases
 *
 * step after step, in order of columns. That fixes the bits: the same for one row and many, and in
 * every tier.
 *
 * Prepared x[m, k]: first the bytes of all rows, in blocks of INT8_ROWS rows (the last has what is
 * left), [column / 4][row][4], columns padded with zeros to whole units; then for each block and
 * step three numbers a row, [3][row]: the scale (f32), what an integer sum begins with, -zero times
 * the sum of the step's bytes (i32; where products want codes above 127 signed, 128 less, it makes
 * up for that), and scale times that sum (f32).
 *
 * With many rows a weight's units are unpacked into the first cache, and meet all of them there.
 * Few rows meet it straight from memory, unpacked in registers. Before this file: INT8_ROWS and
 * INT8_PANELS, the largest tile, and INT8_DIRECT_ROWS, how many rows are few; after it,
 * INT8_TILE (int8_vec, where a tier has no other) and int8_direct_of().
 */

#include "int8_x.inl"

enum { INT8_CHUNK = 512 }; /* columns unpacked at a time */

/* One row of the numbers behind the bytes. */
typedef struct int8_place {
    uint8_t *codes; /* of the first column, this row */
    uint8_t *meta;  /* of the first step, this row */
    size_t rows;    /* of the block */
} int8_place;

static size_t int8_codes_bytes(const qn__layout *l, size_t m, size_t k)
{
    return (m * int8_padded(l, k) + 63) / 64 * 64;
}

static int8_place int8_row_at(const qn__layout *l, const void *x, size_t m, size_t k, size_t row)
{
    size_t padded = int8_padded(l, k), block = row / INT8_ROWS * INT8_ROWS,
           rows = m - block < INT8_ROWS ? m - block : INT8_ROWS, lane = row - block;
    uint8_t *at = (uint8_t *)x;
    return (int8_place){at + block * padded + 4 * lane,
                        at + int8_codes_bytes(l, m, k) + block * (padded / l->step) * 12 + 4 * lane,
                        rows};
}

/* What the products have subtracted from codes. */
static int32_t int8_less(const qn__layout *l)
{
#ifdef VEC_SIGNED
    return l->top > 127 ? 128 : 0;
#else
    (void)l;
    return 0;
#endif
}

/* whole: all of a row has one scale, of QN__LEAST_OF_ROW at least. */
static void int8_prepare(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                         size_t k, size_t m0, size_t m1, int whole)
{
    size_t padded = int8_padded(l, k), step = l->step, span = int8_span(l);
    for (size_t r = m0; r < m1; r++) {
        int8_place to = int8_row_at(l, dst, m, k, r);
        int8_row row = int8_row_of(l, x + r * ldx, k, whole);
        for (size_t c = 0; c < padded; c += span) {
            int8_t bytes[INT8_MOST_SPAN];
            float scale = int8_columns(&row, c, span, bytes);
            for (size_t i = 0; i < span; i += 4)
                memcpy(to.codes + (c + i) * to.rows, bytes + i, 4);
            for (size_t s = 0; s < span; s += step) {
                int32_t sum = int8_sum(bytes + s, step);
                uint8_t *meta = to.meta + (c + s) / step * 12 * to.rows;
                int32_t begin = (int8_less(l) - (int32_t)l->zero) * sum;
                float scaled = scale * (float)sum;
                memcpy(meta, &scale, 4);
                memcpy(meta + 4 * to.rows, &begin, 4);
                memcpy(meta + 8 * to.rows, &scaled, 4);
            }
        }
    }
}

static void prepare_int8(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                         size_t k, size_t m0, size_t m1)
{
    int8_prepare(l, dst, x, ldx, m, k, m0, m1, 0);
}

static void prepare_int8_rows(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                              size_t k, size_t m0, size_t m1)
{
    int8_prepare(l, dst, x, ldx, m, k, m0, m1, 1);
}

/* Panels meet a block of rows. */
typedef struct int8_args {
    const qn__layout *layout;
    const uint8_t *codes; /* [panel][column / 4][16][4], or the first of `units` units */
    size_t units;
    size_t next_x, next_meta;  /* bytes from a block of x to the next */
    const float *scale, *bias; /* [panel][step][16] */
    const uint8_t *x;          /* block, at the first column */
    const uint8_t *meta;       /* and step */
    size_t steps, quads;       /* columns / 4 of a step */
    float *y;
    size_t ldy, last; /* lanes of the last panel */
    int resume;       /* take sums from y */
    int biased;       /* there are biases */
    int top;          /* the largest code */
} int8_args;

enum {
    INT8_PANEL_CODES = INT8_CHUNK * 16,      /* bytes */
    INT8_PANEL_SCALES = INT8_CHUNK / 16 * 16 /* floats */
};

/* Under a sanitizer each load is a call, and compiling loops without end takes minutes. */
#if INT8_DIRECT_ROWS > 1 && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#undef INT8_DIRECT_ROWS
#define INT8_DIRECT_ROWS 1
#endif

#ifndef INT8_TILE
#define INT8_TILE int8_vec
#endif

/* Unpacked panels, and one panel straight from its units. */
static void INT8_TILE(size_t rows, size_t panels, const int8_args *a);
typedef void int8_direct(size_t rows, const int8_args *a);
static int8_direct *int8_direct_of(const qn__layout *l);

/* A chunk of columns of panels p .. p + panels - 1 into `codes`, `scale`, `bias`. */
static void int8_unpack(const qn__cpu_linear *a, size_t p, size_t panels, size_t unit, size_t units,
                        uint8_t *codes, float *scale, float *bias)
{
    const qn__layout *l = a->layout;
    size_t group_bytes = int8_padded(l, a->k) / l->columns * l->unit_bytes,
           steps = l->columns / l->step;
    for (size_t q = 0; q < panels; q++) {
        const uint8_t *from = (const uint8_t *)a->w + (p + q) * group_bytes + unit * l->unit_bytes;
        for (size_t u = 0; u < units; u++, from += l->unit_bytes)
            a->unpack(l, from, codes + q * INT8_PANEL_CODES + u * l->columns * 16,
                      scale + q * INT8_PANEL_SCALES + u * steps * 16,
                      bias + q * INT8_PANEL_SCALES + u * steps * 16);
    }
}

/* Rows' prepared columns from `column` on, and their results of panel p. */
static size_t int8_meet(const qn__cpu_linear *a, size_t row, size_t column, size_t p, int8_args *t)
{
    const qn__layout *l = a->layout;
    int8_place at = int8_row_at(l, a->x, a->m, a->k, row);
    t->x = at.codes + column * at.rows;
    t->meta = at.meta + column / l->step * 12 * at.rows;
    t->y = a->y + row * a->ldy + p * 16;
    t->resume = column > 0;
    return at.rows;
}

/* Few rows: a chunk of units is read from memory once and meets each block of rows. */
static void linear_direct(const qn__cpu_linear *a, size_t p0, size_t p1, int8_direct *direct)
{
    const qn__layout *l = a->layout;
    size_t units = int8_padded(l, a->k) / l->columns,
           chunk = a->m1 - a->m0 > INT8_ROWS ? INT8_CHUNK / l->columns : units;
    int8_args t = {.layout = l,
                   .ldy = a->ldy,
                   .next_x = INT8_ROWS * int8_padded(l, a->k),
                   .next_meta = INT8_ROWS * (int8_padded(l, a->k) / l->step) * 12};
    for (size_t p = p0; p < p1; p++) {
        t.last = a->n - p * 16 < 16 ? a->n - p * 16 : 16;
        for (size_t u = 0; u < units; u += chunk) {
            t.units = units - u < chunk ? units - u : chunk;
            t.codes = (const uint8_t *)a->w + (p * units + u) * l->unit_bytes;
            for (size_t r = a->m0, rows; r < a->m1; r += rows) {
                rows = int8_meet(a, r, u * l->columns, p, &t);
                if (INT8_DIRECT_ROWS >= 2 * INT8_ROWS && a->m1 - r >= 2 * INT8_ROWS)
                    rows = 2 * INT8_ROWS;
                direct(rows, &t);
            }
        }
    }
}

static void linear_int8(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    _Alignas(64) uint8_t codes[INT8_PANELS * INT8_PANEL_CODES];
    _Alignas(64) float scale[INT8_PANELS * INT8_PANEL_SCALES],
        bias[INT8_PANELS * INT8_PANEL_SCALES];
    const qn__layout *l = a->layout;
    size_t rows = a->m1 - a->m0;
    if (rows <= INT8_DIRECT_ROWS && rows % 4 != 3 && int8_direct_of(l)) {
        linear_direct(a, p0, p1, int8_direct_of(l));
        return;
    }
    size_t group = rows <= 2 * INT8_ROWS ? 1 : INT8_PANELS,
           units = int8_padded(l, a->k) / l->columns, chunk = INT8_CHUNK / l->columns;
    int8_args t = {.layout = l,
                   .codes = codes,
                   .scale = scale,
                   .bias = bias,
                   .quads = l->step / 4,
                   .ldy = a->ldy,
                   .top = l->top,
                   .biased = l->biased};
    for (size_t p = p0; p < p1; p += group) {
        size_t panels = p1 - p < group ? p1 - p : group, left = a->n - (p + panels - 1) * 16;
        t.last = left < 16 ? left : 16;
        for (size_t u = 0; u < units; u += chunk) {
            size_t n = units - u < chunk ? units - u : chunk;
            int8_unpack(a, p, panels, u, n, codes, scale, bias);
            t.steps = n * l->columns / l->step;
            for (size_t r = a->m0; r < a->m1; r += INT8_ROWS)
                INT8_TILE(int8_meet(a, r, u * l->columns, p, &t), panels, &t);
        }
    }
}
