/* SPDX-License-Identifier: Apache-2.0
 *
 * One transformer decoder, driven by a description. A family file (llama.c ...) fills the description
 * from config.json and says how its weights are named; everything else is here.
 */
#ifndef QN_MODELS_DECODER_H
#define QN_MODELS_DECODER_H

#include "nn/cache.h"
#include "nn/rope.h"

/* The shape and kind of a model; what config.json says, checked. */
typedef struct qn__decoder_config {
    char family[32];
    int64_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, max_positions;
    double norm_eps;
    qn__rope_config rope;
    bool qkv_bias, output_bias, mlp_bias;
    bool tied;       /* the head is the embedding */
    qn_dtype dtype;  /* of the checkpoint, as config.json or the embedding says */
} qn__decoder_config;

/* A linear layer's parameters; bias NULL when it has none. */
typedef struct qn__linear {
    qn_array *weight, *bias;
} qn__linear;

typedef struct qn__decoder_layer {
    qn_array *attention_norm, *ffn_norm;
    qn__linear q, k, v, output;
    qn__linear gate, up, down;
} qn__decoder_layer;

/* The weights are retained arrays; `parameters` lists every one of them by its name in the file. */
typedef struct qn__decoder {
    qn__decoder_config config;
    qn_array *embedding, *final_norm, *head, *frequency;
    qn__decoder_layer *layers;
    struct qn__parameter *parameters;
    int n_parameters;
} qn__decoder;

/* One weight: where it is kept, what the file calls it, what shape it must have. */
typedef struct qn__parameter {
    char name[120];
    qn_array **slot;
    int64_t shape[2];
    int ndim; /* 2: a matrix, packed; 1: a vector, kept in f32 */
} qn__parameter;

/* Allocates layers and lists the parameters that the description asks for, by Llama's names, sorted
 * by name. `prefix` stands before each ("model." in most files). */
qn_status qn__decoder_begin(qn__decoder *m, const qn__decoder_config *config, const char *prefix,
                            qn_error *err);
void qn__decoder_end(qn__decoder *m);

/* The residual stream after the last layer's norm, [B, L, hidden], of tokens i32 [B, L]. With a cache
 * (whose step has begun) the tokens continue it; without, attention is causal over these tokens alone.
 * layers_out, when given, receives the stream after the embedding and after each layer (n_layers + 1). */
qn_array *qn__decoder_hidden(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn__cache *cache,
                             qn_array **layers_out);

/* Logits [..., V] of hidden states. */
qn_array *qn__decoder_logits(qn_scope *s, const qn__decoder *m, qn_array *hidden);

#endif
