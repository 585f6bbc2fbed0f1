/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products, linear layers packed and not, attention plain and over a cache: against loops in
 * double and against each other.
 */
#include "ops/ops_test.h"

#include "core/scope.h"
#include "ops/ops.h"

/* ---- matmul
 * --------------------------------------------------------------------------------------------------
 */

typedef struct product {
    int na, nb, ny;
    int64_t a[4], b[4], y[4];
} product;

static const product products[] = {
    {2, 2, 2, {3, 5}, {5, 7}, {3, 7}},
    {2, 2, 2, {1, 1}, {1, 1}, {1, 1}},
    {2, 2, 2, {67, 129}, {129, 33}, {67, 33}},
    {2, 2, 2, {4, 0}, {0, 3}, {4, 3}},
    {2, 2, 2, {0, 4}, {4, 3}, {0, 3}},
    {1, 2, 1, {5}, {5, 7}, {7}},
    {2, 1, 1, {3, 5}, {5}, {3}},
    {1, 1, 0, {5}, {5}, {0}},
    {4, 3, 4, {2, 3, 4, 5}, {3, 5, 6}, {2, 3, 4, 6}},
    {4, 4, 4, {2, 1, 4, 5}, {1, 3, 5, 2}, {2, 3, 4, 2}},
    {3, 2, 3, {3, 17, 64}, {64, 31}, {3, 17, 31}},
    /* columns cut; B laid out, for one batch, for all, and not where each has its own */
    {2, 2, 2, {5, 140}, {140, 200}, {5, 200}},
    {3, 2, 3, {3, 40, 70}, {70, 100}, {3, 40, 100}},
    {3, 3, 3, {2, 70, 33}, {1, 33, 50}, {2, 70, 50}},
    {3, 3, 3, {2, 70, 33}, {2, 33, 50}, {2, 70, 50}},
};
enum { N_PRODUCTS = sizeof products / sizeof *products };

/* The sizes as matrices: a missing axis is 1. */
static void want_product(const product *p, const host *a, const host *b, double *y)
{
    int64_t m = p->na == 1 ? 1 : p->a[p->na - 2], k = p->a[p->na - 1];
    int64_t n = p->nb == 1 ? 1 : p->b[p->nb - 1];
    int batch_axes = p->ny > 2 ? p->ny - 2 : 0;
    int64_t batches = 1;
    for (int i = 0; i < batch_axes; i++)
        batches *= p->y[i];
    for (int64_t t = 0; t < batches; t++) {
        int64_t left = t, at_a = 0, at_b = 0, step_a = m * k, step_b = k * n;
        for (int i = batch_axes - 1; i >= 0; i--) {
            int64_t index = left % p->y[i];
            left /= p->y[i];
            int da = i - (p->ny - p->na), db = i - (p->ny - p->nb);
            if (da >= 0) {
                at_a += p->a[da] == 1 ? 0 : index * step_a;
                step_a *= p->a[da];
            }
            if (db >= 0) {
                at_b += p->b[db] == 1 ? 0 : index * step_b;
                step_b *= p->b[db];
            }
        }
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += a->v[at_a + i * k + l] * b->v[at_b + l * n + j];
                y[(t * m + i) * n + j] = sum;
            }
    }
}

