/* SPDX-License-Identifier: Apache-2.0
 *
 * BitNet b1.58: a Llama with squared ReLU, whose attention and feed-forward are normalised once
 * more before they leave (sub_norms). That its weights are ternary and what they meet is bytes is
 * not in here: quantization_config says so, of any family. Reference: transformers' BitNetConfig;
 * https://arxiv.org/abs/2402.17764.
 */
#include "models/family.h"

static qn_status read_activation(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    const char *name = "relu2";
    if (qn__json_opt_string(config, "hidden_act", &name, err) != QN_OK)
        return err->code;
    out->activation = QN__RELU_SQUARED;
    if (!strcmp(name, "relu2"))
        return QN_OK;
    out->activation = QN__SILU; /* the first models'; GGUF files have it */
    return qn__config_one_of(config, "hidden_act", (const char *const[]){"relu2", "silu", NULL},
                             err);
}

/* Defaults are the class's own. A null num_key_value_heads is num_attention_heads. */
static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    bool bias = false;
    out->vocab = 128256;
    out->hidden = 2560;
    out->ffn = 6912;
    out->n_layers = 30;
    out->n_heads = 20;
    out->n_kv_heads =
        cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(config->node, "num_key_value_heads")) ? 0 : 5;
    out->max_positions = 2048;
    out->norm_eps = 1e-5;
    out->sub_norms = true;
    if (qn__config_common(config, out, err) != QN_OK ||
        qn__config_rope(config, 500000, out->max_positions, &out->rope, err) != QN_OK ||
        read_activation(config, out, err) != QN_OK ||
        qn__json_opt_bool(config, "attention_bias", &bias, err) != QN_OK)
        return err->code;
    out->qkv_bias = out->output_bias = bias;
    return QN_OK;
}

const qn__family qn__family_bitnet = {.model_type = "bitnet", .configure = configure};
