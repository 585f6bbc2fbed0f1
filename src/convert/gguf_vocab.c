/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory's tokenizer, chat templates and sampling as GGUF's metadata.
 *
 * The tokenizer that was read is written, not its file: so tokenizer.json and tokenizer.model are
 * the same here. Byte-level BPE becomes "gpt2", with its merges and the name of its pre-tokenizer.
 * BPE over characters becomes "llama", SentencePiece's, which has scores in the place of merges: a
 * piece's is minus the rank of the first merge that makes it. Unigram becomes "t5", with its scores
 * and its table of characters. As many tokens are written as the embedding has rows.
 */
#include "convert/gguf_model.h"
#include "core/device.h"
#include "text/chat_templates.h"
#include "text/gguf_patterns.h"
#include "text/spm_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

enum { LARGEST_CONFIG = 4 << 20, MOST_ENDS = 3 };

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */

typedef struct vocab {
    const qn_tokenizer *t;
    int32_t n;         /* tokens in the output */
    uint32_t *ranks;   /* by id: of the first merge that makes it; UINT32_MAX: none */
    qn__merge *merges; /* by rank */
    size_t n_merges;
    bool *user; /* by id: matched everywhere, and not special */
} vocab;

/* ---- tables ---------------------------------------------------------------------------------- */

static int compare_ranks(const void *a, const void *b)
{
    const qn__merge *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->a != y->a ? (x->a < y->a ? -1 : 1) : x->b < y->b ? -1 : x->b > y->b;
}

/* The merges of tokens that are written, in order. */
static qn_status sort_merges(vocab *v, qn_error *err)
{
    const qn__bpe *bpe = &v->t->bpe;
    v->merges = malloc((bpe->n_merges + 1) * sizeof *v->merges);
    v->ranks = malloc(((size_t)v->n + 1) * sizeof *v->ranks);
    if (!v->merges || !v->ranks)
        return qn__fail_memory(err, "a table of merges");
    memset(v->ranks, 0xff, ((size_t)v->n + 1) * sizeof *v->ranks);
    for (size_t i = 0; i < bpe->n_merge_slots; i++) {
        const qn__merge *m = &bpe->merges[i];
        if (m->a == UINT32_MAX || m->a >= (uint32_t)v->n || m->b >= (uint32_t)v->n || m->id >= v->n)
            continue;
        v->merges[v->n_merges++] = *m;
        if (m->rank < v->ranks[m->id])
            v->ranks[m->id] = m->rank;
    }
    qsort(v->merges, v->n_merges, sizeof *v->merges, compare_ranks);
    return QN_OK;
}

static qn_status mark_users(vocab *v, qn_error *err)
{
    const qn__added_set *const sets[] = {&v->t->raw, &v->t->normalized, &v->t->unigram.user};
    if (!(v->user = calloc((size_t)v->n + 1, sizeof *v->user)))
        return qn__fail_memory(err, "a table of tokens");
    for (int s = 0; s < 3; s++)
        for (size_t i = 0; i < sets[s]->n; i++) {
            const qn__added_token *token = &sets[s]->tokens[i];
            if (token->id < v->n && !(token->flags & QN__ADDED_SPECIAL))
                v->user[token->id] = true;
        }
    return QN_OK;
}

static uint8_t flags_of(const vocab *v, int32_t id)
{
    return qn_tokenizer_piece(v->t, id) ? v->t->bpe.vocab.flags[id] : 0;
}

static int32_t type_of(const vocab *v, int32_t id)
{
    const char *piece = qn_tokenizer_piece(v->t, id);
    const qn__bpe *bpe = &v->t->bpe;
    uint8_t flags = flags_of(v, id);
    if (!piece)
        return QN__SPM_UNUSED;
    if (!bpe->byte_level && id == bpe->unk_id)
        return QN__SPM_UNKNOWN;
    for (int i = 0; !bpe->byte_level && bpe->byte_fallback && i < 256; i++)
        if (bpe->fallback_ids[i] == id)
            return QN__SPM_BYTE;
    if (flags & QN__TOKEN_SPECIAL)
        return QN__SPM_CONTROL;
    /* runs of spaces that merges make anyway */
    bool made = !bpe->byte_level && v->ranks[id] != UINT32_MAX && strstr(piece, space_mark);
    return ((flags & QN__TOKEN_ADDED) || v->user[id]) && !made ? QN__SPM_USER : QN__SPM_NORMAL;
}

