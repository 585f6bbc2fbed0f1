/* SPDX-License-Identifier: Apache-2.0
 *
 * From messages, or a prompt, to tokens.
 */
#include "server/inside.h"

#include "base/buffers.h"
#include "quern/conversation.h"

#include <stdlib.h>
#include <string.h>

/* ---- chats ----------------------------------------------------------------------------------- */

static qn_status append_part(const qn__json_at *part, qn_text *out, bool first, qn_error *err)
{
    const char *type, *text;
    if (qn__json_get_string(part, "type", &type, err) != QN_OK)
        return err->code;
    if (strcmp(type, "text") != 0)
        return qn__json_fail(part, QN_UNSUPPORTED, err,
                             "of parts, those of type text are supported");
    if (qn__json_get_string(part, "text", &text, err) != QN_OK)
        return err->code;
    return (first || qn__text_append(out, "\n", 1)) && qn__text_append(out, text, strlen(text))
               ? QN_OK
               : qn__fail_memory(err, "a message");
}

/* A text, or parts that are texts, which become lines. */
static qn_status read_content(const qn__json_at *at, qn_text *out, qn_error *err)
{
    qn__json_at part;
    const char *text;
    if (!cJSON_IsArray(at->node)) {
        if (qn__json_as_string(at, &text, err) != QN_OK)
            return err->code;
        return qn__text_append(out, text, strlen(text)) ? QN_OK : qn__fail_memory(err, "a message");
    }
    bool first = true, any = qn__json_first(at, &part);
    for (; any; any = qn__json_next(&part), first = false)
        if (append_part(&part, out, first, err) != QN_OK)
            return err->code;
    return qn__text_append(out, "", 0) ? QN_OK : qn__fail_memory(err, "a message");
}

static qn_status read_role(const qn__json_at *message, const char **role, qn_error *err)
{
    static const char *const known[] = {"system", "user", "assistant", "tool"};
    qn__json_at at;
    if (qn__json_get_string(message, "role", role, err) != QN_OK)
        return err->code;
    if (!strcmp(*role, "developer")) /* OpenAI's newer word */
        *role = "system";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(*role, known[i]))
            return QN_OK;
    qn__json_find(message, "role", &at);
    return qn__json_fail(&at, QN_UNSUPPORTED, err,
                         "roles are system, developer, user, assistant and tool");
}

/* The texts that may stand beside role and content. */
static qn_status read_texts(const qn__json_at *message, qn__page *page, qn_error *err)
{
    static const char *const texts[] = {"role", "content", "name", "reasoning_content"};
    enum { OTHERS = 2, N_TEXTS = sizeof texts / sizeof *texts };
    qn__json_at at;
    for (bool any = qn__json_first(message, &at); any; any = qn__json_next(&at)) {
        const char *text;
        size_t i = 0;
        while (i < N_TEXTS && strcmp(at.key, texts[i]) != 0)
            i++;
        if (i == N_TEXTS)
            return qn__json_fail(&at, QN_UNSUPPORTED, err,
                                 "not supported; role, content, name and reasoning_content are");
        if (i < OTHERS || cJSON_IsNull(at.node))
            continue;
        if (qn__json_as_string(&at, &text, err) != QN_OK)
            return err->code;
        qn__put_format(page, ",\"%s\":", texts[i]);
        qn__put_string(page, text, strlen(text));
    }
    return QN_OK;
}

/* `page` gets the whole message. */
static qn_status read_message(const qn__json_at *message, qn__page *page, qn_error *err)
{
    qn__json_at at;
    qn_text content = {0};
    const char *role;
    if (!cJSON_IsObject(message->node))
        return qn__json_fail(message, QN_FORMAT, err, "expected an object with role and content");
    if (read_role(message, &role, err) != QN_OK)
        return err->code;
    qn__put_format(page, "{\"role\":\"%s\"", role);
    if (read_texts(message, page, err) != QN_OK)
        return err->code;
    qn__json_find(message, "content", &at);
    if (read_content(&at, &content, err) == QN_OK) {
        qn__put(page, ",\"content\":");
        qn__put_string(page, content.data, content.n);
        qn__put(page, "}");
    }
    qn_text_free(&content);
    return err->code;
}

