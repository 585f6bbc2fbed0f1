/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers through conversions: a directory's as GGUF's metadata, and that as tokenizer.json
 * again, give the ids of the first. The real vocabularies of QUERN_TEST_DATA, whose ids are
 * llama.cpp's (text/test_gguf), are written as tokenizer.json, too.
 */
#include "../test.h"

#include "../base/temp_dir.h"
#include "base/file.h"
#include "convert/tokenizer_out.h"
#include "text/tokenizer.h"

#define MARK "\xe2\x96\x81"
#define ADDED(id, text, special)                                                                   \
    "{\"id\":" id ",\"content\":\"" text "\",\"special\":" special ",\"normalized\":false}"
#define ALL_ADDED                                                                                  \
    "\"added_tokens\":[" ADDED("0", "<unk>", "true") "," ADDED("1", "<s>", "true") "," ADDED(      \
        "2", "</s>", "true") "," ADDED("12", "<x>", "false") "],"
#define AROUND                                                                                     \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"   \
    "\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"            \
    "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},"
#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}"
#define SPACES                                                                                     \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK "\"},\"content\":\" \"},{\"type\":"    \
    "\"ByteFallback\"},{\"type\":\"Fuse\"}"
#define BPE                                                                                        \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"vocab\":{\"<unk>\":"  \
    "0,"                                                                                           \
    "\"<s>\":1,\"</s>\":2,\"" MARK "\":3,\"a\":4,\"b\":5,\"c\":6,\"ab\":7,\"" MARK "a\":8,\"" MARK \
    "ab\":9,\"bc\":10,\"" MARK MARK "\":11,\"<x>\":12},\"merges\":[\"b c\",\"" MARK                \
    " a\",\"a b\",\"" MARK "a b\",\"" MARK " ab\",\"" MARK " " MARK "\"]}}"
#define METASPACE                                                                                  \
    "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"always\"}"
#define UNIGRAM                                                                                    \
    "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"<s>\",0],[\"</"      \
    "s>\",0],"                                                                                     \
    "[\"" MARK "\",-2],[\"a\",-3],[\"b\",-3.5],[\"c\",-4],[\"ab\",-4.25],[\"" MARK                 \
    "a\",-4.5],[\"" MARK "ab\",-5],[\"bc\",-9],[\"abc\",-9.5],[\"<x>\",0]]}}"

static const char *const kinds[] = {
    "{" ALL_ADDED AROUND "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
    "\"Prepend\",\"prepend\":\"" MARK "\"}," REPLACE
    "]},\"pre_tokenizer\":null,\"decoder\":{\"type\":"
    "\"Sequence\",\"decoders\":[" SPACES
    ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}," BPE,
    "{" ALL_ADDED AROUND "\"normalizer\":" REPLACE ",\"pre_tokenizer\":null,\"decoder\":{\"type\":"
    "\"Sequence\",\"decoders\":[" SPACES "]}," BPE,
    "{" ALL_ADDED AROUND
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\",\"strip_left\":"
    "true,\"strip_right\":true},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" "
    "{2,}\"},\"content\":\" \"}]},\"pre_tokenizer\":" METASPACE ",\"decoder\":" METASPACE
    "," UNIGRAM,
};

enum { UNIGRAM_KIND = 2 };

static const char *const texts[] = {"",      " ",         "ab",   "ab a b  abc ",  "bcab",
                                    "abcab", "a<x>ab bc", " <x>", "zz ab\xc3\xa9", "a</s> b<x>"};

static qn_tokenizer *open_tokenizer(const char *path)
{
    qn_tokenizer *t;
    qn_error err = {0};
    if (qn_tokenizer_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static void assert_alike(const qn_tokenizer *a, const qn_tokenizer *b, const char *text, size_t n)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        qn_tokens x = {0}, y = {0};
        qn_text s = {0}, t = {0};
        assert_int_equal(qn_tokenizer_encode(a, text, n, flags, &x, NULL), QN_OK);
        assert_int_equal(qn_tokenizer_encode(b, text, n, flags, &y, NULL), QN_OK);
        if (x.n != y.n || (x.n && memcmp(x.ids, y.ids, x.n * sizeof *x.ids)))
            fail_msg("\"%.*s\" with flags %u: other ids", (int)n, text, flags);
        assert_int_equal(qn_tokenizer_decode(a, x.ids, x.n, 0, &s, NULL), QN_OK);
        assert_int_equal(qn_tokenizer_decode(b, y.ids, y.n, 0, &t, NULL), QN_OK);
        if (s.n != t.n || (s.n && memcmp(s.data, t.data, s.n)))
            fail_msg("\"%.*s\" with flags %u: decoded to other texts", (int)n, text, flags);
        qn_tokens_free(&x);
        qn_tokens_free(&y);
        qn_text_free(&s);
        qn_text_free(&t);
    }
}

