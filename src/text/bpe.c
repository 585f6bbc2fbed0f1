/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a BPE model; see bpe.h. Words are merged in merge.c.
 */
#include "text/bpe.h"

#include "base/hash.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
            table[qn__bpe_merge_slot(bpe, old[i].a, old[i].b)] = old[i];
    free(old);
    return true;
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

/* Of equal pairs the last counts, as in the library that writes these files. */
qn__merge_added qn__bpe_insert_merge(qn__bpe *bpe, int32_t a, int32_t b, uint32_t rank, int32_t id)
{
    if (3 * (bpe->n_merges + 1) > 2 * bpe->n_merge_slots && !grow_merges(bpe))
        return QN__MERGE_MEMORY;
    qn__merge *merge = &bpe->merges[qn__bpe_merge_slot(bpe, (uint32_t)a, (uint32_t)b)];
    bpe->n_merges += merge->a == UINT32_MAX;
    *merge = (qn__merge){(uint32_t)a, (uint32_t)b, rank, id};
    return QN__MERGE_OK;
}

qn__merge_added qn__bpe_add_merge(qn__bpe *bpe, const char *joined, size_t left, size_t n,
                                  uint32_t rank, int32_t id)
{
    int32_t a = qn__vocab_find(&bpe->vocab, joined, left),
            b = a < 0 ? -1 : qn__vocab_find(&bpe->vocab, joined + left, n - left);
    return b < 0 ? QN__MERGE_ABSENT : qn__bpe_insert_merge(bpe, a, b, rank, id);
}

/* "a b" or ["a", "b"], joined behind the text that is there, and the length of its left half. */
static bool read_merge(qn__json_scan *scan, qn_text *joined, size_t *left)
{
    qn__json_text text;
    size_t begin = joined->n;
    bool ok = true;
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
                *left = joined->n - begin;
        }
        if (ok && scan->status == QN_OK && (n != 2 || *left == 0 || *left == joined->n - begin))
            return qn__json_scan_fail(scan, QN_FORMAT, "expected two pieces");
    }
    if (!ok)
        scan->status = qn__fail_memory(scan->err, "a merge");
    return scan->status == QN_OK;
}

/* ---- merges in batches: the look-ups miss the cache, so those of a batch go on side by side
 * ------ */

enum { BATCH = 32 };

typedef struct pending_merge {
    size_t begin, left, n; /* its text, in the batch's */
    uint32_t tags[2];      /* of the halves */
    int32_t ids[2];        /* theirs */
    const char *at;        /* where the scanner stood behind it, for messages */
    size_t count;          /* and the number of its item */
} pending_merge;

typedef struct merge_batch {
    pending_merge items[BATCH];
    size_t n;
    qn_text text;
    uint32_t rank; /* of the first */
    int32_t last;  /* result */
    int depth;     /* of the scanner in the array */
} merge_batch;

/* The scanner may have gone on since. */
static bool fail_pending(qn__json_scan *scan, const merge_batch *batch, const pending_merge *m,
                         const char *piece, size_t n)
{
    char quoted[80];
    scan->at = m->at;
    scan->depth = batch->depth;
    scan->levels[scan->depth - 1].count = m->count;
    return qn__json_scan_fail(scan, QN_FORMAT, "\"%s\" is not in the vocabulary",
                              qn__utf8_quote(quoted, sizeof quoted, piece, n));
}

static bool find_halves(const qn__bpe *bpe, merge_batch *batch, qn__json_scan *scan, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (int half = 0; half < 2; half++)
            qn__vocab_seek_piece(&bpe->vocab, batch->items[i].tags[half]);
    for (size_t i = 0; i < n; i++) {
        pending_merge *m = &batch->items[i];
        const char *s = batch->text.data + m->begin;
        for (int half = 0; half < 2; half++) {
            const char *piece = half ? s + m->left : s;
            size_t size = half ? m->n - m->left : m->left;
            m->ids[half] = qn__vocab_find_tag(&bpe->vocab, m->tags[half], piece, size);
            if (m->ids[half] < 0)
                return fail_pending(scan, batch, m, piece, size);
        }
        if (bpe->n_merge_slots)
            __builtin_prefetch(
                &bpe->merges[qn__bpe_merge_home(bpe, (uint32_t)m->ids[0], (uint32_t)m->ids[1])], 1);
    }
    return true;
}

static bool add_batch(qn__bpe *bpe, merge_batch *batch, qn__json_scan *scan)
{
    bool ok = find_halves(bpe, batch, scan, batch->n);
    for (size_t i = 0; ok && i < batch->n; i++) {
        const pending_merge *m = &batch->items[i];
        const char *s = batch->text.data + m->begin;
        int32_t id = find_result(&bpe->vocab, s, m->n, batch->last);
        if (id < 0)
            return fail_pending(scan, batch, m, s, m->n);
        if (qn__bpe_insert_merge(bpe, m->ids[0], m->ids[1], batch->rank++, id) != QN__MERGE_OK) {
            scan->status = qn__fail_memory(scan->err, "a table of merges");
            return false;
        }
        batch->last = id;
    }
    batch->n = batch->text.n = 0;
    return ok;
}

