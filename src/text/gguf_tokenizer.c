/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer in a GGUF file's metadata: tokenizer.ggml.model says which kind it is. "llama" and
 * "t5" are SentencePiece models, whose pieces, scores and types stand in arrays; "gpt2" is BPE over
 * bytes, with merges, and with the name of a pre-tokenizer in the place of the thing. Either is
 * brought into what the readers of tokenizer.model and tokenizer.json make tables of.
 *
 * Types are SentencePiece's. Control tokens are matched only where a caller asks for it; a user's
 * are matched everywhere.
 */
#include "base/gguf.h"
#include "base/utf8.h"
#include "text/gguf_patterns.h"
#include "text/spm_model.h"

#include <math.h>
#include <stdlib.h>

#define KEY(name) "tokenizer.ggml." name

/* The arrays of a vocabulary; scores and types may be NULL. */
typedef struct gguf_vocab {
    const qn__gguf *g;
    const qn__gguf_value *tokens, *scores, *types;
    uint32_t n;
} gguf_vocab;

/* ---- what all kinds have --------------------------------------------------------------------- */

static qn_status check_length(const gguf_vocab *v, const qn__gguf_value *array, qn_error *err)
{
    if (!array || array->n == v->n)
        return QN_OK;
    return qn__fail(err, QN_FORMAT, "%s: %s has %llu entries for %u tokens", v->g->path, array->key,
                    (unsigned long long)array->n, (unsigned)v->n);
}

static qn_status read_vocab_arrays(gguf_vocab *v, qn_error *err)
{
    const qn__gguf *g = v->g;
    if (qn__gguf_require(g, KEY("tokens"), err) != QN_OK ||
        qn__gguf_opt_array(g, KEY("tokens"), QN__GGUF_STRING, &v->tokens, err) != QN_OK ||
        qn__gguf_opt_array(g, KEY("scores"), QN__GGUF_F32, &v->scores, err) != QN_OK ||
        qn__gguf_opt_array(g, KEY("token_type"), QN__GGUF_I32, &v->types, err) != QN_OK)
        return err->code;
    if (v->tokens->n == 0 || v->tokens->n > QN__SPM_MAX_PIECES)
        return qn__fail(err, QN_LIMIT, "%s: " KEY("tokens") " has %llu entries, expected 1..%d",
                        g->path, (unsigned long long)v->tokens->n, QN__SPM_MAX_PIECES);
    v->n = (uint32_t)v->tokens->n;
    if (check_length(v, v->scores, err) != QN_OK)
        return err->code;
    return check_length(v, v->types, err);
}

static uint32_t type_at(const gguf_vocab *v, uint32_t i)
{
    int64_t type = v->types ? qn__gguf_int_at(v->types, i) : QN__SPM_NORMAL;
    return type >= QN__SPM_NORMAL && type <= QN__SPM_BYTE ? (uint32_t)type : QN__SPM_NORMAL;
}

/* A token's id by its key; -1 where the key is missing, or says that there is none. */
static qn_status read_id(const gguf_vocab *v, const char *key, int32_t *out, qn_error *err)
{
    int64_t id = *out;
    if (qn__gguf_opt_int(v->g, key, INT64_MIN, INT64_MAX, &id, err) != QN_OK)
        return err->code;
    *out = id >= 0 && id < v->n ? (int32_t)id : -1;
    return QN_OK;
}

/* Which of bos and eos go around a text. */
static qn_status read_ends(qn_tokenizer *t, const gguf_vocab *v, bool bos, bool eos, qn_error *err)
{
    if (qn__gguf_opt_bool(v->g, KEY("add_bos_token"), &bos, err) != QN_OK ||
        qn__gguf_opt_bool(v->g, KEY("add_eos_token"), &eos, err) != QN_OK)
        return err->code;
    if (bos && t->bos >= 0)
        t->prefix[t->n_prefix++] = t->bos;
    if (eos && t->eos >= 0)
        t->suffix[t->n_suffix++] = t->eos;
    return QN_OK;
}

