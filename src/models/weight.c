/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding and reading the tensors of one parameter.
 *
 * MLX writes a quantised matrix as NAME.weight, codes in words of 32 bits, NAME.scales and, unless
 * the codes are floating-point numbers of four bits (mode mxfp4), NAME.biases. Bits and group size
 * follow from the shapes; config.json's "quantization" is not needed for them.
 * Format: https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
 */
#include "models/quantized.h"

#include "base/error.h"
#include "core/dtype.h"
#include "ops/ops.h"
#include "quant/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool qn__weight_beside(const char *name, const qn__quantization *quantization, size_t *stem)
{
    static const char *const of_none[] = {"scales", "biases", "weight_scale", "scale", NULL};
    const char *const *parts =
        quantization && quantization->kind ? quantization->kind->parts : of_none;
    const char *end = strrchr(name, '.');
    for (size_t i = 0; end && parts[i]; i++)
        if (!strcmp(end + 1, parts[i])) {
            *stem = (size_t)(end - name);
            return true;
        }
    return false;
}

uint64_t qn__weight_tail(const qn_tensor_info *t)
{
    bool has = t->encoding && !strcmp(t->encoding, qn__encodings[QN__I2_S].name);
    return has ? QN__I2_S_TAIL : 0;
}

qn_status qn__weight_stream(const qn_tensors *file, const qn_tensor_info *t, int64_t first,
                            int64_t n, void *rows, qn_error *err)
{
    uint64_t row = (t->bytes - qn__weight_tail(t)) / (uint64_t)t->shape[0];
    return qn_tensors_read_bytes(file, t, row * (uint64_t)first, (size_t)(row * (uint64_t)n), rows,
                                 err);
}

static qn_status wrong_shape(const qn_tensors *file, const qn__parameter *p,
                             const qn_tensor_info *t, const char *asker, qn_error *err)
{
    return qn__fail(
        err, QN_FORMAT, "%s: tensor %s has shape [%lld%s%.0lld], %s asks for [%lld%s%.0lld]",
        qn_tensors_path(file, t->file), t->name, (long long)t->shape[0], t->ndim > 1 ? ", " : "",
        (long long)(t->ndim > 1 ? t->shape[1] : 0), asker, (long long)p->shape[0],
        p->ndim > 1 ? ", " : "", (long long)(p->ndim > 1 ? p->shape[1] : 0));
}

static qn_status find_plain(qn__weight *out, const qn_tensors *file, const qn__parameter *p,
                            const char *asker, qn_error *err)
{
    const qn_tensor_info *t = out->tensor;
    bool fits = t->ndim == p->ndim && t->shape[0] == p->shape[0] &&
                (p->ndim == 1 || t->shape[1] == p->shape[1]);
    if (!fits)
        return wrong_shape(file, p, t, asker, err);
    out->encoding = t->encoding ? &qn__encodings[qn__encoding_named(t->encoding)]
                                : qn__encoding_of_dtype(t->dtype);
    if (t->encoding && p->ndim == 1)
        return qn__fail(err, QN_UNSUPPORTED, "%s: tensor %s is %s; vectors may be f32, bf16 or f16",
                        qn_tensors_path(file, t->file), t->name, t->encoding);
    if (out->encoding == &qn__encodings[QN__I2_S] && !p->factor)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: tensor %s is i2_s, which layers' linears may be; this one may be f32, "
                        "bf16, f16 or in other blocks",
                        qn_tensors_path(file, t->file), t->name);
    if (!out->encoding)
        return qn__fail(err, QN_UNSUPPORTED, "%s: tensor %s is %s; weights may be f32, bf16 or f16",
                        qn_tensors_path(file, t->file), t->name, qn_dtype_name(t->dtype));
    return QN_OK;
}

/* ---- MLX: codes, scales, biases
 * ------------------------------------------------------------------------------- */

static bool same_shape(const qn_tensor_info *a, const qn_tensor_info *b)
{
    return a->ndim == 2 && b->ndim == 2 && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1];
}

