/* SPDX-License-Identifier: Apache-2.0
 *
 * Broken model directories: a good one with one thing changed at a time. Each is refused in one
 * line that names the file, the field or tensor, and what is wrong with it.
 */
#include "test.h"

#include "base/temp_dir.h"

#include <stdbool.h>
#include <time.h>

static qn_device *device;
static char *good_config, *good_weights;
static size_t config_size, weights_size;

static char *read_golden(const char *file, size_t *size)
{
    char path[600];
    snprintf(path, sizeof path, "%s/tests/golden/llama/plain/%s", getenv("QUERN_SOURCE"), file);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *data = calloc(1, 2 << 20);
    *size = fread(data, 1, 2 << 20, f);
    fclose(f);
    return data;
}

static int set_up(void **state)
{
    good_config = read_golden("config.json", &config_size);
    good_weights = read_golden("model.safetensors", &weights_size);
    device = open_cpu(state);
    if (temp_begin(state))
        return -1;
    temp_mkdir("m");
    return 0;
}

static int tear_down(void **state)
{
    qn_device_close(device);
    free(good_config);
    free(good_weights);
    return temp_end(state);
}

static void restore(void)
{
    temp_write("m/config.json", good_config, config_size);
    temp_write("m/model.safetensors", good_weights, weights_size);
}

static qn_status open_model(const char *path, qn_error *err)
{
    qn_model *model = (qn_model *)1;
    qn_model_options o = {.size = sizeof o, .no_tokenizer = true};
    clock_t begun = clock();
    qn_status status = qn_model_open(&model, device, path, &o, err);
    double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
    if (seconds > 5 * PATIENCE)
        fail_msg("%s: took %.1f s", path, seconds);
    if (status == QN_OK)
        qn_model_close(model);
    else
        assert_null(model);
    return status;
}

/* Opening `path` fails with `code` and one line that has every part (separated by |). */
static void refused(const char *path, qn_status code, const char *parts, const char *what)
{
    qn_error err = {0};
    qn_status status = open_model(path, &err);
    if (status != code || err.code != code)
        fail_msg("%s: status %d, error %d, expected %d: %s", what, (int)status, (int)err.code,
                 (int)code, err.message);
    assert_null(strchr(err.message, '\n'));
    char copy[400];
    snprintf(copy, sizeof copy, "%s", parts);
    for (char *save, *part = strtok_r(copy, "|", &save); part; part = strtok_r(NULL, "|", &save))
        if (!strstr(err.message, part))
            fail_msg("%s: \"%s\" lacks \"%s\"", what, err.message, part);
    assert_int_equal(memory_of(device).active, 0);
}

/* The value of a field replaced; NULL: the field renamed, so that it is missing. */
static void set_field(char *config, const char *field, const char *value)
{
    char key[80], line[600], *at, *end;
    snprintf(key, sizeof key, "\"%s\":", field);
    if (!(at = strstr(config, key)))
        fail_msg("config.json has no %s", field);
    end = strchr(at, '\n');
    bool comma = end[-1] == ',';
    if (value)
        snprintf(line, sizeof line, "%s %s%s", key, value, comma ? "," : "");
    else
        snprintf(line, sizeof line, "\"no_%s\": 0%s", field, comma ? "," : "");
    memmove(at + strlen(line), end, strlen(end) + 1);
    memcpy(at, line, strlen(line));
}

typedef struct change {
    const char *field, *value;
    qn_status code;
    const char *parts;
    const char *field2, *value2; /* a second change */
} change;

static void check_changes(const change *changes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const change *c = &changes[i];
        char *config = malloc(config_size + 4096);
        restore();
        strcpy(config, good_config);
        set_field(config, c->field, c->value);
        if (c->field2)
            set_field(config, c->field2, c->value2);
        temp_write("m/config.json", config, strlen(config));
        char what[200];
        snprintf(what, sizeof what, "%s = %s", c->field, c->value ? c->value : "(missing)");
        refused(temp_path("m"), c->code, c->parts, what);
        free(config);
    }
}

