/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementwise operations on one array (elementwise.c records them): each has one IR instruction, or
 * an emit function where it takes several, and its derivative. The tangent of an elementwise
 * function is its cotangent times the same factor, so jvp goes through vjp's code: scale(ct) = ct *
 * f'(x).
 */
#include "ops/ops.h"

/* ---- derivatives: each `scale_` function gives ct * f'(x) ---------------------------------------
 */

typedef qn_array *scale_fn(qn_scope *s, const qn_array *node, qn_array *ct);

static qn_array *scale_negative(qn_scope *s, const qn_array *node, qn_array *ct)
{
    (void)node;
    return qn_negative(s, ct);
}

static qn_array *scale_abs(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_multiply(s, ct, qn_sign(s, node->in[0]));
}

static qn_array *scale_sqrt(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_divide(s, qn_multiply(s, ct, qn__scalar_like(s, ct, 0.5)), qn_sqrt(s, node->in[0]));
}

static qn_array *scale_rsqrt(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *r = qn_rsqrt(s, node->in[0]);
    qn_array *cube = qn_multiply(s, r, qn_multiply(s, r, r));
    return qn_multiply(s, qn_multiply(s, ct, qn__scalar_like(s, ct, -0.5)), cube);
}

static qn_array *scale_square(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_multiply(s, qn_multiply(s, ct, qn__scalar_like(s, ct, 2)), node->in[0]);
}

static qn_array *scale_exp(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_multiply(s, ct, qn_exp(s, node->in[0]));
}

static qn_array *scale_log(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_divide(s, ct, node->in[0]);
}

static qn_array *scale_sin(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_multiply(s, ct, qn_cos(s, node->in[0]));
}

static qn_array *scale_cos(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_negative(s, qn_multiply(s, ct, qn_sin(s, node->in[0])));
}

/* 1 - y^2 */
static qn_array *scale_tanh(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *y = qn_tanh(s, node->in[0]);
    return qn_multiply(s, ct, qn_subtract(s, qn__scalar_like(s, ct, 1), qn_square(s, y)));
}

/* 2/sqrt(pi) exp(-x^2) */
static qn_array *scale_erf(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *bell = qn_exp(s, qn_negative(s, qn_square(s, node->in[0])));
    return qn_multiply(s, qn_multiply(s, ct, qn__scalar_like(s, ct, 1.1283791670955126)), bell);
}

/* y (1 - y) */
static qn_array *scale_sigmoid(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *y = qn_sigmoid(s, node->in[0]);
    qn_array *rest = qn_subtract(s, qn__scalar_like(s, ct, 1), y);
    return qn_multiply(s, ct, qn_multiply(s, y, rest));
}

/* g (1 + x (1 - g)), g = sigmoid(x) */
static qn_array *scale_silu(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *x = node->in[0], *one = qn__scalar_like(s, ct, 1), *g = qn_sigmoid(s, x);
    qn_array *inner = qn_multiply(s, x, qn_subtract(s, one, g));
    return qn_multiply(s, ct, qn_multiply(s, g, qn_add(s, one, inner)));
}

static qn_array *scale_relu(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *zero = qn__scalar_like(s, ct, 0);
    return qn_where(s, qn_greater(s, node->in[0], zero), ct, zero);
}

/* Phi(x) + x phi(x) */
static qn_array *scale_gelu(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *x = node->in[0];
    qn_array *half = qn__scalar_like(s, ct, 0.5), *one = qn__scalar_like(s, ct, 1);
    qn_array *erf = qn_erf(s, qn_multiply(s, x, qn__scalar_like(s, ct, 0.70710678118654752)));
    qn_array *cdf = qn_multiply(s, half, qn_add(s, one, erf));
    qn_array *bell = qn_exp(s, qn_multiply(s, qn__scalar_like(s, ct, -0.5), qn_square(s, x)));
    qn_array *pdf = qn_multiply(s, bell, qn__scalar_like(s, ct, 0.39894228040143268));
    return qn_multiply(s, ct, qn_add(s, cdf, qn_multiply(s, x, pdf)));
}

static const double GELU_A = 0.79788456080286536, GELU_B = 0.044715;

