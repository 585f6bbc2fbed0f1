/* SPDX-License-Identifier: Apache-2.0
 *
 * Every function of model.h, io.h and text.h that takes a qn_error takes NULL for it, also when it
 * fails, in each way that is easily had.
 */
#include "generate/model_test.h"

#include "base/temp_dir.h"

#include <math.h>

static const char *write_text(const char *name, const char *text)
{
    return temp_write(name, text, strlen(text));
}

static void test_files(void **state)
{
    qn_device *device = open_cpu(state);
    qn_tensors *t;
    char byte;
    static const char *const bad[] = {"", "x", "{\"weight_map\":{}}", "PK\5\6", "\x93NUMPY"};
    assert_int_equal(qn_tensors_open(&t, "absent", NULL), QN_NOT_FOUND);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(qn_tensors_open(&t, write_text("bad.index.json", bad[i]), NULL),
                             QN_OK);
        assert_int_not_equal(qn_tensors_open(&t, write_text("bad", bad[i]), NULL), QN_OK);
    }
    qn_scope *s = qn_scope_begin(device);
    qn_named_array a = {"a", qn_ones(s, QN_F32, 1, (const int64_t[]){3})};
    assert_int_equal(qn_tensors_write(s, temp_path("a.xyz"), &a, 1, NULL), QN_INVALID);
    assert_int_equal(qn_tensors_write(NULL, temp_path("a.npz"), &a, 1, NULL), QN_INVALID);
    assert_int_equal(qn_tensors_write(s, "/none/a.safetensors", &a, 1, NULL), QN_IO);
    assert_int_equal(qn_tensors_write(s, "/none/a.npz", &a, 1, NULL), QN_IO);
    assert_int_equal(qn_tensors_write(s, "/none/a.npy", &a, 1, NULL), QN_IO);
    assert_int_equal(qn_tensors_write(s, temp_path("a.safetensors"), &a, 1, NULL), QN_OK);
    qn_scope_end(s);
    assert_int_equal(qn_tensors_open(&t, temp_path("a.safetensors"), NULL), QN_OK);
    assert_int_equal(qn_tensors_read_bytes(t, qn_tensors_find(t, "a"), 12, 1, &byte, NULL),
                     QN_INVALID);
    assert_int_equal(truncate(temp_path("a.safetensors"), 20), 0);
    assert_int_not_equal(qn_tensors_read_bytes(t, qn_tensors_find(t, "a"), 0, 1, &byte, NULL),
                         QN_OK);
    qn_tensors_close(t);
    qn_device_close(device);
}

static void check_sessions(qn_model *model)
{
    qn_session *session;
    qn_generation *g;
    qn_text text = {0};
    int32_t bad = -1, id = 1, next;
    float logits[4096];
    const qn_session_options options[] = {
        {.context = -1}, {.batch = 2000}, {.keep = 3}, {.keep = 90, .rotate = true}, {.size = 0}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        qn_session_options o = options[i];
        assert_int_equal(qn_session_open(&session, model, &o, NULL), QN_INVALID); /* no size */
        o.size = sizeof o;
        if (i + 1 < sizeof options / sizeof *options)
            assert_int_equal(qn_session_open(&session, model, &o, NULL), QN_INVALID);
    }
    const qn_session_options small = {.size = sizeof small, .context = 2, .batch = 2},
                             one = {.size = sizeof one, .context = 2};
    assert_int_equal(qn_session_open(&session, model, &small, NULL), QN_OK);
    assert_int_equal(qn_session_step_greedy(session, 1, &next, NULL), QN_INVALID);
    assert_int_equal(qn_generation_begin(&g, session, &id, 1, NULL, NULL), QN_UNSUPPORTED);
    qn_session_close(session);
    assert_int_equal(qn_session_open(&session, model, &one, NULL), QN_OK);
    assert_int_equal(qn_session_append(session, &bad, 1, NULL), QN_INVALID);
    assert_int_equal(qn_session_append(session, (int32_t[]){1, 1, 1}, 3, NULL), QN_LIMIT);
    assert_int_equal(qn_session_score(session, &bad, 1, logits, NULL), QN_INVALID);
    assert_int_equal(qn_session_step_greedy(session, bad, &next, NULL), QN_INVALID);
    assert_int_equal(qn_generation_begin(&g, session, &id, 0, NULL, NULL), QN_INVALID);
    const qn_sampling cold = {.size = sizeof cold, .temperature = -1};
    const qn_generation_options hot = {.size = sizeof hot, .sampling = &cold},
                                many = {.size = sizeof many, .logprobs = true, .top_logprobs = -1};
    assert_int_equal(qn_generation_begin(&g, session, &id, 1, &hot, NULL), QN_INVALID);
    assert_int_equal(qn_generation_begin(&g, session, &id, 1, &many, NULL), QN_INVALID);
    assert_int_equal(qn_generation_begin(&g, session, &bad, 1, NULL, NULL), QN_OK);
    assert_int_equal(qn_generation_next(g, &next, NULL), QN_INVALID);
    assert_int_equal(qn_generation_text(g, true, &text, NULL), QN_STATE);
    qn_generation_end(g);
    qn_session_close(session);
    qn_text_free(&text);
}

