/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages: which steps of a graph are parts of one, and that random graphs of what stages are made
 * of give the bits that each operation gives when it is evaluated by itself, on one to three
 * threads, with a few rows and with many, also where a value of the stage is read elsewhere, is
 * wanted, or lies where another may be written. The same of passes that go along with each other.
 */
#include "test.h"

#include "core/device.h"
#include "core/scope.h"

#include <string.h>

enum { K = 64, N_WEIGHTS = 6, POOL = 40, PROGRAMS = 400, SIDE = 192, OWN = 3 };

/* Weights [N, K], [K, N] and [K, K] of several layouts, and a norm's. */
typedef struct weights {
    qn_array *up[N_WEIGHTS], *down[N_WEIGHTS], *square, *norm;
} weights;

static const int64_t widths[N_WEIGHTS] = {1024, 1024, 1024, 640, 520, 48};

static qn_array *random_array(qn_scope *s, int64_t rows, int64_t columns, uint64_t seed)
{
    float *values = malloc((size_t)(rows * columns) * sizeof *values);
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = (float)test_random(&seed);
    qn_array *a = qn_from_f32(s, values, rows * columns);
    free(values);
    return qn_reshape(s, a, 2, (const int64_t[]){rows, columns});
}

static qn_array *packed(qn_scope *s, int64_t n, int64_t k, int kind, uint64_t seed)
{
    qn_array *w = random_array(s, n, k, seed);
    qn_array *a = qn_pack(s, kind ? qn_cast(s, w, QN_BF16) : w);
    if (!a)
        fail_msg("%s", qn_scope_error(s));
    return a;
}

static weights make_weights(qn_device *device)
{
    weights w;
    qn_scope *s = qn_scope_begin(device);
    for (int i = 0; i < N_WEIGHTS; i++) {
        w.up[i] = packed(s, widths[i], K, i % 3 != 1, (uint64_t)i);
        w.down[i] = packed(s, K, widths[i], i % 3 != 1, (uint64_t)(100 + i));
    }
    w.square = packed(s, K, K, 1, 8);
    w.norm = qn_retain(qn_reshape(s, random_array(s, 1, K, 7), 1, (const int64_t[]){K}));
    qn_scope_end(s);
    return w;
}

static void free_weights(weights *w)
{
    for (int i = 0; i < N_WEIGHTS; i++) {
        qn_release(w->up[i]);
        qn_release(w->down[i]);
    }
    qn_release(w->square);
    qn_release(w->norm);
}

/* ---- structure ------------------------------------------------------------------------------- */

/* The parts of the newest plan: R root, P prologue, S sibling, s sink, a along. */
static void expect_parts(qn_device *device, const char *want)
{
    char got[64] = "";
    const qn__plan *plan = device->plans.newest;
    for (uint32_t i = 0; i < plan->n_steps && i < 63; i++)
        got[i] = "RPSsa"[plan->steps[i].part];
    assert_string_equal(got, want);
}

static qn_array *input_of(qn_scope *s, int64_t rows)
{
    return qn_add(s, random_array(s, rows, K, 3), qn_full(s, QN_F32, 0, NULL, 0));
}

