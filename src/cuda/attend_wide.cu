/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of many rows over a cache in bf16, for sm_90: wgmma, fed by the tensor copy engine.
 *
 * The bits are those of attend_half.cu: a page's scores, weights and weighted values come to a
 * maximum, a sum and values of their own, which are joined to those of the pages before. (The sums
 * of wgmma and of mma.sync are the same: compared on an H100.)
 *
 * A block goes from one piece of work to the next: two tiles of 64 rows of products and a key head.
 * Four warps have each tile; one thread of four more asks for the pages of both, which are the same
 * but for the last where the tiles are neighbours, and three warps of these make bf16 of the next
 * queries. While a page's weights are made, four warps multiply for the others. (Made so that the
 * same warps' products run beside them, which the assembler does only if it must, all took 4 %
 * longer.) Over heads of 256 there is one tile: its warps multiply all scores twice, and
 * each half of the columns of the values once, since a warp has no room for more.
 */
#include "cuda/attend_boxes.cuh"

enum {
    GROUP = 128,   /* threads that multiply together */
    WARPS = 8,     /* that multiply */
    TILE_ROWS = 64 /* of products */
};

/* ---- products -------------------------------------------------------------------------------- */

/* c[64 x N] += a[64 x 16] b[16 x N], where b has its columns side by side. c is 0 before unless
 * `more`. */
static __device__ void score_product(float (&c)[32], uint64_t a, uint64_t b, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." CACHE_TYPE "." CACHE_TYPE " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, more, 1, 1, 0, 1;\n}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "l"(a), "l"(b), "r"((int)more));
}

static __device__ void value_product(float (&c)[32], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." CACHE_TYPE "." CACHE_TYPE " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, more, 1, 1, 1;\n}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)more));
}

static __device__ void value_product(float (&c)[64], const uint32_t (&a)[4], uint64_t b, bool more)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." CACHE_TYPE "." CACHE_TYPE " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, more, 1, 1, 1;\n}"
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
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)more));
}

/* Describes what has its columns side by side in rows of 128 bytes (layout 1) or 32 (layout 3):
 * bytes to the next columns, and to the next eight rows. */
static __device__ uint64_t columns_descriptor(const void *p, int next, int rows, uint64_t layout)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(rows >> 4) << 32 | layout << 62;
}

/* ---- shared memory --------------------------------------------------------------------------- */

template <int D> struct wide_room {
    enum {
        TILES = D == 256 ? 1 : 2,
        COLUMNS = D * TILES / 2,  /* of the values: those of four warps */
        HALF_PAGE = PAGE * D * 2, /* bytes of keys, or of values */
        STAGES = 512 / D,
        QUERIES = 2
    };
    char keys[STAGES][HALF_PAGE], values[STAGES][HALF_PAGE];
    char q[QUERIES][TILES][TILE_ROWS * D * 2];
};

template <int D> struct wide_barriers {
    enum { STAGES = wide_room<D>::STAGES, QUERIES = wide_room<D>::QUERIES };
    uint64_t keys_full[STAGES], keys_free[STAGES], values_full[STAGES], values_free[STAGES];
    uint64_t q_full[QUERIES], q_free[QUERIES];
    uint64_t part; /* the values of a page that is not whole are there */
};

/* ---- work ------------------------------------------------------------------------------------ */

/* The pages that some rows see, in their order. */
struct page_list {
    const int32_t *table;
    int first, n, end; /* the first one, but for page 0 where it is kept; how many; keys end here */
    bool kept;         /* page 0 comes before the first */

    __device__ int at(int i) const
    {
        return kept && i == 0 ? 0 : first + i - kept;
    }
};

static __device__ page_list pages_in(const row_range &r)
{
    const int first = (int)r.begin / PAGE;
    const bool kept = first && r.keep;
    return {r.pages, first, ((int)r.end + PAGE - 1) / PAGE - first + kept, (int)r.end, kept};
}

