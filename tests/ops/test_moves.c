/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that move elements without computing: views, concatenate, take, updates. Values are
 * consecutive numbers, so a wrong place shows; every result is compared with plain index
 * arithmetic.
 */
#include "ops/ops_test.h"

static const qn_dtype types[] = {QN_BOOL, QN_I8, QN_U16, QN_BF16, QN_I32, QN_F32, QN_F64, QN_U64};
enum { N_TYPES = sizeof types / sizeof *types };

static host numbered(qn_dtype t, int ndim, const int64_t *shape)
{
    host h = new_host(t, ndim, shape);
    for (size_t i = 0; i < h.n; i++)
        h.v[i] = t == QN_BOOL ? i % 3 == 1 : (double)(i % 120);
    return h;
}

static void expect(qn_scope *s, qn_array *y, const host *want, const char *what)
{
    char full[120];
    snprintf(full, sizeof full, "%s of %s", what, qn_dtype_name(want->dtype));
    void *raw = get(s, y, want->dtype, want->ndim, want->shape, full);
    check_values(raw, want->dtype, want->v, want->n, 0, 0, full);
    free(raw);
}

/* Runs `check` for each device, type and layout. */
static void everywhere(void (*check)(qn_scope *, qn_dtype, layout))
{
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++)
        for (int t = 0; t < N_TYPES; t++)
            for (int l = 0; l < N_LAYOUTS; l++) {
                qn_scope *s = qn_scope_begin(rigs[r].device);
                check(s, types[t], (layout)l);
                if (qn_scope_status(s) != QN_OK)
                    fail_msg("%s", qn_scope_error(s));
                qn_scope_end(s);
            }
    close_rigs(rigs, n);
}

/* ---- views
 * --------------------------------------------------------------------------------------------- */

static void check_transposes(qn_scope *s, qn_dtype t, layout how)
{
    host x = numbered(t, 3, (const int64_t[]){3, 4, 5});
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    qn_array *a = put(s, &x, how);
    for (int o = 0; o < 6; o++) {
        const int *p = orders[o];
        host y = new_host(t, 3, (const int64_t[]){x.shape[p[0]], x.shape[p[1]], x.shape[p[2]]});
        size_t at = 0, step[3] = {20, 5, 1};
        for (size_t i = 0; i < (size_t)y.shape[0]; i++)
            for (size_t j = 0; j < (size_t)y.shape[1]; j++)
                for (size_t k = 0; k < (size_t)y.shape[2]; k++)
                    y.v[at++] = x.v[i * step[p[0]] + j * step[p[1]] + k * step[p[2]]];
        expect(s, qn_transpose(s, a, p), &y, "transpose");
        expect(s, qn_contiguous(s, qn_transpose(s, a, p)), &y, "contiguous");
        qn_array *flat = qn_reshape(s, qn_transpose(s, a, p), 1, (const int64_t[]){-1});
        y.ndim = 1;
        y.shape[0] = 60;
        expect(s, flat, &y, "reshape of a transpose");
        free(y.v);
    }
    host back = x;
    expect(s, qn_swap_axes(s, qn_swap_axes(s, a, 0, -1), 2, 0), &back, "swap_axes twice");
    free(x.v);
}

static void test_transposes(void **state)
{
    (void)state;
    everywhere(check_transposes);
}

/* Every way to write 24 elements as one to four axes. */
static void check_reshapes(qn_scope *s, qn_dtype t, layout how)
{
    host x = numbered(t, 3, (const int64_t[]){2, 3, 4}), y = x;
    qn_array *a = put(s, &x, how);
    for (int64_t p = 1; p <= 24; p++)
        for (int64_t q = 1; 24 % p == 0 && q <= 24 / p; q++) {
            if (24 / p % q)
                continue;
            y.ndim = 4;
            memcpy(y.shape, (int64_t[]){p, q, 1, 24 / p / q}, 4 * sizeof *y.shape);
            expect(s, qn_reshape(s, a, 4, y.shape), &y, "reshape");
            expect(s, qn_reshape(s, a, 4, (const int64_t[]){p, -1, 1, 24 / p / q}), &y,
                   "reshape, -1");
        }
    y.ndim = 4;
    memcpy(y.shape, (int64_t[]){2, 1, 3, 4}, 4 * sizeof *y.shape);
    expect(s, qn_expand_dims(s, a, 1), &y, "expand_dims");
    expect(s, qn_expand_dims(s, a, -3), &y, "expand_dims");
    expect(s, qn_squeeze(s, qn_expand_dims(s, a, 1), -3), &x, "squeeze");
    free(x.v);
}

