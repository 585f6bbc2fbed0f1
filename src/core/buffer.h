/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers: reference-counted storage on a device, taken from the device through a cache of freed
 * blocks, counted against a limit. A buffer is the only thing in the library with an atomic
 * reference count per object; arrays hold buffers, submissions hold buffers, the cache holds
 * blocks.
 */
#ifndef QN_CORE_BUFFER_H
#define QN_CORE_BUFFER_H

#include "quern/array.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct qn__buffer {
    qn_device *device;
    void *data;      /* host or device address, 64-byte aligned */
    size_t size;     /* bytes asked for */
    size_t capacity; /* bytes held: the cache hands out blocks of rounded sizes */
    bool reserved;   /* addresses for `size` bytes, of which the first `capacity` have memory */
    atomic_int refs;
    atomic_int in_flight;        /* references among these that submissions hold */
    atomic_bool invalid;         /* a failed run may have half-written it */
    atomic_bool lent;            /* ... and its lender knows which part of it counts */
    _Atomic uint64_t written_by; /* the number of the newest submission that writes it; 0: none */
    atomic_bool written_since;   /* ... and the host has written a part of it since */
    /* while cached: its neighbours by age, and in its size class */
    struct qn__buffer *older, *newer, *below, *above;
} qn__buffer;

enum { QN__POOL_CLASSES = 512 };

/* Released buffers by size class, and the counters. One per device, under its lock. */
typedef struct qn__pool {
    pthread_mutex_t lock;
    qn__buffer *classes[QN__POOL_CLASSES]; /* of each the newest */
    qn__buffer *oldest, *newest;
    size_t active, cached, peak;
    size_t high; /* the most that was ever in use: with the cache it is never more */
    size_t limit, cache_limit;
    atomic_size_t wired_limit; /* for the device, which reads it without the lock */
    void *workspace;           /* of the run under way */
    size_t workspace_size;
    size_t workspace_wanted; /* by the submissions that have not run yet */
    uint32_t n_waiting;      /* their number */
} qn__pool;

void qn__pool_begin(qn__pool *pool);
void qn__pool_end(qn_device *device);

/* The bytes that may still come into use: within the limit, and what the device has. SIZE_MAX:
 * nobody knows. */
size_t qn__pool_room(qn_device *device);

/* Frees cached blocks until at most `keep` bytes are cached. */
void qn__pool_trim(qn_device *device, size_t keep);

/* Before a submission: counts a workspace of `size` bytes against the limit, so that the run will
 * not be refused when its turn comes. False and `err` filled when the limit says no. */
bool qn__pool_workspace_reserve(qn_device *device, size_t size, qn_error *err);

/* For a run: the device's one workspace, of at least `size` bytes; growing it gives another
 * address. NULL and `err` filled when the limit or the machine says no. Runs are in order, so only
 * one asks at a time. */
void *qn__pool_workspace(qn_device *device, size_t size, qn_error *err);

/* After it, once for each that was reserved. */
void qn__pool_workspace_done(qn_device *device);

/* Room for `size` bytes, uninitialised, with one reference; NULL and `err` filled when the limit or
 * the machine says no (the cache is freed and one retry made first). */
qn__buffer *qn__buffer_new(qn_device *device, size_t size, qn_error *err);

/* Addresses for `size` bytes that stay where they are, without memory; where the device has no such
 * thing, a buffer as above. */
qn__buffer *qn__buffer_reserve(qn_device *device, size_t size, qn_error *err);

/* Gives the first `bytes` of a reserved buffer memory, and takes it from the others: some of them
 * may keep theirs. What has memory keeps its content; new memory is zero or anything. False and
 * `err` filled when the limit or the machine says no. No run under way may touch what is taken. */
bool qn__buffer_commit(qn__buffer *buffer, size_t bytes, qn_error *err);

qn__buffer *qn__buffer_retain(qn__buffer *buffer);
void qn__buffer_release(qn__buffer *buffer);

#endif
