/* SPDX-License-Identifier: Apache-2.0
 *
 * quern serve --stdio: a model for the program that started it, by JSON Lines on standard input and
 * output. The commands are those of go-mlx's bridge to mlx-lm: load, generate, chat, info, cancel,
 * quit.
 *
 * Approach: one thread reads lines and hears `cancel` at once; the main thread runs what they ask
 * for, one after the other, and writes. A cancel ends the reply that runs and those that wait;
 * where there are none it is answered itself, with "idle". Lines that wait are few: a reader that
 * is ahead waits, too.
 */
#include "cli/serve_stdio.h"
#include "base/buffers.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "cli/lines.h"
#include "cli/shared.h"
#include "request/settings.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_WAITING = 8 };

/* A line. */
typedef struct asked_line {
    cJSON *tree;
    qn_error error; /* it cannot be read */
    uint64_t number;
    bool cancelled;
    bool answered; /* all but: it is too late to cancel it */
} asked_line;

typedef struct stdio_server {
    const arguments *arguments;
    qn_device *device;
    qn_backend *backend; /* NULL: no model is loaded */
    qn_text out;
    text_lines in; /* the reader's */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    asked_line lines[MOST_WAITING]; /* a ring; the first is the one that runs */
    size_t first, n;
    bool ended; /* no more will come */
    qn_flag cancel;
} stdio_server;

/* ---- answers --------------------------------------------------------------------------------- */

/* Who started us has gone, or cannot be told. The reader may wait for ever, so nothing waits for
 * it. */
static _Noreturn void leave(void)
{
    if (errno == EPIPE)
        _exit(0);
    fprintf(stderr, "quern: standard output cannot be written: %s\n", strerror(errno));
    _exit(1);
}

static void say_line(stdio_server *s)
{
    size_t done = 0;
    while (done < s->out.n) {
        ssize_t n = write(STDOUT_FILENO, s->out.data + done, s->out.n - done);
        if (n < 0 && errno != EINTR)
            leave();
        done += n > 0 ? (size_t)n : 0;
    }
    s->out.n = 0;
}

static void put(stdio_server *s, const char *text, size_t n)
{
    if (!qn__text_append(&s->out, text, n)) {
        errno = ENOMEM;
        leave();
    }
}

static void put_text(stdio_server *s, const char *before, const char *text, size_t n)
{
    put(s, before, strlen(before));
    if (!qn__text_append_json(&s->out, text, n)) {
        errno = ENOMEM;
        leave();
    }
}

static void say_format(stdio_server *s, const char *format, ...) QN_PRINTF(2, 3);
static void say_format(stdio_server *s, const char *format, ...)
{
    char text[200];
    va_list args;
    va_start(args, format);
    put(s, text, (size_t)vsnprintf(text, sizeof text, format, args));
    va_end(args);
    say_line(s);
}

/* Before a line's last answer: whoever has read that finds nothing to cancel. */
static void close_line(stdio_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->lines[s->first].answered = true;
    pthread_mutex_unlock(&s->lock);
}

static void say_error(stdio_server *s, const qn_error *err)
{
    close_line(s);
    size_t n = strlen(err->message), whole = qn__utf8_check(err->message, n);
    put_text(s, "{\"error\":", err->message, whole < n ? whole : n); /* one may be cut off */
    say_format(s, "}\n");
}

static bool say_token(void *user, int32_t id, const char *text, size_t n)
{
    stdio_server *s = user;
    put_text(s, "{\"token\":", text, n);
    say_format(s, ",\"token_id\":%d}\n", id);
    return true;
}

static void say_done(stdio_server *s, const char *finish)
{
    close_line(s);
    say_format(s, "{\"done\":true,\"finish\":\"%s\"}\n", finish);
}

/* ---- commands -------------------------------------------------------------------------------- */

/* What a line may say beside settings. */
typedef struct said_fields {
    const char *path, *prompt;
    qn__json_at messages;
} said_fields;

static const qn__field cmd_field = {"cmd", qn__take_ignored, 0, 0, 0};

