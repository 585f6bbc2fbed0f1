/* SPDX-License-Identifier: Apache-2.0
 *
 * Expressions of chat templates. Attributes and items follow Jinja: x.name asks for a method or
 * attribute first and an item then, x["name"] the other way round; what is in neither is
 * undefined, which is an error only where it is used.
 */
#include "jinja/jinja.h"

#include "base/utf8.h"

#include <stdio.h>

/* ---- attributes and items ------------------------------------------------------------------- */

qn__jinja_value qn__jinja_own_attribute(qn__jinja_run *r, qn__jinja_value v,
                                        const qn__jinja_str *name)
{
    if (v.kind == QN__JINJA_NAMESPACE) {
        const qn__jinja_entry *entry = qn__jinja_dict_find_str(r, v.dict, name);
        return entry ? entry->value : (qn__jinja_value){.kind = QN__JINJA_ABSENT};
    }
    if (v.kind == QN__JINJA_LOOP)
        return qn__jinja_loop_attribute(r, v.loop, name);
    if (v.kind == QN__JINJA_CYCLER || v.kind == QN__JINJA_JOINER)
        return qn__jinja_cycler_attribute(r, v, name);
    if (v.kind == QN__JINJA_TUPLE && v.seq->is_group && qn__jinja_str_is(name, "grouper"))
        return v.seq->items[0];
    if (v.kind == QN__JINJA_TUPLE && v.seq->is_group && qn__jinja_str_is(name, "list"))
        return v.seq->items[1];
    if (v.kind == QN__JINJA_MACRO && qn__jinja_str_is(name, "name"))
        return qn__jinja_str_value(v.macro->node->name);
    if (name->n > 1 && name->data[0] == '_' && name->data[1] == '_') {
        char quoted[60];
        qn__utf8_quote(quoted, sizeof quoted, name->data, name->n);
        return qn__jinja_unsafe(r, v, quoted);
    }
    return qn__jinja_method_find(r, v, name);
}

qn__jinja_value qn__jinja_attribute(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_str *name)
{
    if (v.kind == QN__JINJA_UNDEFINED || v.kind == QN__JINJA_FAILED)
        return qn__jinja_refuse_undefined(r, v);
    bool dunder = name->n > 1 && name->data[0] == '_' && name->data[1] == '_';
    if (dunder && v.kind == QN__JINJA_DICT && qn__jinja_dict_find_str(r, v.dict, name))
        return qn__jinja_dict_find_str(r, v.dict, name)->value;
    qn__jinja_value found = qn__jinja_own_attribute(r, v, name);
    if (found.kind != QN__JINJA_ABSENT)
        return found;
    const qn__jinja_entry *entry =
        v.kind == QN__JINJA_DICT ? qn__jinja_dict_find_str(r, v.dict, name) : NULL;
    if (entry)
        return entry->value;
    return qn__jinja_undefined_of(r, v, qn__jinja_str_value(name));
}

static qn__jinja_value string_item(qn__jinja_run *r, const qn__jinja_str *s, int64_t i, bool *found)
{
    int64_t n = (int64_t)qn__jinja_length_of(s);
    i = i < 0 ? i + n : i;
    *found = qn__jinja_run_spend(r, s->n >> 5) && i >= 0 && i < n;
    if (!*found)
        return qn__jinja_none();
    size_t at = qn__jinja_str_offset(s, 0, (size_t)i);
    return qn__jinja_substring(r, s, at, qn__jinja_str_offset(s, at, 1));
}

