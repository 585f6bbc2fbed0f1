/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache: keys and values of every layer, growing by chunks of 256 positions, updated in place.
 *
 * A step records writes through qn__cache_attend, evaluates qn__cache_targets with its own results,
 * and commits; only then does the cache grow. A step that fails is not committed; since it may have
 * half-written the buffers, the cache is then empty and has to be filled again.
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
    int64_t length;   /* committed positions */
    int64_t capacity; /* of the buffers */
    qn_array **kept;    /* [2 * n_layers + 1]: keys, values, position; retained, NULL at first */
    qn_array **current; /* the same in the step under way */
    int64_t position;   /* the value of the kept position, which the device counts up itself */
    qn_array *offset;   /* of the step under way: i32 [1], the first new position */
    int64_t n_new;      /* its positions */
} qn__cache;

qn_status qn__cache_begin(qn__cache *cache, const qn__cache_shape *shape, qn_error *err);
void qn__cache_end(qn__cache *cache);

/* Begins a step of n positions behind the committed ones: takes the buffers into the scope, larger ones
 * when they do not suffice. */
void qn__cache_step(qn_scope *s, qn__cache *cache, int64_t n);

/* Writes k and v [B, G, L, D] of a layer and attends: q [B, H, L, D] -> [B, H, L, E]. */
qn_array *qn__cache_attend(qn_scope *s, qn__cache *cache, int layer, qn_array *q, qn_array *k,
                           qn_array *v, const qn_attention_options *options);

/* Records the new position, last of all, and gives the arrays that must be evaluated for the step;
 * *n receives their number. */
qn_array *const *qn__cache_targets(qn_scope *s, qn__cache *cache, int *n);

/* After the evaluation: keeps the new buffers, or on failure empties the cache. */
void qn__cache_commit(qn_scope *s, qn__cache *cache);

/* Forgets positions from `length` on; the buffers stay. */
void qn__cache_rewind(qn__cache *cache, int64_t length);

/* Bytes of the buffers. */
size_t qn__cache_bytes(const qn__cache *cache);

#endif
