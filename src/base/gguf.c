/* SPDX-License-Identifier: Apache-2.0
 *
 * The GGUF container; see gguf.h. One pass over the file with a cursor whose buffer is filled as
 * the pass goes on, so that a hostile count costs nothing before its elements are there. The buffer
 * may move until the end: until then values have offsets in the place of pointers.
 */
#include "base/gguf.h"

#include "base/checked.h"
#include "base/utf8.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP = 1 << 20, LARGEST_ALIGNMENT = 1 << 20, LONGEST_KEY = 65535, LONGEST_NAME = 1000 };

static const char *const type_names[] = {
    [QN__GGUF_U8] = "uint8",       [QN__GGUF_I8] = "int8",    [QN__GGUF_U16] = "uint16",
    [QN__GGUF_I16] = "int16",      [QN__GGUF_U32] = "uint32", [QN__GGUF_I32] = "int32",
    [QN__GGUF_F32] = "float32",    [QN__GGUF_BOOL] = "bool",  [QN__GGUF_STRING] = "string",
    [QN__GGUF_ARRAY] = "an array", [QN__GGUF_U64] = "uint64", [QN__GGUF_I64] = "int64",
    [QN__GGUF_F64] = "float64"};

/* Bytes of an element; texts and arrays have none of their own. */
static const unsigned char type_sizes[] = {
    [QN__GGUF_U8] = 1,     [QN__GGUF_I8] = 1,    [QN__GGUF_U16] = 2, [QN__GGUF_I16] = 2,
    [QN__GGUF_U32] = 4,    [QN__GGUF_I32] = 4,   [QN__GGUF_F32] = 4, [QN__GGUF_BOOL] = 1,
    [QN__GGUF_STRING] = 0, [QN__GGUF_ARRAY] = 0, [QN__GGUF_U64] = 8, [QN__GGUF_I64] = 8,
    [QN__GGUF_F64] = 8};

const char *qn__gguf_type_name(qn__gguf_type type)
{
    return type_names[type];
}

/* ---- the cursor ------------------------------------------------------------------------------ */

typedef struct cursor {
    const qn__file *file;
    char *bytes;
    size_t at, have, capacity;
    qn_error *err;
} cursor;

/* Makes n more bytes readable at the cursor; `what` they are is for the message. */
static bool need(cursor *c, uint64_t n, const char *what)
{
    if (n <= c->have - c->at)
        return true;
    uint64_t left = c->file->size - c->at;
    if (n > left) {
        qn__fail(c->err, QN_FORMAT,
                 "%s: %s at byte %zu takes %llu bytes, but the file ends after %llu more (an "
                 "interrupted download?)",
                 c->file->path, what, c->at, (unsigned long long)n, (unsigned long long)left);
        return false;
    }
    if (n > QN__GGUF_MAX_HEADER - c->at) {
        qn__fail(c->err, QN_LIMIT, "%s: %s at byte %zu takes %llu bytes; all metadata may have %d",
                 c->file->path, what, c->at, (unsigned long long)n, QN__GGUF_MAX_HEADER);
        return false;
    }
    size_t wanted = c->at + (size_t)n, room = c->capacity;
    room = room + room / 2 > wanted + STEP ? room + room / 2 : wanted + STEP;
    room = room < QN__GGUF_MAX_HEADER ? room : QN__GGUF_MAX_HEADER;
    room = room < c->file->size ? room : (size_t)c->file->size;
    char *grown = realloc(c->bytes, room);
    if (!grown) {
        qn__fail_memory(c->err, "a GGUF file's metadata");
        return false;
    }
    c->bytes = grown;
    c->capacity = room;
    if (qn__file_pread(c->file, c->have, c->bytes + c->have, room - c->have, c->err) != QN_OK)
        return false;
    c->have = room;
    return true;
}

static uint64_t little_endian(const char *p, int n)
{
    uint64_t v = 0;
    while (n-- > 0)
        v = v << 8 | (unsigned char)p[n];
    return v;
}

/* An integer of n bytes. */
static bool take(cursor *c, int n, const char *what, uint64_t *out)
{
    if (!need(c, (uint64_t)n, what))
        return false;
    *out = little_endian(c->bytes + c->at, n);
    c->at += (size_t)n;
    return true;
}

