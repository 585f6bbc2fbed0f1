/* SPDX-License-Identifier: Apache-2.0
 *
 * The metadata of a GGUF file in the terms of config.json. Keys are those of
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and of what llama.cpp's converter
 * writes besides. Some of what a model is stands in no key: llama.cpp knows it by the architecture,
 * and so does the table here:
 *
 *   llama, smollm3  the converter has put the rows of queries and keys in pairs
 *   gemma2, gemma3  norms have the 1 of "1 + weight" in them; of how many layers in a row one sees
 *                   everything (2 and 6); the scale of the scores, which the largest models take
 *                   from their width instead of their heads, is told by the number of layers
 *   smollm3         every fourth layer does not turn
 *   bitnet...       what goes into linears is bytes; the gate's function is SiLU in "bitnet",
 *                   unless a key says otherwise, and squared ReLU in the others; sizes that no
 *                   key has are those of the 2B model
 *   all             the head is the embedding where there is no output.weight
 */
#include "base/gguf.h"
#include "base/utf8.h"
#include "io/tensors.h"
#include "models/decoder.h"
#include "models/source.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

enum { MOST_WIDTH = 1 << 20, MOST_HEADS = 1 << 14, MOST_POSITIONS = 1 << 30 };

typedef struct architecture {
    const char *name;
    const char *model_type; /* the family */
    bool paired;
    bool gemma;
    int pattern;        /* one of so many layers does not slide; 0: none slides */
    int widest;         /* so many layers has the model whose scores are scaled by its width */
    const char *bitnet; /* hidden_act of a BitNet, where no key says it; NULL: it is none */
} architecture;

static const architecture architectures[] = {
    {"llama", "llama", true, false, 0, 0},
    {"qwen2", "qwen2", false, false, 0, 0},
    {"qwen3", "qwen3", false, false, 0, 0},
    {"gemma2", "gemma2", false, true, 2, 46},
    {"gemma3", "gemma3_text", false, true, 6, 62},
    {"smollm3", "smollm3", true, false, 0, 0},
    {"bitnet", "bitnet", false, false, 0, 0, "silu"},
    {"bitnet-25", "bitnet", false, false, 0, 0, "relu2"},
    {"bitnet-b1.58", "bitnet", false, false, 0, 0, "relu2"},
};

/* ---- reading and writing --------------------------------------------------------------------- */

typedef struct translation {
    qn__source *source;
    const qn__gguf *g;
    const architecture *arch;
    cJSON *out;
    int64_t layers, hidden, heads, head_dim, positions;
    qn_error *err;
} translation;

static const char *key_of(const translation *t, const char *name, char key[100])
{
    snprintf(key, 100, "%s.%s", t->arch->name, name);
    return key;
}

static bool put_number(const translation *t, cJSON *object, const char *name, double value)
{
    if (cJSON_AddNumberToObject(object, name, value))
        return true;
    qn__fail_memory(t->err, "a configuration");
    return false;
}

static bool put_text(const translation *t, cJSON *object, const char *name, const char *value)
{
    if (cJSON_AddStringToObject(object, name, value))
        return true;
    qn__fail_memory(t->err, "a configuration");
    return false;
}

static bool put_bool(const translation *t, const char *name, bool value)
{
    if (cJSON_AddBoolToObject(t->out, name, value))
        return true;
    qn__fail_memory(t->err, "a configuration");
    return false;
}

static bool get_int(const translation *t, const char *name, int64_t min, int64_t max, int64_t *out)
{
    char key[100];
    return qn__gguf_opt_int(t->g, key_of(t, name, key), min, max, out, t->err) == QN_OK;
}

static bool get_number(const translation *t, const char *name, double min, double max, double *out)
{
    char key[100];
    return qn__gguf_opt_number(t->g, key_of(t, name, key), min, max, out, t->err) == QN_OK;
}

static bool has(const translation *t, const char *name)
{
    char key[100];
    return qn__gguf_find(t->g, key_of(t, name, key)) != NULL;
}