/* with u = a (x + b x^3), t = tanh u: (1 + t)/2 + x (1 - t^2) a (1 + 3 b x^2) / 2 */
static qn_array *scale_gelu_tanh(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *x = node->in[0], *one = qn__scalar_like(s, ct, 1);
    qn_array *half = qn__scalar_like(s, ct, 0.5), *x2 = qn_square(s, x);
    qn_array *b_x2 = qn_multiply(s, x2, qn__scalar_like(s, ct, GELU_B));
    qn_array *a_x = qn_multiply(s, x, qn__scalar_like(s, ct, GELU_A));
    qn_array *t = qn_tanh(s, qn_multiply(s, a_x, qn_add(s, one, b_x2)));
    qn_array *slope = qn_add(s, one, qn_multiply(s, b_x2, qn__scalar_like(s, ct, 3)));
    qn_array *d = qn_multiply(s, qn_multiply(s, a_x, slope), qn_subtract(s, one, qn_square(s, t)));
    return qn_multiply(s, ct, qn_multiply(s, half, qn_add(s, qn_add(s, one, t), d)));
}

/* 1 / (1 + x) */
static qn_array *scale_log1p(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_divide(s, ct, qn_add(s, node->in[0], qn__scalar_like(s, ct, 1)));
}

static qn_array *scale_expm1(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_multiply(s, ct, qn_exp(s, node->in[0]));
}

static qn_array *scale_log2(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *scaled = qn_multiply(s, ct, qn__scalar_like(s, ct, 1.4426950408889634));
    return qn_divide(s, scaled, node->in[0]);
}

static qn_array *scale_exp2(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *scaled = qn_multiply(s, ct, qn__scalar_like(s, ct, 0.69314718055994531));
    return qn_multiply(s, scaled, qn_exp2(s, node->in[0]));
}

static qn_array *scale_log10(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *scaled = qn_multiply(s, ct, qn__scalar_like(s, ct, 0.43429448190325182));
    return qn_divide(s, scaled, node->in[0]);
}

/* 1 + y^2 */
static qn_array *scale_tan(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *y = qn_tan(s, node->in[0]);
    return qn_multiply(s, ct, qn_add(s, qn__scalar_like(s, ct, 1), qn_square(s, y)));
}

/* 1 / sqrt(1 - x^2) */
static qn_array *scale_asin(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *rest = qn_subtract(s, qn__scalar_like(s, ct, 1), qn_square(s, node->in[0]));
    return qn_divide(s, ct, qn_sqrt(s, rest));
}

static qn_array *scale_acos(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_negative(s, scale_asin(s, node, ct));
}

/* 1 / (1 + x^2) */
static qn_array *scale_atan(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_divide(s, ct, qn_add(s, qn__scalar_like(s, ct, 1), qn_square(s, node->in[0])));
}

static qn_array *scale_sinh(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_multiply(s, ct, qn_cosh(s, node->in[0]));
}

static qn_array *scale_cosh(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_multiply(s, ct, qn_sinh(s, node->in[0]));
}

/* A cast's derivative casts back, and forth for the tangent; integers have none. */
static void vjp_cast(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                     qn_array **grads)
{
    (void)want;
    if (qn__is_float((qn_dtype)node->dtype))
        grads[0] = qn_cast(s, ct, (qn_dtype)node->in[0]->dtype);
}

static qn_array *jvp_cast(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return qn__is_float((qn_dtype)node->dtype) ? qn_cast(s, tangents[0], (qn_dtype)node->dtype)
                                               : NULL;
}

/* Rounding to a 16-bit type counts as the identity, as for the operands of a linear layer's kernel.
 */
static void vjp_round_to(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                         qn_array **grads)
{
    (void)s, (void)node, (void)want;
    grads[0] = ct;
}

static qn_array *jvp_round_to(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    (void)s, (void)node;
    return tangents[0];
}

static void vjp_zero(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                     qn_array **grads)
{
    (void)s, (void)node, (void)ct, (void)want, (void)grads;
}

static qn_array *jvp_zero(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    (void)s, (void)node, (void)tangents;
    return NULL;
}

/* ---- emit functions of those that take several instructions
 * -------------------------------------- */

static qn__ir_value emit_identity(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)ir, (void)params;
    return in[0];
}

