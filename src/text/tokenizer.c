/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers: opening, asking, encoding. A tokenizer never changes after it's opened; all that
 * encoding needs is in an `encoding` on the stack.
 */
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENIZER_FILE = 256 << 20, MAX_CONFIG_FILE = 32 << 20 };

/* ---- opening -------------------------------------------------------------------------------- */

/* "bos_token": "<s>" or {"content": "<s>", ...}; a token that isn't in the vocabulary is ignored,
 * since such files are shared between tokenizers. */
static qn_status read_named_token(const qn_tokenizer *tokenizer, const qn__json_at *config,
                                  const char *key, int32_t *id, qn_error *err)
{
    qn__json_at at;
    const char *text = NULL;
    qn_status status = QN_OK;
    if (*id >= 0 || !qn__json_find(config, key, &at))
        return QN_OK;
    if (cJSON_IsObject(at.node))
        status = qn__json_get_string(&at, "content", &text, err);
    else
        status = qn__json_as_string(&at, &text, err);
    if (status == QN_OK)
        *id = qn_tokenizer_find(tokenizer, text);
    return status;
}

static qn_status read_config(qn_tokenizer *tokenizer, const char *directory, const char *name,
                             qn_error *err)
{
    char *path;
    qn_error missing = {0};
    qn_status status = qn__path_resolve(directory, name, strlen(name), &path, &missing);
    if (status == QN_NOT_FOUND)
        return QN_OK;
    if (status != QN_OK)
        return qn__fail(err, status, "%s", missing.message);
    cJSON *root = NULL;
    status = qn__json_read(&root, path, MAX_CONFIG_FILE, err);
    if (status == QN_OK) {
        qn__json_at config = qn__json_root(path, root);
        status = read_named_token(tokenizer, &config, "bos_token", &tokenizer->bos, err);
        if (status == QN_OK)
            status = read_named_token(tokenizer, &config, "eos_token", &tokenizer->eos, err);
        cJSON_Delete(root);
    }
    free(path);
    return status;
}

static qn_status read_tokenizer(qn_tokenizer *tokenizer, const char *directory, const char *path,
                                qn_error *err)
{
    char *text;
    size_t size;
    qn_status status = qn__file_read(path, MAX_TOKENIZER_FILE, &text, &size, err);
    if (status != QN_OK)
        return status;
    status = qn__tokenizer_parse(tokenizer, path, text, size, err);
    free(text);
    if (status == QN_OK)
        status = read_config(tokenizer, directory, "tokenizer_config.json", err);
    if (status == QN_OK)
        status = read_config(tokenizer, directory, "special_tokens_map.json", err);
    tokenizer->chat = qn__chat_detect(tokenizer);
    return status;
}

qn_status qn_tokenizer_open(qn_tokenizer **out, const char *path, qn_error *err)
{
    static const char name[] = "tokenizer.json";
    *out = NULL;
    bool is_directory = false;
    qn_status status = qn__path_is_directory(path, &is_directory, err);
    if (status != QN_OK)
        return status;
    char *file = NULL, *directory = NULL;
    if (is_directory) {
        status = qn__path_resolve(path, name, sizeof name - 1, &file, err);
        if (status != QN_OK)
            return status;
    } else if (!(directory = qn__path_parent(path))) {
        return qn__fail_memory(err, "a path");
    }
    qn_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (tokenizer) {
        tokenizer->bos = tokenizer->eos = -1;
        status = read_tokenizer(tokenizer, directory ? directory : path, file ? file : path, err);
    } else {
        status = qn__fail_memory(err, "a tokenizer");
    }
    free(file);
    free(directory);
    if (status != QN_OK) {
        qn_tokenizer_close(tokenizer);
        return status;
    }
    *out = tokenizer;
    return QN_OK;
}

void qn_tokenizer_close(qn_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    qn__bpe_clear(&tokenizer->bpe);
    qn__added_clear(&tokenizer->raw);
    qn__added_clear(&tokenizer->normalized);
    qn__pretokenizer_clear(&tokenizer->pretokenizer);
    free(tokenizer);
}

/* ---- asking --------------------------------------------------------------------------------- */

int32_t qn_tokenizer_vocab_size(const qn_tokenizer *tokenizer)
{
    return tokenizer->bpe.vocab.n_ids;
}

