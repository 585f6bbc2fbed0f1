/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16 with many rows of x, for sm_90: wgmma, fed by the tensor copy
 * engine.
 *
 * The bits are those of linear.cu: spans of 256 columns, products of 16 columns in their order
 * within, spans added in order. (The sums of wgmma and of mma.sync are the same: compared on an
 * H100.)
 *
 * A block's tile is 128 rows of x and N of a weight. One thread of its first warps asks for stages
 * of 64 columns of both, four warps after these multiply 64 rows of x, and four more the others;
 * all go from tile to tile. (Two blocks of a cluster that share a weight's rows by multicast are
 * slower: 290 TFLOP/s for 596.)
 */
#include "cuda/common.cuh"
#include "cuda/tensor.cuh"
#include "cuda/tiles.cuh"

enum {
    ROWS = QN__CUDA_WIDE_ROWS,
    DEEP = 64,
    GROUP = 128, /* threads that multiply together */
    WARPS = 8    /* that multiply */
};

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
};

/* A tile: which weight, its first row there, and of x. Gated, it has N / 2 rows of the gate, then
 * those of the other. */
struct wide_tile {
    int weight, row, x_row;
};

template <int N>
static __device__ wide_tile tile_at(const qn__cuda_linears_args &a, int64_t x_tiles, int64_t i)
{
    int64_t tile = i / x_tiles;
    int weight = 0;
    if (a.gated)
        return {0, (int)(tile * (N / 2)), (int)(i % x_tiles * ROWS)};
    for (; weight < QN__CUDA_LINEARS - 1 && tile >= (a.n[weight] + N - 1) / N; weight++)
        tile -= (a.n[weight] + N - 1) / N;
    return {weight, (int)(tile * N), (int)(i % x_tiles * ROWS)};
}

/* Asks for a tile's stages, in whole spans, as they become free; behind the last column are zeros.
 */
template <int N>
static __device__ void ask_stages(const qn__cuda_wide_args &a, const wide<N> &s,
                                  const wide_tile &tile, int &stage, uint32_t &phase)
{
    typedef wide<N> W;
    const int spans = ((int)a.linears.k + SPAN - 1) / SPAN;
    for (int k = 0; k < spans * SPAN; k += DEEP) {
        char *to = s.stages + stage * W::STAGE;
        barrier_wait(&s.empty[stage], phase ^ 1);
        barrier_expect(&s.full[stage], W::STAGE);
        copy_box(to, &a.map[QN__CUDA_LINEARS], &s.full[stage], k, tile.x_row);
        to += W::X_BYTES;
        if (a.linears.gated) {
            const int gate = a.linears.gated == 2;
            copy_box(to, &a.map[gate], &s.full[stage], k, tile.row);
            copy_box(to + W::W_BYTES / 2, &a.map[!gate], &s.full[stage], k, tile.row);
        } else {
            copy_box(to, &a.map[tile.weight], &s.full[stage], k, tile.row);
        }
        if (++stage == W::STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

/* A warp is done with a stage: the thread that fills it learns that. */
static __device__ void give_back(uint64_t *empty)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

template <int N>
static __device__ void store_tile(const qn__cuda_linears_args &a, const wide_tile &tile,
                                  const float (&sum)[N / 2])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int64_t n = a.n[tile.weight];
    float *y = (float *)a.at[2 + 2 * tile.weight];
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t row = tile.x_row + warp * 16 + g + 8 * half;
        if (row >= a.rows)
            continue;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int64_t column = tile.row + 8 * j + 2 * t, at = row * n + column;
            const float *v = &sum[4 * j + 2 * half];
            if (n % 2 == 0 && column < n) {
                float2 more = added ? *(const float2 *)(added + at) : make_float2(0, 0);
                *(float2 *)(y + at) =
                    added ? make_float2(v[0] + more.x, v[1] + more.y) : make_float2(v[0], v[1]);
            } else {
                for (int i = 0; i < 2; i++)
                    if (column + i < n)
                        y[at + i] = added ? v[i] + added[at + i] : v[i];
            }
        }
    }
}

