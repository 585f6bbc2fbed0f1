/* SPDX-License-Identifier: Apache-2.0
 *
 * Gemma 2: norms around attention and feed-forward that multiply by 1 + weight, a scaled embedding,
 * soft-capped scores and logits, every other layer sliding. Reference: transformers' Gemma2Config.
 */
#include "models/family.h"

#include <math.h>

/* Defaults are the class's own: published files leave out what equals them. */
qn_status qn__config_gemma(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    static const char *const activations[] = {"gelu_pytorch_tanh", "gelu_tanh", NULL};
    bool bias = false;
    double scalar = 256;
    out->hidden = 2304;
    out->ffn = 9216;
    out->n_layers = 26;
    out->n_heads = 8;
    out->n_kv_heads = 4;
    out->head_dim = 256;
    out->activation = QN__GELU_TANH;
    out->tied = out->scaled_embedding = true;
    out->norm_plus_one = out->sandwich_norms = true;
    if (qn__config_common(config, out, err) != QN_OK ||
        qn__config_one_of(config, "hidden_activation", activations, err) != QN_OK ||
        qn__config_absent(config, "use_bidirectional_attention", err) != QN_OK ||
        qn__json_opt_bool(config, "attention_bias", &bias, err) != QN_OK ||
        qn__json_opt_number(config, "query_pre_attn_scalar", 1e-6, 1e9, &scalar, err) != QN_OK)
        return err->code;
    out->qkv_bias = out->output_bias = bias;
    out->query_scale = 1 / sqrt(scalar);
    return QN_OK;
}

static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    out->vocab = 256000;
    out->max_positions = 8192;
    out->score_cap = 50;
    out->logit_cap = 30;
    if (qn__config_gemma(config, out, err) != QN_OK ||
        qn__config_rope(config, 10000, out->max_positions, &out->rope, err) != QN_OK ||
        qn__config_nullable(config, "attn_logit_softcapping", 1e-3, 1e6, &out->score_cap, err) !=
            QN_OK ||
        qn__config_nullable(config, "final_logit_softcapping", 1e-3, 1e6, &out->logit_cap, err) !=
            QN_OK)
        return err->code;
    for (int i = 0; i < out->n_layers; i += 2)
        out->layer[i].sliding = true;
    return qn__config_sliding(config, 4096, out, err);
}

const qn__family qn__family_gemma2 = {.model_type = "gemma2", .configure = configure};
