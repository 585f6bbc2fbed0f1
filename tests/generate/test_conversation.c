/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations on a session: each reply, to the bit, is that of a session which ran the whole
 * conversation anew, in every family and type of cache, where a template drops reasoning, where
 * replies were cancelled or failed, and after sleep; and it runs what is new alone.
 */
#include "generate/conversation_test.h"

#include <string.h>

static const char question[] =
    "Tell me, please, of the hare and the tortoise: who ran, who slept, and why? Begin where they "
    "meet, and say what each of them thought of the other one before the race.";

typedef struct row {
    const char *model, *type;
    int64_t rotate;
} row;

static const row rows[] = {
    {"llama/plain", NULL, 0},        {"llama/plain", "f16", 0},
    {"llama/plain", "bf16", 0},      {"llama/plain", NULL, 70},
    {"bitnet/plain", NULL, 0},       {"bitnet/llama", "q8_0", 0},
    {"bitnet/llama", "q4_0", 0},     {"bitnet/llama", "affine8-g32-bf16", 0},
    {"bitnet/llama", "q8_0", 90},    {"gemma2/plain", NULL, 0},
    {"gemma3/text", NULL, 0},        {"gemma3/text", "f16", 0},
    {"mistral/parameters", NULL, 0}, {"mistral/window", NULL, 0},
    {"qwen2/window", NULL, 0},       {"qwen2/plain", NULL, 0},
    {"qwen3/plain", NULL, 0},        {"qwen3/yarn", NULL, 0},
    {"smollm3/sliding", NULL, 0},    {"smollm3/plain", "bf16", 0},
};

static qn_model *open_row(qn_device *device, const char *name)
{
    char at[600];
    golden_directory(at, sizeof at, name);
    return open_model_at(device, at, false);
}

static size_t common(const qn_session *session, const qn_tokens *ids)
{
    size_t n = 0, most = (size_t)qn_session_length(session);
    while (n < most && n + 1 < ids->n && qn_session_tokens(session)[n] == ids->ids[n])
        n++;
    return n;
}

/* Sleeps, wakes in another session, and both go on: by what they held, and with the same bits. */
static qn_session *check_waking(const qn_conversation *c, const qn_chat *chat, qn_session *session,
                                const row *r, qn_model *model)
{
    qn_error err = {0};
    const char *path = temp_path("asleep");
    qn_conversation *other = new_conversation(chat);
    qn_session *awake = session_of(model, r->type, NULL);
    if (qn_conversation_save(c, session, path, &err) != QN_OK ||
        qn_conversation_restore(other, awake, path, &err) != QN_OK)
        fail_msg("%s %s: %s", r->model, r->type ? r->type : "", err.message);
    assert_int_equal(qn_session_length(awake), qn_session_length(session));
    assert_int_equal(qn_conversation_length(other), qn_conversation_length(c));
    for (size_t i = 0; i < qn_conversation_length(c); i++)
        assert_string_equal(qn_conversation_message_json(other, i),
                            qn_conversation_message_json(c, i));
    qn_conversation_free(other);
    return awake;
}

/* Three turns, the second of which follows sleep; before the third the last reply goes. */
static void check_row(qn_device *device, const qn_tokenizer *t, const qn_chat *chat, const row *r)
{
    turn one, two, again;
    qn_model *model = open_row(device, r->model);
    qn_conversation *c = new_conversation(chat);
    rotate_at = r->rotate;
    qn_session *session = session_of(model, r->type, NULL);
    say(c, "system", "Be brief.");
    say(c, "user", question);
    check_turn(c, session, r->type, model, &one);
    assert_int_equal(one.kept, 0);
    add_reply(c, t, &one, NULL);
    say(c, "user", "And then?");
    qn_session *awake = check_waking(c, chat, session, r, model);
    qn_tokens ids = ids_of(c);
    size_t same = common(session, &ids);
    assert_true(same > strlen(question));
    check_turn(c, awake, r->type, model, &again);
    check_turn(c, session, r->type, model, &two);
    assert_int_equal(two.kept, same);
    assert_int_equal(again.kept, same);
    assert_memory_equal(two.ids, again.ids, sizeof two.ids);
    qn_session_close(awake);
    qn_conversation_cut(c, 3); /* the reply stays, another question */
    say(c, "user", "Why?");
    check_turn(c, session, r->type, model, &two);
    qn_tokens_free(&ids);
    qn_session_close(session);
    qn_conversation_free(c);
    qn_model_close(model);
    rotate_at = 0;
}

static void test_families(void **state)
{
    qn_device *device = open_cpu(state);
    qn_tokenizer *t = ascii_tokenizer("families", "te");
    qn_chat *chat = template_chat(t, "families", TURN_TEMPLATE);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(device, t, chat, &rows[i]);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
    assert_int_equal(memory_of(device).active, 0);
    qn_device_close(device);
}

