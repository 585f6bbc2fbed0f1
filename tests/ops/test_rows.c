/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations over an axis: reductions, softmax, norms, cross-entropy, rope. Values against plain
 * loops in double, fused operations also against their decomposition; the same bits with 1 and 3
 * threads.
 */
#include "ops/ops_test.h"

#include "core/scope.h"
#include "ops/params.h"

/* ---- reductions
 * ------------------------------------------------------------------------------------------ */

typedef enum what { SUM, MEAN, MAX, MIN, LOGSUMEXP, ARGMAX, N_WHATS } what;
typedef qn_array *reduction(qn_scope *, qn_array *, int, bool);
static reduction *const reductions[] = {qn_sum, qn_mean, qn_max, qn_min, qn_logsumexp, qn_argmax};
static const char *const names[] = {"sum", "mean", "max", "min", "logsumexp", "argmax"};

static qn_dtype type_of(what w, qn_dtype t)
{
    bool is_small = qn_dtype_size(t) < 4 && !is_float(t);
    qn_dtype wide = t == QN_U8 || t == QN_U16 ? QN_U32 : QN_I32;
    switch (w) {
    case SUM: return is_small ? wide : t;
    case MEAN:
    case LOGSUMEXP: return is_float(t) ? t : QN_F32;
    case ARGMAX: return QN_I32;
    default: return t;
    }
}

/* Of n values `step` apart. */
static double want_of(what w, const double *x, size_t n, size_t step)
{
    double sum = 0, e = 0, best = n ? x[0] : 0;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        double v = x[i * step];
        sum += v;
        bool better = w == MIN ? v < best : v > best;
        if (!isnan(best) && (better || isnan(v))) {
            best = v;
            at = i;
        }
    }
    double most = best;
    for (size_t i = 0; i < n; i++)
        e += exp(x[i * step] - most);
    switch (w) {
    case SUM: return sum;
    case MEAN: return sum / (double)n;
    case LOGSUMEXP: return isinf(most) ? most : most + log(e);
    case ARGMAX: return (double)at;
    default: return best;
    }
}

/* Reduces the middle axis of [outer, n, inner], or everything. */
static void check_reduction(const rig *rigs, int n_rigs, what w, qn_dtype t, size_t outer, size_t n,
                            size_t inner, bool all, bool nans)
{
    uint64_t seed = 7 + n;
    double scale = is_float(t) ? 3 : t == QN_BOOL ? 1 : 60;
    int64_t shape[] = {(int64_t)outer, (int64_t)n, (int64_t)inner};
    host x = random_host(t, 3, shape, scale, is_signed(t) ? 0 : scale, &seed);
    if (!is_float(t) && x.n > 1 && t != QN_BOOL && w != SUM && w != MEAN && qn_dtype_size(t) < 8) {
        x.v[0] = is_signed(t) ? -ldexp(1, 8 * (int)qn_dtype_size(t) - 1) : 0; /* the extremes */
        x.v[1] = ldexp(1, 8 * (int)qn_dtype_size(t) - (is_signed(t) ? 1 : 0)) - 1;
    }
    if (nans && x.n > 20) {
        x.v[11] = NAN;
        x.v[5] = INFINITY;
        x.v[17] = NAN;
    }
    size_t n_out = all ? 1 : outer * inner;
    qn_dtype result = type_of(w, t);
    double *want = malloc((n_out + 1) * sizeof *want);
    for (size_t o = 0; o < n_out; o++) {
        double v = all ? want_of(w, x.v, x.n, 1)
                       : want_of(w, x.v + o / inner * n * inner + o % inner, n, inner);
        want[o] = is_float(result) && !isnan(v) ? round_to(v, result) : v;
    }
    bool exact = w == MAX || w == MIN || w == ARGMAX || !is_float(result);
    double tiny = result == QN_F64 ? 1e-15 : result == QN_F32 ? 1e-7 : 0; /* sums cancel */
    double absolute = exact ? 0 : tiny * scale * (w == SUM ? (double)(all ? x.n : n) : 4);
    for (int r = 0; r < n_rigs; r++) {
        static same_bits same[1];
        if (rigs[r].threads == 1) {
            free(same->first);
            *same = (same_bits){0};
        }
        for (int l = 0; l < N_LAYOUTS && uses_threads(&rigs[r], x.n); l++) {
            char text[120];
            snprintf(text, sizeof text, "%s of %s [%zu, %zu, %zu], %s, %d threads, layout %d",
                     names[w], qn_dtype_name(t), outer, n, inner, rigs[r].tier, rigs[r].threads, l);
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *y = reductions[w](s, put(s, &x, (layout)l), all ? QN_ALL_AXES : -2, l % 2);
            int64_t kept[] = {all ? 1 : shape[0], 1, all ? 1 : shape[2]};
            int64_t dropped[] = {shape[0], shape[2]};
            void *raw = get(s, y, result, l % 2 ? 3 : all ? 0 : 2, l % 2 ? kept : dropped, text);
            check_values(raw, result, want, n_out,
                         exact                        ? 0
                         : qn_dtype_size(result) == 2 ? 1
                                                      : 4,
                         absolute, text);
            if (!n_out)
                free(raw);
            else
                check_same(same, raw, result, n_out, text);
            qn_scope_end(s);
        }
        if (r + 1 == n_rigs) {
            free(same->first);
            same->first = NULL;
        }
    }
    free(x.v);
    free(want);
}

