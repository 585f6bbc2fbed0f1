/* SPDX-License-Identifier: Apache-2.0
 *
 * Times a model: prefill of a prompt (512 tokens), decoding of 64 behind it, and the read bandwidth
 * of the machine before and after, in one process. Prints one JSON object.
 *
 *     bench-model DIR [threads [repeats [prompt]]]
 */
#include "quern/quern.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum { WARM = 512, DECODE = 64, MOST_REPEATS = 15, MOST_PROMPT = 1 << 17 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[n / 2];
}

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

static double read_bandwidth(const uint64_t *data, size_t bytes, int threads)
{
    reader r[64];
    pthread_t t[64];
    double begun = now();
    for (int i = 0; i < threads; i++) {
        r[i] = (reader){data + bytes / 8 / (size_t)threads * (size_t)i, bytes / 8 / (size_t)threads,
                        0};
        pthread_create(&t[i], NULL, read_all, &r[i]);
    }
    uint64_t sum = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(t[i], NULL);
        sum ^= r[i].sum;
    }
    double seconds = now() - begun;
    return sum == 42 ? 0 : (double)bytes / seconds / 1e9;
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
static double read_limit(const uint64_t *data, size_t bytes)
{
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double r = read_bandwidth(data, bytes, 1);
        best = r > best ? r : best;
    }
    return best;
}

/* Each repeat decodes and then reads, so that a drift of the machine hits both. The first, of at
 * most WARM tokens, is not counted; after it the memory in use is noted and the buffer for reading
 * is made. */
static int time_model(qn_model *model, int repeats, int prompt, double *prefill, double *decode,
                      double *read, long long *peak)
{
    size_t bytes = (size_t)1 << 30;
    uint64_t *data = NULL;
    qn_error err = {0};
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
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
            if (!(data = aligned_alloc(2 << 20, bytes)))
                return fprintf(stderr, "bench-model: no memory\n"), 1;
            madvise(data, bytes, MADV_HUGEPAGE);
            memset(data, 1, bytes);
        } else {
            prefill[r] = prompt / (t1 - t0);
            decode[r] = DECODE / (t3 - t2);
            read[r] = read_limit(data, bytes);
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
    double load = now() - t0, prefill[MOST_REPEATS], decode[MOST_REPEATS], read[MOST_REPEATS];
    double share[MOST_REPEATS];
    long long peak = 0;
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    if (time_model(model, repeats, prompt, prefill, decode, read, &peak))
        return 1;
    for (int i = 0; i < repeats; i++)
        share[i] = decode[i] * (double)info.weight_bytes / 1e9 / read[i];
    qn_plan_stats plans = QN_INIT(qn_plan_stats);
    qn_device_plan_stats(device, &plans);
    char tier[128];
    qn_device_describe(device, tier, sizeof tier);
    double d = median(decode, repeats);
    printf("{\"tier\":\"%s\",\"load_seconds\":%.2f,\"prefill\":%.1f,\"decode\":%.2f,"
           "\"weight_bytes\":%llu,\"decode_gb_s\":%.2f,\"read_1_thread_gb_s\":%.2f,"
           "\"decode_of_read\":%.3f,\"peak_rss_bytes\":%lld,\"plan_ns_a_node\":%.1f,\"hit_rate\":%."
           "4f}\n",
           tier, load, median(prefill, repeats), d, (unsigned long long)info.weight_bytes,
           d * (double)info.weight_bytes / 1e9, median(read, repeats), median(share, repeats), peak,
           (double)plans.hit_ns / (double)plans.nodes,
           (double)plans.hits / (double)plans.evaluations);
    qn_model_close(model);
    qn_device_close(device);
    return 0;
}
