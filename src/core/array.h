/* SPDX-License-Identifier: Apache-2.0
 *
 * The array: one node of a scope's lazy graph, or a retained value that outlives scopes.
 *
 * A node is recorded by an operation, lives in its scope's arena and never moves. Its shape,
 * element type and strides are known when it is recorded: a view (reshape, transpose, slice,
 * broadcast) points at the node that owns the storage (`base`) and costs nothing to evaluate. A
 * node that has been evaluated, and a leaf, have a buffer.
 *
 * A retained array (scope == NULL) is on the heap and may be shared by threads; inside a scope it
 * is represented by one leaf node, so that everything the planner writes stays in the scope.
 */
#ifndef QN_CORE_ARRAY_H
#define QN_CORE_ARRAY_H

#include "core/buffer.h"
#include "core/op.h"

#include <string.h>

enum {
    QN__CONTIGUOUS = 1, /* row-major without gaps, offset anywhere */
    QN__DONATED = 2,    /* a leaf whose buffer the graph may overwrite */
    QN__SPENT = 4,      /* its storage was overwritten in place: reading it is an error */
    QN__TARGET = 8,     /* of the evaluation under way: materialised outside the workspace */
    QN__LENT = 16,      /* donated, but the retained array behind it has kept its owner */
    QN__KEPT = 32, /* a leaf to be left as it is: itself a target of the evaluation under way, or
                      an argument that others have, too */
    QN__MAY_OVERWRITE =
        64, /* a donated leaf to which, when the evaluation was begun, nobody else referred */
};

struct qn_array {
    qn__op_id op;
    uint8_t dtype; /* qn_dtype */
    uint8_t ndim;
    uint8_t n_in;
    uint8_t layout; /* qn__layout_id of the storage: plain strided, or units of a packed weight */
    uint8_t flags;
    uint32_t params_size;
    uint32_t number; /* in the scope's recording order */
    uint32_t index;  /* dense number in the evaluation `epoch` */
    uint32_t epoch;  /* the evaluation that last reached this node */
    int64_t shape[QN_MAX_NDIM];
    int64_t stride[QN_MAX_NDIM]; /* in elements; 0 where broadcast */
    int64_t offset;              /* in elements, from the start of the storage */
    qn_array *base;              /* the node that owns the storage: itself unless a view */
    qn_array **in;
    const void *params; /* the operation's parameter struct: no pointers, no padding garbage */
    qn__buffer *buffer; /* of a leaf or an evaluated base; NULL otherwise */
    qn_array *origin;   /* of a leaf: the retained array it stands for, kept alive by it */
    qn_scope *scope;    /* NULL: retained */
    qn_array *previous; /* recorded just before, in the same scope */
    atomic_int refs;    /* of a retained array */
};

static inline int64_t qn__elements(const qn_array *a)
{
    int64_t n = 1;
    for (int i = 0; i < a->ndim; i++)
        n *= a->shape[i];
    return n;
}

static inline bool qn__same_shape(const qn_array *a, const qn_array *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape);
}

/* Whether a has one element for each row (last axis) of x. */
static inline bool qn__one_a_row(const qn_array *a, const qn_array *x)
{
    return a->ndim == x->ndim - 1 && !memcmp(a->shape, x->shape, a->ndim * sizeof *a->shape);
}

/* The storage bytes of a base node: packed formats and permuted outputs included. */
size_t qn__storage_bytes(const qn_array *base);

/* Whether row-major contiguous; what the flag QN__CONTIGUOUS caches. */
bool qn__is_contiguous(int ndim, const int64_t *shape, const int64_t *stride);

/* Row-major strides of a shape. */
void qn__row_major(int ndim, const int64_t *shape, int64_t *stride);

/* "[2, 3] f32", for error messages; `text` has room for 128 characters. Returns text. */
const char *qn__describe(const qn_array *a, char *text);

#endif
