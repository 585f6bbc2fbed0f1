/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of training data: the three forms of mlx-lm and TRL. What is not learned of a chat is what
 * its tokens have in common with those that would ask for its last reply, so that a template which
 * writes something else there (DeepSeek's "<think>") takes nothing from the reply.
 */
#include "train/example.h"

#include "base/buffers.h"
#include "base/error.h"
#include "text/conversation.h"

#include <string.h>

/* What of a line its form is; the rest is passed over. */
static const char *const known[] = {"text",  "prompt", "completion", "messages",
                                    "tools", "chosen", "rejected",   "chat_template_kwargs"};

void qn__example_free(qn__example *s)
{
    qn_tokens_free(&s->ids);
    qn_tokens_free(&s->other);
    *s = (qn__example){0};
}

/* Tokens that both begin with. */
static size_t common_length(const qn_tokens *a, const qn_tokens *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n])
        n++;
    return n;
}

void qn__example_ask(qn__example *e, const qn_tokens *asked)
{
    size_t n = common_length(&e->ids, asked);
    size_t of_other = e->other.n ? common_length(&e->other, asked) : n;
    e->prompt = of_other < n ? of_other : n;
}

/* The token that ends a text goes behind it, unless the tokenizer has put it there. */
static qn_status add_end(qn_tokens *ids, int32_t eos, qn_error *err)
{
    bool has = eos < 0 || (ids->n && ids->ids[ids->n - 1] == eos);
    return has || qn__tokens_push(ids, eos) ? QN_OK : qn__fail_memory(err, "a text");
}

qn_status qn__example_encode(const qn__example_form *f, const char *text, size_t n, bool ends,
                             qn_tokens *out, qn_error *err)
{
    const qn_tokenizer *t = qn__chat_tokenizer(f->chat);
    unsigned flags = QN_ADD_SPECIAL | (f->parse_special ? QN_PARSE_SPECIAL : 0);
    if (qn_tokenizer_encode(t, text, n, flags, out, err) != QN_OK || !ends)
        return err->code;
    return add_end(out, qn_tokenizer_eos(t), err);
}

bool qn__example_knows_chats(const qn__example_form *f)
{
    return qn_chat_has_template(f->chat) ||
           qn_chat_format_of(qn__chat_tokenizer(f->chat)) != QN_CHAT_NONE;
}

/* ---- the forms ------------------------------------------------------------------------------- */

static qn_status read_text(const qn__example_form *f, const qn__json_at *line, qn__example *out,
                           qn_error *err)
{
    const char *text;
    if (f->mask_prompt)
        return qn__fail(err, QN_UNSUPPORTED,
                        "a prompt to mask is in \"prompt\" and \"completion\", or in \"messages\", "
                        "not in \"text\"");
    if (qn__json_get_string(line, "text", &text, err) != QN_OK)
        return err->code;
    return qn__example_encode(f, text, strlen(text), true, &out->ids, err);
}

/* The tokens of a conversation, and how many of them its last message does not have. */
static qn_status encode_messages(const qn__example_form *f, qn_conversation *c, qn__example *out,
                                 qn_error *err)
{
    size_t n = qn_conversation_length(c);
    qn_tokens asked = {0};
    if (n == 0)
        return qn__fail(err, QN_FORMAT, "messages: there is no message");
    qn_conversation_parse_special(c, f->parse_special);
    if (qn_conversation_ids(c, false, &out->ids, err) != QN_OK || !f->mask_prompt)
        return err->code;
    bool reply = !strcmp(qn_conversation_message(c, n - 1)->role, "assistant");
    if (n < 2 || !reply)
        return qn__fail(err, QN_INVALID,
                        "the last message is not an assistant's reply to others: there is nothing "
                        "to learn but a prompt");
    qn_conversation_cut(c, n - 1);
    if (qn_conversation_ids(c, true, &asked, err) == QN_OK)
        qn__example_ask(out, &asked);
    qn_tokens_free(&asked);
    return err->code;
}

static qn_status read_messages(const qn__example_form *f, const char *name, const char *line,
                               size_t n, qn__example *out, qn_error *err)
{
    qn_conversation *c;
    if (qn_conversation_new(&c, f->chat, err) != QN_OK)
        return err->code;
    if (qn_conversation_parse(c, name, line, n, err) == QN_OK)
        encode_messages(f, c, out, err);
    qn_conversation_free(c);
    return err->code;
}

/* "tools" of a line, which only a chat can have. */
static qn_status take_tools(qn_conversation *c, const qn__json_at *line, qn_error *err)
{
    qn__json_at tools;
    if (!qn__json_find(line, "tools", &tools))
        return QN_OK;
    char *text = cJSON_PrintUnformatted(tools.node);
    if (!text)
        return qn__fail_memory(err, "tools");
    qn_conversation_set_tools(c, text, strlen(text), err);
    cJSON_free(text);
    return err->code;
}

