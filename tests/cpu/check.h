/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU kernel tests share: reporting, a small random generator, error measures. Used by one
 * program. */
#ifndef QN_TESTS_CPU_CHECK_H
#define QN_TESTS_CPU_CHECK_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/cpu/kernels/kernels.h"

extern int check_count, check_failures;
extern int check_quiet;

static inline void check(const char *name, const char *tier, int ok)
{
    check_count++;
    check_failures += !ok;
    if (!ok || !check_quiet)
        printf("%-34s %-7s %s\n", name, tier, ok ? "ok" : "FAIL");
}

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static inline uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static inline size_t random_below(size_t n)
{
    return random_u32() % n;
}

/* Uniform in -1 .. 1. */
static inline float random_unit(void)
{
    return (float)((double)random_u32() / 2147483648.0 - 1.0);
}

static inline void random_fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_unit();
}

/* 64-byte aligned, filled with NaN bytes so that what is not written shows. */
static inline void *new_bytes(size_t n)
{
    void *p = aligned_alloc(64, (n + 127) / 64 * 64);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    memset(p, 0xff, (n + 127) / 64 * 64);
    return p;
}

static inline float *new_floats(size_t n)
{
    return new_bytes(n * sizeof(float));
}

/* Distance of got from want in units of want's last f32 place (denormal spacing at the bottom). */
static inline double ulps(float got, double want)
{
    float w = (float)want;
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0.0 : 1e30;
    if (isinf(w) || isinf(got)) {
        if (w == got)
            return 0.0;
        return fabs(want) > 3.4e38 && fabs((double)got) > 3.4e38 ? 1.0 : 1e30;
    }
    int e = w == 0.0f ? -126 : ilogb(fabs(want));
    return fabs((double)got - want) / ldexp(1.0, (e < -126 ? -126 : e) - 23);
}

/* Sum of squared errors over sum of squares, gathered one value at a time. */
typedef struct nmse {
    double error, size;
} nmse;

static inline void nmse_add(nmse *m, double got, double want)
{
    double e = got - want;
    m->error += isnan(e) ? 1e300 : e * e;
    m->size += want * want;
}

static inline int nmse_ok(const nmse *m, double bound)
{
    return m->error <= bound * m->size;
}

void check_maps(const qn__cpu_kernels *t, const qn__cpu_kernels *ref);
void check_rows(const qn__cpu_kernels *t, const qn__cpu_kernels *ref);
void check_matmul(const qn__cpu_kernels *t);
void check_linear(const qn__cpu_kernels *t, const qn__cpu_kernels *ref);
void check_attend(const qn__cpu_kernels *t);
int bench_cpu(int json, const char *only);

#endif
