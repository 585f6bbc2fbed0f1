/* SPDX-License-Identifier: Apache-2.0
 *
 * What records an elementwise operation: types promoted, operands broadcast. What each means and
 * its derivative stand in unary.c and binary.c.
 */
#include "ops/ops.h"

/* ---- one operand ---------------------------------------------------------------------------- */

static qn_array *unary(qn_scope *s, qn__op_id op, qn_array *x, bool needs_float)
{
    x = qn__input(s, x, qn__ops[op]->name);
    if (!x)
        return qn__poison(s);
    if (x->dtype == QN_BOOL && op != QN__OP_LOGICAL_NOT && op != QN__OP_COPY &&
        op != QN__OP_STOP_GRADIENT)
        x = qn_cast(s, x, QN_I32);
    if (needs_float && !qn__is_float((qn_dtype)x->dtype))
        x = qn_cast(s, x, QN_F32);
    if (qn__is_poison(s, x))
        return qn__poison(s);
    return qn__elementwise(s, op, (qn_dtype)x->dtype, 1, &x);
}

qn_array *qn_negative(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_NEGATIVE, x, false);
}

qn_array *qn_abs(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_ABS, x, false);
}

qn_array *qn_sqrt(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_SQRT, x, true);
}

qn_array *qn_rsqrt(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_RSQRT, x, true);
}

qn_array *qn_square(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_SQUARE, x, false);
}

qn_array *qn_exp(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_EXP, x, true);
}

qn_array *qn_log(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_LOG, x, true);
}

qn_array *qn_sin(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_SIN, x, true);
}

qn_array *qn_cos(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_COS, x, true);
}

qn_array *qn_tanh(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_TANH, x, true);
}

qn_array *qn_erf(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_ERF, x, true);
}

qn_array *qn_sigmoid(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_SIGMOID, x, true);
}

qn_array *qn_silu(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_SILU, x, true);
}

qn_array *qn_relu(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_RELU, x, false);
}

qn_array *qn_gelu(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_GELU, x, true);
}

qn_array *qn_gelu_tanh(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_GELU_TANH, x, true);
}

qn_array *qn_log1p(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_LOG1P, x, true);
}

qn_array *qn_expm1(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_EXPM1, x, true);
}

qn_array *qn_log2(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_LOG2, x, true);
}

qn_array *qn_exp2(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_EXP2, x, true);
}

qn_array *qn_log10(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_LOG10, x, true);
}

qn_array *qn_tan(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_TAN, x, true);
}

qn_array *qn_asin(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_ASIN, x, true);
}

qn_array *qn_acos(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_ACOS, x, true);
}

qn_array *qn_atan(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_ATAN, x, true);
}

qn_array *qn_sinh(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_SINH, x, true);
}

qn_array *qn_cosh(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_COSH, x, true);
}

qn_array *qn_sign(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_SIGN, x, false);
}

/* Integers are whole already. */
static qn_array *round_with(qn_scope *s, qn__op_id op, qn_array *x)
{
    x = qn__input(s, x, qn__ops[op]->name);
    if (!x || !qn__is_float((qn_dtype)x->dtype))
        return x ? x : qn__poison(s);
    return unary(s, op, x, false);
}

qn_array *qn_floor(qn_scope *s, qn_array *x)
{
    return round_with(s, QN__OP_FLOOR, x);
}

qn_array *qn_ceil(qn_scope *s, qn_array *x)
{
    return round_with(s, QN__OP_CEIL, x);
}

qn_array *qn_round(qn_scope *s, qn_array *x)
{
    return round_with(s, QN__OP_ROUND, x);
}

qn_array *qn_logical_not(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_LOGICAL_NOT, qn_cast(s, x, QN_BOOL), false);
}

qn_array *qn_bitwise_not(qn_scope *s, qn_array *x)
{
    x = qn__input(s, x, "bitwise_not");
    if (!x)
        return qn__poison(s);
    if (qn__is_float((qn_dtype)x->dtype))
        return qn__op_fail(s, "bitwise_not", x, NULL, "only bool and integers have bits to invert");
    return qn__elementwise(s, QN__OP_BITWISE_NOT, (qn_dtype)x->dtype, 1, &x);
}

qn_array *qn_cast(qn_scope *s, qn_array *x, qn_dtype dtype)
{
    x = qn__input(s, x, "cast");
    if (!x)
        return qn__poison(s);
    if ((unsigned)dtype >= QN_DTYPE_COUNT)
        return qn__op_fail(s, "cast", x, NULL, "not a type");
    return x->dtype == dtype ? x : qn__elementwise(s, QN__OP_CAST, dtype, 1, &x);
}

qn_array *qn__round_to(qn_scope *s, qn_array *x, qn_dtype dtype)
{
    x = qn__input(s, x, "round_to");
    if (!x)
        return qn__poison(s);
    qn__round_to_params params = {dtype};
    return qn__record(s, QN__OP_ROUND_TO, (qn_dtype)x->dtype, x->ndim, x->shape, 1, &x, &params);
}

qn_array *qn_stop_gradient(qn_scope *s, qn_array *x)
{
    return unary(s, QN__OP_STOP_GRADIENT, x, false);
}