/* The encoding of K columns in `words` words of 32 bits with `groups` scales; NULL: of none. */
static const qn__encoding *encoding_of_shapes(int64_t columns, int64_t words, int64_t groups,
                                              const qn_tensor_info *scales, bool biased)
{
    if (groups < 1 || columns % groups || words < 1 || words > INT64_MAX / 32 ||
        words * 32 % columns)
        return NULL;
    int64_t group = columns / groups, bits = words * 32 / columns;
    if (scales->dtype == QN_U8)
        return !biased && group == 32 && bits == 4 ? &qn__encodings[QN__MXFP4] : NULL;
    const qn__encoding *type = qn__encoding_of_dtype(scales->dtype);
    if (!type || !biased || group > 128 || bits > 8)
        return NULL;
    int id = qn__encoding_affine((int)bits, (int)group, (qn__encoding_id)(type - qn__encodings));
    return id < 0 ? NULL : &qn__encodings[id];
}

static qn_status find_mlx(qn__weight *out, const qn__weight_query *query, qn_error *err)
{
    const qn_tensors *file = query->file;
    const qn__parameter *p = query->parameter;
    const char *asker = query->asker;
    out->scales = qn__weight_part(query, "scales");
    if (!out->scales)
        return QN_OK;
    out->tensor = qn__weight_part(query, "weight");
    out->biases = qn__weight_part(query, "biases");
    const qn_tensor_info *t = out->tensor, *s = out->scales, *b = out->biases;
    const char *path = qn_tensors_path(file, t->file);
    if (p->ndim != 2 || t->ndim != 2 || t->shape[0] != p->shape[0] || t->dtype != QN_U32)
        return qn__fail(err, QN_FORMAT,
                        "%s: tensor %s has scales beside it, so %s asks for [%lld, K] words of u32 "
                        "that hold %lld codes a row; it is [%lld, %lld] %s",
                        path, t->name, asker, (long long)p->shape[0], (long long)p->shape[1],
                        (long long)t->shape[0], (long long)(t->ndim > 1 ? t->shape[1] : 0),
                        qn_dtype_name(t->dtype));
    if (s->ndim != 2 || s->shape[0] != t->shape[0] ||
        (b && (!same_shape(s, b) || b->dtype != s->dtype)))
        return qn__fail(err, QN_FORMAT, "%s: tensor %s is [%lld, %lld] %s, which does not fit %s",
                        path, (b && s->ndim == 2 && s->shape[0] == t->shape[0] ? b : s)->name,
                        (long long)s->shape[0], (long long)(s->ndim > 1 ? s->shape[1] : 0),
                        qn_dtype_name(s->dtype), t->name);
    out->encoding = encoding_of_shapes(p->shape[1], t->shape[1], s->shape[1], s, b != NULL);
    if (!out->encoding)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: tensor %s: %lld words and %lld scales in %s%s for %lld columns; "
                        "supported are 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128 with "
                        "scales and biases in f32, f16 or bf16, and mxfp4",
                        path, t->name, (long long)t->shape[1], (long long)s->shape[1],
                        qn_dtype_name(s->dtype), b ? "" : " without biases",
                        (long long)p->shape[1]);
    out->columns = p->shape[1];
    out->group_size = out->columns / s->shape[1];
    return QN_OK;
}

static qn_status read_mlx(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                          uint32_t *codes, uint8_t *scales, uint8_t *biases, qn_error *err)
{
    qn_status status = qn__weight_stream(file, w->tensor, first, n, codes, err);
    if (status == QN_OK)
        status = qn__weight_stream(file, w->scales, first, n, scales, err);
    if (status == QN_OK && w->biases)
        status = qn__weight_stream(file, w->biases, first, n, biases, err);
    return status;
}

static const qn__weight_kind mlx_kind = {.find = find_mlx, .read = read_mlx};

/* ---- units ----------------------------------------------------------------------------------- */

static qn_status find_packed(qn__weight *out, const qn_tensors *file, const qn__parameter *p,
                             const char *says, qn_error *err)
{
    const qn_tensor_info *t = out->tensor;
    const char *path = qn_tensors_path(file, t->file),
               *version = qn_tensors_metadata(file, "units");
    char name[40];
    long long rows, columns;
    int end = 0;
    if (strcmp(version, QN__UNITS_VERSION) != 0)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: its weights are packed in version \"%.20s\" of the layout, and only "
                        "version " QN__UNITS_VERSION " is supported; convert the model again",
                        path, version);
    int n = sscanf(says, "%39s %lld %lld%n", name, &rows, &columns, &end);
    int id = n == 3 && !says[end] ? qn__encoding_named(name) : -1;
    if (id < 0 || id == QN__I2_S)
        return qn__fail(err, QN_FORMAT, "%s: metadata of %s: \"%.60s\" is no encoding with a shape",
                        path, t->name, says);
    if (p->ndim != 2 || rows != p->shape[0] || columns != p->shape[1] ||
        columns % qn__encodings[id].block_elements)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s is %.60s, [%lld, %lld] is wanted", path,
                        t->name, says, (long long)p->shape[0],
                        (long long)(p->ndim > 1 ? p->shape[1] : 1));
    size_t bytes = qn__layout_bytes(QN__UNITS_OF(id), rows, columns);
    if (t->encoding || t->dtype != QN_U8 || t->ndim != 1 || bytes != t->bytes)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s has %llu bytes, units of %.60s take %zu",
                        path, t->name, (unsigned long long)t->bytes, says, bytes);
    out->encoding = &qn__encodings[id];
    out->packed = true;
    out->columns = columns;
    return QN_OK;
}

