/* SPDX-License-Identifier: Apache-2.0
 *
 * What is made small.
 */
#ifndef QN_TRAIN_LOSS_H
#define QN_TRAIN_LOSS_H

#include "models/decoder.h"

/* The mean of -log p over the tokens i32 [B, L] that count, each given those before it in its row.
 * mask f32 [B, L]: 1 where a token counts, else 0; the first of a row is left out, and that
 * of each text should be. begins i32 [B, L]: where in its row the text that a token is of begins,
 * NULL: a row is one. loss_only: it is not differentiated. */
qn_array *qn__text_loss(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *mask,
                        qn_array *begins, bool loss_only);

#endif
