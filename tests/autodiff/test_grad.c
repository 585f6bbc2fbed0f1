/* SPDX-License-Identifier: Apache-2.0
 *
 * Derivatives in f64: reverse mode against central differences, forward mode against reverse mode,
 * for each operation and for the loss of a whole two-layer Llama.
 */
#include "test.h"

#include "models/decoder.h"

#include <math.h>
#include <string.h>

enum { MOST_INPUTS = 4, MOST_ELEMENTS = 400 };

/* A function of up to four f64 arrays. */
typedef qn_array *function(qn_scope *s, qn_array *const *x);

typedef struct shape {
    int ndim;
    int64_t size[4];
} shape;

typedef struct problem {
    const char *name;
    function *f;
    shape in[MOST_INPUTS]; /* until ndim < 0 */
    double offset;         /* added to the random inputs, for functions with a domain */
} problem;

static int64_t elements(const shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++)
        n *= s->size[i];
    return n;
}

static int n_inputs(const problem *p)
{
    int n = 0;
    while (n < MOST_INPUTS && p->in[n].ndim > 0)
        n++;
    return n;
}

static void make_inputs(qn_scope *s, const problem *p, double (*values)[MOST_ELEMENTS],
                        qn_array **x)
{
    for (int i = 0; i < n_inputs(p); i++)
        x[i] = qn_from(s, QN_F64, p->in[i].ndim, p->in[i].size, values[i]);
}

/* sum(y c) with fixed c: a scalar whose gradient sees every output. */
static qn_array *weighted_sum(qn_scope *s, qn_array *y, uint64_t seed)
{
    int64_t n = qn_array_elements(y);
    double *c = malloc((size_t)n * sizeof *c);
    for (int64_t i = 0; i < n; i++)
        c[i] = test_random(&seed);
    qn_array *weights = qn_from(s, QN_F64, 1, &n, c);
    free(c);
    qn_array *flat = qn_reshape(s, y, 1, &n);
    return qn_sum(s, qn_multiply(s, flat, weights), 0, false);
}

static double value_of(qn_device *device, const problem *p, double (*values)[MOST_ELEMENTS])
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *x[MOST_INPUTS];
    make_inputs(s, p, values, x);
    double y;
    qn_array *loss = weighted_sum(s, p->f(s, x), 99);
    if (qn_read(s, loss, &y, sizeof y) != QN_OK)
        fail_msg("%s: %s", p->name, qn_scope_error(s));
    qn_scope_end(s);
    return y;
}

static void check(qn_device *device, const problem *p)
{
    double values[MOST_INPUTS][MOST_ELEMENTS], direction[MOST_INPUTS][MOST_ELEMENTS];
    double gradient[MOST_INPUTS][MOST_ELEMENTS];
    uint64_t seed = 7;
    for (int i = 0; i < n_inputs(p); i++)
        for (int64_t k = 0; k < elements(&p->in[i]); k++) {
            values[i][k] = test_random(&seed) + p->offset;
            direction[i][k] = test_random(&seed);
        }
    qn_scope *s = qn_scope_begin(device);
    qn_array *x[MOST_INPUTS], *g[MOST_INPUTS], *t[MOST_INPUTS];
    make_inputs(s, p, values, x);
    make_inputs(s, p, direction, t);
    int n = n_inputs(p);
    qn_array *loss = weighted_sum(s, p->f(s, x), 99);
    qn_grad(s, loss, x, n, g);
    qn_array *tangent = qn_jvp(s, loss, x, t, n);
    double along = 0, forward;
    for (int i = 0; i < n; i++)
        if (qn_read(s, g[i], gradient[i], (size_t)elements(&p->in[i]) * 8) != QN_OK)
            fail_msg("%s: %s", p->name, qn_scope_error(s));
    if (qn_read(s, tangent, &forward, 8) != QN_OK)
        fail_msg("%s: %s", p->name, qn_scope_error(s));
    qn_scope_end(s);
    double error = 0, power = 0, magnitude = 1e-300;
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < elements(&p->in[i]); k++) {
            double kept = values[i][k], h = 1e-5;
            values[i][k] = kept + h;
            double up = value_of(device, p, values);
            values[i][k] = kept - h;
            double numeric = (up - value_of(device, p, values)) / (2 * h);
            values[i][k] = kept;
            error += (gradient[i][k] - numeric) * (gradient[i][k] - numeric);
            power += numeric * numeric;
            along += gradient[i][k] * direction[i][k];
            magnitude += fabs(gradient[i][k] * direction[i][k]);
        }
    double relative = sqrt(error / power), difference = fabs(along - forward) / magnitude;
    printf("%-22s gradcheck %.1e, jvp against vjp %.1e\n", p->name, relative, difference);
    assert_true(power > 0);
    assert_true(relative <= 1e-6);
    assert_true(difference <= 1e-10);
}

