/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on ternary weights (i2_s) by one row of x, for sm_90: what BitNet's decoding has.
 *
 * Problem: a layer's weights are a few MB, so that a launch is as long as its latencies. Approach:
 * a block asks for all units that it multiplies before the launch ahead has ended. Then it makes x
 * bytes with one scale, after its norm, where that has no other reader. Sums of all columns are
 * whole numbers, so it does not matter who adds them; the scale comes last, and the bits are those
 * of units.cu.
 *
 * What stands between x and the products runs once, by two warps a scheduler, and costs its
 * instructions and its waits: there is a kernel for each number of quads that a thread has of x,
 * and what needs no x is made before it is waited for.
 *
 * Codes of two bits meet the tensor cores where they lie in their bytes, as 1, 4, 16 or 64 times
 * their values, each place with sums of its own, which are shifted in the end.
 */
#include "cuda/bulk.cuh"
#include "cuda/bytes.cuh"
#include "cuda/made.cuh"
#include "cuda/mma.cuh"
#include "cuda/norm.cuh"
#include "cuda/tiles.cuh"

enum { WARPS = THREADS / 32, UNIT = 512, COLUMNS = 128, MOST_TILES = QN__CUDA_TERNARY_TILES };

/* The thread's number, which the compiler does not ask for again. */
static __device__ int thread_number()
{
    return known_now((int)threadIdx.x) & 255;
}

/* A block's tiles, those of gates in pairs. */
struct ternary_work {
    int first, tiles, units; /* ..., units of a tile */

    __device__ explicit ternary_work(const qn__cuda_linears_args &a)
    {
        const uint32_t pair = a.gated ? 2 : 1, all = (uint32_t)tiles_of(a, TILE) / pair,
                       each = all / gridDim.x, more = all % gridDim.x; /* one more each */
        first = (int)((each * blockIdx.x + min(blockIdx.x, more)) * pair);
        tiles = (int)((each + (blockIdx.x < more)) * pair);
        units = (int)a.k / COLUMNS;
    }
};

static __device__ void ask_for_units(const qn__cuda_linears_args &a, const ternary_work &work,
                                     char *units, uint64_t *landed)
{
    const int bytes = work.units * UNIT;
    for (int i = 0; i < work.tiles; i++)
        barrier_begin(&landed[i], 1);
    barriers_begun();
    if (!a.early)
        wait_for_last();
#pragma unroll 1
    for (int i = 0; i < work.tiles; i++) {
        const tile_place p = place_of(a, work.first + i, TILE);
        barrier_expect(&landed[i], bytes);
        copy_bulk_once(units + i * bytes, (const char *)p.w + p.row / TILE * bytes, bytes,
                       &landed[i]);
    }
}

struct block_room {
    warp_sums of_norm;
    alignas(16) uint32_t tops[WARPS];
    alignas(16) int added[WARPS];
};

/* x as bytes where a lane's words of a unit lie side by side, those of a place in turn, with zeros
 * behind; what a byte is worth; and sums of the bytes, one a warp. Ends with all of the block. */
template <int QUADS>
static __device__ float bytes_of_row(const qn__cuda_linears_args &a, const quads_of_row<QUADS> &row,
                                     int me, const float4 (&weight)[QUADS], float4 (&v)[QUADS],
                                     uint32_t *bytes, block_room *room)
{
    const int warp = me / 32, lane = me % 32;
    if (a.at[QN__CUDA_NORM_OF_X])
        row.norm(v, weight, a.eps, room->of_norm, [] {});
    float most = 0;
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        most = larger_magnitude(larger_magnitude(most, v[k].x, v[k].y), v[k].z, v[k].w);
    uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(most));
    if (lane == 0)
        room->tops[warp] = bits;
    __syncthreads();
    bits = magnitude_of(QN__LEAST_OF_ROW);
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        bits = max(bits, room->tops[i]);
    const float top = __uint_as_float(bits), inverse = quick_to_bytes(top);
    uint32_t *to = bytes + me / 32 * 32 + me % 4 * 8 + me % 32 / 8 * 2 + me % 8 / 4;
    int sum = 0;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const uint32_t word = bytes_of(v[k], inverse);
        to[k * THREADS] = word;
        sum = __dp4a((int)word, 0x01010101, sum);
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0)
        room->added[warp] = sum;
    __syncthreads();
    return bits < 0x7f800000u ? quotient(top, 127.0f, 1.0f / 127.0f) : CUDART_NAN_F;
}

/* Which tiles and units are a warp's: warps in teams, a tile each at a time. All of it is made
 * before x is waited for. */
struct ternary_team {
    int size, tile, tiles; /* its first tile, and how far it is to the next */
    int units, units_at; /* of a tile, from its first one on, `size` apart; where the lane's are */
    int x_at, part_at;   /* where x and results are */

    __device__ ternary_team(const ternary_work &work, int me)
    {
        const int shift = work.tiles == 1   ? 3
                          : work.tiles == 2 ? 2
                          : work.tiles <= 4 ? 1
                                            : 0,
                  warp = me / 32, member = warp & ((1 << shift) - 1), own = warp >> shift,
                  g = me % 32 / 4, t = me % 4;
        size = known_now(1 << shift);
        tile = known_now(own);
        tiles = known_now(WARPS >> shift);
        units = known_now(work.units - member);
        units_at = known_now((own * work.units + member) * UNIT + 64 * t + 8 * g);
        x_at = known_now(member * COLUMNS + 32 * t);
        part_at = known_now((own * TILE + 2 * g) * WARPS + member);
    }
};

