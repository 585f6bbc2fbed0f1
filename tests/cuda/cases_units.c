/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on quantised weights, in each encoding that the device holds.
 */
#include "cases.h"

#include <string.h>

int case_encoding;
const char *only_encoding;

/* Layouts that have kernels of their own, and products of the values of many rows. */
static const bool has_own[QN__ENCODING_COUNT] = {
#define CUDA_UNITS(id, name, ...) [QN__##id] = true,
#include "cuda/units.def"
#undef CUDA_UNITS
};
static int64_t case_rows;

/* Blocks of weights that have been made: encoding takes longer than all else here, and cases of an
 * encoding have the same weights, those that draw them first. */
typedef struct weight_blocks {
    struct weight_blocks *next;
    int encoding;
    int64_t rows, columns;
    uint64_t drawn_from, drawn_to; /* seed before its values, and behind */
    char bytes[];
} weight_blocks;

static weight_blocks *made_blocks;

static const char *blocks_of(int64_t rows, int64_t columns)
{
    for (const weight_blocks *b = made_blocks; b; b = b->next)
        if (b->encoding == case_encoding && b->rows == rows && b->columns == columns &&
            b->drawn_from == seed) {
            seed = b->drawn_to;
            return b->bytes;
        }
    const qn__encoding *e = &qn__encodings[case_encoding];
    const size_t n = (size_t)(rows * columns);
    float *values = malloc(n * sizeof *values);
    weight_blocks *b = malloc(sizeof *b + (size_t)rows * qn__encoding_row_bytes(e, columns));
    if (values && b) {
        *b = (weight_blocks){made_blocks, case_encoding, rows, columns, .drawn_from = seed};
        for (size_t i = 0; i < n; i++)
            values[i] = (float)uniform();
        e->encode(e, values, NULL, n / e->block_elements, b->bytes);
        b->drawn_to = seed;
        made_blocks = b;
    } else {
        free(b);
        b = NULL;
    }
    free(values);
    return b ? b->bytes : NULL;
}

void forget_weights(void)
{
    while (made_blocks) {
        weight_blocks *next = made_blocks->next;
        free(made_blocks);
        made_blocks = next;
    }
}

/* A weight of case_encoding, written in two pieces that part a unit. */
qn_array *in_units(qn_scope *s, int64_t rows, int64_t columns)
{
    enum { FIRST = 21 };
    const qn__encoding *e = &qn__encodings[case_encoding];
    const size_t row = qn__encoding_row_bytes(e, columns);
    const char *blocks = blocks_of(rows, columns);
    qn_array *w = blocks ? qn__packed_new(s, e, rows, columns) : NULL;
    if (w) {
        qn__packed_write(w, e, blocks, 0, FIRST, &s->error);
        qn__packed_write(w, e, blocks + FIRST * row, FIRST, rows - FIRST, &s->error);
    }
    return w;
}

/* Linear layers of case_rows rows by products of bytes or in f32, or rows of the weight. */
static qn_array *from_units(qn_scope *s, qn_products products, int64_t columns)
{
    qn_array *w = in_units(s, 75, columns), *y;
    if (!w)
        return qn__poison(s);
    if (products == QN_PRODUCTS_AUTO)
        y = qn_take(s, w, indices(s, 75, true, SHAPE(3, 4)), 0);
    else
        y = qn_linear_with(s, f32(s, SHAPE(case_rows, columns)), w, NULL, products);
    qn_release(w);
    return y;
}
static qn_array *op_unit_bytes(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_INT8, 4352);
}
static qn_array *op_unit_bytes_short(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_INT8, 768);
}
static qn_array *op_unit_row_bytes(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_INT8_ROWS, 4352);
}
static qn_array *op_unit_row_bytes_short(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_INT8_ROWS, 768);
}
/* One row of more columns than warps make bytes at once, and one that does not begin at 16
 * bytes. */
