/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a directory that appears under its name complete or not at all: its files are put into
 * one beside it, which gets the name at the end. One that is replaced changes places with it first,
 * and must hold nothing but what its writer writes.
 */
#ifndef QN_BASE_DIRECTORY_H
#define QN_BASE_DIRECTORY_H

#include "base/error.h"

#include <stdbool.h>

typedef struct qn__directory {
    const char *path;
    char *temporary; /* where the files are put */
    bool exists;
} qn__directory;

/* Whether a writer's directory may have a file of this name. */
typedef bool qn__directory_file(const char *name);

/* `path` is borrowed until the end. What exists there is QN_INVALID, but with `replace` a directory
 * of the writer's files. */
qn_status qn__directory_begin(qn__directory *d, const char *path, bool replace,
                              qn__directory_file *is_ours, qn_error *err);

/* Gives it its name, or, where `status` is a failure or that fails, leaves nothing behind and what
 * was there as it was. Returns what became of it; {0} is accepted. */
qn_status qn__directory_end(qn__directory *d, qn_status status, qn_error *err);

#endif
