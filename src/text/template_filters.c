/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of chat templates over one value: Jinja's, with transformers' tojson. Those over
 * sequences are in template_sequences.c, those for lines and columns in template_layout.c, those
 * for HTML and URLs in template_markup.c.
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

/* The first character in upper case, and the others apart in lower case. */
static qn__value capitalized(qn__run *r, const qn__str *s)
{
    size_t first = s->n ? qn__str_offset(s, 0, 1) : 0;
    qn__value head = qn__substring(r, s, 0, first), tail = qn__substring(r, s, first, s->n);
    if (!r->failed)
        head = qn__change_case(r, head.s, QN__TO_UPPER, QN__TO_UPPER, false);
    if (!r->failed)
        tail = qn__change_case(r, tail.s, QN__TO_LOWER, QN__TO_LOWER, false);
    return r->failed ? qn__failed() : qn__binary(r, QN__OP_ADD, head, tail);
}

static bool begins_word(const qn__str *s, size_t at, size_t *k)
{
    unsigned char c = (unsigned char)s->data[at];
    bool white = (qn__class_at(s->data, s->n, at, k) & QN__SPACE) || (c >= 0x1c && c <= 0x1f);
    return white || (c && strchr("-([{<", c));
}

/* Words begin behind white space and -([{< here, and with a capital, unlike str.title(). */
static qn__value filter_title(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value s = qn__to_str(r, v);
    qn__builder b;
    (void)call;
    if (s.kind != QN__V_STRING || !qn__run_spend(r, s.s->n >> 3))
        return qn__failed();
    qn__builder_begin(&b, r);
    for (size_t i = 0; i < s.s->n && !r->failed;) {
        size_t end = i, k = 0;
        for (; end < s.s->n && !begins_word(s.s, end, &k); end += k)
            ;
        qn__value word = qn__substring(r, s.s, i, end);
        if (word.kind == QN__V_STRING)
            word = capitalized(r, word.s);
        if (word.kind == QN__V_STRING)
            qn__build_str(&b, word.s, 0, word.s->n);
        i = end < s.s->n ? end + k : end;
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

static qn__value filter_format(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value s = qn__to_str(r, v), args = qn__seq_new(r, QN__V_TUPLE, call->args, call->n);
    if (call->n && call->n_named)
        return qn__run_fail(r, "can't handle positional and keyword arguments at the same time");
    if (call->n_named) {
        qn__dict *dict = qn__dict_new(r, call->n_named);
        for (size_t i = 0; dict && i < call->n_named; i++)
            qn__dict_set(r, dict, qn__str_value(call->names[i]), call->named[i]);
        args = qn__dict_value(dict);
    }
    return r->failed ? qn__failed() : qn__format_percent(r, s.s, args);
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

/* An integer as int(text, base) reads it; *fits: in 64 bits. */
static bool parse_integer(qn__run *r, const qn__str *s, int base, int64_t *i, bool *fits)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char text[80], *end;
    qn__value v = qn__strip(r, s, NULL, 3);
    size_t n = 0, at = 0;
    if (v.kind != QN__V_STRING || v.s->n > 78)
        return false;
    if (v.s->n > 0 && (v.s->data[0] == '-' || v.s->data[0] == '+'))
        text[n++] = v.s->data[at++];
    int prefix = base == 2 ? 'b' : base == 8 ? 'o' : base == 16 ? 'x' : 0;
    if (prefix && v.s->n > at + 2 && v.s->data[at] == '0' && (v.s->data[at + 1] | 32) == prefix)
        at += 2;
    for (size_t first = at; at < v.s->n; at++) {
        char c = v.s->data[at];
        if (c == '_' && at > first && at + 1 < v.s->n && v.s->data[at - 1] != '_')
            continue;
        if (!c || !(strchr(letters, c) || (c >= '0' && c <= '9')))
            return false;
        text[n++] = c;
    }
    text[n] = 0;
    errno = 0;
    *i = strtoll(text, &end, base);
    *fits = errno == 0;
    return end == text + n && n > 0 && text[n - 1] != '-' && text[n - 1] != '+';
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
    int64_t i, base = 10;
    bool fits;
    double f;
    if (!qn__bind(r, call, names, 2, a))
        return qn__failed();
    if (a[1].kind != QN__V_ABSENT && (!qn__as_int(a[1], &base) || base < 2 || base > 36))
        return qn__run_fail(r, "int: base must be 2..36");
    if (qn__as_int(v, &i))
        return qn__int(i);
    if (v.kind == QN__V_STRING && parse_integer(r, v.s, (int)base, &i, &fits))
        return fits ? qn__int(i) : qn__run_limit(r, "an integer does not fit 64 bits");
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

static qn__value filter_filesizeformat(qn__run *r, qn__value v, const qn__call *call)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    qn__value binary;
    double f, unit = 1;
    char text[400];
    if (!bind1(r, call, "binary", &binary) || v.kind == QN__V_UNDEFINED)
        return qn__refuse_undefined(r, v);
    if (!parse_double(r, v, &f) || !isfinite(f))
        return qn__run_fail(r, "filesizeformat takes a finite number");
    bool two = qn__truth(binary);
    double base = two ? 1024 : 1000;
    size_t i = 0;
    for (; i < 8 && f >= unit * base; i++)
        unit *= base;
    if (i == 0)
        snprintf(text, sizeof text, f == 1 ? "1 Byte" : "%.0f Bytes", trunc(f));
    else
        snprintf(text, sizeof text, "%.1f %c%s", f / unit, two && i == 1 ? 'K' : units[i][0],
                 two ? "iB" : "B");
    char *copy = qn__run_alloc(r, strlen(text) + 1);
    return copy ? qn__text(r, strcpy(copy, text)) : qn__failed();
}

/* To a multiple of 10 ** -precision, halves to the even one. */
static qn__value round_to_tens(qn__run *r, qn__value v, int64_t precision)
{
    int64_t i, tens = 1;
    double f = 0;
    for (; precision < 0; precision++)
        tens *= 10;
    if (qn__as_int(v, &i)) {
        int64_t rest = i % tens, base = i - rest, half = rest < 0 ? -rest : rest;
        bool up = half * 2 > tens || (half * 2 == tens && base / tens % 2);
        bool over = up && __builtin_add_overflow(base, rest < 0 ? -tens : tens, &base);
        return over ? qn__run_limit(r, "an integer does not fit 64 bits") : qn__int(base);
    }
    qn__as_double(v, &f);
    double rest = fmod(f, (double)tens), base = f - rest, half = fabs(rest) * 2;
    if (half > (double)tens || (half == (double)tens && fmod(base / (double)tens, 2) != 0))
        base += rest < 0 ? -(double)tens : (double)tens;
    return qn__float(base);
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
        precision < -15 || precision > 20)
        return qn__run_fail(r, "round takes a number and a precision of -15..20");
    if (a[1].kind == QN__V_STRING && !qn__str_is(a[1].s, "common")) {
        double scale = pow(10, (double)precision);
        bool up = qn__str_is(a[1].s, "ceil");
        if (!up && !qn__str_is(a[1].s, "floor"))
            return qn__run_fail(r, "round: method must be common, ceil or floor");
        return qn__float((up ? ceil(f * scale) : floor(f * scale)) / scale);
    }
    if (precision < 0 && isfinite(f))
        return round_to_tens(r, v, precision);
    if (v.kind == QN__V_INT || v.kind == QN__V_BOOL)
        return qn__int((int64_t)(v.kind == QN__V_INT ? v.i : v.truth));
    if (!qn__run_spend(r, 16))
        return qn__failed();
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

/* An attribute or method, but no item. */
static qn__value filter_attr(qn__run *r, qn__value v, const qn__call *call)
{
    qn__value name;
    if (!bind1(r, call, "name", &name))
        return qn__failed();
    if (name.kind != QN__V_STRING)
        return qn__run_fail(r, "attr takes the name of an attribute");
    if (v.kind == QN__V_UNDEFINED)
        return qn__refuse_undefined(r, v);
    qn__value found = qn__own_attribute(r, v, name.s);
    return found.kind == QN__V_ABSENT ? qn__undefined_of(r, v, name) : found;
}

static const qn__named_function filters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", filter_capitalize},
    {"d", filter_default},
    {"default", filter_default},
    {"filesizeformat", filter_filesizeformat},
    {"float", filter_float},
    {"format", filter_format},
    {"int", filter_int},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"upper", filter_upper},
};

const qn__named_function *qn__filter_find(const qn__str *name)
{
    const qn__named_function *found =
        qn__named_find(filters, sizeof filters / sizeof *filters, name);
    found = found ? found : qn__sequence_filter_find(name);
    found = found ? found : qn__layout_filter_find(name);
    return found ? found : qn__markup_filter_find(name);
}
