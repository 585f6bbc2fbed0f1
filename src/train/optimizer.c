/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimisers and clipping, recorded with the public operations: what a parameter needs is
 * elementwise, so the fuser makes passes of it that overwrite donated state.
 */
#include "train/optimizer.h"

#include <math.h>

static qn_array *number(qn_scope *s, double value)
{
    return qn_scalar(s, QN_F32, value);
}

static qn_array *times(qn_scope *s, qn_array *x, double factor)
{
    return qn_multiply(s, x, number(s, factor));
}

/* beta old + (1 - beta) x */
static qn_array *faded(qn_scope *s, qn_array *old, qn_array *x, double beta)
{
    return qn_add(s, times(s, old, beta), times(s, x, 1 - beta));
}

/* g with the gradient of decay p^2 / 2. */
static qn_array *decayed(qn_scope *s, const qn__optimizer *o, qn_array *p, qn_array *g)
{
    return o->decay > 0 ? qn_add(s, g, times(s, p, o->decay)) : g;
}

static void record_adam(qn_scope *s, const qn__optimizer *o, qn_array *const *state, qn_array *g,
                        qn_array **next)
{
    double step = (double)o->step;
    qn_array *m = faded(s, state[1], g, o->beta1);
    qn_array *v = faded(s, state[2], qn_square(s, g), o->beta2);
    qn_array *m_hat = qn_divide(s, m, number(s, 1 - pow(o->beta1, step)));
    qn_array *v_hat = qn_divide(s, v, number(s, 1 - pow(o->beta2, step)));
    qn_array *by = qn_divide(s, m_hat, qn_add(s, qn_sqrt(s, v_hat), number(s, o->eps)));
    qn_array *p = state[0];
    if (o->kind == QN_OPTIMIZER_ADAMW)
        p = times(s, p, 1 - o->learning_rate * o->decay);
    next[0] = qn_subtract(s, p, times(s, by, o->learning_rate));
    next[1] = m;
    next[2] = v;
}

static void record_sgd(qn_scope *s, const qn__optimizer *o, qn_array *const *state, qn_array *g,
                       qn_array **next)
{
    next[1] = qn_add(s, times(s, state[1], o->beta1), g);
    next[0] = qn_subtract(s, state[0], times(s, next[1], o->learning_rate));
}

static void record_lion(qn_scope *s, const qn__optimizer *o, qn_array *const *state, qn_array *g,
                        qn_array **next)
{
    qn_array *by = qn_sign(s, faded(s, state[1], g, o->beta1));
    qn_array *p = times(s, state[0], 1 - o->learning_rate * o->decay);
    next[0] = qn_subtract(s, p, times(s, by, o->learning_rate));
    next[1] = faded(s, state[1], g, o->beta2);
}

int qn__optimizer_arrays(qn_optimizer kind)
{
    return kind == QN_OPTIMIZER_SGD || kind == QN_OPTIMIZER_LION ? 2 : 3;
}

/* Of states in f32. */
static void record(qn_scope *s, const qn__optimizer *o, qn_array *const *state, qn_array *g,
                   qn_array **next)
{
    if (o->kind == QN_OPTIMIZER_LION)
        record_lion(s, o, state, g, next);
    else if (o->kind == QN_OPTIMIZER_SGD)
        record_sgd(s, o, state, decayed(s, o, state[0], g), next);
    else if (o->kind == QN_OPTIMIZER_ADAM)
        record_adam(s, o, state, decayed(s, o, state[0], g), next);
    else
        record_adam(s, o, state, g, next);
}

void qn__optimizer_record(qn_scope *s, const qn__optimizer *o, qn_array *const *state, qn_array *g,
                          qn_array **next)
{
    qn_array *wide[QN__OPTIMIZER_ARRAYS];
    int n = qn__optimizer_arrays(o->kind);
    for (int i = 0; i < n; i++)
        wide[i] = qn_cast(s, state[i], QN_F32);
    record(s, o, wide, g, next);
    for (int i = 0; i < n; i++)
        next[i] = qn_cast(s, next[i], qn_array_dtype(state[i]));
}

qn_array *qn__clip_factor(qn_scope *s, qn_array *const *gradients, int n, double most)
{
    qn_array *sum = number(s, 0);
    for (int i = 0; i < n; i++)
        sum = qn_add(s, sum, qn_sum(s, qn_square(s, gradients[i]), QN_ALL_AXES, false));
    qn_array *norm = qn_add(s, qn_sqrt(s, sum), number(s, 1e-6));
    return qn_minimum(s, qn_divide(s, number(s, most), norm), number(s, 1));
}
