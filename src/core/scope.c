/* SPDX-License-Identifier: Apache-2.0
 *
 * Scopes: beginning and ending, recording nodes, bringing retained arrays in, the first error.
 */
#include "core/scope.h"

#include "base/error.h"
#include "core/device.h"
#include "core/dtype.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* What a NULL scope hands out. Never written to. */
static qn_array no_scope_poison = {.ndim = 0, .dtype = QN_F32, .base = &no_scope_poison};

qn_array *qn__poison(qn_scope *s)
{
    return s ? &s->poison : &no_scope_poison;
}

qn_scope *qn_scope_begin(qn_device *device)
{
    if (!device)
        return NULL;
    qn_scope *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->device = device;
    atomic_fetch_add(&device->refs, 1);
    s->poison.dtype = QN_F32;
    s->poison.base = &s->poison;
    s->poison.scope = s;
    return s;
}

static void release_node(qn_array *a)
{
    if (a->buffer)
        qn__buffer_release(a->buffer);
    if (a->origin)
        qn_release(a->origin);
}

void qn_scope_end(qn_scope *s)
{
    if (!s)
        return;
    for (qn__submission *sub = s->pending, *later; sub; sub = later) {
        later = sub->later;
        qn__submission_release(sub);
    }
    for (qn_array *a = s->last; a; a = a->previous)
        release_node(a);
    qn_device *device = s->device;
    qn__arena_free(&s->arena);
    free(s->leaves);
    free(s->live.node);
    free(s->live.key);
    free(s->live.sizes);
    free(s);
    qn_device_close(device);
}

qn_status qn__scope_end(qn_scope *s, qn_error *err)
{
    qn_status status = qn_scope_status(s);
    if (status != QN_OK)
        qn__fail(err, status, "%s", qn_scope_error(s));
    qn_scope_end(s);
    return status;
}

qn_status qn_scope_status(const qn_scope *s)
{
    return s ? s->error.code : QN_MEMORY;
}

const char *qn_scope_error(const qn_scope *s)
{
    return s ? s->error.message : "out of memory while making a scope";
}

qn_device *qn_scope_device(const qn_scope *s)
{
    return s ? s->device : NULL;
}

qn_array *qn__scope_fail(qn_scope *s, qn_status code, const char *format, ...)
{
    if (s && s->error.code == QN_OK) {
        char message[sizeof s->error.message];
        va_list args;
        va_start(args, format);
        vsnprintf(message, sizeof message, format, args);
        va_end(args);
        qn__fail(&s->error, code, "%s", message);
    }
    return qn__poison(s);
}

void *qn__scope_alloc(qn_scope *s, size_t size)
{
    void *p = qn__arena_alloc(&s->arena, size);
    if (!p)
        qn__scope_fail(s, QN_MEMORY, "out of memory in a scope of %u arrays", s->n_nodes);
    return p;
}

/* The most elements that an array has, broadcast or not: work and bytes computed from it stay
 * inside 63 bits. */
enum { MOST_ELEMENTS_LOG = 48 };

static bool sizes_fit(int ndim, const int64_t *shape)
{
    int64_t room = (int64_t)1 << MOST_ELEMENTS_LOG;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return false;
        room /= shape[i] ? shape[i] : 1;
    }
    return room > 0;
}

/* A zeroed node, linked as the newest; NULL when memory is out or the shape is none. Every array's
 * sizes pass through here. */
static qn_array *new_node(qn_scope *s, qn__op_id op, qn_dtype dtype, int ndim, const int64_t *shape)
{
    if (!sizes_fit(ndim, shape)) {
        char text[128];
        qn_array wanted = {.dtype = (uint8_t)dtype, .ndim = (uint8_t)ndim};
        memcpy(wanted.shape, shape, (size_t)ndim * sizeof *shape);
        qn__scope_fail(s, QN_LIMIT,
                       "%s: a result of %s: sizes are not negative and give at most 2^%d elements",
                       qn__ops[op]->name, qn__describe(&wanted, text), MOST_ELEMENTS_LOG);
        return NULL;
    }
    qn_array *a = qn__scope_alloc(s, sizeof *a);
    if (!a)
        return NULL;
    memset(a, 0, sizeof *a);
    a->op = op;
    a->dtype = (uint8_t)dtype;
    a->ndim = (uint8_t)ndim;
    memcpy(a->shape, shape, (size_t)ndim * sizeof *shape);
    a->base = a;
    a->scope = s;
    a->previous = s->last;
    s->last = a;
    a->number = s->n_nodes++;
    return a;
}

