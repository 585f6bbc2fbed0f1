/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device against the CPU: every operation on random inputs, then a small Llama's decode
 * step replayed as one graph a token. A plain program without a test library, so that it can be
 * carried to a machine with a GPU. Exits with 77 (skipped) and the reason where there is none.
 */
#include "cuda/cuda.h"
#include "ops/ops.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int n_failed, n_checks;

static void check(bool ok, const char *what, const char *detail)
{
    n_checks++;
    if (ok)
        return;
    n_failed++;
    printf("FAILED  %s: %s\n", what, detail);
}

static size_t active_bytes(qn_device *device)
{
    qn_memory_stats stats = QN_INIT(qn_memory_stats);
    qn_device_memory(device, &stats);
    return stats.active;
}

#define CHECK(what, condition) check(condition, what, #condition)

/* ---- random inputs, the same on both devices ------------------------------------------------- */

static uint64_t seed;

static double uniform(void) /* in (-1, 1) */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(seed >> 11) / (double)(1ll << 52) - 1.0;
}

#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[])                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static int64_t count_of(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    return n;
}

/* Of any type: floats in (-scale, scale), integers too. */
static qn_array *noise(qn_scope *s, qn_dtype type, double scale, int ndim, const int64_t *shape)
{
    int64_t n = count_of(ndim, shape);
    size_t size = qn_dtype_size(type);
    char *data = malloc((size_t)n * size + 1);
    for (int64_t i = 0; data && i < n; i++)
        qn__element_from_f64(data + (size_t)i * size, type, uniform() * scale);
    qn_array *a = qn_from(s, type, ndim, shape, data);
    free(data);
    return a;
}

/* Integers 0 .. n - 1, now and then one outside. */
static qn_array *indices(qn_scope *s, int64_t n, bool outside, int ndim, const int64_t *shape)
{
    int64_t count = count_of(ndim, shape);
    int32_t *data = malloc((size_t)count * 4 + 4);
    for (int64_t i = 0; data && i < count; i++)
        data[i] = (int32_t)floor((uniform() + 1) / 2 * (double)n) + (outside && i % 7 == 3) * 1000;
    qn_array *a = qn_from(s, QN_I32, ndim, shape, data);
    free(data);
    return a;
}

static qn_array *f32(qn_scope *s, int ndim, const int64_t *shape)
{
    return noise(s, QN_F32, 1.5, ndim, shape);
}

/* ---- operations ------------------------------------------------------------------------------ */

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

static qn_array *op_matmul(qn_scope *s)
{
    return qn_matmul(s, f32(s, SHAPE(2, 1, 17, 33)), f32(s, SHAPE(5, 33, 9)));
}
static qn_array *op_matmul_views(qn_scope *s)
{
    return qn_matmul(s, qn_swap_axes(s, f32(s, SHAPE(3, 40, 6)), 1, 2),
                     qn_swap_axes(s, f32(s, SHAPE(3, 7, 40)), 1, 2));
}
static qn_array *op_matmul_f64(qn_scope *s)
{
    return qn_matmul(s, noise(s, QN_F64, 1, SHAPE(5, 8)), noise(s, QN_F64, 1, SHAPE(8, 3)));
}
static qn_array *op_matmul_empty(qn_scope *s)
{
    return qn_matmul(s, f32(s, SHAPE(5, 0)), f32(s, SHAPE(0, 3)));
}

static qn_array *op_linear(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(2, 3, 45)), f32(s, SHAPE(37, 45)), f32(s, SHAPE(37)));
}
static qn_array *op_linear_bf16(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(4, 129)), noise(s, QN_BF16, 1, SHAPE(65, 129)), NULL);
}
/* Three weights with the same x, in rows that stream; so many rows of it. */
static qn_array *streamed(qn_scope *s, int64_t rows, int64_t columns)
{
    qn_array *x = f32(s, SHAPE(rows, columns)), *part[4];
    const int64_t n[] = {40, 16, 131, 8};
    for (int i = 0; i < 4; i++)
        part[i] = qn_linear(s, x, noise(s, QN_BF16, 1, SHAPE(n[i], columns)), NULL);
    return qn_concatenate(s, part, 4, 1);
}
static qn_array *op_linear_1(qn_scope *s)
{
    return streamed(s, 1, 2048);
}
static qn_array *op_linear_5(qn_scope *s)
{
    return streamed(s, 5, 264);
}
static qn_array *op_linear_13(qn_scope *s)
{
    return streamed(s, 13, 4504);
}
static qn_array *op_linear_29(qn_scope *s)
{
    return streamed(s, 29, 4504);
}
static qn_array *op_linear_61(qn_scope *s)
{
    return streamed(s, 61, 2312);
}
static qn_array *op_linear_200(qn_scope *s)
{
    return streamed(s, 200, 584);
}
/* So many rows that each of an H200's 132 processors has three tiles of 16, and nine or more in
 * turns; columns that come in whole pieces. */
static qn_array *op_linear_tall(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(12, 512)), noise(s, QN_BF16, 1, SHAPE(6330, 512)), NULL);
}
static qn_array *op_linear_tall_40(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(40, 512)), noise(s, QN_BF16, 1, SHAPE(6330, 512)), NULL);
}
static qn_array *op_linear_taller(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(30, 320)), noise(s, QN_BF16, 1, SHAPE(35900, 320)), NULL);
}
static qn_array *op_linear_f16(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(129)), noise(s, QN_F16, 1, SHAPE(65, 129)), NULL);
}
static qn_array *op_linear_view(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(4, 31)), qn_transpose(s, f32(s, SHAPE(31, 12)), NULL), NULL);
}
static qn_array *op_linear_f64(qn_scope *s)
{
    return qn_linear(s, f32(s, SHAPE(4, 31)), noise(s, QN_F64, 1, SHAPE(12, 31)), NULL);
}

/* A packed weight: read by linear and take. */
static qn_array *packed(qn_scope *s, qn_dtype type)
{
    qn_array *w = qn_pack(s, noise(s, type, 1, SHAPE(48, 70)));
    if (!w)
        return qn__poison(s);
    qn_array *y = qn_linear(s, f32(s, SHAPE(3, 70)), w, NULL);
    qn_array *rows = qn_cast(s, qn_take(s, w, indices(s, 48, false, SHAPE(4)), 0), QN_F32);
    y = qn_matmul(s, y, qn_slice(s, qn_matmul(s, f32(s, SHAPE(48, 4)), rows), 1, 0, 9, 1));
    qn_release(w);
    return y;
}
static qn_array *op_packed(qn_scope *s)
{
    return packed(s, QN_F32);
}
static qn_array *op_packed_bf16(qn_scope *s)
{
    return packed(s, QN_BF16);
}
static qn_array *op_packed_f16(qn_scope *s)
{
    return packed(s, QN_F16);
}

