/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: behind tokens that the session has already; until a stop string, of which no byte is
 * given; without stop tokens; with log probabilities; and what it refuses.
 */
#include "generate/model_test.h"

#include "generate/stops.h"

#include <math.h>

enum { PROMPT = 50, TOKENS = 60 };

/* ---- tokens before: with `before` naming them the same ones come as from one prompt, to the last;
 * without, penalty and draws know less and others come ---- */

/* The prompt's first `held` tokens are appended, the rest is generation's; `named`: it is told of
 * them. */
static void generate(qn_model *model, const int32_t *prompt, size_t held, bool named,
                     float temperature, int32_t *out)
{
    qn_session *session = open_session(model, 0, 1);
    qn_generation *g;
    qn_error err = {0};
    qn_metrics m = QN_INIT(qn_metrics);
    int32_t *before = malloc(PROMPT * sizeof *before);
    memcpy(before, prompt, PROMPT * sizeof *before);
    qn_generation_options o = {.size = sizeof o,
                               .max_tokens = TOKENS,
                               .ignore_stop = true,
                               .before = named ? before : NULL,
                               .n_before = named ? held : 0};
    o.sampling = &(qn_sampling){.size = sizeof(qn_sampling),
                                .temperature = temperature,
                                .repeat_penalty = 1.5f,
                                .repeat_last = -1,
                                .seed = 9};
    assert_int_equal(qn_session_append(session, prompt, held, &err), QN_OK);
    assert_int_equal(qn_generation_begin(&g, session, prompt + held, PROMPT - held, &o, &err),
                     QN_OK);
    memset(before, 0, PROMPT * sizeof *before); /* borrowed until begin returned */
    free(before);
    for (int i = 0; i < TOKENS; i++)
        if (qn_generation_next(g, &out[i], &err) != QN_OK)
            fail_msg("%s", err.message);
    qn_generation_get_metrics(g, &m);
    assert_int_equal(m.prompt_tokens, PROMPT - held);
    assert_int_equal(m.generated_tokens, TOKENS);
    qn_generation_end(g);
    qn_session_close(session);
}

static void check_before(qn_model *model, float temperature)
{
    int32_t prompt[PROMPT], want[TOKENS], got[TOKENS];
    random_tokens(prompt, PROMPT, vocab_of(model), 21);
    generate(model, prompt, 0, false, temperature, want);
    for (size_t held = 1; held < PROMPT; held += 16) {
        generate(model, prompt, held, true, temperature, got);
        assert_memory_equal(got, want, sizeof got);
    }
    generate(model, prompt, PROMPT - 1, false, temperature, got);
    assert_memory_not_equal(got, want, sizeof got);
}

static void test_before(void **state)
{
    qn_device *device = open_device(state);
    qn_model *model = open_model(device, "models/demo", false);
    check_before(model, 0);    /* the penalty alone */
    check_before(model, 1.1f); /* the draws, too */
    qn_model_close(model);
    qn_device_close(device);
}

/* ---- stop strings, alone ---- */

/* A text of two letters in pieces: all up to the first stop string comes out, and what came out
 * before the end was never more than that. */
static void check_pieces(const char *const *strings, size_t n, uint64_t *seed)
{
    enum { LENGTH = 40 };
    char text[LENGTH + 1] = "";
    for (int i = 0; i < LENGTH; i++)
        text[i] = test_random(seed) < 0 ? 'a' : 'b';
    qn__stops stops = {0};
    qn_text out = {0};
    qn_error err = {0};
    size_t want = LENGTH;
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(text, strings[i]);
        found |= at != NULL;
        want = at && (size_t)(at - text) < want ? (size_t)(at - text) : want;
        assert_int_equal(qn__stops_add(&stops, strings[i], &err), QN_OK);
    }
    for (size_t at = 0; at < LENGTH && !stops.found;) {
        size_t more = (size_t)((test_random(seed) + 1) * 3), before = stops.text.n;
        more = more < LENGTH - at ? more : LENGTH - at;
        stops.text.data = realloc(stops.text.data, before + more + 1);
        stops.text.capacity = before + more + 1;
        memcpy(stops.text.data + before, text + at, more);
        stops.text.n += more;
        at += more;
        qn__stops_look(&stops, before);
        assert_int_equal(qn__stops_give(&stops, false, &out, &err), QN_OK);
        assert_true(out.n <= want);
    }
    assert_int_equal(stops.found, found);
    assert_int_equal(qn__stops_give(&stops, true, &out, &err), QN_OK);
    if (out.n != want || (want && memcmp(out.data, text, want) != 0))
        fail_msg("%s gives %.*s", text, (int)out.n, out.data ? out.data : "");
    qn__stops_end(&stops);
    qn_text_free(&out);
}

