/* SPDX-License-Identifier: Apache-2.0
 *
 * What evaluating costs grows as it should: time with the nodes that are evaluated, memory with
 * what is alive, plans with structures and not with numbers.
 */
#include "test.h"

#include <malloc.h>
#include <time.h>

static double seconds_of(clock_t begun)
{
    return (double)(clock() - begun) / CLOCKS_PER_SEC;
}

static qn_array *small(qn_scope *s)
{
    static const float values[] = {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f};
    return qn_from_f32(s, values, 8);
}

/* 10^5 chained nodes, every other one behind a flip: a second of processor time, with room for
 * sanitizers. */
static void test_long_graph(void **state)
{
    qn_device *device = open_cpu(state);
    clock_t begun = clock();
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = small(s);
    for (int i = 0; i < 50000; i++)
        x = qn_flip(s, qn_sin(s, x), 0);
    assert_int_equal(qn_eval(s, x), QN_OK);
    qn_scope_end(s);
    assert_true(seconds_of(begun) < 5 * PATIENCE);
    qn_device_close(device);
}

/* Processor time for n evaluations of one node each, in one scope. */
static double one_by_one(qn_device *device, int n)
{
    clock_t begun = clock();
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = small(s), *first = qn_reshape(s, x, 2, (const int64_t[]){2, 4});
    qn_array *w = qn_flatten(s, first);
    for (int i = 0; i < n; i++) {
        x = qn_multiply(s, qn_sin(s, x), w); /* reads what was made when the scope began, too */
        assert_int_equal(qn_eval(s, x), QN_OK);
    }
    qn_scope_end(s);
    return seconds_of(begun);
}

static void test_many_evaluations(void **state)
{
    qn_device *device = open_cpu(state);
    one_by_one(device, 500);
    double few = one_by_one(device, 2000), many = one_by_one(device, 32000);
    assert_true(many < 16 * 5 * few + 0.1);
    qn_device_close(device);
}

/* Values that are alive all at once are laid out in time that grows with their number. */
static void test_many_alive(void **state)
{
    qn_device *device = open_cpu(state);
    enum { N = 30000 };
    qn_array **all = malloc(N * sizeof *all);
    clock_t begun = clock();
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = small(s);
    for (int i = 0; i < N; i++)
        all[i] = qn_cumsum(s, x, 0, false, false);
    for (int i = 0; i < N; i++)
        x = qn_add(s, x, all[i]);
    assert_int_equal(qn_eval(s, x), QN_OK);
    qn_scope_end(s);
    assert_true(seconds_of(begun) < 5 * PATIENCE);
    free(all);
    qn_device_close(device);
}

/* A chain that is too large for one program is cut; what stands beside it stays fused. */
static void test_large_chain_beside(void **state)
{
    qn_device *device = open_cpu(state);
    uint64_t steps[2];
    for (int with = 0; with < 2; with++) {
        qn_plan_stats before = plans_of(device);
        qn_scope *s = qn_scope_begin(device);
        qn_array *y = small(s), *z = small(s), *targets[2];
        for (int i = 0; i < 44; i++)
            y = qn_add(s, qn_multiply(s, y, qn_scalar(s, QN_F32, .5)), qn_scalar(s, QN_F32, i));
        for (int i = 0; with && i < 12; i++)
            z = qn_erfinv(s, z);
        for (int i = 0; with && i < 12; i++)
            z = qn_where(s, qn_less(s, z, small(s)), small(s), z);
        targets[0] = y;
        targets[1] = z;
        assert_int_equal(qn_eval_many(s, targets, 2), QN_OK);
        qn_scope_end(s);
        steps[with] = plans_of(device).steps - before.steps;
    }
    assert_int_equal(steps[0], 8); /* 88 nodes in groups of 12 */
    assert_in_range(steps[1], 10, 8 + 12);
    qn_device_close(device);
}

/* A number that changes from step to step is data: no plan is made for it, its value is used. */
static void test_numbers_are_data(void **state)
{
    qn_device *device = open_device(state);
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_I32, QN_U64, QN_BOOL};
    for (int t = 0; t < 5; t++) {
        qn_plan_stats before = {0};
        for (int step = 0; step < 6; step++) {
            qn_scope *s = qn_scope_begin(device);
            qn_array *rate = qn_scalar(s, types[t], types[t] == QN_F16 ? 0.1 * step : step);
            qn_array *y = qn_add(s, qn_multiply(s, small(s), qn_cast(s, rate, QN_F32)),
                                 qn_cast(s, rate, QN_F32));
            float v[8], r = types[t] == QN_BOOL ? step != 0 : (float)step;
            assert_int_equal(qn_read_f32(s, y, v, 8), QN_OK);
            if (types[t] != QN_F16)
                assert_float_equal(v[1], .2f * r + r, 0);
            else if (step == 1)
                assert_float_equal(v[1], .2f * 0.0999755859375f + 0.0999755859375f,
                                   0); /* rounded to f16 */
            qn_scope_end(s);
            if (step == 0)
                before = plans_of(device);
        }
        qn_plan_stats after = plans_of(device);
        assert_int_equal(after.misses, before.misses);
        assert_int_equal(after.hits - before.hits, 5);
    }
    qn_device_close(device);
}

