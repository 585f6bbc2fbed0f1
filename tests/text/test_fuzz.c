/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile tokenizer files: small valid ones, changed at random (fuzz.h), have to be refused in one
 * line or to work; so have the configurations beside them, with the chat template in it.
 */
#include "fuzz.h"

#include "../io/gguf_build.h"
#include "base/file.h"
#include "base/json_scan.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

static char *text_of(const char *name, size_t *n)
{
    char path[PATH_MAX], *data;
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    assert_int_equal(qn__file_read(path, 1 << 24, &data, n, NULL), QN_OK);
    return data;
}

static size_t decode_model(const qn__json_text *text, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    size_t n = 0;
    for (size_t i = 0; i < text->size && text->data[i] != '='; i++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, text->data[i]) - digits);
        if (i % 4 > 0)
            out[n++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return n;
}

/* The "tokenizer" or "model" of each line, whichever is asked for. */
static void add_lines(const char *name, const char *what)
{
    size_t size;
    char *data = text_of(name, &size);
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1) {
        qn__json_scan scan;
        qn__json_text key, value;
        qn__json_scan_begin(&scan, name, line, (size_t)(end - line), NULL);
        scan.allow_nul = true;
        assert_true(qn__json_enter_object(&scan));
        while (qn__json_next_key(&scan, &key)) {
            if (!qn__json_text_is(&key, what)) {
                qn__json_skip(&scan, NULL);
            } else if (strcmp(what, "model") == 0) {
                assert_true(qn__json_read_string(&scan, &value));
                char *model = malloc(value.size);
                fuzz_add(model, decode_model(&value, model));
                free(model);
            } else if (qn__json_skip(&scan, &value)) {
                fuzz_add(value.data, value.size);
            }
        }
        assert_int_equal(qn__json_scan_end(&scan), QN_OK);
    }
    free(data);
}

static void begin_json(void)
{
    add_lines("tests/text/variants.jsonl", "tokenizer");
    add_lines("tests/text/chars.jsonl", "tokenizer");
}

static void begin_model(void)
{
    add_lines("tests/text/spm.jsonl", "model");
}

/* Texts have to encode and decode, streamed as in one go. */
static void use_tokenizer(const qn_tokenizer *t)
{
    static const char text[] =
        "The mill  turns, l\xc3\xa9ger;\n1234 \xf0\x9f\xa6\x80 <s><tool>word "
        "\xe2\x96\x81 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (unsigned flags = 0; flags < 4; flags++) {
        qn_error err = {0};
        qn_tokens ids = {0};
        qn_text whole = {0}, streamed = {0};
        qn_decoder *decoder = qn_decoder_new(t, flags & 2 ? QN_SKIP_SPECIAL : 0);
        qn_status status = qn_tokenizer_encode(t, text, sizeof text - 1, flags, &ids, &err);
        assert_true(status == QN_OK || status == QN_LIMIT);
        qn_tokenizer_decode(t, ids.ids, ids.n, flags & 2 ? QN_SKIP_SPECIAL : 0, &whole, &err);
        for (size_t i = 0; i < ids.n; i++)
            qn_decoder_push(decoder, ids.ids[i], &streamed, &err);
        qn_decoder_flush(decoder, &streamed, &err);
        assert_int_equal(whole.n, streamed.n);
        assert_memory_equal(whole.data, streamed.data, whole.n);
        assert_int_equal(qn__utf8_check(whole.data, whole.n), whole.n);
        qn_decoder_free(decoder);
        qn_tokens_free(&ids);
        qn_text_free(&whole);
        qn_text_free(&streamed);
    }
}

static bool refused(qn_status status, const qn_error *err)
{
    if (status == QN_OK)
        return false;
    assert_true(err->message[0] != '\0' && err->code == status);
    assert_null(strchr(err->message, '\n'));
    return true;
}

static bool parses(const char *data, size_t n, bool is_model)
{
    qn_error err = {0};
    qn_tokenizer *t = calloc(1, sizeof *t);
    t->bos = t->eos = -1;
    bool opened = !refused(is_model ? qn__spm_parse(t, "fuzzed", data, n, &err)
                                    : qn__tokenizer_parse(t, "fuzzed", data, n, &err),
                           &err);
    if (opened)
        use_tokenizer(t);
    qn_tokenizer_close(t);
    return opened;
}

static bool parses_json(const char *data, size_t n)
{
    return parses(data, n, false);
}

