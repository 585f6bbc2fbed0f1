/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON scanner and the checked tree: what is accepted, what is refused and with which line.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/json_scan.h"
#include "fail_alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void assert_one_line(const qn_error *err, qn_status code, const char *part)
{
    assert_int_equal(err->code, code);
    assert_true(err->message[0] != '\0');
    assert_null(strchr(err->message, '\n'));
    if (!strstr(err->message, part))
        fail_msg("message \"%s\" lacks \"%s\"", err->message, part);
}

typedef struct bad_json {
    const char *text;
    size_t size; /* 0: strlen */
    qn_status code;
    const char *part;
} bad_json;

static const bad_json bad_texts[] = {
    {"", 0, QN_FORMAT, "x.json: JSON ends where a value was expected"},
    {"  ", 0, QN_FORMAT, "JSON ends"},
    {"{", 0, QN_FORMAT, "JSON ends where a key in quotes was expected"},
    {"[1,", 0, QN_FORMAT, "JSON ends where a value"},
    {"[1 2]", 0, QN_FORMAT, "expected ',' or ']', got 2]"},
    {"[1,]", 0, QN_FORMAT, "expected a value"},
    {"[,1]", 0, QN_FORMAT, "expected a value"},
    {"{\"a\":1,}", 0, QN_FORMAT, "expected a key in quotes"},
    {"{\"a\" 1}", 0, QN_FORMAT, "expected ':'"},
    {"{a:1}", 0, QN_FORMAT, "expected a key in quotes"},
    {"{} x", 0, QN_FORMAT, "expected the end"},
    {"{}{}", 0, QN_FORMAT, "expected the end"},
    {"tru", 0, QN_FORMAT, "expected true"},
    {"nul", 0, QN_FORMAT, "expected null"},
    {"NaN", 0, QN_FORMAT, "expected a value, got NaN"},
    {"{\"theta\":Infinity}", 0, QN_FORMAT, "x.json: theta: not JSON: expected a value, got Inf"},
    {"01", 0, QN_FORMAT, "leading zero"},
    {"-", 0, QN_FORMAT, "JSON ends where a digit"},
    {"1.", 0, QN_FORMAT, "a digit"},
    {"1.e5", 0, QN_FORMAT, "a digit"},
    {"1e", 0, QN_FORMAT, "a digit"},
    {"+1", 0, QN_FORMAT, "a value"},
    {".5", 0, QN_FORMAT, "a value"},
    {"0x10", 0, QN_FORMAT, "expected the end"},
    {"{\"a\":{\"b\":[1,1e400]}}", 0, QN_FORMAT, "x.json: a.b[1]: the number is too large"},
    {"-1e309", 0, QN_FORMAT, "too large"},
    {"1000000000000000000000000000000000000000000000000000000000000000", 0, QN_LIMIT,
     "more than 63 characters"},
    {"\"abc", 0, QN_FORMAT, "ends inside a string"},
    {"\"\\", 0, QN_FORMAT, "JSON ends where an escape"},
    {"\"\\x\"", 0, QN_FORMAT, "unknown escape"},
    {"\"\\u12\"", 0, QN_FORMAT, "hexadecimal"},
    {"\"\\u12g4\"", 0, QN_FORMAT, "hexadecimal"},
    {"\"\\ud800\"", 0, QN_FORMAT, "lone surrogate"},
    {"\"\\ud800\\u0041\"", 0, QN_FORMAT, "lone surrogate"},
    {"\"\\udc00\\ud800\"", 0, QN_FORMAT, "lone surrogate"},
    {"\"a\\u0000b\"", 0, QN_FORMAT, "contains NUL"},
    {"{\"a\\u0000\":1}", 0, QN_FORMAT, "contains NUL"},
    {"\"a\nb\"", 0, QN_FORMAT, "raw control character"},
    {"\"a\0b\"", 5, QN_FORMAT, "raw control character"},
    {"\0", 1, QN_FORMAT, "expected a value"},
    {"\"\xff\"", 0, QN_FORMAT, "not valid UTF-8"},
    {"\"\xc0\xaf\"", 0, QN_FORMAT, "not valid UTF-8"},
    {"\"\xed\xa0\x80\"", 0, QN_FORMAT, "not valid UTF-8"},
    {"\"\xf4\x90\x80\x80\"", 0, QN_FORMAT, "not valid UTF-8"},
    {"\"\xe2\x82\"", 0, QN_FORMAT, "not valid UTF-8"},
    {"{\"a\":1,\"b\":2,\"a\":3}", 0, QN_FORMAT, "x.json: key \"a\" stands twice"},
    {"{\"o\":{\"a\":1,\"\\u0061\":3}}", 0, QN_FORMAT, "x.json: o: key \"a\" stands twice"},
    {"// c\n1", 0, QN_FORMAT, "a value"},
};

static void test_bad_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_texts / sizeof *bad_texts; i++) {
        const bad_json *c = &bad_texts[i];
        qn_error err = {0};
        cJSON *root = NULL;
        size_t n = c->size ? c->size : strlen(c->text);
        /* An exact copy, so that a sanitizer sees a read past the end. */
        char *copy = malloc(n ? n : 1);
        memcpy(copy, c->text, n);
        assert_int_equal(qn__json_parse(&root, "x.json", copy, n, &err), c->code);
        free(copy);
        assert_null(root);
        assert_one_line(&err, c->code, c->part);
    }
}

