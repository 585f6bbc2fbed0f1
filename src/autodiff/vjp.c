/* SPDX-License-Identifier: Apache-2.0
 *
 * Reverse mode: cotangents flow from the result to the variables, newest node first. The backward
 * graph is recorded with the public operations, so it runs on every device and differentiates
 * again.
 */
#include "autodiff/trace.h"
#include "ops/ops.h"

static bool backward(qn_scope *s, uint32_t first, qn_array *y, qn_array *ct, qn_array *const *wrt,
                     int n, qn_array **out);

static void accumulate(qn_scope *s, qn_array **sum, qn_array *g)
{
    *sum = *sum ? qn_add(s, *sum, g) : g;
}

/* The cotangents of a node's inputs, by its own rule or through its decomposition. */
static bool node_vjp(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                     qn_array **grads)
{
    const qn__op_def *def = qn__def(node);
    if (def->vjp) {
        def->vjp(s, node, ct, want, grads);
        return s->error.code == QN_OK;
    }
    if (!def->decompose) {
        qn__scope_fail(s, QN_UNSUPPORTED, "%s has no derivative", def->name);
        return false;
    }
    uint32_t first = s->n_nodes;
    qn_array *y = def->decompose(s, node);
    return !qn__is_poison(s, y) && backward(s, first, y, ct, node->in, node->n_in, grads);
}

bool qn__step_back(qn__trace *t, uint32_t at)
{
    qn_scope *s = t->s;
    const qn_array *node = t->node[at];
    if (!t->active[at] || !t->value[at] || !node->n_in)
        return true;
    bool *want = qn__scope_alloc(s, node->n_in);
    qn_array **grads = qn__scope_alloc(s, node->n_in * sizeof *grads);
    if (!want || !grads)
        return false;
    for (int i = 0; i < node->n_in; i++) {
        grads[i] = NULL;
        want[i] = qn__trace_value(t, node->in[i]) && qn__is_float((qn_dtype)node->in[i]->dtype);
    }
    if (!node_vjp(s, node, t->value[at], want, grads))
        return false;
    for (int i = 0; i < node->n_in; i++)
        if (want[i] && grads[i])
            accumulate(s, qn__trace_value(t, node->in[i]), grads[i]);
    return s->error.code == QN_OK;
}

/* out[i] is left NULL where y does not depend on wrt[i]. A node named twice in wrt shares one
 * value: its first place gets it. */
static bool backward(qn_scope *s, uint32_t first, qn_array *y, qn_array *ct, qn_array *const *wrt,
                     int n, qn_array **out)
{
    qn__trace t;
    if (!qn__trace_begin(&t, s, first, y, wrt, n))
        return false;
    qn_array **value = qn__trace_value(&t, y);
    if (!value)
        return true;
    *value = ct;
    for (uint32_t i = t.n; i-- > 0;) {
        const qn__stretch *stretch = t.value[i] ? qn__stretch_of(s, first + i) : NULL;
        if (stretch ? !qn__stretch_back(&t, stretch, &i) : !qn__step_back(&t, i))
            return false;
    }
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen |= wrt[k] == wrt[i] && first > 0; /* an operation's input named twice */
        value = qn__trace_value(&t, wrt[i]);
        if (value && !seen)
            out[i] = *value;
    }
    return true;
}

qn_status qn_vjp(qn_scope *s, qn_array *y, qn_array *ct, qn_array *const *wrt, int n,
                 qn_array **out)
{
    y = qn__input(s, y, "vjp");
    ct = y ? qn__input(s, ct, "vjp") : NULL;
    qn_array **variables = ct ? qn__scope_alloc(s, (size_t)(n + 1) * sizeof *variables) : NULL;
    for (int i = 0; i < n; i++) {
        out[i] = qn__poison(s);
        if (variables && !(variables[i] = qn__input(s, wrt[i], "vjp")))
            variables = NULL;
    }
    if (variables && s->in_stretch) {
        qn__scope_fail(s, QN_STATE, "vjp: qn_checkpoint_end has not been called");
        return s->error.code;
    }
    if (!variables)
        return qn_scope_status(s);
    if (ct->ndim != y->ndim || memcmp(ct->shape, y->shape, y->ndim * sizeof *y->shape)) {
        qn__op_fail(s, "vjp", y, ct, "the cotangent must have the result's shape");
        return s->error.code;
    }
    qn_array **grads = qn__scope_alloc(s, (size_t)(n + 1) * sizeof *grads);
    if (!grads)
        return s->error.code;
    memset(grads, 0, (size_t)n * sizeof *grads);
    if (!backward(s, 0, y, qn_cast(s, ct, (qn_dtype)y->dtype), variables, n, grads))
        return s->error.code;
    for (int i = 0; i < n; i++)
        out[i] = grads[i] ? grads[i]
                          : qn_zeros(s, (qn_dtype)variables[i]->dtype, variables[i]->ndim,
                                     variables[i]->shape);
    return s->error.code;
}

qn_status qn_grad(qn_scope *s, qn_array *loss, qn_array *const *wrt, int n, qn_array **out)
{
    loss = qn__input(s, loss, "grad");
    if (loss && (qn__elements(loss) != 1 || !qn__is_float((qn_dtype)loss->dtype))) {
        qn__op_fail(s, "grad", loss, NULL, "the loss must be one float");
        loss = NULL;
    }
    if (!loss) {
        for (int i = 0; i < n; i++)
            out[i] = qn__poison(s);
        return qn_scope_status(s);
    }
    return qn_vjp(s, loss, qn_ones(s, (qn_dtype)loss->dtype, loss->ndim, loss->shape), wrt, n, out);
}
