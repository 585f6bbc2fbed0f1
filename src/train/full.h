/* SPDX-License-Identifier: Apache-2.0
 *
 * Full training: all parameters of a dense model, in f32.
 */
#ifndef QN_TRAIN_FULL_H
#define QN_TRAIN_FULL_H

#include "models/loaded.h"
#include "train/trained.h"

/* Lists the model's parameters with their values, and where `own`, a copy of its decoder with
 * layers of its own, takes them. QN_UNSUPPORTED: they are no plain numbers, or what is saved would
 * be no whole model. The model is borrowed. */
qn_status qn__full_begin(qn__trained **out, const qn_model *model, qn__decoder *own,
                         const qn_trainer_options *options, qn_error *err);

bool qn__is_full_file(const char *name);

#endif
