/* SPDX-License-Identifier: Apache-2.0
 *
 * The script as a file; see script.h.
 */
#include "backends/mlx_lm/script.h"

#include "base/cache_folder.h"
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
    if (qn__cache_folder(NULL, &folder, err) != QN_OK)
        return err->code;
    qn_status status = QN_OK;
    if (!(*path = qn__path_join(folder, name)))
        status = qn__fail_memory(err, "a path");
    if (status == QN_OK && !script_is(*path))
        status = write_script(*path, err);
    free(folder);
    return status;
}
