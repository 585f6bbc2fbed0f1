/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU as a device: host memory, the choice of kernels, running bindings on the thread team.
 */
#include "cpu/device.h"

#include "base/error.h"
#include "core/dtype.h"
#include "cpu/cpu.h"
#include "quant/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ---- memory ------------------------------------------------------------------------------------------- */

enum { HUGE_PAGE = 2 << 20 };

/* Large blocks are aligned to huge pages and ask for them: weights stream 3 to 4 % faster. */
static void *cpu_alloc(qn_device *device, size_t size)
{
    (void)device;
    if (size < HUGE_PAGE)
        return aligned_alloc(64, (size + 63) & ~(size_t)63);
    void *p = aligned_alloc(HUGE_PAGE, (size + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1));
    if (p)
        madvise(p, size, MADV_HUGEPAGE);
    return p;
}

static void cpu_free(qn_device *device, void *data, size_t size)
{
    (void)device, (void)size;
    free(data);
}

static qn_status cpu_copy(qn_device *device, void *to, const void *from, size_t n, qn_error *err)
{
    (void)device, (void)err;
    memcpy(to, from, n);
    return QN_OK;
}

/* ---- kernels ------------------------------------------------------------------------------------------ */

static bool accepts_floats(const qn_array *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i]->format)
            return false;
    return node->dtype == QN_F32 || node->dtype == QN_F64;
}

static const void *cpu_kernel(qn_device *device, const qn_array *node)
{
    (void)device;
    const qn__cpu_op *op = qn__cpu_ops[node->op];
    return op && (op->accepts ? op->accepts : accepts_floats)(node) ? op : NULL;
}

static uint8_t cpu_weight_format(qn_device *device, qn_dtype dtype)
{
    (void)device;
    return dtype == QN_BF16 ? QN__PANEL_BF16 : dtype == QN_F32 ? QN__PANEL_F32 : QN__PLAIN;
}

static qn_status cpu_pack_rows(qn_device *device, qn_array *w, qn_dtype dtype, const void *values,
                               int64_t first, int64_t n, qn_error *err)
{
    qn__cpu *cpu = device->state;
    qn__cpu_type from = dtype == QN_BF16  ? QN__CPU_BF16
                        : dtype == QN_F16 ? QN__CPU_F16
                                          : QN__CPU_F32;
    if (!w->format || (dtype != QN_F32 && dtype != QN_BF16 && dtype != QN_F16))
        return qn__fail(err, QN_UNSUPPORTED, "cpu: no packing of %s into %s", qn_dtype_name(dtype),
                        qn__format_name(w->format));
    cpu->table.pack_rows(w->format == QN__PANEL_BF16 ? QN__CPU_BF16 : QN__CPU_F32, w->buffer->data,
                         (size_t)w->shape[0], (size_t)w->shape[1], from, values,
                         (size_t)w->shape[1], (size_t)first, (size_t)(first + n));
    return QN_OK;
}

/* ---- binding -------------------------------------------------------------------------------------------- */

typedef struct cpu_binding {
    qn__cpu_step *steps;
    uint32_t n_steps;
    size_t scratch, shared; /* the most that a step needs */
} cpu_binding;

/* A plain copy of a buffer, before an update that could not be in place. */
static int64_t prepare_copy(qn__cpu_step *step)
{
    step->n_phases = 1;
    return step->units[0] = qn__cpu_elements(&step->call->operand[1]);
}

static void run_copy(const qn__cpu_step *step, const qn__cpu_part *part)
{
    const qn__operand *from = &step->call->operand[0];
    size_t size = qn__dtype_size((qn_dtype)from->dtype);
    for (int64_t i = part->begin; i < part->end; i++)
        memcpy(part->at[1] + (size_t)i * size,
               part->at[0] + qn__cpu_offset(from, from->ndim, i) * (int64_t)size, size);
}

static const qn__cpu_op copy_op = {.prepare = prepare_copy, .run = run_copy};

