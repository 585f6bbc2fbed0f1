/* SPDX-License-Identifier: Apache-2.0
 *
 * Times a model: prefill of a prompt (512 tokens), decoding of 64 behind it, and the read bandwidth
 * of the machine before and after, in one process. Prints one JSON object.
 *
 *     bench-model DIR [threads [repeats [prompt]]]
 */
#include "quern/quern.h"
#include "timing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { WARM = 512, DECODE = 64, MOST_REPEATS = 15, MOST_PROMPT = 1 << 17 };

/* ---- read bandwidth -------------------------------------------------------------------------- */

typedef struct reader {
    const uint64_t *data;
    size_t n;
    uint64_t sum;
} reader;

typedef uint64_t vector __attribute__((vector_size(64)));

/* Widest loads that the machine has, so that this is a limit and not another kernel. */
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void *
read_all(void *argument)
{
    reader *r = argument;
    const vector *p = (const vector *)r->data;
    vector s0 = {0}, s1 = s0, s2 = s0, s3 = s0;
    for (size_t i = 0; i + 4 <= r->n / 8; i += 4) {
        s0 ^= p[i];
        s1 ^= p[i + 1];
        s2 ^= p[i + 2];
        s3 ^= p[i + 3];
    }
    s0 ^= s1 ^ s2 ^ s3;
    r->sum = s0[0] ^ s0[1] ^ s0[2] ^ s0[3] ^ s0[4] ^ s0[5] ^ s0[6] ^ s0[7];
    return NULL;
}

/* Threads take pieces as they come, as the library's do, and start together: the time that it takes
 * to start them is not the memory's. */
enum { PIECE = 1 << 20, ROUNDS = 2 };

typedef struct pieces {
    const uint64_t *data;
    size_t n, total;
    atomic_size_t taken;
    pthread_barrier_t start;
    atomic_uint_fast64_t sum;
} pieces;

static void *read_pieces(void *argument)
{
    pieces *p = argument;
    pthread_barrier_wait(&p->start);
    for (size_t i; (i = atomic_fetch_add(&p->taken, 1)) < p->total;) {
        reader r = {p->data + i % p->n * (PIECE / 8), PIECE / 8, 0};
        read_all(&r);
        atomic_fetch_xor(&p->sum, r.sum);
    }
    return NULL;
}

static double read_bandwidth(const uint64_t *data, size_t bytes, int threads)
{
    size_t rounds = threads > 1 ? ROUNDS : 1;
    pieces p = {.data = data, .n = bytes / PIECE, .total = bytes / PIECE * rounds};
    pthread_t t[64];
    pthread_barrier_init(&p.start, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++)
        pthread_create(&t[i], NULL, read_pieces, &p);
    pthread_barrier_wait(&p.start);
    double begun = now();
    for (int i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
    double seconds = now() - begun;
    pthread_barrier_destroy(&p.start);
    return p.sum == 42 ? 0 : (double)bytes * (double)rounds / seconds / 1e9;
}

/* ---- the model
 * -----------------------------------------------------------------------------------------------
 */

static int fail(const qn_error *err)
{
    fprintf(stderr, "bench-model: %s\n", err->message);
    return 1;
}

/* The best of three: a limit is what the machine gives when nobody disturbs it. */
static double read_limit(const uint64_t *data, size_t bytes, int threads)
{
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double r = read_bandwidth(data, bytes, threads);
        best = r > best ? r : best;
    }
    return best;
}

/* Each repeat decodes and then reads, so that a drift of the machine hits both. The first, of at
 * most WARM tokens, is not counted; after it the memory in use is noted and the buffer for reading
 * is made. */