static void test_models(void **state)
{
    qn_device *device = open_cpu(state);
    qn_model *model;
    qn_session *session;
    const qn_model_options headers = {
        .size = sizeof headers, .no_weights = true, .no_tokenizer = true};
    char path[600];
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    assert_int_equal(qn_model_open(&model, device, "absent", NULL, NULL), QN_NOT_FOUND);
    assert_int_equal(qn_model_open(&model, device, temp_root, NULL, NULL), QN_NOT_FOUND);
    write_text("config.json", "{\"model_type\":\"gpt99\"}");
    assert_int_equal(qn_model_open(&model, device, temp_root, NULL, NULL), QN_UNSUPPORTED);
    write_text("config.json", "{");
    assert_int_equal(qn_model_open(&model, device, temp_root, NULL, NULL), QN_FORMAT);
    assert_int_equal(qn_model_open(&model, device, path, &headers, NULL), QN_OK);
    assert_int_equal(qn_session_open(&session, model, NULL, NULL), QN_STATE);
    qn_model_close(model);
    model = open_model(device, "models/demo", false);
    check_sessions(model);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_sampling(void **state)
{
    qn_device *device = open_cpu(state);
    float logits[] = {NAN, NAN};
    qn_sampling p = {.size = sizeof p, .top_k = -1};
    qn_logprob out;
    assert_int_equal(qn_sampling_set_chain(&p, "x", NULL), QN_INVALID);
    assert_int_equal(qn_sample(device, logits, 2, &p, NULL, 0, 0, NULL), -1);
    assert_int_equal(qn_sample(device, logits, 2, &QN_INIT(qn_sampling), NULL, 0, 0, NULL), -1);
    assert_int_equal(qn_logprobs(device, logits, 2, 0, 0, &out, NULL), QN_INVALID);
    qn_device_close(device);
}

static void check_tokenizer(const qn_tokenizer *t)
{
    qn_tokens ids = {0};
    qn_text text = {0};
    qn_chat *chat;
    assert_int_equal(qn_tokenizer_encode(t, "\xff", 1, 0, &ids, NULL), QN_FORMAT);
    qn_tokenizer_token_bytes(t, -5, &text, NULL);
    qn_tokenizer_decode(t, (int32_t[]){-5, 1 << 30}, 2, 0, &text, NULL);
    qn_decoder *d = qn_decoder_new(t, 0);
    qn_decoder_push(d, -5, &text, NULL);
    qn_decoder_flush(d, &text, NULL);
    qn_decoder_free(d);
    const qn_chat_message message = {"nobody", "\xff", 1};
    assert_int_not_equal(qn_chat_encode(t, &message, 1, true, &ids, NULL), QN_OK);
    write_text("chat_template.jinja", "{{ raise_exception('x') }}");
    write_text("tokenizer_config.json", "{");
    qn_chat_open(&chat, t, temp_root, NULL);
    qn_chat_close(chat);
    remove(temp_path("tokenizer_config.json"));
    assert_int_equal(qn_chat_open(&chat, t, temp_root, NULL), QN_OK);
    assert_int_equal(qn_chat_choose(chat, "absent", NULL), QN_NOT_FOUND);
    assert_int_not_equal(qn_chat_render(chat, "{}", 2, &text, NULL, NULL), QN_OK);
    assert_int_not_equal(qn_chat_render(chat, "{", 1, &text, NULL, NULL), QN_OK);
    assert_int_not_equal(qn_chat_render_ids(chat, "{}", 2, 0, &ids, NULL), QN_OK);
    assert_int_not_equal(qn_chat_render_ids(chat, "[", 1, 0, &ids, NULL), QN_OK);
    qn_chat_close(chat);
    qn_tokens_free(&ids);
    qn_text_free(&text);
}

static void test_texts(void **state)
{
    (void)state;
    char path[600];
    qn_tokenizer *t;
    qn_template *template;
    qn_text text = {0};
    static const char *const bad[] = {"", "{", "{}", "{\"model\":{\"type\":\"WordPiece\"}}",
                                      "{\"model\":{\"vocab\":{}}}"};
    assert_int_equal(qn_tokenizer_open(&t, "absent", NULL), QN_NOT_FOUND);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(qn_tokenizer_open(&t, write_text("tokenizer.json", bad[i]), NULL),
                             QN_OK);
        assert_int_not_equal(qn_tokenizer_open(&t, write_text("tokenizer.model", bad[i]), NULL),
                             QN_OK);
    }
    snprintf(path, sizeof path, "%s/models/demo", getenv("QUERN_SOURCE"));
    assert_int_equal(qn_tokenizer_open(&t, path, NULL), QN_OK);
    check_tokenizer(t);
    qn_tokenizer_close(t);
    assert_int_not_equal(qn_template_new(&template, "t", "{% if", 5, NULL), QN_OK);
    assert_int_equal(qn_template_new(&template, "t", "{{ 1 / 0 }}", 11, NULL), QN_OK);
    assert_int_not_equal(qn_template_render(template, "{}", 2, NULL, &text, NULL, NULL), QN_OK);
    assert_int_not_equal(qn_template_render(template, "nonsense", 8, NULL, &text, NULL, NULL),
                         QN_OK);
    qn_template_free(template);
    qn_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
