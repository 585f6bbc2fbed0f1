// SPDX-License-Identifier: Apache-2.0
// Checks and times the CUDA kernels of this folder; README.md says what each figure means.
//   bench [--json FILE]
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <algorithm>
#include "data.cuh"

enum { TOKENS = 4 }; // in one graph, as an engine enqueues several steps ahead

static int n_sms;
static cudaStream_t stream;
static double ceiling; // TB/s
static FILE *json;
static bool first_record = true, failed;

// A launch; with pdl, it may start before the one before it is complete.
template <class K, class A>
static void launch(K kernel, int grid, int block, size_t shared, bool pdl, A a, int cluster = 1)
{
    cudaLaunchAttribute attr[2] = {};
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = cluster;
    attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attr;
    config.numAttrs = 1 + pdl;
    CHECK(cudaLaunchKernelEx(&config, kernel, a));
}

struct timing {
    double median, min, max; // us of one replay
};

// Captures what work() launches, replays it once, calls check(), then times replays.
static timing replay(const std::function<void()> &work, const std::function<void()> &check, int n)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    check();
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    std::vector<float> us;
    for (int i = -3; i < n; i++) {
        float ms;
        CHECK(cudaEventRecord(start, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, start, end));
        if (i >= 0)
            us.push_back(ms * 1000);
    }
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    std::sort(us.begin(), us.end());
    return {us[us.size() / 2], us.front(), us.back()};
}

// One row of the table and one record of the JSON. bytes: weights read in `t`; per: stages in it.
static void report(const char *what, const char *variant, int rows, double bytes, timing t, int per,
                   double error)
{
    double rate = bytes / t.median / 1e6, share = ceiling ? rate / ceiling : 1;
    printf("%-22s %-22s %d %10.2f %6.3f %5.1f%% %9.1e\n", what, variant, rows, t.median / per, rate,
           100 * share, error);
    fflush(stdout);
    if (!(error < 1e-6))
        failed = true;
    fprintf(json,
            "%s  {\"what\": \"%s\", \"variant\": \"%s\", \"rows\": %d, \"us\": %.3f, "
            "\"us_min\": %.3f, \"us_max\": %.3f, \"tb_s\": %.4f, \"of_ceiling\": %.4f, "
            "\"nmse\": %.3g}",
            first_record ? "" : ",\n", what, variant, rows, t.median / per, t.min / per,
            t.max / per, rate, share, error);
    first_record = false;
}

// ---- the read ceiling: bulk copies alone --------------------------------------------------------

struct read_args {
    const char *data;
    size_t bytes; // of one block
};

__global__ void read_bulk(read_args a)
{
    constexpr int RING = 6, BYTES = 16384;
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t full[RING];
    if (threadIdx.x)
        return;
    for (int i = 0; i < RING; i++)
        bar_init(&full[i], 1);
    bar_init_done();
    const char *data = a.data + blockIdx.x * a.bytes;
    int n = a.bytes / BYTES;
    for (int i = 0; i < n + RING; i++) {
        int at = i % RING;
        if (i >= RING)
            bar_wait(&full[at], (i / RING + 1) & 1);
        if (i < n) {
            bar_expect(&full[at], BYTES);
            bulk_copy(shared + at * BYTES, data + (size_t)i * BYTES, BYTES, &full[at]);
        }
    }
}

static void measure_ceiling(const char *data, size_t bytes)
{
    size_t block = bytes / n_sms / 16384 * 16384;
    CHECK(cudaFuncSetAttribute(read_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, 6 * 16384));
    timing t = replay(
        [&] {
            launch(read_bulk, n_sms, 32, 6 * 16384, false, read_args{data, block});
        },
        [] {}, 20);
    ceiling = block * n_sms / t.median / 1e6;
    report("read ceiling", "bulk 16 KB, 96 KB an SM", 0, block * n_sms, t, 1, 0);
}

// ---- stages -------------------------------------------------------------------------------------

struct variant {
    const char *name;
    bool pdl;
    int ring, cap_early, cap;
};

// The best seen for stages of few chunks a block, which share SMs with their neighbours, and of
// many.
static const variant shared_sms = {"pdl, ring 8, cap 3/6", true, 8, 3, 6};
static const variant deep = {"pdl, ring 12, cap 3/6", true, 12, 3, 6};

// What a block needs beside the ring.
static size_t beside_ring(int k, int rows, int cluster)
{
    size_t inbox = cluster > 1 ? cluster * 2048 : 0;
    return (size_t)k / cluster * rows * 4 + PART_BYTES + inbox;
}

