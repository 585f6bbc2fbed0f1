/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products: strided batches, and linear layers on plain weights that do not stream. All are
 * products of the same kernels; what is decided here is which one, and how it may read.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

enum {
    FEW = QN__CUDA_FEW_ROWS,
    WARP = 32,
    START = 64 /* columns that a tile might have had in the time of its beginning and its end */
};

/* Whether an operand whose rows lie side by side along k, or whose columns do, is read 16 bytes at
 * a time: `length` rows or columns are so far apart. */
static bool reads_vectors(const qn__operand *o, const qn__cuda_view *lead, int64_t apart,
                          int64_t length)
{
    const int64_t vector = 16 / (int64_t)qn_dtype_size((qn_dtype)o->dtype);
    bool whole = o->offset % 16 == 0 && (length == 1 || apart % vector == 0);
    for (int i = 0; i < lead->ndim; i++)
        whole = whole && (lead->shape[i] == 1 || lead->stride[i] % vector == 0);
    return whole;
}

/* How the operands are read: along k, or across where neighbours are nearer there. */
static void find_neighbours(qn__cuda_product_args *args, const qn__operand *a, const qn__operand *b)
{
    const qn__cuda_product_args p = *args;
    args->a_along = p.m == 1 || p.a_column == 1 || (p.a_row != 1 && p.a_column <= p.a_row);
    args->b_along = p.n == 1 || p.b_row == 1 || (p.b_column != 1 && p.b_row <= p.b_column);
    args->a_vectors = (args->a_along ? p.a_column : p.a_row) == 1 &&
                      (args->a_along ? reads_vectors(a, &p.a, p.a_row, p.m)
                                     : reads_vectors(a, &p.a, p.a_column, p.k));
    args->b_vectors = (args->b_along ? p.b_row : p.b_column) == 1 &&
                      (args->b_along ? reads_vectors(b, &p.b, p.b_column, p.n)
                                     : reads_vectors(b, &p.b, p.b_row, p.k));
}

/* y^T = b^T a^T */
static qn__cuda_product_args turned_around(const qn__cuda_product_args *p)
{
    qn__cuda_product_args t = *p;
    t.a = p->b;
    t.b = p->a;
    t.m = p->n;
    t.n = p->m;
    t.a_row = p->b_column;
    t.a_column = p->b_row;
    t.b_row = p->a_column;
    t.b_column = p->a_row;
    t.y_row = p->y_column;
    t.y_column = p->y_row;
    return t;
}

/* Few rows of a: the kernel reads b once. */
static bool launch_few_rows(qn__cuda_binder *b, const qn__call *call, qn__cuda_product_args *args,
                            qn_dtype type, bool turned)
{
    const qn__cuda *cuda = b->cuda;
    const bool one = args->m == 1, along = args->b_along;
    const int kernel = (type == QN_F64   ? QN__CUDA_KERNEL_few_1_f64
                        : type == QN_F16 ? QN__CUDA_KERNEL_few_1_f16
                                         : QN__CUDA_KERNEL_few_1_f32) +
                       !one + 2 * !along;
    const int64_t shared = one ? QN__CUDA_FEW_SHARED(1) : QN__CUDA_FEW_SHARED(FEW),
                  spans = qn__cuda_parts(args->k, QN__CUDA_PRODUCT_SPAN),
                  team = one && along ? WARP / 2 : WARP;
    int64_t warps = one ? QN__CUDA_FEW_WARPS(1) : QN__CUDA_FEW_WARPS(FEW), of_span = 1;
    while (warps * shared > cuda->most_shared)
        warps /= 2;
    const int64_t teams = warps * WARP / team;
    while (of_span < teams && of_span < spans)
        of_span *= 2;
    args->a_vectors = args->a_vectors && args->a_along;
    const int64_t tiles = qn__cuda_parts(args->n, teams / of_span * team) * args->batch;
    const qn__cuda_grid grid = {tiles < cuda->processors ? tiles : cuda->processors,
                                (unsigned)(warps * WARP), (unsigned)(warps * shared)};
    return qn__cuda_add_grid(b, cuda->kernels[kernel], &grid, args, sizeof *args, call, 3,
                             turned ? (const uint8_t[]){1, 0, 2} : (const uint8_t[]){0, 1, 2});
}

