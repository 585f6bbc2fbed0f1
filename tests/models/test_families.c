/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiny models of each family against transformers (tests/golden/make_families.py): hidden states
 * after every layer and logits, at once and through the cache in pieces; greedy tokens; and each
 * feature that a model has, switched off, must show.
 */
#include "models/golden_model.h"

#include "core/device.h"
#include "models/load.h"

#include <math.h>

static const char *const models[] = {
    "mistral/window",     "mistral/head-dim",  "mistral/window-head-dim",
    "mistral/parameters", "qwen2/plain",       "qwen2/window",
    "qwen2/layer-types",  "qwen2/untold",      "qwen3/plain",
    "qwen3/biased",       "qwen3/window",      "qwen3/untold",
    "gemma2/plain",       "gemma2/defaults",   "gemma2/uncapped",
    "gemma2/layer-types", "gemma3/text",       "gemma3/layer-types",
    "gemma3/images",      "gemma3/images-new", "smollm3/plain",
    "smollm3/list",       "qwen2/yarn",        "qwen3/yarn",
    "gemma3/yarn",        "mistral/original",  "qwen2/two-ropes",
    "qwen2/no-scaling",   "qwen2/own-head",    "qwen3/original",
    "qwen3/no-original",  "gemma3/two-ropes",  "smollm3/sliding",
    "smollm3/window",     "bitnet/packed",     "bitnet/bitlinear",
    "bitnet/online",      "bitnet/unpacked",   "bitnet/plain",
    "bitnet/llama",
};
enum { N_MODELS = sizeof models / sizeof *models, N_TOKENS = 256, MOST_LAYERS = 8 };

/* Pieces through the cache, shorter and longer than windows; the rest one by one. */
enum { LONGEST_PIECE = 100 };
static const int pieces[] = {1, 100, 3, 64, 31, 1, 1, 40, 12, 1, 1, 1};

typedef struct run {
    float *layers[MOST_LAYERS + 1]; /* [256, hidden] after the embedding and each layer */
    float *logits;                  /* [256, vocab] */
} run;

static void make_run(run *r, const qn__decoder_config *c)
{
    for (int i = 0; i <= MOST_LAYERS; i++)
        r->layers[i] = i <= c->n_layers ? malloc((size_t)(N_TOKENS * c->hidden) * 4) : NULL;
    r->logits = malloc((size_t)(N_TOKENS * c->vocab) * 4);
}

static void free_run(run *r)
{
    for (int i = 0; i <= MOST_LAYERS; i++)
        free(r->layers[i]);
    free(r->logits);
}

