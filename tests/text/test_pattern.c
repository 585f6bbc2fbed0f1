/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns against the Hugging Face library, which runs them through Oniguruma (patterns.jsonl,
 * made by make_patterns.py): the same pieces, or refused by name. And their limits.
 */
#include "../test.h"

#include "base/file.h"
#include "base/json.h"
#include "base/buffers.h"
#include "text/pattern.h"
#include "base/unicode.h"
#include "../base/fail_alloc.h"

#include <string.h>
#include <time.h>

static const char *source_path(const char *name)
{
    static char path[4096];
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    return path;
}

/* The pieces of a text with newlines between them: those of the array, or those that matches cut.
 */
static void join_expected(const cJSON *pieces, qn_text *out)
{
    const cJSON *piece;
    out->n = 0;
    cJSON_ArrayForEach(piece, pieces)
    {
        qn__text_append(out, piece->valuestring, strlen(piece->valuestring));
        qn__text_append(out, "|", 1);
    }
}

static void add_piece(qn_text *out, const char *s, size_t from, size_t to)
{
    if (to > from) {
        qn__text_append(out, s + from, to - from);
        qn__text_append(out, "|", 1);
    }
}

static qn_status split_at_matches(const qn__pattern *pattern, const char *s, bool removed,
                                  qn_text *out, qn_error *err)
{
    size_t n = strlen(s), done = 0, at = 0, last_end = SIZE_MAX, start, end;
    qn__match match = {.text_size = n};
    qn_status status = QN_OK;
    out->n = 0;
    while (at <= n) {
        status = qn__pattern_next(pattern, &match, s, n, at, &start, &end, err);
        if (status != QN_OK || start > n)
            break;
        if (qn__pattern_skips(start, end, last_end)) {
            at = qn__char_behind(s, n, at);
            continue;
        }
        add_piece(out, s, done, start);
        if (!removed)
            add_piece(out, s, start, end);
        done = at = last_end = end;
    }
    add_piece(out, s, done, n);
    qn__match_free(&match);
    return status;
}

/* Returns 1 where the pattern is refused though the library takes it. */
static int check_line(const cJSON *line, int *wrong)
{
    const char *source = cJSON_GetObjectItem(line, "pattern")->valuestring;
    const cJSON *texts = cJSON_GetObjectItem(line, "texts"), *text;
    qn__pattern *pattern = NULL;
    qn_error err = {0};
    qn_text got = {0}, want = {0};
    qn_status status = qn__pattern_new(&pattern, source, true, "p", &err);
    if (status != QN_OK && (!texts || status == QN_UNSUPPORTED))
        return texts != NULL;
    if (status != QN_OK || !texts) {
        print_message("%s: %s\n", source, status ? err.message : "the library refuses it");
        ++*wrong;
    }
    if (status != QN_OK)
        texts = NULL;
    cJSON_ArrayForEach(text, texts)
    {
        const char *s = cJSON_GetArrayItem(text, 0)->valuestring;
        for (int removed = 0; removed < 2; removed++) {
            join_expected(cJSON_GetArrayItem(text, 1 + removed), &want);
            if (split_at_matches(pattern, s, removed, &got, &err) != QN_OK)
                fail_msg("%s: %s", source, err.message);
            if (got.n != want.n || (got.n && memcmp(got.data, want.data, got.n) != 0)) {
                print_message("%s: %s gives %.*s, expected %.*s\n", source, s, (int)got.n, got.data,
                              (int)want.n, want.data);
                ++*wrong;
            }
        }
    }
    qn_text_free(&got);
    qn_text_free(&want);
    qn__pattern_free(pattern);
    return 0;
}

static void test_as_the_library(void **state)
{
    (void)state;
    char *file;
    size_t size;
    qn_error err = {0};
    int refused = 0, wrong = 0, lines = 0;
    if (qn__file_read(source_path("tests/text/patterns.jsonl"), 16 << 20, &file, &size, &err) !=
        QN_OK)
        fail_msg("%s", err.message);
    for (char *line = file, *end; (end = memchr(line, '\n', (size_t)(file + size - line)));
         line = end + 1, lines++) {
        cJSON *root = cJSON_ParseWithLength(line, (size_t)(end - line));
        assert_non_null(root);
        refused += check_line(root, &wrong);
        cJSON_Delete(root);
    }
    print_message("%d patterns, %d differ, %d are refused by name\n", lines, wrong, refused);
    assert_true(lines >= 400);
    assert_int_equal(wrong, 0);
    assert_true(refused <= 5);
    free(file);
}