/* ---- SentencePiece --------------------------------------------------------------------------- */

static qn_status fail_token(const gguf_vocab *v, uint32_t i, const char *what, qn_error *err)
{
    return qn__fail(err, QN_FORMAT, "%s: " KEY("tokens") "[%u]: %s", v->g->path, (unsigned)i, what);
}

/* unknown: the id of the piece that stands for what is unknown */
static qn_status read_pieces(const gguf_vocab *v, qn__spm_model *m, int32_t unknown, qn_error *err)
{
    qn__gguf_text text;
    size_t at = 0;
    if (!(m->pieces = malloc(v->n * sizeof *m->pieces)))
        return qn__fail_memory(err, "a vocabulary");
    for (; m->n < v->n && qn__gguf_next_text(v->tokens, &at, &text); m->n++) {
        uint32_t i = (uint32_t)m->n, type = type_at(v, i);
        double score = v->scores ? qn__gguf_number_at(v->scores, i) : 0;
        if (text.n == 0 || text.n > QN__SPM_MAX_PIECE ||
            qn__utf8_check(text.data, text.n) != text.n)
            return fail_token(v, i, "expected 1..256 bytes of UTF-8", err);
        if (!isfinite(score))
            return qn__fail(err, QN_FORMAT, "%s: " KEY("scores") "[%u]: not a finite number",
                            v->g->path, (unsigned)i);
        m->byte_fallback = m->byte_fallback || type == QN__SPM_BYTE;
        m->pieces[i] = (qn__spm_piece){text.data, text.n, (float)score, (int32_t)i, type};
    }
    /* one piece stands for what is unknown: others of that type are padding */
    for (size_t i = 0; i < m->n; i++)
        if (m->pieces[i].type == QN__SPM_UNKNOWN && (int32_t)i != unknown)
            m->pieces[i].type = QN__SPM_CONTROL;
    m->pieces[unknown].type = QN__SPM_UNKNOWN;
    return QN_OK;
}

/* T5's normalizer has a table of characters. */
static qn_status read_charsmap(const gguf_vocab *v, qn__spm_model *m, qn_error *err)
{
    const qn__gguf_value *map = NULL;
    if (qn__gguf_opt_array(v->g, KEY("precompiled_charsmap"), QN__GGUF_I32, &map, err) != QN_OK)
        return err->code;
    if (map && map->type != QN__GGUF_U8 && map->type != QN__GGUF_I8)
        return qn__fail(err, QN_FORMAT, "%s: %s: expected an array of bytes", v->g->path, map->key);
    m->charsmap = map ? map->data : NULL;
    m->charsmap_size = map ? map->size : 0;
    return QN_OK;
}

static qn_status read_spm_model(qn_tokenizer *t, const gguf_vocab *v, bool unigram, qn_error *err)
{
    int32_t unknown = -1;
    qn__spm_model m = {.file = v->g->path,
                       .type = unigram ? QN__SPM_UNIGRAM : QN__SPM_BPE,
                       .dummy_prefix = true,
                       .remove_extra_spaces = unigram,
                       .escape_spaces = true,
                       .user_raw = true,
                       .bos = -1,
                       .eos = -1};
    qn_status status = read_id(v, KEY("unknown_token_id"), &unknown, err);
    for (uint32_t i = 0; unknown < 0 && i < v->n; i++)
        unknown = type_at(v, i) == QN__SPM_UNKNOWN ? (int32_t)i : -1;
    unknown = unknown >= 0 && unknown < (int32_t)v->n ? unknown : 0;
    if (status == QN_OK)
        status = qn__gguf_opt_bool(v->g, KEY("add_space_prefix"), &m.dummy_prefix, err);
    if (status == QN_OK)
        status =
            qn__gguf_opt_bool(v->g, KEY("remove_extra_whitespaces"), &m.remove_extra_spaces, err);
    if (status == QN_OK && unigram)
        status = read_charsmap(v, &m, err);
    if (status == QN_OK)
        status = read_pieces(v, &m, unknown, err);
    if (status == QN_OK)
        status = qn__spm_build(t, &m, err);
    free(m.pieces);
    if (status != QN_OK)
        return status;
    t->bos = unigram ? -1 : 1;
    t->eos = unigram ? 1 : 2;
    if (read_id(v, KEY("bos_token_id"), &t->bos, err) != QN_OK ||
        read_id(v, KEY("eos_token_id"), &t->eos, err) != QN_OK)
        return err->code;
    return read_ends(t, v, !unigram, unigram, err);
}

