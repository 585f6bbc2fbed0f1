/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on ternary weights (i2_s) whose x has a scale a row, with one row of x as
 * ternary.cu has them and with several as ternary_wide.cu has them: how they are launched.
 */
#include "cuda/cuda.h"

enum {
    TILE = 16,
    COLUMNS = QN__CUDA_TERNARY_DEEP, /* of a unit */
    UNIT = 512,
    WIDEST = 65536,    /* columns whose sums of bytes by codes are exact in f32 */
    ROW_BEHIND = 2048, /* what it has behind bytes of x: sums, and what is read for nothing */
    THREADS = 384,
    PER_TILE = 4096 /* what a tile of several rows costs besides its results, in results */
};

static bool is_ternary_row(const qn__cuda *cuda, const qn__call *call,
                           const qn__cuda_linears_args *args)
{
    return args->rows == 1 && cuda->arch >= 90 && args->k <= QN__CUDA_TERNARY_COLUMNS &&
           call->operand[0].offset % 16 == 0;
}

static bool is_ternary_wide(const qn__cuda *cuda, qn__cu_function function)
{
    return qn__cuda_is_among(cuda, function, QN__CUDA_KERNEL_ternary_wide_64_by_32,
                             QN__CUDA_KERNEL_ternary_wide_256_by_128);
}

bool qn__cuda_is_ternary_row(const qn__cuda *cuda, qn__cu_function function)
{
    return qn__cuda_is_among(cuda, function, QN__CUDA_KERNEL_ternary_1_of_1,
                             QN__CUDA_KERNEL_ternary_1_of_8);
}

bool qn__cuda_is_ternary(const qn__cuda *cuda, qn__cu_function function)
{
    return qn__cuda_is_ternary_row(cuda, function) || is_ternary_wide(cuda, function);
}