qn_array *qn_contiguous(qn_scope *s, qn_array *x)
{
    x = qn__input(s, x, "contiguous");
    if (!x || x->flags & QN__CONTIGUOUS)
        return x ? x : qn__poison(s);
    return unary(s, QN__OP_COPY, x, false);
}

/* ---- two operands --------------------------------------------------------------------------- */

/* What an operation makes of the promoted type. ARITHMETIC of bools stays bool where it means
 * something: a sum is "or", a product "and". NUMBERS makes bools i32. */
typedef enum operand_rule {
    ARITHMETIC,
    NUMBERS,
    FLOATS,
    COMPARES,
    BOOLS,
    BITS,
    WHOLE
} operand_rule;

/* The operation on two bools that stands for one of numbers. */
static qn__op_id of_bools(qn__op_id op)
{
    return op == QN__OP_ADD || op == QN__OP_MAXIMUM ? QN__OP_LOGICAL_OR : QN__OP_LOGICAL_AND;
}

static qn_array *binary(qn_scope *s, qn__op_id op, qn_array *a, qn_array *b, operand_rule rule)
{
    const char *name = qn__ops[op]->name;
    a = qn__input(s, a, name);
    b = a ? qn__input(s, b, name) : NULL;
    if (!b)
        return qn__poison(s);
    qn_dtype type = qn__dtype_promote((qn_dtype)a->dtype, (qn_dtype)b->dtype);
    if ((rule == BITS || rule == WHOLE) && qn__is_float(type))
        return qn__op_fail(s, name, a, b, "only bool and integers have bits");
    if (rule == BOOLS)
        type = QN_BOOL;
    if (rule == FLOATS && !qn__is_float(type))
        type = QN_F32;
    if (type == QN_BOOL && rule == ARITHMETIC && op == QN__OP_SUBTRACT)
        return qn__op_fail(s, name, a, b, "bools have no difference: use not_equal, or cast");
    if (type == QN_BOOL && rule == ARITHMETIC)
        op = of_bools(op);
    if (type == QN_BOOL && (rule == NUMBERS || rule == WHOLE))
        type = QN_I32;
    qn_array *in[] = {qn_cast(s, a, type), qn_cast(s, b, type)};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__elementwise(s, op, rule == COMPARES ? QN_BOOL : type, 2, in);
}

qn_array *qn_add(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_ADD, a, b, ARITHMETIC);
}

qn_array *qn_subtract(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_SUBTRACT, a, b, ARITHMETIC);
}

qn_array *qn_multiply(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_MULTIPLY, a, b, ARITHMETIC);
}

qn_array *qn_divide(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_DIVIDE, a, b, FLOATS);
}

qn_array *qn_power(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_POWER, a, b, NUMBERS);
}

qn_array *qn_maximum(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_MAXIMUM, a, b, ARITHMETIC);
}

qn_array *qn_minimum(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_MINIMUM, a, b, ARITHMETIC);
}

qn_array *qn_equal(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_EQUAL, a, b, COMPARES);
}

qn_array *qn_not_equal(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_NOT_EQUAL, a, b, COMPARES);
}

qn_array *qn_less(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_LESS, a, b, COMPARES);
}

qn_array *qn_less_equal(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_LESS_EQUAL, a, b, COMPARES);
}

qn_array *qn_logical_and(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_LOGICAL_AND, a, b, BOOLS);
}

qn_array *qn_logical_or(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_LOGICAL_OR, a, b, BOOLS);
}

qn_array *qn_floor_divide(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_FLOOR_DIVIDE, a, b, NUMBERS);
}

qn_array *qn_remainder(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_REMAINDER, a, b, NUMBERS);
}

qn_array *qn_atan2(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_ATAN2, a, b, FLOATS);
}

qn_array *qn_logaddexp(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_LOGADDEXP, a, b, FLOATS);
}

qn_array *qn_bitwise_and(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_BITWISE_AND, a, b, BITS);
}

qn_array *qn_bitwise_or(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_BITWISE_OR, a, b, BITS);
}

qn_array *qn_bitwise_xor(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_BITWISE_XOR, a, b, BITS);
}

qn_array *qn_left_shift(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_LEFT_SHIFT, a, b, WHOLE);
}

qn_array *qn_right_shift(qn_scope *s, qn_array *a, qn_array *b)
{
    return binary(s, QN__OP_RIGHT_SHIFT, a, b, WHOLE);
}

qn_array *qn_greater(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_less(s, b, a);
}

qn_array *qn_greater_equal(qn_scope *s, qn_array *a, qn_array *b)
{
    return qn_less_equal(s, b, a);
}

qn_array *qn_where(qn_scope *s, qn_array *condition, qn_array *a, qn_array *b)
{
    condition = qn_cast(s, condition, QN_BOOL);
    a = qn__input(s, a, "where");
    b = a ? qn__input(s, b, "where") : NULL;
    if (!b)
        return qn__poison(s);
    qn_dtype type = qn__dtype_promote((qn_dtype)a->dtype, (qn_dtype)b->dtype);
    qn_array *in[] = {condition, qn_cast(s, a, type), qn_cast(s, b, type)};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__elementwise(s, QN__OP_WHERE, type, 3, in);
}
