/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading tokenizer.json. The file is scanned once; the vocabulary and the merges, nearly all of
 * it, go straight from the scanner into their tables, while the small parts (pre_tokenizer and so
 * on) are cut out and parsed as trees when the scan is over. Unknown kinds are refused by name.
 */
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORTED_MODELS "(supported: BPE, Unigram)"

/* The small parts, as written; data == NULL: absent. */
typedef struct parts {
    qn__json_text added_tokens, normalizer, pre_tokenizer, post_processor, decoder;
    qn__json_text merges; /* when they stand before the vocabulary */
    bool has_model, has_vocab, has_merges, is_unigram, is_bpe;
    bool top_vocab; /* tekken.json has its vocabulary outside of a model */
} parts;

static bool key_is(const qn__json_text *key, const char *word)
{
    return key->size == strlen(word) && memcmp(key->data, word, key->size) == 0;
}

/* ---- model ---------------------------------------------------------------------------------- */

/* A string, or null, into *text (size 0 for null); the bytes are in the file or in `copy`. */
static bool read_optional_string(qn__json_scan *scan, qn_text *copy)
{
    qn__json_text text = {"", 0};
    copy->n = 0;
    bool ok = qn__json_peek(scan) == QN__JSON_NULL ? qn__json_skip(scan, NULL)
                                                   : qn__json_read_string(scan, &text);
    if (!ok || qn__text_append(copy, text.data, text.size))
        return ok;
    scan->status = qn__fail_memory(scan->err, "a tokenizer");
    return false;
}

static bool read_optional_bool(qn__json_scan *scan, bool *value)
{
    return qn__json_peek(scan) == QN__JSON_NULL ? qn__json_skip(scan, NULL)
                                                : qn__json_read_bool(scan, value);
}

static bool refuse_model(qn__json_scan *scan, const char *what)
{
    return qn__json_scan_fail(scan, QN_UNSUPPORTED, "%s is not supported " SUPPORTED_MODELS, what);
}

static bool read_vocab(qn_tokenizer *t, qn__json_scan *scan, parts *p)
{
    if (p->has_vocab)
        return qn__json_scan_fail(scan, QN_FORMAT, "the key stands twice");
    p->has_vocab = true;
    if (qn__json_peek(scan) == QN__JSON_ARRAY)
        return qn__unigram_read_vocab(&t->unigram, &t->bpe, scan);
    return qn__bpe_read_vocab(&t->bpe, scan);
}

static bool read_merges(qn_tokenizer *t, qn__json_scan *scan, parts *p)
{
    if (p->has_merges)
        return qn__json_scan_fail(scan, QN_FORMAT, "the key stands twice");
    p->has_merges = true;
    return p->has_vocab ? qn__bpe_read_merges(&t->bpe, scan) : qn__json_skip(scan, &p->merges);
}

/* The id of what is unknown, or null. */
static bool read_unk_id(qn_tokenizer *t, qn__json_scan *scan)
{
    int64_t id = -1;
    bool ok = qn__json_peek(scan) == QN__JSON_NULL
                  ? qn__json_skip(scan, NULL)
                  : qn__json_read_int(scan, 0, QN__MAX_TOKEN_ID - 1, &id);
    t->bpe.unk_id = (int32_t)id;
    return ok;
}

