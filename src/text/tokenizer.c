/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers: opening, asking, encoding. A tokenizer never changes after it's opened; all that
 * encoding needs is in an `encoding` on the stack. Its work memory, with the words that are known
 * by then, is left for the next call, whichever thread makes it: one exchange takes or leaves it.
 */
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/gguf.h"
#include "base/recognize.h"
#include "base/utf8.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct qn__spare {
    _Atomic(qn__bpe_work *) work;
};

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

/* A tokenizer.model does not say what goes around a text: bos, unless its configuration differs
 * (T5's have eos); nor that newer models put the space before a text only, not also behind each
 * control token in it ("legacy": false). */
static qn_status read_around(qn_tokenizer *tokenizer, const qn__json_at *config, qn_error *err)
{
    const char *class = "";
    bool legacy = true, space = true;
    qn_status status = qn__json_opt_string(config, "tokenizer_class", &class, err);
    bool eos = strncmp(class, "T5", 2) == 0, bos = !eos;
    if (status == QN_OK)
        status = qn__json_opt_bool(config, "legacy", &legacy, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(config, "add_prefix_space", &space, err);
    tokenizer->normalizer.spm.prefix_first = !legacy;
    if (!legacy && !space) {
        tokenizer->normalizer.spm.dummy_prefix = false;
        tokenizer->decoder.steps[0].strip_first = tokenizer->decoder.steps[0].strip_more;
    }
    if (status == QN_OK)
        status = qn__json_opt_bool(config, "add_bos_token", &bos, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(config, "add_eos_token", &eos, err);
    tokenizer->n_prefix = tokenizer->n_suffix = 0;
    if (bos && tokenizer->bos >= 0)
        tokenizer->prefix[tokenizer->n_prefix++] = tokenizer->bos;
    if (eos && tokenizer->eos >= 0)
        tokenizer->suffix[tokenizer->n_suffix++] = tokenizer->eos;
    return status;
}

static qn_status read_tokenizer_config(qn_tokenizer *tokenizer, const char *directory,
                                       const char *name, bool around, qn_error *err)
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
        if (status == QN_OK && around)
            status = read_around(tokenizer, &config, err);
        cJSON_Delete(root);
    }
    free(path);
    return status;
}

/* x.model, or x.model.v3 as Mistral names newer ones: SentencePiece models. */
static bool is_spm_name(const char *path)
{
    const char *name = strrchr(path, '/'), *end = NULL;
    name = name ? name : path;
    for (const char *hit = name; (hit = strstr(hit, ".model")); hit++)
        end = hit + 6;
    return end && (!*end || (end[0] == '.' && end[1] == 'v' && end[2] && !strchr(end + 1, '.')));
}

/* tokenizer.json in a directory, or tokenizer.model where that is all there is. */
static qn_status find_file(const char *directory, char **file, qn_error *err)
{
    static const char *const names[] = {"tokenizer.json",     "tokenizer.model",
                                        "tokenizer.model.v3", "tokenizer.model.v2",
                                        "tokenizer.model.v1", "tekken.json"};
    qn_error missing = {0};
    qn_status status = QN_NOT_FOUND;
    for (size_t i = 0; status == QN_NOT_FOUND && i < sizeof names / sizeof *names; i++)
        status =
            qn__path_resolve(directory, names[i], strlen(names[i]), file, i == 0 ? &missing : NULL);
    if (status == QN_OK)
        return QN_OK;
    return qn__fail(err, missing.code ? missing.code : status, "%s", missing.message);
}

static qn_status read_tokenizer(qn_tokenizer *tokenizer, const char *directory, const char *path,
                                qn_error *err)
{
    char *text;
    size_t size;
    qn_status status = qn__file_read(path, MAX_TOKENIZER_FILE, &text, &size, err);
    if (status != QN_OK)
        return status;
    bool spm = is_spm_name(path);
    const char *is = qn__recognize_bytes(text, size);
    status = is    ? qn__fail(err, QN_UNSUPPORTED, "%s: %s", path, is)
             : spm ? qn__spm_parse(tokenizer, path, text, size, err)
                   : qn__tokenizer_parse(tokenizer, path, text, size, err);
    free(text);
    if (status == QN_OK && spm && tokenizer->bos >= 0)
        tokenizer->prefix[tokenizer->n_prefix++] = tokenizer->bos;
    if (status == QN_OK)
        status = read_tokenizer_config(tokenizer, directory, "tokenizer_config.json", spm, err);
    if (status == QN_OK)
        status = read_tokenizer_config(tokenizer, directory, "special_tokens_map.json", false, err);
    tokenizer->chat = qn__chat_detect(tokenizer);
    return status;
}

