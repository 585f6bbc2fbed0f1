/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's string operations that filters and methods share: case, strip, replace, join, and the
 * two kinds of formatting. Case is mapped for ASCII, Latin, Greek, Cyrillic, Armenian and
 * full-width letters (and sharp s, which becomes two); other letters stay as they are.
 */
#include "text/template.h"

#include "text/unicode.h"

#include <math.h>
#include <stdio.h>

/* ---- case ----------------------------------------------------------------------------------- */

/* Lower-case letters [first, last]: their capital is `distance` away; 0: pairs, the capital is
 * the neighbour before (even or odd as `first` minus 1 is). */
typedef struct case_run {
    uint32_t first, last;
    int32_t distance;
} case_run;

static const case_run case_runs[] = {
    {'a', 'z', -32},     {0xe0, 0xf6, -32},     {0xf8, 0xfe, -32},   {0xff, 0xff, 121},
    {0x101, 0x12f, 0},   {0x133, 0x137, 0},     {0x13a, 0x148, 0},   {0x14b, 0x177, 0},
    {0x17a, 0x17e, 0},   {0x1ce, 0x1dc, 0},     {0x1df, 0x1ef, 0},   {0x1f9, 0x21f, 0},
    {0x223, 0x233, 0},   {0x3ac, 0x3ac, -38},   {0x3ad, 0x3af, -37}, {0x3b1, 0x3c1, -32},
    {0x3c3, 0x3cb, -32}, {0x3cc, 0x3cc, -64},   {0x3cd, 0x3ce, -63}, {0x430, 0x44f, -32},
    {0x450, 0x45f, -80}, {0x461, 0x481, 0},     {0x48b, 0x4bf, 0},   {0x4c2, 0x4ce, 0},
    {0x4cf, 0x4cf, -15}, {0x4d1, 0x52f, 0},     {0x561, 0x586, -48}, {0x1e01, 0x1e95, 0},
    {0x1ea1, 0x1eff, 0}, {0xff41, 0xff5a, -32},
};

int qn__map_case(uint32_t c, qn__case to, uint32_t out[3])
{
    out[0] = c;
    if (to != QN__TO_LOWER && c == 0xdf) { /* sharp s */
        out[0] = 'S';
        out[1] = to == QN__TO_UPPER ? 'S' : 's';
        return 2;
    }
    if (to != QN__TO_LOWER && (c == 0xb5 || c == 0x3c2 || c == 0x17f)) {
        out[0] = c == 0xb5 ? 0x39c : c == 0x3c2 ? 0x3a3 : 'S';
        return 1;
    }
    if (to == QN__TO_LOWER && c == 0x1e9e) {
        out[0] = 0xdf;
        return 1;
    }
    for (size_t i = 0; i < sizeof case_runs / sizeof *case_runs; i++) {
        const case_run *run = &case_runs[i];
        int32_t distance = run->distance ? run->distance : -1;
        bool pairs = run->distance == 0;
        if (to != QN__TO_LOWER) {
            if (c >= run->first && c <= run->last && !(pairs && (c - run->first) % 2))
                out[0] = (uint32_t)((int32_t)c + distance);
        } else {
            uint32_t lower = (uint32_t)((int32_t)c - distance);
            if (lower >= run->first && lower <= run->last && !(pairs && (lower - run->first) % 2))
                out[0] = lower;
        }
        if (out[0] != c)
            break;
    }
    return 1;
}

static bool is_cased(uint32_t c)
{
    uint32_t upper[3], lower[3];
    qn__map_case(c, QN__TO_UPPER, upper);
    qn__map_case(c, QN__TO_LOWER, lower);
    return upper[0] != c || lower[0] != c;
}

/* The first character (of each word, with `words`) gets one case, the others the other. */
qn__value qn__change_case(qn__run *r, const qn__str *s, qn__case first, qn__case rest, bool words)
{
    qn__builder b;
    qn__builder_begin(&b, r);
    bool inside = false;
    for (size_t i = 0, k; i < s->n && !r->failed; i += k) {
        uint32_t c = 0xfffd, mapped[3];
        k = qn__utf8_decode(s->data + i, s->n - i, &c);
        k = k ? k : 1;
        int n = qn__map_case(c, inside ? rest : first, mapped);
        inside = words ? is_cased(c) : true;
        for (int j = 0; j < n; j++) {
            char bytes[4];
            qn__build(&b, bytes, qn__utf8_encode(mapped[j], bytes), qn__str_from_data(s, i));
        }
    }
    return qn__builder_end(&b);
}

