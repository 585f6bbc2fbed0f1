/* SPDX-License-Identifier: Apache-2.0
 *
 * A block of an array replaced.
 */
#include "ops/ops.h"

qn_array *qn_slice_update(qn_scope *s, qn_array *x, qn_array *update, const int64_t *start)
{
    x = qn__input(s, x, "slice_update");
    update = x ? qn__input(s, update, "slice_update") : NULL;
    if (!update)
        return qn__poison(s);
    bool fits = x->ndim == update->ndim && !x->layout && !update->layout;
    for (int i = 0; fits && i < x->ndim; i++)
        fits = start[i] >= 0 && start[i] <= x->shape[i] - update->shape[i];
    if (!fits)
        return qn__op_fail(s, "slice_update", x, update, "the update does not lie inside");
    qn__slice_update_params params = {{0}};
    memcpy(params.start, start, x->ndim * sizeof *start);
    qn_array *in[] = {x, qn_cast(s, update, (qn_dtype)x->dtype)};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__record(s, QN__OP_SLICE_UPDATE, (qn_dtype)x->dtype, x->ndim, x->shape, 2, in,
                      &params);
}

static void vjp_slice_update(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                             qn_array **grads)
{
    const qn_array *u = node->in[1];
    const qn__slice_update_params *p = node->params;
    if (want[0])
        grads[0] = qn_slice_update(s, ct, qn__zeros_like(s, u), p->start);
    if (!want[1])
        return;
    grads[1] = ct;
    for (int i = 0; i < u->ndim; i++)
        grads[1] = qn_slice(s, grads[1], i, p->start[i], p->start[i] + u->shape[i], 1);
}

static qn_array *jvp_slice_update(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    if (!tangents[0] && !tangents[1])
        return NULL;
    const qn_array *u = node->in[1];
    qn_array *x = tangents[0], *t = tangents[1];
    if (!x)
        x = qn__zeros_like(s, node);
    if (!t)
        t = qn__zeros_like(s, u);
    return qn_slice_update(s, x, t, ((const qn__slice_update_params *)node->params)->start);
}

const qn__op_def qn__slice_update_op = {.name = "slice_update",
                                        .class = QN__KERNEL,
                                        .params_size = sizeof(qn__slice_update_params),
                                        .vjp = vjp_slice_update,
                                        .jvp = jvp_slice_update,
                                        .in_place = true};
