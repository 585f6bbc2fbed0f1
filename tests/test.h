/* SPDX-License-Identifier: Apache-2.0
 *
 * What test programs share: cmocka's headers in the order it wants, a CPU device, a comparison.
 */
#ifndef QN_TESTS_TEST_H
#define QN_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "quern/quern.h"

/* Whether the library reads archives (npz, PyTorch). */
#ifdef QN_LIBZIP
enum { WITH_LIBZIP = 1 };
#else
enum { WITH_LIBZIP = 0 };
#endif

/* The times that tests allow, of the processor and not of the clock, are for an idle machine and
 * multiplied by this: they are to tell work that explodes, not a machine that is busy. */
#if defined QN_EMULATED
enum { PATIENCE = 40 };
#elif defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { PATIENCE = 10 };
#else
enum { PATIENCE = 3 };
#endif

/* Where a program takes ten times as long and more, under an emulator and ThreadSanitizer, tests of
 * many like cases run some of them. */
#if defined QN_EMULATED || defined __SANITIZE_THREAD__
enum { FEWER = 1 };
#else
enum { FEWER = 0 };
#endif

static inline void skip_without_libzip(void)
{
    if (!WITH_LIBZIP) {
        print_message("skipped: configured with -Dlibzip=disabled\n");
        skip();
    }
}

static inline qn_device *open_cpu_threads(int threads)
{
    qn_device *device = NULL;
    qn_error err = {0};
    qn_device_options options = {.size = sizeof options, .threads = threads};
    if (qn_device_open(&device, "cpu", &options, &err) != QN_OK)
        fail_msg("%s", err.message);
    return device;
}

/* Of a device for which a test names no number. Threads change no bit, and ThreadSanitizer sees
 * nothing where there is one. */
#ifdef __SANITIZE_THREAD__
enum { THREADS = 2 };
#else
enum { THREADS = 1 };
#endif

static inline qn_device *open_cpu(void **state)
{
    (void)state;
    return open_cpu_threads(THREADS);
}

/* The device that QUERN_TEST_DEVICE names, such as "cuda:0"; else the CPU as in open_cpu. */
static inline qn_device *open_device(void **state)
{
    const char *name = getenv("QUERN_TEST_DEVICE");
    qn_device *device = NULL;
    qn_error err = {0};
    if (!name)
        return open_cpu(state);
    if (qn_device_open(&device, name, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    return device;
}

static inline qn_memory_stats memory_of(qn_device *device)
{
    qn_memory_stats stats = QN_INIT(qn_memory_stats);
    qn_device_memory(device, &stats);
    return stats;
}

static inline qn_plan_stats plans_of(qn_device *device)
{
    qn_plan_stats stats = QN_INIT(qn_plan_stats);
    qn_device_plan_stats(device, &stats);
    return stats;
}

/* Numbers in (-1, 1) that are the same everywhere. */
static inline double test_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 11) / (double)(1ll << 52) - 1.0;
}

/* Normalised mean squared error of n floats against a reference. */
static inline double nmse(const float *y, const float *reference, size_t n)
{
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)y[i] - reference[i];
        error += d * d;
        power += (double)reference[i] * reference[i];
    }
    return power > 0 ? error / power : error;
}

#endif
