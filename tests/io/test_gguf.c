/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF as a file of tensors: what is in it comes out, split models open as one, and each way in
 * which a file can be broken is refused in one line that says what is wrong. With QUERN_TEST_DATA
 * also real files, and broken ones that others have met.
 */
#include "../test.h"

#include "../base/fail_alloc.h"
#include "../base/temp_dir.h"
#include "gguf_build.h"
#include "io/tensors.h"

#include <dirent.h>

static qn_tensors *open_good(const char *path)
{
    qn_tensors *t;
    qn_error err = {0};
    if (qn_tensors_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

/* That the file is refused with `part` in its one line. */
static void assert_refused(const qn_text *file, qn_status code, const char *part)
{
    qn_tensors *t;
    qn_error err = {0};
    const char *path = temp_write("bad.gguf", file->data, file->n);
    qn_status status = qn_tensors_open(&t, path, &err);
    if (status == QN_OK) {
        qn_tensors_close(t);
        fail_msg("opened, expected: %s", part);
    }
    assert_null(t);
    if (status != code || err.code != code || strchr(err.message, '\n') ||
        !strstr(err.message, part) || !strstr(err.message, "bad.gguf"))
        fail_msg("expected \"%s\", got %s: %s", part, qn_status_text(status), err.message);
}

static void test_sample(void **state)
{
    for (uint32_t version = 2; version <= 3; version++) {
        qn_text file = gguf_sample(version);
        qn_tensors *t = open_good(temp_write("a.gguf", file.data, file.n));
        assert_int_equal(qn_tensors_count(t), 2);
        const qn_tensor_info *w = qn_tensors_find(t, "w"), *q = qn_tensors_find(t, "q");
        assert_true(w->dtype == QN_F32 && !w->encoding && w->ndim == 2 && w->bytes == 24);
        assert_true(w->shape[0] == 3 && w->shape[1] == 2);
        assert_true(q->dtype == QN_F32 && q->ndim == 2 && q->bytes == 36);
        assert_string_equal(q->encoding, "q4_0");
        assert_true(q->shape[0] == 2 && q->shape[1] == 32);
        float values[6];
        char bytes[36];
        assert_int_equal(qn_tensors_read_bytes(t, w, 0, 24, values, NULL), QN_OK);
        assert_true(values[0] == 0 && values[5] == 5);
        assert_int_equal(qn_tensors_read_bytes(t, q, 0, 36, bytes, NULL), QN_OK);
        assert_true(bytes[0] == 0 && bytes[35] == 35);
        qn_device *device = open_cpu(state);
        qn_scope *s = qn_scope_begin(device);
        float decoded[64]; /* a scale of 256 denormal steps, then codes 2, 3 .. low and 0 .. high */
        assert_int_equal(qn_read(s, qn_tensors_read(s, t, "q"), decoded, sizeof decoded), QN_OK);
        assert_true(decoded[0] == -6 * 0x1p-16f && decoded[1] == -5 * 0x1p-16f);
        assert_true(decoded[16] == -8 * 0x1p-16f && decoded[31] == -7 * 0x1p-16f);
        qn_scope_end(s);
        qn_device_close(device);
        qn_tensors_close(t);
        qn_text_free(&file);
    }
}

static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int64_t value;
    } integers[] = {{"a.u8", 200},         {"a.i8", -56}, {"a.i16", -2},        {"a.u16", 0xfffe},
                    {"a.u32", 0xfffffffe}, {"a.i32", -2}, {"a.u64", INT64_MAX}, {"a.i64", -1}};
    qn_text file = gguf_sample(3);
    qn_tensors *t = open_good(temp_write("a.gguf", file.data, file.n));
    const qn__gguf *g = qn__tensors_gguf(t);
    qn_error err = {0};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        int64_t v = 17;
        qn__gguf_opt_int(g, integers[i].key, INT64_MIN, INT64_MAX, &v, &err);
        assert_true(v == integers[i].value);
    }
    double number = 0;
    bool flag = false;
    qn__gguf_opt_number(g, "a.f32", 0, 1, &number, &err);
    assert_true(number == 0.5);
    qn__gguf_opt_number(g, "a.f64", 0, 1, &number, &err);
    assert_true(number == 0.25);
    qn__gguf_opt_bool(g, "a.bool", &flag, &err);
    assert_true(flag && err.code == QN_OK);
    const qn__gguf_value *v;
    qn__gguf_text text;
    size_t at = 0, n = 0;
    qn__gguf_opt_array(g, "a.texts", QN__GGUF_STRING, &v, &err);
    for (; qn__gguf_next_text(v, &at, &text); n++)
        assert_true(qn__gguf_text_is(&text, n == 0 ? "one" : n == 1 ? "" : "three"));
    assert_int_equal(n, 3);
    qn__gguf_opt_array(g, "a.numbers", QN__GGUF_I32, &v, &err);
    assert_true(v->n == 2 && qn__gguf_int_at(v, 0) == 7 && qn__gguf_int_at(v, 1) == -1);
    assert_int_equal(err.code, QN_OK);
    /* what has another type, is out of range or missing */
    int64_t i = 5;
    assert_int_equal(qn__gguf_opt_int(g, "a.texts", 0, 1, &i, &err), QN_FORMAT);
    assert_non_null(strstr(err.message, "a.texts: expected an integer, got an array of string"));
    err = (qn_error){0};
    assert_int_equal(qn__gguf_opt_int(g, "a.u8", 0, 100, &i, &err), QN_FORMAT);
    assert_non_null(strstr(err.message, "a.u8: expected an integer in 0..100, got 200"));
    assert_int_equal(qn__gguf_opt_int(g, "a.missing", 0, 100, &i, NULL), QN_OK);
    assert_int_equal(i, 5);
    qn_tensors_close(t);
    qn_text_free(&file);
}

