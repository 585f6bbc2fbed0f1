/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on ternary weights (i2_s) by several rows of x, for sm_90: what BitNet's prompts
 * have, and its decoding of several sequences.
 *
 * Codes are products' left side, which comes from registers: a warp takes them out of their units
 * there, so that weights go through memory and to the processors with two bits each. The right side
 * is rows of x as bytes, which a launch ahead has made, in boxes of the tensor copy engine. Sums of
 * all columns are whole numbers, so their order does not matter; the row's scale comes last, then
 * the weight's, and the bits are those of units.cu.
 *
 * A block's tile is 128 or 256 rows of a weight by 96 or 128 of x. One thread of its first warps
 * asks for stages of 128 columns of both; four warps after these have every other 64 rows of the
 * weight, and four more the others; all go from tile to tile. Of fewer rows of x a tile is 64 or
 * 128 rows of the weight, of which four warps have every other stage, and the other four the
 * others.
 */
#include "cuda/made.cuh"
#include "cuda/tensor.cuh"
#include "cuda/tiles.cuh"

enum {
    GROUP = 128, /* threads that multiply together */
    WARPS = 8,   /* that multiply */
    UNIT = 512,  /* bytes: 16 rows by COLUMNS */
    COLUMNS = QN__CUDA_TERNARY_DEEP
};

/* c[64 x N] += a[64 x 32] b[32 x N], of codes by bytes. c is 0 before unless `more`. */
static __device__ void product(int (&c)[64], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, more;\n}"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]),
                   "+r"(c[6]), "+r"(c[7]), "+r"(c[8]), "+r"(c[9]), "+r"(c[10]), "+r"(c[11]),
                   "+r"(c[12]), "+r"(c[13]), "+r"(c[14]), "+r"(c[15]), "+r"(c[16]), "+r"(c[17]),
                   "+r"(c[18]), "+r"(c[19]), "+r"(c[20]), "+r"(c[21]), "+r"(c[22]), "+r"(c[23]),
                   "+r"(c[24]), "+r"(c[25]), "+r"(c[26]), "+r"(c[27]), "+r"(c[28]), "+r"(c[29]),
                   "+r"(c[30]), "+r"(c[31]), "+r"(c[32]), "+r"(c[33]), "+r"(c[34]), "+r"(c[35]),
                   "+r"(c[36]), "+r"(c[37]), "+r"(c[38]), "+r"(c[39]), "+r"(c[40]), "+r"(c[41]),
                   "+r"(c[42]), "+r"(c[43]), "+r"(c[44]), "+r"(c[45]), "+r"(c[46]), "+r"(c[47]),
                   "+r"(c[48]), "+r"(c[49]), "+r"(c[50]), "+r"(c[51]), "+r"(c[52]), "+r"(c[53]),
                   "+r"(c[54]), "+r"(c[55]), "+r"(c[56]), "+r"(c[57]), "+r"(c[58]), "+r"(c[59]),
                   "+r"(c[60]), "+r"(c[61]), "+r"(c[62]), "+r"(c[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)more));
}

static __device__ void product(int (&c)[48], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %53, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k32.s32.u8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
                 "{%48, %49, %50, %51}, %52, more;\n}"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]),
                   "+r"(c[6]), "+r"(c[7]), "+r"(c[8]), "+r"(c[9]), "+r"(c[10]), "+r"(c[11]),
                   "+r"(c[12]), "+r"(c[13]), "+r"(c[14]), "+r"(c[15]), "+r"(c[16]), "+r"(c[17]),
                   "+r"(c[18]), "+r"(c[19]), "+r"(c[20]), "+r"(c[21]), "+r"(c[22]), "+r"(c[23]),
                   "+r"(c[24]), "+r"(c[25]), "+r"(c[26]), "+r"(c[27]), "+r"(c[28]), "+r"(c[29]),
                   "+r"(c[30]), "+r"(c[31]), "+r"(c[32]), "+r"(c[33]), "+r"(c[34]), "+r"(c[35]),
                   "+r"(c[36]), "+r"(c[37]), "+r"(c[38]), "+r"(c[39]), "+r"(c[40]), "+r"(c[41]),
                   "+r"(c[42]), "+r"(c[43]), "+r"(c[44]), "+r"(c[45]), "+r"(c[46]), "+r"(c[47])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)more));
}

