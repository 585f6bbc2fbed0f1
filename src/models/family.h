/* SPDX-License-Identifier: Apache-2.0
 *
 * Model families: what a family file provides, and the list of them.
 */
#ifndef QN_MODELS_FAMILY_H
#define QN_MODELS_FAMILY_H

#include "base/json.h"
#include "models/decoder.h"

/* The configuration may be nested in another one (text_config); configure is given config.json's
 * root. */
typedef struct qn__family {
    const char *model_type; /* of config.json */
    qn_status (*configure)(const qn__json_at *config, qn__decoder_config *out, qn_error *err);
} qn__family;

/* The families of models.def; ends with a NULL. */
extern const qn__family *const qn__families[];

/* Reads what all decoders share: sizes, heads, norm, tie; checks that they fit each other. What
 * *out holds before is the family's default; where that is zero, the sizes that have no default
 * elsewhere are required. */
qn_status qn__config_common(const qn__json_at *config, qn__decoder_config *out, qn_error *err);

/* Reads the checkpoint's type where config names one; qn__config_common does. */
void qn__config_dtype(const qn__json_at *config, qn__decoder_config *out);

/* Reads rope_theta with rope_scaling, else rope_parameters, into *rope; `positions` is
 * max_position_embeddings. */
qn_status qn__config_rope(const qn__json_at *config, double default_theta, int64_t positions,
                          qn__rope_config *rope, qn_error *err);

/* Reads one such object: rope_theta and the scaling. *rope holds the defaults, and
 * original_positions where they are given beside the object. */
qn_status qn__config_rope_object(const qn__json_at *object, int64_t positions,
                                 qn__rope_config *rope, qn_error *err);

/* A number that null switches off: *out keeps what it holds where `key` is absent, null makes it 0.
 */
qn_status qn__config_nullable(const qn__json_at *config, const char *key, double least, double most,
                              double *out, qn_error *err);

/* Reads sliding_window (`absent` where it is not there, null: none) and layer_types; where these
 * are missing, what out->layer holds stays. Without a window no layer slides. */
qn_status qn__config_sliding(const qn__json_at *config, int64_t absent, qn__decoder_config *out,
                             qn_error *err);

/* use_sliding_window, sliding_window and max_window_layers, as the Qwens spell them. */
qn_status qn__config_qwen_sliding(const qn__json_at *config, qn__decoder_config *out,
                                  qn_error *err);

/* Reads a quantization_config whose quant_method is "bitnet", of any family's. */
qn_status qn__config_ternary(const qn__json_at *quantization, qn__decoder_config *out,
                             qn_error *err);

/* What the Gemmas share. */
qn_status qn__config_gemma(const qn__json_at *config, qn__decoder_config *out, qn_error *err);

/* Fails unless config[key] is absent, null or one of the names (a NULL-ended list). */
qn_status qn__config_one_of(const qn__json_at *config, const char *key, const char *const *names,
                            qn_error *err);

/* "silu" by either of its names, for qn__config_one_of. */
extern const char *const qn__names_of_silu[];

/* Fails where config[key] is there and neither null nor false. */
qn_status qn__config_absent(const qn__json_at *config, const char *key, qn_error *err);

#endif
