/* SPDX-License-Identifier: Apache-2.0
 *
 * The buffer pool. Small blocks are rounded to powers of two, larger ones to an eighth of their size,
 * so that the lengths of a growing cache find each other's blocks again.
 */
#include "core/buffer.h"

#include "base/checked.h"
#include "base/error.h"
#include "core/device.h"

#include <stdlib.h>

void qn__pool_begin(qn__pool *pool)
{
    pthread_mutex_init(&pool->lock, NULL);
    pool->cache_limit = SIZE_MAX;
}

void qn__pool_end(qn_device *device)
{
    qn__pool_trim(device, 0);
    if (device->pool.workspace)
        device->ops->free(device, device->pool.workspace, device->pool.workspace_size);
    free(device->pool.blocks);
    pthread_mutex_destroy(&device->pool.lock);
}

static bool rounded(size_t size, size_t *out)
{
    if (size < 64)
        size = 64;
    size_t step = 64;
    if (size <= 4096)
        step = (size_t)1 << (64 - __builtin_clzl(size - 1));
    else
        step = (size_t)1 << (60 - __builtin_clzl(size - 1));
    return qn__align_size(size, step, out);
}

/* Takes the newest block that fits and wastes at most a quarter; -1 when there is none. */
static long find_block(qn__pool *pool, size_t capacity)
{
    for (size_t i = pool->n_blocks; i-- > 0;)
        if (pool->blocks[i].capacity >= capacity &&
            pool->blocks[i].capacity - capacity <= capacity / 4)
            return (long)i;
    return -1;
}

static void *take_block(qn_device *device, size_t *capacity)
{
    qn__pool *pool = &device->pool;
    long i = find_block(pool, *capacity);
    if (i < 0)
        return NULL;
    void *data = pool->blocks[i].data;
    *capacity = pool->blocks[i].capacity;
    pool->blocks[i] = pool->blocks[--pool->n_blocks];
    pool->cached -= *capacity;
    return data;
}

static void trim_locked(qn_device *device, size_t keep)
{
    qn__pool *pool = &device->pool;
    size_t first = 0; /* oldest first */
    while (first < pool->n_blocks && pool->cached > keep) {
        pool->cached -= pool->blocks[first].capacity;
        device->ops->free(device, pool->blocks[first].data, pool->blocks[first].capacity);
        first++;
    }
    pool->n_blocks -= first;
    memmove(pool->blocks, pool->blocks + first, pool->n_blocks * sizeof *pool->blocks);
}

void qn__pool_trim(qn_device *device, size_t keep)
{
    if (!device->pool.blocks)
        return;
    pthread_mutex_lock(&device->pool.lock);
    trim_locked(device, keep);
    pthread_mutex_unlock(&device->pool.lock);
}

static size_t in_use(const qn__pool *pool)
{
    return pool->active + pool->workspace_size;
}

static void note_peak(qn__pool *pool)
{
    if (in_use(pool) > pool->peak)
        pool->peak = in_use(pool);
}

static void *take_fresh(qn_device *device, size_t capacity)
{
    qn__pool *pool = &device->pool;
    size_t limit = pool->limit ? pool->limit : SIZE_MAX;
    if (capacity > limit || in_use(pool) > limit - capacity)
        return NULL;
    if (in_use(pool) + pool->cached > limit - capacity)
        trim_locked(device, limit - capacity - in_use(pool));
    void *data = device->ops->alloc(device, capacity);
    if (!data && pool->n_blocks) {
        trim_locked(device, 0);
        data = device->ops->alloc(device, capacity);
    }
    return data;
}

/* Why there is no memory. */
static void fail_room(qn_device *device, size_t size, const char *what, qn_error *err)
{
    const qn__pool *pool = &device->pool;
    if (pool->limit)
        qn__fail(err, QN_LIMIT, "%s: %zu bytes wanted for %s, %zu in use, the limit is %zu",
                 device->name, size, what, in_use(pool), pool->limit);
    else
        qn__fail(err, QN_MEMORY, "%s: no memory for %s of %zu bytes (%zu in use)", device->name,
                 what, size, in_use(pool));
}

