/* SPDX-License-Identifier: Apache-2.0
 *
 * Random graphs: a program of random operations over a few arrays that live on from step to step
 * runs twice, and every value that it reads is the same bit for bit (any NaN counts as any other).
 * Once node by node: each operation is evaluated by itself, on one thread, nothing is donated. Once
 * as users run it: a step is recorded whole and evaluated in one or two parts, arrays are donated
 * and updated in place, perhaps through views of themselves and beside references that stay, runs
 * are asynchronous, on one to three threads.
 *
 * QUERN_TEST_DEVICE names another device than the CPU, QUERN_FUZZ_SECONDS is the time (default 1),
 * QUERN_FUZZ_SEED the first program (default 1); with QUERN_FUZZ_TRACE set its operations are
 * printed.
 */
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 4, POOL = 24, STEPS = 4, OPERATIONS = 14, MOST_ELEMENTS = 6000 };

/* Everything that a run has read. */
typedef struct record {
    char *data;
    size_t n, room;
} record;

typedef struct machine {
    qn_device *device;
    qn_scope *s;
    bool whole; /* the way of users; else node by node */
    uint64_t random;
    qn_array *slots[SLOTS]; /* retained */
    bool given[SLOTS];      /* donated in this step */
    qn_array *pool[POOL];   /* what the operations of the step may read */
    int n_pool;
    bool trace, failed;
    record seen;
} machine;

static unsigned pick(machine *m, unsigned n)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(m->random >> 33) % n;
}

static bool chance(machine *m, unsigned percent)
{
    return pick(m, 100) < percent;
}

static void note(machine *m, const void *data, size_t n)
{
    while (m->seen.n + n > m->seen.room) {
        m->seen.room = m->seen.room ? 2 * m->seen.room : 1 << 16;
        m->seen.data = realloc(m->seen.data, m->seen.room);
        assert_non_null(m->seen.data);
    }
    memcpy(m->seen.data + m->seen.n, data, n);
    m->seen.n += n;
}

/* ---- values
 * ----------------------------------------------------------------------------------------- */

static bool is_float(qn_dtype t)
{
    return t == QN_F16 || t == QN_BF16 || t == QN_F32 || t == QN_F64;
}

/* NaNs of every sign and payload become one. */
static void one_nan(qn_dtype t, char *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t *half = (uint16_t *)values + i;
        if (t == QN_F32 && isnan(((float *)values)[i]))
            ((float *)values)[i] = NAN;
        if (t == QN_F64 && isnan(((double *)values)[i]))
            ((double *)values)[i] = (double)NAN;
        if (t == QN_F16 && (*half & 0x7fff) > 0x7c00)
            *half = 0x7e00;
        if (t == QN_BF16 && (*half & 0x7fff) > 0x7f80)
            *half = 0x7fc0;
    }
}

static void see(machine *m, qn_scope *s, qn_array *a)
{
    qn_dtype t = qn_array_dtype(a);
    size_t n = (size_t)qn_array_elements(a), bytes = n * qn_dtype_size(t);
    char *values = malloc(bytes + 1);
    assert_non_null(values);
    if (qn_read(s, a, values, bytes) != QN_OK) {
        printf("reading: %s\n", qn_scope_error(s));
        m->failed = true;
    } else {
        one_nan(t, values, n);
        note(m, values, bytes);
    }
    free(values);
}

static int64_t dim(const qn_array *a, int axis)
{
    return qn_array_dim(a, axis);
}

static void shape_of(const qn_array *a, int64_t *shape)
{
    for (int i = 0; i < qn_array_ndim(a); i++)
        shape[i] = dim(a, i);
}

static qn_dtype any_type(machine *m)
{
    static const qn_dtype types[] = {QN_F32,  QN_F32, QN_F32,  QN_F64, QN_F16,
                                     QN_BF16, QN_I32, QN_I64,  QN_U8,  QN_I8,
                                     QN_U32,  QN_U64, QN_BOOL, QN_I16, QN_U16};
    return types[pick(m, sizeof types / sizeof *types)];
}

