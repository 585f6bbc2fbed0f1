/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU device inside: how an operation's kernel is attached, and what a run passes to it.
 *
 * Each operation has one qn__cpu_routine in the list cpu.def. `prepare` looks at one call's sizes
 * and says into how many independent units each phase of the work can be cut and what scratch it
 * needs; `run` does a range of units. The thread team takes chunks of a phase as they come and
 * begins the next when all are done; which thread does which range can never change a bit.
 */
#ifndef QN_CPU_CPU_H
#define QN_CPU_CPU_H

#include "base/team.h"
#include "core/device.h"
#include "cpu/kernels/kernels.h"
#include "ops/params.h"

enum { QN__CPU_PHASES = 2 };

/* One call made ready for the CPU: how its work is cut. */
typedef struct qn__cpu_job {
    const qn__call *call;
    const struct qn__cpu_routine *op;
    const qn__cpu_kernels *table;
    const struct qn__cpu_tape *tape; /* of a fused chain */
    int n_threads; /* the team's: decides where scratch lies, never what is computed */
    int n_phases;
    int64_t units[QN__CPU_PHASES];
    size_t scratch; /* bytes a thread */
    size_t shared;  /* bytes for all threads, from phase to phase */
    bool serial;    /* too small to be worth cutting */
    bool long_work; /* so long that it is worth cutting finely */
    /* of a stage whose threads each prepare its input for themselves: */
    uint32_t prepared; /* which input, in which form: what a thread has already it does not prepare
                          again; 0: the job is of no such stage */
    const struct qn__cpu_job *prologue; /* makes that input, in scratch; NULL: it is there */
    size_t scratch_at, prologue_at; /* where its own, and that input, lie in a thread's scratch */
} qn__cpu_job;

/* One thread's part of a phase. at: one pointer an operand, the output last. */
typedef struct qn__cpu_part {
    char *const *at;
    int phase;
    int64_t begin, end; /* units */
    void *scratch, *shared;
    bool prepared; /* the thread has the input of the job's stage prepared in its scratch */
} qn__cpu_part;

typedef struct qn__cpu_routine {
    qn__op_id op;
    /* Whether it can compute this node; NULL: f32 and f64 in and out. */
    bool (*accepts)(const qn_array *node);
    /* Fills n_phases, units, scratch, shared; `work` in elements decides whether it is serial. */
    int64_t (*prepare)(qn__cpu_job *job);
    void (*run)(const qn__cpu_job *job, const qn__cpu_part *part);
    /* Whether this job prepares what `before`, its sibling, does: in phase 0 of two, which is then
     * left out, or in a thread's scratch. NULL: never. */
    bool (*shares)(const qn__cpu_job *job, const qn__cpu_job *before);
    /* Where part->begin..end of a job of one phase, in units, are columns of the output: how many
     * columns a unit has. 0: they are none. */
    int columns;
} qn__cpu_routine;

/* A fused chain in another unit than tiles: elements, where all operands are one axis. */
enum { QN__TAPE_ELEMENTS = 1 };

enum { QN__TASK_SERIAL = -1, QN__TASK_COLUMNS = -2, QN__TASK_ALONG = -3 };

/* What threads take chunks of: one phase of a job, a run of small jobs as a single chunk, columns
 * of all that a stage gives, or elements of all its passes. */
typedef struct qn__cpu_task {
    uint32_t job, n_jobs;
    int phase; /* or QN__TASK_SERIAL: all phases of n_jobs jobs; QN__TASK_COLUMNS: of n_jobs jobs, a
                  root, siblings and sinks, the same columns; QN__TASK_ALONG: of n_jobs passes the
                  same elements */
    uint32_t n_chunks;
    bool beside; /* needs nothing of the task before: begins without waiting for it */
} qn__cpu_task;

typedef struct qn__cpu_binding {
    qn__cpu_job *jobs;
    uint32_t n_jobs;
    qn__cpu_task *tasks;
    uint32_t n_tasks;
    size_t scratch, shared; /* the most that a job needs */
} qn__cpu_binding;

