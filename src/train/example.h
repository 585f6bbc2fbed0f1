/* SPDX-License-Identifier: Apache-2.0
 *
 * A line of training data, as tokens.
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
} qn__example_form;

/* Zero it before use ({0}); it can be read into again. */
typedef struct qn__example {
    qn_tokens ids;
    size_t prompt; /* tokens at its beginning that are not learned */
    bool cut;      /* there were more than the longest */
} qn__example;

void qn__example_free(qn__example *s);

/* Reads line[0..n), an object with one of "text", "prompt" and "completion", or "messages"; `name`
 * is for messages. What else the object has goes, key by key, to `passed_over`, which may be
 * NULL. */
qn_status qn__example_read(const qn__example_form *form, const char *name, const char *line,
                           size_t n, void (*passed_over)(void *user, const char *key), void *user,
                           qn__example *out, qn_error *err);

#endif
