/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms of one row that the launch behind makes, which alone reads them. Each of its blocks makes
 * the row, so that only what is short may stand before its products: the launch ahead, which made
 * x, has put sums of its squares beside it (norm.cuh).
 */
#include "cuda/cuda.h"

/* A norm of a row that the launch behind it may take: y = norm(x); or one whose sum with another
 * row gets a norm again: y = norm(sum), sum = added + norm(x). */
typedef struct taken {
    uint32_t i; /* the norm's launch */
    const qn__cuda_norm_args *args;
    const uint32_t *at;
    const qn__operand *x, *y, *sum; /* sum: or NULL */
    const qn__operand *held; /* what stays where it lies, and blocks may read when others are done;
                                NULL: nothing */
} taken;

static bool find_norm(const qn__cuda_binder *b, uint32_t i, taken *norm)
{
    const qn__cuda_binding *bound = b->bound;
    const qn__cuda_launch *launch = &bound->launches[i];
    const qn__operand *operands = b->binding->operands;
    if (launch->function != b->cuda->kernels[QN__CUDA_KERNEL_rms_norm])
        return false;
    const uint32_t *at = bound->at + launch->first_at;
    if (at[0] >= QN__CUDA_AT_KEPT)
        return false;
    const uint32_t added = at[QN__CUDA_NORM_ADDED];
    const bool sums = at[QN__CUDA_NORM_WEIGHT] != QN__CUDA_AT_NONE;
    *norm = (taken){.i = i,
                    .args = (const qn__cuda_norm_args *)(bound->args + launch->args),
                    .at = at,
                    .x = &operands[at[0]],
                    .y = &operands[at[sums ? QN__CUDA_NORM_BEHIND : 2]],
                    .sum = sums ? &operands[at[2]] : NULL};
    norm->held = !sums ? norm->x : added < QN__CUDA_AT_KEPT ? &operands[added] : NULL;
    return norm->args->quads && norm->args->rows == 1 && norm->args->early &&
           norm->args->has_weight && sums == (added != QN__CUDA_AT_NONE) &&
           at[QN__CUDA_NORM_BYTES] == QN__CUDA_AT_NONE &&
           at[QN__CUDA_NORM_ROUNDED] == QN__CUDA_AT_NONE &&
           at[QN__CUDA_NORM_Y_ROUNDED] == QN__CUDA_AT_NONE &&
           norm->y->slot == b->binding->plan->n_inputs + b->binding->plan->n_outputs;
}

static bool meet(const qn__cuda_binder *b, uint32_t at, const qn__operand *o)
{
    return at < QN__CUDA_AT_KEPT && qn__cuda_overlap(&b->binding->operands[at], o);
}

/* Whether the blocks of a launch that takes the norm do not disturb each other: none writes what
 * others still read, or reads, but as x, what others write or what is not written. */
static bool leave_each_other(const qn__cuda_binder *b, const uint32_t *its, const taken *norm)
{
    for (int k = 1; k < QN__CUDA_LINEAR_AT; k++) {
        const bool writes = k == QN__CUDA_ROUNDED || (k < QN__CUDA_ADDED && k % 2 == 0);
        if (writes ? norm->held && meet(b, its[k], norm->held)
                   : meet(b, its[k], norm->y) || (norm->sum && meet(b, its[k], norm->sum)))
            return false;
    }
    return true;
}

/* Whether the launch behind reads the norm's result, and no other does. */
static bool is_for_next_alone(const qn__cuda_binder *b, const taken *norm)
{
    const qn__cuda_launch *next = &b->bound->launches[norm->i + 1];
    const uint32_t *its = b->bound->at + next->first_at;
    const qn__cuda_linears_args *layer = qn__cuda_linears_of(b, next);
    return layer->rows == 1 && layer->k == norm->args->n && its[0] < QN__CUDA_AT_KEPT &&
           qn__cuda_same_place(&b->binding->operands[its[0]], norm->y) &&
           leave_each_other(b, its, norm) && !qn__cuda_launch_is_read(b, norm->i + 1, norm->y);
}

/* The launch ahead of the norm, if it makes x and can put sums of squares beside it. One that reads
 * such sums cannot: they lie in the same place. */
