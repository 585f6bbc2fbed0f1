/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands inside a chat: one table, from which /help and the manual page come, too. What they
 * have to say goes to standard error, so that standard output has replies alone.
 */
#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/foreign.h"
#include "base/buffers.h"
#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static const option_user setting = {"chat", OF_SET, NULL};

static void usage_error(chat *s, const char *format, const char *what)
{
    fprintf(stderr, format, what);
    if (!s->terminal)
        s->status = 1;
}

static void run_help(chat *s, const char *argument)
{
    (void)argument;
    size_t n;
    const chat_command_help *help = chat_commands_help(&n);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, "  %-18s %s\n", help[i].form, help[i].help);
    fprintf(stderr, "  %-18s %s\n", "LINE\\", "the message goes on in the next line");
    fprintf(stderr, "  %-18s %s\n", "\"\"\"LINES\"\"\"", "a message of several lines");
    if (s->terminal)
        fprintf(stderr, "  %-18s %s\n", "pasted text", "may have several lines; Enter sends it");
    if (s->terminal)
        fprintf(stderr, "  %-18s %s\n", "Tab", "completes commands and names of files");
}

static bool begins_with_system(const qn_conversation *c)
{
    const qn_chat_message *first = qn_conversation_message(c, 0);
    return first && !strcmp(first->role, "system");
}

static void run_system(chat *s, const char *text)
{
    qn_error err = {0};
    if (qn_conversation_set_system(s->conversation, text, strlen(text), &err) != QN_OK)
        chat_failed(s, &err);
    else if (s->terminal)
        note("%s", *text ? "system message set" : "no system message");
}

/* The session keeps its tokens: what a new conversation begins with may be among them. */
static void run_reset(chat *s, const char *argument)
{
    (void)argument;
    qn_conversation_cut(s->conversation, begins_with_system(s->conversation));
    s->attached.n = 0;
    if (s->terminal)
        note("a new conversation");
}

/* Without the last reply, which comes back where there is no other. */
static void run_regen(chat *s, const char *argument)
{
    (void)argument;
    qn_error err = {0};
    qn_conversation *c = s->conversation;
    size_t n = qn_conversation_length(c);
    if (n == begins_with_system(c)) {
        usage_error(s, "quern chat: %s: there is no message to reply to\n", "/regen");
        return;
    }
    bool replied = !strcmp(qn_conversation_message(c, n - 1)->role, "assistant");
    char *old = replied ? strdup(qn_conversation_message_json(c, n - 1)) : NULL;
    if (replied && !old) {
        qn__fail_memory(&err, "a reply");
        chat_failed(s, &err);
        return;
    }
    qn_conversation_cut(c, n - replied);
    if (!chat_answer(s) && replied && qn_conversation_add_json(c, old, strlen(old), &err) != QN_OK)
        chat_failed(s, &err);
    free(old);
}

/* A file that the user names, where ~ is at home. */
static qn_status find_file(const char *name, char path[PATH_ROOM], qn_error *err)
{
    return expand_home(name, path)
               ? QN_OK
               : qn__fail(err, QN_LIMIT, "the file's path has %zu bytes, at most %d are possible",
                          strlen(name), PATH_ROOM - 1);
}

static void note_messages(const chat *s, const char *where, const char *path)
{
    if (s->terminal)
        note("%zu messages %s %s", qn_conversation_length(s->conversation), where, path);
}

static void run_save(chat *s, const char *name)
{
    qn_error err = {0};
    char path[PATH_ROOM];
    if (find_file(name, path, &err) != QN_OK ||
        qn_conversation_write(s->conversation, path, &err) != QN_OK)
        chat_failed(s, &err);
    else
        note_messages(s, "in", path);
}

static void run_load(chat *s, const char *name)
{
    qn_error err = {0};
    char path[PATH_ROOM];
    if (find_file(name, path, &err) != QN_OK ||
        qn_conversation_read(s->conversation, path, &err) != QN_OK ||
        conversation_fill(s->conversation, s->arguments, &err) != QN_OK)
        chat_failed(s, &err);
    else
        note_messages(s, "from", path);
}

static void run_sleep(chat *s, const char *name)
{
    qn_error err = {0};
    char path[PATH_ROOM];
    if (find_file(name, path, &err) != QN_OK ||
        qn_conversation_save(s->conversation, s->session, path, &err) != QN_OK)
        chat_failed(s, &err);
    else
        note_messages(s, "sleep in", path);
}

static void run_wake(chat *s, const char *name)
{
    qn_error err = {0};
    char path[PATH_ROOM];
    if (find_file(name, path, &err) != QN_OK ||
        chat_wake(s, path, "; /load takes its messages alone, which then run anew", &err) != QN_OK)
        chat_failed(s, &err);
    else
        note_messages(s, "from", path);
}

static void list_settings(const chat *s)
{
    size_t at = 0;
    char value[60];
    for (const option *o; (o = options_next(OF_SET, &at));)
        fprintf(stderr, "  %-18s %-10s %s\n", o->name,
                options_value(o, s->arguments, value, sizeof value), o->help);
    fprintf(stderr, "  %-18s %-10s tokens and speed after each reply\n", "stats",
            s->stats ? "on" : "off");
}

