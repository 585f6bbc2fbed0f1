/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of a CUDA device when something fails, without a GPU: the driver that does nothing
 * (no_driver.c) fails at its first call, its second and so on to the last, once or from then on,
 * and so does the host's memory. Each time there is one line that says what is wrong, and
 * everything is given back; or what failed was not needed. Exits with 77 where there is a real
 * driver.
 */
#include "base/fail_alloc.h"

#include "no_driver.h"
#include "core/array.h"
#include "cuda/cuda.h"
#include "quern/quern.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static no_driver *driver, *compiler; /* the same file is in NVRTC's place */
static no_driver_forget_fn *forget, *forget_compiler;
static int n_failed;
static const char *lacking; /* the symbol that the driver has not */
static bool goes_ahead;     /* steps were enqueued that nobody waited for, behind so many calls: */
static long calls_before, compilations_before;

void *__real_dlsym(void *library, const char *symbol);
void *__wrap_dlsym(void *library, const char *symbol);

void *__wrap_dlsym(void *library, const char *symbol)
{
    return lacking && !strcmp(symbol, lacking) ? NULL : __real_dlsym(library, symbol);
}

#define LLAMA                                                                                      \
    "{\"model_type\":\"llama\",\"hidden_size\":128,\"intermediate_size\":256,"                     \
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                 \
    "\"head_dim\":64,\"vocab_size\":256,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-6,"   \
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"

/* ---- what is run ----------------------------------------------------------------------------- */

/* Arrays: written, one of them too large for the arguments of a launch, computed by a chain, a
 * product and a sort, read. */
static qn_status run_arrays(qn_device *device, qn_error *err)
{
    enum { SIDE = 40, N = SIDE * SIDE };
    float values[N], back[N];
    const int64_t shape[] = {SIDE, SIDE};
    qn_scope *s = qn_scope_begin(device);
    for (int i = 0; i < N; i++)
        values[i] = (float)i;
    qn_array *x = qn_from(s, QN_F32, 2, shape, values);
    qn_array *y = qn_exp(s, qn_multiply(s, qn_matmul(s, x, x), x));
    y = qn_add(s, y, qn_from_f32(s, values, SIDE));
    qn_read_f32(s, qn_sort(s, y, 1, false), back, N);
    qn_status status = s ? qn_scope_status(s) : QN_MEMORY;
    if (status != QN_OK && !err->code) {
        err->code = status;
        snprintf(err->message, sizeof err->message, "%s", s ? qn_scope_error(s) : "no scope");
    }
    qn_scope_end(s);
    return status;
}

static void begin_ahead(void)
{
    goes_ahead = true;
    calls_before = driver->calls;
    compilations_before = compiler->calls;
}

/* A model: a prompt, steps ahead, logits. */
static qn_status run_session(qn_model *model, qn_error *err)
{
    qn_session *session = NULL;
    qn_session_options o = {.size = sizeof o, .context = 256};
    int32_t ids[100] = {1, 2, 3}, next = 1;
    qn_status status = qn_session_open(&session, model, &o, err);
    if (status == QN_OK)
        status = qn_session_append(session, ids, 100, err);
    begin_ahead();
    for (int i = 0; status == QN_OK && i < 3; i++)
        status = qn_session_step_greedy(session, next, &next, err);
    qn_session_close(session);
    return status;
}

/* Two requests at once. */
static qn_status run_engine(qn_model *model, qn_error *err)
{
    qn_engine *engine = NULL;
    qn_engine_options o = {.size = sizeof o, .context = 256, .parallel = 2};
    qn_generation_options g = {.size = sizeof g, .max_tokens = 3};
    qn_request_options options = {.size = sizeof options, .generation = &g};
    qn_request *requests[2] = {NULL, NULL};
    const int32_t ids[70] = {5, 6};
    bool busy = true;
    qn_status status = qn_engine_open(&engine, model, &o, err);
    for (int i = 0; status == QN_OK && i < 2; i++)
        status = qn_request_add(&requests[i], engine, ids, 66 + (size_t)i, &options, err);
    begin_ahead();
    while (status == QN_OK && busy)
        status = qn_engine_step(engine, &busy, err);
    for (int i = 0; i < 2; i++) {
        int32_t id;
        while (status == QN_OK && (status = qn_request_next(requests[i], &id, err)) == QN_OK &&
               id >= 0)
            ;
        qn_request_close(requests[i]);
    }
    qn_engine_close(engine);
    return status;
}

