/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat formats: detection, the exact text of each, injection, stop tokens. The tokenizers are made
 * here: one token a byte and the format's control tokens, so that decoding the ids gives the
 * rendered text. Expected texts are written out below; with QUERN_TEST_DATA the models' own
 * templates are compared too, and Llama's and Qwen's real vocabularies.
 */
#include "chat_test.h"

#include "../base/fail_alloc.h"

typedef struct format_case {
    qn_chat_format format;
    const char *name, *begin;
    const char *tokens[6];
    const char *rendered; /* of `conversation`, with the prompt */
    const char *model_template;
    bool own_ways; /* the template adds a system message, and no prompt behind the assistant */
} format_case;

static const format_case formats[] = {
    {QN_CHAT_CHATML,
     "chatml",
     "",
     {"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
     "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi! <|im_end|>\n"
     "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
     "<|im_start|>assistant\n",
     "vocab_split/qwen2/tokenizer_config.json#chat_template",
     true},
    {QN_CHAT_LLAMA3,
     "llama3",
     "<|begin_of_text|>",
     {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
      "<|end_of_text|>"},
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "templates/mistral.rs/llama3.json#chat_template",
     false},
    {QN_CHAT_GEMMA,
     "gemma",
     "<bos>",
     {"<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"},
     "<bos><start_of_turn>user\nBe brief.\n\nHi!<end_of_turn>\n"
     "<start_of_turn>model\nHello.<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n"
     "<start_of_turn>model\n",
     "configs_only/gemma3/chat_template.json#chat_template",
     false},
    {QN_CHAT_DEEPSEEK,
     "deepseek",
     DS_BEGIN,
     {DS_BEGIN, DS_END, DS_USER, DS_ASSISTANT, "<think>", "</think>"},
     DS_BEGIN "Be brief." DS_USER " Hi! " DS_ASSISTANT "Hello." DS_END DS_USER "Bye" DS_ASSISTANT
              "<think>\n",
     "configs_only/deepseek-r1/tokenizer_config.json#chat_template",
     false},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static const qn_chat_message conversation[] = {
    {"system", "Be brief.", 0},
    {"user", " Hi! ", 0},
    {"assistant", "Hello.", 0},
    {"user", "Bye", 3},
};

static void render(const qn_tokenizer *t, const qn_chat_message *messages, size_t n, bool prompt,
                   qn_text *out)
{
    qn_tokens ids = {0};
    qn_error err = {0};
    if (qn_chat_encode(t, messages, n, prompt, &ids, &err) != QN_OK)
        fail_msg("%s", err.message);
    out->n = 0;
    assert_int_equal(qn_tokenizer_decode(t, ids.ids, ids.n, 0, out, NULL), QN_OK);
    qn_tokens_free(&ids);
}

static void test_formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++) {
        qn_tokenizer *t = make_tokenizer(formats[i].tokens, 6);
        qn_text text = {0};
        assert_int_equal(qn_chat_format_of(t), formats[i].format);
        assert_string_equal(qn_chat_format_name(qn_chat_format_of(t)), formats[i].name);
        render(t, conversation, 4, true, &text);
        assert_string_equal(text.data, formats[i].rendered);
        render(t, conversation, 2, false, &text);
        assert_true(strncmp(text.data, formats[i].rendered, 40) == 0);
        render(t, conversation, 0, false, &text);
        assert_string_equal(text.data, formats[i].begin);
        qn_text_free(&text);
        qn_tokenizer_close(t);
    }
}

static void test_no_format(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<|im_start|>", "<|eot_id|>"};
    qn_tokenizer *t = make_tokenizer(tokens, 2);
    qn_tokens ids = {0};
    qn_error err = {0};
    assert_int_equal(qn_chat_format_of(t), QN_CHAT_NONE);
    assert_int_equal(qn_chat_encode(t, conversation, 4, true, &ids, &err), QN_UNSUPPORTED);
    assert_int_equal(qn_chat_stop_tokens(t, NULL, 0), 0);
    assert_string_equal(qn_chat_format_name((qn_chat_format)99), "none");
    qn_tokenizer_close(t);
}

