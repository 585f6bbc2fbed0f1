/* SPDX-License-Identifier: Apache-2.0
 *
 * A view with any strides over the elements of an array in row-major order: windows, diagonals. The
 * meaning does not depend on how x lies in memory: what is not row-major is copied first.
 */
#include "ops/ops.h"

/* Whether every element lies among the n of x. */
static bool inside(int ndim, const int64_t *shape, const int64_t *stride, int64_t offset, int64_t n)
{
    int64_t first = offset, last = offset;
    for (int i = 0; i < ndim; i++)
        if (shape[i] == 0)
            return true;
    for (int i = 0; i < ndim; i++) {
        int64_t reach;
        int64_t *end = stride[i] < 0 ? &first : &last;
        if (__builtin_mul_overflow(shape[i] - 1, stride[i], &reach) ||
            __builtin_add_overflow(*end, reach, end))
            return false;
    }
    return first >= 0 && last < n;
}

static bool is_shape(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i] ? shape[i] : 1, &n))
            return false;
    return n <= INT64_MAX / 16;
}

qn_array *qn_as_strided(qn_scope *s, qn_array *x, int ndim, const int64_t *shape,
                        const int64_t *stride, int64_t offset)
{
    x = qn__input(s, x, "as_strided");
    if (!x)
        return qn__poison(s);
    if (ndim < 0 || ndim > QN_MAX_NDIM || x->layout || !is_shape(ndim, shape))
        return qn__op_fail(s, "as_strided", x, NULL, "not a shape, or packed");
    if (!inside(ndim, shape, stride, offset, qn__elements(x)))
        return qn__op_fail(s, "as_strided", x, NULL, "the strides lead outside of the array");
    x = qn_contiguous(s, x);
    if (qn__is_poison(s, x))
        return x;
    qn__as_strided_params params = {{0}, offset};
    memcpy(params.stride, stride, (size_t)ndim * sizeof *stride);
    return qn__record_view(s, QN__OP_AS_STRIDED, x, ndim, shape, stride, x->offset + offset,
                           &params);
}

/* The same view of the elements' numbers says where each cotangent goes; overlapping ones add up.
 */
static void vjp_as_strided(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                           qn_array **grads)
{
    (void)want;
    const qn__as_strided_params *p = node->params;
    const qn_array *x = node->in[0];
    int64_t n = qn__elements(x);
    if (n > INT32_MAX) {
        qn__op_fail(s, "as_strided", x, NULL, "the gradient of more than 2^31 - 1 elements");
        return;
    }
    qn_array *at =
        qn_as_strided(s, qn_arange(s, QN_I32, n), node->ndim, node->shape, p->stride, p->offset);
    const int64_t all = -1;
    qn_array *flat = qn_scatter_add(s, qn_zeros(s, (qn_dtype)ct->dtype, 1, &n),
                                    qn_reshape(s, at, 1, &all), qn_reshape(s, ct, 1, &all));
    grads[0] = qn_reshape(s, flat, x->ndim, x->shape);
}

static qn_array *jvp_as_strided(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    const qn__as_strided_params *p = node->params;
    return qn_as_strided(s, tangents[0], node->ndim, node->shape, p->stride, p->offset);
}

const qn__op_def qn__as_strided_op = {.name = "as_strided",
                                      .class = QN__VIEW,
                                      .params_size = sizeof(qn__as_strided_params),
                                      .vjp = vjp_as_strided,
                                      .jvp = jvp_as_strided};
