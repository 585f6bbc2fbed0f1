/* SPDX-License-Identifier: Apache-2.0
 *
 * Same bits whatever the company: a token's logits do not depend on the number of threads, on how
 * its prompt was cut, on what else is in the batch, or on what the session held before.
 */
#include "generate/model_test.h"

#include "models/golden_model.h"

#include <pthread.h>

enum { LENGTH = 300, BATCH = 4 }; /* past the cache's first growth, at 256 */

static const char *const models[] = {"models/demo",
                                     "tests/golden/llama/plain",
                                     "tests/golden/llama/llama3-tied",
                                     "tests/golden/llama/llama3-head-dim",
                                     "tests/golden/llama/biased",
                                     "mistral/window",
                                     "qwen2/layer-types",
                                     "qwen3/biased",
                                     "gemma2/plain",
                                     "gemma3/text",
                                     "bitnet/packed",
                                     "bitnet/plain"};
enum { N_MODELS = sizeof models / sizeof *models };

typedef struct fixture {
    qn_device *device;
    qn_model *model;
    size_t vocab;
    int32_t ids[BATCH * LENGTH]; /* sequences one behind the other */
    float *logits[BATCH];        /* [LENGTH, vocab] of each alone, as one chunk, one thread */
} fixture;

/* A folder of the repository, or one of the tiny models of golden_model.h. */
static qn_model *open_any(qn_device *device, const char *name)
{
    char path[600];
    if (strchr(name, '/') != strrchr(name, '/') || !strncmp(name, "models/", 7))
        return open_model(device, name, false);
    golden_directory(path, sizeof path, name);
    return open_model_at(device, path, false);
}

static void score(qn_session *session, const int32_t *ids, size_t n, float *out)
{
    qn_error err = {0};
    if (qn_session_score(session, ids, n, out, &err) != QN_OK)
        fail_msg("%s", err.message);
}

static void append(qn_session *session, const int32_t *ids, size_t n)
{
    qn_error err = {0};
    if (qn_session_append(session, ids, n, &err) != QN_OK)
        fail_msg("%s", err.message);
}

/* Of so many threads, where it is the CPU. */
static qn_device *open_with(int threads)
{
    return getenv("QUERN_TEST_DEVICE") ? open_device(NULL) : open_cpu_threads(threads);
}

static void begin(fixture *f, const char *name)
{
    f->device = open_with(1);
    f->model = open_any(f->device, name);
    f->vocab = vocab_of(f->model);
    random_tokens(f->ids, BATCH * LENGTH, f->vocab, 11);
    for (int b = 0; b < BATCH; b++) {
        qn_session *session = open_session(f->model, 0, 1);
        f->logits[b] = malloc(LENGTH * f->vocab * sizeof(float));
        score(session, f->ids + b * LENGTH, LENGTH, f->logits[b]);
        qn_session_close(session);
    }
}

static void end(fixture *f)
{
    for (int b = 0; b < BATCH; b++)
        free(f->logits[b]);
    qn_model_close(f->model);
    qn_device_close(f->device);
}

/* The logits behind position `at` of sequence b. */
static const float *row(const fixture *f, int b, size_t at)
{
    return f->logits[b] + at * f->vocab;
}

static void same(const fixture *f, const float *got, const float *want, size_t rows,
                 const char *what)
{
    if (memcmp(got, want, rows * f->vocab * sizeof *got))
        for (size_t i = 0; i < rows * f->vocab; i++)
            if (memcmp(&got[i], &want[i], sizeof *got))
                fail_msg("%s: logit %zu of position %zu is %.9g, alone %.9g", what, i % f->vocab,
                         i / f->vocab, (double)got[i], (double)want[i]);
}

/* ---- the checks
 * -------------------------------------------------------------------------------------------- */

static void check_threads(const fixture *f, const char *name)
{
    bool cpu = !strcmp(qn_device_name(f->device), "cpu"); /* another device has none to choose */
    float *out = malloc(LENGTH * f->vocab * sizeof *out);
    for (int threads = 2; cpu && threads <= 4; threads++) {
        qn_device *device = open_cpu_threads(threads);
        qn_model *model = open_any(device, name);
        qn_session *session = open_session(model, 0, 1);
        score(session, f->ids, LENGTH, out);
        same(f, out, row(f, 0, 0), LENGTH, "threads");
        qn_session_rewind(session, 250); /* decoding, too */
        for (size_t i = 250; i < 262; i++) {
            append(session, f->ids + i, 1);
            same(f, qn_session_logits(session), row(f, 0, i), 1, "threads, decoding");
        }
        qn_session_close(session);
        qn_model_close(model);
        qn_device_close(device);
    }
    free(out);
}