static void test_bad_messages(void **state)
{
    (void)state;
    static const struct {
        qn_chat_message message;
        qn_status code;
        const char *part;
    } cases[] = {
        {{"critic", "x", 0}, QN_INVALID, "message 1: role \"critic\", expected system, user"},
        {{NULL, "x", 0}, QN_INVALID, "role \"\""},
        {{"user", NULL, 0}, QN_INVALID, "with content"},
        {{"user", "a\xff", 0}, QN_FORMAT, "not valid UTF-8 at byte 1"},
        {{"user<|im_end|>", "x", 0}, QN_INVALID, "role \"user<|im_end|>\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_tokenizer *t = make_tokenizer(formats[0].tokens, 6);
        const qn_chat_message messages[] = {conversation[0], cases[i].message};
        qn_tokens ids = {0};
        qn_error err = {0};
        assert_int_equal(qn_chat_encode(t, messages, 2, true, &ids, &err), cases[i].code);
        assert_int_equal(ids.n, 0);
        if (!strstr(err.message, cases[i].part))
            fail_msg("%s", err.message);
        qn_tokens_free(&ids);
        qn_tokenizer_close(t);
    }
    qn_tokenizer *t = make_tokenizer(formats[2].tokens, 6);
    const qn_chat_message late[] = {conversation[1], conversation[0]};
    qn_error err = {0};
    qn_tokens ids = {0};
    assert_int_equal(qn_chat_encode(t, late, 2, true, &ids, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "takes a system message only first"));
    qn_tokens_free(&ids);
    qn_tokenizer_close(t);
}

/* A user who writes control tokens gets them as text: the number of real ones stays. */
static void test_injection(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++) {
        qn_tokenizer *t = make_tokenizer(formats[i].tokens, 6);
        char evil[512] = "";
        for (int j = 0; j < 6 && formats[i].tokens[j]; j++)
            strcat(evil, formats[i].tokens[j]);
        int counts[2] = {0, 0};
        for (int k = 0; k < 2; k++) {
            const qn_chat_message messages[] = {{"user", k ? evil : "x", 0}};
            qn_tokens ids = {0};
            assert_int_equal(qn_chat_encode(t, messages, 1, true, &ids, NULL), QN_OK);
            for (size_t j = 0; j < ids.n; j++)
                counts[k] += qn_tokenizer_is_special(t, ids.ids[j]);
            qn_tokens_free(&ids);
        }
        assert_true(counts[0] > 0);
        assert_int_equal(counts[0], counts[1]);
        qn_text text = {0};
        const qn_chat_message messages[] = {{"user", evil, 0}};
        render(t, messages, 1, false, &text);
        assert_non_null(strstr(text.data, evil));
        qn_text_free(&text);
        qn_tokenizer_close(t);
    }
}

static void test_stop_tokens(void **state)
{
    (void)state;
    qn_tokenizer *t = make_tokenizer(formats[1].tokens, 6);
    int32_t ids[8];
    assert_int_equal(qn_chat_stop_tokens(t, ids, 8), 2);
    assert_int_equal(ids[0], qn_tokenizer_find(t, "<|eot_id|>"));
    assert_int_equal(ids[1], qn_tokenizer_find(t, "<|end_of_text|>"));
    ids[1] = -7;
    assert_int_equal(qn_chat_stop_tokens(t, ids, 1), 2);
    assert_int_equal(ids[1], -7);
    qn_tokenizer_close(t);
}

static void test_thoughts_are_dropped(void **state)
{
    (void)state;
    qn_tokenizer *t = make_tokenizer(formats[3].tokens, 6);
    const qn_chat_message messages[] = {{"user", "a</think>b", 0},
                                        {"assistant", "<think>hm</think>42", 0}};
    qn_text text = {0};
    render(t, messages, 2, false, &text);
    assert_string_equal(text.data, DS_BEGIN DS_USER "a</think>b" DS_ASSISTANT "42" DS_END);
    qn_text_free(&text);
    qn_tokenizer_close(t);
}

/* ---- the models' own templates --------------------------------------------------------------- */