static qn_status read_gguf(qn_tokenizer *tokenizer, const char *path, qn_error *err)
{
    qn__gguf g;
    qn_status status = qn__gguf_open(&g, path, err);
    if (status != QN_OK)
        return status;
    status = qn__gguf_tokenizer(tokenizer, &g, err);
    qn__gguf_free(&g);
    tokenizer->chat = qn__chat_detect(tokenizer);
    return status;
}

/* The tokenizer's file, and the directory where more about it is; `gguf`: there is no more. */
typedef struct tokenizer_files {
    char *file, *directory;
    bool gguf;
} tokenizer_files;

static qn_status find_files(const char *path, tokenizer_files *f, qn_error *err)
{
    bool is_directory = false;
    qn_status status = qn__path_is_directory(path, &is_directory, err);
    if (status == QN_OK)
        status = qn__gguf_locate(path, &f->file, err);
    f->gguf = f->file != NULL;
    if (status != QN_OK || f->gguf)
        return status;
    if (is_directory)
        status = find_file(path, &f->file, err);
    else if (!(f->file = strdup(path)))
        status = qn__fail_memory(err, "a path");
    if (status == QN_OK && !(f->directory = is_directory ? strdup(path) : qn__path_parent(path)))
        status = qn__fail_memory(err, "a path");
    return status;
}

qn_status qn_tokenizer_open(qn_tokenizer **out, const char *path, qn_error *err)
{
    *out = NULL;
    tokenizer_files f = {0};
    qn_tokenizer *tokenizer = NULL;
    qn_status status = find_files(path, &f, err);
    if (status == QN_OK && ((tokenizer = calloc(1, sizeof *tokenizer))) &&
        (tokenizer->spare = calloc(1, sizeof *tokenizer->spare))) {
        tokenizer->bos = tokenizer->eos = -1;
        status = f.gguf ? read_gguf(tokenizer, f.file, err)
                        : read_tokenizer(tokenizer, f.directory, f.file, err);
    } else if (status == QN_OK) {
        status = qn__fail_memory(err, "a tokenizer");
    }
    free(f.file);
    free(f.directory);
    if (status != QN_OK) {
        qn_tokenizer_close(tokenizer);
        return status;
    }
    *out = tokenizer;
    return QN_OK;
}

static void free_work(qn__bpe_work *work)
{
    if (work)
        qn__bpe_work_free(work);
    free(work);
}

/* The work memory that the last call left, or new one; NULL: memory is out. */
static qn__bpe_work *take_work(const qn_tokenizer *tokenizer, size_t n)
{
    qn__bpe_work *work = tokenizer->spare ? atomic_exchange(&tokenizer->spare->work, NULL) : NULL;
    if (!work && !(work = calloc(1, sizeof *work)))
        return NULL;
    if (qn__bpe_work_begin(work, n))
        return work;
    free_work(work);
    return NULL;
}

static void leave_work(const qn_tokenizer *tokenizer, qn__bpe_work *work)
{
    qn__bpe_work_trim(work);
    free_work(tokenizer->spare ? atomic_exchange(&tokenizer->spare->work, work) : work);
}

void qn_tokenizer_close(qn_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    qn__bpe_clear(&tokenizer->bpe);
    qn__unigram_clear(&tokenizer->unigram);
    qn__added_clear(&tokenizer->raw);
    qn__added_clear(&tokenizer->normalized);
    qn__normalizer_clear(&tokenizer->normalizer);
    qn__pretokenizer_clear(&tokenizer->pretokenizer);
    qn__decode_clear(&tokenizer->decoder);
    if (tokenizer->spare)
        free_work(atomic_load(&tokenizer->spare->work));
    free(tokenizer->spare);
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
    const char *text; /* all of it */
    size_t text_size;
    const qn__added_data *data; /* bytes of it where control tokens do not match; may be NULL */
    qn_tokens *out;
    qn_error *err;
    size_t before; /* tokens that were there */
    qn__bpe_work *bpe;
    qn__pretokenize_work pretokenize;
    qn_text normalized;
} encoding;

/* The bytes that encoding a text may hold: rules that multiply the text run into it. */
static size_t memory_limit(const encoding *e)
{
    return e->text_size < SIZE_MAX / 128 ? 64 * e->text_size + (1 << 20) : SIZE_MAX / 2;
}

/* What of that is left for a word: the normalized text and its copies are there, and tokens. */
static size_t memory_left(const encoding *e)
{
    size_t held = e->pretokenize.mapped.n + e->pretokenize.word.n + 2 * e->normalized.n +
                  2 * (e->out->n - e->before) * sizeof *e->out->ids;
    for (int i = 0; i < e->tokenizer->pretokenizer.n; i++)
        held += e->pretokenize.copies[i].n;
    size_t limit = memory_limit(e);
    return held < limit ? limit - held : 0;
}

