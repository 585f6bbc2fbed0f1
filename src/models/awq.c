/* SPDX-License-Identifier: Apache-2.0
 *
 * AWQ's matrices of 4 bits, version gemm, as AutoAWQ writes them. Of [N, K]: qweight i32 [K, N /
 * 8], whose words hold eight rows' codes of one column, qzeros i32 [groups, N / 8] in the same
 * order, scales [groups, N].
 * https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py
 */
#include "models/quantized.h"

#include <stdlib.h>
#include <string.h>

/* Where in a word the code of row 8 i + j stands: even rows first. */
static const uint8_t shift_of_row[8] = {0, 16, 4, 20, 8, 24, 12, 28};

static qn_status configure_awq(const qn__json_at *config, qn__quantization *out, qn_error *err)
{
    int ignored;
    bool zero_point = true;
    qn__json_at at;
    if (qn__quantization_bits(config, "bits", "4", &out->bits, err) != QN_OK ||
        qn__quantization_group(config, &out->group_size, err) != QN_OK ||
        qn__quantization_word(config, "version", "gemm GEMM", &ignored, err) != QN_OK ||
        qn__quantization_word(config, "format", "gemm", &ignored, err) != QN_OK ||
        qn__json_opt_bool(config, "zero_point", &zero_point, err) != QN_OK)
        return err->code;
    if (!zero_point && qn__json_find(config, "zero_point", &at))
        return qn__json_fail(&at, QN_UNSUPPORTED, err,
                             "there are no zeros; supported are files that have them");
    if (qn__json_find(config, "backend", &at) && cJSON_IsString(at.node) &&
        !strcmp(at.node->valuestring, "llm-awq"))
        return qn__json_fail(&at, QN_UNSUPPORTED, err,
                             "files of llm-awq; supported are those of autoawq");
    return QN_OK;
}

static qn_status find_awq(qn__weight *w, const qn__weight_query *query, qn_error *err)
{
    const qn__quantization *q = query->quantization;
    int64_t rows = query->parameter->shape[0], columns = query->parameter->shape[1];
    int64_t groups = qn__weight_groups(q->group_size, columns);
    w->tensor = qn__weight_part(query, "qweight");
    if (!w->tensor)
        return QN_OK;
    if (rows % 8 || columns % 8)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: tensor %s: %lld by %lld codes of 4 bits are no whole words",
                        qn_tensors_path(query->file, w->tensor->file), w->tensor->name,
                        (long long)rows, (long long)columns);
    w->columns = columns;
    w->group_size = q->group_size;
    if (qn__weight_demand(query, "qweight", QN_I32, columns, rows / 8, &w->tensor, err) != QN_OK ||
        qn__weight_demand_scales(query, "scales", groups, rows, &w->scales, err) != QN_OK ||
        qn__weight_demand(query, "qzeros", QN_I32, groups, rows / 8, &w->biases, err) != QN_OK)
        return err->code;
    return qn__weight_encode(w, query, q->bits, err);
}

/* Words [columns, n_words] of eight rows each into rows of words of eight columns. */
static void turn_codes(const uint32_t *from, size_t columns, size_t n_words, size_t skip, size_t n,
                       uint32_t *to)
{
    for (size_t c = 0; c < columns / 8; c++, from += 8 * n_words)
        for (size_t r = 0; r < n; r++) {
            const uint32_t *word = from + (skip + r) / 8;
            int shift = shift_of_row[(skip + r) % 8];
            uint32_t eight = 0;
            for (int k = 0; k < 8; k++)
                eight |= (word[(size_t)k * n_words] >> shift & 15) << 4 * k;
            to[r * (columns / 8) + c] = eight;
        }
}

static qn_status read_awq(const qn__weight *w, const qn_tensors *file, int64_t first, int64_t n,
                          uint32_t *codes, uint8_t *scales, uint8_t *zeros, qn_error *err)
{
    size_t columns = (size_t)w->columns, groups = (size_t)w->scales->shape[0], rows = (size_t)n,
           size = w->encoding->scale == QN__F32 ? 4 : 2, skip = (size_t)first % 8,
           words = (skip + rows + 7) / 8;
    size_t wide = words * 4 > rows * size ? words * 4 : rows * size;
    uint32_t *strip = malloc((columns > groups ? columns : groups) * wide + 4);
    if (!strip)
        return qn__fail_memory(err, "a weight's buffer");
    qn_status status =
        qn__read_strip(file, w->tensor, (uint64_t)first / 8 * 4, words * 4, strip, err);
    if (status == QN_OK) {
        turn_codes(strip, columns, words, skip, rows, codes);
        status = qn__read_strip(file, w->scales, (uint64_t)first * size, rows * size, strip, err);
    }
    if (status == QN_OK) {
        qn__turn_scales((const uint8_t *)strip, groups, rows, size, scales);
        status = qn__read_strip(file, w->biases, (uint64_t)first / 8 * 4, words * 4, strip, err);
    }
    for (size_t g = 0; g < groups && status == QN_OK; g++)
        for (size_t r = 0; r < rows; r++)
            qn__store_zero(
                zeros + (r * groups + g) * size, w->scales->dtype,
                (int)(strip[g * words + (skip + r) / 8] >> shift_of_row[(skip + r) % 8] & 15));
    free(strip);
    return status;
}

static const char *const awq_parts[] = {"qweight", "qzeros", "scales", NULL};
const qn__weight_kind qn__awq_kind = {.method = "awq",
                                      .parts = awq_parts,
                                      .configure = configure_awq,
                                      .find = find_awq,
                                      .read = read_awq,
                                      .across = true};
