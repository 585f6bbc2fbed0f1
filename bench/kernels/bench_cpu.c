/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times the CPU kernels of the best tier as fractions of what this machine does in the same
 * seconds.
 *
 * Approach: each measurement runs its yardstick (sequential read of a large buffer, or chains of
 * fma or vdpbf16ps in registers) just before, on the same threads, and reports the median ratio of
 * five. Time is the threads' CPU time, the slowest thread's, so that a shared core distorts less;
 * weights and caches cycle through a gigabyte so that the last-level cache does not help. There are
 * yardsticks for AVX-512 and AVX2; elsewhere only rates are shown.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "../../tests/cpu/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx512f,avx512bf16")))
#endif

enum { REPEATS = 5, MOST_THREADS = 2 };

typedef struct bench {
    qn__cpu_kernels t;
    int json, threads;
    const char *only;
    char *big; /* 1 GB of small bf16 or f32 values */
    size_t big_bytes;
} bench;

/* One thread's part of a job; what it returns is ignored. */
typedef void bench_job(const bench *b, void *data, int id);

typedef struct bench_thread {
    const bench *b;
    bench_job *job;
    void *data;
    int id;
    pthread_barrier_t *start;
    double seconds;
} bench_thread;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *bench_thread_main(void *p)
{
    bench_thread *th = p;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(th->id, &set);
    sched_setaffinity(0, sizeof set, &set);
    pthread_barrier_wait(th->start);
    double t0 = cpu_seconds();
    th->job(th->b, th->data, th->id);
    th->seconds = cpu_seconds() - t0;
    return NULL;
}

static double bench_run(const bench *b, bench_job *job, void *data)
{
    bench_thread th[MOST_THREADS];
    pthread_t handles[MOST_THREADS];
    pthread_barrier_t start;
    double worst = 0;
    pthread_barrier_init(&start, NULL, (unsigned)b->threads);
    for (int i = 0; i < b->threads; i++) {
        th[i] = (bench_thread){b, job, data, i, &start, 0};
        pthread_create(&handles[i], NULL, bench_thread_main, &th[i]);
    }
    for (int i = 0; i < b->threads; i++) {
        pthread_join(handles[i], NULL);
        worst = fmax(worst, th[i].seconds);
    }
    pthread_barrier_destroy(&start);
    return worst;
}

/* --- yardsticks --- */

typedef enum yard { YARD_READ, YARD_F32, YARD_BF16, YARD_INT8, YARD_NONE } yard;

static const char *const yard_names[] = {"of read", "of f32 peak", "of bf16 peak", "of int8 peak",
                                         ""};
static volatile double yard_sink;

#ifdef WIDE
WIDE static void yard_read(const bench *b, void *data, int id)
{
    (void)data;
    size_t part = b->big_bytes / 2 / (size_t)b->threads / 512 * 512;
    const char *p = b->big + part * (size_t)id;
    __m512i s[8];
    for (int i = 0; i < 8; i++)
        s[i] = _mm512_setzero_si512();
    for (size_t at = 0; at < part; at += 512)
        for (int i = 0; i < 8; i++)
            s[i] = _mm512_xor_si512(s[i], _mm512_load_si512(p + at + 64 * i));
    for (int i = 1; i < 8; i++)
        s[0] = _mm512_xor_si512(s[0], s[i]);
    yard_sink = (double)_mm512_reduce_add_epi64(s[0]);
}

#define SIXTEEN(F)                                                                                 \
    F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)
#define DECLARE(i)   __m512 v##i = _mm512_set1_ps((float)i);
#define ADD(i)       v0 = _mm512_add_ps(v0, v##i);
#define FMA_STEP(i)  __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(v##i) : "v"(p));
#define DOT_STEP(i)  __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(v##i) : "v"(p));
#define BYTE_STEP(i) __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(v##i) : "v"(p));
enum { YARD_STEPS = 2000000 };

WIDE static void yard_f32(const bench *b, void *data, int id)
{
    (void)b, (void)data, (void)id;
    SIXTEEN(DECLARE)
    __m512 p = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < YARD_STEPS; i++) {
        SIXTEEN(FMA_STEP)
    }
    SIXTEEN(ADD)
    yard_sink = _mm512_reduce_add_ps(v0);
}