static void test_reductions(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    static const size_t sizes[][3] = {{2, 7, 3}, {1, 1, 1}, {3, 300, 1}, {0, 4, 2}, {1, 33, 5}};
    for (int w = 0; w < N_WHATS; w++) {
        for (int t = 0; t < QN_DTYPE_COUNT; t++)
            for (int k = 0; k < 5; k++) {
                bool all = k == 0 || k == 2;
                check_reduction(rigs, n, (what)w, (qn_dtype)t, sizes[k][0], sizes[k][1],
                                sizes[k][2], false, false);
                if (all && !(w == SUM && !is_float((qn_dtype)t)))
                    check_reduction(rigs, n, (what)w, (qn_dtype)t, sizes[k][0], sizes[k][1],
                                    sizes[k][2], true, false);
                if (is_float((qn_dtype)t) && k == 0)
                    check_reduction(rigs, n, (what)w, (qn_dtype)t, 2, 7, 3, false, true);
            }
        check_reduction(rigs, n, (what)w, QN_F32, 67, 513, 3, false, false);
        if (w == SUM) /* nothing to add */
            check_reduction(rigs, n, SUM, QN_F32, 2, 0, 3, false, false);
    }
    close_rigs(rigs, n);
}

/* Unsigned numbers above those that have a sign. */
static void test_large_unsigned(void **state)
{
    (void)state;
    static const uint64_t v[] = {3, UINT64_MAX - 1, INT64_MAX, (uint64_t)INT64_MAX + 1};
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++) {
        qn_scope *s = qn_scope_begin(rigs[r].device);
        qn_array *x = qn_from(s, QN_U64, 1, (const int64_t[]){4}, v);
        uint64_t most, least;
        int32_t at;
        assert_int_equal(qn_read(s, qn_max(s, x, 0, false), &most, sizeof most), QN_OK);
        assert_int_equal(qn_read(s, qn_min(s, x, 0, false), &least, sizeof least), QN_OK);
        assert_int_equal(qn_read(s, qn_argmax(s, x, 0, false), &at, sizeof at), QN_OK);
        assert_true(most == v[1] && least == v[0] && at == 1);
        qn_scope_end(s);
    }
    close_rigs(rigs, n);
}

/* ---- rows
 * --------------------------------------------------------------------------------------------------
 */

enum { MOST_LENGTH = 1000 };

static const int64_t row_shapes[][2] = {{5, 7}, {1, 1}, {0, 4}, {3, 65}, {129, 515}, {4, 1000}};
enum { N_ROW_SHAPES = sizeof row_shapes / sizeof *row_shapes };

/* A function of rows: fills y [rows, n] from x [rows, n] and vectors w, b [n]. */
typedef struct row_case {
    const char *name;
    qn_array *(*f)(qn_scope *s, qn_array *x, qn_array *w, qn_array *b);
    void (*want)(double *y, const double *x, const double *w, const double *b, size_t n);
    double tolerance; /* of f32, absolute, for values about 1 */
} row_case;

static qn_array *softmax(qn_scope *s, qn_array *x, qn_array *w, qn_array *b)
{
    (void)w, (void)b;
    return qn_softmax(s, x, -1);
}

