/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a batch writes its results: standard output, or a file that a later run can go on with.
 */
#ifndef QN_CLI_BATCH_OUTPUT_H
#define QN_CLI_BATCH_OUTPUT_H

#include "cli/options.h"

#include <stdio.h>

/* Zero it before use ({0}). */
typedef struct batch_output {
    FILE *out;
    const char *path; /* NULL: standard output */
    double synced;    /* when what was written was made durable */
} batch_output;

/* Refuses an -o that is there already, before a model is loaded. */
qn_status batch_output_check(const arguments *a, qn_error *err);

/* Opens -o. With --resume each whole line that is there, the result of the input's line `index`, is
 * given to `keep`, and what a run that was cut off left behind the last of them is dropped. Without
 * it --force alone replaces a file. */
qn_status batch_output_open(batch_output *o, const arguments *a,
                            qn_status (*keep)(void *user, uint64_t index, const char *custom_id,
                                              qn_error *err),
                            void *user, qn_error *err);

/* Lines are written whole, and to a file durably within a second or two. */
qn_status batch_output_write(batch_output *o, const char *line, size_t n, qn_error *err);
qn_status batch_output_close(batch_output *o, qn_error *err);

#endif
