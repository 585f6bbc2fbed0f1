/* SPDX-License-Identifier: Apache-2.0
 *
 * Text: tokenizers, streaming decoding, chat formats.
 *
 *     qn_error err = {0};
 *     qn_tokenizer *tokenizer;
 *     if (qn_tokenizer_open(&tokenizer, "path/to/model", &err) != QN_OK)
 *         return fprintf(stderr, "%s\n", err.message), 1;
 *     qn_tokens tokens = {0};
 *     qn_tokenizer_encode(tokenizer, text, strlen(text), QN_ADD_SPECIAL, &tokens, &err);
 *     ...
 *     qn_tokens_free(&tokens);
 *     qn_tokenizer_close(tokenizer);
 *
 * Ids equal those of the Hugging Face tokenizers library, and of SentencePiece for a *.model. A
 * tokenizer is immutable: any number of threads may use it at once. Buffers and decoders belong to
 * one thread at a time.
 */
#ifndef QUERN_TEXT_H
#define QUERN_TEXT_H

#include "quern/base.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- growing buffers ------------------------------------------------------------------------ */

/* Token ids. Zero it before use ({0}); functions append; on failure it's as it was. */
typedef struct qn_tokens {
    int32_t *ids;
    size_t n, capacity;
} qn_tokens;

/* UTF-8 text, with a NUL behind it that n does not count. Zero it before use ({0}). */
typedef struct qn_text {
    char *data;
    size_t n, capacity;
} qn_text;

/* Bytes [begin, end) of a text. */
typedef struct qn_span {
    size_t begin, end;
} qn_span;

/* Zero it before use ({0}). */
typedef struct qn_spans {
    qn_span *spans;
    size_t n;
} qn_spans;

QN_API void qn_spans_free(qn_spans *spans);
QN_API void qn_tokens_free(qn_tokens *tokens);
QN_API void qn_text_free(qn_text *text);

/* ---- tokenizers ----------------------------------------------------------------------------- */

typedef struct qn_tokenizer qn_tokenizer;

/* Opens a model's directory, a tokenizer.json, a SentencePiece *.model or a GGUF file. Supported:
 * BPE, byte-level (Llama 3, Qwen, GPT-2, DeepSeek, ...) and SentencePiece-style (Llama 2, Gemma,
 * Mistral), and Unigram (T5); other kinds are QN_UNSUPPORTED, with the part named. In a directory
 * tokenizer.json is preferred to tokenizer.model. tokenizer_config.json and special_tokens_map.json
 * beside it give bos and eos. */
QN_API qn_status qn_tokenizer_open(qn_tokenizer **out, const char *path, qn_error *err);
QN_API void qn_tokenizer_close(qn_tokenizer *tokenizer); /* NULL is accepted */

enum {
    /* Encoding: put the tokens around the text that the model expects (such as bos). */
    QN_ADD_SPECIAL = 1,
    /* Encoding: "<|im_end|>" in the text becomes that special token. Without this flag text can
     * never become a special token: what to use for anything that a user wrote. */
    QN_PARSE_SPECIAL = 2,
    /* Decoding: leave special tokens out. */
    QN_SKIP_SPECIAL = 4
};

/* Appends the ids of text[0..n), which must be UTF-8 and may contain NUL. QN_LIMIT where the file's
 * rules or patterns take more than 64 times the text's memory (and a mebibyte), or seconds. */
QN_API qn_status qn_tokenizer_encode(const qn_tokenizer *tokenizer, const char *text, size_t n,
                                     unsigned flags, qn_tokens *out, qn_error *err);

/* Appends the text of the ids, at most 64 times what the tokens have. Always valid UTF-8: bytes
 * that form no character become U+FFFD. Ids that the tokenizer doesn't have (a model's padding)
 * give nothing. */
QN_API qn_status qn_tokenizer_decode(const qn_tokenizer *tokenizer, const int32_t *ids, size_t n,
                                     unsigned flags, qn_text *out, qn_error *err);

/* Appends the bytes of one token, which may be a part of a character. */
QN_API qn_status qn_tokenizer_token_bytes(const qn_tokenizer *tokenizer, int32_t id, qn_text *out,
                                          qn_error *err);

/* The largest id plus one. */
QN_API int32_t qn_tokenizer_vocab_size(const qn_tokenizer *tokenizer);

