/* SPDX-License-Identifier: Apache-2.0
 *
 * The buffer pool. Small blocks are rounded to powers of two, larger ones to an eighth of their
 * size, so that the lengths of a growing cache find each other's blocks again. Released buffers
 * stay in a list for each rounded size and in one by age; looking for a block looks at the newest
 * of a few lists. What is in use and what is cached are together never more than what was once in
 * use.
 */
#include "core/buffer.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/sized.h"
#include "core/device.h"

#include <stdio.h>
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
    pthread_mutex_destroy(&device->pool.lock);
}

/* ---- sizes ---------------------------------------------------------------------------------- */

enum { COMMIT_STEP = 1 << 16 };
enum { SMALLEST_LOG = 6, FINE_LOG = 12, EIGHTHS = 8 };

/* Rounds up to a size class; false: too large. */
static bool rounded(size_t size, size_t *out)
{
    if (size < (size_t)1 << SMALLEST_LOG)
        size = (size_t)1 << SMALLEST_LOG;
    int e = 63 - __builtin_clzl(size - 1); /* 2^e < size <= 2^(e + 1) */
    return qn__align_size(size, (size_t)1 << (e < FINE_LOG ? e + 1 : e - 3), out);
}

/* The number of a rounded size: powers of two up to 4096, then eighths of the power below. */
static size_t class_of(size_t capacity)
{
    int e = 63 - __builtin_clzl(capacity - 1);
    if (e < FINE_LOG)
        return (size_t)(e + 1 - SMALLEST_LOG);
    size_t step = (size_t)1 << (e - 3), above = (capacity - ((size_t)1 << e)) / step;
    return (size_t)(FINE_LOG - SMALLEST_LOG) + (size_t)(e - FINE_LOG) * EIGHTHS + above;
}

/* ---- the cache ------------------------------------------------------------------------------ */

static void take_out(qn__pool *pool, qn__buffer *b)
{
    *(b->older ? &b->older->newer : &pool->oldest) = b->newer;
    *(b->newer ? &b->newer->older : &pool->newest) = b->older;
    *(b->above ? &b->above->below : &pool->classes[class_of(b->capacity)]) = b->below;
    if (b->below)
        b->below->above = b->above;
    pool->cached -= b->capacity;
}

static void put_in(qn__pool *pool, qn__buffer *b)
{
    qn__buffer **top = &pool->classes[class_of(b->capacity)];
    b->above = NULL;
    b->below = *top;
    if (*top)
        (*top)->above = b;
    *top = b;
    b->newer = NULL;
    b->older = pool->newest;
    *(pool->newest ? &pool->newest->newer : &pool->oldest) = b;
    pool->newest = b;
    pool->cached += b->capacity;
}

/* The newest cached buffer of `capacity` bytes, or of up to a quarter more; NULL when there is
 * none. */
static qn__buffer *take_cached(qn__pool *pool, size_t capacity)
{
    size_t at = class_of(capacity), wider = capacity > (size_t)1 << FINE_LOG ? 2 : 0;
    for (size_t i = at; i <= at + wider && i < QN__POOL_CLASSES; i++) {
        qn__buffer *b = pool->classes[i];
        if (b && b->capacity - capacity <= capacity / 4) {
            take_out(pool, b);
            return b;
        }
    }
    return NULL;
}

static void trim_locked(qn_device *device, size_t keep)
{
    qn__pool *pool = &device->pool;
    while (pool->oldest && pool->cached > keep) {
        qn__buffer *b = pool->oldest;
        take_out(pool, b);
        device->ops->free(device, b->data, b->capacity);
        free(b);
    }
}

void qn__pool_trim(qn_device *device, size_t keep)
{
    pthread_mutex_lock(&device->pool.lock);
    trim_locked(device, keep);
    pthread_mutex_unlock(&device->pool.lock);
}

/* ---- what is in use, and the limit ---------------------------------------------------------- */

static size_t workspace_counted(const qn__pool *pool)
{
    return pool->workspace_size > pool->workspace_wanted ? pool->workspace_size
                                                         : pool->workspace_wanted;
}

