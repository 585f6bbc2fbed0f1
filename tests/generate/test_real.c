/* SPDX-License-Identifier: Apache-2.0
 *
 * Real GGUF models against transformers in f32 on the same decoded weights: the first logits behind
 * prose and the tokens that follow (tests/golden/real, made by tests/models/compare_gguf.py with
 * --golden). Skipped where scripts/fetch-models has not put the models.
 */
#include "generate/model_test.h"

#include "base/json.h"

#include <math.h>
#include <unistd.h>

enum { MOST_IDS = 64 };

static const cJSON *member(const cJSON *object, const char *name)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!m)
        fail_msg("golden %s is missing", name);
    return m;
}

static size_t read_ids(const cJSON *list, int32_t *out)
{
    size_t n = (size_t)cJSON_GetArraySize(list);
    assert_true(n > 0 && n <= MOST_IDS);
    for (size_t i = 0; i < n; i++)
        out[i] = cJSON_GetArrayItem(list, (int)i)->valueint;
    return n;
}

/* The best tokens' log probabilities agree within `far`. */
static void check_logits(const float *logits, size_t vocab, const cJSON *prompt, double far)
{
    double sum = 0, want_sum = member(prompt, "log_sum_exp")->valuedouble;
    for (size_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - want_sum);
    const cJSON *pair;
    cJSON_ArrayForEach(pair, member(prompt, "logits"))
    {
        int id = cJSON_GetArrayItem(pair, 0)->valueint;
        double want = cJSON_GetArrayItem(pair, 1)->valuedouble - want_sum;
        double got = logits[id] - want_sum - log(sum);
        if (!(fabs(got - want) <= far))
            fail_msg("token %d: log probability %g, transformers has %g", id, got, want);
    }
}

static void check_greedy(qn_session *session, int32_t next, const int32_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(next, want[i]);
        assert_int_equal(qn_session_step_greedy(session, next, &next, NULL), QN_OK);
    }
}

static void check_prompt(qn_model *model, const cJSON *prompt, bool exact)
{
    int32_t ids[MOST_IDS], greedy[MOST_IDS];
    size_t n = read_ids(member(prompt, "ids"), ids), m = read_ids(member(prompt, "greedy"), greedy);
    size_t vocab = vocab_of(model);
    qn_session *session = open_session(model, 0, 1);
    assert_int_equal(qn_session_append(session, ids, n, NULL), QN_OK);
    const float *logits = qn_session_logits(session);
    check_logits(logits, vocab, prompt, exact ? 1e-3 : 0.7);
    if (exact) {
        int32_t best = 0;
        for (size_t i = 1; i < vocab; i++)
            best = logits[i] > logits[best] ? (int32_t)i : best;
        check_greedy(session, best, greedy, FEWER ? 2 : m);
    }
    qn_session_close(session);
}

/* Where the model is; skips the test where it is not. */
static void find_model(char *path, size_t room, const char *name)
{
    const char *folder = getenv("QUERN_TEST_MODELS"), *home = getenv("HOME");
    if (folder && *folder)
        snprintf(path, room, "%s/%s", folder, name);
    else
        snprintf(path, room, "%s/.cache/quern-test-models/%s", home ? home : "", name);
    if (access(path, R_OK) == 0)
        return;
    printf("skipped: %s is not there (scripts/fetch-models)\n", path);
    skip();
}

static void check_model(const char *golden)
{
    char path[600];
    cJSON *root = NULL;
    qn_error err = {0};
    qn_device *device;
    snprintf(path, sizeof path, "%s/tests/golden/real/%s", getenv("QUERN_SOURCE"), golden);
    if (qn__json_read(&root, path, 1 << 20, &err) != QN_OK)
        fail_msg("%s", err.message);
    char name[100];
    snprintf(name, sizeof name, "%s", member(root, "model")->valuestring);
    cJSON_Delete(root);
    find_model(path, sizeof path, name);
    char model_path[600];
    snprintf(model_path, sizeof model_path, "%s", path);
    snprintf(path, sizeof path, "%s/tests/golden/real/%s", getenv("QUERN_SOURCE"), golden);
    assert_int_equal(qn__json_read(&root, path, 1 << 20, &err), QN_OK);
    assert_int_equal(qn_device_open(&device, "cpu", NULL, &err), QN_OK);
    for (int exact = 1; exact >= 0; exact--) {
        qn_model_options o = {.size = sizeof o,
                              .products = exact ? QN_PRODUCTS_F32 : QN_PRODUCTS_AUTO};
        qn_model *model;
        if (qn_model_open(&model, device, model_path, &o, &err) != QN_OK)
            fail_msg("%s", err.message);
        const cJSON *prompt;
        int n = 0;
        cJSON_ArrayForEach(prompt, member(root, "prompts"))
        {
            if (!FEWER || n++ == 0)
                check_prompt(model, prompt, exact);
        }
        qn_model_close(model);
    }
    qn_device_close(device);
    cJSON_Delete(root);
}

static void test_smollm2(void **state)
{
    (void)state;
    check_model("smollm2.json");
}

static void test_gemma3(void **state)
{
    (void)state;
    check_model("gemma3.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_smollm2),
                                       cmocka_unit_test(test_gemma3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
