/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation that the library does not have: loaded from a shared object (03_softplus.c), found
 * by its name, and used like any other: lazily, with a gradient.
 *
 *     build/examples/03_extend
 */
#include <quern/quern.h>

#include <stdio.h>
#include <string.h>

enum { N = 5 };

int main(int argc, char **argv)
{
    qn_error err = {0};
    qn_device *device;
    char path[4096];
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    snprintf(path, sizeof path, "%.*s03_softplus.so", slash ? (int)(slash + 1 - argv[0]) : 0,
             argv[0]);
    if (qn_device_open(&device, "cpu", NULL, &err) != QN_OK ||
        qn_device_load_library(device, path, NULL, &err) != QN_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    if (!qn_primitive_find(device, "example", "softmax", 0, &err))
        printf("%s\n", err.message);
    err = (qn_error){0};
    const qn_primitive *softplus = qn_primitive_find(device, "example", "softplus", 0, &err);

    const float values[N] = {-100, -1, 0, 1, 100};
    const double b = 2; /* its parameters: one double */
    float y[N], slope[N];
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from_f32(s, values, N), *gradient;
    qn_array *result = qn_custom(s, softplus, &x, 1, &b, sizeof b);
    qn_grad(s, qn_sum(s, result, QN_ALL_AXES, false), &x, 1, &gradient);
    if (qn_read_f32(s, result, y, N) != QN_OK || qn_read_f32(s, gradient, slope, N) != QN_OK)
        return fprintf(stderr, "%s\n", qn_scope_error(s)), 1;
    for (int i = 0; i < N; i++)
        printf("softplus(%6.1f) = %8.4f, slope %.4f\n", (double)values[i], (double)y[i],
               (double)slope[i]);
    qn_scope_end(s);
    qn_device_close(device);
    return 0;
}
