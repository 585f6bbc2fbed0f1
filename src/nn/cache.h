/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache: keys and values of every layer, in pages of 64 positions that any number of
 * sequences share. A layer has one array of pages for its keys and one for its values, whose
 * addresses are reserved at once and get memory as pages are taken: nothing is copied by growing.
 * Layers that keep the same positions are of one kind and have the same page numbers; a sequence is
 * a table of pages for each kind. A layer with a window gives back the pages behind it, but for the
 * first positions where queries see those, too.
 *
 * A page is read in the order of positions wherever it lies, so what shares the cache changes no
 * bit. What runs through it is a step (batch.h).
 */
#ifndef QN_NN_CACHE_H
#define QN_NN_CACHE_H

#include "nn/pages.h"
#include "ops/ops.h"
#include "quant/layout.h"

enum { QN__MOST_KINDS = 4 };

typedef struct qn__cache_shape {
    int n_layers;
    int64_t queries, heads; /* query heads, and key heads that they share */
    int64_t key_dim, value_dim;
    qn__encoding_id keys, values; /* as the device keeps them (core/device.h) */
} qn__cache_shape;

/* What queries of a layer see: the newest `window` positions, their own included (0: all), and the
 * first `keep`, which are fewer than QN__PAGE. */
typedef struct qn__cache_window {
    int64_t window, keep;
} qn__cache_window;

typedef struct qn__cache_kind {
    qn__cache_window sees;
    int n_layers;
    qn__pages pages;
} qn__cache_kind;

typedef struct qn__cache {
    qn__cache_shape shape;
    qn__cache_kind kind[QN__MOST_KINDS];
    int n_kinds;
    int *kind_of;       /* [n_layers] */
    int64_t reach;      /* a window's positions are kept for steps, or for going back, of so many */
    qn_array **kept;    /* [2 * n_layers]: keys, values; retained, NULL before the first step */
    qn_array **current; /* the same in the step under way */
    int32_t adapter;    /* of sequences where nothing else is said */
} qn__cache;

/* windows: one a layer, or NULL: all see everything. There is room for so many sequences of so many
 * positions; `reach` of a window's are kept besides what it sees. */
typedef struct qn__cache_room {
    int64_t sequences, positions;
    int64_t total; /* positions of all sequences together; 0: of each as many */
    int64_t reach;
} qn__cache_room;

qn_status qn__cache_begin(qn__cache *cache, const qn__cache_shape *shape,
                          const qn__cache_window *windows, const qn__cache_room *room,
                          qn_error *err);
void qn__cache_end(qn__cache *cache);

/* Bytes of the pages in use, and of all that there may be. */
size_t qn__cache_bytes(const qn__cache *cache);
size_t qn__cache_most_bytes(const qn__cache *cache);

/* Arrays for all pages, where there are none yet: of this device. */
qn_status qn__cache_reserve(qn__cache *cache, qn_device *device, qn_error *err);

/* Memory for the pages in use of array i of `kept`; and, between steps, memory of pages behind the
 * last one in use back to the device. */
qn_status qn__cache_commit(const qn__cache *cache, int i, qn_error *err);
void qn__cache_trim(const qn__cache *cache);

/* Pages of one kind that a sequence of so many positions has at most. */
int64_t qn__cache_most_pages(const qn__cache *cache, const qn__cache_kind *kind, int64_t positions);

/* Pages of one kind: of block b of 64 positions at page[b], -1 where it was given back. */
typedef struct qn__sequence_pages {
    int32_t *page;
    int64_t n, room;
    int64_t first; /* blocks from 1 on were given back below */
} qn__sequence_pages;

typedef struct qn__sequence {
    qn__cache *cache;
    int64_t length;  /* positions that count */
    int32_t adapter; /* the number of the model's adapter that its tokens run with; 0: none */
    qn__sequence_pages kind[QN__MOST_KINDS];
} qn__sequence;

void qn__sequence_begin(qn__sequence *sequence, qn__cache *cache);
void qn__sequence_end(qn__sequence *sequence);

/* Room for the numbers of n pages. */
qn_status qn__sequence_reserve(qn__sequence_pages *pages, int64_t n, qn_error *err);

/* Takes pages for n positions more, for a step; what windows no longer need goes back first. On
 * failure the sequence is as it was but for that. */
qn_status qn__sequence_grow(qn__sequence *sequence, int64_t n, qn_error *err);

/* Gives back the pages behind what counts. */
void qn__sequence_cut(qn__sequence *sequence);

/* Forgets positions from `length` on. Where a window's pages that a query at `length` sees were
 * given back, the sequence is empty afterwards: returns the length that it has. */
int64_t qn__sequence_rewind(qn__sequence *sequence, int64_t length);

/* ---- pages as bytes (cache_move.c) ---- */

/* Of a head's page of 64 keys or values. */
size_t qn__cache_head_bytes(qn__encoding_id encoding, int64_t dim);

/* A page of array i of `kept`, which is reserved; between steps. */
size_t qn__cache_page_bytes(const qn__cache *cache, int i);
qn_status qn__cache_read_page(const qn__cache *cache, int i, int32_t page, void *to, qn_error *err);
qn_status qn__cache_write_page(const qn__cache *cache, int i, int32_t page, const void *from,
                               qn_error *err);

/* The first block that what follows `length` positions sees, and the first that a sequence of so
 * many would still have: both besides block 0 where its positions stay. */
int64_t qn__cache_first_needed(const qn__cache_kind *kind, int64_t length);
int64_t qn__cache_first_kept(const qn__cache *cache, const qn__cache_kind *kind, int64_t length);

/* Whether a sequence whose blocks begin with `first` has the block. */
static inline bool qn__cache_holds(const qn__cache_kind *kind, int64_t first, int64_t block)
{
    return block >= first || (block == 0 && kind->sees.keep);
}

/* An empty sequence takes the pages of so many positions, of each kind from block first[k] on; the
 * caller writes them. On failure it is empty. */
qn_status qn__sequence_wake(qn__sequence *sequence, int64_t length, const int64_t *first,
                            qn_error *err);

#endif
