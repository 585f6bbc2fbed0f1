/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside attention: the queries and keys of one text, and what a head makes of them.
 */
#include "base/error.h"
#include "base/sized.h"
#include "core/scope.h"
#include "generate/forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct qn_inspection {
    qn_model *model;
    int64_t n; /* tokens */
    int first, n_layers;
    float **queries, **keys; /* [n_layers] */
};

/* ---- beginning and end ----------------------------------------------------------------------- */

static qn_status check_inspection(const qn_model *model, const qn_ids *text, qn_inspect_options *o,
                                  qn_error *err)
{
    int64_t all = model->decoder.config.n_layers;
    if (o->first_layer < 0 || o->n_layers < 0 || o->first_layer >= all ||
        o->n_layers > all - o->first_layer)
        return qn__fail(err, QN_INVALID, "layers %d and on, %d of them: the model has %lld",
                        o->first_layer, o->n_layers, (long long)all);
    o->n_layers = o->n_layers ? o->n_layers : (int)all - o->first_layer;
    return qn__forward_check(model, text, 1, 0, "text", err);
}

static qn_status begin_inspection(qn_inspection *x, qn_error *err)
{
    const qn__decoder_config *c = &x->model->decoder.config;
    size_t head = (size_t)(x->n * c->head_dim) * sizeof(float), n = (size_t)x->n_layers;
    x->queries = calloc(n, sizeof *x->queries);
    x->keys = calloc(n, sizeof *x->keys);
    bool all = x->queries && x->keys;
    for (size_t i = 0; all && i < n; i++) {
        x->queries[i] = malloc((size_t)c->n_heads * head);
        x->keys[i] = malloc((size_t)c->n_kv_heads * head);
        all = x->queries[i] && x->keys[i];
    }
    return all ? QN_OK : qn__fail_memory(err, "queries and keys");
}

void qn_inspection_free(qn_inspection *x)
{
    if (!x)
        return;
    for (int i = 0; i < x->n_layers; i++) {
        if (x->queries)
            free(x->queries[i]);
        if (x->keys)
            free(x->keys[i]);
    }
    free(x->queries);
    free(x->keys);
    qn_model_close(x->model);
    free(x);
}

/* ---- the run --------------------------------------------------------------------------------- */

/* What a step had, [1, heads, T, D], to its place in [heads, n, D], as long as turning makes it. */
static qn_status keep_heads(const qn_inspection *x, qn_scope *s, qn_array *from, int layer,
                            int64_t at, float *to)
{
    const qn__decoder_config *c = &x->model->decoder.config;
    int64_t heads = qn_array_dim(from, 1), n = qn_array_dim(from, 2), row = c->head_dim;
    double longer = qn__decoder_rope_length(c, layer);
    float *step = qn__scope_alloc(s, (size_t)(heads * n * row) * sizeof *step);
    if (!step || qn_read_as(s, from, QN_F32, step, (size_t)(heads * n * row)) != QN_OK)
        return qn_scope_status(s);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < n * row; i++)
            to[(h * x->n + at) * row + i] = (float)((double)step[h * n * row + i] * longer);
    return QN_OK;
}

/* Tokens `at` to at + n of the text. */
static qn_status run_piece(qn_inspection *x, qn__forward *f, int64_t at, int64_t n, qn_error *err)
{
    qn_scope *s = qn_scope_begin(x->model->device);
    if (!s) {
        qn__batch_end(NULL, &f->batch);
        return qn__fail_memory(err, "a step");
    }
    qn_array **seen = f->batch.seen + 2 * x->first;
    s->cancel = f->options.cancel;
    qn__batch_record(s, &f->batch);
    qn__decoder_hidden(s, &x->model->decoder, f->batch.tokens, &f->batch, NULL);
    if (qn_scope_status(s) == QN_OK)
        qn__batch_eval(s, &f->batch, seen, 2 * x->n_layers);
    qn__batch_end(s, &f->batch);
    for (int i = 0; i < x->n_layers && qn_scope_status(s) == QN_OK; i++) {
        keep_heads(x, s, seen[2 * i], x->first + i, at, x->queries[i]);
        keep_heads(x, s, seen[2 * i + 1], x->first + i, at, x->keys[i]);
    }
    qn__scope_end(s, err);
    if (f->options.progress && err->code == QN_OK)
        f->options.progress(f->options.progress_user, (uint64_t)(at + n), (uint64_t)x->n);
    return err->code;
}

