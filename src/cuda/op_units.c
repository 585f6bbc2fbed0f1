/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised weights, which stay in their units: which kernels each layout has, linear layers and
 * rows. Layouts that have none of their own share those to which a layout is data.
 */
#include "base/error.h"
#include "core/dtype.h"
#include "cuda/cuda.h"
#include "cuda/turns.h"

/* The kernels of a layout, in the order of kernels.def. */
enum {
    BYTES_1,
    NORMED_1, /* the same with norms (span_norm.cuh) */
    PAIRED_1, /* ... by pairs of blocks that share the columns */
    BYTES_4,
    BYTES_8,
    BYTES_32,
    VALUES_1,
    VALUES_4,
    ROWS,
    MAKE_BYTES,
    BYTES_MANY,
    UNPACK,
    SPLIT_2,
    SPLIT_4,
    FEW_16,
    FEW_64 = FEW_16 + 2
};

/* The first one of those that have their own. */
static const uint16_t kernels[QN__LAYOUT_COUNT] = {
#define CUDA_UNITS(id, name, ...) [QN__UNITS_OF(QN__##id)] = QN__CUDA_KERNEL_bytes_1_##name,
#include "cuda/units.def"
#undef CUDA_UNITS
};

/* Of those that have none, by step: for bytes of up to 8 rows, for values, and rows. */
static qn__cu_function shared_kernel(const qn__cuda *cuda, const qn__layout *l, int kernel)
{
    int first = l->step == 16   ? QN__CUDA_KERNEL_bytes_8_any_16
                : l->step == 32 ? QN__CUDA_KERNEL_bytes_8_any_32
                                : QN__CUDA_KERNEL_bytes_8_any_64;
    switch (kernel) {
    case BYTES_8: return cuda->kernels[first];
    case VALUES_1: return cuda->kernels[first + 1];
    case VALUES_4: return cuda->kernels[first + 2];
    case ROWS: return cuda->kernels[first + 3];
    default: return NULL;
    }
}

static qn__cu_function kernel_of(const qn__cuda *cuda, qn__layout_id layout, int kernel)
{
    return kernels[layout] ? cuda->kernels[kernels[layout] + kernel]
                           : shared_kernel(cuda, qn__layout_of(layout), kernel);
}

qn__cuda_units qn__cuda_units_as_data(qn__layout_id layout)
{
    const qn__layout *l = qn__layout_of(layout);
    return (qn__cuda_units){.layout = layout,
                            .columns = l->columns,
                            .bytes = l->unit_bytes,
                            .zero = l->zero,
                            .biased = l->biased,
                            .bits = l->encoding->bits,
                            .group = l->encoding->group,
                            .type = l->encoding->scale,
                            .zeroed = l->encoding->zeroed};
}

bool qn__cuda_has_units(qn__layout_id layout)
{
    const qn__layout *l = qn__layout_of(layout);
    return l && l->step;
}

bool qn__cuda_takes_units(const qn_array *node)
{
    const qn__linear_params *p = node->params;
    return node->dtype == QN_F32 && qn__cuda_has_units(node->in[1]->layout) &&
           (p->products == QN_PRODUCTS_INT8 || p->products == QN_PRODUCTS_INT8_ROWS ||
            p->products == QN_PRODUCTS_F32 || p->products == QN_PRODUCTS_BY_ROWS);
}

static qn_products products_of(const qn__call *call)
{
    return (qn_products)((const qn__linear_params *)call->params)->products;
}

enum {
    TILE = 16,
    LEAST_WARPS = 4,
    MOST_WARPS = 16,
    MOST_THREADS = 1024, /* of a multiprocessor */
    AHEAD = 52 << 10,    /* bytes that a multiprocessor has under way before x has come */
    PAIR = 2,            /* blocks of a cluster that share the columns */
    MANY = 4096,         /* columns, and rows, from which on they do */
    ALONE = 12 << 10,    /* columns up to which they do not where rows are fewer */
    FEW = 64,            /* rows of x up to which blocks make them bytes */
    MOST_BY_BYTES = 8,   /* ... up to which BY_ROWS is of bytes */
    MANY_TILES = 8,      /* in a tile of many.cu */
    MANY_STAGES = 4,
    MANY_THREADS = 384
};

