/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing JSON: replies whole and in pieces, as OpenAI has them, and errors.
 */
#include "server/inside.h"

#include "base/buffers.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pages ----------------------------------------------------------------------------------- */

static void put_bytes(qn__page *p, const char *data, size_t n)
{
    p->failed |= !qn__text_append(&p->text, data, n);
}

void qn__put(qn__page *p, const char *text)
{
    put_bytes(p, text, strlen(text));
}

void qn__put_format(qn__page *p, const char *format, ...)
{
    char piece[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    p->failed |= n < 0 || (size_t)n >= sizeof piece;
    put_bytes(p, piece, strlen(piece));
}

void qn__put_string(qn__page *p, const char *text, size_t n)
{
    p->failed |= !qn__text_append_json(&p->text, text, n);
}

void qn__put_error(qn__page *p, int status, const char *message)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 404 ? "not_found_error"
                       : status == 429 ? "rate_limit_error"
                       : status == 503 ? "unavailable_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";
    qn__put_format(p, "{\"error\":{\"code\":%d,\"message\":", status);
    qn__put_string(p, message, qn__utf8_check(message, strlen(message)));
    qn__put_format(p, ",\"type\":\"%s\"}}", type);
}

/* ---- log probabilities ----------------------------------------------------------------------- */

/* A token's bytes, and its text: the same, or for a part of a character "bytes:\xe2\x80". */
static void token_text(const qn_tokenizer *t, int32_t id, qn_text *bytes, qn__page *text)
{
    qn_tokenizer_token_bytes(t, id, bytes, NULL);
    const char *data = bytes->data ? bytes->data : "";
    if (qn__utf8_check(data, bytes->n) == bytes->n) {
        put_bytes(text, data, bytes->n);
        return;
    }
    qn__put(text, "bytes:");
    for (size_t i = 0; i < bytes->n; i++)
        qn__put_format(text, "\\x%02x", (unsigned char)data[i]);
}

static void put_token(qn__page *p, const qn_tokenizer *t, int32_t id, bool with_bytes)
{
    qn_text bytes = {0};
    qn__page text = {0};
    token_text(t, id, &bytes, &text);
    p->failed |= text.failed;
    qn__put_string(p, text.text.data ? text.text.data : "", text.text.n);
    if (with_bytes)
        qn__put(p, ",\"bytes\":[");
    for (size_t i = 0; with_bytes && i < bytes.n; i++)
        qn__put_format(p, "%s%d", i ? "," : "", (unsigned char)bytes.data[i]);
    if (with_bytes)
        qn__put(p, "]");
    qn_text_free(&bytes);
    qn_text_free(&text.text);
}

/* JSON has no infinity; -9999 is OpenAI's. */
static double finite(float logprob)
{
    return logprob > -9999 ? (double)logprob : -9999;
}

static void put_chat_logprob(qn__page *p, const qn_tokenizer *t, const qn_logprob *l)
{
    qn__put(p, "{\"token\":");
    put_token(p, t, l->id, true);
    qn__put_format(p, ",\"logprob\":%.7g", finite(l->logprob));
}

/* {"content":[{"token":...,"bytes":[...],"logprob":x,"top_logprobs":[...]}]} */
static void put_chat_logprobs(qn__page *p, const qn_tokenizer *t, const qn__choice *c, size_t top)
{
    qn__put(p, "{\"content\":[");
    for (size_t i = 0; i < c->n_logprobs; i++) {
        const qn_logprob *l = c->logprobs + i * (top + 1);
        qn__put(p, i ? "," : "");
        put_chat_logprob(p, t, l);
        qn__put(p, ",\"top_logprobs\":[");
        for (size_t k = 1; k <= top && l[k].id >= 0; k++) {
            qn__put(p, k > 1 ? "," : "");
            put_chat_logprob(p, t, &l[k]);
            qn__put(p, "}");
        }
        qn__put(p, "]}");
    }
    qn__put(p, "]}");
}

/* {"token":logprob,...} of the most probable ones; texts that several tokens share count once. */
static void put_top(qn__page *p, const qn_tokenizer *t, const qn_logprob *l, size_t top)
{
    qn__put(p, "{");
    for (size_t k = 1; k <= top && l[k].id >= 0; k++) {
        qn__page key = {0};
        put_token(&key, t, l[k].id, false);
        bool seen = false;
        for (size_t j = 1; j < k && !seen; j++) {
            qn__page other = {0};
            put_token(&other, t, l[j].id, false);
            seen =
                other.text.n == key.text.n && !memcmp(other.text.data, key.text.data, key.text.n);
            qn_text_free(&other.text);
        }
        p->failed |= key.failed;
        if (!seen)
            qn__put_format(p, "%s", k > 1 ? "," : "");
        if (!seen)
            put_bytes(p, key.text.data, key.text.n);
        if (!seen)
            qn__put_format(p, ":%.7g", finite(l[k].logprob));
        qn_text_free(&key.text);
    }
    qn__put(p, "}");
}

static size_t characters_of(const qn_tokenizer *t, int32_t id)
{
    qn_text bytes = {0};
    qn_tokenizer_token_bytes(t, id, &bytes, NULL);
    size_t n = 0;
    for (size_t i = 0; i < bytes.n; i++)
        n += ((unsigned char)bytes.data[i] & 0xc0) != 0x80;
    qn_text_free(&bytes);
    return n;
}

