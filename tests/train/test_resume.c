/* SPDX-License-Identifier: Apache-2.0
 *
 * Going on from a checkpoint: the same bytes as without a break, with another number of threads;
 * what differs is named, what was damaged found; whatever fails while one is written, the one
 * before is whole.
 */
#include "train/training_test.h"

#include "base/fail_alloc.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_renameat2(int from, const char *a, int to, const char *b, unsigned flags);
int __wrap_renameat2(int from, const char *a, int to, const char *b, unsigned flags);

static long calls_left = -1; /* of all three; -1: never fail */

static bool call_fails(void)
{
    if (calls_left < 0 || calls_left-- > 0)
        return false;
    calls_left = 0;
    return true;
}

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    errno = ENOSPC;
    return call_fails() ? -1 : __real_write(fd, data, n);
}

int __wrap_fsync(int fd)
{
    errno = EIO;
    return call_fails() ? -1 : __real_fsync(fd);
}

int __wrap_renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
    errno = EIO;
    return call_fails() ? -1 : __real_renameat2(from, a, to, b, flags);
}

enum { LENGTH = 12, ROWS = 2, VOCAB = 320, STEPS = 9, BREAK = 4 };

static const qn_trainer_options usual = {.size = sizeof usual,
                                         .rank = 4,
                                         .learning_rate = 1e-2,
                                         .clip = 1,
                                         .seed = 5,
                                         .bound = "{\"data\": \"abc\", \"rows\": 2}"};

static void take_steps(qn_trainer *t, int until)
{
    for (int i = (int)qn_trainer_steps(t); i < until; i++) {
        qn_error err = {0};
        int32_t tokens[ROWS * LENGTH];
        uint64_t seed = (uint64_t)i;
        for (int k = 0; k < ROWS * LENGTH; k++)
            tokens[k] = (int32_t)((test_random(&seed) + 1) / 2 * VOCAB);
        if (i == 2)
            qn_trainer_set_learning_rate(t, 7e-3, NULL); /* which a checkpoint keeps */
        if (qn_trainer_step(t, tokens, NULL, ROWS, LENGTH, NULL, &err) != QN_OK)
            fail_msg("step %d: %s", i, err.message);
    }
}

static void save(qn_trainer *t, const char *directory)
{
    qn_error err = {0};
    if (qn_trainer_save_state(t, directory, "a note", &err) != QN_OK)
        fail_msg("%s", err.message);
}

static void assert_same_files(const char *a, const char *b)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors",
                                        "optimizer.safetensors", "trainer.json"};
    for (size_t i = 0; i < 4; i++) {
        char path[2][700], *data[2];
        size_t n[2];
        for (int k = 0; k < 2; k++) {
            snprintf(path[k], sizeof path[k], "%s/%s", k ? b : a, names[i]);
            assert_int_equal(qn__file_read(path[k], 1 << 30, &data[k], &n[k], NULL), QN_OK);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(data[0], data[1], n[0]);
        free(data[0]);
        free(data[1]);
    }
}

static void test_same(void **state)
{
    (void)state;
    for (qn_optimizer kind = 0; kind < QN_OPTIMIZER_COUNT; kind++) {
        qn_trainer_options o = usual;
        o.optimizer = kind;
        o.num_layers = kind == QN_OPTIMIZER_LION ? 2 : 0;
        o.dropout = kind == QN_OPTIMIZER_ADAM || kind == QN_OPTIMIZER_SGD ? 0.3 : 0;
        o.adapter_bf16 = kind == QN_OPTIMIZER_SGD || kind == QN_OPTIMIZER_LION;
        o.moments_bf16 = kind == QN_OPTIMIZER_ADAM || kind == QN_OPTIMIZER_LION;
        qn_device *device = open_cpu_threads(1);
        qn_model *model = open_base(device, "llama/plain", NULL);
        qn_trainer *t = open_trainer(model, &o);
        take_steps(t, BREAK);
        save(t, temp_path("half"));
        take_steps(t, STEPS);
        save(t, temp_path("whole"));
        qn_trainer_close(t);
        qn_model_close(model);
        qn_device_close(device);
        device = open_cpu_threads(3);
        model = open_base(device, "llama/plain", NULL);
        o.resume = temp_path("half");
        o.learning_rate = 0.5; /* does not count */
        t = open_trainer(model, &o);
        assert_int_equal(qn_trainer_steps(t), BREAK);
        assert_string_equal(qn_trainer_note(t), "a note");
        save(t, temp_path("again"));
        assert_same_files(temp_path("half"), temp_path("again"));
        take_steps(t, STEPS);
        save(t, temp_path("half")); /* in its place */
        assert_same_files(temp_path("half"), temp_path("whole"));
        qn_trainer_close(t);
        qn_model_close(model);
        assert_int_equal(memory_of(device).active, 0);
        qn_device_close(device);
    }
}