/* ---- leaves --------------------------------------------------------------------------------- */

static size_t leaf_slot(const qn_scope *s, const qn_array *origin)
{
    size_t mask = s->leaf_room - 1;
    size_t i = ((uintptr_t)origin >> 4) * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (s->leaves[i] && s->leaves[i]->origin != origin)
        i = (i + 1) & mask;
    return i;
}

static bool grow_leaves(qn_scope *s)
{
    uint32_t old_room = s->leaf_room;
    qn_array **old = s->leaves;
    uint32_t room = old_room ? old_room * 2 : 64;
    qn_array **leaves = calloc(room, sizeof *leaves);
    if (!leaves)
        return false;
    s->leaves = leaves;
    s->leaf_room = room;
    for (uint32_t i = 0; i < old_room; i++)
        if (old[i])
            s->leaves[leaf_slot(s, old[i]->origin)] = old[i];
    free(old);
    return true;
}

/* A leaf that stands for a retained array. */
static qn_array *new_leaf(qn_scope *s, qn_array *origin)
{
    qn_array *leaf = new_node(s, QN__LEAF_OP, (qn_dtype)origin->dtype, origin->ndim, origin->shape);
    if (!leaf)
        return NULL;
    memcpy(leaf->stride, origin->stride, sizeof leaf->stride);
    leaf->offset = origin->offset;
    leaf->layout = origin->layout;
    leaf->flags = origin->flags & QN__CONTIGUOUS;
    leaf->origin = qn_retain(origin);
    leaf->buffer = qn__buffer_retain(origin->buffer);
    return leaf;
}

/* The leaf of a retained array, made at its first use in the scope. */
static qn_array *leaf_of(qn_scope *s, qn_array *origin)
{
    if (2 * s->n_leaves >= s->leaf_room && !grow_leaves(s))
        return qn__scope_fail(s, QN_MEMORY, "out of memory for a scope's inputs");
    size_t slot = leaf_slot(s, origin);
    if (s->leaves[slot])
        return s->leaves[slot];
    qn_array *leaf = new_leaf(s, origin);
    if (!leaf)
        return qn__poison(s);
    s->leaves[slot] = leaf;
    s->n_leaves++;
    return leaf;
}

qn_array *qn__argument(qn_scope *s, qn_array *a, bool donated)
{
    qn_array *leaf = s->error.code == QN_OK ? new_leaf(s, a) : NULL;
    if (leaf && donated) {
        leaf->flags |= QN__DONATED;
        qn_release(a);
    }
    return leaf;
}

qn_array *qn__input(qn_scope *s, qn_array *a, const char *operation)
{
    if (!s || s->error.code != QN_OK || a == &s->poison)
        return NULL;
    if (!a) {
        qn__scope_fail(s, QN_INVALID, "%s: an argument is NULL", operation);
        return NULL;
    }
    if (a->scope == s)
        return a;
    if (a->scope) {
        qn__scope_fail(s, QN_INVALID,
                       "%s: an argument belongs to another scope: qn_eval and qn_retain it there",
                       operation);
        return NULL;
    }
    if (a == &no_scope_poison) {
        qn__scope_fail(s, QN_INVALID, "%s: an argument is the result of a failed operation",
                       operation);
        return NULL;
    }
    if (!a->buffer || a->buffer->device != s->device) {
        qn__scope_fail(s, QN_INVALID, "%s: an argument is on device %s, the scope on %s", operation,
                       a->buffer ? a->buffer->device->name : "none", s->device->name);
        return NULL;
    }
    if (atomic_load_explicit(&a->buffer->invalid, memory_order_relaxed)) {
        qn__scope_fail(s, QN_STATE, "%s: an argument was donated to a run that failed", operation);
        return NULL;
    }
    qn_array *leaf = leaf_of(s, a);
    return qn__is_poison(s, leaf) ? NULL : leaf;
}