/* ---- the functions --------------------------------------------------------------------------- */

#define UNARY(name)                                                                                \
    static qn_array *f_##name(qn_scope *s, qn_array *const *x)                                     \
    {                                                                                              \
        return qn_##name(s, x[0]);                                                                 \
    }
UNARY(log1p)
UNARY(expm1)
UNARY(log2)
UNARY(exp2)
UNARY(log10)
UNARY(tan)
UNARY(asin)
UNARY(acos)
UNARY(atan)
UNARY(sinh)
UNARY(cosh)
UNARY(erfinv)
UNARY(reciprocal)
UNARY(softplus)
UNARY(negative)
UNARY(abs)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(square)
UNARY(exp)
UNARY(log)
UNARY(sin)
UNARY(cos)
UNARY(tanh)
UNARY(erf)
UNARY(sigmoid)
UNARY(silu)
UNARY(relu)
UNARY(gelu)
UNARY(gelu_tanh)
#define BINARY(name)                                                                               \
    static qn_array *f_##name(qn_scope *s, qn_array *const *x)                                     \
    {                                                                                              \
        return qn_##name(s, x[0], x[1]);                                                           \
    }
BINARY(add)
BINARY(subtract)
BINARY(multiply)
BINARY(divide)
BINARY(power)
BINARY(maximum)
BINARY(minimum)
BINARY(matmul)

static qn_array *f_where(qn_scope *s, qn_array *const *x)
{
    return qn_where(s, qn_less(s, x[0], x[1]), qn_square(s, x[0]), x[1]);
}

static qn_array *f_same_twice(qn_scope *s, qn_array *const *x)
{
    return qn_multiply(s, qn_add(s, x[0], x[0]), x[0]);
}

static qn_array *f_views(qn_scope *s, qn_array *const *x)
{
    qn_array *t = qn_transpose(s, x[0], (const int[]){2, 0, 1});
    t = qn_slice(s, t, 0, 1, 4, 2);
    t = qn_reshape(s, t, 2, (const int64_t[]){-1, 3});
    return qn_add(s, t, qn_broadcast_to(s, x[1], 2, (const int64_t[]){4, 3}));
}

static qn_array *f_reductions(qn_scope *s, qn_array *const *x)
{
    qn_array *parts[] = {qn_sum(s, x[0], 0, false), qn_mean(s, x[0], 0, false),
                         qn_max(s, x[0], 0, false), qn_logsumexp(s, x[0], 0, false),
                         qn_min(s, x[0], 0, false)};
    return qn_concatenate(s, parts, 5, 0);
}

static qn_array *f_softmax(qn_scope *s, qn_array *const *x)
{
    return qn_softmax(s, x[0], -1);
}

static qn_array *f_linear(qn_scope *s, qn_array *const *x)
{
    return qn_linear(s, x[0], x[1], x[2]);
}

static qn_array *f_rms_norm(qn_scope *s, qn_array *const *x)
{
    return qn_rms_norm(s, x[0], x[1], 1e-5f);
}

static qn_array *f_layer_norm(qn_scope *s, qn_array *const *x)
{
    return qn_layer_norm(s, x[0], x[1], x[2], 1e-5f);
}

static qn_array *rope(qn_scope *s, qn_array *x, bool traditional)
{
    const double frequency[] = {1, 0.3};
    int32_t offset = 3;
    return qn_rope(s, x, qn_from_i32(s, &offset, 1),
                   qn_from(s, QN_F64, 1, (const int64_t[]){2}, frequency), traditional);
}

static qn_array *f_rope(qn_scope *s, qn_array *const *x)
{
    return rope(s, x[0], false);
}

static qn_array *f_rope_traditional(qn_scope *s, qn_array *const *x)
{
    return rope(s, x[0], true);
}

static qn_array *f_attention(qn_scope *s, qn_array *const *x)
{
    qn_attention_options o = {.size = sizeof o, .causal = true};
    return qn_attention(s, x[0], x[1], x[2], &o);
}

static qn_array *f_attention_capped(qn_scope *s, qn_array *const *x)
{
    qn_attention_options o = {.size = sizeof o,
                              .causal = true,
                              .softcap = 0.7f,
                              .window = 2,
                              .scale = 1.5f,
                              .mask = x[3]};
    return qn_attention(s, x[0], x[1], x[2], &o);
}

/* Two texts in a row: the second does not see the first. */
static qn_array *attention_in_rows(qn_scope *s, qn_array *const *x)
{
    const int32_t first[] = {0, 0, 2, 2, 2, 0, 1, 1, 3, 3};
    qn_attention_options o = {.size = sizeof o,
                              .causal = true,
                              .softcap = 0.9f,
                              .window = 3,
                              .first = qn_from(s, QN_I32, 2, (const int64_t[]){2, 5}, first)};
    return qn_attention(s, x[0], x[1], x[2], &o);
}

