/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of chat templates over one value, and the tests. Jinja's, with transformers' tojson;
 * filters over sequences are in template_sequences.c.
 */
#include "text/template.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- arguments ------------------------------------------------------------------------------ */

bool qn__bind(qn__run *r, const qn__call *call, const char *const *names, size_t n,
              qn__value *places)
{
    for (size_t i = 0; i < n; i++)
        places[i] = i < call->n ? call->args[i] : (qn__value){.kind = QN__V_ABSENT};
    if (call->n > n)
        return qn__run_fail(r, "%s takes at most %zu argument(s), got %zu", call->name, n, call->n),
               false;
    for (size_t i = 0; i < call->n_named; i++) {
        size_t k = 0;
        char name[64];
        while (k < n && !qn__str_is(call->names[i], names[k]))
            k++;
        qn__utf8_quote(name, sizeof name, call->names[i]->data, call->names[i]->n);
        if (k == n || places[k].kind != QN__V_ABSENT)
            return qn__run_fail(r, "%s got an unexpected or repeated argument '%s'", call->name,
                                name),
                   false;
        places[k] = call->named[i];
    }
    return !r->failed;
}

const qn__named_function *qn__named_find(const qn__named_function *table, size_t n,
                                         const qn__str *name)
{
    for (size_t i = 0; i < n; i++)
        if (qn__str_is(name, table[i].name))
            return &table[i];
    return NULL;
}

static bool bind1(qn__run *r, const qn__call *call, const char *name, qn__value *a)
{
    return qn__bind(r, call, &name, 1, a);
}

/* ---- text ----------------------------------------------------------------------------------- */

static qn__value filter_trim(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value chars, s = qn__to_str(r, v);
    if (!bind1(r, call, "chars", &chars) || s.kind != QN__V_STRING)
        return qn__failed();
    return qn__strip(r, s.s, chars.kind == QN__V_STRING ? chars.s : NULL, 3);
}

static qn__value filter_string(qn__run *r, qn__value v, const qn__call *call)
{
    return qn__bind(r, call, NULL, 0, NULL) ? qn__to_str(r, v) : qn__failed();
}

static qn__value filter_safe(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value s = filter_string(r, v, call);
    qn__str *copy = s.kind == QN__V_STRING ? qn__run_alloc(r, sizeof *copy) : NULL;
    if (!copy)
        return qn__failed();
    *copy = *s.s;
    copy->safe = true;
    return qn__str_value(copy);
}

static qn__value filter_escape(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value s = filter_string(r, v, call);
    qn__builder b;
    if (s.kind != QN__V_STRING || s.s->safe)
        return s;
    qn__builder_begin(&b, r);
    qn__build_escaped(&b, s.s);
    return filter_safe(r, qn__builder_end(&b), call);
}

static qn__value filter_case(qn__run *r, qn__value v, qn__case first, qn__case rest)
{
    qn__value s = qn__to_str(r, v);
    return s.kind == QN__V_STRING ? qn__change_case(r, s.s, first, rest, false) : s;
}

static qn__value filter_upper(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return filter_case(r, v, QN__TO_UPPER, QN__TO_UPPER);
}

static qn__value filter_lower(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return filter_case(r, v, QN__TO_LOWER, QN__TO_LOWER);
}

static qn__value filter_capitalize(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return filter_case(r, v, QN__TO_TITLE, QN__TO_LOWER);
}

/* Words begin behind white space and -([{< here, unlike str.title(). */
static qn__value filter_title(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value s = qn__to_str(r, v);
    qn__builder b;
    (void)call;
    if (s.kind != QN__V_STRING)
        return s;
    qn__builder_begin(&b, r);
    for (size_t i = 0; i < s.s->n && !r->failed;) {
        size_t end = i;
        while (end < s.s->n && !strchr("-([{< \t\n\r\v\f", s.s->data[end]))
            end++;
        qn__value word = qn__substring(r, s.s, i, end);
        if (word.kind == QN__V_STRING)
            word = qn__change_case(r, word.s, QN__TO_TITLE, QN__TO_LOWER, false);
        if (word.kind == QN__V_STRING)
            qn__build_str(&b, word.s, 0, word.s->n);
        i = end < s.s->n ? end + 1 : end;
        qn__build_str(&b, s.s, end, i);
    }
    return qn__builder_end(&b);
}

