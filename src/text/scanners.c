/* SPDX-License-Identifier: Apache-2.0
 *
 * The scanners of scanners.h. Each function follows its pattern's alternatives in order; greedy
 * repeats with backtracking are worked out by hand where it says so.
 */
#include "text/scanners.h"

#include "base/unicode.h"

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

#define UPPER_WORD "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER_WORD "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD       "[^\\r\\n\\p{L}\\p{N}]?"
#define SUFFIX     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
static const char o200k_pattern[] =
    LEAD UPPER_WORD "*" LOWER_WORD "+" SUFFIX "|" LEAD UPPER_WORD "+" LOWER_WORD "*" SUFFIX
                    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
                    "\\s+(?!\\S)|\\s+";
static const char deepseek_numbers_pattern[] = "\\p{N}{1,3}";
static const char deepseek_cjk_pattern[] = "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f"
                                           "\xe3\x82\xa0-\xe3\x83\xbf]+";
/* Line breaks as they are in the files, or escaped. */
#define DEEPSEEK(breaks)                                                                           \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^" breaks                              \
    "\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[" breaks "]*|\\s*[" breaks              \
    "]+|\\s+(?!\\S)|\\s+"
static const char deepseek_pattern[] = DEEPSEEK("\r\n");
static const char deepseek_escaped_pattern[] = DEEPSEEK("\\r\\n");

enum { TEXTUAL = QN__LETTER | QN__NUMBER | QN__SPACE, MARKED = QN__PUNCTUATION | QN__SYMBOL };

qn__scanner qn__scanner_for(const char *pattern)
{
    static const struct {
        const char *pattern;
        qn__scanner scanner;
    } known[] = {
        {gpt2_pattern, qn__scan_gpt2},
        {llama3_pattern, qn__scan_llama3},
        {qwen_pattern, qn__scan_qwen},
        {o200k_pattern, qn__scan_o200k},
        {deepseek_numbers_pattern, qn__scan_deepseek_numbers},
        {deepseek_cjk_pattern, qn__scan_deepseek_cjk},
        {deepseek_pattern, qn__scan_deepseek},
        {deepseek_escaped_pattern, qn__scan_deepseek},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(pattern, known[i].pattern) == 0)
            return known[i].scanner;
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

/* White space from s[at] on: \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t scan_space(const char *s, size_t n, size_t at)
{
    size_t end = run_of(s, n, at, QN__SPACE), broken = after_last_break(s, at, end);
    return broken ? broken : leave_last_space(s, n, at, end);
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
    return scan_space(s, n, at);
}

size_t qn__scan_llama3(const char *s, size_t n, size_t at)
{
    return scan_llama3_style(s, n, at, 3);
}

size_t qn__scan_qwen(const char *s, size_t n, size_t at)
{
    return scan_llama3_style(s, n, at, 1);
}

/* One to three digits from s[at] on, where the first stands. */
static size_t three_digits(const char *s, size_t n, size_t at)
{
    size_t k;
    for (int i = 0; i < 3 && at < n && (qn__class_at(s, n, at, &k) & QN__NUMBER); i++)
        at += k;
    return at;
}

static bool is_upper(unsigned kind)
{
    return (kind & QN__MARK) || ((kind & QN__LETTER) && !(kind & QN__LOWER));
}

static bool is_lower(unsigned kind)
{
    return (kind & QN__MARK) || ((kind & QN__LETTER) && !(kind & QN__UPPER));
}

/* U*L+ from s[at] on: its end, or `at`; *run is where the U end. U and L share letters without case
 * and marks. U* takes the run of U. If an L follows, L+ goes on from there; else U* gives back one
 * character after the other until one is an L: the run's last L. */
static size_t scan_cased(const char *s, size_t n, size_t at, size_t *run)
{
    size_t k, end = at, after_lower = at;
    while (end < n) {
        unsigned kind = qn__class_at(s, n, end, &k);
        if (!is_upper(kind))
            break;
        end += k;
        if (is_lower(kind))
            after_lower = end;
    }
    *run = end;
    if (end == n || !is_lower(qn__class_at(s, n, end, &k)))
        return after_lower;
    while (end < n && is_lower(qn__class_at(s, n, end, &k)))
        end += k;
    return end;
}

static size_t with_suffix(const char *s, size_t n, size_t at)
{
    size_t end = at < n && s[at] == '\'' ? scan_contraction(s, n, at, true) : 0;
    return end ? end : at;
}

size_t qn__scan_o200k(const char *s, size_t n, size_t at)
{
    size_t k, end;
    unsigned kind = qn__class_at(s, n, at, &k);
    bool can_lead = s[at] != '\r' && s[at] != '\n' && !(kind & (QN__LETTER | QN__NUMBER));
    /* U*L+ behind a leading character, then without one (a mark can be either); U+L* likewise, of
     * which L* is empty where U*L+ failed. */
    size_t led_run = at + k, run, led = at + k;
    if (can_lead)
        led = scan_cased(s, n, at + k, &led_run);
    if (led > at + k)
        return with_suffix(s, n, led);
    end = scan_cased(s, n, at, &run);
    end = end > at ? end : led_run > at + k ? led_run : run;
    if (end > at)
        return with_suffix(s, n, end);
    if (kind & QN__NUMBER)
        return three_digits(s, n, at);
    size_t next = at + (s[at] == ' '), m;
    if (next < n && !(qn__class_at(s, n, next, &m) & TEXTUAL)) {
        end = run_of_others(s, n, next);
        while (end < n && (s[end] == '\r' || s[end] == '\n' || s[end] == '/'))
            end++;
        return end;
    }
    return scan_space(s, n, at);
}

size_t qn__scan_deepseek_numbers(const char *s, size_t n, size_t at)
{
    return three_digits(s, n, at);
}

/* U+4E00..9FA5, U+3040..309F, U+30A0..30FF */
size_t qn__scan_deepseek_cjk(const char *s, size_t n, size_t at)
{
    uint32_t c = 0;
    size_t k;
    while (at < n && (unsigned char)s[at] >= 0xe3 && (k = qn__utf8_decode(s + at, n - at, &c)) &&
           ((c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff)))
        at += k;
    return at;
}

static bool ascii_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool ascii_mark(char c)
{
    return c > ' ' && c < 0x7f && !ascii_letter(c) && !(c >= '0' && c <= '9');
}

size_t qn__scan_deepseek(const char *s, size_t n, size_t at)
{
    size_t k, m, end;
    if (ascii_mark(s[at]) && at + 1 < n && ascii_letter(s[at + 1])) {
        for (end = at + 2; end < n && ascii_letter(s[end]);)
            end++;
        return end;
    }
    unsigned kind = qn__class_at(s, n, at, &k);
    size_t next = at + k;
    unsigned behind = next < n ? qn__class_at(s, n, next, &m) : 0;
    bool can_lead = s[at] != '\r' && s[at] != '\n' && !(kind & (QN__LETTER | MARKED));
    if (can_lead && (behind & (QN__LETTER | QN__MARK)))
        return run_of(s, n, next, QN__LETTER | QN__MARK);
    if (kind & (QN__LETTER | QN__MARK))
        return run_of(s, n, at, QN__LETTER | QN__MARK);
    if ((kind & MARKED) || (s[at] == ' ' && (behind & MARKED))) {
        end = run_of(s, n, next, MARKED);
        while (end < n && (s[end] == '\r' || s[end] == '\n'))
            end++;
        return end;
    }
    return kind & QN__SPACE ? scan_space(s, n, at) : at;
}
