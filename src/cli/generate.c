/* SPDX-License-Identifier: Apache-2.0
 *
 * quern generate: a prompt in, text out. The text alone goes to standard output; progress (on a
 * terminal), speed and errors go to standard error. Without -m the built-in model answers.
 */
#include "base/buffers.h"
#include "base/error.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/prompt_cache.h"
#include "cli/logprobs.h"
#include "cli/reply.h"
#include "cli/shared.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The prompt as ids: as a chat in the model's form, else raw. */
static qn_status encode_prompt(const loaded *l, const arguments *a, const char *text, size_t size,
                               qn_tokens *ids, qn_error *err)
{
    qn_chat *chat = NULL;
    const qn_tokenizer *t = qn_model_tokenizer(l->model);
    if (!a->raw && chat_form_open(&chat, t, l->path, a, err) != QN_OK) {
        qn_chat_close(chat);
        return err->code;
    }
    if (a->raw || !chat_form_exists(chat, t))
        qn_tokenizer_encode(t, text, size, QN_ADD_SPECIAL | (a->raw ? QN_PARSE_SPECIAL : 0), ids,
                            err);
    else
        message_encode(chat, a, text, size, ids, err);
    qn_chat_close(chat);
    return err->code;
}

/* ---- output
 * ------------------------------------------------------------------------------------------------
 */

/* `cancelled`: by Ctrl-C; what came before is there. */
static void print_result(const reply *r, const arguments *a, const loaded *l, size_t cached,
                         bool cancelled)
{
    const qn_metrics *m = &r->metrics;
    printf("{\"text\":");
    print_json_string(stdout, r->text.data ? r->text.data : "", r->text.n);
    printf(",\"finish\":\"%s\",\"prompt_tokens\":%llu,\"cached_tokens\":%zu,"
           "\"generated_tokens\":%llu,"
           "\"load_seconds\":%.6f,\"prefill_seconds\":%.6f,\"decode_seconds\":%.6f,"
           "\"peak_bytes\":%zu",
           m->finish == QN_FINISH_STOP ? "stop"
           : cancelled                 ? "cancelled"
                                       : "length",
           (unsigned long long)m->prompt_tokens, cached, (unsigned long long)m->generated_tokens,
           l->seconds, m->prefill_seconds, m->decode_seconds, m->peak_bytes);
    if (a->settings.logprobs >= 0)
        print_logprobs(stdout, qn_model_tokenizer(l->model), r->logprobs, r->ids.n, r->n_logprobs);
    printf("}\n");
}

/* Of the run, since `before`: what the device is given for a token, and how long that takes; and
 * what all of a token comes to. */
static void print_launches(const qn_plan_stats *before, const qn_plan_stats *p, const qn_metrics *m)
{
    double steps = (double)(p->evaluations - before->evaluations),
           launches = (double)(p->launches - before->launches),
           ns = (double)(p->submit_ns - before->submit_ns),
           tokens = m->generated_tokens > 1 ? (double)(m->generated_tokens - 1) : 0;
    if (steps == 0 || launches == 0)
        return;
    fprintf(stderr, "launches: %.1f a token, handed over in %.2f us each", launches / steps,
            ns / 1e3 / launches);
    if (tokens)
        fprintf(stderr, "; %.2f us of a token's time each",
                m->decode_seconds * 1e6 / tokens / (launches / steps));
    fprintf(stderr, "\n");
}

