/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of conversations share: a tokenizer with a token a character of ASCII, which any
 * of the tiny models' vocabularies holds, a template that drops the reasoning of earlier replies,
 * sessions, and turns whose logits are compared with those of a session that ran everything.
 */
#ifndef QN_TESTS_CONVERSATION_TEST_H
#define QN_TESTS_CONVERSATION_TEST_H

#include "generate/model_test.h"
#include "models/golden_model.h"
#include "text/bpe.h"

#include "base/buffers.h"
#include "base/utf8.h"

#define TURN_TEMPLATE                                                                              \
    "{% for m in messages %}<|t|>{{ m.role }}\n{% if m.role == 'assistant' %}"                     \
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|e|>{% endfor %}"   \
    "{% if add_generation_prompt %}<|t|>assistant\n{{ extra }}{% endif %}"

enum { FIRST_SPECIAL = 128, CONTEXT = 480 };

/* In a folder of this name, so that several may be open. */
static inline qn_tokenizer *ascii_tokenizer(const char *folder, const char *specials)
{
    char json[8192], bytes[5], name[80];
    size_t used = (size_t)sprintf(json, "{\"model\":{\"merges\":[],\"vocab\":{");
    for (int i = 0; i < FIRST_SPECIAL; i++) {
        bytes[qn__utf8_encode(qn__byte_to_char((uint8_t)i), bytes)] = '\0';
        bool escape = bytes[0] == '"' || bytes[0] == '\\';
        used += (size_t)sprintf(json + used, "%s\"%s%s\":%d", i ? "," : "", escape ? "\\" : "",
                                bytes, i);
    }
    used += (size_t)sprintf(json + used,
                            "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
                            "false},\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[");
    for (int i = 0; specials[i]; i++)
        used += (size_t)sprintf(json + used,
                                "%s{\"id\":%d,\"content\":\"<|%c|>\",\"normalized\":false,"
                                "\"special\":true}",
                                i ? "," : "", FIRST_SPECIAL + i, specials[i]);
    used += (size_t)sprintf(json + used, "]}");
    temp_mkdir(folder);
    snprintf(name, sizeof name, "%s/tokenizer.json", folder);
    qn_tokenizer *t;
    qn_error err = {0};
    if (qn_tokenizer_open(&t, temp_write(name, json, used), &err) != QN_OK)
        fail_msg("%s", err.message);
    return t;
}

static inline qn_chat *template_chat(const qn_tokenizer *t, const char *folder, const char *source)
{
    char name[80];
    qn_chat *chat;
    qn_error err = {0};
    snprintf(name, sizeof name, "%s/chat_template.jinja", folder);
    temp_write(name, source, strlen(source));
    if (qn_chat_open(&chat, t, temp_path(folder), &err) != QN_OK)
        fail_msg("%s", err.message);
    return chat;
}

static inline qn_conversation *new_conversation(const qn_chat *chat)
{
    qn_conversation *c;
    assert_int_equal(qn_conversation_new(&c, chat, NULL), QN_OK);
    return c;
}

static inline void say(qn_conversation *c, const char *role, const char *content)
{
    qn_error err = {0};
    if (qn_conversation_add(c, role, content, strlen(content), &err) != QN_OK)
        fail_msg("%s", err.message);
}

/* Not 0: sessions see so many positions, the first 4 among them. */
static int64_t rotate_at;

static inline qn_session *session_of(qn_model *model, const char *type, const qn_flag *cancel)
{
    qn_session *session;
    qn_error err = {0};
    qn_session_options o = {.size = sizeof o,
                            .context = rotate_at ? rotate_at : CONTEXT,
                            .rotate = rotate_at > 0,
                            .keep = rotate_at ? 4 : 0,
                            .prefill_chunk = 16,
                            .cancel = cancel,
                            .cache_type_k = type,
                            .cache_type_v = type};
    if (qn_session_open(&session, model, &o, &err) != QN_OK)
        fail_msg("%s", err.message);
    return session;
}

static inline qn_tokens ids_of(const qn_conversation *c)
{
    qn_tokens ids = {0};
    qn_error err = {0};
    if (qn_conversation_ids(c, true, &ids, &err) != QN_OK)
        fail_msg("%s", err.message);
    return ids;
}

