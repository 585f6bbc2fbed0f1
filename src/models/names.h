/* SPDX-License-Identifier: Apache-2.0
 *
 * What the weights of a decoder are called. A weight has a role in its layer; a file names roles by
 * a convention, which is a column of the table in names.c. Outside, a weight is always called by
 * Hugging Face's name.
 */
#ifndef QN_MODELS_NAMES_H
#define QN_MODELS_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* X(role, Hugging Face's name, GGUF's, Meta's). In Hugging Face's names "post_attention" says where
 * a norm stands only where there are norms on both sides; without, the norm before the feed-forward
 * has that name: so that norm has two roles. Meta's own models have no norm behind and none of
 * queries and keys; those names are as others write them who keep to its style. */
#define QN__ROLES(X)                                                                               \
    X(EMBEDDING, "embed_tokens", "token_embd", "tok_embeddings")                                   \
    X(FINAL_NORM, "norm", "output_norm", "norm")                                                   \
    X(HEAD, "lm_head", "output", "output")                                                         \
    X(ATTENTION_NORM, "input_layernorm", "attn_norm", "attention_norm")                            \
    X(ATTENTION_POST_NORM, "post_attention_layernorm", "post_attention_norm",                      \
      "post_attention_norm")                                                                       \
    X(FFN_NORM, "post_attention_layernorm", "ffn_norm", "ffn_norm")                                \
    X(FFN_NORM_OF_TWO, "pre_feedforward_layernorm", "ffn_norm", "ffn_norm")                        \
    X(FFN_POST_NORM, "post_feedforward_layernorm", "post_ffw_norm", "post_ffn_norm")               \
    X(Q_NORM, "self_attn.q_norm", "attn_q_norm", "attention.q_norm")                               \
    X(K_NORM, "self_attn.k_norm", "attn_k_norm", "attention.k_norm")                               \
    X(ATTENTION_SUB_NORM, "self_attn.attn_sub_norm", "attn_sub_norm", "attention.attn_sub_norm")   \
    X(FFN_SUB_NORM, "mlp.ffn_sub_norm", "ffn_sub_norm", "feed_forward.ffn_sub_norm")               \
    X(Q, "self_attn.q_proj", "attn_q", "attention.wq")                                             \
    X(K, "self_attn.k_proj", "attn_k", "attention.wk")                                             \
    X(V, "self_attn.v_proj", "attn_v", "attention.wv")                                             \
    X(OUTPUT, "self_attn.o_proj", "attn_output", "attention.wo")                                   \
    X(GATE, "mlp.gate_proj", "ffn_gate", "feed_forward.w1")                                        \
    X(UP, "mlp.up_proj", "ffn_up", "feed_forward.w3")                                              \
    X(DOWN, "mlp.down_proj", "ffn_down", "feed_forward.w2")

typedef enum qn__role {
#define QN__ROLE_ENUM(role, hugging_face, gguf, meta) QN__ROLE_##role,
    QN__ROLES(QN__ROLE_ENUM)
#undef QN__ROLE_ENUM
        QN__ROLE_COUNT
} qn__role;

typedef enum qn__convention {
    QN__NAMES_HUGGING_FACE,
    QN__NAMES_GGUF,
    QN__NAMES_META /* of Meta's checkpoints, and what follows them */
} qn__convention;

/* Where a file keeps a decoder: what stands before its weights' names, and before the head's, and
 * how the file names them. GGUF and Meta have one place: its prefixes are for the names
 * outside. */
typedef struct qn__decoder_place {
    const char *prefix, *head_prefix;
    qn__convention convention;
} qn__decoder_place;

/* What a weight is: part is "weight" or "bias", layer -1 outside of the layers. */
typedef struct qn__weight_id {
    qn__role role;
    int layer;
    const char *part;
} qn__weight_id;

/* Its name in a convention, cut to `room`; `place` has the prefixes of Hugging Face's names. */
void qn__name_weight(char *out, size_t room, qn__convention convention,
                     const qn__decoder_place *place, qn__weight_id id);

#endif