static qn_status open_backend(stdio_server *s, const char *name, qn_error *err)
{
    const arguments *a = s->arguments;
    char path[PATH_ROOM];
    cache_types types;
    qn_model_options model = QN_INIT(qn_model_options);
    qn_session_options session = {.size = sizeof session,
                                  .context = a->context > 0 ? a->context : 0};
    qn_device_options device = device_options_of(a);
    qn_backend_options options = {
        .size = sizeof options, .cancel = &s->cancel, .model = &model, .session = &session};
    qn_backend_close(s->backend);
    s->backend = NULL;
    if (products_of(a->products, &model.products, err) != QN_OK ||
        cache_types_of(a, &types, err) != QN_OK || locate_model(name, path, err) != QN_OK)
        return err->code;
    model.batch_invariant = a->batch_invariant;
    session.cache_type_k = types.k;
    session.cache_type_v = types.v;
    do {
        options.device = s->device;
        qn_backend_open(&s->backend, "native", path, &options, err);
    } while (turn_to_cpu(&s->device, a, &device, err));
    return err->code;
}

static qn_status need_model(const stdio_server *s, qn_backend_info *info, qn_error *err)
{
    *info = QN_INIT(qn_backend_info);
    return s->backend ? qn_backend_get_info(s->backend, info)
                      : qn__fail(err, QN_STATE, "no model is loaded; load one before");
}

static qn_status answer_load(stdio_server *s, const qn__json_at *line, qn_error *err)
{
    static const qn__field fields[] = {
        {"cmd", qn__take_ignored, 0, 0, 0},
        {"path", qn__take_text, offsetof(said_fields, path), 0, 0},
    };
    said_fields said = {.path = NULL};
    const qn__fields table = {fields, 2, &said};
    qn_backend_info info;
    if (qn__fields_read(line, &table, 1, err) != QN_OK)
        return err->code;
    if (!said.path)
        return qn__json_fail(line, QN_INVALID, err, "path: missing");
    if (open_backend(s, said.path, err) != QN_OK || need_model(s, &info, err) != QN_OK)
        return err->code;
    say_format(s, "{\"ok\":true,\"model_type\":\"%s\",\"vocab_size\":%lld}\n", info.model_type,
               (long long)info.vocab_size);
    return QN_OK;
}

static qn_status answer_info(stdio_server *s, const qn__json_at *line, qn_error *err)
{
    const qn__fields table = {&cmd_field, 1, NULL};
    qn_backend_info info;
    if (qn__fields_read(line, &table, 1, err) != QN_OK || need_model(s, &info, err) != QN_OK)
        return err->code;
    say_format(s,
               "{\"model_type\":\"%s\",\"vocab_size\":%lld,\"layers\":%lld,\"hidden_size\":%lld}\n",
               info.model_type, (long long)info.vocab_size, (long long)info.n_layers,
               (long long)info.hidden_size);
    return QN_OK;
}

/* Texts of the tree, in an array to be freed. */
static qn_status read_messages(const qn__json_at *list, qn_chat_message **out, size_t *n,
                               qn_error *err)
{
    static const qn__field fields[] = {
        {"role", qn__take_text, offsetof(qn_chat_message, role), 0, 0},
        {"content", qn__take_text, offsetof(qn_chat_message, content), 0, 0},
    };
    qn__json_at item;
    *n = 0;
    if (!cJSON_IsArray(list->node) || !qn__json_first(list, &item))
        return qn__json_fail(list, QN_FORMAT, err, "expected an array of messages");
    *out = calloc((size_t)cJSON_GetArraySize(list->node), sizeof **out);
    if (!*out)
        return qn__fail_memory(err, "a chat");
    do {
        qn_chat_message *m = &(*out)[(*n)++];
        const qn__fields table = {fields, 2, m};
        if (qn__fields_read(&item, &table, 1, err) != QN_OK)
            return err->code;
        if (!m->role || !m->content)
            return qn__json_fail(&item, QN_INVALID, err, "a message has role and content");
    } while (qn__json_next(&item));
    return QN_OK;
}

static qn_status make_reply(stdio_server *s, const qn__settings *settings, const said_fields *said,
                            qn_error *err)
{
    qn_sampling sampling = *qn_backend_sampling(s->backend);
    qn_generation_options options = QN_INIT(qn_generation_options);
    qn_chat_message *messages = NULL;
    size_t n = 0;
    sampling.seed = qn__hash_seed();
    qn__settings_apply(settings, &sampling, &options);
    if (said->prompt)
        qn_backend_generate(s->backend, said->prompt, strlen(said->prompt), &options, say_token, s,
                            err);
    else if (read_messages(&said->messages, &messages, &n, err) == QN_OK)
        qn_backend_chat(s->backend, messages, n, &options, say_token, s, err);
    free(messages);
    return err->code;
}

