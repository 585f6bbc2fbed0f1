/* SPDX-License-Identifier: Apache-2.0
 *
 * A shared object with an operation of its own for CPUs and CUDA, for 06_quantized.c: x times the
 * rows of a weight of 4 bits, which lies as mlx has it: eight numbers in each word, the lowest bits
 * first; for every `group` of them a scale and a bias. y[m, n] = sum of x[m, k] w[n, k].
 *
 * A kernel for CUDA is a text, here in the same file. Each output is a warp's, whose lanes take a
 * word each; their sums meet in the same order in every run.
 */
#include <quern/quern.h>

#include <stdio.h>

typedef struct qmatmul_params {
    int64_t group;
} qmatmul_params;

enum { WORD = 8, WARP = 32, WARPS = 4 };

/* x [M, K] f32, words [N, K / 8] u32, scales and biases [N, K / group] f32, row-major. */
static qn_status infer(const qn_view *in, const void *params, qn_view *out, qn_error *err)
{
    const qmatmul_params *p = params;
    const qn_view *x = &in[0], *words = &in[1];
    bool ok = p->group > 0 && p->group % WORD == 0 && x->dtype == QN_F32 && words->dtype == QN_U32;
    for (int i = 0; i < 4; i++)
        ok = ok && in[i].ndim == 2 && (i < 2 || in[i].dtype == QN_F32);
    ok = ok && words->shape[1] * WORD == x->shape[1];
    for (int i = 2; ok && i < 4; i++)
        ok = in[i].shape[0] == words->shape[0] && in[i].shape[1] * p->group == x->shape[1];
    if (!ok) {
        snprintf(err->message, sizeof err->message,
                 "x [M, K] f32, words [N, K / 8] u32, scales and biases [N, K / group] f32");
        return err->code = QN_INVALID;
    }
    *out = (qn_view){.dtype = QN_F32, .ndim = 2, .shape = {x->shape[0], words->shape[0]}};
    return QN_OK;
}

/* Inputs may have any strides. */
static float element(const qn_view *a, int64_t row, int64_t column)
{
    return ((const float *)a->data)[row * a->stride[0] + column * a->stride[1]];
}

static float dot(const qn_view *in, int64_t m, int64_t n, int64_t group)
{
    const qn_view *x = &in[0], *words = &in[1];
    float sum = 0;
    for (int64_t k = 0; k < x->shape[1]; k++) {
        int64_t at = n * words->stride[0] + k / WORD * words->stride[1];
        uint32_t q = ((const uint32_t *)words->data)[at] >> 4 * (k % WORD) & 15;
        float w = element(&in[2], n, k / group) * (float)q + element(&in[3], n, k / group);
        sum += element(x, m, k) * w;
    }
    return sum;
}

/* Rows begin .. end - 1 of the result. */
static void kernel(const qn_view *in, const qn_view *y, const void *params, int64_t begin,
                   int64_t end, void *scratch)
{
    (void)scratch;
    for (int64_t m = begin; m < end; m++)
        for (int64_t n = 0; n < y->shape[1]; n++)
            ((float *)y->data)[m * y->shape[1] + n] =
                dot(in, m, n, ((const qmatmul_params *)params)->group);
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

static const char source[] =
    "static __device__ float element(const qn_cuda_call &call, int i, long long row,\n"
    "                                long long column)\n"
    "{\n"
    "    const qn_cuda_view &a = call.view[i];\n"
    "    return ((const float *)call.data[i])[row * a.stride[0] + column * a.stride[1]];\n"
    "}\n"
    "extern \"C\" __global__ void qmatmul(const __grid_constant__ qn_cuda_call call)\n"
    "{\n"
    "    const qn_cuda_view &words = call.view[1], &y = call.view[4];\n"
    "    long long group = *(const long long *)call.params;\n"
    "    long long warp = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;\n"
    "    long long m = warp / y.shape[1], n = warp % y.shape[1];\n"
    "    if (m >= y.shape[0])\n"
    "        return;\n"
    "    float sum = 0;\n"
    "    for (long long i = threadIdx.x % 32; i < words.shape[1]; i += 32) {\n"
    "        unsigned word = ((const unsigned *)call.data[1])\n"
    "            [n * words.stride[0] + i * words.stride[1]];\n"
    "        float scale = element(call, 2, n, 8 * i / group);\n"
    "        float bias = element(call, 3, n, 8 * i / group);\n"
    "        for (int k = 0; k < 8; k++)\n"
    "            sum += element(call, 0, m, 8 * i + k) * (scale * (word >> 4 * k & 15) + bias);\n"
    "    }\n"
    "    for (int apart = 16; apart; apart /= 2)\n"
    "        sum += __shfl_xor_sync(0xffffffffu, sum, apart);\n"
    "    if (threadIdx.x % 32 == 0)\n"
    "        ((float *)call.data[4])[warp] = sum;\n"
    "}\n";

static qn_status grid(const qn_view *in, const qn_view *out, const void *params,
                      qn_cuda_grid *blocks, qn_error *err)
{
    (void)in, (void)params, (void)err;
    int64_t outputs = out->shape[0] * out->shape[1];
    *blocks = (qn_cuda_grid){.blocks = (outputs + WARPS - 1) / WARPS, .threads = WARPS * WARP};
    return QN_OK;
}

static const qn_cuda_kernel cuda = {
    .size = sizeof cuda, .source = source, .name = "qmatmul", .grid = grid};

static const qn_primitive_def primitives[] = {
    {.size = sizeof(qn_primitive_def),
     .name = "qmatmul",
     .version = 1,
     .n_inputs = 4,
     .params_size = sizeof(qmatmul_params),
     .unit = QN_UNIT_ROW,
     .infer = infer,
     .cpu = kernel,
     .cuda = &cuda},
};

QN_API const qn_library quern_library = {
    .size = sizeof quern_library, .name = "example", .primitives = primitives, .n = 1};
