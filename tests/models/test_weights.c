/* SPDX-License-Identifier: Apache-2.0
 *
 * The same model from every kind of file that weights come in (weights/, by make_weights.py): the
 * logits are those of its safetensors, bit for bit. That these are right is for the golden tests.
 */
#include "../test.h"
#include <string.h>

enum { VOCAB = 64 };

static void run_model(qn_device *device, const char *kind, float *logits)
{
    char path[600];
    qn_error err = {0};
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_model_options options = {.size = sizeof options, .no_tokenizer = true};
    static const int32_t ids[] = {1, 17, 42, 63, 0, 5};
    snprintf(path, sizeof path, "%s/tests/models/weights/%s", getenv("QUERN_SOURCE"), kind);
    if (qn_model_open(&model, device, path, &options, &err) != QN_OK ||
        qn_session_open(&session, model, NULL, &err) != QN_OK ||
        qn_session_append(session, ids, 6, &err) != QN_OK)
        fail_msg("%s: %s", kind, err.message);
    memcpy(logits, qn_session_logits(session), VOCAB * sizeof *logits);
    qn_session_close(session);
    qn_model_close(model);
}

static void test_every_kind(void **state)
{
    (void)state;
    skip_without_libzip();
    static const char *const kinds[] = {"bin", "sharded", "npz"};
    float want[VOCAB], got[VOCAB];
    qn_device *device = open_cpu(NULL);
    run_model(device, "safetensors", want);
    assert_true(want[0] != want[1]);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        run_model(device, kinds[i], got);
        assert_memory_equal(got, want, sizeof want);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_kind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
