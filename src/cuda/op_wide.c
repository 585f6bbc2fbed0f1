/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16 for sm_90, with few rows of x as stream.cu has them and with
 * many as wide.cu has them: how they are launched.
 */
#include "cuda/cuda.h"

enum {
    ROWS = QN__CUDA_WIDE_ROWS,
    DEEP = 64,
    THREADS = 384,
    TILE = 16,
    SINGLE_SLOTS = 3,
    MOST_SLOTS = 16,
    SMALL_TILES = 4096, /* columns of a block's tiles */
    EARLY = 72 << 10,   /* bytes asked for before the launches ahead have ended, by many rows */
    OF_SPAN = QN__CUDA_SPAN / DEEP,
    ROW_BYTES = 2 * DEEP,
    ALIGNED = 1024
};

/* Of the tiles that there are kernels for, in the order of kernels.def. */
static const int64_t widths[] = {192, 128, 96};

bool qn__cuda_has_wide(const qn__cuda *cuda)
{
    return cuda->arch == 90;
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
                                     size, step, 0, QN__CU_TENSOR_SWIZZLED, QN__CU_TENSOR_FETCH, 0);
    memcpy(to, &map, sizeof map);
    return result;
}

static int fill_maps(qn__cuda *cuda, void *args)
{
    qn__cuda_wide_args a;
    memcpy(&a, args, sizeof a);
    const qn__cuda_linears_args *l = &a.linears;
    int result =
        describe(cuda, &a.map[QN__CUDA_LINEARS], l->at[0], l->rows, l->k, l->k, a.x_box, a.deep);
    for (int i = 0; i < QN__CUDA_LINEARS && result == 0; i++)
        if (l->n[i])
            result = describe(cuda, &a.map[i], l->at[1 + 2 * i], l->n[i], l->k, l->stride[i], a.box,
                              a.deep);
    memcpy(args, &a, sizeof a);
    return result;
}

/* Tiles of `width` rows of the weights, for each tile of rows of x. */
static int64_t tiles_of(const qn__cuda_linears_args *l, int64_t x_tiles, int64_t width)
{
    int64_t tiles = l->gated ? qn__cuda_parts(l->n[0], width / 2) : qn__cuda_linear_tiles(l, width);
    return tiles * x_tiles;
}

/* What it takes with tiles of this width: times a processor has one, and what one loads. */
static int64_t cost_of(const qn__cuda *cuda, const qn__cuda_linears_args *l, int64_t x_tiles,
                       int64_t width)
{
    return qn__cuda_parts(tiles_of(l, x_tiles, width), cuda->processors) * (ROWS + width);
}

/* Few rows (stream.cu): each processor has a block, which has its tiles at once, up to 16 of them.
 * What is best was measured on an H200 for the shapes of Llama-1B and 8B: stages of about the same
 * bytes, pieces as long as that leaves; small layers so that the next one's blocks fit beside them.
 */
