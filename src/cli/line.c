/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines. Ctrl-C must end a read at the prompt, so every read waits first for input or a signal, and
 * libedit gets its characters from a function of ours that does. The same function sees SIGCONT:
 * after Ctrl-Z and fg the terminal is put back into the editor's mode.
 *
 * Terminals put marks around what is pasted, so that the line ends in it need not end the line. The
 * editor shows and keeps them, also in the history, as SHOWN_NEWLINE; a line that is handed out has
 * newlines again.
 */
#include "cli/line.h"
#include "base/buffers.h"
#include "cli/history.h"
#include "cli/shared.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef QN_LIBEDIT
#include <histedit.h>
#include <signal.h>
#include <wchar.h>
#endif

struct line_reader {
    bool prompts, history, ended;
    const char *prompt;
    line_completer complete;
    char shown[48];       /* the prompt with its colour */
    char buffer[1 << 16]; /* read ahead, begin..end */
    size_t begin, end;
#ifdef QN_LIBEDIT
    EditLine *editor;
    History *lines;
#endif
};

/* ---- plain
 * -------------------------------------------------------------------------------------------------
 */

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
        int n = (int)strcspn(r->prompt, " ");
        printf("%s%.*s%s%s", colour_code(stdout, COLOUR_GREEN), n, r->prompt,
               colour_code(stdout, COLOUR_NONE), r->prompt + n);
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
        if (line->n + n > LARGEST_INPUT || !qn__text_append(line, at, n)) {
            fprintf(stderr, "quern: a line of standard input exceeds %d bytes\n", LARGEST_INPUT);
            return LINE_FAILED;
        }
        any = true;
        r->begin += n + (newline != NULL);
        if (newline)
            return LINE_READ;
    }
}

#define SHOWN_NEWLINE "\xe2\x90\x8a" /* U+240A, the symbol for newline */

/* Appends text with each `from` in it as `to`. */
static bool append_exchanged(qn_text *out, const char *text, const char *from, const char *to)
{
    for (const char *at; (at = strstr(text, from)); text = at + strlen(from))
        if (!qn__text_append(out, text, (size_t)(at - text)) ||
            !qn__text_append(out, to, strlen(to)))
            return false;
    return qn__text_append(out, text, strlen(text));
}

/* ---- edited
 * ------------------------------------------------------------------------------------------------
 */

#ifdef QN_LIBEDIT

static volatile sig_atomic_t continued;

static void on_continue(int number)
{
    (void)number;
    continued = 1;
    wake_input();
}

enum { UNSEEN = 1 }; /* stands around what takes no room in the prompt */

static char *show_prompt(EditLine *editor)
{
    line_reader *r;
    el_get(editor, EL_CLIENTDATA, &r);
    const char *on = colour_code(stdout, COLOUR_GREEN), *off = colour_code(stdout, COLOUR_NONE);
    if (!*on)
        return (char *)r->prompt;
    int n = (int)strcspn(
        r->prompt,
        " "); /* libedit writes what is behind the last character only with the next one */
    snprintf(r->shown, sizeof r->shown, "%c%s%c%.*s%c%s%c%s", UNSEEN, on, UNSEEN, n, r->prompt,
             UNSEEN, off, UNSEEN, r->prompt + n);
    return r->shown;
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

#define PASTE_BEGINS "\x1b[200~"
#define PASTE_ENDS   "\x1b[201~"

/* All that is pasted, up to the mark behind it. */
static bool read_paste(EditLine *editor, qn_text *out)
{
    const size_t mark = strlen(PASTE_ENDS);
    char byte;
    while (out->n < mark || memcmp(out->data + out->n - mark, PASTE_ENDS, mark) != 0)
        if (out->n >= LARGEST_INPUT || next_byte(editor, &byte) != 1 ||
            !qn__text_append(out, &byte, 1))
            return false;
    out->data[out->n -= mark] = 0;
    return true;
}

/* As the editor takes it: line ends as SHOWN_NEWLINE but for those at the very end, tabs, and no
 * other control characters. */
static bool clean_paste(const qn_text *paste, qn_text *out)
{
    size_t n = paste->n;
    while (n && (paste->data[n - 1] == '\r' || paste->data[n - 1] == '\n'))
        n--;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)paste->data[i];
        bool ends = c == '\r' || c == '\n', kept = (c >= 0x20 && c != 0x7f) || c == '\t';
        if (ends ? !qn__text_append(out, SHOWN_NEWLINE, strlen(SHOWN_NEWLINE))
                 : kept && !qn__text_append(out, (const char *)&c, 1))
            return false;
    }
    return true;
}