/* The template leaves out what an earlier reply thought, which the session still has; the built-in
 * formats write what is there. */
static void test_reasoning(void **state)
{
    static const char *const models[] = {"llama/plain", "gemma3/text"};
    qn_device *device = open_cpu(state);
    qn_tokenizer *t = ascii_tokenizer("reasoning", "te");
    qn_chat *chat = template_chat(t, "reasoning", TURN_TEMPLATE);
    for (size_t i = 0; i < 2; i++) {
        turn one, two;
        qn_model *model = open_row(device, models[i]);
        qn_conversation *c = new_conversation(chat);
        qn_session *session = session_of(model, NULL, NULL);
        say(c, "user", question);
        size_t header = length_of(c);
        check_turn(c, session, NULL, model, &one);
        add_reply(c, t, &one, "The hare thought itself fast.</think>");
        qn_tokens ids = {0};
        say(c, "user", "And then?");
        /* As if the model had thought aloud: its tokens are in the session. */
        qn_session_rewind(session, (int64_t)header);
        static const char thought[] = "The hare thought itself fast.</think>";
        assert_int_equal(qn_tokenizer_encode(t, thought, strlen(thought), 0, &ids, NULL), QN_OK);
        assert_int_equal(qn_session_append(session, ids.ids, ids.n, NULL), QN_OK);
        assert_int_equal(qn_session_append(session, one.ids, one.n, NULL), QN_OK);
        check_turn(c, session, NULL, model, &two);
        if (i) /* windows had given back what stands there */
            assert_int_equal(two.kept, 0);
        else
            assert_in_range(two.kept, header, header + 2);
        qn_tokens_free(&ids);
        qn_session_close(session);
        qn_conversation_free(c);
        qn_model_close(model);
    }
    qn_chat_close(chat);
    qn_tokenizer_close(t);
    qn_device_close(device);
}

typedef struct cancelling {
    qn_flag flag;
    int64_t at;
} cancelling;

static void cancel_at(void *user, int64_t done, int64_t total)
{
    cancelling *c = user;
    if (done >= c->at && done < total)
        c->flag = true;
}

/* lookup: with guesses, which run ahead of what has been said. */
static void check_cancelled(qn_device *device, const qn_tokenizer *t, const qn_chat *chat,
                            int32_t lookup)
{
    qn_model *model = open_row(device, "gemma3/text");
    cancelling stop = {.at = INT64_MAX};
    qn_conversation *c = new_conversation(chat);
    qn_session_options so = {.size = sizeof so,
                             .context = CONTEXT,
                             .prefill_chunk = 16,
                             .cancel = &stop.flag,
                             .progress = cancel_at,
                             .progress_user = &stop};
    qn_session *session;
    qn_generation *g;
    qn_generation_options o = {.size = sizeof o, .ignore_stop = true, .prompt_lookup = lookup};
    qn_error err = {0};
    turn one = {0}, two;
    int32_t id;
    assert_int_equal(qn_session_open(&session, model, &so, &err), QN_OK);
    say(c, "user", question);
    stop.at = 64; /* within the prompt */
    assert_int_equal(take_turn(c, session, 5, &one, &err), QN_CANCELLED);
    assert_int_equal(qn_session_length(session), 0);
    stop.at = INT64_MAX;
    stop.flag = false;
    err = (qn_error){0};
    one = (turn){0};
    assert_int_equal(qn_conversation_begin_reply(&g, c, session, &o, &err), QN_OK);
    for (; one.n < 7 && qn_generation_next(g, &id, &err) == QN_OK; one.n++)
        one.ids[one.n] = id;
    stop.flag = true;         /* within the reply */
    qn_status status = QN_OK; /* guesses that ran are said before the next step */
    while ((status = qn_generation_next(g, &id, &err)) == QN_OK && one.n < 39)
        one.ids[one.n++] = id;
    assert_int_equal(status, QN_CANCELLED);
    qn_generation_end(g);
    stop.flag = false;
    add_reply(c, t, &one, NULL);
    say(c, "user", "Go on.");
    check_turn(c, session, NULL, model, &two);
    assert_true(two.kept > (int64_t)strlen(question));
    /* And sleep behind a cancelled prompt: the file has what the session holds. */
    say(c, "user", question);
    stop.at = 16;
    err = (qn_error){0};
    int64_t before = qn_session_length(session);
    assert_int_equal(take_turn(c, session, 5, &one, &err), QN_CANCELLED);
    stop.at = INT64_MAX;
    stop.flag = false;
    assert_true(qn_session_length(session) <= before);
    row r = {"gemma3/text", NULL, 0};
    qn_session *awake = check_waking(c, chat, session, &r, model);
    check_turn(c, awake, NULL, model, &two);
    qn_session_close(awake);
    qn_session_close(session);
    qn_conversation_free(c);
    qn_model_close(model);
}

