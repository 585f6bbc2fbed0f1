/* SPDX-License-Identifier: Apache-2.0
 *
 * quern batch: a file of prompts or chats, a line each, in; results in the same order out.
 *
 * Approach: an engine runs as many lines as have places. A ring holds the lines that are under way
 * and the results that wait for those before them; the next line is read when there is room, so
 * memory does not grow with the file. Every result follows from its line and the options alone: a
 * run that was cut off goes on behind the last whole line of its output.
 */
#include "base/error.h"
#include "cli/batch_line.h"
#include "cli/batch_output.h"
#include "cli/commands.h"
#include "cli/lines.h"
#include "cli/logprobs.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARALLEL = 16, RING_OF_EACH = 64, QUEUED_OF_EACH = 2 };

/* A line: under way, or with its result. */
typedef struct place {
    uint64_t index;
    char *custom_id;
    qn_request *request; /* NULL: the result is there */
    qn_logprob *logprobs;
    size_t n_each, n_logprobs, logprobs_room; /* n_each: of a token; 0: none are wanted */
    char *result;
    size_t size;
} place;

typedef struct batch_totals {
    uint64_t lines, failed, prompt_tokens, cached_tokens, generated_tokens;
    double begun, shown;
} batch_totals;

typedef struct batch_run {
    const loaded *loaded;
    batch_model model;
    qn_engine *engine;
    text_lines in;
    bool read_all;
    batch_output out;
    place *ring; /* [room], of which `n` from `first` on are in use */
    size_t room, first, n;
    size_t n_open, most_open; /* requests */
    uint64_t n_read;          /* lines */
    batch_totals all;
} batch_run;

static place *place_at(const batch_run *b, size_t i)
{
    return &b->ring[(b->first + i) % b->room];
}

static void clear_place(place *p)
{
    qn_request_close(p->request);
    free(p->custom_id);
    free(p->logprobs);
    free(p->result);
    *p = (place){0};
}

/* ---- results --------------------------------------------------------------------------------- */

static const char *status_name(qn_status status)
{
    static const char *const names[] = {
#define STATUS_NAME(name, text) #name,
        QN_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    };
    return names[status];
}

static void print_error(FILE *out, const qn_error *err)
{
    fprintf(out, ",\"error\":{\"type\":\"%s\",\"message\":", status_name(err->code));
    print_json_string(out, err->message, strlen(err->message));
    fputc('}', out);
}

static qn_status print_reply(const batch_run *b, const place *p, FILE *out, qn_error *err)
{
    qn_text text = {0};
    qn_request_metrics m = QN_INIT(qn_request_metrics);
    qn_request_get_metrics(p->request, &m);
    if (qn_request_text(p->request, &text, err) == QN_OK) {
        fprintf(out, ",\"text\":");
        print_json_string(out, text.data ? text.data : "", text.n);
        fprintf(out,
                ",\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%llu,"
                "\"completion_tokens\":%llu,\"total_tokens\":%llu}",
                qn_request_finish(p->request) == QN_FINISH_STOP ? "stop" : "length",
                (unsigned long long)m.prompt_tokens, (unsigned long long)m.generated_tokens,
                (unsigned long long)(m.prompt_tokens + m.generated_tokens));
        if (p->n_each)
            print_logprobs(out, b->model.tokenizer, p->logprobs, p->n_logprobs, p->n_each);
    }
    qn_text_free(&text);
    return err->code;
}

static void count_place(batch_run *b, const place *p, bool failed)
{
    qn_request_metrics m = QN_INIT(qn_request_metrics);
    if (p->request) {
        qn_request_get_metrics(p->request, &m);
        b->n_open--;
    }
    b->all.lines++;
    b->all.failed += failed;
    b->all.prompt_tokens += m.prompt_tokens;
    b->all.cached_tokens += m.cached_tokens;
    b->all.generated_tokens += m.generated_tokens;
}

/* Makes the line of a place whose request has ended, or, with an error, did not come to one. Fails
 * when memory is out alone. */