static void read_rows(qn_scope *s, qn_array *a, float *to, int at, int64_t width)
{
    if (qn_read_f32(s, a, to + at * width, (size_t)qn_array_elements(a)) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
}

/* Tokens at .. at + n - 1, behind the sequence unless NULL, into r. */
static void run_piece(qn_device *device, const qn__decoder *m, const int32_t *tokens,
                      qn__sequence *sequence, int at, int n, run *r)
{
    const qn__decoder_config *c = &m->config;
    qn__batch batch = {0};
    qn_error err = {0};
    qn_scope *s = qn_scope_begin(device);
    qn_array *all[3 * MOST_LAYERS + 3], **layers = all + 1;
    if (sequence) {
        qn__batch_begin(&batch, sequence->cache);
        assert_int_equal(qn__batch_add(&batch, sequence, tokens + at, n, 0, &err), QN_OK);
        qn__batch_record(s, &batch);
    }
    qn_array *x = qn_from(s, QN_I32, 2, (const int64_t[]){1, n}, tokens + at);
    qn_array *hidden = qn__decoder_hidden(s, m, x, sequence ? &batch : NULL, layers);
    all[0] = qn__decoder_logits(s, m, hidden);
    int n_all = (int)c->n_layers + 2, n_targets = 0;
    qn_array *const *targets = sequence ? qn__batch_targets(&batch, &n_targets) : NULL;
    for (int i = 0; i < n_targets; i++)
        all[n_all++] = targets[i];
    if (qn_eval_many(s, all, n_all) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    if (sequence)
        qn__batch_end(s, &batch);
    qn__batch_free(&batch);
    read_rows(s, all[0], r->logits, at, c->vocab);
    for (int i = 0; i <= c->n_layers; i++)
        read_rows(s, layers[i], r->layers[i], at, c->hidden);
    qn_scope_end(s);
}

static run run_model(qn_device *device, const qn__decoder *m, const int32_t *tokens, bool cached)
{
    run r;
    make_run(&r, &m->config);
    if (!cached) {
        run_piece(device, m, tokens, NULL, 0, N_TOKENS, &r);
        return r;
    }
    qn__cache cache;
    qn__sequence sequence;
    qn_error err = {0};
    const qn__decoder_config *c = &m->config;
    qn__cache_shape shape = {.n_layers = (int)c->n_layers,
                             .queries = c->n_heads,
                             .heads = c->n_kv_heads,
                             .key_dim = c->head_dim,
                             .value_dim = c->head_dim,
                             .keys = QN__F32};
    qn__cache_window windows[MOST_LAYERS] = {{0}};
    for (int i = 0; i < c->n_layers; i++)
        windows[i].window = c->layer[i].sliding ? c->window : 0;
    assert_int_equal(
        qn__cache_begin(
            &cache, &shape, windows,
            &(qn__cache_room){.sequences = 1, .positions = N_TOKENS, .reach = LONGEST_PIECE}, &err),
        QN_OK);
    qn__sequence_begin(&sequence, &cache);
    int at = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; at += pieces[i++])
        run_piece(device, m, tokens, &sequence, at, pieces[i], &r);
    assert_int_equal(at, N_TOKENS);
    qn__sequence_end(&sequence);
    qn__cache_end(&cache);
    return r;
}

static void load(qn__decoder *m, qn_device *device, const char *name)
{
    char path[600];
    qn_error err = {0};
    golden_directory(path, sizeof path, name);
    if (qn__decoder_load(m, device, path, NULL, NULL, &err) != QN_OK)
        fail_msg("%s: %s", name, err.message);
}

/* Whether the device holds the model's weights. One that does not names the encoding and those it
 * holds. */
static bool is_held(qn_device *device, const char *name)
{
    char path[600];
    qn_error err = {0};
    qn_model *model;
    qn_model_options o = {.size = sizeof o, .no_tokenizer = true};
    golden_directory(path, sizeof path, name);
    if (qn_model_open(&model, device, path, &o, &err) == QN_OK) {
        qn_model_close(model);
        return true;
    }
    if (err.code != QN_UNSUPPORTED || !strcmp(device->ops->kind, "cpu") ||
        !strstr(err.message, "holds no weights in") || !strstr(err.message, "it holds them in f32"))
        fail_msg("%s: %s", name, err.message);
    printf("%s: %s\n", name, err.message);
    return false;
}

static void check_model(qn_device *device, const char *name, bool cached)
{
    qn__decoder m;
    load(&m, device, name);
    qn_tensors *file = golden_open(name);
    size_t n;
    int32_t *tokens = golden_tensor(file, "tokens", &n);
    assert_int_equal(n, N_TOKENS);
    run r = run_model(device, &m, tokens, cached);
    double worst = 0;
    for (int i = 0; i <= m.config.n_layers; i++) {
        char key[32];
        snprintf(key, sizeof key, "hidden.%d", i);
        double e = golden_rows(file, key, "positions", r.layers[i], (size_t)m.config.hidden);
        if (e > 1e-9)
            printf("%s: layer %d of %d: NMSE %.2e\n", name, i, (int)m.config.n_layers, e);
        worst = e > worst ? e : worst;
    }
    double e = golden_rows(file, "logits", "logit_positions", r.logits, (size_t)m.config.vocab);
    worst = e > worst ? e : worst;
    printf("%-24s %-8s worst NMSE %.2e\n", name, cached ? "cached" : "uncached", worst);
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
        if (!is_held(device, models[i]))
            continue;
        check_model(device, models[i], false);
        check_model(device, models[i], true);
    }
    qn_device_close(device);
}

/* ---- features switched off
 * ----------------------------------------------------------------------- */

/* A feature works on a copy of the decoder and of its layers; what it makes is kept in `made`. */
typedef struct patch {
    qn_device *device;
    qn__decoder m;
    qn_array *made[8 * MOST_LAYERS];
    int n_made;
} patch;

/* Each returns whether the model has the feature. */
typedef bool switch_off(patch *p);

static bool no_window(patch *p)
{
    bool had = p->m.config.window > 0;
    p->m.config.window = 0;
    return had;
}

/* One position more: where a window begins is exact. */
static bool wider_window(patch *p)
{
    bool had = p->m.config.window > 0;
    p->m.config.window++;
    return had;
}

