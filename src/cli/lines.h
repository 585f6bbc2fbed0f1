/* SPDX-License-Identifier: Apache-2.0
 *
 * A file, or standard input, line by line, in bounded memory.
 */
#ifndef QN_CLI_LINES_H
#define QN_CLI_LINES_H

#include "quern/text.h"

enum { LONGEST_LINE = 16 << 20, LINES_AT_ONCE = 1 << 16 };

typedef struct text_lines {
    int fd;
    const char *name; /* for messages */
    qn_text line;     /* the newest, without what ends it */
    bool cut_off;     /* its newline is missing: the text ended before */
    uint64_t number;  /* and its number, from 1 on */
    uint64_t taken;   /* bytes up to its end */
    char buffer[LINES_AT_ONCE];
    size_t at, n;
} text_lines;

/* "-" is standard input. Close it also where that fails. */
qn_status lines_open(text_lines *r, const char *path, qn_error *err);
void lines_close(text_lines *r);

/* Whether there is something to read, so that lines_next need not wait for it to begin. */
bool lines_ready(const text_lines *r);

/* The next line that is not blank. *more is false at the end. A line beyond LONGEST_LINE is skipped
 * and QN_LIMIT: the next call goes on behind it. */
qn_status lines_next(text_lines *r, bool *more, qn_error *err);

#endif
