/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels share that multiply tiles of 128 rows of x by many of a weight in bf16 or f16, for
 * sm_90: wgmma, and how its sums become results.
 */
#ifndef QN_CUDA_WIDE_CUH
#define QN_CUDA_WIDE_CUH

#include "cuda/cluster.cuh"
#include "cuda/common.cuh"
#include "cuda/mma.cuh"
#include "cuda/tensor.cuh"
#include "cuda/tiles.cuh"

enum {
    ROWS = QN__CUDA_WIDE_ROWS,
    DEEP = 64,
    GROUP = 128, /* threads that multiply together */
    WARPS = 8    /* that multiply */
};

static __device__ void wide_product(float (&c)[128], uint64_t x, uint64_t w, bool more)
{
    asm volatile(
        "{\n.reg .pred more;\nsetp.ne.b32 more, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." WEIGHT_TYPE "." WEIGHT_TYPE " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111,"
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
        "%127}, "
        "%128, %129, more, 1, 1, 0, 0;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
          "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
          "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),
          "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
          "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
          "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
          "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]),
          "+f"(c[63]), "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]),
          "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]),
          "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),
          "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]),
          "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95]), "+f"(c[96]), "+f"(c[97]),
          "+f"(c[98]), "+f"(c[99]), "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]),
          "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]),
          "+f"(c[110]), "+f"(c[111]), "+f"(c[112]), "+f"(c[113]), "+f"(c[114]), "+f"(c[115]),
          "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]), "+f"(c[120]), "+f"(c[121]),
          "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), "+f"(c[127])
        : "l"(x), "l"(w), "r"((int)more));
}

static __device__ void wide_product(float (&c)[112], uint64_t x, uint64_t w, bool more)
{
    asm volatile(
        "{\n.reg .pred more;\nsetp.ne.b32 more, %114, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n224k16.f32." WEIGHT_TYPE "." WEIGHT_TYPE " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111}, "
        "%112, %113, more, 1, 1, 0, 0;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
          "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
          "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),
          "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
          "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
          "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
          "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]),
          "+f"(c[63]), "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]),
          "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]),
          "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),
          "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]),
          "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95]), "+f"(c[96]), "+f"(c[97]),
          "+f"(c[98]), "+f"(c[99]), "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]),
          "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]),
          "+f"(c[110]), "+f"(c[111])
        : "l"(x), "l"(w), "r"((int)more));
}

static __device__ void wide_product(float (&c)[96], uint64_t x, uint64_t w, bool more)
{
    asm volatile(
        "{\n.reg .pred more;\nsetp.ne.b32 more, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32." WEIGHT_TYPE "." WEIGHT_TYPE " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, more, 1, 1, 0, 0;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
          "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
          "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),
          "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
          "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
          "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
          "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]),
          "+f"(c[63]), "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]),
          "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]),
          "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),
          "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]),
          "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95])
        : "l"(x), "l"(w), "r"((int)more));
}

static __device__ void wide_product(float (&c)[64], uint64_t x, uint64_t w, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." WEIGHT_TYPE "." WEIGHT_TYPE " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, more, 1, 1, 0, 0;\n}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
                   "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
                   "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
                   "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]),
                   "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
                   "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
                 : "l"(x), "l"(w), "r"((int)more));
}

static __device__ void wide_product(float (&c)[32], uint64_t x, uint64_t w, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." WEIGHT_TYPE "." WEIGHT_TYPE " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, more, 1, 1, 0, 0;\n}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "l"(x), "l"(w), "r"((int)more));
}

static __device__ void wide_product(float (&c)[48], uint64_t x, uint64_t w, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32." WEIGHT_TYPE "." WEIGHT_TYPE " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
                 "%48, %49, more, 1, 1, 0, 0;\n}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
                   "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
                   "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47])
                 : "l"(x), "l"(w), "r"((int)more));
}

/* A tile: which weight, its first row there, and of x. Gated, it has N / 2 rows of the gate, then
 * those of the other. */
struct wide_tile {
    int weight, row, x_row, x_end; /* behind the last row of x */
};

/* ---- results --------------------------------------------------------------------------------- */

/* A warp's sums of 16 rows and 8 J columns of a tile: c[4 j + 2 half + i] of row g + 8 half is of
 * column at(j) + 2 t + i. Gated, those of the other weight are J / 2 behind in j, of the same
 * columns. */
struct all_columns {
    __device__ int at(int j) const
    {
        return 8 * j;
    }
};

/* Lanes with neighbouring t exchange theirs of two j, so that each has four neighbouring columns:
 * those from four_at on. */
template <class C> static __device__ int four_at(const C &columns, int j, int t)
{
    return columns.at(j + t % 2) + t / 2 * 4;
}

/* u: of j, v: of j + 1. */
static __device__ float4 four_of(float2 u, float2 v, int t)
{
    const float2 give = t % 2 ? u : v, got = make_float2(__shfl_xor_sync(~0u, give.x, 1),
                                                         __shfl_xor_sync(~0u, give.y, 1));
    return t % 2 ? make_float4(got.x, got.y, v.x, v.y) : make_float4(u.x, u.y, got.x, got.y);
}

/* The same of pairs of halves. */
static __device__ uint2 four_of(uint32_t u, uint32_t v, int t)
{
    const uint32_t got = __shfl_xor_sync(~0u, t % 2 ? u : v, 1);
    return t % 2 ? make_uint2(got, v) : make_uint2(u, got);
}