/* How a call is launched: its rows of x a block, which kernel, and what a block has. Of the kernels
 * of 2 to 8 rows that layouts of their own have also a ring's places and turns of sums. */
typedef struct unit_form {
    int64_t width, warps, shared;
    int kernel;
    int8_t places, turns;
} unit_form;

static bool is_of_row(const unit_form *form)
{
    return form->kernel == BYTES_1 || form->kernel == PAIRED_1;
}

/* Warps that make results of the sums of those that multiply. */
static int64_t takers_of(const unit_form *form)
{
    return is_of_row(form) ? 1 : form->turns ? qn__cuda_parts(form->width, 2) : 0;
}

static unsigned threads_of(const unit_form *form)
{
    const int64_t takers = takers_of(form);
    return 32 * (unsigned)(form->warps + takers + (takers ? QN__CUDA_PACERS : 0));
}

/* What a block of several rows of x needs of shared memory: as much of it as speeds it up. 0: more
 * than there is for so many rows. */
static int64_t shared_of_rows(const qn__cuda *cuda, const qn__layout *l, int64_t k, unit_form *form)
{
    static const struct {
        int8_t places, turns;
    } ways[] = {{3, 4}, {3, 2}, {2, 2}, {2, 1}};
    int64_t spans = qn__cuda_parts(k, QN__CUDA_SPAN), padded = spans * QN__CUDA_SPAN,
            span = QN__CUDA_SPAN / l->columns * l->unit_bytes,
            x = form->width * (padded + l->step + (padded / l->step + 1) * 8);
    form->warps = qn__cuda_parts(spans, qn__cuda_parts(spans, MOST_WARPS));
    for (; form->warps; form->warps--)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            int64_t ring = ways[i].places * QN__CUDA_SPAN_ROOM(span) + QN__CUDA_RING_BARS,
                    sums = ways[i].turns * spans * form->width * TILE * 4,
                    shared = QN__CUDA_TURN_BARS + form->warps * ring + x + sums;
            form->places = ways[i].places;
            form->turns = ways[i].turns;
            if (shared <= cuda->most_shared)
                return shared;
        }
    return 0;
}

/* What a block needs of shared memory; 0: more than there is. Warps get fewer until it fits. */
static int64_t shared_of(const qn__cuda *cuda, const qn__layout *l, int64_t k, unit_form *form)
{
    if (form->turns)
        return shared_of_rows(cuda, l, k, form);
    bool bytes = form->kernel <= BYTES_32;
    int64_t width = form->width, wide = form->kernel == BYTES_8 ? 8 : width; /* rows of sums */
    int64_t all = qn__cuda_parts(k, QN__CUDA_SPAN), share = form->kernel == PAIRED_1 ? PAIR : 1,
            spans = QN__CUDA_SHARE_OF(all, share), padded = spans * QN__CUDA_SPAN;
    int64_t span = QN__CUDA_SPAN / l->columns * l->unit_bytes;
    int64_t ring = QN__CUDA_RING * span + QN__CUDA_RING_BARS;
    int64_t x =
        bytes ? width * (padded + l->step) + padded / l->step * wide * 8 : width * padded * 4;
    int64_t sums = ((wide == 1 ? 2 : 1) * spans + 1) * TILE * wide * 4; /* and a gate's */
    if (is_of_row(form)) {
        bool two = span <= QN__CUDA_TWO_TILES;
        ring = (two ? 4 : 3) * QN__CUDA_SPAN_ROOM(span) + QN__CUDA_RING_BARS;
        sums = QN__CUDA_TURN_BARS + QN__CUDA_TURNS / share * all * (1 + two) * TILE * 4;
    }
    int64_t most = cuda->most_shared;
    form->warps = qn__cuda_parts(spans, qn__cuda_parts(spans, MOST_WARPS));
    while (form->warps > 1 && form->warps * ring + x + sums > most)
        form->warps--;
    int64_t shared = form->warps * ring + x + sums;
    return shared <= most ? shared : 0;
}

