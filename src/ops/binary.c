/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementwise operations on two arrays, and where (elementwise.c records them): what they mean,
 * their derivatives.
 */
#include "ops/ops.h"

/* ---- derivatives
 * ------------------------------------------------------------------------------------ */

/* Stores the cotangent of input i, brought to its shape. */
static void give(qn_scope *s, const qn_array *node, int i, const bool *want, qn_array **grads,
                 qn_array *ct)
{
    if (want[i])
        grads[i] = qn__unbroadcast(s, ct, node->in[i]);
}

/* a + b of two tangents that may be zero, brought to the node's shape. */
static qn_array *sum_tangents(qn_scope *s, const qn_array *node, qn_array *a, qn_array *b)
{
    if (!a && !b)
        return NULL;
    qn_array *t = a && b ? qn_add(s, a, b) : a ? a : b;
    return qn_broadcast_to(s, t, node->ndim, node->shape);
}

static void vjp_add(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                    qn_array **grads)
{
    give(s, node, 0, want, grads, ct);
    give(s, node, 1, want, grads, ct);
}

static qn_array *jvp_add(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    return sum_tangents(s, node, t[0], t[1]);
}

static void vjp_subtract(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                         qn_array **grads)
{
    give(s, node, 0, want, grads, ct);
    give(s, node, 1, want, grads, want[1] ? qn_negative(s, ct) : NULL);
}

static qn_array *jvp_subtract(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    return sum_tangents(s, node, t[0], t[1] ? qn_negative(s, t[1]) : NULL);
}

static void vjp_multiply(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                         qn_array **grads)
{
    for (int i = 0; i < 2; i++)
        if (want[i])
            give(s, node, i, want, grads, qn_multiply(s, ct, node->in[1 - i]));
}

static qn_array *jvp_multiply(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    return sum_tangents(s, node, t[0] ? qn_multiply(s, t[0], node->in[1]) : NULL,
                        t[1] ? qn_multiply(s, node->in[0], t[1]) : NULL);
}

/* d(a/b)/db = -a/b^2 */
static qn_array *divide_slope(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *a = node->in[0], *b = node->in[1];
    return qn_negative(s, qn_divide(s, qn_multiply(s, ct, qn_divide(s, a, b)), b));
}

static void vjp_divide(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                       qn_array **grads)
{
    if (want[0])
        give(s, node, 0, want, grads, qn_divide(s, ct, node->in[1]));
    if (want[1])
        give(s, node, 1, want, grads, divide_slope(s, node, ct));
}

static qn_array *jvp_divide(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    return sum_tangents(s, node, t[0] ? qn_divide(s, t[0], node->in[1]) : NULL,
                        t[1] ? divide_slope(s, node, t[1]) : NULL);
}

/* b a^(b-1); zero where b is 0, also at a = 0 */
static qn_array *power_base(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *a = node->in[0], *b = node->in[1], *zero = qn__scalar_like(s, b, 0);
    qn_array *flat = qn_equal(s, b, zero), *one = qn__scalar_like(s, b, 1);
    qn_array *less = qn_power(s, a, qn_where(s, flat, zero, qn_subtract(s, b, one)));
    return qn_multiply(s, ct, qn_multiply(s, b, less));
}

/* a^b log a; zero where a is 0 */
static qn_array *power_exponent(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *a = node->in[0], *zero = qn__scalar_like(s, ct, 0);
    qn_array *log = qn_where(s, qn_equal(s, a, zero), zero, qn_log(s, a));
    return qn_multiply(s, ct, qn_multiply(s, qn_power(s, a, node->in[1]), log));
}

static void vjp_power(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                      qn_array **grads)
{
    if (want[0])
        give(s, node, 0, want, grads, power_base(s, node, ct));
    if (want[1])
        give(s, node, 1, want, grads, power_exponent(s, node, ct));
}

static qn_array *jvp_power(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    return sum_tangents(s, node, t[0] ? power_base(s, node, t[0]) : NULL,
                        t[1] ? power_exponent(s, node, t[1]) : NULL);
}

/* How much of a maximum or minimum is operand i's: all, nothing, or half of a tie. A NaN is a tie,
 * as one is neither less nor greater. */
static qn_array *share_of(qn_scope *s, const qn_array *node, int i)
{
    qn_array *own = node->in[i], *other = node->in[1 - i];
    bool largest = node->op == QN__OP_MAXIMUM;
    qn_array *wins = largest ? qn_greater(s, own, other) : qn_less(s, own, other);
    qn_array *loses = largest ? qn_less(s, own, other) : qn_greater(s, own, other);
    qn_array *one = qn__scalar_like(s, node, 1), *half = qn__scalar_like(s, node, 0.5);
    return qn_where(s, wins, one, qn_where(s, loses, qn__scalar_like(s, node, 0), half));
}