static void print_counters(qn_device *device, const qn_session *session, const qn_metrics *metrics,
                           const qn_plan_stats *before)
{
    qn_plan_stats p = QN_INIT(qn_plan_stats);
    qn_memory_stats m = QN_INIT(qn_memory_stats);
    qn_device_plan_stats(device, &p);
    qn_device_memory(device, &m);
    char text[128];
    qn_device_describe(device, text, sizeof text);
    fprintf(stderr, "device %s: %s\n", qn_device_name(device), text);
    fprintf(stderr,
            "plans: %llu evaluations, hit rate %.1f %%, %llu rebound, %zu bytes; %.0f ns a node on "
            "hits; %llu steps, %.1f an evaluation, %llu nodes fused away, %llu donations copied\n",
            (unsigned long long)p.evaluations,
            p.evaluations ? 100.0 * (double)p.hits / (double)p.evaluations : 0,
            (unsigned long long)p.rebinds, p.bytes,
            p.nodes ? (double)p.hit_ns / (double)p.nodes : 0, (unsigned long long)p.steps,
            p.evaluations ? (double)p.steps / (double)p.evaluations : 0,
            (unsigned long long)p.fused, (unsigned long long)p.donation_copies);
    print_launches(before, &p, metrics);
    fprintf(stderr,
            "memory: %.1f MiB in arrays, %.1f MiB workspace, %.1f MiB peak, cache of %lld "
            "positions %.1f MiB",
            (double)m.active / 1048576, (double)m.workspace / 1048576, (double)m.peak / 1048576,
            (long long)qn_session_length(session),
            (double)qn_session_cache_bytes(session) / 1048576);
    if (m.available)
        fprintf(stderr, ", %.1f MiB free, %.1f MiB of the host page-locked",
                (double)m.available / 1048576, (double)m.wired / 1048576);
    fprintf(stderr, "\n");
}

/* ---- the run
 * -----------------------------------------------------------------------------------------------
 */

/* The reply, behind what --prompt-cache has of the prompt: *cached tokens. */
static qn_status run_behind_cache(reply *r, const arguments *a, qn_session *session,
                                  const qn_tokens *ids, qn_generation_options *options,
                                  size_t *cached, qn_error *err)
{
    qn_generation *g;
    if (prompt_cache_wake(a, session, ids, cached, err) != QN_OK)
        return err->code;
    size_t kept = *cached;
    double begun = qn__seconds();
    if (prompt_cache_keep(a, session, ids, &kept, err) != QN_OK)
        return err->code;
    double taken = qn__seconds() - begun;
    options->before = ids->ids;
    options->n_before = kept;
    qn_status status =
        qn_generation_begin(&g, session, ids->ids + kept, ids->n - kept, options, err);
    if (status == QN_OK)
        status = reply_run(r, g, !a->json, err);
    r->metrics.prompt_tokens += kept - *cached;
    r->metrics.prefill_seconds += taken;
    return status == QN_OK ? prompt_cache_keep_all(a, session, err) : status;
}

static int answer(const arguments *a, const loaded *l, qn_session *session, const qn_tokens *ids)
{
    qn_error err = {0};
    reply r = {0};
    qn_sampling sampling;
    qn_generation_options options = generation_of(a, l->model, &sampling);
    size_t cached = 0;
    qn_plan_stats before = QN_INIT(qn_plan_stats);
    qn_device_plan_stats(l->device, &before);
    qn_status status = run_behind_cache(&r, a, session, ids, &options, &cached, &err);
    if (!a->json && !r.write_failed && (r.text.n || status == QN_OK))
        putchar('\n');
    int code = status == QN_OK ? 0 : failed(&err);
    if (a->json && (status == QN_OK || status == QN_CANCELLED))
        print_result(&r, a, l, cached, status == QN_CANCELLED);
    if ((isatty(STDERR_FILENO) || a->verbose) && code != 1)
        reply_print_speed(&r.metrics, cached);
    if (a->verbose)
        print_counters(l->device, session, &r.metrics, &before);
    reply_free(&r);
    return code;
}

static int run_loaded(const arguments *a, const loaded *l, const char *prompt, size_t size)
{
    qn_error err = {0};
    qn_session *session = NULL;
    qn_tokens ids = {0};
    int code;
    if (encode_prompt(l, a, prompt, size, &ids, &err) != QN_OK ||
        open_session(&session, a, l, &err) != QN_OK)
        code = failed(&err);
    else
        code = answer(a, l, session, &ids);
    qn_session_close(session);
    qn_tokens_free(&ids);
    return code;
}

static int run_native(const arguments *a, const qn_text *prompt)
{
    loaded l;
    int code = open_loaded(&l, a, false);
    if (!code)
        code = run_loaded(a, &l, prompt->data ? prompt->data : "", prompt->n);
    close_loaded(&l);
    return code;
}

