/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of an array: recording, fusing, evaluating, retaining, donating, reading views.
 */
#include "test.h"

#include <math.h>

static void test_chain(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_scope *s = qn_scope_begin(dev);
    float a[] = {1, 2, 3, 4, 5, 6}, b[] = {10, 20, 30}, y[6];
    qn_array *x = qn_from(s, QN_F32, 2, (const int64_t[]){2, 3}, a);
    qn_array *r = qn_add(s, qn_multiply(s, x, qn_from_f32(s, b, 3)), qn_scalar(s, QN_F32, 0.5));
    assert_int_equal(qn_read_f32(s, r, y, 6), QN_OK);
    for (int i = 0; i < 6; i++)
        assert_float_equal(y[i], a[i] * b[i % 3] + 0.5f, 0);
    qn_plan_stats stats = plans_of(dev);
    assert_int_equal(stats.steps, 1);
    assert_int_equal(stats.fused, 2); /* multiply and the constant run inside the add's pass */
    assert_int_equal(stats.chain_bytes, 6 * 4 + 3 * 4 + 6 * 4);
    assert_int_equal(stats.launches, 1);
    assert_true(stats.submit_ns > 0);
    qn_scope_end(s);
    qn_device_close(dev);
}

static void test_views(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_scope *s = qn_scope_begin(dev);
    qn_array *x = qn_reshape(s, qn_arange(s, QN_F32, 24), 3, (const int64_t[]){2, 3, 4});
    qn_array *t = qn_transpose(s, x, (const int[]){2, 0, 1}); /* [4, 2, 3] */
    qn_array *part = qn_slice(s, t, 0, 1, 4, 2);              /* columns 1 and 3 */
    float y[12];
    assert_int_equal(qn_read_f32(s, part, y, 12), QN_OK);
    for (int c = 0; c < 2; c++)
        for (int r = 0; r < 6; r++)
            assert_float_equal(y[c * 6 + r], (float)(r * 4 + 1 + 2 * c), 0);
    qn_array *flat = qn_reshape(s, qn_multiply(s, part, part), 1, (const int64_t[]){-1});
    assert_int_equal(qn_read_f32(s, flat, y, 12), QN_OK);
    assert_float_equal(y[7], 49.f, 0); /* (r = 1, c = 1): (4 + 3)^2 */
    qn_scope_end(s);
    qn_device_close(dev);
}

static void test_plan_is_found_again(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_array *kept = NULL;
    for (int i = 0; i < 5; i++) {
        qn_scope *s = qn_scope_begin(dev);
        float v[] = {(float)i, 1};
        qn_array *x = qn_from_f32(s, v, 2);
        qn_array *y = qn_exp(s, kept ? qn_add(s, x, kept) : qn_add(s, x, qn_from_f32(s, v, 2)));
        assert_int_equal(qn_eval(s, y), QN_OK);
        qn_release(kept);
        kept = qn_retain(y);
        assert_non_null(kept);
        qn_scope_end(s);
    }
    qn_release(kept);
    qn_plan_stats stats = plans_of(dev);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.hits, 4);
    assert_int_equal(memory_of(dev).active, 0);
    qn_device_close(dev);
}

/* Sizes of one bucket share a plan; other buckets do not. */
static void test_buckets(void **state)
{
    qn_device *dev = open_cpu(state);
    for (int64_t n = 33; n <= 41; n++) {
        qn_scope *s = qn_scope_begin(dev);
        float y[64];
        qn_array *x = qn_arange(s, QN_F32, n);
        qn_array *r = qn_add(s, qn_sum(s, x, 0, true), x);
        assert_int_equal(qn_read_f32(s, r, y, (size_t)n), QN_OK);
        assert_float_equal(y[n - 1], (float)(n * (n - 1) / 2 + n - 1), 0);
        qn_scope_end(s);
    }
    qn_plan_stats stats = plans_of(dev);
    assert_int_equal(stats.misses, 2); /* 33..40, 41..48 */
    assert_int_equal(stats.rebinds, 7);
    qn_device_close(dev);
}

static void test_donation(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_scope *s = qn_scope_begin(dev);
    qn_array *z = qn_zeros(s, QN_F32, 1, (const int64_t[]){8});
    assert_int_equal(qn_eval(s, z), QN_OK);
    qn_array *cache = qn_retain(z);
    qn_scope_end(s);
    for (int i = 0; i < 4; i++) {
        s = qn_scope_begin(dev);
        qn_array *d = qn_donate(s, cache);
        float v = (float)(i + 1);
        qn_array *before = qn_sum(s, d, 0, false); /* a reader of the old value */
        qn_array *u = qn_slice_update(s, d, qn_from_f32(s, &v, 1), (const int64_t[]){2 * i});
        qn_array *both[] = {before, u};
        assert_int_equal(qn_eval_many(s, both, 2), QN_OK);
        float sum;
        assert_int_equal(qn_read_f32(s, before, &sum, 1), QN_OK);
        assert_float_equal(sum, (float)(i * (i + 1) / 2), 0);
        cache = qn_retain(u);
        if (i == 0) { /* the old array is spent */
            qn_add(s, d, d);
            assert_int_equal(qn_scope_status(s), QN_STATE);
        }
        qn_scope_end(s);
    }
    assert_int_equal(plans_of(dev).donation_copies, 0);
    s = qn_scope_begin(dev); /* another reference exists: a copy, counted */
    qn_array *keep = qn_retain(cache);
    float v = 9, y[8];
    qn_array *u =
        qn_slice_update(s, qn_donate(s, cache), qn_from_f32(s, &v, 1), (const int64_t[]){0});
    assert_int_equal(qn_read_f32(s, u, y, 8), QN_OK);
    assert_float_equal(y[0], 9, 0);
    assert_float_equal(y[2], 2, 0);
    assert_int_equal(qn_read_f32(s, keep, y, 8), QN_OK);
    assert_float_equal(y[0], 1, 0);
    assert_int_equal(plans_of(dev).donation_copies, 1);
    qn_release(keep);
    qn_scope_end(s);
    qn_device_close(dev);
}

