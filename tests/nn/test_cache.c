/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache by itself: what it refuses, whose window counts, and that a commit which fails keeps
 * the old buffers and loses nothing. That sessions get the right bits from it is in tests/generate.
 */
#include "nn/cache.h"
#include "test.h"

#include "base/fail_alloc.h"

#include <string.h>

enum { WIDTH = 16, PIECE = 8 };

static const qn__cache_shape shape = {
    .n_layers = 2, .batch = 1, .heads = 1, .key_dim = WIDTH, .value_dim = WIDTH, .dtype = QN_F32};

static void begin_cache(qn__cache *cache)
{
    qn_error err = {0};
    if (qn__cache_begin(cache, &shape, &err) != QN_OK)
        fail_msg("%s", err.message);
}

/* n positions from `first` on, of each layer; their attention, [1, 1, n, WIDTH], goes to y. */
static qn_status step(qn_device *device, qn__cache *cache, int64_t first, int64_t n,
                      int64_t own_window, float *y, long fail_commit)
{
    qn_scope *s = qn_scope_begin(device);
    const int64_t x_shape[] = {1, 1, n, WIDTH};
    qn_array *x =
        qn_add(s, qn_arange(s, QN_F32, n * WIDTH), qn_scalar(s, QN_F32, (double)first * WIDTH));
    x = qn_sin(s, qn_reshape(s, x, 4, x_shape));
    qn_attention_options o = {.size = sizeof o, .window = own_window};
    qn__cache_step(s, cache, n);
    for (int i = 0; i < shape.n_layers; i++)
        x = qn__cache_attend(s, cache, i, x, x, x, &o);
    int count;
    qn_array *const *targets = qn__cache_targets(s, cache, &count);
    qn_array *all[2 * 2 + 2];
    memcpy(all, targets, (size_t)count * sizeof *all);
    all[count] = x;
    qn_eval_many(s, all, count + 1);
    qn_read_f32(s, x, y, (size_t)(n * WIDTH));
    if (fail_commit >= 0)
        fail_allocation_begin(fail_commit);
    qn__cache_commit(s, cache);
    if (fail_commit >= 0)
        assert_true(fail_allocation_end());
    qn_status status = qn_scope_status(s);
    qn_scope_end(s);
    return status;
}

static void test_too_many(void **state)
{
    qn_device *device = open_cpu(state);
    qn__cache cache;
    float y[(PIECE + 1) * WIDTH];
    begin_cache(&cache);
    qn__cache_set_window(&cache, 0, 20, 0, PIECE);
    assert_int_equal(step(device, &cache, 0, PIECE + 1, 0, y, -1), QN_INVALID);
    assert_int_equal(cache.length, 0);
    assert_int_equal(step(device, &cache, 0, PIECE, 0, y, -1), QN_OK);
    assert_int_equal(cache.length, PIECE);
    qn__cache_end(&cache);
    qn_device_close(device);
}

/* Of the layer's window and the options' the narrower counts. */
static void test_windows(void **state)
{
    static const int64_t windows[][2] = {{5, 0}, {0, 5}, {5, 7}, {7, 5}, {5, 300}};
    qn_device *device = open_cpu(state);
    float first[3 * PIECE * WIDTH], y[3 * PIECE * WIDTH];
    for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) {
        qn__cache cache;
        begin_cache(&cache);
        for (int i = 0; i < shape.n_layers && windows[k][0]; i++)
            qn__cache_set_window(&cache, i, windows[k][0], 0, PIECE);
        for (int at = 0; at < 3 * PIECE; at += PIECE)
            assert_int_equal(step(device, &cache, at, PIECE, windows[k][1], y + at * WIDTH, -1),
                             QN_OK);
        if (k == 0)
            memcpy(first, y, sizeof y);
        assert_memory_equal(y, first, sizeof y);
        qn__cache_end(&cache);
    }
    qn_device_close(device);
}

/* Each allocation of a commit fails: the step can be done again. */
static void test_failed_commit(void **state)
{
    qn_device *device = open_cpu(state);
    float want[PIECE * WIDTH], y[PIECE * WIDTH];
    for (long n = 0; n < 2 * shape.n_layers + 1; n++) {
        qn__cache cache;
        begin_cache(&cache);
        assert_int_equal(step(device, &cache, 0, PIECE, 0, y, -1), QN_OK);
        step(device, &cache, PIECE, PIECE, 0, want, n);
        assert_int_equal(cache.length, PIECE);
        assert_int_equal(step(device, &cache, PIECE, PIECE, 0, y, -1), QN_OK);
        assert_int_equal(cache.length, 2 * PIECE);
        assert_memory_equal(y, want, sizeof y);
        qn__cache_end(&cache);
        assert_int_equal(memory_of(device).active, 0); /* nothing is left */
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_failed_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
