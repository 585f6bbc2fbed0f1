/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of plain matrices (matmul.cu, matmul_few.cu) on a processor: every kernel, with either
 * operand along or across memory, in vectors or not, in batches, at every kind of edge, has the
 * bits of sums in the order that matmul.cuh promises.
 */
#include "lanes.h"

#define copy_part  device_copy_part
#define sync_group device_sync_group
#include "cuda/matmul.cuh"
#undef copy_part
#undef sync_group

static std::barrier<> *block_meets;
static std::barrier<> *group_meets[8];

void __syncthreads()
{
    block_meets->arrive_and_wait();
}
void __syncwarp()
{
    test_warps[threadIdx.x / LANES].meets.arrive_and_wait();
}
template <int N, int GROUPS> static void sync_group(int group)
{
    if (GROUPS == 1)
        __syncthreads();
    else if (N == LANES)
        __syncwarp();
    else
        group_meets[group]->arrive_and_wait();
}

/* A copy is done at once; what it must not touch is seen by its bounds. */
template <int SIZE> static void copy_part(void *to, const void *from, int there)
{
    if ((uintptr_t)to % SIZE || ((uintptr_t)from % SIZE && there))
        abort();
    memset(to, 0, SIZE);
    memcpy(to, from, (size_t)there);
}
#define copies_end() ((void)0)
#define copies_wait  copies_are_done
template <int> static void copies_are_done()
{
}

#define __launch_bounds__(...)
#define __grid_constant__
#include "cuda/matmul.cu"
#include "cuda/matmul_few.cu"

enum { MOST_SHARED = 227 << 10, ROOM = 4096 /* elements around a result */ };
alignas(16) uint4 tiles_room[MOST_SHARED / 16], few_room[MOST_SHARED / 16];

static int n_failed, n_checks;

/* A block's threads, all at once, for one block after the other. */
template <typename F> static void run_blocks(int blocks, int threads, int group, const F &kernel)
{
    blockDim = make_uint3((unsigned)threads, 1, 1);
    gridDim = make_uint3((unsigned)blocks, 1, 1);
    block_meets = new std::barrier<>(threads);
    for (int g = 0; g < threads / group; g++)
        group_meets[g] = new std::barrier<>(group);
    for (int b = 0; b < blocks; b++) {
        blockIdx = make_uint3((unsigned)b, 0, 0);
        run_threads(threads, 0, [&](int) { kernel(); });
    }
    for (int g = 0; g < threads / group; g++)
        delete group_meets[g];
    delete block_meets;
}

static double some()
{
    return (double)rand() / RAND_MAX * 2 - 1;
}
static void set(float *to, double v)
{
    *to = (float)v;
}
static void set(double *to, double v)
{
    *to = v;
}
static void set(uint16_t *to, double v)
{
    *to = bf16_of_f32((float)v);
}
static void set(__half *to, double v)
{
    *to = __float2half((float)v);
}

/* How an operand lies: its rows (columns of b) and k, elements from one to the next. */
struct layout {
    int64_t apart, step, batch, size;
    bool along, vectors;
};

/* 0, 1: along k, in vectors or not; 2, 3: across; 4: neither has neighbours. */
static layout lay(int how, int64_t rows, int64_t k, int64_t batch, bool shared)
{
    layout l = {};
    const int64_t pad = how % 2 ? 3 : 16;
    l.along = how < 2 || how == 4;
    l.vectors = how == 0 || how == 2;
    const int64_t inner = (how == 4 ? 2 : 1), length = l.along ? k : rows,
                  others = l.along ? rows : k;
    const int64_t outer = l.vectors ? (length + 7) / 8 * 8 + pad : length * inner + pad;
    l.apart = l.along ? outer : inner;
    l.step = l.along ? inner : outer;
    l.batch = shared ? 0 : others * outer;
    l.size = others * outer * (shared ? 1 : batch);
    return l;
}

template <typename T, typename W> struct product {
    std::vector<T> a, y, want;
    std::vector<W> b;
    qn__cuda_product_args args = {};

    product(int64_t batch, int64_t m, int64_t n, int64_t k, int how_a, int how_b, int rounded)
    {
        const layout la = lay(how_a, m, k, batch, false), lb = lay(how_b, n, k, batch, true);
        a.resize((size_t)la.size + 2);
        b.resize((size_t)lb.size + 2);
        for (T &v : a)
            set(&v, some());
        if (rounded == QN__CUDA_TO_F16)
            set(&a[0], -70000); /* the largest */
        for (W &v : b)
            set(&v, some());
        y.assign((size_t)(batch * m * n + 2 * ROOM), (T)7);
        want = y;
        args.batch = batch, args.m = m, args.n = n, args.k = k;
        args.a.ndim = args.b.ndim = 1;
        args.a.shape[0] = args.b.shape[0] = batch;
        args.a.stride[0] = la.batch, args.b.stride[0] = lb.batch;
        args.a_row = la.apart, args.a_column = la.step;
        args.b_column = lb.apart, args.b_row = lb.step;
        args.a_along = la.along, args.a_vectors = la.vectors;
        args.b_along = lb.along, args.b_vectors = lb.vectors;
        args.y_row = n, args.y_column = 1, args.y_vectors = n % 4 == 0;
        args.rounded = rounded;
        args.at[0] = a.data(), args.at[1] = b.data(), args.at[2] = y.data() + ROOM;
        for (int64_t i = 0; i < batch * m * n; i++) {
            const T *x = a.data() + i / n / m * la.batch + i / n % m * la.apart;
            const W *w = b.data() + i / n / m * lb.batch + i % n * lb.apart;
            T total = 0;
            for (int64_t first = 0; first < k; first += SPAN) {
                T sum = 0;
                for (int64_t c = first; c < std::min(first + SPAN, k); c++) {
                    T v = x[c * la.step];
                    if (rounded == QN__CUDA_TO_F16)
                        v = (T)__half2float(
                            __float2half((float)std::clamp(v, (T)-65504, (T)65504)));
                    else if (rounded)
                        v = f32_of_bf16(bf16_of_f32((float)v));
                    sum = std::fma(v, (T)value_of(w[c * lb.step]), sum);
                }
                total = total + sum;
            }
            want[(size_t)i + ROOM] = total;
        }
    }

    void check(const char *name, int how_a, int how_b)
    {
        size_t bad = 0;
        for (size_t i = 0; i < y.size(); i++)
            bad += memcmp(&y[i], &want[i], sizeof(T)) != 0;
        n_checks++;
        if (!bad)
            return;
        n_failed++;
        printf("FAILED  %s, %d times %lld x %lld x %lld, a %d, b %d: %zu others\n", name,
               (int)args.batch, (long long)args.m, (long long)args.n, (long long)args.k, how_a,
               how_b, bad);
    }
};

