/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of lines typed before: $XDG_STATE_HOME/quern/history, else ~/.local/state/quern/history.
 */
#ifndef QN_CLI_HISTORY_H
#define QN_CLI_HISTORY_H

#include <stdbool.h>
#include <stddef.h>

enum { MOST_HISTORY_LINES = 1000 };

/* Calls each with the lines of the file, oldest first. A file that is not there or not readable has
 * none. */
void history_read(void (*each)(void *user, const char *line), void *user);

/* Appends a line: the file is read anew, so that two chats at once lose nothing, and replaced as a
 * whole, with mode 600. Returns false when that failed. */
bool history_append(const char *line);

#endif
