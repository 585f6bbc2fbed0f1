/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache. Which rows are whose, and which pages, is read on the device, so a step's
 * launches are the same whatever it runs. A cache in blocks is attended to as the floats that it is
 * first taken apart to (op_cache.c), and so is one whose keys are other floats than its values.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

_Static_assert((int)QN__KEY_GROUP == (int)QN__CUDA_KEY_GROUP && (int)QN__PAGE == (int)QN__CUDA_PAGE,
               "keys lie as the kernels read them");

enum { LONGEST = 2048 }; /* elements of a head: what the kernel's shared memory holds */

static bool takes_attend(const qn_array *node)
{
    const qn_array *k = node->in[1], *v = node->in[2];
    return qn__cuda_is_cache(k) && qn__cuda_is_cache(v) && node->in[0]->shape[3] <= LONGEST &&
           v->shape[3] <= LONGEST;
}

/* Keys and values of a head in a page. */
static int64_t page_bytes(const qn__cuda_attend_args *a)
{
    return QN__PAGE * (a->d + a->e) * (a->half ? 2 : 4);
}

/* Whether heads are such that pages are read 16 bytes at a time. */
static bool goes_by_pages(const qn__cuda *cuda, const qn__cuda_attend_args *a, const qn__operand *k,
                          const qn__operand *v)
{
    int64_t strides = a->k_page | a->k_head | a->v_page | a->v_head;
    return a->d % 16 == 0 && a->d <= QN__CUDA_WIDEST && a->e % 8 == 0 && a->e <= QN__CUDA_WIDEST &&
           strides % 8 == 0 && a->v_head == QN__PAGE * a->e && a->k_head == QN__PAGE * a->d &&
           k->offset % 16 == 0 && v->offset % 16 == 0 &&
           page_bytes(a) + QN__CUDA_STATIC_SHARED <= cuda->most_shared;
}

enum {
    PAGE_THREADS = 128,
    TILE_THREADS = 128,
    WARP = 32,
    ROWS_OF_WARP = 16,
    JOIN_COLUMNS = 16,
    FEW_BLOCKS = 8,         /* for a processor */
    SHARED_OF_BLOCK = 1024, /* bytes that each has beside its own */
    FEW_TOKENS = 64,
    FEW_PAGES = 64,
    NEAR_PAGES = 16,    /* that a cluster of 8 blocks has at once */
    FEW_PAGES_256 = 32, /* over heads of 256 */
    EACH = 24,          /* pages that a processor has at least of long caches */
    NARROW = 4,
    WIDE = 8,
    WIDE_THREADS = 384,
    STEP_THREADS = 256,
    KEY_BOX = 256,    /* rows of 16 keys, columns of values that are copied at once */
    KEY_COLUMNS = 64, /* of keys where a row is four dimensions of 16 */
    VALUE_COLUMNS = 64,
    MOST_PARTS = 64 << 20 /* bytes */
};

/* What the pages of every row of every head come to. */
static int64_t part_bytes(const qn__cuda_attend_args *a)
{
    return a->length * a->heads * a->width * (a->e + 2) * 4;
}

/* Whether no step writes tiles and table, and of the cache one, this step's rows. */
static bool is_early(const qn__cuda_binder *b, const qn__call *call)
{
    return qn__cuda_is_fixed(b, &call->operand[3]) && qn__cuda_is_fixed(b, &call->operand[4]) &&
           qn__cuda_is_appended(b, &call->operand[1]) && qn__cuda_is_appended(b, &call->operand[2]);
}

/* The floats that kernels get: those of the cache, or what it is taken apart to. */
static qn_dtype type_read(const qn__cuda_attend_args *a)
{
    return a->half ? (qn_dtype)a->half : QN_F32;
}

/* Kernels that take blocks apart themselves, from the first to the last. */
enum {
    FIRST_OF_BLOCKS = QN__CUDA_KERNEL_attend_q8_0_q8_0_64_of_1,
    LAST_OF_BLOCKS = QN__CUDA_KERNEL_attend_far_step_f16_q8_0_128_of_9
};

static bool is_of_blocks(int kernel)
{
    return kernel >= FIRST_OF_BLOCKS && kernel <= LAST_OF_BLOCKS;
}

/* Whether a kernel of attention reads pages that a launch ahead has taken apart. */
static bool reads_unpacked(const qn__call *call, const qn__cuda_attend_args *a, int kernel)
{
    return qn__cuda_is_unpacked(call, type_read(a)) && !is_of_blocks(kernel);
}

/* A kernel over a cache in bf16, or the same over one in f16. */
static int kernel_for(const qn__cuda_attend_args *a, int kernel)
{
    enum {
        NEAR = QN__CUDA_KERNEL_attend_one_64_f16 - QN__CUDA_KERNEL_attend_one_64,
        FAR = QN__CUDA_KERNEL_attend_far_64_of_4_f16 - QN__CUDA_KERNEL_attend_far_64_of_4
    };
    if (a->half != QN_F16 || kernel < QN__CUDA_KERNEL_attend_one_64 || is_of_blocks(kernel))
        return kernel;
    return kernel + (kernel < QN__CUDA_KERNEL_attend_far_64_of_4 ? NEAR : FAR);
}

