/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's two kinds of formatting in chat templates, '%5.2f' % x and '{:>5.2f}'.format(x). Both
 * come down to a format_spec and a value: a number is laid out as sign, prefix, digits and rest, so
 * that zeros and separators go between the prefix and the digits.
 */
#include "jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDEST_FORMAT = 10000, FORMAT_STEPS = 8 };

typedef struct format_spec {
    qn__jinja_str fill;   /* one character */
    char align;           /* < > ^ =, 0: as the type wants */
    char sign;            /* + or space; - or 0: only minus */
    char grouping;        /* , or _ */
    char type;            /* 0: none */
    bool alternate;       /* # */
    bool positive;        /* z: no minus before a zero */
    int width, precision; /* precision -1: none */
} format_spec;

static const qn__jinja_str one_space = {.data = " ", .n = 1}, one_zero = {.data = "0", .n = 1};

/* A number as text in pieces: sign, prefix, body[0..n), of which the first n_digits can be grouped.
 */
typedef struct formatted_number {
    char sign[2], prefix[3];
    char *body;
    size_t n, n_digits;
} formatted_number;

/* ---- padding -------------------------------------------------------------------------------- */

static bool build_fill(qn__jinja_builder *b, const qn__jinja_str *fill, size_t count)
{
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++)
        ok = qn__jinja_build_str(b, fill, 0, fill->n);
    return ok;
}

static bool build_padded(qn__jinja_builder *b, const qn__jinja_str *s, const format_spec *spec,
                         char align)
{
    size_t n = qn__jinja_length_of(s), width = (size_t)spec->width, pad = width > n ? width - n : 0;
    size_t before = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    return qn__jinja_run_spend(b->run, s->n >> 6) && build_fill(b, &spec->fill, before) &&
           qn__jinja_build_str(b, s, 0, s->n) && build_fill(b, &spec->fill, pad - before);
}

/* The digits with a separator every few of them, from the right, and zeros before them until there
 * are `least` characters; into out, of which the text's begin is returned. */
static char *group_digits(const char *digits, size_t n, char separator, size_t every, size_t least,
                          char *out_end)
{
    char *to = out_end;
    size_t in_group = 0;
    while (n > 0 || (size_t)(out_end - to) < least) {
        if (in_group == every) {
            *--to = separator;
            in_group = 0;
        }
        *--to = n > 0 ? digits[--n] : '0';
        in_group++;
    }
    return to;
}

