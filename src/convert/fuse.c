/* SPDX-License-Identifier: Apache-2.0
 *
 * Fusing: a matrix's rows with the products of adapters added, w + scale b A, for every row b of B.
 */
#include "convert/convert.h"

#include <stdlib.h>

qn_status qn__fuse_begin(qn__conversion *c)
{
    size_t n = c->options->n_adapters;
    if (!n)
        return QN_OK;
    if (n > QN__MOST_ADAPTERS)
        return qn__fail(c->err, QN_LIMIT, "%zu adapters; %d are fused at most", n,
                        QN__MOST_ADAPTERS);
    c->places = calloc(n, sizeof *c->places);
    if (!c->places)
        return qn__fail_memory(c->err, "adapters");
    for (size_t i = 0; i < n; i++) {
        const qn_adapter *given = &c->options->adapters[i];
        c->places[i] = (qn__adapter_place){given->path, given->scale != 0 ? given->scale : 1};
    }
    return qn__adapters_open(&c->adapters, &c->decoder, c->places, (int)n, c->err);
}

void qn__fuse_end(qn__conversion *c)
{
    qn__adapters_close(c->adapters);
    free(c->places);
}

void qn__fuse_mark(const qn__conversion *c, qn__output_tensor *t, const qn__parameter *p,
                   bool pairs)
{
    if (!c->adapters || !qn__adapters_have(c->adapters, p))
        return;
    t->fused = p;
    t->pairs = pairs;
}

qn_status qn__fuse_check(const qn__conversion *c, const qn__output_tensor *t)
{
    bool ternary = t->fused && t->fused->ternary != QN__TERNARY_NOT;
    if (!t->fused || (t->source && !ternary && t->target->encode))
        return QN_OK;
    return qn__fail(c->err, QN_UNSUPPORTED,
                    "%s: tensor %s, to which the adapter adds, is %s, which %s", c->source.path,
                    t->name,
                    ternary     ? "ternary"
                    : t->source ? t->target->name
                                : "no float",
                    ternary     ? "it would no longer be"
                    : t->source ? "is read and not written: a type, bits or a dtype give it "
                                  "another one"
                                : "cannot be added to");
}

void qn__fuse_row(const qn__conversion *c, const qn__output_tensor *t, int64_t row, float *values)
{
    int64_t ranks = qn__adapters_ranks(c->adapters);
    if (t->pairs)
        row = qn__row_of_pairs(row, c->decoder.config.head_dim);
    for (int64_t k = 0; k < ranks; k++) {
        float b = t->b[row * ranks + k];
        const float *a = t->a + k * t->columns;
        for (int64_t i = 0; b != 0 && i < t->columns; i++)
            values[i] += b * a[i];
    }
}
