/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementwise operations in every type, layout and tier: values against C's double functions, the
 * same bits from every tier and number of threads.
 */
#include "ops/ops_test.h"

/* ---- one operand
 * ----------------------------------------------------------------------------------- */

typedef enum rule {
    NATIVE,  /* computed in the operand's own type, integers too */
    WHOLE,   /* integers are returned as they are */
    FLOATING /* integers become f32 */
} rule;

typedef struct unary_case {
    const char *name;
    qn_array *(*f)(qn_scope *, qn_array *);
    double (*want)(double);
    rule rule;
    double units, absolute; /* of f32 and f64; 0: exact */
} unary_case;

static double want_negative(double x)
{
    return -x;
}
static double want_abs(double x)
{
    return fabs(x);
}
static double want_sign(double x)
{
    return isnan(x) ? x : (x > 0) - (x < 0);
}
static double want_square(double x)
{
    return x * x;
}
static double want_rsqrt(double x)
{
    return 1 / sqrt(x);
}
static double want_relu(double x)
{
    return isnan(x) || x > 0 ? x : 0;
}
static double want_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double want_reciprocal(double x)
{
    return 1 / x;
}
static double want_softplus(double x)
{
    return isnan(x) ? x : fmax(x, 0) + log1p(exp(-fabs(x)));
}
static double want_silu(double x)
{
    return x / (1 + exp(-x));
}
static double want_gelu(double x)
{
    return 0.5 * x * (1 + erf(x * M_SQRT1_2));
}
static double want_gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286536 * x * (1 + 0.044715 * x * x)));
}

static const unary_case unary_cases[] = {
    {"negative", qn_negative, want_negative, NATIVE, 0, 0},
    {"abs", qn_abs, want_abs, NATIVE, 0, 0},
    {"sign", qn_sign, want_sign, NATIVE, 0, 0},
    {"square", qn_square, want_square, NATIVE, 0, 0},
    {"relu", qn_relu, want_relu, NATIVE, 0, 0},
    {"floor", qn_floor, floor, WHOLE, 0, 0},
    {"ceil", qn_ceil, ceil, WHOLE, 0, 0},
    {"round", qn_round, nearbyint, WHOLE, 0, 0},
    {"sqrt", qn_sqrt, sqrt, FLOATING, 0.51, 0},
    {"rsqrt", qn_rsqrt, want_rsqrt, FLOATING, 2, 0},
    {"exp", qn_exp, exp, FLOATING, 2, 0},
    {"log", qn_log, log, FLOATING, 2, 0},
    {"sin", qn_sin, sin, FLOATING, 2, 0},
    {"cos", qn_cos, cos, FLOATING, 2, 0},
    {"tanh", qn_tanh, tanh, FLOATING, 3, 0},
    {"erf", qn_erf, erf, FLOATING, 3, 0},
    {"log1p", qn_log1p, log1p, FLOATING, 1, 0},
    {"expm1", qn_expm1, expm1, FLOATING, 1, 0},
    {"log2", qn_log2, log2, FLOATING, 1, 0},
    {"exp2", qn_exp2, exp2, FLOATING, 1, 0},
    {"log10", qn_log10, log10, FLOATING, 1, 0},
    {"tan", qn_tan, tan, FLOATING, 1, 0},
    {"asin", qn_asin, asin, FLOATING, 1, 0},
    {"acos", qn_acos, acos, FLOATING, 1, 0},
    {"atan", qn_atan, atan, FLOATING, 1, 0},
    {"sinh", qn_sinh, sinh, FLOATING, 1, 0},
    {"cosh", qn_cosh, cosh, FLOATING, 1, 0},
    {"reciprocal", qn_reciprocal, want_reciprocal, FLOATING, 0, 0},
    {"softplus", qn_softplus, want_softplus, FLOATING, 4, 0},
    {"sigmoid", qn_sigmoid, want_sigmoid, FLOATING, 4, 0},
    {"silu", qn_silu, want_silu, FLOATING, 5, 4e-43},
    {"gelu", qn_gelu, want_gelu, FLOATING, 5, 4e-7},
    {"gelu_tanh", qn_gelu_tanh, want_gelu_tanh, FLOATING, 8, 8e-7},
};
enum { N_UNARY = sizeof unary_cases / sizeof *unary_cases };

