/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: what evaluating a graph of one structure takes, decided once.
 *
 * Words: elementwise nodes that run together are a group while planning and a chain in the plan; the chain's
 * IR is its program, one execution of it a pass over memory, and the CPU's form of a program a tape.
 *
 * A plan holds decisions only: which nodes run, which elementwise nodes run together, in which order,
 * where each value lives. They depend on the graph's structure and on its sizes rounded up to buckets
 * (four to an octave), so a plan serves every size in its buckets. The exact sizes of one call, turned
 * into kernel arguments, are a binding; a plan keeps its newest, and a step that repeats the sizes of
 * the one before (each decoded token) finds it with one comparison. Plans and bindings are immutable
 * once made and reference-counted; only pointers differ from run to run, and they travel in the
 * submission.
 */
#ifndef QN_CORE_PLAN_H
#define QN_CORE_PLAN_H

#include "core/array.h"

/* Where a live node's value lives. */
typedef enum qn__place {
    QN__NOWHERE,   /* inside a fused chain */
    QN__SLOT_INPUT,
    QN__SLOT_OUTPUT,
    QN__WORKSPACE,
    QN__ALIAS      /* the storage of another live node: a view, or an update in place */
} qn__place;

typedef struct qn__storage {
    uint8_t place;   /* qn__place */
    uint32_t slot;   /* INPUT, OUTPUT: the number of the slot; ALIAS: the number of the other live node */
    size_t offset;   /* WORKSPACE: bytes from its start */
} qn__storage;

/* One kernel launch. Operands are live nodes; the last is the output. */
typedef struct qn__step {
    const void *kernel;    /* the device's; NULL for a fused chain or a copy */
    uint32_t node;         /* the live node it computes */
    uint32_t first_operand, n_operands;
    const void *params;    /* the plan's copy */
    const struct qn__ir *program; /* of a fused chain */
    bool copy;             /* copies operand 0 to the output, element by element */
} qn__step;

typedef struct qn__operand {
    int64_t shape[QN_MAX_NDIM];
    int64_t stride[QN_MAX_NDIM]; /* elements */
    size_t offset;               /* bytes from the slot's pointer */
    uint32_t slot;
    uint8_t dtype, ndim, format;
} qn__operand;

/* One step with its sizes: what a kernel sees beside its pointers. */
typedef struct qn__call {
    const void *kernel;
    const void *params;
    const struct qn__ir *program;
    const qn__operand *operand; /* n_operands, the output last */
    uint32_t n_operands, first_operand;
    qn__op_id op;
    bool copy;
} qn__call;

typedef struct qn__binding {
    atomic_int refs;
    struct qn__plan *plan;
    int64_t *sizes; /* the exact sizes it was made for */
    uint32_t n_sizes;
    qn__call *calls;
    qn__operand *operands;
    size_t *output_bytes;   /* per output slot */
    uint64_t chain_bytes;   /* read and written by elementwise passes */
    void *device_part;
} qn__binding;

typedef struct qn__plan {
    atomic_int refs;
    qn_device *device;
    uint64_t hash;
    uint64_t *key;
    uint32_t n_key;
    uint32_t n_nodes, n_steps, n_inputs, n_outputs, n_targets, n_operands;
    qn__step *steps;
    qn__storage *storage; /* per live node */
    uint32_t *operands;   /* live nodes */
    uint32_t *outputs;    /* live node of each target */
    uint32_t *output_slots; /* its slot: an output's, or a donated input's where it is updated in place */
    size_t workspace;     /* bytes */
    uint32_t n_fused;     /* elementwise nodes that run inside another's pass */
    uint32_t n_copies;    /* donations that could not be done in place */
    qn__arena arena;      /* all of the tables */
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

/* One run of a binding. slots: inputs, then outputs, then the workspace last (the device fills it). */
typedef struct qn__submission {
    atomic_int refs;
    qn__binding *binding;
    void **slots;
    uint32_t n_slots;
    qn__buffer **held; /* the buffers it owns references to */
    uint32_t n_held;
    const atomic_bool *cancel;
    bool async;       /* submit may return before it has run */
    bool done;        /* under the device's lock */
    qn_status status; /* final once the device's wait has returned */
    qn_error error;
    struct qn__submission *next; /* for the device's list */
    void *device_part;
} qn__submission;

void qn__submission_release(qn__submission *submission);

/* Marks the results of a failed run, which may be half-written, so that nobody reads them. A device that
 * runs asynchronously calls it before the run counts as done: its scope may have ended. */
void qn__submission_invalidate(const qn__submission *submission);

/* Live nodes of one evaluation, in recording order, and the key made of them. A scope keeps one and
 * reuses its room. */
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

/* Whether a leaf's buffer may be overwritten: donated, and no one else refers to it. */
bool qn__may_overwrite(const qn_array *leaf);

/* plan_make.c: decides. NULL with the scope's error set on failure. */
qn__plan *qn__plan_make(qn_scope *s, const qn__live *live);

/* plan_bind.c */
qn__binding *qn__binding_make(qn_scope *s, qn__plan *plan, const qn__live *live);
void qn__binding_release(qn__binding *binding);

/* plan_cache.c: finds or makes; returns a reference. *made: the plan or its binding is new. */
qn__binding *qn__plan_lookup(qn_scope *s, const qn__live *live, bool *made);
void qn__plan_release(qn__plan *plan);

/* The largest size in the bucket of `size`: up to 8 each is its own, then four buckets to an octave. */
int64_t qn__bucket_top(int64_t size);

#endif