/* Ceilings, which are 0 where something failed that cannot be had otherwise. */
static qn_status run_ceilings(qn_device *device, qn_error *err)
{
    qn_ceilings best = QN_INIT(qn_ceilings);
    size_t had = driver->memory;
    driver->memory = (size_t)300 << 20;
    begin_ahead();
    qn_status status = qn_device_ceilings(device, &best);
    driver->memory = had;
    if (status == QN_OK && !(best.read > 0 && best.bf16 > 0)) {
        *err = (qn_error){.code = QN_DEVICE, .message = "no ceiling"};
        status = err->code;
    }
    return status;
}

typedef struct scenario {
    const char *name, *type;
    bool sessions, engines, measures;
} scenario;

static qn_status run(const scenario *of, qn_error *err)
{
    qn_device *device = NULL;
    qn_model *model = NULL;
    goes_ahead = false;
    qn_status status = qn_device_open(&device, "cuda:0", NULL, err);
    if (status == QN_OK && !of->type)
        status = of->measures ? run_ceilings(device, err) : run_arrays(device, err);
    if (status == QN_OK && of->type)
        status = qn_model_open_random(&model, device, LLAMA, strlen(LLAMA), of->type, of->type,
                                      NULL, err);
    if (status == QN_OK && of->sessions)
        status = run_session(model, err);
    if (status == QN_OK && of->engines)
        status = run_engine(model, err);
    qn_model_close(model);
    qn_device_close(device);
    return status;
}

/* ---- what is expected ------------------------------------------------------------------------ */

static void fail(const char *name, long n, const char *how, const char *what, const qn_error *err)
{
    printf("FAILED  %s, %s %ld (%s): %s: \"%s\"\n", name, how, n,
           driver->failed ? driver->failed : "the host", what, err->message);
    n_failed++;
}

/* Outside of the context nothing can be given back. */
static bool is_context(const char *call)
{
    return call && strstr(call, "CtxPush");
}

static void check(const char *name, long n, const char *how, qn_status status, const qn_error *err)
{
    bool told = err->code == status && *err->message && !strchr(err->message, '\n');
    if (status != QN_OK && !told)
        fail(name, n, how, "no line says what is wrong", err);
    else if (status != QN_OK && status != QN_MEMORY && status != QN_DEVICE &&
             status != QN_UNSUPPORTED && status != QN_LIMIT)
        fail(name, n, how, "another status", err);
    else if ((driver->live || compiler->live) && !is_context(driver->failed))
        fail(name, n, how, "something was not given back", err);
    if (driver->live || compiler->live) {
        forget();
        forget_compiler();
    }
}

/* Whether a failure of the call may be overlooked: giving back, and what has another way. */
static bool may_pass(const char *call)
{
    static const char *const calls[] = {
        "Free",     "Destroy",   "Unload",      "Release",   "Unmap",
        "Pop",      "Update",    "GetInfo",     "AllocHost", "DriverGetVersion",
        "MemAlloc", "MemCreate", "Synchronize", "Log"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strstr(call, calls[i]))
            return true;
    return false;
}

static void reset(no_driver *d, long fail_at, bool stays)
{
    d->calls = 0;
    d->fail_at = fail_at;
    d->stays = stays;
    d->failed = NULL;
}

/* Fails call after call of one library. */
static long fail_calls(const scenario *of, no_driver *d, bool stays)
{
    long n = 1;
    for (;; n++) {
        qn_error err = {0};
        reset(driver, 0, false);
        reset(compiler, 0, false);
        reset(d, n, stays);
        qn_status status = run(of, &err);
        const char *failed = d->failed;
        driver->failed = failed;
        check(of->name, n, stays ? "all calls from" : "call", status, &err);
        /* a step ahead that fails is run when it is wanted */
        bool again = goes_ahead && n > (d == driver ? calls_before : compilations_before);
        if (failed && status == QN_OK && !may_pass(failed) && !is_context(failed) && !again)
            fail(of->name, n, "call", "nothing says that it failed", &err);
        if (!failed && status != QN_OK)
            fail(of->name, n, "no call", "it fails by itself", &err);
        if (!failed)
            break;
    }
    reset(driver, 0, false);
    reset(compiler, 0, false);
    return n - 1;
}

