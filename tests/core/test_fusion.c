/* SPDX-License-Identifier: Apache-2.0
 *
 * Fusion and plans: random chains of elementwise operations run as one pass over memory and give
 * the bits that evaluating every node by itself gives; asynchronous evaluation; what is not needed
 * does not run.
 */
#include "test.h"

#include "core/device.h"
#include "core/scope.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { MOST_INPUTS = 4, N = 1031 };

/* ---- random chains
 * ---------------------------------------------------------------------------------------- */

typedef struct recipe {
    uint64_t seed;
    qn_dtype type;
    int n_inputs, n_operations;
    bool broadcast; /* inputs of sizes [7, N], [N], [7, 1], [] */
} recipe;

static unsigned below(uint64_t *state, unsigned n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33) % n;
}

static qn_array *operation(qn_scope *s, uint64_t *state, qn_array *a, qn_array *b, bool real)
{
    switch (below(state, real ? 16 : 8)) {
    case 0: return qn_add(s, a, b);
    case 1: return qn_subtract(s, a, b);
    case 2: return qn_multiply(s, a, b);
    case 3: return qn_maximum(s, a, b);
    case 4: return qn_minimum(s, b, a);
    case 5: return qn_where(s, qn_less(s, a, b), b, a);
    case 6: return qn_negative(s, a);
    case 7: return qn_abs(s, a);
    case 8: return qn_divide(s, a, b);
    case 9: return qn_exp(s, a);
    case 10: return qn_silu(s, a);
    case 11: return qn_tanh(s, a);
    case 12: return qn_sqrt(s, qn_abs(s, a));
    case 13: return qn_gelu(s, a);
    case 14: return qn_cast(s, qn_cast(s, a, QN_F16), qn_array_dtype(a));
    default: return qn_sin(s, a);
    }
}

static void make_inputs(qn_scope *s, const recipe *r, qn_array **x)
{
    static const int64_t shapes[MOST_INPUTS][2] = {{7, N}, {N, 0}, {7, 1}, {0, 0}};
    static const int ndims[MOST_INPUTS] = {2, 1, 2, 0};
    static double values[7 * N];
    for (int i = 0; i < r->n_inputs; i++) {
        uint64_t state = r->seed + 77u * (unsigned)i;
        int k = r->broadcast ? i : 0;
        for (int e = 0; e < 7 * N; e++)
            values[e] = r->type == QN_I32 ? (double)(int)(3000 * test_random(&state))
                                          : 2 * test_random(&state);
        qn_array *wide = qn_from(s, QN_F64, ndims[k], shapes[k], values);
        x[i] = qn_cast(s, wide, r->type);
        assert_int_equal(qn_eval(s, x[i]), QN_OK);
    }
}

/* The chain of a recipe; `stepwise` evaluates after each operation. */
static qn_array *chain(qn_scope *s, const recipe *r, qn_array **x, bool stepwise)
{
    uint64_t state = r->seed;
    qn_array *a = x[0];
    for (int i = 0; i < r->n_operations; i++) {
        /* every input is read at least once; else what is newest meets an input or itself */
        qn_array *b = i + 1 < r->n_inputs ? x[i + 1] : x[below(&state, (unsigned)r->n_inputs)];
        a = i + 1 < r->n_inputs ? qn_add(s, a, b) : operation(s, &state, a, b, r->type != QN_I32);
        if (stepwise)
            assert_int_equal(qn_eval(s, a), QN_OK);
    }
    return a;
}

static void *run(qn_device *device, const recipe *r, bool stepwise, qn_plan_stats *used,
                 size_t *bytes)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *x[MOST_INPUTS];
    make_inputs(s, r, x);
    qn_array *y = chain(s, r, x, stepwise);
    qn_plan_stats before = plans_of(device);
    if (qn_eval(s, y) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_plan_stats after = plans_of(device);
    used->steps = after.steps - before.steps;
    used->chain_bytes = after.chain_bytes - before.chain_bytes;
    *bytes = (size_t)qn_array_elements(y) * qn_dtype_size(r->type);
    void *raw = malloc(*bytes);
    assert_int_equal(qn_read(s, y, raw, *bytes), QN_OK);
    qn_scope_end(s);
    return raw;
}

