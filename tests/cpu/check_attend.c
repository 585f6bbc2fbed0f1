/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: values against a plain f64 softmax, and the same bits for a row computed in prefill,
 * in decode, in any tile, wherever its pages lie. Everything outside a row's range is NaN.
 */
#include "check.h"
#include "cpu/kernels/half.h"

typedef struct attend_case {
    qn__cpu_type type;
    size_t d, dv, heads, tokens, first; /* tokens at positions first .. */
    int window;                         /* 0: causal over everything */
    float softcap;
    int sink;
    size_t keep;                /* first keys that every token sees, too */
    qn__layout_id keys, values; /* in blocks, not of the type */
} attend_case;

typedef struct attend_data {
    float *q, *k, *v, *o, *sink; /* k, v: plain f32 rows, rounded to the type */
    int32_t *begin, *end;
    void *scratch;
    float *k_in, *v_in; /* before they were rounded */
} attend_data;

#define UNITS(id) QN__UNITS_OF(QN__##id)

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
    {QN__CPU_BF16, 64, 64, 2, 30, 30, 25, 0, 0, 9},
    {QN__CPU_BF16, 64, 64, 4, 20, 1015, 0, 0, 0, 0},
    {QN__CPU_F32, 64, 48, 2, 9, 2100, 0, 20.0f, 1, 0},
    {QN__CPU_BF16, 32, 32, 3, 70, 2000, 1100, 0, 0, 0},
    {QN__CPU_BF16, 32, 32, 3, 40, 3050, 990, 0, 1, 60},
    {QN__CPU_F16, 64, 64, 4, 70, 130, 0, 0, 0, 0},
    {QN__CPU_F16, 7, 9, 2, 20, 100, 5, 0, 1, 1},
    {QN__CPU_F16, 40, 24, 1, 3, 190, 64, 0, 0, 0},
    {QN__CPU_F32, 64, 64, 4, 70, 130, 0, 0, 0, 0, UNITS(Q8_0), UNITS(Q8_0)},
    {QN__CPU_F32, 96, 32, 2, 40, 250, 130, 30.0f, 1, 17, UNITS(Q4_0), UNITS(Q4_0)},
    {QN__CPU_F32, 128, 64, 1, 3, 1020, 0, 0, 0, 0, UNITS(Q5_1), QN__PLAIN},
    {QN__CPU_BF16, 64, 160, 3, 12, 60, 0, 0, 0, 0, QN__PLAIN, UNITS(IQ4_NL)},
    {QN__CPU_F32, 256, 256, 2, 9, 100, 70, 0, 0, 0, UNITS(AFFINE8_G64_BF16),
     UNITS(AFFINE4_G64_F16)},
    {QN__CPU_F32, 128, 128, 2, 9, 10, 0, 0, 0, 0, UNITS(AFFINE4_G128_F32), UNITS(MXFP4)},
};

