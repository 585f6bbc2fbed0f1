/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing safetensors; see safetensors.h. The header is built in memory, padded with spaces to 8
 * bytes, and goes out with the data through the atomic writer.
 */
#include "io/safetensors.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/utf8.h"
#include "io/safetensors_dtype.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A growing text; `failed` sticks. */
typedef struct header_text {
    char *data;
    size_t size, capacity;
    bool failed;
} header_text;

static void append_text(header_text *text, const char *data, size_t n)
{
    if (text->failed)
        return;
    if (n > text->capacity - text->size) {
        size_t capacity = text->capacity ? text->capacity : 1024;
        while (capacity - text->size < n && capacity < SIZE_MAX / 2)
            capacity *= 2;
        char *grown = realloc(text->data, capacity);
        if (!grown) {
            text->failed = true;
            return;
        }
        text->data = grown;
        text->capacity = capacity;
    }
    memcpy(text->data + text->size, data, n);
    text->size += n;
}

static void append_format(header_text *text, const char *format, ...) QN_PRINTF(2, 3);

static void append_format(header_text *text, const char *format, ...)
{
    char piece[160];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    append_text(text, piece, (size_t)n);
}

static void append_quoted(header_text *text, const char *s)
{
    append_text(text, "\"", 1);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            append_format(text, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            append_format(text, "\\u%04x", (unsigned)*s);
        else
            append_text(text, s, 1);
    }
    append_text(text, "\"", 1);
}

static qn_status check_text(const char *path, const char *what, const char *s, qn_error *err)
{
    char quoted[64];
    size_t n = strlen(s);
    if (qn__utf8_check(s, n) == n)
        return QN_OK;
    return qn__fail(err, QN_INVALID, "%s: %s \"%s\" is not valid UTF-8", path, what,
                    qn__utf8_quote(quoted, sizeof quoted, s, n));
}

static qn_status check_tensor(const char *path, const qn__tensor_data *t, uint64_t *size,
                              qn_error *err)
{
    if ((unsigned)t->dtype >= QN_DTYPE_COUNT || t->ndim < 0 || t->ndim > QN_MAX_NDIM)
        return qn__fail(err, QN_INVALID, "%s: %s: bad dtype or number of dimensions", path,
                        t->name);
    if (strcmp(t->name, "__metadata__") == 0)
        return qn__fail(err, QN_INVALID, "%s: a tensor cannot be named __metadata__", path);
    uint64_t n = qn__safetensors_dtype_size(t->dtype);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(n, (uint64_t)t->shape[i], &n) ||
            n > INT64_MAX)
            return qn__fail(err, QN_INVALID, "%s: %s: bad shape", path, t->name);
    *size = n;
    return check_text(path, "tensor name", t->name, err);
}

static int compare_layout(const void *a, const void *b)
{
    const qn__tensor_data *x = *(const qn__tensor_data *const *)a,
                          *y = *(const qn__tensor_data *const *)b;
    uint64_t p = qn__safetensors_dtype_size(x->dtype), q = qn__safetensors_dtype_size(y->dtype);
    return p != q ? (p > q ? -1 : 1) : strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b)
{
    return strcmp((*(const qn__tensor_data *const *)a)->name,
                  (*(const qn__tensor_data *const *)b)->name);
}

