/* SPDX-License-Identifier: Apache-2.0
 *
 * Training that keeps less of each layer for its gradients: the same losses to the bit, in less
 * memory; and without being asked it keeps what products give, no more.
 */
#include "test.h"

#include "quern/train.h"

enum { LENGTH = 400, STEPS = 3, MOST = 26 << 20 };

/* Losses of steps on the demo model, and the memory they took beyond what was there before. */
static size_t train(void **state, bool checkpoint, double losses[STEPS])
{
    static int32_t tokens[LENGTH];
    char path[600];
    qn_device *device = open_cpu(state);
    qn_model *model;
    qn_trainer *t;
    qn_error err = {0};
    qn_memory_stats stats = QN_INIT(qn_memory_stats);
    qn_trainer_options o = {.size = sizeof o, .learning_rate = 1e-3, .checkpoint = checkpoint};
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    if (qn_model_open(&model, device, path, NULL, &err) != QN_OK ||
        qn_trainer_open(&t, model, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = 5 + i * i % 600;
    qn_device_memory(device, &stats);
    size_t before = stats.active;
    for (int i = 0; i < STEPS; i++)
        if (qn_trainer_step(t, tokens, NULL, 1, LENGTH, &losses[i], &err) != QN_OK)
            fail_msg("%s", err.message);
    qn_device_memory(device, &stats);
    qn_trainer_close(t);
    qn_model_close(model);
    qn_device_close(device);
    return stats.peak - before;
}

static void test_same(void **state)
{
    double want[STEPS], got[STEPS];
    size_t all = train(state, false, want), less = train(state, true, got);
    for (int i = 0; i < STEPS; i++)
        assert_true(got[i] == want[i]);
    if (less > all * 7 / 10 || all > MOST)
        fail_msg("%zu bytes with checkpoints, %zu without", less, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
