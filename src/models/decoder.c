/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder: blocks of attention and a gated feed-forward network, as the description says.
 * Shapes: B batch, L length, H heads, G KV heads, D head_dim.
 */
#include "models/decoder.h"

#include "base/error.h"
#include "core/dtype.h"
#include "quant/layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the forward pass
 * ------------------------------------------------------------------------------------ */

/* Of the head, and of layers that have none of their own. */
static qn_products products_of(const qn__decoder *m)
{
    return m->products == QN_PRODUCTS_AUTO && !m->batch_invariant ? QN_PRODUCTS_BY_ROWS
                                                                  : m->products;
}

static qn_array *base_linear(qn_scope *s, const qn__decoder *m, qn_array *x, const qn__linear *l)
{
    if (l->order)
        x = qn_take(s, x, l->order, -1);
    const qn_products products = m->products == QN_PRODUCTS_AUTO && m->config.byte_rows
                                     ? QN_PRODUCTS_INT8_ROWS
                                     : products_of(m);
    if (!l->factor)
        return qn_linear_with(s, x, l->weight, l->bias, products);
    bool inside = m->config.ternary == QN__TERNARY_TIMES;
    qn_array *y = qn_linear_with(s, x, l->weight, inside ? l->bias : NULL, products);
    y = qn_multiply(s, y, l->factor);
    return l->bias && !inside ? qn_add(s, y, l->bias) : y;
}

/* x without what is dropped of it, drawn for this layer. */
static qn_array *dropped(qn_scope *s, const qn__decoder *m, qn_array *x, const qn__linear *l)
{
    if (!m->dropout_key)
        return x;
    double layer =
        (double)(((const char *)l - (const char *)m->layers) / (ptrdiff_t)sizeof(void *));
    qn_array *key = qn_random_fold_in(s, m->dropout_key, qn_scalar(s, QN_I32, layer));
    return qn_dropout(s, x, key, m->dropout);
}

/* What a layer gives, with what its rows' adapters, or the one that is trained, add. */
static qn_array *linear(qn_scope *s, const qn__decoder *m, qn_array *x, const qn__linear *l,
                        const qn__batch *batch)
{
    qn_array *y = base_linear(s, m, x, l);
    qn_array *scale = batch ? batch->adapter_scale : m->adapter_scale;
    if (!l->lora_a || !scale)
        return y;
    qn_array *z = qn_linear_with(s, dropped(s, m, x, l), l->lora_a, NULL, QN_PRODUCTS_F32);
    z = qn_multiply(s, z, scale);
    return qn_add(s, y, qn_linear_with(s, z, l->lora_b, NULL, QN_PRODUCTS_F32));
}

/* x normalised where there is a norm */
static qn_array *normalised(qn_scope *s, const qn__decoder *m, qn_array *x, qn_array *norm)
{
    return norm ? qn_rms_norm(s, x, norm, (float)m->config.norm_eps) : x;
}

/* [B, L, heads * D] -> [B, heads, L, D], a view; of the normalised heads where there is a norm */
static qn_array *split_heads(qn_scope *s, const qn__decoder *m, qn_array *x, int64_t heads,
                             qn_array *norm)
{
    if (qn_scope_status(s) != QN_OK)
        return x;
    int64_t shape[] = {qn_array_dim(x, 0), qn_array_dim(x, 1), heads, m->config.head_dim};
    x = normalised(s, m, qn_reshape(s, x, 4, shape), norm);
    return qn_transpose(s, x, (const int[]){0, 2, 1, 3});
}

/* Queries or keys [B, heads, L, D] turned to their positions. */
static qn_array *rotate(qn_scope *s, const qn__decoder *m, int layer, qn_array *x,
                        qn_array *position)
{
    const qn__layer_kind *kind = &m->config.layer[layer];
    if (kind->no_rope)
        return x;
    bool own = kind->sliding && m->sliding_frequency;
    return qn_rope(s, x, position, own ? m->sliding_frequency : m->frequency, false);
}

double qn__decoder_rope_length(const qn__decoder_config *c, int layer)
{
    const qn__layer_kind *kind = &c->layer[layer];
    bool own = kind->sliding && c->sliding_rope.theta > 0;
    double longer = own ? c->sliding_rope.attention : c->rope.attention;
    return kind->no_rope || longer == 0 ? 1 : longer;
}

double qn__decoder_query_scale(const qn__decoder_config *c)
{
    return c->query_scale != 0 ? c->query_scale : 1 / sqrt((double)c->head_dim);
}