static __device__ void product(int (&c)[32], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, more;\n}"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]),
                   "+r"(c[6]), "+r"(c[7]), "+r"(c[8]), "+r"(c[9]), "+r"(c[10]), "+r"(c[11]),
                   "+r"(c[12]), "+r"(c[13]), "+r"(c[14]), "+r"(c[15]), "+r"(c[16]), "+r"(c[17]),
                   "+r"(c[18]), "+r"(c[19]), "+r"(c[20]), "+r"(c[21]), "+r"(c[22]), "+r"(c[23]),
                   "+r"(c[24]), "+r"(c[25]), "+r"(c[26]), "+r"(c[27]), "+r"(c[28]), "+r"(c[29]),
                   "+r"(c[30]), "+r"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)more));
}

static __device__ void product(int (&c)[16], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, more;\n}"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]),
                   "+r"(c[6]), "+r"(c[7]), "+r"(c[8]), "+r"(c[9]), "+r"(c[10]), "+r"(c[11]),
                   "+r"(c[12]), "+r"(c[13]), "+r"(c[14]), "+r"(c[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)more));
}

/* Of tiles of N rows of x: whether both groups have all rows, and half of the stages each; rows of
 * half of a tile, and their units. */
template <int N> struct half_tile {
    enum { SPLIT = N <= 64, ROWS = SPLIT ? 64 : 128, UNITS = ROWS / TILE };
};

template <int M, int N> struct stages_of {
    enum {
        BYTES = QN__CUDA_TERNARY_STAGE(M * half_tile<N>::ROWS, N),
        NUMBER = QN__CUDA_TERNARY_STAGES(M * half_tile<N>::ROWS, N)
    };
};

/* A tile: which weight, its first row there, and of x. Gated, it has half of its rows of the gate,
 * then those of the other. */
struct ternary_tile {
    int weight, row, x_row;
};

template <int M, int N>
static __device__ ternary_tile tile_at(const qn__cuda_linears_args &a, int i)
{
    enum { HALF = half_tile<N>::ROWS, ROWS = HALF * M };
    const int x_tiles = (int)((a.rows + N - 1) / N), x_row = i % x_tiles * N;
    int tile = i / x_tiles, weight = 0;
    if (a.gated)
        return {0, tile * HALF, x_row};
    for (; weight < QN__CUDA_LINEARS - 1 && tile >= (a.n[weight] + ROWS - 1) / ROWS; weight++)
        tile -= (int)((a.n[weight] + ROWS - 1) / ROWS);
    return {weight, tile * ROWS, x_row};
}

template <int M, int N> static __device__ int all_tiles(const qn__cuda_linears_args &a)
{
    enum { HALF = half_tile<N>::ROWS };
    const int64_t x_tiles = (a.rows + N - 1) / N;
    return (int)(x_tiles * (a.gated ? (a.n[0] + HALF - 1) / HALF : tiles_of(a, HALF * M)));
}

static __device__ int units_of(const qn__cuda_linears_args &a)
{
    return ((int)a.k + COLUMNS - 1) / COLUMNS;
}

/* The weight of half m of a tile, and its first row there. */
static __device__ int weight_of(const qn__cuda_linears_args &a, const ternary_tile &tile, int m)
{
    return a.gated ? m ^ (a.gated == 2) : tile.weight;
}
template <int N>
static __device__ int row_of(const qn__cuda_linears_args &a, const ternary_tile &tile, int m)
{
    return a.gated ? tile.row : tile.row + half_tile<N>::ROWS * m;
}

/* A stage: of x, then of the weight's units. This asks for the latter, and says what is to come. */
template <int M, int N>
static __device__ void ask_units(const qn__cuda_ternary_args &a, const ternary_tile &tile, int i,
                                 char *stage, uint64_t *full)
{
    barrier_expect(full, stages_of<M, N>::BYTES);
#pragma unroll
    for (int m = 0; m < M; m++)
        copy_box(stage + N * COLUMNS + m * half_tile<N>::UNITS * UNIT,
                 &a.map[weight_of(a.linears, tile, m)], full, i * UNIT / 2,
                 row_of<N>(a.linears, tile, m) / TILE);
}

/* Asks for a tile's stages as they become free, the first ones of which have been asked for their
 * units. */
