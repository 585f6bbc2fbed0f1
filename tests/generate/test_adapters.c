/* SPDX-License-Identifier: Apache-2.0
 *
 * Adapters: logits are those of PEFT and of mlx-lm (tests/golden/make_adapters.py); rows of
 * different adapters run side by side, each with the tokens that it has alone, and share no
 * beginnings; what is no plain LoRA adapter of the model is refused.
 */
#include "generate/model_test.h"
#include "models/golden_model.h"

#include "quern/engine.h"

#include <math.h>

enum { VOCAB = 320, LENGTH = 64, N = 30, N_REQUESTS = 12, PROMPT = 140 };

static const char *const names[] = {"peft", "rslora", "mlx"};

static qn_status open_with(qn_model **out, qn_device *device, const char *base, int n,
                           const qn_adapter *adapters, qn_error *err)
{
    char path[600];
    qn_model_options o = {.size = sizeof o,
                          .no_tokenizer = true,
                          .products = QN_PRODUCTS_F32,
                          .adapters = adapters,
                          .n_adapters = (size_t)n};
    golden_path(path, sizeof path, base, NULL);
    return qn_model_open(out, device, path, &o, err);
}

/* The plain llama with all three. */
static qn_model *open_all(qn_device *device)
{
    static char paths[3][600];
    qn_adapter adapters[3];
    qn_error err = {0};
    qn_model *model;
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/tests/golden/adapters/%s/", getenv("QUERN_SOURCE"),
                 names[i]);
        adapters[i] = (qn_adapter){.path = paths[i]};
    }
    if (open_with(&model, device, "llama/plain", 3, adapters, &err) != QN_OK)
        fail_msg("%s", err.message);
    return model;
}

