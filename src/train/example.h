/* SPDX-License-Identifier: Apache-2.0
 *
 * A line of training data, as tokens: a text, or two answers to a prompt.
 */
#ifndef QN_TRAIN_EXAMPLE_H
#define QN_TRAIN_EXAMPLE_H

#include "base/json.h"
#include "quern/text.h"

/* How lines become tokens. */
typedef struct qn__example_form {
    const qn_chat *chat;
    size_t longest; /* tokens that are kept */
    bool mask_prompt, parse_special;
    bool preferences; /* lines have "chosen" and "rejected", and are examples of two texts */
} qn__example_form;

/* Zero it before use ({0}); it can be read into again. */
typedef struct qn__example {
    qn_tokens ids;
    qn_tokens
        other;     /* of preferences: ids of the rejected text, where `ids` has the chosen one's */
    size_t prompt; /* tokens at its, or their, beginning that are not learned */
    bool cut;      /* there were more than the longest */
} qn__example;

void qn__example_free(qn__example *s);

/* Reads line[0..n), an object with one of "text", "prompt" and "completion", or "messages", or one
 * that is a preference, as the form says; `name` is for messages. What else the object has goes,
 * key by key, to `passed_over`, which may be NULL. */
qn_status qn__example_read(const qn__example_form *form, const char *name, const char *line,
                           size_t n, void (*passed_over)(void *user, const char *key), void *user,
                           qn__example *out, qn_error *err);

/* ---- for preference.c ---- */

/* Such a line, which is the object `tree`. */
qn_status qn__preference_read(const qn__example_form *form, const char *name, const char *line,
                              size_t n, const qn__json_at *tree, qn__example *out, qn_error *err);

/* Whether prompts and answers that are texts become messages. */
bool qn__example_knows_chats(const qn__example_form *form);

/* A text as it is, maybe with the token behind it that ends texts. */
qn_status qn__example_encode(const qn__example_form *form, const char *text, size_t n, bool ends,
                             qn_tokens *out, qn_error *err);

/* What the example's text, or both of them, begin with as `asked` does is its prompt. */
void qn__example_ask(qn__example *example, const qn_tokens *asked);

#endif
