/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations as the command line wants them.
 */
#include "cli/conversation.h"
#include "base/buffers.h"
#include "base/file.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>

qn_status chat_form_open(qn_chat **chat, const qn_tokenizer *tokenizer, const char *path,
                         const arguments *a, qn_error *err)
{
    if (qn_chat_open(chat, tokenizer, path, err) != QN_OK || !a->template_name)
        return err->code;
    return qn_chat_choose(*chat, a->template_name, err);
}

bool chat_form_exists(const qn_chat *chat, const qn_tokenizer *tokenizer)
{
    return qn_chat_has_template(chat) || qn_chat_format_of(tokenizer) != QN_CHAT_NONE;
}

/* NAME=VALUE, where VALUE is JSON where it is that, else a text. */
static qn_status set_variable(qn_conversation *c, const char *variable, qn_error *err)
{
    const char *value = strchr(variable, '=') + 1;
    size_t n = strlen(value);
    cJSON *parsed = NULL;
    qn_error ignored = {0};
    qn_text quoted = {0};
    char *name = strndup(variable, (size_t)(value - 1 - variable));
    bool json = qn__json_parse(&parsed, "value", value, n, &ignored) == QN_OK;
    if (!name || (!json && !qn__text_append_json(&quoted, value, n)))
        qn__fail_memory(err, "a variable");
    else
        qn_conversation_set_variable(c, name, json ? value : quoted.data, json ? n : quoted.n, err);
    cJSON_Delete(parsed);
    qn_text_free(&quoted);
    free(name);
    return err->code;
}

qn_status conversation_fill(qn_conversation *c, const arguments *a, qn_error *err)
{
    for (size_t i = 0; i < a->n_template_vars; i++)
        if (set_variable(c, a->template_vars[i], err) != QN_OK)
            return err->code;
    if (a->parse_special)
        qn_conversation_parse_special(c, true);
    return QN_OK;
}

qn_status conversation_take(qn_conversation *c, const qn__json_at *object, qn_error *err)
{
    char *text = cJSON_PrintUnformatted(object->node);
    if (!text)
        return qn__fail_memory(err, "a conversation");
    if (qn_conversation_parse(c, object->file, text, strlen(text), err) == QN_OK &&
        !qn_conversation_length(c))
        qn__json_fail(object, QN_FORMAT, err, "messages: there is no message");
    cJSON_free(text);
    return err->code;
}

qn_status conversation_read_tools(qn_conversation *c, const char *path, qn_error *err)
{
    char *text = NULL;
    size_t n;
    qn_error wrong = {0};
    if (qn__file_read(path, LARGEST_INPUT, &text, &n, err) == QN_OK &&
        qn_conversation_set_tools(c, text, n, &wrong) != QN_OK)
        qn__fail(err, wrong.code, "%s: %s", path, wrong.message);
    free(text);
    return err->code;
}

qn_status conversation_encode(qn_conversation *c, const arguments *a, qn_tokens *out, qn_error *err)
{
    const qn_chat_message *first = qn_conversation_message(c, 0);
    bool has_system = first && !strcmp(first->role, "system");
    if (conversation_fill(c, a, err) != QN_OK ||
        (a->system && !has_system &&
         qn_conversation_set_system(c, a->system, strlen(a->system), err) != QN_OK))
        return err->code;
    return qn_conversation_ids(c, true, out, err);
}

qn_status message_encode(const qn_chat *chat, const arguments *a, const char *text, size_t n,
                         qn_tokens *out, qn_error *err)
{
    qn_conversation *c;
    if (qn_conversation_new(&c, chat, err) != QN_OK)
        return err->code;
    if (qn_conversation_add(c, "user", text, n, err) == QN_OK)
        conversation_encode(c, a, out, err);
    qn_conversation_free(c);
    return err->code;
}