/* ---- finding
 * --------------------------------------------------------------------------------------------------
 */

static qn_status fail_missing(const qn__weight_query *query, const char *family, qn_error *err)
{
    const char *stored = query->parameter->stored, *path = qn_tensors_path(query->file, 0);
    const qn__weight_kind *kind = query->quantization ? query->quantization->kind : NULL;
    const qn_tensor_info *codes = NULL;
    for (int i = 0; qn__weight_kinds[i] && !codes; i++)
        codes = qn__weight_part(query, qn__weight_kinds[i]->parts[0]);
    if (codes)
        return qn__fail(
            err, QN_FORMAT,
            "%s: tensor %s is missing (%s needs it); there is %s, which %s does not have", path,
            stored, family, codes->name,
            kind ? kind->method : "a config.json without quantization_config");
    return qn__fail(err, QN_FORMAT, "%s: tensor %s is missing (%s needs it)", path, stored, family);
}

/* One tensor of values, and what multiplies all of them, if anything does. */
static qn_status find_values(qn__weight *out, const qn__weight_query *query, const char *family,
                             qn_error *err)
{
    const qn__parameter *p = query->parameter;
    out->bytes = out->tensor->bytes;
    if (out->ternary)
        return qn__ternary_find(out, query, family, err);
    if (find_plain(out, query->file, p, query->asker, err) != QN_OK)
        return err->code;
    out->factor_of = p->factor ? qn__weight_part(query, "scale") : NULL;
    out->bytes += out->factor_of ? out->factor_of->bytes : 0;
    return out->factor_of ? qn__ternary_check(query->file, out->factor_of, out->tensor, err)
                          : QN_OK;
}

qn_status qn__weight_find(qn__weight *out, const qn_tensors *file, const qn__parameter *p,
                          const qn__quantization *quantization, const char *family,
                          const char *asker, qn_error *err)
{
    qn__weight_query query = {file, p, quantization, asker};
    *out = (qn__weight){.paired_rows = p->paired_rows, .ternary = p->ternary};
    const qn_tensor_info *plain = qn_tensors_find(file, p->stored);
    const qn__weight_kind *kind =
        quantization && quantization->kind && p->ndim == 2 ? quantization->kind : NULL;
    const char *says =
        plain && qn_tensors_metadata(file, "units") ? qn_tensors_metadata(file, p->stored) : NULL;
    if (says) {
        out->tensor = plain;
        out->bytes = plain->bytes;
        return find_packed(out, file, p, says, err);
    }
    if (kind && kind->find(out, &query, err) != QN_OK)
        return err->code;
    if (!out->tensor && plain && !p->ternary && qn__weight_part(&query, "scales")) {
        kind = &mlx_kind;
        if (kind->find(out, &query, err) != QN_OK)
            return err->code;
    }
    if (!out->tensor) {
        if (!(out->tensor = plain))
            return fail_missing(&query, family, err);
        return find_values(out, &query, family, err);
    }
    out->kind = kind;
    const qn_tensor_info *all[] = {out->tensor, out->scales, out->biases, out->order};
    for (int i = 0; i < 4; i++)
        out->bytes += all[i] ? all[i]->bytes : 0;
    return QN_OK;
}

/* ---- columns in another order
 * -------------------------------------------------------------------------------- */

static qn_status wrong_order(const qn__weight *w, const qn_tensors *file, int64_t column,
                             int32_t group, int64_t groups, qn_error *err)
{
    return qn__fail(err, QN_FORMAT, "%s: tensor %s: column %lld is of group %d; there are %lld",
                    qn_tensors_path(file, w->order->file), w->order->name, (long long)column, group,
                    (long long)groups);
}

