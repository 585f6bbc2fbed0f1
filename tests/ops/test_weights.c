/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights as operations see them: every encoding held by the device, rows looked up, the
 * kinds of products (each its own value, and its own plan), gradients, refusals.
 */
#include "ops/ops.h"
#include "ops_test.h"
#include "quern/extend.h"
#include "quern/quern.h"

enum { N = 37, K = 512, M = 3 };

static float pseudo_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state / 2147483648.0f;
}

/* A weight of random values, encoded and packed; its decoded values. */
static qn_array *new_packed(qn_scope *s, const qn__encoding *e, float *values)
{
    uint32_t state = 7;
    size_t row = qn__encoding_row_bytes(e, K);
    uint8_t *rows = calloc(N, row);
    for (int i = 0; i < N * K; i++)
        values[i] = pseudo_random(&state);
    e->encode(e, values, NULL, (size_t)N * K / e->block_elements, rows);
    e->decode(e, rows, (size_t)N * K / e->block_elements, values);
    qn_array *w = qn__packed_new(s, e, N, K);
    assert_non_null(w);
    assert_int_equal(qn__packed_write(w, e, rows, 0, N, NULL), QN_OK);
    free(rows);
    return w;
}

static double nmse_of(const float *got, const double *want, size_t n)
{
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return error / size;
}

static void want_linear(const float *x, const float *w, double *y)
{
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += (double)x[m * K + k] * w[n * K + k];
            y[m * N + n] = sum;
        }
}

/* To the nearest, ties to even. */
static float bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &u, 4);
    return x;
}

/* The gradient of sum(y) to x is the sum of the rows, as their products see them. */
static void check_gradient(qn_scope *s, qn_array *w, qn_array *input, const float *values,
                           bool half)
{
    static float back[M * K];
    static double want_back[M * K];
    qn_array *grad,
        *loss = qn_sum(s, qn_reshape(s, qn_linear(s, input, w, NULL), 1, (const int64_t[]){M * N}),
                       0, false);
    assert_int_equal(qn_grad(s, loss, &input, 1, &grad), QN_OK);
    assert_int_equal(qn_read(s, grad, back, sizeof back), QN_OK);
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++) {
            want_back[m * K + k] = 0;
            for (int n = 0; n < N; n++)
                want_back[m * K + k] += half ? bf16_of(values[n * K + k]) : values[n * K + k];
        }
    assert_true(nmse_of(back, want_back, M * K) < 1e-12);
}

/* *plain: as an array like any other. */
static bool is_held(qn_device *device, const qn__encoding *e, bool *plain)
{
    qn_dtype dtype;
    qn__layout_id layout;
    bool held = device->ops->hold(device, e, &dtype, &layout);
    *plain = held && !layout;
    return held;
}

/* The error names the encoding. */
static void check_refused(qn_device *device, const qn__encoding *e)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *w = qn__packed_new(s, e, N, K);
    assert_int_equal(qn_scope_status(s), QN_UNSUPPORTED);
    assert_non_null(strstr(qn_scope_error(s), e->name));
    qn_release(w);
    qn_scope_end(s);
}