static int time_model(qn_model *model, int repeats, int prompt, double *prefill, double *decode,
                      double *read, double *read_all_threads, int threads, long long *peak)
{
    uint64_t *data = NULL;
    qn_error err = {0};
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    /* As many bytes as the weights have: no more of them stay in the caches between two passes. */
    size_t least = (size_t)1 << 30, most = (size_t)4 << 30, bytes = (size_t)info.weight_bytes;
    bytes = (bytes < least ? least : bytes > most ? most : bytes) / PIECE * PIECE;
    int32_t *ids = calloc((size_t)prompt, sizeof *ids), next;
    for (int i = 0; ids && i < prompt; i++)
        ids[i] = (int32_t)((uint64_t)i * 7919 % (uint64_t)info.vocab_size);
    for (int r = -1; r < repeats; r++) {
        qn_session *session;
        if (!ids || qn_session_open(&session, model, NULL, &err) != QN_OK)
            return fail(&err);
        int n = r < 0 && prompt > WARM ? WARM : prompt;
        double t0 = now();
        if (qn_session_append(session, ids, (size_t)n, &err) != QN_OK)
            return fail(&err);
        double t1 = now();
        if (qn_session_step_greedy(session, 1, &next, &err) != QN_OK)
            return fail(&err);
        double t2 = now();
        for (int i = 0; i < DECODE; i++)
            if (qn_session_step_greedy(session, next, &next, &err) != QN_OK)
                return fail(&err);
        double t3 = now();
        if (r < 0) {
            struct rusage usage;
            getrusage(RUSAGE_SELF, &usage);
            *peak = (long long)usage.ru_maxrss * 1024;
            if (!(data =
                      aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1))))
                return fprintf(stderr, "bench-model: no memory\n"), 1;
            madvise(data, bytes, MADV_HUGEPAGE);
            memset(data, 1, bytes);
        } else {
            prefill[r] = prompt / (t1 - t0);
            decode[r] = DECODE / (t3 - t2);
            read[r] = read_limit(data, bytes, 1);
            read_all_threads[r] = read_limit(data, bytes, threads);
        }
        qn_session_close(session);
    }
    free(data);
    free(ids);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return fprintf(stderr, "usage: bench-model DIR [threads [repeats [prompt]]]\n"), 2;
    int threads = argc > 2 ? atoi(argv[2]) : 0, repeats = argc > 3 ? atoi(argv[3]) : 3;
    int prompt = argc > 4 ? atoi(argv[4]) : 512;
    if (prompt < 1 || prompt > MOST_PROMPT || repeats < 1 || repeats > MOST_REPEATS ||
        threads < 0 || threads > 64)
        return fprintf(
                   stderr,
                   "bench-model: 1 to 15 repeats, at most 64 threads, a prompt of 1 to 131072\n"),
               2;
    qn_error err = {0};
    qn_device *device;
    qn_model *model;
    qn_device_options o = {.size = sizeof o, .threads = threads};
    qn_model_options mo = {.size = sizeof mo, .no_tokenizer = true};
    double t0 = now();
    if (qn_device_open(&device, "cpu", &o, &err) != QN_OK ||
        qn_model_open(&model, device, argv[1], &mo, &err) != QN_OK)
        return fail(&err);
    threads = threads ? threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    threads = threads > 64 ? 64 : threads;
    double load = now() - t0, prefill[MOST_REPEATS], decode[MOST_REPEATS], read[MOST_REPEATS];
    double share[MOST_REPEATS], read_all_threads[MOST_REPEATS], share_of_all[MOST_REPEATS];
    long long peak = 0;
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    if (time_model(model, repeats, prompt, prefill, decode, read, read_all_threads, threads, &peak))
        return 1;
    for (int i = 0; i < repeats; i++) {
        double rate = decode[i] * (double)info.weight_bytes / 1e9;
        share[i] = rate / read[i];
        share_of_all[i] = rate / read_all_threads[i];
    }
    qn_plan_stats plans = QN_INIT(qn_plan_stats);
    qn_device_plan_stats(device, &plans);
    char tier[128];
    qn_device_describe(device, tier, sizeof tier);
    double d = median(decode, repeats);
    printf("{\"tier\":\"%s\",\"load_seconds\":%.3f,\"prefill\":%.1f,\"decode\":%.2f,"
           "\"weight_bytes\":%llu,\"decode_gb_s\":%.2f,\"read_1_thread_gb_s\":%.2f,"
           "\"decode_of_read\":%.3f,\"read_gb_s\":%.2f,\"decode_of_read_all_threads\":%.3f,\"peak_"
           "rss_bytes\":%lld,\"plan_ns_a_node\":%.1f,\"hit_rate\":%."
           "4f}\n",
           tier, load, median(prefill, repeats), d, (unsigned long long)info.weight_bytes,
           d * (double)info.weight_bytes / 1e9, median(read, repeats), median(share, repeats),
           median(read_all_threads, repeats), median(share_of_all, repeats), peak,
           (double)plans.hit_ns / (double)plans.nodes,
           (double)plans.hits / (double)plans.evaluations);
    qn_model_close(model);
    qn_device_close(device);
    return 0;
}
