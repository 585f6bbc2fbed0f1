/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a BPE model and merging words; see bpe.h.
 */
#include "text/bpe.h"

#include "base/hash.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_WORD = 48 };

/* ---- bytes as characters -------------------------------------------------------------------- */

/* Byte-level vocabularies show printable Latin-1 as itself and the other 68 bytes, in order, as
 * U+0100 and on. */
static bool shows_as_itself(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

uint32_t qn__byte_to_char(uint8_t byte)
{
    if (shows_as_itself(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xad ? 0x143 : 0x100u + 0x21 + (byte - 0x7fu);
}

int qn__char_to_byte(uint32_t c)
{
    if (shows_as_itself(c))
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}

/* ---- reading -------------------------------------------------------------------------------- */

bool qn__bpe_read_vocab(qn__bpe *bpe, qn__json_scan *scan)
{
    qn__json_text key;
    if (!qn__json_enter_object(scan))
        return false;
    while (qn__json_next_key(scan, &key)) {
        int64_t id;
        /* The key may lie in the scanner's buffer; an integer leaves it alone. */
        if (!qn__json_read_int(scan, 0, QN__MAX_TOKEN_ID - 1, &id))
            return false;
        switch (qn__vocab_add(&bpe->vocab, key.data, key.size, (int32_t)id)) {
        case QN__VOCAB_OK: break;
        case QN__VOCAB_SAME_PIECE:
            return qn__json_scan_fail(scan, QN_FORMAT, "the piece stands twice");
        case QN__VOCAB_SAME_ID:
            return qn__json_scan_fail(scan, QN_FORMAT, "id %lld stands twice", (long long)id);
        case QN__VOCAB_MEMORY:
            scan->status = qn__fail_memory(scan->err, "a vocabulary");
            return false;
        }
    }
    bpe->vocab.n_pieces = (int32_t)bpe->vocab.n_used;
    return scan->status == QN_OK;
}

static size_t merge_slot(const qn__bpe *bpe, uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) ^ bpe->vocab.seed;
    h = qn__hash_mix(h, 0x9e3779b97f4a7c15u);
    size_t i = (size_t)h & (bpe->n_merge_slots - 1);
    while (bpe->merges[i].a != UINT32_MAX && (bpe->merges[i].a != a || bpe->merges[i].b != b))
        i = (i + 1) & (bpe->n_merge_slots - 1);
    return i;
}

static bool grow_merges(qn__bpe *bpe)
{
    size_t n = bpe->n_merge_slots, wanted = !n ? 1024 : n < (1 << 17) ? n * 4 : n * 2;
    qn__merge *old = bpe->merges, *table = malloc(wanted * sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < wanted; i++)
        table[i].a = UINT32_MAX;
    bpe->merges = table;
    bpe->n_merge_slots = wanted;
    for (size_t i = 0; i < n; i++)
        if (old[i].a != UINT32_MAX)
            table[merge_slot(bpe, old[i].a, old[i].b)] = old[i];
    free(old);
    return true;
}

static bool fail_merge(qn__json_scan *scan, const char *piece, size_t n)
{
    char quoted[80];
    return qn__json_scan_fail(scan, QN_FORMAT, "\"%s\" is not in the vocabulary",
                              qn__utf8_quote(quoted, sizeof quoted, piece, n));
}

/* The id of what a merge gives. Merges mostly stand in the order of their results, so the last
 * result and its neighbour are tried before the hash table. */
static int32_t find_result(const qn__vocab *vocab, const char *piece, size_t n, int32_t last)
{
    for (int32_t id = last; id >= 0 && id <= last + 1 && id < vocab->n_ids; id++)
        if (vocab->sizes[id] == n && vocab->offsets[id] != UINT32_MAX &&
            memcmp(vocab->blob.data + vocab->offsets[id], piece, n) == 0)
            return id;
    return qn__vocab_find(vocab, piece, n);
}

/* One merge: `joined` is both halves' text, the left one `left` bytes long. */
static bool add_merge(qn__bpe *bpe, qn__json_scan *scan, const char *joined, size_t left, size_t n,
                      uint32_t rank, int32_t *last)
{
    int32_t a = qn__vocab_find(&bpe->vocab, joined, left);
    if (a < 0)
        return fail_merge(scan, joined, left);
    int32_t b = qn__vocab_find(&bpe->vocab, joined + left, n - left);
    if (b < 0)
        return fail_merge(scan, joined + left, n - left);
    int32_t id = find_result(&bpe->vocab, joined, n, *last);
    if (id < 0)
        return fail_merge(scan, joined, n);
    *last = id;
    if (3 * (bpe->n_merges + 1) > 2 * bpe->n_merge_slots && !grow_merges(bpe)) {
        scan->status = qn__fail_memory(scan->err, "a table of merges");
        return false;
    }
    /* Of equal pairs the last counts, as in the library that writes these files. */
    qn__merge *merge = &bpe->merges[merge_slot(bpe, (uint32_t)a, (uint32_t)b)];
    bpe->n_merges += merge->a == UINT32_MAX;
    *merge = (qn__merge){(uint32_t)a, (uint32_t)b, rank, id};
    return true;
}

/* "a b" or ["a", "b"], as joined text and the length of its left half. */
static bool read_merge(qn__json_scan *scan, qn_text *joined, size_t *left)
{
    qn__json_text text;
    bool ok = true;
    joined->n = 0;
    if (qn__json_peek(scan) == QN__JSON_STRING) {
        if (!qn__json_read_string(scan, &text))
            return false;
        const char *space = memchr(text.data, ' ', text.size);
        *left = space ? (size_t)(space - text.data) : 0;
        size_t right = space ? text.size - *left - 1 : 0;
        if (*left == 0 || right == 0 || memchr(space + 1, ' ', right))
            return qn__json_scan_fail(scan, QN_FORMAT,
                                      "expected two pieces with one space between them");
        ok = qn__text_append(joined, text.data, *left) && qn__text_append(joined, space + 1, right);
    } else {
        if (!qn__json_enter_array(scan))
            return false;
        int n = 0;
        for (; ok && qn__json_next_item(scan); n++) {
            if (n == 2 || !qn__json_read_string(scan, &text))
                return qn__json_scan_fail(scan, QN_FORMAT, "expected two pieces, got more");
            ok = qn__text_append(joined, text.data, text.size);
            if (n == 0)
                *left = joined->n;
        }
        if (ok && scan->status == QN_OK && (n != 2 || *left == 0 || *left == joined->n))
            return qn__json_scan_fail(scan, QN_FORMAT, "expected two pieces");
    }
    if (!ok)
        scan->status = qn__fail_memory(scan->err, "a merge");
    return scan->status == QN_OK;
}

bool qn__bpe_read_merges(qn__bpe *bpe, qn__json_scan *scan)
{
    qn_text joined = {0};
    uint32_t rank = 0;
    int32_t last = -1;
    bool ok = qn__json_enter_array(scan);
    while (ok && qn__json_next_item(scan)) {
        size_t left = 0;
        ok = read_merge(scan, &joined, &left) &&
             add_merge(bpe, scan, joined.data, left, joined.n, rank++, &last);
    }
    qn_text_free(&joined);
    return scan->status == QN_OK;
}

void qn__bpe_finish(qn__bpe *bpe)
{
    for (int i = 0; i < 256; i++) {
        char bytes[4];
        size_t n = qn__utf8_encode(qn__byte_to_char((uint8_t)i), bytes);
        bpe->byte_ids[i] = qn__vocab_find(&bpe->vocab, bytes, n);
    }
}

void qn__bpe_clear(qn__bpe *bpe)
{
    qn__vocab_clear(&bpe->vocab);
    free(bpe->merges);
    *bpe = (qn__bpe){0};
}

void qn__bpe_work_free(qn__bpe_work *work)
{
    free(work->ids);
    free(work->next);
    free(work->previous);
    free(work->heap);
    qn_text_free(&work->mapped);
    *work = (qn__bpe_work){0};
}

/* ---- merging -------------------------------------------------------------------------------- */

/* The merge of a pair, or NULL. */
static const qn__merge *find_merge(const qn__bpe *bpe, int32_t a, int32_t b, bool no_special)
{
    if (bpe->n_merge_slots == 0)
        return NULL;
    const qn__merge *m = &bpe->merges[merge_slot(bpe, (uint32_t)a, (uint32_t)b)];
    if (m->a == UINT32_MAX)
        return NULL;
    if (no_special && (bpe->vocab.flags[m->id] & QN__TOKEN_SPECIAL))
        return NULL;
    return m;
}

/* Merges ids[0..n), n <= SHORT_WORD, in place by repeated scans; returns the new n. */
static size_t merge_short(const qn__bpe *bpe, int32_t *ids, size_t n, bool no_special)
{
    const qn__merge *found[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++)
        found[i] = find_merge(bpe, ids[i], ids[i + 1], no_special);
    for (;;) {
        size_t best = SIZE_MAX;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            if (found[i] && found[i]->rank < rank) {
                rank = found[i]->rank;
                best = i;
            }
        if (best == SIZE_MAX)
            return n;
        ids[best] = found[best]->id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(found + best, found + best + 1, (n - best - 1) * sizeof *found);
        if (best > 0)
            found[best - 1] = find_merge(bpe, ids[best - 1], ids[best], no_special);
        if (best + 1 < n)
            found[best] = find_merge(bpe, ids[best], ids[best + 1], no_special);
    }
}

static bool heap_push(qn__bpe_work *work, size_t *n, uint64_t key)
{
    if (*n == work->heap_capacity) {
        size_t capacity = work->heap_capacity ? work->heap_capacity * 2 : 256;
        uint64_t *grown = realloc(work->heap, capacity * sizeof *grown);
        if (!grown)
            return false;
        work->heap = grown;
        work->heap_capacity = capacity;
    }
    size_t i = (*n)++;
    for (; i > 0 && work->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        work->heap[i] = work->heap[(i - 1) / 2];
    work->heap[i] = key;
    return true;
}

static uint64_t heap_pop(qn__bpe_work *work, size_t *n)
{
    uint64_t *heap = work->heap, top = heap[0], key = heap[--*n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < *n) {
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= key)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
    return top;
}

/* As merge_short, for n symbols in work->ids. The heap holds (rank, position); an entry whose pair
 * has changed since is skipped, and ranks tell: a pair has one. *n becomes the new count. */
static bool merge_long(const qn__bpe *bpe, qn__bpe_work *work, size_t *n, bool no_special)
{
    int32_t *ids = work->ids, *next = work->next, *previous = work->previous;
    size_t heap_n = 0, end = *n;
    for (size_t i = 0; i < end; i++) {
        previous[i] = (int32_t)i - 1;
        next[i] = i + 1 < end ? (int32_t)i + 1 : -1;
        const qn__merge *m = i + 1 < end ? find_merge(bpe, ids[i], ids[i + 1], no_special) : NULL;
        if (m && !heap_push(work, &heap_n, (uint64_t)m->rank << 32 | i))
            return false;
    }
    while (heap_n > 0) {
        uint64_t key = heap_pop(work, &heap_n);
        int32_t at = (int32_t)(uint32_t)key, right = next[at];
        if (ids[at] < 0 || right < 0)
            continue;
        const qn__merge *m = find_merge(bpe, ids[at], ids[right], no_special);
        if (!m || m->rank != (uint32_t)(key >> 32))
            continue;
        ids[at] = m->id;
        ids[right] = -1;
        next[at] = next[right];
        if (next[at] >= 0) {
            previous[next[at]] = at;
            m = find_merge(bpe, ids[at], ids[next[at]], no_special);
            if (m && !heap_push(work, &heap_n, (uint64_t)m->rank << 32 | (uint32_t)at))
                return false;
        }
        if (previous[at] >= 0) {
            m = find_merge(bpe, ids[previous[at]], ids[at], no_special);
            if (m && !heap_push(work, &heap_n, (uint64_t)m->rank << 32 | (uint32_t)previous[at]))
                return false;
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < end; i++)
        if (ids[i] >= 0)
            ids[kept++] = ids[i];
    *n = kept;
    return true;
}

static bool grow_work(qn__bpe_work *work, size_t n)
{
    if (n <= work->capacity)
        return true;
    if (n > INT32_MAX)
        return false;
    size_t capacity = n < SIZE_MAX / 32 ? n + n / 2 : n;
    int32_t **tables[] = {&work->ids, &work->next, &work->previous};
    for (int i = 0; i < 3; i++) {
        int32_t *grown = realloc(*tables[i], capacity * sizeof *grown);
        if (!grown)
            return false;
        *tables[i] = grown;
    }
    work->capacity = capacity;
    return true;
}

/* The id of the whole word, or -1. */
static int32_t find_word(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                         bool *failed)
{
    work->mapped.n = 0;
    if (!qn__text_reserve(&work->mapped, 2 * n)) {
        *failed = true;
        return -1;
    }
    char *to = work->mapped.data;
    for (size_t i = 0; i < n; i++)
        to += qn__utf8_encode(qn__byte_to_char((uint8_t)word[i]), to);
    return qn__vocab_find(&bpe->vocab, work->mapped.data, (size_t)(to - work->mapped.data));
}

/* The word's characters as ids into `ids` (room for n); what has no id becomes unk, or nothing. */
static size_t spell_word(const qn__bpe *bpe, const char *word, size_t n, int32_t *ids)
{
    size_t used = 0;
    bool after_unk = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = bpe->byte_ids[(uint8_t)word[i]];
        bool is_unk = id < 0;
        if (is_unk && (bpe->unk_id < 0 || (after_unk && bpe->fuse_unk)))
            continue;
        ids[used++] = is_unk ? bpe->unk_id : id;
        after_unk = is_unk;
    }
    return used;
}

bool qn__bpe_encode(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                    bool no_special, qn_tokens *out)
{
    if (n == 1 && bpe->byte_ids[(uint8_t)word[0]] >= 0)
        return qn__tokens_push(out, bpe->byte_ids[(uint8_t)word[0]]);
    if (bpe->ignore_merges) {
        bool failed = false;
        int32_t id = find_word(bpe, work, word, n, &failed);
        if (failed)
            return false;
        unsigned barred = QN__TOKEN_OUTSIDE | (no_special ? QN__TOKEN_SPECIAL : 0u);
        if (id >= 0 && !(bpe->vocab.flags[id] & barred))
            return qn__tokens_push(out, id);
    }
    if (n <= SHORT_WORD) {
        if (!qn__tokens_reserve(out, n))
            return false;
        int32_t *ids = out->ids + out->n;
        out->n += merge_short(bpe, ids, spell_word(bpe, word, n, ids), no_special);
        return true;
    }
    if (!grow_work(work, n))
        return false;
    size_t count = spell_word(bpe, word, n, work->ids);
    if (!merge_long(bpe, work, &count, no_special) || !qn__tokens_reserve(out, count))
        return false;
    if (count > 0)
        memcpy(out->ids + out->n, work->ids, count * sizeof *work->ids);
    out->n += count;
    return true;
}
