/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of conversations that sleep, from others: of another model, tokenizer, template, cache;
 * cut, flipped, of wrong types, with claims and lies. Each is refused in one line that says what is
 * wrong, session and conversation stay as they were; what lies about tokens changes no bit.
 */
#include "generate/conversation_test.h"

#include "generate/sleep.h"
#include "text/conversation.h"

#include <string.h>
#include <unistd.h>

static const char question[] =
    "Who slept, the hare or the tortoise? Say it in a few words, please.";

typedef struct bed {
    qn_device *device;
    qn_tokenizer *tokenizer;
    qn_chat *chat;
    qn_model *model;
    qn_conversation *c; /* a question, a reply */
    qn_session *session;
    const char *path; /* where both sleep */
} bed;

static bed make_bed(void **state, const char *name)
{
    bed b = {.device = open_cpu(state)};
    char at[600];
    turn one;
    qn_error err = {0};
    b.tokenizer = ascii_tokenizer(name, "te");
    b.chat = template_chat(b.tokenizer, name, TURN_TEMPLATE);
    golden_directory(at, sizeof at, "llama/plain");
    b.model = open_model_at(b.device, at, false);
    b.c = new_conversation(b.chat);
    b.session = session_of(b.model, NULL, NULL);
    say(b.c, "user", question);
    qn_conversation_set_variable(b.c, "extra", "\"x\"", 3, NULL);
    qn_conversation_set_tools(b.c, "[{\"name\": 1}]", 13, NULL);
    check_turn(b.c, b.session, NULL, b.model, &one);
    add_reply(b.c, b.tokenizer, &one, NULL);
    char file[80];
    snprintf(file, sizeof file, "%s.asleep", name);
    b.path = strdup(temp_path(file));
    if (qn_conversation_save(b.c, b.session, b.path, &err) != QN_OK)
        fail_msg("%s", err.message);
    return b;
}

static void end_bed(bed *b)
{
    qn_session_close(b->session);
    qn_conversation_free(b->c);
    qn_model_close(b->model);
    qn_chat_close(b->chat);
    qn_tokenizer_close(b->tokenizer);
    assert_int_equal(memory_of(b->device).active, 0);
    qn_device_close(b->device);
    free((char *)b->path);
}

static qn_text json_of(const qn_conversation *c)
{
    qn_text json = {0};
    assert_int_equal(qn_conversation_to_json(c, &json, NULL), QN_OK);
    return json;
}

/* Refused, with these words; conversation and session are as they were. Takes the session. */
static void check_refused(const bed *b, const char *path, qn_session *session, qn_status status,
                          const char *words)
{
    qn_error err = {0};
    qn_conversation *c = new_conversation(b->chat);
    say(c, "user", "stays");
    qn_status got = qn_conversation_restore(c, session, path, &err);
    if (got == QN_OK || (status != QN_OK && got != status) || err.code != got ||
        !strstr(err.message, words) || strchr(err.message, '\n') || !strstr(err.message, path))
        fail_msg("%d, \"%s\"; wanted %d, \"%s\"", got, err.message, status, words);
    assert_int_equal(qn_session_length(session), 0);
    assert_int_equal(qn_session_cache_bytes(session), 0);
    assert_int_equal(qn_conversation_length(c), 1);
    assert_string_equal(qn_conversation_message(c, 0)->content, "stays");
    qn_conversation_free(c);
    qn_session_close(session);
}