static void check_chunks(const fixture *f)
{
    static const int64_t chunks[] = {1, 2, 3, 7, 64, 255, 256, LENGTH};
    float *out = malloc(LENGTH * f->vocab * sizeof *out);
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        qn_session *session = open_session(f->model, chunks[c], 1);
        score(session, f->ids, LENGTH, out);
        same(f, out, row(f, 0, 0), LENGTH, "chunks");
        qn_session_close(session);
        session = open_session(f->model, chunks[c], 1);
        append(session, f->ids, LENGTH);
        same(f, qn_session_logits(session), row(f, 0, LENGTH - 1), 1, "chunks, last");
        assert_int_equal(qn_session_length(session), LENGTH);
        qn_session_close(session);
    }
    free(out);
}

static int32_t largest(const float *x, size_t n)
{
    size_t at = 0;
    for (size_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return (int32_t)at;
}

static void check_token_by_token(const fixture *f)
{
    qn_session *session = open_session(f->model, 0, 1), *greedy = open_session(f->model, 0, 1);
    qn_error err = {0};
    append(greedy, f->ids, 200);
    for (size_t i = 0; i < LENGTH; i++) {
        append(session, f->ids + i, 1);
        same(f, qn_session_logits(session), row(f, 0, i), 1, "token by token");
        if (i < 200)
            continue;
        int32_t next;
        assert_int_equal(qn_session_step_greedy(greedy, f->ids[i], &next, &err), QN_OK);
        assert_int_equal(next, largest(row(f, 0, i), f->vocab));
    }
    assert_int_equal(plans_of(f->device).donation_copies, 0); /* caches stay in place */
    qn_session_close(session);
    qn_session_close(greedy);
}

/* The sequences' next tokens, where each goes on with another one of its own. */
static void check_greedy_batch(const fixture *f, qn_session *session, int batch)
{
    qn_error err = {0};
    int32_t tokens[BATCH], next[BATCH];
    for (int b = 0; b < batch; b++)
        tokens[b] = f->ids[b * LENGTH + 1];
    append(session, tokens, 1);
    for (int b = 0; b < batch; b++)
        next[b] = largest(qn_session_logits(session) + (size_t)b * f->vocab, f->vocab);
    qn_session_rewind(session, LENGTH);
    assert_int_equal(qn_session_step_greedy_batch(session, tokens, tokens, &err), QN_OK);
    assert_memory_equal(tokens, next, (size_t)batch * sizeof *next);
    assert_null(qn_session_logits(session)); /* not those of the call before */
}

static void check_batches(const fixture *f)
{
    float *out = malloc(BATCH * LENGTH * f->vocab * sizeof *out);
    int32_t *copies = malloc(sizeof f->ids);
    for (int b = 0; b < BATCH; b++)
        memcpy(copies + b * LENGTH, f->ids, LENGTH * sizeof *copies);
    for (int batch = 2; batch <= BATCH; batch++) {
        qn_session *session = open_session(f->model, 77, batch);
        score(session, f->ids, LENGTH, out);
        for (int b = 0; b < batch; b++)
            same(f, out + (size_t)b * LENGTH * f->vocab, row(f, b, 0), LENGTH, "batch");
        qn_session_close(session);
        session = open_session(f->model, 0, batch);
        append(session, copies, LENGTH);
        for (int b = 0; b < batch; b++)
            same(f, qn_session_logits(session) + (size_t)b * f->vocab, row(f, 0, LENGTH - 1), 1,
                 "the same in each slot");
        check_greedy_batch(f, session, batch);
        qn_session_close(session);
    }
    free(copies);
    free(out);
}

/* A session that went another way and came back is as good as new. */
static void check_rewind(const fixture *f)
{
    static const int64_t lengths[] = {0, 1, 123, 255, 256, 257, 299};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        qn_session *session = open_session(f->model, 0, 1);
        int64_t n = lengths[k];
        append(session, f->ids, (size_t)n);
        append(session, f->ids + LENGTH, (size_t)(LENGTH - n)); /* another sequence's tokens */
        qn_session_rewind(session, n);
        assert_int_equal(qn_session_length(session), n);
        assert_null(qn_session_logits(session));
        append(session, f->ids + n, (size_t)(LENGTH - n));
        same(f, qn_session_logits(session), row(f, 0, LENGTH - 1), 1, "rewind");
        int32_t next;
        qn_error err = {0};
        qn_session_rewind(session, LENGTH - 2); /* the device's own position must follow */
        assert_int_equal(qn_session_step_greedy(session, f->ids[LENGTH - 2], &next, &err), QN_OK);
        assert_int_equal(next, largest(row(f, 0, LENGTH - 2), f->vocab));
        append(session, f->ids, 1);
        assert_int_equal(qn_session_step_greedy(session, f->ids[0], &next, &err), QN_OK);
        assert_null(qn_session_logits(session)); /* not those of the token before */
        qn_session_rewind(session, LENGTH - 2);
        assert_int_equal(qn_session_step_greedy(session, f->ids[LENGTH - 2], &next, &err), QN_OK);
        assert_int_equal(next, largest(row(f, 0, LENGTH - 2), f->vocab));
        qn_session_close(session);
    }
}