/* n rows of d numbers as the cache has them. */
static void store(qn__cpu_type type, qn__layout_id layout, const float *rows, size_t n, size_t d,
                  float *to)
{
    const qn__layout *l = qn__layout_of(layout);
    if (l) {
        size_t blocks = n * d / l->encoding->block_elements;
        void *encoded = new_bytes(blocks * l->encoding->block_bytes);
        l->encoding->encode(l->encoding, rows, NULL, blocks, encoded);
        l->encoding->decode(l->encoding, encoded, blocks, to);
        free(encoded);
        return;
    }
    for (size_t i = 0; i < n * d; i++)
        to[i] = type == QN__CPU_F32    ? rows[i]
                : type == QN__CPU_BF16 ? qn__cpu_f32_of_bf16(qn__cpu_bf16_of_f32(rows[i]))
                                       : qn__cpu_f32_of_f16(qn__cpu_f16_of_f32(rows[i]));
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

/* Pages that hold keys from `low` to `high`, NaN elsewhere; scattered ones lie apart and in another
 * order, and what no key is in does not exist. */
typedef struct kv_cache {
    qn__cpu_pages k, v;
    int32_t *pages;
} kv_cache;

/* Bytes of a head's page. */
static size_t page_bytes(qn__cpu_type type, qn__layout_id layout, size_t d)
{
    return layout ? qn__layout_bytes(layout, 64, (int64_t)d)
                  : 64 * d * (type == QN__CPU_F32 ? 4 : 2);
}

/* n rows of d numbers to places from s % 64 on of a page. */
static void write_rows(const qn__cpu_kernels *t, const qn__cpu_pages *p, int32_t page, bool keys,
                       size_t d, const float *rows, size_t s, size_t n)
{
    char *to = (char *)p->at + (size_t)page * p->page;
    if (!p->layout) {
        t->cache_write(&(qn__cpu_cache_write){p->type, keys, to, d, s % 64, n, rows, d});
        return;
    }
    const qn__encoding *e = p->layout->encoding;
    size_t bytes = qn__encoding_row_bytes(e, (int64_t)d);
    void *encoded = new_bytes(n * bytes);
    e->encode(e, rows, NULL, n * d / e->block_elements, encoded);
    qn__layout_pack(p->layout, to, 64, (int64_t)d, encoded, bytes, (int64_t)(s % 64), (int64_t)n);
    free(encoded);
}

static qn__cpu_pages new_pages(const qn__cpu_kernels *t, qn__cpu_type type, qn__layout_id layout,
                               size_t d, size_t n, size_t apart)
{
    qn__cpu_pages p = {.type = type,
                       .layout = qn__layout_of(layout),
                       .unpack = t->unpack[layout],
                       .page = page_bytes(type, layout, d) + apart};
    p.at = new_bytes(n * p.page);
    return p;
}

static kv_cache cache_with(const qn__cpu_kernels *t, const attend_case *c, const attend_data *d,
                           size_t low, size_t high, int scattered)
{
    size_t blocks = high / 64 + 1;
    size_t first = scattered ? 0 : low / 64, n = scattered ? 2 * blocks : blocks - first;
    kv_cache b = {.k = new_pages(t, c->type, c->keys, c->d, n, scattered ? 128 : 0),
                  .v = new_pages(t, c->type, c->values, c->dv, n, scattered ? 192 : 0)};
    b.pages = new_bytes(blocks * 4);
    for (size_t i = 0; i < blocks; i++)
        b.pages[i] =
            scattered ? (int32_t)(2 * (blocks - 1 - i) + (i & 1)) : (int32_t)i - (int32_t)first;
    for (size_t s = low; s < high;) { /* in pieces */
        size_t n_piece = 1 + random_below(high - s);
        n_piece = n_piece < 64 - s % 64 ? n_piece : 64 - s % 64;
        write_rows(t, &b.k, b.pages[s / 64], true, c->d, d->k_in + s * c->d, s, n_piece);
        write_rows(t, &b.v, b.pages[s / 64], false, c->dv, d->v_in + s * c->dv, s, n_piece);
        s += n_piece;
    }
    return b;
}

static void cache_free(kv_cache b)
{
    free((void *)b.k.at), free((void *)b.v.at), free(b.pages);
}

static void attend_range(const qn__cpu_kernels *t, const attend_case *c, const attend_data *d,
                         kv_cache b, float *o, size_t t0, size_t t1, size_t h0, size_t h1)
{
    size_t token = c->heads * c->d, out = c->heads * c->dv, end = c->first + c->tokens;
    qn__cpu_attend a = {.d = c->d,
                        .dv = c->dv,
                        .k = b.k,
                        .v = b.v,
                        .pages = b.pages,
                        .tokens = t1 - t0,
                        .heads = h1 - h0,
                        .q = d->q + t0 * token + h0 * c->d,
                        .q_token = token,
                        .q_head = c->d,
                        .o = o + t0 * out + h0 * c->dv,
                        .o_token = out,
                        .o_head = c->dv,
                        .begin = d->begin + t0,
                        .end = d->end + t0,
                        .sink = c->sink ? d->sink + h0 : NULL,
                        .scale = 0.3f,
                        .softcap = c->softcap,
                        .keep = c->keep};
    size_t bytes = t->attend_state(a.tokens, a.heads, c->dv);
    float *state = new_bytes(bytes), *later = new_bytes(bytes);
    t->attend(&a, 0, state, d->scratch);
    for (size_t span = 1; span * QN__CPU_SPAN < end; span++) {
        t->attend(&a, span, later, d->scratch);
        t->attend_merge(&a, state, later);
    }
    t->attend_finish(&a, state);
    free(state), free(later);
}

/* Random tiles of tokens and heads, then every token alone with pages that end (and start) with its
 * range. */
static int attend_same(const qn__cpu_kernels *t, const attend_case *c, const attend_data *d,
                       float *z)
{
    size_t all = c->first + c->tokens, n = c->tokens * c->heads * c->dv;
    kv_cache b = cache_with(t, c, d, 0, all, 1);
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
        b = cache_with(t, c, d, low < high ? low : high, high, 0);
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
    d.k_in = new_floats(all * c->d), d.v_in = new_floats(all * c->dv);
    random_fill(d.k_in, all * c->d);
    random_fill(d.v_in, all * c->dv);
    random_fill(d.sink, c->heads);
    for (size_t i = 0; i < all * c->d; i++)
        d.k_in[i] *= 3.0f;
    store(c->type, c->keys, d.k_in, all, c->d, d.k);
    store(c->type, c->values, d.v_in, all, c->dv, d.v);
    for (size_t s = 0; s < c->tokens; s++) {
        d.end[s] = (int32_t)(c->first + s + 1);
        d.begin[s] = c->window && d.end[s] > c->window ? d.end[s] - c->window : 0;
        if (d.begin[s] < (int32_t)c->keep)
            d.begin[s] = 0;
    }
    if (c->tokens > 10)
        d.end[5] = d.begin[5]; /* a token without keys */
    kv_cache b = cache_with(t, c, &d, 0, all, 0);
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
    char name[96];
    const char *types[] = {[QN__CPU_F32] = "f32", [QN__CPU_BF16] = "bf16", [QN__CPU_F16] = "f16"};
    snprintf(name, sizeof name, "attend %s %s %s d%zu h%zu t%zu+%zu%s", types[c->type],
             c->keys ? qn__layout_name(c->keys) : "", c->values ? qn__layout_name(c->values) : "",
             c->d, c->heads, c->first, c->tokens, c->keep ? " keep" : "");
    check(name, t->tier, nmse_ok(&e, 1e-11) && past == 0xffffffffu);
    strcat(name, " bits");
    check(name, t->tier, attend_same(t, c, &d, z));
    cache_free(b);
    free(o), free(z), free(d.q), free(d.k), free(d.v), free(d.o), free(d.sink), free(d.begin),
        free(d.end), free(d.scratch), free(d.k_in), free(d.v_in);
}

void check_attend(const qn__cpu_kernels *t)
{
    for (size_t i = 0; i < sizeof attend_cases / sizeof *attend_cases; i++)
        attend_one(t, &attend_cases[i]);
}
