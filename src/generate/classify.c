/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens, or labels, that may stand behind texts.
 *
 * Approach: a text's last logits give the first token of every label. The others of a label run
 * behind the text, whose keys and values stay until all labels have: label by label, for all the
 * texts of a group at once, and forgotten again. Labels of one token keep nothing.
 */
#include "base/error.h"
#include "generate/forward.h"
#include "generate/logprobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOP = 1000, GROUP_TEXTS = 4096 };
static const uint64_t group_bytes = (uint64_t)1 << 30;

/* ---- next tokens ----------------------------------------------------------------------------- */

typedef struct next_run {
    const qn_model *model;
    size_t vocab, top;
    float *logits;        /* [n, vocab], or */
    qn_token_score *best; /* [n, top] */
    qn_logprob *some;     /* [1 + top] */
} next_run;

static qn_status keep_logits(void *user, size_t text, size_t at, const float *row, qn_error *err)
{
    next_run *r = user;
    (void)at;
    (void)err;
    memcpy(r->logits + text * r->vocab, row, r->vocab * sizeof *row);
    return QN_OK;
}

static qn_status keep_best(void *user, size_t text, size_t at, const float *row, qn_error *err)
{
    next_run *r = user;
    (void)at;
    if (qn_logprobs(r->model->device, row, r->vocab, 0, r->top, r->some, err) != QN_OK)
        return err->code;
    for (size_t i = 0; i < r->top; i++) {
        const qn_logprob *p = &r->some[1 + i];
        float logit = p->id < 0 ? -INFINITY : row[p->id];
        r->best[text * r->top + i] = (qn_token_score){p->id, logit, p->logprob};
    }
    return QN_OK;
}

qn_status qn_next_logits(qn_model *model, const qn_ids *texts, size_t n,
                         const qn_forward_options *options, float *out, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    next_run r = {.vocab = (size_t)model->decoder.config.vocab, .logits = out};
    if (qn__forward_check(model, texts, n, 0, "text", err) != QN_OK)
        return err->code;
    return qn__forward_texts(model, texts, n, options, false, false, keep_logits, &r, err);
}

qn_status qn_next_tokens(qn_model *model, const qn_ids *texts, size_t n, size_t top,
                         const qn_forward_options *options, qn_token_score *out, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    next_run r = {
        .model = model, .vocab = (size_t)model->decoder.config.vocab, .top = top, .best = out};
    if (top == 0 || top > MOST_TOP)
        return qn__fail(err, QN_INVALID, "the %zu most probable tokens; 1 to %d can be had", top,
                        MOST_TOP);
    if (qn__forward_check(model, texts, n, 0, "text", err) != QN_OK)
        return err->code;
    r.some = malloc((1 + top) * sizeof *r.some);
    if (!r.some)
        return qn__fail_memory(err, "tokens");
    qn__forward_texts(model, texts, n, options, false, false, keep_best, &r, err);
    free(r.some);
    return err->code;
}

/* ---- labels ---------------------------------------------------------------------------------- */

typedef struct label_run {
    const qn_model *model;
    const qn_ids *labels;
    size_t n_labels, vocab, label; /* label: the one that runs */
    qn_label_score *scores;        /* [texts of the group, n_labels] */
} label_run;

/* Behind a text: every label's first token. */
static qn_status add_first(void *user, size_t text, size_t at, const float *row, qn_error *err)
{
    label_run *r = user;
    double total;
    (void)at;
    if (qn__log_total(r->model->device, row, r->vocab, &total, err) != QN_OK)
        return err->code;
    for (size_t i = 0; i < r->n_labels; i++)
        r->scores[text * r->n_labels + i].logprob = (double)row[r->labels[i].ids[0]] - total;
    return QN_OK;
}

/* Behind a label's token `at`: its next one. */
static qn_status add_next(void *user, size_t text, size_t at, const float *row, qn_error *err)
{
    label_run *r = user;
    double total;
    if (qn__log_total(r->model->device, row, r->vocab, &total, err) != QN_OK)
        return err->code;
    int32_t id = r->labels[r->label].ids[at + 1];
    r->scores[text * r->n_labels + r->label].logprob += (double)row[id] - total;
    return QN_OK;
}

/* Of one text: softmax over its labels. */
static void weigh_labels(qn_label_score *scores, size_t n)
{
    double best = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        best = scores[i].logprob > best ? scores[i].logprob : best;
    for (size_t i = 0; i < n; i++)
        sum += scores[i].probability = exp(scores[i].logprob - best);
    for (size_t i = 0; i < n; i++)
        scores[i].probability /= sum;
}

