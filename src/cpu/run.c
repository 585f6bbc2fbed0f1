/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a binding: the team walks its steps in lockstep. Pointers are resolved once before; between two
 * steps there is neither an allocation nor a lock.
 */
#include "base/error.h"
#include "cpu/cpu.h"

#include <stdlib.h>

typedef struct run_context {
    qn__cpu *cpu;
    const qn__cpu_binding *part;
    char **pointers; /* resolved, an operand each */
    char *scratch, *shared;
    const atomic_bool *cancel;
    atomic_bool stop;
} run_context;

static void run_range(const run_context *run, const qn__cpu_step *step, int phase, int thread,
                      int n)
{
    int64_t units = step->units[phase];
    qn__cpu_part part = {
        .at = run->pointers + step->call->first_operand,
        .phase = phase,
        .begin = units * thread / n,
        .end = units * (thread + 1) / n,
        .scratch = run->scratch + (size_t)thread * run->part->scratch,
        .shared = run->shared,
    };
    if (part.begin < part.end)
        step->op->run(step, &part);
}

/* Small steps run on thread 0 with no barrier among them; a barrier stands wherever a phase that all
 * threads share begins or ends. */
static void run_thread(void *context, int thread, int n)
{
    run_context *run = context;
    bool dirty = false; /* thread 0 has written since the last barrier */
    for (uint32_t i = 0; i < run->part->n_steps; i++) {
        const qn__cpu_step *step = &run->part->steps[i];
        bool alone = step->serial || n == 1;
        if (!alone && dirty)
            qn__team_barrier(run->cpu->team);
        for (int phase = 0; phase < step->n_phases; phase++) {
            if (!alone) {
                run_range(run, step, phase, thread, n);
                if (thread == 0 && run->cancel && atomic_load(run->cancel))
                    atomic_store(&run->stop, true);
                qn__team_barrier(run->cpu->team);
            } else if (thread == 0) {
                run_range(run, step, phase, 0, 1);
            }
        }
        dirty = alone;
        if (n == 1 && run->cancel && atomic_load(run->cancel))
            atomic_store(&run->stop, true);
        if (!alone || n == 1)
            if (atomic_load_explicit(&run->stop, memory_order_relaxed))
                return;
    }
}

qn_status qn__cpu_run(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cpu *cpu = device->state;
    const qn__binding *binding = sub->binding;
    const qn__plan *plan = binding->plan;
    const qn__cpu_binding *part = binding->device_part;
    int n = qn__team_size(cpu->team);
    size_t values = (plan->workspace + 63) & ~(size_t)63;
    size_t pointers = ((plan->n_operands + 1) * sizeof(char *) + 63) & ~(size_t)63;
    char *base = qn__pool_workspace(
        device, values + pointers + part->shared + part->scratch * (size_t)n, err);
    if (!base)
        return sub->status = err->code;
    sub->slots[sub->n_slots - 1] = base;
    run_context run = {.cpu = cpu, .part = part, .cancel = sub->cancel};
    run.pointers = (char **)(base + values);
    run.shared = base + values + pointers;
    run.scratch = run.shared + part->shared;
    for (uint32_t i = 0; i < plan->n_operands; i++)
        run.pointers[i] =
            (char *)sub->slots[binding->operands[i].slot] + binding->operands[i].offset;
    qn__team_run(cpu->team, run_thread, &run);
    if (atomic_load(&run.stop))
        return sub->status = qn__fail(err, QN_CANCELLED, "cancelled");
    return sub->status = QN_OK;
}