static int any_shape(machine *m, int64_t *shape)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 6, 8, 16, 17, 31, 33, 0};
    int ndim = (int)pick(m, 4);
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        shape[i] = sizes[pick(m, chance(m, 5) ? 12 : i ? 8 : 11)];
        if (n * shape[i] > MOST_ELEMENTS / 4)
            shape[i] = 1;
        n *= shape[i];
    }
    if (ndim && chance(m, 8) && n > 0 && n < 8)
        shape[ndim - 1] *= 257;
    return ndim;
}

/* Values that are exact in every type. */
static qn_array *any_values(machine *m, qn_scope *s, qn_dtype t, int ndim, const int64_t *shape)
{
    static const double some[] = {0, 1, 2, 3, 5, 0.5, 7, 1, 4, 0.25};
    double values[MOST_ELEMENTS + 300];
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    bool negative = t != QN_U8 && t != QN_U16 && t != QN_U32 && t != QN_U64 && t != QN_BOOL;
    for (int64_t i = 0; i < n; i++)
        values[i] = some[pick(m, 10)] * (negative && chance(m, 30) ? -1 : 1);
    qn_array *a = qn_cast(s, qn_from(s, QN_F64, ndim, shape, values), t);
    assert_int_equal(qn_eval(s, a), QN_OK);
    return a;
}

/* ---- operations
 * ------------------------------------------------------------------------------------- */

typedef qn_array *unary_fn(qn_scope *, qn_array *);
typedef qn_array *binary_fn(qn_scope *, qn_array *, qn_array *);

static qn_array *any(machine *m)
{
    return m->pool[pick(m, (unsigned)m->n_pool)];
}

static qn_array *f32_of(machine *m, qn_array *a)
{
    return qn_cast(m->s, a, QN_F32);
}

/* b made to broadcast against a: cut and repeated to a's shape, often along the way a view. */
static qn_array *fitted(machine *m, qn_array *b, const qn_array *a)
{
    int64_t shape[QN_MAX_NDIM], n = qn_array_elements(a);
    shape_of(a, shape);
    int ndim = qn_array_ndim(a);
    if (qn_array_ndim(b) == ndim) {
        bool same = true;
        for (int i = 0; i < ndim; i++)
            same &= dim(b, i) == dim(a, i);
        if (same)
            return b;
    }
    qn_array *flat = qn_flatten(m->s, b);
    int64_t have = dim(flat, 0);
    if (have == n)
        return qn_reshape(m->s, flat, ndim, shape);
    if (have > n)
        return qn_reshape(m->s, qn_slice(m->s, flat, 0, have - n, have, 1), ndim, shape);
    if (!have)
        return qn_zeros(m->s, qn_array_dtype(b), 0, NULL);
    return qn_reshape(m->s, qn_slice(m->s, flat, 0, 0, 1, 1), 0, NULL); /* one element: a scalar */
}

static qn_array *unary(machine *m, qn_array *a)
{
    static unary_fn *const floats[] = {
        qn_exp,     qn_log,        qn_sin,       qn_tanh,   qn_sqrt,  qn_square,
        qn_sigmoid, qn_silu,       qn_gelu,      qn_erf,    qn_floor, qn_round,
        qn_rsqrt,   qn_softplus,   qn_log1p,     qn_cos,    qn_relu,  qn_expm1,
        qn_ceil,    qn_reciprocal, qn_gelu_tanh, qn_erfinv, qn_isnan, qn_isfinite};
    static unary_fn *const numbers[] = {qn_negative, qn_abs, qn_sign, qn_square};
    qn_dtype t = qn_array_dtype(a);
    if (t == QN_BOOL)
        return qn_logical_not(m->s, a);
    if (is_float(t) && chance(m, 70))
        return floats[pick(m, sizeof floats / sizeof *floats)](m->s, a);
    return numbers[pick(m, 4)](m->s, a);
}

