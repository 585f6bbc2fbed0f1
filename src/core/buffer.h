/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers: reference-counted storage on a device, taken from the device through a cache of freed
 * blocks, counted against a limit. A buffer is the only thing in the library with an atomic
 * reference count per object; arrays hold buffers, submissions hold buffers, the cache holds blocks.
 */
#ifndef QN_CORE_BUFFER_H
#define QN_CORE_BUFFER_H

#include "quern/array.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct qn__buffer {
    qn_device *device;
    void *data;          /* host or device address, 64-byte aligned */
    size_t size;         /* bytes asked for */
    size_t capacity;     /* bytes held: the cache hands out blocks of rounded sizes */
    atomic_int refs;
    atomic_int in_flight; /* references among these that submissions hold */
    atomic_bool invalid; /* a failed run may have half-written it */
    atomic_bool lent;    /* ... and its lender knows which part of it counts */
} qn__buffer;

/* Freed blocks by size class, and the counters. One per device, under its lock. */
typedef struct qn__pool {
    pthread_mutex_t lock;
    struct qn__pool_block {
        void *data;
        size_t capacity;
    } *blocks; /* free blocks, newest last */
    size_t n_blocks, room;
    size_t active, cached, peak;
    size_t limit, cache_limit;
    void *workspace; /* of the run under way */
    size_t workspace_size;
} qn__pool;

void qn__pool_begin(qn__pool *pool);
void qn__pool_end(qn_device *device);

/* Frees cached blocks until at most `keep` bytes are cached. */
void qn__pool_trim(qn_device *device, size_t keep);

/* The device's one workspace, of at least `size` bytes; growing it gives another address. NULL and `err`
 * filled when the limit or the machine says no. Runs are in order, so only one asks at a time. */
void *qn__pool_workspace(qn_device *device, size_t size, qn_error *err);

/* Room for `size` bytes, uninitialised, with one reference; NULL and `err` filled when the limit or
 * the machine says no (the cache is freed and one retry made first). */
qn__buffer *qn__buffer_new(qn_device *device, size_t size, qn_error *err);

qn__buffer *qn__buffer_retain(qn__buffer *buffer);
void qn__buffer_release(qn__buffer *buffer);

#endif
