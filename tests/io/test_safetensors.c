/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors: broken files built here byte by byte, each refused with its line; shards and their
 * index; files of other programs (in QUERN_TEST_DATA); what the writer wrote, read back.
 */
#include "test.h"

#include "io/safetensors.h"
#include "../base/fail_alloc.h"
#include "../base/temp_dir.h"

#include <errno.h>
#include <time.h>

static void assert_one_line(const qn_error *err, qn_status code, const char *part)
{
    if (err->code != code)
        fail_msg("code %d, expected %d (%s): %s", (int)err->code, (int)code, part, err->message);
    assert_null(strchr(err->message, '\n'));
    if (!strstr(err->message, part))
        fail_msg("message \"%s\" lacks \"%s\"", err->message, part);
}

/* A file with this header and n bytes of data 0, 1, 2, ... */
static const char *make_file(const char *name, const char *header, size_t header_size, size_t n)
{
    size_t size = 8 + header_size + n;
    unsigned char *bytes = malloc(size);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)header_size >> 8 * i);
    memcpy(bytes + 8, header, header_size);
    for (size_t i = 0; i < n; i++)
        bytes[8 + header_size + i] = (unsigned char)i;
    const char *path = temp_write(name, bytes, size);
    free(bytes);
    return path;
}

static void assert_open_fails(const char *path, qn_status code, const char *part)
{
    qn_tensors *reader = (qn_tensors *)1;
    qn_error err = {0};
    qn_status status = qn_tensors_open(&reader, path, &err);
    assert_null(reader);
    assert_int_equal(status, err.code);
    assert_one_line(&err, code, part);
}

typedef struct bad_header {
    const char *header;
    size_t data; /* bytes behind it */
    qn_status code;
    const char *part;
} bad_header;

