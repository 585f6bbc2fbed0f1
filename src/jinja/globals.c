/* SPDX-License-Identifier: Apache-2.0
 *
 * What chat templates find without defining it: range, dict, namespace, raise_exception,
 * strftime_now, cycler, joiner, lipsum; and the context, read from JSON.
 */
#include "jinja/jinja.h"

#include "base/json_scan.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- globals -------------------------------------------------------------------------------- */

static qn__jinja_value global_range(qn__jinja_run *r, qn__jinja_value self,
                                    const qn__jinja_call *call)
{
    int64_t part[3] = {0, 0, 1};
    qn__jinja_pile pile = {0};
    (void)self;
    if (call->n < 1 || call->n > 3 || call->n_named)
        return qn__jinja_run_fail(r, "range takes 1 to 3 arguments");
    for (size_t i = 0; i < call->n; i++)
        if (!qn__jinja_as_int(call->args[i], &part[call->n == 1 ? 1 : i])) {
            qn__jinja_refuse_undefined(r, call->args[i]);
            return qn__jinja_run_fail(r, "'%s' object cannot be interpreted as an integer",
                                      qn__jinja_type_name(call->args[i]));
        }
    if (part[2] == 0)
        return qn__jinja_run_fail(r, "range() arg 3 must not be zero");
    for (int64_t i = part[0]; part[2] > 0 ? i < part[1] : i > part[1];) {
        if (pile.n == QN__JINJA_LARGEST_RANGE)
            return qn__jinja_run_limit(r, "a range of more than %d numbers",
                                       QN__JINJA_LARGEST_RANGE);
        if (!qn__jinja_pile_push(r, &pile, qn__jinja_int(i)))
            return qn__jinja_failed();
        if (__builtin_add_overflow(i, part[2], &i))
            break;
    }
    return qn__jinja_seq_new(r, QN__JINJA_RANGE, pile.items, pile.n);
}

/* A dictionary from a mapping or pairs, and named arguments. */
static qn__jinja_value make_dict(qn__jinja_run *r, const qn__jinja_call *call)
{
    qn__jinja_dict *dict = qn__jinja_dict_new(r, call->n_named);
    qn__jinja_seq items, pair;
    if (call->n > 1)
        return qn__jinja_run_fail(r, "%s takes at most one positional argument", call->name);
    if (call->n == 1 && call->args[0].kind == QN__JINJA_DICT) {
        const qn__jinja_dict *from = call->args[0].dict;
        for (size_t i = 0; dict && i < from->n; i++)
            qn__jinja_dict_set(r, dict, from->entries[i].key, from->entries[i].value);
    } else if (call->n == 1) {
        if (!dict || !qn__jinja_items_of(r, call->args[0], &items))
            return qn__jinja_failed();
        for (size_t i = 0; i < items.n && !r->failed; i++) {
            if (!qn__jinja_items_of(r, items.items[i], &pair))
                return qn__jinja_failed();
            if (pair.n != 2)
                return qn__jinja_run_fail(r, "%s takes pairs", call->name);
            qn__jinja_dict_set(r, dict, pair.items[0], pair.items[1]);
        }
    }
    for (size_t i = 0; dict && i < call->n_named; i++)
        qn__jinja_dict_set(r, dict, qn__jinja_str_value(call->names[i]), call->named[i]);
    return r->failed ? qn__jinja_failed() : qn__jinja_dict_value(dict);
}

static qn__jinja_value global_dict(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)self;
    return make_dict(r, call);
}

static qn__jinja_value global_namespace(qn__jinja_run *r, qn__jinja_value self,
                                        const qn__jinja_call *call)
{
    qn__jinja_value v = make_dict(r, call);
    (void)self;
    if (v.kind == QN__JINJA_DICT)
        v.kind = QN__JINJA_NAMESPACE;
    return v;
}