static void want_softmax(double *y, const double *x, const double *w, const double *b, size_t n)
{
    (void)w, (void)b;
    double sum = 0, most = x[0];
    for (size_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (size_t i = 0; i < n; i++)
        sum += y[i] = exp(x[i] - most);
    for (size_t i = 0; i < n; i++)
        y[i] /= sum;
}

static qn_array *rms_norm(qn_scope *s, qn_array *x, qn_array *w, qn_array *b)
{
    (void)b;
    return qn_rms_norm(s, x, w, 1e-3f);
}

static qn_array *rms_norm_bare(qn_scope *s, qn_array *x, qn_array *w, qn_array *b)
{
    (void)w, (void)b;
    return qn_rms_norm(s, x, NULL, 1e-3f);
}

static void want_rms_norm(double *y, const double *x, const double *w, const double *b, size_t n)
{
    (void)b;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / (double)n + (double)1e-3f) * w[i];
}

static void want_rms_norm_bare(double *y, const double *x, const double *w, const double *b,
                               size_t n)
{
    (void)w;
    double ones[MOST_LENGTH];
    for (size_t i = 0; i < n; i++)
        ones[i] = 1;
    want_rms_norm(y, x, ones, b, n);
}

static qn_array *layer_norm(qn_scope *s, qn_array *x, qn_array *w, qn_array *b)
{
    return qn_layer_norm(s, x, w, b, 1e-3f);
}

static void want_layer_norm(double *y, const double *x, const double *w, const double *b, size_t n)
{
    double mean = 0, var = 0;
    for (size_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(var + (double)1e-3f) * w[i] + b[i];
}

static const row_case row_cases[] = {
    {"softmax", softmax, want_softmax, 5e-7},
    {"rms_norm", rms_norm, want_rms_norm, 2e-6},
    {"rms_norm without weight", rms_norm_bare, want_rms_norm_bare, 2e-6},
    {"layer_norm", layer_norm, want_layer_norm, 2e-5},
};

/* The node of a fused operation, decomposed, against its own value. */
static void check_decomposed(qn_scope *s, qn_array *y, const double *want, size_t n,
                             double tolerance, const char *text)
{
    if (!qn__ops[y->op]->decompose)
        return; /* this device decomposed it already */
    qn_array *d = qn__ops[y->op]->decompose(s, y);
    void *raw = get(s, d, (qn_dtype)y->dtype, y->ndim, y->shape, text);
    check_values(raw, (qn_dtype)y->dtype, want, n, 0, tolerance, text);
    free(raw);
}

static void check_rows(const rig *rigs, int n_rigs, const row_case *c, qn_dtype t, int64_t rows,
                       int64_t n)
{
    uint64_t seed = 5;
    host x = random_host(t, 2, (const int64_t[]){rows, n}, 3, 0, &seed);
    host w = random_host(t, 1, &n, 0.5, 1, &seed), b = random_host(t, 1, &n, 0.5, 0, &seed);
    double *want = malloc((x.n + 1) * sizeof *want);
    for (int64_t r = 0; r < rows; r++)
        c->want(want + r * n, x.v + r * n, w.v, b.v, (size_t)n);
    double tolerance = t == QN_F64 ? c->tolerance * 1e-8 : c->tolerance;
    bool half = qn_dtype_size(t) == 2;
    same_bits same = {0};
    for (int r = 0; r < n_rigs; r++)
        for (int l = 0; l < N_LAYOUTS && uses_threads(&rigs[r], x.n); l++) {
            char text[120];
            snprintf(text, sizeof text, "%s of %s [%lld, %lld], %s, %d threads, layout %d", c->name,
                     qn_dtype_name(t), (long long)rows, (long long)n, rigs[r].tier, rigs[r].threads,
                     l);
            if (rigs[r].threads == 1 && l == 0) {
                free(same.first);
                same.first = NULL;
            }
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *y =
                c->f(s, put(s, &x, (layout)l), put(s, &w, (layout)l), put(s, &b, (layout)l));
            void *raw = get(s, y, t, 2, x.shape, text);
            check_values(raw, t, want, x.n, half ? 1.01 : 0, tolerance * 4, text);
            check_same(&same, raw, t, x.n, text);
            check_decomposed(s, y, want, x.n, tolerance * 4, text);
            qn_scope_end(s);
        }
    free(same.first);
    free(x.v);
    free(w.v);
    free(b.v);
    free(want);
}

static void test_rows(void **state)
{
    (void)state;
    static const qn_dtype types[] = {QN_F32, QN_F64, QN_BF16, QN_F16};
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (size_t c = 0; c < sizeof row_cases / sizeof *row_cases; c++)
        for (int t = 0; t < 4; t++)
            for (int k = 0; k < N_ROW_SHAPES; k++)
                if (t < 2 || k < 4)
                    check_rows(rigs, n, &row_cases[c], types[t], row_shapes[k][0],
                               row_shapes[k][1]);
    close_rigs(rigs, n);
}

/* Along another axis, of integers, and what infinities do. */
static void test_softmax_elsewhere(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++) {
        qn_scope *s = qn_scope_begin(rigs[r].device);
        int32_t v[] = {0, 1, 2, 3, 3, 3};
        qn_array *x = qn_from(s, QN_I32, 2, (const int64_t[]){3, 2}, v);
        double want[6];
        for (int c = 0; c < 2; c++) {
            double sum = exp(v[c]) + exp(v[2 + c]) + exp(v[4 + c]);
            for (int i = 0; i < 3; i++)
                want[2 * i + c] = exp(v[2 * i + c]) / sum;
        }
        void *raw =
            get(s, qn_softmax(s, x, 0), QN_F32, 2, (const int64_t[]){3, 2}, "softmax, axis 0");
        check_values(raw, QN_F32, want, 6, 3, 0, "softmax, axis 0");
        free(raw);
        float masked[] = {-INFINITY, 0, -INFINITY, 0};
        raw = get(s, qn_softmax(s, qn_from_f32(s, masked, 4), -1), QN_F32, 1, (const int64_t[]){4},
                  "softmax with -inf");
        check_values(raw, QN_F32, (const double[]){0, 0.5, 0, 0.5}, 4, 0, 0, "softmax with -inf");
        free(raw);
        qn_scope_end(s);
    }
    close_rigs(rigs, n);
}