static void choose_stream(const qn__cuda *cuda, qn__cuda_launch *launch, qn__cuda_wide_args *a)
{
    const qn__cuda_linears_args *l = &a->linears;
    int64_t unit = l->gated ? 2 : 1, all = qn__cuda_linear_tiles(l, TILE) / unit,
            blocks = all < cuda->processors ? all : cuda->processors,
            each = qn__cuda_parts(all, blocks) * unit, x_rows = 8;
    int kernel = 0;
    for (; x_rows < l->rows; x_rows *= 2)
        kernel += 2;
    bool pair = l->gated || each > SINGLE_SLOTS;
    a->slots = qn__cuda_parts(each, qn__cuda_parts(each, MOST_SLOTS));
    a->slots += pair && a->slots % 2;
    a->deep = a->slots > 8 ? 1 : a->slots > 4 ? 2 : 4;
    a->box = TILE;
    a->x_box = x_rows;
    int64_t groups = a->slots / (1 + pair), of_span = OF_SPAN / a->deep,
            stage = a->deep * (a->slots * TILE + x_rows) * ROW_BYTES,
            run = a->slots * x_rows * TILE * 4,
            steps = qn__cuda_parts(l->k, QN__CUDA_SPAN) * of_span * qn__cuda_parts(each, a->slots);
    bool small = x_rows <= 16 && (each == 1 || each * l->k <= SMALL_TILES);
    a->ring =
        ((small ? QN__CUDA_STREAM_SHARED / 2 : QN__CUDA_STREAM_SHARED) - run - ALIGNED) / stage;
    a->ring = a->ring < steps ? a->ring : steps;
    a->ring = a->ring < QN__CUDA_STREAM_RING ? a->ring : QN__CUDA_STREAM_RING;
    int64_t early = x_rows > 16 ? EARLY / (a->deep * a->slots * TILE * ROW_BYTES) : a->ring;
    a->early = early < 1 ? 1 : early;
    a->apart = QN__CUDA_STREAM_WARPS / groups;
    while (a->apart > 1 && a->apart * of_span > a->ring)
        a->apart--;
    launch->blocks = (unsigned)blocks;
    launch->threads = 32 * (QN__CUDA_STREAM_WARPS + 1);
    launch->shared = (unsigned)(a->ring * stage + run + ALIGNED);
    launch->function = cuda->kernels[QN__CUDA_KERNEL_stream_8 + kernel + pair];
}

/* Chooses the kernel of the newest launch by the sizes of all its weights. */
void qn__cuda_choose_wide(qn__cuda_binder *b)
{
    const qn__cuda *cuda = b->cuda;
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *launch = &bound->launches[bound->n_launches - 1];
    qn__cuda_wide_args a;
    memcpy(&a, bound->args + launch->args, sizeof a);
    const qn__cuda_linears_args *l = &a.linears;
    if (l->rows <= QN__CUDA_STREAM_ROWS) {
        choose_stream(cuda, launch, &a);
        memcpy(bound->args + launch->args, &a, sizeof a);
        return;
    }
    int64_t x_tiles = qn__cuda_parts(l->rows, ROWS), blocks = cuda->processors;
    int best = 0;
    for (int i = 1; i < 3; i++)
        if (cost_of(cuda, l, x_tiles, widths[i]) < cost_of(cuda, l, x_tiles, widths[best]))
            best = i;
    int64_t width = widths[best], tiles = tiles_of(l, x_tiles, width);
    a.box = l->gated ? width / 2 : width;
    a.x_box = ROWS;
    memcpy(bound->args + launch->args, &a, sizeof a);
    launch->blocks = (unsigned)(tiles < blocks ? tiles : blocks);
    launch->function = cuda->kernels[QN__CUDA_KERNEL_wide_192 + best];
}

bool qn__cuda_is_wide(const qn__cuda *cuda, qn__cu_function function)
{
    for (int i = QN__CUDA_KERNEL_stream_8; i <= QN__CUDA_KERNEL_wide_96; i++)
        if (function == cuda->kernels[i])
            return true;
    return false;
}

bool qn__cuda_wide_linear(qn__cuda_binder *b, const qn__cuda_linears_args *linears,
                          const qn__call *call)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (last && qn__cuda_is_wide(b->cuda, last->function) &&
        qn__cuda_join_linear(b, last->function, call, linears->rows, &last)) {
        qn__cuda_choose_wide(b);
        return true;
    }
    qn__cuda_wide_args args = {.linears = *linears};
    qn__cuda_grid grid = {1, THREADS, QN__CUDA_WIDE_SHARED};
    const uint8_t none = QN__CUDA_NONE;
    uint8_t operands[] = {0, 1, 2, 1, 2, 1, 2, none, none};
    if (!qn__cuda_round_x(b, call, linears->rows, false, true, &operands[0]) ||
        !qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_wide_192], &grid, &args, sizeof args,
                           call, sizeof operands, operands))
        return false;
    bound->launches[bound->n_launches - 1].fill = fill_maps;
    bound->x = call->first_operand;
    qn__cuda_choose_wide(b);
    return true;
}
