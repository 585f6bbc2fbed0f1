/* SPDX-License-Identifier: Apache-2.0
 *
 * The sampling chain: repeat penalty, top_p, min_p, top_k, temperature, draw.
 *
 * Problem: 128,000 logits a token, of which the filters mostly keep a few dozen, at times thousands.
 * Approach: nothing is sorted. The three filters each keep a prefix of the tokens in order of falling
 * logit (equal ones by id), so together they keep the shortest: all above one logit, and of those equal
 * to it the first few. That cut is found by selection among the tokens near the top: which those are
 * follows from block maxima (top_k) and from the weight that the rest may have at most (top_p). Passes over
 * all logits are in lanes, with an exp of their own: this layer does not see the CPU device's kernels. A draw
 * walks the kept tokens by id.
 */
#include "base/error.h"
#include "base/random.h"
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

/* ---- passes in lanes ---------------------------------------------------------------------------------------- */

enum { LANES = 4, BLOCK = 64 };

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t int_lanes __attribute__((vector_size(4 * LANES)));

static lanes load_lanes(const float *p, size_t n, float fill)
{
    float x[LANES];
    if (n < LANES) {
        for (size_t i = 0; i < LANES; i++)
            x[i] = i < n ? p[i] : fill;
        p = x;
    }
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

static lanes all_lanes(float x)
{
    return (lanes){x, x, x, x};
}

static lanes pick_lanes(int_lanes yes, lanes a, lanes b)
{
    return (lanes)((yes & (int_lanes)a) | (~yes & (int_lanes)b));
}

/* exp of lanes at most 0, within 2e-7 of it; below -87 and for NaN 0. x = n ln 2 + r, |r| <= ln 2 / 2. */
static lanes exp_lanes(lanes x)
{
    lanes low = all_lanes(-87.0f), magic = all_lanes(12582912.0f); /* 1.5 * 2^23 rounds to integers */
    int_lanes in_range = x >= low;
    x = pick_lanes(in_range, x, low);
    lanes shifted = x * 1.44269504f + magic, n = shifted - magic;
    lanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
    lanes y = all_lanes(1.0f / 5040);
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    int_lanes power = (((int_lanes)shifted) << 23) + 0x3f800000;
    return (lanes)((int_lanes)(y * (lanes)power) & in_range);
}

/* The sum over a block of weights, exp((logit - max) * scale) or 0 for NaN; they go to weight[0..BLOCK), too,
 * unless that is NULL. Past the n-th they are 0. */
static double weigh_block(const float *logits, size_t n, float max, float scale, float *weight)
{
    lanes sum = all_lanes(0);
    for (size_t i = 0; i < BLOCK; i += LANES) {
        lanes x = load_lanes(logits + i, n > i ? n - i : 0, -INFINITY);
        lanes w = exp_lanes((x - max) * scale);
        if (weight)
            memcpy(weight + i, &w, sizeof w);
        sum += w;
    }
    double block = 0;
    for (int i = 0; i < LANES; i++)
        block += (double)sum[i];
    return block;
}

static double sum_weights(const float *logits, size_t n, float max)
{
    double total = 0;
    for (size_t at = 0; at < n; at += BLOCK)
        total += weigh_block(logits + at, n - at, max, 1, NULL);
    return total;
}

/* The largest logit of each block, -inf for NaN; returns the largest of all. */
static float block_tops(const float *logits, size_t n, float *tops)
{
    float best = -INFINITY;
    for (size_t at = 0; at < n; at += BLOCK) {
        lanes top = all_lanes(-INFINITY);
        for (size_t i = at; i < at + BLOCK && i < n; i += LANES) {
            lanes x = load_lanes(logits + i, n - i, -INFINITY);
            top = pick_lanes(x > top, x, top);
        }
        float block = -INFINITY;
        for (int i = 0; i < LANES; i++)
            block = top[i] > block ? top[i] : block;
        tops[at / BLOCK] = block;
        best = block > best ? block : best;
    }
    return best;
}

/* ---- the chain ----------------------------------------------------------------------------------------------- */

/* Room for one draw, for blocks of a vocabulary. */
typedef struct sampler {
    const float *logits;
    size_t vocab, n_blocks;
    float max;
    float *tops;     /* [n_blocks] */
    double *sums;    /* [n_blocks] */
    float *logit;    /* [vocab] of the tokens near the top */
    int32_t *id;     /* [vocab] theirs */
    float *selected; /* [vocab] what selection reorders */
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
        logits[id] = logits[id] > 0 ? logits[id] / p->repeat_penalty
                                    : logits[id] * p->repeat_penalty;
    }
}

/* Moves the larger ones of x[0..n) to the front: all in front of the returned index are at least `pivot`, all
 * behind are less; equal ones are in front. */
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

/* Where a prefix in falling order ends: the last logit that it has, and how many equal to that one. */
typedef struct cut {
    float logit;
    size_t equals;
} cut;

/* The shortest prefix of x[0..n), n > 0, in falling order that has `count` members or the weight `weight`.
 * Reorders x. */
static cut select_prefix(float *x, size_t n, float max, size_t count, double weight)
{
    for (;;) {
        float pivot = middle_of_three(x[0], x[n / 2], x[n - 1]);
        size_t front = partition(x, n, pivot), equals = 0;
        double sum = weight < INFINITY ? sum_weights(x, front, max) : 0;
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
        double each = exp((double)pivot - max), sum_above = sum - (double)equals * each;
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
        return (cut){pivot, most};
    }
}