static inline size_t length_of(const qn_conversation *c)
{
    qn_tokens ids = ids_of(c);
    size_t n = ids.n;
    qn_tokens_free(&ids);
    return n;
}

typedef struct turn {
    int32_t ids[40];
    size_t n;
    int64_t kept;
    uint64_t ran;
} turn;

/* A reply of so many tokens at most, which what would end one does not; no text of it is decoded.
 */
static inline qn_status take_turn(const qn_conversation *c, qn_session *session, size_t n, turn *t,
                                  qn_error *err)
{
    qn_generation *g;
    qn_generation_options o = {.size = sizeof o, .max_tokens = (int64_t)n, .ignore_stop = true};
    *t = (turn){0};
    qn_status status = qn_conversation_begin_reply(&g, c, session, &o, err);
    t->kept = qn_session_length(session);
    int32_t id = 0;
    while (status == QN_OK && (status = qn_generation_next(g, &id, err)) == QN_OK && id >= 0)
        t->ids[t->n++] = id;
    qn_metrics m = QN_INIT(qn_metrics);
    if (g)
        qn_generation_get_metrics(g, &m);
    t->ran = m.prompt_tokens;
    qn_generation_end(g);
    return status;
}

/* The reply as the next message. */
static inline void add_reply(qn_conversation *c, const qn_tokenizer *t, const turn *r,
                             const char *before)
{
    qn_text text = {0};
    qn_error err = {0};
    if (before)
        qn__text_append(&text, before, strlen(before));
    if (qn_tokenizer_decode(t, r->ids, r->n, QN_SKIP_SPECIAL, &text, &err) != QN_OK ||
        qn_conversation_add(c, "assistant", text.data ? text.data : "", text.n, &err) != QN_OK)
        fail_msg("%s", err.message);
    qn_text_free(&text);
}

/* Both run a token, which gives the same bits; they forget it again. */
static inline void check_same_next(qn_session *a, qn_session *b, int32_t id, size_t bytes)
{
    qn_error err = {0};
    int64_t ran = qn_session_length(a);
    assert_int_equal(qn_session_length(b), ran);
    assert_int_equal(qn_session_append(a, &id, 1, &err), QN_OK);
    assert_int_equal(qn_session_append(b, &id, 1, &err), QN_OK);
    assert_memory_equal(qn_session_logits(a), qn_session_logits(b), bytes);
    qn_session_rewind(a, ran);
    qn_session_rewind(b, ran);
}

/* The session, whatever ran in it, gives the bits of one that runs the conversation alone: behind
 * the prompt, and behind the reply. `t` receives the turn. */
static inline void check_turn(const qn_conversation *c, qn_session *session, const char *type,
                              qn_model *model, turn *t)
{
    qn_error err = {0};
    size_t bytes = vocab_of(model) * sizeof(float);
    qn_tokens ids = ids_of(c);
    qn_session *fresh = session_of(model, type, NULL);
    assert_int_equal(qn_session_append(fresh, ids.ids, ids.n, &err), QN_OK);
    if (take_turn(c, session, 1, t, &err) != QN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(t->kept + (int64_t)t->ran, (int64_t)ids.n);
    assert_memory_equal(qn_session_tokens(session), ids.ids, ids.n * sizeof *ids.ids);
    check_same_next(session, fresh, t->ids[0], bytes);
    turn again;
    if (take_turn(c, session, 20, &again, &err) != QN_OK)
        fail_msg("%s", err.message);
    again.kept = t->kept;
    again.ran = t->ran;
    *t = again;
    int64_t ran = qn_session_length(session);
    for (int64_t i = (int64_t)ids.n; i < ran; i++)
        assert_int_equal(qn_session_tokens(session)[i], t->ids[i - (int64_t)ids.n]);
    qn_session_append(fresh, t->ids, (size_t)ran - ids.n, NULL);
    check_same_next(session, fresh, t->ids[(size_t)ran - ids.n], bytes);
    qn_session_close(fresh);
    qn_tokens_free(&ids);
}

#endif
