/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend "mlx_lm": a child process of Python runs bridge.py, which runs the model with mlx-lm.
 * They talk in JSON Lines. Whatever is wrong with the child (it ends, says what is no line of the
 * protocol, or nothing for too long) ends it, and is the error of the call that saw it.
 */
#include "backends/backend.h"
#include "backends/mlx_lm/child.h"
#include "backends/mlx_lm/script.h"

#include "base/buffers.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_SECONDS   600.0
#define ANSWER_SECONDS 30.0 /* for what takes no time */
#define END_SECONDS    2.0

typedef struct bridge {
    qn__child child;
    cJSON *line; /* the newest one */
} bridge;

/* ---- lines ----------------------------------------------------------------------------------- */

static qn__patience patient(double seconds, const qn_flag *cancel)
{
    return (qn__patience){seconds > 0 ? qn__seconds() + seconds : 0, cancel};
}

/* Says where it went wrong. */
static qn_status fail_bridge(const qn_error *why, qn_error *err)
{
    return qn__fail(err, why->code, why->code == QN_CANCELLED ? "%s" : "mlx_lm: %s", why->message);
}

static qn_status fail_garbage(bridge *s, const char *line, size_t n, qn_error *err)
{
    char quoted[100];
    qn__utf8_quote(quoted, sizeof quoted, line, n);
    qn_status status =
        qn__fail(err, QN_FORMAT, "mlx_lm: this is no answer of Python's: %s", quoted);
    qn__child_end(&s->child, 0);
    return status;
}

static qn_status send_text(bridge *s, const qn_text *text, qn_error *err)
{
    qn_error why = {0};
    qn__patience p = patient(ANSWER_SECONDS, NULL); /* half a line cannot be taken back */
    return qn__child_send(&s->child, text->data, text->n, &p, &why) == QN_OK
               ? QN_OK
               : fail_bridge(&why, err);
}

static qn_status send_command(bridge *s, const char *line, qn_error *err)
{
    return send_text(s, &(qn_text){(char *)line, strlen(line), 0}, err);
}

