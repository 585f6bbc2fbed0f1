/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on arrays. Each records a node and returns an array of the scope `s`; nothing runs
 * until evaluation. Types are promoted as in JAX's table, shapes broadcast as in NumPy. On a type
 * or shape that does not fit, the scope's error names operation and shapes, and the poison array
 * comes back. Any thread that owns the scope may call. Gradients: all of these but where noted.
 */
#ifndef QUERN_OPS_H
#define QUERN_OPS_H

#include "quern/array.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- elementwise: one operand; of its shape; integers become f32 where they have to ---------- */

QN_API qn_array *qn_negative(qn_scope *s, qn_array *x);
QN_API qn_array *qn_abs(qn_scope *s, qn_array *x);
QN_API qn_array *qn_sign(qn_scope *s, qn_array *x);
QN_API qn_array *qn_floor(qn_scope *s, qn_array *x);
QN_API qn_array *qn_ceil(qn_scope *s, qn_array *x);
QN_API qn_array *qn_round(qn_scope *s, qn_array *x); /* halves to even */
QN_API qn_array *qn_sqrt(qn_scope *s, qn_array *x);
QN_API qn_array *qn_rsqrt(qn_scope *s, qn_array *x); /* 1 / sqrt(x) */
QN_API qn_array *qn_square(qn_scope *s, qn_array *x);
QN_API qn_array *qn_exp(qn_scope *s, qn_array *x);
QN_API qn_array *qn_log(qn_scope *s, qn_array *x);
QN_API qn_array *qn_sin(qn_scope *s, qn_array *x);
QN_API qn_array *qn_cos(qn_scope *s, qn_array *x);
QN_API qn_array *qn_tanh(qn_scope *s, qn_array *x);
QN_API qn_array *qn_erf(qn_scope *s, qn_array *x);
QN_API qn_array *qn_sigmoid(qn_scope *s, qn_array *x);
QN_API qn_array *qn_silu(qn_scope *s, qn_array *x); /* x sigmoid(x) */
QN_API qn_array *qn_relu(qn_scope *s, qn_array *x);
QN_API qn_array *qn_gelu(qn_scope *s, qn_array *x);        /* by erf */
QN_API qn_array *qn_gelu_tanh(qn_scope *s, qn_array *x);   /* the tanh approximation */
QN_API qn_array *qn_logical_not(qn_scope *s, qn_array *x); /* bool */
QN_API qn_array *qn_bitwise_not(qn_scope *s, qn_array *x); /* bool, integers */
QN_API qn_array *qn_log1p(qn_scope *s, qn_array *x);       /* log(1 + x) */
QN_API qn_array *qn_expm1(qn_scope *s, qn_array *x);       /* exp(x) - 1 */
QN_API qn_array *qn_log2(qn_scope *s, qn_array *x);
QN_API qn_array *qn_exp2(qn_scope *s, qn_array *x);
QN_API qn_array *qn_log10(qn_scope *s, qn_array *x);
QN_API qn_array *qn_tan(qn_scope *s, qn_array *x);
QN_API qn_array *qn_asin(qn_scope *s, qn_array *x);
QN_API qn_array *qn_acos(qn_scope *s, qn_array *x);
QN_API qn_array *qn_atan(qn_scope *s, qn_array *x);
QN_API qn_array *qn_sinh(qn_scope *s, qn_array *x);
QN_API qn_array *qn_cosh(qn_scope *s, qn_array *x);
QN_API qn_array *qn_erfinv(qn_scope *s, qn_array *x);
QN_API qn_array *qn_softplus(qn_scope *s, qn_array *x); /* log(1 + exp(x)) */
QN_API qn_array *qn_reciprocal(qn_scope *s, qn_array *x);
QN_API qn_array *qn_isnan(qn_scope *s, qn_array *x); /* these give bool */
QN_API qn_array *qn_isinf(qn_scope *s, qn_array *x);
QN_API qn_array *qn_isfinite(qn_scope *s, qn_array *x);

/* min(max(x, low), high); either may be NULL. */
QN_API qn_array *qn_clip(qn_scope *s, qn_array *x, qn_array *low, qn_array *high);

/* Converts; rounds to nearest even, floats to integers towards zero. */
QN_API qn_array *qn_cast(qn_scope *s, qn_array *x, qn_dtype dtype);