static void vjp_extreme(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                        qn_array **grads)
{
    for (int i = 0; i < 2; i++)
        if (want[i])
            give(s, node, i, want, grads, qn_multiply(s, ct, share_of(s, node, i)));
}

static qn_array *jvp_extreme(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    return sum_tangents(s, node, t[0] ? qn_multiply(s, t[0], share_of(s, node, 0)) : NULL,
                        t[1] ? qn_multiply(s, t[1], share_of(s, node, 1)) : NULL);
}

/* -floor(a / b), the slope of a - b floor(a / b) in b */
static qn_array *remainder_slope(qn_scope *s, const qn_array *node, qn_array *ct)
{
    return qn_negative(s, qn_multiply(s, ct, qn_floor_divide(s, node->in[0], node->in[1])));
}

static void vjp_remainder(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                          qn_array **grads)
{
    give(s, node, 0, want, grads, ct);
    if (want[1])
        give(s, node, 1, want, grads, remainder_slope(s, node, ct));
}

static qn_array *jvp_remainder(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    return sum_tangents(s, node, t[0], t[1] ? remainder_slope(s, node, t[1]) : NULL);
}

/* b / (a^2 + b^2) in a, -a / (a^2 + b^2) in b */
static qn_array *atan2_slope(qn_scope *s, const qn_array *node, int i, qn_array *ct)
{
    qn_array *a = node->in[0], *b = node->in[1];
    qn_array *size = qn_add(s, qn_square(s, a), qn_square(s, b));
    qn_array *slope = qn_divide(s, i ? qn_negative(s, a) : b, size);
    return qn_multiply(s, ct, slope);
}

/* exp(x - y): the share of operand i; equal infinities share alike */
static qn_array *logaddexp_slope(qn_scope *s, const qn_array *node, int i, qn_array *ct)
{
    qn_array *own = node->in[i], *other = node->in[1 - i];
    qn_array *share = qn_where(s, qn_equal(s, own, other), qn__scalar_like(s, ct, 0.5),
                               qn_sigmoid(s, qn_subtract(s, own, other)));
    return qn_multiply(s, ct, share);
}

#define TWO_SLOPES(name)                                                                           \
    static void vjp_##name(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,      \
                           qn_array **grads)                                                       \
    {                                                                                              \
        for (int i = 0; i < 2; i++)                                                                \
            if (want[i])                                                                           \
                give(s, node, i, want, grads, name##_slope(s, node, i, ct));                       \
    }                                                                                              \
    static qn_array *jvp_##name(qn_scope *s, const qn_array *node, qn_array *const *t)             \
    {                                                                                              \
        return sum_tangents(s, node, t[0] ? name##_slope(s, node, 0, t[0]) : NULL,                 \
                            t[1] ? name##_slope(s, node, 1, t[1]) : NULL);                         \
    }
TWO_SLOPES(atan2)
TWO_SLOPES(logaddexp)

static void vjp_where(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                      qn_array **grads)
{
    qn_array *zero = qn__scalar_like(s, ct, 0);
    if (want[1])
        give(s, node, 1, want, grads, qn_where(s, node->in[0], ct, zero));
    if (want[2])
        give(s, node, 2, want, grads, qn_where(s, node->in[0], zero, ct));
}

static qn_array *jvp_where(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    if (!t[1] && !t[2])
        return NULL;
    qn_array *zero = qn__scalar_like(s, node, 0);
    return sum_tangents(s, node, qn_where(s, node->in[0], t[1] ? t[1] : zero, t[2] ? t[2] : zero),
                        NULL);
}

static void vjp_compare(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                        qn_array **grads)
{
    (void)s, (void)node, (void)ct, (void)want, (void)grads;
}

static qn_array *jvp_compare(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    (void)s, (void)node, (void)t;
    return NULL;
}

/* ---- emit functions of those that take several instructions
 * -------------------------------------- */

/* The remainder of a division towards zero, and whether its sign differs from the divisor's. */
static qn__ir_value emit_rest(qn__ir *ir, const qn__ir_value *in, qn__ir_value *differs)
{
    qn_dtype type = qn__ir_dtype(ir, in[0]);
    qn__ir_value zero = qn__ir_integer(ir, type, 0);
    qn__ir_value rest = qn__ir_binary(ir, QN__IR_REM, in[0], in[1]);
    qn__ir_value signs = qn__ir_binary(ir, QN__IR_XOR, qn__ir_binary(ir, QN__IR_LT, rest, zero),
                                       qn__ir_binary(ir, QN__IR_LT, in[1], zero));
    *differs = qn__ir_binary(ir, QN__IR_AND, signs, qn__ir_binary(ir, QN__IR_NE, rest, zero));
    return rest;
}

/* Of the divisor's sign, as Python's %. */
static qn__ir_value emit_remainder(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)params;
    qn__ir_value differs, rest = emit_rest(ir, in, &differs);
    return qn__ir_ternary(ir, QN__IR_SELECT, differs, qn__ir_binary(ir, QN__IR_ADD, rest, in[1]),
                          rest);
}

/* Integers: the quotient towards zero, less one where the signs differ. Floats: (a - rest) / b,
 * nearly whole, rounded; a / b where b is 0. */
static qn__ir_value emit_floor_divide(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)params;
    qn_dtype type = qn__ir_dtype(ir, in[0]);
    bool real = qn__is_float(type);
    qn__ir_value differs, rest = emit_rest(ir, in, &differs), one = qn__ir_integer(ir, type, 1);
    qn__ir_value part = real ? qn__ir_binary(ir, QN__IR_SUB, in[0], rest) : in[0];
    qn__ir_value q = qn__ir_binary(ir, QN__IR_DIV, part, in[1]);
    q = qn__ir_ternary(ir, QN__IR_SELECT, differs, qn__ir_binary(ir, QN__IR_SUB, q, one), q);
    if (!real)
        return q;
    qn__ir_value by_zero = qn__ir_binary(ir, QN__IR_EQ, in[1], qn__ir_integer(ir, type, 0));
    return qn__ir_ternary(ir, QN__IR_SELECT, by_zero, qn__ir_binary(ir, QN__IR_DIV, in[0], in[1]),
                          qn__ir_unary(ir, QN__IR_ROUND, q));
}

