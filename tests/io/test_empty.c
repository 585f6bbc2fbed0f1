/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of none and of one: every kind of file with no tensor in it, with one, and with one that
 * has no elements. They open, say what they hold and are asked for what they don't; an index that
 * names no file is refused.
 */
#include "test.h"

#include "../base/temp_dir.h"

static const char *write_text(const char *name, const char *text)
{
    return temp_write(name, text, strlen(text));
}

/* A safetensors file: the header's length, the header, n zero bytes. */
static const char *write_safetensors(const char *name, const char *header, size_t n)
{
    char bytes[600] = {0};
    bytes[0] = (char)strlen(header);
    memcpy(bytes + 8, header, strlen(header));
    return temp_write(name, bytes, 8 + strlen(header) + n);
}

/* Opens it and asks for what is there and what is not. */
static void holds(const char *path, size_t n, const char *name)
{
    qn_tensors *t;
    qn_error err = {0};
    if (qn_tensors_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(qn_tensors_count(t), n);
    assert_non_null(qn_tensors_path(t, 0));
    assert_null(qn_tensors_find(t, "absent"));
    assert_null(qn_tensors_find(t, ""));
    assert_null(qn_tensors_metadata(t, "absent"));
    qn_device *device = open_cpu(NULL);
    qn_scope *s = qn_scope_begin(device);
    if (n) {
        const qn_tensor_info *info = qn_tensors_find(t, name);
        assert_ptr_equal(info, qn_tensors_get(t, 0));
        qn_array *a = qn_tensors_read(s, t, name);
        assert_int_equal(qn_eval(s, a), QN_OK);
        assert_int_equal(qn_array_elements(a), (int64_t)info->bytes / 4);
    }
    qn_tensors_read(s, t, "absent");
    assert_int_equal(qn_scope_status(s), QN_NOT_FOUND);
    assert_non_null(strstr(qn_scope_error(s), "no tensor absent"));
    qn_scope_end(s);
    qn_device_close(device);
    qn_tensors_close(t);
}

static void refused(const char *path, const char *part)
{
    qn_tensors *t = (qn_tensors *)1;
    qn_error err = {0};
    assert_int_equal(qn_tensors_open(&t, path, &err), QN_FORMAT);
    assert_null(t);
    if (!strstr(err.message, part) || !strstr(err.message, "index.json"))
        fail_msg("\"%s\" lacks \"%s\"", err.message, part);
    assert_int_equal(qn_tensors_open(&t, path, NULL), QN_FORMAT);
}

#define ONE(shape, end)                                                                            \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[0," end "]}}"

static void test_safetensors(void **state)
{
    (void)state;
    holds(write_safetensors("none.safetensors", "{}", 0), 0, NULL);
    holds(write_safetensors("none.safetensors", "{\"__metadata__\":{}}", 0), 0, NULL);
    holds(write_safetensors("none.safetensors", "{\"__metadata__\":{\"k\":\"\"}}", 0), 0, NULL);
    holds(write_safetensors("one.safetensors", ONE("[]", "4"), 4), 1, "a");
    holds(write_safetensors("one.safetensors", ONE("[0]", "0"), 0), 1, "a");
    holds(write_safetensors("one.safetensors", ONE("[3,0,2]", "0"), 0), 1, "a");
}

static void test_indexes(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors.index.json",
                                        "pytorch_model.bin.index.json"};
    write_safetensors("s1.safetensors", ONE("[1]", "4"), 4);
    write_safetensors("s2.safetensors", "{}", 0);
    for (int i = 0; i < 2; i++) {
        refused(write_text(names[i], "{\"weight_map\":{}}"), "weight_map is empty");
        refused(temp_root, "weight_map is empty");
        refused(write_text(names[i], "{\"metadata\":{},\"weight_map\":{}}"), "weight_map is empty");
        refused(write_text(names[i], "{}"), "weight_map is missing");
        refused(write_text(names[i], "{\"weight_map\":{\"a\":\"s2.safetensors\"}}"),
                "tensor a is not in s2.safetensors");
        holds(write_text(names[i], "{\"weight_map\":{\"a\":\"s1.safetensors\"}}"), 1, "a");
        remove(temp_path(names[i]));
    }
}

static void test_archives(void **state)
{
    (void)state;
    static const char *const none[] = {"none.npz", "none.pth"}, *const one[] = {"one.npz",
                                                                                "one.pth"};
    char path[600];
    skip_without_libzip();
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/tests/io/files/%s", getenv("QUERN_SOURCE"), none[i]);
        holds(path, 0, NULL);
        snprintf(path, sizeof path, "%s/tests/io/files/%s", getenv("QUERN_SOURCE"), one[i]);
        holds(path, 1, "a");
    }
}

static void test_written(void **state)
{
    qn_device *device = open_cpu(state);
    static const char *const names[] = {"w.safetensors", "w.npz", "w.npy"};
    for (int i = 0; i < (WITH_LIBZIP ? 3 : 1); i++)
        for (int n = 0; n < 2; n++)
            for (int elements = 0; elements < 2; elements++) {
                qn_scope *s = qn_scope_begin(device);
                qn_named_array a = {"w", qn_zeros(s, QN_F32, 1, (const int64_t[]){elements})};
                qn_error err = {0};
                int given = strstr(names[i], ".npy") ? 1 : n;
                if (qn_tensors_write(s, temp_path(names[i]), &a, given, &err) != QN_OK)
                    fail_msg("%s", err.message);
                qn_scope_end(s);
                holds(temp_path(names[i]), (size_t)given, "w");
            }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_indexes),
        cmocka_unit_test(test_archives),
        cmocka_unit_test(test_written),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
