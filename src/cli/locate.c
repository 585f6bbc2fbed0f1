/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a model is: the built-in one beside the binary, a path (of a directory or a GGUF file), or
 * org/name in the Hugging Face cache, whose layout https://huggingface.co/docs/hub/local-cache
 * describes:
 *
 *     models--org--name/refs/main             the commit, as text; other branches and tags beside
 * it models--org--name/snapshots/COMMIT/     the files, as links
 *
 * org/name@REVISION takes a branch, a tag or a commit other than main. Names, revisions and commits
 * become parts of paths, so only what the hub itself allows in them passes.
 */
#include "base/error.h"
#include "base/file.h"
#include "base/gguf.h"
#include "base/recognize.h"
#include "cli/shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

static bool has_file(const char *directory, const char *name)
{
    char path[PATH_ROOM + 20];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

static bool has_config(const char *directory)
{
    return has_file(directory, "config.json");
}

/* Whether a directory stands for a GGUF file; where it has several, *err says so. */
static bool has_gguf(const char *directory, qn_error *err)
{
    char *file = NULL;
    qn__gguf_locate(directory, &file, err);
    bool found = file != NULL;
    free(file);
    return found;
}

/* A tokenizer alone is enough for quern tokenize. */
static bool has_tokenizer(const char *directory)
{
    return has_file(directory, "tokenizer.json") || has_file(directory, "tokenizer.model");
}

/* As it lies to the binary (of an installation, of a build tree), else where it was installed. */
static bool locate_built_in(char path[PATH_ROOM])
{
    static const char *const beside[] = {"../share/quern/models/demo", "../../models/demo"};
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
    snprintf(path, PATH_ROOM, "%s", QN_DEMO_INSTALLED);
    return has_config(path);
}

/* One part of a path that can lead nowhere else. */
static bool is_part(const char *s, size_t n)
{
    return n > 0 && n <= 96 && strspn(s, NAME_LETTERS) >= n && s[0] != '.' && s[0] != '-' &&
           s[n - 1] != '.' && !memmem(s, n, "..", 2);
}

/* What -m names in the hub's terms, taken apart. */
typedef struct hub_name {
    char repository[200]; /* name or org/name */
    char revision[100];
} hub_name;

/* name or org/name, with @REVISION or without. */
static bool parse_hub_name(const char *text, hub_name *out)
{
    size_t n = strcspn(text, "@");
    const char *slash = memchr(text, '/', n), *revision = text[n] ? text + n + 1 : "main";
    size_t org = slash ? (size_t)(slash - text) : 0;
    if (n >= sizeof out->repository || !is_part(revision, strlen(revision)))
        return false;
    snprintf(out->repository, sizeof out->repository, "%.*s", (int)n, text);
    snprintf(out->revision, sizeof out->revision, "%s", revision);
    if (strstr(out->repository, "--"))
        return false;
    return slash ? is_part(text, org) && is_part(slash + 1, n - org - 1) : is_part(text, n);
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

/* The commit that a branch or a tag names; without such a one the revision is a commit itself. */
static qn_status read_commit(const char *folder, const char *revision, char commit[100],
                             qn_error *err)
{
    char path[PATH_ROOM], *text;
    size_t n;
    bool is_directory;
    snprintf(path, sizeof path, "%s/snapshots/%s", folder, revision);
    if (qn__path_is_directory(path, &is_directory, NULL) == QN_OK && is_directory) {
        snprintf(commit, 100, "%s", revision);
        return QN_OK;
    }
    snprintf(path, sizeof path, "%s/refs/%s", folder, revision);
    qn_status status = qn__file_read(path, 4096, &text, &n, err);
    if (status != QN_OK)
        return status;
    n = strcspn(text, "\r\n");
    if (!is_part(text, n))
        status =
            qn__fail(err, QN_FORMAT, "%s: the commit is \"%.40s\", which is no commit", path, text);
    else
        snprintf(commit, 100, "%.*s", (int)n, text);
    free(text);
    return status;
}

static qn_status locate_in_hub(const hub_name *name, char path[PATH_ROOM], qn_error *err)
{
    char hub[3000], folder[3500], commit[100], fetch[400];
    bool is_directory, is_main = !strcmp(name->revision, "main");
    qn_error missing = {0};
    const char *slash = strchr(name->repository, '/');
    if (!hub_folder(hub, sizeof hub))
        return qn__fail(err, QN_LIMIT, "the path of the Hugging Face cache is too long");
    snprintf(fetch, sizeof fetch, "hf download %s%s%s", name->repository,
             is_main ? "" : " --revision ", is_main ? "" : name->revision);
    snprintf(folder, sizeof folder, "%s/models--%.*s%s%s", hub, (int)strcspn(name->repository, "/"),
             name->repository, slash ? "--" : "", slash ? slash + 1 : "");
    if (qn__path_is_directory(folder, &is_directory, &missing) != QN_OK || !is_directory)
        return qn__fail(
            err, QN_NOT_FOUND,
            "%s: no such directory, nor is it in the Hugging Face cache %s; to fetch it: %s",
            name->repository, hub, fetch);
    if (read_commit(folder, name->revision, commit, &missing) != QN_OK)
        return qn__fail(err, missing.code, "%s; to fetch it: %s", missing.message, fetch);
    snprintf(path, PATH_ROOM, "%s/snapshots/%s", folder, commit);
    if (!has_config(path) && !has_gguf(path, err)) {
        if (err->code != QN_OK)
            return err->code;
        char found[240];
        qn__recognize_directory(path, found, sizeof found);
        return qn__fail(err, QN_NOT_FOUND, "%s: %s has no config.json%s%s; to fetch the model: %s",
                        name->repository, path, found[0] ? "; " : "", found, fetch);
    }
    return QN_OK;
}

#define WHAT_M_TAKES                                                                               \
    "-m takes a model's directory, a GGUF file, or org/name of the Hugging Face cache"

/* A path that is given: what more it lacks, loading says. */
static qn_status check_path(const char *path, qn_error *err)
{
    struct stat info;
    char found[240];
    if (!*path)
        return qn__fail(err, QN_INVALID, "the model's path is empty; " WHAT_M_TAKES);
    if (stat(path, &info) != 0)
        return qn__fail(err, QN_NOT_FOUND, "%s: %s; " WHAT_M_TAKES, path, strerror(errno));
    if (S_ISDIR(info.st_mode) && access(path, R_OK | X_OK) != 0 && errno == EACCES)
        return qn__fail(err, QN_IO, "%s: this user has no permission to read the directory", path);
    if (S_ISDIR(info.st_mode) && !has_config(path) && !has_gguf(path, err) &&
        !has_tokenizer(path)) {
        if (err->code != QN_OK)
            return err->code;
        qn__recognize_directory(path, found, sizeof found);
        return found[0]
                   ? qn__fail(err, QN_NOT_FOUND, "%s/config.json: no such file; %s", path, found)
                   : qn__fail(err, QN_NOT_FOUND, "%s/config.json: no such file; " WHAT_M_TAKES,
                              path);
    }
    return QN_OK;
}

bool expand_home(const char *path, char out[PATH_ROOM])
{
    const char *home = getenv("HOME");
    bool at_home = path[0] == '~' && (path[1] == '/' || !path[1]) && home;
    int n = snprintf(out, PATH_ROOM, "%s%s", at_home ? home : "", at_home ? path + 1 : path);
    return n >= 0 && n < PATH_ROOM;
}

qn_status locate_model(const char *name, char path[PATH_ROOM], qn_error *err)
{
    struct stat info;
    hub_name hub;
    if (!name && locate_built_in(path))
        return QN_OK;
    if (!name)
        return qn__fail(err, QN_NOT_FOUND,
                        "the built-in model is not installed; give one with -m MODEL");
    if (!expand_home(name, path))
        return qn__fail(err, QN_LIMIT, "the model's path has %zu bytes, at most %d are possible",
                        strlen(name), PATH_ROOM - 1);
    if (lstat(path, &info) == 0 || !*path || strchr("/.~", path[0]))
        return check_path(path, err);
    if (!parse_hub_name(name, &hub))
        return qn__fail(
            err, QN_NOT_FOUND,
            "%.100s: no such directory, nor a model's name (org/name of letters, digits, and "
            "single - _ . in between)",
            name);
    return locate_in_hub(&hub, path, err);
}