/* A text: its length, then its bytes, at *at. */
static bool take_text(cursor *c, uint64_t most, const char *what, size_t *at, size_t *n)
{
    uint64_t length;
    if (!take(c, 8, what, &length))
        return false;
    if (length > most && length <= c->file->size - c->at) {
        qn__fail(c->err, QN_LIMIT, "%s: %s at byte %zu has a length of %llu, at most %llu are read",
                 c->file->path, what, c->at - 8, (unsigned long long)length,
                 (unsigned long long)most);
        return false;
    }
    if (!need(c, length, what))
        return false;
    *at = c->at;
    *n = (size_t)length;
    c->at += (size_t)length;
    return true;
}

/* A name, checked to be UTF-8 without NUL, as a copy. */
static const char *take_name(cursor *c, qn__arena *names, uint64_t most, const char *what)
{
    size_t at, n;
    if (!take_text(c, most, what, &at, &n))
        return NULL;
    if (n == 0 || memchr(c->bytes + at, 0, n) || qn__utf8_check(c->bytes + at, n) != n) {
        qn__fail(c->err, QN_FORMAT, "%s: %s at byte %zu is %s", c->file->path, what, at,
                 n == 0 ? "empty" : "no UTF-8 text");
        return NULL;
    }
    const char *copy = qn__arena_strndup(names, c->bytes + at, n);
    if (!copy)
        qn__fail_memory(c->err, "a GGUF file's names");
    return copy;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Room for one more of n items; tables grow as their entries come. */
static bool grow(void **items, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity)
        return true;
    size_t more = *capacity ? *capacity * 2 : 64, bytes;
    void *grown = qn__mul_size(more, size, &bytes) ? realloc(*items, bytes) : NULL;
    if (!grown)
        return false;
    *items = grown;
    *capacity = more;
    return true;
}

static bool take_type(cursor *c, const char *key, qn__gguf_type *type)
{
    uint64_t number;
    char quoted[100];
    if (!take(c, 4, "the type of a value", &number))
        return false;
    if (number > QN__GGUF_F64) {
        qn__fail(c->err, QN_FORMAT, "%s: %s: unknown type %llu, expected 0..%d", c->file->path,
                 qn__utf8_quote(quoted, sizeof quoted, key, strlen(key)),
                 (unsigned long long)number, QN__GGUF_F64);
        return false;
    }
    *type = (qn__gguf_type)number;
    return true;
}

static bool take_elements(cursor *c, const qn__gguf_value *v)
{
    char quoted[100];
    qn__utf8_quote(quoted, sizeof quoted, v->key, strlen(v->key));
    uint64_t bytes = type_sizes[v->type];
    if (v->type == QN__GGUF_STRING) {
        for (uint64_t i = 0; i < v->n; i++) {
            size_t at, n;
            if (!take_text(c, QN__GGUF_MAX_TEXT, quoted, &at, &n))
                return false;
        }
        return true;
    }
    if (__builtin_mul_overflow(bytes, v->n, &bytes)) {
        qn__fail(c->err, QN_FORMAT, "%s: %s: an array of %llu elements, more than a file can hold",
                 c->file->path, quoted, (unsigned long long)v->n);
        return false;
    }
    if (!need(c, bytes, quoted))
        return false;
    const char *at = c->bytes + c->at;
    for (uint64_t i = 0; v->type == QN__GGUF_BOOL && i < v->n; i++)
        if ((unsigned char)at[i] > 1) {
            qn__fail(c->err, QN_FORMAT, "%s: %s: a bool of %d, expected 0 or 1", c->file->path,
                     quoted, (unsigned char)at[i]);
            return false;
        }
    c->at += (size_t)bytes;
    return true;
}

/* One key with its value; *start is where the value's bytes begin. */
static bool take_value(cursor *c, qn__arena *names, qn__gguf_value *v, size_t *start)
{
    *v = (qn__gguf_value){.n = 1};
    v->key = take_name(c, names, LONGEST_KEY, "a key");
    if (!v->key || !take_type(c, v->key, &v->type))
        return false;
    if (v->type == QN__GGUF_ARRAY) {
        v->is_array = true;
        if (!take_type(c, v->key, &v->type) || !take(c, 8, "the length of an array", &v->n))
            return false;
        if (v->type == QN__GGUF_ARRAY) {
            qn__fail(c->err, QN_UNSUPPORTED, "%s: %.100s: an array of arrays is not supported",
                     c->file->path, v->key);
            return false;
        }
    }
    *start = c->at;
    if (!take_elements(c, v))
        return false;
    v->size = c->at - *start;
    return true;
}

