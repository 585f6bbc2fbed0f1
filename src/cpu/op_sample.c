/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling: a token from each row of logits. A unit is a row: biases, the steps of its chain in
 * their order, the draw.
 *
 * Problem: 128,000 logits a row, of which the filters mostly keep a few dozen, at times most of
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
 * floor, where it stands, by blocks. The passes over all logits are the table's.
 */
#include "base/random.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 64 };

/* Room for one draw, for blocks of a vocabulary, and where its chain stands. */
typedef struct sampler {
    const qn__cpu_kernels *table;
    const qn__sample_row *row;
    const qn__sample_entry *entries; /* the row's */
    int32_t n_entries;               /* of different tokens */
    int32_t newest_at; /* the entry with which the last one counts, which is not one of these; -1 */
    float *logits;
    size_t vocab, n_blocks;
    double *sums;      /* [n_blocks] */
    float *tops;       /* [n_blocks] the largest logit of each */
    float *candidates; /* [vocab] logits among which a filter ends; selection reorders them */
    float max;
    float floor;    /* what is less is out; some that equal it are -inf */
    float near;     /* what is less will be out in the end */
    float scale;    /* of the logits' distances, by the temperatures so far */
    int32_t chosen; /* by temperature 0; -1: the draw decides */
} sampler;

/* Entries of the row, and with which of them the newest token's counts. */
static void find_entries(sampler *s, const qn__sample_entry *entries)
{
    s->entries = entries;
    s->n_entries = s->row->n_entries;
    s->newest_at = -1;
    if (!s->row->newest)
        return;
    int32_t last = s->n_entries - 1, i = 0;
    while (i < last && entries[i].id != entries[last].id)
        i++;
    s->newest_at = i < last ? i : -1;
    s->n_entries -= i < last || entries[last].id < 0;
}

static qn__sample_entry entry(const sampler *s, int32_t i)
{
    qn__sample_entry e = s->entries[i];
    if (i == s->newest_at) {
        e.repeats |= s->entries[s->n_entries].repeats;
        e.generated += s->entries[s->n_entries].generated;
    }
    return e;
}

static void add_biases(sampler *s)
{
    for (int32_t i = 0; i < s->n_entries; i++)
        s->logits[s->entries[i].id] += s->entries[i].bias;
}

static void penalise_repeats(sampler *s)
{
    float penalty = s->row->repeat_penalty;
    for (int32_t i = 0; i < s->n_entries; i++) {
        float *logit = &s->logits[s->entries[i].id];
        if (entry(s, i).repeats)
            *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
    }
}

