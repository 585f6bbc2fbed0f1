/* SPDX-License-Identifier: Apache-2.0
 *
 * Statements of chat templates. A variable that is set belongs to the innermost block with a scope
 * of its own: a turn of a loop, a macro's call, a {% set %}, {% filter %}, {% with %} or
 * {% generation %} block; {% if %} has none.
 */
#include "jinja/jinja.h"

#include "base/utf8.h"

/* ---- scopes --------------------------------------------------------------------------------- */

qn__jinja_value qn__jinja_scope_find(qn__jinja_run *r, const qn__jinja_str *name)
{
    enum { SCOPES_A_STEP = 8 };
    uint64_t hash = qn__jinja_dict_hash(r, name), level = 0;
    for (const qn__jinja_scope *s = r->scope; s; s = s->parent, level++) {
        const qn__jinja_entry *found = qn__jinja_dict_find_hashed(&s->variables, name, hash);
        if (found)
            return found->value;
    }
    if (!qn__jinja_run_spend(r, level / SCOPES_A_STEP + (name->n >> 6)))
        return qn__jinja_failed();
    const qn__jinja_entry *entry = qn__jinja_dict_find_hashed(r->context, name, hash);
    if (entry)
        return entry->value;
    const qn__jinja_named_function *global = r->failed ? NULL : qn__jinja_global_find(name);
    if (global)
        return (qn__jinja_value){.kind = QN__JINJA_FUNCTION, .function = global};
    return qn__jinja_undefined_name(r, name);
}

bool qn__jinja_scope_set(qn__jinja_run *r, const qn__jinja_str *name, qn__jinja_value value)
{
    return qn__jinja_dict_set(r, &r->scope->variables, qn__jinja_str_value(name), value);
}

/* For another turn of a loop. */
static bool empty_scope(qn__jinja_run *r, qn__jinja_scope *s)
{
    qn__jinja_dict_empty(&s->variables);
    return qn__jinja_run_spend(r, s->variables.n_slots >> 6);
}

static qn__jinja_scope *push_scope(qn__jinja_run *r, qn__jinja_scope *parent)
{
    qn__jinja_scope *s = qn__jinja_run_alloc(r, sizeof *s);
    if (s) {
        *s = (qn__jinja_scope){.parent = parent};
        r->scope = s;
    }
    return s;
}

static bool set_attribute(qn__jinja_run *r, const qn__jinja_node *target, qn__jinja_value value)
{
    qn__jinja_value owner = qn__jinja_eval(r, target->a);
    if (owner.kind == QN__JINJA_FAILED)
        return false;
    if (owner.kind != QN__JINJA_NAMESPACE) {
        qn__jinja_run_fail(r, "cannot assign attribute on non-namespace object");
        return false;
    }
    if (target->name->n && target->name->data[0] == '_') {
        qn__jinja_run_fail(r, "a namespace takes no attribute that begins with an underscore");
        return false;
    }
    return qn__jinja_dict_set(r, owner.dict, qn__jinja_str_value(target->name), value);
}

static bool assign(qn__jinja_run *r, const qn__jinja_node *target, qn__jinja_value value)
{
    qn__jinja_seq items;
    if (value.kind == QN__JINJA_FAILED)
        return false;
    if (target->kind == QN__JINJA_NODE_NAME)
        return qn__jinja_scope_set(r, target->name, value);
    if (target->kind == QN__JINJA_NODE_ATTRIBUTE)
        return set_attribute(r, target, value);
    if (!qn__jinja_items_of(r, qn__jinja_refuse_undefined(r, value), &items))
        return false;
    if (items.n != target->n) {
        qn__jinja_run_fail(r, "%s values to unpack (expected %zu, got %zu)",
                           items.n < target->n ? "not enough" : "too many", target->n, items.n);
        return false;
    }
    for (size_t i = 0; i < target->n; i++)
        if (!assign(r, target->items[i], items.items[i]))
            return false;
    return true;
}

