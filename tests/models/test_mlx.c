/* SPDX-License-Identifier: Apache-2.0
 *
 * Models as mlx-lm quantises them (tests/golden/make_mlx.py): logits with exact products against
 * mlx-lm's, nearly the same with products of bytes, and files whose parts do not fit each other.
 */
#include "packed_model.h"

static void test_logits(void **state)
{
    (void)state;
    static const char *const names[] = {"affine4-bf16", "affine4-f32-tied", "affine8-f16", "mixed",
                                        "mxfp4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[60], path[PATH_MAX];
        snprintf(name, sizeof name, "mlx/%s", names[i]);
        golden_path(path, sizeof path, name, NULL);
        double exact = packed_nmse(path, path, QN_PRODUCTS_F32),
               bytes = packed_nmse(path, path, QN_PRODUCTS_AUTO);
        if (exact > 1e-9 || !(bytes < 2e-3) || bytes == exact)
            print_error("%s: %g exact, %g of bytes\n", names[i], exact, bytes);
        assert_true(exact <= 1e-9);
        assert_true(bytes < 2e-3 && bytes > exact);
    }
}

/* The names of a header are as long as they were. */
static void refused(const char *was, const char *is, const char *words)
{
    packed_copy("mlx/affine4-bf16", "config.json", NULL, NULL);
    packed_refused(packed_copy("mlx/affine4-bf16", "model.safetensors", was, is), words);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("model.layers.0.mlp.up_proj.scales", "model.layers.0.mlp.up_proj.skales",
            "mlp.up_proj.weight has shape");
    refused("model.layers.0.mlp.up_proj.biases", "model.layers.0.mlp.up_proj.biazes",
            "in bf16 without biases for 64 columns");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