static void check_matmul(const rig *rigs, int n_rigs, const product *p, qn_dtype t)
{
    uint64_t seed = 2;
    bool real = is_float(t);
    host a = random_host(t, p->na, p->a, real ? 1 : 9, real ? 0 : is_signed(t) ? 0 : 9, &seed);
    host b = random_host(t, p->nb, p->b, real ? 1 : 9, real ? 0 : is_signed(t) ? 0 : 9, &seed);
    host y = new_host(real ? t : QN_F32, p->ny, p->y);
    want_product(p, &a, &b, y.v);
    for (size_t i = 0; i < y.n; i++)
        y.v[i] = round_to(y.v[i], y.dtype);
    double tolerance = t == QN_F64 ? 1e-14 : real ? 1e-5 : 0; /* sums of whole numbers are exact */
    for (int r = 0; r < n_rigs; r++) {
        static same_bits same[1];
        if (rigs[r].threads == 1) {
            free(same->first);
            same->first = NULL;
        }
        for (int l = 0; l < N_LAYOUTS && uses_threads(&rigs[r], y.n * 8); l++) {
            char text[100];
            snprintf(text, sizeof text, "matmul %d of %s, %s, %d threads, layout %d",
                     (int)(p - products), qn_dtype_name(t), rigs[r].tier, rigs[r].threads, l);
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *c = qn_matmul(s, put(s, &a, (layout)l),
                                    put(s, &b, (layout)((l ^ (l >> 1)) % N_LAYOUTS)));
            void *raw = get(s, c, y.dtype, p->ny, p->y, text);
            check_values(raw, y.dtype, y.v, y.n, qn_dtype_size(y.dtype) == 2 ? 1.01 : 0, tolerance,
                         text);
            check_same(same, raw, y.dtype, y.n, text);
            qn_scope_end(s);
        }
        if (r + 1 == n_rigs) {
            free(same->first);
            same->first = NULL;
        }
    }
    free(a.v);
    free(b.v);
    free(y.v);
}

static void test_matmul(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    static const qn_dtype types[] = {QN_F32, QN_F64, QN_BF16, QN_F16, QN_I32, QN_U8};
    for (int p = 0; p < N_PRODUCTS; p++)
        for (int t = 0; t < 6; t++)
            check_matmul(rigs, n, &products[p], types[t]);
    close_rigs(rigs, n);
}

/* ---- linear
 * ----------------------------------------------------------------------------------------------------
 */

/* With a weight in bf16 the products see x rounded to it. */
static void check_linear(const rig *rigs, int n_rigs, int64_t m, int64_t k, int64_t n, qn_dtype wt,
                         bool packed, bool bias)
{
    uint64_t seed = 4;
    bool wide = wt == QN_F64;
    qn_dtype t = wide ? QN_F64 : QN_F32;
    host x = random_host(t, 3, (const int64_t[]){1, m, k}, 1, 0, &seed);
    host w = random_host(wt, 2, (const int64_t[]){n, k}, 1, 0, &seed);
    host b = random_host(t, 1, &n, 1, 0, &seed);
    host y = new_host(t, 3, (const int64_t[]){1, m, n});
    bool halves = wt == QN_F16 && rigs[0].device->ops->halves; /* all are of one device */
    qn_dtype seen = wt == QN_BF16 || halves ? wt : QN_F32;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = bias ? b.v[j] : 0;
            for (int64_t l = 0; l < k; l++)
                sum += (wide ? x.v[i * k + l] : round_to(x.v[i * k + l], seen)) * w.v[j * k + l];
            y.v[i * n + j] = sum;
        }
    for (int r = 0; r < n_rigs; r++) {
        static same_bits same[1];
        if (rigs[r].threads == 1) {
            free(same->first);
            same->first = NULL;
        }
        for (int l = 0; l < N_LAYOUTS && uses_threads(&rigs[r], y.n); l++) {
            char text[120];
            snprintf(text, sizeof text, "linear %d x %d x %d, %s%s, %s, %d threads, layout %d",
                     (int)m, (int)k, (int)n, packed ? "packed " : "", qn_dtype_name(wt),
                     rigs[r].tier, rigs[r].threads, l);
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *weight = put(s, &w, (layout)l);
            qn_array *kept = packed ? qn_pack(s, weight) : NULL;
            qn_array *c = qn_linear(s, put(s, &x, (layout)l), kept ? kept : weight,
                                    bias ? put(s, &b, (layout)l) : NULL);
            void *raw = get(s, c, t, 3, y.shape, text);
            check_values(raw, t, y.v, y.n, 0, wide ? 1e-13 : 1e-6 * sqrt((double)k + 4), text);
            /* elsewhere what does not lie side by side has kernels of its own */
            if (l == 0 || !getenv("QUERN_TEST_DEVICE"))
                check_same(same, raw, t, y.n, text);
            else
                free(raw);
            if (kept) { /* rows come back as they were packed; a device may hold f16 as f32 */
                int32_t ids[] = {(int32_t)n - 1, 0};
                qn_dtype held = qn_array_dtype(kept);
                assert_true(held == wt || (held == QN_F32 && wt == QN_F16));
                void *rows = get(s, qn_take(s, kept, qn_from_i32(s, ids, 2), 0), held, 2,
                                 (const int64_t[]){2, k}, text);
                check_values(rows, held, w.v + (n - 1) * k, (size_t)k, 0, 0, text);
                free(rows);
            }
            qn_release(kept);
            qn_scope_end(s);
        }
        if (r + 1 == n_rigs) {
            free(same->first);
            same->first = NULL;
        }
    }
    free(x.v);
    free(w.v);
    free(b.v);
    free(y.v);
}

