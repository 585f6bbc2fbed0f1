/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in the formats of GPTQ, AWQ and compressed-tensors (tests/golden/make_packed.py): logits
 * with exact products against transformers' on the decoded weights, nearly the same with products
 * of bytes; weights that stay as small as they are in the file; and files and configurations that
 * are refused, each with what is wrong and what is asked.
 */
#include "packed_model.h"

static const char *const names[] = {"gptq4",     "gptq4-v2", "gptq4-act", "gptq8-rows", "gptq3",
                                    "gptq2",     "awq4",     "awq4-g128", "ct4",        "ct4-rows",
                                    "ct4-order", "ct8",      "ct8-bytes"};

static void test_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[60], path[PATH_MAX];
        snprintf(name, sizeof name, "packed/%s", names[i]);
        golden_path(path, sizeof path, name, NULL);
        double exact = packed_nmse(path, path, QN_PRODUCTS_F32),
               bytes = packed_nmse(path, path, QN_PRODUCTS_AUTO);
        if (!(exact <= 1e-11) || !(bytes < 2e-3) || bytes == exact)
            print_error("%s: %g exact, %g of bytes\n", names[i], exact, bytes);
        assert_true(exact <= 1e-11);
        assert_true(bytes < 2e-3 && bytes > exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
