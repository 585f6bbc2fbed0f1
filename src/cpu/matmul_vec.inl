/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed matmul both ways, preparing, and the plain strided matmul in f32, over vec_*.h: for tiers
 * without a dot product of bf16 pairs.
 *
 * Approach as in the AVX-512 files: bf16 weights are widened to f32 in registers (the pair's low
 * half is the even k), x is rounded to bf16 when it is prepared and widened as W is, and every
 * product is an f32 fma. Tiles of 4 rows x one panel of 16 lanes: one fma chain an output in order
 * of k, which alone fixes the bits.
 */

#define ALWAYS static inline __attribute__((always_inline))

enum { CHUNK_UNITS = 256, BACK_PANELS = 128, DENSE_K = 128 };

/* --- prepare: [unit][rows] in blocks of 4 rows, the last block m % 4 rows --- */

static void prepare_vec(qn__cpu_type type, void *dst, const float *x, size_t ldx, size_t m,
                        size_t k, size_t m0, size_t m1)
{
    size_t units = type == QN__CPU_BF16 ? (k + 1) / 2 : k;
    for (size_t r = m0; r < m1; r++) {
        size_t block = r / 4 * 4, rows = m - block < 4 ? m - block : 4;
        const float *in = x + r * ldx;
        uint32_t *to = (uint32_t *)dst + block * units + (r - block);
        if (type == QN__CPU_F32) {
            for (size_t u = 0; u < units; u++)
                to[u * rows] = qn__cpu_bits(in[u]);
            continue;
        }
        size_t u = 0;
        for (; 2 * u + 16 <= k; u += 8) {
            uint32_t pairs[8];
            v_store_bf16((uint16_t *)pairs, v_load(in + 2 * u));
            for (size_t i = 0; i < 8; i++)
                to[(u + i) * rows] = pairs[i];
        }
        for (; u < units; u++) {
            uint32_t high = 2 * u + 1 < k ? qn__cpu_bf16_of_f32(in[2 * u + 1]) : 0;
            to[u * rows] = qn__cpu_bf16_of_f32(in[2 * u]) | high << 16;
        }
    }
}

/* --- matmul --- */

ALWAYS vf pair_even(vf pair)
{
    return v_float(vi_shl(v_bits(pair), 16));
}

ALWAYS vf pair_odd(vf pair)
{
    return v_float(vi_and(v_bits(pair), vi_set(0xffff0000u)));
}

typedef struct tile_args {
    const float *w; /* panel, at the first unit */
    const float *x; /* block, at the first unit */
    size_t units;
    float *sums; /* [rows][16] */
} tile_args;

#define EACH_ROW(F) F(0) F(1) F(2) F(3)

