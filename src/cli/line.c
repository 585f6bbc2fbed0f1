/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines. Ctrl-C must end a read at the prompt, so every read waits first for input or a signal, and libedit gets
 * its characters from a function of ours that does. The same function sees SIGCONT: after Ctrl-Z and fg the
 * terminal is put back into the editor's mode.
 */
#include "cli/line.h"
#include "cli/history.h"
#include "cli/shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef QN_LIBEDIT
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <wchar.h>
#endif

struct line_reader {
    bool prompts, history, ended;
    const char *prompt;
    char buffer[1 << 16]; /* read ahead, begin..end */
    size_t begin, end;
#ifdef QN_LIBEDIT
    EditLine *editor;
    History *lines;
#endif
};

/* ---- plain ------------------------------------------------------------------------------------------------- */

static line_result fill_buffer(line_reader *r)
{
    if (!wait_for_input())
        return atomic_load(&interrupted) ? LINE_INTERRUPTED : LINE_READ;
    ssize_t n = read(STDIN_FILENO, r->buffer, sizeof r->buffer);
    if (n < 0 && errno == EINTR)
        return LINE_READ;
    if (n < 0) {
        fprintf(stderr, "quern: standard input cannot be read: %s\n", strerror(errno));
        return LINE_FAILED;
    }
    r->begin = 0;
    r->end = (size_t)n;
    r->ended = n == 0;
    return n ? LINE_READ : LINE_END;
}

static line_result read_plain(line_reader *r, qn_text *line)
{
    bool any = false;
    if (r->prompts) {
        fputs(r->prompt, stdout);
        fflush(stdout);
    }
    for (;;) {
        if (r->begin == r->end) {
            line_result result = r->ended ? LINE_END : fill_buffer(r);
            if (result != LINE_READ)
                return result == LINE_END && any ? LINE_READ : result;
            continue;
        }
        const char *at = r->buffer + r->begin;
        const char *newline = memchr(at, '\n', r->end - r->begin);
        size_t n = newline ? (size_t)(newline - at) : r->end - r->begin;
        if (line->n + n > LARGEST_INPUT || !text_append(line, at, n)) {
            fprintf(stderr, "quern: a line of standard input exceeds %d bytes\n", LARGEST_INPUT);
            return LINE_FAILED;
        }
        any = true;
        r->begin += n + (newline != NULL);
        if (newline)
            return LINE_READ;
    }
}

/* ---- edited ------------------------------------------------------------------------------------------------ */

#ifdef QN_LIBEDIT

static volatile sig_atomic_t continued;

static void on_continue(int number)
{
    (void)number;
    continued = 1;
    wake_input();
}

static char *show_prompt(EditLine *editor)
{
    line_reader *r;
    el_get(editor, EL_CLIENTDATA, &r);
    return (char *)r->prompt;
}

/* The next byte: 1, or 0 at the end, or -1 when Ctrl-C or an error ended the read. */
static int next_byte(EditLine *editor, char *byte)
{
    for (;;) {
        if (wait_for_input()) {
            ssize_t n = read(STDIN_FILENO, byte, 1);
            if (n >= 0 || errno != EINTR)
                return (int)n;
        }
        if (atomic_load(&interrupted))
            return -1;
        if (continued) {
            continued = 0;
            el_set(editor, EL_PREP_TERM, 1);
            el_set(editor, EL_REFRESH);
        }
    }
}

/* The next character, for libedit. Bytes that are none are passed over. */
static int next_character(EditLine *editor, wchar_t *out)
{
    mbstate_t state = {0};
    char byte;
    for (;;) {
        int n = next_byte(editor, &byte);
        if (n != 1)
            return n;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-1)
            memset(&state, 0, sizeof state);
        else if (used != (size_t)-2)
            return 1;
    }
}

static void add_to_history(void *user, const char *line)
{
    HistEvent event;
    history((History *)user, &event, H_ENTER, line);
}

static bool open_editor(line_reader *r)
{
    HistEvent event;
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    r->editor = el_init("quern", stdin, stdout, stderr);
    r->lines = r->editor ? history_init() : NULL;
    if (!r->lines)
        return false;
    struct sigaction action = {.sa_handler = on_continue};
    sigemptyset(&action.sa_mask);
    sigaction(SIGCONT, &action, NULL);
    history(r->lines, &event, H_SETSIZE, MOST_HISTORY_LINES);
    history(r->lines, &event, H_SETUNIQUE, 1);
    el_set(r->editor, EL_CLIENTDATA, r);
    el_set(r->editor, EL_PROMPT, show_prompt);
    el_set(r->editor, EL_EDITOR, "emacs");
    el_set(r->editor, EL_HIST, history, r->lines);
    el_set(r->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(r->editor, NULL); /* the user's ~/.editrc, if any */
    el_wset(r->editor, EL_GETCFN, next_character);
    if (r->history)
        history_read(add_to_history, r->lines);
    return true;
}

static line_result read_edited(line_reader *r, qn_text *line)
{
    int n = 0;
    el_resize(r->editor);
    el_set(r->editor, EL_PREP_TERM, 1); /* before the prompt: a Ctrl-D right behind it must not be lost */
    const char *text = el_gets(r->editor, &n);
    if (atomic_load(&interrupted)) {
        el_reset(r->editor);
        return LINE_INTERRUPTED;
    }
    if (!text || n <= 0)
        return LINE_END;
    size_t length = strlen(text);
    length -= length && text[length - 1] == '\n';
    if (!text_append(line, text, length)) {
        fprintf(stderr, "quern: out of memory for a line\n");
        return LINE_FAILED;
    }
    return LINE_READ;
}

#endif

/* ------------------------------------------------------------------------------------------------------------ */

line_reader *line_open(bool prompts, bool history)
{
    line_reader *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->prompts = prompts;
    r->history = prompts && history;
#ifdef QN_LIBEDIT
    if (prompts && !open_editor(r)) {
        line_close(r);
        return NULL;
    }
#endif
    return r;
}

void line_close(line_reader *r)
{
    if (!r)
        return;
#ifdef QN_LIBEDIT
    if (r->lines)
        history_end(r->lines);
    if (r->editor)
        el_end(r->editor);
#endif
    free(r);
}

line_result line_read(line_reader *r, const char *prompt, qn_text *line)
{
    line->n = 0;
    r->prompt = prompt;
    if (!text_append(line, "", 0)) {
        fprintf(stderr, "quern: out of memory for a line\n");
        return LINE_FAILED;
    }
#ifdef QN_LIBEDIT
    if (r->editor)
        return read_edited(r, line);
#endif
    return read_plain(r, line);
}

void line_remember(line_reader *r, const char *line)
{
    if (!*line || !r->prompts)
        return;
#ifdef QN_LIBEDIT
    if (r->lines)
        add_to_history(r->lines, line);
#endif
    if (r->history)
        history_append(line);
}
