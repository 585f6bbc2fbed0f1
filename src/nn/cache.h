/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache: keys and values of every layer, growing by chunks of 256 positions, updated in
 * place.
 *
 * A layer with a window keeps what the window and one step need: its buffers grow to that size and
 * are then a ring, in which position p lies in slot p mod size. Where queries see the first
 * positions, too, the first QN__PINNED slots are theirs and the ring lies behind. Attention visits
 * positions in their order in any case, so a ring changes no bit.
 *
 * A step records writes through qn__cache_attend, evaluates qn__cache_targets with its own results,
 * and commits; only then does the cache hold its positions. A step that fails leaves what was
 * committed: it may have written behind it, or over positions that no window reaches from there.
 */
#ifndef QN_NN_CACHE_H
#define QN_NN_CACHE_H

#include "ops/ops.h"

enum { QN__CACHE_CHUNK = 256 };

typedef struct qn__cache_shape {
    int n_layers;
    int64_t batch, heads, key_dim, value_dim;
    qn_dtype dtype; /* QN_F32 or QN_BF16 */
} qn__cache_shape;

typedef struct qn__cache {
    qn__cache_shape shape;
    int64_t length;     /* committed positions */
    int64_t capacity;   /* of the buffers of layers without a window */
    int64_t written;    /* positions below were written, though perhaps not committed */
    int64_t *window;    /* [n_layers]: newest positions that a query sees; 0: all */
    int64_t *keep;      /* [n_layers]: first positions that it sees besides */
    int64_t *ring;      /* [n_layers]: positions that the buffers grow to; 0: no bound */
    int64_t most_new;   /* positions of a step at most, where a layer has a ring */
    qn_array **kept;    /* [2 * n_layers + 1]: keys, values, position; retained, NULL at first */
    qn_array **current; /* the same in the step under way */
    int64_t position;   /* the value of the kept position, which the device counts up itself */
    qn_array *offset;   /* of the step under way: i32 [1], the first new position */
    int64_t n_new;      /* its positions */
    int64_t grown;      /* the capacity that it makes */
} qn__cache;

qn_status qn__cache_begin(qn__cache *cache, const qn__cache_shape *shape, qn_error *err);
void qn__cache_end(qn__cache *cache);

/* Before the first step: queries of the layer see `window` positions, their own included, so that
 * it keeps no more than that takes; no step will have more than most_new positions. `keep` of them
 * are the first ones, fewer than window and at most QN__PINNED, the others the newest. */
void qn__cache_set_window(qn__cache *cache, int layer, int64_t window, int64_t keep,
                          int64_t most_new);

/* Begins a step of n positions behind the committed ones: takes the buffers into the scope, larger
 * ones when they do not suffice. */
void qn__cache_step(qn_scope *s, qn__cache *cache, int64_t n);

/* Writes k and v [B, G, L, D] of a layer and attends: q [B, H, L, D] -> [B, H, L, E]. The window is
 * the narrower of the layer's and the options'. */
qn_array *qn__cache_attend(qn_scope *s, qn__cache *cache, int layer, qn_array *q, qn_array *k,
                           qn_array *v, const qn_attention_options *options);

/* Records the new position, last of all, and gives the arrays that must be evaluated for the step;
 * *n receives their number. */
qn_array *const *qn__cache_targets(qn_scope *s, qn__cache *cache, int *n);

/* After the evaluation: keeps the new buffers, or on failure the old ones. */
void qn__cache_commit(qn_scope *s, qn__cache *cache);

/* Forgets positions from `length` on; the buffers stay. Where a ring no longer holds what a query
 * at `length` sees, the cache is empty afterwards: returns the length that it has. */
int64_t qn__cache_rewind(qn__cache *cache, int64_t length);

/* Bytes of the buffers. */
size_t qn__cache_bytes(const qn__cache *cache);

#endif
