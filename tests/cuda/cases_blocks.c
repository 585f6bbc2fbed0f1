/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over caches in blocks, in f16, and of keys in one type and values in another: what is
 * written has the CPU's bytes, what is attended to its values, and rows have the same bits alone
 * and among others. Results that are turned by a Hadamard matrix have the bits of that.
 */
#include "cases.h"

#include "core/scope.h"
#include "quant/layout.h"

#include <string.h>

enum { GROUPS = 2, SECOND = 40, ROWS = 70, NEAR = 16, WIDEST = 64, MOST_ALONE = 9 };

/* Sequences of `first` positions, or 537, and of 40, whose newest rows run, over heads of d. Of
 * many pages: more than the table has places. `alone` rows run alone, or three. */
typedef struct blocks_case {
    qn__encoding_id keys, values;
    int64_t d, heads, pages, window, keep, first, alone;
} blocks_case;

/* What a device makes of it: rows of keys and of values as they are kept, the attention, and that
 * of some rows alone, also turned. */
typedef struct blocks_result {
    char *rows[2];
    size_t n_rows[2];
    float *y, *alone, *turned;
} blocks_result;

static int first_of(const blocks_case *c)
{
    return c->first ? (int)c->first : 537;
}
static int alone_of(const blocks_case *c)
{
    return c->alone ? (int)c->alone : 3;
}
/* Which row runs alone: some of the first sequence, its last and the last of the second. */
static int32_t row_alone(const blocks_case *c, int i)
{
    return i == alone_of(c) - 1 ? ROWS - 1 : i == alone_of(c) - 2 ? ROWS - 3 : 8 * i;
}
/* Places of the table for a sequence. */
static int width_of(const blocks_case *c)
{
    const int width = (first_of(c) + 63) / 64;
    return width > NEAR ? width : NEAR;
}

/* A number for each page that occurs once. */
static int32_t page_number(const blocks_case *c, int i)
{
    return (int32_t)((i * 7 + 3) % c->pages);
}

static qn_array *reserve(qn_device *dev, const blocks_case *c, bool keys)
{
    qn_dtype dtype;
    qn__layout_id layout;
    qn_error err = {0};
    const qn__encoding *e = &qn__encodings[keys ? c->keys : c->values];
    CHECK("blocks", dev->ops->keep(dev, e, &dtype, &layout));
    const int64_t turned[] = {c->pages, GROUPS, 4, c->d, 16}, rows[] = {c->pages, GROUPS, 64, c->d};
    const bool turn = keys && !layout;
    qn_scope *s = qn_scope_begin(dev);
    qn_array *a =
        qn_retain(qn__leaf_reserved(s, dtype, layout, turn ? 5 : 4, turn ? turned : rows));
    qn_scope_end(s);
    CHECK("blocks", a && qn__buffer_commit(a->buffer, qn__storage_bytes(a), &err));
    return a;
}

static qn_array *table_of(qn_scope *s, const blocks_case *c)
{
    int32_t table[2 * WIDEST];
    const int width = width_of(c);
    for (int i = 0; i < width; i++) {
        table[i] = i * 64 < first_of(c) ? page_number(c, i) : -1;
        table[width + i] = i == 0 ? page_number(c, width) : -1;
    }
    return qn_from(s, QN_I32, SHAPE(2, width), table);
}

/* The rows of a cache as they are kept. */
static void read_rows(qn_device *dev, const qn_array *a, blocks_result *r, int which)
{
    const qn__layout *l = qn__layout_of(a->layout);
    const size_t bytes = qn__storage_bytes(a);
    char *all = malloc(bytes);
    qn_error err = {0};
    CHECK("blocks", dev->ops->read(dev, all, a->buffer, 0, bytes, &err) == QN_OK);
    r->rows[which] = all;
    r->n_rows[which] = bytes;
    if (!l)
        return;
    const int64_t d = a->shape[3], heads = a->shape[0] * a->shape[1];
    const size_t row = qn__encoding_row_bytes(l->encoding, d),
                 page = qn__layout_bytes(a->layout, 64, d);
    r->n_rows[which] = row * 64 * (size_t)heads;
    r->rows[which] = malloc(r->n_rows[which]);
    for (int64_t i = 0; i < heads * 64; i++)
        qn__layout_unpack_row(l, all + (size_t)(i / 64) * page, d, i % 64,
                              r->rows[which] + (size_t)i * row);
    free(all);
}

