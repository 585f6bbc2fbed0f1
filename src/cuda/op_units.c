/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised weights, which stay in their units: which layouts there are kernels for, linear layers
 * and rows.
 */
#include "base/error.h"
#include "core/dtype.h"
#include "cuda/cuda.h"

/* The first kernel of each layout; the others follow it in kernels.def. */
enum { BYTES_8, BYTES_32, VALUES_1, VALUES_4, ROWS };

static const uint8_t kernels[QN__LAYOUT_COUNT] = {
#define CUDA_UNITS(id, name) [QN__UNITS_OF(QN__##id)] = QN__CUDA_KERNEL_bytes_8_##name,
#include "cuda/units.def"
#undef CUDA_UNITS
};

bool qn__cuda_has_units(qn__layout_id layout)
{
    return layout < QN__LAYOUT_COUNT && kernels[layout];
}

bool qn__cuda_takes_units(const qn_array *node)
{
    const qn__linear_params *p = node->params;
    return node->dtype == QN_F32 && qn__cuda_has_units(node->in[1]->layout) &&
           (p->products == QN_PRODUCTS_INT8 || p->products == QN_PRODUCTS_F32);
}

enum { TILE = 16, MOST_WARPS = 16, MOST_THREADS = 1024 /* of a multiprocessor */ };

/* What a block with `width` rows of x needs of shared memory; 0: more than there is. *warps gets
 * fewer until it fits. */
static int64_t shared_of(const qn__cuda *cuda, const qn__layout *l, int64_t k, bool bytes,
                         int64_t width, int64_t *warps)
{
    int64_t spans = qn__cuda_parts(k, QN__CUDA_SPAN), padded = spans * QN__CUDA_SPAN;
    int64_t ring = QN__CUDA_RING * (QN__CUDA_SPAN / l->columns * l->unit_bytes);
    int64_t x = bytes ? width * (padded + 16) + padded / l->step * width * 8 : width * padded * 4;
    int64_t sums = spans * TILE * width * 4;
    *warps = qn__cuda_parts(spans, qn__cuda_parts(spans, MOST_WARPS));
    while (*warps > 1 && *warps * ring + x + sums > cuda->most_shared)
        --*warps;
    int64_t shared = *warps * ring + x + sums;
    return shared <= cuda->most_shared ? shared : 0;
}

/* Each group of rows of x has as many blocks as there is room for, up to a tile each. */
static int64_t unit_blocks(const qn__cuda *cuda, const qn__cuda_linears_args *args, int64_t warps,
                           int64_t shared)
{
    int64_t groups = qn__cuda_parts(args->rows, args->group),
            tiles = qn__cuda_linear_tiles(args, TILE);
    int64_t beside = cuda->most_shared / shared, threads = MOST_THREADS / (warps * 32);
    int64_t at_once = cuda->processors * (beside < threads ? beside : threads);
    int64_t each = groups && at_once > groups ? at_once / groups : 1;
    return groups * (each < tiles ? each : tiles);
}

bool qn__cuda_linear_units(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0], *w = &call->operand[1];
    const qn__layout *l = qn__layout_of(w->layout);
    bool bytes = ((const qn__linear_params *)call->params)->products == QN_PRODUCTS_INT8;
    qn__cuda_linears_args args = {
        .n = {w->shape[0]}, .k = w->shape[1], .early = qn__cuda_is_fixed(b, w)};
    args.rows = args.k ? qn__cuda_elements(x) / args.k : 0;
    int64_t few = bytes ? 8 : 1, many = bytes ? 32 : 4, warps = 0, shared = 0;
    bool wide = args.rows > few;
    if (wide)
        shared = shared_of(b->cuda, l, args.k, bytes, many, &warps);
    wide = wide && shared && warps >= 4;
    if (!wide)
        shared = shared_of(b->cuda, l, args.k, bytes, few, &warps);
    if (!shared) {
        qn__fail(b->err, QN_UNSUPPORTED,
                 "%s: rows of %lld columns are too long for its linear layers on %s weights",
                 b->cuda->name, (long long)args.k, l->encoding->name);
        return false;
    }
    args.group = wide ? many : few;
    qn__cu_function function =
        b->cuda->kernels[kernels[w->layout] +
                         (bytes ? (wide ? BYTES_32 : BYTES_8) : (wide ? VALUES_4 : VALUES_1))];
    qn__cuda_launch *last;
    const qn__cuda_linears_args *all = qn__cuda_join_linear(b, function, call, args.rows, &last);
    if (all) {
        last->blocks = (unsigned)unit_blocks(b->cuda, all, warps, shared);
        return true;
    }
    qn__cuda_grid grid = {unit_blocks(b->cuda, &args, warps, shared), (unsigned)warps * 32,
                          (unsigned)shared};
    return qn__cuda_add_linear(b, function, &grid, &args, call, 0);
}

bool qn__cuda_take_units(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_take_units_args args = {
        .n_ids = qn__cuda_elements(&call->operand[1]), .rows = x->shape[0], .columns = x->shape[1]};
    return qn__cuda_add(b, b->cuda->kernels[kernels[x->layout] + ROWS], args.n_ids * args.columns,
                        false, &args, sizeof args, call, 3, (const uint8_t[]){0, 1, 2});
}
