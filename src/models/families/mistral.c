/* SPDX-License-Identifier: Apache-2.0
 *
 * Mistral: a Llama in which every layer may see a window of the newest positions only.
 * Reference: transformers' MistralConfig.
 */
#include "models/family.h"

static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    out->n_kv_heads = 8;
    out->max_positions = 131072;
    if (qn__config_common(config, out, err) != QN_OK ||
        qn__config_rope(config, 10000, out->max_positions, &out->rope, err) != QN_OK ||
        qn__config_one_of(config, "hidden_act", qn__names_of_silu, err) != QN_OK ||
        qn__config_absent(config, "layer_types", err) != QN_OK)
        return err->code;
    for (int i = 0; i < out->n_layers; i++)
        out->layer[i].sliding = true;
    return qn__config_sliding(config, 4096, out, err);
}

const qn__family qn__family_mistral = {.model_type = "mistral", .configure = configure};