typedef qn__buffer *make_buffer(qn_device *device, size_t size, qn_error *err);

static qn_array *leaf_with(qn_scope *s, qn_dtype dtype, qn__layout_id layout, int ndim,
                           const int64_t *shape, make_buffer *make)
{
    if (!s || s->error.code != QN_OK)
        return qn__poison(s);
    qn_array *a = new_node(s, QN__LEAF_OP, dtype, ndim, shape);
    if (!a)
        return qn__poison(s);
    qn__row_major(ndim, shape, a->stride);
    a->flags = QN__CONTIGUOUS;
    a->layout = layout;
    a->buffer = make(s->device, qn__storage_bytes(a), &s->error);
    return a->buffer ? a : qn__poison(s);
}

qn_array *qn__leaf_new(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape)
{
    return leaf_with(s, dtype, QN__PLAIN, ndim, shape, qn__buffer_new);
}

qn_array *qn__leaf_reserved(qn_scope *s, qn_dtype dtype, qn__layout_id layout, int ndim,
                            const int64_t *shape)
{
    return leaf_with(s, dtype, layout, ndim, shape, qn__buffer_reserve);
}

/* The leaf of `a`, marked as one that the graph may overwrite. */
static qn_array *donated_leaf(qn_scope *s, qn_array *a, bool lent)
{
    qn_array *leaf = qn__input(s, a, lent ? "lend" : "donate");
    if (!leaf)
        return qn__poison(s);
    if (leaf->op != QN__LEAF_OP)
        return qn__scope_fail(s, QN_INVALID, "donate: only an evaluated array can be given away");
    leaf->flags |= QN__DONATED | (lent ? QN__LENT : 0);
    atomic_store_explicit(&leaf->buffer->lent, lent, memory_order_relaxed);
    return leaf;
}

qn_array *qn_donate(qn_scope *s, qn_array *a)
{
    qn_array *leaf = donated_leaf(s, a, false);
    if (a && a->scope == NULL)
        qn_release(a);
    return leaf;
}

qn_array *qn__lend(qn_scope *s, qn_array *a)
{
    return donated_leaf(s, a, true);
}

/* ---- recording ------------------------------------------------------------------------------ */

/* Copies inputs and parameters behind the node. */
static bool attach(qn_scope *s, qn_array *a, int n_in, qn_array *const *in, const void *params)
{
    a->n_in = (uint8_t)n_in;
    a->params_size = qn__def(a)->params_size;
    size_t in_bytes = (size_t)n_in * sizeof *in;
    char *room = qn__scope_alloc(s, in_bytes + ((a->params_size + 15u) & ~15u) + 16);
    if (!room)
        return false;
    a->in = (qn_array **)room;
    if (n_in)
        memcpy(room, in, in_bytes);
    char *copy = room + ((in_bytes + 15) & ~(size_t)15);
    a->params = copy;
    if (a->params_size)
        memcpy(copy, params, a->params_size);
    return true;
}

static bool spent_input(qn_scope *s, const qn__op_def *def, int n_in, qn_array *const *in)
{
    for (int i = 0; i < n_in; i++)
        if (in[i]->base->flags & QN__SPENT) {
            qn__scope_fail(s, QN_STATE,
                           "%s: an argument was overwritten in place by an earlier "
                           "evaluation; use the array that replaced it",
                           def->name);
            return true;
        }
    return false;
}

qn_array *qn__record_strided(qn_scope *s, qn__op_id op, qn_dtype dtype, int ndim,
                             const int64_t *shape, const int64_t *stride, int n_in,
                             qn_array *const *in, const void *params)
{
    const qn__op_def *def = qn__ops[op];
    if (spent_input(s, def, n_in, in))
        return qn__poison(s);
    qn_array *a = new_node(s, op, dtype, ndim, shape);
    if (!a || !attach(s, a, n_in, in, params))
        return qn__poison(s);
    memcpy(a->stride, stride, (size_t)ndim * sizeof *stride);
    if (qn__is_contiguous(ndim, shape, stride))
        a->flags |= QN__CONTIGUOUS;
    if (def->class != QN__KERNEL || s->device->ops->routine(s->device, a))
        return a;
    if (def->decompose) {
        s->last = a->previous; /* the node is not needed */
        s->n_nodes--;
        return def->decompose(s, a);
    }
    char text[128];
    return qn__scope_fail(s, QN_UNSUPPORTED, "%s: device %s has no kernel for a result of %s",
                          def->name, s->device->name, qn__describe(a, text));
}

