/* SPDX-License-Identifier: Apache-2.0
 *
 * Training all weights of a model: twenty losses of each family are PyTorch's, as are the weights
 * then, by their squares (tests/golden/make_full.py), of some the same to the bit with two threads;
 * what is saved is a model of these weights; going on from a checkpoint gives the same bytes;
 * models that cannot be trained so are refused, by what they are.
 */
#include "train/training_test.h"

#include "base/file.h"
#include "quern/quern.h"

#include <math.h>
#include <string.h>

enum { STEPS = 20, BATCHES = 4, ROWS = 3, LENGTH = 32, TOKENS = ROWS * LENGTH, BREAK = 3 };
enum { RATE, BETA1, BETA2, EPS, DECAY, CLIP, WARMUP, SCHEDULE, N_SETTINGS };

static const char *const bases[] = {"llama/plain", "llama/biased",   "llama/llama3-tied",
                                    "qwen2/plain", "qwen3/plain",    "gemma2/plain",
                                    "gemma3/text", "mistral/window", "smollm3/plain"};

static data read_data(const char *base)
{
    char name[80], path[600];
    qn_tensors *file = NULL;
    snprintf(name, sizeof name, "%s.safetensors", base);
    *strchr(name, '/') = '-';
    golden_path(path, sizeof path, "full", name);
    assert_int_equal(qn_tensors_open(&file, path, NULL), QN_OK);
    return take_data(file, "sums", N_SETTINGS);
}

static qn_trainer_options options_of(const data *d)
{
    return (qn_trainer_options){.size = sizeof(qn_trainer_options),
                                .full = true,
                                .learning_rate = d->settings[RATE],
                                .beta1 = d->settings[BETA1],
                                .beta2 = d->settings[BETA2],
                                .eps = d->settings[EPS],
                                .weight_decay = d->settings[DECAY],
                                .clip = d->settings[CLIP]};
}

static double take_step(qn_trainer *t, const data *d, int i)
{
    const qn_schedule schedule = {sizeof schedule,
                                  QN_SCHEDULE_COSINE,
                                  d->settings[RATE],
                                  0,
                                  (int64_t)d->settings[WARMUP],
                                  (int64_t)d->settings[SCHEDULE]};
    qn_error err = {0};
    qn_batch parts[2];
    double loss = 0;
    for (int k = 0; k < 2; k++) {
        size_t at = (size_t)((2 * i + k) % BATCHES) * TOKENS;
        parts[k] = (qn_batch){
            .tokens = d->tokens + at, .mask = d->mask + at, .rows = ROWS, .length = LENGTH};
    }
    if (qn_trainer_set_learning_rate(t, qn_schedule_rate(&schedule, i), &err) != QN_OK ||
        qn_trainer_step_batches(t, parts, 2, &loss, &err) != QN_OK)
        fail_msg("step %d: %s", i, err.message);
    return loss;
}

/* The sum of the squares of all tensors of a file. */
static double sum_of(const char *path)
{
    double sum = 0;
    qn_tensors *file = NULL;
    assert_int_equal(qn_tensors_open(&file, path, NULL), QN_OK);
    for (size_t i = 0; i < qn_tensors_count(file); i++) {
        size_t n;
        float *values = golden_tensor(file, qn_tensors_get(file, i)->name, &n);
        for (size_t k = 0; k < n; k++)
            sum += (double)values[k] * (double)values[k];
        free(values);
    }
    qn_tensors_close(file);
    return sum;
}

