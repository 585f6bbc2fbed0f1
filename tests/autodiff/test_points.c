/* SPDX-License-Identifier: Apache-2.0
 *
 * Derivatives at points where a formula alone gives NaN or takes a side. The values are those on
 * which jax 0.4.30 and torch 2.4 agree (make_points.py).
 */
#include "test.h"

#include <math.h>

typedef qn_array *binary_fn(qn_scope *, qn_array *, qn_array *);

static void test_two_operands(void **state)
{
    static const struct {
        binary_fn *f;
        float a, b, da, db; /* NaN for db: not compared */
    } points[] = {
        {qn_power, 0, 0, 0, NAN},     {qn_power, 0, 2, 0, 0},
        {qn_power, 0, 1, 1, 0},       {qn_power, -2, 3, 12, NAN},
        {qn_power, -2, 0, 0, NAN},    {qn_power, 2, 0, 0, 0.693147181f},
        {qn_maximum, 1, 1, .5f, .5f}, {qn_minimum, 1, 1, .5f, .5f},
        {qn_maximum, 2, 1, 1, 0},     {qn_minimum, 2, 1, 0, 1},
        {qn_maximum, -3, 1, 0, 1},
    };
    qn_device *device = open_device(state);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *x[2] = {qn_from_f32(s, &points[i].a, 1), qn_from_f32(s, &points[i].b, 1)}, *g[2];
        qn_array *y = points[i].f(s, x[0], x[1]),
                 *one = qn_ones(s, QN_F32, 1, (const int64_t[]){1});
        float d[2], forward;
        assert_int_equal(qn_grad(s, qn_sum(s, y, 0, false), x, 2, g), QN_OK);
        assert_int_equal(qn_read_f32(s, g[0], &d[0], 1), QN_OK);
        assert_int_equal(qn_read_f32(s, g[1], &d[1], 1), QN_OK);
        assert_true(fabsf(d[0] - points[i].da) <= 1e-6f); /* a NaN is not */
        assert_true(isnan(points[i].db) || fabsf(d[1] - points[i].db) <= 1e-6f);
        assert_int_equal(qn_read_f32(s, qn_jvp(s, y, x, &one, 1), &forward, 1), QN_OK);
        assert_true(fabsf(forward - points[i].da) <= 1e-6f);
        qn_scope_end(s);
    }
    qn_device_close(device);
}

/* Along a slice whose step is longer than what is left of the axis, and through six axes. */
static void test_slices(void **state)
{
    qn_device *device = open_device(state);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from_f32(s, (const float[]){1, 2, 3, 4}, 4);
    qn_array *t = qn_from_f32(s, (const float[]){1, 10, 100, 1000}, 4);
    float y;
    qn_array *first = qn_sum(s, qn_slice(s, x, 0, 0, 4, 5), 0, false);
    assert_int_equal(qn_read_f32(s, qn_jvp(s, first, &x, &t, 1), &y, 1), QN_OK);
    assert_float_equal(y, 1, 0);
    const int64_t shape[] = {2, 1, 2, 1, 2, 5};
    qn_array *six = qn_reshape(s, qn_arange(s, QN_F32, 40), 6, shape), *g;
    qn_array *sum = qn_sum(s, qn_square(s, qn_slice(s, six, 5, 1, 5, 2)), QN_ALL_AXES, false);
    assert_int_equal(qn_grad(s, sum, &six, 1, &g), QN_OK);
    float d[40];
    if (qn_read_f32(s, g, d, 40) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    for (int i = 0; i < 40; i++)
        assert_float_equal(d[i], (i % 5 == 1 || i % 5 == 3) ? 2.f * (float)i : 0.f, 0.f);
    qn_scope_end(s);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_operands),
                                       cmocka_unit_test(test_slices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