static qn_status answer_asked(stdio_server *s, const qn__json_at *line, bool chat, qn_error *err)
{
    const qn__field fields[] = {
        cmd_field,
        chat ? (qn__field){"messages", qn__take_value, offsetof(said_fields, messages), 0, 0}
             : (qn__field){"prompt", qn__take_text, offsetof(said_fields, prompt), 0, 0},
    };
    said_fields said = {.path = NULL};
    const qn__fields table = {fields, 2, &said};
    qn__settings settings = qn__settings_begin();
    qn_backend_info info;
    qn_metrics metrics = QN_INIT(qn_metrics);
    if (need_model(s, &info, err) != QN_OK)
        return err->code;
    settings.vocab_size = info.vocab_size;
    if (qn__settings_read(&settings, line, &table, 1, err) == QN_OK && !said.prompt &&
        !said.messages.node)
        qn__json_fail(line, QN_INVALID, err, "%s: missing", chat ? "messages" : "prompt");
    if (err->code == QN_OK)
        make_reply(s, &settings, &said, err);
    qn__settings_free(&settings);
    qn_backend_get_metrics(s->backend, &metrics);
    if (err->code == QN_OK || err->code == QN_CANCELLED)
        say_done(s, err->code == QN_CANCELLED          ? "cancelled"
                    : metrics.finish == QN_FINISH_STOP ? "stop"
                                                       : "length");
    return err->code;
}

static qn_status answer_generate(stdio_server *s, const qn__json_at *line, qn_error *err)
{
    return answer_asked(s, line, false, err);
}

static qn_status answer_chat(stdio_server *s, const qn__json_at *line, qn_error *err)
{
    return answer_asked(s, line, true, err);
}

/* That no reply runs has been seen when it was read. */
static qn_status answer_cancel(stdio_server *s, const qn__json_at *line, qn_error *err)
{
    const qn__fields table = {&cmd_field, 1, NULL};
    if (qn__fields_read(line, &table, 1, err) == QN_OK)
        say_done(s, "idle");
    return err->code;
}

typedef struct stdio_command {
    const char *name;
    qn_status (*run)(stdio_server *s, const qn__json_at *line, qn_error *err); /* NULL: quit */
} stdio_command;

static const stdio_command stdio_commands[] = {
    {"load", answer_load}, {"generate", answer_generate}, {"chat", answer_chat},
    {"info", answer_info}, {"cancel", answer_cancel},     {"quit", NULL},
};

enum { N_STDIO_COMMANDS = sizeof stdio_commands / sizeof *stdio_commands };

static const stdio_command *command_of(const qn__json_at *line, qn_error *err)
{
    const char *name;
    char quoted[64];
    if (!cJSON_IsObject(line->node)) {
        qn__json_fail(line, QN_FORMAT, err, "expected an object with cmd");
        return NULL;
    }
    if (qn__json_get_string(line, "cmd", &name, err) != QN_OK)
        return NULL;
    for (size_t i = 0; i < N_STDIO_COMMANDS; i++)
        if (!strcmp(name, stdio_commands[i].name))
            return &stdio_commands[i];
    qn__json_fail(line, QN_UNSUPPORTED, err,
                  "there is no cmd \"%s\"; there are load, generate, chat, info, cancel, quit",
                  qn__utf8_quote(quoted, sizeof quoted, name, strlen(name)));
    return NULL;
}

static bool is_command(const asked_line *line, const char *name)
{
    const cJSON *cmd = line->tree ? cJSON_GetObjectItemCaseSensitive(line->tree, "cmd") : NULL;
    return cJSON_IsString(cmd) && !strcmp(cmd->valuestring, name);
}

/* ---- the reader ------------------------------------------------------------------------------ */

