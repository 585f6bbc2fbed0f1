/* SPDX-License-Identifier: Apache-2.0
 *
 * Masked cross-entropy of a decoder, and preferences, which are sums of it.
 */
#include "train/loss.h"

/* Of each row all but the first. */
static qn_array *behind_first(qn_scope *s, qn_array *x)
{
    return qn_slice(s, x, 1, 1, INT64_MAX, 1);
}

/* -log p of each token but the rows' first ones, times counts [B, L - 1], of that shape. */
static qn_array *token_losses(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *counts,
                              qn_array *begins, bool loss_only)
{
    qn__decoder in_rows = *m;
    qn_array *read = qn_slice(s, tokens, 1, 0, -1, 1); /* nothing stands behind the last */
    in_rows.begins = begins ? qn_slice(s, begins, 1, 0, -1, 1) : NULL;
    qn_array *hidden = qn__decoder_hidden(s, &in_rows, read, NULL, NULL);
    if (m->head_order)
        hidden = qn_take(s, hidden, m->head_order, -1);
    qn_linear_cross_entropy_options o = {.size = sizeof o,
                                         .softcap = (float)m->config.logit_cap,
                                         .products = m->products,
                                         .weights = counts,
                                         .loss_only = loss_only};
    return qn_linear_cross_entropy(s, hidden, m->config.tied ? m->embedding : m->head,
                                   behind_first(s, tokens), &o);
}

qn_array *qn__text_loss(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *mask,
                        qn_array *begins, bool loss_only)
{
    qn_array *counts = behind_first(s, mask);
    qn_array *each = token_losses(s, m, tokens, counts, begins, loss_only);
    qn_array *sum = qn_sum(s, each, QN_ALL_AXES, false);
    return qn_divide(s, sum, qn_sum(s, counts, QN_ALL_AXES, false));
}

/* ---- preferences ----------------------------------------------------------------------------- */

/* The log-probabilities of the answers, the chosen ones' [n] and the rejected ones'. */
static void answers(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *counts,
                    bool loss_only, qn_array *out[2])
{
    qn_array *each = token_losses(s, m, tokens, counts, NULL, loss_only);
    qn_array *rows = qn_negative(s, qn_sum(s, each, -1, false));
    for (int i = 0; i < 2; i++)
        out[i] = qn_slice(s, rows, 0, i, INT64_MAX, 2);
}

static qn_array *mean(qn_scope *s, qn_array *x)
{
    return qn_mean(s, x, QN_ALL_AXES, false);
}

qn_array *qn__preference_loss(qn_scope *s, const qn__decoder *m, const qn__decoder *reference,
                              qn_array *tokens, qn_array *mask, const qn__objective *o,
                              bool loss_only, qn_array **report)
{
    qn_array *now[2], *before[2], *reward[2], *beta = qn_scalar(s, QN_F32, o->beta);
    qn_array *counts = behind_first(s, mask);
    answers(s, reference, tokens, counts, true, before);
    answers(s, m, tokens, counts, loss_only, now);
    for (int i = 0; i < 2; i++) {
        before[i] = qn_stop_gradient(s, before[i]);
        reward[i] = qn_multiply(s, beta, qn_subtract(s, now[i], before[i]));
    }
    qn_array *loss =
        mean(s, qn_dpo_loss(s, now[0], now[1], before[0], before[1], o->beta, o->label_smoothing));
    qn_array *right = qn_cast(s, qn_greater(s, reward[0], reward[1]), QN_F32);
    qn_array *parts[QN__REPORTED] = {loss, mean(s, reward[0]), mean(s, reward[1]), mean(s, right)};
    *report = qn_stack(s, parts, QN__REPORTED, 0);
    return loss;
}
