/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows by index. Of any array a thread has an element. Rows that become f32, of 16-bit floats or
 * out of units, have a block each, which may multiply them, and norm them: a step's embeddings.
 * Rows that there are not are zeros.
 */
#include "cuda/any.cuh"
#include "cuda/norm.cuh"

extern "C" __global__ void take(qn__cuda_take_args a)
{
    wait_for_others();
    const int32_t *ids = (const int32_t *)a.at[1];
    const uint64_t zero = 0;
    FOR_EACH(i, a.n_ids * a.columns)
    {
        int64_t id = ids[i / a.columns];
        if (id < 0 || id >= a.x_rows)
            move_element(a.at[2], i, &zero, 0, a.size);
        else
            move_element(a.at[2], i, a.at[0], id * a.x_stride + offset_of(a.row, i % a.columns),
                         a.size);
    }
}

/* Four columns of row id. */
struct plain_rows {
    __device__ float4 quad(const qn__cuda_take_args &a, int64_t id, int i) const
    {
        const int64_t at = id * (a.x_stride / 4) + i;
        if (a.type == QN_F32)
            return ((const float4 *)a.at[0])[at];
        const uint2 x = ((const uint2 *)a.at[0])[at];
        if (a.type == QN_BF16)
            return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u),
                               __uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u));
        const float2 low = __half22float2(*(const __half2 *)&x.x),
                     high = __half22float2(*(const __half2 *)&x.y);
        return make_float4(low.x, low.y, high.x, high.y);
    }
};

template <class U> struct unit_rows {
    U how;
    __device__ float4 quad(const qn__cuda_take_args &a, int64_t id, int i) const
    {
        enum { TILE = 16 };
        const int of_unit = columns_of(how), column = 4 * i, c = column % of_unit, s = c / U::STEP,
                  row = (int)(id % TILE);
        const int64_t units = ((int)a.columns + of_unit - 1) / of_unit;
        const uint8_t *u =
            (const uint8_t *)a.at[0] + (id / TILE * units + column / of_unit) * bytes_of(how);
        return values_of(how, how.code(u, c / 4 & ~3, c / 4 % 4, row), how.scale(u, s, row),
                         is_biased(how) ? how.bias(u, s, row) : 0);
    }
};

template <class R> static __device__ void take_rows(const R &rows, const qn__cuda_take_args &a)
{
    enum { QUADS = QN__CUDA_TAKE_QUADS };
    __shared__ float room[THREADS / 32];
    const int n = (int)a.columns / 4, tail = (int)a.columns % 4;
    const float4 *weight = (const float4 *)a.at[QN__CUDA_TAKE_WEIGHT];
    wait_for_others();
    for (int64_t r = blockIdx.x; r < a.n_ids; r += gridDim.x) {
        const int64_t id = ((const int32_t *)a.at[1])[r];
        float *y = (float *)a.at[2] + r * a.columns;
        auto quad = [&](int i) {
            if (id < 0 || id >= a.x_rows)
                return make_float4(0, 0, 0, 0);
            const float4 v = rows.quad(a, id, i);
            return a.scaled
                       ? make_float4(v.x * a.factor, v.y * a.factor, v.z * a.factor, v.w * a.factor)
                       : v;
        };
        if (weight) {
            float4 v[QUADS] = {}, w[QUADS];
            auto each = [&](auto with) {
#pragma unroll
                for (int k = 0; k < QUADS; k++)
                    if ((int)threadIdx.x + k * THREADS < n)
                        with(k, (int)threadIdx.x + k * THREADS);
            };
            each([&](int k, int i) {
                w[k] = weight[i];
                v[k] = quad(i);
            });
            each([&](int k, int i) { ((float4 *)y)[i] = v[k]; });
            const float scale = norm_scale(v, 4 * n, room, a.eps);
            each([&](int k, int i) {
                put_quad(a.at[QN__CUDA_TAKE_NORMED], a.at[QN__CUDA_TAKE_ROUNDED], r * n + i,
                         normed(v[k], scale, w[k]), a.turned);
            });
            continue;
        }
        for (int i = threadIdx.x; i < n + (tail != 0); i += THREADS) {
            const float4 v = quad(i);
            const float part[] = {v.x, v.y, v.z, v.w};
            for (int k = 0; k < (i < n ? 4 : tail); k++)
                y[4 * i + k] = part[k];
        }
    }
}

extern "C" __global__ void take_values(const __grid_constant__ qn__cuda_take_args a)
{
    take_rows(plain_rows{}, a);
}

#define TAKE_KERNEL(name, how, ...)                                                                \
    extern "C" __global__ void take_##name(const __grid_constant__ qn__cuda_take_args a)           \
    {                                                                                              \
        take_rows(unit_rows<__VA_ARGS__>{how}, a);                                                 \
    }
#define TAKE_UNITS(name, ...) TAKE_KERNEL(name, (__VA_ARGS__()), __VA_ARGS__)
#define CUDA_UNITS(id, name, ...) TAKE_UNITS(name, __VA_ARGS__)
#include "cuda/units.def"
#undef CUDA_UNITS
TAKE_KERNEL(any_16, units_any<16>{a.units}, units_any<16>)
TAKE_KERNEL(any_32, units_any<32>{a.units}, units_any<32>)
TAKE_KERNEL(any_64, units_any<64>{a.units}, units_any<64>)
