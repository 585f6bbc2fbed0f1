/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised matrices as plain arrays, as MLX has them: codes in words of 32 bits, a scale and a
 * bias for each group of columns. Written with other operations, so that they run on every device
 * and differentiate to x, scales and biases; a device may have a kernel for products, which reads
 * the words. Weights that are multiplied again and again are packed instead (qn_pack_quantized),
 * and stream.
 *
 * 32 codes take `bits` words, whatever the width: code i begins at bit i * bits. The tables below
 * say for such a run from which words a code is gathered, and how a word is put together.
 */
#include "core/device.h"
#include "ops/ops.h"
#include "quant/encoding.h"

#include <stdlib.h>

enum { RUN = 32 };

static bool is_width(const qn_quantization *q)
{
    return q && qn__encoding_affine(q->bits, q->group_size, QN__F32) >= 0;
}

static qn_array *wrong_width(qn_scope *s, const char *op, const qn_array *x)
{
    return qn__op_fail(s, op, x, NULL,
                       "quantisation is of 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128");
}

static qn_array *table_i32(qn_scope *s, const int32_t *values, int64_t rows)
{
    const int64_t shape[] = {rows, RUN};
    return qn_from(s, QN_I32, rows > 1 ? 2 : 1, rows > 1 ? shape : shape + 1, values);
}

static qn_array *table_u32(qn_scope *s, const uint32_t *values, int64_t rows)
{
    const int64_t shape[] = {rows, RUN};
    return qn_from(s, QN_U32, rows > 1 ? 2 : 1, rows > 1 ? shape : shape + 1, values);
}

/* x with its last axis cut into [n / last, last]. */
static qn_array *split_last(qn_scope *s, qn_array *x, int64_t last)
{
    int64_t shape[QN_MAX_NDIM];
    if (qn__is_poison(s, x) || x->ndim >= QN_MAX_NDIM)
        return qn__is_poison(s, x) ? x : qn__op_fail(s, "quantize", x, NULL, "too many axes");
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = x->shape[x->ndim - 1] / last;
    shape[x->ndim] = last;
    return qn_reshape(s, x, x->ndim + 1, shape);
}

/* The last two axes as one. */
static qn_array *join_last(qn_scope *s, qn_array *x)
{
    int64_t shape[QN_MAX_NDIM];
    if (qn__is_poison(s, x))
        return x;
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 2] *= shape[x->ndim - 1];
    return qn_reshape(s, x, x->ndim - 1, shape);
}

/* ---- codes in words
 * -------------------------------------------------------------------------------------------- */

/* u32 codes [..., K] of words [..., K * bits / 32]. */
static qn_array *codes_of_words(qn_scope *s, qn_array *words, int bits)
{
    int32_t low[RUN], high[RUN];
    uint32_t right[RUN], left[RUN], keep[RUN];
    for (int i = 0; i < RUN; i++) {
        int at = i * bits, shift = at % 32;
        bool crosses = shift + bits > 32;
        low[i] = at / 32;
        high[i] = crosses ? at / 32 + 1 : at / 32;
        right[i] = (uint32_t)shift;
        left[i] = crosses ? (uint32_t)(32 - shift) : 0;
        keep[i] = crosses ? UINT32_MAX : 0;
    }
    words = split_last(s, words, bits);
    qn_array *a =
        qn_right_shift(s, qn_take(s, words, table_i32(s, low, 1), -1), table_u32(s, right, 1));
    qn_array *b = qn_take(s, words, table_i32(s, high, 1), -1);
    b = qn_left_shift(s, qn_bitwise_and(s, b, table_u32(s, keep, 1)), table_u32(s, left, 1));
    qn_array *mask = qn_scalar(s, QN_U32, (double)((1u << bits) - 1));
    return join_last(s, qn_bitwise_and(s, qn_bitwise_or(s, a, b), mask));
}