static void check_failed_calls(const fixture *f)
{
    qn_error err = {0};
    qn_session *session;
    qn_session_options o = {.size = sizeof o, .context = 20};
    assert_int_equal(qn_session_open(&session, f->model, &o, &err), QN_OK);
    assert_int_equal(qn_session_append(session, f->ids, 21, &err), QN_LIMIT);
    assert_string_equal(err.message, "a prompt of 21 tokens does not fit a context of 20; use a "
                                     "larger context or a shorter prompt");
    err = (qn_error){0};
    append(session, f->ids, 15);
    assert_int_equal(qn_session_append(session, f->ids, 6, &err), QN_LIMIT);
    assert_string_equal(err.message, "6 tokens behind 15 do not fit a context of 20; use a larger "
                                     "context or a shorter prompt");
    err = (qn_error){0};
    assert_int_equal(qn_session_append(session, (int32_t[]){(int32_t)f->vocab}, 1, &err),
                     QN_INVALID);
    err = (qn_error){0};
    assert_int_equal(qn_session_append(session, (int32_t[]){-1}, 1, &err), QN_INVALID);
    qn_session_rewind(session, 0);
    append(session, f->ids, 20); /* exactly full */
    same(f, qn_session_logits(session), row(f, 0, 19), 1, "a full session");
    qn_session_close(session);
    atomic_bool cancel = true;
    o = (qn_session_options){.size = sizeof o, .cancel = &cancel};
    assert_int_equal(qn_session_open(&session, f->model, &o, &err), QN_OK);
    err = (qn_error){0};
    assert_int_equal(qn_session_append(session, f->ids, 15, &err), QN_CANCELLED);
    assert_int_equal(qn_session_length(session), 0);
    atomic_store(&cancel, false);
    append(session, f->ids, 15);
    atomic_store(&cancel, true); /* what was there stays */
    err = (qn_error){0};
    assert_int_equal(qn_session_append(session, f->ids + LENGTH, 200, &err), QN_CANCELLED);
    assert_int_equal(qn_session_length(session), 15);
    atomic_store(&cancel, false);
    append(session, f->ids + 15, 5);
    same(f, qn_session_logits(session), row(f, 0, 19), 1, "after cancelled calls");
    qn_session_close(session);
}

typedef struct canceller {
    atomic_bool cancel;
    unsigned delay; /* microseconds */
} canceller;

static void *cancel_later(void *context)
{
    canceller *c = context;
    usleep(c->delay);
    atomic_store(&c->cancel, true);
    return NULL;
}

/* Cancelled while it runs, at several moments: what was there stays, to the bit. */
static int check_cancel_midway(const fixture *f)
{
    int n_cancelled = 0;
    canceller c = {.delay = 0};
    for (c.delay = 100; c.delay < 20000; c.delay *= 2) {
        pthread_t thread;
        qn_session *session;
        qn_error err = {0};
        qn_session_options o = {.size = sizeof o, .cancel = &c.cancel, .prefill_chunk = 64};
        atomic_store(&c.cancel, false);
        assert_int_equal(qn_session_open(&session, f->model, &o, &err), QN_OK);
        append(session, f->ids, 100);
        assert_int_equal(pthread_create(&thread, NULL, cancel_later, &c), 0);
        qn_status status = qn_session_append(session, f->ids + LENGTH, 400, &err);
        pthread_join(thread, NULL);
        atomic_store(&c.cancel, false);
        n_cancelled += status == QN_CANCELLED;
        assert_true(status == QN_OK || status == QN_CANCELLED);
        assert_true(status == QN_OK || qn_session_length(session) == 100);
        qn_session_rewind(session, 100);
        append(session, f->ids + 100, LENGTH - 100);
        same(f, qn_session_logits(session), row(f, 0, LENGTH - 1), 1, "cancelled midway");
        qn_session_close(session);
    }
    return n_cancelled;
}

/* ---- windows ----------------------------------------------------------------------------------
 */

