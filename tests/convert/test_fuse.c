/* SPDX-License-Identifier: Apache-2.0
 *
 * Fused models: with the adapter's products in their weights they give the logits that PEFT and
 * mlx-lm compute with the adapter beside the model (tests/golden/make_adapters.py), whichever way
 * the weights went through files; what cannot take them is refused.
 */
#include "models/golden_model.h"

#include "quern/convert.h"
#include "quern/ops.h"

#include <sys/stat.h>

enum { VOCAB = 320, LENGTH = 64 };

static const char *const names[] = {"peft", "rslora", "mlx"};

/* Logits of the golden tokens, with an adapter beside the weights or NULL; freed by the caller. */
static float *logits_of(qn_device *device, const char *path, const char *adapter,
                        const int32_t *tokens)
{
    float *out = malloc(sizeof *out * LENGTH * VOCAB);
    qn_error err = {0};
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_adapter beside = {.path = adapter};
    qn_model_options o = {.size = sizeof o,
                          .no_tokenizer = true,
                          .products = QN_PRODUCTS_F32,
                          .adapters = &beside,
                          .n_adapters = adapter != NULL};
    if (qn_model_open(&model, device, path, &o, &err) != QN_OK ||
        qn_session_open(&session, model, NULL, &err) != QN_OK ||
        qn_session_score(session, tokens, LENGTH, out, &err) != QN_OK)
        fail_msg("%s: %s", path, err.message);
    qn_session_close(session);
    qn_model_close(model);
    return out;
}

/* How far the logits of the model at `path` are from the adapter's golden ones. */
static double error_of(qn_device *device, const char *path, const char *adapter)
{
    char golden_folder[100];
    size_t n;
    snprintf(golden_folder, sizeof golden_folder, "adapters/%s", adapter);
    qn_tensors *golden = golden_open(golden_folder);
    int32_t *tokens = golden_tensor(golden, "tokens", &n);
    float *want = golden_tensor(golden, "logits", &n), *got;
    assert_int_equal(n, LENGTH * VOCAB);
    got = logits_of(device, path, NULL, tokens);
    double error = nmse(got, want, n);
    qn_tensors_close(golden);
    free(tokens);
    free(want);
    free(got);
    return error;
}

static qn_status fuse(qn_device *device, const char *from, const char *to,
                      const qn_adapter *adapters, size_t n, const char *type, qn_error *err)
{
    qn_convert_options o = {.size = sizeof o,
                            .replace = true,
                            .adapters = adapters,
                            .n_adapters = n,
                            .type = type,
                            .dtype = strstr(to, ".gguf") ? NULL : "f32"};
    return qn_convert(device, from, to, &o, err);
}

static void check_fused(qn_device *device, const char *from, const char *to, const char *type,
                        int which)
{
    char adapter[100], path[600];
    qn_error err = {0};
    snprintf(adapter, sizeof adapter, "adapters/%s", names[which]);
    golden_path(path, sizeof path, adapter, NULL);
    if (fuse(device, from, to, &(qn_adapter){.path = path}, 1, type, &err) != QN_OK)
        fail_msg("%s: %s", to, err.message);
    double error = error_of(device, to, names[which]);
    if (!(error <= 1e-9))
        fail_msg("%s of %s into %s: NMSE %g", names[which], from, to, error);
}

/* Rows of queries and keys lie in pairs in a llama's GGUF file, and as they are in a directory. */
static void test_ways(void **state)
{
    qn_device *device = open_cpu(state);
    char base[600], file[300], to_file[300], to_folder[300];
    qn_error err = {0};
    golden_path(base, sizeof base, "llama/plain", NULL);
    snprintf(file, sizeof file, "%s/base.gguf", temp_root);
    snprintf(to_file, sizeof to_file, "%s/fused.gguf", temp_root);
    snprintf(to_folder, sizeof to_folder, "%s/fused", temp_root);
    assert_int_equal(fuse(device, base, file, NULL, 0, "f32", &err), QN_OK);
    assert_true(error_of(device, file, "peft") > 1e-3);
    for (int i = 0; i < 3; i++) {
        check_fused(device, base, to_folder, NULL, i);
        check_fused(device, base, to_file, "f32", i);
        check_fused(device, file, to_file, NULL, i);
        check_fused(device, file, to_folder, NULL, i);
    }
    qn_device_close(device);
}