struct shape {
    int64_t batch, m, n, k;
};

template <typename T, typename W, typename TILES>
static void check_tiles(const char *name, const std::vector<shape> &shapes, int rounded = 0)
{
    for (const shape &s : shapes)
        for (int how_a = 0; how_a < 5; how_a++)
            for (int how_b = how_a % 2; how_b < 5; how_b += 2) {
                product<T, W> p(s.batch, s.m, s.n, s.k, how_a, how_b, rounded);
                run_blocks(2, THREADS, TILES::N, [&] { TILES::run(p.args); });
                p.check(name, how_a, how_b);
            }
}

template <typename T, typename W, int ROWS, bool ALONG>
static void check_few(const char *name, int rows)
{
    typedef few<T, W, ROWS, ROWS == 1 && ALONG ? 16 : 32,
                ROWS == 1 || (ALONG && sizeof(T) == 4 && sizeof(W) == 4) ? 128 : 64, ALONG>
        kind;
    static const shape shapes[] = {{1, 0, 70, 300}, {3, 0, 37, 17}, {1, 0, 20, 1100}};
    for (const shape &s : shapes)
        for (int how_a = 0; how_a < 5; how_a++)
            for (int how_b = 0; how_b < 5; how_b++) {
                product<T, W> p(s.batch, rows, s.n, s.k, how_a, how_b, 0);
                if ((p.args.b_along != 0) != ALONG || (sizeof(W) == 2 && !p.args.b_vectors))
                    continue;
                p.args.a_vectors = p.args.a_vectors && p.args.a_along;
                run_blocks(2, how_a % 2 ? 128 : 256, 32,
                           [&] { kind(p.args, (char *)few_room).run(); });
                p.check(name, how_a, how_b);
            }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const bool all = argc < 2;
    auto wanted = [&](const char *name) { return all || !strcmp(argv[1], name); };
    /* What is no whole tile, span or piece; less than one; batches. */
    const std::vector<shape> large = {{1, 130, 133, 150}, {1, 128, 128, 272}},
                             small = {{1, 35, 68, 700}, {2, 9, 33, 40}};
    if (wanted("128")) {
        check_tiles<float, float, tiles<float, float, 128, 128, 8, 8, 1, 16>>("128 f32", large);
        check_tiles<float, __half, tiles<float, __half, 128, 128, 8, 8, 1, 16>>("128 f16",
                                                                                {large[0]});
        check_tiles<float, uint16_t, tiles<float, uint16_t, 128, 128, 8, 8, 1, 16>>(
            "128 bf16", {large[0]}, QN__CUDA_TO_BF16);
        check_tiles<float, __half, tiles<float, __half, 128, 128, 8, 8, 1, 16>>(
            "128 f16, a rounded", {large[0]}, QN__CUDA_TO_F16);
        check_tiles<double, double, tiles<double, double, 64, 64, 4, 4, 1, 16>>("64 f64",
                                                                                {large[0]});
    }
    if (wanted("small")) {
        check_tiles<float, float, tiles<float, float, 64, 64, 8, 8, 4, 8>>("64 f32", small);
        check_tiles<float, __half, tiles<float, __half, 64, 64, 8, 8, 4, 8>>("64 f16", {small[0]});
        check_tiles<float, float, tiles<float, float, 32, 32, 4, 8, 8, 16>>("32 f32", small);
        check_tiles<float, uint16_t, tiles<float, uint16_t, 32, 32, 4, 8, 8, 16>>("32 bf16",
                                                                                  {small[0]});
        check_tiles<double, double, tiles<double, double, 32, 32, 4, 4, 4, 16>>("32 f64",
                                                                                {small[0]});
    }
    if (wanted("few")) {
        check_few<float, float, 1, true>("few 1 f32", 1);
        check_few<float, float, 8, true>("few 8 f32", 5);
        check_few<float, __half, 1, true>("few 1 f16", 1);
        check_few<float, __half, 8, true>("few 8 f16", 8);
        check_few<double, double, 1, true>("few 1 f64", 1);
        check_few<double, double, 8, true>("few 8 f64", 3);
        check_few<float, float, 1, false>("few 1 f32 across", 1);
        check_few<float, float, 8, false>("few 8 f32 across", 5);
        check_few<float, __half, 1, false>("few 1 f16 across", 1);
        check_few<float, __half, 8, false>("few 8 f16 across", 8);
        check_few<double, double, 1, false>("few 1 f64 across", 1);
        check_few<double, double, 8, false>("few 8 f64 across", 3);
    }
    printf("%d checks, %d failed\n", n_checks, n_failed);
    return n_failed != 0;
}