/* max(a, b) + log(1 + exp(-|a - b|)); of equal operands the difference is taken as 0, infinite ones
 * included */
static qn__ir_value emit_logaddexp(qn__ir *ir, const void *params, const qn__ir_value *in)
{
    (void)params;
    qn_dtype type = qn__ir_dtype(ir, in[0]);
    qn__ir_value same = qn__ir_binary(ir, QN__IR_EQ, in[0], in[1]);
    qn__ir_value apart = qn__ir_unary(ir, QN__IR_ABS, qn__ir_binary(ir, QN__IR_SUB, in[0], in[1]));
    apart = qn__ir_ternary(ir, QN__IR_SELECT, same, qn__ir_real(ir, type, 0), apart);
    qn__ir_value e = qn__ir_unary(ir, QN__IR_EXP, qn__ir_unary(ir, QN__IR_NEG, apart));
    return qn__ir_binary(ir, QN__IR_ADD, qn__ir_binary(ir, QN__IR_MAX, in[0], in[1]),
                         qn__ir_unary(ir, QN__IR_LOG1P, e));
}

#define DEFINITION(symbol, text, id, derivative)                                                   \
    const qn__op_def qn__##symbol##_op = {.name = text,                                            \
                                          .class = QN__ELEMENTWISE,                                \
                                          .ir_op = QN__IR_##id,                                    \
                                          .vjp = vjp_##derivative,                                 \
                                          .jvp = jvp_##derivative}
DEFINITION(add, "add", ADD, add);
DEFINITION(subtract, "subtract", SUB, subtract);
DEFINITION(multiply, "multiply", MUL, multiply);
DEFINITION(divide, "divide", DIV, divide);
DEFINITION(power, "power", POW, power);
DEFINITION(maximum, "maximum", MAX, extreme);
DEFINITION(minimum, "minimum", MIN, extreme);
DEFINITION(equal, "equal", EQ, compare);
DEFINITION(not_equal, "not_equal", NE, compare);
DEFINITION(less, "less", LT, compare);
DEFINITION(less_equal, "less_equal", LE, compare);
DEFINITION(logical_and, "logical_and", AND, compare);
DEFINITION(logical_or, "logical_or", OR, compare);
DEFINITION(where, "where", SELECT, where);
DEFINITION(atan2, "atan2", ATAN2, atan2);
DEFINITION(bitwise_and, "bitwise_and", AND, compare);
DEFINITION(bitwise_or, "bitwise_or", OR, compare);
DEFINITION(bitwise_xor, "bitwise_xor", XOR, compare);
DEFINITION(left_shift, "left_shift", SHL, compare);
DEFINITION(right_shift, "right_shift", SHR, compare);

const qn__op_def qn__floor_divide_op = {.name = "floor_divide",
                                        .class = QN__ELEMENTWISE,
                                        .emit = emit_floor_divide,
                                        .vjp = vjp_compare,
                                        .jvp = jvp_compare};
const qn__op_def qn__remainder_op = {.name = "remainder",
                                     .class = QN__ELEMENTWISE,
                                     .emit = emit_remainder,
                                     .vjp = vjp_remainder,
                                     .jvp = jvp_remainder};
const qn__op_def qn__logaddexp_op = {.name = "logaddexp",
                                     .class = QN__ELEMENTWISE,
                                     .emit = emit_logaddexp,
                                     .vjp = vjp_logaddexp,
                                     .jvp = jvp_logaddexp};
