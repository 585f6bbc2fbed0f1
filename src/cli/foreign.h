/* SPDX-License-Identifier: Apache-2.0
 *
 * Words of other tools: which of ours is meant.
 */
#ifndef QN_CLI_FOREIGN_H
#define QN_CLI_FOREIGN_H

#include <stdbool.h>

/* Whether another tool has such a command ("run"), option ("-ngl", "--ctx-size=8") or command
 * within a chat
 * ("/bye"). *ours: what quern has in its place, to stand
 * behind "use", or "nothing: " and why it is not needed; NULL where quern has nothing like it. */
bool foreign_command(const char *word, const char **ours);
bool foreign_option(const char *word, const char **ours);
bool foreign_chat_command(const char *word, const char **ours);

/* Prints the advice and the end of the line. */
void foreign_advise(const char *ours);

#endif