/* The words of u32 codes. */
static qn_array *words_of_codes(qn_scope *s, qn_array *codes, int bits)
{
    uint32_t left[8 * RUN], right[8 * RUN], keep[8 * RUN];
    for (int w = 0; w < bits; w++)
        for (int i = 0; i < RUN; i++) {
            int at = i * bits - 32 * w, k = w * RUN + i; /* where the code begins in this word */
            bool here = at > -bits && at < 32;
            left[k] = here && at > 0 ? (uint32_t)at : 0;
            right[k] = here && at < 0 ? (uint32_t)-at : 0;
            keep[k] = here ? UINT32_MAX : 0;
        }
    codes = qn_expand_dims(s, split_last(s, codes, RUN), -2); /* [..., K / 32, 1, 32] */
    codes = qn_right_shift(s, qn_left_shift(s, codes, table_u32(s, left, bits)),
                           table_u32(s, right, bits));
    codes = qn_bitwise_and(s, codes, table_u32(s, keep, bits));
    return join_last(s, qn_cast(s, qn_sum(s, codes, -1, false), QN_U32));
}

/* ---- quantize
 * ---------------------------------------------------------------------------------------------- */

qn_status qn_quantize(qn_scope *s, qn_array *w, const qn_quantization *q, qn_array **words,
                      qn_array **scales, qn_array **biases)
{
    *words = *scales = *biases = qn__poison(s);
    w = qn__input(s, w, "quantize");
    if (!w)
        return qn_scope_status(s);
    if (!is_width(q))
        wrong_width(s, "quantize", w);
    else if (w->ndim < 2 || w->layout || w->shape[w->ndim - 1] % q->group_size ||
             !qn__is_float((qn_dtype)w->dtype))
        qn__op_fail(s, "quantize", w, NULL, "w must be [..., N, K] of whole groups of floats");
    if (qn_scope_status(s) != QN_OK)
        return qn_scope_status(s);
    qn_dtype type = w->dtype == QN_F64 ? QN_F32 : (qn_dtype)w->dtype;
    qn_array *x = split_last(s, qn_stop_gradient(s, qn_cast(s, w, QN_F32)), q->group_size);
    qn_array *zero = qn_scalar(s, QN_F32, 0),
             *top = qn_scalar(s, QN_F32, (double)((1 << q->bits) - 1));
    qn_array *low = qn_min(s, x, -1, true), *high = qn_max(s, x, -1, true);
    qn_array *below = qn_greater(s, qn_abs(s, low), qn_abs(s, high));
    qn_array *scale = qn_maximum(s, qn_divide(s, qn_subtract(s, high, low), top),
                                 qn_scalar(s, QN_F32, (double)1e-7f));
    scale = qn_where(s, below, scale, qn_negative(s, scale));
    qn_array *edge = qn_where(s, below, low, high);
    qn_array *steps = qn_round(s, qn_divide(s, edge, scale)), *some = qn_not_equal(s, steps, zero);
    scale = qn_where(s, some, qn_divide(s, edge, steps), scale);
    qn_array *bias = qn_where(s, some, edge, zero);
    qn_array *codes =
        qn_clip(s, qn_round(s, qn_divide(s, qn_subtract(s, x, bias), scale)), zero, top);
    *words = words_of_codes(s, join_last(s, qn_cast(s, codes, QN_U32)), q->bits);
    *scales = qn_cast(s, join_last(s, scale), type);
    *biases = qn_cast(s, join_last(s, bias), type);
    return qn_scope_status(s);
}

/* Whether words, scales and biases belong together. */
static bool fit_each_other(const qn_array *words, const qn_array *scales, const qn_array *biases,
                           const qn_quantization *q)
{
    int n = words->ndim;
    if (words->dtype != QN_U32 || n < 2 || scales->ndim != n || biases->ndim != n ||
        !qn__is_float((qn_dtype)scales->dtype) || scales->dtype != biases->dtype)
        return false;
    for (int i = 0; i < n; i++)
        if (scales->shape[i] != biases->shape[i] ||
            (i + 1 < n && scales->shape[i] != words->shape[i]))
            return false;
    return words->shape[n - 1] * 32 == scales->shape[n - 1] * q->group_size * q->bits;
}

/* Brings the three into the scope; false with the failure recorded. */
static bool take_parts(qn_scope *s, const char *op, qn_array **words, qn_array **scales,
                       qn_array **biases, const qn_quantization *q)
{
    *words = qn__input(s, *words, op);
    *scales = *words ? qn__input(s, *scales, op) : NULL;
    *biases = *scales ? qn__input(s, *biases, op) : NULL;
    if (!*biases)
        return false;
    if (!is_width(q))
        return wrong_width(s, op, *words), false;
    if (!fit_each_other(*words, *scales, *biases, q))
        return qn__op_fail(s, op, *words, *scales,
                           "words must be u32 [..., K * bits / 32], scales and biases floats of "
                           "one type [..., K / group_size]"),
               false;
    return true;
}

