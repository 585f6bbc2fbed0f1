/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile files of tensors: valid ones (files/) are changed at random, and whatever comes out has
 * to be refused in one line, or to be readable. Archives hide most of what they hold behind
 * checksums, so the pickle of a checkpoint is changed by itself, too. The seed is fixed;
 * QUERN_FUZZ_SECONDS sets another time than eight seconds, and QUERN_FUZZ_SEED another seed.
 */
#include "../test.h"

#include "base/file.h"
#include "io/archive.h"
#include "io/pickle.h"
#include "../base/temp_dir.h"

#include <time.h>

enum { MAX_SAMPLES = 80, MAX_SAMPLE = 1 << 16, LARGEST_READ = 1 << 24 };

typedef struct sample {
    char *data;
    size_t n;
    enum { A_FILE, A_PICKLE, AN_INDEX } kind;
} sample;

static sample samples[MAX_SAMPLES];
static size_t n_samples;
static uint64_t fuzz_state;

static uint32_t draw(uint32_t below)
{
    fuzz_state += 0x9e3779b97f4a7c15u;
    uint64_t z = fuzz_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % below);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add_sample(char *data, size_t n, int kind)
{
    assert_true(n_samples < MAX_SAMPLES && n > 0 && n <= MAX_SAMPLE);
    samples[n_samples++] = (sample){data, n, kind};
}

/* The pickle inside a checkpoint, where there is one. */
static void add_pickle(const char *path)
{
    qn__file file;
    qn__archive *archive = NULL;
    qn_error err = {0};
    assert_int_equal(qn__file_open(&file, path, &err), QN_OK);
    if (qn__archive_open(&archive, &file, &err) == QN_OK && qn__torch_find(archive) >= 0) {
        uint32_t i = (uint32_t)qn__torch_find(archive);
        size_t n = (size_t)qn__archive_size(archive, i);
        char *data = malloc(n);
        assert_int_equal(qn__archive_read(archive, i, 0, n, data, &err), QN_OK);
        add_sample(data, n, A_PICKLE);
    }
    qn__archive_close(archive);
    qn__file_close(&file);
}

static void read_samples(void)
{
    char path[PATH_MAX], *data;
    size_t n;
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/tests/io/files", root ? root : ".");
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/tests/io/files/%.200s", root ? root : ".", e->d_name);
        if (e->d_name[0] == '.' || strstr(e->d_name, ".txt"))
            continue;
        assert_int_equal(qn__file_read(path, MAX_SAMPLE, &data, &n, NULL), QN_OK);
        add_sample(data, n, A_FILE);
        if (strstr(e->d_name, ".pth") && !strstr(e->d_name, "safetensors"))
            add_pickle(path);
    }
    closedir(dir);
    static const char index[] =
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"v1\":\"v1.npy\","
        "\"a.w\":\"n.pth\",\"a.3\":\"n.pth\"}}";
    add_sample(strdup(index), sizeof index - 1, AN_INDEX);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/tests/io/files/%s", root ? root : ".",
                 i ? "nested.pth" : "v1.npy");
        assert_int_equal(qn__file_read(path, MAX_SAMPLE, &data, &n, NULL), QN_OK);
        temp_write(i ? "n.pth" : "v1.npy", data, n);
        free(data);
    }
}

/* One change: a byte, a number, a piece gone, doubled, or taken from another sample. */
static size_t change(char *data, size_t n, size_t capacity)
{
    static const unsigned char interesting[] = "\0\1\2\x7f\x80\xff(){}[]'\",:.0129tR}Qqhjs";
    size_t at = draw((uint32_t)n), m = 1 + draw(draw(4) ? 8 : 200);
    const sample *other = &samples[draw((uint32_t)n_samples)];
    m = m < n - at ? m : n - at;
    switch (draw(7)) {
    case 0: data[at] = (char)draw(256); break;
    case 1: data[at] = (char)interesting[draw(sizeof interesting - 1)]; break;
    case 2: data[at] ^= (char)(1u << draw(8)); break;
    case 3: memmove(data + at, data + at + m, n - at - m); return n - m > 0 ? n - m : 1;
    case 4: /* twice */
        if (n + m > capacity)
            break;
        memmove(data + at + m, data + at, n - at);
        return n + m;
    case 5: memset(data + at, draw(2) ? 0xff : 0, m < 8 ? m : 8); break;
    case 6: {
        size_t from = draw((uint32_t)other->n);
        m = m < other->n - from ? m : other->n - from;
        memcpy(data + at, other->data + from, m);
    }
    }
    return n;
}

