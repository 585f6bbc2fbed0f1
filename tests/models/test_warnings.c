/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model says about itself in the log: tensors that are not read, a head beside a tie, a
 * factor that does not count, a context beyond the trained one, values of generation_config.json
 * that make no sense. And what it does not say.
 */
#include "models/golden_model.h"

static char lines[4000];

static void keep_line(void *user, qn_log_level level, const char *line)
{
    (void)user;
    assert_int_equal(level, QN_LOG_WARN);
    assert_null(strchr(line, '\n'));
    size_t n = strlen(lines);
    snprintf(lines + n, sizeof lines - n, "%s\n", line);
}

static qn_device *open_logged(void)
{
    qn_device *device;
    qn_error err = {0};
    qn_device_options options = {.size = sizeof options, .threads = 1, .log = keep_line};
    lines[0] = 0;
    if (qn_device_open(&device, "cpu", &options, &err) != QN_OK)
        fail_msg("%s", err.message);
    return device;
}

/* Opens the model in `path`, headers alone or all of it, and a session of `context` positions; the
 * lines must have every part (separated by |) or, where there is none, be empty. */
static void says(const char *path, int64_t context, const char *parts)
{
    for (int described = context ? 0 : 1; described >= 0; described--) {
        qn_device *device = open_logged();
        qn_model *model;
        qn_error err = {0};
        qn_model_options o = {.size = sizeof o, .no_tokenizer = true, .no_weights = described};
        if (qn_model_open(&model, device, path, &o, &err) != QN_OK)
            fail_msg("%s", err.message);
        qn_session *session = NULL;
        qn_session_options so = {.size = sizeof so, .context = context};
        if (!described)
            assert_int_equal(qn_session_open(&session, model, &so, &err), QN_OK);
        char copy[400];
        snprintf(copy, sizeof copy, "%s", parts);
        for (char *save, *part = strtok_r(copy, "|", &save); part;
             part = strtok_r(NULL, "|", &save))
            if (!strstr(lines, part))
                fail_msg("%s: \"%s\" lacks \"%s\"", path, lines, part);
        if (!*parts && *lines)
            fail_msg("%s: %s", path, lines);
        qn_session_close(session);
        qn_model_close(model);
        qn_device_close(device);
    }
}

/* Codes, scales and such are read; inputs that another program would round are said. */
static void test_packed(void **state)
{
    (void)state;
    static const char *const names[] = {"gptq4-act", "awq4", "ct4", "ct4-order", "ct8-bytes"};
    for (int i = 0; i < 5; i++) {
        char path[700], name[60];
        snprintf(name, sizeof name, "packed/%s", names[i]);
        golden_path(path, sizeof path, name, NULL);
        says(path, 8, i == 4 ? "config.json|input_activations are not applied" : "");
    }
}

/* The weights of tests/golden/qwen2/plain (tied), and n tensors more under these names: copies of
 * the embedding, which is [160, 48], one value changed where `other`. */
static const char *write_model(const char *const *names, size_t n, bool other)
{
    enum { SIZE = 160 * 48 };
    static qn__tensor_data all[GOLDEN_TENSORS];
    static char own[GOLDEN_TENSORS][120];
    char path[700];
    size_t at = 0;
    golden_path(path, sizeof path, "qwen2/plain", "weights.txt");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (golden_line(f, own[at], &all[at]))
        at++;
    fclose(f);
    const float *embedding = NULL;
    for (size_t i = 0; i < at; i++)
        if (!strcmp(all[i].name, "model.embed_tokens.weight"))
            embedding = all[i].data;
    for (size_t i = 0; i < n; i++) {
        float *copy = malloc(SIZE * sizeof *copy);
        memcpy(copy, embedding, SIZE * sizeof *copy);
        copy[SIZE - 1] += (float)other;
        all[at++] = (qn__tensor_data){
            .name = names[i], .dtype = QN_F32, .ndim = 2, .shape = {160, 48}, .data = copy};
    }
    qn_error err = {0};
    if (qn__safetensors_write(temp_path("m/model.safetensors"), all, at, NULL, 0, &err) != QN_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < at; i++)
        free((void *)(uintptr_t)all[i].data);
    golden_path(path, sizeof path, "qwen2/plain", "config.json");
    golden_config(path, temp_path("m/config.json"), false);
    return temp_path("m");
}

