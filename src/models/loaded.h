/* SPDX-License-Identifier: Apache-2.0
 *
 * What a loaded model (src/generate/model.h) is to the layers that do not run it by sessions.
 */
#ifndef QN_MODELS_LOADED_H
#define QN_MODELS_LOADED_H

#include "models/decoder.h"
#include "quern/model.h"

/* Another reference; qn_model_close gives it up. */
qn_model *qn__model_retain(qn_model *m);

qn_device *qn__model_device(const qn_model *m);
const qn__decoder *qn__model_decoder(const qn_model *m);

#endif