static void test_fields(void **state)
{
    (void)state;
    static const change changes[] = {
        {"vocab_size", "-5", QN_FORMAT, "config.json|vocab_size|-5", NULL, NULL},
        {"vocab_size", "0", QN_FORMAT, "config.json|vocab_size|0", NULL, NULL},
        {"vocab_size", "\"320\"", QN_FORMAT, "config.json|vocab_size", NULL, NULL},
        {"vocab_size", "1e30", QN_FORMAT, "config.json|vocab_size", NULL, NULL},
        {"vocab_size", "3.5", QN_FORMAT, "config.json|vocab_size|3.5", NULL, NULL},
        {"vocab_size", "1e400", QN_FORMAT, "config.json", NULL, NULL},
        {"vocab_size", "NaN", QN_FORMAT, "config.json", NULL, NULL},
        {"vocab_size", "true", QN_FORMAT, "config.json|vocab_size", NULL, NULL},
        {"vocab_size", "[320]", QN_FORMAT, "config.json|vocab_size", NULL, NULL},
        {"vocab_size", NULL, QN_FORMAT, "config.json|vocab_size", NULL, NULL},
        {"hidden_size", "-64", QN_FORMAT, "config.json|hidden_size|-64", NULL, NULL},
        {"hidden_size", NULL, QN_FORMAT, "config.json|hidden_size", NULL, NULL},
        {"intermediate_size", NULL, QN_FORMAT, "config.json|intermediate_size|missing", NULL, NULL},
        {"num_hidden_layers", NULL, QN_FORMAT, "config.json|num_hidden_layers|missing", NULL, NULL},
        {"num_attention_heads", NULL, QN_FORMAT, "config.json|num_attention_heads|missing", NULL,
         NULL},
        {"intermediate_size", "\"80\"", QN_FORMAT, "config.json|intermediate_size", NULL, NULL},
        {"num_hidden_layers", "99999999999", QN_FORMAT, "config.json|num_hidden_layers|99999999999",
         NULL, NULL},
        {"num_attention_heads", "0", QN_FORMAT, "config.json|num_attention_heads|0", NULL, NULL},
        {"num_key_value_heads", "3", QN_FORMAT,
         "config.json|num_attention_heads 4|num_key_value_heads 3", NULL, NULL},
        {"num_attention_heads", "7", QN_FORMAT, "config.json|hidden_size 64|num_attention_heads 7",
         "head_dim", NULL},
        {"head_dim", "15", QN_FORMAT, "config.json|head_dim 15|odd", NULL, NULL},
        {"head_dim", "1048576", QN_LIMIT, "config.json|4 heads of 1048576", NULL, NULL},
        {"rms_norm_eps", "\"x\"", QN_FORMAT, "config.json|rms_norm_eps", NULL, NULL},
        {"rms_norm_eps", "-1", QN_FORMAT, "config.json|rms_norm_eps|-1", NULL, NULL},
        {"tie_word_embeddings", "\"yes\"", QN_FORMAT, "config.json|tie_word_embeddings", NULL,
         NULL},
        {"attention_bias", "1", QN_FORMAT, "config.json|attention_bias", NULL, NULL},
        {"max_position_embeddings", "0", QN_FORMAT, "config.json|max_position_embeddings|0", NULL,
         NULL},
        {"hidden_act", "\"relu6\"", QN_UNSUPPORTED, "config.json|hidden_act|relu6|silu", NULL,
         NULL},
        {"model_type", "\"gpt99\"", QN_UNSUPPORTED, "config.json|model_type|gpt99|supported|llama",
         NULL, NULL},
        {"model_type", "7", QN_FORMAT, "config.json|model_type", NULL, NULL},
        {"model_type", NULL, QN_FORMAT, "config.json|model_type", NULL, NULL},
        {"rope_theta", "\"\", \"partial_rotary_factor\": 0.5", QN_FORMAT, "config.json|rope_theta",
         NULL, NULL},
        {"rope_scaling",
         "{\"rope_type\": \"linear\", \"factor\": 2, \"partial_rotary_factor\": 0.5}",
         QN_UNSUPPORTED, "config.json|rope_scaling|partial_rotary_factor 0.5|1", NULL, NULL},
        {"use_cache", "0, \"partial_rotary_factor\": 0.25", QN_UNSUPPORTED,
         "config.json|partial_rotary_factor 0.25", NULL, NULL},
        {"use_cache", "0, \"quantization_config\": {\"quant_method\": \"hqq\", \"bits\": 4}",
         QN_UNSUPPORTED,
         "config.json|quantization_config|hqq|gptq, awq, compressed-tensors, MLX's|f32, f16 and "
         "bf16",
         NULL, NULL},
        {"use_cache", "0, \"quantization_config\": {\"load_in_8bit\": true}", QN_UNSUPPORTED,
         "config.json|quantization_config|bitsandbytes", NULL, NULL},
        {"use_cache", "0, \"quantization_config\": {}", QN_UNSUPPORTED,
         "quantization_config|without a name", NULL, NULL},
        {"use_cache", "0, \"quantization_config\": 4", QN_UNSUPPORTED,
         "quantization_config|without a name", NULL, NULL},
        {"model_type", "\"gemma3\"", QN_UNSUPPORTED, "text_config.quantization_config|fp8",
         "use_cache", "0, \"text_config\": {\"quantization_config\": {\"quant_method\": \"fp8\"}}"},
        {"rope_scaling", "{\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 2}}",
         QN_UNSUPPORTED, "config.json|rope_scaling|each kind of layer", NULL, NULL},
        /* rope_scaling counts before rope_parameters, and is checked first */
        {"rope_scaling", "{\"type\": \"warp\"}", QN_UNSUPPORTED, "config.json|rope_scaling|warp",
         "use_cache", "0, \"rope_parameters\": {\"rope_type\": \"default\"}"},
        {"model_type", "\"smollm3\"", QN_FORMAT, "config.json|layer_types[0]|sliding_window",
         "use_cache", "true, \"layer_types\": [\"sliding_attention\"]"},
        {"model_type", "\"smollm3\"", QN_FORMAT, "config.json|use_sliding_window", "use_cache",
         "true, \"use_sliding_window\": 1"},
        /* other families read this config up to where it is wrong for them */
        {"model_type", "\"mistral\"", QN_UNSUPPORTED, "config.json|layer_types|not supported",
         "use_cache", "true, \"layer_types\": []"},
        {"model_type", "\"mistral\"", QN_FORMAT, "config.json|sliding_window|-1", "use_cache",
         "true, \"sliding_window\": -1"},
        {"model_type", "\"qwen2\"", QN_FORMAT, "k_proj.bias|missing|qwen2", NULL, NULL},
        {"model_type", "\"qwen2\"", QN_FORMAT, "config.json|layer_types|2 entries for 3 layers",
         "use_cache", "true, \"layer_types\": [\"full_attention\", \"full_attention\"]"},
        {"model_type", "\"qwen2\"", QN_FORMAT, "config.json|layer_types[1]|sliding_window",
         "use_cache", "true, \"layer_types\": [\"full_attention\", \"sliding_attention\"]"},
        {"model_type", "\"qwen2\"", QN_UNSUPPORTED,
         "config.json|layer_types[0]|chunked|full_attention", "use_cache",
         "true, \"layer_types\": [\"chunked\"]"},
        {"model_type", "\"qwen2\"", QN_FORMAT, "config.json|layer_types[3]|3 layers", "use_cache",
         "true, \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", 1]"},
        {"model_type", "\"qwen3\"", QN_FORMAT, "k_norm.weight|missing|qwen3", NULL, NULL},
        {"model_type", "\"gemma2\"", QN_FORMAT, "config.json|attn_logit_softcapping|-3",
         "use_cache", "true, \"attn_logit_softcapping\": -3"},
        {"model_type", "\"gemma2\"", QN_UNSUPPORTED, "config.json|use_bidirectional_attention",
         "use_cache", "true, \"use_bidirectional_attention\": true"},
        {"model_type", "\"gemma2\"", QN_UNSUPPORTED, "config.json|hidden_activation|relu",
         "use_cache", "true, \"hidden_activation\": \"relu\""},
        {"model_type", "\"gemma3_text\"", QN_UNSUPPORTED,
         "config.json|attn_logit_softcapping|not supported", "use_cache",
         "true, \"attn_logit_softcapping\": 50"},
        {"model_type", "\"gemma3\"", QN_FORMAT, "config.json|text_config|hidden_size|-4",
         "use_cache", "true, \"text_config\": {\"hidden_size\": -4}"},
        {"rope_theta", "-1", QN_FORMAT, "config.json|rope_theta|-1", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"warp\", \"factor\": 2.0}", QN_UNSUPPORTED,
         "config.json|rope_scaling|warp|llama3", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"dynamic\", \"factor\": 2.0}", QN_UNSUPPORTED,
         "config.json|rope_scaling|\"dynamic\"|default, linear, llama3 and yarn", NULL, NULL},
        {"rope_scaling", "{\"type\": \"longrope\", \"factor\": 2.0}", QN_UNSUPPORTED,
         "config.json|rope_scaling|\"longrope\"|default, linear, llama3 and yarn", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"yarn\"}", QN_FORMAT, "config.json|rope_scaling|factor",
         NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 0}", QN_FORMAT,
         "config.json|rope_scaling|factor|0", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": -1}",
         QN_FORMAT, "config.json|rope_scaling|attention_factor|-1", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": 1}", QN_FORMAT,
         "config.json|rope_scaling|truncate", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": \"x\"}",
         QN_FORMAT, "config.json|rope_scaling|beta_fast", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4, \"rope_theta\": 1}", QN_FORMAT,
         "config.json|rope_scaling|rope_theta", NULL, NULL},
        {"rope_scaling",
         "{\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 0}",
         QN_FORMAT, "config.json|rope_scaling|original_max_position_embeddings|0", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"linear\"}", QN_FORMAT,
         "config.json|rope_scaling|factor", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": -2}", QN_FORMAT,
         "config.json|rope_scaling|factor|-2", NULL, NULL},
        {"rope_scaling", "\"linear\"", QN_FORMAT, "config.json|rope_scaling", NULL, NULL},
        {"rope_scaling",
         "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": "
         "4,"
         " \"original_max_position_embeddings\": 64}",
         QN_FORMAT, "config.json|high_freq_factor 4|low_freq_factor 4", NULL, NULL},
        {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1}",
         QN_FORMAT, "config.json|high_freq_factor", NULL, NULL},
    };
    check_changes(changes, sizeof changes / sizeof *changes);
}

