/* SPDX-License-Identifier: Apache-2.0
 *
 * GPTQ's matrices, as AutoGPTQ and GPTQModel write them. Of [N, K]: qweight i32 [K * bits / 32, N],
 * a column of which is a row's codes, lowest bits first; scales [groups, N]; qzeros i32 [groups, N
 * * bits / 32], as much a stream of bits along its rows; g_idx i32 [K], the group of each column.
 *
 * The first format ("gptq") has zeros less one, taken from the packed words, so that a zero of 0
 * borrows from its neighbour; adding one to each of a word's fields, with carries, gives them back.
 * Of 3 bits fields stand across words, and each is shifted alone. "gptq_v2" has zeros as they are.
 * https://github.com/ModelCloud/GPTQModel/blob/main/gptqmodel/nn_modules/qlinear/__init__.py
 */
#include "models/quantized.h"

#include <stdlib.h>
#include <string.h>

static qn_status refuse_dynamic(const qn__json_at *config, qn_error *err)
{
    qn__json_at at, rule;
    if (!qn__json_find(config, "dynamic", &at))
        return QN_OK;
    if (cJSON_IsObject(at.node) && qn__json_first(&at, &rule))
        do {
            if (strncmp(rule.key, "-:", 2) != 0)
                return qn__json_fail(&rule, QN_UNSUPPORTED, err,
                                     "some matrices have bits or groups of their own; supported "
                                     "is one kind for all, and rules \"-:\" of what is left out");
        } while (qn__json_next(&rule));
    return QN_OK;
}

static qn_status configure_gptq(const qn__json_at *config, qn__quantization *out, qn_error *err)
{
    int format, other, ignored;
    bool symmetric = true, marlin = false;
    qn__json_at at;
    const char *key = qn__json_find(config, "checkpoint_format", &at) ? at.key : "format";
    if (qn__quantization_bits(config, "bits", "2, 3, 4, 8", &out->bits, err) != QN_OK ||
        qn__quantization_group(config, &out->group_size, err) != QN_OK ||
        qn__quantization_word(config, key, "gptq gptq_v2", &format, err) != QN_OK ||
        qn__quantization_word(config, "format", "gptq gptq_v2", &other, err) != QN_OK ||
        qn__quantization_word(config, "pack_dtype", "int32", &ignored, err) != QN_OK ||
        qn__json_opt_bool(config, "desc_act", &out->ordered, err) != QN_OK ||
        qn__json_opt_bool(config, "sym", &symmetric, err) != QN_OK || /* qzeros say it, too */
        qn__json_opt_bool(config, "is_marlin_format", &marlin, err) != QN_OK ||
        refuse_dynamic(config, err) != QN_OK)
        return err->code;
    out->zero_added = format == 0;
    return marlin ? qn__json_fail(config, QN_UNSUPPORTED, err,
                                  "is_marlin_format: supported are the formats gptq and gptq_v2")
                  : QN_OK;
}

static qn_status find_gptq(qn__weight *w, const qn__weight_query *query, qn_error *err)
{
    const qn__quantization *q = query->quantization;
    int64_t rows = query->parameter->shape[0], columns = query->parameter->shape[1];
    int64_t groups = qn__weight_groups(q->group_size, columns);
    w->tensor = qn__weight_part(query, "qweight");
    if (!w->tensor)
        return QN_OK;
    if (columns * q->bits % 32 || rows * q->bits % 32)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: tensor %s: %lld by %lld codes of %d bits are no whole words",
                        qn_tensors_path(query->file, w->tensor->file), w->tensor->name,
                        (long long)rows, (long long)columns, q->bits);
    w->columns = columns;
    w->group_size = q->group_size;
    w->zero_added = q->zero_added;
    if (qn__weight_demand(query, "qweight", QN_I32, columns * q->bits / 32, rows, &w->tensor,
                          err) != QN_OK ||
        qn__weight_demand_scales(query, "scales", groups, rows, &w->scales, err) != QN_OK ||
        qn__weight_demand(query, "qzeros", QN_I32, groups, rows * q->bits / 32, &w->biases, err) !=
            QN_OK)
        return err->code;
    bool any = q->ordered || qn__weight_part(query, "g_idx");
    if (any && qn__weight_demand(query, "g_idx", QN_I32, columns, 0, &w->order, err) != QN_OK)
        return err->code;
    return qn__weight_encode(w, query, q->bits, err);
}

