/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations over the last axis.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

static bool takes_reduce(const qn_array *node)
{
    const qn__reduce_params *p = node->params;
    return !node->in[0]->layout &&
           (p->reduction != QN__LOGSUMEXP || node->dtype == QN_F32 || node->dtype == QN_F64);
}

enum {
    LONG_ROW = 4096,
    PARTS = 128,
    PART_OF_ROW = 4096, /* elements */
    LONGEST_ROW = 8192, /* that is not cut */
    SHORT_ROW = 1024,
    WARP = 32,
    WARPS_AT_ONCE = 16, /* of a multiprocessor: rows enough for a warp each */
    QUADS_OF_ROW = 8 * QN__CUDA_THREADS,
    MANY_ROWS = 64
};

/* Of long rows that lie side by side: parts of a row, then the best of these. */
static bool launch_argmax(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_argmax_args args = {
        .rows = qn__cuda_rows(x), .n = x->shape[x->ndim - 1], .parts = PARTS};
    qn__cuda_want_scratch(b, (size_t)(args.rows * PARTS) * 8);
    return QN__CUDA_ADD(b, argmax_parts, args.rows * PARTS, true, args, call, 0, QN__CUDA_SCRATCH,
                        1) &&
           QN__CUDA_ADD(b, argmax_join, args.rows, true, args, call, 0, QN__CUDA_SCRATCH, 1);
}

static bool is_long_argmax(const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    int64_t stride = 1;
    if (((const qn__reduce_params *)call->params)->reduction != QN__ARGMAX || x->dtype != QN_F32 ||
        x->ndim < 1 || x->shape[x->ndim - 1] < LONG_ROW)
        return false;
    for (int i = x->ndim - 1; i >= 0; stride *= x->shape[i--])
        if (x->shape[i] > 1 && x->stride[i] != stride)
            return false;
    return true;
}

/* Types that kernels for many rows, and for columns, are made for. */
static bool is_frequent(qn_dtype type)
{
    return type == QN_F32 || type == QN_F16 || type == QN_BF16;
}

/* A launch by the kernel that suits: neighbours in memory are of different rows; there are many
 * rows, or they are short; or a block has a row. */
static bool launch_rows(qn__cuda_binder *b, const qn__call *call, const qn__cuda_reduce_args *args,
                        const uint8_t at[2])
{
    const qn__cuda_view *lead = &args->lead;
    const bool frequent = is_frequent((qn_dtype)args->type),
               across = frequent && args->stride != 1 && args->n > 1 && lead->ndim > 0 &&
                        lead->stride[lead->ndim - 1] == 1 && lead->shape[lead->ndim - 1] >= WARP,
               many = frequent && (args->n <= SHORT_ROW ||
                                   args->rows >= (int64_t)b->cuda->processors * WARPS_AT_ONCE);
    int64_t width = WARP;
    while (width > 1 && width / 2 >= args->n)
        width /= 2;
    const int64_t of_block = across ? WARP
                             : many ? QN__CUDA_THREADS / width
                                    : 1,
                  blocks = qn__cuda_parts(args->rows, of_block);
    const int kernel = across ? QN__CUDA_KERNEL_reduce_across
                       : many ? QN__CUDA_KERNEL_reduce_short
                              : QN__CUDA_KERNEL_reduce;
    const qn__cuda_grid grid = {blocks < QN__CUDA_BLOCKS ? blocks : QN__CUDA_BLOCKS,
                                QN__CUDA_THREADS, 0};
    return qn__cuda_add_grid(b, b->cuda->kernels[kernel], &grid, args, sizeof *args, call, 2, at);
}

/* What reduces parts of long rows. */
static qn__cuda_reduce_args of_parts(const qn__cuda_reduce_args *whole)
{
    const int64_t parts = qn__cuda_parts(whole->n, PART_OF_ROW);
    qn__cuda_reduce_args args = *whole;
    args.part_rows = whole->rows;
    args.whole = whole->n;
    args.rows *= parts;
    args.n = PART_OF_ROW;
    args.lead.ndim++;
    args.lead.shape[0] = parts;
    args.lead.stride[0] = PART_OF_ROW * whole->stride;
    for (int64_t i = 0; i < whole->lead.ndim; i++) {
        args.lead.shape[i + 1] = whole->lead.shape[i];
        args.lead.stride[i + 1] = whole->lead.stride[i];
    }
    return args;
}

