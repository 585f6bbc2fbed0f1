/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference: packed weights (pack, unpack, linear both ways) and the plain strided matmul in f32
 * and f64.
 *
 * Approach: the layouts of kernels.h read with plain loops, one accumulator an output, in order of
 * the reduced index, products and sums rounded separately. bf16 weights multiply x rounded to bf16,
 * summed in f32. Invariant: an output depends on its own row of x and of W only.
 */
#include <string.h>

#include "half.h"
#include "kernels.h"

static float ref_source(qn__cpu_type type, const void *src, size_t i)
{
    if (type == QN__CPU_F32) {
        float f;
        memcpy(&f, (const char *)src + 4 * i, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, (const char *)src + 2 * i, 2);
    return type == QN__CPU_BF16 ? qn__cpu_f32_of_bf16(h) : qn__cpu_f32_of_f16(h);
}

/* The place of W[row, k] in packed data, in elements. */
static size_t ref_place(qn__cpu_type type, size_t n_k, size_t row, size_t k)
{
    size_t panel = row / QN__CPU_PANEL, lane = row % QN__CPU_PANEL;
    if (type == QN__CPU_BF16)
        return (panel * ((n_k + 1) / 2) + k / 2) * 32 + 2 * lane + k % 2;
    return (panel * n_k + k) * 16 + lane;
}

static void ref_pack_one(qn__cpu_type type, void *w, size_t k, size_t row, qn__cpu_type src_type,
                         const void *src, size_t at, int zero)
{
    size_t k_all = type == QN__CPU_BF16 ? (k + 1) / 2 * 2 : k;
    for (size_t i = 0; i < k_all; i++) {
        size_t place = ref_place(type, k, row, i);
        int pad = zero || i >= k;
        if (type == QN__CPU_F32) {
            ((float *)w)[place] = pad ? 0.0f : ref_source(src_type, src, at + i);
        } else if (src_type == QN__CPU_BF16 && !pad) { /* as stored, NaN payloads too */
            memcpy((uint16_t *)w + place, (const char *)src + 2 * (at + i), 2);
        } else {
            ((uint16_t *)w)[place] =
                pad ? 0 : qn__cpu_bf16_of_f32(ref_source(src_type, src, at + i));
        }
    }
}

static void ref_pack_rows(qn__cpu_type type, void *w, size_t n, size_t k, qn__cpu_type src_type,
                          const void *src, size_t ld, size_t n0, size_t n1)
{
    for (size_t row = n0; row < n1; row++)
        ref_pack_one(type, w, k, row, src_type, src, (row - n0) * ld, 0);
    if (n1 == n && n0 < n1)
        for (size_t row = n; row < qn__cpu_panels(n) * QN__CPU_PANEL; row++)
            ref_pack_one(type, w, k, row, src_type, src, 0, 1);
}

static void ref_unpack_raw(qn__cpu_type type, const void *w, size_t n, size_t k, size_t row,
                           void *dst)
{
    (void)n;
    for (size_t i = 0; i < k; i++) {
        size_t place = ref_place(type, k, row, i);
        if (type == QN__CPU_F32)
            ((float *)dst)[i] = ((const float *)w)[place];
        else
            ((uint16_t *)dst)[i] = ((const uint16_t *)w)[place];
    }
}

/* Prepared x: plain rows, [m][k] f32 or [m][k rounded up to even] bf16. */
static void ref_prepare(qn__cpu_type type, void *dst, const float *x, size_t ldx, size_t m,
                        size_t k, size_t m0, size_t m1)
{
    (void)m;
    for (size_t r = m0; r < m1; r++) {
        if (type == QN__CPU_F32) {
            for (size_t i = 0; i < k; i++)
                ((float *)dst)[r * k + i] = x[r * ldx + i];
            continue;
        }
        uint16_t *row = (uint16_t *)dst + r * ((k + 1) / 2 * 2);
        for (size_t i = 0; i < k; i++)
            row[i] = qn__cpu_bf16_of_f32(x[r * ldx + i]);
        if (k % 2)
            row[k] = 0;
    }
}

static void ref_linear(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    size_t n1 = p1 * QN__CPU_PANEL < a->n ? p1 * QN__CPU_PANEL : a->n;
    for (size_t r = a->m0; r < a->m1; r++) {
        for (size_t j = p0 * QN__CPU_PANEL; j < n1; j++) {
            float sum = 0.0f;
            for (size_t i = 0; i < a->k; i++) {
                size_t place = ref_place(a->type, a->k, j, i);
                if (a->type == QN__CPU_F32)
                    sum += ((const float *)a->x)[r * a->k + i] * ((const float *)a->w)[place];
                else
                    sum += qn__cpu_f32_of_bf16(
                               ((const uint16_t *)a->x)[r * ((a->k + 1) / 2 * 2) + i]) *
                           qn__cpu_f32_of_bf16(((const uint16_t *)a->w)[place]);
            }
            a->y[r * a->ldy + j] = sum;
        }
    }
}

static void ref_linear_back(const qn__cpu_linear_back *a, size_t k0, size_t k1)
{
    for (size_t r = 0; r < a->m; r++) {
        for (size_t i = k0; i < k1; i++) {
            float sum = 0.0f;
            for (size_t j = 0; j < a->n; j++) {
                size_t place = ref_place(a->type, a->k, j, i);
                float w = a->type == QN__CPU_F32
                              ? ((const float *)a->w)[place]
                              : qn__cpu_f32_of_bf16(((const uint16_t *)a->w)[place]);
                sum += a->g[r * a->ldg + j] * w;
            }
            a->y[r * a->ldy + i] = sum;
        }
    }
}

static void ref_dense(const qn__cpu_dense *a, size_t m0, size_t m1)
{
    for (size_t r = m0; r < m1; r++) {
        for (size_t j = 0; j < a->n; j++) {
            float sum = 0.0f;
            for (size_t i = 0; i < a->k; i++)
                sum += a->a[(ptrdiff_t)r * a->ras + (ptrdiff_t)i * a->cas] *
                       a->b[(ptrdiff_t)i * a->rbs + (ptrdiff_t)j * a->cbs];
            a->c[(ptrdiff_t)r * a->ldc + (ptrdiff_t)j] = sum;
        }
    }
}

static void ref_dense_f64(const qn__cpu_dense_f64 *a, size_t m0, size_t m1)
{
    for (size_t r = m0; r < m1; r++) {
        for (size_t j = 0; j < a->n; j++) {
            double sum = 0.0;
            for (size_t i = 0; i < a->k; i++)
                sum += a->a[(ptrdiff_t)r * a->ras + (ptrdiff_t)i * a->cas] *
                       a->b[(ptrdiff_t)i * a->rbs + (ptrdiff_t)j * a->cbs];
            a->c[(ptrdiff_t)r * a->ldc + (ptrdiff_t)j] = sum;
        }
    }
}

void qn__cpu_fill_ref_products(qn__cpu_kernels *t)
{
    t->pack_rows = ref_pack_rows;
    t->unpack_raw = ref_unpack_raw;
    t->prepare = ref_prepare;
    t->linear = ref_linear;
    t->linear_back = ref_linear_back;
    t->dense = ref_dense;
    t->dense_f64 = ref_dense_f64;
}