static qn_array *f_attention_in_rows(qn_scope *s, qn_array *const *x)
{
    return attention_in_rows(s, x);
}

/* Its gradient, so that what is checked is the second. */
static qn_array *f_attention_slope(qn_scope *s, qn_array *const *x)
{
    qn_array *g[3], *flat[3];
    qn_vjp(s, attention_in_rows(s, x), x[3], x, 3, g);
    for (int i = 0; i < 3; i++)
        flat[i] = qn_reshape(s, g[i], 1, (const int64_t[]){-1});
    return qn_concatenate(s, flat, 3, 0);
}

static qn_array *f_embedding(qn_scope *s, qn_array *const *x)
{
    const int32_t ids[] = {4, 0, 4, 2};
    return qn_take(s, x[0], qn_from(s, QN_I32, 2, (const int64_t[]){2, 2}, ids), 0);
}

static qn_array *f_take_axis(qn_scope *s, qn_array *const *x)
{
    const int32_t ids[] = {2, 2, 0};
    return qn_take(s, x[0], qn_from_i32(s, ids, 3), 1);
}

static qn_array *f_cross_entropy(qn_scope *s, qn_array *const *x)
{
    const int32_t targets[] = {1, 4, 0};
    return qn_cross_entropy(s, x[0], qn_from_i32(s, targets, 3));
}

/* Of a plain weight: it has a gradient, too. */
static qn_array *f_linear_cross_entropy(qn_scope *s, qn_array *const *x)
{
    const int32_t targets[] = {1, 4, 0};
    qn_linear_cross_entropy_options o = {.size = sizeof o, .softcap = 1.5f};
    return qn_linear_cross_entropy(s, x[0], x[1], qn_from_i32(s, targets, 3), &o);
}

static qn_array *f_mse_loss(qn_scope *s, qn_array *const *x)
{
    return qn_mse_loss(s, x[0], x[1]);
}

/* Of distributions: the arguments are logits. */
static qn_array *f_kl_div(qn_scope *s, qn_array *const *x)
{
    qn_array *q = qn_softmax(s, x[0], -1), *p = qn_softmax(s, x[1], -1);
    return qn_add(s, qn_kl_div(s, qn_log(s, q), p, false),
                  qn_square(s, qn_kl_div(s, qn_log(s, p), qn_log(s, q), true)));
}

static qn_array *f_dpo_loss(qn_scope *s, qn_array *const *x)
{
    return qn_dpo_loss(s, x[0], x[1], x[2], x[3], 0.8, 0.1);
}

static qn_array *f_masked_mean(qn_scope *s, qn_array *const *x)
{
    const bool mask[] = {1, 0, 1, 1};
    return qn_masked_mean(s, qn_square(s, x[0]),
                          qn_from(s, QN_BOOL, 1, (const int64_t[]){4}, mask));
}

static qn_array *f_dropout(qn_scope *s, qn_array *const *x)
{
    return qn_square(s, qn_dropout(s, x[0], qn_random_key(s, 4), 0.4));
}

static qn_array *f_slice_update(qn_scope *s, qn_array *const *x)
{
    return qn_slice_update(s, x[0], qn_square(s, x[1]), (const int64_t[]){1, 0});
}

static qn_array *f_atan2(qn_scope *s, qn_array *const *x)
{
    return qn_atan2(s, x[0], x[1]);
}

static qn_array *f_logaddexp(qn_scope *s, qn_array *const *x)
{
    return qn_logaddexp(s, x[0], x[1]);
}

/* Quotients around -2 to 2: both signs, away from the steps. */
static qn_array *f_remainder(qn_scope *s, qn_array *const *x)
{
    return qn_remainder(s, qn_add(s, x[0], qn_scalar(s, QN_F64, 0.3)), x[1]);
}

static qn_array *f_clip(qn_scope *s, qn_array *const *x)
{
    return qn_clip(s, x[0], x[1], qn_scalar(s, QN_F64, 0.6));
}

static qn_array *f_flips(qn_scope *s, qn_array *const *x)
{
    qn_array *a = qn_flip(s, x[0], 0), *b = qn_slice(s, x[0], 1, INT64_MAX, INT64_MIN, -2);
    return qn_matmul(s, a, qn_swap_axes(s, qn_concatenate(s, (qn_array *[]){b, b}, 2, 1), 0, 1));
}

static qn_array *f_as_strided(qn_scope *s, qn_array *const *x)
{
    const int64_t shape[] = {4, 3}, stride[] = {1, 2};
    return qn_square(s, qn_as_strided(s, qn_transpose(s, x[0], NULL), 2, shape, stride, 3));
}

