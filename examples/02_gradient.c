/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients: fit y = tanh(x a + b) c to one period of a sine by gradient descent. The gradients
 * come from qn_grad; the step is written out by hand, and updates the parameters in place.
 *
 *     build/examples/02_gradient
 */
#include <quern/quern.h>

#include <math.h>
#include <stdio.h>

enum { POINTS = 64, UNITS = 8, STEPS = 2000, PARAMETERS = 3 };

static const int64_t shapes[PARAMETERS][2] = {{1, UNITS}, {1, UNITS}, {UNITS, 1}};

/* Fixed, unequal starting values, so that every run prints the same. */
static bool start(qn_device *device, qn_array **parameter)
{
    qn_scope *s = qn_scope_begin(device);
    for (int i = 0; i < PARAMETERS; i++) {
        float values[UNITS];
        for (int k = 0; k < UNITS; k++)
            values[k] = (float)sin(7.0 * i + 2.3 * k);
        qn_array *a = qn_from(s, QN_F32, 2, shapes[i], values);
        qn_eval(s, a);
        parameter[i] = qn_retain(a);
    }
    bool ok = qn_scope_status(s) == QN_OK;
    qn_scope_end(s);
    return ok;
}

/* One step of descent; returns the loss before it, or -1 when something failed. */
static float descend(qn_device *device, qn_array **parameter, float rate)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *p[PARAMETERS], *gradient[PARAMETERS], *result[PARAMETERS + 1];
    for (int i = 0; i < PARAMETERS; i++)
        p[i] = qn_donate(s, parameter[i]); /* ours no longer; the results replace it */
    qn_array *x = qn_subtract(s, qn_arange(s, QN_F32, POINTS), qn_scalar(s, QN_F32, POINTS / 2));
    x = qn_multiply(s, x, qn_scalar(s, QN_F32, 6.2832 / POINTS)); /* -pi .. pi */
    x = qn_reshape(s, x, 2, (const int64_t[]){POINTS, 1});
    qn_array *hidden = qn_tanh(s, qn_add(s, qn_matmul(s, x, p[0]), p[1])); /* [POINTS, UNITS] */
    qn_array *y = qn_matmul(s, hidden, p[2]);                              /* [POINTS, 1] */
    qn_array *loss = qn_mean(s, qn_square(s, qn_subtract(s, y, qn_sin(s, x))), QN_ALL_AXES, false);

    qn_grad(s, loss, p, PARAMETERS, gradient);
    for (int i = 0; i < PARAMETERS; i++)
        result[i] = qn_subtract(s, p[i], qn_multiply(s, qn_from_f32(s, &rate, 1), gradient[i]));
    result[PARAMETERS] = loss;
    float value = -1;
    if (qn_eval_many(s, result, PARAMETERS + 1) != QN_OK ||
        qn_read_f32(s, loss, &value, 1) != QN_OK)
        fprintf(stderr, "%s\n", qn_scope_error(s));
    for (int i = 0; i < PARAMETERS; i++)
        parameter[i] = qn_retain(result[i]);
    qn_scope_end(s);
    return value;
}

int main(void)
{
    qn_error err = {0};
    qn_device *device;
    qn_array *parameter[PARAMETERS] = {NULL};
    if (qn_device_open(&device, "cpu", NULL, &err) != QN_OK || !start(device, parameter))
        return fprintf(stderr, "%s\n", err.message), 1;
    for (int step = 0; step <= STEPS; step++) {
        float loss = descend(device, parameter, 0.1f);
        if (step % 500 == 0)
            printf("step %4d: loss %.3f\n", step, (double)loss);
        if (loss < 0)
            return 1;
    }
    for (int i = 0; i < PARAMETERS; i++)
        qn_release(parameter[i]);
    qn_plan_stats plans = QN_INIT(qn_plan_stats);
    qn_device_plan_stats(device, &plans);
    printf("plans made: %llu\n", (unsigned long long)plans.misses);
    qn_device_close(device);
    return 0;
}