static void run_set(chat *s, const char *text)
{
    char name[64] = "";
    size_t n = strcspn(text, " \t");
    const char *value = text + n + strspn(text + n, " \t");
    if (!n) {
        list_settings(s);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)(n < 60 ? n : 60), text);
    bool is_stats = !strcmp(name, "stats");
    if (is_stats && (!strcmp(value, "on") || !strcmp(value, "off")))
        s->stats = !strcmp(value, "on");
    else if (is_stats)
        usage_error(s, "quern chat: /set stats takes on or off, not \"%s\"\n", value);
    else if (!options_set(&setting, name, value, s->arguments) && !s->terminal)
        s->status = 1;
}

static void run_read(chat *s, const char *name)
{
    qn_error err = {0};
    char path[PATH_ROOM];
    char *text = NULL;
    size_t n = 0, valid;
    if (find_file(name, path, &err) == QN_OK &&
        qn__file_read(path, LARGEST_INPUT, &text, &n, &err) == QN_OK &&
        (valid = qn__utf8_check(text, n)) != n)
        qn__fail(&err, QN_FORMAT, "%s: not UTF-8 text at byte %zu", path, valid);
    else if (err.code == QN_OK && s->attached.n + n > LARGEST_INPUT)
        qn__fail(&err, QN_LIMIT, "%s: with it the message exceeds %d bytes", path, LARGEST_INPUT);
    else if (err.code == QN_OK &&
             !(qn__text_append(&s->attached, text, n) && qn__text_append(&s->attached, "\n", 1)))
        qn__fail_memory(&err, "a message");
    free(text);
    if (err.code != QN_OK)
        chat_failed(s, &err);
    else if (s->terminal)
        note("%zu bytes of %s go before the next message", n, path);
}

static void run_exit(chat *s, const char *argument)
{
    (void)argument;
    s->done = true;
}

/* ---- the table
 * --------------------------------------------------------------------------------------------- */

enum { NO_ARGUMENT, MAYBE_ARGUMENT, ONE_ARGUMENT };

static const chat_command_help help_texts[] = {
    {"/help", "list the commands"},
    {"/system TEXT", "make TEXT the system message; without TEXT there is none"},
    {"/reset", "forget the messages but the system message"},
    {"/regen", "reply to the last message once more"},
    {"/save FILE", "write the conversation to FILE, as JSON"},
    {"/load FILE", "continue the conversation in FILE, of /save or /sleep"},
    {"/sleep FILE", "write it to FILE with its keys and values"},
    {"/wake FILE", "continue that of /sleep, of which nothing runs again"},
    {"/set NAME VALUE", "change an option of sampling, or stats on; without NAME list them"},
    {"/read FILE", "put the text of FILE before the next message"},
    {"/exit", "end"},
};

static const struct {
    void (*run)(chat *s, const char *argument);
    int argument;
} actions[] = {
    {run_help, NO_ARGUMENT},   {run_system, MAYBE_ARGUMENT}, {run_reset, NO_ARGUMENT},
    {run_regen, NO_ARGUMENT},  {run_save, ONE_ARGUMENT},     {run_load, ONE_ARGUMENT},
    {run_sleep, ONE_ARGUMENT}, {run_wake, ONE_ARGUMENT},     {run_set, MAYBE_ARGUMENT},
    {run_read, ONE_ARGUMENT},  {run_exit, NO_ARGUMENT},
};

enum { N_CHAT_COMMANDS = sizeof actions / sizeof *actions };
_Static_assert(N_CHAT_COMMANDS == sizeof help_texts / sizeof *help_texts, "one text a command");

const chat_command_help *chat_commands_help(size_t *n)
{
    *n = N_CHAT_COMMANDS;
    return help_texts;
}

void chat_command_run(chat *s, const char *line)
{
    char names[N_CHAT_COMMANDS][16];
    const char *name_of[N_CHAT_COMMANDS];
    size_t n = strcspn(line, " \t\n");
    char word[64];
    qn_text argument = {0};
    snprintf(word, sizeof word, "%.*s", (int)(n < 60 ? n : 60), line);
    line += n + strspn(line + n, " \t");
    size_t length = strlen(line);
    while (length && strchr(" \t\n", line[length - 1]))
        length--;
    for (size_t i = 0; i < N_CHAT_COMMANDS; i++) {
        const char *form = help_texts[i].form;
        snprintf(names[i], sizeof names[i], "%.*s", (int)strcspn(form, " "), form);
        name_of[i] = names[i];
        if (strcmp(word, names[i]))
            continue;
        if (actions[i].argument == ONE_ARGUMENT && !length)
            usage_error(s, "quern chat: it is %s\n", form);
        else if (actions[i].argument == NO_ARGUMENT && length)
            usage_error(s, "quern chat: %s takes nothing behind it\n", word);
        else if (qn__text_append(&argument, line, length))
            actions[i].run(s, argument.data);
        qn_text_free(&argument);
        return;
    }
    const char *ours;
    if (foreign_chat_command(word, &ours)) {
        usage_error(s, "quern chat: there is no command %s; ", word);
        foreign_advise(ours);
        return;
    }
    const char *nearest = options_nearest(word, name_of, N_CHAT_COMMANDS);
    fprintf(stderr, "quern chat: there is no command %s; %s%s%s\n", word,
            nearest ? "did you mean " : "/help lists them", nearest ? nearest : "",
            nearest ? "?" : "");
    if (!s->terminal)
        s->status = 1;
}