/* Rows of the batch: the last of the first sequence, and two of the second behind them. */
static qn_array *tiles_of(qn_scope *s, const blocks_case *c, bool alone)
{
    const int tile = (int)qn__attend_tile(c->heads / GROUPS), first = ROWS - 2,
              n_first = first_of(c);
    int32_t tiles[ROWS + 1][4] = {{0}}, n = 0;
    for (int i = 0; alone && i < alone_of(c); i++) {
        const int32_t row = row_alone(c, i);
        const int32_t own[] = {row >= first, i, 1,
                               row < first ? n_first - first + row : SECOND - ROWS + row};
        memcpy(tiles[i], own, sizeof own);
    }
    if (alone)
        return qn_from(s, QN_I32, SHAPE(alone_of(c), 4), tiles);
    for (int row = 0; row < first; row += tile, n++) {
        const int32_t own[] = {0, row, first - row < tile ? first - row : tile,
                               n_first - first + row};
        memcpy(tiles[n], own, sizeof own);
    }
    const int32_t own[] = {1, first, 2, SECOND - 2};
    memcpy(tiles[n++], own, sizeof own);
    return qn_from(s, QN_I32, SHAPE(n, 4), tiles);
}

/* Attention of the rows that run alone: [rows, heads, d]. A list of their own makes it a call of
 * its own. */
static qn_array *attend_alone(qn_scope *s, const blocks_case *c, qn_array *q, qn_array *k,
                              qn_array *v, qn_array *table, const qn_attention_options *o)
{
    int32_t alone[MOST_ALONE];
    for (int i = 0; i < alone_of(c); i++)
        alone[i] = row_alone(c, i);
    qn_array *some = qn_take(s, q, qn_from_i32(s, alone, alone_of(c)), 2);
    qn_array *y = qn__attend(s, some, k, v, tiles_of(s, c, true), table, c->keep, o);
    return qn_swap_axes(s, y, 1, 2);
}

/* Rows of as many heads, turned: nobody else reads them. */
static qn_array *turned(qn_scope *s, const blocks_case *c, qn_array *x)
{
    const int64_t rows = alone_of(c) * c->heads;
    return c->d & (c->d - 1) ? x
                             : qn_hadamard_transform(s, qn_reshape(s, x, SHAPE(rows, c->d)), 0.25);
}

/* Whether the results that were turned have the bits of turning those that were not. */
static bool are_turned(qn_device *cpu, const blocks_case *c, const blocks_result *r)
{
    const size_t n = (size_t)(alone_of(c) * c->heads * c->d);
    float *y = malloc(n * sizeof *y);
    qn_scope *s = qn_scope_begin(cpu);
    bool ok = qn_read_f32(s, turned(s, c, qn_from_f32(s, r->alone, (int64_t)n)), y, n) == QN_OK;
    qn_scope_end(s);
    ok = ok && !memcmp(y, r->turned, n * sizeof *y);
    free(y);
    return ok;
}

