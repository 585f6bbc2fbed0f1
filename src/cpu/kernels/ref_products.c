/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference: linear on packed weights, both ways, with products in f32 and bf16, and the plain
 * strided matmul in f32 and f64.
 *
 * Approach: one unit at a time as f32 (widen.inl), plain loops, one accumulator an output, in order
 * of the reduced index, products and sums rounded separately. bf16 weights multiply x rounded to
 * bf16, summed in f32. Invariant: an output depends on its own row of x and of W only.
 */
#include "kernels.h"
#include "vec_ref.h"

#include "widen.inl"

/* Prepared x: plain rows. */
static void ref_prepare_f32(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                            size_t k, size_t m0, size_t m1)
{
    (void)l, (void)m;
    for (size_t r = m0; r < m1; r++)
        memcpy((float *)dst + r * k, x + r * ldx, k * sizeof *x);
}

static void ref_prepare_bf16(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                             size_t k, size_t m0, size_t m1)
{
    (void)l, (void)m;
    for (size_t r = m0; r < m1; r++)
        for (size_t i = 0; i < k; i++)
            ((float *)dst)[r * k + i] = qn__cpu_f32_of_bf16(qn__cpu_bf16_of_f32(x[r * ldx + i]));
}

static void ref_linear(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    float w[256 * 16];
    const qn__layout *l = a->layout;
    for (size_t p = p0; p < p1; p++) {
        size_t lanes = a->n - p * 16 < 16 ? a->n - p * 16 : 16;
        for (size_t c = 0; c < a->k; c += l->columns) {
            size_t columns = a->k - c < l->columns ? a->k - c : l->columns;
            widen_panel(l, a->unpack, a->w, a->k, p, c / l->columns, 1, w);
            for (size_t r = a->m0; r < a->m1; r++)
                for (size_t j = 0; j < lanes; j++) {
                    float *y = a->y + r * a->ldy + p * 16 + j, sum = c ? *y : 0.0f;
                    for (size_t i = 0; i < columns; i++)
                        sum += ((const float *)a->x)[r * a->k + c + i] * w[i * 16 + j];
                    *y = sum;
                }
        }
    }
}

static void ref_prepare_back_f32(void *dst, const float *x, size_t ldx, size_t m, size_t k,
                                 size_t m0, size_t m1)
{
    ref_prepare_f32(NULL, dst, x, ldx, m, k, m0, m1);
}

static void ref_prepare_back_bf16(void *dst, const float *x, size_t ldx, size_t m, size_t k,
                                  size_t m0, size_t m1)
{
    ref_prepare_bf16(NULL, dst, x, ldx, m, k, m0, m1);
}

static void ref_back(const qn__cpu_linear *a, bool half, size_t p0, size_t p1)
{
    float w[256 * 16];
    const qn__layout *l = a->layout;
    size_t panels = qn__cpu_panels(a->n), k1 = p1 * 16 < a->k ? p1 * 16 : a->k;
    for (size_t c = p0 * 16; c < k1; c += l->columns)
        for (size_t p = 0; p < panels; p++) {
            size_t lanes = a->n - p * 16 < 16 ? a->n - p * 16 : 16;
            widen_panel(l, a->unpack, a->w, a->k, p, c / l->columns, 1, w);
            for (size_t i = 0; half && i < l->columns * 16u; i++)
                w[i] = qn__cpu_f32_of_bf16(qn__cpu_bf16_of_f32(w[i]));
            for (size_t r = a->m0; r < a->m1; r++)
                for (size_t i = c; i < c + l->columns && i < k1; i++) {
                    float *y = a->y + r * a->ldy + i, sum = p || a->add ? *y : 0.0f;
                    for (size_t j = 0; j < lanes; j++)
                        sum += ((const float *)a->x)[r * a->n + p * 16 + j] * w[(i - c) * 16 + j];
                    *y = sum;
                }
        }
}

static void ref_back_f32(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    ref_back(a, false, p0, p1);
}

static void ref_back_bf16(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    ref_back(a, true, p0, p1);
}

static void ref_dense(const qn__cpu_dense *a, size_t m0, size_t m1)
{
    for (size_t r = m0; r < m1; r++) {
        for (size_t j = 0; j < a->n; j++) {
            float *c = a->c + (ptrdiff_t)r * a->ldc + (ptrdiff_t)j, sum = a->add ? *c : 0.0f;
            for (size_t i = 0; i < a->k; i++)
                sum += a->a[(ptrdiff_t)r * a->ras + (ptrdiff_t)i * a->cas] *
                       a->b[(ptrdiff_t)i * a->rbs + (ptrdiff_t)j * a->cbs];
            *c = sum;
        }
    }
}

static void ref_dense_f64(const qn__cpu_dense_f64 *a, size_t m0, size_t m1)
{
    for (size_t r = m0; r < m1; r++) {
        for (size_t j = 0; j < a->n; j++) {
            double *c = a->c + (ptrdiff_t)r * a->ldc + (ptrdiff_t)j, sum = a->add ? *c : 0.0;
            for (size_t i = 0; i < a->k; i++)
                sum += a->a[(ptrdiff_t)r * a->ras + (ptrdiff_t)i * a->cas] *
                       a->b[(ptrdiff_t)i * a->rbs + (ptrdiff_t)j * a->cbs];
            *c = sum;
        }
    }
}

void qn__cpu_fill_ref_products(qn__cpu_kernels *t)
{
    t->prepare[QN__CPU_F32] = ref_prepare_f32;
    t->prepare[QN__CPU_BF16] = ref_prepare_bf16;
    t->linear[QN__CPU_F32] = t->linear[QN__CPU_BF16] = ref_linear;
    t->linear_back[QN__CPU_F32] = ref_back_f32;
    t->linear_back[QN__CPU_BF16] = ref_back_bf16;
    t->prepare_back[QN__CPU_F32] = ref_prepare_back_f32;
    t->prepare_back[QN__CPU_BF16] = ref_prepare_back_bf16;
    t->cut[QN__CPU_F32] = t->cut[QN__CPU_BF16] = (qn__cpu_cut){24, 3, 96};
    t->dense = ref_dense;
    t->dense_f64 = ref_dense_f64;
}