/* ---- broken files ---------------------------------------------------------------------------- */

static void test_truncated(void **state)
{
    (void)state;
    qn_text file = gguf_sample(3);
    for (size_t n = 0; n < file.n; n++) {
        qn_tensors *t;
        qn_error err = {0};
        qn_status status = qn_tensors_open(&t, temp_write("bad.gguf", file.data, n), &err);
        if (status == QN_OK || err.code != status || strchr(err.message, '\n'))
            fail_msg("%zu bytes: %s", n, status == QN_OK ? "opened" : err.message);
    }
    qn_text_free(&file);
}

static void patch(qn_text *t, size_t at, uint64_t v, int n)
{
    for (int i = 0; i < n; i++, v >>= 8)
        t->data[at + (size_t)i] = (char)v;
}

static void test_bad_header(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint64_t value;
        int n;
        qn_status code;
        const char *part;
    } cases[] = {
        {GGUF_AT_VERSION, 0, 4, QN_UNSUPPORTED, "GGUF version 0 is not supported"},
        {GGUF_AT_VERSION, 1, 4, QN_UNSUPPORTED, "GGUF version 1, of August 2023"},
        {GGUF_AT_VERSION, 4, 4, QN_UNSUPPORTED, "GGUF version 4 is not supported"},
        {GGUF_AT_VERSION, 0x03000000, 4, QN_UNSUPPORTED, "big-endian"},
        {GGUF_AT_TENSORS, UINT64_MAX, 8, QN_FORMAT, "number of tensors: 18446744073709551615"},
        {GGUF_AT_VALUES, UINT64_MAX, 8, QN_FORMAT, "number of values: 18446744073709551615"},
        {GGUF_AT_VALUES, 1000, 8, QN_FORMAT, "number of values: 1000"},
        {24, UINT64_MAX, 8, QN_FORMAT, "a key at byte"},
        {24, 0, 8, QN_FORMAT, "a key at byte 32 is empty"},
        {32, 0xff, 1, QN_FORMAT, "no UTF-8"},
        {32, 0, 1, QN_FORMAT, "no UTF-8"},
        {44, 13, 4, QN_FORMAT, "general.name: unknown type 13"},
        {48, 1 << 30, 8, QN_FORMAT, "general.name at byte"},
        {48, UINT64_MAX, 8, QN_FORMAT, "general.name at byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_text file = gguf_sample(3);
        patch(&file, cases[i].at, cases[i].value, cases[i].n);
        assert_refused(&file, cases[i].code, cases[i].part);
        qn_text_free(&file);
    }
}