static bool add_pending(qn__bpe *bpe, merge_batch *batch, qn__json_scan *scan, size_t begin,
                        size_t left)
{
    size_t n = batch->text.n - begin;
    const char *s = batch->text.data + begin;
    batch->items[batch->n++] =
        (pending_merge){.begin = begin,
                        .left = left,
                        .n = n,
                        .tags = {qn__vocab_seek(&bpe->vocab, s, left),
                                 qn__vocab_seek(&bpe->vocab, s + left, n - left)},
                        .at = scan->at,
                        .count = scan->levels[scan->depth - 1].count};
    return batch->n < BATCH || add_batch(bpe, batch, scan);
}

bool qn__bpe_read_merges(qn__bpe *bpe, qn__json_scan *scan)
{
    merge_batch batch = {.last = -1};
    bool ok = qn__json_enter_array(scan);
    batch.depth = scan->depth;
    while (ok && qn__json_next_item(scan)) {
        size_t left = 0, begin = batch.text.n;
        ok = read_merge(scan, &batch.text, &left) && add_pending(bpe, &batch, scan, begin, left);
    }
    if (ok && scan->status == QN_OK)
        add_batch(bpe, &batch, scan);
    qn_text_free(&batch.text);
    return scan->status == QN_OK;
}

/* The first character of a piece, and its last. */
static uint32_t first_char(const qn__vocab *vocab, int32_t id)
{
    uint32_t c = 0;
    qn__utf8_decode(vocab->blob.data + vocab->offsets[id], vocab->sizes[id], &c);
    return c;
}

static uint32_t last_char(const qn__vocab *vocab, int32_t id)
{
    uint32_t c = 0;
    const char *piece = vocab->blob.data + vocab->offsets[id];
    size_t n = vocab->sizes[id], at = n;
    while (at > 0 && ((unsigned char)piece[--at] & 0xc0) == 0x80)
        ;
    qn__utf8_decode(piece + at, n - at, &c);
    return c;
}

/* A boundary between two characters is only ever crossed by a merge of a pair that meets there. So
 * where no merge has such a pair the word can be cut, unless a symbol is not its characters (bytes,
 * unk) and takes part in merges, or unknown characters on both sides would become one unk. */
static bool find_cuts(qn__bpe *bpe, bool complete)
{
    bpe->cuts = QN__CUT_NOWHERE;
    if (bpe->byte_level || (!complete && (bpe->byte_fallback || bpe->unk_id < 0)))
        return true;
    bpe->joins = calloc((QN__JOIN_EXACT + (1u << QN__JOIN_BITS)) / 64 + 1, sizeof *bpe->joins);
    if (!bpe->joins)
        return false;
    for (size_t i = 0; i < bpe->n_merge_slots; i++) {
        const qn__merge *m = &bpe->merges[i];
        if (m->a == UINT32_MAX)
            continue;
        if ((bpe->vocab.flags[m->a] | bpe->vocab.flags[m->b]) & QN__TOKEN_STANDS_FOR)
            return true;
        uint32_t bit = qn__bpe_join_bit(last_char(&bpe->vocab, (int32_t)m->a),
                                        first_char(&bpe->vocab, (int32_t)m->b));
        bpe->joins[bit / 64] |= (uint64_t)1 << (bit % 64);
    }
    if (complete)
        bpe->cuts = QN__CUT_ANYWHERE;
    else if (qn__vocab_find(&bpe->vocab, "\xe2\x96\x81", 3) >= 0)
        bpe->cuts = QN__CUT_AT_MARKS;
    return true;
}

bool qn__bpe_finish(qn__bpe *bpe)
{
    bool complete = bpe->byte_fallback;
    for (int i = 0; i < 256; i++) {
        char bytes[8];
        size_t n = qn__utf8_encode(qn__byte_to_char((uint8_t)i), bytes);
        bpe->byte_ids[i] = qn__vocab_find(&bpe->vocab, bytes, n);
        snprintf(bytes, sizeof bytes, "<0x%02X>", (unsigned)i);
        int32_t id = bpe->fallback_ids[i] = qn__vocab_find(&bpe->vocab, bytes, 6);
        if (id >= 0 && bpe->byte_fallback)
            bpe->vocab.flags[id] |= QN__TOKEN_STANDS_FOR;
        complete = complete && id >= 0;
    }
    if (bpe->unk_id >= 0)
        bpe->vocab.flags[bpe->unk_id] |= QN__TOKEN_STANDS_FOR;
    return find_cuts(bpe, complete);
}

void qn__bpe_clear(qn__bpe *bpe)
{
    qn__vocab_clear(&bpe->vocab);
    free(bpe->merges);
    free(bpe->joins);
    *bpe = (qn__bpe){0};
}
