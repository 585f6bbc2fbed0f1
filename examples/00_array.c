/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: open a device, begin a scope, record operations, read the result, look at an error.
 *
 *     build/examples/00_array
 */
#include <quern/quern.h>

#include <stdio.h>

static void print_matrix(const char *name, const float *values, int rows, int columns)
{
    printf("%s\n", name);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            printf("%8.3f%s", values[r * columns + c], c + 1 == columns ? "\n" : "");
}

/* Recording never fails by crashing: a shape that does not fit becomes the scope's error, and every
 * later operation on it passes quietly. */
static void show_error(qn_device *device)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn_ones(s, QN_F32, 2, (const int64_t[]){2, 3});
    qn_array *b = qn_ones(s, QN_F32, 1, (const int64_t[]){4});
    qn_array *wrong = qn_exp(s, qn_add(s, a, b));
    qn_status status = qn_eval(s, wrong);
    printf("%s: %s\n", qn_status_text(status), qn_scope_error(s));
    qn_scope_end(s);
}

int main(void)
{
    qn_error err = {0};
    qn_device *device;
    if (qn_device_open(&device, "cpu", NULL, &err) != QN_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }

    qn_scope *s = qn_scope_begin(device);
    const float values[] = {1, 2, 3, 4, 5, 6};
    qn_array *x = qn_from(s, QN_F32, 2, (const int64_t[]){2, 3}, values); /* [2, 3] */
    qn_array *xt = qn_transpose(s, x, NULL);                              /* [3, 2], a view */
    qn_array *products = qn_matmul(s, x, xt);                             /* [2, 2] */
    qn_array *shares = qn_softmax(s, x, -1);                              /* [2, 3] */

    float out[6];
    if (qn_read_f32(s, products, out, 4) == QN_OK)
        print_matrix("x times its transpose", out, 2, 2);
    if (qn_read_f32(s, shares, out, 6) == QN_OK)
        print_matrix("softmax of each row", out, 2, 3);
    qn_status status = qn_scope_status(s);
    if (status != QN_OK)
        fprintf(stderr, "%s\n", qn_scope_error(s));
    qn_scope_end(s); /* frees every array above */

    show_error(device);
    qn_device_close(device);
    return status == QN_OK ? 0 : 1;
}
