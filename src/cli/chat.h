/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of quern chat, shared by its loop (chat.c) and its commands (chat_commands.c).
 */
#ifndef QN_CLI_CHAT_H
#define QN_CLI_CHAT_H

#include "cli/conversation.h"
#include "cli/line.h"
#include "cli/shared.h"

typedef struct chat {
    arguments *arguments; /* /set changes them */
    loaded model;
    qn_chat *form;
    qn_session *session;
    qn_conversation *conversation;
    qn_text attached; /* files that stand before the next message */
    line_reader *lines;
    bool terminal; /* someone is there: prompts, notes */
    bool stats, done;
    int status; /* 0, or 1 once something failed, 130 once interrupted */
    uint64_t seed, replies;
} chat;

/* Prints the error and keeps the exit status; a terminal's user has seen it, so there it does not
 * count. */
void chat_failed(chat *s, const qn_error *err);

/* Lets the model reply to the conversation and appends the reply, which Ctrl-C may have cut short.
 * False where there is none; the conversation is then as it was. */
bool chat_answer(chat *s);

/* The conversation of a file that sleeps, and its session in the place of the present one. On
 * failure both are as they were; `advice` then follows where the messages alone can be had. */
qn_status chat_wake(chat *s, const char *path, const char *advice, qn_error *err);

/* Runs a line that begins with "/". */
void chat_command_run(chat *s, const char *line);

#endif