static bool fail_key(const translation *t, const char *name, const char *what)
{
    char key[100];
    qn__fail(t->err, QN_UNSUPPORTED, "%s: %s: %s", t->g->path, key_of(t, name, key), what);
    return false;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* A key that has to be there; a BitNet's may lack, and then has its usual value. */
static bool may_lack(const translation *t, const char *name, int64_t *value, int64_t bitnet)
{
    char key[100];
    if (!t->arch->bitnet)
        return qn__gguf_require(t->g, key_of(t, name, key), t->err) == QN_OK;
    *value = bitnet;
    return true;
}

static bool require_ints(translation *t)
{
    int64_t ffn = 0;
    const struct {
        const char *key, *name;
        int64_t most, *to, bitnet;
    } required[] = {
        {"block_count", "num_hidden_layers", QN__MOST_LAYERS, &t->layers, 30},
        {"embedding_length", "hidden_size", MOST_WIDTH, &t->hidden, 2560},
        {"feed_forward_length", "intermediate_size", MOST_WIDTH, &ffn, 6912},
        {"attention.head_count", "num_attention_heads", MOST_HEADS, &t->heads, 20},
        {"context_length", "max_position_embeddings", MOST_POSITIONS, &t->positions, 2048},
    };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!may_lack(t, required[i].key, required[i].to, required[i].bitnet) ||
            !get_int(t, required[i].key, 1, required[i].most, required[i].to) ||
            !put_number(t, t->out, required[i].name, (double)*required[i].to))
            return false;
    return true;
}

static bool translate_heads(translation *t)
{
    char key[100];
    int64_t kv = t->arch->bitnet && !has(t, "attention.head_count") ? 5 : t->heads, value;
    if (!get_int(t, "attention.head_count_kv", 1, MOST_HEADS, &kv))
        return false;
    if (t->heads % kv) {
        qn__fail(t->err, QN_FORMAT, "%s: %s %lld is not a multiple of attention.head_count_kv %lld",
                 t->g->path, key_of(t, "attention.head_count", key), (long long)t->heads,
                 (long long)kv);
        return false;
    }
    t->head_dim = t->hidden / t->heads;
    if (!get_int(t, "attention.key_length", 1, MOST_WIDTH, &t->head_dim))
        return false;
    if (t->head_dim < 2 || t->head_dim % 2 || t->heads * t->head_dim > MOST_WIDTH) {
        qn__fail(t->err, QN_FORMAT, "%s: %s: %lld heads of %lld, expected even ones, of %d in all",
                 t->g->path, key_of(t, "attention.key_length", key), (long long)t->heads,
                 (long long)t->head_dim, MOST_WIDTH);
        return false;
    }
    value = t->head_dim;
    if (!get_int(t, "attention.value_length", 1, MOST_WIDTH, &value))
        return false;
    if (value != t->head_dim)
        return fail_key(t, "attention.value_length",
                        "values of another length than keys are not supported");
    value = t->head_dim;
    if (!get_int(t, "rope.dimension_count", 0, MOST_WIDTH, &value))
        return false;
    if (value != t->head_dim)
        return fail_key(t, "rope.dimension_count",
                        "turning a part of each head alone is not supported");
    return put_number(t, t->out, "num_key_value_heads", (double)kv) &&
           put_number(t, t->out, "head_dim", (double)t->head_dim);
}

static bool has_tensor(const translation *t, const char *name)
{
    return qn_tensors_find(t->source->tensors, name) != NULL;
}

/* What the tensors say: how many tokens there are, whether the head is one of its own, biases. */
static bool translate_tensors(const translation *t)
{
    const qn_tensor_info *e = qn_tensors_find(t->source->tensors, "token_embd.weight");
    if (!e || e->ndim != 2 || e->shape[0] < 1) {
        qn__fail(t->err, QN_FORMAT, "%s: tensor token_embd.weight is %s", t->g->path,
                 e ? "no matrix" : "missing (a file of a vocabulary alone?)");
        return false;
    }
    return put_number(t, t->out, "vocab_size", (double)e->shape[0]) &&
           put_bool(t, "tie_word_embeddings", !has_tensor(t, "output.weight")) &&
           put_bool(t, "attention_bias", !t->arch->gemma && has_tensor(t, "blk.0.attn_q.bias")) &&
           put_bool(t, "mlp_bias", has_tensor(t, "blk.0.ffn_gate.bias"));
}

