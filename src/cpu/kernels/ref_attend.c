/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference: attention of one KV head over the blocked cache, and the cache writer.
 *
 * Approach: one row (token, head) at a time, keys in blocks of 64 anchored at key 0, online softmax
 * merged left to right, plain sums in key order. Only keys inside the row's range are read.
 * Invariant: a row's bits depend on its q, its range and the keys and values inside it.
 */
#include <stdbool.h>
#include <math.h>

#include "half.h"
#include "kernels.h"

enum { REF_BLOCK = 64 };

static size_t ref_key_slot(const uint32_t *pages, size_t s)
{
    return pages ? (size_t)pages[s / REF_BLOCK] * REF_BLOCK + s % REF_BLOCK : s;
}

static float ref_element(qn__cpu_type type, const void *p, size_t i)
{
    return type == QN__CPU_F32 ? ((const float *)p)[i]
                               : qn__cpu_f32_of_bf16(((const uint16_t *)p)[i]);
}

static void ref_store(qn__cpu_type type, void *p, size_t i, float f)
{
    if (type == QN__CPU_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = qn__cpu_bf16_of_f32(f);
}

static float ref_score(const qn__cpu_attend *a, const float *q, size_t s)
{
    size_t slot = ref_key_slot(a->pages, s);
    float sum = 0.0f;
    for (size_t i = 0; i < a->d; i++)
        sum += q[i] * ref_element(a->type, a->k, qn__cpu_key_place(a->d, slot, i));
    sum *= a->scale;
    return a->softcap > 0.0f ? a->softcap * tanhf(sum / a->softcap) : sum;
}

static void ref_attend_row(const qn__cpu_attend *a, const float *q, float *o, size_t begin,
                           size_t end, const float *sink)
{
    float max = -INFINITY, total = 0.0f;
    for (size_t i = 0; i < a->dv; i++)
        o[i] = 0.0f;
    for (size_t s0 = a->keep ? 0 : begin; begin < end && s0 < end;) {
        bool kept = s0 < a->keep;
        size_t last = kept ? a->keep : end, block = (s0 / REF_BLOCK + 1) * REF_BLOCK;
        size_t s1 = block < last ? block : last;
        float p[REF_BLOCK], top = max;
        for (size_t s = s0; s < s1; s++) {
            p[s - s0] = ref_score(a, q, s);
            top = p[s - s0] > top || p[s - s0] != p[s - s0] ? p[s - s0] : top;
        }
        float base = top == -INFINITY ? 0.0f : top, fade = expf(max - base), part = 0.0f;
        for (size_t s = s0; s < s1; s++) {
            p[s - s0] = expf(p[s - s0] - base);
            part += p[s - s0];
        }
        total = total * fade + part;
        for (size_t i = 0; i < a->dv; i++)
            o[i] *= fade;
        for (size_t s = s0; s < s1; s++) {
            size_t slot = ref_key_slot(a->pages, s);
            for (size_t i = 0; i < a->dv; i++)
                o[i] += p[s - s0] * ref_element(a->type, a->v, slot * a->ldv + i);
        }
        max = top;
        s0 = kept ? begin : s1;
    }
    float fade = 1.0f;
    if (sink && begin < end) {
        float top = *sink > max ? *sink : max, base = top == -INFINITY ? 0.0f : top;
        fade = expf(max - base);
        total = total * fade + expf(*sink - base);
    }
    for (size_t i = 0; i < a->dv; i++)
        o[i] = total == 0.0f ? 0.0f : o[i] * fade / total;
}

static void ref_attend(const qn__cpu_attend *a, void *scratch)
{
    (void)scratch;
    for (size_t t = 0; t < a->tokens; t++) {
        size_t begin = a->begin[t] > 0 ? (size_t)a->begin[t] : 0,
               end = a->end[t] > 0 ? (size_t)a->end[t] : 0;
        for (size_t h = 0; h < a->heads; h++)
            ref_attend_row(a, a->q + t * a->q_token + h * a->q_head,
                           a->o + t * a->o_token + h * a->o_head, begin, end,
                           a->sink ? a->sink + h : NULL);
    }
}

/* For every tier: output sums, probabilities, two f32 copies of a block of 64 keys, and rows of
 * state; see attend.inl. */
static size_t ref_attend_scratch(size_t tokens, size_t heads, size_t d, size_t dv)
{
    size_t rows = tokens * heads, dv16 = (dv + 15) / 16 * 16;
    return 4 * (rows * (dv16 + REF_BLOCK + 3 * 16) + REF_BLOCK * (d + dv16)) + 256;
}

static void ref_cache_write(const qn__cpu_cache_write *a)
{
    for (size_t j = 0; j < a->n; j++) {
        size_t slot = ref_key_slot(a->pages, a->pos + j);
        for (size_t i = 0; i < a->d; i++)
            ref_store(a->type, a->k, qn__cpu_key_place(a->d, slot, i),
                      a->k_rows[j * a->ldk_rows + i]);
        for (size_t i = 0; i < a->dv; i++)
            ref_store(a->type, a->v, slot * a->ldv + i, a->v_rows[j * a->ldv_rows + i]);
    }
}

void qn__cpu_fill_ref_attend(qn__cpu_kernels *t)
{
    t->cache_write = ref_cache_write;
    t->attend_scratch = ref_attend_scratch;
    t->attend = ref_attend;
}