static void test_reshapes(void **state)
{
    (void)state;
    everywhere(check_reshapes);
}

/* Python's slices along one axis of [3, 7, 2]. */
static void check_slices(qn_scope *s, qn_dtype t, layout how)
{
    static const int64_t cases[][3] = {
        {0, 7, 1},  {1, 6, 2}, {-3, INT64_MAX, 1},        {-100, 100, 3}, {5, 2, 1},
        {0, -1, 1}, {6, 7, 5}, {0, INT64_MAX, INT64_MAX}, {2, 6, 4}};
    host x = numbered(t, 3, (const int64_t[]){3, 7, 2});
    qn_array *a = put(s, &x, how);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t start = cases[c][0], stop = cases[c][1], step = cases[c][2], n = 0, at[7];
        start = start < -7 ? 0 : start < 0 ? start + 7 : start;
        stop = stop < 0 ? stop + 7 : stop > 7 ? 7 : stop;
        for (int64_t i = start; i<stop; i = step> 7 ? 7 : i + step)
            at[n++] = i;
        host y = new_host(t, 3, (const int64_t[]){3, n, 2});
        for (size_t i = 0; i < y.n; i++)
            y.v[i] = x.v[i / 2 / (size_t)n * 14 + (size_t)at[i / 2 % (size_t)n] * 2 + i % 2];
        expect(s, qn_slice(s, a, 1, cases[c][0], cases[c][1], step), &y, "slice");
        free(y.v);
    }
    free(x.v);
}

static void test_slices(void **state)
{
    (void)state;
    everywhere(check_slices);
}

static void check_broadcasts(qn_scope *s, qn_dtype t, layout how)
{
    host x = numbered(t, 2, (const int64_t[]){3, 1}),
         y = new_host(t, 3, (const int64_t[]){2, 3, 5});
    for (size_t i = 0; i < y.n; i++)
        y.v[i] = x.v[i / 5 % 3];
    qn_array *wide = qn_broadcast_to(s, put(s, &x, how), 3, y.shape);
    expect(s, wide, &y, "broadcast_to");
    expect(s, qn_contiguous(s, wide), &y, "contiguous of a broadcast");
    free(x.v);
    free(y.v);
}

static void test_broadcasts(void **state)
{
    (void)state;
    everywhere(check_broadcasts);
}

/* ---- concatenate
 * ---------------------------------------------------------------------------------------- */

static void check_concatenate(qn_scope *s, qn_dtype t, layout how)
{
    for (int axis = 0; axis < 2; axis++) {
        int64_t sizes[] = {2, 0, 1, 5};
        host parts[4];
        qn_array *in[4];
        for (int k = 0; k < 4; k++) {
            int64_t shape[] = {3, 4};
            shape[axis] = sizes[k];
            parts[k] = numbered(t, 2, shape);
            for (size_t i = 0; i < parts[k].n && t != QN_BOOL; i++)
                parts[k].v[i] += 20 * k;
            in[k] = put(s, &parts[k], (layout)((how + k) % N_LAYOUTS));
        }
        host y = new_host(t, 2, axis ? (const int64_t[]){3, 8} : (const int64_t[]){8, 4});
        for (int64_t i = 0; i < y.shape[0]; i++)
            for (int64_t j = 0; j < y.shape[1]; j++) {
                int64_t at = axis ? j : i;
                int k = at < 2 ? 0 : at < 3 ? 2 : 3;
                at -= k == 0 ? 0 : k == 2 ? 2 : 3;
                y.v[i * y.shape[1] + j] =
                    parts[k].v[axis ? i * parts[k].shape[1] + at : at * parts[k].shape[1] + j];
            }
        expect(s, qn_concatenate(s, in, 4, axis - 2), &y, "concatenate");
        free(y.v);
        for (int k = 0; k < 4; k++)
            free(parts[k].v);
    }
}

static void test_concatenate(void **state)
{
    (void)state;
    everywhere(check_concatenate);
}

