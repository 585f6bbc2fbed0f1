/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading a model of tens of MB on several threads: every byte where it belongs, whatever their
 * number; what progress says and who says it; the failure that is reported; memory.
 */
#include "test.h"

#include "base/temp_dir.h"
#include "core/array.h"
#include "io/safetensors.h"
#include "quant/layout.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/* VOCAB: the last group of rows is no whole one */
enum { HIDDEN = 256, FFN = 1024, LAYERS = 8, VOCAB = 30001, TENSORS = 2 + 9 * LAYERS };

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":256,\"intermediate_size\":1024,"
    "\"num_hidden_layers\":8,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":30001,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,"
    "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\"}";

static char names[TENSORS][100];
static qn__tensor_data tensors[TENSORS];
static uint64_t file_bytes;
static const char *directory, *packed, *blocks; /* bf16; the same as units; q8_0 */

/* Finite values in bf16. */
static uint16_t *random_values(uint64_t n)
{
    static uint64_t state = 1;
    uint16_t *values = malloc(n * 2);
    assert_non_null(values);
    for (uint64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (uint16_t)((state >> 48 & 0x83ff) | 0x3800);
    }
    return values;
}

static void add_tensor(int *n, const char *name, int64_t rows, int64_t columns)
{
    qn__tensor_data *t = &tensors[*n];
    snprintf(names[*n], sizeof *names, "model.%s.weight", name);
    *t = (qn__tensor_data){.name = names[*n], .dtype = QN_BF16, .ndim = columns ? 2 : 1};
    t->shape[0] = rows;
    t->shape[1] = columns;
    uint64_t values = (uint64_t)(rows * (columns ? columns : 1));
    t->data = random_values(values);
    file_bytes += values * 2;
    ++*n;
}

static void convert(const char *out, qn_convert_options options)
{
    qn_error err = {0};
    qn_device *device = open_cpu_threads(2);
    options.size = sizeof options;
    if (qn_convert(device, directory, out, &options, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_device_close(device);
}

static int make_models(void **state)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } layer[] = {{"input_layernorm", HIDDEN, 0},
                 {"post_attention_layernorm", HIDDEN, 0},
                 {"self_attn.q_proj", HIDDEN, HIDDEN},
                 {"self_attn.k_proj", HIDDEN / 2, HIDDEN},
                 {"self_attn.v_proj", HIDDEN / 2, HIDDEN},
                 {"self_attn.o_proj", HIDDEN, HIDDEN},
                 {"mlp.gate_proj", FFN, HIDDEN},
                 {"mlp.up_proj", FFN, HIDDEN},
                 {"mlp.down_proj", HIDDEN, FFN}};
    int n = 0;
    if (temp_begin(state) != 0)
        return -1;
    add_tensor(&n, "embed_tokens", VOCAB, HIDDEN);
    add_tensor(&n, "norm", HIDDEN, 0);
    for (int i = 0; i < 9 * LAYERS; i++) {
        char name[80];
        snprintf(name, sizeof name, "layers.%d.%s", i / 9, layer[i % 9].name);
        add_tensor(&n, name, layer[i % 9].rows, layer[i % 9].columns);
    }
    directory = strdup(temp_mkdir("bf16"));
    packed = strdup(temp_path("units"));
    blocks = strdup(temp_path("q8_0"));
    temp_write("bf16/config.json", config, strlen(config));
    if (qn__safetensors_write(temp_path("bf16/model.safetensors"), tensors, TENSORS, NULL, 0,
                              NULL) != QN_OK)
        return -1;
    convert(packed, (qn_convert_options){.packed = true});
    convert(blocks, (qn_convert_options){.packed = true, .type = "q8_0"});
    return 0;
}

static int remove_models(void **state)
{
    for (int i = 0; i < TENSORS; i++)
        free((void *)tensors[i].data);
    free((void *)directory), free((void *)packed), free((void *)blocks);
    return temp_end(state);
}