/* What the block writes, as a value; in a scope of its own. */
static qn__jinja_value captured(qn__jinja_run *r, const qn__jinja_node *body)
{
    qn__jinja_builder text, *out = r->out;
    qn__jinja_scope *scope = r->scope;
    qn__jinja_builder_begin(&text, r);
    r->out = &text;
    if (push_scope(r, scope))
        qn__jinja_exec(r, body);
    r->out = out;
    r->scope = scope;
    return qn__jinja_builder_end(&text);
}

/* ---- loops ---------------------------------------------------------------------------------- */

/* The items for which the loop's condition holds. */
static bool chosen_items(qn__jinja_run *r, const qn__jinja_node *node, qn__jinja_scope *around,
                         qn__jinja_seq *items)
{
    qn__jinja_pile pile = {0};
    qn__jinja_scope *scope = push_scope(r, around);
    for (size_t i = 0; scope && i < items->n; i++) {
        if (!empty_scope(r, scope) || !assign(r, node->a, items->items[i]))
            return false;
        qn__jinja_value holds = qn__jinja_eval(r, node->c);
        if (qn__jinja_truth(holds))
            qn__jinja_pile_push(r, &pile, items->items[i]);
        if (r->failed)
            return false;
    }
    r->scope = around;
    *items = (qn__jinja_seq){.items = pile.items, .n = pile.n};
    return scope != NULL;
}

static bool run_loop(qn__jinja_run *r, const qn__jinja_node *node, qn__jinja_scope *around,
                     qn__jinja_seq items, int depth)
{
    static const qn__jinja_str loop_name = {.data = "loop", .n = 4};
    qn__jinja_scope *scope;
    qn__jinja_loop *loop = qn__jinja_run_alloc(r, sizeof *loop);
    if (!loop || (node->c && !chosen_items(r, node, around, &items)) ||
        !(scope = push_scope(r, around)))
        return false;
    *loop = (qn__jinja_loop){.items = items,
                             .depth = depth,
                             .node = node,
                             .scope = around,
                             .changed = {.kind = QN__JINJA_ABSENT}};
    for (loop->at = 0; loop->at < items.n && qn__jinja_run_spend(r, 1); loop->at++) {
        r->scope = scope;
        if (!empty_scope(r, scope) ||
            !qn__jinja_scope_set(r, &loop_name,
                                 (qn__jinja_value){.kind = QN__JINJA_LOOP, .loop = loop}) ||
            !assign(r, node->a, items.items[loop->at]))
            return false;
        if (!qn__jinja_exec(r, node->d)) {
            int jump = r->jump;
            r->jump = 0;
            if (r->failed)
                return false;
            if (jump == QN__JINJA_NODE_BREAK)
                break;
        }
    }
    if (items.n == 0 && node->e) {
        r->scope = scope;
        return empty_scope(r, scope) && qn__jinja_exec(r, node->e);
    }
    return !r->failed;
}

static bool exec_for(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_seq items;
    qn__jinja_scope *around = r->scope;
    qn__jinja_value v = qn__jinja_eval(r, node->b);
    bool ok = qn__jinja_items_of(r, v, &items) && run_loop(r, node, around, items, 0);
    r->scope = around;
    return ok;
}

qn__jinja_value qn__jinja_loop_again(qn__jinja_run *r, const qn__jinja_loop *outer,
                                     qn__jinja_value v)
{
    qn__jinja_seq items;
    qn__jinja_builder text, *out = r->out;
    qn__jinja_scope *scope = r->scope;
    if (!qn__jinja_items_of(r, v, &items) || !qn__jinja_run_enter(r))
        return qn__jinja_failed();
    qn__jinja_builder_begin(&text, r);
    r->out = &text;
    run_loop(r, outer->node, outer->scope, items, outer->depth + 1);
    r->out = out;
    r->scope = scope;
    r->depth--;
    return qn__jinja_builder_end(&text);
}

