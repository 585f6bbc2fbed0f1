/* SPDX-License-Identifier: Apache-2.0
 *
 * User primitives on the CPU: operands become views, and the team's ranges go to the user's kernel.
 */
#include "core/primitive.h"
#include "cpu/cpu.h"

static bool accepts_custom(const qn_array *node)
{
    (void)node; /* qn_custom has looked */
    return true;
}

static int64_t prepare_custom(qn__cpu_job *job)
{
    const qn__custom_params *c = job->call->params;
    const qn_primitive_def *def = &c->primitive->def;
    const qn__operand *y = &job->call->operand[job->call->n_operands - 1];
    int64_t n = qn__cpu_elements(y), work = n;
    for (uint32_t i = 0; i + 1 < job->call->n_operands; i++)
        work += qn__cpu_elements(&job->call->operand[i]);
    job->n_phases = 1;
    job->units[0] = def->unit == QN_UNIT_ELEMENT ? n
                    : def->unit == QN_UNIT_WHOLE ? 1
                    : n                          ? qn__cpu_rows(y)
                                                 : 0;
    job->scratch = def->scratch ? def->scratch + 64 : 0;
    return work;
}

static void run_custom(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__call *call = job->call;
    const qn__custom_params *c = call->params;
    qn_view view[QN_MAX_CUSTOM_INPUTS + 1];
    for (uint32_t i = 0; i < call->n_operands; i++) {
        const qn__operand *o = &call->operand[i];
        view[i] = (qn_view){.data = part->at[i], .dtype = (qn_dtype)o->dtype, .ndim = o->ndim};
        memcpy(view[i].shape, o->shape, sizeof o->shape);
        memcpy(view[i].stride, o->stride, sizeof o->stride);
    }
    char *scratch = (char *)part->scratch + (-(uintptr_t)part->scratch & 63);
    c->primitive->def.cpu(view, &view[call->n_operands - 1], c->params, part->begin, part->end,
                          scratch);
}

const qn__cpu_routine qn__cpu_custom_routine = {QN__OP_CUSTOM, .accepts = accepts_custom,
                                                .prepare = prepare_custom, .run = run_custom};