WIDE static void yard_bf16(const bench *b, void *data, int id)
{
    (void)b, (void)data, (void)id;
    SIXTEEN(DECLARE)
    __m512i p = _mm512_set1_epi16(0x3a00);
    for (int i = 0; i < YARD_STEPS; i++) {
        SIXTEEN(DOT_STEP)
    }
    SIXTEEN(ADD)
    yard_sink = _mm512_reduce_add_ps(v0);
}

WIDE static void yard_int8(const bench *b, void *data, int id)
{
    (void)b, (void)data, (void)id;
    SIXTEEN(DECLARE)
    __m512i p = _mm512_set1_epi16(0x0101);
    for (int i = 0; i < YARD_STEPS; i++) {
        SIXTEEN(BYTE_STEP)
    }
    SIXTEEN(ADD)
    yard_sink = _mm512_reduce_add_ps(v0);
}

#define NARROW __attribute__((target("avx2,fma")))

NARROW static void yard_read_avx2(const bench *b, void *data, int id)
{
    (void)data;
    size_t part = b->big_bytes / 2 / (size_t)b->threads / 512 * 512;
    const char *p = b->big + part * (size_t)id;
    __m256i s[8];
    for (int i = 0; i < 8; i++)
        s[i] = _mm256_setzero_si256();
    for (size_t at = 0; at < part; at += 256)
        for (int i = 0; i < 8; i++)
            s[i] = _mm256_xor_si256(s[i], _mm256_load_si256((const __m256i *)(p + at) + i));
    for (int i = 1; i < 8; i++)
        s[0] = _mm256_xor_si256(s[0], s[i]);
    yard_sink = (double)_mm256_extract_epi64(s[0], 0);
}

#define TWELVE(F)    F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#define DECLARE8(i)  __m256 v##i = _mm256_set1_ps((float)i);
#define ADD8(i)      v0 = _mm256_add_ps(v0, v##i);
#define PAIR_STEP(i) __asm__ volatile("vpmaddubsw %1, %0, %0" : "+x"(v##i) : "x"(p));

NARROW static void yard_f32_avx2(const bench *b, void *data, int id)
{
    (void)b, (void)data, (void)id;
    TWELVE(DECLARE8)
    __m256 p = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < YARD_STEPS; i++) {
        TWELVE(FMA_STEP)
    }
    TWELVE(ADD8)
    yard_sink = _mm256_cvtss_f32(v0);
}

NARROW static void yard_int8_avx2(const bench *b, void *data, int id)
{
    (void)b, (void)data, (void)id;
    TWELVE(DECLARE8)
    __m256i p = _mm256_set1_epi16(0x0101);
    for (int i = 0; i < YARD_STEPS; i++) {
        TWELVE(PAIR_STEP)
    }
    TWELVE(ADD8)
    yard_sink = _mm256_cvtss_f32(v0);
}

/* Bytes or operations a second; 0: this machine has none. Of int8 without AVX-512 it is the rate of
 * the products alone, whose sums are instructions of their own. */
static double yard_rate(const bench *b, yard y)
{
    static const struct {
        bench_job *job, *narrow;
        double operations, narrow_operations; /* of a step */
    } yards[] = {[YARD_READ] = {yard_read, yard_read_avx2, 0, 0},
                 [YARD_F32] = {yard_f32, yard_f32_avx2, 16 * 32, 12 * 16},
                 [YARD_BF16] = {yard_bf16, NULL, 16 * 64, 0},
                 [YARD_INT8] = {yard_int8, yard_int8_avx2, 16 * 128, 12 * 64}};
    qn__cpu_kernels k;
    if (y == YARD_NONE)
        return 0;
    bool wide = !qn__cpu_kernels_fill(&k, "avx512");
    bench_job *job = wide ? yards[y].job : yards[y].narrow;
    if (!job || (!wide && qn__cpu_kernels_fill(&k, "avx2")))
        return 0;
    double work = y == YARD_READ ? (double)(b->big_bytes / 2)
                                 : (double)b->threads * YARD_STEPS *
                                       (wide ? yards[y].operations : yards[y].narrow_operations);
    return work / bench_run(b, job, NULL);
}
#else
static double yard_rate(const bench *b, yard y)
{
    (void)b, (void)y;
    return 0;
}
#endif

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints the median of REPEATS: work (bytes or operations) a second, and its ratio to the
 * yardstick's. */
