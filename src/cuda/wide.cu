/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16 with many rows of x, for sm_90: wgmma, fed by the tensor copy
 * engine.
 *
 * wide: the bits are those of linear.cu: spans of 256 columns, products of 16 columns in their
 * order within, spans added in order. (The sums of wgmma and of mma.sync are the same: compared on
 * an H100.) deep: one sum along all columns, which leaves room for tiles of 256 rows of the weight.
 *
 * A block's tile is 128 rows of x and N of a weight. One thread of its first warps asks for stages
 * of 64 columns of both, four warps after these multiply 64 rows of x, and four more the others;
 * all go from tile to tile. In a pair of blocks, a cluster, both have the same rows of the weight,
 * of which each asks for half, and gives it to both.
 */
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
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
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

static __device__ void wide_product(float (&c)[96], uint64_t x, uint64_t w, bool more)
{
    asm volatile(
        "{\n.reg .pred more;\nsetp.ne.b32 more, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
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
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
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

static __device__ void wide_product(float (&c)[48], uint64_t x, uint64_t w, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
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

template <int N> struct wide {
    enum {
        X_BYTES = ROWS * DEEP * 2,
        W_BYTES = N * DEEP * 2,
        STAGE = X_BYTES + W_BYTES,
        STAGES = (QN__CUDA_WIDE_SHARED - 1024) / STAGE
    };
    char *stages;
    uint64_t *full, *empty;
    int rank; /* of a pair's blocks */
};

/* A tile: which weight, its first row there, and of x. Gated, it has N / 2 rows of the gate, then
 * those of the other. */
struct wide_tile {
    int weight, row, x_row;
};

/* Tile number i of a launch; in a pair, two of x that follow each other. */
template <int N, bool PAIR>
static __device__ wide_tile tile_at(const qn__cuda_linears_args &a, int rank, int i)
{
    const int x_tiles = (int)((a.rows + ROWS - 1) / ROWS), in_turn = PAIR ? x_tiles / 2 : x_tiles,
              x = i % in_turn, x_row = (PAIR ? 2 * x + rank : x) * ROWS;
    int tile = i / in_turn, weight = 0;
    if (a.gated)
        return {0, tile * (N / 2), x_row};
    for (; weight < QN__CUDA_LINEARS - 1 && tile >= (a.n[weight] + N - 1) / N; weight++)
        tile -= (int)((a.n[weight] + N - 1) / N);
    return {weight, tile * N, x_row};
}

/* Asks for a tile's stages as they become free, with SPANS in whole spans; behind the last column
 * are zeros. */
template <int N, bool PAIR, bool SPANS>
static __device__ void ask_stages(const qn__cuda_wide_args &a, const wide<N> &s,
                                  const wide_tile &tile, int &stage, uint32_t &phase)
{
    typedef wide<N> W;
    enum { STEP = SPANS ? SPAN : DEEP };
    const int steps = ((int)a.linears.k + STEP - 1) / STEP, gated = (int)a.linears.gated;
    for (int k = 0; k < steps * STEP; k += DEEP) {
        char *to = s.stages + stage * W::STAGE;
        barrier_wait(&s.empty[stage], phase ^ 1);
        barrier_expect(&s.full[stage], W::STAGE);
        copy_box(to, &a.map[QN__CUDA_LINEARS], &s.full[stage], k, tile.x_row);
        to += W::X_BYTES;
        const int gate = gated == 2;
        if (PAIR)
            copy_box_to_pair(to + s.rank * (W::W_BYTES / 2),
                             &a.map[gated ? gate ^ s.rank : tile.weight], &s.full[stage], k,
                             gated ? tile.row : tile.row + s.rank * (N / 2));
        else
            copy_box(to, &a.map[gated ? gate : tile.weight], &s.full[stage], k, tile.row);
        if (!PAIR && gated)
            copy_box(to + W::W_BYTES / 2, &a.map[!gate], &s.full[stage], k, tile.row);
        if (++stage == W::STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

/* A warp is done with a stage: who fills it, or both who do, learn that. */
template <bool PAIR> static __device__ void give_back_to(uint64_t *empty)
{
    const int lane = threadIdx.x % 32;
    if (PAIR && lane < 2)
        barrier_arrive_at(empty, lane);
    else if (!PAIR && lane == 0)
        barrier_arrive(empty);
}

/* ---- results --------------------------------------------------------------------------------- */

/* A warp's sums of 16 rows: c[4 j + 2 half + i] of row g + 8 half is of column 8 j + 2 t + i. Lanes
 * with neighbouring t exchange theirs of two j, so that each has four neighbouring columns: those
 * at four_at(t) of 16. */
static __device__ int four_at(int t)
{
    return t % 2 * 8 + t / 2 * 4;
}

/* u: of j, v: of j + 1. */
static __device__ float4 four_of(float2 u, float2 v, int t)
{
    const float2 give = t % 2 ? u : v, got = make_float2(__shfl_xor_sync(~0u, give.x, 1),
                                                         __shfl_xor_sync(~0u, give.y, 1));
    return t % 2 ? make_float4(got.x, got.y, v.x, v.y) : make_float4(u.x, u.y, got.x, got.y);
}

/* The same of pairs of bf16. */
static __device__ uint2 four_of(uint32_t u, uint32_t v, int t)
{
    const uint32_t got = __shfl_xor_sync(~0u, t % 2 ? u : v, 1);
    return t % 2 ? make_uint2(got, v) : make_uint2(u, got);
}

/* What is added is loaded for many results at once, since no load may overtake a store. */
template <int N, bool WHOLE, int AT_ONCE>
static __device__ void store_fours(const qn__cuda_linears_args &a, const wide_tile &tile,
                                   const float (&c)[N / 2])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4,
              n = (int)a.n[tile.weight], left = n - tile.row - four_at(t);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = tile.x_row + warp * 16 + g + 8 * half;
        const bool real = row < a.rows;
        const int64_t at = (int64_t)row * n + tile.row + four_at(t);
        const float *added = a.at[QN__CUDA_ADDED] ? (const float *)a.at[QN__CUDA_ADDED] + at : NULL;
        float *y = (float *)a.at[2 + 2 * tile.weight] + at;
#pragma unroll
        for (int first = 0; first < N / 16; first += AT_ONCE) {
            float4 more[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < N / 16; i++)
                more[i] = added && real && (WHOLE || 16 * (first + i) < left)
                              ? *(const float4 *)(added + 16 * (first + i))
                              : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < AT_ONCE && first + i < N / 16; i++) {
                const float *u = &c[8 * (first + i) + 2 * half];
                float4 v = four_of(make_float2(u[0], u[1]), make_float2(u[4], u[5]), t);
                if (added)
                    v = make_float4(v.x + more[i].x, v.y + more[i].y, v.z + more[i].z,
                                    v.w + more[i].w);
                if (real && (WHOLE || 16 * (first + i) < left))
                    *(float4 *)(y + 16 * (first + i)) = v;
            }
        }
    }
}

/* Rows that are no vectors. */
template <int N>
static __device__ void store_ones(const qn__cuda_linears_args &a, const wide_tile &tile,
                                  const float (&c)[N / 2])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int64_t n = a.n[tile.weight];
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int64_t row = tile.x_row + warp * 16 + g + i / 2 % 2 * 8,
                      column = tile.row + i / 4 * 8 + 2 * t + i % 2, at = row * n + column;
        if (row < a.rows && column < n)
            ((float *)a.at[2 + 2 * tile.weight])[at] = added ? c[i] + added[at] : c[i];
    }
}

template <bool EXACT>
static __device__ float gated(const qn__cuda_linears_args &a, float gate, float up)
{
    return (EXACT ? activation_of(a, gate) : quick_activation_of(a, gate)) * up;
}

/* Gated results as bf16 alone, in rows as they are. */
template <int N, bool EXACT>
static __device__ void store_gated_fours(const qn__cuda_linears_args &a, const wide_tile &tile,
                                         const float (&c)[N / 2])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4,
              n = (int)a.n[0], left = n - tile.row - four_at(t);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = tile.x_row + warp * 16 + g + 8 * half;
        uint16_t *y = (uint16_t *)a.at[QN__CUDA_ROUNDED] + (int64_t)row * n + tile.row + four_at(t);
#pragma unroll
        for (int j = 0; j < N / 16; j += 2) {
            uint32_t pair[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *gate = &c[4 * (j + i) + 2 * half],
                            *up = &c[4 * (j + i + N / 16) + 2 * half];
                pair[i] = pair_of(gated<EXACT>(a, gate[0], up[0]), gated<EXACT>(a, gate[1], up[1]));
            }
            const uint2 v = four_of(pair[0], pair[1], t);
            if (row < a.rows && 8 * j < left)
                *(uint2 *)(y + 8 * j) = v;
        }
    }
}

