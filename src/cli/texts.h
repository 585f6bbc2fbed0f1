/* SPDX-License-Identifier: Apache-2.0
 *
 * Many texts as tokens: from -p, or from a file whose lines, words or JSON objects they are.
 */
#ifndef QN_CLI_TEXTS_H
#define QN_CLI_TEXTS_H

#include "cli/conversation.h"
#include "cli/lines.h"
#include "cli/shared.h"

typedef enum text_kind { TEXT_LINES, TEXT_WORDS, TEXT_JSON, TEXT_WHOLE } text_kind;

typedef struct text_source {
    const arguments *arguments;
    const loaded *loaded;
    qn_chat *chat; /* NULL where no text is a chat */
    text_kind kind;
    text_lines in;
    size_t word; /* where the next word of the line begins */
    bool read_all;
    size_t longest; /* tokens of a text at most */
} text_source;

typedef struct text_item {
    qn_tokens ids;
    char *custom_id; /* NULL: none */
    char *text;      /* as it was given; NULL: as ids or messages */
} text_item;

/* Zero it before use ({0}). */
typedef struct text_list {
    text_item *items;
    qn_ids *ids; /* [n] */
    size_t n, room, tokens;
} text_list;

/* The kind of FILE's texts, by --split or its name; *kind stays where it is said wrong: false, and
 * a line is printed. */
bool text_kind_of(const arguments *a, const char *command, text_kind *kind);

/* `longest`: a text of more tokens is an error. Close it also where that fails. */
qn_status texts_open(text_source *s, const loaded *l, const arguments *a, text_kind kind,
                     size_t longest, qn_error *err);
void texts_close(text_source *s);

/* Empties the list and reads texts until it has `tokens` or there are no more: then it has none. */
qn_status texts_read(text_source *s, text_list *list, size_t tokens, qn_error *err);
void texts_free(text_list *list);

#endif
