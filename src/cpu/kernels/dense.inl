/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain f32 matmul with any strides, C[m, n] = sum over k of A[m, k] B[k, n], over vec_*.h.
 *
 * Whoever includes it gives DENSE_EACH(F), which is F(0) F(1) ... for the rows of a tile,
 * DENSE_TILE_ROWS of them, and DENSE_PARTS, a tile's columns in registers of 16 lanes. An output is
 * one fma chain in order of k, whose sum passes between blocks of k through C: no cut changes a
 * bit.
 *
 * Both operands are copied block by block: lines that are a power of two apart share few places of
 * the first cache. A block of A stays in the second cache while B's columns pass; these, DENSE_K by
 * 16 of a part, in the first while A's tiles pass. B may have been laid out before, once for all
 * rows; with few rows it is read where it is, if its columns are adjacent.
 *
 * Beyond what vec_ref.h lists, vec_*.h gives here v_fma_into(c, s, b) (c + s * b with s in every
 * lane, which takes the place of c) and v_turn(to, from, step) (16 rows of 16 floats, `step` apart,
 * as 16 columns).
 */

enum {
    DENSE_K = DENSE_PARTS > 1 ? 128 : 256, /* 16 to 24 KB of B's columns */
    DENSE_ROWS = 96,                       /* 54 to 102 KB of A */
    DENSE_STEP = DENSE_K + 16,
    DENSE_TURN = 8, /* k that are turned together: their lines are all in the first cache */
    DENSE_FEW = 12, /* rows: with fewer a copy of B does not pay */
    DENSE_COLUMNS = DENSE_PARTS * 16
};

typedef struct dense_tile {
    const float *a; /* A[r, k] at r * ras + k * cas */
    size_t ras, cas;
    const float *b; /* B[k, 16 p ...] at p * part + k * rbs */
    size_t part, rbs;
    size_t k;
    float *c;
    size_t ldc;
    bool resume; /* sums go on from c */
} dense_tile;