static qn_array *f_prod(qn_scope *s, qn_array *const *x)
{
    qn_array *zero = qn_multiply(
        s, x[0], qn_from(s, QN_F64, 1, (const int64_t[]){5}, (const double[]){1, 1, 0, 1, 1}));
    return qn_concatenate(s,
                          (qn_array *[]){qn_prod(s, x[0], 1, false), qn_prod(s, zero, 1, false),
                                         qn_prod(s, x[0], 0, false)},
                          3, 0);
}

static qn_array *f_var(qn_scope *s, qn_array *const *x)
{
    return qn_var(s, x[0], 1, 1, false);
}

static qn_array *f_over_axes(qn_scope *s, qn_array *const *x)
{
    return qn_over_axes(s, qn_logsumexp, x[0], (const int[]){2, 0}, 2, true);
}

static qn_array *f_cumsum(qn_scope *s, qn_array *const *x)
{
    qn_array *parts[] = {qn_cumsum(s, x[0], 0, false, false), qn_cumsum(s, x[0], 1, true, false),
                         qn_cumsum(s, x[0], 1, false, true)};
    return qn_square(s, qn_concatenate(s, parts, 3, 0));
}

static qn_array *f_cumprod(qn_scope *s, qn_array *const *x)
{
    qn_array *parts[] = {qn_cumprod(s, x[0], 0, true, false), qn_cumprod(s, x[0], 1, false, true)};
    return qn_concatenate(s, parts, 2, 0);
}

static qn_array *f_cumulate(qn_scope *s, qn_array *const *x)
{
    return qn_multiply(s, qn_cummax(s, x[0], 1, false), qn_cummin(s, x[0], 0, true));
}

static qn_array *f_sort(qn_scope *s, qn_array *const *x)
{
    qn_array *top;
    qn_topk(s, x[0], 2, 0, &top, NULL);
    return qn_concatenate(
        s, (qn_array *[]){qn_sort(s, x[0], 0, true), top, qn_sort(s, x[0], 1, false)}, 3, 0);
}

static qn_array *along(qn_scope *s)
{
    const int32_t ids[] = {2, 0, 1, 1, 0, 2, 0, 7};
    return qn_from(s, QN_I32, 2, (const int64_t[]){2, 4}, ids);
}

static qn_array *f_take_along(qn_scope *s, qn_array *const *x)
{
    return qn_square(s, qn_take_along(s, x[0], along(s), 0));
}

static qn_array *put(qn_scope *s, qn_array *const *x, qn_scatter_mode mode)
{
    return qn_square(s, qn_put_along(s, x[0], along(s), x[1], 0, mode));
}

static qn_array *f_put_set(qn_scope *s, qn_array *const *x)
{
    return put(s, x, QN_SCATTER_SET);
}

static qn_array *f_put_add(qn_scope *s, qn_array *const *x)
{
    return put(s, x, QN_SCATTER_ADD);
}

static qn_array *f_put_max(qn_scope *s, qn_array *const *x)
{
    return put(s, x, QN_SCATTER_MAX);
}

static qn_array *f_scatter_rows(qn_scope *s, qn_array *const *x)
{
    const int32_t ids[] = {2, 0, 2};
    qn_array *at = qn_from_i32(s, ids, 3);
    return qn_add(s, qn_scatter(s, x[0], at, x[1], 1, QN_SCATTER_MIN),
                  qn_square(s, qn_scatter(s, x[0], at, x[1], 1, QN_SCATTER_SET)));
}

static qn_array *f_scatter_nd(qn_scope *s, qn_array *const *x)
{
    const int32_t ids[] = {0, 1, 2, 0, 0, 1};
    qn_array *at = qn_from(s, QN_I32, 2, (const int64_t[]){3, 2}, ids);
    return qn_multiply(s, qn_scatter_nd(s, x[0], at, x[1], QN_SCATTER_ADD),
                       qn_sum(s, qn_gather_nd(s, x[0], at), QN_ALL_AXES, false));
}

static qn_array *f_slice_at(qn_scope *s, qn_array *const *x)
{
    qn_array *start = qn_from_i32(s, (const int32_t[]){1, 9}, 2);
    qn_array *y = qn_slice_update_at(s, x[0], qn_square(s, x[1]), start);
    return qn_matmul(s, y,
                     qn_swap_axes(s, qn_slice_at(s, x[0], start, (const int64_t[]){2, 6}), 0, 1));
}

static qn_array *f_shapes(qn_scope *s, qn_array *const *x)
{
    qn_array *y =
        qn_pad(s, qn_tril(s, x[0], 1), (const int64_t[]){1, 0}, (const int64_t[]){0, 2}, 1);
    y = qn_roll(s, qn_tile(s, qn_repeat(s, y, 0, 2), 1, 2), 3, 1);
    return qn_concatenate(s,
                          (qn_array *[]){qn_flatten(s, y), qn_diagonal(s, x[0], 1),
                                         qn_flatten(s, qn_diag(s, qn_diagonal(s, x[0], 0), -1))},
                          3, 0);
}