enum { SERIAL_WORK = 16384 };

static bool bind_step(qn__cpu *cpu, const qn__call *call, qn__cpu_step *step)
{
    step->call = call;
    step->table = &cpu->table;
    if (call->program) {
        step->op = &cpu->tape_op;
        return (step->tape = qn__cpu_tape_new(step)) != NULL;
    }
    step->op = call->copy ? &copy_op : call->kernel;
    step->serial = step->op->prepare(step) < SERIAL_WORK;
    return true;
}

static void cpu_drop(qn_device *device, qn__binding *binding)
{
    (void)device;
    cpu_binding *part = binding->device_part;
    if (!part)
        return;
    for (uint32_t i = 0; i < part->n_steps; i++)
        free((void *)part->steps[i].tape);
    free(part->steps);
    free(part);
}

static qn_status cpu_bind(qn_device *device, const qn__plan *plan, qn__binding *binding,
                          qn_error *err)
{
    qn__cpu *cpu = device->state;
    cpu_binding *part = calloc(1, sizeof *part);
    if (!part)
        return qn__fail_memory(err, "a binding");
    binding->device_part = part;
    part->steps = calloc(plan->n_steps + 1, sizeof *part->steps);
    if (!part->steps)
        return qn__fail_memory(err, "a binding");
    for (; part->n_steps < plan->n_steps; part->n_steps++) {
        qn__cpu_step *step = &part->steps[part->n_steps];
        if (!bind_step(cpu, &binding->calls[part->n_steps], step))
            return qn__fail_memory(err, "a binding");
        part->scratch = step->scratch > part->scratch ? step->scratch : part->scratch;
        part->shared = step->shared > part->shared ? step->shared : part->shared;
    }
    part->scratch = (part->scratch + 127) & ~(size_t)63; /* no line shared between threads */
    part->shared = (part->shared + 127) & ~(size_t)63;
    return QN_OK;
}

/* ---- running -------------------------------------------------------------------------------------------- */

