/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16 or f16: how they are launched. Layers that follow each other and
 * take the same x (queries, keys and values; gate and up) are one launch.
 */
#include "base/error.h"
#include "core/dtype.h"
#include "cuda/cuda.h"

#include <string.h>

enum {
    FEW = 64,
    ROUNDED = 9,      /* rows from which on x is rounded by a launch of its own */
    LARGE = 32 << 20, /* elements */
    LONG = 4096,      /* rows and columns, */
    SHORT = 2048,     /* of one row of x, if attention does not come before it */
    TILE = 16,
    BLOCK = 128,
    LEAST_WARPS = 4,
    MOST_WARPS = 16,
    CHUNK = 4096 /* bytes */
};

/* Vectors of 16 bytes are read. */
bool qn__cuda_streams(const qn__operand *x, const qn__operand *w)
{
    return (w->dtype == QN_BF16 || w->dtype == QN_F16) && !w->layout && w->shape[0] > 0 &&
           w->shape[1] > 0 && w->shape[1] % 8 == 0 && w->stride[1] == 1 && w->stride[0] % 8 == 0 &&
           w->offset % 16 == 0 && x->offset % 16 == 0;
}

/* The kernels of weights in f16 are as far behind those of bf16. */
enum { F16_BEHIND = QN__CUDA_KERNEL_linear_round_f16 - QN__CUDA_KERNEL_linear_round };

qn__cu_function qn__cuda_weights_kernel(const qn__cuda *cuda, bool half, int kernel)
{
    return cuda->kernels[kernel + (half ? F16_BEHIND : 0)];
}

bool qn__cuda_is_of_weights(const qn__cuda *cuda, qn__cu_function function, int first, int last)
{
    return qn__cuda_is_among(cuda, function, first, last) ||
           qn__cuda_is_among(cuda, function, first + F16_BEHIND, last + F16_BEHIND);
}

bool qn__cuda_same_place(const qn__operand *a, const qn__operand *b)
{
    return a->slot == b->slot && a->offset == b->offset;
}

qn__cuda_linears_args *qn__cuda_linears_of(const qn__cuda_binder *b, const qn__cuda_launch *launch)
{
    return (qn__cuda_linears_args *)(b->bound->args + launch->args);
}

const qn__cuda_linears_args *qn__cuda_join_linear(qn__cuda_binder *b, qn__cu_function function,
                                                  const qn__call *call, int64_t rows,
                                                  qn__cuda_launch **launch)
{
    qn__cuda_binding *bound = b->bound;
    const qn__operand *w = &call->operand[1];
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (!last || last->function != function)
        return NULL;
    qn__cuda_linears_args *args = qn__cuda_linears_of(b, last);
    bool whole = ((const qn__linear_params *)call->params)->products == QN_PRODUCTS_INT8_ROWS;
    if (args->n[QN__CUDA_LINEARS - 1] || args->gated ||
        (args->units.layout != w->layout && qn__cuda_is_units(b->cuda, function)) ||
        args->whole != whole || args->half != (w->dtype == QN_F16) ||
        bound->at[last->first_at + QN__CUDA_ADDED] != QN__CUDA_AT_NONE || !args->early ||
        args->rows != rows || args->k != w->shape[1] ||
        !qn__cuda_same_place(&b->binding->operands[bound->x], &call->operand[0]) ||
        !qn__cuda_is_fixed(b, w))
        return NULL;
    uint32_t i = args->n[1] ? 2 : 1;
    args->n[i] = w->shape[0];
    args->stride[i] = w->stride[0];
    bound->at[last->first_at + 1 + 2 * i] = call->first_operand + 1;
    bound->at[last->first_at + 2 + 2 * i] = call->first_operand + 2;
    *launch = last;
    return args;
}

int64_t qn__cuda_linear_tiles(const qn__cuda_linears_args *args, int64_t size)
{
    int64_t tiles = 0;
    for (int i = 0; i < QN__CUDA_LINEARS; i++)
        tiles += qn__cuda_parts(args->n[i], size);
    return tiles;
}

