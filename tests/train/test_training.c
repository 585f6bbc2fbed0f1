/* SPDX-License-Identifier: Apache-2.0
 *
 * Training an adapter: twenty losses are those of PyTorch and PEFT
 * (tests/golden/make_training.py), the same to the bit with two threads; steps make no new plans,
 * copy nothing and leave memory as it was; what is saved is what was trained.
 */
#include "train/training_test.h"

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
                                {"training/gemma3", "gemma3/text", 3, other_targets, 4},
                                {"training/gemma2", "gemma2/plain", 2, all_targets, 7},
                                {"training/mistral", "mistral/window", 2, all_targets, 7},
                                {"training/qwen3", "qwen3/plain", 2, all_targets, 7},
                                {"training/smollm3", "smollm3/plain", 2, all_targets, 7}};

static data read_data(const run_spec *r)
{
    return take_data(golden_open(r->name), NULL, N_SETTINGS);
}

static qn_trainer_options options_of(const run_spec *r, const data *d)
{
    static char path[600];
    golden_path(path, sizeof path, r->name, NULL);
    return (qn_trainer_options){.size = sizeof(qn_trainer_options),
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
}

static qn_trainer *open_run(qn_model *model, const run_spec *r, const data *d)
{
    qn_trainer_options o = options_of(r, d);
    return open_trainer(model, &o);
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
    qn_trainer *t = open_run(model, r, &d);
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
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k += FEWER ? 3 : 1) {
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
    qn_trainer *t = open_run(model, &runs[1], &d);
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

/* Matrices and moments in bf16: the loss at the end is within 1 % of f32's, with two threads the
 * same. */
static void test_bf16(void **state)
{
    (void)state;
    double last[2];
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k += FEWER ? 3 : 1) {
        data d = read_data(&runs[k]);
        for (int threads = 1; threads <= 2; threads++) {
            qn_device *device = open_cpu_threads(threads);
            qn_model *model = open_base(device, runs[k].base, NULL);
            qn_trainer_options o = options_of(&runs[k], &d);
            o.adapter_bf16 = o.moments_bf16 = true;
            qn_trainer *t = open_trainer(model, &o);
            size_t active = memory_of(device).active;
            take_step(t, &d, 0);
            assert_true(memory_of(device).active <= active + (1 << 10)); /* it is held in no more */
            qn_trainer_close(t);
            t = open_trainer(model, &o);
            for (int i = 0; i < STEPS; i++)
                last[threads - 1] = take_step(t, &d, i);
            qn_plan_stats plans = plans_of(device);
            take_step(t, &d, STEPS);
            assert_int_equal(plans_of(device).misses, plans.misses);
            assert_int_equal(plans_of(device).donation_copies, 0);
            qn_trainer_close(t);
            qn_model_close(model);
            assert_int_equal(memory_of(device).active, 0);
            qn_device_close(device);
        }
        double e = fabs(last[0] - d.losses[STEPS - 1]) / d.losses[STEPS - 1];
        print_message("%s in bf16: the last loss is off by %.2e\n", runs[k].name, e);
        assert_true(e <= 1e-2 && e > 1e-7); /* it was rounded */
        assert_true(last[0] == last[1]);
        free_data(&d);
    }
}

/* What is dropped: another part in each step and each batch of one, nothing of a loss alone. */
static void test_dropout(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, runs[1].base, NULL);
    data d = read_data(&runs[1]);
    qn_trainer_options o = options_of(&runs[1], &d);
    o.learning_rate = 1e-12;
    qn_trainer *plain = open_trainer(model, &o);
    o.dropout = 0.5;
    qn_trainer *t = open_trainer(model, &o), *same = open_trainer(model, &o);
    o.seed = 9;
    qn_trainer *other = open_trainer(model, &o);
    qn_batch twice[2] = {{.tokens = d.tokens, .mask = d.mask, .rows = ROWS, .length = LENGTH}};
    qn_error err = {0};
    double a, b, both;
    twice[1] = twice[0];
    assert_int_equal(qn_trainer_loss(plain, d.tokens, d.mask, ROWS, LENGTH, &a, &err), QN_OK);
    assert_int_equal(qn_trainer_loss(t, d.tokens, d.mask, ROWS, LENGTH, &b, &err), QN_OK);
    assert_true(a == b);
    double first = take_step(t, &d, 0);
    assert_true(first != a && first != take_step(other, &d, 0));
    assert_int_equal(qn_trainer_step_batches(same, twice, 2, &both, &err), QN_OK);
    assert_true(both != first); /* of which the first half is */
    assert_true(fabs(take_step(t, &d, BATCHES) - first) > 1e-6);
    qn_trainer_close(plain);
    qn_trainer_close(t);
    qn_trainer_close(same);
    qn_trainer_close(other);
    free_data(&d);
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- tests/golden/make_optimizers.py --------------------------------------------------------- */

static double *golden_numbers(const char *name, const char *part, size_t want)
{
    char key[60];
    size_t n;
    snprintf(key, sizeof key, "%s.%s", name, part);
    qn_tensors *file = NULL;
    char path[600];
    golden_path(path, sizeof path, "training", "optimizers.safetensors");
    assert_int_equal(qn_tensors_open(&file, path, NULL), QN_OK);
    double *values = golden_tensor(file, key, &n);
    assert_int_equal(n, 2 * want);
    qn_tensors_close(file);
    return values;
}

/* A trainer of training/llama with other numbers. */
static qn_trainer *open_other(qn_model *model, const double *o, qn_optimizer kind)
{
    static char path[600];
    qn_error err = {0};
    qn_trainer *t;
    golden_path(path, sizeof path, runs[0].name, NULL);
    qn_trainer_options options = {.size = sizeof options,
                                  .rank = runs[0].rank,
                                  .alpha = 12,
                                  .targets = runs[0].targets,
                                  .n_targets = runs[0].n_targets,
                                  .learning_rate = o[0],
                                  .beta1 = o[1] > 0 ? o[1] : -1,
                                  .beta2 = o[2],
                                  .eps = o[3],
                                  .weight_decay = o[4],
                                  .adapter = path,
                                  .optimizer = kind};
    if (qn_trainer_open(&t, model, &options, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static void test_optimizers(void **state)
{
    static const struct {
        const char *name;
        qn_optimizer kind;
        double tolerance; /* Lion takes signs: of a gradient near 0 rounding decides */
    } all[] = {{"adam", QN_OPTIMIZER_ADAM, 1e-4},
               {"sgd", QN_OPTIMIZER_SGD, 1e-4},
               {"plain", QN_OPTIMIZER_SGD, 1e-4},
               {"lion", QN_OPTIMIZER_LION, 1e-3}};
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, runs[0].base, NULL);
    data d = read_data(&runs[0]);
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        double *settings = golden_numbers(all[k].name, "settings", 5), worst = 0;
        double *losses = golden_numbers(all[k].name, "losses", STEPS);
        qn_trainer *t = open_other(model, settings, all[k].kind);
        for (int i = 0; i < STEPS; i++) {
            double loss = take_step(t, &d, i), e = fabs(loss - losses[i]) / losses[i];
            worst = e > worst ? e : worst;
            if (!(e <= all[k].tolerance))
                fail_msg("%s, step %d: %.7f, PyTorch %.7f", all[k].name, i, loss, losses[i]);
        }
        print_message("%s: relative error %.1e\n", all[k].name, worst);
        qn_trainer_close(t);
        free(settings);
        free(losses);
    }
    free_data(&d);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* A step on two batches is one on all their rows; rows of the second do not count alike. */
static void test_accumulation(void **state)
{
    static const double settings[] = {1e-2, 0.9, 0.999, 1e-8, 0.01};
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, runs[0].base, NULL);
    data d = read_data(&runs[0]);
    double *losses = golden_numbers("pairs", "losses", STEPS / 2);
    qn_trainer *t = open_other(model, settings, QN_OPTIMIZER_ADAMW);
    qn_batch parts[2];
    qn_error err = {0};
    for (int i = 0; i < STEPS / 2; i++) {
        double loss;
        for (int k = 0; k < 2; k++) {
            size_t at = (size_t)((2 * i + k) % BATCHES) * TOKENS;
            parts[k] = (qn_batch){
                .tokens = d.tokens + at, .mask = d.mask + at, .rows = ROWS, .length = LENGTH};
        }
        if (qn_trainer_step_batches(t, parts, 2, &loss, &err) != QN_OK)
            fail_msg("%s", err.message);
        if (!(fabs(loss - losses[i]) <= 1e-4 * losses[i]))
            fail_msg("step %d: %.7f, PyTorch %.7f", i, loss, losses[i]);
    }
    assert_int_equal(qn_trainer_steps(t), STEPS / 2);
    /* What fails behind the first batch leaves all as it was. */
    double before = 0, after = 1;
    qn_trainer_loss(t, d.tokens, d.mask, ROWS, LENGTH, &before, &err);
    uint8_t none[TOKENS] = {0};
    parts[1].mask = none;
    assert_int_equal(qn_trainer_step_batches(t, parts, 2, NULL, &err), QN_INVALID);
    assert_int_equal(qn_trainer_step_batches(t, parts, 0, NULL, NULL), QN_INVALID);
    qn_trainer_loss(t, d.tokens, d.mask, ROWS, LENGTH, &after, NULL);
    assert_true(before == after);
    qn_trainer_close(t);
    free(losses);
    free_data(&d);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void test_schedules(void **state)
{
    (void)state;
    enum { RATES = 40 };
    static const struct {
        const char *name;
        qn_schedule_kind kind;
        double end;
    } all[] = {{"constant", QN_SCHEDULE_CONSTANT, 0},
               {"linear_0", QN_SCHEDULE_LINEAR, 0},
               {"linear", QN_SCHEDULE_LINEAR, 1e-4},
               {"cosine_0", QN_SCHEDULE_COSINE, 0},
               {"cosine", QN_SCHEDULE_COSINE, 1e-4}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        double *rates = golden_numbers("rates", all[k].name, RATES);
        const qn_schedule o = {sizeof o, all[k].kind, 2e-3, all[k].end, 7, 30};
        for (int i = 0; i < RATES; i++)
            if (!(fabs(qn_schedule_rate(&o, i) - rates[i]) <= 1e-15))
                fail_msg("%s, step %d: %g, transformers %g", all[k].name, i,
                         qn_schedule_rate(&o, i), rates[i]);
        free(rates);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers), cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_schedules),  cmocka_unit_test(test_losses),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_dropout),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
