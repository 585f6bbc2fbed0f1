/* SPDX-License-Identifier: Apache-2.0
 *
 * The desk: bodies become requests to the engine, one after the other. Reading JSON, rendering a
 * template and looking for tokens in megabytes take their time, in which the threads that send and
 * that compute must not wait.
 */
#include "server/inside.h"

#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SWEEP_SECONDS 0.25

void qn__submit(qn__exchange *x)
{
    qn__server *s = x->server;
    if (s->draining)
        qn__refuse(x, 503, "the server is stopping");
    else if (!s->ready)
        qn__refuse(x, 503, "the model is loading");
    else if (s->n_at_desk >= MOST_AT_DESK)
        qn__refuse(x, 429, "%d requests wait already; try again later", s->n_at_desk);
    else {
        x->submitted = true;
        x->references++;
        x->next = NULL;
        *s->desk_end = x;
        s->desk_end = &x->next;
        s->n_at_desk++;
        pthread_cond_signal(&s->work);
    }
}

/* A name that no other response has. */
static void name_exchange(qn__exchange *x)
{
    unsigned char random[12] = {0};
    if (getentropy(random, sizeof random) != 0)
        memcpy(random, &x->begun, sizeof x->begun);
    x->created = (int64_t)time(NULL);
    size_t n = (size_t)snprintf(x->id, sizeof x->id, x->job.chat ? "chatcmpl-" : "cmpl-");
    for (size_t i = 0; i < sizeof random; i++)
        n += (size_t)snprintf(x->id + n, sizeof x->id - n, "%02x", random[i]);
}

/* One request to the engine. */
static qn_status add_choice(qn__exchange *x, size_t i, qn_error *err)
{
    qn__job *j = &x->job;
    const qn_tokens *prompt = &j->prompts[i / (size_t)j->n];
    qn_sampling sampling = j->sampling;
    sampling.seed += i % (size_t)j->n;
    qn_generation_options generation = j->generation;
    generation.sampling = &sampling;
    qn_request_options options = {
        .size = sizeof options, .generation = &generation, .adapter = j->adapter};
    return qn_request_add(&x->choices[i].request, x->server->engine, prompt->ids, prompt->n,
                          &options, err);
}

static qn_status add_choices(qn__exchange *x, qn_error *err)
{
    size_t n = x->job.n_prompts * (size_t)x->job.n;
    x->choices = calloc(n, sizeof *x->choices);
    if (!x->choices)
        return qn__fail_memory(err, "a request");
    for (x->n_choices = 0; x->n_choices < n; x->n_choices++)
        if (add_choice(x, x->n_choices, err) != QN_OK)
            break;
    for (size_t i = 0; err->code != QN_OK && i < x->n_choices; i++) {
        qn_request_close(x->choices[i].request);
        x->choices[i].request = NULL;
    }
    return err->code;
}

/* The engine's thread gets it; under the lock, so that it sees requests and exchange together. */
static void hand_over(qn__exchange *x)
{
    qn__server *s = x->server;
    if (x->job.stream) {
        qn__page page = {0};
        qn__put_opening(&page, x);
        x->out = page.text;
        x->broken |= page.failed;
        x->status = 200;
        x->content_type = "text/event-stream";
        x->streaming = true;
        qn__wake(x);
    }
    x->next = s->arrived;
    s->arrived = x;
}

static void serve_at_desk(qn__exchange *x)
{
    qn__server *s = x->server;
    qn_error err = {0};
    qn__job_parse(&x->job, s, x->route->chat, x->body.data ? x->body.data : "", x->body.n, &err);
    name_exchange(x);
    pthread_mutex_lock(&s->lock);
    qn__drop_body(x);
    x->broken = qn__has_left(x);
    bool given = !x->broken && err.code == QN_OK && add_choices(x, &err) == QN_OK;
    if (given)
        hand_over(x);
    else if (!x->broken)
        qn__refuse(x, qn__http_status(err.code), "%s", err.message);
    if (!given)
        qn__wake(x);
    pthread_mutex_unlock(&s->lock);
    if (!given)
        qn__release(x);
}

static void wait_for_work(qn__server *s)
{
    double at = qn__seconds() + SWEEP_SECONDS;
    struct timespec end = {(time_t)at, (long)((at - (double)(time_t)at) * 1e9)};
    if (s->connections)
        pthread_cond_timedwait(&s->work, &s->lock, &end);
    else
        pthread_cond_wait(&s->work, &s->lock);
}

void *qn__desk_run(void *server)
{
    qn__server *s = server;
    double swept = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        if (qn__seconds() - swept > SWEEP_SECONDS) {
            swept = qn__seconds();
            qn__cut_slow(s);
        }
        qn__exchange *x = s->desk_first;
        if (!x) {
            wait_for_work(s);
            continue;
        }
        s->desk_first = x->next;
        if (!s->desk_first)
            s->desk_end = &s->desk_first;
        s->n_at_desk--;
        pthread_mutex_unlock(&s->lock);
        serve_at_desk(x);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
