/* SPDX-License-Identifier: Apache-2.0
 *
 * Which type each tensor of a GGUF file gets.
 *
 * Problem: "Q4_K_M" is no type but a recipe: some matrices lose more by few bits than others, and
 * get more. Users know files by llama.cpp's names, and compare sizes and quality by them.
 * Approach: llama.cpp's rules as far as they go for the dense families here, by the name of a
 * tensor, its layer, and how many queries share a key (src/llama-quant.cpp, llama_tensor_get_type).
 * Where a row is no whole number of blocks a type of smaller blocks is taken, as there.
 */
#ifndef QN_CONVERT_RECIPE_H
#define QN_CONVERT_RECIPE_H

#include "base/error.h"
#include "quant/encoding.h"

typedef struct qn__recipe qn__recipe;

/* What the rules ask about the model. */
typedef struct qn__recipe_model {
    int64_t layers, heads, kv_heads;
    bool tied; /* the head is the embedding */
} qn__recipe_model;

struct qn__recipe {
    const char *name;      /* in lower case */
    int32_t file_type;     /* general.file_type */
    qn__encoding_id plain; /* what most matrices get */
};

/* NULL with *err filled: there is none of that name. Case does not count. */
const qn__recipe *qn__recipe_named(const char *name, qn_error *err);

/* An encoding by its name in any case, that can be encoded; -1 with *err filled: none. */
int qn__encoding_to_write(const char *name, qn_error *err);

/* The encoding of a matrix of `columns`. */
qn__encoding_id qn__recipe_encoding(const qn__recipe *recipe, const qn__recipe_model *model,
                                    const char *name, int64_t columns);

/* The encoding, or where `columns` are no whole blocks of it the one that stands for it. */
qn__encoding_id qn__encoding_that_fits(qn__encoding_id encoding, int64_t columns);

/* Whether GGUF's rules quantise a tensor of that name and rank at all. */
bool qn__recipe_applies(const char *name, int ndim);

/* Whether it is the head, or the embedding. */
bool qn__is_head(const char *name);

#endif
