/* SPDX-License-Identifier: Apache-2.0
 *
 * SmolLM 3: a Llama in which every fourth layer does not turn its queries and keys; with
 * use_sliding_window these see a window. layer_types, where it is there, says which layers see one,
 * whatever use_sliding_window says: transformers' masks follow it alone.
 * Reference: transformers' SmolLM3Config.
 */
#include "models/family.h"

/* no_rope_layers has a 1 for each layer that turns, a 0 for each that does not. */
static qn_status read_list(const qn__json_at *list, qn__decoder_config *out, qn_error *err)
{
    int64_t n = 0, turns;
    qn__json_at at;
    if (!cJSON_IsArray(list->node))
        return qn__json_fail(list, QN_FORMAT, err, "is not an array");
    if (qn__json_first(list, &at))
        do {
            if (qn__json_as_int(&at, 0, 1, &turns, err) != QN_OK)
                return err->code;
            if (n < out->n_layers)
                out->layer[n].no_rope = !turns;
            n++;
        } while (qn__json_next(&at));
    return n >= out->n_layers
               ? QN_OK
               : qn__json_fail(list, QN_FORMAT, err, "has %lld entries for %lld layers",
                               (long long)n, (long long)out->n_layers);
}

static qn_status read_no_rope(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    qn__json_at list;
    int64_t interval = 4;
    if (qn__json_find(config, "no_rope_layers", &list))
        return read_list(&list, out, err);
    if (qn__json_opt_int(config, "no_rope_layer_interval", 1, QN__MOST_LAYERS, &interval, err) !=
        QN_OK)
        return err->code;
    for (int64_t i = 0; i < out->n_layers; i++)
        out->layer[i].no_rope = (i + 1) % interval == 0;
    return QN_OK;
}

static qn_status read_full_layers(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    bool use = false;
    if (qn__json_opt_bool(config, "use_sliding_window", &use, err) != QN_OK)
        return err->code;
    for (int64_t i = 0; i < out->n_layers; i++)
        out->layer[i].sliding = use && out->layer[i].no_rope;
    return qn__config_sliding(config, 0, out, err);
}

static qn_status configure(const qn__json_at *config, qn__decoder_config *out, qn_error *err)
{
    bool bias = false;
    out->tied = true;
    out->n_kv_heads = 4;
    out->max_positions = 32768;
    if (qn__config_common(config, out, err) != QN_OK ||
        qn__config_rope(config, 2e6, out->max_positions, &out->rope, err) != QN_OK ||
        qn__config_one_of(config, "hidden_act", qn__names_of_silu, err) != QN_OK ||
        qn__json_opt_bool(config, "attention_bias", &bias, err) != QN_OK ||
        qn__json_opt_bool(config, "mlp_bias", &out->mlp_bias, err) != QN_OK ||
        read_no_rope(config, out, err) != QN_OK)
        return err->code;
    out->qkv_bias = out->output_bias = bias;
    return read_full_layers(config, out, err);
}

const qn__family qn__family_smollm3 = {.model_type = "smollm3", .configure = configure};
