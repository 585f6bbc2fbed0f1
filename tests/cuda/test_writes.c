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
#include <string.h>

enum { WARM = 3 };

static int n_failed;

static void check(bool ok, const char *what, const char *detail)
{
    n_failed += !ok;
    if (!ok)
        printf("FAILED  %s: %s\n", what, detail);
}

/* The buffer of an array that is gone is the next one's of its size. `large`: each run has a write
 * in line, too, which small ones come behind. */
static void check_writes(bool keeps, bool large)
{
    enum { RUNS = 8, N = 64, LARGE = 2000 };
    static const int64_t shape[] = {N}, large_shape[] = {LARGE};
    static const int32_t values[LARGE];
    qn_device *device = NULL;
    qn_error err = {0};
    qn_array *kept[RUNS] = {NULL};
    qn_status status = qn_device_open(&device, "cuda:0", NULL, &err);
    for (int i = 0; status == QN_OK && i < RUNS; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *first = large ? qn_from(s, QN_I32, 1, large_shape, values) : NULL;
        qn_array *a = qn_from(s, QN_I32, 1, shape, values), *y = qn_cast(s, a, QN_F32);
        qn_array *results[] = {y, large ? qn_cast(s, first, QN_F32) : y};
        if (keeps)
            kept[i] = qn_retain(a);
        status = qn_eval_async(s, results, 1 + large);
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

/* One run of `n` numbers that are i; whether its array, which it gives, has them if it ran. */
static qn_status run_once(qn_device *device, int32_t i, qn_array **kept, bool *right)
{
    enum { N = 64 };
    static const int64_t shape[] = {N};
    int32_t values[N];
    for (int k = 0; k < N; k++)
        values[k] = i;
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn_from(s, QN_I32, 1, shape, values), *y = qn_cast(s, a, QN_F32);
    *kept = qn_retain(a);
    qn_status status = qn_eval_async(s, &y, 1);
    *right = status != QN_OK || !memcmp((*kept)->buffer->data, values, sizeof values);
    qn_scope_end(s);
    return status;
}

/* Where a call of the driver lacks memory, a run fails, or has what was written; so the next ones.
 */
static void check_failures(no_driver *driver)
{
    enum { RUNS = 8, FAILS = 4, CALLS = 16 };
    for (int at = 1; at <= CALLS; at++) {
        qn_device *device = NULL;
        qn_error err = {0};
        qn_array *kept[RUNS] = {NULL};
        char text[80];
        if (qn_device_open(&device, "cuda:0", NULL, &err) != QN_OK)
            check(false, "a device", err.message);
        for (int i = 0; device && i < RUNS; i++) {
            bool right = false;
            driver->result = 2;
            driver->fail_at = i == FAILS ? driver->calls + at : 0;
            qn_status status = run_once(device, i, &kept[i], &right);
            driver->fail_at = 0;
            snprintf(text, sizeof text, "run %d, call %d: %s", i, at, qn_status_text(status));
            check(right && (status == QN_OK || i == FAILS), "a call without memory", text);
            if (i >= 2)
                qn_release(kept[i - 2]);
        }
        driver->result = 0;
        qn_release(kept[RUNS - 2]);
        qn_release(kept[RUNS - 1]);
        qn_device_close(device);
    }
}

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":512,\"intermediate_size\":1024,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
    "\"vocab_size\":512,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-6,"
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}";

/* Greedy steps; all but the first WARM write beside the one before, and find their graphs. */
static void run_steps(qn_device *device, qn_session *session, int n, bool captures)
{
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

/* The same of a generation whose draws look at the token that is being drawn. */
static void run_generation(qn_device *device, qn_session *session, int n)
{
    static const int32_t prompt[] = {3, 5};
    qn_error err = {0};
    qn__cuda_stats from = {0}, after;
    qn_sampling sampling = {.size = sizeof sampling, .repeat_penalty = 1.3f, .repeat_last = 8};
    qn_generation_options o = {
        .size = sizeof o, .max_tokens = n, .ignore_stop = true, .sampling = &sampling};
    qn_generation *g = NULL;
    int32_t token;
    bool ran = qn_generation_begin(&g, session, prompt, 2, &o, &err) == QN_OK;
    for (int i = 0; i < n && ran; i++) {
        if (i == 4 * WARM) /* from here on as many tokens are looked at */
            from = qn__cuda_stats_get(device);
        ran = qn_generation_next(g, &token, &err) == QN_OK;
    }
    after = qn__cuda_stats_get(device);
    qn_generation_end(g);
    check(ran, "a generation", err.message);
    check(after.beside - from.beside == (uint64_t)(n - 4 * WARM - 1), "a generation",
          "written for in line");
    check(after.captures == from.captures, "a generation", "captured again");
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
    if (ran) {
        qn_session_rewind(session, 0);
        run_generation(device, session, 40);
    }
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    no_driver *state = driver ? dlsym(driver, "no_driver_state") : NULL;
    if (!state) {
        printf("skipped: no_driver.c is not in the driver's place\n");
        return 77;
    }
    check_writes(false, false);
    check_writes(true, false);
    check_writes(true, true);
    check_failures(state);
    check_steps();
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
