/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints: gradients have the bits that they have without, of chains, of stretches with several
 * results and of arrays inside of one; they can be differentiated again, and need less memory.
 */
#include "test.h"

#include "quern/ops.h"

#include <math.h>
#include <string.h>

enum { N = 24, LAYERS = 5, MOST = 4, ROUNDS = 200 };

static qn_array *random_array(qn_scope *s, int64_t rows, int64_t columns, uint64_t seed)
{
    return qn_random_normal(s, qn_random_key(s, seed), QN_F32, 2, (const int64_t[]){rows, columns});
}

static void begin(qn_scope *s, bool checkpoint)
{
    if (checkpoint)
        qn_checkpoint_begin(s);
}

static void end(qn_scope *s, bool checkpoint)
{
    if (checkpoint)
        qn_checkpoint_end(s);
}

static qn_array *total(qn_scope *s, qn_array *x)
{
    return qn_sum(s, qn_reshape(s, x, 1, (const int64_t[]){qn_array_elements(x)}), 0, false);
}

/* A step of a random program over a few arrays [N, N]: one of them is replaced. */
static qn_array *random_step(qn_scope *s, qn_array *const *x, uint64_t *seed)
{
    double which = (test_random(seed) + 1) * 5;
    qn_array *a = x[(int)((test_random(seed) + 1) * 2)], *b = x[(int)((test_random(seed) + 1) * 2)];
    switch ((int)which) {
    case 0: return qn_tanh(s, qn_add(s, a, b));
    case 1: return qn_multiply(s, qn_sigmoid(s, a), b);
    case 2: return qn_matmul(s, a, qn_multiply(s, b, qn_scalar(s, QN_F32, 0.1)));
    case 3: return qn_subtract(s, a, qn_transpose(s, b, (const int[]){1, 0}));
    case 4: return qn_softmax(s, a, -1);
    case 5:
        return qn_concatenate(
            s, (qn_array *[]){qn_slice(s, a, 0, 0, N / 2, 1), qn_slice(s, b, 0, N / 2, N, 1)}, 2,
            0);
    case 6: return qn_maximum(s, a, b);
    case 7: return qn_rms_norm(s, a, NULL, 1e-5);
    case 8: return qn_silu(s, a);
    default: return qn_add(s, a, qn_take(s, b, qn_arange(s, QN_I32, N), 0));
    }
}

/* Gradients of a random program, with stretches of random length or without. One variable is made
 * in the midst of a stretch. */
static void random_gradients(qn_device *device, uint64_t seed, bool checkpoint, bool twice,
                             float *out)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *x[MOST], *wrt[MOST + 1], *grads[MOST + 1];
    for (int i = 0; i < MOST; i++)
        x[i] = wrt[i] = random_array(s, N, N, seed * MOST + (uint64_t)i);
    bool open = false;
    int steps = 12 + (int)(seed % 9), inner = (int)(seed % 7) + 2;
    wrt[MOST] = x[0];
    for (int i = 0; i < steps; i++) {
        bool turn = test_random(&seed) > 0.2;
        if (turn && open)
            end(s, checkpoint);
        if (turn)
            begin(s, checkpoint);
        open |= turn;
        qn_array *next = random_step(s, x, &seed);
        x[i % MOST] = next;
        if (i == inner)
            wrt[MOST] = next;
    }
    if (open)
        end(s, checkpoint);
    qn_array *loss = total(s, qn_add(s, qn_multiply(s, x[0], x[1]), qn_add(s, x[2], x[3])));
    if (qn_grad(s, loss, wrt, MOST + 1, grads) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    if (twice) {
        loss = total(s, qn_square(s, qn_add(s, grads[0], grads[1])));
        assert_int_equal(qn_grad(s, loss, wrt, MOST, grads), QN_OK);
    }
    for (int i = 0; i <= MOST; i++)
        if (qn_read(s, grads[i], out + i * N * N, N * N * sizeof *out) != QN_OK)
            fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
}

/* Of two vectors, over the length of the second one. */
static double distance(const float *x, const float *y, int n)
{
    double apart = 0, length = 0;
    for (int i = 0; i < n; i++) {
        apart += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        length += (double)y[i] * (double)y[i];
    }
    return sqrt(apart / (length + 1e-30));
}