static void run_blocks_case(qn_device *dev, const blocks_case *c, blocks_result *r)
{
    const int n_alone = alone_of(c);
    qn_array *kept[2] = {reserve(dev, c, true), reserve(dev, c, false)};
    const size_t n = (size_t)(ROWS * c->heads * c->d);
    const int64_t all = c->pages * 64;
    int32_t *slots = malloc((size_t)all * sizeof *slots);
    for (int64_t i = 0; i < all; i++)
        slots[i] = (int32_t)(i * 11 % all);
    seed = 42;
    qn_scope *s = qn_scope_begin(dev);
    qn_attention_options o = {.size = sizeof o, .window = c->window};
    qn_array *to = qn_from_i32(s, slots, all);
    qn_array *k = qn__write_keys(s, qn__lend(s, kept[0]), f32(s, SHAPE(1, GROUPS, all, c->d)), to),
             *v =
                 qn__write_values(s, qn__lend(s, kept[1]), f32(s, SHAPE(1, GROUPS, all, c->d)), to),
             *q = f32(s, SHAPE(1, c->heads, ROWS, c->d)), *table = table_of(s, c);
    /* First of all: attention asks for pages before the tiles' positions while a step writes. */
    qn_eval_many(s, (qn_array *[]){k, v}, 2);
    qn_array *y = qn__attend(s, q, k, v, tiles_of(s, c, false), table, c->keep, &o);
    qn_array *results[] = {k, v, qn_contiguous(s, qn_swap_axes(s, y, 1, 2)),
                           qn_contiguous(s, attend_alone(s, c, q, k, v, table, &o)),
                           turned(s, c, attend_alone(s, c, q, k, v, table, &o))};
    r->y = malloc(n * sizeof *r->y);
    r->alone = malloc(n * sizeof *r->alone);
    r->turned = malloc(n * sizeof *r->turned);
    bool ok = qn_eval_many(s, results, 5) == QN_OK &&
              qn_read_f32(s, results[2], r->y, n) == QN_OK &&
              qn_read_f32(s, results[3], r->alone, n / ROWS * (size_t)n_alone) == QN_OK &&
              qn_read_f32(s, results[4], r->turned, n / ROWS * (size_t)n_alone) == QN_OK;
    if (!ok)
        check(false, "blocks", qn_scope_error(s));
    for (int i = 0; i < 2 && ok; i++)
        read_rows(dev, results[i], r, i);
    const size_t row = n / ROWS;
    for (int i = 0; i < n_alone && ok; i++)
        CHECK("rows of blocks alone",
              !memcmp(r->alone + (size_t)i * row, r->y + (size_t)row_alone(c, i) * row,
                      row * sizeof(float)));
    qn_scope_end(s);
    qn_release(kept[0]);
    qn_release(kept[1]);
    free(slots);
}

/* most_error: in millionths. */
static void compare_one(qn_device *cpu, qn_device *cuda, const blocks_case *c, int most_error)
{
    blocks_result r[2] = {{{0}}};
    char name[160];
    snprintf(name, sizeof name, "blocks: %s, %s, %d heads of %d, %d pages, %d",
             qn__encodings[c->keys].name, qn__encodings[c->values].name, (int)c->heads, (int)c->d,
             (int)c->pages, first_of(c));
    run_blocks_case(cpu, c, &r[0]);
    run_blocks_case(cuda, c, &r[1]);
    CHECK("rows of blocks turned", are_turned(cpu, c, &r[0]) && are_turned(cpu, c, &r[1]));
    for (int i = 0; i < 2; i++)
        CHECK(name, r[0].rows[i] && r[1].rows[i] && r[0].n_rows[i] == r[1].n_rows[i] &&
                        !memcmp(r[0].rows[i], r[1].rows[i], r[0].n_rows[i]));
    double error = 0, square = 0;
    for (int64_t i = 0; i < ROWS * c->heads * c->d; i++) {
        const double w = r[0].y[i], v = r[1].y[i];
        error += (v - w) * (v - w);
        square += w * w;
    }
    if (!(error <= most_error * 1e-6 * square))
        printf("%s: %g\n", name, error / square);
    CHECK(name, square > 0 && error <= most_error * 1e-6 * square);
    for (int i = 0; i < 2; i++) {
        free(r[i].rows[0]);
        free(r[i].rows[1]);
        free(r[i].y);
        free(r[i].alone);
        free(r[i].turned);
    }
}

