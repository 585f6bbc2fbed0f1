/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts in steps: each runs behind what its sequence holds, as many side by side as a step has
 * tokens for, and its rows (of logits or hidden states) come in the order of texts and tokens.
 */
#ifndef QN_GENERATE_FORWARD_H
#define QN_GENERATE_FORWARD_H

#include "generate/model.h"
#include "nn/batch.h"
#include "quern/forward.h"

typedef struct qn__forward {
    const qn_model *model;
    qn_forward_options options;
    bool hidden; /* rows are hidden states, else logits */
    int64_t width, most_rows;
    qn__cache cache;
    qn__batch batch;
    float *rows;          /* [most_rows, width] of the newest step */
    uint64_t done, total; /* tokens, for progress */
} qn__forward;

/* The row of token `at` of a text; it is freed after the call. */
typedef qn_status qn__row_fn(void *user, size_t text, size_t at, const float *row, qn_error *err);

/* Checks n texts, behind each of which `behind` more tokens may come. */
qn_status qn__forward_check(const qn_model *model, const qn_ids *texts, size_t n, size_t behind,
                            const char *what, qn_error *err);

/* room: of the sequences that are there between steps; a step's own tokens come on top. sequences
 * 0: at most one is. On failure, too, qn__forward_end. */
qn_status qn__forward_begin(qn__forward *f, const qn_model *model,
                            const qn_forward_options *options, const qn__cache_room *room,
                            bool hidden, qn_error *err);
void qn__forward_end(qn__forward *f);

/* Runs text i behind sequences[i], which has begun. Rows of all tokens are wanted, or of the last
 * one. `keep`: the sequences go on, else each ends with its text. After a failure they must still
 * be ended. */
qn_status qn__forward_run(qn__forward *f, qn__sequence *sequences, const qn_ids *texts, size_t n,
                          bool all, bool keep, qn__row_fn *row, void *user, qn_error *err);

/* The usual way: texts from their beginnings, none of which stays. */
qn_status qn__forward_texts(const qn_model *model, const qn_ids *texts, size_t n,
                            const qn_forward_options *options, bool hidden, bool all,
                            qn__row_fn *row, void *user, qn_error *err);

#endif
