/* SPDX-License-Identifier: Apache-2.0
 *
 * What is made small.
 */
#ifndef QN_TRAIN_LOSS_H
#define QN_TRAIN_LOSS_H

#include "models/decoder.h"
#include "quern/train.h"

/* What is made small, and its numbers. */
typedef struct qn__objective {
    qn_loss kind;
    double beta, label_smoothing;
} qn__objective;

/* What a run tells of a loss: itself and, of preferences, means over pairs. */
enum { QN__LOSS, QN__CHOSEN, QN__REJECTED, QN__ACCURACY, QN__REPORTED };

/* Which rows of [B, L - 1], the tokens but the first ones, are all that a head needs to see, i32
 * [n]: those whose token counts, and some that do not, for a round number. NULL: all are, since
 * they count, or as a packed head's kernel leaves out the others by itself; or memory is short.
 * mask [B, L], or NULL. */
qn_array *qn__rows_that_count(qn_scope *s, const qn__decoder *m, const uint8_t *mask, int64_t rows,
                              int64_t length);

/* The mean of -log p over the tokens i32 [B, L] that count, each given those before it in its row.
 * mask f32 [B, L]: 1 where a token counts, else 0; the first of a row is left out, and that
 * of each text should be. begins i32 [B, L]: where in its row the text that a token is of begins,
 * NULL: a row is one. which: of qn__rows_that_count. loss_only: it is not differentiated. */
qn_array *qn__text_loss(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *mask,
                        qn_array *begins, qn_array *which, bool loss_only);

/* The mean of qn_dpo_loss over pairs of rows, the chosen and the rejected answer, each token's
 * log-probability summed where the mask has 1, of m and of a reference, which is not
 * differentiated. *report receives f32 [QN__REPORTED]. */
qn_array *qn__preference_loss(qn_scope *s, const qn__decoder *m, const qn__decoder *reference,
                              qn_array *tokens, qn_array *mask, const qn__objective *o,
                              bool loss_only, qn_array **report);

#endif