/* Going back, further than a window's pages reach and less far, then on another way and back again.
 */
static void check_window_rewind(const fixture *f)
{
    static const int64_t lengths[] = {0, 1, 40, 200, 258, 270, 278};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        qn_session *session = open_session(f->model, 9, 1);
        int64_t n = lengths[k];
        append(session, f->ids, (size_t)n);
        append(session, f->ids + LENGTH, (size_t)(280 - n)); /* another sequence's tokens */
        qn_session_rewind(session, n);
        assert_int_equal(qn_session_length(session), n);
        append(session, f->ids + n, (size_t)(LENGTH - n));
        assert_int_equal(qn_session_length(session), LENGTH);
        same(f, qn_session_logits(session), row(f, 0, LENGTH - 1), 1, "rewinding a window");
        qn_session_close(session);
    }
}

/* Back by as much as a window's pages hold, and by one more or less; with `twice` back again from
 * there, when the places still have what the first way wrote. */
static void check_window_edge(const fixture *f, bool twice)
{
    for (int64_t back = 25; back < 60; back++) {
        qn_session *session = open_session(f->model, 9, 1);
        int64_t n = 280 - back;
        append(session, f->ids, (size_t)n);
        append(session, f->ids + LENGTH, (size_t)back);
        qn_session_rewind(session, n);
        if (twice) {
            append(session, f->ids + n, 1);
            n -= 15;
            qn_session_rewind(session, n);
        }
        append(session, f->ids + n, 1);
        same(f, qn_session_logits(session), row(f, 0, (size_t)n), 1, "at the edge of a window");
        qn_session_close(session);
    }
}

/* A session whose windows gave up positions runs its own tokens again, for each sequence of a
 * batch.
 */
static void check_window_batch(const fixture *f)
{
    int32_t ids[2 * LENGTH];
    qn_session *session = open_session(f->model, 9, 2);
    const size_t ends[] = {10, 290}; /* the room for 10 tokens does not hold 290 */
    for (size_t k = 0, at = 0; k < 2; at = ends[k++]) {
        size_t n = ends[k] - at;
        for (int b = 0; b < 2; b++)
            memcpy(ids + (size_t)b * n, f->ids + b * LENGTH + at, n * sizeof *ids);
        append(session, ids, n);
    }
    qn_session_rewind(session, 40);
    append(session, (int32_t[]){f->ids[40], f->ids[LENGTH + 40]}, 1);
    for (int b = 0; b < 2; b++)
        same(f, qn_session_logits(session) + (size_t)b * f->vocab, row(f, b, 40), 1,
             "a batch again");
    qn_session_close(session);
}

/* Sliding layers do not grow with the sequence. */
static void check_window_bytes(const fixture *f, const char *name)
{
    qn_session *some = open_session(f->model, 8, 1), *all = open_session(f->model, 512, 1);
    append(some, f->ids, LENGTH);
    append(all, f->ids, LENGTH);
    size_t window = qn_session_cache_bytes(some), growing = qn_session_cache_bytes(all);
    printf("%-20s %zu bytes, growing %zu\n", name, window, growing);
    if (!strcmp(name, "mistral/window")) /* every layer: one page, for five */
        assert_int_equal(window * 5, growing);
    if (!strcmp(name, "gemma3/text")) /* every other one */
        assert_int_equal(window * 10, growing * 6);
    qn_session_close(some);
    qn_session_close(all);
}

