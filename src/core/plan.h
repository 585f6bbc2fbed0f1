/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: what evaluating a graph of one structure takes, decided once.
 *
 * Words: elementwise nodes that run together are a group while planning and a chain in the plan;
 * the chain's IR is its program, one execution of it a pass over memory, and the CPU's form of a
 * program a tape.
 *
 * A plan holds decisions only: which nodes run, which elementwise nodes run together, in which
 * order, whose storage each value has. They depend on the graph's structure and on its sizes
 * rounded up to buckets (four to an octave), so a plan serves every size in its buckets. The exact
 * sizes of one call and the values of its constants, turned into kernel arguments and places in the
 * workspace, are a binding; a plan keeps its newest, and a step that repeats the sizes of the one
 * before (each decoded token) finds it with one comparison. Plans and bindings are immutable once
 * made and reference-counted; only pointers differ from run to run, and they travel in the
 * submission.
 */
#ifndef QN_CORE_PLAN_H
#define QN_CORE_PLAN_H

#include "core/array.h"

/* Where a live node's value lives. */
typedef enum qn__place {
    QN__NOWHERE, /* inside a fused chain */
    QN__SLOT_INPUT,
    QN__SLOT_OUTPUT,
    QN__WORKSPACE,
    QN__ALIAS /* the storage of another live node: a view, or an update in place */
} qn__place;

typedef struct qn__storage {
    uint8_t place; /* qn__place */
    uint32_t slot; /* INPUT, OUTPUT: the number of the slot; ALIAS: the live node whose storage it
                    * is, no alias itself; WORKSPACE: the last step that reads or writes it */
} qn__storage;

/* What a step is in its stage: steps that follow each other and that a device may run as one, with
 * the same values (plan_stage.c). What is read or written by any of them stays in its place to the
 * end of the stage. */
typedef enum qn__stage_part {
    QN__PART_ROOT,     /* begins a stage, unless a prologue did */
    QN__PART_PROLOGUE, /* begins one: rows that only the root and its siblings read, as input 0 */
    QN__PART_SIBLING,  /* the root's operation on its input 0, which reads nothing of the stage's */
    QN__PART_SINK,     /* elementwise on what the ones before gave, in its own shape and order */
    QN__PART_ALONG /* elementwise behind an elementwise root, and of its shape: at any element these
                      may run one behind the other, whatever the other elements' state is */
} qn__stage_part;

/* One kernel launch. Operands are live nodes; the last is the output. */
typedef struct qn__step {
    const void *routine; /* the device's; NULL for a fused chain or a copy */
    uint32_t node;       /* the live node it computes */
    uint32_t first_operand, n_operands;
    const void *params;           /* the plan's copy */
    const struct qn__ir *program; /* of a fused chain */
    uint32_t
        first_constant; /* ... the live nodes that give its program's numbers: plan->constants */
    bool copy;          /* copies operand 0 to the output, element by element */
    uint8_t part;       /* qn__stage_part */
} qn__step;

typedef struct qn__operand {
    int64_t shape[QN_MAX_NDIM];
    int64_t stride[QN_MAX_NDIM]; /* elements */
    size_t offset;               /* bytes from the slot's pointer */
    uint32_t slot;
    uint8_t dtype, ndim, layout;
} qn__operand;

/* One step with its sizes: what a kernel sees beside its pointers. */
typedef struct qn__call {
    const void *routine;
    const void *params;
    const struct qn__ir *program;
    const double *constants;    /* the values of the program's QN__IR_NUMBER */
    const qn__operand *operand; /* n_operands, the output last */
    uint32_t n_operands, first_operand;
    qn__op_id op;
    bool copy;
} qn__call;

typedef struct qn__binding {
    atomic_int refs;
    struct qn__plan *plan;
    int64_t *sizes; /* the exact sizes and constants it was made for */
    uint32_t n_sizes;
    qn__call *calls;
    qn__operand *operands;
    double *constants;
    size_t *output_bytes; /* per output slot */
    uint64_t chain_bytes; /* read and written by elementwise passes */
    size_t bytes;         /* of memory that the binding itself takes; the device adds its part */
    size_t values;        /* bytes of the workspace that hold intermediate values */
    size_t workspace; /* bytes of workspace that a run asks for: values, and what the device adds */
    uint32_t launches; /* of kernels, in a run; 0: one a step */
    void *device_part;
} qn__binding;

typedef struct qn__plan {
    atomic_int refs;
    qn_device *device;
    uint64_t hash;
    uint64_t *key;
    uint32_t n_key;
    uint32_t n_nodes, n_steps, n_inputs, n_outputs, n_targets, n_operands, n_constants;
    qn__step *steps;
    qn__storage *storage; /* per live node */
    uint32_t *operands;   /* live nodes */
    uint32_t *constants;  /* live nodes */
    uint32_t *outputs;    /* live node of each target */
    uint32_t *
        output_slots; /* its slot: an output's, or a donated input's where it is updated in place */
    uint32_t n_fused; /* elementwise nodes that run inside another's pass */
    uint32_t n_copies; /* donations that could not be done in place */
    qn__arena arena;   /* all of the tables */
    qn__binding *newest;
    struct qn__plan *next_in_bucket;
    struct qn__plan *older, *newer;
} qn__plan;

