/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a binding: the team walks its tasks in order. A task is cut into chunks that threads take
 * as they come, and the next begins when all chunks are done, unless it needs none of them; so a
 * thread that is not running, on a busy machine, holds up nobody. Pointers are resolved once
 * before; between two tasks there is neither an allocation nor a lock.
 */
#include "base/error.h"
#include "cpu/cpu.h"

#include <stdalign.h>
#include <stdlib.h>

/* How far a task is: chunks that a thread has taken, and chunks that are done. */
typedef struct progress {
    alignas(64) atomic_uint taken;
    atomic_uint done;
} progress;

typedef struct run_context {
    const qn__cpu_binding *bound;
    char **pointers;    /* resolved, an operand each */
    progress *progress; /* a task each */
    char *scratch, *shared;
    const atomic_bool *cancel;
} run_context;

/* A thread of a run: its scratch, and what it has prepared there. */
typedef struct worker {
    const run_context *run;
    char *scratch;
    uint32_t prepared;
} worker;

enum {
    MOST_OPERANDS = 8, /* of a stage's root */
    PIECE = 8          /* tiles of passes that go together: 8 KB of an array in f32 */
};

/* The rows that a job reads as input 0, which its thread makes for itself. */
static char *make_input(const worker *w, const qn__cpu_job *job)
{
    const qn__cpu_job *prologue = job->prologue;
    uint32_t n = prologue->call->n_operands;
    char *at[MOST_OPERANDS], *rows = (char *)(((uintptr_t)w->scratch + 63) & ~(uintptr_t)63);
    memcpy(at, w->run->pointers + prologue->call->first_operand, n * sizeof *at);
    at[n - 1] = rows;
    qn__cpu_part part = {.at = at, .end = prologue->units[0], .shared = w->run->shared};
    if (w->prepared != job->prepared)
        prologue->op->run(prologue, &part);
    return rows;
}

static void run_units(worker *w, const qn__cpu_job *job, int phase, int64_t begin, int64_t end)
{
    char *at[MOST_OPERANDS];
    qn__cpu_part part = {
        .at = w->run->pointers + job->call->first_operand,
        .phase = phase,
        .begin = begin,
        .end = end,
        .scratch = w->scratch + job->scratch_at,
        .shared = w->run->shared,
        .prepared = job->prepared && w->prepared == job->prepared,
    };
    if (begin >= end)
        return;
    if (job->prologue) {
        memcpy(at, part.at, job->call->n_operands * sizeof *at);
        at[0] = make_input(w, job);
        part.at = at;
    }
    job->op->run(job, &part);
    if (!job->tape || !job->prepared) /* sinks leave it as it is */
        w->prepared = job->prepared;
}

/* Columns of what a root and its siblings give, and then what the sinks make of them. */
static void run_columns(worker *w, const qn__cpu_task *task, int64_t begin, int64_t end)
{
    const qn__cpu_job *root = &w->run->bound->jobs[task->job];
    const qn__operand *y = &root->call->operand[root->call->n_operands - 1];
    int64_t n = y->shape[y->ndim - 1], rows = qn__cpu_rows(y);
    int64_t first = begin * root->op->columns, last = end * root->op->columns;
    last = last < n ? last : n;
    for (const qn__cpu_job *job = root; job < root + task->n_jobs; job++)
        if (!job->tape)
            run_units(w, job, 0, begin, end);
        else
            for (int64_t r = 0; r < rows; r++)
                run_units(w, job, QN__TAPE_ELEMENTS, r * n + first, r * n + last);
}

/* Tiles of one pass, and then what the others make of them. */
static void run_along(worker *w, const qn__cpu_task *task, int64_t begin, int64_t end)
{
    const qn__cpu_job *jobs = &w->run->bound->jobs[task->job];
    for (; begin < end; begin += PIECE)
        for (uint32_t i = 0; i < task->n_jobs; i++)
            run_units(w, &jobs[i], 0, begin, begin + PIECE < end ? begin + PIECE : end);
}

/* Where a chunk begins: they shrink towards the end, so that what is waited for there is short. */
static int64_t begin_of(int64_t units, int64_t chunk, int64_t n)
{
    if (n == units)
        return chunk;
    double left = (double)(n - chunk) / (double)n;
    return units - (int64_t)((double)units * left * left);
}

