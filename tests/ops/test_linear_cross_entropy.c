/* SPDX-License-Identifier: Apache-2.0
 *
 * Cross-entropy of a packed linear layer: losses and gradients against f64 on the weight's own
 * values, in every tier and with plain weights; rows that do not count, targets that are not there,
 * a soft-cap, vocabularies over several chunks, plain weights of some rows at a time; the same bits
 * with any threads and in any company.
 */
#include "ops/ops.h"
#include "ops_test.h"
#include "quern/quern.h"

enum { K = 64, MOST_V = 1300, MOST_ROWS = 60 };

typedef struct problem {
    int64_t rows, vocab;
    double cap;
    bool weighted;
    const qn__encoding *e; /* NULL: plain f32 */
} problem;

typedef struct data {
    float w[MOST_V * K], x[MOST_ROWS * K], weights[MOST_ROWS];
    int32_t targets[MOST_ROWS];
    float loss[MOST_ROWS], grad[MOST_ROWS * K];
} data;

static float pseudo_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state / 2147483648.0f;
}

/* Logits that grow along the vocabulary, so that the maximum moves from chunk to chunk. */
static void fill(data *d, const problem *p)
{
    uint32_t state = 5;
    for (int64_t i = 0; i < p->vocab * K; i++)
        d->w[i] = pseudo_random(&state) * (0.3f + (float)(i / K) / (float)p->vocab);
    for (int64_t i = 0; i < p->rows * K; i++)
        d->x[i] = pseudo_random(&state) * 3;
    for (int64_t i = 0; i < p->rows; i++) {
        d->targets[i] = (int32_t)((double)(pseudo_random(&state) + 1) / 2 * (double)p->vocab);
        d->weights[i] = i % 3 == 1 ? 0 : pseudo_random(&state);
    }
    d->targets[0] = 0;
    d->targets[p->rows - 1] = (int32_t)p->vocab - 1;
    if (p->rows > 4)
        d->targets[2] = -1;
}

/* NULL: not packed. */
static qn_array *new_packed(qn_scope *s, data *d, const problem *p)
{
    if (!p->e)
        return NULL;
    size_t row = qn__encoding_row_bytes(p->e, K);
    uint8_t *rows = calloc((size_t)p->vocab, row);
    size_t blocks = (size_t)p->vocab * K / p->e->block_elements;
    p->e->encode(p->e, d->w, NULL, blocks, rows);
    p->e->decode(p->e, rows, blocks, d->w);
    qn_array *w = qn__packed_new(s, p->e, p->vocab, K);
    assert_non_null(w);
    assert_int_equal(qn__packed_write(w, p->e, rows, 0, p->vocab, NULL), QN_OK);
    free(rows);
    return w;
}

static qn_array *record(qn_scope *s, const problem *p, data *d, qn_array *x, qn_array *w,
                        bool loss_only)
{
    qn_linear_cross_entropy_options o = {
        .size = sizeof o,
        .softcap = (float)p->cap,
        .products = QN_PRODUCTS_F32,
        .weights = p->weighted ? qn_from_f32(s, d->weights, p->rows) : NULL,
        .loss_only = loss_only};
    return qn_linear_cross_entropy(s, x, w, qn_from_i32(s, d->targets, p->rows), &o);
}

/* Losses and the gradient of their sum. */
static void run(qn_device *device, const problem *p, data *d)
{
    const int64_t x_shape[] = {p->rows, K}, w_shape[] = {p->vocab, K};
    qn_scope *s = qn_scope_begin(device);
    qn_array *packed = new_packed(s, d, p), *grad, *again, *moved;
    qn_array *w = packed ? packed : qn_from(s, QN_F32, 2, w_shape, d->w);
    qn_array *x = qn_from(s, QN_F32, 2, x_shape, d->x);
    qn_array *losses = record(s, p, d, x, w, false), *alone = record(s, p, d, x, w, true);
    qn_array *sum = qn_sum(s, losses, 0, false);
    assert_int_equal(qn_grad(s, sum, &x, 1, &grad), QN_OK);
    assert_int_equal(qn_grad(s, qn_sum(s, alone, 0, false), &x, 1, &again), QN_OK);
    moved = qn_jvp(s, sum, &x, &x, 1); /* along x itself */
    size_t n = (size_t)p->rows;
    float other[MOST_ROWS], *back = malloc(n * K * 4), along;
    assert_int_equal(qn_read(s, losses, d->loss, n * 4), QN_OK);
    assert_int_equal(qn_read(s, alone, other, n * 4), QN_OK);
    assert_memory_equal(d->loss, other, n * 4);
    assert_int_equal(qn_read(s, grad, d->grad, n * K * 4), QN_OK);
    assert_int_equal(qn_read(s, again, back, n * K * 4), QN_OK);
    assert_memory_equal(d->grad, back, n * K * 4);
    assert_int_equal(qn_read(s, moved, &along, 4), QN_OK);
    double want = 0, size = 0;
    for (size_t i = 0; i < n * K; i++) {
        want += (double)d->grad[i] * d->x[i];
        size += fabs((double)d->grad[i] * d->x[i]);
    }
    assert_true(fabs(along - want) <= 1e-5 * size);
    free(back);
    qn_release(packed);
    qn_scope_end(s);
}