/* Blocks that a multiprocessor has room for. */
static int64_t unit_room(const qn__cuda *cuda, unsigned threads, int64_t shared)
{
    int64_t beside = cuda->most_shared / shared, fit = MOST_THREADS / threads;
    return beside < fit ? beside : fit;
}

/* Whether it is one of these kernels, of whatever layout. */
static bool is_of(const qn__cuda *cuda, qn__cu_function function, int first, int last)
{
    for (int i = 0; i < QN__LAYOUT_COUNT; i++)
        if (kernels[i] && qn__cuda_is_among(cuda, function, kernels[i] + first, kernels[i] + last))
            return true;
    return false;
}

/* Each group of rows of x has as many blocks, or pairs, as there is room for, up to a tile each. */
static int64_t unit_blocks(const qn__cuda *cuda, const qn__cuda_linears_args *args,
                           qn__cu_function function, unsigned threads, int64_t shared)
{
    int64_t groups = qn__cuda_parts(args->rows, args->group),
            share = is_of(cuda, function, PAIRED_1, PAIRED_1) ? PAIR : 1,
            tiles = qn__cuda_linear_tiles(args, TILE) / (args->gated ? 2 : 1);
    int64_t at_once = cuda->processors * unit_room(cuda, threads, shared) / share;
    int64_t each = groups && at_once > groups ? at_once / groups : 1;
    return share * groups * (each < tiles ? each : tiles);
}

/* Spans, of two tiles where they come so, that a block has under way until its row of x is asked
 * for; all, where x has been made bytes. */
static int64_t spans_ahead(const qn__cuda *cuda, const qn__cuda_linears_args *args,
                           unsigned threads, int64_t shared, int64_t blocks)
{
    const qn__layout *l = qn__layout_of((qn__layout_id)args->units.layout);
    int64_t span = QN__CUDA_SPAN / l->columns * l->unit_bytes,
            bytes = span * (span <= QN__CUDA_TWO_TILES && args->rows == 1 ? 2 : 1),
            room = unit_room(cuda, threads, shared),
            beside = qn__cuda_parts(blocks, cuda->processors),
            spans = AHEAD / (bytes * (beside < room ? beside : room));
    return args->made ? INT32_MAX : spans > 1 ? spans : 1;
}

/* Whether pairs of blocks share the columns of the only row, which pays where these are very many,
 * or many and so are tiles. */
static bool pays_pair(const qn__cuda *cuda, const qn__call *call, int64_t rows)
{
    const int64_t n = call->operand[1].shape[0], k = call->operand[1].shape[1];
    return qn__cuda_has_wide(cuda) && rows <= 1 && products_of(call) != QN_PRODUCTS_INT8_ROWS &&
           (k > ALONE || (k >= MANY && n >= MANY));
}

