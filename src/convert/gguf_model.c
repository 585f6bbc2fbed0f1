/* SPDX-License-Identifier: Apache-2.0
 *
 * A decoder's description as GGUF's metadata. What llama.cpp knows by the architecture alone
 * (gguf_config.c has the list) has no key: a model that differs there cannot be said, and is
 * refused rather than written as something else.
 */
#include "convert/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *family;
    qn__gguf_layout kind;
    int pattern; /* one of so many layers sees everything; 0: no window */
    int widest;  /* so many layers has the model whose scores are scaled by its width */
} kinds[] = {
    {"llama", {"llama", true, false}, 0, 0},     {"mistral", {"llama", true, false}, 1, 0},
    {"smollm3", {"smollm3", true, false}, 0, 0}, {"qwen2", {"qwen2", false, false}, 0, 0},
    {"qwen3", {"qwen3", false, false}, 0, 0},    {"gemma2", {"gemma2", false, true}, 2, 46},
    {"gemma3", {"gemma3", false, true}, 6, 62},  {"gemma3_text", {"gemma3", false, true}, 6, 62},
    {"bitnet", {"bitnet", false, false}, 0, 0},
};

static qn_status refuse(qn__conversion *c, const char *what)
{
    return qn__fail(c->err, QN_UNSUPPORTED, "%s: GGUF cannot say of a %s: %s",
                    c->source.config_path, c->decoder.config.family, what);
}

/* ---- frequencies ----------------------------------------------------------------------------- */

/* The divisor by which `plain` becomes `scaled` exactly, if there is one: quotients round. */
static float divisor_of(float plain, float scaled)
{
    float d = plain / scaled, near[2] = {nextafterf(d, 0), nextafterf(d, INFINITY)};
    if (plain / d != scaled)
        for (int i = 0; i < 2; i++)
            if (plain / near[i] == scaled)
                return near[i];
    return d;
}

/* Llama 3's rule has no keys: its divisors are a tensor. */
static qn_status make_divisors(qn__conversion *c, const qn__rope_config *rope)
{
    int n = (int)(c->decoder.config.head_dim / 2);
    qn__rope_config plain = {.theta = rope->theta, .factor = 1};
    float *both = malloc(2 * (size_t)n * sizeof *both);
    c->divisors = malloc((size_t)n * sizeof *c->divisors);
    qn__output_tensor *t = both && c->divisors ? qn__conversion_add(c) : NULL;
    if (t) {
        qn__rope_frequencies(&plain, n, both);
        qn__rope_frequencies(rope, n, both + n);
        for (int i = 0; i < n; i++)
            c->divisors[i] = divisor_of(both[i], both[n + i]);
        *t = (qn__output_tensor){.name = "rope_freqs.weight",
                                 .values = c->divisors,
                                 .target = &qn__encodings[QN__F32],
                                 .ndim = 1,
                                 .shape = {n},
                                 .rows = n,
                                 .columns = 1,
                                 .bytes = (uint64_t)n * sizeof(float)};
    }
    free(both);
    return t ? QN_OK : qn__fail_memory(c->err, "rotary frequencies");
}

/* llama.cpp multiplies YaRN's own factor by what the file says. */
static void put_yarn(qn__gguf_keys *k, const qn__rope_config *r)
{
    double usual = r->factor > 1 ? 1 + 0.1 * log(r->factor) : 1;
    double times = (r->attention > 0 ? r->attention : 1) / usual;
    qn__put_own_text(k, "rope.scaling.type", "yarn");
    qn__put_own_f32(k, "rope.scaling.factor", r->factor);
    qn__put_own_u32(k, "rope.scaling.original_context_length", (int64_t)r->original_positions);
    if (fabs(times - 1) > 1e-9)
        qn__put_own_f32(k, "rope.scaling.yarn_attn_factor", times);
    if (r->fast != 32)
        qn__put_own_f32(k, "rope.scaling.yarn_beta_fast", r->fast);
    if (r->slow != 1)
        qn__put_own_f32(k, "rope.scaling.yarn_beta_slow", r->slow);
}

