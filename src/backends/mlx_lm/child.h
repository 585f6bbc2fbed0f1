/* SPDX-License-Identifier: Apache-2.0
 *
 * A program in a process of its own that is talked to in lines. One socket is its standard input
 * and output: a write to a program that has ended is then an error and no signal. What it writes to
 * standard error is kept for the message when it ends unasked. It has a process group of its own,
 * so that Ctrl-C is ours to handle.
 */
#ifndef QN_BACKENDS_MLX_LM_CHILD_H
#define QN_BACKENDS_MLX_LM_CHILD_H

#include "quern/text.h"

#include <sys/types.h>

/* fd and errors are -1 before use. */
typedef struct qn__child {
    pid_t pid; /* 0: there is none */
    int fd, errors;
    qn_text in; /* what it said; the first `taken` bytes were given */
    size_t taken;
} qn__child;

/* How long a call may wait: until the time of base/clock.h (0: for ever), or the flag (NULL: none)
 * is true, which is QN_CANCELLED. */
typedef struct qn__patience {
    double until;
    const qn_flag *cancel;
} qn__patience;

/* Starts `program`, looked for in PATH where it has no slash, with one argument. */
qn_status qn__child_start(qn__child *c, const char *program, const char *argument, qn_error *err);

/* After a failure but QN_CANCELLED there is no child any more. */
qn_status qn__child_send(qn__child *c, const char *data, size_t n, const qn__patience *patience,
                         qn_error *err);

/* The next line without its end, until the next call. */
qn_status qn__child_line(qn__child *c, const qn__patience *patience, const char **line, size_t *n,
                         qn_error *err);

/* Its input ends; so does it, within `seconds`, or it is killed. Nothing is left of it. */
void qn__child_end(qn__child *c, double seconds);

#endif