static int compare_values(const void *a, const void *b)
{
    return strcmp(((const qn__gguf_value *)a)->key, ((const qn__gguf_value *)b)->key);
}

static bool take_values(cursor *c, qn__gguf *g, uint64_t n)
{
    size_t capacity = 0;
    for (uint64_t i = 0; i < n; i++) {
        size_t start;
        if (!grow((void **)&g->values, g->n_values, &capacity, sizeof *g->values)) {
            qn__fail_memory(c->err, "a GGUF file's metadata");
            return false;
        }
        qn__gguf_value *v = &g->values[g->n_values];
        if (!take_value(c, &g->names, v, &start))
            return false;
        v->data = (const char *)(uintptr_t)start; /* a pointer when all are there */
        g->n_values++;
    }
    return true;
}

/* Values become pointers, in the order of their keys. */
static bool sort_values(cursor *c, qn__gguf *g)
{
    for (size_t i = 0; i < g->n_values; i++)
        g->values[i].data = c->bytes + (uintptr_t)g->values[i].data;
    if (g->n_values)
        qsort(g->values, g->n_values, sizeof *g->values, compare_values);
    for (size_t i = 1; i < g->n_values; i++)
        if (!strcmp(g->values[i - 1].key, g->values[i].key)) {
            qn__fail(c->err, QN_FORMAT, "%s: the key %.100s stands twice", g->path,
                     g->values[i].key);
            return false;
        }
    return true;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static bool fail_tensor(const cursor *c, const char *name, const char *what, uint64_t value,
                        const char *expected)
{
    char quoted[100];
    qn__fail(c->err, QN_FORMAT, "%s: tensor %s: %s %llu, expected %s", c->file->path,
             qn__utf8_quote(quoted, sizeof quoted, name, strlen(name)), what,
             (unsigned long long)value, expected);
    return false;
}

static bool take_tensor(cursor *c, qn__arena *names, qn__gguf_tensor *t)
{
    uint64_t n, type;
    t->name = take_name(c, names, LONGEST_NAME, "a tensor's name");
    if (!t->name || !take(c, 4, "a tensor's number of dimensions", &n))
        return false;
    if (n > QN__GGUF_MAX_DIMS)
        return fail_tensor(c, t->name, "dimensions:", n, "at most 4");
    t->ndim = (int)n;
    for (int i = 0; i < t->ndim; i++) {
        uint64_t dim;
        if (!take(c, 8, "a tensor's dimension", &dim))
            return false;
        if (dim > INT64_MAX)
            return fail_tensor(c, t->name, "a dimension of", dim, "less than 2^63");
        t->dims[i] = (int64_t)dim;
    }
    if (!take(c, 4, "a tensor's type", &type) || !take(c, 8, "a tensor's offset", &t->offset))
        return false;
    t->type = (uint32_t)type;
    return true;
}

static bool take_tensors(cursor *c, qn__gguf *g, uint64_t n)
{
    size_t capacity = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (!grow((void **)&g->tensors, g->n_tensors, &capacity, sizeof *g->tensors)) {
            qn__fail_memory(c->err, "a GGUF file's tensors");
            return false;
        }
        g->tensors[g->n_tensors] = (qn__gguf_tensor){0};
        if (!take_tensor(c, &g->names, &g->tensors[g->n_tensors]))
            return false;
        g->n_tensors++;
    }
    return true;
}