static qn__jinja_value global_raise(qn__jinja_run *r, qn__jinja_value self,
                                    const qn__jinja_call *call)
{
    (void)self;
    if (call->n + call->n_named != 1)
        return qn__jinja_run_fail(r, "raise_exception takes one argument");
    qn__jinja_value text = qn__jinja_to_str(r, call->n ? call->args[0] : call->named[0]);
    char message[320];
    if (text.kind != QN__JINJA_STRING)
        return text;
    return qn__jinja_run_fail(r, "%s",
                              qn__utf8_quote(message, sizeof message, text.s->data, text.s->n));
}

static qn__jinja_value global_strftime(qn__jinja_run *r, qn__jinja_value self,
                                       const qn__jinja_call *call)
{
    qn__jinja_value format = call->n == 1         ? call->args[0]
                             : call->n_named == 1 ? call->named[0]
                                                  : qn__jinja_none();
    qn__jinja_builder b;
    (void)self;
    if (format.kind != QN__JINJA_STRING)
        return qn__jinja_run_fail(r, "strftime_now takes a format string");
    qn__jinja_builder_begin(&b, r);
    qn__jinja_build_time(&b, format.s, r->now);
    return qn__jinja_builder_end(&b);
}

static qn__jinja_value make_cycler(qn__jinja_run *r, qn__jinja_value_kind kind,
                                   const qn__jinja_value *values, size_t n)
{
    qn__jinja_cycler *cycler = qn__jinja_run_alloc(r, sizeof *cycler);
    if (!cycler)
        return qn__jinja_failed();
    *cycler = (qn__jinja_cycler){.values = {values, n}};
    return (qn__jinja_value){.kind = kind, .cycler = cycler};
}

static qn__jinja_value global_cycler(qn__jinja_run *r, qn__jinja_value self,
                                     const qn__jinja_call *call)
{
    (void)self;
    if (call->n == 0)
        return qn__jinja_run_fail(r, "at least one item has to be provided");
    return make_cycler(r, QN__JINJA_CYCLER, call->args, call->n);
}

static qn__jinja_value global_joiner(qn__jinja_run *r, qn__jinja_value self,
                                     const qn__jinja_call *call)
{
    qn__jinja_value *separator = qn__jinja_run_alloc(r, sizeof *separator);
    (void)self;
    if (!separator)
        return qn__jinja_failed();
    *separator = call->n ? call->args[0] : call->n_named ? call->named[0] : qn__jinja_text(r, ", ");
    return make_cycler(r, QN__JINJA_JOINER, separator, 1);
}

static qn__jinja_value cycler_next(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)r, (void)call;
    qn__jinja_value v = self.cycler->values.items[self.cycler->at];
    self.cycler->at = (self.cycler->at + 1) % self.cycler->values.n;
    return v;
}

static qn__jinja_value cycler_reset(qn__jinja_run *r, qn__jinja_value self,
                                    const qn__jinja_call *call)
{
    (void)r, (void)call;
    self.cycler->at = 0;
    return qn__jinja_none();
}

qn__jinja_value qn__jinja_cycler_attribute(qn__jinja_run *r, qn__jinja_value v,
                                           const qn__jinja_str *name)
{
    static const qn__jinja_named_function methods[] = {{"next", cycler_next},
                                                       {"reset", cycler_reset}};
    const qn__jinja_cycler *c = v.cycler;
    bool joins = v.kind == QN__JINJA_JOINER;
    if (joins && qn__jinja_str_is(name, "sep"))
        return c->values.items[0];
    if (joins && qn__jinja_str_is(name, "used"))
        return qn__jinja_bool(c->at > 0);
    if (!joins && qn__jinja_str_is(name, "current"))
        return c->values.items[c->at];
    if (!joins && qn__jinja_str_is(name, "items"))
        return qn__jinja_seq_new(r, QN__JINJA_TUPLE, c->values.items, c->values.n);
    if (!joins && qn__jinja_str_is(name, "pos"))
        return qn__jinja_int((int64_t)c->at);
    const qn__jinja_named_function *found = joins ? NULL : qn__jinja_named_find(methods, 2, name);
    return found ? qn__jinja_method_of(r, found, v) : (qn__jinja_value){.kind = QN__JINJA_ABSENT};
}