static qn_status open_model(qn_model **model, qn_device *device, const char *path,
                            bool (*progress)(void *, uint64_t, uint64_t), void *user, qn_error *err)
{
    qn_model_options o = {
        .size = sizeof o, .no_tokenizer = true, .progress = progress, .progress_user = user};
    return qn_model_open(model, device, path, &o, err);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Whether a matrix in memory has the rows that were written. */
static void check_matrix(const qn_array *w, const qn__tensor_data *t)
{
    const qn__layout *l = qn__layout_of(w->layout);
    const uint8_t *row = t->data;
    uint8_t got[2 * FFN];
    assert_non_null(l);
    for (int64_t r = 0; r < t->shape[0]; r++, row += 2 * t->shape[1]) {
        qn__layout_unpack_row(l, w->buffer->data, t->shape[1], r, got);
        if (memcmp(got, row, (size_t)(2 * t->shape[1])) != 0)
            fail_msg("%s: row %lld is another", t->name, (long long)r);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    const char *paths[] = {directory, packed};
    const int threads[] = {1, 2, 7};
    for (int i = 0; i < 6; i++) {
        qn_model *model;
        qn_error err = {0};
        qn_device *device = open_cpu_threads(threads[i / 2]);
        if (open_model(&model, device, paths[i % 2], NULL, NULL, &err) != QN_OK)
            fail_msg("%s", err.message);
        for (int k = 0; k < TENSORS; k++)
            if (tensors[k].ndim == 2)
                check_matrix(qn_model_parameter(model, tensors[k].name), &tensors[k]);
        qn_model_close(model);
        qn_device_close(device);
    }
}

/* ---- progress -------------------------------------------------------------------------------- */

typedef struct watcher {
    pthread_t caller;
    uint64_t done, stop_at;
    int calls;
    bool finished, wrong;
} watcher;

static bool watch(void *user, uint64_t done, uint64_t total)
{
    watcher *w = user;
    w->wrong = w->wrong || !pthread_equal(pthread_self(), w->caller) || done < w->done ||
               done > total || total != file_bytes;
    w->done = done;
    w->calls++;
    w->finished = done == total;
    return done < w->stop_at;
}

static void test_progress(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        qn_model *model;
        qn_error err = {0};
        qn_device *device = open_cpu_threads(threads);
        watcher all = {.caller = pthread_self(), .stop_at = UINT64_MAX},
                half = {.caller = pthread_self(), .stop_at = file_bytes / 2};
        assert_int_equal(open_model(&model, device, directory, watch, &all, &err), QN_OK);
        assert_true(all.finished && !all.wrong && all.calls > 2);
        qn_model_close(model);
        assert_int_equal(open_model(&model, device, directory, watch, &half, &err), QN_CANCELLED);
        assert_null(model);
        assert_true(half.done >= file_bytes / 2 && !half.wrong);
        assert_string_equal(err.message, "loading was cancelled");
        qn_device_close(device);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

typedef struct cutter {
    const char *path;
    long size;
} cutter;

/* The file loses its end when all vectors are read, which come first. */
static bool cut(void *user, uint64_t done, uint64_t total)
{
    const cutter *c = user;
    (void)total;
    return done < (2 * LAYERS + 1) * HIDDEN * 2 || truncate(c->path, c->size) == 0;
}

/* Whichever thread meets it first: the failure of the first piece is told. */
static void test_failure(void **state)
{
    (void)state;
    char first[512] = "";
    const char *path = temp_mkdir("cut"), *weights = temp_path("cut/model.safetensors");
    temp_write("cut/config.json", config, strlen(config));
    for (int i = 0; i < 24; i++) {
        qn_model *model;
        qn_error err = {0};
        qn_device *device = open_cpu_threads(i % 8 + 1);
        assert_int_equal(qn__safetensors_write(weights, tensors, TENSORS, NULL, 0, NULL), QN_OK);
        cutter c = {weights, 9 << 20};
        assert_int_equal(open_model(&model, device, path, cut, &c, &err), QN_IO);
        assert_null(model);
        if (i == 0)
            snprintf(first, sizeof first, "%s", err.message);
        assert_string_equal(err.message, first);
        qn_device_close(device);
    }
    assert_non_null(strstr(first, "cut/model.safetensors: the file ends at byte 9437184, data up"));
}

/* Two threads whose reads come to the file's end wait for each other; then one goes on, and the
 * other when the first has told of its failure, for which it takes and leaves a lock. Each function
 * stands for the library's of its name (scripts/test-wraps); glibc calls pread by the longer one.
 */
typedef struct meeting {
    atomic_bool begun;
    bool later_first; /* of the two places in the file */
    atomic_int n;
    atomic_llong place[2]; /* -1: not there yet */
    atomic_bool told;
} meeting;

static meeting met;
static _Thread_local bool tells;

ssize_t __real_pread64(int fd, void *to, size_t n, off_t offset);
ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t offset);
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

static void meet(long long place)
{
    int own = atomic_fetch_add(&met.n, 1);
    if (own > 1)
        return;
    atomic_store(&met.place[own], place);
    long long other = -1;
    for (int i = 0; i < 20000 && (other = atomic_load(&met.place[1 - own])) < 0; i++)
        usleep(1000);
    tells = (place > other) == met.later_first;
    for (int i = 0; i < 20000 && !tells && !atomic_load(&met.told); i++)
        usleep(1000);
}

ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t offset)
{
    ssize_t got = __real_pread64(fd, to, n, offset);
    if (got == 0 && atomic_load(&met.begun))
        meet(offset);
    return got;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
    int status = __real_pthread_mutex_unlock(lock);
    if (tells)
        atomic_store(&met.told, true);
    tells = false;
    return status;
}

/* Two pieces of one matrix fail, either of them before the other: the first in the file counts. */
static void test_first_failure(void **state)
{
    (void)state;
    char first[512] = "";
    const char *path = temp_mkdir("twice"), *weights = temp_path("twice/model.safetensors");
    temp_write("twice/config.json", config, strlen(config));
    for (int i = 0; i < 2; i++) {
        qn_model *model;
        qn_error err = {0};
        qn_device *device = open_cpu_threads(2);
        assert_int_equal(qn__safetensors_write(weights, tensors, TENSORS, NULL, 0, NULL), QN_OK);
        cutter c = {weights, 9 << 20};
        met.later_first = i == 0;
        atomic_store(&met.n, 0);
        atomic_store(&met.place[0], -1);
        atomic_store(&met.place[1], -1);
        atomic_store(&met.told, false);
        atomic_store(&met.begun, true);
        assert_int_equal(open_model(&model, device, path, cut, &c, &err), QN_IO);
        atomic_store(&met.begun, false);
        assert_int_equal(met.n, 2);
        assert_true(met.told);
        if (i == 0)
            snprintf(first, sizeof first, "%s", err.message);
        assert_string_equal(err.message, first);
        qn_device_close(device);
    }
    assert_non_null(strstr(first, "the file ends at byte 9437184, data up"));
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The most memory that the process had, in bytes; 0: unknown. */
static long long peak_memory(void)
{
    char line[200];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "VmHWM: %lld", &kib);
    if (f)
        fclose(f);
    return kib << 10;
}

/* This program as a child: loads a model and prints by how much its peak grew. */
static int print_growth(const char *path)
{
    qn_model *model;
    qn_error err = {0};
    long long before = peak_memory();
    qn_device *device = open_cpu_threads(4);
    if (open_model(&model, device, path, NULL, NULL, &err) != QN_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    printf("%lld\n", peak_memory() - before);
    qn_model_close(model);
    qn_device_close(device);
    return 0;
}

static double load_growth(const char *path)
{
    char self[PATH_MAX] = "", command[2 * PATH_MAX + 40], line[40] = "";
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "'%s' --load '%s'", self, path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_int_equal(pclose(f), 0);
    return atof(line);
}

/* The bar is 64 MiB above the weights; these are small, so less is asked. */
static void test_memory(void **state)
{
    (void)state;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || defined QN_EMULATED
    print_message("skipped: what watches the program has memory of its own\n");
    skip();
#endif
    const struct {
        const char *path;
        double weights;
    } models[] = {{directory, (double)file_bytes},
                  {packed, (double)file_bytes},
                  {blocks, (double)file_bytes * 34 / 64}};
    for (int i = 0; i < 3; i++) {
        double grown = load_growth(models[i].path);
        print_message("%.1f MB of weights: %.1f MB\n", models[i].weights / 1e6, grown / 1e6);
        assert_true(grown >= models[i].weights); /* else it was not measured */
        assert_true(grown <= 1.05 * models[i].weights + (8 << 20));
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--load"))
        return print_growth(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_progress),
        cmocka_unit_test(test_failure), cmocka_unit_test(test_first_failure),
        cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
