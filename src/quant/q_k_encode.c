/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing GGUF's K-formats; q_k.h says what they are, search.h how a sub-block's scale is found.
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
    int subs, n;   /* sub-blocks, values of each */
    int low, high; /* codes; low is 0 where there is a min */
    int scale_low, scale_high;
    float reach;
    int trials;
} shape;

/* What is chosen for one block. */
typedef struct choice {
    float d, dmin; /* as f16 has them */
    int scale[MOST_SUBS], min[MOST_SUBS];
    float error;
} choice;

static float as_f16(float v)
{
    uint8_t b[2];
    qn__store_f16(b, v);
    return qn__load_f16(b);
}

/* The nearest whole number from low to high. */
static int nearest(float v, int low, int high)
{
    return qn__round(qn__clamp(v, (float)low, (float)high));
}

/* Sums for the least squares of d and dmin: x ~ d * (scale * code) - dmin * min. */
typedef struct normal {
    float uu, um, mm, ux, mx;
} normal;

/* For c's d and dmin the best codes for the scales and mins near those wanted. */
static void choose_above(const shape *f, const float *x, const float *w, const float *scale,
                         const float *min, choice *c, normal *sums)
{
    float per_d = qn__inverse(c->d), per_dmin = qn__inverse(c->dmin);
    *sums = (normal){0};
    c->error = 0;
    for (int s = 0; s < f->subs; s++, x += f->n, w += f->n) {
        int s0 = nearest(scale[s] * per_d, 0, f->scale_high);
        int m0 = nearest(min[s] * per_dmin, 0, f->scale_high);
        float best = INFINITY;
        qn__fit fit, best_fit = {0};
        for (int i = s0 > 0 ? s0 - 1 : 0; i <= s0 + 1 && i <= f->scale_high; i++)
            for (int j = m0 > 0 ? m0 - 1 : 0; j <= m0 + 1 && j <= f->scale_high; j++) {
                float error =
                    qn__error_above(x, w, f->n, f->high, c->d * (float)i, c->dmin * (float)j, &fit);
                if (error < best) {
                    best = error;
                    best_fit = fit;
                    c->scale[s] = i;
                    c->min[s] = j;
                }
            }
        float u = (float)c->scale[s], m = (float)c->min[s], sw = 0, swx = 0;
        for (int j = 0; j < f->n; j++) {
            sw += w[j];
            swx += w[j] * x[j];
        }
        sums->uu += u * u * best_fit.wll;
        sums->um += u * m * best_fit.wl;
        sums->mm += m * m * sw;
        sums->ux += u * best_fit.wxl;
        sums->mx += m * swx;
        c->error += best;
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
    float scale[MOST_SUBS], min[MOST_SUBS], most = 0, most_min = 0;
    for (int s = 0; s < f->subs; s++) {
        qn__search_above(x + s * f->n, w + s * f->n, f->n, f->high, f->reach, f->trials, &scale[s],
                         &min[s]);
        most = scale[s] > most ? scale[s] : most;
        most_min = min[s] > most_min ? min[s] : most_min;
    }
    normal sums;
    c->d = as_f16(most / (float)f->scale_high);
    c->dmin = as_f16(most_min / (float)f->scale_high);
    choose_above(f, x, w, scale, min, c, &sums);
    for (int round = 0; round < 2; round++) {
        choice again = *c;
        solve_normal(&sums, &again.d, &again.dmin);
        again.d = as_f16(again.d > 0 ? again.d : 0);
        again.dmin = as_f16(again.dmin > 0 ? again.dmin : 0);
        if (again.d == c->d && again.dmin == c->dmin)
            break;
        choose_above(f, x, w, scale, min, &again, &sums);
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
            float error = qn__error_around(x, w, f->n, f->low, f->high, c->d * (float)i, &fit);
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
    float scale[MOST_SUBS], most = 0;
    for (int s = 0; s < f->subs; s++) {
        scale[s] = qn__search_around(x + s * f->n, w + s * f->n, f->n, f->low, f->high, f->reach,
                                     f->trials);
        most = fabsf(scale[s]) > fabsf(most) ? scale[s] : most;
    }
    normal sums;
    c->d = as_f16(most / (float)f->scale_low);
    choose_around(f, x, w, scale, c, &sums);
    for (int round = 0; round < 2 && sums.uu > 0; round++) {
        choice again = *c;
        again.d = as_f16(sums.ux / sums.uu);
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
    if (!qn__search_begin(values, importance, QN__QK, x, w)) {
        memset(codes, f->low ? -f->low : 0, QN__QK);
        return;
    }
    if (f->low == 0)
        search_block_above(f, x, w, c);
    else
        search_block_around(f, x, w, c);
    for (int s = 0; s < f->subs; s++) {
        int at = s * f->n;
        float scale = c->d * (float)c->scale[s];
        if (f->low == 0)
            qn__codes_above(x + at, f->n, f->high, scale, c->dmin * (float)c->min[s], codes + at);
        else
            qn__codes_around(x + at, f->n, f->low, f->high, scale, codes + at);
    }
}

static const float *next_block(const float *importance)
{
    return importance ? importance + QN__QK : NULL;
}

void qn__encode_q2_k(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    static const shape f = {16, 16, 0, 3, 0, 15, 0.8f, 16};
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
    static const shape f = {16, 16, -4, 3, -32, 31, 0.9f, 10};
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
    static const shape f = {8, 32, 0, 15, 0, 63, 1.0f, 14};
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
    static const shape f = {8, 32, 0, 31, 0, 63, 1.0f, 14};
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
    static const shape f = {16, 16, -32, 31, -128, 127, 1.0f, 8};
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