qn_array *qn__record(qn_scope *s, qn__op_id op, qn_dtype dtype, int ndim, const int64_t *shape,
                     int n_in, qn_array *const *in, const void *params)
{
    int64_t stride[QN_MAX_NDIM];
    qn__row_major(ndim, shape, stride);
    return qn__record_strided(s, op, dtype, ndim, shape, stride, n_in, in, params);
}

static qn_array *record_view(qn_scope *s, qn__op_id op, int n_in, qn_array *const *in, int ndim,
                             const int64_t *shape, const int64_t *stride, int64_t offset,
                             const void *params)
{
    if (spent_input(s, qn__ops[op], n_in, in))
        return qn__poison(s);
    qn_array *a = new_node(s, op, (qn_dtype)in[0]->dtype, ndim, shape);
    if (!a || !attach(s, a, n_in, in, params))
        return qn__poison(s);
    memcpy(a->stride, stride, (size_t)ndim * sizeof *stride);
    a->offset = offset;
    a->base = in[0]->base;
    a->layout = in[0]->layout;
    if (qn__is_contiguous(ndim, shape, stride))
        a->flags |= QN__CONTIGUOUS;
    return a;
}

qn_array *qn__record_view(qn_scope *s, qn__op_id op, qn_array *in, int ndim, const int64_t *shape,
                          const int64_t *stride, int64_t offset, const void *params)
{
    return record_view(s, op, 1, &in, ndim, shape, stride, offset, params);
}

qn_array *qn__record_same(qn_scope *s, qn__op_id op, int n_in, qn_array *const *in,
                          const void *params)
{
    return record_view(s, op, n_in, in, in[0]->ndim, in[0]->shape, in[0]->stride, in[0]->offset,
                       params);
}

qn_array *qn__record_again(qn_scope *s, const qn_array *node, qn_array *const *in)
{
    qn_array *a = new_node(s, node->op, (qn_dtype)node->dtype, node->ndim, node->shape);
    if (!a || !attach(s, a, node->n_in, in, node->params))
        return qn__poison(s);
    memcpy(a->stride, node->stride, sizeof a->stride);
    a->offset = node->offset;
    a->layout = node->layout;
    a->flags = node->flags & QN__CONTIGUOUS;
    if (node->base != node)
        a->base = in[0]->base;
    return a;
}

/* ---- retained arrays ------------------------------------------------------------------------ */

qn_array *qn_retain(qn_array *a)
{
    if (!a || a == &no_scope_poison)
        return NULL;
    if (!a->scope) {
        atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
        return a;
    }
    qn_scope *s = a->scope;
    if (!a->base->buffer || a->base->flags & QN__SPENT) {
        qn__scope_fail(s, QN_STATE, "retain: the array %s",
                       a->base->buffer ? "was overwritten in place" : "has not been evaluated");
        return NULL;
    }
    qn_array *kept = malloc(sizeof *kept);
    if (!kept) {
        qn__scope_fail(s, QN_MEMORY, "out of memory while retaining an array");
        return NULL;
    }
    *kept = *a;
    kept->op = QN__LEAF_OP;
    kept->flags = a->flags & QN__CONTIGUOUS;
    kept->n_in = 0;
    kept->params_size = 0;
    kept->base = kept;
    kept->in = NULL;
    kept->params = NULL;
    kept->scope = NULL;
    kept->previous = NULL;
    kept->origin = NULL;
    kept->buffer = qn__buffer_retain(a->base->buffer);
    atomic_init(&kept->refs, 1);
    return kept;
}

void qn_release(qn_array *a)
{
    if (!a || a->scope || a == &no_scope_poison)
        return;
    if (atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) == 1) {
        qn__buffer_release(a->buffer);
        free(a);
    }
}