template <int N, bool EXACT>
static __device__ void store_gated(const qn__cuda_linears_args &a, const wide_tile &tile,
                                   const float (&c)[N / 2])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const int64_t row = tile.x_row + warp * 16 + g + i / 2 % 2 * 8,
                      column = tile.row + i / 4 * 8 + 2 * t + i % 2, at = row * a.n[0] + column;
        if (row < a.rows && column < a.n[0])
            put_result(a, at, gated<EXACT>(a, c[i], c[i + N / 4]));
    }
}

template <int N, bool EXACT>
static __device__ void store_tile(const qn__cuda_linears_args &a, const wide_tile &tile,
                                  const float (&c)[N / 2])
{
    enum { AT_ONCE = EXACT ? 4 : 8 }; /* as registers allow */
    const int64_t n = a.n[tile.weight];
    if (a.gated && !a.at[2] && !a.turned && n % 4 == 0)
        store_gated_fours<N, EXACT>(a, tile, c);
    else if (a.gated)
        store_gated<N, EXACT>(a, tile, c);
    else if (n % 4)
        store_ones<N>(a, tile, c);
    else if (tile.row + N <= n)
        store_fours<N, true, AT_ONCE>(a, tile, c);
    else
        store_fours<N, false, AT_ONCE>(a, tile, c);
}