/* Fails one allocation of the host after the other. */
static long fail_host(const scenario *of)
{
    long n = 0;
    for (;; n++) {
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = run(of, &err);
        bool failed = fail_allocation_end();
        check(of->name, n, "allocation", status, &err);
        if (!failed)
            break;
    }
    return n;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void expect(const char *name, const scenario *of, qn_status wanted, const char *line)
{
    qn_error err = {0};
    qn_status status = run(of, &err);
    check(name, 0, "", status, &err);
    if (status != wanted || !strstr(err.message, line)) {
        printf("FAILED  %s: status %d, \"%s\" for \"%s\"\n", name, (int)status, err.message, line);
        n_failed++;
    }
}

static void check_lines(void)
{
    const scenario arrays = {.name = "arrays"}, model = {"a model", "bf16", true, false};
    no_driver usual = *driver;
    driver->version = 11080;
    expect("an old driver", &arrays, QN_UNSUPPORTED,
           "the NVIDIA driver is for CUDA 11.8; one for CUDA 12.0 or newer is needed");
    driver->version = usual.version;
    lacking = "cuLaunchKernelEx";
    expect("a function is missing", &arrays, QN_UNSUPPORTED, "the driver lacks cuLaunchKernelEx");
    lacking = NULL;
    driver->arch = 75;
    expect("an old GPU", &arrays, QN_UNSUPPORTED, "cuda:0: the GPU is sm_75; sm_80 or newer");
    driver->arch = usual.arch;
    driver->gpus = 0;
    expect("no GPU", &arrays, QN_UNSUPPORTED, "cuda:0: there are 0 GPUs: CUDA_ERROR_NO_DEVICE");
    driver->gpus = 1;
    driver->fail = "cuInit";
    driver->result = 803;
    expect("a driver that does not start", &arrays, QN_UNSUPPORTED,
           "cuda:0: the NVIDIA driver does not start: CUDA_ERROR_803");
    driver->fail = "cuModuleLoadData";
    driver->result = 209;
    driver->version = 12020;
    expect("kernels of a newer CUDA", &arrays, QN_UNSUPPORTED,
           "the driver is for CUDA 12.2: a newer one is needed");
    driver->version = usual.version;
    driver->result = 0;
    driver->fail = "cuGraphLaunch";
    expect("a launch", &model, QN_DEVICE,
           "cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS while launching a plan");
    driver->result = 2;
    expect("memory of a graph's launch", &model, QN_OK, "");
    driver->fail = "cuGraphInstantiate";
    expect("memory of a graph", &model, QN_OK, "");
    driver->result = 0;
    driver->fail = "cuMemAlloc_v2";
    expect("memory of a lost context", &model, QN_DEVICE,
           "cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS while asking for memory");
    driver->fail = NULL;
    driver->memory = 1000;
    expect("little memory", &arrays, QN_MEMORY, " free, ");
    driver->memory = 400000;
    expect("memory for less than the weights", &model, QN_MEMORY,
           "are missing; as q8_0 they would fit");
    driver->memory = 3 << 20;
    expect("memory for the weights alone", &model, QN_MEMORY,
           "no memory for a cache's pages of 2.00 MiB (");
    expect("what to do", &model, QN_MEMORY,
           " missing); the cache has 0 positions until now: fewer, or keys and values of fewer "
           "bits, need less");
    driver->memory = usual.memory;
    driver->pinned = 0;
    expect("nothing can be page-locked", &model, QN_OK, "");
    driver->pinned = usual.pinned;
    expect("all is well", &model, QN_OK, "");
}

/* ---- limits of what is page-locked ----------------------------------------------------------- */

/* What a copy from one GPU to another leaves there; each call of it may fail. */
static void check_two(void)
{
    enum { N = 5000, BEFORE = 100 };
    static int32_t values[N];
    qn_device *one = NULL, *two = NULL;
    qn_error err = {0};
    const int gpus = driver->gpus;
    int n_right = 0, n_refused = 0;
    for (int i = 0; i < N; i++)
        values[i] = i * 7;
    driver->gpus = 2;
    bool ok = qn_device_open(&one, "cuda:0", NULL, &err) == QN_OK &&
              qn_device_open(&two, "cuda:1", NULL, &err) == QN_OK;
    static const char *const calls[] = {"", "MemcpyPeer", "CanAccessPeer", "EnablePeer"};
    for (int i = 0; ok && i < 4; i++) {
        qn_scope *s = qn_scope_begin(one);
        qn_array *a = qn_slice(s, qn_from_i32(s, values, N), 0, BEFORE, N, 1);
        qn_eval(s, a);
        a = qn_retain(a);
        qn_scope_end(s);
        s = qn_scope_begin(two);
        driver->fail = i ? calls[i] : NULL;
        driver->result = i == 1 ? 2 : 217; /* no memory; GPUs that do not reach each other */
        qn_array *b = qn_from_array(s, a);
        driver->fail = NULL;
        driver->result = 0;
        if (qn_scope_status(s) == QN_OK)
            n_right += !memcmp(b->buffer->data, values + BEFORE, (N - BEFORE) * sizeof *values);
        else
            n_refused += i == 1 && strstr(qn_scope_error(s), "copying from another device");
        qn_release(a);
        qn_scope_end(s);
    }
    qn_device_close(two);
    qn_device_close(one);
    driver->gpus = gpus;
    if (n_right != 3 || n_refused != 1) {
        printf("FAILED  two GPUs: %d right, %d refused: %s\n", n_right, n_refused, err.message);
        n_failed++;
    }
}

static void check_wired(size_t limit, size_t wanted)
{
    qn_device_options options = {.size = sizeof options, .wired_limit = limit};
    qn_device *device = NULL;
    qn_error err = {0};
    qn_memory_stats m = QN_INIT(qn_memory_stats);
    bool ok = qn_device_open(&device, "cuda:0", &options, &err) == QN_OK &&
              run_arrays(device, &err) == QN_OK && qn_device_memory(device, &m) == QN_OK &&
              m.wired == wanted && m.wired == driver->locked && m.wired_limit == limit &&
              m.available == driver->memory - driver->used - driver->graphs;
    if (ok && wanted) { /* less than one piece */
        ok = qn_device_set_wired_limit(device, 4096) == limit && driver->locked == 0 &&
             run_arrays(device, &err) == QN_OK && driver->locked == 0 &&
             qn_device_set_wired_limit(device, 2 << 20) == 4096 &&
             run_arrays(device, &err) == QN_OK && driver->locked == 2 << 20;
    }
    if (!ok) {
        printf("FAILED  wired limit %zu: %zu for %zu bytes, %s\n", limit, m.wired, wanted,
               err.message);
        n_failed++;
    }
    qn_device_close(device);
}

/* ---- memory of graphs ------------------------------------------------------------------------ */

/* Evaluates so many steps behind each other, twice. */
static bool run_steps(qn_device *device, int n)
{
    const float one = 1;
    bool ok = true;
    for (int k = 0; k < 2 && ok; k++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_from_f32(s, &one, 1);
        for (int i = 0; i < n; i++)
            x = qn_sort(s, x, 0, false);
        ok = qn_eval(s, x) == QN_OK;
        if (!ok)
            printf("%d steps: %s\n", n, qn_scope_error(s));
        qn_scope_end(s);
    }
    return ok;
}

/* What is counted covers what the driver gave, and stays within the limit: graphs go with their
 * plans. */
static bool is_bounded(qn_device *device)
{
    enum { PLANS = 60 };
    bool ok = true;
    device->plans.limit = 4 << 20;
    for (int n = 1; n <= PLANS && ok; n++) {
        qn_plan_stats stats = QN_INIT(qn_plan_stats);
        ok = run_steps(device, n) && qn_device_plan_stats(device, &stats) == QN_OK &&
             stats.bytes <= device->plans.limit && driver->graphs <= stats.bytes &&
             driver->graphs >= (size_t)n * NO_DRIVER_LAUNCH_BYTES;
    }
    return ok && device->plans.stats.evictions > 0;
}

/* Where memory is out graphs of other plans make room, for once or for good; where that is not
 * enough kernels are launched one by one. */
static bool makes_room(qn_device *device)
{
    static const char *const calls[] = {"cuGraphInstantiate", "cuGraphLaunch"};
    const size_t usual = driver->memory;
    bool ok = true;
    device->plans.limit = SIZE_MAX;
    driver->memory = driver->used + driver->graphs + 400 * NO_DRIVER_LAUNCH_BYTES;
    uint64_t before = qn__cuda_stats_get(device).one_by_one;
    for (int n = 100; n < 110 && ok; n++)
        ok = run_steps(device, n);
    for (int i = 0; i < 2 && ok; i++) {
        driver->fail = calls[i];
        driver->times = 1;
        driver->result = 2;
        ok = run_steps(device, 120 + i) && !driver->fail;
    }
    ok = ok && qn__cuda_stats_get(device).one_by_one == before && run_steps(device, 1000) &&
         qn__cuda_stats_get(device).one_by_one == before + 2;
    driver->fail = NULL;
    driver->times = driver->result = 0;
    driver->memory = usual;
    return ok;
}

static void check_graphs(void)
{
    qn_device *device = NULL;
    qn_error err = {0};
    bool open = qn_device_open(&device, "cuda:0", NULL, &err) == QN_OK;
    if (!open || !is_bounded(device) || !makes_room(device)) {
        printf("FAILED  memory of graphs: %zu bytes, %s\n", driver->graphs, err.message);
        n_failed++;
    }
    qn_device_close(device);
}

/* ---- several threads write ------------------------------------------------------------------- */

enum { WRITERS = 4, WRITES = 12, WRITTEN = (3 << 20) + 20 }; /* bytes: more than the stages have */

typedef struct writer {
    qn_device *device;
    int number;
    bool ok;
} writer;

/* Each has what it wrote, in memory that is the host's here. */
static void *run_writer(void *context)
{
    writer *w = context;
    int32_t *values = malloc(WRITTEN);
    const int64_t n = WRITTEN / 4;
    w->ok = values != NULL;
    for (int k = 0; w->ok && k < WRITES; k++) {
        for (int64_t i = 0; i < n; i++)
            values[i] = (int32_t)i * 7 + w->number * 1000 + k;
        qn_scope *s = qn_scope_begin(w->device);
        qn_array *x = qn_from(s, QN_I32, 1, &n, values);
        w->ok = qn_eval(s, x) == QN_OK && !memcmp(x->buffer->data, values, WRITTEN);
        qn_scope_end(s);
    }
    free(values);
    return NULL;
}

static void check_writers(void)
{
    qn_device_options options = {.size = sizeof options, .wired_limit = 2 << 20};
    qn_device *device = NULL;
    qn_error err = {0};
    pthread_t threads[WRITERS];
    writer writers[WRITERS];
    if (qn_device_open(&device, "cuda:0", &options, &err) != QN_OK ||
        run_arrays(device, &err) != QN_OK) {
        printf("FAILED  writers: %s\n", err.message);
        n_failed++;
        qn_device_close(device);
        return;
    }
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (writer){.device = device, .number = i};
        pthread_create(&threads[i], NULL, run_writer, &writers[i]);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
        if (!writers[i].ok) {
            printf("FAILED  writer %d has what another wrote\n", i);
            n_failed++;
        }
    }
    qn_device_close(device);
}