static size_t in_use(const qn__pool *pool)
{
    return pool->active + workspace_counted(pool);
}

static void note_peak(qn__pool *pool)
{
    size_t held = pool->active + pool->workspace_size;
    if (held > pool->peak)
        pool->peak = held;
    if (held > pool->high)
        pool->high = held;
}

/* Gives the workspace back when no run has it or waits for it. */
static void drop_workspace(qn_device *device)
{
    qn__pool *pool = &device->pool;
    if (pool->n_waiting || !pool->workspace)
        return;
    device->ops->free(device, pool->workspace, pool->workspace_size);
    pool->workspace = NULL;
    pool->workspace_size = 0;
}

static size_t limit_of(const qn__pool *pool)
{
    return pool->limit ? pool->limit : SIZE_MAX;
}

/* Whether `more` bytes may come into use; an idle workspace makes room. */
static bool may_use(qn_device *device, size_t more)
{
    qn__pool *pool = &device->pool;
    size_t limit = limit_of(pool);
    if (more <= limit && in_use(pool) <= limit - more)
        return true;
    drop_workspace(device);
    return more <= limit && in_use(pool) <= limit - more;
}

/* Fresh memory, which the caller has found to be within the limit. */
static void *take_fresh(qn_device *device, size_t capacity, size_t used)
{
    qn__pool *pool = &device->pool;
    if (pool->cached > limit_of(pool) - capacity - used)
        trim_locked(device, limit_of(pool) - capacity - used);
    void *data = device->ops->alloc(device, capacity);
    if (!data) {
        trim_locked(device, 0);
        data = device->ops->alloc(device, capacity);
    }
    return data;
}

/* What the device has free; 0: it cannot say. */
static size_t available(qn_device *device, qn_error *err)
{
    size_t bytes = 0;
    if (device->ops->available && device->ops->available(device, &bytes, err) != QN_OK)
        return 0;
    return bytes;
}

/* Why there is no memory: the limit, or the machine, of which `size` bytes take `whole`, or a
 * device that has failed. */
static void fail_pieces(qn_device *device, size_t size, size_t whole, const char *what,
                        qn_error *err)
{
    const qn__pool *pool = &device->pool;
    size_t limit = limit_of(pool), used = in_use(pool), room = limit > used ? limit - used : 0;
    size_t capacity = size;
    if (rounded(size, &capacity) && capacity > room) {
        qn__fail(err, QN_LIMIT,
                 "%s: %zu bytes wanted for %s, %zu in use, the limit is %zu: %zu are missing",
                 device->name, size, what, used, pool->limit, capacity - room);
        return;
    }
    qn_error failure = {0};
    size_t there = available(device, &failure);
    char free_bytes[100] = "";
    qn__size_text a, b;
    if (there >= whole) /* in pieces that are too small */
        snprintf(free_bytes, sizeof free_bytes, ", %s free", qn__say_size(there, &a));
    else if (there)
        snprintf(free_bytes, sizeof free_bytes, ", %s free, %s missing", qn__say_size(there, &a),
                 qn__say_size(whole - there, &b));
    if (failure.code != QN_OK)
        qn__fail(err, failure.code, "%s", failure.message);
    qn__fail(err, QN_MEMORY, "%s: no memory for %s of %s (%s in use%s)", device->name, what,
             qn__say_size(whole, &a), qn__say_size(used, &b), free_bytes);
}

static void fail_room(qn_device *device, size_t size, const char *what, qn_error *err)
{
    fail_pieces(device, size, size, what, err);
}

/* What the first `bytes` of a reserved buffer take of the device. */
static size_t taken(const qn_device *device, size_t bytes)
{
    return device->ops->committed ? device->ops->committed(device, bytes) : bytes;
}

size_t qn__pool_room(qn_device *device)
{
    qn__pool *pool = &device->pool;
    size_t there = available(device, NULL), room = SIZE_MAX;
    pthread_mutex_lock(&pool->lock);
    size_t limit = limit_of(pool), used = in_use(pool);
    if (there)
        room = there + pool->cached;
    if (pool->limit && (limit > used ? limit - used : 0) < room)
        room = limit > used ? limit - used : 0;
    pthread_mutex_unlock(&pool->lock);
    return room;
}

