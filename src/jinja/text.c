/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of chat templates as text: the builder, str(), repr() and JSON as Python writes them.
 * The builder carries along which bytes came from the context's data; punctuation, numbers and
 * names of types never do.
 */
#include "jinja/jinja.h"

#include "base/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the builder ---------------------------------------------------------------------------- */

void qn__jinja_builder_begin(qn__jinja_builder *b, qn__jinja_run *r)
{
    *b = (qn__jinja_builder){.run = r};
}

/* Whether the text is the newest thing in the arena, so that it can grow where it is. */
static bool is_newest(const qn__jinja_builder *b)
{
    return b->data && b->data + b->capacity == b->run->arena.next;
}

static bool builder_grow(qn__jinja_builder *b, size_t n)
{
    qn__jinja_run *r = b->run;
    if (n > r->output || b->n > r->output - n) {
        qn__jinja_run_limit(r, "makes more than %zu MiB of text", r->output >> 20);
        return false;
    }
    size_t wanted = b->capacity ? b->capacity * 2 : 64;
    while (wanted < b->n + n)
        wanted *= 2;
    size_t more = wanted - b->capacity;
    if (is_newest(b) && (size_t)(r->arena.end - r->arena.next) >= more) {
        r->arena.next += more;
        r->asked += more;
    } else {
        char *grown = qn__jinja_run_alloc(r, wanted);
        if (!grown)
            return false;
        if (b->n)
            memcpy(grown, b->data, b->n);
        b->data = grown;
    }
    b->capacity = wanted;
    return true;
}

static bool add_span(qn__jinja_builder *b, size_t begin, size_t end)
{
    if (begin == end)
        return true;
    if (b->n_spans && b->spans[b->n_spans - 1].end == begin) {
        b->spans[b->n_spans - 1].end = end;
        return true;
    }
    if (b->n_spans == b->spans_capacity) {
        size_t wanted = b->spans_capacity ? b->spans_capacity * 2 : 4;
        qn_span *grown = qn__jinja_run_alloc(b->run, wanted * sizeof *grown);
        if (!grown)
            return false;
        if (b->n_spans)
            memcpy(grown, b->spans, b->n_spans * sizeof *grown);
        b->spans = grown;
        b->spans_capacity = wanted;
    }
    b->spans[b->n_spans++] = (qn_span){begin, end};
    return true;
}

bool qn__jinja_build(qn__jinja_builder *b, const char *data, size_t n, bool is_data)
{
    if (!qn__jinja_run_spend(b->run, 1 + (n >> 6)) ||
        (n > b->capacity - b->n && !builder_grow(b, n)))
        return false;
    if (n > 0)
        memcpy(b->data + b->n, data, n);
    b->n += n;
    return !is_data || add_span(b, b->n - n, b->n);
}

bool qn__jinja_build_text(qn__jinja_builder *b, const char *text)
{
    return qn__jinja_build(b, text, strlen(text), false);
}

bool qn__jinja_build_str(qn__jinja_builder *b, const qn__jinja_str *s, size_t from, size_t to)
{
    size_t at = b->n;
    if (!qn__jinja_build(b, s->data + from, to - from, false))
        return false;
    for (size_t i = qn__jinja_str_span(s, from); i < s->n_spans && s->spans[i].begin < to; i++) {
        size_t begin = s->spans[i].begin > from ? s->spans[i].begin : from;
        size_t end = s->spans[i].end < to ? s->spans[i].end : to;
        if (begin < end && !add_span(b, at + begin - from, at + end - from))
            return false;
    }
    return true;
}

qn__jinja_value qn__jinja_builder_end(qn__jinja_builder *b)
{
    qn__jinja_run *r = b->run;
    if (r->failed)
        return qn__jinja_failed();
    if (is_newest(b)) { /* what was not used goes back */
        size_t used = (b->n + 15) & ~(size_t)15;
        r->arena.next = b->data + used;
        r->asked -= b->capacity - used;
    }
    qn__jinja_str *s = qn__jinja_run_alloc(r, sizeof *s);
    if (!s)
        return qn__jinja_failed();
    *s = (qn__jinja_str){
        .data = b->data ? b->data : "", .n = b->n, .spans = b->spans, .n_spans = b->n_spans};
    return qn__jinja_str_value(s);
}

