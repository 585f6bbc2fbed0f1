/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion. The line's first word is a command when it begins with "/"; which arguments are files
 * and which are options, the command's form says ("/save FILE", "/set NAME VALUE").
 */
#include "cli/complete.h"
#include "cli/commands.h"
#include "cli/shared.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void add_name(completions *c, const char *name, const char *end)
{
    size_t n = strlen(name);
    if (c->n == c->room) {
        size_t room = c->room * 2 + 16;
        char **more = realloc(c->names, room * sizeof *more);
        if (!more)
            return;
        c->names = more;
        c->room = room;
    }
    char *copy = malloc(n + strlen(end) + 1);
    if (!copy)
        return;
    memcpy(copy, name, n);
    strcpy(copy + n, end);
    c->names[c->n++] = copy;
}

static void complete_command(const char *word, completions *c)
{
    size_t n;
    const chat_command_help *h = chat_commands_help(&n);
    for (size_t i = 0; i < n; i++) {
        size_t length = strcspn(h[i].form, " ");
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)length, h[i].form);
        if (!strncmp(name, word, strlen(word)))
            add_name(c, name, h[i].form[length] ? " " : "");
    }
}

static void complete_setting(const char *word, completions *c)
{
    size_t at = 0;
    for (const option *o; (o = options_next(OF_SET, &at));)
        if (!strncmp(o->name, word, strlen(word)))
            add_name(c, o->name, " ");
    if (!strncmp("stats", word, strlen(word)))
        add_name(c, "stats", " ");
}

/* Files whose names begin as the part behind the last slash; hidden ones when that begins with a
 * dot. */
static void complete_file(const char *path, completions *c)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char folder[PATH_ROOM], real[PATH_ROOM], full[PATH_ROOM + 260];
    int n = snprintf(folder, sizeof folder, "%.*s", slash ? (int)(name - path) : 2,
                     slash ? path : "./");
    DIR *d = n < (int)sizeof folder && expand_home(folder, real) ? opendir(real) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat info;
        if (strncmp(e->d_name, name, strlen(name)) || (e->d_name[0] == '.' && name[0] != '.') ||
            !strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        snprintf(full, sizeof full, "%s/%s", real, e->d_name);
        add_name(c, e->d_name, stat(full, &info) == 0 && S_ISDIR(info.st_mode) ? "/" : "");
    }
    if (d)
        closedir(d);
    c->typed = strlen(name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void complete_line(const char *line, completions *c)
{
    size_t n, word = strcspn(line, " ");
    const char *rest = line + word + strspn(line + word, " ");
    const chat_command_help *h = chat_commands_help(&n);
    if (line[0] != '/')
        return;
    c->typed = line[word] ? strlen(rest) : word;
    if (!line[word])
        complete_command(line, c);
    for (size_t i = 0; line[word] && i < n; i++) {
        const char *argument = h[i].form + strcspn(h[i].form, " ");
        if (strncmp(h[i].form, line, word) || h[i].form + word != argument)
            continue;
        if (!strcmp(argument, " FILE"))
            complete_file(rest, c);
        else if (!strncmp(argument, " NAME", 5) && !strchr(rest, ' '))
            complete_setting(rest, c);
    }
    if (c->n)
        qsort(c->names, c->n, sizeof *c->names, compare_names);
}

size_t completions_common(const completions *c)
{
    size_t n = c->n ? strlen(c->names[0]) : 0;
    for (size_t i = 1; i < c->n; i++)
        for (size_t k = 0; k < n; k++)
            if (c->names[i][k] != c->names[0][k])
                n = k;
    while (c->n && n && (c->names[0][n] & 0xc0) == 0x80) /* no half of a character */
        n--;
    return n;
}

void completions_free(completions *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->names[i]);
    free(c->names);
    *c = (completions){0};
}
