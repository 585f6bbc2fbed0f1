/* SPDX-License-Identifier: Apache-2.0
 *
 * What attention of one token does to its row before it multiplies (attend_step.cuh), on a
 * processor: queries normed, turned and laid out for products, key and value in the block and in
 * the cache, with the bits of a norm and a rope one after the other. And how a warp finds the sum
 * of a row's squares (norm.cuh), with the bits of a block.
 */
#include "lanes.h"

#include "cuda/attend_step.cuh"

static int n_failed;

static float some()
{
    return (float)rand() / (float)RAND_MAX * 2 - 1;
}
static std::vector<float> some_floats(size_t n)
{
    std::vector<float> v(n);
    for (float &x : v)
        x = some();
    return v;
}
static uint16_t half_of(float v)
{
    return (uint16_t)pair_of(v, 0);
}

/* The sum of a row's squares as a block's threads add them up: quad i is thread i's, lanes of a warp
 * meet those half of it apart, then those beside them, and so do warps. */
static float sum_of_block(const float *x, int n)
{
    enum { WARPS = THREADS / 32 };
    static const int order[] = {16, 1, 2, 4, 8};
    float warp[WARPS];
    for (int w = 0; w < WARPS; w++) {
        float sum[LANES] = {}, next[LANES];
        for (int lane = 0; lane < LANES; lane++)
            for (int quad = w * LANES + lane; quad < n / 4; quad += THREADS) {
                const float *v = x + 4 * quad;
                sum[lane] += (v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]);
            }
        for (int m : order) {
            for (int lane = 0; lane < LANES; lane++)
                next[lane] = sum[lane] + sum[lane ^ m];
            memcpy(sum, next, sizeof sum);
        }
        warp[w] = sum[0];
    }
    for (int m = 1; m < WARPS; m *= 2)
        for (int w = 0; w < WARPS; w += 2 * m)
            warp[w] += warp[w + m];
    return warp[0];
}

static void norm_head(const float *x, const float *weight, int d, float eps, float *y)
{
    const float scale = 1.0f / sqrtf(sum_of_block(x, d) / (float)d + eps);
    for (int i = 0; i < d; i++)
        y[i] = x[i] * scale * weight[i];
}

static void turn_head(const float *x, const float *frequency, int position, int d, float *y)
{
    for (int i = 0; i < d / 2; i++) {
        const float angle = (float)position * frequency[i], s = sinf(angle), c = cosf(angle);
        y[i] = x[i] * c - x[i + d / 2] * s;
        y[i + d / 2] = x[i + d / 2] * c + x[i] * s;
    }
}

struct row_case {
    int threads, first, rows;
    bool norms;
};

