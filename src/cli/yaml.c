/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of YAML; see yaml.h. Blocks are read line by line: a stack has the containers that the
 * lines above opened, each with its indentation.
 */
#include "cli/yaml.h"

#include "base/error.h"
#include "base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 1 << 20, DEPTH = 16 };

typedef struct block {
    int indent;  /* of its members; -1: the first will tell */
    cJSON *node; /* NULL: not known yet whether it is a list or an object */
    cJSON *in;   /* the object that it is a member of, as `key` */
    const char *key;
} block;

typedef struct yaml {
    const char *path;
    int line;
    block stack[DEPTH];
    int depth;
    qn_error *err;
} yaml;

static bool refuse_line(yaml *y, const char *what)
{
    qn__fail(y->err, QN_FORMAT, "%s: line %d: %s", y->path, y->line, what);
    return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void strip(char **begin, char *end)
{
    while (**begin == ' ' || **begin == '\t')
        ++*begin;
    while (end > *begin && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        *--end = 0;
}

/* What is behind a # that is no part of a word or of quotes goes. */
static void cut_comment(char *line)
{
    char quote = 0;
    for (char *c = line; *c; c++) {
        if (quote)
            quote = *c == quote ? 0 : quote;
        else if (*c == '"' || *c == '\'')
            quote = *c;
        else if (*c == '#' && (c == line || c[-1] == ' ' || c[-1] == '\t'))
            *c-- = 0;
    }
}

static cJSON *plain_word(const char *text)
{
    static const char *const yes[] = {"true", "True", "TRUE"}, *const no[] = {"false", "False",
                                                                              "FALSE"};
    static const char *const none[] = {"null", "Null", "NULL", "~", ""};
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, yes[i]) || !strcmp(text, no[i]))
            return cJSON_CreateBool(!strcmp(text, yes[i]));
    for (int i = 0; i < 5; i++)
        if (!strcmp(text, none[i]))
            return cJSON_CreateNull();
    char *end;
    double value = strtod(text, &end);
    bool number = strspn(text, "+-.0123456789eE") == strlen(text) && !*end && isfinite(value);
    return number ? cJSON_CreateNumber(value) : cJSON_CreateString(text);
}

static cJSON *read_value(yaml *y, char *text);

/* 'it''s', or "a\n" as in JSON. */
static cJSON *quoted_word(yaml *y, char *text)
{
    size_t n = strlen(text);
    cJSON *word = NULL;
    if (n < 2 || text[n - 1] != text[0])
        refuse_line(y, "a quote is not closed, or something stands behind it");
    else if (text[0] == '"')
        qn__json_parse(&word, y->path, text, n, y->err);
    else {
        char *to = text;
        for (char *from = text + 1; from < text + n - 1; from++) {
            from += from[0] == '\'' && from[1] == '\'' && from + 1 < text + n - 1;
            *to++ = *from;
        }
        *to = 0;
        word = cJSON_CreateString(text);
    }
    return word;
}

/* Where an item of [a, "b, c", [d]] ends. */
static char *item_end(char *c)
{
    char quote = 0;
    for (int depth = 0; *c && (depth || quote || *c != ','); c++) {
        if (quote)
            quote = *c == quote ? 0 : quote;
        else if (*c == '"' || *c == '\'')
            quote = *c;
        depth += quote ? 0 : (*c == '[') - (*c == ']');
    }
    return c;
}

static cJSON *bracket_list(yaml *y, char *text)
{
    size_t n = strlen(text);
    cJSON *list = cJSON_CreateArray();
    if (text[n - 1] != ']')
        refuse_line(y, "a list ends on the line that it begins on");
    else
        text[n - 1] = 0;
    for (char *at = text + 1, *end; y->err->code == QN_OK && *at; at = end) {
        end = item_end(at);
        bool more = *end == ',';
        *end = 0;
        strip(&at, end);
        end += more;
        if (!*at && !more)
            break;
        cJSON *item = read_value(y, at);
        if (y->err->code == QN_OK && !cJSON_AddItemToArray(list, item))
            qn__fail_memory(y->err, "a configuration");
    }
    return list;
}

