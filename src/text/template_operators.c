/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators of chat templates over values: arithmetic and comparison as Python has them, but for
 * integers, which have 64 bits: a result that does not fit is an error.
 */
#include "text/template.h"

#include <math.h>

static const char *const operator_text[] = {"+",  "-",  "*", "/",  "//", "%", "** or pow()",
                                            "==", "!=", "<", "<=", ">",  ">="};

static qn__value no_operator(qn__run *r, int op, qn__value a, qn__value b)
{
    if (a.kind == QN__V_UNDEFINED || b.kind == QN__V_UNDEFINED)
        return qn__refuse_undefined(r, a.kind == QN__V_UNDEFINED ? a : b);
    if (op == QN__OP_ADD &&
        (a.kind == QN__V_STRING || a.kind == QN__V_LIST || a.kind == QN__V_TUPLE))
        return qn__run_fail(r, "can only concatenate %s (not \"%s\") to %s", qn__type_name(a),
                            qn__type_name(b), qn__type_name(a));
    return qn__run_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", operator_text[op],
                        qn__type_name(a), qn__type_name(b));
}

static qn__value add_strings(qn__run *r, const qn__str *a, const qn__str *b)
{
    qn__builder out;
    bool safe = a->safe || b->safe;
    qn__builder_begin(&out, r);
    if (safe && !a->safe)
        qn__build_escaped(&out, a);
    else
        qn__build_str(&out, a, 0, a->n);
    if (safe && !b->safe)
        qn__build_escaped(&out, b);
    else
        qn__build_str(&out, b, 0, b->n);
    qn__value v = qn__builder_end(&out);
    if (v.kind == QN__V_STRING)
        ((qn__str *)v.s)->safe = safe;
    return v;
}

static qn__value add_lists(qn__run *r, qn__value a, qn__value b)
{
    size_t n = a.seq->n + b.seq->n;
    qn__value *items =
        qn__run_spend(r, n >> 2) ? qn__run_alloc(r, (n ? n : 1) * sizeof *items) : NULL;
    if (!items)
        return qn__failed();
    if (a.seq->n)
        memcpy(items, a.seq->items, a.seq->n * sizeof *items);
    if (b.seq->n)
        memcpy(items + a.seq->n, b.seq->items, b.seq->n * sizeof *items);
    return qn__seq_new(r, a.kind, items, n);
}

static qn__value repeat(qn__run *r, qn__value v, int64_t count)
{
    count = count < 0 ? 0 : count;
    if (v.kind == QN__V_STRING) {
        qn__builder b;
        qn__builder_begin(&b, r);
        if (v.s->n == 0)
            return v;
        if ((uint64_t)count > r->output / v.s->n)
            return qn__run_limit(r, "makes more than %zu MiB of text", r->output >> 20);
        for (int64_t i = 0; i < count && qn__run_spend(r, 1); i++)
            if (!qn__build_str(&b, v.s, 0, v.s->n))
                break;
        return qn__builder_end(&b);
    }
    qn__pile pile = {0};
    for (int64_t i = 0; i < count && v.seq->n; i++)
        for (size_t k = 0; k < v.seq->n; k++)
            if (!qn__pile_push(r, &pile, v.seq->items[k]))
                return qn__failed();
    return qn__seq_new(r, v.kind, pile.items, pile.n);
}

static qn__value integer_operator(qn__run *r, int op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
    case QN__OP_ADD: overflow = __builtin_add_overflow(a, b, &result); break;
    case QN__OP_SUBTRACT: overflow = __builtin_sub_overflow(a, b, &result); break;
    case QN__OP_MULTIPLY: overflow = __builtin_mul_overflow(a, b, &result); break;
    default: /* // and %, which round down */
        if (b == 0)
            return qn__run_fail(r, "integer division or modulo by zero");
        overflow = a == INT64_MIN && b == -1;
        if (!overflow) {
            int64_t quotient = a / b, rest = a % b;
            bool down = rest != 0 && (rest < 0) != (b < 0);
            result = op == QN__OP_MODULO ? rest + (down ? b : 0) : quotient - down;
        }
    }
    return overflow ? qn__run_limit(r, "an integer does not fit 64 bits") : qn__int(result);
}

