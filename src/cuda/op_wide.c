/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16 or f16 for sm_90, with few rows of x as stream.cu has them, with
 * some as split.cu does and with many as wide.cu: how they are launched.
 */
#include "cuda/cuda.h"

enum {
    ROWS = QN__CUDA_WIDE_ROWS,
    X_STEP = 8,
    DEEP = 64,
    THREADS = 384,
    UNITS_THREADS = 640,
    SPANS_AHEAD = 3,         /* of weights in units, if they take */
    SPANS_SHARED = 60 << 10, /* ... no more than this */
    TILE = 16,
    SINGLE_SLOTS = 3,
    MOST_SLOTS = 16,       /* by many rows of x */
    MOST_SLOTS_OF_FEW = 8, /* by up to so many: */
    FEW_ROWS = 16,
    AT_ONCE = 4,        /* tiles of weights in units that four warps multiply together */
    X_TILES = 4,        /* of these cost what rows of x do */
    SMALL_TILES = 4096, /* columns of a block's tiles, by up to 16 rows */
    EARLY = 72 << 10,   /* bytes asked for before the launches ahead have ended, by many rows */
    FLIGHT_EARLY = 64 << 10, /* bytes under way before the only row of x is there, */
    FLIGHT = 112 << 10,      /* and then, */
    FLIGHT_LONG = 144 << 10, /* or so many of blocks that read as much as */
    LONG_BLOCK = 1 << 20,
    HALF_EARLY = 32 << 10, /* ... of blocks two of which lie on a processor */
    HALF_FLIGHT = 64 << 10,
    HALF_COLUMNS = 8192,     /* ... whose row of x has no more of these */
    ROOM_BESIDE = 172 << 10, /* by several, so that a block of attention fits beside it */
    WHOLE = 112 << 10,       /* bytes of one row of x that has room beside stages */
    OF_SPAN = QN__CUDA_SPAN / DEEP,
    ROW_BYTES = 2 * DEEP,
    ALIGNED = 1024,
    PER_TILE = 48 /* what a deep tile costs besides its columns, in columns: measured on an H100 */
};

/* Of the tiles that there are kernels for, in the order of kernels.def. */
static const int64_t widths[] = {192, 128, 96}, deep_widths[] = {256, 192, 128};

/* Of split.cu: rows of a weight, parts of the columns, tiles of x in a cluster. */
typedef struct split_form {
    int64_t width, parts, x_tiles;
} split_form;
static const split_form split_forms[] = {{64, 2, 1},  {96, 2, 1},  {128, 2, 1}, {224, 1, 1},
                                         {128, 1, 2}, {192, 2, 2}, {224, 1, 2}};

bool qn__cuda_has_wide(const qn__cuda *cuda)
{
    return cuda->arch == 90;
}

/* Whether x lies in shared memory as it is, turned, where it would come with the stages of a weight
 * (stream.cu). */
static bool is_whole(const qn__cuda_linears_args *l)
{
    return l->rows == 1 && qn__cuda_parts(l->k, QN__CUDA_SPAN) * QN__CUDA_SPAN * 2 <= WHOLE;
}

/* For the copy engine: boxes of `box` rows by 64 columns; where `deep` is not 0 so many of them,
 * which lie side by side in the array and one behind the other in shared memory. */
static int describe(qn__cuda *cuda, qn__cuda_map *to, void *data, int64_t rows, int64_t columns,
                    int64_t stride, int64_t box, int64_t deep)
{
    qn__cuda_map map;
    const uint64_t shape[] = {(uint64_t)(deep ? DEEP : columns), (uint64_t)rows,
                              (uint64_t)(columns / DEEP)},
                   apart[] = {(uint64_t)stride * 2, ROW_BYTES};
    const unsigned size[] = {DEEP, (unsigned)box, (unsigned)deep}, step[] = {1, 1, 1};
    int result = cuda->cu.tensor_map(&map, QN__CU_TENSOR_BF16, deep ? 3 : 2, data, shape, apart,
                                     size, step, 0, QN__CU_TENSOR_SWIZZLED, QN__CU_TENSOR_ALONE, 0);
    memcpy(to, &map, sizeof map);
    return result;
}

/* Rows of a weight that blocks of stream.cu ask for at once which have so many of its tiles; and
 * last, where they have more than there is room for. */
