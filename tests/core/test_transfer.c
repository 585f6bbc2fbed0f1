/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays of one device on another: two CPUs are two devices; QUERN_TEST_SECOND_DEVICE names
 * another.
 */
#include "test.h"

#include "core/scope.h"
#include "quern/ops.h"

static qn_device *open_second(void **state)
{
    const char *name = getenv("QUERN_TEST_SECOND_DEVICE");
    qn_device *device;
    qn_error err = {0};
    if (!name)
        return open_device(state);
    if (qn_device_open(&device, name, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    return device;
}

static qn_array *kept(qn_device *device, int turn)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn_reshape(s, qn_arange(s, QN_I32, 12), 2, (const int64_t[]){3, 4});
    if (turn == 1)
        a = qn_transpose(s, a, NULL);
    else if (turn == 2)
        a = qn_slice(s, a, 0, 1, 3, 1);
    else if (turn == 3)
        a = qn_slice(s, a, 0, 1, 1, 1); /* nothing */
    else if (turn == 4)
        a = qn_cast(s, a, QN_BF16);
    assert_int_equal(qn_eval(s, a), QN_OK);
    a = qn_retain(a);
    qn_scope_end(s);
    return a;
}

static void test_values(void **state)
{
    qn_device *one = open_device(state), *two = open_second(state);
    for (int turn = 0; turn < 5; turn++) {
        qn_array *a = kept(one, turn);
        qn_scope *s = qn_scope_begin(two);
        qn_array *b = qn_from_array(s, a);
        float want[12] = {0}, got[12] = {0};
        const size_t n = turn == 2 ? 8 : turn == 3 ? 0 : 12;
        qn_scope *t = qn_scope_begin(one);
        assert_int_equal(qn_read_f32(t, qn_cast(t, a, QN_F32), want, n), QN_OK);
        qn_scope_end(t);
        assert_int_equal(qn_array_dtype(b), qn_array_dtype(a));
        assert_int_equal(qn_array_ndim(b), qn_array_ndim(a));
        for (int i = 0; i < qn_array_ndim(a); i++)
            assert_int_equal(qn_array_dim(b, i), qn_array_dim(a, i));
        qn_release(a); /* which the copy does not need */
        assert_int_equal(qn_read_f32(s, qn_cast(s, b, QN_F32), got, n), QN_OK);
        assert_memory_equal(got, want, sizeof got);
        qn_scope_end(s);
    }
    qn_device_close(two);
    qn_device_close(one);
}

static void refused(qn_device *device, qn_array *a, const char *why)
{
    qn_scope *s = qn_scope_begin(device);
    qn_from_array(s, a);
    assert_int_equal(qn_scope_status(s), QN_INVALID);
    if (!strstr(qn_scope_error(s), why))
        fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
}

static void test_refusals(void **state)
{
    qn_device *one = open_device(state), *two = open_second(state);
    qn_scope *s = qn_scope_begin(one);
    qn_array *packed = qn_pack(s, qn_ones(s, QN_F32, 2, (const int64_t[]){16, 32}));
    refused(two, NULL, "not a retained one");
    refused(two, qn_ones(s, QN_F32, 1, (const int64_t[]){3}), "not a retained one");
    if (packed->layout) /* else it is a plain copy */
        refused(two, packed, "a packed weight does not move");
    qn_release(packed);
    qn_scope_end(s);
    qn_array *a = kept(one, 0);
    s = qn_scope_begin(one);
    assert_int_equal(qn_array_dtype(qn_from_array(s, a)), QN_I32); /* the same device's */
    assert_int_equal(qn_scope_status(s), QN_OK);
    qn_scope_end(s);
    assert_non_null(qn_from_array(NULL, a));
    qn_release(a);
    qn_device_close(two);
    qn_device_close(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