static void operands_of(const qn__call *call, const qn__cuda_attend_args *args, uint8_t *operands)
{
    const uint8_t sinks = args->has_sinks ? 5 : QN__CUDA_NONE, y = (uint8_t)(call->n_operands - 1),
                  own[] = {0, 1, 2, 3, 4, sinks, y, QN__CUDA_SCRATCH};
    memset(operands, QN__CUDA_NONE, QN__CUDA_ATTEND_AT);
    memcpy(operands, own, sizeof own);
}

/* The launch, whose arguments of `size` bytes begin with these, and where pages have blocks of
 * their own the one that joins them. */
static bool add_attend(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_args *args,
                       size_t size, const qn__cuda_grid *grid, int kernel)
{
    uint8_t operands[QN__CUDA_ATTEND_AT];
    operands_of(call, args, operands);
    kernel = kernel_for(args, kernel);
    const int64_t rows = args->length * args->heads,
                  columns = qn__cuda_parts(args->e, JOIN_COLUMNS),
                  each = rows * columns <= FEW_BLOCKS * b->cuda->processors ? columns : 1;
    const qn__cuda_grid join = {rows * each, PAGE_THREADS, 0};
    if (args->split) { /* y, rounded, lies before the parts */
        args->parts_at = (args->length * args->heads * args->e / 2 + 63) & ~(int64_t)63;
        qn__cuda_want_scratch(b, (size_t)(args->parts_at * 4 + part_bytes(args)));
    }
    args->early = !reads_unpacked(call, args, kernel) && is_early(b, call);
    if (!qn__cuda_add_grid(b, b->cuda->kernels[kernel], grid, args, size, call, sizeof operands,
                           operands))
        return false;
    if (reads_unpacked(call, args, kernel))
        qn__cuda_find_unpacked(b, call, type_read(args));
    if (args->split && !qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_attend_join], &join,
                                          args, sizeof *args, call, sizeof operands, operands))
        return false;
    if (args->split && reads_unpacked(call, args, kernel))
        qn__cuda_find_unpacked(b, call, type_read(args));
    bool rounds = args->split || kernel >= QN__CUDA_KERNEL_attend_one_64;
    if (grid->blocks > 0 && args->y_stride[3] == 1 && rounds)
        qn__cuda_may_round(b, 6, 8, offsetof(qn__cuda_attend_args, turned), QN__CUDA_ROUNDS_EITHER);
    return true;
}

/* Of a block with up to 4 heads or, wide, 8. */
static int pages_kernel(int half, bool wide)
{
    return wide + (half == QN_F16    ? QN__CUDA_KERNEL_attend_f16
                   : half == QN_BF16 ? QN__CUDA_KERNEL_attend_bf16
                                     : QN__CUDA_KERNEL_attend_f32);
}

/* A block has a row of up to 4 or 8 heads; where there are few, and more than one page, a page of
 * that. */
static bool launch_pages(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_args *args)
{
    int64_t shared = args->heads / args->groups, most = shared > NARROW ? WIDE : NARROW;
    int64_t blocks = args->length * args->groups * ((shared + most - 1) / most);
    args->split = args->width > 1 && blocks < FEW_BLOCKS * b->cuda->processors &&
                  part_bytes(args) <= MOST_PARTS;
    qn__cuda_grid grid = {args->split ? blocks * args->width : blocks, PAGE_THREADS,
                          (unsigned)page_bytes(args)};
    return add_attend(b, call, args, sizeof *args, &grid, pages_kernel(args->half, most == WIDE));
}

/* Whether a block can have a tile of rows: on a cache in bf16. */
static bool goes_by_tiles(const qn__cuda_attend_args *a)
{
    return a->half && a->d == a->e && (a->d == 64 || a->d == QN__CUDA_WIDEST_HALF) &&
           a->tile * (a->heads / a->groups) <= QN__CUDA_TILE_ROWS;
}

/* A block has a tile and a key head; where there are few, it is a warp with 16 rows of that, and as
 * many as run at once share the pages. */
static bool launch_tiles(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_args *args)
{
    int64_t tokens = args->tile < args->length ? args->tile : args->length,
            rows = tokens * (args->heads / args->groups), blocks = args->tiles * args->groups,
            shared = QN__CUDA_TILE_SHARED * args->d,
            at_once = b->cuda->processors * (b->cuda->most_shared / (shared + SHARED_OF_BLOCK));
    bool split = args->width > 1 && blocks < b->cuda->processors && part_bytes(args) <= MOST_PARTS;
    if (split) {
        int64_t each = at_once / blocks;
        args->split = each < 1 ? 1 : each < args->width ? each : args->width;
    }
    qn__cuda_grid grid = {split ? blocks * qn__cuda_parts(rows, ROWS_OF_WARP) * args->split
                                : blocks,
                          split ? WARP : TILE_THREADS, (unsigned)shared};
    int kernel = args->d == 64 ? QN__CUDA_KERNEL_attend_half_64 : QN__CUDA_KERNEL_attend_half_128;
    return add_attend(b, call, args, sizeof *args, &grid, kernel + split);
}

