/* SPDX-License-Identifier: Apache-2.0
 *
 * Where small writes go, and that the buffers of steps take turns, with no_driver.c in the place of
 * the driver, which checks what a graph has waited for: what is written beside the last submission
 * is nothing that it looks at, and a step's graph is found again.
 */
#include "no_driver.h"

#include "cuda/cuda.h"
#include "quern/model.h"

#include <dlfcn.h>
#include <stdio.h>

static int n_failed;

static void check(bool ok, const char *what, const char *detail)
{
    n_failed += !ok;
    if (!ok)
        printf("FAILED  %s: %s\n", what, detail);
}

/* The buffer of an array that is gone is the next one's of its size. */
static void check_writes(bool keeps)
{
    enum { RUNS = 8, N = 64 };
    static const int64_t shape[] = {N};
    const int32_t values[N] = {0};
    qn_device *device = NULL;
    qn_error err = {0};
    qn_array *kept[RUNS] = {NULL};
    qn_status status = qn_device_open(&device, "cuda:0", NULL, &err);
    for (int i = 0; status == QN_OK && i < RUNS; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *a = qn_from(s, QN_I32, 1, shape, values), *y = qn_cast(s, a, QN_F32);
        if (keeps)
            kept[i] = qn_retain(a);
        status = qn_eval_async(s, &y, 1);
        check(status == QN_OK, "small writes", qn_scope_error(s));
        qn_scope_end(s);
        if (i >= 2)
            qn_release(kept[i - 2]);
    }
    char text[80];
    uint64_t beside = status == QN_OK ? qn__cuda_stats_get(device).beside : 0;
    snprintf(text, sizeof text, "%d of %d beside the one before", (int)beside, (int)RUNS);
    check(beside == (keeps ? RUNS - 3 : 0), keeps ? "arrays kept" : "arrays gone", text);
    for (int i = RUNS - 2; i < RUNS; i++)
        qn_release(kept[i]);
    qn_device_close(device);
}

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":512,\"intermediate_size\":1024,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
    "\"vocab_size\":512,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-6,"
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}";

/* Greedy steps; all but the first WARM write beside the one before. */
static void run_steps(qn_device *device, qn_session *session, int n, bool captures)
{
    enum { WARM = 3 };
    qn_error err = {0};
    qn__cuda_stats before = qn__cuda_stats_get(device), from = before, after;
    int32_t token = 1;
    bool ran = true;
    for (int i = 0; i < n && ran; i++) {
        if (i == WARM)
            from = qn__cuda_stats_get(device);
        ran = qn_session_step_greedy(session, token, &token, &err) == QN_OK;
    }
    after = qn__cuda_stats_get(device);
    check(ran, "steps", err.message);
    check(after.beside - from.beside == (uint64_t)(n - WARM), "steps", "written for in line");
    check(after.captures == from.captures, "steps", "captured again");
    check(captures || after.captures == before.captures, "steps that ran before", "captured again");
}

static void check_steps(void)
{
    qn_device *device = NULL;
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_error err = {0};
    const qn_session_options o = {.size = sizeof o};
    bool ran = qn_device_open(&device, "cuda:0", NULL, &err) == QN_OK &&
               qn_model_open_random(&model, device, config, strlen(config), "bf16", "bf16", NULL,
                                    &err) == QN_OK &&
               qn_session_open(&session, model, &o, &err) == QN_OK;
    check(ran, "a session", err.message);
    for (int i = 0; ran && i < 8; i++) {
        qn_session_rewind(session, 0);
        run_steps(device, session, 20 + i, i < 3); /* either turn may be the first step's */
    }
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver || !dlsym(driver, "no_driver_state")) {
        printf("skipped: no_driver.c is not in the driver's place\n");
        return 77;
    }
    check_writes(false);
    check_writes(true);
    check_steps();
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
