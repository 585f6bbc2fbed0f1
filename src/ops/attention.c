/* SPDX-License-Identifier: Apache-2.0
 *
 * Scaled dot-product attention with grouped queries, and its gradients. Attention over a cache is
 * cache.c.
 *
 * Neither form keeps scores [L, S] where a device has the kernels: the gradients make them again.
 * attention_back gives all three in one array of one axis, dq [B, L, H, D], dk [B, S, H, D] and dv
 * [B, S, H, E] behind each other, of each query head its own; heads that share keys are added up.
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
        p.has_first = o->first != NULL;
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

/* i32 [B, L] */
static qn_array *first_keys(qn_scope *s, qn_array *first, const qn_array *q)
{
    first = qn__input(s, first, "attention");
    if (!first)
        return qn__poison(s);
    if (first->ndim != 2 || first->shape[0] != q->shape[0] || first->shape[1] != q->shape[2] ||
        qn__is_float((qn_dtype)first->dtype))
        return qn__op_fail(s, "attention", q, first, "first must be integers [B, L]");
    return qn_contiguous(s, qn_cast(s, first, QN_I32));
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
    qn_array *in[6] = {qn_cast(s, q, compute), qn_cast(s, k, compute), qn_cast(s, v, compute)};
    int n = 3;
    if (params.has_mask)
        in[n++] = qn__input(s, options.mask, "attention");
    if (params.has_sinks)
        in[n++] = qn__sinks(s, options.sinks, q, compute);
    if (params.has_first)
        in[n++] = first_keys(s, options.first, q);
    if (s->error.code != QN_OK)
        return qn__poison(s);
    int64_t h = q->shape[1], l = q->shape[2], e = v->shape[3];
    int64_t shape[] = {q->shape[0], h, l, e}, stride[] = {l * h * e, e, h * e, 1};
    qn_array *y =
        qn__record_strided(s, QN__OP_ATTENTION, compute, 4, shape, stride, n, in, &params);
    return qn_cast(s, y, type);
}

/* bool [L, S] or, with first [B, L], [B, 1, 1, L, S]: which keys a query sees; NULL: all. */
static qn_array *visible(qn_scope *s, const qn__attention_params *p, qn_array *first, int64_t l,
                         int64_t n_keys)
{
    if (!p->causal && !p->window && !first)
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
    if (first) {
        const int64_t shape[] = {first->shape[0], 1, 1, l, 1};
        qn_array *later = qn_greater_equal(s, key, qn_reshape(s, first, 5, shape));
        seen = seen ? qn_logical_and(s, seen, later) : later;
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
    qn_array *first = p->has_first ? node->in[3 + p->has_mask + p->has_sinks] : NULL;
    qn_array *seen = visible(s, p, first, l, k->shape[2]);
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

/* ---- gradients ------------------------------------------------------------------------------- */

/* Elements from *at on as [B, rows, H, size]; *at moves behind them. */
static qn_array *next_gradient(qn_scope *s, qn_array *all, int64_t *at, const qn_array *q,
                               int64_t rows, int64_t size)
{
    int64_t n = q->shape[0] * rows * q->shape[1] * size, begin = *at;
    const int64_t shape[] = {q->shape[0], rows, q->shape[1], size};
    *at += n;
    return qn_reshape(s, qn_slice(s, all, 0, begin, *at, 1), 4, shape);
}

/* [B, S, H, D] of each query head as [B, G, S, D]: one pass over memory, where a sum over an axis
 * inside would gather. */
static qn_array *join_heads(qn_scope *s, qn_array *x, int64_t g)
{
    if (qn__is_poison(s, x))
        return x;
    const int64_t *n = x->shape, split[] = {n[0], n[1], g, n[2] / g, n[3]};
    qn_array *each = qn_reshape(s, x, 5, split), *sum = NULL;
    for (int64_t i = 0; i < split[3]; i++) {
        qn_array *head = qn_squeeze(s, qn_slice(s, each, 3, i, i + 1, 1), 3);
        sum = sum ? qn_add(s, sum, head) : head;
    }
    return qn_transpose(s, sum, (const int[]){0, 2, 1, 3});
}

static void vjp_attention(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                          qn_array **grads)
{
    const qn__attention_params *p = node->params;
    qn_array *q = node->in[0], *k = node->in[1], *v = node->in[2];
    qn_array *in[6] = {q, k, v, (qn_array *)node, ct, p->has_first ? node->in[3] : NULL};
    int64_t d = q->shape[3], e = v->shape[3], heads = q->shape[0] * q->shape[1], at = 0;
    const int64_t n[] = {heads * (q->shape[2] * d + k->shape[2] * (d + e))};
    qn_array *all =
        qn__record(s, QN__OP_ATTENTION_BACK, (qn_dtype)node->dtype, 1, n, 5 + p->has_first, in, p);
    qn_array *dq = next_gradient(s, all, &at, q, q->shape[2], d);
    qn_array *dk = next_gradient(s, all, &at, q, k->shape[2], d);
    qn_array *dv = next_gradient(s, all, &at, q, k->shape[2], e);
    if (want[0])
        grads[0] = qn_transpose(s, dq, (const int[]){0, 2, 1, 3});
    if (want[1])
        grads[1] = join_heads(s, dk, k->shape[1]);
    if (want[2])
        grads[2] = join_heads(s, dv, k->shape[1]);
}

/* A node of its own with the values of x [B, G, S, D] for each of H heads. */
static qn_array *for_each_head(qn_scope *s, qn_array *x, int64_t heads)
{
    const int64_t *n = x->shape, each[] = {n[0], n[1], heads / n[1], n[2], n[3]};
    const int64_t shape[] = {n[0], heads, n[2], n[3]};
    x = qn_broadcast_to(s, qn_expand_dims(s, x, 2), 5, each);
    x = qn_reshape(s, x, 4, shape);
    return qn__is_poison(s, x) ? x : qn__elementwise(s, QN__OP_COPY, (qn_dtype)x->dtype, 1, &x);
}

/* The gradients of what attention means; for their own derivatives. */
static qn_array *decompose_attention_back(qn_scope *s, const qn_array *node)
{
    const qn__attention_params *p = node->params;
    const qn_array *o = node->in[3];
    int64_t heads = o->shape[1];
    qn_array *in[4] = {0}, *out[3], *flat[3], as_if = *o;
    for (int i = 0; i < 3; i++)
        in[i] = for_each_head(s, node->in[i], heads);
    in[3] = p->has_first ? node->in[5] : NULL;
    if (s->error.code != QN_OK)
        return qn__poison(s);
    as_if.in = in;
    as_if.params = node->params;
    qn_array *y = decompose_attention(s, &as_if);
    if (qn_vjp(s, y, node->in[4], in, 3, out) != QN_OK)
        return qn__poison(s);
    for (int i = 0; i < 3; i++)
        flat[i] = qn_reshape(s, qn_transpose(s, out[i], (const int[]){0, 2, 1, 3}), 1,
                             (const int64_t[]){-1});
    return qn_concatenate(s, flat, 3, 0);
}

const qn__op_def qn__attention_op = {.name = "attention",
                                     .class = QN__KERNEL,
                                     .params_size = sizeof(qn__attention_params),
                                     .decompose = decompose_attention,
                                     .vjp = vjp_attention};
const qn__op_def qn__attention_back_op = {.name = "attention_back",
                                          .class = QN__KERNEL,
                                          .params_size = sizeof(qn__attention_params),
                                          .decompose = decompose_attention_back};
