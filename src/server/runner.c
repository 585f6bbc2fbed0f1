/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's thread: steps, and after each what is new of every reply. A client that has left is
 * noticed between two steps; its requests end before the next one.
 */
#include "server/inside.h"

#include "base/buffers.h"
#include "base/clock.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define IDLE_WAIT 0.25

/* ---- one reply ------------------------------------------------------------------------------- */

static qn_status keep_newest_logprobs(qn__exchange *x, qn__choice *c, qn_error *err)
{
    size_t n, row = (size_t)x->job.generation.top_logprobs + 1;
    const qn_logprob *newest = qn_request_logprobs(c->request, &n);
    if (!x->job.generation.logprobs || !newest)
        return QN_OK;
    if (c->n_logprobs == c->room) {
        size_t room = c->room * 2 + 8;
        qn_logprob *more = realloc(c->logprobs, room * row * sizeof *more);
        if (!more)
            return qn__fail_memory(err, "log probabilities");
        c->logprobs = more;
        c->room = room;
    }
    memcpy(c->logprobs + c->n_logprobs++ * row, newest, row * sizeof *newest);
    return QN_OK;
}

/* A token has come. */
static void time_token(qn__exchange *x, qn__choice *c, double now)
{
    qn__metrics *m = &x->server->metrics;
    if (c->newest > 0)
        qn__observe(&m->between_tokens, now - c->newest);
    if (x->first_token == 0) {
        x->first_token = now;
        qn__observe(&m->first_token, now - x->begun);
    }
    c->newest = now;
}

/* Takes the tokens and the text that are there; returns how many tokens. */
static size_t take_news(qn__exchange *x, qn__choice *c, qn_error *err)
{
    int32_t id;
    size_t n = 0;
    while (err->code == QN_OK && qn_request_next(c->request, &id, err) == QN_OK && id >= 0) {
        keep_newest_logprobs(x, c, err);
        n++;
    }
    qn_error late = {0};
    qn_request_text(c->request, &c->text, &late);
    if (err->code == QN_OK)
        *err = late;
    return n;
}

/* What it came to. */
static void end_choice(qn__exchange *x, size_t i)
{
    qn__choice *c = &x->choices[i];
    qn_request_metrics m = QN_INIT(qn_request_metrics);
    qn_request_get_metrics(c->request, &m);
    x->generated_tokens += m.generated_tokens;
    if (i % (size_t)x->job.n == 0) { /* a prompt counts once */
        x->prompt_tokens += m.prompt_tokens;
        x->cached_tokens += m.cached_tokens;
        x->queued_seconds = m.queued_seconds;
    }
    qn_request_close(c->request);
    c->request = NULL;
    x->n_ended++;
}

/* ---- one exchange ---------------------------------------------------------------------------- */

/* Adds to what the client gets; one that does not read what there is loses it. */
static void write_out(qn__exchange *x, qn__page *page)
{
    if (page->failed || !qn__text_append(&x->out, page->text.data, page->text.n))
        x->broken = true;
    if (x->streaming && x->out.n - x->sent > (size_t)MOST_UNSENT * x->n_choices) {
        x->broken = true;
        shutdown(x->fd, SHUT_RDWR);
    }
    x->last_written = qn__seconds();
    qn__wake(x);
}

static void fail_exchange(qn__exchange *x)
{
    qn__page page = {0};
    if (!x->streaming) {
        qn__refuse(x, qn__http_status(x->error.code), "%s", x->error.message);
        qn__wake(x);
        return;
    }
    qn__put(&page, "data: ");
    qn__put_error(&page, qn__http_status(x->error.code), x->error.message);
    qn__put(&page, "\n\n");
    x->complete = true;
    write_out(x, &page);
    qn_text_free(&page.text);
}

/* All replies have ended. */
static void end_exchange(qn__exchange *x)
{
    qn__page page = {0};
    if (x->error.code != QN_OK) {
        fail_exchange(x);
        return;
    }
    if (x->streaming)
        qn__put_ending(&page, x);
    else
        qn__put_whole(&page, x);
    x->status = 200;
    x->complete = true;
    write_out(x, &page);
    qn_text_free(&page.text);
    qn__observe(&x->server->metrics.queued, x->queued_seconds);
    qn__observe(&x->server->metrics.total, qn__seconds() - x->begun);
}