static void refuse(qn_model *model, const qn_trainer_options *o, qn_status status, const char *part)
{
    qn_error err = {0};
    qn_trainer *t;
    assert_int_equal(qn_trainer_open(&t, model, o, &err), status);
    assert_null(t);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" has no \"%s\"", err.message, part);
}

static void test_mismatches(void **state)
{
    static const char *const targets[] = {"q_proj"};
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, "llama/plain", NULL),
             *tied = open_base(device, "llama/linear", NULL);
    qn_trainer *t = open_trainer(model, &usual);
    char out[600];
    snprintf(out, sizeof out, "%s", temp_path("one"));
    save(t, out);
    qn_trainer_close(t);
    const struct {
        qn_trainer_options change;
        const char *part;
    } cases[] = {
        {{.rank = 5}, "rank was 4, and is 5"},
        {{.alpha = 5}, "alpha was 8, and is 5"},
        {{.targets = targets, .n_targets = 1}, "targets was ["},
        {{.num_layers = 1}, "layers was 3, and is 1"},
        {{.optimizer = QN_OPTIMIZER_SGD}, "optimizer was \"adamw\", and is \"sgd\""},
        {{.beta1 = 0.8}, "beta1 was 0.9"},
        {{.beta2 = 0.8}, "beta2 was 0.999"},
        {{.eps = 1e-7}, "eps was 1e-08"},
        {{.weight_decay = 0.5}, "weight_decay was 0.01"},
        {{.clip = 2}, "clip was 1, and is 2"},
        {{.seed = 6}, "seed was"},
        {{.bound = "{\"data\": \"abd\", \"rows\": 2}"}, "data was \"abc\", and is \"abd\""},
        {{.bound = "{\"data\": \"abc\"}"}, "rows was 2, and is not there"},
        {{.bound = "{\"data\": \"abc\", \"rows\": 2, \"x\": 1}"}, "x was not there, and is 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_trainer_options o = usual, c = cases[i].change;
        o.resume = out;
        o.rank = c.rank ? c.rank : o.rank;
        o.alpha = c.alpha;
        o.targets = c.targets;
        o.n_targets = c.n_targets;
        o.num_layers = c.num_layers;
        o.optimizer = c.optimizer;
        o.beta1 = c.beta1;
        o.beta2 = c.beta2;
        o.eps = c.eps;
        o.weight_decay = c.weight_decay;
        o.clip = c.clip != 0 ? c.clip : o.clip;
        o.seed = c.seed ? c.seed : o.seed;
        o.bound = c.bound ? c.bound : o.bound;
        refuse(model, &o, QN_STATE, cases[i].part);
    }
    qn_trainer_options o = usual;
    o.resume = out;
    refuse(tied, &o, QN_STATE, "model was");
    o.bound = "[]";
    refuse(model, &o, QN_INVALID, "no JSON object");
    o.bound = "{";
    refuse(model, &o, QN_FORMAT, "qn_trainer_options.bound");
    qn_model_close(model);
    qn_model_close(tied);
    qn_device_close(device);
}

/* The bytes at the end of a file are another array's. */
static void change_end(const char *path)
{
    int fd = open(path, O_RDWR);
    char bytes[4];
    assert_true(fd >= 0 && lseek(fd, -4, SEEK_END) > 0 && read(fd, bytes, 4) == 4);
    bytes[1] ^= 1;
    assert_true(lseek(fd, -4, SEEK_END) > 0 && __real_write(fd, bytes, 4) == 4);
    close(fd);
}