/* norm, q, k, v with a norm of q between them */
static void test_parts(void **state)
{
    qn_device *device = open_cpu(state);
    weights w = make_weights(device);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_rms_norm(s, input_of(s, 1), w.norm, 1e-5f), *y[3];
    y[0] = qn_linear(s, x, w.up[0], NULL);
    y[0] = qn_rms_norm(s, qn_reshape(s, y[0], 2, (const int64_t[]){16, 64}), w.norm, 1e-5f);
    y[1] = qn_linear(s, x, w.up[3], NULL);
    y[2] = qn_linear(s, x, w.up[1], NULL);
    assert_int_equal(qn_eval_many(s, y, 3), QN_OK);
    expect_parts(device, "RPRSSR");
    qn_scope_end(s);

    s = qn_scope_begin(device); /* gate, up, and what joins them; down and the stream */
    x = input_of(s, 2);
    qn_array *n = qn_rms_norm(s, x, w.norm, 1e-5f);
    qn_array *g = qn_silu(s, qn_linear(s, n, w.up[0], NULL));
    qn_array *h = qn_multiply(s, g, qn_linear(s, n, w.up[1], NULL));
    y[0] = qn_add(s, x, qn_linear(s, h, w.down[0], NULL));
    assert_int_equal(qn_eval(s, y[0]), QN_OK);
    expect_parts(device, "RPRSsRs");
    qn_scope_end(s);

    s = qn_scope_begin(device); /* the norm is read elsewhere, too; the sum broadcasts */
    x = input_of(s, 1);
    n = qn_rms_norm(s, x, w.norm, 1e-5f);
    y[0] = qn_linear(s, n, w.up[0], NULL);
    y[1] = qn_add(s, y[0], qn_full(s, QN_F32, 2, (const int64_t[]){3, 1024}, 1));
    y[2] = qn_exp(s, n);
    assert_int_equal(qn_eval_many(s, y, 3), QN_OK);
    expect_parts(device, "RRRRR");
    qn_scope_end(s);

    for (int donated = 0; donated < 2; donated++) { /* the sum may lie where the norm still reads */
        s = qn_scope_begin(device);
        qn_array *stream = qn_retain(random_array(s, 8, K, 5));
        qn_scope_end(s);
        s = qn_scope_begin(device);
        x = donated ? qn_donate(s, stream) : stream;
        n = qn_linear(s, qn_rms_norm(s, x, w.norm, 1e-5f), w.square, NULL);
        y[0] = qn_add(s, x, n);
        assert_int_equal(qn_eval(s, y[0]), QN_OK);
        expect_parts(device, donated ? "PRR" : "PRs");
        qn_scope_end(s);
        if (!donated)
            qn_release(stream);
    }
    free_weights(&w);
    qn_device_close(device);
}

/* ---- values ---------------------------------------------------------------------------------- */

typedef struct run {
    qn_scope *s;
    bool whole;
    uint64_t seed;
    qn_array *pool[POOL]; /* f32, [rows, K] or [rows, a width] */
    int n;
} run;

static int pick(run *r, int n)
{
    return (int)((test_random(&r->seed) + 1) / 2 * n) % n;
}

static qn_array *some_of_width(run *r, int64_t width)
{
    for (int tries = 0; tries < 60; tries++) {
        qn_array *a = r->pool[pick(r, r->n)];
        if (qn_array_dim(a, 1) == width)
            return a;
    }
    return NULL;
}

static int width_index(int64_t width)
{
    int i = 0;
    while (i < N_WEIGHTS && widths[i] != width)
        i++;
    return i;
}

/* One random operation; NULL: nothing fits it. */
static qn_array *random_operation(run *r, const weights *w)
{
    qn_array *newest = r->pool[r->n - 1], *a = pick(r, 3) ? newest : r->pool[pick(r, r->n)];
    int64_t width = qn_array_dim(a, 1);
    qn_array *b = some_of_width(r, width), *x = some_of_width(r, K);
    switch (pick(r, 10)) {
    case 0: return qn_rms_norm(r->s, x, w->norm, 1e-5f);
    case 1:
    case 2:
    case 3: return qn_linear(r->s, width == K ? a : x, w->up[pick(r, N_WEIGHTS)], NULL);
    case 4:
        return width_index(width) < N_WEIGHTS
                   ? qn_linear(r->s, a, w->down[width_index(width)], NULL)
                   : NULL;
    case 5: return qn_silu(r->s, a);
    case 6: return b ? qn_multiply(r->s, qn_tanh(r->s, a), b) : NULL;
    case 7: return qn_add(r->s, x, qn_linear(r->s, x, w->square, NULL));
    case 8: return qn_add(r->s, a, qn_full(r->s, QN_F32, 0, NULL, 0.25));
    default: return b ? qn_add(r->s, a, b) : NULL;
    }
}

