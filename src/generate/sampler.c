/* SPDX-License-Identifier: Apache-2.0
 *
 * The sampling chain: repeat penalty, top_p, min_p, top_k, temperature, draw.
 *
 * Problem: 128,000 logits a token, of which the filters mostly keep a few dozen, at times most of
 * them; 500 us at most. An exp of each takes 90 us in lanes of 8, other passes 20.
 *
 * Approach: nothing is sorted. The three filters each keep a prefix of the tokens in order of
 * falling logit (equal ones by id), so together they keep the shortest: all above one logit, and of
 * those equal to it the first few. That cut is selected exactly among few candidates. For top_k
 * they are those that reach the k-th largest maximum of a block. For top_p they lie in a bracket
 * around an estimate from a sample of the logits: one pass weighs all logits, and apart those above
 * the bracket and those in it, which tells whether the cut is there. If not, the candidates are all
 * above the bracket, or all from its upper end down: the same cut, found in more time. The draw
 * weighs what reaches the cut, where it stands, by blocks. The passes over all logits are in
 * passes.inl.
 */
#include "base/error.h"
#include "base/random.h"
#include "base/sized.h"
#include "generate/passes.h"
#include "quern/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- the chain ------------------------------------------------------------------------ */

enum { BLOCK = QN__PASS_BLOCK };

/* Room for one draw, for blocks of a vocabulary. */
typedef struct sampler {
    const qn__passes *pass;
    float *logits;
    size_t vocab, n_blocks;
    float max;
    double *sums;      /* [n_blocks] */
    float *tops;       /* [n_blocks] the largest logit of each */
    float *candidates; /* [vocab] logits among which a filter ends; selection reorders them */
    uint8_t *seen;     /* [vocab] of the repeat penalty; the same memory */
} sampler;

/* Each repeated token is penalised once, however often it came. */
static void penalise(float *logits, size_t vocab, const qn_sampling *p, const int32_t *history,
                     size_t n, uint8_t *seen)
{
    size_t window = p->repeat_last == 0 ? 64 : p->repeat_last < 0 ? n : (size_t)p->repeat_last;
    memset(seen, 0, vocab);
    for (size_t i = n > window ? n - window : 0; i < n; i++) {
        int32_t id = history[i];
        if (id < 0 || (size_t)id >= vocab || seen[id])
            continue;
        seen[id] = 1;
        logits[id] =
            logits[id] > 0 ? logits[id] / p->repeat_penalty : logits[id] * p->repeat_penalty;
    }
}

/* Moves the larger ones of x[0..n) to the front: all in front of the returned index are at least
 * `pivot`, all behind are less; equal ones are in front. */
static size_t partition(float *x, size_t n, float pivot)
{
    size_t front = 0;
    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        x[i] = x[front];
        x[front] = v;
        front += v >= pivot;
    }
    return front;
}

