/* SPDX-License-Identifier: Apache-2.0
 *
 * Built-in chat formats; the public side is in quern/text.h. A format is a row of texts and
 * control tokens; one function renders them all.
 */
#ifndef QN_TEXT_CHAT_H
#define QN_TEXT_CHAT_H

#include "quern/text.h"

/* One format. Control tokens are pieces, put by id; the other texts are encoded as text. */
typedef struct qn__chat_row {
    const char *name;
    const char *begin;      /* control token before all; "": none */
    const char *turn;       /* control token that opens a turn; "": none */
    const char *roles[3];   /* what names system, user, assistant: text behind `turn`, or where
                               that is "" a control token; NULL: no such turn */
    const char *header_end; /* control token behind the role; "": none */
    const char *before;     /* text between header and content */
    const char *end[3];     /* control token that closes a turn, by role; "": none */
    const char *after;      /* text behind it */
    bool trim;              /* white space around contents is cut off */
    const char *system_gap; /* without system turns: what stands between the system text and
                               the first user's */
    const char *think;      /* text that begins a reply, where the vocabulary has "<think>" */
    bool drop_thoughts;     /* of earlier replies only what follows "</think>" is kept */
    const char *stops[4];   /* control tokens that end a reply */
} qn__chat_row;

#endif