/* The operation of a linear layer's gradient, recorded itself: the result of g w. */
static qn_array *linear_back(qn_scope *s, qn_dtype type)
{
    qn_array *in[] = {f32(s, SHAPE(5, 23)), noise(s, type, 1, SHAPE(23, 40))};
    qn__linear_params p = {type == QN_BF16 ? QN_PRODUCTS_BF16 : QN_PRODUCTS_F32};
    return qn__record(s, QN__OP_LINEAR_BACK, QN_F32, SHAPE(5, 40), 2, in, &p);
}
static qn_array *op_linear_back(qn_scope *s)
{
    return linear_back(s, QN_F32);
}
static qn_array *op_linear_back_bf16(qn_scope *s)
{
    return linear_back(s, QN_BF16);
}
static qn_array *op_linear_gradient(qn_scope *s)
{
    qn_array *x = f32(s, SHAPE(5, 40)), *w = f32(s, SHAPE(23, 40)), *grad[] = {NULL, NULL};
    qn_vjp(s, qn_linear(s, x, w, NULL), f32(s, SHAPE(5, 23)), (qn_array *[]){x, w}, 2, grad);
    return qn_concatenate(s, grad, 2, 0);
}

/* A feed-forward network with what stands around it: its launches do parts of each other. */
static qn_array *network(qn_scope *s, int64_t rows, int64_t wide, int64_t inner)
{
    qn_array *h = f32(s, SHAPE(rows, wide)), *gate = noise(s, QN_BF16, 1, SHAPE(inner, wide)),
             *up = noise(s, QN_BF16, 1, SHAPE(inner, wide)),
             *down = noise(s, QN_BF16, 1, SHAPE(wide, inner));
    qn_array *x = qn_rms_norm(s, h, f32(s, SHAPE(wide)), 1e-5f),
             *g = qn_silu(s, qn_linear(s, x, gate, NULL));
    return qn_add(s, h, qn_linear(s, qn_multiply(s, g, qn_linear(s, x, up, NULL)), down, NULL));
}
static qn_array *op_network_1(qn_scope *s)
{
    return network(s, 1, 96, 232);
}
static qn_array *op_network_40(qn_scope *s)
{
    return network(s, 40, 96, 232);
}
static qn_array *op_network_300(qn_scope *s)
{
    return network(s, 300, 96, 232);
}
static qn_array *op_network_tall(qn_scope *s) /* seven pairs of tiles for each of 132 processors */
{
    return network(s, 20, 128, 14720);
}

/* Layers with a norm before and a norm behind each, whose sum the next norm takes. */
static qn_array *sandwich(qn_scope *s, int64_t rows)
{
    enum { WIDE = 1152 };
    qn_array *h = f32(s, SHAPE(rows, WIDE));
    for (int i = 0; i < 3; i++) {
        qn_array *x = qn_rms_norm(s, h, f32(s, SHAPE(WIDE)), 1e-6f);
        x = qn_linear(s, x, noise(s, QN_BF16, 1, SHAPE(WIDE, WIDE)), NULL);
        h = qn_add(s, h, qn_rms_norm(s, x, f32(s, SHAPE(WIDE)), 1e-5f));
    }
    return h;
}
static qn_array *op_sandwich_1(qn_scope *s)
{
    return sandwich(s, 1);
}
static qn_array *op_sandwich_70(qn_scope *s)
{
    return sandwich(s, 70);
}

static qn_array *op_rms_norm(qn_scope *s)
{
    return qn_rms_norm(s, f32(s, SHAPE(3, 5, 300)), f32(s, SHAPE(300)), 1e-5f);
}
static qn_array *op_rms_norm_bare(qn_scope *s)
{
    return qn_rms_norm(s, qn_swap_axes(s, f32(s, SHAPE(48, 5)), 0, 1), NULL, 1e-6f);
}
static qn_array *op_rms_norm_f64(qn_scope *s)
{
    return qn_rms_norm(s, noise(s, QN_F64, 1, SHAPE(3, 31)), NULL, 1e-6f);
}
static qn_array *op_layer_norm(qn_scope *s)
{
    return qn_layer_norm(s, f32(s, SHAPE(6, 77)), f32(s, SHAPE(77)), f32(s, SHAPE(77)), 1e-5f);
}

static qn_array *frequencies(qn_scope *s, int64_t half)
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

static qn_array *op_attention(qn_scope *s)
{
    qn_attention_options o = {.size = sizeof o, .causal = true, .window = 6};
    return qn_attention(s, f32(s, SHAPE(2, 6, 9, 16)), f32(s, SHAPE(2, 2, 13, 16)),
                        f32(s, SHAPE(2, 2, 13, 24)), &o);
}
static qn_array *op_cross_entropy(qn_scope *s)
{
    return qn_cross_entropy(s, f32(s, SHAPE(4, 3, 70)), indices(s, 70, false, SHAPE(4, 3)));
}

/* Two sequences of 537 and 40 positions, whose newest two rows run: their tiles, and their pages,
 * which lie anywhere. */
enum { CACHE_PAGES = 20, CACHE_D = 24, CACHE_E = 40, CACHE_H = 6, CACHE_G = 2 };

static qn_array *pages_of_two(qn_scope *s)
{
    int32_t table[2][16];
    for (int i = 0; i < 16; i++) {
        table[0][i] = i < 9 ? 2 * i + 1 : -1;
        table[1][i] = i < 1 ? 4 : -1;
    }
    return qn_from(s, QN_I32, 2, (const int64_t[]){2, 16}, table);
}

/* Slots of positions first .. end - 1 of the first sequence, and of the second. */
static qn_array *slots_of_two(qn_scope *s, int first, int end, int first_2, int end_2)
{
    int32_t slots[700], n = 0;
    for (int p = first; p < end; p++)
        slots[n++] = (2 * (p / 64) + 1) * 64 + p % 64;
    for (int p = first_2; p < end_2; p++)
        slots[n++] = 4 * 64 + p;
    return qn_from_i32(s, slots, n);
}

/* A cache written twice (prompts, then a step), and attended to. what: 0 the keys, 1 the values, 2
 * the attention. */
