/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing weights: from encoded rows into the layout that the device's linear layers stream.
 */
#include "core/device.h"
#include "ops/ops.h"
#include "quant/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool qn__packed_bytes(const qn_device *device, const qn__encoding *e, int64_t rows, int64_t columns,
                      size_t *bytes)
{
    qn_dtype dtype;
    qn__layout_id layout;
    if (!device->ops->hold((qn_device *)device, e, &dtype, &layout))
        return false;
    *bytes = layout ? qn__layout_bytes(layout, rows, columns)
                    : (size_t)(rows * columns) * qn__dtype_size(dtype);
    return true;
}

static void fail_hold(qn_scope *s, const qn__encoding *e)
{
    char names[512] = "";
    size_t n = 0;
    qn_dtype dtype;
    qn__layout_id layout;
    for (int i = 0; i < QN__ENCODING_COUNT && n < sizeof names; i++)
        if (s->device->ops->hold(s->device, &qn__encodings[i], &dtype, &layout))
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "",
                                  qn__encodings[i].name);
    qn__scope_fail(s, QN_UNSUPPORTED,
                   "%s holds no weights in %s; it holds them in %s, the CPU in every format",
                   s->device->name, e->name, names);
}

qn_array *qn__packed_new(qn_scope *s, const qn__encoding *e, int64_t rows, int64_t columns)
{
    qn_dtype dtype;
    qn__layout_id layout;
    size_t bytes = 0;
    if (!s || s->error.code != QN_OK)
        return NULL;
    if (!s->device->ops->hold(s->device, e, &dtype, &layout)) {
        fail_hold(s, e);
        return NULL;
    }
    if (columns % e->block_elements) {
        qn__scope_fail(s, QN_INVALID, "rows of %lld values are no whole blocks of %s, which has %d",
                       (long long)columns, e->name, e->block_elements);
        return NULL;
    }
    qn__packed_bytes(s->device, e, rows, columns, &bytes);
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
    w->layout = layout;
    w->flags = QN__CONTIGUOUS;
    w->base = w;
    w->buffer = buffer;
    qn__row_major(2, w->shape, w->stride);
    atomic_init(&w->refs, 1);
    return w;
}

bool qn__packed_is(const qn_array *w, const qn__encoding *e, bool units)
{
    return units ? w->layout == QN__UNITS_OF(e - qn__encodings)
                 : w->layout == QN__PLAIN && e == qn__encoding_of_dtype((qn_dtype)w->dtype);
}

void *qn__packed_lend(qn_array *w, size_t offset, size_t n)
{
    qn_device *device = w->buffer->device;
    return device->ops->lend ? device->ops->lend(device, n) : (char *)w->buffer->data + offset;
}

qn_status qn__packed_settle(qn_array *w, void *lent, size_t offset, size_t n, qn_error *err)
{
    qn_device *device = w->buffer->device;
    if (!device->ops->settle)
        return QN_OK;
    return device->ops->settle(device, lent, (char *)w->buffer->data + offset, n, err);
}

int qn__packed_writers(const qn_device *device)
{
    return device->ops->packers ? device->ops->packers(device) : 1;
}

qn_status qn__packed_write(qn_array *w, const qn__encoding *e, const void *rows, int64_t first,
                           int64_t n, qn_error *err)
{
    qn_device *device = w->buffer->device;
    return device->ops->pack_rows(device, w, e, rows, first, n, err);
}

const qn__encoding *qn__encoding_of_dtype(qn_dtype dtype)
{
    return dtype == QN_F32    ? &qn__encodings[QN__F32]
           : dtype == QN_F16  ? &qn__encodings[QN__F16]
           : dtype == QN_BF16 ? &qn__encodings[QN__BF16]
                              : NULL;
}

qn_array *qn_pack(qn_scope *s, qn_array *weight)
{
    qn_array *a = qn__input(s, weight, "pack");
    if (!a)
        return NULL;
    const qn__encoding *e = qn__encoding_of_dtype((qn_dtype)a->dtype);
    if (a->ndim != 2 || !e || a->layout) {
        qn__op_fail(s, "pack", a, NULL, "a weight is [N, K] in f32, bf16 or f16");
        return NULL;
    }
    size_t bytes = (size_t)qn__elements(a) * qn__dtype_size((qn_dtype)a->dtype);
    char *values = malloc(bytes ? bytes : 1);
    qn_array *w = NULL;
    if (!values)
        qn__scope_fail(s, QN_MEMORY, "out of memory while packing a weight");
    else if (qn_read(s, a, values, bytes) == QN_OK)
        w = qn__packed_new(s, e, a->shape[0], a->shape[1]);
    if (w && qn__packed_write(w, e, values, 0, a->shape[0], &s->error) != QN_OK) {
        qn_release(w);
        w = NULL;
    }
    free(values);
    return w;
}

/* The values of an array on the host, which the caller frees; NULL with the scope's error. */
static void *host_values(qn_scope *s, qn_array *a, size_t *bytes)
{
    *bytes = (size_t)qn__elements(a) * qn__dtype_size((qn_dtype)a->dtype);
    void *values = malloc(*bytes ? *bytes : 1);
    if (!values)
        qn__scope_fail(s, QN_MEMORY, "out of memory while packing a weight");
    else if (qn_read(s, a, values, *bytes) == QN_OK)
        return values;
    free(values);
    return NULL;
}

qn_array *qn_pack_quantized(qn_scope *s, qn_array *words, qn_array *scales, qn_array *biases,
                            const qn_quantization *q)
{
    qn_array *part[] = {words, scales, biases};
    for (int i = 0; i < 3; i++)
        if (!(part[i] = qn__input(s, part[i], "pack_quantized")))
            return NULL;
    const qn__encoding *type = qn__encoding_of_dtype((qn_dtype)part[1]->dtype);
    int id = !type ? -1
                   : qn__encoding_affine(q->bits, q->group_size,
                                         (qn__encoding_id)(type - qn__encodings));
    bool fit = id >= 0 && part[0]->ndim == 2 && part[0]->dtype == QN_U32 &&
               part[2]->dtype == part[1]->dtype;
    for (int i = 1; fit && i < 3; i++)
        fit = part[i]->ndim == 2 && part[i]->shape[0] == part[0]->shape[0] &&
              part[i]->shape[1] * q->group_size * q->bits == part[0]->shape[1] * 32;
    if (!fit) {
        qn__op_fail(s, "pack_quantized", part[0], part[1],
                    "w is [N, K] as qn_quantize gives it, with scales in f32, f16 or bf16");
        return NULL;
    }
    const qn__encoding *e = &qn__encodings[id];
    int64_t rows = part[0]->shape[0], groups = part[1]->shape[1];
    size_t bytes[3], row = (size_t)groups * e->block_bytes;
    void *values[3] = {NULL};
    for (int i = 0; i < 3 && qn_scope_status(s) == QN_OK; i++)
        values[i] = host_values(s, part[i], &bytes[i]);
    char *blocks = values[2] ? malloc((size_t)rows * row + 1) : NULL;
    qn_array *w = blocks ? qn__packed_new(s, e, rows, groups * q->group_size) : NULL;
    if (values[2] && !blocks)
        qn__scope_fail(s, QN_MEMORY, "out of memory while packing a weight");
    if (w)
        qn__encoding_zip(e, (size_t)(rows * groups), values[0], values[1], values[2], blocks);
    if (w && qn__packed_write(w, e, blocks, 0, rows, &s->error) != QN_OK) {
        qn_release(w);
        w = NULL;
    }
    for (int i = 0; i < 3; i++)
        free(values[i]);
    free(blocks);
    return w;
}
