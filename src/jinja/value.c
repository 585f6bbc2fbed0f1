/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of chat templates: making them, and the questions that Python would answer: truth,
 * equality, order, length, membership.
 */
#include "jinja/jinja.h"

#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- failing, allocating, spending ---------------------------------------------------------- */

/* The first failure counts. */
static qn__jinja_value run_stop(qn__jinja_run *r, qn_status code, const char *format, va_list args)
{
    char message[400];
    vsnprintf(message, sizeof message, format, args);
    if (!r->failed)
        qn__jinja_fail(r->err, code, r->source->name, r->line, "%s", message);
    r->failed = true;
    return qn__jinja_failed();
}

qn__jinja_value qn__jinja_run_fail(qn__jinja_run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    qn__jinja_value failed = run_stop(r, QN_FORMAT, format, args);
    va_end(args);
    return failed;
}

qn__jinja_value qn__jinja_run_limit(qn__jinja_run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    qn__jinja_value failed = run_stop(r, QN_LIMIT, format, args);
    va_end(args);
    return failed;
}

void *qn__jinja_run_alloc(qn__jinja_run *r, size_t size)
{
    if (r->failed)
        return NULL;
    if (size > r->memory || r->asked > r->memory - size) {
        qn__jinja_run_limit(r, "needs more than %zu MiB of memory", r->memory >> 20);
        return NULL;
    }
    r->asked += (size + 15) & ~(size_t)15;
    void *memory = qn__arena_alloc(&r->arena, size);
    if (!memory) {
        qn__fail_memory(r->err, "a chat");
        r->failed = true;
    }
    return memory;
}

bool qn__jinja_run_spend(qn__jinja_run *r, uint64_t steps)
{
    if (r->failed)
        return false;
    if (steps > r->steps) {
        qn__jinja_run_limit(r, "runs too long (out of steps)");
        return false;
    }
    r->steps -= steps;
    return true;
}

bool qn__jinja_run_enter(qn__jinja_run *r)
{
    if (++r->depth > QN__JINJA_RUN_DEPTH)
        qn__jinja_run_limit(r, "nested or recursive deeper than %d", QN__JINJA_RUN_DEPTH);
    return qn__jinja_run_spend(r, 1);
}

/* ---- making --------------------------------------------------------------------------------- */

qn__jinja_value qn__jinja_str_value(const qn__jinja_str *s)
{
    return (qn__jinja_value){.kind = QN__JINJA_STRING, .s = s};
}

qn__jinja_value qn__jinja_string(qn__jinja_run *r, const char *data, size_t n)
{
    qn__jinja_str *s = qn__jinja_run_alloc(r, sizeof *s);
    if (!s)
        return qn__jinja_failed();
    *s = (qn__jinja_str){.data = data, .n = n};
    return qn__jinja_str_value(s);
}

qn__jinja_value qn__jinja_text(qn__jinja_run *r, const char *text)
{
    return qn__jinja_string(r, text, strlen(text));
}

qn__jinja_value qn__jinja_substring(qn__jinja_run *r, const qn__jinja_str *s, size_t from,
                                    size_t to)
{
    if (from == 0 && to == s->n)
        return qn__jinja_str_value(s);
    size_t first = qn__jinja_str_span(s, from), last;
    for (last = first; last < s->n_spans && s->spans[last].begin < to; last++)
        ;
    qn_span *spans = NULL;
    if (!qn__jinja_run_spend(r, (last - first) >> 4))
        return qn__jinja_failed();
    if (last > first && !(spans = qn__jinja_run_alloc(r, (last - first) * sizeof *spans)))
        return qn__jinja_failed();
    for (size_t i = first; i < last; i++)
        spans[i - first] = (qn_span){(s->spans[i].begin > from ? s->spans[i].begin : from) - from,
                                     (s->spans[i].end < to ? s->spans[i].end : to) - from};
    qn__jinja_value v = qn__jinja_string(r, s->data + from, to - from);
    if (v.kind == QN__JINJA_STRING)
        *(qn__jinja_str *)v.s =
            (qn__jinja_str){s->data + from, to - from, spans, last - first, s->safe};
    return v;
}

