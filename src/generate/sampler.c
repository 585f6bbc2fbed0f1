/* SPDX-License-Identifier: Apache-2.0
 *
 * The sampling chain: biases, the steps in the order asked for, the draw.
 *
 * Problem: 128,000 logits a token, of which the filters mostly keep a few dozen, at times most of
 * them; 500 us at most. An exp of each takes 90 us in lanes of 8, other passes 20.
 *
 * Approach: nothing is sorted. Each filter keeps a prefix of the tokens in order of falling logit
 * (equal ones by id): all above one logit, and of those equal to it the first few. So what is left
 * after any steps is what reaches one logit, `floor`; the temperatures so far are one factor,
 * `scale`, and logits stay as they are. A cut is selected exactly among few candidates. For top_k
 * they are those that reach the k-th largest maximum of a block; where top_k comes later, the steps
 * before need to look at no others. For top_p they lie in a bracket around an estimate from a
 * sample of the logits: one pass weighs all logits, and apart those above the bracket and those in
 * it, which tells whether the cut is there. If not, the candidates are all above the bracket, or
 * all from its upper end down: the same cut, found in more time. The draw weighs what reaches the
 * floor, where it stands, by blocks. The passes over all logits are the CPU tiers'.
 */
#include "base/error.h"
#include "base/random.h"
#include "base/sized.h"
#include "core/device.h"
#include "generate/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = QN__PASS_BLOCK };

/* Room for one draw, for blocks of a vocabulary, and where its chain stands. */
typedef struct sampler {
    const qn__passes *pass;
    const qn_sampling *settings;
    const int32_t *history;
    size_t n_history, n_generated;
    float *logits;
    size_t vocab, n_blocks;
    double *sums;      /* [n_blocks] */
    float *tops;       /* [n_blocks] the largest logit of each */
    float *candidates; /* [vocab] logits among which a filter ends; selection reorders them */
    uint32_t *count;   /* [vocab] of the penalties; the same memory */
    float max;
    float floor;    /* what is less is out; some that equal it are -inf */
    float near;     /* what is less will be out in the end */
    float scale;    /* of the logits' distances, by the temperatures so far */
    int32_t chosen; /* by temperature 0; -1: the draw decides */
} sampler;

static void add_biases(sampler *s)
{
    const qn_sampling *p = s->settings;
    for (size_t i = 0; i < p->n_bias; i++)
        s->logits[p->bias[i].id] += p->bias[i].bias;
}

/* Each repeated token is penalised once, however often it came. */
static void penalise_repeats(sampler *s)
{
    const qn_sampling *p = s->settings;
    size_t n = s->n_history;
    size_t window = p->repeat_last == 0 ? 64 : p->repeat_last < 0 ? n : (size_t)p->repeat_last;
    memset(s->count, 0, s->vocab * sizeof *s->count);
    for (size_t i = n > window ? n - window : 0; i < n; i++) {
        int32_t id = s->history[i];
        if (id < 0 || (size_t)id >= s->vocab || s->count[id])
            continue;
        s->count[id] = 1;
        float *logit = &s->logits[id];
        *logit = *logit > 0 ? *logit / p->repeat_penalty : *logit * p->repeat_penalty;
    }
}

