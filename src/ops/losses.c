/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses that are compositions: they are small beside what makes their arguments.
 */
#include "ops/ops.h"

/* n arguments become the scope's; they must be floats of one shape. */
static bool take_alike(qn_scope *s, const char *name, qn_array **x, int n)
{
    for (int i = 0; i < n; i++) {
        x[i] = qn__input(s, x[i], name);
        if (!x[i])
            return false;
        if (!qn__same_shape(x[i], x[0]) || !qn__is_float((qn_dtype)x[i]->dtype)) {
            qn__op_fail(s, name, x[0], x[i], "floats of one shape are wanted");
            return false;
        }
    }
    return true;
}

qn_array *qn_mse_loss(qn_scope *s, qn_array *x, qn_array *target)
{
    qn_array *in[] = {x, target};
    if (!take_alike(s, "mse_loss", in, 2))
        return qn__poison(s);
    return qn_mean(s, qn_square(s, qn_subtract(s, in[0], in[1])), QN_ALL_AXES, false);
}

/* p log p, 0 where p is: there the logarithm is of something else, so that no derivative has a
 * NaN. */
static qn_array *times_log(qn_scope *s, qn_array *p)
{
    qn_array *zero = qn__scalar_like(s, p, 0), *is_zero = qn_equal(s, p, zero);
    qn_array *log = qn_log(s, qn_where(s, is_zero, qn__scalar_like(s, p, 1), p));
    return qn_where(s, is_zero, zero, qn_multiply(s, p, log));
}

qn_array *qn_kl_div(qn_scope *s, qn_array *log_q, qn_array *p, bool log_target)
{
    qn_array *in[] = {log_q, p};
    if (!take_alike(s, "kl_div", in, 2))
        return qn__poison(s);
    if (in[0]->ndim < 1)
        return qn__op_fail(s, "kl_div", in[0], in[1], "one axis at least is summed over");
    qn_array *each = log_target ? qn_multiply(s, qn_exp(s, in[1]), qn_subtract(s, in[1], in[0]))
                                : qn_subtract(s, times_log(s, in[1]), qn_multiply(s, in[1], in[0]));
    return qn_sum(s, each, -1, false);
}

qn_array *qn_dpo_loss(qn_scope *s, qn_array *chosen, qn_array *rejected, qn_array *ref_chosen,
                      qn_array *ref_rejected, double beta, double label_smoothing)
{
    qn_array *in[] = {chosen, rejected, ref_chosen, ref_rejected};
    if (!take_alike(s, "dpo_loss", in, 4))
        return qn__poison(s);
    if (!(beta > 0) || !(label_smoothing >= 0 && label_smoothing <= 0.5))
        return qn__scope_fail(s, QN_INVALID,
                              "dpo_loss: beta %g and label_smoothing %g; above 0, and 0 to 0.5, "
                              "are wanted",
                              beta, label_smoothing);
    qn_array *by = qn_subtract(s, qn_subtract(s, in[0], in[2]), qn_subtract(s, in[1], in[3]));
    if (qn__is_poison(s, by))
        return by;
    qn_array *h = qn_multiply(s, by, qn__scalar_like(s, by, beta));
    qn_array *right = qn_softplus(s, qn_negative(s, h)); /* -log sigmoid(h) */
    if (label_smoothing == 0)
        return right;
    return qn_add(s, qn_multiply(s, right, qn__scalar_like(s, by, 1 - label_smoothing)),
                  qn_multiply(s, qn_softplus(s, h), qn__scalar_like(s, by, label_smoothing)));
}

qn_array *qn_masked_mean(qn_scope *s, qn_array *x, qn_array *mask)
{
    x = qn__input(s, x, "masked_mean");
    mask = x ? qn__input(s, mask, "masked_mean") : NULL;
    if (!mask)
        return qn__poison(s);
    if (!qn__same_shape(x, mask) || !qn__is_float((qn_dtype)x->dtype))
        return qn__op_fail(s, "masked_mean", x, mask,
                           "floats and a mask of their shape are wanted");
    qn_array *counts = qn_cast(s, mask, (qn_dtype)x->dtype);
    qn_array *sum = qn_sum(s, qn_multiply(s, x, counts), QN_ALL_AXES, false);
    return qn_divide(s, sum, qn_sum(s, counts, QN_ALL_AXES, false));
}