/* What is added is loaded for many results at once, since no load may overtake a store. */
template <int J, bool WHOLE, int AT_ONCE, class C>
static __device__ void store_fours(const qn__cuda_linears_args &a, const wide_tile &tile,
                                   const C &columns, const float (&c)[4 * J])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4,
              n = (int)a.n[tile.weight], left = n - tile.row;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = tile.x_row + warp * 16 + g + 8 * half;
        const bool real = row < tile.x_end;
        const int64_t at = (int64_t)row * n + tile.row;
        const float *added = a.at[QN__CUDA_ADDED] ? (const float *)a.at[QN__CUDA_ADDED] + at : NULL;
        float *y = (float *)a.at[2 + 2 * tile.weight] + at;
#pragma unroll
        for (int first = 0; first < J / 2; first += AT_ONCE) {
            float4 more[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < J / 2; i++) {
                const int column = four_at(columns, 2 * (first + i), t);
                more[i] = added && real && (WHOLE || column < left)
                              ? *(const float4 *)(added + column)
                              : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < J / 2; i++) {
                const int column = four_at(columns, 2 * (first + i), t);
                const float *u = &c[8 * (first + i) + 2 * half];
                float4 v = four_of(make_float2(u[0], u[1]), make_float2(u[4], u[5]), t);
                if (added)
                    v = make_float4(v.x + more[i].x, v.y + more[i].y, v.z + more[i].z,
                                    v.w + more[i].w);
                if (real && (WHOLE || column < left))
                    *(float4 *)(y + column) = v;
            }
        }
    }
}

/* Rows that are no vectors. */
template <int J, class C>
static __device__ void store_ones(const qn__cuda_linears_args &a, const wide_tile &tile,
                                  const C &columns, const float (&c)[4 * J])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int64_t n = a.n[tile.weight];
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
#pragma unroll
    for (int i = 0; i < 4 * J; i++) {
        const int64_t row = tile.x_row + warp * 16 + g + i / 2 % 2 * 8,
                      column = tile.row + columns.at(i / 4) + 2 * t + i % 2, at = row * n + column;
        if (row < tile.x_end && column < n)
            ((float *)a.at[2 + 2 * tile.weight])[at] = added ? c[i] + added[at] : c[i];
    }
}

template <bool EXACT>
static __device__ float gated(const qn__cuda_linears_args &a, float gate, float up)
{
    return (EXACT ? activation_of(a, gate) : quick_activation_of(a, gate)) * up;
}

/* Gated results rounded alone, in rows as they are. */
template <int J, bool EXACT, class C>
static __device__ void store_gated_fours(const qn__cuda_linears_args &a, const wide_tile &tile,
                                         const C &columns, const float (&c)[4 * J])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4,
              n = (int)a.n[0], left = n - tile.row;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = tile.x_row + warp * 16 + g + 8 * half;
        uint16_t *y = (uint16_t *)a.at[QN__CUDA_ROUNDED] + (int64_t)row * n + tile.row;
#pragma unroll
        for (int j = 0; j < J / 2; j += 2) {
            uint32_t pair[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *gate = &c[4 * (j + i) + 2 * half],
                            *up = &c[4 * (j + i + J / 2) + 2 * half];
                pair[i] = weight_pair(gated<EXACT>(a, gate[0], up[0]),
                                      gated<EXACT>(a, gate[1], up[1]));
            }
            const uint2 v = four_of(pair[0], pair[1], t);
            const int column = four_at(columns, j, t);
            if (row < tile.x_end && column < left)
                *(uint2 *)(y + column) = v;
        }
    }
}

template <int J, bool EXACT, class C>
static __device__ void store_gated(const qn__cuda_linears_args &a, const wide_tile &tile,
                                   const C &columns, const float (&c)[4 * J])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * J; i++) {
        const int64_t row = tile.x_row + warp * 16 + g + i / 2 % 2 * 8,
                      column = tile.row + columns.at(i / 4) + 2 * t + i % 2,
                      at = row * a.n[0] + column;
        if (row < tile.x_end && column < a.n[0])
            put_result(a, at, gated<EXACT>(a, c[i], c[i + 2 * J]));
    }
}

/* Of a tile of N rows of weights. */
template <int N, int J, bool EXACT, class C>
static __device__ void store_tile(const qn__cuda_linears_args &a, const wide_tile &tile,
                                  const C &columns, const float (&c)[4 * J])
{
    enum {
        AT_ONCE = EXACT ? 4 : 8, /* as registers allow */
        FOURS = J % 4 == 0
    }; /* pairs of j do not go from gate to up */
    const int64_t n = a.n[tile.weight];
    if (FOURS && a.gated && !a.at[2] && !a.turned && n % 4 == 0)
        store_gated_fours<J, EXACT>(a, tile, columns, c);
    else if (a.gated)
        store_gated<J, EXACT>(a, tile, columns, c);
    else if (n % 4)
        store_ones<J>(a, tile, columns, c);
    else if (tile.row + N <= n)
        store_fours<J, true, AT_ONCE>(a, tile, columns, c);
    else
        store_fours<J, false, AT_ONCE>(a, tile, columns, c);
}

#endif
