/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in units with many rows of x, by products of bytes, for sm_90a. The bits
 * are those of units.cu: steps follow each other in f32 within a span of 256 columns, spans are
 * added in order.
 *
 * A launch makes all of x bytes, span by span of 128 rows as a block reads them. A block's tile is
 * 128 rows of the weights by 128 of x; the first warp asks the copy engine for a span of both at a
 * time, and the eight warps behind multiply, each 32 rows by 64: what a warp takes out of a unit
 * serves 64 rows.
 */
#include "cuda/bytes.cuh"
#include "cuda/mma.cuh"
#include "cuda/tensor.cuh"
#include "cuda/tiles.cuh"
#include "cuda/units.cuh"

enum {
    ROWS = QN__CUDA_MANY_ROWS, /* of x in a tile */
    TILES = 8,                 /* of 16 rows of the weights in one */
    WARPS = 8,                 /* that multiply: two tiles and half the rows of x each */
    OWN = ROWS / 2,
    MOST_STAGES = 4,
    GROUP = 128 /* threads that have the same number of registers */
};

/* A span of 128 rows of x: bytes, `APART` from row to row so that rows that are read together lie
 * in different banks, then [step][row] of what is known of steps. */
template <class U> struct x_span {
    enum { APART = SPAN + U::STEP, STEPS = SPAN / U::STEP };
    char bytes[ROWS * APART];
    byte_step step[STEPS][ROWS];
};

template <class U> struct many_stage {
    enum { UNITS = SPAN / U::COLUMNS, SPAN_BYTES = UNITS * U::BYTES };
    char units[TILES * SPAN_BYTES];
    x_span<U> x;
};

/* What sums of bytes begin with, which are less than 2^22: they are then the last bits of a float
 * of 1.5 * 2^23, and that taken from it leaves them. A conversion takes twice as long. */
enum { ZERO_BITS = 0x4b400000 };
static __device__ float float_of_sum(int sum)
{
    return __int_as_float(sum) - 12582912.0f;
}

/* ---- x --------------------------------------------------------------------------------------- */

/* A thread has four columns; behind the last are zeros. */
template <class U> static __device__ void make_bytes(const qn__cuda_round_args &a)
{
    enum { OF_STEP = U::STEP / 4, OF_SPAN = SPAN / 4 };
    const int64_t quads = a.padded / 4;
    wait_for_others();
    FOR_EACH(i, a.rows * quads)
    {
        const int64_t row = i / quads;
        const int quad = (int)(i % quads), q = quad % OF_SPAN;
        const float *from = (const float *)a.at[0] + row * a.columns + 4 * quad;
        const float4 v = 4 * quad >= a.columns ? make_float4(0, 0, 0, 0)
                         : (uintptr_t)from % 16 ? make_float4(from[0], from[1], from[2], from[3])
                                                : *(const float4 *)from;
        x_span<U> *to = (x_span<U> *)a.at[1] + row / ROWS * (quads / OF_SPAN) + quad / OF_SPAN;
        byte_step step;
        const uint32_t word = bytes_of_quad<U>(v, &step);
        ((uint32_t *)(to->bytes + row % ROWS * x_span<U>::APART))[word_of_quad<U>(q)] = word;
        if (!U::BIASED)
            step.added += ZERO_BITS;
        if (q % OF_STEP == 0)
            to->step[q / OF_STEP][row % ROWS] = step;
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* d[16x8] = c + a[16x32] b[32x8] of bytes, as mma_bytes has them. */
static __device__ void mma_bytes_onto(int d[4], const int c[4], uint32_t a0, uint32_t a1,
                                      uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
}

/* A unit's products, of two tiles: f[m][j] has rows g and g + 8 of tile m by rows 8 j + 2 t and the
 * next of the warp's of x. */
template <class U>
static __device__ void multiply_units(const uint8_t *const (&u)[2], const char *bytes,
                                      const byte_step *steps, float (&f)[2][OWN / 8][4])
{
    enum { WORDS = U::STEP / 16 };
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < U::COLUMNS / U::STEP; s++) {
        uint32_t code[2][WORDS][2];
        float scale[2][2], bias[2][2];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int k = 0; k < WORDS; k++)
                    code[m][k][i] = U::code(u[m], s * (U::STEP / 4) + 4 * k, t, g + 8 * i);
                scale[m][i] = U::scale(u[m], s, g + 8 * i);
                bias[m][i] = U::bias(u[m], s, g + 8 * i);
            }
        const char *x = bytes + g * x_span<U>::APART + s * U::STEP + 4 * WORDS * t;
#pragma unroll
        for (int j = 0; j < OWN / 8; j++) {
            __align__(16) uint32_t w[WORDS];
            words_of_x<U>(x + 8 * j * x_span<U>::APART, w);
            const int4 both = *(const int4 *)(steps + s * ROWS + 8 * j + 2 * t);
            const float worth[2] = {__int_as_float(both.x), __int_as_float(both.z)};
            const int added[2] = {both.y, both.w};
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const int begin[4] = {U::BIASED ? ZERO_BITS : added[0],
                                      U::BIASED ? ZERO_BITS : added[1],
                                      U::BIASED ? ZERO_BITS : added[0],
                                      U::BIASED ? ZERO_BITS : added[1]};
                int c[4] = {begin[0], begin[1], begin[2], begin[3]};
                if (WORDS == 1)
                    mma_bytes(c, code[m][0][0], code[m][0][1], w[0]);
#pragma unroll
                for (int i = 0; i + 1 < WORDS; i += 2)
                    mma_bytes_onto(c, i ? c : begin, code[m][i][0], code[m][i][1],
                                   code[m][i + 1][0], code[m][i + 1][1], w[i], w[i + 1]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    f[m][j][i] =
                        fmaf(float_of_sum(c[i]), scale[m][i / 2] * worth[i % 2], f[m][j][i]);
                    if (U::BIASED)
                        f[m][j][i] =
                            fmaf(bias[m][i / 2], __int_as_float(added[i % 2]), f[m][j][i]);
                }
            }
        }
    }
}

