/* SPDX-License-Identifier: Apache-2.0
 *
 * Scaled dot-product attention with grouped queries. Attention over a cache is cache.c.
 */
#include "ops/ops.h"

#include "base/sized.h"

#include <math.h>

static bool shapes_fit(const qn_array *q, const qn_array *k, const qn_array *v)
{
    return q->ndim == 4 && k->ndim == 4 && v->ndim == 4 && q->shape[3] == k->shape[3] &&
           q->shape[0] == k->shape[0] && q->shape[0] == v->shape[0] && k->shape[1] == v->shape[1] &&
           k->shape[2] == v->shape[2] && k->shape[1] > 0 && q->shape[1] % k->shape[1] == 0;
}

/* The parameters of options, with the default scale. */
static qn__attention_params attention_params(const qn_attention_options *o, int64_t head_dim)
{
    qn__attention_params p = {0};
    if (o) {
        p.window = o->window;
        p.scale = o->scale;
        p.softcap = o->softcap;
        p.causal = o->causal;
        p.has_mask = o->mask != NULL;
        p.has_sinks = o->sinks != NULL;
    }
    if (p.scale == 0)
        p.scale = (float)(1 / sqrt((double)head_dim));
    return p;
}

qn_array *qn__sinks(qn_scope *s, qn_array *sinks, const qn_array *q, qn_dtype type)
{
    sinks = qn__input(s, sinks, "attention");
    if (!sinks)
        return qn__poison(s);
    if (sinks->ndim != 1 || sinks->shape[0] != q->shape[1])
        return qn__op_fail(s, "attention", q, sinks, "sinks must be [H], one for each query head");
    return qn_contiguous(s, qn_cast(s, sinks, type));
}

qn_array *qn_attention(qn_scope *s, qn_array *q, qn_array *k, qn_array *v,
                       const qn_attention_options *given)
{
    qn_attention_options options;
    q = qn__input(s, q, "attention");
    k = q ? qn__input(s, k, "attention") : NULL;
    v = k ? qn__input(s, v, "attention") : NULL;
    if (!v)
        return qn__poison(s);
    if (qn__sized_in(&options, sizeof options, given, "qn_attention_options", &s->error) != QN_OK)
        return qn__poison(s);
    if (!shapes_fit(q, k, v))
        return qn__op_fail(s, "attention", q, k,
                           "q must be [B, H, L, D], k and v [B, G, S, D], H a multiple of G");
    qn_dtype type = (qn_dtype)q->dtype, compute = qn__dtype_compute(type);
    qn__attention_params params = attention_params(&options, q->shape[3]);
    qn_array *in[5] = {qn_cast(s, q, compute), qn_cast(s, k, compute), qn_cast(s, v, compute)};
    int n = 3;
    if (params.has_mask)
        in[n++] = qn__input(s, options.mask, "attention");
    if (params.has_sinks)
        in[n++] = qn__sinks(s, options.sinks, q, compute);
    if (s->error.code != QN_OK)
        return qn__poison(s);
    int64_t shape[] = {q->shape[0], q->shape[1], q->shape[2], v->shape[3]};
    qn_array *y = qn__record(s, QN__OP_ATTENTION, compute, 4, shape, n, in, &params);
    return qn_cast(s, y, type);
}

/* bool [L, S]: which keys a query sees; NULL: all. */
static qn_array *visible(qn_scope *s, const qn__attention_params *p, int64_t l, int64_t n_keys)
{
    if (!p->causal && !p->window)
        return NULL;
    qn_array *row = qn_reshape(s, qn_arange(s, QN_I32, l), 2, (const int64_t[]){-1, 1});
    qn_array *last = qn_add(s, row, qn_scalar(s, QN_I32, (double)(n_keys - l)));
    qn_array *key = qn_arange(s, QN_I32, n_keys);
    qn_array *seen = p->causal ? qn_less_equal(s, key, last) : NULL;
    if (p->window) {
        qn_array *edge = qn_subtract(s, last, qn_scalar(s, QN_I32, (double)p->window));
        qn_array *recent = qn_greater(s, key, edge);
        seen = seen ? qn_logical_and(s, seen, recent) : recent;
    }
    return seen;
}

/* A mask [.., H, L, S] with heads split as scores are: [B, G, H/G, L, S]. */
static qn_array *split_heads(qn_scope *s, qn_array *mask, const int64_t *scores)
{
    if (mask->ndim < 3 || mask->shape[mask->ndim - 3] == 1) {
        return mask->ndim < 4 ? mask : qn_expand_dims(s, mask, 1);
    }
    int64_t batch = mask->ndim == 4 ? mask->shape[0] : 1;
    int64_t shape[] = {batch, scores[1], scores[2], mask->shape[mask->ndim - 2],
                       mask->shape[mask->ndim - 1]};
    return qn_reshape(s, mask, 5, shape);
}

/* The weights of scores [B, G, H/G, L, S], with a score more for each query where there are sinks,
 * whose weight is nobody's. */
static qn_array *weights(qn_scope *s, const qn_array *node, qn_array *scores)
{
    const qn__attention_params *p = node->params;
    if (!p->has_sinks || qn__is_poison(s, scores))
        return qn_softmax(s, scores, -1);
    const int64_t *n = scores->shape, heads[] = {1, n[1], n[2], 1, 1};
    qn_array *sinks = qn_reshape(s, node->in[3 + p->has_mask], 5, heads);
    sinks = qn_broadcast_to(s, sinks, 5, (const int64_t[]){n[0], n[1], n[2], n[3], 1});
    qn_array *both = qn_concatenate(s, (qn_array *[]){scores, sinks}, 2, -1);
    return qn_slice(s, qn_softmax(s, both, -1), -1, 0, n[4], 1);
}

/* scores: [B, G, H/G, L, S] */
static qn_array *decompose_attention(qn_scope *s, const qn_array *node)
{
    const qn__attention_params *p = node->params;
    qn_array *q = node->in[0], *k = node->in[1], *v = node->in[2];
    int64_t b = q->shape[0], h = q->shape[1], l = q->shape[2], g = k->shape[1];
    q = qn_reshape(s, qn_multiply(s, q, qn__scalar_like(s, q, p->scale)), 5,
                   (const int64_t[]){b, g, h / g, l, q->shape[3]});
    qn_array *scores = qn_matmul(s, q, qn_swap_axes(s, qn_expand_dims(s, k, 2), -1, -2));
    if (qn__is_poison(s, scores))
        return scores;
    if (p->softcap > 0) {
        qn_array *cap = qn__scalar_like(s, scores, p->softcap);
        scores = qn_multiply(s, qn_tanh(s, qn_divide(s, scores, cap)), cap);
    }
    qn_array *seen = visible(s, p, l, k->shape[2]);
    qn_array *mask = p->has_mask ? split_heads(s, node->in[3], scores->shape) : NULL;
    if (mask && qn_array_dtype(mask) == QN_BOOL)
        seen = seen ? qn_logical_and(s, seen, mask) : mask;
    else if (mask)
        scores = qn_add(s, scores, qn_cast(s, mask, (qn_dtype)scores->dtype));
    if (seen)
        scores = qn_where(s, seen, scores, qn__scalar_like(s, scores, -INFINITY));
    qn_array *y = qn_matmul(s, weights(s, node, scores), qn_expand_dims(s, v, 2));
    return qn_reshape(s, y, 4, node->shape);
}

const qn__op_def qn__attention_op = {.name = "attention",
                                     .class = QN__KERNEL,
                                     .params_size = sizeof(qn__attention_params),
                                     .decompose = decompose_attention};
