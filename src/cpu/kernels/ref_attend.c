/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference: attention of one KV head over pages, and the cache writer.
 *
 * Approach: one row (token, head) at a time, keys page by page, online softmax merged left to
 * right, plain sums in key order; spans merged left to right. Only keys that the row sees are read.
 * Invariant: a row's bits depend on its q, its range and the keys and values inside it.
 */
#include <stdbool.h>
#include <math.h>

#include "half.h"
#include "kernels.h"

static float ref_element(qn__cpu_type type, const void *p, size_t i)
{
    if (type == QN__CPU_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == QN__CPU_BF16 ? qn__cpu_f32_of_bf16(h) : qn__cpu_f32_of_f16(h);
}

static void ref_store(qn__cpu_type type, void *p, size_t i, float f)
{
    if (type == QN__CPU_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = type == QN__CPU_BF16 ? qn__cpu_bf16_of_f32(f) : qn__cpu_f16_of_f32(f);
}

/* The key or value of position s, of d elements, as f32. */
static void ref_row_at(const qn__cpu_attend *a, const qn__cpu_pages *p, bool keys, size_t d,
                       size_t s, float *to)
{
    size_t at = s % QN__CPU_PAGE;
    const char *page = (const char *)p->at + (size_t)a->pages[s / QN__CPU_PAGE] * p->page;
    if (p->layout)
        qn__layout_row_values(p->layout, page, (int64_t)d, (int64_t)at, to);
    for (size_t i = 0; !p->layout && i < d; i++)
        to[i] = ref_element(p->type, page, keys ? qn__cpu_key_place(d, at, i) : at * d + i);
}

/* The bounds of what token t sees of positions low .. high - 1; kept keys apart. */
static size_t ref_begin(const qn__cpu_attend *a, size_t t, size_t low)
{
    size_t begin = a->begin[t] > 0 ? (size_t)a->begin[t] : 0;
    return begin > low ? begin : low;
}

static size_t ref_end(const qn__cpu_attend *a, size_t t, size_t high)
{
    size_t end = a->end[t] > 0 ? (size_t)a->end[t] : 0;
    return end < high ? end : high;
}

static bool ref_sees(const qn__cpu_attend *a, size_t t, size_t s)
{
    bool some = a->begin[t] < a->end[t] && a->end[t] > 0;
    return some && s < (size_t)a->end[t] && (s < a->keep || a->begin[t] <= (int32_t)s);
}

static float ref_score(const qn__cpu_attend *a, const float *q, size_t s, float *key)
{
    float sum = 0.0f;
    ref_row_at(a, &a->k, true, a->d, s, key);
    for (size_t i = 0; i < a->d; i++)
        sum += q[i] * key[i];
    sum *= a->scale;
    return a->softcap > 0.0f ? a->softcap * tanhf(sum / a->softcap) : sum;
}

/* A row's part of a state: the weighted sum of values, the largest score, the sum of weights. */
typedef struct ref_row {
    float *acc, *top, *total;
} ref_row;

static ref_row ref_row_of(const qn__cpu_attend *a, float *state, size_t row)
{
    size_t rows = a->tokens * a->heads, dv16 = (a->dv + 15) / 16 * 16;
    float *top = state + rows * dv16;
    return (ref_row){state + row * dv16, top + row, top + (rows + 15) / 16 * 16 + row};
}

/* The keys of one page that token t sees. */
static void ref_attend_page(const qn__cpu_attend *a, size_t t, const float *q, ref_row r,
                            size_t page, float *one)
{
    float p[QN__CPU_PAGE], top = *r.top, part = 0.0f;
    size_t first = page * QN__CPU_PAGE;
    for (size_t s = 0; s < QN__CPU_PAGE; s++) {
        if (!ref_sees(a, t, first + s))
            continue;
        p[s] = ref_score(a, q, first + s, one);
        top = p[s] > top || p[s] != p[s] ? p[s] : top;
    }
    float base = top == -INFINITY ? 0.0f : top, fade = expf(*r.top - base);
    for (size_t i = 0; i < a->dv; i++)
        r.acc[i] *= fade;
    for (size_t s = 0; s < QN__CPU_PAGE; s++) {
        if (!ref_sees(a, t, first + s))
            continue;
        p[s] = expf(p[s] - base);
        part += p[s];
        ref_row_at(a, &a->v, false, a->dv, first + s, one);
        for (size_t i = 0; i < a->dv; i++)
            r.acc[i] += p[s] * one[i];
    }
    *r.total = *r.total * fade + part;
    *r.top = top;
}

static void ref_attend(const qn__cpu_attend *a, size_t span, float *state, void *scratch)
{
    size_t low = span * QN__CPU_SPAN, high = low + QN__CPU_SPAN;
    for (size_t row = 0; row < a->tokens * a->heads; row++) {
        ref_row r = ref_row_of(a, state, row);
        size_t t = row / a->heads, h = row % a->heads;
        memset(r.acc, 0, a->dv * sizeof *r.acc);
        *r.top = -INFINITY;
        *r.total = 0.0f;
        size_t s = a->keep ? low : ref_begin(a, t, low), end = ref_end(a, t, high);
        for (size_t page = s / QN__CPU_PAGE; s < end && page * QN__CPU_PAGE < end; page++) {
            bool kept = a->keep && page == 0;
            if (kept || (page + 1) * QN__CPU_PAGE > ref_begin(a, t, low))
                ref_attend_page(a, t, a->q + t * a->q_token + h * a->q_head, r, page, scratch);
        }
    }
}

static void ref_attend_merge(const qn__cpu_attend *a, float *state, const float *later)
{
    for (size_t row = 0; row < a->tokens * a->heads; row++) {
        ref_row x = ref_row_of(a, state, row), y = ref_row_of(a, (float *)(uintptr_t)later, row);
        if (*y.total == 0.0f) /* it sees nothing there */
            continue;
        float top = *x.top > *y.top ? *x.top : *y.top;
        float fade = *x.total == 0.0f ? 0.0f : expf(*x.top - top), grow = expf(*y.top - top);
        for (size_t i = 0; i < a->dv; i++)
            x.acc[i] = x.acc[i] * fade + y.acc[i] * grow;
        *x.total = *x.total * fade + *y.total * grow;
        *x.top = top;
    }
}

static void ref_attend_finish(const qn__cpu_attend *a, const float *state)
{
    for (size_t row = 0; row < a->tokens * a->heads; row++) {
        ref_row r = ref_row_of(a, (float *)(uintptr_t)state, row);
        size_t t = row / a->heads, h = row % a->heads;
        float *o = a->o + t * a->o_token + h * a->o_head, total = *r.total, fade = 1.0f;
        if (a->sink && a->begin[t] < a->end[t]) {
            float top = a->sink[h] > *r.top ? a->sink[h] : *r.top;
            float base = top == -INFINITY ? 0.0f : top;
            fade = expf(*r.top - base);
            total = total * fade + expf(a->sink[h] - base);
        }
        for (size_t i = 0; i < a->dv; i++)
            o[i] = total == 0.0f ? 0.0f : r.acc[i] * fade / total;
    }
}

static size_t ref_round(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* For every tier: output sums, the largest scores and the sums of weights; see attend.inl. */
static size_t ref_attend_state(size_t tokens, size_t heads, size_t dv)
{
    size_t rows = tokens * heads;
    return 4 * (rows * ref_round(dv) + 2 * ref_round(rows));
}

/* Probabilities, two f32 copies of a page, and a row of state. */
static size_t ref_attend_scratch(size_t tokens, size_t heads, size_t d, size_t dv)
{
    size_t rows = tokens * heads;
    return 4 * (rows * QN__CPU_PAGE + ref_round(rows) + QN__CPU_PAGE * (d + ref_round(dv)));
}

static void ref_cache_write(const qn__cpu_cache_write *a)
{
    for (size_t j = 0; j < a->n; j++)
        for (size_t i = 0; i < a->d; i++)
            ref_store(a->type, a->page,
                      a->keys ? qn__cpu_key_place(a->d, a->at + j, i) : (a->at + j) * a->d + i,
                      a->rows[j * a->ld_rows + i]);
}

void qn__cpu_fill_ref_attend(qn__cpu_kernels *t)
{
    t->cache_write = ref_cache_write;
    t->attend_state = ref_attend_state;
    t->attend_scratch = ref_attend_scratch;
    t->attend = ref_attend;
    t->attend_merge = ref_attend_merge;
    t->attend_finish = ref_attend_finish;
}