static qn_status finish_place(batch_run *b, place *p, qn_error *failure, qn_error *err)
{
    FILE *out = open_memstream(&p->result, &p->size);
    if (!out)
        return qn__fail_memory(err, "a result");
    fprintf(out, "{\"index\":%llu", (unsigned long long)p->index);
    if (p->custom_id) {
        fprintf(out, ",\"custom_id\":");
        print_json_string(out, p->custom_id, strlen(p->custom_id));
    }
    if (failure->code != QN_OK || print_reply(b, p, out, failure) != QN_OK)
        print_error(out, failure);
    fprintf(out, "}\n");
    bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad)
        return qn__fail_memory(err, "a result");
    count_place(b, p, failure->code != QN_OK);
    qn_request_close(p->request);
    p->request = NULL;
    return QN_OK;
}

/* ---- lines under way ------------------------------------------------------------------------- */

/* A line that gives no seed draws with the command's, or 0, plus its index. */
static qn_status add_request(batch_run *b, place *p, const batch_line *l, qn_error *err)
{
    qn_sampling sampling;
    const arguments *a = b->model.arguments;
    qn_generation_options generation = generation_of(a, b->loaded->model, &sampling);
    sampling.seed = (a->settings.seed > 0 ? (uint64_t)a->settings.seed : 0) + p->index;
    qn__settings_apply(&l->settings, &sampling, &generation);
    qn_request_options options = {.size = sizeof options, .generation = &generation};
    p->n_each = generation.logprobs ? (size_t)generation.top_logprobs + 1 : 0;
    return qn_request_add(&p->request, b->engine, l->ids.ids, l->ids.n, &options, err);
}

/* Takes the line that was read into the next place. `failure`: of its reading. */
static qn_status begin_place(batch_run *b, qn_error *failure, qn_error *err)
{
    place *p = place_at(b, b->n++);
    batch_line l = {.custom_id = NULL};
    *p = (place){.index = b->n_read++};
    if (failure->code == QN_OK)
        batch_line_read(&l, &b->model, &b->in.line, b->in.number, failure);
    p->custom_id = l.custom_id;
    l.custom_id = NULL;
    if (failure->code == QN_OK)
        add_request(b, p, &l, failure);
    batch_line_free(&l);
    b->n_open += p->request != NULL;
    return p->request ? QN_OK : finish_place(b, p, failure, err);
}

/* Whether the next line is to be read: there is room, and what is under way need not wait for it.
 */
static bool wants_line(const batch_run *b)
{
    return !b->read_all && b->n < b->room && b->n_open < b->most_open &&
           (!b->n_open || lines_ready(&b->in));
}

static qn_status begin_lines(batch_run *b, qn_error *err)
{
    while (wants_line(b)) {
        qn_error failure = {0};
        bool more;
        lines_next(&b->in, &more, &failure);
        if (failure.code != QN_OK && failure.code != QN_LIMIT)
            return qn__fail(err, failure.code, "%s", failure.message);
        b->read_all = !more;
        if (more && begin_place(b, &failure, err) != QN_OK)
            return err->code;
    }
    return QN_OK;
}

static bool keep_newest_logprobs(place *p)
{
    size_t n;
    const qn_logprob *newest = qn_request_logprobs(p->request, &n);
    if (!newest)
        return true;
    if ((p->n_logprobs + 1) * n > p->logprobs_room) {
        size_t room = (p->n_logprobs + 1) * n * 2;
        qn_logprob *all = realloc(p->logprobs, room * sizeof *all);
        if (!all)
            return false;
        p->logprobs = all;
        p->logprobs_room = room;
    }
    memcpy(p->logprobs + p->n_logprobs++ * n, newest, n * sizeof *newest);
    return true;
}