template <int M, int N>
static __device__ void ask_stages(const qn__cuda_ternary_args &a, const ternary_tile &tile,
                                  int asked, char *stages, uint64_t *full, uint64_t *empty,
                                  ring_place &at)
{
    const int units = units_of(a.linears);
    for (int i = 0; i < units; i++, at.next(stages_of<M, N>::NUMBER)) {
        char *to = stages + at.stage * stages_of<M, N>::BYTES;
        if (i >= asked) {
            barrier_wait(&empty[at.stage], at.phase ^ 1);
            ask_units<M, N>(a, tile, i, to, &full[at.stage]);
        }
        copy_box(to, &a.map[QN__CUDA_LINEARS], &full[at.stage], i * COLUMNS / 2, tile.x_row);
    }
}

/* All tiles of a block. What no step writes is asked for before the launches ahead have ended. */
template <int M, int N>
static __device__ void ask_tiles(const qn__cuda_ternary_args &a, int tiles, char *stages,
                                 uint64_t *full, uint64_t *empty)
{
    const int asked = a.linears.early ? min(units_of(a.linears), (int)stages_of<M, N>::NUMBER) : 0;
    ring_place at = {0, 0};
    for (int i = 0; i < asked; i++)
        ask_units<M, N>(a, tile_at<M, N>(a.linears, blockIdx.x), i,
                        stages + i * stages_of<M, N>::BYTES, &full[i]);
    wait_for_last();
    for (int i = blockIdx.x; i < tiles; i += gridDim.x)
        ask_stages<M, N>(a, tile_at<M, N>(a.linears, i), i == (int)blockIdx.x ? asked : 0, stages,
                         full, empty, at);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Four words of codes that a lane needs of a unit: of rows 2 g and 2 g + 1, which are the product's
 * rows g and g + 8. */
static __device__ uint4 words_of_unit(const char *unit)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint2 low = *(const uint2 *)(unit + 64 * t + 8 * g),
                high = *(const uint2 *)(unit + 64 * (t + 4) + 8 * g);
    return make_uint4(low.x, low.y, high.x, high.y);
}

/* Those of columns 32 p to 32 p + 31. */
static __device__ void codes_of(const uint4 &w, int p, uint32_t (&codes)[4])
{
    codes[0] = w.x >> (6 - 2 * p) & 0x03030303u;
    codes[1] = w.y >> (6 - 2 * p) & 0x03030303u;
    codes[2] = w.z >> (6 - 2 * p) & 0x03030303u;
    codes[3] = w.w >> (6 - 2 * p) & 0x03030303u;
}

/* A warp's unit of half of a tile. */
template <int N> static __device__ int own_unit()
{
    return (threadIdx.x / 32 - 4) % half_tile<N>::UNITS;
}

/* Sums of a tile, or of a group's half of the columns: c[m][4 j + 2 half + i] of row 2 g + half of
 * the warp's unit of half m, by row 8 j + 2 t + i of x. A unit's products are in two turns, of half
 * m or, where there is but one, of half of the columns; while those of one are under way the next
 * one's codes are made. */
template <int M, int N>
static __device__ void multiply_tile(const qn__cuda_linears_args &a, const char *stages,
                                     uint64_t *full, uint64_t *empty, const ring_place &first,
                                     int (&c)[M][N / 2])
{
    enum { PRODUCTS = 2 * M, SPLIT = half_tile<N>::SPLIT, APART = SPLIT ? 2 : 1 };
    const int units = units_of(a), begin = SPLIT ? (int)threadIdx.x / GROUP - 1 : 0;
    uint32_t codes[2][PRODUCTS][4];
    uint4 words;
    int before = -1;
    ring_place at = first;
    if (begin)
        at.next(stages_of<M, N>::NUMBER);
    for (int i = begin; i < units; i += APART) {
        const char *x = stages + at.stage * stages_of<M, N>::BYTES;
        const uint64_t xd = tile_descriptor(x);
        barrier_wait(&full[at.stage], at.phase);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int m = M == 2 ? k : 0, p0 = M == 2 ? 0 : 2 * k;
            if (k == 0 || M == 2)
                words = words_of_unit(x + N * COLUMNS +
                                      (m * half_tile<N>::UNITS + own_unit<N>()) * UNIT);
            products_wait<1>();
#pragma unroll
            for (int p = 0; p < PRODUCTS; p++)
                codes_of(words, p0 + p, codes[k][p]);
            products_begin();
#pragma unroll
            for (int p = 0; p < PRODUCTS; p++)
                product(c[m], codes[k][p], xd + 2 * (p0 + p), i != begin || p0 + p);
            products_end();
        }
        if (before >= 0)
            give_back(&empty[before]);
        before = at.stage;
        for (int k = 0; k < APART; k++)
            at.next(stages_of<M, N>::NUMBER);
    }
    products_wait<0>();
    give_back(&empty[before]);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            settled(c[m][i]);
}