static bool parses_model(const char *data, size_t n)
{
    return parses(data, n, true);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

/* Byte-level, and SentencePiece with bytes to fall back on. */
static void begin_gguf(void)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "t",        "h",
                                         "e",     "th",  "the",  "\xc4\xa0", "\xe2\x96\x81",
                                         "m",     "i",   "l",    "\xc4\xa0t"};
    static const char *const merges[] = {"t h", "th e", "\xc4\xa0 t"};
    enum { TOKENS = sizeof tokens / sizeof *tokens };
    for (int spm = 0; spm < 2; spm++) {
        qn_text t = {0};
        put_header(&t, 3);
        put_string(&t, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
        put_string(&t, "tokenizer.ggml.pre", "deepseek-llm");
        put_array(&t, "tokenizer.ggml.tokens", QN__GGUF_STRING, TOKENS + (spm ? 256 : 0));
        for (int i = 0; i < TOKENS; i++)
            put_text(&t, tokens[i]);
        for (int i = 0; spm && i < 256; i++) {
            char byte[8];
            snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)i);
            put_text(&t, byte);
        }
        put_array(&t, "tokenizer.ggml.token_type", QN__GGUF_I32, TOKENS + (spm ? 256 : 0));
        for (int i = 0; i < TOKENS + (spm ? 256 : 0); i++)
            put_int(&t, i == 0 ? 2 : i < 3 ? 3 : i == 7 ? 4 : i < TOKENS ? 1 : 6, 4);
        put_array(&t, "tokenizer.ggml.merges", QN__GGUF_STRING, 3);
        for (int i = 0; i < 3; i++)
            put_text(&t, merges[i]);
        put_u32(&t, "tokenizer.ggml.bos_token_id", 1);
        put_u32(&t, "tokenizer.ggml.eos_token_id", 2);
        fuzz_add(t.data, t.n);
        qn_text_free(&t);
    }
}

static bool opens_gguf(const char *data, size_t n)
{
    qn_error err = {0};
    qn_tokenizer *t;
    const char *path = temp_write("fuzzed.gguf", data, n);
    if (refused(qn_tokenizer_open(&t, path, &err), &err))
        return false;
    use_tokenizer(t);
    qn_tokenizer_close(t);
    return true;
}

static const char *const gguf_words[] = {"llama",
                                         "gpt2",
                                         "t5",
                                         "gemma4",
                                         "tekken",
                                         "superbpe",
                                         "tokenizer.ggml.add_space_prefix",
                                         "tokenizer.ggml.scores",
                                         "\xff\xff\xff\xff",
                                         "<0x",
                                         " ",
                                         NULL};

/* ---- tokenizer_config.json --------------------------------------------------------------------
 */

static void begin_config(void)
{
    static const char no_limit[] =
        "{\"added_tokens_decoder\":{\"0\":{\"content\":\"<unk>\",\"special\":true}},"
        "\"model_max_length\":1e30}";
    static const char *const configs[] = {
        "{\"chat_template\":[{\"name\":\"default\",\"template\":\"{% for m in messages %}{{ "
        "'<|im_' + "
        "'start|>' }}{{ m.role }}\\n{{ m.content|trim }}<|im_end|>\\n{% endfor "
        "%}<think>\"},{\"name\":"
        "\"tool_use\",\"template\":\"T{{ tools|length }}\"}],\"eos_token\":\"<|im_end|>\"}",
        "{\"add_bos_token\":true,\"add_eos_token\":false,\"bos_token\":{\"content\":\"<s>\","
        "\"lstrip\":false},"
        "\"eos_token\":\"</s>\",\"unk_token\":null,\"pad_token\":null,\"chat_template\":\"{{ "
        "bos_token }}"
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | tojson }}{{ eos_token }}{% "
        "endfor %}\"}",
        no_limit};
    size_t n;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        fuzz_add(configs[i], strlen(configs[i]));
    char *data = text_of("models/demo/tokenizer_config.json", &n);
    fuzz_add(data, n);
    free(data);
    add_lines("tests/text/spm.jsonl", "model"); /* the tokenizer itself is the first of them */
    fuzz_sample *first = &fuzz_samples[sizeof configs / sizeof *configs + 1];
    temp_write("tokenizer.model", first->data, first->n);
    for (; &fuzz_samples[fuzz_n_samples] > first; fuzz_n_samples--)
        free(fuzz_samples[fuzz_n_samples - 1].data);
}

/* Its tokens, and its chat template on a short conversation. */
static bool configures(const char *data, size_t n)
{
    static const char json[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello <|im_end|>\"}]}";
    qn_error err = {0};
    qn_tokenizer *t;
    qn_chat *chat;
    temp_write("tokenizer_config.json", data, n);
    if (refused(qn_tokenizer_open(&t, temp_root, &err), &err))
        return false;
    bool opened = !refused(qn_chat_open(&chat, t, temp_root, &err), &err);
    if (opened) {
        qn_tokens ids = {0};
        if (qn_chat_has_template(chat))
            refused(qn_chat_render_ids(chat, json, sizeof json - 1, 0, &ids, &err), &err);
        qn_tokens_free(&ids);
        qn_chat_close(chat);
    }
    qn_tokenizer_close(t);
    return opened;
}

static void test_changed_files(void **state)
{
    (void)state;
    static const fuzz_parser parsers[] = {
        {"tokenizer.json", begin_json, parses_json, fuzz_json_words},
        {"tokenizer.model", begin_model, parses_model, fuzz_binary_words},
        {"gguf", begin_gguf, opens_gguf, gguf_words},
        {"tokenizer_config.json", begin_config, configures, fuzz_json_words},
    };
    fuzz_parsers(parsers, sizeof parsers / sizeof *parsers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changed_files)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