static qn_array *binary(machine *m, qn_array *a, qn_array *b)
{
    static binary_fn *const most[] = {qn_add,          qn_multiply, qn_maximum,       qn_minimum,
                                      qn_equal,        qn_less,     qn_greater_equal, qn_not_equal,
                                      qn_subtract,     qn_divide,   qn_power,         qn_remainder,
                                      qn_floor_divide, qn_atan2,    qn_logaddexp};
    static binary_fn *const bits[] = {qn_bitwise_and, qn_bitwise_or, qn_bitwise_xor, qn_left_shift,
                                      qn_right_shift};
    qn_dtype ta = qn_array_dtype(a), tb = qn_array_dtype(b);
    bool flags = ta == QN_BOOL && tb == QN_BOOL, whole = !is_float(ta) && !is_float(tb);
    b = fitted(m, b, a);
    if (flags)
        return most[pick(m, 8)](m->s, a, b);
    if (whole && ta == tb && chance(m, 30))
        return bits[pick(m, 5)](m->s, a, b);
    return most[pick(m, ta == QN_BOOL || tb == QN_BOOL ? 8 : whole ? 13 : 15)](m->s, a, b);
}

static qn_array *view(machine *m, qn_array *a)
{
    qn_scope *s = m->s;
    int ndim = qn_array_ndim(a), axis = ndim ? (int)pick(m, (unsigned)ndim) : 0;
    int64_t n = ndim ? dim(a, axis) : 1;
    switch (pick(m, ndim ? 9 : 2)) {
    case 0: return ndim < 5 ? qn_expand_dims(s, a, (int)pick(m, (unsigned)ndim + 1)) : a;
    case 1: return qn_flatten(s, a);
    case 2: return qn_transpose(s, a, NULL);
    case 3: return qn_flip(s, a, axis);
    case 4:
        return qn_slice(s, a, axis, n ? (int64_t)pick(m, (unsigned)n) : 0, INT64_MAX,
                        1 + (int64_t)pick(m, 3));
    case 5: return qn_slice(s, a, axis, 0, n / 2, 1);
    case 6: return qn_swap_axes(s, a, axis, 0);
    case 7:
        return n % 2 == 0 && ndim < 5 && n
                   ? qn_reshape(s, qn_move_axis(s, a, axis, 0), 2, (const int64_t[]){2, -1})
                   : a;
    default: {
        int64_t wide[QN_MAX_NDIM] = {2};
        for (int i = 0; i < ndim; i++)
            wide[i + 1] = dim(a, i);
        return ndim < 5 && qn_array_elements(a) < MOST_ELEMENTS / 2
                   ? qn_broadcast_to(s, a, ndim + 1, wide)
                   : a;
    }
    }
}

static qn_array *reduction(machine *m, qn_array *a)
{
    static qn_reduction *const numbers[] = {qn_sum, qn_max, qn_min, qn_argmax, qn_argmin, qn_prod};
    qn_dtype t = qn_array_dtype(a);
    int ndim = qn_array_ndim(a), axis = ndim ? (int)pick(m, (unsigned)ndim) : QN_ALL_AXES;
    bool keep = chance(m, 50);
    if (ndim && !dim(a, axis))
        return a;
    if (chance(m, 15) && qn_array_elements(a))
        axis = QN_ALL_AXES;
    if (t == QN_BOOL)
        return (chance(m, 50) ? qn_any : qn_all)(m->s, a, axis, keep);
    if (is_float(t) && chance(m, 20))
        return (chance(m, 50) ? qn_mean : qn_logsumexp)(m->s, a, axis, keep);
    return numbers[pick(m, 6)](m->s, a, axis, keep);
}

/* Integers in -1 .. n: mostly inside, sometimes outside. */
static qn_array *indices(machine *m, qn_array *a, int64_t n)
{
    qn_scope *s = m->s;
    qn_array *whole = qn_cast(
        s, qn_clip(s, f32_of(m, a), qn_scalar(s, QN_F32, -9), qn_scalar(s, QN_F32, 9)), QN_I32);
    return qn_remainder(s, whole, qn_scalar(s, QN_I32, (double)(n + 1)));
}

