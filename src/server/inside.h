/* SPDX-License-Identifier: Apache-2.0
 *
 * The server inside. Three threads share the work of an exchange, a request with its response:
 *
 *   HTTP    libmicrohttpd's one thread: reads, checks who asks (guard.c), sends (connection.c)
 *   desk    makes tokens and settings of a body, which may take long (desk.c, request.c, prompt.c);
 *           between two bodies it ends connections that are too slow
 *   engine  runs the model's steps, and after each writes what is new into exchanges (runner.c)
 *
 * While desk and engine have an exchange its connection is suspended, and they look themselves
 * whether the client is still there. One lock guards what several threads touch; the engine's own
 * lock may be taken inside of it, never the other way round.
 */
#ifndef QN_SERVER_INSIDE_H
#define QN_SERVER_INSIDE_H

#include "request/settings.h"
#include "server/server.h"

#include <microhttpd.h>
#include <pthread.h>

enum {
    MOST_HEADER_BYTES = 16 << 10,
    MOST_HEADER_FIELDS = 100,
    MOST_BODY = 8 << 20,
    MOST_BODIES = 256 << 20, /* of all requests that come in */
    MOST_UNSENT = 64 << 10,  /* of a stream, for each of its choices */
    MOST_CONNECTIONS = 4096,
    MOST_AT_DESK = 256, /* exchanges */
    MOST_CHOICES = 128, /* of an exchange */
    MOST_SERVED_LOGPROBS = 20,
    LONGEST_KEY = 255
};

#define HEADER_SECONDS 10.0 /* from the connection, or a request's first byte at the latest ... */
#define BODY_SECONDS   60.0
#define IDLE_SECONDS   60.0 /* between two requests of a connection */
#define PING_SECONDS   15.0 /* without anything to say */

/* ---- writing: reply.c ------------------------------------------------------------------------ */

/* Text that is being written; `failed` when memory was out. */
typedef struct qn__page {
    qn_text text;
    bool failed;
} qn__page;

void qn__put(qn__page *page, const char *text);
void qn__put_format(qn__page *page, const char *format, ...) QN_PRINTF(2, 3);
void qn__put_string(qn__page *page, const char *text, size_t n); /* in JSON's quotes */

/* {"error":{...}} for an HTTP status. */
void qn__put_error(qn__page *page, int status, const char *message);

/* ---- metrics.c ------------------------------------------------------------------------------- */

enum { N_BUCKETS = 16 };

typedef struct qn__histogram {
    uint64_t counts[N_BUCKETS + 1]; /* the last one: above all bounds */
    double sum;
} qn__histogram;

typedef struct qn__metrics {
    uint64_t by_status[600];
    qn__histogram first_token, between_tokens, queued, total; /* seconds */
} qn__metrics;

void qn__observe(qn__histogram *histogram, double value);

/* All of it, in the text format of Prometheus; under the lock. */
void qn__put_metrics(qn__page *page, const qn__server *server);

/* ---- what is asked for: request.c, prompt.c -------------------------------------------------- */

typedef struct qn__job {
    bool chat, stream, include_usage;
    qn_tokens *prompts;
    size_t n_prompts;
    int64_t n;   /* replies to each */
    int adapter; /* as qn_request_options' */
    qn_sampling sampling;
    qn_generation_options generation;
    qn__settings settings;
} qn__job;

/* Reads a body; `chat`: of /v1/chat/completions. On failure, too, qn__job_free. */
qn_status qn__job_parse(qn__job *job, const qn__server *server, bool chat, const char *body,
                        size_t n, qn_error *err);
void qn__job_free(qn__job *job);

/* What clients call the model: 0; or with its adapter of that number. */
const char *qn__served_name(const qn__server *server, int adapter);

/* "messages" and maybe "chat_template_kwargs" (NULL) as tokens. */
qn_status qn__chat_tokens(const qn__server *server, const qn__json_at *messages,
                          const qn__json_at *variables, qn_tokens *out, qn_error *err);

/* "prompt": a text, tokens, or several of either, which become the job's prompts. */
qn_status qn__prompt_tokens(const qn__server *server, const qn__json_at *prompt, qn__job *job,
                            qn_error *err);

/* ---- exchanges ------------------------------------------------------------------------------- */

typedef struct qn__choice {
    qn_request *request; /* NULL: it has ended */
    qn_finish finish;
    qn_text text;         /* that was not written yet */
    qn_logprob *logprobs; /* [n_logprobs, 1 + top_logprobs], those that were not written */
    size_t n_logprobs, room;
    size_t offset; /* characters written, for completions */
    double newest; /* when its newest token came; 0: none */
} qn__choice;

typedef struct qn__route qn__route;

