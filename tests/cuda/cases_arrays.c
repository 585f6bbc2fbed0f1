/* SPDX-License-Identifier: Apache-2.0
 *
 * Making arrays, chains, moving, reducing.
 */
#include "cases.h"

static qn_array *op_arange(qn_scope *s)
{
    return qn_arange(s, QN_F32, 1001);
}
static qn_array *op_arange_i8(qn_scope *s)
{
    return qn_arange(s, QN_I8, 300);
}
static qn_array *op_arange_f16(qn_scope *s)
{
    return qn_arange(s, QN_F16, 3000);
}
static qn_array *op_arange_bf16(qn_scope *s)
{
    return qn_arange(s, QN_BF16, 777);
}
static qn_array *op_full(qn_scope *s)
{
    return qn_full(s, QN_F64, SHAPE(3, 5), 0.1);
}

/* Views of all kinds into one chain: exact functions, so exact bits. */
static qn_array *op_chain(qn_scope *s)
{
    qn_array *a = f32(s, SHAPE(7, 1, 33)), *b = f32(s, SHAPE(33, 5));
    qn_array *c = qn_slice(s, f32(s, SHAPE(7, 10, 33)), 1, 1, 10, 2);
    b = qn_transpose(s, b, NULL);
    qn_array *y = qn_add(s, qn_multiply(s, a, b), qn_scalar(s, QN_F32, 0.3));
    y = qn_divide(s, y, qn_add(s, qn_abs(s, c), qn_scalar(s, QN_F32, 1e-3)));
    y = qn_where(s, qn_less(s, y, c), qn_sqrt(s, qn_square(s, y)),
                 qn_floor(s, qn_maximum(s, y, c)));
    return qn_subtract(s, qn_minimum(s, y, a), qn_rsqrt(s, qn_abs(s, c)));
}

/* Fours of a last axis: a row, a column, one number, rows in another order, and, where they do not
 * begin at a vector, rows of a slice. */
static qn_array *op_chain_fours(qn_scope *s)
{
    qn_array *a = f32(s, SHAPE(6, 9, 20)), *row = f32(s, SHAPE(20)), *column = f32(s, SHAPE(9, 1));
    qn_array *c = qn_slice(s, f32(s, SHAPE(6, 9, 41)), 2, 1, 41, 2);
    qn_array *b = qn_transpose(s, f32(s, SHAPE(9, 6, 20)), (const int[]){1, 0, 2});
    qn_array *y = qn_multiply(s, qn_add(s, a, row), qn_subtract(s, b, column));
    return qn_add(s, qn_maximum(s, y, c), qn_slice(s, f32(s, SHAPE(6, 9, 23)), 2, 1, 21, 1));
}

/* Patches of 32, 16 and 8 rows of a transposed array; its rows of 36 are too few for them. */
static qn_array *op_chain_patches(qn_scope *s)
{
    qn_array *y = f32(s, SHAPE(1));
    static const int64_t rows[] = {64, 48, 24, 36}, columns[] = {80, 16, 32, 36};
    for (int i = 0; i < 4; i++) {
        qn_array *a = f32(s, SHAPE(3, rows[i], columns[i]));
        qn_array *b = qn_swap_axes(s, f32(s, SHAPE(3, columns[i], rows[i])), 1, 2);
        qn_array *sum = qn_subtract(s, qn_multiply(s, a, b), f32(s, SHAPE(columns[i])));
        qn_array *parts[] = {y, qn_reshape(s, sum, SHAPE(-1))};
        y = qn_concatenate(s, parts, 2, 0);
    }
    return y;
}

