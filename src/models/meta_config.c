/* SPDX-License-Identifier: Apache-2.0
 *
 * A checkpoint as Meta gives it out, and Mistral after it: params.json in the terms of config.json.
 *
 * The file says less than config.json: the sizes of the vocabulary and of the feed-forward are
 * those of the weights, and whether there is a head of its own is seen there, too. Whether
 * frequencies are Llama 3.1's is one word, use_scaled_rope, with the factor in newer files alone:
 * the small models have another one than the large.
 * https://github.com/meta-llama/llama-models/blob/main/models/llama3/args.py
 */
#include "models/source.h"

#include <string.h>

enum {
    LARGEST_PARAMS = 1 << 20,
    MOST = 1 << 30,
    LLAMA_POSITIONS = 4096,
    LLAMA3_POSITIONS = 8192,
    LLAMA31_POSITIONS = 131072,
    SMALLEST_OF_31 = 4096 /* width */
};

typedef struct meta {
    const qn__source *source;
    qn__json_at params;
    cJSON *out;
    qn_error *err;
} meta;

static bool put(const meta *m, cJSON *to, const char *key, double value)
{
    if (to && cJSON_AddNumberToObject(to, key, value))
        return true;
    qn__fail_memory(m->err, "a configuration");
    return false;
}

static bool refuse_unknown(const meta *m)
{
    static const char *const keys[] = {"moe",
                                       "lora",
                                       "quantization",
                                       "quantization_args",
                                       "vision_encoder",
                                       "vision_chunk_size",
                                       "multimodal"};
    qn__json_at at;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (qn__json_find(&m->params, keys[i], &at) && !cJSON_IsFalse(at.node) &&
            !(cJSON_IsNumber(at.node) && at.node->valuedouble <= 0)) {
            qn__json_fail(&at, QN_UNSUPPORTED, m->err,
                          "is not supported; dense language models in f32, f16 and bf16 are");
            return false;
        }
    return true;
}

/* What has another name here; `required`: or else a default. */
static bool put_sizes(const meta *m)
{
    static const struct {
        const char *meta, *name;
        bool required;
    } keys[] = {{"dim", "hidden_size", true},
                {"n_layers", "num_hidden_layers", true},
                {"n_heads", "num_attention_heads", true},
                {"n_kv_heads", "num_key_value_heads", false},
                {"head_dim", "head_dim", false},
                {"sliding_window", "sliding_window", false}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t value = -1;
        if ((keys[i].required ? qn__json_get_int : qn__json_opt_int)(
                &m->params, keys[i].meta, 1, MOST, &value, m->err) != QN_OK ||
            (value > 0 && !put(m, m->out, keys[i].name, (double)value)))
            return false;
    }
    return true;
}

/* A size that the rows of a matrix have. */
static bool put_rows(const meta *m, const char *tensor, const char *name)
{
    const qn_tensor_info *t = qn_tensors_find(m->source->tensors, tensor);
    if (t && t->ndim == 2)
        return put(m, m->out, name, (double)t->shape[0]);
    qn__fail(m->err, QN_FORMAT, "%s: %s, a matrix that a model with params.json has, is missing",
             m->source->path, tensor);
    return false;
}

static bool put_rope(const meta *m)
{
    double theta = 10000, factor = 0, low = 1, high = 4;
    bool scaled = false;
    int64_t width = cJSON_GetObjectItem(m->out, "hidden_size")->valueint, positions = 0;
    if (qn__json_opt_number(&m->params, "rope_theta", 1, 1e15, &theta, m->err) != QN_OK ||
        qn__json_opt_bool(&m->params, "use_scaled_rope", &scaled, m->err) != QN_OK ||
        qn__json_opt_number(&m->params, "rope_scaling_factor", 0, 1e6, &factor, m->err) != QN_OK ||
        qn__json_opt_number(&m->params, "rope_high_freq_factor", 0, 1e6, &high, m->err) != QN_OK ||
        qn__json_opt_int(&m->params, "max_seq_len", 1, MOST, &positions, m->err) != QN_OK)
        return false;
    if (!positions)
        positions = scaled ? LLAMA31_POSITIONS : theta >= 5e5 ? LLAMA3_POSITIONS : LLAMA_POSITIONS;
    factor = factor > 0 ? factor : width < SMALLEST_OF_31 ? 32 : 8;
    if (!put(m, m->out, "rope_theta", theta) ||
        !put(m, m->out, "max_position_embeddings", (double)positions))
        return false;
    cJSON *r = scaled ? cJSON_AddObjectToObject(m->out, "rope_scaling") : NULL;
    return !scaled || (put(m, r, "factor", factor) && put(m, r, "low_freq_factor", low) &&
                       put(m, r, "high_freq_factor", high) &&
                       put(m, r, "original_max_position_embeddings", LLAMA3_POSITIONS) &&
                       cJSON_AddStringToObject(r, "rope_type", "llama3"));
}

static bool translate_params(const meta *m)
{
    double eps = 1e-5;
    if (!refuse_unknown(m) || !put_sizes(m) ||
        qn__json_opt_number(&m->params, "norm_eps", 0, 1, &eps, m->err) != QN_OK ||
        !put(m, m->out, "rms_norm_eps", eps) ||
        !put_rows(m, "tok_embeddings.weight", "vocab_size") ||
        !put_rows(m, "layers.0.feed_forward.w1.weight", "intermediate_size") || !put_rope(m))
        return false;
    bool window = cJSON_HasObjectItem(m->out, "sliding_window");
    bool tied = !qn_tensors_find(m->source->tensors, "output.weight");
    if (cJSON_AddStringToObject(m->out, "model_type", window ? "mistral" : "llama") &&
        cJSON_AddBoolToObject(m->out, "tie_word_embeddings", tied))
        return true;
    qn__fail_memory(m->err, "a configuration");
    return false;
}

qn_status qn__meta_config(qn__source *source, qn_error *err)
{
    cJSON *params = NULL;
    if (qn__json_read(&params, source->config_path, LARGEST_PARAMS, err) != QN_OK)
        return err->code;
    meta m = {source, qn__json_root(source->config_path, params), NULL, err};
    m.out = source->config = cJSON_CreateObject();
    if (!m.out)
        qn__fail_memory(err, "a configuration");
    else if (!translate_params(&m) && err->code == QN_OK)
        qn__fail_memory(err, "a configuration");
    cJSON_Delete(params);
    return err->code;
}
