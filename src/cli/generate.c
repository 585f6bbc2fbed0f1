/* SPDX-License-Identifier: Apache-2.0
 *
 * quern generate: a prompt in, text out. The text alone goes to standard output; progress (on a terminal),
 * speed and errors go to standard error. Without -m the built-in model answers.
 */
#include "base/error.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "quern/quern.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct arguments {
    const char *model, *prompt, *system, *device;
    int64_t max_tokens, context, threads, top_k, seed;
    double temperature, top_p, min_p, repeat_penalty;
    bool raw, json, verbose;
    bool temperature_given, top_k_given, top_p_given, repeat_given, seed_given, max_given;
} arguments;

enum { LARGEST_PROMPT = 64 << 20, MOST_STOPS = 64 };

/* The one signal that is ours: Ctrl-C asks the evaluation to stop. */
static atomic_bool interrupted;

static void on_interrupt(int number)
{
    if (atomic_exchange(&interrupted, true)) { /* the second time: at once */
        signal(number, SIG_DFL);
        raise(number);
    }
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int failed(const qn_error *err)
{
    fprintf(stderr, "quern: %s\n", err->message);
    return err->code == QN_CANCELLED ? 130 : 1;
}

/* ---- the built-in model ------------------------------------------------------------------------------------ */

static bool has_config(const char *directory)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/config.json", directory);
    return access(path, R_OK) == 0;
}

/* Beside the binary (a build tree's or an installation's), else where it was built or installed. */
static const char *built_in_model(char *path, size_t room)
{
    static const char *const beside[] = {"../share/quern/models/demo", "../../../models/demo"};
    char self[4000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        for (size_t i = 0; slash && i < sizeof beside / sizeof *beside; i++) {
            snprintf(path, room, "%.*s/%s", (int)(slash - self), self, beside[i]);
            if (has_config(path))
                return path;
        }
    }
    static const char *const built[] = {QN_DEMO_INSTALLED, QN_DEMO_SOURCE};
    for (int i = 0; i < 2; i++) {
        snprintf(path, room, "%s", built[i]);
        if (has_config(path))
            return path;
    }
    return NULL;
}

/* ---- the prompt -------------------------------------------------------------------------------------------- */