/* ---- loading into stages --------------------------------------------------------------------- */

#define WIDE_LLAMA                                                                                 \
    "{\"model_type\":\"llama\",\"hidden_size\":1000,\"intermediate_size\":2000,"                   \
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                 \
    "\"head_dim\":64,\"vocab_size\":3001,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,"    \
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}"

/* Loads a model whose matrices are several pieces; its parameters' bytes, one behind the other, are
 * the caller's to free. NULL: it failed, and said so. */
static char *load_wide(size_t wired_limit, size_t *n)
{
    qn_device_options options = {.size = sizeof options, .wired_limit = wired_limit};
    qn_device *device = NULL;
    qn_model *model = NULL;
    qn_error err = {0};
    char *all = NULL;
    *n = 0;
    if (qn_device_open(&device, "cuda:0", &options, &err) == QN_OK &&
        qn_model_open_random(&model, device, WIDE_LLAMA, strlen(WIDE_LLAMA), "bf16", "bf16", NULL,
                             &err) == QN_OK)
        for (int i = 0; i < qn_model_n_parameters(model); i++) {
            const qn_array *a = qn_model_parameter(model, qn_model_parameter_name(model, i));
            size_t bytes = (size_t)(a->shape[0] * (a->ndim > 1 ? a->shape[1] : 1)) *
                           (a->dtype == QN_BF16 ? 2 : 4);
            all = realloc(all, *n + bytes);
            memcpy(all + *n, a->buffer->data, bytes);
            *n += bytes;
        }
    else
        printf("loading: %s\n", err.message);
    qn_model_close(model);
    qn_device_close(device);
    return all;
}