/* Writes what is new of one reply. */
static void look_at_choice(qn__exchange *x, size_t i)
{
    qn__choice *c = &x->choices[i];
    qn__server *s = x->server;
    qn_error err = {0};
    qn__page page = {0};
    size_t n = take_news(x, c, &err);
    c->finish = qn_request_finish(c->request);
    bool ended = c->finish != QN_FINISH_NONE || err.code != QN_OK;
    if (!n && !ended)
        return;
    if (x->job.stream && err.code == QN_OK && (c->text.n || c->n_logprobs || ended))
        qn__put_chunk(&page, x, i);
    pthread_mutex_lock(&s->lock);
    double now = qn__seconds();
    for (; n; n--)
        time_token(x, c, now);
    if (x->error.code == QN_OK)
        x->error = err;
    if (ended)
        end_choice(x, i);
    if (page.text.n || page.failed)
        write_out(x, &page);
    pthread_mutex_unlock(&s->lock);
    qn_text_free(&page.text);
}

/* A comment, so that nobody between here and the client thinks that the connection is dead. */
static void ping(qn__exchange *x)
{
    qn__page page = {0};
    if (!x->streaming || qn__seconds() - x->last_written < PING_SECONDS)
        return;
    qn__put(&page, ": ping\n\n");
    write_out(x, &page);
    qn_text_free(&page.text);
}

/* Its client has left, or it failed: what still runs of it ends. */
static void give_up(qn__exchange *x)
{
    for (size_t i = 0; i < x->n_choices; i++)
        if (x->choices[i].request)
            end_choice(x, i);
    x->broken = x->gone || x->broken;
    qn__wake(x);
}

/* Returns whether the exchange is over. */
static bool look_at(qn__exchange *x)
{
    qn__server *s = x->server;
    for (size_t i = 0; i < x->n_choices; i++)
        if (x->choices[i].request)
            look_at_choice(x, i);
    pthread_mutex_lock(&s->lock);
    bool failed = x->gone || x->broken || x->error.code != QN_OK;
    if (failed)
        give_up(x);
    bool over = x->n_ended == x->n_choices;
    if (over && !x->gone && !x->broken)
        end_exchange(x);
    else if (!over)
        ping(x);
    pthread_mutex_unlock(&s->lock);
    return over;
}

static void let_go(qn__exchange *x)
{
    for (size_t i = 0; i < x->n_choices; i++) {
        qn_text_free(&x->choices[i].text);
        free(x->choices[i].logprobs);
        x->choices[i].logprobs = NULL;
    }
    qn__release(x);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Cancels what nobody waits for any more, before the next step. */
static void cancel_left(qn__server *s)
{
    pthread_mutex_lock(&s->lock);
    for (qn__exchange *x = s->live; x; x = x->next) {
        bool left = !x->gone && x->suspended && qn__has_left(x);
        x->gone |= left;
        for (size_t i = 0; (x->gone || s->expired) && i < x->n_choices; i++)
            if (x->choices[i].request)
                qn_request_cancel(x->choices[i].request);
    }
    pthread_mutex_unlock(&s->lock);
}

static void take_arrived(qn__server *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->arrived) {
        qn__exchange *x = s->arrived;
        s->arrived = x->next;
        x->next = s->live;
        s->live = x;
    }
    pthread_mutex_unlock(&s->lock);
}

static void look_at_all(qn__server *s)
{
    for (qn__exchange **at = &s->live, *x; (x = *at);) {
        if (!look_at(x)) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        let_go(x);
    }
}

static bool goes_on(qn__server *s)
{
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return !stopping;
}

void *qn__runner_run(void *server)
{
    qn__server *s = server;
    qn_error err = {0};
    bool busy;
    while (goes_on(s)) {
        if (qn_engine_wait(s->engine, IDLE_WAIT))
            qn_engine_step(s->engine, &busy, &err);
        take_arrived(s);
        cancel_left(s);
        look_at_all(s);
    }
    return NULL;
}
