/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products, naively: right, and in an order that depends on the summed length only.
 */
#include "cuda/common.cuh"

static __device__ float madd(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static __device__ double madd(double a, double b, double c)
{
    return fma(a, b, c);
}

/* A thread an element of the result, k from the left. */
template <typename T> static __device__ void matmul_elements(const qn__cuda_matmul_args &a)
{
    FOR_EACH(i, a.batch * a.m * a.n)
    {
        int64_t n = i % a.n, m = i / a.n % a.m, batch = i / a.n / a.m;
        const T *x = (const T *)a.at[0] + offset_of(a.a, batch) + m * a.a_row;
        const T *w = (const T *)a.at[1] + offset_of(a.b, batch) + n * a.b_column;
        T sum = 0;
        for (int64_t k = 0; k < a.k; k++)
            sum = madd(x[k * a.a_column], w[k * a.b_row], sum);
        ((T *)a.at[2])[i] = sum;
    }
}

extern "C" __global__ void matmul(qn__cuda_matmul_args a)
{
    wait_for_others();
    if (a.wide)
        matmul_elements<double>(a);
    else
        matmul_elements<float>(a);
}

/* ---- linear layers --------------------------------------------------------------------------- */

/* Weights of a type W: their value, and x as its products see it. */
static __device__ float weight(float w)
{
    return w;
}
static __device__ double weight(double w)
{
    return w;
}
static __device__ float weight(uint16_t w)
{
    return f32_of_bf16(w);
}
static __device__ float weight(__half w)
{
    return __half2float(w);
}
static __device__ float rounded(float x, float)
{
    return x;
}
static __device__ double rounded(double x, double)
{
    return x;
}
static __device__ float rounded(float x, uint16_t)
{
    return f32_of_bf16(bf16_of_f32(x));
}
static __device__ float rounded(float x, __half)
{
    return x;
}

/* A warp an element of the result: k to lane k mod 32, then a tree. */
template <typename T, typename W>
static __device__ void linear_elements(const qn__cuda_linear_args &a)
{
    int lane = threadIdx.x % 32;
    int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < a.rows * a.n;
         i += warps) {
        const T *x = (const T *)a.at[0] + i / a.n * a.k;
        const W *w = (const W *)a.at[1] + i % a.n * a.w_row;
        T sum = 0;
        for (int64_t k = lane; k < a.k; k += 32)
            sum = madd(rounded(x[k], W()), weight(w[k * a.w_column]), sum);
        for (int d = 16; d; d /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, d);
        if (lane == 0)
            ((T *)a.at[2])[i] = sum;
    }
}

extern "C" __global__ void linear(qn__cuda_linear_args a)
{
    wait_for_others();
    switch (a.type) {
    case QN_BF16: linear_elements<float, uint16_t>(a); break;
    case QN_F16: linear_elements<float, __half>(a); break;
    case QN_F64: linear_elements<double, double>(a); break;
    default: linear_elements<float, float>(a); break;
    }
}

/* A thread an element of the result, n from the left; the gradient is not rounded. */
template <typename T, typename W>
static __device__ void linear_back_elements(const qn__cuda_linear_args &a)
{
    FOR_EACH(i, a.rows * a.k)
    {
        const T *g = (const T *)a.at[0] + i / a.k * a.n;
        const W *w = (const W *)a.at[1] + i % a.k * a.w_column;
        T sum = 0;
        for (int64_t n = 0; n < a.n; n++)
            sum = madd(g[n], weight(w[n * a.w_row]), sum);
        ((T *)a.at[2])[i] = sum;
    }
}

extern "C" __global__ void linear_back(qn__cuda_linear_args a)
{
    wait_for_others();
    switch (a.type) {
    case QN_BF16: linear_back_elements<float, uint16_t>(a); break;
    case QN_F16: linear_back_elements<float, __half>(a); break;
    case QN_F64: linear_back_elements<double, double>(a); break;
    default: linear_back_elements<float, float>(a); break;
    }
}