// As deep a ring as fits beside the activations; 0 where none does.
template <class W> static int ring_for(int want, int k, int rows, int cluster = 1)
{
    int room = ((int)MAX_SMEM - 1024 - (int)beside_ring(k, rows, cluster)) / chunk_bytes<W>;
    return room < STEP ? 0 : std::min(want, room);
}

template <class W, int B, int SINK, int C = 1> static void launch_stage(stage a, const variant &v)
{
    static bool ready;
    // No deeper than a block has chunks: small stages then share an SM with their neighbours.
    int grid = n_sms / C * C;
    if (C == 4)
        grid = std::min(grid, 128); // not every group of SMs holds a multiple of 4
    int chunks = (a.tiles + grid / C - 1) / (grid / C) * (a.k / C / chunk_k<W>);
    a.ring = std::min(ring_for<W>(v.ring, a.k, B, C), chunks);
    a.cap_early = std::min(v.cap_early, a.ring); // what is in flight must fit the ring
    a.cap = std::min(v.cap, a.ring);
    if (!ready)
        CHECK(cudaFuncSetAttribute(matvec<W, B, SINK, C>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, MAX_SMEM - 1024));
    ready = true;
    launch(matvec<W, B, SINK, C>, grid, THREADS,
           (size_t)a.ring * chunk_bytes<W> + beside_ring(a.k, B, C), v.pdl, a, C);
}

template <class T> static T *device_array(size_t n)
{
    T *p;
    CHECK(cudaMalloc(&p, n * sizeof(T)));
    CHECK(cudaMemset(p, 0xff, n * sizeof(T))); // NaN until written
    return p;
}

template <class W> static void pack(char *w, int n, int k, uint32_t seed, bool paired)
{
    launch_pack(W(), w, n, k, seed, paired, stream);
    CHECK(cudaGetLastError());
}

template <class W> static size_t packed_bytes(size_t n, size_t k)
{
    return n / TILE * (k / UNIT) * W::BYTES;
}

// ---- (a) one matrix, rotating copies, each stage depending on the one before
// ---------------------

template <class W, int B, int C = 1>
static void bench_matvec(char *pool, size_t pool_bytes, int n, int k, const char *of,
                         const std::vector<double> &x, std::vector<double> want, const variant &v)
{
    want.resize((size_t)B * n);
    if (k / C % W::K_STEP)
        return;
    if (!ring_for<W>(12, k, B, C)) {
        printf("%-22s rows %d: activations of K = %d do not fit\n", of, B, k);
        return;
    }
    size_t bytes = packed_bytes<W>(n, k);
    int copies =
        (int)std::min<size_t>(std::max<size_t>(((size_t)768 << 20) / bytes, 2), pool_bytes / bytes);
    for (int i = 0; i < copies; i++)
        pack<W>(pool + i * bytes, n, k, 7, false);
    std::vector<__nv_bfloat16> placed((size_t)B * k * 2);
    for (int b = 0; b < B; b++)
        for (int i = 0; i < k; i++) {
            float v = (float)x[(size_t)b * k + i];
            __nv_bfloat16 hi = __float2bfloat16(v);
            placed[x_place(i, b, 0, B)] = hi;
            placed[x_place(i, b, 1, B)] = __float2bfloat16(v - __bfloat162float(hi));
        }
    stage a = {};
    __nv_bfloat16 *x_dev = device_array<__nv_bfloat16>(placed.size());
    CHECK(cudaMemcpy(x_dev, placed.data(), placed.size() * 2, cudaMemcpyHostToDevice));
    a.x = x_dev;
    a.tiles = n / TILE;
    a.k = k;
    a.y = device_array<float>((size_t)B * n);
    double error = 0;
    timing t = replay(
        [&] {
            for (int i = 0; i < copies; i++) {
                a.w = pool + i * bytes;
                launch_stage<W, B, STORE, C>(a, v);
            }
        },
        [&] { error = nmse(want, a.y); }, 20);
    char name[64];
    int used = snprintf(name, sizeof name, "%dx%d", n, k);
    if (C > 1)
        snprintf(name + used, sizeof name - used, " cluster %d", C);
    report(name, of, B, (double)bytes * copies, t, copies, error);
    CHECK(cudaFree(x_dev));
    CHECK(cudaFree(a.y));
}

// ---- (b) the linear layers of a token
// -------------------------------------------------------------

struct model {
    const char *name;
    int layers, hidden, q, qkv, ffn, vocab;
};

struct embed_args {
    float *h;
    __nv_bfloat16 *x;
    const float *norm;
    float *sums;
};