/* The scale of a layer's scores, 0 for 1 / sqrt(D). */
static double score_scale(const qn__decoder_config *c, int layer)
{
    double longer = qn__decoder_rope_length(c, layer);
    return longer == 1 ? c->query_scale : qn__decoder_query_scale(c) * longer * longer;
}

/* cap tanh(x / cap); x where there is no cap */
static qn_array *capped(qn_scope *s, qn_array *x, double cap)
{
    if (cap == 0 || qn_scope_status(s) != QN_OK)
        return x;
    qn_array *c = qn_scalar(s, qn_array_dtype(x), cap);
    return qn_multiply(s, qn_tanh(s, qn_divide(s, x, c)), c);
}

/* Stretches of a layer that gradients compute again, each from what products gave, or from the
 * stream; their own products are not read again, and so not made again. */
static void begin_stretch(qn_scope *s, const qn__decoder *m)
{
    if (m->keeps == QN__KEEPS_PRODUCTS)
        qn_checkpoint_begin(s);
}

static void end_stretch(qn_scope *s, const qn__decoder *m)
{
    if (m->keeps == QN__KEEPS_PRODUCTS)
        qn_checkpoint_end(s);
}

/* x: the stream, before its norm */
static qn_array *attention(qn_scope *s, const qn__decoder *m, int layer, qn_array *x,
                           qn__batch *batch)
{
    const qn__decoder_config *c = &m->config;
    const qn__decoder_layer *w = &m->layers[layer];
    begin_stretch(s, m);
    x = qn_rms_norm(s, x, w->attention_norm, (float)c->norm_eps);
    qn_array *q = split_heads(s, m, linear(s, m, x, &w->q, batch), c->n_heads, w->q_norm);
    qn_array *k = split_heads(s, m, linear(s, m, x, &w->k, batch), c->n_kv_heads, w->k_norm);
    qn_array *v = split_heads(s, m, linear(s, m, x, &w->v, batch), c->n_kv_heads, NULL);
    qn_array *position = batch ? batch->position : qn_scalar(s, QN_I32, 0);
    q = rotate(s, m, layer, q, position);
    k = rotate(s, m, layer, k, position);
    end_stretch(s, m);
    qn_attention_options options = {.size = sizeof options,
                                    .causal = true,
                                    .scale = (float)score_scale(c, layer),
                                    .softcap = (float)c->score_cap,
                                    .window = c->layer[layer].sliding ? c->window : 0,
                                    .first = batch ? NULL : m->begins};
    qn_array *o = batch ? qn__batch_attend(s, batch, layer, q, k, v, &options)
                        : qn_attention(s, q, k, v, &options);
    o = qn_transpose(s, o, (const int[]){0, 2, 1, 3}); /* [B, L, H, D] */
    if (qn_scope_status(s) != QN_OK)
        return o;
    int64_t joined[] = {qn_array_dim(o, 0), qn_array_dim(o, 1), c->n_heads * c->head_dim};
    o = normalised(s, m, qn_reshape(s, o, 3, joined), w->attention_sub_norm);
    return linear(s, m, o, &w->output, batch);
}

static qn_array *activated(qn_scope *s, const qn__decoder *m, qn_array *x)
{
    switch (m->config.activation) {
    case QN__GELU_TANH: return qn_gelu_tanh(s, x);
    case QN__RELU_SQUARED: return qn_square(s, qn_relu(s, x));
    default: return qn_silu(s, x);
    }
}

/* x: the stream, before its norm */
static qn_array *feed_forward(qn_scope *s, const qn__decoder *m, int layer, qn_array *x,
                              const qn__batch *batch)
{
    const qn__decoder_layer *w = &m->layers[layer];
    begin_stretch(s, m);
    x = qn_rms_norm(s, x, w->ffn_norm, (float)m->config.norm_eps);
    qn_array *gate = linear(s, m, x, &w->gate, batch), *up = linear(s, m, x, &w->up, batch);
    end_stretch(s, m);
    begin_stretch(s, m);
    x = normalised(s, m, qn_multiply(s, activated(s, m, gate), up), w->ffn_sub_norm);
    x = linear(s, m, x, &w->down, batch);
    end_stretch(s, m);
    return x;
}

/* sqrt(hidden) as the checkpoint's type holds it */
static double embedding_scale(const qn__decoder_config *c)
{
    double value = 0;
    qn__element_from_f64(&value, c->dtype, sqrt((double)c->hidden));
    return qn__element_to_f64(&value, c->dtype);
}