/* Gradients of gradients add up in another order. */
static void test_random_programs(void **state)
{
    static float want[(MOST + 1) * N * N], got[(MOST + 1) * N * N];
    qn_device *device = open_cpu(state);
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        bool twice = seed % 4 == 0;
        random_gradients(device, seed, false, twice, want);
        random_gradients(device, seed, true, twice, got);
        if (twice ? distance(got, want, MOST * N * N) > 1e-6 : memcmp(want, got, sizeof want) != 0)
            fail_msg("program %d%s: other gradients", (int)seed, twice ? ", twice" : "");
    }
    qn_device_close(device);
}

/* A variable that is made in a stretch, of nothing outside of it. */
static void test_inside(void **state)
{
    qn_device *device = open_cpu(state);
    qn_scope *s = qn_scope_begin(device);
    float got[4];
    qn_array *x = qn_from_f32(s, (float[]){1, 2, 3, 4}, 4), *g;
    qn_checkpoint_begin(s);
    qn_array *w = qn_arange(s, QN_F32, 4), *y = qn_multiply(s, x, qn_square(s, w));
    qn_checkpoint_end(s);
    assert_int_equal(qn_grad(s, total(s, y), &w, 1, &g), QN_OK);
    assert_int_equal(qn_read(s, g, got, sizeof got), QN_OK);
    for (int i = 0; i < 4; i++)
        assert_true(got[i] == (float)(2 * i * (i + 1)));
    qn_scope_end(s);
    qn_device_close(device);
}

/* The most memory that gradients of a deep chain of layers take. */
static size_t peak_of(void **state, bool checkpoint, float *out)
{
    enum { ROWS = 512, WIDE = 64, INNER = 512, DEEP = 16 };
    qn_device *device = open_cpu(state);
    qn_memory_stats stats = QN_INIT(qn_memory_stats);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = random_array(s, ROWS, WIDE, 1), *w[2 * DEEP], *grads[2 * DEEP];
    for (int i = 0; i < DEEP; i++) {
        w[2 * i] = random_array(s, WIDE, INNER, 2 + (uint64_t)i);
        w[2 * i + 1] = random_array(s, INNER, WIDE, 100 + (uint64_t)i);
    }
    qn_eval(s, x);
    for (int i = 0; i < 2 * DEEP; i++)
        qn_eval(s, w[i]);
    for (int i = 0; i < DEEP; i++) {
        begin(s, checkpoint);
        qn_array *h = qn_silu(s, qn_matmul(s, qn_rms_norm(s, x, NULL, 1e-5), w[2 * i]));
        x = qn_add(s, x, qn_matmul(s, h, w[2 * i + 1]));
        end(s, checkpoint);
    }
    assert_int_equal(qn_grad(s, total(s, qn_square(s, x)), w, 2 * DEEP, grads), QN_OK);
    qn_array *sum = total(s, grads[0]);
    for (int i = 1; i < 2 * DEEP; i++)
        sum = qn_add(s, sum, total(s, grads[i]));
    qn_device_reset_peak(device);
    qn_device_memory(device, &stats);
    size_t before = stats.active;
    if (qn_read_f32(s, sum, out, 1) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_device_memory(device, &stats);
    qn_scope_end(s);
    qn_device_close(device);
    return stats.peak - before;
}

static void test_memory(void **state)
{
    float want, got;
    size_t all = peak_of(state, false, &want), less = peak_of(state, true, &got);
    assert_true(want == got);
    if (less > all * 3 / 10)
        fail_msg("%zu bytes with checkpoints, %zu without", less, all);
}

static void test_misuse(void **state)
{
    qn_device *device = open_cpu(state);
    for (int k = 0; k < 3; k++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_ones(s, QN_F32, 0, NULL), *g;
        if (k < 2)
            qn_checkpoint_begin(s);
        qn_array *y = qn_square(s, x);
        if (k == 0)
            qn_checkpoint_begin(s);
        else if (k == 1)
            qn_grad(s, y, &x, 1, &g);
        else
            qn_checkpoint_end(s);
        assert_int_equal(qn_scope_status(s), QN_STATE);
        assert_non_null(strstr(qn_scope_error(s), "checkpoint"));
        qn_checkpoint_begin(s); /* of a scope that has failed: nothing */
        qn_checkpoint_end(s);
        qn_scope_end(s);
    }
    qn_checkpoint_begin(NULL);
    qn_checkpoint_end(NULL);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_inside),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
