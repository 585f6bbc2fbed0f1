/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of chat templates over one value: Jinja's, with transformers' tojson. Those over
 * sequences are in sequences.c, those for lines and columns in layout.c, those
 * for HTML and URLs in markup.c.
 */
#include "jinja/jinja.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- arguments ------------------------------------------------------------------------------ */

bool qn__jinja_bind(qn__jinja_run *r, const qn__jinja_call *call, const char *const *names,
                    size_t n, qn__jinja_value *places)
{
    for (size_t i = 0; i < n; i++)
        places[i] = i < call->n ? call->args[i] : (qn__jinja_value){.kind = QN__JINJA_ABSENT};
    if (call->n > n)
        return qn__jinja_run_fail(r, "%s takes at most %zu argument(s), got %zu", call->name, n,
                                  call->n),
               false;
    for (size_t i = 0; i < call->n_named; i++) {
        size_t k = 0;
        char name[64];
        while (k < n && !qn__jinja_str_is(call->names[i], names[k]))
            k++;
        qn__utf8_quote(name, sizeof name, call->names[i]->data, call->names[i]->n);
        if (k == n || places[k].kind != QN__JINJA_ABSENT)
            return qn__jinja_run_fail(r, "%s got an unexpected or repeated argument '%s'",
                                      call->name, name),
                   false;
        places[k] = call->named[i];
    }
    return !r->failed;
}

const qn__jinja_named_function *qn__jinja_named_find(const qn__jinja_named_function *table,
                                                     size_t n, const qn__jinja_str *name)
{
    for (size_t i = 0; i < n; i++)
        if (qn__jinja_str_is(name, table[i].name))
            return &table[i];
    return NULL;
}

static bool bind1(qn__jinja_run *r, const qn__jinja_call *call, const char *name,
                  qn__jinja_value *a)
{
    return qn__jinja_bind(r, call, &name, 1, a);
}

/* ---- text ----------------------------------------------------------------------------------- */

static qn__jinja_value filter_trim(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    qn__jinja_value chars, s = qn__jinja_to_str(r, v);
    if (!bind1(r, call, "chars", &chars) || s.kind != QN__JINJA_STRING)
        return qn__jinja_failed();
    return qn__jinja_strip(r, s.s, chars.kind == QN__JINJA_STRING ? chars.s : NULL, 3);
}

static qn__jinja_value filter_string(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    return qn__jinja_bind(r, call, NULL, 0, NULL) ? qn__jinja_to_str(r, v) : qn__jinja_failed();
}

static qn__jinja_value filter_case(qn__jinja_run *r, qn__jinja_value v, qn__case first,
                                   qn__case rest)
{
    qn__jinja_value s = qn__jinja_to_str(r, v);
    return s.kind == QN__JINJA_STRING ? qn__jinja_change_case(r, s.s, first, rest, false) : s;
}

static qn__jinja_value filter_upper(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)call;
    return filter_case(r, v, QN__TO_UPPER, QN__TO_UPPER);
}

static qn__jinja_value filter_lower(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    (void)call;
    return filter_case(r, v, QN__TO_LOWER, QN__TO_LOWER);
}

static qn__jinja_value filter_capitalize(qn__jinja_run *r, qn__jinja_value v,
                                         const qn__jinja_call *call)
{
    (void)call;
    return filter_case(r, v, QN__TO_TITLE, QN__TO_LOWER);
}

/* The first character in upper case, and the others apart in lower case. */
static qn__jinja_value capitalized(qn__jinja_run *r, const qn__jinja_str *s)
{
    size_t first = s->n ? qn__jinja_str_offset(s, 0, 1) : 0;
    qn__jinja_value head = qn__jinja_substring(r, s, 0, first),
                    tail = qn__jinja_substring(r, s, first, s->n);
    if (!r->failed)
        head = qn__jinja_change_case(r, head.s, QN__TO_UPPER, QN__TO_UPPER, false);
    if (!r->failed)
        tail = qn__jinja_change_case(r, tail.s, QN__TO_LOWER, QN__TO_LOWER, false);
    return r->failed ? qn__jinja_failed() : qn__jinja_binary(r, QN__JINJA_OP_ADD, head, tail);
}

static bool begins_word(const qn__jinja_str *s, size_t at, size_t *k)
{
    unsigned char c = (unsigned char)s->data[at];
    bool white = (qn__class_at(s->data, s->n, at, k) & QN__SPACE) || (c >= 0x1c && c <= 0x1f);
    return white || (c && strchr("-([{<", c));
}

