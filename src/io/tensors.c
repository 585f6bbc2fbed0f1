/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of tensors behind quern/io.h: which kind of file it is, what a directory holds, lookup,
 * reading.
 *
 * A tensor that is stored in another than row-major order (Fortran order, PyTorch's strides) is
 * read as a whole and gathered; the newest one is kept, since weights are read piece by piece.
 */
#include "io/tensors.h"

#include "base/checked.h"
#include "base/gguf.h"
#include "base/recognize.h"
#include "base/utf8.h"
#include "io/safetensors.h"
#include "io/safetensors_dtype.h"

#include <stdlib.h>

/* ---- the table ------------------------------------------------------------------------------- */

bool qn__grow_table(void **items, size_t n, size_t *capacity, size_t size)
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

const struct qn__gguf *qn__tensors_gguf(const qn_tensors *t)
{
    return t->n_files && t->files[0].kind == &qn__gguf_kind ? t->files[0].state : NULL;
}

qn_tensor_info *qn__tensors_add(qn_tensors *t)
{
    if (!qn__grow_table((void **)&t->tensors, t->n_tensors, &t->capacity, sizeof *t->tensors))
        return NULL;
    t->tensors[t->n_tensors] = (qn_tensor_info){0};
    return &t->tensors[t->n_tensors];
}

bool qn__tensor_bytes(qn_dtype dtype, int ndim, const int64_t *shape, uint64_t *bytes)
{
    uint64_t n = qn__safetensors_dtype_size(dtype);
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, (uint64_t)shape[i], &n))
            return false;
    *bytes = n;
    return true;
}

/* What stands for a tensor while names are sorted: sixteen bytes of its name, behind what all names
 * have in common, mostly decide. */
typedef struct name_key {
    uint64_t head[2];
    const char *name;
    uint32_t file, index;
} name_key;

static int compare_key_names(const name_key *x, const name_key *y)
{
    for (int i = 0; i < 2; i++)
        if (x->head[i] != y->head[i])
            return x->head[i] < y->head[i] ? -1 : 1;
    return x->head[1] & 0xff ? strcmp(x->name, y->name) : 0; /* zeros: the heads are all */
}

static int compare_names(const void *a, const void *b)
{
    const name_key *x = a, *y = b;
    int order = compare_key_names(x, y);
    return order ? order : x->file < y->file ? -1 : x->file > y->file;
}

static name_key key_of(const qn_tensor_info *t, size_t prefix, size_t index)
{
    name_key key = {{0, 0}, t->name, t->file, (uint32_t)index};
    const char *s = t->name + prefix;
    for (int i = 0; i < 16; i++) {
        key.head[i / 8] = key.head[i / 8] << 8 | (unsigned char)*s;
        s += *s != '\0';
    }
    return key;
}

static size_t shared_prefix(const qn_tensor_info *t, size_t n)
{
    size_t shared = strlen(t[0].name);
    for (size_t i = 1; i < n && shared > 0; i++) {
        size_t same = 0;
        while (same < shared && t[i].name[same] == t[0].name[same])
            same++;
        shared = same;
    }
    return shared;
}

/* Moves each entry to the place of its key; indexes are used up. */
static void reorder(qn_tensor_info *t, name_key *keys, size_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        qn_tensor_info first = t[i];
        uint32_t to = i;
        for (uint32_t from; (from = keys[to].index) != i; to = from) {
            t[to] = t[from];
            keys[to].index = to;
        }
        t[to] = first;
        keys[to].index = to;
    }
}

static qn_status fail_twice(const qn_tensors *reader, const name_key *a, const name_key *b,
                            qn_error *err)
{
    char name[100];
    const char *path = qn_tensors_path(reader, b->file);
    qn__utf8_quote(name, sizeof name, b->name, strlen(b->name));
    if (a->file == b->file)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s stands twice", path, name);
    return qn__fail(err, QN_FORMAT, "%s: tensor %s stands also in %s", path, name,
                    qn_tensors_path(reader, a->file));
}

