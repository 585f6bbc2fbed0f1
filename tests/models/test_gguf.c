/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in GGUF files, written by another program (tests/golden/make_gguf.py): they are what the
 * directories are that they were made from, by configuration, names, values and logits. And
 * metadata that makes no model.
 */
#include "models/golden_model.h"

#include "../base/fail_alloc.h"
#include "../io/gguf_build.h"
#include "models/load.h"
#include "models/source.h"

#include <math.h>

enum { TOKENS = 96 };

static const struct {
    const char *file, *golden;
    bool paired;
} models[] = {{"gguf/llama.gguf", "llama/llama3-tied", true},
              {"gguf/qwen3.gguf", "qwen3/plain", false},
              {"gguf/gemma3.gguf", "gemma3/images", false},
              {"gguf/smollm3.gguf", "smollm3/plain", true}};

static float *logits_of(qn_device *device, const qn__decoder *m)
{
    int32_t tokens[TOKENS];
    float *out = malloc((size_t)(TOKENS * m->config.vocab) * sizeof *out);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i * 37 % (int)m->config.vocab;
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from(s, QN_I32, 2, (const int64_t[]){1, TOKENS}, tokens);
    qn_array *y = qn__decoder_logits(s, m, qn__decoder_hidden(s, m, x, NULL, NULL));
    if (qn_read_f32(s, y, out, (size_t)(TOKENS * m->config.vocab)) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
    return out;
}

static void load(qn__decoder *m, qn_device *device, const char *path)
{
    qn_error err = {0};
    if (qn__decoder_load(m, device, path, NULL, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
}

/* Configurations as families make them, but for the type of the weights and what norms hold. */
static void assert_same_config(const qn__decoder_config *a, const qn__decoder_config *b)
{
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->ffn, b->ffn);
    assert_int_equal(a->n_heads, b->n_heads);
    assert_int_equal(a->n_kv_heads, b->n_kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->max_positions, b->max_positions);
    assert_int_equal(a->window, b->window);
    assert_true(fabs(a->norm_eps - b->norm_eps) < 1e-12 && a->rope.theta == b->rope.theta &&
                a->sliding_rope.theta == b->sliding_rope.theta && a->tied == b->tied &&
                a->qk_norm == b->qk_norm && a->query_scale == b->query_scale &&
                a->score_cap == b->score_cap && a->logit_cap == b->logit_cap);
    for (int i = 0; i < a->n_layers; i++)
        assert_true(a->layer[i].sliding == b->layer[i].sliding &&
                    a->layer[i].no_rope == b->layer[i].no_rope);
}

static void test_same_models(void **state)
{
    qn_device *device = open_cpu(state);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        qn__decoder a, b;
        char path[600];
        golden_path(path, sizeof path, models[i].file, NULL);
        load(&a, device, path);
        golden_directory(path, sizeof path, models[i].golden);
        load(&b, device, path);
        assert_same_config(&a.config, &b.config);
        assert_int_equal(a.n_parameters, b.n_parameters);
        for (int j = 0; j < a.n_parameters; j++) {
            const char *name = strstr(b.parameters[j].name, "model.layers");
            if (name)
                assert_string_equal(a.parameters[j].name, name);
            bool paired =
                a.parameters[j].id.role == QN__ROLE_Q || a.parameters[j].id.role == QN__ROLE_K;
            assert_true((a.parameters[j].paired_rows > 0) == (paired && models[i].paired));
        }
        float *x = logits_of(device, &a), *y = logits_of(device, &b);
        double e = nmse(x, y, (size_t)(TOKENS * a.config.vocab));
        printf("%-20s logits: NMSE %.1e\n", models[i].file, e); /* the weights are f16 */
        assert_true(e < 1e-4);
        free(x);
        free(y);
        qn__decoder_end(&a);
        qn__decoder_end(&b);
    }
    qn_device_close(device);
}

/* ---- ternary --------------------------------------------------------------------------------- */

enum { BIT_TOKENS = 256 };

/* The file's model gives transformers' logits of the directory with the same weights. */
static void check_ternary(qn_device *device, const char *name, const char *golden)
{
    char path[600];
    size_t n;
    qn__decoder a, b;
    golden_path(path, sizeof path, name, NULL);
    load(&a, device, path);
    golden_directory(path, sizeof path, golden);
    load(&b, device, path);
    assert_same_config(&a.config, &b.config);
    assert_true(a.config.byte_rows && a.config.sub_norms);
    assert_int_equal(a.config.activation, b.config.activation);
    assert_int_equal(a.sizes.parameters, b.sizes.parameters);
    qn_tensors *file = golden_open(golden);
    int32_t *tokens = golden_tensor(file, "tokens", &n);
    assert_int_equal(n, BIT_TOKENS);
    size_t vocab = (size_t)a.config.vocab;
    float *logits = malloc(BIT_TOKENS * vocab * sizeof *logits);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from(s, QN_I32, 2, (const int64_t[]){1, BIT_TOKENS}, tokens);
    qn_array *y = qn__decoder_logits(s, &a, qn__decoder_hidden(s, &a, x, NULL, NULL));
    if (qn_read_f32(s, y, logits, BIT_TOKENS * vocab) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
    double e = golden_rows(file, "logits", "logit_positions", logits, vocab);
    printf("%-24s logits: NMSE %.1e\n", name, e);
    assert_true(e < 1e-9);
    free(logits);
    free(tokens);
    qn_tensors_close(file);
    qn__decoder_end(&a);
    qn__decoder_end(&b);
}

static void test_ternary(void **state)
{
    qn_device *device = open_cpu(state);
    check_ternary(device, "gguf/bitnet-tq1_0.gguf", "bitnet/packed");
    check_ternary(device, "gguf/bitnet-tq2_0.gguf", "bitnet/packed");
    check_ternary(device, "gguf/bitnet-i2_s.gguf", "bitnet/packed");
    qn_device_close(device);
}

/* The file with one key called otherwise: what a BitNet's metadata leave out is that of the 2B
 * model. NULL: it loads. */
static void without_key(qn_device *device, const char *key, const char *part)
{
    char path[600], *data, name[100];
    size_t n;
    qn__decoder m;
    qn_error err = {0};
    golden_path(path, sizeof path, "gguf/bitnet-i2_s.gguf", NULL);
    assert_int_equal(qn__file_read(path, 1 << 20, &data, &n, &err), QN_OK);
    snprintf(name, sizeof name, "bitnet-b1.58.%s", key);
    char *at = memmem(data, n, name, strlen(name));
    assert_non_null(at);
    at[strlen(name) - 1] = '_';
    snprintf(path, sizeof path, "%s", temp_write("lacking.gguf", data, n));
    free(data);
    qn_status status = qn__decoder_load(&m, device, path, NULL, NULL, &err);
    if (part && (status == QN_OK || !strstr(err.message, part)))
        fail_msg("\"%s\" lacks \"%s\"", err.message, part);
    if (!part && status != QN_OK)
        fail_msg("%s", err.message);
    if (!part)
        assert_true(m.config.rope.theta == 500000 && fabs(m.config.norm_eps - 1e-5) < 1e-10 &&
                    m.config.max_positions == (strcmp(key, "context_length") ? 512 : 2048));
    if (!part)
        qn__decoder_end(&m);
}

static void test_ternary_defaults(void **state)
{
    qn_device *device = open_cpu(state);
    without_key(device, "block_count", "blk.10.attn_norm.weight is missing (a bitnet of 30 layers");
    without_key(device, "embedding_length", "bitnet-b1.58.rope.dimension_count: turning");
    without_key(device, "feed_forward_length", "the metadata asks for [256, 6912]");
    without_key(device, "attention.head_count", "bitnet-b1.58.rope.dimension_count: turning");
    without_key(device, "context_length", NULL);
    without_key(device, "rope.freq_base", NULL);
    without_key(device, "attention.layer_norm_rms_epsilon", NULL);
    qn_device_close(device);
}

/* i2_s as a tensor: codes times the scale behind them. */
static void test_ternary_tensor(void **state)
{
    qn_device *device = open_cpu(state);
    qn_tensors *blocks[2];
    char path[600];
    float *values[2];
    const char *const names[] = {"gguf/bitnet-i2_s.gguf", "gguf/bitnet-tq1_0.gguf"};
    enum { COUNT = 64 * 256 };
    for (int i = 0; i < 2; i++) {
        golden_path(path, sizeof path, names[i], NULL);
        assert_int_equal(qn_tensors_open(&blocks[i], path, NULL), QN_OK);
        values[i] = malloc(COUNT * sizeof(float));
        qn_scope *s = qn_scope_begin(device);
        qn_array *a = qn_tensors_read(s, blocks[i], "blk.1.attn_k.weight");
        assert_int_equal(qn_read_f32(s, a, values[i], COUNT), QN_OK);
        qn_scope_end(s);
        qn_tensors_close(blocks[i]);
    }
    assert_memory_equal(values[0], values[1], COUNT * sizeof(float));
    assert_true(values[0][0] != 0 || values[0][1] != 0 || values[0][2] != 0);
    free(values[0]);
    free(values[1]);
    qn_device_close(device);
}

/* ---- by hand --------------------------------------------------------------------------------- */

static void put_zero(qn_text *t, const char *key)
{
    put_u32(t, key, 0);
}

static void put_seven(qn_text *t, const char *key)
{
    put_u32(t, key, 7);
}

static void put_huge(qn_text *t, const char *key)
{
    put_u32(t, key, UINT32_MAX);
}

static void put_word(qn_text *t, const char *key)
{
    put_string(t, key, "many");
}

static void put_list(qn_text *t, const char *key)
{
    put_array(t, key, QN__GGUF_U32, 1);
    put_int(t, 4, 4);
}

static void put_nan(qn_text *t, const char *key)
{
    put_f32(t, key, NAN);
}

static void put_three(qn_text *t, const char *key)
{
    put_u32(t, key, 3);
}

typedef struct refusal {
    gguf_change change;
    const char *part; /* of the message */
} refusal;

static const char *write_llama(const gguf_change *c, const char *without, const char *misshapen)
{
    qn_text file = gguf_llama(c, without, misshapen);
    const char *path = temp_write("made.gguf", file.data, file.n);
    qn_text_free(&file);
    return path;
}

static void assert_refused(qn_device *device, const char *path, const char *part)
{
    qn__decoder m;
    qn_error err = {0};
    qn_status status = qn__decoder_load(&m, device, path, NULL, NULL, &err);
    if (status == QN_OK)
        fail_msg("loaded, expected: %s", part);
    if (!strstr(err.message, part) || !strstr(err.message, "made.gguf") ||
        strchr(err.message, '\n'))
        fail_msg("expected \"%s\", got %s", part, err.message);
}

static void test_bad_metadata(void **state)
{
    static const refusal changes[] = {
        {{"general.architecture", NULL}, "general.architecture is missing"},
        {{"general.architecture", put_zero}, "general.architecture: expected a string, got uint32"},
        {{"general.architecture", put_word},
         "general.architecture \"many\" is not supported (suppo"},
        {{"llama.block_count", NULL}, "llama.block_count is missing"},
        {{"llama.block_count", put_zero},
         "llama.block_count: expected an integer in 1..1000, got 0"},
        {{"llama.block_count", put_huge},
         "llama.block_count: expected an integer in 1..1000, got 4"},
        {{"llama.block_count", put_word}, "llama.block_count: expected an integer, got string"},
        {{"llama.block_count", put_seven}, "tensor blk.1.attn_norm.weight is missing (a llama"},
        {{"llama.embedding_length", put_seven}, "llama.embedding_length"},
        {{"llama.feed_forward_length", put_list}, "expected an integer, got an array of uint32"},
        {{"llama.attention.head_count", put_zero},
         "llama.attention.head_count: expected an integer"},
        {{"llama.attention.head_count", put_huge},
         "llama.attention.head_count: expected an integer"},
        {{"llama.attention.head_count_kv", put_zero}, "llama.attention.head_count_kv: expected an"},
        {{"llama.attention.head_count_kv", put_three},
         "is not a multiple of attention.head_count_kv 3"},
        {{"llama.attention.key_length", put_three}, "llama.attention.key_length: 2 heads of 3"},
        {{"llama.attention.value_length", put_three},
         "llama.attention.value_length: values of another"},
        {{"llama.rope.dimension_count", put_three}, "llama.rope.dimension_count: turning a part"},
        {{"llama.rope.scaling.type", put_word},
         "llama.rope.scaling.type: this scaling is not supp"},
        {{"llama.rope.freq_base", put_nan}, "llama.rope.freq_base: expected a number in 1..1e+12"},
        {{"llama.attention.layer_norm_rms_epsilon", NULL}, "layer_norm_rms_epsilon is missing"},
        {{"llama.attention.layer_norm_rms_epsilon", put_nan}, "expected a number in 0..1, got"},
        {{"llama.expert_count", put_seven}, "llama.expert_count: mixtures of experts are not"},
        {{"llama.context_length", put_zero}, "llama.context_length: expected an integer in 1.."},
        {{"tokenizer.ggml.eos_token_id", put_word},
         "eos_token_id: expected an integer, got string"},
    };
    qn_device *device = open_cpu(state);
    qn__decoder m;
    load(&m, device, write_llama(NULL, NULL, NULL));
    assert_true(m.config.tied && m.config.vocab == 10);
    qn__decoder_end(&m);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        /* the width that does not fit is found by what it gives, too */
        const char *part = strcmp(changes[i].change.key, "llama.embedding_length")
                               ? changes[i].part
                               : "[10, 8], the meta";
        assert_refused(device, write_llama(&changes[i].change, NULL, NULL), part);
    }
    qn_device_close(device);
}

static void test_bad_tensors(void **state)
{
    qn_device *device = open_cpu(state);
    assert_refused(device, write_llama(NULL, "blk.0.attn_q.weight", NULL),
                   "tensor blk.0.attn_q.weight is missing");
    assert_refused(device, write_llama(NULL, "token_embd.weight", NULL),
                   "tensor token_embd.weight is missing");
    assert_refused(device, write_llama(NULL, NULL, "blk.0.ffn_up.weight"),
                   "tensor blk.0.ffn_up.weight has shape [16, 12], the metadata asks for [16, 8]");
    assert_refused(device, write_llama(NULL, NULL, "output_norm.weight"),
                   "tensor output_norm.weight has shape [12], the metadata asks for [8]");
    qn_device_close(device);
}

/* ---- where it is found ----------------------------------------------------------------------- */

static void copy(const char *from, const char *to)
{
    char *data, path[600];
    size_t n;
    golden_path(path, sizeof path, from, NULL);
    assert_int_equal(qn__file_read(path, 1 << 20, &data, &n, NULL), QN_OK);
    temp_write(to, data, n);
    free(data);
}

static void test_directories(void **state)
{
    qn_device *device = open_cpu(state);
    const char *folder = temp_mkdir("one");
    qn__source source;
    qn_error err = {0};
    copy("gguf/qwen3.gguf", "one/m.gguf");
    temp_write("one/mmproj-m.gguf", "GGUF", 4);
    temp_write("one/m-00002-of-00003.gguf", "GGUF", 4);
    assert_int_equal(qn__source_open(&source, folder, &err), QN_OK);
    assert_true(source.gguf && !source.paired && strstr(source.config_path, "one/m.gguf"));
    assert_string_equal(qn__source_config_name(&source), "the metadata");
    qn__source_close(&source);
    temp_write("one/n.gguf", "GGUF", 4);
    assert_int_equal(qn__source_open(&source, folder, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "there are several GGUF files"));
    err = (qn_error){0};
    temp_write("one/config.json", "{}", 2);
    assert_int_equal(qn__source_open(&source, folder, &err), QN_OK);
    assert_false(source.gguf);
    qn__source_close(&source);
    qn_device_close(device);
}

/* ---- all of a model -------------------------------------------------------------------------- */

/* A tokenizer, a template, how to sample, what ends a text. */
static void put_texts(qn_text *t, const char *key)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "b", "ab", "<end>"};
    (void)key;
    put_string(t, "tokenizer.ggml.model", "gpt2");
    put_string(t, "tokenizer.ggml.pre", "llama-bpe");
    put_array(t, "tokenizer.ggml.tokens", QN__GGUF_STRING, 7);
    for (int i = 0; i < 7; i++)
        put_text(t, tokens[i]);
    put_array(t, "tokenizer.ggml.token_type", QN__GGUF_I32, 7);
    for (int i = 0; i < 7; i++)
        put_int(t, i == 1 || i == 2 || i == 6 ? 3 : 1, 4);
    put_array(t, "tokenizer.ggml.merges", QN__GGUF_STRING, 1);
    put_text(t, "a b");
    put_u32(t, "tokenizer.ggml.bos_token_id", 1);
    put_u32(t, "tokenizer.ggml.eos_token_id", 2);
    put_u32(t, "tokenizer.ggml.eot_token_id", 6);
    put_u32(t, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    put_string(t, "tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
    put_string(t, "tokenizer.chat_template.tool_use", "{{ eos_token }}");
    put_f32(t, "general.sampling.temp", 0.5f);
    put_u32(t, "general.sampling.top_k", 7);
    put_f32(t, "general.sampling.top_p", 0.25f);
}

static const char *write_whole(void)
{
    return write_llama(&(gguf_change){"", put_texts}, NULL, NULL);
}

static void test_whole_model(void **state)
{
    qn_device *device = open_cpu(state);
    const char *path = write_whole();
    qn_model *model;
    qn_chat *chat;
    qn_error err = {0};
    if (qn_model_open(&model, device, path, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_generation_defaults d = {.size = sizeof d};
    qn_model_get_defaults(model, &d);
    assert_true(d.sampling->temperature == 0.5f && d.sampling->top_k == 7 &&
                d.sampling->top_p == 0.25f && d.sampling->min_p == 0);
    assert_true(d.n_stop == 2 && d.stop[0] == 2 && d.stop[1] == 6);
    assert_non_null(qn_model_parameter(model, "model.layers.0.self_attn.q_proj.weight"));
    assert_null(qn_model_parameter(model, "blk.0.attn_q.weight"));
    assert_int_equal(qn_chat_open(&chat, qn_model_tokenizer(model), path, &err), QN_OK);
    assert_string_equal(qn_chat_template_name(chat, 0), "default");
    assert_string_equal(qn_chat_template_name(chat, 1), "tool_use");
    qn_tokens ids = {0};
    const qn_chat_message message = {.role = "user", .content = "ab<end>"};
    /* control tokens are the template's alone: a message's text of one is encoded as text */
    assert_int_equal(qn_chat_apply(chat, &message, 1, false, &ids, &err), QN_OK);
    assert_true(ids.n >= 2 && ids.ids[0] == 1 && ids.ids[1] == 5);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_not_equal(ids.ids[i], 6);
    qn_tokens_free(&ids);
    qn_chat_close(chat);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_failing_allocations(void **state)
{
    qn_device *device = open_cpu(state);
    const char *path = write_whole();
    for (long n = 0;; n++) {
        qn_model *model = NULL;
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = qn_model_open(&model, device, path, NULL, &err);
        bool failed = fail_allocation_end();
        if (status == QN_OK)
            qn_model_close(model);
        else if (!failed || status != QN_MEMORY)
            fail_msg("allocation %ld: %s", n, err.message);
        if (!failed) {
            assert_true(n > 40);
            break;
        }
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_models),
        cmocka_unit_test(test_bad_metadata),
        cmocka_unit_test(test_ternary),
        cmocka_unit_test(test_ternary_tensor),
        cmocka_unit_test(test_ternary_defaults),
        cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_whole_model),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