/* The rest of each label behind each text of a group. */
static qn_status run_labels(qn__forward *f, qn__sequence *sequences, const qn_ids *texts, size_t n,
                            qn_ids *rest, label_run *r, qn_error *err)
{
    for (r->label = 0; r->label < r->n_labels && err->code == QN_OK; r->label++) {
        const qn_ids *label = &r->labels[r->label];
        if (label->n == 1)
            continue;
        for (size_t i = 0; i < n; i++)
            rest[i] = (qn_ids){label->ids, label->n - 1};
        if (qn__forward_run(f, sequences, rest, n, true, true, add_next, r, err) != QN_OK)
            break;
        for (size_t i = 0; i < n; i++)
            qn__sequence_rewind(&sequences[i], (int64_t)texts[i].n);
    }
    return err->code;
}

static qn_status run_group(qn__forward *f, qn__sequence *sequences, const qn_ids *texts, size_t n,
                           qn_ids *rest, label_run *r, qn_error *err)
{
    for (size_t i = 0; i < n; i++)
        qn__sequence_begin(&sequences[i], &f->cache);
    if (qn__forward_run(f, sequences, texts, n, false, true, add_first, r, err) == QN_OK)
        run_labels(f, sequences, texts, n, rest, r, err);
    for (size_t i = 0; i < n; i++)
        qn__sequence_end(&sequences[i]);
    return err->code;
}

/* Texts from the first on whose tokens, with a label's behind each, are `most` at most: one at
 * least. */
static size_t next_group(const qn_ids *texts, size_t n, size_t longest_label, size_t most)
{
    size_t tokens = 0, i = 0;
    for (; i < n && i < GROUP_TEXTS; i++) {
        tokens += texts[i].n + longest_label;
        if (i && tokens > most)
            break;
    }
    return i;
}

/* Tokens of all texts, with the labels' behind them. */
static uint64_t all_tokens(const qn_ids *texts, size_t n, const qn_ids *labels, size_t n_labels)
{
    uint64_t tokens = 0;
    for (size_t i = 0; i < n; i++)
        tokens += texts[i].n;
    for (size_t i = 0; i < n_labels; i++)
        tokens += n * (labels[i].n - 1);
    return tokens;
}

/* Labels of which some have several tokens. */
static qn_status run_groups(label_run *r, const qn_ids *texts, size_t n, size_t longest_label,
                            const qn_forward_options *options, qn_error *err)
{
    qn__forward f = {.model = NULL};
    qn__cache_room room = {.sequences = n < GROUP_TEXTS ? (int64_t)n : GROUP_TEXTS};
    for (size_t i = 0; i < n; i++)
        room.positions =
            (int64_t)texts[i].n > room.positions ? (int64_t)texts[i].n : room.positions;
    room.positions += (int64_t)longest_label;
    room.reach = (int64_t)longest_label;
    uint64_t one = qn__model_cache_bytes(r->model, room.positions, &(qn__model_cache_options){0});
    one = one / (uint64_t)room.positions + 1;
    int64_t given =
        options && options->cache_tokens > 0 ? options->cache_tokens : (int64_t)(group_bytes / one);
    room.total = given > room.positions ? given : room.positions;
    size_t group = n < GROUP_TEXTS ? n : GROUP_TEXTS;
    qn__sequence *sequences = calloc(group, sizeof *sequences);
    qn_ids *rest = calloc(group, sizeof *rest);
    qn_label_score *scores = r->scores;
    if (!sequences || !rest)
        qn__fail_memory(err, "labels");
    else if (qn__forward_begin(&f, r->model, options, &room, false, err) == QN_OK) {
        f.total = all_tokens(texts, n, r->labels, r->n_labels);
        for (size_t i = 0, m; i < n && err->code == QN_OK; i += m) {
            m = next_group(texts + i, n - i, longest_label, (size_t)room.total);
            r->scores = scores + i * r->n_labels;
            run_group(&f, sequences, texts + i, m, rest, r, err);
        }
    }
    r->scores = scores;
    qn__forward_end(&f);
    free(sequences);
    free(rest);
    return err->code;
}

qn_status qn_classify(qn_model *model, const qn_ids *texts, size_t n, const qn_ids *labels,
                      size_t n_labels, const qn_forward_options *options, qn_label_score *out,
                      qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    size_t longest = 1;
    if (qn__forward_check(model, labels, n_labels, 0, "label", err) != QN_OK)
        return err->code;
    for (size_t i = 0; i < n_labels; i++)
        longest = labels[i].n > longest ? labels[i].n : longest;
    if (qn__forward_check(model, texts, n, longest - 1, "text", err) != QN_OK)
        return err->code;
    if (!n_labels)
        return qn__fail(err, QN_INVALID, "there are no labels");
    label_run r = {.model = model,
                   .labels = labels,
                   .n_labels = n_labels,
                   .vocab = (size_t)model->decoder.config.vocab,
                   .scores = out};
    if (longest == 1)
        qn__forward_texts(model, texts, n, options, false, false, add_first, &r, err);
    else if (n)
        run_groups(&r, texts, n, longest - 1, options, err);
    for (size_t i = 0; i < n && err->code == QN_OK; i++)
        weigh_labels(out + i * n_labels, n_labels);
    return err->code;
}