qn_status qn__tensors_sort(qn_tensors *reader, qn_error *err)
{
    qn_tensor_info *t = reader->tensors;
    size_t n = reader->n_tensors, bytes, prefix = n > 0 ? shared_prefix(t, n) : 0;
    bool fits = n < UINT32_MAX && qn__mul_size(n + 1, sizeof(name_key), &bytes);
    name_key *keys = fits ? malloc(bytes) : NULL;
    if (!keys)
        return qn__fail_memory(err, "a tensor table");
    for (size_t i = 0; i < n; i++)
        keys[i] = key_of(&t[i], prefix, i);
    qsort(keys, n, sizeof *keys, compare_names);
    qn_status status = QN_OK;
    for (size_t i = 1; i < n && status == QN_OK; i++)
        if (compare_key_names(&keys[i - 1], &keys[i]) == 0)
            status = fail_twice(reader, &keys[i - 1], &keys[i], err);
    if (status == QN_OK)
        reorder(t, keys, n);
    free(keys);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* PyTorch's files before the zip format: a pickled number that says so, after a protocol byte. */
static const char legacy_magic[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

enum { MAGIC = 262 };

/* The kind of a file by its first bytes; NULL with the failure recorded. A safetensors header may
 * have any length, hence begin with anything, but then its ninth byte is a brace. */
static const qn__file_kind *find_kind(const qn__file *file, qn_error *err)
{
    char magic[MAGIC] = {0};
    size_t n = file->size < MAGIC ? (size_t)file->size : MAGIC;
    if (qn__file_pread(file, 0, magic, n, err) != QN_OK)
        return NULL;
    if (!memcmp(magic, "GGUF", 4)) /* as a length of a safetensors header it would be too large */
        return &qn__gguf_kind;
    if (n >= 9 && magic[8] == '{')
        return &qn__safetensors_kind;
    if (!memcmp(magic, "PK\3\4", 4) || !memcmp(magic, "PK\5\6", 4))
        return &qn__archive_kind;
    if (!memcmp(magic, "\x93NUMPY", 6))
        return &qn__npy_kind;
    bool tar = !memcmp(magic + 257, "ustar", 5);
    if (tar || !memcmp(magic, legacy_magic, sizeof legacy_magic - 1)) {
        qn__fail(err, QN_UNSUPPORTED,
                 "%s: a checkpoint in PyTorch's %s format from before version 1.6; load it with "
                 "PyTorch and save it again, best as safetensors",
                 file->path, tar ? "tar" : "pickle");
        return NULL;
    }
    const char *is = qn__recognize_bytes(magic, n < QN__RECOGNIZE_BYTES ? n : QN__RECOGNIZE_BYTES);
    if (is) {
        qn__fail(err, QN_UNSUPPORTED, "%s: %s", file->path, is);
        return NULL;
    }
    return &qn__safetensors_kind;
}

qn_status qn__tensors_load(qn_tensors *t, uint32_t i, const char *path, qn_error *err)
{
    qn__tensor_file *f = &t->files[i];
    if (qn__file_open(&f->file, path, err) != QN_OK)
        return err->code;
    f->kind = find_kind(&f->file, err);
    return f->kind ? f->kind->load(t, i, err) : err->code;
}

static qn_status load_single(qn_tensors *t, const char *path, qn_error *err)
{
    t->files = calloc(1, sizeof *t->files);
    if (!t->files)
        return qn__fail_memory(err, "a table of files");
    t->files[0].file.fd = -1;
    t->n_files = 1;
    qn_status status = qn__tensors_load(t, 0, path, err);
    return status == QN_OK ? qn__tensors_sort(t, err) : status;
}

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

/* One file or index. `path` is where it was found, `real` where its links lead: shards are looked
 * for beside the former. */
static qn_status load_path(qn_tensors *t, const char *path, const char *real, qn_error *err)
{
    return ends_with(path, ".index.json") ? qn__tensors_load_index(t, path, err)
                                          : load_single(t, real, err);
}

/* Meta's larger checkpoints are cut across their matrices, a file for each GPU. */
static bool is_one_of_several(const char *directory, const char *name, qn_error *err)
{
    char *second = NULL;
    if (strcmp(name, "consolidated.00.pth") != 0 ||
        qn__path_resolve(directory, "consolidated.01.pth", 19, &second, NULL) != QN_OK)
        return false;
    free(second);
    qn__fail(err, QN_UNSUPPORTED,
             "%s: consolidated.00.pth is one of several, which have parts of each matrix; one that "
             "is whole is supported, or the model as Hugging Face has it",
             directory);
    return true;
}

/* The first of these that is there, in the order in which transformers looks, then NumPy's, then
 * Meta's and Mistral's. */
static qn_status load_directory(qn_tensors *t, const char *directory, qn_error *err)
{
    static const char *const names[] = {"model.safetensors",
                                        "model.safetensors.index.json",
                                        "pytorch_model.bin",
                                        "pytorch_model.bin.index.json",
                                        "model.npz",
                                        "weights.npz",
                                        "consolidated.safetensors",
                                        "consolidated.00.pth"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *real = NULL;
        qn_error found = {0};
        if (qn__path_resolve(directory, names[i], strlen(names[i]), &real, &found) != QN_OK) {
            if (found.code == QN_NOT_FOUND)
                continue;
            return qn__fail(err, found.code, "%s", found.message);
        }
        char *path = qn__path_join(directory, names[i]);
        if (path && is_one_of_several(directory, names[i], err)) {
            free(path);
            free(real);
            return err->code;
        }
        qn_status status = path ? load_path(t, path, real, err) : qn__fail_memory(err, "a path");
        free(path);
        free(real);
        return status;
    }
    char *gguf = NULL;
    qn_status status = qn__gguf_locate(directory, &gguf, err);
    if (gguf)
        status = load_single(t, gguf, err);
    free(gguf);
    if (status != QN_OK || t->n_files)
        return status;
    char found[240];
    qn__recognize_directory(directory, found, sizeof found);
    if (found[0])
        return qn__fail(err, QN_NOT_FOUND, "%s: there are no weights; %s", directory, found);
    return qn__fail(err, QN_NOT_FOUND, "%s: neither %s nor %s, %s, %s, %s, %s, %s or %s is there",
                    directory, names[0], names[1], names[2], names[3], names[4], names[5], names[6],
                    names[7]);
}

qn_status qn_tensors_open(qn_tensors **out, const char *path, qn_error *err)
{
    qn_error own = {0};
    bool is_directory;
    *out = NULL;
    err = err ? err : &own;
    if (qn__path_is_directory(path, &is_directory, err) != QN_OK)
        return err->code;
    qn_tensors *t = calloc(1, sizeof *t);
    if (!t)
        return qn__fail_memory(err, "a table of tensors");
    pthread_mutex_init(&t->lock, NULL);
    qn_status status = is_directory ? load_directory(t, path, err) : load_path(t, path, path, err);
    if (status != QN_OK) {
        qn_tensors_close(t);
        return status;
    }
    *out = t;
    return QN_OK;
}

void qn_tensors_close(qn_tensors *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_files; i++) {
        if (t->files[i].state)
            t->files[i].kind->close(t->files[i].state);
        qn__file_close(&t->files[i].file);
    }
    free(t->files);
    free(t->tensors);
    free(t->metadata);
    free(t->gathered_data);
    pthread_mutex_destroy(&t->lock);
    qn__arena_free(&t->names);
    free(t);
}

/* ---- lookup ---------------------------------------------------------------------------------- */

size_t qn_tensors_count(const qn_tensors *reader)
{
    return reader->n_tensors;
}

const qn_tensor_info *qn_tensors_get(const qn_tensors *reader, size_t i)
{
    return &reader->tensors[i];
}

static int compare_key(const void *key, const void *item)
{
    return strcmp(key, ((const qn_tensor_info *)item)->name);
}

const qn_tensor_info *qn_tensors_find(const qn_tensors *reader, const char *name)
{
    if (reader->n_tensors == 0)
        return NULL;
    return bsearch(name, reader->tensors, reader->n_tensors, sizeof *reader->tensors, compare_key);
}

const char *qn_tensors_path(const qn_tensors *reader, uint32_t file)
{
    return reader->files[file].file.path;
}

static int compare_metadata_key(const void *key, const void *item)
{
    return strcmp(key, ((const qn__metadata *)item)->key);
}

const char *qn_tensors_metadata(const qn_tensors *t, const char *key)
{
    if (t->n_metadata == 0)
        return NULL;
    const qn__metadata *found =
        bsearch(key, t->metadata, t->n_metadata, sizeof *t->metadata, compare_metadata_key);
    return found ? found->value : NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

bool qn__tensors_in_order(const qn_tensors *t)
{
    bool in_order = false;
    for (size_t i = 0; i < t->n_tensors; i++)
        in_order = in_order || t->tensors[i].layout || t->files[t->tensors[i].file].kind->read;
    return in_order;
}

static qn_status read_stored(const qn_tensors *t, const qn_tensor_info *tensor, uint64_t at,
                             size_t n, void *dst, qn_error *err)
{
    const qn__tensor_file *f = &t->files[tensor->file];
    return f->kind->read ? f->kind->read(f, tensor->member, tensor->offset + at, n, dst, err)
                         : qn__file_pread(&f->file, tensor->offset + at, dst, n, err);
}

/* Puts the elements of `from`, as the layout has them, into row-major order. */
static void gather(const qn_tensor_info *tensor, const char *from, char *to)
{
    const qn__element_order *layout = tensor->layout;
    size_t size = (size_t)qn__safetensors_dtype_size(tensor->dtype);
    int64_t index[QN_MAX_NDIM] = {0}, at = 0;
    for (uint64_t i = 0; i < tensor->bytes; i += size) {
        memcpy(to + i, from + at * (int64_t)size, size);
        for (int d = tensor->ndim - 1; d >= 0; d--) {
            at += layout->stride[d];
            if (++index[d] < tensor->shape[d])
                break;
            at -= layout->stride[d] * tensor->shape[d];
            index[d] = 0;
        }
    }
}

/* Makes `tensor` the one that is kept in row-major order. Under the lock. */
static qn_status gather_tensor(qn_tensors *t, const qn_tensor_info *tensor, qn_error *err)
{
    size_t span = (size_t)((const qn__element_order *)tensor->layout)->span;
    free(t->gathered_data);
    t->gathered = NULL;
    t->gathered_data = malloc((size_t)tensor->bytes + 1);
    char *stored = t->gathered_data ? malloc(span + 1) : NULL;
    if (!stored)
        return qn__fail_memory(err, "a tensor that is not in row-major order");
    qn_status status = read_stored(t, tensor, 0, span, stored, err);
    if (status == QN_OK) {
        gather(tensor, stored, t->gathered_data);
        t->gathered = tensor;
    }
    free(stored);
    return status;
}

qn_status qn_tensors_read_bytes(const qn_tensors *t, const qn_tensor_info *tensor,
                                uint64_t byte_offset, size_t n, void *dst, qn_error *err)
{
    qn_error own = {0};
    err = err ? err : &own;
    if (byte_offset > tensor->bytes || n > tensor->bytes - byte_offset)
        return qn__fail(err, QN_INVALID, "%s: %s: bytes %llu + %zu are outside its %llu bytes",
                        qn_tensors_path(t, tensor->file), tensor->name,
                        (unsigned long long)byte_offset, n, (unsigned long long)tensor->bytes);
    if (!tensor->layout || n == 0)
        return n ? read_stored(t, tensor, byte_offset, n, dst, err) : QN_OK;
    qn_tensors *own_table = (qn_tensors *)t; /* what the lock guards is a cache */
    qn_status status = QN_OK;
    pthread_mutex_lock(&own_table->lock);
    if (t->gathered != tensor)
        status = gather_tensor(own_table, tensor, err);
    if (status == QN_OK)
        memcpy(dst, t->gathered_data + byte_offset, n);
    pthread_mutex_unlock(&own_table->lock);
    return status;
}
