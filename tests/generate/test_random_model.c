/* SPDX-License-Identifier: Apache-2.0
 *
 * Models of random weights: their bytes are those of the types asked for, they run, and they are
 * the same each time.
 */
#include "generate/model_test.h"

#include <math.h>

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":256,\"intermediate_size\":512,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":1000,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,"
    "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\"}";

static qn_model *random_model_of(qn_device *device, const char *text, const char *type,
                                 const char *head)
{
    qn_error err = {0};
    qn_model *model;
    if (qn_model_open_random(&model, device, text, strlen(text), type, head, NULL, &err) != QN_OK)
        fail_msg("%s: %s", type, err.message);
    return model;
}

static qn_model *random_model(qn_device *device, const char *type, const char *head)
{
    return random_model_of(device, config, type, head);
}

static void run_model(qn_model *model, float *logits, size_t n)
{
    const int32_t ids[] = {1, 2, 3, 4, 5};
    qn_session *session = open_session(model, 0, 1);
    assert_int_equal(qn_session_append(session, ids, 5, NULL), QN_OK);
    memcpy(logits, qn_session_logits(session), n * sizeof *logits);
    qn_session_close(session);
}

static void test_types(void **state)
{
    (void)state;
    static const char *const types[] = {"f32",  "f16",  "bf16",  "q4_0",  "q8_0",
                                        "q4_k", "q6_k", "tq2_0", "mxfp4", "affine4-g64-bf16"};
    qn_device *device;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        float first[1000], second[1000];
        for (int again = 0; again < 2; again++) {
            qn_model *model = random_model(device, types[i], types[i]);
            assert_null(qn_model_tokenizer(model));
            run_model(model, again ? second : first, 1000);
            qn_model_close(model);
        }
        double sum = 0;
        for (int j = 0; j < 1000; j++)
            sum += (double)first[j] * first[j];
        assert_true(sum > 1e-3 && isfinite(sum)); /* no zeros, no overflow */
        assert_memory_equal(first, second, sizeof first);
    }
    qn_device_close(device);
}

static uint64_t file_bytes(qn_device *device, const char *type, const char *head)
{
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model *model = random_model(device, type, head);
    qn_model_get_info(model, &info);
    qn_model_close(model);
    return info.file_bytes;
}

static void test_bytes(void **state)
{
    (void)state;
    qn_device *device;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    uint64_t table = 1000 * 256, norms = 5 * 256 * 4;
    uint64_t layers = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256);
    assert_int_equal(file_bytes(device, "q4_0", "q4_0"), (table + layers) / 32 * 18 + norms);
    assert_int_equal(file_bytes(device, "q4_0", "q6_k"),
                     table / 256 * 210 + layers / 32 * 18 + norms);
    assert_int_equal(file_bytes(device, "bf16", "f32"), table * 4 + layers * 2 + norms);
    qn_device_close(device);
}

/* Where the configuration does not say, it is a bf16 checkpoint, unless its weights are f32: keys
 * and values are kept as such. Those of one in f16 are f32, as its products are (cuda/test_launches
 * has a GPU's). */
static void test_cache(void **state)
{
    (void)state;
    static const char *const types[] = {"f32", "bf16", "q4_0"};
    qn_device *device;
    qn_session_options o = {.size = sizeof o, .context = 128};
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    for (int i = 0; i < 3; i++) {
        qn_model *model = random_model(device, types[i], types[i]);
        assert_int_equal(qn_model_cache_bytes(model, &o), 2 * 2 * 128 * 128 * (i ? 2 : 4));
        qn_model_close(model);
    }
    char text[sizeof config + 32];
    snprintf(text, sizeof text, "%.*s,\"dtype\":\"float16\"}", (int)sizeof config - 2, config);
    qn_model *model = random_model_of(device, text, "f16", "f16");
    assert_int_equal(qn_model_cache_bytes(model, &o), 2 * 2 * 128 * 128 * 4);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_refusals(void **state)
{
    (void)state;
    qn_device *device;
    qn_model *model;
    qn_error err = {0};
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    size_t n = strlen(config);
    assert_int_equal(qn_model_open_random(&model, device, config, n, "q5", "bf16", NULL, &err),
                     QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "q5"));
    assert_int_equal(qn_model_open_random(&model, device, config, n, "bf16", "q5", NULL, NULL),
                     QN_UNSUPPORTED);
    for (size_t i = 0; i < n; i++) { /* a part of it is no configuration */
        assert_int_not_equal(
            qn_model_open_random(&model, device, config, i, "bf16", "bf16", NULL, NULL), QN_OK);
        assert_null(model);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types), cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_cache),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
