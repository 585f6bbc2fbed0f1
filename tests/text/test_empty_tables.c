/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokenizer's tables with no entry and with one: the file opens and encodes what it can, or is
 * refused in one line. Nothing else may happen; values are for test_tokenizer.c.
 */
#include "test.h"

#include "base/temp_dir.h"

#include <stdbool.h>
#include <string.h>

/* What a file says, part by part; one part at a time is exchanged. */
enum { VOCAB, MERGES, ADDED, NORMALIZER, PRE, POST, DECODER, PARTS };

static const char *const names[PARTS] = {
    "vocab", "merges", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"};

static const char *const good[PARTS] = {
    "{\"a\":0,\"b\":1,\"ab\":2,\"<s>\":3}",
    "[[\"a\",\"b\"]]",
    "[{\"id\":3,\"content\":\"<s>\",\"special\":true}]",
    "null",
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}",
    "null",
    "{\"type\":\"ByteLevel\"}",
};

#define SEQUENCE(key, entries) "{\"type\":\"Sequence\",\"" key "\":[" entries "]}"
#define TEMPLATE(single, special)                                                                  \
    "{\"type\":\"TemplateProcessing\",\"single\":" single                                          \
    ",\"pair\":[],\"special_tokens\":" special "}"
#define SPLIT(pattern)                                                                             \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern                                        \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"

static const struct {
    int part;
    const char *text;
} cases[] = {
    {VOCAB, "{}"},
    {VOCAB, "{\"a\":0}"},
    {VOCAB, "{\"\":0}"},
    {MERGES, "[]"},
    {MERGES, "[\"a b\"]"},
    {MERGES, "[\"\"]"},
    {MERGES, "[\" \"]"},
    {MERGES, "[[]]"},
    {MERGES, "[[\"a\"]]"},
    {MERGES, "[[\"\",\"\"]]"},
    {ADDED, "[]"},
    {ADDED, "[{}]"},
    {ADDED, "[{\"id\":0,\"content\":\"\"}]"},
    {ADDED, "[{\"id\":9,\"content\":\"x\"}]"},
    {NORMALIZER, "{}"},
    {NORMALIZER, SEQUENCE("normalizers", "")},
    {NORMALIZER, SEQUENCE("normalizers", "{\"type\":\"NFC\"}")},
    {NORMALIZER, SEQUENCE("normalizers", SEQUENCE("normalizers", ""))},
    {NORMALIZER, "{\"type\":\"Prepend\",\"prepend\":\"\"}"},
    {NORMALIZER, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}"},
    {NORMALIZER, "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\"},\"content\":\"\"}"},
    {NORMALIZER, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}"},
    {NORMALIZER, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAAAA==\"}"},
    {PRE, "{}"},
    {PRE, SEQUENCE("pretokenizers", "")},
    {PRE, SEQUENCE("pretokenizers", "{\"type\":\"ByteLevel\"}")},
    {PRE, SPLIT("")},
    {PRE, SPLIT("a")},
    {PRE, SPLIT("()")},
    {POST, "{}"},
    {POST, SEQUENCE("processors", "")},
    {POST, SEQUENCE("processors", TEMPLATE("[]", "{}"))},
    {POST, TEMPLATE("[]", "{}")},
    {POST, TEMPLATE("[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]", "{}")},
    {POST, TEMPLATE("[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}]", "{}")},
    {POST, TEMPLATE("[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}]",
                    "{\"<s>\":{\"id\":\"<s>\",\"ids\":[],\"tokens\":[]}}")},
    {DECODER, "{}"},
    {DECODER, SEQUENCE("decoders", "")},
    {DECODER, SEQUENCE("decoders", "{\"type\":\"ByteFallback\"}")},
    {DECODER, "{\"type\":\"Strip\",\"content\":\"\",\"start\":1,\"stop\":1}"},
};

static const char *write_file(int part, const char *text)
{
    char file[4000];
    const char *now[PARTS];
    int n = snprintf(file, sizeof file, "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\"");
    memcpy(now, good, sizeof now);
    now[part] = text;
    for (int i = 0; i < PARTS; i++)
        n += snprintf(file + n, sizeof file - (size_t)n, "%s,\"%s\":%s", i == ADDED ? "}" : "",
                      names[i], now[i]);
    n += snprintf(file + n, sizeof file - (size_t)n, "}");
    return temp_write("tokenizer.json", file, (size_t)n);
}

/* Whether it opens; what is open must encode, decode and answer. */
static bool survives(const char *path)
{
    static const char *const texts[] = {"", "a", "abab", "<s>", "x\xc3\xa9"};
    qn_tokenizer *t = (qn_tokenizer *)1;
    qn_error err = {0};
    if (qn_tokenizer_open(&t, path, &err) != QN_OK) {
        assert_null(t);
        assert_true(err.code == QN_FORMAT || err.code == QN_UNSUPPORTED);
        assert_non_null(strstr(err.message, "tokenizer.json"));
        assert_null(strchr(err.message, '\n'));
        return false;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        qn_tokens ids = {0};
        qn_text text = {0};
        unsigned flags = i % 2 ? QN_ADD_SPECIAL | QN_PARSE_SPECIAL : QN_ADD_SPECIAL;
        qn_error failure = {0};
        if (qn_tokenizer_encode(t, texts[i], strlen(texts[i]), flags, &ids, &failure) == QN_OK)
            assert_int_equal(qn_tokenizer_decode(t, ids.ids, ids.n, 0, &text, &failure), QN_OK);
        qn_tokens_free(&ids);
        qn_text_free(&text);
    }
    for (int32_t id = -1; id < 5; id++) {
        qn_text bytes = {0};
        qn_tokenizer_piece(t, id);
        qn_tokenizer_is_special(t, id);
        qn_tokenizer_token_bytes(t, id, &bytes, NULL);
        qn_text_free(&bytes);
    }
    assert_int_equal(qn_tokenizer_find(t, "absent"), -1);
    assert_true(qn_tokenizer_vocab_size(t) >= 0);
    qn_tokenizer_close(t);
    return true;
}

static void test_tables(void **state)
{
    (void)state;
    for (int part = 0; part < PARTS; part++)
        assert_true(survives(write_file(part, good[part])));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool opened = survives(write_file(cases[i].part, cases[i].text));
        printf("%s %s: %s\n", names[cases[i].part], cases[i].text, opened ? "opens" : "refused");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tables)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