bool qn__cuda_begin_linear(qn__cuda_binder *b, const qn__call *call, qn__cuda_linears_args *args)
{
    enum { MOST = INT32_MAX / 4 };
    const qn__operand *x = &call->operand[0], *w = &call->operand[1];
    const int64_t n = w->shape[0], k = w->shape[1], rows = k ? qn__cuda_elements(x) / k : 0,
                  stride = w->layout ? 0 : w->stride[0];
    if (n > MOST || k > MOST || rows > MOST || stride > MOST) {
        qn__fail(b->err, QN_UNSUPPORTED,
                 "%s: a linear layer of %lld rows by %lld columns, %lld elements apart, for %lld "
                 "rows; %d of each are possible",
                 b->cuda->name, (long long)n, (long long)k, (long long)stride, (long long)rows,
                 MOST);
        return false;
    }
    *args = (qn__cuda_linears_args){.n = {(int32_t)n},
                                    .stride = {(int32_t)stride},
                                    .k = (int32_t)k,
                                    .rows = (int32_t)rows,
                                    .half = w->dtype == QN_F16,
                                    .early = qn__cuda_is_fixed(b, w)};
    return true;
}

void qn__cuda_linear_operands(uint8_t x, uint8_t w, uint8_t at[QN__CUDA_LINEAR_AT])
{
    memset(at, QN__CUDA_NONE, QN__CUDA_LINEAR_AT);
    at[0] = x;
    for (int i = 0; i < QN__CUDA_LINEARS; i++) {
        at[1 + 2 * i] = w;
        at[2 + 2 * i] = 2;
    }
}

bool qn__cuda_add_linear(qn__cuda_binder *b, qn__cu_function function, const qn__cuda_grid *grid,
                         const qn__cuda_linears_args *args, const qn__call *call, uint8_t x)
{
    uint8_t operands[QN__CUDA_LINEAR_AT];
    qn__cuda_linear_operands(x, 1, operands);
    b->bound->x = call->first_operand;
    return qn__cuda_add_grid(b, function, grid, args, sizeof *args, call, sizeof operands,
                             operands);
}

/* Blocks of a launch: as many as its weights have tiles, of few rows those that run at once. */
static unsigned linear_blocks(const qn__cuda *cuda, const qn__cuda_linears_args *args,
                              int64_t warps, int64_t shared)
{
    if (!warps)
        return (unsigned)(qn__cuda_linear_tiles(args, BLOCK) * qn__cuda_parts(args->rows, BLOCK));
    int64_t tiles = qn__cuda_linear_tiles(args, TILE) / (args->gated ? 2 : 1),
            side_by_side = MOST_WARPS / warps, fit = cuda->most_shared / shared,
            at_once = cuda->processors * (fit < side_by_side ? fit : side_by_side);
    return (unsigned)(tiles < at_once ? tiles : at_once);
}

/* Warps of a block for few rows, which have the spans in turn, as many as its shared memory has
 * room for: for all spans' sums and a ring each. 0: none. */
static int64_t few_warps(const qn__cuda *cuda, const qn__cuda_linears_args *args, int64_t *shared)
{
    int64_t spans = qn__cuda_parts(args->k, QN__CUDA_SPAN),
            turns = qn__cuda_parts(spans, MOST_WARPS), rows = 8, warps;
    *shared = 0;
    if (args->rows > FEW)
        return 0;
    while (rows < args->rows)
        rows *= 2;
    do {
        warps = qn__cuda_parts(spans, turns++);
        *shared = (spans + (args->gated != 0)) * TILE * rows * 4 + warps * QN__CUDA_RING * CHUNK;
        if (*shared <= cuda->most_shared)
            return warps;
    } while (warps > LEAST_WARPS);
    return 0;
}

static bool is_streaming(const qn__cuda *cuda, qn__cu_function function)
{
    return qn__cuda_is_of_weights(cuda, function, QN__CUDA_KERNEL_linear_8,
                                  QN__CUDA_KERNEL_linear_many);
}

/* Whether the newest launch is attention of a token. */
static bool follows_attention(const qn__cuda_binder *b)
{
    const qn__cuda_binding *bound = b->bound;
    if (!bound->n_launches)
        return false;
    qn__cu_function last = bound->launches[bound->n_launches - 1].function;
    return qn__cuda_is_among(b->cuda, last, QN__CUDA_KERNEL_attend_step_64_of_4,
                             QN__CUDA_KERNEL_attend_far_128_of_9) ||
           qn__cuda_is_among(b->cuda, last, QN__CUDA_KERNEL_attend_step_64_of_4_f16,
                             QN__CUDA_KERNEL_attend_far_128_of_9_f16);
}

