/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8: decoding one character, encoding one, checking a whole text. Strict as RFC 3629 has it:
 * no surrogates, no overlong forms, nothing above U+10FFFF.
 */
#ifndef QN_BASE_UTF8_H
#define QN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes the character at s[0..n); returns its length 1..4 and stores it, or returns 0 when the
 * bytes are no character (or n is 0). */
static inline size_t qn__utf8_decode(const char *s, size_t n, uint32_t *out)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0)
        return 0;
    if (p[0] < 0x80) {
        *out = p[0];
        return 1;
    }
    if (p[0] < 0xc2 || n < 2 || (p[1] & 0xc0) != 0x80)
        return 0;
    if (p[0] < 0xe0) {
        *out = (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
        return 2;
    }
    if (n < 3 || (p[2] & 0xc0) != 0x80)
        return 0;
    if (p[0] < 0xf0) {
        uint32_t c = (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
        if (c < 0x800 || (c >= 0xd800 && c < 0xe000))
            return 0;
        *out = c;
        return 3;
    }
    if (p[0] > 0xf4 || n < 4 || (p[3] & 0xc0) != 0x80)
        return 0;
    uint32_t c = (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
                 (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    if (c < 0x10000 || c > 0x10ffff)
        return 0;
    *out = c;
    return 4;
}

/* Writes code point `c` (a valid one) to `out`; returns its length 1..4. */
static inline size_t qn__utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* The length of the valid beginning of s[0..n): n when all of it is UTF-8. */
size_t qn__utf8_check(const char *s, size_t n);

/* How the bytes s[0..n), n > 0, that begin no complete character are to be taken: stores the
 * length of the maximal prefix of a character (at least 1: what one U+FFFD stands for, as the
 * Unicode standard and Rust's from_utf8_lossy have it) and returns 1 when more bytes could still
 * complete it (it reaches the end of the input), else 0. */
int qn__utf8_broken(const char *s, size_t n, size_t *length);

/* Copies s[0..n) into out[0..size) for an error message: cut at a character boundary with "..."
 * when it is too long, bytes that are no UTF-8 replaced by '?', always terminated. size >= 8.
 * Returns out. */
const char *qn__utf8_quote(char *out, size_t size, const char *s, size_t n);

#endif
