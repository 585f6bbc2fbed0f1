/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a model is: the built-in one beside the binary, a path, or org/name in the Hugging Face cache, whose
 * layout https://huggingface.co/docs/hub/local-cache describes:
 *
 *     models--org--name/refs/main             the commit, as text
 *     models--org--name/snapshots/COMMIT/     the files, as links
 *
 * Names and commits become parts of paths, so only what the hub itself allows in them passes.
 */
#include "base/error.h"
#include "base/file.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

static bool has_config(const char *directory)
{
    char path[PATH_ROOM + 16];
    snprintf(path, sizeof path, "%s/config.json", directory);
    return access(path, R_OK) == 0;
}

/* Beside the binary (a build tree's or an installation's), else where it was built or installed. */
static bool locate_built_in(char path[PATH_ROOM])
{
    static const char *const beside[] = {"../share/quern/models/demo", "../../../models/demo"};
    char self[4000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        for (size_t i = 0; slash && i < sizeof beside / sizeof *beside; i++) {
            snprintf(path, PATH_ROOM, "%.*s/%s", (int)(slash - self), self, beside[i]);
            if (has_config(path))
                return true;
        }
    }
    static const char *const built[] = {QN_DEMO_INSTALLED, QN_DEMO_SOURCE};
    for (int i = 0; i < 2; i++) {
        snprintf(path, PATH_ROOM, "%s", built[i]);
        if (has_config(path))
            return true;
    }
    return false;
}

/* One part of a path that can lead nowhere else. */
static bool is_part(const char *s, size_t n)
{
    return n > 0 && n <= 96 && strspn(s, NAME_LETTERS) >= n && s[0] != '.' && s[0] != '-' &&
           s[n - 1] != '.' && !memmem(s, n, "..", 2);
}

/* name or org/name. */
static bool is_hub_name(const char *name)
{
    const char *slash = strchr(name, '/');
    size_t n = strlen(name);
    if (!slash)
        return is_part(name, n) && !strstr(name, "--");
    size_t org = (size_t)(slash - name);
    return is_part(name, org) && is_part(slash + 1, n - org - 1) && !strstr(name, "--");
}

static bool hub_folder(char *path, size_t room)
{
    const char *hub = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *user = getenv("HOME");
    const char *cache = getenv("XDG_CACHE_HOME");
    int n;
    if (hub && *hub)
        n = snprintf(path, room, "%s", hub);
    else if (home && *home)
        n = snprintf(path, room, "%s/hub", home);
    else if (cache && *cache)
        n = snprintf(path, room, "%s/huggingface/hub", cache);
    else
        n = snprintf(path, room, "%s/.cache/huggingface/hub", user ? user : "");
    return n >= 0 && (size_t)n < room;
}

/* The commit that refs/main names. */
static qn_status read_commit(const char *folder, char commit[100], qn_error *err)
{
    char path[PATH_ROOM], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/refs/main", folder);
    qn_status status = qn__file_read(path, 4096, &text, &n, err);
    if (status != QN_OK)
        return status;
    n = strcspn(text, "\r\n");
    if (!is_part(text, n))
        status = qn__fail(err, QN_FORMAT, "%s: the commit is \"%.40s\", which is no commit", path, text);
    else
        snprintf(commit, 100, "%.*s", (int)n, text);
    free(text);
    return status;
}

static qn_status locate_in_hub(const char *name, char path[PATH_ROOM], qn_error *err)
{
    char hub[3000], folder[3500], commit[100];
    bool is_directory;
    qn_error missing = {0};
    const char *slash = strchr(name, '/');
    if (!hub_folder(hub, sizeof hub))
        return qn__fail(err, QN_LIMIT, "the path of the Hugging Face cache is too long");
    snprintf(folder, sizeof folder, "%s/models--%.*s%s%s", hub,
             slash ? (int)(slash - name) : (int)strlen(name), name, slash ? "--" : "",
             slash ? slash + 1 : "");
    if (qn__path_is_directory(folder, &is_directory, &missing) != QN_OK || !is_directory)
        return qn__fail(err, QN_NOT_FOUND,
                        "%s: no such directory, nor is it in the Hugging Face cache %s; to fetch it: hf "
                        "download %s",
                        name, hub, name);
    if (read_commit(folder, commit, &missing) != QN_OK)
        return qn__fail(err, missing.code, "%s; to fetch %s again: hf download %s", missing.message, name,
                        name);
    snprintf(path, PATH_ROOM, "%s/snapshots/%s", folder, commit);
    if (!has_config(path))
        return qn__fail(err, QN_NOT_FOUND, "%s: %s has no config.json; to fetch the model: hf download %s",
                        name, path, name);
    return QN_OK;
}

qn_status locate_model(const char *name, char path[PATH_ROOM], qn_error *err)
{
    struct stat info;
    if (!name && locate_built_in(path))
        return QN_OK;
    if (!name)
        return qn__fail(err, QN_NOT_FOUND, "the built-in model is not installed; give one with -m MODEL");
    if (strlen(name) >= PATH_ROOM)
        return qn__fail(err, QN_LIMIT, "the model's path has %zu bytes, at most %d are possible",
                        strlen(name), PATH_ROOM - 1);
    snprintf(path, PATH_ROOM, "%s", name);
    if (lstat(name, &info) == 0 || !*name || strchr("/.~", name[0]))
        return QN_OK; /* a path; what it lacks, loading says */
    if (!is_hub_name(name))
        return qn__fail(err, QN_NOT_FOUND,
                        "%.100s: no such directory, nor a model's name (org/name of letters, digits, and "
                        "single - _ . in between)",
                        name);
    return locate_in_hub(name, path, err);
}
