/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of Hugging Face's in the terms of GGUF: what models/gguf_config.c and text/
 * gguf_tokenizer.c read back.
 */
#ifndef QN_CONVERT_GGUF_MODEL_H
#define QN_CONVERT_GGUF_MODEL_H

#include "convert/convert.h"
#include "convert/gguf_keys.h"

/* What of its weights an architecture stores otherwise than Hugging Face. */
typedef struct qn__gguf_layout {
    const char *architecture;
    bool paired;      /* rows of queries and keys */
    bool norms_whole; /* with the 1 of "1 + weight" */
} qn__gguf_layout;

/* The architecture and its keys; what it cannot say is QN_UNSUPPORTED. Frequencies that are a
 * tensor there are made: c->divisors. */
qn_status qn__gguf_put_model(qn__conversion *c, qn__gguf_keys *k, qn__gguf_layout *kind);

/* The tokenizer, the chat templates, how to sample: of the directory that the source is. */
qn_status qn__gguf_put_vocab(qn__conversion *c, qn__gguf_keys *k);

#endif
