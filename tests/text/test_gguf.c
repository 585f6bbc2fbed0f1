/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers in GGUF files: real vocabularies (QUERN_TEST_DATA) give the ids that llama.cpp's own
 * tests expect; every name of a pre-tokenizer is known and cuts; broken vocabularies are refused.
 */
#include "../test.h"

#include "../base/fail_alloc.h"
#include "../base/temp_dir.h"
#include "../io/gguf_build.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/gguf_patterns.h"

#include <math.h>

static const char separator[] = "__ggml_vocab_test__\n";

/* ---- real ones ------------------------------------------------------------------------------- */

static qn_tokenizer *open_good(const char *path)
{
    qn_tokenizer *t;
    qn_error err = {0};
    if (qn_tokenizer_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static size_t check_text(const qn_tokenizer *t, const char *text, size_t n, const char *line)
{
    qn_tokens ids = {0};
    qn_error err = {0};
    assert_int_equal(qn_tokenizer_encode(t, text, n, 0, &ids, &err), QN_OK);
    size_t i = 0, wrong = 0;
    char *end;
    for (const char *at = line; *at && *at != '\n'; at = end, i++) {
        long id = strtol(at, &end, 10);
        if (end == at)
            break;
        wrong += i >= ids.n || ids.ids[i] != id;
    }
    wrong += i != ids.n;
    if (wrong)
        print_message("\"%.*s\": expected %.200s", (int)n, text, line);
    qn_tokens_free(&ids);
    return wrong > 0;
}

static void check_vocabulary(const char *root, const char *name)
{
    char path[PATH_MAX], *text, *out;
    size_t n, m, texts = 0, wrong = 0;
    snprintf(path, sizeof path, "%s/gguf_vocab/ggml-vocab-%s.gguf", root, name);
    qn_tokenizer *t = open_good(path);
    strcat(path, ".inp");
    assert_int_equal(qn__file_read(path, 1 << 20, &text, &n, NULL), QN_OK);
    strcpy(strrchr(path, '.'), ".out");
    assert_int_equal(qn__file_read(path, 1 << 20, &out, &m, NULL), QN_OK);
    const char *line = out;
    for (const char *at = text; at < text + n;) {
        const char *end = strstr(at, separator);
        size_t length = end ? (size_t)(end - at) : (size_t)(text + n - at);
        size_t shown = end && length ? length - 1 : length; /* without the separator's line feed */
        wrong += check_text(t, at, shown, line);
        line = strchr(line, '\n');
        line = line ? line + 1 : "";
        at += length + (end ? sizeof separator - 1 : 0);
        texts++;
    }
    print_message("%s: %zu of %zu texts differ\n", name, wrong, texts);
    assert_true(texts > 40 && wrong == 0);
    free(text);
    free(out);
    qn_tokenizer_close(t);
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

/* ---- made ones ------------------------------------------------------------------------------- */

typedef struct vocabulary {
    const char *model, *pre;
    const char *const *tokens, *const *merges;
    const int32_t *types;
    int n_scores; /* -1: as many as tokens */
    float score;
} vocabulary;

static int count(const char *const *texts)
{
    int n = 0;
    while (texts[n])
        n++;
    return n;
}

static void put_texts(qn_text *t, const char *key, const char *const *texts)
{
    put_array(t, key, QN__GGUF_STRING, (uint64_t)count(texts));
    for (int i = 0; texts[i]; i++)
        put_text(t, texts[i]);
}

static qn_text make(const vocabulary *v)
{
    qn_text t = {0};
    int n = count(v->tokens), scores = v->n_scores < 0 ? n : v->n_scores;
    put_header(&t, 3);
    put_string(&t, "tokenizer.ggml.model", v->model);
    if (v->pre)
        put_string(&t, "tokenizer.ggml.pre", v->pre);
    put_texts(&t, "tokenizer.ggml.tokens", v->tokens);
    if (v->merges)
        put_texts(&t, "tokenizer.ggml.merges", v->merges);
    if (scores > 0) {
        put_array(&t, "tokenizer.ggml.scores", QN__GGUF_F32, (uint64_t)scores);
        for (int i = 0; i < scores; i++)
            put_bytes(&t, &v->score, 4);
    }
    if (v->types) {
        put_array(&t, "tokenizer.ggml.token_type", QN__GGUF_I32, (uint64_t)n);
        for (int i = 0; i < n; i++)
            put_int(&t, (uint64_t)(uint32_t)v->types[i], 4);
    }
    put_u32(&t, "tokenizer.ggml.bos_token_id", 1);
    return t;
}

static const char *write_vocabulary(const vocabulary *v)
{
    qn_text t = make(v);
    const char *path = temp_write("v.gguf", t.data, t.n);
    qn_text_free(&t);
    return path;
}

static const char *const letters[] = {"<unk>", "<s>", "a", "b", "ab", "\xc4\xa0", NULL};
static const char *const merges[] = {"a b", NULL};
static const int32_t types[] = {2, 3, 1, 1, 1, 1};

static void assert_ids(const char *path, const char *text, unsigned flags, const int32_t *want,
                       size_t n)
{
    qn_tokenizer *t = open_good(path);
    qn_tokens ids = {0};
    assert_int_equal(qn_tokenizer_encode(t, text, strlen(text), flags, &ids, NULL), QN_OK);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof *want);
    qn_tokens_free(&ids);
    qn_tokenizer_close(t);
}

static void test_made(void **state)
{
    (void)state;
    const char *path =
        write_vocabulary(&(vocabulary){"gpt2", "gpt-2", letters, merges, types, 0, 0});
    assert_ids(path, "ab a", 0, (const int32_t[]){4, 5, 2}, 3);
    assert_ids(path, "a<s>", QN_PARSE_SPECIAL, (const int32_t[]){2, 1}, 2);
    assert_ids(path, "ab", QN_ADD_SPECIAL, (const int32_t[]){4}, 1);
    /* Llama 3's puts bos before a text */
    path = write_vocabulary(&(vocabulary){"gpt2", "llama-bpe", letters, merges, types, 0, 0});
    assert_ids(path, "ab", QN_ADD_SPECIAL, (const int32_t[]){1, 4}, 2);
    static const char *const pieces[] = {"<unk>", "<s>", "a", "b", "ab", "\xe2\x96\x81", NULL};
    path = write_vocabulary(&(vocabulary){"llama", NULL, pieces, NULL, types, -1, -1});
    assert_ids(path, "ab", QN_ADD_SPECIAL, (const int32_t[]){1, 5, 4}, 3);
    /* a user's symbols have spaces in them */
    static const char *const symbols[] = {"<unk>", "<s>", "a", "b", "  ", "\xe2\x96\x81", NULL};
    static const int32_t users[] = {2, 3, 1, 1, 4, 1};
    path = write_vocabulary(&(vocabulary){"llama", NULL, symbols, NULL, users, -1, -1});
    assert_ids(path, "a  b b", 0, (const int32_t[]){5, 2, 4, 5, 3, 5, 3}, 7);
    /* unused pieces are never given */
    static const int32_t unused[] = {2, 3, 1, 1, 5, 1};
    path = write_vocabulary(&(vocabulary){"llama", NULL, pieces, NULL, unused, -1, -1});
    assert_ids(path, "ab", 0, (const int32_t[]){5, 2, 3}, 3);
    static const int32_t no_b[] = {2, 3, 1, 5, 1, 1};
    path = write_vocabulary(&(vocabulary){"llama", NULL, pieces, NULL, no_b, -1, -1});
    assert_ids(path, "ab", 0, (const int32_t[]){5, 2, 0}, 3);
    path = write_vocabulary(&(vocabulary){"gpt2", "gpt-2", letters, merges, unused, 0, 0});
    qn_tokenizer *t = open_good(path);
    assert_int_equal(qn_tokenizer_bos(t), 1);
    qn_tokenizer_close(t);
}

/* Every name cuts a text that has a bit of everything, and gives its bytes. */
static void test_every_name(void **state)
{
    static const char text[] =
        "It's 1234567 o'clock, HELLOworld!\r\n\r\n  \xe4\xb8\xad\xe6\x96\x87\xed"
        "\x95\x9c\xea\xb8\x80 \xf0\x9f\x98\x80\tx ";
    static char storage[256][8];
    static const char *bytes[260] = {"<unk>", "<s>"};
    static const char *const none[] = {NULL};
    (void)state;
    for (int i = 0; i < 256; i++) {
        storage[i][qn__utf8_encode(qn__byte_to_char((uint8_t)i), storage[i])] = 0;
        bytes[2 + i] = storage[i];
    }
    static int32_t all[258] = {2, 3};
    for (int i = 2; i < 258; i++)
        all[i] = 1;
    int n = 0;
    const char *names;
    for (size_t row = 0; (names = qn__gguf_pre_names(row)); row++) {
        char name[40];
        qn__gguf_pre pre;
        for (const char *at = names; *at; at += strcspn(at, " "), at += *at == ' ', n++) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
            assert_true(qn__gguf_pre_named(name, strlen(name), &pre));
            if (pre.characters)
                continue;
            qn_tokenizer *t =
                open_good(write_vocabulary(&(vocabulary){"gpt2", name, bytes, none, all, 0, 0}));
            qn_tokens ids = {0};
            qn_error err = {0};
            if (qn_tokenizer_encode(t, text, sizeof text - 1, 0, &ids, &err) != QN_OK)
                fail_msg("%s: %s", name, err.message);
            assert_int_equal(ids.n, sizeof text - 1);
            qn_tokens_free(&ids);
            qn_tokenizer_close(t);
        }
    }
    assert_true(n > 75);
}

static void assert_refused(const char *path, qn_status code, const char *part)
{
    qn_tokenizer *t;
    qn_error err = {0};
    qn_status status = qn_tokenizer_open(&t, path, &err);
    if (status != code || !strstr(err.message, part) || !strstr(err.message, "v.gguf") ||
        strchr(err.message, '\n'))
        fail_msg("expected \"%s\", got %s: %s", part, qn_status_text(status), err.message);
}

static void test_broken(void **state)
{
    static const char *const bad_byte[] = {"<unk>", "<s>", "<0x-1>", "b", "ab", "c", NULL};
    static const char *const absent[] = {"a b", "a c", NULL};
    static const char *const no_pair[] = {"ab", NULL};
    static const char *const empty[] = {NULL};
    static const int32_t byte[] = {2, 3, 6, 1, 1, 1};
    const float nan = NAN;
    const struct {
        vocabulary v;
        qn_status code;
        const char *part;
    } cases[] = {
        {{"llama", NULL, bad_byte, NULL, byte, -1, 0}, QN_FORMAT, "pieces[2]: a BYTE that is none"},
        {{"llama", NULL, letters, NULL, types, 5, 0},
         QN_FORMAT,
         "scores has 5 entries for 6 tokens"},
        {{"llama", NULL, letters, NULL, types, -1, nan}, QN_FORMAT, "scores[0]: not a finite"},
        {{"gpt2", "gpt-2", letters, NULL, types, 0, 0},
         QN_FORMAT,
         "tokenizer.ggml.merges is missi"},
        {{"gpt2", "gpt-2", letters, absent, types, 0, 0},
         QN_FORMAT,
         "merges[1]: \"a c\" is no pair"},
        {{"gpt2", "gpt-2", letters, no_pair, types, 0, 0},
         QN_FORMAT,
         "merges[0]: \"ab\" is no pair"},
        {{"gpt2", "new", letters, merges, types, 0, 0},
         QN_UNSUPPORTED,
         "pre-tokenizer \"new\" is not"},
        {{"bert", NULL, letters, merges, types, 0, 0},
         QN_UNSUPPORTED,
         "\"bert\", which is WordPiece"},
        {{"rwkv", NULL, letters, merges, types, 0, 0}, QN_UNSUPPORTED, "\"rwkv\" is not supported"},
        {{"llama", NULL, empty, NULL, NULL, 0, 0}, QN_LIMIT, "tokens has 0 entries"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(write_vocabulary(&cases[i].v), cases[i].code, cases[i].part);
    qn_text t = {0};
    put_header(&t, 3);
    assert_refused(temp_write("v.gguf", t.data, t.n), QN_NOT_FOUND, "there is no tokenizer in it");
    put_string(&t, "tokenizer.ggml.model", "gpt2");
    put_string(&t, "tokenizer.ggml.tokens", "a");
    assert_refused(temp_write("v.gguf", t.data, t.n), QN_FORMAT,
                   "tokenizer.ggml.tokens: expected an array of string, got string");
    qn_text_free(&t);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        const char *path = write_vocabulary(&(vocabulary){kind ? "llama" : "gpt2", "deepseek-coder",
                                                          letters, merges, types, -1, 0});
        for (long n = 0;; n++) {
            qn_tokenizer *t = NULL;
            qn_error err = {0};
            fail_allocation_begin(n);
            qn_status status = qn_tokenizer_open(&t, path, &err);
            bool failed = fail_allocation_end();
            if (status == QN_OK)
                qn_tokenizer_close(t);
            else
                assert_true(failed && status == QN_MEMORY);
            if (!failed)
                break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocabularies),        cmocka_unit_test(test_made),
        cmocka_unit_test(test_every_name),          cmocka_unit_test(test_broken),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
