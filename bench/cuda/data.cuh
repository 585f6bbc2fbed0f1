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

inline float from_bits(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &u, 4);
    return v;
}

// 4 bits: weight [row][k] is scale * code + bias, of variance 1 / K about.
__host__ __device__ inline uint32_t code_of(uint32_t seed, uint32_t i)
{
    return (uint32_t)(int)((uniform(seed, i) + 1) * 8) & 15;
}

__host__ __device__ inline uint16_t rounded_bits(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

__host__ __device__ inline uint16_t scale_bits(uint32_t seed, uint32_t group, float scale)
{
    return rounded_bits(scale * 0.13f * (1 + 0.3f * uniform(seed + 1000, group)));
}

__host__ __device__ inline uint16_t bias_bits(uint32_t seed, uint32_t group, float scale)
{
    return rounded_bits(scale * -0.97f * (1 + 0.3f * uniform(seed + 1000, group)) +
                        0.1f * scale * uniform(seed + 2000, group));
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

__global__ void pack_int4(char *w, int n, int k, uint32_t seed, float scale, bool paired)
{
    size_t piece = (size_t)blockIdx.x * blockDim.x + threadIdx.x; // of 16 bytes of codes
    if (piece >= (size_t)n * k / 32)
        return;
    int lane = piece % 32, g = lane / 4, t = lane % 4;
    size_t unit = piece / 32;
    int tile = unit / (k / UNIT), k0 = unit % (k / UNIT) * UNIT;
    uint32_t row = paired ? tile * 8 + g : tile * 16 + g, other = row + (paired ? n / 2 : 8);
    uint32_t *out = (uint32_t *)(w + unit * int4_units::BYTES) + lane * 4;
    for (int s = 0; s < 4; s++) {
        uint32_t word = 0;
        for (int j = 0; j < 4; j++) // registers: row, other, row, other of k + 0, 0, 2, 2
            for (int i = 0; i < 2; i++)
                word |=
                    code_of(seed, (j % 2 ? other : row) * k + k0 + 16 * t + 4 * s + j / 2 * 2 + i)
                    << (16 * i + 4 * j);
        out[s] = word;
    }
    if (lane < TILE) {
        uint32_t r = paired ? tile * 8 + lane % 8 + lane / 8 * (n / 2) : tile * 16 + lane;
        uint32_t group = r * (k / UNIT) + k0 / UNIT;
        ((uint32_t *)(w + unit * int4_units::BYTES + 512))[lane] =
            scale_bits(seed, group, scale) | (uint32_t)bias_bits(seed, group, scale) << 16;
    }
}

inline void launch_pack(bf16_units, char *w, int n, int k, uint32_t seed, bool paired,
                        cudaStream_t stream)
{
    size_t pieces = (size_t)n * k / 8;
    pack_units<<<(pieces + 255) / 256, 256, 0, stream>>>((uint16_t *)w, n, k, seed, weight_scale(k),
                                                         paired);
}

template <int U>
inline void launch_pack(int4_chunks<U>, char *w, int n, int k, uint32_t seed, bool paired,
                        cudaStream_t stream)
{
    size_t pieces = (size_t)n * k / 32;
    pack_int4<<<(pieces + 255) / 256, 256, 0, stream>>>(w, n, k, seed, weight_scale(k), paired);
}

// Weights i .. i + 63, a group.
inline void weight_values(bf16_units, uint32_t seed, uint32_t i, float scale, double to[UNIT])
{
    for (int j = 0; j < UNIT; j++)
        to[j] = from_bits(weight_bits(seed, i + j, scale));
}

template <int U>
inline void weight_values(int4_chunks<U>, uint32_t seed, uint32_t i, float scale, double to[UNIT])
{
    double s = from_bits(scale_bits(seed, i / UNIT, scale)),
           b = from_bits(bias_bits(seed, i / UNIT, scale));
    for (int j = 0; j < UNIT; j++)
        to[j] = s * code_of(seed, i + j) + b;
}

// y[b][n] = sum over k of W[n][k] x[b][k] in f64.
template <class W>
inline std::vector<double> reference(uint32_t seed, int n, int k, int rows,
                                     const std::vector<double> &x)
{
    std::vector<double> y((size_t)rows * n);
    float scale = weight_scale(k);
#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; i++) {
        double sum[8] = {0}, w[UNIT];
        for (int j = 0; j < k; j++) {
            if (j % UNIT == 0)
                weight_values(W(), seed, (uint32_t)((size_t)i * k + j), scale, w);
            for (int b = 0; b < rows; b++)
                sum[b] += w[j % UNIT] * x[(size_t)b * k + j];
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