static qn__jinja_value loop_cycle(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    return call->n ? call->args[self.loop->at % call->n]
                   : qn__jinja_run_fail(r, "no items for cycling given");
}

static qn__jinja_value loop_changed(qn__jinja_run *r, qn__jinja_value self,
                                    const qn__jinja_call *call)
{
    qn__jinja_value now = qn__jinja_seq_new(r, QN__JINJA_TUPLE, call->args, call->n);
    bool same = now.kind == QN__JINJA_TUPLE && self.loop->changed.kind == QN__JINJA_TUPLE &&
                qn__jinja_equal(r, now, self.loop->changed);
    self.loop->changed = now;
    return qn__jinja_bool(!same);
}

qn__jinja_value qn__jinja_loop_attribute(qn__jinja_run *r, qn__jinja_loop *loop,
                                         const qn__jinja_str *name)
{
    static const qn__jinja_named_function methods[] = {{"cycle", loop_cycle},
                                                       {"changed", loop_changed}};
    static const struct {
        const char *name;
        int sign, add; /* of the index, or of what remains */
    } numbers[] = {{"index", 1, 1}, {"index0", 1, 0}, {"revindex", -1, 0}, {"revindex0", -1, -1}};
    int64_t at = (int64_t)loop->at, n = (int64_t)loop->items.n;
    for (size_t i = 0; i < 4; i++)
        if (qn__jinja_str_is(name, numbers[i].name))
            return qn__jinja_int(numbers[i].add + (numbers[i].sign > 0 ? at : n - at));
    if (qn__jinja_str_is(name, "first"))
        return qn__jinja_bool(at == 0);
    if (qn__jinja_str_is(name, "last"))
        return qn__jinja_bool(at + 1 == n);
    if (qn__jinja_str_is(name, "length"))
        return qn__jinja_int(n);
    if (qn__jinja_str_is(name, "depth") || qn__jinja_str_is(name, "depth0"))
        return qn__jinja_int(loop->depth + (name->n == 5));
    if (qn__jinja_str_is(name, "previtem"))
        return at > 0 ? loop->items.items[at - 1]
                      : qn__jinja_undefined_message(r, "there is no previous item");
    if (qn__jinja_str_is(name, "nextitem"))
        return at + 1 < n ? loop->items.items[at + 1]
                          : qn__jinja_undefined_message(r, "there is no next item");
    const qn__jinja_named_function *function = qn__jinja_named_find(methods, 2, name);
    qn__jinja_value self = {.kind = QN__JINJA_LOOP, .loop = loop};
    return function ? qn__jinja_method_of(r, function, self)
                    : (qn__jinja_value){.kind = QN__JINJA_ABSENT};
}

/* ---- macros --------------------------------------------------------------------------------- */

static const qn__jinja_str varargs_name = {.data = "varargs", .n = 7};
static const qn__jinja_str kwargs_name = {.data = "kwargs", .n = 6};
static const qn__jinja_str caller_name = {.data = "caller", .n = 6};

/* Named arguments: into their places, else into kwargs. */
static bool bind_named(qn__jinja_run *r, const qn__jinja_node *node, const qn__jinja_call *call,
                       qn__jinja_value *places, qn__jinja_dict *kwargs)
{
    char name[64];
    for (size_t i = 0; i < call->n_named; i++) {
        size_t k = 0;
        while (k < node->n && !qn__jinja_str_same(node->items[k]->name, call->names[i]))
            k++;
        if (!qn__jinja_run_spend(r, k / 8))
            return false;
        qn__utf8_quote(name, sizeof name, call->names[i]->data, call->names[i]->n);
        if (k < node->n && places[k].kind != QN__JINJA_ABSENT) {
            qn__jinja_run_fail(r, "macro got two values for argument '%s'", name);
        } else if (k < node->n) {
            places[k] = call->named[i];
        } else if (node->op & QN__JINJA_USES_KWARGS) {
            qn__jinja_dict_set(r, kwargs, qn__jinja_str_value(call->names[i]), call->named[i]);
        } else {
            qn__jinja_run_fail(r, "macro takes no keyword argument '%s'", name);
        }
        if (r->failed)
            return false;
    }
    return true;
}