static qn_array *along_rows(machine *m, qn_array *a)
{
    qn_scope *s = m->s;
    int ndim = qn_array_ndim(a), axis = ndim ? (int)pick(m, (unsigned)ndim) : 0;
    if (!ndim || !qn_array_elements(a) || qn_array_dtype(a) == QN_BOOL)
        return qn_add(s, a, a);
    switch (pick(m, 9)) {
    case 0: return qn_cumsum(s, a, axis, chance(m, 50), chance(m, 50));
    case 1: return qn_softmax(s, f32_of(m, a), axis);
    case 2: return qn_rms_norm(s, f32_of(m, a), NULL, 1e-5f);
    case 3: return qn_sort(s, a, axis, chance(m, 50));
    case 4: return qn_argsort(s, a, axis, chance(m, 50));
    case 5: return qn_roll(s, a, (int64_t)pick(m, 5), axis);
    case 6: return qn_cummax(s, a, axis, chance(m, 50));
    case 7: {
        qn_array *ids = indices(m, any(m), dim(a, axis));
        ids = qn_array_elements(ids) > 6 ? qn_slice(s, qn_flatten(s, ids), 0, 0, 6, 1)
                                         : qn_flatten(s, ids);
        return qn_take(s, a, ids, axis);
    }
    default: {
        qn_array *b = qn_flip(s, a, axis), *both[] = {a, b};
        return qn_array_elements(a) < MOST_ELEMENTS / 2 ? qn_concatenate(s, both, 2, axis) : b;
    }
    }
}

static qn_array *product(machine *m, qn_array *a, qn_array *b)
{
    qn_scope *s = m->s;
    a = f32_of(m, a);
    b = f32_of(m, b);
    int64_t ka = qn_array_ndim(a) ? dim(a, -1) : 0;
    if (!ka || qn_array_ndim(a) > 3)
        return qn_multiply(s, a, a);
    b = qn_flatten(s, b);
    int64_t rows = dim(b, 0) / ka;
    if (!rows)
        return qn_sum(s, a, -1, true);
    rows = rows > 5 ? 5 : rows;
    b = qn_reshape(s, qn_slice(s, b, 0, 0, rows * ka, 1), 2, (const int64_t[]){rows, ka});
    return chance(m, 50) ? qn_linear(s, a, b, NULL) : qn_matmul(s, a, qn_transpose(s, b, NULL));
}

/* An update of x, in place when x was donated and nobody else reads it. */
static qn_array *update(machine *m, qn_array *x)
{
    qn_scope *s = m->s;
    qn_dtype t = qn_array_dtype(x);
    int ndim = qn_array_ndim(x), axis = ndim ? (int)pick(m, (unsigned)ndim) : 0;
    if (!ndim || !qn_array_elements(x))
        return x;
    qn_array *from =
        chance(m, 50) ? x : any(m); /* half of the updates come from the array itself */
    int64_t n = dim(x, axis);
    qn_scatter_mode mode = (qn_scatter_mode)pick(m, t == QN_BOOL ? 1 : 4);
    switch (pick(m, 6)) {
    case 0: {
        int64_t start[QN_MAX_NDIM] = {0}, first = (int64_t)pick(m, (unsigned)n);
        qn_array *part = qn_slice(s, x, axis, 0, n - first, 1);
        start[axis] = first;
        part = qn_broadcast_to(s, fitted(m, from, part), qn_array_ndim(part),
                               (const int64_t[]){dim(part, 0), dim(part, 1), dim(part, 2),
                                                 dim(part, 3), dim(part, 4), dim(part, 5)});
        return qn_slice_update(s, x, qn_cast(s, part, t), start);
    }
    case 1: return qn_slice_update(s, x, qn_flip(s, x, axis), (const int64_t[QN_MAX_NDIM]){0});
    case 2: {
        qn_array *start = qn_scalar(s, QN_I32, (double)pick(m, 3));
        start = qn_broadcast_to(s, start, 1, (const int64_t[]){ndim});
        qn_array *part = qn_slice(s, x, axis, n / 2, n, 1);
        return qn_slice_update_at(s, x, chance(m, 50) ? part : qn_add(s, part, part), start);
    }
    case 3: {
        qn_array *ids = indices(m, from, n);
        ids = qn_slice(s, qn_flatten(s, ids), 0, 0, 4, 1);
        qn_array *rows = qn_take(s, chance(m, 50) ? x : qn_flip(s, x, axis), ids, axis);
        return qn_scatter(s, x, ids, rows, axis, mode);
    }
    case 4: {
        qn_array *ids = qn_argsort(s, x, axis, false);
        return qn_put_along(s, x, ids, qn_cast(s, fitted(m, from, x), t), axis, mode);
    }
    default: {
        qn_array *flat = qn_flatten(s, x); /* through a view that shows all of it */
        qn_array *half = qn_slice(s, flat, 0, 0, (dim(flat, 0) + 1) / 2, 1);
        qn_array *y = qn_slice_update(s, flat, half, (const int64_t[]){dim(flat, 0) / 2});
        int64_t shape[QN_MAX_NDIM];
        shape_of(x, shape);
        return qn_reshape(s, y, ndim, shape);
    }
    }
}