typedef struct run_context {
    qn__cpu *cpu;
    const cpu_binding *part;
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

static bool reserve_workspace(qn__cpu *cpu, qn_device *device, size_t size, qn_error *err)
{
    if (size <= cpu->workspace_size)
        return true;
    size_t limit = qn_device_memory(device).limit, active = qn_device_memory(device).active;
    if (limit && (size > limit || active > limit - size)) {
        qn__fail(err, QN_LIMIT, "%s: %zu bytes of workspace wanted, %zu in use, the limit is %zu",
                 device->name, size, active, limit);
        return false;
    }
    cpu_free(device, cpu->workspace, cpu->workspace_size);
    cpu->workspace_size = 0;
    cpu->workspace = cpu_alloc(device, size);
    if (!cpu->workspace) {
        qn__pool_trim(device, 0);
        cpu->workspace = cpu_alloc(device, size);
    }
    if (!cpu->workspace) {
        qn__fail(err, QN_MEMORY, "%s: no memory for %zu bytes of workspace", device->name, size);
        return false;
    }
    cpu->workspace_size = size;
    return true;
}

/* Runs at once: submissions of a device are in order because they run under its lock. */
static qn_status cpu_submit(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cpu *cpu = device->state;
    const qn__binding *binding = sub->binding;
    const qn__plan *plan = binding->plan;
    const cpu_binding *part = binding->device_part;
    int n = qn__team_size(cpu->team);
    size_t values = (plan->workspace + 63) & ~(size_t)63;
    size_t pointers = ((plan->n_operands + 1) * sizeof(char *) + 63) & ~(size_t)63;
    pthread_mutex_lock(&cpu->lock);
    if (!reserve_workspace(cpu, device,
                           values + pointers + part->shared + part->scratch * (size_t)n, err)) {
        pthread_mutex_unlock(&cpu->lock);
        return sub->status = err ? err->code : QN_MEMORY;
    }
    sub->slots[sub->n_slots - 1] = cpu->workspace;
    char *base = cpu->workspace;
    run_context run = {.cpu = cpu, .part = part, .cancel = sub->cancel};
    run.pointers = (char **)(base + values);
    run.shared = base + values + pointers;
    run.scratch = run.shared + part->shared;
    for (uint32_t i = 0; i < plan->n_operands; i++)
        run.pointers[i] =
            (char *)sub->slots[binding->operands[i].slot] + binding->operands[i].offset;
    qn__team_run(cpu->team, run_thread, &run);
    pthread_mutex_unlock(&cpu->lock);
    if (atomic_load(&run.stop))
        return sub->status = qn__fail(err, QN_CANCELLED, "cancelled");
    return sub->status = QN_OK;
}

static qn_status cpu_wait(qn_device *device, qn__submission *sub, qn_error *err)
{
    (void)device;
    return sub->status == QN_OK ? QN_OK : qn__fail(err, sub->status, "the evaluation failed");
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static void cpu_describe(qn_device *device, char *text, size_t room)
{
    qn__cpu *cpu = device->state;
    int n = qn__team_size(cpu->team);
    snprintf(text, room, "%s, %d thread%s", cpu->table.tier, n, n == 1 ? "" : "s");
}

static void cpu_close(qn_device *device)
{
    qn__cpu *cpu = device->state;
    qn__device_end(device);
    qn__team_free(cpu->team);
    free(cpu->workspace);
    pthread_mutex_destroy(&cpu->lock);
    free(cpu);
    free(device);
}

static const qn__device_ops cpu_ops = {
    .kind = "cpu",
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .write = cpu_copy,
    .read = cpu_copy,
    .kernel = cpu_kernel,
    .weight_format = cpu_weight_format,
    .pack_rows = cpu_pack_rows,
    .bind = cpu_bind,
    .drop = cpu_drop,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .describe = cpu_describe,
};

static qn_status choose_tier(qn__cpu *cpu, const qn_device_options *options, qn_error *err)
{
    const char *tier = options && options->tier ? options->tier : getenv("QN_CPU");
    if (tier && !*tier)
        tier = NULL;
    if (qn__cpu_kernels_fill(&cpu->table, tier) != 0)
        return qn__fail(err, QN_UNSUPPORTED,
                        "cpu: tier \"%s\" is unknown or this processor lacks it; there are ref, "
                        "avx2 and avx512",
                        tier);
    const char *chosen = cpu->table.tier;
    cpu->tape_op.run = qn__cpu_run_tape_ref;
#if defined(__x86_64__)
    if (!strcmp(chosen, "avx512"))
        cpu->tape_op.run = qn__cpu_run_tape_avx512;
    else if (!strcmp(chosen, "avx2"))
        cpu->tape_op.run = qn__cpu_run_tape_avx2;
#endif
    return QN_OK;
}

qn_status qn__cpu_open(qn_device **out, const qn_device_options *options, qn_error *err)
{
    qn_device *device = calloc(1, sizeof *device);
    qn__cpu *cpu = calloc(1, sizeof *cpu);
    if (!device || !cpu) {
        free(device);
        free(cpu);
        return qn__fail_memory(err, "a device");
    }
    qn_status status = choose_tier(cpu, options, err);
    int n = options ? options->threads : 0;
    if (status == QN_OK && (n < 0 || n > 1024))
        status = qn__fail(err, QN_INVALID, "cpu: %d threads; give 1 to 1024, or 0 for all", n);
    if (status == QN_OK) {
        cpu->team = qn__team_new(n ? n : qn__team_default_size());
        if (!cpu->team)
            status = qn__fail(err, QN_MEMORY, "cpu: the threads could not be started");
    }
    if (status != QN_OK) {
        free(device);
        free(cpu);
        return status;
    }
    pthread_mutex_init(&cpu->lock, NULL);
    device->state = cpu;
    qn__device_begin(device, &cpu_ops, "cpu", options);
    *out = device;
    return QN_OK;
}