enum { QN__PLAN_BUCKETS = 1024 };

typedef struct qn__plan_cache {
    pthread_mutex_t lock;
    qn__plan *table[QN__PLAN_BUCKETS];
    qn__plan *newest, *oldest;
    size_t bytes, limit;
    qn_plan_stats stats;
} qn__plan_cache;

void qn__plan_cache_begin(qn__plan_cache *cache);
void qn__plan_cache_end(qn__plan_cache *cache);

/* All plans but the newest go, with what the device has for them: it wants the memory. Who still
 * runs one keeps it as long. */
void qn__plan_cache_clear(qn__plan_cache *cache);

/* One run of a binding. slots: inputs, then outputs, then the workspace last (the device fills it).
 */
typedef struct qn__submission {
    atomic_int refs;
    qn__binding *binding;
    void **slots;
    uint32_t n_slots;
    qn__buffer **held; /* the buffers it owns references to */
    uint32_t n_held;
    const atomic_bool *cancel;
    bool async; /* submit may return before it has run */
    bool began; /* the device has called qn__submission_begin: something may have been written */
    bool ended;
    atomic_bool done; /* it has run, or failed to; status and error are final */
    qn_status status;
    qn_error error;
    struct qn__submission *next;  /* for the device's list */
    struct qn__submission *later; /* the next of its scope */
    uint64_t number;              /* the device's count of submissions */
    void *device_part;
} qn__submission;

void qn__submission_release(qn__submission *submission);

/* A device calls this just before the first kernel of a run, when nothing but the kernels can fail
 * any more. Fills the workspace's slot. Not OK: the memory limit says no, the run was cancelled, or
 * an input is the result of a run that failed; then nothing is written. */
qn_status qn__submission_begin(qn__submission *submission, qn_error *err);

/* A device calls this once for each submission that it was given, before it counts as done, with
 * the status of the run. After a failure the results are marked, so that nobody reads what may be
 * half-written. */
void qn__submission_end(qn__submission *submission, qn_status status);

/* Live nodes of one evaluation and the key made of them: leaves and views of leaves first, then
 * what is computed, in recording order. A scope keeps one and reuses its room. */
typedef struct qn__live {
    qn_array **node;
    uint32_t n, node_room;
    uint64_t *key;
    uint32_t n_key, key_room;
    int64_t *sizes;
    uint32_t n_sizes, size_room;
    uint64_t hash;
} qn__live;

/* plan_key.c: gathers what the targets (base nodes without a buffer, flagged QN__TARGET) need and
 * describes it. False: memory is out, or a value needed was spent (recorded in the scope). */
bool qn__live_collect(qn_scope *s, qn_array *const *targets, int n, qn__live *live);

/* Whether a live node needs no step: a leaf, or evaluated before. */
static inline bool qn__is_leaf(const qn_array *a)
{
    return a->base == a && a->buffer;
}

/* Whether a view shows all elements of its base in their order, so that it can stand for it. */
static inline bool qn__covers(const qn_array *view)
{
    const qn_array *base = view->base;
    return view->flags & base->flags & QN__CONTIGUOUS && !view->offset && !base->offset &&
           (!base->layout || view == base) && qn__elements(view) == qn__elements(base);
}

/* plan_make.c: decides. NULL with the scope's error set on failure. */
qn__plan *qn__plan_make(qn_scope *s, const qn__live *live);

/* plan_stage.c: fills order[] with the nodes that have steps, has_step[i], as they were recorded
 * but for siblings, which come directly behind their root. Clears has_step. */
void qn__stage_order(const qn__live *live, bool *has_step, uint32_t *order);

/* Fills the parts of the plan's steps, whose storage is decided. False: memory is out. */
bool qn__stage_parts(qn__plan *plan, const qn__live *live);

/* The step behind the last one of the stage that begins with `step`. */
uint32_t qn__stage_end(const qn__plan *plan, uint32_t step);

/* plan_layout.c: fills offsets[] with the place in the workspace of each live node that has one of
 * its own. False: memory is out. */
bool qn__plan_layout(const qn__plan *plan, const qn__live *live, size_t *offsets, size_t *total);

/* plan_bind.c */
qn__binding *qn__binding_make(qn_scope *s, qn__plan *plan, const qn__live *live);
void qn__binding_release(qn__binding *binding);

/* plan_cache.c: finds or makes; returns a reference. *made: the plan or its binding is new. */
qn__binding *qn__plan_lookup(qn_scope *s, const qn__live *live, bool *made);
void qn__plan_release(qn__plan *plan);

/* A device has taken more of the host's memory for a binding, as that ran: it counts, and old plans
 * may go. */
void qn__plan_grown(qn__binding *binding, size_t bytes);

/* A graph's array that holds one number which is data, not structure: its value travels in the
 * sizes. */
static inline bool qn__is_number(const qn_array *a)
{
    return a->base == a && !a->buffer && qn__ops[a->op]->number;
}

#endif