/* Words begin behind white space and -([{< here, and with a capital, unlike str.title(). */
static qn__jinja_value filter_title(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    qn__jinja_value s = qn__jinja_to_str(r, v);
    qn__jinja_builder b;
    (void)call;
    if (s.kind != QN__JINJA_STRING || !qn__jinja_run_spend(r, s.s->n >> 3))
        return qn__jinja_failed();
    qn__jinja_builder_begin(&b, r);
    for (size_t i = 0; i < s.s->n && !r->failed;) {
        size_t end = i, k = 0;
        for (; end < s.s->n && !begins_word(s.s, end, &k); end += k)
            ;
        qn__jinja_value word = qn__jinja_substring(r, s.s, i, end);
        if (word.kind == QN__JINJA_STRING)
            word = capitalized(r, word.s);
        if (word.kind == QN__JINJA_STRING)
            qn__jinja_build_str(&b, word.s, 0, word.s->n);
        i = end < s.s->n ? end + k : end;
        qn__jinja_build_str(&b, s.s, end, i);
    }
    return qn__jinja_builder_end(&b);
}

static qn__jinja_value filter_replace(qn__jinja_run *r, qn__jinja_value v,
                                      const qn__jinja_call *call)
{
    static const char *const names[] = {"old", "new", "count"};
    qn__jinja_value a[3], s = qn__jinja_to_str(r, v);
    int64_t count = -1;
    if (!qn__jinja_bind(r, call, names, 3, a) || s.kind != QN__JINJA_STRING)
        return qn__jinja_failed();
    if (a[0].kind == QN__JINJA_ABSENT || a[1].kind == QN__JINJA_ABSENT)
        return qn__jinja_run_fail(r, "replace takes what to replace and by what");
    if (a[2].kind > QN__JINJA_NONE && !qn__jinja_as_int(a[2], &count))
        return qn__jinja_run_fail(r, "replace: count must be an integer");
    a[0] = qn__jinja_to_str(r, a[0]);
    a[1] = qn__jinja_to_str(r, a[1]);
    return r->failed ? qn__jinja_failed() : qn__jinja_replace(r, s.s, a[0].s, a[1].s, count);
}

static qn__jinja_value filter_format(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    qn__jinja_value s = qn__jinja_to_str(r, v),
                    args = qn__jinja_seq_new(r, QN__JINJA_TUPLE, call->args, call->n);
    if (call->n && call->n_named)
        return qn__jinja_run_fail(r,
                                  "can't handle positional and keyword arguments at the same time");
    if (call->n_named) {
        qn__jinja_dict *dict = qn__jinja_dict_new(r, call->n_named);
        for (size_t i = 0; dict && i < call->n_named; i++)
            qn__jinja_dict_set(r, dict, qn__jinja_str_value(call->names[i]), call->named[i]);
        args = qn__jinja_dict_value(dict);
    }
    return r->failed ? qn__jinja_failed() : qn__jinja_format_percent(r, s.s, args);
}

