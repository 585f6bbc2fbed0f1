/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages of the plan (core/plan_stage.c): a norm of one row is left to the linear layers behind it,
 * which each norm that row for themselves.
 */
#include "cuda/cuda.h"

static qn__stage_part part_of(const qn__cuda_binder *b, const qn__call *call)
{
    return (qn__stage_part)b->binding->plan->steps[call - b->binding->calls].part;
}

static bool can_norm(const qn__cuda_binder *b, const qn__call *call)
{
    if (call->op != QN__OP_LINEAR || call->program || call->copy)
        return false;
    return call->operand[1].layout ? qn__cuda_units_norm(b->cuda, call)
                                   : qn__cuda_stream_norm(b->cuda, call);
}

bool qn__cuda_leave_norm(qn__cuda_binder *b, const qn__call *norm)
{
    const qn__call *end = b->binding->calls + b->binding->plan->n_steps, *call = norm + 1;
    if (part_of(b, norm) != QN__PART_PROLOGUE)
        return false;
    do {
        if (!can_norm(b, call))
            return false;
    } while (++call < end && part_of(b, call) == QN__PART_SIBLING);
    b->norm = norm;
    return true;
}

const qn__call *qn__cuda_norm_of(const qn__cuda_binder *b, const qn__call *linear)
{
    const qn__operand *x = &linear->operand[0],
                      *y = b->norm ? &b->norm->operand[b->norm->n_operands - 1] : NULL;
    bool behind = b->norm && linear > b->norm &&
                  linear - b->binding->calls <
                      qn__stage_end(b->binding->plan, (uint32_t)(b->norm - b->binding->calls));
    return behind && x->slot == y->slot && x->offset == y->offset ? b->norm : NULL;
}
