/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of chat templates: making them, and the questions that Python would answer: truth,
 * equality, order, length, membership.
 */
#include "text/template.h"

#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- failing, allocating, spending ---------------------------------------------------------- */

/* The first failure counts. */
static qn__value run_stop(qn__run *r, qn_status code, const char *format, va_list args)
{
    char message[400];
    vsnprintf(message, sizeof message, format, args);
    if (!r->failed)
        qn__template_fail(r->err, code, r->source->name, r->line, "%s", message);
    r->failed = true;
    return qn__failed();
}

qn__value qn__run_fail(qn__run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    qn__value failed = run_stop(r, QN_FORMAT, format, args);
    va_end(args);
    return failed;
}

qn__value qn__run_limit(qn__run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    qn__value failed = run_stop(r, QN_LIMIT, format, args);
    va_end(args);
    return failed;
}

void *qn__run_alloc(qn__run *r, size_t size)
{
    if (r->failed)
        return NULL;
    if (size > r->memory || r->asked > r->memory - size) {
        qn__run_limit(r, "needs more than %zu MiB of memory", r->memory >> 20);
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

bool qn__run_spend(qn__run *r, uint64_t steps)
{
    if (r->failed)
        return false;
    if (steps > r->steps) {
        qn__run_limit(r, "runs too long (out of steps)");
        return false;
    }
    r->steps -= steps;
    return true;
}

bool qn__run_enter(qn__run *r)
{
    if (++r->depth > QN__RUN_DEPTH)
        qn__run_limit(r, "nested or recursive deeper than %d", QN__RUN_DEPTH);
    return qn__run_spend(r, 1);
}

/* ---- making --------------------------------------------------------------------------------- */

qn__value qn__str_value(const qn__str *s)
{
    return (qn__value){.kind = QN__V_STRING, .s = s};
}

qn__value qn__string(qn__run *r, const char *data, size_t n)
{
    qn__str *s = qn__run_alloc(r, sizeof *s);
    if (!s)
        return qn__failed();
    *s = (qn__str){.data = data, .n = n};
    return qn__str_value(s);
}

qn__value qn__text(qn__run *r, const char *text)
{
    return qn__string(r, text, strlen(text));
}

qn__value qn__substring(qn__run *r, const qn__str *s, size_t from, size_t to)
{
    if (from == 0 && to == s->n)
        return qn__str_value(s);
    size_t first = qn__str_span(s, from), last;
    for (last = first; last < s->n_spans && s->spans[last].begin < to; last++)
        ;
    qn_span *spans = NULL;
    if (!qn__run_spend(r, (last - first) >> 4))
        return qn__failed();
    if (last > first && !(spans = qn__run_alloc(r, (last - first) * sizeof *spans)))
        return qn__failed();
    for (size_t i = first; i < last; i++)
        spans[i - first] = (qn_span){(s->spans[i].begin > from ? s->spans[i].begin : from) - from,
                                     (s->spans[i].end < to ? s->spans[i].end : to) - from};
    qn__value v = qn__string(r, s->data + from, to - from);
    if (v.kind == QN__V_STRING)
        *(qn__str *)v.s = (qn__str){s->data + from, to - from, spans, last - first, s->safe};
    return v;
}

qn__value qn__seq_new(qn__run *r, qn__value_kind kind, const qn__value *items, size_t n)
{
    qn__seq *seq = qn__run_alloc(r, sizeof *seq);
    if (!seq)
        return qn__failed();
    *seq = (qn__seq){.items = items, .n = n};
    return (qn__value){.kind = kind, .seq = seq};
}

qn__value qn__pair(qn__run *r, qn__value a, qn__value b)
{
    qn__value *items = qn__run_alloc(r, 2 * sizeof *items);
    if (!items)
        return qn__failed();
    items[0] = a;
    items[1] = b;
    return qn__seq_new(r, QN__V_TUPLE, items, 2);
}

qn__value qn__method_of(qn__run *r, const qn__named_function *function, qn__value self)
{
    qn__method *method = qn__run_alloc(r, sizeof *method);
    if (!method)
        return qn__failed();
    *method = (qn__method){function, self};
    return (qn__value){.kind = QN__V_METHOD, .method = method};
}

bool qn__pile_push(qn__run *r, qn__pile *pile, qn__value v)
{
    if (v.kind == QN__V_FAILED || !qn__run_spend(r, 1))
        return false;
    if (pile->n == pile->capacity) {
        size_t wanted = pile->capacity ? pile->capacity * 2 : 8;
        qn__value *grown = qn__run_alloc(r, wanted * sizeof *grown);
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

static qn__value undefined_value(qn__run *r, qn__undefined what)
{
    qn__undefined *u = qn__run_alloc(r, sizeof *u);
    if (!u)
        return qn__failed();
    *u = what;
    return (qn__value){.kind = QN__V_UNDEFINED, .undefined = u};
}

qn__value qn__undefined_name(qn__run *r, const qn__str *name)
{
    return undefined_value(r, (qn__undefined){.name = name});
}

qn__value qn__undefined_message(qn__run *r, const char *message)
{
    return undefined_value(r, (qn__undefined){.message = message});
}

static const char *owner_name(qn__value owner)
{
    switch (owner.kind) {
    case QN__V_NONE: return "None";
    case QN__V_NAMESPACE: return "namespace object";
    case QN__V_LOOP: return "loop object";
    case QN__V_BOOL: return "bool object";
    case QN__V_INT: return "int object";
    case QN__V_FLOAT: return "float object";
    case QN__V_STRING: return "str object";
    case QN__V_LIST: return "list object";
    case QN__V_TUPLE: return "tuple object";
    case QN__V_DICT: return "dict object";
    default: return "object";
    }
}

qn__value qn__undefined_of(qn__run *r, qn__value owner, qn__value key)
{
    if (key.kind == QN__V_STRING)
        return undefined_value(r, (qn__undefined){.name = key.s, .owner = owner_name(owner)});
    qn__builder b;
    qn__builder_begin(&b, r);
    qn__build_text(&b, owner_name(owner));
    qn__build_text(&b, " has no element ");
    qn__build_repr(&b, key);
    qn__build(&b, "", 1, false); /* terminates */
    qn__value message = qn__builder_end(&b);
    return message.kind == QN__V_STRING ? qn__undefined_message(r, message.s->data) : message;
}

qn__value qn__unsafe(qn__run *r, qn__value owner, const char *name)
{
    qn__builder b;
    qn__builder_begin(&b, r);
    qn__build_text(&b, "access to attribute '");
    qn__build_text(&b, name);
    qn__build_text(&b, "' of '");
    qn__build_text(&b, qn__type_name(owner));
    qn__build_text(&b, "' object is unsafe.");
    qn__build(&b, "", 1, false);
    qn__value message = qn__builder_end(&b);
    if (message.kind != QN__V_STRING)
        return message;
    return undefined_value(r, (qn__undefined){.message = message.s->data, .unsafe = true});
}

qn__value qn__refuse_undefined(qn__run *r, qn__value v)
{
    const qn__undefined *u = v.undefined;
    char name[120];
    if (v.kind != QN__V_UNDEFINED)
        return v;
    if (u->message)
        return qn__run_fail(r, "%s", u->message);
    qn__utf8_quote(name, sizeof name, u->name->data, u->name->n);
    if (u->owner)
        return qn__run_fail(r, "'%s' has no attribute '%s'", u->owner, name);
    return qn__run_fail(r, "'%s' is undefined", name);
}

/* ---- asking --------------------------------------------------------------------------------- */

bool qn__truth(qn__value v)
{
    switch (v.kind) {
    case QN__V_FAILED:
    case QN__V_ABSENT:
    case QN__V_UNDEFINED:
    case QN__V_NONE: return false;
    case QN__V_BOOL: return v.truth;
    case QN__V_INT: return v.i != 0;
    case QN__V_FLOAT: return v.f != 0;
    case QN__V_STRING: return v.s->n > 0;
    case QN__V_LIST:
    case QN__V_TUPLE:
    case QN__V_RANGE:
    case QN__V_KEYS:
    case QN__V_VALUES:
    case QN__V_ITEMS: return v.seq->n > 0;
    case QN__V_DICT: return v.dict->n > 0;
    default: return true;
    }
}

const char *qn__type_name(qn__value v)
{
    static const char *const names[] = {
        [QN__V_UNDEFINED] = "Undefined", [QN__V_NONE] = "NoneType",
        [QN__V_BOOL] = "bool",           [QN__V_INT] = "int",
        [QN__V_FLOAT] = "float",         [QN__V_STRING] = "str",
        [QN__V_LIST] = "list",           [QN__V_TUPLE] = "tuple",
        [QN__V_RANGE] = "range",         [QN__V_KEYS] = "dict_keys",
        [QN__V_VALUES] = "dict_values",  [QN__V_ITEMS] = "dict_items",
        [QN__V_GENERATOR] = "generator", [QN__V_DICT] = "dict",
        [QN__V_NAMESPACE] = "Namespace", [QN__V_LOOP] = "LoopContext",
        [QN__V_MACRO] = "Macro",         [QN__V_FUNCTION] = "function",
        [QN__V_METHOD] = "method",       [QN__V_CYCLER] = "Cycler",
        [QN__V_JOINER] = "Joiner",
    };
    return names[v.kind] ? names[v.kind] : "object";
}

enum { COMPARISON_STEPS = 1 };

static bool same_items(qn__run *r, const qn__seq *a, const qn__seq *b)
{
    bool same = a->n == b->n && qn__run_enter(r);
    for (size_t i = 0; same && i < a->n; i++)
        same = qn__equal(r, a->items[i], b->items[i]);
    return same;
}

static bool same_dicts(qn__run *r, const qn__dict *a, const qn__dict *b)
{
    bool same = a->n == b->n && qn__run_enter(r);
    for (size_t i = 0; same && i < a->n; i++) {
        const qn__entry *other = qn__dict_find(r, b, a->entries[i].key);
        same = other && qn__equal(r, a->entries[i].value, other->value);
    }
    return same;
}

bool qn__equal(qn__run *r, qn__value a, qn__value b)
{
    int64_t i, j;
    double f, g;
    if (!qn__run_spend(r, COMPARISON_STEPS))
        return false;
    if (qn__as_int(a, &i) && qn__as_int(b, &j))
        return i == j;
    if (qn__as_double(a, &f) && qn__as_double(b, &g))
        return f == g;
    if (a.kind != b.kind)
        return false;
    int depth = r->depth;
    bool same;
    switch (a.kind) {
    case QN__V_UNDEFINED:
    case QN__V_NONE: return true;
    case QN__V_STRING: return qn__run_spend(r, a.s->n >> 5) && qn__str_same(a.s, b.s);
    case QN__V_LIST:
    case QN__V_TUPLE:
    case QN__V_RANGE:
    case QN__V_KEYS:
    case QN__V_ITEMS: same = same_items(r, a.seq, b.seq); break;
    case QN__V_DICT: same = same_dicts(r, a.dict, b.dict); break;
    default: return a.seq == b.seq;
    }
    r->depth = depth;
    return same;
}

static int sign_of(int order)
{
    return (order > 0) - (order < 0);
}

int qn__order(qn__run *r, qn__value a, qn__value b, const char *op)
{
    int64_t i, j;
    double f, g;
    if (!qn__run_spend(r, COMPARISON_STEPS))
        return 2;
    if (qn__as_int(a, &i) && qn__as_int(b, &j))
        return (i > j) - (i < j);
    if (qn__as_double(a, &f) && qn__as_double(b, &g))
        return f < g ? -1 : f > g ? 1 : f == g ? 0 : 2;
    if (a.kind == QN__V_STRING && b.kind == QN__V_STRING) {
        size_t n = a.s->n < b.s->n ? a.s->n : b.s->n;
        int order = n ? memcmp(a.s->data, b.s->data, n) : 0;
        qn__run_spend(r, n >> 5);
        return order ? sign_of(order) : (a.s->n > b.s->n) - (a.s->n < b.s->n);
    }
    if (a.kind == b.kind && (a.kind == QN__V_LIST || a.kind == QN__V_TUPLE)) {
        int depth = r->depth, order = 0;
        size_t n = a.seq->n < b.seq->n ? a.seq->n : b.seq->n, k = 0;
        if (!qn__run_enter(r))
            return 2;
        while (k < n && qn__equal(r, a.seq->items[k], b.seq->items[k]))
            k++;
        if (k < n)
            order = qn__order(r, a.seq->items[k], b.seq->items[k], op);
        else
            order = (a.seq->n > b.seq->n) - (a.seq->n < b.seq->n);
        r->depth = depth;
        return order;
    }
    qn__refuse_undefined(r, a.kind == QN__V_UNDEFINED ? a : b);
    qn__run_fail(r, "'%s' not supported between instances of '%s' and '%s'", op, qn__type_name(a),
                 qn__type_name(b));
    return 2;
}

bool qn__contains(qn__run *r, qn__value container, qn__value item)
{
    if (container.kind == QN__V_STRING) {
        if (item.kind != QN__V_STRING) {
            qn__refuse_undefined(r, item);
            qn__run_fail(r, "'in <string>' requires string as left operand, not %s",
                         qn__type_name(item));
            return false;
        }
        const qn__str *s = container.s, *t = item.s;
        return qn__run_spend(r, s->n >> 5) && (t->n == 0 || memmem(s->data, s->n, t->data, t->n));
    }
    if (container.kind == QN__V_DICT)
        return qn__dict_find(r, container.dict, item) != NULL;
    if (!qn__is_iterable(container) || container.kind == QN__V_UNDEFINED) {
        if (container.kind == QN__V_UNDEFINED)
            return false; /* it iterates as empty */
        qn__run_fail(r, "argument of type '%s' is not iterable", qn__type_name(container));
        return false;
    }
    qn__seq items;
    if (!qn__items_of(r, container, &items))
        return false;
    for (size_t i = 0; i < items.n && qn__run_spend(r, 1); i++)
        if (qn__equal(r, items.items[i], item))
            return true;
    return false;
}

size_t qn__length_of(const qn__str *s)
{
    size_t count = 0;
    for (size_t i = 0; i < s->n; i++)
        count += ((unsigned char)s->data[i] & 0xc0) != 0x80;
    return count;
}

size_t qn__str_offset(const qn__str *s, size_t at, size_t count)
{
    for (; count > 0 && at < s->n; count--)
        do
            at++;
        while (at < s->n && ((unsigned char)s->data[at] & 0xc0) == 0x80);
    return at;
}

bool qn__is_iterable(qn__value v)
{
    return qn__is_seq(v) || v.kind == QN__V_STRING || v.kind == QN__V_DICT ||
           v.kind == QN__V_UNDEFINED || v.kind == QN__V_LOOP;
}

static bool characters(qn__run *r, const qn__str *s, qn__seq *items)
{
    size_t n = qn__length_of(s), at = 0;
    qn__value *all = qn__run_spend(r, n) ? qn__run_alloc(r, (n ? n : 1) * sizeof *all) : NULL;
    if (!all)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t end = qn__str_offset(s, at, 1);
        all[i] = qn__substring(r, s, at, end);
        if (r->failed)
            return false;
        at = end;
    }
    *items = (qn__seq){.items = all, .n = n};
    return true;
}

bool qn__items_of(qn__run *r, qn__value v, qn__seq *items)
{
    *items = (qn__seq){0};
    if (qn__is_seq(v)) {
        *items = *v.seq;
        if (v.kind == QN__V_GENERATOR)
            v.seq->n = 0;
        return true;
    }
    if (v.kind == QN__V_STRING)
        return characters(r, v.s, items);
    if (v.kind == QN__V_UNDEFINED) {
        if (v.undefined->unsafe)
            qn__refuse_undefined(r, v);
        return !r->failed;
    }
    if (v.kind == QN__V_LOOP) {
        *items = (qn__seq){.items = v.loop->items.items + v.loop->at + 1,
                           .n = v.loop->items.n - v.loop->at - 1};
        return true;
    }
    if (v.kind == QN__V_DICT) {
        qn__value *keys = qn__run_alloc(r, (v.dict->n ? v.dict->n : 1) * sizeof *keys);
        if (!keys || !qn__run_spend(r, v.dict->n))
            return false;
        for (size_t i = 0; i < v.dict->n; i++)
            keys[i] = v.dict->entries[i].key;
        *items = (qn__seq){.items = keys, .n = v.dict->n};
        return true;
    }
    if (!r->failed)
        qn__run_fail(r, "'%s' object is not iterable", qn__type_name(v));
    return false;
}