static float middle_of_three(float a, float b, float c)
{
    float low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* Where a prefix in falling order ends: the last logit that it has, how many equal to that one, and
 * how many such there are. */
typedef struct cut {
    float logit;
    size_t equals, of;
} cut;

/* The shortest prefix of the n > 0 candidates from x on in falling order that has `count` members
 * or the weight `weight`; all when there is none. Reorders them. */
static cut select_prefix(const sampler *s, float *x, size_t n, size_t count, double weight)
{
    for (;;) {
        float pivot = middle_of_three(x[0], x[n / 2], x[n - 1]);
        size_t front = partition(x, n, pivot), equals = 0;
        double sum = 0;
        if (weight < INFINITY)
            sum = s->pass->weigh(x, front, NULL, s->max, 1, -INFINITY, NULL);
        for (size_t i = 0; i < front; i++)
            equals += x[i] == pivot;
        if (front < count && sum < weight && front < n) { /* it ends behind */
            x += front;
            n -= front;
            count -= front;
            weight -= sum;
            continue;
        }
        size_t above = front - equals;
        double each = exp((double)pivot - s->max), sum_above = sum - (double)equals * each;
        if (above && (above >= count || sum_above >= weight)) { /* it ends before the pivot */
            for (size_t i = 0, kept = 0; i < front; i++)
                if (x[i] != pivot)
                    x[kept++] = x[i];
            n = above;
            continue;
        }
        size_t most = count - above < equals ? count - above : equals;
        double by_weight = ceil((weight - sum_above) / each);
        if (by_weight < (double)most)
            most = by_weight < 1 ? 1 : (size_t)by_weight;
        return (cut){pivot, most, equals};
    }
}

/* A logit that at least k tokens reach: the k-th largest top of a block. */
static float reached_by(const sampler *s, size_t k)
{
    if (k > s->n_blocks)
        return -INFINITY;
    memcpy(s->candidates, s->tops, s->n_blocks * sizeof *s->candidates);
    return select_prefix(s, s->candidates, s->n_blocks, k, INFINITY).logit;
}

/* ---- where top_p ends, from a sample -------------------------------------------------- */

/* Logits below max are counted in steps; those further below than all steps weigh nothing here. Of
 * each block the largest logit is counted once, and SAMPLED others stand for all others. */
enum { STEPS_PER_LOGIT = 64, STEPS = 24 * STEPS_PER_LOGIT, SAMPLED = 8, EACH = BLOCK / SAMPLED };

typedef struct histogram {
    uint32_t tops[STEPS + 1], sampled[STEPS + 1]; /* the last: further below, or NaN */
    double weight[STEPS];                         /* of the steps so far */
    double squares[STEPS];                        /* of the sampled weights so far */
} histogram;

static size_t step_of(const sampler *s, float logit)
{
    float below = (s->max - logit) * STEPS_PER_LOGIT;
    return below < STEPS ? (size_t)below : STEPS;
}

static void take_sample(const sampler *s, histogram *h)
{
    memset(h->tops, 0, sizeof h->tops);
    memset(h->sampled, 0, sizeof h->sampled);
    for (size_t b = 0; b < s->n_blocks; b++) {
        /* neighbours, elsewhere in each block */
        size_t at = b * BLOCK + b * 40503 / 64 % EACH * SAMPLED;
        h->tops[step_of(s, s->tops[b])]++;
        for (size_t i = at; i < at + SAMPLED && i < s->vocab; i++)
            h->sampled[step_of(s, s->logits[i])] += s->logits[i] != s->tops[b];
    }
    double w = 1, ratio = exp(-1.0 / STEPS_PER_LOGIT), weight = 0, squares = 0;
    for (size_t k = 0; k < STEPS; k++, w *= ratio) {
        h->weight[k] = weight += w * (h->tops[k] + (double)EACH * h->sampled[k]);
        h->squares[k] = squares += w * w * h->sampled[k];
    }
}

/* The first step with which the steps so far have this weight; the last when all have less. */
static size_t step_at(const histogram *h, double weight)
{
    size_t k = 0;
    while (k + 1 < STEPS && h->weight[k] < weight)
        k++;
    return k;
}

typedef struct bracket {
    float low, high;
} bracket;

/* Logits between which the prefix of weight p of all very probably ends: four standard errors of
 * the sample to both sides of what it says. */
static bracket estimate_cut(const sampler *s, double p)
{
    histogram h;
    take_sample(s, &h);
    double weight = p * h.weight[STEPS - 1], squares = h.squares[step_at(&h, weight)];
    double dropped = h.squares[STEPS - 1] - squares;
    double variance = EACH * (EACH - 1) * ((1 - p) * (1 - p) * squares + p * p * dropped);
    size_t first = step_at(&h, weight - 4 * sqrt(variance));
    size_t last = step_at(&h, weight + 4 * sqrt(variance));
    bracket found = {-INFINITY, s->max - (float)first / STEPS_PER_LOGIT};
    if (last + 1 < STEPS)
        found.low = s->max - (float)(last + 1) / STEPS_PER_LOGIT;
    return found;
}

/* ---- filters -------------------------------------------------------------------------- */

/* Of the tokens equal to the last one that is kept the first ones stay; the others become -inf. */
static void drop_equals(const sampler *s, cut end)
{
    size_t left = end.equals;
    for (size_t at = 0; end.equals < end.of && at < s->vocab; at += BLOCK) {
        size_t n = s->vocab - at < BLOCK ? s->vocab - at : BLOCK, here = 0;
        if (s->tops[at / BLOCK] >= end.logit)
            here = s->pass->count_equal(s->logits + at, n, end.logit);
        if (here <= left) {
            left -= here;
            continue;
        }
        for (size_t i = at; i < at + n; i++)
            if (s->logits[i] == end.logit) {
                if (left)
                    left--;
                else
                    s->logits[i] = -INFINITY;
            }
    }
}

/* Keeps the shortest prefix of the candidates in low..high that has `count` members or `weight`,
 * and what is above `high`; returns the least logit that is kept. */
static float keep_prefix(const sampler *s, float low, float high, size_t count, double weight)
{
    size_t n = s->pass->collect(s->logits, s->vocab, s->tops, low, high, s->candidates);
    if (n == 0 || (n <= count && weight == INFINITY))
        return low;
    cut end = select_prefix(s, s->candidates, n, count, weight);
    drop_equals(s, end);
    return end.logit;
}

/* Were all logits below this one as large as it, they still could not make up what top_p leaves
 * out. */
static float least_near(const sampler *s, double p, double total)
{
    return s->max + (float)log((1 - p) * total / (double)s->vocab) - 1e-3f;
}

/* top_p among what reaches `floor`. */
static float keep_top_p(const sampler *s, double p, float floor)
{
    bracket at = estimate_cut(s, p);
    qn__split sum = s->pass->split(s->logits, s->vocab, s->max, at.low, at.high);
    double weight = p * sum.total;
    float low = fmaxf(floor, least_near(s, p, sum.total));
    if (sum.above >= weight) { /* the estimate was too low */
        at = (bracket){at.high, s->max};
    } else {
        weight -= sum.above;
        if (sum.inside < weight) /* too high */
            at.low = -INFINITY;
    }
    return keep_prefix(s, fmaxf(low, at.low), at.high, SIZE_MAX, weight);
}

/* The least logit that passes the filters; tokens equal to it that do not pass become -inf. */
static float filter(const sampler *s, const qn_sampling *p)
{
    float floor = p->min_p > 0 ? s->max + logf(p->min_p) : -INFINITY;
    bool by_p = p->top_p > 0 && p->top_p < 1;
    bool by_k = p->top_k > 0 && (size_t)p->top_k < s->vocab;
    if (by_k && (size_t)p->top_k <= s->n_blocks) { /* few are near */
        float near = fmaxf(floor, reached_by(s, (size_t)p->top_k));
        double weight = INFINITY;
        if (by_p)
            weight = (double)p->top_p *
                     s->pass->weigh(s->logits, s->vocab, NULL, s->max, 1, -INFINITY, NULL);
        return keep_prefix(s, near, s->max, (size_t)p->top_k, weight);
    }
    if (by_p)
        floor = keep_top_p(s, (double)p->top_p, floor);
    if (by_k)
        floor = keep_prefix(s, floor, s->max, (size_t)p->top_k, INFINITY);
    return floor;
}

/* Inverse of the cumulative distribution at u, by id, of the tokens that reach `floor`. */
static int32_t draw(const sampler *s, float floor, float temperature, double u)
{
    float scale = fminf(1 / temperature, 1e38f), weight[BLOCK];
    double left = u * s->pass->weigh(s->logits, s->vocab, s->tops, s->max, scale, floor, s->sums);
    size_t block = 0, last = 0;
    for (size_t b = 0; b < s->n_blocks; b++)
        last = s->sums[b] > 0 ? b : last; /* where rounding leaves a little at the end of all */
    while (block < last && left >= s->sums[block])
        left -= s->sums[block++];
    size_t at = block * BLOCK, chosen = at;
    s->pass->weigh_block(s->logits + at, s->vocab - at, s->max, scale, floor, weight);
    for (size_t i = 0; i < BLOCK; i++) {
        if (weight[i] > 0)
            chosen = at + i; /* rounding may leave a little at the end of a block */
        left -= (double)weight[i];
        if (left < 0)
            break;
    }
    return (int32_t)chosen;
}

static bool begin(sampler *s, float *logits, size_t vocab)
{
    s->pass = qn__passes_best();
    s->logits = logits;
    s->vocab = vocab;
    s->n_blocks = (vocab + BLOCK - 1) / BLOCK;
    s->sums = malloc(s->n_blocks * (sizeof(double) + sizeof(float)) + (vocab + 1) * sizeof(float));
    if (!s->sums)
        return false;
    s->tops = (float *)(s->sums + s->n_blocks);
    s->candidates = s->tops + s->n_blocks;
    s->seen = (uint8_t *)s->candidates;
    return true;
}

static int32_t best_of(const sampler *s)
{
    for (size_t i = 0; i < s->vocab; i++)
        if (s->logits[i] == s->max)
            return (int32_t)i;
    return -1;
}

int32_t qn_sample(float *logits, size_t vocab, const qn_sampling *sampling, const int32_t *history,
                  size_t n_history, qn_error *err)
{
    qn_sampling given, *p = &given;
    if (qn__sized_in(&given, sizeof given, sampling, "qn_sampling", err) != QN_OK ||
        check(p, err) != QN_OK)
        return -1;
    sampler s;
    if (!begin(&s, logits, vocab)) {
        qn__fail_memory(err, "the candidates of a sample");
        return -1;
    }
    if (p->repeat_penalty != 0 && p->repeat_penalty != 1)
        penalise(logits, vocab, p, history, n_history, s.seen);
    s.max = s.pass->tops(logits, vocab, s.tops);
    int32_t id = -1;
    if (s.max == INFINITY || s.max == -INFINITY)
        qn__fail(err, QN_INVALID, "the model's logits are not numbers: its weights may be damaged");
    else if (p->temperature == 0)
        id = best_of(&s);
    else
        id = draw(&s, filter(&s, p), p->temperature, qn__random_uniform(p->seed, n_history));
    free(s.sums);
    return id;
}
