/* SPDX-License-Identifier: Apache-2.0
 *
 * The scanners of scanners.h. Each function follows its pattern's alternatives in order; greedy
 * repeats with backtracking are worked out by hand where it says so.
 */
#include "text/scanners.h"

#include "text/unicode.h"

#include <stdbool.h>
#include <string.h>

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum { TEXTUAL = QN__LETTER | QN__NUMBER | QN__SPACE };

qn__scanner qn__scanner_for(const char *pattern)
{
    if (strcmp(pattern, gpt2_pattern) == 0)
        return qn__scan_gpt2;
    if (strcmp(pattern, llama3_pattern) == 0)
        return qn__scan_llama3;
    if (strcmp(pattern, qwen_pattern) == 0)
        return qn__scan_qwen;
    return NULL;
}

/* The end of the run from s[at] of characters of which (class & mask) is `value`-nonzero. */
static size_t run_of(const char *s, size_t n, size_t at, unsigned mask)
{
    size_t k;
    while (at < n && (qn__class_at(s, n, at, &k) & mask))
        at += k;
    return at;
}

static size_t run_of_others(const char *s, size_t n, size_t at)
{
    size_t k;
    while (at < n && !(qn__class_at(s, n, at, &k) & TEXTUAL))
        at += k;
    return at;
}

/* \s+(?!\S)|\s+ for the run of space s[at..end): all of it at the end of the text, else all but
 * its last character, which goes with what follows; a single one stands alone. */
static size_t leave_last_space(const char *s, size_t n, size_t at, size_t end)
{
    if (end == n)
        return end;
    size_t last = qn__char_before(s, end);
    return last > at ? last : end;
}

/* 's|'t|'re|'ve|'m|'ll|'d at an apostrophe: its end, or 0. With fold also capitals and U+017F,
 * which folds to s. */
static size_t scan_contraction(const char *s, size_t n, size_t at, bool fold)
{
    if (n - at < 2)
        return 0;
    char bit = fold ? 0x20 : 0;
    char a = (char)(s[at + 1] | bit), b = n - at > 2 ? (char)(s[at + 2] | bit) : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    if (fold && n - at > 2 && s[at + 1] == '\xc5' && s[at + 2] == '\xbf')
        return at + 3;
    return 0;
}

size_t qn__scan_gpt2(const char *s, size_t n, size_t at)
{
    size_t k, end;
    if (s[at] == '\'' && (end = scan_contraction(s, n, at, false)))
        return end;
    size_t start = at + (s[at] == ' ' && at + 1 < n);
    unsigned kind = qn__class_at(s, n, start, &k) & TEXTUAL;
    if (kind & QN__LETTER)
        return run_of(s, n, start + k, QN__LETTER);
    if (kind & QN__NUMBER)
        return run_of(s, n, start + k, QN__NUMBER);
    if (!kind)
        return run_of_others(s, n, start + k);
    return leave_last_space(s, n, at, run_of(s, n, at, QN__SPACE));
}

/* Behind the last line break of the white space s[at..end), or 0: what \s*[\r\n]+ matches, since
 * the greedy \s* gives back characters until a break follows. */
static size_t after_last_break(const char *s, size_t at, size_t end)
{
    while (end > at && s[end - 1] != '\n' && s[end - 1] != '\r')
        end--;
    return end > at ? end : 0;
}

static size_t scan_llama3_style(const char *s, size_t n, size_t at, int max_digits)
{
    size_t k, end;
    if (s[at] == '\'' && (end = scan_contraction(s, n, at, true)))
        return end;
    unsigned kind = qn__class_at(s, n, at, &k) & TEXTUAL;
    if (kind & QN__LETTER)
        return run_of(s, n, at + k, QN__LETTER);
    if (kind & QN__NUMBER) {
        end = at + k;
        for (int i = 1; i < max_digits && end < n; i++, end += k)
            if (!(qn__class_at(s, n, end, &k) & QN__NUMBER))
                break;
        return end;
    }
    /* [^\r\n\p{L}\p{N}]?\p{L}+ led by one other character */
    size_t next = at + k, m;
    unsigned next_kind = next < n ? qn__class_at(s, n, next, &m) & TEXTUAL : QN__SPACE;
    if (s[at] != '\r' && s[at] != '\n' && (next_kind & QN__LETTER))
        return run_of(s, n, next + m, QN__LETTER);
    if (!kind || (s[at] == ' ' && !next_kind)) {
        end = run_of_others(s, n, next);
        while (end < n && (s[end] == '\r' || s[end] == '\n'))
            end++;
        return end;
    }
    end = run_of(s, n, next, QN__SPACE);
    size_t broken = after_last_break(s, at, end);
    return broken ? broken : leave_last_space(s, n, at, end);
}

size_t qn__scan_llama3(const char *s, size_t n, size_t at)
{
    return scan_llama3_style(s, n, at, 3);
}

size_t qn__scan_qwen(const char *s, size_t n, size_t at)
{
    return scan_llama3_style(s, n, at, 1);
}
