/* SPDX-License-Identifier: Apache-2.0
 *
 * A trained adapter: what is saved is what sessions then run, on dense and quantised models; what
 * training goes on from; what is refused, and what a failure leaves behind.
 */
#include "models/golden_model.h"

#include "base/fail_alloc.h"
#include "base/file.h"

#include <math.h>
#include <string.h>

ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);

static long writes_left = -1; /* -1: never fail */

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    if (writes_left < 0 || writes_left-- > 0)
        return __real_write(fd, data, n);
    writes_left = 0;
    errno = ENOSPC;
    return -1;
}

enum { LENGTH = 12, ROWS = 2, VOCAB = 320 };

static int32_t tokens[ROWS * LENGTH];

static void draw_tokens(void)
{
    uint64_t seed = 11;
    for (int i = 0; i < ROWS * LENGTH; i++)
        tokens[i] = (int32_t)((test_random(&seed) + 1) / 2 * VOCAB);
}

static qn_model *open_plain(qn_device *device, const char *adapter, qn_products products)
{
    char path[600];
    qn_error err = {0};
    qn_model *model;
    const qn_adapter one = {.path = adapter};
    qn_model_options o = {.size = sizeof o,
                          .no_tokenizer = true,
                          .products = products,
                          .adapters = &one,
                          .n_adapters = adapter != NULL};
    golden_path(path, sizeof path, "llama/plain", NULL);
    if (qn_model_open(&model, device, path, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return model;
}

static qn_trainer *train_on(qn_model *model, const qn_trainer_options *o, int steps)
{
    qn_error err = {0};
    qn_trainer *t;
    if (qn_trainer_open(&t, model, o, &err) != QN_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < steps; i++)
        if (qn_trainer_step(t, tokens, NULL, ROWS, LENGTH, NULL, &err) != QN_OK)
            fail_msg("step %d: %s", i, err.message);
    return t;
}

static double loss_of(qn_trainer *t)
{
    qn_error err = {0};
    double loss;
    if (qn_trainer_loss(t, tokens, NULL, ROWS, LENGTH, &loss, &err) != QN_OK)
        fail_msg("%s", err.message);
    return loss;
}

/* The same loss of a session's logits. */
static double session_loss(qn_model *model)
{
    float *logits = malloc(sizeof(float) * LENGTH * VOCAB);
    double sum = 0;
    for (int row = 0; row < ROWS; row++) {
        qn_error err = {0};
        qn_session *session;
        assert_int_equal(qn_session_open(&session, model, NULL, &err), QN_OK);
        const int32_t *ids = tokens + row * LENGTH;
        assert_int_equal(qn_session_score(session, ids, LENGTH, logits, &err), QN_OK);
        for (int i = 0; i + 1 < LENGTH; i++) {
            double all = 0;
            for (int k = 0; k < VOCAB; k++)
                all += exp(logits[i * VOCAB + k]);
            sum += log(all) - logits[i * VOCAB + ids[i + 1]];
        }
        qn_session_close(session);
    }
    free(logits);
    return sum / (ROWS * (LENGTH - 1));
}

static const qn_trainer_options quick = {
    .size = sizeof quick, .rank = 4, .alpha = 6, .learning_rate = 1e-2, .seed = 5};

static void test_saved(void **state)
{
    qn_device *device = open_cpu(state);
    qn_error err = {0};
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    double before = session_loss(model);
    qn_trainer *t = train_on(model, &quick, 0);
    assert_true(fabs(loss_of(t) - before) < 1e-5); /* B is zero */
    qn_trainer_close(t);
    t = train_on(model, &quick, 8);
    double after = loss_of(t);
    assert_true(after < before - 1);
    const char *out = temp_path("saved");
    assert_int_equal(qn_trainer_save(t, out, &err), QN_OK);
    assert_int_equal(qn_trainer_save(t, out, &err), QN_OK); /* in its own place */
    assert_int_equal(qn_trainer_parameters(t), 3 * 4 * (4 * (64 + 64) + 3 * (64 + 80)));
    qn_trainer_close(t);
    qn_model *with = open_plain(device, out, QN_PRODUCTS_F32);
    assert_true(fabs(session_loss(with) - after) < 1e-5);
    assert_int_equal(qn_trainer_open(&t, with, &quick, &err), QN_UNSUPPORTED);
    qn_model_close(with);
    qn_trainer_options on = quick;
    on.adapter = out;
    t = train_on(model, &on, 0);
    assert_true(loss_of(t) == after);
    qn_trainer_close(t);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* A is uniform within 1 / sqrt(K), drawn from the seed. */
static void test_drawn(void **state)
{
    qn_device *device = open_cpu(state);
    qn_error err = {0};
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    float *first = NULL;
    for (int i = 0; i < 3; i++) {
        qn_trainer_options o = quick;
        o.seed += i == 2;
        o.rank = 64;
        o.alpha = 0;
        qn_trainer *t = train_on(model, &o, 0);
        assert_int_equal(qn_trainer_save(t, temp_path("drawn"), &err), QN_OK);
        qn_trainer_close(t);
        qn_tensors *file;
        size_t n;
        assert_int_equal(qn_tensors_open(&file, temp_path("drawn/adapter_model.safetensors"), &err),
                         QN_OK);
        float *a =
            golden_tensor(file, "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", &n);
        float *b =
            golden_tensor(file, "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", &n);
        double square = 0, bound = 1 / sqrt(80), most = 0;
        for (int k = 0; k < 64 * 80; k++) {
            square += (double)a[k] * a[k] / (64 * 80);
            most = fabs(a[k]) > most ? fabs(a[k]) : most;
        }
        assert_true(most <= bound && most > 0.99 * bound);
        assert_true(fabs(square * 3 / (bound * bound) - 1) < 0.05);
        for (size_t k = 0; k < n; k++)
            assert_true(b[k] == 0);
        if (first)
            assert_int_equal(memcmp(first, a, 64 * 80 * sizeof *a) == 0, i == 1);
        if (!first)
            first = a;
        else
            free(a);
        free(b);
        qn_tensors_close(file);
    }
    free(first);
    qn_model_close(model);
    qn_device_close(device);
}

/* Bases in bytes and in 4 bits learn as well; their weights stay as they are. */
static void test_quantised(void **state)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
        "\"vocab_size\":320,\"max_position_embeddings\":100,\"rms_norm_eps\":1e-5,"
        "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\"}";
    static const char *const types[] = {"q8_0", "q4_0", "affine4-g64-bf16", "bf16"};
    qn_device *device = open_cpu(state);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_error err = {0};
        qn_model *model;
        assert_int_equal(qn_model_open_random(&model, device, config, strlen(config), types[i],
                                              types[i], NULL, &err),
                         QN_OK);
        double before = session_loss(model);
        qn_trainer *t = train_on(model, &quick, 0);
        assert_true(fabs(loss_of(t) - before) < 0.02); /* a cache in bf16 */
        qn_trainer_close(t);
        t = train_on(model, &quick, 10);
        if (!(loss_of(t) < before - 0.3))
            fail_msg("%s: %g, before %g", types[i], loss_of(t), before);
        qn_trainer_close(t);
        qn_model_close(model);
    }
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void expect(qn_trainer *t, const int32_t *ids, const uint8_t *mask, int64_t rows, int64_t n,
                   qn_status want, const char *part)
{
    qn_error err = {0};
    assert_int_equal(qn_trainer_step(t, ids, mask, rows, n, NULL, &err), want);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" has no \"%s\"", err.message, part);
    assert_int_equal(qn_trainer_loss(t, ids, mask, rows, n, NULL, NULL), want);
}

static void test_refused(void **state)
{
    static const char *const absent[] = {"q_proj", "proj"};
    qn_device *device = open_cpu(state);
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    const qn_trainer_options bad[] = {{.rank = -1},
                                      {.rank = 1025},
                                      {.alpha = NAN},
                                      {.learning_rate = -1},
                                      {.learning_rate = INFINITY},
                                      {.beta1 = 1},
                                      {.beta2 = -0.5},
                                      {.eps = -1},
                                      {.weight_decay = NAN},
                                      {.optimizer = QN_OPTIMIZER_COUNT},
                                      {.num_layers = -1},
                                      {.clip = -1},
                                      {.targets = absent, .n_targets = 2}};
    qn_trainer *t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_trainer_options o = bad[i];
        qn_error err = {0};
        assert_int_equal(qn_trainer_open(&t, model, &o, NULL), QN_INVALID); /* no size */
        o.size = sizeof o;
        assert_int_equal(qn_trainer_open(&t, model, &o, &err), QN_INVALID);
        assert_null(t);
        if (o.targets)
            assert_non_null(strstr(err.message, "\"proj\"; there are "));
    }
    t = train_on(model, NULL, 1);
    double loss = loss_of(t);
    uint8_t none[ROWS * LENGTH] = {1};
    int32_t outside[] = {1, 2, VOCAB, 3};
    int32_t *long_row = calloc(1000, sizeof *long_row);
    expect(t, outside, NULL, 1, 4, QN_INVALID, "row 0, token 2 is 320");
    expect(t, tokens, none, ROWS, LENGTH, QN_INVALID, "no token counts");
    expect(t, tokens, NULL, 3, 1, QN_INVALID, "two or more");
    expect(t, tokens, NULL, 0, 4, QN_INVALID, "two or more");
    expect(t, tokens, NULL, INT64_MAX / 2, 4, QN_INVALID, "two or more");
    expect(t, long_row, NULL, 1, 1000, QN_LIMIT, "context is 512");
    assert_int_equal(qn_trainer_set_learning_rate(t, -1, NULL), QN_INVALID);
    assert_true(loss_of(t) == loss);
    assert_int_equal(qn_trainer_steps(t), 1);
    free(long_row);
    qn_trainer_close(t);
    qn_model_close(model);
    qn_device_close(device);
}

