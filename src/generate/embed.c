/* SPDX-License-Identifier: Apache-2.0
 *
 * Embeddings of texts. Sums are in f64 and in the order of tokens, so that it does not matter which
 * of them ran in a step together.
 */
#include "base/error.h"
#include "base/sized.h"
#include "generate/forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double int16_range = 32760;

typedef struct embedding_run {
    const qn_ids *texts;
    qn_embed_options options;
    size_t width;
    double *sum; /* [width] of the text that is under way */
    float *out;  /* [n, width] */
} embedding_run;

/* What the vector is divided by. */
static double size_of(const double *x, size_t n, qn_norm norm)
{
    double all = 0;
    for (size_t i = 0; i < n; i++) {
        double size = fabs(x[i]);
        all = norm == QN_NORM_MAX_INT16 ? fmax(all, size)
              : norm == QN_NORM_L1      ? all + size
                                        : all + size * size;
    }
    return norm == QN_NORM_L2 ? sqrt(all) : norm == QN_NORM_L1 ? all : all / int16_range;
}

static void finish_vector(embedding_run *r, size_t text)
{
    float *out = r->out + text * r->width;
    double by = r->options.pooling == QN_POOL_MEAN ? (double)r->texts[text].n : 1;
    for (size_t i = 0; i < r->width; i++)
        r->sum[i] /= by;
    double size = r->options.norm == QN_NORM_NONE ? 1 : size_of(r->sum, r->width, r->options.norm);
    for (size_t i = 0; i < r->width; i++)
        out[i] = (float)(size > 0 ? r->sum[i] / size : 0);
}

/* The state behind token `at`. */
static qn_status add_state(void *user, size_t text, size_t at, const float *row, qn_error *err)
{
    embedding_run *r = user;
    (void)err;
    if (at == 0 || r->options.pooling == QN_POOL_LAST)
        memset(r->sum, 0, r->width * sizeof *r->sum);
    for (size_t i = 0; i < r->width; i++)
        r->sum[i] += (double)row[i];
    if (at + 1 == r->texts[text].n)
        finish_vector(r, text);
    return QN_OK;
}

qn_status qn_embed(qn_model *model, const qn_ids *texts, size_t n, const qn_embed_options *embed,
                   const qn_forward_options *options, float *out, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    embedding_run r = {.texts = texts, .width = (size_t)model->decoder.config.hidden, .out = out};
    if (qn__sized_in(&r.options, sizeof r.options, embed, "qn_embed_options", err) != QN_OK)
        return err->code;
    if ((unsigned)r.options.pooling > QN_POOL_LAST || (unsigned)r.options.norm > QN_NORM_NONE)
        return qn__fail(err, QN_INVALID, "pooling %d or norm %d is none that there is",
                        (int)r.options.pooling, (int)r.options.norm);
    if (qn__forward_check(model, texts, n, 0, "text", err) != QN_OK)
        return err->code;
    r.sum = malloc(r.width * sizeof *r.sum);
    if (!r.sum)
        return qn__fail_memory(err, "embeddings");
    qn__forward_texts(model, texts, n, options, true, r.options.pooling == QN_POOL_MEAN, add_state,
                      &r, err);
    free(r.sum);
    return err->code;
}
