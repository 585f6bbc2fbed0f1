/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefix reuse: the full pages of sequences that have run, found again by their tokens. A tree:
 * each node is a page's 64 tokens behind its parent's, with the page of each kind of layers, to
 * which it holds a reference. A sequence that begins with the same tokens gets the same pages and
 * runs only what differs. A window's pages are there for the newest positions of what ran; a
 * beginning counts as far as the pages that its next token sees are there.
 */
#ifndef QN_NN_PREFIX_H
#define QN_NN_PREFIX_H

#include "nn/cache.h"

typedef struct qn__prefix_node {
    int32_t parent;               /* -1: free */
    int32_t adapter;              /* with which its tokens ran */
    int32_t next;                 /* in its chain, or of the free ones; -1: none */
    int32_t n_below;              /* nodes whose parent it is */
    int32_t page[QN__MOST_KINDS]; /* -1: given back before */
    int32_t tokens[QN__PAGE];
    uint64_t used; /* when; the clock counts attachments */
} qn__prefix_node;

typedef struct qn__prefix {
    qn__cache *cache;
    qn__prefix_node *nodes; /* the first is the root, which has no tokens */
    int32_t n_nodes, room, free;
    int32_t *chains; /* [n_chains] */
    int32_t n_chains;
    uint64_t clock, seed;
} qn__prefix;

qn_status qn__prefix_begin(qn__prefix *prefix, qn__cache *cache, qn_error *err);
void qn__prefix_end(qn__prefix *prefix);

/* Gives an empty sequence the pages of the longest beginning of ids[0..n) that is known, without
 * the last token, which has to run. Returns how many positions it has then. */
int64_t qn__prefix_attach(qn__prefix *prefix, qn__sequence *sequence, const int32_t *ids,
                          int64_t n);

/* Remembers the full pages of a sequence whose tokens are ids[0..n); it may have positions behind
 * them. Where memory is out, fewer. */
void qn__prefix_keep(qn__prefix *prefix, const qn__sequence *sequence, const int32_t *ids,
                     int64_t n);

/* Gives back the pages of the node that was used least recently. False: there is none. */
bool qn__prefix_forget(qn__prefix *prefix);

#endif
