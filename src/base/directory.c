/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories written whole; see directory.h.
 */
#include "base/directory.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

static qn_status check_directory(qn__directory *d, bool replace, qn__directory_file *is_ours,
                                 qn_error *err)
{
    struct stat info;
    d->exists = lstat(d->path, &info) == 0;
    if (!d->exists)
        return QN_OK;
    if (!replace)
        return qn__fail(err, QN_INVALID, "%s: exists already", d->path);
    DIR *dir = S_ISDIR(info.st_mode) ? opendir(d->path) : NULL;
    if (!dir)
        return qn__fail(err, QN_INVALID, "%s: cannot replace: is not a directory", d->path);
    qn_status status = QN_OK;
    for (struct dirent *e; status == QN_OK && (e = readdir(dir));)
        if (!is_dots(e->d_name) && !is_ours(e->d_name))
            status = qn__fail(err, QN_INVALID, "%s: cannot replace: there is %.60s in it", d->path,
                              e->d_name);
    closedir(dir);
    return status;
}

static void remove_directory(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char *file = is_dots(e->d_name) ? NULL : qn__path_join(path, e->d_name);
        if (file)
            unlink(file);
        free(file);
    }
    if (dir)
        closedir(dir);
    rmdir(path);
}

/* What processes that were killed left beside d->path: PATH.PID-N.tmp of no process there is. */
static void remove_leftovers(const qn__directory *d)
{
    char *parent = qn__path_parent(d->path);
    DIR *dir = parent ? opendir(parent) : NULL;
    const char *slash = strrchr(d->path, '/'), *base = slash ? slash + 1 : d->path;
    size_t n = strlen(base);
    for (struct dirent *e; dir && n && (e = readdir(dir));) {
        long pid = 0;
        int number, end = 0;
        if (strncmp(e->d_name, base, n) != 0 ||
            sscanf(e->d_name + n, ".%ld-%d.tmp%n", &pid, &number, &end) != 2 || !end ||
            e->d_name[n + (size_t)end] || pid < 1 || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
            continue;
        char *left = qn__path_join(parent, e->d_name);
        if (left)
            remove_directory(left);
        free(left);
    }
    if (dir)
        closedir(dir);
    free(parent);
}

static qn_status make_temporary(qn__directory *d, qn_error *err)
{
    size_t n = strlen(d->path), size = n + 48;
    char *path = malloc(size);
    if (!path)
        return qn__fail_memory(err, "a path");
    while (n > 1 && d->path[n - 1] == '/')
        n--;
    for (int i = 0; i < 1000; i++) {
        snprintf(path, size, "%.*s.%ld-%d.tmp", (int)n, d->path, (long)getpid(), i);
        if (mkdir(path, 0777) == 0) {
            d->temporary = path;
            return QN_OK;
        }
        if (errno != EEXIST)
            break;
    }
    free(path);
    return qn__fail(err, QN_IO, "%s: cannot create: %s", d->path, strerror(errno));
}

qn_status qn__directory_begin(qn__directory *d, const char *path, bool replace,
                              qn__directory_file *is_ours, qn_error *err)
{
    *d = (qn__directory){.path = path};
    qn_status status = check_directory(d, replace, is_ours, err);
    if (status == QN_OK)
        remove_leftovers(d);
    return status == QN_OK ? make_temporary(d, err) : status;
}

/* Gives the directory its name; what had it before is then under the temporary one. */
static qn_status publish(const qn__directory *d, qn_error *err)
{
    unsigned how = d->exists ? RENAME_EXCHANGE : RENAME_NOREPLACE;
    int code = renameat2(AT_FDCWD, d->temporary, AT_FDCWD, d->path, how);
    if (code != 0 && !d->exists && (errno == EINVAL || errno == ENOSYS)) /* no such file system */
        code = rename(d->temporary, d->path);
    return code == 0
               ? QN_OK
               : qn__fail(err, QN_IO, "%s: cannot rename into place: %s", d->path, strerror(errno));
}

/* Without this a power cut could still lose the name. */
static qn_status sync_parent(const qn__directory *d, qn_error *err)
{
    char *parent = qn__path_parent(d->temporary);
    qn_status status =
        parent ? qn__path_sync(parent, d->path, err) : qn__fail_memory(err, "a path");
    free(parent);
    return status;
}

qn_status qn__directory_end(qn__directory *d, qn_status status, qn_error *err)
{
    if (!d->temporary)
        return status;
    if (status == QN_OK)
        status = publish(d, err);
    if (status == QN_OK)
        status = sync_parent(d, err);
    if (status != QN_OK || d->exists)
        remove_directory(d->temporary);
    free(d->temporary);
    d->temporary = NULL;
    return status;
}
