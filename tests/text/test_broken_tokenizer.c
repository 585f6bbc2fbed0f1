/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizer files that are broken: each is refused in one line that says where and why; so is a
 * text on which a pattern takes too long, and so is each allocation that fails. Large ones are in
 * test_bad_tokenizer.c.
 */
#include "token_test.h"

#include "../base/fail_alloc.h"

#define BYTE_LEVEL           "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"}"
#define MODEL(vocab, merges) "\"model\":{\"vocab\":{" vocab "},\"merges\":[" merges "]}"
#define SPLIT(regex)                                                                               \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":" \
    "{"                                                                                            \
    "\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":"   \
    "false,\"add_prefix_space\":false}]},\"decoder\":{\"type\":\"ByteLevel\"}"

typedef struct bad_tokenizer {
    const char *json;
    qn_status code;
    const char *part;
} bad_tokenizer;

#define ABC         "\"a\":0,\"b\":1,\"c\":2,\"ab\":3"
#define TEN_MERGES  FIVE_MERGES "," FIVE_MERGES
#define FIVE_MERGES "\"a b\",\"a b\",\"a b\",\"a b\",\"a b\""

static const bad_tokenizer bad_tokenizers[] = {
    {"", QN_FORMAT, "JSON ends"},
    {"[]", QN_FORMAT, "expected an object"},
    {"{}", QN_FORMAT, "model is missing"},
    {"{\"model\":{}}", QN_FORMAT, "vocab is missing"},
    {"{" BYTE_LEVEL ",\"model\":{\"vocab\":{}}}", QN_UNSUPPORTED, "merges are missing"},
    {"{" MODEL("", "") ",\"model\":{}}", QN_FORMAT, "model: the key stands twice"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", QN_UNSUPPORTED,
     "WordPiece is not supported (supported: BPE, Unigram)"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[]}}", QN_FORMAT, "empty"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":{\"a\":0}}}", QN_FORMAT,
     "has scores"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":[[\"a\",0]]}}", QN_FORMAT, "has scores"},
    {"{\"model\":{\"unk_id\":1,\"vocab\":[[\"a\",0]]}}", QN_FORMAT, "unk_id is not"},
    {"{\"model\":{\"vocab\":[[\"a\",0]]}}", QN_UNSUPPORTED, "without an unk_id"},
    {"{\"model\":{\"unk_id\":0,\"vocab\":[[\"a\"]]}}", QN_FORMAT, "a piece and its score"},
    {"{\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",\"b\"]]}}", QN_FORMAT, "score"},
    {"{\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",1e999]]}}", QN_FORMAT, "not finite"},
    {"{\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",0],[\"a\",0]]}}", QN_FORMAT, "stands twice"},
    {"{\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",0]]},\"normalizer\":{\"type\":\"Precompiled\","
     "\"precompiled_charsmap\":\"AAA*\"}}",
     QN_FORMAT, "base 64"},
    {"{\"config\":{},\"vocab\":[]}", QN_UNSUPPORTED, "tekken"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":2147483648", "") "}", QN_FORMAT,
     "model.vocab.a: expected an integer in 0..4194303, got 2147483648"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":-1", "") "}", QN_FORMAT, "got -1"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0,\"b\":0", "") "}", QN_FORMAT, "model.vocab.b: id 0 stands"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0,\"a\":1", "") "}", QN_FORMAT, "the piece stands twice"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0,\"\\u0061\":1", "") "}", QN_FORMAT, "stands twice"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "\"a b\"") "}", QN_FORMAT,
     "model.merges[0]: \"b\" is not in the vocabulary"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0,\"b\":1", "\"a b\"") "}", QN_FORMAT,
     "merges[0]: \"ab\" is not in"},
    {"{" BYTE_LEVEL
     "," MODEL(ABC, TEN_MERGES "," TEN_MERGES ",\"c b\"," TEN_MERGES "," TEN_MERGES) "}",
     QN_FORMAT, "merges[20]: \"cb\" is not in"},
    {"{" BYTE_LEVEL
     "," MODEL(ABC, TEN_MERGES "," TEN_MERGES "," TEN_MERGES "," TEN_MERGES ",\"a d\"") "}",
     QN_FORMAT, "merges[40]: \"d\" is not in"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "\"a\"") "}", QN_FORMAT, "two pieces with one space"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "\"a a a\"") "}", QN_FORMAT, "two pieces with one space"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "[\"a\"]") "}", QN_FORMAT, "expected two pieces"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "[\"a\",\"a\",\"a\"]") "}", QN_FORMAT, "got more"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "[\"a\",\"\"]") "}", QN_FORMAT, "expected two pieces"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "7") "}", QN_FORMAT, "expected an array"},
    {"{\"normalizer\":{\"type\":\"Lowercase\"}," BYTE_LEVEL "," MODEL("\"a\":0", "") "}",
     QN_UNSUPPORTED, "normalizer: type \"Lowercase\""},
    {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}," MODEL("\"a\":0", "") "}", QN_UNSUPPORTED,
     "\"BertPreTokenizer\" is not supported (supported: Sequence, Split, Digits, Punctuation, "
     "Metaspace, "
     "ByteLevel, Whitespace, WhitespaceSplit)"},
    {"{\"pre_tokenizer\":{\"type\":\"Metaspace\"}," MODEL("\"a\":0", "") "}", QN_FORMAT,
     "pre_tokenizer.replacement: missing"},
    {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}," MODEL("\"a\":0", "") "}",
     QN_FORMAT, "replacement: expected one character"},
    {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}"
     "," MODEL("\"a\":0", "") "}",
     QN_UNSUPPORTED, "prepend_scheme \"last\" is not supported (supported: always, first, never)"},
    {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false,"
     "\"prepend_scheme\":\"first\"}," MODEL("\"a\":0", "") "}",
     QN_FORMAT, "add_prefix_space is false, but prepend_scheme is \"first\""},
    {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
     "\"ByteFallback\"}]}," MODEL("\"a\":0", "") "}",
     QN_UNSUPPORTED, "decoder.decoders[1]: ByteFallback behind Fuse or ByteLevel is not supported"},
    {"{\"decoder\":{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}," MODEL("\"a\":0",
                                                                                          "") "}",
     QN_FORMAT, "content: expected one character"},
    {"{\"decoder\":{\"type\":\"Replace\",\"content\":\"ab\",\"pattern\":{\"Regex\":\"a\"}}," MODEL(
         "\"a\":0", "") "}",
     QN_UNSUPPORTED, "Regex is not supported (supported: String)"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"WordPiece\"}," MODEL(
         "\"a\":0", "") "}",
     QN_UNSUPPORTED, "decoder: type \"WordPiece\" is not supported"},
    {"{" SPLIT("(") "," MODEL("\"a\":0", "") "}", QN_FORMAT, "bad regular expression \"(\""},
    {"{" SPLIT("") "," MODEL("\"a\":0", "") "}", QN_FORMAT, "a pattern of 0 bytes"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"content\":\"x\"}]}", QN_FORMAT,
     "added_tokens[0].id: missing"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]}",
     QN_FORMAT, "id 0 belongs to another piece"},
    {"{" BYTE_LEVEL
     "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"id\":4194304,\"content\":\"x\"}]}",
     QN_FORMAT, "added_tokens[0].id: expected an integer in 0..4194303, got 4194304"},
    {"{" BYTE_LEVEL
     "," MODEL("\"a\":0", "") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
                              "\"SpecialToken\":{\"id\":"
                              "\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}}}",
     QN_FORMAT, "special_tokens.<s>: missing"},
    {"{" BYTE_LEVEL "," MODEL("\"a\":0", "") ",\"post_processor\":{\"type\":\"TemplateProcessing\","
                                             "\"single\":[{\"SpecialToken\":{\"id\":"
                                             "\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_"
                                             "tokens\":{\"<s>\":{\"ids\":[9]}}}}",
     QN_FORMAT, "id 9 is not in the vocabulary"},
};