static void test_linear(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    static const int64_t sizes[][3] = {
        {1, 1, 1}, {1, 64, 48}, {3, 33, 17}, {9, 5, 70}, {40, 127, 131}};
    for (int k = 0; k < 5; k++)
        for (int bias = 0; bias < 2; bias++) {
            static const qn_dtype plain[] = {QN_F32, QN_BF16, QN_F16, QN_F64};
            for (int t = 0; t < 4; t++)
                check_linear(rigs, n, sizes[k][0], sizes[k][1], sizes[k][2], plain[t], false, bias);
            for (int t = 0; t < 3; t++)
                check_linear(rigs, n, sizes[k][0], sizes[k][1], sizes[k][2], plain[t], true, bias);
        }
    close_rigs(rigs, n);
}

/* A row's result does not depend on how many rows are computed with it. */
static void test_linear_rows(void **state)
{
    (void)state;
    enum { M = 700, K = 1000, N = 90 };
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int t = 0; t < 2; t++)
        for (int r = 0; r < n; r++) {
            uint64_t seed = 9;
            qn_dtype type = t ? QN_BF16 : QN_F32;
            host x = random_host(QN_F32, 2, (const int64_t[]){M, K}, 1, 0, &seed);
            host w = random_host(type, 2, (const int64_t[]){N, K}, 1, 0, &seed);
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *kept = qn_pack(s, put(s, &w, PLAIN)), *a = put(s, &x, PLAIN);
            float *all =
                get(s, qn_linear(s, a, kept, NULL), QN_F32, 2, (const int64_t[]){M, N}, "all");
            for (int64_t first = 0, m = 1; first + m <= M; first += m, m = 2 * m + 1) {
                int64_t shape[] = {m, N};
                float *some =
                    get(s, qn_linear(s, qn_slice(s, a, 0, first, first + m, 1), kept, NULL), QN_F32,
                        2, shape, "some");
                assert_memory_equal(some, all + first * N, (size_t)m * N * sizeof *some);
                free(some);
            }
            free(all);
            qn_release(kept);
            qn_scope_end(s);
            free(x.v);
            free(w.v);
        }
    close_rigs(rigs, n);
}

/* Layers that stand side by side in a plan give what each gives alone, whether they read the same
 * rows, other rows of the same array, or another array. */
