/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary of bpe.h. Loading does a million look-ups that miss the cache, so a hit touches
 * two places only: an 8-byte slot of the open-addressing table, which has 32 bits of the hash and
 * the piece's place in the blob, and there the piece with its id and size in front.
 */
#include "base/hash.h"
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

typedef struct qn__slot {
    uint32_t tag;
    uint32_t offset; /* of the piece's bytes; UINT32_MAX: free */
} qn__slot;

/* Stands before each piece in the blob, unaligned. */
typedef struct piece_head {
    int32_t id;
    uint32_t size;
} piece_head;

uint32_t qn__vocab_seek(const qn__vocab *vocab, const char *piece, size_t n)
{
    uint32_t tag = (uint32_t)qn__hash_bytes(piece, n, vocab->seed);
    if (vocab->n_slots)
        __builtin_prefetch(&vocab->slots[tag & (vocab->n_slots - 1)]);
    return tag;
}

void qn__vocab_seek_piece(const qn__vocab *vocab, uint32_t tag)
{
    if (!vocab->n_slots)
        return;
    uint32_t offset = vocab->slots[tag & (vocab->n_slots - 1)].offset;
    if (offset != UINT32_MAX)
        __builtin_prefetch(vocab->blob.data + offset - sizeof(piece_head));
}

int32_t qn__vocab_find_tag(const qn__vocab *vocab, uint32_t tag, const char *piece, size_t n)
{
    if (vocab->n_slots == 0)
        return -1;
    size_t i = tag & (vocab->n_slots - 1);
    for (; vocab->slots[i].offset != UINT32_MAX; i = (i + 1) & (vocab->n_slots - 1)) {
        if (vocab->slots[i].tag != tag)
            continue;
        piece_head head;
        const char *at = vocab->blob.data + vocab->slots[i].offset;
        memcpy(&head, at - sizeof head, sizeof head);
        if (head.size == n && memcmp(at, piece, n) == 0)
            return head.id;
    }
    return -1;
}

int32_t qn__vocab_find(const qn__vocab *vocab, const char *piece, size_t n)
{
    uint32_t tag = (uint32_t)qn__hash_bytes(piece, n, vocab->seed);
    return qn__vocab_find_tag(vocab, tag, piece, n);
}

static bool grow_slots(qn__vocab *vocab)
{
    size_t n = vocab->n_slots ? vocab->n_slots * 4 : 1024;
    qn__slot *slots = malloc(n * sizeof *slots);
    if (!slots)
        return false;
    if (vocab->n_slots == 0)
        vocab->seed = qn__hash_seed();
    for (size_t i = 0; i < n; i++)
        slots[i].offset = UINT32_MAX;
    for (size_t j = 0; j < vocab->n_slots; j++) {
        if (vocab->slots[j].offset == UINT32_MAX)
            continue;
        size_t i = vocab->slots[j].tag & (n - 1);
        while (slots[i].offset != UINT32_MAX)
            i = (i + 1) & (n - 1);
        slots[i] = vocab->slots[j];
    }
    free(vocab->slots);
    vocab->slots = slots;
    vocab->n_slots = n;
    return true;
}

static bool grow_ids(qn__vocab *vocab, size_t needed)
{
    if (needed <= vocab->capacity)
        return true;
    size_t capacity = vocab->capacity ? vocab->capacity : 1024;
    while (capacity < needed)
        capacity *= 2;
    uint32_t *offsets = realloc(vocab->offsets, capacity * sizeof *offsets);
    if (offsets)
        vocab->offsets = offsets;
    uint32_t *sizes = realloc(vocab->sizes, capacity * sizeof *sizes);
    if (sizes)
        vocab->sizes = sizes;
    uint8_t *flags = realloc(vocab->flags, capacity);
    if (flags)
        vocab->flags = flags;
    if (!offsets || !sizes || !flags)
        return false;
    for (size_t i = vocab->capacity; i < capacity; i++) {
        offsets[i] = UINT32_MAX;
        sizes[i] = 0;
        flags[i] = 0;
    }
    vocab->capacity = capacity;
    return true;
}

qn__vocab_added qn__vocab_add(qn__vocab *vocab, const char *piece, size_t n, int32_t id)
{
    if (qn__vocab_find(vocab, piece, n) >= 0)
        return QN__VOCAB_SAME_PIECE;
    if (!grow_ids(vocab, (size_t)id + 1))
        return QN__VOCAB_MEMORY;
    if (vocab->offsets[id] != UINT32_MAX)
        return QN__VOCAB_SAME_ID;
    if (2 * (vocab->n_used + 1) > vocab->n_slots && !grow_slots(vocab))
        return QN__VOCAB_MEMORY;
    piece_head head = {id, (uint32_t)n};
    size_t offset = vocab->blob.n + sizeof head;
    if (offset + n + 1 >= UINT32_MAX || !qn__text_reserve(&vocab->blob, sizeof head + n + 1))
        return QN__VOCAB_MEMORY;
    qn__text_append(&vocab->blob, (const char *)&head, sizeof head);
    qn__text_append(&vocab->blob, piece, n);
    qn__text_append(&vocab->blob, "", 1);
    vocab->offsets[id] = (uint32_t)offset;
    vocab->sizes[id] = (uint32_t)n;
    if (id >= vocab->n_ids)
        vocab->n_ids = id + 1;
    uint32_t tag = (uint32_t)qn__hash_bytes(piece, n, vocab->seed);
    size_t i = tag & (vocab->n_slots - 1);
    while (vocab->slots[i].offset != UINT32_MAX)
        i = (i + 1) & (vocab->n_slots - 1);
    vocab->slots[i] = (qn__slot){tag, (uint32_t)offset};
    vocab->n_used++;
    return QN__VOCAB_OK;
}

void qn__vocab_clear(qn__vocab *vocab)
{
    qn_text_free(&vocab->blob);
    free(vocab->offsets);
    free(vocab->sizes);
    free(vocab->flags);
    free(vocab->slots);
    *vocab = (qn__vocab){0};
}