/* More than is read, although there would be room. */
static void test_limits(void **state)
{
    (void)state;
    for (int tensors = 0; tensors < 2; tensors++) {
        qn_text file = {0};
        uint64_t n = tensors ? QN__GGUF_MAX_TENSORS + 1 : QN__GGUF_MAX_VALUES + 1;
        put_header(&file, 3);
        for (uint64_t i = 0; i < n * 4; i++)
            put_int(&file, 0, 8);
        patch(&file, tensors ? GGUF_AT_TENSORS : GGUF_AT_VALUES, n, 8);
        assert_refused(&file, QN_LIMIT,
                       tensors ? "262145, at most 262144" : "65537, at most 65536");
        qn_text_free(&file);
    }
    qn_text file = {0};
    put_header(&file, 3);
    put_key(&file, "long", QN__GGUF_STRING);
    put_int(&file, QN__GGUF_MAX_TEXT + 1, 8);
    for (int i = 0; i <= QN__GGUF_MAX_TEXT / 8; i++)
        put_int(&file, 0, 8);
    assert_refused(&file, QN_LIMIT, "long at byte");
    qn_text_free(&file);
}

static void test_bad_arrays(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        uint64_t n;
        qn_status code;
        const char *part;
    } cases[] = {
        {QN__GGUF_U64, UINT64_MAX / 4, QN_FORMAT, "an array of 4611686018427387903 elements"},
        {QN__GGUF_U64, 1 << 20, QN_FORMAT, "takes 8388608 bytes"},
        {QN__GGUF_STRING, UINT64_MAX, QN_FORMAT, "x at byte"},
        {QN__GGUF_ARRAY, 1, QN_UNSUPPORTED, "x: an array of arrays"},
        {99, 1, QN_FORMAT, "x: unknown type 99"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_text file = {0};
        put_header(&file, 3);
        put_array(&file, "x", cases[i].type, cases[i].n);
        put_int(&file, 0, 8);
        put_int(&file, 0, 8);
        assert_refused(&file, cases[i].code, cases[i].part);
        qn_text_free(&file);
    }
    qn_text file = {0};
    put_header(&file, 3);
    put_key(&file, "x", QN__GGUF_BOOL);
    put_int(&file, 2, 1);
    assert_refused(&file, QN_FORMAT, "x: a bool of 2");
    qn_text_free(&file);
}

static void test_twice(void **state)
{
    (void)state;
    qn_text file = {0};
    put_header(&file, 3);
    put_u32(&file, "b", 1);
    put_u32(&file, "a", 1);
    put_u32(&file, "b", 1);
    assert_refused(&file, QN_FORMAT, "the key b stands twice");
    file.n = 0;
    put_header(&file, 3);
    put_tensor(&file, "w", 1, (const int64_t[]){1}, 0, 0);
    put_tensor(&file, "w", 1, (const int64_t[]){1}, 0, 32);
    put_padding(&file, 32);
    put_int(&file, 0, 8);
    put_padding(&file, 32);
    put_int(&file, 0, 8);
    assert_refused(&file, QN_FORMAT, "tensor w stands twice");
    qn_text_free(&file);
}