static const struct shape {
    int ndim;
    int64_t size[4];
} shapes[] = {{2, {5, 7}}, {3, {2, 3, 65}}, {0, {0}}, {2, {1, 1}}, {2, {0, 3}}, {1, {700}}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Ordinary values with special ones among them. */
static host values_of(qn_dtype t, int ndim, const int64_t *shape, uint64_t seed)
{
    static const double special[] = {0,      -0.0, INFINITY, -INFINITY, NAN,   1,    -1,
                                     0.5,    1.5,  2.5,      -2.5,      1e-40, 3e38, 88.5,
                                     -104.5, 20,   -20,      65504,     1e-7};
    double scale = is_float(t) ? 6 : qn_dtype_size(t) == 1 ? 127 : 30000;
    host h = random_host(t, ndim, shape, t == QN_BOOL ? 1 : scale, is_signed(t) ? 0 : scale, &seed);
    for (size_t i = 0; i < h.n; i++) {
        if (t == QN_BOOL)
            h.v[i] = test_random(&seed) > 0;
        else if (is_float(t) && i % 3 == 1)
            h.v[i] = round_to(special[i / 3 % (sizeof special / sizeof *special)], t);
        else if (i == 2 && qn_dtype_size(t) < 8) /* the least integer */
            h.v[i] = is_signed(t) ? -ldexp(1, 8 * (int)qn_dtype_size(t) - 1) : 0;
    }
    return h;
}

/* What of the operand's type the function is computed in, and of what type the result is. */
static qn_dtype result_of(const unary_case *c, qn_dtype t)
{
    if (is_float(t) || c->rule == WHOLE)
        return t;
    return c->rule == FLOATING ? QN_F32 : t == QN_BOOL ? QN_I32 : t;
}

static qn_dtype compute_of(qn_dtype t)
{
    return t == QN_F16 || t == QN_BF16 ? QN_F32 : t;
}

static double want_unary(const unary_case *c, double x, qn_dtype result)
{
    if (!is_float(result) && c->rule == WHOLE)
        return x;
    if (!is_float(result) && c->f == qn_negative)
        return round_to(-x, result);
    return round_to(round_to(c->want(x), compute_of(result)), result);
}

static void check_unary(const rig *rigs, int n_rigs, const unary_case *c, qn_dtype t,
                        const int64_t *shape, int ndim, int n_layouts)
{
    host h = values_of(t, ndim, shape, 17 + (uint64_t)t);
    qn_dtype result = result_of(c, t);
    bool f16 = result == QN_F16 || result == QN_BF16;
    double *want = malloc((h.n + 1) * sizeof *want);
    for (size_t i = 0; i < h.n; i++)
        want[i] = want_unary(c, round_to(h.v[i], c->rule == FLOATING && !is_float(t) ? QN_F32 : t),
                             result);
    same_bits same = {0};
    for (int r = 0; r < n_rigs; r++)
        for (int l = 0; l < n_layouts && uses_threads(&rigs[r], h.n); l++) {
            char what[100];
            snprintf(what, sizeof what, "%s of %s, %s, %d threads, layout %d", c->name,
                     qn_dtype_name(t), rigs[r].tier, rigs[r].threads, l);
            qn_scope *s = qn_scope_begin(rigs[r].device);
            void *raw = get(s, c->f(s, put(s, &h, (layout)l)), result, ndim, shape, what);
            double absolute = result == QN_F64 ? c->absolute * 1e-8 : c->absolute;
            check_values(raw, result, want, h.n, f16 && c->units > 0 ? 1 : c->units, absolute,
                         what);
            check_same(&same, raw, result, h.n, what);
            qn_scope_end(s);
        }
    free(same.first);
    free(h.v);
    free(want);
}

static void test_unary(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int i = 0; i < N_UNARY; i++) {
        for (int t = 0; t < QN_DTYPE_COUNT; t++)
            for (int k = 0; k < N_SHAPES; k++)
                check_unary(rigs, n, &unary_cases[i], (qn_dtype)t, shapes[k].size, shapes[k].ndim,
                            N_LAYOUTS);
        check_unary(rigs, n, &unary_cases[i], QN_F32, (const int64_t[]){67, 1031}, 2, 2);
    }
    close_rigs(rigs, n);
}