/* Pages that a tile's rows see at most. */
static int64_t most_pages(const qn__cuda_attend_args *a)
{
    const int64_t seen = qn__cuda_parts(a->window + a->tile, QN__PAGE) + 1 + (a->keep > 0);
    return a->window && seen < a->width ? seen : a->width;
}

/* Whether the copy engine can bring the pages for tiles of rows (attend_wide.cu, attend_long.cu),
 * and each row's elements lie side by side. */
static bool goes_by_boxes(const qn__cuda *cuda, const qn__cuda_attend_args *a, const qn__operand *q)
{
    return qn__cuda_has_wide(cuda) && a->half && a->d == a->e &&
           (a->d == 64 || a->d == QN__CUDA_WIDEST_HALF || a->d == QN__CUDA_WIDEST) &&
           a->tile * (a->heads / a->groups) <= QN__CUDA_TILE_ROWS && a->q_stride[3] == 1 &&
           a->y_stride[3] == 1 && (a->q_stride[1] | a->q_stride[2]) % 4 == 0 &&
           q->offset % 16 == 0 && (a->y_stride[1] | a->y_stride[2]) % 2 == 0 &&
           a->k_page % (QN__PAGE * a->d) == 0 && a->v_page % a->d == 0 &&
           a->pages * a->k_page / QN__KEY_GROUP <= INT32_MAX && a->width * QN__PAGE <= INT32_MAX &&
           a->heads * a->length <= INT32_MAX;
}

/* Whether there are tiles for all processors, which rows fill. */
static bool is_wide(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    const int64_t blocks = a->tiles * a->groups * (a->d == QN__CUDA_WIDEST ? 2 : 1);
    return blocks >= cuda->processors && a->length > FEW_TOKENS &&
           2 * a->length >= a->tiles * a->tile && (a->scale > 0 || a->softcap > 0);
}

/* Whether there are few tiles with many pages: so many that they are worth a ring of all shared
 * memory and a launch that joins them, as was measured on an H100. Over heads of 256 the other way
 * is 8 processors alone. */
static bool is_long(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    const int64_t pages = most_pages(a), all = pages * a->tiles * a->groups;
    const bool one = a->length * (a->heads / a->groups) <= ROWS_OF_WARP * a->tiles;
    return a->tiles * a->groups < cuda->processors && part_bytes(a) <= MOST_PARTS &&
           (a->d == QN__CUDA_WIDEST ? pages > FEW_PAGES_256
                                    : one && pages > FEW_PAGES && all >= EACH * cuda->processors);
}

/* For the copy engine: `rows` of so many elements, which lie side by side in memory, in boxes of so
 * many rows by `columns`. */
static int describe_rows(qn__cuda *cuda, qn__cuda_map *to, void *data, int64_t rows,
                         int64_t elements, unsigned box, unsigned columns, int swizzled)
{
    qn__cuda_map map;
    const uint64_t shape[] = {(uint64_t)elements, (uint64_t)rows},
                   apart[] = {(uint64_t)elements * 2};
    const unsigned size[] = {columns, box}, step[] = {1, 1};
    int result = cuda->cu.tensor_map(&map, QN__CU_TENSOR_BF16, 2, data, shape, apart, size, step, 0,
                                     swizzled, QN__CU_TENSOR_ALONE, 0);
    memcpy(to, &map, sizeof map);
    return result;
}

static int describe_values(qn__cuda *cuda, const qn__cuda_attend_args *a, qn__cuda_map *values)
{
    return describe_rows(cuda, values, a->at[2], a->pages * a->v_page / a->d, a->d, QN__PAGE,
                         VALUE_COLUMNS, QN__CU_TENSOR_SWIZZLED);
}
static int fill_page_maps(qn__cuda *cuda, void *args)
{
    qn__cuda_attend_wide_args w;
    memcpy(&w, args, sizeof w);
    int result = describe_rows(cuda, &w.keys, w.a.at[1], w.a.pages * w.a.k_page / QN__KEY_GROUP,
                               QN__KEY_GROUP, KEY_BOX, QN__KEY_GROUP, QN__CU_TENSOR_SWIZZLED_32);
    if (result == 0)
        result = describe_values(cuda, &w.a, &w.values);
    memcpy(args, &w, sizeof w);
    return result;
}
/* Keys in rows of 128 bytes, which the copy engine takes one after the other as it does those of
 * 32. */
