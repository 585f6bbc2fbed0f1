/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts in steps. A text that does not fit the rest of a step goes on in the next one, so that
 * steps are full whatever the lengths.
 */
#include "generate/forward.h"

#include "base/error.h"
#include "base/sized.h"
#include "core/scope.h"

#include <stdlib.h>

enum { STEP_TOKENS = 512, ROW_BYTES = 64 << 20, LEAST_ROWS = 16 };

qn_status qn__forward_check(const qn_model *model, const qn_ids *texts, size_t n, size_t behind,
                            const char *what, qn_error *err)
{
    int64_t most = model->decoder.config.max_positions;
    if (!model->decoder.embedding)
        return qn__fail(err, QN_STATE, "the model was opened without its weights");
    for (size_t i = 0; i < n; i++) {
        qn_error wrong = {0};
        if (texts[i].n == 0)
            return qn__fail(err, QN_INVALID, "%s %zu has no tokens", what, i);
        if (texts[i].n + behind > (size_t)most)
            return qn__fail(err, QN_LIMIT, "%s %zu: %zu tokens do not fit the context of %lld",
                            what, i, texts[i].n + behind, (long long)most);
        if (qn__model_check_tokens(model, texts[i].ids, texts[i].n, &wrong) != QN_OK)
            return qn__fail(err, wrong.code, "%s %zu: %s", what, i, wrong.message);
    }
    return QN_OK;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static qn_status read_forward_options(qn_forward_options *o, const qn_forward_options *given,
                                      qn_error *err)
{
    if (qn__sized_in(o, sizeof *o, given, "qn_forward_options", err) != QN_OK)
        return err->code;
    if (o->step_tokens < 0 || o->step_tokens > 1 << 20 || o->cache_tokens < 0)
        return qn__fail(err, QN_INVALID, "step_tokens %lld or cache_tokens %lld is out of range",
                        (long long)o->step_tokens, (long long)o->cache_tokens);
    o->step_tokens = o->step_tokens ? o->step_tokens : STEP_TOKENS;
    return QN_OK;
}

qn_status qn__forward_begin(qn__forward *f, const qn_model *model,
                            const qn_forward_options *options, const qn__cache_room *room,
                            bool hidden, qn_error *err)
{
    const qn__decoder_config *c = &model->decoder.config;
    *f = (qn__forward){.model = model, .hidden = hidden};
    if (read_forward_options(&f->options, options, err) != QN_OK)
        return err->code;
    f->width = hidden ? c->hidden : c->vocab;
    int64_t fit = ROW_BYTES / (int64_t)sizeof(float) / f->width;
    fit = fit < LEAST_ROWS ? LEAST_ROWS : fit;
    f->most_rows = fit < f->options.step_tokens ? fit : f->options.step_tokens;
    f->rows = malloc((size_t)(f->most_rows * f->width) * sizeof *f->rows);
    if (!f->rows)
        return qn__fail_memory(err, "a step's results");
    qn__cache_room with = *room;
    if (!with.sequences) /* those of a step, and one that goes on */
        with.sequences = f->options.step_tokens + 1;
    with.reach = with.reach > f->options.step_tokens ? with.reach : f->options.step_tokens;
    with.total += f->options.step_tokens;
    return qn__model_cache(&f->cache, model, &with, &(qn__model_cache_options){0}, err);
}

void qn__forward_end(qn__forward *f)
{
    if (f->cache.kept)
        qn__cache_end(&f->cache);
    qn__batch_free(&f->batch);
    free(f->rows);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* How far the texts have come: `at` tokens of `text`, all of those before. */
typedef struct progress_of {
    size_t text, at;
} progress_of;

/* Adds what fits a step from *to on, which is moved behind it. */
static qn_status fill_step(qn__forward *f, qn__sequence *sequences, const qn_ids *texts, size_t n,
                           bool all, progress_of *to, qn_error *err)
{
    qn__batch *b = &f->batch;
    qn__batch_begin(b, &f->cache);
    while (to->text < n) {
        const qn_ids *text = &texts[to->text];
        int64_t left = (int64_t)(text->n - to->at), room = f->options.step_tokens - b->n_tokens;
        int64_t rows = f->most_rows - b->n_outputs;
        int64_t take = all && rows < room ? rows : room;
        take = take < left ? take : left;
        if (take <= 0 || (!all && take == left && rows <= 0))
            return QN_OK;
        int64_t outputs = all ? take : take == left;
        if (qn__batch_add(b, &sequences[to->text], text->ids + to->at, take, outputs, err) != QN_OK)
            return err->code;
        to->at += (size_t)take;
        if (to->at == text->n)
            *to = (progress_of){to->text + 1, 0};
    }
    return QN_OK;
}

static qn_status run_texts_step(qn__forward *f, qn_error *err)
{
    qn_scope *s = qn_scope_begin(f->model->device);
    if (!s) {
        qn__batch_end(NULL, &f->batch);
        return qn__fail_memory(err, "a step");
    }
    const qn__decoder *m = &f->model->decoder;
    int64_t n_rows = f->batch.n_outputs;
    qn_array *rows = NULL;
    s->cancel = f->options.cancel;
    if (f->hidden) {
        qn__batch_record(s, &f->batch);
        rows = qn__decoder_hidden(s, m, f->batch.tokens, &f->batch, NULL);
        rows = n_rows ? qn__batch_outputs(s, &f->batch, rows) : NULL;
    } else {
        rows = qn__decoder_run(s, m, &f->batch);
    }
    qn__batch_eval(s, &f->batch, &rows, rows != NULL);
    f->done += (uint64_t)f->batch.n_tokens;
    qn__batch_end(s, &f->batch);
    if (rows)
        qn_read_f32(s, rows, f->rows, (size_t)(n_rows * f->width));
    qn__scope_end(s, err);
    return err->code;
}

/* Gives the step's rows, of the tokens from `from` up to `to`. */
static qn_status give_rows(const qn__forward *f, const qn_ids *texts, progress_of from,
                           progress_of to, bool all, qn__row_fn *row, void *user, qn_error *err)
{
    const float *next = f->rows;
    while (from.text < to.text || (from.text == to.text && from.at < to.at)) {
        size_t n = texts[from.text].n, end = from.text < to.text ? n : to.at;
        for (size_t at = all ? from.at : n - 1; at < end; at++, next += f->width)
            if (row(user, from.text, at, next, err) != QN_OK)
                return err->code;
        from = (progress_of){from.text + 1, 0};
    }
    return QN_OK;
}

qn_status qn__forward_run(qn__forward *f, qn__sequence *sequences, const qn_ids *texts, size_t n,
                          bool all, bool keep, qn__row_fn *row, void *user, qn_error *err)
{
    progress_of at = {0, 0};
    const qn_forward_options *o = &f->options;
    while (at.text < n) {
        progress_of from = at;
        if (fill_step(f, sequences, texts, n, all, &at, err) != QN_OK) {
            qn__batch_end(NULL, &f->batch);
            return err->code;
        }
        if (run_texts_step(f, err) != QN_OK ||
            give_rows(f, texts, from, at, all, row, user, err) != QN_OK)
            return err->code;
        for (size_t i = from.text; i < at.text && !keep; i++)
            qn__sequence_end(&sequences[i]);
        if (o->progress)
            o->progress(o->progress_user, f->done, f->total);
    }
    return QN_OK;
}

qn_status qn__forward_texts(const qn_model *model, const qn_ids *texts, size_t n,
                            const qn_forward_options *options, bool hidden, bool all,
                            qn__row_fn *row, void *user, qn_error *err)
{
    qn__forward f = {.model = NULL};
    qn__cache_room room = {.sequences = 0};
    for (size_t i = 0; i < n; i++)
        room.positions =
            (int64_t)texts[i].n > room.positions ? (int64_t)texts[i].n : room.positions;
    room.total = room.positions;
    qn__sequence *sequences = calloc(n + 1, sizeof *sequences);
    if (!sequences)
        qn__fail_memory(err, "texts");
    else if (qn__forward_begin(&f, model, options, &room, hidden, err) == QN_OK) {
        for (size_t i = 0; i < n; i++) {
            qn__sequence_begin(&sequences[i], &f.cache);
            f.total += texts[i].n;
        }
        qn__forward_run(&f, sequences, texts, n, all, false, row, user, err);
        for (size_t i = 0; i < n; i++)
            qn__sequence_end(&sequences[i]);
    }
    qn__forward_end(&f);
    free(sequences);
    return err->code;
}
