/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding and reading the tensors of one parameter.
 *
 * MLX writes a quantised matrix as NAME.weight, codes in words of 32 bits, NAME.scales and, unless
 * the codes are floating-point numbers of four bits (mode mxfp4), NAME.biases. Bits and group size
 * follow from the shapes; config.json's "quantization" is not needed for them.
 * Format: https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
 *
 * transformers writes ternary weights as NAME.weight, u8 [rows / 4, columns], of whose bytes the
 * lowest bits are codes of the first quarter of the rows and so on, and NAME.weight_scale, one
 * number; or leaves them floats. GGUF keeps one number behind the blocks of i2_s; and llama.cpp
 * multiplies by a NAME.scale where a file has it.
 */
#include "models/weight.h"

#include "base/error.h"
#include "core/dtype.h"
#include "ops/ops.h"

#include <math.h>
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
    static const char *const parts[] = {".scales", ".biases", ".weight_scale", ".scale"};
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

/* ---- ternary
 * ------------------------------------------------------------------------------------------- */

/* One number beside a weight: in any of the float types. */
static qn_status check_factor(const qn_tensors *file, const qn_tensor_info *t,
                              const qn_tensor_info *of, qn_error *err)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i] == 1 ? 1 : 2;
    if (n != 1 || t->encoding || !qn__encoding_of_dtype(t->dtype))
        return qn__fail(err, QN_FORMAT,
                        "%s: tensor %s is %lld%s of %s; what belongs to %s is one number in f32, "
                        "bf16 or f16",
                        qn_tensors_path(file, t->file), t->name,
                        (long long)(t->ndim > 0 ? t->shape[0] : 1), t->ndim > 1 ? " rows" : "",
                        t->encoding ? t->encoding : qn_dtype_name(t->dtype), of->name);
    return QN_OK;
}

/* Codes or floats, as the configuration says that they are. */
static qn_status find_ternary(qn__weight *out, const qn_tensors *file, const qn__parameter *p,
                              const char *family, const char *asker, qn_error *err)
{
    const qn_tensor_info *t = out->tensor;
    const char *path = qn_tensors_path(file, t->file);
    bool master = out->ternary == QN__TERNARY_MASTER, packed = !master && t->dtype == QN_U8;
    out->encoding = &qn__encodings[QN__I2_S];
    out->floats = packed ? NULL : qn__encoding_of_dtype(t->dtype);
    if (t->encoding || (!packed && (!out->floats || out->ternary == QN__TERNARY_OVER)))
        return qn__fail(err, QN_UNSUPPORTED, "%s: tensor %s is %s; %s says that it is %s", path,
                        t->name, t->encoding ? t->encoding : qn_dtype_name(t->dtype), asker,
                        master                             ? "f32, bf16 or f16"
                        : out->ternary == QN__TERNARY_OVER ? "ternary codes in u8"
                                                           : "ternary codes in u8, or -1, 0 "
                                                             "and 1 in f32, bf16 or f16");
    if (t->ndim != 2 || t->shape[1] != p->shape[1] ||
        (packed ? p->shape[0] % 4 != 0 || t->shape[0] != p->shape[0] / 4
                : t->shape[0] != p->shape[0]))
        return qn__fail(err, QN_FORMAT,
                        "%s: tensor %s has shape [%lld%s%.0lld], %s asks for [%lld%s, %lld]", path,
                        t->name, (long long)t->shape[0], t->ndim > 1 ? ", " : "",
                        (long long)(t->ndim > 1 ? t->shape[1] : 0), asker, (long long)p->shape[0],
                        packed ? " / 4" : "", (long long)p->shape[1]);
    if (p->shape[1] % out->encoding->block_elements)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: tensor %s has %lld columns; ternary weights are supported in "
                        "multiples of %d",
                        path, t->name, (long long)p->shape[1], out->encoding->block_elements);
    if (master)
        return QN_OK;
    out->factor_of = find_beside(file, p->stored, "weight_scale");
    if (!out->factor_of)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s_scale is missing (%s needs it)", path,
                        t->name, family);
    out->bytes += out->factor_of->bytes;
    return check_factor(file, out->factor_of, t, err);
}