static bool other_layers_slide(patch *p)
{
    qn__decoder_config *c = &p->m.config;
    int n = 0;
    for (int i = 0; i < c->n_layers; i++)
        n += c->layer[i].sliding ^= 1;
    return c->window && n > 0 && n < c->n_layers;
}

static bool no_local_rope(patch *p)
{
    bool had = p->m.sliding_frequency != NULL;
    p->m.sliding_frequency = NULL;
    return had;
}

static bool no_rope_scaling(patch *p)
{
    qn__rope_config rope = p->m.config.rope;
    bool had = rope.kind != QN__ROPE_DEFAULT;
    float values[64];
    int64_t n = p->m.config.head_dim / 2;
    rope.kind = QN__ROPE_DEFAULT;
    qn__rope_frequencies(&rope, (int)n, values);
    qn_scope *s = qn_scope_begin(p->device);
    qn_array *a = qn_from_f32(s, values, n);
    assert_int_equal(qn_eval(s, a), QN_OK);
    p->m.frequency = p->made[p->n_made++] = qn_retain(a);
    qn_scope_end(s);
    return had;
}

static bool no_attention_factor(patch *p)
{
    qn__rope_config *rope = &p->m.config.rope;
    bool had = rope->attention != 0 && rope->attention != 1;
    rope->attention = 0;
    return had;
}

static bool no_biases(patch *p)
{
    for (int i = 0; i < p->m.config.n_layers; i++) {
        qn__decoder_layer *l = &p->m.layers[i];
        l->q.bias = l->k.bias = l->v.bias = l->output.bias = NULL;
    }
    return p->m.config.qkv_bias;
}

static bool rope_everywhere(patch *p)
{
    int n = 0;
    for (int i = 0; i < p->m.config.n_layers; i++) {
        n += p->m.config.layer[i].no_rope;
        p->m.config.layer[i].no_rope = false;
    }
    return n > 0;
}

static bool no_qk_norm(patch *p)
{
    for (int i = 0; i < p->m.config.n_layers; i++)
        p->m.layers[i].q_norm = p->m.layers[i].k_norm = NULL;
    return p->m.config.qk_norm;
}

static bool no_post_norms(patch *p)
{
    for (int i = 0; i < p->m.config.n_layers; i++)
        p->m.layers[i].attention_post_norm = p->m.layers[i].ffn_post_norm = NULL;
    return p->m.config.sandwich_norms;
}

static bool no_sub_norms(patch *p)
{
    for (int i = 0; i < p->m.config.n_layers; i++)
        p->m.layers[i].attention_sub_norm = p->m.layers[i].ffn_sub_norm = NULL;
    return p->m.config.sub_norms;
}

static bool no_factors(patch *p)
{
    for (int i = 0; i < p->m.config.n_layers; i++) {
        qn__decoder_layer *l = &p->m.layers[i];
        l->q.factor = l->k.factor = l->v.factor = l->output.factor = NULL;
        l->gate.factor = l->up.factor = l->down.factor = NULL;
    }
    return p->m.config.ternary != QN__TERNARY_NOT;
}

static bool bias_elsewhere(patch *p)
{
    qn__decoder_config *c = &p->m.config;
    bool had = c->ternary && c->qkv_bias;
    c->ternary = c->ternary == QN__TERNARY_TIMES ? QN__TERNARY_OVER : QN__TERNARY_TIMES;
    return had;
}

/* The final norm as it lies in the file. */
static bool no_plus_one(patch *p)
{
    qn_scope *s = qn_scope_begin(p->device);
    qn_array *w = qn_subtract(s, p->m.final_norm, qn_scalar(s, QN_F32, 1));
    assert_int_equal(qn_eval(s, w), QN_OK);
    p->m.final_norm = p->made[p->n_made++] = qn_retain(w);
    qn_scope_end(s);
    return p->m.config.norm_plus_one;
}

#define FIELD_OFF(function, field)                                                                 \
    static bool function(patch *p)                                                                 \
    {                                                                                              \
        bool had = p->m.config.field != 0;                                                         \
        p->m.config.field = 0;                                                                     \
        return had;                                                                                \
    }
FIELD_OFF(other_activation, activation)
FIELD_OFF(no_byte_rows, byte_rows)
FIELD_OFF(no_embedding_scale, scaled_embedding)
FIELD_OFF(no_query_scale, query_scale)

/* The default caps are so wide that they show by less here; that they are there shows in the 1e-9.
 */
static bool remove_cap(double *cap)
{
    bool had = *cap > 0 && *cap < 10;
    *cap = 0;
    return had;
}