static qn_array *op_unit_bytes_long(qn_scope *s)
{
    enum { COLUMNS = 16640, N = 37 };
    qn_array *w = in_units(s, N, COLUMNS), *x = f32(s, SHAPE(1, 2 * COLUMNS + 1)), *y[2];
    if (!w)
        return qn__poison(s);
    for (int i = 0; i < 2; i++) {
        const int64_t first = i * (COLUMNS + 1);
        y[i] = qn_linear_with(s, qn_slice(s, x, 1, first, first + COLUMNS, 1), w, NULL,
                              QN_PRODUCTS_INT8);
    }
    qn_release(w);
    return qn_concatenate(s, y, 2, 1);
}
/* One row of so many columns that pairs of blocks share them: gate and up; and layers side by side,
 * of which the first has more tiles than a pair has places for. */
enum { SHARED_COLUMNS = 12544 };
static qn_array *op_unit_shared_gated(qn_scope *s)
{
    enum { N = 40 };
    qn_array *gate = in_units(s, N, SHARED_COLUMNS), *up = in_units(s, N, SHARED_COLUMNS),
             *x = f32(s, SHAPE(1, SHARED_COLUMNS)), *y = qn__poison(s);
    if (gate && up)
        y = qn_multiply(s, qn_silu(s, qn_linear_with(s, x, gate, NULL, QN_PRODUCTS_INT8)),
                        qn_linear_with(s, x, up, NULL, QN_PRODUCTS_INT8));
    qn_release(gate);
    qn_release(up);
    return y;
}
static qn_array *op_unit_shared_tall(qn_scope *s)
{
    enum { N = 40 };
    const int64_t tall = case_encoding == QN__Q8_0 ? 4400 : 8600;
    qn_array *few = in_units(s, N, SHARED_COLUMNS), *w = in_units(s, tall, SHARED_COLUMNS),
             *x = f32(s, SHAPE(1, SHARED_COLUMNS)), *y[2] = {qn__poison(s), qn__poison(s)};
    if (few && w) {
        y[0] = qn_linear_with(s, x, w, NULL, QN_PRODUCTS_INT8);
        y[1] = qn_linear_with(s, x, few, NULL, QN_PRODUCTS_INT8);
    }
    qn_release(few);
    qn_release(w);
    return qn_concatenate(s, y, 2, 1);
}
/* Rows side by side, which may be a norm's, less each of them alone: zeros. */
static qn_array *alone_by_units(qn_scope *s, int64_t columns, bool normed)
{
    enum { N = 37, MOST = 8 };
    qn_array *w = in_units(s, N, columns), *x = f32(s, SHAPE(case_rows, columns)), *y[MOST], *all;
    if (!w)
        return qn__poison(s);
    qn_array *weight = normed ? f32(s, SHAPE(columns)) : NULL;
    all = qn_linear_with(s, normed ? qn_rms_norm(s, x, weight, 1e-5f) : x, w, NULL,
                         QN_PRODUCTS_BY_ROWS);
    for (int64_t i = 0; i < case_rows; i++) {
        qn_array *own = qn_slice(s, x, 0, i, i + 1, 1),
                 *alone = qn_linear_with(s, normed ? qn_rms_norm(s, own, weight, 1e-5f) : own, w,
                                         NULL, QN_PRODUCTS_BY_ROWS);
        y[i] = qn_subtract(s, qn_slice(s, all, 0, i, i + 1, 1), alone);
    }
    qn_release(w);
    return qn_concatenate(s, y, (int)case_rows, 0);
}
static qn_array *op_unit_alone_short(qn_scope *s)
{
    return alone_by_units(s, 768, false);
}
static qn_array *op_unit_alone_long(qn_scope *s)
{
    return alone_by_units(s, 28928, false);
}
static qn_array *op_unit_alone_normed(qn_scope *s)
{
    return alone_by_units(s, 3328, true);
}
static qn_array *op_unit_values(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_F32, 2304);
}
/* y, or y times a number that is an array. */
static qn_array *times_number(qn_scope *s, qn_array *y, bool scaled)
{
    return scaled ? qn_multiply(s, y, f32(s, SHAPE(1))) : y;
}
/* As network() of cases_products.c: of one row its launches take on the norm, the activation and
 * the residual; or BitNet's, with a factor behind each layer. */