static const qn_dtype types[] = {QN_F32, QN_BF16, QN_F16, QN_F64, QN_I32};

static void check_recipe(qn_device *device, const recipe *r, bool one_pass)
{
    qn_plan_stats fused, apart;
    size_t bytes, bytes_apart;
    void *a = run(device, r, false, &fused, &bytes),
         *b = run(device, r, true, &apart, &bytes_apart);
    assert_int_equal(bytes, bytes_apart);
    if (memcmp(a, b, bytes))
        fail_msg("seed %llu in %s: fusion changed a value", (unsigned long long)r->seed,
                 qn_dtype_name(r->type));
    if (one_pass) {
        static const size_t elements[] = {7 * N, N, 7, 1};
        size_t inputs = 0;
        for (int i = 0; i < r->n_inputs; i++)
            inputs += elements[r->broadcast ? i : 0] * qn_dtype_size(r->type);
        assert_int_equal(fused.steps, 1);
        assert_int_equal(fused.chain_bytes, inputs + bytes);
    }
    free(a);
    free(b);
}

/* Up to 6 operations of up to 2 nodes each: within one pass. */
static void test_short_chains(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads += 2) {
        qn_device *device = open_cpu_threads(threads);
        for (unsigned seed = 1; seed <= 60; seed++)
            for (int t = 0; t < 5; t++) {
                recipe r = {seed, types[t], 1 + (int)(seed % 3), 3 + (int)(seed % 4), seed % 2};
                check_recipe(device, &r, true);
            }
        qn_device_close(device);
    }
}

/* Longer than one program holds, with all broadcasts. */
static void test_long_chains(void **state)
{
    qn_device *device = open_cpu(state);
    for (unsigned seed = 100; seed < 110; seed++)
        for (int t = 0; t < 5; t++) {
            recipe r = {seed, types[t], 4, 30 + (int)seed % 7, true};
            check_recipe(device, &r, false);
        }
    recipe longest = {7, QN_F32, 4, 600, true};
    check_recipe(device, &longest, false);
    qn_device_close(device);
}

/* More inputs than a program takes: the plan falls back to smaller passes. */
static void test_many_inputs(void **state)
{
    qn_device *device = open_cpu(state);
    qn_scope *s = qn_scope_begin(device);
    qn_array *y = qn_from_f32(s, (float[]){0.5f, 1}, 2);
    float want[2] = {0.5f, 1};
    for (int i = 0; i < 60; i++) {
        float v[] = {(float)i, 1.0f / (float)(i + 1)}, w[] = {(float)(i % 3), 2};
        qn_array *a = qn_from_f32(s, v, 2), *b = qn_from_f32(s, w, 2);
        y = qn_where(s, qn_less(s, y, a), qn_add(s, y, b), qn_subtract(s, y, a));
        for (int k = 0; k < 2; k++)
            want[k] = want[k] < v[k] ? want[k] + w[k] : want[k] - v[k];
    }
    float got[2];
    assert_int_equal(qn_read_f32(s, y, got, 2), QN_OK);
    assert_memory_equal(got, want, sizeof got);
    qn_scope_end(s);
    qn_device_close(device);
}

/* ---- what runs
 * ------------------------------------------------------------------------------------------------
 */

static void test_dead_code(void **state)
{
    qn_device *device = open_cpu(state);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from_f32(s, (float[]){1, 2, 3}, 3);
    for (int i = 0; i < 20; i++)
        qn_sum(s, qn_exp(s, x), 0, false); /* nobody asks for these */
    qn_array *y = qn_add(s, x, x);
    assert_int_equal(qn_eval(s, y), QN_OK);
    qn_plan_stats stats = plans_of(device);
    assert_int_equal(stats.steps, 1);
    assert_int_equal(stats.nodes, 2);       /* x and y */
    assert_int_equal(qn_eval(s, y), QN_OK); /* again: there is nothing to do */
    assert_int_equal(plans_of(device).evaluations, 1);
    qn_scope_end(s);
    qn_device_close(device);
}

