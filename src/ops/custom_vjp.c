/* SPDX-License-Identifier: Apache-2.0
 *
 * A value whose gradient its caller writes. It is a view of the value, so it costs nothing and is
 * in no plan: the arrays that the gradient goes to are inputs that only derivatives follow.
 */
#include "ops/ops.h"

typedef struct custom_vjp {
    qn_vjp_rule *rule;
    void *user;
} custom_vjp;

enum { MOST_INPUTS = 250 };

qn_array *qn_custom_vjp(qn_scope *s, qn_array *y, qn_array *const *in, int n, qn_vjp_rule *rule,
                        void *user)
{
    y = qn__input(s, y, "custom_vjp");
    if (!y)
        return qn__poison(s);
    if (!rule || n < 1 || n > MOST_INPUTS)
        return qn__scope_fail(s, QN_INVALID,
                              "custom_vjp: %s%d inputs; a rule and 1 to %d are wanted",
                              rule ? "" : "no rule and ", n, MOST_INPUTS);
    qn_array **all = qn__scope_alloc(s, (size_t)(n + 1) * sizeof *all);
    if (!all)
        return qn__poison(s);
    all[0] = y;
    for (int i = 0; i < n; i++)
        if (!(all[i + 1] = qn__input(s, in[i], "custom_vjp")))
            return qn__poison(s);
    const custom_vjp params = {rule, user};
    return qn__record_same(s, QN__OP_CUSTOM_VJP, n + 1, all, &params);
}

static void vjp_custom_vjp(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                           qn_array **grads)
{
    const custom_vjp *c = node->params;
    int n = node->n_in - 1;
    c->rule(s, c->user, node->in + 1, n, (qn_array *)node, ct, want + 1, grads + 1);
    for (int i = 1; i <= n && s->error.code == QN_OK; i++) {
        const qn_array *of = node->in[i];
        grads[i] = want[i] && grads[i] ? qn__input(s, grads[i], "custom_vjp") : NULL;
        if (grads[i] && !qn__same_shape(grads[i], of))
            qn__op_fail(s, "custom_vjp", grads[i], of, "a gradient has not its input's shape");
    }
}

static qn_array *jvp_custom_vjp(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    (void)node, (void)tangents;
    return qn__scope_fail(s, QN_UNSUPPORTED,
                          "custom_vjp has a rule for gradients alone: qn_jvp does not pass it");
}

const qn__op_def qn__custom_vjp_op = {.name = "custom_vjp",
                                      .class = QN__VIEW,
                                      .params_size = sizeof(custom_vjp),
                                      .vjp = vjp_custom_vjp,
                                      .jvp = jvp_custom_vjp};