typedef struct qn__cpu {
    qn__team *team;
    qn__cpu_kernels table;
    qn__cpu_routine tape_routine; /* runs fused chains, in this tier */
    /* Submissions run one at a time, in the order of their numbers: first is the one whose turn it
     * is. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    qn__submission *first, *last;
    uint64_t n_submitted, n_run;
    bool quit;
    bool has_runner;
    pthread_t runner;
} qn__cpu;

/* tasks.c: cuts the jobs, one a step of the plan, into tasks, for which there is room, and says
 * what scratch and shared memory they need. */
void qn__cpu_make_tasks(qn__cpu_binding *bound, const qn__plan *plan, int n_threads);

/* ---- running (run.c, queue.c) ---- */

/* Runs a submission on the team; the caller sees to it that it is the only one. */
qn_status qn__cpu_run(qn_device *device, qn__submission *sub, qn_error *err);

/* Fills binding->workspace: behind the values, what a run needs itself. */
void qn__cpu_divide_workspace(qn__binding *binding, int n_threads);

void qn__cpu_queue_begin(qn__cpu *cpu);
void qn__cpu_queue_end(qn__cpu *cpu);
/* Returns once submission `number` has run. */
void qn__cpu_queue_wait(qn__cpu *cpu, uint64_t number);
qn_status qn__cpu_submit(qn_device *device, qn__submission *sub, qn_error *err);
qn_status qn__cpu_wait(qn_device *device, qn__submission *sub, qn_error *err);

void *qn__cpu_alloc(qn_device *device, size_t size);

/* ceilings.c: as qn__device_ops' ceilings, with the instructions of the tier that linear layers
 * have. */
void qn__cpu_ceilings(qn_device *device, qn_ceilings *out);

/* The operations of cpu.def by id; NULL where there is none. */
extern const qn__cpu_routine *const qn__cpu_routines[QN__OP_COUNT];

static inline qn__cpu_type qn__cpu_products(qn_products products)
{
    return products == QN_PRODUCTS_INT8        ? QN__CPU_INT8
           : products == QN_PRODUCTS_INT8_ROWS ? QN__CPU_INT8_ROWS
           : products == QN_PRODUCTS_BF16      ? QN__CPU_BF16
                                               : QN__CPU_F32;
}

/* Of the gradient. */
static inline qn__cpu_type qn__cpu_back_products(qn_products products)
{
    return qn__back_in_bf16(products) ? QN__CPU_BF16 : QN__CPU_F32;
}

/* Rows of the last axis: all other axes multiplied. */
static inline int64_t qn__cpu_rows(const qn__operand *o)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < o->ndim; i++)
        n *= o->shape[i];
    return n;
}

static inline int64_t qn__cpu_elements(const qn__operand *o)
{
    int64_t n = 1;
    for (int i = 0; i < o->ndim; i++)
        n *= o->shape[i];
    return n;
}

/* The element offset of row-major index `i` of an operand's leading `ndim` axes. */
static inline int64_t qn__cpu_offset(const qn__operand *o, int ndim, int64_t i)
{
    int64_t offset = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        offset += i % o->shape[d] * o->stride[d];
        i /= o->shape[d];
    }
    return offset;
}

/* Copies the elements begin..end (row-major) of `from` to the same places of `to`; the pointers are
 * the operands' first elements. Runs of adjacent elements go in one copy. (op_move.c) */
void qn__cpu_copy(const qn__operand *from, const char *a, const qn__operand *to, char *y,
                  int64_t begin, int64_t end);

/* ---- fused chains (tape.c, interpret.inl) ---- */

typedef struct qn__cpu_tape qn__cpu_tape;

/* The program of a call made ready for its sizes and constants: registers assigned, axes merged.
 * NULL: no memory. Freed with free. Fills the job; adds the tape's size to *bytes. */
qn__cpu_tape *qn__cpu_tape_new(qn__cpu_job *job, size_t *bytes);

void qn__cpu_run_tape_ref(const qn__cpu_job *job, const qn__cpu_part *part);
void qn__cpu_run_tape_avx2(const qn__cpu_job *job, const qn__cpu_part *part);
void qn__cpu_run_tape_neon(const qn__cpu_job *job, const qn__cpu_part *part);
void qn__cpu_run_tape_avx512(const qn__cpu_job *job, const qn__cpu_part *part);

#endif
