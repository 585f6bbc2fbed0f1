/* SPDX-License-Identifier: Apache-2.0
 *
 * The safetensors reader; see safetensors.h. The header is read with the pull scanner, so that a
 * million tensors cost a table and no tree. Invariants of an open reader: names are unique, every
 * size is the checked product of its shape, and the tensors of a file tile its data exactly.
 */
#include "io/safetensors.h"

#include "base/checked.h"
#include "base/json_scan.h"
#include "base/utf8.h"
#include "io/safetensors_dtype.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- one tensor of a header ----------------------------------------------------------------- */

static bool parse_dtype(qn__json_scan *scan, qn_tensor_info *info)
{
    qn__json_text text;
    if (!qn__json_read_string(scan, &text))
        return false;
    char quoted[40];
    switch (qn__safetensors_dtype(text.data, text.size, &info->dtype)) {
    case QN_OK: return true;
    case QN_UNSUPPORTED:
        return qn__json_scan_fail(scan, QN_UNSUPPORTED, "dtype %s is not supported (supported: %s)",
                                  qn__utf8_quote(quoted, sizeof quoted, text.data, text.size),
                                  QN__SAFETENSORS_DTYPES);
    default:
        return qn__json_scan_fail(scan, QN_FORMAT, "unknown dtype \"%s\" (supported: %s)",
                                  qn__utf8_quote(quoted, sizeof quoted, text.data, text.size),
                                  QN__SAFETENSORS_DTYPES);
    }
}

static bool parse_shape(qn__json_scan *scan, qn_tensor_info *info)
{
    if (!qn__json_enter_array(scan))
        return false;
    int n = 0;
    while (qn__json_next_item(scan)) {
        if (n == QN_MAX_NDIM)
            return qn__json_scan_fail(scan, QN_UNSUPPORTED, "more than %d dimensions", QN_MAX_NDIM);
        if (!qn__json_read_int(scan, 0, INT64_MAX, &info->shape[n]))
            return false;
        n++;
    }
    info->ndim = n;
    return scan->status == QN_OK;
}

static bool parse_offsets(qn__json_scan *scan, qn_tensor_info *info)
{
    int64_t value[2] = {0, 0};
    int n = 0;
    if (!qn__json_enter_array(scan))
        return false;
    while (qn__json_next_item(scan)) {
        if (n == 2)
            return qn__json_scan_fail(scan, QN_FORMAT, "expected two offsets, got more");
        if (!qn__json_read_int(scan, 0, INT64_MAX, &value[n]))
            return false;
        n++;
    }
    if (scan->status != QN_OK)
        return false;
    if (n != 2)
        return qn__json_scan_fail(scan, QN_FORMAT, "expected two offsets, got %d", n);
    if (value[0] > value[1])
        return qn__json_scan_fail(scan, QN_FORMAT, "offsets are reversed: %lld > %lld",
                                  (long long)value[0], (long long)value[1]);
    info->offset = (uint64_t)value[0];
    info->bytes = (uint64_t)(value[1] - value[0]);
    return true;
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, each exactly once. */
static bool parse_tensor(qn__json_scan *scan, qn_tensor_info *info)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    static bool (*const parsers[])(qn__json_scan *, qn_tensor_info *) = {parse_dtype, parse_shape,
                                                                         parse_offsets};
    bool seen[3] = {false, false, false};
    qn__json_text key;
    if (!qn__json_enter_object(scan))
        return false;
    while (qn__json_next_key(scan, &key)) {
        int i = 0;
        while (i < 3 && !qn__json_text_is(&key, fields[i]))
            i++;
        if (i == 3)
            return qn__json_scan_fail(scan, QN_FORMAT, "unknown field");
        if (seen[i])
            return qn__json_scan_fail(scan, QN_FORMAT, "the field stands twice");
        seen[i] = true;
        if (!parsers[i](scan, info))
            return false;
    }
    if (scan->status != QN_OK)
        return false;
    for (int i = 0; i < 3; i++)
        if (!seen[i])
            return qn__json_scan_fail(scan, QN_FORMAT, "%s is missing", fields[i]);
    uint64_t bytes;
    if (!qn__tensor_bytes(info->dtype, info->ndim, info->shape, &bytes))
        return qn__json_scan_fail(scan, QN_FORMAT, "the shape's product overflows 64 bits");
    if (bytes != info->bytes)
        return qn__json_scan_fail(scan, QN_FORMAT,
                                  "the shape needs %llu bytes, the offsets give %llu",
                                  (unsigned long long)bytes, (unsigned long long)info->bytes);
    return true;
}

