/* SPDX-License-Identifier: Apache-2.0
 *
 * SentencePiece models (tokenizer.model), BPE and Unigram, against the library (spm.jsonl, made by
 * make_spm.py); what goes around a text; broken ones.
 */
#include "token_test.h"

/* Ids of a text with a control token in it, with "legacy" on or off: key is "old" or "new". */
static void check_apart(const char *line, size_t size, const char *which, const char *config)
{
    cJSON *root = cJSON_ParseWithLength(line, size);
    const cJSON *apart = cJSON_GetObjectItem(root, "apart"),
                *want = cJSON_GetObjectItem(apart, which);
    const char *text = cJSON_GetObjectItem(apart, "text")->valuestring;
    char path[PATH_MAX];
    temp_write("spm/tokenizer_config.json", config, strlen(config));
    snprintf(path, sizeof path, "%s", temp_path("spm"));
    qn_tokenizer *t = open_or_fail(path);
    qn_tokens ids = {0};
    assert_int_equal(qn_tokenizer_encode(t, text, strlen(text), QN_PARSE_SPECIAL, &ids, NULL),
                     QN_OK);
    assert_int_equal(ids.n, cJSON_GetArraySize(want));
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.ids[i], cJSON_GetArrayItem(want, (int)i)->valueint);
    qn_tokens_free(&ids);
    qn_tokenizer_close(t);
    cJSON_Delete(root);
}

static int check_spm_case(const qn_tokenizer *t, const qn__json_text *span)
{
    expectation e;
    read_expectation(span->data, span->size, &e);
    int bad = !same_ids(t, &e.text, 0, &e.ids) + !same_text(t, &e.ids, QN_SKIP_SPECIAL, &e.skipped);
    if (bad)
        print_message("differs in %d ways: \"%.*s\"\n", bad, (int)e.text.n, e.text.data);
    free_expectation(&e);
    return bad;
}

/* SentencePiece models: lines of {"model": base64, "bos": id, "cases": [...]}. */
static void test_sentencepiece(void **state)
{
    (void)state;
    char *data;
    size_t size;
    qn_error err = {0};
    if (qn__file_read(source_path("tests/text/spm.jsonl"), 1 << 24, &data, &size, &err))
        fail_msg("%s", err.message);
    int models = 0, different = 0, cases = 0;
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1, models++) {
        qn_tokenizer *t = open_or_fail(write_spm(line, (size_t)(end - line), "spm.model"));
        qn__json_scan scan;
        qn__json_text key, span;
        qn__json_scan_begin(&scan, "spm.jsonl", line, (size_t)(end - line), &err);
        assert_true(qn__json_enter_object(&scan));
        while (qn__json_next_key(&scan, &key)) {
            int64_t bos;
            if (key_equals(&key, "bos")) {
                assert_true(qn__json_read_int(&scan, -1, 9, &bos));
                assert_int_equal(qn_tokenizer_bos(t), bos);
            } else if (key_equals(&key, "cases")) {
                assert_true(qn__json_enter_array(&scan));
                for (; qn__json_next_item(&scan) && qn__json_skip(&scan, &span); cases++) {
                    int bad = check_spm_case(t, &span);
                    if (bad)
                        print_message("... of model %d\n", models);
                    different += bad;
                }
            } else {
                qn__json_skip(&scan, NULL);
            }
        }
        assert_int_equal(qn__json_scan_end(&scan), QN_OK);
        qn_tokenizer_close(t);
    }
    free(data);
    assert_int_equal(different, 0);
    assert_true(models >= 12 && cases > 500);
}

