/* SPDX-License-Identifier: Apache-2.0
 *
 * What is written about the commands, from the tables: --help, and manual pages as source for scdoc(1).
 */
#include "cli/commands.h"

#include <string.h>

void help_overview(FILE *to)
{
    fprintf(to, "Usage: quern COMMAND [options]\n\nCommands:\n");
    for (size_t i = 0; i < n_commands; i++)
        fprintf(to, "  %-12s %s\n", commands[i].user.name, commands[i].summary);
    fprintf(to, "\nquern COMMAND --help describes a command, quern --version the version.\n");
}

void help_command(const command *c)
{
    printf("Usage: quern %s [options]%s%s%s\n\n%s\n\nOptions:\n", c->user.name,
           c->user.operand ? " [" : "", c->user.operand ? c->user.operand : "",
           c->user.operand ? "]" : "", c->description);
    size_t at = 0;
    for (const option *o; (o = options_next(c->user.of, &at));) {
        char left[64];
        snprintf(left, sizeof left, "%c%c%s--%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
                 o->letter ? ", " : "  ", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
        printf("  %-30s %s\n", left, o->help);
    }
    printf("  %-30s %s\n", "-h, --help", "show this help");
}

/* ---- manual pages ---------------------------------------------------------------------------------------- */

/* Text with what scdoc would take for marks escaped. */
static void print_plain(const char *text)
{
    for (; *text; text++) {
        if (strchr("\\_*`#[]|<>.-+~", *text) && *text)
            putchar('\\');
        putchar(*text);
    }
}


/* *-m*, *--model* _MODEL_ on one line, the help indented below. */
static void print_option(const option *o)
{
    if (o->letter)
        printf("*-%c*, ", o->letter);
    printf("*--%s*", o->name);
    if (o->argument)
        printf(" _%s_", o->argument);
    printf("\n\t");
    print_plain(o->help);
    printf("\n\n");
}

static void print_common(void)
{
    printf("# EXIT STATUS\n\n0 success, 1 failure, 2 wrong usage, 130 stopped by Ctrl\\-C.\n\n"
           "# ENVIRONMENT\n\n*HF_HUB_CACHE*, *HF_HOME*\n\tWhere models named org/name are looked for: the "
           "first, else hub in the second, else \\~/.cache/huggingface/hub. Nothing is ever fetched.\n\n"
           "*QN_CPU*\n\tThe instruction set tier to use: ref, avx2 or avx512.\n\n");
}

static void print_command_page(const command *c)
{
    const char *name = c->user.name;
    printf("quern-%s(1)\n\n# NAME\n\nquern-%s - ", name, name);
    print_plain(c->summary);
    printf("\n\n# SYNOPSIS\n\n*quern %s* [options]", name);
    if (c->user.operand)
        printf(" [_%s_]", c->user.operand);
    printf("\n\n# DESCRIPTION\n\n");
    print_plain(c->description);
    if (c->more) {
        printf("\n\n");
        print_plain(c->more);
    }
    printf("\n\n# OPTIONS\n\n");
    size_t at = 0, n;
    for (const option *o; (o = options_next(c->user.of, &at));)
        print_option(o);
    printf("*-h*, *--help*\n\tshow a summary of the options\n\n");
    if (c->user.of & OF_CHAT) {
        printf("# COMMANDS\n\n");
        const chat_command_help *h = chat_commands_help(&n);
        for (size_t i = 0; i < n; i++) {
            printf("*");
            print_plain(h[i].form);
            printf("*\n\t");
            print_plain(h[i].help);
            printf("\n\n");
        }
        printf("# FILES\n\n\\$XDG_STATE_HOME/quern/history, else \\~/.local/state/quern/history\n\tLines "
               "typed before, at most 1000, readable by their owner alone.\n\n");
    }
    print_common();
    printf("# SEE ALSO\n\n*quern*(1)\n");
}

static void print_overview_page(void)
{
    printf("quern(1)\n\n# NAME\n\nquern - run language models\n\n# SYNOPSIS\n\n*quern* _COMMAND_ "
           "[options]\n\n# DESCRIPTION\n\nLoads a model from a Hugging Face model directory and runs it on "
           "this machine. Without one a small built\\-in model answers.\n\n# COMMANDS\n\n");
    for (size_t i = 0; i < n_commands; i++) {
        printf("*quern-%s*(1)\n\t", commands[i].user.name);
        print_plain(commands[i].summary);
        printf("\n\n");
    }
    print_common();
}

bool help_page(const char *name)
{
    if (!strcmp(name, "quern")) {
        print_overview_page();
        return true;
    }
    for (size_t i = 0; i < n_commands; i++)
        if (!strncmp(name, "quern-", 6) && !strcmp(name + 6, commands[i].user.name)) {
            print_command_page(&commands[i]);
            return true;
        }
    return false;
}