static void check_encoding(qn_device *device, const qn__encoding *e)
{
    static float values[N * K], x[M * K], y[M * N], row[2 * K];
    static double want[M * N];
    uint32_t state = 3;
    qn_scope *s = qn_scope_begin(device);
    qn_array *w = new_packed(s, e, values);
    for (int i = 0; i < M * K; i++)
        x[i] = pseudo_random(&state);
    qn_array *input = qn_reshape(s, qn_from_f32(s, x, M * K), 2, (const int64_t[]){M, K});
    want_linear(x, values, want);
    /* f32: the weight's values to the last bits; bytes: nearly; both from one scope */
    qn_array *exact = qn_linear_with(s, input, w, NULL, QN_PRODUCTS_F32);
    assert_int_equal(qn_read(s, exact, y, sizeof y), QN_OK);
    assert_true(nmse_of(y, want, M * N) < 1e-12);
    if (qn__layout_of(w->layout)->step) {
        qn_array *bytes = qn_linear(s, input, w, NULL);
        assert_int_equal(qn_read(s, bytes, y, sizeof y), QN_OK);
        double error = nmse_of(y, want, M * N);
        assert_true(error < 1e-4 && error > 1e-9);
    }
    /* few rows are multiplied as AUTO says, on any device */
    static float few[M * N];
    assert_int_equal(qn_read(s, qn_linear(s, input, w, NULL), y, sizeof y), QN_OK);
    qn_array *by_rows = qn_linear_with(s, input, w, NULL, QN_PRODUCTS_BY_ROWS);
    assert_int_equal(qn_read(s, by_rows, few, sizeof few), QN_OK);
    assert_memory_equal(y, few, sizeof y);
    /* rows */
    int32_t ids[] = {N - 1, 0};
    qn_array *rows = qn_cast(s, qn_take(s, w, qn_from_i32(s, ids, 2), 0), QN_F32);
    assert_int_equal(qn_read(s, rows, row, sizeof row), QN_OK);
    assert_memory_equal(row, values + (N - 1) * K, K * sizeof *row);
    assert_memory_equal(row + K, values, K * sizeof *row);
    if (!strcmp(device->ops->kind, "cpu"))
        check_gradient(s, w, input, values, strcmp(e->name, "f32") && strcmp(e->name, "f16"));
    qn_release(w);
    qn_scope_end(s);
}

static void test_encodings(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++) {
        qn_device *device = rigs[r].device;
        int checked = 0, refused = 0;
        for (int i = 0; i < QN__ENCODING_COUNT; i++) {
            const qn__encoding *e = &qn__encodings[i];
            if (!e->encode || K % e->block_elements != 0)
                continue;
            bool cpu = !strcmp(device->ops->kind, "cpu"), plain;
            if (is_held(device, e, &plain) && plain && !cpu)
                continue;
            if (is_held(device, e, &plain)) {
                check_encoding(device, e);
                checked++;
            } else {
                check_refused(device, e);
                refused++;
            }
        }
        assert_true(checked > 60 && !refused); /* of the devices that there are */
    }
    close_rigs(rigs, n);
}

/* ---- bytes with one scale a row
 * ---------------------------------------------------------------------------------------------- */

/* y = q w^T / scale, where a row's q are x times its scale in whole numbers, 127 at most: as
 * BitNet's authors have it. Each row by itself, since their sizes differ. */
static void check_rows_of_bytes(const float *x, const float *w, const float *y, const float *back)
{
    for (int m = 0; m < M; m++) {
        double want[N], got[N], most = 1e-5, size = 0;
        for (int k = 0; k < K; k++)
            most = fabs((double)x[m * K + k]) > most ? fabs((double)x[m * K + k]) : most;
        float scale = 127 / (float)most;
        for (int n = 0; n < N; n++) {
            want[n] = 0;
            got[n] = y[m * N + n];
            for (int k = 0; k < K; k++)
                want[n] += rint((double)(x[m * K + k] * scale)) / scale * w[n * K + k];
            size += want[n] * want[n];
        }
        for (int n = 0; n < N; n++)
            assert_true(fabs(got[n] - want[n]) <= 1e-6 * sqrt(size));
        for (int k = 0; k < K; k++) { /* of x as it was, not rounded */
            double sum = 0;
            for (int n = 0; n < N; n++)
                sum += (double)w[n * K + k];
            assert_true(fabs(back[m * K + k] - sum) <= 1e-4);
        }
    }
}

/* ---- gradients
 * ---------------------------------------------------------------------------------------------- */

