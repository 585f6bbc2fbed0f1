/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen 3, dense: a Llama whose queries and keys are normalised head by head.
 * Reference: transformers' Qwen3Config.
 */
#include "models/family.h"

static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    bool bias = false;
    out->qk_norm = true;
    out->head_dim = 128;
    out->max_positions = 32768;
    if (qn__config_common(config, out, err) != QN_OK ||
        qn__config_rope(config, 10000, out->max_positions, &out->rope, err) != QN_OK ||
        qn__config_one_of(config, "hidden_act", qn__names_of_silu, err) != QN_OK ||
        qn__json_opt_bool(config, "attention_bias", &bias, err) != QN_OK)
        return err->code;
    out->qkv_bias = out->output_bias = bias;
    return qn__config_qwen_sliding(config, out, err);
}

const qn__family qn__family_qwen3 = {.model_type = "qwen3", .configure = configure};
