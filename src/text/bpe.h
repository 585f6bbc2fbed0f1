/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte pair encoding: the vocabulary (piece <-> id), the merges, and the merging of one word.
 *
 * Merging repeats: of all adjacent pairs that have a merge, the one of lowest rank, leftmost
 * first. Short words do that with a scan, long ones with a heap in O(n log n).
 */
#ifndef QN_TEXT_BPE_H
#define QN_TEXT_BPE_H

#include "base/error.h"
#include "base/json_scan.h"
#include "text/buffers.h"

/* Ids are below this: a table entry per id must stay cheap. */
#define QN__MAX_TOKEN_ID (1 << 22)

typedef struct qn__vocab {
    qn_text blob;           /* all pieces, each with its id and size before it and a NUL behind */
    uint32_t *offsets;      /* by id: where in the blob; UINT32_MAX: no such id */
    uint32_t *sizes;        /* by id */
    uint8_t *flags;         /* by id: QN__TOKEN_... */
    int32_t n_ids;          /* the largest id plus one */
    int32_t n_pieces;       /* pieces of the model's vocabulary */
    size_t capacity;        /* of the tables by id */
    struct qn__slot *slots; /* piece -> id; a power of two */
    size_t n_slots, n_used;
    uint64_t seed;
} qn__vocab;

enum {
    QN__TOKEN_ADDED = 1,
    QN__TOKEN_SPECIAL = 2,
    QN__TOKEN_OUTSIDE = 4 /* added, and not in the model's vocabulary: no word gives it */
};

/* The id of a piece, or -1. */
int32_t qn__vocab_find(const qn__vocab *vocab, const char *piece, size_t n);

typedef enum qn__vocab_added {
    QN__VOCAB_OK,
    QN__VOCAB_MEMORY,
    QN__VOCAB_SAME_PIECE,
    QN__VOCAB_SAME_ID
} qn__vocab_added;

/* Adds a piece that is not there yet under an id that is free, 0 <= id < QN__MAX_TOKEN_ID. */
qn__vocab_added qn__vocab_add(qn__vocab *vocab, const char *piece, size_t n, int32_t id);
void qn__vocab_clear(qn__vocab *vocab);

typedef struct qn__merge {
    uint32_t a, b; /* the pair; a == UINT32_MAX: free slot */
    uint32_t rank;
    int32_t id; /* what they become */
} qn__merge;

typedef struct qn__bpe {
    qn__vocab vocab;
    qn__merge *merges; /* hash table, a power of two */
    size_t n_merges, n_merge_slots;
    int32_t byte_ids[256]; /* the id of each byte's character, or -1 */
    int32_t unk_id;        /* -1: none */
    bool ignore_merges;    /* a word that is in the vocabulary is taken whole */
    bool fuse_unk;
} qn__bpe;

/* Reads the "vocab" and "merges" values at the scanner's place. Merges need the vocabulary. */
bool qn__bpe_read_vocab(qn__bpe *bpe, qn__json_scan *scan);
bool qn__bpe_read_merges(qn__bpe *bpe, qn__json_scan *scan);

/* After both, before tokens are added: fills byte_ids. */
void qn__bpe_finish(qn__bpe *bpe);
void qn__bpe_clear(qn__bpe *bpe);

/* Scratch memory for encoding, kept between words; zero it before use. */
typedef struct qn__bpe_work {
    int32_t *ids, *next, *previous;
    uint64_t *heap;
    size_t capacity, heap_capacity;
    qn_text mapped;
} qn__bpe_work;

void qn__bpe_work_free(qn__bpe_work *work);

/* Appends the ids of one word, whose bytes stand for byte-level characters. With no_special no
 * merge and no whole word gives a special token. False when memory is out. */
bool qn__bpe_encode(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                    bool no_special, qn_tokens *out);

/* The character (below U+0144) that stands for a byte in byte-level vocabularies, and back: -1 for
 * characters that stand for none. */
uint32_t qn__byte_to_char(uint8_t byte);
int qn__char_to_byte(uint32_t c);

#endif