/* Of a packed weight the gradient multiplies what is rounded to bf16 where the products do. */
static void test_gradients(void **state)
{
    static float w[N * K], c[M * N], x[M * K], back[M * K];
    static double want[M * K];
    qn_device *device = open_cpu(state);
    uint32_t seed = 3;
    for (int i = 0; i < N * K; i++)
        w[i] = bf16_of(pseudo_random(&seed));
    for (int i = 0; i < M * N; i++)
        c[i] = pseudo_random(&seed);
    for (int kind = 0; kind < 4; kind++) {
        bool packs = kind & 1, half = kind & 2;
        qn_scope *s = qn_scope_begin(device);
        qn_array *input = qn_reshape(s, qn_from_f32(s, x, M * K), 2, (const int64_t[]){M, K});
        qn_array *weight = qn_reshape(s, qn_from_f32(s, w, N * K), 2, (const int64_t[]){N, K});
        qn_array *by = qn_reshape(s, qn_from_f32(s, c, M * N), 2, (const int64_t[]){M, N}), *grad;
        weight = qn_cast(s, weight, QN_BF16);
        qn_array *kept = packs ? qn_pack(s, weight) : NULL;
        qn_array *y = qn_linear_with(s, input, packs ? kept : weight, NULL,
                                     half ? QN_PRODUCTS_BF16 : QN_PRODUCTS_F32);
        qn_array *loss = qn_sum(s, qn_multiply(s, y, by), QN_ALL_AXES, false);
        assert_int_equal(qn_grad(s, loss, &input, 1, &grad), QN_OK);
        assert_int_equal(qn_read(s, grad, back, sizeof back), QN_OK);
        for (int m = 0; m < M; m++)
            for (int k = 0; k < K; k++) {
                want[m * K + k] = 0;
                for (int n = 0; n < N; n++)
                    want[m * K + k] +=
                        (double)(packs && half ? bf16_of(c[m * N + n]) : c[m * N + n]) *
                        w[n * K + k];
            }
        if (!(nmse_of(back, want, M * K) <= 1e-12))
            fail_msg("%s, %s: off by %.2g", packs ? "packed" : "plain", half ? "bf16" : "f32",
                     nmse_of(back, want, M * K));
        qn_scope_end(s);
        qn_release(kept);
    }
    qn_device_close(device);
}

/* x is rounded to f16, what is too large to the largest, and its gradient is as if it were not. */
static void halves(qn_device *device, bool packs)
{
    static float w[N * K], x[M * K], y[M * N], back[M * K];
    static double want[M * N], want_back[M * K];
    static const float size[M] = {1, 3e5f, 1e-6f};
    uint32_t state = 7;
    memset(want, 0, sizeof want);
    memset(want_back, 0, sizeof want_back);
    for (int i = 0; i < N * K; i++)
        w[i] = qn__f16_to_f32(qn__f32_to_f16(pseudo_random(&state)));
    for (int i = 0; i < M * K; i++)
        x[i] = pseudo_random(&state) * size[i / K];
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++) {
                const float v = fminf(fmaxf(x[m * K + k], -65504), 65504);
                want[m * N + n] += (double)qn__f16_to_f32(qn__f32_to_f16(v)) * w[n * K + k];
                want_back[m * K + k] += w[n * K + k];
            }
    qn_scope *s = qn_scope_begin(device);
    qn_array *input = qn_reshape(s, qn_from_f32(s, x, M * K), 2, (const int64_t[]){M, K}), *grad;
    qn_array *weight = qn_reshape(s, qn_from_f32(s, w, N * K), 2, (const int64_t[]){N, K});
    weight = qn_cast(s, weight, QN_F16);
    qn_array *kept = packs ? qn_pack(s, weight) : NULL;
    qn_array *product = qn_linear_with(s, input, packs ? kept : weight, NULL, QN_PRODUCTS_F16);
    qn_array *loss = qn_sum(s, product, QN_ALL_AXES, false);
    assert_int_equal(qn_grad(s, loss, &input, 1, &grad), QN_OK);
    assert_int_equal(qn_read(s, product, y, sizeof y), QN_OK);
    assert_int_equal(qn_read(s, grad, back, sizeof back), QN_OK);
    for (int m = 0; m < M; m++)
        if (!(nmse_of(y + m * N, want + m * N, N) <= 1e-12)) /* a NaN, too */
            fail_msg("row %d: off by %.2g", m, nmse_of(y + m * N, want + m * N, N));
    assert_true(nmse_of(back, want_back, M * K) <= 1e-12);
    qn_release(kept);
    qn_scope_end(s);
}

static void test_halves(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < 2 * n; r++)
        halves(rigs[r / 2].device, r % 2);
    close_rigs(rigs, n);
}