static qn_array *unit_network(qn_scope *s, qn_products products, bool bitnet)
{
    enum { WIDE = 512, INNER_WIDE = 768 };
    qn_array *gate = in_units(s, INNER_WIDE, WIDE), *up = in_units(s, INNER_WIDE, WIDE),
             *down = in_units(s, WIDE, INNER_WIDE), *h = f32(s, SHAPE(case_rows, WIDE)),
             *y = qn__poison(s);
    if (gate && up && down) {
        qn_array *x = qn_rms_norm(s, h, f32(s, SHAPE(WIDE)), 1e-5f),
                 *g = times_number(s, qn_linear_with(s, x, gate, NULL, products), bitnet),
                 *u = times_number(s, qn_linear_with(s, x, up, NULL, products), bitnet);
        g = qn_multiply(s, bitnet ? qn_square(s, qn_relu(s, g)) : qn_silu(s, g), u);
        if (bitnet)
            g = qn_rms_norm(s, g, f32(s, SHAPE(INNER_WIDE)), 1e-5f);
        y = qn_add(s, h, times_number(s, qn_linear_with(s, g, down, NULL, products), bitnet));
    }
    qn_release(gate);
    qn_release(up);
    qn_release(down);
    return y;
}
static qn_array *op_unit_network(qn_scope *s)
{
    return unit_network(s, QN_PRODUCTS_INT8, false);
}
/* Layers behind norms, one behind that of a sum with another row and the norm before that, which
 * it takes, since nothing is put where that row lies: it is read once more. The last ones are gate
 * and up. No step writes the norms' weights. */
enum { NORM_LAYERS = 3, NORMS = 4 };
/* What keeps norms in launches of their own: a row or a norm that is updated in place behind its
 * readers, and read again. */
typedef enum kept { NOTHING, ROW_UPDATED, NORM_UPDATED } kept;
typedef struct normed_layers {
    int64_t wide;
    qn_array *w[NORM_LAYERS], *norm[NORMS];
} normed_layers;