static void test_cancelled(void **state)
{
    qn_device *device = open_cpu(state);
    qn_tokenizer *t = ascii_tokenizer("cancelled", "te");
    qn_chat *chat = template_chat(t, "cancelled", TURN_TEMPLATE);
    check_cancelled(device, t, chat, 0);
    check_cancelled(device, t, chat, 16);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
    qn_device_close(device);
}

/* A reply knows what stood before it, also what did not run for it. */
static void test_repeats(void **state)
{
    qn_device *device = open_cpu(state);
    qn_tokenizer *t = ascii_tokenizer("repeats", "te");
    qn_chat *chat = template_chat(t, "repeats", TURN_TEMPLATE);
    qn_model *model = open_row(device, "qwen3/plain");
    qn_conversation *c = new_conversation(chat);
    qn_session *session = session_of(model, NULL, NULL), *fresh = session_of(model, NULL, NULL);
    qn_sampling sampling = {
        .size = sizeof sampling, .repeat_penalty = 1.8f, .repeat_last = -1, .seed = 1};
    qn_generation_options o = {
        .size = sizeof o, .max_tokens = 30, .ignore_stop = true, .sampling = &sampling};
    int32_t said[2][30];
    qn_error err = {0};
    turn one;
    say(c, "user", question);
    assert_int_equal(take_turn(c, session, 20, &one, &err), QN_OK);
    add_reply(c, t, &one, NULL);
    say(c, "user", "And then?");
    for (int k = 0; k < 2; k++) {
        qn_generation *g;
        qn_conversation_begin_reply(&g, c, k ? fresh : session, &o, &err);
        for (int i = 0; i < 30; i++)
            assert_int_equal(qn_generation_next(g, &said[k][i], &err), QN_OK);
        qn_generation_end(g);
    }
    assert_memory_equal(said[0], said[1], sizeof said[0]);
    qn_session_close(fresh);
    qn_session_close(session);
    qn_conversation_free(c);
    qn_model_close(model);
    qn_chat_close(chat);
    qn_tokenizer_close(t);
    qn_device_close(device);
}

/* What cannot begin says why, and leaves the session. */
static void test_refusals(void **state)
{
    qn_device *device = open_cpu(state);
    qn_tokenizer *t = ascii_tokenizer("refusals", "te"),
                 *wide = ascii_tokenizer("wide", "tefghijklmnopqrstuvwxyzabcd0123456789");
    qn_chat *chat = template_chat(t, "refusals", TURN_TEMPLATE);
    qn_chat *beyond = template_chat(wide, "wide", "<|9|>" TURN_TEMPLATE);
    qn_model *model = open_row(device, "qwen3/plain");
    qn_conversation *c = new_conversation(chat), *outside = new_conversation(beyond);
    qn_session *session = session_of(model, NULL, NULL), *two;
    qn_session_options so = {.size = sizeof so, .batch = 2};
    qn_generation *g;
    qn_error err = {0};
    turn one;
    say(c, "user", question);
    assert_int_equal(take_turn(c, session, 5, &one, &err), QN_OK);
    int64_t length = qn_session_length(session);
    for (int i = 0; i < 4; i++)
        say(c, "user", question);
    assert_int_equal(qn_conversation_begin_reply(&g, c, session, NULL, &err), QN_LIMIT);
    assert_null(g);
    char want[100];
    snprintf(want, sizeof want, "takes %zu tokens, the context holds %d", length_of(c), CONTEXT);
    if (!strstr(err.message, want))
        fail_msg("%s", err.message);
    assert_int_equal(qn_session_length(session), length);
    qn_conversation_cut(c, 1);
    err = (qn_error){0};
    assert_int_equal(qn_session_open(&two, model, &so, &err), QN_OK);
    assert_int_equal(qn_conversation_begin_reply(&g, c, two, NULL, &err), QN_UNSUPPORTED);
    err = (qn_error){0};
    assert_int_equal(qn_conversation_save(c, two, temp_path("two"), &err), QN_UNSUPPORTED);
    qn_session_close(two);
    say(outside, "user", "x");
    err = (qn_error){0};
    assert_int_equal(take_turn(outside, session, 5, &one, &err), QN_INVALID);
    assert_non_null(strstr(err.message, "vocabulary"));
    check_turn(c, session, NULL, model, &one);
    qn_generation_options o = {.size = sizeof o, .max_tokens = -1};
    err = (qn_error){0};
    assert_int_equal(qn_conversation_begin_reply(&g, c, session, &o, &err), QN_INVALID);
    check_turn(c, session, NULL, model, &one);
    qn_session_close(session);
    qn_conversation_free(outside);
    qn_conversation_free(c);
    qn_model_close(model);
    qn_chat_close(beyond);
    qn_chat_close(chat);
    qn_tokenizer_close(wide);
    qn_tokenizer_close(t);
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),  cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_cancelled), cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