/* ---- BPE ------------------------------------------------------------------------------------- */

/* One token. A text that stands twice belongs to the first: padding of a vocabulary does that. */
static qn_status add_token(qn_tokenizer *t, const gguf_vocab *v, uint32_t i,
                           const qn__gguf_text *text, qn_error *err)
{
    uint32_t type = type_at(v, i);
    bool special = type == QN__SPM_CONTROL || type == QN__SPM_UNKNOWN, ok = true;
    if (text->n == 0)
        return QN_OK;
    if (qn__utf8_check(text->data, text->n) != text->n)
        return fail_token(v, i, "the text is not valid UTF-8", err);
    qn__vocab_added added = qn__vocab_add(&t->bpe.vocab, text->data, text->n, (int32_t)i);
    if (added == QN__VOCAB_MEMORY)
        return qn__fail_memory(err, "a vocabulary");
    if (added != QN__VOCAB_OK || type == QN__SPM_NORMAL || type == QN__SPM_BYTE)
        return QN_OK;
    uint8_t *flags = &t->bpe.vocab.flags[i];
    *flags |= QN__TOKEN_OUTSIDE;
    if (type == QN__SPM_UNUSED)
        return QN_OK;
    if (text->n > QN__MAX_ADDED_TOKEN)
        return fail_token(v, i, "a control token of more than 512 bytes", err);
    *flags |= QN__TOKEN_ADDED | (special ? QN__TOKEN_SPECIAL : 0);
    ok = qn__added_add(&t->raw, text->data, text->n, (int32_t)i, special ? QN__ADDED_SPECIAL : 0);
    return ok ? QN_OK : qn__fail_memory(err, "added tokens");
}

/* "a b": a piece begins with any character, also with a space where these are no bytes. */
static qn_status add_merge(qn_tokenizer *t, const gguf_vocab *v, uint32_t rank,
                           const qn__gguf_text *text, qn_text *joined, qn_error *err)
{
    char quoted[80];
    const char *space = text->n > 1 ? memchr(text->data + 1, ' ', text->n - 1) : NULL;
    size_t left = space ? (size_t)(space - text->data) : 0;
    joined->n = 0;
    if (space && (!qn__text_append(joined, text->data, left) ||
                  !qn__text_append(joined, space + 1, text->n - left - 1)))
        return qn__fail_memory(err, "a merge");
    int32_t id = space ? qn__vocab_find(&t->bpe.vocab, joined->data, joined->n) : -1;
    qn__merge_added added =
        id < 0 || joined->n == left
            ? QN__MERGE_ABSENT
            : qn__bpe_add_merge(&t->bpe, joined->data, left, joined->n, rank, id);
    if (added == QN__MERGE_MEMORY)
        return qn__fail_memory(err, "a table of merges");
    if (added == QN__MERGE_ABSENT)
        return qn__fail(err, QN_FORMAT,
                        "%s: " KEY("merges") "[%u]: \"%s\" is no pair of tokens that make a third",
                        v->g->path, (unsigned)rank,
                        qn__utf8_quote(quoted, sizeof quoted, text->data, text->n));
    return QN_OK;
}