static void test_bad_tokenizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_tokenizers / sizeof *bad_tokenizers; i++) {
        const bad_tokenizer *c = &bad_tokenizers[i];
        qn_error err = {0};
        qn_tokenizer *t = (qn_tokenizer *)1;
        const char *path = temp_write("bad.json", c->json, strlen(c->json));
        qn_status status = qn_tokenizer_open(&t, path, &err);
        if (status != c->code || err.code != c->code || !strstr(err.message, c->part) ||
            !strstr(err.message, "bad.json: "))
            fail_msg("case %zu: \"%s\" (%d), expected \"%s\"", i, err.message, (int)status,
                     c->part);
        assert_null(t);
        assert_null(strchr(err.message, '\n'));
    }
    qn_tokenizer *t;
    qn_error err = {0};
    assert_int_equal(qn_tokenizer_open(&t, temp_path("none"), &err), QN_NOT_FOUND);
    err = (qn_error){0};
    assert_int_equal(qn_tokenizer_open(&t, temp_mkdir("nothing"), &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.message, "tokenizer.json: no such file"));
}

static void test_every_truncated_tokenizer(void **state)
{
    (void)state;
    char *data;
    size_t size;
    assert_int_equal(qn__file_read(TINY, 1 << 20, &data, &size, NULL), QN_OK);
    for (size_t n = 0; n < size - 2; n += 37) {
        qn_error err = {0};
        qn_tokenizer *t;
        temp_write("cut.json", data, n);
        assert_int_not_equal(qn_tokenizer_open(&t, temp_path("cut.json"), &err), QN_OK);
        assert_null(t);
        assert_true(err.message[0] != '\0');
    }
    free(data);
}