/* A token as the file spells it ("\xc4\xa0the" for " the"), terminated; NULL when there is none.
 * Lives as long as the tokenizer. */
QN_API const char *qn_tokenizer_piece(const qn_tokenizer *tokenizer, int32_t id);

/* The id of a token as the file spells it, or -1. */
QN_API int32_t qn_tokenizer_find(const qn_tokenizer *tokenizer, const char *piece);

QN_API bool qn_tokenizer_is_special(const qn_tokenizer *tokenizer, int32_t id);
QN_API int32_t qn_tokenizer_bos(const qn_tokenizer *tokenizer); /* -1: not known */
QN_API int32_t qn_tokenizer_eos(const qn_tokenizer *tokenizer);

/* ---- streaming ------------------------------------------------------------------------------ */

/* Turns ids into text as they come, whole characters at a time. What all calls append together
 * equals qn_tokenizer_decode of all ids. */
typedef struct qn_decoder qn_decoder;

/* The tokenizer is borrowed. flags: QN_SKIP_SPECIAL. NULL when memory is out. */
QN_API qn_decoder *qn_decoder_new(const qn_tokenizer *tokenizer, unsigned flags);
QN_API void qn_decoder_free(qn_decoder *decoder); /* NULL is accepted */

/* Appends the characters that `id` completes: maybe none. */
QN_API qn_status qn_decoder_push(qn_decoder *decoder, int32_t id, qn_text *out, qn_error *err);

/* The end: an incomplete character becomes U+FFFD. The decoder can then be used again. */
QN_API qn_status qn_decoder_flush(qn_decoder *decoder, qn_text *out, qn_error *err);

/* ---- templates ------------------------------------------------------------------------------ */

/* A chat template: Jinja as transformers runs it (trim_blocks, lstrip_blocks, the immutable
 * sandbox, loop controls, tojson, raise_exception, strftime_now, {% generation %}). Not there:
 * include, import, extends, block, autoescape, the filters random, pprint, striptags and urlize,
 * and lipsum. Integers have 64 bits; letters beyond Latin, Greek, Cyrillic, Armenian and full-width
 * forms have one case. What a sandboxed template may not use is an error also where it is only
 * printed. Immutable once made: any number of threads may render at once. */
typedef struct qn_template qn_template;

/* `name` is for messages, which say "NAME: line N: ..."; it is copied, and so is the source. */
QN_API qn_status qn_template_new(qn_template **out, const char *name, const char *source, size_t n,
                                 qn_error *err);
QN_API void qn_template_free(qn_template *t); /* NULL is accepted */

/* Zero means default. */
typedef struct qn_template_options {
    size_t size;         /* sizeof(qn_template_options) */
    const char *trusted; /* a JSON object of more variables that are not data: bos_token ... */
    int64_t now;         /* for strftime_now: local time, in seconds since 1970 as if it were UTC;
                            0: the clock's */
    uint64_t steps;      /* at most this many steps of work (20 million: less than two seconds) */
    size_t output;       /* bytes of any text it makes (64 MiB) */
    size_t memory;       /* bytes in all (512 MiB) */
    bool drop_nulls; /* leave out what is null in a message, as transformers' apply_chat_template
                        does; qn_chat_render and qn_chat_render_ids always do */
} qn_template_options;

/* Renders with the variables of a JSON object json[0..n): messages, tools, documents,
 * add_generation_prompt and others; options may be NULL. Appends to *out; `data` (NULL: not wanted)
 * receives which bytes of it came from strings of that object, sorted and apart. A template that
 * fails, calls raise_exception, or exceeds a limit (QN_LIMIT) gives one line with its reason. */
QN_API qn_status qn_template_render(const qn_template *t, const char *json, size_t n,
                                    const qn_template_options *options, qn_text *out,
                                    qn_spans *data, qn_error *err);

/* ---- chat ----------------------------------------------------------------------------------- */

typedef enum qn_chat_format {
    QN_CHAT_NONE,
    QN_CHAT_CHATML,   /* <|im_start|>user ... <|im_end|>: Qwen and many others */
    QN_CHAT_LLAMA3,   /* <|start_header_id|>user<|end_header_id|> ... <|eot_id|> */
    QN_CHAT_GEMMA,    /* <start_of_turn>user ... <end_of_turn> */
    QN_CHAT_DEEPSEEK, /* <\uff5cUser\uff5c> ... : DeepSeek R1 and its distillations */
    QN_CHAT_COUNT
} qn_chat_format;

