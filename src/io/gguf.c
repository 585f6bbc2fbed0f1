/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF as a file of tensors: what the types of base/gguf.h's table mean, how long tensors are, and
 * models that are split over files.
 *
 * A split model is opened by its first part, name-00001-of-00003.gguf, whose metadata is the
 * model's; the others have tensors and, in split.no and split.count, their place.
 */
#include "base/gguf.h"
#include "base/utf8.h"
#include "io/safetensors_dtype.h"
#include "io/tensors.h"
#include "quant/encoding.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- types ----------------------------------------------------------------------------------- */

typedef struct gguf_type {
    uint32_t number;
    qn_dtype dtype;
    const char *encoding;     /* NULL: plain elements */
    uint32_t elements, bytes; /* of a block */
    uint32_t behind;          /* bytes behind the blocks of a tensor */
} gguf_type;

static const gguf_type plain_types[] = {
    {0, QN_F32, NULL, 1, 4, 0},  {1, QN_F16, NULL, 1, 2, 0},  {30, QN_BF16, NULL, 1, 2, 0},
    {24, QN_I8, NULL, 1, 1, 0},  {25, QN_I16, NULL, 1, 2, 0}, {26, QN_I32, NULL, 1, 4, 0},
    {27, QN_I64, NULL, 1, 8, 0}, {28, QN_F64, NULL, 1, 8, 0},
};

/* Types that other programs have, or had. */
static const struct {
    uint32_t number;
    const char *name;
} other_types[] = {
    {4, "Q4_2"},        {5, "Q4_3"},      {9, "Q8_1"},      {15, "Q8_K"},     {16, "IQ2_XXS"},
    {17, "IQ2_XS"},     {18, "IQ3_XXS"},  {19, "IQ1_S"},    {21, "IQ3_S"},    {22, "IQ2_S"},
    {29, "IQ1_M"},      {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {37, "IQ4_NL_4_8"},
    {38, "IQ4_NL_8_8"}, {40, "NVFP4"},    {41, "Q1_0"},
};

static bool find_type(uint32_t number, gguf_type *out)
{
    for (size_t i = 0; i < sizeof plain_types / sizeof *plain_types; i++)
        if (plain_types[i].number == number) {
            *out = plain_types[i];
            return true;
        }
    int id = qn__encoding_of_ggml(number);
    if (id < 0)
        return false;
    const qn__encoding *e = &qn__encodings[id];
    *out = (gguf_type){number, QN_F32, e->name, e->block_elements, e->block_bytes, 0};
    out->behind = id == QN__I2_S ? QN__I2_S_TAIL : 0; /* one scale, and padding */
    return true;
}

static qn_status fail_type(const char *path, const qn__gguf_tensor *t, const char *quoted,
                           qn_error *err)
{
    char supported[400];
    size_t n = 0;
    const char *name = "";
    for (size_t i = 0; i < sizeof other_types / sizeof *other_types; i++)
        if (other_types[i].number == t->type)
            name = other_types[i].name;
    for (int i = 0; i < QN__ENCODING_COUNT && qn__encodings[i].ggml_type >= 0; i++)
        n += (size_t)snprintf(supported + n, sizeof supported - n, ", %s", qn__encodings[i].name);
    return qn__fail(err, QN_UNSUPPORTED,
                    "%s: tensor %s: type %u%s%s%s is not supported (supported: f64, i8..i64%s)",
                    path, quoted, (unsigned)t->type, *name ? " (" : "", name, *name ? ")" : "",
                    supported);
}

/* ---- one file -------------------------------------------------------------------------------- */

/* The bytes of a tensor; false when its rows are no whole blocks or the product wraps. */
static bool tensor_size(const gguf_type *type, const qn__gguf_tensor *t, uint64_t *bytes)
{
    uint64_t n = t->ndim > 0 ? (uint64_t)t->dims[0] : 1;
    if (n % type->elements)
        return false;
    n /= type->elements;
    for (int i = 1; i < t->ndim; i++)
        if (__builtin_mul_overflow(n, (uint64_t)t->dims[i], &n))
            return false;
    return !__builtin_mul_overflow(n, (uint64_t)type->bytes, &n) &&
           !__builtin_add_overflow(n, n ? (uint64_t)type->behind : 0, bytes) && *bytes <= INT64_MAX;
}

/* The number of values may not wrap either, where blocks are smaller than what they hold. */
static bool counts(const qn__gguf_tensor *t)
{
    uint64_t n = 4;
    for (int i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(n, (uint64_t)t->dims[i], &n) || n > INT64_MAX)
            return false;
    return true;
}

static qn_status add_encoded(qn_tensors *table, uint32_t file, const qn__gguf *g,
                             const qn__gguf_tensor *t, qn_error *err)
{
    char quoted[100], shape[100] = "";
    gguf_type type;
    qn__utf8_quote(quoted, sizeof quoted, t->name, strlen(t->name));
    if (!find_type(t->type, &type))
        return fail_type(g->path, t, quoted, err);
    qn_tensor_info *info = qn__tensors_add(table);
    if (!info)
        return qn__fail_memory(err, "a table of tensors");
    for (int i = 0, n = 0; i < t->ndim; i++) {
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", i ? ", " : "",
                      (long long)t->dims[t->ndim - 1 - i]);
        info->shape[i] = t->dims[t->ndim - 1 - i];
    }
    if (!tensor_size(&type, t, &info->bytes) || !counts(t))
        return qn__fail(err, QN_FORMAT,
                        "%s: tensor %s of shape [%s] cannot be %s, which has blocks of %u values",
                        g->path, quoted, shape,
                        type.encoding ? type.encoding : qn_dtype_name(type.dtype),
                        (unsigned)type.elements);
    if (info->bytes > g->file_size - t->offset)
        return qn__fail(err, QN_FORMAT,
                        "%s: tensor %s takes %llu bytes from byte %llu on, but the file has %llu "
                        "(an interrupted download?)",
                        g->path, quoted, (unsigned long long)info->bytes,
                        (unsigned long long)t->offset, (unsigned long long)g->file_size);
    info->name = t->name;
    info->dtype = type.dtype;
    info->encoding = type.elements > 1 ? type.encoding : NULL;
    info->ndim = t->ndim;
    info->file = file;
    info->offset = t->offset;
    table->n_tensors++;
    return QN_OK;
}

