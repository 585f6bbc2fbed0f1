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
// Weight unit: 16 rows x 64 k, 2,048 bytes, units contiguous as [tile][unit]. Lane = 4 g + t holds,
// for step s of 4, 16 bytes: k = 16 t + 4 s + {0,1} of row g and of row g + 8, then k + {2,3} of
// both, which are the registers of an m16n8k16 product whose k are permuted (the same way for x).
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
    UNIT_BYTES = TILE * UNIT * 2,
    WARPS = 8, // consumers, each takes one unit of a chunk
    THREADS = 32 * (WARPS + 1),
    CHUNK_BYTES = WARPS * UNIT_BYTES,
    CHUNK_K = WARPS * UNIT,
    STEP = 4, // chunks in registers at once; K is a multiple of STEP * CHUNK_K
    MAX_RING = 12,
    PART_BYTES = 16 * WARPS * TILE * 4, // partial sums of 16 / B tiles
    MAX_SMEM = 232448,
};

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

__device__ inline void produce(const char *w, int n_chunks, const stage &a, char *ring,
                               uint64_t *full, uint64_t *empty, uint64_t *x_full)
{
    cursor put = {0, 1}, landed = {0, 0};
    int in_flight = 0, cap = a.cap_early;
    for (int i = 0; i < n_chunks; i++) {
        bar_wait(&empty[put.at], put.phase);
        if (cap != a.cap && bar_test(x_full, 0))
            cap = a.cap;
        for (; in_flight >= cap; in_flight--) {
            bar_wait(&full[landed.at], landed.phase);
            landed.next(a.ring);
        }
        bar_expect(&full[put.at], CHUNK_BYTES);
        bulk_copy(ring + put.at * CHUNK_BYTES, w + (size_t)i * CHUNK_BYTES, CHUNK_BYTES,
                  &full[put.at]);
        in_flight++;
        put.next(a.ring);
    }
}

// One tile's 16 rows times this warp's units; the result is in acc[0].
// acc: [STEP][column tiles][4], so that successive chunks do not wait for each other.
template <int B>
__device__ inline void tile_product(float acc[STEP][(B + 3) / 4][4], int n_chunks, int n_ring,
                                    cursor &get, const char *ring, const uint4 *x, uint64_t *full,
                                    uint64_t *empty)
{
    constexpr int NT = (B + 3) / 4, COLS = 2 * B;
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

// The eight warps' partial sums of one row of a tile, added in order.
template <int B> __device__ inline float row_sum(const float *part, int slot, int b, int row)
{
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum += part[((slot * WARPS + w) * B + b) * TILE + row];
    return sum;
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
template <int B, int SINK>
__device__ inline void consume(const stage &a, int t0, int n_tiles, const char *ring, uint4 *x,
                               float *part, uint64_t *full, uint64_t *empty, uint64_t *x_full)
{
    constexpr int NT = (B + 3) / 4, SLOTS = 16 / B;
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
    load_x(x, (const uint4 *)a.x, a.k * B / 4, x_full);
    for (int b = 0; b < B; b++)
        rms[b] = a.sums ? sums[b].inverse_rms(a.k) : 1;
    bar_wait(x_full, 0);

    cursor get = {0, 0};
    float acc[STEP][NT][4];
    for (int i = 0; i < n_tiles; i++) {
        int slot = i % SLOTS;
        tile_product<B>(acc, a.k / CHUNK_K, a.ring, get, ring, x, full, empty);
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
            sink_tiles<B, SINK>(a, part, t0 + i - slot, slot + 1, rms, residual, norm);
            if (i < n_tiles - 1)
                asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
        }
    }
}

template <int B, int SINK>
__global__ __launch_bounds__(THREADS, B <= 4 ? 2 : 1) void matvec(const __grid_constant__ stage a)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t full[MAX_RING], empty[MAX_RING], x_full;
    char *ring = shared, *x = ring + a.ring * CHUNK_BYTES;
    float *part = (float *)(x + a.k * B * 4);
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.ring; i++) {
            bar_init(&full[i], 1);
            bar_init(&empty[i], WARPS);
        }
        bar_init(&x_full, WARPS);
        bar_init_done();
        pdl_trigger();
    }
    __syncthreads();
    int t0 = (int)((long)a.tiles * blockIdx.x / gridDim.x);
    int t1 = (int)((long)a.tiles * (blockIdx.x + 1) / gridDim.x);
    if (threadIdx.x < 32 * WARPS)
        consume<B, SINK>(a, t0, t1 - t0, ring, (uint4 *)x, part, full, empty, &x_full);
    else if (threadIdx.x == 32 * WARPS)
        produce(a.w + (size_t)t0 * (a.k / UNIT) * UNIT_BYTES, (t1 - t0) * (a.k / CHUNK_K), a, ring,
                full, empty, &x_full);
}