static int64_t box_of(const qn__cuda_wide_args *a, int64_t each, bool last)
{
    const int64_t unit = a->linears.gated ? 2 : 1, tiles = each * unit,
                  before = (qn__cuda_parts(tiles, a->slots) - 1) * a->slots;
    return (last ? tiles - before : before ? a->slots : tiles) / unit * TILE;
}

static int fill_maps(qn__cuda *cuda, void *args)
{
    qn__cuda_wide_args a;
    memcpy(&a, args, sizeof a);
    const qn__cuda_linears_args *l = &a.linears;
    int result = 0;
    if (!is_whole(l))
        result = describe(cuda, &a.map[QN__CUDA_LINEARS], l->at[0], l->rows, l->k, l->k, a.x_box,
                          a.deep);
    int64_t before = 0; /* rows of weights that lie ahead of it */
    for (int i = 0; i < QN__CUDA_LINEARS && result == 0; i++) {
        const int64_t each = a.in_units ? 0 : i && !l->gated ? a.others : a.each;
        char *w = (char *)l->at[1 + 2 * i] + before * l->stride[i] * 2;
        if (l->n[i] && !a.in_units)
            result = describe(cuda, &a.map[i], w, l->n[i], l->k, l->stride[i],
                              each ? box_of(&a, each, false) : a.box, a.deep);
        if (l->n[i] && each && result == 0)
            result = describe(cuda, &a.last_map[i], w, l->n[i], l->k, l->stride[i],
                              box_of(&a, each, true), a.deep);
        before += a.unpacked ? l->n[i] : 0;
    }
    memcpy(args, &a, sizeof a);
    return result;
}

/* Tiles of `width` rows of the weights, for each tile of rows of x. */
static int64_t tiles_of(const qn__cuda_linears_args *l, int64_t x_tiles, int64_t width)
{
    int64_t tiles = l->gated ? qn__cuda_parts(l->n[0], width / 2) : qn__cuda_linear_tiles(l, width);
    return tiles * x_tiles;
}

static int64_t at_least_one(int64_t n, int64_t most)
{
    return n < 1 ? 1 : n < most ? n : most;
}

/* Blocks of a launch where they have so many tiles of the first weight, or of the others. */
static int64_t blocks_with(const qn__cuda_linears_args *l, int64_t each, int64_t others)
{
    int64_t all = qn__cuda_parts(qn__cuda_parts(l->n[0], TILE), each);
    for (int i = 1; i < QN__CUDA_LINEARS && !l->gated; i++)
        all += qn__cuda_parts(qn__cuda_parts(l->n[i], TILE), others);
    return all;
}

/* Blocks have tiles of one weight each, whose rows are one box, as few as leave no more blocks than
 * are wanted; of the second and the third weight fewer still, if that leaves fewer idle:
 * attention behind it takes longer the more of them are, by traces; why is not known. */
static unsigned deal_tiles(qn__cuda_wide_args *a, int64_t most)
{
    const qn__cuda_linears_args *l = &a->linears;
    int64_t each = 1;
    while (blocks_with(l, each, each) > most)
        each++;
    int64_t others = each;
    while (others > 1 && blocks_with(l, each, others - 1) <= most)
        others--;
    a->each = each;
    a->others = others;
    a->second = qn__cuda_parts(qn__cuda_parts(l->n[0], TILE), each);
    a->third = a->second + qn__cuda_parts(qn__cuda_parts(l->n[1], TILE), others);
    return (unsigned)blocks_with(l, each, others);
}

/* Few rows (stream.cu): each processor has a block, which has its tiles at once, up to 16 of them,
 * or to 8 by up to 16 rows, so that a row's pieces are longer: memory gives more the more of it
 * lies side by side. What is best was measured on an H200 for the shapes of Llama-1B and 8B: stages
 * of about the same bytes, pieces as long as that leaves; layers of one row with all room there is,
 * lest two of their blocks lie on one processor, others of a tile a block so that the next one's
 * blocks fit beside them. */