static void run_chunk(worker *w, const qn__cpu_task *task, int64_t chunk)
{
    const qn__cpu_job *job = &w->run->bound->jobs[task->job];
    if (task->phase != QN__TASK_SERIAL) {
        int phase = task->phase;
        int64_t units = job->units[phase < 0 ? 0 : phase];
        int64_t begin = begin_of(units, chunk, task->n_chunks),
                end = begin_of(units, chunk + 1, task->n_chunks);
        if (phase == QN__TASK_COLUMNS)
            run_columns(w, task, begin, end);
        else if (phase == QN__TASK_ALONG)
            run_along(w, task, begin, end);
        else
            run_units(w, job, phase, begin, end);
        return;
    }
    for (uint32_t i = 0; i < task->n_jobs; i++, job++)
        for (int phase = 0; phase < job->n_phases; phase++)
            run_units(w, job, phase, 0, job->units[phase]);
}

static bool cancelled(const run_context *run)
{
    return run->cancel && atomic_load_explicit(run->cancel, memory_order_relaxed);
}

/* Waits until the tasks begin..end - 1 are done. */
static void wait_for(const run_context *run, uint32_t begin, uint32_t end)
{
    for (uint32_t t = begin; t < end; t++)
        for (unsigned i = 0; atomic_load_explicit(&run->progress[t].done, memory_order_acquire) <
                             run->bound->tasks[t].n_chunks;
             i++)
            qn__team_pause(i);
}

/* Takes chunks of a task until none is left. A cancelled run still counts its chunks, so that every
 * thread gets through. */
static void work_on(worker *w, uint32_t t)
{
    const run_context *run = w->run;
    const qn__cpu_task *task = &run->bound->tasks[t];
    progress *p = &run->progress[t];
    for (;;) {
        uint32_t chunk = atomic_fetch_add_explicit(&p->taken, 1, memory_order_relaxed);
        if (chunk >= task->n_chunks)
            break;
        if (!cancelled(run))
            run_chunk(w, task, chunk);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
    }
}

static void run_alone(worker *w)
{
    const run_context *run = w->run;
    for (uint32_t t = 0; t < run->bound->n_tasks; t++)
        for (uint32_t chunk = 0; chunk < run->bound->tasks[t].n_chunks; chunk++)
            if (!cancelled(run))
                run_chunk(w, &run->bound->tasks[t], chunk);
}

static void run_thread(void *context, int thread, int n)
{
    const run_context *run = context;
    worker w = {.run = run, .scratch = run->scratch + (size_t)thread * run->bound->scratch};
    if (n == 1) {
        run_alone(&w);
        return;
    }
    uint32_t done = 0, n_tasks = run->bound->n_tasks; /* tasks before `done` are known to be done */
    for (uint32_t t = 0; t < n_tasks; t++) {
        if (!run->bound->tasks[t].beside) {
            wait_for(run, done, t);
            done = t;
        }
        work_on(&w, t);
    }
    wait_for(run, done, n_tasks);
}

/* The parts of a run's workspace, each a whole number of cache lines. */
typedef struct parts {
    size_t pointers, progress, shared, scratch, end; /* offsets, behind the values */
} parts;

static parts divide(const qn__binding *binding, int n_threads)
{
    const qn__cpu_binding *bound = binding->device_part;
    parts p = {.pointers = (binding->values + 63) & ~(size_t)63};
    p.progress =
        p.pointers + (((binding->plan->n_operands + 1) * sizeof(char *) + 63) & ~(size_t)63);
    p.shared = p.progress + bound->n_tasks * sizeof(progress);
    p.scratch = p.shared + bound->shared;
    p.end = p.scratch + bound->scratch * (size_t)n_threads;
    return p;
}

void qn__cpu_divide_workspace(qn__binding *binding, int n_threads)
{
    binding->workspace = divide(binding, n_threads).end;
}

qn_status qn__cpu_run(qn_device *device, qn__submission *sub, qn_error *err)
{
    qn__cpu *cpu = device->state;
    const qn__binding *binding = sub->binding;
    const qn__plan *plan = binding->plan;
    const qn__cpu_binding *bound = binding->device_part;
    qn_status status = qn__submission_begin(sub, err);
    if (status != QN_OK)
        return status;
    parts p = divide(binding, qn__team_size(cpu->team));
    char *base = sub->slots[sub->n_slots - 1];
    run_context run = {.bound = bound, .cancel = sub->cancel};
    run.pointers = (char **)(base + p.pointers);
    run.progress = memset(base + p.progress, 0, p.shared - p.progress);
    run.shared = base + p.shared;
    run.scratch = base + p.scratch;
    for (uint32_t i = 0; i < plan->n_operands; i++)
        run.pointers[i] =
            (char *)sub->slots[binding->operands[i].slot] + binding->operands[i].offset;
    qn__team_run(cpu->team, run_thread, &run);
    return cancelled(&run) ? qn__fail(err, QN_CANCELLED, "cancelled") : QN_OK;
}
