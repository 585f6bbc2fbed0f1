/* SPDX-License-Identifier: Apache-2.0
 *
 * What --help prints, from the tables. Manual pages are pages.c, completions completions.c.
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
        snprintf(left, sizeof left, "%c%c%s--%s%s%s", o->letter ? '-' : ' ',
                 o->letter ? o->letter : ' ', o->letter ? ", " : "  ", o->name,
                 o->argument ? " " : "", o->argument ? o->argument : "");
        printf("  %-30s %s\n", left, o->help);
    }
    printf("  %-30s %s\n", "-h, --help", "show this help");
}
