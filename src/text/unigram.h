/* SPDX-License-Identifier: Apache-2.0
 *
 * Unigram models: each piece has a score, and a word becomes the pieces of the best sum (Viterbi).
 * What no piece covers is unknown, character by character, with a score below all others; unknown
 * characters in a row are one. The vocabulary is that of bpe.h.
 */
#ifndef QN_TEXT_UNIGRAM_H
#define QN_TEXT_UNIGRAM_H

#include "base/json_scan.h"
#include "text/added.h"
#include "text/bpe.h"

typedef struct qn__unigram {
    double *scores; /* by id; NULL: the model is none */
    size_t n_scores, capacity;
    double unk_score;
    bool single; /* sums are kept in single precision, as SentencePiece does */
    /* A trie of the pieces: edges by (node, byte) in a hash table, a power of two. Node 0 is the
     * root. */
    struct qn__unigram_edge *edges;
    size_t n_slots, n_edges;
    int32_t *ids; /* by node: the piece that ends there, or -1 */
    size_t n_nodes, nodes_capacity;
    qn__added_set user; /* symbols that SentencePiece's normalizer leaves alone */
} qn__unigram;

/* Reads the "vocab" of a tokenizer.json: pairs of a piece and its score, ids in order. */
bool qn__unigram_read_vocab(qn__unigram *unigram, qn__bpe *bpe, qn__json_scan *scan);

/* One piece's score, ids in order; `in_words`: words may give it. False when memory is out. */
bool qn__unigram_add(qn__unigram *unigram, const char *piece, size_t n, double score,
                     bool in_words);
void qn__unigram_clear(qn__unigram *unigram);

/* Appends the ids of a word, n > 0, as qn__bpe_encode does. */
bool qn__unigram_encode(const qn__unigram *unigram, const qn__bpe *bpe, qn__bpe_work *work,
                        const char *word, size_t n, bool no_special, qn_tokens *out);

#endif
