/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients that their caller writes: they are what is used, instead of the forward's own; right
 * ones are those of central differences, and differentiate again; inside a checkpoint; what is
 * refused.
 */
#include "test.h"

#include <math.h>
#include <string.h>

/* x log x by hand: (1 + log x) ct, times *user. */
static void entropy_rule(qn_scope *s, void *user, qn_array *const *in, int n, qn_array *y,
                         qn_array *ct, const bool *want, qn_array **grads)
{
    (void)y;
    qn_array *one = qn_scalar(s, QN_F64, 1);
    for (int i = 0; i < n; i++)
        if (want[i])
            grads[i] = qn_multiply(
                s, qn_scalar(s, QN_F64, *(double *)user),
                qn_multiply(s, ct,
                            i ? qn_multiply(s, in[0], qn_log(s, in[0]))
                              : qn_multiply(s, in[1], qn_add(s, one, qn_log(s, in[0])))));
}

/* b a log a with that rule; its own derivatives cannot be found through floor. */
static qn_array *entropy(qn_scope *s, qn_array *a, qn_array *b, double *factor)
{
    qn_array *hidden = qn_add(s, qn_multiply(s, b, qn_multiply(s, a, qn_log(s, a))),
                              qn_multiply(s, qn_scalar(s, QN_F64, 0), qn_floor(s, a)));
    return qn_custom_vjp(s, hidden, (qn_array *[]){a, b}, 2, entropy_rule, factor);
}

enum { N = 3 };

typedef struct outcome {
    double y, grad[2][N], second[N];
} outcome;

/* The sum of squares of the entropies of a, b, first with a stretch that is computed again. */
static outcome run_entropy(qn_device *device, const double *a, const double *b, double factor,
                           bool checkpoint)
{
    outcome out;
    qn_scope *s = qn_scope_begin(device);
    const int64_t shape[] = {N};
    qn_array *x[] = {qn_from(s, QN_F64, 1, shape, a), qn_from(s, QN_F64, 1, shape, b)};
    qn_array *grads[2], *second;
    if (checkpoint)
        qn_checkpoint_begin(s);
    qn_array *y = entropy(s, qn_square(s, x[0]), x[1], &factor);
    if (checkpoint)
        qn_checkpoint_end(s);
    qn_array *sum = qn_sum(s, qn_square(s, y), QN_ALL_AXES, false);
    qn_grad(s, sum, x, 2, grads);
    qn_grad(s, qn_sum(s, grads[0], QN_ALL_AXES, false), x, 1, &second);
    if (qn_read(s, sum, &out.y, 8) != QN_OK || qn_read(s, grads[0], out.grad[0], 8 * N) != QN_OK ||
        qn_read(s, grads[1], out.grad[1], 8 * N) != QN_OK ||
        qn_read(s, second, out.second, 8 * N) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
    return out;
}

static const double begin[2][N] = {{0.7, 1.3, 2.1}, {0.4, -1.1, 0.9}};

static void test_gradients(void **state)
{
    qn_device *device = open_cpu(state);
    outcome at = run_entropy(device, begin[0], begin[1], 1, false);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < N; k++) {
            double x[2][N], h = 1e-5;
            memcpy(x, begin, sizeof x);
            x[i][k] += h;
            outcome up = run_entropy(device, x[0], x[1], 1, false);
            x[i][k] -= 2 * h;
            outcome down = run_entropy(device, x[0], x[1], 1, false);
            double numeric = (up.y - down.y) / (2 * h), second = 0;
            assert_true(fabs(at.grad[i][k] - numeric) <= 1e-6 * fabs(numeric));
            for (int j = 0; i == 0 && j < N; j++)
                second += (up.grad[0][j] - down.grad[0][j]) / (2 * h);
            assert_true(i || fabs(at.second[k] - second) <= 1e-6 * fabs(second));
        }
    qn_device_close(device);
}