/* Sums and maxima of long rows: of parts of them, then of what these give. */
static bool launch_parts(qn__cuda_binder *b, const qn__call *call,
                         const qn__cuda_reduce_args *whole)
{
    const qn__cuda_reduce_args parts = of_parts(whole);
    qn__cuda_reduce_args rows = *whole;
    rows.lead = (qn__cuda_view){.ndim = 1, .shape = {whole->rows}, .stride = {1}};
    rows.n = qn__cuda_parts(whole->n, PART_OF_ROW);
    rows.stride = whole->rows;
    qn__cuda_want_scratch(b, (size_t)parts.rows * qn_dtype_size((qn_dtype)whole->type));
    return launch_rows(b, call, &parts, (const uint8_t[]){0, QN__CUDA_SCRATCH}) &&
           launch_rows(b, call, &rows, (const uint8_t[]){QN__CUDA_SCRATCH, 1});
}

static bool launch_reduce(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    int last = x->ndim - 1;
    if (is_long_argmax(call))
        return launch_argmax(b, call);
    qn__cuda_reduce_args args = {.lead = qn__cuda_view_of(x, 0, last < 0 ? 0 : last),
                                 .rows = qn__cuda_rows(x),
                                 .n = last < 0 ? 1 : x->shape[last],
                                 .stride = last < 0 ? 0 : x->stride[last],
                                 .reduction = ((const qn__reduce_params *)call->params)->reduction,
                                 .type = x->dtype};
    if ((x->dtype == QN_F32 || x->dtype == QN_F64) && args.n > LONGEST_ROW && args.rows &&
        (args.reduction == QN__SUM || args.reduction == QN__MAX))
        return launch_parts(b, call, &args);
    return launch_rows(b, call, &args, (const uint8_t[]){0, 1});
}

const qn__cuda_routine qn__cuda_reduce = {QN__OP_REDUCE, takes_reduce, launch_reduce, 0};

/* Of long rows: the maxima of parts, what the sums are of and those of parts, then the quotients.
 */
static bool launch_long_softmax(qn__cuda_binder *b, const qn__call *call,
                                const qn__cuda_softmax_args *args)
{
    const qn__operand *x = &call->operand[0];
    const qn__cuda_reduce_args whole = {
        .lead = {.ndim = 1, .shape = {args->rows}, .stride = {args->n}},
        .rows = args->rows,
        .n = args->n,
        .stride = 1,
        .reduction = QN__MAX,
        .type = x->dtype};
    const qn__cuda_reduce_args parts = of_parts(&whole);
    const size_t bytes = (size_t)parts.rows * qn_dtype_size((qn_dtype)x->dtype);
    qn__cuda_want_scratch(b, bytes);
    qn__cuda_want_behind(b, bytes);
    return launch_rows(b, call, &parts, (const uint8_t[]){0, QN__CUDA_SCRATCH}) &&
           QN__CUDA_ADD(b, softmax_exp, parts.rows, true, *args, call, 0, 1, QN__CUDA_SCRATCH,
                        QN__CUDA_BEHIND) &&
           QN__CUDA_ADD(b, softmax_scale, parts.rows, true, *args, call, 0, 1, QN__CUDA_SCRATCH,
                        QN__CUDA_BEHIND);
}

static bool launch_softmax(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_softmax_args args = {.rows = qn__cuda_rows(x),
                                  .n = x->shape[x->ndim - 1],
                                  .part = PART_OF_ROW,
                                  .wide = x->dtype == QN_F64};
    if (args.n > LONGEST_ROW && args.rows)
        return launch_long_softmax(b, call, &args);
    if (!args.wide && args.n <= QN__CUDA_SHORT_SOFTMAX)
        return QN__CUDA_ADD(b, softmax_short, args.rows * WARP, false, args, call, 0, 1,
                            QN__CUDA_NONE, QN__CUDA_NONE);
    return QN__CUDA_ADD(b, softmax, args.rows, true, args, call, 0, 1, QN__CUDA_NONE,
                        QN__CUDA_NONE);
}

/* A warp has 256 elements at a time. */
static bool takes_hadamard(const qn_array *node)
{
    const int64_t n = node->shape[node->ndim - 1];
    return node->dtype == QN_F32 && n >= 4 && n <= QN__CUDA_HADAMARD;
}

