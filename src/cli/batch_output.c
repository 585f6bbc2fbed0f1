/* SPDX-License-Identifier: Apache-2.0
 *
 * Results of a batch. A file grows line by line and is never rewritten, so that whatever ends a run
 * leaves whole lines and at most one that is not.
 */
#include "cli/batch_output.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/lines.h"
#include "cli/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double sync_every = 1; /* seconds */

typedef qn_status keep_fn(void *user, uint64_t index, const char *custom_id, qn_error *err);

/* ---- what is there already ------------------------------------------------------------------- */

/* Gives a result to `keep`. */
static qn_status keep_line(const text_lines *r, uint64_t index, keep_fn *keep, void *user,
                           qn_error *err)
{
    cJSON *tree = NULL;
    const char *id = NULL;
    int64_t is = -1;
    qn_error bad = {0};
    if (qn__json_parse(&tree, r->name, r->line.data, r->line.n, &bad) == QN_OK) {
        qn__json_at at = qn__json_root(r->name, tree);
        if (qn__json_get_int(&at, "index", 0, INT64_C(1) << 52, &is, &bad) == QN_OK)
            qn__json_opt_string(&at, "custom_id", &id, &bad);
    }
    if (bad.code != QN_OK || is != (int64_t)index)
        qn__fail(err, QN_INVALID, "--resume: line %llu of %s is not result %llu of a batch",
                 (unsigned long long)r->number, r->name, (unsigned long long)index);
    else
        keep(user, index, id, err);
    cJSON_Delete(tree);
    return err->code;
}

/* Keeps the whole lines of a file; *end receives where they end. */
static qn_status keep_lines(const char *path, keep_fn *keep, void *user, off_t *end, qn_error *err)
{
    text_lines r;
    bool more = true;
    *end = 0;
    lines_open(&r, path, err);
    for (uint64_t index = 0; !err->code && lines_next(&r, &more, err) == QN_OK && more; index++) {
        if (r.cut_off)
            break;
        if (keep_line(&r, index, keep, user, err) != QN_OK)
            break;
        *end = (off_t)r.taken;
    }
    lines_close(&r);
    return err->code;
}

/* ---- opening --------------------------------------------------------------------------------- */

static qn_status exists(const char *path, qn_error *err)
{
    return qn__fail(err, QN_INVALID,
                    "%s exists already; --resume goes on with it, --force replaces it", path);
}

qn_status batch_output_check(const arguments *a, qn_error *err)
{
    bool fresh = a->output && !a->resume && !a->force;
    return fresh && access(a->output, F_OK) == 0 ? exists(a->output, err) : QN_OK;
}

/* Makes the file's name durable. Some file systems cannot sync a directory: that is no failure. */
static void sync_name(const char *path)
{
    char *directory = qn__path_parent(path);
    int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(directory);
}

static qn_status open_file(batch_output *o, const arguments *a, off_t kept, qn_error *err)
{
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (a->resume ? 0 : a->force ? O_TRUNC : O_EXCL);
    int fd = open(o->path, flags, 0666);
    struct stat info;
    if (fd < 0)
        return errno == EEXIST
                   ? exists(o->path, err)
                   : qn__fail(err, QN_IO, "%s: cannot write: %s", o->path, strerror(errno));
    bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    if (a->resume && (!regular || ftruncate(fd, kept) != 0 || lseek(fd, 0, SEEK_END) < 0))
        qn__fail(err, QN_IO, "%s: cannot go on with it: %s", o->path,
                 regular ? strerror(errno) : "is not a regular file");
    else if (!(o->out = fdopen(fd, "w")))
        qn__fail_memory(err, "an output");
    if (err->code != QN_OK)
        close(fd);
    else
        sync_name(o->path);
    return err->code;
}

qn_status batch_output_open(batch_output *o, const arguments *a,
                            qn_status (*keep)(void *user, uint64_t index, const char *custom_id,
                                              qn_error *err),
                            void *user, qn_error *err)
{
    struct stat info;
    off_t kept = 0;
    o->path = a->output;
    o->synced = qn__seconds();
    if (!o->path) {
        o->out = stdout;
        return QN_OK;
    }
    if (a->resume && stat(o->path, &info) == 0 &&
        keep_lines(o->path, keep, user, &kept, err) != QN_OK)
        return err->code;
    return open_file(o, a, kept, err);
}

/* ---- writing --------------------------------------------------------------------------------- */

static qn_status fail_output(const batch_output *o, qn_error *err)
{
    return qn__fail(err, QN_IO, "%s cannot be written: %s", o->path ? o->path : "standard output",
                    strerror(errno));
}

static bool sync_output(batch_output *o)
{
    o->synced = qn__seconds();
    return !o->path || fsync(fileno(o->out)) == 0 || errno == EINVAL; /* a pipe cannot */
}

qn_status batch_output_write(batch_output *o, const char *line, size_t n, qn_error *err)
{
    if (fwrite(line, 1, n, o->out) != n || fflush(o->out) != 0 ||
        (qn__seconds() - o->synced > sync_every && !sync_output(o)))
        return fail_output(o, err);
    return QN_OK;
}

qn_status batch_output_close(batch_output *o, qn_error *err)
{
    if (!o->out || !o->path)
        return QN_OK;
    bool good = fflush(o->out) == 0 && sync_output(o);
    if (fclose(o->out) != 0 || !good)
        fail_output(o, err);
    o->out = NULL;
    return err->code;
}
