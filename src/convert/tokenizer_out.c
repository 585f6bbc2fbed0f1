/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer of a GGUF file as Hugging Face's tokenizer.json and tokenizer_config.json.
 *
 * As in gguf_vocab.c the tokenizer that was read is written. All tokens stand in the vocabulary of
 * the model, since readers number what only added_tokens has anew. SentencePiece's BPE becomes
 * merges in the order of scores; where several pairs make one piece they stand in the order of
 * their halves, as in Hugging Face's own converter.
 */
#include "base/utf8.h"
#include "convert/convert.h"
#include "convert/tokenizer_out.h"
#include "io/tensors.h"
#include "text/chat_templates.h"
#include "text/gguf_patterns.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK                  "\xe2\x96\x81" /* U+2581 */
#define REPLACE               "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}"
#define PREPEND               "{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"},"
#define SEQUENCE(list, items) "{\"type\":\"Sequence\",\"" list "\":[" items "]}"
#define SPACES                                                                                     \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK                                        \
    "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"
#define STRIP_FIRST ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
#define BYTE_LEVEL                                                                                 \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define METASPACE                                                                                  \
    "{\"type\":\"Metaspace\",\"replacement\":\"" MARK                                              \
    "\",\"prepend_scheme\":\"%s\",\"split\":false}"

/* A text of JSON as it grows; `failed` sticks. */
typedef struct json_out {
    qn_text text;
    bool failed;
} json_out;

static void put(json_out *o, const char *text)
{
    o->failed = o->failed || !qn__text_append(&o->text, text, strlen(text));
}

static void put_number(json_out *o, double value)
{
    char number[40];
    snprintf(number, sizeof number, "%.17g", value);
    put(o, number);
}

static void put_string(json_out *o, const char *text, size_t n)
{
    o->failed = o->failed || !qn__text_append_json(&o->text, text, n);
}

static void put_piece(json_out *o, const qn_tokenizer *t, int32_t id)
{
    put_string(o, qn_tokenizer_piece(t, id), t->bpe.vocab.sizes[id]);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static int compare_ids(const void *a, const void *b)
{
    const qn__added_token *const *x = a, *const *y = b;
    return (*x)->id < (*y)->id ? -1 : (*x)->id > (*y)->id;
}

/* All that are matched before the model sees a text, by id. */
static void put_added(json_out *o, const qn_tokenizer *t)
{
    const qn__added_set *const sets[] = {&t->raw, &t->normalized, &t->unigram.user};
    size_t n = 0;
    const qn__added_token **all = malloc((sets[0]->n + sets[1]->n + sets[2]->n + 1) * sizeof *all);
    o->failed = o->failed || !all;
    for (int s = 0; all && s < 3; s++)
        for (size_t i = 0; i < sets[s]->n; i++)
            all[n++] = &sets[s]->tokens[i];
    if (n)
        qsort(all, n, sizeof *all, compare_ids);
    put(o, "\"added_tokens\":[");
    for (size_t i = 0; i < n; i++) {
        put(o, i ? ",\n{\"id\":" : "\n{\"id\":");
        put_number(o, all[i]->id);
        put(o, ",\"content\":");
        put_string(o, all[i]->text, all[i]->n);
        put(o, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
               "\"special\":");
        put(o, all[i]->flags & QN__ADDED_SPECIAL ? "true}" : "false}");
    }
    put(o, "],\n");
    free(all);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Bytes in base 64. */
static void put_base64(json_out *o, const unsigned char *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0);
        char four[5] = {digits[v >> 18], digits[v >> 12 & 63],
                        i + 1 < n ? digits[v >> 6 & 63] : '=', i + 2 < n ? digits[v & 63] : '=', 0};
        put(o, four);
    }
}

