/* SPDX-License-Identifier: Apache-2.0
 *
 * Gemma 3: Gemma 2 with normalised queries and keys in the place of soft-caps, sliding layers with
 * a rotary base of their own between full ones. The checkpoints that read images, too, have the
 * same decoder inside: its configuration is their text_config. Reference: transformers'
 * Gemma3TextConfig.
 */
#include "models/family.h"

/* rope_parameters has an object for each kind of layer; the older spelling has fields for each,
 * which count where the newer one is silent, and rope_scaling, which counts before it. */
static qn_status read_rope(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    qn__json_at ropes, object;
    qn__rope_config *rope = &out->rope, *sliding = &out->sliding_rope;
    int64_t positions = out->max_positions;
    *rope = (qn__rope_config){.theta = 1e6, .factor = 1};
    *sliding = (qn__rope_config){.theta = 10000, .factor = 1};
    if (qn__config_absent(config, "partial_rotary_factor", err) != QN_OK ||
        qn__json_opt_number(config, "rope_theta", 1, 1e12, &rope->theta, err) != QN_OK ||
        qn__json_opt_number(config, "rope_local_base_freq", 1, 1e12, &sliding->theta, err) != QN_OK)
        return err->code;
    qn__json_find(config, "rope_parameters", &ropes);
    if (qn__json_find(&ropes, "full_attention", &object) &&
        qn__config_rope_object(&object, positions, rope, err) != QN_OK)
        return err->code;
    if (qn__json_find(&ropes, "sliding_attention", &object) &&
        qn__config_rope_object(&object, positions, sliding, err) != QN_OK)
        return err->code;
    return qn__json_find(config, "rope_scaling", &object)
               ? qn__config_rope_object(&object, positions, rope, err)
               : QN_OK;
}

static qn_status read_sliding(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    int64_t pattern = 6;
    if (qn__json_opt_int(config, "sliding_window_pattern", 1, QN__MOST_LAYERS, &pattern, err) !=
            QN_OK ||
        qn__json_opt_int(config, "_sliding_window_pattern", 1, QN__MOST_LAYERS, &pattern, err) !=
            QN_OK)
        return err->code;
    for (int64_t i = 0; i < out->n_layers; i++)
        out->layer[i].sliding = (i + 1) % pattern != 0;
    return qn__config_sliding(config, 4096, out, err);
}

static qn_status configure_text(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    out->qk_norm = true;
    out->vocab = 262208;
    out->max_positions = 131072;
    if (qn__config_gemma(config, out, err) != QN_OK || read_rope(config, out, err) != QN_OK ||
        qn__config_absent(config, "attn_logit_softcapping", err) != QN_OK ||
        qn__config_nullable(config, "final_logit_softcapping", 1e-3, 1e6, &out->logit_cap, err) !=
            QN_OK)
        return err->code;
    return read_sliding(config, out, err);
}

/* With images the root says whether the head is tied, and where text_config is silent the type. */
static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    qn__json_at text;
    if (!qn__json_find(config, "text_config", &text))
        return configure_text(config, out, err);
    if (configure_text(&text, out, err) != QN_OK ||
        qn__json_opt_bool(config, "tie_word_embeddings", &out->tied, err) != QN_OK)
        return err->code;
    if (!out->dtype_given)
        qn__config_dtype(config, out);
    return QN_OK;
}

const qn__family qn__family_gemma3 = {.model_type = "gemma3", .configure = configure};
const qn__family qn__family_gemma3_text = {.model_type = "gemma3_text",
                                           .configure = configure_text};