template <int N>
static __device__ void store_gated(const qn__cuda_linears_args &a, const wide_tile &tile,
                                   const float (&sum)[N / 2])
{
    const int warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = tile.x_row + warp * 16 + g + 8 * half;
        if (row >= a.rows)
            continue;
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const int64_t column = tile.row + 8 * j + 2 * t, at = row * a.n[0] + column;
            const float *gate = &sum[4 * j + 2 * half], *up = &sum[4 * (j + N / 16) + 2 * half];
            if (column + 1 < a.n[0] && at % 2 == 0) {
                put_gated_pair(a, at, gate, up);
            } else {
                for (int i = 0; i < 2; i++)
                    if (column + i < a.n[0])
                        put_gated(a, at + i, gate[i], up[i]);
            }
        }
    }
}

/* A tile's sums by the four warps that have 64 of its rows. */
template <int N>
static __device__ void multiply_tile(const qn__cuda_wide_args &a, const wide<N> &s,
                                     const wide_tile &tile, int &stage, uint32_t &phase)
{
    typedef wide<N> W;
    float c[N / 2], sum[N / 2];
    const int group = threadIdx.x / GROUP - 1;
    for (int k = 0; k < a.linears.k; k += SPAN) {
        int last = 0;
#pragma unroll
        for (int d = 0; d < SPAN / DEEP; d++) {
            const char *x = s.stages + stage * W::STAGE;
            const uint64_t xd = tile_descriptor(x + group * 64 * DEEP * 2),
                           wd = tile_descriptor(x + W::X_BYTES);
            barrier_wait(&s.full[stage], phase);
            products_begin();
#pragma unroll
            for (int i = 0; i < DEEP / 16; i++)
                wide_product(c, xd + 2 * i, wd + 2 * i, d || i);
            products_end();
            if (d) {
                products_wait<1>();
                give_back(&s.empty[last]);
            }
            last = stage;
            if (++stage == W::STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        products_wait<0>();
        give_back(&s.empty[last]);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            settled(c[i]);
            sum[i] = k ? sum[i] + c[i] : c[i];
        }
    }
    if (a.linears.gated)
        store_gated<N>(a.linears, tile, sum);
    else
        store_tile<N>(a.linears, tile, sum);
}

template <int N> static __device__ void multiply(const qn__cuda_wide_args &a)
{
    typedef wide<N> W;
    extern __shared__ __align__(1024) char room[];
    __shared__ uint64_t full[W::STAGES], empty[W::STAGES];
    const W s = {room + (1024 - shared_address(room) % 1024) % 1024, full, empty};
    const int64_t x_tiles = (a.linears.rows + ROWS - 1) / ROWS;
    int64_t tiles = 0;
    for (int i = 0; i < QN__CUDA_LINEARS; i++)
        tiles += (a.linears.n[i] + N - 1) / N * x_tiles;
    if (a.linears.gated)
        tiles = (a.linears.n[0] + N / 2 - 1) / (N / 2) * x_tiles;
    if (threadIdx.x == 0) {
        for (int i = 0; i < W::STAGES; i++) {
            barrier_begin(&full[i], 1);
            barrier_begin(&empty[i], WARPS);
        }
        barriers_begun();
    }
    __syncthreads();
    wait_for_others();
    int stage = 0;
    uint32_t phase = 0;
    if (threadIdx.x < GROUP) {
        registers_fewer<40>();
        if (threadIdx.x == 0)
            for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x)
                ask_stages<N>(a, s, tile_at<N>(a.linears, x_tiles, i), stage, phase);
    } else {
        registers_more<232>();
        for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x)
            multiply_tile<N>(a, s, tile_at<N>(a.linears, x_tiles, i), stage, phase);
    }
}

extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    wide_192(const __grid_constant__ qn__cuda_wide_args a)
{
    multiply<192>(a);
}
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    wide_128(const __grid_constant__ qn__cuda_wide_args a)
{
    multiply<128>(a);
}
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    wide_96(const __grid_constant__ qn__cuda_wide_args a)
{
    multiply<96>(a);
}
