/* SPDX-License-Identifier: Apache-2.0
 *
 * A SentencePiece model, whichever file it stands in: a tokenizer.model (sentencepiece.c) or the
 * metadata of a GGUF file (gguf_tokenizer.c).
 */
#ifndef QN_TEXT_SPM_MODEL_H
#define QN_TEXT_SPM_MODEL_H

#include "text/tokenizer.h"

/* A piece's ways to be cut are all tried: this bounds the time. Real ones have up to 16
 * characters, runs of spaces in code models a few dozen. */
enum { QN__SPM_MAX_PIECE = 256, QN__SPM_MAX_PIECES = 1 << 20 };

/* The format's numbers. */
typedef enum qn__spm_type {
    QN__SPM_NORMAL = 1,
    QN__SPM_UNKNOWN,
    QN__SPM_CONTROL,
    QN__SPM_USER,
    QN__SPM_UNUSED,
    QN__SPM_BYTE
} qn__spm_type;

enum { QN__SPM_UNIGRAM = 1, QN__SPM_BPE, QN__SPM_WORD, QN__SPM_CHAR };

/* text is UTF-8 of 1..QN__SPM_MAX_PIECE bytes, the score finite. */
typedef struct qn__spm_piece {
    const char *text;
    size_t n;
    float score;
    int32_t id;
    uint32_t type;
} qn__spm_piece;

/* The fields of a model that count. */
typedef struct qn__spm_model {
    const char *file;      /* for messages */
    qn__spm_piece *pieces; /* piece i has id i */
    size_t n, capacity;
    uint64_t type;
    int64_t bos, eos;
    bool byte_fallback, space_is_suffix;
    bool dummy_prefix, remove_extra_spaces, escape_spaces;
    bool user_raw; /* a BPE model's symbols of the user have spaces, and match before normalizing */
    const char *charsmap;
    size_t charsmap_size;
} qn__spm_model;

/* Makes a zeroed tokenizer of it; puts the pieces into another order. */
qn_status qn__spm_build(qn_tokenizer *tokenizer, qn__spm_model *model, qn_error *err);

#endif