/* The messages alone are there. */
static void check_messages(const bed *b, const char *path, const qn_chat *chat)
{
    qn_error err = {0};
    qn_conversation *c = new_conversation(chat);
    if (qn_conversation_read(c, path, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_text is = json_of(c), want = json_of(b->c);
    assert_string_equal(is.data, want.data);
    qn_text_free(&is);
    qn_text_free(&want);
    qn_conversation_free(c);
}

static qn_session *plain_session(const bed *b)
{
    return session_of(b->model, NULL, NULL);
}

static void test_others(void **state)
{
    bed b = make_bed(state, "others");
    char at[600];
    qn_error err = {0};
    golden_directory(at, sizeof at, "llama/linear");
    qn_model *other = open_model_at(b.device, at, false);
    check_refused(&b, b.path, session_of(other, NULL, NULL), QN_STATE, "model is");
    qn_model_close(other);
    check_refused(&b, b.path, session_of(b.model, "bf16", NULL), QN_STATE, "keys is \"f32\"");
    rotate_at = 40;
    check_refused(&b, b.path, plain_session(&b), QN_STATE, "windows is");
    rotate_at = 0;
    qn_session_options few = {.size = sizeof few, .context = 50};
    qn_session *session;
    assert_int_equal(qn_session_open(&session, b.model, &few, NULL), QN_OK);
    check_refused(&b, b.path, session, QN_LIMIT, "context of 50");
    static const char *const tokens[] = {"tf", "tex"};
    for (int i = 0; i < 2; i++) {
        char name[20];
        snprintf(name, sizeof name, "tokens%d", i);
        qn_tokenizer *t = ascii_tokenizer(name, tokens[i]);
        bed strange = b;
        strange.chat = template_chat(t, name, TURN_TEMPLATE);
        check_refused(&strange, b.path, plain_session(&b), QN_STATE, "another tokenizer");
        check_messages(&b, b.path, strange.chat);
        qn_chat_close(strange.chat);
        qn_tokenizer_close(t);
    }
    bed strange = b;
    strange.chat = template_chat(b.tokenizer, "others", TURN_TEMPLATE "\n");
    check_refused(&strange, b.path, plain_session(&b), QN_STATE, "another chat template");
    check_messages(&b, b.path, strange.chat);
    qn_chat_close(strange.chat);
    strange.chat = template_chat(b.tokenizer, "others", TURN_TEMPLATE);
    assert_int_equal(qn_chat_choose(strange.chat, "default", NULL), QN_OK);
    check_refused(&strange, b.path, plain_session(&b), QN_STATE, "another chat template");
    qn_chat_close(strange.chat);
    /* A session that has tokens; one whose file has no messages, and the other way round. */
    assert_int_equal(qn_conversation_restore(b.c, b.session, b.path, &err), QN_STATE);
    assert_int_equal(qn_conversation_length(b.c), 2);
    const char *tokens_alone = temp_path("tokens.alone");
    assert_int_equal(qn_session_save(b.session, tokens_alone, NULL), QN_OK);
    check_refused(&b, tokens_alone, plain_session(&b), QN_NOT_FOUND, "no conversation");
    session = plain_session(&b);
    assert_int_equal(qn_session_restore(session, b.path, NULL), QN_OK);
    assert_int_equal(qn_session_length(session), qn_session_length(b.session));
    qn_session_close(session);
    err = (qn_error){0};
    assert_int_equal(qn_conversation_save(b.c, b.session, "/nowhere/file", &err), QN_IO);
    end_bed(&b);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static char *file_bytes(const char *path, size_t *n)
{
    char *data = NULL;
    assert_int_equal(qn__file_read(path, 1 << 30, &data, n, NULL), QN_OK);
    return data;
}

static void test_damage(void **state)
{
    bed b = make_bed(state, "damage");
    size_t n, header = 0;
    char *data = file_bytes(b.path, &n);
    char *copy = malloc(n);
    memcpy(&header, data, 8);
    header += 8;
    size_t text = (size_t)(qn_session_length(b.session) + 1) * 4 + 600;
    for (size_t i = 0; i < n; i += i < header + text ? 1 : n / 97 + 1) {
        memcpy(copy, data, n);
        copy[i] ^= (char)(1 << i % 7);
        const char *path = temp_write("flipped", copy, n);
        check_refused(&b, path, plain_session(&b), QN_OK, "");
    }
    for (size_t i = 0; i < n; i += i < 12 || i > n - 3 ? 1 : n / 301 + 1) {
        const char *path = temp_write("cut", data, i);
        qn_conversation *c = new_conversation(b.chat);
        qn_error err = {0};
        check_refused(&b, path, plain_session(&b), QN_OK, "");
        assert_int_not_equal(qn_conversation_read(c, path, &err), QN_OK);
        assert_non_null(strstr(err.message, path));
        qn_conversation_free(c);
    }
    /* Messages alone: a flip in them is found, one elsewhere is none of their business. */
    memcpy(copy, data, n);
    char *at = memmem(copy, n, "the hare", 8);
    at[1] ^= 4;
    qn_conversation *c = new_conversation(b.chat);
    assert_int_equal(qn_conversation_read(c, temp_write("flipped", copy, n), NULL), QN_INVALID);
    assert_int_equal(qn_conversation_length(c), 0);
    qn_conversation_free(c);
    memcpy(copy, data, n);
    copy[n - n / 3] ^= 4;
    check_messages(&b, temp_write("flipped", copy, n), b.chat);
    free(copy);
    free(data);
    end_bed(&b);
}

/* ---- forgery --------------------------------------------------------------------------------- */

enum { MOST_PARTS = 40 };

/* A file taken apart, to be changed and written. */
typedef struct forgery {
    qn_tensors *file;
    qn__tensor_data parts[MOST_PARTS];
    size_t n;
    qn__metadata metadata[8];
    char *data[MOST_PARTS];
} forgery;

static forgery take_apart(const char *path)
{
    static const char *const keys[] = {"format",  "model",        "keys",      "values",
                                       "windows", "conversation", "tokenizer", "template"};
    forgery f = {0};
    assert_int_equal(qn_tensors_open(&f.file, path, NULL), QN_OK);
    for (; f.n < qn_tensors_count(f.file); f.n++) {
        const qn_tensor_info *t = qn_tensors_get(f.file, f.n);
        f.data[f.n] = malloc(t->bytes + 1);
        assert_int_equal(qn_tensors_read_bytes(f.file, t, 0, t->bytes, f.data[f.n], NULL), QN_OK);
        f.parts[f.n] = (qn__tensor_data){
            .name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = f.data[f.n]};
        memcpy(f.parts[f.n].shape, t->shape, sizeof t->shape);
    }
    for (int i = 0; i < 8; i++)
        f.metadata[i] = (qn__metadata){keys[i], qn_tensors_metadata(f.file, keys[i])};
    return f;
}

static qn__tensor_data *part(forgery *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->parts[i].name, name))
            return &f->parts[i];
    fail_msg("no %s", name);
    return NULL;
}

static const char *put_together(forgery *f)
{
    const char *path = temp_path("forged");
    qn_error err = {0};
    if (qn__safetensors_write(path, f->parts, f->n, f->metadata, 8, &err) != QN_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < MOST_PARTS; i++)
        free(f->data[i]);
    qn_tensors_close(f->file);
    return path;
}

/* The file with other words as its conversation, checksum and all. */
static const char *forge_words(const bed *b, const char *json, size_t n, qn__sleep_word *sum)
{
    forgery f = take_apart(b->path);
    qn__tensor_data *t = part(&f, "conversation");
    *sum = qn__sleep_sum(json, n);
    t->data = json;
    t->shape[0] = (int64_t)n;
    f.metadata[5].value = sum->hex;
    return put_together(&f);
}

static void test_types(void **state)
{
    bed b = make_bed(state, "types");
    static const char *const names[] = {"conversation", "tokens", "keys.001", "values.000",
                                        "verify"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int how = 0; how < 4; how++) {
            forgery f = take_apart(b.path);
            qn__tensor_data *t = part(&f, names[i]);
            if (how == 0)
                *t = f.parts[--f.n]; /* it is not there */
            else if (how == 1)
                t->dtype = t->dtype == QN_I32 ? QN_F32 : QN_I8;
            else if (how == 2)
                t->shape[t->ndim++] = 1;
            else
                t->shape[0]--;
            check_refused(&b, put_together(&f), plain_session(&b),
                          how == 0 && i == 0 ? QN_NOT_FOUND : QN_INVALID, "");
        }
    for (int i = 0; i < 8; i++) {
        forgery f = take_apart(b.path);
        f.metadata[i].value = "";
        check_refused(&b, put_together(&f), plain_session(&b), i == 5 ? QN_INVALID : QN_STATE, "");
    }
    forgery f = take_apart(b.path); /* tokens that no vocabulary has */
    ((int32_t *)f.data[part(&f, "tokens") - f.parts])[3] = 1 << 30;
    check_refused(&b, put_together(&f), plain_session(&b), QN_INVALID, "vocabulary");
    size_t n = QN__LARGEST_CONVERSATION + 1;
    char *large = malloc(n);
    memset(large, ' ', n);
    qn__sleep_word sum;
    check_refused(&b, forge_words(&b, large, n, &sum), plain_session(&b), QN_INVALID, "67108864");
    free(large);
    end_bed(&b);
}

static void test_lies(void **state)
{
    static const char *const wrong[] = {"",
                                        "{",
                                        "[{}]",
                                        "[{\"role\":\"user\"}]",
                                        "null",
                                        "{\"a\":[]}",
                                        "[1]",
                                        "[{\"role\":\"a\",\"role\":\"b\"}]",
                                        "[{\"role\":\"user\",\"content\":\"\xff\"}]"};
    static const char *const lies[] = {
        "[]",
        "[{\"role\":\"user\",\"content\":\"Something else was asked.\",\"tokens\":[1,2,3]}]",
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"Who slept, the hare or the dog?\"},"
         "{\"role\":\"assistant\",\"content\":\"The dog.\"}],\"length\":9999}"),
    };
    bed b = make_bed(state, "lies");
    qn__sleep_word sum;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        check_refused(&b, forge_words(&b, wrong[i], strlen(wrong[i]), &sum), plain_session(&b),
                      QN_FORMAT, "");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const char *path = forge_words(&b, lies[i], strlen(lies[i]), &sum);
        qn_conversation *c = new_conversation(b.chat);
        qn_session *session = plain_session(&b);
        qn_error err = {0};
        turn t;
        if (qn_conversation_restore(c, session, path, &err) != QN_OK)
            fail_msg("%s", err.message);
        say(c, "user", "Who?");
        check_turn(c, session, NULL, b.model, &t);
        qn_session_close(session);
        qn_conversation_free(c);
    }
    end_bed(&b);
}

