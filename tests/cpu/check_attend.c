/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: values against a plain f64 softmax, and the same bits for a row computed in prefill,
 * in decode, in any tile, with any capacity, paged or not. Everything outside a row's range is NaN.
 */
#include "check.h"

typedef struct attend_case {
    qn__cpu_type type;
    size_t d, dv, heads, tokens, first; /* tokens at positions first .. */
    int window;                         /* 0: causal over everything */
    float softcap;
    int sink;
    size_t keep; /* first keys that every token sees, too */
} attend_case;

typedef struct attend_data {
    float *q, *k, *v, *o, *sink; /* k, v: plain f32 rows, rounded to the type */
    int32_t *begin, *end;
    void *scratch;
} attend_data;

static const attend_case attend_cases[] = {
    {QN__CPU_F32, 64, 64, 4, 40, 0, 0, 0, 0, 0},
    {QN__CPU_BF16, 64, 64, 4, 70, 130, 0, 0, 0, 0},
    {QN__CPU_BF16, 128, 128, 8, 9, 60, 0, 0, 1, 0},
    {QN__CPU_F32, 128, 128, 1, 66, 3, 20, 0, 0, 0},
    {QN__CPU_BF16, 64, 64, 1, 130, 0, 100, 0, 1, 0},
    {QN__CPU_BF16, 256, 256, 2, 12, 250, 0, 30.0f, 0, 0},
    {QN__CPU_F32, 80, 80, 3, 33, 31, 0, 0, 0, 0},
    {QN__CPU_BF16, 8, 8, 5, 20, 62, 17, 5.0f, 1, 0},
    {QN__CPU_F32, 7, 9, 2, 20, 55, 0, 0, 1, 0},
    {QN__CPU_BF16, 192, 128, 6, 10, 120, 0, 0, 0, 0},
    {QN__CPU_BF16, 40, 24, 7, 15, 190, 64, 0, 0, 0},
    {QN__CPU_F32, 96, 96, 16, 5, 500, 0, 0, 0, 0},
    {QN__CPU_BF16, 64, 64, 4, 3, 1000, 0, 0, 0, 0},
    {QN__CPU_BF16, 112, 112, 1, 1, 0, 0, 0, 0, 0},
    {QN__CPU_BF16, 64, 64, 4, 70, 200, 50, 0, 0, 4},
    {QN__CPU_F32, 80, 80, 3, 33, 130, 20, 0, 0, 64},
    {QN__CPU_BF16, 256, 256, 2, 12, 250, 130, 30.0f, 1, 17},
    {QN__CPU_F32, 7, 9, 2, 20, 100, 5, 0, 1, 1},
};

static float stored(const qn__cpu_kernels *t, qn__cpu_type type, float f)
{
    uint16_t h;
    if (type == QN__CPU_F32)
        return f;
    t->bf16_from_f32(&h, &f, 1);
    t->f32_from_bf16(&f, &h, 1);
    return f;
}

static int sees(const attend_case *c, const attend_data *d, size_t t, size_t key)
{
    int some = d->begin[t] < d->end[t];
    return some && (key < c->keep || ((int32_t)key >= d->begin[t] && (int32_t)key < d->end[t]));
}

static void attend_plain(const attend_case *c, const attend_data *d, size_t t, size_t h, double *o)
{
    double top = c->sink ? d->sink[h] : -INFINITY, total = 0,
           *p = new_bytes((c->first + c->tokens) * 8);
    size_t all = c->first + c->tokens;
    for (size_t s = 0; s < all; s++) {
        double dot = 0;
        if (!sees(c, d, t, s))
            continue;
        for (size_t i = 0; i < c->d; i++)
            dot += (double)d->q[(t * c->heads + h) * c->d + i] * d->k[s * c->d + i];
        p[s] = dot * 0.3f;
        if (c->softcap > 0)
            p[s] = c->softcap * tanh(p[s] / c->softcap);
        top = fmax(top, p[s]);
    }
    for (size_t i = 0; i < c->dv; i++)
        o[i] = 0;
    for (size_t s = 0; s < all; s++) {
        if (!sees(c, d, t, s))
            continue;
        p[s] = exp(p[s] - top);
        total += p[s];
        for (size_t i = 0; i < c->dv; i++)
            o[i] += p[s] * d->v[s * c->dv + i];
    }
    total += c->sink ? exp(d->sink[h] - top) : 0;
    for (size_t i = 0; i < c->dv; i++)
        o[i] = total > 0 ? o[i] / total : 0;
    free(p);
}

/* A cache of `capacity` keys holding keys from `low` to `high`, NaN elsewhere, optionally with
 * shuffled pages. */
typedef struct kv_cache {
    void *k, *v;
    uint32_t *pages;
    size_t ldv;
} kv_cache;

static kv_cache cache_with(const qn__cpu_kernels *t, const attend_case *c, const attend_data *d,
                           size_t capacity, size_t low, size_t high, int paged)
{
    size_t size = c->type == QN__CPU_F32 ? 4 : 2, blocks = capacity / 64 + 1;
    kv_cache b = {NULL, NULL, NULL, c->dv + (paged ? 16 : 0)};
    size_t keys = paged ? 2 * blocks * 64 : capacity;
    b.k = new_bytes(keys * c->d * size);
    b.v = new_bytes(keys * b.ldv * size);
    if (paged) {
        b.pages = new_bytes(blocks * 4);
        for (size_t i = 0; i < blocks; i++)
            b.pages[i] = (uint32_t)(2 * (blocks - 1 - i) + (i & 1));
    }
    for (size_t s = low; s < high;) { /* in pieces */
        size_t n = 1 + random_below(high - s);
        qn__cpu_cache_write w = {
            c->type,          c->d, c->dv, b.k, b.v, b.ldv, b.pages, s, n, d->k + s * c->d,
            d->v + s * c->dv, c->d, c->dv};
        t->cache_write(&w);
        s += n;
    }
    return b;
}