/* u64 numbers of 2^63 and more stay positive, fused or not. */
static void test_large_u64(void **state)
{
    qn_device *device = open_device(state);
    for (int fused = 0; fused < 2; fused++) {
        qn_scope *s = qn_scope_begin(device);
        const int64_t n = 2;
        qn_array *x = qn_full(s, QN_U64, 1, &n, 1e19);
        if (!fused)
            assert_int_equal(qn_eval(s, x), QN_OK);
        float y[2];
        assert_int_equal(qn_read_f32(s, qn_cast(s, x, QN_F32), y, 2), QN_OK);
        assert_float_equal(y[1], 1e19f, 0);
        assert_int_equal(qn_read_f32(s, qn_divide(s, x, qn_scalar(s, QN_U64, 1)), y, 2), QN_OK);
        assert_float_equal(y[0], 1e19f, 0);
        qn_scope_end(s);
    }
    qn_device_close(device);
}

/* The workspace is that of the sizes at hand, not of their buckets; it goes when a lower limit
 * needs it. */
static void test_workspace(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 16; threads *= 4) {
        qn_device *device = open_cpu_threads(threads);
        static const int64_t shape[] = {33, 33, 33, 33}, strided[] = {1 << 20};
        const size_t bytes = 33 * 33 * 33 * 33 * 4;
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_exp(s, qn_full(s, QN_F32, 4, shape, 1));
        x = qn_sum(s, qn_flip(s, x, 0), QN_ALL_AXES, false); /* the value and its turned copy */
        assert_int_equal(qn_eval(s, x), QN_OK);
        assert_in_range(memory_of(device).workspace, 2 * bytes,
                        2 * bytes + ((size_t)threads << 17));
        x = qn_sum(s, qn_flip(s, qn_exp(s, qn_full(s, QN_F32, 1, strided, 1)), 0), 0,
                   false); /* gathered once */
        qn_scope_end(s);
        qn_device_set_memory_limit(device, bytes);
        assert_int_equal(memory_of(device).workspace, 0);
        s = qn_scope_begin(device);
        assert_int_equal(qn_eval(s, qn_exp(s, small(s))), QN_OK);
        qn_scope_end(s);
        qn_device_close(device);
    }
}

/* Sums of strided rows need room for no more than the array, however many threads there are. */
static void test_reduction_scratch(void **state)
{
    (void)state;
    qn_device *device = open_cpu_threads(16);
    qn_scope *s = qn_scope_begin(device);
    const int64_t n = 1 << 20;
    qn_array *x = qn_add(s, qn_arange(s, QN_F32, n), qn_scalar(s, QN_F32, 1));
    assert_int_equal(qn_eval(s, x), QN_OK);
    qn_array *y = qn_sum(s, qn_flip(s, x, 0), 0, false);
    float sum;
    assert_int_equal(qn_read_f32(s, y, &sum, 1), QN_OK);
    assert_float_equal(sum / (0.5 * (double)n * (double)(n + 1)), 1, 1e-5);
    assert_in_range(memory_of(device).workspace, 0, (size_t)n * 4 + (4 << 20));
    qn_scope_end(s);
    qn_device_close(device);
}

/* What is cached and what is in use are never more than what once was in use. */
static void test_cache_is_bounded(void **state)
{
    qn_device *device = open_cpu(state);
    for (int64_t size = 1; size <= 24; size++) {
        qn_scope *s = qn_scope_begin(device);
        const int64_t n = size << 16;
        qn_array *arrays[6];
        for (int i = 0; i < 6; i++)
            arrays[i] = qn_add(s, qn_full(s, QN_U8, 1, &n, i), qn_scalar(s, QN_U8, 1));
        assert_int_equal(qn_eval_many(s, arrays, 6), QN_OK);
        qn_scope_end(s);
        qn_memory_stats m = memory_of(device);
        assert_true(m.active + m.workspace + m.cached <= m.peak);
    }
    qn_device_close(device);
}

/* Plans are counted with their bindings. */
static void test_plan_bytes(void **state)
{
    qn_device *device = open_cpu(state);
    struct mallinfo2 before = mallinfo2();
    for (int i = 1; i <= 60; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = small(s);
        for (int k = 0; k < 40 + i; k++)
            x = qn_add(s, qn_sum(s, x, 0, true), qn_scalar(s, QN_F32, 1));
        assert_int_equal(qn_eval(s, x), QN_OK);
        qn_scope_end(s);
    }
    struct mallinfo2 after = mallinfo2();
    size_t grown = after.uordblks - before.uordblks, counted = plans_of(device).bytes;
    if (after.uordblks) /* zero where a sanitizer has its own allocator */
        assert_in_range(grown, counted / 2, counted + counted / 2 + 100000);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_graph),       cmocka_unit_test(test_many_evaluations),
        cmocka_unit_test(test_many_alive),       cmocka_unit_test(test_large_chain_beside),
        cmocka_unit_test(test_numbers_are_data), cmocka_unit_test(test_large_u64),
        cmocka_unit_test(test_workspace),        cmocka_unit_test(test_reduction_scratch),
        cmocka_unit_test(test_cache_is_bounded), cmocka_unit_test(test_plan_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
