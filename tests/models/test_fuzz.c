/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile configurations: those of the golden models and of a few others, changed at random
 * (fuzz.h), have to be refused in one line, or to describe a decoder that the code behind can rely
 * on.
 */
#include "fuzz.h"

#include "../io/gguf_build.h"
#include "base/file.h"
#include "base/json.h"
#include "models/family.h"
#include "models/quantized.h"

#include <math.h>

static qn_device *device;

static char *golden_file(const char *name, size_t *n)
{
    char path[PATH_MAX], *data;
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/tests/golden/%.300s", root ? root : ".", name);
    assert_int_equal(qn__file_read(path, 1 << 24, &data, n, NULL), QN_OK);
    return data;
}

static void add_golden(const char *name)
{
    size_t n;
    char *data = golden_file(name, &n);
    fuzz_add(data, n);
    free(data);
}

static void assert_said(const qn_error *err, qn_status status)
{
    assert_true(status != QN_OK && err->code == status && err->message[0] != '\0');
    assert_null(strchr(err->message, '\n'));
}

/* ---- config.json: what a family makes of it
 * ----------------------------------------------------------- */

static void begin_families(void)
{
    static const char *const names[] = {
        "gemma2/defaults",       "gemma2/layer-types", "gemma2/uncapped", "gemma3/images",
        "gemma3/images-new",     "gemma3/layer-types", "gemma3/text",     "llama/biased",
        "llama/linear",          "llama/plain",        "mistral/window",  "mistral/parameters",
        "llama/llama3-head-dim", "qwen2/untold",       "qwen2/window",    "qwen2/layer-types",
        "qwen3/window",          "qwen3/biased",       "smollm3/list",    "smollm3/plain",
        "bitnet/packed",         "bitnet/bitlinear",   "bitnet/online",   "bitnet/plain",
    };
    char name[80];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "%s/config.json", names[i]);
        add_golden(name);
    }
}

static bool fits(int64_t value, int64_t most)
{
    return value >= 1 && value <= most;
}

static void assert_sound(const qn__decoder_config *c)
{
    assert_true(fits(c->n_layers, QN__MOST_LAYERS) && fits(c->hidden, 1 << 20) &&
                fits(c->ffn, 1 << 20));
    assert_true(fits(c->vocab, 1 << 24) && fits(c->max_positions, 1 << 30));
    assert_true(fits(c->n_heads, 1 << 14) && fits(c->n_kv_heads, c->n_heads) &&
                c->n_heads % c->n_kv_heads == 0);
    assert_true(fits(c->head_dim, 1 << 20) && c->head_dim % 2 == 0 &&
                c->n_heads * c->head_dim <= 1 << 20);
    assert_true(c->window >= 0 && c->window <= 1 << 30);
    assert_true(c->norm_eps >= 0 && isfinite(c->query_scale) && isfinite(c->score_cap) &&
                isfinite(c->logit_cap));
    assert_true(c->rope.theta >= 1 && c->rope.factor > 0 && isfinite(c->rope.theta));
    for (int64_t i = 0; i < c->n_layers; i++)
        assert_true(!c->layer[i].sliding || c->window > 0);
}

static bool configures(const char *data, size_t n)
{
    qn_error err = {0};
    cJSON *root;
    qn_status status = qn__json_parse(&root, "fuzzed", data, n, &err);
    if (status != QN_OK) {
        assert_said(&err, status);
        return false;
    }
    bool any = false;
    qn__json_at config = qn__json_root("fuzzed", root), type;
    bool told = qn__json_find(&config, "model_type", &type) && cJSON_IsString(type.node);
    for (int i = 0; qn__families[i]; i++) {
        static qn__decoder_config c;
        if (told && strcmp(type.node->valuestring, qn__families[i]->model_type) != 0)
            continue;
        err = (qn_error){0};
        memset(&c, 0, sizeof c);
        status = qn__families[i]->configure(&config, &c, &err);
        if (status == QN_OK)
            assert_sound(&c);
        else
            assert_said(&err, status);
        any |= status == QN_OK;
    }
    cJSON_Delete(root);
    return any;
}

/* ---- the files of a model directory
 * ------------------------------------------------------------------- */

static void begin_directory(void)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char name[80];
        size_t n;
        snprintf(name, sizeof name, "llama/plain/%s", names[i]);
        char *data = golden_file(name, &n);
        temp_write(names[i], data, n);
        free(data);
    }
    device = open_cpu(NULL);
}

static void begin_config(void)
{
    begin_directory();
    add_golden("llama/plain/config.json");
    add_golden("llama/linear/config.json");
    add_golden("llama/llama3-head-dim/config.json");
}

static void begin_generation(void)
{
    static const char *const files[] = {
        "{\"bos_token_id\":1,\"eos_token_id\":[2,3],\"do_sample\":true,\"temperature\":0.6,\"top_"
        "p\":0.9,\"top_k\":50,"
        "\"repetition_penalty\":1.1,\"transformers_version\":\"4.45.0\"}",
        "{\"eos_token_id\":2,\"max_length\":4096,\"pad_token_id\":null}", "{}"};
    begin_directory();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        fuzz_add(files[i], strlen(files[i]));
}

