// SPDX-License-Identifier: Apache-2.0
// y = W x for 1 to 8 rows of x, W in bf16 weight units, as one stage of a chain of kernels.
//
// Problem: a decode step reads every weight once, so it should take weight bytes / read bandwidth;
// what is lost is lost at the boundaries between stages. Approach: one block an SM. A producer
// thread streams the block's weights, which are contiguous, into a ring in shared memory by bulk
// copies, and starts before the stage it depends on is complete, because weights never change.
// Eight consumer warps multiply on tensor cores. How many bytes are in flight is capped, lower
// until the activations have landed, since they queue behind the weights.
//
// Weight unit, bf16: 16 rows x 64 k, 2,048 bytes, units contiguous as [tile][unit]. Lane = 4 g + t
// holds, for step s of 4, 16 bytes: k = 16 t + 4 s + {0,1} of row g and of row g + 8, then k +
// {2,3} of both, which are the registers of an m16n8k16 product whose k are permuted (the same way
// for x).
//
// Weight unit, 4 bits with a scale and a bias a group of 64 k: 576 bytes. 16 bytes a lane, of which
// word s holds the lane's eight codes of step s: those of an A register in bits 4 j and 16 + 4 j,
// so that a shift, an and and an or make two bf16 of 128 + code. Then 16 rows' (scale, bias) in
// bf16. A group's products are summed alone; another product with A = 1 gives the sum of x, and y
// += scale * sum(wx) + (bias - 128 scale) * sum(x).
//
// A stage may be split along K over a cluster of blocks: each takes its part of every tile and of
// x, and one of them adds the parts' sums, in order.
//
// Activations: each f32 is two bf16, v = hi + lo, two columns of the product, so that x has 16 bits
// of mantissa and costs no further tensor work up to 4 rows. They lie in memory as the lanes read
// them (x_place), so that a stage takes them by a plain copy; the sink of the stage before writes
// them so. A norm is split likewise: the sink before writes h * w and each tile's sum of squares,
// and the stage multiplies its results by 1 / rms.
#pragma once
#include "ptx.cuh"
#include <cuda_bf16.h>

enum {
    TILE = 16, // rows of a unit
    UNIT = 64, // k of a unit
    WARPS = 8, // consumers
    THREADS = 32 * (WARPS + 1),
    STEP = 4, // sums at once
    MAX_RING = 12,
    PART_BYTES = 16 * WARPS * TILE * 4, // partial sums of 16 / B tiles
    MAX_SMEM = 232448,
};

// Units: their size, how many of a chunk a warp takes, and what of K (or of a block's part) a
// matrix has to be a multiple of: STEP chunks of bf16 are in registers at once, of int4 STEP units.
struct bf16_units {
    enum { BYTES = 2048, A_WARP = 1, K_STEP = STEP * WARPS * UNIT };
};
template <int N> struct int4_chunks {
    enum { BYTES = 576, A_WARP = N, K_STEP = N * WARPS * UNIT };
};
using int4_units = int4_chunks<4>;
template <class W> constexpr int chunk_bytes = WARPS *W::A_WARP *W::BYTES;
template <class W> constexpr int chunk_k = WARPS *W::A_WARP *UNIT;

enum sink { STORE, ACT, SILU, RESIDUAL };

struct stage {
    const char *w;          // [tiles][K / 64] units
    const __nv_bfloat16 *x; // K activations of B rows, placed by x_place
    int tiles, k;
    int ring, cap_early, cap; // chunks of the ring; most chunks in flight before and after x landed
    const float *sums;        // [B][K / 16] sums of squares of x's rows, or NULL: no norm
    float *y;                 // STORE: [B][N] written; RESIDUAL: [B][N] added to
    __nv_bfloat16 *x_out;     // ACT, SILU, RESIDUAL: the next stage's activations
    int x_rows;               // ACT: rows of W that x_out takes, from the first
    const float *norm;        // RESIDUAL: [N] the next norm's weight
    float *sums_out;          // RESIDUAL: [B][N / 16]
};

// Where activation k of row b, part 0 (hi) or 1 (lo), lies: [unit][half][row][part][t][8].
__host__ __device__ inline size_t x_place(int k, int b, int part, int rows)
{
    int t = k % 64 / 16, half = k % 16 / 8;
    return (size_t)((k / 64 * 2 + half) * rows * 2 + b * 2 + part) * 32 + t * 8 + k % 8;
}

