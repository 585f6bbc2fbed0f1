/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalisation along the last axis: rms_norm (arXiv:1910.07467) and layer_norm (arXiv:1607.06450).
 * Both are computed in f32 (f64 for f64) and rounded to x's type at the end.
 */
#include "ops/ops.h"

static bool fits_last(const qn_array *x, const qn_array *w)
{
    return !w || (w->ndim == 1 && w->shape[0] == x->shape[x->ndim - 1]);
}

/* Records `op` on x, weight, bias, the last two optional, all in the compute type. */
static qn_array *record_norm(qn_scope *s, qn__op_id op, qn_array *x, qn_array *weight,
                             qn_array *bias, float eps)
{
    const char *name = qn__ops[op]->name;
    x = qn__input(s, x, name);
    if (!x)
        return qn__poison(s);
    if (!x->ndim || (weight && !(weight = qn__input(s, weight, name))) ||
        (bias && !(bias = qn__input(s, bias, name))))
        return qn__op_fail(s, name, x, NULL, "there is no last axis");
    if (!fits_last(x, weight) || !fits_last(x, bias))
        return qn__op_fail(s, name, x, fits_last(x, weight) ? bias : weight,
                           "weight and bias must be as long as the last axis");
    qn_dtype type = (qn_dtype)x->dtype, compute = qn__dtype_compute(type);
    if (!qn__is_float(type))
        type = compute = QN_F32;
    qn__norm_params params = {eps, weight != NULL, bias != NULL};
    qn_array *in[3] = {qn_contiguous(s, qn_cast(s, x, compute))};
    int n = 1;
    if (weight)
        in[n++] = qn_contiguous(s, qn_cast(s, weight, compute));
    if (bias)
        in[n++] = qn_contiguous(s, qn_cast(s, bias, compute));
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn_cast(s, qn__record(s, op, compute, x->ndim, x->shape, n, in, &params), type);
}

qn_array *qn_rms_norm(qn_scope *s, qn_array *x, qn_array *weight, float eps)
{
    return record_norm(s, QN__OP_RMS_NORM, x, weight, NULL, eps);
}

qn_array *qn_layer_norm(qn_scope *s, qn_array *x, qn_array *weight, qn_array *bias, float eps)
{
    return record_norm(s, QN__OP_LAYER_NORM, x, weight, bias, eps);
}

static qn_array *scale_and_shift(qn_scope *s, const qn_array *node, qn_array *y)
{
    const qn__norm_params *p = node->params;
    if (p->has_weight)
        y = qn_multiply(s, y, node->in[1]);
    return p->has_bias ? qn_add(s, y, node->in[1 + p->has_weight]) : y;
}

/* x / sqrt(mean(x^2) + eps) */
static qn_array *over_rms(qn_scope *s, qn_array *x, float eps)
{
    qn_array *mean = qn_mean(s, qn_square(s, x), -1, true);
    if (qn__is_poison(s, mean))
        return mean;
    return qn_divide(s, x, qn_sqrt(s, qn_add(s, mean, qn__scalar_like(s, mean, eps))));
}

static qn_array *decompose_rms_norm(qn_scope *s, const qn_array *node)
{
    const qn__norm_params *p = node->params;
    return scale_and_shift(s, node, over_rms(s, node->in[0], p->eps));
}

static qn_array *decompose_layer_norm(qn_scope *s, const qn_array *node)
{
    const qn__norm_params *p = node->params;
    qn_array *x = node->in[0];
    qn_array *centred = qn_subtract(s, x, qn_mean(s, x, -1, true));
    return scale_and_shift(s, node, over_rms(s, centred, p->eps));
}

const qn__op_def qn__rms_norm_op = {.name = "rms_norm",
                                    .class = QN__KERNEL,
                                    .stage = QN__STAGE_PROLOGUE,
                                    .params_size = sizeof(qn__norm_params),
                                    .decompose = decompose_rms_norm};
const qn__op_def qn__layer_norm_op = {.name = "layer_norm",
                                      .class = QN__KERNEL,
                                      .stage = QN__STAGE_PROLOGUE,
                                      .params_size = sizeof(qn__norm_params),
                                      .decompose = decompose_layer_norm};