static normed_layers normed_weights(qn_scope *s, int64_t wide)
{
    normed_layers l = {.wide = wide};
    for (int i = 0; i < NORM_LAYERS; i++)
        l.w[i] = in_units(s, l.wide, l.wide);
    for (int i = 0; i < NORMS; i++)
        l.norm[i] = keep(s, f32(s, SHAPE(l.wide)));
    return l;
}
static qn_array *by_normed(qn_scope *s, const normed_layers *l, qn_array *x, kept kept)
{
    qn_array *const *w = l->w, *const *norm = l->norm;
    if (!w[0] || !w[1] || !w[2] || !norm[0] || !norm[1] || !norm[2] || !norm[3])
        return qn__poison(s);
    x = qn_add(s, x, qn_linear_with(s, qn_negative(s, x), w[0], NULL, QN_PRODUCTS_INT8));
    qn_array *y =
        qn_linear_with(s, qn_rms_norm(s, x, norm[0], 1e-5f), w[1], NULL, QN_PRODUCTS_INT8);
    y = qn_linear_with(s, qn_negative(s, y), w[2], NULL, QN_PRODUCTS_INT8);
    qn_array *added = x, *row = y;
    x = qn_add(s, x, qn_rms_norm(s, y, norm[1], 1e-6f));
    y = qn_rms_norm(s, x, norm[2], 1e-5f);
    row = kept == NORM_UPDATED ? y : row;
    y = qn_linear_with(s, y, w[2], NULL, QN_PRODUCTS_INT8);
    x = qn_add(s, x, qn_linear_with(s, qn_negative(s, y), w[0], NULL, QN_PRODUCTS_INT8));
    y = qn_rms_norm(s, x, norm[3], 1e-5f);
    y = qn_multiply(s, qn_silu(s, qn_linear_with(s, y, w[0], NULL, QN_PRODUCTS_INT8)),
                    qn_linear_with(s, y, w[1], NULL, QN_PRODUCTS_INT8));
    y = qn_add(s, qn_add(s, x, y), added);
    if (kept)
        y = qn_add(s, y,
                   qn_slice_update(s, row, qn_slice(s, y, 1, 0, 16, 1), (const int64_t[]){0, 8}));
    return y;
}
static void release_normed(const normed_layers *l)
{
    for (int i = 0; i < NORM_LAYERS; i++)
        qn_release(l->w[i]);
    for (int i = 0; i < NORMS; i++)
        qn_release(l->norm[i]);
}
static qn_array *unit_norms(qn_scope *s, int64_t wide, kept kept)
{
    normed_layers l = normed_weights(s, wide);
    qn_array *y = by_normed(s, &l, f32(s, SHAPE(case_rows, wide)), kept);
    release_normed(&l);
    return y;
}
static int64_t normed_columns(void)
{
    return qn__encodings[case_encoding].bits ? 1152 : 1280;
}
static qn_array *op_unit_norms(qn_scope *s)
{
    return unit_norms(s, normed_columns(), NOTHING);
}
static qn_array *op_unit_norms_short(qn_scope *s)
{
    return unit_norms(s, 256, NOTHING);
}
static qn_array *op_unit_norms_row_updated(qn_scope *s)
{
    return unit_norms(s, normed_columns(), ROW_UPDATED);
}
static qn_array *op_unit_norms_updated(qn_scope *s)
{
    return unit_norms(s, normed_columns(), NORM_UPDATED);
}
/* The last of the rows, less the same alone: zeros. */
static qn_array *op_unit_norms_alone(qn_scope *s)
{
    normed_layers l = normed_weights(s, normed_columns());
    qn_array *x = f32(s, SHAPE(case_rows, l.wide)), *all = by_normed(s, &l, x, NOTHING),
             *own = by_normed(s, &l, qn_slice(s, x, 0, case_rows - 1, case_rows, 1), NOTHING);
    release_normed(&l);
    return qn_subtract(s, qn_slice(s, all, 0, case_rows - 1, case_rows, 1), own);
}
static qn_array *op_unit_row_network(qn_scope *s)
{
    return unit_network(s, QN_PRODUCTS_INT8_ROWS, true);
}
/* One row by ternary weights: so many tiles of 16 rows that a block has one or two, pairs of two
 * weights, and nine. */
static qn_array *op_ternary_tall(qn_scope *s)
{
    enum { COLUMNS = 768 };
    static const int64_t rows[] = {5000, 2750, 2750, 34000};
    qn_array *x = f32(s, SHAPE(1, COLUMNS)), *w[4], *y[4], *all[3];
    for (int i = 0; i < 4; i++) {
        w[i] = in_units(s, rows[i], COLUMNS);
        y[i] = w[i] ? qn_linear_with(s,
                                     i == 0   ? qn_exp(s, x)
                                     : i == 3 ? qn_square(s, x)
                                              : x,
                                     w[i], NULL, QN_PRODUCTS_INT8_ROWS)
                    : qn__poison(s);
    }
    all[0] = qn_add(s, y[0], f32(s, SHAPE(1, 5000)));
    all[1] = qn_multiply(s, qn_square(s, qn_relu(s, y[1])), y[2]);
    all[2] = y[3];
    qn_array *joined = qn_concatenate(s, all, 3, 1);
    for (int i = 0; i < 4; i++)
        qn_release(w[i]);
    return joined;
}
/* Three layers that are one launch, gate and up, and one with a sum behind it. */
enum { TERNARY_LAYERS = 6, TERNARY_COLUMNS = 1152 };
typedef struct ternary_layers {
    qn_array *w[TERNARY_LAYERS], *by[TERNARY_LAYERS];
} ternary_layers;