static void test_linear_side_by_side(void **state)
{
    (void)state;
    enum { M = 300, K = 72, N = 90 };
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++) {
        uint64_t seed = 11;
        host x[2], w = random_host(QN_BF16, 2, (const int64_t[]){N, K}, 1, 0, &seed);
        for (int i = 0; i < 2; i++)
            x[i] = random_host(QN_F32, 2, (const int64_t[]){M + 1, K}, 1, 0, &seed);
        qn_scope *s = qn_scope_begin(rigs[r].device);
        qn_array *kept = qn_pack(s, put(s, &w, PLAIN)), *a = put(s, &x[0], PLAIN),
                 *b = put(s, &x[1], PLAIN);
        qn_array *in[] = {qn_slice(s, a, 0, 0, M, 1), qn_slice(s, a, 0, 0, M, 1),
                          qn_slice(s, a, 0, 1, M + 1, 1), qn_slice(s, b, 0, 1, M + 1, 1)},
                 *out[4];
        for (int i = 0; i < 4; i++)
            out[i] = qn_linear(s, in[i], kept, NULL);
        float *all =
            get(s, qn_reshape(s, qn_concatenate(s, out, 4, 0), 3, (const int64_t[]){4, M, N}),
                QN_F32, 3, (const int64_t[]){4, M, N}, "all");
        for (int i = 0; i < 4; i++) {
            float *one =
                get(s, qn_linear(s, in[i], kept, NULL), QN_F32, 2, (const int64_t[]){M, N}, "one");
            assert_memory_equal(one, all + i * M * N, M * N * sizeof *one);
            free(one);
        }
        free(all);
        qn_release(kept);
        qn_scope_end(s);
        for (int i = 0; i < 2; i++)
            free(x[i].v);
        free(w.v);
    }
    close_rigs(rigs, n);
}

/* ---- attention
 * ---------------------------------------------------------------------------------------------------
 */

typedef struct attention_case {
    int64_t b, h, g, l, s, d, e;
    bool causal;
    int64_t window;
    float scale, softcap;
    int mask; /* 0 none; 1 bool [L, S]; 2 added [H, L, S]; 3 bool [B, 1, L, S]; 4 added [B, H, L, S]
               */
    bool sinks;
} attention_case;

static double sink_of(int64_t h)
{
    return (double)(h % 3) * 0.75 - 0.5;
}

static qn_array *put_sinks(qn_scope *s, int64_t heads)
{
    float v[128];
    for (int64_t h = 0; h < heads; h++)
        v[h] = (float)sink_of(h);
    return qn_from_f32(s, v, heads);
}

static bool mask_keeps(int64_t l, int64_t s)
{
    return (l * 3 + s * 5) % 4 != 1 || s == 0;
}

static double mask_adds(int64_t h, int64_t l, int64_t s)
{
    return 0.25 * (double)((h + 2 * l + 3 * s) % 5) - 0.5;
}

static bool sees(const attention_case *c, int64_t l, int64_t s)
{
    int64_t last = l + c->s - c->l;
    return (!c->causal || s <= last) && (!c->window || s > last - c->window) &&
           ((c->mask != 1 && c->mask != 3) || mask_keeps(l, s));
}

static void want_attention(const attention_case *c, const host *q, const host *k, const host *v,
                           double *y)
{
    double *p = malloc((size_t)(c->s + 1) * sizeof *p);
    double scale = c->scale != 0 ? (double)c->scale : (float)(1 / sqrt((double)c->d)); /* an f32 */
    for (int64_t row = 0; row < c->b * c->h * c->l; row++) {
        int64_t b = row / (c->h * c->l), h = row / c->l % c->h, l = row % c->l;
        int64_t kv = b * c->g + h / (c->h / c->g);
        double most = c->sinks ? sink_of(h) : -INFINITY, sum = 0;
        for (int64_t s = 0; s < c->s; s++) {
            double dot = 0;
            for (int64_t i = 0; i < c->d; i++)
                dot += q->v[row * c->d + i] * k->v[(kv * c->s + s) * c->d + i];
            p[s] = dot * scale;
            if (c->softcap > 0)
                p[s] = (double)c->softcap * tanh(p[s] / (double)c->softcap);
            if (c->mask == 2 || c->mask == 4)
                p[s] += mask_adds(h, l, s);
            if (!sees(c, l, s))
                p[s] = -INFINITY;
            most = p[s] > most ? p[s] : most;
        }
        for (int64_t s = 0; s < c->s; s++)
            sum += p[s] = exp(p[s] - most);
        sum += c->sinks ? exp(sink_of(h) - most) : 0;
        for (int64_t i = 0; i < c->e; i++) {
            y[row * c->e + i] = 0;
            for (int64_t s = 0; s < c->s; s++)
                y[row * c->e + i] += p[s] / sum * v->v[(kv * c->s + s) * c->e + i];
        }
    }
    free(p);
}