static int fill_far_maps(qn__cuda *cuda, void *args)
{
    qn__cuda_attend_far_args w;
    memcpy(&w, args, sizeof w);
    const qn__cuda_attend_args *a = &w.t.a;
    int result = describe_rows(cuda, &w.keys, a->at[1], a->pages * a->k_page / KEY_COLUMNS,
                               KEY_COLUMNS, (unsigned)a->d, KEY_COLUMNS, QN__CU_TENSOR_SWIZZLED);
    if (result == 0)
        result = describe_values(cuda, a, &w.values);
    memcpy(args, &w, sizeof w);
    return result;
}

/* A processor has a block: it has two tiles at a time, or one over heads of 256, or it has its
 * share of all pages. */
static bool launch_boxes(qn__cuda_binder *b, const qn__call *call, const qn__cuda_attend_args *args)
{
    const bool wide = is_wide(b->cuda, args), widest = args->d == QN__CUDA_WIDEST;
    const int size = args->d == 64 ? 0
                     : widest      ? 2
                                   : 1,
              kernel = (!wide               ? QN__CUDA_KERNEL_attend_long_64
                        : args->softcap > 0 ? QN__CUDA_KERNEL_attend_wide_64_capped
                                            : QN__CUDA_KERNEL_attend_wide_64) +
                       size;
    const int64_t work = qn__cuda_parts(args->tiles, widest ? 1 : 2) * args->groups,
                  most = b->cuda->processors;
    qn__cuda_attend_wide_args boxes = {.a = *args};
    qn__cuda_grid grid = {most, (widest ? 4 : 7) * WARP, QN__CUDA_ATTEND_WIDE_SHARED};
    if (wide) {
        grid.blocks = work < most ? work : most;
        grid.threads = WIDE_THREADS;
    }
    boxes.a.split = !wide;
    const uint32_t first = b->bound->n_launches;
    if (!add_attend(b, call, &boxes.a, sizeof boxes, &grid, kernel))
        return false;
    b->bound->launches[first].fill = fill_page_maps;
    return true;
}

/* ---- a token alone, in the launch that turns it and writes it to the cache --------------------
 */

/* Blocks of the cluster that each of so many key heads has, of as many tokens: so many that a
 * processor has one at most. 0: there are too many heads. */
static int64_t cluster_of(const qn__cuda *cuda, int64_t heads)
{
    return heads * 8 <= cuda->processors ? 8 : heads * 4 <= cuda->processors ? 4 : 0;
}

static bool is_token(const qn__cuda_binder *b, const qn__call *call, const qn__cuda_attend_args *a)
{
    return a->length == 1 && a->tiles == 1 && a->shared <= QN__CUDA_STEP_ROWS && is_early(b, call);
}

/* What attention's launch turns: its addresses, and whether its result must lie elsewhere than the
 * plan has it, since that is where others still read what they turn. */
typedef struct token_turn {
    uint32_t at[QN__CUDA_ATTEND_AT - QN__CUDA_TURN_QUERIES];
    bool moves;
} token_turn;

static bool add_token(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_turn_args *args,
                      size_t size, const qn__cuda_grid *grid, int kernel, const token_turn *turn)
{
    if (!add_attend(b, call, &args->a, size, grid, kernel))
        return false;
    qn__cuda_launch *last = &b->bound->launches[b->bound->n_launches - 1];
    last->moves = turn->moves;
    memcpy(b->bound->at + last->first_at + QN__CUDA_TURN_QUERIES, turn->at, sizeof turn->at);
    b->bound->at[last->first_at] = turn->at[0]; /* it reads no turned queries, which are nowhere */
    return true;
}

/* Whether there are so many pages that a ring of all shared memory brings them, and processors
 * enough for the memory's speed. */
static bool is_far(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    const int64_t cluster = cluster_of(cuda, a->groups);
    return a->d != QN__CUDA_WIDEST && most_pages(a) > NEAR_PAGES &&
           a->groups * cluster * 8 >= 3 * cuda->processors;
}

/* Clusters of nine blocks where they find room at once: a processor takes no more than 32 bytes a
 * clock in, so that 64 are too few for the fastest memory. */
static int64_t far_cluster(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    const int64_t heads = a->length * a->groups, cluster = cluster_of(cuda, heads);
    return cluster == 8 && heads <= cuda->clusters[QN__CUDA_FAR_BLOCKS] &&
                   a->shared <= QN__CUDA_FAR_ROWS
               ? QN__CUDA_FAR_BLOCKS
               : cluster;
}

/* Which of a size's kernels has such clusters. */
static int far_kernel(int64_t cluster)
{
    return (cluster >= 8) + (cluster > 8);
}

static bool launch_far(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_far_args *args,
                       const token_turn *turn)
{
    const int64_t cluster = far_cluster(b->cuda, &args->t.a);
    const int kernel = (args->t.a.d == 64 ? QN__CUDA_KERNEL_attend_far_64_of_4
                                          : QN__CUDA_KERNEL_attend_far_128_of_4) +
                       far_kernel(cluster);
    const qn__cuda_grid grid = {args->t.a.groups * cluster, QN__CUDA_FAR_THREADS,
                                QN__CUDA_FAR_SHARED};
    const uint32_t first = b->bound->n_launches;
    if (!add_token(b, call, &args->t, sizeof *args, &grid, kernel, turn))
        return false;
    b->bound->launches[first].fill = fill_far_maps;
    return true;
}

