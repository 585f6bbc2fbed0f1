/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections and exchanges, as libmicrohttpd's thread sees them.
 *
 * An exchange begins with its header, which qn__guard judges. What is refused is refused once its
 * body has come and was dropped, so that the client, which may still be sending, reads why. Only a
 * body that is too long is answered in the middle, past libmicrohttpd, which cannot. Each
 * connection has a deadline, for its header, its body and the next request: how many bytes trickle
 * in meanwhile does not matter.
 */
#include "server/inside.h"

#include "base/buffers.h"
#include "base/clock.h"

#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the log --------------------------------------------------------------------------------- */

/* Prompts and keys are not in it, and what of it a client chose has no control characters. */
static void log_exchange(const qn__exchange *x)
{
    const qn__server *s = x->server;
    char line[400];
    double now = qn__seconds();
    if (!s->options.log)
        return;
    size_t n = (size_t)snprintf(line, sizeof line, "%s %s %s %d", x->client, x->method, x->path,
                                x->status);
    if (x->prompt_tokens)
        n += (size_t)snprintf(line + n, sizeof line - n,
                              " prompt %llu (%llu known) + %llu tokens, queued %.3f s, first "
                              "%.3f s,",
                              (unsigned long long)x->prompt_tokens,
                              (unsigned long long)x->cached_tokens,
                              (unsigned long long)x->generated_tokens, x->queued_seconds,
                              x->first_token > 0 ? x->first_token - x->begun : 0);
    snprintf(line + n, sizeof line - n, " %.3f s", now - x->begun);
    s->options.log(s->options.log_user, QN_LOG_INFO, line);
}

/* Control characters and what is not ASCII become %XX. */
static void copy_escaped(char *to, size_t room, const char *from)
{
    size_t n = 0;
    for (; *from && n + 4 < room; from++) {
        unsigned char c = (unsigned char)*from;
        if (c > ' ' && c < 0x7f)
            to[n++] = (char)c;
        else
            n += (size_t)snprintf(to + n, room - n, "%%%02X", c);
    }
    to[n] = 0;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

void qn__refuse(qn__exchange *x, int status, const char *format, ...)
{
    char message[600];
    qn__page page = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    qn__put_error(&page, status, message);
    qn_text_free(&x->out);
    x->out = page.text; /* without memory, an empty one */
    x->sent = 0;
    x->status = status;
    x->content_type = "application/json";
    x->complete = true;
    if (status == 429 || status == 503) {
        x->extra[0] = "Retry-After";
        x->extra[1] = "1";
    }
}

int qn__http_status(qn_status code)
{
    switch (code) {
    case QN_INVALID:
    case QN_LIMIT:
    case QN_FORMAT:
    case QN_UNSUPPORTED: return 400;
    case QN_NOT_FOUND: return 404;
    case QN_BUSY: return 429;
    case QN_CANCELLED:
    case QN_STATE: return 503;
    default: return 500;
    }
}

static void describe_client(qn__exchange *x)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    char host[48] = "?", port[8] = "?";
    if (a)
        getnameinfo(
            a, a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in),
            host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(x->client, sizeof x->client, "%s:%s", host, port);
}

static qn__exchange *new_exchange(qn__server *s, struct MHD_Connection *c, const char *method,
                                  const char *path)
{
    qn__exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->server = s;
    x->connection = c;
    x->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    x->references = 1;
    x->route = qn__route_find(path);
    x->begun = x->last_written = qn__seconds();
    x->content_type = "application/json";
    copy_escaped(x->method, sizeof x->method, method);
    copy_escaped(x->path, sizeof x->path, path);
    describe_client(x);
    pthread_mutex_lock(&s->lock);
    s->n_exchanges++;
    pthread_mutex_unlock(&s->lock);
    return x;
}

void qn__release(qn__exchange *x)
{
    qn__server *s = x->server;
    pthread_mutex_lock(&s->lock);
    bool last = --x->references == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last)
        return;
    x->status = x->gone && !x->complete ? 499 : x->status; /* nginx's, for clients that leave */
    log_exchange(x);
    pthread_mutex_lock(&s->lock);
    s->metrics.by_status[x->status > 0 && x->status < 600 ? x->status : 0]++;
    qn__drop_body(x);
    s->n_exchanges--;
    pthread_cond_broadcast(&s->quiet);
    pthread_mutex_unlock(&s->lock);
    qn__job_free(&x->job);
    qn_text_free(&x->out);
    free(x->choices);
    free(x);
}

void qn__wake(qn__exchange *x)
{
    if (x->suspended)
        MHD_resume_connection(x->connection);
    x->suspended = false;
}

static void suspend(qn__exchange *x)
{
    MHD_suspend_connection(x->connection);
    x->suspended = true;
}

bool qn__has_left(const qn__exchange *x)
{
    struct pollfd p = {.fd = x->fd, .events = POLLRDHUP};
    return x->gone || (poll(&p, 1, 0) > 0 && p.revents);
}

