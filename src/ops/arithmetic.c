/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementwise functions that are compositions of others; fused, they are one pass all the same.
 */
#include "ops/ops.h"

#include <math.h>

qn_array *qn_reciprocal(qn_scope *s, qn_array *x)
{
    x = qn__input(s, x, "reciprocal");
    return x ? qn_divide(s, qn__scalar_like(s, x, 1), x) : qn__poison(s);
}

qn_array *qn_softplus(qn_scope *s, qn_array *x)
{
    x = qn__input(s, x, "softplus");
    return x ? qn_logaddexp(s, x, qn__scalar_like(s, x, 0)) : qn__poison(s);
}

qn_array *qn_clip(qn_scope *s, qn_array *x, qn_array *low, qn_array *high)
{
    if (low)
        x = qn_maximum(s, x, low);
    return high ? qn_minimum(s, x, high) : x;
}

/* |x| against infinity; integers are finite. */
static qn_array *against_infinity(qn_scope *s, qn_array *x, const char *name,
                                  qn_array *(*compare)(qn_scope *, qn_array *, qn_array *))
{
    x = qn__input(s, x, name);
    if (!x)
        return qn__poison(s);
    if (!qn__is_float((qn_dtype)x->dtype))
        return qn_full(s, QN_BOOL, x->ndim, x->shape, compare == qn_less);
    return compare(s, qn_abs(s, x), qn__scalar_like(s, x, INFINITY));
}

qn_array *qn_isinf(qn_scope *s, qn_array *x)
{
    return against_infinity(s, x, "isinf", qn_equal);
}

qn_array *qn_isfinite(qn_scope *s, qn_array *x)
{
    return against_infinity(s, x, "isfinite", qn_less);
}

qn_array *qn_isnan(qn_scope *s, qn_array *x)
{
    return qn_not_equal(s, x, x);
}