/* ---- by index
 * ------------------------------------------------------------------------------------------- */

/* Indices outside the axis give zeros, also those that only a 64-bit type holds. */
static void check_take(qn_scope *s, qn_dtype t, layout how)
{
    int64_t ids[] = {4, 0, -1, 2, 5, 4, 1ll << 32, INT64_MIN};
    uint8_t small[] = {4, 0, 255, 2, 5, 4, 200, 128};
    uint64_t large[] = {4, 0, UINT64_MAX, 2, 5, 4, 1ull << 32, 1ull << 63};
    host x = numbered(t, 2, (const int64_t[]){5, 3}),
         y = new_host(t, 3, (const int64_t[]){2, 4, 3});
    for (size_t i = 0; i < x.n && t != QN_BOOL; i++)
        x.v[i] += 1;
    for (size_t i = 0; i < 24; i++)
        y.v[i] = ids[i / 3] >= 0 && ids[i / 3] < 5 ? x.v[(size_t)ids[i / 3] * 3 + i % 3] : 0;
    qn_array *a = put(s, &x, how);
    qn_array *by[] = {qn_from(s, QN_I64, 2, (const int64_t[]){2, 4}, ids),
                      qn_from(s, QN_U8, 2, (const int64_t[]){2, 4}, small),
                      qn_from(s, QN_U64, 2, (const int64_t[]){2, 4}, large)};
    for (int k = 0; k < 3; k++)
        expect(s, qn_take(s, a, by[k], 0), &y, "take");
    host z = new_host(t, 2, (const int64_t[]){5, 2}); /* axis 1 */
    for (size_t i = 0; i < 10; i++)
        z.v[i] = x.v[i / 2 * 3 + (i % 2 ? 0 : 2)];
    expect(s, qn_take(s, a, qn_from_i32(s, (int32_t[]){2, 0}, 2), 1), &z, "take along axis 1");
    host w = new_host(t, 1, (const int64_t[]){5});
    int32_t columns[] = {2, 0, 3, -7, 1};
    for (int i = 0; i < 5; i++)
        w.v[i] = columns[i] >= 0 && columns[i] < 3 ? x.v[i * 3 + columns[i]] : 0;
    expect(s, qn_take_along_last(s, a, qn_from_i32(s, columns, 5)), &w, "take_along_last");
    host none = new_host(t, 2, (const int64_t[]){0, 3});
    expect(s, qn_take(s, a, qn_from_i32(s, columns, 0), 0), &none, "take of nothing");
    free(none.v);
    free(x.v);
    free(y.v);
    free(z.v);
    free(w.v);
}

static void test_take(void **state)
{
    (void)state;
    everywhere(check_take);
}

/* ---- updates
 * --------------------------------------------------------------------------------------------- */

static void check_slice_update(qn_scope *s, qn_dtype t, layout how)
{
    host x = numbered(t, 2, (const int64_t[]){4, 6}), u = numbered(t, 2, (const int64_t[]){2, 3}),
         y = x;
    qn_array *a = put(s, &x, how);
    qn_array *r = qn_slice_update(s, a, put(s, &u, how), (const int64_t[]){1, 2});
    y.v = malloc(x.n * sizeof *y.v);
    memcpy(y.v, x.v, x.n * sizeof *y.v);
    for (int i = 0; i < 6; i++)
        y.v[(1 + i / 3) * 6 + 2 + i % 3] = u.v[i];
    expect(s, r, &y, "slice_update");
    expect(s, a, &x, "what slice_update read"); /* was not donated */
    free(x.v);
    free(u.v);
    free(y.v);
}

static void test_slice_update(void **state)
{
    (void)state;
    everywhere(check_slice_update);
}

static void check_scatter_add(qn_scope *s, qn_dtype t, layout how)
{
    if (t != QN_F32 && t != QN_F64 && t != QN_BF16)
        return;
    host x = numbered(t, 2, (const int64_t[]){4, 3}), u = numbered(t, 2, (const int64_t[]){6, 3});
    int32_t ids[] = {3, 0, 3, -1, 4, 3};
    host y = new_host(t, 2, x.shape);
    memcpy(y.v, x.v, x.n * sizeof *y.v);
    for (int i = 0; i < 18; i++)
        if (ids[i / 3] >= 0 && ids[i / 3] < 4)
            y.v[ids[i / 3] * 3 + i % 3] += u.v[i];
    qn_array *r = qn_scatter_add(s, put(s, &x, how), qn_from_i32(s, ids, 6), put(s, &u, how));
    expect(s, r, &y, "scatter_add");
    free(x.v);
    free(u.v);
    free(y.v);
}