static void bench_case(const bench *b, const char *name, yard y, double work, bench_job *job,
                       void *data)
{
    double rate[REPEATS], ratio[REPEATS];
    if (b->only && !strstr(name, b->only))
        return;
    bench_run(b, job, data);
    for (int i = 0; i < REPEATS; i++) {
        double peak = yard_rate(b, y);
        rate[i] = work / bench_run(b, job, data);
        ratio[i] = peak > 0 ? rate[i] / peak : 0;
    }
    qsort(rate, REPEATS, sizeof *rate, by_value);
    qsort(ratio, REPEATS, sizeof *ratio, by_value);
    if (b->json)
        printf("{\"name\": \"%s\", \"tier\": \"%s\", \"threads\": %d, \"giga_per_s\": %.3f, "
               "\"ratio\": %.3f, "
               "\"ratio_min\": %.3f, \"ratio_max\": %.3f, \"of\": \"%s\"}\n",
               name, b->t.tier, b->threads, rate[REPEATS / 2] / 1e9, ratio[REPEATS / 2], ratio[0],
               ratio[REPEATS - 1], yard_names[y]);
    else
        printf("%-34s %s t=%d %9.2f G/s  %.2f (%.2f-%.2f) %s\n", name, b->t.tier, b->threads,
               rate[REPEATS / 2] / 1e9, ratio[REPEATS / 2], ratio[0], ratio[REPEATS - 1],
               yard_names[y]);
    fflush(stdout);
}

/* --- linear --- */

typedef struct linear_bench {
    qn__cpu_type products;
    qn__layout_id id;
    size_t m, n, k, matrices;
    float *x, *y;
    void *xp, *gp; /* prepared: x, and rows of n for gradients */
    qn__cpu_type back;
} linear_bench;

static void linear_job(const bench *b, void *data, int id)
{
    const linear_bench *d = data;
    size_t panels = qn__cpu_panels(d->n), threads = (size_t)b->threads, i = (size_t)id;
    for (size_t w = 0; w < d->matrices; w++) {
        size_t bytes = qn__layout_bytes(d->id, (int64_t)d->n, (int64_t)d->k);
        qn__cpu_linear a = {qn__layout_of(d->id),
                            b->t.unpack[d->id],
                            b->big + w * bytes,
                            d->n,
                            d->k,
                            d->m,
                            0,
                            d->m,
                            d->xp,
                            d->y,
                            d->n};
        b->t.linear[d->products](&a, panels * i / threads, panels * (i + 1) / threads);
    }
}

/* Panels of 96 columns or 256: what linear_back wants. */
static void back_job(const bench *b, void *data, int id)
{
    const linear_bench *d = data;
    size_t threads = (size_t)b->threads, i = (size_t)id, panels = qn__cpu_panels(d->k);
    qn__cpu_linear a = {.layout = qn__layout_of(d->id),
                        .unpack = b->t.unpack[d->id],
                        .w = b->big,
                        .n = d->n,
                        .k = d->k,
                        .m = d->m,
                        .m1 = d->m,
                        .x = d->gp,
                        .y = d->y,
                        .ldy = d->k};
    size_t end = i + 1 == threads ? panels : panels * (i + 1) / threads / 48 * 48;
    b->t.linear_back[d->back](&a, panels * i / threads / 48 * 48, end);
}

static void prepare_job(const bench *b, void *data, int id)
{
    const linear_bench *d = data;
    size_t threads = (size_t)b->threads, i = (size_t)id;
    b->t.prepare[d->products](qn__layout_of(d->id), d->xp, d->x, d->k, d->m, d->k,
                              d->m * i / threads / 8 * 8, d->m * (i + 1) / threads / 8 * 8);
}