static bool read_model_field(qn_tokenizer *t, qn__json_scan *scan, parts *p,
                             const qn__json_text *key, qn_text *unk, qn_text *text)
{
    if (key_is(key, "type")) {
        if (!read_optional_string(scan, text))
            return false;
        p->is_unigram = text->n > 0 && strcmp(text->data, "Unigram") == 0;
        p->is_bpe = text->n > 0 && strcmp(text->data, "BPE") == 0;
        if (text->n > 0 && !p->is_unigram && !p->is_bpe) {
            char what[64];
            return refuse_model(scan, qn__utf8_quote(what, sizeof what, text->data, text->n));
        }
        return true;
    }
    if (key_is(key, "unk_id"))
        return read_unk_id(t, scan);
    if (key_is(key, "unk_token"))
        return read_optional_string(scan, unk);
    if (key_is(key, "continuing_subword_prefix") || key_is(key, "end_of_word_suffix"))
        return read_optional_string(scan, text) &&
               (text->n == 0 || refuse_model(scan, "an affix that is not empty"));
    if (key_is(key, "ignore_merges"))
        return read_optional_bool(scan, &t->bpe.ignore_merges);
    if (key_is(key, "fuse_unk"))
        return read_optional_bool(scan, &t->bpe.fuse_unk);
    if (key_is(key, "byte_fallback"))
        return read_optional_bool(scan, &t->bpe.byte_fallback);
    return qn__json_skip(scan, NULL); /* dropout serves training */
}

static bool read_model(qn_tokenizer *t, qn__json_scan *scan, parts *p)
{
    qn__json_text key;
    qn_text unk = {0}, text = {0};
    if (p->has_model)
        return qn__json_scan_fail(scan, QN_FORMAT, "the key stands twice");
    p->has_model = true;
    bool ok = qn__json_enter_object(scan);
    while (ok && qn__json_next_key(scan, &key)) {
        if (key_is(&key, "vocab"))
            ok = read_vocab(t, scan, p);
        else if (key_is(&key, "merges"))
            ok = read_merges(t, scan, p);
        else
            ok = read_model_field(t, scan, p, &key, &unk, &text);
    }
    bool unigram = p->is_unigram || t->unigram.scores;
    if (!unigram)
        t->bpe.unk_id = unk.n > 0 ? qn__vocab_find(&t->bpe.vocab, unk.data, unk.n) : -1;
    if (ok && scan->status == QN_OK) {
        if (!p->has_vocab)
            qn__json_scan_fail(scan, QN_FORMAT, "vocab is missing");
        else if (unigram && (!t->unigram.scores || p->has_merges || p->is_bpe))
            qn__json_scan_fail(scan, QN_FORMAT, "a Unigram model has scores, and no merges");
        else if (unigram && t->bpe.unk_id >= (int32_t)t->unigram.n_scores)
            qn__json_scan_fail(scan, QN_FORMAT, "unk_id is not in the vocabulary");
        else if (unigram && t->bpe.unk_id < 0)
            qn__json_scan_fail(scan, QN_UNSUPPORTED,
                               "a Unigram model without an unk_id is not supported");
        else if (unigram)
            t->bpe.fuse_unk = true;
        else if (!p->has_merges)
            qn__json_scan_fail(scan, QN_UNSUPPORTED,
                               "merges are missing: not a BPE model " SUPPORTED_MODELS);
        else if (unk.n > 0 && t->bpe.unk_id < 0)
            qn__json_scan_fail(scan, QN_FORMAT, "unk_token is not in the vocabulary");
    }
    qn_text_free(&unk);
    qn_text_free(&text);
    return scan->status == QN_OK;
}

static qn_status scan_file(qn_tokenizer *t, const char *file, const char *text, size_t size,
                           parts *p, qn_error *err)
{
    qn__json_scan scan;
    qn__json_text key;
    const struct {
        const char *name;
        qn__json_text *span;
    } small[] = {
        {"added_tokens", &p->added_tokens},
        {"normalizer", &p->normalizer},
        {"pre_tokenizer", &p->pre_tokenizer},
        {"post_processor", &p->post_processor},
        {"decoder", &p->decoder},
    };
    qn__json_scan_begin(&scan, file, text, size, err);
    bool ok = qn__json_enter_object(&scan);
    while (ok && qn__json_next_key(&scan, &key)) {
        qn__json_text *span = NULL;
        for (size_t i = 0; i < sizeof small / sizeof *small; i++)
            if (key_is(&key, small[i].name))
                span = small[i].span;
        p->top_vocab |= key_is(&key, "vocab");
        if (key_is(&key, "model"))
            ok = read_model(t, &scan, p);
        else if (span && span->data)
            ok = qn__json_scan_fail(&scan, QN_FORMAT, "the key stands twice");
        else
            ok = qn__json_skip(&scan, span);
    }
    qn_status status = qn__json_scan_end(&scan);
    if (status == QN_OK && !p->has_model && p->top_vocab)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: a tekken tokenizer (Mistral's) is not supported (supported: "
                        "tokenizer.json with a model, tokenizer.model)",
                        file);
    if (status == QN_OK && !p->has_model)
        return qn__fail(err, QN_FORMAT, "%s: model is missing", file);
    if (status == QN_OK && p->merges.data) {
        qn__json_scan_begin(&scan, file, p->merges.data, p->merges.size, err);
        qn__bpe_read_merges(&t->bpe, &scan);
        status = qn__json_scan_end(&scan);
    }
    return status;
}