/* False: the call's rows are too long. */
static bool form_of(const qn__cuda *cuda, const qn__call *call, int64_t rows, unit_form *form)
{
    static const unit_form of_values[] = {{.width = 4, .kernel = VALUES_4},
                                          {.width = 1, .kernel = VALUES_1},
                                          {0}},
                           of_row[] = {{.width = 1, .kernel = BYTES_1}, {0}},
                           of_pair[] = {{.width = 1, .kernel = PAIRED_1}, {0}},
                           of_bytes[] = {{.width = 32, .kernel = BYTES_32},
                                         {.width = 8, .kernel = BYTES_8, .turns = 1},
                                         {.width = 4, .kernel = BYTES_4, .turns = 1},
                                         {.width = 2, .kernel = BYTES_4, .turns = 1},
                                         {.width = 1, .kernel = BYTES_4, .turns = 1},
                                         {0}},
                           shared_ones[] = {{.width = 8, .kernel = BYTES_8},
                                            {.width = 1, .kernel = BYTES_8},
                                            {0}};
    const qn__operand *w = &call->operand[1];
    const unit_form *f = products_of(call) == QN_PRODUCTS_F32 ? of_values
                         : !kernels[w->layout]                ? shared_ones
                         : pays_pair(cuda, call, rows)        ? of_pair
                         : rows <= 1                          ? of_row
                                                              : of_bytes;
    const int64_t spans = qn__cuda_parts(w->shape[1], QN__CUDA_SPAN);
    for (; f->width; f++) {
        const bool fits_any = !f[1].width || f == shared_ones;
        const int64_t least = fits_any ? 1 : f->turns && spans < LEAST_WARPS ? spans : LEAST_WARPS;
        if (f[1].width && rows <= f[1].width)
            continue;
        *form = *f;
        if (f->turns && rows < f->width)
            form->width = rows;
        form->shared = shared_of(cuda, qn__layout_of(w->layout), w->shape[1], form);
        if (form->shared && form->warps >= least)
            return true;
    }
    return false;
}

static bool is_many(const qn__cuda *cuda, qn__cu_function function)
{
    return is_of(cuda, function, BYTES_MANY, BYTES_MANY);
}

bool qn__cuda_is_of_unit_values(const qn__cuda *cuda, qn__cu_function function)
{
    return is_of(cuda, function, SPLIT_2, FEW_64);
}

bool qn__cuda_is_units(const qn__cuda *cuda, qn__cu_function function)
{
    if (qn__cuda_is_ternary(cuda, function))
        return true;
    for (int i = 1; i < QN__LAYOUT_COUNT; i++)
        for (int k = BYTES_1; qn__layout_of((qn__layout_id)i)->step && k <= VALUES_4; k++)
            if (function == kernel_of(cuda, (qn__layout_id)i, k))
                return true;
    return is_many(cuda, function);
}

/* How a launch of one row has norms: its blocks share no columns. False: it is none, or its row is
 * too long for that. */
static bool form_with_norms(const qn__cuda_binder *b, const qn__cuda_launch *launch,
                            unit_form *form)
{
    const qn__cuda_linears_args *args = qn__cuda_linears_of(b, launch);
    if (!is_of(b->cuda, launch->function, BYTES_1, PAIRED_1))
        return false;
    *form = (unit_form){.width = 1, .kernel = BYTES_1};
    const qn__layout *l = qn__layout_of((qn__layout_id)args->units.layout);
    form->shared = shared_of(b->cuda, l, args->k, form);
    return form->shared;
}

bool qn__cuda_unit_row_makes_squares(const qn__cuda_binder *b, const qn__cuda_launch *launch)
{
    unit_form form;
    return form_with_norms(b, launch, &form);
}

/* Of the row that a launch multiplies: each of its warps has one span. */
bool qn__cuda_unit_row_takes_norm(const qn__cuda_binder *b, const qn__cuda_launch *launch)
{
    const qn__cuda_linears_args *args = qn__cuda_linears_of(b, launch);
    unit_form form;
    return form_with_norms(b, launch, &form) && !args->made &&
           qn__cuda_parts(args->k, QN__CUDA_SPAN) <= form.warps;
}

void qn__cuda_unit_row_gets_norms(const qn__cuda_binder *b, qn__cuda_launch *launch)
{
    const qn__cuda_linears_args *args = qn__cuda_linears_of(b, launch);
    unit_form form;
    if (!form_with_norms(b, launch, &form))
        return;
    launch->function = kernel_of(b->cuda, (qn__layout_id)args->units.layout, NORMED_1);
    launch->threads = threads_of(&form);
    launch->shared = (unsigned)form.shared;
    qn__cuda_units_again(b, launch);
}

bool qn__cuda_takes_factors(const qn__cuda *cuda, qn__cu_function function)
{
    return qn__cuda_is_units(cuda, function) && !is_many(cuda, function);
}

