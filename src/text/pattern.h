/* SPDX-License-Identifier: Apache-2.0
 *
 * A pattern of a Split pre-tokenizer: a literal, a regular expression with a scanner of our own,
 * or one that regex.h runs (with limits on matching, so that a hostile pattern ends in an error).
 */
#ifndef QN_TEXT_PATTERN_H
#define QN_TEXT_PATTERN_H

#include "base/json.h"
#include "text/regex.h"
#include "text/scanners.h"

#include <stdbool.h>

typedef struct qn__pattern qn__pattern;

/* `place` begins the message ("tokenizer.json: pre_tokenizer.pattern"). */
qn_status qn__pattern_new(qn__pattern **out, const char *text, bool is_regex, const char *place,
                          qn_error *err);
/* The "pattern" of a step: {"Regex": ...} or {"String": ...}. */
qn_status qn__pattern_parse(qn__pattern **out, const qn__json_at *step, qn_error *err);
void qn__pattern_free(qn__pattern *pattern);

/* What one thread needs for matching; zero it before use. The spent steps are those of all matches
 * since: beyond a limit that grows with the text (text_size), matching fails. */
typedef struct qn__match {
    qn__regex_work work;
    size_t text_size;
} qn__match;

void qn__match_free(qn__match *match);

/* Matches follow each other as in the Hugging Face library: an empty one right behind the last
 * match is none. Where to look on, from its end. */
static inline bool qn__pattern_skips(size_t start, size_t end, size_t last_end)
{
    return start == end && end == last_end;
}

/* The next match in s[0..n) (valid UTF-8) from `at` on: QN_OK and [*start, *end), which may be
 * empty; *start is n + 1 when there is none. */
qn_status qn__pattern_next(const qn__pattern *pattern, qn__match *match, const char *s, size_t n,
                           size_t at, size_t *start, size_t *end, qn_error *err);

#endif
