/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing by best fit, longest first (TRL's "bfd"): each text goes into the row in which least is
 * left behind it, so that rows are full but for a few, and no text is cut. Rows are found by what
 * is left in them: a list of rows for each number of tokens, and a bit that says whether there are
 * any.
 */
#include "train/pack.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BITS = 64 };

typedef struct rows {
    uint32_t *head, *next; /* of lists: the newest row with so much left, + 1; the row behind it */
    uint64_t *some;        /* a bit for each head that is not 0 */
    uint32_t n;
} rows;

static void put_row(rows *r, uint32_t row, size_t left)
{
    r->next[row] = r->head[left];
    r->head[left] = row + 1;
    r->some[left / WORD_BITS] |= UINT64_C(1) << left % WORD_BITS;
}

/* A row with `least` left at least, and as little more as there is, leaves its list; a new one
 * where there is none. */
static uint32_t take_row(rows *r, size_t least, size_t room, size_t *left)
{
    size_t word = least / WORD_BITS, words = room / WORD_BITS + 1;
    uint64_t bits = r->some[word] & UINT64_MAX << least % WORD_BITS;
    while (!bits && ++word < words)
        bits = r->some[word];
    if (!bits) {
        *left = room;
        return r->n++;
    }
    *left = word * WORD_BITS + (size_t)__builtin_ctzll(bits);
    uint32_t row = r->head[*left] - 1;
    r->head[*left] = r->next[row];
    if (!r->head[*left])
        r->some[word] &= ~(UINT64_C(1) << *left % WORD_BITS);
    return row;
}

/* The texts, longest first, those of one length as they come; count[] is scratch, room + 2. */
static void sort_texts(const uint32_t *lengths, size_t n, size_t room, size_t *count,
                       uint32_t *sorted)
{
    for (size_t i = 0; i < n; i++)
        count[room - lengths[i] + 1]++;
    for (size_t k = 0; k <= room; k++)
        count[k + 1] += count[k];
    for (size_t i = 0; i < n; i++)
        sorted[count[room - lengths[i]]++] = (uint32_t)i;
}

/* Lists the members of each row, in their own order; row_of[] has the row of each text. */
static void list_members(qn__packs *p, const uint32_t *row_of, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p->first[row_of[i] + 1]++;
    for (size_t k = 0; k < p->n; k++)
        p->first[k + 1] += p->first[k];
    for (size_t i = n; i-- > 0;)
        p->member[--p->first[row_of[i] + 1]] = (uint32_t)i;
    memmove(p->first, p->first + 1, p->n * sizeof *p->first);
    p->first[p->n] = n;
}

static size_t fill_rows(rows *r, const uint32_t *lengths, const uint32_t *sorted, size_t n,
                        size_t room, uint32_t *row_of)
{
    for (size_t i = 0; i < n; i++) {
        size_t left, length = lengths[sorted[i]];
        uint32_t row = take_row(r, length, room, &left);
        row_of[sorted[i]] = row;
        put_row(r, row, left - length);
    }
    return r->n;
}

bool qn__packs_make(qn__packs *p, const uint32_t *lengths, size_t n, size_t room)
{
    qn__packs_free(p);
    p->member = malloc((n + 1) * sizeof *p->member);
    p->first = calloc(n + 2, sizeof *p->first);
    uint32_t *row_of = malloc((n + 1) * sizeof *row_of), *sorted = malloc((n + 1) * sizeof *sorted);
    size_t *count = calloc(room + 3, sizeof *count);
    rows r = {.head = calloc(room + 1, sizeof *r.head),
              .next = malloc((n + 1) * sizeof *r.next),
              .some = calloc(room / WORD_BITS + 1, sizeof *r.some)};
    bool ok = p->member && p->first && row_of && sorted && count && r.head && r.next && r.some;
    if (ok && room) {
        sort_texts(lengths, n, room, count, sorted);
        p->n = fill_rows(&r, lengths, sorted, n, room, row_of);
    }
    for (size_t i = 0; ok && !room && i < n; i++)
        row_of[p->n++] = (uint32_t)i;
    if (ok)
        list_members(p, row_of, n);
    else
        qn__packs_free(p);
    free(row_of);
    free(sorted);
    free(count);
    free(r.head);
    free(r.next);
    free(r.some);
    return ok;
}

void qn__packs_free(qn__packs *p)
{
    free(p->member);
    free(p->first);
    *p = (qn__packs){0};
}
