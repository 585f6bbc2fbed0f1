/* SPDX-License-Identifier: Apache-2.0
 *
 * Words to ids by merging; see bpe.h. A text repeats its words, so the ids of short ones are kept
 * in a direct-mapped cache. Vocabularies of the SentencePiece kind have no
 * pre-tokenizer and their "word" is the whole text: it is cut where no merge can ever join.
 */
#include "text/bpe.h"

#include "base/hash.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORT_WORD = 48,
    CACHED_BYTES = 24, /* longer words are not kept */
    CACHED_IDS = 9,
    CACHE_SLOTS = 1 << 14,
    CACHE_FROM = 1024, /* bytes of text: a shorter one hardly repeats itself */
    MARK = 0x2581      /* what SentencePiece writes for a space */
};

/* One word of the cache, one line of the processor's. */
typedef struct qn__cached_word {
    uint64_t key[3]; /* the bytes, then zeros */
    uint8_t size;    /* 0: free */
    bool no_special; /* how it was encoded */
    uint8_t n_ids;
    int32_t ids[CACHED_IDS];
} qn__cached_word;

void qn__bpe_work_free(qn__bpe_work *work)
{
    free(work->ids);
    free(work->next);
    free(work->previous);
    free(work->heap);
    free(work->cache);
    qn_text_free(&work->mapped);
    *work = (qn__bpe_work){0};
}

void qn__bpe_work_trim(qn__bpe_work *work)
{
    enum { KEPT = 4096 };
    if (work->capacity <= KEPT && work->links_capacity <= KEPT && work->heap_capacity <= KEPT)
        return;
    struct qn__cached_word *cache = work->cache;
    work->cache = NULL;
    qn__bpe_work_free(work);
    work->cache = cache;
}

bool qn__bpe_work_begin(qn__bpe_work *work, size_t n)
{
    if (!work->cache && n >= CACHE_FROM)
        work->cache = calloc(CACHE_SLOTS, sizeof *work->cache);
    return work->cache || n < CACHE_FROM;
}