qn__jinja_value qn__jinja_item(qn__jinja_run *r, qn__jinja_value v, qn__jinja_value key)
{
    int64_t i;
    if (v.kind == QN__JINJA_UNDEFINED || v.kind == QN__JINJA_FAILED)
        return qn__jinja_refuse_undefined(r, v);
    if (v.kind == QN__JINJA_DICT && key.kind != QN__JINJA_LIST && key.kind != QN__JINJA_DICT) {
        const qn__jinja_entry *entry = qn__jinja_dict_find(r, v.dict, key);
        if (entry)
            return entry->value;
    } else if (v.kind == QN__JINJA_STRING && qn__jinja_as_int(key, &i)) {
        bool found;
        qn__jinja_value item = string_item(r, v.s, i, &found);
        if (found)
            return item;
    } else if (v.kind >= QN__JINJA_LIST && v.kind <= QN__JINJA_RANGE && qn__jinja_as_int(key, &i)) {
        i = i < 0 ? i + (int64_t)v.seq->n : i;
        if (i >= 0 && i < (int64_t)v.seq->n)
            return v.seq->items[i];
    }
    if (r->failed)
        return qn__jinja_failed();
    if (key.kind == QN__JINJA_STRING) {
        qn__jinja_value found = qn__jinja_own_attribute(r, v, key.s);
        if (found.kind != QN__JINJA_ABSENT)
            return found;
    }
    return qn__jinja_undefined_of(r, v, key);
}

/* ---- slices --------------------------------------------------------------------------------- */