/* The second group's sums onto the first one's. */
template <int M, int N> static __device__ void join_groups(int (&c)[M][N / 2], int *room)
{
    const bool second = threadIdx.x >= 2 * GROUP;
    int *own = room + threadIdx.x % GROUP;
    both_groups_meet(); /* those of the last tile have been read */
#pragma unroll
    for (int i = 0; i < M * (N / 2); i++)
        if (second)
            own[i * GROUP] = c[i / (N / 2)][i % (N / 2)];
    both_groups_meet();
#pragma unroll
    for (int i = 0; i < M * (N / 2); i++)
        if (!second)
            c[i / (N / 2)][i % (N / 2)] += own[i * GROUP];
}

/* ---- results --------------------------------------------------------------------------------- */

/* A lane's results of two neighbouring rows of a weight by a row of x: sums without what codes have
 * too much, times the row's scale, then the weight's. */
static __device__ float2 results_of(int first, int second, const made_head &x, float by)
{
    return make_float2((float)(first - x.sum) * x.scale * by,
                       (float)(second - x.sum) * x.scale * by);
}

static __device__ float factor_of(const qn__cuda_linears_args &a, int weight)
{
    const float *by = (const float *)a.at[QN__CUDA_FACTOR + weight];
    return by ? *by : 1.0f;
}

/* Where a lane's results of half m of a tile are: its first row of the weight, and of x. */
template <int N> struct lane_place {
    int row, x;

    __device__ lane_place(const qn__cuda_linears_args &a, const ternary_tile &tile, int m)
    {
        row = row_of<N>(a, tile, m) + own_unit<N>() * TILE + threadIdx.x % 32 / 4 * 2;
        x = threadIdx.x % 4 * 2;
    }
};

/* WHOLE: rows of y are of whole pairs. What is added is loaded for many results at once, since no
 * load may overtake a store. */
template <int N, bool WHOLE>
static __device__ void store_half(const qn__cuda_linears_args &a, const ternary_tile &tile, int m,
                                  const int (&c)[N / 2], const made_head *heads)
{
    enum { AT_ONCE = 8 };
    const lane_place<N> own(a, tile, m);
    const int n = (int)a.n[tile.weight], left = n - own.row, rows = (int)a.rows - tile.x_row;
    const int64_t first = (int64_t)tile.x_row * n + own.row;
    const float by = factor_of(a, tile.weight);
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
    float *y = (float *)a.at[2 + 2 * tile.weight] + first;
    if (left <= 0)
        return;
#pragma unroll
    for (int j = 0; j < N / 4; j += AT_ONCE) {
        float2 more[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int x = own.x + (j + i) / 2 * 8 + i % 2;
            const float *from = added + first + (int64_t)x * n;
            more[i] = make_float2(0, 0);
            if (added && x < rows)
                more[i] =
                    WHOLE ? *(const float2 *)from : make_float2(from[0], left > 1 ? from[1] : 0.0f);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int x = own.x + (j + i) / 2 * 8 + i % 2, k = (j + i) / 2 * 4 + i % 2;
            float2 v = results_of(c[k], c[k + 2], heads[x], by);
            float *to = y + (int64_t)x * n;
            if (added)
                v = make_float2(v.x + more[i].x, v.y + more[i].y);
            if (x >= rows)
                continue;
            if (WHOLE) {
                *(float2 *)to = v;
            } else {
                to[0] = v.x;
                if (left > 1)
                    to[1] = v.y;
            }
        }
    }
}