/* ---- products -------------------------------------------------------------------------------- */

/* A stage's products, added to c, or c itself where `more` is not set. The stage before is given
 * back when its products are done: `last`, or -1. */
template <int N, bool PAIR>
static __device__ void multiply_stage(const wide<N> &s, float (&c)[N / 2], bool more, int last,
                                      int &stage, uint32_t &phase)
{
    typedef wide<N> W;
    const int group = threadIdx.x / GROUP - 1;
    const char *x = s.stages + stage * W::STAGE;
    const uint64_t xd = tile_descriptor(x + group * 64 * DEEP * 2),
                   wd = tile_descriptor(x + W::X_BYTES);
    barrier_wait(&s.full[stage], phase);
    products_begin();
#pragma unroll
    for (int i = 0; i < DEEP / 16; i++)
        wide_product(c, xd + 2 * i, wd + 2 * i, more || i);
    products_end();
    if (last >= 0) {
        products_wait<1>();
        give_back_to<PAIR>(&s.empty[last]);
    }
    if (++stage == W::STAGES) {
        stage = 0;
        phase ^= 1;
    }
}

/* All products that are under way are done, the last ones those of stage `last`. */
template <int N, bool PAIR>
static __device__ void settle(const wide<N> &s, float (&c)[N / 2], int last)
{
    products_wait<0>();
    give_back_to<PAIR>(&s.empty[last]);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        settled(c[i]);
}

/* A tile's sums by the four warps that have 64 of its rows. */
template <int N>
static __device__ void multiply_spans(const qn__cuda_wide_args &a, const wide<N> &s,
                                      const wide_tile &tile, int &stage, uint32_t &phase)
{
    float c[N / 2], sum[N / 2];
    for (int k = 0; k < a.linears.k; k += SPAN) {
        int last = -1;
#pragma unroll
        for (int d = 0; d < SPAN / DEEP; d++) {
            const int now = stage;
            multiply_stage<N, false>(s, c, d > 0, last, stage, phase);
            last = now;
        }
        settle<N, false>(s, c, last);
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            sum[i] = k ? sum[i] + c[i] : c[i];
    }
    store_tile<N, true>(a.linears, tile, sum);
}

