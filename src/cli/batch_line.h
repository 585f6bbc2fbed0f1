/* SPDX-License-Identifier: Apache-2.0
 *
 * One line of a batch: what is to be generated, and how.
 */
#ifndef QN_CLI_BATCH_LINE_H
#define QN_CLI_BATCH_LINE_H

#include "cli/conversation.h"

typedef struct batch_line {
    arguments arguments; /* the command's, but for what the line says instead */
    qn_tokens ids;
    char *custom_id; /* NULL: none */
    cJSON *tree;     /* lends texts to the arguments */
    char *variables[MOST_TEMPLATE_VARS];
    int64_t top_logprobs; /* -1: not said */
} batch_line;

/* What all lines have in common. */
typedef struct batch_model {
    const qn_tokenizer *tokenizer;
    const qn_chat *chat;
    const arguments *arguments;
} batch_model;

/* Line `number` of the input, the `index`-th that is not blank. A line that gives no seed draws
 * with the command's (or 0) plus its index. On failure, too, batch_line_free; custom_id is there as
 * soon as it could be read. */
qn_status batch_line_read(batch_line *l, const batch_model *model, const qn_text *text,
                          uint64_t number, uint64_t index, qn_error *err);
void batch_line_free(batch_line *l);

#endif
