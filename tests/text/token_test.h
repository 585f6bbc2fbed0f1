/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of tokenizers share: opening, and comparing with what the Hugging Face library or
 * SentencePiece gave, as lines of JSON. QUERN_SOURCE is the source root, else the current folder;
 * QUERN_TEST_DATA the folder of real vocabularies, without which a test that needs it is skipped.
 */
#ifndef QN_TESTS_TOKEN_TEST_H
#define QN_TESTS_TOKEN_TEST_H

#include "test.h"

#include "base/file.h"
#include "base/json.h"
#include "base/json_scan.h"
#include "base/utf8.h"
#include "quern/text.h"
#include "../base/temp_dir.h"

#include <time.h>

#define TINY source_path("tests/text/tiny.tokenizer.json")

static inline const char *source_path(const char *name)
{
    static char path[PATH_MAX];
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    return path;
}

static inline const char *data_path(const char *name)
{
    static char path[PATH_MAX];
    const char *data = getenv("QUERN_TEST_DATA");
    if (!data) {
        print_message("skipped: QUERN_TEST_DATA is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/%s", data, name);
    return path;
}

static inline qn_tokenizer *open_or_fail(const char *path)
{
    qn_tokenizer *t;
    qn_error err = {0};
    if (qn_tokenizer_open(&t, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static inline double seconds_since(clock_t start)
{
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

static inline bool key_equals(const qn__json_text *key, const char *word)
{
    return key->size == strlen(word) && memcmp(key->data, word, key->size) == 0;
}

/* ---- expectations ---------------------------------------------------------------------------- */

typedef struct expectation {
    qn_text text, decoded, skipped; /* decoded and skipped from `ids` */
    qn_tokens special, ids, user;   /* with QN_ADD_SPECIAL; without; without parsing either */
    bool has_decoded, has_skipped, has_user;
    int64_t index; /* of the text in cases.json, or -1 */
} expectation;

static inline void copy_text(qn_text *out, const qn__json_text *from)
{
    out->n = 0;
    out->capacity = from->size + 1;
    free(out->data);
    out->data = malloc(out->capacity);
    memcpy(out->data, from->data, from->size);
    out->n = from->size;
}

static inline void read_text(qn__json_scan *scan, qn_text *out)
{
    qn__json_text text;
    assert_true(qn__json_read_string(scan, &text));
    copy_text(out, &text);
}

static inline void read_ids(qn__json_scan *scan, qn_tokens *out)
{
    assert_true(qn__json_enter_array(scan));
    while (qn__json_next_item(scan)) {
        int64_t id;
        assert_true(qn__json_read_int(scan, 0, INT32_MAX, &id));
        if (out->n == out->capacity) {
            out->capacity = out->capacity ? out->capacity * 2 : 64;
            out->ids = realloc(out->ids, out->capacity * sizeof *out->ids);
        }
        out->ids[out->n++] = (int32_t)id;
    }
}

static inline void read_expectation(const char *line, size_t size, expectation *e)
{
    qn_error err = {0};
    qn__json_scan scan;
    qn__json_text key;
    *e = (expectation){.index = -1};
    qn__json_scan_begin(&scan, "expected", line, size, &err);
    scan.allow_nul = true;
    assert_true(qn__json_enter_object(&scan));
    while (qn__json_next_key(&scan, &key)) {
        if (key_equals(&key, "text")) {
            read_text(&scan, &e->text);
        } else if (key_equals(&key, "i")) {
            assert_true(qn__json_read_int(&scan, 0, INT32_MAX, &e->index));
        } else if (key_equals(&key, "sp")) {
            read_ids(&scan, &e->special);
        } else if (key_equals(&key, "ids")) {
            read_ids(&scan, &e->ids);
        } else if (key_equals(&key, "user")) {
            read_ids(&scan, &e->user);
            e->has_user = true;
        } else if (key_equals(&key, "dec")) {
            read_text(&scan, &e->decoded);
            e->has_decoded = true;
        } else if (key_equals(&key, "dec_skip")) {
            read_text(&scan, &e->skipped);
            e->has_skipped = true;
        } else {
            qn__json_skip(&scan, NULL);
        }
    }
    if (qn__json_scan_end(&scan) != QN_OK)
        fail_msg("%s", err.message);
}

static inline void free_expectation(expectation *e)
{
    qn_text_free(&e->text);
    qn_text_free(&e->decoded);
    qn_text_free(&e->skipped);
    qn_tokens_free(&e->special);
    qn_tokens_free(&e->ids);
    qn_tokens_free(&e->user);
}

static inline bool same_ids(const qn_tokenizer *t, const qn_text *text, unsigned flags,
                            const qn_tokens *expected)
{
    qn_tokens got = {0};
    qn_error err = {0};
    if (qn_tokenizer_encode(t, text->data, text->n, flags, &got, &err) != QN_OK)
        fail_msg("%s", err.message);
    bool same = got.n == expected->n &&
                (got.n == 0 || memcmp(got.ids, expected->ids, got.n * sizeof *got.ids) == 0);
    qn_tokens_free(&got);
    return same;
}

/* Whole and streamed decoding, which must agree. */
static inline bool same_text(const qn_tokenizer *t, const qn_tokens *ids, unsigned flags,
                             const qn_text *expected)
{
    qn_text whole = {0}, streamed = {0};
    qn_decoder *decoder = qn_decoder_new(t, flags);
    assert_int_equal(qn_tokenizer_decode(t, ids->ids, ids->n, flags, &whole, NULL), QN_OK);
    for (size_t i = 0; i < ids->n; i++) {
        assert_int_equal(qn_decoder_push(decoder, ids->ids[i], &streamed, NULL), QN_OK);
        assert_int_equal(qn__utf8_check(streamed.data, streamed.n), streamed.n);
    }
    assert_int_equal(qn_decoder_flush(decoder, &streamed, NULL), QN_OK);
    assert_int_equal(whole.n, streamed.n);
    if (whole.n > 0)
        assert_memory_equal(whole.data, streamed.data, whole.n);
    bool same = whole.n == expected->n &&
                (whole.n == 0 || memcmp(whole.data, expected->data, whole.n) == 0);
    qn_decoder_free(decoder);
    qn_text_free(&whole);
    qn_text_free(&streamed);
    return same;
}

static inline int differences(const qn_tokenizer *t, const expectation *e, const qn_text *text)
{
    int n = 0;
    n += !same_ids(t, text, QN_PARSE_SPECIAL | QN_ADD_SPECIAL, &e->special);
    n += !same_ids(t, text, QN_PARSE_SPECIAL, &e->ids);
    if (e->has_user)
        n += !same_ids(t, text, 0, &e->user);
    const qn_text *whole = e->has_decoded ? &e->decoded : text;
    n += !same_text(t, &e->ids, 0, whole);
    n += !same_text(t, &e->ids, QN_SKIP_SPECIAL, e->has_skipped ? &e->skipped : whole);
    return n;
}

static inline size_t read_cases(const char *path, qn_text **out)
{
    char *data;
    size_t size, n = 0;
    qn_error err = {0};
    if (qn__file_read(path, 1 << 28, &data, &size, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn__json_scan scan;
    qn__json_text key;
    qn_text *cases = calloc(10000, sizeof *cases);
    qn__json_scan_begin(&scan, path, data, size, &err);
    scan.allow_nul = true;
    assert_true(qn__json_enter_array(&scan));
    while (qn__json_next_item(&scan)) {
        assert_true(n < 10000 && qn__json_enter_object(&scan));
        while (qn__json_next_key(&scan, &key)) {
            if (key_equals(&key, "text"))
                read_text(&scan, &cases[n]);
            else
                qn__json_skip(&scan, NULL);
        }
        n++;
    }
    if (qn__json_scan_end(&scan) != QN_OK)
        fail_msg("%s", err.message);
    free(data);
    *out = cases;
    return n;
}

static inline size_t decode_base64(const qn__json_text *text, uint8_t *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < text->size && text->data[i] != '='; i++) {
        const char *digit = strchr(digits, text->data[i]);
        assert_true(digit && *digit);
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (i % 4 > 0)
            out[n++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    return n;
}

/* The model of a line of spm.jsonl (make_spm.py), as a file. */
static inline const char *write_spm(const char *line, size_t size, const char *name)
{
    qn__json_scan scan;
    qn__json_text key, text;
    const char *path = NULL;
    qn__json_scan_begin(&scan, "spm.jsonl", line, size, NULL);
    assert_true(qn__json_enter_object(&scan));
    while (qn__json_next_key(&scan, &key)) {
        if (!key_equals(&key, "model")) {
            qn__json_skip(&scan, NULL);
            continue;
        }
        assert_true(qn__json_read_string(&scan, &text));
        uint8_t *model = malloc(text.size);
        path = temp_write(name, model, decode_base64(&text, model));
        free(model);
    }
    assert_int_equal(qn__json_scan_end(&scan), QN_OK);
    return path;
}

#endif