static qn_array *cached(qn_scope *s, qn_dtype type, int what, int64_t keep,
                        const qn_attention_options *o)
{
    static const int32_t tiles[3][4] = {{0, 0, 2, 535}, {1, 2, 2, 38}, {0, 0, 0, 0}};
    qn_array *then = slots_of_two(s, 0, 535, 0, 38), *now = slots_of_two(s, 535, 537, 38, 40);
    qn_array *k = qn_zeros(s, type, SHAPE(CACHE_PAGES, CACHE_G, 4, CACHE_D, 16));
    qn_array *v = qn_zeros(s, type, SHAPE(CACHE_PAGES, CACHE_G, 64, CACHE_E));
    k = qn__write_keys(s, k, f32(s, SHAPE(1, CACHE_G, 573, CACHE_D)), then);
    v = qn__write_values(s, v, f32(s, SHAPE(1, CACHE_G, 573, CACHE_E)), then);
    k = qn__write_keys(s, k, qn_swap_axes(s, f32(s, SHAPE(1, 4, CACHE_G, CACHE_D)), 1, 2), now);
    v = qn__write_values(s, v, qn_swap_axes(s, f32(s, SHAPE(1, 4, CACHE_G, CACHE_E)), 1, 2), now);
    qn_array *y = qn__attend(s, qn_swap_axes(s, f32(s, SHAPE(1, 4, CACHE_H, CACHE_D)), 1, 2), k, v,
                             qn_from(s, QN_I32, SHAPE(3, 4), tiles), pages_of_two(s), keep, o);
    return what == 0 ? k : what == 1 ? v : y;
}
static qn_array *op_keys(qn_scope *s)
{
    return cached(s, QN_F32, 0, 0, NULL);
}
static qn_array *op_keys_bf16(qn_scope *s)
{
    return cached(s, QN_BF16, 0, 0, NULL);
}
static qn_array *op_values_bf16(qn_scope *s)
{
    return cached(s, QN_BF16, 1, 0, NULL);
}
static qn_array *op_attend(qn_scope *s)
{
    return cached(s, QN_F32, 2, 0, NULL);
}
static qn_array *op_attend_bf16(qn_scope *s)
{
    return cached(s, QN_BF16, 2, 0, NULL);
}
static qn_array *op_attend_window(qn_scope *s)
{
    return cached(
        s, QN_F32, 2, 0,
        &(qn_attention_options){.size = sizeof(qn_attention_options), .window = 19, .softcap = 2});
}
static qn_array *op_attend_keep(qn_scope *s)
{
    qn_attention_options o = {.size = sizeof o, .window = 30, .sinks = f32(s, SHAPE(CACHE_H))};
    return cached(s, QN_F32, 2, 11, &o);
}

/* The same sequences with heads that are read by pages. */
static qn_array *paged(qn_scope *s, qn_dtype type, int64_t heads, int64_t groups, int64_t d,
                       int64_t keep, const qn_attention_options *o)
{
    static const int32_t tiles[3][4] = {{0, 0, 2, 535}, {1, 2, 2, 38}, {0, 0, 0, 0}};
    qn_array *slots = slots_of_two(s, 0, 537, 0, 40);
    qn_array *k = qn_zeros(s, type, SHAPE(CACHE_PAGES, groups, 4, d, 16));
    qn_array *v = qn_zeros(s, type, SHAPE(CACHE_PAGES, groups, 64, d));
    k = qn__write_keys(s, k, f32(s, SHAPE(1, groups, 577, d)), slots);
    v = qn__write_values(s, v, f32(s, SHAPE(1, groups, 577, d)), slots);
    return qn__attend(s, f32(s, SHAPE(1, heads, 4, d)), k, v,
                      qn_from(s, QN_I32, SHAPE(3, 4), tiles), pages_of_two(s), keep, o);
}
static qn_array *op_paged(qn_scope *s)
{
    return paged(s, QN_F32, 8, 2, 64, 0, NULL);
}
static qn_array *op_paged_bf16(qn_scope *s)
{
    return paged(s, QN_BF16, 8, 2, 64, 0, NULL);
}
static qn_array *op_paged_7(qn_scope *s)
{
    return paged(s, QN_BF16, 14, 2, 128, 0, NULL);
}
static qn_array *op_paged_rotating(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 230, .softcap = 3, .sinks = f32(s, SHAPE(6))};
    return paged(s, QN_BF16, 6, 2, 64, 11, &o);
}
static qn_array *op_paged_256(qn_scope *s)
{
    return paged(s, QN_F32, 10, 1, 256, 0, NULL);
}
static qn_array *op_paged_256_bf16(qn_scope *s)
{
    return paged(s, QN_BF16, 4, 1, 256, 0, NULL);
}

