/* SPDX-License-Identifier: Apache-2.0
 *
 * Argument checks, promotion and broadcasting shared by operations.
 */
#include "ops/ops.h"

#include <stdio.h>

qn_array *qn__op_fail(qn_scope *s, const char *operation, const qn_array *a, const qn_array *b,
                      const char *what)
{
    char ta[128], tb[128];
    return qn__scope_fail(s, QN_INVALID, "%s: %s%s%s: %s", operation, qn__describe(a, ta),
                          b ? " and " : "", b ? qn__describe(b, tb) : "", what);
}

int qn__broadcast_shapes(const qn_array *a, const qn_array *b, int64_t *shape)
{
    int n = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int i = 1; i <= n; i++) {
        int64_t da = i <= a->ndim ? a->shape[a->ndim - i] : 1;
        int64_t db = i <= b->ndim ? b->shape[b->ndim - i] : 1;
        if (da != db && da != 1 && db != 1)
            return -1;
        shape[n - i] = da == 1 ? db : da;
    }
    return n;
}

qn_array *qn__unbroadcast(qn_scope *s, qn_array *ct, const qn_array *like)
{
    while (ct->ndim > like->ndim)
        ct = qn_sum(s, ct, 0, false);
    for (int i = 0; i < ct->ndim && !qn__is_poison(s, ct); i++)
        if (like->shape[i] == 1 && ct->shape[i] != 1)
            ct = qn_sum(s, ct, i, true);
    return qn_cast(s, ct, (qn_dtype)like->dtype);
}

qn_array *qn__scalar_like(qn_scope *s, const qn_array *x, double value)
{
    return qn_full(s, (qn_dtype)x->dtype, 0, NULL, value);
}

qn_array *qn__zeros_like(qn_scope *s, const qn_array *x)
{
    return qn_zeros(s, (qn_dtype)x->dtype, x->ndim, x->shape);
}

qn_dtype qn__sum_type(qn_dtype type)
{
    switch (type) {
    case QN_BOOL:
    case QN_I8:
    case QN_I16: return QN_I32;
    case QN_U8:
    case QN_U16: return QN_U32;
    default: return type;
    }
}

int qn__axis(qn_scope *s, const char *operation, const qn_array *x, int axis)
{
    int a = axis < 0 ? axis + x->ndim : axis;
    if (a >= 0 && a < x->ndim)
        return a;
    char text[128];
    qn__scope_fail(s, QN_INVALID, "%s: %s has no axis %d", operation, qn__describe(x, text), axis);
    return -1;
}

qn_array *qn__indices(qn_scope *s, qn_array *ids)
{
    if (ids->dtype == QN_I64)
        ids = qn_maximum(s, ids, qn_scalar(s, QN_I64, -1));
    if (!qn__is_poison(s, ids) && qn__dtype_size((qn_dtype)ids->dtype) == 8)
        ids = qn_minimum(s, ids, qn__scalar_like(s, ids, INT32_MAX));
    return qn_contiguous(s, qn_cast(s, ids, QN_I32));
}

qn_array *qn__elementwise(qn_scope *s, qn__op_id op, qn_dtype dtype, int n_in, qn_array *const *in)
{
    qn_array out = {.ndim = 0};
    for (int i = 0; i < n_in; i++) {
        int64_t shape[QN_MAX_NDIM];
        int n = qn__broadcast_shapes(&out, in[i], shape);
        if (n < 0)
            return qn__op_fail(s, qn__ops[op]->name, in[0], in[i], "shapes do not broadcast");
        out.ndim = (uint8_t)n;
        memcpy(out.shape, shape, sizeof shape);
    }
    for (int i = 0; i < n_in; i++)
        if (in[i]->layout)
            return qn__op_fail(s, qn__ops[op]->name, in[i], NULL,
                               "packed weights: only linear and take read them");
    return qn__record(s, op, dtype, out.ndim, out.shape, n_in, in, NULL);
}