/* A value that two passes read is computed once; targets are kept. */
static void test_shared_values(void **state)
{
    qn_device *device = open_cpu(state);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from_f32(s, (float[]){1, 2, 3}, 3);
    qn_array *shared = qn_exp(s, x);
    qn_array *both[] = {qn_add(s, shared, x), qn_sum(s, shared, 0, false)};
    assert_int_equal(qn_eval_many(s, both, 2), QN_OK);
    assert_int_equal(plans_of(device).steps, 3); /* exp, add, sum */
    float y[3], sum;
    assert_int_equal(qn_read_f32(s, both[0], y, 3), QN_OK);
    assert_int_equal(qn_read_f32(s, both[1], &sum, 1), QN_OK);
    assert_float_equal(sum, y[0] + y[1] + y[2] - 6, 1e-4);
    qn_scope_end(s);
    qn_device_close(device);
}

/* Parameters, types and structure are all part of what a plan is found by. */
static void test_plans_differ(void **state)
{
    qn_device *device = open_cpu(state);
    float v[] = {1, 2, 3, 4, 5, 6}, y[6];
    for (int round = 0; round < 2; round++) {
        qn_scope *s = qn_scope_begin(device);
        for (int k = 0; k < 3; k++) { /* same graph, another constant */
            qn_array *x = qn_from_f32(s, v, 6);
            assert_int_equal(qn_read_f32(s, qn_multiply(s, x, qn_scalar(s, QN_F32, k + 0.5)), y, 6),
                             QN_OK);
            for (int i = 0; i < 6; i++)
                assert_float_equal(y[i], v[i] * ((float)k + 0.5f), 0);
        }
        for (int axis = 0; axis < 2; axis++) { /* same shapes, another axis */
            qn_array *x = qn_from(s, QN_F32, 2, (const int64_t[]){2, 2}, v);
            qn_array *both[] = {x, x};
            float z[8];
            assert_int_equal(qn_read_f32(s, qn_concatenate(s, both, 2, axis), z, 8), QN_OK);
            for (int i = 0; i < 8; i++)
                assert_float_equal(z[i], axis ? v[i / 4 * 2 + i % 2] : v[i % 4], 0);
        }
        for (int from = 0; from < 3; from++) { /* same shapes, another place */
            qn_array *x = qn_from_f32(s, v, 6);
            qn_array *part =
                qn_add(s, qn_slice(s, x, 0, from, from + 3, 1), qn_scalar(s, QN_F32, 1));
            assert_int_equal(qn_read_f32(s, part, y, 3), QN_OK);
            assert_float_equal(y[0], v[from] + 1, 0);
            qn_array *u = qn_slice_update(s, x, part, (const int64_t[]){from});
            assert_int_equal(qn_read_f32(s, u, y, 6), QN_OK);
            for (int i = 0; i < 6; i++)
                assert_float_equal(y[i], i >= from && i < from + 3 ? v[i] + 1 : v[i], 0);
        }
        qn_scope_end(s);
    }
    assert_true(plans_of(device).hits >= 11); /* the second round made nothing */
    qn_device_close(device);
}

/* ---- asynchronous
 * ------------------------------------------------------------------------------------------------
 */

static void test_async(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        qn_device *device = open_cpu_threads(threads);
        enum { SIZE = 1 << 18 };
        qn_array *kept[8];
        for (int k = 0; k < 8; k++) { /* the scopes end while their work may still run */
            qn_scope *s = qn_scope_begin(device);
            qn_array *x = qn_arange(s, QN_F32, SIZE);
            qn_array *y = qn_add(s, k ? qn_add(s, x, kept[k - 1]) : x, qn_scalar(s, QN_F32, 1));
            assert_int_equal(qn_eval_async(s, &y, 1), QN_OK);
            kept[k] = qn_retain(y);
            assert_non_null(kept[k]);
            qn_scope_end(s);
        }
        qn_scope *s = qn_scope_begin(device);
        float *y = malloc(SIZE * sizeof *y);
        assert_int_equal(qn_read_f32(s, kept[7], y, SIZE), QN_OK);
        for (int i = 0; i < SIZE; i += 999)
            assert_float_equal(y[i], (float)(8 * (i + 1)), 0);
        assert_int_equal(qn_wait(s), QN_OK);
        free(y);
        qn_scope_end(s);
        for (int k = 0; k < 8; k++)
            qn_release(kept[k]);
        for (int i = 0; i < 1000 && memory_of(device).active > device->pool.workspace_size; i++)
            usleep(1000); /* the last run's buffers are released behind its end */
        assert_int_equal(memory_of(device).active, 0);
        qn_device_close(device);
    }
}

