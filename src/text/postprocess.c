/* SPDX-License-Identifier: Apache-2.0
 *
 * Post-processors of a tokenizer.json: which tokens go around a text.
 */
#include "text/steps.h"
#include "text/tokenizer.h"

#include <string.h>

/* What one processor puts around the text; the tokens of the processors before it are inside. */
typedef struct around {
    qn_tokenizer *tokenizer;
    int32_t prefix[QN__MAX_AROUND], suffix[QN__MAX_AROUND];
    int n_prefix, n_suffix;
} around;

static qn_status push_around(around *a, const qn__json_at *at, bool before, int64_t id,
                             qn_error *err)
{
    const qn_tokenizer *t = a->tokenizer;
    int *n = before ? &a->n_prefix : &a->n_suffix;
    if (*n + (before ? t->n_prefix : t->n_suffix) == QN__MAX_AROUND)
        return qn__json_fail(at, QN_LIMIT, err, "more than %d special tokens", QN__MAX_AROUND);
    if (!qn_tokenizer_piece(t, (int32_t)id))
        return qn__json_fail(at, QN_FORMAT, err, "id %lld is not in the vocabulary", (long long)id);
    (before ? a->prefix : a->suffix)[(*n)++] = (int32_t)id;
    return QN_OK;
}

static void put_around(const around *a)
{
    qn_tokenizer *t = a->tokenizer;
    size_t n = (size_t)a->n_prefix;
    memmove(t->prefix + n, t->prefix, (size_t)t->n_prefix * sizeof *t->prefix);
    memcpy(t->prefix, a->prefix, n * sizeof *t->prefix);
    memcpy(t->suffix + t->n_suffix, a->suffix, (size_t)a->n_suffix * sizeof *t->suffix);
    t->n_prefix += a->n_prefix;
    t->n_suffix += a->n_suffix;
}

/* {"SpecialToken": {"id": "<s>"}} with its ids in special_tokens. */
static qn_status parse_template_token(around *a, const qn__json_at *at,
                                      const qn__json_at *special_tokens, bool before, qn_error *err)
{
    const char *name;
    qn__json_at entry, ids, id_at;
    qn_status status = qn__json_get_string(at, "id", &name, err);
    if (status == QN_OK)
        status = qn__json_get_object(special_tokens, name, &entry, err);
    if (status == QN_OK)
        status = qn__json_get_array(&entry, "ids", &ids, err);
    if (status == QN_OK && qn__json_first(&ids, &id_at))
        do {
            int64_t id;
            status = qn__json_as_int(&id_at, 0, QN__MAX_TOKEN_ID - 1, &id, err);
            if (status == QN_OK)
                status = push_around(a, &id_at, before, id, err);
        } while (status == QN_OK && qn__json_next(&id_at));
    return status;
}

static qn_status parse_template(around *a, const qn__json_at *at, qn_error *err)
{
    qn__json_at single, item, special_tokens, inner;
    bool seen = false;
    qn_status status = qn__json_get_array(at, "single", &single, err);
    qn__json_find(at, "special_tokens", &special_tokens);
    if (status == QN_OK && qn__json_first(&single, &item))
        do {
            if (qn__json_find(&item, "Sequence", &inner)) {
                if (seen)
                    return qn__json_fail(&item, QN_UNSUPPORTED, err, "the text stands twice");
                seen = true;
            } else {
                status = qn__json_get_object(&item, "SpecialToken", &inner, err);
                if (status == QN_OK)
                    status = parse_template_token(a, &inner, &special_tokens, !seen, err);
            }
        } while (status == QN_OK && qn__json_next(&item));
    if (status == QN_OK && !seen)
        return qn__json_fail(&single, QN_UNSUPPORTED, err, "the text is missing");
    return status;
}

/* ["<s>", 0] */
static qn_status parse_pair(around *a, const qn__json_at *at, const char *key, bool before,
                            qn_error *err)
{
    qn__json_at list, item;
    int64_t id;
    qn_status status = qn__json_get_array(at, key, &list, err);
    if (status != QN_OK)
        return status;
    if (!qn__json_first(&list, &item) || !qn__json_next(&item))
        return qn__json_fail(&list, QN_FORMAT, err, "expected a token and its id");
    status = qn__json_as_int(&item, 0, QN__MAX_TOKEN_ID - 1, &id, err);
    return status == QN_OK ? push_around(a, &item, before, id, err) : status;
}

enum { POST_BYTE_LEVEL, POST_TEMPLATE, POST_ROBERTA, POST_BERT, POST_COUNT };

static const char *const post_names[POST_COUNT] = {
    [POST_BYTE_LEVEL] = "ByteLevel", /* moves offsets only */
    [POST_TEMPLATE] = "TemplateProcessing",
    [POST_ROBERTA] = "RobertaProcessing",
    [POST_BERT] = "BertProcessing",
};

static qn_status add_post_processor(void *user, int kind, const qn__json_at *at, qn_error *err)
{
    around a = {.tokenizer = user};
    qn_status status = QN_OK;
    if (kind == POST_TEMPLATE)
        status = parse_template(&a, at, err);
    else if (kind != POST_BYTE_LEVEL)
        status = parse_pair(&a, at, "cls", true, err);
    if (status == QN_OK && (kind == POST_ROBERTA || kind == POST_BERT))
        status = parse_pair(&a, at, "sep", false, err);
    if (status == QN_OK)
        put_around(&a);
    return status;
}

qn_status qn__post_processor_parse(qn_tokenizer *tokenizer, const qn__json_at *at, qn_error *err)
{
    return qn__steps_parse(at, "processors", post_names, POST_COUNT, add_post_processor, tokenizer,
                           err);
}
