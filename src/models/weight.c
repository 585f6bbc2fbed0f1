/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding and reading the tensors of one parameter.
 *
 * MLX writes a quantised matrix as NAME.weight, codes in words of 32 bits, NAME.scales and, unless
 * the codes are floating-point numbers of four bits (mode mxfp4), NAME.biases. Bits and group size
 * follow from the shapes; config.json's "quantization" is not needed for them.
 * Format: https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
 */
#include "models/weight.h"

#include "base/error.h"
#include "core/dtype.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char weight_end[] = ".weight";

/* The tensor beside NAME.weight that is called NAME.`part`. */
static const qn_tensor_info *find_beside(const qn_tensors *file, const char *stored,
                                         const char *part)
{
    char name[140];
    size_t n = strlen(stored), end = sizeof weight_end - 1;
    if (n < end || strcmp(stored + n - end, weight_end) != 0)
        return NULL;
    snprintf(name, sizeof name, "%.*s.%s", (int)(n - end), stored, part);
    return qn_tensors_find(file, name);
}

bool qn__weight_beside(const char *name, size_t *stem)
{
    static const char *const parts[] = {".scales", ".biases"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t m = strlen(parts[i]);
        if (n > m && !strcmp(name + n - m, parts[i])) {
            *stem = n - m;
            return true;
        }
    }
    return false;
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
    if (out->encoding == &qn__encodings[QN__I2_S]) /* its scale lies behind the blocks */
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: tensor %s is i2_s, which is not supported yet; tq1_0 and tq2_0 are",
                        qn_tensors_path(file, t->file), t->name);
    if (!out->encoding)
        return qn__fail(err, QN_UNSUPPORTED, "%s: tensor %s is %s; weights may be f32, bf16 or f16",
                        qn_tensors_path(file, t->file), t->name, qn_dtype_name(t->dtype));
    return QN_OK;
}

/* ---- codes, scales, biases
 * ------------------------------------------------------------------------------------ */

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

static qn_status find_quantised(qn__weight *out, const qn_tensors *file, const qn__parameter *p,
                                const char *asker, qn_error *err)
{
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
    return QN_OK;
}

qn_status qn__weight_find(qn__weight *out, const qn_tensors *file, const qn__parameter *p,
                          const char *family, const char *asker, qn_error *err)
{
    *out = (qn__weight){.paired_rows = p->paired_rows};
    out->tensor = qn_tensors_find(file, p->stored);
    if (!out->tensor)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s is missing (%s needs it)",
                        qn_tensors_path(file, 0), p->stored, family);
    out->scales = find_beside(file, p->stored, "scales");
    out->biases = find_beside(file, p->stored, "biases");
    out->bytes = out->tensor->bytes + (out->scales ? out->scales->bytes : 0) +
                 (out->biases ? out->biases->bytes : 0);
    return out->scales ? find_quantised(out, file, p, asker, err)
                       : find_plain(out, file, p, asker, err);
}

/* ---- reading
 * --------------------------------------------------------------------------------------------------
 */

/* n rows of a tensor from `first` on, into *rows. */
static qn_status read_stream(const qn_tensors *file, const qn_tensor_info *t, int64_t first,
                             int64_t n, uint8_t *rows, qn_error *err)
{
    uint64_t row = t->bytes / (uint64_t)t->shape[0];
    return qn_tensors_read_bytes(file, t, row * (uint64_t)first, (size_t)(row * (uint64_t)n), rows,
                                 err);
}

static qn_status read_zipped(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                             uint8_t *to, qn_error *err)
{
    const qn_tensor_info *stream[] = {w->tensor, w->scales, w->biases};
    size_t row[3] = {0}, all = 0, groups = (size_t)w->scales->shape[1];
    for (int i = 0; i < 3 && stream[i]; i++) {
        row[i] = (size_t)(stream[i]->bytes / (uint64_t)stream[i]->shape[0]);
        all += row[i];
    }
    uint8_t *room = malloc(all * (size_t)n + 1), *at[3] = {room};
    if (!room)
        return qn__fail_memory(err, "a weight's buffer");
    at[1] = at[0] + row[0] * (size_t)n;
    at[2] = at[1] + row[1] * (size_t)n;
    qn_status status = QN_OK;
    for (int i = 0; i < 3 && stream[i] && status == QN_OK; i++)
        status = read_stream(file, stream[i], first, n, at[i], err);
    for (size_t r = 0; r < (size_t)n && status == QN_OK; r++)
        qn__encoding_zip(w->encoding, groups, at[0] + r * row[0], at[1] + r * row[1],
                         w->biases ? at[2] + r * row[2] : NULL,
                         to + r * groups * w->encoding->block_bytes);
    free(room);
    return status;
}

static qn_status read_stored(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                             void *to, qn_error *err)
{
    return w->scales ? read_zipped(w, file, first, n, to, err)
                     : read_stream(file, w->tensor, first, n, to, err);
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