static int set_up(void **state)
{
    int code = temp_begin(state);
    if (!code)
        temp_mkdir("m");
    return code;
}

static void test_unread_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {"a.weight", "b.weight", "c.weight", "d.weight"};
    static const char *const harmless[] = {"model.layers.0.self_attn.rotary_emb.inv_freq"};
    says(write_model(NULL, 0, false), 0, "");
    says(write_model(harmless, 1, false), 0, "");
    says(write_model(names, 1, false), 0,
         "model.safetensors: 1 tensor is not part of a qwen2|read: a.weight\n");
    says(write_model(names, 4, false), 0,
         ": 4 tensors are not part|a.weight, b.weight, c.weight ...\n");
}

static void test_heads(void **state)
{
    (void)state;
    static const char *const head[] = {"lm_head.weight"};
    char path[600];
    says(write_model(head, 1, false), 0, "");
    says(write_model(head, 1, true), 0,
         "lm_head.weight differs from the embedding and is used|tie_word_embeddings");
    golden_directory(path, sizeof path, "qwen2/own-head");
    says(path, 0, "lm_head.weight differs from the embedding");
}

static void test_factor_and_context(void **state)
{
    (void)state;
    char path[600];
    golden_directory(path, sizeof path, "qwen3/original");
    says(path, 0, "config.json: attn_factor is not applied, as in transformers");
    golden_directory(path, sizeof path, "qwen3/plain");
    says(path, 512, "");
    says(path, 513, "a context of 513 positions|the 512 that the model was trained for");
}