static void test_logical_not(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int t = 0; t < QN_DTYPE_COUNT; t++)
        for (int r = 0; r < n; r++) {
            host h = values_of((qn_dtype)t, 1, (const int64_t[]){77}, 3);
            h.v[5] = 0;
            qn_scope *s = qn_scope_begin(rigs[r].device);
            uint8_t *raw =
                get(s, qn_logical_not(s, put(s, &h, STRIDED)), QN_BOOL, 1, h.shape, "not");
            for (size_t i = 0; i < h.n; i++)
                assert_int_equal(raw[i], h.v[i] == 0);
            free(raw);
            void *same = get(s, qn_stop_gradient(s, put(s, &h, STRIDED)), (qn_dtype)t, 1, h.shape,
                             "stop_gradient");
            check_values(same, (qn_dtype)t, h.v, h.n, 0, 0, "stop_gradient");
            free(same);
            free(h.v);
            qn_scope_end(s);
        }
    close_rigs(rigs, n);
}

/* ---- casts
 * ------------------------------------------------------------------------------------------- */

static void check_cast(const rig *r, qn_dtype from, qn_dtype to, same_bits *same)
{
    uint64_t seed = 5;
    host h =
        random_host(from, 1, (const int64_t[]){515}, is_signed(from) && is_signed(to) ? 100 : 50,
                    is_signed(from) && is_signed(to) ? 0 : 50, &seed);
    for (size_t i = 0; i < h.n; i += 5)
        if (is_float(from) && is_float(to))
            h.v[i] =
                round_to((double[]){NAN, INFINITY, -INFINITY, -0.0, 1e-7, 65520, 65519.99, 1e39,
                                    3.39e38, 0x1.01p0, 0x1.03p0, 0x1.004p-20}[i / 5 % 12],
                         from == QN_F64 ? QN_F32 : from);
    double *want = malloc(h.n * sizeof *want);
    for (size_t i = 0; i < h.n; i++)
        want[i] = round_to(h.v[i], to);
    char what[100];
    snprintf(what, sizeof what, "%s to %s, %s", qn_dtype_name(from), qn_dtype_name(to), r->tier);
    qn_scope *s = qn_scope_begin(r->device);
    void *raw = get(s, qn_cast(s, put(s, &h, STRIDED), to), to, 1, h.shape, what);
    check_values(raw, to, want, h.n, 0, 0, what);
    check_same(same, raw, to, h.n, what);
    qn_scope_end(s);
    free(h.v);
    free(want);
}

static void test_casts(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int from = 0; from < QN_DTYPE_COUNT; from++)
        for (int to = 0; to < QN_DTYPE_COUNT; to++) {
            same_bits same = {0};
            for (int r = 0; r < n; r++)
                check_cast(&rigs[r], (qn_dtype)from, (qn_dtype)to, &same);
            free(same.first);
        }
    qn_scope *s = qn_scope_begin(rigs[0].device); /* what a double cannot hold */
    uint64_t large[] = {0xffffffffffffffffu, 0x8000000000000000u, 1}, back[3];
    qn_array *u = qn_from(s, QN_U64, 1, (const int64_t[]){3}, large);
    double real[3];
    assert_int_equal(qn_read(s, qn_cast(s, u, QN_F64), real, sizeof real), QN_OK);
    assert_true(real[0] == 0x1p64 && real[1] == 0x1p63 && real[2] == 1);
    real[0] = 0x1.8p63;
    qn_array *f = qn_from(s, QN_F64, 1, (const int64_t[]){3}, real);
    assert_int_equal(qn_read(s, qn_cast(s, f, QN_U64), back, sizeof back), QN_OK);
    assert_true(back[0] == 0xc000000000000000u && back[1] == large[1] && back[2] == 1);
    int64_t least[] = {INT64_MIN, INT64_MAX, -1}, got[3];
    qn_array *i = qn_from(s, QN_I64, 1, (const int64_t[]){3}, least);
    assert_int_equal(qn_read(s, qn_cast(s, qn_cast(s, i, QN_U64), QN_I64), got, sizeof got), QN_OK);
    assert_memory_equal(got, least, sizeof got);
    qn_scope_end(s);
    close_rigs(rigs, n);
}

