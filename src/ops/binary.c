/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementwise operations on two arrays, and where. Operands are promoted to one type and broadcast.
 */
#include "ops/ops.h"

/* What an operation makes of the promoted type. */
typedef enum operand_rule { ANY_TYPE, FLOATS, COMPARES, BOOLS } operand_rule;

static qn_array *binary(qn_scope *s, qn__op_id op, qn_array *a, qn_array *b, operand_rule rule)
{
    const char *name = qn__ops[op]->name;
    a = qn__input(s, a, name);
    b = a ? qn__input(s, b, name) : NULL;
    if (!b)
        return qn__poison(s);
    qn_dtype type = qn__dtype_promote((qn_dtype)a->dtype, (qn_dtype)b->dtype);
    if (rule == BOOLS)
        type = QN_BOOL;
    if (rule == FLOATS && !qn__is_float(type))
        type = QN_F32;
    if (type == QN_BOOL && rule == ANY_TYPE)
        type = QN_I32;
    qn_array *in[] = {qn_cast(s, a, type), qn_cast(s, b, type)};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__elementwise(s, op, rule == COMPARES ? QN_BOOL : type, 2, in);
}

#define CONSTRUCTORS(X)                                                                            \
    X(add, ADD, ANY_TYPE)                                                                          \
    X(subtract, SUBTRACT, ANY_TYPE)                                                                \
    X(multiply, MULTIPLY, ANY_TYPE)                                                                \
    X(divide, DIVIDE, FLOATS)                                                                      \
    X(power, POWER, FLOATS)                                                                        \
    X(maximum, MAXIMUM, ANY_TYPE)                                                                  \
    X(minimum, MINIMUM, ANY_TYPE)                                                                  \
    X(equal, EQUAL, COMPARES)                                                                      \
    X(not_equal, NOT_EQUAL, COMPARES)                                                              \
    X(less, LESS, COMPARES)                                                                        \
    X(less_equal, LESS_EQUAL, COMPARES)                                                            \
    X(logical_and, LOGICAL_AND, BOOLS)                                                             \
    X(logical_or, LOGICAL_OR, BOOLS)
#define CONSTRUCTOR(name, id, rule)                                                                \
    qn_array *qn_##name(qn_scope *s, qn_array *a, qn_array *b)                                     \
    {                                                                                              \
        return binary(s, QN__OP_##id, a, b, rule);                                                 \
    }
CONSTRUCTORS(CONSTRUCTOR)

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

/* ---- derivatives ------------------------------------------------------------------------------------ */

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

/* b a^(b-1) */
static qn_array *power_base(qn_scope *s, const qn_array *node, qn_array *ct)
{
    qn_array *a = node->in[0], *b = node->in[1];
    qn_array *less = qn_power(s, a, qn_subtract(s, b, qn__scalar_like(s, b, 1)));
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

/* Which operand a maximum or minimum took; a tie goes to the first. */
static qn_array *took_first(qn_scope *s, const qn_array *node)
{
    return node->op == QN__OP_MAXIMUM ? qn_greater_equal(s, node->in[0], node->in[1])
                                      : qn_less_equal(s, node->in[0], node->in[1]);
}

static void vjp_extreme(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                        qn_array **grads)
{
    qn_array *first = took_first(s, node), *zero = qn__scalar_like(s, ct, 0);
    if (want[0])
        give(s, node, 0, want, grads, qn_where(s, first, ct, zero));
    if (want[1])
        give(s, node, 1, want, grads, qn_where(s, first, zero, ct));
}

static qn_array *jvp_extreme(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    qn_array *zero = qn__scalar_like(s, node, 0);
    return sum_tangents(
        s, node, qn_where(s, took_first(s, node), t[0] ? t[0] : zero, t[1] ? t[1] : zero), NULL);
}

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