void compare_blocks(qn_device *cpu, qn_device *cuda)
{
    /* Queries, weights and what is read are bf16 there, or f16, if not all is f32. */
    enum { OF_BF16 = 30, OF_F16 = 1 };
    static const blocks_case cases[] = {
        {QN__Q8_0, QN__Q8_0, 64, 8, 40, 0, 0},
        {QN__Q8_0, QN__Q8_0, 128, 8, 20, 0, 0},
        {QN__Q8_0, QN__Q4_0, 256, 4, 40, 0, 0},
        {QN__Q4_0, QN__Q8_0, 96, 6, 40, 200, 11},
        {QN__Q5_0, QN__Q5_1, 128, 6, 40, 230, 11},
        {QN__Q4_1, QN__Q4_0, 64, 14, 20, 0, 0},
        {QN__BF16, QN__Q8_0, 128, 8, 40, 0, 0},
        {QN__Q4_0, QN__F32, 64, 8, 40, 0, 0},
        {QN__F32, QN__Q5_1, 32, 4, 20, 100, 0},
        {QN__IQ4_NL, QN__IQ4_NL, 128, 8, 20, 0, 0},
        {QN__Q8_0, QN__IQ4_NL, 256, 4, 40, 0, 0},
        {QN__Q8_0, QN__Q8_0, 64, 8, 80, 0, 0, 3211},
        {QN__Q8_0, QN__Q8_0, 128, 14, 40, 0, 0, 1919},
        {QN__Q8_0, QN__Q4_0, 128, 8, 68, 0, 0, 4033, 9},
        {QN__Q4_0, QN__Q4_0, 64, 6, 80, 1800, 11, 4000, 9},
        {QN__Q4_0, QN__Q4_0, 128, 16, 40, 0, 0, 1101},
        {QN__BF16, QN__Q8_0, 64, 8, 80, 1800, 11, 4000, 9},
        {QN__BF16, QN__Q8_0, 256, 14, 40, 0, 0},
    };
    static const blocks_case finer[] = {
        {QN__F16, QN__F16, 64, 8, 40, 0, 0},     {QN__F16, QN__F16, 128, 6, 40, 230, 11},
        {QN__F16, QN__F16, 256, 4, 20, 0, 0},    {QN__F16, QN__F16, 96, 6, 40, 200, 11},
        {QN__F16, QN__Q8_0, 128, 8, 20, 0, 0},   {QN__IQ4_NL, QN__F16, 64, 14, 40, 0, 0},
        {QN__Q8_0, QN__F16, 96, 6, 20, 0, 0},    {QN__F16, QN__BF16, 128, 8, 40, 0, 0},
        {QN__BF16, QN__F32, 64, 8, 20, 200, 11}, {QN__F32, QN__F16, 256, 4, 40, 0, 0},
        {QN__F16, QN__F16, 80, 12, 20, 0, 0},    {QN__F16, QN__Q8_0, 128, 12, 40, 0, 0, 1919},
        {QN__F16, QN__Q8_0, 64, 8, 40, 230, 11}, {QN__F16, QN__Q8_0, 256, 4, 20, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        compare_one(cpu, cuda, &cases[i], OF_BF16);
    for (size_t i = 0; i < sizeof finer / sizeof *finer; i++)
        compare_one(cpu, cuda, &finer[i], OF_F16);
    for (int id = 0; id < QN__ENCODING_COUNT; id++) {
        const qn__encoding *e = &qn__encodings[id];
        if (e->bits && !e->zeroed)
            compare_one(cpu, cuda,
                        &(blocks_case){(qn__encoding_id)id, (qn__encoding_id)id, 128, 4, 20, 0, 0},
                        OF_BF16);
    }
}