static qn_array *f_second_order(qn_scope *s, qn_array *const *x)
{
    qn_array *g;
    qn_array *y = qn_sum(s, qn_silu(s, qn_multiply(s, x[0], x[0])), QN_ALL_AXES, false);
    qn_grad(s, y, x, 1, &g);
    return g;
}

static void test_operations(void **state)
{
#define A(...)                                                                                     \
    {                                                                                              \
        sizeof((int64_t[]){__VA_ARGS__}) / 8,                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
    const problem problems[] = {
        {"negative", f_negative, {A(5)}, 0},
        {"abs", f_abs, {A(5)}, 0},
        {"sqrt", f_sqrt, {A(5)}, 2},
        {"rsqrt", f_rsqrt, {A(5)}, 2},
        {"square", f_square, {A(5)}, 0},
        {"exp", f_exp, {A(5)}, 0},
        {"log", f_log, {A(5)}, 2},
        {"sin", f_sin, {A(5)}, 0},
        {"cos", f_cos, {A(5)}, 0},
        {"tanh", f_tanh, {A(5)}, 0},
        {"erf", f_erf, {A(5)}, 0},
        {"sigmoid", f_sigmoid, {A(5)}, 0},
        {"silu", f_silu, {A(5)}, 0},
        {"relu", f_relu, {A(7)}, 0},
        {"gelu", f_gelu, {A(5)}, 0},
        {"gelu_tanh", f_gelu_tanh, {A(5)}, 0},
        {"add", f_add, {A(2, 3), A(3)}, 0},
        {"subtract", f_subtract, {A(2, 1), A(2, 3)}, 0},
        {"multiply", f_multiply, {A(2, 3), A(2, 1)}, 0},
        {"divide", f_divide, {A(3), A(2, 3)}, 2},
        {"power", f_power, {A(2, 3), A(3)}, 2},
        {"maximum", f_maximum, {A(2, 3), A(3)}, 0},
        {"minimum", f_minimum, {A(2, 3), A(3)}, 0},
        {"where", f_where, {A(2, 3), A(3)}, 0},
        {"x (x + x)", f_same_twice, {A(4)}, 0},
        {"matmul", f_matmul, {A(2, 1, 3, 4), A(2, 4, 2)}, 0},
        {"matmul vector", f_matmul, {A(4), A(2, 4, 2)}, 0},
        {"views", f_views, {A(2, 3, 4), A(1, 3)}, 0},
        {"reductions", f_reductions, {A(5, 3)}, 0},
        {"softmax", f_softmax, {A(3, 5)}, 0},
        {"linear", f_linear, {A(2, 3, 4), A(5, 4), A(5)}, 0},
        {"rms_norm", f_rms_norm, {A(3, 5), A(5)}, 0},
        {"layer_norm", f_layer_norm, {A(3, 5), A(5), A(5)}, 0},
        {"rope", f_rope, {A(2, 2, 3, 6)}, 0},
        {"rope traditional", f_rope_traditional, {A(1, 2, 3, 4)}, 0},
        {"attention", f_attention, {A(2, 4, 3, 4), A(2, 2, 5, 4), A(2, 2, 5, 3)}, 0},
        {"attention in rows",
         f_attention_in_rows,
         {A(2, 4, 5, 3), A(2, 2, 5, 3), A(2, 2, 5, 2)},
         0},
        {"attention slope",
         f_attention_slope,
         {A(2, 2, 5, 2), A(2, 1, 5, 2), A(2, 1, 5, 2), A(2, 2, 5, 2)},
         0},
        {"attention capped",
         f_attention_capped,
         {A(1, 2, 4, 3), A(1, 1, 4, 3), A(1, 1, 4, 2), A(4, 4)},
         0},
        {"embedding", f_embedding, {A(5, 3)}, 0},
        {"take along axis 1", f_take_axis, {A(3, 4)}, 0},
        {"cross_entropy", f_cross_entropy, {A(3, 5)}, 0},
        {"linear_cross_entropy", f_linear_cross_entropy, {A(3, 4), A(5, 4)}, 0},
        {"mse_loss", f_mse_loss, {A(2, 3), A(2, 3)}, 0},
        {"kl_div", f_kl_div, {A(2, 5), A(2, 5)}, 0},
        {"dpo_loss", f_dpo_loss, {A(3), A(3), A(3), A(3)}, 0},
        {"masked_mean", f_masked_mean, {A(4)}, 0},
        {"dropout", f_dropout, {A(6, 5)}, 0},
        {"slice_update", f_slice_update, {A(4, 3), A(2, 3)}, 0},
        {"log1p", f_log1p, {A(5)}, 0},
        {"expm1", f_expm1, {A(5)}, 0},
        {"exp2", f_exp2, {A(5)}, 0},
        {"tan", f_tan, {A(5)}, 0},
        {"asin", f_asin, {A(5)}, 0},
        {"acos", f_acos, {A(5)}, 0},
        {"atan", f_atan, {A(5)}, 0},
        {"sinh", f_sinh, {A(5)}, 0},
        {"cosh", f_cosh, {A(5)}, 0},
        {"erfinv", f_erfinv, {A(5)}, 0},
        {"softplus", f_softplus, {A(5)}, 0},
        {"log2", f_log2, {A(5)}, 2},
        {"log10", f_log10, {A(5)}, 2},
        {"reciprocal", f_reciprocal, {A(5)}, 2},
        {"atan2", f_atan2, {A(2, 3), A(3)}, 0},
        {"logaddexp", f_logaddexp, {A(2, 3), A(3)}, 0},
        {"remainder", f_remainder, {A(2, 3), A(3)}, 0},
        {"clip", f_clip, {A(2, 3), A(3)}, 0},
        {"flips", f_flips, {A(3, 4)}, 0},
        {"as_strided", f_as_strided, {A(3, 5)}, 0},
        {"prod", f_prod, {A(5, 5)}, 0},
        {"var", f_var, {A(3, 4)}, 0},
        {"over_axes", f_over_axes, {A(2, 3, 4)}, 0},
        {"cumsum", f_cumsum, {A(3, 5)}, 0},
        {"cumprod", f_cumprod, {A(3, 5)}, 0},
        {"cummax, cummin", f_cumulate, {A(3, 7)}, 0},
        {"sort, topk", f_sort, {A(4, 4)}, 0},
        {"take_along", f_take_along, {A(3, 4)}, 0},
        {"put_along set", f_put_set, {A(3, 4), A(2, 4)}, 0},
        {"put_along add", f_put_add, {A(3, 4), A(2, 4)}, 0},
        {"put_along max", f_put_max, {A(3, 4), A(2, 4)}, 0},
        {"scatter", f_scatter_rows, {A(2, 4), A(2, 3)}, 0},
        {"scatter_nd", f_scatter_nd, {A(3, 2, 2), A(3, 2)}, 0},
        {"slice_at", f_slice_at, {A(4, 6), A(2, 3)}, 0},
        {"shapes", f_shapes, {A(3, 3)}, 0},
        {"second order", f_second_order, {A(6)}, 0},
    };
    qn_device *device = open_device(state);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check(device, &problems[i]);
    qn_device_close(device);
}

/* ---- a whole model --------------------------------------------------------------------------- */

static qn_array *parameter(qn_device *device, const qn__parameter *p, uint64_t *seed)
{
    qn_scope *s = qn_scope_begin(device);
    int64_t n = p->shape[0] * (p->ndim == 2 ? p->shape[1] : 1);
    double *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = 0.4 * test_random(seed) + (strstr(p->name, "norm") ? 1 : 0);
    qn_array *a = qn_from(s, QN_F64, p->ndim, p->shape, values);
    qn_array *kept = qn_retain(a);
    free(values);
    qn_scope_end(s);
    return kept;
}

static qn_array *model_loss(qn_scope *s, const qn__decoder *m)
{
    const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6}, targets[] = {1, 4, 1, 5, 9, 2, 6, 5};
    const int64_t both[] = {2, 4};
    qn_array *h = qn__decoder_hidden(s, m, qn_from(s, QN_I32, 2, both, tokens), NULL, NULL);
    qn_array *losses =
        qn_cross_entropy(s, qn__decoder_logits(s, m, h), qn_from(s, QN_I32, 2, both, targets));
    return qn_mean(s, losses, QN_ALL_AXES, false);
}

