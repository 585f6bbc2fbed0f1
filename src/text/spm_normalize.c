/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizing as SentencePiece does; see spm_normalize.h. The table is 4 bytes of size, a trie of
 * that many bytes, then strings. A unit of the trie, as the Darts-clone library lays them out:
 * bits 0-7 and 31 the label, bit 8 "a value follows", bits 10-30 the offset to the children,
 * shifted by 8 more if bit 9 is set; or, at a leaf, the value in bits 0-30. A file can claim
 * anything, so each step checks its place.
 */
#include "text/spm_normalize.h"

#include "text/buffers.h"
#include "text/unicode.h"

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

bool qn__spm_normalize(const qn__spm_normalizer *normalizer, qn_text *out, const char *s, size_t n,
                       size_t limit)
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
    if (normalizer->dummy_prefix && !normalizer->space_is_suffix)
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
    if (ok && normalizer->dummy_prefix && normalizer->space_is_suffix)
        ok = append_escaped(out, " ", 1, escape);
    if (ok)
        out->data[out->n] = '\0';
    return ok;
}