/* Tiles and a key head. The pages are those of both tiles, where they are of one sequence, or of
 * one and then of the other. */
struct wide_work {
    int g, tile;           /* the first one's number */
    int first[2], rows[2]; /* tokens of each; 0: there is no such tile */
    bool together;
    page_list pages[2];
};

static __device__ const int32_t *tile_number(const qn__cuda_attend_args &a, int i)
{
    return (const int32_t *)a.at[3] + 4 * i;
}

template <int D> static __device__ int rounds_of(const qn__cuda_attend_args &a)
{
    enum { TILES = wide_room<D>::TILES };
    const int n = ((int)a.tiles + TILES - 1) / TILES * (int)a.groups;
    return (n + gridDim.x - 1) / gridDim.x;
}

/* The last tiles first, since they see most; every other round the other way round, so that all
 * blocks have about as many pages. False: the block has none in this round. */
template <int D>
static __device__ bool find_work(const qn__cuda_attend_args &a, int round, wide_work &w)
{
    enum { TILES = wide_room<D>::TILES };
    const int last = ((int)a.tiles + TILES - 1) / TILES - 1, groups = (int)a.groups,
              own = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x,
              i = round * gridDim.x + own;
    w.g = i % groups;
    w.tile = (last - i / groups) * TILES;
    if (w.tile < 0)
        return false;
    row_range r[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int32_t *tile = tile_number(a, w.tile + k);
        const bool real = k < TILES && w.tile + k < a.tiles && tile[2] > 0 && tile_fits(a, tile);
        r[k] = {0, 0, 0, nullptr};
        if (real)
            r[k] = range_of_all(a, tile);
        w.first[k] = real ? tile[1] : 0;
        w.rows[k] = real ? tile[2] : 0;
    }
    w.together = r[0].pages && r[0].pages == r[1].pages;
    if (w.together) {
        r[0].begin = min(r[0].begin, r[1].begin);
        r[0].end = max(r[0].end, r[1].end);
        r[0].keep = max(r[0].keep, r[1].keep);
        r[1].begin = r[1].end = 0;
    }
    w.pages[0] = pages_in(r[0]);
    w.pages[1] = pages_in(r[1]);
    return true;
}

/* ---- bringing pages: one warp ---------------------------------------------------------------- */

template <int D>
static __device__ void bring_page(const qn__cuda_attend_wide_args &w, wide_room<D> &s,
                                  wide_barriers<D> &b, ring_place at, int g, int64_t place,
                                  uint64_t *values_full)
{
    barrier_wait(&b.keys_free[at.stage], at.phase ^ 1);
    ask_keys_of<D>(w.a, w.keys, s.keys[at.stage], g, place, &b.keys_full[at.stage]);
    barrier_wait(&b.values_free[at.stage], at.phase ^ 1);
    ask_values_of<D>(w.a, w.values, s.values[at.stage], g, place, values_full);
}

template <int D>
static __device__ void bring_pages(const qn__cuda_attend_wide_args &w, wide_room<D> &s,
                                   wide_barriers<D> &b)
{
    const int lane = threadIdx.x % 32, rounds = rounds_of<D>(w.a);
    ring_place at = {0, 0};
    uint32_t part_phase = 0;
    wide_work work;
    for (int round = 0; round < rounds; round++) {
        if (!find_work<D>(w.a, round, work))
            continue;
        page_list pages = work.pages[0];
#pragma unroll 1
        for (int k = 0; k < 2; k++, pages = work.pages[1]) {
            int place = 0; /* of a page a lane */
            for (int i = 0; i < pages.n; i++, at.next(wide_room<D>::STAGES)) {
                if (i % 32 == 0 && i + lane < pages.n)
                    place = pages.table[pages.at(i + lane)];
                const int own = __shfl_sync(~0u, place, i % 32),
                          end = pages.end - pages.at(i) * PAGE;
                if (lane == 0)
                    bring_page<D>(w, s, b, at, work.g, own,
                                  end < PAGE ? &b.part : &b.values_full[at.stage]);
                __syncwarp();
                if (end < PAGE) {
                    barrier_wait(&b.part, part_phase);
                    part_phase ^= 1;
                    clear_values<D>(s.values[at.stage], end);
                    give_back(&b.values_full[at.stage]);
                }
            }
        }
    }
}

