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
    if (ndim && !shape)
        return qn__scope_fail(s, QN_INVALID, "from: no shape");
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n))
            return qn__scope_fail(s, QN_INVALID, "from: axis %d has size %lld", i,
                                  (long long)shape[i]);
    if (n && !values)
        return qn__scope_fail(s, QN_INVALID, "from: no values");
    qn_array *a = qn__leaf_new(s, dtype, ndim, ndim ? shape : (const int64_t[]){0});
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

/* Moves `at` and the index to the next element in row-major order. */
static void step(int ndim, const int64_t *shape, const int64_t *stride, int64_t *index, int64_t *at)
{
    for (int d = ndim - 1; d >= 0; d--) {
        *at += stride[d];
        if (++index[d] < shape[d])
            break;
        *at -= stride[d] * shape[d];
        index[d] = 0;
    }
}

/* Calls visit for each element in row-major order. host holds the storage from element `first`. */
static void visit_elements(const qn_array *a, const char *host, int64_t first, visit_fn *visit,
                           void *out)
{
    int64_t index[QN_MAX_NDIM] = {0}, at = a->offset - first;
    size_t size = qn__dtype_size((qn_dtype)a->dtype), n = (size_t)qn__elements(a);
    for (size_t i = 0; i < n; i++) {
        visit(out, i, host + at * (int64_t)size, (qn_dtype)a->dtype);
        step(a->ndim, a->shape, a->stride, index, &at);
    }
}

/* The evaluated array behind `array`; NULL with the scope's error set. */
static qn_array *readable(qn_scope *s, qn_array *array)
{
    qn_array *a = qn__input(s, array, "read");
    if (!a || qn_eval(s, a) != QN_OK)
        return NULL;
    if (!a->layout && !(a->base->flags & QN__SPENT))
        return a;
    char text[128];
    qn__scope_fail(s, QN_INVALID, "read: %s%s", qn__describe(a, text),
                   a->layout ? " is in a packed format" : " was overwritten in place");
    return NULL;
}

/* Reads elements first .. end - 1 of a's storage; false with the scope's error set. */
static bool read_span(qn_scope *s, const qn_array *a, int64_t first, int64_t end, void *host)
{
    size_t size = qn__dtype_size((qn_dtype)a->dtype);
    const qn__buffer *from = a->base->buffer;
    if (s->device->ops->read(s->device, host, from, (size_t)first * size,
                             (size_t)(end - first) * size, &s->error) == QN_OK) {
        if (!atomic_load(&from->invalid))
            return true;
        qn__scope_fail(s, QN_STATE, "read: the array is the result of a run that failed");
    }
    return false;
}

/* A copy on the host of the storage that a view with elements spans, from element *first; to be
 * freed. NULL with the scope's error set. */
static char *fetch(qn_scope *s, const qn_array *a, int64_t *first)
{
    int64_t end;
    view_span(a, first, &end);
    size_t bytes = (size_t)(end - *first) * qn__dtype_size((qn_dtype)a->dtype);
    char *host = malloc(bytes);
    if (!host) {
        qn__scope_fail(s, QN_MEMORY, "out of memory while reading %zu bytes", bytes);
        return NULL;
    }
    if (read_span(s, a, *first, end, host))
        return host;
    free(host);
    return NULL;
}

/* Whether the elements lie side by side in their order. */
static bool is_dense(const qn_array *a)
{
    int64_t stride = 1;
    for (int i = a->ndim - 1; i >= 0; stride *= a->shape[i--])
        if (a->shape[i] > 1 && a->stride[i] != stride)
            return false;
    return true;
}

