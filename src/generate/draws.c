/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws: settings and histories become rows and entries of the operation (ops/sample.c).
 */
#include "generate/draws.h"

#include "base/error.h"
#include "base/sized.h"
#include "core/scope.h"
#include "generate/sampling.h"
#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)QN_SAMPLER_PENALTIES == QN__SAMPLE_PENALTIES &&
                   (int)QN_SAMPLER_TOP_K == QN__SAMPLE_TOP_K &&
                   (int)QN_SAMPLER_TOP_P == QN__SAMPLE_TOP_P &&
                   (int)QN_SAMPLER_MIN_P == QN__SAMPLE_MIN_P &&
                   (int)QN_SAMPLER_TEMPERATURE == QN__SAMPLE_TEMPERATURE,
               "steps have the same numbers");

qn_status qn__draws_begin(qn__draws *d, size_t n, size_t vocab, qn_error *err)
{
    if (n > d->row_room) {
        qn__sample_row *rows = realloc(d->rows, n * sizeof *rows);
        if (!rows)
            return qn__fail_memory(err, "draws");
        d->rows = rows;
        d->row_room = n;
    }
    if (vocab != d->vocab) {
        free(d->place);
        d->vocab = 0;
        if (!(d->place = calloc(vocab, sizeof *d->place)))
            return qn__fail_memory(err, "draws");
        d->vocab = vocab;
    }
    for (size_t r = 0; r < n; r++)
        d->rows[r] = (qn__sample_row){.chain = QN__SAMPLE_TEMPERATURE};
    d->n_entries = d->n_newest = 0;
    return QN_OK;
}

void qn__draws_free(qn__draws *d)
{
    free(d->rows);
    free(d->entries);
    free(d->newest);
    free(d->place);
    *d = (qn__draws){0};
}

/* A further entry, zero; NULL: no memory. */
static qn__sample_entry *add_entry(qn__draws *d, int32_t id)
{
    if (d->n_entries == d->entry_room) {
        size_t room = 2 * d->entry_room + 64;
        qn__sample_entry *entries = realloc(d->entries, room * sizeof *entries);
        if (!entries)
            return NULL;
        d->entries = entries;
        d->entry_room = room;
    }
    d->entries[d->n_entries] = (qn__sample_entry){.id = id};
    return &d->entries[d->n_entries++];
}

/* The entry of a token in the row whose entries begin at `first`. */
static qn__sample_entry *entry_of(qn__draws *d, size_t first, int32_t id)
{
    if (d->place[id])
        return &d->entries[first + (size_t)d->place[id] - 1];
    qn__sample_entry *e = add_entry(d, id);
    if (e)
        d->place[id] = (int32_t)(d->n_entries - first);
    return e;
}

static bool add_biases(qn__draws *d, size_t first, const qn_sampling *p)
{
    for (size_t i = 0; i < p->n_bias; i++) {
        qn__sample_entry *e = entry_of(d, first, p->bias[i].id);
        if (!e)
            return false;
        e->bias += p->bias[i].bias;
    }
    return true;
}

/* Entries of ids[0..n), some of which may be no tokens: they repeat, or have been generated. */
static bool add_tokens(qn__draws *d, size_t first, const int32_t *ids, size_t n, bool generated)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= d->vocab)
            continue;
        qn__sample_entry *e = entry_of(d, first, ids[i]);
        if (!e)
            return false;
        if (generated)
            e->generated++;
        else
            e->repeats = 1;
    }
    return true;
}

/* An entry for the token that will be at `place`. */
static bool add_unseen(qn__draws *d, int32_t place, bool repeats, bool counts)
{
    if (d->n_newest == d->newest_room) {
        size_t room = 2 * d->newest_room + 16;
        int32_t *newest = realloc(d->newest, 2 * room * sizeof *newest);
        if (!newest)
            return false;
        d->newest = newest;
        d->newest_room = room;
    }
    qn__sample_entry *e = add_entry(d, -1);
    if (!e)
        return false;
    e->repeats = repeats;
    e->generated = counts;
    d->newest[2 * d->n_newest] = (int32_t)(d->n_entries - 1) * QN__SAMPLE_ENTRY_WORDS;
    d->newest[2 * d->n_newest++ + 1] = place;
    return true;
}

