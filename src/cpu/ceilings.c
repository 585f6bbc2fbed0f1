/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops that do one thing as fast as the machine can: read memory, multiply and add. Twelve sums
 * that do not wait for each other hide the latency of an instruction; assembly keeps the compiler
 * from seeing that nothing comes of it.
 */
#include "base/clock.h"
#include "cpu/cpu.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum {
    SUMS = 12,
    ROUNDS = 4000000,
    RUNS = 5,
    MOST_WORKERS = 256,
    READ_BYTES = 256 << 20,
    PASSES = 4
};

#define EACH_SUM(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

typedef struct loop_worker loop_worker;

/* Returns something that hangs on what it did. */
typedef uint64_t loop_fn(const loop_worker *w);

struct loop_worker {
    loop_fn *run;
    const char *data; /* to be read */
    size_t bytes;
    uint64_t result;
};

/* ---- loops ----------------------------------------------------------------------------------- */

typedef uint64_t wide_words __attribute__((vector_size(64)));

/* Widest loads that the machine has. (ThreadSanitizer cannot be where the loader chooses.) */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t
read_memory(const loop_worker *w)
{
    const wide_words *p = (const wide_words *)w->data;
    wide_words s0 = {0}, s1 = s0, s2 = s0, s3 = s0;
    for (int pass = 0; pass < PASSES; pass++)
        for (size_t i = 0; i + 4 <= w->bytes / sizeof *p; i += 4) {
            s0 += p[i];
            s1 += p[i + 1];
            s2 += p[i + 2];
            s3 += p[i + 3];
        }
    s0 ^= s1 ^ s2 ^ s3;
    return s0[0] ^ s0[1] ^ s0[2] ^ s0[3] ^ s0[4] ^ s0[5] ^ s0[6] ^ s0[7];
}

/* Four lanes, whatever the machine: what a compiler makes of a multiplication and an addition. */
typedef float four_floats __attribute__((vector_size(16)));

