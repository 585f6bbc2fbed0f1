/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and names; see file.h. open() uses O_NONBLOCK so that a FIFO cannot hang it; fstat then
 * refuses what is no regular file.
 */
#include "base/file.h"

#include "base/checked.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static qn_status fail_errno(qn_error *err, const char *path, const char *what)
{
    int code = errno;
    if (code == ENOENT || code == ENOTDIR)
        return qn__fail(err, QN_NOT_FOUND, "%s: no such file", path);
    if (code == ENOMEM)
        return qn__fail_memory(err, path);
    if (code == EACCES)
        return qn__fail(err, QN_IO, "%s: %s: this user has no permission to read it", path, what);
    return qn__fail(err, QN_IO, "%s: %s: %s", path, what, strerror(code));
}

static const char *name_of_mode(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
           : S_ISSOCK(mode) ? "a socket"
                            : "no regular file";
}

/* ---- reading -------------------------------------------------------------------------------- */

qn_status qn__file_open(qn__file *file, const char *path, qn_error *err)
{
    *file = (qn__file){.fd = -1};
    int fd;
    do
        fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return fail_errno(err, path, "cannot open");
    qn_status status = QN_OK;
    struct stat info;
    char *copy = NULL;
    if (fstat(fd, &info) != 0)
        status = fail_errno(err, path, "cannot examine");
    else if (!S_ISREG(info.st_mode))
        status =
            qn__fail(err, QN_INVALID, "%s: is %s, not a file", path, name_of_mode(info.st_mode));
    else if (!(copy = strdup(path)))
        status = qn__fail_memory(err, path);
    if (status != QN_OK) {
        close(fd);
        return status;
    }
    *file = (qn__file){.fd = fd, .size = (uint64_t)info.st_size, .path = copy};
    return QN_OK;
}

void qn__file_close(qn__file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    free(file->path);
    *file = (qn__file){.fd = -1};
}