/* Whether attention on a cache in bf16 has heads for attend_one.cu and attend_step.cu. */
static bool has_one_launch(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    return qn__cuda_has_wide(cuda) && a->half && a->d == a->e &&
           (a->d == 64 || a->d == QN__CUDA_WIDEST_HALF || a->d == QN__CUDA_WIDEST);
}

static int by_head(const qn__cuda_attend_args *a, int of_64, int of_128, int of_256)
{
    return a->d == 64 ? of_64 : a->d == QN__CUDA_WIDEST_HALF ? of_128 : of_256;
}

/* A token's few pages: a cluster of nine blocks has as many as a window of 512 positions touches,
 * one each, which two groups of one block would keep waiting. */
static int64_t near_cluster(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    const int64_t cluster = cluster_of(cuda, a->groups),
                  seen = (a->window + QN__PAGE - 2) / QN__PAGE + 1 + (a->keep > 0),
                  pages = a->window && seen < a->width ? seen : a->width;
    return cluster == 8 && a->d == QN__CUDA_WIDEST && pages == QN__CUDA_FAR_BLOCKS &&
                   a->groups <= cuda->clusters[QN__CUDA_FAR_BLOCKS]
               ? QN__CUDA_FAR_BLOCKS
               : cluster;
}

static bool launch_step(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_turn_args *args,
                        const token_turn *turn)
{
    const int64_t cluster = near_cluster(b->cuda, &args->a);
    const qn__cuda_grid grid = {args->a.groups * cluster, STEP_THREADS,
                                (unsigned)QN__CUDA_STEP_SHARED(args->a.d, cluster)};
    const bool near = most_pages(&args->a) <= QN__CUDA_STEP_GROUPS * cluster;
    const int kernel =
        (near ? by_head(&args->a, QN__CUDA_KERNEL_attend_near_64_of_4,
                        QN__CUDA_KERNEL_attend_near_128_of_4, QN__CUDA_KERNEL_attend_near_256_of_4)
              : by_head(&args->a, QN__CUDA_KERNEL_attend_step_64_of_4,
                        QN__CUDA_KERNEL_attend_step_128_of_4,
                        QN__CUDA_KERNEL_attend_step_256_of_4)) +
        far_kernel(cluster);
    return add_token(b, call, args, sizeof *args, &grid, kernel, turn);
}

void qn__cuda_finish_attention(qn__cuda_binder *b)
{
    for (uint32_t i = 0; i < b->bound->n_launches; i++)
        if (b->bound->launches[i].moves)
            qn__cuda_move_result(b, i, QN__CUDA_ATTEND_RESULT);
    qn__cuda_binding *bound = b->bound;
    for (uint32_t i = 0; i + 1 < bound->n_launches; i++) {
        const qn__cuda_launch *launch = &bound->launches[i];
        if (qn__cuda_is_among(b->cuda, launch->function, QN__CUDA_KERNEL_attend_step_64_of_4,
                              QN__CUDA_KERNEL_attend_near_256_of_9) ||
            qn__cuda_is_among(b->cuda, launch->function, QN__CUDA_KERNEL_attend_step_64_of_4_f16,
                              QN__CUDA_KERNEL_attend_near_256_of_9_f16) ||
            qn__cuda_is_among(b->cuda, launch->function,
                              QN__CUDA_KERNEL_attend_step_q8_0_q8_0_64_of_4,
                              QN__CUDA_KERNEL_attend_step_f16_q8_0_256_of_8))
            ((qn__cuda_attend_turn_args *)(bound->args + launch->args))->next_holds_back =
                qn__cuda_is_of_weights(b->cuda, launch[1].function, QN__CUDA_KERNEL_stream_1,
                                       QN__CUDA_KERNEL_stream_1_pair);
    }
}

/* ---- few rows ---------------------------------------------------------------------------------
 */

/* Clusters of a few tokens, one for each eight query heads of a key head; and their blocks, so many
 * that a processor has one at most. 0: it would have more. */
static int64_t few_units(const qn__cuda_attend_args *a)
{
    return a->length * a->groups * qn__cuda_parts(a->shared, QN__CUDA_STEP_ROWS);
}
static int64_t few_cluster(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    const int64_t units = few_units(a), least = a->d == QN__CUDA_WIDEST ? 4 : 1;
    int64_t cluster = 8;
    while (cluster >= least && units * cluster > cuda->processors)
        cluster /= 2;
    return a->width > 1 && a->tiles <= QN__CUDA_STEP_TILES && cluster >= least ? cluster : 0;
}

/* By one of the kernels from `first` on, for heads of 64, 128 and 256 and their clusters. Arguments
 * are `size` bytes, blocks have `shared`. */
