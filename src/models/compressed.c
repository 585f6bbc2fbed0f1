/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrices of compressed-tensors, which llm-compressor writes. Of [N, K], pack-quantized:
 * weight_packed i32 [N, K * bits / 32], the codes of each row, lowest bits first; weight_scale [N,
 * groups]; where they are asymmetric weight_zero_point i32 [N * bits / 32, groups], eight rows' (of
 * 4 bits) zeros in a word; weight_shape, N and K; where columns were grouped in another order
 * weight_g_idx i32 [K]. int-quantized: weight i8 [N, K] and weight_scale, weight_zero_point i8.
 * Codes and zeros that are packed have half of their range added, so that none is negative.
 *
 * config_groups has one scheme or more for different matrices, chosen by names and classes of
 * modules. Here a matrix belongs to the first scheme that its tensors' shapes fit.
 * https://github.com/vllm-project/compressed-tensors
 */
#include "models/quantized.h"

#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

/* ---- config.json ----------------------------------------------------------------------------- */

static qn_status refuse_given(const qn__json_at *object, const char *key, qn_error *err)
{
    qn__json_at at;
    if (!qn__json_find(object, key, &at) || (cJSON_IsObject(at.node) && !at.node->child))
        return QN_OK;
    return qn__json_fail(&at, QN_UNSUPPORTED, err, "is not supported; supported is null");
}

static qn_status check_sparsity(const qn__json_at *config, qn_error *err)
{
    qn__json_at at;
    int ignored;
    if (!qn__json_find(config, "sparsity_config", &at))
        return QN_OK;
    return qn__quantization_word(&at, "format", "dense", &ignored, err);
}

/* Inputs that a program would round for each token: they stay as they are, which is closer. */
static qn_status check_activations(const qn__json_at *group, qn__quantization *out, qn_error *err)
{
    qn__json_at at, dynamic;
    if (!qn__json_find(group, "input_activations", &at))
        return QN_OK;
    out->activations = true;
    if (qn__json_find(&at, "dynamic", &dynamic) && cJSON_IsTrue(dynamic.node))
        return QN_OK;
    return qn__json_fail(&at, QN_UNSUPPORTED, err,
                         "scales of activations that are in the file; supported are dynamic ones, "
                         "and null");
}

enum { STRATEGY_GROUP, STRATEGY_CHANNEL };

static qn_status read_weights(const qn__json_at *weights, qn__scheme *out, qn_error *err)
{
    int strategy, ignored;
    bool dynamic = false;
    qn__json_at at;
    out->symmetric = true;
    if (qn__quantization_bits(weights, "num_bits", out->bytes ? "8" : "2, 4, 8", &out->bits, err) !=
            QN_OK ||
        qn__quantization_word(weights, "type", "int", &ignored, err) != QN_OK ||
        qn__json_opt_bool(weights, "symmetric", &out->symmetric, err) != QN_OK ||
        qn__json_opt_bool(weights, "dynamic", &dynamic, err) != QN_OK ||
        qn__quantization_word(weights, "strategy", "group channel", &strategy, err) != QN_OK ||
        refuse_given(weights, "block_structure", err) != QN_OK)
        return err->code;
    if (dynamic && qn__json_find(weights, "dynamic", &at))
        return qn__json_fail(&at, QN_UNSUPPORTED, err, "weights are static");
    out->group_size = QN__WHOLE_ROWS;
    if (strategy == STRATEGY_GROUP &&
        qn__quantization_group(weights, &out->group_size, err) != QN_OK)
        return err->code;
    /* "group", of old "dynamic" and true: "weight" and "static" leave columns where they are */
    if (qn__json_find(weights, "actorder", &at)) {
        const char *order = cJSON_IsString(at.node) ? at.node->valuestring : "";
        out->ordered =
            cJSON_IsTrue(at.node) || !strcmp(order, "group") || !strcmp(order, "dynamic");
        if (!out->ordered && !cJSON_IsFalse(at.node) && strcmp(order, "weight") != 0 &&
            strcmp(order, "static") != 0)
            return qn__json_fail(&at, QN_UNSUPPORTED, err, "supported: group weight");
    }
    return QN_OK;
}

static const char formats[] = "pack-quantized int-quantized naive-quantized mixed-precision";
enum { FORMAT_PACKED, FORMAT_MIXED = 3 };

