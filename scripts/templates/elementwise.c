/* SPDX-License-Identifier: Apache-2.0
 *
 * NAME(x), element by element. So far it is the identity: write here what it computes.
 */
#include "ops/ops.h"

/* Integers become f32, floats keep their type. */
qn_array *qn_NAME(qn_scope *s, qn_array *x)
{
    x = qn__input(s, x, "NAME");
    if (x && !qn__is_float((qn_dtype)x->dtype))
        x = qn_cast(s, x, QN_F32);
    if (!x || qn__is_poison(s, x))
        return qn__poison(s);
    return qn__elementwise(s, QN__OP_ID, (qn_dtype)x->dtype, 1, &x);
}

/* The value of one element in the compute type (f32 for 16-bit floats, else x's own). Build it with
 * the instructions of core/ir.h; unary.c has models, from square to gelu_tanh. */
static qn__ir_value emit_NAME(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)ir, (void)params;
    return in[0];
}

/* t f'(x): the same for a cotangent and for a tangent t. Written with public operations, on node->in[0]. */
static qn_array *NAME_slope(qn_scope *s, const qn_array *node, qn_array *t)
{
    (void)s, (void)node;
    return t;
}

static void vjp_NAME(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                     qn_array **grads)
{
    (void)want;
    grads[0] = NAME_slope(s, node, ct);
}

static qn_array *jvp_NAME(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return NAME_slope(s, node, tangents[0]);
}

const qn__op_def qn__NAME_op = {.name = "NAME",
                                .class = QN__ELEMENTWISE,
                                .emit = emit_NAME,
                                .vjp = vjp_NAME,
                                .jvp = jvp_NAME};
