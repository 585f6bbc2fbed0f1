/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries, keys and attention against transformers (tests/golden/make_forward.py): every layer,
 * with rope, yarn, windows, softcaps and layers without rope; the same bits whatever the steps.
 */
#include "generate/model_test.h"
#include "models/golden_model.h"

#include "quern/forward.h"

#include <math.h>

enum { N_TOKENS = 40 };

static const char *const names[] = {"llama/llama3-tied", "gemma2/plain", "gemma3/text",
                                    "qwen3/plain",       "qwen3/yarn",   "mistral/window",
                                    "smollm3/plain"};

static qn_tensors *open_forward(const char *name)
{
    char flat[100], path[600];
    snprintf(flat, sizeof flat, "forward/%s.safetensors", name);
    *strchr(strchr(flat, '/') + 1, '/') = '-';
    golden_path(path, sizeof path, flat, NULL);
    qn_tensors *file;
    qn_error err = {0};
    if (qn_tensors_open(&file, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return file;
}

static void check_near(const char *name, const char *what, int layer, const float *got,
                       const qn_tensors *file, double most)
{
    char tensor[40];
    size_t n;
    snprintf(tensor, sizeof tensor, "%s.%d", what, layer);
    float *want = golden_tensor(file, tensor, &n);
    double e = nmse(got, want, n);
    if (!(e < most))
        fail_msg("%s, %s: NMSE %g", name, tensor, e);
    free(want);
}

/* Also that rows sum to 1, and what is not seen is 0. */
static void check_attention(const char *name, const qn_inspection *x, int layer, int n_heads,
                            const qn_tensors *file)
{
    char what[40];
    static float got[N_TOKENS][N_TOKENS];
    size_t n;
    int head = layer % n_heads;
    qn_error err = {0};
    snprintf(what, sizeof what, "attention.%d.%d", layer, head);
    float *want = golden_tensor(file, what, &n);
    assert_int_equal(n, N_TOKENS * N_TOKENS);
    assert_int_equal(qn_inspection_attention(x, layer, head, &got[0][0], &err), QN_OK);
    for (size_t i = 0; i < N_TOKENS; i++) {
        double sum = 0;
        for (size_t j = 0; j < N_TOKENS; j++) {
            float w = want[i * N_TOKENS + j];
            sum += (double)got[i][j];
            if (fabsf(got[i][j] - w) > 2e-5f || (w == 0 && got[i][j] != 0))
                fail_msg("%s, %s: %g, not %g", name, what, (double)got[i][j], (double)w);
        }
        assert_true(fabs(sum - 1) < 1e-6);
    }
    free(want);
}

static void check_steps(qn_model *model, const qn_inspection *whole, const qn_ids *text,
                        const qn_model_info *info)
{
    qn_inspection *x;
    qn_error err = {0};
    size_t head = text->n * (size_t)info->head_dim * sizeof(float);
    qn_inspect_options some = {.size = sizeof some, .first_layer = 1, .n_layers = 1};
    qn_forward_options o = {.size = sizeof o, .step_tokens = 7};
    assert_int_equal(qn_inspect(&x, model, text, &some, &o, &err), QN_OK);
    assert_null(qn_inspection_keys(x, 0));
    assert_null(qn_inspection_queries(x, 2));
    assert_memory_equal(qn_inspection_keys(x, 1), qn_inspection_keys(whole, 1),
                        (size_t)info->n_kv_heads * head);
    assert_memory_equal(qn_inspection_queries(x, 1), qn_inspection_queries(whole, 1),
                        (size_t)info->n_heads * head);
    qn_inspection_free(x);
}

static void test_golden(void **state)
{
    qn_device *device = open_cpu(state);
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        char path[600];
        golden_directory(path, sizeof path, names[m]);
        qn_model *model = open_model_at(device, path, false);
        qn_tensors *file = open_forward(names[m]);
        qn_model_info info = QN_INIT(qn_model_info);
        qn_model_get_info(model, &info);
        size_t n;
        qn_ids text = {golden_tensor(file, "tokens", &n), N_TOKENS};
        qn_inspection *x;
        qn_error err = {0};
        if (qn_inspect(&x, model, &text, NULL, NULL, &err) != QN_OK)
            fail_msg("%s", err.message);
        for (int i = 0; i < info.n_layers; i++) {
            check_near(names[m], "q", i, qn_inspection_queries(x, i), file, 1e-9);
            check_near(names[m], "k", i, qn_inspection_keys(x, i), file, 1e-9);
            check_attention(names[m], x, i, (int)info.n_heads, file);
        }
        check_steps(model, x, &text, &info);
        qn_model_close(model); /* the inspection keeps it */
        assert_int_equal(qn_inspection_attention(x, 0, (int)info.n_heads, NULL, &err), QN_INVALID);
        assert_int_equal(qn_inspection_attention(x, (int)info.n_layers, 0, NULL, NULL), QN_INVALID);
        assert_int_equal(qn_inspection_attention(x, 0, -1, NULL, NULL), QN_INVALID);
        qn_inspection_free(x);
        free((void *)(uintptr_t)text.ids);
        qn_tensors_close(file);
    }
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void test_refusals(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_model(device, "models/demo", false);
    const int32_t ids[] = {1, 2, 1 << 20};
    qn_inspection *x;
    qn_error err = {0};
    assert_int_equal(qn_inspect(&x, model, &(qn_ids){ids, 0}, NULL, NULL, NULL), QN_INVALID);
    assert_int_equal(qn_inspect(&x, model, &(qn_ids){ids, 3}, NULL, NULL, NULL), QN_INVALID);
    assert_null(x);
    qn_inspect_options o = {.size = sizeof o, .first_layer = 3, .n_layers = 2};
    assert_int_equal(qn_inspect(&x, model, &(qn_ids){ids, 2}, &o, NULL, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "the model has 4"));
    o = (qn_inspect_options){.size = sizeof o, .first_layer = -1};
    assert_int_equal(qn_inspect(&x, model, &(qn_ids){ids, 2}, &o, NULL, NULL), QN_INVALID);
    o = (qn_inspect_options){.size = sizeof o, .first_layer = 4};
    assert_int_equal(qn_inspect(&x, model, &(qn_ids){ids, 2}, &o, NULL, NULL), QN_INVALID);
    qn_model_close(model);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