static qn_session *session_with(qn_model *model, int adapter)
{
    qn_session *session;
    qn_error err = {0};
    qn_session_options o = {.size = sizeof o, .adapter = adapter};
    if (qn_session_open(&session, model, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return session;
}

static void test_logits(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *all = open_all(device);
    assert_int_equal(qn_model_n_adapters(all), 3);
    float *logits = malloc(sizeof(float) * LENGTH * VOCAB);
    for (int i = 0; i < 3; i++) {
        char folder[100], path[600];
        size_t n;
        snprintf(folder, sizeof folder, "adapters/%s", names[i]);
        golden_path(path, sizeof path, folder, NULL);
        qn_tensors *golden = golden_open(folder);
        int32_t *tokens = golden_tensor(golden, "tokens", &n);
        float *want = golden_tensor(golden, "logits", &n);
        qn_error err = {0};
        qn_adapter one = {.path = path};
        qn_model *alone;
        assert_string_equal(qn_model_adapter_name(all, i + 1), names[i]);
        assert_int_equal(open_with(&alone, device, "llama/plain", 1, &one, &err), QN_OK);
        for (int k = 0; k < 2; k++) { /* the only one is the default */
            qn_session *session = session_with(k ? all : alone, k ? i + 1 : QN_ADAPTER_DEFAULT);
            assert_int_equal(qn_session_score(session, tokens, LENGTH, logits, &err), QN_OK);
            double error = nmse(logits, want, LENGTH * VOCAB);
            if (error > 1e-9)
                fail_msg("%s: NMSE %g", names[i], error);
            qn_session_close(session);
        }
        qn_session *session = session_with(alone, QN_ADAPTER_NONE);
        assert_int_equal(qn_session_score(session, tokens, LENGTH, logits, &err), QN_OK);
        assert_true(nmse(logits, want, LENGTH * VOCAB) > 1e-3);
        qn_session_close(session);
        qn_model_close(alone);
        qn_tensors_close(golden);
        free(tokens);
        free(want);
    }
    free(logits);
    qn_model_close(all);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* Twelve requests of one prompt, three of each adapter and three of none. */
static void test_rows(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_all(device);
    int32_t prompt[PROMPT], want[4][N], id;
    qn_error err = {0};
    random_tokens(prompt, PROMPT, VOCAB, 3);
    qn_generation_options g = {.size = sizeof g, .max_tokens = N, .ignore_stop = true};
    for (int adapter = 0; adapter < 4; adapter++) {
        qn_session *session = session_with(model, adapter ? adapter : QN_ADAPTER_NONE);
        qn_generation *alone;
        assert_int_equal(qn_generation_begin(&alone, session, prompt, PROMPT, &g, &err), QN_OK);
        for (int i = 0; i < N; i++)
            assert_int_equal(qn_generation_next(alone, &want[adapter][i], &err), QN_OK);
        qn_generation_end(alone);
        qn_session_close(session);
        for (int k = 0; k < adapter; k++)
            assert_memory_not_equal(want[k], want[adapter], sizeof *want);
    }
    qn_engine *engine;
    qn_request *requests[N_REQUESTS];
    assert_int_equal(qn_engine_open(&engine, model, NULL, &err), QN_OK);
    for (int i = 0; i < N_REQUESTS; i++) {
        qn_request_options o = {
            .size = sizeof o, .generation = &g, .adapter = i % 4 ? i % 4 : QN_ADAPTER_DEFAULT};
        assert_int_equal(qn_request_add(&requests[i], engine, prompt, PROMPT, &o, &err), QN_OK);
    }
    for (bool busy = true; busy;)
        assert_int_equal(qn_engine_step(engine, &busy, &err), QN_OK);
    for (int i = 0; i < N_REQUESTS; i++) {
        for (int k = 0; k < N; k++) {
            assert_int_equal(qn_request_next(requests[i], &id, &err), QN_OK);
            assert_int_equal(id, want[i % 4][k]);
        }
        qn_request_close(requests[i]);
    }
    qn_engine_stats stats = QN_INIT(qn_engine_stats);
    qn_engine_get_stats(engine, &stats);
    assert_int_equal(stats.prompt_tokens, 4 * PROMPT + 8 * (PROMPT - 128)); /* shared by adapter */
    qn_engine_close(engine);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* A session that slept with one adapter does not wake with another. */
static void test_sleep(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_all(device);
    char path[700];
    int32_t ids[9];
    snprintf(path, sizeof path, "%s/asleep", temp_root);
    random_tokens(ids, 9, VOCAB, 1);
    qn_session *with = session_with(model, 2);
    qn_error err = {0};
    assert_int_equal(qn_session_append(with, ids, 9, &err), QN_OK);
    assert_int_equal(qn_session_save(with, path, &err), QN_OK);
    for (int adapter = QN_ADAPTER_NONE; adapter <= 3; adapter++) {
        qn_session *other = session_with(model, adapter);
        err = (qn_error){0};
        assert_int_equal(qn_session_restore(other, path, &err), adapter == 2 ? QN_OK : QN_STATE);
        qn_session_close(other);
    }
    qn_session_close(with);
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A PEFT directory of one pair with these shapes and this configuration. */
static void make_adapter(const char *folder, const char *layer, int64_t r, int64_t k, int64_t n,
                         float value, const char *config)
{
    char names_of[2][200], path[800];
    float *values = calloc((size_t)(r * (k + n)) + 1, sizeof *values);
    values[0] = value;
    qn_error err = {0};
    qn__tensor_data t[2] = {
        {.name = names_of[0], .dtype = QN_F32, .ndim = 2, .shape = {r, k}, .data = values},
        {.name = names_of[1], .dtype = QN_F32, .ndim = 2, .shape = {n, r}, .data = values}};
    for (int i = 0; i < 2; i++)
        snprintf(names_of[i], sizeof names_of[i], "base_model.model.%s.lora_%c.weight", layer,
                 "AB"[i]);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    size_t n_tensors = n ? 2 : 1;
    assert_int_equal(qn__safetensors_write(path, t, n_tensors, NULL, 0, &err), QN_OK);
    write_text(folder, "adapter_config.json", config);
    free(values);
}

static void expect_refused(qn_device *device, const qn_adapter *adapters, int n, qn_status status,
                           const char *words)
{
    qn_model *model;
    qn_error err = {0};
    qn_status got = open_with(&model, device, "llama/plain", n, adapters, &err);
    if (got != status || !strstr(err.message, words))
        fail_msg("wanted \"%s\", got %d: %s", words, (int)got, err.message);
    assert_null(model);
}

static void test_refusals(void **state)
{
#define LORA "\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8"
    static const struct {
        const char *layer;
        int64_t r, k, n;
        float value;
        const char *config;
        qn_status status;
        const char *words;
    } cases[] = {
        {"model.layers.0.self_attn.q_proj", 4, 64, 64, 0, "{" LORA "}", QN_OK, ""},
        {"model.layers.0.self_attn.q_proj", 4, 96, 64, 0, "{" LORA "}", QN_FORMAT, "another model"},
        {"model.layers.0.self_attn.q_proj", 4, 64, 63, 0, "{" LORA "}", QN_FORMAT, "another model"},
        {"model.layers.0.self_attn.q_proj", 4, 64, 0, 0, "{" LORA "}", QN_FORMAT, "other half"},
        {"model.layers.0.self_attn.q_proj", 0, 64, 64, 0, "{" LORA "}", QN_LIMIT, "a rank is"},
        {"model.layers.0.self_attn.q_proj", 1025, 64, 64, 0, "{" LORA "}", QN_LIMIT, "a rank is"},
        {"model.layers.0.self_attn.q_proj", 4, 64, 64, INFINITY, "{" LORA "}", QN_FORMAT, "finite"},
        {"model.layers.3.self_attn.q_proj", 4, 64, 64, 0, "{" LORA "}", QN_UNSUPPORTED,
         "no linear"},
        {"lm_head", 4, 64, 320, 0, "{" LORA "}", QN_UNSUPPORTED, "no linear layer"},
        {"model.layers.0.mlp.up_proj", 4, 64, 80, 0, "{" LORA ", \"use_dora\": true}",
         QN_UNSUPPORTED, "use_dora"},
        {"model.layers.0.mlp.up_proj", 4, 64, 80, 0, "{" LORA ", \"modules_to_save\": [\"x\"]}",
         QN_UNSUPPORTED, "modules_to_save"},
        {"model.layers.0.mlp.up_proj", 4, 64, 80, 0, "{" LORA ", \"bias\": \"all\"}",
         QN_UNSUPPORTED, "bias"},
        {"model.layers.0.mlp.up_proj", 4, 64, 80, 0, "{\"peft_type\": \"LOHA\"}", QN_UNSUPPORTED,
         "peft_type"},
        {"model.layers.0.mlp.up_proj", 4, 64, 80, 0, "{\"r\": 4}", QN_FORMAT, "lora_alpha"},
        {"model.layers.0.mlp.up_proj", 4, 64, 80, 0, "[", QN_FORMAT, "adapter_config.json"},
    };
    qn_device *device = open_cpu(state);
    char folder[700];
    snprintf(folder, sizeof folder, "%s/adapter", temp_root);
    mkdir(folder, 0777);
    qn_adapter two[2] = {{.path = folder}, {.path = folder}};
    expect_refused(device, two, 1, QN_NOT_FOUND, "no adapter");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_adapter(folder, cases[i].layer, cases[i].r, cases[i].k, cases[i].n, cases[i].value,
                     cases[i].config);
        if (cases[i].status != QN_OK) {
            expect_refused(device, two, 1, cases[i].status, cases[i].words);
            continue;
        }
        qn_model *model;
        qn_error err = {0};
        assert_int_equal(open_with(&model, device, "llama/plain", 1, two, &err), QN_OK);
        qn_session *session;
        qn_session_options o = {.size = sizeof o, .adapter = 2};
        assert_int_equal(qn_session_open(&session, model, &o, &err), QN_INVALID);
        assert_null(qn_model_adapter_name(model, 2));
        qn_model_close(model);
        expect_refused(device, two, 2, QN_INVALID, "two adapters are called \"adapter\"");
    }
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_sleep),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
