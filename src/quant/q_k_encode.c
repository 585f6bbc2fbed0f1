/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing GGUF's K-formats and iq4_xs, which is cut like them; q_k.h and iq4.c say what they are,
 * search.h how a sub-block's scale is found.
 *
 * A sub-block's scale is a code of its own, so the best one is looked for twice: as a real number,
 * then among the codes near it with the error that they really make. With those chosen, the block's
 * d (and dmin) is least squares again.
 */
#include "quant/q_k.h"
#include "quant/search.h"

#include <math.h>

enum { MOST_SUBS = 16 };

/* How a format cuts 256 values. */
typedef struct shape {
    int subs, n; /* sub-blocks, values of each */
    int scale_low, scale_high;
    qn__grid grid;
} shape;

/* What is chosen for one block. */
typedef struct choice {
    float d, dmin; /* as f16 has them */
    int scale[MOST_SUBS], min[MOST_SUBS];
    float error;
} choice;

/* A scale's step as f16 has it; never 0 where there is something to scale. */
static float first_step(float v)
{
    float d = qn__round_f16(v);
    return d == 0 && v != 0 ? copysignf(0x1p-24f, v) : d;
}

/* The nearest whole number from low to high. */
static int nearest(float v, int low, int high)
{
    return qn__round(qn__clamp(v, (float)low, (float)high));
}

/* Codes for the scale and min of a sub-block, and what they make. */
typedef struct trial {
    int scale, min;
    float error;
    qn__fit fit;
} trial;

/* Sums for the least squares of d and dmin: x ~ d * (scale * code) - dmin * min. */
typedef struct normal {
    float uu, um, mm, ux, mx;
} normal;

/* One sub-block, and what is wanted for it. */
typedef struct part {
    const float *x, *w;
    qn__found want;
} part;

/* One scale code: its best min code, which keeps the sub-block's mean where it is. */
static void try_scale(const shape *f, const part *p, const choice *c, int i, trial *best)
{
    float scale = c->d * (float)i,
          mean_code = (p->want.min * p->want.weight + p->want.wx) / p->want.scale;
    float per_dmin = qn__inverse(c->dmin * p->want.weight);
    int last = -1;
    for (int round = 0; round < 4; round++) {
        trial t = {.scale = i};
        t.min = nearest((scale * mean_code - p->want.wx) * per_dmin, 0, f->scale_high);
        if (t.min == last)
            break;
        last = t.min;
        t.error =
            qn__search_error(&f->grid, p->x, p->w, f->n, scale, c->dmin * (float)t.min, &t.fit);
        mean_code = t.fit.wl;
        if (t.error < best->error)
            *best = t;
    }
}

/* For c's d and dmin the best codes for scales near those wanted, and for their mins. */
static void choose_above(const shape *f, const part *parts, choice *c, normal *sums)
{
    *sums = (normal){0};
    c->error = 0;
    for (int s = 0; s < f->subs; s++) {
        const part *p = &parts[s];
        int s0 = nearest(p->want.scale * qn__inverse(c->d), 0, f->scale_high);
        trial best = {.error = INFINITY};
        if (!(p->want.scale > 0)) { /* one value alone */
            best.min = nearest(p->want.min * qn__inverse(c->dmin), 0, f->scale_high);
            best.error = qn__search_error(&f->grid, p->x, p->w, f->n, 0, c->dmin * (float)best.min,
                                          &best.fit);
        } else {
            for (int i = s0 > 0 ? s0 - 1 : 0; i <= s0 + 1 && i <= f->scale_high; i++)
                try_scale(f, p, c, i, &best);
        }
        c->scale[s] = best.scale;
        c->min[s] = best.min;
        c->error += best.error;
        float u = (float)best.scale, m = (float)best.min;
        sums->uu += u * u * best.fit.wll;
        sums->um += u * m * best.fit.wl;
        sums->mm += m * m * p->want.weight;
        sums->ux += u * best.fit.wxl;
        sums->mx += m * p->want.wx;
    }
}

static void solve_normal(const normal *s, float *d, float *dmin)
{
    double det = (double)s->uu * s->mm - (double)s->um * s->um;
    if (det > 1e-9 * (double)s->uu * s->mm) {
        *d = (float)(((double)s->ux * s->mm - (double)s->um * s->mx) / det);
        *dmin = (float)(((double)s->ux * s->um - (double)s->uu * s->mx) / det);
    } else if (s->uu > 0) {
        *d = s->ux / s->uu;
        *dmin = 0;
    }
}