/* {"tokens":[...],"token_logprobs":[...],"top_logprobs":[{...}],"text_offset":[...]} */
static void put_lists(qn__page *p, const qn_tokenizer *t, qn__choice *c, size_t top)
{
    size_t n = c->n_logprobs, row = top + 1;
    qn__put(p, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        qn__put(p, i ? "," : "");
        put_token(p, t, c->logprobs[i * row].id, false);
    }
    qn__put(p, "],\"token_logprobs\":[");
    for (size_t i = 0; i < n; i++)
        qn__put_format(p, "%s%.7g", i ? "," : "", finite(c->logprobs[i * row].logprob));
    qn__put(p, "],\"top_logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        qn__put(p, i ? "," : "");
        put_top(p, t, c->logprobs + i * row, top);
    }
    qn__put(p, "],\"text_offset\":[");
    for (size_t i = 0; i < n; i++) {
        qn__put_format(p, "%s%zu", i ? "," : "", c->offset);
        c->offset += characters_of(t, c->logprobs[i * row].id);
    }
    qn__put(p, "]}");
}

/* Those that were not written; afterwards they were. */
static void put_logprobs(qn__page *p, const qn__exchange *x, qn__choice *c)
{
    const qn_tokenizer *t = qn_model_tokenizer(x->server->model);
    size_t top = (size_t)x->job.generation.top_logprobs;
    qn__put(p, ",\"logprobs\":");
    if (!x->job.generation.logprobs)
        qn__put(p, "null");
    else if (x->job.chat)
        put_chat_logprobs(p, t, c, top);
    else
        put_lists(p, t, c, top);
    c->n_logprobs = 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

static void put_reply_head(qn__page *p, const qn__exchange *x, const char *object)
{
    const qn__server *s = x->server;
    qn__put_format(p, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object,
                   (long long)x->created);
    const char *name = qn__served_name(s, x->job.adapter);
    qn__put_string(p, name, strlen(name));
    qn__put(p, ",\"choices\":[");
}

static void put_stream_head(qn__page *p, const qn__exchange *x)
{
    qn__put(p, "data: ");
    put_reply_head(p, x, x->job.chat ? "chat.completion.chunk" : "text_completion");
}

static void put_usage(qn__page *p, const qn__exchange *x)
{
    unsigned long long prompt = x->prompt_tokens, said = x->generated_tokens;
    qn__put_format(p,
                   "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,"
                   "\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
                   prompt, said, prompt + said, (unsigned long long)x->cached_tokens);
}

static void put_finish(qn__page *p, qn_finish finish)
{
    qn__put_format(p, ",\"finish_reason\":%s}",
                   finish == QN_FINISH_NONE   ? "null"
                   : finish == QN_FINISH_STOP ? "\"stop\""
                                              : "\"length\"");
}

static void put_text(qn__page *p, qn__choice *c)
{
    qn__put_string(p, c->text.data ? c->text.data : "", c->text.n);
    c->text.n = 0;
}

void qn__put_opening(qn__page *p, const qn__exchange *x)
{
    for (size_t i = 0; x->job.chat && i < x->n_choices; i++) {
        put_stream_head(p, x);
        qn__put_format(p,
                       "{\"index\":%zu,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                       "\"logprobs\":null,\"finish_reason\":null}]%s}\n\n",
                       i, x->job.include_usage ? ",\"usage\":null" : "");
    }
}

void qn__put_chunk(qn__page *p, qn__exchange *x, size_t i)
{
    qn__choice *c = &x->choices[i];
    put_stream_head(p, x);
    qn__put_format(p, "{\"index\":%zu,", i);
    if (!x->job.chat) {
        qn__put(p, "\"text\":");
        put_text(p, c);
    } else if (c->text.n) {
        qn__put(p, "\"delta\":{\"content\":");
        put_text(p, c);
        qn__put(p, "}");
    } else
        qn__put(p, "\"delta\":{}");
    put_logprobs(p, x, c);
    put_finish(p, c->finish);
    qn__put_format(p, "]%s}\n\n", x->job.include_usage ? ",\"usage\":null" : "");
}

void qn__put_ending(qn__page *p, const qn__exchange *x)
{
    if (x->job.include_usage) {
        put_stream_head(p, x);
        qn__put(p, "],");
        put_usage(p, x);
        qn__put(p, "}\n\n");
    }
    qn__put(p, "data: [DONE]\n\n");
}

void qn__put_whole(qn__page *p, qn__exchange *x)
{
    put_reply_head(p, x, x->job.chat ? "chat.completion" : "text_completion");
    for (size_t i = 0; i < x->n_choices; i++) {
        qn__choice *c = &x->choices[i];
        qn__put_format(p, "%s{\"index\":%zu,", i ? "," : "", i);
        qn__put(p, x->job.chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
        put_text(p, c);
        qn__put(p, x->job.chat ? "}" : "");
        put_logprobs(p, x, c);
        put_finish(p, c->finish);
    }
    qn__put(p, "],");
    put_usage(p, x);
    qn__put(p, "}");
}
