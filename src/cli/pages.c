/* SPDX-License-Identifier: Apache-2.0
 *
 * Manual pages, in mdoc(7), from the tables of commands and options. Text is filled to short lines,
 * each sentence on a line of its own, as man programs want it; what they would take for a request
 * or an escape is escaped.
 */
#include "cli/commands.h"

#include <string.h>

#define PAGES_DATE "November 22, 2026" /* of what they say */

enum { LONGEST_LINE = 78 };

static void print_word(const char *word, size_t n, bool first)
{
    if (first && strchr(".'", word[0]))
        printf("\\&");
    for (size_t i = 0; i < n; i++)
        if (word[i] == '\\')
            printf("\\e");
        else if (word[i] == '~' || word[i] == '^')
            printf("\\(%s", word[i] == '~' ? "ti" : "ha");
        else
            putchar(word[i]);
}

/* Text from the tables, filled; without blank lines. */
static void print_filled(const char *text)
{
    size_t column = 0;
    while (*(text += strspn(text, " \n"))) {
        size_t n = strcspn(text, " \n");
        if (column && column + 1 + n > LONGEST_LINE) {
            putchar('\n');
            column = 0;
        }
        if (column)
            putchar(' ');
        print_word(text, n, !column);
        column += n + (column > 0);
        text += n;
        if (strchr(".?!", text[-1]) || (text[-1] == ')' && text[-2] == '.')) { /* a sentence ends */
            putchar('\n');
            column = 0;
        }
    }
    if (column)
        putchar('\n');
}

static void print_option(const option *o)
{
    printf(".It ");
    if (o->letter && o->argument)
        printf("Fl %c Ar %s , ", o->letter, o->argument);
    else if (o->letter)
        printf("Fl %c , ", o->letter);
    printf("Fl -%s", o->name);
    if (o->argument)
        printf(" Ar %s", o->argument);
    putchar('\n');
    print_filled(o->help);
}

static void print_options(const command *c)
{
    size_t at = 0;
    printf(".Sh OPTIONS\n.Bl -tag -width Ds\n");
    for (const option *o; (o = options_next(c->user.of, &at));)
        print_option(o);
    printf(".It Fl h , Fl -help\nshow a summary of the options\n.El\n");
}

static void print_chat_commands(void)
{
    size_t n;
    const chat_command_help *h = chat_commands_help(&n);
    printf(".Sh COMMANDS\n.Bl -tag -width Ds\n");
    for (size_t i = 0; i < n; i++) {
        size_t name = strcspn(h[i].form, " ");
        printf(".It Ic %.*s", (int)name, h[i].form);
        if (h[i].form[name])
            printf(" Ar %s", h[i].form + name + 1);
        putchar('\n');
        print_filled(h[i].help);
    }
    printf(".El\n");
}

static void print_environment(void)
{
    printf(".Sh ENVIRONMENT\n.Bl -tag -width Ds\n.It Ev HF_HUB_CACHE , Ev HF_HOME\n");
    print_filled(
        "Where models named org/name are looked for: the first, else hub in the second, else "
        "~/.cache/huggingface/hub. Nothing is ever fetched.");
    printf(".It Ev QN_CPU\n");
    print_filled("The instruction set tier to use: ref, avx2, avx512 or amx.");
    printf(".It Ev QUERN_API_KEY\n");
    print_filled("A key that clients of quern serve need, as with --api-key.");
    printf(".It Ev QUERN_PYTHON , Ev XDG_CACHE_HOME\n");
    print_filled("Of --backend mlx_lm: the Python that has mlx-lm, a program or its path (default: "
                 "python3); and where the script that it runs, and compiled code for GPUs, is kept "
                 "(default: ~/.cache).");
    printf(".It Ev NO_COLOR\n");
    print_filled("If it is set and not empty, nothing is coloured.");
    printf(".El\n");
}

static void print_history_file(void)
{
    printf(".Sh FILES\n.Bl -tag -width Ds\n.It Pa $XDG_STATE_HOME/quern/history\n");
    print_filled("Lines typed before, at most 1000, readable by their owner alone; without "
                 "XDG_STATE_HOME it lies "
                 "in ~/.local/state.");
    printf(".El\n");
}

static void print_head(const char *name, const char *summary)
{
    char title[64];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof title; n++)
        title[n] = (char)(name[n] >= 'a' && name[n] <= 'z' ? name[n] - 'a' + 'A' : name[n]);
    title[n] = 0;
    printf(".\\\" SPDX-License-Identifier: Apache-2.0\n.Dd %s\n.Dt %s 1\n.Os\n.Sh NAME\n.Nm "
           "%s\n.Nd %s\n",
           PAGES_DATE, title, name, summary);
}

static void print_exit_status(void)
{
    printf(".Sh EXIT STATUS\n");
    print_filled("0 success, 1 failure, 2 wrong usage, 130 stopped by Ctrl-C.");
}

static void print_command_page(const command *c)
{
    char name[64];
    snprintf(name, sizeof name, "quern-%s", c->user.name);
    print_head(name, c->summary);
    printf(".Sh SYNOPSIS\n.Nm quern %s\n.Op Ar options\n", c->user.name);
    if (c->user.operand)
        printf(".Op Ar %s\n", c->user.operand);
    printf(".Sh DESCRIPTION\n");
    print_filled(c->description);
    if (c->more) {
        printf(".Pp\n");
        print_filled(c->more);
    }
    print_options(c);
    if (c->user.of & OF_CHAT)
        print_chat_commands();
    print_environment();
    if (c->user.of & OF_CHAT)
        print_history_file();
    print_exit_status();
    printf(".Sh SEE ALSO\n.Xr quern 1\n");
}

static void print_overview_page(void)
{
    print_head("quern", "run language models");
    printf(".Sh SYNOPSIS\n.Nm\n.Ar command\n.Op Ar options\n.Nm\n.Fl -version\n.Sh DESCRIPTION\n");
    print_filled("Loads a model from a Hugging Face model directory or a GGUF file and runs it on "
                 "this machine. "
                 "Without one a "
                 "small built-in model answers.");
    printf(".Sh COMMANDS\n.Bl -tag -width Ds\n");
    for (size_t i = 0; i < n_commands; i++) {
        printf(".It Xr quern-%s 1\n", commands[i].user.name);
        print_filled(commands[i].summary);
    }
    printf(".El\n");
    print_environment();
    print_exit_status();
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
