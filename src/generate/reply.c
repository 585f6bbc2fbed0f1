/* SPDX-License-Identifier: Apache-2.0
 *
 * A reply: choosing tokens, where it ends, its text. Text is decoded when it is asked for or when
 * stop strings have to be looked for.
 */
#include "generate/reply.h"

#include "base/error.h"
#include "base/sized.h"
#include "generate/guess.h"
#include "generate/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t vocab_size(const qn__reply *r)
{
    return (size_t)r->model->decoder.config.vocab;
}

static bool reserve_history(qn__reply *r, size_t n)
{
    if (n <= r->room)
        return true;
    size_t room = n + n / 2 + 256;
    int32_t *history = realloc(r->history, room * sizeof *history);
    if (!history)
        return false;
    r->history = history;
    r->room = room;
    return true;
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* A stop string; where it is the name of a special token, that token, too. */
static qn_status add_stop_string(qn__reply *r, const char *string, qn_error *err)
{
    const qn_tokenizer *t = r->model->tokenizer;
    if (qn__stops_add(&r->stops, string, err) != QN_OK)
        return err->code;
    int32_t id = qn_tokenizer_find(t, string);
    if (id >= 0 && qn_tokenizer_is_special(t, id))
        r->stop[r->n_stop++] = id;
    return QN_OK;
}

/* The model's stop tokens and strings, and the caller's. */
static qn_status take_stops(qn__reply *r, const qn_generation_options *o, qn_error *err)
{
    const qn_model *m = r->model;
    size_t n_strings = m->tokenizer ? m->n_stop_strings : 0;
    if (o->n_stop_strings && !m->tokenizer)
        return qn__fail(err, QN_STATE,
                        "stop strings need the model's tokenizer, without which it was opened");
    r->stop = malloc((m->n_stop + o->n_stop + n_strings + o->n_stop_strings + 1) * sizeof *r->stop);
    if (!r->stop)
        return qn__fail_memory(err, "a generation");
    memcpy(r->stop, m->stop, m->n_stop * sizeof *r->stop);
    if (o->n_stop)
        memcpy(r->stop + m->n_stop, o->stop, o->n_stop * sizeof *r->stop);
    r->n_stop = m->n_stop + o->n_stop;
    for (size_t i = 0; i < n_strings; i++)
        if (add_stop_string(r, m->stop_strings[i], err) != QN_OK)
            return err->code;
    for (size_t i = 0; i < o->n_stop_strings; i++)
        if (add_stop_string(r, o->stop_strings[i], err) != QN_OK)
            return err->code;
    return QN_OK;
}

/* The settings, with biases of our own. */
static qn_status take_sampling(qn__reply *r, const qn_generation_options *o, qn_error *err)
{
    size_t vocab = vocab_size(r);
    qn_sampling *p = &r->sampling;
    if (qn__sized_in(p, sizeof *p, o->sampling, "qn_sampling", err) != QN_OK ||
        qn__sampling_check(p, vocab, err) != QN_OK)
        return err->code;
    r->bias = malloc((p->n_bias + r->n_stop + 1) * sizeof *r->bias);
    if (!r->bias)
        return qn__fail_memory(err, "a generation");
    if (p->n_bias)
        memcpy(r->bias, p->bias, p->n_bias * sizeof *r->bias);
    for (size_t i = 0; o->ban_stop && i < r->n_stop; i++)
        if (r->stop[i] >= 0 && (size_t)r->stop[i] < vocab)
            r->bias[p->n_bias++] = (qn_token_bias){r->stop[i], -INFINITY};
    p->bias = r->bias;
    return QN_OK;
}

static qn_status take_logprobs(qn__reply *r, const qn_generation_options *o, qn_error *err)
{
    if (!o->logprobs)
        return QN_OK;
    if (o->top_logprobs < 0 || o->top_logprobs > 1000)
        return qn__fail(err, QN_INVALID, "top_logprobs %d; give 0 to 1000", o->top_logprobs);
    r->n_top = (size_t)o->top_logprobs;
    r->logprobs = malloc((r->n_top + 1) * sizeof *r->logprobs);
    return r->logprobs ? QN_OK : qn__fail_memory(err, "a generation");
}

static qn_status take_prompt(qn__reply *r, const int32_t *ids, size_t n,
                             const qn_generation_options *o, qn_error *err)
{
    if (!reserve_history(r, o->n_before + n))
        return qn__fail_memory(err, "a generation");
    if (o->n_before)
        memcpy(r->history, o->before, o->n_before * sizeof *ids);
    memcpy(r->history + o->n_before, ids, n * sizeof *ids);
    r->n_before = o->n_before;
    r->n_history = r->n_prompt = r->n_decoded = o->n_before + n;
    return QN_OK;
}

qn_status qn__reply_begin(qn__reply *r, const qn_model *model, const int32_t *ids, size_t n,
                          const qn_generation_options *options, qn_error *err)
{
    qn_generation_options o;
    *r = (qn__reply){.model = model};
    if (qn__sized_in(&o, sizeof o, options, "qn_generation_options", err) != QN_OK)
        return err->code;
    if (!n)
        return qn__fail(err, QN_INVALID, "there is no prompt: generation needs at least one token");
    if (o.max_tokens < 0)
        return qn__fail(err, QN_INVALID, "max_tokens %lld; give 0 for no limit of your own",
                        (long long)o.max_tokens);
    if (o.prompt_lookup < 0 || o.prompt_lookup > QN__MOST_GUESSES || o.draft_tokens < 0 ||
        o.draft_tokens > QN__MOST_GUESSES)
        return qn__fail(err, QN_INVALID, "prompt_lookup %d or draft_tokens %d; give 0 to %d",
                        o.prompt_lookup, o.draft_tokens, QN__MOST_GUESSES);
    r->prompt_lookup = o.prompt_lookup;
    r->draft_tokens = o.draft_tokens;
    int64_t limit = model->max_tokens;
    r->max_tokens = o.max_tokens ? o.max_tokens : limit ? limit : INT64_MAX;
    if (take_stops(r, &o, err) != QN_OK || take_sampling(r, &o, err) != QN_OK ||
        take_logprobs(r, &o, err) != QN_OK || take_prompt(r, ids, n, &o, err) != QN_OK)
        return err->code;
    if (o.ignore_stop) {
        r->n_stop = 0;
        qn__stops_end(&r->stops);
    }
    return QN_OK;
}

void qn__reply_end(qn__reply *r)
{
    qn__stops_end(&r->stops);
    qn_decoder_free(r->decoder);
    free(r->logprobs);
    free(r->bias);
    free(r->stop);
    free(r->history);
    *r = (qn__reply){0};
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Decodes what has been generated, and looks for stop strings in it. */
static qn_status decode_new(qn__reply *r, bool flush, qn_error *err)
{
    const qn_tokenizer *t = r->model->tokenizer;
    size_t before = r->stops.text.n;
    if (!t)
        return qn__fail(err, QN_STATE,
                        "text needs the model's tokenizer, without which it was opened");
    if (!r->decoder && !(r->decoder = qn_decoder_new(t, QN_SKIP_SPECIAL)))
        return qn__fail_memory(err, "a generation's text");
    qn_status status = QN_OK;
    while (status == QN_OK && r->n_decoded < r->n_history && !r->stops.found)
        status = qn_decoder_push(r->decoder, r->history[r->n_decoded++], &r->stops.text, err);
    if (status == QN_OK && flush && !r->stops.found)
        status = qn_decoder_flush(r->decoder, &r->stops.text, err);
    qn__stops_look(&r->stops, before);
    return status;
}

qn_status qn__reply_text(qn__reply *r, bool all, qn_text *out, qn_error *err)
{
    bool last = all || r->finish != QN_FINISH_NONE;
    qn_status status = decode_new(r, last, err);
    return status == QN_OK ? qn__stops_give(&r->stops, last, out, err) : status;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

size_t qn__reply_generated(const qn__reply *r)
{
    return r->n_history - r->n_prompt;
}

bool qn__reply_wants_logits(const qn__reply *r)
{
    return r->logprobs != NULL;
}

qn_status qn__reply_draw(qn__reply *r, qn__draws *draws, size_t first, const int32_t *guesses,
                         size_t n, qn_error *err)
{
    if (!reserve_history(r, r->n_history + n))
        return qn__fail_memory(err, "a generation");
    if (n)
        memcpy(r->history + r->n_history, guesses, n * sizeof *guesses);
    for (size_t i = 0; i <= n; i++)
        if (qn__draws_set(draws, first + i, &r->sampling, r->history, r->n_history + i,
                          qn__reply_generated(r) + i, err) != QN_OK)
            return err->code;
    return QN_OK;
}

qn_status qn__reply_draw_behind(const qn__reply *r, qn__draws *draws, size_t row, int32_t place,
                                qn_error *err)
{
    return qn__draws_set_behind(draws, row, &r->sampling, r->history, r->n_history,
                                qn__reply_generated(r), place, err);
}

bool qn__reply_goes_ahead(const qn__reply *r)
{
    return !r->logprobs && !r->prompt_lookup && !r->draft_tokens;
}

qn_status qn__reply_take_draw(qn__reply *r, int32_t id, const float *logits, qn_error *err)
{
    if (id < 0)
        return qn__draws_fail(&r->sampling, err);
    return r->logprobs ? qn_logprobs(r->model->device, logits, vocab_size(r), id, r->n_top,
                                     r->logprobs, err)
                       : QN_OK;
}

static bool is_stop(const qn__reply *r, int32_t id)
{
    for (size_t i = 0; i < r->n_stop; i++)
        if (r->stop[i] == id)
            return true;
    return false;
}

qn_status qn__reply_accept(qn__reply *r, int32_t next, int32_t *id, qn_error *err)
{
    *id = -1;
    if (is_stop(r, next)) {
        r->finish = QN_FINISH_STOP;
        return QN_OK;
    }
    if (!reserve_history(r, r->n_history + 1))
        return qn__fail_memory(err, "a generation");
    r->history[r->n_history++] = next;
    *id = next;
    if (!r->stops.n)
        return QN_OK;
    qn_status status = decode_new(r, false, err);
    if (r->stops.found)
        r->finish = QN_FINISH_STOP;
    return status;
}