static qn_array *operation(machine *m, const char **name)
{
    qn_scope *s = m->s;
    qn_array *a = any(m), *b = any(m);
    switch (pick(m, 16)) {
    case 0:
    case 1:
    case 2: *name = "unary"; return unary(m, a);
    case 3:
    case 4:
    case 5: *name = "binary"; return binary(m, a, b);
    case 6:
    case 7: *name = "view"; return view(m, a);
    case 8: *name = "reduce"; return reduction(m, a);
    case 9: *name = "rows"; return along_rows(m, a);
    case 10: *name = "product"; return product(m, a, b);
    case 11: *name = "cast"; return qn_cast(s, a, any_type(m));
    case 12: {
        *name = "where";
        qn_array *flag = qn_less(s, f32_of(m, a), qn_scalar(s, QN_F32, (double)pick(m, 4)));
        return qn_where(s, flag, a, qn_cast(s, fitted(m, b, a), qn_array_dtype(a)));
    }
    case 13: {
        *name = "number";
        static const double numbers[] = {0.5, -3, 2, 7, 0, 1e-3, 65504, 3.3};
        double v = numbers[pick(m, 8)];
        qn_dtype t = qn_array_dtype(a);
        return t == QN_BOOL
                   ? a
                   : qn_add(s, a, qn_scalar(s, t, is_float(t) ? v : fabs(floor(v)) / 1024));
    }
    default: *name = "update"; return update(m, a);
    }
}

/* ---- a program
 * -------------------------------------------------------------------------------------- */

static void add_to_pool(machine *m, qn_array *a)
{
    if (m->n_pool < POOL)
        m->pool[m->n_pool++] = a;
    else
        m->pool[SLOTS + pick(m, POOL - SLOTS)] = a;
}

static bool ok(machine *m)
{
    if (qn_scope_status(m->s) == QN_OK)
        return true;
    printf("%s: %s\n", m->whole ? "whole" : "node by node", qn_scope_error(m->s));
    m->failed = true;
    return false;
}

static void record_operation(machine *m)
{
    const char *name = "";
    qn_array *y = operation(m, &name);
    if (!ok(m))
        return;
    if (!m->whole && qn_eval(m->s, y) != QN_OK) {
        ok(m);
        return;
    }
    if (m->trace && m->whole) {
        printf("  %s -> %s [", name, qn_dtype_name(qn_array_dtype(y)));
        for (int i = 0; i < qn_array_ndim(y); i++)
            printf("%s%lld", i ? " " : "", (long long)dim(y, i));
        printf("]\n");
    }
    if (qn_array_elements(y) <= MOST_ELEMENTS)
        add_to_pool(m, y);
}

/* Evaluates some of the pool; only these stay in it, and the slots that were not given away. */
static void evaluate(machine *m, bool reads_later)
{
    qn_array *targets[POOL];
    int n = 0;
    for (int i = 0; i < m->n_pool; i++)
        if (chance(m, 40) || (i >= SLOTS && i + 2 >= m->n_pool))
            targets[n++] = m->pool[i];
    bool async = chance(m, 40);
    if (m->whole && (async ? qn_eval_async : qn_eval_many)(m->s, targets, n) != QN_OK) {
        ok(m);
        return;
    }
    m->n_pool = 0;
    for (int i = 0; i < SLOTS; i++)
        if (!m->given[i])
            m->pool[m->n_pool++] = m->slots[i];
    for (int i = 0; i < n; i++)
        add_to_pool(m, targets[i]);
    for (int i = 0; i < n && !reads_later; i++)
        see(m, m->s, targets[i]);
}

/* Which arrays are given away; a reference that stays now and then. */
static void begin_step(machine *m, qn_array **kept)
{
    m->s = qn_scope_begin(m->device);
    m->n_pool = 0;
    *kept = NULL;
    for (int i = 0; i < SLOTS; i++) {
        qn_array *a = m->slots[i];
        m->given[i] = chance(m, 50);
        if (m->given[i] && !*kept && chance(m, 20))
            *kept = qn_retain(a);
        m->pool[m->n_pool++] = m->given[i] && m->whole ? qn_donate(m->s, a) : a;
    }
}