static void cache_free(kv_cache b)
{
    free(b.k), free(b.v), free(b.pages);
}

static void attend_range(const qn__cpu_kernels *t, const attend_case *c, const attend_data *d,
                         kv_cache b, float *o, size_t t0, size_t t1, size_t h0, size_t h1)
{
    size_t token = c->heads * c->d, out = c->heads * c->dv;
    qn__cpu_attend a = {c->type,
                        c->d,
                        c->dv,
                        b.k,
                        b.v,
                        b.ldv,
                        b.pages,
                        t1 - t0,
                        h1 - h0,
                        d->q + t0 * token + h0 * c->d,
                        token,
                        c->d,
                        o + t0 * out + h0 * c->dv,
                        out,
                        c->dv,
                        d->begin + t0,
                        d->end + t0,
                        c->sink ? d->sink + h0 : NULL,
                        0.3f,
                        c->softcap,
                        c->keep};
    t->attend(&a, d->scratch);
}

/* Random tiles of tokens and heads, then every token alone with a cache that ends (and starts) with
 * its range. */
static int attend_same(const qn__cpu_kernels *t, const attend_case *c, const attend_data *d,
                       float *z)
{
    size_t all = c->first + c->tokens, n = c->tokens * c->heads * c->dv;
    kv_cache b = cache_with(t, c, d, (all + 63) / 64 * 64 + 320, 0, all, 1);
    memset(z, 0xff, n * 4);
    for (size_t s = 0; s < c->tokens;) {
        size_t s1 = s + 1 + random_below(c->tokens - s < 24 ? c->tokens - s : 24);
        for (size_t h = 0; h < c->heads;) {
            size_t h1 = h + 1 + random_below(c->heads - h);
            attend_range(t, c, d, b, z, s, s1, h, h1);
            h = h1;
        }
        s = s1;
    }
    cache_free(b);
    int same = memcmp(z, d->o, n * 4) == 0;
    memset(z, 0xff, n * 4);
    for (size_t s = 0; s < c->tokens; s += 1 + c->tokens / 30) {
        size_t high = (size_t)d->end[s], low = c->keep ? 0 : (size_t)d->begin[s],
               at = s * c->heads * c->dv;
        b = cache_with(t, c, d, (high + 15) / 16 * 16, low < high ? low : high, high, 0);
        attend_range(t, c, d, b, z, s, s + 1, 0, c->heads);
        same &= memcmp(z + at, d->o + at, c->heads * c->dv * 4) == 0;
        cache_free(b);
    }
    return same;
}

static void attend_one(const qn__cpu_kernels *t, const attend_case *c)
{
    size_t all = c->first + c->tokens, rows = c->tokens * c->heads, n = rows * c->dv;
    attend_data d = {
        new_floats(rows * c->d),  new_floats(all * c->d),
        new_floats(all * c->dv),  new_floats(n + 1),
        new_floats(c->heads),     new_bytes(c->tokens * 4),
        new_bytes(c->tokens * 4), new_bytes(t->attend_scratch(c->tokens, c->heads, c->d, c->dv))};
    float *z = new_floats(n);
    random_fill(d.q, rows * c->d);
    random_fill(d.k, all * c->d);
    random_fill(d.v, all * c->dv);
    random_fill(d.sink, c->heads);
    for (size_t i = 0; i < all * c->d; i++)
        d.k[i] = stored(t, c->type, d.k[i] * 3.0f);
    for (size_t i = 0; i < all * c->dv; i++)
        d.v[i] = stored(t, c->type, d.v[i]);
    for (size_t s = 0; s < c->tokens; s++) {
        d.end[s] = (int32_t)(c->first + s + 1);
        d.begin[s] = c->window && d.end[s] > c->window ? d.end[s] - c->window : 0;
        if (c->keep && d.begin[s] < 64)
            d.begin[s] = 64;
    }
    if (c->tokens > 10)
        d.end[5] = d.begin[5]; /* a token without keys */
    kv_cache b = cache_with(t, c, &d, (all + 15) / 16 * 16, 0, all, 0);
    attend_range(t, c, &d, b, d.o, 0, c->tokens, 0, c->heads);
    nmse e = {0, 0};
    double *o = new_bytes(c->dv * 8);
    for (size_t r = 0; r < rows; r++) {
        attend_plain(c, &d, r / c->heads, r % c->heads, o);
        for (size_t i = 0; i < c->dv; i++)
            nmse_add(&e, d.o[r * c->dv + i], o[i]);
    }
    uint32_t past;
    memcpy(&past, d.o + n, 4);
    char name[64];
    snprintf(name, sizeof name, "attend %s d%zu h%zu t%zu+%zu%s",
             c->type == QN__CPU_F32 ? "f32" : "bf16", c->d, c->heads, c->first, c->tokens,
             c->keep ? " keep" : "");
    check(name, t->tier, nmse_ok(&e, 1e-11) && past == 0xffffffffu);
    strcat(name, " bits");
    check(name, t->tier, attend_same(t, c, &d, z));
    cache_free(b);
    free(o), free(z), free(d.q), free(d.k), free(d.v), free(d.o), free(d.sink), free(d.begin),
        free(d.end), free(d.scratch);
}

void check_attend(const qn__cpu_kernels *t)
{
    for (size_t i = 0; i < sizeof attend_cases / sizeof *attend_cases; i++)
        attend_one(t, &attend_cases[i]);
}