/* A prompt and its completion are a user's message and the reply. */
static qn_status read_as_chat(const qn__example_form *f, const qn__json_at *line,
                              const char *prompt, const char *completion, qn__example *out,
                              qn_error *err)
{
    qn_conversation *c;
    if (qn_conversation_new(&c, f->chat, err) != QN_OK)
        return err->code;
    if (take_tools(c, line, err) == QN_OK &&
        qn_conversation_add(c, "user", prompt, strlen(prompt), err) == QN_OK &&
        qn_conversation_add(c, "assistant", completion, strlen(completion), err) == QN_OK)
        encode_messages(f, c, out, err);
    qn_conversation_free(c);
    return err->code;
}

/* One behind the other, for a model that knows no chats. */
static qn_status read_as_text(const qn__example_form *f, const char *prompt, const char *completion,
                              qn__example *out, qn_error *err)
{
    qn_text both = {0};
    qn_tokens asked = {0};
    size_t n = strlen(prompt);
    if (!qn__text_append(&both, prompt, n) || !qn__text_puts(&both, completion))
        qn__fail_memory(err, "a text");
    else if (qn__example_encode(f, both.data, both.n, true, &out->ids, err) == QN_OK &&
             f->mask_prompt && qn__example_encode(f, prompt, n, false, &asked, err) == QN_OK)
        qn__example_ask(out, &asked);
    qn_tokens_free(&asked);
    qn_text_free(&both);
    return err->code;
}

static qn_status read_completion(const qn__example_form *f, const qn__json_at *line,
                                 qn__example *out, qn_error *err)
{
    const char *prompt, *completion;
    if (qn__json_get_string(line, "prompt", &prompt, err) != QN_OK ||
        qn__json_get_string(line, "completion", &completion, err) != QN_OK)
        return err->code;
    return qn__example_knows_chats(f) ? read_as_chat(f, line, prompt, completion, out, err)
                                      : read_as_text(f, prompt, completion, out, err);
}

/* ---- a line ---------------------------------------------------------------------------------- */

static void pass_over(const qn__json_at *line, void (*passed_over)(void *user, const char *key),
                      void *user)
{
    qn__json_at member;
    for (bool any = passed_over && qn__json_first(line, &member); any;
         any = qn__json_next(&member)) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known |= !strcmp(member.key, known[i]);
        if (!is_known)
            passed_over(user, member.key);
    }
}

static qn_status read_form(const qn__example_form *f, const char *name, const char *json, size_t n,
                           const qn__json_at *line, qn__example *out, qn_error *err)
{
    qn__json_at at;
    bool text = qn__json_find(line, "text", &at), chat = qn__json_find(line, "messages", &at);
    bool pair = qn__json_find(line, "prompt", &at) || qn__json_find(line, "completion", &at);
    if (f->preferences)
        return qn__preference_read(f, name, json, n, line, out, err);
    if (qn__json_find(line, "chosen", &at) || qn__json_find(line, "rejected", &at))
        return qn__fail(err, QN_UNSUPPORTED,
                        "\"chosen\" and \"rejected\" are for DPO (qn_dataset_options.preferences, "
                        "--loss dpo)");
    if (text + chat + pair != 1)
        return qn__fail(err, QN_FORMAT,
                        "%s of \"text\", \"prompt\" and \"completion\", or \"messages\" is there; "
                        "a line has one of them",
                        text || chat || pair ? "more than one" : "none");
    return text   ? read_text(f, line, out, err)
           : chat ? read_messages(f, name, json, n, out, err)
                  : read_completion(f, line, out, err);
}

qn_status qn__example_read(const qn__example_form *f, const char *name, const char *json, size_t n,
                           void (*passed_over)(void *user, const char *key), void *user,
                           qn__example *out, qn_error *err)
{
    cJSON *tree = NULL;
    qn_error wrong = {0};
    out->ids.n = out->other.n = out->prompt = 0;
    if (qn__json_parse(&tree, name, json, n, err) != QN_OK)
        return err->code;
    qn__json_at line = qn__json_root(name, tree);
    if (!cJSON_IsObject(tree))
        qn__fail(&wrong, QN_FORMAT, "not an object");
    else if (read_form(f, name, json, n, &line, out, &wrong) == QN_OK && out->ids.n < 2)
        qn__fail(&wrong, QN_INVALID, "the text is too short to learn from");
    if (wrong.code == QN_OK)
        pass_over(&line, passed_over, user);
    else if (!strncmp(wrong.message, name, strlen(name)))
        qn__fail(err, wrong.code, "%s", wrong.message);
    else
        qn__fail(err, wrong.code, "%s: %s", name, wrong.message);
    cJSON_Delete(tree);
    out->cut = out->ids.n > f->longest || out->other.n > f->longest;
    out->ids.n = out->ids.n > f->longest ? f->longest : out->ids.n;
    out->other.n = out->other.n > f->longest ? f->longest : out->other.n;
    return err->code;
}