/* rows and parts are constants at every call. */
ALWAYS void dense_multiply(int rows, int parts, const dense_tile *t)
{
    const float *a = t->a, *b = t->b;
    size_t ras = t->ras, cas = t->cas, part = t->part;
#define DECLARE(r)                                                                                 \
    vf c##r##0 = v_set(0.0f), c##r##1 = c##r##0, c##r##2 = c##r##0;                                \
    if (rows > r && t->resume) {                                                                   \
        c##r##0 = v_load(t->c + r * t->ldc);                                                       \
        c##r##1 = parts > 1 ? v_load(t->c + r * t->ldc + 16) : c##r##1;                            \
        c##r##2 = parts > 2 ? v_load(t->c + r * t->ldc + 32) : c##r##2;                            \
    }
    DENSE_EACH(DECLARE)
#undef DECLARE
    for (size_t k = t->k; k; k--, a += cas, b += t->rbs) {
        vf b0 = v_load(b), b1 = b0, b2 = b0;
        if (parts > 1)
            b1 = v_load(b + part);
        if (parts > 2)
            b2 = v_load(b + 2 * part);
#define STEP(r)                                                                                    \
    if (rows > r) {                                                                                \
        float s = a[r * ras];                                                                      \
        c##r##0 = v_fma_into(c##r##0, s, b0);                                                      \
        c##r##1 = parts > 1 ? v_fma_into(c##r##1, s, b1) : c##r##1;                                \
        c##r##2 = parts > 2 ? v_fma_into(c##r##2, s, b2) : c##r##2;                                \
    }
        DENSE_EACH(STEP)
#undef STEP
    }
#define SAVE(r)                                                                                    \
    if (rows > r) {                                                                                \
        v_store(t->c + r * t->ldc, c##r##0);                                                       \
        if (parts > 1)                                                                             \
            v_store(t->c + r * t->ldc + 16, c##r##1);                                              \
        if (parts > 2)                                                                             \
            v_store(t->c + r * t->ldc + 32, c##r##2);                                              \
    }
    DENSE_EACH(SAVE)
#undef SAVE
}

static void dense_whole_tile(size_t rows, size_t parts, const dense_tile *t)
{
    switch (rows) {
#define SHAPE(r)                                                                                   \
    case r + 1:                                                                                    \
        if (DENSE_PARTS == 1 || parts == DENSE_PARTS)                                              \
            dense_multiply(r + 1, DENSE_PARTS, t);                                                 \
        else if (parts == 2)                                                                       \
            dense_multiply(r + 1, 2, t);                                                           \
        else                                                                                       \
            dense_multiply(r + 1, 1, t);                                                           \
        break;
        DENSE_EACH(SHAPE)
#undef SHAPE
    default: break;
    }
}

/* Of columns that C has; a part that is not whole goes by room of its own. */
static void dense_any_tile(size_t rows, size_t columns, const dense_tile *t)
{
    size_t parts = (columns + 15) / 16;
    if (columns % 16 == 0) {
        dense_whole_tile(rows, parts, t);
        return;
    }
    float sums[DENSE_TILE_ROWS * DENSE_COLUMNS];
    dense_tile whole = *t;
    whole.c = sums;
    whole.ldc = DENSE_COLUMNS;
    for (size_t i = 0; i < rows && t->resume; i++)
        memcpy(sums + i * DENSE_COLUMNS, t->c + i * t->ldc, columns * sizeof *sums);
    dense_whole_tile(rows, parts, &whole);
    for (size_t i = 0; i < rows; i++)
        memcpy(t->c + i * t->ldc, sums + i * DENSE_COLUMNS, columns * sizeof *sums);
}

/* B[k0 .. k0 + nk - 1, n .. n + 15] as [nk][16], zeros past the last column. */
static void dense_copy_part(const qn__cpu_dense *d, size_t k0, size_t nk, size_t n, float *to)
{
    size_t columns = d->n - n < 16 ? d->n - n : 16;
    const float *b = d->b + (ptrdiff_t)k0 * d->rbs + (ptrdiff_t)n * d->cbs;
    size_t turned = d->rbs == 1 && columns == 16 ? nk / 16 * 16 : 0;
    for (size_t k = 0; k < turned; k += 16)
        v_turn(to + k * 16, b + k, d->cbs);
    for (size_t k = turned; k < nk; k++) {
        const float *row = b + (ptrdiff_t)k * d->rbs;
        if (d->cbs == 1)
            v_store(to + k * 16, columns == 16 ? v_load(row) : v_load_n(row, columns, 0.0f));
        else
            for (size_t i = 0; i < 16; i++)
                to[k * 16 + i] = i < columns ? row[(ptrdiff_t)i * d->cbs] : 0.0f;
    }
}

/* A[m .. m + rows - 1, k0 .. k0 + nk - 1]: with adjacent k as [row][k], DENSE_STEP a row, else tile
 * by tile as [k][DENSE_TILE_ROWS]. */
static void dense_copy_rows(const qn__cpu_dense *d, size_t m, size_t rows, size_t k0, size_t nk,
                            float *to)
{
    const float *a = d->a + (ptrdiff_t)m * d->ras + (ptrdiff_t)k0 * d->cas;
    for (size_t r = 0; r < rows && d->cas == 1; r++)
        memcpy(to + r * DENSE_STEP, a + (ptrdiff_t)r * d->ras, nk * sizeof *to);
    for (size_t k = 0; k < nk && d->cas != 1; k += DENSE_TURN)
        for (size_t r = 0; r < rows; r += DENSE_TILE_ROWS)
            for (size_t i = k; i < nk && i < k + DENSE_TURN; i++) {
                const float *from = a + (ptrdiff_t)r * d->ras + (ptrdiff_t)i * d->cas;
                float *at = to + r * DENSE_STEP + i * DENSE_TILE_ROWS;
                if (d->ras == 1 && rows - r >= DENSE_TILE_ROWS)
                    memcpy(at, from, DENSE_TILE_ROWS * sizeof *to);
                else
                    for (size_t j = 0; j < DENSE_TILE_ROWS && j < rows - r; j++)
                        at[j] = from[(ptrdiff_t)j * d->ras];
            }
}

/* Where tiles read B's k .. k + t->k - 1 of columns n .. n + wide - 1. */
static void dense_find_columns(const qn__cpu_dense *d, size_t k, size_t n, size_t wide, bool few,
                               float *copy, dense_tile *t)
{
    t->rbs = 16;
    if (d->panels) {
        t->b = d->panels + n * d->k + k * 16;
        t->part = d->k * 16;
    } else if (few && d->cbs == 1 && wide % 16 == 0) {
        t->b = d->b + (ptrdiff_t)k * d->rbs + n;
        t->part = 16;
        t->rbs = (size_t)d->rbs;
    } else {
        t->b = copy;
        t->part = DENSE_K * 16;
        for (size_t i = 0; i < wide; i += 16)
            dense_copy_part(d, k, t->k, n + i, copy + i * DENSE_K);
    }
}

/* A block of `rows` of A, copied, by all of B's columns. */
static void dense_block(const qn__cpu_dense *d, size_t m, size_t rows, size_t k, dense_tile t,
                        float *copy)
{
    const float *a = t.a;
    for (size_t n = 0; n < d->n; n += DENSE_COLUMNS) {
        size_t wide = d->n - n < DENSE_COLUMNS ? d->n - n : DENSE_COLUMNS;
        dense_find_columns(d, k, n, wide, rows < DENSE_FEW, copy, &t);
        for (size_t r = 0; r < rows; r += DENSE_TILE_ROWS) {
            t.a = a + r * DENSE_STEP;
            t.c = d->c + (ptrdiff_t)(m + r) * d->ldc + n;
            dense_any_tile(rows - r < DENSE_TILE_ROWS ? rows - r : DENSE_TILE_ROWS, wide, &t);
        }
    }
}

static void dense_lay_out(const qn__cpu_dense *d, size_t p0, size_t p1, float *to)
{
    for (size_t p = p0; p < p1; p++)
        dense_copy_part(d, 0, d->k, 16 * p, to + 16 * p * d->k);
}

static void dense_rows(const qn__cpu_dense *d, size_t m0, size_t m1)
{
    _Alignas(64) float a[DENSE_ROWS * DENSE_STEP], columns[DENSE_K * DENSE_COLUMNS];
    dense_tile t = {.a = a, .ldc = (size_t)d->ldc};
    t.ras = d->cas == 1 ? DENSE_STEP : 1;
    t.cas = d->cas == 1 ? 1 : DENSE_TILE_ROWS;
    for (size_t m = m0, rows; m < m1; m += rows) {
        rows = m1 - m < DENSE_ROWS ? m1 - m : DENSE_ROWS;
        for (size_t k = 0; k == 0 || k < d->k; k += DENSE_K) {
            t.k = d->k - k < DENSE_K ? d->k - k : DENSE_K;
            t.resume = k || d->add;
            dense_copy_rows(d, m, rows, k, t.k, a);
            dense_block(d, m, rows, k, t, columns);
        }
    }
}