/* The next answer; an error that it says is one. */
static qn_status read_answer(bridge *s, const qn__patience *p, qn__json_at *at, qn_error *err)
{
    const char *line, *said = NULL;
    size_t n;
    qn_error why = {0};
    cJSON_Delete(s->line);
    s->line = NULL;
    if (qn__child_line(&s->child, p, &line, &n, &why) != QN_OK)
        return fail_bridge(&why, err);
    if (qn__json_parse(&s->line, "mlx_lm", line, n, &why) != QN_OK || !cJSON_IsObject(s->line))
        return fail_garbage(s, line, n, err);
    *at = qn__json_root("mlx_lm", s->line);
    qn__json_opt_string(at, "error", &said, &why);
    return said ? qn__fail(err, QN_IO, "mlx_lm: %s", said) : QN_OK;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static qn_status begin_python(qn_backend *b, bridge *s, qn_error *err)
{
    char *script;
    qn_error why = {0};
    const char *named = getenv("QUERN_PYTHON");
    const char *python = b->options.python ? b->options.python
                         : named && *named ? named
                                           : "python3";
    if (qn__mlx_lm_script(&script, &why) == QN_OK)
        qn__child_start(&s->child, python, script, &why);
    free(script);
    if (why.code == QN_NOT_FOUND)
        return qn__fail(err, why.code, "mlx_lm: %s; QUERN_PYTHON names a Python", why.message);
    return why.code == QN_OK ? QN_OK : fail_bridge(&why, err);
}

static qn_status read_info(qn_backend *b, bridge *s, qn_error *err)
{
    qn__json_at at;
    const char *type;
    const qn__patience p = patient(ANSWER_SECONDS, b->options.cancel);
    qn_backend_info *i = &b->info;
    if (send_command(s, "{\"cmd\":\"info\"}\n", err) != QN_OK ||
        read_answer(s, &p, &at, err) != QN_OK ||
        qn__json_get_string(&at, "model_type", &type, err) != QN_OK ||
        qn__json_get_int(&at, "vocab_size", 0, INT32_MAX, &i->vocab_size, err) != QN_OK ||
        qn__json_get_int(&at, "layers", 0, INT32_MAX, &i->n_layers, err) != QN_OK)
        return err->code;
    snprintf(i->model_type, sizeof i->model_type, "%s", type);
    return qn__json_get_int(&at, "hidden_size", 0, INT32_MAX, &i->hidden_size, err);
}

static qn_status load_model(qn_backend *b, bridge *s, const char *path, qn_error *err)
{
    qn__json_at at;
    qn_text line = {0};
    double seconds = b->options.load_seconds > 0 ? b->options.load_seconds : LOAD_SECONDS;
    const qn__patience p = patient(seconds, b->options.cancel);
    size_t n = strlen(path);
    static const char head[] = "{\"cmd\":\"load\",\"path\":", tail[] = "}\n";
    if (qn__utf8_check(path, n) != n)
        return qn__fail(err, QN_INVALID, "mlx_lm: the path is not UTF-8");
    if (!qn__text_append(&line, head, sizeof head - 1) || !qn__text_append_json(&line, path, n) ||
        !qn__text_append(&line, tail, sizeof tail - 1))
        qn__fail_memory(err, "a line");
    else if (send_text(s, &line, err) == QN_OK)
        read_answer(s, &p, &at, err);
    qn_text_free(&line);
    return err->code == QN_OK ? read_info(b, s, err) : err->code;
}

static qn_status open_mlx_lm(qn_backend *b, const char *path, qn_error *err)
{
    bridge *s = b->state = calloc(1, sizeof *s);
    if (!s)
        return qn__fail_memory(err, "a backend");
    s->child.fd = s->child.errors = -1;
    return begin_python(b, s, err) == QN_OK ? load_model(b, s, path, err) : err->code;
}

static void close_mlx_lm(qn_backend *b)
{
    bridge *s = b->state;
    if (!s)
        return;
    qn__child_end(&s->child, END_SECONDS);
    cJSON_Delete(s->line);
    free(s);
}

/* ---- replies --------------------------------------------------------------------------------- */

static qn_status refuse_settings(const qn_generation_options *o, qn_error *err)
{
    const qn_sampling *p = o->sampling;
    const char *field = p->repeat_penalty > 0 && p->repeat_penalty != 1 ? "repeat_penalty"
                        : p->presence_penalty != 0                      ? "presence_penalty"
                        : p->frequency_penalty != 0                     ? "frequency_penalty"
                        : p->n_bias                                     ? "logit_bias"
                        : p->chain[0] != QN_SAMPLER_END                 ? "samplers"
                        : o->ban_stop || o->ignore_stop                 ? "ignore_eos"
                        : o->n_stop || o->n_stop_strings                ? "stop"
                        : o->prompt_lookup                              ? "prompt_lookup"
                        : o->draft_tokens                               ? "draft_tokens"
                                                                        : NULL;
    return field ? qn__fail(err, QN_UNSUPPORTED,
                            "mlx_lm: %s is not possible; max_tokens, temperature, top_p, top_k, "
                            "min_p and seed are, and the backend native has all",
                            field)
                 : QN_OK;
}

static bool put_messages(qn_text *line, const qn__asked *asked)
{
    bool ok = qn__text_append(line, "{\"cmd\":\"chat\",\"messages\":[", 26);
    for (size_t i = 0; ok && i < asked->n; i++) {
        const qn_chat_message *m = &asked->messages[i];
        size_t n = m->content_size ? m->content_size : strlen(m->content);
        ok = qn__text_append(line, i ? ",{\"role\":" : "{\"role\":", i ? 9 : 8) &&
             qn__text_append_json(line, m->role, strlen(m->role)) &&
             qn__text_append(line, ",\"content\":", 11) &&
             qn__text_append_json(line, m->content, n) && qn__text_append(line, "}", 1);
    }
    return ok && qn__text_append(line, "]", 1);
}

static bool put_prompt(qn_text *line, const qn__asked *asked)
{
    return qn__text_append(line, "{\"cmd\":\"generate\",\"prompt\":", 27) &&
           qn__text_append_json(line, asked->prompt, asked->n);
}

/* The command, all of whose settings are said. */
static qn_status put_asked(qn_text *line, const qn__asked *asked, qn_error *err)
{
    const qn_sampling *p = asked->options->sampling;
    char rest[300];
    int n = snprintf(rest, sizeof rest,
                     ",\"max_tokens\":%lld,\"temperature\":%.9g,\"top_p\":%.9g,\"min_p\":%.9g,"
                     "\"top_k\":%d,\"seed\":%llu}\n",
                     (long long)asked->options->max_tokens, (double)p->temperature,
                     (double)p->top_p, (double)p->min_p, p->top_k, (unsigned long long)p->seed);
    if (!(asked->messages ? put_messages(line, asked) : put_prompt(line, asked)) ||
        !qn__text_append(line, rest, (size_t)n))
        return qn__fail_memory(err, "a line");
    return qn__utf8_check(line->data, line->n) == line->n
               ? QN_OK
               : qn__fail(err, QN_FORMAT, "mlx_lm: what is asked is not UTF-8");
}

/* One answer of a reply; *finish says how it ended, where it did. */
static qn_status take_answer(const qn__asked *asked, const qn__json_at *at, const char **finish,
                             qn_error *err)
{
    const char *text;
    int64_t id;
    *finish = NULL;
    if (cJSON_HasObjectItem(at->node, "done"))
        return qn__json_get_string(at, "finish", finish, err);
    if (qn__json_get_string(at, "token", &text, err) != QN_OK ||
        qn__json_get_int(at, "token_id", -1, INT32_MAX, &id, err) != QN_OK)
        return err->code;
    return asked->token(asked->user, (int32_t)id, text, strlen(text))
               ? QN_OK
               : qn__fail(err, QN_CANCELLED, "cancelled");
}

/* Ends the reply: what is left of it is not given. A child that does not answer is ended. */
static void cancel_reply(bridge *s)
{
    qn__json_at at;
    const char *finish = "";
    const qn__patience p = patient(ANSWER_SECONDS, NULL);
    send_command(s, "{\"cmd\":\"cancel\"}\n", NULL);
    while (s->child.fd >= 0 && strcmp(finish, "idle") != 0) {
        qn_error why = {0};
        finish = "";
        if (read_answer(s, &p, &at, &why) == QN_OK)
            qn__json_opt_string(&at, "finish", &finish, &why);
        else if (why.code == QN_MEMORY)
            qn__child_end(&s->child, 0);
    }
}

static qn_status run_answers(qn_backend *b, bridge *s, const qn__asked *asked, qn_error *err)
{
    qn__json_at at;
    const char *finish = NULL;
    const qn__patience p = patient(0, b->options.cancel);
    qn_status status = QN_OK;
    while (status == QN_OK && !finish && (status = read_answer(s, &p, &at, err)) == QN_OK)
        status = take_answer(asked, &at, &finish, err);
    if (status == QN_CANCELLED)
        cancel_reply(s);
    else if (status == QN_FORMAT) /* it is out of step */
        qn__child_end(&s->child, 0);
    else if (finish)
        b->metrics.finish = !strcmp(finish, "stop") ? QN_FINISH_STOP : QN_FINISH_LENGTH;
    return status;
}

static qn_status reply_mlx_lm(qn_backend *b, const qn__asked *asked, qn_error *err)
{
    bridge *s = b->state;
    qn_text line = {0};
    if (refuse_settings(asked->options, err) == QN_OK && put_asked(&line, asked, err) == QN_OK &&
        send_text(s, &line, err) == QN_OK)
        run_answers(b, s, asked, err);
    qn_text_free(&line);
    return err->code;
}

const qn__backend_kind qn__backend_mlx_lm = {"mlx_lm", open_mlx_lm, reply_mlx_lm, close_mlx_lm};
