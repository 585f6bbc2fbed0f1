/* SPDX-License-Identifier: Apache-2.0
 *
 * How well a model tells a text: perplexity, and how far its distributions are from another
 * model's.
 *
 * Approach: the tokens are cut into chunks, each of which both models read from the beginning; the
 * logits of its scored part come in pieces, since a whole chunk's of a large vocabulary would be
 * half a gibibyte. Sums are in f64, and for two models a piece's rows go by pairs, so that no
 * distribution is kept.
 */
#include "generate/evaluate.h"

#include "base/error.h"
#include "base/sized.h"
#include "generate/model.h"

#include <math.h>
#include <stdlib.h>

enum { PIECE_BYTES = 32 << 20, SHORTEST_PIECE = 16, USUAL_CONTEXT = 512 };

/* What the scored tokens add up to. */
typedef struct totals {
    uint64_t chunks, tokens, same_top;
    double loss, loss_squares, against_loss, kl, kl_squares;
    double *divergences; /* [tokens in all], with a second model */
} totals;

typedef struct evaluation {
    qn_evaluation_options options;
    qn_session *session, *against; /* against NULL: there is no second model */
    const int32_t *ids;
    size_t n, vocab, piece; /* piece: tokens whose logits are there at once */
    size_t first;           /* of a chunk's tokens, whose logits count */
    size_t chunks;
    int32_t *chunk;         /* [context] */
    float *logits, *others; /* [piece, vocab] */
    totals all;
} evaluation;

