/* SPDX-License-Identifier: Apache-2.0
 *
 * Unigram models; see unigram.h.
 */
#include "text/unigram.h"

#include "base/hash.h"
#include "base/unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNK_PENALTY = 10, LONGEST_PIECE = 1 << 16 };

typedef struct qn__unigram_edge {
    uint32_t from; /* node * 256 + byte; UINT32_MAX: free */
    uint32_t to;
} qn__unigram_edge;

/* ---- the trie ------------------------------------------------------------------------------- */

static size_t edge_slot(const qn__unigram *u, uint32_t from)
{
    size_t i = (from * 0x9e3779b1u) >> 7 & (u->n_slots - 1);
    while (u->edges[i].from != UINT32_MAX && u->edges[i].from != from)
        i = (i + 1) & (u->n_slots - 1);
    return i;
}

static bool grow_edges(qn__unigram *u)
{
    size_t old_n = u->n_slots, n = old_n ? old_n * 2 : 1024;
    qn__unigram_edge *old = u->edges, *table = malloc(n * sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < n; i++)
        table[i].from = UINT32_MAX;
    u->edges = table;
    u->n_slots = n;
    for (size_t i = 0; i < old_n; i++)
        if (old[i].from != UINT32_MAX)
            table[edge_slot(u, old[i].from)] = old[i];
    free(old);
    return true;
}

static bool add_trie_node(qn__unigram *u)
{
    if (u->n_nodes == u->nodes_capacity) {
        size_t capacity = u->nodes_capacity ? u->nodes_capacity * 2 : 1024;
        int32_t *grown = realloc(u->ids, capacity * sizeof *grown);
        if (!grown)
            return false;
        u->ids = grown;
        u->nodes_capacity = capacity;
    }
    u->ids[u->n_nodes++] = -1;
    return u->n_nodes < (1u << 24); /* nodes and bytes share 32 bits */
}

static bool add_to_trie(qn__unigram *u, const char *piece, size_t n, int32_t id)
{
    uint32_t node = 0;
    if (u->n_nodes == 0 && !add_trie_node(u))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (2 * (u->n_edges + 1) > u->n_slots && !grow_edges(u))
            return false;
        uint32_t from = node << 8 | (unsigned char)piece[i];
        qn__unigram_edge *edge = &u->edges[edge_slot(u, from)];
        if (edge->from == UINT32_MAX) {
            if (!add_trie_node(u))
                return false;
            *edge = (qn__unigram_edge){from, (uint32_t)u->n_nodes - 1};
            u->n_edges++;
        }
        node = edge->to;
    }
    u->ids[node] = id;
    return true;
}

bool qn__unigram_add(qn__unigram *u, const char *piece, size_t n, double score, bool in_words)
{
    if (u->n_scores == u->capacity) {
        size_t capacity = u->capacity ? u->capacity * 2 : 1024;
        double *grown = realloc(u->scores, capacity * sizeof *grown);
        if (!grown)
            return false;
        u->scores = grown;
        u->capacity = capacity;
    }
    u->scores[u->n_scores++] = score;
    return !in_words || n == 0 || add_to_trie(u, piece, n, (int32_t)u->n_scores - 1);
}

