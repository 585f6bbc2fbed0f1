/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning rates by step: those of transformers' get_constant_, get_polynomial_decay_ (power 1) and
 * get_cosine_with_min_lr_schedule_with_warmup.
 */
#include "base/sized.h"
#include "quern/train.h"

#include <math.h>

double qn_schedule_rate(const qn_schedule *given, int64_t step)
{
    qn_schedule o;
    if (qn__sized_in(&o, sizeof o, given, "qn_schedule", NULL) != QN_OK)
        return NAN;
    if (step < o.warmup)
        return o.learning_rate * (double)step / (double)o.warmup;
    if (o.kind == QN_SCHEDULE_CONSTANT)
        return o.learning_rate;
    double length = (double)(o.steps > o.warmup ? o.steps - o.warmup : 1);
    double done = fmin((double)(step - o.warmup) / length, 1);
    double left = o.kind == QN_SCHEDULE_LINEAR ? 1 - done : (1 + cos(acos(-1) * done)) / 2;
    return o.end + (o.learning_rate - o.end) * left;
}
