/* SPDX-License-Identifier: Apache-2.0
 *
 * Masked cross-entropy of a decoder.
 */
#include "train/loss.h"

/* Of each row all but the first. */
static qn_array *behind_first(qn_scope *s, qn_array *x)
{
    return qn_slice(s, x, 1, 1, INT64_MAX, 1);
}

qn_array *qn__text_loss(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *mask)
{
    qn_array *read = qn_slice(s, tokens, 1, 0, -1, 1); /* nothing stands behind the last */
    qn_array *hidden = qn__decoder_hidden(s, m, read, NULL, NULL);
    qn_array *logits = qn__decoder_logits(s, m, hidden); /* [B, L - 1, V] */
    qn_array *each = qn_cross_entropy(s, logits, behind_first(s, tokens));
    qn_array *counts = behind_first(s, mask);
    qn_array *sum = qn_sum(s, qn_multiply(s, each, counts), QN_ALL_AXES, false);
    return qn_divide(s, sum, qn_sum(s, counts, QN_ALL_AXES, false));
}