static int compare_places(const void *a, const void *b)
{
    const qn_tensor_info *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* No byte may belong to two tensors. Sorts the entries, which are sorted again by name later. */
static qn_status check_apart(qn_tensor_info *t, size_t n, const char *path, qn_error *err)
{
    char a[100], b[100];
    if (n)
        qsort(t, n, sizeof *t, compare_places);
    for (size_t i = 1; i < n; i++)
        if (t[i - 1].offset + t[i - 1].bytes > t[i].offset)
            return qn__fail(err, QN_FORMAT, "%s: tensors %s and %s overlap at byte %llu", path,
                            qn__utf8_quote(a, sizeof a, t[i - 1].name, strlen(t[i - 1].name)),
                            qn__utf8_quote(b, sizeof b, t[i].name, strlen(t[i].name)),
                            (unsigned long long)t[i].offset);
    return QN_OK;
}

static void close_container(void *state)
{
    qn__gguf_free(state);
    free(state);
}

/* Reads the container of files[i], which is open, and appends its tensors. */
static qn_status load_part(qn_tensors *table, uint32_t i, qn_error *err)
{
    qn__gguf *g = malloc(sizeof *g);
    if (!g)
        return qn__fail_memory(err, "a GGUF file");
    table->files[i].kind = &qn__gguf_kind;
    table->files[i].state = g;
    qn_status status = qn__gguf_read(g, &table->files[i].file, err);
    size_t first = table->n_tensors;
    for (size_t j = 0; status == QN_OK && j < g->n_tensors; j++)
        status = add_encoded(table, i, g, &g->tensors[j], err);
    if (status == QN_OK)
        status = check_apart(table->tensors + first, table->n_tensors - first, g->path, err);
    return status;
}

/* ---- split models ---------------------------------------------------------------------------- */

/* split.no and split.count, 0 and 1 where the file is whole. */
static qn_status read_place(const qn__gguf *g, int64_t *no, int64_t *count, qn_error *err)
{
    *no = 0;
    *count = 1;
    qn_status status = qn__gguf_opt_int(g, "split.count", 0, QN__MAX_SHARDS, count, err);
    if (status == QN_OK)
        status = qn__gguf_opt_int(g, "split.no", 0, QN__MAX_SHARDS, no, err);
    *count = *count ? *count : 1;
    return status;
}

/* The name of part i beside the first, name-00001-of-00003.gguf; false: it is not named so. */
static bool name_part(const char *first, int64_t i, int64_t count, char *out, size_t room)
{
    char tail[40];
    const char *name = strrchr(first, '/');
    name = name ? name + 1 : first;
    size_t n = strlen(name);
    snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", 1, (int)count);
    size_t m = strlen(tail);
    if (n <= m || strcmp(name + n - m, tail) != 0)
        return false;
    return snprintf(out, room, "%.*s-%05d-of-%05d.gguf", (int)(n - m), name, (int)i + 1,
                    (int)count) < (int)room;
}

static qn_status check_part(const qn__gguf *first, const qn__gguf *part, int64_t i, int64_t count,
                            qn_error *err)
{
    int64_t no, its_count;
    if (read_place(part, &no, &its_count, err) != QN_OK)
        return QN_FORMAT;
    if (no != i || its_count != count)
        return qn__fail(err, QN_FORMAT,
                        "%s: says that it is part %lld of %lld, but it stands in the place of part "
                        "%lld of %lld (split.no, split.count)",
                        part->path, (long long)no + 1, (long long)its_count, (long long)i + 1,
                        (long long)count);
    if (part->version != first->version)
        return qn__fail(err, QN_FORMAT, "%s: GGUF version %u, but %s has version %u", part->path,
                        (unsigned)part->version, first->path, (unsigned)first->version);
    return QN_OK;
}

static qn_status open_part(qn_tensors *t, const char *directory, const char *name, uint32_t i,
                           qn_error *err)
{
    char *path = NULL;
    qn_status status = qn__path_resolve(directory, name, strlen(name), &path, err);
    if (status == QN_OK)
        status = qn__file_open(&t->files[i].file, path, err);
    free(path);
    return status == QN_OK ? load_part(t, i, err) : status;
}

/* Opens parts 1 .. count - 1; part 0 is there. */
static qn_status load_others(qn_tensors *t, int64_t count, qn_error *err)
{
    char name[300];
    const qn__gguf *first = t->files[0].state;
    char *directory = qn__path_parent(first->path);
    qn__tensor_file *files = directory ? realloc(t->files, (size_t)count * sizeof *files) : NULL;
    qn_status status = files ? QN_OK : qn__fail_memory(err, "a table of files");
    if (files)
        t->files = files;
    for (int64_t i = 1; status == QN_OK && i < count; i++) {
        files[i] = (qn__tensor_file){.file = {.fd = -1}};
        t->n_files = (uint32_t)i + 1;
        if (!name_part(first->path, i, count, name, sizeof name))
            status = qn__fail(err, QN_FORMAT,
                              "%s: is part 1 of %lld, but its name does not end in "
                              "-00001-of-%05lld.gguf, so that the others cannot be found",
                              first->path, (long long)count, (long long)count);
        else
            status = open_part(t, directory, name, (uint32_t)i, err);
        if (status == QN_OK)
            status = check_part(first, files[i].state, i, count, err);
    }
    free(directory);
    return status;
}

static qn_status load_gguf(qn_tensors *t, uint32_t i, qn_error *err)
{
    int64_t no, count, all = -1;
    qn_status status = load_part(t, i, err);
    const qn__gguf *g = t->files[i].state;
    if (status == QN_OK)
        status = read_place(g, &no, &count, err);
    if (status != QN_OK || count == 1)
        return status;
    if (no != 0)
        return qn__fail(err, QN_INVALID, "%s: is part %lld of %lld; give the first one, %s",
                        g->path, (long long)no + 1, (long long)count,
                        "which has the model's metadata");
    if (t->files[i].name)
        return qn__fail(err, QN_UNSUPPORTED, "%s: a split GGUF file inside an index", g->path);
    status = load_others(t, count, err);
    g = t->files[0].state;
    if (status == QN_OK)
        status = qn__gguf_opt_int(g, "split.tensors.count", 0, INT32_MAX, &all, err);
    if (status == QN_OK && all >= 0 && (uint64_t)all != t->n_tensors)
        return qn__fail(err, QN_FORMAT,
                        "%s: split.tensors.count is %lld, but the %lld parts have %zu tensors",
                        g->path, (long long)all, (long long)count, t->n_tensors);
    return status;
}

const qn__file_kind qn__gguf_kind = {.load = load_gguf, .close = close_container};