static qn_array *put_mask(qn_scope *s, const attention_case *c)
{
    if (!c->mask)
        return NULL;
    bool added = c->mask == 2 || c->mask == 4;
    int ndim = c->mask == 1 ? 2 : c->mask == 2 ? 3 : 4;
    int64_t heads = added ? c->h : 1, batch = ndim == 4 ? c->b : 1;
    int64_t full[] = {batch, heads, c->l, c->s};
    host m = new_host(added ? QN_F32 : QN_BOOL, ndim, full + 4 - ndim);
    for (size_t i = 0; i < m.n; i++) {
        int64_t key = (int64_t)i % c->s, l = (int64_t)i / c->s % c->l,
                h = (int64_t)i / c->s / c->l % heads;
        m.v[i] = added ? mask_adds(h, l, key) : mask_keeps(l, key);
    }
    qn_array *a = put(s, &m, STRIDED);
    free(m.v);
    return a;
}

static const attention_case attention_cases[] = {
    {1, 1, 1, 1, 1, 2, 2, false, 0, 0, 0, 0},      {2, 4, 2, 5, 9, 8, 6, false, 0, 0, 0, 0},
    {2, 4, 2, 5, 9, 8, 8, true, 0, 0.3f, 0, 0},    {1, 3, 1, 7, 7, 4, 4, true, 3, 0, 5, 0},
    {1, 2, 2, 4, 6, 8, 8, false, 0, 0, 0, 1},      {2, 4, 2, 3, 5, 8, 4, true, 0, 0, 0, 2},
    {2, 4, 4, 3, 5, 8, 4, false, 0, 0, 0, 3},      {2, 6, 2, 3, 5, 4, 4, true, 0, 0, 2, 4},
    {1, 4, 2, 66, 66, 16, 16, true, 0, 0, 0, 0},   {1, 2, 1, 0, 3, 4, 4, false, 0, 0, 0, 0},
    {2, 4, 2, 5, 9, 8, 6, true, 0, 0, 0, 3, true},
};

static void check_attention(const rig *r, const attention_case *c, qn_dtype t, layout how)
{
    uint64_t seed = 14;
    host q = random_host(t, 4, (const int64_t[]){c->b, c->h, c->l, c->d}, 1.5, 0, &seed);
    host k = random_host(t, 4, (const int64_t[]){c->b, c->g, c->s, c->d}, 1.5, 0, &seed);
    host v = random_host(t, 4, (const int64_t[]){c->b, c->g, c->s, c->e}, 1, 0, &seed);
    host y = new_host(t, 4, (const int64_t[]){c->b, c->h, c->l, c->e});
    want_attention(c, &q, &k, &v, y.v);
    char text[100];
    snprintf(text, sizeof text, "attention %d of %s, %s, %d threads", (int)(c - attention_cases),
             qn_dtype_name(t), r->tier, r->threads);
    qn_scope *s = qn_scope_begin(r->device);
    qn_attention_options o = {.size = sizeof o,
                              .scale = c->scale,
                              .causal = c->causal,
                              .softcap = c->softcap,
                              .window = c->window,
                              .mask = put_mask(s, c),
                              .sinks = c->sinks ? put_sinks(s, c->h) : NULL};
    qn_array *a = qn_attention(s, put(s, &q, how), put(s, &k, how), put(s, &v, how), &o);
    void *raw = get(s, a, t, 4, y.shape, text);
    check_values(raw, t, y.v, y.n, qn_dtype_size(t) == 2 ? 1.01 : 0, t == QN_F64 ? 1e-14 : 2e-6,
                 text);
    free(raw);
    qn_scope_end(s);
    free(q.v);
    free(k.v);
    free(v.v);
    free(y.v);
}