size_t qn__jinja_str_span(const qn__jinja_str *s, size_t at)
{
    size_t low = 0, high = s->n_spans;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->spans[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool qn__jinja_str_from_data(const qn__jinja_str *s, size_t at)
{
    size_t i = qn__jinja_str_span(s, at);
    return i < s->n_spans && s->spans[i].begin <= at;
}

bool qn__jinja_build_escaped(qn__jinja_builder *b, const qn__jinja_str *s)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t start = 0;
    if (!qn__jinja_run_spend(b->run, s->n >> 3))
        return false;
    for (size_t i = 0; i < s->n; i++) {
        const char *hit = s->data[i] ? strchr(from, s->data[i]) : NULL;
        if (!hit)
            continue;
        const char *text = to[hit - from];
        if (!qn__jinja_build_str(b, s, start, i) ||
            !qn__jinja_build(b, text, strlen(text), qn__jinja_str_from_data(s, i)))
            return false;
        start = i + 1;
    }
    return qn__jinja_build_str(b, s, start, s->n);
}

/* ---- numbers -------------------------------------------------------------------------------- */

size_t qn__jinja_double_repr(double f, char out[40])
{
    char text[40], digits[24];
    if (!isfinite(f))
        return (size_t)snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    for (int precision = 14; precision <= 16; precision++) { /* fewer digits are 15 with zeros */
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (strtod(text, NULL) == f)
            break;
    }
    size_t n = 0, used = 0;
    const char *e = strchr(text, 'e');
    for (const char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    int exponent = atoi(e + 1);
    if (text[0] == '-')
        out[used++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[used++] = digits[0];
        if (n > 1)
            out[used++] = '.';
        memcpy(out + used, digits + 1, n - 1);
        used += n - 1;
        return used + (size_t)snprintf(out + used, 40 - used, "e%c%02d", exponent < 0 ? '-' : '+',
                                       abs(exponent));
    }
    if (exponent < 0) {
        out[used++] = '0';
        out[used++] = '.';
        for (int i = -1; i > exponent; i--)
            out[used++] = '0';
    }
    for (int i = 0; i < (int)n || i <= exponent; i++) {
        if (i == exponent + 1 && exponent >= 0)
            out[used++] = '.';
        out[used++] = i < (int)n ? digits[i] : '0';
    }
    if (exponent >= 0 && (int)n <= exponent + 1) {
        out[used++] = '.';
        out[used++] = '0';
    }
    out[used] = 0;
    return used;
}

static bool build_number(qn__jinja_builder *b, qn__jinja_value v)
{
    enum { FLOAT_STEPS = 32 };
    char text[40];
    size_t n;
    if (v.kind == QN__JINJA_FLOAT && !qn__jinja_run_spend(b->run, FLOAT_STEPS))
        return false;
    if (v.kind == QN__JINJA_FLOAT)
        n = qn__jinja_double_repr(v.f, text);
    else
        n = (size_t)snprintf(text, sizeof text, "%lld", (long long)v.i);
    return qn__jinja_build(b, text, n, false);
}

/* ---- str and repr --------------------------------------------------------------------------- */

/* A character that repr() writes as an escape; short names first. */
static bool build_code(qn__jinja_builder *b, uint32_t c, bool is_data)
{
    char text[16];
    const char *name = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : NULL;
    if (name)
        snprintf(text, sizeof text, "%s", name);
    else
        snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    return qn__jinja_build(b, text, strlen(text), is_data);
}

static bool build_str_repr(qn__jinja_builder *b, const qn__jinja_str *s)
{
    const unsigned printable = QN__LETTER | QN__NUMBER | QN__MARK | QN__PUNCTUATION | QN__SYMBOL;
    bool single = s->n && memchr(s->data, '\'', s->n), twice = s->n && memchr(s->data, '"', s->n);
    char quote = single && !twice ? '"' : '\'';
    size_t start = 0, k;
    if (!qn__jinja_run_spend(b->run, s->n >> 3))
        return false;
    qn__jinja_build(b, &quote, 1, false);
    for (size_t i = 0; i < s->n; i += k) {
        unsigned class = qn__class_at(s->data, s->n, i, &k);
        char c = s->data[i];
        bool plain = (class & printable) || c == ' ';
        if (plain && c != '\\' && c != quote)
            continue;
        bool is_data = qn__jinja_str_from_data(s, i);
        uint32_t code = 0;
        qn__jinja_build_str(b, s, start, i);
        qn__utf8_decode(s->data + i, s->n - i, &code);
        if (c == '\\' || c == quote)
            qn__jinja_build(b, (const char[]){'\\', c}, 2, is_data);
        else
            build_code(b, code, is_data);
        start = i + k;
        if (b->run->failed)
            return false;
    }
    return qn__jinja_build_str(b, s, start, s->n) && qn__jinja_build(b, &quote, 1, false);
}

static bool build_seq_repr(qn__jinja_builder *b, qn__jinja_value v, const char *open,
                           const char *close)
{
    bool ok = qn__jinja_build_text(b, open);
    for (size_t i = 0; ok && i < v.seq->n; i++)
        ok = (i == 0 || qn__jinja_build_text(b, ", ")) && qn__jinja_build_repr(b, v.seq->items[i]);
    if (ok && v.kind == QN__JINJA_TUPLE && v.seq->n == 1)
        ok = qn__jinja_build_text(b, ",");
    return ok && qn__jinja_build_text(b, close);
}

static bool build_dict_repr(qn__jinja_builder *b, const qn__jinja_dict *dict)
{
    bool ok = qn__jinja_build_text(b, "{");
    for (size_t i = 0; ok && i < dict->n; i++)
        ok = (i == 0 || qn__jinja_build_text(b, ", ")) &&
             qn__jinja_build_repr(b, dict->entries[i].key) && qn__jinja_build_text(b, ": ") &&
             qn__jinja_build_repr(b, dict->entries[i].value);
    return ok && qn__jinja_build_text(b, "}");
}

static bool build_range_repr(qn__jinja_builder *b, const qn__jinja_seq *s)
{
    char text[100];
    long long first = s->n ? s->items[0].i : 0, step = s->n > 1 ? s->items[1].i - first : 1;
    long long stop = s->n ? s->items[s->n - 1].i + step : 0;
    if (step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", first, stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", first, stop, step);
    return qn__jinja_build_text(b, text);
}

static bool build_object(qn__jinja_builder *b, qn__jinja_value v)
{
    char text[80];
    if (v.kind == QN__JINJA_LOOP)
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.loop->at + 1, v.loop->items.n);
    else
        snprintf(text, sizeof text, "<%s object>", qn__jinja_type_name(v));
    return qn__jinja_build_text(b, text);
}

static bool build_nested(qn__jinja_builder *b, qn__jinja_value v)
{
    switch (v.kind) {
    case QN__JINJA_LIST: return build_seq_repr(b, v, "[", "]");
    case QN__JINJA_TUPLE: return build_seq_repr(b, v, "(", ")");
    case QN__JINJA_KEYS: return build_seq_repr(b, v, "dict_keys([", "])");
    case QN__JINJA_VALUES: return build_seq_repr(b, v, "dict_values([", "])");
    case QN__JINJA_ITEMS: return build_seq_repr(b, v, "dict_items([", "])");
    case QN__JINJA_DICT: return build_dict_repr(b, v.dict);
    default:
        return qn__jinja_build_text(b, "<Namespace ") && build_dict_repr(b, v.dict) &&
               qn__jinja_build_text(b, ">");
    }
}

bool qn__jinja_build_repr(qn__jinja_builder *b, qn__jinja_value v)
{
    qn__jinja_run *r = b->run;
    bool ok = qn__jinja_run_enter(r);
    switch (v.kind) {
    case QN__JINJA_UNDEFINED: ok = ok && qn__jinja_build_text(b, "Undefined"); break;
    case QN__JINJA_NONE: ok = ok && qn__jinja_build_text(b, "None"); break;
    case QN__JINJA_BOOL: ok = ok && qn__jinja_build_text(b, v.truth ? "True" : "False"); break;
    case QN__JINJA_INT:
    case QN__JINJA_FLOAT: ok = ok && build_number(b, v); break;
    case QN__JINJA_STRING:
        ok = ok && (!v.s->safe || qn__jinja_build_text(b, "Markup(")) && build_str_repr(b, v.s) &&
             (!v.s->safe || qn__jinja_build_text(b, ")"));
        break;
    case QN__JINJA_RANGE: ok = ok && build_range_repr(b, v.seq); break;
    case QN__JINJA_LIST:
    case QN__JINJA_TUPLE:
    case QN__JINJA_KEYS:
    case QN__JINJA_VALUES:
    case QN__JINJA_ITEMS:
    case QN__JINJA_DICT:
    case QN__JINJA_NAMESPACE: ok = ok && build_nested(b, v); break;
    default: ok = ok && build_object(b, v);
    }
    r->depth--;
    return ok && !r->failed;
}

bool qn__jinja_build_value(qn__jinja_builder *b, qn__jinja_value v)
{
    if (v.kind == QN__JINJA_STRING)
        return qn__jinja_build_str(b, v.s, 0, v.s->n);
    if (v.kind == QN__JINJA_UNDEFINED) {
        if (v.undefined->unsafe)
            qn__jinja_refuse_undefined(b->run, v);
        return !b->run->failed;
    }
    return v.kind != QN__JINJA_FAILED && qn__jinja_build_repr(b, v);
}

qn__jinja_value qn__jinja_to_str(qn__jinja_run *r, qn__jinja_value v)
{
    if (v.kind == QN__JINJA_STRING || v.kind == QN__JINJA_FAILED)
        return v;
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    qn__jinja_build_value(&b, v);
    return qn__jinja_builder_end(&b);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static bool build_json_code(qn__jinja_builder *b, uint32_t c, bool is_data)
{
    char text[16];
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *hit = c && c < 0x80 ? strchr(from, (int)c) : NULL;
    if (hit)
        snprintf(text, sizeof text, "\\%c", to[hit - from]);
    else if (c < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", c);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                 0xdc00 + ((c - 0x10000) & 0x3ff));
    return qn__jinja_build(b, text, strlen(text), is_data);
}

static bool build_json_string(qn__jinja_builder *b, const qn__jinja_str *s, bool ascii)
{
    size_t start = 0, k = 1;
    bool ok = qn__jinja_run_spend(b->run, s->n >> 4) && qn__jinja_build_text(b, "\"");
    for (size_t i = 0; ok && i < s->n; i += k) {
        unsigned char c = (unsigned char)s->data[i];
        k = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (!ascii || c < 0x7f))
            continue;
        uint32_t code = c;
        k = qn__utf8_decode(s->data + i, s->n - i, &code);
        k = k ? k : 1;
        ok = qn__jinja_build_str(b, s, start, i) &&
             build_json_code(b, code, qn__jinja_str_from_data(s, i));
        start = i + k;
    }
    return ok && qn__jinja_build_str(b, s, start, s->n) && qn__jinja_build_text(b, "\"");
}

static bool build_line(qn__jinja_builder *b, const qn__jinja_json_style *style, int level)
{
    bool ok = !style->pretty || qn__jinja_build_text(b, "\n");
    for (int i = 0; ok && style->pretty && i < level; i++)
        ok = qn__jinja_build_str(b, style->indent, 0, style->indent->n);
    return ok;
}

static bool build_json_key(qn__jinja_builder *b, qn__jinja_value key,
                           const qn__jinja_json_style *style)
{
    if (key.kind == QN__JINJA_STRING)
        return build_json_string(b, key.s, style->ascii);
    if (key.kind > QN__JINJA_FLOAT || key.kind < QN__JINJA_NONE) {
        qn__jinja_run_fail(b->run, "keys must be str, int, float, bool or None, not %s",
                           qn__jinja_type_name(key));
        return false;
    }
    return qn__jinja_build_text(b, "\"") && qn__jinja_build_json(b, key, style, 0) &&
           qn__jinja_build_text(b, "\"");
}

static int compare_entries(qn__jinja_run *r, const qn__jinja_entry *a, const qn__jinja_entry *b)
{
    return qn__jinja_order(r, a->key, b->key, "<");
}

/* The entries by key: a merge sort, since the comparison may fail. */
static const qn__jinja_entry *sorted_entries(qn__jinja_run *r, const qn__jinja_dict *dict)
{
    size_t n = dict->n;
    qn__jinja_entry *a = qn__jinja_run_alloc(r, 2 * n * sizeof *a), *b = a + n;
    if (!a)
        return NULL;
    memcpy(a, dict->entries, n * sizeof *a);
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t middle = low + width < n ? low + width : n;
            size_t high = low + 2 * width < n ? low + 2 * width : n, i = low, j = middle;
            for (size_t k = low; k < high; k++)
                b[k] = i < middle && (j == high || compare_entries(r, &a[i], &a[j]) <= 0) ? a[i++]
                                                                                          : a[j++];
        }
        qn__jinja_entry *swap = a;
        a = b;
        b = swap;
    }
    return r->failed ? NULL : a;
}