static bool no_score_cap(patch *p)
{
    return remove_cap(&p->m.config.score_cap);
}

static bool no_logit_cap(patch *p)
{
    return remove_cap(&p->m.config.logit_cap);
}

static const struct {
    switch_off *off;
    const char *name;
    int least; /* models that have it */
} features[] = {
    {no_window, "window", 18},
    {wider_window, "exact window", 18},
    {other_layers_slide, "layer kinds", 15},
    {no_local_rope, "local rope", 6},
    {no_rope_scaling, "rope scaling", 14},
    {no_attention_factor, "attention factor", 4},
    {no_biases, "biases", 11},
    {rope_everywhere, "layers without rope", 4},
    {no_qk_norm, "QK norm", 13},
    {no_post_norms, "post norms", 10},
    {no_plus_one, "1 + weight", 10},
    {other_activation, "activation", 14},
    {no_sub_norms, "sub norms", 5},
    {no_byte_rows, "bytes of rows", 5},
    {no_factors, "ternary scales", 5},
    {bias_elsewhere, "place of the bias", 3},
    {no_embedding_scale, "embedding scale", 10},
    {no_query_scale, "query scale", 6},
    {no_score_cap, "score cap", 2},
    {no_logit_cap, "logit cap", 3},
};
enum { N_FEATURES = sizeof features / sizeof *features };

/* The error without feature f; a model that does not have it: -1. */
static double error_without(qn_device *device, const qn__decoder *m, const char *name, int f)
{
    qn__decoder_layer layers[MOST_LAYERS];
    static patch p;
    memset(&p, 0, sizeof p);
    p.device = device;
    p.m = *m;
    memcpy(layers, m->layers, (size_t)m->config.n_layers * sizeof *layers);
    p.m.layers = layers;
    double e = -1;
    /* a scale that says what the head's size would say, too, is no feature */
    bool had = features[f].off(&p) &&
               (features[f].off != no_query_scale ||
                fabs(m->config.query_scale * sqrt((double)m->config.head_dim) - 1) > 1e-3);
    if (had) {
        qn_tensors *file = golden_open(name);
        size_t n;
        int32_t *tokens = golden_tensor(file, "tokens", &n);
        run r = run_model(device, &p.m, tokens, true);
        e = golden_rows(file, "logits", "logit_positions", r.logits, (size_t)m->config.vocab);
        free_run(&r);
        free(tokens);
        qn_tensors_close(file);
    }
    for (int i = 0; i < p.n_made; i++)
        qn_release(p.made[i]);
    return e;
}

static void test_absent_features_show(void **state)
{
    qn_device *device = open_device(state);
    int had[N_FEATURES] = {0};
    for (int i = 0; i < N_MODELS; i++) {
        qn__decoder m;
        if (!is_held(device, models[i]))
            continue;
        load(&m, device, models[i]);
        for (int f = 0; f < N_FEATURES; f++) {
            double e = error_without(device, &m, models[i], f);
            if (e < 0)
                continue;
            had[f]++;
            printf("%-24s without %-16s NMSE %.2e\n", models[i], features[f].name, e);
            assert_true(e > 1e-4);
        }
        qn__decoder_end(&m);
    }
    for (int f = 0; f < N_FEATURES; f++)
        if (had[f] < features[f].least && !strcmp(device->ops->kind, "cpu"))
            fail_msg("only %d models have %s", had[f], features[f].name);
    qn_device_close(device);
}

/* ---- greedy
 * ------------------------------------------------------------------------------------------ */

