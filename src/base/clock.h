/* SPDX-License-Identifier: Apache-2.0
 *
 * The time that passes: seconds of a clock that nobody sets.
 */
#ifndef QN_BASE_CLOCK_H
#define QN_BASE_CLOCK_H

#include <time.h>

static inline double qn__seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