static uint64_t run_program(qn_device *device, const weights *w, uint64_t seed, bool whole)
{
    run r = {.s = qn_scope_begin(device), .whole = whole, .seed = seed, .n = 1};
    int64_t rows = (int64_t[]){1, 1, 1, 2, 5, 8, 9, 40}[pick(&r, 8)];
    qn_array *stream = qn_retain(random_array(r.s, rows, K, seed)), *read[POOL];
    qn_scope_end(r.s);
    r.s = qn_scope_begin(device);
    r.pool[0] = whole ? qn_donate(r.s, stream) : stream; /* may be written over */
    if (!whole)
        r.pool[0] = qn_add(r.s, stream, qn_full(r.s, QN_F32, 0, NULL, 0));
    int n_read = 0;
    while (r.n < POOL) {
        qn_array *a = random_operation(&r, w);
        if (!a)
            continue;
        if (!whole && qn_eval(r.s, a) != QN_OK)
            fail_msg("%s", qn_scope_error(r.s));
        r.pool[r.n++] = a;
        if (pick(&r, 4) == 0 || r.n == POOL)
            read[n_read++] = a;
    }
    if (qn_eval_many(r.s, read, n_read) != QN_OK)
        fail_msg("%s", qn_scope_error(r.s));
    uint64_t hash = 0;
    for (int i = 0; i < n_read; i++) {
        int64_t n = rows * qn_array_dim(read[i], 1);
        uint32_t *bits = malloc((size_t)n * sizeof *bits);
        assert_int_equal(qn_read_f32(r.s, read[i], (float *)bits, (size_t)n), QN_OK);
        for (int64_t k = 0; k < n; k++)
            hash = hash * 1099511628211u + ((bits[k] & 0x7fffffff) > 0x7f800000 ? 1 : bits[k]);
        free(bits);
    }
    qn_scope_end(r.s);
    if (!whole)
        qn_release(stream);
    return hash;
}

static void test_values(void **state)
{
    (void)state;
    qn_device *devices[] = {open_cpu_threads(1), open_cpu_threads(2), open_cpu_threads(3)};
    for (int t = 0; t < 3; t++) {
        weights w = make_weights(devices[t]);
        for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
            uint64_t alone = run_program(devices[t], &w, seed, false);
            if (run_program(devices[t], &w, seed, true) != alone)
                fail_msg("program %d on %d threads differs", (int)seed, t + 1);
        }
        free_weights(&w);
        assert_int_equal(memory_of(devices[t]).active, 0);
        qn_device_close(devices[t]);
    }
}

/* ---- passes that go along -------------------------------------------------------------------- */

static qn_array *number(qn_scope *s, double value)
{
    return qn_scalar(s, QN_F32, value);
}

static qn_array *turned(qn_scope *s, qn_array *x)
{
    return qn_transpose(s, x, NULL);
}

/* An optimiser's update is one stage; what reads elements across is not of one with their writer.
 */