qn_array *qn_dequantize(qn_scope *s, qn_array *words, qn_array *scales, qn_array *biases,
                        const qn_quantization *q)
{
    if (!take_parts(s, "dequantize", &words, &scales, &biases, q))
        return qn__poison(s);
    qn_array *codes = qn_cast(s, codes_of_words(s, words, q->bits), (qn_dtype)scales->dtype);
    codes = split_last(s, codes, q->group_size);
    codes = qn_multiply(s, codes, qn_expand_dims(s, scales, -1));
    return join_last(s, qn_add(s, codes, qn_expand_dims(s, biases, -1)));
}

/* ---- products
 * ---------------------------------------------------------------------------------------------- */

/* x [B, M, K] by w [B, N, K] or [1, N, K], or by those at `chosen` [B] of w [E, N, K], which may be
 * NULL. All is f32 but words, and scales and biases of any type. */
static qn_array *record_product(qn_scope *s, qn_array *x, qn_array *words, qn_array *scales,
                                qn_array *biases, qn_array *chosen, const qn_quantization *q)
{
    const qn__quantized_params params = {q->bits, q->group_size, chosen != NULL};
    qn_array *in[] = {qn_contiguous(s, x), qn_contiguous(s, words), qn_contiguous(s, scales),
                      qn_contiguous(s, biases), chosen ? qn_contiguous(s, chosen) : NULL};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    const int64_t shape[] = {in[0]->shape[0], in[0]->shape[1], in[1]->shape[1]};
    return qn__record(s, QN__OP_QUANTIZED_MATMUL, QN_F32, 3, shape, 4 + params.chosen, in, &params);
}

static qn_array *decompose_quantized_matmul(qn_scope *s, const qn_array *node)
{
    const qn__quantized_params *p = node->params;
    const qn_quantization q = {p->bits, p->group_size};
    qn_array *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = p->chosen ? qn_take(s, node->in[1 + i], node->in[4], 0) : node->in[1 + i];
    qn_array *w =
        qn_dequantize(s, part[0], qn_cast(s, part[1], QN_F32), qn_cast(s, part[2], QN_F32), &q);
    return qn_matmul(s, node->in[0], qn_swap_axes(s, w, -2, -1));
}

const qn__op_def qn__quantized_matmul_op = {.name = "quantized_matmul",
                                            .class = QN__KERNEL,
                                            .params_size = sizeof(qn__quantized_params),
                                            .decompose = decompose_quantized_matmul};

/* [..., rows, columns] as [B, rows, columns]. */
static qn_array *as_batch(qn_scope *s, qn_array *x)
{
    if (qn__is_poison(s, x))
        return x;
    return qn_reshape(s, x, 3, (const int64_t[]){-1, x->shape[x->ndim - 2], x->shape[x->ndim - 1]});
}

/* x [..., M, K] by one matrix, or by as many as it has, in the form that kernels have. NULL: it is
 * not of that form. */
static qn_array *product_of_kernel(qn_scope *s, qn_array *x, qn_array *words, qn_array *scales,
                                   qn_array *biases, const qn_quantization *q)
{
    const int n = words->ndim;
    const bool one = n == 2, each = x->ndim == n && !memcmp(x->shape, words->shape,
                                                            (size_t)(n - 2) * sizeof *x->shape);
    if (!one && !each)
        return NULL;
    int64_t shape[QN_MAX_NDIM];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = words->shape[n - 2];
    qn_array *rows =
        one ? qn_reshape(s, x, 3, (const int64_t[]){1, -1, x->shape[x->ndim - 1]}) : as_batch(s, x);
    qn_array *y = record_product(s, qn_cast(s, rows, QN_F32), as_batch(s, words),
                                 as_batch(s, scales), as_batch(s, biases), NULL, q);
    return qn_reshape(s, y, x->ndim, shape);
}