static bool build_json_dict(qn__jinja_builder *b, const qn__jinja_dict *dict,
                            const qn__jinja_json_style *style, int level)
{
    const qn__jinja_entry *entries = dict->entries;
    if (dict->n == 0)
        return qn__jinja_build_text(b, "{}");
    if (style->sort && !(entries = sorted_entries(b->run, dict)))
        return false;
    bool ok = qn__jinja_build_text(b, "{");
    for (size_t i = 0; ok && i < dict->n; i++)
        ok = (i == 0 || qn__jinja_build_str(b, style->item, 0, style->item->n)) &&
             build_line(b, style, level + 1) && build_json_key(b, entries[i].key, style) &&
             qn__jinja_build_str(b, style->key, 0, style->key->n) &&
             qn__jinja_build_json(b, entries[i].value, style, level + 1);
    return ok && build_line(b, style, level) && qn__jinja_build_text(b, "}");
}

static bool build_json_list(qn__jinja_builder *b, const qn__jinja_seq *seq,
                            const qn__jinja_json_style *style, int level)
{
    if (seq->n == 0)
        return qn__jinja_build_text(b, "[]");
    bool ok = qn__jinja_build_text(b, "[");
    for (size_t i = 0; ok && i < seq->n; i++)
        ok = (i == 0 || qn__jinja_build_str(b, style->item, 0, style->item->n)) &&
             build_line(b, style, level + 1) &&
             qn__jinja_build_json(b, seq->items[i], style, level + 1);
    return ok && build_line(b, style, level) && qn__jinja_build_text(b, "]");
}