/* Adds one to each field of `bits` of a word. */
static uint32_t with_ones(uint32_t word, int bits)
{
    return word + (bits == 2 ? 0x55555555u : bits == 4 ? 0x11111111u : 0x01010101u);
}

/* The field that begins at a bit of words. */
static uint32_t field_at(const uint32_t *words, size_t at, int bits)
{
    size_t shift = at % 32;
    uint32_t field = words[at / 32] >> shift;
    if (shift + (size_t)bits > 32)
        field |= words[at / 32 + 1] << (32 - shift);
    return field & ((1u << bits) - 1);
}

/* Zeros of n rows from words that begin `skip` bits before them. */
static void unpack_zeros(const qn__weight *w, uint32_t *words, size_t n_words, size_t skip,
                         size_t n, uint8_t *zeros)
{
    size_t groups = (size_t)w->scales->shape[0], size = w->encoding->scale == QN__F32 ? 4 : 2;
    int bits = w->encoding->bits;
    for (size_t g = 0; g < groups; g++, words += n_words) {
        for (size_t i = 0; w->zero_added && bits != 3 && i < n_words; i++)
            words[i] = with_ones(words[i], bits);
        for (size_t r = 0; r < n; r++) {
            uint32_t zero = field_at(words, skip + r * (size_t)bits, bits);
            if (w->zero_added && bits == 3)
                zero = (zero + 1) & 7;
            qn__store_zero(zeros + (r * groups + g) * size, w->scales->dtype, (int)zero);
        }
    }
}

static qn_status read_gptq(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                           uint32_t *codes, uint8_t *scales, uint8_t *zeros, qn_error *err)
{
    size_t words = (size_t)w->tensor->shape[0], groups = (size_t)w->scales->shape[0],
           rows = (size_t)n, size = w->encoding->scale == QN__F32 ? 4 : 2;
    int64_t bits = w->encoding->bits, from = first * bits / 32, to = ((first + n) * bits + 31) / 32;
    size_t zero_words = (size_t)(to - from), most = words > groups ? words : groups;
    most *= rows > zero_words ? rows : zero_words;
    uint32_t *strip = malloc(most * sizeof *strip + 4);
    if (!strip)
        return qn__fail_memory(err, "a weight's buffer");
    qn_status status = qn__read_strip(file, w->tensor, (uint64_t)first * 4, rows * 4, strip, err);
    for (size_t i = 0; i < words && status == QN_OK; i++)
        for (size_t r = 0; r < rows; r++)
            codes[r * words + i] = strip[i * rows + r];
    if (status == QN_OK)
        status = qn__read_strip(file, w->scales, (uint64_t)first * size, rows * size, strip, err);
    if (status == QN_OK) {
        qn__turn_scales((const uint8_t *)strip, groups, rows, size, scales);
        status = qn__read_strip(file, w->biases, (uint64_t)from * 4, zero_words * 4, strip, err);
    }
    if (status == QN_OK)
        unpack_zeros(w, strip, zero_words, (size_t)(first * bits - from * 32), rows, zeros);
    free(strip);
    return status;
}

static const char *const gptq_parts[] = {"qweight", "qzeros", "scales", "g_idx", NULL};
const qn__weight_kind qn__gptq_kind = {.method = "gptq",
                                       .parts = gptq_parts,
                                       .configure = configure_gptq,
                                       .find = find_gptq,
                                       .read = read_gptq,
                                       .across = true};