/* ---- bringing queries: three warps ----------------------------------------------------------- */

/* Where each row of a tile lies: its token, and its element 0 behind the first row's. */
struct query_rows {
    int token[TILE_ROWS], at[TILE_ROWS];
};

static __device__ void find_rows(const qn__cuda_attend_args &a, query_rows &rows)
{
    const int shared = (int)a.shared;
    for (int i = threadIdx.x; i < TILE_ROWS; i += blockDim.x) {
        rows.token[i] = i / shared;
        rows.at[i] = (int)(i / shared * a.q_stride[2] + i % shared * a.q_stride[1]);
    }
}

template <int D>
static __device__ void bring_queries(const qn__cuda_attend_args &a, wide_room<D> &s,
                                     wide_barriers<D> &b, const query_rows &rows)
{
    enum {
        ROWS = TILE_ROWS * wide_room<D>::TILES,
        LANES = D / 8, /* of a row, each 8 columns */
        APART = 3 * 32 / LANES,
        AT_ONCE = 4
    };
    const int lane = (threadIdx.x - 32) % LANES, own = (threadIdx.x - 32) / LANES,
              n_rounds = rounds_of<D>(a);
    ring_place at = {0, 0};
    wide_work work;
    for (int round = 0; round < n_rounds; round++) {
        if (!find_work<D>(a, round, work))
            continue;
        const float *from = (const float *)a.at[0] + work.g * a.shared * a.q_stride[1] + lane * 8;
        barrier_wait(&b.q_free[at.stage], at.phase ^ 1);
        for (int first = own; first < ROWS; first += APART * AT_ONCE) {
            float4 v[AT_ONCE][2];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int row = min(first + i * APART, ROWS - 1), in_tile = row % TILE_ROWS;
                const bool second = row >= TILE_ROWS;
                const int tokens = second ? work.rows[1] : work.rows[0],
                          token = second ? work.first[1] : work.first[0];
                /* there is no such row: another one, whose results nobody stores */
                const float *q = from + token * a.q_stride[2] +
                                 (rows.token[in_tile] < tokens ? rows.at[in_tile] : 0);
                v[i][0] = *(const float4 *)q;
                v[i][1] = *(const float4 *)(q + 4);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int row = min(first + i * APART, ROWS - 1);
                char *to = s.q[at.stage][0] + row / TILE_ROWS * TILE_ROWS * D * 2 +
                           lane / 8 * PART_BYTES + row % TILE_ROWS * 128 +
                           (lane % 8 ^ row % 8) * 16;
                *(uint4 *)to = make_uint4(
                    cached_pair(v[i][0].x, v[i][0].y), cached_pair(v[i][0].z, v[i][0].w),
                    cached_pair(v[i][1].x, v[i][1].y), cached_pair(v[i][1].z, v[i][1].w));
            }
        }
        written_for_copies();
        barrier_arrive(&b.q_full[at.stage]);
        at.next(wide_room<D>::QUERIES);
    }
}

/* ---- multiplying: four warps a tile ---------------------------------------------------------- */

/* A lane's two rows: g and g + 8 of its warp's 16. */
template <int COLUMNS> struct wide_rows {
    float value[COLUMNS / 2];
    weight_sum sum[2];
    int begin[2], end[2], keep[2];
    int first_whole, end_whole; /* all rows see all keys between */
};