static bool launch_hadamard(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    const qn__cuda_hadamard_args args = {
        .all = qn__cuda_elements(x),
        .n = (int32_t)x->shape[x->ndim - 1],
        .scale = (float)((const qn__hadamard_params *)call->params)->scale,
        .vectors = x->offset % 16 == 0 && call->operand[1].offset % 16 == 0};
    const int64_t blocks = qn__cuda_parts(args.all, QN__CUDA_HADAMARD * QN__CUDA_THREADS / 32);
    const qn__cuda_grid grid = {blocks, QN__CUDA_THREADS, 0};
    bool added;
    if (!blocks)
        return true;
    if (qn__cuda_turn_blocks(b, call, args.n, args.scale, &added))
        return added;
    if (qn__cuda_turn_back(b, call, args.n, args.scale))
        return true;
    if (!QN__CUDA_ADD_GRID(b, hadamard, &grid, args, call, 0, 1, QN__CUDA_NONE))
        return false;
    if (args.vectors)
        qn__cuda_may_round(b, 1, 2, offsetof(qn__cuda_hadamard_args, turned),
                           QN__CUDA_ROUNDS_EITHER);
    return true;
}

const qn__cuda_routine qn__cuda_hadamard = {QN__OP_HADAMARD_TRANSFORM, takes_hadamard,
                                            launch_hadamard, 0};

const qn__cuda_routine qn__cuda_softmax = {QN__OP_SOFTMAX, NULL, launch_softmax, 0};

static bool launch_layer_norm(qn__cuda_binder *b, const qn__call *call)
{
    const qn__norm_params *p = call->params;
    const qn__operand *x = &call->operand[0];
    const qn__cuda_layer_norm_args args = {.rows = qn__cuda_rows(x),
                                           .n = x->shape[x->ndim - 1],
                                           .wide = x->dtype == QN_F64,
                                           .eps = (double)p->eps};
    const uint8_t weight = p->has_weight ? 1 : QN__CUDA_NONE,
                  bias = p->has_bias ? (uint8_t)(1 + p->has_weight) : QN__CUDA_NONE,
                  y = (uint8_t)(call->n_operands - 1);
    if (!args.wide && args.n <= SHORT_ROW)
        return QN__CUDA_ADD(b, layer_norm_short, args.rows * WARP, false, args, call, 0, weight,
                            bias, y);
    return QN__CUDA_ADD(b, layer_norm, args.rows, true, args, call, 0, weight, bias, y);
}

const qn__cuda_routine qn__cuda_layer_norm = {QN__OP_LAYER_NORM, NULL, launch_layer_norm, 0};

/* ---- running sums and their like ----------------------------------------------------------------
 */

static bool takes_scan(const qn_array *node)
{
    return node->dtype == QN_F32 || node->dtype == QN_F64 || node->dtype == QN_I32 ||
           node->dtype == QN_I64;
}

static bool launch_scan(qn__cuda_binder *b, const qn__call *call)
{
    const qn__cumulate_params *p = call->params;
    const qn__operand *x = &call->operand[0];
    const qn__cuda_scan_args args = {.rows = qn__cuda_rows(x),
                                     .n = x->shape[x->ndim - 1],
                                     .type = x->dtype,
                                     .what = p->cumulation,
                                     .reverse = p->reverse,
                                     .exclusive = p->exclusive};
    return QN__CUDA_ADD(b, scan, args.rows, true, args, call, 0, 1);
}

const qn__cuda_routine qn__cuda_cumsum = {QN__OP_CUMSUM, takes_scan, launch_scan, 0};
const qn__cuda_routine qn__cuda_cumulate = {QN__OP_CUMULATE, takes_scan, launch_scan, 0};

static bool takes_rms_norm(const qn_array *node)
{
    return (node->dtype == QN_F32 || node->dtype == QN_F64) &&
           !((const qn__norm_params *)node->params)->has_bias;
}

/* The newest launch, if it is a norm of quads; *at gets its addresses. */
static qn__cuda_norm_args *newest_norm(const qn__cuda_binder *b, uint32_t **at)
{
    qn__cuda_binding *bound = b->bound;
    const qn__cuda_launch *last =
        bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (!last || last->function != b->cuda->kernels[QN__CUDA_KERNEL_rms_norm])
        return NULL;
    qn__cuda_norm_args *args = (qn__cuda_norm_args *)(bound->args + last->args);
    *at = bound->at + last->first_at;
    return args->quads ? args : NULL;
}

/* Whether a block that has read its row of `from` may write that of `to`, while others read theirs.
 */
static bool may_follow(const qn__operand *to, const qn__operand *from, bool one_row)
{
    return one_row || qn__cuda_same_place(to, from) || !qn__cuda_overlap(to, from);
}