/* The value without a derivative. */
QN_API qn_array *qn_stop_gradient(qn_scope *s, qn_array *x);

/* ---- elementwise: two operands, broadcast against each other --------------------------------- */

/* Of two bools a sum or maximum is "or", a product or minimum "and"; they have no difference.
 * Integers wrap. A whole quotient or remainder by 0 is 0; an integer to a negative power is 0 but
 * for 1 and -1. */
QN_API qn_array *qn_add(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_subtract(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_multiply(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_divide(qn_scope *s, qn_array *a, qn_array *b); /* integers become f32 */
QN_API qn_array *qn_power(qn_scope *s, qn_array *a, qn_array *b);
/* Quotients towards minus infinity, and what is left: of b's sign, as in Python. */
QN_API qn_array *qn_floor_divide(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_remainder(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_atan2(qn_scope *s, qn_array *a, qn_array *b);     /* the angle of (b, a) */
QN_API qn_array *qn_logaddexp(qn_scope *s, qn_array *a, qn_array *b); /* log(exp(a) + exp(b)) */
QN_API qn_array *qn_maximum(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_minimum(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_equal(qn_scope *s, qn_array *a, qn_array *b); /* these give bool */
QN_API qn_array *qn_not_equal(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_less(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_less_equal(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_greater(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_greater_equal(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_logical_and(qn_scope *s, qn_array *a, qn_array *b); /* of bool */
QN_API qn_array *qn_logical_or(qn_scope *s, qn_array *a, qn_array *b);

/* Of bool and integers. Shifts by the width of the type or more, or by a negative count, leave the
 * sign (to the right, signed) or 0. */
QN_API qn_array *qn_bitwise_and(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_bitwise_or(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_bitwise_xor(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_left_shift(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_right_shift(qn_scope *s, qn_array *a, qn_array *b);

/* a where condition (bool) holds, else b. */
QN_API qn_array *qn_where(qn_scope *s, qn_array *condition, qn_array *a, qn_array *b);

/* ---- views: share the storage, cost nothing -------------------------------------------------- */

/* The same elements in row-major order under another shape; one size may be -1. Copies when the
 * strides do not allow a view. */
QN_API qn_array *qn_reshape(qn_scope *s, qn_array *x, int ndim, const int64_t *shape);
/* Axis i of the result is axis order[i] of x. NULL: reversed. */
QN_API qn_array *qn_transpose(qn_scope *s, qn_array *x, const int *order);
QN_API qn_array *qn_swap_axes(qn_scope *s, qn_array *x, int a, int b);
QN_API qn_array *qn_broadcast_to(qn_scope *s, qn_array *x, int ndim, const int64_t *shape);
/* x[start:stop:step] along one axis, as in Python. INT64_MAX as stop: to the end; with a negative
 * step INT64_MAX as start: from the end, INT64_MIN as stop: to the beginning. */
QN_API qn_array *qn_slice(qn_scope *s, qn_array *x, int axis, int64_t start, int64_t stop,
                          int64_t step);
QN_API qn_array *qn_expand_dims(qn_scope *s, qn_array *x, int axis);
QN_API qn_array *qn_squeeze(qn_scope *s, qn_array *x, int axis);
QN_API qn_array *qn_flip(qn_scope *s, qn_array *x, int axis);
QN_API qn_array *qn_flatten(qn_scope *s, qn_array *x);
/* Axis `from` becomes axis `to`; the others keep their order. */
QN_API qn_array *qn_move_axis(qn_scope *s, qn_array *x, int from, int to);
/* n equal parts of an axis into parts[0..n-1]. */
QN_API qn_status qn_split(qn_scope *s, qn_array *x, int n, int axis, qn_array **parts);
/* Element (i, j, ...) is number offset + i stride[0] + j stride[1] + ... of x's elements in
 * row-major order; fails when one would lie outside. x is copied first unless it is row-major. */
QN_API qn_array *qn_as_strided(qn_scope *s, qn_array *x, int ndim, const int64_t *shape,
                               const int64_t *stride, int64_t offset);
/* x[i, i + k] of x [rows, columns] */
QN_API qn_array *qn_diagonal(qn_scope *s, qn_array *x, int64_t k);
/* x itself when row-major without gaps, else a copy that is. */
QN_API qn_array *qn_contiguous(qn_scope *s, qn_array *x);

/* ---- moving elements ------------------------------------------------------------------------- */

QN_API qn_array *qn_concatenate(qn_scope *s, qn_array *const *arrays, int n, int axis);
/* Rows of x along an axis by index: for x [V, D] and ids [B, L], axis 0, gives [B, L, D]. ids are
 * of an integer type; an index outside the axis gives zeros. x may be packed (axis 0). */
QN_API qn_array *qn_take(qn_scope *s, qn_array *x, qn_array *ids, int axis);
/* x[..., ids[...]]: one element of the last axis for each index; of the shape of ids. */
QN_API qn_array *qn_take_along_last(qn_scope *s, qn_array *x, qn_array *ids);
/* x with x[start:start+size] replaced by update, all axes; in place when x was donated. */
QN_API qn_array *qn_slice_update(qn_scope *s, qn_array *x, qn_array *update, const int64_t *start);
/* The same with the place as data, integers [ndim]: another place makes no new plan. It is clamped
 * so that the block lies inside. qn_slice_at reads a block of sizes[ndim]. */
QN_API qn_array *qn_slice_update_at(qn_scope *s, qn_array *x, qn_array *update, qn_array *start);
QN_API qn_array *qn_slice_at(qn_scope *s, qn_array *x, qn_array *start, const int64_t *sizes);
/* x with rows added: x[ids[i]] += update[i] along axis 0, in the order of i. */
QN_API qn_array *qn_scatter_add(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update);

/* What becomes of the old element where indices meet it, in the order of the indices. Updates whose
 * index lies outside are left out. NaN wins a MAX or MIN. */
typedef enum qn_scatter_mode {
    QN_SCATTER_SET,
    QN_SCATTER_ADD,
    QN_SCATTER_MAX,
    QN_SCATTER_MIN
} qn_scatter_mode;

/* x updated where qn_take(x, ids, axis) reads; update has the shape of that. */
QN_API qn_array *qn_scatter(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update, int axis,
                            qn_scatter_mode mode);
/* One element for each index: y[i, j] = x[ids[i, j], j] for axis 0. ids has x's shape but along the
 * axis; sizes of 1 broadcast. An index outside gives zero. */
QN_API qn_array *qn_take_along(qn_scope *s, qn_array *x, qn_array *ids, int axis);
/* x updated where qn_take_along(x, ids, axis) reads; update broadcasts to the shape of that. */
QN_API qn_array *qn_put_along(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update, int axis,
                              qn_scatter_mode mode);
/* x[ids[..., 0], ids[..., 1], ...] for ids [..., k]: the first k axes by index. */
QN_API qn_array *qn_gather_nd(qn_scope *s, qn_array *x, qn_array *ids);
QN_API qn_array *qn_scatter_nd(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update,
                               qn_scatter_mode mode);

/* Arrays of one shape along a new axis. */
QN_API qn_array *qn_stack(qn_scope *s, qn_array *const *arrays, int n, int axis);
/* before[i] and after[i] more elements along axis i. */
QN_API qn_array *qn_pad(qn_scope *s, qn_array *x, const int64_t *before, const int64_t *after,
                        double value);
/* Along one axis: 0 1 2 0 1 2, and 0 0 1 1 2 2. */
QN_API qn_array *qn_tile(qn_scope *s, qn_array *x, int axis, int64_t times);
QN_API qn_array *qn_repeat(qn_scope *s, qn_array *x, int axis, int64_t times);
/* Moved by `by` places along an axis; what leaves at one end comes in at the other. */
QN_API qn_array *qn_roll(qn_scope *s, qn_array *x, int64_t by, int axis);
/* The parts of the last two axes where column - row is at most, at least k; zeros elsewhere. */
QN_API qn_array *qn_tril(qn_scope *s, qn_array *x, int64_t k);
QN_API qn_array *qn_triu(qn_scope *s, qn_array *x, int64_t k);
/* v [n] as diagonal k of a square matrix of zeros. */
QN_API qn_array *qn_diag(qn_scope *s, qn_array *v, int64_t k);
/* Ones where column - row is k, at most k; zeros elsewhere. */
QN_API qn_array *qn_eye(qn_scope *s, qn_dtype dtype, int64_t rows, int64_t columns, int64_t k);
QN_API qn_array *qn_tri(qn_scope *s, qn_dtype dtype, int64_t rows, int64_t columns, int64_t k);
/* n floats at equal distances from start to stop, both included. */
QN_API qn_array *qn_linspace(qn_scope *s, qn_dtype dtype, double start, double stop, int64_t n);

/* ---- sorting: NaN counts as the largest, equal elements keep their order --------------------- */

QN_API qn_array *qn_sort(qn_scope *s, qn_array *x, int axis, bool descending);
/* The indices, i32, that qn_take_along sorts by. */
QN_API qn_array *qn_argsort(qn_scope *s, qn_array *x, int axis, bool descending);
/* Element kth in its sorted place, none larger before it, none smaller behind. */
QN_API qn_array *qn_partition(qn_scope *s, qn_array *x, int64_t kth, int axis);
QN_API qn_array *qn_argpartition(qn_scope *s, qn_array *x, int64_t kth, int axis);
/* The k largest along an axis, largest first, and their indices; either may be NULL. */
QN_API qn_status qn_topk(qn_scope *s, qn_array *x, int64_t k, int axis, qn_array **values,
                         qn_array **indices);

/* ---- reductions: over one axis, or all with QN_ALL_AXES -------------------------------------- */

#define QN_ALL_AXES INT32_MAX

QN_API qn_array *qn_sum(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_mean(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_max(qn_scope *s, qn_array *x, int axis, bool keep_dims); /* NaN wins */
QN_API qn_array *qn_min(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_logsumexp(qn_scope *s, qn_array *x, int axis, bool keep_dims);
/* Index of the first largest element along the axis, i32. No gradient. */
QN_API qn_array *qn_argmax(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_argmin(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_prod(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_all(qn_scope *s, qn_array *x, int axis, bool keep_dims); /* bool */
QN_API qn_array *qn_any(qn_scope *s, qn_array *x, int axis, bool keep_dims);
/* Squared distance from the mean, summed and divided by n - ddof. */
QN_API qn_array *qn_var(qn_scope *s, qn_array *x, int axis, int64_t ddof, bool keep_dims);

/* Any of the reductions above over n axes as if they were one, in row-major order. */
typedef qn_array *qn_reduction(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_over_axes(qn_scope *s, qn_reduction *reduce_one, qn_array *x, const int *axes,
                              int n, bool keep_dims);

/* Running sums and products along an axis, of the types that qn_sum gives; running extremes.
 * reverse: from the end. exclusive: without the element itself. */
QN_API qn_array *qn_cumsum(qn_scope *s, qn_array *x, int axis, bool reverse, bool exclusive);
QN_API qn_array *qn_cumprod(qn_scope *s, qn_array *x, int axis, bool reverse, bool exclusive);
QN_API qn_array *qn_cummax(qn_scope *s, qn_array *x, int axis, bool reverse);
QN_API qn_array *qn_cummin(qn_scope *s, qn_array *x, int axis, bool reverse);

QN_API qn_array *qn_softmax(qn_scope *s, qn_array *x, int axis);

/* scale H x along the last axis, of n elements, a power of two: H is the Hadamard matrix whose row
 * i and column j have the sign of the parity of i & j. scale 0: 1 / sqrt(n), with which it is its
 * own inverse. Integers become f32; 16-bit floats are summed in f32. */
QN_API qn_array *qn_hadamard_transform(qn_scope *s, qn_array *x, double scale);

/* ---- random numbers: a key and a shape give the same values everywhere ----------------------- */

/* Keys are u32 [2] (Threefry-2x32; values as JAX's). Use a key once: split it, or fold a step's
 * number in. Draws also take keys [B..., 2] and a shape [B..., rest...]: what key b draws is what
 * it draws alone. */
QN_API qn_array *qn_random_key(qn_scope *s, uint64_t seed);
QN_API qn_array *qn_random_split(qn_scope *s, qn_array *key, int64_t n);          /* [n, 2] */
QN_API qn_array *qn_random_fold_in(qn_scope *s, qn_array *key, qn_array *number); /* [2] */
/* u8 to u64 */
QN_API qn_array *qn_random_bits(qn_scope *s, qn_array *key, qn_dtype dtype, int ndim,
                                const int64_t *shape);
/* Floats from low to below high; with mean 0 and variance 1. */
QN_API qn_array *qn_random_uniform(qn_scope *s, qn_array *key, qn_dtype dtype, double low,
                                   double high, int ndim, const int64_t *shape);
QN_API qn_array *qn_random_normal(qn_scope *s, qn_array *key, qn_dtype dtype, int ndim,
                                  const int64_t *shape);
/* Integers from low to below high. One key. */
QN_API qn_array *qn_random_integers(qn_scope *s, qn_array *key, qn_dtype dtype, int64_t low,
                                    int64_t high, int ndim, const int64_t *shape);
/* True with probability p, which broadcasts to the shape. */
QN_API qn_array *qn_random_bernoulli(qn_scope *s, qn_array *key, qn_array *p, int ndim,
                                     const int64_t *shape);
/* An index along the axis with probability softmax(logits), i32, of logits' shape without the axis.
 */
QN_API qn_array *qn_random_categorical(qn_scope *s, qn_array *key, qn_array *logits, int axis);
/* x with 0 in the place of each element with probability p, 0 to below 1, the others divided by
 * 1 - p; of x's type. One key. */
QN_API qn_array *qn_dropout(qn_scope *s, qn_array *x, qn_array *key, double p);
/* 0 .. n-1 in random order, i32. One key. */
QN_API qn_array *qn_random_permutation(qn_scope *s, qn_array *key, int64_t n);

/* ---- matrices -------------------------------------------------------------------------------- */

/* a [..., M, K] times b [..., K, N], leading axes broadcast; 1-d operands as in NumPy. */
QN_API qn_array *qn_matmul(qn_scope *s, qn_array *a, qn_array *b);

/* What the products of a linear layer are. They change its values, so a caller chooses them. With
 * BF16 and INT8 the gradient to x of a packed weight multiplies in bf16, all others in f32. */
typedef enum qn_products {
    QN_PRODUCTS_AUTO, /* of a weight in bf16: BF16; of a quantised one: INT8; of one in f16 on a
                         device that is faster so (CUDA): F16; else F32 */
    QN_PRODUCTS_F32,  /* of the weight's values and x in f32 */
    QN_PRODUCTS_BF16, /* of x rounded to bf16 and a weight in bf16, summed in f32 */
    QN_PRODUCTS_INT8, /* of a quantised weight's codes and x in bytes, with a scale for each 32
                         columns of x or, where the weight's groups are longer, 64; exact sums
                         within a group, f32 between groups */
    QN_PRODUCTS_INT8_ROWS, /* the same with one scale for each row of x, as BitNet has it: its
                              largest magnitude, 1e-5 at least, is 127. Of any weight: where it has
                              no codes, x is rounded so and multiplied in f32 */
    QN_PRODUCTS_BY_ROWS,   /* AUTO, but for many rows of x on a device that is faster so (CUDA on
                              sm_90: more than 64, of a quantised weight more than 8): of x and
                              the weight's values, both rounded to bf16 (of a weight in f16 to
                              that), summed in f32. A row's bits then depend on their number */
    QN_PRODUCTS_F16        /* of x rounded to f16, what is too large to the largest there is, and a
                              weight in f16, summed in f32 */
} qn_products;

/* x [..., K] times the transpose of w [N, K], plus bias [N] unless NULL: a linear layer. The result
 * is f32; f64 stays f64. w may be packed (qn_pack). */
QN_API qn_array *qn_linear(qn_scope *s, qn_array *x, qn_array *w, qn_array *bias);

/* The same with other products; what w does not have is an error. */
QN_API qn_array *qn_linear_with(qn_scope *s, qn_array *x, qn_array *w, qn_array *bias,
                                qn_products products);

/* A retained copy of w [N, K] (f32, bf16, f16) in the layout in which the device's linear layers
 * stream it; on devices without one, a plain copy, f16 as f32. Only qn_linear and qn_take read it.
 * NULL with the scope's error set on failure. Release with qn_release. */
QN_API qn_array *qn_pack(qn_scope *s, qn_array *w);

/* ---- quantised matrices, as MLX has them ------------------------------------------------------
 */

/* Affine: value = scale * code + bias, groups of columns sharing both. */
typedef struct qn_quantization {
    int bits;       /* 2, 3, 4, 5, 6 or 8 */
    int group_size; /* 32, 64 or 128 */
} qn_quantization;

/* w [..., N, K] as *words u32 [..., N, K * bits / 32] (codes, least significant bits first),
 * *scales and *biases [..., N, K / group_size] in w's type: the numbers that mlx.core.quantize
 * gives on a CPU. Has no gradient. */
QN_API qn_status qn_quantize(qn_scope *s, qn_array *w, const qn_quantization *q, qn_array **words,
                             qn_array **scales, qn_array **biases);

/* Back, [..., N, K] in the type of the scales, each step rounded to it. */
QN_API qn_array *qn_dequantize(qn_scope *s, qn_array *words, qn_array *scales, qn_array *biases,
                               const qn_quantization *q);

/* x [..., K] times the transpose of w [..., N, K], or x [..., N] times w; leading axes broadcast.
 * Of the type that x and scales promote to; computed in f32. Differentiates to x, scales and
 * biases. */
QN_API qn_array *qn_quantized_matmul(qn_scope *s, qn_array *x, qn_array *words, qn_array *scales,
                                     qn_array *biases, bool transpose, const qn_quantization *q);

/* The same of chosen matrices, of experts: lhs and rhs (i32, NULL: all in order) count matrices of
 * x
 * [..., M, K] and of w over their leading axes; the result is [lhs and rhs broadcast..., M, N]. */
QN_API qn_array *qn_gather_qmm(qn_scope *s, qn_array *x, qn_array *words, qn_array *scales,
                               qn_array *biases, qn_array *lhs, qn_array *rhs, bool transpose,
                               const qn_quantization *q);

/* A retained copy of w [N, K] for qn_linear and qn_take, as qn_pack makes. */
QN_API qn_array *qn_pack_quantized(qn_scope *s, qn_array *words, qn_array *scales, qn_array *biases,
                                   const qn_quantization *q);

/* ---- fused: one kernel, with a decomposition into the above ---------------------------------- */

/* x / sqrt(mean(x^2) + eps) * weight along the last axis; weight [D] or NULL. arXiv:1910.07467 */
QN_API qn_array *qn_rms_norm(qn_scope *s, qn_array *x, qn_array *weight, float eps);

/* (x - mean) / sqrt(var + eps) * weight + bias along the last axis; both [D] or NULL. */
QN_API qn_array *qn_layer_norm(qn_scope *s, qn_array *x, qn_array *weight, qn_array *bias,
                               float eps);

/* Rotary position embedding of x [B, H, L, D] (arXiv:2104.09864). Position l of batch b has the
 * angle (offset[b] + l) * frequency[i], or offset[b, l] * frequency[i]. offset: i32, one element,
 * [B] or [B, L]. frequency: f32 [R/2] radians a position; the first R elements of D rotate.
 * traditional: pairs (2i, 2i+1), else (i, i + R/2). Differentiable in x. */
QN_API qn_array *qn_rope(qn_scope *s, qn_array *x, qn_array *offset, qn_array *frequency,
                         bool traditional);

typedef struct qn_attention_options {
    size_t size;    /* sizeof(qn_attention_options) */
    float scale;    /* of the scores; 0: 1/sqrt(D) */
    bool causal;    /* query l sees keys up to l + S - L: aligned at the lower right */
    float softcap;  /* c tanh(score / c); 0: none */
    int64_t window; /* a query sees this many newest keys; 0: all */
    qn_array
        *mask; /* broadcast to [B, H, L, S]: bool (true: keep) or added to the scores; or NULL */
    qn_array *sinks; /* f32 [H]: a score more for each query, whose value is 0; or NULL */
    qn_array *first; /* i32 [B, L]: the first key that a query sees, as where texts stand behind
                        each other in a row; or NULL. A query that sees none gives 0 */
} qn_attention_options;

/* softmax(scale q k^T + mask) v for q [B, H, L, D], k [B, G, S, D], v [B, G, S, E], H a multiple of
 * G. options may be NULL. */
QN_API qn_array *qn_attention(qn_scope *s, qn_array *q, qn_array *k, qn_array *v,
                              const qn_attention_options *options);

/* -log softmax(logits)[target] for logits [..., V] and integer targets [...]; of the targets'
 * shape. */
QN_API qn_array *qn_cross_entropy(qn_scope *s, qn_array *logits, qn_array *targets);

typedef struct qn_linear_cross_entropy_options {
    size_t size;          /* sizeof(qn_linear_cross_entropy_options) */
    float softcap;        /* of the logits: c tanh(logit / c); 0: none */
    qn_products products; /* of x and w */
    qn_array *weights;    /* what each loss is multiplied by, [...], itself no variable; rows with 0
                             cost nothing; or NULL */
    bool loss_only;       /* is not differentiated, or then for a second pass over w */
} qn_linear_cross_entropy_options;

/* qn_cross_entropy of qn_linear_with(x [..., K], w [V, K]), without the logits in memory where w is
 * packed (qn_pack): a pass over w makes each row's loss and, unless loss_only, its gradient. That
 * differentiates once, and to x alone. Other w take the memory, and differentiate to anything.
 * options may be NULL. */
QN_API qn_array *qn_linear_cross_entropy(qn_scope *s, qn_array *x, qn_array *w, qn_array *targets,
                                         const qn_linear_cross_entropy_options *options);

/* ---- losses: of floats; cross-entropy is above ----------------------------------------------- */

/* The mean of (x - target)^2 over all elements. */
QN_API qn_array *qn_mse_loss(qn_scope *s, qn_array *x, qn_array *target);

/* sum p (log p - log_q) over the last axis, for log-probabilities log_q [..., V] and p of that
 * shape, probabilities, or their logarithms with log_target: [...]. As PyTorch's kl_div, which
 * leaves the sum to the caller; 0 log 0 is 0. Distillation: log_q is the student's. */
QN_API qn_array *qn_kl_div(qn_scope *s, qn_array *log_q, qn_array *p, bool log_target);

/* Of each pair of answers the loss by which a model learns to prefer one (arXiv:2305.18290), given
 * the log-probabilities of all four, of one shape: -log sigmoid(h) for
 * h = beta ((chosen - ref_chosen) - (rejected - ref_rejected)). label_smoothing, 0 to 0.5: how
 * often the labels are wrong; that part is of -h. */
QN_API qn_array *qn_dpo_loss(qn_scope *s, qn_array *chosen, qn_array *rejected,
                             qn_array *ref_chosen, qn_array *ref_rejected, double beta,
                             double label_smoothing);

/* sum(x mask) / sum(mask), one element: the mean over what the mask counts, of x's shape. */
QN_API qn_array *qn_masked_mean(qn_scope *s, qn_array *x, qn_array *mask);

/* ---- derivatives ----------------------------------------------------------------------------- */

/* out[i] = the gradient of `loss` (one element) with respect to wrt[i]; zeros where it does not
 * depend on it. Adds the backward graph to the scope; the results can be differentiated again. */
QN_API qn_status qn_grad(qn_scope *s, qn_array *loss, qn_array *const *wrt, int n, qn_array **out);

/* The same for any y and its cotangent ct, of the shape of y. */
QN_API qn_status qn_vjp(qn_scope *s, qn_array *y, qn_array *ct, qn_array *const *wrt, int n,
                        qn_array **out);

/* The tangent of y when wrt[i] moves along tangents[i]. */
QN_API qn_array *qn_jvp(qn_scope *s, qn_array *y, qn_array *const *wrt, qn_array *const *tangents,
                        int n);

/* The cotangents grads[i] of in[i], of its shape, where want[i], for the cotangent ct of y,
 * recorded with public operations; left NULL: zero. */
typedef void qn_vjp_rule(qn_scope *s, void *user, qn_array *const *in, int n, qn_array *y,
                         qn_array *ct, const bool *want, qn_array **grads);

/* y, which was computed of in[0..n-1], with a gradient of your own: `rule` is asked for it, and
 * what y was computed by is not looked at. y does not depend, for gradients, on anything else. rule
 * and user have to stay until the scope ends. What rule records differentiates again; qn_jvp
 * through it is QN_UNSUPPORTED. Several results: one call for each, whose cotangents add up. */
QN_API qn_array *qn_custom_vjp(qn_scope *s, qn_array *y, qn_array *const *in, int n,
                               qn_vjp_rule *rule, void *user);

/* What is recorded between the two, gradients do not keep: where they need it they compute it
 * again, from the arrays that it began with, once the cotangents of its results are there. More
 * work, less memory, the same bits: a layer of a model is a good stretch. One ends before the next
 * begins, and before a gradient is asked for, else the scope fails with QN_STATE. */
QN_API void qn_checkpoint_begin(qn_scope *s);
QN_API void qn_checkpoint_end(qn_scope *s);

#ifdef __cplusplus
}
#endif
#endif