/* Blocks that have tiles of 128 rows of the weights by as many of x in turn. */
static int64_t many_blocks(const qn__cuda *cuda, const qn__cuda_linears_args *args)
{
    int64_t tiles = qn__cuda_parts(qn__cuda_linear_tiles(args, TILE), MANY_TILES) *
                    qn__cuda_parts(args->rows, QN__CUDA_MANY_ROWS);
    return tiles < cuda->processors ? tiles : cuda->processors;
}

void qn__cuda_units_again(const qn__cuda_binder *b, qn__cuda_launch *launch)
{
    qn__cuda_linears_args *args = qn__cuda_linears_of(b, launch);
    if (qn__cuda_is_ternary(b->cuda, launch->function))
        qn__cuda_ternary_again(b, launch);
    else if (is_many(b->cuda, launch->function))
        launch->blocks = (unsigned)many_blocks(b->cuda, args);
    else {
        const int64_t blocks =
            unit_blocks(b->cuda, args, launch->function, launch->threads, launch->shared);
        launch->blocks = (unsigned)blocks;
        if (args->ahead)
            args->ahead = spans_ahead(b->cuda, args, launch->threads, launch->shared, blocks);
    }
}

/* Many rows (many.cu): a launch makes x bytes, the next multiplies. */
static bool linear_many(qn__cuda_binder *b, const qn__cuda_linears_args *args, const qn__call *call)
{
    const qn__layout *l = qn__layout_of(call->operand[1].layout);
    qn__cu_function function = b->cuda->kernels[kernels[call->operand[1].layout] + BYTES_MANY],
                    make = b->cuda->kernels[kernels[call->operand[1].layout] + MAKE_BYTES];
    qn__cuda_launch *last;
    const qn__cuda_linears_args *all = qn__cuda_join_linear(b, function, call, args->rows, &last);
    if (all) {
        last->blocks = (unsigned)many_blocks(b->cuda, all);
        return true;
    }
    int64_t spans = qn__cuda_parts(args->k, QN__CUDA_SPAN), rows = QN__CUDA_MANY_ROWS,
            x = rows * (QN__CUDA_SPAN + l->step + QN__CUDA_SPAN / l->step * 8),
            stage = x + MANY_TILES * (QN__CUDA_SPAN / l->columns * l->unit_bytes),
            stages = QN__CUDA_MANY_SHARED / stage;
    qn__cuda_round_args bytes = {
        .rows = args->rows, .columns = args->k, .padded = spans * QN__CUDA_SPAN};
    qn__cuda_grid grid = {many_blocks(b->cuda, args), MANY_THREADS,
                          (unsigned)(stage * (stages < MANY_STAGES ? stages : MANY_STAGES))};
    qn__cuda_want_scratch(b, (size_t)(qn__cuda_parts(args->rows, rows) * spans * x));
    return qn__cuda_add(b, make, bytes.rows * bytes.padded / 4, false, &bytes, sizeof bytes, call,
                        2, (const uint8_t[]){0, QN__CUDA_SCRATCH}) &&
           qn__cuda_add_linear(b, function, &grid, args, call, QN__CUDA_SCRATCH);
}

/* x as bytes in scratch memory, with a scale a row or a step, by the launch that makes x or one of
 * its own. Bytes whose steps have scales blocks can make as well: so they do of few columns, for
 * which the launch ahead would take longer than they. */
