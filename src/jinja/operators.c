/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators of chat templates over values: arithmetic and comparison as Python has them, but for
 * integers, which have 64 bits: a result that does not fit is an error.
 */
#include "jinja/jinja.h"

#include <math.h>

static const char *const operator_text[] = {"+",  "-",  "*", "/",  "//", "%", "** or pow()",
                                            "==", "!=", "<", "<=", ">",  ">="};

static qn__jinja_value no_operator(qn__jinja_run *r, int op, qn__jinja_value a, qn__jinja_value b)
{
    if (a.kind == QN__JINJA_UNDEFINED || b.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, a.kind == QN__JINJA_UNDEFINED ? a : b);
    if (op == QN__JINJA_OP_ADD &&
        (a.kind == QN__JINJA_STRING || a.kind == QN__JINJA_LIST || a.kind == QN__JINJA_TUPLE))
        return qn__jinja_run_fail(r, "can only concatenate %s (not \"%s\") to %s",
                                  qn__jinja_type_name(a), qn__jinja_type_name(b),
                                  qn__jinja_type_name(a));
    return qn__jinja_run_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'",
                              operator_text[op], qn__jinja_type_name(a), qn__jinja_type_name(b));
}

static qn__jinja_value add_strings(qn__jinja_run *r, const qn__jinja_str *a, const qn__jinja_str *b)
{
    qn__jinja_builder out;
    bool safe = a->safe || b->safe;
    qn__jinja_builder_begin(&out, r);
    if (safe && !a->safe)
        qn__jinja_build_escaped(&out, a);
    else
        qn__jinja_build_str(&out, a, 0, a->n);
    if (safe && !b->safe)
        qn__jinja_build_escaped(&out, b);
    else
        qn__jinja_build_str(&out, b, 0, b->n);
    qn__jinja_value v = qn__jinja_builder_end(&out);
    if (v.kind == QN__JINJA_STRING)
        ((qn__jinja_str *)v.s)->safe = safe;
    return v;
}

static qn__jinja_value add_lists(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b)
{
    size_t n = a.seq->n + b.seq->n;
    qn__jinja_value *items =
        qn__jinja_run_spend(r, n >> 2) ? qn__jinja_run_alloc(r, (n ? n : 1) * sizeof *items) : NULL;
    if (!items)
        return qn__jinja_failed();
    if (a.seq->n)
        memcpy(items, a.seq->items, a.seq->n * sizeof *items);
    if (b.seq->n)
        memcpy(items + a.seq->n, b.seq->items, b.seq->n * sizeof *items);
    return qn__jinja_seq_new(r, a.kind, items, n);
}

static qn__jinja_value repeat(qn__jinja_run *r, qn__jinja_value v, int64_t count)
{
    count = count < 0 ? 0 : count;
    if (v.kind == QN__JINJA_STRING) {
        qn__jinja_builder b;
        qn__jinja_builder_begin(&b, r);
        if (v.s->n == 0)
            return v;
        if ((uint64_t)count > r->output / v.s->n)
            return qn__jinja_run_limit(r, "makes more than %zu MiB of text", r->output >> 20);
        for (int64_t i = 0; i < count && qn__jinja_run_spend(r, 1); i++)
            if (!qn__jinja_build_str(&b, v.s, 0, v.s->n))
                break;
        return qn__jinja_builder_end(&b);
    }
    qn__jinja_pile pile = {0};
    for (int64_t i = 0; i < count && v.seq->n; i++)
        for (size_t k = 0; k < v.seq->n; k++)
            if (!qn__jinja_pile_push(r, &pile, v.seq->items[k]))
                return qn__jinja_failed();
    return qn__jinja_seq_new(r, v.kind, pile.items, pile.n);
}

static qn__jinja_value integer_operator(qn__jinja_run *r, int op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
    case QN__JINJA_OP_ADD: overflow = __builtin_add_overflow(a, b, &result); break;
    case QN__JINJA_OP_SUBTRACT: overflow = __builtin_sub_overflow(a, b, &result); break;
    case QN__JINJA_OP_MULTIPLY: overflow = __builtin_mul_overflow(a, b, &result); break;
    default: /* // and %, which round down */
        if (b == 0)
            return qn__jinja_run_fail(r, "integer division or modulo by zero");
        overflow = a == INT64_MIN && b == -1;
        if (!overflow) {
            int64_t quotient = a / b, rest = a % b;
            bool down = rest != 0 && (rest < 0) != (b < 0);
            result = op == QN__JINJA_OP_MODULO ? rest + (down ? b : 0) : quotient - down;
        }
    }
    return overflow ? qn__jinja_run_limit(r, "an integer does not fit 64 bits")
                    : qn__jinja_int(result);
}