static void test_attention(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (size_t c = 0; c < sizeof attention_cases / sizeof *attention_cases; c++)
        for (int r = 0; r < n; r++)
            for (int l = 0; l < N_LAYOUTS; l++)
                for (int t = 0; t < 3; t++)
                    check_attention(&rigs[r], &attention_cases[c],
                                    (qn_dtype[]){QN_F32, QN_F64, QN_BF16}[t], (layout)l);
    close_rigs(rigs, n);
}

/* ---- attention over a cache
 * --------------------------------------------------------------------------------------- */

/* Sequences one behind the other: [B, H, L, D] -> [1, H, B L, D]. */
static qn_array *in_a_row(qn_scope *s, qn_array *x)
{
    int64_t b = qn_array_dim(x, 0), l = qn_array_dim(x, 2);
    if (b == 1)
        return x;
    x = qn_transpose(s, x, (const int[]){1, 0, 2, 3});
    return qn_reshape(s, x, 4, (const int64_t[]){1, qn_array_dim(x, 0), b * l, -1});
}

/* The page of a sequence's block: every third pair lies apart, in the other order. */
static int32_t scattered(int64_t b, int64_t batch, int64_t block)
{
    int64_t far = block / 2 % 3 == 2 ? 1 : 0;
    return (int32_t)((batch - 1 - b) * 60 + (block ^ far) + far * 20);
}

/* The slots of positions at .. end - 1 of each sequence. */
static qn_array *slots_of(qn_scope *s, int64_t batch, int64_t at, int64_t end)
{
    int32_t *slots = malloc((size_t)(batch * (end - at)) * sizeof *slots), n = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t p = at; p < end; p++)
            slots[n++] = scattered(b, batch, p / 64) * 64 + (int32_t)(p % 64);
    qn_array *a = qn_from_i32(s, slots, n);
    free(slots);
    return a;
}

/* Tiles of the newest l of n tokens of each sequence, and their pages. */
static qn_array *tiles_of(qn_scope *s, int64_t batch, int64_t n, int64_t l, int64_t group)
{
    int32_t tiles[256][4];
    int64_t count = 0, tile = qn__attend_tile(group);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t row = 0; row < l; row += tile, count++) {
            tiles[count][0] = (int32_t)b;
            tiles[count][1] = (int32_t)(b * l + row);
            tiles[count][2] = (int32_t)(l - row < tile ? l - row : tile);
            tiles[count][3] = (int32_t)(n - l + row);
        }
    return qn_from(s, QN_I32, 2, (const int64_t[]){count, 4}, tiles);
}

static qn_array *table_of(qn_scope *s, int64_t batch, int64_t n)
{
    int32_t table[2 * 32];
    int64_t width = n > 1024 ? 32 : 16;
    for (int64_t i = 0; i < batch * width; i++)
        table[i] = i % width * 64 < n ? scattered(i / width, batch, i % width) : -1;
    return qn_from(s, QN_I32, 2, (const int64_t[]){batch, width}, table);
}

/* Writes all positions in pieces and attends with the last `l`; returns [B, H, l, D]. */
static float *cached(qn_device *device, const host *q, const host *k, const host *v, qn_dtype type,
                     int64_t piece, int64_t l, const attention_case *c, layout how)
{
    int64_t b = k->shape[0], g = k->shape[1], n = k->shape[2], d = k->shape[3], h = q->shape[1];
    qn_scope *s = qn_scope_begin(device);
    qn_array *keys = qn_zeros(s, type, 5, (const int64_t[]){150, g, 4, d, 16});
    qn_array *values = qn_zeros(s, type, 4, (const int64_t[]){150, g, 64, d});
    for (int64_t at = 0; at < n; at += piece) {
        int64_t end = at + piece < n ? at + piece : n;
        qn_array *slots = slots_of(s, b, at, end);
        keys =
            qn__write_keys(s, keys, in_a_row(s, qn_slice(s, put(s, k, how), 2, at, end, 1)), slots);
        values = qn__write_values(s, values,
                                  in_a_row(s, qn_slice(s, put(s, v, how), 2, at, end, 1)), slots);
    }
    qn_attention_options options = {.size = sizeof options,
                                    .softcap = c->softcap,
                                    .window = c->window,
                                    .sinks = c->sinks ? put_sinks(s, h) : NULL};
    qn_array *last = in_a_row(s, qn_slice(s, put(s, q, how), 2, n - l, n, 1));
    qn_array *y = qn__attend(s, last, keys, values, tiles_of(s, b, n, l, h / g), table_of(s, b, n),
                             0, &options);
    y = qn_transpose(s, qn_reshape(s, y, 4, (const int64_t[]){h, b, l, d}),
                     (const int[]){1, 0, 2, 3});
    float *raw = get(s, y, QN_F32, 4, (const int64_t[]){b, h, l, d}, "attend");
    qn_scope_end(s);
    return raw;
}