/* A donated part of a larger buffer: the result cannot live at its beginning. */
static void test_donated_part(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_scope *s = qn_scope_begin(dev);
    qn_array *x = qn_slice(s, qn_arange(s, QN_F32, 8), 0, 4, 8, 1);
    assert_int_equal(qn_eval(s, x), QN_OK);
    qn_array *part = qn_retain(x);
    qn_scope_end(s);
    s = qn_scope_begin(dev);
    float v = 100, y[4];
    qn_array *u =
        qn_slice_update(s, qn_donate(s, part), qn_from_f32(s, &v, 1), (const int64_t[]){1});
    assert_int_equal(qn_read_f32(s, u, y, 4), QN_OK);
    assert_float_equal(y[0], 4, 0);
    assert_float_equal(y[1], 100, 0);
    assert_float_equal(y[3], 7, 0);
    qn_scope_end(s);
    qn_device_close(dev);
}

/* An array that is evaluated and retained; its scope has ended. */
static qn_array *kept_of(qn_device *dev, qn_array *(*make)(qn_scope *s))
{
    qn_scope *s = qn_scope_begin(dev);
    qn_array *x = make(s);
    assert_int_equal(qn_eval(s, x), QN_OK);
    qn_array *kept = qn_retain(x);
    assert_non_null(kept);
    qn_scope_end(s);
    return kept;
}

enum { SIDE = 40 };

static qn_array *make_square(qn_scope *s)
{
    return qn_reshape(s, qn_arange(s, QN_F32, SIDE * SIDE), 2, (const int64_t[]){SIDE, SIDE});
}

static qn_array *make_turned(qn_scope *s)
{
    return qn_transpose(s, make_square(s), (const int[]){1, 0});
}

/* What a pass may not overwrite: a donated array that it also reads in another order, one of
 * another type, one that is stored in another order than the result. */
static void test_donated_in_vain(void **state)
{
    qn_device *dev = open_cpu(state);
    for (int c = 0; c < 4; c++) {
        qn_array *kept = kept_of(dev, c < 2 ? make_square : make_turned);
        qn_scope *s = qn_scope_begin(dev);
        qn_array *d = qn_donate(s, kept), *y;
        if (c == 0)
            y = qn_subtract(s, d, qn_transpose(s, d, (const int[]){1, 0}));
        else if (c == 1)
            y = qn_cast(s, d, QN_F64);
        else if (c == 2)
            y = qn_negative(s, d);
        else
            y = qn_slice_update(s, d, qn_zeros(s, QN_F32, 2, (const int64_t[]){1, 1}),
                                (const int64_t[]){0, 0});
        assert_int_equal(qn_eval(s, y), QN_OK);
        float got[SIDE * SIDE];
        assert_int_equal(qn_read_f32(s, qn_cast(s, y, QN_F32), got, SIDE * SIDE), QN_OK);
        for (int i = 0; i < SIDE * SIDE; i++) {
            float x = (float)i, turned = (float)(i % SIDE * SIDE + i / SIDE);
            assert_float_equal(got[i],
                               c == 0   ? x - turned
                               : c == 1 ? x
                               : c == 2 ? -turned
                                        : turned,
                               0);
        }
        qn_scope_end(s);
    }
    qn_device_close(dev);
}

/* A value that is wanted itself is not updated in place. */
static void test_updated_target(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_scope *s = qn_scope_begin(dev);
    float v = 9, y[4];
    qn_array *old = qn_exp(s, qn_zeros(s, QN_F32, 1, (const int64_t[]){4}));
    qn_array *u = qn_slice_update(s, old, qn_from_f32(s, &v, 1), (const int64_t[]){1});
    assert_int_equal(qn_eval_many(s, (qn_array *[]){old, u}, 2), QN_OK);
    assert_int_equal(qn_read_f32(s, old, y, 4), QN_OK);
    assert_float_equal(y[1], 1, 0);
    assert_int_equal(qn_read_f32(s, u, y, 4), QN_OK);
    assert_float_equal(y[1], 9, 0);
    qn_scope_end(s);
    qn_device_close(dev);
}

