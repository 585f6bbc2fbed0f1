/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU as a device: host memory, the choice of kernels, running bindings on the thread team.
 */
#include "cpu/device.h"

#include "base/error.h"
#include "core/dtype.h"
#include "cpu/cpu.h"
#include "quant/layout.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ---- memory
 * ------------------------------------------------------------------------------------------- */

enum { HUGE_PAGE = 2 << 20 };

/* Large blocks are aligned to huge pages and ask for them: weights stream 3 to 4 % faster. */
void *qn__cpu_alloc(qn_device *device, size_t size)
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

/* Whole steps of a commit, so that none reaches beyond the end. */
static size_t reserved_bytes(size_t size)
{
    return (size + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
}

static void *cpu_reserve(qn_device *device, size_t size)
{
    (void)device;
    void *p = mmap(NULL, reserved_bytes(size), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool cpu_commit(qn_device *device, void *data, size_t had, size_t want)
{
    (void)device;
    char *p = data;
    if (want < had) {
        madvise(p + want, had - want, MADV_DONTNEED);
        return mprotect(p + want, had - want, PROT_NONE) == 0;
    }
    if (mprotect(p + had, want - had, PROT_READ | PROT_WRITE) != 0)
        return false;
    if (want - had >= HUGE_PAGE)
        madvise(p + had, want - had, MADV_HUGEPAGE);
    return true;
}

static void cpu_unreserve(qn_device *device, void *data, size_t size, size_t committed)
{
    (void)device, (void)committed;
    munmap(data, reserved_bytes(size));
}

/* The buffer is new: nothing that runs knows it. */
static qn_status cpu_write(qn_device *device, void *to, const void *host, size_t n, qn_error *err)
{
    (void)device, (void)err;
    memcpy(to, host, n);
    return QN_OK;
}

static qn_status cpu_read(qn_device *device, void *host, const qn__buffer *from, size_t offset,
                          size_t n, qn_error *err)
{
    (void)err;
    qn__cpu_queue_wait(device->state, atomic_load(&from->written_by));
    memcpy(host, (const char *)from->data + offset, n);
    return QN_OK;
}

/* ---- kernels
 * ------------------------------------------------------------------------------------------ */

static bool accepts_floats(const qn_array *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i]->layout)
            return false;
    return node->dtype == QN_F32 || node->dtype == QN_F64;
}

static const void *cpu_routine(qn_device *device, const qn_array *node)
{
    (void)device;
    const qn__cpu_routine *op = qn__cpu_routines[node->op];
    return op && (op->accepts ? op->accepts : accepts_floats)(node) ? op : NULL;
}

/* Every encoding in units; the values of plain 16-bit ones keep their type. */
static bool cpu_hold(qn_device *device, const qn__encoding *e, qn_dtype *dtype,
                     qn__layout_id *layout)
{
    (void)device;
    size_t id = (size_t)(e - qn__encodings);
    *dtype = id == QN__BF16 ? QN_BF16 : id == QN__F16 ? QN_F16 : QN_F32;
    *layout = QN__UNITS_OF(id);
    return true;
}

/* Numbers as they are; else blocks of some width, which a head's length has many of. */
static bool cpu_keep(qn_device *device, const qn__encoding *e, qn_dtype *dtype,
                     qn__layout_id *layout)
{
    cpu_hold(device, e, dtype, layout);
    if (e->block_elements == 1)
        *layout = QN__PLAIN;
    return e->block_elements <= 128 && e != &qn__encodings[QN__I2_S];
}

static qn_status cpu_pack_rows(qn_device *device, qn_array *w, const qn__encoding *e,
                               const void *rows, int64_t first, int64_t n, qn_error *err)
{
    (void)device;
    const qn__layout *l = qn__layout_of(w->layout);
    if (!l || l->encoding != e)
        return qn__fail(err, QN_UNSUPPORTED, "cpu: no packing of %s into %s", e->name,
                        qn__layout_name(w->layout));
    qn__layout_pack(l, w->buffer->data, w->shape[0], w->shape[1], rows,
                    qn__encoding_row_bytes(e, w->shape[1]), first, n);
    return QN_OK;
}

static int cpu_packers(const qn_device *device)
{
    const qn__cpu *cpu = device->state;
    return qn__team_size(cpu->team);
}

/* ---- binding
 * -------------------------------------------------------------------------------------------- */

/* A copy of a value before an update that could not be in place: a unit is one element. */
static int64_t prepare_copy(qn__cpu_job *job)
{
    job->n_phases = 1;
    return job->units[0] = qn__cpu_elements(&job->call->operand[1]);
}

static void run_copy(const qn__cpu_job *job, const qn__cpu_part *part)
{
    qn__cpu_copy(&job->call->operand[0], part->at[0], &job->call->operand[1], part->at[1],
                 part->begin, part->end);
}

static const qn__cpu_routine copy_routine = {.prepare = prepare_copy, .run = run_copy};

enum { SERIAL_WORK = 16384, LONG_WORK = 1 << 28 };

static bool bind_job(qn__cpu *cpu, const qn__call *call, qn__cpu_job *job, size_t *bytes)
{
    job->call = call;
    job->table = &cpu->table;
    job->n_threads = qn__team_size(cpu->team);
    if (call->program) {
        job->op = &cpu->tape_routine;
        return (job->tape = qn__cpu_tape_new(job, bytes)) != NULL;
    }
    job->op = call->copy ? &copy_routine : call->routine;
    int64_t work = job->op->prepare(job);
    job->serial = work < SERIAL_WORK;
    job->long_work = work > LONG_WORK;
    return true;
}

static void cpu_drop(qn_device *device, qn__binding *binding)
{
    (void)device;
    qn__cpu_binding *bound = binding->device_part;
    if (!bound)
        return;
    for (uint32_t i = 0; i < bound->n_jobs; i++)
        free((void *)bound->jobs[i].tape);
    free(bound->jobs);
    free(bound->tasks);
    free(bound);
}

static qn_status cpu_bind(qn_device *device, const qn__plan *plan, qn__binding *binding,
                          qn_error *err)
{
    qn__cpu *cpu = device->state;
    qn__cpu_binding *bound = calloc(1, sizeof *bound);
    if (!bound)
        return qn__fail_memory(err, "a binding");
    binding->device_part = bound;
    bound->jobs = calloc(plan->n_steps + 1, sizeof *bound->jobs);
    bound->tasks = calloc((size_t)plan->n_steps * QN__CPU_PHASES + 1, sizeof *bound->tasks);
    if (!bound->jobs || !bound->tasks)
        return qn__fail_memory(err, "a binding");
    for (; bound->n_jobs < plan->n_steps; bound->n_jobs++) {
        qn__cpu_job *job = &bound->jobs[bound->n_jobs];
        if (!bind_job(cpu, &binding->calls[bound->n_jobs], job, &binding->bytes))
            return qn__fail_memory(err, "a binding");
    }
    int n_threads = qn__team_size(cpu->team);
    qn__cpu_make_tasks(bound, plan, n_threads);
    bound->scratch = (bound->scratch + 127) & ~(size_t)63; /* no line shared between threads */
    bound->shared = (bound->shared + 127) & ~(size_t)63;
    qn__cpu_divide_workspace(binding, n_threads);
    binding->bytes += sizeof *bound + plan->n_steps * sizeof *bound->jobs +
                      (size_t)plan->n_steps * QN__CPU_PHASES * sizeof *bound->tasks;
    return QN_OK;
}

/* ---- opening
 * -------------------------------------------------------------------------------------------- */

static void cpu_describe(qn_device *device, char *text, size_t room)
{
    qn__cpu *cpu = device->state;
    int n = qn__team_size(cpu->team);
    snprintf(text, room, "%s, %d thread%s", cpu->table.tier, n, n == 1 ? "" : "s");
}

/* The interpreter of fused chains of each tier. */
static const struct {
    const char *tier;
    void (*run)(const qn__cpu_job *job, const qn__cpu_part *part);
} interpreters[] = {
    {"ref", qn__cpu_run_tape_ref},
#if defined(__x86_64__)
    {"avx2", qn__cpu_run_tape_avx2},
    {"avx512", qn__cpu_run_tape_avx512},
    {"amx", qn__cpu_run_tape_avx512},
#elif defined(__aarch64__)
    {"neon", qn__cpu_run_tape_neon},
#endif
};

/* What of the table a model's speed hangs on; fused chains have kernels beside it. */
static const struct {
    const char *purpose;
    size_t entry;
} purposes[] = {
    {"linear", offsetof(qn__cpu_kernels, linear[QN__CPU_BF16])},
    {"linear-int8", offsetof(qn__cpu_kernels, linear[QN__CPU_INT8])},
    {"attention", offsetof(qn__cpu_kernels, attend)},
    {"cache", offsetof(qn__cpu_kernels, cache_write)},
    {"norm", offsetof(qn__cpu_kernels, rms_norm)},
    {"rope", offsetof(qn__cpu_kernels, rope)},
    {"argmax", offsetof(qn__cpu_kernels, argmax)},
};
enum { N_PURPOSES = sizeof purposes / sizeof *purposes };

static bool cpu_chosen(const qn_device *device, int i, const char **purpose, const char **tier)
{
    const qn__cpu *cpu = device->state;
    if (i < N_PURPOSES) {
        *purpose = purposes[i].purpose;
        *tier = qn__cpu_kernel_tier(&cpu->table, purposes[i].entry);
        return true;
    }
    *purpose = "elementwise";
    for (size_t k = 0; k < sizeof interpreters / sizeof *interpreters; k++)
        if (cpu->tape_routine.run == interpreters[k].run) {
            *tier = interpreters[k].tier;
            break;
        }
    return i == N_PURPOSES;
}

static void cpu_close(qn_device *device)
{
    qn__cpu *cpu = device->state;
    qn__device_end(device);
    qn__cpu_queue_end(cpu);
    qn__team_free(cpu->team);
    free(cpu);
    free(device);
}

static const qn__device_ops cpu_ops = {
    .kind = "cpu",
    .close = cpu_close,
    .alloc = qn__cpu_alloc,
    .free = cpu_free,
    .reserve = cpu_reserve,
    .commit = cpu_commit,
    .unreserve = cpu_unreserve,
    .write = cpu_write,
    .read = cpu_read,
    .routine = cpu_routine,
    .hold = cpu_hold,
    .keep = cpu_keep,
    .pack_rows = cpu_pack_rows,
    .ceilings = qn__cpu_ceilings,
    .packers = cpu_packers,
    .bind = cpu_bind,
    .drop = cpu_drop,
    .submit = qn__cpu_submit,
    .wait = qn__cpu_wait,
    .describe = cpu_describe,
    .chosen = cpu_chosen,
};

/* The tier that is asked for; NULL: the best. */
static const char *wanted_tier(const qn_device_options *options)
{
    const char *tier = options && options->tier ? options->tier : getenv("QN_CPU");
    return tier && *tier ? tier : NULL;
}

qn__weigh_fn *qn__cpu_host_weigh(const qn_device_options *options)
{
    qn__cpu_kernels t;
    qn__cpu_kernels_fill(&t, wanted_tier(options));
    return t.weigh;
}

static qn_status choose_tier(qn__cpu *cpu, const qn_device_options *options, qn_error *err)
{
    const char *tier = wanted_tier(options);
    if (qn__cpu_kernels_fill(&cpu->table, tier) != 0) {
        char known[64] = "";
        for (int i = 0; qn__cpu_tier_name(i); i++) {
            size_t n = strlen(known);
            snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", qn__cpu_tier_name(i));
        }
        return qn__fail(err, QN_UNSUPPORTED,
                        "cpu: tier \"%s\" is unknown or this processor lacks it; there are %s",
                        tier, known);
    }
    for (size_t i = 0; i < sizeof interpreters / sizeof *interpreters; i++)
        if (!strcmp(interpreters[i].tier, cpu->table.tier))
            cpu->tape_routine.run = interpreters[i].run;
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
    qn__cpu_queue_begin(cpu);
    device->state = cpu;
    qn__device_begin(device, &cpu_ops, "cpu", options);
    *out = device;
    return QN_OK;
}