qn_status qn__weight_find(qn__weight *out, const qn_tensors *file, const qn__parameter *p,
                          const char *family, const char *asker, qn_error *err)
{
    *out = (qn__weight){.paired_rows = p->paired_rows, .ternary = p->ternary};
    out->tensor = qn_tensors_find(file, p->stored);
    if (!out->tensor)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s is missing (%s needs it)",
                        qn_tensors_path(file, 0), p->stored, family);
    out->bytes = out->tensor->bytes;
    if (out->ternary)
        return find_ternary(out, file, p, family, asker, err);
    out->scales = find_beside(file, p->stored, "scales");
    out->biases = find_beside(file, p->stored, "biases");
    out->bytes += (out->scales ? out->scales->bytes : 0) + (out->biases ? out->biases->bytes : 0);
    if (out->scales)
        return find_quantised(out, file, p, asker, err);
    if (find_plain(out, file, p, asker, err) != QN_OK)
        return err->code;
    out->factor_of = p->factor ? find_beside(file, p->stored, "scale") : NULL;
    out->bytes += out->factor_of ? out->factor_of->bytes : 0;
    return out->factor_of ? check_factor(file, out->factor_of, out->tensor, err) : QN_OK;
}

/* ---- reading
 * --------------------------------------------------------------------------------------------------
 */

/* What lies behind all rows of a tensor. */
static uint64_t tail_of(const qn_tensor_info *t)
{
    bool has = t->encoding && !strcmp(t->encoding, qn__encodings[QN__I2_S].name);
    return has ? QN__I2_S_TAIL : 0;
}

