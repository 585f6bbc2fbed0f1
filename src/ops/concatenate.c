/* SPDX-License-Identifier: Apache-2.0
 *
 * Concatenation along an axis.
 */
#include "ops/ops.h"

enum { MOST = 250 }; /* arrays in one node: n_in has 8 bits */

qn_array *qn_concatenate(qn_scope *s, qn_array *const *arrays, int n, int axis)
{
    if (!s || s->error.code != QN_OK)
        return qn__poison(s);
    if (n < 1 || n > MOST)
        return qn__scope_fail(s, QN_LIMIT, "concatenate: %d arrays, the limit is %d", n, MOST);
    qn_array **in = qn__scope_alloc(s, (size_t)n * sizeof *in);
    if (!in)
        return qn__poison(s);
    qn_dtype type = QN_BOOL;
    for (int i = 0; i < n; i++) {
        in[i] = qn__input(s, arrays[i], "concatenate");
        if (!in[i])
            return qn__poison(s);
        type = i ? qn__dtype_promote(type, (qn_dtype)in[i]->dtype) : (qn_dtype)in[i]->dtype;
    }
    axis = qn__axis(s, "concatenate", in[0], axis);
    if (axis < 0)
        return qn__poison(s);
    int64_t shape[QN_MAX_NDIM];
    memcpy(shape, in[0]->shape, sizeof shape);
    shape[axis] = 0;
    for (int i = 0; i < n; i++) {
        bool fits = in[i]->ndim == in[0]->ndim && !in[i]->layout;
        for (int d = 0; fits && d < in[0]->ndim; d++)
            fits = d == axis || in[i]->shape[d] == in[0]->shape[d];
        if (!fits)
            return qn__op_fail(s, "concatenate", in[0], in[i], "shapes differ off the axis");
        if (__builtin_add_overflow(shape[axis], in[i]->shape[axis], &shape[axis]))
            return qn__op_fail(s, "concatenate", in[0], in[i], "the sum of sizes is too large");
        in[i] = qn_cast(s, in[i], type);
    }
    if (s->error.code != QN_OK)
        return qn__poison(s);
    if (n == 1)
        return in[0];
    qn__concatenate_params params = {axis};
    return qn__record(s, QN__OP_CONCATENATE, type, in[0]->ndim, shape, n, in, &params);
}

static void vjp_concatenate(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                            qn_array **grads)
{
    int axis = (int)((const qn__concatenate_params *)node->params)->axis;
    int64_t at = 0;
    for (int i = 0; i < node->n_in; i++) {
        int64_t n = node->in[i]->shape[axis];
        if (want[i])
            grads[i] = qn_slice(s, ct, axis, at, at + n, 1);
        at += n;
    }
}

static qn_array *jvp_concatenate(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    qn_array **parts = qn__scope_alloc(s, node->n_in * sizeof *parts);
    if (!parts)
        return qn__poison(s);
    for (int i = 0; i < node->n_in; i++)
        parts[i] = tangents[i] ? tangents[i]
                               : qn_zeros(s, (qn_dtype)node->dtype, node->ndim, node->in[i]->shape);
    return qn_concatenate(s, parts, node->n_in,
                          (int)((const qn__concatenate_params *)node->params)->axis);
}

const qn__op_def qn__concatenate_op = {.name = "concatenate",
                                       .class = QN__KERNEL,
                                       .params_size = sizeof(qn__concatenate_params),
                                       .vjp = vjp_concatenate,
                                       .jvp = jvp_concatenate};