/* One row in f64: the loss, and the gradient of weight * loss. */
static double want_row(const problem *p, const data *d, int64_t r, double *grad)
{
    static double logit[MOST_V], slope[MOST_V];
    double top = -INFINITY, total = 0, weight = p->weighted ? (double)d->weights[r] : 1;
    for (int64_t v = 0; v < p->vocab; v++) {
        logit[v] = 0;
        for (int k = 0; k < K; k++)
            logit[v] += (double)d->x[r * K + k] * d->w[v * K + k];
        double t = p->cap > 0 ? tanh(logit[v] / p->cap) : 0;
        slope[v] = 1 - t * t;
        logit[v] = p->cap > 0 ? p->cap * t : logit[v];
        top = logit[v] > top ? logit[v] : top;
    }
    for (int64_t v = 0; v < p->vocab; v++)
        total += exp(logit[v] - top);
    int32_t target = d->targets[r];
    for (int k = 0; k < K; k++)
        grad[k] = 0;
    for (int64_t v = 0; v < p->vocab; v++)
        for (int k = 0; k < K; k++)
            grad[k] +=
                weight * slope[v] * (exp(logit[v] - top) / total - (v == target)) * d->w[v * K + k];
    return weight * (top + log(total) - (target >= 0 ? logit[target] : 0));
}

static void check_rows(const problem *p, const data *d, const char *tier)
{
    double grad[K], error = 0, size = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        double want = want_row(p, d, r, grad);
        if (fabs(d->loss[r] - want) > 4e-6 * (1 + fabs(want)))
            fail_msg("%s: row %d of %d: %.8g, want %.8g", tier, (int)r, (int)p->rows, d->loss[r],
                     want);
        for (int k = 0; k < K; k++) {
            error += pow(d->grad[r * K + k] - grad[k], 2);
            size += grad[k] * grad[k];
        }
    }
    if (!(error <= 1e-10 * size))
        fail_msg("%s: gradients of %d rows, %d words are off by %.2g", tier, (int)p->rows,
                 (int)p->vocab, sqrt(error / size));
}

static const problem problems[] = {{60, 1300, 0, false, &qn__encodings[QN__BF16]},
                                   {60, 1300, 2.5, true, &qn__encodings[QN__F32]},
                                   {33, 1024, 0, true, &qn__encodings[QN__Q8_0]},
                                   {1, 37, 0, false, &qn__encodings[QN__F16]},
                                   {7, 513, 30, true, NULL}};

static void test_values(void **state)
{
    (void)state;
    static data one, other;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int r = 0; r < n; r++) {
            data *d = r % 2 ? &other : &one; /* of each tier one thread, then three */
            fill(d, &problems[i]);
            run(rigs[r].device, &problems[i], d);
            check_rows(&problems[i], d, rigs[r].tier);
            if (r % 2) {
                assert_memory_equal(one.loss, other.loss, sizeof one.loss);
                assert_memory_equal(one.grad, other.grad, sizeof one.grad);
            }
        }
    close_rigs(rigs, n);
}

/* A row's loss and gradient are the same alone. */
static void test_company(void **state)
{
    static data all, alone;
    qn_device *device = open_cpu(state);
    problem p = problems[1];
    fill(&all, &p);
    run(device, &p, &all);
    for (int64_t r = 0; r < 60; r += 7) {
        p.rows = 60;
        fill(&alone, &p);
        memmove(alone.x, alone.x + r * K, K * 4);
        alone.targets[0] = alone.targets[r];
        alone.weights[0] = alone.weights[r];
        p.rows = 1;
        run(device, &p, &alone);
        assert_memory_equal(alone.loss, all.loss + r, 4);
        assert_memory_equal(alone.grad, all.grad + r * K, K * 4);
    }
    qn_device_close(device);
}