__device__ inline void x_store(__nv_bfloat16 *x, int k, int b, int rows, float v)
{
    __nv_bfloat16 hi = __float2bfloat16(v);
    x[x_place(k, b, 0, rows)] = hi;
    x[x_place(k, b, 1, rows)] = __float2bfloat16(v - __bfloat162float(hi));
}

// A lane's share of row b's sums of squares; K is 2,048 or 4,096 where there is a norm. Loaded
// before x, so that the two trips to L2 are one.
struct norm_sums {
    float4 v[2];
    __device__ void load(const float *sums, int b, int k)
    {
        const float4 *from = (const float4 *)(sums + b * (k / TILE)) + threadIdx.x % 32;
        v[0] = __ldcg(from);
        v[1] = k == 4096 ? __ldcg(from + 32) : make_float4(0, 0, 0, 0);
    }
    // 1 / rms in every lane; all warps compute it alike.
    __device__ float inverse_rms(int k) const
    {
        float sum =
            ((v[0].x + v[0].y) + (v[0].z + v[0].w)) + ((v[1].x + v[1].y) + (v[1].z + v[1].w));
        for (int m = 16; m; m >>= 1)
            sum += __shfl_xor_sync(~0u, sum, m);
        return rsqrtf(sum / k + 1e-5f);
    }
};

// A place in the ring that goes round, and the parity of its round.
struct cursor {
    int at;
    uint32_t phase;
    __device__ void next(int ring)
    {
        if (++at == ring) {
            at = 0;
            phase ^= 1;
        }
    }
};

// n_tiles times n_chunks chunks; tiles are `stride` bytes apart.
template <class W>
__device__ inline void produce(const char *w, int n_tiles, int n_chunks, size_t stride,
                               const stage &a, char *ring, uint64_t *full, uint64_t *empty,
                               uint64_t *x_full)
{
    constexpr int CHUNK_BYTES = chunk_bytes<W>;
    cursor put = {0, 1}, landed = {0, 0};
    int in_flight = 0, cap = a.cap_early;
    for (int i = 0, c = 0; i < n_tiles * n_chunks; i++) {
        bar_wait(&empty[put.at], put.phase);
        if (cap != a.cap && bar_test(x_full, 0))
            cap = a.cap;
        for (; in_flight >= cap; in_flight--) {
            bar_wait(&full[landed.at], landed.phase);
            landed.next(a.ring);
        }
        bar_expect(&full[put.at], CHUNK_BYTES);
        bulk_copy(ring + put.at * CHUNK_BYTES, w + (size_t)c * CHUNK_BYTES, CHUNK_BYTES,
                  &full[put.at]);
        if (++c == n_chunks) {
            c = 0;
            w += stride;
        }
        in_flight++;
        put.next(a.ring);
    }
}

// One tile's 16 rows times this warp's units; the result is in acc[0].
// acc: [STEP][column tiles][4], so that successive chunks do not wait for each other.
template <int B>
__device__ inline void tile_product(bf16_units, float acc[STEP][(B + 3) / 4][4], int n_chunks,
                                    int n_ring, cursor &get, const char *ring, const uint4 *x,
                                    uint64_t *full, uint64_t *empty)
{
    constexpr int NT = (B + 3) / 4, COLS = 2 * B, CHUNK_BYTES = chunk_bytes<bf16_units>,
                  UNIT_BYTES = bf16_units::BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < STEP * NT * 4; i++)
        (&acc[0][0][0])[i] = 0;
    auto multiply = [&](int j, int chunk, const uint4 w[4]) {
        const uint4 *xu = x + (chunk * WARPS + warp) * (COLS * 8) + t;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            int col = min(8 * n + g, COLS - 1);
            uint4 lo = xu[col * 4], hi = xu[(COLS + col) * 4];
            mma_bf16(acc[j][n], w[0], lo.x, lo.y);
            mma_bf16(acc[j][n], w[1], lo.z, lo.w);
            mma_bf16(acc[j][n], w[2], hi.x, hi.y);
            mma_bf16(acc[j][n], w[3], hi.z, hi.w);
        }
    };
    for (int c = 0; c < n_chunks; c += STEP) {
        uint4 w[2][4];
#pragma unroll
        for (int j = 0; j < STEP; j++) {
            bar_wait(&full[get.at], get.phase);
            const uint4 *unit =
                (const uint4 *)(ring + get.at * CHUNK_BYTES + warp * UNIT_BYTES) + lane;
#pragma unroll
            for (int s = 0; s < 4; s++)
                w[j % 2][s] = unit[32 * s];
            __syncwarp();
            if (lane == 0)
                bar_arrive(&empty[get.at]);
            get.next(n_ring);
            if (j > 0)
                multiply(j - 1, c + j - 1, w[(j - 1) % 2]);
        }
        multiply(STEP - 1, c + STEP - 1, w[(STEP - 1) % 2]);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
        for (int i = 0; i < 4; i++)
            acc[0][n][i] = (acc[0][n][i] + acc[1][n][i]) + (acc[2][n][i] + acc[3][n][i]);
}