static void choose_stream(const qn__cuda *cuda, qn__cuda_launch *launch, qn__cuda_wide_args *a)
{
    const qn__cuda_linears_args *l = &a->linears;
    int64_t unit = l->gated ? 2 : 1, x_rows = 8;
    launch->blocks = deal_tiles(a, cuda->processors);
    /* Of three tiles two of eight warps would be idle, so two smaller blocks lie on a processor. */
    const bool one = is_whole(l), halves = one && l->n[1] && !l->gated && a->each == SINGLE_SLOTS &&
                                           l->k <= HALF_COLUMNS;
    if (halves)
        launch->blocks = deal_tiles(a, 2 * cuda->processors);
    const int64_t each = a->each * unit;
    int kernel = one ? 0 : 2;
    for (; x_rows < l->rows; x_rows *= 2)
        kernel += 2;
    bool pair = l->gated || each > SINGLE_SLOTS;
    a->slots = qn__cuda_parts(
        each, qn__cuda_parts(each, x_rows <= FEW_ROWS ? MOST_SLOTS_OF_FEW : MOST_SLOTS));
    a->slots += pair && a->slots % 2;
    a->deep = a->slots > 8 ? 1 : a->slots > 4 ? 2 : 4;
    a->x_box = x_rows;
    int64_t groups = a->slots / (1 + pair), of_span = OF_SPAN / a->deep,
            weights = a->deep * a->slots * TILE * ROW_BYTES,
            stage = weights + (one ? 0 : a->deep * x_rows * ROW_BYTES),
            spans = qn__cuda_parts(l->k, QN__CUDA_SPAN),
            run = a->slots * x_rows * TILE * 4 + (one ? spans * QN__CUDA_SPAN * 2 : 0),
            steps = spans * of_span * qn__cuda_parts(each, a->slots);
    int64_t room = QN__CUDA_STREAM_SHARED;
    if (halves || (!one && x_rows <= 16 && each == 1))
        room /= 2;
    else if (!one && x_rows <= 16 && each * l->k <= SMALL_TILES)
        room = ROOM_BESIDE;
    a->keeps = one && a->deep * (1 + pair) == OF_SPAN;
    a->ring = at_least_one((room - run - ALIGNED) / stage,
                           steps < QN__CUDA_STREAM_RING ? steps : QN__CUDA_STREAM_RING);
    a->early = at_least_one(halves        ? HALF_EARLY / weights
                            : one         ? FLIGHT_EARLY / weights
                            : x_rows > 16 ? EARLY / weights
                                          : a->ring,
                            a->ring);
    const bool is_long = each * TILE * l->k * 2 >= LONG_BLOCK;
    const int64_t flight = halves ? HALF_FLIGHT : is_long ? FLIGHT_LONG : FLIGHT;
    a->flight = at_least_one(flight / weights, a->ring);
    a->apart = QN__CUDA_STREAM_WARPS / groups;
    while (a->apart > 1 && a->apart * of_span > a->ring)
        a->apart--;
    a->of_span = of_span;
    launch->threads = 32 * (QN__CUDA_STREAM_WARPS + 1);
    launch->shared = (unsigned)(a->ring * stage + run + ALIGNED);
    launch->function =
        qn__cuda_weights_kernel(cuda, l->half, QN__CUDA_KERNEL_stream_1 + kernel + pair);
}

/* Many rows, in tiles of the width that leaves the fewest processors idle; deep tiles in pairs
 * where x has an even number of them. */
static void choose_tiles(const qn__cuda *cuda, qn__cuda_launch *launch, qn__cuda_wide_args *a)
{
    const qn__cuda_linears_args *l = &a->linears;
    const bool by_rows = a->by_rows;
    const int64_t x_tiles = qn__cuda_parts(l->rows, ROWS),
                  blocks = by_rows && x_tiles % 2 == 0 ? 2 : 1,
                  *const width = by_rows ? deep_widths : widths;
    int64_t least = INT64_MAX;
    int best = 0;
    for (int i = 0; i < 3; i++) {
        int64_t tiles = tiles_of(l, x_tiles, width[i]),
                cost = qn__cuda_parts(tiles / blocks, cuda->processors / blocks) *
                       (width[i] + (by_rows ? PER_TILE : ROWS));
        if (cost < least) {
            least = cost;
            best = i;
        }
    }
    int64_t tiles = tiles_of(l, x_tiles, width[best]) / blocks, most = cuda->processors / blocks;
    a->box = l->gated || blocks == 2 ? width[best] / 2 : width[best];
    a->x_box = ROWS;
    launch->blocks = (unsigned)((tiles < most ? tiles : most) * blocks);
    launch->function =
        qn__cuda_weights_kernel(cuda, l->half,
                                by_rows ? QN__CUDA_KERNEL_deep_256 + 2 * best + (blocks == 2)
                                        : QN__CUDA_KERNEL_wide_192 + best);
}

/* Clusters of so many blocks that run at once; where none does its launch will tell. */
static int64_t clusters_at_once(const qn__cuda *cuda, int64_t blocks)
{
    return at_least_one(cuda->clusters[blocks], cuda->processors);
}