/* Many rows of one token each, anywhere in both sequences. */
static qn_array *crowded(qn_scope *s, int64_t heads, int64_t groups, int64_t d, int64_t keep,
                         const qn_attention_options *o)
{
    enum { ROWS = 70 };
    int32_t tiles[ROWS][4];
    for (int i = 0; i < ROWS; i++) {
        const int32_t tile[] = {i % 2, i, 1, i % 2 ? i % 40 : 536 - 7 * i};
        memcpy(tiles[i], tile, sizeof tile);
    }
    qn_array *slots = slots_of_two(s, 0, 537, 0, 40);
    qn_array *k = qn_zeros(s, QN_BF16, SHAPE(CACHE_PAGES, groups, 4, d, 16));
    qn_array *v = qn_zeros(s, QN_BF16, SHAPE(CACHE_PAGES, groups, 64, d));
    k = qn__write_keys(s, k, f32(s, SHAPE(1, groups, 577, d)), slots);
    v = qn__write_values(s, v, f32(s, SHAPE(1, groups, 577, d)), slots);
    return qn__attend(s, f32(s, SHAPE(1, heads, ROWS, d)), k, v,
                      qn_from(s, QN_I32, SHAPE(ROWS, 4), tiles), pages_of_two(s), keep, o);
}
static qn_array *op_crowded_64(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 230, .softcap = 3, .sinks = f32(s, SHAPE(6))};
    return crowded(s, 6, 2, 64, 11, &o);
}
static qn_array *op_crowded_128(qn_scope *s)
{
    return crowded(s, 8, 2, 128, 0, NULL);
}
static qn_array *op_crowded_256(qn_scope *s)
{
    return crowded(s, 4, 1, 256, 0, NULL);
}
static qn_array *op_paged_keep(qn_scope *s)
{
    qn_attention_options o = {
        .size = sizeof o, .window = 230, .softcap = 3, .sinks = f32(s, SHAPE(6))};
    return paged(s, QN_BF16, 6, 2, 96, 11, &o);
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

/* ---- every cast and every exact instruction, on all bit patterns ----------------------------- */

static qn_dtype case_type;

static qn_array *any_bits(qn_scope *s, qn_dtype type, int64_t n)
{
    static const double ends[] = {0.0,  -0.0,         INFINITY, -INFINITY,
                                  NAN,  65519.9,      65520.0,  1e-45,
                                  6e-8, 2147483648.0, -9.3e18,  1.8446744073709552e19,
                                  127.5};
    size_t size = qn_dtype_size(type);
    char *data = malloc((size_t)n * 8);
    for (int64_t i = 0; data && i < n; i++) {
        double u = uniform(), v = uniform() * 300;
        uint64_t bits = seed ^ seed >> 29;
        if (type == QN_BOOL)
            data[i] = u > 0;
        else if (u > 0.2)
            memcpy(data + (size_t)i * size, &bits, size);
        else
            qn__element_from_f64(data + (size_t)i * size, type,
                                 u > -0.3             ? v
                                 : qn__is_float(type) ? ends[i % 13]
                                                      : 0);
    }
    qn_array *a = qn_from(s, type, 1, &n, data);
    free(data);
    return a;
}

/* Appends y as f64 and, of 64-bit integers, the low bits that f64 would hide. */
static void show_bits(qn_scope *s, qn_array *y, qn_array **parts, int *n)
{
    qn_dtype type = qn_array_dtype(y);
    parts[(*n)++] = qn_cast(s, y, QN_F64);
    if (type == QN_I64 || type == QN_U64)
        parts[(*n)++] = qn_cast(s, qn_cast(s, y, QN_U32), QN_F64);
}

static qn_array *op_cast_to_all(qn_scope *s)
{
    qn_array *x = any_bits(s, case_type, 3000), *parts[2 * QN_DTYPE_COUNT];
    int n = 0;
    for (int to = 0; to < QN_DTYPE_COUNT; to++)
        show_bits(s, qn_cast(s, x, (qn_dtype)to), parts, &n);
    return qn_concatenate(s, parts, n, 0);
}

static qn_array *op_exact_functions(qn_scope *s)
{
    qn_array *a = any_bits(s, case_type, 3000), *b = any_bits(s, case_type, 3000);
    qn_array *parts[] = {qn_negative(s, a),
                         qn_abs(s, a),
                         qn_sign(s, a),
                         qn_floor(s, a),
                         qn_ceil(s, a),
                         qn_round(s, a),
                         qn_sqrt(s, a),
                         qn_rsqrt(s, a),
                         qn_square(s, a),
                         qn_relu(s, a),
                         qn_add(s, a, b),
                         case_type == QN_BOOL ? a
                                              : qn_subtract(s, a, b), /* bools have no difference */
                         qn_multiply(s, a, b),
                         qn_divide(s, a, b),
                         qn_maximum(s, a, b),
                         qn_minimum(s, a, b),
                         qn_equal(s, a, b),
                         qn_not_equal(s, a, b),
                         qn_less(s, a, b),
                         qn_less_equal(s, a, b),
                         qn_where(s, qn_less(s, a, b), a, b)};
    enum { PARTS = sizeof parts / sizeof *parts };
    qn_array *all[2 * PARTS];
    int n = 0;
    for (int i = 0; i < PARTS; i++)
        show_bits(s, parts[i], all, &n);
    return qn_concatenate(s, all, n, 0);
}

/* Sorting and scattering, a column alone and several. */
static qn_array *op_order(qn_scope *s)
{
    static const qn_scatter_mode modes[] = {QN_SCATTER_SET, QN_SCATTER_ADD, QN_SCATTER_MAX,
                                            QN_SCATTER_MIN};
    qn_array *x = any_bits(s, case_type, 1000), *u = any_bits(s, case_type, 3000), *all[2 * 8 + 4];
    qn_array *ids = indices(s, 1000, true, SHAPE(3000)), *few = indices(s, 40, true, SHAPE(120));
    int n = 0;
    for (int mode = 0; mode < 4; mode++) {
        show_bits(s, qn_scatter(s, x, ids, u, 0, modes[mode]), all, &n);
        qn_array *rows = qn_scatter(s, qn_reshape(s, x, SHAPE(40, 25)), few,
                                    qn_reshape(s, u, SHAPE(120, 25)), 0, modes[mode]);
        show_bits(s, qn_reshape(s, rows, SHAPE(1000)), all, &n);
    }
    for (int descending = 0; descending < 2; descending++) {
        qn_array *rows = qn_argsort(s, qn_reshape(s, x, SHAPE(40, 25)), 1, descending);
        all[n++] = qn_cast(s, qn_argsort(s, u, 0, descending), QN_F64);
        all[n++] = qn_cast(s, qn_reshape(s, rows, SHAPE(1000)), QN_F64);
    }
    return qn_concatenate(s, all, n, 0);
}

/* ---- quantised weights ----------------------------------------------------------------------- */

static int case_encoding;
static int64_t case_rows;

/* A weight of case_encoding, written in two pieces that part a unit. */
static qn_array *in_units(qn_scope *s, int64_t rows, int64_t columns)
{
    enum { FIRST = 21 };
    const qn__encoding *e = &qn__encodings[case_encoding];
    size_t n = (size_t)(rows * columns), row = qn__encoding_row_bytes(e, columns);
    float *values = malloc(n * sizeof *values);
    char *blocks = malloc((size_t)rows * row);
    for (size_t i = 0; values && i < n; i++)
        values[i] = (float)uniform();
    qn_array *w = values && blocks ? qn__packed_new(s, e, rows, columns) : NULL;
    if (w) {
        e->encode(e, values, NULL, n / e->block_elements, blocks);
        qn__packed_write(w, e, blocks, 0, FIRST, &s->error);
        qn__packed_write(w, e, blocks + FIRST * row, FIRST, rows - FIRST, &s->error);
    }
    free(values);
    free(blocks);
    return w;
}

/* Linear layers of case_rows rows by products of bytes or in f32, or rows of the weight. */
static qn_array *from_units(qn_scope *s, qn_products products, int64_t columns)
{
    qn_array *w = in_units(s, 75, columns), *y;
    if (!w)
        return qn__poison(s);
    if (products == QN_PRODUCTS_AUTO)
        y = qn_take(s, w, indices(s, 75, true, SHAPE(3, 4)), 0);
    else
        y = qn_linear_with(s, f32(s, SHAPE(case_rows, columns)), w, NULL, products);
    qn_release(w);
    return y;
}
static qn_array *op_unit_bytes(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_INT8, 4352);
}
static qn_array *op_unit_bytes_short(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_INT8, 768);
}
static qn_array *op_unit_values(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_F32, 2304);
}
/* As network() above: of one row its launches take on the norm, SiLU and the residual. */
static qn_array *op_unit_network(qn_scope *s)
{
    enum { WIDE = 512, INNER_WIDE = 768 };
    qn_array *h = f32(s, SHAPE(case_rows, WIDE)), *gate = in_units(s, INNER_WIDE, WIDE),
             *up = in_units(s, INNER_WIDE, WIDE), *down = in_units(s, WIDE, INNER_WIDE),
             *y = qn__poison(s);
    if (gate && up && down) {
        qn_array *x = qn_rms_norm(s, h, f32(s, SHAPE(WIDE)), 1e-5f),
                 *g = qn_silu(s, qn_linear_with(s, x, gate, NULL, QN_PRODUCTS_INT8));
        g = qn_multiply(s, g, qn_linear_with(s, x, up, NULL, QN_PRODUCTS_INT8));
        y = qn_add(s, h, qn_linear_with(s, g, down, NULL, QN_PRODUCTS_INT8));
    }
    qn_release(gate);
    qn_release(up);
    qn_release(down);
    return y;
}
static qn_array *op_unit_rows(qn_scope *s)
{
    return from_units(s, QN_PRODUCTS_AUTO, 512);
}

typedef struct op_case {
    const char *name;
    qn_array *(*build)(qn_scope *s);
    double tolerance; /* of the normalised squared error; 0: the same bytes */
} op_case;

#define EXACT(name)                                                                                \
    {                                                                                              \
#name, op_##name, 0                                                                        \
    }
#define CLOSE(name)                                                                                \
    {                                                                                              \
#name, op_##name, 1e-11                                                                    \
    }