static void bench_linear(const bench *b, qn__cpu_type products, qn__layout_id id, size_t m,
                         size_t n, size_t k)
{
    static const char *const kinds[] = {"f32", "bf16", "int8"};
    static const yard yards[] = {YARD_F32, YARD_BF16, YARD_INT8};
    const qn__layout *l = qn__layout_of(id);
    size_t bytes = qn__layout_bytes(id, (int64_t)n, (int64_t)k), most = n > k ? n : k;
    char name[64];
    linear_bench d = {products,
                      id,
                      m,
                      n,
                      k,
                      m <= 16 ? b->big_bytes / bytes : 1,
                      new_floats(m * most),
                      new_floats(m * most),
                      new_bytes(qn__cpu_prepared_bytes(m, k)),
                      new_bytes(qn__cpu_prepared_bytes(m, n)),
                      QN__CPU_F32};
    random_fill(d.x, m * most);
    b->t.prepare[products](l, d.xp, d.x, k, m, k, 0, m);
    snprintf(name, sizeof name, "linear %s by %s M%zu K%zu N%zu", l->encoding->name,
             kinds[products], m, k, n);
    if (m <= 16)
        bench_case(b, name, YARD_READ, (double)(bytes * d.matrices), linear_job, &d);
    else
        bench_case(b, name, yards[products], 2.0 * (double)(m * n * k), linear_job, &d);
    if (m > 16) {
        for (d.back = QN__CPU_F32; d.back < QN__CPU_BACK_PRODUCTS; d.back++) {
            b->t.prepare_back[d.back](d.gp, d.x, n, m, n, 0, m);
            snprintf(name, sizeof name, "linear_back %s by %s M%zu K%zu N%zu", l->encoding->name,
                     kinds[d.back], m, k, n);
            bench_case(b, name, yards[d.back], 2.0 * (double)(m * n * k), back_job, &d);
        }
        snprintf(name, sizeof name, "prepare %s M%zu K%zu (bytes in)", kinds[products], m, k);
        bench_case(b, name, YARD_READ, 4.0 * (double)(m * k), prepare_job, &d);
    }
    free(d.x), free(d.y), free(d.xp), free(d.gp);
}

/* Decode, small batches, prefill, at the shapes of a Llama 1B. */
static void bench_weights(const bench *b, qn__cpu_type products, qn__layout_id id)
{
    static const size_t few[] = {1, 2, 4, 8};
    for (size_t i = 0; i < 4; i++)
        bench_linear(b, products, id, few[i], 8192, 2048);
    bench_linear(b, products, id, 1, 2048, 8192);
    bench_linear(b, products, id, 512, 8192, 2048);
    bench_linear(b, products, id, 512, 2048, 8192);
}

typedef struct dense_bench {
    qn__cpu_dense a;
    size_t m;
} dense_bench;

static void dense_job(const bench *b, void *data, int id)
{
    const dense_bench *d = data;
    size_t threads = (size_t)b->threads, i = (size_t)id;
    b->t.dense(&d->a, d->m * i / threads, d->m * (i + 1) / threads);
}

static void bench_dense(const bench *b, size_t m, size_t n, size_t k, int ta, int tb)
{
    float *x = new_floats(m * k), *w = new_floats(n * k), *y = new_floats(m * n);
    random_fill(x, m * k);
    random_fill(w, n * k);
    dense_bench d = {{n, k, x, ta ? 1 : (ptrdiff_t)k, ta ? (ptrdiff_t)m : 1, w,
                      tb ? 1 : (ptrdiff_t)n, tb ? (ptrdiff_t)k : 1, y, (ptrdiff_t)n},
                     m};
    char name[64];
    snprintf(name, sizeof name, "dense f32 %zux%zux%zu %s%s", m, n, k, ta ? "At" : "A",
             tb ? "Bt" : "B");
    bench_case(b, name, YARD_F32, 2.0 * (double)(m * n * k), dense_job, &d);
    free(x), free(w), free(y);
}

/* --- attention --- */

typedef struct attend_bench {
    qn__cpu_type type;
    qn__layout_id layout; /* in the place of the type */
    size_t d, tokens, first, kv_heads, heads;
    float *q, *o;
    int32_t *begin, *end, *pages;
    void *scratch[MOST_THREADS];
    float *state[MOST_THREADS], *later[MOST_THREADS];
    size_t tile;
} attend_bench;

static size_t bytes_of_page(qn__cpu_type type, qn__layout_id layout, size_t d)
{
    return layout ? qn__layout_bytes(layout, QN__CPU_PAGE, (int64_t)d)
                  : QN__CPU_PAGE * d * (type == QN__CPU_F32 ? 4 : 2);
}

