/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic on sizes that come from a file or a caller. Each function returns true when the
 * result fits, and only then stores it: `if (!qn__mul_size(a, b, &n)) return qn__fail(...)`.
 */
#ifndef QN_BASE_CHECKED_H
#define QN_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool qn__mul_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool qn__add_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool qn__mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool qn__add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Rounds up to a multiple of a power of two; false when that would wrap. */
static inline bool qn__align_size(size_t n, size_t alignment, size_t *out)
{
    if (n > SIZE_MAX - (alignment - 1))
        return false;
    *out = (n + alignment - 1) & ~(alignment - 1);
    return true;
}

#endif
