/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a request. Those of sampling and generation are request/settings.h's; tables here
 * say what else a chat and a completion have.
 */
#include "server/inside.h"

#include "base/hash.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A request that is being read. */
typedef struct reading {
    const qn__server *server;
    qn__job *job;
    qn__json_at messages, prompt, variables; /* node NULL: absent */
} reading;

static qn_status fail_model(const qn__server *s, const qn__json_at *at, const char *given,
                            qn_error *err)
{
    char quoted[64], names[300] = "";
    size_t n = 0;
    int last = qn_model_n_adapters(s->model);
    for (int i = 0; i <= last && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s\"%s\"", i ? ", " : "",
                              qn__served_name(s, i));
    return qn__json_fail(at, QN_NOT_FOUND, err, "there is no model \"%s\"; here %s %s",
                         qn__utf8_quote(quoted, sizeof quoted, given, strlen(given)),
                         last ? "are" : "is", names);
}

/* The name that models have here, an adapter's, or the model's or its last part, in any case. */
static qn_status take_model(void *to, const qn__field *f, const qn__json_at *at, qn_error *err)
{
    const reading *r = to;
    const qn__server *s = r->server;
    const char *given, *name = s->options.name, *slash = strrchr(name, '/');
    (void)f;
    if (qn__json_as_string(at, &given, err) != QN_OK)
        return err->code;
    for (int i = 1; i <= qn_model_n_adapters(s->model); i++)
        if (!strcasecmp(given, qn__served_name(s, i))) {
            r->job->adapter = i;
            return QN_OK;
        }
    bool known = !strcasecmp(given, name) || (slash && !strcasecmp(given, slash + 1));
    return known ? QN_OK : fail_model(s, at, given, err);
}

/* Of these, one value alone: what happens anyway. */
static qn_status take_echo(void *to, const qn__field *f, const qn__json_at *at, qn_error *err)
{
    bool echo = false;
    (void)to;
    (void)f;
    if (qn__json_as_bool(at, &echo, err) != QN_OK || !echo)
        return err->code;
    return qn__json_fail(at, QN_UNSUPPORTED, err, "a prompt is not repeated; false is supported");
}

static qn_status take_format(void *to, const qn__field *f, const qn__json_at *at, qn_error *err)
{
    const char *type = "";
    (void)to;
    (void)f;
    if (qn__json_get_string(at, "type", &type, err) != QN_OK || !strcmp(type, "text"))
        return err->code;
    return qn__json_fail(at, QN_UNSUPPORTED, err, "of types, \"text\" is supported");
}

static qn_status take_stream_options(void *to, const qn__field *f, const qn__json_at *at,
                                     qn_error *err)
{
    static const qn__field known = {"include_usage", qn__take_flag, 0, 0, 0};
    const qn__fields table = {&known, 1, &((reading *)to)->job->include_usage};
    (void)f;
    return qn__fields_read(at, &table, 1, err);
}

/* ---- the tables ------------------------------------------------------------------------------ */

#define READ(name) offsetof(reading, name)
#define JOB(name)  offsetof(qn__job, name)

static const qn__field of_job[] = {
    {"stream", qn__take_flag, JOB(stream), 0, 0},
    {"n", qn__take_integer, JOB(n), 1, MOST_CHOICES},
};

/* user says who asks: OpenAI's own servers look for abuse with it; it changes nothing. */
static const qn__field of_chats[] = {
    {"model", take_model, 0, 0, 0},
    {"messages", qn__take_value, READ(messages), 0, 0},
    {"chat_template_kwargs", qn__take_value, READ(variables), 0, 0},
    {"stream_options", take_stream_options, 0, 0, 0},
    {"response_format", take_format, 0, 0, 0},
    {"user", qn__take_ignored, 0, 0, 0},
};

static const qn__field of_completions[] = {
    {"model", take_model, 0, 0, 0},
    {"prompt", qn__take_value, READ(prompt), 0, 0},
    {"stream_options", take_stream_options, 0, 0, 0},
    {"echo", take_echo, 0, 0, 0},
    {"user", qn__take_ignored, 0, 0, 0},
};

enum {
    N_OF_JOB = sizeof of_job / sizeof *of_job,
    N_OF_CHATS = sizeof of_chats / sizeof *of_chats,
    N_OF_COMPLETIONS = sizeof of_completions / sizeof *of_completions
};

/* ---- together -------------------------------------------------------------------------------- */

static qn_status check_together(const reading *r, qn_error *err)
{
    const qn__job *j = r->job;
    if (j->include_usage && !j->stream)
        return qn__fail(err, QN_INVALID, "stream_options: there is no stream");
    if (r->messages.node && !cJSON_IsArray(r->messages.node))
        return qn__json_fail(&r->messages, QN_FORMAT, err, "expected an array of messages");
    if (r->variables.node && !cJSON_IsObject(r->variables.node))
        return qn__json_fail(&r->variables, QN_FORMAT, err, "expected an object");
    if (j->chat ? !r->messages.node : !r->prompt.node)
        return qn__fail(err, QN_INVALID, "%s: missing", j->chat ? "messages" : "prompt");
    return QN_OK;
}

static qn_status make_prompts(reading *r, qn_error *err)
{
    qn__job *j = r->job;
    if (!j->chat)
        return qn__prompt_tokens(r->server, &r->prompt, j, err);
    j->prompts = calloc(1, sizeof *j->prompts);
    if (!j->prompts)
        return qn__fail_memory(err, "a prompt");
    j->n_prompts = 1;
    return qn__chat_tokens(r->server, &r->messages, r->variables.node ? &r->variables : NULL,
                           j->prompts, err);
}

/* What the model asks for, and what the request says instead. */
static void set_generation(qn__job *j, const qn__server *s)
{
    j->sampling = *s->defaults.sampling;
    j->sampling.seed = qn__hash_seed();
    j->generation = QN_INIT(qn_generation_options);
    qn__settings_apply(&j->settings, &j->sampling, &j->generation);
    j->generation.prompt_lookup = s->options.prompt_lookup;
    j->generation.draft_tokens = s->options.draft_tokens;
}

static qn_status read_request(reading *r, const qn__json_at *root, qn_error *err)
{
    qn__job *j = r->job;
    const qn__fields others[] = {
        {of_job, N_OF_JOB, j},
        {j->chat ? of_chats : of_completions, j->chat ? N_OF_CHATS : N_OF_COMPLETIONS, r}};
    if (qn__settings_read(&j->settings, root, others, 2, err) != QN_OK ||
        check_together(r, err) != QN_OK || make_prompts(r, err) != QN_OK)
        return err->code;
    set_generation(j, r->server);
    return QN_OK;
}

qn_status qn__job_parse(qn__job *job, const qn__server *server, bool chat, const char *body,
                        size_t n, qn_error *err)
{
    cJSON *root = NULL;
    *job = (qn__job){.chat = chat, .n = 1, .settings = qn__settings_begin()};
    job->settings.vocab_size = server->info.vocab_size;
    job->settings.most_top_logprobs = MOST_SERVED_LOGPROBS;
    reading r = {.server = server, .job = job};
    if (qn__json_parse(&root, "request", body, n, err) == QN_OK) {
        qn__json_at at = qn__json_root("request", root);
        read_request(&r, &at, err);
    }
    cJSON_Delete(root);
    return err->code;
}

void qn__job_free(qn__job *job)
{
    for (size_t i = 0; i < job->n_prompts; i++)
        qn_tokens_free(&job->prompts[i]);
    free(job->prompts);
    qn__settings_free(&job->settings);
    *job = (qn__job){0};
}
