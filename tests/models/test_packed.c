/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in the formats of GPTQ, AWQ and compressed-tensors (tests/golden/make_packed.py): logits
 * with exact products against transformers' on the decoded weights, nearly the same with products
 * of bytes; weights that stay as small as they are in the file; and files and configurations that
 * are refused, each with what is wrong and what is asked.
 */
#include "packed_model.h"

static const char *const names[] = {"gptq4-g96", "gptq4",     "gptq4-v2", "gptq4-act", "gptq8-rows",
                                    "gptq3",     "gptq2",     "awq4",     "awq4-g128", "ct4",
                                    "ct4-rows",  "ct4-order", "ct8",      "ct8-bytes"};

static void test_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[60], path[PATH_MAX];
        snprintf(name, sizeof name, "packed/%s", names[i]);
        golden_path(path, sizeof path, name, NULL);
        double exact = packed_nmse(path, path, QN_PRODUCTS_F32),
               bytes = packed_nmse(path, path, QN_PRODUCTS_AUTO);
        if (!(exact <= 1e-11) || !(bytes < 2e-3) || bytes == exact)
            print_error("%s: %g exact, %g of bytes\n", names[i], exact, bytes);
        assert_true(exact <= 1e-11);
        assert_true(bytes < 2e-3 && bytes > exact);
    }
}

/* In memory weights take what they take in the file, but for zeros of four bits, which have 16. */
static void test_sizes(void **state)
{
    (void)state;
    qn_device *device;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[60], path[PATH_MAX];
        qn_error err;
        snprintf(name, sizeof name, "packed/%s", names[i]);
        golden_path(path, sizeof path, name, NULL);
        qn_model *model = packed_open(device, path, QN_PRODUCTS_AUTO, &err);
        assert_non_null(model);
        qn_model_info info = {.size = sizeof info};
        qn_model_get_info(model, &info);
        assert_true(info.weight_bytes < 1.2 * (double)info.file_bytes);
        qn_model_close(model);
    }
    qn_device_close(device);
}

/* ---- what is refused --------------------------------------------------------------------------
 */

typedef struct refusal {
    const char *model, *was, *is, *words;
} refusal;

/* One text of a model's file for another. */
static void refuse_each(const char *file, const refusal *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char model[60];
        bool config = !strcmp(file, "config.json");
        snprintf(model, sizeof model, "packed/%s", r[i].model);
        packed_copy(model, config ? "model.safetensors" : "config.json", NULL, NULL);
        packed_refused(packed_copy(model, file, r[i].was, r[i].is), r[i].words);
    }
}

