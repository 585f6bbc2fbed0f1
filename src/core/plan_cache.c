/* SPDX-License-Identifier: Apache-2.0
 *
 * The plans of a device, found by key; the least recently used go when their bytes pass the limit.
 */
#include "base/sized.h"
#include "core/device.h"
#include "core/scope.h"

#include <stdlib.h>

enum { DEFAULT_LIMIT = 64 << 20 };

void qn__plan_cache_begin(qn__plan_cache *cache)
{
    pthread_mutex_init(&cache->lock, NULL);
    cache->limit = DEFAULT_LIMIT;
}

/* What a plan and the binding it keeps take. */
static size_t plan_bytes(const qn__plan *plan)
{
    return plan->arena.total + (plan->newest ? plan->newest->bytes : 0);
}

static void unlink_plan(qn__plan_cache *cache, qn__plan *plan)
{
    qn__plan **p = &cache->table[plan->hash % QN__PLAN_BUCKETS];
    while (*p != plan)
        p = &(*p)->next_in_bucket;
    *p = plan->next_in_bucket;
    *(plan->newer ? &plan->newer->older : &cache->newest) = plan->older;
    *(plan->older ? &plan->older->newer : &cache->oldest) = plan->newer;
    cache->bytes -= plan_bytes(plan);
}

static void push_newest(qn__plan_cache *cache, qn__plan *plan)
{
    plan->newer = NULL;
    plan->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = plan;
    cache->newest = plan;
}

static void make_newest(qn__plan_cache *cache, qn__plan *plan)
{
    if (cache->newest == plan)
        return;
    plan->newer->older = plan->older;
    *(plan->older ? &plan->older->newer : &cache->oldest) = plan->newer;
    push_newest(cache, plan);
}

void qn__plan_release(qn__plan *plan)
{
    if (!plan || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1)
        return;
    qn__arena arena = plan->arena; /* the plan lies in its own arena */
    qn__arena_free(&arena);
}

static void evict(qn__plan_cache *cache, qn__plan *plan)
{
    unlink_plan(cache, plan);
    qn__binding_release(plan->newest);
    plan->newest = NULL;
    qn__plan_release(plan);
}

void qn__plan_cache_end(qn__plan_cache *cache)
{
    while (cache->oldest)
        evict(cache, cache->oldest);
    pthread_mutex_destroy(&cache->lock);
}

static qn__plan *find(qn__plan_cache *cache, const qn__live *live)
{
    for (qn__plan *p = cache->table[live->hash % QN__PLAN_BUCKETS]; p; p = p->next_in_bucket)
        if (p->hash == live->hash && p->n_key == live->n_key &&
            !memcmp(p->key, live->key, live->n_key * sizeof *live->key))
            return p;
    return NULL;
}

static bool fits(const qn__binding *b, const qn__live *live)
{
    return b && b->n_sizes == live->n_sizes &&
           !memcmp(b->sizes, live->sizes, live->n_sizes * sizeof *live->sizes);
}

/* Old plans go while there are more bytes than `keep`; the newest stays. */
static void trim_plans(qn__plan_cache *cache, size_t keep)
{
    while (cache->bytes > keep && cache->oldest != cache->newest) {
        evict(cache, cache->oldest);
        cache->stats.evictions++;
    }
}

/* Counts more bytes of a plan, with which older ones may be too many. */
static void add_bytes(qn__plan_cache *cache, size_t bytes)
{
    cache->bytes += bytes;
    trim_plans(cache, cache->limit);
}

void qn__plan_grown(qn__binding *binding, size_t bytes)
{
    qn__plan_cache *cache = &binding->plan->device->plans;
    pthread_mutex_lock(&cache->lock);
    binding->bytes += bytes;
    if (binding->plan->newest == binding)
        add_bytes(cache, bytes);
    pthread_mutex_unlock(&cache->lock);
}

void qn__plan_cache_clear(qn__plan_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    trim_plans(cache, 0);
    pthread_mutex_unlock(&cache->lock);
}

static void insert(qn__plan_cache *cache, qn__plan *plan)
{
    qn__plan **bucket = &cache->table[plan->hash % QN__PLAN_BUCKETS];
    plan->next_in_bucket = *bucket;
    *bucket = plan;
    push_newest(cache, plan);
    add_bytes(cache, plan_bytes(plan));
}

/* The plan with a reference for the caller, made when there is none. */
static qn__plan *find_or_make(qn_scope *s, const qn__live *live, qn__binding **binding)
{
    qn__plan_cache *cache = &s->device->plans;
    pthread_mutex_lock(&cache->lock);
    qn__plan *plan = find(cache, live);
    if (plan) {
        make_newest(cache, plan);
        atomic_fetch_add(&plan->refs, 1);
        if (fits(plan->newest, live)) {
            *binding = plan->newest;
            atomic_fetch_add(&plan->newest->refs, 1);
        } else {
            cache->stats.rebinds++;
        }
        cache->stats.hits++;
    }
    pthread_mutex_unlock(&cache->lock);
    if (plan)
        return plan;
    plan = qn__plan_make(s, live);
    if (!plan)
        return NULL;
    pthread_mutex_lock(&cache->lock);
    cache->stats.misses++;
    if (!find(cache, live)) { /* another thread may have made it meanwhile */
        atomic_fetch_add(&plan->refs, 1);
        insert(cache, plan);
    }
    pthread_mutex_unlock(&cache->lock);
    return plan;
}

qn__binding *qn__plan_lookup(qn_scope *s, const qn__live *live, bool *made)
{
    qn__binding *binding = NULL;
    qn__plan *plan = find_or_make(s, live, &binding);
    *made = !binding;
    if (!plan || binding) {
        qn__plan_release(plan);
        return binding;
    }
    binding = qn__binding_make(s, plan, live);
    if (binding) {
        qn__plan_cache *cache = &s->device->plans;
        pthread_mutex_lock(&cache->lock);
        qn__binding *old = NULL;
        if (find(cache, live) == plan) {
            old = plan->newest;
            cache->bytes -= old ? old->bytes : 0;
            plan->newest = binding;
            atomic_fetch_add(&binding->refs, 1);
            make_newest(cache, plan);
            add_bytes(cache, binding->bytes);
        }
        pthread_mutex_unlock(&cache->lock);
        qn__binding_release(old);
    }
    qn__plan_release(plan);
    return binding;
}

qn_status qn_device_plan_stats(qn_device *device, qn_plan_stats *out)
{
    qn__plan_cache *cache = &device->plans;
    pthread_mutex_lock(&cache->lock);
    qn_plan_stats stats = cache->stats;
    stats.bytes = cache->bytes;
    pthread_mutex_unlock(&cache->lock);
    return qn__sized_out(out, &stats, sizeof stats);
}
