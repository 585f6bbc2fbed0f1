/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills the CPU kernel table: the C reference, then the tiers that the machine (cpuid and the
 * operating system's saved state) and the caller allow, lowest first, each overriding what it has.
 */
#include "kernels.h"

#include <string.h>

#if defined(QN_CPU_REF_ONLY)
#define QN_CPU_TIERS 1
#elif defined(__x86_64__)
#define QN_CPU_TIERS 4
#elif defined(__aarch64__)
#define QN_CPU_TIERS 2
#else
#define QN_CPU_TIERS 1
#endif

#if QN_CPU_TIERS == 4
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const tiers[] = {"ref", "avx2", "avx512", "amx"};

static uint64_t enabled_state(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Whether there are tiles for bf16 and int8, and Linux lets this process use them: it asks to be
 * asked, once, because their state makes the signal frame larger. */
static int has_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_... */
    unsigned a, b, c, d, need = 1u << 22 | 1u << 24 | 1u << 25; /* BF16, TILE, INT8 */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & need) != need ||
        (enabled_state() & 0x60000) != 0x60000)
        return 0;
#ifdef SYS_arch_prctl
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

/* 0: reference, 1: AVX2 + FMA + F16C, 2: AVX-512 F, BW, VL, DQ, VNNI, BF16, 3: AMX */
static int best_tier(void)
{
#if defined(QN_EMULATED_ISA) /* tests/cpu/run_emulated.sh */
    return 3;
#endif
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    unsigned need = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; /* FMA, OSXSAVE, AVX, F16C */
    if ((c & need) != need || (enabled_state() & 6) != 6)
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 5 & 1))
        return 0;
    unsigned wide = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if ((b & wide) != wide || !(c >> 11 & 1) || (enabled_state() & 0xe6) != 0xe6 || a < 1)
        return 1;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1))
        return 1;
    return has_tiles() ? 3 : 2;
}

static void fill_tier(qn__cpu_kernels *t, int tier)
{
    if (tier >= 1) {
        qn__cpu_fill_products_avx2(t);
        qn__cpu_fill_int8_avx2(t);
        qn__cpu_fill_rows_avx2(t);
        qn__cpu_fill_attend_avx2(t);
    }
    if (tier >= 2) {
        qn__cpu_fill_linear_avx512(t);
        qn__cpu_fill_prepare_avx512(t);
        qn__cpu_fill_int8_avx512(t);
        qn__cpu_fill_back_avx512(t);
        qn__cpu_fill_dense_avx512(t);
        qn__cpu_fill_rows_avx512(t);
        qn__cpu_fill_attend_avx512(t);
        if (qn__cpu_dot_is_slow_avx512())
            qn__cpu_fill_fma_avx512(t);
    }
    if (tier >= 3) {
        qn__cpu_fill_linear_amx(t);
        qn__cpu_fill_int8_amx(t);
    }
}
#elif QN_CPU_TIERS == 2
static const char *const tiers[] = {"ref", "neon"};

static int best_tier(void)
{
    return 1; /* every AArch64 processor has NEON with fma and f16 conversion */
}

static void fill_tier(qn__cpu_kernels *t, int tier)
{
    if (tier >= 1) {
        qn__cpu_fill_products_neon(t);
        qn__cpu_fill_int8_neon(t);
        qn__cpu_fill_rows_neon(t);
        qn__cpu_fill_attend_neon(t);
    }
}
#else
static const char *const tiers[] = {"ref"};

static int best_tier(void)
{
    return 0;
}

static void fill_tier(qn__cpu_kernels *t, int tier)
{
    (void)t, (void)tier;
}
#endif

const char *qn__cpu_tier_name(int i)
{
    return i >= 0 && i < QN_CPU_TIERS ? tiers[i] : NULL;
}

/* The reference and the tiers up to this one. */
static void fill_up_to(qn__cpu_kernels *t, int tier)
{
    memset(t, 0, sizeof *t);
    t->tier = tiers[tier];
    qn__cpu_fill_ref_products(t);
    qn__cpu_fill_ref_int8(t);
    qn__cpu_fill_ref_rows(t);
    qn__cpu_fill_ref_f64(t);
    qn__cpu_fill_ref_attend(t);
    fill_tier(t, tier);
}

const char *qn__cpu_kernel_tier(const qn__cpu_kernels *t, size_t offset)
{
    qn__cpu_kernels lower;
    for (int tier = 0; tiers[tier] != t->tier; tier++) {
        fill_up_to(&lower, tier);
        if (!memcmp((const char *)&lower + offset, (const char *)t + offset, sizeof t->dense))
            return tiers[tier];
    }
    return t->tier;
}

int qn__cpu_kernels_fill(qn__cpu_kernels *t, const char *force_tier)
{
    int best = best_tier(), tier = best, status = 0;
    if (force_tier) {
        for (tier = QN_CPU_TIERS - 1; tier >= 0 && strcmp(force_tier, tiers[tier]) != 0; tier--)
            continue;
        if (tier < 0 || tier > best) {
            tier = 0;
            status = -1;
        }
    }
    fill_up_to(t, tier);
    return status;
}
