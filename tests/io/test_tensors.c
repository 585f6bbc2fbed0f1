/* SPDX-License-Identifier: Apache-2.0
 *
 * npz, npy and PyTorch's checkpoints: files by numpy and torch hold what safetensors' own library
 * says (files/, by make_files.py); bad ones are refused with their line; what we write comes back.
 */
#include "../test.h"

#include "io/pickle.h"
#include "../base/fail_alloc.h"
#include "../base/temp_dir.h"

#include <time.h>

static const char *file_path(const char *name)
{
    static char ring[4][PATH_MAX];
    static int next;
    const char *root = getenv("QUERN_SOURCE");
    char *out = ring[next++ % 4];
    snprintf(out, PATH_MAX, "%s/tests/io/files/%s", root ? root : ".", name);
    return out;
}

static qn_tensors *open_tensors(const char *path)
{
    qn_tensors *t;
    qn_error err = {0};
    if (qn_tensors_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static char *read_tensor(const qn_tensors *file, const qn_tensor_info *t)
{
    qn_error err = {0};
    char *data = malloc((size_t)t->bytes + 1);
    if (qn_tensors_read_bytes(file, t, 0, (size_t)t->bytes, data, &err) != QN_OK)
        fail_msg("%s", err.message);
    return data;
}

static void assert_same(const qn_tensors *a, const qn_tensors *b)
{
    assert_int_equal(qn_tensors_count(a), qn_tensors_count(b));
    for (size_t i = 0; i < qn_tensors_count(a); i++) {
        const qn_tensor_info *x = qn_tensors_get(a, i), *y = qn_tensors_get(b, i);
        assert_string_equal(x->name, y->name);
        if (x->dtype != y->dtype || x->ndim != y->ndim || x->bytes != y->bytes)
            fail_msg("%s: %s, %d axes, %llu bytes", x->name, qn_dtype_name(x->dtype), x->ndim,
                     (unsigned long long)x->bytes);
        assert_memory_equal(x->shape, y->shape, (size_t)x->ndim * sizeof *x->shape);
        char *p = read_tensor(a, x), *q = read_tensor(b, y);
        if (memcmp(p, q, (size_t)x->bytes) != 0)
            fail_msg("%s: values differ", x->name);
        /* in pieces, and backwards */
        for (uint64_t at = 0; at < x->bytes; at += 5) {
            size_t n = x->bytes - at < 5 ? (size_t)(x->bytes - at) : 5;
            assert_int_equal(qn_tensors_read_bytes(a, x, x->bytes - at - n, n, p, NULL), QN_OK);
            assert_memory_equal(p, q + x->bytes - at - n, n);
            if (x->bytes > 4096)
                break; /* each step back inflates anew */
        }
        for (uint64_t at = 0; at < x->bytes; at += 7) {
            size_t n = x->bytes - at < 7 ? (size_t)(x->bytes - at) : 7;
            assert_int_equal(qn_tensors_read_bytes(a, x, at, n, p, NULL), QN_OK);
            assert_memory_equal(p, q + at, n);
        }
        free(p);
        free(q);
    }
}

static void check_files(const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char expected[80];
        snprintf(expected, sizeof expected, "%s.expected.safetensors", names[i]);
        qn_tensors *a = open_tensors(file_path(names[i])), *b = open_tensors(file_path(expected));
        assert_same(a, b);
        assert_true(strstr(qn_tensors_path(a, 0), names[i]) != NULL);
        qn_tensors_close(a);
        qn_tensors_close(b);
    }
}

static void test_arrays_of_numpy(void **state)
{
    (void)state;
    static const char *const names[] = {"v1.npy", "v2.npy", "v3.npy"};
    check_files(names, sizeof names / sizeof *names);
}

static void test_archives_of_others(void **state)
{
    (void)state;
    static const char *const names[] = {"all.npz",    "packed.npz",    "state.pth",
                                        "nested.pth", "protocol4.pth", "wrapped.pth"};
    skip_without_libzip();
    check_files(names, sizeof names / sizeof *names);
}

static qn_status status_named(const char *name)
{
#define STATUS_NAME(code, text)                                                                    \
    if (!strcmp(name, #code))                                                                      \
        return QN_##code;
    QN_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    fail_msg("no status %s", name);
    return QN_OK;
}

static void assert_line(const qn_error *err, qn_status code, const char *name, const char *part)
{
    if (err->code != code || strchr(err->message, '\n') || !strstr(err->message, part) ||
        !strstr(err->message, name))
        fail_msg("%s: expected %s and \"%s\", got %s: %s", name, qn_status_text(code), part,
                 qn_status_text(err->code), err->message);
}

/* Whether this build refuses the file as a whole. */
static bool is_unread_archive(const char *path)
{
    char magic[2] = {0};
    FILE *f = fopen(path, "rb");
    bool archive = !WITH_LIBZIP && fread(magic, 1, 2, f) == 2 && !memcmp(magic, "PK", 2);
    fclose(f);
    return archive;
}

/* Those named read-* open, and fail when their tensor is read. */
static void test_bad_files(void **state)
{
    (void)state;
    char line[400];
    int n = 0;
    FILE *f = fopen(file_path("cases.txt"), "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); n++) {
        char *code = strchr(line, '|'), *part = strchr(code + 1, '|');
        *code++ = *part++ = '\0';
        part[strlen(part) - 1] = '\0';
        qn_tensors *t = NULL;
        qn_error err = {0};
        qn_status status = qn_tensors_open(&t, file_path(line), &err);
        if (!strncmp(line, "read-", 5) && status == QN_OK) {
            const qn_tensor_info *info = qn_tensors_get(t, 0);
            char *data = malloc((size_t)info->bytes);
            status = qn_tensors_read_bytes(t, info, 0, (size_t)info->bytes, data, &err);
            free(data);
        } else {
            assert_null(t);
        }
        assert_int_equal(status, err.code);
        if (is_unread_archive(file_path(line)))
            assert_line(&err, QN_UNSUPPORTED, line, "configured with -Dlibzip=disabled");
        else
            assert_line(&err, status_named(code), line, part);
        qn_tensors_close(t);
    }
    fclose(f);
    assert_true(n > 40);
    assert_int_equal(access("/tmp/quern-was-here", F_OK), -1);
}

/* A file cut anywhere is refused, when opened or when read. */
static void test_truncations(void **state)
{
    (void)state;
    static const char *const names[] = {"v1.npy", "nested.pth", "bad-twice.npz"};
    for (size_t i = 0; i < 3; i++) {
        char data[20000];
        FILE *f = fopen(file_path(names[i]), "rb");
        size_t n = fread(data, 1, sizeof data, f);
        fclose(f);
        assert_true(n > 100 && n < sizeof data);
        for (size_t size = 0; size < n; size++) {
            qn_tensors *t;
            qn_error err = {0};
            assert_int_not_equal(qn_tensors_open(&t, temp_write("cut", data, size), &err), QN_OK);
            assert_null(t);
            assert_null(strchr(err.message, '\n'));
            assert_non_null(strstr(err.message, "cut: "));
        }
    }
}

/* ---- pickles by hand
 * ------------------------------------------------------------------------------ */

static qn_status count_tensor(void *user, const char *name, const qn__pickled_tensor *t,
                              qn_error *err)
{
    (void)name, (void)t, (void)err;
    ++*(int *)user;
    return QN_OK;
}

#define STORAGE                                                                                    \
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"                                             \
    "0X\3\0\0\0cpuK\4tQ"
#define CALL "ctorch._utils\n_rebuild_tensor_v2\n"

static const struct {
    const char *data;
    size_t n;
    int tensors; /* or -1, and code and part */
    qn_status code;
    const char *part;
} pickles[] = {
#define P(text) text, sizeof text - 1
    {P("\x80\2}."), 0, QN_OK, ""},
    {P("\x80\2}X\1\0\0\0a" CALL "(" STORAGE "K\0K\2K\2\x86K\2K\1\x86tRs."), 1, QN_OK, ""},
    {P("\x80\2}X\1\0\0\0a" CALL "(" STORAGE "K\1K\2K\2\x86K\2K\1\x86tRs."), -1, QN_FORMAT,
     "outside storage 0"},
    {P("\x80\2}X\1\0\0\0a" CALL "(" STORAGE "K\0K\2K\2\x86K\2J\xff\xff\xff\xff\x86tRs."), -1,
     QN_FORMAT, "shape or strides"},
    {P("\x80\2}X\1\0\0\0a" CALL "(" STORAGE "J\xff\xff\xff\xffK\1\x85K\1\x85tRs."), -1, QN_FORMAT,
     "not made of a storage"},
    {P("\x80\2}X\1\0\0\0a" CALL "(" STORAGE "K\0\x8a\10\0\0\0\0\0\0\0\x40K\4\x86K\1K\1\x86tRs."),
     -1, QN_FORMAT, "outside storage"},
    {P("\x80\2}X\1\0\0\0a" CALL "(" STORAGE "K\0\x8a\11\0\0\0\0\0\0\0\x40\0\x85K\1\x85tRs."), -1,
     QN_LIMIT, "a number of 9 bytes"},
    {P("\x80\2}q\0h\0h\0s."), -1, QN_FORMAT, "the key of a tensor is a dictionary"},
    {P("\x80\2}q\0X\1\0\0\0ah\0s."), -1, QN_LIMIT, "beyond 16 levels"}, /* it contains itself */
    {P("\x80\2]q\0h\0a."), -1, QN_UNSUPPORTED, "the checkpoint holds a list"},
    {P("\x80\2cos\nsystem\n."), -1, QN_UNSUPPORTED, "names os.system"},
    {P("\x80\4X\2\0\0\0osX\6\0\0\0system\x93."), -1, QN_UNSUPPORTED, "names os.system"},
    {P("\x80\2cbuiltins\neval\n."), -1, QN_UNSUPPORTED, "names builtins.eval"},
    {P("\x80\2ccollections\nOrderedDict\n(]]\x86tR."), -1, QN_FORMAT, "called with unknown"},
    {P("\x80\2}}R."), -1, QN_FORMAT, "is called"},
    {P("\x80\2K\1}b."), -1, QN_UNSUPPORTED, "given a state"},
    {P("\x80\2(i."), -1, QN_UNSUPPORTED, "pickle instruction 0x69"},
    {P("\x80\2\x81."), -1, QN_UNSUPPORTED, "pickle instruction 0x81"},
    {P("\x80\1}."), -1, QN_UNSUPPORTED, "pickle protocol 1; 2 to 5"},
    {P("\x80\2}"), -1, QN_FORMAT, "ends inside an instruction"},
    {P("\x80\2X\xff\xff\xff\xff"
       "a."),
     -1, QN_FORMAT, "a string of 4294967295 bytes, 2 are left"},
    {P("\x80\2r\0\0\0\x80."), -1, QN_FORMAT, "the memo takes what is not there"},
    {P("\x80\2}r\0\0\0\x80."), -1, QN_LIMIT, "memo index 2147483648"},
    {P("\x80\2h\5."), -1, QN_FORMAT, "nothing is in the memo at 5"},
    {P("\x80\2."), -1, QN_FORMAT, "lacks its operand"},
    {P("\x80\2(."), -1, QN_FORMAT, "lacks its operand"},
    {P("\x80\2t."), -1, QN_FORMAT, "lacks its mark"},
    {P("\x80\2K\1K\2K\3s."), -1, QN_FORMAT, "not a dictionary"},
    {P("\x80\2}(K\1u."), -1, QN_FORMAT, "not a dictionary"},
    {P("\x80\2}.x"), -1, QN_FORMAT, "1 bytes behind the pickle's end"},
    {P("\x80\2K\1Q."), -1, QN_FORMAT, "a persistent id is no storage"},
    {P("\x80\2cos\nsys"), -1, QN_FORMAT, "ends inside a name"},
#undef P
};

static void test_pickles(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++) {
        int n = 0;
        qn_error err = {0};
        char *exact = malloc(pickles[i].n);
        memcpy(exact, pickles[i].data, pickles[i].n);
        qn_status status = qn__pickle_read("p", exact, pickles[i].n, count_tensor, &n, &err);
        free(exact);
        assert_int_equal(status, err.code);
        assert_line(&err, pickles[i].code, pickles[i].code ? "p: " : "", pickles[i].part);
        if (status == QN_OK)
            assert_int_equal(n, pickles[i].tensors);
    }
}

/* Dictionaries in each other twice, fourteen deep; and a stack without end. */
static void test_large_pickles(void **state)
{
    (void)state;
    int n = 0;
    qn_error err = {0};
    size_t at;
    clock_t begun = clock();
    size_t room = (3 << 20) + 8;
    char *large = malloc(room);
    memset(large, 'N', room);
    memcpy(large, "\x80\2", 2);
    assert_int_equal(qn__pickle_read("p", large, room, count_tensor, &n, &err), QN_LIMIT);
    assert_line(&err, QN_LIMIT, "p: ", "more than 2097152 values");
    /* d0 = {}; d(i+1) = {"a": d(i), "b": d(i)} */
    at = 2;
    large[at++] = '}';
    large[at++] = 'q';
    large[at++] = 0;
    for (int i = 0; i < 14; i++) {
        static const char key[] = "X\1\0\0\0";
        large[at++] = '}';
        for (int k = 0; k < 2; k++) {
            memcpy(large + at, key, 5);
            large[at + 5] = (char)('a' + k);
            large[at + 6] = 'h';
            large[at + 7] = (char)i;
            large[at + 8] = 's';
            at += 9;
        }
        large[at++] = 'q';
        large[at++] = (char)(i + 1);
    }
    large[at++] = '.';
    err = (qn_error){0};
    assert_int_equal(qn__pickle_read("p", large, at, count_tensor, &n, &err), QN_OK);
    free(large);
    assert_int_equal(n, 0);
    assert_true((double)(clock() - begun) / CLOCKS_PER_SEC < 10);
}

/* ---- writing
 * --------------------------------------------------------------------------------------- */

static void test_arrays_and_writing(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"npz", "safetensors"};
    qn_device *device = open_cpu(NULL);
    qn_error err = {0};
    qn_tensors *file =
        open_tensors(file_path(WITH_LIBZIP ? "all.npz" : "all.npz.expected.safetensors"));
    for (int k = WITH_LIBZIP ? 0 : 1; k < 2; k++) {
        qn_scope *s = qn_scope_begin(device);
        qn_named_array arrays[32];
        int n = (int)qn_tensors_count(file);
        for (int i = 0; i < n; i++) {
            const char *name = qn_tensors_get(file, (size_t)i)->name;
            arrays[i] = (qn_named_array){name, qn_tensors_read(s, file, name)};
        }
        char name[40];
        snprintf(name, sizeof name, "out.%s", suffixes[k]);
        if (qn_tensors_write(s, temp_path(name), arrays, n, &err) != QN_OK)
            fail_msg("%s", err.message);
        qn_tensors *back = open_tensors(temp_path(name));
        assert_same(back, file);
        qn_tensors_close(back);
        /* a lazy, transposed value into an npy */
        qn_array *x = qn_tensors_read(s, file, "fortran2");
        qn_named_array one = {"x", qn_add(s, qn_transpose(s, x, NULL), qn_scalar(s, QN_F64, 1))};
        assert_int_equal(qn_tensors_write(s, temp_path("one.npy"), &one, 1, &err), QN_OK);
        back = open_tensors(temp_path("one.npy"));
        const qn_tensor_info *t = qn_tensors_find(back, "one");
        assert_true(t && t->shape[0] == 7 && t->shape[1] == 4);
        double a[28], b[28];
        assert_int_equal(qn_tensors_read_bytes(back, t, 0, sizeof a, a, &err), QN_OK);
        assert_int_equal(qn_read(s, x, b, sizeof b), QN_OK);
        for (int i = 0; i < 28; i++)
            assert_true(a[i] == b[i % 4 * 7 + i / 4] + 1);
        qn_tensors_close(back);

        one.array = qn_cast(s, x, QN_BF16);
        assert_int_equal(qn_tensors_write(s, temp_path("one.npy"), &one, 1, &err), QN_UNSUPPORTED);
        assert_line(&err, QN_UNSUPPORTED, "one.npy", "NumPy has no bf16");
        err = (qn_error){0};
        assert_int_equal(qn_tensors_write(s, temp_path("one.bin"), &one, 1, &err), QN_INVALID);
        assert_line(&err, QN_INVALID, "one.bin", "end in .safetensors, .npz or .npy");
        err = (qn_error){0};
        qn_tensors_read(s, file, "none");
        assert_int_equal(qn_scope_status(s), QN_NOT_FOUND);
        assert_non_null(strstr(qn_scope_error(s), "all.npz"));
        assert_non_null(strstr(qn_scope_error(s), ": no tensor none"));
        qn_scope_end(s);
    }
    qn_tensors_close(file);
    qn_device_close(device);
}

static void test_failed_allocations(void **state)
{
    (void)state;
    static const char *const names[] = {"v3.npy", "all.npz", "state.pth"};
    for (size_t i = 0; i < (WITH_LIBZIP ? 3 : 1); i++) {
        bool more = true;
        for (long n = 0; more; n++) {
            qn_tensors *t = NULL;
            char data[1 << 12];
            qn_error err = {0};
            fail_allocation_begin(n);
            qn_status status = qn_tensors_open(&t, file_path(names[i]), &err);
            for (size_t k = 0; status == QN_OK && k < qn_tensors_count(t); k++) {
                const qn_tensor_info *info = qn_tensors_get(t, k);
                status = qn_tensors_read_bytes(t, info, 0, (size_t)info->bytes, data, &err);
            }
            more = fail_allocation_end();
            assert_int_equal(status, more ? QN_MEMORY : QN_OK);
            qn_tensors_close(t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays_of_numpy),
        cmocka_unit_test(test_archives_of_others),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_truncations),
        cmocka_unit_test(test_pickles),
        cmocka_unit_test(test_large_pickles),
        cmocka_unit_test(test_arrays_and_writing),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
