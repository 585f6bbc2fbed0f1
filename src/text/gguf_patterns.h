/* SPDX-License-Identifier: Apache-2.0
 *
 * What the names of tokenizer.ggml.pre stand for.
 */
#ifndef QN_TEXT_GGUF_PATTERNS_H
#define QN_TEXT_GGUF_PATTERNS_H

#include <stdbool.h>
#include <stddef.h>

enum { QN__PRE_MAX_PATTERNS = 6 };

/* How a byte-level BPE tokenizer of a GGUF file cuts a text: each pattern cuts the pieces that the
 * one before left, and its matches, like what is between them, are pieces. */
typedef struct qn__gguf_pre {
    const char *patterns[QN__PRE_MAX_PATTERNS];
    bool gpt2;          /* GPT-2's own pattern comes last */
    bool ignore_merges; /* a word that is a token is taken whole */
    bool bos;           /* bos stands before a text, unless the file says something else */
    bool characters;    /* not byte-level: U+2581 for spaces, tokens of bytes to fall back on */
} qn__gguf_pre;

/* False: the name is not known. */
bool qn__gguf_pre_named(const char *name, size_t n, qn__gguf_pre *out);

/* The names of row i, with spaces between them, for tests; NULL behind the last. */
const char *qn__gguf_pre_names(size_t i);

#endif