static qn_status put_rope(qn__conversion *c, qn__gguf_keys *k, bool gemma3)
{
    const qn__decoder_config *d = &c->decoder.config;
    const qn__rope_config *r = &d->rope;
    qn__put_own_u32(k, "rope.dimension_count", d->head_dim);
    qn__put_own_f32(k, "rope.freq_base", r->theta);
    if (gemma3 && d->sliding_rope.theta > 0) {
        if (d->sliding_rope.kind != QN__ROPE_DEFAULT)
            return refuse(c, "a scaling of the sliding layers' positions");
        qn__put_own_f32(k, "rope.freq_base_swa", d->sliding_rope.theta);
    }
    if (r->kind == QN__ROPE_LLAMA3)
        return make_divisors(c, r);
    if (r->kind == QN__ROPE_YARN && r->fractional)
        return refuse(c, "YaRN without truncation");
    if (r->kind == QN__ROPE_YARN)
        put_yarn(k, r);
    if (r->kind == QN__ROPE_LINEAR) {
        qn__put_own_text(k, "rope.scaling.type", "linear");
        qn__put_own_f32(k, "rope.scaling.factor", r->factor);
    }
    return QN_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static bool slides_by(const qn__decoder_config *d, int pattern)
{
    for (int64_t i = 0; i < d->n_layers; i++)
        if (d->layer[i].sliding != (pattern == 1 || i % pattern < pattern - 1))
            return false;
    return true;
}

static bool slides_anywhere(const qn__decoder_config *d)
{
    for (int64_t i = 0; i < d->n_layers; i++)
        if (d->layer[i].sliding)
            return true;
    return false;
}

static void put_pattern(qn__gguf_keys *k, const qn__decoder_config *d)
{
    char key[100];
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", k->prefix);
    qn__put_array(k, key, QN__GGUF_BOOL, (uint64_t)d->n_layers);
    for (int64_t i = 0; i < d->n_layers; i++) {
        uint8_t slides = d->layer[i].sliding;
        qn__put_bytes(k, &slides, 1);
    }
}

static qn_status put_window(qn__conversion *c, qn__gguf_keys *k, int pattern)
{
    const qn__decoder_config *d = &c->decoder.config;
    bool slides = d->window > 0 && slides_anywhere(d);
    if (slides && (pattern == 0 || (pattern == 1 && !slides_by(d, 1))))
        return refuse(c, "layers with a sliding window");
    if (!slides && pattern < 2)
        return QN_OK;
    qn__put_own_u32(k, "attention.sliding_window", slides ? d->window : 0);
    if (slides && pattern > 1 && !slides_by(d, pattern))
        put_pattern(k, d);
    return QN_OK;
}

static qn_status check_layers(qn__conversion *c)
{
    const qn__decoder_config *d = &c->decoder.config;
    bool fourth = !strcmp(d->family, "smollm3");
    for (int64_t i = 0; i < d->n_layers; i++)
        if (d->layer[i].no_rope != (fourth && (i + 1) % 4 == 0))
            return refuse(c, "which layers do not turn queries and keys");
    return QN_OK;
}

static qn_status put_gemma(qn__conversion *c, qn__gguf_keys *k, int pattern, int widest)
{
    const qn__decoder_config *d = &c->decoder.config;
    double width = (double)(d->n_layers == widest ? d->hidden / d->n_heads : d->head_dim);
    if (fabs(d->query_scale * sqrt(width) - 1) > 1e-9)
        return refuse(c, "the scale of the scores (query_pre_attn_scalar)");
    if (d->qkv_bias || d->output_bias)
        return refuse(c, "biases of attention");
    if (pattern == 2) {
        qn__put_own_f32(k, "attn_logit_softcapping", d->score_cap);
        qn__put_own_f32(k, "final_logit_softcapping", d->logit_cap);
    } else if (d->logit_cap > 0) {
        qn__put_own_f32(k, "final_logit_softcapping", d->logit_cap);
    }
    return QN_OK;
}

/* ---- ternary layers -------------------------------------------------------------------------- */

/* Without a type, ternary weights stay what they are read as. */
static bool writes_i2_s(const qn__conversion *c)
{
    return !c->recipe || c->recipe->plain == QN__I2_S;
}

/* That what goes into layers is bytes is known by BitNet's architectures, and by i2_s in any. */
static qn_status check_ternary(qn__conversion *c)
{
    const qn__decoder_config *d = &c->decoder.config;
    bool bitnet = !strcmp(d->family, "bitnet");
    if (bitnet != d->byte_rows && (bitnet || !writes_i2_s(c)))
        return refuse(c, bitnet ? "layers that are not ternary"
                                : "ternary layers, but in the type i2_s");
    if (d->ternary == QN__TERNARY_TIMES && (d->qkv_bias || d->output_bias || d->mlp_bias))
        return refuse(c, "biases that a scale multiplies");
    if (bitnet && (d->qkv_bias || !d->tied))
        return refuse(c, d->tied ? "biases of attention" : "a head of its own");
    return QN_OK;
}

/* bitnet.cpp's own type goes with its own architecture, whose gate is a squared ReLU; llama.cpp's
 * is a SiLU unless a key says otherwise. */
static void choose_bitnet(const qn__conversion *c, qn__gguf_layout *kind)
{
    if (!strcmp(kind->architecture, "bitnet") && writes_i2_s(c) &&
        c->decoder.config.activation == QN__RELU_SQUARED)
        kind->architecture = "bitnet-b1.58";
}

static void put_activation(const qn__conversion *c, qn__gguf_keys *k)
{
    if (!strcmp(k->prefix, "bitnet") && c->decoder.config.activation == QN__RELU_SQUARED)
        qn__put_own_text(k, "hidden_activation", "relu2");
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* The name of the directory, since models have none of their own. */
static void put_name(qn__conversion *c, qn__gguf_keys *k)
{
    char *path = realpath(c->source.path, NULL), *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash && slash[1] ? slash + 1 : "model";
    qn__put_text(k, "general.name", name, strlen(name));
    free(path);
}

static void put_sizes(qn__gguf_keys *k, const qn__decoder_config *d)
{
    qn__put_own_u32(k, "block_count", d->n_layers);
    qn__put_own_u32(k, "context_length", d->max_positions);
    qn__put_own_u32(k, "embedding_length", d->hidden);
    qn__put_own_u32(k, "feed_forward_length", d->ffn);
    qn__put_own_u32(k, "attention.head_count", d->n_heads);
    qn__put_own_u32(k, "attention.head_count_kv", d->n_kv_heads);
    qn__put_own_u32(k, "attention.key_length", d->head_dim);
    qn__put_own_u32(k, "attention.value_length", d->head_dim);
    qn__put_own_f32(k, "attention.layer_norm_rms_epsilon", d->norm_eps);
    qn__put_own_u32(k, "vocab_size", d->vocab);
}

qn_status qn__gguf_put_model(qn__conversion *c, qn__gguf_keys *k, qn__gguf_layout *kind)
{
    const qn__decoder_config *d = &c->decoder.config;
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    while (i < n && strcmp(kinds[i].family, d->family) != 0)
        i++;
    if (i == n)
        return qn__fail(c->err, QN_UNSUPPORTED, "%s: model_type \"%s\" is none that GGUF has",
                        c->source.config_path, d->family);
    *kind = kinds[i].kind;
    choose_bitnet(c, kind);
    k->prefix = kind->architecture;
    qn__put_text(k, "general.architecture", k->prefix, strlen(k->prefix));
    qn__put_text(k, "general.type", "model", 5);
    put_name(c, k);
    put_sizes(k, d);
    put_activation(c, k);
    if (check_ternary(c) != QN_OK || check_layers(c) != QN_OK ||
        put_window(c, k, kinds[i].pattern) != QN_OK ||
        (kind->norms_whole && put_gemma(c, k, kinds[i].pattern, kinds[i].widest) != QN_OK))
        return c->err->code;
    return put_rope(c, k, kinds[i].pattern == 6);
}