/* place -1: all are known. */
static bool add_history(qn__draws *d, size_t first, const qn_sampling *p, const int32_t *history,
                        size_t n, size_t n_generated, int32_t place)
{
    size_t last = p->repeat_last == 0 ? 64 : p->repeat_last < 0 ? SIZE_MAX : (size_t)p->repeat_last;
    last -= place >= 0; /* of the newest ones */
    bool repeats = p->repeat_penalty != 0 && p->repeat_penalty != 1;
    bool counts = p->presence_penalty != 0 || p->frequency_penalty != 0;
    last = last < n ? last : n;
    if (!qn__sampling_penalises(p))
        return true;
    return (!repeats || add_tokens(d, first, history + (n - last), last, false)) &&
           (!counts || add_tokens(d, first, history + (n - n_generated), n_generated, true)) &&
           (place < 0 || add_unseen(d, place, repeats, counts));
}

static uint32_t chain_of(const qn_sampling *p)
{
    const qn_sampler *step = qn__sampling_chain(p);
    uint32_t chain = 0;
    if (qn__sampling_is_argmax(p)) /* no filter takes that one */
        return QN__SAMPLE_TEMPERATURE;
    for (int at = 0; *step != QN_SAMPLER_END; step++, at += QN__SAMPLE_STEP_BITS)
        chain |= (uint32_t)*step << at;
    return chain;
}

static qn_status set_row(qn__draws *d, size_t r, const qn_sampling *p, const int32_t *history,
                         size_t n_history, size_t n_generated, int32_t place, qn_error *err)
{
    size_t first = d->n_entries, n_newest = d->n_newest;
    bool added =
        add_biases(d, first, p) && add_history(d, first, p, history, n_history, n_generated, place);
    for (size_t i = first; i < d->n_entries; i++)
        if (d->entries[i].id >= 0)
            d->place[d->entries[i].id] = 0;
    if (!added)
        return qn__fail_memory(err, "draws");
    d->rows[r] = (qn__sample_row){.chain = chain_of(p),
                                  .temperature = p->temperature,
                                  .top_p = p->top_p,
                                  .min_p = p->min_p,
                                  .top_k = p->top_k,
                                  .repeat_penalty = p->repeat_penalty != 0 ? p->repeat_penalty : 1,
                                  .presence_penalty = p->presence_penalty,
                                  .frequency_penalty = p->frequency_penalty,
                                  .seed = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)},
                                  .position = (uint32_t)(n_history + (place >= 0)),
                                  .first_entry = (int32_t)first,
                                  .n_entries = (int32_t)(d->n_entries - first),
                                  .newest = d->n_newest > n_newest};
    return QN_OK;
}

qn_status qn__draws_set(qn__draws *d, size_t r, const qn_sampling *p, const int32_t *history,
                        size_t n_history, size_t n_generated, qn_error *err)
{
    return set_row(d, r, p, history, n_history, n_generated, -1, err);
}

qn_status qn__draws_set_behind(qn__draws *d, size_t r, const qn_sampling *p, const int32_t *history,
                               size_t n_history, size_t n_generated, int32_t place, qn_error *err)
{
    return set_row(d, r, p, history, n_history, n_generated, place, err);
}

