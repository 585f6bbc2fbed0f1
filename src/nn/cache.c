/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache.
 */
#include "nn/cache.h"

#include "base/error.h"

#include <stdlib.h>

qn_status qn__cache_begin(qn__cache *cache, const qn__cache_shape *shape, qn_error *err)
{
    *cache = (qn__cache){.shape = *shape};
    size_t n = 2 * (size_t)shape->n_layers + 1;
    cache->kept = calloc(n, sizeof *cache->kept);
    cache->current = calloc(n, sizeof *cache->current);
    if (!cache->kept || !cache->current) {
        qn__cache_end(cache);
        return qn__fail_memory(err, "a cache");
    }
    return QN_OK;
}

static void drop_buffers(qn__cache *cache)
{
    for (int i = 0; cache->kept && i <= 2 * cache->shape.n_layers; i++) {
        qn_release(cache->kept[i]);
        cache->kept[i] = NULL;
    }
    cache->length = cache->capacity = 0;
}

void qn__cache_end(qn__cache *cache)
{
    drop_buffers(cache);
    free(cache->kept);
    free(cache->current);
    *cache = (qn__cache){0};
}

/* The shape of a layer's keys or values for `capacity` positions. */
static int buffer_shape(const qn__cache *cache, bool keys, int64_t capacity, int64_t *shape)
{
    const qn__cache_shape *c = &cache->shape;
    shape[0] = c->batch;
    shape[1] = c->heads;
    shape[2] = keys ? capacity / 16 : capacity;
    shape[3] = keys ? c->key_dim : c->value_dim;
    shape[4] = 16;
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

void qn__cache_step(qn_scope *s, qn__cache *cache, int64_t n)
{
    int64_t want = cache->length + n;
    int64_t capacity = (want + QN__CACHE_CHUNK - 1) / QN__CACHE_CHUNK * QN__CACHE_CHUNK;
    cache->offset = take_position(s, cache);
    cache->n_new = n;
    for (int i = 0; i < 2 * cache->shape.n_layers; i++) {
        bool keys = i % 2 == 0;
        qn_array *old = cache->kept[i];
        cache->kept[i] = NULL;
        if (!old) {
            cache->current[i] = zeros(s, cache, keys, capacity);
        } else if (capacity > cache->capacity) {
            qn_array *both[] = {old, zeros(s, cache, keys, capacity - cache->capacity)};
            cache->current[i] = qn_concatenate(s, both, 2, 2);
            qn_release(old);
        } else {
            cache->current[i] = qn_donate(s, old);
        }
    }
    if (capacity > cache->capacity)
        cache->capacity = capacity;
}

qn_array *qn__cache_attend(qn_scope *s, qn__cache *cache, int layer, qn_array *q, qn_array *k,
                           qn_array *v, const qn_attention_options *options)
{
    qn_array **keys = &cache->current[2 * layer], **values = keys + 1;
    *keys = qn__write_keys(s, *keys, k, cache->offset);
    *values = qn__write_values(s, *values, v, cache->offset);
    return qn__attend(s, q, *keys, *values, cache->offset, options);
}

qn_array *const *qn__cache_targets(qn_scope *s, qn__cache *cache, int *n)
{
    int last = 2 * cache->shape.n_layers;
    cache->current[last] = qn_add(s, cache->offset, qn_scalar(s, QN_I32, (double)cache->n_new));
    *n = last + 1;
    return cache->current;
}

void qn__cache_commit(qn_scope *s, qn__cache *cache)
{
    bool ok = qn_scope_status(s) == QN_OK;
    for (int i = 0; ok && i <= 2 * cache->shape.n_layers; i++)
        ok = (cache->kept[i] = qn_retain(cache->current[i])) != NULL;
    if (ok)
        cache->position = cache->length += cache->n_new;
    else
        drop_buffers(cache);
}

void qn__cache_rewind(qn__cache *cache, int64_t length)
{
    if (length >= 0 && length < cache->length)
        cache->length = length;
}

size_t qn__cache_bytes(const qn__cache *cache)
{
    const qn__cache_shape *c = &cache->shape;
    return (size_t)(c->batch * c->heads * (c->key_dim + c->value_dim) * cache->capacity) *
           qn_dtype_size(c->dtype) * (size_t)c->n_layers;
}
