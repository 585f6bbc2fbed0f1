/* SPDX-License-Identifier: Apache-2.0
 *
 * Gathering a stretch of nodes and what in it depends on the variables.
 */
#include "autodiff/trace.h"

static int variable_number(const qn__trace *t, const qn_array *a)
{
    for (int i = 0; i < t->n_variables; i++)
        if (t->variable[i] == a)
            return i;
    return -1;
}

static bool inside(const qn__trace *t, const qn_array *a)
{
    return a->number >= t->first && a->number < t->first + t->n;
}

static bool is_active(const qn__trace *t, const qn_array *a)
{
    return inside(t, a) ? t->active[a->number - t->first] : variable_number(t, a) >= 0;
}

qn_array **qn__trace_value(qn__trace *t, const qn_array *a)
{
    if (inside(t, a))
        return t->active[a->number - t->first] ? &t->value[a->number - t->first] : NULL;
    int i = variable_number(t, a);
    return i >= 0 ? &t->variable_value[i] : NULL;
}

bool qn__trace_begin(qn__trace *t, qn_scope *s, uint32_t first, qn_array *y,
                     qn_array *const *variables, int n)
{
    *t = (qn__trace){.s = s, .first = first, .variable = variables, .n_variables = n};
    uint32_t count = y->number >= first ? y->number - first + 1 : 0;
    size_t bytes = (size_t)count * (2 * sizeof(qn_array *) + 1) + (size_t)n * sizeof(qn_array *);
    char *room = qn__scope_alloc(s, bytes + 8);
    if (!room)
        return false;
    memset(room, 0, bytes);
    t->variable_value = (qn_array **)room;
    t->node = t->variable_value + n;
    t->value = t->node + count;
    t->active = (bool *)(t->value + count);
    for (qn_array *a = s->last; a && a->number >= first; a = a->previous)
        if (a->number - first < count)
            t->node[a->number - first] = a;
    t->n = count;
    for (int i = 0; i < n; i++)
        if (inside(t, variables[i]))
            t->active[variables[i]->number - first] = true;
    for (uint32_t i = 0; i < count; i++)
        for (int k = 0; k < t->node[i]->n_in; k++)
            t->active[i] |= is_active(t, t->node[i]->in[k]);
    return true;
}