static qn__ir_value emit_round_to(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    const qn__round_to_params *p = params;
    return qn__ir_cast(ir, qn__ir_cast(ir, in[0], (qn_dtype)p->dtype), qn__ir_dtype(ir, in[0]));
}

static qn__ir_value emit_square(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)params;
    return qn__ir_binary(ir, QN__IR_MUL, in[0], in[0]);
}

static qn__ir_value emit_silu(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)params;
    return qn__ir_binary(ir, QN__IR_MUL, in[0], qn__ir_unary(ir, QN__IR_SIGMOID, in[0]));
}

static qn__ir_value emit_relu(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)params;
    return qn__ir_binary(ir, QN__IR_MAX, in[0], qn__ir_integer(ir, qn__ir_dtype(ir, in[0]), 0));
}

static qn__ir_value scaled(qn__ir *ir, qn__ir_value a, double k)
{
    return qn__ir_binary(ir, QN__IR_MUL, a, qn__ir_real(ir, qn__ir_dtype(ir, a), k));
}

static qn__ir_value plus_one(qn__ir *ir, qn__ir_value a)
{
    return qn__ir_binary(ir, QN__IR_ADD, a, qn__ir_real(ir, qn__ir_dtype(ir, a), 1));
}

static qn__ir_value emit_gelu(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)params;
    qn__ir_value erf = qn__ir_unary(ir, QN__IR_ERF, scaled(ir, in[0], 0.70710678118654752));
    return qn__ir_binary(ir, QN__IR_MUL, scaled(ir, in[0], 0.5), plus_one(ir, erf));
}

static qn__ir_value emit_gelu_tanh(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)params;
    qn__ir_value x2 = qn__ir_binary(ir, QN__IR_MUL, in[0], in[0]);
    qn__ir_value u = qn__ir_binary(ir, QN__IR_MUL, scaled(ir, in[0], GELU_A),
                                   plus_one(ir, scaled(ir, x2, GELU_B)));
    qn__ir_value t = qn__ir_unary(ir, QN__IR_TANH, u);
    return qn__ir_binary(ir, QN__IR_MUL, scaled(ir, in[0], 0.5), plus_one(ir, t));
}

/* ---- the definitions
 * ------------------------------------------------------------------------------ */

/* lower-case name, enum, needs a float */
#define DIFFERENTIABLE(X)                                                                          \
    X(negative, NEGATIVE, false)                                                                   \
    X(abs, ABS, false)                                                                             \
    X(sqrt, SQRT, true)                                                                            \
    X(rsqrt, RSQRT, true)                                                                          \
    X(square, SQUARE, false)                                                                       \
    X(exp, EXP, true)                                                                              \
    X(log, LOG, true)                                                                              \
    X(sin, SIN, true)                                                                              \
    X(cos, COS, true)                                                                              \
    X(tanh, TANH, true)                                                                            \
    X(erf, ERF, true)                                                                              \
    X(sigmoid, SIGMOID, true)                                                                      \
    X(silu, SILU, true)                                                                            \
    X(relu, RELU, false)                                                                           \
    X(gelu, GELU, true)                                                                            \
    X(gelu_tanh, GELU_TANH, true)                                                                  \
    X(log1p, LOG1P, true)                                                                          \
    X(expm1, EXPM1, true)                                                                          \
    X(log2, LOG2, true)                                                                            \
    X(exp2, EXP2, true)                                                                            \
    X(log10, LOG10, true)                                                                          \
    X(tan, TAN, true)                                                                              \
    X(asin, ASIN, true)                                                                            \
    X(acos, ACOS, true)                                                                            \
    X(atan, ATAN, true)                                                                            \
    X(sinh, SINH, true)                                                                            \
    X(cosh, COSH, true)
#define CONSTANT_SLOPE(X)                                                                          \
    X(sign, SIGN, false)                                                                           \
    X(floor, FLOOR, true)                                                                          \
    X(ceil, CEIL, true)                                                                            \
    X(round, ROUND, true)                                                                          \
    X(logical_not, LOGICAL_NOT, false)

