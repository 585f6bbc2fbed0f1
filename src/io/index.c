/* SPDX-License-Identifier: Apache-2.0
 *
 * An .index.json: which tensor is in which shard. The shards may be of any kind. The map is checked
 * both ways: each tensor is where it is mapped to, and each tensor of a shard is in the map.
 */
#include "base/hash.h"
#include "base/json_scan.h"
#include "base/utf8.h"
#include "io/tensors.h"

#include <stdlib.h>

enum { LARGEST_INDEX = 100000000 };

/* One entry: the tensor and the shard where it should be. */
typedef struct map_entry {
    const char *name;
    uint32_t file;
} map_entry;

static bool add_shard(qn_tensors *reader, qn__json_scan *scan, const qn__json_text *name,
                      uint32_t *file)
{
    uint64_t hash = qn__hash_bytes(name->data, name->size, 0);
    for (uint32_t i = reader->n_files; i-- > 0;)
        if (reader->files[i].name_hash == hash && qn__json_text_is(name, reader->files[i].name)) {
            *file = i;
            return true;
        }
    if (reader->n_files == QN__MAX_SHARDS)
        return qn__json_scan_fail(scan, QN_LIMIT, "more than %d shards", QN__MAX_SHARDS);
    if (!reader->files)
        reader->files = calloc(QN__MAX_SHARDS, sizeof *reader->files);
    qn__tensor_file *s = reader->files ? &reader->files[reader->n_files] : NULL;
    char *copy = s ? qn__arena_strndup(&reader->names, name->data, name->size) : NULL;
    if (!copy) {
        scan->status = qn__fail_memory(scan->err, "a shard table");
        return false;
    }
    *s = (qn__tensor_file){.file = {.fd = -1}, .name_hash = hash, .name = copy};
    *file = reader->n_files++;
    return true;
}

static bool parse_weight_map(qn_tensors *reader, qn__json_scan *scan, map_entry **map, size_t *n)
{
    qn__json_text text;
    size_t capacity = *n;
    if (!qn__json_enter_object(scan))
        return false;
    while (qn__json_next_key(scan, &text)) {
        char *name = qn__arena_strndup(&reader->names, text.data, text.size);
        if (!name || !qn__grow_table((void **)map, *n, &capacity, sizeof **map)) {
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

static qn_status parse_index(qn_tensors *reader, const char *path, map_entry **map, size_t *n,
                             qn_error *err)
{
    char *text = NULL;
    size_t size = 0;
    qn_status status = qn__file_read(path, LARGEST_INDEX, &text, &size, err);
    if (status != QN_OK)
        return status;
    qn__json_scan scan;
    qn__json_text key;
    bool found = false;
    qn__json_scan_begin(&scan, path, text, size, err);
    if (qn__json_enter_object(&scan)) {
        while (qn__json_next_key(&scan, &key)) {
            if (!qn__json_text_is(&key, "weight_map"))
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
    if (status == QN_OK && *n == 0) /* then there is no file at all */
        status = qn__fail(err, QN_FORMAT, "%s: weight_map is empty: it names no tensor", path);
    return status;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const map_entry *)a)->name, ((const map_entry *)b)->name);
}

/* Both lists are sorted by name; each must be the other. */
static qn_status check_map(const qn_tensors *reader, const char *path, const map_entry *map,
                           size_t n, qn_error *err)
{
    char quoted[100];
    size_t i = 0, j = 0;
    while (i < n || j < reader->n_tensors) {
        const qn_tensor_info *t = j < reader->n_tensors ? &reader->tensors[j] : NULL;
        int order = i == n ? 1 : !t ? -1 : strcmp(map[i].name, t->name);
        const char *name = order <= 0 ? map[i].name : t->name;
        qn__utf8_quote(quoted, sizeof quoted, name, strlen(name));
        if (i > 0 && order <= 0 && strcmp(map[i - 1].name, name) == 0)
            return qn__fail(err, QN_FORMAT, "%s: weight_map.%s stands twice", path, quoted);
        if (order < 0)
            return qn__fail(err, QN_FORMAT, "%s: tensor %s is not in %s, where it is mapped to",
                            path, quoted, reader->files[map[i].file].name);
        if (order > 0)
            return qn__fail(err, QN_FORMAT, "%s: tensor %s of %s is not in weight_map", path,
                            quoted, reader->files[t->file].name);
        if (map[i].file != t->file)
            return qn__fail(err, QN_FORMAT, "%s: tensor %s is mapped to %s, but stands in %s", path,
                            quoted, reader->files[map[i].file].name, reader->files[t->file].name);
        i++;
        j++;
    }
    return QN_OK;
}

qn_status qn__tensors_load_index(qn_tensors *reader, const char *path, qn_error *err)
{
    map_entry *map = NULL;
    size_t n = 0;
    char *directory = qn__path_parent(path);
    qn_status status =
        directory ? parse_index(reader, path, &map, &n, err) : qn__fail_memory(err, "a path");
    for (uint32_t i = 0; status == QN_OK && i < reader->n_files; i++) {
        const char *name = reader->files[i].name;
        char *real = NULL;
        status = qn__path_resolve(directory, name, strlen(name), &real, err);
        if (status == QN_OK)
            status = qn__tensors_load(reader, i, real, err);
        free(real);
    }
    if (status == QN_OK)
        status = qn__tensors_sort(reader, err);
    if (status == QN_OK) {
        if (n > 0)
            qsort(map, n, sizeof *map, compare_entries);
        status = check_map(reader, path, map, n, err);
    }
    free(map);
    free(directory);
    return status;
}
