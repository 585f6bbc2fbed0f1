/* SPDX-License-Identifier: Apache-2.0
 *
 * The normalizer of a SentencePiece model: characters are replaced by a table that the file
 * carries (NFKC and more, longest match first), white space is tidied and escaped as U+2581, and
 * one is put before the text. User-defined symbols stay as they are.
 */
#ifndef QN_TEXT_SPM_NORMALIZE_H
#define QN_TEXT_SPM_NORMALIZE_H

#include "base/error.h"
#include "text/added.h"

typedef struct qn__spm_normalizer {
    uint32_t *units; /* a double-array trie; NULL: characters stay */
    size_t n_units;
    char *strings; /* what they are replaced by, each terminated */
    size_t n_strings;
    bool dummy_prefix, remove_extra_spaces, escape_spaces, space_is_suffix;
    bool prefix_first; /* the prefix goes before the whole text alone, not behind tokens in it */
    const qn__added_set *user; /* borrowed; NULL: none */
} qn__spm_normalizer;

/* Takes a copy of a file's precompiled table; `file` is for messages. */
qn_status qn__spm_charsmap(qn__spm_normalizer *normalizer, const char *file, const char *data,
                           size_t n, qn_error *err);
void qn__spm_normalizer_clear(qn__spm_normalizer *normalizer);

/* The same for a table in base 64, as a tokenizer.json has it. */
qn_status qn__spm_charsmap_text(qn__spm_normalizer *normalizer, const char *file, const char *text,
                                qn_error *err);

/* Appends s[0..n), valid UTF-8, normalized. False when memory is out, or as soon as there are more
 * than `limit` bytes. first: it begins the whole text. */
bool qn__spm_normalize(const qn__spm_normalizer *normalizer, bool first, qn_text *out,
                       const char *s, size_t n, size_t limit);

/* The Precompiled normalizer of a tokenizer.json, which uses the table in its own way: a grapheme
 * of less than six bytes is looked up whole, and becomes what its shortest prefix in the table
 * says; else each of its characters. */
bool qn__precompiled_normalize(const qn__spm_normalizer *normalizer, qn_text *out, const char *s,
                               size_t n, size_t limit);

#endif
