/* SPDX-License-Identifier: Apache-2.0
 *
 * Guessed tokens, from the text and by a draft model: what is guessed, and that a reply, its
 * log-probabilities, its end and the session behind it are those without guesses, greedy and
 * sampled, wherever it ends or is given up; and that guesses save steps.
 */
#include "generate/model_test.h"
#include "models/golden_model.h"

#include "generate/guess.h"

#include <math.h>

enum { CONTEXT = 200, MOST = 90, TOP = 3 };

static void test_what(void **state)
{
    (void)state;
    static const struct {
        int32_t text[12];
        size_t n, most, count;
        int32_t guess[6];
    } cases[] = {
        {{1}, 1, 4, 0, {0}},
        {{1, 2}, 2, 4, 0, {0}},
        {{1, 2, 3, 1, 2}, 5, 4, 3, {3, 1, 2}},
        {{1, 2, 3, 1, 2}, 5, 2, 2, {3, 1}},
        {{7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2}, 11, 1, 1, {3}}, /* three in a row before two */
        {{1, 2, 3, 9, 1, 2, 4, 1, 2}, 9, 1, 1, {4}},        /* the last place */
        {{5, 5, 5, 5}, 4, 6, 1, {5}},
        {{1, 2, 3, 4}, 4, 4, 0, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t got[6];
        assert_int_equal(qn__guess(cases[i].text, cases[i].n, got, cases[i].most), cases[i].count);
        assert_memory_equal(got, cases[i].guess, cases[i].count * sizeof *got);
    }
}

/* What a generation says, and the session behind it. */
typedef struct said {
    int32_t ids[MOST + 1];
    size_t n;
    int64_t length;
    qn_finish finish;
    qn_logprob logprobs[MOST][TOP + 1];
    uint64_t steps; /* evaluations of the device */
    uint64_t guessed, right;
} said;

static void say(qn_model *model, qn_model *draft, qn_device *device, const int32_t *ids, size_t n,
                const qn_generation_options *o, size_t give_up, said *out)
{
    qn_session *session;
    qn_generation *g;
    qn_error err = {0};
    qn_session_options with = {.size = sizeof with, .context = CONTEXT, .draft = draft};
    qn_plan_stats before = QN_INIT(qn_plan_stats), after = QN_INIT(qn_plan_stats);
    int32_t id = 0;
    *out = (said){.n = 0};
    assert_int_equal(qn_session_open(&session, model, &with, &err), QN_OK);
    qn_device_plan_stats(device, &before);
    assert_int_equal(qn_generation_begin(&g, session, ids, n, o, &err), QN_OK);
    while (out->n < give_up && qn_generation_next(g, &id, &err) == QN_OK && id >= 0) {
        size_t n_logprobs;
        const qn_logprob *newest = qn_generation_logprobs(g, &n_logprobs);
        if (newest)
            memcpy(out->logprobs[out->n], newest, n_logprobs * sizeof *newest);
        out->ids[out->n++] = id;
    }
    assert_int_equal(err.code, QN_OK);
    qn_metrics m = QN_INIT(qn_metrics);
    assert_int_equal(qn_generation_get_metrics(g, &m), QN_OK);
    assert_int_equal(m.generated_tokens, out->n);
    out->finish = m.finish;
    out->guessed = m.guessed_tokens;
    out->right = m.right_tokens;
    qn_generation_end(g);
    qn_device_plan_stats(device, &after);
    out->steps = after.evaluations - before.evaluations;
    out->length = qn_session_length(session);
    qn_session_close(session);
}

/* A prompt that repeats itself, so that there is much to guess. */
static size_t make_prompt(int32_t *ids, size_t vocab, uint64_t seed)
{
    size_t n = 12 + seed * 7 % 20;
    random_tokens(ids, n, vocab, seed);
    for (size_t i = 0; i < 2 * n; i++)
        ids[n + i] = ids[i];
    return 3 * n;
}

/* Guessers: the text, a draft model, both. */
static const struct {
    int text, draft;
} guessers[] = {{1, 0}, {2, 0}, {3, 0}, {11, 0}, {19, 0}, {0, 1}, {0, 6}, {0, 64}, {5, 9}};

static void expect_same(const said *guessed, const said *plain)
{
    assert_int_equal(guessed->n, plain->n);
    assert_memory_equal(guessed->ids, plain->ids, plain->n * sizeof *plain->ids);
    assert_memory_equal(guessed->logprobs, plain->logprobs, sizeof plain->logprobs);
    assert_int_equal(guessed->finish, plain->finish);
    assert_int_equal(guessed->length, plain->length);
    assert_true(guessed->right <= guessed->guessed);
    assert_int_equal(plain->guessed, 0);
}

/* *saved: steps, by guesses from the text. */
static void check_same(qn_model *model, qn_model *draft, qn_device *device, uint64_t seed,
                       uint64_t *saved)
{
    int32_t ids[CONTEXT];
    size_t n = make_prompt(ids, vocab_of(model), seed);
    qn_sampling sampling = {.size = sizeof sampling,
                            .temperature = seed % 3 ? 0.3f : 0,
                            .top_k = seed % 3 ? 4 : 0,
                            .repeat_penalty = seed % 5 == 4 ? 1.1f : 0,
                            .seed = seed};
    qn_generation_options o = {.size = sizeof o,
                               .sampling = &sampling,
                               .max_tokens = seed % 4 == 3 ? 0 : (int64_t)(5 + seed * 11 % 80),
                               .logprobs = seed % 2,
                               .top_logprobs = seed % 2 ? TOP : 0};
    said plain, first, guessed;
    say(model, NULL, device, ids, n, &o, MOST, &first);
    int32_t stop = first.n > 10 ? first.ids[first.n - 2] : -1;
    o.stop = &stop;
    o.n_stop = seed % 7 == 6 && stop >= 0;
    for (size_t i = 0; i < sizeof guessers / sizeof *guessers; i++) {
        for (size_t give_up = MOST; give_up > 0; give_up = give_up == MOST ? 1 + seed % 13 : 0) {
            o.prompt_lookup = o.draft_tokens = 0;
            say(model, NULL, device, ids, n, &o, give_up, &plain);
            o.prompt_lookup = guessers[i].text;
            o.draft_tokens = guessers[i].draft;
            say(model, draft, device, ids, n, &o, give_up, &guessed);
            expect_same(&guessed, &plain);
            if (!guessers[i].draft)
                *saved += plain.steps > guessed.steps ? plain.steps - guessed.steps : 0;
            else if (!guessers[i].text && draft == model && first.n == MOST && seed % 3 == 0 &&
                     seed % 5 != 4) /* greedy: a model guesses itself */
                assert_true(guessed.right == guessed.guessed && guessed.right > 0);
        }
    }
}

static void test_same(void **state)
{
    static const char *const names[] = {NULL, "gemma3/text", "mistral/window"}; /* NULL: the demo */
    qn_device *device = open_cpu(state);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[600];
        uint64_t saved = 0;
        if (names[i])
            golden_directory(path, sizeof path, names[i]);
        qn_model *model = names[i] ? open_model_at(device, path, false)
                                   : open_model(device, "models/demo", false);
        qn_model *other = open_other(device, vocab_of(model));
        for (uint64_t seed = 0; seed < (i || FEWER ? 6 : 21); seed++)
            check_same(model, seed % 2 ? other : model, device, seed, &saved);
        qn_model_close(model);
        qn_model_close(other);
        assert_true(i > 0 || saved > 100);
    }
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* Turns of one session: the draft model follows, back as well. */
static void test_turns(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_model(device, "models/demo", false);
    qn_session *with, *without;
    qn_error err = {0};
    qn_session_options o = {.size = sizeof o, .context = CONTEXT, .draft = model};
    assert_int_equal(qn_session_open(&with, model, &o, &err), QN_OK);
    o.draft = NULL;
    assert_int_equal(qn_session_open(&without, model, &o, &err), QN_OK);
    for (uint64_t turn = 0; turn < 12; turn++) {
        int32_t ids[12];
        random_tokens(ids, 12, vocab_of(model), turn);
        int64_t length = turn % 4 == 3 ? (int64_t)(5 + turn) : qn_session_length(with);
        qn_session_rewind(with, length);
        qn_session_rewind(without, length);
        int32_t before[CONTEXT];
        size_t n_before = (size_t)qn_session_length(with);
        if (n_before)
            memcpy(before, qn_session_tokens(with), n_before * sizeof *before);
        qn_generation_options g = {.size = sizeof g,
                                   .max_tokens = 9,
                                   .ignore_stop = true,
                                   .before = before,
                                   .n_before = n_before,
                                   .draft_tokens = 6};
        qn_generation *a, *b;
        assert_int_equal(qn_generation_begin(&a, with, ids, 12, &g, &err), QN_OK);
        g.draft_tokens = 0;
        assert_int_equal(qn_generation_begin(&b, without, ids, 12, &g, &err), QN_OK);
        for (int32_t x = 0, y = 0; x >= 0;) {
            assert_int_equal(qn_generation_next(a, &x, &err), QN_OK);
            assert_int_equal(qn_generation_next(b, &y, &err), QN_OK);
            assert_int_equal(x, y);
        }
        qn_metrics m = QN_INIT(qn_metrics);
        qn_generation_get_metrics(a, &m);
        assert_true(m.right_tokens == m.guessed_tokens && m.right_tokens >= 5);
        qn_generation_end(a);
        qn_generation_end(b);
        assert_int_equal(qn_session_length(with), qn_session_length(without));
    }
    qn_session_close(with);
    qn_session_close(without);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void test_refusals(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_model(device, "models/demo", false);
    qn_session *session = open_session(model, 0, 0);
    qn_generation_options o = {.size = sizeof o, .prompt_lookup = 65};
    qn_generation *g;
    const int32_t one = 1;
    qn_error err = {0};
    assert_int_equal(qn_generation_begin(&g, session, &one, 1, &o, &err), QN_INVALID);
    o.prompt_lookup = -1;
    err = (qn_error){0};
    assert_int_equal(qn_generation_begin(&g, session, &one, 1, &o, &err), QN_INVALID);
    o.prompt_lookup = 0;
    o.draft_tokens = 4;
    err = (qn_error){0};
    assert_int_equal(qn_generation_begin(&g, session, &one, 1, &o, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "draft model"));
    qn_session_close(session);
    qn_model *other = open_other(device, vocab_of(model) + 1);
    qn_session_options with = {.size = sizeof with, .draft = other};
    err = (qn_error){0};
    assert_int_equal(qn_session_open(&session, model, &with, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "the draft model has"));
    with.draft = model;
    with.batch = 2;
    err = (qn_error){0};
    assert_int_equal(qn_session_open(&session, model, &with, &err), QN_UNSUPPORTED);
    qn_model_close(other);
    qn_model_close(model);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what), cmocka_unit_test(test_same),
                                       cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