// A token's start, in place of the embedding's row: h, its activations, its sums of squares.
__global__ void embed(embed_args a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    pdl_wait();
    pdl_trigger();
    float h = uniform(1, i), sum = h * h;
    a.h[i] = h;
    x_store(a.x, i, 0, 1, h * a.norm[i]);
    for (int m = 8; m; m >>= 1)
        sum += __shfl_xor_sync(~0u, sum, m);
    if (i % TILE == 0)
        a.sums[i / TILE] = sum;
}

__global__ void fill_norm(float *norm, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        norm[i] = 1 + 0.2f * uniform(2, i);
}

template <class W> struct token {
    model m;
    char *pool;
    float *h, *logits, *norm, *sums;
    __nv_bfloat16 *x_hidden, *x_q, *x_ffn;

    size_t matrix_bytes(int i) const // qkv, o, gate/up, down
    {
        size_t h = m.hidden;
        return i == 0   ? packed_bytes<W>(m.qkv, h)
               : i == 1 ? packed_bytes<W>(h, m.q)
               : i == 2 ? packed_bytes<W>(2 * m.ffn, h)
                        : packed_bytes<W>(h, m.ffn);
    }
    size_t layer_bytes() const
    {
        return matrix_bytes(0) + matrix_bytes(1) + matrix_bytes(2) + matrix_bytes(3);
    }
    size_t bytes(int layers) const
    {
        return layers * layer_bytes() + packed_bytes<W>(m.vocab, m.hidden);
    }
    static uint32_t seed(int layer, int i)
    {
        return 100 + 4 * layer + i;
    }
    void make(char *weights)
    {
        pool = weights;
        char *w = pool;
        for (int l = 0; l < m.layers; l++)
            for (int i = 0; i < 4; w += matrix_bytes(i++))
                pack<W>(w,
                        i == 0   ? m.qkv
                        : i == 2 ? 2 * m.ffn
                                 : m.hidden,
                        i == 1   ? m.q
                        : i == 3 ? m.ffn
                                 : m.hidden,
                        seed(l, i), i == 2);
        pack<W>(w, m.vocab, m.hidden, 99, false);
        h = device_array<float>(m.hidden);
        logits = device_array<float>(m.vocab);
        norm = device_array<float>(m.hidden);
        sums = device_array<float>(m.hidden / TILE);
        x_hidden = device_array<__nv_bfloat16>(m.hidden * 2);
        x_q = device_array<__nv_bfloat16>(m.q * 2);
        x_ffn = device_array<__nv_bfloat16>(m.ffn * 2);
        fill_norm<<<(m.hidden + 255) / 256, 256, 0, stream>>>(norm, m.hidden);
        CHECK(cudaStreamSynchronize(stream));
    }
    // parts: bit i for matrix i of a layer, bit 4 for the head.
    void enqueue(int layers, int parts, const variant &v)
    {
        launch(embed, m.hidden / 256, 256, 0, v.pdl, embed_args{h, x_hidden, norm, sums});
        const char *w = pool;
        stage qkv = {}, o = {}, up = {}, down = {}, head = {};
        qkv.x = up.x = head.x = x_hidden;
        qkv.k = up.k = head.k = m.hidden;
        qkv.sums = up.sums = head.sums = sums;
        qkv.tiles = m.qkv / TILE;
        o.x = qkv.x_out = x_q;
        qkv.x_rows = o.k = m.q;
        up.tiles = 2 * m.ffn / TILE;
        down.x = up.x_out = x_ffn;
        down.k = m.ffn;
        o.tiles = down.tiles = m.hidden / TILE;
        o.y = down.y = h;
        o.x_out = down.x_out = x_hidden;
        o.norm = down.norm = norm;
        o.sums_out = down.sums_out = sums;
        for (int l = 0; l < layers; l++) {
            qkv.w = w;
            o.w = qkv.w + matrix_bytes(0);
            up.w = o.w + matrix_bytes(1);
            down.w = up.w + matrix_bytes(2);
            w = down.w + matrix_bytes(3);
            if (parts & 1)
                launch_stage<W, 1, ACT>(qkv, v);
            if (parts & 2)
                launch_stage<W, 1, RESIDUAL>(o, v);
            if (parts & 4)
                launch_stage<W, 1, SILU>(up, v);
            if (parts & 8)
                launch_stage<W, 1, RESIDUAL>(down, v);
        }
        head.w = pool + m.layers * layer_bytes();
        head.tiles = m.vocab / TILE;
        head.y = logits;
        if (parts & 16)
            launch_stage<W, 1, STORE>(head, v);
    }
    std::vector<double> expected(int layers) const
    {
        std::vector<double> h(m.hidden), x(m.hidden), w(m.hidden);
        for (int i = 0; i < m.hidden; i++) {
            h[i] = uniform(1, i);
            w[i] = 1 + 0.2f * uniform(2, i);
        }
        auto normed = [&] {
            double sum = 0;
            for (double v : h)
                sum += v * v;
            for (int i = 0; i < m.hidden; i++)
                x[i] = h[i] * w[i] / sqrt(sum / m.hidden + 1e-5);
        };
        auto add = [&](const std::vector<double> &y) {
            for (int i = 0; i < m.hidden; i++)
                h[i] += y[i];
        };
        for (int l = 0; l < layers; l++) {
            normed();
            std::vector<double> q = reference<W>(seed(l, 0), m.q, m.hidden, 1, x);
            add(reference<W>(seed(l, 1), m.hidden, m.q, 1, q));
            normed();
            std::vector<double> g = reference<W>(seed(l, 2), 2 * m.ffn, m.hidden, 1, x), s(m.ffn);
            for (int i = 0; i < m.ffn; i++)
                s[i] = g[i] / (1 + exp(-g[i])) * g[m.ffn + i];
            add(reference<W>(seed(l, 3), m.hidden, m.ffn, 1, s));
        }
        normed();
        return reference<W>(99, m.vocab, m.hidden, 1, x);
    }
    void poison()
    {
        CHECK(cudaMemset(h, 0xff, m.hidden * 4));
        CHECK(cudaMemset(logits, 0xff, (size_t)m.vocab * 4));
        CHECK(cudaMemset(sums, 0xff, m.hidden / TILE * 4));
        CHECK(cudaMemset(x_hidden, 0xff, m.hidden * 4));
        CHECK(cudaMemset(x_q, 0xff, m.q * 4));
        CHECK(cudaMemset(x_ffn, 0xff, (size_t)m.ffn * 4));
    }
};