/* 16 bytes of shared memory, or nothing that is known. */
static __device__ uint4 read_if(bool wanted, uint32_t at)
{
    uint4 v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                 "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at), "r"((uint32_t)wanted)
                 : "memory");
    return v;
}

/* A team's units of a tile, n from the first one on, in turns of TURNS; behind the last one x is
 * zeros. Where t is 0, sums of rows 2 g and 2 g + 1: of the columns of products the first one alone
 * has x, which its lanes read, an eighth of what all would. */
template <int TURNS>
static __device__ int2 sums_of_units(const char *units, uint32_t x, int n, int apart, bool reads)
{
    int c[4][4] = {}, i = 0;
#pragma unroll 1
    do {
#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            const uint2 a = *(const uint2 *)units, b = *(const uint2 *)(units + 256);
            const uint4 y = read_if(reads, x), z = read_if(reads, x + 16);
            const uint32_t of[4][2] = {{y.x, y.y}, {y.z, y.w}, {z.x, z.y}, {z.z, z.w}};
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint32_t place = 0xc0c0c0c0u >> (2 * p);
                mma_bytes(c[p], a.x & place, a.y & place, b.x & place, b.y & place, of[p][0],
                          of[p][1]);
            }
            units += apart * UNIT;
            x += apart * COLUMNS;
        }
        i += TURNS * apart;
    } while (i < n);
    return make_int2((c[0][0] >> 6) + (c[1][0] >> 4) + (c[2][0] >> 2) + c[3][0],
                     (c[0][2] >> 6) + (c[1][2] >> 4) + (c[2][2] >> 2) + c[3][2]);
}

static __device__ int sum_of(int4 v)
{
    return v.x + v.y + (v.z + v.w);
}

template <int QUADS> static __device__ void ternary_row(const qn__cuda_linears_args &a)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t landed[MOST_TILES];
    __shared__ block_room room;
    const ternary_work work(a);
    char *units = shared, *bytes = units + work.tiles * work.units * UNIT;
    int *part = (int *)(bytes + QUADS * THREADS * 4); /* [tile][16][warp of a team] */
    const int me = thread_number(), own = me, all = work.tiles * TILE;
    let_next_begin();
    if (threadIdx.x == 0)
        ask_for_units(a, work, units, landed);
    __syncwarp();
    const quads_of_row<QUADS> row((int)a.k / 4, me);
    float4 v[QUADS], weight[QUADS];
    if (a.at[QN__CUDA_NORM_OF_X]) /* which no step writes */
        row.load(a.at[QN__CUDA_NORM_OF_X], me, weight);
    const ternary_team team(work, me);
    const tile_place p = place_of(a, work.first + min(own / TILE, work.tiles - 1), TILE);
    const bool wanted = own < all && p.row + own % TILE < p.n;
    const int64_t at = p.row + own % TILE;
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
    int4 *parts = (int4 *)part + 2 * min(own, all - 1);
    parts[0] = parts[1] = make_int4(0, 0, 0, 0);
    const uint32_t first_x = known_now(shared_address(bytes) + team.x_at);
    uint32_t here = known_now(shared_address(&landed[team.tile]));
    v[QUADS - 1] = make_float4(0, 0, 0, 0); /* where the thread has no last quad */
    wait_for_last();
    row.load(a.at[0], me, v);
    const float more = added && wanted ? added[at] : 0, by = p.by ? *p.by : 1.0f;
    const float worth = bytes_of_row<QUADS>(a, row, me, weight, v, (uint32_t *)bytes, &room);
    const int less = sum_of(((const int4 *)room.added)[0]) + sum_of(((const int4 *)room.added)[1]);
    const char *from = units + team.units_at;
    int *to = part + team.part_at;
    for (int i = team.tile; i < work.tiles; i += team.tiles) {
        barrier_wait(here, 0);
        const int2 sum = sums_of_units<QUADS>(from, first_x, team.units, team.size, me % 32 < 4);
        if (me % 4 == 0) {
            to[0] = sum.x;
            to[WARPS] = sum.y;
        }
        here += team.tiles * (uint32_t)sizeof *landed;
        from += team.tiles * work.units * UNIT;
        to += team.tiles * TILE * WARPS;
    }
    __syncthreads();
    const int sum = sum_of(parts[0]) + sum_of(parts[1]) - less;
    const float y = worth * (float)sum * by, up = __shfl_down_sync(~0u, y, TILE);
    if (!wanted)
        return;
    if (!a.gated)
        p.y[at] = added ? y + more : y;
    else if (own / TILE % 2 == 0)
        put_gated(a, at, y, up);
}

/* QUADS: of x, a thread's; all but the last have all threads. */
#define KERNEL(QUADS)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        ternary_1_of_##QUADS(const __grid_constant__ qn__cuda_linears_args a)                      \
    {                                                                                              \
        ternary_row<QUADS>(a);                                                                     \
    }
KERNEL(1)
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(7)
KERNEL(8)