/* The merge of a pair, or NULL. */
static const qn__merge *find_merge(const qn__bpe *bpe, int32_t a, int32_t b, bool no_special)
{
    if (bpe->n_merge_slots == 0)
        return NULL;
    const qn__merge *m = &bpe->merges[qn__bpe_merge_slot(bpe, (uint32_t)a, (uint32_t)b)];
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
        size_t capacity = work->heap_capacity + work->heap_capacity / 2 + 256;
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

static bool grow_table(int32_t **table, size_t n)
{
    int32_t *grown = realloc(*table, n * sizeof *grown);
    if (grown)
        *table = grown;
    return grown != NULL;
}

/* Whether a long word of n bytes, or of n symbols once it is spelled, may go on: a symbol takes two
 * links, its id in the result, and up to two places of a heap that grows by half. */
static bool within_limit(qn__bpe_work *work, size_t bytes, size_t symbols)
{
    size_t id = sizeof *work->ids, each = 3 * id + 3 * sizeof *work->heap;
    work->over = bytes > INT32_MAX || bytes * id + symbols * each > work->limit;
    return !work->over;
}

static bool grow_ids_for(qn__bpe_work *work, size_t bytes)
{
    if (!within_limit(work, bytes, 0))
        return false;
    if (bytes > work->capacity && !grow_table(&work->ids, bytes))
        return false;
    work->capacity = bytes > work->capacity ? bytes : work->capacity;
    return true;
}

static bool grow_links(qn__bpe_work *work, size_t symbols)
{
    if (symbols <= work->links_capacity)
        return true;
    if (!grow_table(&work->next, symbols) || !grow_table(&work->previous, symbols))
        return false;
    work->links_capacity = symbols;
    return true;
}

/* ---- words to symbols ----------------------------------------------------------------------- */

/* The id of the whole word, or -1. */
static int32_t find_word(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                         bool *failed)
{
    if (!bpe->byte_level)
        return qn__vocab_find(&bpe->vocab, word, n);
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

/* The word's bytes as ids into `ids` (room for n); what has no id becomes unk, or nothing. */
static size_t spell_bytes(const qn__bpe *bpe, const char *word, size_t n, int32_t *ids)
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

/* The bytes of one character as their own tokens, or 0 where one of them has none. */
static size_t spell_fallback(const qn__bpe *bpe, const char *s, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++) {
        ids[i] = bpe->fallback_ids[(uint8_t)s[i]];
        if (ids[i] < 0)
            return 0;
    }
    return n;
}

/* The word's characters as ids. An unknown one waits for the next known one before it's written,
 * behind the bytes of those between: the order of the library that writes these files. */
static size_t spell_chars(const qn__bpe *bpe, const char *word, size_t n, bool no_special,
                          int32_t *ids)
{
    size_t used = 0, k;
    bool unk = false;
    unsigned barred = QN__TOKEN_OUTSIDE | (no_special ? QN__TOKEN_SPECIAL : 0u);
    for (size_t at = 0; at < n; at += k) {
        uint32_t c;
        k = qn__utf8_decode(word + at, n - at, &c);
        k = k ? k : 1;
        int32_t id = qn__vocab_find(&bpe->vocab, word + at, k);
        if (id >= 0 && !(bpe->vocab.flags[id] & barred)) {
            if (unk)
                ids[used++] = bpe->unk_id;
            unk = false;
            ids[used++] = id;
            continue;
        }
        size_t bytes = bpe->byte_fallback ? spell_fallback(bpe, word + at, k, ids + used) : 0;
        used += bytes;
        if (bytes > 0 || bpe->unk_id < 0)
            continue;
        if (unk && !bpe->fuse_unk)
            ids[used++] = bpe->unk_id;
        unk = true;
    }
    if (unk)
        ids[used++] = bpe->unk_id;
    return used;
}

static size_t spell_word(const qn__bpe *bpe, const char *word, size_t n, bool no_special,
                         int32_t *ids)
{
    return bpe->byte_level ? spell_bytes(bpe, word, n, ids)
                           : spell_chars(bpe, word, n, no_special, ids);
}

/* ---- encoding ------------------------------------------------------------------------------- */

static bool encode_new_word(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                            bool no_special, qn_tokens *out)
{
    if (n <= SHORT_WORD) {
        if (!qn__tokens_reserve(out, n))
            return false;
        int32_t *ids = out->ids + out->n;
        size_t count = spell_word(bpe, word, n, no_special, ids);
        out->n += merge_short(bpe, ids, count, no_special);
        return true;
    }
    if (!grow_ids_for(work, n))
        return false;
    size_t count = spell_word(bpe, word, n, no_special, work->ids);
    if (!within_limit(work, n, count) || !grow_links(work, count) ||
        !merge_long(bpe, work, &count, no_special) || !qn__tokens_reserve(out, count))
        return false;
    if (count > 0)
        memcpy(out->ids + out->n, work->ids, count * sizeof *work->ids);
    out->n += count;
    return true;
}

/* A word that is in the vocabulary is taken whole, if the model says so. */
static int32_t whole_word(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                          bool no_special, bool *failed)
{
    if (!bpe->ignore_merges)
        return -1;
    int32_t id = find_word(bpe, work, word, n, failed);
    unsigned barred = QN__TOKEN_OUTSIDE | (no_special ? QN__TOKEN_SPECIAL : 0u);
    return id >= 0 && !(bpe->vocab.flags[id] & barred) ? id : -1;
}

/* The bytes of a word of at most CACHED_BYTES, then zeros. */
static void load_key(uint64_t key[3], const char *word, size_t n)
{
    key[0] = key[1] = key[2] = 0;
    size_t i = 0;
    for (; n >= 8; n -= 8, word += 8)
        memcpy(&key[i++], word, 8);
    if (n >= 4) {
        uint32_t low, high;
        memcpy(&low, word, 4);
        memcpy(&high, word + n - 4, 4);
        key[i] = low | (uint64_t)high << (8 * (n - 4));
    } else if (n > 0) {
        key[i] = (unsigned char)word[0] | (uint64_t)(unsigned char)word[n / 2] << (8 * (n / 2)) |
                 (uint64_t)(unsigned char)word[n - 1] << (8 * (n - 1));
    }
}

/* One word, or a stretch of one (whole: not a part). */
static bool encode_stretch(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                           bool no_special, bool whole, qn_tokens *out)
{
    uint64_t key[3];
    qn__cached_word *entry = NULL;
    if (work->cache && n <= CACHED_BYTES && whole) {
        load_key(key, word, n);
        uint64_t h = qn__hash_mix(key[0] ^ bpe->vocab.seed, key[1] ^ 0x8bb84b93962eacc9u);
        h = qn__hash_mix(h ^ key[2], (n << 1 | no_special) ^ 0x2d358dccaa6c78a5u);
        entry = &work->cache[h & (CACHE_SLOTS - 1)];
        if (entry->size == n && entry->no_special == no_special && entry->key[0] == key[0] &&
            entry->key[1] == key[1] && entry->key[2] == key[2]) {
            if (!qn__tokens_reserve(out, CACHED_IDS))
                return false;
            memcpy(out->ids + out->n, entry->ids, sizeof entry->ids);
            out->n += entry->n_ids;
            return true;
        }
    }
    size_t before = out->n;
    bool failed = false;
    int32_t id = whole ? whole_word(bpe, work, word, n, no_special, &failed) : -1;
    if (failed || (id >= 0 ? !qn__tokens_push(out, id)
                           : !encode_new_word(bpe, work, word, n, no_special, out)))
        return false;
    size_t n_ids = out->n - before;
    if (entry && n_ids <= CACHED_IDS) {
        memcpy(entry->key, key, sizeof key);
        entry->size = (uint8_t)n;
        entry->no_special = no_special;
        entry->n_ids = (uint8_t)n_ids;
        if (n_ids > 0)
            memcpy(entry->ids, out->ids + before, n_ids * sizeof *entry->ids);
    }
    return true;
}

/* Where the stretch that begins at word[at] ends: before the first character that no merge joins
 * with the one before it. */
static size_t stretch_end(const qn__bpe *bpe, const char *word, size_t n, size_t at)
{
    uint32_t last = 0, c = 0;
    size_t k = qn__utf8_decode(word + at, n - at, &last);
    for (at += k ? k : 1; at < n; at += k ? k : 1) {
        k = qn__utf8_decode(word + at, n - at, &c);
        if ((bpe->cuts == QN__CUT_ANYWHERE || c == MARK) && !qn__bpe_joins(bpe, last, c))
            return at;
        last = c;
    }
    return n;
}

bool qn__bpe_encode(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                    bool no_special, qn_tokens *out)
{
    if (bpe->cuts == QN__CUT_NOWHERE)
        return encode_stretch(bpe, work, word, n, no_special, true, out);
    bool failed = false;
    int32_t id = whole_word(bpe, work, word, n, no_special, &failed);
    if (failed || id >= 0)
        return !failed && qn__tokens_push(out, id);
    for (size_t at = 0, end; at < n; at = end) {
        end = stretch_end(bpe, word, n, at);
        /* With ignore_merges a part is not a word: its ids are not those of the cache. */
        if (!encode_stretch(bpe, work, word + at, end - at, no_special, !bpe->ignore_merges, out))
            return false;
    }
    return true;
}