static void put_tokens(const vocab *v, qn__gguf_keys *k)
{
    qn__put_array(k, KEY("tokens"), QN__GGUF_STRING, (uint64_t)v->n);
    for (int32_t i = 0; i < v->n; i++) {
        char padding[30];
        const char *piece = qn_tokenizer_piece(v->t, i);
        snprintf(padding, sizeof padding, "[PAD%d]", (int)i);
        piece = piece ? piece : padding;
        qn__put_element(k, piece, piece == padding ? strlen(padding) : v->t->bpe.vocab.sizes[i]);
    }
    qn__put_array(k, KEY("token_type"), QN__GGUF_I32, (uint64_t)v->n);
    for (int32_t i = 0; i < v->n; i++) {
        int32_t type = type_of(v, i);
        qn__put_bytes(k, &type, sizeof type);
    }
}

static qn_status put_merges(const vocab *v, qn__gguf_keys *k, qn_error *err)
{
    qn_text line = {0};
    bool ok = true;
    qn__put_array(k, KEY("merges"), QN__GGUF_STRING, v->n_merges);
    for (size_t i = 0; ok && i < v->n_merges; i++) {
        int32_t a = (int32_t)v->merges[i].a, b = (int32_t)v->merges[i].b;
        line.n = 0;
        ok = qn__text_append(&line, qn_tokenizer_piece(v->t, a), v->t->bpe.vocab.sizes[a]) &&
             qn__text_append(&line, " ", 1) &&
             qn__text_append(&line, qn_tokenizer_piece(v->t, b), v->t->bpe.vocab.sizes[b]);
        if (ok)
            qn__put_element(k, line.data, line.n);
    }
    qn_text_free(&line);
    return ok ? QN_OK : qn__fail_memory(err, "a table of merges");
}

static void put_scores(const vocab *v, qn__gguf_keys *k)
{
    float none = -(float)v->t->bpe.n_merges - 1;
    qn__put_array(k, KEY("scores"), QN__GGUF_F32, (uint64_t)v->n);
    for (int32_t i = 0; i < v->n; i++) {
        float score = v->ranks[i] != UINT32_MAX ? -(float)v->ranks[i] : none;
        if (type_of(v, i) != QN__SPM_NORMAL)
            score = 0;
        qn__put_bytes(k, &score, sizeof score);
    }
}

/* Whether a space is put before a text: seen by what becomes of one. */
static qn_status adds_space(const qn_tokenizer *t, bool *out, qn_error *err)
{
    qn_tokens ids = {0};
    qn_status status = qn_tokenizer_encode(t, "x", 1, 0, &ids, err);
    const char *piece = status == QN_OK && ids.n ? qn_tokenizer_piece(t, ids.ids[0]) : NULL;
    *out = piece && !strncmp(piece, space_mark, sizeof space_mark - 1);
    qn_tokens_free(&ids);
    return status;
}

/* ---- Unigram --------------------------------------------------------------------------------- */

static qn_status refuse_steps(const qn__conversion *c)
{
    return qn__fail(
        c->err, QN_UNSUPPORTED,
        "%s: the steps around its Unigram model are none that GGUF has keys for: a table "
        "of characters, fewer spaces, Metaspace",
        c->source.path);
}

/* What SentencePiece's normalizer would do for the steps that stand for one in a tokenizer.json. */
static qn_status read_spm_steps(const qn__conversion *c, const qn_tokenizer *t, bool *prefix,
                                bool *fewer_spaces)
{
    const qn__normalizer *n = &t->normalizer;
    const qn__pretokenizer *p = &t->pretokenizer;
    const qn__pretokenize_step *last = &p->steps[p->n > 0 ? p->n - 1 : 0];
    *prefix = n->spm.dummy_prefix;
    *fewer_spaces = n->spm.remove_extra_spaces;
    if (n->n > 0 && n->steps[0].kind == QN__NORMALIZE_SPM)
        return n->spm.space_is_suffix || !n->spm.escape_spaces ? refuse_steps(c) : QN_OK;
    if (p->n < 1 || last->kind != QN__PRETOKENIZE_METASPACE ||
        p->n > 1 + (p->steps[0].kind == QN__PRETOKENIZE_WHITESPACE_SPLIT))
        return refuse_steps(c);
    *prefix = last->scheme != QN__METASPACE_NEVER;
    *fewer_spaces = p->n > 1;
    for (int i = 0; i < n->n; i++) {
        qn__normalizer_kind kind = n->steps[i].kind;
        if (kind != QN__NORMALIZE_PRECOMPILED && kind != QN__NORMALIZE_STRIP &&
            kind != QN__NORMALIZE_REPLACE)
            return refuse_steps(c);
        *fewer_spaces = *fewer_spaces || kind != QN__NORMALIZE_PRECOMPILED;
    }
    if (*prefix && !*fewer_spaces) /* Metaspace puts none before a space; SentencePiece does */
        qn__log(c->device, QN_LOG_WARN,
                "%s: a text that begins with a space gets one token more from the GGUF file",
                c->source.path);
    return QN_OK;
}

