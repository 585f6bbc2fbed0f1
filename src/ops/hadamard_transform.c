/* SPDX-License-Identifier: Apache-2.0
 *
 * The product with a Hadamard matrix, in the order of Sylvester: sums and differences of elements
 * that lie 1, 2, 4 ... apart, which is the order that kernels have, too.
 */
#include "ops/ops.h"

#include <math.h>

qn_array *qn_hadamard_transform(qn_scope *s, qn_array *x, double scale)
{
    x = qn__input(s, x, "hadamard_transform");
    if (!x)
        return qn__poison(s);
    int64_t n = x->ndim ? x->shape[x->ndim - 1] : 0;
    if (n < 1 || n & (n - 1))
        return qn__op_fail(s, "hadamard_transform", x, NULL,
                           "the last axis must be a power of two");
    qn_dtype type = qn__is_float((qn_dtype)x->dtype) ? (qn_dtype)x->dtype : QN_F32;
    x = qn_contiguous(s, qn_cast(s, x, qn__dtype_compute(type)));
    if (qn__is_poison(s, x))
        return qn__poison(s);
    qn__hadamard_params params = {scale != 0 ? scale : 1 / sqrt((double)n)};
    qn_array *y = qn__record(s, QN__OP_HADAMARD_TRANSFORM, (qn_dtype)x->dtype, x->ndim, x->shape, 1,
                             &x, &params);
    return qn_cast(s, y, type);
}

/* [..., n] as [rows, pairs, 2, apart]. */
static qn_array *decompose_hadamard_transform(qn_scope *s, const qn_array *node)
{
    const qn__hadamard_params *p = node->params;
    qn_array *x = node->in[0];
    int64_t n = x->shape[x->ndim - 1], rows = qn__elements(x) / n;
    for (int64_t apart = 1; apart < n; apart *= 2) {
        x = qn_reshape(s, x, 4, (int64_t[]){rows, n / 2 / apart, 2, apart});
        qn_array *low = qn_slice(s, x, 2, 0, 1, 1), *high = qn_slice(s, x, 2, 1, 2, 1);
        qn_array *both[] = {qn_add(s, low, high), qn_subtract(s, low, high)};
        x = qn_concatenate(s, both, 2, 2);
    }
    x = qn_reshape(s, x, node->ndim, node->shape);
    return qn_multiply(s, x, qn_scalar(s, (qn_dtype)node->dtype, p->scale));
}

/* The matrix is symmetric. */
static void vjp_hadamard_transform(qn_scope *s, const qn_array *node, qn_array *ct,
                                   const bool *want, qn_array **grads)
{
    const qn__hadamard_params *p = node->params;
    (void)want;
    grads[0] = qn_hadamard_transform(s, ct, p->scale);
}

static qn_array *jvp_hadamard_transform(qn_scope *s, const qn_array *node,
                                        qn_array *const *tangents)
{
    const qn__hadamard_params *p = node->params;
    return qn_hadamard_transform(s, tangents[0], p->scale);
}

const qn__op_def qn__hadamard_transform_op = {.name = "hadamard_transform",
                                              .class = QN__KERNEL,
                                              .params_size = sizeof(qn__hadamard_params),
                                              .decompose = decompose_hadamard_transform,
                                              .vjp = vjp_hadamard_transform,
                                              .jvp = jvp_hadamard_transform};
