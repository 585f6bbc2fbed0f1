/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts about one array: sizes, layout, a description for error messages.
 */
#include "core/array.h"

#include "core/dtype.h"
#include "quant/layout.h"

#include <stdio.h>

bool qn__is_contiguous(int ndim, const int64_t *shape, const int64_t *stride)
{
    int64_t expect = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] != 1 && stride[i] != expect)
            return false;
        expect *= shape[i];
    }
    return true;
}

void qn__row_major(int ndim, const int64_t *shape, int64_t *stride)
{
    uint64_t n =
        1; /* wraps for sizes that no array has, which are found when a node is made of them */
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = (int64_t)n;
        n *= (uint64_t)shape[i];
    }
}

size_t qn__storage_bytes(const qn_array *base)
{
    int64_t columns = base->ndim ? base->shape[base->ndim - 1] : 1;
    if (base->layout != QN__PLAIN)
        return columns ? qn__layout_bytes(base->layout, qn__elements(base) / columns, columns) : 0;
    return (size_t)qn__elements(base) * qn__dtype_size((qn_dtype)base->dtype);
}

const char *qn__describe(const qn_array *a, char *text)
{
    int n = snprintf(text, 128, "[");
    for (int i = 0; i < a->ndim; i++)
        n += snprintf(text + n, (size_t)(128 - n), "%s%lld", i ? ", " : "", (long long)a->shape[i]);
    snprintf(text + n, (size_t)(128 - n), "] %s", qn_dtype_name((qn_dtype)a->dtype));
    return text;
}

qn_dtype qn_array_dtype(const qn_array *a)
{
    return a ? (qn_dtype)a->dtype : QN_F32;
}

int qn_array_ndim(const qn_array *a)
{
    return a ? a->ndim : 0;
}

int64_t qn_array_dim(const qn_array *a, int axis)
{
    if (!a)
        return -1;
    if (axis < 0)
        axis += a->ndim;
    return axis >= 0 && axis < a->ndim ? a->shape[axis] : -1;
}

int64_t qn_array_elements(const qn_array *a)
{
    return a ? qn__elements(a) : 0;
}
