/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions of directories whose weights are quantised already: into dense ones and GGUF files
 * with every value as it was, whatever order its columns had, and into other groups. What is
 * written does not call itself quantised as its source was.
 */
#include "models/packed_model.h"

#include "base/json.h"

static const char *const models[] = {
    "packed/gptq4", "packed/gptq4-act", "packed/gptq3", "packed/awq4-g128", "packed/ct4-order",
    "packed/ct8",   "packed/ct8-bytes", "mlx/mixed",    "mlx/affine8-f16",  "mlx/mxfp4"};
enum { MODELS = sizeof models / sizeof *models };

static void converted(const char *model, const char *to, const qn_convert_options *options,
                      char path[PATH_MAX])
{
    qn_error err = {0};
    qn_device *device = open_cpu(NULL);
    golden_path(path, PATH_MAX, model, NULL);
    if (qn_convert(device, path, temp_path(to), options, &err) != QN_OK)
        fail_msg("%s: %s", model, err.message);
    qn_device_close(device);
}

static cJSON *read_config(const char *directory)
{
    char path[PATH_MAX];
    cJSON *config;
    qn_error err = {0};
    snprintf(path, sizeof path, "%s/config.json", directory);
    if (qn__json_read(&config, path, 1 << 20, &err) != QN_OK)
        fail_msg("%s", err.message);
    return config;
}

/* That config.json tells of these bits in groups, under both of MLX's names, or of nothing. */
static void expect_quantization(const char *directory, int bits)
{
    static const char *const names[] = {"quantization", "quantization_config",
                                        "compression_config"};
    cJSON *config = read_config(directory);
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(config, "text_config");
    for (int i = 0; i < 3; i++) {
        const cJSON *at = cJSON_GetObjectItemCaseSensitive(config, names[i]);
        if ((at != NULL) != (bits > 0 && i < 2) || cJSON_HasObjectItem(text, names[i]))
            fail_msg("%s/config.json: %s", directory, names[i]);
        if (at)
            assert_int_equal(cJSON_GetObjectItem(at, "bits")->valueint, bits);
        assert_false(cJSON_HasObjectItem(at, "quant_method"));
    }
    cJSON_Delete(config);
}

static void test_every_value(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int gguf = 0; gguf < 2; gguf++) {
            char path[PATH_MAX], to[40];
            qn_convert_options options = {
                .size = sizeof options, .type = gguf ? "f32" : NULL, .dtype = gguf ? NULL : "f32"};
            snprintf(to, sizeof to, gguf ? "%d.gguf" : "%d", i);
            converted(models[i], to, &options, path);
            double error = packed_nmse(temp_path(to), path, QN_PRODUCTS_F32);
            if (!(error < 1e-9))
                fail_msg("%s to %s: %g", models[i], to, error);
            if (!gguf)
                expect_quantization(temp_path(to), 0);
        }
}

/* As they lie in memory; groups of columns in another order are refused. */
static void test_units(void **state)
{
    (void)state;
    qn_device *device = open_cpu(NULL);
    for (int i = 0; i < MODELS; i++) {
        char path[PATH_MAX], to[40];
        qn_error err = {0};
        qn_convert_options options = {.size = sizeof options, .packed = true};
        bool ordered = strstr(models[i], "-act") || strstr(models[i], "-order");
        snprintf(to, sizeof to, "u%d", i);
        golden_path(path, PATH_MAX, models[i], NULL);
        qn_status status = qn_convert(device, path, temp_path(to), &options, &err);
        if (status != (ordered ? QN_UNSUPPORTED : QN_OK))
            fail_msg("%s: %s", models[i], err.message);
        double error = ordered ? 0 : packed_nmse(temp_path(to), path, QN_PRODUCTS_F32);
        if (!(error < 1e-9))
            fail_msg("%s to %s: %g", models[i], to, error);
        if (!ordered)
            expect_quantization(temp_path(to), 0);
    }
    qn_device_close(device);
}

/* Into groups of 8 bits, from which little is lost; without a word about the type, into that of the
 * scales, which does not hold every product. */
static void test_groups(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int bits = 0; bits <= 8; bits += 8) {
            char path[PATH_MAX], to[40];
            qn_convert_options options = {
                .size = sizeof options, .bits = bits, .group_size = bits ? 32 : 0};
            snprintf(to, sizeof to, "g%d-%d", bits, i);
            converted(models[i], to, &options, path);
            double error = packed_nmse(temp_path(to), path, QN_PRODUCTS_F32);
            if (!(error < (bits ? 5e-3 : 1e-4)))
                fail_msg("%s to %s: %g", models[i], to, error);
            expect_quantization(temp_path(to), bits);
        }
}

