/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests of chat templates: what stands behind "is", and what select and its relatives take.
 */
#include "jinja/jinja.h"

/* Tests of the kind alone: name, and the kinds it holds for. */
static const struct kind_test {
    const char *name;
    uint32_t kinds;
} kind_tests[] = {
    {"defined", ~(1u << QN__JINJA_UNDEFINED)},
    {"undefined", 1u << QN__JINJA_UNDEFINED},
    {"none", 1u << QN__JINJA_NONE},
    {"boolean", 1u << QN__JINJA_BOOL},
    {"integer", 1u << QN__JINJA_INT},
    {"float", 1u << QN__JINJA_FLOAT},
    {"number", 1u << QN__JINJA_BOOL | 1u << QN__JINJA_INT | 1u << QN__JINJA_FLOAT},
    {"string", 1u << QN__JINJA_STRING},
    {"mapping", 1u << QN__JINJA_DICT},
    {"sequence", 1u << QN__JINJA_STRING | 1u << QN__JINJA_LIST | 1u << QN__JINJA_TUPLE |
                     1u << QN__JINJA_RANGE | 1u << QN__JINJA_DICT | 1u << QN__JINJA_UNDEFINED},
    {"iterable", 1u << QN__JINJA_STRING | 1u << QN__JINJA_LIST | 1u << QN__JINJA_TUPLE |
                     1u << QN__JINJA_RANGE | 1u << QN__JINJA_KEYS | 1u << QN__JINJA_VALUES |
                     1u << QN__JINJA_ITEMS | 1u << QN__JINJA_GENERATOR | 1u << QN__JINJA_DICT |
                     1u << QN__JINJA_UNDEFINED | 1u << QN__JINJA_LOOP},
    {"callable", 1u << QN__JINJA_MACRO | 1u << QN__JINJA_FUNCTION | 1u << QN__JINJA_METHOD |
                     1u << QN__JINJA_CYCLER | 1u << QN__JINJA_JOINER | 1u << QN__JINJA_LOOP |
                     1u << QN__JINJA_UNDEFINED},
};

static qn__jinja_value test_kind(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    if (!qn__jinja_bind(r, call, NULL, 0, NULL))
        return qn__jinja_failed();
    for (size_t i = 0; i < sizeof kind_tests / sizeof *kind_tests; i++)
        if (strcmp(kind_tests[i].name, call->name) == 0)
            return qn__jinja_bool(kind_tests[i].kinds >> v.kind & 1);
    return qn__jinja_run_fail(r, "No test named '%s' found.", call->name);
}

static qn__jinja_value test_true(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)r, (void)call;
    return qn__jinja_bool(v.kind == QN__JINJA_BOOL && v.truth);
}

static qn__jinja_value test_false(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)r, (void)call;
    return qn__jinja_bool(v.kind == QN__JINJA_BOOL && !v.truth);
}

static qn__jinja_value has_rest(qn__jinja_run *r, qn__jinja_value v, qn__jinja_value divisor,
                                int64_t rest)
{
    qn__jinja_value modulo = qn__jinja_binary(r, QN__JINJA_OP_MODULO, v, divisor);
    return r->failed ? modulo : qn__jinja_bool(qn__jinja_equal(r, modulo, qn__jinja_int(rest)));
}

static qn__jinja_value test_odd(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)call;
    return has_rest(r, v, qn__jinja_int(2), 1);
}

static qn__jinja_value test_even(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)call;
    return has_rest(r, v, qn__jinja_int(2), 0);
}

static qn__jinja_value test_divisible(qn__jinja_run *r, qn__jinja_value v,
                                      const qn__jinja_call *call)
{
    if (call->n != 1)
        return qn__jinja_run_fail(r, "the test divisibleby takes one argument");
    return has_rest(r, v, call->args[0], 0);
}

static qn__jinja_value test_case(qn__jinja_run *r, qn__jinja_value v, qn__case wanted)
{
    qn__jinja_value s = qn__jinja_to_str(r, v);
    return s.kind == QN__JINJA_STRING ? qn__jinja_is_case(r, s.s, wanted) : qn__jinja_failed();
}

static qn__jinja_value test_upper(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)call;
    return test_case(r, v, QN__TO_UPPER);
}

static qn__jinja_value test_lower(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)call;
    return test_case(r, v, QN__TO_LOWER);
}

static qn__jinja_value test_in(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    if (call->n != 1)
        return qn__jinja_run_fail(r, "the test in takes one argument");
    bool in = qn__jinja_contains(r, call->args[0], v);
    return r->failed ? qn__jinja_failed() : qn__jinja_bool(in);
}

static qn__jinja_value test_sameas(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    if (call->n != 1)
        return qn__jinja_run_fail(r, "the test sameas takes one argument");
    return qn__jinja_bool(v.kind == call->args[0].kind && qn__jinja_equal(r, v, call->args[0]));
}

static qn__jinja_value test_filter(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)r, (void)call;
    return qn__jinja_bool(v.kind == QN__JINJA_STRING && qn__jinja_filter_find(v.s) != NULL);
}

static qn__jinja_value test_test(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)r, (void)call;
    return qn__jinja_bool(v.kind == QN__JINJA_STRING && qn__jinja_test_find(v.s) != NULL);
}

static qn__jinja_value test_escaped(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)r, (void)call;
    return qn__jinja_bool(v.kind == QN__JINJA_STRING && v.s->safe);
}

static qn__jinja_value test_compare(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    static const char *const names[] = {"lt", "lessthan", "<",  "gt", "greaterthan",
                                        ">",  "le",       "<=", "ge", ">="};
    size_t k = 0;
    if (call->n != 1)
        return qn__jinja_run_fail(r, "the test %s takes one argument", call->name);
    while (k < 9 && strcmp(names[k], call->name) != 0)
        k++;
    int order = qn__jinja_order(r, v, call->args[0], call->name);
    bool less = order == -1, more = order == 1, same = order == 0;
    return r->failed ? qn__jinja_failed()
                     : qn__jinja_bool(k < 3   ? less
                                      : k < 6 ? more
                                      : k < 8 ? less || same
                                              : more || same);
}

static qn__jinja_value test_eq(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    if (call->n != 1)
        return qn__jinja_run_fail(r, "the test %s takes one argument", call->name);
    bool same = qn__jinja_equal(r, v, call->args[0]);
    return qn__jinja_bool(same != (strcmp(call->name, "ne") == 0 || strcmp(call->name, "!=") == 0));
}

static const qn__jinja_named_function tests[] = {
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

const qn__jinja_named_function *qn__jinja_test_find(const qn__jinja_str *name)
{
    return qn__jinja_named_find(tests, sizeof tests / sizeof *tests, name);
}
