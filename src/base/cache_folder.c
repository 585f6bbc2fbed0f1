/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache folder.
 */
#include "base/cache_folder.h"

#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static qn_status check_folder(const char *path, qn_error *err)
{
    struct stat info;
    if (!qn__path_make(path) || lstat(path, &info) != 0)
        return qn__fail(err, QN_IO, "%s: cannot be made: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || info.st_mode & 022)
        return qn__fail(err, QN_INVALID,
                        "%s: others may write there; chmod 700, or set XDG_CACHE_HOME", path);
    return QN_OK;
}

qn_status qn__cache_folder(const char *name, char **path, qn_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && cache[0] == '/';
    *path = NULL;
    if (!given && !(home && home[0] == '/'))
        return qn__fail(err, QN_NOT_FOUND, "there is no cache folder: set XDG_CACHE_HOME or HOME");
    if (asprintf(path, "%s%s%s%s", given ? cache : home, given ? "/quern" : "/.cache/quern",
                 name ? "/" : "", name ? name : "") < 0) {
        *path = NULL;
        return qn__fail_memory(err, "a path");
    }
    if (check_folder(*path, err) == QN_OK)
        return QN_OK;
    free(*path);
    *path = NULL;
    return err->code;
}
