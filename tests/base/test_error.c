/* SPDX-License-Identifier: Apache-2.0
 *
 * What a person reads in errors: sizes in the unit that says something.
 */
#include "test.h"

#include "base/error.h"

static void test_sizes(void **state)
{
    (void)state;
    const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 bytes"},
        {65535, "65535 bytes"},
        {65536, "0.06 MiB"},
        {1117887, "1.07 MiB"},
        {(uint64_t)1 << 30, "1.00 GiB"},
        {(uint64_t)5 << 38, "1280.00 GiB"},
        {UINT64_MAX, "17179869184.00 GiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn__size_text to;
        assert_string_equal(qn__say_size(cases[i].bytes, &to), cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
