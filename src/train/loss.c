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

qn_array *qn__text_loss(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *mask,
                        qn_array *begins, bool loss_only)
{
    qn__decoder in_rows = *m;
    qn_array *read = qn_slice(s, tokens, 1, 0, -1, 1); /* nothing stands behind the last */
    in_rows.begins = begins ? qn_slice(s, begins, 1, 0, -1, 1) : NULL;
    qn_array *hidden = qn__decoder_hidden(s, &in_rows, read, NULL, NULL);
    qn_array *counts = behind_first(s, mask);
    if (m->head_order)
        hidden = qn_take(s, hidden, m->head_order, -1);
    qn_linear_cross_entropy_options o = {.size = sizeof o,
                                         .softcap = (float)m->config.logit_cap,
                                         .products = m->products,
                                         .weights = counts,
                                         .loss_only = loss_only};
    qn_array *each = qn_linear_cross_entropy(s, hidden, m->config.tied ? m->embedding : m->head,
                                             behind_first(s, tokens), &o);
    qn_array *sum = qn_sum(s, each, QN_ALL_AXES, false);
    return qn_divide(s, sum, qn_sum(s, counts, QN_ALL_AXES, false));
}