static ternary_layers ternary_weights(qn_scope *s)
{
    static const int64_t rows[TERNARY_LAYERS] = {300, 33, 144, 330, 330, 275};
    ternary_layers l;
    for (int i = 0; i < TERNARY_LAYERS; i++) {
        l.w[i] = in_units(s, rows[i], TERNARY_COLUMNS);
        l.by[i] = i == 2 ? NULL : f32(s, SHAPE(1));
    }
    return l;
}
static void release_ternary(const ternary_layers *l)
{
    for (int i = 0; i < TERNARY_LAYERS; i++)
        qn_release(l->w[i]);
}
static qn_array *by_ternary(qn_scope *s, const ternary_layers *l, qn_array *x, qn_array *more)
{
    qn_array *y[TERNARY_LAYERS];
    for (int i = 0; i < TERNARY_LAYERS; i++) {
        qn_array *own = i < 3 ? x : i < 5 ? qn_negative(s, x) : qn_square(s, x);
        y[i] =
            l->w[i] ? qn_linear_with(s, own, l->w[i], NULL, QN_PRODUCTS_INT8_ROWS) : qn__poison(s);
        y[i] = l->by[i] ? qn_multiply(s, y[i], l->by[i]) : y[i];
    }
    y[3] = qn_multiply(s, qn_square(s, qn_relu(s, y[3])), y[4]);
    y[4] = qn_add(s, more, y[5]);
    return qn_concatenate(s, y, 5, 1);
}
static qn_array *op_ternary_rows(qn_scope *s)
{
    ternary_layers l = ternary_weights(s);
    qn_array *y =
        by_ternary(s, &l, f32(s, SHAPE(case_rows, TERNARY_COLUMNS)), f32(s, SHAPE(case_rows, 275)));
    release_ternary(&l);
    return y;
}
/* Some of the rows, less the same alone: zeros. */
static qn_array *op_ternary_alone(qn_scope *s)
{
    const int64_t rows[] = {0, case_rows / 2, case_rows - 1};
    ternary_layers l = ternary_weights(s);
    qn_array *x = f32(s, SHAPE(case_rows, TERNARY_COLUMNS)), *more = f32(s, SHAPE(case_rows, 275)),
             *all = by_ternary(s, &l, x, more), *y[3];
    for (int i = 0; i < 3; i++) {
        qn_array *alone = by_ternary(s, &l, qn_slice(s, x, 0, rows[i], rows[i] + 1, 1),
                                     qn_slice(s, more, 0, rows[i], rows[i] + 1, 1));
        y[i] = qn_subtract(s, qn_slice(s, all, 0, rows[i], rows[i] + 1, 1), alone);
    }
    release_ternary(&l);
    return qn_concatenate(s, y, 3, 0);
}
/* BitNet's layers by many rows less the same by few at a time, whose norms make bytes: zeros. */
static qn_array *op_ternary_company(qn_scope *s)
{
    enum { WIDE = 512, LAYERS = 3, FEW_ROWS = 60, PARTS = 5 };
    qn_array *h = f32(s, SHAPE(FEW_ROWS * PARTS, WIDE)), *w[LAYERS], *y[PARTS + 1], *norm[2],
             *by[LAYERS];
    for (int i = 0; i < 2; i++)
        norm[i] = f32(s, SHAPE(WIDE));
    for (int i = 0; i < LAYERS; i++) {
        w[i] = in_units(s, WIDE, WIDE);
        by[i] = f32(s, SHAPE(1));
    }
    for (int i = 0; i <= PARTS; i++) {
        qn_array *own = i == PARTS ? h : qn_slice(s, h, 0, FEW_ROWS * i, FEW_ROWS * (i + 1), 1),
                 *x = qn_rms_norm(s, own, norm[0], 1e-5f), *of[LAYERS];
        for (int k = 0; k < LAYERS; k++) {
            if (k == 2)
                x = qn_rms_norm(s, qn_multiply(s, qn_square(s, qn_relu(s, of[0])), of[1]), norm[1],
                                1e-5f);
            of[k] = w[k] ? qn_linear_with(s, x, w[k], NULL, QN_PRODUCTS_INT8_ROWS) : qn__poison(s);
            of[k] = qn_multiply(s, of[k], by[k]);
        }
        y[i] = qn_add(s, own, of[2]);
    }
    qn_array *zeros = qn_subtract(s, qn_concatenate(s, y, PARTS, 0), y[PARTS]);
    for (int i = 0; i < LAYERS; i++)
        qn_release(w[i]);
    return zeros;
}
static qn_array *op_unit_rows(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_AUTO, 512);
}

