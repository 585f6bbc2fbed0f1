/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation behind tokens that the session has already: with `before` naming them, the same tokens
 * come as from one prompt, to the last; without, penalty and draws know less and others come.
 */
#include "generate/model_test.h"

enum { PROMPT = 50, TOKENS = 60 };

/* The prompt's first `held` tokens are appended, the rest is generation's; `named`: it is told of
 * them. */
static void generate(qn_model *model, const int32_t *prompt, size_t held, bool named,
                     float temperature, int32_t *out)
{
    qn_session *session = open_session(model, 0, 1);
    qn_generation *g;
    qn_error err = {0};
    qn_metrics m = QN_INIT(qn_metrics);
    int32_t *before = malloc(PROMPT * sizeof *before);
    memcpy(before, prompt, PROMPT * sizeof *before);
    qn_generation_options o = {.size = sizeof o,
                               .max_tokens = TOKENS,
                               .ignore_stop = true,
                               .before = named ? before : NULL,
                               .n_before = named ? held : 0};
    o.sampling = &(qn_sampling){.size = sizeof(qn_sampling),
                               .temperature = temperature,
                               .repeat_penalty = 1.5f,
                               .repeat_last = -1,
                               .seed = 9};
    assert_int_equal(qn_session_append(session, prompt, held, &err), QN_OK);
    assert_int_equal(qn_generation_begin(&g, session, prompt + held, PROMPT - held, &o, &err),
                     QN_OK);
    memset(before, 0, PROMPT * sizeof *before); /* borrowed until begin returned */
    free(before);
    for (int i = 0; i < TOKENS; i++)
        if (qn_generation_next(g, &out[i], &err) != QN_OK)
            fail_msg("%s", err.message);
    qn_generation_get_metrics(g, &m);
    assert_int_equal(m.prompt_tokens, PROMPT - held);
    assert_int_equal(m.generated_tokens, TOKENS);
    qn_generation_end(g);
    qn_session_close(session);
}

static void check_before(qn_model *model, float temperature)
{
    int32_t prompt[PROMPT], want[TOKENS], got[TOKENS];
    random_tokens(prompt, PROMPT, vocab_of(model), 21);
    generate(model, prompt, 0, false, temperature, want);
    for (size_t held = 1; held < PROMPT; held += 16) {
        generate(model, prompt, held, true, temperature, got);
        assert_memory_equal(got, want, sizeof got);
    }
    generate(model, prompt, PROMPT - 1, false, temperature, got);
    assert_memory_not_equal(got, want, sizeof got);
}

static void test_before(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_model(device, "models/demo", false);
    check_before(model, 0);    /* the penalty alone */
    check_before(model, 1.1f); /* the draws, too */
    qn_model_close(model);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