static void test_configurations(void **state)
{
    (void)state;
    static const refusal refusals[] = {
        {"gptq4", "\"bits\": 4", "\"bits\": 5", "quantization_config.bits|5 bits|2, 3, 4, 8"},
        {"gptq4", "\"bits\": 4", "\"bits\": \"4\"", "quantization_config.bits|integer"},
        {"gptq4", "\"bits\": 4", "\"bats\": 4", "quantization_config|bits"},
        {"gptq4", "\"bits\": 4", "\"bits\": 8",
         "layers.0.mlp.down_proj.qweight is [16, 64] i32|config.json asks for [32, 64] i32"},
        {"gptq4", "\"group_size\": 32", "\"group_size\": 48",
         "group_size|48|multiples of 32, and -1"},
        {"gptq4", "\"group_size\": 32", "\"group_size\": 0", "group_size|groups of 0|multiples"},
        {"gptq4", "\"group_size\": 32", "\"group_size\": -2", "group_size|-1"},
        {"gptq4", "\"group_size\": 32", "\"group_size\": 64",
         "mlp.down_proj.scales is [4, 64] f16|asks for [2, 64] f32, f16 or bf16"},
        {"gptq4", "\"checkpoint_format\": \"gptq\"", "\"checkpoint_format\": \"marlin\"",
         "checkpoint_format|marlin|gptq gptq_v2"},
        {"gptq4", "\"checkpoint_format\": \"gptq\"", "\"format\": \"gptq_p\"",
         "quantization_config.format|gptq_p|gptq gptq_v2"},
        {"gptq4", "\"pack_dtype\": \"int32\"", "\"pack_dtype\": \"int16\"",
         "pack_dtype|int16|int32"},
        {"gptq4", "\"desc_act\": false", "\"desc_act\": 1", "desc_act"},
        {"gptq4", "\"sym\": false", "\"sym\": \"no\"", "quantization_config.sym"},
        {"gptq4", "\"sym\": false", "\"is_marlin_format\": true", "is_marlin_format|gptq_v2"},
        {"gptq4", "\"sym\": false", "\"dynamic\": {\"-:head\": {}, \"+:mlp\": {\"bits\": 8}}",
         "dynamic.+:mlp|bits or groups of their own|one kind for all"},
        {"awq4", "\"bits\": 4", "\"bits\": 8", "quantization_config.bits|8 bits|supported are 4"},
        {"awq4", "\"gemm\"", "\"gemv_fast\"", "version|gemv_fast|gemm"},
        {"awq4", "\"zero_point\": true", "\"zero_point\": false", "zero_point|no zeros"},
        {"awq4", "\"autoawq\"", "\"llm-awq\"", "backend|llm-awq|autoawq"},
        {"awq4", "\"quant_method\": \"awq\"", "\"quant_method\": \"gptq\"",
         "down_proj.qweight is [128, 8] i32|asks for [16, 64] i32"},
        {"ct4", "\"format\": \"pack-quantized\"", "\"format\": \"marlin-24\"",
         "quantization_config.format|marlin-24|pack-quantized int-quantized"},
        {"ct4", "\"num_bits\": 4", "\"num_bits\": 3", "group_0.weights.num_bits|3 bits|2, 4, 8"},
        {"ct4", "\"num_bits\": 4", "\"num_bits\": 8",
         "mlp.down_proj.weight_packed is [64, 16] i32|asks for [64, 32] i32"},
        {"ct4", "\"type\": \"int\"", "\"type\": \"float\"", "weights.type|float|int"},
        {"ct4", "\"symmetric\": false", "\"symmetric\": 0", "weights.symmetric"},
        {"ct4", "\"strategy\": \"group\"", "\"strategy\": \"block\"",
         "strategy|block|group channel"},
        {"ct4", "\"group_size\": 32", "\"group_size\": 16", "group_size|groups of 16|32"},
        {"ct4", "\"group_size\": 32", "\"group_size\": 64", "weight_scale is [64, 4] bf16|[64, 2]"},
        {"ct4", "\"dynamic\": false", "\"dynamic\": true", "weights.dynamic|static"},
        {"ct4", "\"dynamic\": false", "\"actorder\": \"sometimes\"", "actorder|group weight"},
        {"ct4", "\"dynamic\": false", "\"actorder\": \"group\"",
         "down_proj.weight_g_idx is missing|compressed-tensors"},
        {"ct4", "\"input_activations\": null", "\"input_activations\": {\"dynamic\": false}",
         "input_activations|dynamic ones"},
        {"ct4", "\"output_activations\": null", "\"output_activations\": {\"num_bits\": 8}",
         "output_activations|null"},
        {"ct4", "\"kv_cache_scheme\": null", "\"kv_cache_scheme\": {\"num_bits\": 8}",
         "kv_cache_scheme|supported is null"},
        {"ct4", "\"kv_cache_scheme\": null",
         "\"sparsity_config\": {\"format\": \"sparse-bitmask\"}",
         "sparsity_config.format|sparse-bitmask|dense"},
        {"ct4", "\"kv_cache_scheme\": null", "\"transform_config\": {\"config_groups\": 1}",
         "transform_config|supported is null"},
        {"ct4", "\"group_0\": {", "\"W4A16\": [\"Linear\"], \"group_0\": {", "W4A16|written out"},
        {"ct4", "\"weights\": {", "\"waits\": {", "config_groups|no scheme"},
        {"ct8-bytes", "\"int-quantized\"", "\"pack-quantized\"",
         "down_proj.weight: config.json has no scheme of its format"},
    };
    refuse_each("config.json", refusals, sizeof refusals / sizeof *refusals);
}