static void put_unigram_steps(json_out *o, const qn_tokenizer *t, const qn__gguf_value *charsmap)
{
    const qn__spm_normalizer *spm = &t->normalizer.spm;
    const char *scheme = spm->dummy_prefix ? "always" : "never";
    bool prepend = spm->dummy_prefix && !spm->remove_extra_spaces; /* also before a space */
    char step[200];
    put(o, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (charsmap && charsmap->size) {
        put(o, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        put_base64(o, (const unsigned char *)charsmap->data, charsmap->size);
        put(o, spm->remove_extra_spaces || prepend ? "\"}," : "\"}");
    }
    if (prepend)
        put(o, "{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"}");
    if (spm->remove_extra_spaces)
        put(o,
            "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},{\"type\":\"Replace\","
            "\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}");
    snprintf(step, sizeof step, METASPACE, prepend ? "never" : scheme);
    put(o, "]},\n\"pre_tokenizer\":");
    put(o, step);
    snprintf(step, sizeof step, METASPACE, scheme);
    put(o, ",\n\"decoder\":");
    put(o, step);
}

/* SentencePiece's BPE, and that of characters behind a pre-tokenizer. */
static void put_character_steps(json_out *o, const qn_tokenizer *t, const char *pre)
{
    bool prefix = t->normalizer.spm.dummy_prefix;
    put(o, prefix ? "\"normalizer\":" SEQUENCE("normalizers", PREPEND REPLACE)
                  : "\"normalizer\":" REPLACE);
    put(o, ",\n\"pre_tokenizer\":");
    put(o, pre);
    put(o, ",\n\"decoder\":");
    put(o, prefix ? SEQUENCE("decoders", SPACES STRIP_FIRST) : SEQUENCE("decoders", SPACES));
}

/* What goes around a text: the texts' ids, and the table of those tokens. */
static void put_template(json_out *o, const qn_tokenizer *t, const char *key, int sequences)
{
    bool first = true;
    put(o, ",\n");
    put(o, key);
    for (int s = 0; s < sequences; s++)
        for (int i = 0; i < t->n_prefix + 1 + t->n_suffix; i++) {
            bool text = i == t->n_prefix;
            int32_t id = text              ? -1
                         : i < t->n_prefix ? t->prefix[i]
                                           : t->suffix[i - t->n_prefix - 1];
            put(o, first ? "" : ",");
            first = false;
            put(o, text ? "{\"Sequence\":{\"id\":" : "{\"SpecialToken\":{\"id\":");
            if (text)
                put(o, s ? "\"B\"" : "\"A\"");
            else
                put_piece(o, t, id);
            put(o, s ? ",\"type_id\":1}}" : ",\"type_id\":0}}");
        }
    put(o, "]");
}

static void put_around(json_out *o, const qn_tokenizer *t)
{
    int n = t->n_prefix + t->n_suffix;
    if (n == 0) {
        put(o,
            t->bpe.byte_level ? ",\n\"post_processor\":" BYTE_LEVEL : ",\n\"post_processor\":null");
        return;
    }
    put(o, ",\n\"post_processor\":{\"type\":\"TemplateProcessing\"");
    put_template(o, t, "\"single\":[", 1);
    put_template(o, t, "\"pair\":[", 2);
    put(o, ",\n\"special_tokens\":{");
    for (int i = 0; i < n; i++) {
        int32_t id = i < t->n_prefix ? t->prefix[i] : t->suffix[i - t->n_prefix];
        bool again = i >= t->n_prefix && t->n_prefix && t->prefix[0] == id;
        if (again)
            continue;
        put(o, i ? "," : "");
        put_piece(o, t, id);
        put(o, ":{\"id\":");
        put_piece(o, t, id);
        put(o, ",\"ids\":[");
        put_number(o, id);
        put(o, "],\"tokens\":[");
        put_piece(o, t, id);
        put(o, "]}");
    }
    put(o, "}}");
}

/* ---- the model ------------------------------------------------------------------------------- */

static int compare_merges(const void *a, const void *b)
{
    const qn__merge *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->a != y->a ? (x->a < y->a ? -1 : 1) : x->b < y->b ? -1 : x->b > y->b;
}

static void put_pairs(json_out *o, const qn_tokenizer *t)
{
    size_t n = 0;
    qn__merge *all = malloc((t->bpe.n_merges + 1) * sizeof *all);
    o->failed = o->failed || !all;
    for (size_t i = 0; all && i < t->bpe.n_merge_slots; i++)
        if (t->bpe.merges[i].a != UINT32_MAX)
            all[n++] = t->bpe.merges[i];
    if (n)
        qsort(all, n, sizeof *all, compare_merges);
    put(o, ",\"merges\":[");
    for (size_t i = 0; i < n; i++) {
        put(o, i ? ",\n[" : "\n[");
        put_piece(o, t, (int32_t)all[i].a);
        put(o, ",");
        put_piece(o, t, (int32_t)all[i].b);
        put(o, "]");
    }
    put(o, "]");
    free(all);
}

static void put_vocab(json_out *o, const qn_tokenizer *t)
{
    bool unigram = t->unigram.scores != NULL, first = true;
    char unused[30];
    put(o, unigram ? ",\"vocab\":[" : ",\"vocab\":{");
    for (int32_t i = 0; i < t->bpe.vocab.n_ids; i++) {
        const char *piece = qn_tokenizer_piece(t, i);
        if (!piece && !unigram) /* a text that stood twice */
            continue;
        put(o, first ? unigram ? "\n[" : "\n" : unigram ? ",\n[" : ",\n");
        first = false;
        snprintf(unused, sizeof unused, "[PAD%d]", (int)i);
        put_string(o, piece ? piece : unused, piece ? t->bpe.vocab.sizes[i] : strlen(unused));
        put(o, unigram ? "," : ":");
        put_number(o, unigram ? t->unigram.scores[i] : i);
        put(o, unigram ? "]" : "");
    }
    put(o, unigram ? "]" : "}");
}

static void put_model(json_out *o, const qn_tokenizer *t)
{
    const qn__bpe *bpe = &t->bpe;
    bool unigram = t->unigram.scores != NULL;
    put(o, unigram ? ",\n\"model\":{\"type\":\"Unigram\"" : ",\n\"model\":{\"type\":\"BPE\"");
    if (unigram) {
        put(o, ",\"unk_id\":");
        put_number(o, bpe->unk_id);
    } else {
        put(o, ",\"dropout\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null");
        put(o, ",\"unk_token\":");
        if (bpe->unk_id >= 0)
            put_piece(o, t, bpe->unk_id);
        else
            put(o, "null");
        put(o, bpe->fuse_unk ? ",\"fuse_unk\":true" : ",\"fuse_unk\":false");
        put(o, bpe->ignore_merges ? ",\"ignore_merges\":true" : ",\"ignore_merges\":false");
    }
    put(o, bpe->byte_fallback ? ",\"byte_fallback\":true" : ",\"byte_fallback\":false");
    put_vocab(o, t);
    if (!unigram)
        put_pairs(o, t);
    put(o, "}}\n");
}

/* ---- the files ------------------------------------------------------------------------------- */

/* The pre-tokenizer that the metadata names, as JSON (malloc); NULL with *err filled: no memory. */
static char *pre_tokenizer_of(const qn__gguf *g, qn_error *err)
{
    qn__gguf_text name = {"default", 7};
    qn__gguf_pre pre;
    char *text = NULL;
    if (qn__gguf_opt_text(g, "tokenizer.ggml.pre", &name, err) != QN_OK)
        return NULL;
    qn__gguf_pre_named(name.data, name.n, &pre); /* or it could not have been read */
    cJSON *json = qn__gguf_pre_json(&pre);
    text = json ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    if (!text)
        qn__fail_memory(err, "a pre-tokenizer");
    return text;
}

qn_status qn__tokenizer_json(const qn_tokenizer *t, const qn__gguf *g, qn_text *out, qn_error *err)
{
    json_out o = {0};
    bool spm = t->normalizer.n && t->normalizer.steps[0].kind == QN__NORMALIZE_SPM;
    char *pre = spm ? strdup("null") : pre_tokenizer_of(g, err);
    if (!pre)
        return err->code != QN_OK ? err->code : qn__fail_memory(err, "a pre-tokenizer");
    put(&o, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(&o, t);
    if (t->unigram.scores) {
        put_unigram_steps(&o, t, qn__gguf_find(g, "tokenizer.ggml.precompiled_charsmap"));
    } else if (t->bpe.byte_level) {
        put(&o, "\"normalizer\":null,\n\"pre_tokenizer\":");
        put(&o, pre);
        put(&o, ",\n\"decoder\":" BYTE_LEVEL);
    } else {
        put_character_steps(&o, t, pre);
    }
    put_around(&o, t);
    put_model(&o, t);
    free(pre);
    *out = o.text;
    return o.failed ? qn__fail_memory(err, "a tokenizer") : QN_OK;
}

/* The token that a key of the metadata gives the id of. */
static bool name_token(cJSON *config, const char *name, const qn_tokenizer *t, const qn__gguf *g,
                       const char *key, int32_t usual)
{
    int64_t id = usual;
    qn_error ignored = {0};
    qn__gguf_opt_int(g, key, INT64_MIN, INT64_MAX, &id, &ignored);
    const char *piece =
        id >= 0 && id < t->bpe.vocab.n_ids ? qn_tokenizer_piece(t, (int32_t)id) : NULL;
    return !piece || cJSON_AddStringToObject(config, name, piece);
}

static bool is_around(const int32_t *ids, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static bool add_templates(cJSON *config, const qn__template_set *set)
{
    if (set->n == 1 && !strcmp(set->items[0].name, "default"))
        return cJSON_AddStringToObject(config, "chat_template", set->items[0].source) != NULL;
    cJSON *list = set->n ? cJSON_AddArrayToObject(config, "chat_template") : NULL;
    for (size_t i = 0; i < set->n && list; i++) {
        cJSON *item = cJSON_CreateObject();
        if (!item || !cJSON_AddItemToArray(list, item)) {
            cJSON_Delete(item);
            return false;
        }
        if (!cJSON_AddStringToObject(item, "name", set->items[i].name) ||
            !cJSON_AddStringToObject(item, "template", set->items[i].source))
            return false;
    }
    return !set->n || list;
}

cJSON *qn__tokenizer_config(const qn_tokenizer *t, const qn__gguf *g, const qn__template_set *set,
                            int64_t positions, qn_error *err)
{
    cJSON *config = cJSON_CreateObject();
    bool ok =
        config && name_token(config, "bos_token", t, g, "tokenizer.ggml.bos_token_id", t->bos) &&
        name_token(config, "eos_token", t, g, "tokenizer.ggml.eos_token_id", t->eos) &&
        name_token(config, "unk_token", t, g, "tokenizer.ggml.unknown_token_id", t->bpe.unk_id) &&
        name_token(config, "pad_token", t, g, "tokenizer.ggml.padding_token_id", -1) &&
        cJSON_AddBoolToObject(config, "add_bos_token", is_around(t->prefix, t->n_prefix, t->bos)) &&
        cJSON_AddBoolToObject(config, "add_eos_token", is_around(t->suffix, t->n_suffix, t->eos)) &&
        cJSON_AddFalseToObject(config, "clean_up_tokenization_spaces") &&
        cJSON_AddNumberToObject(config, "model_max_length", (double)positions) &&
        cJSON_AddStringToObject(config, "tokenizer_class", "PreTrainedTokenizerFast") &&
        add_templates(config, set);
    if (ok)
        return config;
    cJSON_Delete(config);
    qn__fail_memory(err, "a tokenizer's configuration");
    return NULL;
}
