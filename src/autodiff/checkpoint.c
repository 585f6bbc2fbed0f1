/* SPDX-License-Identifier: Apache-2.0
 *
 * Stretches of a recording whose values are not kept for gradients. When cotangents reach one, the
 * nodes that its derivatives need are recorded again, behind all that is recorded by then, and the
 * cotangents flow through these. So what runs in between does so without their memory, and since
 * nothing reads the first ones any more, that is free once the stretch's results are there.
 */
#include "autodiff/trace.h"
#include "quern/ops.h"

void qn_checkpoint_begin(qn_scope *s)
{
    if (!s || s->error.code != QN_OK)
        return;
    if (s->in_stretch) {
        qn__scope_fail(s, QN_STATE, "checkpoint_begin: one has begun already");
        return;
    }
    qn__stretch *stretch = qn__scope_alloc(s, sizeof *stretch);
    if (!stretch)
        return;
    *stretch = (qn__stretch){.first = s->n_nodes, .before = s->stretches};
    s->stretches = stretch;
    s->in_stretch = true;
}

void qn_checkpoint_end(qn_scope *s)
{
    if (!s || s->error.code != QN_OK)
        return;
    if (!s->in_stretch) {
        qn__scope_fail(s, QN_STATE, "checkpoint_end: none has begun");
        return;
    }
    s->stretches->end = s->n_nodes;
    s->in_stretch = false;
}

const qn__stretch *qn__stretch_of(const qn_scope *s, uint32_t number)
{
    const qn__stretch *stretch = s->stretches;
    while (stretch && stretch->first > number)
        stretch = stretch->before;
    return stretch && number < stretch->end ? stretch : NULL;
}

/* Nodes of a trace from `low` on that are computed again. */
typedef struct again {
    qn__trace *t;
    uint32_t low, n;
    qn_array **copy;      /* [n] NULL: not needed; leaves are their own */
    qn_array **variables; /* what the copies read beside each other, and whose cotangent is wanted;
                             and copies of nodes whose gradient is asked for */
    int n_variables;
} again;

static qn_array *copy_of(const again *g, qn_array *a)
{
    uint32_t at = a->number - g->t->first - g->low;
    return a->number >= g->t->first + g->low && at < g->n && g->copy[at] ? g->copy[at] : a;
}

/* Marks what nodes with a cotangent are computed from: copy points to the node itself. */
static uint32_t mark_needed(again *g)
{
    uint32_t inputs = 0;
    for (uint32_t i = g->n; i-- > 0;) {
        qn_array *a = g->t->node[g->low + i];
        if (g->t->value[g->low + i])
            g->copy[i] = a;
        for (int k = 0; g->copy[i] && k < a->n_in; k++) {
            uint32_t at = a->in[k]->number - g->t->first - g->low;
            if (a->in[k]->number >= g->t->first + g->low)
                g->copy[at] = a->in[k];
        }
        inputs += g->copy[i] ? a->n_in + 1 : 0;
    }
    return inputs;
}

static void add_variable(again *g, qn_array *a)
{
    for (int i = 0; i < g->n_variables; i++)
        if (g->variables[i] == a)
            return;
    g->variables[g->n_variables++] = a;
}

static bool is_asked_for(const qn__trace *t, const qn_array *a)
{
    for (int i = 0; i < t->n_variables; i++)
        if (t->variable[i] == a)
            return true;
    return false;
}

/* Records the needed nodes again. */
static bool copy_needed(again *g)
{
    qn_scope *s = g->t->s;
    for (uint32_t i = 0; i < g->n; i++) {
        qn_array *a = g->copy[i];
        if (!a || a->op == QN__LEAF_OP)
            continue;
        qn_array **in = qn__scope_alloc(s, (size_t)(a->n_in + 1) * sizeof *in);
        for (int k = 0; in && k < a->n_in; k++) {
            in[k] = copy_of(g, a->in[k]);
            if (in[k] == a->in[k] && qn__trace_value(g->t, in[k]))
                add_variable(g, in[k]);
        }
        g->copy[i] = in ? qn__record_again(s, a, in) : qn__poison(s);
        if (qn__is_poison(s, g->copy[i]))
            return false;
        if (is_asked_for(g->t, a))
            add_variable(g, g->copy[i]);
    }
    return true;
}

/* Takes the nodes' cotangents back through their copies. */
static bool copies_back(again *g, uint32_t first)
{
    qn__trace *t = g->t, own;
    if (!qn__trace_begin(&own, t->s, first, t->s->last, g->variables, g->n_variables))
        return false;
    for (uint32_t i = 0; i < g->n; i++) {
        qn_array **value = t->value[g->low + i] ? qn__trace_value(&own, g->copy[i]) : NULL;
        if (value)
            *value = t->value[g->low + i];
    }
    for (int i = 0; i < g->n_variables; i++) /* sums go on, in the order that they have anyway */
        if (g->variables[i]->number < first)
            own.variable_value[i] = *qn__trace_value(t, g->variables[i]);
    for (uint32_t i = own.n; i-- > 0;)
        if (!qn__step_back(&own, i))
            return false;
    for (uint32_t i = 0; i < g->n; i++)
        if (g->copy[i] && is_asked_for(t, t->node[g->low + i]) && g->copy[i]->number >= first)
            t->value[g->low + i] = *qn__trace_value(&own, g->copy[i]);
    for (int i = 0; i < g->n_variables; i++)
        if (g->variables[i]->number < first)
            *qn__trace_value(t, g->variables[i]) = own.variable_value[i];
    return t->s->error.code == QN_OK;
}

bool qn__stretch_back(qn__trace *t, const qn__stretch *stretch, uint32_t *i)
{
    qn_scope *s = t->s;
    again g = {.t = t, .low = stretch->first > t->first ? stretch->first - t->first : 0};
    g.n = *i - g.low + 1;
    *i = g.low;
    g.copy = qn__scope_alloc(s, g.n * sizeof *g.copy);
    if (!g.copy)
        return false;
    memset(g.copy, 0, g.n * sizeof *g.copy);
    g.variables = qn__scope_alloc(s, (mark_needed(&g) + 1) * sizeof *g.variables);
    uint32_t first = s->n_nodes;
    if (!g.variables || !copy_needed(&g))
        return false;
    return s->n_nodes == first || copies_back(&g, first);
}