/* What is asleep is all that shapes the next turn: tools, variables, special tokens. */
static void test_whole(void **state)
{
    bed b = make_bed(state, "whole");
    qn_error err = {0};
    qn_conversation_parse_special(b.c, true);
    say(b.c, "user", "a\"\\\n <|t|> \x7f");
    qn_conversation_add(b.c, "user", "a\0b", 3, NULL);
    static const char calls[] =
        "{\"tool_calls\": [ {\"a\":1.50} ], \"role\" : \"assistant\", \"content\":null}";
    if (qn_conversation_add_json(b.c, calls, strlen(calls), &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(qn_conversation_save(b.c, b.session, b.path, NULL), QN_OK);
    check_messages(&b, b.path, b.chat);
    qn_conversation_cut(b.c, 4);
    assert_int_equal(qn_conversation_save(b.c, b.session, b.path, NULL), QN_OK);
    qn_conversation *c = new_conversation(b.chat);
    qn_session *session = plain_session(&b);
    assert_int_equal(qn_conversation_restore(c, session, b.path, NULL), QN_OK);
    qn_tokens is = ids_of(c), want = ids_of(b.c);
    assert_int_equal(is.n, want.n);
    assert_memory_equal(is.ids, want.ids, is.n * sizeof *is.ids);
    qn_tokens_free(&is);
    qn_tokens_free(&want);
    qn_session_close(session);
    /* An empty one, and one that never ran. */
    qn_conversation *none = new_conversation(b.chat);
    session = plain_session(&b);
    assert_int_equal(qn_conversation_save(none, session, b.path, NULL), QN_OK);
    assert_int_equal(qn_conversation_restore(c, session, b.path, NULL), QN_OK);
    assert_int_equal(qn_conversation_length(c), 0);
    turn t;
    say(c, "user", question);
    check_turn(c, session, NULL, b.model, &t);
    qn_session_close(session);
    qn_conversation_free(none);
    qn_conversation_free(c);
    end_bed(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_others), cmocka_unit_test(test_damage), cmocka_unit_test(test_types),
        cmocka_unit_test(test_lies),   cmocka_unit_test(test_whole),
    };
    return cmocka_run_group_tests(tests, temp_begin, temp_end);
}
