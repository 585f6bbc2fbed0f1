/* SPDX-License-Identifier: Apache-2.0
 *
 * The history file.
 */
#include "cli/history.h"
#include "base/buffers.h"
#include "base/file.h"
#include "base/utf8.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST_HISTORY = 4 << 20, LONGEST_LINE = 16384 };

static bool history_folder(char path[PATH_ROOM])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    if (state && state[0] == '/')
        n = snprintf(path, PATH_ROOM, "%s/quern", state);
    else if (home && home[0] == '/')
        n = snprintf(path, PATH_ROOM, "%s/.local/state/quern", home);
    else
        return false;
    return n < PATH_ROOM - 16;
}

/* A line that may go to a terminal again. */
static bool is_clean(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)line[i] < 0x20 && line[i] != '\t') || line[i] == 0x7f)
            return false;
    return n > 0 && n <= LONGEST_LINE && qn__utf8_check(line, n) == n;
}

void history_read(void (*each)(void *user, const char *line), void *user)
{
    char path[PATH_ROOM], *text;
    size_t n;
    qn_error err = {0};
    if (!history_folder(path))
        return;
    strcat(path, "/history");
    if (qn__file_read(path, LARGEST_HISTORY, &text, &n, &err) != QN_OK)
        return;
    for (char *at = text, *end; at < text + n; at = end + 1) {
        end = memchr(at, '\n', (size_t)(text + n - at));
        end = end ? end : text + n;
        *end = 0; /* the last one's is the NUL behind the file */
        if (is_clean(at, (size_t)(end - at)))
            each(user, at);
    }
    free(text);
}

static void add_line(void *user, const char *line)
{
    qn_text *text = user;
    if (qn__text_append(text, line, strlen(line)))
        qn__text_append(text, "\n", 1);
}

/* The newest lines of a text of lines, one of them to come. */
static const char *newest_lines(const qn_text *text)
{
    int lines = 0;
    for (size_t i = text->n; i-- > 0;)
        if (text->data[i] == '\n' && ++lines > MOST_HISTORY_LINES)
            return text->data + i + 1;
    return text->data;
}

bool history_append(const char *line)
{
    char path[PATH_ROOM];
    qn_text text = {0};
    qn_error err = {0};
    if (!is_clean(line, strlen(line)) || !history_folder(path) || !qn__path_make(path))
        return false;
    strcat(path, "/history");
    history_read(add_line, &text);
    add_line(&text, line);
    bool ok = false;
    mode_t mask = umask(077);
    if (text.n) {
        const char *from = newest_lines(&text);
        size_t n = text.n - (size_t)(from - text.data);
        ok = qn__file_write(path, from, n, QN__WRITER_REPLACE, &err) == QN_OK;
    }
    umask(mask);
    qn_text_free(&text);
    return ok;
}
