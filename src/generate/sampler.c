/* SPDX-License-Identifier: Apache-2.0
 *
 * The sampling chain: repeat penalty, top_p, min_p, top_k, temperature, draw. The three filters each keep
 * a prefix of the tokens in order of falling probability, so together they keep the shortest one; only
 * as much of the order is made as that needs.
 */
#include "base/error.h"
#include "base/random.h"
#include "quern/model.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

static qn_status check(const qn_sampling *p, qn_error *err)
{
    if (!(p->temperature >= 0 && p->temperature <= 1e6f))
        return qn__fail(err, QN_INVALID, "temperature %g; give 0 or more", (double)p->temperature);
    if (!(p->top_p >= 0 && p->top_p <= 1) || !(p->min_p >= 0 && p->min_p <= 1))
        return qn__fail(err, QN_INVALID, "top_p %g and min_p %g must lie in 0..1", (double)p->top_p,
                        (double)p->min_p);
    if (p->top_k < 0)
        return qn__fail(err, QN_INVALID, "top_k %d; give 0 (all) or more", p->top_k);
    if (!(p->repeat_penalty >= 0 && p->repeat_penalty <= 1e6f))
        return qn__fail(err, QN_INVALID, "repeat_penalty %g; give 1 (none) or more",
                        (double)p->repeat_penalty);
    return QN_OK;
}

/* Each repeated token is penalised once, however often it came. */
static void penalise(float *logits, size_t vocab, const qn_sampling *p, const int32_t *history,
                     size_t n)
{
    size_t window = p->repeat_last == 0 ? 64 : p->repeat_last < 0 ? n : (size_t)p->repeat_last;
    size_t first = n > window ? n - window : 0;
    for (size_t i = first; i < n; i++) {
        int32_t id = history[i];
        bool seen = id < 0 || (size_t)id >= vocab;
        for (size_t k = first; k < i && !seen; k++)
            seen = history[k] == id;
        if (!seen)
            logits[id] = logits[id] > 0 ? logits[id] / p->repeat_penalty
                                        : logits[id] * p->repeat_penalty;
    }
}

static int32_t most_probable(const float *logits, size_t vocab)
{
    int32_t best = -1;
    for (size_t i = 0; i < vocab; i++)
        if (logits[i] == logits[i] && (best < 0 || logits[i] > logits[best]))
            best = (int32_t)i;
    return best;
}

/* Falling logit, then rising id. */
static int compare(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* How many of n sorted candidates top_p keeps: until their probability reaches it. total: of all. */
static size_t nucleus(const candidate *c, size_t n, float max, double total, float top_p)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += exp((double)c[i].logit - max);
        if (sum >= (double)top_p * total)
            return i + 1;
    }
    return n;
}

/* Candidates within `reach` of the largest logit, sorted. */
static size_t collect(const float *logits, size_t vocab, float floor, candidate *out)
{
    size_t n = 0;
    for (size_t i = 0; i < vocab; i++)
        if (logits[i] >= floor)
            out[n++] = (candidate){logits[i], (int32_t)i};
    return n;
}

/* The tokens that pass the filters, sorted when a filter needs the order. To sort little, it first tries
 * those near the top, and widens the reach until the filters are decided within it. */
static size_t filter(const float *logits, size_t vocab, const qn_sampling *p, float max,
                     candidate *out)
{
    float floor = -INFINITY;
    if (p->min_p > 0)
        floor = max + logf(p->min_p);
    bool by_p = p->top_p > 0 && p->top_p < 1, by_k = p->top_k > 0 && (size_t)p->top_k < vocab;
    if (!by_p && !by_k)
        return collect(logits, vocab, floor, out);
    double total = 0;
    for (size_t i = 0; by_p && i < vocab; i++)
        if (logits[i] == logits[i])
            total += exp((double)logits[i] - max);
    for (float reach = 4;; reach *= 2) {
        bool all = max - reach <= floor || reach > 1e6f;
        size_t n = collect(logits, vocab, all ? floor : max - reach, out);
        qsort(out, n, sizeof *out, compare);
        size_t keep = n;
        bool decided = all;
        if (by_k && n >= (size_t)p->top_k) {
            keep = (size_t)p->top_k;
            decided |= !by_p;
        }
        size_t inside = by_p ? nucleus(out, n, max, total, p->top_p) : n;
        if (by_p && inside < n)
            decided = true; /* the nucleus ends in what was collected, so all before it was too */
        if (decided || (by_k && by_p && n >= (size_t)p->top_k))
            return keep < inside ? keep : inside;
    }
}

/* Inverse of the cumulative distribution at u, in the order given. */
static int32_t draw(const candidate *c, size_t n, float max, float temperature, double u)
{
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        total += exp(((double)c[i].logit - max) / temperature);
    for (size_t i = 0; i < n; i++) {
        sum += exp(((double)c[i].logit - max) / temperature);
        if (sum > u * total)
            return c[i].id;
    }
    return c[n - 1].id;
}

int32_t qn_sample(float *logits, size_t vocab, const qn_sampling *p, const int32_t *history,
                  size_t n_history, qn_error *err)
{
    if (check(p, err) != QN_OK)
        return -1;
    if (p->repeat_penalty != 0 && p->repeat_penalty != 1)
        penalise(logits, vocab, p, history, n_history);
    int32_t best = most_probable(logits, vocab);
    if (best < 0 || logits[best] == INFINITY || logits[best] == -INFINITY) {
        qn__fail(err, QN_INVALID, "the model's logits are not numbers: its weights may be damaged");
        return -1;
    }
    if (p->temperature == 0)
        return best;
    candidate *c = malloc(vocab * sizeof *c);
    if (!c) {
        qn__fail_memory(err, "the candidates of a sample");
        return -1;
    }
    size_t n = filter(logits, vocab, p, logits[best], c);
    int32_t id = draw(c, n, logits[best], p->temperature, qn__random_uniform(p->seed, n_history));
    free(c);
    return id;
}
