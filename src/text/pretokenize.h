/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-tokenizers: a list of steps that cut a text into words, each step working on the pieces of
 * the one before. Pieces stream depth first through the steps; no list of them is ever built.
 * Adding a kind: a value of qn__pretokenize_kind, a name, a parser and a runner.
 */
#ifndef QN_TEXT_PRETOKENIZE_H
#define QN_TEXT_PRETOKENIZE_H

#include "base/json.h"
#include "base/buffers.h"
#include "text/metaspace.h"
#include "text/pattern.h"

#define QN__MAX_PRETOKENIZERS 16

typedef enum qn__pretokenize_kind {
    QN__PRETOKENIZE_SPLIT,
    QN__PRETOKENIZE_DIGITS,
    QN__PRETOKENIZE_PUNCTUATION,
    QN__PRETOKENIZE_METASPACE,
    QN__PRETOKENIZE_BYTE_LEVEL,
    QN__PRETOKENIZE_WHITESPACE, /* words and other characters in a row, without what is between */
    QN__PRETOKENIZE_WHITESPACE_SPLIT, /* what is between white space */
    QN__PRETOKENIZE_COUNT
} qn__pretokenize_kind;

typedef enum qn__split_behavior {
    QN__SPLIT_ISOLATED,
    QN__SPLIT_REMOVED,
    QN__SPLIT_CONTIGUOUS,
    QN__SPLIT_PREVIOUS, /* a match goes with what precedes it */
    QN__SPLIT_NEXT
} qn__split_behavior;

typedef struct qn__pretokenize_step {
    qn__pretokenize_kind kind;
    qn__split_behavior behavior; /* Split, Punctuation */
    qn__pattern *pattern;        /* Split */
    bool invert;                 /* Split */
    bool individual;             /* Digits */
    bool add_prefix_space;       /* ByteLevel */
    bool use_regex;              /* ByteLevel */
    char mark[4];                /* Metaspace: what stands for a space */
    size_t mark_size;
    qn__metaspace scheme; /* Metaspace */
    bool split;           /* Metaspace */
} qn__pretokenize_step;

typedef struct qn__pretokenizer {
    qn__pretokenize_step steps[QN__MAX_PRETOKENIZERS];
    int n;
    bool byte_level; /* there is a ByteLevel: words are bytes */
    bool mapped;     /* and steps behind it, which see the bytes as characters */
} qn__pretokenizer;

/* Parses the "pre_tokenizer" of a tokenizer.json. */
qn_status qn__pretokenizer_parse(qn__pretokenizer *out, const qn__json_at *at, qn_error *err);
void qn__pretokenizer_clear(qn__pretokenizer *pretokenizer);

/* Receives one word; anything but QN_OK ends the run and is returned. */
typedef qn_status (*qn__word_fn)(void *user, const char *word, size_t n, qn_error *err);

/* What a run needs of its own; zero it before the first. */
typedef struct qn__pretokenize_work {
    qn__match match;
    qn_text copies[QN__MAX_PRETOKENIZERS]; /* of the piece that a step changes */
    qn_text mapped, word; /* a piece as characters that stand for bytes; a word's bytes */
} qn__pretokenize_work;

void qn__pretokenize_work_free(qn__pretokenize_work *work);

/* Passes the words of s[0..n), valid UTF-8, to `word` in order. first: it begins the text. */
qn_status qn__pretokenize(const qn__pretokenizer *pretokenizer, qn__pretokenize_work *work,
                          const char *s, size_t n, bool first, qn__word_fn word, void *user,
                          qn_error *err);

#endif