static qn_status fail_limit(const encoding *e, qn_error *err)
{
    return qn__fail(err, QN_LIMIT,
                    "encoding %zu bytes of text takes more than %zu bytes of memory (the limit: 64 "
                    "times the text and a mebibyte)",
                    e->text_size, memory_limit(e));
}

static qn_status encode_word(void *user, const char *word, size_t n, qn_error *err)
{
    encoding *e = user;
    e->bpe->over = false;
    e->bpe->limit = memory_left(e);
    if (e->bpe->limit == 0)
        return fail_limit(e, err);
    const qn_tokenizer *t = e->tokenizer;
    bool no_special = !e->parse_special || e->data;
    if (t->unigram.scores
            ? qn__unigram_encode(&t->unigram, &t->bpe, e->bpe, word, n, no_special, e->out)
            : qn__bpe_encode(&t->bpe, e->bpe, word, n, no_special, e->out))
        return QN_OK;
    return e->bpe->over ? fail_limit(e, err) : qn__fail_memory(err, "tokens");
}

static qn_status encode_plain(encoding *e, const char *s, size_t n, bool first)
{
    return qn__pretokenize(&e->tokenizer->pretokenizer, &e->pretokenize, s, n, first, encode_word,
                           e, e->err);
}

/* Cuts s[0..n) at the tokens of `set`; gaps go to `gap_fn`. first: s begins the whole text. */
static qn_status encode_around(encoding *e, const qn__added_set *set, const char *s, size_t n,
                               bool first,
                               qn_status (*gap_fn)(encoding *, const char *, size_t, bool))
{
    qn__added_walk walk = {.set = set, .s = s, .n = n, .parse_special = e->parse_special};
    /* s may be a part of the text, or a normalized copy, which counts as data throughout. */
    uintptr_t from = (uintptr_t)e->text, at = (uintptr_t)s;
    bool inside = at >= from && at - from <= e->text_size;
    qn_span all = {0, n};
    qn__added_data copied = {&all, 1, e->data ? e->data->control : NULL};
    if (e->data) {
        walk.data = inside ? e->data : &copied;
        walk.data_at = inside ? at - from : 0;
    }
    for (bool more = true; more;) {
        size_t gap, gap_end;
        int32_t id;
        more = qn__added_next(&walk, &gap, &gap_end, &id);
        qn_status status =
            gap_end > gap ? gap_fn(e, s + gap, gap_end - gap, first && gap == 0) : QN_OK;
        if (status == QN_OK && more && !qn__tokens_push(e->out, id))
            status = qn__fail_memory(e->err, "tokens");
        if (status != QN_OK)
            return status;
    }
    return QN_OK;
}

static qn_status encode_raw_gap(encoding *e, const char *s, size_t n, bool first)
{
    qn_status status = qn__normalize(&e->tokenizer->normalizer, &e->pretokenize.match,
                                     &e->normalized, &first, &s, &n, e->err);
    if (status != QN_OK)
        return status;
    return encode_around(e, &e->tokenizer->normalized, s, n, first, encode_plain);
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
    return qn__tokenizer_encode_data(tokenizer, text, n, NULL, flags, out, err);
}

qn_status qn__tokenizer_encode_data(const qn_tokenizer *tokenizer, const char *text, size_t n,
                                    const qn__added_data *data, unsigned flags, qn_tokens *out,
                                    qn_error *err)
{
    size_t valid = qn__utf8_check(text, n), before = out->n;
    if (valid != n)
        return qn__fail(err, QN_FORMAT, "the text is not valid UTF-8 at byte %zu", valid);
    encoding e = {
        .tokenizer = tokenizer,
        .parse_special = (flags & QN_PARSE_SPECIAL) != 0,
        .text = text,
        .text_size = n,
        .data = data,
        .out = out,
        .err = err,
        .before = before,
        .pretokenize.match.text_size = n,
    };
    bool around = (flags & QN_ADD_SPECIAL) != 0;
    qn_status status = QN_OK;
    e.bpe = take_work(tokenizer, n);
    if (!e.bpe)
        return qn__fail_memory(err, "tokens");
    if (around && !push_all(out, tokenizer->prefix, tokenizer->n_prefix))
        status = qn__fail_memory(err, "tokens");
    if (status == QN_OK)
        status = encode_around(&e, &tokenizer->raw, text, n, true, encode_raw_gap);
    if (status == QN_OK && around && !push_all(out, tokenizer->suffix, tokenizer->n_suffix))
        status = qn__fail_memory(err, "tokens");
    leave_work(tokenizer, e.bpe);
    qn__pretokenize_work_free(&e.pretokenize);
    qn_text_free(&e.normalized);
    if (status != QN_OK)
        out->n = before;
    return status;
}
