/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama 3.x and models of its shape (SmolLM, R1-distilled Llama): pre-norm, SwiGLU, grouped
 * queries. Reference: transformers' LlamaConfig.
 */
#include "models/family.h"

static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    bool bias = false;
    if (qn__config_common(config, out, err) != QN_OK ||
        qn__config_rope(config, 10000, out->max_positions, &out->rope, err) != QN_OK ||
        qn__config_one_of(config, "hidden_act", qn__names_of_silu, err) != QN_OK ||
        qn__json_opt_bool(config, "attention_bias", &bias, err) != QN_OK ||
        qn__json_opt_bool(config, "mlp_bias", &out->mlp_bias, err) != QN_OK)
        return err->code;
    out->qkv_bias = out->output_bias = bias;
    return QN_OK;
}

const qn__family qn__family_llama = {.model_type = "llama", .configure = configure};