static void test_every_truncation_fails(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[1,-2.5e3,\"x\\u00e9\\ud83d\\ude00y\",true,null],\"b\":{}}";
    for (size_t n = 0; n < sizeof text - 1; n++) {
        char *copy = malloc(n ? n : 1);
        memcpy(copy, text, n);
        cJSON *root = NULL;
        qn_error err = {0};
        assert_int_equal(qn__json_parse(&root, "x.json", copy, n, &err), QN_FORMAT);
        assert_one_line(&err, QN_FORMAT, "x.json");
        free(copy);
    }
    cJSON *root = NULL;
    assert_int_equal(qn__json_parse(&root, "x.json", text, sizeof text - 1, NULL), QN_OK);
    cJSON_Delete(root);
}

static void test_depth(void **state)
{
    (void)state;
    static const int depths[] = {1, 63, 64, 65, 66, 1000, 10000};
    char text[20001];
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        int depth = depths[i];
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        qn_error err = {0};
        cJSON *root = NULL;
        qn_status status = qn__json_parse(&root, "x.json", text, 2 * (size_t)depth, &err);
        if (depth <= 64) {
            assert_int_equal(status, QN_OK);
            cJSON_Delete(root);
        } else {
            assert_one_line(&err, QN_LIMIT, "nested more than 64 levels");
        }
    }
}

static void test_getters(void **state)
{
    (void)state;
    static const char text[] =
        "\xef\xbb\xbf{\"hidden_size\":\"abc\",\"n\":32.0,\"eps\":1e-6,\"tie\":true,\"none\":null,"
        "\"name\":\"llama\",\"big\":9007199254740993,\"list\":[1,2.5,{\"x\":-1}],\"half\":0.5}";
    cJSON *root = NULL;
    assert_int_equal(qn__json_parse(&root, "config.json", text, sizeof text - 1, NULL), QN_OK);
    qn__json_at config = qn__json_root("config.json", root), list, item, none;
    int64_t n = 7;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    assert_int_equal(qn__json_get_int(&config, "n", 1, 64, &n, NULL), QN_OK);
    assert_int_equal(n, 32);
    assert_int_equal(qn__json_get_number(&config, "eps", 0, 1, &d, NULL), QN_OK);
    assert_true(d == 1e-6);
    qn__json_at tie;
    assert_true(qn__json_find(&config, "tie", &tie));
    assert_int_equal(qn__json_as_bool(&tie, &b, NULL), QN_OK);
    assert_true(b);
    assert_int_equal(qn__json_get_string(&config, "name", &s, NULL), QN_OK);
    assert_string_equal(s, "llama");
    n = 7;
    assert_int_equal(qn__json_opt_int(&config, "none", 1, 2, &n, NULL), QN_OK);
    assert_int_equal(qn__json_opt_int(&config, "absent", 1, 2, &n, NULL), QN_OK);
    assert_int_equal(n, 7);
    assert_false(qn__json_find(&config, "none", &none));

    qn_error err = {0};
    qn__json_get_int(&config, "hidden_size", 1, 1048576, &n, &err);
    assert_string_equal(err.message,
                        "config.json: hidden_size: expected an integer in 1..1048576, got \"abc\"");
    err = (qn_error){0};
    qn__json_get_int(&config, "absent", 1, 9, &n, &err);
    assert_one_line(&err, QN_FORMAT, "config.json: absent: missing; expected an integer in 1..9");
    err = (qn_error){0};
    qn__json_get_int(&config, "n", 1, 31, &n, &err);
    assert_one_line(&err, QN_FORMAT, "expected an integer in 1..31, got 32");
    err = (qn_error){0};
    qn__json_get_int(&config, "half", 0, 31, &n, &err);
    assert_one_line(&err, QN_FORMAT, "got 0.5");
    err = (qn_error){0};
    qn__json_get_int(&config, "big", 0, INT64_MAX, &n, &err);
    assert_one_line(&err, QN_FORMAT, "big: expected an integer");
    err = (qn_error){0};
    qn__json_opt_bool(&config, "n", &b, &err);
    assert_one_line(&err, QN_FORMAT, "n: expected true or false, got 32");
    err = (qn_error){0};
    qn__json_get_array(&config, "tie", &list, &err);
    assert_one_line(&err, QN_FORMAT, "tie: expected an array, got true");

    assert_int_equal(qn__json_get_array(&config, "list", &list, NULL), QN_OK);
    assert_true(qn__json_first(&list, &item));
    assert_true(qn__json_next(&item));
    err = (qn_error){0};
    qn__json_as_int(&item, 0, 9, &n, &err);
    assert_one_line(&err, QN_FORMAT, "config.json: list[1]: expected an integer in 0..9, got 2.5");
    assert_true(qn__json_next(&item));
    err = (qn_error){0};
    qn__json_get_int(&item, "x", 0, 9, &n, &err);
    assert_one_line(&err, QN_FORMAT, "config.json: list[2].x: expected an integer in 0..9, got -1");
    assert_false(qn__json_next(&item));
    assert_int_equal(n, 7); /* a failed getter stores nothing */
    cJSON_Delete(root);
}

