/* SPDX-License-Identifier: Apache-2.0
 *
 * The server's beginning and end.
 */
#include "server/inside.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTION_MEMORY = 24 << 10, SILENT_SECONDS = 60 };

/* Paths are compared as they came: %2e is no dot. */
static size_t keep_escapes(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls;
    (void)connection;
    return strlen(text);
}

static qn_status start_http(qn__server *s, qn_error *err)
{
    int fd;
    if (qn__listen(&fd, &s->options, s->url, sizeof s->url, err) != QN_OK)
        return err->code;
    s->daemon = MHD_start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, qn__on_request, s,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENT_SECONDS, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_NOTIFY_COMPLETED,
        qn__on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, qn__on_connection, s, MHD_OPTION_END);
    if (s->daemon)
        return QN_OK;
    close(fd);
    return qn__fail(err, QN_IO, "the HTTP server cannot start");
}

static qn_status start_thread(pthread_t *thread, bool *has, void *(*run)(void *), qn__server *s,
                              qn_error *err)
{
    int failure = pthread_create(thread, NULL, run, s);
    *has = failure == 0;
    return *has ? QN_OK : qn__fail(err, QN_MEMORY, "a thread: %s", strerror(failure));
}

static void begin_locks(qn__server *s)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, &attributes);
    pthread_cond_init(&s->quiet, &attributes);
    pthread_condattr_destroy(&attributes);
}

qn_status qn__server_open(qn__server **out, const qn__server_options *options, qn_error *err)
{
    sigset_t all, before;
    *out = NULL;
    qn__server *s = calloc(1, sizeof *s);
    if (!s)
        return qn__fail_memory(err, "a server");
    s->options = *options;
    s->created = (int64_t)time(NULL);
    s->desk_end = &s->desk_first;
    begin_locks(s);
    sigfillset(&all); /* signals are for the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (start_http(s, err) == QN_OK)
        start_thread(&s->desk, &s->has_desk, qn__desk_run, s, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err->code != QN_OK) {
        qn__server_close(s);
        return err->code;
    }
    *out = s;
    return QN_OK;
}

const char *qn__server_url(const qn__server *s)
{
    return s->url;
}

qn_status qn__server_serve(qn__server *s, qn_device *device, qn_model *model, const char *path,
                           const qn_engine_options *options, qn_error *err)
{
    sigset_t all, before;
    s->info = QN_INIT(qn_model_info);
    s->defaults = QN_INIT(qn_generation_defaults);
    qn_model_get_info(model, &s->info);
    qn_model_get_defaults(model, &s->defaults);
    s->context = options->context ? options->context : s->info.max_positions;
    s->device = device;
    s->model = model;
    if (qn_chat_open(&s->chat, qn_model_tokenizer(model), path, err) != QN_OK ||
        qn_engine_open(&s->engine, model, options, err) != QN_OK)
        return err->code;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    qn_status status = start_thread(&s->runner, &s->has_runner, qn__runner_run, s, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_lock(&s->lock);
    s->ready = status == QN_OK;
    pthread_mutex_unlock(&s->lock);
    return status;
}

bool qn__server_drain(qn__server *s, double seconds)
{
    double at = qn__seconds() + seconds;
    struct timespec end = {(time_t)at, (long)((at - (double)(time_t)at) * 1e9)};
    pthread_mutex_lock(&s->lock);
    bool first = !s->draining, late = false;
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
    int fd = first ? MHD_quiesce_daemon(s->daemon) : -1;
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&s->lock);
    while (s->n_exchanges && !late)
        late = pthread_cond_timedwait(&s->quiet, &s->lock, &end) == ETIMEDOUT;
    bool ended = !s->n_exchanges;
    pthread_mutex_unlock(&s->lock);
    return ended;
}

/* libmicrohttpd does not stop while something is suspended. */
static void break_off(qn__server *s, qn__exchange *list)
{
    while (list) {
        qn__exchange *x = list;
        list = x->next;
        pthread_mutex_lock(&s->lock);
        for (size_t i = 0; i < x->n_choices; i++) {
            qn_request_close(x->choices[i].request);
            x->choices[i].request = NULL;
            qn_text_free(&x->choices[i].text);
            free(x->choices[i].logprobs);
            x->choices[i].logprobs = NULL;
        }
        x->broken = true;
        qn__wake(x);
        pthread_mutex_unlock(&s->lock);
        qn__release(x);
    }
}

static void stop_threads(qn__server *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = s->expired = true;
    pthread_mutex_unlock(&s->lock);
    if (s->has_runner)
        qn__server_drain(s, 1); /* what was cancelled says so */
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->has_desk)
        pthread_join(s->desk, NULL);
    if (s->has_runner)
        pthread_join(s->runner, NULL);
}

void qn__server_close(qn__server *s)
{
    if (!s)
        return;
    stop_threads(s);
    break_off(s, s->desk_first);
    break_off(s, s->arrived);
    break_off(s, s->live);
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    qn_engine_close(s->engine);
    qn_chat_close(s->chat);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->quiet);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