static void test_scatter_add(void **state)
{
    (void)state;
    everywhere(check_scatter_add);
}

/* Large enough to be cut among threads. */
static void test_large(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    host x = numbered(QN_F32, 2, (const int64_t[]){301, 203}), y = new_host(QN_F32, 2, x.shape);
    for (size_t i = 0; i < x.n; i++)
        y.v[i] = x.v[(300 - i / 203) * 203 + i % 203];
    host wide = new_host(QN_F32, 2, (const int64_t[]){301, 406});
    for (size_t i = 0; i < wide.n; i++)
        wide.v[i] =
            i % 406 < 203 ? x.v[i / 406 * 203 + i % 406] : y.v[i / 406 * 203 + i % 406 - 203];
    for (int r = 0; r < n; r++)
        for (int l = 0; l < N_LAYOUTS; l++) {
            qn_scope *s = qn_scope_begin(rigs[r].device);
            qn_array *a = put(s, &x, (layout)l);
            qn_array *down = qn_subtract(s, qn_scalar(s, QN_I32, 300), qn_arange(s, QN_I32, 301));
            qn_array *flipped = qn_take(s, a, down, 0);
            expect(s, flipped, &y, "large take");
            expect(s, qn_concatenate(s, (qn_array *[]){a, flipped}, 2, 1), &wide,
                   "large concatenate");
            qn_scope_end(s);
        }
    close_rigs(rigs, n);
    free(x.v);
    free(y.v);
    free(wide.v);
}

/* ---- errors
 * -----------------------------------------------------------------------------------------------
 */

static void refuse(qn_device *device, qn_array *(*f)(qn_scope *, qn_array *), const char *message)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn_zeros(s, QN_F32, 2, (const int64_t[]){2, 3});
    assert_non_null(f(s, a));
    assert_int_equal(qn_scope_status(s), QN_INVALID);
    assert_string_equal(qn_scope_error(s), message);
    qn_scope_end(s);
}

static qn_array *bad_reshape(qn_scope *s, qn_array *a)
{
    return qn_reshape(s, a, 1, (const int64_t[]){7});
}
static qn_array *bad_axis(qn_scope *s, qn_array *a)
{
    return qn_slice(s, a, 2, 0, 1, 1);
}
static qn_array *bad_order(qn_scope *s, qn_array *a)
{
    return qn_transpose(s, a, (int[]){0, 0});
}
static qn_array *bad_squeeze(qn_scope *s, qn_array *a)
{
    return qn_squeeze(s, a, 0);
}
static qn_array *bad_take(qn_scope *s, qn_array *a)
{
    return qn_take(s, a, a, 0);
}
static qn_array *bad_update(qn_scope *s, qn_array *a)
{
    return qn_slice_update(s, a, a, (const int64_t[]){0, 1});
}

static void test_refusals(void **state)
{
    qn_device *device = open_device(state);
    refuse(device, bad_reshape, "reshape: [2, 3] f32 and [7] f32: element counts differ");
    refuse(device, bad_axis, "slice: [2, 3] f32 has no axis 2");
    refuse(device, bad_order, "transpose: [2, 3] f32: the order is not a permutation");
    refuse(device, bad_squeeze, "squeeze: [2, 3] f32: the axis is longer than 1");
    refuse(device, bad_take, "take: [2, 3] f32 and [2, 3] f32: indices must be integers");
    refuse(device, bad_update,
           "slice_update: [2, 3] f32 and [2, 3] f32: the update does not lie inside");
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transposes),   cmocka_unit_test(test_reshapes),
        cmocka_unit_test(test_slices),       cmocka_unit_test(test_broadcasts),
        cmocka_unit_test(test_concatenate),  cmocka_unit_test(test_take),
        cmocka_unit_test(test_slice_update), cmocka_unit_test(test_scatter_add),
        cmocka_unit_test(test_large),        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