/* The last layers alone: others have no matrices, and PEFT is told which there are. */
static void test_layers(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    qn_trainer_options o = quick;
    qn_error err = {0};
    qn_tensors *file;
    char *text;
    size_t n;
    o.num_layers = 2;
    qn_trainer *t = train_on(model, &o, 2);
    assert_int_equal(qn_trainer_parameters(t), 2 * 4 * (4 * (64 + 64) + 3 * (64 + 80)));
    double after = loss_of(t);
    const char *out = temp_path("layers");
    assert_int_equal(qn_trainer_save(t, out, &err), QN_OK);
    qn_trainer_close(t);
    assert_int_equal(qn_tensors_open(&file, temp_path("layers/adapter_model.safetensors"), &err),
                     QN_OK);
    assert_null(
        qn_tensors_find(file, "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"));
    assert_non_null(
        qn_tensors_find(file, "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"));
    qn_tensors_close(file);
    assert_int_equal(
        qn__file_read(temp_path("layers/adapter_config.json"), 1 << 20, &text, &n, &err), QN_OK);
    const char *layers = strstr(text, "\"layers_to_transform\":\t[1, 2]");
    if (!layers)
        fail_msg("%s", text);
    free(text);
    qn_model *with = open_plain(device, out, QN_PRODUCTS_F32);
    assert_true(fabs(session_loss(with) - after) < 1e-5);
    qn_model_close(with);
    static const char *const first[] = {"layers.0.mlp.down_proj"};
    o.targets = first;
    o.n_targets = 1;
    assert_int_equal(qn_trainer_open(&t, model, &o, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "in the last 2 layers"));
    qn_model_close(model);
    qn_device_close(device);
}

