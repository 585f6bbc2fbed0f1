/* SPDX-License-Identifier: Apache-2.0
 *
 * A stretch of a scope's recording seen as a function: the nodes from `first` to the result, in
 * order, and one array (a cotangent or a tangent) for each node and for each variable that lies
 * before.
 *
 * An operation without a derivative of its own is differentiated through its decomposition: that is
 * recorded behind everything else and traced as a stretch of its own, with the operation's inputs
 * as the variables.
 */
#ifndef QN_AUTODIFF_TRACE_H
#define QN_AUTODIFF_TRACE_H

#include "core/scope.h"

typedef struct qn__trace {
    qn_scope *s;
    uint32_t first, n; /* nodes number first .. first + n - 1 */
    qn_array **node;   /* by number - first */
    qn_array **value;  /* likewise: the node's derivative, NULL: zero */
    bool *active;      /* likewise: depends on a variable */
    qn_array *const *variable;
    int n_variables;
    qn_array **variable_value; /* of variables */
} qn__trace;

/* Gathers the stretch that ends in y and marks what depends on the variables. Room is the scope's.
 * False when memory is out. */
bool qn__trace_begin(qn__trace *t, qn_scope *s, uint32_t first, qn_array *y,
                     qn_array *const *variables, int n);

/* Takes the cotangent of the trace's node `at` back to its inputs, where it has one. (vjp.c) */
bool qn__step_back(qn__trace *t, uint32_t at);

/* The stretch that a node is in, which gradients compute again; NULL: it is in none. */
const qn__stretch *qn__stretch_of(const qn_scope *s, uint32_t number);

/* Takes cotangents back through a stretch, whose newest node with one is the trace's *i-th; *i
 * becomes its first one's. (checkpoint.c) */
bool qn__stretch_back(qn__trace *t, const qn__stretch *stretch, uint32_t *i);

/* Where the derivative of an array is kept; NULL when it depends on no variable. */
qn_array **qn__trace_value(qn__trace *t, const qn_array *a);

#endif