/* Whether the copy engine brings the weights (stream.cu, wide.cu). Of a small one by few rows its
 * start costs more than it saves: Llama-8B is faster with all its layers so, Llama-1B by one row,
 * with all but the output of attention, beside which linear.cu begins. */
static bool goes_wide(const qn__cuda_binder *b, const qn__cuda_linears_args *args)
{
    if (!qn__cuda_has_wide(b->cuda))
        return false;
    const int64_t least = args->rows > 1 || follows_attention(b) ? LONG : SHORT;
    bool pays = args->rows >= ROUNDED || (int64_t)args->n[0] * args->k >= LARGE ||
                (args->n[0] >= least && args->k >= least);
    return args->rows > QN__CUDA_STREAM_ROWS || (pays && args->k % QN__CUDA_STREAM_COLUMNS == 0);
}

bool qn__cuda_stream_linear(qn__cuda_binder *b, const qn__call *call)
{
    qn__cuda_linears_args args;
    if (!qn__cuda_begin_linear(b, call, &args))
        return false;
    if (qn__cuda_join_wide(b, &args, call))
        return true;
    if (goes_wide(b, &args))
        return qn__cuda_wide_linear(b, &args, call, NULL, 0);
    int64_t shared, warps = few_warps(b->cuda, &args, &shared);
    bool few = warps > 0;
    uint8_t place = 0;
    qn__cuda_launch *last =
        b->bound->n_launches ? &b->bound->launches[b->bound->n_launches - 1] : NULL;
    const qn__cuda_linears_args *all =
        last && is_streaming(b->cuda, last->function)
            ? qn__cuda_join_linear(b, last->function, call, args.rows, &last)
            : NULL;
    if (all) {
        last->blocks = linear_blocks(b->cuda, all, warps, shared);
        return true;
    }
    if (!qn__cuda_round_x(b, call, args.rows, few, !few || args.rows >= ROUNDED, &place))
        return false;
    const int kernel = !few             ? QN__CUDA_KERNEL_linear_many
                       : args.rows > 32 ? QN__CUDA_KERNEL_linear_64
                       : args.rows > 16 ? QN__CUDA_KERNEL_linear_32
                       : args.rows > 8  ? QN__CUDA_KERNEL_linear_16
                       : place          ? QN__CUDA_KERNEL_linear_8_rounded
                                        : QN__CUDA_KERNEL_linear_8;
    qn__cu_function function = qn__cuda_weights_kernel(b->cuda, args.half, kernel);
    qn__cuda_grid grid = {linear_blocks(b->cuda, &args, warps, shared),
                          few ? (unsigned)warps * 32 : 256,
                          few ? (unsigned)shared : QN__CUDA_LINEAR_SHARED};
    return qn__cuda_add_linear(b, function, &grid, &args, call, place);
}

/* ---- what stands behind a layer -------------------------------------------------------------- */

/* The newest launch, if it is of linear layers that take on what follows. */
static qn__cuda_launch *newest_layers(const qn__cuda_binder *b)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    return last && (qn__cuda_is_wide(b->cuda, last->function) ||
                    is_streaming(b->cuda, last->function) ||
                    qn__cuda_is_units(b->cuda, last->function))
               ? last
               : NULL;
}

/* Blocks that are done write where others still read x. */
static bool would_overwrite_x(const qn__cuda_binder *b, uint32_t x, const qn__operand *result)
{
    return x < QN__CUDA_AT_KEPT && qn__cuda_overlap(result, &b->binding->operands[x]);
}

