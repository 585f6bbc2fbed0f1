/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations inside.
 */
#ifndef QN_TEXT_CONVERSATION_H
#define QN_TEXT_CONVERSATION_H

#include "quern/conversation.h"

enum { QN__LARGEST_CONVERSATION = 64 << 20 }; /* bytes of JSON in a file */

typedef struct qn__message {
    qn_chat_message said; /* its strings are owned */
    char *json;           /* the whole message */
} qn__message;

typedef struct qn__variable {
    char *name, *json;
} qn__variable;

struct qn_conversation {
    const qn_chat *chat;
    qn__message *messages;
    size_t n, room;
    char *tools; /* a JSON array; NULL: none */
    qn__variable *variables;
    size_t n_variables;
    bool parse_special;
};

/* Frees what it holds, and leaves an empty conversation of the same chat. */
void qn__conversation_clear(qn_conversation *c);

/* Takes over the message, also when it fails, which it does with one that lacks a string. */
qn_status qn__conversation_insert(qn_conversation *c, size_t at, qn__message *m, qn_error *err);

/* s[0..n), terminated; NULL: no memory. */
char *qn__copy_bytes(const char *s, size_t n);

/* What ids depend on, as one number: the vocabulary, merges and added tokens, and what becomes of a
 * text that has a little of everything. (fingerprint.c) */
qn_status qn__tokenizer_fingerprint(const qn_tokenizer *tokenizer, uint64_t *out, qn_error *err);

/* ---- chat_template.c ---- */

const qn_tokenizer *qn__chat_tokenizer(const qn_chat *chat);

/* The templates and which is chosen, or the built-in format. */
uint64_t qn__chat_fingerprint(const qn_chat *chat);

#endif
