/* SPDX-License-Identifier: Apache-2.0
 *
 * Added tokens: texts that become one id wherever they stand, before anything else looks at the
 * text. There are two sets, one matched in the raw text and one (tokens with "normalized") in the
 * normalized text. Of the matches at the leftmost place the longest counts.
 */
#ifndef QN_TEXT_ADDED_H
#define QN_TEXT_ADDED_H

#include "base/error.h"
#include "quern/text.h"

#include <stdint.h>

/* Longer ones are refused: matching costs up to this much per byte of text. */
#define QN__MAX_ADDED_TOKEN 512

enum { QN__ADDED_SPECIAL = 1, QN__ADDED_LSTRIP = 2, QN__ADDED_RSTRIP = 4, QN__ADDED_WORD = 8 };

typedef struct qn__added_token {
    char *text; /* owned by the set */
    size_t n;
    int32_t id;
    unsigned flags;
} qn__added_token;

typedef struct qn__added_set {
    qn__added_token *tokens; /* sorted by text once finished */
    size_t n, capacity;
    size_t first[257]; /* tokens[first[b]..first[b + 1]) begin with byte b */
} qn__added_set;

/* Adds a token with a copy of text[0..n), n > 0; false when memory is out. */
bool qn__added_add(qn__added_set *set, const char *text, size_t n, int32_t id, unsigned flags);

/* Sorts, after the last add. Of tokens with the same text the first added stays. */
void qn__added_finish(qn__added_set *set);
void qn__added_clear(qn__added_set *set);

/* The length of the longest token at s[0..n), n > 0; 0: none. Flags don't count. */
size_t qn__added_longest(const qn__added_set *set, const char *s, size_t n);

/* Bytes of a text that came from data: there control tokens do not match, which are the special
 * ones and those marked in `control` (by id; NULL: none more). */
typedef struct qn__added_data {
    const qn_span *spans; /* sorted, apart */
    size_t n;
    const bool *control;
} qn__added_data;

/* A walk over a text: gaps and tokens alternate. */
typedef struct qn__added_walk {
    const qn__added_set *set;
    const char *s;
    size_t n;
    size_t at;   /* where to look on */
    size_t done; /* everything before it has been given out */
    bool parse_special;
    const qn__added_data *data; /* NULL: none of the text */
    size_t data_at;             /* where s begins in what the spans count */
} qn__added_walk;

/* The next token: its id, and the gap before it [*gap, *gap_end), which may be empty. False at the
 * end: then the gap is the rest. */
bool qn__added_next(qn__added_walk *walk, size_t *gap, size_t *gap_end, int32_t *id);

#endif
