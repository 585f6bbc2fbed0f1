/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a generation, and the strings that end it.
 *
 * A stop string may begin anywhere and come in pieces. What is handed out must never hold a byte of
 * it: text is held back from where one may have begun.
 */
#ifndef QN_GENERATE_STOPS_H
#define QN_GENERATE_STOPS_H

#include "quern/text.h"

/* Zero it before use ({0}). */
typedef struct qn__stops {
    char **strings;
    size_t n;
    qn_text text; /* so far; a stop string that has come, and what is behind it, are cut off */
    size_t given; /* bytes of it that were handed out */
    bool found;
} qn__stops;

void qn__stops_end(qn__stops *stops);

/* Copies a string, which must be UTF-8 and not empty. */
qn_status qn__stops_add(qn__stops *stops, const char *string, qn_error *err);

/* After text has grown from `before` bytes: looks for stop strings, the first of which ends it. */
void qn__stops_look(qn__stops *stops, size_t before);

/* Appends what may be handed out; with `all`, what was held back, too. */
qn_status qn__stops_give(qn__stops *stops, bool all, qn_text *out, qn_error *err);

#endif