static void attend_job(const bench *b, void *data, int id)
{
    const attend_bench *d = data;
    size_t keys = (d->first + d->tokens + 63) / 64, page = bytes_of_page(d->type, d->layout, d->d),
           bytes = keys * page;
    qn__cpu_pages pages = {.type = d->type,
                           .layout = qn__layout_of(d->layout),
                           .unpack = b->t.unpack[d->layout],
                           .page = page};
    size_t tiles = (d->tokens + d->tile - 1) / d->tile;
    for (size_t i = (size_t)id; i < d->kv_heads * tiles; i += (size_t)b->threads) {
        size_t h = i / tiles, t0 = i % tiles * d->tile,
               n = d->tokens - t0 < d->tile ? d->tokens - t0 : d->tile;
        size_t row = d->heads * d->d, at = (h % 8 * d->tokens + t0) * row;
        qn__cpu_attend a = {.d = d->d,
                            .dv = d->d,
                            .k = pages,
                            .v = pages,
                            .pages = d->pages,
                            .tokens = n,
                            .heads = d->heads,
                            .q = d->q + at,
                            .q_token = row,
                            .q_head = d->d,
                            .o = d->o + at,
                            .o_token = row,
                            .o_head = d->d,
                            .begin = d->begin + t0,
                            .end = d->end + t0,
                            .scale = 1.0f / sqrtf((float)d->d)};
        a.k.at = b->big + 2 * h * bytes;
        a.v.at = b->big + (2 * h + 1) * bytes;
        b->t.attend(&a, 0, d->state[id], d->scratch[id]);
        for (size_t span = 1; span * QN__CPU_SPAN < (size_t)a.end[n - 1]; span++) {
            b->t.attend(&a, span, d->later[id], d->scratch[id]);
            b->t.attend_merge(&a, d->state[id], d->later[id]);
        }
        b->t.attend_finish(&a, d->state[id]);
    }
}

static void bench_attend(const bench *b, qn__cpu_type type, qn__layout_id layout, size_t d,
                         size_t tokens, size_t first)
{
    size_t keys = (first + tokens + 63) / 64 * 64, heads = 4,
           bytes = 2 * keys / 64 * bytes_of_page(type, layout, d);
    attend_bench a = {.type = type,
                      .layout = layout,
                      .d = d,
                      .tokens = tokens,
                      .first = first,
                      .kv_heads = tokens > 1 ? 8 : b->big_bytes / bytes,
                      .heads = heads,
                      .q = new_floats(8 * tokens * heads * d),
                      .o = new_floats(8 * tokens * heads * d),
                      .begin = new_bytes(tokens * 4),
                      .end = new_bytes(tokens * 4),
                      .pages = new_bytes(keys / 64 * 4),
                      .tile = 16};
    random_fill(a.q, 8 * tokens * heads * d);
    for (size_t t = 0; t < tokens; t++) {
        a.begin[t] = 0;
        a.end[t] = (int32_t)(first + t + 1);
    }
    for (size_t i = 0; i < keys / 64; i++)
        a.pages[i] = (int32_t)i;
    for (int i = 0; i < MOST_THREADS; i++) {
        a.scratch[i] = new_bytes(b->t.attend_scratch(a.tile, heads, d, d));
        a.state[i] = new_bytes(b->t.attend_state(a.tile, heads, d));
        a.later[i] = new_bytes(b->t.attend_state(a.tile, heads, d));
    }
    char name[64];
    snprintf(name, sizeof name, "attend %s d%zu %zu+%zu",
             layout                ? qn__layout_name(layout)
             : type == QN__CPU_F32 ? "f32"
             : type == QN__CPU_F16 ? "f16"
                                   : "bf16",
             d, first, tokens);
    if (tokens == 1)
        bench_case(b, name, YARD_READ, (double)(bytes * a.kv_heads), attend_job, &a);
    else
        bench_case(b, name, YARD_F32,
                   4.0 * (double)(8 * heads * d) * (double)tokens *
                       ((double)first + 0.5 * (double)(tokens + 1)),
                   attend_job, &a);
    free(a.q), free(a.o), free(a.begin), free(a.end), free(a.pages);
    for (int i = 0; i < MOST_THREADS; i++)
        free(a.scratch[i]), free(a.state[i]), free(a.later[i]);
}

/* --- rows and maps: elements a second, in cache --- */

typedef struct map_bench {
    float *x, *y;
    int map; /* or -1 rms_norm, -2 softmax, -3 to bf16, -4 argmax */
} map_bench;

enum { MAP_N = 2048, MAP_TIMES = 2000 };

