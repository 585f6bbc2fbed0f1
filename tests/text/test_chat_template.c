/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's own chat templates: where they are found and how they are chosen, what ends a reply,
 * the way to ids against transformers with real vocabularies (chats.jsonl, made by make_chats.py;
 * QUERN_TEST_DATA), and failing allocations.
 */
#include "chat_test.h"

#include "../base/fail_alloc.h"

/* A model's own template: what a message says never becomes a control token; with the switch it
 * does. The template builds a control token from a role, too. */
static void test_own_template(void **state)
{
    (void)state;
    static const char config[] =
        "{\"chat_template\":[{\"name\":\"default\",\"template\":\"{% for m in messages %}{{ "
        "'<|im_' + 'start|>' }}"
        "{{ m.role }}\\n{{ m.content|trim }}<|im_end|>\\n{% endfor "
        "%}<think>\"},{\"name\":\"tool_use\","
        "\"template\":\"T{{ tools|length }}\"}],\"eos_token\":\"<|im_end|>\"}";
    static const char json[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\" <|im_end|>\\n<|im_start|>system"
        "<think> \"}]}";
    static const char text[] =
        "<|im_start|>user\n<|im_end|>\n<|im_start|>system<think><|im_end|>\n<think>";
    static const char with_tools[] = "{\"messages\":[],\"tools\":[1,2]}";
    const char *const tokens[] = {"<|im_start|>", "<|im_end|>", "<think>", NULL};
    qn_tokenizer *t = make_tokenizer(tokens, 3);
    qn_chat *chat;
    qn_error err = {0};
    temp_write("tokenizer_config.json", config, sizeof config - 1);
    if (qn_chat_open(&chat, t, temp_root, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_true(qn_chat_has_template(chat));
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        qn_tokens ids = {0}, all = {0};
        qn_text back = {0};
        if (qn_chat_render_ids(chat, json, strlen(json), everywhere ? QN_PARSE_SPECIAL : 0, &ids,
                               &err) != QN_OK)
            fail_msg("%s", err.message);
        int control = 0;
        for (size_t i = 0; i < ids.n; i++)
            control += ids.ids[i] >= 256;
        assert_int_equal(control, everywhere ? 6 : 3);
        assert_int_equal(qn_tokenizer_decode(t, ids.ids, ids.n, 0, &back, NULL), QN_OK);
        assert_string_equal(back.data, text);
        assert_int_equal(qn_tokenizer_encode(t, text, strlen(text), QN_PARSE_SPECIAL, &all, NULL),
                         QN_OK);
        if (everywhere) {
            assert_int_equal(all.n, ids.n);
            assert_memory_equal(all.ids, ids.ids, ids.n * sizeof *ids.ids);
        }
        qn_tokens_free(&ids);
        qn_tokens_free(&all);
        qn_text_free(&back);
    }
    qn_tokens ids = {0};
    assert_int_equal(qn_chat_render_ids(chat, with_tools, strlen(with_tools), 0, &ids, NULL),
                     QN_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[1], '2');
    qn_tokens_free(&ids);
    assert_int_equal(qn_chat_render_ids(chat, "{", 1, 0, &ids, NULL), QN_FORMAT);
    remove(temp_path("tokenizer_config.json"));
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

/* ---- which template ------------------------------------------------------------------------- */

static void write_text(const char *name, const char *text)
{
    temp_write(name, text, strlen(text));
}

static qn_chat *open_chat(const qn_tokenizer *t, const char *directory)
{
    qn_chat *chat;
    qn_error err = {0};
    if (qn_chat_open(&chat, t, directory, &err) != QN_OK)
        fail_msg("%s", err.message);
    return chat;
}

/* What the chosen template says to a chat, with or without tools; its error where it fails. */
static const char *said(const qn_chat *chat, bool tools)
{
    static char out[512];
    qn_text text = {0};
    qn_error err = {0};
    const char *json =
        tools ? "{\"messages\":[],\"tools\":[]}" : "{\"messages\":[],\"tools\":null}";
    qn_status status = qn_chat_render(chat, json, strlen(json), &text, NULL, &err);
    snprintf(out, sizeof out, "%s", status == QN_OK ? text.data : err.message);
    qn_text_free(&text);
    return out;
}

static void test_names(void **state)
{
    (void)state;
    qn_tokenizer *t = make_tokenizer((const char *const[]){"<|end|>"}, 1);
    qn_error err = {0};
    char json[4096];
    temp_mkdir("named");
    size_t n = (size_t)snprintf(json, sizeof json, "%s",
                                "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"old\"},"
                                "{\"name\":\"tool_use\",\"template\":\"T\"},"
                                "{\"name\":\"broken\",\"template\":\"{% if\"},"
                                "{\"name\":\"rag\",\"template\":\"R\"}]}");
    temp_write("named/tokenizer_config.json", json, n);
    qn_chat *chat = open_chat(t, temp_path("named"));
    assert_string_equal(qn_chat_template_name(chat, 0), "broken");
    assert_string_equal(qn_chat_template_name(chat, 1), "rag");
    assert_string_equal(qn_chat_template_name(chat, 2), "tool_use");
    assert_null(qn_chat_template_name(chat, 3));
    assert_string_equal(said(chat, true), "T");
    assert_string_equal(said(chat, false),
                        "the model has no default chat template; choose one by its "
                        "name: broken, rag, tool_use");
    assert_int_equal(qn_chat_choose(chat, "x\ny", &err), QN_NOT_FOUND);
    assert_string_equal(err.message,
                        "no chat template \"x?y\": the model has broken, rag, tool_use");
    assert_int_equal(qn_chat_choose(chat, "rag", NULL), QN_OK);
    assert_string_equal(said(chat, true), "R");
    assert_int_equal(qn_chat_choose(chat, "broken", NULL), QN_OK);
    assert_non_null(strstr(said(chat, false), "tokenizer_config.json: line 1: "));
    assert_int_equal(qn_chat_choose(chat, NULL, NULL), QN_OK);
    assert_string_equal(said(chat, true), "T");
    qn_chat_close(chat);

    /* A folder of the older name, then the newer one, then the file for "default". */
    temp_mkdir("named/chat_templates");
    write_text("named/chat_templates/rag.jinja", "older");
    write_text("named/chat_templates/b.jinja", "B");
    write_text("named/chat_templates/no.txt", "no");
    chat = open_chat(t, temp_path("named"));
    assert_string_equal(qn_chat_template_name(chat, 0), "b");
    assert_null(qn_chat_template_name(chat, 2)); /* those of tokenizer_config.json do not count */
    qn_chat_close(chat);
    temp_mkdir("named/additional_chat_templates");
    write_text("named/additional_chat_templates/rag.jinja", "newer");
    write_text("named/additional_chat_templates/tool_use.jinja", "tools");
    write_text("named/chat_template.jinja", "D");
    chat = open_chat(t, temp_path("named"));
    assert_string_equal(said(chat, false), "D");
    assert_string_equal(said(chat, true), "tools");
    assert_int_equal(qn_chat_choose(chat, "rag", NULL), QN_OK);
    assert_string_equal(said(chat, false), "newer");
    assert_int_equal(qn_chat_choose(chat, "default", NULL), QN_OK);
    assert_string_equal(said(chat, true), "D");
    qn_chat_close(chat);
    qn_tokenizer_close(t);
}

static void test_other_places(void **state)
{
    (void)state;
    qn_tokenizer *t = make_tokenizer((const char *const[]){"<|end|>"}, 1);
    qn_chat *chat = open_chat(t, temp_mkdir("none"));
    qn_error err = {0};
    assert_false(qn_chat_has_template(chat));
    assert_string_equal(said(chat, false), "the model has no chat template");
    assert_int_equal(qn_chat_choose(chat, "default", &err), QN_NOT_FOUND);
    assert_string_equal(err.message, "no chat template \"default\": the model has none");
    qn_chat_close(chat);
    write_text("none/chat_template.json", "{\"chat_template\":\"P\"}");
    chat = open_chat(t, temp_path("none"));
    assert_string_equal(said(chat, true), "P");
    qn_chat_close(chat);
    write_text("none/tokenizer_config.json",
               "{\"chat_template\":\"{{ bos_token }}Q\",\"bos_token\":"
               "{\"content\":\"<s>\"}}");
    chat = open_chat(t, temp_path("none"));
    assert_string_equal(said(chat, true), "<s>Q");
    qn_chat_close(chat);
    /* Null in a message, and only there, is not there. */
    static const char nulls[] = "{\"messages\":[{\"x\":null,\"y\":{\"z\":null}}],\"w\":null}";
    qn_text text = {0};
    write_text("none/tokenizer_config.json", "{\"chat_template\":\"{{ messages[0].x is defined }} "
                                             "{{ messages[0].y }} {{ w is defined }}\"}");
    chat = open_chat(t, temp_path("none"));
    assert_int_equal(qn_chat_render(chat, nulls, sizeof nulls - 1, &text, NULL, NULL), QN_OK);
    assert_string_equal(text.data, "False {'z': None} True");
    qn_text_free(&text);
    qn_chat_close(chat);
    static const struct {
        const char *config, *part;
    } bad[] = {
        {"{\"chat_template\":3}", "chat_template: expected a text or a list of named templates"},
        {"{\"chat_template\":[3]}", "tokenizer_config.json"},
        {"{\"chat_template\":[{\"name\":\"a\"}]}", "template"},
        {"{\"chat_template\":[{\"name\":3,\"template\":\"\"}]}", "name"},
        {"[", "tokenizer_config.json"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (qn_error){0};
        write_text("none/tokenizer_config.json", bad[i].config);
        assert_int_equal(qn_chat_open(&chat, t, temp_path("none"), &err), QN_FORMAT);
        if (!strstr(err.message, bad[i].part) || strchr(err.message, '\n'))
            fail_msg("%s: %s", bad[i].config, err.message);
    }
    char many[8192] = "{\"chat_template\":[";
    size_t n = strlen(many);
    for (int i = 0; i < 65; i++)
        n += (size_t)sprintf(many + n, "%s{\"name\":\"%d\",\"template\":\"\"}", i ? "," : "", i);
    strcpy(many + n, "]}");
    write_text("none/tokenizer_config.json", many);
    err = (qn_error){0};
    assert_int_equal(qn_chat_open(&chat, t, temp_path("none"), &err), QN_LIMIT);
    assert_non_null(strstr(err.message, "more than 64 chat templates"));
    qn_tokenizer_close(t);
}

/* ---- what ends a reply ---------------------------------------------------------------------- */

#define EOS "</s>"

/* A chat of one template, with bos_token "<s>" and eos_token as in EOS. */
static qn_chat *open_one(const qn_tokenizer *t, const char *source)
{
    cJSON *config = cJSON_CreateObject();
    cJSON_AddStringToObject(config, "chat_template", source);
    cJSON_AddStringToObject(config, "bos_token", "<s>");
    cJSON_AddStringToObject(config, "eos_token", EOS);
    char *json = cJSON_PrintUnformatted(config);
    write_text("tokenizer_config.json", json);
    qn_chat *chat = open_chat(t, temp_root);
    remove(temp_path("tokenizer_config.json"));
    cJSON_free(json);
    cJSON_Delete(config);
    return chat;
}

/* The one token that ends a reply by the template; "" where there is none. */
static const char *end_of(const char *source, const char *const *tokens)
{
    static char piece[64];
    size_t n = 0;
    while (n < 8 && tokens[n])
        n++;
    qn_tokenizer *t = make_tokenizer(tokens, n);
    qn_chat *chat = open_one(t, source);
    int32_t ids[2] = {-1, -1};
    size_t found = qn_chat_ends(chat, ids, 2);
    assert_true(found < 2);
    snprintf(piece, sizeof piece, "%s", found ? qn_tokenizer_piece(t, ids[0]) : "");
    qn_chat_close(chat);
    qn_tokenizer_close(t);
    return piece;
}

static void test_ends(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<s>",    EOS,       "<e>",    "<end>",
                                         "<end>>", "<think>", "<user>", NULL};
    static const struct {
        const char *source, *end;
    } cases[] = {
        {"{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}", "<end>"},
        {"{% for m in messages %}{{ m.content }} \n<end>>\n{% endfor %}", "<end>>"},
        {"{% for m in messages %}{{ m.content ~ eos_token }}{% endfor %}", EOS},
        {"{% for m in messages %}<user>{{ m.content }}{% endfor %}", "<user>"},
        {"{% for m in messages %}\nHuman: {{ m.content }}{% endfor %}", ""},
        {"{% for m in messages %}{{ m.content }}.<end>{% endfor %}", ""},
        {"{{ messages[1].content }}<think>", "<think>"},       /* not special, but in the source */
        {"{{ messages[1].content }}{{ '<thi' ~ 'nk>' }}", ""}, /* ... and not in it */
        {"{% for m in messages %}{% for p in m.content %}{{ p.text }}<e>{% endfor %}{% endfor %}",
         "<e>"},
        {"{{ raise_exception('no') }}", ""},
        {"{% if messages|length == 3 %}{{ messages[1].content }}<e>{% endif %}", "<e>"},
        {"{% for i in range(99999) %}{% for j in range(999) %}{% endfor %}{% endfor %}", ""},
        {"{{ messages[1].content|upper }}<e>", ""},
        {"{{ messages[1].content }}x{{ messages[1].content }}<e>", "<e>"},
        {"{% if", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(end_of(cases[i].source, tokens), cases[i].end) != 0)
            fail_msg("%s: got \"%s\"", cases[i].source, end_of(cases[i].source, tokens));
}

/* What the vendors' generation settings and manuals say. */
static void test_ends_of_real_templates(void **state)
{
    (void)state;
    static const struct {
        const char *name, *end;
        const char *tokens[8]; /* besides `end`, <s> and </s> */
    } cases[] = {
        {"configs_only/qwen3/tokenizer_config.json#chat_template",
         "<|im_end|>",
         {"<|im_start|>", "<|endoftext|>", "<think>", "</think>"}},
        {"templates/llama.cpp/meta-llama-Llama-3.1-8B-Instruct.jinja",
         "<|eot_id|>",
         {"<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"}},
        {"configs_only/gemma3/chat_template.json#chat_template",
         "<end_of_turn>",
         {"<start_of_turn>"}},
        {"configs_only/gemma4/chat_template.jinja",
         "<turn|>",
         {"<|turn>", "<|channel>", "<channel|>"}},
        {"configs_only/phi-4-base/tokenizer_config.json#chat_template",
         "<|im_end|>",
         {"<|im_start|>", "<|im_sep|>"}},
        {"configs_only/phi-4-mini/tokenizer_config.json#chat_template",
         "<|end|>",
         {"<|user|>", "<|assistant|>", "<|endoftext|>"}},
        {"configs_only/deepseek-r1/tokenizer_config.json#chat_template",
         DS_END,
         {DS_USER, DS_ASSISTANT, "<think>", "</think>"}},
        {"configs_only/nvidia-mistral-nemo/tokenizer_config.json#chat_template",
         "",
         {"<extra_id_2>"}},
        {"hf.js#CohereForAI/c4ai-command-r-v01",
         "<|END_OF_TURN_TOKEN|>",
         {"<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"}},
        {"hf.js#openchat/openchat-3.5-0106", "<|end_of_turn|>", {NULL}},
        {"hf.js#deepseek-ai/deepseek-coder-33b-instruct", "<|EOT|>", {NULL}},
        {"hf.js#HuggingFaceH4/zephyr-7b-beta (add_generation_prompt=false)", EOS, {NULL}},
        {"hf.js#mistralai/Mixtral-8x7B-Instruct-v0.1", EOS, {NULL}},
        {"templates/mistral-common/v3.jinja", EOS, {"[INST]", "[/INST]"}},
        {"templates/chujiezheng/granite-3.0-instruct.jinja",
         "<|end_of_text|>",
         {"<|start_of_role|>", "<|end_of_role|>"}},
        {"templates/llama.cpp/GLM-4.7-Flash.jinja",
         "<|user|>",
         {"<|assistant|>", "<|system|>", "<|observation|>", "<think>", "</think>"}},
        {"templates/llama.cpp/moonshotai-Kimi-K2.jinja",
         "<|im_end|>",
         {"<|im_user|>", "<|im_middle|>"}},
    };
    cJSON *templates;
    qn_error err = {0};
    if (qn__json_read(&templates, chat_data("chat_templates/templates.json"), 1 << 24, &err) !=
        QN_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *tokens[9] = {"<s>", EOS}, *end = cases[i].end;
        size_t n = 2;
        if (*end && strcmp(end, EOS) != 0)
            tokens[n++] = end;
        for (size_t k = 0; k < 5 && cases[i].tokens[k]; k++)
            tokens[n++] = cases[i].tokens[k];
        const cJSON *source = cJSON_GetObjectItemCaseSensitive(templates, cases[i].name);
        assert_non_null(source);
        const char *got = end_of(source->valuestring, tokens);
        if (strcmp(got, end) != 0)
            fail_msg("%s: got \"%s\", expected \"%s\"", cases[i].name, got, end);
    }
    cJSON_Delete(templates);
    /* With real vocabularies. */
    static const struct {
        const char *tokenizer, *config;
        int32_t end;
    } models[] = {{"assembled/qwen2.5", "configs_only/qwen2.5", 151645},
                  {"assembled/llama3.2", "configs_only/llama3.2-1b-instruct", 128009},
                  {"tokenizers/minimind", "tokenizers/minimind", 2}};
    for (size_t i = 0; i < 3; i++) {
        qn_tokenizer *t;
        if (qn_tokenizer_open(&t, chat_data(models[i].tokenizer), &err) != QN_OK)
            fail_msg("%s", err.message);
        qn_chat *chat = open_chat(t, chat_data(models[i].config));
        int32_t id = -1;
        assert_int_equal(qn_chat_ends(chat, &id, 1), 1);
        assert_int_equal(id, models[i].end);
        qn_chat_close(chat);
        qn_tokenizer_close(t);
    }
}

/* ---- ids ------------------------------------------------------------------------------------ */

static int differs_from(const qn_chat *chat, const char *json, unsigned flags, const cJSON *want,
                        const char *label)
{
    qn_tokens ids = {0};
    qn_error err = {0};
    if (qn_chat_render_ids(chat, json, strlen(json), flags, &ids, &err) != QN_OK)
        fail_msg("%s: %s", label, err.message);
    size_t n = (size_t)cJSON_GetArraySize(want), i = 0;
    const cJSON *id = want->child;
    for (; i < n && i < ids.n && ids.ids[i] == id->valueint; i++)
        id = id->next;
    bool same = n == ids.n && i == n;
    if (!same)
        print_message("%s, flags %u: differs from id %zu of %zu on (got %zu)\n%s\n", label, flags,
                      i, n, ids.n, json);
    qn_tokens_free(&ids);
    return !same;
}

/* With control tokens in messages left as text, and as transformers does it. */
static void test_ids_of_transformers(void **state)
{
    (void)state;
    char path[4096], *data;
    size_t size;
    const char *root = getenv("QUERN_SOURCE");
    qn_error err = {0};
    cJSON *templates;
    if (qn__json_read(&templates, chat_data("chat_templates/templates.json"), 1 << 24, &err) !=
        QN_OK)
        fail_msg("%s", err.message);
    snprintf(path, sizeof path, "%s/tests/text/chats.jsonl", root ? root : ".");
    assert_int_equal(qn__file_read(path, 1 << 24, &data, &size, NULL), QN_OK);
    int n = 0, wrong = 0, with_control = 0;
    char opened[256] = "";
    qn_tokenizer *t = NULL;
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        cJSON *row;
        assert_int_equal(qn__json_parse(&row, path, line, (size_t)(end - line), &err), QN_OK);
        const char *tokenizer = cJSON_GetObjectItem(row, "tokenizer")->valuestring;
        const cJSON *config = cJSON_GetObjectItem(row, "config"),
                    *name = cJSON_GetObjectItem(row, "template"),
                    *text_ids = cJSON_GetObjectItem(row, "text_ids"),
                    *ids = cJSON_GetObjectItem(row, "ids");
        if (strcmp(opened, tokenizer) != 0) {
            qn_tokenizer_close(t);
            snprintf(opened, sizeof opened, "%s", tokenizer);
            if (qn_tokenizer_open(&t, chat_data(tokenizer), &err) != QN_OK)
                fail_msg("%s", err.message);
        }
        qn_chat *chat =
            config
                ? open_chat(t, chat_data(config->valuestring))
                : open_one(
                      t,
                      cJSON_GetObjectItemCaseSensitive(templates, name->valuestring)->valuestring);
        char *json = cJSON_PrintUnformatted(cJSON_GetObjectItem(row, "chat"));
        wrong += differs_from(chat, json, 0, text_ids ? text_ids : ids, tokenizer);
        wrong += differs_from(chat, json, QN_PARSE_SPECIAL, ids, tokenizer);
        with_control += text_ids != NULL;
        cJSON_free(json);
        qn_chat_close(chat);
        cJSON_Delete(row);
    }
    print_message("%d chats, %d of them with control tokens in messages: %d differ\n", n,
                  with_control, wrong);
    assert_true(n > 40 && with_control >= 4);
    assert_int_equal(wrong, 0);
    qn_tokenizer_close(t);
    cJSON_Delete(templates);
    free(data);
}

/* ---- failing allocations -------------------------------------------------------------------- */

/* Parsing and rendering templates of every feature. */
static void test_failed_allocations_of_templates(void **state)
{
    (void)state;
    char path[4096], *data;
    size_t size;
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/tests/jinja/templates.jsonl", root ? root : ".");
    assert_int_equal(qn__file_read(path, 1 << 24, &data, &size, NULL), QN_OK);
    long failures = 0, templates = 0;
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1, templates++) {
        cJSON *row;
        assert_int_equal(qn__json_parse(&row, path, line, (size_t)(end - line), NULL), QN_OK);
        const char *source = cJSON_GetObjectItem(row, "template")->valuestring,
                   *json = cJSON_GetObjectItem(row, "context")->valuestring;
        bool works = cJSON_GetObjectItem(row, "expected") != NULL, more = true;
        for (long n = 0; more; n++) {
            qn_text out = {0};
            qn_spans spans = {0};
            qn_error err = {0};
            qn_template *t = NULL;
            fail_allocation_begin(n);
            qn_status status = qn_template_new(&t, "t", source, strlen(source), &err);
            if (status == QN_OK)
                status = qn_template_render(t, json, strlen(json), NULL, &out, &spans, &err);
            more = fail_allocation_end();
            failures += more;
            if (more ? status != QN_MEMORY : works != (status == QN_OK))
                fail_msg("%s: allocation %ld: %d %s", source, n, (int)status, err.message);
            assert_true(status == QN_OK || (err.message[0] && out.n == 0 && spans.n == 0));
            qn_template_free(t);
            qn_text_free(&out);
            qn_spans_free(&spans);
        }
        cJSON_Delete(row);
    }
    print_message("%ld templates, %ld allocations failed\n", templates, failures);
    assert_true(failures > 1000);
    free(data);
}

/* The arena hides most allocations of a rendering: a limit on what it asks for stops at each of
 * them. */
static void test_memory_limits_of_templates(void **state)
{
    (void)state;
    char path[4096], *data;
    size_t size;
    const char *root = getenv("QUERN_SOURCE");
    snprintf(path, sizeof path, "%s/tests/jinja/templates.jsonl", root ? root : ".");
    assert_int_equal(qn__file_read(path, 1 << 24, &data, &size, NULL), QN_OK);
    long refused = 0;
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1) {
        cJSON *row;
        assert_int_equal(qn__json_parse(&row, path, line, (size_t)(end - line), NULL), QN_OK);
        const char *source = cJSON_GetObjectItem(row, "template")->valuestring,
                   *json = cJSON_GetObjectItem(row, "context")->valuestring;
        const cJSON *expected = cJSON_GetObjectItem(row, "expected");
        qn_template *t = NULL;
        qn_template_new(&t, "t", source, strlen(source), NULL);
        qn_template_options options = {.size = sizeof options, .now = 1721997296};
        qn_status status = t && expected ? QN_LIMIT : QN_OK;
        for (options.memory = 256; status == QN_LIMIT; options.memory += options.memory / 48) {
            qn_text out = {0};
            qn_error err = {0};
            status = qn_template_render(t, json, strlen(json), &options, &out, NULL, &err);
            refused += status == QN_LIMIT;
            if (status == QN_LIMIT ? out.n > 0 : strcmp(out.data, expected->valuestring) != 0)
                fail_msg("%s in %zu bytes: %s", source, options.memory, err.message);
            qn_text_free(&out);
        }
        assert_int_equal(status, QN_OK);
        qn_template_free(t);
        cJSON_Delete(row);
    }
    print_message("%ld renderings refused for their memory\n", refused);
    assert_true(refused > 5000);
    free(data);
}

/* Opening a chat with several templates, choosing, and encoding. */
static void test_failed_allocations_of_chats(void **state)
{
    (void)state;
    static const char json[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <e>\"}],\"tools\":[]}";
    qn_tokenizer *t = make_tokenizer((const char *const[]){"<e>", "<s>"}, 2);
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", temp_mkdir("failing"));
    write_text("failing/tokenizer_config.json",
               "{\"bos_token\":\"<s>\",\"chat_template\":[{\"name\":\"a\",\"template\":\"A\"},"
               "{\"name\":\"default\",\"template\":\"{% for m in messages %}<s>{{ m.content "
               "}}<e>{% endfor %}\"}]}");
    bool more = true;
    long n = 0, rounds = 0;
    for (; more || rounds < 2; n++) {
        if (!more) { /* and again from files */
            temp_mkdir("failing/additional_chat_templates");
            write_text("failing/additional_chat_templates/default.jinja",
                       "{% for m in messages %}{{ m.content }}<e>{% endfor %}");
            n = 0;
        }
        qn_chat *chat = NULL;
        qn_tokens ids = {0};
        qn_error err = {0};
        int32_t end = -1;
        fail_allocation_begin(n);
        qn_status status = qn_chat_open(&chat, t, directory, &err);
        if (status == QN_OK)
            status = qn_chat_render_ids(chat, json, sizeof json - 1, 0, &ids, &err);
        more = fail_allocation_end();
        if (more ? status != QN_MEMORY : status != QN_OK)
            fail_msg("allocation %ld: %d %s", n, (int)status, err.message);
        assert_true((ids.n == 0) == more);
        if (!more) {
            rounds++;
            assert_int_equal(qn_chat_ends(chat, &end, 1), 1);
            assert_int_equal(end, 256);
        }
        qn_tokens_free(&ids);
        qn_chat_close(chat);
    }
    assert_true(n > 20);
    qn_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_template),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_other_places),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_ends_of_real_templates),
        cmocka_unit_test(test_ids_of_transformers),
        cmocka_unit_test(test_failed_allocations_of_templates),
        cmocka_unit_test(test_memory_limits_of_templates),
        cmocka_unit_test(test_failed_allocations_of_chats),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