static qn_status run_text(qn_inspection *x, const qn_ids *text, const qn_forward_options *options,
                          qn_error *err)
{
    qn__forward f = {.model = NULL};
    qn__sequence sequence = {.cache = NULL};
    qn__cache_room room = {.sequences = 1, .positions = x->n, .total = x->n};
    qn_array **seen = calloc(2 * (size_t)x->model->decoder.config.n_layers, sizeof *seen);
    if (!seen)
        qn__fail_memory(err, "queries and keys");
    else if (qn__forward_begin(&f, x->model, options, &room, true, err) == QN_OK) {
        f.batch.seen = seen;
        qn__sequence_begin(&sequence, &f.cache);
        int64_t step = f.options.step_tokens;
        for (int64_t at = 0, n; at < x->n && err->code == QN_OK; at += n) {
            n = x->n - at < step ? x->n - at : step;
            qn__batch_begin(&f.batch, &f.cache);
            if (qn__batch_add(&f.batch, &sequence, text->ids + at, n, 0, err) == QN_OK)
                run_piece(x, &f, at, n, err);
        }
    }
    qn__sequence_end(&sequence);
    qn__forward_end(&f);
    free(seen);
    return err->code;
}

qn_status qn_inspect(qn_inspection **out, qn_model *model, const qn_ids *text,
                     const qn_inspect_options *inspect, const qn_forward_options *options,
                     qn_error *err)
{
    qn_error local = {0};
    qn_inspect_options o;
    err = err ? err : &local;
    *out = NULL;
    if (qn__sized_in(&o, sizeof o, inspect, "qn_inspect_options", err) != QN_OK ||
        check_inspection(model, text, &o, err) != QN_OK)
        return err->code;
    qn_inspection *x = calloc(1, sizeof *x);
    if (!x)
        return qn__fail_memory(err, "an inspection");
    *x = (qn_inspection){
        .model = model, .n = (int64_t)text->n, .first = o.first_layer, .n_layers = o.n_layers};
    atomic_fetch_add(&model->refs, 1);
    if (begin_inspection(x, err) != QN_OK || run_text(x, text, options, err) != QN_OK) {
        qn_inspection_free(x);
        return err->code;
    }
    *out = x;
    return QN_OK;
}

/* ---- what was seen --------------------------------------------------------------------------- */

static bool has_layer(const qn_inspection *x, int layer)
{
    return layer >= x->first && layer < x->first + x->n_layers;
}

const float *qn_inspection_queries(const qn_inspection *x, int layer)
{
    return has_layer(x, layer) ? x->queries[layer - x->first] : NULL;
}

const float *qn_inspection_keys(const qn_inspection *x, int layer)
{
    return has_layer(x, layer) ? x->keys[layer - x->first] : NULL;
}

/* Weights of the keys from `first` up to the query's own, [n]. */
static void attend_row(const qn__decoder_config *c, const float *q, const float *keys,
                       int64_t first, int64_t own, double *scores, float *out)
{
    double scale = qn__decoder_query_scale(c), best = -INFINITY, sum = 0;
    for (int64_t j = first; j <= own; j++) {
        double product = 0;
        for (int64_t d = 0; d < c->head_dim; d++)
            product += (double)q[d] * (double)keys[j * c->head_dim + d];
        scores[j] = product * scale;
        if (c->score_cap != 0)
            scores[j] = c->score_cap * tanh(scores[j] / c->score_cap);
        best = scores[j] > best ? scores[j] : best;
    }
    for (int64_t j = first; j <= own; j++)
        sum += scores[j] = exp(scores[j] - best);
    for (int64_t j = first; j <= own; j++)
        out[j] = (float)(scores[j] / sum);
}

qn_status qn_inspection_attention(const qn_inspection *x, int layer, int head, float *out,
                                  qn_error *err)
{
    const qn__decoder_config *c = &x->model->decoder.config;
    if (!has_layer(x, layer) || head < 0 || head >= c->n_heads)
        return qn__fail(err, QN_INVALID,
                        "layer %d, head %d: there are layers %d to %d and heads 0 to %lld", layer,
                        head, x->first, x->first + x->n_layers - 1, (long long)c->n_heads - 1);
    const float *q = qn_inspection_queries(x, layer) + head * x->n * c->head_dim;
    const float *k =
        qn_inspection_keys(x, layer) + head / (c->n_heads / c->n_kv_heads) * x->n * c->head_dim;
    double *scores = malloc((size_t)x->n * sizeof *scores);
    if (!scores)
        return qn__fail_memory(err, "scores");
    memset(out, 0, (size_t)(x->n * x->n) * sizeof *out);
    for (int64_t i = 0; i < x->n; i++) {
        int64_t first = c->layer[layer].sliding && c->window <= i ? i - c->window + 1 : 0;
        attend_row(c, q + i * c->head_dim, k, first, i, scores, out + i * x->n);
    }
    free(scores);
    return QN_OK;
}
