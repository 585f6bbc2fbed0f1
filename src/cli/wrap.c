/* SPDX-License-Identifier: Apache-2.0
 *
 * Breaking lines between words while they are written.
 *
 * Problem: a reply comes in pieces of words and is to appear at once; only when a word is too long
 * already is it clear that it belongs to the next line.
 *
 * Approach: everything is written as it comes, and the word that is being written is kept. When it
 * reaches the last column, the cursor goes back to where it began, the rest of the line is cleared,
 * and the word stands on the next line. Lines within ``` fences are left alone, so that code can be
 * copied; a word longer than a line is, too.
 */
#include "cli/wrap.h"
#include "base/buffers.h"
#include "cli/shared.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

int terminal_width(void)
{
    struct winsize size;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
                   size.ws_col >= 16
               ? size.ws_col
               : 0;
}

static void end_word(wrapper *w)
{
    w->word_size = 0;
    w->word_width = 0;
}

static void end_line(wrapper *w)
{
    if (w->started == 3 && !memcmp(w->start, "```", 3))
        w->fenced = !w->fenced;
    end_word(w);
    w->started = 0;
    w->column = 0;
    w->broken = false;
}

/* The kept word goes to a line of its own; it did not begin the line. */
static bool break_line(wrapper *w, qn_text *out)
{
    char back[32];
    int n = w->word_width ? snprintf(back, sizeof back, "\x1b[%dD", w->word_width) : 0;
    w->column = w->word_width;
    w->broken = true;
    return qn__text_append(out, back, (size_t)n) && qn__text_append(out, "\x1b[K\n", 4) &&
           qn__text_append(out, w->word, w->word_size);
}

/* One character of n bytes that is neither a newline nor a space. */
static bool wrap_character(wrapper *w, const char *at, size_t n, int width, qn_text *out)
{
    if (width > 1) /* between wide characters a line may break */
        end_word(w);
    bool fits = w->column + width < w->width, can_move = w->word_width < w->column;
    if (!fits && can_move && !break_line(w, out))
        return false;
    if (!fits && !can_move) { /* a word as long as the line: the terminal breaks it */
        end_word(w);
        w->column = 0;
    }
    if (w->word_size + n <= sizeof w->word) {
        memcpy(w->word + w->word_size, at, n);
        w->word_size += n;
        w->word_width += width;
    } else {
        end_word(w);
    }
    w->column += width;
    if (width > 1)
        end_word(w);
    return qn__text_append(out, at, n);
}

static bool wrap_space(wrapper *w, qn_text *out)
{
    end_word(w);
    if (w->broken && !w->column)
        return true;
    if (w->column + 1 >= w->width) {
        w->column = 0;
        w->broken = true;
        return qn__text_append(out, "\n", 1);
    }
    w->column++;
    return qn__text_append(out, " ", 1);
}

/* The bytes of the character at text[0..n), and its columns. */
static size_t character(const char *text, size_t n, int *width)
{
    wchar_t c;
    mbstate_t state = {0};
    size_t size = mbrtowc(&c, text, n, &state);
    if (size == 0 || size > n) {
        *width = 1;
        return 1;
    }
    *width = wcwidth(c);
    *width = *width < 0 ? 0 : *width;
    return size;
}

bool wrap_text(wrapper *w, const char *text, size_t n, qn_text *out)
{
    if (!w->width)
        return qn__text_append(out, text, n);
    bool ok = true;
    for (size_t i = 0, size; ok && i < n; i += size) {
        int width;
        size = character(text + i, n - i, &width);
        bool newline = text[i] == '\n';
        if (!newline && w->started < 3 && (w->started || text[i] != ' '))
            w->start[w->started++] = text[i];
        bool as_is = w->fenced || (w->started && w->start[0] == '`' && w->started < 3);
        if (newline) {
            end_line(w);
            ok = qn__text_append(out, "\n", 1);
        } else if (as_is || text[i] == '\t') {
            end_word(w);
            w->column = text[i] == '\t' ? (w->column / 8 + 1) * 8 : w->column + width;
            ok = qn__text_append(out, text + i, size);
        } else {
            ok =
                text[i] == ' ' ? wrap_space(w, out) : wrap_character(w, text + i, size, width, out);
        }
    }
    return ok;
}