/* The tokens with a logit of at least `floor` to s->logit and s->id, by id; returns their number. */
static size_t collect(const sampler *s, float floor)
{
    size_t n = 0;
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (!(s->tops[b] >= floor))
            continue;
        size_t end = (b + 1) * BLOCK < s->vocab ? (b + 1) * BLOCK : s->vocab;
        for (size_t i = b * BLOCK; i < end; i++) {
            s->logit[n] = s->logits[i];
            s->id[n] = (int32_t)i;
            n += s->logits[i] >= floor;
        }
    }
    return n;
}

/* A logit that at least k tokens reach: the k-th largest top of a block. */
static float reached_by(const sampler *s, size_t k)
{
    if (k > s->n_blocks)
        return -INFINITY;
    memcpy(s->selected, s->tops, s->n_blocks * sizeof *s->selected);
    return select_prefix(s->selected, s->n_blocks, s->max, k, INFINITY).logit;
}

/* The tokens that pass the filters, to s->logit and s->id; returns their number, or 0 when none is filtered. */
static size_t filter(const sampler *s, const qn_sampling *p)
{
    float floor = p->min_p > 0 ? s->max + logf(p->min_p) : -INFINITY;
    bool by_p = p->top_p > 0 && p->top_p < 1, by_k = p->top_k > 0 && (size_t)p->top_k < s->vocab;
    if (!by_p && !by_k)
        return p->min_p > 0 ? collect(s, floor) : 0;
    double weight = INFINITY;
    float near = floor;
    if (by_k)
        near = fmaxf(near, reached_by(s, (size_t)p->top_k));
    if (by_p) {
        double total = sum_weights(s->logits, s->vocab, s->max);
        weight = (double)p->top_p * total;
        /* were all others lighter than this, they still could not make up what top_p leaves out */
        double least = (1 - (double)p->top_p) * total / (double)s->vocab;
        near = fmaxf(near, s->max + (float)log(least) - 1e-3f);
    }
    size_t n = collect(s, near), kept = 0;
    memcpy(s->selected, s->logit, n * sizeof *s->selected);
    cut end = select_prefix(s->selected, n, s->max, by_k ? (size_t)p->top_k : SIZE_MAX, weight);
    for (size_t i = 0; i < n; i++) {
        bool equal = s->logit[i] == end.logit, keep = s->logit[i] > end.logit || (equal && end.equals);
        end.equals -= equal && keep;
        s->logit[kept] = s->logit[i];
        s->id[kept] = s->id[i];
        kept += keep;
    }
    return kept;
}

/* Inverse of the cumulative distribution at u, by id: of the n filtered tokens, or of all when n is 0. */
static int32_t draw(const sampler *s, size_t n, float temperature, double u)
{
    const float *logit = n ? s->logit : s->logits;
    size_t count = n ? n : s->vocab, block = 0, last = (count - 1) / BLOCK;
    float scale = fminf(1 / temperature, 1e38f), weight[BLOCK];
    double left = 0;
    for (size_t b = 0; b <= last; b++)
        left += s->sums[b] = weigh_block(logit + b * BLOCK, count - b * BLOCK, s->max, scale, NULL);
    left *= u;
    while (block < last && left >= s->sums[block])
        left -= s->sums[block++];
    size_t at = block * BLOCK, chosen = at;
    weigh_block(logit + at, count - at, s->max, scale, weight);
    for (size_t i = 0; i < BLOCK; i++) {
        if (weight[i] > 0)
            chosen = at + i; /* rounding may leave a little at the end of a block */
        left -= (double)weight[i];
        if (left < 0)
            break;
    }
    return n ? s->id[chosen] : (int32_t)chosen;
}

static bool begin(sampler *s, const float *logits, size_t vocab, size_t room)
{
    size_t whole = s->n_blocks * BLOCK;
    char *base = malloc(room);
    if (!base)
        return false;
    s->logits = logits;
    s->vocab = vocab;
    s->sums = (double *)base;
    s->tops = (float *)(s->sums + s->n_blocks);
    s->logit = s->tops + s->n_blocks;
    s->selected = s->logit + whole;
    s->id = (int32_t *)(s->selected + whole);
    return true;
}

static int32_t best_of(const sampler *s)
{
    for (size_t i = 0; i < s->vocab; i++)
        if (s->logits[i] == s->max)
            return (int32_t)i;
    return -1;
}

int32_t qn_sample(float *logits, size_t vocab, const qn_sampling *p, const int32_t *history,
                  size_t n_history, qn_error *err)
{
    if (check(p, err) != QN_OK)
        return -1;
    sampler s = {.n_blocks = (vocab + BLOCK - 1) / BLOCK};
    if (!begin(&s, logits, vocab, s.n_blocks * (BLOCK * 12 + 12) + 16)) {
        qn__fail_memory(err, "the candidates of a sample");
        return -1;
    }
    if (p->repeat_penalty != 0 && p->repeat_penalty != 1)
        penalise(logits, vocab, p, history, n_history, (uint8_t *)s.logit);
    s.max = block_tops(logits, vocab, s.tops);
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
