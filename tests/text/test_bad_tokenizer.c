/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizer files and texts that are large where they should be small: each is refused in one line
 * or works, within a second (ten under a sanitizer). Small broken files are in test_tokenizer.c.
 */
#include "test.h"

#include "base/temp_dir.h"

#include <stdbool.h>
#include <string.h>
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
            LONG, 'A', QN_UNSUPPORTED, "Precompiled");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_and_deep),
        cmocka_unit_test(test_large_but_valid),
        cmocka_unit_test(test_one_character),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
