/* SPDX-License-Identifier: Apache-2.0
 *
 * Training an adapter: twenty losses are those of PyTorch and PEFT
 * (tests/golden/make_training.py), the same to the bit with two threads; steps make no new plans,
 * copy nothing and leave memory as it was; what is saved is what was trained.
 */
#include "models/golden_model.h"

#include <math.h>
#include <string.h>

enum { STEPS = 20, BATCHES = 4, ROWS = 3, LENGTH = 32, TOKENS = ROWS * LENGTH };
enum { RATE, BETA1, BETA2, EPS, DECAY, CLIP, ALPHA, N_SETTINGS };

static const char *const all_targets[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                          "gate_proj", "up_proj", "down_proj"};
static const char *const some_targets[] = {"down_proj", "q_proj", "v_proj"};
static const char *const other_targets[] = {"k_proj", "o_proj", "gate_proj", "up_proj"};

/* One of tests/golden/training. */
typedef struct run_spec {
    const char *name, *base;
    int64_t rank;
    const char *const *targets;
    size_t n_targets;
} run_spec;

static const run_spec runs[] = {{"training/llama", "llama/plain", 4, some_targets, 3},
                                {"training/qwen2", "qwen2/plain", 2, all_targets, 7},
                                {"training/gemma3", "gemma3/text", 3, other_targets, 4}};

typedef struct data {
    int32_t *tokens;
    uint8_t *mask;
    double *losses, *settings;
} data;

static data read_data(const run_spec *r)
{
    size_t n;
    qn_tensors *file = golden_open(r->name);
    data d = {golden_tensor(file, "tokens", &n), golden_tensor(file, "mask", &n),
              golden_tensor(file, "losses", &n), golden_tensor(file, "settings", &n)};
    assert_int_equal(n, 2 * N_SETTINGS);
    qn_tensors_close(file);
    return d;
}

static void free_data(data *d)
{
    free(d->tokens);
    free(d->mask);
    free(d->losses);
    free(d->settings);
}

static qn_model *open_base(qn_device *device, const char *base, const qn_adapter *adapter)
{
    char path[600];
    qn_error err = {0};
    qn_model *model;
    qn_model_options o = {.size = sizeof o,
                          .no_tokenizer = true,
                          .products = QN_PRODUCTS_F32,
                          .adapters = adapter,
                          .n_adapters = adapter != NULL};
    golden_directory(path, sizeof path, base);
    if (qn_model_open(&model, device, path, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return model;
}

static qn_trainer *open_trainer(qn_model *model, const run_spec *r, const data *d)
{
    static char path[600];
    qn_error err = {0};
    qn_trainer *t;
    golden_path(path, sizeof path, r->name, NULL);
    qn_trainer_options o = {.size = sizeof o,
                            .rank = r->rank,
                            .alpha = d->settings[ALPHA],
                            .targets = r->targets,
                            .n_targets = r->n_targets,
                            .learning_rate = d->settings[RATE],
                            .beta1 = d->settings[BETA1],
                            .beta2 = d->settings[BETA2],
                            .eps = d->settings[EPS],
                            .weight_decay = d->settings[DECAY],
                            .clip = d->settings[CLIP],
                            .adapter = path};
    if (qn_trainer_open(&t, model, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static double take_step(qn_trainer *t, const data *d, int i)
{
    qn_error err = {0};
    double loss;
    size_t at = (size_t)(i % BATCHES) * TOKENS;
    if (qn_trainer_step(t, d->tokens + at, d->mask + at, ROWS, LENGTH, &loss, &err) != QN_OK)
        fail_msg("step %d: %s", i, err.message);
    return loss;
}

/* All steps of a run; with no model left open, no byte is in use afterwards. */
static void train(const run_spec *r, int threads, double losses[STEPS])
{
    qn_device *device = open_cpu_threads(threads);
    qn_model *model = open_base(device, r->base, NULL);
    data d = read_data(r);
    qn_trainer *t = open_trainer(model, r, &d);
    qn_model_close(model);
    for (int i = 0; i < STEPS; i++)
        losses[i] = take_step(t, &d, i);
    assert_int_equal(qn_trainer_steps(t), STEPS);
    qn_trainer_close(t);
    free_data(&d);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void test_losses(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        double one[STEPS], two[STEPS];
        data d = read_data(&runs[k]);
        train(&runs[k], 1, one);
        train(&runs[k], 2, two);
        double worst = 0;
        for (int i = 0; i < STEPS; i++) {
            double e = fabs(one[i] - d.losses[i]) / d.losses[i];
            worst = e > worst ? e : worst;
            if (!(e <= 1e-4))
                fail_msg("%s, step %d: %.7f, PyTorch %.7f", runs[k].name, i, one[i], d.losses[i]);
        }
        assert_memory_equal(one, two, sizeof one);
        print_message("%s: relative error %.1e\n", runs[k].name, worst);
        free_data(&d);
    }
}

static void test_memory(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, runs[1].base, NULL);
    data d = read_data(&runs[1]);
    qn_trainer *t = open_trainer(model, &runs[1], &d);
    qn_error err = {0};
    take_step(t, &d, 0);
    take_step(t, &d, 1);
    qn_memory_stats memory = memory_of(device);
    qn_plan_stats plans = plans_of(device);
    for (int i = 2; i < STEPS; i++) {
        assert_int_equal(qn_trainer_set_learning_rate(t, 1e-2 / i, &err), QN_OK);
        take_step(t, &d, i);
        assert_int_equal(memory_of(device).active, memory.active);
        assert_int_equal(memory_of(device).workspace, memory.workspace);
        assert_int_equal(plans_of(device).misses, plans.misses);
        assert_int_equal(plans_of(device).donation_copies, 0);
    }
    assert_int_equal(memory_of(device).peak, memory.peak);
    qn_trainer_close(t);
    qn_model_close(model);
    free_data(&d);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