static qn__value filter_replace(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const names[] = {"old", "new", "count"};
    qn__value a[3], s = qn__to_str(r, v);
    int64_t count = -1;
    if (!qn__bind(r, call, names, 3, a) || s.kind != QN__V_STRING)
        return qn__failed();
    if (a[0].kind == QN__V_ABSENT || a[1].kind == QN__V_ABSENT)
        return qn__run_fail(r, "replace takes what to replace and by what");
    if (a[2].kind > QN__V_NONE && !qn__as_int(a[2], &count))
        return qn__run_fail(r, "replace: count must be an integer");
    a[0] = qn__to_str(r, a[0]);
    a[1] = qn__to_str(r, a[1]);
    return r->failed ? qn__failed() : qn__replace(r, s.s, a[0].s, a[1].s, count);
}

static qn__value filter_indent(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const names[] = {"width", "first", "blank"};
    qn__value a[3], s = qn__to_str(r, v), unit = {.kind = QN__V_ABSENT};
    int64_t width = 4;
    if (!qn__bind(r, call, names, 3, a) || s.kind != QN__V_STRING)
        return qn__failed();
    if (a[0].kind == QN__V_STRING)
        unit = a[0];
    else if (a[0].kind != QN__V_ABSENT && !qn__as_int(a[0], &width))
        return qn__run_fail(r, "indent: width must be an integer or a string");
    if (unit.kind == QN__V_ABSENT)
        unit = qn__binary(r, QN__OP_MULTIPLY, qn__text(r, " "), qn__int(width));
    qn__builder b;
    qn__builder_begin(&b, r);
    bool first = qn__truth(a[1]), blank = qn__truth(a[2]);
    for (size_t at = 0, line = 0; !r->failed; line++) {
        const char *hit = s.s->n > at ? memchr(s.s->data + at, '\n', s.s->n - at) : NULL;
        size_t end = hit ? (size_t)(hit - s.s->data) : s.s->n;
        if (line == 0 ? first : (end > at || blank))
            qn__build_str(&b, unit.s, 0, unit.s->n);
        qn__build_str(&b, s.s, at, hit ? end + 1 : end);
        if (!hit)
            break;
        at = end + 1;
    }
    return qn__builder_end(&b);
}

static qn__value filter_format(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value s = qn__to_str(r, v), args = qn__seq_new(r, QN__V_TUPLE, call->args, call->n);
    if (call->n_named) {
        qn__dict *dict = qn__dict_new(r, call->n_named);
        for (size_t i = 0; dict && i < call->n_named; i++)
            qn__dict_set(r, dict, qn__str_value(call->names[i]), call->named[i]);
        args = qn__dict_value(dict);
    }
    return r->failed ? qn__failed() : qn__format_percent(r, s.s, args);
}

static qn__value filter_center(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value width, s = qn__to_str(r, v);
    int64_t n = 80;
    if (!bind1(r, call, "width", &width) || s.kind != QN__V_STRING)
        return qn__failed();
    if (width.kind != QN__V_ABSENT && !qn__as_int(width, &n))
        return qn__run_fail(r, "center: width must be an integer");
    int64_t pad = n - (int64_t)qn__length_of(s.s), left = pad / 2 + (pad & n & 1);
    qn__builder b;
    qn__builder_begin(&b, r);
    for (int64_t i = 0; i < left && qn__build_text(&b, " "); i++)
        ;
    qn__build_str(&b, s.s, 0, s.s->n);
    for (int64_t i = left; i < pad && qn__build_text(&b, " "); i++)
        ;
    return qn__builder_end(&b);
}

static qn__value filter_wordcount(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value s = qn__to_str(r, v);
    int64_t count = 0;
    (void)call;
    if (s.kind != QN__V_STRING)
        return s;
    for (size_t i = 0, inside = 0; i < s.s->n; i++) {
        unsigned char c = (unsigned char)s.s->data[i];
        bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z', digit = c >= '0' && c <= '9';
        bool word = c >= 0x80 || c == '_' || letter || digit;
        count += word && !inside;
        inside = word;
    }
    return qn__int(count);
}

