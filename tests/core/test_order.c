/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of runs: one line for synchronous and asynchronous ones, reads that wait for what they
 * read, and failures that reach everything computed from them.
 */
#include "test.h"

#include "core/scope.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sched.h>
#include <string.h>

/* Some milliseconds of work that depends on nothing. */
static qn_array *long_work(qn_scope *s, int n)
{
    qn_array *x = qn_full(s, QN_F32, 2, (const int64_t[]){300, 300}, 1e-3);
    for (int i = 0; i < n; i++)
        x = qn_matmul(s, x, x);
    return x;
}

/* While another scope's run goes on, making an array waits for nothing, nor does reading it. */
static void test_reads_wait_for_their_own(void **state)
{
    (void)state;
    qn_device *device = open_cpu_threads(1);
    qn_scope *a = qn_scope_begin(device), *b = qn_scope_begin(device);
    atomic_bool cancel = false;
    qn_array *work = long_work(a, 3000);
    a->cancel = &cancel;
    assert_int_equal(qn_eval_async(a, &work, 1), QN_OK);
    float y[2];
    qn_array *x = qn_from_f32(b, (const float[]){3, 4}, 2);
    assert_int_equal(qn_read_f32(b, x, y, 2), QN_OK);
    assert_float_equal(y[1], 4, 0);
    cancel = true; /* had the read waited for the run, this would come too late */
    assert_int_equal(qn_wait(a), QN_CANCELLED);
    qn_scope_end(a);
    qn_scope_end(b);
    qn_device_close(device);
}

/* A scope's second run does not wait for its first, and runs behind it. */
static void test_two_runs_of_a_scope(void **state)
{
    (void)state;
    qn_device *device = open_cpu_threads(2);
    qn_scope *s = qn_scope_begin(device);
    atomic_bool cancel = false;
    qn_array *work = long_work(s, 3000);
    s->cancel = &cancel;
    assert_int_equal(qn_eval_async(s, &work, 1), QN_OK);
    qn_array *y = qn_exp(s, qn_arange(s, QN_F32, 4));
    assert_int_equal(qn_eval_async(s, &y, 1), QN_OK);
    cancel = true;
    assert_int_equal(qn_wait(s), QN_CANCELLED);
    qn_scope_end(s);
    qn_device_close(device);
}

typedef struct pipeline {
    qn_device *device;
    atomic_bool quit;
    atomic_int runs;
} pipeline;

/* Keeps three asynchronous runs in the line. */
static void *keep_busy(void *argument)
{
    pipeline *p = argument;
    qn_scope *scopes[3] = {0};
    for (int k = 0; !p->quit; k = (k + 1) % 3) {
        qn_wait(scopes[k]);
        qn_scope_end(scopes[k]);
        scopes[k] = qn_scope_begin(p->device);
        qn_array *x = long_work(scopes[k], 5);
        qn_eval_async(scopes[k], &x, 1);
        p->runs++;
    }
    for (int k = 0; k < 3; k++)
        qn_scope_end(scopes[k]);
    return NULL;
}

/* A synchronous run takes its turn among another thread's asynchronous ones. */
static void test_turns(void **state)
{
    (void)state;
    pipeline p = {.device = open_cpu_threads(1)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep_busy, &p), 0);
    while (p.runs < 4)
        sched_yield();
    for (int i = 0; i < 5; i++) {
        int before = p.runs;
        qn_scope *s = qn_scope_begin(p.device);
        assert_int_equal(qn_eval(s, qn_add(s, qn_scalar(s, QN_F32, 1), qn_scalar(s, QN_F32, 2))),
                         QN_OK);
        qn_scope_end(s);
        assert_in_range(p.runs - before, 0,
                        8); /* three stood before it; while it waits, some join behind */
    }
    p.quit = true;
    pthread_join(thread, NULL);
    qn_device_close(p.device);
}

/* What a failed run should have computed is neither read nor used, in whatever scope. */
static void test_failures_spread(void **state)
{
    (void)state;
    qn_device *device = open_cpu_threads(1);
    for (int way = 0; way < 4; way++) {
        atomic_bool cancel = false;
        qn_scope *a = qn_scope_begin(device), *b = qn_scope_begin(device),
                 *c = qn_scope_begin(device);
        qn_array *work = long_work(a, 60);
        assert_int_equal(qn_eval_async(a, &work, 1), QN_OK);
        b->cancel = &cancel;
        qn_array *y = qn_exp(b, qn_arange(b, QN_F32, 4));
        assert_int_equal(qn_eval_async(b, &y, 1), QN_OK);
        qn_array *kept = qn_retain(y), *sum = NULL;
        float v[4];
        qn_status status;
        if (way) { /* recorded, perhaps submitted, before it is known that the other fails */
            sum = qn_add(c, kept, qn_scalar(c, QN_F32, 1));
            if (way == 3)
                assert_int_equal(qn_eval_async(c, &sum, 1), QN_OK);
        }
        cancel = true;
        if (way == 0)
            status = qn_read_f32(c, kept, v, 4);
        else if (way == 1)
            status = qn_read_f32(c, sum, v, 4);
        else
            status = way == 2 ? qn_eval(c, sum) : qn_wait(c);
        assert_int_equal(status, QN_STATE);
        assert_non_null(strstr(qn_scope_error(c), "a run that failed"));
        assert_int_equal(qn_wait(b), QN_CANCELLED);
        qn_release(kept);
        qn_scope_end(c);
        qn_scope_end(b);
        qn_scope_end(a);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_wait_for_their_own),
        cmocka_unit_test(test_two_runs_of_a_scope),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_failures_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