/* Threads read pieces into stages or, where nothing may be page-locked, into memory of their own,
 * from where they are copied: the same bytes. */
static void check_loading(void)
{
    size_t n[2];
    char *all[] = {load_wide(0, &n[0]), load_wide(1000, &n[1])};
    if (!all[0] || !all[1] || n[0] != n[1] || memcmp(all[0], all[1], n[0])) {
        printf("FAILED  loading: a model in stages is another than one without\n");
        n_failed++;
    }
    free(all[0]);
    free(all[1]);
}

/* ---- programs on the disk -------------------------------------------------------------------- */

/* Runs a chain, whose program's load fails `times` times; returns how many were compiled, -1: it
 * failed. */
static long run_chain(int times)
{
    qn_device *device = NULL;
    if (qn_device_open(&device, "cuda:0", NULL, NULL) != QN_OK)
        return -1;
    const float one = 1;
    driver->fail = times ? "cuModuleLoadData" : NULL;
    driver->times = times;
    driver->result = 200;
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from_f32(s, &one, 1);
    bool ok = qn_eval(s, qn_exp(s, qn_add(s, x, x))) == QN_OK;
    qn_scope_end(s);
    driver->fail = NULL;
    driver->times = driver->result = 0;
    long compiled = (long)qn__cuda_stats_get(device).compiled;
    qn_device_close(device);
    return ok ? compiled : -1;
}