static qn__value float_operator(qn__run *r, int op, double a, double b)
{
    double rest;
    if (op >= QN__OP_DIVIDE && b == 0)
        return qn__run_fail(r, "division by zero");
    switch (op) {
    case QN__OP_ADD: return qn__float(a + b);
    case QN__OP_SUBTRACT: return qn__float(a - b);
    case QN__OP_MULTIPLY: return qn__float(a * b);
    case QN__OP_DIVIDE: return qn__float(a / b);
    default:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        return qn__float(op == QN__OP_MODULO ? rest : floor((a - rest) / b + 0.5));
    }
}

qn__value qn__power(qn__run *r, qn__value a, qn__value b)
{
    int64_t base, exponent, result = 1;
    double f, g;
    if (qn__as_int(a, &base) && qn__as_int(b, &exponent) && exponent >= 0) {
        while (exponent > 0) {
            if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
                return qn__run_limit(r, "an integer does not fit 64 bits");
            exponent >>= 1;
            if (exponent && __builtin_mul_overflow(base, base, &base))
                return qn__run_limit(r, "an integer does not fit 64 bits");
        }
        return qn__int(result);
    }
    if (!qn__as_double(a, &f) || !qn__as_double(b, &g))
        return no_operator(r, QN__OP_POWER, a, b);
    if ((f == 0 && g < 0) || (f < 0 && g != floor(g)))
        return qn__run_fail(r, "the power is not a real number");
    return qn__float(pow(f, g));
}

qn__value qn__binary(qn__run *r, int op, qn__value a, qn__value b)
{
    int64_t i, j;
    double f, g;
    if (op == QN__OP_POWER)
        return qn__power(r, a, b);
    if (op != QN__OP_DIVIDE && qn__as_int(a, &i) && qn__as_int(b, &j))
        return integer_operator(r, op, i, j);
    if (qn__as_double(a, &f) && qn__as_double(b, &g))
        return float_operator(r, op, f, g);
    bool list = a.kind == QN__V_LIST || a.kind == QN__V_TUPLE;
    if (op == QN__OP_ADD && a.kind == b.kind && a.kind == QN__V_STRING)
        return add_strings(r, a.s, b.s);
    if (op == QN__OP_ADD && a.kind == b.kind && list)
        return add_lists(r, a, b);
    if (op == QN__OP_MULTIPLY && (a.kind == QN__V_STRING || list) && qn__as_int(b, &j))
        return repeat(r, a, j);
    if (op == QN__OP_MULTIPLY &&
        (b.kind == QN__V_STRING || b.kind == QN__V_LIST || b.kind == QN__V_TUPLE) &&
        qn__as_int(a, &i))
        return repeat(r, b, i);
    if (op == QN__OP_MODULO && a.kind == QN__V_STRING)
        return qn__format_percent(r, a.s, b);
    return no_operator(r, op, a, b);
}

qn__value qn__sign(qn__run *r, qn__value v, bool minus)
{
    int64_t i;
    if (v.kind == QN__V_FLOAT)
        return minus ? qn__float(-v.f) : v;
    if (qn__as_int(v, &i))
        return !minus           ? qn__int(i)
               : i == INT64_MIN ? qn__run_limit(r, "an integer does not fit 64 bits")
                                : qn__int(-i);
    if (v.kind == QN__V_FAILED || v.kind == QN__V_UNDEFINED)
        return qn__refuse_undefined(r, v);
    return qn__run_fail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                        qn__type_name(v));
}

bool qn__compare(qn__run *r, int op, qn__value a, qn__value b)
{
    if (op == QN__OP_EQ || op == QN__OP_NE)
        return qn__equal(r, a, b) == (op == QN__OP_EQ);
    if (op == QN__OP_IN || op == QN__OP_NOT_IN)
        return qn__contains(r, b, a) == (op == QN__OP_IN);
    int order = qn__order(r, a, b, operator_text[op]);
    switch (op) {
    case QN__OP_LT: return order == -1;
    case QN__OP_LE: return order == -1 || order == 0;
    case QN__OP_GT: return order == 1;
    default: return order == 1 || order == 0;
    }
}