template <int N, bool PAIR>
static __device__ void multiply_deep(const qn__cuda_wide_args &a, const wide<N> &s,
                                     const wide_tile &tile, int &stage, uint32_t &phase)
{
    float c[N / 2];
    int last = -1;
    for (int k = 0; k < a.linears.k; k += DEEP) {
        const int now = stage;
        multiply_stage<N, PAIR>(s, c, k > 0, last, stage, phase);
        last = now;
    }
    settle<N, PAIR>(s, c, last);
    store_tile<N, false>(a.linears, tile, c);
}

template <int N, bool PAIR, bool SPANS> static __device__ void multiply(const qn__cuda_wide_args &a)
{
    typedef wide<N> W;
    enum { BLOCKS = PAIR ? 2 : 1 };
    extern __shared__ __align__(1024) char room[];
    __shared__ uint64_t full[W::STAGES], empty[W::STAGES];
    const W s = {room + (1024 - shared_address(room) % 1024) % 1024, full, empty,
                 PAIR ? (int)rank_in_cluster() : 0};
    const int x_tiles = (int)((a.linears.rows + ROWS - 1) / ROWS) / BLOCKS,
              first = blockIdx.x / BLOCKS, step = gridDim.x / BLOCKS;
    int tiles = 0;
    for (int i = 0; i < QN__CUDA_LINEARS; i++)
        tiles += (int)((a.linears.n[i] + N - 1) / N) * x_tiles;
    if (a.linears.gated)
        tiles = (int)((a.linears.n[0] + N / 2 - 1) / (N / 2)) * x_tiles;
    if (threadIdx.x == 0) {
        for (int i = 0; i < W::STAGES; i++) {
            barrier_begin(&full[i], 1);
            barrier_begin(&empty[i], WARPS * BLOCKS);
        }
        barriers_begun();
    }
    __syncthreads();
    if (PAIR)
        cluster_barrier(); /* the other block's barriers have begun */
    wait_for_others();
    int stage = 0;
    uint32_t phase = 0;
    if (threadIdx.x < GROUP) {
        registers_fewer<40>();
        if (threadIdx.x == 0)
            for (int i = first; i < tiles; i += step)
                ask_stages<N, PAIR, SPANS>(a, s, tile_at<N, PAIR>(a.linears, s.rank, i), stage,
                                           phase);
        __syncwarp();
    } else {
        registers_more<232>();
        for (int i = first; i < tiles; i += step) {
            const wide_tile tile = tile_at<N, PAIR>(a.linears, s.rank, i);
            if (SPANS)
                multiply_spans<N>(a, s, tile, stage, phase);
            else
                multiply_deep<N, PAIR>(a, s, tile, stage, phase);
        }
    }
    if (PAIR)
        cluster_barrier(); /* what the other block still sends comes to a block that is there */
}

#define WIDE_KERNEL(name, N, PAIR, SPANS)                                                          \
    extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)                                     \
        name(const __grid_constant__ qn__cuda_wide_args a)                                         \
    {                                                                                              \
        multiply<N, PAIR, SPANS>(a);                                                               \
    }
#define PAIR_KERNEL(name, N)                                                                       \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(3 * GROUP, 1)           \
        name(const __grid_constant__ qn__cuda_wide_args a)                                         \
    {                                                                                              \
        multiply<N, true, false>(a);                                                               \
    }
WIDE_KERNEL(wide_192, 192, false, true)
WIDE_KERNEL(wide_128, 128, false, true)
WIDE_KERNEL(wide_96, 96, false, true)
WIDE_KERNEL(deep_256, 256, false, false)
WIDE_KERNEL(deep_192, 192, false, false)
WIDE_KERNEL(deep_128, 128, false, false)
PAIR_KERNEL(deep_256_pair, 256)
PAIR_KERNEL(deep_192_pair, 192)
PAIR_KERNEL(deep_128_pair, 128)
