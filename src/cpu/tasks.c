/* SPDX-License-Identifier: Apache-2.0
 *
 * From steps to tasks: what threads take chunks of, and which tasks need not wait for each other.
 *
 * Small jobs run one behind the other as a single chunk. Of a stage (core/plan_stage.c) siblings
 * run side by side. Where its input is a few rows, each thread prepares them for itself, its
 * prologue included, and does so once; then sinks run on the columns that their thread has just
 * made. So a decoded token's layer has a handful of moments at which threads wait for each other.
 * Passes over the same elements go piece by piece, so that the second finds in the cache what the
 * first has read or made.
 */
#include "core/dtype.h"
#include "cpu/tape.h"

/* Chunks a thread: enough that one that comes late leaves work to the others, few enough that
 * taking them costs nothing. Steps of many milliseconds have more: on a busy machine the last chunk
 * is what is waited for. */
enum { CHUNKS_A_THREAD = 4, CHUNKS_OF_LONG = 16 };

enum { SMALL_INPUT = 1 << 15 }; /* elements that each thread may well compute for itself */

/* Jobs of a stage: perhaps a prologue; roots from `root` on, the first and its siblings; sinks. */
typedef struct stage {
    uint32_t first, root, sinks, end;
    bool own; /* each thread prepares the input for itself */
} stage;