/* Fills order with the columns group by group: a group has group_size of them, the last one what is
 * left. */
static qn_status sort_columns(const qn__weight *w, const qn_tensors *file, const int32_t *group,
                              int32_t *order, qn_error *err)
{
    int64_t n = w->columns, groups = qn__weight_groups(w->group_size, n);
    int64_t *filled = calloc((size_t)groups, sizeof *filled);
    if (!filled)
        return qn__fail_memory(err, "an order of columns");
    for (int64_t i = 0; i < n && err->code == QN_OK; i++) {
        int64_t g = group[i], most = g == groups - 1 ? n - g * w->group_size : w->group_size;
        if (g < 0 || g >= groups)
            wrong_order(w, file, i, group[i], groups, err);
        else if (filled[g] == most)
            qn__fail(err, QN_UNSUPPORTED,
                     "%s: tensor %s: more than %lld columns are of group %d; supported are groups "
                     "of one size",
                     qn_tensors_path(file, w->order->file), w->order->name, (long long)most,
                     group[i]);
        else
            order[g * w->group_size + filled[g]++] = (int32_t)i;
    }
    free(filled);
    return err->code;
}

qn_status qn__weight_order(const qn__weight *w, const qn_tensors *file, int32_t **order,
                           qn_error *err)
{
    *order = NULL;
    if (!w->order)
        return QN_OK;
    size_t n = (size_t)w->columns;
    int32_t *group = malloc(n * sizeof *group), *sorted = malloc(n * sizeof *sorted);
    qn_error own = {0};
    bool none = true, moved = false; /* none: -1 throughout */
    if (!group || !sorted)
        qn__fail_memory(&own, "an order of columns");
    else
        qn__weight_stream(file, w->order, 0, w->columns, group, &own);
    for (size_t i = 0; own.code == QN_OK && i < n; i++)
        none = none && group[i] == -1;
    if (own.code == QN_OK && !none && sort_columns(w, file, group, sorted, &own) == QN_OK)
        for (size_t i = 0; i < n; i++)
            moved = moved || sorted[i] != (int32_t)i;
    if (moved) {
        *order = sorted;
        sorted = NULL;
    }
    free(group);
    free(sorted);
    if (own.code != QN_OK && err)
        *err = own;
    return own.code;
}

/* The codes of one row in another order. */
static void move_codes(uint32_t *words, size_t n_words, int bits, const int32_t *order,
                       int64_t columns, uint32_t *room)
{
    uint32_t mask = (1u << bits) - 1;
    memset(room, 0, n_words * sizeof *room);
    for (int64_t i = 0; i < columns; i++) {
        int64_t from = (int64_t)order[i] * bits, to = i * bits, shift = from % 32;
        uint32_t code = words[from / 32] >> shift;
        if (shift + bits > 32)
            code |= words[from / 32 + 1] << (32 - shift);
        code &= mask;
        room[to / 32] |= code << to % 32;
        if (to % 32 + bits > 32)
            room[to / 32 + 1] |= code >> (32 - to % 32);
    }
    memcpy(words, room, n_words * sizeof *room);
}

/* ---- reading
 * --------------------------------------------------------------------------------------------------
 */

/* Where rows of codes are put together: of each stream all rows, and one row of more groups. */
typedef struct streams {
    uint32_t *codes, *moved;
    uint8_t *scales, *biases, *scale_row, *bias_row;
    size_t words, stored, groups, part; /* of a row: words, groups in the file, in blocks; bytes */
    char *room;
} streams;

static bool begin_streams(streams *s, const qn__weight *w, size_t n)
{
    const qn__encoding *e = w->encoding;
    *s = (streams){.groups = (size_t)w->columns / e->block_elements};
    s->words = s->groups * (e->bits ? (size_t)e->bits * e->group / 32 : 4);
    s->stored = (size_t)qn__weight_groups(w->group_size, w->columns);
    s->part = e->bits ? qn__encodings[e->scale].block_bytes : 1;
    size_t codes = (n + 1) * s->words * 4, scales = n * s->stored * s->part,
           row = s->groups * s->part;
    s->room = malloc(codes + 2 * (scales + row) + 1);
    s->codes = (uint32_t *)(void *)s->room;
    s->moved = s->codes + n * s->words;
    s->scales = (uint8_t *)s->room + codes;
    s->biases = s->scales + scales;
    s->scale_row = s->biases + scales;
    s->bias_row = s->scale_row + row;
    return s->room != NULL;
}

