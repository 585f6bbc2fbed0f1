/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry of backends, and what their calls have in common.
 */
#include "backends/backend.h"

#include "base/error.h"
#include "base/sized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const qn__backend_kind *const kinds[] = {
    &qn__backend_native,
#ifdef QN_MLX_LM
    &qn__backend_mlx_lm,
#endif
};

enum { N_KINDS = sizeof kinds / sizeof *kinds };

const char *qn_backend_name(size_t i)
{
    return i < N_KINDS ? kinds[i]->name : NULL;
}

static const qn__backend_kind *kind_of(const char *name, qn_error *err)
{
    char names[100] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_KINDS; i++) {
        if (!strcmp(name, kinds[i]->name))
            return kinds[i];
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", kinds[i]->name);
    }
    if (!strcmp(name, "mlx_lm"))
        qn__fail(err, QN_UNSUPPORTED, "this quern was built without the backend mlx_lm; it has %s",
                 names);
    else
        qn__fail(err, QN_NOT_FOUND, "there is no backend \"%.40s\"; there are %s", name, names);
    return NULL;
}

qn_status qn_backend_find(const char *name, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    return kind_of(name, err) ? QN_OK : err->code;
}

qn_status qn_backend_open(qn_backend **out, const char *name, const char *path,
                          const qn_backend_options *options, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    *out = NULL;
    const qn__backend_kind *kind = kind_of(name, err);
    qn_backend *b = kind ? calloc(1, sizeof *b) : NULL;
    if (!b)
        return kind ? qn__fail_memory(err, "a backend") : err->code;
    pthread_mutex_init(&b->lock, NULL);
    b->kind = kind;
    b->info.size = sizeof b->info;
    b->sampling.size = sizeof b->sampling;
    b->metrics.size = sizeof b->metrics;
    if (qn__sized_in(&b->options, sizeof b->options, options, "qn_backend_options", err) != QN_OK ||
        kind->open(b, path, err) != QN_OK) {
        qn_backend_close(b);
        return err->code;
    }
    *out = b;
    return QN_OK;
}

void qn_backend_close(qn_backend *b)
{
    if (!b)
        return;
    b->kind->close(b);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

qn_status qn_backend_get_info(const qn_backend *b, qn_backend_info *info)
{
    return qn__sized_out(info, &b->info, sizeof b->info);
}

const qn_sampling *qn_backend_sampling(const qn_backend *b)
{
    return &b->sampling;
}

qn_status qn_backend_get_metrics(qn_backend *b, qn_metrics *metrics)
{
    pthread_mutex_lock(&b->lock);
    qn_status status = qn__sized_out(metrics, &b->metrics, sizeof b->metrics);
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* What a token's callback has no place for, and what backends fill in themselves. */
static qn_status refuse_fields(const qn_generation_options *o, qn_error *err)
{
    const char *field = o->logprobs || o->top_logprobs ? "logprobs"
                        : o->before || o->n_before     ? "before"
                                                       : NULL;
    return field ? qn__fail(err, QN_UNSUPPORTED, "%s: not possible of a backend", field) : QN_OK;
}

static qn_status reply(qn_backend *b, qn__asked *asked, const qn_generation_options *given,
                       qn_error *err)
{
    qn_error local = {0};
    qn_generation_options options;
    err = err ? err : &local;
    if (qn__sized_in(&options, sizeof options, given, "qn_generation_options", err) != QN_OK ||
        refuse_fields(&options, err) != QN_OK)
        return err->code;
    options.size = sizeof options;
    options.sampling = options.sampling ? options.sampling : &b->sampling;
    asked->options = &options;
    pthread_mutex_lock(&b->lock);
    b->metrics = QN_INIT(qn_metrics);
    qn_status status = b->kind->reply(b, asked, err);
    pthread_mutex_unlock(&b->lock);
    return status;
}

qn_status qn_backend_generate(qn_backend *b, const char *prompt, size_t n,
                              const qn_generation_options *options, qn_backend_token token,
                              void *user, qn_error *err)
{
    qn__asked asked = {.prompt = prompt, .n = n, .token = token, .user = user};
    return reply(b, &asked, options, err);
}

qn_status qn_backend_chat(qn_backend *b, const qn_chat_message *messages, size_t n,
                          const qn_generation_options *options, qn_backend_token token, void *user,
                          qn_error *err)
{
    qn__asked asked = {.messages = messages, .n = n, .token = token, .user = user};
    return n ? reply(b, &asked, options, err)
             : qn__fail(err, QN_INVALID, "there is no message to answer");
}
