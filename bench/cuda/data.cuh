// SPDX-License-Identifier: Apache-2.0
// Random data that host and device compute alike from a seed and an index, so that nothing is
// copied and the host's reference never sees the packed layout.
#pragma once
#include "matvec.cuh"
#include <cmath>
#include <cstring>
#include <vector>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t err_ = (call);                                                                 \
        if (err_ != cudaSuccess) {                                                                 \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(err_));                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// Uniform in [-1, 1).
__host__ __device__ inline float uniform(uint32_t seed, uint32_t i)
{
    uint32_t h = (i ^ seed * 0x9e3779b1u) * 0x85ebca6bu;
    h = (h ^ h >> 15) * 0xc2b2ae35u;
    h = (h ^ h >> 13) * 0x9e3779b1u;
    return (int32_t)(h ^ h >> 16) * (1.0f / 2147483648.0f);
}

// A weight of variance 1 / K, rounded to bf16, as its upper 16 bits.
__host__ __device__ inline uint16_t weight_bits(uint32_t seed, uint32_t i, float scale)
{
    float v = uniform(seed, i) * scale;
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline float weight_scale(int k)
{
    return sqrtf(3.0f / k);
}

inline float weight_value(uint32_t seed, size_t i, float scale)
{
    uint32_t u = (uint32_t)weight_bits(seed, (uint32_t)i, scale) << 16;
    float v;
    memcpy(&v, &u, 4);
    return v;
}

// Packs units: one thread 16 bytes. paired: a tile's rows 0..7 are gate rows, 8..15 the ups, which
// are rows N / 2 and on of the matrix.
__global__ void pack_units(uint16_t *w, int n, int k, uint32_t seed, float scale, bool paired)
{
    size_t piece = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (piece >= (size_t)n * k / 8)
        return;
    int lane = piece % 32, s = piece / 32 % 4, g = lane / 4, t = lane % 4;
    size_t unit = piece / 128;
    int tile = unit / (k / UNIT), k0 = unit % (k / UNIT) * UNIT + 16 * t + 4 * s;
    uint32_t row = paired ? tile * 8 + g : tile * 16 + g, other = row + (paired ? n / 2 : 8);
    uint16_t *out = w + piece * 8;
    for (int i = 0; i < 4; i++) {
        int at = i / 2 * 4 + i % 2;
        out[at] = weight_bits(seed, row * k + k0 + i, scale);
        out[at + 2] = weight_bits(seed, other * k + k0 + i, scale);
    }
}

// y[b][n] = sum over k of W[n][k] x[b][k] in f64.
inline std::vector<double> reference(uint32_t seed, int n, int k, int rows,
                                     const std::vector<double> &x)
{
    std::vector<double> y((size_t)rows * n);
    float scale = weight_scale(k);
#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; i++) {
        double sum[8] = {0};
        for (int j = 0; j < k; j++) {
            double w = weight_value(seed, (size_t)i * k + j, scale);
            for (int b = 0; b < rows; b++)
                sum[b] += w * x[(size_t)b * k + j];
        }
        for (int b = 0; b < rows; b++)
            y[(size_t)b * n + i] = sum[b];
    }
    return y;
}

// Sum of squared errors over sum of squares; NaN (an element never written) stays NaN.
inline double nmse(const std::vector<double> &want, const float *device)
{
    std::vector<float> got(want.size());
    CHECK(cudaMemcpy(got.data(), device, got.size() * 4, cudaMemcpyDeviceToHost));
    double err = 0, all = 0;
    for (size_t i = 0; i < want.size(); i++) {
        err += (got[i] - want[i]) * (got[i] - want[i]);
        all += want[i] * want[i];
    }
    return err / all;
}