/* Five axes that cannot be joined, and no elements. */
static qn_array *op_chain_axes(qn_scope *s)
{
    qn_array *a = f32(s, SHAPE(3, 4, 5, 2, 7));
    qn_array *b = qn_transpose(s, f32(s, SHAPE(7, 5, 3, 2, 4)), (const int[]){2, 4, 1, 3, 0});
    qn_array *none = qn_add(s, f32(s, SHAPE(3, 0, 4)), f32(s, SHAPE(4)));
    qn_array *parts[] = {qn_reshape(s, qn_multiply(s, a, b), SHAPE(-1)),
                         qn_reshape(s, none, SHAPE(-1))};
    return qn_concatenate(s, parts, 2, 0);
}

static qn_array *op_chain_scalar(qn_scope *s)
{
    return qn_add(s, qn_reshape(s, f32(s, SHAPE(1)), 0, NULL), qn_scalar(s, QN_F32, 2));
}

static qn_array *op_casts(qn_scope *s)
{
    qn_array *x = noise(s, QN_F32, 70000, SHAPE(13, 17));
    qn_array *h = qn_cast(s, qn_cast(s, qn_cast(s, x, QN_BF16), QN_F16), QN_F64);
    qn_array *i = qn_cast(s, qn_cast(s, x, QN_I32), QN_I16);
    return qn_where(s, qn_less(s, h, qn_cast(s, x, QN_F64)), qn_cast(s, i, QN_F64), h);
}

static qn_array *op_integers(qn_scope *s)
{
    qn_array *x = noise(s, QN_I32, 1e9, SHAPE(57)), *y = noise(s, QN_I32, 1e9, SHAPE(57));
    return qn_multiply(s, qn_maximum(s, x, qn_negative(s, y)), qn_add(s, qn_sign(s, x), y));
}

static qn_array *op_f64(qn_scope *s)
{
    qn_array *x = noise(s, QN_F64, 3, SHAPE(9, 11));
    return qn_multiply(s, qn_divide(s, x, qn_scalar(s, QN_F64, 3)), qn_abs(s, x));
}

static qn_array *op_functions(qn_scope *s)
{
    qn_array *x = noise(s, QN_F32, 3, SHAPE(5, 401));
    qn_array *y = qn_add(s, qn_exp(s, x), qn_log(s, qn_abs(s, x)));
    y = qn_add(s, y, qn_multiply(s, qn_sin(s, x), qn_cos(s, x)));
    y = qn_add(s, y, qn_add(s, qn_tanh(s, x), qn_erf(s, x)));
    y = qn_add(s, y, qn_add(s, qn_silu(s, x), qn_gelu(s, x)));
    y = qn_add(s, y, qn_add(s, qn_gelu_tanh(s, x), qn_sigmoid(s, x)));
    return qn_add(s, y, qn_power(s, qn_abs(s, x), x));
}

static qn_array *op_concatenate(qn_scope *s)
{
    qn_array *parts[] = {
        noise(s, QN_BF16, 1, SHAPE(3, 5, 4)),
        qn_transpose(s, noise(s, QN_BF16, 1, SHAPE(4, 2, 3)), (const int[]){2, 1, 0}),
        qn_slice(s, noise(s, QN_BF16, 1, SHAPE(3, 9, 4)), 1, 2, 9, 3)};
    return qn_concatenate(s, parts, 3, 1);
}

static qn_array *op_concatenate_i8(qn_scope *s)
{
    qn_array *parts[] = {noise(s, QN_I8, 100, SHAPE(5, 2)), noise(s, QN_I8, 100, SHAPE(5, 7))};
    return qn_concatenate(s, parts, 2, -1);
}

static qn_array *op_take(qn_scope *s)
{
    return qn_take(s, noise(s, QN_BF16, 1, SHAPE(19, 33)), indices(s, 19, true, SHAPE(3, 7)), 0);
}

static qn_array *op_take_middle(qn_scope *s)
{
    return qn_take(s, f32(s, SHAPE(4, 9, 5)), indices(s, 9, false, SHAPE(6)), 1);
}

