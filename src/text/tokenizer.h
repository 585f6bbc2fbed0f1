/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a tokenizer, for tokenizer.c (encoding), tokenizer_load.c (reading) and decode.c.
 * Stages of encoding: added tokens in the raw text, normalizer, added tokens in the normalized
 * text, pre-tokenizer, model, post-processor.
 */
#ifndef QN_TEXT_TOKENIZER_H
#define QN_TEXT_TOKENIZER_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/decode.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/unigram.h"

/* What the post-processor puts around a text: at most this many ids on each side. */
#define QN__MAX_AROUND 16

struct qn_tokenizer {
    qn__bpe bpe;              /* the model, or only its vocabulary and bytes */
    qn__unigram unigram;      /* the model, where it has scores */
    qn__added_set raw;        /* added tokens matched before normalizing */
    qn__added_set normalized; /* and after */
    qn__normalizer normalizer;
    qn__pretokenizer pretokenizer;
    qn__decode_chain decoder;
    int32_t prefix[QN__MAX_AROUND], suffix[QN__MAX_AROUND];
    int n_prefix, n_suffix;
    int32_t bos, eos;
    qn_chat_format chat;
    struct qn__spare *spare; /* work memory that no call is using; NULL: none is kept */
};

/* Parses the "post_processor" of a tokenizer.json: what goes around a text. */
qn_status qn__post_processor_parse(qn_tokenizer *tokenizer, const qn__json_at *at, qn_error *err);

/* Parses a SentencePiece model (tokenizer.model) into a zeroed tokenizer. */
qn_status qn__spm_parse(qn_tokenizer *tokenizer, const char *file, const char *data, size_t size,
                        qn_error *err);

/* Reads the tokenizer of a GGUF file's metadata into a zeroed tokenizer: all of it, with what goes
 * around a text. */
struct qn__gguf;
qn_status qn__gguf_tokenizer(qn_tokenizer *tokenizer, const struct qn__gguf *g, qn_error *err);

/* The pre-tokenizer of a GGUF file as a tokenizer.json would have it; `file` is for messages. */
struct qn__gguf_pre;
cJSON *qn__gguf_pre_json(const struct qn__gguf_pre *pre); /* NULL: no memory */
qn_status qn__gguf_pre_tokenizer(qn__pretokenizer *out, const char *file,
                                 const struct qn__gguf_pre *pre, qn_error *err);

/* The first of GGUF's names that stands for how a tokenizer cuts texts; NULL: none does, or, with
 * *err filled, memory is out. */
const char *qn__gguf_pre_like(const qn_tokenizer *tokenizer, char name[40], qn_error *err);

/* Makes the tables of a BPE or Unigram model once its vocabulary, merges and pre-tokenizer are
 * there; `file` is for messages. */
qn_status qn__tokenizer_finish_model(qn_tokenizer *tokenizer, const char *file, qn_error *err);

/* Parses the text of a tokenizer.json into a zeroed tokenizer; `file` is for messages. */
qn_status qn__tokenizer_parse(qn_tokenizer *tokenizer, const char *file, const char *text,
                              size_t size, qn_error *err);

/* qn_tokenizer_encode, but control tokens do not match where they touch `data` (NULL: nowhere). */
qn_status qn__tokenizer_encode_data(const qn_tokenizer *tokenizer, const char *text, size_t n,
                                    const qn__added_data *data, unsigned flags, qn_tokens *out,
                                    qn_error *err);

/* Finds the chat format by the vocabulary; called once when opening. */
qn_chat_format qn__chat_detect(const qn_tokenizer *tokenizer);

#endif