static qn__cuda_launch *maker_of_squares(const qn__cuda_binder *b, const taken *norm)
{
    qn__cuda_launch *ahead = norm->i ? &b->bound->launches[norm->i - 1] : NULL;
    if (!ahead || !qn__cuda_unit_row_makes_squares(b, ahead) ||
        norm->args->n > QN__CUDA_MOST_SQUARED || norm->args->n % 128)
        return NULL;
    const uint32_t *at = b->bound->at + ahead->first_at;
    const qn__cuda_linears_args *layer = qn__cuda_linears_of(b, ahead);
    return layer->rows == 1 && !layer->gated && !layer->n[1] && layer->n[0] == norm->args->n &&
                   at[2] < QN__CUDA_AT_KEPT && at[QN__CUDA_SQUARES] == QN__CUDA_AT_NONE &&
                   qn__cuda_same_place(&b->binding->operands[at[2]], norm->x)
               ? ahead
               : NULL;
}

/* Whether the launch behind makes such norms of its x: ternary.cu one, byte_row.cuh a sum's, for
 * which it wants sums of squares. One norm of a row on units stays a launch, beside which the
 * blocks of the next one begin: taken, too, Llama-1B in 4 bits lost 1.5 %, 8B gained 0.3 (an
 * H200). */
static bool takes_norms(const qn__cuda_binder *b, const taken *norm)
{
    const qn__cuda_launch *next = &b->bound->launches[norm->i + 1];
    return norm->sum ? qn__cuda_unit_row_takes_norm(b, next)
                     : qn__cuda_is_ternary_row(b->cuda, next->function);
}

/* Whether x and the sum can lie where nothing else does: blocks write the sum and their results
 * when others have yet to read x and what is added to it. */
static bool can_move(const qn__cuda_binder *b, const taken *norm)
{
    return qn__cuda_can_move_result(b, norm->i - 1, 2) && qn__cuda_can_move_result(b, norm->i, 2);
}

/* Where sums of squares lie, those of one row at a time. */
static uint32_t place_of_squares(qn__cuda_binder *b)
{
    if (!b->bound->squares)
        b->bound->squares = qn__cuda_keep(b, QN__CUDA_MOST_SQUARED / 4 * sizeof(float));
    return b->bound->squares;
}

static void take_norm(qn__cuda_binder *b, const taken *norm, qn__cuda_launch *ahead)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *launch = &bound->launches[norm->i], *next = launch + 1;
    qn__cuda_linears_args *args = qn__cuda_linears_of(b, next);
    uint32_t *its = bound->at + next->first_at;
    if (norm->sum) {
        qn__cuda_move_result(b, norm->i - 1, 2);
        qn__cuda_move_result(b, norm->i, 2);
        qn__cuda_unit_row_gets_norms(b, ahead);
        qn__cuda_unit_row_gets_norms(b, next);
        bound->at[ahead->first_at + QN__CUDA_SQUARES] = place_of_squares(b);
        its[QN__CUDA_SQUARES] = place_of_squares(b);
        its[QN__CUDA_ADDED_TO_X] = norm->at[QN__CUDA_NORM_ADDED];
        its[QN__CUDA_SUM_WITH_X] = norm->at[2];
        its[QN__CUDA_NORM_OF_SUM] = norm->at[QN__CUDA_NORM_WEIGHT];
        args->eps_behind = (float)norm->args->eps_behind;
    }
    its[0] = norm->at[0];
    its[QN__CUDA_NORM_OF_X] = norm->at[1];
    args->eps = (float)norm->args->eps;
    memmove(launch, next, (bound->n_launches - norm->i - 1) * sizeof *launch);
    bound->n_launches--;
}

void qn__cuda_take_norms(qn__cuda_binder *b)
{
    for (uint32_t i = 0; i + 1 < b->bound->n_launches; i++) {
        taken norm;
        if (!find_norm(b, i, &norm) || !takes_norms(b, &norm) || !is_for_next_alone(b, &norm))
            continue;
        qn__cuda_launch *ahead = norm.sum ? maker_of_squares(b, &norm) : NULL;
        if (!norm.sum || (ahead && can_move(b, &norm)))
            take_norm(b, &norm, ahead);
    }
}
