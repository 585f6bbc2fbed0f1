/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods, and what they share; see quantized.h.
 */
#include "models/quantized.h"

#include "base/half.h"
#include "core/dtype.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const qn__weight_kind *const qn__weight_kinds[] = {&qn__gptq_kind, &qn__awq_kind,
                                                   &qn__compressed_kind, NULL};

/* ---- config.json ----------------------------------------------------------------------------- */

static qn_status unknown_method(const qn__json_at *at, const cJSON *method, qn_error *err)
{
    char names[100];
    size_t n = 0;
    bool bytes = cJSON_HasObjectItem(at->node, "load_in_4bit") ||
                 cJSON_HasObjectItem(at->node, "load_in_8bit");
    for (int i = 0; qn__weight_kinds[i]; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s, ", qn__weight_kinds[i]->method);
    return qn__json_fail(
        at, QN_UNSUPPORTED, err,
        "weights quantised by %.60s; supported are %sMLX's, BitNet's, GGUF files, and "
        "weights in f32, f16 and bf16",
        cJSON_IsString(method) ? method->valuestring
        : bytes                ? "bitsandbytes"
                               : "a method without a name",
        names);
}

static qn_status read_method(const qn__json_at *at, qn__quantization *out, qn_error *err)
{
    const cJSON *method = cJSON_GetObjectItemCaseSensitive(at->node, "quant_method");
    for (int i = 0; cJSON_IsString(method) && qn__weight_kinds[i]; i++)
        if (!strcmp(method->valuestring, qn__weight_kinds[i]->method)) {
            out->kind = qn__weight_kinds[i];
            return out->kind->configure(at, out, err);
        }
    /* MLX writes its quantization under this name, too: without a method, but with groups */
    if (!method && cJSON_HasObjectItem(at->node, "group_size") &&
        !cJSON_HasObjectItem(at->node, "load_in_4bit") &&
        !cJSON_HasObjectItem(at->node, "load_in_8bit"))
        return QN_OK;
    return unknown_method(at, method, err);
}

bool qn__is_ternary(const qn__json_at *at)
{
    const cJSON *method = cJSON_GetObjectItemCaseSensitive(at->node, "quant_method");
    return cJSON_IsString(method) && !strcmp(method->valuestring, "bitnet");
}

static qn_status read_quantization(const qn__json_at *config, bool nested, qn__quantization *out,
                                   qn_error *err)
{
    static const char *const keys[] = {"quantization_config", "compression_config"};
    qn__json_at at, text;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!qn__json_find(config, keys[i], &at) || (i == 0 && !nested && qn__is_ternary(&at)))
            continue;
        if (read_method(&at, out, err) != QN_OK || out->kind)
            return err->code;
    }
    return qn__json_find(config, "text_config", &text) ? read_quantization(&text, true, out, err)
                                                       : QN_OK;
}

qn_status qn__quantization_read(const qn__json_at *config, qn__quantization *out, qn_error *err)
{
    *out = (qn__quantization){0};
    return read_quantization(config, false, out, err);
}

qn_status qn__quantization_bits(const qn__json_at *config, const char *key, const char *supported,
                                int *out, qn_error *err)
{
    int64_t bits;
    if (qn__json_get_int(config, key, 1, 64, &bits, err) != QN_OK)
        return err->code;
    qn__json_at at;
    qn__json_find(config, key, &at);
    *out = (int)bits;
    return bits < 10 && strchr(supported, (int)('0' + bits))
               ? QN_OK
               : qn__json_fail(&at, QN_UNSUPPORTED, err, "%lld bits; supported are %s",
                               (long long)bits, supported);
}

qn_status qn__quantization_group(const qn__json_at *config, int64_t *out, qn_error *err)
{
    qn__json_at at;
    if (qn__json_get_int(config, "group_size", -1, 1 << 20, out, err) != QN_OK)
        return err->code;
    qn__json_find(config, "group_size", &at);
    if (*out == QN__WHOLE_ROWS || (*out > 0 && *out % 32 == 0))
        return QN_OK;
    return qn__json_fail(&at, QN_UNSUPPORTED, err,
                         "groups of %lld; supported are multiples of 32, and -1", (long long)*out);
}

qn_status qn__quantization_word(const qn__json_at *config, const char *key, const char *words,
                                int *out, qn_error *err)
{
    const char *word = NULL;
    qn__json_at at;
    *out = 0;
    if (!qn__json_find(config, key, &at))
        return QN_OK;
    if (qn__json_as_string(&at, &word, err) != QN_OK)
        return err->code;
    size_t n = strlen(word);
    for (const char *w = words; *w; (*out)++) {
        size_t m = strcspn(w, " ");
        if (m == n && !strncmp(w, word, n))
            return QN_OK;
        w += m + (w[m] == ' ');
    }
    return qn__json_fail(&at, QN_UNSUPPORTED, err, "\"%.40s\"; supported: %s", word, words);
}

/* ---- tensors --------------------------------------------------------------------------------- */

