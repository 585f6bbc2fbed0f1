/* SPDX-License-Identifier: Apache-2.0
 *
 * The scope: arena, recorded nodes, first error. Operations record through the functions here.
 */
#ifndef QN_CORE_SCOPE_H
#define QN_CORE_SCOPE_H

#include "base/arena.h"
#include "core/array.h"
#include "core/plan.h"
#include "quant/layout.h"

/* Nodes number first .. end - 1, which gradients compute again (autodiff/checkpoint.c). */
typedef struct qn__stretch {
    uint32_t first, end;
    struct qn__stretch *before; /* recorded before this one */
} qn__stretch;

struct qn_scope {
    qn_device *device;
    qn__arena arena;
    qn_array *last; /* newest node; the others behind it by `previous` */
    uint32_t n_nodes;
    uint32_t epoch;         /* counts evaluations */
    qn__stretch *stretches; /* the newest */
    bool in_stretch;        /* it has not ended */
    bool is_compiled;       /* what is recorded runs later: nothing may be evaluated */
    qn_array **leaves;      /* open-addressed table from retained array to its leaf node */
    uint32_t n_leaves, leaf_room;
    qn_array poison;           /* what failed operations return */
    qn_error error;            /* the first failure */
    qn__live live;             /* room for evaluations */
    const atomic_bool *cancel; /* polled by evaluations; NULL: they cannot be cancelled */
    qn__submission *pending,
        *newest_pending; /* submissions not yet waited for, oldest first; or NULL */
};

/* Records a failure (the first stays) and returns the poison array. */
qn_array *qn__scope_fail(qn_scope *s, qn_status code, const char *format, ...) QN_PRINTF(3, 4);

/* Ends the scope; its failure, if any, becomes the caller's. */
qn_status qn__scope_end(qn_scope *s, qn_error *err);

/* A usable input: the array itself, or the leaf that stands for a retained one. NULL when the scope
 * or the array is poisoned (the failure is recorded); callers then return qn__poison(s). */
qn_array *qn__input(qn_scope *s, qn_array *a, const char *operation);

/* A leaf of its own for a retained array of the scope's device, which another use of that array
 * does not share; a donated one takes over the caller's reference. NULL with the scope's error. */
qn_array *qn__argument(qn_scope *s, qn_array *a, bool donated);

/* As qn_donate, but the caller keeps its reference, and a run that fails does not make the buffer
 * invalid: for a buffer of which the caller knows what counts whatever a run has written, as a KV
 * cache does. After a run that succeeded `a` must be released unread: the result has its place. */
qn_array *qn__lend(qn_scope *s, qn_array *a);

/* The poison array of a scope; a static one for a NULL scope. */
qn_array *qn__poison(qn_scope *s);

/* Records a node with a fresh row-major output. inputs are nodes of this scope, params is copied.
 * When the device has no kernel for it and the operation decomposes, records that instead. */
qn_array *qn__record(qn_scope *s, qn__op_id op, qn_dtype dtype, int ndim, const int64_t *shape,
                     int n_in, qn_array *const *in, const void *params);

/* The same with the output's storage order given: strides of a dense permutation of the shape. */
qn_array *qn__record_strided(qn_scope *s, qn__op_id op, qn_dtype dtype, int ndim,
                             const int64_t *shape, const int64_t *stride, int n_in,
                             qn_array *const *in, const void *params);

/* Records a view of `in`: same storage, the given strides and offset. */
qn_array *qn__record_view(qn_scope *s, qn__op_id op, qn_array *in, int ndim, const int64_t *shape,
                          const int64_t *stride, int64_t offset, const void *params);

/* Records a view of all of in[0]; the others are what derivatives go to. */
qn_array *qn__record_same(qn_scope *s, qn__op_id op, int n_in, qn_array *const *in,
                          const void *params);

/* Records what a node computes once more, from these inputs, of the same shapes and layouts. */
qn_array *qn__record_again(qn_scope *s, const qn_array *node, qn_array *const *in);

/* A leaf with uninitialised row-major storage of the scope's device; with a reserved one, whose
 * memory qn__buffer_commit brings. */
qn_array *qn__leaf_new(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape);
qn_array *qn__leaf_reserved(qn_scope *s, qn_dtype dtype, qn__layout_id layout, int ndim,
                            const int64_t *shape);

/* eval.c: as qn_eval_many; *binding, where asked for, becomes a reference to what ran, or stays if
 * nothing had to. */
qn_status qn__eval_first(qn_scope *s, qn_array *const *arrays, int n, qn__binding **binding);

/* Runs what the scope evaluated last once more, on the buffers that its leaves have by now; its
 * results have none. */
qn_status qn__eval_again(qn_scope *s, qn__binding *binding);

/* Temporary room in the scope's arena; records the failure when memory is out. */
void *qn__scope_alloc(qn_scope *s, size_t size);

static inline const qn__op_def *qn__def(const qn_array *a)
{
    return qn__ops[a->op];
}

static inline bool qn__is_poison(const qn_scope *s, const qn_array *a)
{
    return !s || a == &s->poison || s->error.code != QN_OK;
}

#endif