static bool launch_few(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_args *args,
                       size_t size, int shared, int first, int64_t cluster)
{
    enum { OF_128 = 4, OF_256 = 8 };
    qn__cuda_grid grid = {few_units(args) * cluster, STEP_THREADS, (unsigned)shared};
    if (grid.blocks <= b->cuda->processors && cluster == 1) /* else some would have several */
        grid.shared = (unsigned)qn__cuda_alone_shared(b->cuda);
    int kernel = first + by_head(args, 0, OF_128, OF_256);
    for (int64_t i = args->d == QN__CUDA_WIDEST ? 4 : 1; i < cluster; i *= 2)
        kernel++;
    return add_attend(b, call, args, size, &grid, kernel);
}

/* Whether one launch goes over pages and joins them: few rows, or tiles of one row, that have room
 * for few pages, and any number over the heads that no other kernel multiplies. */
static bool goes_in_one(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    return has_one_launch(cuda, a) &&
           (a->d == QN__CUDA_WIDEST ||
            ((a->length <= FEW_TOKENS || a->length == a->tiles) && most_pages(a) <= FEW_PAGES));
}

/* A token has clusters (attend_step.cu) or 16 rows of products a block (attend_one.cu), where there
 * are as many tiles as tokens all rows of a tile; where there is one token alone the launch does
 * what is between its layer and attention, too. */
static bool launch_one(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_args *args)
{
    qn__cuda_attend_turn_args turns = {.a = *args};
    token_turn turn;
    if (!few_cluster(b->cuda, args)) {
        int64_t most = args->tile < args->length ? args->tile : args->length,
                rows = (args->length == args->tiles ? 1 : most) * args->shared,
                blocks = args->tiles * args->groups;
        qn__cuda_grid grid = {blocks * qn__cuda_parts(rows, ROWS_OF_WARP), PAGE_THREADS,
                              (unsigned)QN__CUDA_ONE_SHARED(args->d)};
        return add_attend(b, call, args, sizeof *args, &grid,
                          by_head(args, QN__CUDA_KERNEL_attend_one_64,
                                  QN__CUDA_KERNEL_attend_one_128, QN__CUDA_KERNEL_attend_one_256));
    }
    if (is_token(b, call, args) && cluster_of(b->cuda, args->groups) &&
        qn__cuda_take_turn(b, call, &turns, turn.at, &turn.moves))
        return launch_step(b, call, &turns, &turn);
    const int64_t cluster = few_cluster(b->cuda, args);
    return launch_few(b, call, args, sizeof *args, (int)QN__CUDA_STEP_SHARED(args->d, cluster),
                      QN__CUDA_KERNEL_attend_few_64_of_1, cluster);
}

/* ---- few rows over a cache in blocks ----------------------------------------------------------
 */

/* Of keys and values in blocks that attention takes apart itself, or of such values beside keys as
 * they are: which of them; -1: no such. */
enum { KEYS_IN_BF16 = 3, KEYS_IN_F16 };

static int kind_of_blocks(const qn__operand *k, const qn__operand *v)
{
    const qn__layout_id q8 = QN__UNITS_OF(QN__Q8_0), q4 = QN__UNITS_OF(QN__Q4_0);
    const bool plain = !k->layout && k->stride[1] == QN__PAGE * k->shape[3] && k->offset % 16 == 0;
    if (plain && v->layout == q8 && qn__cuda_half((qn_dtype)k->dtype))
        return k->dtype == QN_F16 ? KEYS_IN_F16 : KEYS_IN_BF16;
    return k->layout == q8 && v->layout == q8   ? 0
           : k->layout == q8 && v->layout == q4 ? 1
           : k->layout == q4 && v->layout == q4 ? 2
                                                : -1;
}

/* The blocks that each token's clusters have there (attend_blocks.cu), of a few tokens or of one a
 * sequence; 0: it is for other kernels. */
static int64_t blocks_cluster(const qn__cuda *cuda, const qn__call *call,
                              const qn__cuda_attend_args *a)
{
    if (kind_of_blocks(&call->operand[1], &call->operand[2]) < 0 || !has_one_launch(cuda, a))
        return 0;
    const bool few = a->length <= FEW_TOKENS && a->tiles <= QN__CUDA_STEP_TILES;
    const int64_t cluster = few_cluster(cuda, a), least = a->d == QN__CUDA_WIDEST ? 4 : 1;
    return cluster ? cluster : few || a->length == a->tiles ? least : 0;
}

/* Where each has many pages (attend_far_blocks.cu): the blocks of its clusters. 0: it has not. */
static int64_t far_blocks_cluster(const qn__cuda *cuda, const qn__cuda_attend_args *a)
{
    const bool far = a->d != QN__CUDA_WIDEST && a->shared <= QN__CUDA_STEP_ROWS &&
                     most_pages(a) > NEAR_PAGES && a->tiles <= QN__CUDA_STEP_TILES;
    return far ? far_cluster(cuda, a) : 0;
}