const qn_tensor_info *qn__weight_part(const qn__weight_query *query, const char *part)
{
    static const char end[] = ".weight";
    char name[160];
    const char *stored = query->parameter->stored;
    size_t n = strlen(stored), m = sizeof end - 1;
    if (n < m || strcmp(stored + n - m, end) != 0)
        return NULL;
    snprintf(name, sizeof name, "%.*s.%s", (int)(n - m), stored, part);
    return qn_tensors_find(query->file, name);
}

/* "[4, 8] i32" */
static const char *described(char text[80], qn_dtype dtype, int ndim, const int64_t *shape)
{
    size_t n = (size_t)snprintf(text, 80, "[");
    for (int i = 0; i < ndim && i < 3; i++)
        n += (size_t)snprintf(text + n, 80 - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(text + n, 80 - n, "%s] %s", ndim > 3 ? ", ..." : "",
             dtype == QN_F32 ? "f32, f16 or bf16" : qn_dtype_name(dtype));
    return text;
}

static qn_status demand(const qn__weight_query *query, const char *part, qn_dtype dtype,
                        int64_t rows, int64_t columns, const qn_tensor_info **out, qn_error *err)
{
    const qn_tensor_info *t = *out = qn__weight_part(query, part);
    const char *stored = query->parameter->stored;
    int stem = (int)(strlen(stored) - strlen("weight")), ndim = columns ? 2 : 1;
    int64_t shape[] = {rows, columns};
    char is[80], asked[80];
    if (!t)
        return qn__fail(err, QN_FORMAT, "%s: tensor %.*s%s is missing, which %s of %s needs",
                        qn_tensors_path(query->file, 0), stem, stored, part, stored,
                        query->quantization->kind->method);
    bool type_fits = dtype == QN_F32 ? qn__encoding_of_dtype(t->dtype) != NULL : t->dtype == dtype;
    if (type_fits && !t->encoding && t->ndim == ndim && t->shape[0] == rows &&
        (ndim == 1 || t->shape[1] == columns))
        return QN_OK;
    described(is, t->dtype, t->ndim, t->shape);
    if (t->dtype == QN_F32)
        snprintf(strrchr(is, ']'), 10, "] f32");
    return qn__fail(err, QN_FORMAT, "%s: tensor %s is %s; %s asks for %s",
                    qn_tensors_path(query->file, t->file), t->name, is, query->asker,
                    described(asked, dtype, ndim, shape));
}

qn_status qn__weight_demand(const qn__weight_query *query, const char *part, qn_dtype dtype,
                            int64_t rows, int64_t columns, const qn_tensor_info **out,
                            qn_error *err)
{
    return demand(query, part, dtype, rows, columns, out, err);
}

qn_status qn__weight_demand_scales(const qn__weight_query *query, const char *part, int64_t rows,
                                   int64_t columns, const qn_tensor_info **out, qn_error *err)
{
    return demand(query, part, QN_F32, rows, columns, out, err);
}

int64_t qn__weight_groups(int64_t group_size, int64_t columns)
{
    return group_size == QN__WHOLE_ROWS ? 1 : (columns + group_size - 1) / group_size;
}

qn_status qn__weight_encode(qn__weight *w, const qn__weight_query *query, int bits, qn_error *err)
{
    const qn__encoding *scale = qn__encoding_of_dtype(w->scales->dtype);
    int group = 128;
    if (w->group_size == QN__WHOLE_ROWS)
        w->group_size = w->columns;
    while (group >= 32 && (w->group_size % group || w->columns % group))
        group /= 2;
    int id = qn__encoding_zeroed(bits, group, (qn__encoding_id)(scale - qn__encodings));
    w->encoding = id < 0 ? NULL : &qn__encodings[id];
    if (w->encoding)
        return QN_OK;
    return qn__fail(err, QN_UNSUPPORTED,
                    "%s: tensor %s: rows of %lld codes in groups of %lld; supported are multiples "
                    "of 32",
                    qn_tensors_path(query->file, w->tensor->file), w->tensor->name,
                    (long long)w->columns, (long long)w->group_size);
}

/* ---- reading --------------------------------------------------------------------------------- */

qn_status qn__read_strip(const qn_tensors *file, const qn_tensor_info *t, uint64_t first_byte,
                         size_t n_bytes, void *to, qn_error *err)
{
    uint64_t row = t->bytes / (uint64_t)t->shape[0];
    if (n_bytes == row)
        return qn_tensors_read_bytes(file, t, 0, (size_t)t->bytes, to, err);
    for (int64_t r = 0; r < t->shape[0]; r++)
        if (qn_tensors_read_bytes(file, t, (uint64_t)r * row + first_byte, n_bytes,
                                  (char *)to + (size_t)r * n_bytes, err) != QN_OK)
            return err->code;
    return QN_OK;
}

void qn__store_zero(uint8_t *to, qn_dtype type, int zero)
{
    float f = (float)zero;
    uint16_t h = type == QN_F16 ? qn__f32_to_f16(f) : qn__f32_to_bf16(f);
    if (type == QN_F32)
        memcpy(to, &f, 4);
    else
        memcpy(to, &h, 2);
}

void qn__turn_scales(const uint8_t *from, size_t groups, size_t n, size_t size, uint8_t *to)
{
    for (size_t g = 0; g < groups; g++)
        for (size_t r = 0; r < n; r++, from += size)
            memcpy(to + (r * groups + g) * size, from, size);
}