/* Many rows by the weight's values and x, both rounded to bf16: written out where a device has no
 * such products. */
static qn_array *by_values(qn_scope *s, qn_array *x, qn_array *w, int64_t n)
{
    if (s->device->ops->by_rows)
        return qn_linear_with(s, x, w, NULL, QN_PRODUCTS_BY_ROWS);
    qn_array *rows = qn_take(s, w, qn_arange(s, QN_I32, n), 0);
    rows = qn_cast(s, qn_cast(s, rows, QN_BF16), QN_F32);
    return qn_matmul(s, qn_cast(s, qn_cast(s, x, QN_BF16), QN_F32), qn_swap_axes(s, rows, 0, 1));
}
/* Three weights that are one launch, the last in another encoding, and one with a sum behind it. */
static qn_array *op_unit_by_rows(qn_scope *s)
{
    enum { COLUMNS = 768, N = 75, LAST = 300 };
    const int encoding = case_encoding;
    qn_array *w[3] = {NULL}, *y[4];
    for (int i = 0; i < 3; i++) {
        case_encoding = i < 2 ? encoding : QN__Q6_K;
        w[i] = in_units(s, i < 2 ? N + i : LAST, COLUMNS);
    }
    case_encoding = encoding;
    qn_array *x = f32(s, SHAPE(case_rows, COLUMNS));
    for (int i = 0; i < 3; i++)
        y[i] = w[i] ? by_values(s, x, w[i], i < 2 ? N + i : LAST) : qn__poison(s);
    y[3] = qn_add(s, f32(s, SHAPE(case_rows, N)),
                  w[0] ? by_values(s, qn_multiply(s, x, x), w[0], N) : qn__poison(s));
    qn_array *all = qn_concatenate(s, y, 4, 1);
    for (int i = 0; i < 3; i++)
        qn_release(w[i]);
    return all;
}
/* More tiles of 128 rows than clusters that run at once; columns that may end within a unit. */
static qn_array *op_split_units_tall(qn_scope *s)
{
    enum { N = 9000 };
    const int64_t columns = case_encoding == QN__Q8_0 ? 1184 : 1280;
    qn_array *x = f32(s, SHAPE(100, columns)), *w = in_units(s, N, columns),
             *y = w ? by_values(s, x, w, N) : qn__poison(s);
    qn_release(w);
    return y;
}
/* So few columns that only one of those blocks has any that share a tile's. */
static qn_array *op_split_units_narrow(qn_scope *s)
{
    enum { COLUMNS = 256, N = 75 };
    qn_array *x = f32(s, SHAPE(100, COLUMNS)), *w = in_units(s, N, COLUMNS),
             *y = w ? by_values(s, x, w, N) : qn__poison(s);
    qn_release(w);
    return y;
}
/* More tiles of 16 rows than all blocks of few rows of x have at once. */
static qn_array *op_few_units_tall(qn_scope *s)
{
    enum { COLUMNS = 256, N = 36000 };
    qn_array *x = f32(s, SHAPE(20, COLUMNS)), *w = in_units(s, N, COLUMNS),
             *y = w ? by_values(s, x, w, N) : qn__poison(s);
    qn_release(w);
    return y;
}
/* Five spans of columns for eight blocks of a cluster. */
static qn_array *op_few_units_narrow(qn_scope *s)
{
    enum { COLUMNS = 1280, N = 75 };
    qn_array *x = f32(s, SHAPE(20, COLUMNS)), *w = in_units(s, N, COLUMNS),
             *y = w ? by_values(s, x, w, N) : qn__poison(s);
    qn_release(w);
    return y;
}
/* 64 rows less the same in parts of 10 to 36: zeros, on a device that has such products. */
static qn_array *op_few_units_company(qn_scope *s)
{
    enum { COLUMNS = 1280, N = 700, ROWS = 64, PARTS = 3 };
    static const int64_t first[PARTS + 1] = {0, 10, 28, ROWS};
    qn_array *x = f32(s, SHAPE(ROWS, COLUMNS)), *w = in_units(s, N, COLUMNS), *y[PARTS],
             *all = w ? by_values(s, x, w, N) : qn__poison(s);
    for (int i = 0; i < PARTS; i++)
        y[i] = s->device->ops->by_rows && w
                   ? by_values(s, qn_slice(s, x, 0, first[i], first[i + 1], 1), w, N)
                   : qn_slice(s, all, 0, first[i], first[i + 1], 1);
    qn_release(w);
    return qn_subtract(s, all, qn_concatenate(s, y, PARTS, 0));
}
/* As op_unit_network. */
static qn_array *op_unit_network_by_rows(qn_scope *s)
{
    enum { WIDE = 512, INNER_WIDE = 768 };
    qn_array *gate = in_units(s, INNER_WIDE, WIDE), *up = in_units(s, INNER_WIDE, WIDE),
             *down = in_units(s, WIDE, INNER_WIDE), *h = f32(s, SHAPE(case_rows, WIDE)),
             *y = qn__poison(s);
    if (gate && up && down) {
        qn_array *x = qn_rms_norm(s, h, f32(s, SHAPE(WIDE)), 1e-5f),
                 *g = qn_silu(s, by_values(s, x, gate, INNER_WIDE));
        g = qn_multiply(s, g, by_values(s, x, up, INNER_WIDE));
        y = qn_add(s, h, by_values(s, g, down, WIDE));
    }
    qn_release(gate);
    qn_release(up);
    qn_release(down);
    return y;
}