/* Puts tokens of `given` into the entries that wait for them: newest [n, 2]. */
static qn_array *put_newest(qn_scope *s, qn_array *newest, qn_array *entries, qn_array *given)
{
    const int64_t flat[] = {qn_array_dim(newest, 0)}, words[] = {qn_array_elements(entries)},
                  shape[] = {qn_array_dim(entries, 0), QN__SAMPLE_ENTRY_WORDS};
    qn_array *at = qn_reshape(s, qn_slice(s, newest, 1, 0, 1, 1), 1, flat),
             *places = qn_reshape(s, qn_slice(s, newest, 1, 1, 2, 1), 1, flat);
    entries = qn_scatter(s, qn_reshape(s, entries, 1, words), at, qn_take(s, given, places, 0), 0,
                         QN_SCATTER_SET);
    return qn_reshape(s, entries, 2, shape);
}

qn__draws_taken qn__draws_take(qn_scope *s, const qn__draws *d, size_t first, size_t n,
                               qn_array *given)
{
    static const qn__sample_entry none = {0}; /* an array has some element */
    int64_t row_shape[] = {(int64_t)n, QN__SAMPLE_ROW_WORDS};
    int64_t entry_shape[] = {d->n_entries ? (int64_t)d->n_entries : 1, QN__SAMPLE_ENTRY_WORDS};
    int64_t newest_shape[] = {(int64_t)d->n_newest, 2};
    qn__draws_taken t = {.shape = {(int64_t)n, (int64_t)d->vocab}};
    t.rows = t.written[0] = qn_from(s, QN_I32, 2, row_shape, d->rows + first);
    t.entries = t.written[1] =
        qn_from(s, QN_I32, 2, entry_shape, d->n_entries ? d->entries : &none);
    if (d->n_newest) {
        t.written[2] = qn_from(s, QN_I32, 2, newest_shape, d->newest);
        t.entries = put_newest(s, t.written[2], t.entries, given);
    }
    return t;
}

qn_array *qn__draws_choose(qn_scope *s, const qn__draws_taken *t, qn_array *logits)
{
    return qn__sample(s, qn_reshape(s, logits, 2, t->shape), t->rows, t->entries);
}

qn_array *qn__draws_record(qn_scope *s, const qn__draws *d, size_t first, size_t n,
                           qn_array *logits)
{
    qn__draws_taken taken = qn__draws_take(s, d, first, n, NULL);
    return qn__draws_choose(s, &taken, logits);
}

qn_status qn__draws_fail(const qn_sampling *p, qn_error *err)
{
    return qn__fail(err, QN_INVALID, "%s",
                    p->n_bias ? "no token is left to draw: biases forbid all, or the model's "
                                "logits are not numbers"
                              : "the model's logits are not numbers: its weights may be damaged");
}

/* Draws the one row. */
static qn_status draw(qn_device *device, const qn__draws *d, const float *logits, int32_t *id,
                      qn_error *err)
{
    qn_scope *s = qn_scope_begin(device);
    if (!s)
        return qn__fail_memory(err, "a draw");
    qn_array *row = qn_from_f32(s, logits, (int64_t)d->vocab);
    qn_read(s, qn__draws_record(s, d, 0, 1, row), id, sizeof *id);
    return qn__scope_end(s, err);
}

int32_t qn_sample(qn_device *device, const float *logits, size_t vocab, const qn_sampling *sampling,
                  const int32_t *history, size_t n_history, size_t n_generated, qn_error *err)
{
    qn_sampling p;
    qn__draws d = {0};
    qn_error local = {0};
    int32_t id = -1;
    err = err ? err : &local;
    if (qn__sized_in(&p, sizeof p, sampling, "qn_sampling", err) != QN_OK ||
        qn__sampling_check(&p, vocab, err) != QN_OK)
        return -1;
    n_generated = n_generated < n_history ? n_generated : n_history;
    qn_status status = vocab ? qn__draws_begin(&d, 1, vocab, err) : qn__draws_fail(&p, err);
    if (status == QN_OK)
        status = qn__draws_set(&d, 0, &p, history, n_history, n_generated, err);
    if (status == QN_OK)
        status = draw(device, &d, logits, &id, err);
    if (status == QN_OK && id < 0)
        qn__draws_fail(&p, err);
    qn__draws_free(&d);
    return id;
}