static void check_cross_entropy(const rig *r, qn_dtype t, int64_t rows, int64_t n, layout how)
{
    uint64_t seed = 12;
    host x = random_host(t, 2, (const int64_t[]){rows, n}, 8, 0, &seed);
    int32_t *targets = malloc(((size_t)rows + 1) * sizeof *targets);
    double *want = malloc(((size_t)rows + 1) * sizeof *want);
    for (int64_t i = 0; i < rows; i++) {
        targets[i] = (int32_t)(i * 7 % n);
        want[i] = want_of(LOGSUMEXP, x.v + i * n, (size_t)n, 1) - x.v[i * n + targets[i]];
    }
    qn_scope *s = qn_scope_begin(r->device);
    qn_array *y = qn_cross_entropy(s, put(s, &x, how), qn_from_i32(s, targets, rows));
    qn_dtype result = t == QN_F64 ? QN_F64 : QN_F32;
    void *raw = get(s, y, result, 1, &rows, "cross_entropy");
    check_values(raw, result, want, (size_t)rows, 0, t == QN_F64 ? 1e-13 : 4e-6, "cross_entropy");
    free(raw);
    qn_scope_end(s);
    free(x.v);
    free(targets);
    free(want);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++)
        for (int l = 0; l < N_LAYOUTS; l++)
            for (int t = 0; t < 3; t++) {
                qn_dtype type = (qn_dtype[]){QN_F32, QN_F64, QN_BF16}[t];
                check_cross_entropy(&rigs[r], type, 6, 33, (layout)l);
                check_cross_entropy(&rigs[r], type, 1, 1, (layout)l);
                check_cross_entropy(&rigs[r], type, 0, 5, (layout)l);
            }
    close_rigs(rigs, n);
}

/* ---- rope
 * ----------------------------------------------------------------------------------------------------
 */

typedef enum rope_offsets { ONE, EACH_BATCH, EACH_POSITION } rope_offsets;

typedef struct rope_case {
    int64_t b, h, l, d, half;
    bool traditional;
    rope_offsets offsets;
} rope_case;

static int32_t position_of(const rope_case *c, int64_t batch, int64_t l)
{
    static const int32_t offset[] = {3, 0, 250};
    if (c->offsets == EACH_POSITION)
        return (int32_t)((batch * 131 + l * l * 7) % 301);
    return offset[c->offsets == ONE ? 0 : batch] + (int32_t)l;
}