static qn__jinja_value float_operator(qn__jinja_run *r, int op, double a, double b)
{
    double rest;
    if (op >= QN__JINJA_OP_DIVIDE && b == 0)
        return qn__jinja_run_fail(r, "division by zero");
    switch (op) {
    case QN__JINJA_OP_ADD: return qn__jinja_float(a + b);
    case QN__JINJA_OP_SUBTRACT: return qn__jinja_float(a - b);
    case QN__JINJA_OP_MULTIPLY: return qn__jinja_float(a * b);
    case QN__JINJA_OP_DIVIDE: return qn__jinja_float(a / b);
    default:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        return qn__jinja_float(op == QN__JINJA_OP_MODULO ? rest : floor((a - rest) / b + 0.5));
    }
}

qn__jinja_value qn__jinja_power(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b)
{
    int64_t base, exponent, result = 1;
    double f, g;
    if (qn__jinja_as_int(a, &base) && qn__jinja_as_int(b, &exponent) && exponent >= 0) {
        while (exponent > 0) {
            if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
                return qn__jinja_run_limit(r, "an integer does not fit 64 bits");
            exponent >>= 1;
            if (exponent && __builtin_mul_overflow(base, base, &base))
                return qn__jinja_run_limit(r, "an integer does not fit 64 bits");
        }
        return qn__jinja_int(result);
    }
    if (!qn__jinja_as_double(a, &f) || !qn__jinja_as_double(b, &g))
        return no_operator(r, QN__JINJA_OP_POWER, a, b);
    if ((f == 0 && g < 0) || (f < 0 && g != floor(g)))
        return qn__jinja_run_fail(r, "the power is not a real number");
    return qn__jinja_float(pow(f, g));
}

qn__jinja_value qn__jinja_binary(qn__jinja_run *r, int op, qn__jinja_value a, qn__jinja_value b)
{
    int64_t i, j;
    double f, g;
    if (op == QN__JINJA_OP_POWER)
        return qn__jinja_power(r, a, b);
    if (op != QN__JINJA_OP_DIVIDE && qn__jinja_as_int(a, &i) && qn__jinja_as_int(b, &j))
        return integer_operator(r, op, i, j);
    if (qn__jinja_as_double(a, &f) && qn__jinja_as_double(b, &g))
        return float_operator(r, op, f, g);
    bool list = a.kind == QN__JINJA_LIST || a.kind == QN__JINJA_TUPLE;
    if (op == QN__JINJA_OP_ADD && a.kind == b.kind && a.kind == QN__JINJA_STRING)
        return add_strings(r, a.s, b.s);
    if (op == QN__JINJA_OP_ADD && a.kind == b.kind && list)
        return add_lists(r, a, b);
    if (op == QN__JINJA_OP_MULTIPLY && (a.kind == QN__JINJA_STRING || list) &&
        qn__jinja_as_int(b, &j))
        return repeat(r, a, j);
    if (op == QN__JINJA_OP_MULTIPLY &&
        (b.kind == QN__JINJA_STRING || b.kind == QN__JINJA_LIST || b.kind == QN__JINJA_TUPLE) &&
        qn__jinja_as_int(a, &i))
        return repeat(r, b, i);
    if (op == QN__JINJA_OP_MODULO && a.kind == QN__JINJA_STRING)
        return qn__jinja_format_percent(r, a.s, b);
    return no_operator(r, op, a, b);
}

qn__jinja_value qn__jinja_sign(qn__jinja_run *r, qn__jinja_value v, bool minus)
{
    int64_t i;
    if (v.kind == QN__JINJA_FLOAT)
        return minus ? qn__jinja_float(-v.f) : v;
    if (qn__jinja_as_int(v, &i))
        return !minus           ? qn__jinja_int(i)
               : i == INT64_MIN ? qn__jinja_run_limit(r, "an integer does not fit 64 bits")
                                : qn__jinja_int(-i);
    if (v.kind == QN__JINJA_FAILED || v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, v);
    return qn__jinja_run_fail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                              qn__jinja_type_name(v));
}

bool qn__jinja_compare(qn__jinja_run *r, int op, qn__jinja_value a, qn__jinja_value b)
{
    if (op == QN__JINJA_OP_EQ || op == QN__JINJA_OP_NE)
        return qn__jinja_equal(r, a, b) == (op == QN__JINJA_OP_EQ);
    if (op == QN__JINJA_OP_IN || op == QN__JINJA_OP_NOT_IN)
        return qn__jinja_contains(r, b, a) == (op == QN__JINJA_OP_IN);
    int order = qn__jinja_order(r, a, b, operator_text[op]);
    switch (op) {
    case QN__JINJA_OP_LT: return order == -1;
    case QN__JINJA_OP_LE: return order == -1 || order == 0;
    case QN__JINJA_OP_GT: return order == 1;
    default: return order == 1 || order == 0;
    }
}
