/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte pair encoding: the vocabulary (piece <-> id), the merges, and the merging of one word. A
 * word's symbols are its bytes, written as characters (byte-level: GPT-2, Llama 3, Qwen), or its
 * characters (SentencePiece: Llama 2, Gemma, Mistral), with tokens for bytes to fall back on.
 *
 * Merging repeats: of all adjacent pairs that have a merge, the one of lowest rank, leftmost
 * first. Short words do that with a scan, long ones with a heap in O(n log n).
 */
#ifndef QN_TEXT_BPE_H
#define QN_TEXT_BPE_H

#include "base/error.h"
#include "base/hash.h"
#include "base/json_scan.h"
#include "base/buffers.h"

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
    QN__TOKEN_OUTSIDE = 4,    /* added, and not in the model's vocabulary: no word gives it */
    QN__TOKEN_STANDS_FOR = 8, /* unk, or a byte to fall back on: not its own text */
    QN__TOKEN_RENAMED = 16    /* added; its normalized text, which is what it decodes to, differs */
};

/* The id of a piece, or -1. */
int32_t qn__vocab_find(const qn__vocab *vocab, const char *piece, size_t n);

/* The same in steps, for many pieces at once whose places are fetched side by side: the piece's
 * tag, where it would lie, its id. */
uint32_t qn__vocab_seek(const qn__vocab *vocab, const char *piece, size_t n);
void qn__vocab_seek_piece(const qn__vocab *vocab, uint32_t tag);
int32_t qn__vocab_find_tag(const qn__vocab *vocab, uint32_t tag, const char *piece, size_t n);

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

/* Where a word of characters may be cut without changing its ids. */
typedef enum qn__bpe_cuts {
    QN__CUT_NOWHERE,
    QN__CUT_AT_MARKS, /* before U+2581, where no merge joins it to what precedes */
    QN__CUT_ANYWHERE  /* between any two characters that no merge joins */
} qn__bpe_cuts;

enum { QN__JOIN_EXACT = 129 * 129, QN__JOIN_BITS = 17 };

typedef struct qn__bpe {
    qn__vocab vocab;
    qn__merge *merges; /* hash table, a power of two */
    size_t n_merges, n_merge_slots;
    int32_t byte_ids[256];     /* the id of each byte's character, or -1 */
    int32_t fallback_ids[256]; /* the id of each byte's token "<0x0A>", or -1 */
    int32_t unk_id;            /* -1: none */
    bool byte_level;           /* words are bytes, not characters */
    bool byte_fallback;        /* a character without a token becomes its bytes' tokens */
    bool ignore_merges;        /* a word that is in the vocabulary is taken whole */
    bool fuse_unk;
    qn__bpe_cuts cuts;
    uint64_t *joins; /* a bit for each (hash of a) pair of characters that a merge joins */
} qn__bpe;

/* Where the search for a pair begins. There are slots. */
static inline size_t qn__bpe_merge_home(const qn__bpe *bpe, uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) ^ bpe->vocab.seed;
    return (size_t)qn__hash_mix(h, 0x9e3779b97f4a7c15u) & (bpe->n_merge_slots - 1);
}

/* The slot of a pair, or the free one where it would go. There are slots. */
static inline size_t qn__bpe_merge_slot(const qn__bpe *bpe, uint32_t a, uint32_t b)
{
    size_t i = qn__bpe_merge_home(bpe, a, b);
    while (bpe->merges[i].a != UINT32_MAX && (bpe->merges[i].a != a || bpe->merges[i].b != b))
        i = (i + 1) & (bpe->n_merge_slots - 1);
    return i;
}

/* The bit of a pair of characters: its own for ASCII and U+2581, a hashed one for others. */
static inline uint32_t qn__bpe_join_bit(uint32_t a, uint32_t b)
{
    uint32_t i = a == 0x2581 ? 128 : a, j = b == 0x2581 ? 128 : b;
    if (i <= 128 && j <= 128)
        return i * 129 + j;
    return QN__JOIN_EXACT + ((a * 0x9e3779b1u ^ b * 0x85ebca6bu) >> (32 - QN__JOIN_BITS));
}

/* May the merges join the characters a and b? */
static inline bool qn__bpe_joins(const qn__bpe *bpe, uint32_t a, uint32_t b)
{
    uint32_t i = qn__bpe_join_bit(a, b);
    return bpe->joins[i / 64] >> (i % 64) & 1;
}

/* Reads the "vocab" and "merges" values at the scanner's place. Merges need the vocabulary. */
bool qn__bpe_read_vocab(qn__bpe *bpe, qn__json_scan *scan);
bool qn__bpe_read_merges(qn__bpe *bpe, qn__json_scan *scan);

/* Adds the merge of the text joined[0..n), the piece `id`, whose left half is `left` bytes long;
 * QN__MERGE_ABSENT: a half is not in the vocabulary. */
typedef enum qn__merge_added { QN__MERGE_OK, QN__MERGE_MEMORY, QN__MERGE_ABSENT } qn__merge_added;

qn__merge_added qn__bpe_add_merge(qn__bpe *bpe, const char *joined, size_t left, size_t n,
                                  uint32_t rank, int32_t id);

/* The same of the pieces a and b, which make the piece `id`. */
qn__merge_added qn__bpe_insert_merge(qn__bpe *bpe, int32_t a, int32_t b, uint32_t rank, int32_t id);

/* After both, when the flags are set, before tokens are added: fills the rest. False when memory
 * is out. */
bool qn__bpe_finish(qn__bpe *bpe);
void qn__bpe_clear(qn__bpe *bpe);

/* Scratch memory for encoding, kept between words and texts; zero it before use. It belongs to one
 * model: the cache holds ids. */
typedef struct qn__bpe_work {
    int32_t *ids, *next, *previous;
    uint64_t *heap;
    size_t capacity, links_capacity, heap_capacity; /* of ids, of next and previous, of heap */
    size_t limit;                                   /* bytes that one long word may take here */
    bool over;                                      /* one wanted more */
    qn_text mapped;
    struct qn__cached_word *cache;
} qn__bpe_work;

/* Before a text of n bytes: makes the cache if that's worth it. False when memory is out. */
bool qn__bpe_work_begin(qn__bpe_work *work, size_t n);
void qn__bpe_work_free(qn__bpe_work *work);

/* Frees what only long words need, before it's kept for another text. */
void qn__bpe_work_trim(qn__bpe_work *work);

/* Appends the ids of one word, n > 0. With no_special no character, no merge and no whole word
 * gives a special token. False when memory is out, or work->over. */
bool qn__bpe_encode(const qn__bpe *bpe, qn__bpe_work *work, const char *word, size_t n,
                    bool no_special, qn_tokens *out);

/* The character (below U+0144) that stands for a byte in byte-level vocabularies, and back: -1 for
 * characters that stand for none. */
uint32_t qn__byte_to_char(uint8_t byte);
int qn__char_to_byte(uint32_t c);

#endif
