/* SPDX-License-Identifier: Apache-2.0
 *
 * --prompt-cache: a prompt's keys and values in a file, for the next prompt that begins alike.
 */
#ifndef QN_CLI_PROMPT_CACHE_H
#define QN_CLI_PROMPT_CACHE_H

#include "base/error.h"
#include "cli/options.h"

/* What the file has of the prompt's beginning, all but its last token at most, goes into the empty
 * session; *kept receives the number of tokens. Without --prompt-cache, and where there is no file
 * yet: none. */
qn_status prompt_cache_wake(const arguments *a, qn_session *session, const qn_tokens *ids,
                            size_t *kept, qn_error *err);

/* Runs ids[*kept .. n - 1) and writes the file, unless it has them, may not be written, or is to
 * have the reply, too; *kept becomes the number of tokens in the session. */
qn_status prompt_cache_keep(const arguments *a, qn_session *session, const qn_tokens *ids,
                            size_t *kept, qn_error *err);

/* With --prompt-cache-all: the session as it is behind the reply. */
qn_status prompt_cache_keep_all(const arguments *a, qn_session *session, qn_error *err);

#endif