/* ---- responses ------------------------------------------------------------------------------- */

/* What is new of a stream. */
static ssize_t read_stream(void *cls, uint64_t at, char *to, size_t room)
{
    qn__exchange *x = cls;
    (void)at;
    pthread_mutex_lock(&x->server->lock);
    size_t left = x->out.n - x->sent;
    ssize_t n = (ssize_t)(left < room ? left : room);
    if (x->broken)
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    else if (n) {
        memcpy(to, x->out.data + x->sent, (size_t)n);
        x->sent += (size_t)n;
        if (x->sent == x->out.n)
            x->sent = x->out.n = 0;
    } else if (x->complete)
        n = MHD_CONTENT_READER_END_OF_STREAM;
    else
        suspend(x);
    pthread_mutex_unlock(&x->server->lock);
    return n;
}

static void add_headers(struct MHD_Response *r, const qn__exchange *x)
{
    if (x->status != 204)
        MHD_add_response_header(r, "Content-Type", x->content_type);
    if (x->extra[0])
        MHD_add_response_header(r, x->extra[0], x->extra[1]);
    if (x->streaming) {
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    if (x->closes)
        MHD_add_response_header(r, "Connection", "close");
    if (!x->origin[0])
        return;
    MHD_add_response_header(r, "Access-Control-Allow-Origin", x->origin);
    MHD_add_response_header(r, "Vary", "Origin");
    if (x->status == 204) {
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        MHD_add_response_header(r, "Access-Control-Allow-Headers",
                                "Authorization, Content-Type, X-Api-Key");
        MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    }
}

/* Hands the response to libmicrohttpd; not under the lock, since that reads a stream with a lock of
 * its own. Nobody else touches now what it needs. */
static enum MHD_Result respond(qn__exchange *x)
{
    struct MHD_Response *r;
    if (x->streaming)
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, x, NULL);
    else {
        r = MHD_create_response_from_buffer(x->out.n, x->out.data, MHD_RESPMEM_MUST_FREE);
        if (r)
            x->out = (qn_text){0};
    }
    if (!r)
        return MHD_NO;
    add_headers(r, x);
    enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return result;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A CR alone, for one, may be the end of a line to others. */
static bool has_controls(const char *value)
{
    for (; *value; value++)
        if (((unsigned char)*value < 0x20 && *value != '\t') || *value == 0x7f)
            return true;
    return false;
}

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                  const char *value)
{
    static const char token[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "!#$%&'*+-.^_`|~";
    qn__headers *h = cls;
    (void)kind;
    value = value ? value : "";
    h->n++;
    h->odd |= key != h->next || strspn(key, token) != strlen(key) || has_controls(value);
    h->next = value + strlen(value) + 2;
    if (!strcasecmp(key, "Host")) {
        h->hosts++;
        h->host = value;
    } else if (!strcasecmp(key, "Origin")) {
        h->origins++;
        h->origin = value;
    } else if (!strcasecmp(key, "Content-Length")) {
        h->lengths++;
        h->length = value;
    } else if (!strcasecmp(key, "Transfer-Encoding")) {
        h->encodings++;
        h->encoding = value;
    } else if (!strcasecmp(key, "Authorization"))
        h->authorization = value;
    else if (!strcasecmp(key, "X-Api-Key"))
        h->api_key = value;
    else if (!strcasecmp(key, "Expect"))
        h->expect = value;
    return MHD_YES;
}

static void set_deadline(qn__exchange *x, double seconds)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    qn__connection *c = info ? info->socket_context : NULL;
    if (c)
        c->deadline = seconds > 0 ? qn__seconds() + seconds : 0;
}

/* Says 413 at once, though the body is still coming, and drops the rest of it. */
static void refuse_body(qn__exchange *x)
{
    char head[200];
    qn__refuse(x, 413, "the body has more than %d bytes", MOST_BODY);
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                     x->out.n);
    send(x->fd, head, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_MORE);
    send(x->fd, x->out.data ? x->out.data : "", x->out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(x->fd, SHUT_WR);
    set_deadline(x, HEADER_SECONDS);
    x->lingering = true;
}

/* libmicrohttpd before 1.0 ends texts at a NUL, takes lines without CR, and joins lines; what is
 * behind a NUL a proxy in front sees and we do not. But the texts lie where they came: each must
 * begin where the one before ends, and the last one end where the header does. A query ends the
 * path, too; there are none here. */
static void read_headers(qn__exchange *x, const char *method, const char *url, const char *version,
                         qn__headers *h)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    h->bytes = info ? info->header_size : 0;
    h->next = version + strlen(version) + 2;
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, see_header, h);
    h->odd |= url + strlen(url) + 1 != version || h->next + 2 != method + h->bytes;
    if (MHD_get_version()[0] != '0')
        h->odd = false;
}