/* All of standard input; NULL with a message when it is too much or cannot be read. */
static char *read_standard_input(size_t *size)
{
    size_t room = 1 << 16, n = 0;
    char *text = malloc(room);
    while (text) {
        n += fread(text + n, 1, room - n, stdin);
        if (n < room)
            break;
        if (room >= LARGEST_PROMPT) {
            fprintf(stderr, "quern generate: the prompt on standard input exceeds %d bytes\n",
                    LARGEST_PROMPT);
            free(text);
            return NULL;
        }
        char *more = realloc(text, room *= 2);
        if (!more)
            free(text);
        text = more;
    }
    if (!text)
        fprintf(stderr, "quern generate: out of memory for the prompt\n");
    if (text && ferror(stdin)) {
        fprintf(stderr, "quern generate: standard input cannot be read\n");
        free(text);
        return NULL;
    }
    while (text && n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    *size = n;
    return text;
}

static void print_json_string(FILE *out, const char *text, size_t n)
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

/* Through the model's own template. */
static qn_status encode_by_template(const qn_chat *chat, const arguments *a, const char *text, size_t size,
                                    qn_tokens *ids, qn_error *err)
{
    char *json = NULL;
    size_t n = 0, valid = qn__utf8_check(text, size);
    if (valid != size)
        return qn__fail(err, QN_FORMAT, "the prompt is not valid UTF-8 at byte %zu", valid);
    FILE *out = open_memstream(&json, &n);
    if (!out)
        return qn__fail_memory(err, "a chat");
    fprintf(out, "{\"add_generation_prompt\":true,\"messages\":[");
    if (a->system) {
        fprintf(out, "{\"role\":\"system\",\"content\":");
        print_json_string(out, a->system, strlen(a->system));
        fprintf(out, "},");
    }
    fprintf(out, "{\"role\":\"user\",\"content\":");
    print_json_string(out, text, size);
    fprintf(out, "}]}");
    bool failed_write = ferror(out) != 0;
    failed_write = fclose(out) != 0 || failed_write;
    qn_status status = failed_write ? qn__fail_memory(err, "a chat")
                                    : qn_chat_render_ids(chat, json, n, 0, ids, err);
    free(json);
    return status;
}

/* The prompt as ids: through the model's template, else the built-in chat format that its tokens fit, else
 * raw. A prompt with NUL, which the JSON of a template cannot hold, is left to the built-in format. */
static qn_status encode_prompt(const qn_tokenizer *t, const arguments *a, const char *text,
                               size_t size, qn_tokens *ids, qn_error *err)
{
    qn_chat *chat = NULL;
    if (!a->raw && qn_chat_open(&chat, t, a->model, err) != QN_OK)
        return err->code;
    if (chat && qn_chat_has_template(chat)) {
        qn_status status = encode_by_template(chat, a, text, size, ids, err);
        qn_chat_close(chat);
        return status;
    }
    qn_chat_close(chat);
    if (a->raw || qn_chat_format_of(t) == QN_CHAT_NONE)
        return qn_tokenizer_encode(t, text, size, QN_ADD_SPECIAL | (a->raw ? QN_PARSE_SPECIAL : 0),
                                   ids, err);
    qn_chat_message messages[2];
    size_t n = 0;
    if (a->system)
        messages[n++] = (qn_chat_message){"system", a->system, strlen(a->system)};
    messages[n++] = (qn_chat_message){"user", text, size};
    if (!size)
        messages[n - 1].content = "";
    return qn_chat_encode(t, messages, n, true, ids, err);
}

/* ---- output ------------------------------------------------------------------------------------------------ */

typedef struct output {
    bool json, terminal;
    bool begun;  /* something was printed */
    qn_text all; /* for --json */
} output;

static bool emit(output *o, qn_text *text)
{
    bool ok = true;
    if (o->json) {
        char *data = realloc(o->all.data, o->all.n + text->n + 1);
        if ((ok = data != NULL)) {
            o->all.data = data;
            memcpy(data + o->all.n, text->data, text->n);
            o->all.n += text->n;
        }
    } else if (text->n) {
        ok = fwrite(text->data, 1, text->n, stdout) == text->n && fflush(stdout) == 0;
        o->begun = true;
    }
    text->n = 0;
    if (!ok)
        fprintf(stderr, "quern generate: standard output cannot be written\n");
    return ok;
}

static void print_json(const output *o, const qn_metrics *m, double load)
{
    printf("{\"text\":");
    print_json_string(stdout, o->all.data ? o->all.data : "", o->all.n);
    printf(",\"finish\":\"%s\",\"prompt_tokens\":%llu,\"generated_tokens\":%llu,"
           "\"load_seconds\":%.6f,\"prefill_seconds\":%.6f,\"decode_seconds\":%.6f,"
           "\"peak_bytes\":%zu}\n",
           m->finish == QN_FINISH_STOP ? "stop" : "length", (unsigned long long)m->prompt_tokens,
           (unsigned long long)m->generated_tokens, load, m->prefill_seconds, m->decode_seconds,
           m->peak_bytes);
}

static void print_speed(const qn_metrics *m)
{
    double decoded = m->generated_tokens > 1 ? (double)(m->generated_tokens - 1) : 0;
    fprintf(stderr, "prompt %llu tokens, %.1f tok/s; generated %llu tokens, %.1f tok/s\n",
            (unsigned long long)m->prompt_tokens,
            m->prefill_seconds > 0 ? (double)m->prompt_tokens / m->prefill_seconds : 0,
            (unsigned long long)m->generated_tokens,
            m->decode_seconds > 0 ? decoded / m->decode_seconds : 0);
}

static void print_counters(qn_device *device, const qn_session *session)
{
    qn_plan_stats p = qn_device_plan_stats(device);
    qn_memory_stats m = qn_device_memory(device);
    char text[128];
    qn_device_describe(device, text, sizeof text);
    fprintf(stderr, "device %s: %s\n", qn_device_name(device), text);
    fprintf(stderr,
            "plans: %llu evaluations, hit rate %.1f %%, %llu rebound, %zu bytes; %.0f ns a node on "
            "hits; %llu kernels, %llu nodes fused away, %llu donations copied\n",
            (unsigned long long)p.evaluations,
            p.evaluations ? 100.0 * (double)p.hits / (double)p.evaluations : 0,
            (unsigned long long)p.rebinds, p.bytes,
            p.nodes ? (double)p.hit_ns / (double)p.nodes : 0, (unsigned long long)p.steps,
            (unsigned long long)p.fused, (unsigned long long)p.donation_copies);
    fprintf(stderr, "memory: %.1f MiB in arrays, %.1f MiB workspace, %.1f MiB peak, cache of %lld "
                    "positions %.1f MiB\n",
            (double)m.active / 1048576, (double)m.workspace / 1048576, (double)m.peak / 1048576,
            (long long)qn_session_length(session),
            (double)qn_session_cache_bytes(session) / 1048576);
}

/* ---- the run ----------------------------------------------------------------------------------------------- */

static bool show_load(void *user, uint64_t done, uint64_t total)
{
    int *shown = user;
    int percent = total ? (int)(100 * done / total) : 100;
    if (percent != *shown && total > (200u << 20))
        fprintf(stderr, "\rloading %3d %%%s", *shown = percent, percent == 100 ? "\r\033[K" : "");
    return !atomic_load(&interrupted);
}

static qn_sampling sampling_of(const arguments *a, const qn_model *model)
{
    qn_sampling p;
    qn_model_defaults(model, &p, NULL, 0, NULL);
    p.size = sizeof p;
    if (a->temperature_given)
        p.temperature = (float)a->temperature;
    if (a->top_k_given)
        p.top_k = (int32_t)a->top_k;
    if (a->top_p_given)
        p.top_p = (float)a->top_p;
    p.min_p = (float)a->min_p;
    if (a->repeat_given)
        p.repeat_penalty = (float)a->repeat_penalty;
    p.seed = a->seed_given ? (uint64_t)a->seed : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 20;
    return p;
}

static int stream(qn_generation *g, const qn_tokenizer *t, output *o, qn_error *err)
{
    qn_decoder *decoder = qn_decoder_new(t, QN_SKIP_SPECIAL);
    qn_text text = {0};
    qn_status status = decoder ? QN_OK : QN_MEMORY;
    bool written = true;
    int32_t id = 0;
    while (status == QN_OK && written && (status = qn_generation_next(g, &id, err)) == QN_OK &&
           id >= 0) {
        status = qn_decoder_push(decoder, id, &text, err);
        written = emit(o, &text);
    }
    if (written && decoder && qn_decoder_flush(decoder, &text, NULL) == QN_OK)
        written = emit(o, &text);
    qn_decoder_free(decoder);
    qn_text_free(&text);
    if (!o->json && written && (o->begun || status == QN_OK))
        putchar('\n');
    if (status != QN_OK)
        return failed(err);
    return written ? 0 : 1;
}

static int generate(const arguments *a, qn_model *model, qn_device *device, const char *prompt,
                    size_t size, double load)
{
    qn_error err = {0};
    qn_session *session = NULL;
    qn_generation *g = NULL;
    qn_tokens ids = {0};
    const qn_tokenizer *t = qn_model_tokenizer(model);
    output o = {.json = a->json, .terminal = isatty(STDERR_FILENO)};
    qn_session_options so = {.size = sizeof so, .context = a->context, .cancel = &interrupted};
    qn_generation_options go = {.size = sizeof go, .max_tokens = a->max_tokens};
    int status = 1;
    if (encode_prompt(t, a, prompt, size, &ids, &err) != QN_OK ||
        qn_session_open(&session, model, &so, &err) != QN_OK) {
        status = failed(&err);
        goto done;
    }
    go.sampling = sampling_of(a, model);
    if (qn_generation_begin(&g, session, ids.ids, ids.n, &go, &err) != QN_OK) {
        status = failed(&err);
        goto done;
    }
    status = stream(g, t, &o, &err);
    qn_metrics metrics;
    qn_generation_get_metrics(g, &metrics);
    if (a->json && status == 0)
        print_json(&o, &metrics, load);
    if ((o.terminal || a->verbose) && status != 1)
        print_speed(&metrics);
    if (a->verbose)
        print_counters(device, session);
done:
    qn_generation_end(g);
    qn_session_close(session);
    qn_tokens_free(&ids);
    free(o.all.data);
    return status;
}

static void log_line(void *user, qn_log_level level, const char *line)
{
    (void)user, (void)level;
    fprintf(stderr, "%s\n", line);
}

static int run(arguments *a)
{
    char built_in[4200];
    if (!a->model && !(a->model = built_in_model(built_in, sizeof built_in))) {
        fprintf(stderr, "quern generate: the built-in model is not installed; give one with -m DIR\n");
        return 1;
    }
    size_t size = a->prompt ? strlen(a->prompt) : 0;
    char *input = NULL;
    if (!strcmp(a->prompt, "-") && !(input = read_standard_input(&size)))
        return 1;
    qn_error err = {0};
    qn_device_options device_options = {.size = sizeof device_options,
                                        .threads = (int)a->threads,
                                        .log = a->verbose ? log_line : NULL};
    int shown = -1, status;
    qn_model_options model_options = {.size = sizeof model_options, .progress_user = &shown,
                                      .progress = isatty(STDERR_FILENO) ? show_load : NULL};
    qn_device *device = NULL;
    qn_model *model = NULL;
    double begun = seconds();
    if (qn_device_open(&device, a->device, &device_options, &err) != QN_OK ||
        qn_model_open(&model, device, a->model, &model_options, &err) != QN_OK)
        status = failed(&err);
    else
        status = generate(a, model, device, input ? input : a->prompt, size, seconds() - begun);
    qn_model_close(model);
    qn_device_close(device);
    free(input);
    return status;
}

int command_generate(int argc, char **argv)
{
    arguments a = {.device = "cpu"};
    const option options[] = {
        {"model", 'm', OPTION_STRING, &a.model, 0, 0, "DIR",
         "a Hugging Face model directory; without it the built-in model", NULL},
        {"prompt", 'p', OPTION_STRING, &a.prompt, 0, 0, "TEXT",
         "what to answer or continue; - reads standard input", NULL},
        {"max-tokens", 'n', OPTION_INTEGER, &a.max_tokens, 1, 1e9, "N",
         "stop after this many tokens (default: when the model ends)", &a.max_given},
        {"context", 'c', OPTION_INTEGER, &a.context, 1, 1 << 30, "N",
         "positions at most (default: the model's)", NULL},
        {"threads", 't', OPTION_INTEGER, &a.threads, 1, 1024, "N",
         "CPU threads (default: the CPUs it may use)", NULL},
        {"temp", 0, OPTION_NUMBER, &a.temperature, 0, 1e6, "X",
         "temperature; 0 always takes the most probable token", &a.temperature_given},
        {"top-k", 0, OPTION_INTEGER, &a.top_k, 0, INT32_MAX, "N",
         "sample from the N most probable tokens; 0: all", &a.top_k_given},
        {"top-p", 0, OPTION_NUMBER, &a.top_p, 0, 1, "X",
         "sample from the most probable tokens that sum to X; 1: all", &a.top_p_given},
        {"min-p", 0, OPTION_NUMBER, &a.min_p, 0, 1, "X",
         "leave out tokens less probable than X times the most probable", NULL},
        {"repeat-penalty", 0, OPTION_NUMBER, &a.repeat_penalty, 1e-3, 1e3, "X",
         "make the last 64 tokens less probable; 1: off", &a.repeat_given},
        {"seed", 0, OPTION_INTEGER, &a.seed, 0, 9007199254740991, "N",
         "of the random numbers; the same seed gives the same text", &a.seed_given},
        {"system", 0, OPTION_STRING, &a.system, 0, 0, "TEXT", "the system message", NULL},
        {"raw", 0, OPTION_FLAG, &a.raw, 0, 0, NULL, "continue the prompt without a chat format",
         NULL},
        {"device", 0, OPTION_STRING, &a.device, 0, 0, "NAME", "cpu (default), cuda:0 ...", NULL},
        {"json", 0, OPTION_FLAG, &a.json, 0, 0, NULL, "one JSON object with text and figures", NULL},
        {"verbose", 0, OPTION_FLAG, &a.verbose, 0, 0, NULL, "speed, plans and memory afterwards",
         NULL},
    };
    size_t n = sizeof options / sizeof *options;
    bool help;
    if (!options_parse("generate", options, n, argc, argv, &help))
        return 2;
    if (help) {
        options_help("generate",
                     "Writes text behind a prompt. The text goes to standard output, the rest to "
                     "standard error.",
                     options, n);
        return 0;
    }
    if (!a.prompt) {
        fprintf(stderr, "quern generate: there is no prompt; give one with -p TEXT, or -p - for "
                        "standard input\n");
        return 2;
    }
    signal(SIGINT, on_interrupt);
    signal(SIGPIPE, SIG_IGN);
    return run(&a);
}