static qn_array *op_unit_embedded(qn_scope *s)
{
    qn_array *w = in_units(s, 40, 768), *y = w ? embedded(s, w, 5, 768, 1.7) : qn__poison(s);
    qn_release(w);
    return y;
}

static void compare_layers(const char *name, qn_device *cpu, qn_device *cuda)
{
    compare_case(&(op_case){name, op_unit_bytes, 1e-11}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_row_bytes, 1e-11}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_values, 1e-11}, cpu, cuda);
}
static void compare_networks(const char *name, qn_device *cpu, qn_device *cuda)
{
    compare_case(&(op_case){name, op_unit_bytes_short, 1e-11}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_row_bytes_short, 1e-11}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_network, 1e-6}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_row_network, 1e-6}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_norms, 1e-4}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_norms_short, 1e-4}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_norms_row_updated, 1e-4}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_norms_updated, 1e-4}, cpu, cuda);
    compare_case(&(op_case){name, op_unit_norms_alone, 0}, cpu, cuda);
}

static void compare_ternary(qn_device *cpu, qn_device *cuda)
{
    static const int64_t counts[] = {1, 2, 20, 40, 65, 128, 300};
    compare_case(&(op_case)CLOSE(ternary_tall), cpu, cuda);
    compare_case(&(op_case)EXACT(ternary_company), cpu, cuda);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char name[64];
        case_rows = counts[i];
        snprintf(name, sizeof name, "ternary rows x %d", (int)case_rows);
        compare_case(&(op_case){name, op_ternary_rows, 1e-11}, cpu, cuda);
        snprintf(name, sizeof name, "ternary alone, %d", (int)case_rows);
        compare_case(&(op_case){name, op_ternary_alone, 0}, cpu, cuda);
    }
}

