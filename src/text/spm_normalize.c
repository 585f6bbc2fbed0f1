/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizing as SentencePiece does; see spm_normalize.h. The table is 4 bytes of size, a trie of
 * that many bytes, then strings. A unit of the trie, as the Darts-clone library lays them out:
 * bits 0-7 and 31 the label, bit 8 "a value follows", bits 10-30 the offset to the children,
 * shifted by 8 more if bit 9 is set; or, at a leaf, the value in bits 0-30. A file can claim
 * anything, so each step checks its place.
 */
#include "text/spm_normalize.h"

#include "base/buffers.h"
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CHARSMAP = 16 << 20, MAX_EXPANSION = 1024 };

static const char escaped_space[] = "\xe2\x96\x81"; /* U+2581 */

static uint32_t read_u32(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Strings are text, and short: a character becomes at most MAX_EXPANSION bytes. */
static bool check_strings(const char *s, size_t n)
{
    if (n == 0 || s[n - 1] != '\0' || qn__utf8_check(s, n) != n)
        return false;
    for (const char *end; n > 0; n -= (size_t)(end - s) + 1, s = end + 1) {
        end = memchr(s, '\0', n);
        if (end - s > MAX_EXPANSION)
            return false;
    }
    return true;
}

qn_status qn__spm_charsmap(qn__spm_normalizer *normalizer, const char *file, const char *data,
                           size_t n, qn_error *err)
{
    static const char field[] = "normalizer_spec.precompiled_charsmap";
    if (n == 0)
        return QN_OK;
    uint32_t trie = n >= 4 ? read_u32(data) : 0;
    if (n > MAX_CHARSMAP || n < 8 || trie > n - 4 || trie == 0 || trie % 4 != 0)
        return qn__fail(err, QN_FORMAT, "%s: %s: a table of %zu bytes with a trie of %lu", file,
                        field, n, (unsigned long)trie);
    if (!check_strings(data + 4 + trie, n - 4 - trie))
        return qn__fail(err, QN_FORMAT, "%s: %s: the strings are no terminated UTF-8", file, field);
    normalizer->n_units = trie / 4;
    normalizer->n_strings = n - 4 - trie;
    normalizer->units = malloc(trie);
    normalizer->strings = malloc(normalizer->n_strings);
    if (!normalizer->units || !normalizer->strings)
        return qn__fail_memory(err, "a table of characters");
    for (size_t i = 0; i < normalizer->n_units; i++)
        normalizer->units[i] = read_u32(data + 4 + 4 * i);
    memcpy(normalizer->strings, data + 4 + trie, normalizer->n_strings);
    return QN_OK;
}

static int base64_value(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

qn_status qn__spm_charsmap_text(qn__spm_normalizer *normalizer, const char *file, const char *text,
                                qn_error *err)
{
    size_t size = strlen(text), n = 0;
    uint32_t bits = 0;
    char *data = malloc(size / 4 * 3 + 4);
    if (!data)
        return qn__fail_memory(err, "a table of characters");
    while (size > 0 && text[size - 1] == '=')
        size--;
    for (size_t i = 0; i < size; i++) {
        int value = base64_value(text[i]);
        if (value < 0 || size % 4 == 1) {
            free(data);
            return qn__fail(err, QN_FORMAT,
                            "%s: normalizer.precompiled_charsmap: not base 64 at %zu", file, i);
        }
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 > 0)
            data[n++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    qn_status status =
        n ? qn__spm_charsmap(normalizer, file, data, n, err)
          : qn__fail(err, QN_FORMAT, "%s: normalizer.precompiled_charsmap: empty", file);
    free(data);
    return status;
}

void qn__spm_normalizer_clear(qn__spm_normalizer *normalizer)
{
    free(normalizer->units);
    free(normalizer->strings);
    *normalizer = (qn__spm_normalizer){0};
}

static size_t children_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 0x200) >> 6);
}

/* The longest key of the table at s[0..n): its length (0: none), and its value's place. */
static size_t longest_key(const qn__spm_normalizer *normalizer, const char *s, size_t n,
                          size_t *value)
{
    const uint32_t *units = normalizer->units;
    size_t at = children_of(units[0]), length = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)s[i];
        at ^= byte;
        if (at >= normalizer->n_units || (units[at] & 0x800000ffu) != byte)
            break;
        uint32_t unit = units[at];
        at ^= children_of(unit);
        if (!(unit & 0x100))
            continue;
        if (at >= normalizer->n_units || (units[at] & 0x7fffffffu) >= normalizer->n_strings)
            break;
        *value = units[at] & 0x7fffffffu;
        length = i + 1;
    }
    return length;
}

/* What the text at s[0..n) begins with: how many bytes of it become to[0..*to_n). A key or value
 * that ends within a character (no honest table has any) counts as none. */