static qn_status add_messages(qn_conversation *c, const qn__json_at *messages, qn_error *err)
{
    qn__json_at at;
    bool any = qn__json_first(messages, &at);
    if (!any)
        return qn__json_fail(messages, QN_INVALID, err, "there is no message");
    for (; any && err->code == QN_OK; any = qn__json_next(&at)) {
        qn__page page = {0};
        read_message(&at, &page, err);
        if (page.failed)
            qn__fail_memory(err, "a chat");
        if (err->code == QN_OK)
            qn_conversation_add_json(c, page.text.data, page.text.n, err);
        qn_text_free(&page.text);
    }
    return err->code;
}

static qn_status set_variables(const qn__server *s, qn_conversation *c,
                               const qn__json_at *variables, qn_error *err)
{
    static const char *const ours[] = {"messages", "tools", "documents"};
    qn__json_at at;
    if (!qn_chat_has_template(s->chat))
        return qn__json_fail(variables, QN_UNSUPPORTED, err, "the model has no chat template");
    for (bool any = qn__json_first(variables, &at); any; any = qn__json_next(&at)) {
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
            if (!strcmp(at.key, ours[i]))
                return qn__json_fail(&at, QN_UNSUPPORTED, err, "not a variable of templates");
        char *value = cJSON_PrintUnformatted(at.node);
        if (!value)
            return qn__fail_memory(err, "a chat");
        qn_status status = qn_conversation_set_variable(c, at.key, value, strlen(value), err);
        cJSON_free(value);
        if (status != QN_OK)
            return status;
    }
    return QN_OK;
}

qn_status qn__chat_tokens(const qn__server *s, const qn__json_at *messages,
                          const qn__json_at *variables, qn_tokens *out, qn_error *err)
{
    qn_conversation *c;
    if (qn_conversation_new(&c, s->chat, err) != QN_OK)
        return err->code;
    if (add_messages(c, messages, err) == QN_OK &&
        (!variables || set_variables(s, c, variables, err) == QN_OK))
        qn_conversation_ids(c, true, out, err);
    qn_conversation_free(c);
    return err->code;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static qn_status read_ids(const qn__server *s, const qn__json_at *list, qn_tokens *out,
                          qn_error *err)
{
    qn__json_at at;
    for (bool any = qn__json_first(list, &at); any; any = qn__json_next(&at)) {
        int64_t id;
        if (qn__json_as_int(&at, 0, s->info.vocab_size - 1, &id, err) != QN_OK)
            return err->code;
        if (!qn__tokens_push(out, (int32_t)id))
            return qn__fail_memory(err, "a prompt");
    }
    return QN_OK;
}

/* A text in which special tokens are those, as in `quern generate --raw`, or tokens. */
static qn_status read_prompt(const qn__server *s, const qn__json_at *at, qn_tokens *out,
                             qn_error *err)
{
    if (cJSON_IsString(at->node))
        return qn_tokenizer_encode(qn_model_tokenizer(s->model), at->node->valuestring,
                                   strlen(at->node->valuestring), QN_ADD_SPECIAL | QN_PARSE_SPECIAL,
                                   out, err);
    if (cJSON_IsArray(at->node))
        return read_ids(s, at, out, err);
    return qn__json_fail(at, QN_FORMAT, err, "a prompt is a text or an array of tokens");
}

qn_status qn__prompt_tokens(const qn__server *s, const qn__json_at *prompt, qn__job *job,
                            qn_error *err)
{
    qn__json_at at = *prompt;
    bool several =
        cJSON_IsArray(prompt->node) && qn__json_first(prompt, &at) && !cJSON_IsNumber(at.node);
    int64_t n = several ? cJSON_GetArraySize(prompt->node) : 1;
    if (n * job->n > MOST_CHOICES)
        return qn__json_fail(prompt, QN_LIMIT, err,
                             "%lld replies are wanted, at most %d are possible",
                             (long long)(n * job->n), MOST_CHOICES);
    job->prompts = calloc((size_t)n, sizeof *job->prompts);
    if (!job->prompts)
        return qn__fail_memory(err, "a prompt");
    if (!several) {
        job->n_prompts = 1;
        return read_prompt(s, prompt, job->prompts, err);
    }
    do
        if (read_prompt(s, &at, &job->prompts[job->n_prompts++], err) != QN_OK)
            return err->code;
    while (qn__json_next(&at));
    return QN_OK;
}