static qn_status put_unigram(qn__conversion *c, qn__gguf_keys *k, const vocab *v)
{
    const qn__spm_normalizer *spm = &v->t->normalizer.spm;
    uint32_t size = (uint32_t)(spm->n_units * sizeof *spm->units);
    bool prefix, fewer_spaces;
    if (read_spm_steps(c, v->t, &prefix, &fewer_spaces) != QN_OK)
        return c->err->code;
    qn__put_text(k, KEY("model"), "t5", 2);
    qn__put_text(k, KEY("pre"), "default", 7);
    put_tokens(v, k);
    qn__put_array(k, KEY("scores"), QN__GGUF_F32, (uint64_t)v->n);
    for (int32_t i = 0; i < v->n; i++) {
        float score = (size_t)i < v->t->unigram.n_scores ? (float)v->t->unigram.scores[i] : 0;
        qn__put_bytes(k, &score, sizeof score);
    }
    qn__put_bool(k, KEY("add_space_prefix"), prefix);
    qn__put_bool(k, KEY("remove_extra_whitespaces"), fewer_spaces);
    if (size) {
        qn__put_array(k, KEY("precompiled_charsmap"), QN__GGUF_U8,
                      sizeof size + size + spm->n_strings);
        qn__put_bytes(k, &size, sizeof size);
        qn__put_bytes(k, spm->units, size);
        qn__put_bytes(k, spm->strings, spm->n_strings);
    }
    return QN_OK;
}

/* ---- which kind it is ------------------------------------------------------------------------ */

static qn_status put_kind(qn__conversion *c, qn__gguf_keys *k, vocab *v)
{
    char name[40];
    bool space = false, bytes = v->t->bpe.byte_level;
    if (sort_merges(v, c->err) != QN_OK || mark_users(v, c->err) != QN_OK)
        return c->err->code;
    if (v->t->unigram.scores)
        return put_unigram(c, k, v);
    qn__put_text(k, KEY("model"), bytes ? "gpt2" : "llama", bytes ? 4 : 5);
    if (bytes && !qn__gguf_pre_like(v->t, name, c->err))
        return c->err->code != QN_OK
                   ? c->err->code
                   : qn__fail(c->err, QN_UNSUPPORTED,
                              "%s: its pre-tokenizer is none of those that GGUF has names for",
                              c->source.path);
    const char *pre = bytes ? name : "default";
    qn__put_text(k, KEY("pre"), pre, strlen(pre));
    put_tokens(v, k);
    if (bytes)
        return put_merges(v, k, c->err);
    put_scores(v, k);
    if (adds_space(v->t, &space, c->err) != QN_OK)
        return c->err->code;
    qn__put_bool(k, KEY("add_space_prefix"), space);
    return QN_OK;
}

/* ---- ids ------------------------------------------------------------------------------------- */

/* The token that stands alone around a text, or the tokenizer's own. */
static int32_t end_of(int32_t own, const int32_t *around, int n)
{
    return own < 0 && n == 1 ? around[0] : own;
}

/* Tokens that end a reply: the tokenizer's own first, then the configuration's. */
static void put_ends(qn__gguf_keys *k, const qn_tokenizer *t, int32_t n, const cJSON *ends)
{
    static const char *const keys[MOST_ENDS] = {KEY("eos_token_id"), KEY("eot_token_id"),
                                                KEY("eom_token_id")};
    int32_t put[MOST_ENDS];
    int n_put = 0;
    int32_t eos = end_of(t->eos, t->suffix, t->n_suffix);
    if (eos >= 0 && eos < n)
        put[n_put++] = eos;
    const cJSON *item = cJSON_IsArray(ends) ? ends->child : ends;
    for (; item && n_put < MOST_ENDS; item = item->next) {
        bool known = !cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble >= n;
        for (int i = 0; i < n_put && !known; i++)
            known = put[i] == (int32_t)item->valuedouble;
        if (!known)
            put[n_put++] = (int32_t)item->valuedouble;
        if (!cJSON_IsArray(ends))
            break;
    }
    for (int i = 0; i < n_put; i++)
        qn__put_u32(k, keys[i], (uint32_t)put[i]);
}

static bool stands(const int32_t *ids, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static void put_ids(qn__gguf_keys *k, const qn_tokenizer *t, int32_t n, const cJSON *named)
{
    static const struct {
        const char *name, *key;
    } others[] = {{"unk_token", KEY("unknown_token_id")},
                  {"pad_token", KEY("padding_token_id")},
                  {"sep_token", KEY("seperator_token_id")}};
    int32_t bos = end_of(t->bos, t->prefix, t->n_prefix);
    int32_t eos = end_of(t->eos, t->suffix, t->n_suffix);
    if (bos >= 0 && bos < n)
        qn__put_u32(k, KEY("bos_token_id"), (uint32_t)bos);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(named, others[i].name);
        int32_t id = cJSON_IsString(text) ? qn_tokenizer_find(t, text->valuestring) : -1;
        if (id >= 0 && id < n)
            qn__put_u32(k, others[i].key, (uint32_t)id);
    }
    qn__put_bool(k, KEY("add_bos_token"), bos >= 0 && stands(t->prefix, t->n_prefix, bos));
    qn__put_bool(k, KEY("add_eos_token"), eos >= 0 && stands(t->suffix, t->n_suffix, eos));
}

