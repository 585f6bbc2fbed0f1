/* SPDX-License-Identifier: Apache-2.0
 *
 * One transformer decoder, driven by a description. A family file (families/llama.c ...) fills the
 * description from config.json and says how its weights are named; everything else is here.
 */
#ifndef QN_MODELS_DECODER_H
#define QN_MODELS_DECODER_H

#include "models/names.h"
#include "nn/batch.h"
#include "nn/rope.h"

enum { QN__MOST_LAYERS = 1000 };

/* What one layer does unlike the others. */
typedef struct qn__layer_kind {
    bool sliding; /* sees the newest `window` positions, turned by sliding_rope */
    bool no_rope; /* queries and keys are not turned */
} qn__layer_kind;

/* What the gate of a feed-forward goes through. */
typedef enum qn__activation { QN__SILU, QN__GELU_TANH, QN__RELU_SQUARED } qn__activation;

/* Whether the weights of the layers' linears are -1, 0 and 1 times a number, and how the file has
 * them. */
typedef enum qn__ternary {
    QN__TERNARY_NOT,   /* or as blocks of GGUF say for themselves */
    QN__TERNARY_TIMES, /* codes, and what they are multiplied by, as is the bias */
    QN__TERNARY_OVER,  /* codes, and what they are divided by */
    QN__TERNARY_MASTER /* floats, from which both are made */
} qn__ternary;

/* The shape and kind of a model; what config.json says, checked. Zero is what a Llama does. */
typedef struct qn__decoder_config {
    char family[32];
    int64_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, max_positions;
    double norm_eps;
    qn__rope_config rope, sliding_rope; /* sliding_rope.theta 0: as rope */
    int64_t window; /* of the sliding layers, the query's own position included */
    qn__layer_kind layer[QN__MOST_LAYERS];
    bool qkv_bias, output_bias, mlp_bias;
    bool qk_norm;        /* queries and keys are normalised, head by head, before they turn */
    bool sandwich_norms; /* what attention and feed-forward give is normalised, too */
    bool norm_plus_one;  /* a norm multiplies by 1 + its weight */
    bool sub_norms;      /* what goes into the output and down layers is normalised */
    bool byte_rows;      /* what goes into layers' linears is bytes, one scale a token */
    qn__ternary ternary;
    qn__activation activation;
    bool tied;                   /* the head is the embedding */
    bool scaled_embedding;       /* times sqrt(hidden), rounded to dtype */
    double query_scale;          /* of the scores; 0: 1 / sqrt(head_dim) */
    double score_cap, logit_cap; /* c tanh(x / c) of the scores and of the logits; 0: none */
    qn_dtype
        dtype; /* of the checkpoint, as config.json or, where it is silent, the embedding says */
    bool dtype_given;
} qn__decoder_config;

/* A linear layer's parameters; bias NULL when it has none, factor when its products are what they
 * are. order: i32 [K], the column of x that each of the weight's multiplies; NULL: they stand
 * alike. */
typedef struct qn__linear {
    qn_array *weight, *bias, *factor, *order;
    qn_array *lora_a, *lora_b; /* of all adapters (adapter.h); NULL: none has any */
} qn__linear;

typedef struct qn__decoder_layer {
    qn_array *attention_norm, *ffn_norm;
    qn_array *attention_post_norm, *ffn_post_norm; /* sandwich_norms */
    qn_array *q_norm, *k_norm;                     /* qk_norm */
    qn_array *attention_sub_norm, *ffn_sub_norm;   /* sub_norms */
    qn__linear q, k, v, output;
    qn__linear gate, up, down;
} qn__decoder_layer;

/* The weights in all: their number, their bytes in the files, by encoding, too, and on the device.
 */
typedef struct qn__decoder_sizes {
    uint64_t parameters, file_bytes, device_bytes;
    uint64_t encoding_bytes[QN__ENCODING_COUNT];
} qn__decoder_sizes;