/* transformers' tojson: no HTML escapes, insertion order, ensure_ascii off. */
static qn__value filter_tojson(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    static const qn__str comma = {.data = ", ", .n = 1}, comma_space = {.data = ", ", .n = 2},
                         colon = {.data = ": ", .n = 2};
    qn__value a[4];
    int64_t width;
    if (!qn__bind(r, call, names, 4, a))
        return qn__failed();
    qn__json_style style = {
        .ascii = qn__truth(a[0]), .sort = qn__truth(a[3]), .item = &comma_space, .key = &colon};
    if (a[1].kind == QN__V_STRING) {
        style.indent = a[1].s;
    } else if (qn__as_int(a[1], &width)) {
        qn__value unit = qn__binary(r, QN__OP_MULTIPLY, qn__text(r, " "), qn__int(width));
        style.indent = unit.kind == QN__V_STRING ? unit.s : NULL;
    } else if (a[1].kind > QN__V_NONE) {
        return qn__run_fail(r, "tojson: indent must be an integer or a string");
    }
    style.pretty = style.indent != NULL;
    if (style.pretty)
        style.item = &comma;
    if (qn__is_seq(a[2]) && a[2].seq->n == 2 && a[2].seq->items[0].kind == QN__V_STRING &&
        a[2].seq->items[1].kind == QN__V_STRING) {
        style.item = a[2].seq->items[0].s;
        style.key = a[2].seq->items[1].s;
    } else if (a[2].kind > QN__V_NONE) {
        return qn__run_fail(r, "tojson: separators must be two strings");
    }
    qn__builder b;
    qn__builder_begin(&b, r);
    if (!r->failed)
        qn__build_json(&b, v, &style, 0);
    return qn__builder_end(&b);
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* A terminated copy of a number's text without "_" and white space around; false: too long. */
static bool number_text(qn__run *r, const qn__str *s, char out[80])
{
    qn__value stripped = qn__strip(r, s, NULL, 3);
    size_t n = 0;
    if (stripped.kind != QN__V_STRING || stripped.s->n > 78 || stripped.s->n == 0)
        return false;
    for (size_t i = 0; i < stripped.s->n; i++) {
        char c = stripped.s->data[i];
        if (c == '_' && i > 0 && i + 1 < stripped.s->n)
            continue;
        if (!strchr("0123456789+-.eEinfatyINFATY", c) || !c)
            return false;
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}

static bool parse_double(qn__run *r, qn__value v, double *f)
{
    char text[80], *end;
    if (qn__as_double(v, f))
        return true;
    if (v.kind != QN__V_STRING || !number_text(r, v.s, text))
        return false;
    *f = strtod(text, &end);
    return *end == 0 && end != text;
}

static qn__value filter_int(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const names[] = {"default", "base"};
    qn__value a[2];
    char text[80], *end;
    int64_t i, base = 10;
    double f;
    if (!qn__bind(r, call, names, 2, a))
        return qn__failed();
    if (a[1].kind != QN__V_ABSENT && (!qn__as_int(a[1], &base) || base < 2 || base > 36))
        return qn__run_fail(r, "int: base must be 2..36");
    if (qn__as_int(v, &i))
        return qn__int(i);
    if (v.kind == QN__V_STRING && number_text(r, v.s, text)) {
        errno = 0;
        i = strtoll(text, &end, (int)base);
        if (*end == 0 && errno)
            return qn__run_limit(r, "an integer does not fit 64 bits");
        if (*end == 0)
            return qn__int(i);
    }
    if (r->failed || v.kind == QN__V_UNDEFINED)
        return qn__refuse_undefined(r, v);
    if (parse_double(r, v, &f) && isfinite(f))
        return fabs(f) < 9.2e18 ? qn__int((int64_t)f)
                                : qn__run_limit(r, "an integer does not fit 64 bits");
    return a[0].kind == QN__V_ABSENT ? qn__int(0) : a[0];
}

static qn__value filter_float(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value otherwise;
    double f;
    if (!bind1(r, call, "default", &otherwise))
        return qn__failed();
    if (parse_double(r, v, &f))
        return qn__float(f);
    if (r->failed || v.kind == QN__V_UNDEFINED)
        return qn__refuse_undefined(r, v);
    return otherwise.kind == QN__V_ABSENT ? qn__float(0) : otherwise;
}

static qn__value filter_abs(qn__run *r, qn__value v, const qn__call *call)
{
    int64_t i;
    (void)call;
    if (v.kind == QN__V_FLOAT)
        return qn__float(fabs(v.f));
    if (!qn__as_int(v, &i))
        return qn__run_fail(r, "bad operand type for abs(): '%s'", qn__type_name(v));
    return i == INT64_MIN ? qn__run_limit(r, "an integer does not fit 64 bits")
                          : qn__int(i < 0 ? -i : i);
}

static qn__value filter_round(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const names[] = {"precision", "method"};
    qn__value a[2];
    int64_t precision = 0;
    double f;
    char text[400];
    if (!qn__bind(r, call, names, 2, a))
        return qn__failed();
    if (!qn__as_double(v, &f) || (a[0].kind != QN__V_ABSENT && !qn__as_int(a[0], &precision)) ||
        precision < 0 || precision > 20)
        return qn__run_fail(r, "round takes a number and a precision of 0..20");
    if (a[1].kind == QN__V_STRING && !qn__str_is(a[1].s, "common")) {
        double scale = pow(10, (double)precision);
        bool up = qn__str_is(a[1].s, "ceil");
        if (!up && !qn__str_is(a[1].s, "floor"))
            return qn__run_fail(r, "round: method must be common, ceil or floor");
        return qn__float((up ? ceil(f * scale) : floor(f * scale)) / scale);
    }
    if (v.kind == QN__V_INT || v.kind == QN__V_BOOL)
        return qn__int((int64_t)(v.kind == QN__V_INT ? v.i : v.truth));
    snprintf(text, sizeof text, "%.*f", (int)precision, f); /* rounds as Python: to even */
    return qn__float(strtod(text, NULL));
}

static qn__value filter_default(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const names[] = {"default_value", "boolean"};
    qn__value a[2];
    if (!qn__bind(r, call, names, 2, a))
        return qn__failed();
    bool missing = v.kind == QN__V_UNDEFINED || (qn__truth(a[1]) && !qn__truth(v));
    if (!missing)
        return v;
    return a[0].kind == QN__V_ABSENT ? qn__text(r, "") : a[0];
}

static const qn__named_function filters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"upper", filter_upper},
    {"wordcount", filter_wordcount},
};