/* vjp and jvp of a function with a scale_ function, written out so that a search finds them */
#define DERIVATIVES(name, id, needs_float)                                                         \
    static void vjp_##name(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,      \
                           qn_array **grads)                                                       \
    {                                                                                              \
        (void)want;                                                                                \
        grads[0] = scale_##name(s, node, ct);                                                      \
    }                                                                                              \
    static qn_array *jvp_##name(qn_scope *s, const qn_array *node, qn_array *const *tangents)      \
    {                                                                                              \
        return scale_##name(s, node, tangents[0]);                                                 \
    }
DIFFERENTIABLE(DERIVATIVES)

#define BY_INSTRUCTION(fn, id)                                                                     \
    const qn__op_def qn__##fn##_op = {.name = #fn,                                                 \
                                      .class = QN__ELEMENTWISE,                                    \
                                      .ir_op = QN__IR_##id,                                        \
                                      .vjp = vjp_##fn,                                             \
                                      .jvp = jvp_##fn}
#define BY_EMIT(fn)                                                                                \
    const qn__op_def qn__##fn##_op = {.name = #fn,                                                 \
                                      .class = QN__ELEMENTWISE,                                    \
                                      .emit = emit_##fn,                                           \
                                      .vjp = vjp_##fn,                                             \
                                      .jvp = jvp_##fn}
BY_INSTRUCTION(abs, ABS);
BY_INSTRUCTION(sqrt, SQRT);
BY_INSTRUCTION(rsqrt, RSQRT);
BY_INSTRUCTION(exp, EXP);
BY_INSTRUCTION(log, LOG);
BY_INSTRUCTION(sin, SIN);
BY_INSTRUCTION(cos, COS);
BY_INSTRUCTION(tanh, TANH);
BY_INSTRUCTION(erf, ERF);
BY_INSTRUCTION(sigmoid, SIGMOID);
BY_INSTRUCTION(negative, NEG);
BY_INSTRUCTION(log1p, LOG1P);
BY_INSTRUCTION(expm1, EXPM1);
BY_INSTRUCTION(log2, LOG2);
BY_INSTRUCTION(exp2, EXP2);
BY_INSTRUCTION(log10, LOG10);
BY_INSTRUCTION(tan, TAN);
BY_INSTRUCTION(asin, ASIN);
BY_INSTRUCTION(acos, ACOS);
BY_INSTRUCTION(atan, ATAN);
BY_INSTRUCTION(sinh, SINH);
BY_INSTRUCTION(cosh, COSH);
BY_EMIT(square);
BY_EMIT(silu);
BY_EMIT(relu);
BY_EMIT(gelu);
BY_EMIT(gelu_tanh);

#define STEP_FUNCTION(fn, id, needs_float)                                                         \
    const qn__op_def qn__##fn##_op = {.name = #fn,                                                 \
                                      .class = QN__ELEMENTWISE,                                    \
                                      .ir_op = QN__IR_##id,                                        \
                                      .vjp = vjp_zero,                                             \
                                      .jvp = jvp_zero};
#define QN__IR_LOGICAL_NOT QN__IR_NOT
#define QN__IR_BITWISE_NOT QN__IR_NOT
CONSTANT_SLOPE(STEP_FUNCTION)
STEP_FUNCTION(bitwise_not, BITWISE_NOT, false)

const qn__op_def qn__cast_op = {.name = "cast",
                                .class = QN__ELEMENTWISE,
                                .emit = emit_identity,
                                .vjp = vjp_cast,
                                .jvp = jvp_cast};
const qn__op_def qn__copy_op = {.name = "contiguous",
                                .class = QN__ELEMENTWISE,
                                .emit = emit_identity,
                                .vjp = vjp_cast,
                                .jvp = jvp_cast};
const qn__op_def qn__round_to_op = {.name = "round_to",
                                    .class = QN__ELEMENTWISE,
                                    .params_size = sizeof(qn__round_to_params),
                                    .emit = emit_round_to,
                                    .vjp = vjp_round_to,
                                    .jvp = jvp_round_to};
const qn__op_def qn__stop_gradient_op = {.name = "stop_gradient",
                                         .class = QN__ELEMENTWISE,
                                         .emit = emit_identity,
                                         .vjp = vjp_zero,
                                         .jvp = jvp_zero};