/* config.json and the weights disagree: both are named. */
static void test_disagreements(void **state)
{
    (void)state;
    static const change changes[] = {
        {"vocab_size", "321", QN_FORMAT,
         "model.safetensors|lm_head.weight|[320, 64]|config.json|[321, 64]", NULL, NULL},
        {"hidden_size", "128", QN_FORMAT, "model.safetensors|weight|64|config.json|128", NULL,
         NULL},
        {"intermediate_size", "79", QN_FORMAT, "model.safetensors|mlp.|80|config.json|79", NULL,
         NULL},
        {"num_hidden_layers", "4", QN_FORMAT, "model.safetensors|model.layers.3.|missing|4 layers",
         NULL, NULL},
        {"num_key_value_heads", "2", QN_FORMAT, "k_proj.weight|[64, 64]|[32, 64]", NULL, NULL},
        {"attention_bias", "true", QN_FORMAT, "_proj.bias|missing", NULL, NULL},
    };
    check_changes(changes, sizeof changes / sizeof *changes);
}

/* ---- weights
 * --------------------------------------------------------------------------------------------------
 */

/* One text in the header replaced by another of the same length. */
static void swap_header(const char *from, const char *to, qn_status code, const char *parts)
{
    assert_int_equal(strlen(from), strlen(to));
    restore();
    char *weights = malloc(weights_size);
    memcpy(weights, good_weights, weights_size);
    char *at = memmem(weights, 20000, from, strlen(from));
    if (!at)
        fail_msg("the header lacks %s", from);
    memcpy(at, to, strlen(to));
    temp_write("m/model.safetensors", weights, weights_size);
    refused(temp_path("m"), code, parts, to);
    free(weights);
}