static cJSON *read_value(yaml *y, char *text)
{
    if (*text == '"' || *text == '\'')
        return quoted_word(y, text);
    if (*text == '[')
        return bracket_list(y, text);
    if (*text && strchr("{&*!|>%@`", *text))
        refuse_line(y, "this part of YAML is not supported; `key: value`, lists and quotes are");
    return plain_word(text);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The innermost block becomes a list, or an object, unless it is one. */
static bool settle(yaml *y, bool list)
{
    block *b = &y->stack[y->depth];
    if (b->node)
        return cJSON_IsArray(b->node) == list || refuse_line(y, "a list and keys are mixed");
    b->node = list ? cJSON_CreateArray() : cJSON_CreateObject();
    if (b->in)
        cJSON_ReplaceItemInObjectCaseSensitive(b->in, b->key, b->node);
    return b->node || (qn__fail_memory(y->err, "a configuration"), false);
}

static bool take_yaml_item(yaml *y, char *text)
{
    strip(&text, text + strlen(text));
    cJSON *item = settle(y, true) ? read_value(y, text) : NULL;
    bool ok = y->err->code == QN_OK && cJSON_AddItemToArray(y->stack[y->depth].node, item);
    if (!ok) {
        cJSON_Delete(item);
        qn__fail_memory(y->err, "a configuration"); /* unless something else was wrong */
    }
    return ok;
}

static bool take_yaml_member(yaml *y, char *text)
{
    char *colon = strstr(text, ": "), *value = text + strlen(text);
    size_t n = strlen(text);
    if (!colon && n && text[n - 1] == ':')
        colon = text + n - 1;
    if (!colon)
        return refuse_line(y, "neither `key: value` nor `- value`");
    if (*colon && colon[1])
        value = colon + 1;
    *colon = 0;
    strip(&text, colon);
    strip(&value, value + strlen(value));
    if (!settle(y, false))
        return false;
    cJSON *object = y->stack[y->depth].node;
    if (cJSON_GetObjectItemCaseSensitive(object, text))
        return refuse_line(y, "the key stands twice");
    cJSON *member = read_value(y, value);
    if (y->err->code != QN_OK || !cJSON_AddItemToObject(object, text, member)) {
        cJSON_Delete(member);
        qn__fail_memory(y->err, "a configuration");
        return false;
    }
    if (!*value) { /* its block may follow */
        if (y->depth + 1 == DEPTH)
            return refuse_line(y, "blocks are too deep");
        y->stack[++y->depth] = (block){-1, NULL, object, member->string};
    }
    return true;
}

static bool take_yaml_line(yaml *y, char *line)
{
    cut_comment(line);
    int indent = (int)strspn(line, " ");
    char *text = line + indent;
    if (*text == '\t')
        return refuse_line(y, "a tab; indentation is of spaces");
    strip(&text, text + strlen(text));
    if (!*text || (!indent && !strcmp(text, "---")))
        return true;
    bool item = text[0] == '-' && (text[1] == ' ' || !text[1]);
    block *top = &y->stack[y->depth];
    if (top->indent < 0) { /* a list may stand below its key, without being further in */
        int outer = y->depth ? y->stack[y->depth - 1].indent : -1;
        if (indent > outer || (item && indent == outer))
            top->indent = indent;
    }
    while (y->depth && (y->stack[y->depth].indent < 0 || indent < y->stack[y->depth].indent ||
                        (!item && y->stack[y->depth].indent == y->stack[y->depth - 1].indent &&
                         indent == y->stack[y->depth].indent)))
        y->depth--;
    if (indent != y->stack[y->depth].indent)
        return refuse_line(y, "indentation fits no line above");
    return item ? take_yaml_item(y, text + 1) : take_yaml_member(y, text);
}

static cJSON *parse_blocks(yaml *y, char *text)
{
    y->stack[0] = (block){.indent = 0};
    settle(y, false);
    for (char *line = text, *next; y->err->code == QN_OK && *line; line = next) {
        size_t n = strcspn(line, "\n");
        next = line + n + (line[n] == '\n');
        line[n] = 0;
        y->line++;
        take_yaml_line(y, line);
    }
    return y->stack[0].node;
}

qn_status yaml_read(cJSON **out, const char *path, qn_error *err)
{
    char *text = NULL;
    size_t n;
    yaml y = {.path = path, .err = err};
    *out = NULL;
    if (qn__file_read(path, LARGEST, &text, &n, err) != QN_OK)
        return err->code;
    if (strlen(text) != n)
        qn__fail(err, QN_FORMAT, "%s: there is a NUL in it", path);
    else if (text[strspn(text, " \t\r\n")] == '{')
        qn__json_parse(out, path, text, n, err);
    else
        *out = parse_blocks(&y, text);
    free(text);
    if (err->code != QN_OK) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return err->code;
}
