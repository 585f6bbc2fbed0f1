/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading arrays on the host in any type and element by element, and updates at places that are
 * data: they make no new plan and happen in place.
 */
#include "ops/ops_test.h"

static void check_reads(qn_scope *s, qn_dtype from, layout how)
{
    uint64_t seed = 3;
    host h = random_host(from, 3, (const int64_t[]){3, 1, 5}, 60, is_signed(from) ? 0 : 60, &seed);
    qn_array *a = put(s, &h, how);
    for (int t = 0; t < QN_DTYPE_COUNT; t++) {
        qn_dtype to = (qn_dtype)t;
        if (!is_signed(to) && is_signed(from) && is_float(from))
            continue; /* what a cast of a negative float gives is test_casts' affair */
        double want[15];
        for (int i = 0; i < 15; i++)
            want[i] = round_to(h.v[i], to);
        char raw[15 * 8];
        assert_int_equal(qn_read_as(s, a, to, raw, 15), QN_OK);
        check_values(raw, to, want, 15, 0, 0, "read_as");
    }
    qn_cursor *c = qn_cursor_open(s, a);
    assert_non_null(c);
    for (int i = 0; i < 15; i++) {
        assert_true(qn_cursor_next(c));
        assert_int_equal(qn_cursor_index(c)[0], i / 5);
        assert_int_equal(qn_cursor_index(c)[1], 0);
        assert_int_equal(qn_cursor_index(c)[2], i % 5);
        assert_true(qn_cursor_f64(c) == h.v[i]);
        assert_int_equal(qn_cursor_i64(c), (int64_t)h.v[i]);
        assert_true(decode(from, qn_cursor_value(c)) == h.v[i]);
    }
    assert_false(qn_cursor_next(c));
    qn_cursor_close(c);
    free(h.v);
}

static void test_reads(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int t = 0; t < QN_DTYPE_COUNT; t++)
        for (int l = 0; l < N_LAYOUTS; l++) {
            qn_scope *s = qn_scope_begin(rigs[0].device);
            check_reads(s, (qn_dtype)t, (layout)l);
            qn_scope_end(s);
        }
    close_rigs(rigs, n);
}

/* Flipped and broadcast views, scalars, nothing, what fails; a cursor that outlives its scope. */
static void test_views(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    qn_scope *s = qn_scope_begin(rigs[0].device);
    qn_array *flipped = qn_flip(s, qn_arange(s, QN_I32, 4), 0);
    qn_array *wide = qn_broadcast_to(s, flipped, 2, (const int64_t[]){2, 4});
    qn_cursor *c = qn_cursor_open(s, wide), *one = qn_cursor_open(s, qn_scalar(s, QN_F16, 2.5));
    qn_cursor *none = qn_cursor_open(s, qn_zeros(s, QN_F32, 2, (const int64_t[]){3, 0}));
    assert_int_equal(qn_scope_status(s), QN_OK);
    int64_t values[3];
    assert_int_equal(qn_read_i64(s, wide, values, 3), QN_INVALID);
    assert_null(qn_cursor_open(s, wide));
    assert_false(qn_cursor_next(NULL));
    qn_scope_end(s);
    for (int i = 0; i < 8; i++) {
        assert_true(qn_cursor_next(c));
        assert_int_equal(qn_cursor_i64(c), 3 - i % 4);
    }
    assert_false(qn_cursor_next(c));
    assert_true(qn_cursor_next(one) && qn_cursor_f64(one) == 2.5 && !qn_cursor_next(one));
    assert_false(qn_cursor_next(none));
    qn_cursor_close(c), qn_cursor_close(one), qn_cursor_close(none), qn_cursor_close(NULL);
    close_rigs(rigs, n);
}

/* A cache written row by row: one plan, no copy. */
static void test_moving_place(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    enum { ROWS = 9, COLUMNS = 5 };
    qn_scope *s = qn_scope_begin(rigs[0].device);
    qn_array *zeros = qn_zeros(s, QN_F32, 2, (const int64_t[]){ROWS, COLUMNS});
    qn_eval(s, zeros);
    qn_array *cache = qn_retain(zeros);
    qn_scope_end(s);
    qn_plan_stats first = {0};
    for (int32_t i = 0; i < ROWS; i++) {
        s = qn_scope_begin(rigs[0].device);
        float row[COLUMNS];
        for (int k = 0; k < COLUMNS; k++)
            row[k] = (float)(10 * i + k);
        qn_array *u = qn_from(s, QN_F32, 2, (const int64_t[]){1, COLUMNS}, row);
        qn_array *y = qn_slice_update_at(s, qn_donate(s, cache), u,
                                         qn_from_i32(s, (const int32_t[]){i, 0}, 2));
        assert_int_equal(qn_eval(s, y), QN_OK);
        cache = qn_retain(y);
        qn_scope_end(s);
        if (i == 0)
            first = plans_of(rigs[0].device);
    }
    qn_plan_stats last = plans_of(rigs[0].device);
    assert_int_equal(last.misses, first.misses);
    assert_int_equal(last.rebinds, first.rebinds);
    assert_int_equal(last.hits, first.hits + ROWS - 1);
    assert_int_equal(last.donation_copies, 0);
    s = qn_scope_begin(rigs[0].device);
    float all[ROWS * COLUMNS];
    assert_int_equal(qn_read_f32(s, cache, all, ROWS * COLUMNS), QN_OK);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_true(all[i] == (float)(10 * (i / COLUMNS) + i % COLUMNS));
    qn_scope_end(s);
    qn_release(cache);
    close_rigs(rigs, n);
}

