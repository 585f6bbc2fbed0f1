/* SPDX-License-Identifier: Apache-2.0
 *
 * NFC. Text below U+0300 is in NFC as it stands, so stretches of it are copied; from the last
 * such character before anything else up to the next one, the text is decomposed, its marks
 * sorted by combining class (stable, by counting where there are many), and composed again. All of
 * it is linear, so that a megabyte of marks is no attack.
 */
#include "text/nfc.h"

#include "base/buffers.h"
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    HANGUL = 0xac00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7,
    N_L = 19,
    N_V = 21,
    N_T = 28
};

typedef struct mark {
    uint32_t c;
    uint32_t ccc;
} mark;

typedef struct segment {
    mark *items;
    size_t n, capacity;
} segment;

static unsigned combining_class(uint32_t c)
{
    if (c < 0x300)
        return 0;
    size_t low = 0, high = qn__unicode_n_ccc;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (qn__unicode_ccc[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    bool hit = low < qn__unicode_n_ccc && qn__unicode_ccc[low].first <= c;
    return hit ? qn__unicode_ccc[low].value : 0;
}

static bool push_mark(segment *s, uint32_t c)
{
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 64;
        mark *grown = realloc(s->items, capacity * sizeof *grown);
        if (!grown)
            return false;
        s->items = grown;
        s->capacity = capacity;
    }
    s->items[s->n++] = (mark){c, combining_class(c)};
    return true;
}

/* Full canonical decomposition; the table's chains are at most a few links. */
static bool push_decomposed(segment *s, uint32_t c)
{
    if (c < 0xc0)
        return push_mark(s, c);
    if (c >= HANGUL && c < HANGUL + N_L * N_V * N_T) {
        uint32_t i = c - HANGUL;
        return push_mark(s, HANGUL_L + i / (N_V * N_T)) &&
               push_mark(s, HANGUL_V + i % (N_V * N_T) / N_T) &&
               (i % N_T == 0 || push_mark(s, HANGUL_T + i % N_T));
    }
    size_t low = 0, high = qn__unicode_n_decompositions;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (qn__unicode_decompositions[middle].a < c)
            low = middle + 1;
        else
            high = middle;
    }
    const qn__unicode_pair *pair = &qn__unicode_decompositions[low];
    if (low == qn__unicode_n_decompositions || pair->a != c)
        return push_mark(s, c);
    return push_decomposed(s, pair->b) && (pair->c == 0 || push_decomposed(s, pair->c));
}

/* The character that a and b compose to, or 0. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    if (a >= HANGUL_L && a < HANGUL_L + N_L && b >= HANGUL_V && b < HANGUL_V + N_V)
        return HANGUL + ((a - HANGUL_L) * N_V + (b - HANGUL_V)) * N_T;
    if (a >= HANGUL && a < HANGUL + N_L * N_V * N_T && (a - HANGUL) % N_T == 0 && b > HANGUL_T &&
        b < HANGUL_T + N_T)
        return a + (b - HANGUL_T);
    size_t low = 0, high = qn__unicode_n_compositions;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const qn__unicode_pair *p = &qn__unicode_compositions[middle];
        if (p->a < a || (p->a == a && p->b < b))
            low = middle + 1;
        else
            high = middle;
    }
    const qn__unicode_pair *p = &qn__unicode_compositions[low];
    bool hit = low < qn__unicode_n_compositions && p->a == a && p->b == b;
    return hit ? p->c : 0;
}

/* Stable sort of a run of marks by class: insertion for the usual few, counting beyond. */
static bool sort_marks(mark *items, size_t n)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            mark m = items[i];
            size_t j = i;
            for (; j > 0 && items[j - 1].ccc > m.ccc; j--)
                items[j] = items[j - 1];
            items[j] = m;
        }
        return true;
    }
    mark *sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return false;
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[items[i].ccc + 1]++;
    for (int k = 0; k < 256; k++)
        start[k + 1] += start[k];
    for (size_t i = 0; i < n; i++)
        sorted[start[items[i].ccc]++] = items[i];
    memcpy(items, sorted, n * sizeof *sorted);
    free(sorted);
    return true;
}

static bool order_segment(segment *s)
{
    for (size_t i = 0; i < s->n;) {
        if (s->items[i].ccc == 0) {
            i++;
            continue;
        }
        size_t end = i;
        while (end < s->n && s->items[end].ccc != 0)
            end++;
        if (!sort_marks(s->items + i, end - i))
            return false;
        i = end;
    }
    return true;
}

static void compose_segment(segment *s)
{
    size_t starter = SIZE_MAX, used = 0;
    unsigned last = 0; /* class of the last mark kept behind the starter */
    for (size_t i = 0; i < s->n; i++) {
        mark m = s->items[i];
        bool adjacent = starter != SIZE_MAX && used == starter + 1;
        if (starter != SIZE_MAX && (adjacent || last < m.ccc)) {
            uint32_t c = compose_pair(s->items[starter].c, m.c);
            if (c) {
                s->items[starter].c = c;
                continue;
            }
        }
        if (m.ccc == 0) {
            starter = used;
            last = 0;
        } else {
            last = m.ccc;
        }
        s->items[used++] = m;
    }
    s->n = used;
}

static bool flush_segment(qn_text *out, segment *s)
{
    if (!order_segment(s))
        return false;
    compose_segment(s);
    for (size_t i = 0; i < s->n; i++) {
        char bytes[4];
        if (!qn__text_append(out, bytes, qn__utf8_encode(s->items[i].c, bytes)))
            return false;
    }
    s->n = 0;
    return true;
}

bool qn__nfc_append(qn_text *out, const char *s, size_t n)
{
    segment work = {0};
    bool ok = qn__text_reserve(out, n);
    size_t at = 0;
    while (ok && at < n) {
        /* Bytes up to 0xcb begin characters below U+0300; the one before a higher character
         * belongs to the segment. */
        size_t end = at;
        while (end < n && (unsigned char)s[end] < 0xcc)
            end++;
        size_t keep = end < n && end > at ? qn__char_before(s, end) : end;
        ok = qn__text_append(out, s + at, keep - at);
        at = keep;
        while (ok && at < n && (at == keep || (unsigned char)s[at] >= 0xcc)) {
            uint32_t c = 0xfffd;
            size_t k = qn__utf8_decode(s + at, n - at, &c);
            ok = push_decomposed(&work, c);
            at += k ? k : 1;
        }
        ok = ok && flush_segment(out, &work);
    }
    free(work.items);
    return ok;
}
