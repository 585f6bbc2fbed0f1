/* SPDX-License-Identifier: Apache-2.0
 *
 * Model families: what a family file provides, and the list of them.
 */
#ifndef QN_MODELS_FAMILY_H
#define QN_MODELS_FAMILY_H

#include "base/json.h"
#include "models/decoder.h"

typedef struct qn__family {
    const char *model_type; /* of config.json */
    const char *prefix;     /* of its weights' names */
    qn_status (*configure)(const qn__json_at *config, qn__decoder_config *out, qn_error *err);
} qn__family;

/* The families of models.def; ends with a NULL. */
extern const qn__family *const qn__families[];

/* Reads what all decoders share: sizes, heads, norm, tie; checks that they fit each other. */
qn_status qn__config_common(const qn__json_at *config, qn__decoder_config *out, qn_error *err);

/* Reads rope_theta with rope_scaling, or rope_parameters, into out->rope. */
qn_status qn__config_rope(const qn__json_at *config, double default_theta, qn__decoder_config *out,
                          qn_error *err);

/* Fails unless config[key] is absent, null or one of the names (a NULL-ended list). */
qn_status qn__config_one_of(const qn__json_at *config, const char *key, const char *const *names,
                            qn_error *err);

#endif