/* Kernels of tiles: what one tile takes of a multiprocessor with 4096 columns, alone or as one of
 * two, in us of an H200; groups of threads that have the spans in turn. */
typedef struct tile_kind {
    int size, groups;
    double alone, beside;
} tile_kind;

static double time_of_tiles(const qn__cuda *cuda, const tile_kind *kind,
                            const qn__cuda_product_args *args, int64_t *tiles)
{
    enum { SPAN = QN__CUDA_PRODUCT_SPAN };
    *tiles =
        qn__cuda_parts(args->m, kind->size) * qn__cuda_parts(args->n, kind->size) * args->batch;
    const int64_t each = qn__cuda_parts(*tiles, cuda->processors), turn = SPAN * kind->groups,
                  turns = args->k / turn, left = args->k % turn;
    const int64_t columns = turns * turn + (left < SPAN ? left : SPAN) * kind->groups;
    return (START + (double)columns) *
           ((double)(each / 2) * 2 * kind->beside + (double)(each % 2) * kind->alone);
}

/* The kernel whose tiles take the least time. */
static bool launch_in_tiles(qn__cuda_binder *b, const qn__call *call,
                            const qn__cuda_product_args *args, qn_dtype type)
{
    static const tile_kind of_f32[] = {{128, 1, 605, 525}, {64, 4, 217, 176}, {32, 8, 75, 65}},
                           of_f64[] = {{64, 1, 400, 346}, {32, 4, 130, 115}};
    const qn__cuda *cuda = b->cuda;
    const bool wide = type == QN_F64;
    const tile_kind *kinds = wide ? of_f64 : of_f32;
    const int first = wide              ? QN__CUDA_KERNEL_product_64_f64
                      : type == QN_F16  ? QN__CUDA_KERNEL_product_128_f16
                      : type == QN_BF16 ? QN__CUDA_KERNEL_product_128_bf16
                                        : QN__CUDA_KERNEL_product_128_f32;
    int best = 0;
    int64_t blocks, tiles;
    double least = time_of_tiles(cuda, &kinds[0], args, &blocks);
    for (int i = 1; i < (wide ? 2 : 3); i++) {
        const double time = time_of_tiles(cuda, &kinds[i], args, &tiles);
        if (time < least) {
            least = time;
            best = i;
            blocks = tiles;
        }
    }
    const qn__cuda_grid grid = {blocks < QN__CUDA_BLOCKS ? blocks : QN__CUDA_BLOCKS,
                                QN__CUDA_THREADS, QN__CUDA_PRODUCT_SHARED};
    return qn__cuda_add_grid(b, cuda->kernels[first + best], &grid, args, sizeof *args, call, 3,
                             (const uint8_t[]){0, 1, 2});
}

/* The product of operands 0 and 1; what the arguments lack is how they are read. */
static bool launch_product(qn__cuda_binder *b, const qn__call *call, qn__cuda_product_args *args)
{
    const qn__operand *l = &call->operand[0], *r = &call->operand[1], *y = &call->operand[2];
    const qn_dtype type = (qn_dtype)r->dtype;
    args->y_row = args->n;
    args->y_column = 1;
    if (!args->batch || !args->m || !args->n)
        return true;
    find_neighbours(args, l, r);
    const bool reads =
        !args->rounded && (type == QN_F32 || type == QN_F64 || (type == QN_F16 && args->b_vectors));
    if (args->m <= FEW && reads)
        return launch_few_rows(b, call, args, type, false);
    if (args->n <= FEW && type == (qn_dtype)l->dtype) {
        qn__cuda_product_args turned = turned_around(args);
        find_neighbours(&turned, r, l);
        return launch_few_rows(b, call, &turned, type, true);
    }
    args->y_vectors = y->offset % 16 == 0 && args->n % 4 == 0;
    return launch_in_tiles(b, call, args, type);
}