/* What goes around a text, and where special tokens come from. */
static void test_sentencepiece_around(void **state)
{
    (void)state;
    char *data;
    size_t size;
    assert_int_equal(
        qn__file_read(source_path("tests/text/spm.jsonl"), 1 << 24, &data, &size, NULL), QN_OK);
    const char *directory = temp_mkdir("spm");
    int models = 0;
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1, models++) {
        write_spm(line, (size_t)(end - line), "spm/tokenizer.model");
        check_apart(line, (size_t)(end - line), "old", "{}");
        check_apart(line, (size_t)(end - line), "old", "{\"legacy\":true}");
        check_apart(line, (size_t)(end - line), "new", "{\"legacy\":false}");
    }
    write_spm(data, (size_t)(strchr(data, '\n') - data), "spm/tokenizer.model");
    free(data);
    temp_write("spm/tokenizer_config.json", "{}", 2);
    qn_tokenizer *t = open_or_fail(directory);
    qn_tokens ids = {0};
    assert_int_equal(
        qn_tokenizer_encode(t, "</s>", 4, QN_ADD_SPECIAL | QN_PARSE_SPECIAL, &ids, NULL), QN_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], qn_tokenizer_bos(t));
    assert_int_equal(ids.ids[1], qn_tokenizer_eos(t));
    ids.n = 0;
    assert_int_equal(qn_tokenizer_encode(t, "</s>", 4, 0, &ids, NULL), QN_OK);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(qn_tokenizer_is_special(t, ids.ids[i]));
    qn_tokenizer_close(t);
    static const char config[] = "{\"add_bos_token\":false,\"add_eos_token\":true}";
    temp_write("spm/tokenizer_config.json", config, sizeof config - 1);
    t = open_or_fail(directory);
    ids.n = 0;
    assert_int_equal(qn_tokenizer_encode(t, "", 0, QN_ADD_SPECIAL, &ids, NULL), QN_OK);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.ids[0], qn_tokenizer_eos(t));
    qn_tokenizer_close(t);
    /* T5's have only eos around; a newer name of the file is the same kind. */
    static const char t5[] = "{\"tokenizer_class\":\"T5Tokenizer\"}";
    temp_write("spm/tokenizer_config.json", t5, sizeof t5 - 1);
    char old_name[PATH_MAX], new_name[PATH_MAX];
    snprintf(old_name, sizeof old_name, "%s", temp_path("spm/tokenizer.model"));
    snprintf(new_name, sizeof new_name, "%s", temp_path("spm/tokenizer.model.v3"));
    assert_int_equal(rename(old_name, new_name), 0);
    for (int i = 0; i < 2; i++) {
        t = open_or_fail(i ? new_name : temp_path("spm"));
        ids.n = 0;
        assert_int_equal(qn_tokenizer_encode(t, "", 0, QN_ADD_SPECIAL, &ids, NULL), QN_OK);
        assert_int_equal(ids.n, 1);
        assert_int_equal(ids.ids[0], qn_tokenizer_eos(t));
        qn_tokenizer_close(t);
    }
    qn_tokens_free(&ids);
}

/* SentencePiece models, as bytes: fields are (tag, size, bytes). */
static void test_bad_models(void **state)
{
    (void)state;
#define PIECE(text, type) "\n\x0a\n\x01" text "\x15\0\0\0\0\x18" type
#define UNK               PIECE("u", "\x02")
#define BPE               "\x12\x02\x18\x02"
    static const struct {
        const char *data;
        size_t n;
        qn_status code;
        const char *part;
    } cases[] = {
#define MODEL_CASE(data, code, part) {data, sizeof data - 1, code, part}
        MODEL_CASE("", QN_FORMAT, "no pieces"),
        MODEL_CASE("\x12\x02\x18\x02", QN_FORMAT, "no pieces"),
        MODEL_CASE(UNK "\x12\x02\x18\x03", QN_UNSUPPORTED, "model_type: WORD"),
        MODEL_CASE(PIECE("a", "\x01") BPE, QN_FORMAT, "none is UNKNOWN"),
        MODEL_CASE(UNK UNK BPE, QN_FORMAT, "pieces[1].piece stands twice"),
        MODEL_CASE(UNK PIECE("v", "\x02") BPE, QN_FORMAT, "both UNKNOWN"),
        MODEL_CASE(UNK PIECE("v", "\x05") BPE, QN_UNSUPPORTED, "type: UNUSED"),
        MODEL_CASE(UNK PIECE("v", "\x07") BPE, QN_UNSUPPORTED, "means nothing"),
        MODEL_CASE(UNK PIECE("v", "\x06") BPE, QN_FORMAT, "a BYTE that is none"),
        MODEL_CASE(UNK "\n\x0a\n\x01\xff\x15\0\0\0\0\x18\x01" BPE, QN_FORMAT, "bytes of UTF-8"),
        MODEL_CASE(UNK "\n\x08\n\x01v\x15\0\0\x80\x7f" BPE, QN_FORMAT, "not a finite number"),
        MODEL_CASE(UNK "\x12\x05\x18\x02\x98\x02\x01", QN_FORMAT, "no piece <0x00>"),
        MODEL_CASE(UNK "\n\x7f", QN_FORMAT, "the model: broken at its byte 12"),
        MODEL_CASE(UNK "\x12\x02\x18\x82", QN_FORMAT, "trainer_spec: broken"),
        MODEL_CASE(UNK BPE "\x1a\x04\x12\x02zz", QN_FORMAT, "precompiled_charsmap"),
        MODEL_CASE(UNK BPE "\x1a\x0b\x12\x09\x04\0\0\0\0\0\0\0x", QN_FORMAT, "no terminated UTF-8"),
        MODEL_CASE(UNK BPE "\x2a\x03\x12\x01x", QN_UNSUPPORTED, "denormalizer_spec"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_error err = {0};
        qn_tokenizer *t;
        const char *path = temp_write("bad.model", cases[i].data, cases[i].n);
        qn_status status = qn_tokenizer_open(&t, path, &err);
        if (status != cases[i].code || !strstr(err.message, cases[i].part) ||
            !strstr(err.message, "bad.model: "))
            fail_msg("case %zu: \"%s\" (%d), expected \"%s\"", i, err.message, (int)status,
                     cases[i].part);
        assert_null(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentencepiece),
        cmocka_unit_test(test_sentencepiece_around),
        cmocka_unit_test(test_bad_models),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