static bool build_number_text(qn__jinja_builder *b, const formatted_number *t,
                              const format_spec *spec)
{
    size_t fixed = strlen(t->sign) + strlen(t->prefix), width = (size_t)spec->width;
    char align = spec->align ? spec->align : '>';
    bool zeros = align == '=' && spec->fill.n == 1 && spec->fill.data[0] == '0';
    char *digits = t->body;
    size_t n_digits = t->n_digits, n_rest = t->n - t->n_digits;
    if (spec->grouping && n_digits > 0) {
        size_t every = strchr("boxX", spec->type) && spec->type ? 4 : 3;
        size_t taken = fixed + n_rest, least = zeros && width > taken ? width - taken : 0;
        size_t room = 2 * (n_digits > least ? n_digits : least) + 2;
        char *grouped = qn__jinja_run_alloc(b->run, room);
        if (!grouped)
            return false;
        digits = group_digits(t->body, n_digits, spec->grouping, every, least, grouped + room);
        n_digits = (size_t)(grouped + room - digits);
    }
    size_t n = fixed + n_digits + n_rest, pad = width > n ? width - n : 0;
    size_t before = align == '>'   ? pad
                    : align == '^' ? pad / 2
                                   : 0,
           inside = align == '=' ? pad : 0;
    return build_fill(b, &spec->fill, before) && qn__jinja_build_text(b, t->sign) &&
           qn__jinja_build_text(b, t->prefix) && build_fill(b, &spec->fill, inside) &&
           qn__jinja_build(b, digits, n_digits, false) &&
           qn__jinja_build(b, t->body + t->n_digits, n_rest, false) &&
           build_fill(b, &spec->fill, pad - before - inside);
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* An integer in the base of its type; at least `least` digits. */
static bool integer_text(qn__jinja_run *r, int64_t i, const format_spec *spec, size_t least,
                         formatted_number *t)
{
    uint64_t rest = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    unsigned base = spec->type == 'b'                        ? 2
                    : spec->type == 'o'                      ? 8
                    : spec->type == 'x' || spec->type == 'X' ? 16
                                                             : 10;
    const char *letters = spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    size_t room = least > 64 ? least : 64;
    char *body = qn__jinja_run_alloc(r, room), *to = body ? body + room : NULL;
    if (!body)
        return false;
    do
        *--to = letters[rest % base];
    while (rest /= base);
    while ((size_t)(body + room - to) < least)
        *--to = '0';
    t->body = to;
    t->n = t->n_digits = (size_t)(body + room - to);
    if (spec->alternate && base != 10)
        snprintf(t->prefix, sizeof t->prefix, "0%c", spec->type);
    t->sign[0] = i < 0 ? '-' : spec->sign == '-' ? 0 : spec->sign;
    return true;
}

/* Takes zeros at the end of the fraction off, and a point that ends it. */
static void strip_fraction(char *body, bool keep_one)
{
    char *point = strchr(body, '.'), *exponent = strpbrk(body, "eE"), *end;
    if (!point)
        return;
    end = exponent ? exponent : point + strlen(point);
    char *from = end;
    while (from > point + 1 + keep_one && from[-1] == '0')
        from--;
    if (from == point + 1)
        from--;
    memmove(from, end, strlen(end) + 1);
}

/* Without a type: as short as repr() has it, or with the precision's digits; a point always. */
static void plain_text(double f, const format_spec *spec, char *body, size_t room)
{
    if (spec->precision < 0) {
        qn__jinja_double_repr(f, body);
        char *exponent = strchr(body, 'e');
        if (spec->alternate && exponent && !strchr(body, '.')) {
            memmove(exponent + 1, exponent, strlen(exponent) + 1);
            *exponent = '.';
        }
        return;
    }
    int digits = spec->precision > 0 ? spec->precision : 1;
    snprintf(body, room, spec->alternate ? "%#.*e" : "%.*e", digits - 1, f);
    int exponent = (int)strtol(strchr(body, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= digits - 1) {
        if (!spec->alternate)
            strip_fraction(body, false);
        return;
    }
    snprintf(body, room, "%.*f", digits - 1 - exponent, f);
    if (!spec->alternate)
        strip_fraction(body, true);
}

static bool float_text(qn__jinja_run *r, double f, const format_spec *spec, formatted_number *t)
{
    char form[8], type = spec->type == '%' ? 'f' : spec->type == 'n' ? 'g' : spec->type;
    double size = fabs(spec->type == '%' ? f * 100 : f);
    size_t room = 400 + (size_t)(spec->precision > 0 ? spec->precision : 0);
    char *body = qn__jinja_run_alloc(r, room + 2);
    if (!body || !qn__jinja_run_spend(r, room >> 2))
        return false;
    if (!isfinite(f)) {
        bool capital = type && strchr("EFG", type);
        strcpy(body, isnan(f) ? (capital ? "NAN" : "nan") : capital ? "INF" : "inf");
    } else if (type == 0) {
        plain_text(size, spec, body, room);
    } else {
        snprintf(form, sizeof form, "%%%s.*%c", spec->alternate ? "#" : "", type);
        snprintf(body, room, form, spec->precision < 0 ? 6 : spec->precision, size);
    }
    bool minus = signbit(f) && !isnan(f);
    if (minus && spec->positive && isfinite(f) && !strpbrk(body, "123456789"))
        minus = false;
    t->sign[0] = minus ? '-' : spec->sign == '-' ? 0 : spec->sign;
    if (spec->type == '%')
        strcat(body, "%");
    t->body = body;
    t->n = strlen(body);
    t->n_digits = strspn(body, "0123456789");
    return true;
}

/* ---- text ----------------------------------------------------------------------------------- */

/* repr() with escapes for what is not ASCII. */
static qn__jinja_value ascii_of(qn__jinja_run *r, const qn__jinja_str *s)
{
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    for (size_t i = 0, k; i < s->n && !r->failed; i += k) {
        uint32_t c = (unsigned char)s->data[i];
        char text[12];
        k = c < 0x80 ? 1 : qn__utf8_decode(s->data + i, s->n - i, &c);
        k = k ? k : 1;
        if (c < 0x80) {
            qn__jinja_build_str(&b, s, i, i + 1);
            continue;
        }
        snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        qn__jinja_build(&b, text, strlen(text), qn__jinja_str_from_data(s, i));
    }
    return qn__jinja_builder_end(&b);
}

/* str(), repr() or ascii() of a value, as 's', 'r' or 'a' says. */
static qn__jinja_value converted(qn__jinja_run *r, qn__jinja_value v, char how)
{
    qn__jinja_builder b;
    if (how == 's')
        return qn__jinja_to_str(r, v);
    qn__jinja_builder_begin(&b, r);
    qn__jinja_build_repr(&b, v);
    v = qn__jinja_builder_end(&b);
    return how == 'a' && v.kind == QN__JINJA_STRING ? ascii_of(r, v.s) : v;
}

static bool build_text_spec(qn__jinja_builder *b, qn__jinja_value v, const format_spec *spec,
                            char align)
{
    if (v.kind == QN__JINJA_STRING && spec->precision >= 0)
        v = qn__jinja_substring(b->run, v.s, 0,
                                qn__jinja_str_offset(v.s, 0, (size_t)spec->precision));
    return v.kind == QN__JINJA_STRING && build_padded(b, v.s, spec, align);
}

/* ---- format % args -------------------------------------------------------------------------- */

/* What '%' formats: a tuple's items in order, one value, or a mapping's. */
typedef struct percent_args {
    qn__jinja_value all;
    size_t n, used;
    bool is_mapping;
} percent_args;

static bool next_arg(qn__jinja_run *r, percent_args *a, qn__jinja_value *v)
{
    if (a->used >= a->n)
        return qn__jinja_run_fail(r, "not enough arguments for format string"), false;
    *v = a->all.kind == QN__JINJA_TUPLE ? a->all.seq->items[a->used] : a->all;
    a->used++;
    return true;
}

/* A width or precision: digits, or an argument for "*". The place behind it, 0 on failure. */
static size_t read_count(qn__jinja_run *r, const qn__jinja_str *s, size_t i, percent_args *a,
                         int *out)
{
    int64_t n = 0;
    qn__jinja_value v;
    if (i < s->n && s->data[i] == '*' && a) {
        if (!next_arg(r, a, &v))
            return 0;
        if (!qn__jinja_as_int(v, &n))
            return qn__jinja_run_fail(r, "* wants int"), 0;
        i++;
    } else {
        for (; i < s->n && s->data[i] >= '0' && s->data[i] <= '9'; i++)
            n = n <= WIDEST_FORMAT ? n * 10 + (s->data[i] - '0') : n;
    }
    if (n > WIDEST_FORMAT || n < -WIDEST_FORMAT)
        return qn__jinja_run_limit(r, "a format is wider than %d", WIDEST_FORMAT), 0;
    *out = (int)n;
    return i;
}

/* "(name)" at s[i]: the mapping's value; the place behind it, 0 on failure. */
static size_t read_key(qn__jinja_run *r, const qn__jinja_str *s, size_t i, percent_args *a,
                       qn__jinja_value mapping)
{
    size_t from = i + 1, depth = 1, end = from;
    if (!a->is_mapping)
        return qn__jinja_run_fail(r, "format requires a mapping"), 0;
    for (; end < s->n && depth > 0; end++)
        depth += (s->data[end] == '(') - (s->data[end] == ')');
    if (depth > 0)
        return qn__jinja_run_fail(r, "incomplete format key"), 0;
    qn__jinja_value key = qn__jinja_substring(r, s, from, end - 1);
    if (key.kind != QN__JINJA_STRING || mapping.kind != QN__JINJA_DICT)
        return qn__jinja_run_fail(r, "format: the key is no index"), 0;
    const qn__jinja_entry *entry = qn__jinja_dict_find(r, mapping.dict, key);
    if (!entry)
        return qn__jinja_run_fail(r, "format: the mapping lacks a key"), 0;
    *a = (percent_args){.all = entry->value, .n = 1, .is_mapping = true};
    if (entry->value.kind == QN__JINJA_TUPLE) { /* one value, not a tuple's items */
        qn__jinja_value *one = qn__jinja_run_alloc(r, sizeof *one);
        if (!one)
            return 0;
        *one = entry->value;
        a->all = qn__jinja_seq_new(r, QN__JINJA_TUPLE, one, 1);
    }
    return r->failed ? 0 : end;
}

static bool build_percent_number(qn__jinja_builder *b, qn__jinja_value v, format_spec *spec)
{
    qn__jinja_run *r = b->run;
    formatted_number t = {.n = 0};
    int64_t i;
    double f;
    bool is_int = strchr("diuxXo", spec->type) != NULL;
    if (!qn__jinja_as_double(v, &f)) {
        qn__jinja_refuse_undefined(r, v);
        return qn__jinja_run_fail(r, "%%%c format: a real number is required, not %s", spec->type,
                                  qn__jinja_type_name(v)),
               false;
    }
    if (!is_int)
        return float_text(r, f, spec, &t) && build_number_text(b, &t, spec);
    if (!qn__jinja_as_int(v, &i)) {
        if (strchr("xXo", spec->type))
            return qn__jinja_run_fail(r, "%%%c format: an integer is required, not float",
                                      spec->type),
                   false;
        if (!(fabs(f) < 9.2e18))
            return qn__jinja_run_limit(r, "an integer does not fit 64 bits"), false;
        i = (int64_t)f;
    }
    return integer_text(r, i, spec, spec->precision > 0 ? (size_t)spec->precision : 0, &t) &&
           build_number_text(b, &t, spec);
}

static bool build_percent_char(qn__jinja_builder *b, qn__jinja_value v, const format_spec *spec)
{
    int64_t i;
    char bytes[4];
    qn__jinja_str s = {.data = bytes};
    if (v.kind == QN__JINJA_STRING && qn__jinja_length_of(v.s) == 1)
        return build_padded(b, v.s, spec, spec->align);
    if (!qn__jinja_as_int(v, &i))
        return qn__jinja_run_fail(b->run, "%%c requires int or char"), false;
    if (i < 0 || i > 0x10ffff || (i >= 0xd800 && i < 0xe000))
        return qn__jinja_run_fail(b->run, "%%c arg is no character"), false;
    s.n = qn__utf8_encode((uint32_t)i, bytes);
    return build_padded(b, &s, spec, spec->align);
}

/* One "%..." behind the percent sign at s[i]; returns the place behind it, 0 on failure. */
static size_t format_one(qn__jinja_builder *b, const qn__jinja_str *s, size_t i, percent_args *a,
                         qn__jinja_value mapping)
{
    qn__jinja_run *r = b->run;
    format_spec spec = {.fill = one_space, .align = '>', .precision = -1};
    qn__jinja_value v;
    bool zero = false;
    if (i < s->n && s->data[i] == '%')
        return qn__jinja_build_text(b, "%") ? i + 1 : 0;
    if (!qn__jinja_run_spend(r, FORMAT_STEPS) ||
        (i < s->n && s->data[i] == '(' && !(i = read_key(r, s, i, a, mapping))))
        return 0;
    for (; i < s->n && s->data[i] && strchr("-0+ #", s->data[i]); i++) {
        char c = s->data[i];
        spec.align = c == '-' ? '<' : spec.align;
        spec.sign = c == '+' || (c == ' ' && !spec.sign) ? c : spec.sign;
        spec.alternate |= c == '#';
        zero |= c == '0';
    }
    if (!(i = read_count(r, s, i, a, &spec.width)))
        return 0;
    if (spec.width < 0) {
        spec.align = '<';
        spec.width = -spec.width;
    }
    if (i < s->n && s->data[i] == '.') {
        if (!(i = read_count(r, s, i + 1, a, &spec.precision)))
            return 0;
        spec.precision = spec.precision < 0 ? 0 : spec.precision;
    }
    if (i < s->n && s->data[i] && strchr("hlL", s->data[i]))
        i++;
    if (i >= s->n)
        return qn__jinja_run_fail(r, "incomplete format"), 0;
    spec.type = s->data[i];
    if (!spec.type || !strchr("csradiuxXofFeEgG", spec.type))
        return qn__jinja_run_fail(r, "unsupported format character 0x%02x",
                                  (unsigned char)spec.type),
               0;
    if (!next_arg(r, a, &v))
        return 0;
    if (strchr("sra", spec.type))
        return build_text_spec(b, converted(r, v, spec.type), &spec, spec.align) ? i + 1 : 0;
    if (spec.type == 'c')
        return build_percent_char(b, v, &spec) ? i + 1 : 0;
    if (zero && spec.align != '<') {
        spec.fill = one_zero;
        spec.align = '=';
    }
    return build_percent_number(b, v, &spec) ? i + 1 : 0;
}

qn__jinja_value qn__jinja_format_percent(qn__jinja_run *r, const qn__jinja_str *s,
                                         qn__jinja_value args)
{
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    bool tuple = args.kind == QN__JINJA_TUPLE;
    percent_args a = {.all = args, .n = tuple ? args.seq->n : 1};
    a.is_mapping =
        args.kind == QN__JINJA_DICT || args.kind == QN__JINJA_LIST || args.kind == QN__JINJA_RANGE;
    size_t at = 0;
    while (at < s->n && !r->failed) {
        const char *hit = memchr(s->data + at, '%', s->n - at);
        size_t place = hit ? (size_t)(hit - s->data) : s->n;
        qn__jinja_build_str(&b, s, at, place);
        at = hit ? format_one(&b, s, place + 1, &a, args) : s->n;
        if (!at && hit)
            break;
    }
    if (!r->failed && a.used < a.n && !a.is_mapping)
        return qn__jinja_run_fail(r, "not all arguments converted during string formatting");
    return qn__jinja_builder_end(&b);
}

/* ---- format.format(args) -------------------------------------------------------------------- */

/* The text behind a field's colon. */
static bool read_spec(qn__jinja_run *r, const qn__jinja_str *s, bool number, format_spec *spec)
{
    size_t i = 0, k = s->n ? qn__jinja_str_offset(s, 0, 1) : 0;
    bool filled = k > 0 && k < s->n && s->data[k] && strchr("<>^=", s->data[k]);
    *spec = (format_spec){.fill = one_space, .precision = -1};
    if (filled) {
        spec->fill = (qn__jinja_str){.data = s->data, .n = k};
        i = k;
    }
#define AT(letters) (i < s->n && s->data[i] && strchr(letters, s->data[i]))
    if (AT("<>^="))
        spec->align = s->data[i++];
    if (AT("+- ")) {
        spec->sign = s->data[i];
        if (!number)
            return qn__jinja_run_fail(r, "Sign not allowed in string format specifier"), false;
        i++;
    }
    if (AT("z"))
        spec->positive = s->data[i++];
    if (AT("#"))
        spec->alternate = s->data[i++];
    if (!filled && AT("0")) {
        spec->fill = one_zero;
        spec->align = spec->align ? spec->align : number ? '=' : 0;
        i++;
    }
    if (AT("0123456789") && !(i = read_count(r, s, i, NULL, &spec->width)))
        return false;
    if (AT(",_"))
        spec->grouping = s->data[i++];
    if (AT(".")) {
        i++;
        if (!AT("0123456789"))
            return qn__jinja_run_fail(r, "Format specifier missing precision"), false;
        if (!(i = read_count(r, s, i, NULL, &spec->precision)))
            return false;
    }
#undef AT
    if (i < s->n)
        spec->type = s->data[i++];
    if (i < s->n)
        return qn__jinja_run_fail(r, "Invalid format specifier"), false;
    return true;
}

static bool unknown_code(qn__jinja_run *r, const format_spec *spec, qn__jinja_value v)
{
    qn__jinja_run_fail(
        r, "Unknown format code 0x%02x for an object of type '%s', or not with its options",
        (unsigned char)spec->type, qn__jinja_type_name(v));
    return false;
}

static bool build_integer_spec(qn__jinja_builder *b, qn__jinja_value v, int64_t i,
                               format_spec *spec)
{
    qn__jinja_run *r = b->run;
    formatted_number t = {.n = 0};
    char bytes[4];
    spec->type = spec->type ? spec->type : 'd';
    if (!strchr("bcdoxXn", spec->type) || spec->precision >= 0 || spec->positive)
        return unknown_code(r, spec, v);
    if (spec->grouping &&
        (strchr("cn", spec->type) || (spec->grouping == ',' && spec->type != 'd')))
        return unknown_code(r, spec, v);
    if (spec->type != 'c')
        return integer_text(r, i, spec, 0, &t) && build_number_text(b, &t, spec);
    if (spec->sign || spec->alternate || i < 0 || i > 0x10ffff || (i >= 0xd800 && i < 0xe000))
        return unknown_code(r, spec, v);
    t.body = bytes;
    t.n = qn__utf8_encode((uint32_t)i, bytes);
    return build_padded(b, &(qn__jinja_str){.data = bytes, .n = t.n}, spec,
                        spec->align ? spec->align : '>');
}

static bool build_number_spec(qn__jinja_builder *b, qn__jinja_value v, format_spec *spec)
{
    formatted_number t = {.n = 0};
    int64_t i;
    double f = 0;
    qn__jinja_as_double(v, &f);
    bool as_float = spec->type && strchr("eEfFgG%", spec->type);
    if (qn__jinja_as_int(v, &i) && !as_float)
        return build_integer_spec(b, v, i, spec);
    if ((spec->type && !as_float && spec->type != 'n') || (spec->type == 'n' && spec->grouping))
        return unknown_code(b->run, spec, v);
    return float_text(b->run, f, spec, &t) && build_number_text(b, &t, spec);
}

/* format(v, text) */
static bool build_formatted(qn__jinja_builder *b, qn__jinja_value v, const qn__jinja_str *text)
{
    qn__jinja_run *r = b->run;
    format_spec spec;
    bool number = v.kind >= QN__JINJA_BOOL && v.kind <= QN__JINJA_FLOAT;
    if (text->n == 0)
        return qn__jinja_build_value(b, v);
    if (!number && v.kind != QN__JINJA_STRING) {
        qn__jinja_run_fail(r, "unsupported format string passed to %s.__format__",
                           qn__jinja_type_name(v));
        return false;
    }
    if (!read_spec(r, text, number, &spec))
        return false;
    if (number)
        return build_number_spec(b, v, &spec);
    if ((spec.type && spec.type != 's') || spec.align == '=' || spec.alternate || spec.grouping ||
        spec.positive)
        return unknown_code(r, &spec, v);
    return build_text_spec(b, v, &spec, spec.align ? spec.align : '<');
}

typedef struct braces {
    const qn__jinja_call *call;
    size_t next;         /* the argument of the next {} */
    bool counted, named; /* {} was there; {0} was there */
} braces;

static bool all_digits(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    return n > 0 && i == n;
}

/* A number of a field's name; one that is too long is none that there is. */
static int64_t index_of(const char *s, size_t n)
{
    int64_t i = 0;
    for (size_t k = 0; k < n; k++)
        i = i < INT32_MAX ? i * 10 + (s[k] - '0') : i;
    return i;
}

/* The argument that a field's name begins with, and then its attributes and items. */
static qn__jinja_value field_value(qn__jinja_run *r, const qn__jinja_str *name, braces *f)
{
    size_t at = 0;
    while (at < name->n && name->data[at] != '.' && name->data[at] != '[')
        at++;
    qn__jinja_value v = {.kind = QN__JINJA_ABSENT};
    bool automatic = name->n == 0, whole = all_digits(name->data, name->n);
    if ((automatic && f->named) || (whole && f->counted))
        return qn__jinja_run_fail(r, "a format has both {} and {0}");
    f->counted |= automatic;
    f->named |= whole;
    if (automatic || all_digits(name->data, at)) {
        int64_t i = automatic ? (int64_t)f->next++ : index_of(name->data, at);
        if (i >= (int64_t)f->call->n)
            return qn__jinja_run_fail(r, "format: no positional argument %lld", (long long)i);
        v = f->call->args[i];
    }
    for (size_t k = 0; v.kind == QN__JINJA_ABSENT && k < f->call->n_named; k++)
        if (f->call->names[k]->n == at && memcmp(f->call->names[k]->data, name->data, at) == 0)
            v = f->call->named[k];
    if (v.kind == QN__JINJA_ABSENT)
        return qn__jinja_run_fail(r, "format: a field has no argument");
    while (at < name->n && !r->failed) {
        bool item = name->data[at] == '[';
        if (!item && name->data[at] != '.')
            return qn__jinja_run_fail(r,
                                      "Only '.' or '[' may follow ']' in format field specifier");
        size_t from = at + 1, end = from;
        while (end < name->n && (item ? name->data[end] != ']' : !strchr(".[", name->data[end])))
            end++;
        if (end == from || (item && end == name->n))
            return qn__jinja_run_fail(r, "Empty or unfinished attribute in format string");
        qn__jinja_value key = qn__jinja_substring(r, name, from, end);
        if (item && all_digits(name->data + from, end - from))
            key = qn__jinja_int(index_of(name->data + from, end - from));
        if (!r->failed && qn__jinja_run_spend(r, 1))
            v = item ? qn__jinja_item(r, v, key) : qn__jinja_attribute(r, v, key.s);
        at = end + item;
    }
    return r->failed ? qn__jinja_failed() : v;
}

static bool format_text(qn__jinja_builder *b, const qn__jinja_str *s, braces *f, int depth);

/* Where a field's name ends: at "}", ":" or "!", not within brackets. */
static size_t name_end(const qn__jinja_str *s, size_t i)
{
    for (; i < s->n && s->data[i] && !strchr("}:!{", s->data[i]); i++)
        if (s->data[i] == '[')
            while (i + 1 < s->n && s->data[i + 1] != ']')
                i++;
    return i;
}

/* One "{...}" that begins behind s[i]; returns the place behind it, 0 on failure. */
static size_t format_field(qn__jinja_builder *b, const qn__jinja_str *s, size_t i, braces *f,
                           int depth)
{
    qn__jinja_run *r = b->run;
    size_t end = name_end(s, i);
    char how = 0;
    if (end >= s->n || s->data[end] == '{' || !s->data[end])
        return qn__jinja_run_fail(r, "expected '}' before end of string"), 0;
    const qn__jinja_str name = {.data = s->data + i, .n = end - i};
    if (s->data[end] == '!') {
        how = end + 1 < s->n ? s->data[end + 1] : 0;
        end += 2;
        if (!how || !strchr("sra", how) || end >= s->n || !strchr(":}", s->data[end]))
            return qn__jinja_run_fail(r, "format: a conversion is not !s, !r or !a"), 0;
    }
    size_t from = end + (s->data[end] == ':'), level = 1;
    for (end = from; end < s->n; end++) {
        level += (s->data[end] == '{') - (s->data[end] == '}');
        if (level == 0)
            break;
    }
    if (end == s->n)
        return qn__jinja_run_fail(r, "unmatched '{' in format spec"), 0;
    qn__jinja_value v = field_value(r, &name, f), inner = qn__jinja_substring(r, s, from, end);
    if (how && !r->failed)
        v = converted(r, v, how);
    if (r->failed || !qn__jinja_run_spend(r, FORMAT_STEPS))
        return 0;
    qn__jinja_builder spec;
    qn__jinja_builder_begin(&spec, r);
    if (!format_text(&spec, inner.s, f, depth + 1))
        return 0;
    qn__jinja_value text = qn__jinja_builder_end(&spec);
    return text.kind == QN__JINJA_STRING && build_formatted(b, v, text.s) ? end + 1 : 0;
}

static bool format_text(qn__jinja_builder *b, const qn__jinja_str *s, braces *f, int depth)
{
    enum { MOST_NESTED = 2 };
    size_t start = 0;
    if (depth > MOST_NESTED)
        return qn__jinja_run_fail(b->run, "Max string recursion exceeded"), false;
    for (size_t i = 0; i < s->n && !b->run->failed;) {
        char c = s->data[i];
        if (c != '{' && c != '}') {
            i++;
            continue;
        }
        if (i + 1 < s->n && s->data[i + 1] == c) {
            qn__jinja_build_str(b, s, start, i + 1);
            start = i += 2;
            continue;
        }
        if (c == '}')
            return qn__jinja_run_fail(b->run, "Single '}' encountered in format string"), false;
        qn__jinja_build_str(b, s, start, i);
        if (!(i = format_field(b, s, i + 1, f, depth)))
            return false;
        start = i;
    }
    return !b->run->failed && qn__jinja_build_str(b, s, start, s->n);
}

qn__jinja_value qn__jinja_format_braces(qn__jinja_run *r, const qn__jinja_str *s,
                                        const qn__jinja_call *call)
{
    braces f = {.call = call};
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    if (qn__jinja_run_spend(r, s->n >> 5))
        format_text(&b, s, &f, 0);
    return qn__jinja_builder_end(&b);
}