static bool make_bytes(qn__cuda_binder *b, const qn__call *call, qn__cuda_linears_args *args)
{
    enum { IN_PASSING = 12 << 10, BY_LAUNCH = 32 << 10 }; /* columns of all rows */
    const qn__layout *l = qn__layout_of(call->operand[1].layout);
    const qn__cuda_byte_form form = {.padded =
                                         qn__cuda_parts(args->k, QN__CUDA_SPAN) * QN__CUDA_SPAN,
                                     .step = l->step,
                                     .zero = l->zero,
                                     .biased = l->biased,
                                     .by_step = !args->whole};
    const qn__cuda_row_bytes_args bytes = {.rows = args->rows, .columns = args->k, .form = form};
    const int64_t columns = args->rows * form.padded,
                  row = QN__CUDA_MADE_ROW(form.padded, form.step),
                  blocks =
                      form.by_step ? qn__cuda_parts(columns, 4 * QN__CUDA_THREADS) : args->rows;
    if (form.by_step && columns < IN_PASSING)
        return true;
    const bool in_passing = qn__cuda_bytes_of_x(b, call, &form);
    if (form.by_step && !in_passing && columns < BY_LAUNCH)
        return true;
    qn__cuda_want_scratch(b, (size_t)(args->rows * row));
    args->made = (int32_t)row;
    return in_passing || QN__CUDA_ADD(b, row_bytes, blocks, true, bytes, call, 0, QN__CUDA_SCRATCH);
}

bool qn__cuda_linear_units(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *w = &call->operand[1];
    qn_products products = products_of(call);
    qn__cuda_linears_args args;
    unit_form form;
    if (!qn__cuda_begin_linear(b, call, &args))
        return false;
    args.whole = products == QN_PRODUCTS_INT8_ROWS;
    args.units = qn__cuda_units_as_data(w->layout);
    if (qn__cuda_goes_ternary(b->cuda, call, &args))
        return qn__cuda_linear_ternary(b, call, &args);
    const bool own_kernels = qn__cuda_has_wide(b->cuda) && kernels[w->layout];
    if (own_kernels && products == QN_PRODUCTS_BY_ROWS && args.rows > MOST_BY_BYTES &&
        args.rows <= QN__CUDA_SPLIT_ROWS && args.k % 8 == 0)
        return qn__cuda_wide_linear(b, &args, call, NULL,
                                    kernels[w->layout] +
                                        (args.rows > QN__CUDA_FEW_UNITS_ROWS ? SPLIT_2 : FEW_16));
    if (own_kernels && args.rows > FEW) {
        if (products == QN_PRODUCTS_BY_ROWS && qn__cuda_can_unpack(b, &args))
            return qn__cuda_wide_linear(b, &args, call, kernel_of(b->cuda, w->layout, UNPACK), 0);
        if (products == QN_PRODUCTS_INT8 || products == QN_PRODUCTS_BY_ROWS)
            return linear_many(b, &args, call);
    }
    if (!form_of(b->cuda, call, args.rows, &form)) {
        qn__fail(b->err, QN_UNSUPPORTED,
                 "%s: rows of %lld columns are too long for its linear layers on %s weights",
                 b->cuda->name, (long long)args.k, qn__layout_of(w->layout)->encoding->name);
        return false;
    }
    args.group = (int32_t)form.width;
    args.places = form.places;
    args.turns = form.turns;
    qn__cu_function function = kernel_of(b->cuda, w->layout, form.kernel);
    qn__cuda_launch *last;
    if (qn__cuda_join_linear(b, function, call, args.rows, &last) ||
        (form.kernel == BYTES_1 && qn__cuda_join_linear(b, kernel_of(b->cuda, w->layout, PAIRED_1),
                                                        call, args.rows, &last))) {
        qn__cuda_units_again(b, last);
        return true;
    }
    if ((form.turns || (args.whole && args.rows)) && !make_bytes(b, call, &args))
        return false;
    const unsigned threads = threads_of(&form);
    const int64_t blocks = unit_blocks(b->cuda, &args, function, threads, form.shared);
    qn__cuda_grid grid = {blocks, threads, (unsigned)form.shared};
    if (takers_of(&form))
        args.ahead = spans_ahead(b->cuda, &args, threads, form.shared, blocks);
    return qn__cuda_add_linear(b, function, &grid, &args, call, args.made ? QN__CUDA_SCRATCH : 0);
}

qn__cu_function qn__cuda_take_units(const qn__cuda *cuda, qn__layout_id layout,
                                    qn__cuda_units *units)
{
    *units = qn__cuda_units_as_data(layout);
    return kernel_of(cuda, layout, ROWS);
}