static void map_job(const bench *b, void *data, int id)
{
    const map_bench *d = data;
    float *y = d->y + id * MAP_N;
    int64_t at;
    for (int i = 0; i < MAP_TIMES; i++) {
        if (d->map >= 0)
            b->t.map[d->map](y, d->x, MAP_N);
        else if (d->map == -1)
            b->t.rms_norm(y, MAP_N, d->x, MAP_N, d->x, 1e-6f, MAP_N, 0, 1);
        else if (d->map == -2)
            b->t.softmax(y, MAP_N, d->x, MAP_N, MAP_N, 0, 1);
        else if (d->map == -3)
            b->t.bf16_from_f32((uint16_t *)y, d->x, MAP_N);
        else
            b->t.argmax(&at, d->x, MAP_N, MAP_N, 0, 1);
    }
}

static void bench_maps(const bench *b)
{
    static const char *const names[] = {"argmax", "bf16_from_f32", "softmax", "rms_norm", "exp",
                                        "log",    "tanh",          "sigmoid", "sin",      "cos",
                                        "erf",    "rsqrt",         "sqrt"};
    map_bench d = {new_floats(MAP_N), new_floats(MAP_N * MOST_THREADS), 0};
    random_fill(d.x, MAP_N);
    for (d.map = -4; d.map < QN__CPU_MAP_COUNT; d.map++) {
        char name[64];
        snprintf(name, sizeof name, "map %s (elements)", names[d.map + 4]);
        bench_case(b, name, YARD_NONE, (double)b->threads * MAP_N * MAP_TIMES, map_job, &d);
    }
    free(d.x), free(d.y);
}

int bench_cpu(int json, const char *only)
{
    bench b = {.json = json, .only = only, .big_bytes = (size_t)1 << 30};
    qn__cpu_kernels_fill(&b.t, getenv("QN_CPU"));
    char *p = mmap(NULL, b.big_bytes + (2 << 20), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 2;
    b.big = (char *)(((uintptr_t)p + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
    madvise(b.big, b.big_bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < b.big_bytes / 4; i++)
        ((uint32_t *)b.big)[i] =
            0x3d013c81u +
            (uint32_t)(i * 2654435761u >> 9 & 0x007f007f); /* small as f32 and as bf16 */
    static const qn__encoding_id quantised[] = {QN__AFFINE4_G64_BF16,
                                                QN__AFFINE8_G64_BF16,
                                                QN__Q4_0,
                                                QN__Q4_1,
                                                QN__Q5_0,
                                                QN__Q8_0,
                                                QN__Q4_K,
                                                QN__Q5_K,
                                                QN__Q6_K,
                                                QN__Q2_K,
                                                QN__Q3_K,
                                                QN__IQ4_NL,
                                                QN__IQ4_XS,
                                                QN__TQ1_0,
                                                QN__TQ2_0,
                                                QN__MXFP4,
                                                QN__I2_S};
    for (b.threads = 1; b.threads <= MOST_THREADS; b.threads++) {
        for (size_t i = 0; i < sizeof quantised / sizeof *quantised; i++)
            bench_weights(&b, QN__CPU_INT8, QN__UNITS_OF(quantised[i]));
        for (int f32 = 0; f32 < 2; f32++) {
            qn__cpu_type type = f32 ? QN__CPU_F32 : QN__CPU_BF16;
            bench_weights(&b, type, f32 ? QN__UNITS_OF(QN__F32) : QN__UNITS_OF(QN__BF16));
            bench_attend(&b, type, QN__PLAIN, 64, 1, 4095);
            bench_attend(&b, type, QN__PLAIN, 128, 1, 4095);
            bench_attend(&b, type, QN__PLAIN, 64, 512, 0);
            bench_attend(&b, type, QN__PLAIN, 128, 512, 0);
            bench_attend(&b, type, QN__PLAIN, 64, 2048, 0);
        }
        const qn__layout_id kept[] = {QN__PLAIN, QN__UNITS_OF(QN__Q8_0), QN__UNITS_OF(QN__Q4_0)};
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
            bench_attend(&b, QN__CPU_F16, kept[i], 64, 1, 4095);
            bench_attend(&b, QN__CPU_F16, kept[i], 64, 512, 0);
        }
        for (int ab = 0; ab < 4; ab++)
            bench_dense(&b, 512, 2048, 512, ab & 1, ab >> 1);
        if (b.threads == 1)
            bench_maps(&b);
    }
    munmap(p, b.big_bytes + (2 << 20));
    return 0;
}