/* What one evaluation made the next one reads, in the same scope; nothing is left. */
static void test_step_by_step(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_scope *s = qn_scope_begin(dev);
    qn_array *x = qn_arange(s, QN_F32, 5);
    float y[5];
    for (int i = 0; i < 3; i++) {
        x = qn_add(s, x, qn_scalar(s, QN_F32, 1));
        assert_int_equal(qn_eval_many(s, (qn_array *[]){x, x}, 2), QN_OK);
    }
    assert_int_equal(qn_read_f32(s, x, y, 5), QN_OK);
    assert_float_equal(y[4], 7, 0);
    qn_scope_end(s);
    assert_int_equal(memory_of(dev).active, 0);
    qn_device_close(dev);
}

/* A reader recorded after the update still sees the old value. */
static void test_late_reader(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_scope *s = qn_scope_begin(dev);
    qn_array *z = qn_ones(s, QN_F32, 1, (const int64_t[]){4});
    assert_int_equal(qn_eval(s, z), QN_OK);
    qn_array *kept = qn_retain(z);
    qn_scope_end(s);
    s = qn_scope_begin(dev);
    float v = 5, sum;
    qn_array *d = qn_donate(s, kept);
    qn_array *u = qn_slice_update(s, d, qn_from_f32(s, &v, 1), (const int64_t[]){0});
    qn_array *late = qn_sum(s, d, 0, false);
    assert_int_equal(qn_eval_many(s, (qn_array *[]){u, late}, 2), QN_OK);
    assert_int_equal(qn_read_f32(s, late, &sum, 1), QN_OK);
    assert_float_equal(sum, 4, 0);
    assert_int_equal(plans_of(dev).donation_copies, 1);
    qn_scope_end(s);
    qn_device_close(dev);
}

static void test_errors_stick(void **state)
{
    qn_device *dev = open_cpu(state);
    qn_scope *s = qn_scope_begin(dev);
    qn_array *a = qn_ones(s, QN_F32, 2, (const int64_t[]){2, 3});
    qn_array *b = qn_ones(s, QN_F32, 1, (const int64_t[]){4});
    qn_array *bad = qn_add(s, a, b);
    assert_non_null(bad);
    qn_array *more = qn_exp(s, qn_matmul(s, bad, a));
    assert_int_equal(qn_eval(s, more), QN_INVALID);
    assert_string_equal(qn_scope_error(s), "add: [2, 3] f32 and [4] f32: shapes do not broadcast");
    qn_scope_end(s);
    assert_int_equal(qn_eval(NULL, qn_add(NULL, a, b)), QN_MEMORY);
    qn_device_close(dev);
}

static void test_memory_limit(void **state)
{
    (void)state;
    qn_device *dev;
    qn_device_options options = {.size = sizeof options, .threads = 1, .memory_limit = 1 << 20};
    assert_int_equal(qn_device_open(&dev, "cpu", &options, NULL), QN_OK);
    qn_scope *s = qn_scope_begin(dev);
    qn_array *x = qn_ones(s, QN_F32, 1, (const int64_t[]){1 << 20});
    assert_int_equal(qn_eval(s, x), QN_LIMIT);
    size_t used, missing;
    assert_int_equal(sscanf(qn_scope_error(s),
                            "cpu: 4194304 bytes wanted for an array, %zu in use, the limit is "
                            "1048576: %zu are missing",
                            &used, &missing),
                     2);
    assert_int_equal(missing, 4194304 + used - 1048576);
    qn_memory_stats m = QN_INIT(qn_memory_stats);
    assert_int_equal(qn_device_memory(dev, &m), QN_OK);
    assert_int_equal(m.available, 0); /* the host's is not the device's to know */
    assert_int_equal(m.wired, 0);
    assert_int_equal(qn_device_set_wired_limit(dev, 5), 0);
    assert_int_equal(qn_device_set_wired_limit(dev, 0), 5);
    assert_true(qn_device_copy_rate(dev) > 1e6);
    qn_ceilings ceilings = {0};
    assert_int_equal(qn_device_ceilings(dev, &ceilings), QN_INVALID);
    ceilings.size = sizeof ceilings;
    assert_int_equal(qn_device_ceilings(dev, &ceilings), QN_OK);
    assert_true(ceilings.read > 1e6 && ceilings.f32 > 1e6);
    assert_true(ceilings.read < 1e13 && ceilings.f32 < 1e15);
    qn_scope_end(s);
    s = qn_scope_begin(dev);
    assert_int_equal(qn_eval(s, qn_ones(s, QN_F32, 1, (const int64_t[]){1 << 10})), QN_OK);
    qn_scope_end(s);
    qn_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_plan_is_found_again),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_donation),
        cmocka_unit_test(test_late_reader),
        cmocka_unit_test(test_donated_part),
        cmocka_unit_test(test_donated_in_vain),
        cmocka_unit_test(test_updated_target),
        cmocka_unit_test(test_step_by_step),
        cmocka_unit_test(test_errors_stick),
        cmocka_unit_test(test_memory_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