bool qn__cuda_goes_ternary(const qn__cuda *cuda, const qn__call *call,
                           const qn__cuda_linears_args *args)
{
    return args->whole && call->operand[1].layout == QN__UNITS_OF(QN__I2_S) &&
           (is_ternary_row(cuda, call, args) ||
            (args->rows > 1 && args->k > COLUMNS && args->k <= WIDEST && qn__cuda_has_wide(cuda)));
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Quads of x that a thread has: a kernel for each number. */
static int64_t row_quads(const qn__cuda_linears_args *args)
{
    return qn__cuda_parts(args->k, 4 * QN__CUDA_THREADS);
}

/* Blocks and their shared memory: one of a multiprocessor, which makes x bytes once for all of its
 * tiles and has a place beside it for one of the next launch's; more where tiles are too many to
 * be asked for at once. A tile comes with its sums. */
static qn__cuda_grid ternary_row_grid(const qn__cuda *cuda, const qn__cuda_linears_args *args)
{
    int64_t pair = args->gated ? 2 : 1, tiles = qn__cuda_linear_tiles(args, TILE) / pair,
            bytes = args->k / 4 * TILE + TILE * QN__CUDA_THREADS / 32 * 4,
            beside = row_quads(args) * 4 * QN__CUDA_THREADS + ROW_BEHIND,
            most = (QN__CUDA_TERNARY_SHARED - beside) / (bytes * pair);
    most = most > QN__CUDA_TERNARY_TILES / pair ? QN__CUDA_TERNARY_TILES / pair : most;
    int64_t least = qn__cuda_parts(tiles, most < 1 ? 1 : most),
            blocks = tiles < cuda->processors ? tiles : cuda->processors;
    blocks = blocks < least ? least : blocks;
    return (qn__cuda_grid){blocks, QN__CUDA_THREADS,
                           (unsigned)(qn__cuda_parts(tiles, blocks) * pair * bytes + beside)};
}

static bool linear_ternary_row(qn__cuda_binder *b, const qn__call *call,
                               const qn__cuda_linears_args *args)
{
    qn__cu_function function =
        b->cuda->kernels[QN__CUDA_KERNEL_ternary_1_of_1 + row_quads(args) - 1];
    qn__cuda_launch *last;
    if (qn__cuda_join_linear(b, function, call, 1, &last)) {
        qn__cuda_ternary_again(b, last);
        return true;
    }
    qn__cuda_grid grid = ternary_row_grid(b->cuda, args);
    return qn__cuda_add_linear(b, function, &grid, args, call, 0);
}

/* ---- several rows ---------------------------------------------------------------------------- */

static int64_t padded_to_spans(int64_t k)
{
    return qn__cuda_parts(k, QN__CUDA_SPAN) * QN__CUDA_SPAN;
}

/* For the copy engine, which knows pairs of bytes. */
static int describe_bytes(qn__cuda *cuda, qn__cuda_map *to, char *data, int64_t rows, int64_t bytes,
                          int64_t stride, const unsigned box[2], int how)
{
    qn__cuda_map map;
    const uint64_t shape[] = {(uint64_t)bytes / 2, (uint64_t)rows}, apart[] = {(uint64_t)stride};
    const unsigned size[] = {box[0] / 2, box[1]}, step[] = {1, 1};
    int result = cuda->cu.tensor_map(&map, QN__CU_TENSOR_BF16, 2, data, shape, apart, size, step, 0,
                                     how, QN__CU_TENSOR_ALONE, 0);
    memcpy(to, &map, sizeof map);
    return result;
}

static int fill_ternary_maps(qn__cuda *cuda, void *args)
{
    qn__cuda_ternary_args a;
    memcpy(&a, args, sizeof a);
    const qn__cuda_linears_args *l = &a.linears;
    const unsigned of_x[] = {COLUMNS, (unsigned)a.x_box}, of_units[] = {UNIT, (unsigned)a.box};
    const int64_t row = qn__cuda_parts(l->k, COLUMNS) * UNIT;
    int result =
        describe_bytes(cuda, &a.map[QN__CUDA_LINEARS], (char *)l->at[0] + QN__CUDA_MADE_HEAD,
                       l->rows, padded_to_spans(l->k), l->made, of_x, QN__CU_TENSOR_SWIZZLED);
    for (int i = 0; i < QN__CUDA_LINEARS && result == 0; i++)
        if (l->n[i])
            result = describe_bytes(cuda, &a.map[i], l->at[1 + 2 * i],
                                    qn__cuda_parts(l->n[i], TILE), row, row, of_units, 0);
    memcpy(args, &a, sizeof a);
    return result;
}

/* Tiles that leave the fewest processors idle, of so few rows of x only where that has no more; of
 * gated weights they have half of their rows of either. */
static void choose_ternary_tiles(const qn__cuda *cuda, qn__cuda_launch *launch,
                                 qn__cuda_ternary_args *args)
{
    enum { FIRST = QN__CUDA_KERNEL_ternary_wide_64_by_32, WIDTHS = 4, APART = 32 };
    const qn__cuda_linears_args *l = &args->linears;
    const int64_t narrowest = l->rows <= 32   ? 32
                              : l->rows <= 64 ? 64
                                              : 96,
                  widest = l->rows <= 64 ? narrowest : 128;
    int64_t least = INT64_MAX;
    for (int i = l->gated ? WIDTHS : 0; i < 2 * WIDTHS; i++) {
        const int64_t x_rows = APART * (1 + i % WIDTHS), half = x_rows <= 64 ? 64 : 128,
                      rows = half * (1 + i / WIDTHS),
                      tiles = qn__cuda_parts(l->rows, x_rows) *
                              (l->gated ? qn__cuda_parts(l->n[0], half)
                                        : qn__cuda_linear_tiles(l, rows)),
                      cost = qn__cuda_parts(tiles, cuda->processors) * (rows * x_rows + PER_TILE);
        if (x_rows < narrowest || x_rows > widest || cost > least)
            continue;
        least = cost;
        args->box = half / TILE;
        args->x_box = x_rows;
        launch->blocks = (unsigned)(tiles < cuda->processors ? tiles : cuda->processors);
        launch->shared = (unsigned)QN__CUDA_TERNARY_WIDE_SHARED(rows, x_rows);
        launch->function = cuda->kernels[FIRST + i];
    }
}

/* x as bytes in their order in scratch memory, by the launch that makes x or one of its own. */
static bool make_ordered_bytes(qn__cuda_binder *b, const qn__call *call,
                               qn__cuda_linears_args *args)
{
    const qn__cuda_byte_form form = {.padded = padded_to_spans(args->k)};
    const qn__cuda_row_bytes_args bytes = {.rows = args->rows, .columns = args->k, .form = form};
    args->made = QN__CUDA_ORDERED_ROW(form.padded);
    qn__cuda_want_scratch(b, (size_t)args->rows * (size_t)args->made);
    return qn__cuda_bytes_of_x(b, call, &form) ||
           QN__CUDA_ADD(b, row_bytes, args->rows, true, bytes, call, 0, QN__CUDA_SCRATCH);
}

static bool linear_ternary_wide(qn__cuda_binder *b, const qn__call *call,
                                const qn__cuda_linears_args *args)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (last && is_ternary_wide(b->cuda, last->function) &&
        qn__cuda_join_linear(b, last->function, call, args->rows, &last)) {
        qn__cuda_ternary_again(b, last);
        return true;
    }
    qn__cuda_ternary_args wide = {.linears = *args};
    uint8_t operands[QN__CUDA_LINEAR_AT];
    const qn__cuda_grid grid = {1, THREADS, 0};
    qn__cuda_linear_operands(QN__CUDA_SCRATCH, 1, operands);
    if (!make_ordered_bytes(b, call, &wide.linears) ||
        !qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_ternary_wide_256_by_128], &grid,
                           &wide, sizeof wide, call, sizeof operands, operands))
        return false;
    last = &bound->launches[bound->n_launches - 1];
    last->fill = fill_ternary_maps;
    bound->x = call->first_operand;
    qn__cuda_ternary_again(b, last);
    return true;
}

/* ---- either ---------------------------------------------------------------------------------- */

bool qn__cuda_linear_ternary(qn__cuda_binder *b, const qn__call *call,
                             const qn__cuda_linears_args *args)
{
    return args->rows == 1 ? linear_ternary_row(b, call, args) : linear_ternary_wide(b, call, args);
}

void qn__cuda_ternary_again(const qn__cuda_binder *b, qn__cuda_launch *launch)
{
    char *args = b->bound->args + launch->args;
    if (is_ternary_wide(b->cuda, launch->function)) {
        qn__cuda_ternary_args wide;
        memcpy(&wide, args, sizeof wide);
        choose_ternary_tiles(b->cuda, launch, &wide);
        memcpy(args, &wide, sizeof wide);
        return;
    }
    qn__cuda_grid grid = ternary_row_grid(b->cuda, (const qn__cuda_linears_args *)args);
    launch->blocks = (unsigned)grid.blocks;
    launch->shared = grid.shared;
}
