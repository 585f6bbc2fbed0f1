/* SPDX-License-Identifier: Apache-2.0
 *
 * Added tokens; see added.h. The set is a sorted array: the candidates at a place are narrowed
 * byte by byte, starting from a table by first byte, so that text without any of those bytes is
 * passed over at one look-up per byte. Special tokens that are not to be parsed are matched and
 * then left as text, so that no part of them becomes a token either.
 */
#include "text/added.h"

#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

bool qn__added_add(qn__added_set *set, const char *text, size_t n, int32_t id, unsigned flags)
{
    if (set->n == set->capacity) {
        size_t capacity = set->capacity ? set->capacity * 2 : 64;
        qn__added_token *grown = realloc(set->tokens, capacity * sizeof *grown);
        if (!grown)
            return false;
        set->tokens = grown;
        set->capacity = capacity;
    }
    char *copy = malloc(n + 1);
    if (!copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    set->tokens[set->n++] = (qn__added_token){copy, n, id, flags};
    return true;
}

static int compare_tokens(const void *a, const void *b)
{
    const qn__added_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    if (order)
        return order;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

void qn__added_finish(qn__added_set *set)
{
    if (set->n > 0)
        qsort(set->tokens, set->n, sizeof *set->tokens, compare_tokens);
    size_t kept = 0;
    for (size_t i = 0; i < set->n; i++) {
        const qn__added_token *t = &set->tokens[i];
        const qn__added_token *last = kept > 0 ? &set->tokens[kept - 1] : NULL;
        if (last && last->n == t->n && memcmp(last->text, t->text, t->n) == 0)
            free(t->text);
        else
            set->tokens[kept++] = *t;
    }
    set->n = kept;
    size_t i = 0;
    for (int b = 0; b <= 256; b++) {
        while (i < set->n && (unsigned char)set->tokens[i].text[0] < b)
            i++;
        set->first[b] = i;
    }
}

void qn__added_clear(qn__added_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        free(set->tokens[i].text);
    free(set->tokens);
    *set = (qn__added_set){0};
}

/* The first token of [low, high) whose byte `depth` is at least `byte`; all have that byte. */
static size_t lower_bound(const qn__added_set *set, size_t low, size_t high, size_t depth,
                          unsigned byte)
{
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((unsigned char)set->tokens[middle].text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that begins at s[at], or NULL. */
static const qn__added_token *longest_at(const qn__added_set *set, const char *s, size_t n,
                                         size_t at)
{
    unsigned char byte = (unsigned char)s[at];
    size_t low = set->first[byte], high = set->first[byte + 1];
    const qn__added_token *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (set->tokens[low].n == depth)
            best = &set->tokens[low++];
        if (at + depth == n || low == high)
            break;
        byte = (unsigned char)s[at + depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1u);
    }
    return best;
}

size_t qn__added_longest(const qn__added_set *set, const char *s, size_t n)
{
    const qn__added_token *t = longest_at(set, s, n, 0);
    return t ? t->n : 0;
}

static bool word_before(const char *s, size_t n, size_t at)
{
    size_t k;
    return at > 0 && (qn__class_at(s, n, qn__char_before(s, at), &k) & QN__WORD);
}

static bool word_behind(const char *s, size_t n, size_t at)
{
    size_t k;
    return at < n && (qn__class_at(s, n, at, &k) & QN__WORD);
}

/* The first span of data that ends behind `at`; data->n: none. */
static size_t span_behind(const qn__added_data *data, size_t at)
{
    size_t low = 0, high = data->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (data->spans[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_control_token(const qn__added_data *data, const qn__added_token *t)
{
    return (t->flags & QN__ADDED_SPECIAL) || (data->control && data->control[t->id]);
}

/* A control token that begins at `at` and touches data is none: instead counts the longest token
 * before the data; without one NULL, and in *next where to look on. */
static const qn__added_token *outside_data(const qn__added_walk *walk, const qn__added_token *t,
                                           size_t at, size_t *next)
{
    const qn__added_data *data = walk->data;
    size_t place = walk->data_at + at, i = span_behind(data, place);
    if (i == data->n || data->spans[i].begin >= place + t->n || !is_control_token(data, t))
        return t;
    if (data->spans[i].begin > place) {
        *next = at + 1;
        return longest_at(walk->set, walk->s, data->spans[i].begin - walk->data_at, at);
    }
    size_t end = data->spans[i].end - walk->data_at;
    *next = at + t->n < end ? at + t->n : end;
    return NULL;
}

bool qn__added_next(qn__added_walk *walk, size_t *gap, size_t *gap_end, int32_t *id)
{
    const qn__added_set *set = walk->set;
    const char *s = walk->s;
    size_t n = walk->n, k;
    *gap = walk->done;
    while (set->n > 0 && walk->at < n) {
        unsigned char byte = (unsigned char)s[walk->at];
        const qn__added_token *t = NULL;
        if (set->first[byte] < set->first[byte + 1])
            t = longest_at(set, s, n, walk->at);
        size_t next = walk->at + 1;
        if (t && walk->data)
            t = outside_data(walk, t, walk->at, &next);
        if (!t) {
            walk->at = next;
            continue;
        }
        size_t start = walk->at, end = start + t->n;
        walk->at = end;
        if ((t->flags & QN__ADDED_SPECIAL) && !walk->parse_special)
            continue;
        if ((t->flags & QN__ADDED_WORD) && (word_before(s, n, start) || word_behind(s, n, end)))
            continue;
        if (t->flags & QN__ADDED_LSTRIP)
            while (start > walk->done) {
                size_t before = qn__char_before(s, start);
                if (!(qn__class_at(s, n, before, &k) & QN__SPACE))
                    break;
                start = before;
            }
        if (t->flags & QN__ADDED_RSTRIP)
            while (end < n && (qn__class_at(s, n, end, &k) & QN__SPACE))
                end += k;
        *gap_end = start > walk->done ? start : walk->done;
        *id = t->id;
        walk->done = end;
        return true;
    }
    *gap_end = n;
    if (walk->done > n || *gap > n)
        *gap = n;
    walk->done = n;
    return false;
}