qn__jinja_value qn__jinja_seq_new(qn__jinja_run *r, qn__jinja_value_kind kind,
                                  const qn__jinja_value *items, size_t n)
{
    qn__jinja_seq *seq = qn__jinja_run_alloc(r, sizeof *seq);
    if (!seq)
        return qn__jinja_failed();
    *seq = (qn__jinja_seq){.items = items, .n = n};
    return (qn__jinja_value){.kind = kind, .seq = seq};
}

qn__jinja_value qn__jinja_pair(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b)
{
    qn__jinja_value *items = qn__jinja_run_alloc(r, 2 * sizeof *items);
    if (!items)
        return qn__jinja_failed();
    items[0] = a;
    items[1] = b;
    return qn__jinja_seq_new(r, QN__JINJA_TUPLE, items, 2);
}

qn__jinja_value qn__jinja_method_of(qn__jinja_run *r, const qn__jinja_named_function *function,
                                    qn__jinja_value self)
{
    qn__jinja_method *method = qn__jinja_run_alloc(r, sizeof *method);
    if (!method)
        return qn__jinja_failed();
    *method = (qn__jinja_method){function, self};
    return (qn__jinja_value){.kind = QN__JINJA_METHOD, .method = method};
}

bool qn__jinja_pile_push(qn__jinja_run *r, qn__jinja_pile *pile, qn__jinja_value v)
{
    if (v.kind == QN__JINJA_FAILED || !qn__jinja_run_spend(r, 1))
        return false;
    if (pile->n == pile->capacity) {
        size_t wanted = pile->capacity ? pile->capacity * 2 : 8;
        qn__jinja_value *grown = qn__jinja_run_alloc(r, wanted * sizeof *grown);
        if (!grown)
            return false;
        if (pile->n)
            memcpy(grown, pile->items, pile->n * sizeof *grown);
        pile->items = grown;
        pile->capacity = wanted;
    }
    pile->items[pile->n++] = v;
    return true;
}

static qn__jinja_value undefined_value(qn__jinja_run *r, qn__jinja_undefined what)
{
    qn__jinja_undefined *u = qn__jinja_run_alloc(r, sizeof *u);
    if (!u)
        return qn__jinja_failed();
    *u = what;
    return (qn__jinja_value){.kind = QN__JINJA_UNDEFINED, .undefined = u};
}

qn__jinja_value qn__jinja_undefined_name(qn__jinja_run *r, const qn__jinja_str *name)
{
    return undefined_value(r, (qn__jinja_undefined){.name = name});
}

qn__jinja_value qn__jinja_undefined_message(qn__jinja_run *r, const char *message)
{
    return undefined_value(r, (qn__jinja_undefined){.message = message});
}

static const char *owner_name(qn__jinja_value owner)
{
    switch (owner.kind) {
    case QN__JINJA_NONE: return "None";
    case QN__JINJA_NAMESPACE: return "namespace object";
    case QN__JINJA_LOOP: return "loop object";
    case QN__JINJA_BOOL: return "bool object";
    case QN__JINJA_INT: return "int object";
    case QN__JINJA_FLOAT: return "float object";
    case QN__JINJA_STRING: return "str object";
    case QN__JINJA_LIST: return "list object";
    case QN__JINJA_TUPLE: return "tuple object";
    case QN__JINJA_DICT: return "dict object";
    default: return "object";
    }
}

qn__jinja_value qn__jinja_undefined_of(qn__jinja_run *r, qn__jinja_value owner, qn__jinja_value key)
{
    if (key.kind == QN__JINJA_STRING)
        return undefined_value(r, (qn__jinja_undefined){.name = key.s, .owner = owner_name(owner)});
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    qn__jinja_build_text(&b, owner_name(owner));
    qn__jinja_build_text(&b, " has no element ");
    qn__jinja_build_repr(&b, key);
    qn__jinja_build(&b, "", 1, false); /* terminates */
    qn__jinja_value message = qn__jinja_builder_end(&b);
    return message.kind == QN__JINJA_STRING ? qn__jinja_undefined_message(r, message.s->data)
                                            : message;
}

