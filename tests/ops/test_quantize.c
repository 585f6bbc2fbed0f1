/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised matrices against MLX (tests/golden/make_quantized.py): the same words, scales and
 * biases to the bit, products within the type's tolerance (MLX sums in 16 bits), experts by index;
 * packed ones the same values; gradients those of the dequantised matrix.
 */
#include "ops_test.h"
#include "quern/quern.h"

#include <limits.h>

static qn_tensors *golden;

static int open_golden(void **state)
{
    char path[PATH_MAX];
    (void)state;
    snprintf(path, sizeof path, "%s/tests/golden/quantized.safetensors", getenv("QUERN_SOURCE"));
    return qn_tensors_open(&golden, path, NULL) == QN_OK ? 0 : -1;
}

static int close_golden(void **state)
{
    (void)state;
    qn_tensors_close(golden);
    return 0;
}

static qn_array *stored(qn_scope *s, const char *name, const char *part)
{
    char full[60];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return qn_tensors_read(s, golden, full);
}

/* Both as bytes. */
static void check_equal(qn_scope *s, qn_array *a, qn_array *b, const char *what)
{
    static char x[1 << 16], y[1 << 16];
    assert_int_equal(qn_array_dtype(a), qn_array_dtype(b));
    size_t n = (size_t)qn_array_elements(a) * qn_dtype_size(qn_array_dtype(a));
    assert_true(n > 0 && n <= sizeof x && qn_array_elements(b) == qn_array_elements(a));
    assert_int_equal(qn_read(s, a, x, n), QN_OK);
    assert_int_equal(qn_read(s, b, y, n), QN_OK);
    if (memcmp(x, y, n) != 0)
        print_error("%s\n", what);
    assert_memory_equal(x, y, n);
}

/* The largest difference over the largest value. */
static void check_near(qn_scope *s, qn_array *a, qn_array *b, double most, const char *what)
{
    qn_array *d = qn_abs(s, qn_subtract(s, qn_cast(s, a, QN_F32), qn_cast(s, b, QN_F32)));
    const int64_t flat[] = {-1};
    float off = -1, size = 0;
    d = qn_max(s, qn_reshape(s, d, 1, flat), 0, false);
    qn_array *m = qn_max(s, qn_reshape(s, qn_abs(s, qn_cast(s, b, QN_F32)), 1, flat), 0, false);
    assert_int_equal(qn_read(s, d, &off, 4), QN_OK);
    assert_int_equal(qn_read(s, m, &size, 4), QN_OK);
    if (!(off <= most * size))
        print_error("%s: %s: %g of %g\n", what, qn_scope_error(s), off, size);
    assert_true(off >= 0 && off <= most * size);
}

static void check_width(qn_device *device, int bits, int group, const char *type, double most)
{
    char name[40];
    qn_quantization q = {bits, group};
    qn_array *words, *scales, *biases;
    snprintf(name, sizeof name, "b%dg%d.%s", bits, group, type);
    qn_scope *s = qn_scope_begin(device);
    assert_int_equal(qn_quantize(s, stored(s, name, "w"), &q, &words, &scales, &biases), QN_OK);
    check_equal(s, words, stored(s, name, "words"), name);
    check_equal(s, scales, stored(s, name, "scales"), name);
    check_equal(s, biases, stored(s, name, "biases"), name);
    qn_array *x = stored(s, name, "x"), *z = stored(s, name, "z");
    check_near(s, qn_quantized_matmul(s, x, words, scales, biases, true, &q), stored(s, name, "y"),
               most, name);
    check_near(s, qn_quantized_matmul(s, z, words, scales, biases, false, &q), stored(s, name, "u"),
               most, name);
    /* packed, with exact products, to x's f32 */
    qn_array *packed = qn_pack_quantized(s, words, scales, biases, &q);
    if (packed) {
        check_near(s, qn_linear_with(s, x, packed, NULL, QN_PRODUCTS_F32), stored(s, name, "y"),
                   most, name);
        qn_release(packed);
    }
    qn_scope_end(s);
}

static void test_widths(void **state)
{
    (void)state;
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++)
        for (int b = 0; b < 6; b++) {
            for (int group = 32; group <= 128; group *= 2)
                check_width(rigs[r].device, widths[b], group, "f32", 1e-5);
            check_width(rigs[r].device, widths[b], 64, "f16", 1e-2);
            check_width(rigs[r].device, widths[b], 64, "bf16", 5e-2);
        }
    close_rigs(rigs, n);
}