/* ---- two operands
 * -------------------------------------------------------------------------------------- */

/* REAL: only floats are checked here; test_whole has the integers. */
typedef enum result_kind { COMPUTED, QUOTIENT, REAL, TRUTH, LOGIC } result_kind;

typedef struct binary_case {
    const char *name;
    qn_array *(*f)(qn_scope *, qn_array *, qn_array *);
    double (*want)(double, double);
    result_kind kind;
    double units;
} binary_case;

static double want_add(double a, double b)
{
    return a + b;
}
static double want_subtract(double a, double b)
{
    return a - b;
}
static double want_multiply(double a, double b)
{
    return a * b;
}
static double want_divide(double a, double b)
{
    return a / b;
}
static double want_maximum(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}
static double want_minimum(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}
static double want_floor_divide(double a, double b)
{
    if (b == 0)
        return a / b;
    if (isinf(a) || isnan(a) || isnan(b))
        return NAN;
    if (isinf(b))
        return a != 0 && (a < 0) != (b < 0) ? -1 : 0;
    return (double)floorl((long double)a / (long double)b);
}
static double want_remainder(double a, double b)
{
    double rest = fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
static double want_equal(double a, double b)
{
    return a == b;
}
static double want_not_equal(double a, double b)
{
    return a != b;
}
static double want_less(double a, double b)
{
    return a < b;
}
static double want_less_equal(double a, double b)
{
    return a <= b;
}
static double want_greater(double a, double b)
{
    return a > b;
}
static double want_greater_equal(double a, double b)
{
    return a >= b;
}
static double want_and(double a, double b)
{
    return a != 0 && b != 0;
}
static double want_or(double a, double b)
{
    return a != 0 || b != 0;
}

static const binary_case binary_cases[] = {
    {"add", qn_add, want_add, COMPUTED, 0},
    {"subtract", qn_subtract, want_subtract, COMPUTED, 0},
    {"multiply", qn_multiply, want_multiply, COMPUTED, 0},
    {"divide", qn_divide, want_divide, QUOTIENT, 0},
    {"power", qn_power, pow, REAL, 4},
    {"floor_divide", qn_floor_divide, want_floor_divide, REAL, 2},
    {"remainder", qn_remainder, want_remainder, REAL, 0},
    {"atan2", qn_atan2, atan2, QUOTIENT, 1},
    {"maximum", qn_maximum, want_maximum, COMPUTED, 0},
    {"minimum", qn_minimum, want_minimum, COMPUTED, 0},
    {"equal", qn_equal, want_equal, TRUTH, 0},
    {"not_equal", qn_not_equal, want_not_equal, TRUTH, 0},
    {"less", qn_less, want_less, TRUTH, 0},
    {"less_equal", qn_less_equal, want_less_equal, TRUTH, 0},
    {"greater", qn_greater, want_greater, TRUTH, 0},
    {"greater_equal", qn_greater_equal, want_greater_equal, TRUTH, 0},
    {"logical_and", qn_logical_and, want_and, LOGIC, 0},
    {"logical_or", qn_logical_or, want_or, LOGIC, 0},
};
enum { N_BINARY = sizeof binary_cases / sizeof *binary_cases };

static const struct pair {
    struct shape a, b, y;
} pairs[] = {
    {{2, {5, 7}}, {2, {5, 7}}, {2, {5, 7}}}, {{3, {4, 1, 3}}, {2, {2, 1}}, {3, {4, 2, 3}}},
    {{0, {0}}, {1, {6}}, {1, {6}}},          {{2, {0, 3}}, {2, {1, 3}}, {2, {0, 3}}},
    {{1, {1}}, {0, {0}}, {1, {1}}},          {{2, {3, 300}}, {1, {300}}, {2, {3, 300}}},
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

/* The element of h that stands at row-major index i of the broadcast shape. */
static double broadcast_at(const host *h, const struct shape *y, size_t i)
{
    size_t at = 0, step = 1;
    for (int d = y->ndim - 1; d >= 0; d--) {
        int own = d - (y->ndim - h->ndim);
        size_t index = i % (size_t)y->size[d];
        i /= (size_t)y->size[d];
        if (own >= 0) {
            at += (h->shape[own] == 1 ? 0 : index) * step;
            step *= (size_t)h->shape[own];
        }
    }
    return h->v[at];
}

static qn_dtype binary_result(const binary_case *c, qn_dtype t)
{
    if (c->kind == TRUTH || c->kind == LOGIC)
        return QN_BOOL;
    if (c->kind == QUOTIENT)
        return is_float(t) ? t : QN_F32;
    return t;
}

static double want_binary(const binary_case *c, double a, double b, qn_dtype result)
{
    double y = c->want(a, b);
    if (!is_float(result) && (y > 0x1p62 || y < -0x1p62))
        return y;
    return round_to(round_to(y, compute_of(result)), result);
}

static void check_binary(const rig *rigs, int n_rigs, const binary_case *c, qn_dtype t,
                         const struct pair *p)
{
    if ((c->kind == REAL && !is_float(t)) || (t == QN_BOOL && c->f == qn_subtract))
        return;
    host a = values_of(t, p->a.ndim, p->a.size, 31), b = values_of(t, p->b.ndim, p->b.size, 77);
    for (size_t i = 0; i < b.n && i < a.n; i += 4)
        b.v[i] = a.v[i]; /* so that some are equal */
    size_t n = 1;
    for (int d = 0; d < p->y.ndim; d++)
        n *= (size_t)p->y.size[d];
    qn_dtype result = binary_result(c, t), at = c->kind == QUOTIENT ? result : t;
    double *want = malloc((n + 1) * sizeof *want);
    for (size_t i = 0; i < n; i++)
        want[i] = want_binary(c, round_to(broadcast_at(&a, &p->y, i), at),
                              round_to(broadcast_at(&b, &p->y, i), at), result);
    same_bits same = {0};
    bool half = result == QN_F16 || result == QN_BF16;
    for (int r = 0; r < n_rigs; r++)
        for (int l = 0; l < N_LAYOUTS && uses_threads(&rigs[r], n); l++) {
            char what[100];
            snprintf(what, sizeof what, "%s of %s, %s, %d threads, layout %d", c->name,
                     qn_dtype_name(t), rigs[r].tier, rigs[r].threads, l);
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *y =
                c->f(s, put(s, &a, (layout)l), put(s, &b, (layout)((l + l / 2) % N_LAYOUTS)));
            void *raw = get(s, y, result, p->y.ndim, p->y.size, what);
            check_values(raw, result, want, n, half && c->units > 0 ? 1 : c->units, 0, what);
            check_same(&same, raw, result, n, what);
            qn_scope_end(s);
        }
    free(same.first);
    free(a.v);
    free(b.v);
    free(want);
}

static void test_binary(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int i = 0; i < N_BINARY; i++) {
        for (int t = 0; t < QN_DTYPE_COUNT; t++)
            for (int p = 0; p < N_PAIRS; p++)
                check_binary(rigs, n, &binary_cases[i], (qn_dtype)t, &pairs[p]);
        struct pair large = {{2, {151, 513}}, {1, {513}}, {2, {151, 513}}};
        check_binary(rigs, n, &binary_cases[i], QN_F32, &large);
    }
    close_rigs(rigs, n);
}

/* ---- integers, bit by bit
 * -------------------------------------------------------------------------- */

typedef __int128 wide;

static wide floor_quotient(wide a, wide b)
{
    return b == 0 ? 0 : a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static wide whole_power(wide a, wide b)
{
    if (b < 0)
        return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    uint64_t y = 1, x = (uint64_t)a;
    for (; b; b /= 2, x *= x)
        y *= b % 2 ? x : 1;
    return (wide)y;
}

static wide whole_reference(int k, wide a, wide b, int bits)
{
    switch (k) {
    case 0: return floor_quotient(a, b);
    case 1: return b == 0 ? 0 : a - b * floor_quotient(a, b);
    case 2: return whole_power(a, b);
    case 3: return a & b;
    case 4: return a | b;
    case 5: return a ^ b;
    case 6: return b < 0 || b >= bits ? 0 : (wide)((uint64_t)a << b);
    default: return b < 0 || b >= bits ? (a < 0 ? -1 : 0) : a >> b;
    }
}

static void test_whole(void **state)
{
    (void)state;
    static qn_array *(*const f[])(qn_scope *, qn_array *, qn_array *) = {
        qn_floor_divide, qn_remainder,   qn_power,      qn_bitwise_and,
        qn_bitwise_or,   qn_bitwise_xor, qn_left_shift, qn_right_shift};
    rig rigs[MOST_RIGS];
    int n_rigs = open_rigs(rigs);
    enum { N = 700 };
    static const int64_t ends[] = {0, 1, -1, 2, INT64_MIN, INT64_MAX, 7, 8, 31, 32, 63, 64, -3};
    for (int t = QN_U8; t <= QN_I64; t++) {
        size_t size = qn_dtype_size((qn_dtype)t);
        char a[N * 8], b[N * 8], got[N * 8];
        uint64_t seed = 4, bits;
        for (int i = 0; i < N; i++) {
            bits = (uint64_t)(int64_t)(test_random(&seed) * 0x1p62) * 3;
            bits = i % 3 ? (uint64_t)((int64_t)bits >> 58) : bits;
            memcpy(a + (size_t)i * size, i < 169 ? &ends[i % 13] : (int64_t *)&bits, size);
            bits = (uint64_t)(int64_t)(test_random(&seed) * (i % 2 ? 70 : 0x1p62));
            memcpy(b + (size_t)i * size, i < 169 ? &ends[i / 13] : (int64_t *)&bits, size);
        }
        for (int r = 0; r < n_rigs; r++)
            for (int k = 0; k < 8; k++) {
                qn_scope *s = qn_scope_begin(rigs[r].device);
                const int64_t shape[] = {N};
                qn_array *x = qn_from(s, (qn_dtype)t, 1, shape, a);
                qn_array *y = f[k](s, x, qn_from(s, (qn_dtype)t, 1, shape, b));
                assert_int_equal(qn_array_dtype(y), t);
                assert_int_equal(qn_read(s, y, got, N * size), QN_OK);
                for (int i = 0; i < N; i++) {
                    int64_t p = decode_integer((qn_dtype)t, a + (size_t)i * size);
                    int64_t q = decode_integer((qn_dtype)t, b + (size_t)i * size);
                    wide wp = t == QN_U64 ? (wide)(uint64_t)p : p,
                         wq = t == QN_U64 ? (wide)(uint64_t)q : q;
                    wide w = whole_reference(k, wp, wq, 8 * (int)size);
                    uint64_t want = (uint64_t)w;
                    if (memcmp(got + (size_t)i * size, &want, size))
                        fail_msg("operation %d of %s, %s: %lld with %lld", k,
                                 qn_dtype_name((qn_dtype)t), rigs[r].tier, (long long)p,
                                 (long long)q);
                }
                assert_int_equal(qn_read(s, qn_bitwise_not(s, x), got, N * size), QN_OK);
                for (size_t i = 0; i < N * size; i++)
                    assert_int_equal((uint8_t)got[i], (uint8_t)~a[i]);
                qn_scope_end(s);
            }
    }
    close_rigs(rigs, n_rigs);
}

static void test_refused(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int k = 0; k < 4; k++) {
        qn_scope *s = qn_scope_begin(rigs[0].device);
        qn_array *truth = qn_ones(s, QN_BOOL, 0, NULL), *real = qn_scalar(s, QN_F32, 1);
        k == 0   ? qn_subtract(s, truth, truth)
        : k == 1 ? qn_bitwise_and(s, real, truth)
        : k == 2 ? qn_left_shift(s, truth, real)
                 : qn_bitwise_not(s, real);
        assert_int_equal(qn_scope_status(s), QN_INVALID);
        qn_scope_end(s);
    }
    close_rigs(rigs, n);
}

/* isnan, isinf, isfinite, clip, logaddexp in every type */
static void test_predicates(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int t = 0; t < QN_DTYPE_COUNT; t++) {
        host h = values_of((qn_dtype)t, 1, (const int64_t[]){97}, 8),
             g = values_of((qn_dtype)t, 1, h.shape, 9);
        qn_dtype real = is_float((qn_dtype)t) ? (qn_dtype)t : QN_F32;
        double sum[97];
        for (int i = 0; i < 97; i++) {
            double a = round_to(h.v[i], real), b = round_to(g.v[i], real);
            sum[i] = isnan(a) || isnan(b) ? NAN
                     : a == b             ? a + log(2)
                                          : fmax(a, b) + log1p(exp(-fabs(a - b)));
        }
        for (int r = 0; r < n; r++) {
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *x = put(s, &h, STRIDED);
            uint8_t *nan = get(s, qn_isnan(s, x), QN_BOOL, 1, h.shape, "isnan");
            uint8_t *inf = get(s, qn_isinf(s, x), QN_BOOL, 1, h.shape, "isinf");
            uint8_t *finite = get(s, qn_isfinite(s, x), QN_BOOL, 1, h.shape, "isfinite");
            for (int i = 0; i < 97; i++) {
                assert_int_equal(nan[i], isnan(h.v[i]) != 0);
                assert_int_equal(inf[i], isinf(h.v[i]) != 0);
                assert_int_equal(finite[i], isfinite(h.v[i]) != 0);
            }
            double clipped[97];
            for (int i = 0; i < 97; i++)
                clipped[i] = isnan(h.v[i]) ? NAN : fmin(fmax(h.v[i], 0), 1);
            qn_array *one = qn_scalar(s, (qn_dtype)t, 1), *zero = qn_scalar(s, (qn_dtype)t, 0);
            void *y = get(s, qn_clip(s, x, zero, one), (qn_dtype)t, 1, h.shape, "clip");
            check_values(y, (qn_dtype)t, clipped, 97, 0, 0, "clip");
            void *l = get(s, qn_logaddexp(s, x, put(s, &g, PADDED)), real, 1, h.shape, "logaddexp");
            check_values(l, real, sum, 97, 4,
                         real == QN_F64   ? 1e-14
                         : real == QN_F32 ? 1e-6
                                          : 0,
                         "logaddexp");
            free(nan), free(inf), free(finite), free(y), free(l);
            qn_scope_end(s);
        }
        free(h.v), free(g.v);
    }
    close_rigs(rigs, n);
}

