/* SPDX-License-Identifier: Apache-2.0
 *
 * What several commands need.
 */
#include "cli/shared.h"
#include "base/buffers.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int failed(const qn_error *err)
{
    fprintf(stderr, "%squern:%s %s\n", colour_code(stderr, COLOUR_RED),
            colour_code(stderr, COLOUR_NONE), err->message);
    return err->code == QN_CANCELLED ? 130 : 1;
}

/* ---- colour
 * ------------------------------------------------------------------------------------------------
 */

static bool has_colours(FILE *to)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return !(none && *none) && term && *term && strcmp(term, "dumb") && isatty(fileno(to));
}

const char *colour_code(FILE *to, colour c)
{
    static const char *const codes[] = {[COLOUR_NONE] = "\x1b[0m",
                                        [COLOUR_BOLD] = "\x1b[1m",
                                        [COLOUR_DIM] = "\x1b[2m",
                                        [COLOUR_RED] = "\x1b[31m",
                                        [COLOUR_GREEN] = "\x1b[32m"};
    return has_colours(to) ? codes[c] : "";
}

void note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s(", colour_code(stderr, COLOUR_DIM));
    vfprintf(stderr, format, args);
    fprintf(stderr, ")%s\n", colour_code(stderr, COLOUR_NONE));
    va_end(args);
}

/* ---- Ctrl-C
 * ------------------------------------------------------------------------------------------------
 */

/* The one signal that is ours: Ctrl-C asks the evaluation to stop. */
atomic_bool interrupted;

/* Wakes wait_for_input, whichever thread got the signal and however short before the wait. */
static int wake[2] = {-1, -1};

void wake_input(void)
{
    int saved = errno;
    if (write(wake[1], "", 1) < 0)
        errno = saved; /* full: it will wake anyway */
}

bool wait_for_input(void)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = wake[0], .events = POLLIN}};
    char woken[64];
    while (!atomic_load(&interrupted)) {
        fds[0].revents = fds[1].revents = 0;
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return true; /* the read will say what is wrong */
        if (fds[1].revents && read(wake[0], woken, sizeof woken) > 0)
            return false;
        if (fds[0].revents)
            return true;
    }
    return false;
}

static void on_interrupt(int number)
{
    (void)number;
    atomic_store(&interrupted, true);
    wake_input();
}