qn__jinja_value qn__jinja_unsafe(qn__jinja_run *r, qn__jinja_value owner, const char *name)
{
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    qn__jinja_build_text(&b, "access to attribute '");
    qn__jinja_build_text(&b, name);
    qn__jinja_build_text(&b, "' of '");
    qn__jinja_build_text(&b, qn__jinja_type_name(owner));
    qn__jinja_build_text(&b, "' object is unsafe.");
    qn__jinja_build(&b, "", 1, false);
    qn__jinja_value message = qn__jinja_builder_end(&b);
    if (message.kind != QN__JINJA_STRING)
        return message;
    return undefined_value(r, (qn__jinja_undefined){.message = message.s->data, .unsafe = true});
}

qn__jinja_value qn__jinja_refuse_undefined(qn__jinja_run *r, qn__jinja_value v)
{
    const qn__jinja_undefined *u = v.undefined;
    char name[120];
    if (v.kind != QN__JINJA_UNDEFINED)
        return v;
    if (u->message)
        return qn__jinja_run_fail(r, "%s", u->message);
    qn__utf8_quote(name, sizeof name, u->name->data, u->name->n);
    if (u->owner)
        return qn__jinja_run_fail(r, "'%s' has no attribute '%s'", u->owner, name);
    return qn__jinja_run_fail(r, "'%s' is undefined", name);
}

/* ---- asking --------------------------------------------------------------------------------- */

bool qn__jinja_truth(qn__jinja_value v)
{
    switch (v.kind) {
    case QN__JINJA_FAILED:
    case QN__JINJA_ABSENT:
    case QN__JINJA_UNDEFINED:
    case QN__JINJA_NONE: return false;
    case QN__JINJA_BOOL: return v.truth;
    case QN__JINJA_INT: return v.i != 0;
    case QN__JINJA_FLOAT: return v.f != 0;
    case QN__JINJA_STRING: return v.s->n > 0;
    case QN__JINJA_LIST:
    case QN__JINJA_TUPLE:
    case QN__JINJA_RANGE:
    case QN__JINJA_KEYS:
    case QN__JINJA_VALUES:
    case QN__JINJA_ITEMS: return v.seq->n > 0;
    case QN__JINJA_DICT: return v.dict->n > 0;
    default: return true;
    }
}

const char *qn__jinja_type_name(qn__jinja_value v)
{
    static const char *const names[] = {
        [QN__JINJA_UNDEFINED] = "Undefined", [QN__JINJA_NONE] = "NoneType",
        [QN__JINJA_BOOL] = "bool",           [QN__JINJA_INT] = "int",
        [QN__JINJA_FLOAT] = "float",         [QN__JINJA_STRING] = "str",
        [QN__JINJA_LIST] = "list",           [QN__JINJA_TUPLE] = "tuple",
        [QN__JINJA_RANGE] = "range",         [QN__JINJA_KEYS] = "dict_keys",
        [QN__JINJA_VALUES] = "dict_values",  [QN__JINJA_ITEMS] = "dict_items",
        [QN__JINJA_GENERATOR] = "generator", [QN__JINJA_DICT] = "dict",
        [QN__JINJA_NAMESPACE] = "Namespace", [QN__JINJA_LOOP] = "LoopContext",
        [QN__JINJA_MACRO] = "Macro",         [QN__JINJA_FUNCTION] = "function",
        [QN__JINJA_METHOD] = "method",       [QN__JINJA_CYCLER] = "Cycler",
        [QN__JINJA_JOINER] = "Joiner",
    };
    return names[v.kind] ? names[v.kind] : "object";
}

enum { COMPARISON_STEPS = 1 };

static bool same_items(qn__jinja_run *r, const qn__jinja_seq *a, const qn__jinja_seq *b)
{
    bool same = a->n == b->n && qn__jinja_run_enter(r);
    for (size_t i = 0; same && i < a->n; i++)
        same = qn__jinja_equal(r, a->items[i], b->items[i]);
    return same;
}

