/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of sessions that sleep, for what sleeps beside a session.
 */
#ifndef QN_GENERATE_SLEEP_H
#define QN_GENERATE_SLEEP_H

#include "generate/session.h"
#include "io/safetensors.h"

/* A number as the files' metadata have it. */
typedef struct qn__sleep_word {
    char hex[20];
} qn__sleep_word;

qn__sleep_word qn__sleep_word_of(uint64_t number);

/* A checksum of bytes. */
qn__sleep_word qn__sleep_sum(const void *data, size_t n);

/* What stands in a session's file besides: one tensor of bytes, and metadata. */
typedef struct qn__beside {
    const char *name;
    const void *data;
    size_t n;
    const qn__metadata *metadata;
    size_t n_metadata; /* 4 at most */
} qn__beside;

/* beside: NULL for none. */
qn_status qn__session_sleep(qn_session *session, const char *path, const qn__beside *beside,
                            qn_error *err);

/* QN_STATE where the file is not of this session's model and cache. */
qn_status qn__session_check_file(const qn_session *session, const qn_tensors *file,
                                 const char *path, qn_error *err);

/* QN_STATE, saying `what`, where the file's metadata have another word. */
qn_status qn__sleep_expect(const qn_tensors *file, const char *path, const char *key,
                           const char *want, const char *what, qn_error *err);

/* Fills the empty session; on failure it stays empty. */
qn_status qn__session_wake(qn_session *session, const qn_tensors *file, const char *path,
                           qn_error *err);

#endif