static void copy_from_source(const char *name, const char *to)
{
    char path[600], *data;
    size_t n;
    snprintf(path, sizeof path, "%s/tests/models/weights/safetensors/%s", getenv("QUERN_SOURCE"),
             name);
    assert_int_equal(qn__file_read(path, 1 << 20, &data, &n, NULL), QN_OK);
    temp_write(to, data, n);
    free(data);
}

static void test_there_and_back(void **state)
{
    qn_device *device = open_cpu(state);
    qn_convert_options options = {.size = sizeof options, .replace = true};
    qn_error err = {0};
    mkdir(temp_path("from"), 0777);
    copy_from_source("config.json", "from/config.json");
    copy_from_source("model.safetensors", "from/model.safetensors");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        temp_write("from/tokenizer.json", kinds[k], strlen(kinds[k]));
        if (qn_convert(device, temp_path("from"), temp_path("to.gguf"), &options, &err) != QN_OK ||
            qn_convert(device, temp_path("to.gguf"), temp_path("back"), &options, &err) != QN_OK)
            fail_msg("kind %zu: %s", k, err.message);
        qn_tokenizer *a = open_tokenizer(temp_path("from")),
                     *b = open_tokenizer(temp_path("to.gguf")),
                     *c = open_tokenizer(temp_path("back"));
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            if (k == UNIGRAM_KIND && strstr(texts[i], "<x>"))
                continue; /* SentencePiece puts no space behind a user's symbol */
            print_message("%zu\n", k);
            assert_alike(a, b, texts[i], strlen(texts[i]));
            assert_alike(a, c, texts[i], strlen(texts[i]));
        }
        qn_tokenizer_close(a);
        qn_tokenizer_close(b);
        qn_tokenizer_close(c);
    }
    qn_device_close(device);
}

/* Steps that GGUF has no keys for are refused. */
static void test_unsaid_steps(void **state)
{
    static const char text[] =
        "{" ALL_ADDED "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" METASPACE
        ",\"decoder\":" METASPACE "," UNIGRAM;
    qn_device *device = open_cpu(state);
    qn_error err = {0};
    mkdir(temp_path("from"), 0777);
    temp_write("from/tokenizer.json", text, sizeof text - 1);
    assert_int_equal(qn_convert(device, temp_path("from"), temp_path("no.gguf"), NULL, &err),
                     QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "Unigram"));
    qn_device_close(device);
}

static void check_vocabulary(const char *root, const char *name)
{
    static const char separator[] = "__ggml_vocab_test__\n";
    char path[PATH_MAX], *text;
    size_t n;
    qn__gguf g;
    qn_text json = {0};
    qn_error err = {0};
    snprintf(path, sizeof path, "%s/gguf_vocab/ggml-vocab-%s.gguf", root, name);
    qn_tokenizer *a = open_tokenizer(path);
    assert_int_equal(qn__gguf_open(&g, path, &err), QN_OK);
    if (qn__tokenizer_json(a, &g, &json, &err) != QN_OK)
        fail_msg("%s", err.message);
    temp_write("tokenizer.json", json.data, json.n);
    qn_tokenizer *b = open_tokenizer(temp_path("tokenizer.json"));
    b->bos = a->bos; /* these stand in tokenizer_config.json */
    b->eos = a->eos;
    strcat(path, ".inp");
    assert_int_equal(qn__file_read(path, 1 << 20, &text, &n, NULL), QN_OK);
    for (const char *at = text; at < text + n;) {
        const char *end = strstr(at, separator);
        size_t length = end ? (size_t)(end - at) : (size_t)(text + n - at);
        assert_alike(a, b, at, length);
        at += length + (end ? sizeof separator - 1 : 0);
    }
    free(text);
    qn_text_free(&json);
    qn__gguf_free(&g);
    qn_tokenizer_close(a);
    qn_tokenizer_close(b);
}

static void test_vocabularies(void **state)
{
    static const char *const names[] = {"llama-spm", "gpt-2", "deepseek-llm", "starcoder", "phi-3"};
    const char *root = getenv("QUERN_TEST_DATA");
    (void)state;
    if (!root) {
        print_message("skipped: QUERN_TEST_DATA is not set\n");
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_vocabulary(root, names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_unsaid_steps),
        cmocka_unit_test(test_vocabularies),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
