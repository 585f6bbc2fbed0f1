/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizers; see normalize.h.
 */
#include "text/normalize.h"

#include "text/buffers.h"
#include "text/nfc.h"

#include <stdlib.h>
#include <string.h>

typedef struct normalizer_row {
    const char *name;
    bool (*append)(qn_text *out, const char *s, size_t n);
} normalizer_row;

static const normalizer_row normalizer_kinds[QN__NORMALIZE_COUNT] = {
    [QN__NORMALIZE_NFC] = {"NFC", qn__nfc_append},
};

static qn_status parse_normalizer(qn__normalizer *out, const qn__json_at *at, qn_error *err)
{
    const char *type;
    qn_status status = qn__json_get_string(at, "type", &type, err);
    if (status != QN_OK)
        return status;
    if (strcmp(type, "Sequence") == 0) {
        qn__json_at list, item;
        status = qn__json_get_array(at, "normalizers", &list, err);
        if (status == QN_OK && qn__json_first(&list, &item))
            do
                status = parse_normalizer(out, &item, err);
            while (status == QN_OK && qn__json_next(&item));
        return status;
    }
    int kind = 0;
    while (kind < QN__NORMALIZE_COUNT && strcmp(type, normalizer_kinds[kind].name) != 0)
        kind++;
    if (kind == QN__NORMALIZE_COUNT)
        return qn__json_fail(at, QN_UNSUPPORTED, err,
                             "type \"%.40s\" is not supported (supported: Sequence, NFC)", type);
    if (out->n == QN__MAX_NORMALIZERS)
        return qn__json_fail(at, QN_LIMIT, err, "more than %d steps", QN__MAX_NORMALIZERS);
    out->kinds[out->n++] = (qn__normalizer_kind)kind;
    return QN_OK;
}

qn_status qn__normalizer_parse(qn__normalizer *out, const qn__json_at *at, qn_error *err)
{
    *out = (qn__normalizer){0};
    return cJSON_IsNull(at->node) ? QN_OK : parse_normalizer(out, at, err);
}

qn_status qn__normalize(const qn__normalizer *normalizer, qn_text *buffer, const char **s,
                        size_t *n, qn_error *err)
{
    for (int i = 0; i < normalizer->n; i++) {
        qn_text result = {0};
        if (!normalizer_kinds[normalizer->kinds[i]].append(&result, *s, *n)) {
            qn_text_free(&result);
            return qn__fail_memory(err, "a normalized text");
        }
        qn_text_free(buffer);
        *buffer = result;
        *s = result.data;
        *n = result.n;
    }
    return QN_OK;
}
