/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses and their gradients against PyTorch's (tests/golden/make_losses.py), in f64; terms that
 * are 0; what is refused. Gradients are also in autodiff/test_grad.c.
 */
#include "test.h"

#include <math.h>
#include <string.h>

enum { MOST = 4, ROOM = 64 };

typedef struct golden {
    qn_scope *s;
    qn_tensors *file;
} golden;

static qn_array *read_part(const golden *g, const char *name, const char *part)
{
    char key[40];
    snprintf(key, sizeof key, "%s.%s", name, part);
    return qn_tensors_read(g->s, g->file, key);
}

static void expect_values(const golden *g, qn_array *got, const char *name, const char *part)
{
    double a[ROOM], b[ROOM];
    size_t n = (size_t)qn_array_elements(got);
    qn_array *want = read_part(g, name, part);
    assert_true(n <= ROOM);
    if (qn_read(g->s, got, a, n * sizeof *a) != QN_OK ||
        qn_read(g->s, want, b, n * sizeof *b) != QN_OK)
        fail_msg("%s: %s", name, qn_scope_error(g->s));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-13 * (1 + fabs(b[i]))))
            fail_msg("%s.%s, element %zu: %.17g, PyTorch %.17g", name, part, i, a[i], b[i]);
}

typedef qn_array *loss_fn(qn_scope *s, qn_array *const *x);

static qn_array *mse(qn_scope *s, qn_array *const *x)
{
    return qn_mse_loss(s, x[0], x[1]);
}

static qn_array *kl(qn_scope *s, qn_array *const *x)
{
    return qn_kl_div(s, x[0], x[1], false);
}

static qn_array *kl_log(qn_scope *s, qn_array *const *x)
{
    return qn_kl_div(s, x[0], x[1], true);
}

static qn_array *dpo(qn_scope *s, qn_array *const *x)
{
    return qn_dpo_loss(s, x[0], x[1], x[2], x[3], 0.1, 0);
}

static qn_array *dpo_smooth(qn_scope *s, qn_array *const *x)
{
    return qn_dpo_loss(s, x[0], x[1], x[2], x[3], 0.7, 0.2);
}

static qn_array *masked(qn_scope *s, qn_array *const *x)
{
    const bool mask[] = {1, 0, 1, 1, 0, 0, 1};
    return qn_masked_mean(s, x[0], qn_from(s, QN_BOOL, 1, (const int64_t[]){7}, mask));
}

static void check_loss(qn_device *device, qn_tensors *file, const char *name, loss_fn *loss, int n)
{
    static const char *const arguments[] = {"0", "1", "2", "3"}, *const gradients[] = {"d0", "d1",
                                                                                       "d2", "d3"};
    golden g = {qn_scope_begin(device), file};
    qn_array *x[MOST], *grads[MOST];
    for (int i = 0; i < n; i++)
        x[i] = read_part(&g, name, arguments[i]);
    qn_array *y = loss(g.s, x);
    expect_values(&g, y, name, "y");
    qn_vjp(g.s, y, read_part(&g, name, "w"), x, n, grads);
    for (int i = 0; i < n; i++)
        expect_values(&g, grads[i], name, gradients[i]);
    qn_scope_end(g.s);
}

static void test_golden(void **state)
{
    char path[600];
    qn_error err = {0};
    qn_tensors *file;
    qn_device *device = open_cpu(state);
    snprintf(path, sizeof path, "%s/tests/golden/losses/golden.safetensors",
             getenv("QUERN_SOURCE"));
    if (qn_tensors_open(&file, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    check_loss(device, file, "mse", mse, 2);
    check_loss(device, file, "kl", kl, 2);
    check_loss(device, file, "kl_log", kl_log, 2);
    check_loss(device, file, "dpo", dpo, 4);
    check_loss(device, file, "dpo_smooth", dpo_smooth, 4);
    check_loss(device, file, "masked", masked, 1);
    qn_tensors_close(file);
    qn_device_close(device);
}

/* A target of 0 adds nothing, to the gradients neither; KL of a distribution from itself is 0. */
static void test_zeros(void **state)
{
    qn_device *device = open_device(state);
    qn_scope *s = qn_scope_begin(device);
    const float p[] = {0, 0.25f, 0.75f}, q[] = {0.5f, 0.25f, 0.25f};
    qn_array *of = qn_from_f32(s, p, 3), *log_q = qn_log(s, qn_from_f32(s, q, 3));
    qn_array *y = qn_kl_div(s, log_q, of, false), *wrt[] = {log_q, of}, *grad[2];
    float value, grads[3], of_p[3];
    assert_int_equal(qn_vjp(s, y, qn_scalar(s, QN_F32, 1), wrt, 2, grad), QN_OK);
    assert_int_equal(qn_read_f32(s, y, &value, 1), QN_OK);
    assert_int_equal(qn_read_f32(s, grad[0], grads, 3), QN_OK);
    assert_int_equal(qn_read_f32(s, grad[1], of_p, 3), QN_OK);
    assert_true(fabsf(value - 0.75f * logf(3)) <= 1e-6f);
    assert_true(grads[0] == 0 && grads[1] == -0.25f && grads[2] == -0.75f);
    assert_true(fabsf(of_p[0] - logf(2)) <= 1e-6f && fabsf(of_p[1] - 1) <= 1e-6f);
    qn_read_f32(s, qn_kl_div(s, log_q, log_q, true), &value, 1);
    assert_true(value == 0);
    qn_scope_end(s);
    qn_device_close(device);
}

/* Preferences that are far from even: no overflow, and the loss is the margin. */
static void test_far(void **state)
{
    qn_device *device = open_device(state);
    qn_scope *s = qn_scope_begin(device);
    const float far[] = {-2000, 2000}, none[] = {0, 0};
    qn_array *x = qn_from_f32(s, far, 2), *zero = qn_from_f32(s, none, 2), *grad;
    qn_array *y = qn_dpo_loss(s, x, zero, zero, zero, 0.5, 0);
    float loss[2], grads[2];
    assert_int_equal(qn_vjp(s, y, qn_from_f32(s, (const float[]){1, 1}, 2), &x, 1, &grad), QN_OK);
    assert_int_equal(qn_read_f32(s, y, loss, 2), QN_OK);
    assert_int_equal(qn_read_f32(s, grad, grads, 2), QN_OK);
    assert_true(loss[0] == 1000 && loss[1] == 0);
    assert_true(grads[0] == -0.5f && grads[1] == 0);
    qn_scope_end(s);
    qn_device_close(device);
}

static void test_refused(void **state)
{
    qn_device *device = open_device(state);
    for (int i = 0; i < 6; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *a = qn_zeros(s, QN_F32, 1, (const int64_t[]){3}), *b = qn_scalar(s, QN_F32, 1);
        qn_array *whole = qn_zeros(s, QN_I32, 1, (const int64_t[]){3});
        qn_array *y = i == 0   ? qn_mse_loss(s, a, b)
                      : i == 1 ? qn_mse_loss(s, a, whole)
                      : i == 2 ? qn_kl_div(s, b, b, false)
                      : i == 3 ? qn_dpo_loss(s, a, a, a, a, 0, 0)
                      : i == 4 ? qn_dpo_loss(s, a, a, a, a, 1, 0.6)
                               : qn_masked_mean(s, a, b);
        assert_int_equal(qn_scope_status(s), QN_INVALID);
        assert_non_null(strstr(qn_scope_error(s), "wanted") ? y
                        : strstr(qn_scope_error(s), "axis") ? y
                                                            : NULL);
        qn_scope_end(s);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_far),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