/* A second run of a scope does not wait for the first; waiting reports what became of both. */
static void test_async_twice(void **state)
{
    (void)state;
    qn_device *device = open_cpu_threads(2);
    for (int stop = 0; stop < 2; stop++) {
        atomic_bool cancel = stop;
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_exp(s, qn_arange(s, QN_F32, 1 << 16));
        qn_array *y = qn_exp(s, qn_negative(s, qn_arange(s, QN_F32, 9)));
        s->cancel = &cancel;
        assert_int_equal(qn_eval_async(s, &x, 1), QN_OK);
        s->cancel = NULL;
        qn_status second = qn_eval_async(s, &y, 1); /* the first may have failed by now */
        assert_true(second == QN_OK || (stop && second == QN_CANCELLED));
        assert_int_equal(qn_wait(s), stop ? QN_CANCELLED : QN_OK);
        qn_scope_end(s);
    }
    for (int i = 0; i < 1000 && memory_of(device).active > 0; i++)
        usleep(1000);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* What a failed run was to compute cannot be used, whether or not its scope waited. */
static void test_failed_async(void **state)
{
    (void)state;
    qn_device *device = open_cpu_threads(1);
    for (int waits = 1; waits >= 0; waits--) {
        atomic_bool cancel = true;
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_exp(s, qn_arange(s, QN_F32, 100));
        s->cancel = &cancel;
        assert_int_equal(qn_eval_async(s, &x, 1), QN_OK);
        qn_array *kept = qn_retain(x);
        assert_non_null(kept);
        if (waits)
            assert_int_equal(qn_wait(s), QN_CANCELLED);
        qn_scope_end(s);
        s = qn_scope_begin(device);
        float y[100];
        assert_int_equal(qn_eval(s, qn_arange(s, QN_F32, 3)), QN_OK); /* runs behind the other */
        assert_int_equal(qn_read_f32(s, kept, y, 100), QN_STATE);
        assert_non_null(strstr(qn_scope_error(s), "a run that failed"));
        qn_scope_end(s);
        qn_release(kept);
    }
    qn_device_close(device);
}

/* ---- eviction
 * ------------------------------------------------------------------------------------------------------
 */

static void test_eviction(void **state)
{
    qn_device *device = open_cpu(state);
    device->plans.limit = 100 << 10; /* a few plans */
    for (int round = 0; round < 3; round++)
        for (int64_t n = 1; n <= 30; n++) {
            qn_scope *s = qn_scope_begin(device);
            qn_array *x = qn_arange(s, QN_F32, 4);
            for (int64_t i = 0; i < n; i++) /* another graph for each n */
                x = qn_add(s, x, qn_sum(s, x, 0, true));
            float y[4];
            assert_int_equal(qn_read_f32(s, x, y, 4), QN_OK);
            double want = 0, sum = 6;
            for (int64_t i = 0; i < n; i++, sum *= 5)
                want += sum;
            assert_float_equal(y[0] / want, 1, 1e-5);
            qn_scope_end(s);
            qn_plan_stats stats = plans_of(device);
            assert_true(stats.bytes <= (100 << 10) || n > 20); /* the newest may exceed it alone */
        }
    assert_true(plans_of(device).evictions > 30);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_chains),  cmocka_unit_test(test_long_chains),
        cmocka_unit_test(test_many_inputs),   cmocka_unit_test(test_dead_code),
        cmocka_unit_test(test_shared_values), cmocka_unit_test(test_plans_differ),
        cmocka_unit_test(test_async),         cmocka_unit_test(test_async_twice),
        cmocka_unit_test(test_failed_async),  cmocka_unit_test(test_eviction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