/* ---- templates and sampling ------------------------------------------------------------------ */

static void put_templates(qn__gguf_keys *k, const qn__template_set *set)
{
    size_t others = 0;
    for (size_t i = 0; i < set->n; i++) {
        const qn__named_template *item = &set->items[i];
        char key[200];
        bool usual = !strcmp(item->name, "default");
        others += !usual;
        snprintf(key, sizeof key, "tokenizer.chat_template%s%s", usual ? "" : ".",
                 usual ? "" : item->name);
        qn__put_text(k, key, item->source, item->n);
    }
    if (!others)
        return;
    qn__put_array(k, "tokenizer.chat_templates", QN__GGUF_STRING, others);
    for (size_t i = 0; i < set->n; i++)
        if (strcmp(set->items[i].name, "default") != 0)
            qn__put_element(k, set->items[i].name, strlen(set->items[i].name));
}

static void put_sampling(qn__gguf_keys *k, const cJSON *generation)
{
    static const struct {
        const char *name, *key;
        bool whole;
    } keys[] = {{"temperature", "general.sampling.temp", false},
                {"top_k", "general.sampling.top_k", true},
                {"top_p", "general.sampling.top_p", false},
                {"min_p", "general.sampling.min_p", false},
                {"repetition_penalty", "general.sampling.penalty_repeat", false}};
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(generation, "do_sample")))
        return;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(generation, keys[i].name);
        if (!cJSON_IsNumber(value))
            continue;
        if (keys[i].whole)
            qn__put_i32(k, keys[i].key, value->valueint);
        else
            qn__put_f32(k, keys[i].key, value->valuedouble);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* A file that may be missing: *out stays NULL then. */
static qn_status read_json(const char *directory, const char *name, cJSON **out, qn_error *err)
{
    char *path = NULL;
    qn_error missing = {0};
    qn_status status = qn__path_resolve(directory, name, strlen(name), &path, &missing);
    if (status == QN_NOT_FOUND)
        return QN_OK;
    if (status != QN_OK)
        return qn__fail(err, status, "%s", missing.message);
    status = qn__json_read(out, path, LARGEST_CONFIG, err);
    free(path);
    return status;
}

static qn_status put_tokenizer(qn__conversion *c, qn__gguf_keys *k, const qn_tokenizer *t)
{
    vocab v = {.t = t, .n = (int32_t)c->decoder.config.vocab};
    cJSON *generation = NULL, *named = NULL;
    qn__template_set set = {0};
    qn_status status = put_kind(c, k, &v);
    if (status == QN_OK)
        status = read_json(c->source.path, "generation_config.json", &generation, c->err);
    if (status == QN_OK)
        status = qn__template_set_read(&set, c->source.path, c->err);
    if (status == QN_OK && set.variables)
        status =
            qn__json_parse(&named, c->source.path, set.variables, strlen(set.variables), c->err);
    if (status == QN_OK) {
        const cJSON *ends = cJSON_GetObjectItemCaseSensitive(generation, "eos_token_id");
        put_ids(k, t, v.n, named);
        put_ends(k, t, v.n,
                 ends ? ends : cJSON_GetObjectItemCaseSensitive(c->source.config, "eos_token_id"));
        put_templates(k, &set);
        put_sampling(k, generation);
    }
    qn__template_set_free(&set);
    cJSON_Delete(generation);
    cJSON_Delete(named);
    free(v.merges);
    free(v.ranks);
    free(v.user);
    return status;
}

qn_status qn__gguf_put_vocab(qn__conversion *c, qn__gguf_keys *k)
{
    qn_tokenizer *t = NULL;
    qn_error missing = {0};
    qn_status status = qn_tokenizer_open(&t, c->source.path, &missing);
    if (status == QN_NOT_FOUND) {
        qn__put_text(k, KEY("model"), "none", 4);
        qn__log(c->device, QN_LOG_WARN, "%s: there is no tokenizer, and none is written",
                c->source.path);
        return QN_OK;
    }
    if (status != QN_OK)
        return qn__fail(c->err, status, "%s", missing.message);
    status = put_tokenizer(c, k, t);
    qn_tokenizer_close(t);
    return status;
}