static void test_alignment(void **state)
{
    (void)state;
    static const struct {
        uint32_t value;
        const char *part;
    } cases[] = {{0, "general.alignment: expected an integer in 1..1048576, got 0"},
                 {13, "general.alignment: 13 is no power of two"},
                 {0x80000000, "got 2147483648"}};
    qn_text file = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file.n = 0;
        put_header(&file, 3);
        put_u32(&file, "general.alignment", cases[i].value);
        assert_refused(&file, QN_FORMAT, cases[i].part);
    }
    file.n = 0;
    put_header(&file, 3);
    put_string(&file, "general.alignment", "32");
    assert_refused(&file, QN_FORMAT, "general.alignment: expected an integer, got string");
    /* another one counts for where the weights begin, and for their places */
    file.n = 0;
    put_header(&file, 3);
    put_u32(&file, "general.alignment", 128);
    put_tensor(&file, "w", 1, (const int64_t[]){2}, 26, 0);
    put_padding(&file, 128);
    put_int(&file, 77, 4);
    put_int(&file, 78, 4);
    qn_tensors *t = open_good(temp_write("a.gguf", file.data, file.n));
    int32_t values[2];
    qn_tensors_read_bytes(t, qn_tensors_get(t, 0), 0, 8, values, NULL);
    assert_true(values[0] == 77 && values[1] == 78);
    qn_tensors_close(t);
    qn_text_free(&file);
}

static void test_bad_tensors(void **state)
{
    (void)state;
    static const struct {
        int ndim;
        int64_t dims[5];
        uint32_t type;
        uint64_t offset;
        qn_status code;
        const char *part;
    } cases[] = {
        {5, {1, 1, 1, 1, 1}, 0, 0, QN_FORMAT, "tensor w: dimensions: 5, expected at most 4"},
        {1, {-1}, 0, 0, QN_FORMAT, "tensor w: a dimension of 18446744073709551615"},
        {2, {INT64_MAX, INT64_MAX}, 0, 0, QN_FORMAT, "of shape [9223372036854775807, "},
        {2, {1ll << 32, 1ll << 32}, 2, 0, QN_FORMAT, "tensor w of shape [4294967296, 4294967296]"},
        {1, {1ll << 62}, 0, 0, QN_FORMAT, "cannot be f32"},
        {2, {33, 1}, 2, 0, QN_FORMAT, "cannot be q4_0, which has blocks of 32 values"},
        {1, {128}, 12, 0, QN_FORMAT, "cannot be q4_k, which has blocks of 256 values"},
        {1, {8}, 0, 64, QN_FORMAT, "tensor w: an offset of 64"},
        {1, {17}, 0, 0, QN_FORMAT, "tensor w takes 68 bytes from byte"},
        {1, {1}, 0, 4, QN_FORMAT, "tensor w: an offset of 4, expected a multiple of general.align"},
        {1, {1}, 0, UINT64_MAX - 31, QN_FORMAT, "tensor w: an offset of 18446744073709551584"},
        {1, {256}, 16, 0, QN_UNSUPPORTED, "type 16 (IQ2_XXS) is not supported (supported: f64"},
        {1, {256}, 1000, 0, QN_UNSUPPORTED, "type 1000 is not supported"},
        {1, {128}, 36, 0, QN_FORMAT, "tensor w takes 64 bytes"}, /* I2_S: a scale behind */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_text file = {0};
        put_header(&file, 3);
        put_tensor(&file, "w", cases[i].ndim, cases[i].dims, cases[i].type, cases[i].offset);
        put_padding(&file, 32);
        for (int j = 0; j < 7; j++)
            put_int(&file, 0, 8);
        assert_refused(&file, cases[i].code, cases[i].part);
        qn_text_free(&file);
    }
    qn_text file = {0};
    put_header(&file, 3);
    put_tensor(&file, "b", 1, (const int64_t[]){4}, 0, 32);
    put_tensor(&file, "a", 1, (const int64_t[]){9}, 0, 0);
    put_padding(&file, 32);
    for (int i = 0; i < 8; i++)
        put_int(&file, 0, 8);
    assert_refused(&file, QN_FORMAT, "tensors a and b overlap at byte");
    qn_text_free(&file);
}

/* ---- split models ---------------------------------------------------------------------------- */

typedef struct part {
    uint32_t version, no, count, tensors;
    const char *name;
} part;

