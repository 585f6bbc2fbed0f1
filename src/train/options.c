/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trainer is told: defaults, ranges, and what excludes what.
 */
#include "train/options.h"

#include "base/error.h"
#include "base/sized.h"
#include "models/adapter.h"

#include <math.h>

static double or_default(double value, double otherwise)
{
    return value == 0 ? otherwise : value;
}

bool qn__is_learning_rate(double value)
{
    return value >= 0 && value <= 1e3;
}

/* Options of adapters, of which full training has none. */
static qn_status check_full(const qn_trainer_options *o, qn_error *err)
{
    const char *name = o->rank             ? "rank"
                       : o->alpha != 0     ? "alpha"
                       : o->n_targets      ? "targets"
                       : o->adapter        ? "adapter"
                       : o->num_layers > 0 ? "num_layers"
                       : o->dropout != 0   ? "dropout"
                       : o->adapter_bf16   ? "adapter_bf16"
                       : o->adapter_format ? "adapter_format"
                                           : NULL;
    return name ? qn__fail(err, QN_INVALID,
                           "qn_trainer_options.%s is of adapters, and with .full there is none",
                           name)
                : QN_OK;
}

static qn_status check_options(const qn_trainer_options *o, qn_error *err)
{
    if (o->rank < 1 || o->rank > QN__MOST_RANK)
        return qn__fail(err, QN_INVALID, "rank %lld; it is 1 to %d", (long long)o->rank,
                        QN__MOST_RANK);
    if ((unsigned)o->optimizer >= QN_OPTIMIZER_COUNT)
        return qn__fail(err, QN_INVALID, "there is no optimizer %d", (int)o->optimizer);
    if ((unsigned)o->loss >= QN_LOSS_COUNT)
        return qn__fail(err, QN_INVALID, "there is no loss %d", (int)o->loss);
    if ((unsigned)o->adapter_format >= QN_ADAPTER_FORMAT_COUNT)
        return qn__fail(err, QN_INVALID, "there is no format %d", (int)o->adapter_format);
    bool plain = o->optimizer == QN_OPTIMIZER_SGD && o->beta1 == 0;
    const struct {
        const char *name;
        double value;
        bool fits;
    } numbers[] = {{"alpha", o->alpha, o->alpha >= 1e-6 && o->alpha <= 1e6},
                   {"learning_rate", o->learning_rate, qn__is_learning_rate(o->learning_rate)},
                   {"num_layers", (double)o->num_layers, o->num_layers >= 0},
                   {"beta1", o->beta1, plain || (o->beta1 > 0 && o->beta1 < 1)},
                   {"beta2", o->beta2, o->beta2 > 0 && o->beta2 < 1},
                   {"eps", o->eps, o->eps > 0 && o->eps <= 1},
                   {"weight_decay", o->weight_decay, o->weight_decay <= 1e3},
                   {"clip", o->clip, o->clip >= 0 && isfinite(o->clip)},
                   {"dropout", o->dropout, o->dropout >= 0 && o->dropout < 1},
                   {"beta", o->beta, o->beta > 0 && o->beta <= 1e6},
                   {"label_smoothing", o->label_smoothing,
                    o->label_smoothing >= 0 && o->label_smoothing <= 0.5}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!numbers[i].fits)
            return qn__fail(err, QN_INVALID, "qn_trainer_options.%s is %g, out of its range",
                            numbers[i].name, numbers[i].value);
    return QN_OK;
}

qn_status qn__trainer_options_read(qn_trainer_options *o, const qn_trainer_options *given,
                                   qn_error *err)
{
    if (qn__sized_in(o, sizeof *o, given, "qn_trainer_options", err) != QN_OK)
        return err->code;
    if (o->full && check_full(o, err) != QN_OK)
        return err->code;
    o->rank = o->rank ? o->rank : 8;
    o->alpha = or_default(o->alpha, 2 * (double)o->rank);
    o->learning_rate = or_default(o->learning_rate, 1e-5);
    o->beta1 = or_default(o->beta1, 0.9);
    if (o->optimizer == QN_OPTIMIZER_SGD && o->beta1 < 0)
        o->beta1 = 0;
    o->beta2 = or_default(o->beta2, o->optimizer == QN_OPTIMIZER_LION ? 0.99 : 0.999);
    o->eps = or_default(o->eps, 1e-8);
    o->weight_decay = or_default(o->weight_decay, o->optimizer == QN_OPTIMIZER_ADAMW ? 0.01 : -1);
    if (o->loss == QN_LOSS_CROSS_ENTROPY && (o->beta != 0 || o->label_smoothing != 0))
        return qn__fail(err, QN_INVALID, "qn_trainer_options.%s is of QN_LOSS_DPO",
                        o->beta != 0 ? "beta" : "label_smoothing");
    o->beta = or_default(o->beta, 0.1);
    return check_options(o, err);
}