/* A tile of a block: its first tile of 16 rows of the weights, and its first row of x. */
struct many_tile {
    int first, row;
};

static __device__ many_tile tile_at(int i, int x_tiles)
{
    return {i / x_tiles * TILES, i % x_tiles * ROWS};
}

template <class U> struct many {
    many_stage<U> *stage;
    uint64_t *full, *empty;
    int stages, spans, group_bytes;

    /* Units of a span that there are: K may end within it. */
    __device__ int units_in(int span) const
    {
        enum { UNITS = many_stage<U>::UNITS };
        const int left = group_bytes / U::BYTES - span * UNITS;
        return left < UNITS ? left : UNITS;
    }
};

/* Asks for a tile's spans as stages become free: of a warp each lane has a tile of the weights, of
 * those behind the last the last one, and one has x. */
template <class U>
static __device__ void ask_spans(const qn__cuda_linears_args &a, const many<U> &s,
                                 const many_tile &tile, int tiles, int &at, uint32_t &phase)
{
    enum { SPAN_BYTES = many_stage<U>::SPAN_BYTES };
    const int lane = threadIdx.x;
    const tile_place p = place_of(a, min(tile.first + lane, tiles - 1), TILE);
    const char *units = (const char *)p.w + p.row / TILE * s.group_bytes;
    const x_span<U> *x = (const x_span<U> *)a.at[0] + (int64_t)tile.row / ROWS * s.spans;
    for (int span = 0; span < s.spans; span++) {
        many_stage<U> *to = &s.stage[at];
        const int bytes = s.units_in(span) * U::BYTES;
        barrier_wait(&s.empty[at], phase ^ 1);
        if (lane == 0)
            barrier_expect(&s.full[at], TILES * bytes + (int)sizeof(x_span<U>));
        __syncwarp();
        if (lane < TILES)
            copy_bulk(to->units + lane * SPAN_BYTES, units + span * SPAN_BYTES, bytes, &s.full[at]);
        else if (lane == TILES)
            copy_bulk(&to->x, x + span, (int)sizeof(x_span<U>), &s.full[at]);
        if (++at == s.stages) {
            at = 0;
            phase ^= 1;
        }
    }
}