static size_t next_piece(const qn__spm_normalizer *normalizer, const char *s, size_t n,
                         const char **to, size_t *to_n)
{
    size_t value = 0;
    size_t k = normalizer->user ? qn__added_longest(normalizer->user, s, n) : 0;
    *to = s;
    if (k == 0 && normalizer->units) {
        size_t m = longest_key(normalizer, s, n, &value);
        bool whole = m > 0 && (m == n || ((unsigned char)s[m] & 0xc0) != 0x80);
        if (whole && ((unsigned char)normalizer->strings[value] & 0xc0) != 0x80) {
            *to = normalizer->strings + value;
            *to_n = strlen(*to);
            return m;
        }
    }
    *to_n = k > 0 ? k : qn__char_behind(s, n, 0);
    return *to_n;
}

static bool append_escaped(qn_text *out, const char *s, size_t n, bool escape)
{
    bool ok = true;
    for (const char *hit; ok && escape && (hit = memchr(s, ' ', n));) {
        size_t before = (size_t)(hit - s);
        ok = qn__text_append(out, s, before) && qn__text_append(out, escaped_space, 3);
        s += before + 1;
        n -= before + 1;
    }
    return ok && qn__text_append(out, s, n);
}

bool qn__spm_normalize(const qn__spm_normalizer *normalizer, bool first, qn_text *out,
                       const char *s, size_t n, size_t limit)
{
    bool remove = normalizer->remove_extra_spaces, escape = normalizer->escape_spaces, ok = true;
    size_t at = 0, k, before = out->n, to_n;
    const char *to;
    for (; remove && at < n; at += k) {
        k = next_piece(normalizer, s + at, n - at, &to, &to_n);
        if (to_n != 1 || to[0] != ' ')
            break;
    }
    if (at == n)
        return qn__text_append(out, "", 0);
    bool space_apart = normalizer->dummy_prefix && (first || !normalizer->prefix_first);
    if (space_apart && !normalizer->space_is_suffix)
        ok = append_escaped(out, " ", 1, escape);
    for (bool after_space = remove; ok && at < n; at += k) {
        k = next_piece(normalizer, s + at, n - at, &to, &to_n);
        while (after_space && to_n > 0 && to[0] == ' ') {
            to++;
            to_n--;
        }
        if (to_n == 0)
            continue;
        ok = append_escaped(out, to, to_n, escape) && out->n <= limit;
        after_space = remove && to[to_n - 1] == ' ';
    }
    size_t size = escape ? 3 : 1;
    const char *space = escape ? escaped_space : " ";
    while (ok && remove && out->n >= before + size &&
           memcmp(out->data + out->n - size, space, size) == 0)
        out->n -= size;
    if (ok && space_apart && normalizer->space_is_suffix)
        ok = append_escaped(out, " ", 1, escape);
    if (ok)
        out->data[out->n] = '\0';
    return ok;
}

/* ---- Precompiled ---------------------------------------------------------------------------- */

static bool in_runs(uint32_t c, const uint32_t (*runs)[2], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (c >= runs[i][0] && c <= runs[i][1])
            return true;
    return false;
}

/* Whether a character goes on with the grapheme before it: marks, joiners and their like. */
static bool extends(uint32_t c, unsigned class)
{
    static const uint32_t apart[][2] = {
        {0x102b, 0x102c}, {0x1038, 0x1038}, {0x1062, 0x1064},  {0x1067, 0x106d}, {0x1083, 0x1083},
        {0x1087, 0x108c}, {0x108f, 0x108f}, {0x109a, 0x109c},  {0x1a61, 0x1a61}, {0x1a63, 0x1a64},
        {0xaa7b, 0xaa7b}, {0xaa7d, 0xaa7d}, {0x11720, 0x11721}};
    static const uint32_t more[][2] = {{0x200c, 0x200d}, {0xe33, 0xe33},     {0xeb3, 0xeb3},
                                       {0xff9e, 0xff9f}, {0x1f3fb, 0x1f3ff}, {0xe0020, 0xe007f}};
    if (class & QN__MARK)
        return !in_runs(c, apart, sizeof apart / sizeof *apart);
    return in_runs(c, more, sizeof more / sizeof *more);
}

/* Whether a character stands alone, and whether it takes the one behind it into its grapheme. */
static bool is_control(uint32_t c)
{
    static const uint32_t runs[][2] = {
        {0, 0x1f},          {0x7f, 0x9f},       {0xad, 0xad},       {0x61c, 0x61c},
        {0x180e, 0x180e},   {0x200b, 0x200b},   {0x200e, 0x200f},   {0x2028, 0x202e},
        {0x2060, 0x206f},   {0xfeff, 0xfeff},   {0xfff0, 0xfffb},   {0x13430, 0x1343f},
        {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe001f}, {0xe0080, 0xe0fff}};
    return in_runs(c, runs, sizeof runs / sizeof *runs);
}