/* ---- what devices without a kernel run
 * ------------------------------------------------------------ */

/* The decomposition of a node gives the kernel's values, which test_golden checks. */
static void check_decomposition(qn_scope *s, qn_array *node)
{
    qn_array *plain = qn__ops[node->op]->decompose(s, node);
    const char *name = qn__ops[node->op]->name;
    qn_dtype t = qn_array_dtype(node);
    size_t n = (size_t)qn_array_elements(node);
    void *want = get(s, node, t, node->ndim, node->shape, name);
    void *got = get(s, plain, t, node->ndim, node->shape, name);
    for (size_t i = 0; i < n; i++) {
        size_t at = i * qn_dtype_size(t);
        double a = decode(t, (char *)got + at), w = decode(t, (char *)want + at);
        if (a != w && !(isnan(a) && isnan(w)))
            fail_msg("%s of %s: element %zu is %g, the kernel gives %g", name, qn_dtype_name(t), i,
                     a, w);
    }
    free(want), free(got);
}

static void check_decompositions(qn_scope *s, qn_dtype t, int64_t columns)
{
    uint64_t seed = 5;
    host h = random_host(t, 2, (const int64_t[]){3, columns}, 3, is_signed(t) ? 0 : 3, &seed);
    for (size_t i = 0; i < h.n; i++)
        h.v[i] = is_float(t) && i == 7 ? NAN : trunc(h.v[i]);
    qn_array *x = put(s, &h, PLAIN);
    for (int k = 0; k < 4; k++) {
        check_decomposition(s, qn_cumsum(s, x, -1, k & 1, k & 2));
        check_decomposition(s, qn_cumprod(s, qn_sign(s, x), -1, k & 1, k & 2));
    }
    for (int k = 0; k < 2; k++) {
        check_decomposition(s, qn_cummax(s, x, -1, k));
        check_decomposition(s, qn_cummin(s, x, -1, k));
    }
    static const int32_t starts[][2] = {{0, 0}, {1, 2}, {-4, 100}, {100, -4}};
    for (int k = 0; k < 4; k++) {
        const int64_t sizes[] = {2, columns / 2};
        qn_array *start = qn_from_i32(s, starts[k], 2);
        check_decomposition(s, qn_slice_at(s, x, start, sizes));
        qn_array *u = qn_full(s, t, 2, sizes, 1);
        check_decomposition(s, qn_slice_update_at(s, x, u, start));
    }
    free(h.v);
}

static void test_decompositions(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int t = 0; t < QN_DTYPE_COUNT; t++)
        for (int64_t columns = 1; columns < 12; columns += 5) {
            qn_scope *s = qn_scope_begin(rigs[0].device);
            check_decompositions(s, (qn_dtype)t, columns);
            qn_scope_end(s);
        }
    close_rigs(rigs, n);
}

/* What does not fit is refused with a line that names the operation. */
static void test_refusals(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int k = 0; k < 14; k++) {
        qn_scope *s = qn_scope_begin(rigs[0].device);
        qn_array *x = qn_zeros(s, QN_F32, 2, (const int64_t[]){3, 4}), *i = qn_arange(s, QN_I32, 3);
        const int64_t shape[] = {3, 4}, stride[] = {4, 1}, far[] = {INT64_MAX / 2, 1},
                      minus[] = {-1, 0};
        qn_array *parts[5];
        switch (k) {
        case 0: qn_as_strided(s, x, 2, shape, stride, 1); break;
        case 1: qn_as_strided(s, x, 2, shape, far, 0); break;
        case 2: qn_as_strided(s, x, 2, shape, stride, -1); break;
        case 3: qn_slice(s, x, 0, 0, 3, 0); break;
        case 4: qn_split(s, x, 5, 0, parts); break;
        case 5: qn_pad(s, x, minus, shape, 0); break;
        case 6: qn_slice_at(s, x, i, shape); break;
        case 7: qn_slice_update_at(s, i, x, i); break;
        case 8: qn_take_along(s, x, i, 0); break;
        case 9: qn_scatter_nd(s, x, qn_zeros(s, QN_I32, 2, shape), x, QN_SCATTER_SET); break;
        case 10: qn_topk(s, x, 5, 1, &parts[0], &parts[1]); break;
        case 11: qn_over_axes(s, qn_sum, x, (const int[]){1, -1}, 2, false); break;
        case 12: qn_partition(s, x, 4, -1); break;
        default: qn_stack(s, (qn_array *[]){x, i}, 2, 0); break;
        }
        assert_int_equal(qn_scope_status(s), QN_INVALID);
        qn_scope_end(s);
    }
    close_rigs(rigs, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reads), cmocka_unit_test(test_views),
                                       cmocka_unit_test(test_moving_place),
                                       cmocka_unit_test(test_decompositions),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
