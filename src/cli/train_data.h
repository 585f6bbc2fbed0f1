/* SPDX-License-Identifier: Apache-2.0
 *
 * What quern train learns from, and what it is judged by.
 */
#ifndef QN_CLI_TRAIN_DATA_H
#define QN_CLI_TRAIN_DATA_H

#include "cli/shared.h"
#include "quern/train.h"

/* Zero it before use ({0}). */
typedef struct train_data {
    qn_chat *chat;
    qn_dataset *train, *valid; /* valid: NULL where there is none */
    int64_t longest_row;       /* that packing fills; 0: a row is a text */
} train_data;

/* Opens what --data says: a file, or a directory with train.jsonl and maybe valid.jsonl. Each line
 * that cannot be used is a line on standard error, and then all are a failure. preferences: lines
 * have two answers. */
qn_status train_data_open(train_data *d, const loaded *l, const arguments *a, bool preferences,
                          qn_error *err);
void train_data_close(train_data *d);

#endif