/* Pages and heads of blocks are bytes apart there. A token alone is turned and written to the
 * cache, too. */
static bool launch_blocks(qn__cuda_binder *b, const qn__call *call,
                          const qn__cuda_attend_args *args)
{
    enum { FEW = 10, STEP = 6, FAR_SIZES = 2, FAR_CLUSTERS = 3 }; /* kernels of a kind */
    const qn__operand *k = &call->operand[1], *v = &call->operand[2];
    const int kind = kind_of_blocks(k, v);
    const int64_t far = far_blocks_cluster(b->cuda, args),
                  cluster = blocks_cluster(b->cuda, call, args);
    qn__cuda_attend_blocks_args blocks = {.t.a = *args};
    qn__cuda_attend_args *a = &blocks.t.a;
    token_turn turn;
    const bool halves = !k->layout;
    if (!halves) {
        a->k_head = (int64_t)qn__layout_bytes(k->layout, QN__PAGE, a->d);
        a->k_page = a->groups * a->k_head;
    }
    a->v_head = (int64_t)qn__layout_bytes(v->layout, QN__PAGE, a->e);
    a->v_page = a->groups * a->v_head;
    const int64_t step = cluster_of(b->cuda, a->groups);
    const bool turns = is_token(b, call, a) && step &&
                       (halves ? qn__cuda_take_values_turn(b, call, &blocks, turn.at, &turn.moves)
                               : qn__cuda_take_blocks_turn(b, call, &blocks, turn.at, &turn.moves));
    const int far_number = (kind * FAR_SIZES + (a->d != 64)) * FAR_CLUSTERS + far_kernel(far);
    qn__cuda_grid grid = {a->length * a->groups * far,
                          (unsigned)QN__CUDA_FAR_UNIT_THREADS(a->d, halves), QN__CUDA_FAR_SHARED};
    if (far && turns)
        return add_token(b, call, &blocks.t, sizeof blocks, &grid,
                         QN__CUDA_KERNEL_attend_far_step_q8_0_q8_0_64_of_4 + far_number, &turn);
    if (far)
        return add_attend(b, call, a, sizeof blocks, &grid,
                          QN__CUDA_KERNEL_attend_far_q8_0_q8_0_64_of_4 + far_number);
    if (!turns)
        return launch_few(b, call, a, sizeof blocks, (int)QN__CUDA_BLOCKS_SHARED(a->d, cluster),
                          QN__CUDA_KERNEL_attend_q8_0_q8_0_64_of_1 + FEW * kind, cluster);
    grid = (qn__cuda_grid){a->groups * step, STEP_THREADS,
                           (unsigned)QN__CUDA_STEP_UNITS_SHARED(a->d, step, halves)};
    return add_token(b, call, &blocks.t, sizeof blocks, &grid,
                     QN__CUDA_KERNEL_attend_step_q8_0_q8_0_64_of_4 + STEP * kind +
                         by_head(a, 0, 2, 4) + (step == 8),
                     &turn);
}

/* Whether a token's heads lie side by side, and tokens behind each other. */
static bool lies_by_tokens(const qn__cuda_attend_args *a, const int64_t stride[4])
{
    return stride[3] == 1 && stride[1] == a->d && (a->length == 1 || stride[2] == a->heads * a->d);
}

/* Whether the results of a launch over blocks may go elsewhere. Clusters that are done write their
 * heads while others read those of queries. *moves: only to where nothing else lies. */
static bool may_put(const qn__cuda_binder *b, const qn__call *call, const qn__cuda_launch *launch,
                    const qn__operand *to, bool *moves)
{
    const qn__operand *operands = b->binding->operands;
    const uint32_t *at = b->bound->at + launch->first_at;
    const qn__cuda_attend_blocks_args *args =
        (const qn__cuda_attend_blocks_args *)(b->bound->args + launch->args);
    *moves = false;
    if (at[QN__CUDA_TURN_QUERIES] != QN__CUDA_AT_NONE)
        return qn__cuda_may_put(b, call, to, at + QN__CUDA_TURN_QUERIES, args->t.query_head, moves);
    for (int i = 0; i < QN__CUDA_ATTEND_RESULT; i++)
        if (at[i] != QN__CUDA_AT_NONE && qn__cuda_overlap(to, &operands[at[i]]) &&
            (i || !qn__cuda_same_place(to, &operands[at[i]]) ||
             !lies_by_tokens(&args->t.a, args->t.a.q_stride)))
            return false;
    return true;
}

