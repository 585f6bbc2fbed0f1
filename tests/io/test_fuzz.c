/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile files of tensors: valid and broken ones (files/), changed at random (fuzz.h), have to be
 * refused in one line, or to be readable. Archives hide most of what they hold behind checksums, so
 * the pickle of a checkpoint is changed by itself, too.
 */
#include "fuzz.h"

#include "base/file.h"
#include "gguf_build.h"
#include "io/archive.h"
#include "io/pickle.h"

enum { LARGEST_READ = 1 << 24 };

static char *read_file_of(const char *name, size_t *n)
{
    char path[PATH_MAX], *data;
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/tests/io/files/%.200s", root ? root : ".", name);
    assert_int_equal(qn__file_read(path, FUZZ_LARGEST, &data, n, NULL), QN_OK);
    return data;
}

/* The files whose names end so. */
static void add_files(const char *suffix)
{
    char path[PATH_MAX];
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/tests/io/files", root ? root : ".");
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t n, length = strlen(e->d_name), m = strlen(suffix);
        if (length < m || strcmp(e->d_name + length - m, suffix) != 0)
            continue;
        char *data = read_file_of(e->d_name, &n);
        fuzz_add(data, n);
        free(data);
    }
    closedir(dir);
}

static void begin_safetensors(void)
{
    static const char sharing[] =
        "\xa0\0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\","
        "\"shape\":[2,1],"
        "\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[8,10]}}";
    char padded[8 + 160 + 10];
    memset(padded, ' ', sizeof padded);
    memcpy(padded, sharing, sizeof sharing - 1);
    add_files(".safetensors");
    fuzz_add(padded, sizeof padded);
}

static void begin_gguf(void)
{
    qn_text sample = gguf_sample(3), bare = {0};
    put_header(&bare, 2);
    put_u32(&bare, "general.alignment", 8);
    put_tensor(&bare, "w", 1, (const int64_t[]){2}, 0, 0);
    put_padding(&bare, 8);
    put_int(&bare, 0, 8);
    fuzz_add(sample.data, sample.n);
    fuzz_add(bare.data, bare.n);
    qn_text_free(&sample);
    qn_text_free(&bare);
}

static void begin_npy(void)
{
    add_files(".npy");
}

static void begin_npz(void)
{
    add_files(".npz");
}

static void begin_torch(void)
{
    add_files(".pth");
}

static void begin_index(void)
{
    static const char index[] =
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"v1\":\"v1.npy\","
        "\"a.w\":\"n.safetensors\",\"a.3\":\"n.safetensors\"}}";
    static const char *const from[] = {"v1.npy", "nested.pth.expected.safetensors"},
                             *const to[] = {"v1.npy", "n.safetensors"};
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *data = read_file_of(from[i], &n);
        temp_write(to[i], data, n);
        free(data);
    }
    fuzz_add(index, sizeof index - 1);
}

/* The pickles inside checkpoints. */
static void begin_pickle(void)
{
    static const char *const names[] = {"state.pth",  "nested.pth", "protocol4.pth", "wrapped.pth",
                                        "module.pth", "list.pth",   "evil.pth"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n;
        qn__file file;
        qn__archive *archive;
        char *data = read_file_of(names[i], &n);
        assert_int_equal(qn__file_open(&file, temp_write("p", data, n), NULL), QN_OK);
        free(data);
        qn_error err = {0};
        assert_int_equal(qn__archive_open(&archive, &file, &err), QN_OK);
        uint32_t member = (uint32_t)qn__torch_find(archive);
        n = (size_t)qn__archive_size(archive, member);
        data = malloc(n);
        assert_int_equal(qn__archive_read(archive, member, 0, n, data, &err), QN_OK);
        fuzz_add(data, n);
        free(data);
        qn__archive_close(archive);
        qn__file_close(&file);
    }
}

static void assert_refused(const qn_error *err, qn_status status)
{
    assert_true(status != QN_OK && err->code == status && err->message[0] != '\0');
    assert_null(strchr(err->message, '\n'));
}

/* Opens it; if that works, its tensors read, or fail with a line. */
static bool opens(const char *path)
{
    qn_tensors *t;
    qn_error err = {0};
    qn_status status = qn_tensors_open(&t, path, &err);
    if (status != QN_OK) {
        assert_refused(&err, status);
        return false;
    }
    for (size_t i = 0; i < qn_tensors_count(t); i++) {
        const qn_tensor_info *info = qn_tensors_get(t, i);
        size_t bytes = info->bytes < LARGEST_READ ? (size_t)info->bytes : LARGEST_READ;
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

static bool opens_file(const char *data, size_t n)
{
    return opens(temp_write("fuzzed", data, n));
}

static bool opens_index(const char *data, size_t n)
{
    return opens(temp_write("fuzzed.index.json", data, n));
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

static bool reads_pickle(const char *data, size_t n)
{
    qn_error err = {0};
    qn_status status = qn__pickle_read("fuzzed", data, n, check_tensor, NULL, &err);
    if (status != QN_OK)
        assert_refused(&err, status);
    return status == QN_OK;
}

static const char *const index_words[] = {
    "v1.npy", "n.safetensors", "../", "/", "\"v1\":", "null", "{", "}", ",", "\\u0000", "1", NULL};
static const char *const npy_words[] = {"'descr'",
                                        "'<f4'",
                                        "'|O'",
                                        "True",
                                        "(3,",
                                        "-1",
                                        ")",
                                        "'shape': ",
                                        "18446744073709551616",
                                        "4294967296, 4294967296",
                                        NULL};
static const char *const gguf_words[] = {"GGUF",
                                         "general.alignment",
                                         "split.count",
                                         "split.no",
                                         "\1\1\1\1\1\1\1",
                                         "\xff\xff\xff\xff",
                                         "\x09",
                                         "\x0c",
                                         NULL};
static const char *const pickle_words[] = {"ctorch._utils\n_rebuild_tensor_v2\n",
                                           "ccollections\nOrderedDict\n",
                                           "cos\nsystem\n",
                                           "\x8a\x08",
                                           "J\xff\xff\xff\x7f",
                                           "r\xff\xff\xff\xff",
                                           "X\xff\xff\xff\xff",
                                           "h\x01",
                                           "(",
                                           "tR",
                                           "\x86",
                                           "Q",
                                           "}",
                                           "s",
                                           NULL};

static void test_changed_files(void **state)
{
    (void)state;
    static const fuzz_parser parsers[] = {
        {"safetensors", begin_safetensors, opens_file, fuzz_json_words},
        {"index.json", begin_index, opens_index, index_words},
        {"gguf", begin_gguf, opens_file, gguf_words},
        {"npy", begin_npy, opens_file, npy_words},
        {"npz", begin_npz, opens_file, fuzz_binary_words},
        {"torch", begin_torch, opens_file, fuzz_binary_words},
        {"pickle", begin_pickle, reads_pickle, pickle_words},
    };
    fuzz_parsers(parsers, WITH_LIBZIP ? 7 : 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changed_files)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