static qn_status read_bpe_tables(qn_tokenizer *t, const gguf_vocab *v, qn_error *err)
{
    const qn__gguf_value *merges = NULL;
    qn__gguf_text text;
    qn_text joined = {0};
    size_t at = 0;
    qn_status status = QN_OK;
    for (uint32_t i = 0; status == QN_OK && qn__gguf_next_text(v->tokens, &at, &text); i++)
        status = add_token(t, v, i, &text, err);
    t->bpe.vocab.n_pieces = (int32_t)v->n;
    if (status == QN_OK)
        status = qn__gguf_require(v->g, KEY("merges"), err);
    if (status == QN_OK)
        status = qn__gguf_opt_array(v->g, KEY("merges"), QN__GGUF_STRING, &merges, err);
    if (status == QN_OK && merges->n >= UINT32_MAX)
        status = qn__fail(err, QN_LIMIT, "%s: " KEY("merges") ": too many", v->g->path);
    at = 0;
    for (uint32_t i = 0; status == QN_OK && qn__gguf_next_text(merges, &at, &text); i++)
        status = add_merge(t, v, i, &text, &joined, err);
    qn_text_free(&joined);
    return status;
}

static bool add_split(cJSON *steps, const char *pattern)
{
    cJSON *step = cJSON_CreateObject(),
          *at = step ? cJSON_AddObjectToObject(step, "pattern") : NULL;
    bool ok = at && cJSON_AddStringToObject(at, "Regex", pattern) &&
              cJSON_AddStringToObject(step, "type", "Split") &&
              cJSON_AddStringToObject(step, "behavior", "Isolated") &&
              cJSON_AddFalseToObject(step, "invert") && cJSON_AddItemToArray(steps, step);
    if (!ok)
        cJSON_Delete(step);
    return ok;
}

static bool add_byte_level(cJSON *steps, bool regex)
{
    cJSON *step = cJSON_CreateObject();
    bool ok = step && cJSON_AddStringToObject(step, "type", "ByteLevel") &&
              cJSON_AddBoolToObject(step, "add_prefix_space", false) &&
              cJSON_AddBoolToObject(step, "trim_offsets", true) &&
              cJSON_AddBoolToObject(step, "use_regex", regex) && cJSON_AddItemToArray(steps, step);
    if (!ok)
        cJSON_Delete(step);
    return ok;
}

cJSON *qn__gguf_pre_json(const qn__gguf_pre *pre)
{
    cJSON *root = cJSON_CreateObject(), *steps = NULL;
    bool ok = root && cJSON_AddStringToObject(root, "type", "Sequence") &&
              (steps = cJSON_AddArrayToObject(root, "pretokenizers"));
    for (int i = 0; ok && i < QN__PRE_MAX_PATTERNS && pre->patterns[i]; i++)
        ok = add_split(steps, pre->patterns[i]);
    if (ok && !pre->characters)
        ok = add_byte_level(steps, pre->gpt2);
    if (ok)
        return root;
    cJSON_Delete(root);
    return NULL;
}

qn_status qn__gguf_pre_tokenizer(qn__pretokenizer *out, const char *file, const qn__gguf_pre *pre,
                                 qn_error *err)
{
    cJSON *root = qn__gguf_pre_json(pre);
    qn__json_at at = qn__json_root(file, root);
    qn_status status =
        root ? qn__pretokenizer_parse(out, &at, err) : qn__fail_memory(err, "a pre-tokenizer");
    cJSON_Delete(root);
    return status;
}

/* A normalizer or a decoder, written out. */
static qn_status make_part(qn_tokenizer *t, const char *file, const char *json, bool decoder,
                           qn_error *err)
{
    cJSON *root = NULL;
    qn_status status = qn__json_parse(&root, file, json, strlen(json), err);
    if (status != QN_OK)
        return status;
    qn__json_at at = qn__json_root(file, root);
    status = decoder ? qn__decode_parse(&t->decoder, &at, err)
                     : qn__normalizer_parse(&t->normalizer, &at, err);
    cJSON_Delete(root);
    return status;
}

