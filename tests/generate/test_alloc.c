/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation (and start of a thread) of a run fails once: opening a device, loading a model,
 * opening sessions, sampling three tokens and choosing three greedily; classifying, embedding and
 * inspecting; a conversation that sleeps. Nothing crashes or leaks;
 * either the failure is reported in one line, or the run did not need that allocation and its
 * tokens are the right ones.
 */
#include "generate/model_test.h"

#include "base/fail_alloc.h"
#include "quern/forward.h"

#include <limits.h>
#include <unistd.h>

enum { PROMPT = 9, SAMPLED = 3, GREEDY = 3 };

typedef struct job {
    const char *model;
    bool tokenizer;
    int32_t tokens[SAMPLED + GREEDY];
    qn_session *session; /* of the last phase, for a second try */
    int recovered;
} job;

static char asleep[64];
static const int32_t prompt[PROMPT] = {5, 17, 42, 3, 99, 120, 8, 33, 64};

static qn_status generate(job *j, qn_model *model, float temperature, int32_t *out, int n,
                          qn_error *err)
{
    qn_session_options so = {.size = sizeof so, .context = 64, .prefill_chunk = 4};
    qn_generation_options go = {.size = sizeof go, .max_tokens = n, .ignore_stop = true};
    qn_generation *g = NULL;
    go.sampling = &(qn_sampling){.size = sizeof(qn_sampling),
                                 .temperature = temperature,
                                 .top_p = temperature > 0 ? 0.9f : 0,
                                 .repeat_penalty = temperature > 0 ? 1.1f : 0,
                                 .seed = 3};
    qn_status status = qn_session_open(&j->session, model, &so, err);
    if (status == QN_OK)
        status = qn_generation_begin(&g, j->session, prompt, PROMPT, &go, err);
    for (int i = 0; status == QN_OK && i < n; i++)
        status = qn_generation_next(g, &out[i], err);
    qn_generation_end(g);
    return status;
}

/* After a failure the session still works. */
static void try_again(job *j)
{
    if (!j->session)
        return;
    qn_error err = {0};
    long left = allocations_left;
    allocations_left = -1;
    qn_session_rewind(j->session, 0);
    if (qn_session_append(j->session, prompt, PROMPT, &err) != QN_OK)
        fail_msg("the session did not recover: %s", err.message);
    assert_int_equal(qn_session_length(j->session), PROMPT);
    assert_non_null(qn_session_logits(j->session));
    j->recovered++;
    allocations_left = left;
}

static qn_status run(job *j, qn_error *err)
{
    char path[600];
    qn_device *device = NULL;
    qn_model *model = NULL;
    qn_device_options o = {.size = sizeof o, .threads = 2};
    qn_model_options mo = {.size = sizeof mo, .no_tokenizer = !j->tokenizer};
    snprintf(path, sizeof path, "%s/%s", getenv("QUERN_SOURCE"), j->model);
    j->session = NULL;
    qn_status status = qn_device_open(&device, "cpu", &o, err);
    if (status == QN_OK)
        status = qn_model_open(&model, device, path, &mo, err);
    if (status == QN_OK)
        status = generate(j, model, 0.8f, j->tokens, SAMPLED, err);
    if (status == QN_OK) {
        qn_session_close(j->session);
        j->session = NULL;
        status = generate(j, model, 0, j->tokens + SAMPLED, GREEDY, err);
    }
    if (status != QN_OK)
        try_again(j);
    qn_session_close(j->session);
    qn_model_close(model);
    qn_device_close(device);
    return status;
}

/* Fails allocation first, first + step, ... until the run makes no more; returns how many failed.
 */
static long sweep(job *j, long first, long step, long *reported)
{
    int32_t want[SAMPLED + GREEDY];
    qn_error err = {0};
    assert_int_equal(run(j, &err), QN_OK);
    memcpy(want, j->tokens, sizeof want);
    long n = first, failures = 0;
    for (;; n += step) {
        err = (qn_error){0};
        memset(j->tokens, 0, sizeof j->tokens);
        fail_allocation_begin(n);
        qn_status status = run(j, &err);
        if (!fail_allocation_end())
            break;
        failures++;
        if (status == QN_OK) {
            assert_memory_equal(j->tokens, want, sizeof want);
            continue;
        }
        ++*reported;
        if (status != QN_MEMORY || err.code != status || !err.message[0] ||
            strchr(err.message, '\n'))
            fail_msg("allocation %ld: status %d, error %d: \"%s\"", n, (int)status, (int)err.code,
                     err.message);
    }
    return failures;
}