/* What a layer keeps until gradients need it; they compute the rest again. */
typedef enum qn__keeps {
    QN__KEEPS_ALL,
    QN__KEEPS_PRODUCTS, /* what products and attention give: norms, activations are cheap */
    QN__KEEPS_STREAM    /* the stream before the layer */
} qn__keeps;

/* The weights are retained arrays; `parameters` lists every one of them by its name in the file.
 * Norms that multiply by 1 + weight hold that sum. */
typedef struct qn__decoder {
    qn__decoder_config config;
    qn_array *embedding, *final_norm, *head;
    qn_array *head_order;                    /* as a qn__linear's */
    qn_array *frequency, *sliding_frequency; /* the latter NULL where it is the former */
    qn__decoder_layer *layers;
    struct qn__parameter *parameters;
    int n_parameters;
    qn_products products; /* of the linear layers */
    bool batch_invariant; /* AUTO is AUTO, not BY_ROWS */
    qn__decoder_sizes sizes;
    int n_adapters;
    qn_array *adapter_scales; /* f32 [1 + n_adapters, ranks]; NULL: there is none */
    qn_array *adapter_scale;  /* of all rows where there is no batch, while an adapter is trained
                                 (train/trainer.c); else NULL */
    qn_array *dropout_key; /* while an adapter is trained: of what goes into its matrices the part
                              `dropout` is dropped, as this key draws; else NULL */
    double dropout;
    qn_array *begins; /* i32 [B, L], where there is no batch: where in its row the text that a token
                         is of begins, which sees no other (that it begins
                         later changes nothing: turning is relative); NULL: a row is one */
    qn__keeps keeps;  /* for gradients */
} qn__decoder;

/* One weight: where it is kept, what it is, what shape it must have. */
typedef struct qn__parameter {
    char name[120];   /* Hugging Face's, by which it is known outside */
    char stored[120]; /* what its file calls it */
    qn__weight_id id;
    qn_array **slot;
    qn_array **factor; /* of its products; NULL: it can have none */
    qn__ternary ternary;
    qn_array **order;   /* of a linear layer's matrix: where to keep its columns' order */
    qn__linear *linear; /* whose matrix it is; NULL: no layer's */
    int64_t shape[2];
    int ndim;      /* 2: a matrix, packed; 1: a vector, kept in f32 */
    bool plus_one; /* kept with 1 added */
    /* In its file the rows of each head, of which there are so many, are in pairs: those that turn
     * together stand side by side, and not half a head apart as here. 0: they stand as here. */
    int64_t paired_rows;
} qn__parameter;

/* What a parameter's values are of where they are no plain numbers, for messages; else NULL. */
const char *qn__parameter_quantised(const qn__parameter *p);

/* Allocates layers and lists the parameters that the description asks for, sorted by name. */
qn_status qn__decoder_begin(qn__decoder *m, const qn__decoder_config *config,
                            const qn__decoder_place *place, qn_error *err);
void qn__decoder_end(qn__decoder *m);

/* By how much turning makes a layer's queries and keys longer. Here it does not: what that does to
 * their products is in the scale of the scores. */
double qn__decoder_rope_length(const qn__decoder_config *config, int layer);

/* The scale of the scores of queries and keys that are that long. */
double qn__decoder_query_scale(const qn__decoder_config *config);

/* The residual stream after the last layer's norm, [B, L, hidden], of tokens i32 [B, L]. With a
 * step, which is recorded, these are its tokens [1, T], each behind its sequence's; without,
 * attention is causal over these tokens alone. layers_out, when given, receives the stream after
 * the embedding and after each layer (n_layers + 1). */
qn_array *qn__decoder_hidden(qn_scope *s, const qn__decoder *m, qn_array *tokens, qn__batch *batch,
                             qn_array **layers_out);

/* Records a batch and gives the logits of the rows whose results are wanted, [1, n_outputs, V];
 * NULL when none are. */
qn_array *qn__decoder_run(qn_scope *s, const qn__decoder *m, qn__batch *batch);

/* Logits [..., V] of hidden states. */
qn_array *qn__decoder_logits(qn_scope *s, const qn__decoder *m, qn_array *hidden);

#endif
