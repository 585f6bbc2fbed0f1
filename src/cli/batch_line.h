/* SPDX-License-Identifier: Apache-2.0
 *
 * One line of a batch: what is to be generated, and how.
 */
#ifndef QN_CLI_BATCH_LINE_H
#define QN_CLI_BATCH_LINE_H

#include "cli/conversation.h"

typedef struct batch_line {
    arguments arguments;   /* the command's, with the line's variables of templates */
    qn__settings settings; /* the line's */
    qn_tokens ids;
    char *custom_id; /* NULL: none */
    cJSON *tree;
    qn__json_at body, prompt, messages, tools; /* while it is read; node NULL: absent */
    char *variables[MOST_TEMPLATE_VARS];
} batch_line;

/* What all lines have in common. */
typedef struct batch_model {
    const qn_tokenizer *tokenizer;
    const qn_chat *chat;
    const arguments *arguments;
    int64_t vocab_size;
} batch_model;

/* Line `number` of the input. On failure, too, batch_line_free; custom_id is there as soon as it
 * could be read. */
qn_status batch_line_read(batch_line *l, const batch_model *model, const qn_text *text,
                          uint64_t number, qn_error *err);
void batch_line_free(batch_line *l);

#endif
