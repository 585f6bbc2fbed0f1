/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations: messages, what a model's chat template makes of them, replies that run what is new
 * alone, and sleep in a file.
 *
 *     qn_conversation *c;
 *     qn_conversation_new(&c, chat, &err);
 *     qn_conversation_add(c, "user", "Hello!", 6, &err);
 *     qn_generation *g;
 *     qn_conversation_begin_reply(&g, c, session, NULL, &err);
 *     while (qn_generation_next(g, &id, &err) == QN_OK && id >= 0)
 *         qn_generation_text(g, false, &reply, &err);
 *     qn_generation_end(g);
 *     qn_conversation_add(c, "assistant", reply.data, reply.n, &err);
 *
 * A conversation is data; the session beside it has what ran, and may be that of another
 * conversation, too: each reply takes what both begin with. Both belong to one thread at a time. A
 * call that fails leaves the conversation as it was.
 */
#ifndef QUERN_CONVERSATION_H
#define QUERN_CONVERSATION_H

#include "quern/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_conversation qn_conversation;

/* An empty one. The chat, which may be one without templates, is borrowed and must outlive it;
 * NULL: there are messages alone, and what needs a model is QN_STATE. */
QN_API qn_status qn_conversation_new(qn_conversation **out, const qn_chat *chat, qn_error *err);
QN_API void qn_conversation_free(qn_conversation *conversation); /* NULL is accepted */

/* ---- messages -------------------------------------------------------------------------------- */

/* Appends a message with a copy of content[0..n), UTF-8 (else QN_FORMAT; NULL where n is 0). role:
 * "system", "user", "assistant", or another that the template takes. */
QN_API qn_status qn_conversation_add(qn_conversation *conversation, const char *role,
                                     const char *content, size_t n, qn_error *err);

/* The same of a JSON object, which goes to the template as it is: with role, and content (a text,
 * or an array of parts) or tool_calls. QN_FORMAT: it is none. */
QN_API qn_status qn_conversation_add_json(qn_conversation *conversation, const char *json, size_t n,
                                          qn_error *err);

/* content[0..n) becomes the system message, the first one; n = 0: there is none any more. */
QN_API qn_status qn_conversation_set_system(qn_conversation *conversation, const char *content,
                                            size_t n, qn_error *err);

/* Forgets the messages from the n-th on. */
QN_API void qn_conversation_cut(qn_conversation *conversation, size_t n);

QN_API size_t qn_conversation_length(const qn_conversation *conversation); /* messages */

/* Message i; NULL behind the last. Its content is NULL where that is no text. Valid, as is its
 * JSON, until the conversation changes. */
QN_API const qn_chat_message *qn_conversation_message(const qn_conversation *conversation,
                                                      size_t i);
QN_API const char *qn_conversation_message_json(const qn_conversation *conversation, size_t i);

/* ---- what the template gets besides ---------------------------------------------------------- */

/* The tools, a JSON array; NULL: none. */
QN_API qn_status qn_conversation_set_tools(qn_conversation *conversation, const char *json,
                                           size_t n, qn_error *err);

/* A variable of the template, with a JSON value; NULL: none of that name. "messages" and "tools"
 * are QN_INVALID. */
QN_API qn_status qn_conversation_set_variable(qn_conversation *conversation, const char *name,
                                              const char *json, size_t n, qn_error *err);

/* Whether control tokens that are written out in messages become those, as in transformers; not
 * for what strangers write. */
QN_API void qn_conversation_parse_special(qn_conversation *conversation, bool parse);

/* ---- as JSON --------------------------------------------------------------------------------- */

/* The conversation becomes what the text says: an array of messages, or an object with "messages"
 * and maybe "tools" and, of its variables, "chat_template_kwargs", as servers take it; other
 * members are passed over. `name` is for messages. */
QN_API qn_status qn_conversation_parse(qn_conversation *conversation, const char *name,
                                       const char *json, size_t n, qn_error *err);

/* Appends such a text: an array where there are messages alone. */
QN_API qn_status qn_conversation_to_json(const qn_conversation *conversation, qn_text *out,
                                         qn_error *err);

/* The conversation becomes that of a file: JSON, or one of qn_conversation_save, of which the
 * session stays where it is. QN_LIMIT: more than 64 MiB of JSON. */
QN_API qn_status qn_conversation_read(qn_conversation *conversation, const char *path,
                                      qn_error *err);

/* Writes it as JSON into a file that appears whole or not at all, in the place of another. */
QN_API qn_status qn_conversation_write(const qn_conversation *conversation, const char *path,
                                       qn_error *err);

/* ---- to the model ---------------------------------------------------------------------------- */

/* Appends the ids, or the text, that the model's template makes of the conversation, or where it
 * has none the built-in format that its vocabulary fits (which takes texts alone: else
 * QN_UNSUPPORTED). With add_prompt the header of a reply follows, unless a variable
 * add_generation_prompt says so itself. */
QN_API qn_status qn_conversation_ids(const qn_conversation *conversation, bool add_prompt,
                                     qn_tokens *out, qn_error *err);
QN_API qn_status qn_conversation_text(const qn_conversation *conversation, bool add_prompt,
                                      qn_text *out, qn_error *err);

/* Begins a reply to the conversation as it stands. The session is rewound to what its tokens and
 * the conversation's begin with (a template that drops the reasoning of earlier replies makes that
 * shorter, and so do windows that gave positions back); qn_session_length says how many tokens
 * that is, and the rest runs with the first qn_generation_next. The bits are those of a session
 * that runs everything. options->before is filled in here; NULL: as in qn_generation_begin. More
 * tokens than the context holds: QN_LIMIT, with both counts, and the session is as it was. The
 * reply is the caller's to add; a generation that ends early, also by a failure, leaves a session
 * with which the next reply can begin. */
QN_API qn_status qn_conversation_begin_reply(qn_generation **out,
                                             const qn_conversation *conversation,
                                             qn_session *session,
                                             const qn_generation_options *options, qn_error *err);

/* ---- sleep ----------------------------------------------------------------------------------- */

/* Writes the conversation and the session's tokens, keys and values into one file, as
 * qn_session_save does (qn_session_restore reads it, too), which appears whole or not at all. */
QN_API qn_status qn_conversation_save(const qn_conversation *conversation, qn_session *session,
                                      const char *path, qn_error *err);

/* Brings both back, the session into an empty one, without running a token: the next reply runs
 * what is new alone. QN_STATE, with what differs: the file is of another model, tokenizer, chat
 * template, type of cache or window; qn_conversation_read then still has the messages. QN_INVALID:
 * it was changed; QN_LIMIT: more tokens than the context; QN_NOT_FOUND: it has no conversation. The
 * session then stays empty. */
QN_API qn_status qn_conversation_restore(qn_conversation *conversation, qn_session *session,
                                         const char *path, qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