static double loss_value(qn_device *device, const qn__decoder *m)
{
    qn_scope *s = qn_scope_begin(device);
    double y;
    if (qn_read(s, model_loss(s, m), &y, sizeof y) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
    return y;
}

/* Moves one element of a parameter by `by`. */
static void nudge(qn_device *device, qn_array **slot, int64_t element, double by)
{
    qn_scope *s = qn_scope_begin(device);
    size_t n = (size_t)qn_array_elements(*slot);
    int64_t shape[] = {qn_array_dim(*slot, 0), qn_array_dim(*slot, 1)};
    double *values = malloc(n * sizeof *values);
    assert_int_equal(qn_read(s, *slot, values, n * sizeof *values), QN_OK);
    values[element] += by;
    qn_array *a = qn_from(s, QN_F64, qn_array_ndim(*slot), shape, values);
    qn_release(*slot);
    *slot = qn_retain(a);
    free(values);
    qn_scope_end(s);
}

/* Parameters know their places in m: it stays where it is. */
static void begin_llama(qn_device *device, qn__decoder *m, uint64_t *seed)
{
    qn__decoder_config c = {.family = "llama",
                            .n_layers = 2,
                            .hidden = 8,
                            .ffn = 12,
                            .n_heads = 4,
                            .n_kv_heads = 2,
                            .head_dim = 4,
                            .vocab = 11,
                            .max_positions = 64,
                            .norm_eps = 1e-5,
                            .qkv_bias = true,
                            .tied = true,
                            .dtype = QN_F32,
                            .rope = {.theta = 100, .factor = 1}};
    qn_error err = {0};
    assert_int_equal(qn__decoder_begin(m, &c, &(qn__decoder_place){"model.", ""}, &err), QN_OK);
    for (int i = 0; i < m->n_parameters; i++)
        *m->parameters[i].slot = parameter(device, &m->parameters[i], seed);
    qn_scope *s = qn_scope_begin(device);
    qn_array *frequency = qn_from(s, QN_F64, 1, (const int64_t[]){2}, (const double[]){1, 0.1});
    m->frequency = qn_retain(frequency);
    qn_scope_end(s);
}

static void test_llama_loss(void **state)
{
    qn_device *device = open_device(state);
    uint64_t seed = 5;
    qn__decoder m;
    begin_llama(device, &m, &seed);
    enum { SAMPLES = 6 };
    qn_array *wrt[64], *grads[64];
    qn_scope *s = qn_scope_begin(device);
    for (int i = 0; i < m.n_parameters; i++)
        wrt[i] = *m.parameters[i].slot;
    assert_int_equal(qn_grad(s, model_loss(s, &m), wrt, m.n_parameters, grads), QN_OK);
    assert_int_equal(qn_eval_many(s, grads, m.n_parameters), QN_OK);
    double error = 0, power = 0;
    for (int i = 0; i < m.n_parameters; i++) {
        size_t n = (size_t)qn_array_elements(grads[i]);
        double *g = malloc(n * sizeof *g);
        assert_int_equal(qn_read(s, grads[i], g, n * sizeof *g), QN_OK);
        for (int k = 0; k < SAMPLES; k++) {
            int64_t e = (int64_t)((test_random(&seed) + 1) / 2 * (double)n);
            double h = 1e-5;
            nudge(device, m.parameters[i].slot, e, h);
            double up = loss_value(device, &m);
            nudge(device, m.parameters[i].slot, e, -2 * h);
            double numeric = (up - loss_value(device, &m)) / (2 * h);
            nudge(device, m.parameters[i].slot, e, h);
            error += (g[e] - numeric) * (g[e] - numeric);
            power += numeric * numeric;
        }
        free(g);
    }
    qn_scope_end(s);
    printf("two-layer Llama: %d parameters, gradcheck %.1e\n", m.n_parameters, sqrt(error / power));
    assert_true(sqrt(error / power) <= 1e-6);
    qn__decoder_end(&m);
    qn_device_close(device);
}

/* Two texts behind each other in a row give what they give alone. */
static void test_texts_in_a_row(void **state)
{
    enum { WIDTH = 8, LONG = 4, SHORT = 3 };
    qn_device *device = open_device(state);
    uint64_t seed = 5;
    qn__decoder m;
    begin_llama(device, &m, &seed);
    const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2}, begins[] = {0, 0, 0, 0, 4, 4, 4};
    double both[(LONG + SHORT) * WIDTH], one[LONG * WIDTH], two[SHORT * WIDTH];
    const int64_t all[] = {1, LONG + SHORT}, first[] = {1, LONG}, last[] = {1, SHORT};
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn__decoder_hidden(s, &m, qn_from(s, QN_I32, 2, first, tokens), NULL, NULL);
    qn_array *b = qn__decoder_hidden(s, &m, qn_from(s, QN_I32, 2, last, tokens + LONG), NULL, NULL);
    m.begins = qn_from(s, QN_I32, 2, all, begins);
    qn_array *h = qn__decoder_hidden(s, &m, qn_from(s, QN_I32, 2, all, tokens), NULL, NULL);
    assert_int_equal(qn_read(s, a, one, sizeof one), QN_OK);
    assert_int_equal(qn_read(s, b, two, sizeof two), QN_OK);
    assert_int_equal(qn_read(s, h, both, sizeof both), QN_OK);
    for (int i = 0; i < (LONG + SHORT) * WIDTH; i++)
        assert_true(fabs(both[i] - (i < LONG * WIDTH ? one[i] : two[i - LONG * WIDTH])) <= 1e-12);
    qn_scope_end(s);
    qn__decoder_end(&m);
    qn_device_close(device);
}

