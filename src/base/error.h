/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling a qn_error: the first failure wins, later ones are ignored, a NULL error is accepted.
 */
#ifndef QN_BASE_ERROR_H
#define QN_BASE_ERROR_H

#include "quern/base.h"

/* Records code and message in `err` unless it already holds a failure; returns `code`, so that
 * a function can end with `return qn__fail(err, QN_FORMAT, "%s: ...", path);`. */
qn_status qn__fail(qn_error *err, qn_status code, const char *format, ...) QN_PRINTF(3, 4);

/* Out of memory while making `what`. */
qn_status qn__fail_memory(qn_error *err, const char *what);

/* Bytes for a person: "512 bytes", "1.50 MiB", "7.25 GiB". Returns to->text. */
typedef struct qn__size_text {
    char text[32];
} qn__size_text;

const char *qn__say_size(uint64_t bytes, qn__size_text *to);

#endif
