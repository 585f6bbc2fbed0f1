/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model says to each --sample, always its most probable tokens.
 */
#include "cli/train.h"

#include "base/error.h"
#include "cli/conversation.h"
#include "cli/reply.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLE_TOKENS = 64 };

static qn_status encode_sample(const qn_model *model, const qn_chat *chat, const arguments *a,
                               const char *text, qn_tokens *ids, qn_error *err)
{
    const qn_tokenizer *t = qn_model_tokenizer(model);
    if (!a->raw && chat_form_exists(chat, t))
        return message_encode(chat, a, text, strlen(text), ids, err);
    return qn_tokenizer_encode(t, text, strlen(text), QN_ADD_SPECIAL, ids, err);
}

static qn_status run_sample(qn_model *model, const qn_tokens *ids, char **out, qn_error *err)
{
    qn_session *session = NULL;
    qn_generation *g = NULL;
    reply r = {0};
    const qn_sampling greedy = {.size = sizeof greedy};
    const qn_generation_options o = {
        .size = sizeof o, .max_tokens = SAMPLE_TOKENS, .sampling = &greedy};
    const qn_session_options so = {.size = sizeof so, .cancel = &interrupted};
    if (qn_session_open(&session, model, &so, err) == QN_OK &&
        qn_generation_begin(&g, session, ids->ids, ids->n, &o, err) == QN_OK &&
        reply_run(&r, g, false, err) == QN_OK && !(*out = strdup(r.text.data ? r.text.data : "")))
        qn__fail_memory(err, "a sample");
    reply_free(&r);
    qn_session_close(session);
    return err->code;
}

qn_status samples_take(const loaded *l, const arguments *a, char ***out, qn_error *err)
{
    qn_chat *chat = NULL;
    *out = calloc(a->samples.n + 1, sizeof **out);
    if (!*out)
        return qn__fail_memory(err, "samples");
    if (!qn_model_tokenizer(l->model))
        return qn__fail(err, QN_NOT_FOUND, "the model has no tokenizer");
    chat_form_open(&chat, qn_model_tokenizer(l->model), l->path, a, err);
    for (size_t i = 0; i < a->samples.n && err->code == QN_OK; i++) {
        qn_tokens ids = {0};
        if (encode_sample(l->model, chat, a, a->samples.word[i], &ids, err) == QN_OK)
            run_sample(l->model, &ids, &(*out)[i], err);
        qn_tokens_free(&ids);
    }
    qn_chat_close(chat);
    return err->code;
}

void samples_free(samples *s, const arguments *a)
{
    for (size_t i = 0; i < a->samples.n; i++) {
        free(s->before ? s->before[i] : NULL);
        free(s->after ? s->after[i] : NULL);
    }
    free(s->before);
    free(s->after);
    *s = (samples){0};
}