static bool launch_matmul(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *l = &call->operand[0], *r = &call->operand[1], *y = &call->operand[2];
    int m = y->ndim - 2;
    qn__cuda_product_args args = {.a = qn__cuda_view_of(l, 0, m),
                                  .b = qn__cuda_view_of(r, 0, m),
                                  .batch = 1,
                                  .m = y->shape[m],
                                  .n = y->shape[m + 1],
                                  .k = l->shape[m + 1],
                                  .a_row = l->stride[m],
                                  .a_column = l->stride[m + 1],
                                  .b_row = r->stride[m],
                                  .b_column = r->stride[m + 1]};
    for (int i = 0; i < m; i++)
        args.batch *= y->shape[i];
    return launch_product(b, call, &args);
}

const qn__cuda_routine qn__cuda_matmul = {QN__OP_MATMUL, NULL, launch_matmul, 0};

/* x is f32 with weights in f32, bf16, f16 or units, or all is f64. */
static bool takes_linear(const qn_array *node)
{
    if (node->in[1]->layout)
        return qn__cuda_takes_units(node);
    qn_dtype w = (qn_dtype)node->in[1]->dtype;
    const qn__linear_params *p = node->params;
    if (node->dtype == QN_F64)
        return w == QN_F64;
    return node->dtype == QN_F32 &&
           (w == QN_BF16  ? p->products == QN_PRODUCTS_BF16 || p->products == QN_PRODUCTS_BY_ROWS
            : w == QN_F16 ? p->products == QN_PRODUCTS_F16 || p->products == QN_PRODUCTS_BY_ROWS ||
                                p->products == QN_PRODUCTS_F32
                          : w == QN_F32 && p->products == QN_PRODUCTS_F32);
}

/* How x is rounded for a weight in bf16, or in f16 if the products are of that. */
static int rounded_for(const qn__call *call)
{
    const qn__linear_params *p = call->params;
    return p->products == QN_PRODUCTS_F32      ? QN__CUDA_UNROUNDED
           : call->operand[1].dtype == QN_BF16 ? QN__CUDA_TO_BF16
           : call->operand[1].dtype == QN_F16  ? QN__CUDA_TO_F16
                                               : QN__CUDA_UNROUNDED;
}

/* y = x w^T */
static bool launch_linear(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0], *w = &call->operand[1];
    if (w->layout)
        return qn__cuda_linear_units(b, call);
    qn__cuda_product_args args = {.batch = 1,
                                  .m = qn__cuda_rows(x),
                                  .n = w->shape[0],
                                  .k = w->shape[1],
                                  .a_row = w->shape[1],
                                  .a_column = 1,
                                  .b_row = w->stride[1],
                                  .b_column = w->stride[0],
                                  .rounded = (int8_t)rounded_for(call)};
    if (args.m && args.rounded && qn__cuda_streams(x, w))
        return qn__cuda_stream_linear(b, call);
    return launch_product(b, call, &args);
}

const qn__cuda_routine qn__cuda_linear = {QN__OP_LINEAR, takes_linear, launch_linear, 1 << 1};

/* y = g w; g is not rounded. */
static bool launch_linear_back(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *g = &call->operand[0], *w = &call->operand[1];
    qn__cuda_product_args args = {.batch = 1,
                                  .m = qn__cuda_rows(g),
                                  .n = w->shape[1],
                                  .k = w->shape[0],
                                  .a_row = w->shape[0],
                                  .a_column = 1,
                                  .b_row = w->stride[0],
                                  .b_column = w->stride[1]};
    return launch_product(b, call, &args);
}

const qn__cuda_routine qn__cuda_linear_back = {QN__OP_LINEAR_BACK, takes_linear, launch_linear_back,
                                               0};
