/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's weights by name: one whose weights are all set from another's files gives that one's
 * logits to the bit, and with zeros it gives zeros; what cannot be set stays as it was.
 */
#include "generate/model_test.h"

#include "models/golden_model.h"

#include <string.h>

enum { LENGTH = 12, MOST_VOCAB = 1024 };

static qn_model *open_golden_model(qn_device *device, const char *name)
{
    char path[600];
    qn_error err = {0};
    qn_model *model;
    const qn_model_options o = {.size = sizeof o, .no_tokenizer = true};
    golden_directory(path, sizeof path, name);
    if (qn_model_open(&model, device, path, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return model;
}

static int64_t logits_of(qn_model *model, float *logits)
{
    int32_t ids[LENGTH];
    qn_error err = {0};
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    assert_true(info.vocab_size <= MOST_VOCAB);
    for (int i = 0; i < LENGTH; i++)
        ids[i] = (7 * i + 3) % (int)info.vocab_size;
    qn_session *session = open_session(model, 0, 1);
    if (qn_session_score(session, ids, LENGTH, logits, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_session_close(session);
    return LENGTH * info.vocab_size;
}

/* Sets a parameter to what is in the file times `factor`. */
static void set_from(qn_model *model, qn_device *device, const qn_tensors *file, const char *name,
                     float factor)
{
    qn_error err = {0};
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn_tensors_read(s, file, name);
    a = qn_multiply(s, qn_cast(s, a, QN_F32), qn_scalar(s, QN_F32, factor));
    assert_int_equal(qn_eval(s, a), QN_OK);
    qn_array *value = qn_retain(a);
    qn_scope_end(s);
    if (qn_model_set_parameter(model, name, value, &err) != QN_OK)
        fail_msg("%s: %s", name, err.message);
    qn_release(value);
}

static void check_model(qn_device *device, const char *name)
{
    static float want[LENGTH * MOST_VOCAB], got[LENGTH * MOST_VOCAB];
    char path[600];
    qn_tensors *file;
    qn_model *a = open_golden_model(device, name), *b = open_golden_model(device, name);
    golden_directory(path, sizeof path, name);
    assert_int_equal(qn_tensors_open(&file, path, NULL), QN_OK);
    int64_t n = logits_of(a, want);
    for (int i = 0; i < qn_model_n_parameters(b); i++)
        set_from(b, device, file, qn_model_parameter_name(b, i), 0);
    logits_of(b, got);
    for (int64_t i = 0; i < n; i++)
        assert_true(got[i] == 0);
    for (int i = 0; i < qn_model_n_parameters(b); i++)
        set_from(b, device, file, qn_model_parameter_name(b, i), 1);
    logits_of(b, got);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
    qn_tensors_close(file);
    qn_model_close(a);
    qn_model_close(b);
}

static void test_set(void **state)
{
    static const char *const names[] = {"llama/plain", "gemma3/text", "qwen2/plain",
                                        "llama/llama3-tied"};
    qn_device *device = open_device(state);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_model(device, names[i]);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void expect_refusal(qn_model *model, const char *name, qn_array *value, qn_status status,
                           const char *words)
{
    qn_error err = {0};
    assert_int_equal(qn_model_set_parameter(model, name, value, &err), status);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" is not in: %s", words, err.message);
}

static void test_refusals(void **state)
{
    static const char name[] = "model.layers.0.self_attn.q_proj.weight";
    static float want[LENGTH * MOST_VOCAB], got[LENGTH * MOST_VOCAB];
    qn_device *device = open_device(state);
    qn_model *model = open_golden_model(device, "llama/plain");
    qn_model *quantised = open_golden_model(device, "mlx/affine4-bf16");
    qn_scope *s = qn_scope_begin(device);
    const int64_t shape[] = {3, 5};
    qn_array *small = qn_zeros(s, QN_F32, 2, shape), *whole = qn_zeros(s, QN_I32, 2, shape);
    assert_int_equal(qn_eval_many(s, (qn_array *[]){small, whole}, 2), QN_OK);
    small = qn_retain(small);
    whole = qn_retain(whole);
    qn_scope_end(s);
    int64_t n = logits_of(model, want);
    expect_refusal(model, "model.layers.0.q", small, QN_NOT_FOUND,
                   "no parameter \"model.layers.0.q\"");
    expect_refusal(model, name, small, QN_INVALID, "[3, 5] f32; floats in the shape of [");
    expect_refusal(model, name, whole, QN_INVALID, "[3, 5] i32; floats in the shape of [");
    expect_refusal(model, "model.norm.weight", small, QN_INVALID, "model.norm.weight: [3, 5]");
    expect_refusal(quantised, name, small, QN_UNSUPPORTED, "dense parameters alone");
    logits_of(model, got);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
    qn_release(small);
    qn_release(whole);
    qn_model_close(model);
    qn_model_close(quantised);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_set), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