static void test_patterns(void **state)
{
    (void)state;
    /* A nested quantifier on a text that fails it: an error, not an hour. */
    static const char nested[] = "{" SPLIT("(a|aa)+[bd]") "," MODEL("\"a\":0,\"c\":1", "") "}";
    qn_tokenizer *t = open_or_fail(temp_write("nested.json", nested, sizeof nested - 1));
    char text[201];
    memset(text, 'a', 200);
    text[200] = 'c';
    qn_tokens ids = {0};
    qn_error err = {0};
    clock_t start = clock();
    assert_int_equal(qn_tokenizer_encode(t, text, 201, 0, &ids, &err), QN_LIMIT);
    assert_true(seconds_since(start) < 5 * PATIENCE);
    assert_non_null(strstr(err.message, "nested.json"));
    assert_int_equal(ids.n, 0);
    /* So does a text of many such places, each of which alone would be within the limit. */
    enum { PLACES = 20000 };
    char *many = malloc(PLACES * 24);
    for (size_t i = 0; i < PLACES; i++)
        memcpy(many + 24 * i, "aaaaaaaaaaaaaaaaaaaaaaac", 24);
    start = clock();
    assert_int_equal(qn_tokenizer_encode(t, many, PLACES * 24, 0, &ids, NULL), QN_LIMIT);
    assert_true(seconds_since(start) < 5 * PATIENCE);
    free(many);
    qn_tokens_free(&ids);
    qn_tokenizer_close(t);
    /* Other patterns are regular expressions. White space is what the library takes for it: with
     * U+0085, without U+180E. Letters are those of Unicode 16, such as U+1C89. */
    static const char other[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"\\\\s|[\\\\p{Lu}]\"},\"behavior\":\"Removed\"},"
        "{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false}]},"
        "\"decoder\":{\"type\":\"ByteLevel\"}," MODEL("\"a\":0,\"\xc3\xa1\":1,\"aa\":2",
                                                      "\"a a\"") "}";
    t = open_or_fail(temp_write("other.json", other, sizeof other - 1));
    static const char spaced[] = "a\xc2\x85"
                                 "a\xe1\xa0\x8e"
                                 "a\xe1\xb2\x89"
                                 "a\xe3\x80\x80";
    static const int32_t expected[] = {0, 0, 1, 0, 0};
    assert_int_equal(qn_tokenizer_encode(t, spaced, sizeof spaced - 1, 0, &ids, NULL), QN_OK);
    assert_int_equal(ids.n, 5);
    assert_memory_equal(ids.ids, expected, sizeof expected);
    qn_tokens_free(&ids);
    qn_tokenizer_close(t);
}

/* Each fails the call. */
static void fail_every_allocation(const char *path)
{
    bool more = true;
    for (long n = 0; more; n++) {
        qn_tokenizer *t = NULL;
        qn_error err = {0};
        qn_tokens ids = {0};
        qn_text back = {0};
        fail_allocation_begin(n);
        qn_status status = qn_tokenizer_open(&t, path, &err);
        static const char text[] =
            "caf\x65\xcc\x81 a long word: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa<|im_end|>";
        if (status == QN_OK)
            status = qn_tokenizer_encode(t, text, sizeof text - 1, QN_PARSE_SPECIAL, &ids, &err);
        if (status == QN_OK)
            status = qn_tokenizer_decode(t, ids.ids, ids.n, 0, &back, &err);
        more = fail_allocation_end();
        assert_int_equal(status, more ? QN_MEMORY : QN_OK);
        assert_int_equal(err.code, status);
        qn_tokens_free(&ids);
        qn_text_free(&back);
        qn_tokenizer_close(t);
    }
}

static void test_failed_allocations(void **state)
{
    (void)state;
    char *data;
    size_t size;
    fail_every_allocation(TINY);
    assert_int_equal(
        qn__file_read(source_path("tests/text/spm.jsonl"), 1 << 24, &data, &size, NULL), QN_OK);
    size_t line = (size_t)(strchr(data, '\n') - data);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", write_spm(data, line, "allocations.model"));
    free(data);
    fail_every_allocation(path);
    /* A SentencePiece-style tokenizer.json. */
    static const char chars[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
        "\"_\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\"_\"}]},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
        "\"String\":"
        "\"_\"},\"content\":\" "
        "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
        "\"content\":\" \",\"start\":1,\"stop\":1}]},"
        "\"model\":{\"byte_fallback\":true,\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"aa\":2,"
        "\"_\":3,\"_a\":4,\"<0xCC>\":5,\"<0x81>\":6},\"merges\":[\"a a\",\"_ a\"]}}";
    fail_every_allocation(temp_write("chars.json", chars, sizeof chars - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_tokenizers),
        cmocka_unit_test(test_every_truncated_tokenizer),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