/* The order of the data; refuses equal names. */
static qn_status order_tensors(const char *path, const qn__tensor_data *tensors, size_t n,
                               const qn__tensor_data **order, qn_error *err)
{
    for (size_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    if (n == 0)
        return QN_OK;
    qsort(order, n, sizeof *order, compare_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(order[i - 1]->name, order[i]->name) == 0)
            return qn__fail(err, QN_INVALID, "%s: tensor %s stands twice", path, order[i]->name);
    qsort(order, n, sizeof *order, compare_layout);
    return QN_OK;
}

static qn_status build_header(const char *path, const qn__tensor_data **order, size_t n,
                              const qn__metadata *metadata, size_t n_metadata, header_text *text,
                              uint64_t *data_size, qn_error *err)
{
    append_text(text, "{", 1);
    for (size_t i = 0; i < n_metadata; i++) {
        qn_status status = check_text(path, "metadata", metadata[i].key, err);
        if (status == QN_OK)
            status = check_text(path, "metadata", metadata[i].value, err);
        for (size_t j = 0; status == QN_OK && j < i; j++)
            if (strcmp(metadata[i].key, metadata[j].key) == 0)
                status = qn__fail(err, QN_INVALID, "%s: metadata key %s stands twice", path,
                                  metadata[i].key);
        if (status != QN_OK)
            return status;
        append_format(text, "%s", i ? "," : "\"__metadata__\":{");
        append_quoted(text, metadata[i].key);
        append_text(text, ":", 1);
        append_quoted(text, metadata[i].value);
    }
    if (n_metadata > 0)
        append_text(text, "}", 1);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const qn__tensor_data *t = order[i];
        uint64_t size, end;
        qn_status status = check_tensor(path, t, &size, err);
        if (status != QN_OK)
            return status;
        if (__builtin_add_overflow(at, size, &end) || end > INT64_MAX)
            return qn__fail(err, QN_INVALID, "%s: the tensors are too large", path);
        if (i > 0 || n_metadata > 0)
            append_text(text, ",", 1);
        append_quoted(text, t->name);
        append_format(text, ":{\"dtype\":\"%s\",\"shape\":[", qn__safetensors_dtype_name(t->dtype));
        for (int d = 0; d < t->ndim; d++)
            append_format(text, "%s%lld", d ? "," : "", (long long)t->shape[d]);
        append_format(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                      (unsigned long long)end);
        at = end;
    }
    append_text(text, "}", 1);
    while (!text->failed && text->size % 8 != 0)
        append_text(text, " ", 1);
    if (text->failed)
        return qn__fail_memory(err, "a safetensors header");
    if (text->size > QN__SAFETENSORS_MAX_HEADER)
        return qn__fail(err, QN_LIMIT, "%s: the header needs %zu bytes, more than %u", path,
                        text->size, QN__SAFETENSORS_MAX_HEADER);
    *data_size = at;
    return QN_OK;
}

static qn_status write_file(const char *path, const qn__tensor_data **order, size_t n,
                            const header_text *header, uint64_t data_size, qn__tensor_put *put,
                            void *user, qn_error *err)
{
    qn__writer *writer;
    qn_status status =
        qn__writer_open(&writer, path, 8 + header->size + data_size, QN__WRITER_REPLACE, err);
    if (status != QN_OK)
        return status;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)header->size >> 8 * i);
    status = qn__writer_write(writer, prefix, sizeof prefix, err);
    if (status == QN_OK)
        status = qn__writer_write(writer, header->data, header->size, err);
    for (size_t i = 0; status == QN_OK && i < n; i++) {
        uint64_t size;
        status = check_tensor(path, order[i], &size, err);
        if (status == QN_OK)
            status = put ? put(user, writer, order[i], err)
                         : qn__writer_write(writer, order[i]->data, (size_t)size, err);
    }
    if (status != QN_OK) {
        qn__writer_abort(writer);
        return status;
    }
    return qn__writer_commit(writer, err);
}

qn_status qn__safetensors_write_with(const char *path, const qn__tensor_data *tensors, size_t n,
                                     const qn__metadata *metadata, size_t n_metadata,
                                     qn__tensor_put *put, void *user, qn_error *err)
{
    size_t bytes;
    header_text header = {0};
    uint64_t data_size = 0;
    if (!qn__mul_size(n + 1, sizeof(qn__tensor_data *), &bytes))
        return qn__fail_memory(err, "a safetensors file");
    const qn__tensor_data **order = malloc(bytes);
    if (!order)
        return qn__fail_memory(err, "a safetensors file");
    qn_status status = order_tensors(path, tensors, n, order, err);
    if (status == QN_OK)
        status = build_header(path, order, n, metadata, n_metadata, &header, &data_size, err);
    if (status == QN_OK)
        status = write_file(path, order, n, &header, data_size, put, user, err);
    free(header.data);
    free(order);
    return status;
}

qn_status qn__safetensors_write(const char *path, const qn__tensor_data *tensors, size_t n,
                                const qn__metadata *metadata, size_t n_metadata, qn_error *err)
{
    return qn__safetensors_write_with(path, tensors, n, metadata, n_metadata, NULL, NULL, err);
}
