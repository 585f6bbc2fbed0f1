/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion of a line in the chat: commands, names of options behind /set, and of files.
 */
#ifndef QN_CLI_COMPLETE_H
#define QN_CLI_COMPLETE_H

#include "quern/text.h"

#include <stddef.h>

/* What may stand in the place of the line's end. Zero it before use. */
typedef struct completions {
    char **names; /* whole words, sorted; a folder's ends in "/" */
    size_t n, room;
    size_t typed; /* how many bytes of each stand in the line already */
} completions;

/* Fills *c for a line up to the cursor; none: n = 0. What cannot be read or kept is left out. */
void complete_line(const char *line, completions *c);

/* How many bytes all names begin with; 0 where there are none. */
size_t completions_common(const completions *c);

void completions_free(completions *c);

#endif
