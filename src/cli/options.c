/* SPDX-License-Identifier: Apache-2.0
 *
 * Parsing and describing options.
 */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_WORD = 63 };

/* Levenshtein distance of two short words. */
static int distance(const char *a, const char *b)
{
    int row[LONGEST_WORD + 2];
    int n = (int)strlen(b);
    if (n > LONGEST_WORD)
        return LONGEST_WORD;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = replace < best ? replace : best;
        }
    }
    return row[n];
}

const char *options_nearest(const char *word, const char *const *names, size_t n)
{
    const char *nearest = NULL;
    int best = (int)strlen(word) / 3 + 2;
    for (size_t i = 0; i < n; i++)
        if (names[i] && distance(word, names[i]) < best) {
            best = distance(word, names[i]);
            nearest = names[i];
        }
    return nearest;
}

static const option *find(const option *options, size_t n, const char *name, size_t length)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(options[i].long_name) == length &&
            !strncmp(options[i].long_name, name, length))
            return &options[i];
    return NULL;
}

static const option *find_short(const option *options, size_t n, char c)
{
    for (size_t i = 0; i < n; i++)
        if (options[i].short_name && options[i].short_name == c)
            return &options[i];
    return NULL;
}

static bool unknown(const char *command, const option *options, size_t n, const char *word)
{
    const char *names[64];
    for (size_t i = 0; i < n && i < 64; i++)
        names[i] = options[i].long_name;
    const char *bare = word + strspn(word, "-");
    const char *nearest = options_nearest(bare, names, n < 64 ? n : 64);
    fprintf(stderr, "quern %s: unknown option %s%s%s%s\n", command, word,
            nearest ? "; did you mean --" : "; see quern ", nearest ? nearest : command,
            nearest ? "?" : " --help");
    return false;
}

static bool bad_value(const char *command, const option *o, const char *text)
{
    fprintf(stderr, "quern %s: --%s: \"%s\" is not %s from %.16g to %.16g\n", command,
            o->long_name, text, o->type == OPTION_INTEGER ? "a whole number" : "a number",
            o->least, o->most);
    return false;
}

static bool store(const char *command, const option *o, const char *text)
{
    char *end;
    errno = 0;
    if (o->type == OPTION_STRING) {
        *(const char **)o->value = text;
        return true;
    }
    if (o->type == OPTION_INTEGER) {
        long long v = strtoll(text, &end, 10);
        if (end == text || *end || errno || (double)v < o->least || (double)v > o->most)
            return bad_value(command, o, text);
        *(int64_t *)o->value = v;
        return true;
    }
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v < o->least || v > o->most)
        return bad_value(command, o, text);
    *(double *)o->value = v;
    return true;
}

bool options_parse(const char *command, const option *options, size_t n, int argc, char **argv,
                   bool *help)
{
    *help = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *text = NULL;
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            *help = true;
            return true;
        }
        if (word[0] != '-' || !word[1]) {
            fprintf(stderr, "quern %s: \"%s\" is no option; the prompt goes behind -p\n", command,
                    word);
            return false;
        }
        const option *o;
        if (word[1] == '-') {
            const char *equals = strchr(word, '=');
            size_t length = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
            o = find(options, n, word + 2, length);
            text = equals ? equals + 1 : NULL;
        } else { /* -n 5 or -n5 */
            o = find_short(options, n, word[1]);
            text = word[2] ? word + 2 : NULL;
        }
        if (!o)
            return unknown(command, options, n, word);
        if (o->given)
            *o->given = true;
        if (o->type == OPTION_FLAG) {
            if (text)
                return unknown(command, options, n, word);
            *(bool *)o->value = true;
            continue;
        }
        if (!text && ++i == argc) {
            fprintf(stderr, "quern %s: --%s needs a value\n", command, o->long_name);
            return false;
        }
        if (!store(command, o, text ? text : argv[i]))
            return false;
    }
    return true;
}

void options_help(const char *command, const char *summary, const option *options, size_t n)
{
    printf("Usage: quern %s [options]\n\n%s\n\nOptions:\n", command, summary);
    for (size_t i = 0; i < n; i++) {
        char left[64];
        snprintf(left, sizeof left, "%c%c%s--%s%s%s", options[i].short_name ? '-' : ' ',
                 options[i].short_name ? options[i].short_name : ' ',
                 options[i].short_name ? ", " : "  ", options[i].long_name,
                 options[i].argument ? " " : "",
                 options[i].argument ? options[i].argument : "");
        printf("  %-28s %s\n", left, options[i].help);
    }
    printf("  %-28s %s\n", "-h, --help", "show this help");
}
