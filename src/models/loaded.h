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

/* Where it has a directory of Hugging Face's: that, and its config.json; else NULL. */
const char *qn__model_directory(const qn_model *m);
const char *qn__model_config_path(const qn_model *m);

/* What keys and values of tokens that run with an adapter depend on, as one number; 0: with none.
 * (src/generate/fingerprint.c) */
qn_status qn__model_fingerprint(const qn_model *model, int32_t adapter, uint64_t *out,
                                qn_error *err);

#endif
