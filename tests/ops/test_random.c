/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers against JAX's (golden/ops/random.txt, written by golden/make_random.py), and that
 * they depend on neither threads, tier, layout nor company.
 */
#include "ops/ops_test.h"

enum { MOST = 2048 };

typedef struct draw {
    char name[16];
    qn_dtype dtype;
    uint64_t seed;
    int n_par, n;
    int64_t par[8];
    char value[MOST][32];
} draw;

static bool read_draw(FILE *f, draw *d)
{
    char type[16];
    unsigned long long seed;
    if (fscanf(f, "%15s %15s %llu %d", d->name, type, &seed, &d->n_par) != 4)
        return false;
    d->seed = seed;
    d->dtype = QN_DTYPE_COUNT;
    for (int t = 0; t < QN_DTYPE_COUNT; t++)
        if (!strcmp(type, qn_dtype_name((qn_dtype)t)))
            d->dtype = (qn_dtype)t;
    assert_in_range(d->n_par, 0, 8);
    for (int i = 0; i < d->n_par; i++) {
        long long v;
        assert_int_equal(fscanf(f, "%lld", &v), 1);
        d->par[i] = v;
    }
    assert_int_equal(fscanf(f, "%d", &d->n), 1);
    assert_in_range(d->n, 0, MOST);
    for (int i = 0; i < d->n; i++)
        assert_int_equal(fscanf(f, "%31s", d->value[i]), 1);
    return true;
}

static qn_array *draw_again(qn_scope *s, const draw *d)
{
    qn_array *key = qn_random_key(s, d->seed);
    const int64_t *p = d->par;
    if (!strcmp(d->name, "key"))
        return key;
    if (!strcmp(d->name, "split"))
        return qn_random_split(s, key, p[0]);
    if (!strcmp(d->name, "fold_in"))
        return qn_random_fold_in(s, key, qn_scalar(s, QN_I64, (double)p[0]));
    if (!strcmp(d->name, "bits"))
        return qn_random_bits(s, key, d->dtype, 2, p);
    if (!strcmp(d->name, "uniform"))
        return qn_random_uniform(s, key, d->dtype, (double)p[0], (double)p[1], 2, p + 2);
    if (!strcmp(d->name, "normal"))
        return qn_random_normal(s, key, d->dtype, 2, p);
    if (!strcmp(d->name, "integers"))
        return qn_random_integers(s, key, d->dtype, p[0], p[1], 2, p + 2);
    if (!strcmp(d->name, "bernoulli"))
        return qn_random_bernoulli(s, key, qn_linspace(s, d->dtype, 0, 1, p[0]), 1, p);
    if (!strcmp(d->name, "permutation"))
        return qn_random_permutation(s, key, p[0]);
    qn_array *at = qn_reshape(s, qn_arange(s, QN_I32, p[0] * p[1]), 2, p);
    at = qn_remainder(s, at, qn_scalar(s, QN_I32, 7));
    return qn_random_categorical(
        s, key, qn_multiply(s, qn_cast(s, at, d->dtype), qn_scalar(s, d->dtype, 0.5)), -1);
}

/* What JAX's polynomial and ours may differ by, and what XLA's fused multiply-add in a scaled
 * uniform changes; everything else is exact. */
static double tolerance(const draw *d, double want)
{
    if (!strcmp(d->name, "uniform"))
        return d->par[0] ? unit_of(2, d->dtype) : 0;
    if (strcmp(d->name, "normal") != 0)
        return 0;
    return (d->dtype == QN_F64 ? 64 : d->dtype == QN_F32 ? 16 : 1) * unit_of(want, d->dtype);
}