typedef struct qn__exchange {
    qn__server *server;
    struct MHD_Connection *connection;
    struct qn__exchange *next; /* at the desk, or of the engine thread */
    int fd;
    int references; /* the connection's, and the one of whoever works on it */
    const qn__route *route;
    char method[16], path[80], client[64], origin[128];
    char id[40];
    int64_t created; /* seconds since 1970 */
    qn_text body;
    size_t received, kept; /* bytes of the body; the kept ones count in the server's body_bytes */
    qn_text out;           /* the response, from `sent` on */
    size_t sent;
    int status; /* of HTTP; 0: not known yet */
    const char *content_type;
    const char *extra[2]; /* a header of the response; NULL: none */
    bool suspended, submitted, streaming;
    bool complete;  /* `out` has all that will come */
    bool gone;      /* nobody reads any more */
    bool broken;    /* to be cut off */
    bool lingering; /* a response was sent past libmicrohttpd; what comes is dropped */
    bool closes;    /* the connection, behind the response */
    double begun, first_token, last_written;
    qn__job job;
    qn__choice *choices;
    size_t n_choices, n_ended;
    qn_error error;
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    double queued_seconds;
} qn__exchange;

/* A response that is an error; under the lock, or while nobody else has the exchange. */
void qn__refuse(qn__exchange *x, int status, const char *format, ...) QN_PRINTF(3, 4);

/* The HTTP status of a failure. */
int qn__http_status(qn_status code);

/* Lets libmicrohttpd go on with it; under the lock. */
void qn__wake(qn__exchange *x);

/* The last one frees it, and writes its line in the log; not under the lock. */
void qn__release(qn__exchange *x);

/* Its body is not needed any more; under the lock. */
void qn__drop_body(qn__exchange *x);

/* Whether the client has closed its connection; under the lock. */
bool qn__has_left(const qn__exchange *x);

/* ---- connections: connection.c --------------------------------------------------------------- */

typedef struct qn__connection {
    struct qn__connection *next, *previous;
    int fd;
    double deadline; /* it is cut then; 0: none */
} qn__connection;

/* libmicrohttpd's callbacks. */
enum MHD_Result qn__on_request(void *server, struct MHD_Connection *connection, const char *url,
                               const char *method, const char *version, const char *data, size_t *n,
                               void **state);
void qn__on_completed(void *server, struct MHD_Connection *connection, void **state,
                      enum MHD_RequestTerminationCode code);
void qn__on_connection(void *server, struct MHD_Connection *connection, void **socket_context,
                       enum MHD_ConnectionNotificationCode code);

/* Cuts the connections that are too slow; under the lock. */
void qn__cut_slow(qn__server *server);

/* ---- routes.c -------------------------------------------------------------------------------- */

struct qn__route {
    const char *path, *method;
    bool open; /* without a key */
    bool chat;
    void (*answer)(qn__exchange *x); /* NULL: the model does */
};

/* NULL: there is none. */
const qn__route *qn__route_find(const char *path);

/* ---- guard.c --------------------------------------------------------------------------------- */

/* What of a request's headers decides whether it is let in. */
typedef struct qn__headers {
    int n, hosts, lengths, encodings, origins;
    size_t bytes;
    const char *next; /* where the next field must begin */
    bool odd;         /* a name that is none, control characters, or bytes between the fields */
    const char *host, *origin, *authorization, *api_key, *encoding, *length, *expect;
} qn__headers;

/* Whether the request may be answered as its route does; else it is refused. */
bool qn__guard(qn__exchange *x, const char *version, const qn__headers *headers);

/* ---- desk.c, runner.c ------------------------------------------------------------------------ */

void *qn__desk_run(void *server);
void *qn__runner_run(void *server);

/* Gives an exchange to the desk; under the lock. */
void qn__submit(qn__exchange *x);

/* reply.c: how a stream begins, what is new of a choice, how it ends; and a reply in one. */
void qn__put_opening(qn__page *page, const qn__exchange *x);
void qn__put_chunk(qn__page *page, qn__exchange *x, size_t choice);
void qn__put_ending(qn__page *page, const qn__exchange *x);
void qn__put_whole(qn__page *page, qn__exchange *x);

/* ---- listen.c -------------------------------------------------------------------------------- */

/* A socket that listens; `url` says where. */
qn_status qn__listen(int *fd, const qn__server_options *options, char *url, size_t room,
                     qn_error *err);

/* ---- the server ------------------------------------------------------------------------------ */

struct qn__server {
    qn__server_options options;
    char url[128];
    struct MHD_Daemon *daemon;
    int64_t created; /* seconds since 1970 */

    qn_device *device; /* these are set before `ready` and stay */
    qn_model *model;
    qn_chat *chat;
    qn_engine *engine;
    qn_model_info info;
    qn_generation_defaults defaults;
    int64_t context;

    pthread_mutex_t lock; /* what follows */
    pthread_cond_t work;  /* for the desk */
    pthread_cond_t quiet; /* an exchange has ended */
    bool ready, draining, expired, stopping;
    qn__connection *connections;
    int n_connections;
    int n_exchanges;
    size_t body_bytes;
    qn__exchange *desk_first, **desk_end;
    int n_at_desk;
    qn__exchange *arrived; /* for the engine thread */
    qn__metrics metrics;
    qn__exchange *live; /* the engine thread's own */
    pthread_t desk, runner;
    bool has_desk, has_runner;
};

#endif
