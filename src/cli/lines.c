/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading lines.
 */
#include "cli/lines.h"
#include "base/buffers.h"
#include "base/error.h"
#include "cli/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

qn_status lines_open(text_lines *r, const char *path, qn_error *err)
{
    bool standard = !strcmp(path, "-");
    memset(r, 0, offsetof(text_lines, buffer));
    r->at = r->n = 0;
    r->name = standard ? "standard input" : path;
    r->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    return r->fd >= 0 ? QN_OK : qn__fail(err, QN_IO, "%s: cannot open: %s", path, strerror(errno));
}

void lines_close(text_lines *r)
{
    if (r->fd > STDIN_FILENO)
        close(r->fd);
    qn_text_free(&r->line);
}

bool lines_ready(const text_lines *r)
{
    struct pollfd in = {.fd = r->fd, .events = POLLIN};
    return r->at < r->n || poll(&in, 1, 0) != 0; /* what is wrong the read will say */
}

/* Bytes in the buffer; none at the end. */
static qn_status read_piece(text_lines *r, qn_error *err)
{
    if (r->at < r->n)
        return QN_OK;
    ssize_t n = read(r->fd, r->buffer, sizeof r->buffer);
    if (n < 0)
        return qn__fail(err, errno == EINTR ? QN_CANCELLED : QN_IO, "%s cannot be read: %s",
                        r->name, strerror(errno));
    r->at = 0;
    r->n = (size_t)n;
    return QN_OK;
}

/* One line, whatever it holds. */
static qn_status read_line(text_lines *r, bool *more, qn_error *err)
{
    bool fits = true, any = false;
    r->line.n = 0;
    r->cut_off = true;
    while (r->cut_off) {
        if (read_piece(r, err) != QN_OK)
            return err->code;
        if (!r->n)
            break;
        const char *from = r->buffer + r->at, *end = memchr(from, '\n', r->n - r->at);
        size_t n = end ? (size_t)(end - from) : r->n - r->at;
        any = true;
        r->cut_off = !end;
        r->at += n + (end != NULL);
        r->taken += n + (end != NULL);
        fits = fits && r->line.n + n <= LONGEST_LINE;
        if (fits && !qn__text_append(&r->line, from, n))
            return qn__fail_memory(err, "a line");
    }
    *more = any;
    r->number += any;
    if (!fits)
        return qn__fail(err, QN_LIMIT, "%s: line %llu exceeds %d bytes", r->name,
                        (unsigned long long)r->number, LONGEST_LINE);
    if (r->line.n && r->line.data[r->line.n - 1] == '\r')
        r->line.data[--r->line.n] = 0;
    return QN_OK;
}

static bool is_blank(const qn_text *line)
{
    size_t at = 0;
    while (at < line->n && (line->data[at] == ' ' || line->data[at] == '\t'))
        at++;
    return at == line->n;
}

qn_status lines_next(text_lines *r, bool *more, qn_error *err)
{
    do {
        if (read_line(r, more, err) != QN_OK)
            return err->code;
    } while (*more && is_blank(&r->line));
    return QN_OK;
}