#define T(shape, begin, end)                                                                       \
    "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const bad_header bad_headers[] = {
    /* not a header */
    {"[]", 0, QN_FORMAT, "does not begin with '{'"},
    {" {}", 0, QN_FORMAT, "does not begin with '{'"},
    {"{", 0, QN_FORMAT, "JSON ends"},
    {"{}x", 0, QN_FORMAT, "expected the end"},
    {"{\"\xff\":1}", 0, QN_FORMAT, "not valid UTF-8"},
    {"{\"a\\u0000\":" T("[]", 0, 4) "}", 4, QN_FORMAT, "contains NUL"},
    /* duplicate keys */
    {"{\"a\":" T("[]", 0, 4) ",\"a\":" T("[]", 4, 8) "}", 8, QN_FORMAT, "tensor a stands twice"},
    {"{\"a\":" T("[]", 0, 4) ",\"\\u0061\":" T("[]", 4, 8) "}", 8, QN_FORMAT, "a stands twice"},
    {"{\"model.layers.0.weight.part.b\":" T("[]", 0, 4) ",\"model.layers.0.weight.part.a\":" T(
         "[]", 4, 8) ",\"m\":" T("[]", 8, 12) ",\"model.layers.0.weight.part.b\":" T("[]", 12,
                                                                                     16) "}",
     16, QN_FORMAT, "tensor model.layers.0.weight.part.b stands twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, QN_FORMAT, "a.dtype: the field stands"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, QN_FORMAT, "__metadata__: the key stands"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, QN_FORMAT, "key \"k\" stands twice"},
    /* fields */
    {"{\"a\":1}", 0, QN_FORMAT, "a: expected an object"},
    {"{\"a\":{}}", 0, QN_FORMAT, "a: dtype is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, QN_FORMAT, "a: data_offsets is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"offsets\":[0,4]}}", 4, QN_FORMAT,
     "a.offsets: unknown field"},
    {"{\"a\":{\"dtype\":32}}", 0, QN_FORMAT, "a.dtype: expected a string"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, QN_UNSUPPORTED,
     "a.dtype: dtype F8_E4M3 is not supported (supported: BOOL, U8"},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, QN_FORMAT,
     "unknown dtype \"f32\""},
    {"{\"__metadata__\":{\"k\":1}}", 0, QN_FORMAT, "__metadata__.k: expected a string"},
    {"{\"__metadata__\":[]}", 0, QN_FORMAT, "expected an object"},
    /* shapes */
    {"{\"a\":" T("[-1]", 0, 4) "}", 4, QN_FORMAT, "a.shape[0]: expected an integer in 0.."},
    {"{\"a\":" T("[1.0]", 0, 4) "}", 4, QN_FORMAT, "a.shape[0]: expected an integer in 0.."},
    {"{\"a\":" T("[9223372036854775808]", 0, 4) "}", 4, QN_FORMAT, "a.shape[0]: expected"},
    {"{\"a\":" T("[4294967296,4294967296]", 0, 0) "}", 0, QN_FORMAT, "overflows 64 bits"},
    {"{\"a\":" T("[4294967296,1073741824]", 0, 0) "}", 0, QN_FORMAT, "overflows 64 bits"},
    {"{\"a\":" T("[4611686018427387904]", 0, 0) "}", 0, QN_FORMAT, "overflows 64 bits"},
    {"{\"a\":" T("[1,1,1,1,1,1,1]", 0, 4) "}", 4, QN_UNSUPPORTED, "more than 6 dimensions"},
    {"{\"a\":" T("[2]", 0, 4) "}", 4, QN_FORMAT, "the shape needs 8 bytes, the offsets give 4"},
    /* offsets */
    {"{\"a\":" T("[]", 4, 0) "}", 4, QN_FORMAT, "offsets are reversed: 4 > 0"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", 4, QN_FORMAT,
     "expected two offsets, got 1"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,8]}}", 4, QN_FORMAT,
     "expected two offsets, got more"},
    {"{\"a\":" T("[]", -4, 0) "}", 4, QN_FORMAT, "data_offsets[0]: expected an integer"},
    {"{\"a\":" T("[]", 0, 4) "}", 3, QN_FORMAT, "end at 4, but the file has 3 bytes of data"},
    {"{\"a\":" T("[]", 0, 4) "}", 9, QN_FORMAT, "9 bytes of data, but the tensors cover only 4"},
    {"{}", 1, QN_FORMAT, "1 bytes of data, but the tensors cover only 0"},
    {"{\"a\":" T("[]", 4, 8) "}", 8, QN_FORMAT, "a: data_offsets begin at 4, expected 0 (a hole)"},
    {"{\"a\":" T("[]", 0, 4) ",\"b\":" T("[]", 8, 12) "}", 12, QN_FORMAT, "b: data_offsets begin"},
    {"{\"a\":" T("[2]", 0, 8) ",\"b\":" T("[]", 4, 8) "}", 8, QN_FORMAT, "tensors overlap"},
    {"{\"a\":" T("[]", 0, 4) ",\"b\":" T("[]", 0, 4) "}", 4, QN_FORMAT, "tensors overlap"},
    {"{\"a\":" T("[2305843009213693951]", 0, 9223372036854775804) "}", 4, QN_FORMAT,
     "end at 9223372036854775804, but the file has 4"},
};

static void test_bad_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_headers / sizeof *bad_headers; i++) {
        const bad_header *c = &bad_headers[i];
        const char *path = make_file("bad.safetensors", c->header, strlen(c->header), c->data);
        assert_open_fails(path, c->code, c->part);
        assert_open_fails(path, c->code, "bad.safetensors: ");
    }
}