/* Up to two tiles of rows of x, in the form whose blocks have the fewest bytes to ask for, x's
 * among them. */
static void choose_split(const qn__cuda *cuda, qn__cuda_launch *launch, qn__cuda_wide_args *a)
{
    const qn__cuda_linears_args *l = &a->linears;
    const int64_t x_tiles = qn__cuda_parts(l->rows, ROWS), steps = qn__cuda_parts(l->k, DEEP);
    int64_t least = INT64_MAX, at_once = 0, tiles = 0;
    const split_form *best = NULL;
    a->x_box = qn__cuda_parts(qn__cuda_parts(l->rows, x_tiles), X_STEP) * X_STEP;
    for (size_t i = 0; i < sizeof split_forms / sizeof *split_forms; i++) {
        const split_form *f = &split_forms[i];
        int64_t clusters = clusters_at_once(cuda, f->parts * f->x_tiles),
                all = tiles_of(l, 1, f->width),
                cost = qn__cuda_parts(all, clusters) * qn__cuda_parts(steps, f->parts) *
                       (f->width + a->x_box);
        if (f->x_tiles == x_tiles && f->parts <= steps && cost < least) {
            least = cost;
            best = f;
            at_once = clusters;
            tiles = all;
        }
    }
    const int64_t blocks = best->parts * best->x_tiles, stage = (ROWS + best->width) * ROW_BYTES,
                  sums = tiles > at_once ? (best->parts - 1) * ROWS * best->width / best->parts * 4
                                         : 0;
    a->box = l->gated || x_tiles == 2 ? best->width / 2 : best->width;
    a->ring = (QN__CUDA_WIDE_SHARED - ALIGNED - sums) / stage;
    a->sums_at = sums ? a->ring * stage : 0;
    launch->blocks = (unsigned)((tiles < at_once ? tiles : at_once) * blocks);
    launch->function = qn__cuda_weights_kernel(
        cuda, l->half, QN__CUDA_KERNEL_split_64 + (int)(best - split_forms));
}

/* The same of weights in units, in two parts or in four. */
static void choose_split_units(const qn__cuda *cuda, qn__cuda_launch *launch, qn__cuda_wide_args *a)
{
    const qn__cuda_linears_args *l = &a->linears;
    const int64_t x_tiles = qn__cuda_parts(l->rows, ROWS),
                  tiles = tiles_of(l, x_tiles, QN__CUDA_SPLIT_UNITS),
                  spans = qn__cuda_parts(l->k, QN__CUDA_SPAN), two = clusters_at_once(cuda, 2),
                  four = clusters_at_once(cuda, 4);
    const bool in_four = spans >= 4 && qn__cuda_parts(tiles, four) * qn__cuda_parts(spans, 4) <
                                           qn__cuda_parts(tiles, two) * qn__cuda_parts(spans, 2);
    const int64_t parts = in_four ? 4 : 2, at_once = in_four ? four : two,
                  stage = (ROWS + QN__CUDA_SPLIT_UNITS) * ROW_BYTES,
                  span = QN__CUDA_SPLIT_UNITS / TILE * (QN__CUDA_SPAN / l->units.columns) *
                         l->units.bytes,
                  sums =
                      tiles > at_once ? (parts - 1) * ROWS * QN__CUDA_SPLIT_UNITS / parts * 4 : 0;
    a->x_box = qn__cuda_parts(qn__cuda_parts(l->rows, x_tiles), X_STEP) * X_STEP;
    a->depth = SPANS_AHEAD * span <= SPANS_SHARED ? SPANS_AHEAD : 2;
    a->ring = (QN__CUDA_WIDE_SHARED - ALIGNED - sums - a->depth * span) / stage;
    a->units_at = a->ring * stage;
    a->sums_at = sums ? a->units_at + a->depth * span : 0;
    launch->blocks = (unsigned)((tiles < at_once ? tiles : at_once) * parts);
    launch->threads = UNITS_THREADS;
    launch->function = cuda->kernels[a->in_units + in_four];
}

/* ... with up to 64 rows of x, tiles of 16 rows of a weight in fours: clusters of so many blocks
 * that a block has the least to read and to multiply, if their tiles find room at once. Where they
 * are few, fours have more warps than four, which share spans. */
