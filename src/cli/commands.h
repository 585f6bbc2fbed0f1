/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of quern, and what is written about each. A command gets its parsed arguments and
 * returns the exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
 */
#ifndef QN_CLI_COMMANDS_H
#define QN_CLI_COMMANDS_H

#include "cli/options.h"

#include <stdio.h>

typedef struct command {
    option_user user;
    const char *summary;     /* behind the name in `quern --help`, and a page's NAME */
    const char *description; /* of --help */
    const char *more;        /* further paragraphs of the page; NULL: none */
    int (*run)(arguments *a);
} command;

extern const command commands[];
extern const size_t n_commands;

int command_generate(arguments *a);
int command_chat(arguments *a);
int command_tokenize(arguments *a);
int command_template(arguments *a);
int command_info(arguments *a);
int command_convert(arguments *a);
int command_fuse(arguments *a);
int command_eval(arguments *a);
int command_bench(arguments *a);
int command_batch(arguments *a);
int command_classify(arguments *a);
int command_embed(arguments *a);
int command_inspect(arguments *a);
int command_serve(arguments *a);
int command_train(arguments *a);

/* help.c: what `quern --help` and `quern COMMAND --help` print. */
void help_overview(FILE *to);
void help_command(const command *c);

/* pages.c: a manual page in mdoc(7), "quern" or "quern-chat" ...; false where there is no such
 * page. */
bool help_page(const char *name);

/* completions.c: what "bash", "zsh" or "fish" reads to complete a line; false for another shell. */
bool help_completions(const char *shell);

/* chat_commands.c: the commands inside a chat, one a line: its form, two spaces at least, what it
 * does. */
typedef struct chat_command_help {
    const char *form, *help;
} chat_command_help;

const chat_command_help *chat_commands_help(size_t *n);

#endif
