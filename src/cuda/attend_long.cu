/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of few rows over many pages of a cache in bf16, for sm_90: blocks share the pages of
 * all rows, each has one run of them, and attend_join joins what the pages come to. The bits are
 * those of attend_half.cu.
 *
 * A thread of a block's first warp keeps its whole shared memory asked for, pages that were in the
 * cache before before the launches ahead have ended; each other warp has every so manieth page.
 */
#include "cuda/attend_boxes.cuh"

template <int D> struct page_slots {
    enum {
        HALF = PAGE * D * 2, /* bytes of keys, or of values */
        SLOTS = 768 / D,
        WARPS = SLOTS < 6 ? SLOTS : 6 /* a slot is always of the same warp */
    };
    char page[SLOTS][2 * HALF];
};

/* ---- a block's share ------------------------------------------------------------------------- */

/* A page for 16 rows of products of a tile and a key head. In their order: tiles, key heads, rows,
 * pages. */
struct page_cursor {
    int tile, part, page, pages, parts; /* numbers; of the tile how many of each, of rows in 16 for
                                           all key heads */
    row_range all;

    static __device__ int rows_of(const qn__cuda_attend_args &a, const int32_t *tile)
    {
        const int rows = tile[2] * (int)a.shared;
        return (rows + ROWS_OF_WARP - 1) / ROWS_OF_WARP;
    }
    __device__ const int32_t *own(const qn__cuda_attend_args &a) const
    {
        return (const int32_t *)a.at[3] + 4 * tile;
    }
    __device__ bool load(const qn__cuda_attend_args &a)
    {
        if (own(a)[2] <= 0 || !tile_fits(a, own(a)))
            return false;
        all = range_of_all(a, own(a));
        pages = pages_of(all);
        parts = rows_of(a, own(a)) * (int)a.groups;
        return true;
    }
    /* n more pages, of which there are that many. */
    __device__ void go(const qn__cuda_attend_args &a, int n)
    {
        for (page += n; page >= pages;) {
            page -= pages;
            if (++part < parts)
                continue;
            part = 0;
            do
                tile++;
            while (tile < a.tiles && !load(a));
            if (tile >= a.tiles)
                return;
        }
    }
};

/* The block's share of all pages: where it begins, and how many. A warp asks. */
static __device__ int find_share(const qn__cuda_attend_args &a, page_cursor &at)
{
    const int lane = threadIdx.x % 32;
    int all = 0, before = 0;
    auto pages_in = [&](int tile) {
        page_cursor c;
        c.tile = tile;
        return tile < a.tiles && c.load(a) ? c.pages * c.parts : 0;
    };
    for (int i = 0; i < a.tiles; i += 32)
        all += __reduce_add_sync(~0u, pages_in(i + lane));
    const int begin = (int)((int64_t)all * blockIdx.x / gridDim.x),
              end = (int)((int64_t)all * (blockIdx.x + 1) / gridDim.x);
    for (int i = 0; i < a.tiles && begin < end; i += 32) {
        const int own = pages_in(i + lane);
        int upto = own; /* and with this lane's tile */
        for (int m = 1; m < 32; m *= 2) {
            const int other = __shfl_up_sync(~0u, upto, m);
            upto += lane >= m ? other : 0;
        }
        const unsigned behind = __ballot_sync(~0u, before + upto > begin);
        if (behind) {
            const int first = __ffs(behind) - 1;
            at.tile = i + first;
            at.load(a);
            at.part = 0;
            at.page = 0;
            at.go(a, begin - before - __shfl_sync(~0u, upto - own, first));
            break;
        }
        before += __shfl_sync(~0u, upto, 31);
    }
    return end - begin;
}

/* ---- pages ----------------------------------------------------------------------------------- */

struct slot_barriers {
    uint64_t keys_full, keys_free, values_full, values_free;
};

/* Asks for n pages, whose places are read ahead. */
template <int D>
static __device__ void bring_pages(const qn__cuda_attend_wide_args &w, page_slots<D> &s,
                                   slot_barriers *b, page_cursor at, int n)
{
    typedef page_slots<D> S;
    const qn__cuda_attend_args &a = w.a;
    const int lane = threadIdx.x;
    bool waited = !a.early;
    page_cursor ahead = at;
    int tile = -1, place = 0; /* of page i + lane */
    int64_t old = 0;          /* pages before this one are not of this step */
    for (int i = 0; i < n; i++) {
        const int slot = i % S::SLOTS, g = at.part / (at.parts / (int)a.groups);
        const uint32_t phase = i / S::SLOTS % 2;
        if (i % 32 == 0 && i + lane < n) {
            ahead.go(a, i ? 32 : lane);
            place = ahead.all.pages[page_at(ahead.all, ahead.page)];
        }
        const int own = __shfl_sync(~0u, place, i % 32);
        if (!waited && at.tile != tile) {
            tile = at.tile;
            old = first_new(a, at.own(a)) / PAGE;
        }
        if (!waited && page_at(at.all, at.page) >= old) {
            wait_for_last();
            waited = true;
        }
        if (lane == 0) {
            barrier_wait(&b[slot].keys_free, phase ^ 1);
            ask_keys_of<D>(w.a, w.keys, s.page[slot], g, own, &b[slot].keys_full);
            barrier_wait(&b[slot].values_free, phase ^ 1);
            ask_values_of<D>(w.a, w.values, s.page[slot] + S::HALF, g, own, &b[slot].values_full);
        }
        __syncwarp();
        if (i + 1 < n)
            at.go(a, 1);
    }
    wait_for_last();
}