static bool slice_part(qn__jinja_run *r, const qn__jinja_node *node, int64_t *out, bool *given)
{
    qn__jinja_value v = node ? qn__jinja_eval(r, node) : qn__jinja_none();
    *given = v.kind != QN__JINJA_NONE;
    if (v.kind == QN__JINJA_FAILED || qn__jinja_refuse_undefined(r, v).kind == QN__JINJA_FAILED)
        return false;
    if (*given && !qn__jinja_as_int(v, out)) {
        qn__jinja_run_fail(r, "slice indices must be integers or None, not %s",
                           qn__jinja_type_name(v));
        return false;
    }
    return true;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

static qn__jinja_value slice_string(qn__jinja_run *r, const qn__jinja_str *s, int64_t from,
                                    int64_t to, int64_t step, int64_t n)
{
    if (!qn__jinja_run_spend(r, s->n >> 5))
        return qn__jinja_failed();
    if (step == 1) {
        size_t a = qn__jinja_str_offset(s, 0, (size_t)from);
        return qn__jinja_substring(r, s, a,
                                   from < to ? qn__jinja_str_offset(s, a, (size_t)(to - from)) : a);
    }
    size_t *at = qn__jinja_run_alloc(r, ((size_t)n + 1) * sizeof *at);
    if (!at || !qn__jinja_run_spend(r, (uint64_t)n))
        return qn__jinja_failed();
    at[0] = 0;
    for (int64_t i = 0; i < n; i++)
        at[i + 1] = qn__jinja_str_offset(s, at[i], 1);
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        qn__jinja_build_str(&b, s, at[i], at[i + 1]);
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return qn__jinja_builder_end(&b);
}

static qn__jinja_value slice_seq(qn__jinja_run *r, qn__jinja_value v, int64_t from, int64_t to,
                                 int64_t step)
{
    if (step == 1)
        return qn__jinja_seq_new(r, v.kind, v.seq->items + from,
                                 from < to ? (size_t)(to - from) : 0);
    qn__jinja_pile pile = {0};
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (!qn__jinja_pile_push(r, &pile, v.seq->items[i]))
            return qn__jinja_failed();
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return qn__jinja_seq_new(r, v.kind, pile.items, pile.n);
}

static qn__jinja_value eval_slice(qn__jinja_run *r, qn__jinja_value v, const qn__jinja_node *slice)
{
    int64_t part[3] = {0, 0, 1}, n = 0;
    bool given[3];
    const qn__jinja_node *nodes[3] = {slice->a, slice->b, slice->c};
    if (v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, v);
    for (int i = 0; i < 3; i++)
        if (!slice_part(r, nodes[i], &part[i], &given[i]))
            return qn__jinja_failed();
    if (v.kind == QN__JINJA_STRING)
        n = qn__jinja_run_spend(r, v.s->n >> 5) ? (int64_t)qn__jinja_length_of(v.s) : 0;
    else if (v.kind >= QN__JINJA_LIST && v.kind <= QN__JINJA_RANGE)
        n = (int64_t)v.seq->n;
    else
        return qn__jinja_undefined_message(r, "the object cannot be sliced");
    int64_t step = part[2];
    if (step == 0)
        return qn__jinja_run_fail(r, "slice step cannot be zero");
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t from = given[0] ? clamp(part[0], n, low, high) : step > 0 ? 0 : n - 1;
    int64_t to = given[1] ? clamp(part[1], n, low, high) : step > 0 ? n : -1;
    if (v.kind == QN__JINJA_STRING)
        return slice_string(r, v.s, from, to, step, n);
    return slice_seq(r, v, from, to, step);
}

/* ---- operators ------------------------------------------------------------------------------ */

static qn__jinja_value eval_compare(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value left = qn__jinja_eval(r, node->items[0]);
    for (size_t i = 1; i < node->n; i++) {
        qn__jinja_value right = r->failed ? qn__jinja_failed() : qn__jinja_eval(r, node->items[i]);
        if (r->failed)
            return qn__jinja_failed();
        bool holds = qn__jinja_compare(r, node->ops[i - 1], left, right);
        if (!holds || r->failed)
            return r->failed ? qn__jinja_failed() : qn__jinja_bool(false);
        left = right;
    }
    return qn__jinja_bool(true);
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* *args and **kwargs: all arguments in new arrays. */
static bool spread(qn__jinja_run *r, const qn__jinja_arguments *from, qn__jinja_call *call)
{
    qn__jinja_pile args = {0}, named = {0};
    qn__jinja_seq more = {0};
    qn__jinja_value star = from->star ? qn__jinja_eval(r, from->star) : qn__jinja_none();
    qn__jinja_value mapping =
        from->star_star ? qn__jinja_eval(r, from->star_star) : qn__jinja_none();
    for (size_t i = 0; i < call->n; i++)
        qn__jinja_pile_push(r, &args, call->args[i]);
    if (from->star && !qn__jinja_items_of(r, star, &more))
        return false;
    for (size_t i = 0; i < more.n; i++)
        qn__jinja_pile_push(r, &args, more.items[i]);
    if (from->star_star && mapping.kind != QN__JINJA_DICT)
        return qn__jinja_run_fail(r, "argument after ** must be a mapping, not %s",
                                  qn__jinja_type_name(mapping)),
               false;
    size_t extra = from->star_star ? mapping.dict->n : 0;
    const qn__jinja_str **names =
        qn__jinja_run_alloc(r, (call->n_named + extra + 1) * sizeof *names);
    for (size_t i = 0; names && i < call->n_named; i++) {
        names[i] = call->names[i];
        qn__jinja_pile_push(r, &named, call->named[i]);
    }
    for (size_t i = 0; names && i < extra; i++) {
        if (mapping.dict->entries[i].key.kind != QN__JINJA_STRING)
            return qn__jinja_run_fail(r, "keywords must be strings"), false;
        names[call->n_named + i] = mapping.dict->entries[i].key.s;
        qn__jinja_pile_push(r, &named, mapping.dict->entries[i].value);
    }
    *call = (qn__jinja_call){call->name, args.items, args.n, names, named.items, named.n};
    return !r->failed;
}

static bool eval_arguments(qn__jinja_run *r, const qn__jinja_arguments *from, qn__jinja_call *call)
{
    if (!from)
        return true;
    size_t n = from->n + from->n_named;
    qn__jinja_value *values = n ? qn__jinja_run_alloc(r, n * sizeof *values) : NULL;
    if (n && !values)
        return false;
    for (size_t i = 0; i < n && !r->failed; i++)
        values[i] = qn__jinja_eval(r, i < from->n ? from->args[i] : from->named[i - from->n]);
    call->args = values;
    call->n = from->n;
    call->names = from->names;
    call->named = values + from->n;
    call->n_named = from->n_named;
    return !r->failed && (!(from->star || from->star_star) || spread(r, from, call));
}

static qn__jinja_value call_value(qn__jinja_run *r, qn__jinja_value callee,
                                  const qn__jinja_call *call, const qn__jinja_value *caller)
{
    if (caller && callee.kind != QN__JINJA_MACRO && callee.kind != QN__JINJA_UNDEFINED)
        return qn__jinja_run_fail(r, "a call block calls something else than a macro");
    switch (callee.kind) {
    case QN__JINJA_MACRO: return qn__jinja_call_macro(r, callee.macro, call, caller);
    case QN__JINJA_FUNCTION: return callee.function->call(r, callee, call);
    case QN__JINJA_METHOD: return callee.method->function->call(r, callee.method->self, call);
    case QN__JINJA_LOOP:
        if (!callee.loop->node->op)
            return qn__jinja_run_fail(r, "the loop is not marked as recursive");
        return call->n == 1 ? qn__jinja_loop_again(r, callee.loop, call->args[0])
                            : qn__jinja_run_fail(r, "loop() takes one argument");
    case QN__JINJA_JOINER:
        if (callee.cycler->at++ == 0)
            return qn__jinja_text(r, "");
        return callee.cycler->values.items[0];
    case QN__JINJA_FAILED:
    case QN__JINJA_UNDEFINED: return qn__jinja_refuse_undefined(r, callee);
    default:
        return qn__jinja_run_fail(r, "'%s' object is not callable", qn__jinja_type_name(callee));
    }
}

qn__jinja_value qn__jinja_eval_call(qn__jinja_run *r, const qn__jinja_node *node,
                                    const qn__jinja_value *caller)
{
    qn__jinja_call call = {.name = "the function"};
    char name[64];
    if (node->a->name)
        call.name = qn__utf8_quote(name, sizeof name, node->a->name->data, node->a->name->n);
    qn__jinja_value callee = qn__jinja_eval(r, node->a);
    if (callee.kind == QN__JINJA_FAILED || !eval_arguments(r, node->call, &call))
        return qn__jinja_failed();
    r->line = node->line;
    return call_value(r, callee, &call, caller);
}

/* Filters that Jinja has: not the same each time, or for HTML alone, or for debugging. */
static bool is_left_out(const qn__jinja_str *name)
{
    return qn__jinja_str_is(name, "random") || qn__jinja_str_is(name, "striptags") ||
           qn__jinja_str_is(name, "urlize") || qn__jinja_str_is(name, "pprint");
}

static qn__jinja_value eval_filter(qn__jinja_run *r, const qn__jinja_node *node)
{
    char name[64];
    qn__utf8_quote(name, sizeof name, node->name->data, node->name->n);
    qn__jinja_call call = {.name = name};
    bool test = node->kind == QN__JINJA_NODE_TEST;
    qn__jinja_value v = qn__jinja_eval(r, node->a);
    if (v.kind == QN__JINJA_FAILED || !eval_arguments(r, node->call, &call))
        return qn__jinja_failed();
    r->line = node->line;
    if (!node->function && !test && is_left_out(node->name))
        return qn__jinja_run_fail(r, "the filter '%s' is not supported", name);
    if (!node->function)
        return qn__jinja_run_fail(r, "No %s named '%s' found.", test ? "test" : "filter", name);
    return node->function->call(r, v, &call);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static qn__jinja_value eval_items(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value *items = qn__jinja_run_alloc(r, (node->n ? node->n : 1) * sizeof *items);
    if (!items)
        return qn__jinja_failed();
    for (size_t i = 0; i < node->n; i++)
        if ((items[i] = qn__jinja_eval(r, node->items[i])).kind == QN__JINJA_FAILED)
            return qn__jinja_failed();
    return qn__jinja_seq_new(
        r, node->kind == QN__JINJA_NODE_LIST ? QN__JINJA_LIST : QN__JINJA_TUPLE, items, node->n);
}

static qn__jinja_value eval_dict(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_dict *dict = qn__jinja_dict_new(r, node->n / 2);
    for (size_t i = 0; dict && i < node->n; i += 2) {
        qn__jinja_value key = qn__jinja_eval(r, node->items[i]);
        qn__jinja_value value = r->failed ? key : qn__jinja_eval(r, node->items[i + 1]);
        if (r->failed || !qn__jinja_dict_set(r, dict, key, value))
            return qn__jinja_failed();
    }
    return qn__jinja_dict_value(dict);
}

static qn__jinja_value eval_concat(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value *items = qn__jinja_run_alloc(r, node->n * sizeof *items);
    for (size_t i = 0; items && i < node->n && !r->failed; i++)
        items[i] = qn__jinja_eval(r, node->items[i]);
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    for (size_t i = 0; i < node->n && !r->failed; i++)
        qn__jinja_build_value(&b, items[i]);
    return qn__jinja_builder_end(&b);
}

static qn__jinja_value eval_if_else(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value test = qn__jinja_eval(r, node->a);
    if (test.kind == QN__JINJA_FAILED)
        return test;
    if (qn__jinja_truth(test))
        return qn__jinja_eval(r, node->b);
    if (node->c)
        return qn__jinja_eval(r, node->c);
    return qn__jinja_undefined_message(
        r, "the inline if-expression evaluated to false and no else section was defined");
}

static qn__jinja_value eval_logic(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value left = qn__jinja_eval(r, node->a);
    if (left.kind == QN__JINJA_FAILED)
        return left;
    if (node->kind == QN__JINJA_NODE_NOT)
        return qn__jinja_bool(!qn__jinja_truth(left));
    return qn__jinja_truth(left) == (node->kind == QN__JINJA_NODE_OR) ? left
                                                                      : qn__jinja_eval(r, node->b);
}

static qn__jinja_value eval_binary(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value a = qn__jinja_eval(r, node->a),
                    b = r->failed ? qn__jinja_failed() : qn__jinja_eval(r, node->b);
    r->line = node->line;
    return r->failed ? qn__jinja_failed() : qn__jinja_binary(r, node->op, a, b);
}

static qn__jinja_value eval_item(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value v = qn__jinja_eval(r, node->a);
    if (v.kind == QN__JINJA_FAILED)
        return v;
    if (node->b->kind == QN__JINJA_NODE_SLICE)
        return eval_slice(r, v, node->b);
    qn__jinja_value key = qn__jinja_eval(r, node->b);
    if (key.kind == QN__JINJA_FAILED)
        return key;
    r->line = node->line;
    return qn__jinja_item(r, v, key);
}

static qn__jinja_value eval_node(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value v;
    switch (node->kind) {
    case QN__JINJA_NODE_CONST: return node->value;
    case QN__JINJA_NODE_NAME: return qn__jinja_scope_find(r, node->name);
    case QN__JINJA_NODE_LIST:
    case QN__JINJA_NODE_TUPLE: return eval_items(r, node);
    case QN__JINJA_NODE_DICT: return eval_dict(r, node);
    case QN__JINJA_NODE_IF_ELSE: return eval_if_else(r, node);
    case QN__JINJA_NODE_OR:
    case QN__JINJA_NODE_AND:
    case QN__JINJA_NODE_NOT: return eval_logic(r, node);
    case QN__JINJA_NODE_NEGATE:
    case QN__JINJA_NODE_PLUS:
        v = qn__jinja_eval(r, node->a);
        return qn__jinja_sign(r, v, node->kind == QN__JINJA_NODE_NEGATE);
    case QN__JINJA_NODE_COMPARE: return eval_compare(r, node);
    case QN__JINJA_NODE_BINARY: return eval_binary(r, node);
    case QN__JINJA_NODE_CONCAT: return eval_concat(r, node);
    case QN__JINJA_NODE_ATTRIBUTE:
        v = qn__jinja_eval(r, node->a);
        r->line = node->line;
        return qn__jinja_attribute(r, v, node->name);
    case QN__JINJA_NODE_ITEM: return eval_item(r, node);
    case QN__JINJA_NODE_CALL: return qn__jinja_eval_call(r, node, NULL);
    case QN__JINJA_NODE_FILTER:
    case QN__JINJA_NODE_TEST: return eval_filter(r, node);
    case QN__JINJA_NODE_INPUT: return r->input;
    default: return qn__jinja_run_fail(r, "a slice stands alone");
    }
}

qn__jinja_value qn__jinja_eval(qn__jinja_run *r, const qn__jinja_node *node)
{
    r->line = node->line;
    qn__jinja_value v = qn__jinja_run_enter(r) ? eval_node(r, node) : qn__jinja_failed();
    r->depth--;
    return r->failed ? qn__jinja_failed() : v;
}