static void assert_refused(const qn_error *err, qn_status status)
{
    assert_true(status != QN_OK && err->code == status && err->message[0] != '\0');
    assert_null(strchr(err->message, '\n'));
}

static qn_status check_tensor(void *user, const char *name, const qn__pickled_tensor *t,
                              qn_error *err)
{
    int64_t last = t->offset, n = 1;
    (void)user, (void)err;
    assert_true(strlen(name) < 2000 && t->offset >= 0);
    for (int i = 0; i < t->ndim; i++) {
        n *= t->shape[i];
        last += t->shape[i] ? (t->shape[i] - 1) * t->stride[i] : 0;
    }
    assert_true(n == 0 || (last >= t->offset && last < t->n_stored));
    return QN_OK;
}

/* Opens it; if that works, its tensors read, or fail with a line. */
static bool try_sample(const char *data, size_t n, int kind)
{
    qn_error err = {0};
    if (kind == A_PICKLE) {
        char *exact = malloc(n); /* so that a read behind its end is seen */
        memcpy(exact, data, n);
        qn_status status = qn__pickle_read("fuzzed", exact, n, check_tensor, NULL, &err);
        free(exact);
        if (status != QN_OK)
            assert_refused(&err, status);
        return status == QN_OK;
    }
    qn_tensors *t;
    const char *name = kind == AN_INDEX ? "fuzzed.index.json" : "fuzzed";
    qn_status status = qn_tensors_open(&t, temp_write(name, data, n), &err);
    if (status != QN_OK) {
        assert_refused(&err, status);
        return false;
    }
    for (size_t i = 0; i < qn_tensors_count(t); i++) {
        const qn_tensor_info *info = qn_tensors_get(t, i);
        size_t bytes = info->size < LARGEST_READ ? (size_t)info->size : LARGEST_READ;
        char *out = malloc(bytes + 1);
        err = (qn_error){0};
        status = qn_tensors_read_bytes(t, info, 0, bytes, out, &err);
        if (status != QN_OK)
            assert_refused(&err, status);
        free(out);
    }
    qn_tensors_close(t);
    return true;
}

static void test_changed_files(void **state)
{
    (void)state;
    const char *seconds = getenv("QUERN_FUZZ_SECONDS"), *seed = getenv("QUERN_FUZZ_SEED");
    fuzz_state = seed ? strtoull(seed, NULL, 10) : 1;
    read_samples();
    double end = seconds_now() + (seconds ? atof(seconds) : 8);
    char *data = malloc(2 * MAX_SAMPLE);
    long files = 0, opened[3] = {0};
    for (size_t i = 0; i < n_samples; i++)
        try_sample(samples[i].data, samples[i].n, samples[i].kind);
    for (; seconds_now() < end; files++) {
        const sample *s = &samples[draw((uint32_t)n_samples)];
        size_t n = s->n;
        memcpy(data, s->data, n);
        for (uint32_t i = 1 + draw(4); i > 0; i--)
            n = change(data, n, 2 * MAX_SAMPLE);
        double begun = seconds_now();
        opened[s->kind] += try_sample(data, n, s->kind);
        if (seconds_now() - begun > 20)
            fail_msg("file %ld took %.0f s", files, seconds_now() - begun);
    }
    print_message("%ld changed files; opened: %ld files, %ld pickles, %ld indexes\n", files,
                  opened[0], opened[1], opened[2]);
    assert_true(files > 100 && opened[0] > 0 && opened[1] > 0);
    for (size_t i = 0; i < n_samples; i++)
        free(samples[i].data);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changed_files)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