/* A part with one i32 tensor. */
static void write_part(const char *path, const part *p, int32_t value)
{
    qn_text file = {0};
    put_header(&file, p->version);
    put_u16(&file, "split.no", p->no);
    put_u16(&file, "split.count", p->count);
    put_u32(&file, "split.tensors.count", p->tensors);
    put_tensor(&file, p->name, 1, (const int64_t[]){1}, 26, 0);
    put_padding(&file, 32);
    put_int(&file, (uint64_t)value, 4);
    temp_write(path, file.data, file.n);
    qn_text_free(&file);
}

static const char *write_parts(const part *second)
{
    static char path[PATH_MAX];
    write_part("m-00002-of-00003.gguf", second, 2);
    write_part("m-00003-of-00003.gguf", &(part){3, 2, 3, 3, "c"}, 3);
    write_part("m-00001-of-00003.gguf", &(part){3, 0, 3, 3, "a"}, 1);
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", temp_root);
    return path;
}

static void test_split(void **state)
{
    (void)state;
    qn_tensors *t = open_good(write_parts(&(part){3, 1, 3, 3, "b"}));
    assert_int_equal(qn_tensors_count(t), 3);
    for (int i = 0; i < 3; i++) {
        int32_t value = 0;
        const qn_tensor_info *info = qn_tensors_get(t, (size_t)i);
        assert_int_equal(info->name[0], 'a' + i);
        qn_tensors_read_bytes(t, info, 0, 4, &value, NULL);
        assert_int_equal(value, i + 1);
    }
    qn_tensors_close(t);
}

static void assert_split_refused(const char *path, qn_status code, const char *text)
{
    qn_tensors *t;
    qn_error err = {0};
    assert_int_equal(qn_tensors_open(&t, path, &err), code);
    if (!strstr(err.message, text) || strchr(err.message, '\n'))
        fail_msg("expected \"%s\", got %s", text, err.message);
}

static void test_bad_split(void **state)
{
    (void)state;
    char path[PATH_MAX];
    assert_split_refused(write_parts(&(part){3, 2, 3, 3, "b"}), QN_FORMAT,
                         "says that it is part 3 of 3, but it stands in the place of part 2 of 3");
    assert_split_refused(write_parts(&(part){3, 1, 4, 3, "b"}), QN_FORMAT, "part 2 of 4");
    assert_split_refused(write_parts(&(part){2, 1, 3, 3, "b"}), QN_FORMAT, "GGUF version 2, but");
    assert_split_refused(write_parts(&(part){3, 1, 3, 3, "a"}), QN_FORMAT, "tensor a stands also");
    const char *first = write_parts(&(part){3, 1, 3, 3, "b"});
    snprintf(path, sizeof path, "%s/m-00002-of-00003.gguf", temp_root);
    assert_split_refused(path, QN_INVALID, "is part 2 of 3; give the first one");
    write_part("m-00001-of-00003.gguf", &(part){3, 0, 3, 4, "a"}, 1);
    assert_split_refused(first, QN_FORMAT, "split.tensors.count is 4, but the 3 parts have 3");
    write_part("m-00001-of-00003.gguf", &(part){3, 0, 2, 3, "a"}, 1);
    assert_split_refused(first, QN_FORMAT, "its name does not end in -00001-of-00002.gguf");
    write_parts(&(part){3, 1, 3, 3, "b"});
    unlink(path);
    assert_split_refused(first, QN_NOT_FOUND, "m-00002-of-00003.gguf");
}

/* ---- memory and reading ---------------------------------------------------------------------- */

static void test_failing_allocations(void **state)
{
    (void)state;
    const char *path = write_parts(&(part){3, 1, 3, 3, "b"});
    for (long n = 0;; n++) {
        qn_tensors *t = NULL;
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = qn_tensors_open(&t, path, &err);
        if (!fail_allocation_end()) {
            assert_int_equal(status, QN_OK);
            assert_true(n > 10);
            qn_tensors_close(t);
            return;
        }
        assert_int_equal(status, QN_MEMORY);
        assert_null(t);
    }
}