bool qn__pool_workspace_reserve(qn_device *device, size_t size, qn_error *err)
{
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    size_t counted = workspace_counted(pool);
    bool ok = size <= counted || may_use(device, size - counted);
    if (ok) {
        pool->n_waiting++;
        if (pool->workspace_wanted < size)
            pool->workspace_wanted = size;
    } else {
        fail_room(device, size, "a workspace", err);
    }
    pthread_mutex_unlock(&pool->lock);
    return ok;
}

void *qn__pool_workspace(qn_device *device, size_t size, qn_error *err)
{
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    if (size > pool->workspace_size || !pool->workspace) {
        if (pool->workspace)
            device->ops->free(device, pool->workspace, pool->workspace_size);
        pool->workspace_size = 0;
        pool->workspace = NULL;
        bool fits = size <= limit_of(pool) && pool->active <= limit_of(pool) - size;
        if (fits)
            pool->workspace = take_fresh(device, size ? size : 1, pool->active);
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

void qn__pool_workspace_done(qn_device *device)
{
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    if (--pool->n_waiting == 0) {
        pool->workspace_wanted = 0;
        if (in_use(pool) > limit_of(pool))
            drop_workspace(device); /* the limit was lowered meanwhile */
    }
    pthread_mutex_unlock(&pool->lock);
}

/* ---- buffers -------------------------------------------------------------------------------- */

/* A buffer without data; NULL when memory is out. */
static qn__buffer *fresh_buffer(qn_device *device, size_t capacity)
{
    qn__buffer *buffer = may_use(device, capacity) ? calloc(1, sizeof *buffer) : NULL;
    if (!buffer)
        return NULL;
    buffer->data = take_fresh(device, capacity, in_use(&device->pool));
    buffer->capacity = capacity;
    if (buffer->data)
        return buffer;
    free(buffer);
    return NULL;
}

static qn__buffer *begin_buffer(qn__buffer *buffer, qn_device *device, size_t size)
{
    buffer->device = device;
    atomic_fetch_add(&device->refs, 1);
    buffer->size = size;
    atomic_init(&buffer->refs, 1);
    atomic_init(&buffer->in_flight, 0);
    atomic_init(&buffer->invalid, false);
    atomic_init(&buffer->lent, false);
    atomic_init(&buffer->written_by, 0);
    atomic_init(&buffer->written_since, false);
    return buffer;
}

qn__buffer *qn__buffer_new(qn_device *device, size_t size, qn_error *err)
{
    qn__pool *pool = &device->pool;
    size_t capacity;
    if (!rounded(size, &capacity)) {
        qn__fail(err, QN_MEMORY, "%s: a buffer of %zu bytes", device->name, size);
        return NULL;
    }
    pthread_mutex_lock(&pool->lock);
    qn__buffer *buffer = take_cached(pool, capacity);
    if (!buffer)
        buffer = fresh_buffer(device, capacity);
    if (buffer)
        pool->active += buffer->capacity;
    else
        fail_room(device, size, "an array", err);
    note_peak(pool);
    pthread_mutex_unlock(&pool->lock);
    return buffer ? begin_buffer(buffer, device, size) : NULL;
}

qn__buffer *qn__buffer_reserve(qn_device *device, size_t size, qn_error *err)
{
    if (!device->ops->reserve)
        return qn__buffer_new(device, size, err);
    qn__buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer)
        buffer->data = device->ops->reserve(device, size);
    if (!buffer || !buffer->data) {
        free(buffer);
        qn__fail(err, QN_MEMORY, "%s: no addresses for %zu bytes", device->name, size);
        return NULL;
    }
    buffer->reserved = true;
    return begin_buffer(buffer, device, size);
}

/* How much memory a reserved buffer gets that needs `bytes`: an eighth more than it had, so that
 * growing by pages asks the device seldom. */
static size_t to_commit(const qn__buffer *buffer, size_t bytes)
{
    size_t had = buffer->capacity, more = had + had / 8;
    size_t want = bytes > had && bytes < more ? more : bytes;
    want = want < buffer->size ? want : buffer->size;
    return qn__align_size(want, COMMIT_STEP, &want) ? want : buffer->size;
}

bool qn__buffer_commit(qn__buffer *buffer, size_t bytes, qn_error *err)
{
    qn_device *device = buffer->device;
    qn__pool *pool = &device->pool;
    if (!buffer->reserved || bytes == buffer->capacity)
        return true;
    size_t had = buffer->capacity, want = to_commit(buffer, bytes);
    if (bytes < had && want >= had)
        return true;
    pthread_mutex_lock(&pool->lock);
    bool ok = want <= had || may_use(device, want - had);
    if (ok && want > had && pool->cached > limit_of(pool) - (want - had) - in_use(pool))
        trim_locked(device, limit_of(pool) - (want - had) - in_use(pool));
    bool done = ok && device->ops->commit(device, buffer->data, had, want);
    if (ok && !done) {
        trim_locked(device, 0);
        done = device->ops->commit(device, buffer->data, had, want);
    }
    ok = done;
    if (ok) {
        buffer->capacity = want;
        pool->active += want - had; /* wraps where it is less */
    } else {
        fail_pieces(device, want - had, taken(device, want) - taken(device, had), "a cache's pages",
                    err);
    }
    note_peak(pool);
    pthread_mutex_unlock(&pool->lock);
    return ok;
}

qn__buffer *qn__buffer_retain(qn__buffer *buffer)
{
    atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
    return buffer;
}

void qn__buffer_release(qn__buffer *buffer)
{
    if (!buffer || atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) != 1)
        return;
    qn_device *device = buffer->device;
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    pool->active -= buffer->capacity;
    if (buffer->reserved) {
        device->ops->unreserve(device, buffer->data, buffer->size, buffer->capacity);
        free(buffer);
    } else {
        put_in(pool, buffer);
    }
    size_t held = pool->active + pool->workspace_size;
    size_t room = pool->high > held ? pool->high - held : 0;
    trim_locked(device, room < pool->cache_limit ? room : pool->cache_limit);
    pthread_mutex_unlock(&pool->lock);
    qn_device_close(device);
}