static bool same_dicts(qn__jinja_run *r, const qn__jinja_dict *a, const qn__jinja_dict *b)
{
    bool same = a->n == b->n && qn__jinja_run_enter(r);
    for (size_t i = 0; same && i < a->n; i++) {
        const qn__jinja_entry *other = qn__jinja_dict_find(r, b, a->entries[i].key);
        same = other && qn__jinja_equal(r, a->entries[i].value, other->value);
    }
    return same;
}

bool qn__jinja_equal(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b)
{
    int64_t i, j;
    double f, g;
    if (!qn__jinja_run_spend(r, COMPARISON_STEPS))
        return false;
    if (qn__jinja_as_int(a, &i) && qn__jinja_as_int(b, &j))
        return i == j;
    if (qn__jinja_as_double(a, &f) && qn__jinja_as_double(b, &g))
        return f == g;
    if (a.kind != b.kind)
        return false;
    int depth = r->depth;
    bool same;
    switch (a.kind) {
    case QN__JINJA_UNDEFINED:
    case QN__JINJA_NONE: return true;
    case QN__JINJA_STRING:
        return qn__jinja_run_spend(r, a.s->n >> 5) && qn__jinja_str_same(a.s, b.s);
    case QN__JINJA_LIST:
    case QN__JINJA_TUPLE:
    case QN__JINJA_RANGE:
    case QN__JINJA_KEYS:
    case QN__JINJA_ITEMS: same = same_items(r, a.seq, b.seq); break;
    case QN__JINJA_DICT: same = same_dicts(r, a.dict, b.dict); break;
    default: return a.seq == b.seq;
    }
    r->depth = depth;
    return same;
}

static int sign_of(int order)
{
    return (order > 0) - (order < 0);
}

int qn__jinja_order(qn__jinja_run *r, qn__jinja_value a, qn__jinja_value b, const char *op)
{
    int64_t i, j;
    double f, g;
    if (!qn__jinja_run_spend(r, COMPARISON_STEPS))
        return 2;
    if (qn__jinja_as_int(a, &i) && qn__jinja_as_int(b, &j))
        return (i > j) - (i < j);
    if (qn__jinja_as_double(a, &f) && qn__jinja_as_double(b, &g))
        return f < g ? -1 : f > g ? 1 : f == g ? 0 : 2;
    if (a.kind == QN__JINJA_STRING && b.kind == QN__JINJA_STRING) {
        size_t n = a.s->n < b.s->n ? a.s->n : b.s->n;
        int order = n ? memcmp(a.s->data, b.s->data, n) : 0;
        qn__jinja_run_spend(r, n >> 5);
        return order ? sign_of(order) : (a.s->n > b.s->n) - (a.s->n < b.s->n);
    }
    if (a.kind == b.kind && (a.kind == QN__JINJA_LIST || a.kind == QN__JINJA_TUPLE)) {
        int depth = r->depth, order = 0;
        size_t n = a.seq->n < b.seq->n ? a.seq->n : b.seq->n, k = 0;
        if (!qn__jinja_run_enter(r))
            return 2;
        while (k < n && qn__jinja_equal(r, a.seq->items[k], b.seq->items[k]))
            k++;
        if (k < n)
            order = qn__jinja_order(r, a.seq->items[k], b.seq->items[k], op);
        else
            order = (a.seq->n > b.seq->n) - (a.seq->n < b.seq->n);
        r->depth = depth;
        return order;
    }
    qn__jinja_refuse_undefined(r, a.kind == QN__JINJA_UNDEFINED ? a : b);
    qn__jinja_run_fail(r, "'%s' not supported between instances of '%s' and '%s'", op,
                       qn__jinja_type_name(a), qn__jinja_type_name(b));
    return 2;
}