static void test_bad_lengths(void **state)
{
    (void)state;
    static const struct {
        unsigned char bytes[12];
        size_t size;
        const char *part;
    } cases[] = {
        {{0}, 0, "0 bytes, too short"},
        {{2, 0, 0, 0, 0, 0, 0}, 7, "7 bytes, too short"},
        {{0, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "header length 0, expected 1..100000000"},
        {{1, 0xe1, 0xf5, 5}, 10, "header length 100000001, expected 1..100000000"},
        {{255, 255, 255, 255, 255, 255, 255, 255}, 10, "header length 18446744073709551615"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "header length 3, but the file has 10 bytes"},
        {{0, 0, 0, 0, 0, 0, 0, 2, '{', '}'}, 10, "header length 144115188075855872"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_open_fails(temp_write("len.safetensors", cases[i].bytes, cases[i].size), QN_FORMAT,
                          cases[i].part);
    assert_open_fails(temp_path("none.safetensors"), QN_NOT_FOUND, "no such file");
    assert_open_fails(temp_mkdir("empty"), QN_NOT_FOUND, "neither model.safetensors nor");
    assert_int_equal(mkfifo(temp_path("fifo.safetensors"), 0666), 0);
    assert_open_fails(temp_path("fifo.safetensors"), QN_INVALID, "is a FIFO");
}

static void test_every_truncation(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"f\":\"pt\"},\"a\":" T("[2]", 0, 8) "}";
    size_t n = sizeof header - 1 + 8 + 8;
    for (size_t size = 0; size < n; size++) {
        const char *path = make_file("t.safetensors", header, sizeof header - 1, 8);
        assert_int_equal(truncate(path, (off_t)size), 0);
        assert_open_fails(path, QN_FORMAT, "t.safetensors: ");
    }
}

static void test_depth_and_many_tensors(void **state)
{
    (void)state;
    char *deep = malloc(30010);
    size_t n = (size_t)sprintf(deep, "{\"a\":");
    memset(deep + n, '[', 10000);
    assert_open_fails(make_file("deep.safetensors", deep, n + 10000, 0), QN_FORMAT, "an object");
    n = (size_t)sprintf(deep, "{\"a\":{\"shape\":");
    memset(deep + n, '[', 10000);
    assert_open_fails(make_file("deep.safetensors", deep, n + 10000, 0), QN_FORMAT, "an integer");
    free(deep);

    enum { MANY = 1000000 };
    char *text = malloc((size_t)MANY * 64 + 64);
    n = 0;
    text[n++] = '{';
    for (int i = 0; i < MANY; i++)
        n += (size_t)sprintf(text + n,
                             "%s\"t%07d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                             i ? "," : "", (int)((i * 7919LL) % MANY));
    text[n++] = '}';
    const char *path = make_file("many.safetensors", text, n, 0);
    free(text);
    qn_tensors *reader;
    qn_error err = {0};
    clock_t start = clock();
    assert_int_equal(qn_tensors_open(&reader, path, &err), QN_OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("a million tensors: %.2f s\n", seconds);
    assert_true(seconds < 2 * PATIENCE);
    assert_int_equal(qn_tensors_count(reader), MANY);
    assert_string_equal(qn_tensors_get(reader, MANY - 1)->name, "t0999999");
    assert_non_null(qn_tensors_find(reader, "t0500000"));
    qn_tensors_close(reader);
    unlink(path);
}

static void test_read(void **state)
{
    (void)state;
    static const char header[] =
        "{\"b\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
        "\"empty\":{\"dtype\":\"BF16\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
        "\"__metadata__\":{\"z\":\"1\",\"format\":\"p\\u0074\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ";
    const char *path = make_file("ok.safetensors", header, sizeof header - 1, 16);
    qn_tensors *reader;
    qn_error err = {0};
    if (qn_tensors_open(&reader, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(qn_tensors_count(reader), 3);
    assert_string_equal(qn_tensors_get(reader, 0)->name, "a");
    assert_string_equal(qn_tensors_get(reader, 1)->name, "b");
    assert_string_equal(qn_tensors_metadata(reader, "format"), "pt");
    assert_null(qn_tensors_metadata(reader, "none"));
    assert_null(qn_tensors_find(reader, "ab"));
    const qn_tensor_info *b = qn_tensors_find(reader, "b");
    assert_int_equal(b->dtype, QN_I16);
    assert_int_equal(b->ndim, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->offset, 8 + sizeof header - 1 + 4);
    assert_int_equal(b->bytes, 12);
    unsigned char buffer[12];
    assert_int_equal(qn_tensors_read_bytes(reader, b, 2, 10, buffer, NULL), QN_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(buffer[i], 6 + i);
    assert_int_equal(qn_tensors_read_bytes(reader, b, 12, 0, buffer, NULL), QN_OK);
    assert_int_equal(qn_tensors_read_bytes(reader, b, 3, 10, buffer, &err), QN_INVALID);
    assert_one_line(&err, QN_INVALID, "b: bytes 3 + 10 are outside its 12 bytes");
    assert_int_equal(qn_tensors_read_bytes(reader, b, UINT64_MAX, 2, buffer, NULL), QN_INVALID);
    /* Cut behind our back: an error, not a signal. */
    assert_int_equal(truncate(path, (off_t)b->offset + 5), 0);
    err = (qn_error){0};
    assert_int_equal(qn_tensors_read_bytes(reader, b, 0, 12, buffer, &err), QN_IO);
    assert_one_line(&err, QN_IO, "ok.safetensors: the file ends at byte");
    qn_tensors_close(reader);
}

/* Sorted by name, whatever their order, common beginnings and lengths. */
static void test_many_names(void **state)
{
    (void)state;
    enum { N = 700 };
    char *header = malloc(N * 160), name[N][64];
    size_t n = (size_t)sprintf(header, "{");
    for (int i = 0; i < N; i++) {
        int k = i * 257 % N;
        snprintf(name[i], sizeof name[i], "model.%s%.*s%d",
                 k % 3 ? "layers.blocks.of.attention." : "", k % 20, "aaaaaaaaaaaaaaaaaaaa", k);
        n += (size_t)sprintf(header + n,
                             "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                             i ? "," : "", name[i], k, k + 1);
    }
    n += (size_t)sprintf(header + n, "}");
    qn_tensors *t;
    qn_error err = {0};
    if (qn_tensors_open(&t, make_file("names.safetensors", header, n, N), &err) != QN_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < N; i++) {
        const qn_tensor_info *found = qn_tensors_find(t, name[i]);
        assert_non_null(found);
        assert_int_equal(found->offset, 8 + n + (size_t)(i * 257 % N));
        if (i > 0)
            assert_true(strcmp(qn_tensors_get(t, (size_t)i - 1)->name,
                               qn_tensors_get(t, (size_t)i)->name) < 0);
    }
    qn_tensors_close(t);
    free(header);
}

/* ---- shards --------------------------------------------------------------------------------- */

static const char *write_model(const char *index)
{
    static int n;
    char name[40], path[80];
    snprintf(name, sizeof name, "model%d", n++);
    const char *dir = temp_mkdir(name);
    snprintf(path, sizeof path, "%s/s1.safetensors", name);
    const char *one = "{\"a\":" T("[]", 0, 4) "}", *two = "{\"b\":" T("[]", 0, 4) "}";
    make_file(path, one, strlen(one), 4);
    snprintf(path, sizeof path, "%s/s2.safetensors", name);
    make_file(path, two, strlen(two), 4);
    snprintf(path, sizeof path, "%s/s3.safetensors", name);
    make_file(path, one, strlen(one), 4);
    snprintf(path, sizeof path, "%s/link.safetensors", name);
    if (symlink("/etc/hostname", temp_path(path)) != 0)
        perror("symlink");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", name);
    temp_write(path, index, strlen(index));
    return dir;
}

#define MAP(entries) "{\"metadata\":{\"total_size\":8},\"weight_map\":{" entries "}}"

static void test_shards(void **state)
{
    (void)state;
    const char *dir = write_model(MAP("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\""));
    qn_tensors *reader;
    qn_error err = {0};
    if (qn_tensors_open(&reader, dir, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(qn_tensors_count(reader), 2);
    const qn_tensor_info *b = qn_tensors_find(reader, "b");
    assert_int_equal(b->file, 1);
    assert_non_null(strstr(qn_tensors_path(reader, b->file), "/s2.safetensors"));
    unsigned char v[4];
    assert_int_equal(qn_tensors_read_bytes(reader, b, 0, 4, v, NULL), QN_OK);
    assert_int_equal(v[3], 3);
    qn_tensors_close(reader);

    static const struct {
        const char *index;
        qn_status code;
        const char *part;
    } cases[] = {
        {MAP("\"a\":\"../s1.safetensors\""), QN_FORMAT, "\"../s1.safetensors\" contains \"..\""},
        {MAP("\"a\":\"/etc/passwd\""), QN_FORMAT, "\"/etc/passwd\" is absolute"},
        {MAP("\"a\":\"link.safetensors\""), QN_FORMAT, "leads out of the model's directory"},
        {MAP("\"a\":\"\""), QN_FORMAT, "is empty"},
        {MAP("\"a\":\"sub/../../s1.safetensors\""), QN_FORMAT, "contains \"..\""},
        {MAP("\"a\":\".\""), QN_FORMAT, "leads out of the model's directory"},
        {MAP("\"a\":\"model.safetensors.index.json\""), QN_FORMAT, "header length"},
        {MAP("\"a\":[[[[\"s1.safetensors\"]]]]"), QN_FORMAT, "weight_map.a: expected a string"},
        {MAP("\"a\":\"s9.safetensors\""), QN_NOT_FOUND, "s9.safetensors: no such file"},
        {MAP("\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\""), QN_FORMAT,
         "tensor b is not in s1.safetensors, where it is mapped to"},
        {MAP("\"b\":\"s1.safetensors\",\"a\":\"s2.safetensors\""), QN_FORMAT,
         "tensor a is mapped to s2.safetensors, but stands in s1.safetensors"},
        {MAP("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\",\"c\":\"s3.safetensors\""),
         QN_FORMAT, "tensor a stands also in"},
        {MAP("\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\""), QN_FORMAT,
         "tensor b of s2.safetensors is not in weight_map"},
        {MAP("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\""),
         QN_FORMAT, "weight_map.a stands twice"},
        {MAP("\"a\":1"), QN_FORMAT, "weight_map.a: expected a string"},
        {"{\"weight_map\":{},\"weight_map\":{}}", QN_FORMAT, "weight_map: the key stands twice"},
        {"{\"metadata\":{}}", QN_FORMAT, "weight_map is missing"},
        {"[]", QN_FORMAT, "expected an object"},
        {"", QN_FORMAT, "JSON ends"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_open_fails(write_model(cases[i].index), cases[i].code, cases[i].part);
}

/* ---- files of other programs ------------------------------------------------------------------
 */

static void test_foreign_files(void **state)
{
    (void)state;
    const char *data = getenv("QUERN_TEST_DATA");
    if (!data) {
        print_message("QUERN_TEST_DATA is not set\n");
        skip();
    }
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/malformed/weight-inspect_trailing5.safetensors", data);
    assert_open_fails(path, QN_FORMAT, "the tensors cover only");
    snprintf(path, sizeof path, "%s/models/safetensors_small", data);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int n = 0;
    static const char *const larger[] = {"mlx-lm_adapters", "torchtune_gemma_hf_checkpoint"};
    for (size_t i = 0; i < 2; i++) {
        qn_tensors *reader;
        qn_error err = {0};
        snprintf(path, sizeof path, "%s/models/%s.safetensors", data, larger[i]);
        if (qn_tensors_open(&reader, path, &err) != QN_OK)
            fail_msg("%s", err.message);
        assert_true(qn_tensors_count(reader) > 1);
        qn_tensors_close(reader);
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strstr(e->d_name, ".safetensors"))
            continue;
        snprintf(path, sizeof path, "%s/models/safetensors_small/%.200s", data, e->d_name);
        qn_tensors *reader;
        qn_error err = {0};
        if (qn_tensors_open(&reader, path, &err) != QN_OK)
            fail_msg("%s", err.message);
        for (size_t i = 0; i < qn_tensors_count(reader); i++) {
            const qn_tensor_info *t = qn_tensors_get(reader, i);
            void *bytes = malloc((size_t)t->bytes + 1);
            assert_int_equal(qn_tensors_read_bytes(reader, t, 0, (size_t)t->bytes, bytes, NULL),
                             QN_OK);
            free(bytes);
        }
        assert_true(qn_tensors_count(reader) > 0);
        qn_tensors_close(reader);
        n++;
    }
    closedir(dir);
    assert_true(n >= 14);
}

/* ---- writing -------------------------------------------------------------------------------- */

static const float floats[6] = {1, 2, 3, 4, 5, 6};
static const uint8_t bytes3[3] = {7, 8, 9};
static const double double1 = 0.5;

static const qn__tensor_data written[] = {
    {"byte \"s\"\n\xc3\xa9", QN_U8, 1, {3}, bytes3},
    {"w.f32", QN_F32, 2, {2, 3}, floats},
    {"scalar", QN_F64, 0, {0}, &double1},
    {"none", QN_BF16, 2, {4, 0}, NULL},
};
static const qn__metadata written_metadata[] = {{"format", "pt"}, {"q", "\"\\"}};

static void test_write(void **state)
{
    (void)state;
    const char *path = temp_path("written.safetensors");
    qn_error err = {0};
    if (qn__safetensors_write(path, written, 4, written_metadata, 2, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_tensors *reader;
    if (qn_tensors_open(&reader, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(qn_tensors_count(reader), 4);
    for (size_t i = 0; i < 4; i++) {
        const qn__tensor_data *w = &written[i];
        const qn_tensor_info *t = qn_tensors_find(reader, w->name);
        assert_non_null(t);
        assert_int_equal(t->dtype, w->dtype);
        assert_int_equal(t->ndim, w->ndim);
        assert_memory_equal(t->shape, w->shape, (size_t)w->ndim * sizeof *w->shape);
        unsigned char bytes[24];
        assert_int_equal(qn_tensors_read_bytes(reader, t, 0, (size_t)t->bytes, bytes, NULL), QN_OK);
        if (t->bytes > 0)
            assert_memory_equal(bytes, w->data, (size_t)t->bytes);
        if (w->dtype == QN_F64 || w->dtype == QN_F32)
            assert_int_equal(t->offset % (w->dtype == QN_F64 ? 8 : 4), 0);
    }
    assert_string_equal(qn_tensors_metadata(reader, "q"), "\"\\");
    qn_tensors_close(reader);

    const qn__tensor_data twice[] = {written[0], written[0]};
    err = (qn_error){0};
    assert_int_equal(qn__safetensors_write(path, twice, 2, NULL, 0, &err), QN_INVALID);
    assert_one_line(&err, QN_INVALID, "stands twice");
    const qn__tensor_data bad[] = {{"__metadata__", QN_U8, 1, {3}, bytes3},
                                   {"\xff", QN_U8, 1, {3}, bytes3},
                                   {"x", QN_U8, 1, {-1}, bytes3},
                                   {"x", QN_F64, 2, {1 << 30, 1 << 30}, bytes3}};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(qn__safetensors_write(path, &bad[i], 1, NULL, 0, NULL), QN_INVALID);
    assert_int_equal(qn_tensors_open(&reader, path, NULL), QN_OK); /* untouched */
    qn_tensors_close(reader);
}

static void test_failed_allocations(void **state)
{
    (void)state;
    const char *dir = write_model(MAP("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\""));
    bool more = true;
    for (long n = 0; more; n++) {
        qn_tensors *reader = NULL;
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = qn_tensors_open(&reader, dir, &err);
        more = fail_allocation_end();
        assert_int_equal(status, more ? QN_MEMORY : QN_OK);
        assert_true(more == (reader == NULL));
        qn_tensors_close(reader);
    }
    more = true;
    for (long n = 0; more; n++) {
        fail_allocation_begin(n);
        qn_status status = qn__safetensors_write(temp_path("fa.safetensors"), written, 4,
                                                 written_metadata, 2, NULL);
        more = fail_allocation_end();
        assert_int_equal(status, more ? QN_MEMORY : QN_OK);
        assert_int_equal(access(temp_path("fa.safetensors"), F_OK), more ? -1 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_lengths),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_depth_and_many_tensors),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