static void test_large_object_in_linear_time(void **state)
{
    (void)state;
    enum { N = 200000 };
    char *text = malloc(N * 24 + 64);
    size_t n = 0;
    text[n++] = '{';
    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(text + n, "%s\"key %d\":%d", i ? "," : "", i, i);
    size_t end = n;
    text[n++] = '}';
    cJSON *root = NULL;
    clock_t start = clock();
    assert_int_equal(qn__json_parse(&root, "v.json", text, n, NULL), QN_OK);
    cJSON_Delete(root);
    n = end + (size_t)sprintf(text + end, ",\"key 1000\":1}");
    qn_error err = {0};
    assert_int_equal(qn__json_parse(&root, "v.json", text, n, &err), QN_FORMAT);
    assert_one_line(&err, QN_FORMAT, "key \"key 1000\" stands twice");
    /* About 0.1 s; quadratic time would be minutes. */
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 5.0);
    free(text);

    text = malloc(2 * QN__JSON_MAX_VALUES + 64);
    n = 0;
    text[n++] = '[';
    for (int i = 0; i < QN__JSON_MAX_VALUES; i++) {
        text[n++] = '1';
        text[n++] = i + 1 < QN__JSON_MAX_VALUES ? ',' : ']';
    }
    err = (qn_error){0};
    assert_int_equal(qn__json_parse(&root, "v.json", text, n, &err), QN_LIMIT);
    assert_one_line(&err, QN_LIMIT, "500001 values, more than the limit of 500000");
    free(text);
}

static void test_scanner_pulls(void **state)
{
    (void)state;
    static const char text[] = " { \"plain\" : \"a\\n\\u20ac\\ud83d\\ude00\" , \"skip\":[{},[1]],"
                               "\"n\":-42, \"on\":true }";
    qn_error err = {0};
    qn__json_scan scan;
    qn__json_scan_begin(&scan, "s.json", text, sizeof text - 1, &err);
    qn__json_text key, value;
    int64_t n;
    bool on;
    assert_true(qn__json_enter_object(&scan));
    assert_true(qn__json_next_key(&scan, &key));
    assert_memory_equal(key.data, "plain", 5);
    assert_true(qn__json_read_string(&scan, &value));
    assert_int_equal(value.size, 9);
    assert_memory_equal(value.data, "a\n\xe2\x82\xac\xf0\x9f\x98\x80", 9);
    assert_true(qn__json_next_key(&scan, &key));
    assert_true(qn__json_skip(&scan, &value));
    assert_int_equal(value.size, 8);
    assert_memory_equal(value.data, "[{},[1]]", 8);
    assert_true(qn__json_next_key(&scan, &key));
    assert_true(qn__json_read_int(&scan, -50, 50, &n));
    assert_int_equal(n, -42);
    assert_true(qn__json_next_key(&scan, &key));
    assert_true(qn__json_read_bool(&scan, &on));
    assert_false(qn__json_next_key(&scan, &key));
    assert_int_equal(qn__json_scan_end(&scan), QN_OK);
}

static void test_scanner_integers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
        int64_t value;
    } cases[] = {
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"\"1\"", false, 0},
        {"-0", true, 0},
        {"99999999999999999999999", false, 0},
        {"null", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_error err = {0};
        qn__json_scan scan;
        int64_t v = 1;
        qn__json_scan_begin(&scan, "s.json", cases[i].text, strlen(cases[i].text), &err);
        bool good = qn__json_read_int(&scan, INT64_MIN, INT64_MAX, &v);
        qn__json_scan_end(&scan);
        assert_int_equal(good, cases[i].good);
        if (good)
            assert_true(v == cases[i].value);
        else
            assert_one_line(&err, QN_FORMAT, "expected an integer in");
    }
}

static void test_failed_allocations(void **state)
{
    (void)state;
    char text[4096];
    size_t n = 0;
    text[n++] = '{';
    for (int i = 0; i < 40; i++)
        n += (size_t)sprintf(text + n, "%s\"k\\u0041%d\":\"v\\n%d\"", i ? "," : "", i, i);
    text[n++] = '}';
    for (long k = 0;; k++) {
        cJSON *root = NULL;
        qn_error err = {0};
        fail_allocation_begin(k);
        qn_status status = qn__json_parse(&root, "x.json", text, n, &err);
        if (!fail_allocation_end()) {
            assert_int_equal(status, QN_OK);
            cJSON_Delete(root);
            assert_true(k >= 2);
            break;
        }
        assert_int_equal(status, QN_MEMORY);
        assert_null(root);
        assert_one_line(&err, QN_MEMORY, "out of memory");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_every_truncation_fails),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_getters),
        cmocka_unit_test(test_large_object_in_linear_time),
        cmocka_unit_test(test_scanner_pulls),
        cmocka_unit_test(test_scanner_integers),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
