/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns; see pattern.h. Tokenizer files are written for Oniguruma. Where PCRE2 means something
 * else by the same text it's translated: \s lacks U+0085 and has U+180E in PCRE2, and \p{L} and its
 * like may be of an older Unicode, so that what is newer is added.
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/pattern.h"

#include "text/buffers.h"
#include "text/unicode.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_LIMIT = 1000, /* steps of a match that are not counted */
    MATCH_BUDGET = 4000000,
    BUDGET_PER_BYTE = 16,
    DEPTH_LIMIT = 100000,
    MAX_PATTERN = 65536
};

struct qn__pattern {
    qn__scanner scanner;
    char *literal; /* NULL for a regular expression */
    size_t literal_size;
    pcre2_code *code;
    char *place;
};

/* The White_Space property, for the inside of a class. */
#define SPACE_CLASS                                                                                \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* Writes \\p{X} for a general category X of one or two letters at `p`, with its newer members;
 * returns its length, or 0 when something else is there. */
static size_t translate_category(const char *p, bool in_class, qn_text *out, bool *ok)
{
    if (strncmp(p, "\\p{", 3) != 0 || !p[3] || !p[4])
        return 0;
    size_t n = p[4] == '}' ? 5 : p[5] == '}' ? 6 : 0;
    if (n == 0 || !strchr("LNMPSZC", p[3]))
        return 0;
    *ok = (in_class || qn__text_append(out, "[", 1)) && qn__text_append(out, p, n);
    for (size_t i = 0; *ok && i < qn__unicode_n_news; i++) {
        const qn__unicode_new *r = &qn__unicode_news[i];
        char piece[48];
        if (r->category[0] != p[3] || (n == 6 && r->category[1] != p[4]))
            continue;
        int m =
            snprintf(piece, sizeof piece, "\\x{%x}-\\x{%x}", (unsigned)r->first, (unsigned)r->last);
        *ok = qn__text_append(out, piece, (size_t)m);
    }
    *ok = *ok && (in_class || qn__text_append(out, "]", 1));
    return n;
}

/* Spells \s out, in and outside classes, and \S outside them; completes categories. */
static bool translate_pattern(const char *text, qn_text *out)
{
    bool in_class = false, ok = true;
    for (const char *p = text; ok && *p;) {
        size_t n = translate_category(p, in_class, out, &ok);
        if (n > 0) {
            p += n;
            continue;
        }
        const char *piece = p;
        size_t m = 1;
        if (*p == '\\' && p[1]) {
            n = m = 2;
            if (p[1] == 's')
                piece = in_class ? SPACE_CLASS : "[" SPACE_CLASS "]";
            else if (p[1] == 'S' && !in_class)
                piece = "[^" SPACE_CLASS "]";
            if (piece != p)
                m = strlen(piece);
        } else {
            n = 1;
            in_class = *p == '[' || (in_class && *p != ']');
        }
        ok = qn__text_append(out, piece, m);
        p += n;
    }
    return ok && qn__text_append(out, "", 0);
}

