/* SPDX-License-Identifier: Apache-2.0
 *
 * The same model from every kind of file that weights come in (weights/, by make_weights.py): the
 * logits are those of its safetensors, bit for bit. That these are right is for the golden tests.
 */
#include "../test.h"
#include "../base/temp_dir.h"

#include <string.h>
#include <unistd.h>

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
    static const char *const kinds[] = {"bin", "sharded", "npz", "meta", "meta-npz"};
    float want[VOCAB], got[VOCAB];
    qn_device *device = open_device(NULL);
    run_model(device, "safetensors", want);
    assert_true(want[0] != want[1]);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        run_model(device, kinds[i], got);
        assert_memory_equal(got, want, sizeof want);
    }
    qn_device_close(device);
}

static void copy_file(const char *from, const char *to)
{
    static char data[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    size_t n = fread(data, 1, sizeof data, in);
    assert_true(n > 0 && n < sizeof data);
    assert_int_equal(fwrite(data, 1, n, out), n);
    fclose(in);
    fclose(out);
}

/* What params.json may not say, and weights that do not fit it. */
static void test_bad_params(void **state)
{
    (void)state;
    skip_without_libzip();
    static const struct {
        const char *params, *part;
    } cases[] = {
        {"{\"dim\": 32, \"n_layers\": 1}", "n_heads"},
        {"{\"dim\": 0, \"n_layers\": 1, \"n_heads\": 2}", "dim: expected"},
        {"{\"dim\": 64, \"n_layers\": 1, \"n_heads\": 2, \"n_kv_heads\": 1}", "has shape [64, 32]"},
        {"{\"dim\": 32, \"n_layers\": 2, \"n_heads\": 2, \"n_kv_heads\": 1}", "layers.1."},
        {"{\"dim\": 32, \"n_layers\": 1, \"n_heads\": 2, \"moe\": {\"num_experts\": 8}}", "moe"},
        {"{\"dim\": 32, \"n_layers\": 1, \"n_heads\": 2, \"norm_eps\": \"x\"}", "norm_eps"}};
    char from[600];
    qn_device *device = open_device(NULL);
    snprintf(from, sizeof from, "%s/tests/models/weights/meta/consolidated.00.pth",
             getenv("QUERN_SOURCE"));
    copy_file(from, temp_path("consolidated.00.pth"));
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
        bool several = i == sizeof cases / sizeof *cases;
        const char *part = several ? "is one of several" : cases[i].part;
        qn_model *model = NULL;
        qn_error err = {0};
        if (several)
            copy_file(from, temp_path("consolidated.01.pth"));
        else
            temp_write("params.json", cases[i].params, strlen(cases[i].params));
        assert_int_not_equal(qn_model_open(&model, device, temp_root, NULL, &err), QN_OK);
        if (!strstr(err.message, part))
            fail_msg("\"%s\" lacks \"%s\"", err.message, part);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_kind),
                                       cmocka_unit_test(test_bad_params)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
