/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that are recorded once: what they give with other arguments, and what they must not do.
 * Expected values are worked out by hand.
 */
#include "test.h"

#include "core/scope.h"

#include <string.h>

typedef struct work {
    int recorded; /* times */
    qn_array *captured;
    enum { SCALE, SHOW, EVALUATE, DONATE, FAIL, NOTHING } what;
} work;

static qn_array *kept(qn_device *device, const float *values, int64_t n)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn_retain(qn_from_f32(s, values, n));
    assert_non_null(a);
    qn_scope_end(s);
    return a;
}

static void expect(qn_device *device, qn_array *a, const float *want, int64_t n)
{
    float y[64];
    qn_scope *s = qn_scope_begin(device);
    assert_int_equal(qn_array_elements(a), n);
    if (qn_read_f32(s, a, y, (size_t)n) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    for (int64_t i = 0; i < n; i++)
        assert_float_equal(y[i], want[i], 0);
    qn_scope_end(s);
}

static qn_function *compile(qn_device *device, qn_recorder *record, work *w, int n_in,
                            const bool *donated, int n_out)
{
    qn_function *f;
    qn_error err = {0};
    if (qn_compile(&f, device, record, w, n_in, donated, n_out, &err) != QN_OK)
        fail_msg("%s", err.message);
    return f;
}

static void call(qn_function *f, qn_array *const *in, qn_array **out)
{
    qn_error err = {0};
    if (qn_call(f, in, out, &err) != QN_OK)
        fail_msg("%s", err.message);
}

/* in[0] in[1] + captured */
static void record_product(void *user, qn_scope *s, qn_array *const *in, qn_array **out)
{
    work *w = user;
    w->recorded++;
    out[0] = qn_add(s, qn_multiply(s, in[0], in[1]), w->captured);
}

static const float one[] = {1}, three[] = {1, 2, 3}, four[] = {5, 6, 7, 8};

/* Other arrays of the same shape record nothing; others do, and the first are still known. An array
 * may be both arguments, or be what the function also has from elsewhere. */
static void test_again(void **state)
{
    qn_device *device = open_device(state);
    qn_array *a = kept(device, three, 3), *b = kept(device, four, 3), *c = kept(device, four, 4);
    qn_array *scalar = kept(device, one, 1), *y;
    work w = {.captured = scalar};
    qn_function *f = compile(device, record_product, &w, 2, NULL, 1);
    const struct {
        qn_array *in[2];
        float want[4];
        int n, recorded;
    } calls[] = {
        {{scalar, b}, {6, 7, 8}, 3, 1}, {{a, a}, {2, 5, 10}, 3, 2},
        {{b, a}, {6, 13, 22}, 3, 2},    {{c, c}, {26, 37, 50, 65}, 4, 3},
        {{a, b}, {6, 13, 22}, 3, 3},    {{scalar, a}, {2, 3, 4}, 3, 3},
        {{scalar, scalar}, {2}, 1, 4},  {{c, c}, {26, 37, 50, 65}, 4, 4},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        call(f, calls[i].in, &y);
        expect(device, y, calls[i].want, calls[i].n);
        assert_int_equal(w.recorded, calls[i].recorded);
        qn_release(y);
    }
    qn_release(a);
    qn_release(b);
    qn_release(c);
    qn_release(scalar); /* the function has its own reference */
    a = kept(device, three, 3);
    call(f, (qn_array *[]){a, a}, &y);
    expect(device, y, (const float[]){2, 5, 10}, 3);
    qn_release(y);
    qn_release(a);
    qn_function_close(f);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* Sixteen recordings are kept, those called last. */
static void test_forgets(void **state)
{
    qn_device *device = open_device(state);
    float values[64] = {0};
    qn_array *scalar = kept(device, one, 1), *y;
    work w = {.captured = scalar};
    qn_function *f = compile(device, record_product, &w, 2, NULL, 1);
    for (int round = 0; round < 2; round++)
        for (int n = 1; n <= 17; n++) {
            qn_array *a = kept(device, values, n);
            call(f, (qn_array *[]){a, a}, &y);
            qn_release(a);
            qn_release(y);
        }
    assert_int_equal(w.recorded, 34);
    for (int n = 17; n > 1; n--) {
        qn_array *a = kept(device, values, n);
        call(f, (qn_array *[]){a, a}, &y);
        qn_release(a);
        qn_release(y);
    }
    assert_int_equal(w.recorded, 34);
    qn_release(scalar);
    qn_function_close(f);
    qn_device_close(device);
}

/* state + in[1], 2 state */
static void record_sum(void *user, qn_scope *s, qn_array *const *in, qn_array **out)
{
    ((work *)user)->recorded++;
    out[1] = qn_add(s, in[0], in[0]);
    out[0] = qn_add(s, in[0], in[1]);
}

static uint64_t copies_of(qn_device *device)
{
    qn_plan_stats stats = {.size = sizeof stats};
    assert_int_equal(qn_device_plan_stats(device, &stats), QN_OK);
    return stats.donation_copies;
}

/* A donated argument keeps its place from call to call, unless somebody else has it, too. */
static void test_donated(void **state)
{
    qn_device *device = open_device(state);
    work w = {0};
    qn_function *f = compile(device, record_sum, &w, 2, (const bool[]){true, false}, 2);
    qn_array *sum = kept(device, three, 3), *step = kept(device, four, 3), *out[2];
    const void *place = sum->buffer->data;
    for (int i = 0; i < 5; i++) {
        call(f, (qn_array *[]){sum, step}, out);
        sum = out[0];
        assert_ptr_equal(sum->buffer->data, place);
        const float k = (float)i;
        expect(device, out[1], (const float[]){2 + 10 * k, 4 + 12 * k, 6 + 14 * k}, 3);
        qn_release(out[1]);
    }
    assert_int_equal(w.recorded, 1);
    assert_int_equal(copies_of(device), 0);
    expect(device, sum, (const float[]){26, 32, 38}, 3);
    qn_array *other = qn_retain(sum);
    for (int i = 0; i < 2; i++) {
        call(f, (qn_array *[]){sum, step}, out);
        sum = out[0];
        qn_release(out[1]);
    }
    expect(device, other, (const float[]){26, 32, 38}, 3);
    expect(device, sum, (const float[]){36, 44, 52}, 3);
    assert_int_equal(w.recorded, 2);
    qn_release(other);
    qn_release(sum);
    qn_release(step);
    qn_function_close(f);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* As record_sum, while another lets go of the array that it has with the caller. */
static void record_and_let_go(void *user, qn_scope *s, qn_array *const *in, qn_array **out)
{
    work *w = user;
    record_sum(user, s, in, out);
    qn_release(w->captured);
    w->captured = NULL;
}

/* Whether a donated argument may be overwritten is decided once: what was recorded while somebody
 * else had it leaves the next one alone that somebody else has. */
static void test_decided_once(void **state)
{
    qn_device *device = open_device(state);
    qn_array *sum = kept(device, three, 3), *step = kept(device, four, 3), *out[2];
    work w = {.captured = qn_retain(sum)};
    qn_function *f = compile(device, record_and_let_go, &w, 2, (const bool[]){true, false}, 2);
    call(f, (qn_array *[]){sum, step}, out);
    qn_release(out[1]);
    sum = out[0];
    qn_array *other = qn_retain(sum);
    call(f, (qn_array *[]){sum, step}, out);
    assert_int_equal(w.recorded, 1);
    expect(device, other, (const float[]){6, 8, 10}, 3);
    expect(device, out[0], (const float[]){11, 14, 17}, 3);
    qn_release(other);
    for (int i = 0; i < 2; i++)
        qn_release(out[i]);
    qn_release(step);
    qn_function_close(f);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* Results that nothing computes: an argument, a view of one, something from elsewhere; and a view
 * of what is computed. */
static void record_views(void *user, qn_scope *s, qn_array *const *in, qn_array **out)
{
    work *w = user;
    w->recorded++;
    out[0] = in[0];
    out[1] = qn_slice(s, in[0], 0, 1, 3, 1);
    out[2] = w->captured;
    if (w->what == SHOW)
        out[3] = qn_flip(s, qn_negative(s, in[0]), 0);
}

static void test_views(void **state)
{
    qn_device *device = open_device(state);
    qn_array *first = kept(device, three, 3), *second = kept(device, four, 3), *out[4];
    work w = {.captured = first, .what = SHOW};
    for (int n_out = 3; n_out <= 4; n_out++) {
        w.what = n_out == 4 ? SHOW : NOTHING;
        qn_function *f = compile(device, record_views, &w, 1, NULL, n_out);
        for (int i = 0; i < 3; i++) {
            const float *v = i == 1 ? four : three;
            call(f, i == 1 ? &second : &first, out);
            expect(device, out[0], v, 3);
            expect(device, out[1], v + 1, 2);
            expect(device, out[2], three, 3);
            if (n_out == 4)
                expect(device, out[3], (const float[]){-v[2], -v[1], -v[0]}, 3);
            for (int k = 0; k < n_out; k++)
                qn_release(out[k]);
        }
        qn_function_close(f);
    }
    assert_int_equal(w.recorded, 2);
    qn_release(first);
    qn_release(second);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

static void record_wrongly(void *user, qn_scope *s, qn_array *const *in, qn_array **out)
{
    work *w = user;
    w->recorded++;
    out[0] = qn_add(s, in[0], in[1]);
    float values[4];
    if (w->what == EVALUATE)
        qn_read_f32(s, out[0], values, 3);
    else if (w->what == DONATE)
        out[0] = qn_add(s, out[0], qn_donate(s, qn_retain(w->captured)));
    else if (w->what == NOTHING)
        out[0] = NULL;
}

static void expect_refusal(qn_function *f, qn_array *a, qn_array *b, const char *words)
{
    qn_error err = {0};
    qn_array *y;
    assert_int_not_equal(qn_call(f, (qn_array *[]){a, b}, &y, &err), QN_OK);
    assert_null(y);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" is not in: %s", words, err.message);
}

/* Whatever fails, arguments stay the caller's, and the next call is none the worse. */
static void test_refusals(void **state)
{
    qn_device *device = open_device(state);
    qn_array *a = kept(device, three, 3), *b = kept(device, four, 3), *c = kept(device, four, 4);
    work w = {.captured = a};
    qn_error err = {0};
    qn_function *f = NULL, *g;
    assert_int_equal(qn_compile(&g, device, NULL, NULL, 2, NULL, 1, &err), QN_INVALID);
    assert_int_equal(qn_compile(&g, device, record_wrongly, &w, 2, NULL, 0, NULL), QN_INVALID);
    f = compile(device, record_wrongly, &w, 2, (const bool[]){true, false}, 1);
    expect_refusal(f, NULL, b, "argument 0 is NULL");
    expect_refusal(f, a, a, "one array, donated");
    qn_scope *s = qn_scope_begin(device);
    expect_refusal(f, a, qn_from_f32(s, four, 3), "argument 1 is not retained");
    qn_scope_end(s);
    assert_int_equal(w.recorded, 0);
    w.what = EVALUATE;
    expect_refusal(f, a, b, "evaluates or reads");
    w.what = DONATE;
    expect_refusal(f, a, b, "donates an array");
    w.what = NOTHING;
    expect_refusal(f, a, b, "NULL");
    w.what = FAIL;
    expect_refusal(f, a, c, "add");
    assert_int_equal(w.recorded, 4);
    expect(device, a, three, 3);
    qn_array *y;
    for (int i = 0; i < 2; i++) {
        call(f, (qn_array *[]){a, b}, &y);
        a = y;
    }
    expect(device, y, (const float[]){11, 14, 17}, 3);
    assert_int_equal(w.recorded, 5);
    qn_release(y);
    qn_release(b);
    qn_release(c);
    qn_function_close(f);
    qn_function_close(NULL);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again),   cmocka_unit_test(test_forgets),
        cmocka_unit_test(test_donated), cmocka_unit_test(test_decided_once),
        cmocka_unit_test(test_views),   cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
