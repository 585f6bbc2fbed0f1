/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing weights: from row-major values into the layout that the device's linear layers stream.
 */
#include "core/device.h"
#include "ops/ops.h"
#include "quant/format.h"

#include <stdlib.h>

size_t qn__packed_bytes(const qn_device *device, qn_dtype dtype, int64_t rows, int64_t columns)
{
    uint8_t format = device->ops->weight_format((qn_device *)device, dtype);
    return format ? qn__format_bytes(format, rows, columns)
                  : (size_t)(rows * columns) * qn__dtype_size(dtype);
}

qn_array *qn__packed_new(qn_scope *s, qn_dtype dtype, int64_t rows, int64_t columns)
{
    if (!s || s->error.code != QN_OK)
        return NULL;
    uint8_t format = s->device->ops->weight_format(s->device, dtype);
    size_t bytes = qn__packed_bytes(s->device, dtype, rows, columns);
    qn_array *w = calloc(1, sizeof *w);
    qn__buffer *buffer = w ? qn__buffer_new(s->device, bytes ? bytes : 1, &s->error) : NULL;
    if (!buffer) {
        qn__scope_fail(s, QN_MEMORY, "out of memory for a weight of %zu bytes", bytes);
        free(w);
        return NULL;
    }
    w->dtype = (uint8_t)dtype;
    w->ndim = 2;
    w->shape[0] = rows;
    w->shape[1] = columns;
    w->format = format;
    w->flags = QN__CONTIGUOUS;
    w->base = w;
    w->buffer = buffer;
    qn__row_major(2, w->shape, w->stride);
    atomic_init(&w->refs, 1);
    return w;
}

qn_status qn__packed_write(qn_scope *s, qn_array *w, qn_dtype dtype, const void *values,
                           int64_t first, int64_t n)
{
    return s->device->ops->pack_rows(s->device, w, dtype, values, first, n, &s->error);
}

qn_dtype qn__packed_type(qn_dtype dtype)
{
    return dtype == QN_BF16 ? QN_BF16 : QN_F32;
}

qn_array *qn_pack(qn_scope *s, qn_array *weight)
{
    qn_array *a = qn__input(s, weight, "pack");
    if (!a)
        return NULL;
    if (a->ndim != 2 || (a->dtype != QN_F32 && a->dtype != QN_BF16 && a->dtype != QN_F16)) {
        qn__op_fail(s, "pack", a, NULL, "a weight is [N, K] in f32, bf16 or f16");
        return NULL;
    }
    size_t bytes = (size_t)qn__elements(a) * qn__dtype_size((qn_dtype)a->dtype);
    char *values = malloc(bytes ? bytes : 1);
    qn_array *w = NULL;
    if (!values)
        qn__scope_fail(s, QN_MEMORY, "out of memory while packing a weight");
    else if (qn_read(s, a, values, bytes) == QN_OK)
        w = qn__packed_new(s, qn__packed_type((qn_dtype)a->dtype), a->shape[0], a->shape[1]);
    if (w && qn__packed_write(s, w, (qn_dtype)a->dtype, values, 0, a->shape[0]) != QN_OK) {
        qn_release(w);
        w = NULL;
    }
    free(values);
    return w;
}
