/* SPDX-License-Identifier: Apache-2.0
 *
 * The inverse of erf: M. Giles, "Approximating the erfinv function" (2010), two polynomials in
 * w = -log(1 - x^2). In f64 two Newton steps follow.
 */
#include "ops/ops.h"

#include <math.h>

/* c[0] w^8 + ... + c[8] */
static qn__ir_value polynomial(qn__ir *ir, qn__ir_value w, const double *c)
{
    qn_dtype type = qn__ir_dtype(ir, w);
    qn__ir_value y = qn__ir_real(ir, type, c[0]);
    for (int i = 1; i < 9; i++)
        y = qn__ir_binary(ir, QN__IR_ADD, qn__ir_binary(ir, QN__IR_MUL, y, w),
                          qn__ir_real(ir, type, c[i]));
    return y;
}

/* y - (erf(y) - x) sqrt(pi)/2 exp(y^2) */
static qn__ir_value newton(qn__ir *ir, qn__ir_value y, qn__ir_value x)
{
    qn__ir_value off = qn__ir_binary(ir, QN__IR_SUB, qn__ir_unary(ir, QN__IR_ERF, y), x);
    qn__ir_value steep = qn__ir_unary(ir, QN__IR_EXP, qn__ir_binary(ir, QN__IR_MUL, y, y));
    steep = qn__ir_binary(ir, QN__IR_MUL, steep,
                          qn__ir_real(ir, qn__ir_dtype(ir, y), 0.88622692545275801));
    return qn__ir_binary(ir, QN__IR_SUB, y, qn__ir_binary(ir, QN__IR_MUL, off, steep));
}

static qn__ir_value emit_erfinv(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    static const double near[] = {2.81022636e-08,  3.43273939e-07, -3.5233877e-06,
                                  -4.39150654e-06, 0.00021858087,  -0.00125372503,
                                  -0.00417768164,  0.246640727,    1.50140941};
    static const double far[] = {-0.000200214257, 0.000100950558, 0.00134934322,
                                 -0.00367342844,  0.00573950773,  -0.0076224613,
                                 0.00943887047,   1.00167406,     2.83297682};
    (void)params;
    qn__ir_value x = in[0];
    qn_dtype type = qn__ir_dtype(ir, x);
    qn__ir_value square = qn__ir_binary(ir, QN__IR_MUL, x, qn__ir_unary(ir, QN__IR_NEG, x));
    qn__ir_value w = qn__ir_unary(ir, QN__IR_NEG, qn__ir_unary(ir, QN__IR_LOG1P, square));
    qn__ir_value is_near = qn__ir_binary(ir, QN__IR_LT, w, qn__ir_real(ir, type, 5));
    qn__ir_value below = qn__ir_binary(ir, QN__IR_SUB, w, qn__ir_real(ir, type, 2.5));
    qn__ir_value above =
        qn__ir_binary(ir, QN__IR_SUB, qn__ir_unary(ir, QN__IR_SQRT, w), qn__ir_real(ir, type, 3));
    qn__ir_value p = qn__ir_ternary(ir, QN__IR_SELECT, is_near, polynomial(ir, below, near),
                                    polynomial(ir, above, far));
    qn__ir_value y = qn__ir_binary(ir, QN__IR_MUL, p, x);
    qn__ir_value end =
        qn__ir_binary(ir, QN__IR_EQ, qn__ir_unary(ir, QN__IR_ABS, x), qn__ir_real(ir, type, 1));
    if (type == QN_F64)
        y = newton(ir, newton(ir, y, x), x);
    qn__ir_value infinite = qn__ir_binary(ir, QN__IR_MUL, x, qn__ir_real(ir, type, INFINITY));
    return qn__ir_ternary(ir, QN__IR_SELECT, end, infinite, y);
}

qn_array *qn_erfinv(qn_scope *s, qn_array *x)
{
    x = qn__input(s, x, "erfinv");
    if (!x)
        return qn__poison(s);
    if (!qn__is_float((qn_dtype)x->dtype))
        x = qn_cast(s, x, QN_F32);
    if (qn__is_poison(s, x))
        return qn__poison(s);
    return qn__elementwise(s, QN__OP_ERFINV, (qn_dtype)x->dtype, 1, &x);
}

/* sqrt(pi)/2 exp(y^2) */
static qn_array *erfinv_slope(qn_scope *s, const qn_array *node, qn_array *t)
{
    qn_array *steep = qn_exp(s, qn_square(s, qn_erfinv(s, node->in[0])));
    return qn_multiply(s, t, qn_multiply(s, steep, qn__scalar_like(s, t, 0.88622692545275801)));
}

static void vjp_erfinv(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                       qn_array **grads)
{
    (void)want;
    grads[0] = erfinv_slope(s, node, ct);
}

static qn_array *jvp_erfinv(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return erfinv_slope(s, node, tangents[0]);
}

const qn__op_def qn__erfinv_op = {.name = "erfinv",
                                  .class = QN__ELEMENTWISE,
                                  .emit = emit_erfinv,
                                  .vjp = vjp_erfinv,
                                  .jvp = jvp_erfinv};