static qn_array *op_take_view(qn_scope *s)
{
    return qn_take(s, qn_transpose(s, noise(s, QN_F64, 1, SHAPE(6, 11)), NULL),
                   indices(s, 11, true, SHAPE(8)), 0);
}

static qn_array *op_take_along(qn_scope *s)
{
    return qn_take_along_last(s, qn_swap_axes(s, f32(s, SHAPE(7, 12, 5)), 1, 2),
                              indices(s, 12, true, SHAPE(7, 5)));
}

static qn_array *op_slice_update(qn_scope *s)
{
    return qn_slice_update(s, f32(s, SHAPE(5, 9, 4)),
                           qn_transpose(s, f32(s, SHAPE(4, 3, 2)), (const int[]){2, 1, 0}),
                           (const int64_t[]){1, 4, 0});
}

static qn_array *op_scatter_add(qn_scope *s)
{
    return qn_scatter_add(s, f32(s, SHAPE(7, 33)), indices(s, 7, true, SHAPE(20)),
                          f32(s, SHAPE(20, 33)));
}

static qn_array *op_scatter_add_bf16(qn_scope *s)
{
    return qn_scatter_add(s, noise(s, QN_BF16, 1, SHAPE(7, 3, 5)),
                          indices(s, 7, false, SHAPE(2, 9)),
                          noise(s, QN_BF16, 1, SHAPE(2, 9, 3, 5)));
}

static qn_array *op_sum(qn_scope *s)
{
    return qn_sum(s, f32(s, SHAPE(3, 1000)), 1, false);
}
static qn_array *op_sum_middle(qn_scope *s)
{
    return qn_sum(s, f32(s, SHAPE(5, 257, 3)), 1, true);
}
static qn_array *op_sum_all(qn_scope *s)
{
    return qn_sum(s, qn_transpose(s, f32(s, SHAPE(31, 17)), NULL), QN_ALL_AXES, false);
}
static qn_array *op_sum_i32(qn_scope *s)
{
    return qn_sum(s, noise(s, QN_I32, 1e6, SHAPE(4, 300)), -1, false);
}
static qn_array *op_mean_f64(qn_scope *s)
{
    return qn_mean(s, noise(s, QN_F64, 1, SHAPE(3, 99)), 0, false);
}
static qn_array *op_sum_none(qn_scope *s)
{
    return qn_sum(s, f32(s, SHAPE(3, 0)), 1, false);
}
static qn_array *op_max(qn_scope *s)
{
    return qn_max(s, f32(s, SHAPE(6, 301)), 1, false);
}
static qn_array *op_min_i32(qn_scope *s)
{
    return qn_min(s, noise(s, QN_I32, 1e6, SHAPE(40, 3)), 0, false);
}

static qn_array *with_nan(qn_scope *s)
{
    qn_array *x = f32(s, SHAPE(8, 300)), *c = qn_arange(s, QN_I32, 300);
    qn_array *hit = qn_equal(s, c, qn_scalar(s, QN_I32, 177));
    qn_array *row = qn_less(s, qn_arange(s, QN_I32, 8), qn_scalar(s, QN_I32, 4));
    hit = qn_logical_and(s, hit, qn_expand_dims(s, row, 1));
    return qn_where(s, hit, qn_scalar(s, QN_F32, NAN), x);
}