/* ---- rotary embedding ------------------------------------------------------------------------ */

/* YaRN's own factor on queries and keys, which llama.cpp multiplies by what the file says. */
static bool translate_yarn(const translation *t, cJSON *scaling, double factor)
{
    double original = 0, times = 1, fast = 32, slow = 1, log_multiplier = 0;
    if (!get_number(t, "rope.scaling.original_context_length", 1, 1e9, &original) ||
        !get_number(t, "rope.scaling.attn_factor", 1e-3, 1e3, &times) ||
        !get_number(t, "rope.scaling.yarn_attn_factor", 1e-3, 1e3, &times) ||
        !get_number(t, "rope.scaling.yarn_beta_fast", 0, 1e9, &fast) ||
        !get_number(t, "rope.scaling.yarn_beta_slow", 0, 1e9, &slow) ||
        !get_number(t, "rope.scaling.yarn_log_multiplier", -1e3, 1e3, &log_multiplier))
        return false;
    if (log_multiplier != 0)
        return fail_key(t, "rope.scaling.yarn_log_multiplier", "is not supported");
    return (original == 0 ||
            put_number(t, scaling, "original_max_position_embeddings", original)) &&
           put_number(t, scaling, "beta_fast", fast) && put_number(t, scaling, "beta_slow", slow) &&
           put_number(t, scaling, "attention_factor",
                      times * (factor > 1 ? 1 + 0.1 * log(factor) : 1));
}

static bool translate_scaling(const translation *t)
{
    char key[100], type[20];
    double factor = 0;
    qn__gguf_text text = {"linear", 6};
    if (!get_number(t, "rope.scale_linear", 0, 1e6, &factor) ||
        !get_number(t, "rope.scaling.factor", 0, 1e6, &factor) ||
        qn__gguf_opt_text(t->g, key_of(t, "rope.scaling.type", key), &text, t->err) != QN_OK)
        return false;
    bool yarn = qn__gguf_text_is(&text, "yarn"), linear = qn__gguf_text_is(&text, "linear");
    if (!yarn && !linear && !qn__gguf_text_is(&text, "none"))
        return fail_key(t, "rope.scaling.type",
                        "this scaling is not supported (supported: none, linear, yarn)");
    if (factor == 0 || factor == 1 || !(yarn || linear))
        return true;
    snprintf(type, sizeof type, "%s", yarn ? "yarn" : "linear");
    cJSON *scaling = cJSON_AddObjectToObject(t->out, "rope_scaling");
    if (!scaling) {
        qn__fail_memory(t->err, "a configuration");
        return false;
    }
    return put_text(t, scaling, "rope_type", type) && put_number(t, scaling, "factor", factor) &&
           (!yarn || translate_yarn(t, scaling, factor));
}