/* Against attention without a cache; the same bits however it was written and however many queries
 * run. */
static void test_attend(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n_rigs = open_rigs(rigs);
    for (int c = 0; c < 10; c++) {
        qn_dtype type = c % 2 ? QN_BF16 : QN_F32;
        float softcap = c & 2 ? 3 : 0;
        bool far = c >= 8; /* over several spans */
        int64_t window = c & 4 ? 21 : 0, b = 2, h = 4, g = 2, n = far ? 1100 : 150,
                d = c % 6 == 1   ? 64
                    : c % 6 == 5 ? 128
                                 : 32;
        uint64_t seed = 40;
        host q = random_host(QN_F32, 4, (const int64_t[]){b, h, n, d}, 1, 0, &seed);
        host k = random_host(type, 4, (const int64_t[]){b, g, n, d}, 1, 0, &seed);
        host v = random_host(type, 4, (const int64_t[]){b, g, n, d}, 1, 0, &seed);
        k.dtype = v.dtype = QN_F32; /* values that the cache holds exactly */
        attention_case plain = {b, h, g, n, n, d, d, true, window, 0, softcap, 0, c % 3 == 1};
        double *want = malloc(q.n * sizeof *want);
        want_attention(&plain, &q, &k, &v, want);
        for (int r = 0; r < n_rigs; r++) {
            float *all = cached(rigs[r].device, &q, &k, &v, type, n, n, &plain, PLAIN);
            /* bf16 kernels round queries and probabilities to bf16 */
            check_values(all, QN_F32, want, q.n, 0, type == QN_BF16 ? 2e-2 : 3e-6, "attend");
            static float *one_thread;
            if (rigs[r].threads == 1) {
                free(one_thread);
                one_thread = malloc(q.n * sizeof *all);
                memcpy(one_thread, all, q.n * sizeof *all);
            }
            assert_memory_equal(all, one_thread, q.n * sizeof *all);
            for (int64_t l = 1; l < 80; l = l * 3 + 1) {
                float *some =
                    cached(rigs[r].device, &q, &k, &v, type, far ? n - l : l + 6, l, &plain, PLAIN);
                for (int64_t row = 0; row < b * h; row++)
                    assert_memory_equal(some + row * l * d, all + (row * n + n - l) * d,
                                        (size_t)(l * d) * sizeof *all);
                free(some);
            }
            free(all);
            if (r + 1 == n_rigs) {
                free(one_thread);
                one_thread = NULL;
            }
        }
        free(want);
        free(q.v);
        free(k.v);
        free(v.v);
    }
    close_rigs(rigs, n_rigs);
}

/* More query heads a key head than a tile has rows; rows and queries that are columns of wider
 * ones. */
static void test_attend_shapes(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n_rigs = open_rigs(rigs);
    int64_t b = 1, h = 66, n = 150, d = 16;
    uint64_t seed = 7;
    host q = random_host(QN_F32, 4, (const int64_t[]){b, h, n, d}, 1, 0, &seed);
    host k = random_host(QN_F32, 4, (const int64_t[]){b, 1, n, d}, 1, 0, &seed);
    host v = random_host(QN_F32, 4, (const int64_t[]){b, 1, n, d}, 1, 0, &seed);
    attention_case plain = {b, h, 1, n, n, d, d, true, 0, 0, 0, 0};
    double *want = malloc(q.n * sizeof *want);
    want_attention(&plain, &q, &k, &v, want);
    for (int r = 0; r < n_rigs; r++)
        for (int how = OFFSET; how <= PADDED; how++) {
            float *y = cached(rigs[r].device, &q, &k, &v, QN_F32, 70, n, &plain, (layout)how);
            check_values(y, QN_F32, want, q.n, 0, 3e-6, "attend with many heads");
            free(y);
        }
    free(want);
    free(q.v);
    free(k.v);
    free(v.v);
    close_rigs(rigs, n_rigs);
}