/* Texts of a header, as long as they were. */
static void test_tensors(void **state)
{
    (void)state;
    static const refusal refusals[] = {
        {"gptq4", "mlp.up_proj.qzeros", "mlp.up_proj.qzeroz",
         "model.safetensors|mlp.up_proj.qzeros is missing|gptq"},
        {"gptq4", "mlp.up_proj.scales", "mlp.up_proj.skales", "mlp.up_proj.scales is missing"},
        {"gptq4", "mlp.up_proj.qweight", "mlp.up_proj.qwaight",
         "mlp.up_proj.weight is missing (a llama of 1 layers needs it)"},
        {"gptq4-act", "mlp.up_proj.g_idx", "mlp.up_proj.g_ids", "mlp.up_proj.g_idx is missing"},
        {"gptq4", "mlp.up_proj.qweight\":{\"dtype\":\"I32\"",
         "mlp.up_proj.qweight\":{\"dtype\":\"F32\"",
         "up_proj.qweight is [8, 128] f32|asks for [8, 128] i32"},
        {"gptq4", "mlp.up_proj.scales\":{\"dtype\":\"F16\"",
         "mlp.up_proj.scales\":{\"dtype\":\"I16\"",
         "up_proj.scales is [2, 128] i16|asks for [2, 128] f32, f16 or bf16"},
        {"gptq4", "mlp.up_proj.scales\":{\"dtype\":\"F16\",\"shape\":[2,128]",
         "mlp.up_proj.scales\":{\"dtype\":\"F16\",\"shape\":[128,2]",
         "up_proj.scales is [128, 2] f16|asks for [2, 128]"},
        {"gptq4", "mlp.up_proj.qzeros\":{\"dtype\":\"I32\",\"shape\":[2,16]",
         "mlp.up_proj.qzeros\":{\"dtype\":\"I32\",\"shape\":[16,2]",
         "up_proj.qzeros is [16, 2] i32|asks for [2, 16] i32"},
        {"awq4", "mlp.up_proj.qzeros", "mlp.up_proj.qzeroz", "mlp.up_proj.qzeros is missing|awq"},
        {"awq4", "mlp.up_proj.qweight\":{\"dtype\":\"I32\",\"shape\":[64,16]",
         "mlp.up_proj.qweight\":{\"dtype\":\"I32\",\"shape\":[16,64]",
         "up_proj.qweight is [16, 64] i32|asks for [64, 16] i32"},
        {"ct4", "mlp.up_proj.weight_scale", "mlp.up_proj.weight_skale",
         "mlp.up_proj.weight_scale is missing|compressed-tensors"},
        {"ct4", "mlp.up_proj.weight_zero_point", "mlp.up_proj.weight_zero_paint",
         "mlp.up_proj.weight_zero_point is missing"},
        {"ct4", "mlp.up_proj.weight_zero_point\":{\"dtype\":\"I32\",\"shape\":[16,2]",
         "mlp.up_proj.weight_zero_point\":{\"dtype\":\"I32\",\"shape\":[2,16]",
         "up_proj.weight_zero_point is [2, 16] i32|asks for [16, 2] i32"},
        {"ct4-order", "mlp.up_proj.weight_g_idx", "mlp.up_proj.weight_g_ids",
         "mlp.up_proj.weight_g_idx is missing"},
        {"ct8-bytes", "mlp.up_proj.weight_scale", "mlp.up_proj.weight_skale",
         "mlp.up_proj.weight_scale is missing"},
    };
    refuse_each("model.safetensors", refusals, sizeof refusals / sizeof *refusals);
}

/* One number of a tensor of whole ones is another. */
static const char *with_value(const char *model, const char *tensor, int64_t at, int64_t value)
{
    char path[PATH_MAX], full[60], *data;
    size_t n;
    qn_tensors *file;
    snprintf(full, sizeof full, "packed/%s", model);
    golden_path(path, sizeof path, full, "model.safetensors");
    assert_int_equal(qn__file_read(path, 1 << 20, &data, &n, NULL), QN_OK);
    assert_int_equal(qn_tensors_open(&file, path, NULL), QN_OK);
    const qn_tensor_info *t = qn_tensors_find(file, tensor);
    size_t size = t->dtype == QN_I64 ? 8 : 4;
    memcpy(data + t->offset + (size_t)at * size, &value, size);
    qn_tensors_close(file);
    temp_write("model.safetensors", data, n);
    free(data);
    return packed_copy(full, "config.json", NULL, NULL);
}

static void test_values(void **state)
{
    (void)state;
    static const char up[] = "model.layers.0.mlp.up_proj.g_idx";
    packed_refused(with_value("gptq4", up, 7, 2),
                   "up_proj.g_idx: column 7 is of group 2; there are 2");
    packed_refused(with_value("gptq4", up, 7, -1), "up_proj.g_idx: column 7 is of group -1");
    packed_refused(with_value("gptq4", up, 7, INT32_MIN), "up_proj.g_idx|-2147483648");
    packed_refused(with_value("gptq4", up, 7, 1),
                   "up_proj.g_idx: more than 32 columns are of group 1|groups of one size");
    packed_refused(with_value("ct4", "model.layers.0.mlp.up_proj.weight_shape", 1, 63),
                   "up_proj.weight_shape says [128, 63], config.json asks for [128, 64]");
}