/* role: "system", "user" or "assistant"; content: UTF-8 of content_size bytes (0: terminated). */
typedef struct qn_chat_message {
    const char *role;
    const char *content;
    size_t content_size;
} qn_chat_message;

/* The format whose control tokens the vocabulary has. */
QN_API qn_chat_format qn_chat_format_of(const qn_tokenizer *tokenizer);
QN_API const char *qn_chat_format_name(qn_chat_format format); /* "chatml", ...; "none" */

/* Appends the conversation as ids. Control tokens are put by id and message text is encoded
 * without QN_PARSE_SPECIAL, so that text cannot end a turn or speak for another role. With
 * add_prompt the header of the assistant's turn follows. QN_UNSUPPORTED: no known format. */
QN_API qn_status qn_chat_encode(const qn_tokenizer *tokenizer, const qn_chat_message *messages,
                                size_t n, bool add_prompt, qn_tokens *out, qn_error *err);

/* A model's own chat templates: chat_template.jinja ("default") and
 * additional_chat_templates/NAME.jinja (older: chat_templates/), else "chat_template" of
 * tokenizer_config.json (a text, or a list of named ones), else of chat_template.json; of a GGUF
 * file, tokenizer.chat_template ("default") and tokenizer.chat_template.NAME. */
typedef struct qn_chat qn_chat;

/* The tokenizer is borrowed and must outlive the chat. `path` is a model's directory or a GGUF
 * file; one without templates is no error, nor is a template that does not parse before it is used.
 */
QN_API qn_status qn_chat_open(qn_chat **out, const qn_tokenizer *tokenizer, const char *path,
                              qn_error *err);
QN_API void qn_chat_close(qn_chat *chat); /* NULL is accepted */
QN_API bool qn_chat_has_template(const qn_chat *chat);

/* The name of template i, in the order of names; NULL behind the last. Lives as long as the chat.
 */
QN_API const char *qn_chat_template_name(const qn_chat *chat, size_t i);

/* Takes the template of that name from now on; NULL: as transformers does, "tool_use" for chats
 * with tools where there is one, else "default". QN_NOT_FOUND, with the names there are. Not while
 * another thread renders. */
QN_API qn_status qn_chat_choose(qn_chat *chat, const char *name, qn_error *err);

/* Stores up to `capacity` of the control tokens that the templates put behind a reply: they end it,
 * also where the model's configuration names others. Returns how many there are. */
QN_API size_t qn_chat_ends(const qn_chat *chat, int32_t *ids, size_t capacity);

/* Appends the conversation as ids: by the model's own template, or where it has none by the
 * built-in format that its vocabulary fits (qn_chat_encode). With add_prompt the header of the
 * assistant's turn follows. Messages are data: no text of theirs becomes a control token. What else
 * a template may be given needs qn_chat_render_ids. */
QN_API qn_status qn_chat_apply(const qn_chat *chat, const qn_chat_message *messages, size_t n,
                               bool add_prompt, qn_tokens *out, qn_error *err);

/* Appends the ids of a chat: a JSON object with messages, maybe tools, documents,
 * add_generation_prompt and the template's own variables. Control tokens (special ones, and added
 * ones that the template's source mentions) match only in what the template wrote, never in the
 * object's strings; with QN_PARSE_SPECIAL everywhere, as transformers does. */
QN_API qn_status qn_chat_render_ids(const qn_chat *chat, const char *json, size_t n, unsigned flags,
                                    qn_tokens *out, qn_error *err);

/* Appends the text of such a chat, as the template gives it; `data` as in qn_template_render. */
QN_API qn_status qn_chat_render(const qn_chat *chat, const char *json, size_t n, qn_text *out,
                                qn_spans *data, qn_error *err);

/* Stores up to `capacity` ids that end a reply in the built-in format that the vocabulary fits, eos
 * among them; returns how many there are. */
QN_API size_t qn_chat_stop_tokens(const qn_tokenizer *tokenizer, int32_t *ids, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
