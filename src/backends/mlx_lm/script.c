/* SPDX-License-Identifier: Apache-2.0
 *
 * The script as a file; see script.h.
 */
#include "backends/mlx_lm/script.h"

#include "base/file.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* scripts/embed */
extern const unsigned char qn__mlx_lm_bridge[];
extern const unsigned long qn__mlx_lm_bridge_size;

static qn_status cache_folder(char **folder, qn_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && cache[0] == '/';
    *folder = NULL;
    if (!given && !(home && home[0] == '/'))
        return qn__fail(err, QN_NOT_FOUND, "there is no cache folder: set XDG_CACHE_HOME or HOME");
    if (asprintf(folder, "%s%s", given ? cache : home, given ? "/quern" : "/.cache/quern") < 0) {
        *folder = NULL;
        return qn__fail_memory(err, "a path");
    }
    return QN_OK;
}

/* The folder is ours alone to write to. */
static qn_status check_folder(const char *folder, qn_error *err)
{
    struct stat info;
    if (!qn__path_make(folder) || lstat(folder, &info) != 0)
        return qn__fail(err, QN_IO, "%s: cannot be made: %s", folder, strerror(errno));
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || info.st_mode & 022)
        return qn__fail(err, QN_INVALID,
                        "%s: others may write there; chmod 700, or set XDG_CACHE_HOME", folder);
    return QN_OK;
}

/* Whether the file is what it should be. */
static bool script_is(const char *path)
{
    struct stat info;
    char *text = NULL;
    size_t n = 0;
    if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & 0777) != 0600 || info.st_size != (off_t)qn__mlx_lm_bridge_size ||
        qn__file_read(path, qn__mlx_lm_bridge_size, &text, &n, NULL) != QN_OK)
        return false;
    bool same = n == qn__mlx_lm_bridge_size && !memcmp(text, qn__mlx_lm_bridge, n);
    free(text);
    return same;
}

static qn_status write_script(const char *path, qn_error *err)
{
    if (qn__file_write(path, qn__mlx_lm_bridge, qn__mlx_lm_bridge_size, QN__WRITER_REPLACE, err) !=
        QN_OK)
        return err->code;
    return chmod(path, 0600) == 0 && script_is(path)
               ? QN_OK
               : qn__fail(err, QN_IO, "%s: it is not what was written", path);
}

qn_status qn__mlx_lm_script(char **path, qn_error *err)
{
    char *folder, name[40];
    *path = NULL;
    snprintf(name, sizeof name, "mlx_lm-%016llx.py",
             (unsigned long long)qn__hash_bytes(qn__mlx_lm_bridge, qn__mlx_lm_bridge_size, 0));
    if (cache_folder(&folder, err) != QN_OK)
        return err->code;
    qn_status status = check_folder(folder, err);
    if (status == QN_OK && !(*path = qn__path_join(folder, name)))
        status = qn__fail_memory(err, "a path");
    if (status == QN_OK && !script_is(*path))
        status = write_script(*path, err);
    free(folder);
    return status;
}
