/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory of its own for a test program, and files in it. Paths come from a ring of buffers,
 * so that a test can hold several.
 */
#ifndef QN_TESTS_TEMP_DIR_H
#define QN_TESTS_TEMP_DIR_H

#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char temp_root[64];

static inline int temp_begin(void **state)
{
    (void)state;
    snprintf(temp_root, sizeof temp_root, "/tmp/quern-test-XXXXXX");
    return mkdtemp(temp_root) ? 0 : -1;
}

static inline int temp_remove_entry(const char *path, const struct stat *info, int type,
                                    struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline int temp_end(void **state)
{
    (void)state;
    return nftw(temp_root, temp_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static inline const char *temp_path(const char *name)
{
    static char ring[8][PATH_MAX];
    static int next;
    char *out = ring[next++ % 8];
    snprintf(out, PATH_MAX, "%s/%s", temp_root, name);
    return out;
}

static inline const char *temp_mkdir(const char *name)
{
    const char *path = temp_path(name);
    if (mkdir(path, 0777) != 0)
        perror(path);
    return path;
}

static inline const char *temp_write(const char *name, const void *data, size_t n)
{
    const char *path = temp_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n)
        perror(path);
    if (f)
        fclose(f);
    return path;
}

/* The number of directory entries. */
static inline int temp_count(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (dir)
        closedir(dir);
    return n;
}

#endif