static void rows_of_bytes(qn_device *device, const qn__encoding *e)
{
    static float values[N * K], x[M * K], y[M * N], back[M * K];
    uint32_t state = 5;
    qn_scope *s = qn_scope_begin(device);
    qn_array *w = e ? new_packed(s, e, values) : NULL, *grad, *input;
    for (int i = 0; i < M * K; i++) {
        static const float size[M] = {300, 2e-6f, 0}; /* the second is next to nothing */
        x[i] = pseudo_random(&state) * size[i / K] * (i % K == 7 ? 9.0f : 1.0f);
    }
    for (int i = 0; !e && i < N * K; i++)
        values[i] = pseudo_random(&state);
    input = qn_reshape(s, qn_from_f32(s, x, M * K), 2, (const int64_t[]){M, K});
    qn_array *weight =
        e ? w : qn_reshape(s, qn_from_f32(s, values, N * K), 2, (const int64_t[]){N, K});
    qn_array *product = qn_linear_with(s, input, weight, NULL, QN_PRODUCTS_INT8_ROWS);
    qn_array *loss = qn_sum(s, qn_reshape(s, product, 1, (const int64_t[]){M * N}), 0, false);
    assert_int_equal(qn_grad(s, loss, &input, 1, &grad), QN_OK);
    assert_int_equal(qn_read(s, product, y, sizeof y), QN_OK);
    assert_int_equal(qn_read(s, grad, back, sizeof back), QN_OK);
    check_rows_of_bytes(x, values, y, back);
    qn_release(w);
    qn_scope_end(s);
}

static void test_rows_of_bytes(void **state)
{
    (void)state;
    static const qn__encoding_id kinds[] = {QN__F32,   QN__F16,  QN__BF16, QN__I2_S,
                                            QN__TQ2_0, QN__Q8_0, QN__Q6_K, QN__AFFINE4_G32_F32};
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++) {
        rows_of_bytes(rigs[r].device, NULL);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(rigs[r].device->ops->kind, "cpu"))
                rows_of_bytes(rigs[r].device, &qn__encodings[kinds[i]]);
    }
    close_rigs(rigs, n);
}

static void fails(qn_scope *s, qn_array *a, const char *words)
{
    (void)a;
    assert_int_not_equal(qn_scope_status(s), QN_OK);
    if (!strstr(qn_scope_error(s), words))
        print_error("%s lacks %s\n", qn_scope_error(s), words);
    assert_non_null(strstr(qn_scope_error(s), words));
}

static void test_refusals(void **state)
{
    static float values[N * K];
    qn_device *device = open_device(state);
    const int64_t shape[] = {1, K};
    qn_scope *s = qn_scope_begin(device);
    fails(s,
          qn_linear_with(s, qn_zeros(s, QN_F32, 2, shape), qn_zeros(s, QN_F32, 2, shape), NULL,
                         QN_PRODUCTS_INT8),
          "packed, quantised");
    qn_scope_end(s);
    s = qn_scope_begin(device);
    fails(s,
          qn_linear_with(s, qn_zeros(s, QN_F32, 2, shape), qn_zeros(s, QN_F32, 2, shape), NULL,
                         QN_PRODUCTS_BF16),
          "in bf16");
    qn_scope_end(s);
    s = qn_scope_begin(device);
    fails(s,
          qn_linear_with(s, qn_zeros(s, QN_F32, 2, shape), qn_zeros(s, QN_BF16, 2, shape), NULL,
                         QN_PRODUCTS_F16),
          "in f16");
    qn_scope_end(s);
    s = qn_scope_begin(device); /* rows that are no whole blocks */
    assert_null(qn__packed_new(s, &qn__encodings[QN__Q4_K], 16, 320));
    fails(s, NULL, "320 values are no whole blocks of q4_k, which has 256");
    qn_scope_end(s);
    s = qn_scope_begin(device); /* a packed weight is not differentiated itself */
    qn_array *w = new_packed(s, &qn__encodings[QN__Q8_0], values), *grad;
    qn_array *y = qn_linear(s, qn_zeros(s, QN_F32, 2, shape), w, NULL);
    qn_grad(s, qn_sum(s, qn_reshape(s, y, 1, (const int64_t[]){N}), 0, false), &w, 1, &grad);
    assert_int_not_equal(qn_scope_status(s), QN_OK);
    qn_scope_end(s);
    qn_release(w);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encodings), cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_halves), cmocka_unit_test(test_rows_of_bytes),
        cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