/* Wherever the source's configuration says that it is quantised, and under whatever name. */
static void test_places(void **state)
{
    static const struct {
        const char *inside, *name;
    } places[] = {{NULL, "compression_config"},
                  {"text_config", "quantization_config"},
                  {"text_config", "compression_config"}};
    char path[PATH_MAX];
    qn_error err = {0};
    qn_device *device = open_cpu(state);
    qn_convert_options options = {.size = sizeof options};
    golden_path(path, sizeof path, "packed/ct8", NULL);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char to[40];
        cJSON *config = read_config(path), *into = config;
        if (places[i].inside)
            into = cJSON_AddObjectToObject(config, places[i].inside);
        cJSON_AddItemToObject(into, places[i].name,
                              cJSON_DetachItemFromObject(config, "quantization_config"));
        char *text = cJSON_Print(config);
        temp_write("config.json", text, strlen(text));
        packed_copy("packed/ct8", "model.safetensors", NULL, NULL);
        snprintf(to, sizeof to, "place%zu", i);
        if (qn_convert(device, temp_root, temp_path(to), &options, &err) != QN_OK)
            fail_msg("%s", err.message);
        expect_quantization(temp_path(to), 0);
        free(text);
        cJSON_Delete(config);
    }
    qn_device_close(device);
}

/* GGUF has no groups like these; of mxfp4 it has the same blocks. */
static void test_same_encoding(void **state)
{
    (void)state;
    char path[PATH_MAX];
    qn_error err = {0};
    qn_device *device = open_cpu(NULL);
    golden_path(path, sizeof path, "packed/gptq4", NULL);
    assert_int_equal(qn_convert(device, path, temp_path("same.gguf"), NULL, &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "zeroed4-g32-f16, which GGUF does not have"));
    qn_device_close(device);
    qn_convert_options options = {.size = sizeof options};
    converted("mlx/mxfp4", "same.gguf", &options, path);
    assert_true(packed_nmse(temp_path("same.gguf"), path, QN_PRODUCTS_F32) < 1e-9);
    qn_tensors *file;
    assert_int_equal(qn_tensors_open(&file, temp_path("same.gguf"), NULL), QN_OK);
    assert_string_equal(qn_tensors_find(file, "blk.0.attn_v.weight")->encoding, "mxfp4");
    qn_tensors_close(file);
}

/* Mode mxfp4: values that are in it already stay, through words that are apart again. */
static void test_mxfp4(void **state)
{
    (void)state;
    char path[PATH_MAX];
    qn_error err = {0};
    qn_device *device = open_cpu(NULL);
    qn_convert_options options = {.size = sizeof options, .mode = "mxfp4"};
    converted("mlx/mxfp4", "mode", &options, path);
    assert_true(packed_nmse(temp_path("mode"), path, QN_PRODUCTS_F32) < 1e-9);
    converted("mlx/mxfp4", "mode.gguf", &(qn_convert_options){.size = sizeof options}, path);
    assert_int_equal(qn_convert(device, temp_path("mode.gguf"), temp_path("back"), &options, &err),
                     QN_OK);
    assert_true(packed_nmse(temp_path("back"), path, QN_PRODUCTS_F32) < 1e-9);
    options.bits = 8;
    assert_int_equal(qn_convert(device, path, temp_path("x"), &options, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "4 bits in groups of 32"));
    err = (qn_error){0};
    options = (qn_convert_options){.size = sizeof options, .mode = "nvfp4", .bits = 4};
    assert_int_equal(qn_convert(device, path, temp_path("x"), &options, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "affine or mxfp4"));
    qn_device_close(device);
}

/* An order that is wrong is found before anything has its name. */
static void test_wrong_order(void **state)
{
    (void)state;
    char path[PATH_MAX], *data;
    size_t n;
    qn_tensors *file;
    qn_error err = {0};
    qn_device *device = open_cpu(NULL);
    golden_path(path, sizeof path, "packed/gptq4-act", "model.safetensors");
    assert_int_equal(qn__file_read(path, 1 << 20, &data, &n, NULL), QN_OK);
    assert_int_equal(qn_tensors_open(&file, path, NULL), QN_OK);
    data[qn_tensors_find(file, "model.layers.0.mlp.up_proj.g_idx")->offset] = 2;
    qn_tensors_close(file);
    temp_write("model.safetensors", data, n);
    packed_copy("packed/gptq4-act", "config.json", NULL, NULL);
    qn_convert_options options = {.size = sizeof options, .type = "f16"};
    assert_int_equal(qn_convert(device, temp_root, temp_path("wrong.gguf"), &options, &err),
                     QN_FORMAT);
    assert_non_null(strstr(err.message, "up_proj.g_idx: column 0 is of group 2"));
    assert_int_equal(qn_tensors_open(&file, temp_path("wrong.gguf"), NULL), QN_NOT_FOUND);
    qn_device_close(device);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_value),   cmocka_unit_test(test_units),
        cmocka_unit_test(test_groups),        cmocka_unit_test(test_places),
        cmocka_unit_test(test_same_encoding), cmocka_unit_test(test_mxfp4),
        cmocka_unit_test(test_wrong_order),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
