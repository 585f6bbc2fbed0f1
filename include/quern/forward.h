/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model makes of texts without writing: the tokens that may follow, the probabilities of
 * labels, embeddings, and what attention sees. Many texts of any lengths run side by side, in as
 * few steps as their tokens fill; what comes out for a text is, to the bit, what it would get
 * alone (on CUDA where the model is batch_invariant).
 *
 *     qn_ids texts[] = {{first, n_first}, {second, n_second}};
 *     qn_ids labels[] = {{yes, n_yes}, {no, n_no}};
 *     qn_label_score scores[2][2];
 *     qn_classify(model, texts, 2, labels, 2, NULL, &scores[0][0], &err);
 *
 * The functions may be called by several threads at once.
 */
#ifndef QUERN_FORWARD_H
#define QUERN_FORWARD_H

#include "quern/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tokens of a text or a label, at least one; borrowed. */
typedef struct qn_ids {
    const int32_t *ids;
    size_t n;
} qn_ids;

typedef struct qn_forward_options {
    size_t size;           /* sizeof(qn_forward_options) */
    int64_t step_tokens;   /* of a step, at most; 0: 512. Does not change a bit of the result where
                              the model is batch_invariant, or on the CPU */
    int64_t cache_tokens;  /* of texts whose keys and values are kept while their labels run; 0: as
                              many as fit 1 GiB. At least those of the longest text. */
    const qn_flag *cancel; /* polled while running: true makes calls fail with QN_CANCELLED */
    void (*progress)(void *user, uint64_t done, uint64_t total); /* tokens, after each step */
    void *progress_user;
} qn_forward_options;

/* For all of these: options may be NULL. A text or a label of no tokens or with one outside the
 * vocabulary is QN_INVALID, one that is longer than the model's context (with its labels) QN_LIMIT,
 * with its number. After a failure what out holds is not to be used. */

/* Logits of the token behind each of n texts, [n, vocab_size], into out. */
QN_API qn_status qn_next_logits(qn_model *model, const qn_ids *texts, size_t n,
                                const qn_forward_options *options, float *out, qn_error *err);

typedef struct qn_token_score {
    int32_t id; /* -1: there are no more tokens */
    float logit, logprob;
} qn_token_score;

/* The `top` most probable tokens behind each text, best first, [n, top], into out. At most 1000. */
QN_API qn_status qn_next_tokens(qn_model *model, const qn_ids *texts, size_t n, size_t top,
                                const qn_forward_options *options, qn_token_score *out,
                                qn_error *err);

typedef struct qn_label_score {
    double logprob;     /* of the label's tokens behind the text: the sum of theirs */
    double probability; /* among the labels: those of a text sum to 1 */
} qn_label_score;

/* How probable each of the labels is behind each text, [n, n_labels], into out. */
QN_API qn_status qn_classify(qn_model *model, const qn_ids *texts, size_t n, const qn_ids *labels,
                             size_t n_labels, const qn_forward_options *options,
                             qn_label_score *out, qn_error *err);

/* ---- embeddings ------------------------------------------------------------------------------ */

typedef enum qn_pooling {
    QN_POOL_MEAN, /* the mean over a text's tokens */
    QN_POOL_LAST  /* its last token */
} qn_pooling;

typedef enum qn_norm {
    QN_NORM_L2,        /* the vector has length 1 */
    QN_NORM_L1,        /* its elements' sizes sum to 1 */
    QN_NORM_MAX_INT16, /* the largest of these is 32760, as llama.cpp has it */
    QN_NORM_NONE
} qn_norm;

typedef struct qn_embed_options {
    size_t size; /* sizeof(qn_embed_options) */
    qn_pooling pooling;
    qn_norm norm;
} qn_embed_options;

/* A vector for each text, [n, hidden_size], into out: of the hidden states behind the last norm,
 * where the head would take them. A vector of zeros stays that. */
QN_API qn_status qn_embed(qn_model *model, const qn_ids *texts, size_t n,
                          const qn_embed_options *embed, const qn_forward_options *options,
                          float *out, qn_error *err);

/* ---- inside attention ------------------------------------------------------------------------ */

typedef struct qn_inspection qn_inspection;

typedef struct qn_inspect_options {
    size_t size;               /* sizeof(qn_inspect_options) */
    int first_layer, n_layers; /* which layers; n_layers 0: all from the first on */
} qn_inspect_options;

/* Runs a text and keeps the queries and keys of layers as they go into the scores: after their norm
 * and rope, where the layer has them. inspect may be NULL. It keeps the model open. */
QN_API qn_status qn_inspect(qn_inspection **out, qn_model *model, const qn_ids *text,
                            const qn_inspect_options *inspect, const qn_forward_options *options,
                            qn_error *err);
QN_API void qn_inspection_free(qn_inspection *inspection); /* NULL is accepted */

/* Queries [n_heads, n, head_dim] and keys [n_kv_heads, n, head_dim] of a layer, f32; the heads
 * h * n_heads / n_kv_heads and up share key head h. NULL: the layer is none of those. They live as
 * long as the inspection. */
QN_API const float *qn_inspection_queries(const qn_inspection *inspection, int layer);
QN_API const float *qn_inspection_keys(const qn_inspection *inspection, int layer);

/* The weights [n, n] of a head: how much of each token (columns) goes into what each (rows) reads,
 * by the layer's scale, cap and window, computed in f64 from these queries and keys. Rows sum to 1.
 */
QN_API qn_status qn_inspection_attention(const qn_inspection *inspection, int layer, int head,
                                         float *out, qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
