/* SPDX-License-Identifier: Apache-2.0
 *
 * Models as mlx-lm quantises them (tests/golden/make_mlx.py): logits with exact products against
 * mlx-lm's, nearly the same with products of bytes, and files whose parts do not fit each other.
 */
#include "golden_model.h"
#include "quern/quern.h"

#include <math.h>

enum { VOCAB = 96, LENGTH = 24 };

static qn_model *open_mlx(qn_device *device, const char *path, qn_products products, qn_error *err)
{
    qn_model *model;
    qn_model_options options = {.size = sizeof options, .no_tokenizer = true, .products = products};
    *err = (qn_error){0};
    return qn_model_open(&model, device, path, &options, err) == QN_OK ? model : NULL;
}

/* Distance of the model's logits from mlx-lm's. */
static double nmse_of_model(const char *path, qn_products products)
{
    static float logits[LENGTH * VOCAB], want[LENGTH * VOCAB];
    int32_t ids[LENGTH];
    char golden[PATH_MAX];
    qn_device *device;
    qn_session *session;
    qn_error err;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    snprintf(golden, sizeof golden, "%s/golden.safetensors", path);
    qn_tensors *file;
    assert_int_equal(qn_tensors_open(&file, golden, NULL), QN_OK);
    qn_scope *s = qn_scope_begin(device);
    assert_int_equal(qn_read(s, qn_tensors_read(s, file, "tokens"), ids, sizeof ids), QN_OK);
    assert_int_equal(qn_read(s, qn_tensors_read(s, file, "logits"), want, sizeof want), QN_OK);
    qn_scope_end(s);
    qn_tensors_close(file);
    qn_model *model = open_mlx(device, path, products, &err);
    if (!model)
        print_error("%s\n", err.message);
    assert_non_null(model);
    assert_int_equal(qn_session_open(&session, model, NULL, NULL), QN_OK);
    assert_int_equal(qn_session_score(session, ids, LENGTH, logits, NULL), QN_OK);
    double error = 0, size = 0;
    for (int i = 0; i < LENGTH * VOCAB; i++) {
        error += ((double)logits[i] - want[i]) * ((double)logits[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
    return error / size;
}

static void test_logits(void **state)
{
    (void)state;
    static const char *const names[] = {"affine4-bf16", "affine4-f32-tied", "affine8-f16", "mixed",
                                        "mxfp4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[60], path[PATH_MAX];
        snprintf(name, sizeof name, "mlx/%s", names[i]);
        golden_path(path, sizeof path, name, NULL);
        double exact = nmse_of_model(path, QN_PRODUCTS_F32),
               bytes = nmse_of_model(path, QN_PRODUCTS_AUTO);
        if (exact > 1e-9 || !(bytes < 2e-2) || bytes == exact)
            print_error("%s: %g exact, %g of bytes\n", names[i], exact, bytes);
        assert_true(exact <= 1e-9);
        assert_true(bytes < 2e-2 && bytes > exact);
        assert_true(exact <= 1e-9);
        assert_true(bytes < 2e-3 && bytes > exact);
    }
}

/* A copy of a model in which one text of the header of its weights is another, as long. */
static void refused(const char *was, const char *is, const char *words)
{
    char path[PATH_MAX], copy[PATH_MAX];
    char *text;
    size_t n;
    qn_device *device;
    qn_error err;
    golden_path(path, sizeof path, "mlx/affine4-bf16", "config.json");
    assert_int_equal(qn__file_read(path, 1 << 20, &text, &n, &err), QN_OK);
    temp_write("config.json", text, n);
    free(text);
    golden_path(path, sizeof path, "mlx/affine4-bf16", "model.safetensors");
    assert_int_equal(qn__file_read(path, 1 << 20, &text, &n, &err), QN_OK);
    char *at = memmem(text, n, was, strlen(was));
    assert_non_null(at);
    assert_int_equal(strlen(was), strlen(is));
    memcpy(at, is, strlen(is));
    snprintf(copy, sizeof copy, "%s", temp_write("model.safetensors", text, n));
    free(text);
    *strrchr(copy, '/') = 0;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    assert_null(open_mlx(device, copy, QN_PRODUCTS_AUTO, &err));
    if (!strstr(err.message, words))
        print_error("%s\nlacks: %s\n", err.message, words);
    assert_non_null(strstr(err.message, words));
    qn_device_close(device);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("model.layers.0.mlp.up_proj.scales", "model.layers.0.mlp.up_proj.skales",
            "mlp.up_proj.weight has shape");
    refused("model.layers.0.mlp.up_proj.biases", "model.layers.0.mlp.up_proj.biazes",
            "in bf16 without biases for 64 columns");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
