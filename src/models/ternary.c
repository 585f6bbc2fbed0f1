/* SPDX-License-Identifier: Apache-2.0
 *
 * Ternary weights: finding, reading, and the number that belongs to all values of one.
 *
 * transformers writes them as NAME.weight, u8 [rows / 4, columns], of whose bytes the lowest bits
 * are codes of the first quarter of the rows and so on, and NAME.weight_scale, one number; or
 * leaves them floats. GGUF keeps one number behind the blocks of i2_s; and llama.cpp multiplies by
 * a NAME.scale where a file has it.
 */
#include "models/quantized.h"

#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One number beside a weight: in any of the float types. */
qn_status qn__ternary_check(const qn_tensors *file, const qn_tensor_info *t,
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
qn_status qn__ternary_find(qn__weight *out, const qn__weight_query *query, const char *family,
                           qn_error *err)
{
    const qn_tensors *file = query->file;
    const qn__parameter *p = query->parameter;
    const char *asker = query->asker;
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
    out->factor_of = qn__weight_part(query, "weight_scale");
    if (!out->factor_of)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s_scale is missing (%s needs it)", path,
                        t->name, family);
    out->bytes += out->factor_of->bytes;
    return qn__ternary_check(file, out->factor_of, t, err);
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
        status = qn__weight_stream(file, w->tensor, at, take, room, err);
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
    qn_status status = qn__weight_stream(file, w->tensor, first, n, room, err);
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

qn_status qn__ternary_read(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                           void *to, qn_error *err)
{
    return w->floats ? read_floats(w, file, first, n, to, err)
                     : read_packed(w, file, first, n, to, err);
}

/* ---- the number that belongs to all values --------------------------------------------------- */

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
    if (qn__weight_tail(t) &&
        qn_tensors_read_bytes(file, t, t->bytes - qn__weight_tail(t), 4, factor, err) != QN_OK)
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
