/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms and rope.
 */
#include "cases.h"

#include <string.h>

/* Sums along an axis, one after the other. */
static qn_array *sum_in_turn(qn_scope *s, qn_array *x, int axis)
{
    qn_array *sum = qn_slice(s, x, axis, 0, 1, 1);
    for (int64_t i = 1; i < qn_array_dim(x, axis); i++)
        sum = qn_add(s, sum, qn_slice(s, x, axis, i, i + 1, 1));
    return sum;
}
/* ... of those beside each other, until there is one number. */
static qn_array *sum_by_pairs(qn_scope *s, qn_array *x, int axis)
{
    while (qn_array_dim(x, axis) > 1)
        x = qn_add(s, qn_slice(s, x, axis, 0, INT64_MAX, 2), qn_slice(s, x, axis, 1, INT64_MAX, 2));
    return x;
}

/* The sum of squares of rows of x [rows, n], in the order of norm.cuh: a quad's by pairs, those of
 * quads a block apart in turn, halves of a warp, its other lanes and warps by pairs. */
static qn_array *sum_in_order(qn_scope *s, qn_array *x)
{
    enum { WARPS = QN__CUDA_THREADS / 32, BLOCK = 4 * QN__CUDA_THREADS };
    const int64_t rows = qn_array_dim(x, 0), n = qn_array_dim(x, 1), none[] = {0, 0},
                  times = (n + BLOCK - 1) / BLOCK;
    qn_array *sum = qn_pad(s, qn_square(s, x), none, (const int64_t[]){0, times * BLOCK - n}, 0);
    sum = sum_by_pairs(s, qn_reshape(s, sum, SHAPE(rows, times * BLOCK / 4, 4)), 2);
    sum = sum_in_turn(s, qn_reshape(s, sum, SHAPE(rows, times, WARPS, 2, 16)), 1);
    sum = sum_by_pairs(s, sum_by_pairs(s, sum_by_pairs(s, sum, 3), 4), 2);
    return qn_reshape(s, sum, SHAPE(rows, 1));
}

/* The norm of rows; not by CUDA: as plain operations, so that its bits can be told. */
static qn_array *norm_of_rows(qn_scope *s, qn_array *x, qn_array *weight, double eps)
{
    if (strncmp(qn_device_name(qn_scope_device(s)), "cuda", 4) == 0)
        return qn_rms_norm(s, x, weight, (float)eps);
    const double n = (double)qn_array_dim(x, 1);
    qn_array *mean = qn_divide(s, sum_in_order(s, x), qn_scalar(s, QN_F32, n));
    mean = qn_add(s, mean, qn_scalar(s, QN_F32, (double)(float)eps));
    x = qn_multiply(s, x, qn_divide(s, qn_scalar(s, QN_F32, 1), qn_sqrt(s, mean)));
    return weight ? qn_multiply(s, x, weight) : x;
}

static qn_array *op_rms_norm(qn_scope *s)
{
    return norm_of_rows(s, f32(s, SHAPE(15, 300)), f32(s, SHAPE(300)), 1e-5);
}
static qn_array *op_rms_norm_bare(qn_scope *s)
{
    return norm_of_rows(s, qn_swap_axes(s, f32(s, SHAPE(48, 5)), 0, 1), NULL, 1e-6);
}
static qn_array *op_rms_norm_f64(qn_scope *s)
{
    return qn_rms_norm(s, noise(s, QN_F64, 1, SHAPE(3, 31)), NULL, 1e-6f);
}
/* Rows alone, several of each length, since another order has the same bits now and then. */
static qn_array *op_norm_of_one(qn_scope *s)
{
    static const int64_t lengths[] = {960, 1152, 2560, 4096, 6912, 8192};
    qn_array *of[4 * sizeof lengths / sizeof *lengths];
    int n = 0;
    for (; n < (int)(sizeof of / sizeof *of); n++) {
        const int64_t length = lengths[n / 4];
        of[n] = norm_of_rows(s, f32(s, SHAPE(1, length)), f32(s, SHAPE(length)), 1e-5);
    }
    return qn_concatenate(s, of, n, 1);
}
/* A norm, the sum behind it and the norm of that, which are one launch; rows of four quads a thread
 * and less, and of eight. */