static bool translate_rope(const translation *t)
{
    double theta = t->arch->bitnet ? 500000 : 10000, sliding = 10000;
    if (!get_number(t, "rope.freq_base", 1, 1e12, &theta) ||
        !get_number(t, "rope.freq_base_swa", 1, 1e12, &sliding))
        return false;
    return put_number(t, t->out, "rope_theta", theta) &&
           (!t->arch->gemma || put_number(t, t->out, "rope_local_base_freq", sliding)) &&
           translate_scaling(t);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Which layers slide: by a pattern, or a list of them. */
static bool translate_layers(const translation *t)
{
    char key[100];
    int64_t pattern = t->arch->pattern;
    const qn__gguf_value *v =
        qn__gguf_find(t->g, key_of(t, "attention.sliding_window_pattern", key));
    bool listed = v && v->is_array &&
                  (v->type == QN__GGUF_BOOL || v->type == QN__GGUF_I32 || v->type == QN__GGUF_U32);
    if (listed && v->n < (uint64_t)t->layers)
        return fail_key(t, "attention.sliding_window_pattern", "has fewer entries than layers");
    if (!listed && !get_int(t, "attention.sliding_window_pattern", 0, QN__MOST_LAYERS, &pattern))
        return false;
    cJSON *types = cJSON_AddArrayToObject(t->out, "layer_types");
    bool ok = types != NULL;
    for (int64_t i = 0; ok && i < t->layers; i++) {
        bool slides = listed ? qn__gguf_int_at(v, (uint64_t)i) != 0
                             : pattern == 0 || i % pattern < pattern - 1;
        cJSON *item = cJSON_CreateString(slides ? "sliding_attention" : "full_attention");
        ok = item && cJSON_AddItemToArray(types, item);
    }
    if (!ok)
        qn__fail_memory(t->err, "a configuration");
    return ok;
}

/* A window that is 0 or missing is none, but for the one that all of Gemma 2 has. */
static bool translate_window(const translation *t)
{
    int64_t window = t->arch->pattern == 2 ? 4096 : 0;
    if (!get_int(t, "attention.sliding_window", 0, MOST_POSITIONS, &window))
        return false;
    if (window > 0)
        return put_number(t, t->out, "sliding_window", (double)window) && translate_layers(t);
    if (cJSON_AddNullToObject(t->out, "sliding_window"))
        return true;
    qn__fail_memory(t->err, "a configuration");
    return false;
}

/* A cap, which 0 switches off. */
static bool translate_cap(const translation *t, const char *name, const char *to)
{
    double cap = 0;
    if (!has(t, name))
        return true;
    if (!get_number(t, name, 0, 1e6, &cap))
        return false;
    if (cap > 0)
        return put_number(t, t->out, to, cap);
    if (cJSON_AddNullToObject(t->out, to))
        return true;
    qn__fail_memory(t->err, "a configuration");
    return false;
}

static bool translate_gemma(const translation *t)
{
    bool widest = t->layers == t->arch->widest;
    int64_t scalar = widest ? t->hidden / t->heads : t->head_dim;
    bool two = t->arch->pattern == 2;
    return translate_window(t) && put_number(t, t->out, "query_pre_attn_scalar", (double)scalar) &&
           (!two || translate_cap(t, "attn_logit_softcapping", "attn_logit_softcapping")) &&
           translate_cap(t, "final_logit_softcapping", "final_logit_softcapping");
}

static bool translate_bitnet(const translation *t)
{
    char key[100], act[40];
    qn__gguf_text text = {t->arch->bitnet, strlen(t->arch->bitnet)};
    if (qn__gguf_opt_text(t->g, key_of(t, "hidden_activation", key), &text, t->err) != QN_OK)
        return false;
    if (text.n >= sizeof act)
        return fail_key(t, "hidden_activation", "is too long for a name");
    snprintf(act, sizeof act, "%.*s", (int)text.n, text.data);
    return put_text(t, t->out, "hidden_act", act);
}

/* A window makes a Mistral of a Llama. */
static const char *model_type(const translation *t)
{
    int64_t window = 0;
    bool llama = !strcmp(t->arch->name, "llama");
    if (llama && get_int(t, "attention.sliding_window", 0, MOST_POSITIONS, &window) && window > 0)
        return "mistral";
    return t->arch->model_type;
}

static bool translate_model(translation *t)
{
    char key[100];
    double eps = 1e-5;
    int64_t experts = 0;
    if (!get_int(t, "expert_count", 0, INT32_MAX, &experts))
        return false;
    if (experts > 0)
        return fail_key(t, "expert_count", "mixtures of experts are not supported");
    if (!require_ints(t) || !translate_heads(t) ||
        (!t->arch->bitnet &&
         qn__gguf_require(t->g, key_of(t, "attention.layer_norm_rms_epsilon", key), t->err) !=
             QN_OK) ||
        !get_number(t, "attention.layer_norm_rms_epsilon", 0, 1, &eps) ||
        !put_number(t, t->out, "rms_norm_eps", eps) || !translate_tensors(t) || !translate_rope(t))
        return false;
    const char *type = model_type(t);
    if (t->err->code != QN_OK || !put_text(t, t->out, "model_type", type))
        return false;
    if (t->arch->gemma)
        return translate_gemma(t);
    if (t->arch->bitnet)
        return translate_bitnet(t);
    if (strcmp(type, "mistral") != 0)
        return true;
    int64_t window = 0;
    return get_int(t, "attention.sliding_window", 0, MOST_POSITIONS, &window) &&
           put_number(t, t->out, "sliding_window", (double)window);
}

/* ---- generation ------------------------------------------------------------------------------ */

/* The tokens that end a text, a turn, a message. */
static bool translate_ends(const translation *t)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    cJSON *ends = cJSON_AddArrayToObject(t->out, "eos_token_id");
    bool ok = ends != NULL;
    for (size_t i = 0; ok && i < sizeof keys / sizeof *keys; i++) {
        int64_t id = -1;
        /* some writers have -1, in 32 bits, for none */
        if (qn__gguf_opt_int(t->g, keys[i], INT64_MIN, INT64_MAX, &id, t->err) != QN_OK)
            return false;
        if (id < 0 || id > INT32_MAX)
            continue;
        cJSON *item = cJSON_CreateNumber((double)id);
        ok = item && cJSON_AddItemToArray(ends, item);
    }
    if (!ok)
        qn__fail_memory(t->err, "a configuration");
    return ok;
}

