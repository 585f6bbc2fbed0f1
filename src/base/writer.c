/* SPDX-License-Identifier: Apache-2.0
 *
 * The atomic writer of file.h. The temporary file lies beside the target, so that the rename
 * stays inside one file system; it is made with O_EXCL, so that nobody's link is followed.
 * Invariant: whatever fails, the target is the old file or the new one, and after commit or abort
 * no temporary file is left.
 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_SIZE = 1 << 16 };

struct qn__writer {
    int fd;
    bool replace;
    uint64_t expected, written; /* bytes in all; bytes that reached the file */
    char *path, *directory, *temporary;
    size_t used; /* bytes in the buffer */
    char buffer[BUFFER_SIZE];
};

/* An existing target must be a regular file that may be replaced. */
static qn_status check_target(const char *path, unsigned flags, qn_error *err)
{
    struct stat info;
    size_t n = strlen(path);
    if (n == 0 || path[n - 1] == '/')
        return qn__fail(err, QN_INVALID, "\"%s\": no file name to write to", path);
    if (stat(path, &info) != 0) {
        if (errno == ENOENT)
            return QN_OK;
        return qn__fail(err, QN_IO, "%s: cannot write: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode))
        return qn__fail(err, QN_INVALID, "%s: cannot write: is not a regular file", path);
    if (!(flags & QN__WRITER_REPLACE))
        return qn__fail(err, QN_INVALID, "%s: exists already", path);
    if (access(path, W_OK) != 0)
        return qn__fail(err, QN_IO, "%s: cannot write: %s", path, strerror(errno));
    return QN_OK;
}

static void free_writer(qn__writer *writer)
{
    free(writer->path);
    free(writer->directory);
    free(writer->temporary);
    free(writer);
}

static qn_status open_temporary(qn__writer *writer, qn_error *err)
{
    size_t size = strlen(writer->path) + 48;
    writer->temporary = malloc(size);
    if (!writer->temporary)
        return qn__fail_memory(err, "a file writer");
    for (int i = 0; i < 1000; i++) {
        snprintf(writer->temporary, size, "%s.%ld-%d.tmp", writer->path, (long)getpid(), i);
        writer->fd =
            open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (writer->fd >= 0)
            return QN_OK;
        if (errno != EEXIST && errno != EINTR)
            break;
    }
    return qn__fail(err, QN_IO, "%s: cannot create: %s", writer->path, strerror(errno));
}

qn_status qn__writer_open(qn__writer **out, const char *path, uint64_t expected, unsigned flags,
                          qn_error *err)
{
    *out = NULL;
    qn_status status = check_target(path, flags, err);
    if (status != QN_OK)
        return status;
    qn__writer *writer = malloc(sizeof *writer);
    if (!writer)
        return qn__fail_memory(err, "a file writer");
    memset(writer, 0, offsetof(qn__writer, buffer));
    writer->fd = -1;
    writer->replace = (flags & QN__WRITER_REPLACE) != 0;
    writer->expected = expected;
    writer->path = strdup(path);
    writer->directory = qn__path_parent(path);
    status = writer->path && writer->directory ? open_temporary(writer, err)
                                               : qn__fail_memory(err, "a file writer");
    if (status != QN_OK) {
        free_writer(writer);
        return status;
    }
    *out = writer;
    return QN_OK;
}

static qn_status fail_write(const qn__writer *writer, qn_error *err, int code)
{
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
        const char *why = code == EFBIG ? "the file is too large" : "no space left";
        if (writer->expected)
            return qn__fail(err, QN_IO, "%s: %s: %llu of %llu bytes written", writer->path, why,
                            (unsigned long long)writer->written,
                            (unsigned long long)writer->expected);
        return qn__fail(err, QN_IO, "%s: %s after %llu bytes", writer->path, why,
                        (unsigned long long)writer->written);
    }
    return qn__fail(err, QN_IO, "%s: cannot write: %s", writer->path, strerror(code));
}

static qn_status write_through(qn__writer *writer, const char *data, size_t n, qn_error *err)
{
    while (n > 0) {
        ssize_t done = write(writer->fd, data, n < (1u << 30) ? n : (1u << 30));
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail_write(writer, err, done < 0 ? errno : ENOSPC);
        data += done;
        n -= (size_t)done;
        writer->written += (uint64_t)done;
    }
    return QN_OK;
}

static qn_status flush_buffer(qn__writer *writer, qn_error *err)
{
    size_t n = writer->used;
    writer->used = 0;
    return write_through(writer, writer->buffer, n, err);
}

qn_status qn__writer_write(qn__writer *writer, const void *data, size_t n, qn_error *err)
{
    if (n > BUFFER_SIZE - writer->used) {
        qn_status status = flush_buffer(writer, err);
        if (status != QN_OK)
            return status;
    }
    if (n > BUFFER_SIZE)
        return write_through(writer, data, n, err);
    if (n > 0)
        memcpy(writer->buffer + writer->used, data, n);
    writer->used += n;
    return QN_OK;
}

/* Gives the temporary file its name. Without REPLACE a link is made first, which fails where
 * something appeared in the meantime; file systems without links fall back to the rename. */
static int publish_file(const qn__writer *writer)
{
    if (!writer->replace) {
        if (link(writer->temporary, writer->path) == 0) {
            unlink(writer->temporary);
            return 0;
        }
        if (errno == EEXIST)
            return -1;
    }
    return rename(writer->temporary, writer->path);
}

qn_status qn__path_sync(const char *directory, const char *path, qn_error *err)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = fd >= 0 && fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    return code == EIO
               ? qn__fail(err, QN_IO, "%s: cannot sync the directory: %s", path, strerror(EIO))
               : QN_OK;
}

qn_status qn__writer_commit(qn__writer *writer, qn_error *err)
{
    qn_status status = flush_buffer(writer, err);
    if (status == QN_OK && fsync(writer->fd) != 0)
        status = fail_write(writer, err, errno);
    int closed = close(writer->fd);
    writer->fd = -1;
    if (status == QN_OK && closed != 0)
        status = fail_write(writer, err, errno);
    if (status == QN_OK && publish_file(writer) != 0)
        status =
            qn__fail(err, QN_IO, "%s: cannot rename into place: %s", writer->path, strerror(errno));
    if (status != QN_OK) {
        qn__writer_abort(writer);
        return status;
    }
    status = qn__path_sync(writer->directory, writer->path, err);
    free_writer(writer);
    return status;
}

void qn__writer_abort(qn__writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        close(writer->fd);
    unlink(writer->temporary);
    free_writer(writer);
}

qn_status qn__file_write(const char *path, const void *data, size_t n, unsigned flags,
                         qn_error *err)
{
    qn__writer *writer;
    qn_status status = qn__writer_open(&writer, path, n, flags, err);
    if (status != QN_OK)
        return status;
    status = qn__writer_write(writer, data, n, err);
    if (status == QN_OK)
        return qn__writer_commit(writer, err);
    qn__writer_abort(writer);
    return status;
}