/* The stream before the first layer, f32 (f64 for f64 weights). */
static qn_array *embed(qn_scope *s, const qn__decoder *m, qn_array *tokens)
{
    qn_array *h = qn_take(s, m->embedding, tokens, 0);
    if (qn_scope_status(s) == QN_OK && qn_array_dtype(h) != QN_F64)
        h = qn_cast(s, h, QN_F32);
    if (!m->config.scaled_embedding || qn_scope_status(s) != QN_OK)
        return h;
    return qn_multiply(s, h, qn_scalar(s, qn_array_dtype(h), embedding_scale(&m->config)));
}

qn_array *qn__decoder_hidden(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn__batch *batch,
                             qn_array **layers_out)
{
    float eps = (float)m->config.norm_eps;
    qn_array *h = embed(s, m, tokens);
    if (batch)
        batch->adapter_scale =
            batch->adapter ? qn_take(s, m->adapter_scales, batch->adapter, 0) : NULL;
    if (layers_out)
        layers_out[0] = h;
    for (int i = 0; i < m->config.n_layers; i++) {
        const qn__decoder_layer *w = &m->layers[i];
        if (m->keeps == QN__KEEPS_STREAM)
            qn_checkpoint_begin(s);
        qn_array *y = attention(s, m, i, h, batch);
        h = qn_add(s, h, normalised(s, m, y, w->attention_post_norm));
        y = feed_forward(s, m, i, h, batch);
        h = qn_add(s, h, normalised(s, m, y, w->ffn_post_norm));
        if (m->keeps == QN__KEEPS_STREAM)
            qn_checkpoint_end(s);
        if (layers_out)
            layers_out[i + 1] = h;
    }
    return qn_rms_norm(s, h, m->final_norm, eps);
}

qn_array *qn__decoder_logits(qn_scope *s, const qn__decoder *m, qn_array *hidden)
{
    if (m->head_order)
        hidden = qn_take(s, hidden, m->head_order, -1);
    qn_array *logits =
        qn_linear_with(s, hidden, m->config.tied ? m->embedding : m->head, NULL, products_of(m));
    return capped(s, logits, m->config.logit_cap);
}

qn_array *qn__decoder_run(qn_scope *s, const qn__decoder *m, qn__batch *batch)
{
    qn__batch_record(s, batch);
    qn_array *hidden = qn__decoder_hidden(s, m, batch->tokens, batch, NULL);
    return batch->n_outputs ? qn__decoder_logits(s, m, qn__batch_outputs(s, batch, hidden)) : NULL;
}

/* ---- parameters
 * ------------------------------------------------------------------------------------------ */

enum { PARAMETERS_OF_LAYER = 24, PARAMETERS_OUTSIDE = 3 };

/* What is being listed: of which decoder, from where, in which layer (-1: none). */
typedef struct listing {
    qn__decoder *m;
    const qn__decoder_place *place;
    int layer;
} listing;

static qn__parameter *add(const listing *l, qn_array **slot, int64_t rows, int64_t columns,
                          qn__role role, const char *part)
{
    qn__parameter *p = &l->m->parameters[l->m->n_parameters++];
    p->id = (qn__weight_id){role, l->layer, part};
    qn__name_weight(p->name, sizeof p->name, QN__NAMES_HUGGING_FACE, l->place, p->id);
    qn__name_weight(p->stored, sizeof p->stored, l->place->convention, l->place, p->id);
    p->slot = slot;
    p->shape[0] = rows;
    p->shape[1] = columns;
    p->ndim = columns ? 2 : 1;
    return p;
}

static void add_norm(const listing *l, qn_array **slot, int64_t n, qn__role role)
{
    add(l, slot, n, 0, role, "weight")->plus_one = l->m->config.norm_plus_one;
}

static void add_linear(const listing *l, qn__linear *w, int64_t rows, int64_t columns, bool bias,
                       qn__role role)
{
    qn__parameter *p = add(l, &w->weight, rows, columns, role, "weight");
    p->factor = &w->factor;
    p->ternary = l->m->config.ternary;
    p->order = &w->order;
    p->linear = w;
    if (bias)
        add(l, &w->bias, rows, 0, role, "bias");
}

