/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizer files and texts that are large where they should be small: each is refused in one line
 * or works, within a second (ten under a sanitizer). Small broken files are in
 * test_broken_tokenizer.c.
 */
#include "test.h"

#include "base/temp_dir.h"

#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define BYTE_LEVEL "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"}"

#ifdef __SANITIZE_ADDRESS__
enum { MOST_SECONDS = 10 };
#else
enum { MOST_SECONDS = PATIENCE };
#endif

enum { LONG = 1000000 };

static double seconds_since(clock_t start)
{
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* n letters in the place of the % of format. */
static const char *write_long(const char *format, size_t n, char letter)
{
    const char *hole = strchr(format, '%');
    size_t head = (size_t)(hole - format), tail = strlen(hole + 1);
    char *text = malloc(head + n + tail);
    memcpy(text, format, head);
    memset(text + head, letter, n);
    memcpy(text + head + n, hole + 1, tail);
    const char *path = temp_write("long.json", text, head + n + tail);
    free(text);
    return path;
}

static void refused(const char *format, size_t n, char letter, qn_status code, const char *part)
{
    qn_tokenizer *t = (qn_tokenizer *)1;
    qn_error err = {0};
    const char *path = write_long(format, n, letter);
    clock_t start = clock();
    qn_status status = qn_tokenizer_open(&t, path, &err);
    assert_true(seconds_since(start) < MOST_SECONDS);
    assert_null(t);
    if (status != code || err.code != code || !strstr(err.message, part) ||
        strchr(err.message, '\n') || !strstr(err.message, "long.json: ") ||
        strlen(err.message) > 600)
        fail_msg("\"%s\" (%d), expected \"%s\"", err.message, (int)status, part);
}

static void test_long_and_deep(void **state)
{
    (void)state;
    refused("{" BYTE_LEVEL ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a %\"]}}", LONG, 'b',
            QN_FORMAT, "model.merges[0]: \"bbb");
    refused("{" BYTE_LEVEL ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"%\"]]}}", LONG,
            'b', QN_FORMAT, "model.merges[0]: \"bbb");
    refused("{" BYTE_LEVEL ",\"model\":{\"vocab\":{\"%\":\"x\"},\"merges\":[]}}", LONG, 'b',
            QN_FORMAT, "expected an integer");
    refused("{" BYTE_LEVEL
            ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":1,"
            "\"content\":\"%\"}]}",
            513, 'x', QN_LIMIT, "added_tokens[0]: content of 513 bytes, more than 512");
    refused("{" BYTE_LEVEL ",\"model\":{\"vocab\":{\"a\":%}}}", LONG, '9', QN_LIMIT,
            "more than 63 characters");
    refused("{\"pre_tokenizer\":%", 10000, '[', QN_LIMIT, "nested more than 64 levels");
    refused("{\"model\":%", 10000, '[', QN_FORMAT, "expected an object");
    refused("{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%\"}," BYTE_LEVEL
            ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
            LONG, 'A', QN_FORMAT, "precompiled_charsmap: a table of");
}

/* A piece of a megabyte that can be merged, and an id at the limit: both work. */
static void test_large_but_valid(void **state)
{
    (void)state;
    qn_tokenizer *t;
    qn_error err = {0};
    const char *path = write_long(
        "{" BYTE_LEVEL ",\"model\":{\"vocab\":{\"a\":0,\"%\":4194303},\"merges\":[]}}", LONG, 'a');
    clock_t start = clock();
    if (qn_tokenizer_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_true(seconds_since(start) < MOST_SECONDS);
    assert_int_equal(qn_tokenizer_vocab_size(t), 4194304);
    qn_tokens ids = {0};
    qn_text back = {0};
    assert_int_equal(qn_tokenizer_encode(t, "aaa", 3, 0, &ids, &err), QN_OK);
    assert_int_equal(ids.n, 3);
    ids.ids[0] = 4194303;
    assert_int_equal(qn_tokenizer_decode(t, ids.ids, 1, 0, &back, &err), QN_OK);
    assert_int_equal(back.n, LONG);
    qn_tokens_free(&ids);
    qn_text_free(&back);
    qn_tokenizer_close(t);
}

/* A megabyte of one character, with a byte-level vocabulary of many merges. */
static void test_one_character(void **state)
{
    (void)state;
    static const char letters[] = {'a', ' ', '=', '\n', '1', '\xc3'};
    char path[PATH_MAX], *text = malloc(LONG);
    qn_tokenizer *t;
    qn_error err = {0};
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/models/demo", root ? root : ".");
    if (qn_tokenizer_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof letters; i++) {
        qn_tokens ids = {0};
        qn_text back = {0};
        memset(text, letters[i], LONG);
        for (size_t j = 1; letters[i] == '\xc3' && j < LONG; j += 2)
            text[j] = '\xa9';
        clock_t start = clock();
        assert_int_equal(qn_tokenizer_encode(t, text, LONG, 0, &ids, &err), QN_OK);
        assert_true(seconds_since(start) < MOST_SECONDS);
        assert_int_equal(qn_tokenizer_decode(t, ids.ids, ids.n, 0, &back, &err), QN_OK);
        assert_int_equal(back.n, LONG);
        assert_memory_equal(back.data, text, LONG);
        qn_tokens_free(&ids);
        qn_text_free(&back);
    }
    free(text);
    qn_tokenizer_close(t);
}

/* Rules that multiply a text: `from` becomes n times itself, as often as `times` says. */
static qn_tokenizer *open_multiplier(const char *part, const char *list, int times, size_t n)
{
    char json[65536], many[4097];
    memset(many, 'a', n);
    many[n] = '\0';
    size_t used = (size_t)sprintf(json, "{\"%s\":{\"type\":\"Sequence\",\"%s\":[", part, list);
    for (int i = 0; i < times; i++)
        used += (size_t)sprintf(json + used,
                                "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                                "\"content\":\"%s\"}",
                                i ? "," : "", many);
    sprintf(json + used, "]},\"model\":{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a\"]}}");
    qn_tokenizer *t;
    qn_error err = {0};
    if (qn_tokenizer_open(&t, temp_write("many.json", json, strlen(json)), &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static size_t peak_memory(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss << 10;
}

static void encode_multiplied(int times, size_t each, size_t n, qn_status expected)
{
    qn_tokenizer *t = open_multiplier("normalizer", "normalizers", times, each);
    qn_error err = {0};
    qn_tokens ids = {0};
    char *text = malloc(n);
    memset(text, 'a', n);
    size_t before = peak_memory();
    (void)before; /* not read under a sanitizer */
    qn_status status = qn_tokenizer_encode(t, text, n, 0, &ids, &err);
#ifndef __SANITIZE_ADDRESS__
    assert_true(peak_memory() - before <= 64 * n + (4 << 20)); /* and the cache of words */
#endif
    if (status != expected || (status == QN_LIMIT && !strstr(err.message, "the limit: ")))
        fail_msg("%d times %zu: %s (%d)", times, each, err.message, (int)status);
    if (status == QN_OK)
        assert_int_equal(ids.n, n * each / 2);
    free(text);
    qn_tokens_free(&ids);
    qn_tokenizer_close(t);
}

/* Memory grows with the text, not with what the rules make of it. */
static void test_rules_that_multiply(void **state)
{
    (void)state;
    encode_multiplied(8, 1, 100000, QN_OK);
    encode_multiplied(1, 8, 500, QN_OK);
    encode_multiplied(1, 8, 200000, QN_LIMIT);  /* one word of it takes too much */
    encode_multiplied(1, 32, 200000, QN_LIMIT); /* the text alone does */
    encode_multiplied(4, 4096, 20, QN_LIMIT);
    encode_multiplied(4, 4096, 1000000, QN_LIMIT);
}

/* SentencePiece's table, by which 'a' becomes a thousand of them, in base 64. */
static void write_table(char *out)
{
    enum { UNITS = 128, STRING = 999 };
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t table[4 + 4 * UNITS + STRING + 1] = {(4 * UNITS) & 255, (4 * UNITS) >> 8};
    uint32_t units[UNITS] = {[0] = 1 << 10, ['a' ^ 1] = 1 << 10 | 0x100 | 'a', ['a'] = 0x80000000u};
    for (int i = 0; i < UNITS; i++)
        for (int k = 0; k < 4; k++)
            table[4 + 4 * i + k] = (uint8_t)(units[i] >> (8 * k));
    memset(table + 4 + 4 * UNITS, 'a', STRING);
    size_t n = 0;
    for (size_t i = 0; i + 2 < sizeof table; i += 3) {
        uint32_t bits = (uint32_t)table[i] << 16 | (uint32_t)table[i + 1] << 8 | table[i + 2];
        for (int k = 18; k >= 0; k -= 6)
            out[n++] = digits[bits >> k & 63];
    }
    uint32_t rest = (uint32_t)table[sizeof table - 1] << 4; /* the size is 3 n + 1 */
    out[n++] = digits[rest >> 6 & 63];
    out[n++] = digits[rest & 63];
    strcpy(out + n, "==");
}

static void test_tables_that_multiply(void **state)
{
    (void)state;
    char table[4096], json[8192];
    qn_tokenizer *t;
    qn_error err = {0};
    write_table(table);
    sprintf(json,
            "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"},\"model\":{"
            "\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1]]}}",
            table);
    if (qn_tokenizer_open(&t, temp_write("table.json", json, strlen(json)), &err) != QN_OK)
        fail_msg("%s", err.message);
    char *text = malloc(LONG);
    memset(text, 'a', LONG);
    qn_tokens ids = {0};
    assert_int_equal(qn_tokenizer_encode(t, text, 3, 0, &ids, &err), QN_OK);
    assert_int_equal(ids.n, 2997);
    assert_int_equal(qn_tokenizer_encode(t, text, LONG, 0, &ids, &err), QN_LIMIT);
    assert_non_null(strstr(err.message, "16 times"));
    assert_int_equal(ids.n, 2997);
    qn_tokens_free(&ids);
    free(text);
    qn_tokenizer_close(t);
}

static void test_decoders_that_multiply(void **state)
{
    (void)state;
    static const int32_t ids[] = {0, 0, 1, 0};
    for (int times = 1; times <= 4; times++) {
        qn_tokenizer *t = open_multiplier("decoder", "decoders", times, 1000);
        qn_error err = {0};
        qn_text back = {0};
        qn_status status = qn_tokenizer_decode(t, ids, 4, 0, &back, &err);
        if (times == 1) {
            assert_int_equal(status, QN_OK);
            assert_int_equal(back.n, 5000);
        } else {
            assert_int_equal(status, QN_LIMIT);
            assert_non_null(strstr(err.message, "64 times"));
            assert_int_equal(back.n, 0);
            assert_true(back.capacity < 1 << 20);
        }
        qn_text_free(&back);
        qn_tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_that_multiply), /* first: it looks at the peak of memory */
        cmocka_unit_test(test_decoders_that_multiply), cmocka_unit_test(test_tables_that_multiply),
        cmocka_unit_test(test_long_and_deep),          cmocka_unit_test(test_large_but_valid),
        cmocka_unit_test(test_one_character),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