static qn_status make_bpe_steps(qn_tokenizer *t, const char *file, const qn__gguf_pre *pre,
                                qn_error *err)
{
    static const char spaces[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}";
    static const char characters[] =
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}";
    qn_status status = qn__gguf_pre_tokenizer(&t->pretokenizer, file, pre, err);
    if (status == QN_OK && pre->characters)
        status = make_part(t, file, spaces, false, err);
    if (status == QN_OK)
        status = make_part(t, file, pre->characters ? characters : "{\"type\":\"ByteLevel\"}", true,
                           err);
    t->bpe.ignore_merges = pre->ignore_merges;
    t->bpe.byte_fallback = t->bpe.fuse_unk = pre->characters;
    return status == QN_OK ? qn__tokenizer_finish_model(t, file, err) : status;
}

static qn_status read_pre(const gguf_vocab *v, qn__gguf_pre *pre, qn_error *err)
{
    char quoted[80];
    qn__gguf_text name = {"default", 7};
    if (qn__gguf_opt_text(v->g, KEY("pre"), &name, err) != QN_OK)
        return err->code;
    if (qn__gguf_pre_named(name.data, name.n, pre))
        return QN_OK;
    return qn__fail(err, QN_UNSUPPORTED,
                    "%s: " KEY("pre") ": the pre-tokenizer \"%s\" is not known; the tokenizer.json "
                                      "of the model it was made from would be",
                    v->g->path, qn__utf8_quote(quoted, sizeof quoted, name.data, name.n));
}

static qn_status read_bpe(qn_tokenizer *t, const gguf_vocab *v, qn_error *err)
{
    qn__gguf_pre pre;
    qn_status status = read_pre(v, &pre, err);
    t->bpe.unk_id = -1;
    if (status == QN_OK)
        status = read_bpe_tables(t, v, err);
    if (status == QN_OK && pre.characters)
        status = read_id(v, KEY("unknown_token_id"), &t->bpe.unk_id, err);
    if (status == QN_OK)
        status = make_bpe_steps(t, v->g->path, &pre, err);
    if (status == QN_OK)
        status = read_id(v, KEY("bos_token_id"), &t->bos, err);
    if (status == QN_OK)
        status = read_id(v, KEY("eos_token_id"), &t->eos, err);
    if (status != QN_OK)
        return status;
    qn__added_finish(&t->raw);
    qn__added_finish(&t->normalized);
    return read_ends(t, v, pre.bos, false, err);
}

/* ---- all of it ------------------------------------------------------------------------------- */

qn_status qn__gguf_tokenizer(qn_tokenizer *t, const qn__gguf *g, qn_error *err)
{
    qn_error own = {0};
    gguf_vocab v = {.g = g};
    char quoted[80];
    qn__gguf_text model = {"", 0};
    t->bos = t->eos = -1;
    if (!qn__gguf_find(g, KEY("model")))
        return qn__fail(err, QN_NOT_FOUND, "%s: there is no tokenizer in it (" KEY("model") ")",
                        g->path);
    if (qn__gguf_opt_text(g, KEY("model"), &model, &own) == QN_OK) {
        if (qn__gguf_text_is(&model, "none") || qn__gguf_text_is(&model, "no_vocab"))
            return qn__fail(err, QN_NOT_FOUND, "%s: there is no tokenizer in it", g->path);
        bool spm = qn__gguf_text_is(&model, "llama"), unigram = qn__gguf_text_is(&model, "t5");
        if (!spm && !unigram && !qn__gguf_text_is(&model, "gpt2"))
            qn__fail(&own, QN_UNSUPPORTED,
                     "%s: " KEY("model") ": \"%s\"%s is not supported (supported: llama, gpt2, t5)",
                     g->path, qn__utf8_quote(quoted, sizeof quoted, model.data, model.n),
                     qn__gguf_text_is(&model, "bert") ? ", which is WordPiece," : "");
        else if (read_vocab_arrays(&v, &own) == QN_OK)
            spm || unigram ? read_spm_model(t, &v, unigram, &own) : read_bpe(t, &v, &own);
    }
    return own.code == QN_OK ? QN_OK : qn__fail(err, own.code, "%s", own.message);
}
