/* SPDX-License-Identifier: Apache-2.0
 *
 * The server of `quern serve`: HTTP with OpenAI's chat completions and completions, on one model.
 *
 *     qn__server_open(&server, &options, &err);   listens, and says 503
 *     qn__server_serve(server, device, model, path, &engine, &err);   answers
 *     qn__server_drain(server, 30);   takes no more, lets the others end
 *     qn__server_close(server);
 *
 * These are to be called by one thread. docs/decisions/2026-11-23-server.md says why it is a part
 * of the command and not of the library.
 */
#ifndef QN_SERVER_SERVER_H
#define QN_SERVER_SERVER_H

#include "quern/engine.h"

typedef struct qn__server qn__server;

/* Borrowed until the server is closed. */
typedef struct qn__server_options {
    const char *host; /* a name or an address */
    int port;         /* 0: any that is free */
    const char *name; /* of the model, for clients */
    const char *const *keys;
    size_t n_keys;              /* none: who can connect may ask */
    const char *const *hosts;   /* further names that Host may say */
    size_t n_hosts;             /* beside localhost and addresses */
    const char *const *origins; /* of web pages that may ask, beside local ones */
    size_t n_origins;
    int32_t prompt_lookup, draft_tokens; /* of all requests, as qn_generation_options' */
    bool insecure;                       /* listen beyond this machine also without a key */
    qn_log_fn log; /* a line for each request; NULL: none. No prompts, no keys. */
    void *log_user;
} qn__server_options;

/* QN_INVALID: a host beyond this machine without a key; QN_IO: it cannot listen there. */
qn_status qn__server_open(qn__server **out, const qn__server_options *options, qn_error *err);

/* "http://127.0.0.1:8080" */
const char *qn__server_url(const qn__server *server);

/* Answers with the model of the device, whose chat templates lie at `path`. Once. */
qn_status qn__server_serve(qn__server *server, qn_device *device, qn_model *model, const char *path,
                           const qn_engine_options *engine, qn_error *err);

/* Takes no more connections and requests, and waits for the end of those that there are, for
 * `seconds` at most; returns whether all have ended. It may be called again. */
bool qn__server_drain(qn__server *server, double seconds);

/* What has not ended breaks off. NULL is accepted. */
void qn__server_close(qn__server *server);

#endif