static void test_where(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    struct shape y = {2, {9, 67}};
    for (int t = 0; t < QN_DTYPE_COUNT; t++) {
        host c = values_of(QN_BOOL, 2, (const int64_t[]){9, 67}, 1);
        host a = values_of((qn_dtype)t, 2, (const int64_t[]){9, 1}, 2);
        host b = values_of((qn_dtype)t, 1, (const int64_t[]){67}, 3);
        double want[9 * 67];
        for (size_t i = 0; i < 9 * 67; i++)
            want[i] = broadcast_at(c.v[i] != 0 ? &a : &b, &y, i);
        for (int r = 0; r < n; r++)
            for (int l = 0; l < N_LAYOUTS; l++) {
                qn_scope *s = qn_scope_begin(rigs[r].device);
                qn_array *w =
                    qn_where(s, put(s, &c, (layout)l), put(s, &a, PLAIN), put(s, &b, (layout)l));
                void *raw = get(s, w, (qn_dtype)t, 2, y.size, "where");
                check_values(raw, (qn_dtype)t, want, 9 * 67, 0, 0, "where");
                free(raw);
                qn_scope_end(s);
            }
        free(c.v);
        free(a.v);
        free(b.v);
    }
    close_rigs(rigs, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary),   cmocka_unit_test(test_logical_not),
        cmocka_unit_test(test_casts),   cmocka_unit_test(test_binary),
        cmocka_unit_test(test_where),   cmocka_unit_test(test_whole),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_predicates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
