/* SPDX-License-Identifier: Apache-2.0
 *
 * Same bits whatever the company: a token's logits do not depend on the number of threads, on how
 * its prompt was cut, on what else is in the batch, or on what the session held before.
 */
#include "generate/model_test.h"

enum { LENGTH = 300, BATCH = 4 }; /* past the cache's first growth, at 256 */

static const char *const models[] = {
    "models/demo", "tests/golden/llama/plain", "tests/golden/llama/llama3-tied",
    "tests/golden/llama/llama3-head-dim", "tests/golden/llama/biased"};
enum { N_MODELS = sizeof models / sizeof *models };

typedef struct fixture {
    qn_device *device;
    qn_model *model;
    size_t vocab;
    int32_t ids[BATCH * LENGTH]; /* sequences one behind the other */
    float *logits[BATCH];        /* [LENGTH, vocab] of each alone, as one chunk, one thread */
} fixture;

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

static void begin(fixture *f, const char *name)
{
    f->device = open_cpu_threads(1);
    f->model = open_model(f->device, name, false);
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
    float *out = malloc(LENGTH * f->vocab * sizeof *out);
    for (int threads = 2; threads <= 4; threads++) {
        qn_device *device = open_cpu_threads(threads);
        qn_model *model = open_model(device, name, false);
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
    qn_session_close(session);
    qn_session_close(greedy);
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
    append(session, f->ids, 20);
    same(f, qn_session_logits(session), row(f, 0, 19), 1, "after a cancelled call");
    qn_session_close(session);
}

static void test_logits(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        fixture f;
        begin(&f, models[i]);
        check_threads(&f, models[i]);
        check_chunks(&f);
        check_token_by_token(&f);
        check_batches(&f);
        check_rewind(&f);
        check_failed_calls(&f);
        end(&f);
    }
}

/* ---- sampled tokens
 * ---------------------------------------------------------------------------------------- */

static void sample_tokens(int threads, int64_t chunk, uint64_t seed, const int32_t *prompt,
                          size_t n, int32_t *out, size_t n_out)
{
    qn_device *device = open_cpu_threads(threads);
    qn_model *model = open_model(device, "models/demo", false);
    qn_session *session = open_session(model, chunk, 1);
    qn_error err = {0};
    qn_generation *g;
    qn_generation_options o = {.size = sizeof o, .max_tokens = (int64_t)n_out, .ignore_stop = true};
    o.sampling = (qn_sampling){.size = sizeof o.sampling,
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
    qn_metrics m;
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
        cmocka_unit_test(test_sampled_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