/* 64 tokens behind the first ones, through sessions that prefill in chunks of this size. */
static void check_greedy(qn_device *device, const char *name, int64_t chunk)
{
    char path[600];
    qn_error err = {0};
    qn_model *model;
    qn_session *session;
    qn_generation *g;
    qn_tensors *file = golden_open(name);
    size_t n, n_greedy;
    int32_t *tokens = golden_tensor(file, "tokens", &n);
    int32_t *greedy = golden_tensor(file, "greedy", &n_greedy);
    int32_t *n_prompt = golden_tensor(file, "greedy_prompt_len", &n);
    qn_model_options options = {.size = sizeof options, .no_tokenizer = true};
    golden_directory(path, sizeof path, name);
    if (qn_model_open(&model, device, path, &options, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_session_options so = {.size = sizeof so, .prefill_chunk = chunk};
    qn_generation_options go = {
        .size = sizeof go, .max_tokens = (int64_t)n_greedy, .ignore_stop = true};
    assert_int_equal(qn_session_open(&session, model, &so, &err), QN_OK);
    assert_int_equal(qn_generation_begin(&g, session, tokens, (size_t)*n_prompt, &go, &err), QN_OK);
    assert_int_equal(n_greedy, 64);
    for (size_t k = 0; k < n_greedy; k++) {
        int32_t id;
        if (qn_generation_next(g, &id, &err) != QN_OK)
            fail_msg("%s", err.message);
        assert_int_equal(id, greedy[k]);
    }
    qn_generation_end(g);
    qn_session_close(session);
    qn_model_close(model);
    free(tokens);
    free(greedy);
    free(n_prompt);
    qn_tensors_close(file);
}

static void test_greedy(void **state)
{
    qn_device *device = open_device(state);
    for (int i = 0; i < N_MODELS; i++) {
        if (!is_held(device, models[i]))
            continue;
        check_greedy(device, models[i], 0);
        check_greedy(device, models[i], 7);
    }
    qn_device_close(device);
}

/* ---- bf16
 * ---------------------------------------------------------------------------------------- */

/* The embedding's scale is rounded to bf16: our f32 stream, rounded, is what a bf16 model has. */
static void check_bf16_embedding(qn_device *device, const char *name, const char *path)
{
    qn__decoder m;
    qn_error err = {0};
    if (qn__decoder_load(&m, device, path, NULL, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(m.config.dtype, QN_BF16);
    qn_tensors *file = golden_open(name);
    size_t n, n_positions, n_half;
    int32_t *tokens = golden_tensor(file, "tokens", &n);
    int32_t *at = golden_tensor(file, "positions", &n_positions);
    int32_t *half = golden_tensor(file, "embedded.bf16", &n_half);
    assert_int_equal(n_half, n_positions * (size_t)m.config.hidden);
    run r = run_model(device, &m, tokens, false);
    for (size_t i = 0; i < n_half; i++) {
        size_t row = (size_t)at[i / (size_t)m.config.hidden], k = i % (size_t)m.config.hidden;
        assert_int_equal(qn__f32_to_bf16(r.layers[0][row * (size_t)m.config.hidden + k]), half[i]);
    }
    free_run(&r);
    free(tokens);
    free(at);
    free(half);
    qn_tensors_close(file);
    qn__decoder_end(&m);
}

static size_t cache_bytes(qn_model *model)
{
    qn_session *session;
    qn_error err = {0};
    assert_int_equal(qn_session_open(&session, model, NULL, &err), QN_OK);
    assert_int_equal(qn_session_append(session, (int32_t[]){5, 6}, 2, &err), QN_OK);
    size_t bytes = qn_session_cache_bytes(session);
    qn_session_close(session);
    return bytes;
}

/* A bf16 checkpoint: its matrices and its cache take half the room; everything else is told alike.
 */
static void check_bf16_info(qn_device *device, const char *name)
{
    char path[600];
    qn_error err = {0};
    qn_model *wide, *half;
    qn_model_info a = QN_INIT(qn_model_info), b = a;
    qn_model_options o = {.size = sizeof o, .no_tokenizer = true};
    golden_directory(path, sizeof path, name);
    assert_int_equal(qn_model_open(&wide, device, path, &o, &err), QN_OK);
    golden_directory_of(path, sizeof path, name, true);
    assert_int_equal(qn_model_open(&half, device, path, &o, &err), QN_OK);
    qn_model_get_info(wide, &a);
    qn_model_get_info(half, &b);
    assert_string_equal(a.family, b.family);
    assert_int_equal(a.parameters, b.parameters);
    if (strncmp(name, "bitnet/", 7) != 0 || !strcmp(name, "bitnet/plain")) /* ternary stays so */
        assert_true(b.weight_bytes < a.weight_bytes * 6 / 10 &&
                    b.weight_bytes > a.weight_bytes * 4 / 10);
    assert_int_equal(a.head_dim, b.head_dim);
    assert_int_equal(cache_bytes(wide), 2 * cache_bytes(half));
    qn_model_close(wide);
    qn_model_close(half);
    if (!strncmp(name, "gemma", 5))
        check_bf16_embedding(device, name, path);
}

static void test_bf16(void **state)
{
    qn_device *device = open_device(state);
    for (int i = 0; i < N_MODELS; i++)
        if (is_held(device, models[i]))
            check_bf16_info(device, models[i]);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden_states_and_logits),
        cmocka_unit_test(test_absent_features_show),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