static qn_status read_group(const qn__json_at *group, int format, qn__quantization *out,
                            qn_error *err)
{
    qn__json_at weights;
    int own = format;
    if (!cJSON_IsObject(group->node))
        return qn__json_fail(group, QN_UNSUPPORTED, err,
                             "a scheme by its name; supported are those that are written out");
    if (qn__json_find(group, "format", &weights) &&
        qn__quantization_word(group, "format", formats, &own, err) != QN_OK)
        return err->code;
    if (own == FORMAT_MIXED)
        return qn__json_fail(group, QN_FORMAT, err, "lacks a format of its own");
    if (!qn__json_find(group, "weights", &weights))
        return QN_OK;
    if (out->n_schemes == QN__MOST_SCHEMES)
        return qn__json_fail(group, QN_LIMIT, err, "there are more than %d schemes",
                             QN__MOST_SCHEMES);
    qn__scheme *s = &out->scheme[out->n_schemes++];
    s->bytes = own != FORMAT_PACKED;
    if (read_weights(&weights, s, err) != QN_OK || check_activations(group, out, err) != QN_OK)
        return err->code;
    return refuse_given(group, "output_activations", err);
}

static qn_status configure_compressed(const qn__json_at *config, qn__quantization *out,
                                      qn_error *err)
{
    qn__json_at groups, group;
    int format;
    if (qn__quantization_word(config, "format", formats, &format, err) != QN_OK ||
        refuse_given(config, "kv_cache_scheme", err) != QN_OK ||
        refuse_given(config, "transform_config", err) != QN_OK ||
        check_sparsity(config, err) != QN_OK ||
        qn__json_get_object(config, "config_groups", &groups, err) != QN_OK)
        return err->code;
    if (qn__json_first(&groups, &group))
        do {
            if (read_group(&group, format, out, err) != QN_OK)
                return err->code;
        } while (qn__json_next(&group));
    return out->n_schemes ? QN_OK
                          : qn__json_fail(&groups, QN_FORMAT, err, "has no scheme of weights");
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Whether the codes and their scales have the shapes of a scheme. */
static bool fits_scheme(const qn__scheme *s, const qn__weight_query *query,
                        const qn_tensor_info *codes, bool bytes)
{
    const qn_tensor_info *scale = qn__weight_part(query, "weight_scale");
    const qn_tensor_info *zeros = qn__weight_part(query, "weight_zero_point");
    int64_t columns = query->parameter->shape[1];
    return s->bytes == bytes && (bytes || s->symmetric == !zeros) && codes->ndim == 2 &&
           codes->shape[1] == (bytes ? columns : columns * s->bits / 32) &&
           (!scale || scale->ndim != 2 ||
            scale->shape[1] == qn__weight_groups(s->group_size, columns));
}

/* weight_shape, where it is, says what the parameter is. */
static qn_status check_shape(const qn__weight_query *query, qn_error *err)
{
    const qn_tensor_info *t = qn__weight_part(query, "weight_shape");
    const int64_t *asked = query->parameter->shape;
    int64_t shape[2] = {0};
    if (!t)
        return QN_OK;
    if (qn__weight_demand(query, "weight_shape", t->dtype == QN_I32 ? QN_I32 : QN_I64, 2, 0, &t,
                          err) != QN_OK ||
        qn_tensors_read_bytes(query->file, t, 0, (size_t)t->bytes, shape, err) != QN_OK)
        return err->code;
    if (t->dtype == QN_I32) {
        int32_t narrow[2];
        memcpy(narrow, shape, sizeof narrow);
        shape[0] = narrow[0];
        shape[1] = narrow[1];
    }
    if (shape[0] == asked[0] && shape[1] == asked[1])
        return QN_OK;
    return qn__fail(err, QN_FORMAT, "%s: tensor %s says [%lld, %lld], %s asks for [%lld, %lld]",
                    qn_tensors_path(query->file, t->file), t->name, (long long)shape[0],
                    (long long)shape[1], query->asker, (long long)asked[0], (long long)asked[1]);
}

static qn_status find_zeros(qn__weight *w, const qn__weight_query *query, const qn__scheme *s,
                            int64_t groups, qn_error *err)
{
    static const char part[] = "weight_zero_point";
    int64_t rows = query->parameter->shape[0];
    if (s->symmetric && !s->bytes)
        return QN_OK; /* fits_scheme: there are none */
    if (s->symmetric && !qn__weight_part(query, part))
        return QN_OK;
    return s->bytes ? qn__weight_demand(query, part, QN_I8, rows, groups, &w->biases, err)
                    : qn__weight_demand(query, part, QN_I32, (rows * s->bits + 31) / 32, groups,
                                        &w->biases, err);
}

static qn_status find_compressed(qn__weight *w, const qn__weight_query *query, qn_error *err)
{
    const qn__quantization *q = query->quantization;
    int64_t rows = query->parameter->shape[0], columns = query->parameter->shape[1];
    const qn_tensor_info *packed = qn__weight_part(query, "weight_packed"),
                         *plain = qn__weight_part(query, "weight");
    bool bytes = !packed && plain && plain->dtype == QN_I8;
    w->tensor = packed ? packed : bytes ? plain : NULL;
    if (!w->tensor)
        return QN_OK;
    const qn__scheme *s = NULL;
    for (int i = q->n_schemes - 1; i >= 0; i--)
        if (!s || fits_scheme(&q->scheme[i], query, w->tensor, bytes))
            s = &q->scheme[i];
    if (s->bytes != bytes)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s: %s has no scheme of its format",
                        qn_tensors_path(query->file, w->tensor->file), w->tensor->name,
                        query->asker);
    if (columns * s->bits % 32)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: tensor %s: rows of %lld codes of %d bits are no whole words",
                        qn_tensors_path(query->file, w->tensor->file), w->tensor->name,
                        (long long)columns, s->bits);
    int64_t groups = qn__weight_groups(s->group_size, columns);
    w->columns = columns;
    w->group_size = s->group_size;
    if (qn__weight_demand(query, bytes ? "weight" : "weight_packed", bytes ? QN_I8 : QN_I32, rows,
                          bytes ? columns : columns * s->bits / 32, &w->tensor, err) != QN_OK ||
        qn__weight_demand_scales(query, "weight_scale", rows, groups, &w->scales, err) != QN_OK ||
        find_zeros(w, query, s, groups, err) != QN_OK || check_shape(query, err) != QN_OK)
        return err->code;
    bool ordered = s->ordered || qn__weight_part(query, "weight_g_idx");
    if (ordered &&
        qn__weight_demand(query, "weight_g_idx", QN_I32, columns, 0, &w->order, err) != QN_OK)
        return err->code;
    return qn__weight_encode(w, query, s->bits, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

static qn_status read_whole_rows(const qn_tensors *file, const qn_tensor_info *t, int64_t first,
                                 int64_t n, void *to, qn_error *err)
{
    uint64_t row = t->bytes / (uint64_t)t->shape[0];
    return qn_tensors_read_bytes(file, t, row * (uint64_t)first, (size_t)row * (size_t)n, to, err);
}

static qn_status read_zeros(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                            uint8_t *zeros, qn_error *err)
{
    size_t groups = (size_t)w->scales->shape[1], size = w->encoding->scale == QN__F32 ? 4 : 2;
    int bits = w->encoding->bits, a_word = 32 / bits;
    bool bytes = w->biases && w->biases->dtype == QN_I8;
    int64_t from = bytes ? first : first / a_word,
            to = bytes ? first + n : (first + n - 1) / a_word + 1;
    char *stored = w->biases ? malloc((size_t)(to - from) * groups * 4 + 1) : NULL;
    qn_status status = QN_OK;
    if (w->biases)
        status = stored ? read_whole_rows(file, w->biases, from, to - from, stored, err)
                        : qn__fail_memory(err, "a weight's buffer");
    for (int64_t r = 0; r < n && status == QN_OK; r++)
        for (size_t g = 0; g < groups; g++) {
            int zero = 1 << (bits - 1);
            if (bytes)
                zero += ((const int8_t *)stored)[(size_t)r * groups + g];
            else if (stored) {
                uint32_t word;
                size_t at = (size_t)((first + r) / a_word - from) * groups + g;
                memcpy(&word, stored + at * 4, 4);
                zero = (int)(word >> (first + r) % a_word * bits & ((1u << bits) - 1));
            }
            qn__store_zero(zeros + ((size_t)r * groups + g) * size, w->scales->dtype, zero);
        }
    free(stored);
    return status;
}

static qn_status read_compressed(const qn__weight *w, const qn_tensors *file, int64_t first,
                                 int64_t n, uint32_t *codes, uint8_t *scales, uint8_t *zeros,
                                 qn_error *err)
{
    if (read_whole_rows(file, w->tensor, first, n, codes, err) != QN_OK ||
        read_whole_rows(file, w->scales, first, n, scales, err) != QN_OK)
        return err->code;
    size_t words = (size_t)(w->columns * w->encoding->bits / 32) * (size_t)n;
    for (size_t i = 0; w->tensor->dtype == QN_I8 && i < words; i++)
        codes[i] ^= 0x80808080u;
    return read_zeros(w, file, first, n, zeros, err);
}

static const char *const compressed_parts[] = {"weight_packed", "weight_scale", "weight_zero_point",
                                               "weight_shape",  "weight_g_idx", NULL};
const qn__weight_kind qn__compressed_kind = {.method = "compressed-tensors",
                                             .parts = compressed_parts,
                                             .configure = configure_compressed,
                                             .find = find_compressed,
                                             .read = read_compressed};
