/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays from nothing: constants, which cost no storage inside a fused chain, and ranges.
 */
#include "ops/ops.h"

static double full_number(const void *params)
{
    return ((const qn__full_params *)params)->value;
}

static void vjp_none(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                     qn_array **grads)
{
    (void)s, (void)node, (void)ct, (void)want, (void)grads;
}

static qn_array *jvp_none(qn_scope *s, const qn_array *node, qn_array *const *tangents)
{
    (void)s, (void)node, (void)tangents;
    return NULL;
}

const qn__op_def qn__full_op = {
    .name = "full",
    .class = QN__ELEMENTWISE,
    .params_size = sizeof(qn__full_params),
    .number = full_number,
    .vjp = vjp_none,
    .jvp = jvp_none,
};

const qn__op_def qn__arange_op = {
    .name = "arange",
    .class = QN__KERNEL,
    .vjp = vjp_none,
    .jvp = jvp_none,
};

static bool bad_shape(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    if (ndim < 0 || ndim > QN_MAX_NDIM)
        return true;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i] ? shape[i] : 1, &n))
            return true;
    return n > INT64_MAX / 16;
}

qn_array *qn_full(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape, double value)
{
    if (!s || s->error.code != QN_OK)
        return qn__poison(s);
    if ((unsigned)dtype >= QN_DTYPE_COUNT || bad_shape(ndim, shape))
        return qn__scope_fail(s, QN_INVALID, "full: not a shape (%d axes)", ndim);
    qn__full_params params = {value};
    return qn__record(s, QN__OP_FULL, dtype, ndim, ndim ? shape : (const int64_t[]){0}, 0, NULL,
                      &params);
}

qn_array *qn_zeros(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape)
{
    return qn_full(s, dtype, ndim, shape, 0);
}

qn_array *qn_ones(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape)
{
    return qn_full(s, dtype, ndim, shape, 1);
}

qn_array *qn_scalar(qn_scope *s, qn_dtype dtype, double value)
{
    return qn_full(s, dtype, 0, NULL, value);
}

qn_array *qn_arange(qn_scope *s, qn_dtype dtype, int64_t n)
{
    if (!s || s->error.code != QN_OK)
        return qn__poison(s);
    if (n < 0 || dtype == QN_BOOL || (unsigned)dtype >= QN_DTYPE_COUNT)
        return qn__scope_fail(s, QN_INVALID, "arange: %lld elements of %s", (long long)n,
                              qn_dtype_name(dtype));
    return qn__record(s, QN__OP_ARANGE, dtype, 1, &n, 0, NULL, NULL);
}