/* A configuration that says nothing of how its weights are quantised, or that of another. */
static void test_no_method(void **state)
{
    (void)state;
    packed_copy("packed/gptq4", "model.safetensors", NULL, NULL);
    packed_refused(packed_copy("packed/gptq4", "config.json", "\"quantization_config\"", "\"x\""),
                   "down_proj.weight is missing|there is|down_proj.qweight|without "
                   "quantization_config");
    packed_copy("packed/ct4", "model.safetensors", NULL, NULL);
    packed_refused(packed_copy("packed/gptq4", "config.json", NULL, NULL),
                   "down_proj.weight is missing|down_proj.weight_packed, which gptq does not have");
}

/* ---- what is accepted -------------------------------------------------------------------------
 */

/* An order that is not the file's moves columns, with the scales that belong to them: exchanging
 * the groups of two columns changes the values. A -1 throughout is no order. */
static void test_order(void **state)
{
    (void)state;
    char path[PATH_MAX];
    golden_path(path, sizeof path, "packed/gptq4", NULL);
    static const char up[] = "model.layers.0.mlp.up_proj.g_idx";
    const char *copy = with_value("gptq4", up, 7, 1);
    size_t n;
    char *data, written[PATH_MAX];
    qn_tensors *file;
    snprintf(written, sizeof written, "%s/model.safetensors", copy);
    assert_int_equal(qn__file_read(written, 1 << 20, &data, &n, NULL), QN_OK);
    assert_int_equal(qn_tensors_open(&file, written, NULL), QN_OK);
    const qn_tensor_info *t = qn_tensors_find(file, up);
    memset(data + t->offset + 40 * 4, 0, 4);
    temp_write("model.safetensors", data, n);
    assert_true(packed_nmse(copy, path, QN_PRODUCTS_F32) > 1e-6);
    memset(data + t->offset, 0, (size_t)t->bytes);
    for (int i = 32; i < 64; i++)
        data[t->offset + (size_t)i * 4] = 1;
    temp_write("model.safetensors", data, n);
    assert_true(packed_nmse(copy, path, QN_PRODUCTS_F32) < 1e-11);
    memset(data + t->offset, 0xff, (size_t)t->bytes);
    temp_write("model.safetensors", data, n);
    assert_true(packed_nmse(copy, path, QN_PRODUCTS_F32) < 1e-11);
    qn_tensors_close(file);
    free(data);
}

/* Other spellings of the same. */
static void test_spellings(void **state)
{
    (void)state;
    static const refusal spellings[] = {
        {"gptq4", "\"checkpoint_format\": \"gptq\"", "\"format\": \"gptq\"", NULL},
        {"gptq4", "\"sym\": false", "\"sym\": null, \"dynamic\": {\"-:.*head\": {}}", NULL},
        {"gptq4-v2", "\"checkpoint_format\"", "\"format\"", NULL},
        {"gptq4-act", "\"desc_act\": true", "\"desc_act\": false", NULL}, /* the tensor counts */
        {"gptq8-rows", "\"checkpoint_format\": \"gptq\",", "", NULL},
        {"awq4", "\"gemm\"", "\"GEMM\"", NULL},
        {"awq4-g128", "\"quantization_config\"", "\"compression_config\"", NULL},
        {"ct4-rows", "\"group_size\": null", "\"group_size\": -1, \"actorder\": \"weight\"", NULL},
        {"ct4", "\"config_groups\": {",
         "\"config_groups\": {\"other\": {\"targets\": [\"re:.*none\"], "
         "\"weights\": {\"num_bits\": 8, \"group_size\": 32, \"strategy\": \"group\"}},",
         NULL},
    };
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char model[60], path[PATH_MAX];
        snprintf(model, sizeof model, "packed/%s", spellings[i].model);
        golden_path(path, sizeof path, model, NULL);
        packed_copy(model, "model.safetensors", NULL, NULL);
        const char *copy = packed_copy(model, "config.json", spellings[i].was, spellings[i].is);
        assert_true(packed_nmse(copy, path, QN_PRODUCTS_F32) < 1e-11);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),         cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_configurations), cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_values),         cmocka_unit_test(test_no_method),
        cmocka_unit_test(test_order),          cmocka_unit_test(test_spellings),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
