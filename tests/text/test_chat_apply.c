/* SPDX-License-Identifier: Apache-2.0
 *
 * qn_chat_apply: messages in C give the ids that the same messages as JSON give; a model without a
 * template falls back on the format that its tokens fit.
 */
#include "demo_test.h"

#include <string.h>
#include <unistd.h>

static qn_chat *open_chat(const qn_tokenizer *t, const char *directory)
{
    qn_chat *chat;
    qn_error err = {0};
    if (qn_chat_open(&chat, t, directory, &err) != QN_OK)
        fail_msg("%s", err.message);
    return chat;
}

static void assert_same(const qn_tokens *a, const qn_tokens *b)
{
    assert_int_equal(a->n, b->n);
    assert_true(a->n > 0);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
}

#define TEMPLATE                                                                                   \
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content|length }}\n{{ m.content }}"      \
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>go{% endif %}"

/* Each message as C has it, and as a JSON string. */
static const struct {
    qn_chat_message message;
    const char *json;
} rows[] = {
    {{"system", "Be brief.", 0}, "Be brief."},
    {{"user", "a \"quoted\" \\ back\nslash\t\x01\x7f", 0},
     "a \\\"quoted\\\" \\\\ back\\nslash\\t\\u0001\x7f"},
    {{"assistant", "caf\xc3\xa9 \xf0\x9f\xa6\x8a <|im_end|>", 0},
     "caf\\u00e9 \\ud83e\\udd8a <|im_end|>"},
    {{"user", "a\0b", 3}, "a\\u0000b"},
    {{"user", "", 0}, ""},
};

enum { N_ROWS = sizeof rows / sizeof *rows };

static void test_as_json(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    temp_write("chat_template.jinja", TEMPLATE, sizeof TEMPLATE - 1);
    qn_chat *chat = open_chat(t, temp_path("."));
    assert_true(qn_chat_has_template(chat));
    for (size_t n = 1; n <= N_ROWS; n++)
        for (int prompt = 0; prompt < 2; prompt++) {
            char json[1000] = "{\"messages\":[";
            qn_chat_message messages[N_ROWS];
            for (size_t i = 0; i < n; i++) {
                messages[i] = rows[i].message;
                snprintf(json + strlen(json), sizeof json - strlen(json),
                         "%s{\"role\":\"%s\",\"content\":\"%s\"}", i ? "," : "", messages[i].role,
                         rows[i].json);
            }
            strcat(json, prompt ? "],\"add_generation_prompt\":true}" : "]}");
            qn_tokens a = {0}, b = {0};
            qn_error err = {0};
            if (qn_chat_apply(chat, messages, n, prompt, &a, &err) != QN_OK ||
                qn_chat_render_ids(chat, json, strlen(json), 0, &b, &err) != QN_OK)
                fail_msg("%s", err.message);
            assert_same(&a, &b);
            qn_tokens_free(&a);
            qn_tokens_free(&b);
        }
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

static void test_without_template(void **state)
{
    (void)state;
    char empty[4200];
    qn_tokenizer *t = open_demo();
    snprintf(empty, sizeof empty, "%s", temp_mkdir("none"));
    qn_chat *chat = open_chat(t, empty);
    assert_false(qn_chat_has_template(chat));
    qn_tokens a = {0}, b = {0};
    assert_int_equal(qn_chat_apply(chat, &rows[0].message, 1, true, &a, NULL), QN_OK);
    assert_int_equal(qn_chat_encode(t, &rows[0].message, 1, true, &b, NULL), QN_OK);
    assert_same(&a, &b);
    qn_tokens_free(&a);
    qn_tokens_free(&b);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

static void test_refusals(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    temp_write("chat_template.jinja", TEMPLATE, sizeof TEMPLATE - 1);
    qn_chat *chat = open_chat(t, temp_path("."));
    const struct {
        qn_chat_message messages[2];
        qn_status status;
        const char *part;
    } bad[] = {
        {{{"user", "fine", 0}, {"user", "a\xff", 0}},
         QN_FORMAT,
         "message 1 is not valid UTF-8 at byte 1"},
        {{{"us\xc3", "x", 0}, {"user", "x", 0}}, QN_FORMAT, "message 0"},
        {{{"user", "x", 0}, {NULL, "x", 0}}, QN_INVALID, "message 1 has no role"},
        {{{"user", NULL, 0}, {"user", "x", 0}}, QN_INVALID, "message 0 has no content"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_error err = {0};
        qn_tokens out = {0};
        assert_int_equal(qn_chat_apply(chat, bad[i].messages, 2, true, &out, &err), bad[i].status);
        if (!strstr(err.message, bad[i].part))
            fail_msg("\"%s\" does not say \"%s\"", err.message, bad[i].part);
        assert_int_equal(out.n, 0);
        qn_tokens_free(&out);
    }
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_template),
        cmocka_unit_test(test_as_json),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
