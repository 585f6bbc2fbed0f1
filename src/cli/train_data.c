/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading what is trained on. Whoever has a file of texts wants to hear of all its bad lines at
 * once, and before hours of work, not after: so it is read whole.
 */
#include "cli/train_data.h"

#include "base/error.h"
#include "base/json.h"
#include "cli/lines.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_NAMED = 20 }; /* bad lines */

void train_data_free(train_data *d)
{
    for (size_t i = 0; i < d->n; i++)
        qn_tokens_free(&d->texts[i]);
    free(d->texts);
    *d = (train_data){0};
}

/* The token that ends a text goes behind it, unless the tokenizer has put it there. */
static qn_status add_end(qn_tokens *ids, int32_t eos, qn_error *err)
{
    if (eos < 0 || (ids->n && ids->ids[ids->n - 1] == eos))
        return QN_OK;
    int32_t *more = realloc(ids->ids, (ids->n + 1) * sizeof *more);
    if (!more)
        return qn__fail_memory(err, "a text");
    ids->ids = more;
    ids->capacity = ids->n + 1;
    ids->ids[ids->n++] = eos;
    return QN_OK;
}

static qn_status encode_training_text(const arguments *a, const qn_tokenizer *t, const char *text,
                                      size_t longest, qn_tokens *ids, qn_error *err)
{
    unsigned flags = QN_ADD_SPECIAL | (a->parse_special ? QN_PARSE_SPECIAL : 0);
    if (qn_tokenizer_encode(t, text, strlen(text), flags, ids, err) != QN_OK ||
        add_end(ids, qn_tokenizer_eos(t), err) != QN_OK)
        return err->code;
    if (ids->n > longest)
        return qn__fail(err, QN_LIMIT, "%zu tokens, more than --max-seq-length %zu", ids->n,
                        longest);
    return ids->n > 1 ? QN_OK : qn__fail(err, QN_INVALID, "the text is too short to learn from");
}

/* {"text": "..."} */
static qn_status read_text(const text_lines *in, const arguments *a, const qn_tokenizer *t,
                           size_t longest, qn_tokens *ids, qn_error *err)
{
    char name[PATH_ROOM];
    cJSON *tree = NULL;
    const char *text;
    qn__json_at member;
    snprintf(name, sizeof name, "%s: line %llu", in->name, (unsigned long long)in->number);
    if (qn__json_parse(&tree, name, in->line.data, in->line.n, err) != QN_OK)
        return err->code;
    qn__json_at line = qn__json_root(name, tree);
    if (!cJSON_IsObject(tree))
        qn__json_fail(&line, QN_INVALID, err, "not an object with \"text\"");
    for (bool any = err->code == QN_OK && qn__json_first(&line, &member); any && err->code == QN_OK;
         any = qn__json_next(&member))
        if (strcmp(member.key, "text") != 0)
            qn__json_fail(&member, QN_UNSUPPORTED, err, "not supported; \"text\" is");
    qn_error wrong = {0};
    if (err->code == QN_OK && qn__json_get_string(&line, "text", &text, err) == QN_OK &&
        encode_training_text(a, t, text, longest, ids, &wrong) != QN_OK)
        qn__fail(err, wrong.code, "%s: %s", name, wrong.message);
    cJSON_Delete(tree);
    return err->code;
}

static qn_status reserve_text(train_data *d, qn_error *err)
{
    if (d->n < d->room)
        return QN_OK;
    size_t room = d->room * 2 + 64;
    qn_tokens *texts = realloc(d->texts, room * sizeof *texts);
    if (!texts)
        return qn__fail_memory(err, "texts");
    d->texts = texts;
    d->room = room;
    return QN_OK;
}

/* The next text; a line that cannot be used is counted, and named where not too many were. */
static qn_status take_training_text(train_data *d, text_lines *in, const arguments *a,
                                    const qn_tokenizer *t, size_t longest, bool *more, size_t *bad,
                                    qn_error *err)
{
    qn_error wrong = {0};
    if (reserve_text(d, err) != QN_OK)
        return err->code;
    qn_status status = lines_next(in, more, &wrong);
    if (status == QN_OK && !*more)
        return QN_OK;
    if (status != QN_OK && status != QN_LIMIT)
        return qn__fail(err, status, "%s", wrong.message);
    d->texts[d->n] = (qn_tokens){0};
    if (status == QN_OK && read_text(in, a, t, longest, &d->texts[d->n], &wrong) == QN_OK) {
        d->n++;
        return QN_OK;
    }
    qn_tokens_free(&d->texts[d->n]);
    if (wrong.code == QN_MEMORY)
        return qn__fail_memory(err, "texts");
    if (++*bad <= MOST_NAMED)
        fprintf(stderr, "quern: %s\n", wrong.message);
    return QN_OK;
}

qn_status train_data_read(train_data *d, const arguments *a, const qn_tokenizer *t, size_t longest,
                          qn_error *err)
{
    text_lines *in = malloc(sizeof *in);
    bool more = true;
    size_t bad = 0;
    if (!in)
        return qn__fail_memory(err, "texts");
    if (lines_open(in, a->data, err) == QN_OK)
        while (more && !interrupted && err->code == QN_OK)
            take_training_text(d, in, a, t, longest, &more, &bad, err);
    lines_close(in);
    free(in);
    if (err->code != QN_OK)
        return err->code;
    if (interrupted)
        return qn__fail(err, QN_CANCELLED, "cancelled");
    if (bad)
        return qn__fail(err, QN_INVALID, "%s: %zu of %zu lines cannot be used; nothing was trained",
                        a->data, bad, d->n + bad);
    return d->n ? QN_OK : qn__fail(err, QN_INVALID, "%s: there are no texts", a->data);
}
