/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates in place: what is read beside them, what may still be read after them, what a failure
 * leaves.
 */
#include "test.h"

#include "core/scope.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static qn_array *retained(qn_device *device, const float *values, int64_t n)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *kept = qn_retain(qn_from_f32(s, values, n));
    assert_non_null(kept);
    qn_scope_end(s);
    return kept;
}

static void expect(qn_scope *s, qn_array *a, const float *want, size_t n)
{
    float y[16];
    if (qn_read_f32(s, a, y, n) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    for (size_t i = 0; i < n; i++)
        assert_float_equal(y[i], want[i], 0);
}

static const float eight[] = {0, 1, 2, 3, 4, 5, 6, 7};

/* 0: computed in the same plan; 1: donated; 2: evaluated before. */
static qn_array *base_of(qn_scope *s, int way)
{
    if (way == 1)
        return qn_donate(s, retained(qn_scope_device(s), eight, 8));
    qn_array *y = qn_multiply(s, qn_from_f32(s, eight, 8), qn_scalar(s, QN_F32, 1));
    if (way == 2)
        assert_int_equal(qn_eval(s, y), QN_OK);
    return y;
}

/* The update reads what it overwrites. Expected by hand, from y as it was before. */
static void test_update_from_itself(void **state)
{
    qn_device *device = open_device(state);
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 0};
    for (int way = 0; way < 3; way++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *y = base_of(s, way);
        qn_array *z = qn_slice_update(s, y, qn_slice(s, y, 0, 0, 7, 1), (const int64_t[]){1});
        expect(s, z, (const float[]){0, 0, 1, 2, 3, 4, 5, 6}, 8);
        y = base_of(s, way);
        z = qn_slice_update(s, y, qn_flip(s, y, 0), (const int64_t[]){0});
        expect(s, z, (const float[]){7, 6, 5, 4, 3, 2, 1, 0}, 8);
        y = base_of(s, way);
        z = qn_scatter_add(s, y, qn_from_i32(s, ids, 8), y);
        expect(s, z, (const float[]){7, 1, 3, 5, 7, 9, 11, 13}, 8);
        y = base_of(s, way);
        z = qn_slice_update_at(s, y, qn_slice(s, y, 0, 4, 8, 1),
                               qn_from_i32(s, (const int32_t[]){2}, 1));
        expect(s, z, (const float[]){0, 1, 4, 5, 6, 7, 6, 7}, 8);
        qn_scope_end(s);
    }
    qn_device_close(device);
}

/* The places come from the array that is updated. */
static void test_own_places(void **state)
{
    qn_device *device = open_device(state);
    for (int way = 0; way < 2; way++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *y = qn_from_i32(s, (const int32_t[]){1, 2, 3, 0}, 4);
        if (way) {
            qn_array *kept = qn_retain(y);
            qn_scope_end(s);
            s = qn_scope_begin(device);
            y = qn_donate(s, kept);
        } else {
            y = qn_multiply(s, y, qn_scalar(s, QN_I32, 1));
        }
        qn_array *z = qn_scatter(s, y, y, qn_arange(s, QN_I32, 4), 0, QN_SCATTER_SET);
        expect(s, z, (const float[]){3, 0, 1, 2}, 4);
        qn_scope_end(s);
    }
    qn_device_close(device);
}

/* A view that is a target beside the update of its base is not lost; what was overwritten cannot be
 * kept. */
static void test_targets_that_stay(void **state)
{
    qn_device *device = open_device(state);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_donate(s, retained(device, eight, 8)), *view = qn_slice(s, x, 0, 1, 3, 1);
    qn_array *nines = qn_full(s, QN_F32, 1, (const int64_t[]){8}, 9);
    qn_array *y = qn_slice_update(s, x, nines, (const int64_t[]){0}), *targets[] = {view, y};
    assert_int_equal(qn_eval_many(s, targets, 2), QN_OK);
    expect(s, view, (const float[]){1, 2}, 2);
    expect(s, y, (const float[]){9, 9, 9, 9, 9, 9, 9, 9}, 8);
    x = qn_donate(s, retained(device, eight, 8));
    view = qn_slice(s, x, 0, 1, 3, 1);
    y = qn_slice_update(s, x, nines, (const int64_t[]){0});
    assert_int_equal(qn_eval(s, y), QN_OK);
    assert_null(qn_retain(view)); /* it would show the new values */
    assert_int_equal(qn_scope_status(s), QN_STATE);
    assert_non_null(strstr(qn_scope_error(s), "overwritten"));
    qn_scope_end(s);
    qn_device_close(device);
}