static uint64_t multiply_f32_plain(const loop_worker *w)
{
    const float x = w->bytes ? 0.5f : 0.25f;
    four_floats a = {x, x, x, x}, s[SUMS] = {a};
    for (int round = 0; round < ROUNDS; round++) {
#define PLAIN_STEP(i) s[i] = s[i] * a + a;
        EACH_SUM(PLAIN_STEP)
    }
    for (int i = 1; i < SUMS; i++)
        s[0] += s[i];
    return (uint64_t)s[0][0];
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t multiply_f32_avx512(const loop_worker *w)
{
    __m512 a = _mm512_setzero_ps(), s[SUMS] = {a};
    for (int round = 0; round < ROUNDS; round++) {
#define FMA_512(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(s[i]) : "v"(a));
        EACH_SUM(FMA_512)
    }
    return w->bytes;
}

__attribute__((target("avx512f"))) static uint64_t multiply_bf16_avx512(const loop_worker *w)
{
    __m512 a = _mm512_setzero_ps(), s[SUMS] = {a};
    for (int round = 0; round < ROUNDS; round++) {
#define DPBF16_512(i) __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(s[i]) : "v"(a));
        EACH_SUM(DPBF16_512)
    }
    return w->bytes;
}

__attribute__((target("avx512f"))) static uint64_t multiply_int8_avx512(const loop_worker *w)
{
    __m512i a = _mm512_setzero_si512(), s[SUMS] = {a};
    for (int round = 0; round < ROUNDS; round++) {
#define DPBUSD_512(i) __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(s[i]) : "v"(a));
        EACH_SUM(DPBUSD_512)
    }
    return w->bytes;
}

/* A tile instruction is 16 x 16 sums of 32 products in bf16, of 64 of bytes: so many of them are
 * the work of the loops above. The device has asked the system for the tiles. */
enum { TILES = SUMS * ROUNDS / (16 * 16), TILE_SUMS = 4 };

__attribute__((target("amx-tile"))) static void tiles_begin(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
}

__attribute__((target("amx-tile,amx-bf16"))) static uint64_t multiply_bf16_amx(const loop_worker *w)
{
    tiles_begin();
    for (int round = 0; round < TILES / TILE_SUMS; round++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_release();
    return w->bytes;
}

__attribute__((target("amx-tile,amx-int8"))) static uint64_t multiply_int8_amx(const loop_worker *w)
{
    tiles_begin();
    for (int round = 0; round < TILES / TILE_SUMS; round++) {
        _tile_dpbusd(0, 4, 5);
        _tile_dpbusd(1, 4, 5);
        _tile_dpbusd(2, 4, 5);
        _tile_dpbusd(3, 4, 5);
    }
    _tile_release();
    return w->bytes;
}

__attribute__((target("avx2"))) static uint64_t multiply_f32_avx2(const loop_worker *w)
{
    __m256 a = _mm256_setzero_ps(), s[SUMS] = {a};
    for (int round = 0; round < ROUNDS; round++) {
#define FMA_256(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(s[i]) : "x"(a));
        EACH_SUM(FMA_256)
    }
    return w->bytes;
}

/* Without VNNI: products in pairs to 16 bits, pairs of these to 32, and the sum. */
__attribute__((target("avx2"))) static uint64_t multiply_int8_avx2(const loop_worker *w)
{
    __m256i a = _mm256_setzero_si256(), t, s[SUMS] = {a};
    for (int round = 0; round < ROUNDS; round++) {
#define MADDUBS_256(i)                                                                             \
    __asm__ volatile("vpmaddubsw %2, %2, %1\n\tvpmaddwd %2, %1, %1\n\tvpaddd %1, %0, %0"           \
                     : "+x"(s[i]), "=&x"(t)                                                        \
                     : "x"(a));
        EACH_SUM(MADDUBS_256)
    }
    return w->bytes;
}
#elif defined(__aarch64__)
static uint64_t multiply_f32_neon(const loop_worker *w)
{
    float32x4_t a = vdupq_n_f32(0), s[SUMS] = {a};
    for (int round = 0; round < ROUNDS; round++) {
#define FMLA_128(i) __asm__ volatile("fmla %0.4s, %1.4s, %1.4s" : "+w"(s[i]) : "w"(a));
        EACH_SUM(FMLA_128)
    }
    return w->bytes;
}
#endif

/* ---- tiers ----------------------------------------------------------------------------------- */

typedef struct tier_loops {
    const char *tier;
    loop_fn *f32, *bf16, *int8;
    int lanes; /* f32 products of one instruction; twice as many of bf16, four times of int8 */
} tier_loops;

static const tier_loops tiers[] = {
#if defined(__x86_64__)
    {"amx", multiply_f32_avx512, multiply_bf16_amx, multiply_int8_amx, 16},
    {"avx512", multiply_f32_avx512, multiply_bf16_avx512, multiply_int8_avx512, 16},
    {"avx2", multiply_f32_avx2, NULL, multiply_int8_avx2, 8},
#elif defined(__aarch64__)
    {"neon", multiply_f32_neon, NULL, NULL, 4},
#endif
    {NULL, multiply_f32_plain, NULL, NULL, 4},
};

static const tier_loops *loops_of(const char *tier)
{
    const tier_loops *t = tiers;
    while (t->tier && strcmp(t->tier, tier) != 0)
        t++;
    return t;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static void *run_worker(void *argument)
{
    loop_worker *w = argument;
    w->result = w->run(w);
    return NULL;
}

/* Seconds of one run on all threads; 0 when a thread could not be made. */
static double time_loop(loop_fn *run, const char *data, size_t bytes, int threads)
{
    loop_worker w[MOST_WORKERS];
    pthread_t t[MOST_WORKERS];
    int n = 0;
    size_t each = bytes / (size_t)threads / 64 * 64;
    double begun = qn__seconds();
    for (bool ok = true; ok && n < threads; n += ok) {
        w[n] = (loop_worker){run, data ? data + each * (size_t)n : NULL, each, 0};
        ok = pthread_create(&t[n], NULL, run_worker, &w[n]) == 0;
    }
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    return n == threads ? qn__seconds() - begun : 0;
}

/* Work a second, of the best of several runs. */
static double most_of(loop_fn *run, const char *data, size_t bytes, int threads, double work)
{
    double best = 0;
    for (int i = 0; run && i < RUNS; i++) {
        double taken = time_loop(run, data, bytes, threads);
        best = taken > 0 && work / taken > best ? work / taken : best;
    }
    return best;
}

void qn__cpu_ceilings(qn_device *device, qn_ceilings *out)
{
    const qn__cpu *cpu = device->state;
    const tier_loops *t =
        loops_of(qn__cpu_kernel_tier(&cpu->table, offsetof(qn__cpu_kernels, linear[QN__CPU_BF16])));
    int n = qn__team_size(cpu->team), threads = n < MOST_WORKERS ? n : MOST_WORKERS;
    double f32 = 2.0 * SUMS * ROUNDS * t->lanes * threads;
    out->f32 = most_of(t->f32, NULL, 0, threads, f32);
    out->bf16 = most_of(t->bf16, NULL, 0, threads, 2 * f32);
    out->int8 = most_of(t->int8, NULL, 0, threads, 4 * f32);
    char *data = aligned_alloc(64, READ_BYTES);
    if (!data)
        return;
    memset(data, 1, READ_BYTES);
    out->read = most_of(read_memory, data, READ_BYTES, threads, (double)PASSES * READ_BYTES);
    free(data);
}
