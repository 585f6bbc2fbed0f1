/* SPDX-License-Identifier: Apache-2.0
 *
 * Ids against a second implementation: what llama.cpp makes of its test texts with the vocabularies
 * that we can load, as in QUERN_TEST_DATA/gguf_vocab (skipped without it). NAME.inp has texts with
 * a line of
 * __ggml_vocab_test__ between them, NAME.out a line of ids for each. The Hugging Face library,
 * which test_tokenizer.c compares with, agrees on all of them.
 */
#include "test.h"

#include "base/file.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

static const struct {
    const char *vocabulary, *tokenizer;
} pairs[] = {
    {"gpt-2", "tokenizers/gpt2"},
    {"starcoder", "assembled/starcoder"},
    {"llama-spm", "tokenizers/llama2"},
    {"phi-3", "tokenizers/llama2"}, /* Llama 2's, but for control tokens */
};

static const char *data_path(const char *name, const char *suffix)
{
    static char path[PATH_MAX];
    const char *data = getenv("QUERN_TEST_DATA");
    if (!data) {
        print_message("skipped: QUERN_TEST_DATA is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/%s%s", data, name, suffix);
    return path;
}

static char *read_text_file(const char *vocabulary, const char *suffix)
{
    char name[80], *data;
    size_t n;
    qn_error err = {0};
    snprintf(name, sizeof name, "gguf_vocab/ggml-vocab-%s.gguf", vocabulary);
    if (qn__file_read(data_path(name, suffix), 1 << 20, &data, &n, &err) != QN_OK)
        fail_msg("%s", err.message);
    data = realloc(data, n + 1);
    data[n] = '\0';
    return data;
}

/* The ids of the line at *at, which moves behind it. */
static size_t read_line_of_ids(char **at, int32_t *ids, size_t most)
{
    size_t n = 0;
    char *end = strchr(*at, '\n'), *next;
    for (char *p = *at;; p = next) {
        long id = strtol(p, &next, 10);
        if (next == p || (end && next > end))
            break;
        assert_true(n < most);
        ids[n++] = (int32_t)id;
    }
    *at = end ? end + 1 : *at + strlen(*at);
    return n;
}

/* The number of texts. */
static int compare_texts(const qn_tokenizer *t, const char *vocabulary)
{
    static const char border[] = "\n__ggml_vocab_test__\n";
    enum { MOST = 4000 };
    char *inputs = read_text_file(vocabulary, ".inp"),
         *outputs = read_text_file(vocabulary, ".out");
    int32_t *expected = malloc(MOST * sizeof *expected);
    char *text = inputs, *line = outputs, *end;
    int texts = 0;
    for (; (end = strstr(text, border)); text = end + sizeof border - 1, texts++) {
        size_t n = read_line_of_ids(&line, expected, MOST);
        qn_tokens ids = {0};
        assert_int_equal(qn_tokenizer_encode(t, text, (size_t)(end - text), 0, &ids, NULL), QN_OK);
        if (ids.n != n || (n > 0 && memcmp(ids.ids, expected, n * sizeof *expected) != 0))
            fail_msg("%s: text %d: %.*s", vocabulary, texts, (int)(end - text), text);
        qn_tokens_free(&ids);
    }
    free(expected);
    free(inputs);
    free(outputs);
    return texts;
}

static void test_ids(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        qn_tokenizer *t;
        qn_error err = {0};
        if (qn_tokenizer_open(&t, data_path(pairs[i].tokenizer, ""), &err) != QN_OK)
            fail_msg("%s", err.message);
        assert_int_equal(compare_texts(t, pairs[i].vocabulary), 46);
        qn_tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