__device__ inline uint32_t codes(uint32_t w)
{
    return (w & 0x000f000f) | 0x43004300; // two bf16, 128 + code
}

template <int B, int U>
__device__ inline void tile_product(int4_chunks<U>, float acc[STEP][(B + 3) / 4][4], int n_chunks,
                                    int n_ring, cursor &get, const char *ring, const uint4 *x,
                                    uint64_t *full, uint64_t *empty)
{
    constexpr int NT = (B + 3) / 4, COLS = 2 * B, BYTES = int4_units::BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4 ones = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
    for (int i = 0; i < STEP * NT * 4; i++)
        (&acc[0][0][0])[i] = 0;
    for (int c = 0; c < n_chunks; c++) {
        bar_wait(&full[get.at], get.phase);
        const char *units = ring + get.at * chunk_bytes<int4_chunks<U>> + warp * U * BYTES;
        uint4 w[U];
        uint32_t scale[U][2];
#pragma unroll
        for (int j = 0; j < U; j++) {
            w[j] = ((const uint4 *)(units + j * BYTES))[lane];
            scale[j][0] = ((const uint32_t *)(units + j * BYTES + 512))[g];
            scale[j][1] = ((const uint32_t *)(units + j * BYTES + 512))[g + 8];
        }
        __syncwarp();
        if (lane == 0)
            bar_arrive(&empty[get.at]);
        get.next(n_ring);
#pragma unroll
        for (int j = 0; j < U; j++) {
            const uint4 *xu = x + ((c * WARPS + warp) * U + j) * (COLS * 8) + t;
            const uint32_t word[4] = {w[j].x, w[j].y, w[j].z, w[j].w};
            float s0 = __uint_as_float(scale[j][0] << 16), s1 = __uint_as_float(scale[j][1] << 16);
            float b0 = __uint_as_float(scale[j][0] & 0xffff0000) - 128 * s0,
                  b1 = __uint_as_float(scale[j][1] & 0xffff0000) - 128 * s1;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                int col = min(8 * n + g, COLS - 1);
                uint4 lo = xu[col * 4], hi = xu[(COLS + col) * 4];
                const uint32_t xs[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
                float sum[4] = {0, 0, 0, 0}, of_x[4] = {0, 0, 0, 0};
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    uint4 r = {codes(word[s]), codes(word[s] >> 4), codes(word[s] >> 8),
                               codes(word[s] >> 12)};
                    mma_bf16(sum, r, xs[2 * s], xs[2 * s + 1]);
                    mma_bf16(of_x, ones, xs[2 * s], xs[2 * s + 1]);
                }
                acc[j][n][0] += s0 * sum[0] + b0 * of_x[0];
                acc[j][n][1] += s0 * sum[1] + b0 * of_x[1];
                acc[j][n][2] += s1 * sum[2] + b1 * of_x[2];
                acc[j][n][3] += s1 * sum[3] + b1 * of_x[3];
            }
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
        for (int i = 0; i < 4; i++)
            acc[0][n][i] = (acc[0][n][i] + acc[1][n][i]) + (acc[2][n][i] + acc[3][n][i]);
}

// The eight warps' partial sums of one row of a tile, added in order.
template <int B> __device__ inline float row_sum(const float *part, int slot, int b, int row)
{
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum += part[((slot * WARPS + w) * B + b) * TILE + row];
    return sum;
}

// Split over a cluster: the sums of this block's part of K go to the block that finishes the tile,
// and are added there in the order of the blocks. `round` counts the calls; two buffers take turns,
// and a block waits for its own before it goes on, so none is two rounds ahead.
template <int B, int C>
__device__ inline void sink_cluster(const stage &a, const float *part, int t0, int n, float *inbox,
                                    uint64_t *arrived, int round)
{
    constexpr int ALL = 16 / B * B * TILE;
    const uint32_t rank = cluster_rank();
    inbox += round % 2 * C * ALL;
    for (int o = threadIdx.x; o < n * B * TILE; o += 32 * WARPS) {
        int r = o % TILE, b = o / TILE % B, slot = o / (TILE * B);
        uint32_t to = at_rank(smem(inbox + rank * ALL + o), (uint32_t)slot % C);
        cluster_store(to, row_sum<B>(part, slot, b, r));
    }
    __syncwarp();
    if (threadIdx.x % 32 < C)
        cluster_arrive(at_rank(smem(arrived), threadIdx.x % 32));
    cluster_wait(arrived, round & 1);
    for (int o = threadIdx.x; o < n * B * TILE; o += 32 * WARPS) {
        int r = o % TILE, b = o / TILE % B, slot = o / (TILE * B);
        if ((uint32_t)slot % C != rank)
            continue;
        float v = 0;
        for (int i = 0; i < C; i++)
            v += inbox[i * ALL + o];
        a.y[(size_t)b * a.tiles * TILE + (t0 + slot) * TILE + r] = v;
    }
}

// What becomes of n tiles' results, the first of them tile t0. Consumer threads only.
template <int B, int SINK>
__device__ inline void sink_tiles(const stage &a, const float *part, int t0, int n,
                                  const float *rms, float residual, float norm)
{
    constexpr int ROWS = SINK == SILU ? TILE / 2 : TILE;
    for (int o = threadIdx.x; o < n * B * ROWS; o += 32 * WARPS) {
        int r = o % ROWS, b = o / ROWS % B, slot = o / (ROWS * B);
        int row = (t0 + slot) * ROWS + r;
        float scale = rms[b], v = row_sum<B>(part, slot, b, r) * scale;
        if (SINK == STORE)
            a.y[(size_t)b * a.tiles * TILE + row] = v;
        if (SINK == ACT && row < a.x_rows)
            x_store(a.x_out, row, b, B, v);
        if (SINK == SILU) { // a tile's rows 0..7 are gates, 8..15 their ups
            float up = row_sum<B>(part, slot, b, r + 8) * scale;
            x_store(a.x_out, row, b, B, v / (1 + __expf(-v)) * up);
        }
        if (SINK == RESIDUAL) {
            float h = residual + v;
            a.y[(size_t)b * a.tiles * TILE + row] = h;
            x_store(a.x_out, row, b, B, h * norm);
            float sum = h * h;
            unsigned half = 0xffffu << (threadIdx.x & 16);
            for (int m = 8; m; m >>= 1)
                sum += __shfl_xor_sync(half, sum, m);
            if (r == 0)
                a.sums_out[b * a.tiles + t0 + slot] = sum;
        }
    }
}

// Activations into shared memory by all consumers: one trip to L2, shorter than a bulk copy's.
// n: 16-byte pieces, a multiple of 512.
__device__ inline void load_x(uint4 *x, const uint4 *from, int n, uint64_t *x_full)
{
    constexpr int BLOCK = 32 * WARPS;
    int i = threadIdx.x;
    for (; i + 7 * BLOCK < n; i += 8 * BLOCK) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __ldcg(from + i + j * BLOCK);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[i + j * BLOCK] = v[j];
    }
    for (; i < n; i += 2 * BLOCK) {
        uint4 v0 = __ldcg(from + i), v1 = __ldcg(from + i + BLOCK);
        x[i] = v0;
        x[i + BLOCK] = v1;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        bar_arrive(x_full);
}

// RESIDUAL takes at most 16 / B tiles a block, so that a thread has one output and may load what
// it adds to before the weights arrive.
template <class W, int B, int SINK, int C>
__device__ inline void consume(const stage &a, int t0, int n_tiles, const char *ring, uint4 *x,
                               float *part, uint64_t *full, uint64_t *empty, uint64_t *x_full,
                               float *inbox, uint64_t *arrived)
{
    static_assert(C == 1 || SINK == STORE, "only the simplest sink is split over a cluster yet");
    constexpr int NT = (B + 3) / 4, SLOTS = 16 / B;
    const int k = a.k / C; // this block's
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int first = (t0 + threadIdx.x / (TILE * B)) * TILE + threadIdx.x % TILE; // RESIDUAL's row
    const bool owner = SINK == RESIDUAL && threadIdx.x < n_tiles * B * TILE;
    float rms[B], residual = 0, norm = owner ? a.norm[first] : 0;
    norm_sums sums[B];
    pdl_wait();
    if (owner)
        residual = __ldcg(&a.y[(size_t)(threadIdx.x / TILE % B) * a.tiles * TILE + first]);
    if (a.sums)
        for (int b = 0; b < B; b++)
            sums[b].load(a.sums, b, a.k);
    load_x(x, (const uint4 *)a.x + (C > 1 ? cluster_rank() : 0) * (k * B / 4), k * B / 4, x_full);
    for (int b = 0; b < B; b++)
        rms[b] = a.sums ? sums[b].inverse_rms(a.k) : 1;
    bar_wait(x_full, 0);

    cursor get = {0, 0};
    float acc[STEP][NT][4];
    for (int i = 0; i < n_tiles; i++) {
        int slot = i % SLOTS;
        tile_product<B>(W(), acc, k / chunk_k<W>, a.ring, get, ring, x, full, empty);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            int b = 4 * n + t; // columns 2 t and 2 t + 1 are hi and lo of one row
            float *p = part + ((slot * WARPS + warp) * B + b) * TILE;
            if (b < B) {
                p[g] = acc[0][n][0] + acc[0][n][1];
                p[g + 8] = acc[0][n][2] + acc[0][n][3];
            }
        }
        if (slot == SLOTS - 1 || i == n_tiles - 1) {
            asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
            if constexpr (C > 1)
                sink_cluster<B, C>(a, part, t0 + i - slot, slot + 1, inbox, arrived, i / SLOTS);
            else
                sink_tiles<B, SINK>(a, part, t0 + i - slot, slot + 1, rms, residual, norm);
            if (i < n_tiles - 1)
                asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
        }
    }
}