/* Sets the macro's parameters in the scope of its call; a default may use those before it. */
static bool set_parameters(qn__jinja_run *r, const qn__jinja_node *node,
                           const qn__jinja_value *places)
{
    for (size_t i = 0; i < node->n; i++) {
        size_t from_end = node->n - i;
        qn__jinja_value v = places[i];
        if (v.kind == QN__JINJA_ABSENT && from_end <= node->n_defaults)
            v = qn__jinja_eval(r, node->items[node->n + node->n_defaults - from_end]);
        else if (v.kind == QN__JINJA_ABSENT)
            v = qn__jinja_undefined_message(r, "a parameter of the macro was not provided");
        if (!qn__jinja_scope_set(r, node->items[i]->name, v))
            return false;
    }
    return true;
}

static bool bind_macro(qn__jinja_run *r, const qn__jinja_node *node, const qn__jinja_call *call,
                       const qn__jinja_value *caller)
{
    char name[64];
    qn__utf8_quote(name, sizeof name, node->name->data, node->name->n);
    qn__jinja_dict *kwargs = qn__jinja_dict_new(r, 0);
    qn__jinja_value *places = qn__jinja_run_alloc(r, (node->n + 1) * sizeof *places);
    if (!places || !kwargs)
        return false;
    size_t n = call->n < node->n ? call->n : node->n;
    for (size_t i = 0; i < node->n; i++)
        places[i] = i < n ? call->args[i] : (qn__jinja_value){.kind = QN__JINJA_ABSENT};
    if (!bind_named(r, node, call, places, kwargs) || !set_parameters(r, node, places))
        return false;
    if (call->n > n && !(node->op & QN__JINJA_USES_VARARGS))
        return qn__jinja_run_fail(r, "macro '%s' takes not more than %zu argument(s)", name,
                                  node->n),
               false;
    if (caller && !(node->op & QN__JINJA_USES_CALLER))
        return qn__jinja_run_fail(r, "macro '%s' takes no caller", name), false;
    if (caller && !qn__jinja_scope_set(r, &caller_name, *caller))
        return false;
    if ((node->op & QN__JINJA_USES_CALLER) && !caller &&
        !qn__jinja_scope_set(r, &caller_name, qn__jinja_undefined_message(r, "No caller defined")))
        return false;
    return qn__jinja_scope_set(r, &kwargs_name, qn__jinja_dict_value(kwargs)) &&
           qn__jinja_scope_set(r, &varargs_name,
                               qn__jinja_seq_new(r, QN__JINJA_TUPLE, call->args + n, call->n - n));
}

qn__jinja_value qn__jinja_call_macro(qn__jinja_run *r, const qn__jinja_macro *macro,
                                     const qn__jinja_call *call, const qn__jinja_value *caller)
{
    qn__jinja_scope *scope = r->scope;
    qn__jinja_builder text, *out = r->out;
    qn__jinja_builder_begin(&text, r);
    bool ok = qn__jinja_run_enter(r) && push_scope(r, macro->scope) &&
              bind_macro(r, macro->node, call, caller);
    r->out = &text;
    if (ok)
        qn__jinja_exec(r, macro->node->d);
    r->out = out;
    r->scope = scope;
    r->depth--;
    return qn__jinja_builder_end(&text);
}

static qn__jinja_value macro_value(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_macro *macro = qn__jinja_run_alloc(r, sizeof *macro);
    if (!macro)
        return qn__jinja_failed();
    *macro = (qn__jinja_macro){.node = node, .scope = r->scope};
    return (qn__jinja_value){.kind = QN__JINJA_MACRO, .macro = macro};
}

