/* SPDX-License-Identifier: Apache-2.0
 *
 * What ends a reply: generation_config.json, else config.json; the tokenizer's format; and the
 * control token that the model's chat template puts behind a reply, also where the files name
 * others.
 */
#include "generate/model_test.h"

#include "base/file.h"
#include "base/temp_dir.h"

enum { END_OF_TEXT = 0, IM_END = 421, RIGHT = 423 }; /* of tiny.tokenizer.json */

static void copy_file(const char *from, const char *to)
{
    char path[600], *data;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", getenv("QUERN_SOURCE"), from);
    assert_int_equal(qn__file_read(path, 64 << 20, &data, &n, NULL), QN_OK);
    temp_write(to, data, n);
    free(data);
}

static void write_or_remove(const char *name, const char *text)
{
    if (text)
        temp_write(name, text, strlen(text));
    else
        remove(temp_path(name));
}

static void test_stop_tokens(void **state)
{
    (void)state;
    static const char turns[] = "{% for m in messages %}{{ m.content }}<right>{% endfor %}";
    static const struct {
        const char *generation, *template;
        int32_t stops[6]; /* up to -1 */
    } cases[] = {
        {NULL, NULL, {2, IM_END, END_OF_TEXT, -1}},
        {NULL, turns, {2, IM_END, END_OF_TEXT, RIGHT, -1}},
        {"{\"eos_token_id\":[7,3]}", turns, {7, 3, IM_END, END_OF_TEXT, RIGHT, -1}},
        {"{\"eos_token_id\":423}", turns, {RIGHT, IM_END, END_OF_TEXT, -1}},
        {"{\"do_sample\":true}", NULL, {2, IM_END, END_OF_TEXT, -1}},
        {"{\"eos_token_id\":[]}", NULL, {2, IM_END, END_OF_TEXT, -1}},
        {NULL, "{% if", {2, IM_END, END_OF_TEXT, -1}},
        {NULL, "\xff", {2, IM_END, END_OF_TEXT, -1}},
    };
    copy_file("tests/golden/llama/plain/config.json", "config.json");
    copy_file("tests/golden/llama/plain/model.safetensors", "model.safetensors");
    copy_file("tests/text/tiny.tokenizer.json", "tokenizer.json");
    qn_device *device;
    assert_int_equal(qn_device_open(&device, "cpu", NULL, NULL), QN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_model *model;
        qn_error err = {0};
        qn_model_options o = {.size = sizeof o, .no_weights = true};
        write_or_remove("generation_config.json", cases[i].generation);
        write_or_remove("chat_template.jinja", cases[i].template);
        if (qn_model_open(&model, device, temp_root, &o, &err) != QN_OK)
            fail_msg("case %zu: %s", i, err.message);
        qn_generation_defaults d = {.size = sizeof d};
        size_t want = 0;
        qn_model_get_defaults(model, &d);
        while (want < 6 && cases[i].stops[want] >= 0)
            want++;
        if (d.n_stop != want || memcmp(d.stop, cases[i].stops, want * sizeof *d.stop) != 0)
            fail_msg("case %zu: %zu stop tokens, the first %d", i, d.n_stop, d.stop[0]);
        qn_model_close(model);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stop_tokens)};
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