/* general.sampling: how the model's makers sample. */
static bool translate_sampling(translation *t)
{
    static const struct {
        const char *key, *name;
    } keys[] = {{"general.sampling.temp", "temperature"},
                {"general.sampling.top_k", "top_k"},
                {"general.sampling.top_p", "top_p"},
                {"general.sampling.min_p", "min_p"},
                {"general.sampling.penalty_repeat", "repetition_penalty"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        double value = 0;
        if (!qn__gguf_find(t->g, keys[i].key))
            continue;
        if (qn__gguf_opt_number(t->g, keys[i].key, -FLT_MAX, FLT_MAX, &value, t->err) != QN_OK)
            return false;
        cJSON **to = &t->source->generation;
        if (!*to && (!(*to = cJSON_CreateObject()) || !cJSON_AddTrueToObject(*to, "do_sample"))) {
            qn__fail_memory(t->err, "a configuration");
            return false;
        }
        if (!put_number(t, *to, keys[i].name, value))
            return false;
    }
    return true;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static qn_status find_architecture(translation *t)
{
    char names[200], quoted[80];
    size_t n = 0;
    qn__gguf_text name = {"", 0};
    if (qn__gguf_require(t->g, "general.architecture", t->err) != QN_OK ||
        qn__gguf_opt_text(t->g, "general.architecture", &name, t->err) != QN_OK)
        return t->err->code;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        if (qn__gguf_text_is(&name, architectures[i].name)) {
            t->arch = &architectures[i];
            return QN_OK;
        }
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "",
                              architectures[i].name);
    }
    return qn__fail(t->err, QN_UNSUPPORTED,
                    "%s: general.architecture \"%s\" is not supported (supported: %s)", t->g->path,
                    qn__utf8_quote(quoted, sizeof quoted, name.data, name.n), names);
}

qn_status qn__gguf_config(qn__source *source, qn_error *err)
{
    qn_error own = {0};
    translation t = {.source = source, .g = qn__tensors_gguf(source->tensors), .err = &own};
    t.out = source->config = cJSON_CreateObject();
    if (!t.out)
        return qn__fail_memory(err, "a configuration");
    if (find_architecture(&t) == QN_OK && translate_model(&t) && translate_ends(&t))
        translate_sampling(&t);
    if (own.code != QN_OK)
        return qn__fail(err, own.code, "%s", own.message);
    source->paired = t.arch->paired;
    source->norms_whole = t.arch->gemma;
    source->byte_rows = t.arch->bitnet != NULL;
    return QN_OK;
}
