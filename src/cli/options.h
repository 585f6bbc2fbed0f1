/* SPDX-License-Identifier: Apache-2.0
 *
 * Command-line options: one table per command, from which parsing, --help and (later) man pages come.
 */
#ifndef QN_CLI_OPTIONS_H
#define QN_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum option_type {
    OPTION_FLAG,   /* bool */
    OPTION_STRING, /* const char * */
    OPTION_INTEGER, /* int64_t, within least..most */
    OPTION_NUMBER  /* double, within least..most */
} option_type;

typedef struct option {
    const char *long_name;  /* without dashes */
    char short_name;        /* 0: none */
    option_type type;
    void *value;            /* keeps its default where the option is absent */
    double least, most;     /* of numbers */
    const char *argument;   /* "N", "TEXT": for help; NULL for flags */
    const char *help;       /* one line */
    bool *given;            /* set when present; may be NULL */
} option;

/* Parses argv[1..]. On failure prints one line to standard error (with the nearest name where an option is
 * unknown) and returns false. Arguments that are no options are an error. *help: --help was there. */
bool options_parse(const char *command, const option *options, size_t n, int argc, char **argv,
                   bool *help);

/* The usage text from the table, to standard output. */
void options_help(const char *command, const char *summary, const option *options, size_t n);

/* The nearest of the names to a misspelt word, or NULL when none is near. */
const char *options_nearest(const char *word, const char *const *names, size_t n);

#endif