/* Meson asks for 64-bit offsets: so pread is called. */
static long reads_left = -1;

ssize_t __real_pread64(int fd, void *data, size_t n, off_t offset);
ssize_t __wrap_pread64(int fd, void *data, size_t n, off_t offset);

ssize_t __wrap_pread64(int fd, void *data, size_t n, off_t offset)
{
    if (reads_left == 0) {
        errno = EIO;
        return -1;
    }
    reads_left -= reads_left > 0;
    return __real_pread64(fd, data, n, offset);
}

static void test_failing_reads(void **state)
{
    (void)state;
    const char *path = write_parts(&(part){3, 1, 3, 3, "b"});
    qn_tensors *t = NULL;
    qn_error err = {0};
    qn_status status = QN_IO;
    int n = 0;
    for (; status != QN_OK; n++) {
        err = (qn_error){0};
        reads_left = n;
        status = qn_tensors_open(&t, path, &err);
        reads_left = -1;
        assert_true(status == QN_OK || (status == QN_IO && strstr(err.message, "-of-00003.gguf")));
    }
    assert_true(n >= 4);
    qn_tensors_close(t);
}

/* ---- files of others ------------------------------------------------------------------------- */

static const char *data_root(const char *folder)
{
    static char path[PATH_MAX];
    const char *root = getenv("QUERN_TEST_DATA");
    if (!root) {
        print_message("skipped: QUERN_TEST_DATA is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/%s", root, folder);
    return path;
}

static void test_others(void **state)
{
    (void)state;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/ollama_llama-2-tiny-random.gguf", data_root("models"));
    qn_tensors *t = open_good(path);
    assert_int_equal(qn_tensors_count(t), 12);
    const qn_tensor_info *e = qn_tensors_find(t, "token_embd.weight");
    assert_true(e && e->ndim == 2 && e->shape[0] > e->shape[1]);
    qn_tensors_close(t);
    snprintf(path, sizeof path, "%s/gguf_small/weight-inspect_empty.gguf", data_root("models"));
    qn_tensors_close(open_good(path));
}

/* Of the fuzzers' finds each is refused with a line, or is readable to the last byte. */
static void test_malformed(void **state)
{
    (void)state;
    static const char *const folders[] = {"malformed/gguf_fuzz", "malformed/bitnet-rs_gguf_stubs"};
    int refused = 0, files = 0;
    for (int f = 0; f < 2; f++) {
        char folder[PATH_MAX], path[PATH_MAX + 300];
        snprintf(folder, sizeof folder, "%s", data_root(folders[f]));
        DIR *d = opendir(folder);
        assert_non_null(d);
        for (struct dirent *e; (e = readdir(d));) {
            qn_tensors *t;
            qn_error err = {0};
            if (e->d_name[0] == '.')
                continue;
            files++;
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            if (qn_tensors_open(&t, path, &err) != QN_OK) {
                assert_true(err.message[0] && !strchr(err.message, '\n'));
                refused++;
                continue;
            }
            for (size_t i = 0; i < qn_tensors_count(t); i++) {
                const qn_tensor_info *info = qn_tensors_get(t, i);
                char *data = malloc((size_t)info->bytes + 1);
                assert_int_equal(qn_tensors_read_bytes(t, info, 0, (size_t)info->bytes, data, &err),
                                 QN_OK);
                free(data);
            }
            qn_tensors_close(t);
        }
        closedir(d);
    }
    assert_true(files >= 70);
    print_message("%d of %d refused\n", refused, files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample),        cmocka_unit_test(test_values),
        cmocka_unit_test(test_truncated),     cmocka_unit_test(test_bad_header),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_bad_arrays),
        cmocka_unit_test(test_twice),         cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_bad_tensors),   cmocka_unit_test(test_split),
        cmocka_unit_test(test_bad_split),     cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_failing_reads), cmocka_unit_test(test_others),
        cmocka_unit_test(test_malformed),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