template <class W>
static void bench_token(token<W> &t, int check_layers, const std::vector<variant> &variants)
{
    std::vector<double> some = t.expected(check_layers);
    for (const variant &v : variants) {
        double error = 0;
        char name[64];
        snprintf(name, sizeof name, "%s, %d layers", t.m.name, check_layers);
        t.poison();
        timing us = replay([&] { t.enqueue(check_layers, 31, v); },
                           [&] { error = nmse(some, t.logits); }, 20);
        report(name, v.name, 1, t.bytes(check_layers), us, 1, error);
        us = replay(
            [&] {
                for (int i = 0; i < TOKENS; i++)
                    t.enqueue(t.m.layers, 31, v);
            },
            [] {}, 10);
        report(t.m.name, v.name, 1, t.bytes(t.m.layers) * TOKENS, us, TOKENS, error);
    }
    // Each kind of stage alone, chained over the layers' own weights: where a layer's time goes.
    static const char *kind[] = {"qkv", "o", "gate/up", "down", "head"};
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s %s alone", t.m.name, kind[i]);
        int n = i == 4 ? 1 : t.m.layers;
        timing us = replay([&] { t.enqueue(n, 1 << i, variants[0]); }, [] {}, 20);
        double bytes =
            i == 4 ? (double)packed_bytes<W>(t.m.vocab, t.m.hidden) : (double)n * t.matrix_bytes(i);
        report(name, variants[0].name, 1, bytes, us, n, 0);
    }
}

template <class W> static void matvecs(char *pool, size_t bytes)
{
    static const struct {
        const char *of;
        int n, k;
    } shapes[] = {
        {"1B qkv", 3072, 2048},    {"1B o", 2048, 2048},        {"1B gate/up", 16384, 2048},
        {"1B down", 2048, 8192},   {"1B head", 128256, 2048},   {"8B qkv", 6144, 4096},
        {"8B o", 4096, 4096},      {"8B gate/up", 28672, 4096}, {"8B down", 4096, 14336},
        {"8B head", 128256, 4096},
    };
    for (auto &s : shapes) {
        std::vector<double> x((size_t)8 * s.k);
        for (size_t i = 0; i < x.size(); i++)
            x[i] = uniform(3, i);
        std::vector<double> want = reference<W>(7, s.n, s.k, 8, x);
        const variant &v = s.k == 2048 ? shared_sms : deep;
        bench_matvec<W, 1>(pool, bytes, s.n, s.k, s.of, x, want, v);
        bench_matvec<W, 2>(pool, bytes, s.n, s.k, s.of, x, want, v);
        bench_matvec<W, 4>(pool, bytes, s.n, s.k, s.of, x, want, v);
        bench_matvec<W, 8>(pool, bytes, s.n, s.k, s.of, x, want, v);
        bench_matvec<W, 1, 2>(pool, bytes, s.n, s.k, s.of, x, want, v);
        bench_matvec<W, 4, 2>(pool, bytes, s.n, s.k, s.of, x, want, v);
        bench_matvec<W, 8, 2>(pool, bytes, s.n, s.k, s.of, x, want, v);
        bench_matvec<W, 4, 4>(pool, bytes, s.n, s.k, s.of, x, want, v);
        bench_matvec<W, 8, 4>(pool, bytes, s.n, s.k, s.of, x, want, v);
    }
}