bool qn__cuda_add_behind(qn__cuda_binder *b, const qn__call *call, const qn__cuda_scaled *scaled,
                         int added)
{
    const qn__cuda_launch *last = newest_layers(b);
    uint32_t *at = last ? b->bound->at + last->first_at : NULL;
    const qn__cuda_linears_args *args = last ? qn__cuda_linears_of(b, last) : NULL;
    const qn__operand *result = &call->operand[call->n_operands - 1];
    int i = 0;
    if (!last || args->gated || at[QN__CUDA_ADDED] != QN__CUDA_AT_NONE ||
        (added >= 0 && args->n[1]) ||
        (scaled->factor >= 0 && !qn__cuda_takes_factors(b->cuda, last->function)))
        return false;
    while (
        i < QN__CUDA_LINEARS && args->n[i] &&
        !qn__cuda_is_for_call_alone(b, call, scaled->array, &b->binding->operands[at[2 + 2 * i]]))
        i++;
    if (i == QN__CUDA_LINEARS || !args->n[i] || at[QN__CUDA_FACTOR + i] != QN__CUDA_AT_NONE ||
        would_overwrite_x(b, at[0], result) ||
        (added >= 0 && qn__cuda_same_place(&call->operand[added], &call->operand[scaled->array])))
        return false;
    for (int k = i; k < QN__CUDA_LINEARS && (k == i || !args->n[k]); k++)
        at[2 + 2 * k] = call->first_operand + call->n_operands - 1;
    if (scaled->factor >= 0)
        at[QN__CUDA_FACTOR + i] = call->first_operand + (uint32_t)scaled->factor;
    if (added >= 0)
        at[QN__CUDA_ADDED] = call->first_operand + (uint32_t)added;
    return true;
}

bool qn__cuda_gate_behind(qn__cuda_binder *b, const qn__call *call, const qn__cuda_gate *gate)
{
    qn__cuda_launch *last = newest_layers(b);
    if (!last || qn__cuda_is_of_weights(b->cuda, last->function, QN__CUDA_KERNEL_linear_many,
                                        QN__CUDA_KERNEL_linear_many))
        return false;
    bool wide = qn__cuda_is_wide(b->cuda, last->function),
         units = qn__cuda_is_units(b->cuda, last->function);
    qn__cuda_linears_args *args = qn__cuda_linears_of(b, last);
    uint32_t *at = b->bound->at + last->first_at,
             result = call->first_operand + call->n_operands - 1;
    const qn__operand *operands = b->binding->operands;
    const qn__cuda_scaled *of[] = {&gate->gate, &gate->up};
    if (args->n[0] != args->n[1] || args->n[2] || args->gated ||
        ((of[0]->factor >= 0 || of[1]->factor >= 0) &&
         !qn__cuda_takes_factors(b->cuda, last->function)))
        return false;
    int exchanged = qn__cuda_same_place(&call->operand[gate->gate.array], &operands[at[4]]);
    for (int i = 0; i < 2; i++)
        if (!qn__cuda_is_for_call_alone(b, call, of[i ^ exchanged]->array,
                                        &operands[at[2 + 2 * i]]) ||
            at[QN__CUDA_FACTOR + i] != QN__CUDA_AT_NONE)
            return false;
    if (would_overwrite_x(b, at[0], &operands[result]))
        return false;
    args->gated = exchanged ? 2 : 1;
    args->activation = gate->activation;
    int64_t shared = 0, warps = wide || units ? 0 : few_warps(b->cuda, args, &shared);
    if (!wide && !units && b->cuda->most_shared / shared < b->cuda->most_shared / last->shared) {
        args->gated = 0; /* fewer blocks beside each other would cost more */
        return false;
    }
    at[2] = at[4] = at[6] = result;
    for (int i = 0; i < 2; i++)
        if (of[i ^ exchanged]->factor >= 0)
            at[QN__CUDA_FACTOR + i] = call->first_operand + (uint32_t)of[i ^ exchanged]->factor;
    if (wide) {
        qn__cuda_choose_wide(b);
    } else if (units) {
        qn__cuda_units_again(b, last);
    } else {
        last->blocks = linear_blocks(b->cuda, args, warps, shared);
        last->threads = (unsigned)warps * 32; /* a pair's sums may leave room for fewer rings */
        last->shared = (unsigned)shared;
    }
    qn__cuda_may_round(b, 2, QN__CUDA_ROUNDED, offsetof(qn__cuda_linears_args, turned),
                       args->half ? QN__CUDA_ROUNDS_F16 : QN__CUDA_ROUNDS_BF16);
    return true;
}