static qn_array *norm_of_sum(qn_scope *s, int64_t rows, int64_t n)
{
    qn_array *h = f32(s, SHAPE(rows, n));
    h = qn_add(s, h, norm_of_rows(s, f32(s, SHAPE(rows, n)), f32(s, SHAPE(n)), 1e-5));
    return qn_concatenate(s, (qn_array *[]){h, norm_of_rows(s, h, f32(s, SHAPE(n)), 1e-2)}, 2, 0);
}
static qn_array *op_norm_of_sum(qn_scope *s)
{
    return norm_of_sum(s, 1, 1152);
}
static qn_array *op_norm_of_sum_4096(qn_scope *s)
{
    return norm_of_sum(s, 70, 4096);
}
static qn_array *op_norm_of_sum_8192(qn_scope *s)
{
    return norm_of_sum(s, 3, 8192);
}
/* Norms of two arrays, with a weight each, which are one launch. The arrays are intermediate, so
 * that the second result may lie where the first array was. */
static qn_array *norms(qn_scope *s, int64_t rows, int64_t others, int64_t n)
{
    qn_array *x = qn_square(s, f32(s, SHAPE(rows, n))), *y = qn_square(s, f32(s, SHAPE(others, n)));
    x = norm_of_rows(s, x, f32(s, SHAPE(n)), 1e-6);
    y = norm_of_rows(s, y, f32(s, SHAPE(n)), 1e-6);
    return qn_concatenate(s, (qn_array *[]){x, y}, 2, 0);
}
static qn_array *op_norms(qn_scope *s)
{
    return norms(s, 4, 1, 256);
}
static qn_array *op_norms_wide(qn_scope *s)
{
    return norms(s, 3, 170, 512);
}
static qn_array *op_norms_narrow(qn_scope *s)
{
    return norms(s, 700, 20, 4);
}
/* One reads the other: two launches. */
static qn_array *op_norms_in_turn(qn_scope *s)
{
    qn_array *x = norm_of_rows(s, f32(s, SHAPE(5, 256)), f32(s, SHAPE(256)), 1e-6);
    return qn_add(s, x, norm_of_rows(s, x, f32(s, SHAPE(256)), 1e-6));
}
/* Rows of a table as f32, times a number where there is one, and the norm of these: one launch up
 * to 4096 columns. */
qn_array *embedded(qn_scope *s, qn_array *table, int64_t rows, int64_t n, double factor)
{
    qn_array *h = qn_cast(s, qn_take(s, table, indices(s, 40, true, SHAPE(rows)), 0), QN_F32);
    if (factor != 1)
        h = qn_multiply(s, h, qn_scalar(s, QN_F32, factor));
    qn_array *y = norm_of_rows(s, h, f32(s, SHAPE(n)), 1e-6);
    return qn_concatenate(s, (qn_array *[]){h, y}, 2, 0);
}
static qn_array *embedded_of(qn_scope *s, qn_dtype type, int64_t rows, int64_t n, double factor)
{
    return embedded(s, noise(s, type, 1, SHAPE(40, n)), rows, n, factor);
}
static qn_array *op_embedded(qn_scope *s)
{
    return embedded_of(s, QN_BF16, 1, 2048, 1);
}
static qn_array *op_embedded_scaled(qn_scope *s)
{
    return embedded_of(s, QN_F16, 7, 1152, 33.9);
}
static qn_array *op_embedded_f32(qn_scope *s)
{
    return embedded_of(s, QN_F32, 300, 4096, 0.3);
}
static qn_array *op_embedded_wide(qn_scope *s) /* a norm of its own */
{
    return embedded_of(s, QN_BF16, 3, 4100, 1);
}
static qn_array *op_embedded_odd(qn_scope *s) /* and no vectors */
{
    return embedded_of(s, QN_BF16, 3, 77, 2);
}
static qn_array *op_layer_norm(qn_scope *s)
{
    return qn_layer_norm(s, f32(s, SHAPE(6, 77)), f32(s, SHAPE(77)), f32(s, SHAPE(77)), 1e-5f);
}

/* Draws where no rounding decides: the largest logit, by several blocks of a row up to 256 rows; a
 * row of three has a bias, and is one block's. Some logits are equal, and a row has no number. */