/* raw: out takes the elements as they are. */
static qn_status read_with(qn_scope *s, qn_array *array, size_t n, bool raw, visit_fn *visit,
                           void *out)
{
    qn_array *a = readable(s, array);
    if (!a)
        return qn_scope_status(s);
    if ((size_t)qn__elements(a) != n) {
        char text[128];
        qn__scope_fail(s, QN_INVALID, "read: %zu elements wanted from %s", n,
                       qn__describe(a, text));
        return s->error.code;
    }
    if (!n)
        return QN_OK;
    if (raw && is_dense(a)) {
        read_span(s, a, a->offset, a->offset + (int64_t)n, out);
        return s->error.code;
    }
    int64_t first;
    char *host = fetch(s, a, &first);
    if (host)
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
    return read_with(s, a, bytes / size, true, visit_raw, out);
}

qn_status qn_read_f32(qn_scope *s, qn_array *a, float *out, size_t n)
{
    return read_with(s, a, n, a && a->dtype == QN_F32, visit_f32, out);
}

qn_status qn_read_i64(qn_scope *s, qn_array *a, int64_t *out, size_t n)
{
    return read_with(s, a, n, a && a->dtype == QN_I64, visit_i64, out);
}

typedef struct typed_room {
    char *out;
    qn_dtype dtype;
} typed_room;

/* As qn_cast converts: whole numbers as such, u64 to floats through f64. */
static void visit_typed(void *out, size_t i, const void *element, qn_dtype dtype)
{
    const typed_room *room = out;
    char *to = room->out + i * qn__dtype_size(room->dtype);
    if (qn__is_float(dtype) || (dtype == QN_U64 && qn__is_float(room->dtype)))
        qn__element_from_f64(to, room->dtype, qn__element_to_f64(element, dtype));
    else
        qn__element_from_i64(to, room->dtype, qn__element_to_i64(element, dtype));
}

qn_status qn_read_as(qn_scope *s, qn_array *a, qn_dtype dtype, void *out, size_t n)
{
    if ((unsigned)dtype >= QN_DTYPE_COUNT) {
        qn__scope_fail(s, QN_INVALID, "read_as: not a type");
        return qn_scope_status(s);
    }
    if (a && a->dtype == dtype)
        return read_with(s, a, n, true, visit_raw, out);
    typed_room room = {out, dtype};
    return read_with(s, a, n, false, visit_typed, &room);
}

/* ---- element by element --------------------------------------------------------------------- */

struct qn_cursor {
    qn_dtype dtype;
    int ndim;
    int64_t shape[QN_MAX_NDIM], stride[QN_MAX_NDIM], index[QN_MAX_NDIM];
    int64_t at, left; /* the element it stands on, from `host`; elements not yet visited */
    bool begun;
    char *host;
};

qn_cursor *qn_cursor_open(qn_scope *s, qn_array *array)
{
    qn_array *a = readable(s, array);
    qn_cursor *c = a ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        if (a)
            qn__scope_fail(s, QN_MEMORY, "out of memory for a cursor");
        return NULL;
    }
    c->dtype = (qn_dtype)a->dtype;
    c->ndim = a->ndim;
    memcpy(c->shape, a->shape, sizeof c->shape);
    memcpy(c->stride, a->stride, sizeof c->stride);
    c->left = qn__elements(a);
    int64_t first = 0;
    if (c->left && !(c->host = fetch(s, a, &first))) {
        free(c);
        return NULL;
    }
    c->at = a->offset - first;
    return c;
}

bool qn_cursor_next(qn_cursor *c)
{
    if (!c || !c->left)
        return false;
    if (c->begun)
        step(c->ndim, c->shape, c->stride, c->index, &c->at);
    c->begun = true;
    c->left--;
    return true;
}

const int64_t *qn_cursor_index(const qn_cursor *c)
{
    return c->index;
}

const void *qn_cursor_value(const qn_cursor *c)
{
    return c->host + c->at * (int64_t)qn__dtype_size(c->dtype);
}

double qn_cursor_f64(const qn_cursor *c)
{
    return qn__element_to_f64(qn_cursor_value(c), c->dtype);
}

int64_t qn_cursor_i64(const qn_cursor *c)
{
    return qn__element_to_i64(qn_cursor_value(c), c->dtype);
}

void qn_cursor_close(qn_cursor *c)
{
    if (c)
        free(c->host);
    free(c);
}
