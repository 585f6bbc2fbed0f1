/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary of bpe.h: pieces in one blob, tables by id, and an open-addressing hash table of
 * 8-byte slots that keeps 32 bits of the hash, so that a miss rarely touches a piece.
 */
#include "base/hash.h"
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

typedef struct qn__slot {
    uint32_t tag;
    int32_t id; /* -1: free */
} qn__slot;

int32_t qn__vocab_find(const qn__vocab *vocab, const char *piece, size_t n)
{
    if (vocab->n_slots == 0)
        return -1;
    uint64_t hash = qn__hash_bytes(piece, n, vocab->seed);
    size_t i = (size_t)hash & (vocab->n_slots - 1);
    for (; vocab->slots[i].id >= 0; i = (i + 1) & (vocab->n_slots - 1)) {
        int32_t id = vocab->slots[i].id;
        if (vocab->slots[i].tag == (uint32_t)(hash >> 32) && vocab->sizes[id] == n &&
            memcmp(vocab->blob.data + vocab->offsets[id], piece, n) == 0)
            return id;
    }
    return -1;
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
        slots[i].id = -1;
    for (size_t j = 0; j < vocab->n_slots; j++) {
        int32_t id = vocab->slots[j].id;
        if (id < 0)
            continue;
        uint64_t hash =
            qn__hash_bytes(vocab->blob.data + vocab->offsets[id], vocab->sizes[id], vocab->seed);
        size_t i = (size_t)hash & (n - 1);
        while (slots[i].id >= 0)
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
    size_t offset = vocab->blob.n;
    if (offset + n + 1 >= UINT32_MAX || !qn__text_append(&vocab->blob, piece, n) ||
        !qn__text_append(&vocab->blob, "", 1))
        return QN__VOCAB_MEMORY;
    vocab->offsets[id] = (uint32_t)offset;
    vocab->sizes[id] = (uint32_t)n;
    if (id >= vocab->n_ids)
        vocab->n_ids = id + 1;
    uint64_t hash = qn__hash_bytes(piece, n, vocab->seed);
    size_t i = (size_t)hash & (vocab->n_slots - 1);
    while (vocab->slots[i].id >= 0)
        i = (i + 1) & (vocab->n_slots - 1);
    vocab->slots[i] = (qn__slot){(uint32_t)(hash >> 32), id};
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