int main(int argc, char **argv)
{
    const char *path = "/dev/null";
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--json"))
            path = argv[i + 1];
    json = fopen(path, "w");
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaStreamCreate(&stream));
    n_sms = prop.multiProcessorCount;
    size_t pool_bytes = (size_t)17 << 30;
    char *pool = device_array<char>(pool_bytes);
    if (!json)
        return perror(path), 1;
    fprintf(json, "{\"device\": \"%s\", \"sms\": %d, \"cuda\": %d, \"results\": [\n", prop.name,
            n_sms, CUDART_VERSION);
    printf("%s, %d SMs\n%-22s %-22s rows %7s %6s %6s %9s\n", prop.name, n_sms, "what", "variant",
           "us", "TB/s", "ceil.", "NMSE");

    pack<bf16_units>(pool, 1 << 20, 4096, 5, false);
    measure_ceiling(pool, (size_t)8 << 30);
    token<bf16_units> one = {{"1B token", 16, 2048, 2048, 3072, 8192, 128256}};
    one.make(pool);
    bench_token(one, 16,
                {shared_sms,
                 {"ring 8, no pdl", false, 8, 3, 6},
                 {"ring 8, uncapped", true, 8, 8, 8},
                 {"ring 8, cap 2/5", true, 8, 2, 5},
                 {"ring 8, cap 3/7", true, 8, 3, 7},
                 {"ring 6, cap 3/5", true, 6, 3, 5},
                 {"ring 7, cap 3/6", true, 7, 3, 6},
                 {"ring 9, cap 3/6", true, 9, 3, 6},
                 deep});
    token<bf16_units> eight = {{"8B token", 32, 4096, 4096, 6144, 14336, 128256}};
    eight.make(pool);
    bench_token(eight, 2,
                {deep,
                 {"ring 12, no pdl", false, 12, 3, 6},
                 {"ring 12, uncapped", true, 12, 12, 12},
                 {"ring 12, cap 2/5", true, 12, 2, 5},
                 shared_sms});
    printf("4 bits, groups of 64\n");
    token<int4_units> one4 = {{"1B 4-bit", 16, 2048, 2048, 3072, 8192, 128256}};
    one4.make(pool);
    bench_token(one4, 16,
                {shared_sms,
                 {"ring 8, no pdl", false, 8, 3, 6},
                 {"ring 8, uncapped", true, 8, 8, 8},
                 {"ring 4, cap 2/4", true, 4, 2, 4},
                 {"ring 6, cap 3/5", true, 6, 3, 5},
                 deep});
    token<int4_units> eight4 = {{"8B 4-bit", 32, 4096, 4096, 6144, 14336, 128256}};
    eight4.make(pool);
    bench_token(eight4, 2,
                {deep,
                 shared_sms,
                 {"ring 5, cap 3/5", true, 5, 3, 5},
                 {"ring 6, cap 3/6", true, 6, 3, 6},
                 {"ring 10, cap 4/8", true, 10, 4, 8}});
    token<int4_chunks<2>> one42 = {{"1B 4-bit, 9 KB", 16, 2048, 2048, 3072, 8192, 128256}};
    one42.make(pool);
    bench_token(one42, 16,
                {{"ring 8, cap 4/8", true, 8, 4, 8},
                 {"ring 12, cap 6/12", true, 12, 6, 12},
                 {"ring 12, cap 4/10", true, 12, 4, 10}});
    token<int4_chunks<2>> eight42 = {{"8B 4-bit, 9 KB", 32, 4096, 4096, 6144, 14336, 128256}};
    eight42.make(pool);
    bench_token(eight42, 2,
                {{"ring 8, cap 4/8", true, 8, 4, 8},
                 {"ring 12, cap 6/12", true, 12, 6, 12},
                 {"ring 10, cap 6/10", true, 10, 6, 10}});
    matvecs<int4_units>(pool, (size_t)4 << 30);
    printf("bf16\n");
    matvecs<bf16_units>(pool, (size_t)4 << 30);
    fprintf(json, "\n]}\n");
    if (fclose(json))
        return perror(path), 1;
    if (failed)
        printf("FAILED: an NMSE is over 1e-6\n");
    return failed;
}