static int run_backend(const arguments *a, const qn_text *prompt)
{
    qn_error err = {0};
    qn_backend *b = NULL;
    qn_conversation *c = NULL;
    reply r = {0};
    loaded l = {.seconds = qn__seconds()};
    qn_status status = backend_open(&b, a, &err);
    l.seconds = qn__seconds() - l.seconds;
    if (status == QN_OK && (status = qn_conversation_new(&c, NULL, &err)) == QN_OK &&
        (status = qn_conversation_add(c, "user", prompt->data, prompt->n, &err)) == QN_OK &&
        a->system)
        status = qn_conversation_set_system(c, a->system, strlen(a->system), &err);
    if (status == QN_OK)
        status = backend_reply(b, a, c, a->raw, &r, !a->json, &err);
    if (!a->json && !r.write_failed && (r.text.n || status == QN_OK))
        putchar('\n');
    if (a->json && b && (status == QN_OK || status == QN_CANCELLED))
        print_result(&r, a, &l, 0, status == QN_CANCELLED);
    reply_free(&r);
    qn_conversation_free(c);
    qn_backend_close(b);
    return status == QN_OK ? 0 : failed(&err);
}

/* ---- the prompt
 * -------------------------------------------------------------------------------------------- */

static int wrong_usage(const char *what)
{
    fprintf(stderr, "quern generate: %s\n", what);
    return 2;
}

/* Appends a whole input, without the newlines at its end. */
static qn_status append_input(qn_text *prompt, const char *path, qn_error *err)
{
    char *input = NULL;
    size_t size;
    if (read_input(path, &input, &size, err) == QN_OK) {
        while (size && (input[size - 1] == '\n' || input[size - 1] == '\r'))
            size--;
        if (!qn__text_append(prompt, input, size))
            qn__fail_memory(err, "a prompt");
    }
    free(input);
    return err->code;
}

/* -p, -f or standard input; and behind a -p or -f what is piped in, as in `cat notes | quern
 * generate -p "Sum this up:"`. A standard input that is no pipe and no file is not read, so that
 * nothing waits for a terminal. */
static qn_status gather_prompt(const arguments *a, qn_text *prompt, qn_error *err)
{
    if (a->prompt && !strcmp(a->prompt, "-"))
        return append_input(prompt, "-", err);
    if (a->prompt_file)
        append_input(prompt, a->prompt_file, err);
    else if (!qn__text_append(prompt, a->prompt, strlen(a->prompt)))
        qn__fail_memory(err, "a prompt");
    bool from_stdin = a->prompt_file && !strcmp(a->prompt_file, "-");
    if (err->code != QN_OK || from_stdin || !input_is_piped())
        return err->code;
    size_t before = prompt->n;
    if (before && !qn__text_append(prompt, "\n", 1))
        return qn__fail_memory(err, "a prompt");
    size_t joined = prompt->n;
    if (append_input(prompt, "-", err) == QN_OK && prompt->n == joined)
        prompt->data[prompt->n = before] = 0; /* nothing was piped in */
    return err->code;
}

#define NO_PROMPT "there is no prompt; give one with -p TEXT or -f FILE, or pipe it in"

int command_generate(arguments *a)
{
    if (a->prompt && a->prompt_file)
        return wrong_usage("the prompt comes from -p or from -f, not both");
    if (a->raw && a->system)
        return wrong_usage("--system belongs to a chat; with --raw, write it into the prompt");
    if (a->settings.logprobs >= 0 && !a->json)
        return wrong_usage("--logprobs is shown with --json alone");
    if ((a->prompt_cache_all || a->prompt_cache_ro) && !a->prompt_cache)
        return wrong_usage("--prompt-cache-all and --prompt-cache-ro go with --prompt-cache FILE");
    bool piped = !a->prompt && !a->prompt_file && input_is_piped();
    if (!a->prompt && !a->prompt_file && !piped)
        return wrong_usage(NO_PROMPT);
    if (piped)
        a->prompt = "-";
    catch_interrupts(true);
    qn_error err = {0};
    qn_text prompt = {0};
    gather_prompt(a, &prompt, &err);
    if (err.code != QN_OK || (piped && !prompt.n)) {
        qn_text_free(&prompt);
        return err.code != QN_OK ? failed(&err) : wrong_usage(NO_PROMPT);
    }
    int code = backend_is_other(a) ? run_backend(a, &prompt) : run_native(a, &prompt);
    qn_text_free(&prompt);
    return code;
}