/* What the model asks for, in words; what is off is not mentioned. */
static const char *defaults_text(qn_device *device, const qn_model *model)
{
    static char text[300];
    qn_generation_defaults d = {.size = sizeof d};
    qn_model_get_defaults(model, &d);
    const qn_sampling *p = d.sampling;
    int n = snprintf(text, sizeof text, "t%g", (double)p->temperature);
    if (p->top_k)
        n += snprintf(text + n, sizeof text - (size_t)n, " k%d", p->top_k);
    if (p->top_p != 0 && p->top_p < 1)
        n += snprintf(text + n, sizeof text - (size_t)n, " p%g", (double)p->top_p);
    if (p->min_p != 0)
        n += snprintf(text + n, sizeof text - (size_t)n, " m%g", (double)p->min_p);
    if (p->repeat_penalty != 0 && p->repeat_penalty != 1)
        n += snprintf(text + n, sizeof text - (size_t)n, " r%g,%d", (double)p->repeat_penalty,
                      p->repeat_last);
    if (d.max_tokens)
        n += snprintf(text + n, sizeof text - (size_t)n, " n%d", (int)d.max_tokens);
    for (size_t i = 0; i < d.n_stop; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%d", i ? "," : " stop ", d.stop[i]);
    for (size_t i = 0; i < d.n_stop_strings; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " \"%s\"", d.stop_strings[i]);
    float logits[] = {1, 2}; /* whatever it says can be sampled with */
    assert_true(qn_sample(device, logits, 2, p, NULL, 0, 0, NULL) >= 0);
    return text;
}

/* generation_config.json never makes a model be refused: what makes no sense is left out and said.
 */
static void check_defaults(const char *file, const char *want, const char *parts)
{
    temp_write("m/generation_config.json", file, strlen(file));
    says(temp_path("m"), 0, parts);
    qn_device *device = open_logged();
    qn_model *model;
    qn_model_options o = {.size = sizeof o, .no_tokenizer = true, .no_weights = true};
    assert_int_equal(qn_model_open(&model, device, temp_path("m"), &o, NULL), QN_OK);
    if (strcmp(defaults_text(device, model), want) != 0)
        fail_msg("%s: %s, expected %s", file, defaults_text(device, model), want);
    qn_model_close(model);
    qn_device_close(device);
}

static void test_generation_config(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"{}", "t0 stop 2", ""},
        {"{\"temperature\":0.5,\"top_p\":null}", "t0 stop 2", ""},
        {"{\"do_sample\":true}", "t1 stop 2", ""},
        {"{\"do_sample\":true,\"temperature\":0.5,\"top_k\":20,\"top_p\":0.75,\"min_p\":0.25,"
         "\"repetition_penalty\":1.5}",
         "t0.5 k20 p0.75 m0.25 r1.5,-1 stop 2", ""},
        /* off, in the words of transformers and of vLLM; top_p 0 leaves one token in transformers
         */
        {"{\"do_sample\":true,\"top_k\":0,\"top_p\":1,\"min_p\":0}", "t1 stop 2", ""},
        {"{\"do_sample\":true,\"top_k\":-1,\"top_p\":1.0}", "t1 stop 2", ""},
        {"{\"do_sample\":true,\"temperature\":0}", "t0 stop 2", ""},
        {"{\"do_sample\":true,\"top_p\":0}", "t1 p1.17549e-38 stop 2", ""},
        {"{\"max_new_tokens\":77,\"stop_strings\":\"\\n\\n\"}", "t0 n77 stop 2 \"\n\n\"", ""},
        {"{\"stop_strings\":[\"a\",\"b c\"],\"eos_token_id\":[5,7]}", "t0 stop 5,7 \"a\" \"b c\"",
         ""},
        {"{\"stop_strings\":[],\"eos_token_id\":[]}", "t0 stop 2", ""},
        /* nonsense, beside which the rest counts */
        {"{\"do_sample\":true,\"temperature\":-1,\"top_k\":5}", "t1 k5 stop 2",
         "generation_config.json: temperature|got -1|left out"},
        {"{\"do_sample\":true,\"top_p\":1.5,\"top_k\":1e30,\"min_p\":\"x\",\"repetition_penalty\":"
         "0}",
         "t1 stop 2", "top_p|1.5|top_k|min_p|\"x\"|repetition_penalty"},
        {"{\"do_sample\":3,\"max_new_tokens\":0}", "t0 stop 2", "do_sample|max_new_tokens"},
        {"{\"max_new_tokens\":-1,\"stop_strings\":[\"\",4,\"c\"]}", "t0 stop 2 \"c\"",
         "max_new_tokens|stop_strings[0]: is empty"},
        {"{\"eos_token_id\":\"x\"}", "t0 stop 2", "eos_token_id"},
        {"{\"eos_token_id\":[-1,9]}", "t0 stop 9", "eos_token_id[0]|-1"},
        {"nonsense", "t0 stop 2", "generation_config.json|left out"},
        {"[]", "t0 stop 2", "generation_config.json: is not an object"},
        {"", "t0 stop 2", "generation_config.json|left out"},
    };
    write_model(NULL, 0, false); /* whose config.json has one eos_token_id, 2 */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_defaults(cases[i][0], cases[i][1], cases[i][2]);
    remove(temp_path("m/generation_config.json"));
    mkdir(temp_path("m/generation_config.json"), 0777);
    says(temp_path("m"), 0, "generation_config.json|left out");
    rmdir(temp_path("m/generation_config.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unread_tensors),     cmocka_unit_test(test_heads),
        cmocka_unit_test(test_factor_and_context), cmocka_unit_test(test_packed),
        cmocka_unit_test(test_generation_config),
    };
    return cmocka_run_group_tests(tests, set_up, temp_end);
}