static void choose_few_units(const qn__cuda *cuda, qn__cuda_launch *launch, qn__cuda_wide_args *a)
{
    const qn__cuda_linears_args *l = &a->linears;
    const int64_t unit = l->gated ? 2 : 1, most = QN__CUDA_FEW_UNITS_TILES / unit,
                  all = l->gated ? qn__cuda_parts(l->n[0], TILE) : qn__cuda_linear_tiles(l, TILE),
                  spans = qn__cuda_parts(l->k, QN__CUDA_SPAN);
    int64_t least = INT64_MAX, stages = 0, x_rows = 16; /* stages: of all passes */
    int kernel = 0;
    for (; x_rows < l->rows; x_rows *= 2)
        kernel++;
    for (int64_t blocks = 1; blocks <= 8; blocks *= 2) {
        const int64_t clusters = clusters_at_once(cuda, blocks),
                      each = qn__cuda_parts(all, clusters), passes = qn__cuda_parts(each, most),
                      slots =
                          qn__cuda_parts(qn__cuda_parts(each, passes) * unit, AT_ONCE) * AT_ONCE,
                      of_block = passes * qn__cuda_parts(spans, blocks),
                      cost = of_block * (slots + X_TILES);
        if (cost >= least || (blocks > 1 && passes > 1))
            continue;
        least = cost;
        stages = of_block;
        a->blocks = blocks;
        a->each = each;
        a->slots = slots;
    }
    a->apart = 1;
    while (a->apart < OF_SPAN && a->apart * a->slots * 2 <= QN__CUDA_FEW_UNITS_TILES)
        a->apart *= 2;
    const bool once = a->each * unit <= a->slots;
    const int64_t units = a->slots * (QN__CUDA_SPAN / l->units.columns) * l->units.bytes,
                  stage = units + OF_SPAN * x_rows * ROW_BYTES,
                  sums = a->apart * x_rows * (a->slots * TILE + 8) * 4,
                  room = QN__CUDA_WIDE_SHARED - ALIGNED - (once ? 0 : sums);
    a->ring = at_least_one(room / stage,
                           stages < QN__CUDA_FEW_UNITS_RING ? stages : QN__CUDA_FEW_UNITS_RING);
    a->early = at_least_one(EARLY / units, a->ring);
    a->sums_at = once ? 0 : a->ring * stage;
    a->x_box = x_rows;
    const int64_t bytes = a->ring * stage + (once ? 0 : sums);
    launch->blocks = (unsigned)(qn__cuda_parts(all, a->each) * a->blocks);
    launch->threads = 32 * (unsigned)(a->slots * a->apart + 1);
    launch->shared = (unsigned)((bytes > sums ? bytes : sums) + ALIGNED);
    launch->cluster = (unsigned)a->blocks;
    launch->function = cuda->kernels[a->in_units + kernel];
}

/* Chooses the kernel of the newest launch by the sizes of all its weights. */
void qn__cuda_choose_wide(qn__cuda_binder *b)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *launch = &bound->launches[bound->n_launches - 1];
    qn__cuda_wide_args a;
    memcpy(&a, bound->args + launch->args, sizeof a);
    if (a.in_units && a.linears.rows <= QN__CUDA_FEW_UNITS_ROWS)
        choose_few_units(b->cuda, launch, &a);
    else if (a.in_units)
        choose_split_units(b->cuda, launch, &a);
    else if (a.linears.rows <= QN__CUDA_STREAM_ROWS)
        choose_stream(b->cuda, launch, &a);
    else if (a.by_rows && a.linears.rows <= QN__CUDA_SPLIT_ROWS)
        choose_split(b->cuda, launch, &a);
    else
        choose_tiles(b->cuda, launch, &a);
    memcpy(bound->args + launch->args, &a, sizeof a);
}

bool qn__cuda_is_wide(const qn__cuda *cuda, qn__cu_function function)
{
    return qn__cuda_is_of_weights(cuda, function, QN__CUDA_KERNEL_stream_1,
                                  QN__CUDA_KERNEL_split_224_pair) ||
           qn__cuda_is_of_unit_values(cuda, function);
}

/* ---- weights in units ------------------------------------------------------------------------ */

static int64_t padded_columns(int64_t k)
{
    return qn__cuda_parts(k, DEEP) * DEEP;
}

/* x as bf16 has rows of whole vectors. */
bool qn__cuda_can_unpack(const qn__cuda_binder *b, const qn__cuda_linears_args *linears)
{
    qn_device *device = b->binding->plan->device;
    qn_memory_stats memory = {.size = sizeof memory};
    size_t bytes = (size_t)(linears->n[0] * padded_columns(linears->k)) * 2;
    size_t room = qn__pool_room(device);
    return linears->k % 8 == 0 && qn_device_memory(device, &memory) == QN_OK &&
           (bytes <= room || bytes - room <= memory.workspace);
}