/* Twice the right gradient comes out as twice; a checkpoint changes no bit of it. */
static void test_rule_is_used(void **state)
{
    qn_device *device = open_cpu(state);
    outcome one = run_entropy(device, begin[0], begin[1], 1, false);
    outcome two = run_entropy(device, begin[0], begin[1], 2, false);
    outcome again = run_entropy(device, begin[0], begin[1], 1, true);
    assert_true(one.y == two.y);
    for (int k = 0; k < N; k++)
        assert_true(two.grad[0][k] == 2 * one.grad[0][k] && two.grad[1][k] == 2 * one.grad[1][k]);
    assert_memory_equal(one.grad, again.grad, sizeof one.grad);
    for (int k = 0; k < N; k++) /* whose sums have another order */
        assert_true(fabs(one.second[k] - again.second[k]) <= 1e-14 * fabs(one.second[k]));
    qn_device_close(device);
}

/* Straight through a rounding: f32, the value is rounded and the gradient is the cotangent; another
 * array that y was computed of gets nothing. */
static void straight_rule(qn_scope *s, void *user, qn_array *const *in, int n, qn_array *y,
                          qn_array *ct, const bool *want, qn_array **grads)
{
    (void)s, (void)user, (void)in, (void)n, (void)y;
    grads[0] = want[0] ? ct : NULL;
}

static void test_straight_through(void **state)
{
    qn_device *device = open_device(state);
    qn_scope *s = qn_scope_begin(device);
    const float values[] = {0.4f, 1.6f, -2.3f};
    qn_array *x = qn_from_f32(s, values, 3), *other = qn_from_f32(s, values, 3);
    qn_array *y = qn_round(s, qn_multiply(s, x, qn_add(s, other, qn_scalar(s, QN_F32, 1))));
    qn_array *wrt[] = {x, other}, *grads[2];
    qn_array *out = qn_custom_vjp(s, y, &x, 1, straight_rule, NULL);
    float got[3], seen[3], none[3];
    qn_grad(s, qn_sum(s, out, QN_ALL_AXES, false), wrt, 2, grads);
    assert_int_equal(qn_read_f32(s, out, got, 3), QN_OK);
    assert_int_equal(qn_read_f32(s, grads[0], seen, 3), QN_OK);
    assert_int_equal(qn_read_f32(s, grads[1], none, 3), QN_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(got[i] == rintf(values[i] * (values[i] + 1)));
        assert_true(seen[i] == 1 && none[i] == 0);
    }
    qn_scope_end(s);
    qn_device_close(device);
}

/* ---- refused --------------------------------------------------------------------------------- */

static void wrong_shape(qn_scope *s, void *user, qn_array *const *in, int n, qn_array *y,
                        qn_array *ct, const bool *want, qn_array **grads)
{
    (void)user, (void)in, (void)n, (void)y, (void)want;
    grads[0] = qn_sum(s, ct, QN_ALL_AXES, false);
}

static void expect_failure(qn_scope *s, qn_status code, const char *words)
{
    assert_int_equal(qn_scope_status(s), code);
    assert_non_null(strstr(qn_scope_error(s), words));
    qn_scope_end(s);
}

static void test_refused(void **state)
{
    qn_device *device = open_device(state);
    const float values[] = {1, 2};
    for (int i = 0; i < 5; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_from_f32(s, values, 2), *grad;
        qn_vjp_rule *rule = i == 0 ? NULL : i == 1 ? wrong_shape : straight_rule;
        qn_array *y = qn_custom_vjp(s, qn_square(s, x), i == 3 ? &(qn_array *){NULL} : &x,
                                    i == 4 ? 0 : 1, rule, NULL);
        if (i == 1)
            qn_grad(s, qn_sum(s, y, QN_ALL_AXES, false), &x, 1, &grad);
        if (i == 2)
            qn_jvp(s, y, &x, &x, 1);
        expect_failure(s, i == 2 ? QN_UNSUPPORTED : QN_INVALID,
                       i == 0   ? "no rule"
                       : i == 1 ? "has not its input's shape"
                       : i == 2 ? "custom_vjp has a rule for gradients alone"
                       : i == 3 ? "an argument is NULL"
                                : "0 inputs");
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_rule_is_used),
        cmocka_unit_test(test_straight_through),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