/* Takes the tokens that there are, and where that was all, the result. */
static qn_status read_place(batch_run *b, place *p, qn_error *err)
{
    int32_t id = 0;
    qn_error failure = {0};
    while (qn_request_next(p->request, &id, &failure) == QN_OK && id >= 0)
        if (p->n_each && !keep_newest_logprobs(p))
            return qn__fail_memory(err, "log probabilities");
    if (failure.code == QN_OK && qn_request_finish(p->request) == QN_FINISH_NONE)
        return QN_OK;
    return finish_place(b, p, &failure, err);
}

static qn_status read_places(batch_run *b, qn_error *err)
{
    for (size_t i = 0; i < b->n && err->code == QN_OK; i++)
        if (place_at(b, i)->request)
            read_place(b, place_at(b, i), err);
    return err->code;
}

/* Writes the results whose turn it is. */
static qn_status write_results(batch_run *b, qn_error *err)
{
    while (b->n && !b->ring[b->first].request) {
        place *p = &b->ring[b->first];
        if (batch_output_write(&b->out, p->result, p->size, err) != QN_OK)
            return err->code;
        clear_place(p);
        b->first = (b->first + 1) % b->room;
        b->n--;
    }
    return QN_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static void show_progress(batch_run *b)
{
    double now = qn__seconds(), taken = now - b->all.begun;
    if (!isatty(STDERR_FILENO) || now - b->all.shown < 0.2)
        return;
    qn_engine_stats stats = QN_INIT(qn_engine_stats);
    qn_engine_get_stats(b->engine, &stats);
    fprintf(stderr, "\r\033[K%llu lines done, %lld running, %.1f tok/s ",
            (unsigned long long)b->all.lines, (long long)stats.running,
            taken > 0 ? (double)stats.generated_tokens / taken : 0);
    b->all.shown = now;
}

static void print_totals(const batch_run *b)
{
    const batch_totals *t = &b->all;
    double taken = qn__seconds() - t->begun;
    fprintf(stderr, "%s%llu lines, %llu failed; prompts %llu tokens, of which %llu were known, ",
            isatty(STDERR_FILENO) ? "\r\033[K" : "", (unsigned long long)t->lines,
            (unsigned long long)t->failed, (unsigned long long)t->prompt_tokens,
            (unsigned long long)t->cached_tokens);
    fprintf(stderr, "generated %llu tokens in %.1f s, %.1f tok/s\n",
            (unsigned long long)t->generated_tokens, taken,
            taken > 0 ? (double)t->generated_tokens / taken : 0);
}

static qn_status run_lines(batch_run *b, qn_error *err)
{
    bool busy = true;
    b->all.begun = qn__seconds();
    while (err->code == QN_OK && !(b->read_all && !b->n)) {
        if (atomic_load(&interrupted))
            qn__fail(err, QN_CANCELLED, "interrupted%s",
                     b->out.path ? "; --resume goes on where it was" : "");
        else if (begin_lines(b, err) == QN_OK && qn_engine_step(b->engine, &busy, err) == QN_OK &&
                 read_places(b, err) == QN_OK)
            write_results(b, err);
        show_progress(b);
    }
    if (err->code == QN_OK || b->all.lines)
        print_totals(b);
    return err->code;
}

/* ---- going on behind an output --------------------------------------------------------------- */

/* The custom_id of the line that was read; NULL: none, or the line is none. */
static char *custom_id_of(const qn_text *line)
{
    cJSON *tree = NULL;
    const char *id = NULL;
    qn_error ignored = {0};
    if (qn__json_parse(&tree, "line", line->data, line->n, &ignored) == QN_OK) {
        qn__json_at at = qn__json_root("line", tree);
        if (cJSON_IsObject(tree))
            qn__json_opt_string(&at, "custom_id", &id, &ignored);
    }
    char *copy = id ? strdup(id) : NULL;
    cJSON_Delete(tree);
    return copy;
}

/* Skips the lines whose results are there, which must be theirs. */
static qn_status skip_line(void *user, uint64_t index, const char *custom_id, qn_error *err)
{
    batch_run *b = user;
    bool more;
    qn_error failure = {0};
    lines_next(&b->in, &more, &failure);
    if (failure.code != QN_OK && failure.code != QN_LIMIT)
        return qn__fail(err, failure.code, "%s", failure.message);
    char *id = failure.code == QN_OK && more ? custom_id_of(&b->in.line) : NULL;
    bool same = more && (id ? custom_id && !strcmp(id, custom_id) : !custom_id);
    free(id);
    if (!same)
        return qn__fail(err, QN_INVALID,
                        "--resume: result %llu of %s is not that of line %llu of %s: it belongs to "
                        "another input",
                        (unsigned long long)index, b->out.path, (unsigned long long)b->in.number,
                        b->in.name);
    b->n_read++;
    return QN_OK;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static qn_status begin_run(batch_run *b, const arguments *a, qn_chat **chat, qn_error *err)
{
    int parallel = a->parallel > 0 ? (int)a->parallel : PARALLEL;
    const qn_model *model = b->loaded->model;
    qn_model_info info = QN_INIT(qn_model_info);
    qn_model_get_info(model, &info);
    b->model = (batch_model){
        .tokenizer = qn_model_tokenizer(model), .arguments = a, .vocab_size = info.vocab_size};
    if (!b->model.tokenizer)
        return qn__fail(err, QN_NOT_FOUND, "the model has no tokenizer");
    if (chat_form_open(chat, b->model.tokenizer, b->loaded->path, a, err) != QN_OK)
        return err->code;
    b->model.chat = *chat;
    b->most_open = (size_t)parallel * QUEUED_OF_EACH;
    b->room = (size_t)parallel * RING_OF_EACH;
    b->ring = calloc(b->room, sizeof *b->ring);
    if (!b->ring)
        return qn__fail_memory(err, "a batch");
    cache_types types;
    if (cache_types_of(a, &types, err) != QN_OK)
        return err->code;
    qn_engine_options options = {.size = sizeof options,
                                 .context = a->context > 0 ? a->context : 0,
                                 .parallel = parallel,
                                 .queue = (int)b->most_open,
                                 .cache_type_k = types.k,
                                 .cache_type_v = types.v,
                                 .draft = b->loaded->draft};
    return qn_engine_open(&b->engine, b->loaded->model, &options, err);
}

static void end_run(batch_run *b)
{
    for (size_t i = 0; i < b->n; i++)
        clear_place(place_at(b, i));
    free(b->ring);
    qn_engine_close(b->engine);
}

static int run_batch(const arguments *a, const loaded *l, batch_run *b)
{
    qn_error err = {0};
    qn_chat *chat = NULL;
    b->loaded = l;
    if (begin_run(b, a, &chat, &err) == QN_OK &&
        batch_output_open(&b->out, a, skip_line, b, &err) == QN_OK)
        run_lines(b, &err);
    end_run(b);
    batch_output_close(&b->out, &err);
    qn_chat_close(chat);
    return err.code == QN_OK ? b->all.failed != 0 : failed(&err);
}

static bool check_batch_usage(const arguments *a)
{
    const char *wrong = !a->file ? "which lines? Name their file; - is standard input"
                        : a->resume && !a->output ? "--resume goes on in the file that -o names"
                        : a->resume && a->force   ? "--resume keeps what --force would replace"
                        : a->raw && a->system     ? "--system belongs to a chat, not to --raw"
                                                  : NULL;
    if (wrong)
        fprintf(stderr, "quern batch: %s\n", wrong);
    return !wrong;
}

int command_batch(arguments *a)
{
    if (!check_batch_usage(a))
        return 2;
    catch_interrupts(true);
    qn_error err = {0};
    batch_run b = {.room = 0};
    loaded l = {.model = NULL};
    int code;
    if (lines_open(&b.in, a->file, &err) != QN_OK || batch_output_check(a, &err) != QN_OK)
        code = failed(&err);
    else if (!(code = open_loaded(&l, a, false)))
        code = run_batch(a, &l, &b);
    close_loaded(&l);
    lines_close(&b.in);
    return code;
}