/* What has been generated costs by presence and by how often. */
static void penalise_generated(sampler *s)
{
    const qn__sample_row *p = s->row;
    for (int32_t i = 0; i < s->n_entries; i++) {
        const qn__sample_entry e = entry(s, i);
        if (e.generated)
            s->logits[e.id] -=
                (p->presence_penalty + (float)e.generated * p->frequency_penalty) / s->scale;
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
            sum = s->table->weigh(x, front, NULL, s->max, s->scale, -INFINITY, NULL);
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
    size_t n = s->table->collect(s->logits, s->vocab, s->tops, low, high, s->candidates);
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
    s->table->split(s->logits, s->vocab, s->max, s->scale, at.low, at.high, sums);
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

/* The step that a chain begins with. */
static qn__sample_step first_of(uint32_t chain)
{
    return (qn__sample_step)(chain & ((1u << QN__SAMPLE_STEP_BITS) - 1));
}

static bool penalises(const qn__sample_row *row)
{
    return row->repeat_penalty != 1 || row->presence_penalty != 0 || row->frequency_penalty != 0;
}

/* What top_k, where it comes before the logits change again, will leave nothing below of. */
static float look_ahead(const sampler *s, uint32_t rest)
{
    size_t k = s->row->top_k > 0 ? (size_t)s->row->top_k : s->n_blocks + 1;
    for (; rest; rest >>= QN__SAMPLE_STEP_BITS) {
        if (first_of(rest) == QN__SAMPLE_PENALTIES && penalises(s->row))
            break;
        if (first_of(rest) == QN__SAMPLE_TOP_K && k <= s->n_blocks)
            return reached_by(s, k);
    }
    return -INFINITY;
}

/* When the logits have changed. */
static void measure(sampler *s, uint32_t rest)
{
    s->max = s->table->block_tops(s->logits, s->vocab, s->tops);
    s->floor = -INFINITY;
    s->near = look_ahead(s, rest);
}

static void step_penalties(sampler *s, uint32_t rest)
{
    if (!penalises(s->row))
        return;
    for (size_t i = 0; s->floor > -INFINITY && i < s->vocab; i++) /* what is out stays out */
        if (!(s->logits[i] >= s->floor))
            s->logits[i] = -INFINITY;
    if (s->row->repeat_penalty != 1)
        penalise_repeats(s);
    penalise_generated(s);
    measure(s, rest);
}

static void step_top_k(sampler *s, uint32_t rest)
{
    (void)rest;
    size_t k = s->row->top_k > 0 ? (size_t)s->row->top_k : s->vocab;
    if (k < s->vocab)
        s->floor = keep_prefix(s, fmaxf(s->floor, s->near), s->max, k, INFINITY);
}

/* Of what is left, once more. */
static void step_top_p(sampler *s, uint32_t rest)
{
    (void)rest;
    double p = (double)s->row->top_p;
    if (p <= 0 || p >= 1)
        return;
    if (s->floor == -INFINITY && s->near == -INFINITY) {
        s->floor = keep_top_p(s, p);
        return;
    }
    double all = s->table->weigh(s->logits, s->vocab, s->tops, s->max, s->scale, s->floor, NULL);
    s->floor = keep_prefix(s, fmaxf(s->floor, s->near), s->max, SIZE_MAX, p * all);
}

static void step_min_p(sampler *s, uint32_t rest)
{
    (void)rest;
    if (s->row->min_p > 0)
        s->floor = fmaxf(s->floor, s->max + logf(s->row->min_p) / s->scale);
}

static int32_t best_of(const sampler *s)
{
    size_t block = 0;
    while (s->tops[block] != s->max)
        block++;
    size_t i = block * BLOCK;
    while (s->logits[i] != s->max)
        i++;
    return (int32_t)i;
}

static void step_temperature(sampler *s, uint32_t rest)
{
    (void)rest;
    if (s->row->temperature == 0)
        s->chosen = best_of(s);
    else
        s->scale = fminf(s->scale / s->row->temperature, 1e38f);
}

/* Runs the chain. Where no logit is a number (any more) max is infinite in the end. */
static void run_chain(sampler *s)
{
    static void (*const steps[])(sampler *,
                                 uint32_t) = {[QN__SAMPLE_PENALTIES] = step_penalties,
                                              [QN__SAMPLE_TOP_K] = step_top_k,
                                              [QN__SAMPLE_TOP_P] = step_top_p,
                                              [QN__SAMPLE_MIN_P] = step_min_p,
                                              [QN__SAMPLE_TEMPERATURE] = step_temperature};
    uint32_t chain = s->row->chain;
    measure(s, chain);
    for (; chain && s->chosen < 0 && isfinite(s->max); chain >>= QN__SAMPLE_STEP_BITS)
        steps[first_of(chain)](s, chain >> QN__SAMPLE_STEP_BITS);
}

/* Inverse of the cumulative distribution at u, by id, of the tokens that are left. */
static int32_t draw(const sampler *s, double u)
{
    float weight[BLOCK];
    double left =
        u * s->table->weigh(s->logits, s->vocab, s->tops, s->max, s->scale, s->floor, s->sums);
    size_t block = 0, last = 0;
    for (size_t b = 0; b < s->n_blocks; b++)
        last = s->sums[b] > 0 ? b : last; /* where rounding leaves a little at the end of all */
    while (block < last && left >= s->sums[block])
        left -= s->sums[block++];
    size_t at = block * BLOCK, chosen = at;
    s->table->weigh_block(s->logits + at, s->vocab - at, s->max, s->scale, s->floor, weight);
    for (size_t i = 0; i < BLOCK; i++) {
        if (weight[i] > 0)
            chosen = at + i; /* rounding may leave a little at the end of a block */
        left -= (double)weight[i];
        if (left < 0)
            break;
    }
    return (int32_t)chosen;
}

/* ---- the routine ---------------------------------------------------------------------- */

static size_t blocks_of(int64_t vocab)
{
    return ((size_t)vocab + BLOCK - 1) / BLOCK;
}

/* Whether the token is simply the one of the largest logit. */
static bool is_argmax(const qn__sample_row *row)
{
    return row->chain == QN__SAMPLE_TEMPERATURE && row->temperature == 0 && !row->n_entries;
}

static int64_t prepare_sample(qn__cpu_job *job)
{
    const qn__operand *x = &job->call->operand[0];
    size_t vocab = (size_t)x->shape[1], blocks = blocks_of(x->shape[1]);
    job->n_phases = 1;
    job->units[0] = x->shape[0];
    job->scratch = blocks * (sizeof(double) + sizeof(float)) + 2 * vocab * sizeof(float) + 64;
    return 8 * qn__cpu_elements(x);
}

/* The sampler of a row; its logits are copied into scratch unless nothing changes them. */
static sampler begin_row(const qn__cpu_job *job, const qn__cpu_part *part, int64_t r)
{
    sampler s = {.table = job->table,
                 .row = (const qn__sample_row *)part->at[1] + r,
                 .vocab = (size_t)job->call->operand[0].shape[1],
                 .scale = 1,
                 .chosen = -1};
    find_entries(&s, (const qn__sample_entry *)part->at[2] + s.row->first_entry);
    s.n_blocks = blocks_of((int64_t)s.vocab);
    s.sums = part->scratch;
    s.tops = (float *)(s.sums + s.n_blocks);
    s.candidates = s.tops + s.n_blocks;
    s.logits = (float *)part->at[0] + (size_t)r * s.vocab;
    if (!is_argmax(s.row))
        s.logits = memcpy(s.candidates + s.vocab, s.logits, s.vocab * sizeof(float));
    return s;
}

static void run_sample(const qn__cpu_job *job, const qn__cpu_part *part)
{
    for (int64_t r = part->begin; r < part->end; r++) {
        sampler s = begin_row(job, part, r);
        add_biases(&s);
        run_chain(&s);
        int32_t id = s.chosen;
        if (id < 0 && isfinite(s.max))
            id = draw(&s, qn__random_uniform(qn__sample_seed(s.row), s.row->position));
        ((int32_t *)part->at[3])[r] = id;
    }
}

static bool accepts_sample(const qn_array *node)
{
    return node->in[0]->dtype == QN_F32;
}

const qn__cpu_routine qn__cpu_sample_routine = {QN__OP_SAMPLE, .accepts = accepts_sample,
                                                .prepare = prepare_sample, .run = run_sample};