/* One block in a format with mins. */
static void search_block_above(const shape *f, const float *x, const float *w, choice *c)
{
    part parts[MOST_SUBS];
    float scale[MOST_SUBS], stiff[MOST_SUBS], min[MOST_SUBS], weight[MOST_SUBS];
    for (int s = 0; s < f->subs; s++, x += f->n, w += f->n) {
        parts[s] = (part){x, w, qn__search_above(&f->grid, x, w, f->n)};
        scale[s] = parts[s].want.scale;
        stiff[s] = parts[s].want.stiff;
        min[s] = parts[s].want.min;
        weight[s] = parts[s].want.weight;
    }
    normal sums;
    c->d = first_step(qn__search_step(scale, stiff, f->subs, 0, f->scale_high));
    c->dmin = first_step(qn__search_step(min, weight, f->subs, 0, f->scale_high));
    choose_above(f, parts, c, &sums);
    for (int round = 0; round < 4; round++) {
        choice again = *c;
        solve_normal(&sums, &again.d, &again.dmin);
        again.d = qn__round_f16(again.d > 0 ? again.d : 0);
        again.dmin = qn__round_f16(again.dmin > 0 ? again.dmin : 0);
        if (again.d == c->d && again.dmin == c->dmin)
            break;
        choose_above(f, parts, &again, &sums);
        if (!(again.error < c->error))
            break;
        *c = again;
    }
}

/* For c's d the best codes for the scales near those wanted; sums has uu and ux. */
static void choose_around(const shape *f, const float *x, const float *w, const float *scale,
                          choice *c, normal *sums)
{
    float per_d = qn__inverse(c->d);
    *sums = (normal){0};
    c->error = 0;
    for (int s = 0; s < f->subs; s++, x += f->n, w += f->n) {
        int s0 = nearest(scale[s] * per_d, f->scale_low, f->scale_high);
        float best = INFINITY;
        qn__fit fit, best_fit = {0};
        for (int i = s0 > f->scale_low ? s0 - 1 : s0; i <= s0 + 1 && i <= f->scale_high; i++) {
            float error = qn__search_error(&f->grid, x, w, f->n, c->d * (float)i, 0, &fit);
            if (error < best) {
                best = error;
                best_fit = fit;
                c->scale[s] = i;
            }
        }
        float u = (float)c->scale[s];
        sums->uu += u * u * best_fit.wll;
        sums->ux += u * best_fit.wxl;
        c->error += best;
    }
}

/* One block in a format whose codes lie around zero. */
static void search_block_around(const shape *f, const float *x, const float *w, choice *c)
{
    float scale[MOST_SUBS], stiff[MOST_SUBS];
    for (int s = 0; s < f->subs; s++) {
        qn__found found = qn__search_around(&f->grid, x + s * f->n, w + s * f->n, f->n);
        scale[s] = found.scale;
        stiff[s] = found.stiff;
    }
    normal sums;
    c->d = first_step(qn__search_step(scale, stiff, f->subs, f->scale_low, f->scale_high));
    choose_around(f, x, w, scale, c, &sums);
    for (int round = 0; round < 4 && sums.uu > 0; round++) {
        choice again = *c;
        again.d = qn__round_f16(sums.ux / sums.uu);
        if (again.d == c->d)
            break;
        choose_around(f, x, w, scale, &again, &sums);
        if (!(again.error < c->error))
            break;
        *c = again;
    }
}

/* Codes of `bits` bits, from `shift` up, in planes as q_k.h has them. */
static void pack_planes(const uint8_t *codes, int width, int bits, int shift, uint8_t *p)
{
    int planes = 8 / bits, mask = (1 << bits) - 1;
    for (int at = 0; at < QN__QK; p += width) {
        memset(p, 0, (size_t)width);
        for (int plane = 0; plane < planes; plane++, at += width)
            for (int j = 0; j < width; j++)
                p[j] |= (uint8_t)((codes[at + j] >> shift & mask) << plane * bits);
    }
}

/* Searches one block and fills in its codes. */
static void search_block(const shape *f, const float *values, const float *importance, choice *c,
                         uint8_t *codes)
{
    float x[QN__QK], w[QN__QK];
    *c = (choice){0};
    if (!qn__search_begin(values, importance, QN__QK, x, w))
        memset(x, 0, sizeof x);
    else if (f->grid.low == 0)
        search_block_above(f, x, w, c);
    else
        search_block_around(f, x, w, c);
    for (int s = 0, at = 0; s < f->subs; s++, at += f->n)
        qn__search_codes(&f->grid, x + at, f->n, c->d * (float)c->scale[s],
                         c->dmin * (float)c->min[s], codes + at);
}

static const float *next_block(const float *importance)
{
    return importance ? importance + QN__QK : NULL;
}