template <int COLUMNS>
static __device__ void begin_rows(const qn__cuda_attend_args &a, wide_rows<COLUMNS> &r,
                                  const wide_work &work, int tile)
{
    const int32_t *from = tile_number(a, work.tile + tile);
    const int shared = (int)a.shared, n = from[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i,
                  token = row / shared;
        const row_range range = range_of(a, from, token < n ? token : 0);
        r.begin[i] = (int)range.begin;
        r.end[i] = (int)range.end;
        r.keep[i] = (int)range.keep;
        r.sum[i] = {-CUDART_INF_F, 0};
    }
    r.first_whole = (int)range_of(a, from, n - 1).begin;
    r.end_whole = (int)range_of(a, from, 0).end;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++)
        r.value[i] = 0;
}

template <int N> static __device__ void all_settled(float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        settled(v[i]);
}

template <int D>
static __device__ void multiply_scores(const char *q, const char *keys, float (&score)[8][4])
{
    const uint64_t left = tile_descriptor(q), right = columns_descriptor(keys, D * 32, 256, 3);
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        score_product((float(&)[32])score, left + i / 4 * (PART_BYTES / 16) + i % 4 * 2,
                      right + 32 * i, i);
    products_end();
}

template <int N>
static __device__ void multiply_values(const char *values, const uint32_t (&p)[4][4], float (&v)[N])
{
    const uint64_t right = columns_descriptor(values, PART_BYTES, 1024, 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        value_product(v, p[i], right + 128 * i, i);
    products_end();
}

/* The scores of page number `page` become weights. */
template <bool CAPPED, int COLUMNS>
static __device__ void weigh_page(const qn__cuda_attend_args &a, const wide_rows<COLUMNS> &r,
                                  int page, float (&score)[8][4], weight_sum (&sum)[2])
{
    const int first = page * PAGE;
    float scale = 0;
    if (CAPPED)
        scale = cap_scores(a, score);
    if (first < r.first_whole || first + PAGE > r.end_whole)
#pragma unroll
        for (int i = 0; i < 2; i++)
            hide_keys(score, i, r.begin[i] - first, r.end[i] - first, r.keep[i] - first);
    weigh_scores(score, CAPPED ? scale : a.scale, sum);
}

template <int COLUMNS>
static __device__ void join_page(wide_rows<COLUMNS> &r, const float (&v)[COLUMNS / 2],
                                 const weight_sum (&sum)[2])
{
    float fade[2], share[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        join_sums(r.sum[i], sum[i], &fade[i], &share[i]);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++)
        r.value[i] = joined(r.value[i], fade[i % 4 / 2], v[i], share[i % 4 / 2]);
}

/* Goes over the pages; q: the tile's queries, from: the first of its columns' values. */
template <int D, bool CAPPED>
static __device__ void multiply_pages(const qn__cuda_attend_args &a, wide_room<D> &s,
                                      wide_barriers<D> &b, wide_rows<wide_room<D>::COLUMNS> &r,
                                      const page_list &pages, const char *q, int from,
                                      ring_place &at)
{
    float score[8][4], v[wide_room<D>::COLUMNS / 2];
    uint32_t p[4][4];
    weight_sum sum[2], next[2];
    barrier_wait(&b.keys_full[at.stage], at.phase);
    products_begin();
    multiply_scores<D>(q, s.keys[at.stage], score);
    products_wait<0>();
    all_settled((float(&)[32])score);
    give_back(&b.keys_free[at.stage]);
    weigh_page<CAPPED>(a, r, pages.at(0), score, sum);
    pack_weights(score, p);
    ring_place last = at;
    at.next(wide_room<D>::STAGES);
#pragma unroll 1
    for (int i = 1; i < pages.n; i++) {
        barrier_wait(&b.keys_full[at.stage], at.phase);
        products_begin();
        multiply_scores<D>(q, s.keys[at.stage], score);
        barrier_wait(&b.values_full[last.stage], last.phase);
        products_begin();
        multiply_values(s.values[last.stage] + from, p, v);
        products_wait<1>();
        all_settled((float(&)[32])score);
        give_back(&b.keys_free[at.stage]);
        weigh_page<CAPPED>(a, r, pages.at(i), score, next);
        products_wait<0>();
        all_settled(v);
        give_back(&b.values_free[last.stage]);
        join_page(r, v, sum);
        pack_weights(score, p);
        sum[0] = next[0], sum[1] = next[1];
        last = at;
        at.next(wide_room<D>::STAGES);
    }
    barrier_wait(&b.values_full[last.stage], last.phase);
    products_begin();
    multiply_values(s.values[last.stage] + from, p, v);
    products_wait<0>();
    all_settled(v);
    give_back(&b.values_free[last.stage]);
    join_page(r, v, sum);
}

/* Pages of the other tile alone. */
template <int D>
static __device__ void pass_pages(wide_barriers<D> &b, const page_list &pages, ring_place &at)
{
#pragma unroll 1
    for (int i = 0; i < pages.n; i++, at.next(wide_room<D>::STAGES)) {
        barrier_wait(&b.keys_full[at.stage], at.phase);
        give_back(&b.keys_free[at.stage]);
        barrier_wait(&b.values_full[at.stage], at.phase);
        give_back(&b.values_free[at.stage]);
    }
}

/* What is left to do to a row's values: with_sink, once for all columns. */
struct row_end {
    float fade, total, inverse;
};

static __device__ row_end end_of_row(const qn__cuda_attend_args &a, weight_sum s, int h)
{
    row_end end = {1, s.total, 0};
    if (a.has_sinks) {
        const float sink = ((const float *)a.at[5])[h], top = larger(sink, s.max),
                    base = top == -CUDART_INF_F ? 0.0f : top;
        end.fade = expf(s.max - base);
        end.total = s.total * end.fade + expf(sink - base);
    }
    end.inverse = 1 / end.total;
    return end;
}

static __device__ __noinline__ float divided(float x, float by)
{
    return x / by;
}

/* The quotient, to nearest: two steps from x times the inverse, each of which leaves less than half
 * of what is missing, if nothing on the way is too large or too small. (A quotient as the compiler
 * has it takes a screenful for each.) */
static __device__ float end_value(const row_end &end, float value)
{
    const float x = value * end.fade, size = fabsf(x);
    if (!(size > 0x1p-60f && size < 0x1p60f && end.total > 0x1p-30f && end.total < 0x1p30f))
        return end.total == 0 ? 0.0f : divided(x, end.total);
    float q = x * end.inverse;
    q = fmaf(fmaf(-end.total, q, x), end.inverse, q);
    return fmaf(fmaf(-end.total, q, x), end.inverse, q);
}

/* first: of the columns. */
template <int COLUMNS>
static __device__ void store_rows(const qn__cuda_attend_args &a, const wide_rows<COLUMNS> &r, int g,
                                  int first_token, int tokens, int first)
{
    const int shared = (int)a.shared, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i,
                  token = row / shared, h = g * shared + row % shared;
        if (token >= tokens)
            continue;
        const row_end end = end_of_row(a, r.sum[i], h);
        const int64_t at = h * a.y_stride[1] + (first_token + token) * a.y_stride[2] + first;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            const int64_t e = at + 8 * n + 2 * t;
            const float u = end_value(end, r.value[4 * n + 2 * i]),
                        v = end_value(end, r.value[4 * n + 2 * i + 1]);
            if (a.at[6])
                *(float2 *)((float *)a.at[6] + e) = make_float2(u, v);
            if (a.at[8])
                put_rounded_pair(a.at[8], e, u, v, a.turned);
        }
    }
}

