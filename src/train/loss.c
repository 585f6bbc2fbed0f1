/* SPDX-License-Identifier: Apache-2.0
 *
 * Masked cross-entropy of a decoder, and preferences, which are sums of it.
 */
#include "train/loss.h"

#include "core/scope.h"

#include <stdlib.h>

/* Of each row all but the first. */
static qn_array *behind_first(qn_scope *s, qn_array *x)
{
    return qn_slice(s, x, 1, 1, INT64_MAX, 1);
}

static qn_array *head_of(const qn__decoder *m)
{
    return m->config.tied ? m->embedding : m->head;
}

/* ---- which rows ------------------------------------------------------------------------------ */

enum { ROWS_STEP = 64 }; /* lists of rows are of multiples of it, for fewer plans */

qn_array *qn__rows_that_count(qn_scope *s, const qn__decoder *m, const uint8_t *mask, int64_t rows,
                              int64_t length)
{
    int64_t n = 0, idle = 0, all = rows * (length - 1);
    int32_t *which = mask && !head_of(m)->layout ? malloc((size_t)all * sizeof *which) : NULL;
    if (!which)
        return NULL;
    for (int64_t i = 0; i < all; i++)
        if (mask[i / (length - 1) * length + i % (length - 1) + 1])
            which[n++] = (int32_t)i;
        else
            idle = i;
    int64_t listed = (n + ROWS_STEP - 1) / ROWS_STEP * ROWS_STEP;
    for (; n < listed && n < all; n++)
        which[n] = (int32_t)idle;
    qn_array *a = listed < all ? qn_from_i32(s, which, listed) : NULL;
    free(which);
    return a;
}

/* Of x [B, L - 1, ...] the rows in `which`, [n, ...]. NULL: x. */
static qn_array *of_rows(qn_scope *s, qn_array *x, qn_array *which)
{
    if (!which || qn__is_poison(s, x))
        return x;
    int64_t flat[] = {-1, x->shape[x->ndim - 1]};
    return qn_take(s, qn_reshape(s, x, x->ndim - 1, flat), which, 0);
}

/* -log p of each token but the rows' first ones, times counts [B, L - 1], of that shape; or of the
 * rows in `which`. */
static qn_array *token_losses(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *counts,
                              qn_array *begins, qn_array *which, bool loss_only)
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
                                         .weights = of_rows(s, counts, which),
                                         .loss_only = loss_only};
    return qn_linear_cross_entropy(s, of_rows(s, hidden, which), head_of(m),
                                   of_rows(s, behind_first(s, tokens), which), &o);
}

qn_array *qn__text_loss(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *mask,
                        qn_array *begins, qn_array *which, bool loss_only)
{
    qn_array *counts = behind_first(s, mask);
    qn_array *each = token_losses(s, m, tokens, counts, begins, which, loss_only);
    qn_array *sum = qn_sum(s, each, QN_ALL_AXES, false);
    return qn_divide(s, sum, qn_sum(s, counts, QN_ALL_AXES, false));
}

/* ---- preferences ----------------------------------------------------------------------------- */

/* The log-probabilities of the answers, the chosen ones' [n] and the rejected ones'. */
static void answers(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn_array *counts,
                    bool loss_only, qn_array *out[2])
{
    qn_array *each = token_losses(s, m, tokens, counts, NULL, NULL, loss_only);
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