bool qn__cuda_add_to_norm(qn__cuda_binder *b, const qn__call *call)
{
    uint32_t *at;
    qn__cuda_norm_args *args = newest_norm(b, &at);
    if (!args || at[QN__CUDA_NORM_ADDED] != QN__CUDA_AT_NONE ||
        at[QN__CUDA_NORM_Y_ROUNDED] != QN__CUDA_AT_NONE)
        return false;
    const qn__operand *operands = b->binding->operands, *y = &operands[at[2]],
                      *sum = &call->operand[2];
    int i = qn__cuda_same_place(&call->operand[1], y);
    const qn__operand *added = &call->operand[1 - i];
    if (!qn__cuda_same_place(&call->operand[i], y) || qn__cuda_same_place(added, y) ||
        qn__cuda_elements(y) != qn__cuda_elements(sum) || !qn__cuda_is_spent(b, call, y) ||
        qn__cuda_overlap(added, y) || !may_follow(sum, &operands[at[0]], args->rows == 1) ||
        !may_follow(sum, added, false))
        return false;
    at[2] = call->first_operand + 2;
    at[QN__CUDA_NORM_ADDED] = call->first_operand + 1 - (uint32_t)i;
    return true;
}

/* A norm of what the newest launch, a norm and a sum, makes: by that launch. */
static bool norm_again(qn__cuda_binder *b, const qn__call *call, const qn__cuda_norm_args *more)
{
    uint32_t *at;
    qn__cuda_norm_args *args = newest_norm(b, &at);
    if (!args || at[QN__CUDA_NORM_ADDED] == QN__CUDA_AT_NONE ||
        at[QN__CUDA_NORM_WEIGHT] != QN__CUDA_AT_NONE || !more->quads || !more->has_weight ||
        args->rows != more->rows || args->n != more->n)
        return false;
    const qn__operand *operands = b->binding->operands, *y = &call->operand[call->n_operands - 1];
    bool one_row = args->rows == 1;
    if (!qn__cuda_same_place(&call->operand[0], &operands[at[2]]) ||
        qn__cuda_overlap(y, &operands[at[2]]) || !may_follow(y, &operands[at[0]], one_row) ||
        !may_follow(y, &operands[at[QN__CUDA_NORM_ADDED]], one_row))
        return false;
    args->early = args->early && more->early;
    args->eps_behind = more->eps;
    at[QN__CUDA_NORM_WEIGHT] = call->first_operand + 1;
    at[QN__CUDA_NORM_BEHIND] = call->first_operand + call->n_operands - 1;
    qn__cuda_may_round(b, QN__CUDA_NORM_BEHIND, QN__CUDA_NORM_ROUNDED,
                       offsetof(qn__cuda_norm_args, turned), QN__CUDA_ROUNDS_EITHER);
    qn__cuda_may_make_bytes(b, QN__CUDA_NORM_BYTES, offsetof(qn__cuda_norm_args, bytes));
    return true;
}

/* Whether row i of a result lies over nothing of x but its row i, which is as long. */
static bool lies_over_its_row(const qn__operand *result, const qn__operand *x, bool one_row)
{
    return may_follow(result, x, false) || (one_row && result->offset <= x->offset);
}

/* The newest launch is a norm that this one neither needs nor hinders: in its launch. A row's
 * result may lie over the row of that number of the first norm's x, since a block reads and writes
 * both. */
static bool norm_beside(qn__cuda_binder *b, const qn__call *call, const qn__cuda_norm_args *more)
{
    uint32_t *at;
    qn__cuda_norm_args *args = newest_norm(b, &at);
    if (!args || !more->quads || !more->rows || !args->has_weight || !more->has_weight ||
        args->n != more->n || args->n / 4 > QN__CUDA_NORM_PAIR_QUADS || args->eps != more->eps ||
        at[QN__CUDA_NORM_ADDED] != QN__CUDA_AT_NONE ||
        at[QN__CUDA_NORM_Y_ROUNDED] != QN__CUDA_AT_NONE)
        return false;
    const qn__operand *operands = b->binding->operands, *x = &operands[at[0]],
                      *y = &operands[at[2]], *result = &call->operand[2];
    for (int i = 0; i < 3; i++)
        if (qn__cuda_overlap(&call->operand[i], y))
            return false;
    if (qn__cuda_overlap(result, &operands[at[1]]) ||
        !lies_over_its_row(result, x, more->rows == 1))
        return false;
    for (uint32_t i = 0; i < 3; i++)
        at[QN__CUDA_NORM_BESIDE + i] = call->first_operand + i;
    args->rows_beside = more->rows;
    args->early = args->early && more->early;
    qn__cuda_launch *last = &b->bound->launches[b->bound->n_launches - 1];
    last->function = b->cuda->kernels[QN__CUDA_KERNEL_rms_norm_pair];
    if (last->blocks < more->rows)
        last->blocks = (unsigned)(more->rows < QN__CUDA_BLOCKS ? more->rows : QN__CUDA_BLOCKS);
    last->rounded_at = last->bytes_at = 0; /* nothing takes part of two results */
    return true;
}

