/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests of chat templates: what stands behind "is", and what select and its relatives take.
 */
#include "text/template.h"

/* Tests of the kind alone: name, and the kinds it holds for. */
static const struct kind_test {
    const char *name;
    uint32_t kinds;
} kind_tests[] = {
    {"defined", ~(1u << QN__V_UNDEFINED)},
    {"undefined", 1u << QN__V_UNDEFINED},
    {"none", 1u << QN__V_NONE},
    {"boolean", 1u << QN__V_BOOL},
    {"integer", 1u << QN__V_INT},
    {"float", 1u << QN__V_FLOAT},
    {"number", 1u << QN__V_BOOL | 1u << QN__V_INT | 1u << QN__V_FLOAT},
    {"string", 1u << QN__V_STRING},
    {"mapping", 1u << QN__V_DICT},
    {"sequence", 1u << QN__V_STRING | 1u << QN__V_LIST | 1u << QN__V_TUPLE | 1u << QN__V_RANGE |
                     1u << QN__V_DICT | 1u << QN__V_UNDEFINED},
    {"iterable", 1u << QN__V_STRING | 1u << QN__V_LIST | 1u << QN__V_TUPLE | 1u << QN__V_RANGE |
                     1u << QN__V_KEYS | 1u << QN__V_VALUES | 1u << QN__V_ITEMS |
                     1u << QN__V_GENERATOR | 1u << QN__V_DICT | 1u << QN__V_UNDEFINED |
                     1u << QN__V_LOOP},
    {"callable", 1u << QN__V_MACRO | 1u << QN__V_FUNCTION | 1u << QN__V_METHOD |
                     1u << QN__V_CYCLER | 1u << QN__V_JOINER | 1u << QN__V_LOOP |
                     1u << QN__V_UNDEFINED},
};

static qn__value test_kind(qn__run *r, qn__value v, const qn__call *call)
{
    if (!qn__bind(r, call, NULL, 0, NULL))
        return qn__failed();
    for (size_t i = 0; i < sizeof kind_tests / sizeof *kind_tests; i++)
        if (strcmp(kind_tests[i].name, call->name) == 0)
            return qn__bool(kind_tests[i].kinds >> v.kind & 1);
    return qn__run_fail(r, "No test named '%s' found.", call->name);
}

static qn__value test_true(qn__run *r, qn__value v, const qn__call *call)
{
    (void)r, (void)call;
    return qn__bool(v.kind == QN__V_BOOL && v.truth);
}

static qn__value test_false(qn__run *r, qn__value v, const qn__call *call)
{
    (void)r, (void)call;
    return qn__bool(v.kind == QN__V_BOOL && !v.truth);
}

static qn__value has_rest(qn__run *r, qn__value v, qn__value divisor, int64_t rest)
{
    qn__value modulo = qn__binary(r, QN__OP_MODULO, v, divisor);
    return r->failed ? modulo : qn__bool(qn__equal(r, modulo, qn__int(rest)));
}

static qn__value test_odd(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return has_rest(r, v, qn__int(2), 1);
}

static qn__value test_even(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return has_rest(r, v, qn__int(2), 0);
}

static qn__value test_divisible(qn__run *r, qn__value v, const qn__call *call)
{
    if (call->n != 1)
        return qn__run_fail(r, "the test divisibleby takes one argument");
    return has_rest(r, v, call->args[0], 0);
}

static qn__value test_case(qn__run *r, qn__value v, qn__case wanted)
{
    qn__value s = qn__to_str(r, v);
    return s.kind == QN__V_STRING ? qn__is_case(r, s.s, wanted) : qn__failed();
}

static qn__value test_upper(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return test_case(r, v, QN__TO_UPPER);
}

static qn__value test_lower(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return test_case(r, v, QN__TO_LOWER);
}

static qn__value test_in(qn__run *r, qn__value v, const qn__call *call)
{
    if (call->n != 1)
        return qn__run_fail(r, "the test in takes one argument");
    bool in = qn__contains(r, call->args[0], v);
    return r->failed ? qn__failed() : qn__bool(in);
}

static qn__value test_sameas(qn__run *r, qn__value v, const qn__call *call)
{
    if (call->n != 1)
        return qn__run_fail(r, "the test sameas takes one argument");
    return qn__bool(v.kind == call->args[0].kind && qn__equal(r, v, call->args[0]));
}

static qn__value test_filter(qn__run *r, qn__value v, const qn__call *call)
{
    (void)r, (void)call;
    return qn__bool(v.kind == QN__V_STRING && qn__filter_find(v.s) != NULL);
}

static qn__value test_test(qn__run *r, qn__value v, const qn__call *call)
{
    (void)r, (void)call;
    return qn__bool(v.kind == QN__V_STRING && qn__test_find(v.s) != NULL);
}

static qn__value test_escaped(qn__run *r, qn__value v, const qn__call *call)
{
    (void)r, (void)call;
    return qn__bool(v.kind == QN__V_STRING && v.s->safe);
}

static qn__value test_compare(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const names[] = {"lt", "lessthan", "<",  "gt", "greaterthan",
                                        ">",  "le",       "<=", "ge", ">="};
    size_t k = 0;
    if (call->n != 1)
        return qn__run_fail(r, "the test %s takes one argument", call->name);
    while (k < 9 && strcmp(names[k], call->name) != 0)
        k++;
    int order = qn__order(r, v, call->args[0], call->name);
    bool less = order == -1, more = order == 1, same = order == 0;
    return r->failed ? qn__failed()
                     : qn__bool(k < 3   ? less
                                : k < 6 ? more
                                : k < 8 ? less || same
                                        : more || same);
}

static qn__value test_eq(qn__run *r, qn__value v, const qn__call *call)
{
    if (call->n != 1)
        return qn__run_fail(r, "the test %s takes one argument", call->name);
    bool same = qn__equal(r, v, call->args[0]);
    return qn__bool(same != (strcmp(call->name, "ne") == 0 || strcmp(call->name, "!=") == 0));
}

static const qn__named_function tests[] = {
    {"defined", test_kind},
    {"undefined", test_kind},
    {"none", test_kind},
    {"boolean", test_kind},
    {"integer", test_kind},
    {"float", test_kind},
    {"number", test_kind},
    {"string", test_kind},
    {"mapping", test_kind},
    {"sequence", test_kind},
    {"iterable", test_kind},
    {"callable", test_kind},
    {"true", test_true},
    {"false", test_false},
    {"odd", test_odd},
    {"even", test_even},
    {"divisibleby", test_divisible},
    {"upper", test_upper},
    {"lower", test_lower},
    {"in", test_in},
    {"sameas", test_sameas},
    {"filter", test_filter},
    {"test", test_test},
    {"escaped", test_escaped},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"==", test_eq},
    {"ne", test_eq},
    {"!=", test_eq},
    {"lt", test_compare},
    {"lessthan", test_compare},
    {"<", test_compare},
    {"gt", test_compare},
    {"greaterthan", test_compare},
    {">", test_compare},
    {"le", test_compare},
    {"<=", test_compare},
    {"ge", test_compare},
    {">=", test_compare},
};

const qn__named_function *qn__test_find(const qn__str *name)
{
    return qn__named_find(tests, sizeof tests / sizeof *tests, name);
}