/* transformers' tojson: no HTML escapes, insertion order, ensure_ascii off. */
static qn__jinja_value filter_tojson(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    static const qn__jinja_str comma = {.data = ", ", .n = 1}, comma_space = {.data = ", ", .n = 2},
                               colon = {.data = ": ", .n = 2};
    qn__jinja_value a[4];
    int64_t width;
    if (!qn__jinja_bind(r, call, names, 4, a))
        return qn__jinja_failed();
    qn__jinja_json_style style = {.ascii = qn__jinja_truth(a[0]),
                                  .sort = qn__jinja_truth(a[3]),
                                  .item = &comma_space,
                                  .key = &colon};
    if (a[1].kind == QN__JINJA_STRING) {
        style.indent = a[1].s;
    } else if (qn__jinja_as_int(a[1], &width)) {
        qn__jinja_value unit = qn__jinja_binary(r, QN__JINJA_OP_MULTIPLY, qn__jinja_text(r, " "),
                                                qn__jinja_int(width));
        style.indent = unit.kind == QN__JINJA_STRING ? unit.s : NULL;
    } else if (a[1].kind > QN__JINJA_NONE) {
        return qn__jinja_run_fail(r, "tojson: indent must be an integer or a string");
    }
    style.pretty = style.indent != NULL;
    if (style.pretty)
        style.item = &comma;
    if (qn__jinja_is_seq(a[2]) && a[2].seq->n == 2 && a[2].seq->items[0].kind == QN__JINJA_STRING &&
        a[2].seq->items[1].kind == QN__JINJA_STRING) {
        style.item = a[2].seq->items[0].s;
        style.key = a[2].seq->items[1].s;
    } else if (a[2].kind > QN__JINJA_NONE) {
        return qn__jinja_run_fail(r, "tojson: separators must be two strings");
    }
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    if (!r->failed)
        qn__jinja_build_json(&b, v, &style, 0);
    return qn__jinja_builder_end(&b);
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* A terminated copy of a number's text without "_" and white space around; false: too long. */
static bool number_text(qn__jinja_run *r, const qn__jinja_str *s, char out[80])
{
    qn__jinja_value stripped = qn__jinja_strip(r, s, NULL, 3);
    size_t n = 0;
    if (stripped.kind != QN__JINJA_STRING || stripped.s->n > 78 || stripped.s->n == 0)
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
static bool parse_integer(qn__jinja_run *r, const qn__jinja_str *s, int base, int64_t *i,
                          bool *fits)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char text[80], *end;
    qn__jinja_value v = qn__jinja_strip(r, s, NULL, 3);
    size_t n = 0, at = 0;
    if (v.kind != QN__JINJA_STRING || v.s->n > 78)
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

static bool parse_double(qn__jinja_run *r, qn__jinja_value v, double *f)
{
    char text[80], *end;
    if (qn__jinja_as_double(v, f))
        return true;
    if (v.kind != QN__JINJA_STRING || !number_text(r, v.s, text))
        return false;
    *f = strtod(text, &end);
    return *end == 0 && end != text;
}

static qn__jinja_value filter_int(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    static const char *const names[] = {"default", "base"};
    qn__jinja_value a[2];
    int64_t i, base = 10;
    bool fits;
    double f;
    if (!qn__jinja_bind(r, call, names, 2, a))
        return qn__jinja_failed();
    if (a[1].kind != QN__JINJA_ABSENT && (!qn__jinja_as_int(a[1], &base) || base < 2 || base > 36))
        return qn__jinja_run_fail(r, "int: base must be 2..36");
    if (qn__jinja_as_int(v, &i))
        return qn__jinja_int(i);
    if (v.kind == QN__JINJA_STRING && parse_integer(r, v.s, (int)base, &i, &fits))
        return fits ? qn__jinja_int(i) : qn__jinja_run_limit(r, "an integer does not fit 64 bits");
    if (r->failed || v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, v);
    if (parse_double(r, v, &f) && isfinite(f))
        return fabs(f) < 9.2e18 ? qn__jinja_int((int64_t)f)
                                : qn__jinja_run_limit(r, "an integer does not fit 64 bits");
    return a[0].kind == QN__JINJA_ABSENT ? qn__jinja_int(0) : a[0];
}

static qn__jinja_value filter_float(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    qn__jinja_value otherwise;
    double f;
    if (!bind1(r, call, "default", &otherwise))
        return qn__jinja_failed();
    if (parse_double(r, v, &f))
        return qn__jinja_float(f);
    if (r->failed || v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, v);
    return otherwise.kind == QN__JINJA_ABSENT ? qn__jinja_float(0) : otherwise;
}

static qn__jinja_value filter_abs(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    int64_t i;
    (void)call;
    if (v.kind == QN__JINJA_FLOAT)
        return qn__jinja_float(fabs(v.f));
    if (!qn__jinja_as_int(v, &i))
        return qn__jinja_run_fail(r, "bad operand type for abs(): '%s'", qn__jinja_type_name(v));
    return i == INT64_MIN ? qn__jinja_run_limit(r, "an integer does not fit 64 bits")
                          : qn__jinja_int(i < 0 ? -i : i);
}

static qn__jinja_value filter_filesizeformat(qn__jinja_run *r, qn__jinja_value v,
                                             const qn__jinja_call *call)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    qn__jinja_value binary;
    double f, unit = 1;
    char text[400];
    if (!bind1(r, call, "binary", &binary) || v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, v);
    if (!parse_double(r, v, &f) || !isfinite(f))
        return qn__jinja_run_fail(r, "filesizeformat takes a finite number");
    bool two = qn__jinja_truth(binary);
    double base = two ? 1024 : 1000;
    size_t i = 0;
    for (; i < 8 && f >= unit * base; i++)
        unit *= base;
    if (i == 0)
        snprintf(text, sizeof text, f == 1 ? "1 Byte" : "%.0f Bytes", trunc(f));
    else
        snprintf(text, sizeof text, "%.1f %c%s", f / unit, two && i == 1 ? 'K' : units[i][0],
                 two ? "iB" : "B");
    char *copy = qn__jinja_run_alloc(r, strlen(text) + 1);
    return copy ? qn__jinja_text(r, strcpy(copy, text)) : qn__jinja_failed();
}

/* To a multiple of 10 ** -precision, halves to the even one. */
static qn__jinja_value round_to_tens(qn__jinja_run *r, qn__jinja_value v, int64_t precision)
{
    int64_t i, tens = 1;
    double f = 0;
    for (; precision < 0; precision++)
        tens *= 10;
    if (qn__jinja_as_int(v, &i)) {
        int64_t rest = i % tens, base = i - rest, half = rest < 0 ? -rest : rest;
        bool up = half * 2 > tens || (half * 2 == tens && base / tens % 2);
        bool over = up && __builtin_add_overflow(base, rest < 0 ? -tens : tens, &base);
        return over ? qn__jinja_run_limit(r, "an integer does not fit 64 bits")
                    : qn__jinja_int(base);
    }
    qn__jinja_as_double(v, &f);
    double rest = fmod(f, (double)tens), base = f - rest, half = fabs(rest) * 2;
    if (half > (double)tens || (half == (double)tens && fmod(base / (double)tens, 2) != 0))
        base += rest < 0 ? -(double)tens : (double)tens;
    return qn__jinja_float(base);
}

static qn__jinja_value filter_round(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    static const char *const names[] = {"precision", "method"};
    qn__jinja_value a[2];
    int64_t precision = 0;
    double f;
    char text[400];
    if (!qn__jinja_bind(r, call, names, 2, a))
        return qn__jinja_failed();
    if (!qn__jinja_as_double(v, &f) ||
        (a[0].kind != QN__JINJA_ABSENT && !qn__jinja_as_int(a[0], &precision)) || precision < -15 ||
        precision > 20)
        return qn__jinja_run_fail(r, "round takes a number and a precision of -15..20");
    if (a[1].kind == QN__JINJA_STRING && !qn__jinja_str_is(a[1].s, "common")) {
        double scale = pow(10, (double)precision);
        bool up = qn__jinja_str_is(a[1].s, "ceil");
        if (!up && !qn__jinja_str_is(a[1].s, "floor"))
            return qn__jinja_run_fail(r, "round: method must be common, ceil or floor");
        return qn__jinja_float((up ? ceil(f * scale) : floor(f * scale)) / scale);
    }
    if (precision < 0 && isfinite(f))
        return round_to_tens(r, v, precision);
    if (v.kind == QN__JINJA_INT || v.kind == QN__JINJA_BOOL)
        return qn__jinja_int((int64_t)(v.kind == QN__JINJA_INT ? v.i : v.truth));
    if (!qn__jinja_run_spend(r, 16))
        return qn__jinja_failed();
    snprintf(text, sizeof text, "%.*f", (int)precision, f); /* rounds as Python: to even */
    return qn__jinja_float(strtod(text, NULL));
}

static qn__jinja_value filter_default(qn__jinja_run *r, qn__jinja_value v,
                                      const qn__jinja_call *call)
{
    static const char *const names[] = {"default_value", "boolean"};
    qn__jinja_value a[2];
    if (!qn__jinja_bind(r, call, names, 2, a))
        return qn__jinja_failed();
    bool missing = v.kind == QN__JINJA_UNDEFINED || (qn__jinja_truth(a[1]) && !qn__jinja_truth(v));
    if (!missing)
        return v;
    return a[0].kind == QN__JINJA_ABSENT ? qn__jinja_text(r, "") : a[0];
}

/* An attribute or method, but no item. */
static qn__jinja_value filter_attr(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_call *call)
{
    qn__jinja_value name;
    if (!bind1(r, call, "name", &name))
        return qn__jinja_failed();
    if (name.kind != QN__JINJA_STRING)
        return qn__jinja_run_fail(r, "attr takes the name of an attribute");
    if (v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, v);
    qn__jinja_value found = qn__jinja_own_attribute(r, v, name.s);
    return found.kind == QN__JINJA_ABSENT ? qn__jinja_undefined_of(r, v, name) : found;
}

static const qn__jinja_named_function filters[] = {
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

const qn__jinja_named_function *qn__jinja_filter_find(const qn__jinja_str *name)
{
    const qn__jinja_named_function *found =
        qn__jinja_named_find(filters, sizeof filters / sizeof *filters, name);
    found = found ? found : qn__jinja_sequence_filter_find(name);
    found = found ? found : qn__jinja_layout_filter_find(name);
    return found ? found : qn__jinja_markup_filter_find(name);
}