const char *qn_tokenizer_piece(const qn_tokenizer *tokenizer, int32_t id)
{
    const qn__vocab *vocab = &tokenizer->bpe.vocab;
    if (id < 0 || id >= vocab->n_ids || vocab->offsets[id] == UINT32_MAX)
        return NULL;
    return vocab->blob.data + vocab->offsets[id];
}

int32_t qn_tokenizer_find(const qn_tokenizer *tokenizer, const char *piece)
{
    return qn__vocab_find(&tokenizer->bpe.vocab, piece, strlen(piece));
}

bool qn_tokenizer_is_special(const qn_tokenizer *tokenizer, int32_t id)
{
    const qn__vocab *vocab = &tokenizer->bpe.vocab;
    return id >= 0 && id < vocab->n_ids && (vocab->flags[id] & QN__TOKEN_SPECIAL);
}

int32_t qn_tokenizer_bos(const qn_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t qn_tokenizer_eos(const qn_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

/* ---- encoding ------------------------------------------------------------------------------- */

typedef struct encoding {
    const qn_tokenizer *tokenizer;
    bool parse_special;
    qn_tokens *out;
    qn_error *err;
    qn__bpe_work bpe;
    qn__pretokenize_work pretokenize;
    qn_text normalized;
} encoding;

static qn_status encode_word(void *user, const char *word, size_t n, qn_error *err)
{
    encoding *e = user;
    if (!qn__bpe_encode(&e->tokenizer->bpe, &e->bpe, word, n, !e->parse_special, e->out))
        return qn__fail_memory(err, "tokens");
    return QN_OK;
}

static qn_status encode_plain(encoding *e, const char *s, size_t n)
{
    return qn__pretokenize(&e->tokenizer->pretokenizer, &e->pretokenize, s, n, encode_word, e,
                           e->err);
}

/* Cuts s[0..n) at the tokens of `set`; gaps go to `gap_fn`. */
static qn_status encode_around(encoding *e, const qn__added_set *set, const char *s, size_t n,
                               qn_status (*gap_fn)(encoding *, const char *, size_t))
{
    qn__added_walk walk = {.set = set, .s = s, .n = n, .parse_special = e->parse_special};
    for (bool more = true; more;) {
        size_t gap, gap_end;
        int32_t id;
        more = qn__added_next(&walk, &gap, &gap_end, &id);
        qn_status status = gap_end > gap ? gap_fn(e, s + gap, gap_end - gap) : QN_OK;
        if (status == QN_OK && more && !qn__tokens_push(e->out, id))
            status = qn__fail_memory(e->err, "tokens");
        if (status != QN_OK)
            return status;
    }
    return QN_OK;
}

static qn_status encode_raw_gap(encoding *e, const char *s, size_t n)
{
    qn_status status = qn__normalize(&e->tokenizer->normalizer, &e->normalized, &s, &n, e->err);
    if (status != QN_OK)
        return status;
    return encode_around(e, &e->tokenizer->normalized, s, n, encode_plain);
}

static bool push_all(qn_tokens *out, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        if (!qn__tokens_push(out, ids[i]))
            return false;
    return true;
}

qn_status qn_tokenizer_encode(const qn_tokenizer *tokenizer, const char *text, size_t n,
                              unsigned flags, qn_tokens *out, qn_error *err)
{
    size_t valid = qn__utf8_check(text, n), before = out->n;
    if (valid != n)
        return qn__fail(err, QN_FORMAT, "the text is not valid UTF-8 at byte %zu", valid);
    encoding e = {
        .tokenizer = tokenizer,
        .parse_special = (flags & QN_PARSE_SPECIAL) != 0,
        .out = out,
        .err = err,
    };
    bool around = (flags & QN_ADD_SPECIAL) != 0;
    qn_status status = QN_OK;
    if (around && !push_all(out, tokenizer->prefix, tokenizer->n_prefix))
        status = qn__fail_memory(err, "tokens");
    if (status == QN_OK)
        status = encode_around(&e, &tokenizer->raw, text, n, encode_raw_gap);
    if (status == QN_OK && around && !push_all(out, tokenizer->suffix, tokenizer->n_suffix))
        status = qn__fail_memory(err, "tokens");
    qn__bpe_work_free(&e.bpe);
    qn__pretokenize_work_free(&e.pretokenize);
    qn_text_free(&e.normalized);
    if (status != QN_OK)
        out->n = before;
    return status;
}