/* What a page comes to for a lane's two rows. */
template <int D>
static __device__ void multiply_page(const qn__cuda_attend_args &a, const lane_rows<D> &r,
                                     char *page_room_of, slot_barriers &b, uint32_t phase,
                                     int64_t page, int end)
{
    const int t = threadIdx.x % 4;
    char *values = page_room_of + page_slots<D>::HALF;
    float score[8][4];
    uint32_t p[4][4];
    weight_sum sum[2];
    barrier_wait(&b.keys_full, phase);
    const float scale = page_scores(a, r, *(const page_room<D> *)page_room_of, page, score);
    __syncwarp();
    give_back(&b.keys_free);
    page_weights(score, scale, sum, p);
    barrier_wait(&b.values_full, phase);
    if (end < PAGE)
        clear_values<D>(values, end);
    float *to[2];
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (r.head[k] >= 0) {
            to[k] = part_values(a, r.l[k], r.head[k], page) + 2 * t;
            if (t == 0)
                *part_sums(a, r.l[k], r.head[k], page) = make_float2(sum[k].max, sum[k].total);
        }
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        float v[2][4];
        part_columns(values, p, c, v);
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (r.head[k] >= 0) {
                *(float2 *)(to[k] + c * 16) = make_float2(v[0][2 * k], v[0][2 * k + 1]);
                *(float2 *)(to[k] + c * 16 + 8) = make_float2(v[1][2 * k], v[1][2 * k + 1]);
            }
    }
    __syncwarp();
    give_back(&b.values_free);
}

template <int D>
static __device__ void multiply_pages(const qn__cuda_attend_args &a, page_slots<D> &s,
                                      slot_barriers *b, page_cursor at, int n)
{
    typedef page_slots<D> S;
    const int own = threadIdx.x / 32 - 1;
    lane_rows<D> r;
    int tile = -1, part = -1;
    if (own < n)
        at.go(a, own);
    for (int i = own; i < n; i += S::WARPS) {
        const int slot = i % S::SLOTS;
        const int64_t page = page_at(at.all, at.page);
        if (at.tile != tile || at.part != part) {
            const int apart = at.parts / (int)a.groups;
            tile = at.tile;
            part = at.part;
            begin_rows(a, r, at.own(a), part / apart, part % apart * ROWS_OF_WARP);
        }
        multiply_page<D>(a, r, s.page[slot], b[slot], i / S::SLOTS % 2, page,
                         (int)(at.all.end - page * PAGE));
        if (i + S::WARPS < n)
            at.go(a, S::WARPS);
    }
}

template <int D> static __device__ void attend_long(const qn__cuda_attend_wide_args &w)
{
    typedef page_slots<D> S;
    extern __shared__ __align__(1024) char shared_room[];
    __shared__ slot_barriers b[S::SLOTS];
    static_assert(sizeof(S) + 1024 <= QN__CUDA_ATTEND_WIDE_SHARED && S::SLOTS % S::WARPS == 0, "");
    S &s = *(S *)(shared_room + (1024 - shared_address(shared_room) % 1024) % 1024);
    let_next_begin();
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::SLOTS; i++) {
            barrier_begin(&b[i].keys_full, 1);
            barrier_begin(&b[i].keys_free, 1);
            barrier_begin(&b[i].values_full, 1);
            barrier_begin(&b[i].values_free, 1);
        }
        barriers_begun();
        fetch_map(&w.keys);
        fetch_map(&w.values);
    }
    __syncthreads();
    if (!w.a.early)
        wait_for_last();
    page_cursor at;
    const int n = find_share(w.a, at);
    if (threadIdx.x < 32) {
        bring_pages<D>(w, s, b, at, n);
    } else {
        wait_for_last();
        multiply_pages<D>(w.a, s, b, at, n);
    }
}

#define LONG_KERNEL(name, D)                                                                       \
    extern "C" __global__ void __launch_bounds__(32 * (page_slots<D>::WARPS + 1), 1)               \
        CACHE_KERNEL(name)(const __grid_constant__ qn__cuda_attend_wide_args w)                    \
    {                                                                                              \
        attend_long<D>(w);                                                                         \
    }
LONG_KERNEL(attend_long_64, 64)
LONG_KERNEL(attend_long_128, 128)
LONG_KERNEL(attend_long_256, 256)