static void test_damaged(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, "llama/plain", NULL);
    qn_trainer *t = open_trainer(model, &usual);
    qn_trainer_options o = usual;
    o.resume = temp_path("damaged");
    take_steps(t, 2);
    static const char *const files[] = {"damaged/optimizer.safetensors",
                                        "damaged/adapter_model.safetensors"};
    for (int i = 0; i < 2; i++) {
        save(t, temp_path("damaged"));
        change_end(temp_path(files[i]));
        refuse(model, &o, QN_INVALID, "a file was changed");
        save(t, temp_path("damaged"));
        assert_int_equal(truncate(temp_path(files[i]), 5000), 0);
        refuse(model, &o, QN_FORMAT, "safetensors");
        assert_int_equal(unlink(temp_path(files[i])), 0);
        refuse(model, &o, QN_NOT_FOUND, "safetensors");
    }
    save(t, temp_path("damaged"));
    temp_write("damaged/trainer.json", "{\"version\": 2}", 14);
    refuse(model, &o, QN_UNSUPPORTED, "version 2; 1 is supported");
    temp_write("damaged/trainer.json", "{", 1);
    refuse(model, &o, QN_FORMAT, "trainer.json");
    qn_trainer_close(t);
    qn_model_close(model);
    qn_device_close(device);
}

/* The n-th write, sync or renaming fails, and all behind it. */
static void test_failing_disk(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, "llama/plain", NULL);
    qn_trainer *t = open_trainer(model, &usual);
    qn_trainer_options o = usual;
    char out[600];
    temp_mkdir("disk");
    snprintf(out, sizeof out, "%s", temp_path("disk/out"));
    o.resume = out;
    take_steps(t, 1);
    save(t, out);
    take_steps(t, 2);
    int64_t steps = 1;
    long n = 0;
    for (; steps == 1; n++) {
        qn_error err = {0};
        calls_left = n;
        assert_int_equal(qn_trainer_save_state(t, out, NULL, &err), QN_IO);
        calls_left = -1;
        assert_int_equal(temp_count(temp_path("disk")), 1);
        qn_trainer *saved = open_trainer(model, &o);
        steps = qn_trainer_steps(saved);
        qn_trainer_close(saved);
        /* The last call syncs the names: the new one is there then, it may just not last. */
        assert_int_equal(steps == 2, strstr(err.message, "disk/out: cannot sync the dir") != NULL);
    }
    assert_true(n > 12);
    qn_trainer_close(t);
    qn_model_close(model);
    qn_device_close(device);
}

/* What a process that was killed left is gone with the next checkpoint; one that lives keeps its.
 */
static void test_leftovers(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, "llama/plain", NULL);
    qn_trainer *t = open_trainer(model, &usual);
    char name[80];
    temp_mkdir("left");
    temp_mkdir("left/out.2000000000-0.tmp"); /* beyond the largest there can be */
    temp_write("left/out.2000000000-0.tmp/trainer.json", "{", 1);
    temp_mkdir("left/out.2000000000-0.tmp.mine");
    snprintf(name, sizeof name, "left/out.%ld-0.tmp", (long)getppid());
    temp_mkdir(name);
    save(t, temp_path("left/out"));
    assert_int_equal(temp_count(temp_path("left")), 3);
    assert_int_not_equal(access(temp_path("left/out.2000000000-0.tmp"), F_OK), 0);
    qn_trainer_close(t);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_no_memory(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model = open_base(device, "llama/plain", NULL);
    static const char *const one[] = {"layers.0.mlp.down_proj"};
    qn_trainer_options o = usual;
    o.targets = one;
    o.n_targets = 1;
    qn_trainer *t = open_trainer(model, &o);
    save(t, temp_path("memory"));
    bool failed = true;
    for (long n = 0; failed; n++) {
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = qn_trainer_save_state(t, temp_path("memory"), "x", &err);
        failed = fail_allocation_end();
        if (status != QN_OK && (status != QN_MEMORY || !failed))
            fail_msg("allocation %ld: %s", n, err.message);
    }
    o.resume = temp_path("memory");
    failed = true;
    for (long n = 0; failed; n++) {
        qn_error err = {0};
        qn_trainer *other;
        fail_allocation_begin(n);
        qn_status status = qn_trainer_open(&other, model, &o, &err);
        failed = fail_allocation_end();
        if (status != QN_OK && (status != QN_MEMORY || !failed))
            fail_msg("allocation %ld: %s", n, err.message);
        qn_trainer_close(other);
    }
    qn_trainer_close(t);
    qn_model_close(model);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),      cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_damaged),   cmocka_unit_test(test_failing_disk),
        cmocka_unit_test(test_leftovers), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