/* Queries and probabilities are bf16 there, on the CPU by tier; or a network's activations. */
#define ROUNDED(name)                                                                              \
    {                                                                                              \
#name, op_##name, 3e-5                                                                     \
    }
static const op_case cases[] = {
    EXACT(arange),
    EXACT(arange_i8),
    EXACT(arange_f16),
    EXACT(arange_bf16),
    EXACT(full),
    EXACT(chain),
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
    CLOSE(matmul),
    CLOSE(matmul_views),
    CLOSE(matmul_f64),
    EXACT(matmul_empty),
    CLOSE(linear),
    CLOSE(linear_bf16),
    CLOSE(linear_1),
    CLOSE(linear_5),
    CLOSE(linear_13),
    CLOSE(linear_29),
    CLOSE(linear_61),
    CLOSE(linear_200),
    CLOSE(linear_tall),
    CLOSE(linear_tall_40),
    CLOSE(linear_taller),
    CLOSE(linear_f16),
    CLOSE(linear_view),
    CLOSE(linear_f64),
    CLOSE(linear_back),
    CLOSE(linear_back_bf16),
    CLOSE(linear_gradient),
    CLOSE(rms_norm),
    CLOSE(rms_norm_bare),
    CLOSE(rms_norm_f64),
    CLOSE(layer_norm),
    CLOSE(rope),
    CLOSE(rope_pairs),
    CLOSE(rope_f64),
    CLOSE(rope_rows),
    CLOSE(attention),
    CLOSE(cross_entropy),
    CLOSE(packed),
    CLOSE(packed_bf16),
    CLOSE(packed_f16),
    EXACT(keys),
    EXACT(keys_bf16),
    EXACT(values_bf16),
    CLOSE(attend),
    CLOSE(attend_bf16),
    CLOSE(attend_window),
    CLOSE(attend_keep),
    CLOSE(paged),
    ROUNDED(network_1),
    ROUNDED(network_40),
    ROUNDED(network_300),
    ROUNDED(network_tall),
    ROUNDED(sandwich_1),
    ROUNDED(sandwich_70),
    ROUNDED(paged_bf16),
    ROUNDED(paged_7),
    CLOSE(paged_256),
    ROUNDED(paged_256_bf16),
    ROUNDED(crowded_64),
    ROUNDED(crowded_128),
    ROUNDED(crowded_256),
    CLOSE(paged_keep),
    ROUNDED(paged_rotating),
    EXACT(large),
    CLOSE(sizes),
};

/* A case's result on a device: bytes, and as f32; NULL with the failure recorded. */
static void *run_case(const op_case *c, qn_device *dev, size_t *n, qn_dtype *type)
{
    seed = 42;
    qn_scope *s = qn_scope_begin(dev);
    qn_array *y = c->build(s);
    void *data = NULL;
    if (qn_scope_status(s) == QN_OK) {
        *n = (size_t)qn_array_elements(y);
        *type = qn_array_dtype(y);
        data = malloc(*n * 8 + 8);
        if (qn_read(s, y, data, *n * qn_dtype_size(*type)) != QN_OK) {
            free(data);
            data = NULL;
        }
    }
    if (!data)
        check(false, c->name, qn_scope_error(s));
    qn_scope_end(s);
    return data;
}

static bool same_bits(const char *a, const char *b, size_t n, qn_dtype type)
{
    size_t size = qn_dtype_size(type);
    for (size_t i = 0; i < n; i++, a += size, b += size)
        if (memcmp(a, b, size)) {
            double x = qn__element_to_f64(a, type), y = qn__element_to_f64(b, type);
            if (x == x || y == y) /* any NaN equals any other */
                return false;
        }
    return true;
}

static void compare_case(const op_case *c, qn_device *cpu, qn_device *cuda)
{
    size_t n = 0, m = 0;
    qn_dtype t = QN_F32, u = QN_F32;
    char *want = run_case(c, cpu, &n, &t), *got = run_case(c, cuda, &m, &u);
    double error = 0, power = 0;
    char text[128];
    if (want && got) {
        CHECK(c->name, n == m && t == u);
        size_t size = qn_dtype_size(t);
        for (size_t i = 0; i < n && n == m; i++) {
            double x = qn__element_to_f64(want + i * size, t);
            double d = qn__element_to_f64(got + i * size, t) - x;
            error += d * d;
            power += x * x;
        }
        double nmse = power > 0 ? error / power : error;
        bool exact = c->tolerance == 0, same = same_bits(want, got, n, t);
        snprintf(text, sizeof text, "%zu of %s: %s bits, nmse %.3g", n, qn_dtype_name(t),
                 same ? "the same" : "other", same ? 0 : nmse);
        check(exact ? same : nmse <= c->tolerance, c->name, text);
        printf("%-18s %s\n", c->name, text);
    }
    free(want);
    free(got);
}

/* ---- a small Llama --------------------------------------------------------------------------- */

enum {
    VOCABULARY = 193,
    WIDTH = 64,
    HEADS = 4,
    GROUPS = 2,
    HEAD = 16,
    INNER = 160,
    LAYERS = 2,
    CAPACITY = 64,
    TOKENS = 40
};

typedef struct layer {
    qn_array *norm1, *q, *k, *v, *o, *norm2, *gate, *up, *down;
    qn_array *keys, *values; /* the caches: given to each step, kept from it */
} layer;

typedef struct model {
    qn_array *embedding, *norm, *head, *frequency;
    qn_array *token, *position;
    layer layers[LAYERS];
} model;

static qn_array *keep(qn_scope *s, qn_array *a)
{
    if (qn_eval(s, a) != QN_OK)
        return NULL;
    return qn_retain(a);
}

static bool make_model(qn_device *dev, qn_dtype type, model *m)
{
    seed = 7;
    qn_scope *s = qn_scope_begin(dev);
    m->embedding = keep(s, noise(s, type, 1, SHAPE(VOCABULARY, WIDTH)));
    m->norm = keep(s, f32(s, SHAPE(WIDTH)));
    m->head = keep(s, noise(s, type, 1, SHAPE(VOCABULARY, WIDTH)));
    m->frequency = keep(s, frequencies(s, HEAD / 2));
    int32_t token = 5, position = 0;
    m->token = keep(s, qn_from(s, QN_I32, SHAPE(1, 1), &token));
    m->position = keep(s, qn_from(s, QN_I32, SHAPE(1), &position));
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &m->layers[i];
        l->norm1 = keep(s, f32(s, SHAPE(WIDTH)));
        l->q = keep(s, noise(s, type, 0.3, SHAPE(HEADS * HEAD, WIDTH)));
        l->k = keep(s, noise(s, type, 0.3, SHAPE(GROUPS * HEAD, WIDTH)));
        l->v = keep(s, noise(s, type, 0.3, SHAPE(GROUPS * HEAD, WIDTH)));
        l->o = keep(s, noise(s, type, 0.3, SHAPE(WIDTH, HEADS * HEAD)));
        l->norm2 = keep(s, f32(s, SHAPE(WIDTH)));
        l->gate = keep(s, noise(s, type, 0.3, SHAPE(INNER, WIDTH)));
        l->up = keep(s, noise(s, type, 0.3, SHAPE(INNER, WIDTH)));
        l->down = keep(s, noise(s, type, 0.3, SHAPE(WIDTH, INNER)));
        l->keys = keep(s, qn_zeros(s, QN_F32, SHAPE(CAPACITY / 64, GROUPS, 4, HEAD, 16)));
        l->values = keep(s, qn_zeros(s, QN_F32, SHAPE(CAPACITY / 64, GROUPS, 64, HEAD)));
    }
    bool ok = qn_scope_status(s) == QN_OK;
    check(ok, "llama", qn_scope_error(s));
    qn_scope_end(s);
    return ok;
}