qn__row_loss qn__row_measure(const float *p, const float *q, size_t vocab, int32_t id)
{
    qn__row_loss r = {0};
    size_t best_p = 0, best_q = 0;
    for (size_t i = 1; i < vocab; i++) {
        best_q = q[i] > q[best_q] ? i : best_q;
        if (p)
            best_p = p[i] > p[best_p] ? i : best_p;
    }
    /* with e = exp(p - max p): KL = sum e (p - q) / sum e - log sum exp p + log sum exp q */
    double sum_q = 0, sum_p = 0, apart = 0;
    for (size_t i = 0; i < vocab; i++)
        sum_q += exp((double)q[i] - q[best_q]);
    double log_q = (double)q[best_q] + log(sum_q);
    r.loss = log_q - q[id];
    if (!p)
        return r;
    for (size_t i = 0; i < vocab; i++) {
        double e = exp((double)p[i] - p[best_p]);
        sum_p += e;
        if (e > 0) /* -infinity twice is no difference */
            apart += e * ((double)p[i] - q[i]);
    }
    double log_p = (double)p[best_p] + log(sum_p);
    r.against_loss = log_p - p[id];
    double kl = apart / sum_p - log_p + log_q;
    r.kl = kl > 0 || isnan(kl) ? kl : 0; /* below it is rounding */
    r.same_top = best_p == best_q;
    return r;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static void add_row(evaluation *e, size_t row, int32_t id)
{
    totals *t = &e->all;
    qn__row_loss r = qn__row_measure(e->against ? e->others + row * e->vocab : NULL,
                                     e->logits + row * e->vocab, e->vocab, id);
    t->loss += r.loss;
    t->loss_squares += r.loss * r.loss;
    if (e->against) {
        t->against_loss += r.against_loss;
        t->kl += r.kl;
        t->kl_squares += r.kl * r.kl;
        t->same_top += r.same_top;
        t->divergences[t->tokens] = r.kl;
    }
    t->tokens++;
}

static qn_status begin_chunk(qn_session *session, const int32_t *ids, size_t n, qn_error *err)
{
    qn_session_rewind(session, 0);
    return n ? qn_session_append(session, ids, n, err) : QN_OK;
}

/* The logits behind token i tell token i + 1: those of first .. context - 2 count. */
static qn_status run_chunk(evaluation *e, size_t at, qn_error *err)
{
    size_t context = (size_t)e->options.context;
    memcpy(e->chunk, e->ids + at, context * sizeof *e->chunk);
    if (e->options.begin)
        e->chunk[0] = *e->options.begin;
    qn_status status = begin_chunk(e->session, e->chunk, e->first, err);
    if (status == QN_OK && e->against)
        status = begin_chunk(e->against, e->chunk, e->first, err);
    for (size_t i = e->first; status == QN_OK && i < context - 1; i += e->piece) {
        size_t n = context - 1 - i < e->piece ? context - 1 - i : e->piece;
        status = qn_session_score(e->session, e->chunk + i, n, e->logits, err);
        if (status == QN_OK && e->against)
            status = qn_session_score(e->against, e->chunk + i, n, e->others, err);
        for (size_t row = 0; status == QN_OK && row < n; row++)
            add_row(e, row, e->chunk[i + row + 1]);
    }
    e->all.chunks += status == QN_OK;
    return status;
}

static qn_status evaluate_chunks(evaluation *e, size_t stride, qn_error *err)
{
    const qn_evaluation_options *o = &e->options;
    for (size_t i = 0; i < e->chunks; i++) {
        if (o->progress)
            o->progress(o->progress_user, (int64_t)i, (int64_t)e->chunks);
        if (run_chunk(e, i * stride, err) != QN_OK)
            break;
    }
    if (o->progress)
        o->progress(o->progress_user, (int64_t)e->chunks, (int64_t)e->chunks);
    return err->code;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static qn_status check(evaluation *e, const qn_model *model, size_t *stride, qn_error *err)
{
    qn_evaluation_options *o = &e->options;
    o->context = o->context ? o->context : USUAL_CONTEXT;
    int64_t least = o->stride ? 2 : 3;
    if (o->context < least || o->stride < 0 || o->stride > o->context || o->chunks < 0)
        return qn__fail(err, QN_INVALID,
                        "chunks of %lld tokens that begin %lld apart cannot be scored",
                        (long long)o->context, (long long)o->stride);
    e->vocab = (size_t)model->decoder.config.vocab;
    if (o->against && (size_t)o->against->decoder.config.vocab != e->vocab)
        return qn__fail(err, QN_INVALID,
                        "the models have vocabularies of %zu and %zu tokens; only models of one "
                        "vocabulary can be compared",
                        e->vocab, (size_t)o->against->decoder.config.vocab);
    size_t context = (size_t)o->context;
    if (e->n < context)
        return qn__fail(err, QN_INVALID,
                        "the text has %zu tokens, fewer than one chunk, of %zu; a smaller context "
                        "would do",
                        e->n, context);
    *stride = o->stride ? (size_t)o->stride : context;
    /* with a stride its newest tokens count, so that none counts twice; else the second half */
    size_t scored = o->stride ? *stride : context - context / 2 - 1;
    e->first = context - 1 > scored ? context - 1 - scored : 0;
    e->chunks = (e->n - context) / *stride + 1;
    if (o->chunks && (size_t)o->chunks < e->chunks)
        e->chunks = (size_t)o->chunks;
    e->piece = PIECE_BYTES / sizeof(float) / e->vocab;
    e->piece = e->piece < SHORTEST_PIECE ? SHORTEST_PIECE : e->piece;
    e->piece = e->piece < context ? e->piece : context;
    return QN_OK;
}

static qn_status begin_evaluation(evaluation *e, qn_model *model, qn_error *err)
{
    const qn_evaluation_options *o = &e->options;
    qn_session_options s = {.size = sizeof s, .context = o->context, .cancel = o->cancel};
    size_t scored = (size_t)o->context - 1 - e->first;
    e->chunk = malloc((size_t)o->context * sizeof *e->chunk);
    e->logits = malloc(e->piece * e->vocab * sizeof *e->logits);
    if (o->against) {
        e->others = malloc(e->piece * e->vocab * sizeof *e->others);
        e->all.divergences = calloc(e->chunks * scored, sizeof *e->all.divergences);
    }
    if (!e->chunk || !e->logits || (o->against && !(e->others && e->all.divergences)))
        return qn__fail_memory(err, "an evaluation");
    qn_session_options plain = s;
    s.cache_type_k = o->cache_type_k;
    s.cache_type_v = o->cache_type_v;
    if (qn_session_open(&e->session, model, &s, err) != QN_OK)
        return err->code;
    return o->against ? qn_session_open(&e->against, o->against, &plain, err) : QN_OK;
}

static void end(evaluation *e)
{
    qn_session_close(e->session);
    qn_session_close(e->against);
    free(e->chunk);
    free(e->logits);
    free(e->others);
    free(e->all.divergences);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The standard error of a mean. */
static double error_of(double sum, double squares, uint64_t n)
{
    double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (double)(n - 1)) : 0;
}

static qn_evaluation summarise(const evaluation *e)
{
    const totals *t = &e->all;
    double n = (double)t->tokens;
    qn_evaluation r = {.chunks = t->chunks,
                       .tokens = t->tokens,
                       .loss = t->loss / n,
                       .loss_error = error_of(t->loss, t->loss_squares, t->tokens),
                       .perplexity = exp(t->loss / n)};
    if (!e->against)
        return r;
    qsort(t->divergences, t->tokens, sizeof *t->divergences, compare);
    r.against_loss = t->against_loss / n;
    r.against_perplexity = exp(r.against_loss);
    r.kl = t->kl / n;
    r.kl_error = error_of(t->kl, t->kl_squares, t->tokens);
    r.kl_median = t->divergences[t->tokens / 2];
    r.kl_99 = t->divergences[t->tokens * 99 / 100];
    r.kl_max = t->divergences[t->tokens - 1];
    r.same_top = (double)t->same_top / n;
    return r;
}

qn_status qn_evaluate(qn_model *model, const int32_t *ids, size_t n,
                      const qn_evaluation_options *options, qn_evaluation *out, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    evaluation e = {.ids = ids, .n = n};
    size_t stride = 0;
    if (qn__sized_in(&e.options, sizeof e.options, options, "qn_evaluation_options", err) !=
            QN_OK ||
        check(&e, model, &stride, err) != QN_OK)
        return err->code;
    if (begin_evaluation(&e, model, err) == QN_OK && evaluate_chunks(&e, stride, err) == QN_OK) {
        qn_evaluation all = summarise(&e);
        if (qn__sized_out(out, &all, sizeof all) != QN_OK)
            qn__fail(err, QN_INVALID, "qn_evaluation.size is not set");
    }
    end(&e);
    return err->code;
}
