/* SPDX-License-Identifier: Apache-2.0
 *
 * NAME on every device and tier: values against plain C, a strided input, empty and one-element rows;
 * gradients in f64 against central differences, tangents against gradients.
 */
#include "test.h"

#include <math.h>
#include <string.h>

enum { ROWS = 5, LENGTH = 37, ELEMENTS = ROWS * LENGTH };

/* What NAME should give for one row of n elements. */
static void reference(const double *x, double *y, int n)
{
@REFERENCE@
}

static void make_values(double *values)
{
    uint64_t seed = 11;
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = test_random(&seed) * 3;
}

/* x [ROWS, LENGTH]; when `strided`, as a transposed view of [LENGTH, ROWS]. */
static qn_array *input(qn_scope *s, const double *values, qn_dtype dtype, bool strided)
{
    double turned[ELEMENTS];
    if (!strided)
        return qn_cast(s, qn_from(s, QN_F64, 2, (const int64_t[]){ROWS, LENGTH}, values), dtype);
    for (int i = 0; i < ELEMENTS; i++)
        turned[i % LENGTH * ROWS + i / LENGTH] = values[i];
    qn_array *x = qn_from(s, QN_F64, 2, (const int64_t[]){LENGTH, ROWS}, turned);
    return qn_transpose(s, qn_cast(s, x, dtype), NULL);
}

static void check_values(qn_device *device, qn_dtype dtype, bool strided, double tolerance)
{
    double values[ELEMENTS], rounded[ELEMENTS], expected[ELEMENTS], y[ELEMENTS];
    make_values(values);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = input(s, values, dtype, strided);
    qn_array *result = qn_NAME(s, x);
    assert_int_equal(qn_array_dtype(result), dtype);
    qn_read(s, qn_cast(s, x, QN_F64), rounded, sizeof rounded);
    qn_read(s, qn_cast(s, result, QN_F64), y, sizeof y);
    assert_string_equal(qn_scope_error(s), "");
    for (int r = 0; r < ROWS; r++)
        reference(rounded + r * LENGTH, expected + r * LENGTH, LENGTH);
    for (int i = 0; i < ELEMENTS; i++)
        if (!(fabs(y[i] - expected[i]) <= tolerance * (1 + fabs(expected[i]))))
            fail_msg("%s, strided %d, element %d: %.9g, expected %.9g", qn_dtype_name(dtype),
                     strided, i, y[i], expected[i]);
    qn_scope_end(s);
}

static void check_edges(qn_device *device)
{
    qn_scope *s = qn_scope_begin(device);
    float one = 2, y;
    double wide = one, expected;
    qn_array *none = qn_NAME(s, qn_zeros(s, QN_F32, 2, (const int64_t[]){0, 3}));
    assert_int_equal(qn_eval(s, none), QN_OK);
    assert_int_equal(qn_array_dim(none, 1), 3);
    assert_int_equal(qn_read_f32(s, qn_NAME(s, qn_from_f32(s, &one, 1)), &y, 1), QN_OK);
    reference(&wide, &expected, 1);
    assert_float_equal(y, expected, 1e-5);
    qn_scope_end(s);
}

/* "cpu" in each tier, then other devices, as far as this machine has them. */
static void test_values(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"cpu", "ref"}, {"cpu", "avx2"}, {"cpu", "avx512"}, {"cuda", NULL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_device *device;
        qn_device_options options = {.size = sizeof options, .tier = names[i][1]};
        if (qn_device_open(&device, names[i][0], &options, NULL) != QN_OK)
            continue;
        check_values(device, QN_F32, false, 1e-5);
        check_values(device, QN_F32, true, 1e-5);
        check_values(device, QN_F64, false, 1e-12);
        check_values(device, QN_BF16, false, 8e-3);
        check_edges(device);
        qn_device_close(device);
    }
}

/* The loss sum(NAME(x) c), its gradient where `gradient` is given, and the tangent along `direction`. */
static double loss_of(qn_device *device, const double *values, const double *c, double *gradient,
                      const double *direction, double *tangent)
{
    qn_scope *s = qn_scope_begin(device);
    const int64_t shape[] = {ROWS, LENGTH};
    qn_array *x = qn_from(s, QN_F64, 2, shape, values), *g;
    qn_array *weighted = qn_multiply(s, qn_NAME(s, x), qn_from(s, QN_F64, 2, shape, c));
    qn_array *loss = qn_sum(s, weighted, QN_ALL_AXES, false);
    double value = 0;
    if (gradient) {
        qn_array *t = qn_from(s, QN_F64, 2, shape, direction);
        qn_grad(s, loss, &x, 1, &g);
        qn_read(s, g, gradient, ELEMENTS * sizeof *gradient);
        qn_read(s, qn_jvp(s, loss, &x, &t, 1), tangent, sizeof *tangent);
    }
    qn_read(s, loss, &value, sizeof value);
    assert_string_equal(qn_scope_error(s), "");
    qn_scope_end(s);
    return value;
}

static void test_gradient(void **state)
{
    qn_device *device = open_cpu(state);
    double values[ELEMENTS], c[ELEMENTS], direction[ELEMENTS], gradient[ELEMENTS];
    double tangent, along = 0;
    uint64_t seed = 5;
    make_values(values);
    for (int i = 0; i < ELEMENTS; i++) {
        c[i] = test_random(&seed);
        direction[i] = test_random(&seed);
    }
    loss_of(device, values, c, gradient, direction, &tangent);
    for (int i = 0; i < ELEMENTS; i++) {
        double kept = values[i], h = 1e-5;
        values[i] = kept + h;
        double up = loss_of(device, values, c, NULL, NULL, NULL);
        values[i] = kept - h;
        double numeric = (up - loss_of(device, values, c, NULL, NULL, NULL)) / (2 * h);
        values[i] = kept;
        assert_float_equal(gradient[i], numeric, 1e-6);
        along += gradient[i] * direction[i];
    }
    assert_float_equal(tangent, along, 1e-9);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