static void release_model(model *m)
{
    qn_array **all = (qn_array **)m;
    for (size_t i = 0; i < sizeof *m / sizeof *all; i++)
        qn_release(all[i]);
}

/* x [1, 1, n * HEAD] as heads [1, n, 1, HEAD] */
static qn_array *heads(qn_scope *s, qn_array *x, int64_t n)
{
    return qn_swap_axes(s, qn_reshape(s, x, SHAPE(1, 1, n, HEAD)), 1, 2);
}

/* One row at `position` [1] of the sequence whose pages are 0, 1 .. in that order: {0, 0, 1,
 * position}. */
static qn_array *tile_at(qn_scope *s, qn_array *position)
{
    qn_array *field = qn_arange(s, QN_I32, 4);
    qn_array *rows = qn_cast(s, qn_equal(s, field, qn_scalar(s, QN_I32, 2)), QN_I32);
    qn_array *last = qn_equal(s, field, qn_scalar(s, QN_I32, 3));
    return qn_reshape(s, qn_where(s, last, position, rows), SHAPE(1, 4));
}

static qn_array *attention_block(qn_scope *s, const model *m, layer *l, qn_array *x,
                                 qn_array *position)
{
    qn_array *h = qn_rms_norm(s, x, l->norm1, 1e-5f);
    qn_array *q =
        qn_rope(s, heads(s, qn_linear(s, h, l->q, NULL), HEADS), position, m->frequency, false);
    qn_array *k =
        qn_rope(s, heads(s, qn_linear(s, h, l->k, NULL), GROUPS), position, m->frequency, false);
    qn_array *v = heads(s, qn_linear(s, h, l->v, NULL), GROUPS);
    l->keys = qn__write_keys(s, qn_donate(s, l->keys), k, position);
    l->values = qn__write_values(s, qn_donate(s, l->values), v, position);
    qn_array *y = qn__attend(s, q, l->keys, l->values, tile_at(s, position),
                             qn_reshape(s, qn_arange(s, QN_I32, 16), SHAPE(1, 16)), 0, NULL);
    y = qn_reshape(s, qn_swap_axes(s, y, 1, 2), SHAPE(1, 1, HEADS * HEAD));
    return qn_add(s, x, qn_linear(s, y, l->o, NULL));
}

static qn_array *mlp_block(qn_scope *s, const layer *l, qn_array *x)
{
    qn_array *h = qn_rms_norm(s, x, l->norm2, 1e-5f);
    qn_array *gate = qn_silu(s, qn_linear(s, h, l->gate, NULL));
    h = qn_multiply(s, gate, qn_linear(s, h, l->up, NULL));
    return qn_add(s, x, qn_linear(s, h, l->down, NULL));
}

/* One token: everything that changes is donated and comes back; only the token is read. */
static bool decode_step(qn_device *dev, model *m, int32_t *token)
{
    qn_scope *s = qn_scope_begin(dev);
    qn_array *old = qn_donate(s, m->token), *position = qn_donate(s, m->position);
    qn_array *x = qn_cast(s, qn_take(s, m->embedding, old, 0), QN_F32);
    for (int i = 0; i < LAYERS; i++)
        x = mlp_block(s, &m->layers[i], attention_block(s, m, &m->layers[i], x, position));
    qn_array *logits = qn_linear(s, qn_rms_norm(s, x, m->norm, 1e-5f), m->head, NULL);
    qn_array *best = qn_argmax(s, logits, -1, false); /* [1, 1] */
    m->token = qn_add(s, best, qn_multiply(s, old, qn_scalar(s, QN_I32, 0)));
    m->position = qn_add(s, position, qn_scalar(s, QN_I32, 1));
    qn_array *results[2 + 2 * LAYERS] = {m->token, m->position};
    for (int i = 0; i < LAYERS; i++) {
        results[2 + 2 * i] = m->layers[i].keys;
        results[3 + 2 * i] = m->layers[i].values;
    }
    bool ok = qn_eval_async(s, results, 2 + 2 * LAYERS) == QN_OK &&
              qn_read(s, m->token, token, sizeof *token) == QN_OK;
    check(ok, "decode step", qn_scope_error(s));
    m->token = qn_retain(m->token);
    m->position = qn_retain(m->position);
    for (int i = 0; i < LAYERS; i++) {
        m->layers[i].keys = qn_retain(m->layers[i].keys);
        m->layers[i].values = qn_retain(m->layers[i].values);
    }
    qn_scope_end(s);
    return ok;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { WARM = 3 }; /* steps after which nothing is captured any more */

static bool decode(qn_device *dev, qn_dtype type, bool cuda, int32_t *tokens)
{
    model m;
    if (!make_model(dev, type, &m))
        return false;
    qn__cuda_stats before = {0}, after = {0};
    double begun = 0;
    for (int i = 0; i < TOKENS; i++) {
        if (cuda && i == WARM) {
            before = qn__cuda_stats_get(dev);
            begun = now();
        }
        if (!decode_step(dev, &m, &tokens[i]))
            return false;
    }
    double seconds = now() - begun;
    qn_plan_stats plans = QN_INIT(qn_plan_stats);
    qn_device_plan_stats(dev, &plans);
    CHECK("llama", plans.donation_copies == 0);
    if (cuda) {
        uint64_t n = TOKENS - WARM;
        after = qn__cuda_stats_get(dev);
        CHECK("one graph launch a token", after.launches - before.launches == n);
        CHECK("nothing captured again", after.captures == before.captures);
        CHECK("only the token is read", after.host_reads - before.host_reads == n);
        CHECK("nothing is written", after.host_writes == before.host_writes);
        printf("llama %s: %d tokens; the last %d took %.1f us each; %llu launches, %llu captures, "
               "%llu reads, %llu writes among them; %llu programs\n",
               qn_dtype_name(type), TOKENS, (int)n, seconds * 1e6 / (double)n,
               (unsigned long long)(after.launches - before.launches),
               (unsigned long long)(after.captures - before.captures),
               (unsigned long long)(after.host_reads - before.host_reads),
               (unsigned long long)(after.host_writes - before.host_writes),
               (unsigned long long)after.programs);
    }
    release_model(&m);
    return true;
}

static void compare_cases(qn_device *cpu, qn_device *cuda)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        compare_case(&cases[i], cpu, cuda);
    for (case_encoding = QN__Q4_0; case_encoding < QN__ENCODING_COUNT; case_encoding++) {
        static const int64_t counts[] = {1, 5, 8, 40, 140};
        char name[64];
        qn_dtype type;
        qn__layout_id layout;
        if (!cuda->ops->hold(cuda, &qn__encodings[case_encoding], &type, &layout))
            continue;
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            case_rows = counts[i];
            snprintf(name, sizeof name, "%s x %d", qn__encodings[case_encoding].name,
                     (int)case_rows);
            compare_case(&(op_case){name, op_unit_bytes, 1e-11}, cpu, cuda);
            compare_case(&(op_case){name, op_unit_bytes_short, 1e-11}, cpu, cuda);
            compare_case(&(op_case){name, op_unit_values, 1e-11}, cpu, cuda);
            compare_case(&(op_case){name, op_unit_network, 1e-6}, cpu, cuda);
        }
        compare_case(&(op_case){qn__encodings[case_encoding].name, op_unit_rows, 0}, cpu, cuda);
    }
    for (int t = 0; t < QN_DTYPE_COUNT; t++) {
        char name[32];
        case_type = (qn_dtype)t;
        snprintf(name, sizeof name, "casts of %s", qn_dtype_name(case_type));
        compare_case(&(op_case){name, op_cast_to_all, 0}, cpu, cuda);
        snprintf(name, sizeof name, "functions of %s", qn_dtype_name(case_type));
        compare_case(&(op_case){name, op_exact_functions, 0}, cpu, cuda);
        snprintf(name, sizeof name, "order of %s", qn_dtype_name(case_type));
        compare_case(&(op_case){name, op_order, 0}, cpu, cuda);
    }
}