void *qn__pool_workspace(qn_device *device, size_t size, qn_error *err)
{
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    if (size > pool->workspace_size || !pool->workspace) {
        if (pool->workspace)
            device->ops->free(device, pool->workspace, pool->workspace_size);
        pool->workspace_size = 0;
        pool->workspace = take_fresh(device, size ? size : 1);
        if (pool->workspace)
            pool->workspace_size = size;
        else
            fail_room(device, size, "a workspace", err);
        note_peak(pool);
    }
    void *workspace = pool->workspace;
    pthread_mutex_unlock(&pool->lock);
    return workspace;
}

qn__buffer *qn__buffer_new(qn_device *device, size_t size, qn_error *err)
{
    qn__pool *pool = &device->pool;
    size_t capacity;
    if (!rounded(size, &capacity)) {
        qn__fail(err, QN_MEMORY, "%s: a buffer of %zu bytes", device->name, size);
        return NULL;
    }
    qn__buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer) {
        qn__fail_memory(err, "a buffer");
        return NULL;
    }
    pthread_mutex_lock(&pool->lock);
    void *data = take_block(device, &capacity);
    if (!data)
        data = take_fresh(device, capacity);
    if (data)
        pool->active += capacity;
    else
        fail_room(device, size, "an array", err);
    note_peak(pool);
    pthread_mutex_unlock(&pool->lock);
    if (!data) {
        free(buffer);
        return NULL;
    }
    buffer->device = device;
    atomic_fetch_add(&device->refs, 1);
    buffer->data = data;
    buffer->size = size;
    buffer->capacity = capacity;
    atomic_init(&buffer->refs, 1);
    return buffer;
}

qn__buffer *qn__buffer_retain(qn__buffer *buffer)
{
    atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
    return buffer;
}

/* Makes room for one more block; false when memory is out. */
static bool reserve_block(qn__pool *pool)
{
    if (pool->n_blocks < pool->room)
        return true;
    size_t room = pool->room ? pool->room * 2 : 64;
    void *blocks = realloc(pool->blocks, room * sizeof *pool->blocks);
    if (!blocks)
        return false;
    pool->blocks = blocks;
    pool->room = room;
    return true;
}

void qn__buffer_release(qn__buffer *buffer)
{
    if (!buffer || atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) != 1)
        return;
    qn_device *device = buffer->device;
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    pool->active -= buffer->capacity;
    if (buffer->capacity <= pool->cache_limit && reserve_block(pool)) {
        pool->blocks[pool->n_blocks++] =
            (struct qn__pool_block){buffer->data, buffer->capacity};
        pool->cached += buffer->capacity;
        if (pool->cached > pool->cache_limit)
            trim_locked(device, pool->cache_limit);
    } else {
        device->ops->free(device, buffer->data, buffer->capacity);
    }
    pthread_mutex_unlock(&pool->lock);
    free(buffer);
    qn_device_close(device);
}

qn_memory_stats qn_device_memory(qn_device *device)
{
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    qn_memory_stats stats = {.active = pool->active, .workspace = pool->workspace_size,
                             .cached = pool->cached, .peak = pool->peak, .limit = pool->limit};
    pthread_mutex_unlock(&pool->lock);
    return stats;
}

void qn_device_reset_peak(qn_device *device)
{
    pthread_mutex_lock(&device->pool.lock);
    device->pool.peak = in_use(&device->pool);
    pthread_mutex_unlock(&device->pool.lock);
}

size_t qn_device_set_memory_limit(qn_device *device, size_t bytes)
{
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    size_t before = pool->limit;
    pool->limit = bytes;
    if (bytes)
        trim_locked(device, bytes > in_use(pool) ? bytes - in_use(pool) : 0);
    pthread_mutex_unlock(&pool->lock);
    return before;
}

size_t qn_device_set_cache_limit(qn_device *device, size_t bytes)
{
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    size_t before = pool->cache_limit;
    pool->cache_limit = bytes;
    trim_locked(device, bytes);
    pthread_mutex_unlock(&pool->lock);
    return before;
}

void qn_device_clear_cache(qn_device *device)
{
    qn__pool_trim(device, 0);
}