/* Quantised weights are read and added to: as f32 they are those of the model with the adapter
 * beside it; quantised anew they are near. */
static void test_quantised(void **state)
{
    qn_device *device = open_cpu(state);
    char base[600], adapter[600], file[300], to[300];
    int32_t tokens[LENGTH];
    qn_error err = {0};
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = i * 37 % VOCAB;
    golden_path(base, sizeof base, "llama/plain", NULL);
    golden_path(adapter, sizeof adapter, "adapters/peft", NULL);
    snprintf(file, sizeof file, "%s/q8.gguf", temp_root);
    snprintf(to, sizeof to, "%s/fused.gguf", temp_root);
    assert_int_equal(fuse(device, base, file, NULL, 0, "q8_0", &err), QN_OK);
    float *want = logits_of(device, file, adapter, tokens);
    static const struct {
        const char *type;
        double least, most;
    } cases[] = {{"f32", 0, 1e-9}, {NULL, 1e-7, 1e-2}, {"q4_0", 1e-3, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(
            fuse(device, file, to, &(qn_adapter){.path = adapter}, 1, cases[i].type, &err), QN_OK);
        float *got = logits_of(device, to, NULL, tokens);
        double error = nmse(got, want, LENGTH * VOCAB);
        if (!(error >= cases[i].least && error <= cases[i].most))
            fail_msg("%s: NMSE %g", cases[i].type, error);
        free(got);
    }
    free(want);
    qn_device_close(device);
}

/* Several add up; a scale multiplies, and 0.5 of one twice is all of it. */
static void test_several(void **state)
{
    qn_device *device = open_cpu(state);
    char base[600], path[600];
    qn_error err = {0};
    golden_path(base, sizeof base, "llama/plain", NULL);
    golden_path(path, sizeof path, "adapters/peft", NULL);
    qn_adapter halves[] = {{.path = path, .scale = 0.5f}, {.path = path, .scale = 0.5f}};
    char to[300];
    snprintf(to, sizeof to, "%s/halves", temp_root);
    assert_int_equal(fuse(device, base, to, halves, 2, NULL, &err), QN_OK);
    assert_true(error_of(device, to, "peft") <= 1e-9);
    assert_int_equal(fuse(device, base, to, halves, 1, NULL, &err), QN_OK);
    assert_true(error_of(device, to, "peft") > 1e-4);
    qn_device_close(device);
}

static void refuse(qn_device *device, const char *from, const char *adapter, const char *type,
                   qn_status code, const char *part)
{
    qn_error err = {0};
    struct stat at;
    char to[300];
    snprintf(to, sizeof to, "%s/refused.gguf", temp_root);
    assert_int_equal(fuse(device, from, to, &(qn_adapter){.path = adapter}, 1, type, &err), code);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
    assert_int_not_equal(stat(to, &at), 0);
}

static qn_array *random_matrix(qn_scope *s, int64_t rows, int64_t columns, uint64_t seed)
{
    return qn_random_normal(s, qn_random_key(s, seed), QN_F32, 2, (const int64_t[]){rows, columns});
}

/* An adapter of layer 0's down_proj [rows, columns], as PEFT writes it. */
static void write_adapter(qn_device *device, const char *at, int64_t rows, int64_t columns)
{
    char path[400];
    qn_error err = {0};
    qn_scope *s = qn_scope_begin(device);
    qn_named_array pair[] = {
        {"model.layers.0.mlp.down_proj.lora_A.weight", random_matrix(s, 1, columns, 1)},
        {"model.layers.0.mlp.down_proj.lora_B.weight", random_matrix(s, rows, 1, 2)}};
    assert_int_equal(mkdir(at, 0777), 0);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", at);
    assert_int_equal(qn_tensors_write(s, path, pair, 2, &err), QN_OK);
    qn_scope_end(s);
    snprintf(path, sizeof path, "%s/adapter_config.json", at);
    FILE *f = fopen(path, "w");
    fputs("{\"lora_alpha\": 1}", f);
    fclose(f);
}

/* A matrix of more bytes than a conversion has in memory at once. */
static void test_large(void **state)
{
    enum { WIDE = 512, TALL = 2304, N = 9 };
    static const char *const norms[] = {"model.norm.weight",
                                        "model.layers.0.input_layernorm.weight",
                                        "model.layers.0.post_attention_layernorm.weight"};
    static const struct {
        const char *name;
        int64_t rows, columns;
    } matrices[N] = {{"model.embed_tokens.weight", VOCAB, TALL},
                     {"lm_head.weight", VOCAB, TALL},
                     {"model.layers.0.self_attn.q_proj.weight", 16, TALL},
                     {"model.layers.0.self_attn.k_proj.weight", 16, TALL},
                     {"model.layers.0.self_attn.v_proj.weight", 16, TALL},
                     {"model.layers.0.self_attn.o_proj.weight", TALL, 16},
                     {"model.layers.0.mlp.gate_proj.weight", WIDE, TALL},
                     {"model.layers.0.mlp.up_proj.weight", WIDE, TALL},
                     {"model.layers.0.mlp.down_proj.weight", TALL, WIDE}};
    qn_device *device = open_cpu(state);
    char base[300], path[400], adapter[300], to[300];
    int32_t tokens[LENGTH];
    qn_error err = {0};
    qn_named_array arrays[N + 3];
    snprintf(base, sizeof base, "%s/large", temp_root);
    snprintf(adapter, sizeof adapter, "%s/large-adapter", temp_root);
    snprintf(to, sizeof to, "%s/large-fused", temp_root);
    assert_int_equal(mkdir(base, 0777), 0);
    snprintf(path, sizeof path, "%s/config.json", base);
    FILE *f = fopen(path, "w");
    fprintf(f,
            "{\"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
            "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"head_dim\": 16, "
            "\"vocab_size\": %d, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, "
            "\"torch_dtype\": \"float32\"}",
            TALL, WIDE, VOCAB);
    fclose(f);
    qn_scope *s = qn_scope_begin(device);
    for (int i = 0; i < N; i++)
        arrays[i] = (qn_named_array){
            matrices[i].name,
            random_matrix(s, matrices[i].rows, matrices[i].columns, 10 + (uint64_t)i)};
    for (int i = 0; i < 3; i++)
        arrays[N + i] = (qn_named_array){norms[i], qn_ones(s, QN_F32, 1, (const int64_t[]){TALL})};
    snprintf(path, sizeof path, "%s/model.safetensors", base);
    assert_int_equal(qn_tensors_write(s, path, arrays, N + 3, &err), QN_OK);
    qn_scope_end(s);
    write_adapter(device, adapter, TALL, WIDE);
    assert_int_equal(fuse(device, base, to, &(qn_adapter){.path = adapter}, 1, NULL, &err), QN_OK);
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = i * 37 % VOCAB;
    float *want = logits_of(device, base, adapter, tokens),
          *got = logits_of(device, to, NULL, tokens);
    assert_true(nmse(got, want, LENGTH * VOCAB) <= 1e-9);
    free(want);
    free(got);
    qn_device_close(device);
}

static void test_refusals(void **state)
{
    qn_device *device = open_cpu(state);
    char base[600], path[600], ternary[300];
    golden_path(base, sizeof base, "llama/plain", NULL);
    golden_path(path, sizeof path, "adapters", NULL);
    refuse(device, base, path, "f32", QN_NOT_FOUND, "no adapter");
    golden_path(path, sizeof path, "adapters/peft", NULL);
    refuse(device, base, path, "q9", QN_UNSUPPORTED, "q9");
    snprintf(ternary, sizeof ternary, "%s/ternary", temp_root);
    write_adapter(device, ternary, 256, 256);
    golden_directory(path, sizeof path, "bitnet/packed");
    refuse(device, path, ternary, NULL, QN_UNSUPPORTED, "ternary");
    refuse(device, base, ternary, NULL, QN_FORMAT, "of another model");
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),     cmocka_unit_test(test_quantised),
        cmocka_unit_test(test_several),  cmocka_unit_test(test_large),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