/* A step that the memory limit refuses leaves all as it was. */
static void test_limit(void **state)
{
    qn_device *device = open_cpu(state);
    qn_error err = {0};
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    qn_trainer *t = train_on(model, &quick, 2), *other = train_on(model, &quick, 2);
    qn_device_clear_cache(device);
    size_t active = memory_of(device).active;
    qn_device_set_memory_limit(device, active + 1000);
    assert_int_equal(qn_trainer_step(t, tokens, NULL, ROWS, LENGTH, NULL, &err), QN_LIMIT);
    qn_device_set_memory_limit(device, 0);
    assert_int_equal(memory_of(device).active, active);
    assert_true(loss_of(t) == loss_of(other));
    for (int i = 0; i < 2; i++)
        assert_int_equal(qn_trainer_step(i ? t : other, tokens, NULL, ROWS, LENGTH, NULL, NULL),
                         QN_OK);
    assert_true(loss_of(t) == loss_of(other));
    qn_trainer_close(t);
    qn_trainer_close(other);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_diverged(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    qn_trainer_options o = quick;
    o.learning_rate = 1e3;
    o.alpha = 1e6;
    qn_trainer *t = train_on(model, &o, 0);
    qn_error err = {0};
    for (int i = 0; i < 30 && !err.code; i++) {
        if (i == 2)
            assert_int_equal(qn_trainer_set_learning_rate(t, 1e3, &err), QN_OK);
        qn_trainer_step(t, tokens, NULL, ROWS, LENGTH, NULL, &err);
    }
    assert_int_equal(err.code, QN_STATE);
    assert_non_null(strstr(err.message, "diverged"));
    assert_int_equal(qn_trainer_step(t, tokens, NULL, ROWS, LENGTH, NULL, NULL), QN_STATE);
    assert_int_equal(qn_trainer_save(t, temp_path("diverged"), NULL), QN_STATE);
    assert_int_not_equal(access(temp_path("diverged"), F_OK), 0);
    qn_trainer_close(t);
    qn_model_close(model);
    qn_device_close(device);
}

/* A disk that is full from the n-th write on: what was saved before stays, whole. */
static void test_full_disk(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    qn_trainer *t = train_on(model, &quick, 1);
    qn_error err = {0};
    temp_mkdir("disk");
    assert_int_equal(qn_trainer_save(t, temp_path("disk/out"), &err), QN_OK);
    double first = loss_of(t);
    assert_int_equal(qn_trainer_step(t, tokens, NULL, ROWS, LENGTH, NULL, &err), QN_OK);
    double second = loss_of(t);
    qn_trainer_options on = quick;
    char out[300];
    snprintf(out, sizeof out, "%s", temp_path("disk/out"));
    on.adapter = out;
    long n = 0;
    for (qn_status status = QN_IO; status != QN_OK; n++) {
        qn_error full = {0};
        writes_left = n;
        status = qn_trainer_save(t, out, &full);
        writes_left = -1;
        assert_true(status == QN_OK || (status == QN_IO && strstr(full.message, "no space left")));
        assert_int_equal(temp_count(temp_path("disk")), 1);
        qn_trainer *saved = train_on(model, &on, 0);
        assert_true(loss_of(saved) == (status == QN_OK ? second : first));
        qn_trainer_close(saved);
    }
    assert_true(n > 2);
    temp_write("disk/out/more", "", 0); /* what is not ours is not replaced */
    assert_int_equal(qn_trainer_save(t, out, NULL), QN_INVALID);
    assert_int_equal(access(temp_path("disk/out/more"), F_OK), 0);
    qn_trainer_close(t);
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- mlx-lm (tests/golden/make_adapters.py) -------------------------------------------------- */

/* The mean of -log p in logits [n, VOCAB]. */
static double loss_in(const float *logits, const int32_t *ids, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        double all = 0;
        for (int k = 0; k < VOCAB; k++)
            all += exp(logits[i * VOCAB + (size_t)k]);
        sum += log(all) - logits[i * VOCAB + (size_t)ids[i + 1]];
    }
    return sum / (double)(n - 1);
}

static void assert_same_tensors(const char *a, const char *b)
{
    qn_tensors *x, *y;
    assert_int_equal(qn_tensors_open(&x, a, NULL), QN_OK);
    assert_int_equal(qn_tensors_open(&y, b, NULL), QN_OK);
    assert_int_equal(qn_tensors_count(x), qn_tensors_count(y));
    for (size_t i = 0; i < qn_tensors_count(x); i++) {
        size_t n, m;
        const qn_tensor_info *t = qn_tensors_get(x, i), *u = qn_tensors_find(y, t->name);
        assert_non_null(u);
        assert_memory_equal(t->shape, u->shape, 2 * sizeof *t->shape);
        void *p = golden_tensor(x, t->name, &n), *q = golden_tensor(y, t->name, &m);
        assert_int_equal(n, m);
        assert_memory_equal(p, q, n * 4);
        free(p);
        free(q);
    }
    qn_tensors_close(x);
    qn_tensors_close(y);
}

/* Its adapter has the loss of its logits; saved as it was it has the same tensors, and as PEFT has
 * it the same loss. */
static void test_mlx(void **state)
{
    static const char *const targets[] = {"self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"};
    size_t n, n_logits;
    char path[600], saved[600];
    qn_error err = {0};
    qn_device *device = open_cpu(state);
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    golden_path(path, sizeof path, "adapters/mlx", NULL);
    qn_tensors *golden = golden_open("adapters/mlx");
    int32_t *ids = golden_tensor(golden, "tokens", &n);
    float *logits = golden_tensor(golden, "logits", &n_logits);
    double want = loss_in(logits, ids, n), loss;
    for (int format = 0; format < QN_ADAPTER_FORMAT_COUNT; format++) {
        qn_trainer_options o = {.size = sizeof o,
                                .rank = 5,
                                .alpha = 8.75,
                                .targets = targets,
                                .n_targets = 3,
                                .num_layers = 2,
                                .adapter = path,
                                .adapter_format = format};
        qn_trainer *t;
        if (qn_trainer_open(&t, model, &o, &err) != QN_OK)
            fail_msg("%s", err.message);
        qn_trainer_loss(t, ids, NULL, 1, (int64_t)n, &loss, &err);
        assert_true(fabs(loss - want) <= 1e-6 * want);
        snprintf(saved, sizeof saved, "%s", temp_path(format ? "as-mlx" : "as-peft"));
        assert_int_equal(qn_trainer_save(t, saved, &err), QN_OK);
        qn_trainer_close(t);
        o.adapter = saved;
        if (qn_trainer_open(&t, model, &o, &err) != QN_OK)
            fail_msg("%s", err.message);
        qn_trainer_loss(t, ids, NULL, 1, (int64_t)n, &want, &err);
        assert_true(loss == want);
        qn_trainer_close(t);
    }
    snprintf(path, sizeof path, "%s/adapters.safetensors", saved);
    golden_path(saved, sizeof saved, "adapters/mlx", "adapters.safetensors");
    assert_same_tensors(saved, path);
    free(ids);
    free(logits);
    qn_tensors_close(golden);
    qn_model_close(model);
    qn_device_close(device);
}

/* A number that is none, at the end of an adapter's file. */
static void test_not_finite(void **state)
{
    static const float none = NAN;
    char path[600], *data;
    size_t n;
    qn_error err = {0};
    qn_trainer *t;
    qn_device *device = open_cpu(state);
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    temp_mkdir("nan");
    golden_path(path, sizeof path, "adapters/mlx", "adapter_config.json");
    golden_config(path, temp_path("nan/adapter_config.json"), false);
    golden_path(path, sizeof path, "adapters/mlx", "adapters.safetensors");
    assert_int_equal(qn__file_read(path, 1 << 20, &data, &n, NULL), QN_OK);
    memcpy(data + n - sizeof none, &none, sizeof none);
    temp_write("nan/adapters.safetensors", data, n);
    free(data);
    const qn_trainer_options o = {.size = sizeof o,
                                  .rank = 5,
                                  .alpha = 8.75,
                                  .num_layers = 2,
                                  .targets = (const char *const[]){"q_proj", "v_proj", "up_proj"},
                                  .n_targets = 3,
                                  .adapter = temp_path("nan")};
    assert_int_equal(qn_trainer_open(&t, model, &o, &err), QN_FORMAT);
    assert_non_null(strstr(err.message, "numbers that are not finite"));
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* Adapters that training cannot go on from. */
static void test_other_adapters(void **state)
{
    static const struct {
        const char *adapter;
        int64_t rank;
        double alpha;
        qn_status status;
        const char *part;
    } cases[] = {{"adapters/peft", 4, 8, QN_INVALID, "another scale"},
                 {"adapters/rslora", 6, 5, QN_INVALID, "another scale"},
                 {"training/llama", 8, 12, QN_INVALID, "training is of rank 8"},
                 {"training/llama", 4, 11, QN_INVALID, "training is of rank 4, alpha 11"},
                 {"training/llama", 4, 12, QN_INVALID, "there is no"},
                 {"training/qwen2", 2, 3, QN_INVALID, "there is no"},
                 {"adapters/mlx", 4, 8, QN_INVALID, "rank 5, scale 1.75; training is of rank 4"},
                 {"adapters/mlx", 5, 8, QN_INVALID, "and scale 1.6 (alpha 8 / rank)"},
                 {"adapters/mlx", 5, 8.75, QN_INVALID, "there is no model.layers.0."},
                 {"adapters", 4, 8, QN_NOT_FOUND, "adapter_config.json"}};
    qn_device *device = open_cpu(state);
    qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[600];
        qn_error err = {0};
        qn_trainer *t;
        golden_path(path, sizeof path, cases[i].adapter, NULL);
        qn_trainer_options o = {
            .size = sizeof o, .rank = cases[i].rank, .alpha = cases[i].alpha, .adapter = path};
        qn_status status = qn_trainer_open(&t, model, &o, &err);
        if (status != cases[i].status || !strstr(err.message, cases[i].part))
            fail_msg("case %zu: %d, %s", i, status, err.message);
        assert_null(t);
    }
    qn_trainer_options few = {.size = sizeof few,
                              .rank = 4,
                              .alpha = 12,
                              .targets = (const char *const[]){"q_proj"},
                              .n_targets = 1};
    char path[600];
    qn_trainer *t;
    golden_path(path, sizeof path, "training/llama", NULL);
    few.adapter = path;
    qn_error err = {0};
    assert_int_equal(qn_trainer_open(&t, model, &few, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "other layers"));
    golden_path(path, sizeof path, "adapters/mlx", NULL);
    few.rank = 5;
    few.alpha = 8.75;
    few.num_layers = 2;
    memset(&err, 0, sizeof err);
    assert_int_equal(qn_trainer_open(&t, model, &few, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "other layers"));
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* Every allocation of a run fails once: it is reported, or was not needed. A step that failed
 * before it ran can be taken again. */
static void test_no_memory(void **state)
{
    (void)state;
    double want = 0;
    for (long n = -1;; n++) {
        qn_device *device = open_cpu_threads(1);
        qn_model *model = open_plain(device, NULL, QN_PRODUCTS_F32);
        qn_trainer_options o = quick;
        o.targets = (const char *const[]){"v_proj"};
        o.n_targets = 1;
        qn_trainer *t = NULL;
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = qn_trainer_open(&t, model, &o, &err);
        if (status == QN_OK)
            status = qn_trainer_step(t, tokens, NULL, ROWS, LENGTH, NULL, &err);
        bool failed = fail_allocation_end();
        assert_true(status == QN_OK || (status == QN_MEMORY && failed && err.message[0]));
        if (t && status != QN_OK)
            status = qn_trainer_step(t, tokens, NULL, ROWS, LENGTH, NULL, NULL);
        if (t && status == QN_OK) {
            want = n < 0 ? loss_of(t) : want;
            assert_true(loss_of(t) == want);
        }
        assert_true(!t || status == QN_OK || status == QN_STATE);
        qn_trainer_close(t);
        qn_model_close(model);
        assert_int_equal(memory_of(device).active, 0);
        qn_device_close(device);
        if (!failed && n >= 0)
            break;
    }
}

int main(void)
{
    draw_tokens();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saved),
        cmocka_unit_test(test_drawn),
        cmocka_unit_test(test_quantised),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_other_adapters),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_mlx),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
