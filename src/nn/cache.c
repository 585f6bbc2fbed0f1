/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache.
 */
#include "nn/cache.h"

#include "base/error.h"

#include <stdlib.h>

enum { RING_BLOCK = 64 }; /* keys that attention visits at once: a block must not wrap around */

qn_status qn__cache_begin(qn__cache *cache, const qn__cache_shape *shape, qn_error *err)
{
    *cache = (qn__cache){.shape = *shape};
    size_t layers = (size_t)shape->n_layers, n = 2 * layers + 1;
    cache->kept = calloc(n, sizeof *cache->kept);
    cache->current = calloc(n, sizeof *cache->current);
    cache->window = calloc(3 * layers, sizeof *cache->window);
    if (!cache->kept || !cache->current || !cache->window) {
        qn__cache_end(cache);
        return qn__fail_memory(err, "a cache");
    }
    cache->ring = cache->window + layers;
    cache->keep = cache->ring + layers;
    return QN_OK;
}

void qn__cache_end(qn__cache *cache)
{
    for (int i = 0; cache->kept && i <= 2 * cache->shape.n_layers; i++)
        qn_release(cache->kept[i]);
    free(cache->kept);
    free(cache->current);
    free(cache->window);
    *cache = (qn__cache){0};
}

/* Slots that are the first positions' for good. */
static int64_t pinned_positions(const qn__cache *cache, int layer)
{
    return cache->keep[layer] ? QN__PINNED : 0;
}

void qn__cache_set_window(qn__cache *cache, int layer, int64_t window, int64_t keep,
                          int64_t most_new)
{
    cache->window[layer] = window - keep;
    cache->keep[layer] = keep;
    cache->ring[layer] = pinned_positions(cache, layer) +
                         (window - keep - 1 + most_new + RING_BLOCK - 1) / RING_BLOCK * RING_BLOCK;
    cache->most_new = most_new;
}

/* Positions in a layer's buffers when those of layers without a ring have `capacity`. */
static int64_t layer_capacity(const qn__cache *cache, int layer, int64_t capacity)
{
    int64_t ring = cache->ring[layer];
    return ring && ring < capacity ? ring : capacity;
}

/* The shape of a layer's keys or values for `capacity` positions. */
static int buffer_shape(const qn__cache *cache, bool keys, int64_t capacity, int64_t *shape)
{
    const qn__cache_shape *c = &cache->shape;
    shape[0] = c->batch;
    shape[1] = c->heads;
    shape[2] = keys ? capacity / QN__KEY_GROUP : capacity;
    shape[3] = keys ? c->key_dim : c->value_dim;
    shape[4] = QN__KEY_GROUP;
    return keys ? 5 : 4;
}

static qn_array *zeros(qn_scope *s, const qn__cache *cache, bool keys, int64_t capacity)
{
    int64_t shape[QN_MAX_NDIM];
    int ndim = buffer_shape(cache, keys, capacity, shape);
    return qn_zeros(s, cache->shape.dtype, ndim, shape);
}

/* The first new position: where the device has counted it up itself, that array. */
static qn_array *take_position(qn_scope *s, qn__cache *cache)
{
    qn_array **kept = &cache->kept[2 * cache->shape.n_layers];
    qn_array *old = *kept;
    *kept = NULL;
    if (old && cache->position == cache->length)
        return qn_donate(s, old);
    qn_release(old);
    int32_t length = (int32_t)cache->length;
    return qn_from_i32(s, &length, 1);
}

/* A layer's keys or values for the step: what is kept, or something larger that begins with it. */
static qn_array *take_buffer(qn_scope *s, qn__cache *cache, int i)
{
    bool keys = i % 2 == 0;
    int64_t had = layer_capacity(cache, i / 2, cache->capacity);
    int64_t want = layer_capacity(cache, i / 2, cache->grown);
    if (!cache->kept[i])
        return zeros(s, cache, keys, want);
    if (want == had)
        return qn__lend(s, cache->kept[i]);
    qn_array *both[] = {cache->kept[i], zeros(s, cache, keys, want - had)};
    return qn_concatenate(s, both, 2, 2);
}