void qn__unigram_clear(qn__unigram *u)
{
    free(u->scores);
    free(u->edges);
    free(u->ids);
    qn__added_clear(&u->user);
    *u = (qn__unigram){0};
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool read_score(qn__json_scan *scan, double *score)
{
    qn__json_text span;
    char text[QN__JSON_MAX_NUMBER + 1];
    if (qn__json_peek(scan) != QN__JSON_NUMBER)
        return qn__json_scan_fail(scan, QN_FORMAT, "expected a piece's score");
    if (!qn__json_skip(scan, &span) || span.size >= sizeof text)
        return false;
    memcpy(text, span.data, span.size);
    text[span.size] = '\0';
    *score = strtod(text, NULL);
    return isfinite(*score) || qn__json_scan_fail(scan, QN_FORMAT, "the score is not finite");
}

static bool read_scored_piece(qn__unigram *u, qn__bpe *bpe, qn__json_scan *scan, qn_text *piece)
{
    qn__json_text text;
    double score = 0;
    int32_t id = (int32_t)u->n_scores;
    if (!qn__json_enter_array(scan) || !qn__json_next_item(scan) ||
        !qn__json_read_string(scan, &text))
        return qn__json_scan_fail(scan, QN_FORMAT, "expected a piece and its score");
    piece->n = 0;
    if (id >= QN__MAX_TOKEN_ID || text.size > LONGEST_PIECE)
        return qn__json_scan_fail(scan, QN_LIMIT,
                                  "more than %d pieces, or one of more than %d bytes",
                                  QN__MAX_TOKEN_ID, LONGEST_PIECE);
    bool ok = qn__text_append(piece, text.data, text.size);
    if (ok && (!qn__json_next_item(scan) || !read_score(scan, &score) || qn__json_next_item(scan)))
        return qn__json_scan_fail(scan, QN_FORMAT, "expected a piece and its score");
    qn__vocab_added added =
        ok ? qn__vocab_add(&bpe->vocab, piece->data, piece->n, id) : QN__VOCAB_MEMORY;
    if (added == QN__VOCAB_SAME_PIECE || added == QN__VOCAB_SAME_ID)
        return qn__json_scan_fail(scan, QN_FORMAT, "the piece stands twice");
    if (added == QN__VOCAB_MEMORY || !qn__unigram_add(u, piece->data, piece->n, score, true)) {
        scan->status = qn__fail_memory(scan->err, "a vocabulary");
        return false;
    }
    if (id == 0 || score - UNK_PENALTY < u->unk_score)
        u->unk_score = score - UNK_PENALTY;
    return true;
}

bool qn__unigram_read_vocab(qn__unigram *u, qn__bpe *bpe, qn__json_scan *scan)
{
    qn_text piece = {0};
    bool ok = qn__json_enter_array(scan);
    while (ok && qn__json_next_item(scan))
        ok = read_scored_piece(u, bpe, scan, &piece);
    qn_text_free(&piece);
    bpe->vocab.n_pieces = (int32_t)bpe->vocab.n_used;
    if (ok && scan->status == QN_OK && u->n_scores == 0)
        return qn__json_scan_fail(scan, QN_FORMAT, "the vocabulary is empty");
    return scan->status == QN_OK;
}

/* ---- encoding ------------------------------------------------------------------------------- */

/* The best way to a place of the word: its score, the last piece and where that begins (-1: none).
 */
typedef struct best_path {
    double score;
    int32_t id, from;
} best_path;

static void offer(const qn__unigram *u, best_path *path, double score, int32_t id, size_t from)
{
    score = u->single ? (double)(float)score : score;
    if (path->from < 0 || score > path->score)
        *path = (best_path){score, id, (int32_t)from};
}

static void find_paths(const qn__unigram *u, const qn__bpe *bpe, const char *word, size_t n,
                       bool no_special, best_path *paths)
{
    for (size_t i = 0; i <= n; i++)
        paths[i] = (best_path){0, -1, -1};
    for (size_t at = 0, k; at < n; at += k) {
        double till_here = paths[at].score;
        bool whole = false;
        uint32_t node = 0;
        k = qn__char_behind(word, n, at) - at;
        for (size_t i = at; i < n && u->n_slots > 0; i++) {
            const qn__unigram_edge *edge =
                &u->edges[edge_slot(u, node << 8 | (unsigned char)word[i])];
            if (edge->from == UINT32_MAX)
                break;
            node = edge->to;
            int32_t id = u->ids[node];
            if (id < 0 || (no_special && (bpe->vocab.flags[id] & QN__TOKEN_SPECIAL)))
                continue;
            offer(u, &paths[i + 1], u->scores[id] + till_here, id, at);
            whole = whole || i + 1 - at == k;
        }
        if (!whole)
            offer(u, &paths[at + k], u->unk_score + till_here, bpe->unk_id, at);
    }
}

/* What an unknown stretch becomes: a piece after all (not in SentencePiece itself), its bytes, or
 * unk. */
static bool push_unknown(const qn__unigram *u, const qn__bpe *bpe, const char *s, size_t n,
                         bool no_special, qn_tokens *out)
{
    int32_t id = u->single ? -1 : qn__vocab_find(&bpe->vocab, s, n);
    if (id >= 0 && !(no_special && (bpe->vocab.flags[id] & QN__TOKEN_SPECIAL)))
        return qn__tokens_push(out, id);
    bool bytes = bpe->byte_fallback;
    for (size_t i = 0; bytes && i < n; i++)
        bytes = bpe->fallback_ids[(unsigned char)s[i]] >= 0;
    for (size_t i = 0; bytes && i < n; i++)
        if (!qn__tokens_push(out, bpe->fallback_ids[(unsigned char)s[i]]))
            return false;
    return bytes || bpe->unk_id < 0 || qn__tokens_push(out, bpe->unk_id);
}

bool qn__unigram_encode(const qn__unigram *u, const qn__bpe *bpe, qn__bpe_work *work,
                        const char *word, size_t n, bool no_special, qn_tokens *out)
{
    /* The paths take more than the work has tables for: their memory is counted, and their own. */
    work->over =
        n > INT32_MAX / 2 || (n + 1) * (sizeof(best_path) + sizeof *out->ids) > work->limit;
    best_path *paths = work->over ? NULL : malloc((n + 1) * sizeof *paths);
    if (!paths)
        return false;
    find_paths(u, bpe, word, n, no_special, paths);
    /* Turn the chain round, so that it goes from the begin: `from` becomes where the next ends. */
    int32_t next = -1;
    for (int32_t at = (int32_t)n; at >= 0;) {
        int32_t from = at > 0 ? paths[at].from : -1;
        paths[at].from = next;
        next = at;
        at = from;
    }
    bool ok = true;
    size_t unknown = SIZE_MAX; /* where a stretch of them begins */
    for (int32_t at = 0, end = paths[0].from; ok && end >= 0; at = end, end = paths[end].from) {
        bool is_unknown = paths[end].id == bpe->unk_id;
        if (is_unknown && unknown == SIZE_MAX)
            unknown = (size_t)at;
        if (!is_unknown && unknown != SIZE_MAX) {
            ok = push_unknown(u, bpe, word + unknown, (size_t)at - unknown, no_special, out);
            unknown = SIZE_MAX;
        }
        if (!is_unknown)
            ok = ok && qn__tokens_push(out, paths[end].id);
    }
    if (ok && unknown != SIZE_MAX)
        ok = push_unknown(u, bpe, word + unknown, n - unknown, no_special, out);
    free(paths);
    return ok;
}