static void on_interrupt_insist(int number)
{
    if (atomic_exchange(&interrupted, true)) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

void catch_interrupts(bool insist)
{
    struct sigaction action = {.sa_handler = insist ? on_interrupt_insist : on_interrupt};
    sigemptyset(&action.sa_mask); /* no SA_RESTART: reading a prompt ends */
    /* Where standard input is closed the pipe would take its place. */
    if (!insist && wake[0] < 0 && fcntl(STDIN_FILENO, F_GETFD) >= 0 &&
        pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
        wake[0] = wake[1] = -1; /* then a signal may be seen only with the next key */
    sigaction(SIGINT, &action, NULL);
}

/* ---- models
 * ------------------------------------------------------------------------------------------------
 */

static bool show_load(void *user, uint64_t done, uint64_t total)
{
    int *shown = user;
    int percent = total ? (int)(100 * done / total) : 100;
    if (percent != *shown && total > (200u << 20) && isatty(STDERR_FILENO))
        fprintf(stderr, "\rloading %3d %%%s", *shown = percent, percent == 100 ? "\r\033[K" : "");
    return !atomic_load(&interrupted);
}

/* Warnings always, the rest with --verbose. */
static void log_line(void *user, qn_log_level level, const char *line)
{
    const arguments *a = user;
    if (level >= QN_LOG_WARN)
        fprintf(stderr, "quern: warning: %s\n", line);
    else if (a->verbose)
        fprintf(stderr, "%s\n", line);
}

qn_status products_of(const char *text, qn_products *out, qn_error *err)
{
    bool exact = text && !strcmp(text, "f32");
    *out = exact ? QN_PRODUCTS_F32 : QN_PRODUCTS_AUTO;
    if (text && !exact && strcmp(text, "auto") != 0)
        return qn__fail(err, QN_INVALID, "--products: it is auto or f32, not \"%.40s\"", text);
    return QN_OK;
}

static qn_status open_draft(loaded *l, const char *name, const qn_model_options *options,
                            qn_error *err)
{
    char path[PATH_ROOM];
    qn_model_options o = *options;
    o.n_adapters = 0;
    return locate_model(name, path, err) != QN_OK
               ? err->code
               : qn_model_open(&l->draft, l->device, path, &o, err);
}

qn_device_options device_options_of(const arguments *a)
{
    return (qn_device_options){.size = sizeof(qn_device_options),
                               .threads = a->threads > 0 ? (int)a->threads : 0,
                               .memory_limit = a->memory_limit > 0 ? (size_t)a->memory_limit : 0,
                               .wired_limit = a->wired_limit > 0 ? (size_t)a->wired_limit : 0,
                               .log = log_line,
                               .log_user = (void *)a};
}

qn_status open_device(qn_device **out, const arguments *a, qn_error *err)
{
    qn_device_options options = device_options_of(a);
    const char *name;
    return device_of(a, &name, err) == QN_OK ? qn_device_open(out, name, &options, err) : err->code;
}

static qn_status open_models(loaded *l, const arguments *a, const qn_model_options *options,
                             qn_error *err)
{
    qn_model_open(&l->model, l->device, l->path, options, err);
    if (err->code == QN_OK && a->draft_model &&
        open_draft(l, a->draft_model, options, err) != QN_OK) {
        qn_model_close(l->model);
        l->model = NULL;
    }
    return err->code;
}

int open_loaded(loaded *l, const arguments *a, bool describe)
{
    qn_error err = {0};
    qn_device_options device = device_options_of(a);
    l->device = NULL;
    l->model = l->draft = NULL;
    qn_products products;
    qn_adapter adapters[MOST_WORDS + 1] = {{0}};
    if (products_of(a->products, &products, &err) != QN_OK)
        return failed(&err);
    int shown = -1;
    qn_model_options options = {.size = sizeof options,
                                .progress = show_load,
                                .progress_user = &shown,
                                .no_weights = describe,
                                .products = products,
                                .batch_invariant = a->batch_invariant,
                                .no_tokenizer = describe,
                                .adapters = adapters,
                                .n_adapters = a->adapters.n};
    for (size_t i = 0; i < a->adapters.n; i++)
        adapters[i].path = a->adapters.word[i];
    if (a->adapter)
        adapters[options.n_adapters++].path = a->adapter;
    double begun = qn__seconds();
    if (locate_model(a->model, l->path, &err) != QN_OK || open_device(&l->device, a, &err) != QN_OK)
        return failed(&err);
    do
        open_models(l, a, &options, &err);
    while (turn_to_cpu(&l->device, a, &device, &err));
    if (err.code != QN_OK)
        return failed(&err);
    l->seconds = qn__seconds() - begun;
    warn_of_layers(a, l->device, l->model);
    return 0;
}

void close_loaded(loaded *l)
{
    qn_model_close(l->draft);
    qn_model_close(l->model);
    qn_device_close(l->device);
}

enum {
    KEPT_TOKENS = 4, /* models lean on the first ones (arXiv:2309.17453); mlx-lm keeps as many */
    DRAFT_TOKENS = 8
};

/* The cache grows as tokens come: what a model could hold by default need not fit, but what is
 * asked for must. */
qn_status check_cache(qn_device *device, const qn_model *model, const qn_session_options *options,
                      qn_error *err)
{
    uint64_t bytes = qn_model_cache_bytes(model, options);
    qn_memory_stats m = QN_INIT(qn_memory_stats);
    qn_device_memory(device, &m);
    uint64_t there = m.available ? m.available : available_memory();
    uint64_t left = m.limit > m.active ? m.limit - m.active : 0; /* of --memory-limit */
    there = m.limit && left < there ? left : there;
    int64_t context = options->context;
    if (bytes <= there)
        return QN_OK;
    int64_t fits = (int64_t)((double)context * ((double)there / (double)bytes));
    qn__size_text wanted, room;
    return qn__fail(
        err, QN_LIMIT,
        "--context %lld: its keys and values need %s, and %s of memory are there; about "
        "%lld positions fit",
        (long long)context, qn__say_size(bytes, &wanted), qn__say_size(there, &room),
        (long long)fits);
}

qn_status cache_types_of(const arguments *a, cache_types *out, qn_error *err)
{
    *out = (cache_types){.k = a->cache_type_k, .v = a->cache_type_v};
    if (a->kv_group_size > 0 && a->kv_bits < 0)
        return qn__fail(err, QN_INVALID, "--kv-group-size goes with --kv-bits");
    if (a->kv_bits < 0)
        return QN_OK;
    if (out->k || out->v)
        return qn__fail(err, QN_INVALID, "--kv-bits and --cache-type-k or -v exclude each other");
    snprintf(out->name, sizeof out->name, "affine%lld-g%lld-bf16", (long long)a->kv_bits,
             (long long)(a->kv_group_size > 0 ? a->kv_group_size : 64));
    out->k = out->v = out->name;
    return QN_OK;
}

qn_status open_session(qn_session **out, const arguments *a, const loaded *l, qn_error *err)
{
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(l->model, &info);
    int64_t context = a->context > 0 ? a->context : info.max_positions;
    qn_session_options options = {.size = sizeof options,
                                  .context = context,
                                  .cancel = &interrupted,
                                  .progress = isatty(STDERR_FILENO) ? show_prefill : NULL,
                                  .rotate = a->rotate,
                                  .draft = l->draft};
    cache_types types;
    if (cache_types_of(a, &types, err) != QN_OK)
        return err->code;
    options.cache_type_k = types.k;
    options.cache_type_v = types.v;
    if (a->context > 0 && check_cache(l->device, l->model, &options, err) != QN_OK)
        return err->code;
    if (a->rotate)
        options.keep = context > KEPT_TOKENS ? KEPT_TOKENS : context - 1;
    return qn_session_open(out, l->model, &options, err);
}

int32_t lookup_of(const arguments *a)
{
    return a->prompt_lookup > 0 ? (int32_t)a->prompt_lookup : 0;
}

int32_t draft_tokens_of(const arguments *a)
{
    int32_t n = a->draft_model ? DRAFT_TOKENS : 0;
    return a->draft_tokens >= 0 ? (int32_t)a->draft_tokens : n;
}

qn_generation_options generation_of(const arguments *a, const qn_model *model,
                                    qn_sampling *sampling)
{
    qn_generation_defaults defaults = QN_INIT(qn_generation_defaults);
    qn_generation_options options = QN_INIT(qn_generation_options);
    qn_model_get_defaults(model, &defaults);
    *sampling = *defaults.sampling;
    sampling->seed = qn__hash_seed();
    qn__settings_apply(&a->settings, sampling, &options);
    options.prompt_lookup = lookup_of(a);
    options.draft_tokens = draft_tokens_of(a);
    return options;
}

/* ---- input and output
 * -------------------------------------------------------------------------------------- */

bool input_is_piped(void)
{
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode));
}

