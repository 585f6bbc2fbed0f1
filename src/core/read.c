/* SPDX-License-Identifier: Apache-2.0
 *
 * Values between host and device: arrays from host memory, typed reads of any view.
 */
#include "core/device.h"
#include "core/dtype.h"
#include "core/scope.h"

#include <stdlib.h>

qn_array *qn_from(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape, const void *values)
{
    if (!s)
        return qn__poison(s);
    if ((unsigned)dtype >= QN_DTYPE_COUNT || ndim < 0 || ndim > QN_MAX_NDIM)
        return qn__scope_fail(s, QN_INVALID, "from: %d axes, the limit is %d", ndim, QN_MAX_NDIM);
    int64_t n = (int64_t)qn__dtype_size(dtype);
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n))
            return qn__scope_fail(s, QN_INVALID, "from: axis %d has size %lld", i,
                                  (long long)shape[i]);
    qn_array *a = qn__leaf_new(s, dtype, ndim, shape);
    if (qn__is_poison(s, a) || !n)
        return a;
    if (s->device->ops->write(s->device, a->buffer->data, values, (size_t)n, &s->error) != QN_OK)
        return qn__poison(s);
    return a;
}

qn_array *qn_from_f32(qn_scope *s, const float *values, int64_t n)
{
    return qn_from(s, QN_F32, 1, &n, values);
}

qn_array *qn_from_i32(qn_scope *s, const int32_t *values, int64_t n)
{
    return qn_from(s, QN_I32, 1, &n, values);
}

/* First and one past the last element that a view touches, from the start of its storage. */
static void view_span(const qn_array *a, int64_t *first, int64_t *end)
{
    *first = *end = a->offset;
    for (int i = 0; i < a->ndim; i++) {
        int64_t reach = (a->shape[i] - 1) * a->stride[i];
        *(reach < 0 ? first : end) += reach;
    }
    ++*end;
}

typedef void visit_fn(void *out, size_t i, const void *element, qn_dtype dtype);

/* Calls visit for each element in row-major order. host holds the storage from element `first`. */
static void visit_elements(const qn_array *a, const char *host, int64_t first, visit_fn *visit,
                           void *out)
{
    int64_t index[QN_MAX_NDIM] = {0}, at = a->offset - first;
    size_t size = qn__dtype_size((qn_dtype)a->dtype), n = (size_t)qn__elements(a);
    for (size_t i = 0; i < n; i++) {
        visit(out, i, host + at * (int64_t)size, (qn_dtype)a->dtype);
        for (int d = a->ndim - 1; d >= 0; d--) {
            at += a->stride[d];
            if (++index[d] < a->shape[d])
                break;
            at -= a->stride[d] * a->shape[d];
            index[d] = 0;
        }
    }
}

static qn_status read_with(qn_scope *s, qn_array *array, size_t n, visit_fn *visit, void *out)
{
    qn_array *a = qn__input(s, array, "read");
    if (!a)
        return qn_scope_status(s);
    if (qn_eval(s, a) != QN_OK)
        return s->error.code;
    if ((size_t)qn__elements(a) != n || a->format || a->base->flags & QN__SPENT) {
        char text[128];
        qn__scope_fail(s, QN_INVALID, "read: %zu elements wanted from %s%s", n,
                       qn__describe(a, text),
                       a->format                    ? " in a packed format"
                       : a->base->flags & QN__SPENT ? ", which was overwritten in place"
                                                    : "");
        return s->error.code;
    }
    if (!n)
        return QN_OK;
    int64_t first, end;
    view_span(a, &first, &end);
    size_t size = qn__dtype_size((qn_dtype)a->dtype), bytes = (size_t)(end - first) * size;
    char *host = malloc(bytes);
    if (!host) {
        qn__scope_fail(s, QN_MEMORY, "out of memory while reading %zu bytes", bytes);
        return s->error.code;
    }
    char *from = (char *)a->base->buffer->data + first * (int64_t)size;
    if (s->device->ops->read(s->device, host, from, bytes, &s->error) == QN_OK)
        visit_elements(a, host, first, visit, out);
    free(host);
    return s->error.code;
}

static void visit_raw(void *out, size_t i, const void *element, qn_dtype dtype)
{
    size_t size = qn__dtype_size(dtype);
    memcpy((char *)out + i * size, element, size);
}

static void visit_f32(void *out, size_t i, const void *element, qn_dtype dtype)
{
    ((float *)out)[i] =
        dtype == QN_F32 ? *(const float *)element : (float)qn__element_to_f64(element, dtype);
}

static void visit_i64(void *out, size_t i, const void *element, qn_dtype dtype)
{
    ((int64_t *)out)[i] = qn__element_to_i64(element, dtype);
}

qn_status qn_read(qn_scope *s, qn_array *a, void *out, size_t bytes)
{
    size_t size = a ? qn__dtype_size((qn_dtype)a->dtype) : 1;
    if (bytes % size) {
        qn__scope_fail(s, QN_INVALID, "read: %zu bytes are no whole number of elements", bytes);
        return qn_scope_status(s);
    }
    return read_with(s, a, bytes / size, visit_raw, out);
}

qn_status qn_read_f32(qn_scope *s, qn_array *a, float *out, size_t n)
{
    return read_with(s, a, n, visit_f32, out);
}

qn_status qn_read_i64(qn_scope *s, qn_array *a, int64_t *out, size_t n)
{
    return read_with(s, a, n, visit_i64, out);
}
