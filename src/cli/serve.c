/* SPDX-License-Identifier: Apache-2.0
 *
 * quern serve: a model for other programs, over HTTP; serve_stdio.c has the other way. It listens
 * before the model is loaded, so that who looks at /health sees it come; SIGTERM and Ctrl-C let
 * what was begun end, a second one does not. Nothing is printed on standard output.
 */
#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/shared.h"

#include "cli/serve_stdio.h"

#ifndef QN_MICROHTTPD

int command_serve(arguments *a)
{
    if (a->stdio)
        return serve_stdio(a);
    fprintf(stderr, "quern serve: quern was built without libmicrohttpd, which HTTP needs; --stdio "
                    "goes without\n");
    return 1;
}

#else

#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LONGEST_KEY = 255, LARGEST_KEY_FILE = 64 << 10, DRAIN_SECONDS = 30, LONGEST_NAME = 255 };

/* ---- signals --------------------------------------------------------------------------------- */

static int stop_pipe[2] = {-1, -1};

/* The first asks for an end, the second is one. */
static void on_stop(int number)
{
    int saved = errno;
    if (atomic_exchange(&interrupted, true)) {
        signal(number, SIG_DFL);
        raise(number);
    } else if (write(stop_pipe[1], "", 1) < 0)
        errno = saved;
    errno = saved;
}

static bool catch_stops(void)
{
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return false;
    signal(SIGPIPE, SIG_IGN);
    return sigaction(SIGINT, &action, NULL) == 0 && sigaction(SIGTERM, &action, NULL) == 0;
}

static void wait_for_stop(void)
{
    struct pollfd p = {.fd = stop_pipe[0], .events = POLLIN};
    while (!atomic_load(&interrupted))
        poll(&p, 1, -1);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static qn_status check_keys(const words *keys, qn_error *err)
{
    for (size_t i = 0; i < keys->n; i++) {
        const char *key = keys->word[i];
        size_t n = strlen(key);
        bool fits = n > 0 && n <= LONGEST_KEY;
        for (size_t k = 0; k < n; k++)
            fits = fits && key[k] > ' ' && key[k] < 0x7f;
        if (!fits)
            return qn__fail(err, QN_INVALID, "key %zu is not 1 to %d visible ASCII characters",
                            i + 1, LONGEST_KEY);
    }
    return QN_OK;
}

static qn_status add_key(words *keys, const char *key, qn_error *err)
{
    if (keys->n == MOST_WORDS)
        return qn__fail(err, QN_LIMIT, "more than %d keys", MOST_WORDS);
    keys->word[keys->n++] = key;
    return QN_OK;
}

/* Those of the command line, of the file, whose text must stay, and of the environment. */
static qn_status gather_keys(arguments *a, char **file, qn_error *err)
{
    const char *more = getenv("QUERN_API_KEY");
    size_t size;
    if (more && *more && add_key(&a->keys, more, err) != QN_OK)
        return err->code;
    if (!a->key_file)
        return check_keys(&a->keys, err);
    if (qn__file_read(a->key_file, LARGEST_KEY_FILE, file, &size, err) != QN_OK)
        return err->code;
    size_t before = a->keys.n;
    char *rest;
    for (char *line = strtok_r(*file, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest))
        if (add_key(&a->keys, line, err) != QN_OK)
            return err->code;
    if (a->keys.n == before)
        return qn__fail(err, QN_FORMAT, "%s: there is no key in it", a->key_file);
    return check_keys(&a->keys, err);
}

/* ---- the run --------------------------------------------------------------------------------- */

static void log_request(void *user, qn_log_level level, const char *line)
{
    char stamp[32];
    time_t now = time(NULL);
    struct tm utc;
    (void)user;
    (void)level;
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    fprintf(stderr, "%s %s\n", stamp, line);
}

/* What clients call the model: --alias, org/name as it was given, else a path's last part. */
static const char *model_name(const arguments *a)
{
    static char name[LONGEST_NAME + 1];
    const char *given = a->alias ? a->alias : a->model ? a->model : "demo";
    snprintf(name, sizeof name, "%s", given);
    size_t n = strlen(name);
    while (n > 1 && name[n - 1] == '/')
        name[--n] = 0;
    const char *slash = strrchr(name, '/');
    bool path =
        strchr("/.~", name[0]) || strstr(name, ".gguf") || (slash && strchr(name, '/') != slash);
    return !a->alias && path && slash ? slash + 1 : name;
}

/* A connection is a file descriptor, of which there may be more than programs usually have. */
static void allow_connections(void)
{
    struct rlimit limit;
    const rlim_t wanted = 4096 + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int run_server(qn__server *server, const char *name, const arguments *a, loaded *l)
{
    qn_error err = {0};
    qn_engine_options engine = {.size = sizeof engine,
                                .context = a->context > 0 ? a->context : 0,
                                .parallel = a->parallel > 0 ? (int)a->parallel : 0};
    qn_session_options one = {.size = sizeof one, .context = engine.context};
    cache_types types;
    int code = open_loaded(l, a, false);
    if (code)
        return code;
    if (cache_types_of(a, &types, &err) != QN_OK)
        return failed(&err);
    engine.cache_type_k = one.cache_type_k = types.k;
    engine.cache_type_v = one.cache_type_v = types.v;
    engine.draft = l->draft;
    if ((a->context > 0 && check_cache(l->device, l->model, &one, &err) != QN_OK) ||
        qn__server_serve(server, l->device, l->model, l->path, &engine, &err) != QN_OK)
        return failed(&err);
    bool asked = a->device || a->gpu_layers >= 0; /* "auto" may have found one thing or another */
    fprintf(stderr, "quern: %s%s%s at %s\n", name, asked ? " on " : "",
            asked ? qn_device_name(l->device) : "", qn__server_url(server));
    wait_for_stop();
    if (!qn__server_drain(server, 0))
        note("stopping: waiting %d s at most for what was begun; again to stop at once",
             DRAIN_SECONDS);
    qn__server_drain(server, DRAIN_SECONDS);
    return 0;
}

int command_serve(arguments *a)
{
    qn_error err = {0};
    char *key_text = NULL;
    qn__server *server = NULL;
    loaded l = {0};
    int code = 0;
    if (a->stdio)
        return serve_stdio(a);
    if (!catch_stops())
        qn__fail(&err, QN_IO, "signals cannot be caught: %s", strerror(errno));
    if (a->alias && (!*a->alias || strlen(a->alias) > LONGEST_NAME))
        qn__fail(&err, QN_INVALID, "--alias: a name has 1 to %d bytes", LONGEST_NAME);
    if (err.code == QN_OK)
        gather_keys(a, &key_text, &err);
    allow_connections();
    qn__server_options options = {.host = a->host ? a->host : "127.0.0.1",
                                  .port = a->port >= 0 ? (int)a->port : 8080,
                                  .name = model_name(a),
                                  .keys = a->keys.word,
                                  .n_keys = a->keys.n,
                                  .hosts = a->hosts.word,
                                  .n_hosts = a->hosts.n,
                                  .origins = a->origins.word,
                                  .n_origins = a->origins.n,
                                  .insecure = a->insecure,
                                  .prompt_lookup = lookup_of(a),
                                  .draft_tokens = draft_tokens_of(a),
                                  .log = log_request};
    if (err.code != QN_OK || qn__server_open(&server, &options, &err) != QN_OK)
        code = failed(&err);
    else
        code = run_server(server, options.name, a, &l);
    qn__server_close(server);
    close_loaded(&l);
    free(key_text);
    return code;
}

#endif