qn_array *qn_quantized_matmul(qn_scope *s, qn_array *x, qn_array *words, qn_array *scales,
                              qn_array *biases, bool transpose, const qn_quantization *q)
{
    x = qn__input(s, x, "quantized_matmul");
    if (!x || !take_parts(s, "quantized_matmul", &words, &scales, &biases, q))
        return qn__poison(s);
    int n = words->ndim;
    int64_t columns = scales->shape[n - 1] * q->group_size;
    if (x->ndim < 1 || !qn__is_float((qn_dtype)x->dtype) ||
        x->shape[x->ndim - 1] != (transpose ? columns : words->shape[n - 2]))
        return qn__op_fail(s, "quantized_matmul", x, words,
                           transpose ? "x must be floats [..., K] for w [..., N, K]"
                                     : "x must be floats [..., N] for w [..., N, K]");
    qn_dtype type = qn__dtype_promote((qn_dtype)x->dtype, (qn_dtype)scales->dtype);
    qn_dtype wide = type == QN_F64 ? QN_F64 : QN_F32; /* nothing is rounded between */
    qn_array *y =
        transpose && wide == QN_F32 ? product_of_kernel(s, x, words, scales, biases, q) : NULL;
    if (y)
        return qn_cast(s, y, type);
    qn_array *w = qn_dequantize(s, words, qn_cast(s, scales, wide), qn_cast(s, biases, wide), q);
    if (transpose)
        w = qn_swap_axes(s, w, -2, -1);
    return qn_cast(s, qn_matmul(s, qn_cast(s, x, wide), w), type);
}

/* [batch..., M, N] as [all of batch, M, N], and those at `indices`: [indices..., M, N]. */
static qn_array *gather_matrices(qn_scope *s, qn_array *x, qn_array *indices)
{
    if (qn__is_poison(s, x) || x->ndim < 2)
        return qn__is_poison(s, x) ? x : qn__op_fail(s, "gather_qmm", x, NULL, "not a matrix");
    int64_t shape[] = {-1, x->shape[x->ndim - 2], x->shape[x->ndim - 1]};
    return qn_take(s, qn_reshape(s, x, 3, shape), indices, 0);
}

/* Whether there is an index for each matrix of x [..., M, columns]; then they become i32 [B]. */
static bool chooses(qn_scope *s, const qn_array *x, int64_t columns, qn_array **indices)
{
    qn_array *ids = qn__input(s, *indices, "gather_qmm");
    if (!ids || x->shape[x->ndim - 1] != columns || ids->ndim != x->ndim - 2 ||
        qn__is_float((qn_dtype)ids->dtype) ||
        memcmp(ids->shape, x->shape, (size_t)ids->ndim * sizeof *ids->shape))
        return false;
    *indices = qn_reshape(s, qn__indices(s, ids), 1, (const int64_t[]){-1});
    return true;
}

qn_array *qn_gather_qmm(qn_scope *s, qn_array *x, qn_array *words, qn_array *scales,
                        qn_array *biases, qn_array *lhs, qn_array *rhs, bool transpose,
                        const qn_quantization *q)
{
    x = qn__input(s, x, "gather_qmm");
    if (!x || !take_parts(s, "gather_qmm", &words, &scales, &biases, q))
        return qn__poison(s);
    if (x->ndim < 2)
        return qn__op_fail(s, "gather_qmm", x, words, "x must be [..., M, K]");
    if (lhs)
        x = gather_matrices(s, x, lhs);
    if (qn__is_poison(s, x))
        return x;
    const qn_dtype type = qn__dtype_promote((qn_dtype)x->dtype, (qn_dtype)scales->dtype);
    const int64_t columns = scales->shape[scales->ndim - 1] * q->group_size;
    if (rhs && transpose && qn__is_float(type) && type != QN_F64 && chooses(s, x, columns, &rhs)) {
        int64_t shape[QN_MAX_NDIM];
        memcpy(shape, x->shape, sizeof shape);
        shape[x->ndim - 1] = words->shape[words->ndim - 2];
        qn_array *y = record_product(s, as_batch(s, qn_cast(s, x, QN_F32)), as_batch(s, words),
                                     as_batch(s, scales), as_batch(s, biases), rhs, q);
        return qn_cast(s, qn_reshape(s, y, x->ndim, shape), type);
    }
    if (rhs) {
        words = gather_matrices(s, words, rhs);
        scales = gather_matrices(s, scales, rhs);
        biases = gather_matrices(s, biases, rhs);
    }
    return qn_quantized_matmul(s, x, words, scales, biases, transpose, q);
}