static void add_norms(const listing *l, qn__decoder_layer *w)
{
    const qn__decoder_config *c = &l->m->config;
    bool both = c->sandwich_norms;
    add_norm(l, &w->attention_norm, c->hidden, QN__ROLE_ATTENTION_NORM);
    add_norm(l, &w->ffn_norm, c->hidden, both ? QN__ROLE_FFN_NORM_OF_TWO : QN__ROLE_FFN_NORM);
    if (both) {
        add_norm(l, &w->attention_post_norm, c->hidden, QN__ROLE_ATTENTION_POST_NORM);
        add_norm(l, &w->ffn_post_norm, c->hidden, QN__ROLE_FFN_POST_NORM);
    }
    if (c->qk_norm) {
        add_norm(l, &w->q_norm, c->head_dim, QN__ROLE_Q_NORM);
        add_norm(l, &w->k_norm, c->head_dim, QN__ROLE_K_NORM);
    }
    if (c->sub_norms) {
        add_norm(l, &w->attention_sub_norm, c->n_heads * c->head_dim, QN__ROLE_ATTENTION_SUB_NORM);
        add_norm(l, &w->ffn_sub_norm, c->ffn, QN__ROLE_FFN_SUB_NORM);
    }
}

static void add_layer(const listing *l)
{
    const qn__decoder_config *c = &l->m->config;
    qn__decoder_layer *w = &l->m->layers[l->layer];
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    add_norms(l, w);
    add_linear(l, &w->q, q, c->hidden, c->qkv_bias, QN__ROLE_Q);
    add_linear(l, &w->k, kv, c->hidden, c->qkv_bias, QN__ROLE_K);
    add_linear(l, &w->v, kv, c->hidden, c->qkv_bias, QN__ROLE_V);
    add_linear(l, &w->output, c->hidden, q, c->output_bias, QN__ROLE_OUTPUT);
    add_linear(l, &w->gate, c->ffn, c->hidden, c->mlp_bias, QN__ROLE_GATE);
    add_linear(l, &w->up, c->ffn, c->hidden, c->mlp_bias, QN__ROLE_UP);
    add_linear(l, &w->down, c->hidden, c->ffn, c->mlp_bias, QN__ROLE_DOWN);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const qn__parameter *)a)->name, ((const qn__parameter *)b)->name);
}

qn_status qn__decoder_begin(qn__decoder *m, const qn__decoder_config *config,
                            const qn__decoder_place *place, qn_error *err)
{
    *m = (qn__decoder){.config = *config};
    size_t layers = (size_t)config->n_layers;
    m->layers = calloc(layers, sizeof *m->layers);
    m->parameters =
        calloc(layers * PARAMETERS_OF_LAYER + PARAMETERS_OUTSIDE, sizeof *m->parameters);
    if (!m->layers || !m->parameters) {
        qn__decoder_end(m);
        return qn__fail_memory(err, "a model");
    }
    listing l = {m, place, -1};
    add(&l, &m->embedding, config->vocab, config->hidden, QN__ROLE_EMBEDDING, "weight");
    add_norm(&l, &m->final_norm, config->hidden, QN__ROLE_FINAL_NORM);
    if (!config->tied)
        add(&l, &m->head, config->vocab, config->hidden, QN__ROLE_HEAD, "weight")->order =
            &m->head_order;
    for (l.layer = 0; l.layer < config->n_layers; l.layer++)
        add_layer(&l);
    qsort(m->parameters, (size_t)m->n_parameters, sizeof *m->parameters, compare_names);
    return QN_OK;
}

const char *qn__parameter_quantised(const qn__parameter *p)
{
    const qn__layout *l = qn__layout_of((*p->slot)->layout);
    if (l && l->encoding->block_elements > 1)
        return l->encoding->name;
    if (p->ternary || (p->factor && *p->factor))
        return "ternary";
    return p->order && *p->order ? "in another order" : NULL;
}

void qn__decoder_end(qn__decoder *m)
{
    for (int i = 0; i < m->n_parameters; i++) {
        qn_release(*m->parameters[i].slot);
        *m->parameters[i].slot = NULL;
        if (m->parameters[i].factor)
            qn_release(*m->parameters[i].factor);
        if (m->parameters[i].order)
            qn_release(*m->parameters[i].order);
        if (m->parameters[i].linear) {
            qn_release(m->parameters[i].linear->lora_a);
            qn_release(m->parameters[i].linear->lora_b);
        }
    }
    qn_release(m->adapter_scales);
    qn_release(m->frequency);
    qn_release(m->sliding_frequency);
    free(m->layers);
    free(m->parameters);
    *m = (qn__decoder){0};
}
