/* SPDX-License-Identifier: Apache-2.0
 *
 * The safetensors reader; see safetensors.h. The header is read with the pull scanner, so that a
 * million tensors cost a table and no tree. Invariants of an open reader: names are unique, every
 * size is the checked product of its shape, and the tensors of a file tile its data exactly.
 */
#include "io/safetensors.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_scan.h"
#include "base/utf8.h"
#include "io/safetensors_dtype.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct shard {
    qn__file file;
    uint64_t name_hash; /* of the name in the index, to find it again */
    const char *name;
} shard;

struct qn__safetensors {
    qn__arena names;
    shard *shards;
    uint32_t n_shards;
    qn__tensor_info *tensors;
    size_t n_tensors, capacity;
    qn__metadata *metadata;
    size_t n_metadata, metadata_capacity;
};

/* One entry of an index: the tensor and the shard where it should be. */
typedef struct map_entry {
    const char *name;
    uint32_t file;
} map_entry;

/* Room for one more element of `size` bytes; false when memory is out. */
static bool grow_table(void **items, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity)
        return true;
    size_t wanted = *capacity ? *capacity * 2 : 16, bytes;
    if (!qn__mul_size(wanted, size, &bytes))
        return false;
    void *grown = realloc(*items, bytes);
    if (!grown)
        return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

/* ---- one tensor of a header ----------------------------------------------------------------- */

static bool parse_dtype(qn__json_scan *scan, qn__tensor_info *info)
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

static bool parse_shape(qn__json_scan *scan, qn__tensor_info *info)
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

static bool parse_offsets(qn__json_scan *scan, qn__tensor_info *info)
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
    info->size = (uint64_t)(value[1] - value[0]);
    return true;
}

static bool text_is(const qn__json_text *text, const char *word)
{
    return text->size == strlen(word) && memcmp(text->data, word, text->size) == 0;
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, each exactly once. */
static bool parse_tensor(qn__json_scan *scan, qn__tensor_info *info)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    static bool (*const parsers[])(qn__json_scan *, qn__tensor_info *) = {parse_dtype, parse_shape,
                                                                          parse_offsets};
    bool seen[3] = {false, false, false};
    qn__json_text key;
    if (!qn__json_enter_object(scan))
        return false;
    while (qn__json_next_key(scan, &key)) {
        int i = 0;
        while (i < 3 && !text_is(&key, fields[i]))
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
    uint64_t bytes = qn__safetensors_dtype_size(info->dtype);
    for (int i = 0; i < info->ndim; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)info->shape[i], &bytes))
            return qn__json_scan_fail(scan, QN_FORMAT, "the shape's product overflows 64 bits");
    if (bytes != info->size)
        return qn__json_scan_fail(scan, QN_FORMAT,
                                  "the shape needs %llu bytes, the offsets give %llu",
                                  (unsigned long long)bytes, (unsigned long long)info->size);
    return true;
}

/* ---- one header ----------------------------------------------------------------------------- */

static int compare_metadata(const void *a, const void *b)
{
    return strcmp(((const qn__metadata *)a)->key, ((const qn__metadata *)b)->key);
}

/* __metadata__: strings only, or null, which mlx-lm writes. Kept for the first file, checked in
 * all. */