/* ---- an adapter with dropout ----------------------------------------------------------------- */

enum { RANK = 2 };

static qn_array *random_matrix(qn_device *device, int64_t rows, int64_t columns, uint64_t *seed)
{
    const qn__parameter p = {.name = "lora", .shape = {rows, columns}, .ndim = 2};
    return parameter(device, &p, seed);
}

/* Gives every linear layer a pair of matrices; returns where they are. */
static int begin_lora(qn_device *device, qn__decoder *m, uint64_t *seed, qn_array **slots[64])
{
    int n = 0;
    for (int i = 0; i < m->n_parameters; i++) {
        const qn__parameter *p = &m->parameters[i];
        if (!p->linear)
            continue;
        p->linear->lora_a = random_matrix(device, RANK, p->shape[1], seed);
        p->linear->lora_b = random_matrix(device, p->shape[0], RANK, seed);
        slots[n++] = &p->linear->lora_a;
        slots[n++] = &p->linear->lora_b;
    }
    return n;
}

/* The loss, with key 0: nothing is dropped. */
static qn_array *lora_loss(qn_scope *s, const qn__decoder *m, uint64_t key, qn__keeps keeps)
{
    qn__decoder with = *m;
    with.adapter_scale = qn_scalar(s, QN_F64, 1.5);
    with.dropout_key = key ? qn_random_key(s, key) : NULL;
    with.dropout = 0.3;
    with.keeps = keeps;
    return model_loss(s, &with);
}