qn__value qn__is_case(qn__run *r, const qn__str *s, qn__case wanted)
{
    qn__case other = wanted == QN__TO_UPPER ? QN__TO_LOWER : QN__TO_UPPER;
    qn__value a = qn__change_case(r, s, wanted, wanted, false),
              b = qn__change_case(r, s, other, other, false);
    return r->failed ? qn__failed() : qn__bool(qn__str_same(s, a.s) && !qn__str_same(s, b.s));
}

/* ---- lines, columns ------------------------------------------------------------------------- */

size_t qn__line_end(const qn__str *s, size_t at, size_t *next)
{
    for (size_t k; at < s->n; at += k) {
        uint32_t c = (unsigned char)s->data[at];
        k = 1;
        if (c >= 0x80 && !(k = qn__utf8_decode(s->data + at, s->n - at, &c)))
            k = 1;
        if ((c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
            c == 0x2029) {
            *next = at + k + (c == '\r' && at + 1 < s->n && s->data[at + 1] == '\n');
            return at;
        }
    }
    *next = s->n;
    return s->n;
}

qn__value qn__center(qn__run *r, const qn__str *s, int64_t width, const qn__str *fill)
{
    int64_t n = (int64_t)qn__length_of(s), pad = width > n ? width - n : 0;
    int64_t left = pad / 2 + (pad & width & 1);
    qn__builder b;
    qn__builder_begin(&b, r);
    qn__run_spend(r, s->n >> 6);
    for (int64_t i = 0; i < left && qn__build_str(&b, fill, 0, fill->n); i++)
        ;
    qn__build_str(&b, s, 0, s->n);
    for (int64_t i = left; i < pad && qn__build_str(&b, fill, 0, fill->n); i++)
        ;
    return qn__builder_end(&b);
}

/* ---- strip, replace, join ------------------------------------------------------------------- */

/* Whether the character at s[at..at + k) is to be stripped; chars NULL: white space. */
static bool strips(const qn__str *s, size_t at, size_t *k, const qn__str *chars)
{
    unsigned class = qn__class_at(s->data, s->n, at, k);
    unsigned char c = (unsigned char)s->data[at];
    if (!chars)
        return (class & QN__SPACE) || (c >= 0x1c && c <= 0x1f);
    for (size_t i = 0, m; i < chars->n; i += m) {
        m = qn__str_offset(chars, i, 1) - i;
        if (m == *k && memcmp(chars->data + i, s->data + at, m) == 0)
            return true;
    }
    return false;
}

qn__value qn__strip(qn__run *r, const qn__str *s, const qn__str *chars, int sides)
{
    size_t from = 0, to = s->n, k;
    uint64_t each = chars ? chars->n >> 5 : 0; /* steps for a character beyond those of s */
    if (!qn__run_spend(r, s->n >> 6))
        return qn__failed();
    while ((sides & 1) && from < to && qn__run_spend(r, each) && strips(s, from, &k, chars))
        from += k;
    while ((sides & 2) && to > from && qn__run_spend(r, each) &&
           strips(s, qn__char_before(s->data, to), &k, chars))
        to = qn__char_before(s->data, to);
    return r->failed ? qn__failed() : qn__substring(r, s, from, to);
}

qn__value qn__replace(qn__run *r, const qn__str *s, const qn__str *was, const qn__str *is,
                      int64_t count)
{
    qn__builder b;
    qn__builder_begin(&b, r);
    size_t at = 0;
    while (count != 0 && !r->failed) {
        const char *hit = was->n ? memmem(s->data + at, s->n - at, was->data, was->n) : NULL;
        size_t place = hit ? (size_t)(hit - s->data) : at;
        if (!hit && was->n)
            break;
        qn__build_str(&b, s, at, place);
        qn__build_str(&b, is, 0, is->n);
        at = place + was->n;
        if (!was->n) { /* between all characters */
            if (at >= s->n)
                break;
            size_t next = qn__str_offset(s, at, 1);
            qn__build_str(&b, s, at, next);
            at = next;
        }
        count -= count > 0;
        if (!qn__run_spend(r, 1))
            break;
    }
    qn__build_str(&b, s, at, s->n);
    return qn__builder_end(&b);
}

/* strict: the method, which takes strings alone. */
qn__value qn__join(qn__run *r, qn__value items, const qn__str *separator, bool strict)
{
    qn__seq seq;
    qn__builder b;
    if (!qn__items_of(r, items, &seq))
        return qn__failed();
    qn__builder_begin(&b, r);
    for (size_t i = 0; i < seq.n && qn__run_spend(r, 1); i++) {
        if (strict && seq.items[i].kind != QN__V_STRING)
            return qn__run_fail(r, "sequence item %zu: expected str instance, %s found", i,
                                qn__type_name(seq.items[i]));
        if (i)
            qn__build_str(&b, separator, 0, separator->n);
        qn__build_value(&b, seq.items[i]);
    }
    return qn__builder_end(&b);
}

/* ---- formatting ----------------------------------------------------------------------------- */

typedef struct format_spec {
    bool left, center, zero, plus, space, alternate;
    char fill, type;
    int width, precision; /* precision -1: none */
} format_spec;

enum { WIDEST_FORMAT = 10000 };

static bool build_padded(qn__builder *b, const qn__str *s, const format_spec *spec)
{
    size_t n = qn__length_of(s), width = (size_t)spec->width, pad = width > n ? width - n : 0;
    size_t before = spec->left ? 0 : spec->center ? pad / 2 : pad;
    for (size_t i = 0; i < before; i++)
        qn__build(b, &spec->fill, 1, false);
    qn__build_str(b, s, 0, s->n);
    for (size_t i = before; i < pad; i++)
        qn__build(b, &spec->fill, 1, false);
    return !b->run->failed;
}

static bool build_formatted_number(qn__builder *b, qn__value v, const format_spec *spec)
{
    char form[24], text[400];
    int64_t i = 0;
    double f = 0;
    bool is_int = strchr("dixXo", spec->type) != NULL;
    if (!qn__as_double(v, &f)) {
        qn__run_fail(b->run, "%%%c format: a number is required, not %s", spec->type,
                     qn__type_name(v));
        return false;
    }
    if (!qn__as_int(v, &i)) {
        if (is_int && (strchr("xXo", spec->type) || !(fabs(f) < 9e18))) {
            qn__run_fail(b->run, "%%%c format: an integer is required, not float", spec->type);
            return false;
        }
        i = is_int ? (int64_t)f : 0;
    }
    const char *sign = spec->plus ? "+" : spec->space ? " " : "";
    const char *alternate = spec->alternate ? "#" : "";
    int precision = spec->precision < 0 ? 6 : spec->precision > 60 ? 60 : spec->precision;
    if (is_int) {
        snprintf(form, sizeof form, "%%%s%sll%c", sign, alternate,
                 spec->type == 'i' ? 'd' : spec->type);
        snprintf(text, sizeof text, form, (long long)i);
    } else {
        snprintf(form, sizeof form, "%%%s%s.*%c", sign, alternate, spec->type);
        snprintf(text, sizeof text, form, precision, f);
    }
    size_t n = strlen(text), skip = text[0] == '-' || text[0] == '+' || text[0] == ' ';
    if (spec->zero && !spec->left && (size_t)spec->width > n) {
        qn__build(b, text, skip, false);
        for (size_t k = n; k < (size_t)spec->width; k++)
            qn__build(b, "0", 1, false);
        return qn__build(b, text + skip, n - skip, false);
    }
    return build_padded(b, &(qn__str){.data = text, .n = n}, spec);
}

static bool build_formatted_text(qn__builder *b, qn__value v, const format_spec *spec, bool repr)
{
    qn__builder text;
    qn__builder_begin(&text, b->run);
    if (repr)
        qn__build_repr(&text, v);
    else
        qn__build_value(&text, v);
    qn__value made = qn__builder_end(&text);
    if (made.kind != QN__V_STRING)
        return false;
    if (spec->precision >= 0)
        made = qn__substring(b->run, made.s, 0, qn__str_offset(made.s, 0, (size_t)spec->precision));
    return made.kind == QN__V_STRING && build_padded(b, made.s, spec);
}

static size_t read_width(const qn__str *s, size_t i, int *out)
{
    for (*out = 0; i < s->n && s->data[i] >= '0' && s->data[i] <= '9'; i++)
        if (*out <= WIDEST_FORMAT)
            *out = *out * 10 + (s->data[i] - '0');
    return i;
}

/* One "%..." behind the percent sign at s[i]; returns the place behind it, 0 on failure. */
static size_t format_one(qn__builder *b, const qn__str *s, size_t i, qn__value args, size_t *used)
{
    qn__run *r = b->run;
    format_spec spec = {.fill = ' ', .precision = -1};
    qn__value v = {.kind = QN__V_ABSENT};
    if (i < s->n && s->data[i] == '(') {
        const char *close = memchr(s->data + i, ')', s->n - i);
        if (!close || args.kind != QN__V_DICT)
            return qn__run_fail(r, "format requires a mapping"), 0;
        qn__str key = {.data = s->data + i + 1, .n = (size_t)(close - s->data) - i - 1};
        qn__entry *entry = qn__dict_find_str(r, args.dict, &key);
        if (!entry)
            return qn__run_fail(r, "format: the mapping lacks a key"), 0;
        v = entry->value;
        i = (size_t)(close - s->data) + 1;
    }
    for (; i < s->n && strchr("-0+ #", s->data[i]) && s->data[i]; i++) {
        spec.left |= s->data[i] == '-';
        spec.zero |= s->data[i] == '0';
        spec.plus |= s->data[i] == '+';
        spec.space |= s->data[i] == ' ';
        spec.alternate |= s->data[i] == '#';
    }
    i = read_width(s, i, &spec.width);
    if (i < s->n && s->data[i] == '.')
        i = read_width(s, i + 1, &spec.precision);
    if (i >= s->n || spec.width > WIDEST_FORMAT)
        return qn__run_fail(r, "incomplete format"), 0;
    spec.type = s->data[i];
    if (spec.type == '%')
        return qn__build_text(b, "%") ? i + 1 : 0;
    if (!strchr("sraidxXofFeEgG", spec.type))
        return qn__run_fail(r, "unsupported format character '%c'", spec.type), 0;
    if (v.kind == QN__V_ABSENT) {
        size_t n = args.kind == QN__V_TUPLE ? args.seq->n : 1;
        if (*used >= n)
            return qn__run_fail(r, "not enough arguments for format string"), 0;
        v = args.kind == QN__V_TUPLE ? args.seq->items[*used] : args;
        ++*used;
    }
    bool text = strchr("sra", spec.type) != NULL;
    bool ok = text ? build_formatted_text(b, v, &spec, spec.type != 's')
                   : build_formatted_number(b, v, &spec);
    return ok ? i + 1 : 0;
}

qn__value qn__format_percent(qn__run *r, const qn__str *s, qn__value args)
{
    qn__builder b;
    qn__builder_begin(&b, r);
    size_t at = 0, used = 0;
    while (at < s->n && !r->failed) {
        const char *hit = memchr(s->data + at, '%', s->n - at);
        size_t place = hit ? (size_t)(hit - s->data) : s->n;
        qn__build_str(&b, s, at, place);
        at = hit ? format_one(&b, s, place + 1, args, &used) : s->n;
        if (!at && hit)
            break;
    }
    size_t n = args.kind == QN__V_TUPLE ? args.seq->n : args.kind == QN__V_DICT ? used : 1;
    if (!r->failed && used < n)
        return qn__run_fail(r, "not all arguments converted during string formatting");
    return qn__builder_end(&b);
}

/* ":>10.3f" behind the colon. */
static bool read_spec(const qn__str *s, size_t i, size_t end, format_spec *spec)
{
    *spec = (format_spec){.fill = ' ', .precision = -1, .left = true};
    if (i + 1 < end && strchr("<>^", s->data[i + 1]) && s->data[i] > 0)
        spec->fill = s->data[i++];
    bool aligned = i < end && strchr("<>^", s->data[i]) && s->data[i];
    if (aligned) {
        spec->left = s->data[i] == '<';
        spec->center = s->data[i] == '^';
        i++;
    }
    if (i < end && (s->data[i] == '+' || s->data[i] == ' ')) {
        spec->plus = s->data[i] == '+';
        spec->space = s->data[i++] == ' ';
    }
    if (i < end && s->data[i] == '0') {
        spec->zero = true;
        i++;
    }
    i = read_width(s, i, &spec->width);
    if (i < end && s->data[i] == '.')
        i = read_width(s, i + 1, &spec->precision);
    spec->type = i < end ? s->data[i++] : 's';
    if (!aligned && spec->type != 's')
        spec->left = false;
    return i == end && spec->width <= WIDEST_FORMAT && strchr("sdxXofFeEgG", spec->type);
}

/* One "{...}" that begins behind s[i]; returns the place behind it, 0 on failure. */
static size_t format_field(qn__builder *b, const qn__str *s, size_t i, const qn__call *call,
                           size_t *next)
{
    qn__run *r = b->run;
    const char *close = memchr(s->data + i, '}', s->n - i);
    if (!close)
        return qn__run_fail(r, "expected '}' before end of string"), 0;
    size_t end = (size_t)(close - s->data), name_end = i;
    while (name_end < end && s->data[name_end] != ':' && s->data[name_end] != '!')
        name_end++;
    qn__str name = {.data = s->data + i, .n = name_end - i};
    qn__value v = {.kind = QN__V_ABSENT};
    int index = 0;
    size_t digits_end = read_width(s, i, &index);
    if (name.n == 0 || digits_end == name_end) {
        size_t k = name.n ? (size_t)index : (*next)++;
        if (k >= call->n)
            return qn__run_fail(r, "format: no positional argument %zu", k), 0;
        v = call->args[k];
    } else {
        for (size_t k = 0; k < call->n_named; k++)
            if (qn__str_same(call->names[k], &name))
                v = call->named[k];
        if (v.kind == QN__V_ABSENT)
            return qn__run_fail(r, "format: a field has no argument (supported: {}, {0}, {name})"),
                   0;
    }
    bool repr = name_end + 1 < end && s->data[name_end] == '!' && s->data[name_end + 1] == 'r';
    if (name_end < end && s->data[name_end] == '!')
        name_end += 2;
    format_spec spec = {.fill = ' ', .precision = -1, .left = true, .type = 's'};
    if (name_end < end && (s->data[name_end] != ':' || !read_spec(s, name_end + 1, end, &spec)))
        return qn__run_fail(r, "format: a field is malformed or not supported"), 0;
    bool number = v.kind >= QN__V_BOOL && v.kind <= QN__V_FLOAT && spec.type != 's';
    bool ok =
        number ? build_formatted_number(b, v, &spec) : build_formatted_text(b, v, &spec, repr);
    return ok ? end + 1 : 0;
}

qn__value qn__format_braces(qn__run *r, const qn__str *s, const qn__call *call)
{
    qn__builder b;
    qn__builder_begin(&b, r);
    size_t start = 0, next = 0;
    for (size_t i = 0; i < s->n && !r->failed;) {
        char c = s->data[i];
        if (c != '{' && c != '}') {
            i++;
            continue;
        }
        if (i + 1 < s->n && s->data[i + 1] == c) {
            qn__build_str(&b, s, start, i + 1);
            start = i += 2;
            continue;
        }
        if (c == '}')
            return qn__run_fail(r, "Single '}' encountered in format string");
        qn__build_str(&b, s, start, i);
        i = format_field(&b, s, i + 1, call, &next);
        if (!i)
            break;
        start = i;
    }
    if (!r->failed)
        qn__build_str(&b, s, start, s->n);
    return qn__builder_end(&b);
}