static qn_array *op_max_nan(qn_scope *s)
{
    return qn_max(s, with_nan(s), -1, false);
}
static qn_array *op_argmax_nan(qn_scope *s)
{
    return qn_argmax(s, with_nan(s), -1, false);
}
static qn_array *op_argmax_ties(qn_scope *s)
{
    return qn_argmax(s, qn_round(s, noise(s, QN_F32, 2, SHAPE(20, 777))), -1, false);
}
static qn_array *op_argmax_long(qn_scope *s)
{
    qn_array *x = qn_round(s, noise(s, QN_F32, 3000, SHAPE(5, 50001)));
    qn_array *hit = qn_equal(s, qn_arange(s, QN_I32, 50001), qn_scalar(s, QN_I32, 49999));
    qn_array *row = qn_equal(s, qn_arange(s, QN_I32, 5), qn_scalar(s, QN_I32, 3));
    hit = qn_logical_and(s, hit, qn_expand_dims(s, row, 1));
    return qn_argmax(s, qn_where(s, hit, qn_scalar(s, QN_F32, NAN), x), -1, false);
}
static qn_array *op_argmax_middle(qn_scope *s)
{
    return qn_argmax(s, f32(s, SHAPE(3, 50, 4)), 1, true);
}
static qn_array *op_argmax_i32(qn_scope *s)
{
    return qn_argmax(s, noise(s, QN_I32, 50, SHAPE(9, 400)), -1, false);
}
static qn_array *op_logsumexp(qn_scope *s)
{
    return qn_logsumexp(s, noise(s, QN_F32, 20, SHAPE(5, 513)), -1, false);
}
static qn_array *op_softmax(qn_scope *s)
{
    return qn_softmax(s, f32(s, SHAPE(7, 1, 270)), -1);
}
static qn_array *op_softmax_middle(qn_scope *s)
{
    return qn_softmax(s, f32(s, SHAPE(7, 31, 3)), 1);
}
static qn_array *op_softmax_f64(qn_scope *s)
{
    return qn_softmax(s, noise(s, QN_F64, 3, SHAPE(3, 40)), -1);
}
/* Rows that share a warp, have one or a block, or lie across memory, alone or many; in parts. */
static qn_array *reduced(qn_scope *s, qn_dtype type,
                         qn_array *(*reduction)(qn_scope *, qn_array *, int, bool))
{
    static const int64_t shapes[][2] = {
        {3000, 1}, {3000, 5},  {1001, 16},   {333, 17},  {200, 32},  {77, 33},   {40, 700},
        {3, 2000}, {9000, 40}, {2200, 1200}, {3, 20000}, {50, 9001}, {1, 100000}};
    enum { N = sizeof shapes / sizeof *shapes };
    qn_array *all[2 * N];
    for (int i = 0; i < N; i++) {
        qn_array *x = qn_cast(s, f32(s, 2, shapes[i]), type);
        all[2 * i] = reduction(s, x, 1, false);
        all[2 * i + 1] = reduction(s, x, 0, false);
    }
    return qn_cast(s, qn_concatenate(s, all, 2 * N, 0), QN_F32);
}
static qn_array *op_sums(qn_scope *s)
{
    return reduced(s, QN_F32, qn_sum);
}
static qn_array *op_sums_f64(qn_scope *s)
{
    return reduced(s, QN_F64, qn_sum);
}
static qn_array *op_maxima(qn_scope *s)
{
    return reduced(s, QN_F32, qn_max);
}
static qn_array *op_maxima_bf16(qn_scope *s)
{
    return reduced(s, QN_BF16, qn_max);
}
static qn_array *op_places(qn_scope *s)
{
    return reduced(s, QN_F32, qn_argmax);
}
static qn_array *op_places_f16(qn_scope *s)
{
    return reduced(s, QN_F16, qn_argmax);
}
static qn_array *op_logsumexps(qn_scope *s)
{
    return reduced(s, QN_F32, qn_logsumexp);
}
static qn_array *op_softmaxes(qn_scope *s)
{
    static const int64_t shapes[][2] = {{500, 1},   {300, 31}, {100, 256}, {50, 257},
                                        {20, 1024}, {9, 1025}, {3, 9000}};
    enum { N = sizeof shapes / sizeof *shapes };
    qn_array *all[N];
    for (int i = 0; i < N; i++)
        all[i] = qn_reshape(s, qn_softmax(s, noise(s, QN_F32, 8, 2, shapes[i]), -1),
                            SHAPE(shapes[i][0] * shapes[i][1]));
    return qn_concatenate(s, all, N, 0);
}
static qn_array *op_layer_norms(qn_scope *s)
{
    qn_array *all[6];
    for (int i = 0; i < 6; i++) {
        const int64_t n = i < 2 ? 40 : i < 4 ? 1000 : 1300, rows = 37;
        all[i] = qn_layer_norm(s, f32(s, SHAPE(rows, n)), i % 2 ? f32(s, SHAPE(n)) : NULL,
                               i % 3 ? f32(s, SHAPE(n)) : NULL, 1e-5f);
        all[i] = qn_reshape(s, all[i], SHAPE(-1));
    }
    return qn_concatenate(s, all, 6, 0);
}
static qn_array *op_layer_norm_f64(qn_scope *s)
{
    return qn_layer_norm(s, noise(s, QN_F64, 1, SHAPE(5, 70)), noise(s, QN_F64, 1, SHAPE(70)), NULL,
                         1e-5f);
}
/* Less than a thread's, a warp's and a piece's elements, and more. */
static qn_array *running(qn_scope *s, qn_dtype type, int what)
{
    static const int64_t lengths[] = {1, 15, 16, 17, 500, 513, 4096, 4097, 10000};
    enum { N = sizeof lengths / sizeof *lengths };
    qn_array *all[2 * N];
    for (int i = 0; i < 2 * N; i++) {
        qn_array *x = noise(s, type, type == QN_I32 ? 100 : 1.1, SHAPE(3, lengths[i / 2]));
        const bool reverse = i % 4 > 1;
        x = what == 0   ? qn_cumsum(s, x, -1, reverse, i % 2)
            : what == 1 ? qn_cumprod(s, x, -1, reverse, i % 2)
            : what == 2 ? qn_cummax(s, x, -1, reverse)
                        : qn_cummin(s, x, -1, reverse);
        all[i] = qn_reshape(s, x, SHAPE(-1));
    }
    return qn_concatenate(s, all, 2 * N, 0);
}
static qn_array *op_cumsums(qn_scope *s)
{
    return running(s, QN_F32, 0);
}
static qn_array *op_cumsums_i32(qn_scope *s)
{
    return running(s, QN_I32, 0);
}
static qn_array *op_cumprods_f64(qn_scope *s)
{
    return running(s, QN_F64, 1);
}
static qn_array *op_cummaxima(qn_scope *s)
{
    return running(s, QN_F32, 2);
}
static qn_array *op_cumminima(qn_scope *s)
{
    return running(s, QN_F32, 3);
}
static qn_array *op_scattered(qn_scope *s) /* ids that come often, once and not */
{
    qn_array *all[8];
    for (int i = 0; i < 8; i++) {
        const int64_t n = i < 4 ? 700 : 3000, columns = i % 2 ? 1 : 33;
        qn_array *x = qn_round(s, f32(s, SHAPE(n / 2, columns))),
                 *u = qn_round(s, noise(s, QN_F32, 90, SHAPE(n, columns)));
        all[i] = qn_scatter(s, x, indices(s, i % 4 ? n / 2 : 5, true, SHAPE(n)), u, 0,
                            (qn_scatter_mode)(i % 4));
        all[i] = qn_reshape(s, all[i], SHAPE(-1));
    }
    return qn_concatenate(s, all, 8, 0);
}
/* Elements that lie side by side in both, in vectors of each size or none; axes that are one. */
static qn_array *op_copies(qn_scope *s)
{
    static const qn_dtype types[] = {QN_U8, QN_BF16, QN_F32, QN_F64};
    qn_array *all[12];
    for (int i = 0; i < 4; i++) {
        qn_array *x = noise(s, types[i], 100, SHAPE(6, 4, 48)), *y = qn_swap_axes(s, x, 0, 1),
                 *two[][2] = {{y, y},
                              {qn_slice(s, x, 2, 5, 34, 1), qn_slice(s, x, 2, 0, 3, 1)},
                              {qn_slice(s, y, 2, 4, 44, 1), qn_flip(s, y, 2)}};
        for (int k = 0; k < 3; k++)
            all[3 * i + k] = qn_cast(
                s, qn_reshape(s, qn_concatenate(s, two[k], 2, k ? 2 : 1), SHAPE(-1)), QN_F64);
    }
    return qn_concatenate(s, all, 12, 0);
}
static qn_array *op_argsort_long(qn_scope *s)
{
    qn_array *x = qn_round(s, noise(s, QN_F32, 900, SHAPE(3, 5001))), *y = f32(s, SHAPE(40000)),
             *z = noise(s, QN_F16, 3, SHAPE(50, 513)),
             *all[] = {qn_reshape(s, qn_argsort(s, x, 1, false), SHAPE(3 * 5001)),
                       qn_reshape(s, qn_argsort(s, x, 1, true), SHAPE(3 * 5001)),
                       qn_argsort(s, y, 0, true),
                       qn_reshape(s, qn_argsort(s, z, 1, true), SHAPE(50 * 513))};
    return qn_concatenate(s, all, 4, 0);
}
static qn_array *op_large(qn_scope *s) /* more than the stages hold */
{
    return qn_multiply(s, f32(s, SHAPE(3 << 20)), qn_scalar(s, QN_F32, 3));
}

