/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend "native": a model and one session of this library. What a prompt has in common with
 * the session's tokens stays there, so that a conversation runs only what is new of it.
 */
#include "backends/backend.h"

#include "base/error.h"
#include "base/sized.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct native {
    qn_device *device; /* NULL: the caller's */
    qn_model *model;
    qn_chat *chat;
    qn_session *session;
} native;

static qn_status open_native_session(qn_backend *b, native *s, qn_error *err)
{
    qn_session_options options;
    if (qn__sized_in(&options, sizeof options, b->options.session, "qn_session_options", err))
        return err->code;
    options.size = sizeof options;
    options.batch = 1;
    options.cancel = b->options.cancel;
    return qn_session_open(&s->session, s->model, &options, err);
}

static bool poll_cancel(void *cancel, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    return !atomic_load((const qn_flag *)cancel);
}

static qn_status open_native_model(qn_backend *b, native *s, const char *path, qn_error *err)
{
    qn_model_options options;
    if (qn__sized_in(&options, sizeof options, b->options.model, "qn_model_options", err) != QN_OK)
        return err->code;
    options.size = sizeof options;
    if (b->options.cancel && !options.progress) {
        options.progress = poll_cancel;
        options.progress_user = (void *)b->options.cancel;
    }
    return qn_model_open(&s->model, b->options.device ? b->options.device : s->device, path,
                         &options, err);
}

static qn_status open_native(qn_backend *b, const char *path, qn_error *err)
{
    native *s = b->state = calloc(1, sizeof *s);
    if (!s)
        return qn__fail_memory(err, "a backend");
    if ((!b->options.device && qn_device_open(&s->device, "cpu", NULL, err) != QN_OK) ||
        open_native_model(b, s, path, err) != QN_OK)
        return err->code;
    const qn_tokenizer *t = qn_model_tokenizer(s->model);
    if (!t)
        return qn__fail(err, QN_NOT_FOUND, "%s: the model has no tokenizer", path);
    if (qn_chat_open(&s->chat, t, path, err) != QN_OK || open_native_session(b, s, err) != QN_OK)
        return err->code;
    qn_model_info info = QN_INIT(qn_model_info);
    qn_generation_defaults defaults = QN_INIT(qn_generation_defaults);
    qn_model_get_info(s->model, &info);
    qn_model_get_defaults(s->model, &defaults);
    snprintf(b->info.model_type, sizeof b->info.model_type, "%s", info.family);
    b->info.vocab_size = info.vocab_size;
    b->info.n_layers = info.n_layers;
    b->info.hidden_size = info.hidden_size;
    b->sampling = *defaults.sampling;
    return QN_OK;
}

static void close_native(qn_backend *b)
{
    native *s = b->state;
    if (!s)
        return;
    qn_session_close(s->session);
    qn_chat_close(s->chat);
    qn_model_close(s->model);
    qn_device_close(s->device);
    free(s);
}

/* ---- replies --------------------------------------------------------------------------------- */

static qn_status encode_asked(const native *s, const qn__asked *asked, qn_tokens *ids,
                              qn_error *err)
{
    return asked->messages
               ? qn_chat_apply(s->chat, asked->messages, asked->n, true, ids, err)
               : qn_tokenizer_encode(qn_model_tokenizer(s->model), asked->prompt, asked->n,
                                     QN_ADD_SPECIAL | QN_PARSE_SPECIAL, ids, err);
}

static qn_status give(const qn__asked *asked, int32_t id, qn_text *piece, qn_error *err)
{
    bool goes_on = asked->token(asked->user, id, piece->data ? piece->data : "", piece->n);
    piece->n = 0;
    return goes_on ? QN_OK : qn__fail(err, QN_CANCELLED, "cancelled");
}

static qn_status run_generation(qn_generation *g, const qn__asked *asked, qn_error *err)
{
    int32_t id = 0;
    qn_text piece = {0};
    qn_status status = QN_OK;
    while (status == QN_OK && (status = qn_generation_next(g, &id, err)) == QN_OK && id >= 0)
        if ((status = qn_generation_text(g, false, &piece, err)) == QN_OK)
            status = give(asked, id, &piece, err);
    if (qn_generation_text(g, true, &piece, NULL) == QN_OK && piece.n)
        give(asked, -1, &piece, NULL);
    qn_text_free(&piece);
    return status;
}

static qn_status reply_native(qn_backend *b, const qn__asked *asked, qn_error *err)
{
    native *s = b->state;
    qn_tokens ids = {0};
    qn_generation *g = NULL;
    qn_generation_options options = *asked->options;
    qn_status status = encode_asked(s, asked, &ids, err);
    if (status == QN_OK) {
        options.n_before = (size_t)qn_session_rewind_to(s->session, ids.ids, ids.n);
        options.before = ids.ids;
        status = qn_generation_begin(&g, s->session, ids.ids + options.n_before,
                                     ids.n - options.n_before, &options, err);
    }
    if (status == QN_OK) {
        status = run_generation(g, asked, err);
        qn_generation_get_metrics(g, &b->metrics);
    }
    qn_generation_end(g);
    qn_tokens_free(&ids);
    return status;
}

const qn__backend_kind qn__backend_native = {"native", open_native, reply_native, close_native};