/* It is there, but what it gives is different each time. */
static qn__jinja_value global_lipsum(qn__jinja_run *r, qn__jinja_value self,
                                     const qn__jinja_call *call)
{
    (void)self, (void)call;
    return qn__jinja_run_fail(r, "the function lipsum is not supported: it makes text at random");
}

static const qn__jinja_named_function globals[] = {
    {"range", global_range},           {"dict", global_dict},     {"namespace", global_namespace},
    {"raise_exception", global_raise}, {"cycler", global_cycler}, {"strftime_now", global_strftime},
    {"joiner", global_joiner},         {"lipsum", global_lipsum},
};

const qn__jinja_named_function *qn__jinja_global_find(const qn__jinja_str *name)
{
    return qn__jinja_named_find(globals, sizeof globals / sizeof *globals, name);
}

/* ---- the time ------------------------------------------------------------------------------- */

typedef struct civil_time {
    int64_t year;
    int month, day, hour, minute, second, weekday, yearday; /* from 0 but for day; Sunday is 0 */
} civil_time;

/* The proleptic Gregorian calendar, in eras of 400 years that begin in March. */
static civil_time civil_from_seconds(int64_t seconds)
{
    int64_t days = seconds / 86400, rest = seconds % 86400;
    if (rest < 0) {
        rest += 86400;
        days--;
    }
    civil_time t = {
        .hour = (int)(rest / 3600), .minute = (int)(rest / 60 % 60), .second = (int)(rest % 60)};
    t.weekday = (int)(((days + 4) % 7 + 7) % 7);
    int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
    int64_t day = z - era * 146097;
    int64_t year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    int64_t in_year = day - (365 * year + year / 4 - year / 100), m = (5 * in_year + 2) / 153;
    t.day = (int)(in_year - (153 * m + 2) / 5 + 1);
    t.month = (int)(m < 10 ? m + 2 : m - 10);
    t.year = year + era * 400 + (t.month < 2);
    bool leap = (t.year % 4 == 0 && t.year % 100 != 0) || t.year % 400 == 0;
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    t.yearday = before[t.month] + (t.month > 1 && leap) + t.day - 1;
    return t;
}

