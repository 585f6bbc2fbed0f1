/* SPDX-License-Identifier: Apache-2.0
 *
 * hadamard_transform on every device and tier: values against the matrix, a strided input, empty
 * rows and all lengths; gradients in f64 against central differences, tangents against gradients.
 */
#include "test.h"

#include <math.h>
#include <string.h>

enum { ROWS = 5, LENGTH = 64, LONGEST = 2048, ELEMENTS = ROWS * LENGTH };

#define SCALE 0.75

static bool is_odd(int bits)
{
    bool odd = false;
    for (; bits; bits /= 2)
        odd ^= bits % 2;
    return odd;
}

/* The product with the matrix, one row of n elements. */
static void reference(const double *x, double *y, int n)
{
    for (int i = 0; i < n; i++) {
        y[i] = 0;
        for (int k = 0; k < n; k++)
            y[i] += is_odd(i & k) ? -x[k] : x[k];
        y[i] *= SCALE;
    }
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
    qn_array *result = qn_hadamard_transform(s, x, SCALE);
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
    qn_array *none =
        qn_hadamard_transform(s, qn_zeros(s, QN_F32, 2, (const int64_t[]){0, 4}), SCALE);
    assert_int_equal(qn_eval(s, none), QN_OK);
    assert_int_equal(qn_array_dim(none, 1), 4);
    assert_int_equal(
        qn_read_f32(s, qn_hadamard_transform(s, qn_from_f32(s, &one, 1), SCALE), &y, 1), QN_OK);
    reference(&wide, &expected, 1);
    assert_float_equal(y, expected, 1e-5);
    qn_scope_end(s);
}

/* Every length; and that it is its own inverse. */
static void check_lengths(qn_device *device)
{
    static double x[ROWS * LONGEST], want[LONGEST];
    static float values[ROWS * LONGEST], y[ROWS * LONGEST], again[ROWS * LONGEST];
    uint64_t seed = 3;
    for (int i = 0; i < ROWS * LONGEST; i++)
        x[i] = values[i] = (float)test_random(&seed);
    for (int n = 1; n <= LONGEST; n *= 2) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *of = qn_from(s, QN_F32, 2, (const int64_t[]){ROWS, n}, values);
        qn_array *twice = qn_hadamard_transform(s, qn_hadamard_transform(s, of, 0), 0);
        qn_read_f32(s, qn_hadamard_transform(s, of, SCALE), y, (size_t)(ROWS * n));
        qn_read_f32(s, twice, again, (size_t)(ROWS * n));
        assert_string_equal(qn_scope_error(s), "");
        for (int r = 0; r < ROWS; r++) {
            reference(x + r * n, want, n);
            for (int i = 0; i < n; i++) {
                assert_float_equal(y[r * n + i], want[i], 2e-5 * sqrt(n));
                assert_float_equal(again[r * n + i], values[r * n + i], 1e-5);
            }
        }
        qn_scope_end(s);
    }
    qn_scope *s = qn_scope_begin(device);
    assert_int_equal(
        qn_eval(s, qn_hadamard_transform(s, qn_zeros(s, QN_F32, 1, &(int64_t){12}), 0)),
        QN_INVALID);
    assert_non_null(strstr(qn_scope_error(s), "power of two"));
    qn_scope_end(s);
}

/* The CPU in each tier, on three threads, then other devices: as far as this machine has them. */
static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *device, *tier;
        int threads;
    } ways[] = {{"cpu", "ref", 1},  {"cpu", "avx2", 1}, {"cpu", "avx512", 1}, {"cpu", "amx", 1},
                {"cpu", "neon", 1}, {"cpu", NULL, 3},   {"cuda", NULL, 0},    {"webgpu", NULL, 0}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        qn_device *device;
        qn_device_options options = {
            .size = sizeof options, .tier = ways[i].tier, .threads = ways[i].threads};
        if (qn_device_open(&device, ways[i].device, &options, NULL) != QN_OK)
            continue;
        check_values(device, QN_F32, false, 1e-5);
        check_values(device, QN_F32, true, 1e-5);
        check_values(device, QN_F64, false, 1e-12);
        check_values(device, QN_BF16, false, 8e-3);
        check_edges(device);
        check_lengths(device);
        qn_device_close(device);
    }
}

/* The loss sum(hadamard_transform(x) c), its gradient where `gradient` is given, and the tangent
 * along `direction`. */
static double loss_of(qn_device *device, const double *values, const double *c, double *gradient,
                      const double *direction, double *tangent)
{
    qn_scope *s = qn_scope_begin(device);
    const int64_t shape[] = {ROWS, LENGTH};
    qn_array *x = qn_from(s, QN_F64, 2, shape, values), *g;
    qn_array *weighted =
        qn_multiply(s, qn_hadamard_transform(s, x, SCALE), qn_from(s, QN_F64, 2, shape, c));
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
    qn_device *device = open_device(state);
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