static bool launch_rms_norm(qn__cuda_binder *b, const qn__call *call)
{
    const qn__norm_params *p = call->params;
    const qn__operand *x = &call->operand[0];
    qn__cuda_norm_args args = {.rows = qn__cuda_rows(x),
                               .n = x->shape[x->ndim - 1],
                               .has_weight = p->has_weight,
                               .wide = x->dtype == QN_F64,
                               .eps = (double)p->eps};
    int64_t places = (int64_t)(x->offset | call->operand[call->n_operands - 1].offset |
                               (p->has_weight ? call->operand[1].offset : 0));
    args.quads = !args.wide && args.n % 4 == 0 && args.n / 4 <= QUADS_OF_ROW && places % 16 == 0;
    args.early = !p->has_weight || qn__cuda_is_fixed(b, &call->operand[1]);
    if (norm_again(b, call, &args) || norm_beside(b, call, &args) ||
        qn__cuda_norm_taken(b, call, &args))
        return true;
    uint8_t at[QN__CUDA_NORM_AT];
    memset(at, QN__CUDA_NONE, sizeof at);
    at[0] = 0;
    at[1] = p->has_weight ? 1 : 0;
    at[2] = (uint8_t)(call->n_operands - 1);
    if (!qn__cuda_add(b, b->cuda->kernels[QN__CUDA_KERNEL_rms_norm], args.rows, true, &args,
                      sizeof args, call, QN__CUDA_NORM_AT, at))
        return false;
    if (args.quads && args.rows) {
        qn__cuda_may_round(b, 2, QN__CUDA_NORM_Y_ROUNDED, offsetof(qn__cuda_norm_args, turned),
                           QN__CUDA_ROUNDS_EITHER);
        if (qn__cuda_parts(args.n, QN__CUDA_SPAN) * QN__CUDA_SPAN / 4 <= QUADS_OF_ROW)
            qn__cuda_may_make_bytes(b, QN__CUDA_NORM_BYTES, offsetof(qn__cuda_norm_args, bytes));
    }
    return true;
}

void qn__cuda_finish_norms(qn__cuda_binder *b)
{
    qn__cuda_binding *bound = b->bound;
    for (uint32_t i = 0; i < bound->n_launches; i++) {
        qn__cuda_launch *launch = &bound->launches[i];
        const uint32_t *at = bound->at + launch->first_at;
        const qn__cuda_norm_args *args = (const qn__cuda_norm_args *)(bound->args + launch->args);
        if (launch->function != b->cuda->kernels[QN__CUDA_KERNEL_rms_norm] || !args->quads)
            continue;
        const bool is_short = args->n <= 4 * QN__CUDA_THREADS * QN__CUDA_NORM_SHORT_QUADS,
                   adds = at[QN__CUDA_NORM_ADDED] != QN__CUDA_AT_NONE,
                   bytes = at[QN__CUDA_NORM_BYTES] != QN__CUDA_AT_NONE;
        const bool alone = args->rows > MANY_ROWS && args->has_weight &&
                           at[2] == QN__CUDA_AT_NONE &&
                           at[QN__CUDA_NORM_Y_ROUNDED] == QN__CUDA_AT_NONE;
        const bool few = is_short && args->early && args->has_weight && args->rows <= MANY_ROWS;
        int kernel = QN__CUDA_KERNEL_rms_norm;
        if (few && (!bytes || args->bytes.by_step))
            kernel = (bytes  ? QN__CUDA_KERNEL_rms_norm_few_bytes_of_1
                      : adds ? QN__CUDA_KERNEL_rms_norm_few_added_of_1
                             : QN__CUDA_KERNEL_rms_norm_few_of_1) +
                     (int)((args->n - 1) / (4 * QN__CUDA_THREADS));
        else if (bytes && !adds)
            kernel = alone ? (is_short ? QN__CUDA_KERNEL_rms_norm_many_short_bytes
                                       : QN__CUDA_KERNEL_rms_norm_many_bytes)
                           : (is_short ? QN__CUDA_KERNEL_rms_norm_short_bytes
                                       : QN__CUDA_KERNEL_rms_norm_bytes);
        else if (is_short && !bytes)
            kernel = adds ? QN__CUDA_KERNEL_rms_norm_short_added : QN__CUDA_KERNEL_rms_norm_short;
        launch->function = b->cuda->kernels[kernel];
    }
}

const qn__cuda_routine qn__cuda_rms_norm = {QN__OP_RMS_NORM, takes_rms_norm, launch_rms_norm, 0};