static void test_along_parts(void **state)
{
    static const char *const want[] = {"Raaa", "RR", "RR", "RaR"};
    qn_device *device = open_cpu(state);
    for (int i = 0; i < 4; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *own[OWN], *y[OWN] = {0};
        for (int k = 0; k < OWN; k++)
            own[k] = qn_retain(random_array(s, SIDE, SIDE, (uint64_t)k));
        qn_scope_end(s);
        s = qn_scope_begin(device);
        qn_array *grad = random_array(s, SIDE, SIDE, 9);
        for (int k = 0; k < OWN; k++)
            own[k] = qn_donate(s, own[k]);
        qn_array *g = qn_multiply(s, grad, qn_from_f32(s, (const float[]){0.5f}, 1));
        if (i == 0) {
            y[0] = qn_add(s, qn_multiply(s, own[0], number(s, 0.9)), g);
            y[1] = qn_add(s, qn_multiply(s, own[1], number(s, 0.9)), qn_square(s, g));
            y[2] = qn_subtract(s, own[2], qn_divide(s, y[0], qn_sqrt(s, y[1])));
        } else if (i == 1) { /* what has been written is read across */
            y[0] = qn_add(s, own[0], grad);
            y[1] = qn_add(s, y[0], turned(s, y[0]));
        } else if (i == 2) { /* what is read across is written */
            y[0] = qn_add(s, grad, turned(s, own[0]));
            y[1] = qn_add(s, own[0], grad);
        } else { /* the last one shares nothing */
            y[0] = qn_add(s, own[0], grad);
            y[1] = qn_multiply(s, y[0], grad);
            y[2] = qn_tanh(s, own[2]);
        }
        assert_int_equal(qn_eval_many(s, y, i == 1 || i == 2 ? 2 : 3), QN_OK);
        expect_parts(device, want[i]);
        qn_scope_end(s);
    }
    qn_device_close(device);
}

/* A random program of elementwise operations on some arrays, which are given away where it is
 * evaluated as a whole. */
static uint64_t run_passes(qn_device *device, uint64_t seed, bool whole)
{
    run r = {.s = qn_scope_begin(device), .whole = whole, .seed = seed, .n = OWN};
    qn_array *own[OWN], *read[POOL];
    for (int k = 0; k < OWN; k++)
        own[k] = qn_retain(random_array(r.s, SIDE, SIDE, seed + (uint64_t)k));
    qn_scope_end(r.s);
    r.s = qn_scope_begin(device);
    for (int k = 0; k < OWN; k++)
        r.pool[k] = whole ? qn_donate(r.s, own[k]) : qn_add(r.s, own[k], number(r.s, 0));
    int n_read = 0, until = OWN + 4 + pick(&r, 12);
    while (r.n < until) {
        qn_array *a = r.pool[pick(&r, r.n)], *b = r.pool[pick(&r, r.n)], *y;
        switch (pick(&r, 7)) {
        case 0: y = qn_add(r.s, a, turned(r.s, b)); break;
        case 1: y = qn_multiply(r.s, a, qn_slice(r.s, b, 0, 3, 4, 1)); break;
        case 2: y = qn_tanh(r.s, a); break;
        case 3: y = qn_multiply(r.s, a, number(r.s, 0.75)); break;
        case 4: y = qn_cast(r.s, qn_cast(r.s, a, QN_BF16), QN_F32); break;
        default: y = qn_add(r.s, qn_multiply(r.s, a, number(r.s, 0.5)), b); break;
        }
        if (!whole && qn_eval(r.s, y) != QN_OK)
            fail_msg("%s", qn_scope_error(r.s));
        r.pool[r.n++] = y;
        if (pick(&r, 3) || r.n == until)
            read[n_read++] = y;
    }
    if (qn_eval_many(r.s, read, n_read) != QN_OK)
        fail_msg("%s", qn_scope_error(r.s));
    uint64_t hash = 0;
    static uint32_t bits[SIDE * SIDE];
    for (int i = 0; i < n_read; i++) {
        assert_int_equal(qn_read_f32(r.s, read[i], (float *)bits, SIDE * SIDE), QN_OK);
        for (int k = 0; k < SIDE * SIDE; k++)
            hash = hash * 1099511628211u + ((bits[k] & 0x7fffffff) > 0x7f800000 ? 1 : bits[k]);
    }
    qn_scope_end(r.s);
    for (int k = 0; k < OWN && !whole; k++)
        qn_release(own[k]);
    return hash;
}

static void test_along(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        qn_device *device = open_cpu_threads(threads);
        for (uint64_t seed = 0; seed < 100; seed++)
            if (run_passes(device, seed, true) != run_passes(device, seed, false))
                fail_msg("program %d on %d threads differs", (int)seed, threads);
        assert_int_equal(memory_of(device).active, 0);
        qn_device_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_along_parts),
                                       cmocka_unit_test(test_along)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