/* What has been generated costs by presence and by how often. */
static void penalise_generated(sampler *s)
{
    const qn_sampling *p = s->settings;
    const int32_t *ids = s->history + (s->n_history - s->n_generated);
    memset(s->count, 0, s->vocab * sizeof *s->count);
    for (size_t i = 0; i < s->n_generated; i++)
        if (ids[i] >= 0 && (size_t)ids[i] < s->vocab)
            s->count[ids[i]]++;
    for (size_t i = 0; i < s->n_generated; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= s->vocab || !s->count[ids[i]])
            continue;
        float cost = p->presence_penalty + (float)s->count[ids[i]] * p->frequency_penalty;
        s->logits[ids[i]] -= cost / s->scale;
        s->count[ids[i]] = 0;
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
            sum = s->pass->weigh(x, front, NULL, s->max, s->scale, -INFINITY, NULL);
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
        double each = exp(((double)pivot - s->max) * s->scale),
               sum_above = sum - (double)equals * each;
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

/* Scaled logits below max are counted in steps; those further below than all steps weigh nothing
 * here. Of each block the largest logit is counted once, and SAMPLED others stand for all others.
 */
enum { STEPS_PER_LOGIT = 64, STEPS = 24 * STEPS_PER_LOGIT, SAMPLED = 8, EACH = BLOCK / SAMPLED };

typedef struct histogram {
    uint32_t tops[STEPS + 1], sampled[STEPS + 1]; /* the last: further below, or NaN */
    double weight[STEPS];                         /* of the steps so far */
    double squares[STEPS];                        /* of the sampled weights so far */
} histogram;

static size_t step_of(const sampler *s, float logit)
{
    float below = (s->max - logit) * s->scale * STEPS_PER_LOGIT;
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
    bracket found = {-INFINITY, s->max - (float)first / STEPS_PER_LOGIT / s->scale};
    if (last + 1 < STEPS)
        found.low = s->max - (float)(last + 1) / STEPS_PER_LOGIT / s->scale;
    return found;
}

/* ---- filters -------------------------------------------------------------------------- */

static size_t count_equal(const float *x, size_t n, float value)
{
    size_t equal = 0;
    for (size_t i = 0; i < n; i++)
        equal += x[i] == value;
    return equal;
}

/* Of the tokens equal to the last one that is kept the first ones stay; the others become -inf. */
static void drop_equals(const sampler *s, cut end)
{
    size_t left = end.equals;
    for (size_t at = 0; end.equals < end.of && at < s->vocab; at += BLOCK) {
        size_t n = s->vocab - at < BLOCK ? s->vocab - at : BLOCK, here = 0;
        if (s->tops[at / BLOCK] >= end.logit)
            here = count_equal(s->logits + at, n, end.logit);
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
    return s->max + ((float)log((1 - p) * total / (double)s->vocab) - 1e-3f) / s->scale;
}

/* top_p among all logits. */
static float keep_top_p(const sampler *s, double p)
{
    bracket at = estimate_cut(s, p);
    double sums[3]; /* all, above the bracket, inside */
    s->pass->split(s->logits, s->vocab, s->max, s->scale, at.low, at.high, sums);
    double weight = p * sums[0];
    float low = least_near(s, p, sums[0]);
    if (sums[1] >= weight) { /* the estimate was too low */
        at = (bracket){at.high, s->max};
    } else {
        weight -= sums[1];
        if (sums[2] < weight) /* too high */
            at.low = -INFINITY;
    }
    return keep_prefix(s, fmaxf(low, at.low), at.high, SIZE_MAX, weight);
}

/* ---- the steps ------------------------------------------------------------------------ */

/* What top_k, where it comes before the logits change again, will leave nothing below of. */
static float look_ahead(const sampler *s, const qn_sampler *rest)
{
    bool changes = qn__sampling_penalises(s->settings);
    size_t k = s->settings->top_k > 0 ? (size_t)s->settings->top_k : s->n_blocks + 1;
    for (; *rest != QN_SAMPLER_END && !(changes && *rest == QN_SAMPLER_PENALTIES); rest++)
        if (*rest == QN_SAMPLER_TOP_K && k <= s->n_blocks)
            return reached_by(s, k);
    return -INFINITY;
}

/* When the logits have changed. */
static void measure(sampler *s, const qn_sampler *rest)
{
    s->max = s->pass->tops(s->logits, s->vocab, s->tops);
    s->floor = -INFINITY;
    s->near = look_ahead(s, rest);
}

static void step_penalties(sampler *s, const qn_sampler *rest)
{
    const qn_sampling *p = s->settings;
    if (!qn__sampling_penalises(p))
        return;
    for (size_t i = 0; s->floor > -INFINITY && i < s->vocab; i++) /* what is out stays out */
        if (!(s->logits[i] >= s->floor))
            s->logits[i] = -INFINITY;
    if (p->repeat_penalty != 0 && p->repeat_penalty != 1)
        penalise_repeats(s);
    if (p->presence_penalty != 0 || p->frequency_penalty != 0)
        penalise_generated(s);
    measure(s, rest);
}

static void step_top_k(sampler *s, const qn_sampler *rest)
{
    (void)rest;
    size_t k = s->settings->top_k > 0 ? (size_t)s->settings->top_k : s->vocab;
    if (k < s->vocab)
        s->floor = keep_prefix(s, fmaxf(s->floor, s->near), s->max, k, INFINITY);
}

/* Of what is left, once more. */
static void step_top_p(sampler *s, const qn_sampler *rest)
{
    (void)rest;
    double p = (double)s->settings->top_p;
    if (p <= 0 || p >= 1)
        return;
    if (s->floor == -INFINITY && s->near == -INFINITY) {
        s->floor = keep_top_p(s, p);
        return;
    }
    double all = s->pass->weigh(s->logits, s->vocab, s->tops, s->max, s->scale, s->floor, NULL);
    s->floor = keep_prefix(s, fmaxf(s->floor, s->near), s->max, SIZE_MAX, p * all);
}

static void step_min_p(sampler *s, const qn_sampler *rest)
{
    (void)rest;
    if (s->settings->min_p > 0)
        s->floor = fmaxf(s->floor, s->max + logf(s->settings->min_p) / s->scale);
}

static int32_t best_of(const sampler *s)
{
    for (size_t i = 0; i < s->vocab; i++)
        if (s->logits[i] == s->max)
            return (int32_t)i;
    return -1;
}

static void step_temperature(sampler *s, const qn_sampler *rest)
{
    (void)rest;
    if (s->settings->temperature == 0)
        s->chosen = best_of(s);
    else
        s->scale = fminf(s->scale / s->settings->temperature, 1e38f);
}

/* Runs the chain. Where no logit is a number (any more) max is infinite in the end. */
static void run_chain(sampler *s)
{
    static void (*const steps[])(sampler *, const qn_sampler *) = {
        [QN_SAMPLER_PENALTIES] = step_penalties,
        [QN_SAMPLER_TOP_K] = step_top_k,
        [QN_SAMPLER_TOP_P] = step_top_p,
        [QN_SAMPLER_MIN_P] = step_min_p,
        [QN_SAMPLER_TEMPERATURE] = step_temperature};
    const qn_sampler *step = qn__sampling_chain(s->settings);
    measure(s, step);
    for (; *step != QN_SAMPLER_END && s->chosen < 0 && isfinite(s->max); step++)
        steps[*step](s, step + 1);
}

/* Inverse of the cumulative distribution at u, by id, of the tokens that are left. */
static int32_t draw(const sampler *s, double u)
{
    float weight[BLOCK];
    double left =
        u * s->pass->weigh(s->logits, s->vocab, s->tops, s->max, s->scale, s->floor, s->sums);
    size_t block = 0, last = 0;
    for (size_t b = 0; b < s->n_blocks; b++)
        last = s->sums[b] > 0 ? b : last; /* where rounding leaves a little at the end of all */
    while (block < last && left >= s->sums[block])
        left -= s->sums[block++];
    size_t at = block * BLOCK, chosen = at;
    s->pass->weigh_block(s->logits + at, s->vocab - at, s->max, s->scale, s->floor, weight);
    for (size_t i = 0; i < BLOCK; i++) {
        if (weight[i] > 0)
            chosen = at + i; /* rounding may leave a little at the end of a block */
        left -= (double)weight[i];
        if (left < 0)
            break;
    }
    return (int32_t)chosen;
}

static bool begin(sampler *s)
{
    size_t n = s->n_blocks = (s->vocab + BLOCK - 1) / BLOCK;
    s->scale = 1;
    s->chosen = -1;
    s->sums = malloc(n * (sizeof(double) + sizeof(float)) + (s->vocab + 1) * sizeof(float));
    if (!s->sums)
        return false;
    s->tops = (float *)(s->sums + n);
    s->candidates = s->tops + n;
    s->count = (uint32_t *)s->candidates;
    return true;
}

int32_t qn_sample(const qn_device *device, float *logits, size_t vocab, const qn_sampling *sampling,
                  const int32_t *history, size_t n_history, size_t n_generated, qn_error *err)
{
    qn_sampling given, *p = &given;
    if (qn__sized_in(&given, sizeof given, sampling, "qn_sampling", err) != QN_OK ||
        qn__sampling_check(p, vocab, err) != QN_OK)
        return -1;
    sampler s = {.pass = &device->passes,
                 .settings = p,
                 .history = history,
                 .n_history = n_history,
                 .n_generated = n_generated < n_history ? n_generated : n_history,
                 .logits = logits,
                 .vocab = vocab};
    if (!begin(&s)) {
        qn__fail_memory(err, "the candidates of a sample");
        return -1;
    }
    add_biases(&s);
    run_chain(&s);
    int32_t id = -1;
    if (!isfinite(s.max))
        qn__fail(err, QN_INVALID, "%s",
                 p->n_bias ? "no token is left to draw: biases forbid all, or the model's logits "
                             "are not numbers"
                           : "the model's logits are not numbers: its weights may be damaged");
    else
        id = s.chosen >= 0 ? s.chosen : draw(&s, qn__random_uniform(p->seed, n_history));
    free(s.sums);
    return id;
}