static void report(const job *j, long failures, long reported)
{
    printf("%s: %ld allocations failed, %ld reported, %ld not needed, %d sessions went on\n",
           j->model, failures, reported, failures - reported, j->recovered);
}

static void test_every_allocation(void **state)
{
    (void)state;
    job j = {.model = "tests/golden/llama/llama3-tied"};
    long reported = 0, failures = sweep(&j, 0, 1, &reported);
    report(&j, failures, reported);
    assert_true(failures > 200 && reported > failures / 2 && j.recovered > 50);
}

/* With a tokenizer and bf16 weights; too slow to fail each. */
static void test_demo(void **state)
{
    (void)state;
    job j = {.model = "models/demo", .tokenizer = true};
    qn_error err = {0};
    fail_allocation_begin(LONG_MAX);
    assert_int_equal(run(&j, &err), QN_OK);
    long all = LONG_MAX - allocations_left, reported = 0;
    fail_allocation_end();
    long failures = sweep(&j, 0, all / 60 + 1, &reported);
    report(&j, failures, reported);
    assert_true(failures >= 40);
}

/* A call that fails leaves the session with the tokens that it had, and they count: also when the
 * call had run half, and when only its results were lost. */
static void test_failed_append(void **state)
{
    (void)state;
    enum { BEFORE = 5 };
    qn_device *device = open_cpu_threads(1);
    qn_model *model = open_model(device, "tests/golden/llama/plain", false);
    size_t vocab = vocab_of(model);
    float *want = malloc(vocab * sizeof *want);
    for (long n = -1;;
         n++) { /* the first fails nothing and leaves plans, so that the rest do the same */
        qn_session *session = open_session(model, 2, 1);
        qn_error err = {0};
        assert_int_equal(qn_session_append(session, prompt, BEFORE, &err), QN_OK);
        fail_allocation_begin(n < 0 ? LONG_MAX : n);
        qn_status status = qn_session_append(session, prompt + BEFORE, PROMPT - BEFORE, &err);
        bool failed = fail_allocation_end();
        assert_int_equal(qn_session_length(session), status == QN_OK ? PROMPT : BEFORE);
        assert_true((qn_session_logits(session) != NULL) == (status == QN_OK));
        if (status != QN_OK)
            assert_int_equal(qn_session_append(session, prompt + BEFORE, PROMPT - BEFORE, &err),
                             QN_OK);
        if (n < 0)
            memcpy(want, qn_session_logits(session), vocab * sizeof *want);
        assert_memory_equal(qn_session_logits(session), want, vocab * sizeof *want);
        qn_session_close(session);
        if (!failed && n >= 0)
            break;
    }
    free(want);
    qn_model_close(model);
    qn_device_close(device);
}

typedef struct forwards {
    qn_label_score scores[2][2];
    qn_token_score best[2][3];
    float vectors[2][64];
    float attention[PROMPT * PROMPT];
} forwards;

static qn_status run_forwards(qn_model *model, forwards *f, qn_error *err)
{
    const qn_ids texts[] = {{prompt, PROMPT}, {prompt + 3, 4}};
    const qn_ids labels[] = {{prompt + 1, 2}, {prompt + 4, 3}};
    const qn_forward_options o = {.size = sizeof o, .step_tokens = 5};
    qn_inspection *x = NULL;
    qn_status status = qn_classify(model, texts, 2, labels, 2, &o, &f->scores[0][0], err);
    if (status == QN_OK)
        status = qn_next_tokens(model, texts, 2, 3, &o, &f->best[0][0], err);
    if (status == QN_OK)
        status = qn_embed(model, texts, 2, NULL, &o, &f->vectors[0][0], err);
    if (status == QN_OK)
        status = qn_inspect(&x, model, texts, NULL, &o, err);
    if (status == QN_OK)
        status = qn_inspection_attention(x, 1, 2, f->attention, err);
    qn_inspection_free(x);
    return status;
}