/* Takes the weight out of its units, behind `before` rows of others. */
static bool unpack_weight(qn__cuda_binder *b, const qn__call *call, qn__cu_function unpack,
                          int64_t before)
{
    const qn__operand *w = &call->operand[1];
    qn__cuda_unpack_args args = {
        .n = w->shape[0], .k = w->shape[1], .padded = padded_columns(w->shape[1]), .first = before};
    qn__cuda_want_unpacked(b, (size_t)((before + args.n) * args.padded) * 2);
    return qn__cuda_add(b, unpack, qn__cuda_parts(args.n, TILE) * (args.padded / DEEP) * 32, false,
                        &args, sizeof args, call, 2, (const uint8_t[]){1, QN__CUDA_UNPACKED});
}

/* The newest launch, which has this weight as its last one, reads it out of scratch memory: it is
 * taken there by a launch ahead of that. */
static bool unpack_ahead(qn__cuda_binder *b, const qn__call *call, qn__cu_function unpack)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *launch = &bound->launches[bound->n_launches - 1];
    qn__cuda_linears_args *args = qn__cuda_linears_of(b, launch);
    const int i = args->n[2] ? 2 : 1;
    args->stride[i] = padded_columns(args->k);
    bound->at[launch->first_at + 1 + 2 * i] = QN__CUDA_AT_UNPACKED;
    if (!unpack_weight(b, call, unpack, args->n[0] + (i == 2 ? args->n[1] : 0)))
        return false;
    launch = &bound->launches[bound->n_launches - 1];
    const qn__cuda_launch ahead = *launch;
    *launch = launch[-1];
    launch[-1] = ahead;
    return true;
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* Whether there are many rows, which may be summed otherwise than few. */
static bool goes_deep(const qn__cuda_linears_args *linears, const qn__call *call)
{
    const qn__linear_params *p = call->params;
    return p->products == QN_PRODUCTS_BY_ROWS && linears->rows > QN__CUDA_STREAM_ROWS;
}

/* Whether the newest launch is of such products; then it gets the weight, if it can. */
static bool join_wide(qn__cuda_binder *b, const qn__cuda_wide_args *args, const qn__call *call)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (!last || !qn__cuda_is_wide(b->cuda, last->function))
        return false;
    qn__cuda_wide_args before; /* which lies aligned */
    memcpy(&before, bound->args + last->args, sizeof before);
    return before.by_rows == args->by_rows && before.unpacked == args->unpacked &&
           before.in_units == args->in_units &&
           qn__cuda_join_linear(b, last->function, call, args->linears.rows, &last);
}

bool qn__cuda_join_wide(qn__cuda_binder *b, const qn__cuda_linears_args *linears,
                        const qn__call *call)
{
    const qn__cuda_wide_args args = {.linears = *linears, .by_rows = goes_deep(linears, call)};
    if (!join_wide(b, &args, call))
        return false;
    qn__cuda_choose_wide(b);
    return true;
}

bool qn__cuda_wide_linear(qn__cuda_binder *b, const qn__cuda_linears_args *linears,
                          const qn__call *call, qn__cu_function unpack, int in_units)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_wide_args args = {.linears = *linears,
                               .by_rows = goes_deep(linears, call),
                               .unpacked = unpack != NULL,
                               .in_units = in_units};
    if (join_wide(b, &args, call)) {
        if (unpack && !unpack_ahead(b, call, unpack))
            return false;
        qn__cuda_choose_wide(b);
        return true;
    }
    qn__cuda_grid grid = {1, THREADS, QN__CUDA_WIDE_SHARED};
    uint8_t operands[QN__CUDA_LINEAR_AT];
    qn__cuda_linear_operands(0, unpack ? QN__CUDA_UNPACKED : 1, operands);
    if (unpack)
        args.linears.stride[0] = padded_columns(linears->k);
    if (!qn__cuda_round_x(b, call, linears->rows, is_whole(linears), true, &operands[0]) ||
        (unpack && !unpack_weight(b, call, unpack, 0)) ||
        !qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_wide_192], &grid, &args, sizeof args,
                           call, sizeof operands, operands))
        return false;
    bound->launches[bound->n_launches - 1].fill = fill_maps;
    bound->x = call->first_operand;
    qn__cuda_choose_wide(b);
    return true;
}