/* Where the weights begin, and with them each tensor. */
static bool place_tensors(cursor *c, qn__gguf *g)
{
    int64_t alignment = 32;
    size_t start = 0;
    if (qn__gguf_opt_int(g, "general.alignment", 1, LARGEST_ALIGNMENT, &alignment, c->err) != QN_OK)
        return false;
    if (alignment & (alignment - 1)) {
        qn__fail(c->err, QN_FORMAT, "%s: general.alignment: %lld is no power of two", g->path,
                 (long long)alignment);
        return false;
    }
    g->alignment = (uint64_t)alignment;
    qn__align_size(c->at, (size_t)alignment, &start); /* both are small */
    /* a file without weights may end where its table does */
    g->data_start = start < g->file_size ? start : g->file_size;
    for (size_t i = 0; i < g->n_tensors; i++) {
        qn__gguf_tensor *t = &g->tensors[i];
        if (t->offset % g->alignment)
            return fail_tensor(c, t->name, "an offset of", t->offset,
                               "a multiple of general.alignment");
        if (t->offset > g->file_size - g->data_start)
            return fail_tensor(c, t->name, "an offset of", t->offset,
                               "one inside the file (an interrupted download?)");
        t->offset += g->data_start;
    }
    return true;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool check_version(const cursor *c, uint64_t version)
{
    if (version == 2 || version == 3)
        return true;
    if (version == 1)
        qn__fail(c->err, QN_UNSUPPORTED,
                 "%s: GGUF version 1, of August 2023, is not supported (supported: 2 and 3); "
                 "convert the model again",
                 c->file->path);
    else if (version != 0 && (version & 0xffff) == 0)
        qn__fail(c->err, QN_UNSUPPORTED,
                 "%s: a big-endian GGUF file is not supported; convert the model again for a "
                 "little-endian machine",
                 c->file->path);
    else
        qn__fail(c->err, QN_UNSUPPORTED, "%s: GGUF version %llu is not supported (supported: 2, 3)",
                 c->file->path, (unsigned long long)version);
    return false;
}

/* A count whose entries take `least` bytes each cannot exceed what is left of the file; `limit` is
 * ours. */
static bool check_count(const cursor *c, const char *what, uint64_t n, uint64_t least,
                        uint64_t limit)
{
    uint64_t most = (c->file->size - c->at) / least;
    if (n <= most && n <= limit)
        return true;
    if (n <= most) {
        qn__fail(c->err, QN_LIMIT, "%s: %s: %llu, at most %llu are read", c->file->path, what,
                 (unsigned long long)n, (unsigned long long)limit);
        return false;
    }
    qn__fail(c->err, QN_FORMAT, "%s: %s: %llu, but the file has room for %llu at most",
             c->file->path, what, (unsigned long long)n, (unsigned long long)most);
    return false;
}

static bool read_all(cursor *c, qn__gguf *g)
{
    uint64_t version, n_tensors, n_values;
    if (!need(c, 8, "the header"))
        return false;
    if (memcmp(c->bytes, "GGUF", 4) != 0) {
        qn__fail(c->err, QN_FORMAT, "%s: not a GGUF file", g->path);
        return false;
    }
    c->at = 4;
    if (!take(c, 4, "the version", &version) || !check_version(c, version) ||
        !take(c, 8, "the number of tensors", &n_tensors) ||
        !take(c, 8, "the number of values", &n_values) ||
        !check_count(c, "number of tensors", n_tensors, 8 + 1 + 4 + 4 + 8, QN__GGUF_MAX_TENSORS) ||
        !check_count(c, "number of values", n_values, 8 + 1 + 4 + 1, QN__GGUF_MAX_VALUES))
        return false;
    g->version = (uint32_t)version;
    return take_values(c, g, n_values) && take_tensors(c, g, n_tensors) && sort_values(c, g) &&
           place_tensors(c, g);
}

qn_status qn__gguf_read(qn__gguf *out, const qn__file *file, qn_error *err)
{
    qn_error own = {0};
    cursor c = {.file = file, .err = &own};
    *out = (qn__gguf){.path = file->path, .file_size = file->size};
    bool ok = read_all(&c, out);
    out->bytes = c.bytes;
    if (ok)
        return QN_OK;
    qn__gguf_free(out);
    return qn__fail(err, own.code, "%s", own.message);
}

qn_status qn__gguf_open(qn__gguf *out, const char *path, qn_error *err)
{
    qn__file file;
    *out = (qn__gguf){0};
    qn_status status = qn__file_open(&file, path, err);
    if (status == QN_OK)
        status = qn__gguf_read(out, &file, err);
    qn__file_close(&file);
    out->path = path;
    return status;
}

void qn__gguf_free(qn__gguf *g)
{
    free(g->values);
    free(g->tensors);
    free(g->bytes);
    qn__arena_free(&g->names);
    *g = (qn__gguf){0};
}

bool qn__gguf_is(const char *path)
{
    char magic[4];
    qn__file file;
    bool is = qn__file_open(&file, path, NULL) == QN_OK && file.size >= sizeof magic &&
              qn__file_pread(&file, 0, magic, sizeof magic, NULL) == QN_OK &&
              !memcmp(magic, "GGUF", sizeof magic);
    qn__file_close(&file);
    return is;
}

/* Whether a directory's entry may be the file to open: a GGUF file by its name, not a later part of
 * a split one. */
static bool is_candidate(const char *name)
{
    size_t n = strlen(name);
    unsigned part = 1;
    if (n < 6 || strcmp(name + n - 5, ".gguf") != 0 || !strncmp(name, "mmproj", 6))
        return false;
    const char *end = n >= 20 ? name + n - 20 : ""; /* -00002-of-00003.gguf */
    if (end[0] == '-' && !memcmp(end + 6, "-of-", 4))
        sscanf(end + 1, "%5u", &part);
    return part == 1;
}

static qn_status locate_in(const char *directory, char **out, qn_error *err)
{
    char names[2][256] = {"", ""};
    int found = 0;
    DIR *d = opendir(directory);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, "config.json")) {
            found = 0;
            break;
        }
        if (!is_candidate(e->d_name))
            continue;
        snprintf(names[found > 0], sizeof names[0], "%s", e->d_name);
        found++;
    }
    if (d)
        closedir(d);
    if (found > 1)
        return qn__fail(err, QN_INVALID,
                        "%s: there are several GGUF files, such as %.80s and %.80s; give the path "
                        "of one",
                        directory, names[0], names[1]);
    if (found && !(*out = qn__path_join(directory, names[0])))
        return qn__fail_memory(err, "a path");
    return QN_OK;
}