static bool is_prepend(uint32_t c)
{
    static const uint32_t runs[][2] = {
        {0x600, 0x605},     {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},
        {0x8e2, 0x8e2},     {0xd4e, 0xd4e},     {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
        {0x111c2, 0x111c3}, {0x113d1, 0x113d1}, {0x1193f, 0x1193f}, {0x11941, 0x11941},
        {0x11a3a, 0x11a3a}, {0x11a84, 0x11a89}, {0x11d46, 0x11d46}, {0x11f02, 0x11f02}};
    return in_runs(c, runs, sizeof runs / sizeof *runs);
}

/* Syllables of Hangul in parts: L (V, LV, LVT) , V T. */
static bool joins_hangul(uint32_t a, uint32_t b)
{
    bool a_l = (a >= 0x1100 && a <= 0x115f) || (a >= 0xa960 && a <= 0xa97c);
    bool b_l = (b >= 0x1100 && b <= 0x115f) || (b >= 0xa960 && b <= 0xa97c);
    bool a_v = (a >= 0x1160 && a <= 0x11a7) || (a >= 0xd7b0 && a <= 0xd7c6);
    bool b_v = (b >= 0x1160 && b <= 0x11a7) || (b >= 0xd7b0 && b <= 0xd7c6);
    bool a_t = (a >= 0x11a8 && a <= 0x11ff) || (a >= 0xd7cb && a <= 0xd7fb);
    bool b_t = (b >= 0x11a8 && b <= 0x11ff) || (b >= 0xd7cb && b <= 0xd7fb);
    bool a_s = a >= 0xac00 && a <= 0xd7a3, b_s = b >= 0xac00 && b <= 0xd7a3;
    bool a_lv = a_s && (a - 0xac00) % 28 == 0;
    return (a_l && (b_l || b_v || b_s)) || ((a_v || a_lv) && (b_v || b_t)) || ((a_t || a_s) && b_t);
}

/* The end of the grapheme at s[at]. Rules that join only what has six bytes or more are left out:
 * such a grapheme goes by its characters anyway. */
static size_t grapheme_end(const char *s, size_t n, size_t at)
{
    uint32_t c = 0, next = 0;
    size_t k = qn__utf8_decode(s + at, n - at, &c);
    at += k ? k : 1;
    if (c == '\r' && at < n && s[at] == '\n')
        return at + 1;
    if (is_control(c))
        return at;
    for (bool prepend = is_prepend(c); at < n; at += k, c = next) {
        if ((unsigned char)s[at] < 0x80 && !prepend)
            break;
        unsigned class = qn__class_at(s, n, at, &k);
        qn__utf8_decode(s + at, n - at, &next);
        if (!extends(next, class) && !joins_hangul(c, next) && !(prepend && !is_control(next)))
            break;
        prepend = is_prepend(next);
    }
    return at;
}

/* What the shortest key that s[0..n) begins with becomes, or NULL. */
static const char *replacement_of(const qn__spm_normalizer *normalizer, const char *s, size_t n)
{
    const uint32_t *units = normalizer->units;
    size_t at = children_of(units[0]);
    for (size_t i = 0; i < n && s[i]; i++) {
        unsigned char byte = (unsigned char)s[i];
        at ^= byte;
        if (at >= normalizer->n_units || (units[at] & 0x800000ffu) != byte)
            return NULL;
        uint32_t unit = units[at];
        at ^= children_of(unit);
        if (!(unit & 0x100))
            continue;
        size_t value = at < normalizer->n_units ? units[at] & 0x7fffffffu : SIZE_MAX;
        bool whole = value < normalizer->n_strings &&
                     ((unsigned char)normalizer->strings[value] & 0xc0) != 0x80;
        return whole ? normalizer->strings + value : NULL;
    }
    return NULL;
}

bool qn__precompiled_normalize(const qn__spm_normalizer *normalizer, qn_text *out, const char *s,
                               size_t n, size_t limit)
{
    enum { WHOLE = 6 };
    bool ok = qn__text_reserve(out, n);
    for (size_t at = 0, end; ok && at < n; at = end) {
        end = grapheme_end(s, n, at);
        const char *to = end - at < WHOLE ? replacement_of(normalizer, s + at, end - at) : NULL;
        if (to)
            ok = qn__text_append(out, to, strlen(to)) && out->n <= limit;
        for (size_t i = at, k; ok && !to && i < end; i = k) {
            k = qn__char_behind(s, n, i);
            const char *one = replacement_of(normalizer, s + i, k - i);
            ok = qn__text_append(out, one ? one : s + i, one ? strlen(one) : k - i) &&
                 out->n <= limit;
        }
    }
    return ok && qn__text_append(out, "", 0);
}
