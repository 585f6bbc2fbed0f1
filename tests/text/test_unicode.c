/* SPDX-License-Identifier: Apache-2.0
 *
 * Unicode's tables against what the Hugging Face library holds (QUERN_TEST_DATA), and NFC.
 */
#include "token_test.h"

#include "base/unicode.h"
#include "text/nfc.h"

/* Marks in `set` the code points of the class `name` of classes.json. */
static void read_class(const char *json, size_t size, const char *name, uint8_t *set)
{
    qn_error err = {0};
    qn__json_scan scan;
    qn__json_text key, range;
    memset(set, 0, 0x110000);
    qn__json_scan_begin(&scan, "classes.json", json, size, &err);
    assert_true(qn__json_enter_object(&scan));
    while (qn__json_next_key(&scan, &key)) {
        if (!key_equals(&key, name)) {
            qn__json_skip(&scan, NULL);
            continue;
        }
        assert_true(qn__json_enter_object(&scan));
        while (qn__json_next_key(&scan, &key)) {
            if (!key_equals(&key, "ranges")) {
                qn__json_skip(&scan, NULL);
                continue;
            }
            assert_true(qn__json_enter_array(&scan));
            while (qn__json_next_item(&scan) && qn__json_read_string(&scan, &range)) {
                char text[32], *end;
                snprintf(text, sizeof text, "%.*s", (int)range.size, range.data);
                unsigned long first = strtoul(text, &end, 16);
                unsigned long last = *end == '-' ? strtoul(end + 1, NULL, 16) : first;
                for (unsigned long c = first; c <= last; c++)
                    set[c] = 1;
            }
        }
    }
    if (qn__json_scan_end(&scan) != QN_OK)
        fail_msg("%s", err.message);
}

static void test_unicode_classes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned bit;
    } classes[] = {
        {"L", QN__LETTER},
        {"N", QN__NUMBER},
        {"M", QN__MARK},
        {"P", QN__PUNCTUATION},
        {"S", QN__SYMBOL},
        {"s", QN__SPACE},
        {"rust_is_numeric(Digits)", QN__NUMERIC},
    };
    char *json;
    size_t size;
    assert_int_equal(qn__file_read(data_path("unicode/hf_tokenizers_0.23.2_classes.json"), 1 << 24,
                                   &json, &size, NULL),
                     QN_OK);
    uint8_t *set = malloc(0x110000);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        int different = 0, members = 0;
        read_class(json, size, classes[i].name, set);
        for (uint32_t c = 0; c < 0x110000; c++) {
            different += ((qn__unicode_class(c) & classes[i].bit) != 0) != set[c];
            members += set[c];
        }
        assert_true(members > 0);
        if (different)
            fail_msg("%s: %d code points differ", classes[i].name, different);
    }
    free(set);
    free(json);
}

/* "41 30A" to UTF-8 */
static size_t parse_points(const qn__json_text *text, char *out)
{
    char copy[512];
    size_t n = 0;
    assert_true(text->size < sizeof copy);
    memcpy(copy, text->data, text->size);
    copy[text->size] = '\0';
    for (char *p = copy, *end; *p; p = end) {
        n += qn__utf8_encode((uint32_t)strtoul(p, &end, 16), out + n);
        while (*end == ' ')
            end++;
    }
    return n;
}

static void assert_nfc(const char *s, size_t n, const char *expected, size_t m)
{
    qn_text got = {0};
    assert_true(qn__nfc_append(&got, s, n));
    if (got.n != m || memcmp(got.data, expected, m) != 0)
        fail_msg("NFC of %.*s is %.*s, expected %.*s", (int)n, s, (int)got.n, got.data, (int)m,
                 expected);
    qn_text_free(&got);
}

static void test_nfc(void **state)
{
    (void)state;
    char *json;
    size_t size;
    qn_error err = {0};
    assert_int_equal(qn__file_read(data_path("unicode/hf_tokenizers_0.23.2_nfc.json"), 1 << 24,
                                   &json, &size, NULL),
                     QN_OK);
    uint8_t *changed = calloc(0x110000, 1);
    qn__json_scan scan;
    qn__json_text key, text;
    char from[2048], to[2048];
    int cases = 0;
    qn__json_scan_begin(&scan, "nfc.json", json, size, &err);
    assert_true(qn__json_enter_object(&scan));
    while (qn__json_next_key(&scan, &key)) {
        bool nfc = key_equals(&key, "nfc"), nfd = key_equals(&key, "nfd");
        if (nfc || nfd) {
            assert_true(qn__json_enter_object(&scan));
            while (qn__json_next_key(&scan, &key)) {
                size_t n = parse_points(&key, from);
                uint32_t c = 0;
                qn__utf8_decode(from, n, &c);
                assert_true(qn__json_read_string(&scan, &text));
                size_t m = parse_points(&text, to);
                if (nfc) {
                    changed[c] = 1;
                    assert_nfc(from, n, to, m);
                } else {
                    /* What decomposes composes again, or goes where the nfc table says. */
                    qn_text a = {0};
                    assert_true(qn__nfc_append(&a, from, n));
                    assert_nfc(to, m, a.data, a.n);
                    qn_text_free(&a);
                }
                cases++;
            }
        } else {
            assert_true(qn__json_enter_array(&scan));
            while (qn__json_next_item(&scan)) {
                size_t n = 0, m = 0;
                int i = 0;
                assert_true(qn__json_enter_array(&scan));
                for (; qn__json_next_item(&scan) && qn__json_read_string(&scan, &text); i++) {
                    if (i == 0)
                        n = parse_points(&text, from);
                    m = parse_points(&text, to);
                }
                assert_nfc(from, n, to, m);
                cases++;
            }
        }
    }
    if (qn__json_scan_end(&scan) != QN_OK)
        fail_msg("%s", err.message);
    assert_true(cases > 5000);
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (changed[c] || (c >= 0xd800 && c < 0xe000))
            continue;
        size_t n = qn__utf8_encode(c, from);
        assert_nfc(from, n, from, n);
    }
    free(changed);
    free(json);
}

static void test_nfc_without_data(void **state)
{
    (void)state;
    assert_nfc("cafe\xcc\x81", 6, "caf\xc3\xa9", 5);
    /* Marks in the wrong order: dot below goes before dot above. */
    assert_nfc("s\xcc\x87\xcc\xa3", 5, "\xe1\xb9\xa9", 3);
    assert_nfc("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", 9, "\xed\x95\x9c", 3); /* Hangul */
    assert_nfc("\xe2\x84\xab", 3, "\xc3\x85", 2);                             /* angstrom */
    assert_nfc("plain", 5, "plain", 5);
    /* A mark of the same class between them keeps a and acute apart. */
    assert_nfc("a\xcc\xbd\xcc\x81", 5, "a\xcc\xbd\xcc\x81", 5);
    assert_nfc("", 0, "", 0);
    /* A megabyte of marks in falling order. */
    enum { N = 1 << 20 };
    char *text = malloc(N);
    for (size_t i = 0; i < N; i += 2)
        memcpy(text + i, i < N / 2 ? "\xcc\x81" : "\xcc\xa3", 2);
    qn_text out = {0};
    clock_t start = clock();
    assert_true(qn__nfc_append(&out, text, N));
    assert_true(seconds_since(start) < 2 * PATIENCE);
    assert_int_equal(out.n, N);
    assert_memory_equal(out.data, "\xcc\xa3", 2);
    qn_text_free(&out);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nfc_without_data),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_unicode_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
