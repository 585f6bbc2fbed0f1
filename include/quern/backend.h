/* SPDX-License-Identifier: Apache-2.0
 *
 * Backends: one interface to what can run a model. "native" is this library; "mlx_lm" is Python's
 * mlx-lm in a process of its own, where quern was built with it.
 *
 *     qn_backend *backend;
 *     qn_backend_open(&backend, "native", "path/to/model", NULL, &err);
 *     qn_backend_generate(backend, "Once upon", 9, NULL, print_token, NULL, &err);
 *     qn_backend_close(backend);
 *
 * Any thread may call; calls on one backend run one after the other.
 */
#ifndef QUERN_BACKEND_H
#define QUERN_BACKEND_H

#include "quern/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_backend qn_backend;

/* The name of backend i of this library; NULL behind the last. */
QN_API const char *qn_backend_name(size_t i);

/* Whether there is one of that name. QN_NOT_FOUND: there is not, with those there are;
 * QN_UNSUPPORTED: it was left out when quern was built. */
QN_API qn_status qn_backend_find(const char *name, qn_error *err);

typedef struct qn_backend_options {
    size_t size;           /* sizeof(qn_backend_options) */
    const qn_flag *cancel; /* polled while a model is opened and runs: true makes calls fail with
                              QN_CANCELLED. Whoever set it resets it before the next call. */
    /* native alone */
    qn_device *device;                 /* must outlive the backend; NULL: the CPU */
    const qn_model_options *model;     /* borrowed until open returns; NULL: defaults */
    const qn_session_options *session; /* the same; `batch` and `cancel` do not count */
    /* mlx_lm alone */
    const char *python;  /* a program or its path; NULL: what QUERN_PYTHON says, else python3 */
    double load_seconds; /* how long Python may take to load a model; 0: 600 */
} qn_backend_options;

/* Opens a model. options may be NULL. */
QN_API qn_status qn_backend_open(qn_backend **out, const char *name, const char *path,
                                 const qn_backend_options *options, qn_error *err);
QN_API void qn_backend_close(qn_backend *backend); /* NULL is accepted */

typedef struct qn_backend_info {
    size_t size;         /* sizeof(qn_backend_info) */
    char model_type[64]; /* "llama", "qwen3" ... */
    int64_t vocab_size, n_layers, hidden_size;
} qn_backend_info;

/* QN_INVALID: info->size was not set. */
QN_API qn_status qn_backend_get_info(const qn_backend *backend, qn_backend_info *info);

/* The sampling that the model asks for; of mlx_lm it is greedy. Lives as long as the backend. */
QN_API const qn_sampling *qn_backend_sampling(const qn_backend *backend);

/* Gets a token and the text that is certain with it, n bytes of whole characters, maybe none; text
 * that was held back comes at the end, with id -1. Returning false ends the reply with
 * QN_CANCELLED. Calls on the backend must not be made from it. */
typedef bool (*qn_backend_token)(void *user, int32_t id, const char *text, size_t n);

/* Continues prompt[0..n), UTF-8 in which special tokens are those. options may be NULL: the model's
 * own sampling; `before`, `logprobs` and the like are QN_UNSUPPORTED. Of mlx_lm max_tokens and the
 * sampling's temperature, top_p, top_k, min_p and seed are possible; another field that is set is
 * QN_UNSUPPORTED, by its name. */
QN_API qn_status qn_backend_generate(qn_backend *backend, const char *prompt, size_t n,
                                     const qn_generation_options *options, qn_backend_token token,
                                     void *user, qn_error *err);

/* The reply to a conversation, in the model's own chat format. native runs what is new of it alone.
 */
QN_API qn_status qn_backend_chat(qn_backend *backend, const qn_chat_message *messages, size_t n,
                                 const qn_generation_options *options, qn_backend_token token,
                                 void *user, qn_error *err);

/* Of the newest reply. Of mlx_lm all is zero but `finish`. QN_INVALID: metrics->size was not set.
 */
QN_API qn_status qn_backend_get_metrics(qn_backend *backend, qn_metrics *metrics);

#ifdef __cplusplus
}
#endif
#endif
