/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns; see pattern.h.
 */
#include "text/pattern.h"

#include "base/buffers.h"
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERN = 65536 };

struct qn__pattern {
    qn__scanner scanner;
    char *literal; /* NULL for a regular expression */
    size_t literal_size;
    qn__regex *regex;
};

qn_status qn__pattern_new(qn__pattern **out, const char *text, bool is_regex, const char *place,
                          qn_error *err)
{
    *out = NULL;
    size_t n = strlen(text);
    if (n == 0 || n > MAX_PATTERN)
        return qn__fail(err, QN_FORMAT, "%s: a pattern of %zu bytes, expected 1..%d", place, n,
                        MAX_PATTERN);
    qn__pattern *pattern = calloc(1, sizeof *pattern);
    if (!pattern)
        return qn__fail_memory(err, "a pattern");
    qn_status status = QN_OK;
    qn_text literal = {0};
    if (is_regex) {
        pattern->scanner = qn__scanner_for(text);
        if (!pattern->scanner)
            status = qn__regex_new(&pattern->regex, text, n, place, err);
    } else {
        if (!qn__text_append(&literal, text, n))
            status = qn__fail_memory(err, "a pattern");
        pattern->literal = literal.data;
        pattern->literal_size = n;
    }
    if (status != QN_OK) {
        qn__pattern_free(pattern);
        return status;
    }
    *out = pattern;
    return QN_OK;
}

qn_status qn__pattern_parse(qn__pattern **out, const qn__json_at *step, qn_error *err)
{
    const char *text;
    qn__json_at pattern, kind;
    qn_status status = qn__json_get_object(step, "pattern", &pattern, err);
    if (status != QN_OK)
        return status;
    bool is_regex = qn__json_find(&pattern, "Regex", &kind);
    if (!is_regex && !qn__json_find(&pattern, "String", &kind))
        return qn__json_fail(&pattern, QN_FORMAT, err, "expected Regex or String");
    status = qn__json_as_string(&kind, &text, err);
    return status == QN_OK ? qn__pattern_new(out, text, is_regex, step->file, err) : status;
}

void qn__pattern_free(qn__pattern *pattern)
{
    if (!pattern)
        return;
    qn__regex_free(pattern->regex);
    free(pattern->literal);
    free(pattern);
}

void qn__match_free(qn__match *match)
{
    qn__regex_work_free(&match->work);
}

qn_status qn__pattern_next(const qn__pattern *pattern, qn__match *match, const char *s, size_t n,
                           size_t at, size_t *start, size_t *end, qn_error *err)
{
    *start = *end = n + 1;
    if (pattern->scanner) {
        for (size_t k; at < n; at = qn__char_behind(s, n, at))
            if ((k = pattern->scanner(s, n, at)) > at) {
                *start = at;
                *end = k;
                break;
            }
        return QN_OK;
    }
    if (pattern->literal) {
        const char *hit = at == n ? NULL
                          : pattern->literal_size == 1
                              ? memchr(s + at, pattern->literal[0], n - at)
                              : memmem(s + at, n - at, pattern->literal, pattern->literal_size);
        if (hit) {
            *start = (size_t)(hit - s);
            *end = *start + pattern->literal_size;
        }
        return QN_OK;
    }
    return qn__regex_search(pattern->regex, &match->work, s, n, at, match->text_size, start, end,
                            err);
}