static bool opens_path(const char *path, bool no_tokenizer)
{
    qn_model *model;
    qn_error err = {0};
    qn_model_options o = {.size = sizeof o, .no_tokenizer = no_tokenizer, .no_weights = true};
    qn_status status = qn_model_open(&model, device, path, &o, &err);
    if (status != QN_OK) {
        assert_said(&err, status);
        assert_null(model);
        return false;
    }
    qn_generation_defaults d = {.size = sizeof d};
    qn_model_get_defaults(model, &d);
    float logits[] = {1, 3, 2};
    if (qn_sample(device, logits, 3, d.sampling, NULL, 0, 0, &err) < 0)
        fail_msg("%s", err.message);
    assert_true(d.max_tokens >= 0 && d.n_stop <= 64 && d.n_stop_strings <= 64);
    qn_model_close(model);
    return true;
}

static bool opens_with(const char *name, const char *data, size_t n)
{
    temp_write(name, data, n);
    return opens_path(temp_root, true);
}

/* A tokenizer, a template and how to sample. */
static void put_texts(qn_text *t, const char *key)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "b", "ab"};
    (void)key;
    put_string(t, "tokenizer.ggml.model", "gpt2");
    put_string(t, "tokenizer.ggml.pre", "llama-bpe");
    put_array(t, "tokenizer.ggml.tokens", QN__GGUF_STRING, 6);
    for (int i = 0; i < 6; i++)
        put_text(t, tokens[i]);
    put_array(t, "tokenizer.ggml.merges", QN__GGUF_STRING, 1);
    put_text(t, "a b");
    put_u32(t, "tokenizer.ggml.eos_token_id", 2);
    put_string(t, "tokenizer.chat_template", "{{ eos_token }}{{ messages[0].content }}");
    put_f32(t, "general.sampling.temp", 0.5f);
    put_f32(t, "llama.rope.freq_base", 10000);
    put_string(t, "llama.rope.scaling.type", "yarn");
    put_f32(t, "llama.rope.scaling.factor", 4);
    put_u32(t, "llama.rope.scaling.original_context_length", 16);
}

static void begin_gguf(void)
{
    qn_text file = gguf_llama(&(gguf_change){"", put_texts}, NULL, NULL);
    device = open_cpu(NULL);
    fuzz_add(file.data, file.n);
    qn_text_free(&file);
}

static bool opens_gguf(const char *data, size_t n)
{
    return opens_path(temp_write("fuzzed.gguf", data, n), false);
}

static bool opens_config(const char *data, size_t n)
{
    return opens_with("config.json", data, n);
}

static bool opens_generation(const char *data, size_t n)
{
    bool opens = opens_with("generation_config.json", data, n);
    assert_true(opens); /* whatever is in it */
    return opens;
}

/* Codes, scales, zeros and an order of columns, all of which are read. */
static void begin_packed(void)
{
    size_t n;
    char *data = golden_file("packed/gptq4-act/config.json", &n);
    temp_write("config.json", data, n);
    free(data);
    device = open_cpu(NULL);
    add_golden("packed/gptq4-act/model.safetensors");
}

static bool opens_packed(const char *data, size_t n)
{
    qn_model *model;
    qn_error err = {0};
    qn_model_options o = {.size = sizeof o, .no_tokenizer = true};
    temp_write("model.safetensors", data, n);
    qn_status status = qn_model_open(&model, device, temp_root, &o, &err);
    if (status != QN_OK)
        assert_said(&err, status);
    qn_model_close(model);
    return status == QN_OK;
}

/* What each method demands of a configuration. */
static void begin_methods(void)
{
    add_golden("packed/gptq4-act/config.json");
    add_golden("packed/awq4/config.json");
    add_golden("packed/ct4-order/config.json");
    add_golden("packed/ct8-bytes/config.json");
}

static bool configures_method(const char *data, size_t n)
{
    qn_error err = {0};
    cJSON *root;
    if (qn__json_parse(&root, "fuzzed", data, n, &err) != QN_OK)
        return false;
    static qn__quantization q;
    qn__json_at config = qn__json_root("fuzzed", root);
    qn_status status = qn__quantization_read(&config, &q, &err);
    if (status != QN_OK)
        assert_said(&err, status);
    else if (q.kind)
        assert_true(q.n_schemes > 0 || (fits(q.bits, 8) && q.group_size >= QN__WHOLE_ROWS &&
                                        q.group_size != 0 && q.group_size <= 1 << 20));
    for (int i = 0; status == QN_OK && i < q.n_schemes; i++)
        assert_true(fits(q.scheme[i].bits, 8) && q.scheme[i].group_size != 0);
    cJSON_Delete(root);
    return status == QN_OK && q.kind;
}

static const char *const gguf_words[] = {"general.architecture",
                                         "gemma2",
                                         "gemma3",
                                         "qwen3",
                                         "smollm3",
                                         "llama.",
                                         "rope_freqs.weight",
                                         "gpt-4o",
                                         "llama.attention.sliding_window",
                                         "\xff\xff\xff\xff",
                                         "tokenizer.chat_template",
                                         NULL};

static const char *const packed_words[] = {"g_idx", "qzeros", "scales", "qweight",          "I32",
                                           "I64",   "F16",    "[64,8]", "\xff\xff\xff\xff", NULL};

static void test_changed_files(void **state)
{
    (void)state;
    static const fuzz_parser parsers[] = {
        {"config.json", begin_families, configures, fuzz_json_words},
        {"model", begin_config, opens_config, fuzz_json_words},
        {"gguf", begin_gguf, opens_gguf, gguf_words},
        {"packed", begin_packed, opens_packed, packed_words},
        {"methods", begin_methods, configures_method, fuzz_json_words},
        {"generation_config.json", begin_generation, opens_generation, fuzz_json_words},
    };
    fuzz_parsers(parsers, sizeof parsers / sizeof *parsers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changed_files)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
