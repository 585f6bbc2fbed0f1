/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes that no array has, and arguments that are none: an error, never a wrong size, never a
 * crash.
 */
#include "test.h"

#include <string.h>

#define BIG   6148914691236517211 /* times 3: 17 modulo 2^64 */
#define AT(n) ((int64_t)1 << (n))

typedef qn_array *attempt(qn_scope *s, qn_array *x); /* x: [1] f32 */

#define SHAPE(...)                                                                                 \
    (sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[])                                      \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define ATTEMPT(name, expression)                                                                  \
    static qn_array *name(qn_scope *s, qn_array *x)                                                \
    {                                                                                              \
        (void)x;                                                                                   \
        return expression;                                                                         \
    }
ATTEMPT(broadcast_wraps, qn_broadcast_to(s, x, SHAPE(3, BIG)))
ATTEMPT(broadcast_negative, qn_broadcast_to(s, x, SHAPE(-5)))
ATTEMPT(broadcast_two_negative, qn_broadcast_to(s, x, SHAPE(-5, -5)))
ATTEMPT(broadcast_zero_negative, qn_broadcast_to(s, x, SHAPE(0, -7)))
ATTEMPT(broadcast_bytes, qn_broadcast_to(s, x, SHAPE(AT(62) + 4)))
ATTEMPT(outer_sum,
        qn_add(s, qn_full(s, QN_F32, SHAPE(AT(32), 1), 0), qn_full(s, QN_F32, SHAPE(1, AT(32)), 0)))
ATTEMPT(outer_product, qn_matmul(s, qn_full(s, QN_F32, SHAPE(AT(32), 1), 0),
                                 qn_full(s, QN_F32, SHAPE(1, AT(32)), 0)))
ATTEMPT(outer_linear, qn_linear(s, qn_full(s, QN_F32, SHAPE(AT(32), 1), 0),
                                qn_full(s, QN_F32, SHAPE(AT(32), 1), 0), NULL))
ATTEMPT(long_range, qn_arange(s, QN_F32, AT(62) + 4))
ATTEMPT(longest_range, qn_arange(s, QN_F32, INT64_MAX))
ATTEMPT(large_constant, qn_full(s, QN_F64, SHAPE(INT64_MAX / 16), 0))
ATTEMPT(tiled, qn_tile(s, x, 0, AT(62) + 4))
ATTEMPT(repeated, qn_repeat(s, qn_broadcast_to(s, x, SHAPE(AT(33))), 0, AT(29)))
ATTEMPT(padded, qn_pad(s, x, (const int64_t[]){AT(61)}, (const int64_t[]){AT(61)}, 0))
ATTEMPT(padded_wraps, qn_pad(s, x, (const int64_t[]){INT64_MAX}, (const int64_t[]){INT64_MAX}, 0))
ATTEMPT(joined, qn_concatenate(s,
                               (qn_array *[]){qn_broadcast_to(s, x, SHAPE(AT(47))),
                                              qn_broadcast_to(s, x, SHAPE(AT(47) + 1))},
                               2, 0))
ATTEMPT(taken, qn_take(s, qn_broadcast_to(s, x, SHAPE(1, AT(46))),
                       qn_broadcast_to(s, qn_from_i32(s, (const int32_t[]){0}, 1), SHAPE(8)), 0))
ATTEMPT(random_wraps, qn_random_uniform(s, qn_random_key(s, 1), QN_F32, 0, 1, SHAPE(3, BIG)))
ATTEMPT(keys, qn_random_split(s, qn_random_key(s, 1), AT(61)))
ATTEMPT(unit, qn_eye(s, QN_F32, AT(33), AT(31), 0))
ATTEMPT(from_zero, qn_from(s, QN_F32, SHAPE(0, AT(62), 16), (const float[]){0}))
ATTEMPT(strided, qn_as_strided(s, x, 2, (const int64_t[]){3, BIG}, (const int64_t[]){0, 0}, 0))
ATTEMPT(diagonal, qn_diag(s, x, INT32_MAX))
ATTEMPT(values_missing, qn_from(s, QN_F32, SHAPE(4), NULL))
ATTEMPT(shape_missing, qn_from(s, QN_F32, 2, NULL, (const float[]){0}))

static void test_sizes(void **state)
{
    qn_device *device = open_device(state);
    static attempt *const attempts[] = {broadcast_wraps,
                                        broadcast_negative,
                                        broadcast_two_negative,
                                        broadcast_zero_negative,
                                        broadcast_bytes,
                                        outer_sum,
                                        outer_product,
                                        outer_linear,
                                        long_range,
                                        longest_range,
                                        large_constant,
                                        tiled,
                                        repeated,
                                        padded,
                                        padded_wraps,
                                        joined,
                                        taken,
                                        random_wraps,
                                        keys,
                                        unit,
                                        from_zero,
                                        strided,
                                        diagonal,
                                        values_missing,
                                        shape_missing};
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *y = attempts[i](s, qn_from_f32(s, (const float[]){2}, 1));
        if (qn_scope_status(s) != QN_INVALID && qn_scope_status(s) != QN_LIMIT)
            fail_msg("attempt %zu: %d %s", i, qn_scope_status(s), qn_scope_error(s));
        assert_int_not_equal(qn_eval(s, qn_exp(s, y)), QN_OK);
        qn_scope_end(s);
    }
    qn_device_close(device);
}

/* What a NULL scope returns is passed on, kept, given away and released like any other failure. */
static void test_no_scope(void **state)
{
    qn_device *device = open_device(state);
    qn_array *p = qn_add(NULL, NULL, NULL), *same = qn_exp(NULL, p);
    assert_ptr_equal(p, same);
    assert_null(qn_retain(p));
    qn_release(p);
    qn_release(p);
    assert_ptr_equal(qn_donate(NULL, p), p);
    assert_int_equal(qn_eval(NULL, p), QN_MEMORY);
    assert_int_equal(qn_array_ndim(p), 0);
    float y[4];
    assert_int_not_equal(qn_read_f32(NULL, p, y, 1), QN_OK);
    qn_cursor_close(qn_cursor_open(NULL, p));
    qn_scope *s = qn_scope_begin(device); /* in a scope it is an error, not an array */
    qn_exp(s, p);
    assert_int_equal(qn_scope_status(s), QN_INVALID);
    qn_scope_end(s);
    s = qn_scope_begin(device);
    qn_donate(s, p);
    assert_int_equal(qn_scope_status(s), QN_INVALID);
    assert_null(qn_pack(s, NULL));
    qn_scope_end(s);
    assert_int_equal(qn_array_ndim(NULL), 0);
    assert_int_equal(qn_array_dim(NULL, 0), -1);
    assert_int_equal(qn_array_elements(NULL), 0);
    qn_device_close(device);
}

/* An axis without elements: every index lies outside. */
static void test_empty_axis(void **state)
{
    qn_device *device = open_device(state);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_zeros(s, QN_F32, SHAPE(3, 0)), *ids = qn_zeros(s, QN_I32, SHAPE(3, 2));
    float y[6] = {1, 1, 1, 1, 1, 1};
    assert_int_equal(qn_read_f32(s, qn_take_along(s, x, ids, 1), y, 6), QN_OK);
    for (int i = 0; i < 6; i++)
        assert_float_equal(y[i], 0, 0);
    qn_array *put = qn_put_along(s, x, ids, qn_ones(s, QN_F32, SHAPE(3, 2)), 1, QN_SCATTER_ADD);
    assert_int_equal(qn_read_f32(s, put, y, 0), QN_OK);
    qn_scope_end(s);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_no_scope),
        cmocka_unit_test(test_empty_axis),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
