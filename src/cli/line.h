/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines from standard input: edited, with a history, where it is a terminal and libedit was built
 * in; else as they come.
 */
#ifndef QN_CLI_LINE_H
#define QN_CLI_LINE_H

#include "cli/complete.h"
#include "quern/text.h"

#include <stdbool.h>

typedef struct line_reader line_reader;

typedef enum line_result {
    LINE_READ,
    LINE_END,         /* end of input */
    LINE_INTERRUPTED, /* Ctrl-C */
    LINE_FAILED       /* a message has been printed */
} line_result;

/* Fills *c with what may stand at the end of the line up to the cursor. */
typedef void (*line_completer)(const char *line, completions *c);

/* NULL when memory is out. `prompts`: show prompts, edit where possible, complete at Tab;
 * `history`: read and write the file. */
line_reader *line_open(bool prompts, bool history, line_completer complete);
void line_close(line_reader *r); /* NULL is accepted */

/* The next line without its end, in place of what *line held; with newlines inside where it was
 * pasted. */
line_result line_read(line_reader *r, const char *prompt, qn_text *line);

/* Keeps a line in the history and its file. */
void line_remember(line_reader *r, const char *line);

#endif
