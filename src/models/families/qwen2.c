/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen 2, 2.5 and R1-distilled Qwen: a Llama with biases on queries, keys and values.
 * Reference: transformers' Qwen2Config.
 */
#include "models/family.h"

static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    out->qkv_bias = true;
    out->max_positions = 32768;
    if (qn__config_common(config, out, err) != QN_OK ||
        qn__config_rope(config, 10000, out->max_positions, &out->rope, err) != QN_OK ||
        qn__config_one_of(config, "hidden_act", qn__names_of_silu, err) != QN_OK)
        return err->code;
    return qn__config_qwen_sliding(config, out, err);
}

const qn__family qn__family_qwen2 = {.model_type = "qwen2", .configure = configure};