/* New values for what was given away: of what is evaluated by now. */
static void end_step(machine *m, qn_array *kept)
{
    qn_array *next[SLOTS] = {0};
    for (int i = 0; i < SLOTS && m->n_pool; i++)
        if (m->given[i])
            next[i] = qn_retain(any(m));
    ok(m);
    qn_scope_end(m->s);
    m->s = qn_scope_begin(m->device);
    for (int i = 0; i < SLOTS; i++) {
        if (!m->given[i])
            continue;
        if (!m->whole)
            qn_release(m->slots[i]);
        int64_t shape[QN_MAX_NDIM];
        int ndim = any_shape(m, shape);
        qn_dtype t = any_type(m);
        bool fresh = !next[i] || qn_array_elements(next[i]) < 2;
        if (fresh) {
            qn_release(next[i]);
            next[i] = qn_retain(any_values(m, m->s, t, ndim, shape));
        }
        m->slots[i] = next[i];
    }
    if (kept)
        see(m, m->s, kept);
    qn_release(kept);
    for (int i = 0; i < SLOTS && !m->failed; i++)
        if (chance(m, 50))
            see(m, m->s, m->slots[i]);
    qn_scope_end(m->s);
    m->s = NULL;
}

static void run_program(machine *m, uint64_t seed)
{
    m->random = seed * 0x9e3779b97f4a7c15u + 1;
    m->seen.n = 0;
    m->failed = false;
    m->s = qn_scope_begin(m->device);
    for (int i = 0; i < SLOTS; i++) {
        int64_t shape[QN_MAX_NDIM];
        int ndim = any_shape(m, shape);
        m->slots[i] = qn_retain(any_values(m, m->s, any_type(m), ndim, shape));
        assert_non_null(m->slots[i]);
    }
    qn_scope_end(m->s);
    for (int step = 0; step < STEPS && !m->failed; step++) {
        qn_array *kept;
        if (m->trace && m->whole)
            printf(" step\n");
        begin_step(m, &kept);
        int parts = 1 + (int)pick(m, 2);
        for (int part = 0; part < parts && !m->failed; part++) {
            for (int i = 0; i < OPERATIONS && !m->failed; i++)
                record_operation(m);
            if (!m->failed)
                evaluate(m, chance(m, 30));
        }
        end_step(m, kept);
    }
    for (int i = 0; i < SLOTS; i++)
        qn_release(m->slots[i]);
}

static void test_graphs(void **state)
{
    (void)state;
    const char *seconds = getenv("QUERN_FUZZ_SECONDS"), *first = getenv("QUERN_FUZZ_SEED");
    double limit = (seconds ? atof(seconds) : 1) * CLOCKS_PER_SEC;
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
    bool elsewhere = getenv("QUERN_TEST_DEVICE") != NULL;
    machine apart = {.device = open_device(NULL)}, whole[3] = {{0}};
    for (int i = 0; i < 3; i++)
        whole[i] = (machine){.device = elsewhere ? open_device(NULL) : open_cpu_threads(i + 1),
                             .whole = true,
                             .trace = getenv("QUERN_FUZZ_TRACE") != NULL};
    long n = 0, bytes = 0;
    for (clock_t begun = clock(); (double)(clock() - begun) < limit; n++, seed++) {
        machine *m = &whole[seed % 3];
        run_program(&apart, seed);
        run_program(m, seed);
        if (apart.failed || m->failed)
            fail_msg("QUERN_FUZZ_SEED=%llu: a program failed", (unsigned long long)seed);
        if (apart.seen.n != m->seen.n || memcmp(apart.seen.data, m->seen.data, m->seen.n))
            fail_msg("QUERN_FUZZ_SEED=%llu: node by node gives other values",
                     (unsigned long long)seed);
        bytes += (long)m->seen.n;
    }
    print_message("%ld programs, %ld bytes compared\n", n, bytes);
    for (int i = 0; i < 3; i++) {
        qn_device_close(whole[i].device);
        free(whole[i].seen.data);
    }
    qn_device_close(apart.device);
    free(apart.seen.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_graphs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
