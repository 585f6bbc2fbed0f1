/* SPDX-License-Identifier: Apache-2.0
 *
 * The texts that are trained on, as tokens.
 */
#ifndef QN_CLI_TRAIN_DATA_H
#define QN_CLI_TRAIN_DATA_H

#include "cli/shared.h"

/* Zero it before use ({0}). */
typedef struct train_data {
    qn_tokens *texts;
    size_t n, room;
} train_data;

/* Reads JSON Lines of objects with "text"; each that cannot be used is a line on standard error,
 * and then all are a failure. `longest`: tokens of a text at most. */
qn_status train_data_read(train_data *d, const arguments *a, const qn_tokenizer *tokenizer,
                          size_t longest, qn_error *err);
void train_data_free(train_data *d);

#endif