/* The CPU's kernels read a head's elements side by side: other orders are refused, not misread.
 * Slots outside of a cache are not written, and a tile whose pages are none is not run. */
static void test_attend_refusals(void **state)
{
    (void)state;
    if (getenv("QUERN_TEST_DEVICE"))
        skip();
    qn_device *device = open_cpu_threads(1);
    uint64_t seed = 7;
    host x = random_host(QN_F32, 4, (const int64_t[]){1, 2, 16, 16}, 1, 0, &seed);
    const int64_t keys_shape[] = {1, 2, 4, 16, 16}, values_shape[] = {1, 2, 64, 16};
    enum { ALL = 2 * 64 * 16 };
    for (int c = 0; c < 3; c++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *keys = qn_zeros(s, QN_F32, 5, keys_shape), *slots = slots_of(s, 2, 0, 8);
        qn_array *values = qn_zeros(s, QN_F32, 4, values_shape), *turned = put(s, &x, TRANSPOSED);
        c == 0   ? qn__write_keys(s, keys, turned, slots)
        : c == 1 ? qn__write_values(s, values, turned, slots)
                 : qn__attend(s, turned, keys, values, tiles_of(s, 1, 16, 16, 1),
                              table_of(s, 1, 16), 0, NULL);
        assert_int_equal(qn_scope_status(s), QN_UNSUPPORTED);
        qn_scope_end(s);
    }
    static const int32_t outside[] = {-1,        -1, -64, 64, 65, 66, 1 << 20, INT32_MAX,
                                      INT32_MIN, -1, -1,  -1, -1, -1, -1,      -1};
    qn_scope *s = qn_scope_begin(device);
    qn_array *rows = put(s, &x, PLAIN), *slots = qn_from_i32(s, outside, 16);
    float *y = malloc(ALL * sizeof *y);
    qn_array *both[] = {qn__write_keys(s, qn_zeros(s, QN_F32, 5, keys_shape), rows, slots),
                        qn__write_values(s, qn_zeros(s, QN_F32, 4, values_shape), rows, slots)};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(qn_read_f32(s, both[k], y, ALL), QN_OK);
        for (int i = 0; i < ALL; i++)
            assert_true(y[i] == 0);
    }
    qn_scope_end(s);
    static const int32_t wrong[][4] = {
        {1, 0, 1, 0},  {-1, 0, 1, 0},      {0, 16, 1, 0}, {0, 0, 65, 0}, {0, -1, 1, 0},
        {0, 0, 1, 64}, {0, 0, 1, 1 << 20}, {0, 0, 1, -5}, {0, 0, -1, 0}, {0, 0, 0, 0}};
    s = qn_scope_begin(device);
    qn_array *tiles = qn_from(s, QN_I32, 2, (const int64_t[]){10, 4}, wrong);
    qn_array *unread =
        qn__attend(s, put(s, &x, PLAIN), qn_zeros(s, QN_F32, 5, keys_shape),
                   qn_zeros(s, QN_F32, 4, values_shape), tiles, table_of(s, 1, 16), 0, NULL);
    assert_int_equal(qn_eval(s, unread), QN_OK);
    free(y);
    qn_scope_end(s);
    free(x.v);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_rows),   cmocka_unit_test(test_linear_side_by_side),
        cmocka_unit_test(test_attention),     cmocka_unit_test(test_attend),
        cmocka_unit_test(test_attend_shapes), cmocka_unit_test(test_attend_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
