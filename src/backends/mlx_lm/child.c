/* SPDX-License-Identifier: Apache-2.0
 *
 * A program to talk to; see child.h.
 */
#include "backends/mlx_lm/child.h"

#include "base/buffers.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST_ANSWER = 1 << 20, PIECE = 1 << 16, TICK_MS = 50 };

extern char **environ;

/* ---- beginning ------------------------------------------------------------------------------- */

static int spawn_child(qn__child *c, int theirs, const char *program, const char *argument)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, usual;
    char *const argv[] = {(char *)program, (char *)argument, NULL};
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGINT);
    sigaddset(&usual, SIGTERM);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&files, theirs, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, theirs, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, c->errors, STDERR_FILENO);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                              POSIX_SPAWN_SETSIGDEF);
    int failure = posix_spawnp(&c->pid, program, &files, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return failure;
}

qn_status qn__child_start(qn__child *c, const char *program, const char *argument, qn_error *err)
{
    int pair[2];
    *c = (qn__child){.fd = -1};
    c->errors = memfd_create("errors", MFD_CLOEXEC);
    if (c->errors < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        int failure = errno;
        qn__child_end(c, 0);
        return qn__fail(err, QN_IO, "a process cannot be started: %s", strerror(failure));
    }
    c->fd = pair[0];
    int failure = spawn_child(c, pair[1], program, argument);
    close(pair[1]);
    if (!failure)
        return QN_OK;
    c->pid = 0;
    qn__child_end(c, 0);
    return qn__fail(err, failure == ENOENT ? QN_NOT_FOUND : QN_IO, "%s cannot be started: %s",
                    program, strerror(failure));
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Whether it ended within `seconds`. */
static bool reap(qn__child *c, double seconds, int *status)
{
    double until = qn__seconds() + seconds;
    pid_t got;
    *status = 0;
    while ((got = waitpid(c->pid, status, WNOHANG)) == 0 && qn__seconds() < until)
        usleep(2000);
    if (got != 0)
        c->pid = 0; /* or somebody else has waited for it */
    return got != 0;
}

static void kill_child(qn__child *c)
{
    int status;
    kill(-c->pid, SIGKILL);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    c->pid = 0;
}

void qn__child_end(qn__child *c, double seconds)
{
    int status;
    if (c->fd >= 0)
        shutdown(c->fd, SHUT_WR);
    if (c->pid && !reap(c, seconds, &status))
        kill_child(c);
    if (c->fd >= 0)
        close(c->fd);
    if (c->errors >= 0)
        close(c->errors);
    qn_text_free(&c->in);
    c->fd = c->errors = -1;
}

/* The last line that it wrote to standard error, in quotable form; "": none. */
static const char *last_words(const qn__child *c, char *quoted, size_t room)
{
    char text[1000];
    off_t size = lseek(c->errors, 0, SEEK_END), from = size > 999 ? size - 999 : 0;
    ssize_t n = size > 0 ? pread(c->errors, text, 999, from) : 0;
    n = n > 0 ? n : 0;
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    const char *begin = n ? memrchr(text, '\n', (size_t)n) : NULL;
    begin = begin ? begin + 1 : text;
    return qn__utf8_quote(quoted, room, begin, (size_t)(text + n - begin));
}

/* It has closed its output, without being asked to. */
static qn_status fail_gone(qn__child *c, qn_error *err)
{
    char words[300], how[60];
    int status;
    if (!reap(c, 2, &status))
        snprintf(how, sizeof how, "closed its output");
    else if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(status));
    else
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(status));
    last_words(c, words, sizeof words);
    qn__child_end(c, 0);
    return qn__fail(err, QN_IO, "Python %s%s%s", how, words[0] ? ": " : "", words);
}

/* ---- talking --------------------------------------------------------------------------------- */

static qn_status wait_for(qn__child *c, short events, const qn__patience *p, qn_error *err)
{
    double begun = qn__seconds();
    struct pollfd fd = {.fd = c->fd, .events = events};
    if (c->fd < 0)
        return qn__fail(err, QN_STATE, "Python has ended; the backend is to be opened again");
    for (;;) {
        if (p->cancel && atomic_load(p->cancel))
            return qn__fail(err, QN_CANCELLED, "cancelled");
        if (poll(&fd, 1, TICK_MS) > 0)
            return QN_OK;
        if (p->until > 0 && qn__seconds() >= p->until) {
            qn__child_end(c, 0);
            return qn__fail(err, QN_IO, "Python gave no answer within %.2g s", p->until - begun);
        }
    }
}

qn_status qn__child_send(qn__child *c, const char *data, size_t n, const qn__patience *p,
                         qn_error *err)
{
    while (n) {
        if (wait_for(c, POLLOUT, p, err) != QN_OK)
            return err->code;
        ssize_t sent = send(c->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EINTR && errno != EAGAIN)
            return fail_gone(c, err);
        data += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return QN_OK;
}

/* More of what it says. */
static qn_status receive(qn__child *c, const qn__patience *p, qn_error *err)
{
    if (wait_for(c, POLLIN, p, err) != QN_OK)
        return err->code;
    memmove(c->in.data, c->in.data + c->taken, c->in.n - c->taken);
    c->in.n -= c->taken;
    c->taken = 0;
    if (c->in.n > LONGEST_ANSWER) {
        qn__child_end(c, 0);
        return qn__fail(err, QN_LIMIT, "Python said a line of more than %d bytes", LONGEST_ANSWER);
    }
    if (!qn__text_reserve(&c->in, PIECE))
        return qn__fail_memory(err, "an answer");
    ssize_t n = recv(c->fd, c->in.data + c->in.n, PIECE, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        return fail_gone(c, err);
    c->in.n += n > 0 ? (size_t)n : 0;
    return QN_OK;
}

qn_status qn__child_line(qn__child *c, const qn__patience *p, const char **line, size_t *n,
                         qn_error *err)
{
    char *end = NULL;
    if (!c->in.data && !qn__text_reserve(&c->in, PIECE))
        return qn__fail_memory(err, "an answer");
    while (!(end = memchr(c->in.data + c->taken, '\n', c->in.n - c->taken)))
        if (receive(c, p, err) != QN_OK)
            return err->code;
    *line = c->in.data + c->taken;
    *n = (size_t)(end - *line);
    c->taken += *n + 1;
    return QN_OK;
}