/* Says what it waits for where nothing comes and someone is there to read it. */
static void note_waiting(void)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (isatty(STDERR_FILENO) && input_is_piped() && poll(&in, 1, 2000) == 0)
        fprintf(stderr, "reading standard input up to its end ... (</dev/null gives none)\n");
}

static qn_status read_standard_input(char **out, size_t *size, qn_error *err)
{
    qn_text text = {0};
    char piece[1 << 16];
    ssize_t n;
    bool ok = qn__text_append(&text, "", 0);
    note_waiting();
    while (ok && (n = read(STDIN_FILENO, piece, sizeof piece)) != 0) {
        if (n < 0) {
            qn__fail(err, errno == EINTR ? QN_CANCELLED : QN_IO,
                     "standard input cannot be read: %s", strerror(errno));
            break;
        }
        if (text.n + (size_t)n > LARGEST_INPUT) {
            qn__fail(err, QN_LIMIT, "standard input exceeds %d bytes", LARGEST_INPUT);
            break;
        }
        ok = qn__text_append(&text, piece, (size_t)n);
    }
    if (!ok)
        qn__fail_memory(err, "standard input");
    if (err->code != QN_OK) {
        free(text.data);
        return err->code;
    }
    *out = text.data;
    *size = text.n;
    return QN_OK;
}

qn_status read_input(const char *path, char **text, size_t *size, qn_error *err)
{
    *text = NULL;
    return strcmp(path, "-") ? qn__file_read(path, LARGEST_INPUT, text, size, err)
                             : read_standard_input(text, size, err);
}

void print_json_string(FILE *out, const char *text, size_t n)
{
    fputc('"', out);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c == '\n')
            fprintf(out, "\\n");
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

void show_prefill(void *user, int64_t done, int64_t total)
{
    enum { WIDTH = 30 };
    (void)user;
    char bar[WIDTH + 1] = "";
    memset(bar, '#', (size_t)(WIDTH * done / total));
    if (done < total)
        fprintf(stderr, "\rprompt [%-30s] %lld of %lld tokens ", bar, (long long)done,
                (long long)total);
    else
        fprintf(stderr, "\r\033[K");
}