/* Refused by name, not read otherwise. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *part;
    } cases[] = {
        {"(?~ab)", "absent"},
        {"\\X", "grapheme"},
        {"(?(1)a|b)", "condition"},
        {"\\g<1>(a)", "call of a group"},
        {"(?W)a", "option"},
        {"\\p{Grapheme_Base}", "property"},
        {"(?i:[\xc3\x9f])", "matches two"},
        {"(*FAIL)", "callout"},
        {"\\cA", "control character"},
        {"[\\w--a]", "- in a class"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn__pattern *pattern = NULL;
        qn_error err = {0};
        qn_status status = qn__pattern_new(&pattern, cases[i].pattern, true, "p", &err);
        if (status != QN_UNSUPPORTED || pattern || !strstr(err.message, cases[i].part))
            fail_msg("%s: %s (%d)", cases[i].pattern, err.message, (int)status);
    }
    static const struct {
        const char *before, *again, *after;
    } deep[] = {{"", "(", ""}, {"", "[", ""}, {"", "(?:a|", ""}, {"a", "*", ""}, {"", "(?i)", "a"}};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        enum { TIMES = 10000 };
        size_t k = strlen(deep[i].again), n = strlen(deep[i].before);
        char *source = calloc(1, TIMES * k + 100);
        qn__pattern *pattern = NULL;
        memcpy(source, deep[i].before, n);
        for (int j = 0; j < TIMES; j++, n += k)
            memcpy(source + n, deep[i].again, k);
        strcpy(source + n, deep[i].after);
        assert_int_not_equal(qn__pattern_new(&pattern, source, true, "p", NULL), QN_OK);
        assert_null(pattern);
        free(source);
    }
}

/* What takes too long or too much is an error within seconds; what is honest goes through. */
static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        char letter;
        size_t n;
        qn_status status;
    } cases[] = {
        {"(?=.*z)a", 'a', 1000000, QN_LIMIT},
        {"(?=.*z)a", 'a', 3000, QN_OK},
        {"(?=.*+z)a", 'a', 60000, QN_LIMIT}, /* a run of characters is not one step */
        {"(a|aa)+$b", 'a', 300, QN_LIMIT},
        {"(a+)+b", 'a', 300, QN_LIMIT},
        {"(?:(a)|(c))*", 'a', 1000000, QN_LIMIT}, /* its stack */
        {"(?:(a)|(c))*", 'a', 10000, QN_OK},
        {"\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))", '1', 10000, QN_OK},
        {"\\p{L}+|\\s", 'a', 1000000, QN_OK},
        {"(?<=a.*)b", 'b', 3000, QN_OK},
        {"(?:(?:(?:a?){30}){30}){30}", 'a', 10000, QN_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn__pattern *pattern;
        qn_error err = {0};
        qn_text out = {0};
        char *text = malloc(cases[i].n + 1);
        memset(text, cases[i].letter, cases[i].n);
        text[cases[i].n] = 0;
        assert_int_equal(qn__pattern_new(&pattern, cases[i].pattern, true, "p", &err), QN_OK);
        clock_t begun = clock();
        qn_status status = split_at_matches(pattern, text, false, &out, &err);
        double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
#ifdef __SANITIZE_ADDRESS__
        seconds /= 10;
#endif
        if (status != cases[i].status || seconds > 4 * PATIENCE)
            fail_msg("%s: %d %s (%.1f s)", cases[i].pattern, (int)status, err.message, seconds);
        qn_text_free(&out);
        qn__pattern_free(pattern);
        free(text);
    }
}

static void test_failed_allocations_of_patterns(void **state)
{
    (void)state;
    int n = 0;
    for (bool failed = true; failed; n++) {
        qn__pattern *pattern = NULL;
        qn__match match = {.text_size = 8};
        size_t start, end = 0;
        fail_allocation_begin(n);
        qn_status status = qn__pattern_new(&pattern, "(?i:(?<n>k|ss)+|[^\\p{L}a-z&&\\w]*?)(?<!x)",
                                           true, "p", NULL);
        if (status == QN_OK)
            status = qn__pattern_next(pattern, &match, "kKSS! ab", 8, 0, &start, &end, NULL);
        failed = fail_allocation_end();
        assert_int_equal(status, failed ? QN_MEMORY : QN_OK);
        assert_int_equal(end, failed ? end : 4);
        qn__pattern_free(pattern);
        qn__match_free(&match);
    }
    assert_true(n > 3);
}

/* Words, with '|' between them. */
static void test_scanners(void **state)
{
    (void)state;
    static const struct {
        qn__scanner scan;
        const char *words;
    } cases[] = {
        {qn__scan_gpt2, "It|'s| they|'re| we|'ll|'|LL|'|S| don|'t|'"},
        {qn__scan_gpt2, " a|  | b| |\n|c|\n\n|\n|d|  "},
        {qn__scan_gpt2, "abc|123|!?| 45| ...|x|\xc2\xbd|\xc3\xa9"},
        {qn__scan_llama3, "It|'s| THEY|'RE|x|'|\t|'Ll|'D|'\xc5\xbf|'x|'"},
        {qn__scan_llama3, "123|456|7|a|12\xc2\xbd|\xd9\xa3"
                          "4"},
        {qn__scan_llama3, "\n|abc|\r|x|\tabc|!abc| abc|.\xc3\xa9t\xc3\xa9|\xc2\xa0x"},
        {qn__scan_llama3, "a| !!\n\r\n|b|  \n \n|  | c|  "},
        {qn__scan_llama3, "a|\n  \n|   |\tb|\xe3\x80\x80\xe3\x80\x80"},
        {qn__scan_qwen, "1|2|3|a|\xe2\x85\xa7|4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words = cases[i].words;
        char text[128], got[256];
        size_t n = 0, m = 0;
        for (const char *p = words; *p; p++)
            if (*p != '|')
                text[n++] = *p;
        for (size_t at = 0; at < n;) {
            size_t end = cases[i].scan(text, n, at);
            assert_true(end > at && end <= n);
            if (at > 0)
                got[m++] = '|';
            memcpy(got + m, text + at, end - at);
            m += end - at;
            at = end;
        }
        got[m] = '\0';
        assert_string_equal(got, words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_the_library),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_scanners),
        cmocka_unit_test(test_failed_allocations_of_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