bool qn__cuda_turn_back(qn__cuda_binder *b, const qn__call *call, int64_t n, float scale)
{
    const qn__cuda_binding *bound = b->bound;
    const qn__operand *to = &call->operand[1];
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (!last || !qn__cuda_is_among(b->cuda, last->function, FIRST_OF_BLOCKS, LAST_OF_BLOCKS))
        return false;
    uint32_t *at = bound->at + last->first_at;
    qn__cuda_attend_blocks_args *args = (qn__cuda_attend_blocks_args *)(bound->args + last->args);
    const qn__cuda_attend_args *a = &args->t.a;
    const qn__operand *y = &b->binding->operands[at[QN__CUDA_ATTEND_RESULT]];
    bool moves;
    if (args->back != 0 || n != a->d || !lies_by_tokens(a, a->y_stride) ||
        !qn__cuda_same_place(y, &call->operand[0]) ||
        qn__cuda_elements(y) != qn__cuda_elements(to) || to->offset % 16 ||
        !qn__cuda_is_spent(b, call, y) || !may_put(b, call, last, to, &moves))
        return false;
    args->back = scale;
    last->moves = moves;
    at[QN__CUDA_ATTEND_RESULT] = call->first_operand + 1;
    return true;
}

/* What a->half is: of both arrays, of the one that is not in blocks, or bf16. Floats that differ
 * are read as f32. */
static int8_t half_read(const qn__operand *k, const qn__operand *v)
{
    if (k->layout && v->layout)
        return QN_BF16;
    if (!k->layout && !v->layout && k->dtype != v->dtype)
        return 0;
    return (int8_t)qn__cuda_half((qn_dtype)(k->layout ? v->dtype : k->dtype));
}

/* Of other heads a block has one query row of a tile. */
static bool launch_attend(qn__cuda_binder *b, const qn__call *call)
{
    const qn__attention_params *p = call->params;
    const qn__operand *q = &call->operand[0], *k = &call->operand[1], *v = &call->operand[2],
                      *tiles = &call->operand[3], *table = &call->operand[4],
                      *y = &call->operand[5 + p->has_sinks];
    qn__cuda_attend_args args = {.heads = q->shape[1],
                                 .groups = k->shape[1],
                                 .shared = q->shape[1] / k->shape[1],
                                 .length = q->shape[2],
                                 .d = q->shape[3],
                                 .e = v->shape[3],
                                 .k_page = k->stride[0],
                                 .k_head = k->stride[1],
                                 .v_page = v->stride[0],
                                 .v_head = v->stride[1],
                                 .pages = k->shape[0],
                                 .tiles = tiles->shape[0],
                                 .tile = qn__attend_tile(q->shape[1] / k->shape[1]),
                                 .sequences = table->shape[0],
                                 .width = table->shape[1],
                                 .window = p->window < INT32_MAX ? p->window : INT32_MAX,
                                 .keep = p->keep,
                                 .has_sinks = p->has_sinks,
                                 .scale = p->scale,
                                 .softcap = p->softcap};
    memcpy(args.q_stride, q->stride, sizeof args.q_stride);
    memcpy(args.y_stride, y->stride, sizeof args.y_stride);
    args.half = half_read(k, v);
    qn__operand unpacked[2];
    if (qn__cuda_is_unpacked(call, type_read(&args))) {
        if (!args.length || !args.tiles)
            return true;
        if (blocks_cluster(b->cuda, call, &args))
            return launch_blocks(b, call, &args);
        if (!qn__cuda_unpack_cache(b, call, type_read(&args), unpacked))
            return false;
        k = &unpacked[0];
        v = &unpacked[1];
        args.pages = k->shape[0];
        args.k_page = k->stride[0];
        args.k_head = k->stride[1];
        args.v_page = v->stride[0];
        args.v_head = v->stride[1];
    }
    qn__cuda_attend_far_args far = {.t.a = args};
    token_turn turn;
    if (goes_by_pages(b->cuda, &args, k, v) && goes_by_boxes(b->cuda, &args, q) &&
        is_far(b->cuda, &args) && is_token(b, call, &args) &&
        qn__cuda_take_turn(b, call, &far.t, turn.at, &turn.moves))
        return launch_far(b, call, &far, &turn);
    if (goes_by_pages(b->cuda, &args, k, v))
        return goes_by_boxes(b->cuda, &args, q) &&
                       (is_wide(b->cuda, &args) || is_long(b->cuda, &args))
                   ? launch_boxes(b, call, &args)
               : goes_in_one(b->cuda, &args) ? launch_one(b, call, &args)
               : goes_by_tiles(&args)        ? launch_tiles(b, call, &args)
                                             : launch_pages(b, call, &args);
    uint8_t operands[QN__CUDA_ATTEND_AT];
    operands_of(call, &args, operands);
    operands[7] = QN__CUDA_NONE;
    const int64_t rows = args.tiles * args.tile * args.heads;
    if (rows && !qn__cuda_add(b, b->cuda->kernels[QN__CUDA_KERNEL_attend_any], rows, true, &args,
                              sizeof args, call, QN__CUDA_ATTEND_AT, operands))
        return false;
    if (rows && reads_unpacked(call, &args, QN__CUDA_KERNEL_attend_any))
        qn__cuda_find_unpacked(b, call, type_read(&args));
    return true;
}

const qn__cuda_routine qn__cuda_attend = {QN__OP_ATTEND, takes_attend, launch_attend,
                                          1 << 1 | 1 << 2};