static void remove_programs(const char *folder)
{
    char path[100], name[400];
    snprintf(path, sizeof path, "%s/quern/cuda", folder);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        unlink(name);
    }
    if (d)
        closedir(d);
    rmdir(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    rmdir(folder);
}

/* What the driver refuses of what was kept is compiled again, once. */
static void check_kept(void)
{
    char folder[] = "/tmp/quern-failures-XXXXXX";
    if (!mkdtemp(folder)) {
        printf("FAILED  no folder for programs\n");
        n_failed++;
        return;
    }
    setenv("XDG_CACHE_HOME", folder, 1);
    long first = run_chain(0), second = run_chain(0), refused = run_chain(1), twice = run_chain(2),
         last = run_chain(0);
    if (first != 1 || second != 0 || refused != 1 || twice != -1 || last != 0) {
        printf("FAILED  programs that were kept: %ld compiled, then %ld, refused %ld, %ld, then "
               "%ld\n",
               first, second, refused, twice, last);
        n_failed++;
    }
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    remove_programs(folder);
}

/* ---- all ------------------------------------------------------------------------------------- */

static bool find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *nvrtc = dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_LOCAL);
    driver = library ? dlsym(library, "no_driver_state") : NULL;
    compiler = nvrtc ? dlsym(nvrtc, "no_driver_state") : NULL;
    if (!driver || !compiler)
        return false;
    void *address = dlsym(library, "no_driver_forget");
    memcpy(&forget, &address, sizeof address);
    address = dlsym(nvrtc, "no_driver_forget");
    memcpy(&forget_compiler, &address, sizeof address);
    return true;
}

int main(void)
{
    static const scenario all[] = {{.name = "arrays"},
                                   {"a session", "bf16", true, false},
                                   {"units", "affine4-g64-bf16", false, false},
                                   {"an engine", "bf16", false, true},
                                   {.name = "ceilings", .measures = true}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* each run compiles */
    if (!find_driver()) {
        printf("skipped: no_driver.c is not in the driver's place\n");
        return 77;
    }
    check_lines();
    check_wired(0, QN__CUDA_STAGES * QN__CUDA_STAGE_BYTES);
    check_wired(3 << 20, 3 << 20);
    check_wired(1000, 0);
    check_two();
    check_graphs();
    check_writers();
    check_loading();
    check_kept();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        long once = fail_calls(&all[i], driver, false), from = fail_calls(&all[i], driver, true);
        long compiling = fail_calls(&all[i], compiler, false), host = fail_host(&all[i]);
        if (i == 0 && !compiling) { /* arrays are chains: a compiler that is another build's */
            printf("FAILED  no call of NVRTC was seen\n");
            n_failed++;
        }
        printf("%s: %ld calls once, %ld for good, %ld of NVRTC, %ld allocations\n", all[i].name,
               once, from, compiling, host);
    }
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
