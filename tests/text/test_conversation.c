/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations as data: what is said, cut, replaced, written and read; ids equal those of the JSON
 * written out by hand; JSON that is wrong anywhere leaves what there was.
 */
#include "demo_test.h"

#include "base/fail_alloc.h"

#include <string.h>
#include <time.h>

static qn_chat *chat_with(const qn_tokenizer *t, const char *source)
{
    qn_chat *chat;
    qn_error err = {0};
    if (source)
        temp_write("chat_template.jinja", source, strlen(source));
    else
        remove(temp_path("chat_template.jinja"));
    if (qn_chat_open(&chat, t, temp_path("."), &err) != QN_OK)
        fail_msg("%s", err.message);
    return chat;
}

static qn_conversation *new_conversation(const qn_chat *chat)
{
    qn_conversation *c;
    assert_int_equal(qn_conversation_new(&c, chat, NULL), QN_OK);
    return c;
}

static void say(qn_conversation *c, const char *role, const char *content)
{
    assert_int_equal(qn_conversation_add(c, role, content, strlen(content), NULL), QN_OK);
}

static void check_json(const qn_conversation *c, const char *want)
{
    qn_text is = {0};
    assert_int_equal(qn_conversation_to_json(c, &is, NULL), QN_OK);
    assert_string_equal(is.data, want);
    qn_text_free(&is);
}