static void test_weights(void **state)
{
    (void)state;
    swap_header("\"model.norm.weight\"", "\"model.norm.weighs\"", QN_FORMAT,
                "model.safetensors|model.norm.weight|missing");
    swap_header("\"model.norm.weight\":{\"dtype\":\"F32\"",
                "\"model.norm.weight\":{\"dtype\":\"I32\"", QN_UNSUPPORTED,
                "model.safetensors|model.norm.weight|i32|f32, bf16 or f16");
    swap_header("\"dtype\":\"F32\"", "\"dtype\":\"F33\"", QN_FORMAT, "model.safetensors|F33");
    swap_header("[320,64]", "[64,320]", QN_FORMAT, "[64, 320]|config.json|[320, 64]");
    swap_header("\"shape\":[64]", "\"shape\":[65]", QN_FORMAT, "model.safetensors");
    swap_header("\"shape\":[64]", "\"shape\":[-1]", QN_FORMAT, "model.safetensors");
    for (size_t left = 0; left < weights_size; left += left < 9 ? 1 : weights_size / 11) {
        restore();
        temp_write("m/model.safetensors", good_weights, left);
        refused(temp_path("m"), QN_FORMAT, "model.safetensors", "truncated");
    }
    restore();
    char *longer = calloc(1, weights_size + 1);
    memcpy(longer, good_weights, weights_size);
    temp_write("m/model.safetensors", longer, weights_size + 1);
    refused(temp_path("m"), QN_FORMAT, "model.safetensors", "a byte too many");
    free(longer);
}

/* ---- files
 * ----------------------------------------------------------------------------------------------------
 */

