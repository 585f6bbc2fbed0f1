/* SPDX-License-Identifier: Apache-2.0
 *
 * Six tiny Llamas against transformers (tests/golden/make_llama.py): hidden states after every
 * layer, logits, greedy tokens; and every feature switched off must show.
 */
#include "models/golden_model.h"

#include "models/load.h"

#include <math.h>

static const char *const models[] = {"llama/plain",  "llama/llama3-tied", "llama/llama3-head-dim",
                                     "llama/linear", "llama/biased",      "llama/sharded"};
enum { N_MODELS = sizeof models / sizeof *models, N_TOKENS = 256, MOST_LAYERS = 8 };

typedef struct run {
    float *layers[MOST_LAYERS + 1]; /* [256, hidden] after the embedding and each layer */
    float *logits;                  /* [256, vocab] */
} run;

static void free_run(run *r)
{
    for (int i = 0; i <= MOST_LAYERS; i++)
        free(r->layers[i]);
    free(r->logits);
}

static float *read_all(qn_scope *s, qn_array *a)
{
    size_t n = (size_t)qn_array_elements(a);
    float *out = malloc(n * sizeof *out);
    if (qn_read_f32(s, a, out, n) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    return out;
}

/* The whole sequence at once, through a cache or without one. */
static run run_model(qn_device *device, const qn__decoder *m, const int32_t *tokens, bool cached)
{
    run r = {{0}, NULL};
    qn__cache cache = {0};
    qn__sequence sequence;
    qn__batch batch = {0};
    const qn__decoder_config *c = &m->config;
    qn__cache_shape shape = {(int)c->n_layers, c->n_heads,  c->n_kv_heads,
                             c->head_dim,      c->head_dim, QN__F32};
    qn_error err = {0};
    assert_int_equal(qn__cache_begin(&cache, &shape, NULL,
                                     &(qn__cache_room){.sequences = 1, .positions = N_TOKENS},
                                     &err),
                     QN_OK);
    qn__sequence_begin(&sequence, &cache);
    qn__batch_begin(&batch, &cache);
    assert_int_equal(qn__batch_add(&batch, &sequence, tokens, N_TOKENS, 0, &err), QN_OK);
    qn_scope *s = qn_scope_begin(device);
    qn_array *layers[MOST_LAYERS + 1], *all[2 * MOST_LAYERS + MOST_LAYERS + 3];
    int n = 0;
    if (cached)
        qn__batch_record(s, &batch);
    qn_array *x = qn_from(s, QN_I32, 2, (const int64_t[]){1, N_TOKENS}, tokens);
    qn_array *hidden = qn__decoder_hidden(s, m, x, cached ? &batch : NULL, layers);
    all[n++] = qn__decoder_logits(s, m, hidden);
    for (int i = 0; i <= c->n_layers; i++)
        all[n++] = layers[i];
    if (cached) {
        int n_targets;
        qn_array *const *targets = qn__batch_targets(&batch, &n_targets);
        for (int i = 0; i < n_targets; i++)
            all[n++] = targets[i];
    }
    if (qn_eval_many(s, all, n) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn__batch_end(cached ? s : NULL, &batch);
    r.logits = read_all(s, all[0]);
    for (int i = 0; i <= c->n_layers; i++)
        r.layers[i] = read_all(s, layers[i]);
    qn_scope_end(s);
    qn__batch_free(&batch);
    qn__sequence_end(&sequence);
    qn__cache_end(&cache);
    return r;
}

static void check_model(qn_device *device, const char *name, bool cached)
{
    char path[500];
    qn_error err = {0};
    qn__decoder m;
    golden_path(path, sizeof path, name, NULL);
    if (qn__decoder_load(&m, device, path, NULL, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_tensors *file;
    golden_path(path, sizeof path, name, "golden.safetensors");
    assert_int_equal(qn_tensors_open(&file, path, &err), QN_OK);
    size_t n;
    int32_t *tokens = golden_tensor(file, "tokens", &n);
    assert_int_equal(n, N_TOKENS);
    run r = run_model(device, &m, tokens, cached);
    double worst = 0;
    for (int i = 0; i <= m.config.n_layers; i++) {
        char key[32];
        snprintf(key, sizeof key, "hidden.%d", i);
        double e = golden_rows(file, key, "positions", r.layers[i], (size_t)m.config.hidden);
        worst = e > worst ? e : worst;
    }
    double e = golden_rows(file, "logits", "logit_positions", r.logits, (size_t)m.config.vocab);
    worst = e > worst ? e : worst;
    printf("%-22s %-8s worst NMSE %.2e\n", name, cached ? "cached" : "uncached", worst);
    assert_true(worst <= 1e-9);
    free_run(&r);
    free(tokens);
    qn_tensors_close(file);
    qn__decoder_end(&m);
}

static void test_hidden_states_and_logits(void **state)
{
    qn_device *device = open_device(state);
    for (int i = 0; i < N_MODELS; i++) {
        check_model(device, models[i], true);
        check_model(device, models[i], false);
    }
    qn_device_close(device);
}

/* One feature changed in the loaded model. */
typedef enum feature {
    ROPE_SCALING,
    ROPE_THETA,
    NORM_WEIGHTS,
    NORM_EPS,
    QKV_BIAS,
    MLP_BIAS
} feature;

static void reset_vector(qn_device *device, qn_array **slot, double value)
{
    qn_scope *s = qn_scope_begin(device);
    int64_t n = qn_array_dim(*slot, 0);
    qn_array *a = qn_full(s, QN_F32, 1, &n, value);
    assert_int_equal(qn_eval(s, a), QN_OK);
    qn_release(*slot);
    *slot = qn_retain(a);
    qn_scope_end(s);
}

static void reset_frequency(qn_device *device, qn__decoder *m)
{
    int64_t n = m->config.head_dim / 2;
    float values[256];
    qn__rope_frequencies(&m->config.rope, (int)n, values);
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn_from_f32(s, values, n);
    qn_release(m->frequency);
    assert_int_equal(qn_eval(s, a), QN_OK);
    m->frequency = qn_retain(a);
    qn_scope_end(s);
}

static void switch_off(qn_device *device, qn__decoder *m, feature f)
{
    if (f == ROPE_SCALING)
        m->config.rope.kind = QN__ROPE_DEFAULT;
    if (f == ROPE_THETA)
        m->config.rope.theta = m->config.rope.theta == 10000 ? 20000 : 10000;
    if (f == ROPE_SCALING || f == ROPE_THETA)
        reset_frequency(device, m);
    if (f == NORM_EPS)
        m->config.norm_eps = 1e-5;
    for (int i = 0; i < m->n_parameters; i++) {
        const qn__parameter *p = &m->parameters[i];
        if (f == NORM_WEIGHTS && strstr(p->name, "norm"))
            reset_vector(device, p->slot, 1);
        if ((f == QKV_BIAS && strstr(p->name, "attn") && strstr(p->name, "bias")) ||
            (f == MLP_BIAS && strstr(p->name, "mlp") && strstr(p->name, "bias")))
            reset_vector(device, p->slot, 0);
    }
}

static void check_absence(qn_device *device, const char *name, feature f, const char *what)
{
    char path[500];
    qn_error err = {0};
    qn__decoder m;
    golden_path(path, sizeof path, name, NULL);
    assert_int_equal(qn__decoder_load(&m, device, path, NULL, NULL, &err), QN_OK);
    qn_tensors *file;
    golden_path(path, sizeof path, name, "golden.safetensors");
    assert_int_equal(qn_tensors_open(&file, path, &err), QN_OK);
    size_t n;
    int32_t *tokens = golden_tensor(file, "tokens", &n);
    switch_off(device, &m, f);
    run r = run_model(device, &m, tokens, true);
    double e = golden_rows(file, "logits", "logit_positions", r.logits, (size_t)m.config.vocab);
    printf("%-22s without %-14s NMSE %.2e\n", name, what, e);
    assert_true(e > 1e-4);
    free_run(&r);
    free(tokens);
    qn_tensors_close(file);
    qn__decoder_end(&m);
}

static void test_absent_features_show(void **state)
{
    qn_device *device = open_device(state);
    check_absence(device, "llama/llama3-tied", ROPE_SCALING, "rope scaling");
    check_absence(device, "llama/llama3-head-dim", ROPE_SCALING, "rope scaling");
    check_absence(device, "llama/linear", ROPE_SCALING, "rope scaling");
    check_absence(device, "llama/linear", NORM_EPS, "norm eps");
    check_absence(device, "llama/llama3-tied", ROPE_THETA, "rope theta");
    check_absence(device, "llama/biased", QKV_BIAS, "qkv bias");
    check_absence(device, "llama/biased", MLP_BIAS, "mlp bias");
    for (int i = 0; i < N_MODELS; i++)
        check_absence(device, models[i], NORM_WEIGHTS, "norm weights");
    qn_device_close(device);
}

/* 64 greedy tokens behind the first tokens, through sessions: both the sampling path and the one
 * that keeps token and position on the device. */
static void test_greedy(void **state)
{
    qn_device *device = open_device(state);
    for (int i = 0; i < N_MODELS; i++) {
        char path[500];
        qn_error err = {0};
        qn_tensors *file;
        golden_path(path, sizeof path, models[i], "golden.safetensors");
        assert_int_equal(qn_tensors_open(&file, path, &err), QN_OK);
        size_t n, n_greedy;
        int32_t *tokens = golden_tensor(file, "tokens", &n),
                *greedy = golden_tensor(file, "greedy", &n_greedy);
        int32_t *n_prompt = golden_tensor(file, "greedy_prompt_len", &n);
        qn_model *model;
        qn_model_options options = {.size = sizeof options, .no_tokenizer = true};
        golden_path(path, sizeof path, models[i], NULL);
        if (qn_model_open(&model, device, path, &options, &err) != QN_OK)
            fail_msg("%s", err.message);
        for (int sampled = 0; sampled < 2; sampled++) {
            qn_session *session;
            assert_int_equal(qn_session_open(&session, model, NULL, &err), QN_OK);
            qn_generation *g;
            qn_generation_options o = {
                .size = sizeof o, .max_tokens = (int64_t)n_greedy, .ignore_stop = true};
            qn_sampling best = {.size = sizeof best, .temperature = 1, .top_k = 1};
            if (sampled) /* a filter that leaves one token: samples from logits on the host */
                o.sampling = &best;
            assert_int_equal(qn_generation_begin(&g, session, tokens, (size_t)*n_prompt, &o, &err),
                             QN_OK);
            for (size_t k = 0; k < n_greedy; k++) {
                int32_t id;
                if (qn_generation_next(g, &id, &err) != QN_OK)
                    fail_msg("%s", err.message);
                assert_int_equal(id, greedy[k]);
            }
            qn_generation_end(g);
            qn_session_close(session);
        }
        qn_model_close(model);
        free(tokens);
        free(greedy);
        free(n_prompt);
        qn_tensors_close(file);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden_states_and_logits),
        cmocka_unit_test(test_absent_features_show),
        cmocka_unit_test(test_greedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