/* Groups of a row as blocks have them: several may share one of the file. */
static const uint8_t *spread_groups(const streams *s, const qn__weight *w, const uint8_t *stored,
                                    uint8_t *row)
{
    size_t columns = w->encoding->block_elements;
    if (s->groups == s->stored)
        return stored;
    for (size_t g = 0; g < s->groups; g++)
        memcpy(row + g * s->part, stored + g * columns / (size_t)w->group_size * s->part, s->part);
    return row;
}

static qn_status read_codes(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                            uint8_t *to, qn_error *err)
{
    streams s;
    if (!begin_streams(&s, w, (size_t)n))
        return qn__fail_memory(err, "a weight's buffer");
    bool biased = w->biases || w->encoding->zeroed;
    qn_status status = w->kind->read(w, file, first, n, s.codes, s.scales, s.biases, err);
    for (size_t r = 0; r < (size_t)n && status == QN_OK; r++) {
        uint32_t *codes = s.codes + r * s.words;
        size_t at = r * s.stored * s.part;
        if (w->columns_order)
            move_codes(codes, s.words, w->encoding->bits, w->columns_order, w->columns, s.moved);
        qn__encoding_zip(w->encoding, s.groups, codes,
                         spread_groups(&s, w, s.scales + at, s.scale_row),
                         biased ? spread_groups(&s, w, s.biases + at, s.bias_row) : NULL,
                         to + r * s.groups * w->encoding->block_bytes);
    }
    free(s.room);
    return status;
}

/* Rows taken out of their units, group by group. */
static qn_status rows_of_units(const qn__weight *w, const qn_tensors *file, int64_t first,
                               int64_t n, uint8_t *to, qn_error *err)
{
    const qn__layout *l = qn__layout_of(QN__UNITS_OF(w->encoding - qn__encodings));
    size_t group = qn__layout_group_bytes(l, w->columns),
           row = qn__encoding_row_bytes(w->encoding, w->columns);
    char *units = malloc(group + 1);
    qn_status status = units ? QN_OK : qn__fail_memory(err, "a weight's buffer");
    for (int64_t i = first; status == QN_OK && i < first + n; i++) {
        if (i == first || i % QN__UNIT_ROWS == 0)
            status = qn_tensors_read_bytes(file, w->tensor, (uint64_t)(i / QN__UNIT_ROWS) * group,
                                           group, units, err);
        if (status == QN_OK)
            qn__layout_unpack_row(l, units, w->columns, i % QN__UNIT_ROWS,
                                  to + (size_t)(i - first) * row);
    }
    free(units);
    return status;
}

static qn_status read_stored(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                             void *to, qn_error *err)
{
    return w->packed    ? rows_of_units(w, file, first, n, to, err)
           : w->kind    ? read_codes(w, file, first, n, to, err)
           : w->ternary ? qn__ternary_read(w, file, first, n, to, err)
                        : qn__weight_stream(file, w->tensor, first, n, to, err);
}

/* Where in its file a row stands: rows in pairs (half a head apart here, side by side there) are
 * brought apart. */
static int64_t stored_row(const qn__weight *w, int64_t row)
{
    int64_t n = w->paired_rows, in_head = row % n;
    return row - in_head + in_head % (n / 2) * 2 + in_head / (n / 2);
}

qn_status qn__weight_read(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                          void *to, qn_error *err)
{
    if (!w->paired_rows)
        return read_stored(w, file, first, n, to, err);
    int64_t columns = w->tensor->ndim > 1 ? w->tensor->shape[1] : 1;
    size_t row = qn__encoding_row_bytes(w->encoding, columns), head = (size_t)w->paired_rows * row;
    char *stored = malloc(head);
    int64_t at = -1; /* the head that is in `stored` */
    qn_status status = stored ? QN_OK : qn__fail_memory(err, "a weight's buffer");
    for (int64_t i = first; status == QN_OK && i < first + n; i++) {
        int64_t from = stored_row(w, i), h = from / w->paired_rows;
        if (h != at)
            status = read_stored(w, file, h * w->paired_rows, w->paired_rows, stored, err);
        at = h;
        if (status == QN_OK)
            memcpy((char *)to + (size_t)(i - first) * row,
                   stored + (size_t)(from % w->paired_rows) * row, row);
    }
    free(stored);
    return status;
}
