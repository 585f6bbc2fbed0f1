/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations over the last axis.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

/* All axes but the last multiplied. */
static int64_t rows_of(const qn__operand *o)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < o->ndim; i++)
        n *= o->shape[i];
    return n;
}

static bool takes_reduce(const qn_array *node)
{
    const qn__reduce_params *p = node->params;
    return !node->in[0]->layout &&
           (p->reduction != QN__LOGSUMEXP || node->dtype == QN_F32 || node->dtype == QN_F64);
}

enum { LONG_ROW = 4096, PARTS = 128, QUADS_OF_ROW = 8 * QN__CUDA_THREADS, MANY_ROWS = 64 };

/* Of long rows that lie side by side: parts of a row, then the best of these. */
static bool launch_argmax(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_argmax_args args = {.rows = rows_of(x), .n = x->shape[x->ndim - 1], .parts = PARTS};
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

static bool launch_reduce(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    int last = x->ndim - 1;
    if (is_long_argmax(call))
        return launch_argmax(b, call);
    qn__cuda_reduce_args args = {.lead = qn__cuda_view_of(x, 0, last),
                                 .rows = rows_of(x),
                                 .n = last < 0 ? 1 : x->shape[last],
                                 .stride = last < 0 ? 0 : x->stride[last],
                                 .reduction = ((const qn__reduce_params *)call->params)->reduction,
                                 .type = x->dtype};
    return QN__CUDA_ADD(b, reduce, args.rows, true, args, call, 0, 1);
}

const qn__cuda_routine qn__cuda_reduce = {QN__OP_REDUCE, takes_reduce, launch_reduce, 0};

static bool launch_softmax(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    qn__cuda_softmax_args args = {
        .rows = rows_of(x), .n = x->shape[x->ndim - 1], .wide = x->dtype == QN_F64};
    return QN__CUDA_ADD(b, softmax, args.rows, true, args, call, 0, 1);
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
    if (!QN__CUDA_ADD_GRID(b, hadamard, &grid, args, call, 0, 1, QN__CUDA_NONE))
        return false;
    if (args.vectors)
        qn__cuda_may_round(b, 1, 2, offsetof(qn__cuda_hadamard_args, turned));
    return true;
}

const qn__cuda_routine qn__cuda_hadamard = {QN__OP_HADAMARD_TRANSFORM, takes_hadamard,
                                            launch_hadamard, 0};

const qn__cuda_routine qn__cuda_softmax = {QN__OP_SOFTMAX, NULL, launch_softmax, 0};

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
        qn__cuda_elements(y) != qn__cuda_elements(sum) ||
        y->slot != b->binding->plan->n_inputs + b->binding->plan->n_outputs ||
        qn__cuda_is_read_behind(b, call, y) || qn__cuda_overlap(added, y) ||
        !may_follow(sum, &operands[at[0]], args->rows == 1) || !may_follow(sum, added, false))
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
                       offsetof(qn__cuda_norm_args, turned));
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
    qn__cuda_norm_args args = {.rows = rows_of(x),
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
        qn__cuda_may_round(b, 2, QN__CUDA_NORM_Y_ROUNDED, offsetof(qn__cuda_norm_args, turned));
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
        int kernel = QN__CUDA_KERNEL_rms_norm;
        if (bytes && !adds)
            kernel = alone ? (is_short ? QN__CUDA_KERNEL_rms_norm_many_short_bytes
                                       : QN__CUDA_KERNEL_rms_norm_many_bytes)
                           : (is_short ? QN__CUDA_KERNEL_rms_norm_short_bytes
                                       : QN__CUDA_KERNEL_rms_norm_bytes);
        else if (is_short && !bytes && args->early && args->has_weight && args->rows <= MANY_ROWS)
            kernel = (adds ? QN__CUDA_KERNEL_rms_norm_few_added_of_1
                           : QN__CUDA_KERNEL_rms_norm_few_of_1) +
                     (int)((args->n - 1) / (4 * QN__CUDA_THREADS));
        else if (is_short && !bytes)
            kernel = adds ? QN__CUDA_KERNEL_rms_norm_short_added : QN__CUDA_KERNEL_rms_norm_short;
        launch->function = b->cuda->kernels[kernel];
    }
}

const qn__cuda_routine qn__cuda_rms_norm = {QN__OP_RMS_NORM, takes_rms_norm, launch_rms_norm, 0};
