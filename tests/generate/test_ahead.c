/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps enqueued ahead, on the device that QUERN_TEST_DEVICE names or the CPU, which is told to for
 * once: what is drawn is what a session that never goes ahead has, whether its caller comes back
 * with those tokens, with others, as someone else, or after a rewind.
 */
#include "generate/model_test.h"

enum { VOCAB = 300, CALLS = 80, MOST_BATCH = 3, PROMPT = 9, SAID = 12 };

static void append(qn_session *session, const int32_t *ids, size_t n)
{
    qn_error err = {0};
    if (qn_session_append(session, ids, n, &err) != QN_OK)
        fail_msg("%s", err.message);
}

static int32_t best_of(const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* One session goes by greedy steps, the other by tokens that are appended. */
static void check_steps(qn_model *model, int batch, uint64_t seed)
{
    qn_session *ahead = open_session(model, 0, batch), *plain = open_session(model, 0, batch);
    qn_error err = {0};
    int32_t ids[MOST_BATCH * PROMPT], next[MOST_BATCH], n_other = 0, n_refused = 0;
    random_tokens(ids, (size_t)batch * PROMPT, VOCAB, seed);
    append(ahead, ids, PROMPT);
    append(plain, ids, PROMPT);
    memcpy(next, ids, sizeof next);
    for (int i = 0; i < CALLS; i++) {
        double chance = test_random(&seed);
        if (chance > 0.7) {
            random_tokens(next, (size_t)batch, VOCAB, seed);
            n_other++;
        } else if (chance < -0.7) {
            int64_t length = qn_session_length(plain) - 1 - i % 3;
            qn_session_rewind(ahead, length);
            qn_session_rewind(plain, length);
        } else if (chance < -0.6) {
            append(ahead, ids, 2);
            append(plain, ids, 2);
        } else if (chance < -0.45) {
            int32_t none[MOST_BATCH] = {VOCAB, VOCAB, VOCAB}, unused[MOST_BATCH];
            assert_int_equal(qn_session_step_greedy_batch(ahead, none, unused, &err), QN_INVALID);
            n_refused++;
        }
        append(plain, next, 1);
        if (qn_session_step_greedy_batch(ahead, next, next, &err) != QN_OK)
            fail_msg("%s", err.message);
        assert_int_equal(qn_session_length(ahead), qn_session_length(plain));
        for (int b = 0; b < batch; b++)
            assert_int_equal(next[b], best_of(qn_session_logits(plain) + b * VOCAB));
        if (qn_session_length(plain) > 90) {
            qn_session_rewind(ahead, 20);
            qn_session_rewind(plain, 20);
        }
    }
    assert_true(n_other > 3 && n_refused > 3);
    qn_session_close(ahead);
    qn_session_close(plain);
}

static void test_steps(void **state)
{
    qn_device *device = open_ahead(state);
    qn_model *model = open_other(device, VOCAB);
    check_steps(model, 1, 4);
    check_steps(model, 1, 5);
    check_steps(model, MOST_BATCH, 6);
    qn_model_close(model);
    qn_device_close(device);
}

/* Up to the last position that there is room for. */
static void test_full(void **state)
{
    qn_device *device = open_ahead(state);
    qn_model *model = open_other(device, VOCAB);
    qn_session *session = open_session(model, 0, 1);
    qn_error err = {0};
    int32_t token = 7;
    for (int64_t i = 0; i < qn_session_context(session); i++)
        assert_int_equal(qn_session_step_greedy(session, token, &token, &err), QN_OK);
    assert_int_equal(qn_session_step_greedy(session, token, &token, &err), QN_LIMIT);
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

/* Sampled tokens are those of qn_sample; a greedy step behind the newest one is greedy. */
static void test_generation(void **state)
{
    qn_device *device = open_ahead(state);
    qn_model *model = open_other(device, VOCAB);
    qn_session *session = open_session(model, 0, 1), *plain = open_session(model, 0, 1);
    qn_sampling sampling = {
        .size = sizeof sampling, .temperature = 1.3f, .top_p = 0.95f, .seed = 3};
    qn_generation_options o = {
        .size = sizeof o, .max_tokens = SAID, .ignore_stop = true, .sampling = &sampling};
    qn_error err = {0};
    int32_t history[PROMPT + SAID], next;
    random_tokens(history, PROMPT, VOCAB, 8);
    append(plain, history, PROMPT);
    for (int penalty = 0; penalty < 2; penalty++) {
        qn_generation *g;
        qn_session_rewind(session, 0);
        qn_session_rewind(plain, PROMPT - 1);
        append(plain, history + PROMPT - 1, 1);
        sampling.repeat_penalty = penalty ? 1.4f : 1;
        assert_int_equal(qn_generation_begin(&g, session, history, PROMPT, &o, &err), QN_OK);
        for (size_t i = 0; i < SAID; i++) {
            assert_int_equal(qn_generation_next(g, &next, &err), QN_OK);
            assert_int_equal(next, qn_sample(device, qn_session_logits(plain), VOCAB, &sampling,
                                             history, PROMPT + i, i, &err));
            history[PROMPT + i] = next;
            append(plain, &next, 1);
        }
        assert_int_equal(qn_session_step_greedy(session, next, &next, &err), QN_OK);
        assert_int_equal(next, best_of(qn_session_logits(plain)));
        qn_generation_end(g);
    }
    qn_session_close(session);
    qn_session_close(plain);
    qn_model_close(model);
    qn_device_close(device);
}

static uint64_t evaluations(qn_device *device)
{
    qn_plan_stats stats = QN_INIT(qn_plan_stats);
    qn_device_plan_stats(device, &stats);
    return stats.evaluations;
}

/* Nothing runs behind the last token that is wanted. */
static void test_last(void **state)
{
    qn_device *device = open_ahead(state);
    qn_model *model = open_other(device, VOCAB);
    qn_session *session = open_session(model, 0, 1);
    qn_generation_options o = {.size = sizeof o, .max_tokens = SAID, .ignore_stop = true};
    qn_error err = {0};
    int32_t prompt[PROMPT], id;
    random_tokens(prompt, PROMPT, VOCAB, 8);
    for (int i = 0; i < 2; i++) {
        qn_generation *g;
        uint64_t before = evaluations(device);
        qn_session_rewind(session, 0);
        assert_int_equal(qn_generation_begin(&g, session, prompt, PROMPT, &o, &err), QN_OK);
        do
            assert_int_equal(qn_generation_next(g, &id, &err), QN_OK);
        while (id >= 0);
        qn_generation_end(g);
        assert_int_equal(evaluations(device) - before, SAID); /* the prompt, tokens but the last */
    }
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_full),
                                       cmocka_unit_test(test_generation),
                                       cmocka_unit_test(test_last)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