bool qn__jinja_build_json(qn__jinja_builder *b, qn__jinja_value v,
                          const qn__jinja_json_style *style, int level)
{
    qn__jinja_run *r = b->run;
    bool ok = qn__jinja_run_enter(r);
    if (ok && (v.kind == QN__JINJA_NONE || v.kind == QN__JINJA_BOOL))
        ok = qn__jinja_build_text(b, v.kind == QN__JINJA_NONE ? "null"
                                     : v.truth                ? "true"
                                                              : "false");
    else if (ok && v.kind == QN__JINJA_FLOAT && !isfinite(v.f))
        ok = qn__jinja_build_text(b, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
    else if (ok && (v.kind == QN__JINJA_INT || v.kind == QN__JINJA_FLOAT))
        ok = build_number(b, v);
    else if (ok && v.kind == QN__JINJA_STRING)
        ok = build_json_string(b, v.s, style->ascii);
    else if (ok && (v.kind == QN__JINJA_LIST || v.kind == QN__JINJA_TUPLE))
        ok = build_json_list(b, v.seq, style, level);
    else if (ok && v.kind == QN__JINJA_DICT)
        ok = build_json_dict(b, v.dict, style, level);
    else if (ok)
        qn__jinja_run_fail(r, "Object of type %s is not JSON serializable", qn__jinja_type_name(v));
    r->depth--;
    return ok && !r->failed;
}
