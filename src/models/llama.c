/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama 3.x and models of its shape (SmolLM, R1-distilled Llama): pre-norm, SwiGLU, grouped queries.
 * Reference: transformers' LlamaConfig.
 */
#include "models/family.h"

static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    static const char *const activations[] = {"silu", "swish", NULL};
    qn_status status = qn__config_common(config, out, err);
    if (status == QN_OK)
        status = qn__config_rope(config, 10000, out, err);
    if (status == QN_OK)
        status = qn__config_one_of(config, "hidden_act", activations, err);
    bool bias = false, mlp_bias = false;
    if (status == QN_OK)
        status = qn__json_opt_bool(config, "attention_bias", &bias, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(config, "mlp_bias", &mlp_bias, err);
    out->qkv_bias = out->output_bias = bias;
    out->mlp_bias = mlp_bias;
    return status;
}

const qn__family qn__family_llama = {
    .model_type = "llama", .prefix = "model.", .configure = configure};
