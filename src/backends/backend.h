/* SPDX-License-Identifier: Apache-2.0
 *
 * Backends inside: the table of what one can do, and the registry.
 */
#ifndef QN_BACKENDS_BACKEND_H
#define QN_BACKENDS_BACKEND_H

#include "quern/backend.h"

#include <pthread.h>

/* What is to be continued: a text, or with `messages` a conversation. */
typedef struct qn__asked {
    const char *prompt;
    const qn_chat_message *messages;
    size_t n;
    const qn_generation_options *options; /* with sampling */
    qn_backend_token token;
    void *user;
} qn__asked;

/* One way of running models. `state` is its own. */
typedef struct qn__backend_kind {
    const char *name;
    /* Fills in info and sampling, too. close follows also where it fails. */
    qn_status (*open)(qn_backend *b, const char *path, qn_error *err);
    qn_status (*reply)(qn_backend *b, const qn__asked *asked, qn_error *err);
    void (*close)(qn_backend *b);
} qn__backend_kind;

struct qn_backend {
    const qn__backend_kind *kind;
    qn_backend_options
        options; /* what they point at counts while it is opened; device, cancel: on */
    qn_backend_info info;
    qn_sampling sampling;
    qn_metrics metrics;
    pthread_mutex_t lock; /* one call at a time */
    void *state;
};

extern const qn__backend_kind qn__backend_native;
#ifdef QN_MLX_LM
extern const qn__backend_kind qn__backend_mlx_lm;
#endif

#endif
