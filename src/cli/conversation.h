/* SPDX-License-Identifier: Apache-2.0
 *
 * What the command line says of conversations (quern/conversation.h): the model's templates, their
 * variables, the system message, tools.
 */
#ifndef QN_CLI_CONVERSATION_H
#define QN_CLI_CONVERSATION_H

#include "base/json.h"
#include "cli/options.h"
#include "quern/quern.h"

/* Opens the model's templates and chooses --template-name. */
qn_status chat_form_open(qn_chat **chat, const qn_tokenizer *tokenizer, const char *path,
                         const arguments *a, qn_error *err);

/* Whether the model has any form of chats: templates of its own, or tokens of a built-in one. */
bool chat_form_exists(const qn_chat *chat, const qn_tokenizer *tokenizer);

/* Template variables and --parse-special; to be said again of a conversation that was read. */
qn_status conversation_fill(qn_conversation *c, const arguments *a, qn_error *err);

/* The conversation becomes the "messages" of a JSON object, with its "tools"; one at least. */
qn_status conversation_take(qn_conversation *c, const qn__json_at *object, qn_error *err);

/* Reads "tools", an array, from a file. */
qn_status conversation_read_tools(qn_conversation *c, const char *path, qn_error *err);

/* Appends the ids of the conversation, filled, and with --system where it has no such message. */
qn_status conversation_encode(qn_conversation *c, const arguments *a, qn_tokens *out,
                              qn_error *err);

/* The same of one user's message. */
qn_status message_encode(const qn_chat *chat, const arguments *a, const char *text, size_t n,
                         qn_tokens *out, qn_error *err);

#endif