bool qn__jinja_contains(qn__jinja_run *r, qn__jinja_value container, qn__jinja_value item)
{
    if (container.kind == QN__JINJA_STRING) {
        if (item.kind != QN__JINJA_STRING) {
            qn__jinja_refuse_undefined(r, item);
            qn__jinja_run_fail(r, "'in <string>' requires string as left operand, not %s",
                               qn__jinja_type_name(item));
            return false;
        }
        const qn__jinja_str *s = container.s, *t = item.s;
        return qn__jinja_run_spend(r, s->n >> 5) &&
               (t->n == 0 || memmem(s->data, s->n, t->data, t->n));
    }
    if (container.kind == QN__JINJA_DICT)
        return qn__jinja_dict_find(r, container.dict, item) != NULL;
    if (!qn__jinja_is_iterable(container) || container.kind == QN__JINJA_UNDEFINED) {
        if (container.kind == QN__JINJA_UNDEFINED)
            return false; /* it iterates as empty */
        qn__jinja_run_fail(r, "argument of type '%s' is not iterable",
                           qn__jinja_type_name(container));
        return false;
    }
    qn__jinja_seq items;
    if (!qn__jinja_items_of(r, container, &items))
        return false;
    for (size_t i = 0; i < items.n && qn__jinja_run_spend(r, 1); i++)
        if (qn__jinja_equal(r, items.items[i], item))
            return true;
    return false;
}

size_t qn__jinja_length_of(const qn__jinja_str *s)
{
    size_t count = 0;
    for (size_t i = 0; i < s->n; i++)
        count += ((unsigned char)s->data[i] & 0xc0) != 0x80;
    return count;
}

size_t qn__jinja_str_offset(const qn__jinja_str *s, size_t at, size_t count)
{
    for (; count > 0 && at < s->n; count--)
        do
            at++;
        while (at < s->n && ((unsigned char)s->data[at] & 0xc0) == 0x80);
    return at;
}

bool qn__jinja_is_iterable(qn__jinja_value v)
{
    return qn__jinja_is_seq(v) || v.kind == QN__JINJA_STRING || v.kind == QN__JINJA_DICT ||
           v.kind == QN__JINJA_UNDEFINED || v.kind == QN__JINJA_LOOP;
}

static bool characters(qn__jinja_run *r, const qn__jinja_str *s, qn__jinja_seq *items)
{
    size_t n = qn__jinja_length_of(s), at = 0;
    qn__jinja_value *all =
        qn__jinja_run_spend(r, n) ? qn__jinja_run_alloc(r, (n ? n : 1) * sizeof *all) : NULL;
    if (!all)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t end = qn__jinja_str_offset(s, at, 1);
        all[i] = qn__jinja_substring(r, s, at, end);
        if (r->failed)
            return false;
        at = end;
    }
    *items = (qn__jinja_seq){.items = all, .n = n};
    return true;
}

bool qn__jinja_items_of(qn__jinja_run *r, qn__jinja_value v, qn__jinja_seq *items)
{
    *items = (qn__jinja_seq){0};
    if (qn__jinja_is_seq(v)) {
        *items = *v.seq;
        if (v.kind == QN__JINJA_GENERATOR)
            v.seq->n = 0;
        return true;
    }
    if (v.kind == QN__JINJA_STRING)
        return characters(r, v.s, items);
    if (v.kind == QN__JINJA_UNDEFINED) {
        if (v.undefined->unsafe)
            qn__jinja_refuse_undefined(r, v);
        return !r->failed;
    }
    if (v.kind == QN__JINJA_LOOP) {
        *items = (qn__jinja_seq){.items = v.loop->items.items + v.loop->at + 1,
                                 .n = v.loop->items.n - v.loop->at - 1};
        return true;
    }
    if (v.kind == QN__JINJA_DICT) {
        qn__jinja_value *keys = qn__jinja_run_alloc(r, (v.dict->n ? v.dict->n : 1) * sizeof *keys);
        if (!keys || !qn__jinja_run_spend(r, v.dict->n))
            return false;
        for (size_t i = 0; i < v.dict->n; i++)
            keys[i] = v.dict->entries[i].key;
        *items = (qn__jinja_seq){.items = keys, .n = v.dict->n};
        return true;
    }
    if (!r->failed)
        qn__jinja_run_fail(r, "'%s' object is not iterable", qn__jinja_type_name(v));
    return false;
}