static bool exec_call_block(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_value caller = macro_value(r, node->b);
    if (caller.kind == QN__JINJA_FAILED)
        return false;
    return qn__jinja_build_value(r->out, qn__jinja_eval_call(r, node->a, &caller));
}

/* ---- statements ----------------------------------------------------------------------------- */

static bool exec_block(qn__jinja_run *r, const qn__jinja_node *node)
{
    for (size_t i = 0; i < node->n; i++)
        if (!qn__jinja_exec(r, node->items[i]))
            return false;
    return true;
}

static bool exec_if(qn__jinja_run *r, const qn__jinja_node *node)
{
    for (size_t i = 0; i + 1 < node->n; i += 2) {
        qn__jinja_value test = qn__jinja_eval(r, node->items[i]);
        if (test.kind == QN__JINJA_FAILED)
            return false;
        if (qn__jinja_truth(test))
            return qn__jinja_exec(r, node->items[i + 1]);
    }
    return node->n % 2 == 0 || qn__jinja_exec(r, node->items[node->n - 1]);
}

/* The value through the filters of a block. */
static qn__jinja_value filtered(qn__jinja_run *r, const qn__jinja_node *filters, qn__jinja_value v)
{
    qn__jinja_value outer = r->input;
    if (v.kind == QN__JINJA_FAILED || !filters)
        return v;
    r->input = v;
    v = qn__jinja_eval(r, filters);
    r->input = outer;
    return v;
}

static bool exec_with(qn__jinja_run *r, const qn__jinja_node *node)
{
    qn__jinja_scope *around = r->scope;
    qn__jinja_pile values = {0};
    for (size_t i = 1; i < node->n; i += 2)
        if (!qn__jinja_pile_push(r, &values, qn__jinja_eval(r, node->items[i])))
            return false;
    bool ok = push_scope(r, around) != NULL;
    for (size_t i = 0; ok && i < node->n; i += 2)
        ok = assign(r, node->items[i], values.items[i / 2]);
    ok = ok && qn__jinja_exec(r, node->d);
    r->scope = around;
    return ok;
}

static bool exec_node(qn__jinja_run *r, const qn__jinja_node *node)
{
    switch (node->kind) {
    case QN__JINJA_NODE_BLOCK: return exec_block(r, node);
    case QN__JINJA_NODE_TEXT: return qn__jinja_build_str(r->out, node->name, 0, node->name->n);
    case QN__JINJA_NODE_OUTPUT: return qn__jinja_build_value(r->out, qn__jinja_eval(r, node->a));
    case QN__JINJA_NODE_IF: return exec_if(r, node);
    case QN__JINJA_NODE_FOR: return exec_for(r, node);
    case QN__JINJA_NODE_SET: return assign(r, node->a, qn__jinja_eval(r, node->b));
    case QN__JINJA_NODE_SET_BLOCK:
        return assign(r, node->a, filtered(r, node->c, captured(r, node->d)));
    case QN__JINJA_NODE_MACRO: return qn__jinja_scope_set(r, node->name, macro_value(r, node));
    case QN__JINJA_NODE_CALL_BLOCK: return exec_call_block(r, node);
    case QN__JINJA_NODE_FILTER_BLOCK:
        return qn__jinja_build_value(r->out, filtered(r, node->c, captured(r, node->d)));
    case QN__JINJA_NODE_WITH: return exec_with(r, node);
    case QN__JINJA_NODE_GENERATION: return qn__jinja_build_value(r->out, captured(r, node->d));
    default: /* BREAK, CONTINUE */ r->jump = (int)node->kind; return false;
    }
}

bool qn__jinja_exec(qn__jinja_run *r, const qn__jinja_node *node)
{
    r->line = node->line;
    bool ok = qn__jinja_run_enter(r) && exec_node(r, node);
    r->depth--;
    return ok && !r->failed && !r->jump;
}