static double lora_value(qn_device *device, const qn__decoder *m, uint64_t key)
{
    qn_scope *s = qn_scope_begin(device);
    double y;
    if (qn_read(s, lora_loss(s, m, key, QN__KEEPS_ALL), &y, sizeof y) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
    return y;
}

/* Gradients to all matrices behind each other; returns how many numbers. */
static size_t lora_gradients(qn_device *device, const qn__decoder *m, qn_array **slots[64], int n,
                             qn__keeps keeps, double *out)
{
    qn_array *wrt[64], *grads[64];
    qn_scope *s = qn_scope_begin(device);
    size_t at = 0;
    for (int i = 0; i < n; i++)
        wrt[i] = *slots[i];
    assert_int_equal(qn_grad(s, lora_loss(s, m, 3, keeps), wrt, n, grads), QN_OK);
    assert_int_equal(qn_eval_many(s, grads, n), QN_OK);
    for (int i = 0; i < n; i++) {
        size_t size = (size_t)qn_array_elements(grads[i]);
        assert_int_equal(qn_read(s, grads[i], out + at, size * sizeof *out), QN_OK);
        at += size;
    }
    qn_scope_end(s);
    return at;
}

/* The mask is the same in all evaluations, as it comes from the key: gradients are those of central
 * differences, of A and of B, and what is kept changes no bit. Another key is another loss. */
static void test_lora_dropout(void **state)
{
    enum { NUMBERS = 4000, STEP = 7 };
    static double g[NUMBERS], again[NUMBERS];
    qn_device *device = open_device(state);
    uint64_t seed = 8;
    qn__decoder m;
    qn_array **slots[64];
    begin_llama(device, &m, &seed);
    int n = begin_lora(device, &m, &seed, slots);
    size_t numbers = lora_gradients(device, &m, slots, n, QN__KEEPS_ALL, g);
    assert_true(numbers <= NUMBERS);
    for (qn__keeps keeps = QN__KEEPS_PRODUCTS; keeps <= QN__KEEPS_STREAM; keeps++) {
        lora_gradients(device, &m, slots, n, keeps, again);
        assert_memory_equal(g, again, numbers * sizeof *g);
    }
    double error = 0, power = 0;
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        int64_t size = qn_array_elements(*slots[i]);
        for (int64_t k = 0; k < size; k += STEP) {
            const double h = 1e-5;
            nudge(device, slots[i], k, h);
            double up = lora_value(device, &m, 3);
            nudge(device, slots[i], k, -2 * h);
            double numeric = (up - lora_value(device, &m, 3)) / (2 * h);
            nudge(device, slots[i], k, h);
            error += (g[at + (size_t)k] - numeric) * (g[at + (size_t)k] - numeric);
            power += numeric * numeric;
        }
        at += (size_t)size;
    }
    print_message("LoRA with dropout: %d matrices, gradcheck %.1e\n", n, sqrt(error / power));
    assert_true(power > 0 && sqrt(error / power) <= 1e-6);
    double one = lora_value(device, &m, 3), none = lora_value(device, &m, 0);
    assert_true(one == lora_value(device, &m, 3));
    assert_true(one != lora_value(device, &m, 4) && one != none);
    qn__decoder_end(&m);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_llama_loss),
        cmocka_unit_test(test_texts_in_a_row),
        cmocka_unit_test(test_lora_dropout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