/* ---- added tokens --------------------------------------------------------------------------- */

static qn_status parse_added_token(qn_tokenizer *t, const qn__json_at *at, qn_error *err)
{
    const char *content;
    int64_t id;
    bool special = false, normalized = false, lstrip = false, rstrip = false, word = false;
    qn_status status = qn__json_get_string(at, "content", &content, err);
    if (status == QN_OK)
        status = qn__json_get_int(at, "id", 0, QN__MAX_TOKEN_ID - 1, &id, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "special", &special, err);
    normalized = !special;
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "normalized", &normalized, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "lstrip", &lstrip, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "rstrip", &rstrip, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "single_word", &word, err);
    if (status != QN_OK)
        return status;
    size_t n = strlen(content);
    if (n == 0)
        return QN_OK;
    if (n > QN__MAX_ADDED_TOKEN)
        return qn__json_fail(at, QN_LIMIT, err, "content of %zu bytes, more than %d", n,
                             QN__MAX_ADDED_TOKEN);
    /* A token that the vocabulary has keeps the vocabulary's id. */
    qn__vocab *vocab = &t->bpe.vocab;
    int32_t known = qn__vocab_find(vocab, content, n);
    if (known < 0) {
        known = (int32_t)id;
        qn__vocab_added added = qn__vocab_add(vocab, content, n, known);
        if (added == QN__VOCAB_MEMORY)
            return qn__fail_memory(err, "a vocabulary");
        if (added != QN__VOCAB_OK)
            return qn__json_fail(at, QN_FORMAT, err, "id %d belongs to another piece", (int)known);
        vocab->flags[known] |= QN__TOKEN_OUTSIDE;
    }
    vocab->flags[known] |= QN__TOKEN_ADDED | (special ? QN__TOKEN_SPECIAL : 0);
    unsigned flags = (special ? QN__ADDED_SPECIAL : 0) | (lstrip ? QN__ADDED_LSTRIP : 0) |
                     (rstrip ? QN__ADDED_RSTRIP : 0) | (word ? QN__ADDED_WORD : 0);
    if (!normalized)
        return qn__added_add(&t->raw, content, n, known, flags)
                   ? QN_OK
                   : qn__fail_memory(err, "added tokens");
    qn_text buffer = {0};
    const char *s = content;
    qn__match match = {.text_size = n};
    status = qn__normalize(&t->normalizer, &match, &buffer, &(bool){true}, &s, &n, err);
    qn__match_free(&match);
    if (status == QN_OK && (n != strlen(content) || memcmp(s, content, n) != 0))
        vocab->flags[known] |= QN__TOKEN_RENAMED;
    if (status == QN_OK && n > 0 && !qn__added_add(&t->normalized, s, n, known, flags))
        status = qn__fail_memory(err, "added tokens");
    qn_text_free(&buffer);
    return status;
}