static void test_refusals(void **state)
{
    static data d;
    qn_device *device = open_cpu(state);
    const problem *p = &problems[0];
    fill(&d, p);
    for (int what = 0; what < 2; what++) {
        qn_scope *s = qn_scope_begin(device);
        const int64_t shape[] = {p->rows, K};
        qn_array *w = new_packed(s, &d, p), *x = qn_from(s, QN_F32, 2, shape, d.x), *grad;
        qn_array *loss = qn_sum(s, record(s, p, &d, x, w, false), 0, false);
        if (what == 0) {
            qn_grad(s, loss, &w, 1, &grad);
            assert_non_null(strstr(qn_scope_error(s), "packed weight has no gradient"));
        } else {
            qn_grad(s, loss, &x, 1, &grad);
            qn_grad(s, qn_sum(s, grad, QN_ALL_AXES, false), &x, 1, &grad);
            assert_non_null(strstr(qn_scope_error(s), "no second derivative"));
        }
        qn_release(w);
        qn_scope_end(s);
    }
    qn_device_close(device);
}

/* ---- plain weights, more logits than are there at once --------------------------------------- */

enum { WIDE = 70000, NARROW_K = 4, MANY = 500 };

/* Losses, and the gradients of their weighted sum, into out[]: [MANY], [MANY, K], [WIDE, K]. */
static void run_wide(qn_device *device, bool chunks, const float *x, const float *w,
                     const int32_t *targets, const float *weights, float *out)
{
    const int64_t x_shape[] = {2, MANY / 2, NARROW_K}, w_shape[] = {WIDE, NARROW_K};
    const int64_t rows[] = {2, MANY / 2};
    qn_scope *s = qn_scope_begin(device);
    qn_array *wrt[] = {qn_from(s, QN_F32, 3, x_shape, x), qn_from(s, QN_F32, 2, w_shape, w)};
    qn_array *t = qn_from(s, QN_I32, 2, rows, targets), *grads[2];
    qn_array *counts = qn_from(s, QN_F32, 2, rows, weights);
    const qn_linear_cross_entropy_options o = {.size = sizeof o, .weights = counts};
    qn_array *losses =
        chunks ? qn_linear_cross_entropy(s, wrt[0], wrt[1], t, &o)
               : qn_multiply(s, qn_cross_entropy(s, qn_linear(s, wrt[0], wrt[1], NULL), t), counts);
    assert_int_equal(qn_grad(s, qn_sum(s, losses, QN_ALL_AXES, false), wrt, 2, grads), QN_OK);
    qn_array *made[] = {losses, grads[0], grads[1]};
    if (qn_eval_many(s, made, 3) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    assert_int_equal(qn_read_f32(s, losses, out, MANY), QN_OK);
    assert_int_equal(qn_read_f32(s, grads[0], out + MANY, MANY * NARROW_K), QN_OK);
    assert_int_equal(qn_read_f32(s, grads[1], out + MANY + MANY * NARROW_K, WIDE * NARROW_K),
                     QN_OK);
    qn_scope_end(s);
}

static void test_chunks_of_rows(void **state)
{
    enum { N = MANY + MANY * NARROW_K, ALL = N + WIDE * NARROW_K };
    uint32_t seed = 9;
    float *x = malloc(MANY * NARROW_K * 4), *w = malloc(WIDE * NARROW_K * 4), weights[MANY];
    float *got = malloc(ALL * 4), *want = malloc(ALL * 4);
    int32_t targets[MANY];
    size_t peak[2];
    for (int i = 0; i < MANY * NARROW_K; i++)
        x[i] = 3 * pseudo_random(&seed);
    for (int i = 0; i < WIDE * NARROW_K; i++)
        w[i] = pseudo_random(&seed);
    for (int i = 0; i < MANY; i++) {
        targets[i] = (int32_t)((double)(pseudo_random(&seed) + 1) / 2 * WIDE);
        weights[i] = i % 4 == 1 ? 0 : 1 + pseudo_random(&seed) / 2;
    }
    for (int k = 0; k < 2; k++) {
        qn_device *device = open_cpu(state);
        qn_memory_stats memory = QN_INIT(qn_memory_stats);
        run_wide(device, k == 0, x, w, targets, weights, k ? want : got);
        qn_device_memory(device, &memory);
        peak[k] = memory.peak;
        qn_device_close(device);
    }
    assert_memory_equal(got, want, N * 4);
    for (int i = N; i < ALL; i++)
        assert_true(fabs((double)got[i] - want[i]) <= 1e-5);
    print_message("%zu bytes in chunks, %zu without\n", peak[0], peak[1]);
    if (peak[0] > peak[1] * 7 / 10)
        fail_msg("%zu bytes in chunks, %zu without", peak[0], peak[1]);
    free(x);
    free(w);
    free(got);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_of_rows), cmocka_unit_test(test_values),
        cmocka_unit_test(test_company), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