static void test_pieces(void **state)
{
    (void)state;
    static const char *const strings[] = {"abab", "bb", "aabaab", "bbbba", "abababab"};
    uint64_t seed = 4;
    for (int k = 0; k < 3000; k++)
        check_pieces(strings + k % 5, (size_t)(k % 3) < 5 - (size_t)k % 5 ? (size_t)(k % 3) : 1,
                     &seed);
    qn__stops stops = {0};
    assert_int_equal(qn__stops_add(&stops, "", NULL), QN_INVALID);
    assert_int_equal(qn__stops_add(&stops, "\xff", NULL), QN_INVALID);
    assert_int_equal(stops.n, 0);
    qn__stops_end(&stops);
}

/* ---- with the built-in model ---- */

enum { LONGEST = 60 };

static qn_tokens encode(const qn_model *model, const char *text)
{
    qn_tokens ids = {0};
    qn_error err = {0};
    if (qn_tokenizer_encode(qn_model_tokenizer(model), text, strlen(text), QN_ADD_SPECIAL, &ids,
                            &err) != QN_OK)
        fail_msg("%s", err.message);
    return ids;
}

/* The text that comes piece by piece; *tokens their number, *m the end. */
static void stream(qn_model *model, const qn_generation_options *o, qn_text *out, qn_metrics *m)
{
    qn_session *session = open_session(model, 0, 1);
    qn_tokens ids = encode(model, "Once upon a time");
    qn_generation *g;
    qn_error err = {0};
    int32_t id;
    if (qn_generation_begin(&g, session, ids.ids, ids.n, o, &err) != QN_OK)
        fail_msg("%s", err.message);
    while (qn_generation_next(g, &id, &err) == QN_OK && id >= 0)
        assert_int_equal(qn_generation_text(g, false, out, &err), QN_OK);
    assert_int_equal(qn_generation_text(g, false, out, &err), QN_OK); /* it has ended: all */
    assert_int_equal(err.code, QN_OK);
    qn_generation_get_metrics(g, m);
    qn_generation_end(g);
    qn_tokens_free(&ids);
    qn_session_close(session);
}

static void check_stop(qn_model *model, const qn_text *whole, const char *const *strings, size_t n)
{
    qn_generation_options o = {
        .size = sizeof o, .max_tokens = LONGEST, .stop_strings = strings, .n_stop_strings = n};
    qn_text got = {0};
    qn_metrics m = QN_INIT(qn_metrics);
    size_t want = whole->n;
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(whole->data, strings[i]);
        want = at && (size_t)(at - whole->data) < want ? (size_t)(at - whole->data) : want;
    }
    stream(model, &o, &got, &m);
    if (got.n != want || (want && memcmp(got.data, whole->data, want) != 0))
        fail_msg("\"%s\" ends \"%s\" as \"%s\"", strings[0], whole->data, got.data ? got.data : "");
    assert_int_equal(m.finish, want < whole->n ? QN_FINISH_STOP : QN_FINISH_LENGTH);
    qn_text_free(&got);
}