static stage stage_at(const qn__plan *plan, uint32_t first)
{
    stage s = {.first = first, .end = qn__stage_end(plan, first)};
    s.root = first + (plan->steps[first].part == QN__PART_PROLOGUE);
    s.sinks = s.root + 1;
    while (s.sinks < s.end && plan->steps[s.sinks].part == QN__PART_SIBLING)
        s.sinks++;
    return s;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* ---- inputs that threads prepare for themselves ---------------------------------------------- */

static bool prepares_own(const qn__cpu_binding *bound, const stage *s)
{
    for (uint32_t i = s->root; i < s->sinks; i++) {
        const qn__cpu_job *job = &bound->jobs[i];
        if (!job->op->columns || job->n_phases != 1 || job->serial)
            return false;
    }
    return true;
}

/* Whether each thread makes the rows of the roots' input, too. */
static bool takes_prologue(const qn__cpu_binding *bound, const stage *s)
{
    const qn__cpu_job *job = &bound->jobs[s->first];
    return s->own && s->first < s->root && job->n_phases == 1 && !job->scratch &&
           qn__cpu_elements(&job->call->operand[0]) <= SMALL_INPUT;
}

/* What lies where in a thread's scratch: rows of the prologue, what roots prepare of them, what
 * sinks need. */
static void place_scratch(qn__cpu_binding *bound, const stage *s, uint32_t *n_prepared)
{
    const qn__cpu_job *prologue = takes_prologue(bound, s) ? &bound->jobs[s->first] : NULL;
    size_t rows = 0, roots = 0;
    if (prologue) {
        const qn__operand *y = &prologue->call->operand[prologue->call->n_operands - 1];
        rows = whole_lines((size_t)qn__cpu_elements(y) * qn__dtype_size((qn_dtype)y->dtype)) + 64;
    }
    for (uint32_t i = s->root; i < s->sinks; i++) {
        qn__cpu_job *job = &bound->jobs[i];
        bool same = i > s->root && job->op->shares && job->op->shares(job, job - 1);
        job->prepared = same ? *n_prepared : ++*n_prepared;
        job->prologue = prologue;
        job->scratch_at = rows;
        roots = larger(roots, whole_lines(job->scratch));
    }
    for (uint32_t i = s->sinks; i < s->end; i++) {
        bound->jobs[i].prepared = *n_prepared;
        bound->jobs[i].scratch_at = rows + roots;
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static uint32_t chunks_of(const qn__cpu_job *job, int phase, int n_threads)
{
    int64_t most = (int64_t)(job->long_work ? CHUNKS_OF_LONG : CHUNKS_A_THREAD) * n_threads;
    return (uint32_t)(job->units[phase] < most ? job->units[phase] : most);
}

static void add_serial(qn__cpu_binding *bound, uint32_t i)
{
    qn__cpu_task *last = bound->n_tasks ? &bound->tasks[bound->n_tasks - 1] : NULL;
    if (last && last->phase == QN__TASK_SERIAL && last->job + last->n_jobs == i)
        last->n_jobs++;
    else
        bound->tasks[bound->n_tasks++] =
            (qn__cpu_task){.job = i, .n_jobs = 1, .phase = QN__TASK_SERIAL, .n_chunks = 1};
}

/* `sibling`: of the job before, so that neither needs the other. */
static void add_job(qn__cpu_binding *bound, uint32_t i, bool sibling, int n_threads)
{
    const qn__cpu_job *job = &bound->jobs[i];
    if (job->serial) {
        add_serial(bound, i);
        return;
    }
    bool before = sibling && !job[-1].serial && job->n_phases == job[-1].n_phases;
    bool shares = before && job->op->shares && job->op->shares(job, job - 1);
    bool beside = before && (shares || job->n_phases == 1);
    for (int phase = shares && job->n_phases > 1; phase < job->n_phases; phase++)
        bound->tasks[bound->n_tasks++] =
            (qn__cpu_task){.job = i,
                           .n_jobs = 1,
                           .phase = phase,
                           .beside = beside,
                           .n_chunks = chunks_of(job, phase, n_threads)};
}

/* Whether the stage's sinks can run on columns of what its roots give. */
static bool goes_by_columns(const qn__cpu_binding *bound, const stage *s)
{
    const qn__cpu_job *root = &bound->jobs[s->root];
    const qn__operand *y = &root->call->operand[root->call->n_operands - 1];
    if (!s->own || s->sinks == s->end)
        return false;
    for (uint32_t i = s->root + 1; i < s->sinks; i++)
        if (bound->jobs[i].units[0] != root->units[0])
            return false;
    for (uint32_t i = s->sinks; i < s->end; i++) {
        const qn__cpu_tape *tape = bound->jobs[i].tape;
        if (tape->n_axes != 1 || tape->shape[0] != qn__cpu_elements(y))
            return false;
    }
    return true;
}

/* Whether the stage is passes that can go through memory together. */
static bool goes_together(const qn__cpu_binding *bound, const stage *s)
{
    const qn__cpu_tape *first = bound->jobs[s->root].tape;
    bool together = first && s->end > s->root + 1;
    for (uint32_t i = s->root; together && i < s->end; i++) {
        const qn__cpu_job *job = &bound->jobs[i];
        together = job->tape && !job->serial && job->tape->n_axes == 1 &&
                   job->tape->shape[0] == first->shape[0];
    }
    return together;
}

static void add_stage(qn__cpu_binding *bound, const stage *s, int n_threads)
{
    const qn__cpu_job *root = &bound->jobs[s->root];
    if (s->first < s->root && !root->prologue)
        add_job(bound, s->first, false, n_threads);
    bool columns = goes_by_columns(bound, s), together = goes_together(bound, s);
    if (columns || together)
        bound->tasks[bound->n_tasks++] =
            (qn__cpu_task){.job = s->root,
                           .n_jobs = s->end - s->root,
                           .phase = columns ? QN__TASK_COLUMNS : QN__TASK_ALONG,
                           .n_chunks = chunks_of(root, 0, n_threads)};
    for (uint32_t i = s->root; !columns && !together && i < s->end; i++)
        add_job(bound, i, i > s->root && i < s->sinks, n_threads);
}

void qn__cpu_make_tasks(qn__cpu_binding *bound, const qn__plan *plan, int n_threads)
{
    uint32_t n_prepared = 0;
    for (uint32_t i = 0; i < bound->n_jobs;) {
        stage s = stage_at(plan, i);
        s.own = prepares_own(bound, &s);
        if (s.own)
            place_scratch(bound, &s, &n_prepared);
        add_stage(bound, &s, n_threads);
        for (; i < s.end; i++) {
            const qn__cpu_job *job = &bound->jobs[i];
            bound->scratch = larger(bound->scratch, job->scratch_at + whole_lines(job->scratch));
            bound->shared = larger(bound->shared, job->shared);
        }
    }
}