/* Puts a warp's sums where they belong; what is added to them is loaded before any is stored. */
static __device__ void store_sums(const qn__cuda_linears_args &a, int tile, int tiles, int row,
                                  float (&sum)[2][OWN / 8][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        if (tile + m >= tiles)
            return;
        const tile_place p = place_of(a, tile + m, TILE);
        auto each = [&](auto with) {
#pragma unroll
            for (int j = 0; j < OWN / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int64_t r = row + 8 * j + 2 * t + i % 2, n = p.row + g + i / 2 * 8;
                    if (r < a.rows && n < p.n)
                        with(r * p.n + n, sum[0][j][i], sum[m][j][i]);
                }
        };
        if (added)
            each([&](int64_t at, float, float &v) { v += added[at]; });
        if (!a.gated)
            each([&](int64_t at, float, float &v) { p.y[at] = v; });
        else if (m)
            each([&](int64_t at, float gate, float &v) { put_gated(a, at, gate, v); });
    }
}

template <class U>
static __device__ void multiply_tile(const qn__cuda_linears_args &a, const many<U> &s,
                                     const many_tile &tile, int tiles, int &at, uint32_t &phase)
{
    enum { SPAN_BYTES = many_stage<U>::SPAN_BYTES, UNITS = many_stage<U>::UNITS };
    const int warp = (threadIdx.x - GROUP) / 32, own = warp % (TILES / 2) * 2,
              row = warp / (TILES / 2) * OWN;
    float sum[2][OWN / 8][4];
    for (int span = 0; span < s.spans; span++) {
        const many_stage<U> *from = &s.stage[at];
        const uint8_t *units = (const uint8_t *)from->units + own * SPAN_BYTES;
        const char *bytes = from->x.bytes + row * x_span<U>::APART;
        const byte_step *steps = from->x.step[0] + row;
        const int n = s.units_in(span);
        float f[2][OWN / 8][4] = {};
        barrier_wait(&s.full[at], phase);
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const uint8_t *const u[2] = {units + i * U::BYTES, units + SPAN_BYTES + i * U::BYTES};
            multiply_units<U>(u, bytes + i * U::COLUMNS, steps + i * (U::COLUMNS / U::STEP) * ROWS,
                              f);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&s.empty[at]);
        if (++at == s.stages) {
            at = 0;
            phase ^= 1;
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            float *to = &sum[0][0][0] + i, *more = &f[0][0][0] + i;
            *to = span ? *to + *more : *more;
        }
    }
    store_sums(a, tile.first + own, tiles, tile.row + row, sum);
}

template <class U> static __device__ void many_products(const qn__cuda_linears_args &a)
{
    extern __shared__ __align__(128) char room[];
    __shared__ uint64_t full[MOST_STAGES], empty[MOST_STAGES];
    const int most = QN__CUDA_MANY_SHARED / (int)sizeof(many_stage<U>);
    const many<U> s = {(many_stage<U> *)room,
                       full,
                       empty,
                       most < MOST_STAGES ? most : MOST_STAGES,
                       (int)((a.k + SPAN - 1) / SPAN),
                       (int)((a.k + U::COLUMNS - 1) / U::COLUMNS) * U::BYTES};
    const int tiles = (int)tiles_of(a, TILE), x_tiles = (int)((a.rows + ROWS - 1) / ROWS),
              all = (tiles + TILES - 1) / TILES * x_tiles;
    if (threadIdx.x == 0) {
        for (int i = 0; i < s.stages; i++) {
            barrier_begin(&full[i], 1);
            barrier_begin(&empty[i], WARPS);
        }
        barriers_begun();
    }
    __syncthreads();
    wait_for_others();
    int at = 0;
    uint32_t phase = 0;
    if (threadIdx.x < GROUP) {
        registers_fewer<40>();
        if (threadIdx.x < 32)
            for (int i = blockIdx.x; i < all; i += gridDim.x)
                ask_spans(a, s, tile_at(i, x_tiles), tiles, at, phase);
    } else {
        registers_more<232>();
        for (int i = blockIdx.x; i < all; i += gridDim.x)
            multiply_tile(a, s, tile_at(i, x_tiles), tiles, at, phase);
    }
}

#define MANY_KERNELS(name, ...)                                                                    \
    extern "C" __global__ void make_bytes_##name(const qn__cuda_round_args a)                      \
    {                                                                                              \
        make_bytes<__VA_ARGS__>(a);                                                                \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)                                     \
        bytes_many_##name(const __grid_constant__ qn__cuda_linears_args a)                         \
    {                                                                                              \
        many_products<__VA_ARGS__>(a);                                                             \
    }
#define CUDA_UNITS(id, name, ...) MANY_KERNELS(name, __VA_ARGS__)
#include "cuda/units.def"
#undef CUDA_UNITS