static void test_identity_and_experts(void **state)
{
    (void)state;
    rig rigs[MOST_RIGS];
    int n = open_rigs(rigs);
    for (int r = 0; r < n; r++) {
        qn_scope *s = qn_scope_begin(rigs[r].device);
        qn_quantization four = {4, 64}, experts = {4, 32};
        qn_array *y = qn_quantized_matmul(s, qn_eye(s, QN_F32, 64, 64, 0),
                                          stored(s, "eye", "words"), stored(s, "eye", "scales"),
                                          stored(s, "eye", "biases"), true, &four);
        check_near(s, y, stored(s, "eye", "y"), 1e-6, "identity");
        y = qn_gather_qmm(s, stored(s, "gather", "x"), stored(s, "gather", "words"),
                          stored(s, "gather", "scales"), stored(s, "gather", "biases"),
                          stored(s, "gather", "lhs"), stored(s, "gather", "rhs"), true, &experts);
        assert_int_equal(qn_array_ndim(y), 4);
        check_near(s, y, stored(s, "gather", "y"), 1e-5, "experts");
        qn_array *of[] = {stored(s, "gather", "words"), stored(s, "gather", "scales"),
                          stored(s, "gather", "biases")};
        qn_array *chosen = qn_take(s, qn_dequantize(s, of[0], of[1], of[2], &experts),
                                   stored(s, "gather", "rhs"), 0);
        check_near(s,
                   qn_gather_qmm(s, y, of[0], of[1], of[2], NULL, stored(s, "gather", "rhs"), false,
                                 &experts),
                   qn_matmul(s, y, chosen), 1e-5, "experts, not transposed");
        qn_scope_end(s);
    }
    close_rigs(rigs, n);
}

/* To x, scales and biases: those of the plain matrix, chained by hand. */
static void test_gradients(void **state)
{
    (void)state;
    qn_device *device;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    qn_scope *s = qn_scope_begin(device);
    qn_quantization q = {4, 64};
    const char *name = "b4g64.f32";
    qn_array *x = stored(s, name, "x"), *words = stored(s, name, "words"),
             *part[] = {x, stored(s, name, "scales"), stored(s, name, "biases")}, *grad[3];
    qn_array *y = qn_quantized_matmul(s, x, words, part[1], part[2], true, &q);
    const int64_t flat[] = {-1}, grouped[] = {5, 2, 64};
    qn_array *loss = qn_sum(s, qn_reshape(s, qn_multiply(s, y, y), 1, flat), 0, false);
    assert_int_equal(qn_grad(s, loss, part, 3, grad), QN_OK);
    qn_array *w = qn_dequantize(s, words, part[1], part[2], &q);
    qn_array *two_y = qn_multiply(s, y, qn_scalar(s, QN_F32, 2));
    check_near(s, grad[0], qn_matmul(s, two_y, w), 1e-5, "to x");
    qn_array *to_w = qn_matmul(s, qn_swap_axes(s, two_y, 0, 1), x);
    qn_array *sums = qn_sum(s, qn_reshape(s, to_w, 3, grouped), -1, false);
    check_near(s, grad[2], sums, 1e-5, "to biases");
    qn_array *codes = qn_dequantize(s, words, qn_full(s, QN_F32, 2, (const int64_t[]){5, 2}, 1),
                                    qn_full(s, QN_F32, 2, (const int64_t[]){5, 2}, 0), &q);
    sums = qn_sum(s, qn_reshape(s, qn_multiply(s, to_w, codes), 3, grouped), -1, false);
    check_near(s, grad[1], sums, 1e-5, "to scales");
    qn_scope_end(s);
    qn_device_close(device);
}

static void test_refusals(void **state)
{
    (void)state;
    qn_device *device;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    static const qn_quantization wrong[] = {{7, 64}, {4, 48}, {4, 128}, {8, 64}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        qn_scope *s = qn_scope_begin(device);
        const char *name = "b4g64.f32";
        qn_dequantize(s, stored(s, name, "words"), stored(s, name, "scales"),
                      stored(s, name, "biases"), &wrong[i]);
        assert_int_not_equal(qn_scope_status(s), QN_OK);
        assert_non_null(strstr(qn_scope_error(s), "dequantize: "));
        qn_scope_end(s);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths), cmocka_unit_test(test_identity_and_experts),
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