/* Classifying, embedding and inspecting. */
static void test_forwards(void **state)
{
    (void)state;
    qn_device *device = open_cpu_threads(1);
    qn_model *model = open_model(device, "tests/golden/llama/plain", false);
    static forwards want, got;
    long n = -1, reported = 0; /* the first fails nothing and leaves plans */
    for (bool failed = true; failed; n++) {
        qn_error err = {0};
        memset(&got, 0, sizeof got);
        fail_allocation_begin(n < 0 ? LONG_MAX : n);
        qn_status status = run_forwards(model, n < 0 ? &want : &got, &err);
        failed = fail_allocation_end() || n < 0;
        if (status != QN_OK && (status != QN_MEMORY || err.code != status || !err.message[0]))
            fail_msg("allocation %ld: status %d, \"%s\"", n, (int)status, err.message);
        if (status == QN_OK && n >= 0)
            assert_memory_equal(&got, &want, sizeof got);
        reported += status != QN_OK;
    }
    printf("forwards: %ld allocations failed, %ld reported\n", n, reported);
    assert_true(reported > 50);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

enum { TOLD = 6 };

static qn_status tell(qn_model *model, const qn_chat *chat, int32_t *ids, qn_error *err)
{
    qn_session_options so = {.size = sizeof so, .context = 200};
    qn_generation_options go = {.size = sizeof go, .max_tokens = TOLD / 2, .ignore_stop = true};
    qn_session *session[2] = {NULL, NULL};
    qn_conversation *c = NULL;
    qn_status status = qn_conversation_new(&c, chat, err);
    for (int k = 0; status == QN_OK && k < 2; k++) {
        qn_generation *g = NULL;
        status = qn_session_open(&session[k], model, &so, err);
        if (status == QN_OK && k)
            status = qn_conversation_restore(c, session[k], asleep, err);
        if (status == QN_OK)
            status = qn_conversation_add(c, "user", "And then?", 9, err);
        if (status == QN_OK)
            status = qn_conversation_begin_reply(&g, c, session[k], &go, err);
        for (int i = 0; status == QN_OK && i < TOLD / 2; i++)
            status = qn_generation_next(g, &ids[k * TOLD / 2 + i], err);
        qn_generation_end(g);
        if (status == QN_OK)
            status = qn_conversation_save(c, session[k], asleep, err);
        if (status == QN_OK)
            status = qn_conversation_read(c, asleep, err);
    }
    qn_session_close(session[0]);
    qn_session_close(session[1]);
    qn_conversation_free(c);
    return status;
}

/* A reply, sleep, and a reply behind it. */
static void test_told(void **state)
{
    (void)state;
    char path[600];
    int32_t want[TOLD], got[TOLD];
    qn_chat *chat;
    qn_device *device = open_cpu_threads(1);
    qn_model *model = open_model(device, "models/demo", true);
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    snprintf(asleep, sizeof asleep, "/tmp/quern-told-%d", (int)getpid());
    assert_int_equal(qn_chat_open(&chat, qn_model_tokenizer(model), path, NULL), QN_OK);
    long n = -1, reported = 0; /* the first fails nothing and leaves plans */
    for (bool failed = true; failed; n++) {
        qn_error err = {0};
        memset(got, 0, sizeof got);
        fail_allocation_begin(n < 0 ? LONG_MAX : n);
        qn_status status = tell(model, chat, n < 0 ? want : got, &err);
        failed = fail_allocation_end() || n < 0;
        if (status != QN_OK && (status != QN_MEMORY || err.code != status || !err.message[0]))
            fail_msg("allocation %ld: status %d, \"%s\"", n, (int)status, err.message);
        if (status == QN_OK && n >= 0)
            assert_memory_equal(got, want, sizeof got);
        reported += status != QN_OK;
    }
    printf("conversation: %ld allocations failed, %ld reported\n", n, reported);
    assert_true(reported > 50);
    unlink(asleep);
    qn_chat_close(chat);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* A limit instead of a failure: every size from nothing to enough. */
static void test_memory_limits(void **state)
{
    (void)state;
    int refused = 0;
    for (size_t limit = 64 << 10; limit < 8 << 20; limit += limit / 4) {
        qn_device *device;
        qn_device_options o = {.size = sizeof o, .threads = 1, .memory_limit = limit};
        qn_error err = {0};
        assert_int_equal(qn_device_open(&device, "cpu", &o, &err), QN_OK);
        qn_model *model;
        qn_model_options mo = {.size = sizeof mo, .no_tokenizer = true};
        char path[600];
        snprintf(path, sizeof path, "%s/tests/golden/llama/plain", getenv("QUERN_SOURCE"));
        qn_status status = qn_model_open(&model, device, path, &mo, &err);
        if (status == QN_OK) {
            job j = {.model = NULL};
            status = generate(&j, model, 0.8f, j.tokens, SAMPLED, &err);
            qn_session_close(j.session);
        }
        qn_model_close(model);
        assert_true(status == QN_OK || status == QN_LIMIT);
        assert_true(memory_of(device).peak <= limit);
        refused += status != QN_OK;
        qn_device_close(device);
        if (status == QN_OK)
            break;
    }
    assert_true(refused > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_demo),
        cmocka_unit_test(test_failed_append),
        cmocka_unit_test(test_forwards),
        cmocka_unit_test(test_told),
        cmocka_unit_test(test_memory_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