template <class W, int B, int SINK, int C = 1>
__global__ __launch_bounds__(THREADS, B <= 4 ? 2 : 1) void matvec(const __grid_constant__ stage a)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t full[MAX_RING], empty[MAX_RING], x_full, arrived;
    char *ring = shared, *x = ring + a.ring * chunk_bytes<W>;
    float *part = (float *)(x + a.k / C * B * 4), *inbox = part + PART_BYTES / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.ring; i++) {
            bar_init(&full[i], 1);
            bar_init(&empty[i], WARPS);
        }
        bar_init(&x_full, WARPS);
        bar_init(&arrived, WARPS * C);
        bar_init_done();
        pdl_trigger();
    }
    if (C > 1)
        cluster_sync();
    else
        __syncthreads();
    int t0 = (int)((long)a.tiles * (blockIdx.x / C) / (gridDim.x / C));
    int t1 = (int)((long)a.tiles * (blockIdx.x / C + 1) / (gridDim.x / C));
    size_t tile_bytes = (size_t)(a.k / UNIT) * W::BYTES;
    if (threadIdx.x < 32 * WARPS)
        consume<W, B, SINK, C>(a, t0, t1 - t0, ring, (uint4 *)x, part, full, empty, &x_full, inbox,
                               &arrived);
    else if (threadIdx.x == 32 * WARPS)
        produce<W>(a.w + t0 * tile_bytes + blockIdx.x % C * (tile_bytes / C), t1 - t0,
                   a.k / C / chunk_k<W>, tile_bytes, a, ring, full, empty, &x_full);
    if (C > 1) { // a block's shared memory stays while others write to it
        __syncwarp();
        cluster_sync();
    }
}