template <int D, bool CAPPED>
static __device__ void multiply(const qn__cuda_attend_args &a, wide_room<D> &s, wide_barriers<D> &b)
{
    typedef wide_room<D> R;
    /* a shuffle tells that it is the same for a warp */
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP - 1, 0), rounds = rounds_of<D>(a),
              tile = R::TILES == 1 ? 0 : group, column = R::TILES == 1 ? group * R::COLUMNS : 0;
    ring_place at = {0, 0}, q_at = {0, 0};
    wide_work work;
    for (int round = 0; round < rounds; round++) {
        if (!find_work<D>(a, round, work))
            continue;
        const int tokens = tile ? work.rows[1] : work.rows[0];
        const bool first = tile == 0 || work.together;
        wide_rows<R::COLUMNS> r;
        page_list pages = work.pages[0];
        barrier_wait(&b.q_full[q_at.stage], q_at.phase);
        if (!first) {
            pass_pages<D>(b, pages, at);
            pages = work.pages[1];
        }
        if (tokens) {
            begin_rows(a, r, work, tile);
            multiply_pages<D, CAPPED>(a, s, b, r, pages, s.q[q_at.stage][tile],
                                      column / 64 * PART_BYTES, at);
        }
        if (first && R::TILES > 1)
            pass_pages<D>(b, work.pages[1], at);
        give_back(&b.q_free[q_at.stage]);
        q_at.next(R::QUERIES);
        if (tokens)
            store_rows(a, r, work.g, tile ? work.first[1] : work.first[0], tokens, column);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* CAPPED: scores have a soft cap. */
template <int D, bool CAPPED> static __device__ void attend_wide(const qn__cuda_attend_wide_args &w)
{
    typedef wide_room<D> R;
    extern __shared__ __align__(1024) char shared_room[];
    __shared__ wide_barriers<D> b;
    __shared__ query_rows rows;
    static_assert(sizeof(R) + 1024 <= QN__CUDA_ATTEND_WIDE_SHARED, "");
    R &s = *(R *)(shared_room + (1024 - shared_address(shared_room) % 1024) % 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < R::STAGES; i++) {
            barrier_begin(&b.keys_full[i], 1);
            barrier_begin(&b.keys_free[i], WARPS);
            barrier_begin(&b.values_full[i], 1);
            barrier_begin(&b.values_free[i], WARPS);
        }
        for (int i = 0; i < R::QUERIES; i++) {
            barrier_begin(&b.q_full[i], GROUP - 32);
            barrier_begin(&b.q_free[i], WARPS);
        }
        barrier_begin(&b.part, 1);
        barriers_begun();
        fetch_map(&w.keys);
        fetch_map(&w.values);
    }
    find_rows(w.a, rows);
    __syncthreads();
    wait_for_others();
    if (threadIdx.x < GROUP) {
        registers_fewer<56>();
        if (threadIdx.x < 32)
            bring_pages<D>(w, s, b);
        else
            bring_queries<D>(w.a, s, b, rows);
    } else {
        registers_more<224>();
        multiply<D, CAPPED>(w.a, s, b);
    }
}

extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    CACHE_KERNEL(attend_wide_64)(const __grid_constant__ qn__cuda_attend_wide_args w)
{
    attend_wide<64, false>(w);
}
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    CACHE_KERNEL(attend_wide_128)(const __grid_constant__ qn__cuda_attend_wide_args w)
{
    attend_wide<128, false>(w);
}
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    CACHE_KERNEL(attend_wide_256)(const __grid_constant__ qn__cuda_attend_wide_args w)
{
    attend_wide<256, false>(w);
}
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    CACHE_KERNEL(attend_wide_64_capped)(const __grid_constant__ qn__cuda_attend_wide_args w)
{
    attend_wide<64, true>(w);
}
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    CACHE_KERNEL(attend_wide_128_capped)(const __grid_constant__ qn__cuda_attend_wide_args w)
{
    attend_wide<128, true>(w);
}
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    CACHE_KERNEL(attend_wide_256_capped)(const __grid_constant__ qn__cuda_attend_wide_args w)
{
    attend_wide<256, true>(w);
}