/* ---- one header ----------------------------------------------------------------------------- */

static int compare_metadata(const void *a, const void *b)
{
    return strcmp(((const qn__metadata *)a)->key, ((const qn__metadata *)b)->key);
}

/* __metadata__: strings only, or null, which mlx-lm writes. Kept for the first file, checked in
 * all. */
static bool parse_metadata(qn_tensors *reader, qn__json_scan *scan, bool keep)
{
    qn__json_text text;
    qn__metadata *list = NULL;
    size_t n = 0, capacity = 0;
    if (qn__json_peek(scan) == QN__JSON_NULL)
        return qn__json_skip(scan, NULL);
    if (!qn__json_enter_object(scan))
        return false;
    while (qn__json_next_key(scan, &text)) {
        char *key = qn__arena_strndup(&reader->names, text.data, text.size);
        if (!qn__json_read_string(scan, &text))
            break;
        char *value = qn__arena_strndup(&reader->names, text.data, text.size);
        if (!key || !value || !qn__grow_table((void **)&list, n, &capacity, sizeof *list)) {
            scan->status = qn__fail_memory(scan->err, "safetensors metadata");
            break;
        }
        list[n++] = (qn__metadata){key, value};
    }
    if (scan->status == QN_OK && n > 0)
        qsort(list, n, sizeof *list, compare_metadata);
    char quoted[64];
    for (size_t i = 1; scan->status == QN_OK && i < n; i++)
        if (strcmp(list[i - 1].key, list[i].key) == 0)
            qn__json_scan_fail(
                scan, QN_FORMAT, "key \"%s\" stands twice",
                qn__utf8_quote(quoted, sizeof quoted, list[i].key, strlen(list[i].key)));
    if (scan->status == QN_OK && keep) {
        reader->metadata = list;
        reader->n_metadata = n;
    } else {
        free(list);
    }
    return scan->status == QN_OK;
}

static bool parse_header(qn_tensors *reader, qn__json_scan *scan, uint32_t file)
{
    qn__json_text key;
    bool has_metadata = false;
    if (!qn__json_enter_object(scan))
        return false;
    while (qn__json_next_key(scan, &key)) {
        if (qn__json_text_is(&key, "__metadata__")) {
            if (has_metadata)
                return qn__json_scan_fail(scan, QN_FORMAT, "the key stands twice");
            has_metadata = true;
            if (!parse_metadata(reader, scan, file == 0))
                return false;
            continue;
        }
        qn_tensor_info *info = qn__tensors_add(reader);
        char *name = info ? qn__arena_strndup(&reader->names, key.data, key.size) : NULL;
        if (!name) {
            scan->status = qn__fail_memory(scan->err, "a tensor table");
            return false;
        }
        info->file = file;
        info->name = name;
        if (!parse_tensor(scan, info))
            return false;
        reader->n_tensors++;
    }
    return scan->status == QN_OK;
}

/* Where a tensor's data lie, to be sorted in the place of a million long entries. */
typedef struct data_span {
    uint64_t offset, size;
    size_t index;
} data_span;

