/* SPDX-License-Identifier: Apache-2.0
 *
 * What an operation is: the definition that every file in src/ops ends in.
 *
 * An operation checks its arguments, promotes types, infers the shape and records one node. Beside
 * it stands what the rest of the engine needs to know: how to emit it into the kernel IR when it is
 * elementwise, a decomposition into simpler operations for devices without a kernel, and its
 * derivatives, written with the same public operations.
 */
#ifndef QN_CORE_OP_H
#define QN_CORE_OP_H

#include "core/ir.h"
#include "quern/array.h"

typedef uint16_t qn__op_id;

enum { QN__LEAF_OP = 0 }; /* the one operation that core knows by name: first in ops.def */

typedef enum qn__op_class {
    QN__LEAF,        /* has storage: a retained or host value */
    QN__VIEW,        /* shares its input's storage */
    QN__ELEMENTWISE, /* emits IR; fused with its neighbours */
    QN__KERNEL       /* a routine of the device computes it, with kernels */
} qn__op_class;

/* What an operation can be in a stage (plan_stage.c). */
typedef enum qn__stage_role {
    QN__STAGE_ALONE,
    QN__STAGE_ROOT, /* others of its kind may run beside it on the same input 0; elementwise steps
                       on what it gives may follow before all of that is there */
    QN__STAGE_PROLOGUE /* rows of input 0 to rows of the same length, each by itself: may be part of
                          what reads them */
} qn__stage_role;

/* Derivatives of one node. `ct` is the cotangent of the node's value, of its shape. Fills grads[i]
 * for each input i with want[i]; leaving NULL means zero. */
typedef void qn__vjp_fn(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                        qn_array **grads);

/* The node's tangent from its inputs' tangents, NULL for zero. */
typedef qn_array *qn__jvp_fn(qn_scope *s, const qn_array *node, qn_array *const *tangents);

typedef struct qn__op_def {
    const char *name;
    qn__op_class class;
    uint32_t params_size;
    qn__ir_op ir_op; /* elementwise without emit: this one instruction */
    /* Elementwise: builds the value from the inputs' values, all of the compute type. */
    qn__ir_value (*emit)(qn__ir *ir, const void *params, const qn__ir_value *in);
    /* Rewrites the node with simpler operations; in and params are the node's. */
    qn_array *(*decompose)(qn_scope *s, const qn_array *node);
    qn__vjp_fn *vjp; /* NULL: by the decomposition, or not differentiable */
    qn__jvp_fn *jvp;
    /* The output takes over the storage of input 0, which holds the old values when the kernel
     * runs. No other input then shares that storage. */
    bool in_place;
    qn__stage_role stage;
    /* Elementwise, without inputs and emit: every element is this number, which differs from call
     * to call. */
    double (*number)(const void *params);
} qn__op_def;

/* The value of an elementwise operation: by emit, or as its one instruction. */
static inline qn__ir_value qn__op_emit(const qn__op_def *def, qn__ir *ir, const void *params,
                                       const qn__ir_value *in)
{
    if (def->emit)
        return def->emit(ir, params, in);
    switch (qn__ir_operands(def->ir_op)) {
    case 1: return qn__ir_unary(ir, def->ir_op, in[0]);
    case 2: return qn__ir_binary(ir, def->ir_op, in[0], in[1]);
    default: return qn__ir_ternary(ir, def->ir_op, in[0], in[1], in[2]);
    }
}

/* Every operation in ops.def, by its id. Defined in src/ops/ops.c, which core only declares: the
 * table is the one thing that core takes from the layer above, as data. */
extern const qn__op_def *const qn__ops[];
extern const int qn__n_ops;

#endif
