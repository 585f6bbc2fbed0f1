/* SPDX-License-Identifier: Apache-2.0
 *
 * Failing the n-th allocation, or start of a thread. The program is linked with -Wl,--wrap=malloc
 * and the like for each function wrapped here (scripts/test-wraps); include this header in its one
 * source file.
 *
 *     for (long n = 0;; n++) {
 *         fail_allocation_begin(n);
 *         status = ...;
 *         if (!fail_allocation_end())
 *             break;                       (fewer than n + 1 allocations were made)
 *         assert_int_equal(status, QN_MEMORY);
 *     }
 */
#ifndef QN_TESTS_FAIL_ALLOC_H
#define QN_TESTS_FAIL_ALLOC_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);

static atomic_long allocations_left = -1; /* negative: never fail */
static atomic_bool allocation_failed;

static bool allocation_fails(void)
{
    if (allocations_left < 0)
        return false;
    if (atomic_fetch_sub(&allocations_left, 1) > 0)
        return false;
    allocation_failed = true;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return allocation_fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return allocation_fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return allocation_fails() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return allocation_fails() ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    return allocation_fails() ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

static inline void fail_allocation_begin(long n)
{
    allocations_left = n;
    allocation_failed = false;
}

static inline bool fail_allocation_end(void)
{
    allocations_left = -1;
    return allocation_failed;
}

#endif