/* An update through a reshaped view of a donated array is in place. */
static void test_update_through_view(void **state)
{
    qn_device *device = open_device(state);
    qn_array *kept = retained(device, eight, 8);
    for (int step = 0; step < 3; step++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_reshape(s, qn_donate(s, kept), 2, (const int64_t[]){2, 4});
        qn_array *part = qn_full(s, QN_F32, 2, (const int64_t[]){1, 4}, step);
        qn_array *y = qn_slice_update(s, x, part, (const int64_t[]){1, 0});
        y = qn_reshape(s, y, 1, (const int64_t[]){8});
        assert_int_equal(qn_eval(s, y), QN_OK);
        kept = qn_retain(y);
        assert_non_null(kept);
        float f = (float)step;
        expect(s, y, (const float[]){0, 1, 2, 3, f, f, f, f}, 8);
        qn_scope_end(s);
    }
    assert_int_equal(plans_of(device).donation_copies, 0);
    qn_release(kept);
    qn_device_close(device);
}

/* A step that is refused before a kernel has run leaves what was given to it. */
static void test_refused_step(void **state)
{
    qn_device *device = open_device(state);
    qn_device_set_memory_limit(device, 8 << 20);
    const int64_t large = 4 << 20;
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_donate(s, retained(device, eight, 8));
    qn_array *loss = qn_sum(s, qn_exp(s, qn_full(s, QN_F32, 1, &large, 0)), 0, false);
    qn_array *sorted = qn_sum(
        s, qn_sort(s, qn_exp(s, qn_add(s, qn_arange(s, QN_F32, large), loss)), 0, false), 0, false);
    assert_int_equal(qn_eval(s, qn_subtract(s, x, sorted)), QN_LIMIT);
    qn_array *kept = qn_retain(x);
    assert_non_null(kept);
    qn_scope_end(s);
    s = qn_scope_begin(device);
    expect(s, kept, eight, 8);
    x = qn_donate(s, kept);
    qn_flag cancel = true; /* found at its turn, before the first kernel */
    s->cancel = &cancel;
    assert_int_equal(qn_eval(s, qn_add(s, x, x)), QN_CANCELLED);
    kept = qn_retain(x);
    qn_scope_end(s);
    s = qn_scope_begin(device);
    expect(s, kept, eight, 8);
    qn_scope_end(s);
    qn_release(kept);
    qn_device_close(device);
}

/* Another thread gives its reference back at any moment; a plan that overwrites is never kept under
 * the key of a graph that must not. */
typedef struct releaser {
    _Atomic(qn_array *) given;
    atomic_int delay;
    atomic_bool quit;
} releaser;

static void *release_late(void *argument)
{
    releaser *r = argument;
    while (!r->quit) {
        qn_array *a = atomic_exchange(&r->given, NULL);
        for (volatile int i = 0; a && i < r->delay; i++)
            ;
        qn_release(a);
    }
    return NULL;
}

static qn_status update_and_long_chain(qn_scope *s, qn_array *x, int id)
{
    qn_array *z = qn_from_f32(s, (const float[]){.1f}, 1);
    qn_array *first = qn_full(s, QN_F32, 1, (const int64_t[]){1}, -1);
    qn_array *y = qn_slice_update(s, qn_donate(s, x), first, (const int64_t[]){0});
    for (int i = 0; i < 500 + id; i++) /* another plan for each id, which takes a while to make */
        z = qn_sum(s, z, 0, true);
    qn_array *targets[] = {y, z};
    return qn_eval_many(s, targets, 2);
}

static void test_release_while_planning(void **state)
{
    (void)state;
    qn_device *device = open_cpu_threads(1);
    releaser r = {.quit = false};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, release_late, &r), 0);
    for (int id = 0; id < 200; id++) {
        r.delay = id * 977 % 60000;
        for (int stays = 0; stays < 2; stays++) {
            qn_array *x = retained(device, eight, 4), *other = qn_retain(x);
            qn_scope *s = qn_scope_begin(device);
            if (!stays)
                atomic_store(&r.given, other);
            assert_int_equal(update_and_long_chain(s, x, id), QN_OK);
            qn_scope_end(s);
            while (atomic_load(&r.given))
                ;
            if (!stays)
                continue;
            s = qn_scope_begin(device);
            expect(s, other, eight, 4);
            qn_scope_end(s);
            qn_release(other);
        }
    }
    r.quit = true;
    pthread_join(thread, NULL);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_update_from_itself), cmocka_unit_test(test_own_places),
        cmocka_unit_test(test_targets_that_stay),  cmocka_unit_test(test_update_through_view),
        cmocka_unit_test(test_refused_step),       cmocka_unit_test(test_release_while_planning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