/* Whether there was something to cancel; under the lock. */
static bool cancel_replies(stdio_server *s)
{
    bool any = false;
    for (size_t i = 0; i < s->n; i++) {
        asked_line *l = &s->lines[(s->first + i) % MOST_WAITING];
        if (l->answered || (!is_command(l, "generate") && !is_command(l, "chat")))
            continue;
        any = l->cancelled = true;
        if (i == 0)
            atomic_store(&s->cancel, true);
    }
    return any;
}

static void take_line(stdio_server *s, asked_line *line)
{
    pthread_mutex_lock(&s->lock);
    bool quits = is_command(line, "quit"), done = false;
    if (quits || is_command(line, "cancel"))
        done = cancel_replies(s) && !quits;
    while (s->n == MOST_WAITING && !done)
        pthread_cond_wait(&s->changed, &s->lock);
    if (done)
        cJSON_Delete(line->tree);
    else
        s->lines[(s->first + s->n++) % MOST_WAITING] = *line;
    s->ended = quits;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *read_lines(void *user)
{
    stdio_server *s = user;
    bool more = true;
    while (more && !s->ended) {
        asked_line line = {.tree = NULL};
        lines_next(&s->in, &more, &line.error);
        if (!more || (line.error.code != QN_OK && line.error.code != QN_LIMIT))
            break;
        char name[40];
        line.number = s->in.number;
        snprintf(name, sizeof name, "line %llu", (unsigned long long)line.number);
        if (line.error.code == QN_OK)
            qn__json_parse(&line.tree, name, s->in.line.data, s->in.line.n, &line.error);
        take_line(s, &line);
    }
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* The next line, which stays the first while it runs; NULL: there will be none. */
static const asked_line *next_line(stdio_server *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->n && !s->ended)
        pthread_cond_wait(&s->changed, &s->lock);
    const asked_line *line = s->n ? &s->lines[s->first] : NULL;
    atomic_store(&s->cancel, line && line->cancelled);
    pthread_mutex_unlock(&s->lock);
    return line;
}

static void drop_line(stdio_server *s)
{
    pthread_mutex_lock(&s->lock);
    cJSON_Delete(s->lines[s->first].tree);
    s->first = (s->first + 1) % MOST_WAITING;
    s->n--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* False: it was quit. */
static bool run_line(stdio_server *s, const asked_line *line)
{
    char name[40];
    qn_error err = line->error;
    snprintf(name, sizeof name, "line %llu", (unsigned long long)line->number);
    qn__json_at at = qn__json_root(name, line->tree);
    const stdio_command *c = err.code == QN_OK ? command_of(&at, &err) : NULL;
    if (c && !c->run)
        return false;
    if (c)
        c->run(s, &at, &err);
    if (err.code != QN_OK && err.code != QN_CANCELLED) /* that has been said */
        say_error(s, &err);
    return true;
}

static void run_stdio(stdio_server *s)
{
    const asked_line *line;
    bool goes_on = true;
    while (goes_on && (line = next_line(s))) {
        goes_on = run_line(s, line);
        drop_line(s);
    }
}

/* An option that is given, but is not for --stdio; NULL: there is none. */
static const option *foreign_to_stdio(const arguments *a)
{
    size_t at = 0;
    for (const option *o; (o = options_next(OF_HTTP, &at));)
        if (o->of & OF_SERVE && options_given(o, a))
            return o;
    return NULL;
}

int serve_stdio(const arguments *a)
{
    static stdio_server s; /* large, and the reader's */
    qn_error err = {0};
    pthread_t reader;
    const option *wrong = foreign_to_stdio(a);
    if (wrong) {
        fprintf(stderr, "quern serve: --%s is for HTTP, it does not go with --stdio\n",
                wrong->name);
        return 2;
    }
    s.arguments = a;
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.changed, NULL);
    if (open_device(&s.device, a, &err) == QN_OK &&
        (!a->model || !open_backend(&s, a->model, &err)) && lines_open(&s.in, "-", &err) == QN_OK &&
        pthread_create(&reader, NULL, read_lines, &s) != 0)
        qn__fail_memory(&err, "a thread");
    if (err.code == QN_OK) {
        pthread_detach(reader); /* it has read its last line when that is run; see leave */
        run_stdio(&s);
    }
    lines_close(&s.in);
    qn_backend_close(s.backend);
    qn_device_close(s.device);
    qn_text_free(&s.out);
    return err.code == QN_OK ? 0 : failed(&err);
}