static void save(qn_trainer *t, const char *directory)
{
    qn_error err = {0};
    if (qn_trainer_save_state(t, directory, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
}

/* All steps; what is saved after the last is a model whose loss is that of the trainer. */
static double train(const char *base, int threads, double losses[STEPS])
{
    qn_device *device = open_cpu_threads(threads);
    qn_model *model = open_base(device, base, NULL);
    data d = read_data(base);
    qn_trainer_options o = options_of(&d);
    qn_trainer *t = open_trainer(model, &o);
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    assert_int_equal(qn_trainer_parameters(t), info.parameters);
    qn_model_close(model);
    for (int i = 0; i < STEPS; i++)
        losses[i] = take_step(t, &d, i);
    double want = 0, got = 0;
    qn_error err = {0};
    assert_int_equal(qn_trainer_loss(t, d.tokens, d.mask, ROWS, LENGTH, &want, &err), QN_OK);
    if (qn_trainer_save(t, temp_path("model"), &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_trainer_close(t);
    model = open_exact(device, temp_path("model"), NULL);
    t = open_trainer(model, &o);
    assert_int_equal(qn_trainer_loss(t, d.tokens, d.mask, ROWS, LENGTH, &got, &err), QN_OK);
    if (!(fabs(want - got) <= 1e-6 * want))
        fail_msg("%s: %.8f as trained, %.8f as saved", base, want, got);
    qn_trainer_close(t);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    free_data(&d);
    qn_device_close(device);
    return sum_of(temp_path("model/model.safetensors"));
}

static void test_losses(void **state)
{
    (void)state;
    for (size_t k = FEWER ? 2 : 0; k < sizeof bases / sizeof *bases; k += FEWER ? 4 : 1) {
        double one[STEPS], two[STEPS], worst = 0;
        data d = read_data(bases[k]);
        double sum = train(bases[k], 1, one);
        if (k % 4 == 2) {
            assert_true(sum == train(bases[k], 2, two));
            assert_memory_equal(one, two, sizeof one);
        }
        for (int i = 0; i < STEPS; i++) {
            double e = fabs(one[i] - d.losses[i]) / d.losses[i];
            worst = e > worst ? e : worst;
            if (!(e <= 1e-4))
                fail_msg("%s, step %d: %.7f, PyTorch %.7f", bases[k], i, one[i], d.losses[i]);
        }
        double last = d.more[STEPS - 1], off = fabs(sum - last) / last;
        if (!(off <= 1e-5))
            fail_msg("%s: squares of the weights %.7f, PyTorch %.7f", bases[k], sum, last);
        print_message("%s: relative error %.1e, of the weights %.1e\n", bases[k], worst, off);
        free_data(&d);
    }
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void assert_same_files(const char *a, const char *b)
{
    static const char *const names[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "trainer.json"};
    for (size_t i = 0; i < 4; i++) {
        char path[2][700], *bytes[2];
        size_t n[2];
        for (int k = 0; k < 2; k++) {
            snprintf(path[k], sizeof path[k], "%s/%s", k ? b : a, names[i]);
            assert_int_equal(qn__file_read(path[k], 1 << 30, &bytes[k], &n[k], NULL), QN_OK);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(bytes[0], bytes[1], n[0]);
        free(bytes[0]);
        free(bytes[1]);
    }
}

/* `path` is a model whose files hold f32, or bf16, of which the masters lie beside. */
static void check_resume(const char *path, const data *d)
{
    qn_device *device = open_cpu_threads(1);
    qn_model *model = open_exact(device, path, NULL);
    qn_trainer_options o = options_of(d);
    qn_trainer *t = open_trainer(model, &o);
    for (int i = 0; i < 2 * BREAK; i++) {
        if (i == BREAK)
            save(t, temp_path("half"));
        take_step(t, d, i);
    }
    save(t, temp_path("whole"));
    qn_trainer_close(t);
    qn_model_close(model);
    qn_device_close(device);
    device = open_cpu_threads(3);
    model = open_exact(device, path, NULL);
    o.resume = temp_path("half");
    t = open_trainer(model, &o);
    assert_int_equal(qn_trainer_steps(t), BREAK);
    save(t, temp_path("again"));
    assert_same_files(temp_path("half"), temp_path("again"));
    for (int i = BREAK; i < 2 * BREAK; i++)
        take_step(t, d, i);
    save(t, temp_path("half"));
    assert_same_files(temp_path("half"), temp_path("whole"));
    qn_trainer_close(t);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void test_resume(void **state)
{
    (void)state;
    char path[600];
    data d = read_data("gemma3/text");
    golden_directory(path, sizeof path, "gemma3/text");
    check_resume(path, &d);
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    if (!FEWER)
        check_resume(path, &d);
    free_data(&d);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refuse(qn_model *model, const qn_trainer_options *o, qn_status status, const char *part)
{
    qn_error err = {0};
    qn_trainer *t;
    assert_int_equal(qn_trainer_open(&t, model, o, &err), status);
    assert_null(t);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" has no \"%s\"", err.message, part);
}

static void test_refused(void **state)
{
    static const struct {
        const char *base, *part;
    } models[] = {{"mlx/affine4-bf16", "is affine4-g64-bf16; train an adapter"},
                  {"packed/gptq4-act", "full training is of dense weights"},
                  {"bitnet/online", "is i2_s; train"},
                  {"gemma3/images", "text_config: full training is of models of text alone"}};
    static const char *const targets[] = {"q_proj"};
    const qn_trainer_options full = {.size = sizeof full, .full = true};
    qn_device *device = open_cpu(state);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        qn_model *model = open_base(device, models[i].base, NULL);
        refuse(model, &full, QN_UNSUPPORTED, models[i].part);
        qn_model_close(model);
    }
    char gguf[600];
    golden_path(gguf, sizeof gguf, "gguf", "qwen3.gguf");
    qn_model *model = open_exact(device, gguf, NULL);
    refuse(model, &full, QN_UNSUPPORTED, "full training");
    qn_model_close(model);
    model = open_base(device, "llama/plain", NULL);
    const struct {
        qn_trainer_options change;
        const char *part;
    } cases[] = {{{.rank = 4}, "rank is of adapters"},
                 {{.alpha = 4}, "alpha is of adapters"},
                 {{.targets = targets, .n_targets = 1}, "targets is of adapters"},
                 {{.adapter = "x"}, "adapter is of adapters"},
                 {{.num_layers = 1}, "num_layers is of adapters"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_trainer_options o = cases[i].change;
        o.size = sizeof o;
        o.full = true;
        refuse(model, &o, QN_INVALID, cases[i].part);
    }
    /* An adapter's checkpoint is not gone on from as a model, nor a model's as an adapter. */
    qn_trainer_options o = {.size = sizeof o};
    for (int i = 0; i < 2; i++) {
        o = (qn_trainer_options){.size = sizeof o, .full = i == 1};
        qn_trainer *t = open_trainer(model, &o);
        save(t, temp_path("kind"));
        qn_trainer_close(t);
        o.full = !o.full;
        o.resume = temp_path("kind");
        refuse(model, &o, QN_STATE, "that is another training");
    }
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- from nothing ---------------------------------------------------------------------------- */

static const char initial_config[] =
    "{\"model_type\":\"gemma2\",\"hidden_size\":128,\"intermediate_size\":256,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"
    "\"vocab_size\":500,\"max_position_embeddings\":128,\"initializer_range\":0.05,"
    "\"pad_token_id\":7,\"hidden_activation\":\"gelu_pytorch_tanh\"}";

static qn_model *open_initial(qn_device *device, const char *path, uint64_t seed)
{
    qn_error err = {0};
    qn_model *model;
    const qn_model_options o = {.size = sizeof o, .no_tokenizer = true};
    if (qn_model_open_initial(&model, device, path, seed, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return model;
}

/* Saves what a model begins with; the file's values of a tensor are the caller's. */
static void save_initial(qn_device *device, const char *path, uint64_t seed, const char *to)
{
    qn_model *model = open_initial(device, path, seed);
    const qn_trainer_options o = {.size = sizeof o, .full = true};
    qn_trainer *t = open_trainer(model, &o);
    qn_error err = {0};
    if (qn_trainer_save(t, to, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_trainer_close(t);
    qn_model_close(model);
}

/* Mean, deviation and fourth moment are those of a normal distribution, within four times what n
 * draws of it have. */
static void check_normal(const char *name, const float *x, size_t n, double deviation)
{
    double mean = 0, second = 0, fourth = 0, root = sqrt((double)n);
    for (size_t i = 0; i < n; i++) {
        double v = (double)x[i] / deviation;
        mean += v / (double)n;
        second += v * v / (double)n;
        fourth += v * v * v * v / (double)n;
    }
    if (fabs(mean) > 4 / root || fabs(second - 1) > 4 * sqrt(2) / root ||
        fabs(fourth - 3) > 4 * sqrt(96) / root)
        fail_msg("%s: moments %g, %g, %g", name, mean, second, fourth);
}

static void test_initial(void **state)
{
    qn_device *device = open_cpu(state);
    const char *path = temp_write("gemma.json", initial_config, strlen(initial_config));
    char from[700];
    snprintf(from, sizeof from, "%s", path);
    save_initial(device, from, 3, temp_path("first"));
    save_initial(device, from, 3, temp_path("second"));
    save_initial(device, from, 4, temp_path("third"));
    char *files[3];
    size_t sizes[3], n;
    static const char *const names[] = {"first/model.safetensors", "second/model.safetensors",
                                        "third/model.safetensors"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(qn__file_read(temp_path(names[i]), 1 << 30, &files[i], &sizes[i], NULL),
                         QN_OK);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(files[0], files[1], sizes[0]);
    assert_true(sizes[0] == sizes[2] && memcmp(files[0], files[2], sizes[0]) != 0);
    for (int i = 0; i < 3; i++)
        free(files[i]);
    qn_tensors *file;
    assert_int_equal(qn_tensors_open(&file, temp_path(names[0]), NULL), QN_OK);
    for (size_t i = 0; i < qn_tensors_count(file); i++) {
        const qn_tensor_info *info = qn_tensors_get(file, i);
        float *values = golden_tensor(file, info->name, &n);
        bool embedding = strstr(info->name, "embed_tokens") != NULL;
        for (size_t k = 0; k < n && (embedding || info->ndim == 1); k++) {
            bool zero = info->ndim == 1 || k / 128 == 7; /* Gemma's norms are 1 + 0 */
            assert_int_equal(values[k] == 0, zero);
        }
        if (info->ndim == 2)
            check_normal(info->name, values, embedding ? 7 * 128 : n, 0.05);
        free(values);
    }
    qn_tensors_close(file);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_losses), cmocka_unit_test(test_resume),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_initial)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
