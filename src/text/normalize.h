/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizers: a list of steps over a whole text. Adding a kind: a value of qn__normalizer_kind and
 * a row of normalizer_kinds.
 */
#ifndef QN_TEXT_NORMALIZE_H
#define QN_TEXT_NORMALIZE_H

#include "base/json.h"
#include "quern/text.h"

#define QN__MAX_NORMALIZERS 8

typedef enum qn__normalizer_kind { QN__NORMALIZE_NFC, QN__NORMALIZE_COUNT } qn__normalizer_kind;

typedef struct qn__normalizer {
    qn__normalizer_kind kinds[QN__MAX_NORMALIZERS];
    int n;
} qn__normalizer;

/* Parses the "normalizer" of a tokenizer.json. */
qn_status qn__normalizer_parse(qn__normalizer *out, const qn__json_at *at, qn_error *err);

/* The normalized text in `buffer`, or the text itself where nothing is to be done. */
qn_status qn__normalize(const qn__normalizer *normalizer, qn_text *buffer, const char **s,
                        size_t *n, qn_error *err);

#endif