static int compare_spans(const void *a, const void *b)
{
    const data_span *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The spans of n tensors, in the order of their offsets; NULL: no memory. */
static data_span *sorted_spans(const qn_tensor_info *tensors, size_t n)
{
    data_span *spans = malloc((n + 1) * sizeof *spans);
    for (size_t i = 0; spans && i < n; i++)
        spans[i] = (data_span){tensors[i].offset, tensors[i].bytes, i};
    if (spans)
        qsort(spans, n, sizeof *spans, compare_spans);
    return spans;
}

static qn_status fail_span(const char *path, const char *name, const data_span *s, uint64_t at,
                           uint64_t data_size, qn_error *err)
{
    char quoted[100];
    qn__utf8_quote(quoted, sizeof quoted, name, strlen(name));
    if (s->offset != at)
        return qn__fail(err, QN_FORMAT, "%s: %s: data_offsets begin at %llu, expected %llu (%s)",
                        path, quoted, (unsigned long long)s->offset, (unsigned long long)at,
                        s->offset < at ? "tensors overlap" : "a hole");
    return qn__fail(err, QN_FORMAT,
                    "%s: %s: data_offsets end at %llu, but the file has %llu bytes of data (an "
                    "interrupted download?)",
                    path, quoted, (unsigned long long)(s->offset + s->size),
                    (unsigned long long)data_size);
}

/* The tensors of one file must tile data_size bytes; makes their offsets absolute. */
static qn_status check_tiling(const char *path, qn_tensor_info *tensors, size_t n,
                              uint64_t data_start, uint64_t data_size, qn_error *err)
{
    data_span *spans = sorted_spans(tensors, n);
    if (!spans)
        return qn__fail_memory(err, "a tensor table");
    uint64_t at = 0;
    size_t i = 0;
    for (; i < n && spans[i].offset == at && spans[i].size <= data_size - at; i++)
        at += spans[i].size;
    qn_status status = QN_OK;
    if (i < n)
        status = fail_span(path, tensors[spans[i].index].name, &spans[i], at, data_size, err);
    else if (at != data_size)
        status = qn__fail(err, QN_FORMAT, "%s: %llu bytes of data, but the tensors cover only %llu",
                          path, (unsigned long long)data_size, (unsigned long long)at);
    free(spans);
    for (i = 0; i < n; i++)
        tensors[i].offset += data_start;
    return status;
}

static qn_status load_safetensors(qn_tensors *reader, uint32_t file, qn_error *err)
{
    const qn__file *f = &reader->files[file].file;
    const char *path = f->path;
    if (f->size < 8)
        return qn__fail(err, QN_FORMAT, "%s: %llu bytes, too short for a safetensors file", path,
                        (unsigned long long)f->size);
    unsigned char prefix[8];
    qn_status status = qn__file_pread(f, 0, prefix, sizeof prefix, err);
    if (status != QN_OK)
        return status;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | prefix[i];
    if (n == 0 || n > QN__SAFETENSORS_MAX_HEADER)
        return qn__fail(err, QN_FORMAT, "%s: header length %llu, expected 1..%u", path,
                        (unsigned long long)n, QN__SAFETENSORS_MAX_HEADER);
    if (n > f->size - 8)
        return qn__fail(
            err, QN_FORMAT,
            "%s: header length %llu, but the file has %llu bytes (an interrupted download?)", path,
            (unsigned long long)n, (unsigned long long)f->size);
    char *header = malloc((size_t)n);
    if (!header)
        return qn__fail_memory(err, "a safetensors header");
    size_t first = reader->n_tensors;
    status = qn__file_pread(f, 8, header, (size_t)n, err);
    if (status == QN_OK && header[0] != '{')
        status = qn__fail(err, QN_FORMAT, "%s: the header does not begin with '{'", path);
    if (status == QN_OK) {
        qn__json_scan scan;
        qn__json_scan_begin(&scan, path, header, (size_t)n, err);
        parse_header(reader, &scan, file);
        status = qn__json_scan_end(&scan);
    }
    free(header);
    if (status != QN_OK)
        return status;
    return check_tiling(path, reader->tensors + first, reader->n_tensors - first, 8 + n,
                        f->size - 8 - n, err);
}

const qn__file_kind qn__safetensors_kind = {.load = load_safetensors};