/* rows x one panel, sums in and out; constants at every call. */
ALWAYS void vec_tile(int f32, int rows, const tile_args *a)
{
    const float *w = a->w, *x = a->x;
#define DECLARE(r)                                                                                 \
    vf c##r = v_set(0.0f);                                                                         \
    if (rows > r)                                                                                  \
        c##r = v_load(a->sums + 16 * r);
    EACH_ROW(DECLARE)
#undef DECLARE
    for (size_t u = 0; u < a->units; u++) {
        vf even = v_load(w), odd = even;
        if (rows == 1)
            __builtin_prefetch((const char *)w + 4096);
        if (!f32) {
            odd = pair_odd(even);
            even = pair_even(even);
        }
#define STEP(r)                                                                                    \
    if (rows > r) {                                                                                \
        vf pair = v_set(x[r]);                                                                     \
        c##r = v_fma(f32 ? pair : pair_even(pair), even, c##r);                                    \
        if (!f32)                                                                                  \
            c##r = v_fma(pair_odd(pair), odd, c##r);                                               \
    }
        EACH_ROW(STEP)
#undef STEP
        w += 16;
        x += rows;
    }
#define SAVE(r)                                                                                    \
    if (rows > r)                                                                                  \
        v_store(a->sums + 16 * r, c##r);
    EACH_ROW(SAVE)
#undef SAVE
}

static void vec_tile_of(qn__cpu_type type, size_t rows, const tile_args *a)
{
    switch (rows + (type == QN__CPU_F32 ? 4 : 0)) {
#define SHAPE(r)                                                                                   \
    case r + 1: vec_tile(0, r + 1, a); break;                                                      \
    case r + 5: vec_tile(1, r + 1, a); break;
        EACH_ROW(SHAPE)
#undef SHAPE
    default: break;
    }
}

/* One panel and a chunk of units for all rows; the sums of earlier chunks come from y. */
static void vec_panel_chunk(const qn__cpu_matmul *a, size_t p, size_t u, size_t count, size_t units)
{
    size_t lanes = a->n - p * 16 < 16 ? a->n - p * 16 : 16;
    tile_args t = {(const float *)a->w + (p * units + u) * 16, NULL, count, NULL};
    for (size_t r = 0; r < a->m; r += 4) {
        size_t rows = a->m - r < 4 ? a->m - r : 4;
        float sums[64];
        float *y = a->y + r * a->ldy + p * 16;
        for (size_t i = 0; i < rows; i++)
            v_store(sums + 16 * i, u ? v_load_n(y + i * a->ldy, lanes, 0.0f) : v_set(0.0f));
        t.x = (const float *)a->x + r * units + u * rows;
        t.sums = sums;
        vec_tile_of(a->type, rows, &t);
        for (size_t i = 0; i < rows; i++)
            v_store_n(y + i * a->ldy, lanes, v_load(sums + 16 * i));
    }
}

static void matmul_vec(const qn__cpu_matmul *a, size_t p0, size_t p1)
{
    size_t units = a->type == QN__CPU_BF16 ? (a->k + 1) / 2 : a->k,
           chunk = a->m <= 4 ? units : CHUNK_UNITS;
    for (size_t p = p0; p < p1; p++)
        for (size_t u = 0; u < units; u += chunk)
            vec_panel_chunk(a, p, u, units - u < chunk ? units - u : chunk, units);
}

/* --- the transposed product: as back_avx512.c, one row x 4 columns of a gathered chunk --- */

static void vec_back_gather(const qn__cpu_matmul_back *a, size_t c, size_t p0, size_t p1, float *to)
{
    size_t panel_bytes = qn__cpu_panel_bytes(a->type, a->k);
    for (size_t p = p0; p < p1; p++) {
        const char *panel = (const char *)a->w + p * panel_bytes;
        for (size_t j = 0; j < 4; j++, to += 16) {
            vf v = v_set(0.0f);
            if (c + j < a->k) {
                v = v_load(
                    (const float *)(panel + (a->type == QN__CPU_F32 ? c + j : (c + j) / 2) * 64));
                if (a->type == QN__CPU_BF16)
                    v = j % 2 ? pair_odd(v) : pair_even(v);
            }
            v_store(to, v);
        }
    }
}

static void vec_back_row(const float *w, const float *g, size_t panels, size_t last, float *s)
{
    vf c0 = v_set(0.0f), c1 = c0, c2 = c0, c3 = c0;
    for (size_t p = 0; p < panels; p++, g += 16, w += 64) {
        vf x = p + 1 == panels ? v_load_n(g, last, 0.0f) : v_load(g);
        c0 = v_fma(x, v_load(w), c0);
        c1 = v_fma(x, v_load(w + 16), c1);
        c2 = v_fma(x, v_load(w + 32), c2);
        c3 = v_fma(x, v_load(w + 48), c3);
    }
    s[0] = v_sum(c0), s[1] = v_sum(c1), s[2] = v_sum(c2), s[3] = v_sum(c3);
}

static void matmul_back_vec(const qn__cpu_matmul_back *a, size_t k0, size_t k1)
{
    _Alignas(64) float w[BACK_PANELS * 4 * 16];
    size_t panels = qn__cpu_panels(a->n), tail = a->n % 16 ? a->n % 16 : 16;
    for (size_t c = k0; c < k1; c += 4) {
        for (size_t p = 0; p < panels; p += BACK_PANELS) {
            size_t p1 = panels - p < BACK_PANELS ? panels : p + BACK_PANELS;
            vec_back_gather(a, c, p, p1, w);
            for (size_t r = 0; r < a->m; r++) {
                float s[4], *y = a->y + r * a->ldy + c;
                vec_back_row(w, a->g + r * a->ldg + p * 16, p1 - p, p1 == panels ? tail : 16, s);
                for (size_t j = 0; j < 4 && c + j < k1; j++)
                    y[j] = p ? y[j] + s[j] : s[j];
            }
        }
    }
}

/* --- plain strided matmul: as dense_avx512.c, tiles of 4 rows x 16 columns --- */

static void vec_dense_copy(const qn__cpu_dense *a, size_t k0, size_t nk, size_t n0, size_t nn,
                           float *to)
{
    const float *b = a->b + (ptrdiff_t)k0 * a->rbs + (ptrdiff_t)n0 * a->cbs;
    for (size_t k = 0; k < nk; k++, b += a->rbs, to += 16)
        for (size_t i = 0; i < 16; i++)
            to[i] = i < nn ? b[(ptrdiff_t)i * a->cbs] : 0.0f;
}

ALWAYS void vec_dense_tile(int rows, const qn__cpu_dense *d, const float *a, const float *b,
                           size_t nk, float *sums)
{
#define DECLARE(r)                                                                                 \
    vf c##r = v_set(0.0f);                                                                         \
    if (rows > r)                                                                                  \
        c##r = v_load(sums + 16 * r);
    EACH_ROW(DECLARE)
#undef DECLARE
    for (size_t k = 0; k < nk; k++, a += d->cas, b += 16) {
        vf column = v_load(b);
#define STEP(r)                                                                                    \
    if (rows > r)                                                                                  \
        c##r = v_fma(v_set(a[r * d->ras]), column, c##r);
        EACH_ROW(STEP)
#undef STEP
    }
#define SAVE(r)                                                                                    \
    if (rows > r)                                                                                  \
        v_store(sums + 16 * r, c##r);
    EACH_ROW(SAVE)
#undef SAVE
}

static void vec_dense_chunk(const qn__cpu_dense *d, size_t m0, size_t m1, size_t k, size_t nk,
                            size_t n, const float *copy)
{
    size_t nn = d->n - n < 16 ? d->n - n : 16;
    for (size_t m = m0; m < m1; m += 4) {
        size_t rows = m1 - m < 4 ? m1 - m : 4;
        const float *a = d->a + (ptrdiff_t)m * d->ras + (ptrdiff_t)k * d->cas;
        float *c = d->c + (ptrdiff_t)m * d->ldc + (ptrdiff_t)n, sums[64];
        for (size_t i = 0; i < rows; i++)
            v_store(sums + 16 * i, k ? v_load_n(c + (ptrdiff_t)i * d->ldc, nn, 0.0f) : v_set(0.0f));
        if (rows == 4)
            vec_dense_tile(4, d, a, copy, nk, sums);
        else if (rows == 3)
            vec_dense_tile(3, d, a, copy, nk, sums);
        else if (rows == 2)
            vec_dense_tile(2, d, a, copy, nk, sums);
        else
            vec_dense_tile(1, d, a, copy, nk, sums);
        for (size_t i = 0; i < rows; i++)
            v_store_n(c + (ptrdiff_t)i * d->ldc, nn, v_load(sums + 16 * i));
    }
}

static void dense_vec(const qn__cpu_dense *d, size_t m0, size_t m1)
{
    _Alignas(64) float copy[DENSE_K * 16];
    for (size_t n = 0; n < d->n; n += 16) {
        for (size_t k = 0; k == 0 || k < d->k; k += DENSE_K) {
            size_t nk = d->k - k < DENSE_K ? d->k - k : DENSE_K;
            vec_dense_copy(d, k, nk, n, d->n - n < 16 ? d->n - n : 16, copy);
            vec_dense_chunk(d, m0, m1, k, nk, n, copy);
        }
    }
}

static void fill_vec_matmul(qn__cpu_kernels *t)
{
    t->prepare = prepare_vec;
    t->matmul = matmul_vec;
    t->matmul_back = matmul_back_vec;
    t->dense = dense_vec;
}