qn_status qn_device_memory(qn_device *device, qn_memory_stats *out)
{
    qn__pool *pool = &device->pool;
    size_t there = available(device, NULL);
    size_t wired = device->ops->wired ? device->ops->wired(device) : 0;
    pthread_mutex_lock(&pool->lock);
    qn_memory_stats stats = {.active = pool->active,
                             .workspace = pool->workspace_size,
                             .cached = pool->cached,
                             .peak = pool->peak,
                             .limit = pool->limit,
                             .available = there,
                             .wired = wired,
                             .wired_limit = atomic_load(&pool->wired_limit)};
    pthread_mutex_unlock(&pool->lock);
    return qn__sized_out(out, &stats, sizeof stats);
}

void qn_device_reset_peak(qn_device *device)
{
    pthread_mutex_lock(&device->pool.lock);
    device->pool.peak = 0;
    note_peak(&device->pool);
    pthread_mutex_unlock(&device->pool.lock);
}

size_t qn_device_set_memory_limit(qn_device *device, size_t bytes)
{
    qn__pool *pool = &device->pool;
    pthread_mutex_lock(&pool->lock);
    size_t before = pool->limit;
    pool->limit = bytes;
    if (in_use(pool) > limit_of(pool))
        drop_workspace(device);
    trim_locked(device, limit_of(pool) > in_use(pool) ? limit_of(pool) - in_use(pool) : 0);
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

size_t qn_device_set_wired_limit(qn_device *device, size_t bytes)
{
    size_t before = atomic_exchange(&device->pool.wired_limit, bytes);
    if (device->ops->wired)
        device->ops->wired(device);
    return before;
}

void qn_device_clear_cache(qn_device *device)
{
    qn__pool_trim(device, 0);
}
