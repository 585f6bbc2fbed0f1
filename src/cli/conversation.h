/* SPDX-License-Identifier: Apache-2.0
 *
 * A conversation: messages, kept as the JSON that templates take, and the way to the model's ids.
 */
#ifndef QN_CLI_CONVERSATION_H
#define QN_CLI_CONVERSATION_H

#include "base/json.h"
#include "cli/options.h"
#include "quern/quern.h"

/* One message. `content` is NULL where it is no string (parts, or calls of tools). */
typedef struct message {
    char *role, *content;
    size_t content_size;
    char *json; /* the whole message */
} message;

/* Zero it before use ({0}). */
typedef struct conversation {
    message *messages;
    size_t n, room;
    char *tools; /* a JSON array; NULL: none */
} conversation;

void conversation_free(conversation *c);

/* Forgets messages from the n-th on. */
void conversation_cut(conversation *c, size_t n);

/* Appends a message; content must be UTF-8. */
qn_status conversation_add(conversation *c, const char *role, const char *content, size_t size,
                           qn_error *err);

/* Takes the last message off, to be put back or freed. */
message conversation_pop(conversation *c);
void conversation_push(conversation *c, message m); /* right behind a pop */
void message_free(message *m);

/* Makes `content` the system message, the first; size 0: there is none any more. */
qn_status conversation_system(conversation *c, const char *content, size_t size, qn_error *err);

/* Reads an array of messages, or an object with "messages" and maybe "tools", into an empty
 * conversation; `name` is for messages. */
qn_status conversation_parse(conversation *c, const char *name, const char *text, size_t size,
                             qn_error *err);

/* The same of an object that has been parsed, with its "messages" and "tools". */
qn_status conversation_take(conversation *c, const qn__json_at *object, qn_error *err);

/* Reads "tools", an array, from a file. */
qn_status conversation_read_tools(conversation *c, const char *path, qn_error *err);

/* Writes the messages as a JSON array, atomically, over an existing file. */
qn_status conversation_save(const conversation *c, const char *path, qn_error *err);

/* How a model reads a conversation: its own template, else the built-in format that its tokens fit.
 */
typedef struct chat_form {
    const qn_tokenizer *tokenizer;
    const qn_chat *chat;
    const arguments *arguments; /* template variables */
    bool no_prompt;             /* without the header of a reply */
} chat_form;

/* Opens the model's templates and chooses --template-name. */
qn_status chat_form_open(qn_chat **chat, const qn_tokenizer *tokenizer, const char *path,
                         const arguments *a, qn_error *err);

/* Whether there is any form. */
bool chat_form_exists(const chat_form *form);

/* Appends the ids of the conversation. */
qn_status conversation_ids(const conversation *c, const chat_form *form, qn_tokens *out,
                           qn_error *err);

/* Appends its text, as the model's template gives it. */
qn_status conversation_text(const conversation *c, const chat_form *form, qn_text *out,
                            qn_error *err);

#endif