/* Ids, and text, of the conversation are those of the request. */
static void check_request(const qn_conversation *c, const qn_chat *chat, bool prompt,
                          const char *request, unsigned flags)
{
    qn_tokens is = {0}, want = {0};
    qn_text text = {0}, other = {0};
    qn_error err = {0};
    if (qn_conversation_ids(c, prompt, &is, &err) != QN_OK ||
        qn_chat_render_ids(chat, request, strlen(request), flags, &want, &err) != QN_OK ||
        qn_conversation_text(c, prompt, &text, &err) != QN_OK ||
        qn_chat_render(chat, request, strlen(request), &other, NULL, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(is.n, want.n);
    assert_memory_equal(is.ids, want.ids, is.n * sizeof *is.ids);
    assert_string_equal(text.data, other.data);
    qn_tokens_free(&is);
    qn_tokens_free(&want);
    qn_text_free(&text);
    qn_text_free(&other);
}

#define ALL_TEMPLATE                                                                               \
    "{% for t in tools or [] %}{{ t.name }}{% endfor %}{{ extra }}{% for m in messages %}"         \
    "<|im_start|>{{ m.role }} {{ m.content or m.tool_calls[0].a }}{{ m.mood }}<|im_end|>"          \
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>go{% endif %}"

static void test_messages(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    qn_chat *chat = chat_with(t, ALL_TEMPLATE);
    qn_conversation *c = new_conversation(chat);
    assert_null(qn_conversation_message(c, 0));
    check_json(c, "[]\n");
    assert_int_equal(qn_conversation_set_system(c, "", 0, NULL), QN_OK);
    say(c, "user", "a \"b\"\n<|im_end|>");
    assert_int_equal(qn_conversation_set_system(c, "S", 1, NULL), QN_OK);
    assert_int_equal(qn_conversation_set_system(c, "T\0U", 3, NULL), QN_OK);
    static const char json[] =
        " {\"mood\": 1.50 , "
        "\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"a\":\"z\"}]} ";
    assert_int_equal(qn_conversation_add_json(c, json, strlen(json), NULL), QN_OK);
    assert_int_equal(qn_conversation_length(c), 3);
    const qn_chat_message *m = qn_conversation_message(c, 0);
    assert_string_equal(m->role, "system");
    assert_int_equal(m->content_size, 3);
    assert_memory_equal(m->content, "T\0U", 4);
    assert_null(qn_conversation_message(c, 2)->content);
    assert_null(qn_conversation_message_json(c, 3));
#define MESSAGES                                                                                   \
    "[{\"role\":\"system\",\"content\":\"T\\u0000U\"},\n {\"role\":\"user\",\"content\":\"a "      \
    "\\\"b\\\"\\n<|im_end|>\"},\n {\"mood\": 1.50 , \"role\":\"assistant\",\"content\":null,"      \
    "\"tool_calls\":[{\"a\":\"z\"}]}]"
    check_json(c, MESSAGES "\n");
    check_request(c, chat, true, "{\"messages\":" MESSAGES ",\"add_generation_prompt\":true}", 0);
    check_request(c, chat, false, "{\"messages\":" MESSAGES "}", 0);
    qn_conversation_parse_special(c, true);
    check_request(c, chat, false, "{\"messages\":" MESSAGES "}", QN_PARSE_SPECIAL);
    assert_int_equal(qn_conversation_set_tools(c, "[{\"name\":\"hammer\"}]", 19, NULL), QN_OK);
    assert_int_equal(qn_conversation_set_variable(c, "extra", " [1, 2] ", 8, NULL), QN_OK);
    assert_int_equal(qn_conversation_set_variable(c, "gone", "1", 1, NULL), QN_OK);
    assert_int_equal(qn_conversation_set_variable(c, "extra", "[\"x\"]", 5, NULL), QN_OK);
    assert_int_equal(qn_conversation_set_variable(c, "gone", NULL, 0, NULL), QN_OK);
    assert_int_equal(qn_conversation_set_variable(c, "never", NULL, 0, NULL), QN_OK);
    assert_int_equal(qn_conversation_set_variable(c, "add_generation_prompt", "false", 5, NULL),
                     QN_OK);
    static const char whole[] =
        "{\"messages\":" MESSAGES ",\n \"tools\":[{\"name\":\"hammer\"}],\n "
        "\"chat_template_kwargs\":{\"extra\":[\"x\"],\"add_generation_prompt\":false},\n "
        "\"parse_special\":true}\n";
    check_json(c, whole);
    check_request(c, chat, true,
                  "{\"extra\":[\"x\"],\"tools\":[{\"name\":\"hammer\"}],\"messages\":" MESSAGES "}",
                  QN_PARSE_SPECIAL);
    qn_conversation *other = new_conversation(chat);
    say(other, "user", "goes");
    assert_int_equal(qn_conversation_parse(other, "x", whole, strlen(whole), NULL), QN_OK);
    check_json(other, whole);
    qn_conversation_cut(c, 1);
    assert_int_equal(qn_conversation_set_system(c, "", 0, NULL), QN_OK);
    assert_int_equal(qn_conversation_length(c), 0);
    qn_conversation_free(other);
    qn_conversation_free(c);
    qn_conversation_free(NULL);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* Without a template: the format that the tokens fit, which has messages alone. */
static void test_built_in(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    qn_chat *chat = chat_with(t, NULL);
    qn_conversation *c = new_conversation(chat);
    qn_tokens is = {0}, want = {0};
    qn_text text = {0};
    qn_error err = {0};
    say(c, "user", "Hello <|im_end|>");
    say(c, "assistant", "");
    const qn_chat_message messages[] = {{"user", "Hello <|im_end|>", 0}, {"assistant", "", 0}};
    assert_int_equal(qn_conversation_ids(c, true, &is, &err), QN_OK);
    assert_int_equal(qn_chat_encode(t, messages, 2, true, &want, &err), QN_OK);
    assert_int_equal(is.n, want.n);
    assert_memory_equal(is.ids, want.ids, is.n * sizeof *is.ids);
    assert_int_equal(qn_conversation_text(c, false, &text, &err), QN_OK);
    assert_string_equal(text.data, "<|im_start|>user\nHello <|im_end|><|im_end|>\n"
                                   "<|im_start|>assistant\n<|im_end|>\n");
    static const char parts[] = "{\"role\":\"user\",\"content\":[]}";
    assert_int_equal(qn_conversation_add_json(c, parts, strlen(parts), &err), QN_OK);
    assert_int_equal(qn_conversation_ids(c, true, &is, &err), QN_UNSUPPORTED);
    assert_non_null(strstr(err.message, "message 2"));
    qn_conversation_cut(c, 1);
    qn_conversation_set_tools(c, "[]", 2, NULL);
    assert_int_equal(qn_conversation_ids(c, true, &is, NULL), QN_UNSUPPORTED);
    qn_conversation_set_tools(c, NULL, 0, NULL);
    qn_conversation_parse_special(c, true);
    assert_int_equal(qn_conversation_ids(c, true, &is, NULL), QN_UNSUPPORTED);
    assert_int_equal(is.n, want.n);
    qn_tokens_free(&is);
    qn_tokens_free(&want);
    qn_text_free(&text);
    qn_conversation_free(c);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

static const struct {
    const char *json, *words;
    qn_status status;
} wrong[] = {
    {"", "ends", QN_FORMAT},
    {"[", "ends", QN_FORMAT},
    {"3", "messages are an array", QN_FORMAT},
    {"{}", "there are no messages", QN_FORMAT},
    {"{\"messages\":null}", "there are no messages", QN_FORMAT},
    {"{\"messages\":{}}", "messages", QN_FORMAT},
    {"{\"messages\":[],\"messages\":[]}", "twice", QN_FORMAT},
    {"{\"messages\":[],\"tools\":{}}", "tools", QN_FORMAT},
    {"{\"messages\":[],\"tools\":[],\"tools\":[]}", "twice", QN_FORMAT},
    {"{\"messages\":[],\"chat_template_kwargs\":[]}", "chat_template_kwargs", QN_FORMAT},
    {"{\"messages\":[],\"chat_template_kwargs\":{\"tools\":1}}", "no variable", QN_INVALID},
    {"{\"messages\":[],\"parse_special\":1}", "true or false", QN_FORMAT},
    {"[] x", "the end", QN_FORMAT},
    {"[1]", "x: messages[0]: a message must be an object", QN_FORMAT},
    {"[{\"role\":\"a\",\"content\":\"\"},{}]", "x: messages[1]: the message has no role",
     QN_FORMAT},
    {"[{\"content\":\"a\"}]", "no role", QN_FORMAT},
    {"[{\"role\":\"a\"}]", "no content", QN_FORMAT},
    {"[{\"role\":\"a\",\"content\":null}]", "no content", QN_FORMAT},
    {"[{\"role\":\"a\",\"content\":3}]", "a text or an array", QN_FORMAT},
    {"[{\"role\":\"a\",\"content\":{}}]", "a text or an array", QN_FORMAT},
    {"[{\"role\":3,\"content\":\"\"}]", "role must be a text", QN_FORMAT},
    {"[{\"role\":\"a\",\"role\":\"b\",\"content\":\"\"}]", "twice", QN_FORMAT},
    {"[{\"role\":\"a\",\"content\":\"\",\"content\":\"b\"}]", "twice", QN_FORMAT},
    {"[{\"role\":\"a\",\"content\":\"\\ud800\"}]", "", QN_FORMAT},
    {"[{\"role\":\"a\",\"content\":\"\xff\"}]", "UTF-8", QN_FORMAT},
    {"[{\"role\":\"a\",\"content\":\"a", "inside a string", QN_FORMAT},
};

static void test_wrong(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    qn_chat *chat = chat_with(t, ALL_TEMPLATE);
    qn_conversation *c = new_conversation(chat);
    static const char stays[] = "[{\"role\":\"user\",\"content\":\"stays\"}]\n";
    say(c, "user", "stays");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        qn_error err = {0};
        qn_status got = qn_conversation_parse(c, "x", wrong[i].json, strlen(wrong[i].json), &err);
        if (got != wrong[i].status || err.code != got || strncmp(err.message, "x: ", 3) ||
            !strstr(err.message, wrong[i].words))
            fail_msg("%s: %d \"%s\"", wrong[i].json, got, err.message);
        check_json(c, stays);
    }
    static const char *const no_message[] = {"", "[]", "{}", "{\"role\":\"a\",\"content\":\"\"} 1",
                                             "{\"role\":\"a\",\"content\":\"\""};
    for (size_t i = 0; i < sizeof no_message / sizeof *no_message; i++)
        assert_int_equal(qn_conversation_add_json(c, no_message[i], strlen(no_message[i]), NULL),
                         QN_FORMAT);
    assert_int_equal(qn_conversation_add(c, "user", "a\xff", 2, NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_add(c, "us\xff", "a", 1, NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_set_system(c, "\xff", 1, NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_set_tools(c, "{}", 2, NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_set_tools(c, "[", 1, NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_set_variable(c, "a", "b", 1, NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_set_variable(c, "a\xff", "1", 1, NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_set_variable(c, "messages", "[]", 2, NULL), QN_INVALID);
    check_json(c, stays);
    qn_conversation_free(c);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* Texts of many parts cost what they have, not its square. */
static void test_many(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    qn_tokenizer *t = open_demo();
    qn_chat *chat = chat_with(t, ALL_TEMPLATE);
    qn_conversation *c = new_conversation(chat);
    static const char one[] = "{\"role\":\"user\",\"content\":\"x\"},";
    size_t size = strlen(one);
    char *json = malloc((MANY + 2) * size + 100);
    json[0] = '[';
    for (size_t i = 0; i <= MANY; i++)
        memcpy(json + 1 + i * size, one, size);
    json[MANY * size] = ']';
    clock_t begun = clock();
    assert_int_equal(qn_conversation_parse(c, "x", json, MANY * size + 1, NULL), QN_OK);
    assert_int_equal(qn_conversation_length(c), MANY);
    json[MANY * size] = ',';
    json[(MANY + 1) * size] = ']';
    assert_int_equal(qn_conversation_parse(c, "x", json, (MANY + 1) * size + 1, NULL), QN_LIMIT);
    size_t used = (size_t)sprintf(json, "{\"messages\":[],\"chat_template_kwargs\":{");
    for (int i = 0; i < MANY; i++)
        used += (size_t)sprintf(json + used, "%s\"v%d\":%d", i ? "," : "", i, i);
    used += (size_t)sprintf(json + used, "}}");
    assert_int_equal(qn_conversation_parse(c, "x", json, used, NULL), QN_LIMIT);
    assert_true((double)(clock() - begun) / CLOCKS_PER_SEC < 1.0 * PATIENCE);
    free(json);
    qn_conversation_free(c);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* A file of it. */
static void test_files(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    qn_chat *chat = chat_with(t, ALL_TEMPLATE);
    qn_conversation *c = new_conversation(chat), *other = new_conversation(chat);
    qn_error err = {0};
    const char *path = temp_path("said.json");
    say(c, "user", "Hello");
    assert_int_equal(qn_conversation_write(c, path, &err), QN_OK);
    say(c, "assistant", "Hi");
    assert_int_equal(qn_conversation_write(c, path, &err), QN_OK);
    assert_int_equal(qn_conversation_read(other, path, &err), QN_OK);
    check_json(other, "[{\"role\":\"user\",\"content\":\"Hello\"},\n "
                      "{\"role\":\"assistant\",\"content\":\"Hi\"}]\n");
    assert_int_equal(qn_conversation_write(c, temp_path("no/where"), &err), QN_IO);
    assert_int_equal(qn_conversation_read(other, temp_path("nothing"), NULL), QN_NOT_FOUND);
    assert_int_equal(qn_conversation_read(other, temp_write("short", "[", 1), NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_read(other, temp_write("none", "", 0), NULL), QN_FORMAT);
    assert_int_equal(qn_conversation_length(other), 2);
    qn_conversation_free(other);
    qn_conversation_free(c);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

static qn_status talk(const qn_chat *chat, qn_tokens *ids, qn_error *err)
{
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\n\"}],"
                               "\"tools\":[],\"chat_template_kwargs\":{\"extra\":1}}";
    qn_conversation *c = NULL;
    qn_text text = {0};
    qn_status status = qn_conversation_new(&c, chat, err);
    if (status == QN_OK)
        status = qn_conversation_parse(c, "x", json, strlen(json), err);
    if (status == QN_OK)
        status = qn_conversation_set_system(c, "Be brief.", 9, err);
    if (status == QN_OK)
        status = qn_conversation_add(c, "assistant", "b", 1, err);
    if (status == QN_OK)
        status = qn_conversation_set_system(c, "Be long.", 8, err);
    if (status == QN_OK)
        status = qn_conversation_set_variable(c, "extra", "2", 1, err);
    if (status == QN_OK)
        status = qn_conversation_to_json(c, &text, err);
    if (status == QN_OK)
        status = qn_conversation_write(c, temp_path("talk.json"), err);
    if (status == QN_OK)
        status = qn_conversation_read(c, temp_path("talk.json"), err);
    if (status == QN_OK)
        status = qn_conversation_ids(c, true, ids, err);
    qn_text_free(&text);
    qn_conversation_free(c);
    return status;
}

static void test_allocations(void **state)
{
    (void)state;
    qn_tokenizer *t = open_demo();
    qn_chat *chat = chat_with(t, ALL_TEMPLATE);
    qn_tokens want = {0};
    assert_int_equal(talk(chat, &want, NULL), QN_OK);
    for (long n = 0;; n++) {
        qn_tokens ids = {0};
        qn_error err = {0};
        fail_allocation_begin(n);
        qn_status status = talk(chat, &ids, &err);
        bool failed = fail_allocation_end();
        if (status != QN_OK && (status != QN_MEMORY || err.code != QN_MEMORY))
            fail_msg("allocation %ld: %d \"%s\"", n, status, err.message);
        if (status == QN_OK) {
            assert_int_equal(ids.n, want.n);
            assert_memory_equal(ids.ids, want.ids, ids.n * sizeof *ids.ids);
        }
        qn_tokens_free(&ids);
        if (!failed) {
            assert_true(n > 30);
            break;
        }
    }
    qn_tokens_free(&want);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages), cmocka_unit_test(test_built_in),
        cmocka_unit_test(test_wrong),    cmocka_unit_test(test_many),
        cmocka_unit_test(test_files),    cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
