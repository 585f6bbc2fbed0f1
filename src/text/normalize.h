/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizers: a list of steps over a whole text. Adding a kind: a value of qn__normalizer_kind, a
 * name and a parser, and a case of `run_step`. Whatever the rules say, no step makes more of a text
 * than qn__normalized_limit allows.
 */
#ifndef QN_TEXT_NORMALIZE_H
#define QN_TEXT_NORMALIZE_H

#include "base/json.h"
#include "quern/text.h"
#include "text/pattern.h"
#include "text/spm_normalize.h"

#define QN__MAX_NORMALIZERS 8

/* The most bytes that n may become: no honest rule makes more than 11 of one (NFKC of U+FDFA), and
 * a short text may have something put before it. */
static inline size_t qn__normalized_limit(size_t n)
{
    return n < SIZE_MAX / 32 ? 16 * n + 4096 : SIZE_MAX / 2;
}

typedef enum qn__normalizer_kind {
    QN__NORMALIZE_NFC,
    QN__NORMALIZE_PREPEND,
    QN__NORMALIZE_REPLACE,
    QN__NORMALIZE_PRECOMPILED, /* by the table of `spm` */
    QN__NORMALIZE_STRIP,
    QN__NORMALIZE_COUNT,
    QN__NORMALIZE_SPM = QN__NORMALIZE_COUNT /* of a tokenizer.model; no name in a tokenizer.json */
} qn__normalizer_kind;

typedef struct qn__normalize_step {
    qn__normalizer_kind kind;
    qn__pattern *pattern; /* Replace */
    qn_text text;         /* what Prepend puts before, and Replace in the place of a match */
    bool left, right;     /* Strip: white space at that end goes */
} qn__normalize_step;

typedef struct qn__normalizer {
    qn__normalize_step steps[QN__MAX_NORMALIZERS];
    int n;
    qn__spm_normalizer spm;
} qn__normalizer;

/* Parses the "normalizer" of a tokenizer.json. */
qn_status qn__normalizer_parse(qn__normalizer *out, const qn__json_at *at, qn_error *err);
void qn__normalizer_clear(qn__normalizer *normalizer);

/* The normalized text in `buffer`, or the text itself where nothing is to be done. first: s begins
 * the whole text. */
qn_status qn__normalize(const qn__normalizer *normalizer, qn__match *match, qn_text *buffer,
                        bool *first, const char **s, size_t *n, qn_error *err);

#endif