static void test_files(void **state)
{
    (void)state;
    restore();
    refused(temp_path("absent"), QN_NOT_FOUND, "absent", "no directory");
    refused(temp_write("file", "x", 1), QN_UNSUPPORTED, "file|config.json", "a file");
    refused(temp_write("empty", "", 0), QN_UNSUPPORTED, "empty|config.json", "an empty file");
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    refused(temp_path("fifo"), QN_UNSUPPORTED, "fifo", "a FIFO");
    refused(temp_mkdir("bare"), QN_NOT_FOUND, "bare/config.json", "no config.json");
    refused("", QN_NOT_FOUND, "", "no name");
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) { /* the file: absent, a directory, a FIFO, empty */
        char name[40], parts[60];
        snprintf(name, sizeof name, "m/%s", names[i]);
        snprintf(parts, sizeof parts, "%s", i ? "m" : "config.json");
        restore();
        remove(temp_path(name));
        refused(temp_path("m"), QN_NOT_FOUND, parts, "absent");
        temp_mkdir(name);
        qn_error err = {0};
        assert_int_not_equal(open_model(temp_path("m"), &err), QN_OK);
        assert_true(strstr(err.message, names[i]) && !strchr(err.message, '\n'));
        rmdir(temp_path(name));
        assert_int_equal(mkfifo(temp_path(name), 0600), 0);
        err = (qn_error){0};
        assert_int_not_equal(open_model(temp_path("m"), &err), QN_OK);
        assert_true(strstr(err.message, names[i]) && !strchr(err.message, '\n'));
        remove(temp_path(name));
        temp_write(name, "", 0);
        refused(temp_path("m"), QN_FORMAT, names[i], "empty");
    }
}

/* Indexes and headers with no entry and with one. */
static void test_empty_tables(void **state)
{
    (void)state;
    static const char *const indexes[] = {"m/model.safetensors.index.json",
                                          "m/pytorch_model.bin.index.json"};
    static const char none[] = "{\"weight_map\":{}}",
                      one[] = "{\"weight_map\":{\"a\":\"s.safetensors\"}}";
    static const char header[] = "\2\0\0\0\0\0\0\0{}";
    restore();
    remove(temp_path("m/model.safetensors"));
    for (int i = 0; i < 2; i++) {
        temp_write(indexes[i], none, sizeof none - 1);
        refused(temp_path("m"), QN_FORMAT, "index.json|weight_map is empty", indexes[i]);
        temp_write(indexes[i], one, sizeof one - 1);
        refused(temp_path("m"), QN_NOT_FOUND, "s.safetensors", indexes[i]);
        remove(temp_path(indexes[i]));
    }
    temp_write("m/model.safetensors", header, sizeof header - 1);
    refused(temp_path("m"), QN_FORMAT, "model.safetensors||missing", "no tensor");
}

static void write_config(const char *text, size_t n, qn_status code, const char *parts,
                         const char *what)
{
    restore();
    temp_write("m/config.json", text, n);
    refused(temp_path("m"), code, parts, what);
}

static void test_json(void **state)
{
    (void)state;
    write_config("{", 1, QN_FORMAT, "config.json", "an open brace");
    write_config("[]", 2, QN_FORMAT, "config.json", "an array");
    write_config("{\"model_type\":\"llama\",\"model_type\":\"llama\"}", 43, QN_FORMAT,
                 "config.json|model_type", "a field twice");
    write_config("\xff\xfe{}", 4, QN_FORMAT, "config.json", "not UTF-8");
    write_config("{\"model_type\":\"lla\nma\"}", 22, QN_FORMAT, "config.json", "a raw newline");
    char *deep = malloc(6 << 20);
    memset(deep, '[', 20000);
    write_config(deep, 20000, QN_LIMIT, "config.json", "nested deeply");
    memset(deep, ' ', 6 << 20);
    write_config(deep, 6 << 20, QN_LIMIT, "config.json", "too large");
    free(deep);
    for (size_t n = 1; n + 2 < config_size; n += 37) /* cut anywhere */
        write_config(good_config, n, QN_FORMAT, "config.json", "cut");
}

/* generation_config.json may hold anything: tests/models/test_warnings.c. */
static void test_unchanged(void **state)
{
    (void)state;
    restore();
    qn_error err = {0};
    if (open_model(temp_path("m"), &err) != QN_OK)
        fail_msg("%s", err.message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),       cmocka_unit_test(test_disagreements),
        cmocka_unit_test(test_weights),      cmocka_unit_test(test_files),
        cmocka_unit_test(test_json),         cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_empty_tables),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