static void test_stop_strings(void **state)
{
    qn_device *device = open_device(state);
    qn_model *model = open_model(device, "models/demo", true);
    qn_generation_options o = {.size = sizeof o, .max_tokens = LONGEST};
    qn_text whole = {0};
    qn_metrics m = QN_INIT(qn_metrics);
    stream(model, &o, &whole, &m);
    assert_true(whole.n > 100 && m.finish == QN_FINISH_LENGTH);
    for (size_t at = 0; at + 12 < whole.n; at += 7) {
        char some[16], other[16];
        const char *strings[] = {some, other};
        snprintf(some, sizeof some, "%.*s", (int)(1 + at % 11), whole.data + at); /* there */
        snprintf(other, sizeof other, "%.6s~", whole.data + at); /* begins and is not */
        check_stop(model, &whole, strings, 1);
        check_stop(model, &whole, strings + 1, 1);
        check_stop(model, &whole, strings, 2);
    }
    o.ignore_stop = true;
    o.stop_strings = (const char *const[]){" "};
    o.n_stop_strings = 1;
    qn_text all = {0};
    stream(model, &o, &all, &m);
    assert_string_equal(all.data, whole.data);
    qn_text_free(&all);
    qn_text_free(&whole);
    qn_model_close(model);
    qn_device_close(device);
}

/* The most probable token made a stop token: it ends the text, or, banned, is not drawn at all. A
 * special token's name is that token. */
static void test_stop_tokens(void **state)
{
    qn_device *device = open_device(state);
    qn_model *model = open_model(device, "models/demo", true);
    for (int banned = 0; banned < 2; banned++) {
        qn_session *session = open_session(model, 0, 1);
        qn_tokens ids = encode(model, "Once upon a time");
        qn_error err = {0};
        int32_t best, id = -1;
        qn_generation *g;
        assert_int_equal(qn_session_step_greedy(session, ids.ids[0], &best, &err), QN_OK);
        qn_session_rewind(session, 0);
        qn_generation_options o = {
            .size = sizeof o, .max_tokens = 3, .stop = &best, .n_stop = 1, .ban_stop = banned};
        assert_int_equal(qn_generation_begin(&g, session, ids.ids, 1, &o, &err), QN_OK);
        assert_int_equal(qn_generation_next(g, &id, &err), QN_OK);
        assert_true(banned ? id >= 0 && id != best : id == -1);
        qn_generation_end(g);
        qn_tokens_free(&ids);
        qn_session_close(session);
    }
    const qn_tokenizer *t = qn_model_tokenizer(model);
    int32_t eos = qn_tokenizer_eos(t);
    assert_true(eos >= 0 && qn_tokenizer_is_special(t, eos));
    qn_session *session = open_session(model, 0, 1);
    qn_token_bias sure = {eos, 1e6f};
    const char *name = qn_tokenizer_piece(t, eos);
    for (int named = 0; named < 2;
         named++) { /* its stop tokens are left out: only the name tells */
        qn_generation_options o = {
            .size = sizeof o,
            .max_tokens = 2,
            .sampling = &(qn_sampling){.size = sizeof(qn_sampling), .bias = &sure, .n_bias = 1}};
        qn_generation *g;
        int32_t id;
        o.stop_strings = &name;
        o.n_stop_strings = 1;
        o.ignore_stop = !named;
        assert_int_equal(qn_generation_begin(&g, session, &eos, 1, &o, NULL), QN_OK);
        assert_int_equal(qn_generation_next(g, &id, NULL), QN_OK);
        assert_int_equal(id, named ? -1 : eos);
        qn_generation_end(g);
        qn_session_rewind(session, 0);
    }
    qn_session_close(session);
    qn_model_close(model);
    qn_device_close(device);
}