static qn_array *draws(qn_scope *s, int64_t rows, int64_t vocab)
{
    qn__sample_row *row = calloc((size_t)rows, sizeof *row);
    qn__sample_entry entry = {.id = 7, .bias = 3};
    qn_array *logits =
                 qn_round(s, qn_multiply(s, f32(s, SHAPE(rows, vocab)), qn_scalar(s, QN_F32, 200))),
             *y = qn__poison(s);
    qn_array *none =
        qn_cast(s, qn_equal(s, qn_arange(s, QN_F32, rows), qn_scalar(s, QN_F32, 4)), QN_F32);
    logits = qn_divide(
        s, logits, qn_subtract(s, qn_scalar(s, QN_F32, 1), qn_reshape(s, none, SHAPE(rows, 1))));
    for (int64_t i = 0; row && i < rows; i++)
        row[i] = (qn__sample_row){.chain = QN__SAMPLE_TEMPERATURE, .n_entries = i % 3 == 2};
    if (row)
        y = qn__sample(s, logits, qn_from(s, QN_I32, SHAPE(rows, QN__SAMPLE_ROW_WORDS), row),
                       qn_from(s, QN_I32, SHAPE(1, QN__SAMPLE_ENTRY_WORDS), &entry));
    free(row);
    return qn_cast(s, y, QN_F32);
}
static qn_array *op_draw(qn_scope *s)
{
    return draws(s, 1, 128256);
}
static qn_array *op_draws(qn_scope *s)
{
    return draws(s, 40, 5000);
}
static qn_array *op_draws_of_many(qn_scope *s)
{
    return draws(s, 300, 999);
}

qn_array *frequencies(qn_scope *s, int64_t half)
{
    qn_array *i = qn_arange(s, QN_F32, half);
    return qn_exp(s, qn_multiply(s, i, qn_scalar(s, QN_F32, -9.2 / (double)half)));
}

static qn_array *op_rope(qn_scope *s)
{
    int32_t offset[] = {5, 1000};
    return qn_rope(s, f32(s, SHAPE(2, 3, 7, 20)), qn_from_i32(s, offset, 2), frequencies(s, 8),
                   false);
}
static qn_array *op_rope_pairs(qn_scope *s)
{
    int32_t offset[] = {77};
    qn_array *x = qn_swap_axes(s, f32(s, SHAPE(2, 7, 3, 16)), 1, 2); /* stored [B, L, H, D] */
    return qn_rope(s, x, qn_from_i32(s, offset, 1), frequencies(s, 8), true);
}
static qn_array *op_rope_rows(qn_scope *s) /* a position for each row */
{
    int32_t at[] = {5, 900, 3, 4, 5, 0, 17, 17};
    return qn_rope(s, f32(s, SHAPE(2, 3, 4, 20)), qn_from(s, QN_I32, SHAPE(2, 4), at),
                   frequencies(s, 8), false);
}
static qn_array *op_rope_f64(qn_scope *s)
{
    int32_t offset[] = {9};
    return qn_rope(s, noise(s, QN_F64, 1, SHAPE(1, 2, 3, 8)), qn_from_i32(s, offset, 1),
                   frequencies(s, 4), false);
}

void compare_rows(qn_device *cpu, qn_device *cuda)
{
    static const op_case cases[] = {
        EXACT(rms_norm),
        EXACT(rms_norm_bare),
        CLOSE(rms_norm_f64),
        CLOSE(layer_norm),
        CLOSE(rope),
        CLOSE(rope_pairs),
        CLOSE(rope_f64),
        CLOSE(rope_rows),
        EXACT(norm_of_one),
        EXACT(norm_of_sum),
        EXACT(norm_of_sum_4096),
        EXACT(norm_of_sum_8192),
        EXACT(norms),
        EXACT(norms_wide),
        EXACT(norms_in_turn),
        EXACT(norms_narrow),
        EXACT(embedded),
        EXACT(embedded_scaled),
        EXACT(embedded_f32),
        EXACT(embedded_wide),
        CLOSE(embedded_odd),
        EXACT(draw),
        EXACT(draws),
        EXACT(draws_of_many),
    };
    compare_list(cases, sizeof cases / sizeof *cases, cpu, cuda);
}
