/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with a weight of 4 bits by an operation of one's own (06_qmatmul.c), on the CPU or a
 * GPU, beside the library's.
 *
 *     build/examples/06_quantized [DEVICE]
 */
#include <quern/quern.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { M = 3, N = 40, K = 512, GROUP = 64 };

/* -1 .. 1, the same each time */
static qn_array *some(qn_scope *s, int64_t rows, uint64_t seed)
{
    const int64_t shape[] = {rows, K};
    return qn_random_uniform(s, qn_random_key(s, seed), QN_F32, -1, 1, 2, shape);
}

static int run(qn_device *device, const qn_primitive *qmatmul)
{
    static float ours[M * N], known[M * N];
    const qn_quantization four_bits = {.bits = 4, .group_size = GROUP};
    const int64_t group = GROUP; /* its parameters: one number */
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = some(s, M, 1), *words, *scales, *biases;
    qn_quantize(s, some(s, N, 2), &four_bits, &words, &scales, &biases);
    qn_array *in[] = {x, words, scales, biases};
    qn_array *y = qn_custom(s, qmatmul, in, 4, &group, sizeof group);
    qn_array *z = qn_quantized_matmul(s, x, words, scales, biases, true, &four_bits);
    if (qn_read_f32(s, y, ours, M * N) != QN_OK || qn_read_f32(s, z, known, M * N) != QN_OK)
        return fprintf(stderr, "%s\n", qn_scope_error(s)), 1;
    float apart = 0;
    for (int i = 0; i < M * N; i++)
        apart = fmaxf(apart, fabsf(ours[i] - known[i]));
    printf("y[0, :4] = %.3f %.3f %.3f %.3f\n", (double)ours[0], (double)ours[1], (double)ours[2],
           (double)ours[3]);
    printf("the library's is %s\n", apart < 1e-4f ? "the same" : "another");
    qn_scope_end(s);
    return 0;
}

int main(int argc, char **argv)
{
    qn_error err = {0};
    qn_device *device;
    char path[4096];
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    snprintf(path, sizeof path, "%.*s06_qmatmul.so", slash ? (int)(slash + 1 - argv[0]) : 0,
             argv[0]);
    if (qn_device_open(&device, argc > 1 ? argv[1] : "cpu", NULL, &err) != QN_OK ||
        qn_device_load_library(device, path, NULL, &err) != QN_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    const qn_primitive *qmatmul = qn_primitive_find(device, "example", "qmatmul", 0, &err);
    int code = run(device, qmatmul);
    qn_device_close(device);
    return code;
}
