/* SPDX-License-Identifier: Apache-2.0
 *
 * One element of the last axis for each index.
 */
#include "ops/ops.h"

qn_array *qn_take_along_last(qn_scope *s, qn_array *x, qn_array *ids)
{
    x = qn__input(s, x, "take_along_last");
    ids = x ? qn__input(s, ids, "take_along_last") : NULL;
    if (!ids)
        return qn__poison(s);
    if (qn__is_float((qn_dtype)ids->dtype) || !qn__one_a_row(ids, x) || x->layout)
        return qn__op_fail(s, "take_along_last", x, ids,
                           "indices must be integers, one for each row");
    qn_array *in[] = {x, qn__indices(s, ids)};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn__record(s, QN__OP_TAKE_ALONG_LAST, (qn_dtype)x->dtype, ids->ndim, ids->shape, 2, in,
                      NULL);
}

/* ct where the column is the index, else 0: [..., V] */
static void vjp_take_along_last(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                                qn_array **grads)
{
    if (!want[0])
        return;
    const qn_array *x = node->in[0];
    qn_array *columns = qn_arange(s, QN_I32, x->shape[x->ndim - 1]);
    qn_array *hit = qn_equal(s, columns, qn_expand_dims(s, node->in[1], -1));
    grads[0] = qn_where(s, hit, qn_expand_dims(s, ct, -1), qn__scalar_like(s, ct, 0));
}

static qn_array *jvp_take_along_last(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    return tangents[0] ? qn_take_along_last(s, tangents[0], node->in[1]) : NULL;
}

const qn__op_def qn__take_along_last_op = {.name = "take_along_last",
                                           .class = QN__KERNEL,
                                           .vjp = vjp_take_along_last,
                                           .jvp = jvp_take_along_last};
