/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of sampling and generation: what they become, what stays where nothing is said, and
 * allocations that fail. Servers' and batches' tests have what is refused, and that replies change.
 */
#include "../base/fail_alloc.h"
#include "test.h"

#include "request/settings.h"

#include <math.h>
#include <string.h>

static const char ALL[] =
    "{\"max_tokens\":7,\"n_predict\":7,\"temperature\":0.5,\"top_p\":0,\"min_p\":0.25,\"top_k\":3,"
    "\"repeat_penalty\":1.5,\"repeat_last_n\":-1,\"presence_penalty\":-2,\"frequency_penalty\":0.5,"
    "\"samplers\":[\"top_k\",\"temperature\"],\"seed\":9007199254740991,\"stop\":[\"a\","
    "\"\xc3\xa9\"],"
    "\"logit_bias\":[[1,2.5],[3,false],[5,-100]],\"ignore_eos\":true,\"logprobs\":true,"
    "\"top_logprobs\":4,\"extra\":null}";

static qn_status read_text(qn__settings *s, const char *text, qn_error *err)
{
    static const qn__field extra = {"extra", qn__take_ignored, 0, 0, 0};
    const qn__fields others = {&extra, 1, NULL};
    cJSON *tree = NULL;
    *s = qn__settings_begin();
    s->vocab_size = 10;
    if (qn__json_parse(&tree, "line", text, strlen(text), err) == QN_OK) {
        qn__json_at at = qn__json_root("line", tree);
        qn__settings_read(s, &at, &others, 1, err);
    }
    cJSON_Delete(tree); /* nothing of it is needed any more */
    return err->code;
}

static void test_all(void **state)
{
    (void)state;
    qn_error err = {0};
    qn__settings s;
    qn_sampling p = QN_INIT(qn_sampling);
    qn_generation_options g = QN_INIT(qn_generation_options);
    if (read_text(&s, ALL, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn__settings_apply(&s, &p, &g);
    assert_true(p.temperature == 0.5f && p.top_p > 0 && p.top_p < 1e-30f && p.min_p == 0.25f);
    assert_true(p.top_k == 3 && p.repeat_penalty == 1.5f && p.repeat_last == -1);
    assert_true(p.presence_penalty == -2 && p.frequency_penalty == 0.5f);
    assert_true(p.chain[0] == QN_SAMPLER_TOP_K && p.chain[1] == QN_SAMPLER_TEMPERATURE &&
                p.chain[2] == QN_SAMPLER_END);
    assert_true(p.seed == 9007199254740991);
    assert_int_equal(p.n_bias, 3);
    assert_true(p.bias[0].id == 1 && p.bias[0].bias == 2.5f);
    assert_true(p.bias[1].id == 3 && p.bias[1].bias == -INFINITY);
    assert_true(p.bias[2].id == 5 && p.bias[2].bias == -INFINITY);
    assert_true(g.sampling == &p && g.max_tokens == 7 && g.ban_stop);
    assert_int_equal(g.n_stop_strings, 2);
    assert_string_equal(g.stop_strings[1], "\xc3\xa9");
    assert_true(g.logprobs && g.top_logprobs == 4);
    qn__settings_free(&s);
}

static void test_nothing(void **state)
{
    (void)state;
    qn_error err = {0};
    qn__settings s;
    const qn_token_bias bias = {1, 1};
    const char *const stop = "x";
    qn_sampling p = {.size = sizeof p,
                     .temperature = 1,
                     .top_k = 2,
                     .top_p = 0.5f,
                     .min_p = 0.1f,
                     .repeat_penalty = 2,
                     .repeat_last = 5,
                     .seed = 6,
                     .chain = {QN_SAMPLER_TOP_P},
                     .bias = &bias,
                     .n_bias = 1};
    qn_generation_options g = {.size = sizeof g,
                               .max_tokens = 3,
                               .ban_stop = true,
                               .stop_strings = &stop,
                               .n_stop_strings = 1,
                               .logprobs = true,
                               .top_logprobs = 2};
    const qn_sampling p_before = p;
    qn_generation_options g_before = g;
    g_before.sampling = &p;
    assert_int_equal(read_text(&s, "{\"temperature\":null,\"seed\":-1}", &err), QN_OK);
    qn__settings_apply(&s, &p, &g);
    assert_memory_equal(&p, &p_before, sizeof p);
    assert_memory_equal(&g, &g_before, sizeof g);
    qn__settings_free(&s);
    /* and what says that there is none */
    assert_int_equal(read_text(&s,
                               "{\"stop\":[],\"logit_bias\":{},\"ignore_eos\":false,"
                               "\"logprobs\":false,\"repeat_penalty\":1}",
                               &err),
                     QN_OK);
    qn__settings_apply(&s, &p, &g);
    assert_true(!g.n_stop_strings && !p.n_bias && !g.ban_stop && !g.logprobs && !g.top_logprobs);
    assert_true(p.repeat_penalty == 1 && p.repeat_last == 0);
    qn__settings_free(&s);
}

static void test_memory(void **state)
{
    (void)state;
    for (long n = 0;; n++) {
        qn_error err = {0};
        qn__settings s;
        fail_allocation_begin(n);
        qn_status status = read_text(&s, ALL, &err);
        bool failed = fail_allocation_end();
        assert_int_equal(status, failed ? QN_MEMORY : QN_OK);
        qn__settings_free(&s);
        if (!failed)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