qn_status qn__file_pread(const qn__file *file, uint64_t offset, void *dst, size_t n, qn_error *err)
{
    uint64_t end;
    if (__builtin_add_overflow(offset, (uint64_t)n, &end) || end > (uint64_t)INT64_MAX)
        return qn__fail(err, QN_LIMIT, "%s: offset %llu is beyond what a file can have", file->path,
                        (unsigned long long)offset);
    char *to = dst;
    while (n > 0) {
        ssize_t got = pread(file->fd, to, n < (1u << 30) ? n : (1u << 30), (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(err, file->path, "cannot read");
        if (got == 0)
            return qn__fail(err, QN_IO,
                            "%s: the file ends at byte %llu, data up to byte %llu were expected",
                            file->path, (unsigned long long)offset, (unsigned long long)end);
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return QN_OK;
}

qn_status qn__file_read(const char *path, size_t max_size, char **data, size_t *size, qn_error *err)
{
    *data = NULL;
    *size = 0;
    qn__file file;
    qn_status status = qn__file_open(&file, path, err);
    if (status != QN_OK)
        return status;
    char *text = NULL;
    size_t n = (size_t)file.size;
    if (file.size > max_size) {
        status = qn__fail(err, QN_LIMIT, "%s: %llu bytes, more than the limit of %zu", path,
                          (unsigned long long)file.size, max_size);
    } else if (n + 1 == 0 || !(text = malloc(n + 1))) {
        status = qn__fail_memory(err, path);
    } else {
        status = qn__file_pread(&file, 0, text, n, err);
    }
    qn__file_close(&file);
    if (status != QN_OK) {
        free(text);
        return status;
    }
    text[n] = '\0';
    *data = text;
    *size = n;
    return QN_OK;
}

/* ---- names ---------------------------------------------------------------------------------- */

qn_status qn__path_is_directory(const char *path, bool *is_directory, qn_error *err)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return qn__fail(err, QN_NOT_FOUND, "%s: no such file or directory", path);
        return fail_errno(err, path, "cannot examine");
    }
    *is_directory = S_ISDIR(info.st_mode);
    return QN_OK;
}

bool qn__path_make(const char *path)
{
    char *part = strdup(path);
    bool ok = part != NULL;
    for (char *slash = ok ? strchr(part + 1, '/') : NULL; ok && slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        ok = mkdir(part, 0700) == 0 || errno == EEXIST;
        *slash = '/';
    }
    free(part);
    return ok && (mkdir(path, 0700) == 0 || errno == EEXIST);
}

char *qn__path_join(const char *directory, const char *name)
{
    size_t a = strlen(directory), b = strlen(name);
    char *path = malloc(a + b + 2);
    if (!path)
        return NULL;
    memcpy(path, directory, a);
    if (a > 0 && directory[a - 1] != '/')
        path[a++] = '/';
    memcpy(path + a, name, b + 1);
    return path;
}

char *qn__path_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

/* Refuses what cannot be a name inside a directory, whatever is there. */
static qn_status check_relative_name(const char *directory, const char *name, size_t size,
                                     qn_error *err)
{
    char quoted[128];
    const char *why = NULL;
    if (size == 0)
        why = "is empty";
    else if (size >= PATH_MAX)
        why = "is too long";
    else if (memchr(name, '\0', size))
        why = "contains NUL";
    else if (name[0] == '/')
        why = "is absolute";
    for (size_t i = 0; !why && i < size; i++)
        if ((i == 0 || name[i - 1] == '/') && size - i >= 2 && name[i] == '.' &&
            name[i + 1] == '.' && (size - i == 2 || name[i + 2] == '/'))
            why = "contains \"..\"";
    if (!why)
        return QN_OK;
    return qn__fail(err, QN_FORMAT, "%s: file name \"%s\" %s", directory,
                    qn__utf8_quote(quoted, sizeof quoted, name, size), why);
}

/* Where ROOT is .../snapshots/REVISION: whether `real` is a file directly in .../blobs. */
static bool is_cache_blob(const char *root, const char *real)
{
    const char *revision = strrchr(root, '/');
    static const char snapshots[] = "/snapshots", blobs[] = "/blobs/";
    size_t n = revision ? (size_t)(revision - root) : 0;
    if (n <= sizeof snapshots - 1)
        return false;
    n -= sizeof snapshots - 1;
    if (memcmp(root + n, snapshots, sizeof snapshots - 1) != 0)
        return false;
    return strncmp(real, root, n) == 0 && strncmp(real + n, blobs, sizeof blobs - 1) == 0 &&
           !strchr(real + n + sizeof blobs - 1, '/');
}

static bool is_inside(const char *root, const char *real)
{
    size_t n = strlen(root);
    if (n > 0 && root[n - 1] == '/')
        n--; /* the root directory itself */
    return strncmp(real, root, n) == 0 && real[n] == '/';
}

qn_status qn__path_resolve(const char *directory, const char *name, size_t size, char **out,
                           qn_error *err)
{
    *out = NULL;
    qn_status status = check_relative_name(directory, name, size, err);
    if (status != QN_OK)
        return status;
    char *terminated = strndup(name, size);
    char *path = terminated ? qn__path_join(directory, terminated) : NULL;
    char *root = NULL, *real = NULL;
    if (!path) {
        status = qn__fail_memory(err, "a path");
    } else if (!(root = realpath(directory, NULL))) {
        status = fail_errno(err, directory, "cannot resolve");
    } else if (!(real = realpath(path, NULL))) {
        struct stat info;
        int code = errno;
        if (code == ENOENT && lstat(path, &info) == 0)
            status = qn__fail(err, QN_NOT_FOUND, "%s: is a link to a file that is missing", path);
        else {
            errno = code;
            status = fail_errno(err, path, "cannot resolve");
        }
    } else if (!is_inside(root, real) && !is_cache_blob(root, real)) {
        status =
            qn__fail(err, QN_FORMAT, "%s: is a link that leads out of the model's directory", path);
    }
    free(terminated);
    free(path);
    free(root);
    if (status != QN_OK) {
        free(real);
        return status;
    }
    *out = real;
    return QN_OK;
}