qn_status qn__gguf_locate(const char *path, char **out, qn_error *err)
{
    bool is_directory = false;
    *out = NULL;
    if (qn__path_is_directory(path, &is_directory, NULL) != QN_OK)
        return QN_OK; /* what is to be opened says why */
    if (is_directory)
        return locate_in(path, out, err);
    if (qn__gguf_is(path) && !(*out = strdup(path)))
        return qn__fail_memory(err, "a path");
    return QN_OK;
}

/* ---- getters --------------------------------------------------------------------------------- */

static int compare_key(const void *key, const void *item)
{
    return strcmp(key, ((const qn__gguf_value *)item)->key);
}

const qn__gguf_value *qn__gguf_find(const qn__gguf *g, const char *key)
{
    if (g->n_values == 0)
        return NULL;
    return bsearch(key, g->values, g->n_values, sizeof *g->values, compare_key);
}

static bool is_integer(qn__gguf_type type)
{
    return type != QN__GGUF_F32 && type != QN__GGUF_F64 && type != QN__GGUF_BOOL &&
           type != QN__GGUF_STRING;
}

static bool is_number(qn__gguf_type type)
{
    return type != QN__GGUF_BOOL && type != QN__GGUF_STRING;
}

int64_t qn__gguf_int_at(const qn__gguf_value *v, uint64_t i)
{
    int n = type_sizes[v->type];
    uint64_t bits = little_endian(v->data + i * (uint64_t)n, n);
    switch (v->type) {
    case QN__GGUF_I8: return (int8_t)bits;
    case QN__GGUF_I16: return (int16_t)bits;
    case QN__GGUF_I32: return (int32_t)bits;
    case QN__GGUF_U64: return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
    default: return (int64_t)bits;
    }
}

double qn__gguf_number_at(const qn__gguf_value *v, uint64_t i)
{
    float single;
    double wide;
    if (v->type == QN__GGUF_F32) {
        memcpy(&single, v->data + 4 * i, sizeof single);
        return (double)single;
    }
    if (v->type != QN__GGUF_F64)
        return (double)qn__gguf_int_at(v, i);
    memcpy(&wide, v->data + 8 * i, sizeof wide);
    return wide;
}

