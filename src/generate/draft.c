/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts: a first step with what has not run of each reply, then one token of each a step.
 */
#include "generate/draft.h"

#include "base/error.h"
#include "core/scope.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512 };

/* ---- beginning and ending -------------------------------------------------------------------- */

/* Whether ids mean the same to both, as far as both can tell. */
static qn_status check_vocabulary(const qn_model *draft, const qn_model *checks, qn_error *err)
{
    const qn_tokenizer *a = draft->tokenizer, *b = checks->tokenizer;
    int64_t n = draft->decoder.config.vocab, m = checks->decoder.config.vocab;
    if (a && b) {
        n = qn_tokenizer_vocab_size(a);
        m = qn_tokenizer_vocab_size(b);
    }
    if (n != m)
        return qn__fail(err, QN_INVALID,
                        "the draft model has %lld tokens, the model that it guesses for %lld; "
                        "guesses need the same ones",
                        (long long)n, (long long)m);
    for (int32_t id = 0; a && b && id < n; id++) {
        const char *x = qn_tokenizer_piece(a, id), *y = qn_tokenizer_piece(b, id);
        if (x && y ? strcmp(x, y) != 0 : x != y)
            return qn__fail(err, QN_INVALID,
                            "token %d is not the same in the draft model and in the model that it "
                            "guesses for",
                            id);
    }
    return QN_OK;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

qn_status qn__drafter_begin(qn__drafter *d, qn_model *model, const qn_model *checks,
                            int64_t sequences, int64_t positions, const qn_flag *cancel,
                            qn_error *err)
{
    const qn__decoder_config *c = &model->decoder.config;
    qn__model_cache_options options = {.keys = NULL};
    int64_t vocab = checks->decoder.config.vocab;
    *d = (qn__drafter){.cancel = cancel,
                       .context = positions < c->max_positions ? positions : c->max_positions,
                       .vocab = vocab < c->vocab ? vocab : c->vocab};
    if (!model->decoder.embedding)
        return qn__fail(err, QN_STATE, "the draft model was opened without its weights");
    if (check_vocabulary(model, checks, err) != QN_OK)
        return err->code;
    qn__cache_room room = {.sequences = sequences, .positions = d->context, .reach = CHUNK};
    if (!(d->best = malloc((size_t)sequences * sizeof *d->best)))
        return qn__fail_memory(err, "a draft model");
    if (qn__model_cache(&d->cache, model, &room, &options, err) != QN_OK)
        return err->code;
    atomic_fetch_add(&model->refs, 1);
    d->model = model;
    return QN_OK;
}

void qn__drafter_end(qn__drafter *d)
{
    if (d->model)
        qn__cache_end(&d->cache);
    qn__batch_free(&d->batch);
    qn_model_close(d->model);
    free(d->best);
    *d = (qn__drafter){0};
}

void qn__draft_end(qn__draft *draft)
{
    qn__sequence_end(&draft->sequence);
    free(draft->ids);
    *draft = (qn__draft){0};
}

/* ---- following a reply ----------------------------------------------------------------------- */

static bool reserve_ids(qn__draft *draft, size_t n)
{
    if (n <= draft->room)
        return true;
    int32_t *ids = realloc(draft->ids, (n + n / 2) * sizeof *ids);
    if (!ids)
        return false;
    draft->ids = ids;
    draft->room = n + n / 2;
    return true;
}

static bool knows(const qn__drafter *d, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= d->vocab)
            return false;
    return true;
}

