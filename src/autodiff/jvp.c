/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward mode: tangents flow from the variables to the result, oldest node first.
 */
#include "autodiff/trace.h"
#include "ops/ops.h"

static qn_array *forward(qn_scope *s, uint32_t first, qn_array *y, qn_array *const *wrt,
                         qn_array *const *tangents, int n);

static qn_array *node_jvp(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    const qn__op_def *def = qn__def(node);
    if (def->jvp)
        return def->jvp(s, node, tangents);
    if (!def->decompose)
        return qn__scope_fail(s, QN_UNSUPPORTED, "%s has no derivative", def->name);
    uint32_t first = s->n_nodes;
    qn_array *y = def->decompose(s, node);
    return qn__is_poison(s, y) ? y : forward(s, first, y, node->in, tangents, node->n_in);
}

/* NULL: zero. Tangents of inputs that an operation names twice are taken from the first place. */
static qn_array *forward(qn_scope *s, uint32_t first, qn_array *y, qn_array *const *wrt,
                         qn_array *const *tangents, int n)
{
    qn__trace t;
    if (!qn__trace_begin(&t, s, first, y, wrt, n))
        return qn__poison(s);
    for (int i = n; i-- > 0;)
        *qn__trace_value(&t, wrt[i]) = tangents[i];
    for (uint32_t i = 0; i < t.n; i++) {
        const qn_array *node = t.node[i];
        if (!t.active[i] || t.value[i] || !node->n_in)
            continue;
        qn_array **in = qn__scope_alloc(s, node->n_in * sizeof *in);
        if (!in)
            return qn__poison(s);
        bool any = false;
        for (int k = 0; k < node->n_in; k++) {
            qn_array **value = qn__trace_value(&t, node->in[k]);
            in[k] = value ? *value : NULL;
            any |= in[k] != NULL;
        }
        if (any)
            t.value[i] = node_jvp(s, node, in);
        if (s->error.code != QN_OK)
            return qn__poison(s);
    }
    qn_array **value = qn__trace_value(&t, y);
    return value ? *value : NULL;
}

qn_array *qn_jvp(qn_scope *s, qn_array *y, qn_array *const *wrt, qn_array *const *tangents, int n)
{
    y = qn__input(s, y, "jvp");
    qn_array **room = y ? qn__scope_alloc(s, 2 * (size_t)(n + 1) * sizeof *room) : NULL;
    if (!room)
        return qn__poison(s);
    for (int i = 0; i < n; i++) {
        room[i] = qn__input(s, wrt[i], "jvp");
        room[n + i] = room[i] ? qn__input(s, tangents[i], "jvp") : NULL;
        if (!room[n + i])
            return qn__poison(s);
        if (room[i]->ndim != room[n + i]->ndim ||
            memcmp(room[i]->shape, room[n + i]->shape, room[i]->ndim * sizeof *room[i]->shape))
            return qn__op_fail(s, "jvp", room[i], room[n + i],
                               "a tangent must have its variable's shape");
    }
    qn_array *t = forward(s, 0, y, room, room + n, n);
    return t ? t : qn__zeros_like(s, y);
}