static qn_status fail_type(const qn__gguf *g, const qn__gguf_value *v, const char *expected,
                           qn_error *err)
{
    return qn__fail(err, QN_FORMAT, "%s: %s: expected %s, got %s%s", g->path, v->key, expected,
                    v->is_array ? "an array of " : "", qn__gguf_type_name(v->type));
}

qn_status qn__gguf_require(const qn__gguf *g, const char *key, qn_error *err)
{
    return qn__gguf_find(g, key) ? QN_OK
                                 : qn__fail(err, QN_FORMAT, "%s: %s is missing", g->path, key);
}

qn_status qn__gguf_opt_int(const qn__gguf *g, const char *key, int64_t min, int64_t max,
                           int64_t *out, qn_error *err)
{
    const qn__gguf_value *v = qn__gguf_find(g, key);
    if (!v)
        return QN_OK;
    if (v->is_array || !is_integer(v->type))
        return fail_type(g, v, "an integer", err);
    int64_t value = qn__gguf_int_at(v, 0);
    if (value < min || value > max)
        return qn__fail(err, QN_FORMAT, "%s: %s: expected an integer in %lld..%lld, got %lld",
                        g->path, key, (long long)min, (long long)max, (long long)value);
    *out = value;
    return QN_OK;
}

qn_status qn__gguf_opt_number(const qn__gguf *g, const char *key, double min, double max,
                              double *out, qn_error *err)
{
    const qn__gguf_value *v = qn__gguf_find(g, key);
    if (!v)
        return QN_OK;
    if (v->is_array || !is_number(v->type))
        return fail_type(g, v, "a number", err);
    double value = qn__gguf_number_at(v, 0);
    if (!(value >= min && value <= max))
        return qn__fail(err, QN_FORMAT, "%s: %s: expected a number in %g..%g, got %g", g->path, key,
                        min, max, value);
    *out = value;
    return QN_OK;
}

qn_status qn__gguf_opt_bool(const qn__gguf *g, const char *key, bool *out, qn_error *err)
{
    const qn__gguf_value *v = qn__gguf_find(g, key);
    if (!v)
        return QN_OK;
    if (v->is_array || v->type != QN__GGUF_BOOL)
        return fail_type(g, v, "a bool", err);
    *out = v->data[0] != 0;
    return QN_OK;
}

qn_status qn__gguf_opt_text(const qn__gguf *g, const char *key, qn__gguf_text *out, qn_error *err)
{
    const qn__gguf_value *v = qn__gguf_find(g, key);
    size_t at = 0;
    if (!v)
        return QN_OK;
    if (v->is_array || v->type != QN__GGUF_STRING)
        return fail_type(g, v, "a string", err);
    qn__gguf_text text;
    qn__gguf_next_text(v, &at, &text);
    if (qn__utf8_check(text.data, text.n) != text.n)
        return qn__fail(err, QN_FORMAT, "%s: %s: the text is not valid UTF-8", g->path, key);
    *out = text;
    return QN_OK;
}

qn_status qn__gguf_opt_array(const qn__gguf *g, const char *key, qn__gguf_type type,
                             const qn__gguf_value **out, qn_error *err)
{
    const qn__gguf_value *v = qn__gguf_find(g, key);
    *out = NULL;
    if (!v)
        return QN_OK;
    bool fits = type == QN__GGUF_I32 ? is_integer(v->type) : v->type == type;
    if (!v->is_array || !fits) {
        char expected[40];
        snprintf(expected, sizeof expected, "an array of %s", qn__gguf_type_name(type));
        return fail_type(g, v, expected, err);
    }
    *out = v;
    return QN_OK;
}

bool qn__gguf_next_text(const qn__gguf_value *v, size_t *at, qn__gguf_text *out)
{
    if (*at >= v->size)
        return false;
    size_t n = (size_t)little_endian(v->data + *at, 8);
    *out = (qn__gguf_text){v->data + *at + 8, n};
    *at += 8 + n;
    return true;
}

bool qn__gguf_text_is(const qn__gguf_text *text, const char *word)
{
    return text->n == strlen(word) && !memcmp(text->data, word, text->n);
}