static void check_draw(const rig *r, const draw *d)
{
    qn_scope *s = qn_scope_begin(r->device);
    qn_array *y = draw_again(s, d);
    qn_dtype type = qn_array_dtype(y);
    size_t size = qn_dtype_size(type);
    assert_int_equal(qn_array_elements(y), d->n);
    char *raw = malloc((size_t)d->n * size + 1);
    if (qn_read(s, y, raw, (size_t)d->n * size) != QN_OK)
        fail_msg("%s: %s", d->name, qn_scope_error(s));
    for (int i = 0; i < d->n; i++) {
        if (is_float(type)) {
            double got = decode(type, raw + (size_t)i * size), want = strtod(d->value[i], NULL);
            if (!(fabs(got - want) <= tolerance(d, want)))
                fail_msg("%s of %s, seed %llu, %s: element %d is %a, should be %a", d->name,
                         qn_dtype_name(type), (unsigned long long)d->seed, r->tier, i, got, want);
            continue;
        }
        uint64_t want = d->value[i][0] == '-' ? (uint64_t)strtoll(d->value[i], NULL, 10)
                                              : strtoull(d->value[i], NULL, 10);
        if (memcmp(raw + (size_t)i * size, &want, size) != 0)
            fail_msg("%s of %s, seed %llu, %s: element %d is %lld, should be %s", d->name,
                     qn_dtype_name(type), (unsigned long long)d->seed, r->tier, i,
                     (long long)decode_integer(type, raw + (size_t)i * size), d->value[i]);
    }
    free(raw);
    qn_scope_end(s);
}

static void check_erfinv(const rig *r, const draw *d)
{
    qn_scope *s = qn_scope_begin(r->device);
    int64_t n = d->n / 2;
    double *x = malloc((size_t)n * 16), *y = x + n;
    for (int64_t i = 0; i < n; i++)
        x[i] = strtod(d->value[i], NULL);
    qn_array *a = qn_from(s, QN_F64, 1, &n, x);
    float *f = malloc((size_t)n * 4);
    assert_int_equal(qn_read(s, qn_erfinv(s, a), y, (size_t)n * 8), QN_OK);
    assert_int_equal(qn_read_f32(s, qn_erfinv(s, qn_cast(s, a, QN_F32)), f, (size_t)n), QN_OK);
    for (int64_t i = 0; i < n; i++) {
        double want = strtod(d->value[n + i], NULL);
        if (y[i] != want &&
            !(fabs(y[i] - want) <= 1e-14 * fabs(want) + 1e-9 * (fabs(x[i]) > 0.9999)))
            fail_msg("erfinv(%a) is %a, should be %a", x[i], y[i], want);
        if (f[i] != want && !(fabs(f[i] - want) <= 6e-7 * fabs(want)) && fabs(x[i]) < 0.9999)
            fail_msg("erfinv(%a) in f32 is %a, should be %a", x[i], (double)f[i], want);
    }
    free(x), free(f);
    qn_scope_end(s);
}

static void test_jax(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/ops/random.txt", getenv("QUERN_SOURCE"));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs), n_draws = 0;
    static draw d;
    for (; read_draw(f, &d); n_draws++)
        for (int r = 0; r < n; r++)
            (strcmp(d.name, "erfinv") ? check_draw : check_erfinv)(&rigs[r], &d);
    fclose(f);
    close_rigs(rigs, n);
    printf("%d draws of JAX\n", n_draws);
    assert_true(n_draws > 90);
}

/* A batch of keys draws for each what it draws alone; threads and tiers change no bit. */
static void test_company(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    enum { KEYS = 3, ROWS = 37, COLUMNS = 211 };
    same_bits same[2] = {{0}};
    for (int r = 0; r < n; r++) {
        qn_scope *s = qn_scope_begin(rigs[r].device);
        const int64_t all[] = {KEYS, ROWS, COLUMNS}, each = (int64_t)ROWS * COLUMNS;
        qn_array *keys = qn_random_split(s, qn_random_key(s, 11), KEYS);
        float *batch = get(s, qn_random_normal(s, keys, QN_F32, 3, all), QN_F32, 3, all, "batch");
        int32_t *choices = get(s, qn_random_categorical(s, keys, qn_zeros(s, QN_F32, 3, all), -1),
                               QN_I32, 2, all, "batch");
        double sum = 0, squares = 0;
        for (int k = 0; k < KEYS; k++) {
            qn_array *key = qn_flatten(s, qn_slice(s, keys, 0, k, k + 1, 1));
            float *one =
                get(s, qn_random_normal(s, key, QN_F32, 2, all + 1), QN_F32, 2, all + 1, "one");
            assert_memory_equal(one, batch + k * each, (size_t)each * 4);
            int32_t *choice =
                get(s, qn_random_categorical(s, key, qn_zeros(s, QN_F32, 2, all + 1), -1), QN_I32,
                    1, all + 1, "one");
            assert_memory_equal(choice, choices + k * ROWS, ROWS * 4);
            for (int64_t i = 0; i < each; i++) {
                sum += one[i];
                squares += one[i] * one[i];
            }
            free(one), free(choice);
        }
        double total = (double)(KEYS * each);
        assert_true(fabs(sum / total) < 5 / sqrt(total));
        assert_true(fabs(squares / total - 1) < 5 * sqrt(2 / total));
        check_same(&same[0], batch, QN_F32, (size_t)(KEYS * each), rigs[r].tier);
        check_same(&same[1], choices, QN_I32, KEYS * ROWS, rigs[r].tier);
        qn_scope_end(s);
    }
    free(same[0].first), free(same[1].first);
    close_rigs(rigs, n);
}

