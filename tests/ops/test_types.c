/* SPDX-License-Identifier: Apache-2.0
 *
 * Type promotion: JAX's table (docs.jax.dev, "Type promotion semantics"; u64 with a signed integer
 * is f32, as with 32-bit defaults), written out, for every pair of types.
 */
#include "ops/ops_test.h"

#include "core/dtype.h"

enum {
    b = QN_BOOL,
    u8 = QN_U8,
    u16 = QN_U16,
    u32 = QN_U32,
    u64 = QN_U64,
    i8 = QN_I8,
    i16 = QN_I16,
    i32 = QN_I32,
    i64 = QN_I64,
    h = QN_F16,
    bh = QN_BF16,
    f = QN_F32,
    d = QN_F64
};

/* clang-format off */
static const unsigned char promoted[QN_DTYPE_COUNT][QN_DTYPE_COUNT] = {
    /*          b    u8   u16  u32  u64  i8   i16  i32  i64  f16  bf16 f32  f64 */
    /* bool */ {b,   u8,  u16, u32, u64, i8,  i16, i32, i64, h,   bh,  f,   d},
    /* u8   */ {u8,  u8,  u16, u32, u64, i16, i16, i32, i64, h,   bh,  f,   d},
    /* u16  */ {u16, u16, u16, u32, u64, i32, i32, i32, i64, h,   bh,  f,   d},
    /* u32  */ {u32, u32, u32, u32, u64, i64, i64, i64, i64, h,   bh,  f,   d},
    /* u64  */ {u64, u64, u64, u64, u64, f,   f,   f,   f,   h,   bh,  f,   d},
    /* i8   */ {i8,  i16, i32, i64, f,   i8,  i16, i32, i64, h,   bh,  f,   d},
    /* i16  */ {i16, i16, i32, i64, f,   i16, i16, i32, i64, h,   bh,  f,   d},
    /* i32  */ {i32, i32, i32, i64, f,   i32, i32, i32, i64, h,   bh,  f,   d},
    /* i64  */ {i64, i64, i64, i64, f,   i64, i64, i64, i64, h,   bh,  f,   d},
    /* f16  */ {h,   h,   h,   h,   h,   h,   h,   h,   h,   h,   f,   f,   d},
    /* bf16 */ {bh,  bh,  bh,  bh,  bh,  bh,  bh,  bh,  bh,  f,   bh,  f,   d},
    /* f32  */ {f,   f,   f,   f,   f,   f,   f,   f,   f,   f,   f,   f,   d},
    /* f64  */ {d,   d,   d,   d,   d,   d,   d,   d,   d,   d,   d,   d,   d},
};
/* clang-format on */

static host small_values(qn_dtype t, uint64_t seed)
{
    return random_host(t, 1, (const int64_t[]){40}, t == QN_BOOL ? 1 : 50, is_signed(t) ? 0 : 50,
                       &seed);
}

static void check_pair(const rig *r, qn_dtype ta, qn_dtype tb)
{
    char what[80];
    snprintf(what, sizeof what, "%s with %s", qn_dtype_name(ta), qn_dtype_name(tb));
    host x = small_values(ta, 3), y = small_values(tb, 8);
    qn_dtype t = (qn_dtype)promoted[ta][tb], sum = t;
    qn_dtype quotient = is_float(t) ? t : QN_F32;
    double want[4][40];
    for (int i = 0; i < 40; i++) {
        double p = round_to(x.v[i], t), q = round_to(y.v[i], t);
        want[0][i] = i % 3 ? p : q;
        want[1][i] = round_to(p + q, sum);
        want[2][i] = round_to(round_to(p / q, quotient == QN_F64 ? QN_F64 : QN_F32), quotient);
        want[3][i] = p < q;
    }
    qn_scope *s = qn_scope_begin(r->device);
    qn_array *a = put(s, &x, PLAIN), *c = put(s, &y, PLAIN);
    qn_array *every_third = qn_not_equal(
        s,
        qn_subtract(s, qn_arange(s, QN_I32, 40),
                    qn_multiply(s,
                                qn_cast(s,
                                        qn_floor(s, qn_divide(s, qn_arange(s, QN_I32, 40),
                                                              qn_scalar(s, QN_F32, 3))),
                                        QN_I32),
                                qn_scalar(s, QN_I32, 3))),
        qn_scalar(s, QN_I32, 0));
    qn_array *results[] = {qn_where(s, every_third, a, c), qn_add(s, a, c), qn_divide(s, a, c),
                           qn_less(s, a, c)};
    qn_dtype types[] = {t, sum, quotient, QN_BOOL};
    for (int k = 0; k < 4; k++) {
        void *raw = get(s, results[k], types[k], 1, x.shape, what);
        check_values(raw, types[k], want[k], 40, 0, 0, what);
        free(raw);
    }
    qn_scope_end(s);
    free(x.v);
    free(y.v);
}

static void test_promotion(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int x = 0; x < QN_DTYPE_COUNT; x++)
        for (int y = 0; y < QN_DTYPE_COUNT; y++) {
            assert_int_equal(qn__dtype_promote((qn_dtype)x, (qn_dtype)y), promoted[x][y]);
            for (int r = 0; r < n; r += 2)
                check_pair(&rigs[r], (qn_dtype)x, (qn_dtype)y);
        }
    close_rigs(rigs, n);
}

/* A constant is rounded to its type once; integers wrap, NaN is 0. */
static void test_constants(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    static const double values[] = {0,     -0.0,     1,    -1,    0.1,    3.99, -3.99,   300,
                                    70000, 65519.99, 1e-7, 1e300, -1e300, NAN,  INFINITY};
    for (int r = 0; r < n; r++)
        for (int t = 0; t < QN_DTYPE_COUNT; t++)
            for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
                bool fits = fabs(values[i]) < 1e15 || is_float((qn_dtype)t);
                qn_scope *s = qn_scope_begin(rigs[r].device);
                qn_array *a = qn_full(s, (qn_dtype)t, 2, (const int64_t[]){2, 1}, values[i]);
                void *raw = get(s, a, (qn_dtype)t, 2, (const int64_t[]){2, 1}, "full");
                double w = round_to(fits ? values[i] : 0, (qn_dtype)t);
                if (fits)
                    check_values(raw, (qn_dtype)t, (double[]){w, w}, 2, 0, 0, "full");
                free(raw);
                qn_scope_end(s);
            }
    close_rigs(rigs, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_promotion),
        cmocka_unit_test(test_constants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
