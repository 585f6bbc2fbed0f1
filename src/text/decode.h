/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoders: how tokens become text. A list of steps; tokens pass from one to the next, and behind
 * Fuse or ByteLevel there is one token only, which comes in fragments. Adding a kind: a value of
 * qn__decode_kind, a name, and its cases in decode.c.
 */
#ifndef QN_TEXT_DECODE_H
#define QN_TEXT_DECODE_H

#include "base/json.h"
#include "quern/text.h"

#define QN__MAX_DECODE_STEPS 8

typedef enum qn__decode_kind {
    QN__DECODE_BYTE_LEVEL,
    QN__DECODE_BYTE_FALLBACK,
    QN__DECODE_FUSE, /* parsed, but not a step */
    QN__DECODE_REPLACE,
    QN__DECODE_STRIP,
    QN__DECODE_METASPACE,
    QN__DECODE_COUNT,
    QN__DECODE_JOIN = QN__DECODE_COUNT, /* no decoder at all: spaces between tokens */
    QN__DECODE_SPM                      /* as SentencePiece does, for a tokenizer.model */
} qn__decode_kind;

typedef struct qn__decode_step {
    qn__decode_kind kind;
    bool fused;          /* works on one token in fragments */
    qn_text find, put;   /* Replace; find is also Strip's character and Metaspace's replacement */
    int64_t start, stop; /* Strip */
    bool strip_first;    /* Metaspace: the first token loses its marks. SPM: the first mark goes */
    bool strip_more;     /* SPM: marks go until there is text */
} qn__decode_step;

typedef struct qn__decode_chain {
    qn__decode_step steps[QN__MAX_DECODE_STEPS];
    int n;
    bool fused;
} qn__decode_chain;

/* Parses the "decoder" of a tokenizer.json (at->node NULL or null: there is none). */
qn_status qn__decode_parse(qn__decode_chain *out, const qn__json_at *at, qn_error *err);
void qn__decode_clear(qn__decode_chain *chain);

/* The byte that a token "<0x0A>" stands for, or -1. */
int qn__byte_of_token(const char *token, size_t n);

#endif
