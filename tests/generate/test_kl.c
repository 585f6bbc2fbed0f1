/* SPDX-License-Identifier: Apache-2.0
 *
 * How far bf16 strays: a bf16 model's logits against those of the same weights computed in f32 by
 * transformers (tests/golden/make_kl.py), in nats. They must not be farther than transformers' own
 * bf16.
 *
 *     test_kl DUMP    writes all 2,000 positions' logits for make_kl.py --compare DUMP
 */
#include "generate/model_test.h"

#include "quern/io.h"

#include <math.h>

enum { ROWS = 8, LENGTH = 250, VOCAB = 512 };

static void *golden(const qn_tensors *file, const char *name, size_t *bytes)
{
    const qn_tensor_info *t = qn_tensors_find(file, name);
    qn_error err = {0};
    if (!t)
        fail_msg("golden tensor %s is missing", name);
    void *data = malloc(t->bytes);
    if (qn_tensors_read_bytes(file, t, 0, t->bytes, data, &err) != QN_OK)
        fail_msg("%s", err.message);
    *bytes = t->bytes;
    return data;
}

static qn_tensors *open_golden(void)
{
    char path[600];
    qn_tensors *file;
    qn_error err = {0};
    snprintf(path, sizeof path, "%s/tests/golden/kl/golden.safetensors", getenv("QUERN_SOURCE"));
    if (qn_tensors_open(&file, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return file;
}

/* Logits [8, 250, 512] of all rows in one batch. */
static float *run_all(const char *tier, const int32_t *tokens)
{
    qn_device *device;
    qn_error err = {0};
    qn_device_options o = {.size = sizeof o, .threads = 2, .tier = tier};
    if (qn_device_open(&device, "cpu", &o, NULL) != QN_OK)
        return NULL;
    qn_model *model = open_model(device, "tests/golden/kl", false);
    qn_session *session = open_session(model, 0, ROWS);
    float *logits = malloc(ROWS * LENGTH * VOCAB * sizeof *logits);
    if (qn_session_score(session, tokens, LENGTH, logits, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
    return logits;
}

static double log_sum_exp(const float *x)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < VOCAB; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < VOCAB; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

/* KL(p || q) of two rows of logits. */
static double divergence(const float *p, const float *q)
{
    double zp = log_sum_exp(p), zq = log_sum_exp(q), kl = 0;
    for (int i = 0; i < VOCAB; i++)
        kl += exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
    return kl;
}

static void test_divergence(void **state)
{
    (void)state;
    static const char *const tiers[] = {"ref", "avx2", "avx512", "amx", "neon"};
    size_t bytes;
    qn_tensors *file = open_golden();
    int32_t *tokens = golden(file, "tokens", &bytes), *at = golden(file, "logit_positions", &bytes);
    size_t n = bytes / sizeof *at;
    float *want = golden(file, "logits", &bytes);
    double *bound = golden(file, "hf_bf16_kl", &bytes);
    assert_int_equal(n, 200);
    for (int t = 0; t < 5; t++) {
        float *logits = run_all(tiers[t], tokens);
        if (!logits)
            continue;
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += divergence(want + i * VOCAB, logits + (size_t)at[i] * VOCAB);
        printf("%s: mean KL %.3e, transformers in bf16 %.3e\n", tiers[t], sum / (double)n, *bound);
        assert_true(sum / (double)n <= *bound);
        free(logits);
    }
    free(tokens);
    free(at);
    free(want);
    free(bound);
    qn_tensors_close(file);
}

static int dump(const char *path)
{
    size_t bytes;
    qn_tensors *file = open_golden();
    int32_t *tokens = golden(file, "tokens", &bytes);
    float *logits = run_all(NULL, tokens);
    char header[200];
    uint64_t size = ROWS * LENGTH * VOCAB * sizeof *logits;
    uint64_t length = (uint64_t)snprintf(header, sizeof header,
                                         "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d],"
                                         "\"data_offsets\":[0,%llu]}}",
                                         ROWS, LENGTH, VOCAB, (unsigned long long)size);
    FILE *out = fopen(path, "wb");
    bool ok = out && logits && fwrite(&length, 8, 1, out) == 1 &&
              fwrite(header, length, 1, out) == 1 && fwrite(logits, size, 1, out) == 1;
    ok = out && fclose(out) == 0 && ok;
    free(tokens);
    free(logits);
    qn_tensors_close(file);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return dump(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_divergence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