static qn_status parse_added(qn_tokenizer *t, const qn__json_at *at, qn_error *err)
{
    qn__json_at item;
    qn_status status = QN_OK;
    if (!at->node || cJSON_IsNull(at->node))
        return QN_OK;
    if (!cJSON_IsArray(at->node))
        return qn__json_fail(at, QN_FORMAT, err, "expected an array");
    if (qn__json_first(at, &item))
        do
            status = parse_added_token(t, &item, err);
        while (status == QN_OK && qn__json_next(&item));
    return status;
}

static qn_status parse_normalizer_part(qn_tokenizer *t, const qn__json_at *at, qn_error *err)
{
    return qn__normalizer_parse(&t->normalizer, at, err);
}

static qn_status parse_pre_tokenizer_part(qn_tokenizer *t, const qn__json_at *at, qn_error *err)
{
    return qn__pretokenizer_parse(&t->pretokenizer, at, err);
}

static qn_status parse_decoder_part(qn_tokenizer *t, const qn__json_at *at, qn_error *err)
{
    return qn__decode_parse(&t->decoder, at, err);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static qn_status parse_part(qn_tokenizer *t, const char *file, const char *key,
                            const qn__json_text *span,
                            qn_status (*parse)(qn_tokenizer *, const qn__json_at *, qn_error *),
                            qn_error *err)
{
    qn__json_at top = qn__json_root(file, NULL);
    qn__json_at at = {.file = file, .parent = &top, .key = key};
    if (!span || !span->data)
        return parse(t, &at, err);
    cJSON *root = NULL;
    qn_status status = qn__json_parse(&root, file, span->data, span->size, err);
    if (status != QN_OK)
        return status;
    at.node = root;
    status = parse(t, &at, err);
    cJSON_Delete(root);
    return status;
}

/* The model's tables, for which the pre-tokenizer has to be known. */
qn_status qn__tokenizer_finish_model(qn_tokenizer *t, const char *file, qn_error *err)
{
    t->bpe.byte_level = t->pretokenizer.byte_level;
    if (t->bpe.byte_level && t->unigram.scores)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: pre_tokenizer: ByteLevel is not supported with a "
                        "Unigram model",
                        file);
    if (!qn__bpe_finish(&t->bpe))
        return qn__fail_memory(err, "a vocabulary");
    for (int i = 0; i < 256; i++)
        if (t->bpe.byte_level && t->bpe.byte_fallback && t->bpe.byte_ids[i] < 0)
            return qn__fail(err, QN_UNSUPPORTED,
                            "%s: model.byte_fallback with ByteLevel is not supported where a byte "
                            "(%d) has no token",
                            file, i);
    return QN_OK;
}

static qn_status finish_part(qn_tokenizer *t, const qn__json_at *at, qn_error *err)
{
    return qn__tokenizer_finish_model(t, at->file, err);
}

qn_status qn__tokenizer_parse(qn_tokenizer *t, const char *file, const char *text, size_t size,
                              qn_error *err)
{
    parts p = {0};
    t->bpe.unk_id = -1; /* unless the file says another */
    qn_status status = scan_file(t, file, text, size, &p, err);
    if (status != QN_OK)
        return status;
    const struct {
        const char *key;
        const qn__json_text *span;
        qn_status (*parse)(qn_tokenizer *, const qn__json_at *, qn_error *);
    } steps[] = {
        {"normalizer", &p.normalizer, parse_normalizer_part},
        {"pre_tokenizer", &p.pre_tokenizer, parse_pre_tokenizer_part},
        {"decoder", &p.decoder, parse_decoder_part},
        {"", NULL, finish_part},
        {"added_tokens", &p.added_tokens, parse_added},
        {"post_processor", &p.post_processor, qn__post_processor_parse},
    };
    for (size_t i = 0; status == QN_OK && i < sizeof steps / sizeof *steps; i++)
        status = parse_part(t, file, steps[i].key, steps[i].span, steps[i].parse, err);
    if (status != QN_OK)
        return status;
    qn__added_finish(&t->raw);
    qn__added_finish(&t->normalized);
    return QN_OK;
}