/* Log probabilities are of the logits as they are, before biases and the chain. */
static void test_logprobs(void **state)
{
    qn_device *device = open_device(state);
    qn_model *model = open_model(device, "models/demo", true);
    size_t vocab = vocab_of(model), n;
    qn_tokens ids = encode(model, "Once upon a time, there was");
    qn_session *session = open_session(model, 0, 1), *plain = open_session(model, 0, 1);
    qn_generation *g;
    qn_error err = {0};
    qn_token_bias bias = {7, 2};
    qn_generation_options o = {.size = sizeof o, .logprobs = true, .top_logprobs = 4};
    o.sampling = &(qn_sampling){.size = sizeof(qn_sampling),
                                .temperature = 0.7f,
                                .top_p = 0.9f,
                                .top_k = 9,
                                .repeat_penalty = 1.4f,
                                .presence_penalty = 1,
                                .frequency_penalty = 1,
                                .bias = &bias,
                                .n_bias = 1};
    assert_int_equal(qn_generation_begin(&g, session, ids.ids, ids.n, &o, &err), QN_OK);
    assert_null(qn_generation_logprobs(g, &n));
    assert_int_equal(n, 0);
    assert_int_equal(qn_session_append(plain, ids.ids, ids.n, &err), QN_OK);
    for (int i = 0; i < 5; i++) {
        int32_t id;
        qn_logprob want[5];
        assert_int_equal(qn_generation_next(g, &id, &err), QN_OK);
        assert_int_equal(qn_logprobs(device, qn_session_logits(plain), vocab, id, 4, want, &err),
                         QN_OK);
        const qn_logprob *got = qn_generation_logprobs(g, &n);
        assert_int_equal(n, 5);
        assert_memory_equal(got, want, sizeof want);
        assert_int_equal(qn_session_append(plain, &id, 1, &err), QN_OK);
    }
    qn_generation_end(g);
    qn_tokens_free(&ids);
    qn_session_close(session);
    qn_session_close(plain);
    qn_model_close(model);
    qn_device_close(device);
}

static void refuse_options(qn_session *session, const qn_generation_options *o, qn_status code,
                           const char *part)
{
    qn_generation *g = (qn_generation *)1;
    qn_error err = {0};
    int32_t id = 1;
    assert_int_equal(qn_generation_begin(&g, session, &id, 1, o, &err), code);
    assert_null(g);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" lacks \"%s\"", err.message, part);
    assert_int_equal(qn_generation_begin(&g, session, &id, 1, o, NULL), code);
}

static void test_refused(void **state)
{
    qn_device *device = open_device(state);
    qn_model *bare = open_model(device, "models/demo", false);
    qn_session *one = open_session(bare, 0, 1), *two = open_session(bare, 0, 2);
    const char *word = "x", *empty = "";
    qn_generation_options o = {.size = sizeof o};
    refuse_options(two, NULL, QN_UNSUPPORTED,
                   "sessions of one sequence, this one has 2; qn_session_append and qn_sample");
    o.stop_strings = &word;
    o.n_stop_strings = 1;
    refuse_options(one, &o, QN_STATE, "tokenizer");
    o = (qn_generation_options){
        .size = sizeof o, .sampling = &(qn_sampling){.size = sizeof(qn_sampling), .top_p = 3}};
    refuse_options(one, &o, QN_INVALID, "top_p 3");
    o = (qn_generation_options){.size = sizeof o, .logprobs = true, .top_logprobs = 1001};
    refuse_options(one, &o, QN_INVALID, "top_logprobs 1001");
    qn_generation *g;
    qn_text text = {0};
    assert_int_equal(qn_generation_begin(&g, one, &(int32_t){1}, 1, NULL, NULL), QN_OK);
    assert_int_equal(qn_generation_text(g, false, &text, NULL), QN_STATE);
    qn_generation_end(g);
    qn_session_close(one);
    qn_session_close(two);
    qn_model_close(bare);
    qn_model *model = open_model(device, "models/demo", true);
    one = open_session(model, 0, 1);
    o = (qn_generation_options){.size = sizeof o, .stop_strings = &empty, .n_stop_strings = 1};
    refuse_options(one, &o, QN_INVALID, "stop string 0 is empty");
    qn_session_close(one);
    qn_model_close(model);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before),       cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_stop_strings), cmocka_unit_test(test_stop_tokens),
        cmocka_unit_test(test_logprobs),     cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