static qn_array *put_offsets(qn_scope *s, const rope_case *c)
{
    int32_t all[512];
    int64_t n = c->offsets == ONE ? 1 : c->b;
    for (int64_t i = 0; c->offsets == EACH_POSITION && i < c->b * c->l; i++)
        all[i] = position_of(c, i / c->l, i % c->l);
    if (c->offsets == EACH_POSITION)
        return qn_from(s, QN_I32, 2, (const int64_t[]){c->b, c->l}, all);
    for (int64_t i = 0; i < n; i++)
        all[i] = position_of(c, i, 0);
    return qn_from_i32(s, all, n);
}

static void want_rope(const rope_case *c, const host *x, const double *frequency, double *y)
{
    for (size_t row = 0; row < (size_t)(c->b * c->h * c->l); row++) {
        int64_t batch = (int64_t)row / (c->h * c->l), l = (int64_t)row % c->l;
        const double *from = x->v + row * (size_t)c->d;
        double *to = y + row * (size_t)c->d;
        memcpy(to, from, (size_t)c->d * sizeof *to);
        for (int64_t i = 0; i < c->half; i++) {
            int32_t position = position_of(c, batch, l);
            double angle = position * frequency[i];
            if (x->dtype != QN_F64) /* angles are f32 */
                angle = (float)((float)position * (float)frequency[i]);
            int64_t p = c->traditional ? 2 * i : i, q = c->traditional ? p + 1 : i + c->half;
            to[p] = from[p] * cos(angle) - from[q] * sin(angle);
            to[q] = from[q] * cos(angle) + from[p] * sin(angle);
        }
    }
}

static void check_rope(const rig *rigs, int n_rigs, const rope_case *c, qn_dtype t)
{
    uint64_t seed = 21;
    host x = random_host(t, 4, (const int64_t[]){c->b, c->h, c->l, c->d}, 1, 0, &seed);
    host f = random_host(t == QN_F64 ? QN_F64 : QN_F32, 1, &c->half, 0.5, 0.6, &seed);
    double *want = malloc((x.n + 1) * sizeof *want);
    want_rope(c, &x, f.v, want);
    same_bits same = {0};
    for (int r = 0; r < n_rigs; r++)
        for (int l = 0; l < N_LAYOUTS + 1 && uses_threads(&rigs[r], x.n); l++) {
            char text[100];
            snprintf(text, sizeof text, "rope of %s, half %d, %s, %d threads, layout %d",
                     qn_dtype_name(t), (int)c->half, rigs[r].tier, rigs[r].threads, l);
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *a = put(s, &x, l < N_LAYOUTS ? (layout)l : PLAIN);
            if (l == N_LAYOUTS) { /* heads as a view of [B, L, H, D], the decoder's layout */
                qn_array *stored = qn_contiguous(s, qn_transpose(s, a, (int[]){0, 2, 1, 3}));
                a = qn_transpose(s, stored, (int[]){0, 2, 1, 3});
            }
            qn_array *y = qn_rope(s, a, put_offsets(s, c), put(s, &f, PLAIN), c->traditional);
            void *raw = get(s, y, t, 4, x.shape, text);
            double tolerance = t == QN_F64 ? 1e-14 : 4e-7;
            check_values(raw, t, want, x.n, qn_dtype_size(t) == 2 ? 1.01 : 0, tolerance, text);
            check_same(&same, raw, t, x.n, text);
            if (y->op == QN__OP_ROPE)
                check_decomposed(s, y, want, x.n, tolerance, text);
            qn_scope_end(s);
        }
    free(same.first);
    free(x.v);
    free(f.v);
    free(want);
}

static void test_rope(void **state)
{
    (void)state;
    static const rope_case cases[] = {
        {2, 3, 5, 8, 4, false, EACH_BATCH},
        {2, 3, 5, 8, 4, true, ONE},
        {3, 1, 1, 6, 2, false, EACH_BATCH},
        {1, 2, 4, 10, 3, true, EACH_BATCH},
        {2, 2, 0, 4, 2, false, ONE},
        {2, 5, 130, 64, 32, false, EACH_BATCH},
        {2, 3, 70, 16, 8, true, EACH_POSITION},
        {3, 2, 1, 8, 4, false, EACH_POSITION},
    };
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int t = 0; t < 3; t++)
            check_rope(rigs, n, &cases[c], (qn_dtype[]){QN_F32, QN_F64, QN_BF16}[t]);
    close_rigs(rigs, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions),    cmocka_unit_test(test_large_unsigned),
        cmocka_unit_test(test_rows),          cmocka_unit_test(test_softmax_elsewhere),
        cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