static qn_array *op_sizes(qn_scope *s) /* a long mixture, so that the workspace grows and shrinks */
{
    qn_array *x = f32(s, SHAPE(64, 64));
    for (int i = 0; i < 6; i++)
        x = qn_rms_norm(s, qn_matmul(s, x, qn_transpose(s, qn_softmax(s, x, 0), NULL)), NULL,
                        1e-5f);
    return x;
}

void compare_arrays(qn_device *cpu, qn_device *cuda)
{
    static const op_case cases[] = {
        EXACT(arange),
        EXACT(arange_i8),
        EXACT(arange_f16),
        EXACT(arange_bf16),
        EXACT(full),
        EXACT(chain),
        EXACT(chain_fours),
        EXACT(chain_patches),
        EXACT(chain_axes),
        EXACT(chain_scalar),
        EXACT(casts),
        EXACT(integers),
        EXACT(f64),
        CLOSE(functions),
        EXACT(concatenate),
        EXACT(concatenate_i8),
        EXACT(take),
        EXACT(take_middle),
        EXACT(take_view),
        EXACT(take_along),
        EXACT(slice_update),
        EXACT(scatter_add),
        EXACT(scatter_add_bf16),
        CLOSE(sum),
        CLOSE(sum_middle),
        CLOSE(sum_all),
        EXACT(sum_i32),
        CLOSE(mean_f64),
        EXACT(sum_none),
        EXACT(max),
        EXACT(min_i32),
        EXACT(max_nan),
        EXACT(argmax_nan),
        EXACT(argmax_ties),
        EXACT(argmax_long),
        EXACT(argmax_middle),
        EXACT(argmax_i32),
        CLOSE(logsumexp),
        CLOSE(softmax),
        CLOSE(softmax_middle),
        CLOSE(softmax_f64),
        CLOSE(sums),
        CLOSE(sums_f64),
        EXACT(maxima),
        EXACT(maxima_bf16),
        EXACT(places),
        EXACT(places_f16),
        CLOSE(logsumexps),
        CLOSE(softmaxes),
        CLOSE(layer_norms),
        CLOSE(layer_norm_f64),
        CLOSE(cumsums),
        EXACT(cumsums_i32),
        CLOSE(cumprods_f64),
        EXACT(cummaxima),
        EXACT(cumminima),
        EXACT(scattered),
        EXACT(copies),
        EXACT(argsort_long),
        EXACT(large),
        CLOSE(sizes),
    };
    compare_list(cases, sizeof cases / sizeof *cases, cpu, cuda);
}
