/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trainer is told.
 */
#ifndef QN_TRAIN_OPTIONS_H
#define QN_TRAIN_OPTIONS_H

#include "quern/train.h"

/* Those given, or NULL, with the defaults in the place of zeros; QN_INVALID names what is out of
 * its range, or does not go with another. */
qn_status qn__trainer_options_read(qn_trainer_options *o, const qn_trainer_options *given,
                                   qn_error *err);

bool qn__is_learning_rate(double value);

#endif