static enum MHD_Result begin_request(qn__exchange *x, const char *method, const char *url,
                                     const char *version)
{
    qn__headers h = {0};
    read_headers(x, method, url, version, &h);
    pthread_mutex_lock(&x->server->lock);
    set_deadline(x, BODY_SECONDS);
    bool fine = qn__guard(x, version, &h);
    if (!x->closes && h.length && strtoull(h.length, NULL, 10) > MOST_BODY) {
        if (h.expect)
            qn__refuse(x, 413, "the body has more than %d bytes", MOST_BODY);
        else
            refuse_body(x);
        fine = false;
    }
    /* With an Expect the client waits for what we say; and what has two lengths has no end. */
    bool at_once = !fine && !x->lingering && (x->closes || h.expect);
    pthread_mutex_unlock(&x->server->lock);
    return at_once ? respond(x) : MHD_YES;
}

static void keep_body(qn__exchange *x, const char *data, size_t n)
{
    qn__server *s = x->server;
    if (s->body_bytes + n > MOST_BODIES)
        qn__refuse(x, 503, "too many bodies are coming in; try again later");
    else if (!qn__text_append(&x->body, data, n))
        qn__refuse(x, 503, "out of memory");
    else {
        x->kept += n;
        s->body_bytes += n;
    }
}

void qn__drop_body(qn__exchange *x)
{
    qn_text_free(&x->body);
    x->server->body_bytes -= x->kept;
    x->kept = 0;
}

static void take_body(qn__exchange *x, const char *data, size_t n)
{
    qn__server *s = x->server;
    pthread_mutex_lock(&s->lock);
    x->received += n;
    if (x->received > MOST_BODY && !x->lingering)
        refuse_body(x);
    else if (!x->complete && !x->route->answer)
        keep_body(x, data, n);
    if (x->complete)
        qn__drop_body(x);
    pthread_mutex_unlock(&s->lock);
}

/* The body has come, or whoever worked on the exchange lets it go on; under the lock. */
static void go_on(qn__exchange *x)
{
    if (!x->complete && !x->submitted) {
        set_deadline(x, 0);
        if (x->route->answer)
            x->route->answer(x);
        else
            qn__submit(x);
    }
    x->closes |= x->server->draining;
    if (!x->complete && !x->streaming)
        suspend(x);
}

enum MHD_Result qn__on_request(void *server, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *data, size_t *n,
                               void **state)
{
    qn__exchange *x = *state;
    if (!x) {
        x = *state = new_exchange(server, connection, method, url);
        return x ? begin_request(x, method, url, version) : MHD_NO;
    }
    if (*n) {
        take_body(x, data, *n);
        *n = 0;
        return MHD_YES;
    }
    pthread_mutex_lock(&x->server->lock);
    bool cut = x->lingering || x->broken;
    if (!cut)
        go_on(x);
    bool ready = x->complete || x->streaming;
    pthread_mutex_unlock(&x->server->lock);
    return cut ? MHD_NO : ready ? respond(x) : MHD_YES;
}

void qn__on_completed(void *server, struct MHD_Connection *connection, void **state,
                      enum MHD_RequestTerminationCode code)
{
    qn__server *s = server;
    qn__exchange *x = *state;
    (void)connection;
    if (!x)
        return;
    pthread_mutex_lock(&s->lock);
    set_deadline(x, IDLE_SECONDS);
    x->gone = true;
    x->complete &= code == MHD_REQUEST_TERMINATED_COMPLETED_OK || !x->streaming;
    for (size_t i = 0; i < x->n_choices; i++)
        if (x->choices[i].request)
            qn_request_cancel(x->choices[i].request);
    pthread_mutex_unlock(&s->lock);
    qn__release(x);
    *state = NULL;
}

/* ---- connections ----------------------------------------------------------------------------- */

static qn__connection *new_connection(qn__server *s, int fd)
{
    int room = MOST_UNSENT;
    qn__connection *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room); /* else it grows to megabytes */
    *c = (qn__connection){
        .next = s->connections, .fd = fd, .deadline = qn__seconds() + HEADER_SECONDS};
    if (c->next)
        c->next->previous = c;
    s->connections = c;
    s->n_connections++;
    pthread_cond_signal(&s->work);
    return c;
}

void qn__on_connection(void *server, struct MHD_Connection *connection, void **socket_context,
                       enum MHD_ConnectionNotificationCode code)
{
    qn__server *s = server;
    qn__connection *c = *socket_context;
    int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    pthread_mutex_lock(&s->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        *socket_context = new_connection(s, fd);
    else if (c) {
        *(c->previous ? &c->previous->next : &s->connections) = c->next;
        if (c->next)
            c->next->previous = c->previous;
        s->n_connections--;
        free(c);
        *socket_context = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

void qn__cut_slow(qn__server *s)
{
    double now = qn__seconds();
    for (qn__connection *c = s->connections; c; c = c->next)
        if (c->deadline > 0 && now > c->deadline) {
            shutdown(c->fd, SHUT_RDWR);
            c->deadline = 0;
        }
}
