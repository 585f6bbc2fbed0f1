/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of utf8.h.
 */
#include "base/utf8.h"

#include <string.h>

size_t qn__utf8_check(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        if (n - i >= sizeof word) {
            memcpy(&word, s + i, sizeof word);
            if (!(word & 0x8080808080808080u)) {
                i += sizeof word;
                continue;
            }
        }
        uint32_t c;
        size_t length = qn__utf8_decode(s + i, n - i, &c);
        if (length == 0)
            return i;
        i += length;
    }
    return n;
}

int qn__utf8_broken(const char *s, size_t n, size_t *length)
{
    const unsigned char *p = (const unsigned char *)s;
    *length = 1;
    size_t want = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    if (n < 2)
        return 1;
    /* The second byte's range depends on the first. */
    unsigned low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high)
        return 0;
    size_t i = 2;
    while (i < want && i < n && (p[i] & 0xc0) == 0x80)
        i++;
    *length = i;
    return i == n && i < want;
}

const char *qn__utf8_quote(char *out, size_t size, const char *s, size_t n)
{
    size_t used = 0, i = 0;
    while (i < n) {
        uint32_t c;
        size_t length = qn__utf8_decode(s + i, n - i, &c);
        if (used + (length ? length : 1) + 4 > size) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (length == 0) {
            out[used++] = '?';
            i++;
            continue;
        }
        memcpy(out + used, s + i, length);
        used += length;
        i += length;
    }
    out[used] = '\0';
    return out;
}