static qn_status compile_pattern(qn__pattern *pattern, const char *text, qn_error *err)
{
    qn_text translated = {0};
    if (!translate_pattern(text, &translated)) {
        qn_text_free(&translated);
        return qn__fail_memory(err, "a pattern");
    }
    int code;
    PCRE2_SIZE offset;
    pattern->code =
        pcre2_compile((PCRE2_SPTR)translated.data, translated.n,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    qn_text_free(&translated);
    if (!pattern->code) {
        PCRE2_UCHAR message[128];
        char quoted[64];
        pcre2_get_error_message(code, message, sizeof message);
        if (code == PCRE2_ERROR_HEAP_FAILED)
            return qn__fail_memory(err, "a pattern");
        return qn__fail(err, QN_FORMAT, "%s: bad regular expression \"%s\": %s", pattern->place,
                        qn__utf8_quote(quoted, sizeof quoted, text, strlen(text)),
                        (const char *)message);
    }
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* without it it's slower, not wrong */
    return QN_OK;
}

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
    qn_text copy = {0};
    bool copied = qn__text_append(&copy, place, strlen(place));
    pattern->place = copy.data;
    qn_status status = copied ? QN_OK : qn__fail_memory(err, "a pattern");
    if (copied && is_regex) {
        pattern->scanner = qn__scanner_for(text);
        if (!pattern->scanner)
            status = compile_pattern(pattern, text, err);
    } else if (copied) {
        qn_text literal = {0};
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
    pcre2_code_free(pattern->code);
    free(pattern->literal);
    free(pattern->place);
    free(pattern);
}

void qn__match_free(qn__match *match)
{
    pcre2_match_data_free(match->data);
    pcre2_match_context_free(match->context);
    pcre2_jit_stack_free(match->stack);
    *match = (qn__match){0};
}

static bool prepare_match(qn__match *match)
{
    if (match->data)
        return true;
    match->context = pcre2_match_context_create(NULL);
    match->stack = pcre2_jit_stack_create(32 * 1024, 1024 * 1024, NULL);
    match->data = pcre2_match_data_create(1, NULL);
    if (!match->context || !match->stack || !match->data) {
        qn__match_free(match);
        return false;
    }
    pcre2_set_depth_limit(match->context, DEPTH_LIMIT);
    pcre2_jit_stack_assign(match->context, NULL, match->stack);
    return true;
}

/* Matches with at most `limit` steps from each place where a match may begin. */
static int match_within(const qn__pattern *pattern, qn__match *match, const char *s, size_t n,
                        size_t at, uint32_t limit, uint32_t options)
{
    pcre2_set_match_limit(match->context, limit);
    return pcre2_match(pattern->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | options,
                       match->data, match->context);
}

/* As pcre2_match. One call could take its limit of steps from every place of the text, so the
 * first attempt has a low limit; if that's not enough the places are tried one by one, with limits
 * that double, and those steps are counted over the whole text. */
static int match_counted(const qn__pattern *pattern, qn__match *match, const char *s, size_t n,
                         size_t at)
{
    int code = match_within(pattern, match, s, n, at, FIRST_LIMIT, 0);
    uint64_t budget = MATCH_BUDGET + BUDGET_PER_BYTE * (uint64_t)match->text_size;
    while (code == PCRE2_ERROR_MATCHLIMIT && at <= n) {
        for (uint32_t limit = FIRST_LIMIT; code == PCRE2_ERROR_MATCHLIMIT; limit *= 2) {
            match->spent += limit;
            if (match->spent > budget || limit > UINT32_MAX / 4)
                return code;
            code = match_within(pattern, match, s, n, at, limit * 2, PCRE2_ANCHORED);
        }
        if (code != PCRE2_ERROR_NOMATCH)
            return code;
        if (at == n)
            return code;
        at = qn__char_behind(s, n, at);
        code = match_within(pattern, match, s, n, at, FIRST_LIMIT, 0);
    }
    return code;
}

static qn_status next_regex(const qn__pattern *pattern, qn__match *match, const char *s, size_t n,
                            size_t at, size_t *start, size_t *end, qn_error *err)
{
    if (!prepare_match(match))
        return qn__fail_memory(err, "a pattern's match");
    int code = match_counted(pattern, match, s, n, at);
    if (code == PCRE2_ERROR_NOMATCH)
        return QN_OK;
    if (code == PCRE2_ERROR_NOMEMORY)
        return qn__fail_memory(err, "a pattern's match");
    if (code == PCRE2_ERROR_MATCHLIMIT)
        return qn__fail(
            err, QN_LIMIT, "%s: the pattern needs more than %llu steps, at byte %zu of %zu",
            pattern->place,
            (unsigned long long)(MATCH_BUDGET + BUDGET_PER_BYTE * (uint64_t)match->text_size), at,
            n);
    if (code < 0)
        return qn__fail(err, QN_LIMIT, "%s: the pattern fails at byte %zu of %zu (PCRE2 says %d)",
                        pattern->place, at, n, code);
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(match->data);
    *start = offsets[0];
    *end = offsets[1] > offsets[0] ? offsets[1] : offsets[0]; /* \K can turn them round */
    return QN_OK;
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
    return next_regex(pattern, match, s, n, at, start, end, err);
}