/* BitNet's own activation, to f32 in whole pairs, or any. */
template <int N, bool PLAIN>
static __device__ void store_gated(const qn__cuda_linears_args &a, const ternary_tile &tile,
                                   const int (&gate)[N / 2], const int (&up)[N / 2],
                                   const made_head *heads)
{
    const lane_place<N> own(a, tile, 0);
    const int n = (int)a.n[0], left = n - own.row, rows = (int)a.rows - tile.x_row;
    const int64_t first = (int64_t)tile.x_row * n + own.row;
    const float gate_by = factor_of(a, weight_of(a, tile, 0)),
                up_by = factor_of(a, weight_of(a, tile, 1));
    if (left <= 0)
        return;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const int x = own.x + i / 2 * 8 + i % 2, k = i / 2 * 4 + i % 2;
        const float2 u = results_of(gate[k], gate[k + 2], heads[x], gate_by),
                     v = results_of(up[k], up[k + 2], heads[x], up_by);
        const int64_t at = first + (int64_t)x * n;
        if (x >= rows)
            continue;
        if (PLAIN) {
            *(float2 *)((float *)a.at[2] + at) =
                make_float2(squared_relu(u.x) * v.x, squared_relu(u.y) * v.y);
        } else {
            put_gated(a, at, u.x, v.x);
            if (left > 1)
                put_gated(a, at + 1, u.y, v.y);
        }
    }
}

template <int M, int N>
static __device__ void store_tile(const qn__cuda_linears_args &a, const ternary_tile &tile,
                                  const int (&c)[M][N / 2], const made_head *heads)
{
    const bool whole = a.n[tile.weight] % 2 == 0;
    if (M == 2 && a.gated) {
        if (whole && a.at[2] && !a.at[QN__CUDA_ROUNDED] && a.activation == QN__CUDA_RELU_SQUARED)
            store_gated<N, true>(a, tile, c[0], c[M - 1], heads);
        else
            store_gated<N, false>(a, tile, c[0], c[M - 1], heads);
        return;
    }
#pragma unroll
    for (int m = 0; m < M; m++)
        if (whole)
            store_half<N, true>(a, tile, m, c[m], heads);
        else
            store_half<N, false>(a, tile, m, c[m], heads);
}

template <int M, int N> static __device__ void multiply(const qn__cuda_ternary_args &a)
{
    enum { SPLIT = half_tile<N>::SPLIT, STAGES = stages_of<M, N>::NUMBER };
    extern __shared__ __align__(1024) char room[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ int sums[SPLIT ? M * (N / 2) * GROUP : 1];
    __shared__ made_head heads[2][N];
    const qn__cuda_linears_args &l = a.linears;
    char *stages = room + (1024 - shared_address(room) % 1024) % 1024;
    const int tiles = all_tiles<M, N>(l);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_begin(&full[i], 1);
            barrier_begin(&empty[i], SPLIT ? WARPS / 2 : WARPS);
        }
        barriers_begun();
    }
    __syncthreads();
    let_next_begin();
    if (threadIdx.x < GROUP) {
        registers_fewer<40>();
        if (threadIdx.x == 0)
            ask_tiles<M, N>(a, tiles, stages, full, empty);
        __syncwarp();
    } else {
        registers_more<232>();
        ring_place at = {0, 0};
        wait_for_last();
        const int group = threadIdx.x / GROUP - 1, own = threadIdx.x % GROUP;
        for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
            const ternary_tile tile = tile_at<M, N>(l, i);
            int c[M][N / 2];
            made_head head = {0, 0};
            if (own < N && tile.x_row + own < l.rows)
                head = *(const made_head *)((const char *)l.at[0] + (tile.x_row + own) * l.made);
            multiply_tile<M, N>(l, stages, full, empty, at, c);
            for (int k = 0; k < units_of(l); k++)
                at.next(stages_of<M, N>::NUMBER);
            if (SPLIT) {
                join_groups<M, N>(c, sums);
                if (group == 1)
                    continue;
            }
            group_meets(group); /* all have stored the last tile's results */
            if (own < N)
                heads[group][own] = head;
            group_meets(group);
            store_tile<M, N>(l, tile, c, heads[group]);
        }
    }
}

#define TERNARY_KERNEL(W_ROWS, N)                                                                  \
    extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)                                     \
        ternary_wide_##W_ROWS##_by_##N(const __grid_constant__ qn__cuda_ternary_args a)            \
    {                                                                                              \
        multiply<W_ROWS / half_tile<N>::ROWS, N>(a);                                               \
    }
TERNARY_KERNEL(64, 32)
TERNARY_KERNEL(64, 64)
TERNARY_KERNEL(128, 96)
TERNARY_KERNEL(128, 128)
TERNARY_KERNEL(128, 32)
TERNARY_KERNEL(128, 64)
TERNARY_KERNEL(256, 96)
TERNARY_KERNEL(256, 128)