/* A rotating session is a model whose every layer has the context as its window. */
static void test_rotating(void **state)
{
    char path[600], other[600], file[700], config[4000];
    qn_device *device = open_device(state);
    golden_directory(path, sizeof path, "mistral/head-dim");
    snprintf(other, sizeof other, "%s-window", path);
    assert_int_equal(mkdir(other, 0777), 0);
    snprintf(file, sizeof file, "%s/config.json", path);
    FILE *in = fopen(file, "rb");
    size_t n = fread(config, 1, sizeof config - 1, in);
    fclose(in);
    config[n] = 0;
    char *null = strstr(config, "\"sliding_window\": null");
    assert_non_null(null);
    memcpy(null, "\"sliding_window\": 40  ", 22);
    snprintf(file, sizeof file, "%s/config.json", other);
    FILE *out = fopen(file, "wb");
    assert_int_equal(fwrite(config, 1, n, out), n);
    fclose(out);
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    snprintf(config, sizeof config, "%s/model.safetensors", other);
    assert_int_equal(link(file, config), 0);

    qn_model *full = open_model_at(device, path, false),
             *windowed = open_model_at(device, other, false);
    size_t vocab = vocab_of(full);
    int32_t ids[LENGTH];
    random_tokens(ids, LENGTH, vocab, 3);
    float *want = malloc(LENGTH * vocab * sizeof *want),
          *got = malloc(LENGTH * vocab * sizeof *got);
    qn_session *session = open_session(windowed, 0, 1);
    score(session, ids, LENGTH, want);
    qn_session_close(session);
    for (int64_t chunk = 1; chunk < 100; chunk = chunk * 5 + 2) {
        qn_error err = {0};
        qn_session_options o = {
            .size = sizeof o, .context = 40, .rotate = true, .prefill_chunk = chunk};
        assert_int_equal(qn_session_open(&session, full, &o, &err), QN_OK);
        score(session, ids, LENGTH, got);
        assert_memory_equal(got, want, LENGTH * vocab * sizeof *want);
        assert_true(qn_session_cache_bytes(session) <= 128 * 4 * 2 * 2 * 20 * sizeof(float));
        qn_session_close(session);
    }
    for (int k = 0; k < 2; k++) { /* the narrower of a layer's own window and the context counts */
        qn_error err = {0};
        qn_session_options o = {.size = sizeof o, .context = 20, .rotate = true};
        assert_int_equal(qn_session_open(&session, k ? windowed : full, &o, &err), QN_OK);
        score(session, ids, LENGTH, k ? got : want);
        qn_session_close(session);
    }
    assert_memory_equal(got, want, LENGTH * vocab * sizeof *want);
    free(want);
    free(got);
    qn_model_close(full);
    qn_model_close(windowed);
    qn_device_close(device);
}

static void test_logits(void **state)
{
    (void)state;
    int n_cancelled = 0;
    for (int i = 0; i < N_MODELS; i++) {
        if (FEWER && i % 4 != 1)
            continue; /* three of the small ones */
        fixture f;
        begin(&f, models[i]);
        check_threads(&f, models[i]);
        check_chunks(&f);
        check_token_by_token(&f);
        check_batches(&f);
        check_rewind(&f);
        check_failed_calls(&f);
        n_cancelled += check_cancel_midway(&f);
        check_window_rewind(&f);
        check_window_bytes(&f, models[i]);
        check_window_batch(&f);
        if (!strcmp(models[i], "mistral/window")) {
            check_window_edge(&f, false);
            check_window_edge(&f, true);
        }
        end(&f);
    }
    printf("%d calls were cancelled midway\n", n_cancelled);
    assert_true(n_cancelled > 0);
}

/* ---- sampled tokens
 * ---------------------------------------------------------------------------------------- */

static void sample_tokens(int threads, int64_t chunk, uint64_t seed, const int32_t *prompt,
                          size_t n, int32_t *out, size_t n_out)
{
    qn_device *device = open_with(threads);
    qn_model *model = open_model(device, "models/demo", false);
    qn_session *session = open_session(model, chunk, 1);
    qn_error err = {0};
    qn_generation *g;
    qn_generation_options o = {.size = sizeof o, .max_tokens = (int64_t)n_out, .ignore_stop = true};
    o.sampling = &(qn_sampling){.size = sizeof(qn_sampling),
                                .temperature = 1.1f,
                                .top_p = 0.95f,
                                .repeat_penalty = 1.2f,
                                .seed = seed};
    assert_int_equal(qn_generation_begin(&g, session, prompt, n, &o, &err), QN_OK);
    for (size_t i = 0; i < n_out; i++)
        if (qn_generation_next(g, &out[i], &err) != QN_OK)
            fail_msg("%s", err.message);
    int32_t last;
    assert_int_equal(qn_generation_next(g, &last, &err), QN_OK);
    assert_int_equal(last, -1);
    qn_metrics m = QN_INIT(qn_metrics);
    qn_generation_get_metrics(g, &m);
    assert_int_equal(m.finish, QN_FINISH_LENGTH);
    assert_int_equal(m.generated_tokens, n_out);
    qn_generation_end(g);
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_sampled_tokens(void **state)
{
    (void)state;
    enum { N = 60 };
    int32_t prompt[40], want[N], got[N];
    random_tokens(prompt, 40, 2048, 5);
    sample_tokens(1, 0, 99, prompt, 40, want, N);
    for (int threads = 2; threads <= 4; threads++) {
        sample_tokens(threads, threads * 3, 99, prompt, 40, got, N);
        assert_memory_equal(got, want, sizeof got);
    }
    sample_tokens(1, 0, 100, prompt, 40, got, N);
    assert_memory_not_equal(got, want, sizeof got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_rotating),
        cmocka_unit_test(test_sampled_tokens),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