/* n rows of a tensor from `first` on, into *rows. */
static qn_status read_stream(const qn_tensors *file, const qn_tensor_info *t, int64_t first,
                             int64_t n, uint8_t *rows, qn_error *err)
{
    uint64_t row = (t->bytes - tail_of(t)) / (uint64_t)t->shape[0];
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

/* Four rows in one: those of one quarter stand in order. */
static qn_status read_packed(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                             uint8_t *to, qn_error *err)
{
    int64_t quarter = w->tensor->shape[0], columns = w->tensor->shape[1], take;
    size_t row = qn__encoding_row_bytes(w->encoding, columns);
    uint8_t *room = malloc((size_t)(n * columns) + 1);
    qn_status status = room ? QN_OK : qn__fail_memory(err, "a weight's buffer");
    for (int64_t end = first + n; first < end && status == QN_OK; first += take) {
        int64_t at = first % quarter;
        take = quarter - at < end - first ? quarter - at : end - first;
        status = read_stream(file, w->tensor, at, take, room, err);
        for (int64_t r = 0; r < take && status == QN_OK; r++, to += row)
            qn__encoding_pick(room + r * columns, (int)(first / quarter * 2),
                              row / w->encoding->block_bytes, to);
    }
    free(room);
    return status;
}

/* One row of floats as whole numbers. What has its factor beside it must be such already. */
static bool make_ternary(const qn__weight *w, float *values, int64_t n)
{
    bool fits = true;
    for (int64_t i = 0; i < n; i++) {
        float whole = rintf(values[i] * w->inverse);
        fits =
            fits && (w->ternary == QN__TERNARY_MASTER || whole == values[i]) && fabsf(whole) <= 1;
        values[i] = whole;
    }
    return fits || w->ternary == QN__TERNARY_MASTER;
}

/* n rows by way of floats, which take more room: `room` holds so many of them as they are stored,
 * `values` one. */
static qn_status round_rows(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                            uint8_t *room, float *values, uint8_t *to, qn_error *err)
{
    int64_t columns = w->tensor->shape[1];
    size_t row = qn__encoding_row_bytes(w->encoding, columns),
           stored = qn__encoding_row_bytes(w->floats, columns);
    qn_status status = read_stream(file, w->tensor, first, n, room, err);
    for (int64_t r = 0; r < n && status == QN_OK; r++, to += row) {
        w->floats->decode(w->floats, room + (size_t)r * stored, (size_t)columns, values);
        if (!make_ternary(w, values, columns))
            status = qn__fail(
                err, QN_FORMAT, "%s: tensor %s, row %lld: a value is none of -1, 0 and 1",
                qn_tensors_path(file, w->tensor->file), w->tensor->name, (long long)(first + r));
        else
            w->encoding->encode(w->encoding, values, NULL, row / w->encoding->block_bytes, to);
    }
    return status;
}

static qn_status read_floats(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                             uint8_t *to, qn_error *err)
{
    enum { FLOATS_PIECE = 1 << 20 };
    size_t columns = (size_t)w->tensor->shape[1], stored = columns * w->floats->block_bytes,
           row = qn__encoding_row_bytes(w->encoding, w->tensor->shape[1]);
    int64_t piece = stored < FLOATS_PIECE ? (int64_t)(FLOATS_PIECE / stored) : 1, take;
    uint8_t *room = malloc(stored * (size_t)piece);
    float *values = malloc(columns * sizeof *values);
    qn_status status = room && values ? QN_OK : qn__fail_memory(err, "a weight's buffer");
    for (int64_t r = 0; r < n && status == QN_OK; r += take) {
        take = n - r < piece ? n - r : piece;
        status = round_rows(w, file, first + r, take, room, values, to + (size_t)r * row, err);
    }
    free(room);
    free(values);
    return status;
}

static qn_status read_stored(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                             void *to, qn_error *err)
{
    if (w->floats)
        return read_floats(w, file, first, n, to, err);
    return w->scales    ? read_zipped(w, file, first, n, to, err)
           : w->ternary ? read_packed(w, file, first, n, to, err)
                        : read_stream(file, w->tensor, first, n, to, err);
}

/* The mean magnitude of all values. In whole pieces, each summed in order. */
static qn_status mean_magnitude(const qn__weight *w, const qn_tensors *file, double *mean,
                                qn_error *err)
{
    enum { MEAN_PIECE = 1 << 16 };
    const qn_tensor_info *t = w->tensor;
    size_t size = w->floats->block_bytes, n = (size_t)(t->bytes / size);
    float *values = malloc(MEAN_PIECE * sizeof *values);
    uint8_t *room = malloc(MEAN_PIECE * size);
    double sum = 0;
    qn_status status = room && values ? QN_OK : qn__fail_memory(err, "a weight's buffer");
    for (size_t at = 0; at < n && status == QN_OK; at += MEAN_PIECE) {
        size_t take = n - at < MEAN_PIECE ? n - at : MEAN_PIECE;
        status = qn_tensors_read_bytes(file, t, at * size, take * size, room, err);
        if (status == QN_OK)
            w->floats->decode(w->floats, room, take, values);
        for (size_t i = 0; i < take && status == QN_OK; i++)
            sum += fabs((double)values[i]);
    }
    free(room);
    free(values);
    *mean = n ? sum / (double)n : 0;
    return status;
}

/* As transformers does it: ternary in units of the mean, which is rounded as the weights are. */
static qn_status factor_of_master(qn__weight *w, const qn_tensors *file, float *factor,
                                  qn_error *err)
{
    double mean;
    uint8_t rounded[4];
    if (mean_magnitude(w, file, &mean, err) != QN_OK)
        return err->code;
    w->inverse = 1 / fmaxf((float)mean, 1e-5f);
    *factor = 1 / w->inverse;
    w->floats->encode(w->floats, factor, NULL, 1, rounded);
    w->floats->decode(w->floats, rounded, 1, factor);
    return QN_OK;
}

/* The number behind the rows, or beside the weight; 1 where there is none. */
static qn_status read_factor(const qn__weight *w, const qn_tensors *file, float *factor,
                             qn_error *err)
{
    uint8_t number[4];
    const qn_tensor_info *t = w->tensor, *beside = w->factor_of;
    *factor = 1;
    if (tail_of(t) &&
        qn_tensors_read_bytes(file, t, t->bytes - tail_of(t), 4, factor, err) != QN_OK)
        return err->code;
    if (!beside)
        return QN_OK;
    const qn__encoding *e = qn__encoding_of_dtype(beside->dtype);
    float times;
    if (qn_tensors_read_bytes(file, beside, 0, e->block_bytes, number, err) != QN_OK)
        return err->code;
    e->decode(e, number, 1, &times);
    *factor = w->ternary == QN__TERNARY_OVER ? 1 / times : *factor * times;
    return QN_OK;
}

qn_status qn__weight_factor(qn__weight *w, const qn_tensors *file, float *factor, qn_error *err)
{
    w->inverse = 1;
    qn_status status = w->ternary == QN__TERNARY_MASTER ? factor_of_master(w, file, factor, err)
                                                        : read_factor(w, file, factor, err);
    if (status != QN_OK || (isfinite(*factor) && *factor != 0))
        return status;
    const qn_tensor_info *t = w->factor_of ? w->factor_of : w->tensor;
    return qn__fail(err, QN_FORMAT, "%s: tensor %s: the scale of %s comes out as %g",
                    qn_tensors_path(file, t->file), t->name,
                    w->factor_of ? w->tensor->name : "all rows", (double)*factor);
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
