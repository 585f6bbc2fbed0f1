/* SPDX-License-Identifier: Apache-2.0
 *
 * One reply, written as it comes.
 */
#ifndef QN_CLI_REPLY_H
#define QN_CLI_REPLY_H

#include "cli/wrap.h"
#include "quern/quern.h"

#include <stdbool.h>

typedef struct reply {
    qn_text text;       /* all of it */
    qn_metrics metrics; /* prompt_tokens: those that were run */
    qn_tokens ids;      /* of the reply */
    bool write_failed;
    wrapper *wrap; /* set before: how lines are broken on a terminal; NULL: not at all */
    qn_logprob
        *logprobs; /* of each of the ids n_logprobs, its own first; NULL where none are wanted */
    size_t n_logprobs, logprobs_room;
} reply;

void reply_free(reply *r);

/* Runs the generation and ends it; `print` writes to standard output, too. *r must be zero but for
 * wrap. After a failure, also a cancelled run, r has what came before. */
qn_status reply_run(reply *r, qn_generation *g, bool print, qn_error *err);

/* "prompt 12 tokens, 80.1 tok/s; generated ..." on standard error; `kept` are mentioned unless 0.
 */
void reply_print_speed(const qn_metrics *m, size_t kept);

#endif
