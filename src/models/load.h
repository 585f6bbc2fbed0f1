/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading a decoder from a Hugging Face model directory or a GGUF file.
 */
#ifndef QN_MODELS_LOAD_H
#define QN_MODELS_LOAD_H

#include "models/decoder.h"
#include "models/random_weights.h"
#include "models/source.h"

/* Called on the caller's thread as weights arrive, with bytes done and in all; returning false
 * cancels the load. */
typedef bool qn__load_progress(void *user, uint64_t done, uint64_t total);

/* Reads all weights onto the device; opens the source's tensors where they are not. A configuration
 * that lacks model_type is told from the weights' names. progress may be NULL. */
qn_status qn__decoder_load_source(qn__decoder *m, qn_device *device, qn__source *source,
                                  qn__load_progress *progress, void *user, qn_error *err);

/* The same as far as headers go: checks every tensor, reads none. */
qn_status qn__decoder_describe_source(qn__decoder *m, qn_device *device, qn__source *source,
                                      qn_error *err);

/* Gives the decoder that the source's configuration describes weights made up in memory, of the
 * encodings that *weights names. A row that their blocks do not divide is QN_UNSUPPORTED. */
qn_status qn__decoder_load_random(qn__decoder *m, qn_device *device, qn__source *source,
                                  qn__random_weights *weights, qn_error *err);

/* Opens the source of that path for it alone. */
qn_status qn__decoder_load(qn__decoder *m, qn_device *device, const char *path,
                           qn__load_progress *progress, void *user, qn_error *err);

#endif