template <int D> static void test_row(const row_case &c)
{
    enum { HEADS = 2, PAGES = 4, POSITION = 777, SLOT = 2 * PAGE + 37, HEAD = D * PAGE };
    const float eps = 1e-6f;
    std::vector<float> q = some_floats((size_t)HEADS * c.rows * D), k = some_floats(HEADS * D),
                       v = some_floats(HEADS * D), q_norm = some_floats(D), k_norm = some_floats(D),
                       frequency(D / 2);
    std::vector<uint16_t> keys(PAGES * HEADS * HEAD), values(PAGES * HEADS * HEAD);
    int32_t offset = POSITION;
    for (int i = 0; i < D / 2; i++)
        frequency[i] = powf(10000.0f, -2.0f * (float)i / D);
    qn__cuda_attend_turn_args t = {};
    t.a.at[QN__CUDA_TURN_QUERIES] = q.data();
    t.a.at[QN__CUDA_TURN_KEYS] = k.data();
    t.a.at[QN__CUDA_TURN_VALUES] = v.data();
    t.a.at[QN__CUDA_TURN_OFFSET] = &offset;
    t.a.at[QN__CUDA_TURN_FREQUENCY] = frequency.data();
    t.a.at[QN__CUDA_TURN_QUERY_NORM] = c.norms ? q_norm.data() : NULL;
    t.a.at[QN__CUDA_TURN_KEY_NORM] = c.norms ? k_norm.data() : NULL;
    t.a.at[1] = keys.data();
    t.a.at[2] = values.data();
    t.a.shared = c.rows;
    t.a.k_head = t.a.v_head = HEAD;
    t.a.k_page = t.a.v_page = HEADS * HEAD;
    t.query_head = t.key_head = t.value_head = D;
    t.norm_eps = eps;
    int differ = 0;
    for (int head = 0; head < HEADS; head++) {
        static uint2 shared_q[D / 16][32];
        static uint16_t key[D], value[D];
        float normed[D], turned[D];
        token_step step = {};
        step.slot = SLOT;
        memset(shared_q, 0xff, sizeof shared_q);
        run_threads(c.threads, c.first, [&](int i) {
            if (c.threads == 256)
                step.share_row<D, 256>(t, shared_q, key, value, i, head);
            else
                step.share_row<D, 320>(t, shared_q, key, value, i, head);
        });
        auto turn = [&](const float *x, const float *weight) {
            if (c.norms)
                norm_head(x, weight, D, eps, normed);
            else
                memcpy(normed, x, sizeof normed);
            turn_head(normed, frequency.data(), offset, D, turned);
        };
        for (int row = 0; row < ROWS; row++) {
            if (row < c.rows)
                turn(&q[(size_t)(head * c.rows + row) * D], q_norm.data());
            for (int i = 0; i < D; i += 2)
                differ += *query_place<D>(shared_q, row, i) !=
                          (row < c.rows ? pair_of(turned[i], turned[i + 1]) : 0);
        }
        turn(&k[head * D], k_norm.data());
        const size_t page = (size_t)(SLOT / PAGE * HEADS + head) * HEAD;
        for (int i = 0; i < D; i++) {
            const uint16_t of_key = half_of(turned[i]), of_value = half_of(v[head * D + i]);
            differ += key[i] != of_key || value[i] != of_value;
            differ += keys[page + (size_t)key_place(D, SLOT % PAGE, i)] != of_key;
            differ += values[page + SLOT % PAGE * D + i] != of_value;
        }
    }
    printf("heads of %d, %d of a key head, %d threads%s: %d differ\n", D, c.rows, c.threads,
           c.norms ? ", normed" : "", differ);
    n_failed += differ > 0;
}

/* Of several rows, since another order has the same bits now and then. */
static void test_sum(int n)
{
    int differ = 0;
    for (int row = 0; row < 8; row++) {
        const std::vector<float> x = some_floats(n);
        std::vector<float> quads(QN__CUDA_MOST_SQUARED / 4, NAN);
        for (int i = 0; i < n / 4; i++)
            quads[i] = quad_sum(((const float4 *)x.data())[i]);
        float found[LANES];
        run_threads(LANES, 0, [&](int i) {
            const squares_of_row row_of(n, i);
            found[i] = row_of.sum((const float4 *)quads.data() + row_of.first);
        });
        for (int i = 0; i < LANES; i++)
            differ += found[i] != sum_of_block(x.data(), n);
    }
    printf("sum of squares of %d columns: %d differ\n", n, differ);
    n_failed += differ > 0;
}

int main()
{
    for (int n : {128, 384, 640, 896, 1024, 1152, 2048, 2560, 3968, 4096})
        test_sum(n);
    for (int rows = 1; rows <= ROWS; rows++)
        for (int norms = 0; norms < 2; norms++) {
            test_row<128>({256, 0, rows, norms != 0});
            test_row<128>({320, 32, rows, norms != 0}); /* attend_far.cu's */
            test_row<256>({256, 0, rows, norms != 0});
        }
    test_row<64>({256, 0, 8, false});
    test_row<64>({320, 32, 3, false});
    printf("%d failed\n", n_failed);
    return n_failed ? 1 : 0;
}
