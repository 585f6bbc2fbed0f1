/* SPDX-License-Identifier: Apache-2.0
 *
 * --backend: replies of other backends than native, which the commands have themselves.
 */
#ifndef QN_CLI_BACKEND_H
#define QN_CLI_BACKEND_H

#include "cli/options.h"
#include "cli/reply.h"
#include "quern/backend.h"
#include "quern/conversation.h"

bool backend_is_other(const arguments *a);

/* Whether the backend of the arguments exists, and the command and its other options are possible
 * with it; prints one line where not. */
bool backend_fits(const option_user *user, const arguments *a);

/* Opens it with the model of -m. */
qn_status backend_open(qn_backend **out, const arguments *a, qn_error *err);

/* The reply to a conversation, or with `raw` what goes on behind its last message; `print` writes
 * it to standard output, too. *r must be zero. */
qn_status backend_reply(qn_backend *b, const arguments *a, const qn_conversation *c, bool raw,
                        reply *r, bool print, qn_error *err);

/* quern chat on it, without the commands of a chat; returns the exit status. */
int backend_chat(const arguments *a, bool terminal);

#endif