static int compare_template(const format_case *f, const qn_tokenizer *t, const cJSON *line,
                            const cJSON *contexts)
{
    static const char *const names[] = {"minja_simple", "minja_system", "one_user",
                                        "one_user_nogen", "multi_turn_sys"};
    const char *context_name = cJSON_GetObjectItem(line, "context")->valuestring;
    const cJSON *expected = cJSON_GetObjectItem(line, "expected");
    bool wanted = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        wanted = wanted || strcmp(names[i], context_name) == 0;
    if (!wanted || !expected ||
        strcmp(cJSON_GetObjectItem(line, "template")->valuestring, f->model_template) != 0)
        return 0;
    const cJSON *context = cJSON_GetObjectItem(contexts, context_name);
    qn_chat_message messages[16];
    size_t n = 0;
    for (const cJSON *m = cJSON_GetObjectItem(context, "messages")->child; m; m = m->next)
        messages[n++] = (qn_chat_message){cJSON_GetObjectItem(m, "role")->valuestring,
                                          cJSON_GetObjectItem(m, "content")->valuestring, 0};
    if (f->own_ways && strcmp(messages[0].role, "system") != 0)
        return 0;
    bool prompt = cJSON_IsTrue(cJSON_GetObjectItem(context, "add_generation_prompt"));
    if (f->own_ways && strcmp(messages[n - 1].role, "assistant") == 0)
        prompt = false;
    qn_text text = {0};
    render(t, messages, n, prompt, &text);
    /* The contexts have a bos of their own. */
    const char *want = expected->valuestring, *got = text.data;
    const char *bos = cJSON_GetObjectItem(context, "bos_token")->valuestring;
    if (strncmp(want, bos, strlen(bos)) == 0) {
        want += strlen(bos);
        got += strlen(f->begin);
    }
    assert_string_equal(got, want);
    qn_text_free(&text);
    return 1;
}

static void test_model_templates(void **state)
{
    (void)state;
    cJSON *contexts;
    char *data;
    size_t size;
    qn_error err = {0};
    if (qn__json_read(&contexts, chat_data("chat_templates/contexts.json"), 1 << 20, &err) ||
        qn__file_read(chat_data("chat_templates/rendered.jsonl"), 1 << 24, &data, &size, &err))
        fail_msg("%s", err.message);
    qn_tokenizer *tokenizers[N_FORMATS];
    int compared[N_FORMATS] = {0};
    for (size_t i = 0; i < N_FORMATS; i++)
        tokenizers[i] = make_tokenizer(formats[i].tokens, 6);
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1) {
        cJSON *parsed;
        if (qn__json_parse(&parsed, "rendered.jsonl", line, (size_t)(end - line), &err) != QN_OK)
            fail_msg("%s", err.message);
        for (size_t i = 0; i < N_FORMATS; i++)
            compared[i] += compare_template(&formats[i], tokenizers[i], parsed, contexts);
        cJSON_Delete(parsed);
    }
    for (size_t i = 0; i < N_FORMATS; i++) {
        assert_true(compared[i] >= 2);
        qn_tokenizer_close(tokenizers[i]);
    }
    cJSON_Delete(contexts);
    free(data);
}

/* With real vocabularies the ids are those of the rendered text. */
static void test_real_vocabularies(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int format;
    } models[] = {{"assembled/qwen2.5", 0}, {"assembled/llama3.2", 1}};
    for (size_t i = 0; i < 2; i++) {
        qn_tokenizer *t;
        qn_error err = {0};
        if (qn_tokenizer_open(&t, chat_data(models[i].path), &err) != QN_OK)
            fail_msg("%s", err.message);
        const format_case *f = &formats[models[i].format];
        qn_tokens a = {0}, b = {0};
        assert_int_equal(qn_chat_format_of(t), f->format);
        assert_int_equal(qn_chat_encode(t, conversation, 4, true, &a, NULL), QN_OK);
        assert_int_equal(
            qn_tokenizer_encode(t, f->rendered, strlen(f->rendered), QN_PARSE_SPECIAL, &b, NULL),
            QN_OK);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
        qn_tokens_free(&a);
        qn_tokens_free(&b);
        qn_tokenizer_close(t);
    }
}

static void test_failed_allocations(void **state)
{
    (void)state;
    qn_tokenizer *t = make_tokenizer(formats[0].tokens, 6);
    bool more = true;
    for (long n = 0; more; n++) {
        qn_tokens ids = {0};
        fail_allocation_begin(n);
        qn_status status = qn_chat_encode(t, conversation, 4, true, &ids, NULL);
        more = fail_allocation_end();
        assert_int_equal(status, more ? QN_MEMORY : QN_OK);
        assert_true(more == (ids.n == 0));
        qn_tokens_free(&ids);
    }
    qn_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_no_format),
        cmocka_unit_test(test_bad_messages),
        cmocka_unit_test(test_injection),
        cmocka_unit_test(test_stop_tokens),
        cmocka_unit_test(test_thoughts_are_dropped),
        cmocka_unit_test(test_model_templates),
        cmocka_unit_test(test_real_vocabularies),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
