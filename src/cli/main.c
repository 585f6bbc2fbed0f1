/* SPDX-License-Identifier: Apache-2.0
 *
 * The quern command: picks the subcommand.
 */
#include "cli/commands.h"
#include "cli/options.h"
#include "quern/quern.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"generate", "write text behind a prompt", command_generate},
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *to)
{
    fprintf(to, "Usage: quern COMMAND [options]\n\nCommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\nquern COMMAND --help describes a command, quern --version the version.\n");
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("quern %s\n", qn_version());
        return 0;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return 0;
    }
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (!strcmp(argv[1], names[i]))
            return commands[i].run(argc - 1, argv + 1);
    }
    const char *nearest = options_nearest(argv[1], names, N_COMMANDS);
    fprintf(stderr, "quern: unknown command \"%s\"%s%s%s\n", argv[1],
            nearest ? "; did you mean " : "; see quern --help", nearest ? nearest : "",
            nearest ? "?" : "");
    return 2;
}

/* What was printed must have arrived: a full disk is a failure, whatever the command thought. */
int main(int argc, char **argv)
{
    int status = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        fprintf(stderr, "quern: standard output cannot be written\n");
        return 1;
    }
    return status;
}