/* The sequence goes back to what the reply begins with, and is to run the rest. */
static qn_status follow(qn__drafter *d, qn__draft_job *job, int64_t most, qn_error *err)
{
    qn__draft *draft = job->draft;
    const int32_t *said = job->reply->history;
    size_t n = job->reply->n_history, same = 0, ran = (size_t)draft->sequence.length;
    if (!draft->sequence.cache)
        qn__sequence_begin(&draft->sequence, &d->cache);
    if (!reserve_ids(draft, n + QN__MOST_GUESSES))
        return qn__fail_memory(err, "a draft");
    while (same < ran && same + 1 < n && draft->ids[same] == said[same])
        same++;
    same = (size_t)qn__sequence_rewind(&draft->sequence, (int64_t)same);
    memcpy(draft->ids + same, said + same, (n - same) * sizeof *said);
    job->late = (int64_t)(n - same) > most;
    draft->n = job->late ? same + (size_t)most : n;
    size_t room = smaller(job->room, job->guesses->draft.now);
    bool fits = (int64_t)n < d->context && knows(d, said + same, n - same);
    job->room = fits ? smaller(room, (size_t)d->context - n) : 0;
    job->late &= fits;
    job->guesses->by = &job->guesses->draft;
    job->guesses->n = 0;
    return QN_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Tokens that the job has to run now. */
static int64_t to_run(const qn__draft_job *job)
{
    bool goes_on = job->late || job->guesses->n < job->room;
    return goes_on ? (int64_t)job->draft->n - job->draft->sequence.length : 0;
}

static qn_status fill_drafts(qn__drafter *d, qn__draft_job *jobs, size_t n_jobs, qn_error *err)
{
    int64_t room = CHUNK;
    qn__batch_begin(&d->batch, &d->cache);
    for (size_t i = 0; i < n_jobs; i++) {
        qn__draft *draft = jobs[i].draft;
        int64_t left = to_run(&jobs[i]), n = left < room ? left : room;
        const int32_t *ids = draft->ids + draft->sequence.length;
        if (n && qn__batch_add(&d->batch, &draft->sequence, ids, n, n == left && !jobs[i].late,
                               err) != QN_OK)
            return err->code;
        room -= n;
    }
    return QN_OK;
}

/* The most probable tokens behind the step's outputs. */
static qn_status run_drafts(qn__drafter *d, qn_error *err)
{
    qn_scope *s = qn_scope_begin(d->model->device);
    if (!s) {
        qn__batch_end(NULL, &d->batch);
        return qn__fail_memory(err, "a draft");
    }
    int64_t n = d->batch.n_outputs;
    s->cancel = d->cancel;
    qn_array *x = qn__decoder_run(s, &d->model->decoder, &d->batch);
    qn_array *best = n ? qn_argmax(s, x, -1, false) : NULL;
    qn__batch_eval(s, &d->batch, &best, n > 0);
    qn__batch_end(s, &d->batch);
    if (n)
        qn_read(s, best, d->best, (size_t)n * sizeof *d->best);
    qn_status status = qn_scope_status(s);
    if (status != QN_OK)
        qn__fail(err, status, "the draft model: %s", qn_scope_error(s));
    qn_scope_end(s);
    return status;
}

/* Gives the jobs whose tokens are all through the next guess, which is to run if more are wanted.
 */
static void take_guesses(qn__drafter *d, qn__draft_job *jobs, size_t n_jobs)
{
    const int32_t *next = d->best;
    for (size_t i = 0; i < n_jobs; i++) {
        qn__draft *draft = jobs[i].draft;
        qn__guesses *u = jobs[i].guesses;
        if (jobs[i].late || u->n >= jobs[i].room || to_run(&jobs[i]))
            continue;
        int32_t id = *next++;
        if (id < d->vocab)
            draft->ids[draft->n++] = u->id[u->n++] = id;
        else
            jobs[i].room = u->n; /* no token of the other model: that is all */
    }
}

qn_status qn__drafter_run(qn__drafter *d, qn__draft_job *jobs, size_t n_jobs, int64_t most,
                          qn_error *err)
{
    for (size_t i = 0; i < n_jobs; i++)
        if (follow(d, &jobs[i], most, err) != QN_OK)
            return err->code;
    for (;;) {
        if (fill_drafts(d, jobs, n_jobs, err) != QN_OK) {
            qn__batch_end(NULL, &d->batch);
            return err->code;
        }
        if (!d->batch.n_tokens)
            return QN_OK;
        if (run_drafts(d, err) != QN_OK)
            return err->code;
        take_guesses(d, jobs, n_jobs);
    }
}