static bool parse_metadata(qn__safetensors *reader, qn__json_scan *scan, bool keep)
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
        if (!key || !value || !grow_table((void **)&list, n, &capacity, sizeof *list)) {
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

static bool parse_header(qn__safetensors *reader, qn__json_scan *scan, uint32_t file)
{
    qn__json_text key;
    bool has_metadata = false;
    if (!qn__json_enter_object(scan))
        return false;
    while (qn__json_next_key(scan, &key)) {
        if (text_is(&key, "__metadata__")) {
            if (has_metadata)
                return qn__json_scan_fail(scan, QN_FORMAT, "the key stands twice");
            has_metadata = true;
            if (!parse_metadata(reader, scan, file == 0))
                return false;
            continue;
        }
        if (!grow_table((void **)&reader->tensors, reader->n_tensors, &reader->capacity,
                        sizeof *reader->tensors)) {
            scan->status = qn__fail_memory(scan->err, "a tensor table");
            return false;
        }
        qn__tensor_info *info = &reader->tensors[reader->n_tensors];
        *info = (qn__tensor_info){.file = file};
        info->name = qn__arena_strndup(&reader->names, key.data, key.size);
        if (!info->name) {
            scan->status = qn__fail_memory(scan->err, "a tensor name");
            return false;
        }
        if (!parse_tensor(scan, info))
            return false;
        reader->n_tensors++;
    }
    return scan->status == QN_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const qn__tensor_info *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The tensors of one file must tile data_size bytes; makes their offsets absolute. */
static qn_status check_tiling(const char *path, qn__tensor_info *tensors, size_t n,
                              uint64_t data_start, uint64_t data_size, qn_error *err)
{
    char quoted[100];
    uint64_t at = 0;
    if (n > 0)
        qsort(tensors, n, sizeof *tensors, compare_offsets);
    for (size_t i = 0; i < n; i++) {
        qn__tensor_info *t = &tensors[i];
        const char *name = qn__utf8_quote(quoted, sizeof quoted, t->name, strlen(t->name));
        if (t->offset != at)
            return qn__fail(err, QN_FORMAT,
                            "%s: %s: data_offsets begin at %llu, expected %llu (%s)", path, name,
                            (unsigned long long)t->offset, (unsigned long long)at,
                            t->offset < at ? "tensors overlap" : "a hole");
        if (t->size > data_size - at)
            return qn__fail(err, QN_FORMAT,
                            "%s: %s: data_offsets end at %llu, but the file has %llu bytes of data",
                            path, name, (unsigned long long)(t->offset + t->size),
                            (unsigned long long)data_size);
        at += t->size;
        t->offset += data_start;
    }
    if (at != data_size)
        return qn__fail(err, QN_FORMAT, "%s: %llu bytes of data, but the tensors cover only %llu",
                        path, (unsigned long long)data_size, (unsigned long long)at);
    return QN_OK;
}

/* Opens and checks shard `file`, whose path is `path`, and appends its tensors. */
static qn_status load_shard(qn__safetensors *reader, uint32_t file, const char *path, qn_error *err)
{
    qn__file *f = &reader->shards[file].file;
    qn_status status = qn__file_open(f, path, err);
    if (status != QN_OK)
        return status;
    if (f->size < 8)
        return qn__fail(err, QN_FORMAT, "%s: %llu bytes, too short for a safetensors file", path,
                        (unsigned long long)f->size);
    unsigned char prefix[8];
    status = qn__file_pread(f, 0, prefix, sizeof prefix, err);
    if (status != QN_OK)
        return status;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | prefix[i];
    if (n == 0 || n > QN__SAFETENSORS_MAX_HEADER)
        return qn__fail(err, QN_FORMAT, "%s: header length %llu, expected 1..%u", path,
                        (unsigned long long)n, QN__SAFETENSORS_MAX_HEADER);
    if (n > f->size - 8)
        return qn__fail(err, QN_FORMAT, "%s: header length %llu, but the file has %llu bytes", path,
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

static int compare_names(const void *a, const void *b)
{
    const qn__tensor_info *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->file < y->file ? -1 : x->file > y->file;
}

static qn_status sort_tensors(qn__safetensors *reader, qn_error *err)
{
    qn__tensor_info *t = reader->tensors;
    char quoted[100];
    if (reader->n_tensors > 0)
        qsort(t, reader->n_tensors, sizeof *t, compare_names);
    for (size_t i = 1; i < reader->n_tensors; i++) {
        if (strcmp(t[i - 1].name, t[i].name) != 0)
            continue;
        const char *name = qn__utf8_quote(quoted, sizeof quoted, t[i].name, strlen(t[i].name));
        const char *path = qn__safetensors_path(reader, t[i].file);
        if (t[i - 1].file == t[i].file)
            return qn__fail(err, QN_FORMAT, "%s: tensor %s stands twice", path, name);
        return qn__fail(err, QN_FORMAT, "%s: tensor %s stands also in %s", path, name,
                        qn__safetensors_path(reader, t[i - 1].file));
    }
    return QN_OK;
}

/* ---- index and shards ----------------------------------------------------------------------- */

static bool add_shard(qn__safetensors *reader, qn__json_scan *scan, const qn__json_text *name,
                      uint32_t *file)
{
    uint64_t hash = qn__hash_bytes(name->data, name->size, 0);
    for (uint32_t i = reader->n_shards; i-- > 0;)
        if (reader->shards[i].name_hash == hash && text_is(name, reader->shards[i].name)) {
            *file = i;
            return true;
        }
    if (reader->n_shards == QN__SAFETENSORS_MAX_SHARDS)
        return qn__json_scan_fail(scan, QN_LIMIT, "more than %d shards",
                                  QN__SAFETENSORS_MAX_SHARDS);
    if (!reader->shards)
        reader->shards = calloc(QN__SAFETENSORS_MAX_SHARDS, sizeof *reader->shards);
    shard *s = reader->shards ? &reader->shards[reader->n_shards] : NULL;
    char *copy = s ? qn__arena_strndup(&reader->names, name->data, name->size) : NULL;
    if (!copy) {
        scan->status = qn__fail_memory(scan->err, "a shard table");
        return false;
    }
    *s = (shard){.file = {.fd = -1}, .name_hash = hash, .name = copy};
    *file = reader->n_shards++;
    return true;
}

static bool parse_weight_map(qn__safetensors *reader, qn__json_scan *scan, map_entry **map,
                             size_t *n)
{
    qn__json_text text;
    size_t capacity = *n;
    if (!qn__json_enter_object(scan))
        return false;
    while (qn__json_next_key(scan, &text)) {
        char *name = qn__arena_strndup(&reader->names, text.data, text.size);
        if (!name || !grow_table((void **)map, *n, &capacity, sizeof **map)) {
            scan->status = qn__fail_memory(scan->err, "a weight map");
            return false;
        }
        uint32_t file = 0;
        if (!qn__json_read_string(scan, &text) || !add_shard(reader, scan, &text, &file))
            return false;
        (*map)[(*n)++] = (map_entry){name, file};
    }
    return scan->status == QN_OK;
}

static qn_status parse_index(qn__safetensors *reader, const char *path, map_entry **map, size_t *n,
                             qn_error *err)
{
    char *text = NULL;
    size_t size = 0;
    qn_status status = qn__file_read(path, QN__SAFETENSORS_MAX_HEADER, &text, &size, err);
    if (status != QN_OK)
        return status;
    qn__json_scan scan;
    qn__json_text key;
    bool found = false;
    qn__json_scan_begin(&scan, path, text, size, err);
    if (qn__json_enter_object(&scan)) {
        while (qn__json_next_key(&scan, &key)) {
            if (!text_is(&key, "weight_map"))
                qn__json_skip(&scan, NULL);
            else if (found)
                qn__json_scan_fail(&scan, QN_FORMAT, "the key stands twice");
            else
                found = parse_weight_map(reader, &scan, map, n);
        }
    }
    status = qn__json_scan_end(&scan);
    free(text);
    if (status == QN_OK && !found)
        status = qn__fail(err, QN_FORMAT, "%s: weight_map is missing", path);
    return status;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const map_entry *)a)->name, ((const map_entry *)b)->name);
}

/* Both lists are sorted by name; each must be the other. */
static qn_status check_map(const qn__safetensors *reader, const char *path, const map_entry *map,
                           size_t n, qn_error *err)
{
    char quoted[100];
    size_t i = 0, j = 0;
    while (i < n || j < reader->n_tensors) {
        const qn__tensor_info *t = j < reader->n_tensors ? &reader->tensors[j] : NULL;
        int order = i == n ? 1 : !t ? -1 : strcmp(map[i].name, t->name);
        const char *name = order <= 0 ? map[i].name : t->name;
        qn__utf8_quote(quoted, sizeof quoted, name, strlen(name));
        if (i > 0 && order <= 0 && strcmp(map[i - 1].name, name) == 0)
            return qn__fail(err, QN_FORMAT, "%s: weight_map.%s stands twice", path, quoted);
        if (order < 0)
            return qn__fail(err, QN_FORMAT, "%s: tensor %s is not in %s, where it is mapped to",
                            path, quoted, reader->shards[map[i].file].name);
        if (order > 0)
            return qn__fail(err, QN_FORMAT, "%s: tensor %s of %s is not in weight_map", path,
                            quoted, reader->shards[t->file].name);
        if (map[i].file != t->file)
            return qn__fail(err, QN_FORMAT, "%s: tensor %s is mapped to %s, but stands in %s", path,
                            quoted, reader->shards[map[i].file].name, reader->shards[t->file].name);
        i++;
        j++;
    }
    return QN_OK;
}

static qn_status load_index(qn__safetensors *reader, const char *path, qn_error *err)
{
    map_entry *map = NULL;
    size_t n = 0;
    char *directory = qn__path_parent(path);
    qn_status status =
        directory ? parse_index(reader, path, &map, &n, err) : qn__fail_memory(err, "a path");
    for (uint32_t i = 0; status == QN_OK && i < reader->n_shards; i++) {
        const char *name = reader->shards[i].name;
        char *real = NULL;
        status = qn__path_resolve(directory, name, strlen(name), &real, err);
        if (status == QN_OK)
            status = load_shard(reader, i, real, err);
        free(real);
    }
    if (status == QN_OK)
        status = sort_tensors(reader, err);
    if (status == QN_OK) {
        if (n > 0)
            qsort(map, n, sizeof *map, compare_entries);
        status = check_map(reader, path, map, n, err);
    }
    free(map);
    free(directory);
    return status;
}

static qn_status load_single(qn__safetensors *reader, const char *path, qn_error *err)
{
    reader->shards = calloc(1, sizeof *reader->shards);
    if (!reader->shards)
        return qn__fail_memory(err, "a shard table");
    reader->shards[0].file.fd = -1;
    reader->n_shards = 1;
    qn_status status = load_shard(reader, 0, path, err);
    return status == QN_OK ? sort_tensors(reader, err) : status;
}

/* A directory: the single file first, then the index, as transformers looks. */
static qn_status load_directory(qn__safetensors *reader, const char *path, qn_error *err)
{
    static const char single[] = "model.safetensors", index[] = "model.safetensors.index.json";
    char *real = NULL;
    qn_error first = {0};
    qn_status status = qn__path_resolve(path, single, sizeof single - 1, &real, &first);
    if (status == QN_OK) {
        status = load_single(reader, real, err);
    } else if (status == QN_NOT_FOUND) {
        /* The shards' names are relative to the directory that holds the index or its link. */
        qn_error second = {0};
        char *file = qn__path_join(path, index);
        status = file ? qn__path_resolve(path, index, sizeof index - 1, &real, &second)
                      : qn__fail_memory(&second, "a path");
        if (status == QN_OK)
            status = load_index(reader, file, err);
        else if (status == QN_NOT_FOUND)
            qn__fail(err, status, "%s: neither %s nor %s is there", path, single, index);
        else
            qn__fail(err, status, "%s", second.message);
        free(file);
    } else {
        qn__fail(err, status, "%s", first.message);
    }
    free(real);
    return status;
}

/* ---- the reader ----------------------------------------------------------------------------- */

qn_status qn__safetensors_open(qn__safetensors **out, const char *path, qn_error *err)
{
    *out = NULL;
    bool is_directory;
    qn_status status = qn__path_is_directory(path, &is_directory, err);
    if (status != QN_OK)
        return status;
    qn__safetensors *reader = calloc(1, sizeof *reader);
    if (!reader)
        return qn__fail_memory(err, "a safetensors reader");
    static const char suffix[] = ".index.json";
    size_t n = strlen(path), m = sizeof suffix - 1;
    if (is_directory)
        status = load_directory(reader, path, err);
    else if (n >= m && strcmp(path + n - m, suffix) == 0)
        status = load_index(reader, path, err);
    else
        status = load_single(reader, path, err);
    if (status != QN_OK) {
        qn__safetensors_close(reader);
        return status;
    }
    *out = reader;
    return QN_OK;
}

void qn__safetensors_close(qn__safetensors *reader)
{
    if (!reader)
        return;
    for (uint32_t i = 0; i < reader->n_shards; i++)
        qn__file_close(&reader->shards[i].file);
    free(reader->shards);
    free(reader->tensors);
    free(reader->metadata);
    qn__arena_free(&reader->names);
    free(reader);
}

size_t qn__safetensors_count(const qn__safetensors *reader)
{
    return reader->n_tensors;
}

const qn__tensor_info *qn__safetensors_tensor(const qn__safetensors *reader, size_t i)
{
    return &reader->tensors[i];
}

static int compare_key(const void *key, const void *item)
{
    return strcmp(key, ((const qn__tensor_info *)item)->name);
}

const qn__tensor_info *qn__safetensors_find(const qn__safetensors *reader, const char *name)
{
    if (reader->n_tensors == 0)
        return NULL;
    return bsearch(name, reader->tensors, reader->n_tensors, sizeof *reader->tensors, compare_key);
}

const char *qn__safetensors_path(const qn__safetensors *reader, uint32_t file)
{
    return reader->shards[file].file.path;
}

const char *qn__safetensors_metadata(const qn__safetensors *reader, const char *key)
{
    qn__metadata wanted = {key, NULL};
    const qn__metadata *found = NULL;
    if (reader->n_metadata > 0)
        found =
            bsearch(&wanted, reader->metadata, reader->n_metadata, sizeof wanted, compare_metadata);
    return found ? found->value : NULL;
}

qn_status qn__safetensors_read(const qn__safetensors *reader, const qn__tensor_info *tensor,
                               uint64_t byte_offset, size_t n, void *dst, qn_error *err)
{
    if (byte_offset > tensor->size || n > tensor->size - byte_offset)
        return qn__fail(err, QN_INVALID, "%s: %s: bytes %llu + %zu are outside its %llu bytes",
                        qn__safetensors_path(reader, tensor->file), tensor->name,
                        (unsigned long long)byte_offset, n, (unsigned long long)tensor->size);
    return qn__file_pread(&reader->shards[tensor->file].file, tensor->offset + byte_offset, dst, n,
                          err);
}