void qn__cache_step(qn_scope *s, qn__cache *cache, int64_t n)
{
    int64_t want = cache->length + n;
    int64_t capacity = (want + QN__CACHE_CHUNK - 1) / QN__CACHE_CHUNK * QN__CACHE_CHUNK;
    if (cache->most_new && n > cache->most_new)
        qn__scope_fail(s, QN_INVALID, "a step of %lld positions, the cache was made for %lld",
                       (long long)n, (long long)cache->most_new);
    cache->grown = capacity > cache->capacity ? capacity : cache->capacity;
    cache->offset = take_position(s, cache);
    cache->n_new = n;
    cache->written = want > cache->written ? want : cache->written;
    for (int i = 0; i < 2 * cache->shape.n_layers; i++)
        cache->current[i] = take_buffer(s, cache, i);
}

qn_array *qn__cache_attend(qn_scope *s, qn__cache *cache, int layer, qn_array *q, qn_array *k,
                           qn_array *v, const qn_attention_options *options)
{
    qn_array **keys = &cache->current[2 * layer], **values = keys + 1;
    qn_attention_options o = *options;
    int64_t window = cache->window[layer], keep = cache->keep[layer];
    o.window = window && (!o.window || window < o.window) ? window : o.window;
    *keys = qn__write_keys(s, *keys, k, cache->offset, keep > 0);
    *values = qn__write_values(s, *values, v, cache->offset, keep > 0);
    return qn__attend(s, q, *keys, *values, cache->offset, keep, &o);
}

qn_array *const *qn__cache_targets(qn_scope *s, qn__cache *cache, int *n)
{
    int last = 2 * cache->shape.n_layers;
    cache->current[last] = qn_add(s, cache->offset, qn_scalar(s, QN_I32, (double)cache->n_new));
    *n = last + 1;
    return cache->current;
}

/* The new buffers in the place of the old ones, all or none. */
static bool keep_current(qn__cache *cache)
{
    int n = 2 * cache->shape.n_layers + 1, i = 0;
    for (; i < n; i++) /* a reference to each first, since that can fail */
        if (!(cache->current[i] = qn_retain(cache->current[i])))
            break;
    bool all = i == n;
    for (int k = 0; k < i; k++) {
        qn_array *dropped = all ? cache->kept[k] : cache->current[k];
        if (all)
            cache->kept[k] = cache->current[k];
        qn_release(dropped);
    }
    return all;
}

void qn__cache_commit(qn_scope *s, qn__cache *cache)
{
    if (qn_scope_status(s) != QN_OK || !keep_current(cache))
        return;
    cache->capacity = cache->grown;
    cache->position = cache->length += cache->n_new;
}

/* Whether every position that a query at `length` sees is in its slot. */
static bool holds(const qn__cache *cache, int64_t length)
{
    for (int i = 0; i < cache->shape.n_layers; i++) {
        int64_t first = length - cache->window[i] + 1, pinned = pinned_positions(cache, i);
        int64_t needed = first > pinned ? first : pinned; /* the first one of the ring */
        if (cache->ring[i] && cache->written > cache->ring[i] - pinned + needed)
            return false;
    }
    return true;
}

int64_t qn__cache_rewind(qn__cache *cache, int64_t length)
{
    if (length < 0 || length >= cache->length)
        return cache->length;
    cache->length = holds(cache, length) ? length : 0;
    if (cache->length == 0)
        cache->written = 0;
    return cache->length;
}

size_t qn__cache_bytes(const qn__cache *cache)
{
    const qn__cache_shape *c = &cache->shape;
    int64_t positions = 0;
    for (int i = 0; i < c->n_layers; i++)
        positions += layer_capacity(cache, i, cache->capacity);
    return (size_t)(c->batch * c->heads * (c->key_dim + c->value_dim) * positions) *
           qn_dtype_size(c->dtype);
}