/* Groups are of one kind: of most of them it is enough to see that they are taken apart. */
void compare_units(qn_device *cpu, qn_device *cuda)
{
    for (case_encoding = QN__Q4_0; case_encoding < QN__ENCODING_COUNT; case_encoding++) {
        static const int64_t counts[] = {1, 3, 5, 8, 40, 140}, few[] = {2, 4, 7, 8},
                             many[] = {9, 16, 30, 64, 70, 140, 300};
        const qn__encoding *e = &qn__encodings[case_encoding];
        bool all = !e->bits || (e->scale == QN__BF16 && e->group == 64 && e->bits % 4 == 0);
        char name[64];
        qn_dtype type;
        qn__layout_id layout;
        if (!cuda->ops->hold(cuda, e, &type, &layout) ||
            (only_encoding && strcmp(only_encoding, e->name) != 0))
            continue;
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            case_rows = counts[i];
            snprintf(name, sizeof name, "%s x %d", e->name, (int)case_rows);
            if (all || case_rows == 5)
                compare_layers(name, cpu, cuda);
            if (all)
                compare_networks(name, cpu, cuda);
        }
        for (size_t i = 0; has_own[case_encoding] && i < sizeof many / sizeof *many; i++) {
            case_rows = many[i];
            snprintf(name, sizeof name, "%s x %d, by rows", e->name, (int)case_rows);
            compare_case(&(op_case){name, op_unit_by_rows, 1e-9}, cpu, cuda);
            compare_case(&(op_case){name, op_unit_network_by_rows, 3e-5}, cpu, cuda);
        }
        for (size_t i = 0; has_own[case_encoding] && i < sizeof few / sizeof *few; i++) {
            case_rows = few[i];
            snprintf(name, sizeof name, "%s x %d, alone", e->name, (int)case_rows);
            compare_case(&(op_case){name, op_unit_alone_short, 0}, cpu, cuda);
            compare_case(&(op_case){name, op_unit_alone_long, 0}, cpu, cuda);
            compare_case(&(op_case){name, op_unit_alone_normed, 0}, cpu, cuda);
        }
        if (has_own[case_encoding]) {
            compare_case(&(op_case){e->name, op_unit_bytes_long, 1e-11}, cpu, cuda);
            compare_case(&(op_case){"shared, gated", op_unit_shared_gated, 1e-9}, cpu, cuda);
        }
        if (case_encoding == QN__AFFINE4_G64_BF16 || case_encoding == QN__Q8_0)
            compare_case(&(op_case){"shared, tall", op_unit_shared_tall, 1e-11}, cpu, cuda);
        compare_case(&(op_case){e->name, op_unit_rows, 0}, cpu, cuda);
        compare_case(&(op_case){e->name, op_unit_embedded, 1e-11}, cpu, cuda);
        if (case_encoding == QN__I2_S)
            compare_ternary(cpu, cuda);
        if (case_encoding == QN__Q4_K || case_encoding == QN__Q8_0)
            compare_case(&(op_case){"split_units_tall", op_split_units_tall, 1e-9}, cpu, cuda);
        if (case_encoding == QN__Q4_K || case_encoding == QN__Q8_0)
            compare_case(&(op_case){"few_units_tall", op_few_units_tall, 1e-9}, cpu, cuda);
        if (has_own[case_encoding]) {
            compare_case(&(op_case){"split_units_narrow", op_split_units_narrow, 1e-9}, cpu, cuda);
            compare_case(&(op_case){"few_units_narrow", op_few_units_narrow, 1e-9}, cpu, cuda);
            compare_case(&(op_case){"few_units_company", op_few_units_company, 0}, cpu, cuda);
        }
        forget_weights();
    }
}