static unsigned char take_paste(EditLine *editor, int key)
{
    (void)key;
    qn_text paste = {0}, text = {0};
    bool ok = read_paste(editor, &paste) && clean_paste(&paste, &text) &&
              (!text.n || el_insertstr(editor, text.data) == 0);
    qn_text_free(&paste);
    qn_text_free(&text);
    return ok ? CC_REFRESH : CC_ERROR;
}

/* All that fits, below the line. */
static void list_completions(const completions *c)
{
    putchar('\n');
    for (size_t i = 0; i < c->n; i++)
        printf("%s%s", c->names[i], i + 1 < c->n ? "  " : "\n");
    fflush(stdout);
}

static unsigned char complete(EditLine *editor, int key)
{
    (void)key;
    line_reader *r;
    completions c = {0};
    qn_text line = {0};
    const LineInfo *info = el_line(editor);
    unsigned char result = CC_ERROR;
    el_get(editor, EL_CLIENTDATA, &r);
    if (qn__text_append(&line, info->buffer, (size_t)(info->cursor - info->buffer)))
        r->complete(line.data, &c);
    size_t common = completions_common(&c);
    if (common > c.typed) {
        c.names[0][common] = 0;
        result = el_insertstr(editor, c.names[0] + c.typed) == 0 ? CC_REFRESH : CC_ERROR;
    } else if (c.n > 1) {
        list_completions(&c);
        result = CC_REDISPLAY;
    }
    completions_free(&c);
    qn_text_free(&line);
    return result;
}

/* Asks the terminal for the marks, or for none. */
static void mark_pastes(bool on)
{
    fputs(on ? "\x1b[?2004h" : "\x1b[?2004l", stdout);
    fflush(stdout);
}

static void add_to_history(void *user, const char *line)
{
    HistEvent event;
    history((History *)user, &event, H_ENTER, line);
}

static bool open_editor(line_reader *r)
{
    HistEvent event;
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
    el_set(r->editor, EL_PROMPT_ESC, show_prompt, UNSEEN);
    el_set(r->editor, EL_EDITOR, "emacs");
    el_set(r->editor, EL_HIST, history, r->lines);
    el_set(r->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    /* wide: of the other kind libedit makes copies that it never frees */
    el_wset(r->editor, EL_ADDFN, L"quern-paste", L"Insert pasted text", take_paste);
    el_set(r->editor, EL_BIND, PASTE_BEGINS, "quern-paste", NULL);
    el_wset(r->editor, EL_ADDFN, L"quern-complete", L"Complete a command or a file", complete);
    el_set(r->editor, EL_BIND, "^I", "quern-complete", NULL);
    el_source(r->editor, NULL); /* the user's ~/.editrc, if any */
    el_wset(r->editor, EL_GETCFN, next_character);
    if (r->history)
        history_read(add_to_history, r->lines);
    mark_pastes(true);
    return true;
}

static line_result read_edited(line_reader *r, qn_text *line)
{
    int n = 0;
    el_resize(r->editor);
    el_set(r->editor, EL_PREP_TERM,
           1); /* before the prompt: a Ctrl-D right behind it must not be lost */
    const char *text = el_gets(r->editor, &n);
    if (atomic_load(&interrupted)) {
        el_reset(r->editor);
        return LINE_INTERRUPTED;
    }
    if (!text || n <= 0)
        return LINE_END;
    if (!append_exchanged(line, text, SHOWN_NEWLINE, "\n")) {
        fprintf(stderr, "quern: out of memory for a line\n");
        return LINE_FAILED;
    }
    if (line->n && line->data[line->n - 1] == '\n') /* of the key that ended the line */
        line->data[--line->n] = 0;
    return LINE_READ;
}

#endif

/* ------------------------------------------------------------------------------------------------------------
 */

line_reader *line_open(bool prompts, bool history, line_completer complete)
{
    line_reader *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    if (prompts && (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1))
        setlocale(LC_CTYPE, "C.UTF-8");
    r->complete = complete;
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
    if (r->editor) {
        mark_pastes(false);
        el_end(r->editor);
    }
#endif
    free(r);
}

line_result line_read(line_reader *r, const char *prompt, qn_text *line)
{
    line->n = 0;
    r->prompt = prompt;
    if (!qn__text_append(line, "", 0)) {
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
    qn_text shown = {0};
    if (!*line || !r->prompts)
        return;
    if (append_exchanged(&shown, line, "\n", SHOWN_NEWLINE)) {
#ifdef QN_LIBEDIT
        if (r->lines)
            add_to_history(r->lines, shown.data);
#endif
        if (r->history)
            history_append(shown.data);
    }
    qn_text_free(&shown);
}