static void compare_llama(qn_device *cpu, qn_device *cuda, qn_dtype type)
{
    int32_t want[TOKENS] = {0}, got[TOKENS] = {0};
    bool seen[VOCABULARY] = {0};
    if (!decode(cpu, type, false, want))
        return;
    int distinct = 0;
    for (int i = 0; i < TOKENS; i++) {
        distinct += want[i] >= 0 && want[i] < VOCABULARY && !seen[want[i]];
        if (want[i] >= 0 && want[i] < VOCABULARY)
            seen[want[i]] = true;
    }
    printf("llama %s: %d distinct tokens:", qn_dtype_name(type), distinct);
    for (int i = 0; i < TOKENS; i++)
        printf(" %d", want[i]);
    printf("\n");
    CHECK("llama", distinct >= 8);
    if (cuda && decode(cuda, type, true, got))
        CHECK("the same greedy tokens", !memcmp(want, got, sizeof want));
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

/* The scope ends while its evaluation may still run; the result is right all the same. */
static void test_async(qn_device *dev)
{
    qn_array *kept = NULL;
    for (int i = 0; i < 200; i++) {
        qn_scope *s = qn_scope_begin(dev);
        float one = 1;
        qn_array *x = kept ? kept : qn_from_f32(s, &one, 1);
        qn_array *y = qn_add(s, x, qn_from_f32(s, &one, 1));
        CHECK("async", qn_eval_async(s, &y, 1) == QN_OK);
        qn_array *next = qn_retain(y);
        qn_scope_end(s);
        qn_release(kept);
        kept = next;
    }
    qn_scope *s = qn_scope_begin(dev);
    float y = 0;
    CHECK("async", qn_read_f32(s, kept, &y, 1) == QN_OK && y == 201);
    qn_scope_end(s);
    qn_release(kept);
}

static void *run_thread(void *device)
{
    long bad = 0;
    for (int i = 0; i < 50; i++) {
        qn_scope *s = qn_scope_begin(device);
        float y[40];
        qn_array *x = qn_arange(s, QN_F32, 40);
        bad +=
            qn_read_f32(
                s, qn_matmul(s, qn_reshape(s, x, SHAPE(40, 1)), qn_full(s, QN_F32, SHAPE(1, 1), i)),
                y, 40) != QN_OK;
        for (int k = 0; k < 40; k++)
            bad += y[k] != (float)(k * i);
        qn_scope_end(s);
    }
    return (void *)bad;
}

static void test_threads(qn_device *dev)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, run_thread, dev);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        CHECK("threads", bad == NULL);
    }
}

/* Row 3 of x has the same result, to the bit, in whatever company: linear layers. */
static qn_array *company_weight(qn_scope *s, qn_products products, int64_t rows, int64_t columns)
{
    case_encoding = QN__Q4_K;
    return products == QN_PRODUCTS_BF16 ? keep(s, noise(s, QN_BF16, 1, SHAPE(rows, columns)))
                                        : in_units(s, rows, columns);
}

static void test_company(qn_device *dev, qn_products products)
{
    enum { COLUMNS = 4352, N = 72, MOST = 150 };
    static float alone[N], beside[MOST * N];
    static const int64_t companies[] = {4, 8, 9, 16, 17, 32, 33, 64, 65, 110, MOST},
                         rows[] = {3, 3, 3, 3, 3, 3, 3, 3, 3, 107, 141};
    for (size_t i = 0; i < sizeof companies / sizeof *companies; i++) {
        int64_t n = companies[i], row = rows[i];
        seed = 5;
        qn_scope *s = qn_scope_begin(dev);
        qn_array *w = company_weight(s, products, N, COLUMNS), *x = f32(s, SHAPE(MOST, COLUMNS));
        qn_array *y = qn_linear_with(s, qn_slice(s, x, 0, 0, n, 1), w, NULL, products);
        qn_array *one = qn_linear_with(s, qn_slice(s, x, 0, row, row + 1, 1), w, NULL, products);
        CHECK("company", qn_read_f32(s, y, beside, (size_t)(n * N)) == QN_OK);
        CHECK("company", qn_read_f32(s, one, alone, N) == QN_OK);
        CHECK("company", !memcmp(alone, beside + row * N, sizeof alone));
        qn_scope_end(s);
        qn_release(w);
    }
}

/* Runs whose arrays lie elsewhere go into the executable graphs that are there. */
static void test_updates(qn_device *dev)
{
    qn__cuda_stats before = qn__cuda_stats_get(dev);
    qn_array *held[4] = {NULL};
    for (int i = 0; i < 4; i++) {
        qn_scope *s = qn_scope_begin(dev);
        float x[3 * 77];
        for (int k = 0; k < 3 * 77; k++)
            x[k] = (float)i + 1;
        held[i] = keep(s, qn_sum(s, qn_from(s, QN_F32, SHAPE(3, 77), x), -1, false));
        qn_scope_end(s);
    }
    qn__cuda_stats after = qn__cuda_stats_get(dev);
    CHECK("updates", after.instantiations - before.instantiations == QN__CUDA_GRAPHS);
    CHECK("updates", after.updates - before.updates == 4 - QN__CUDA_GRAPHS);
    for (int i = 0; i < 4; i++) {
        qn_scope *s = qn_scope_begin(dev);
        float y[3] = {0};
        CHECK("updates", qn_read_f32(s, held[i], y, 3) == QN_OK && y[2] == 77.0f * (float)(i + 1));
        qn_scope_end(s);
        qn_release(held[i]);
    }
}