static const char *const day_names[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday"};
static const char *const month_names[] = {"January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December"};

/* One conversion as text; false: not supported. `pad`: 0 for none, else the character. */
static bool convert_time(const civil_time *t, char what, char pad, char out[64])
{
    int hour12 = t->hour % 12 ? t->hour % 12 : 12;
    const struct {
        char what;
        int value, width;
    } numbers[] = {{'d', t->day, 2},
                   {'m', t->month + 1, 2},
                   {'H', t->hour, 2},
                   {'I', hour12, 2},
                   {'M', t->minute, 2},
                   {'S', t->second, 2},
                   {'j', t->yearday + 1, 3},
                   {'y', (int)(t->year % 100), 2},
                   {'w', t->weekday, 1},
                   {'u', t->weekday ? t->weekday : 7, 1},
                   {'U', (t->yearday + 7 - t->weekday) / 7, 2},
                   {'W', (t->yearday + 7 - (t->weekday + 6) % 7) / 7, 2},
                   {'f', 0, 6},
                   {'Y', (int)t->year, 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].what == what) {
            int width = pad ? numbers[i].width : 1;
            snprintf(out, 64, pad == ' ' ? "%*d" : "%0*d", width, numbers[i].value);
            return true;
        }
    switch (what) {
    case 'a':
    case 'A': snprintf(out, 64, "%.*s", what == 'a' ? 3 : 20, day_names[t->weekday]); return true;
    case 'b':
    case 'h':
    case 'B': snprintf(out, 64, "%.*s", what == 'B' ? 20 : 3, month_names[t->month]); return true;
    case 'p': snprintf(out, 64, "%s", t->hour < 12 ? "AM" : "PM"); return true;
    case 'e': snprintf(out, 64, "%2d", t->day); return true;
    case 'F':
        snprintf(out, 64, "%lld-%02d-%02d", (long long)t->year, t->month + 1, t->day);
        return true;
    case 'T':
    case 'X': snprintf(out, 64, "%02d:%02d:%02d", t->hour, t->minute, t->second); return true;
    case 'R': snprintf(out, 64, "%02d:%02d", t->hour, t->minute); return true;
    case 'D':
    case 'x':
        snprintf(out, 64, "%02d/%02d/%02d", t->month + 1, t->day, (int)(t->year % 100));
        return true;
    case 'c':
        snprintf(out, 64, "%.3s %.3s %2d %02d:%02d:%02d %lld", day_names[t->weekday],
                 month_names[t->month], t->day, t->hour, t->minute, t->second, (long long)t->year);
        return true;
    case 'Z':
    case 'z':
        out[0] = 0; /* datetime.now() knows no zone */
        return true;
    case '%': snprintf(out, 64, "%%"); return true;
    default: return false;
    }
}

bool qn__jinja_build_time(qn__jinja_builder *b, const qn__jinja_str *format, int64_t seconds)
{
    civil_time t = civil_from_seconds(seconds);
    for (size_t i = 0; i < format->n && !b->run->failed; i++) {
        char pad = '0', text[64];
        if (format->data[i] != '%') {
            qn__jinja_build_str(b, format, i, i + 1);
            continue;
        }
        i++;
        if (i < format->n && (format->data[i] == '-' || format->data[i] == '_')) {
            pad = format->data[i] == '-' ? 0 : ' ';
            i++;
        }
        if (i >= format->n || !convert_time(&t, format->data[i], pad, text)) {
            qn__jinja_run_fail(b->run, "strftime_now: a conversion is not supported");
            return false;
        }
        qn__jinja_run_spend(b->run, 4);
        qn__jinja_build_text(b, text);
    }
    return !b->run->failed;
}

/* ---- the context ---------------------------------------------------------------------------- */

/* Where in the context a value stands, for roles. */
typedef enum context_place { AT_ROOT, AT_MESSAGES, AT_MESSAGE, AT_ROLE, ELSEWHERE } context_place;

/* Roles that templates spell control tokens with ('<|' + role + '|>'): names, not a person's text.
 */
static bool is_known_role(const qn__jinja_str *s)
{
    static const char *const roles[] = {"system",      "user",          "assistant",  "tool",
                                        "developer",   "function",      "model",      "ipython",
                                        "observation", "tool_response", "environment"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (qn__jinja_str_is(s, roles[i]))
            return true;
    return false;
}

static qn__jinja_value data_string(qn__jinja_run *r, const qn__json_text *text, bool data)
{
    char *copy = qn__jinja_run_alloc(r, text->size + 1);
    qn_span *span = data ? qn__jinja_run_alloc(r, sizeof *span) : NULL;
    if (!copy || (data && !span))
        return qn__jinja_failed();
    if (text->size)
        memcpy(copy, text->data, text->size);
    qn__jinja_value v = qn__jinja_string(r, copy, text->size);
    if (v.kind == QN__JINJA_STRING && data && text->size) {
        *span = (qn_span){0, text->size};
        ((qn__jinja_str *)v.s)->spans = span;
        ((qn__jinja_str *)v.s)->n_spans = 1;
    }
    return v;
}

static qn__jinja_value read_number(qn__json_scan *scan)
{
    qn__json_text span;
    char text[QN__JSON_MAX_NUMBER + 1];
    if (!qn__json_skip(scan, &span) || span.size >= sizeof text)
        return qn__jinja_failed();
    memcpy(text, span.data, span.size);
    text[span.size] = 0;
    errno = 0;
    if (strpbrk(text, ".eE"))
        return qn__jinja_float(strtod(text, NULL));
    int64_t i = strtoll(text, NULL, 10);
    if (errno) {
        qn__json_scan_fail(scan, QN_LIMIT, "the integer does not fit 64 bits");
        return qn__jinja_failed();
    }
    return qn__jinja_int(i);
}

static qn__jinja_value read_value(qn__jinja_run *r, qn__json_scan *scan, bool data,
                                  context_place place);

static qn__jinja_value read_object(qn__jinja_run *r, qn__json_scan *scan, bool data,
                                   context_place place)
{
    qn__jinja_dict *dict = qn__jinja_dict_new(r, 0);
    qn__json_text key;
    if (!dict || !qn__json_enter_object(scan))
        return qn__jinja_failed();
    while (qn__json_next_key(scan, &key)) {
        qn__jinja_value name = data_string(r, &key, data);
        if (name.kind == QN__JINJA_FAILED)
            return name;
        if (qn__jinja_dict_find(r, dict, name)) {
            qn__json_scan_fail(scan, QN_FORMAT, "the key stands twice");
            return qn__jinja_failed();
        }
        context_place inner = place == AT_ROOT && qn__jinja_str_is(name.s, "messages") ? AT_MESSAGES
                              : place == AT_MESSAGE && qn__jinja_str_is(name.s, "role") ? AT_ROLE
                                                                                        : ELSEWHERE;
        qn__jinja_value value = read_value(r, scan, data, inner);
        if (place == AT_MESSAGE && r->drop_nulls && value.kind == QN__JINJA_NONE)
            continue;
        if (!qn__jinja_dict_set(r, dict, name, value))
            return qn__jinja_failed();
    }
    return qn__jinja_dict_value(dict);
}

static qn__jinja_value read_value(qn__jinja_run *r, qn__json_scan *scan, bool data,
                                  context_place place)
{
    qn__json_text text;
    bool truth;
    qn__jinja_pile pile = {0};
    qn__jinja_value v;
    switch (qn__json_peek(scan)) {
    case QN__JSON_NULL: return qn__json_skip(scan, NULL) ? qn__jinja_none() : qn__jinja_failed();
    case QN__JSON_TRUE:
    case QN__JSON_FALSE:
        return qn__json_read_bool(scan, &truth) ? qn__jinja_bool(truth) : qn__jinja_failed();
    case QN__JSON_NUMBER: return read_number(scan);
    case QN__JSON_STRING:
        if (!qn__json_read_string(scan, &text))
            return qn__jinja_failed();
        if (place == AT_ROLE && is_known_role(&(qn__jinja_str){.data = text.data, .n = text.size}))
            data = false;
        return data_string(r, &text, data);
    case QN__JSON_OBJECT: return read_object(r, scan, data, place);
    case QN__JSON_ARRAY:
        if (!qn__json_enter_array(scan))
            return qn__jinja_failed();
        while (qn__json_next_item(scan)) {
            v = read_value(r, scan, data, place == AT_MESSAGES ? AT_MESSAGE : ELSEWHERE);
            if (!qn__jinja_pile_push(r, &pile, v))
                return qn__jinja_failed();
        }
        return qn__jinja_seq_new(r, QN__JINJA_LIST, pile.items, pile.n);
    default: return qn__jinja_failed();
    }
}

qn__jinja_value qn__jinja_json_value(qn__jinja_run *r, const char *file, const char *json, size_t n,
                                     bool data)
{
    qn__json_scan scan;
    qn__json_scan_begin(&scan, file, json, n, r->err);
    scan.allow_nul = true;
    qn__jinja_value v = read_value(r, &scan, data, AT_ROOT);
    if (qn__json_scan_end(&scan) != QN_OK || v.kind == QN__JINJA_FAILED)
        r->failed = true;
    return r->failed ? qn__jinja_failed() : v;
}