static void test_refusals(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int k = 0; k < 7; k++) {
        qn_scope *s = qn_scope_begin(rigs[0].device);
        const int64_t two[] = {2, 2}, huge[] = {(int64_t)1 << 40};
        qn_array *key = qn_random_key(s, 1), *half = qn_slice(s, key, 0, 0, 1, 1);
        switch (k) {
        case 0: qn_random_bits(s, half, QN_U32, 2, two); break;
        case 1: qn_random_bits(s, key, QN_F32, 2, two); break;
        case 2: qn_random_bits(s, key, QN_U32, 1, huge); break;
        case 3: qn_random_uniform(s, key, QN_I32, 0, 1, 2, two); break;
        case 4: qn_random_integers(s, key, QN_I8, 0, 200, 2, two); break;
        case 5: qn_random_integers(s, key, QN_I32, 3, 3, 2, two); break;
        default: qn_random_split(s, qn_cast(s, key, QN_I32), 2); break;
        }
        assert_int_equal(qn_scope_status(s), QN_INVALID);
        qn_scope_end(s);
    }
    close_rigs(rigs, n);
}

/* A share p of zeros, the rest larger, so that the mean stays: within four deviations. The same key
 * drops the same, another one others; 0 drops nothing. What stays is what qn_random_bernoulli
 * draws.
 */
static void test_dropout(void **state)
{
    enum { N = 60000 };
    static const double shares[] = {0, 0.1, 0.5, 0.9};
    static float x[N], y[N], z[N];
    qn_device *device = open_device(state);
    for (int i = 0; i < N; i++)
        x[i] = 1;
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        qn_scope *s = qn_scope_begin(device);
        double p = shares[k], zeros = 0, sum = 0, deviation = sqrt(p * (1 - p) / N), other = 0;
        qn_array *of = qn_from_f32(s, x, N);
        assert_int_equal(qn_read_f32(s, qn_dropout(s, of, qn_random_key(s, 7), p), y, N), QN_OK);
        assert_int_equal(qn_read_f32(s, qn_dropout(s, of, qn_random_key(s, 8), p), z, N), QN_OK);
        for (int i = 0; i < N; i++) {
            zeros += y[i] == 0;
            sum += y[i];
            other += (y[i] == 0) != (z[i] == 0);
            assert_true(y[i] == 0 || y[i] == (float)(1 / (1 - p)));
        }
        assert_true(fabs(zeros / N - p) <= 4 * deviation);
        assert_true(fabs(sum / N - 1) <= 4 * deviation / (1 - p) + 1e-6);
        assert_true(p == 0 ? other == 0 : fabs(other / N - 2 * p * (1 - p)) <= 0.02);
        qn_read_f32(s, qn_dropout(s, of, qn_random_key(s, 7), p), z, N);
        assert_memory_equal(y, z, sizeof y);
        qn_array *share = qn_scalar(s, QN_F32, 1 - p);
        qn_array *drawn =
            qn_random_bernoulli(s, qn_random_key(s, 7), share, 1, (const int64_t[]){N});
        qn_read_f32(s, qn_cast(s, drawn, QN_F32), z, N);
        for (int i = 0; i < N; i++)
            assert_true((y[i] != 0) == (z[i] != 0));
        qn_scope_end(s);
    }
    for (int i = 0; i < 2; i++) {
        qn_scope *s = qn_scope_begin(device);
        qn_array *whole = qn_zeros(s, QN_I32, 1, (const int64_t[]){3});
        qn_dropout(s, i ? whole : qn_from_f32(s, x, 3), qn_random_key(s, 1), i ? 0.5 : 1);
        assert_int_equal(qn_scope_status(s), QN_INVALID);
        assert_non_null(strstr(qn_scope_error(s), "a probability below 1"));
        qn_scope_end(s);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_jax), cmocka_unit_test(test_company),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_dropout)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