void qn__encode_q2_k(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    static const shape f = {16, 16, 0, 15, {.low = 0, .high = 3, .reach = 0.8f, .trials = 10}};
    uint8_t *b = blocks, codes[QN__QK];
    choice c;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, importance = next_block(importance)) {
        search_block(&f, values + i * QN__QK, importance, &c, codes);
        for (int s = 0; s < 16; s++)
            b[QN__Q2K_SCALES + s] = (uint8_t)(c.scale[s] | c.min[s] << 4);
        pack_planes(codes, 32, 2, 0, b + QN__Q2K_CODES);
        qn__store_f16(b + QN__Q2K_D, c.d);
        qn__store_f16(b + QN__Q2K_DMIN, c.dmin);
    }
}

void qn__encode_q3_k(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    static const shape f = {16, 16, -32, 31, {.low = -4, .high = 3, .reach = 0.9f, .trials = 8}};
    uint8_t *b = blocks, codes[QN__QK], scale[16];
    choice c;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, importance = next_block(importance)) {
        search_block(&f, values + i * QN__QK, importance, &c, codes);
        for (int s = 0; s < 16; s++)
            scale[s] = (uint8_t)(c.scale[s] + 32);
        qn__q3k_pack(scale, b + QN__Q3K_SCALES);
        pack_planes(codes, 32, 2, 0, b + QN__Q3K_CODES);
        pack_planes(codes, 32, 1, 2, b + QN__Q3K_HIGH);
        qn__store_f16(b + QN__Q3K_D, c.d);
    }
}

/* The head of a q4_k or q5_k. */
static void store_head(const choice *c, uint8_t *b)
{
    uint8_t scale[8], min[8];
    for (int s = 0; s < 8; s++) {
        scale[s] = (uint8_t)c->scale[s];
        min[s] = (uint8_t)c->min[s];
    }
    qn__q45k_pack(scale, min, b + QN__Q45K_SCALES);
    qn__store_f16(b + QN__Q45K_D, c->d);
    qn__store_f16(b + QN__Q45K_DMIN, c->dmin);
}

void qn__encode_q4_k(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    static const shape f = {8, 32, 0, 63, {.low = 0, .high = 15, .reach = 1, .trials = 10}};
    uint8_t *b = blocks, codes[QN__QK];
    choice c;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, importance = next_block(importance)) {
        search_block(&f, values + i * QN__QK, importance, &c, codes);
        store_head(&c, b);
        pack_planes(codes, 32, 4, 0, b + QN__Q4K_CODES);
    }
}

void qn__encode_q5_k(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    static const shape f = {8, 32, 0, 63, {.low = 0, .high = 31, .reach = 1, .trials = 10}};
    uint8_t *b = blocks, codes[QN__QK];
    choice c;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, importance = next_block(importance)) {
        search_block(&f, values + i * QN__QK, importance, &c, codes);
        store_head(&c, b);
        pack_planes(codes, 32, 4, 0, b + QN__Q5K_CODES);
        pack_planes(codes, 32, 1, 4, b + QN__Q5K_HIGH);
    }
}

void qn__encode_q6_k(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    static const shape f = {16, 16, -128, 127, {.low = -32, .high = 31, .reach = 1, .trials = 6}};
    uint8_t *b = blocks, codes[QN__QK];
    choice c;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, importance = next_block(importance)) {
        search_block(&f, values + i * QN__QK, importance, &c, codes);
        for (int s = 0; s < 16; s++)
            b[QN__Q6K_SCALES + s] = (uint8_t)(int8_t)c.scale[s];
        pack_planes(codes, 64, 4, 0, b + QN__Q6K_CODES);
        pack_planes(codes, 32, 2, 4, b + QN__Q6K_HIGH);
        qn__store_f16(b + QN__Q6K_D, c.d);
    }
}

void qn__encode_iq4_xs(const qn__encoding *e, const float *values, const float *importance,
                       size_t n, void *blocks)
{
    static const shape f = {
        8, 32, -32, 31, {.low = -127, .high = 113, .reach = 14, .trials = 8, .curve = true}};
    uint8_t *b = blocks, codes[QN__QK];
    choice c;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, importance = next_block(importance)) {
        search_block(&f, values + i * QN__QK, importance, &c, codes);
        uint16_t high = 0;
        memset(b + 4, 0, 4);
        for (int s = 0; s < 8; s++) {
            int scale = c.scale[s] + 32;
            b[4 + s / 2] |= (uint8_t)((scale & 15) << s % 2 * 4);
            high |= (uint16_t)(scale >> 4 << 2 * s);
            for (int j = 0; j < 16; j++)
                b[8 + 16 * s + j] = (uint8_t)(codes[32 * s + j] | codes[32 * s + 16 + j] << 4);
        }
        qn__store_f16(b, c.d);
        qn__store_u16(b + 2, high);
    }
}