static void test_limit(qn_device *dev)
{
    size_t before = qn_device_set_memory_limit(dev, active_bytes(dev) + (1 << 20));
    qn_scope *s = qn_scope_begin(dev);
    qn_array *x = qn_full(s, QN_F32, SHAPE(1 << 20), 1);
    CHECK("limit", qn_eval(s, x) == QN_LIMIT);
    qn_scope_end(s);
    qn_device_set_memory_limit(dev, before);
}

/* ---- what needs no GPU ----------------------------------------------------------------------- */

/* Every instruction and every cast, rendered and compiled. */
static void every_instruction(qn__ir *ir, qn_dtype type)
{
    qn__ir_begin(ir);
    qn__ir_value a = qn__ir_input(ir, 0, type), b = qn__ir_input(ir, 1, type), last = a;
    qn__ir_value c = qn__ir_input(ir, 2, QN_BOOL);
    bool real = qn__is_float(type), half = type == QN_F16 || type == QN_BF16;
    for (int op = QN__IR_CAST + 1; op < QN__IR_COUNT && !half; op++) {
        bool any = op == QN__IR_NEG || op == QN__IR_ABS || op == QN__IR_SIGN;
        bool whole = op == QN__IR_NOT || op == QN__IR_AND || op == QN__IR_OR || op == QN__IR_XOR ||
                     op == QN__IR_SHL || op == QN__IR_SHR;
        int n = qn__ir_operands((qn__ir_op)op);
        if ((whole && real) || op == QN__IR_SELECT || (op == QN__IR_ATAN2 && !real) ||
            (n == 1 && !any && !whole && !real) || (n == 3 && !real))
            continue;
        last = n == 1   ? qn__ir_unary(ir, (qn__ir_op)op, a)
               : n == 2 ? qn__ir_binary(ir, (qn__ir_op)op, a, b)
                        : qn__ir_ternary(ir, (qn__ir_op)op, a, b, a);
    }
    qn__ir_ternary(ir, QN__IR_SELECT, c, a, qn__ir_integer(ir, type, 3));
    for (int to = 0; to < QN_DTYPE_COUNT; to++)
        qn__ir_cast(ir, a, (qn_dtype)to);
    ir->result = last;
}

static void test_programs(void)
{
    qn__nvrtc nvrtc = {0};
    qn_error err = {0};
    qn_status status = qn__nvrtc_load(&nvrtc, &err);
    if (status != QN_OK) {
        printf("programs: skipped: %s\n", err.message);
        CHECK("programs", status == QN_UNSUPPORTED && strstr(err.message, "libnvrtc"));
        return;
    }
    static char text[1 << 16];
    static qn__ir ir;
    for (int type = QN_U8; type < QN_DTYPE_COUNT; type++) {
        every_instruction(&ir, (qn_dtype)type);
        size_t n = ir.failed ? 0 : qn__cuda_chain_text(&ir, text, sizeof text);
        CHECK("programs", n > 0 && n < sizeof text);
        size_t size;
        const qn__cuda_source source = {
            .what = "a chain", .text = text, .n = n, .kernel = "chain", .exact = true};
        char *code = n ? qn__cuda_compile(&nvrtc, &source, type % 2 ? 80 : 90, &size, &err) : NULL;
        check(code != NULL, qn_dtype_name((qn_dtype)type), err.message);
        free(code);
    }
    const qn__cuda_source none = {.what = "none", .text = "no program", .n = 10, .kernel = "chain"};
    size_t size;
    CHECK("programs", !qn__cuda_compile(&nvrtc, &none, 80, &size, &err) && err.code == QN_DEVICE);
    qn__nvrtc_unload(&nvrtc);
    printf("programs: compiled for every type; a wrong one says: %s\n", err.message);
}

static void test_absent(void)
{
    qn_device *none = NULL;
    qn_error err = {0};
    CHECK("absent", qn_device_open(&none, "cuda:999", NULL, &err) == QN_UNSUPPORTED && !none);
    printf("absent: %s\n", err.message);
}

/* A kernel that faults: the evaluation fails with the error's name, later ones too, and closing
 * works. Nothing on this GPU works afterwards in this process. */
static void test_fault(void)
{
    qn_device *dev = NULL;
    qn_scope *s = qn_device_open(&dev, "cuda:0", NULL, NULL) == QN_OK ? qn_scope_begin(dev) : NULL;
    qn_array *x = keep(s, qn_zeros(s, QN_F32, SHAPE(100)));
    if (!x) {
        check(false, "fault", qn_scope_error(s));
        return;
    }
    void *data = x->buffer->data;
    x->buffer->data = (void *)64;
    CHECK("fault", qn_eval(s, qn_sum(s, x, 0, false)) == QN_DEVICE);
    printf("fault: %s\n", qn_scope_error(s));
    qn_scope_end(s);
    x->buffer->data = data;
    s = qn_scope_begin(dev);
    CHECK("fault", qn_eval(s, qn_sum(s, x, 0, false)) == QN_DEVICE);
    printf("fault: %s\n", qn_scope_error(s));
    qn_scope_end(s);
    qn_release(x);
    qn_device_close(dev);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    qn_device *cpu = NULL, *cuda = NULL;
    qn_error err = {0};
    if (qn_device_open(&cpu, "cpu", NULL, &err) != QN_OK) {
        printf("cpu: %s\n", err.message);
        return 1;
    }
    test_absent();
    test_programs();
    qn_status status = qn_device_open(&cuda, "cuda:0", NULL, &err);
    if (status == QN_UNSUPPORTED) {
        printf("skipped: %s\n", err.message);
        compare_llama(cpu, NULL, QN_F32); /* that the reference itself is sound */
        compare_cases(cpu, cpu);
        qn_device_close(cpu);
        return n_failed ? 1 : 77;
    }
    if (status != QN_OK) {
        printf("cuda: %s\n", err.message);
        return 1;
    }
    char text[160];
    qn_device_describe(cuda, text, sizeof text);
    printf("device: %s\n", text);
    compare_cases(cpu, cuda);
    compare_llama(cpu, cuda, QN_F32);
    compare_llama(cpu, cuda, QN_BF16);
    test_async(cuda);
    test_threads(cuda);
    test_updates(cuda);
    test_company(cuda, QN_PRODUCTS_BF16);
    test_company(cuda, QN_PRODUCTS_INT8);
    test_company(cuda, QN_PRODUCTS_F32);
    test_limit(cuda);
    CHECK("all buffers are back", active_bytes(cuda) == 0);
    qn_device_close(cuda);
    qn_device_close(cpu);
    if (!getenv("QN_TEST_NO_FAULT")) /* memory checkers stop at the first fault */
        test_fault();
    printf("%d checks, %d failed\n", n_checks, n_failed);
    return n_failed ? 1 : 0;
}