const qn__named_function *qn__filter_find(const qn__str *name)
{
    const qn__named_function *found =
        qn__named_find(filters, sizeof filters / sizeof *filters, name);
    return found ? found : qn__filter_more(name);
}

/* ---- tests ---------------------------------------------------------------------------------- */

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

static qn__value parity(qn__run *r, qn__value v, int64_t divisor, int64_t rest)
{
    qn__value modulo = qn__binary(r, QN__OP_MODULO, v, qn__int(divisor));
    return r->failed ? modulo : qn__bool(qn__equal(r, modulo, qn__int(rest)));
}

static qn__value test_odd(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return parity(r, v, 2, 1);
}

static qn__value test_even(qn__run *r, qn__value v, const qn__call *call)
{
    (void)call;
    return parity(r, v, 2, 0);
}

static qn__value test_divisible(qn__run *r, qn__value v, const qn__call *call)
{
    int64_t i = 0;
    if (call->n != 1 || !qn__as_int(call->args[0], &i))
        return qn__run_fail(r, "divisibleby takes an integer");
    return parity(r, v, i, 0);
}

static qn__value test_case(qn__run *r, qn__value v, qn__case wanted)
{
    qn__value s = qn__to_str(r, v), cased = filter_case(r, s, wanted, wanted);
    qn__value other = filter_case(r, s, wanted == QN__TO_UPPER ? QN__TO_LOWER : QN__TO_UPPER,
                                  wanted == QN__TO_UPPER ? QN__TO_LOWER : QN__TO_UPPER);
    return r->failed ? qn__failed()
                     : qn__bool(qn__str_same(s.s, cased.s) && !qn__str_same(s.s, other.s));
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
