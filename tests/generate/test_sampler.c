/* SPDX-License-Identifier: Apache-2.0
 *
 * The sampling chain against one that sorts everything and computes in double, and against
 * transformers; edge cases; and whether tokens come as often as they should.
 */
#include "models/golden_model.h"

#include "base/random.h"
#include "cpu/kernels/kernels.h"
#include "generate/draws.h"
#include "quern/ops.h"

#include <math.h>
#include <string.h>

enum { MOST = 128256, SOME = 5000, BLOCK = 64, MOST_TIERS = 5 };

/* A device of each tier that this machine has, the reference first; `device` is the best. */
static qn_device *tiers[MOST_TIERS + 1], *device;
static int n_others; /* behind the tiers: what QUERN_TEST_DEVICE names is `device` */
static qn__cpu_kernels tables[MOST_TIERS];
static int n_tiers;

static int set_up(void **state)
{
    static const char *const names[] = {"ref", "avx2", "avx512", "amx", "neon"};
    (void)state;
    for (int i = 0; i < MOST_TIERS; i++) {
        qn_device_options o = {.size = sizeof o, .tier = names[i], .threads = 1};
        if (qn_device_open(&tiers[n_tiers], "cpu", &o, NULL) != QN_OK)
            continue;
        qn__cpu_kernels_fill(&tables[n_tiers], names[i]);
        n_tiers++;
    }
    const char *other = getenv("QUERN_TEST_DEVICE");
    device = n_tiers ? tiers[n_tiers - 1] : NULL;
    if (other && qn_device_open(&device, other, NULL, NULL) != QN_OK)
        return -1;
    if (other)
        tiers[n_tiers + n_others++] = device;
    return n_tiers ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < n_tiers + n_others; i++)
        qn_device_close(tiers[i]);
    return 0;
}

typedef struct ranked {
    double logit;
    int32_t id;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->logit > y->logit ? -1 : x->logit < y->logit ? 1 : x->id - y->id;
}

/* How many of the history's newest tokens no prompt had. */
static size_t n_generated;

static void penalise_plainly(ranked *order, size_t kept, const qn_sampling *p,
                             const int32_t *history, size_t n)
{
    long window = p->repeat_last ? p->repeat_last : 64;
    for (size_t k = 0; k < kept; k++) {
        bool seen = false;
        int times = 0;
        for (size_t i = 0; i < n; i++) {
            seen |= history[i] == order[k].id && (window < 0 || i + (size_t)window >= n);
            times += history[i] == order[k].id && i + n_generated >= n;
        }
        if (seen && p->repeat_penalty > 0)
            order[k].logit = order[k].logit > 0
                                 ? (float)(order[k].logit / (double)p->repeat_penalty)
                                 : (float)(order[k].logit * (double)p->repeat_penalty);
        if (times)
            order[k].logit -= (double)(p->presence_penalty + (float)times * p->frequency_penalty);
    }
    qsort(order, kept, sizeof *order, by_rank);
}

/* How many of the best tokens a filter leaves. */
static size_t filter_plainly(const ranked *order, size_t kept, const qn_sampling *p,
                             qn_sampler step)
{
    double total = 0, sum = 0, top_p = p->top_p > 0 ? (double)p->top_p : 1;
    size_t n = 0;
    for (size_t i = 0; i < kept; i++)
        total += exp(order[i].logit - order[0].logit);
    if (step == QN_SAMPLER_TOP_K)
        return p->top_k > 0 && (size_t)p->top_k < kept ? (size_t)p->top_k : kept;
    if (step == QN_SAMPLER_TOP_P && top_p < 1)
        while (n < kept && (n == 0 || sum < top_p * total))
            sum += exp(order[n++].logit - order[0].logit);
    else if (step == QN_SAMPLER_MIN_P)
        while (n < kept && exp(order[n].logit - order[0].logit) >= (double)p->min_p * (1 - 1e-7))
            n++;
    else
        return kept;
    return n;
}

/* The tokens that may be drawn, best first, and their probabilities; returns their number. */
static size_t distribution(const float *logits, size_t vocab, const qn_sampling *p,
                           const int32_t *history, size_t n_history, int32_t *ids, double *chance)
{
    static const qn_sampler usual[] = {QN_SAMPLER_PENALTIES,   QN_SAMPLER_TOP_P,
                                       QN_SAMPLER_MIN_P,       QN_SAMPLER_TOP_K,
                                       QN_SAMPLER_TEMPERATURE, QN_SAMPLER_END};
    static ranked order[MOST];
    size_t keep = 0;
    for (size_t i = 0; i < vocab; i++)
        if (!isnan(logits[i]))
            order[keep++] = (ranked){(double)logits[i], (int32_t)i};
    for (size_t i = 0; i < keep; i++)
        for (size_t k = 0; k < p->n_bias; k++)
            order[i].logit += p->bias[k].id == order[i].id ? (double)p->bias[k].bias : 0;
    qsort(order, keep, sizeof *order, by_rank);
    for (const qn_sampler *step = p->chain[0] ? p->chain : usual; *step; step++) {
        if (*step == QN_SAMPLER_PENALTIES)
            penalise_plainly(order, keep, p, history, n_history);
        else if (*step != QN_SAMPLER_TEMPERATURE)
            keep = filter_plainly(order, keep, p, *step);
        else if (p->temperature == 0)
            keep = 1;
        for (size_t i = 0; *step == QN_SAMPLER_TEMPERATURE && i < keep && keep > 1; i++)
            order[i].logit /= (double)p->temperature;
    }
    double drawn = 0;
    for (size_t i = 0; i < keep; i++) {
        ids[i] = order[i].id;
        drawn += chance[i] = keep == 1 ? 1 : exp(order[i].logit - order[0].logit);
    }
    for (size_t i = 0; i < keep; i++)
        chance[i] /= drawn;
    return keep;
}

static int32_t sample(const float *logits, size_t vocab, const qn_sampling *p,
                      const int32_t *history, size_t n)
{
    qn_error err = {0};
    int32_t id = qn_sample(device, logits, vocab, p, history, n, n_generated, &err);
    if (id < 0)
        fail_msg("%s", err.message);
    return id;
}

static void random_logits(float *logits, size_t vocab, double spread, uint64_t seed)
{
    for (size_t i = 0; i < vocab; i++)
        logits[i] =
            (float)(spread * (test_random(&seed) + test_random(&seed) + test_random(&seed)));
}

/* The first of 40 draws that is not the token that its random number points at, in words; NULL when
 * there is none. */
static const char *wrong_draw(const float *logits, size_t vocab, const qn_sampling *p,
                              const qn_sampling *reference, const int32_t *history,
                              size_t n_history)
{
    static char text[200];
    static int32_t ids[MOST];
    static double chance[MOST], by_id[MOST];
    size_t n = distribution(logits, vocab, reference, history, n_history, ids, chance);
    for (size_t i = 0; i < vocab; i++)
        by_id[i] = 0;
    for (size_t i = 0; i < n; i++)
        by_id[ids[i]] = chance[i];
    for (uint64_t seed = 0; seed < 40; seed++) {
        qn_sampling s = *p;
        s.seed = seed;
        int32_t got = sample(logits, vocab, &s, history, n_history);
        double u = qn__random_uniform(seed, n_history), sum = 0;
        size_t i = 0;
        while (i + 1 < vocab && (sum += by_id[i]) <= u)
            i++;
        if (got == (int32_t)i || fabs(sum - u) <= 1e-6 || fabs(sum - by_id[i] - u) <= 1e-6)
            continue;
        snprintf(text, sizeof text,
                 "top_k %d top_p %.9g min_p %g t %g seed %d: drew %d, should be %d of %zu",
                 p->top_k, (double)p->top_p, (double)p->min_p, (double)p->temperature, (int)seed,
                 got, (int)i, n);
        return text;
    }
    return NULL;
}

static void check_chain(const float *logits, size_t vocab, const qn_sampling *p,
                        const int32_t *history, size_t n_history)
{
    const char *wrong = wrong_draw(logits, vocab, p, p, history, n_history);
    if (wrong)
        fail_msg("%s", wrong);
}

static void test_chain(void **state)
{
    (void)state;
    static const size_t vocabs[] = {1, 2, 50, 1000, SOME};
    static float logits[MOST];
    int32_t history[200];
    uint64_t seed = 1;
    for (int i = 0; i < 200; i++)
        history[i] = (int32_t)((test_random(&seed) + 1) * 30) - 5; /* some are no tokens */
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (int k = 0; k < 96; k++) {
            random_logits(logits, vocabs[v], k % 7 == 6 ? 300 : 3, 100 + (uint64_t)k);
            if (k % 5 == 4 && vocabs[v] > 2) {
                logits[1] = NAN;
                logits[2] = -INFINITY;
            }
            qn_sampling p = {.size = sizeof p};
            p.temperature = (float[]){1, 0, 0.3f, 2.5f}[k % 4];
            p.top_k = (int32_t[]){0, 5, 1, 40}[k / 4 % 4];
            p.top_p = (float[]){0, 0.9f, 0.2f}[k / 16 % 3];
            p.min_p = k / 48 ? 0.05f : 0;
            p.repeat_penalty = k % 3 == 1 ? 1.3f : 0;
            p.repeat_last = (int32_t[]){0, 3, -1}[k / 2 % 3];
            check_chain(logits, vocabs[v], &p, history, k % 3 == 1 ? 200 : (size_t)k);
        }
}

/* Steps in every order, some left out, with biases and all penalties. */
static void test_orders(void **state)
{
    (void)state;
    static const size_t vocabs[] = {3, 70, 1000, SOME};
    static float logits[MOST];
    int32_t history[150];
    uint64_t seed = 5;
    n_generated = 60;
    for (int k = 0; k < 240; k++) {
        size_t vocab = vocabs[k % 4];
        qn_sampler all[] = {QN_SAMPLER_PENALTIES, QN_SAMPLER_TOP_K, QN_SAMPLER_TOP_P,
                            QN_SAMPLER_MIN_P, QN_SAMPLER_TEMPERATURE};
        for (int i = 0; i < 150; i++)
            history[i] = (int32_t)((test_random(&seed) + 1) * 25);
        random_logits(logits, vocab, 2, 300 + (uint64_t)k);
        qn_token_bias biases[] = {{0, -INFINITY}, {(int32_t)vocab - 1, 3.5f}, {1, -2}};
        qn_sampling p = {.size = sizeof p, .bias = biases, .n_bias = (size_t)(k / 4 % 4)};
        p.temperature = (float[]){0.5f, 1.9f, 0}[k % 24 == 5 ? 2 : k % 2];
        p.top_k = (int32_t[]){12, 3, 400}[k / 3 % 3];
        p.top_p = (float[]){0.8f, 0.35f, 0.97f}[k / 9 % 3];
        p.min_p = k % 2 ? 0.02f : 0.2f;
        p.repeat_penalty = k % 5 ? 1.2f : 0;
        p.repeat_last = k % 7 ? -1 : 20;
        p.presence_penalty = k % 6 < 4 ? 0.4f : -0.3f;
        p.frequency_penalty = k % 4 ? 0.25f : 0;
        for (int i = 4; i > 0; i--) { /* an order */
            int j = (int)((test_random(&seed) + 1) / 2 * (i + 1));
            qn_sampler other = all[j];
            all[j] = all[i];
            all[i] = other;
        }
        memcpy(p.chain, all, (size_t)(5 - k / 5 % 4) * sizeof *all);
        check_chain(logits, vocab, &p, history, 150);
    }
    n_generated = 0;
}

/* Chains of transformers' processors (tests/golden/make_sampling.py): each random number leads to
 * the token that their distribution has there. */
static void test_golden_chains(void **state)
{
    (void)state;
    enum { V = 200, H = 40 };
    char path[600], names[80];
    size_t n_logits, n_history, n_probs, n = 0;
    qn_tensors *file = golden_open("sampling");
    float *logits = golden_tensor(file, "logits", &n_logits),
          *probs = golden_tensor(file, "probs", &n_probs);
    int32_t *history = golden_tensor(file, "history", &n_history);
    golden_path(path, sizeof path, "sampling", "cases.txt");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    qn_sampling p = {.size = sizeof p, .repeat_last = -1};
    while (fscanf(f, "%79s %f %d %f %f %f %f %f %zu", names, &p.temperature, &p.top_k, &p.top_p,
                  &p.min_p, &p.repeat_penalty, &p.presence_penalty, &p.frequency_penalty,
                  &n_generated) == 9) {
        assert_int_equal(qn_sampling_set_chain(&p, names, NULL), QN_OK);
        for (p.seed = 0; p.seed < 60; p.seed++) {
            int32_t got = sample(logits + n * V, V, &p, history + n * H, H);
            double u = qn__random_uniform(p.seed, H), below = 0;
            for (int32_t i = 0; i < got; i++)
                below += (double)probs[n * V + (size_t)i];
            double here = (double)probs[n * V + (size_t)got];
            if (!(here > 0 && u >= below - 1e-5 && u <= below + here + 1e-5))
                fail_msg("%s: %g drew %d, which has %g..%g", names, u, got, below, below + here);
        }
        n++;
    }
    assert_true(n * V == n_logits && n * V == n_probs && n * H == n_history && n > 40);
    n_generated = 0;
    fclose(f);
    free(logits);
    free(probs);
    free(history);
    qn_tensors_close(file);
}

static void test_names(void **state)
{
    (void)state;
    qn_sampling p = {.size = sizeof p};
    qn_error err = {0};
    assert_int_equal(qn_sampling_set_chain(&p, "temp;top-k;nucleus;min_p;penalties", &err), QN_OK);
    static const qn_sampler want[] = {QN_SAMPLER_TEMPERATURE, QN_SAMPLER_TOP_K,
                                      QN_SAMPLER_TOP_P,       QN_SAMPLER_MIN_P,
                                      QN_SAMPLER_PENALTIES,   QN_SAMPLER_END};
    assert_memory_equal(p.chain, want, sizeof want);
    static const char *const bad[] = {"",    ";",           "top_k;",      "top_k;;min_p",
                                      "dry", "top_k;typ_p", "top_k;top-k", "top_k temperature"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (qn_error){0};
        assert_int_equal(qn_sampling_set_chain(&p, bad[i], &err), QN_INVALID);
        assert_true(strstr(err.message, "top_k, top_p, min_p") ||
                    strstr(err.message, "stands twice"));
        assert_memory_equal(p.chain, want, sizeof want);
        assert_int_equal(qn_sampling_set_chain(&p, bad[i], NULL), QN_INVALID);
    }
    assert_int_equal(qn_sampling_set_chain(&p, "temperature", NULL), QN_OK);
    assert_int_equal(p.chain[1], QN_SAMPLER_END);
}

/* ---- log probabilities ---------------------------------------------------------------- */

static void check_logprobs(const float *logits, size_t vocab, size_t n)
{
    static ranked order[MOST];
    static qn_logprob got[1001];
    double sum = 0;
    size_t finite = 0;
    for (size_t i = 0; i < vocab; i++)
        if (!isnan(logits[i]))
            order[finite++] = (ranked){(double)logits[i], (int32_t)i};
    qsort(order, finite, sizeof *order, by_rank);
    for (size_t i = 0; i < finite; i++)
        sum += exp(order[i].logit - order[0].logit);
    int32_t id = order[finite / 2].id;
    assert_int_equal(qn_logprobs(device, logits, vocab, id, n, got, NULL), QN_OK);
    assert_int_equal(got[0].id, id);
    for (size_t i = 0; i <= n; i++) {
        const ranked *r = i ? &order[i - 1] : &order[finite / 2];
        if (i > finite) {
            assert_int_equal(got[i].id, -1);
            continue;
        }
        double want = r->logit - order[0].logit - log(sum);
        assert_int_equal(got[i].id, r->id);
        if (!(fabs((double)got[i].logprob - want) <= 1e-5 + 1e-6 * fabs(want)) && want > -INFINITY)
            fail_msg("token %d: %g, not %g", r->id, (double)got[i].logprob, want);
    }
}

static void test_logprobs(void **state)
{
    (void)state;
    static float logits[MOST];
    static const size_t vocabs[] = {1, 2, 64, 65, 700, SOME}, tops[] = {0, 1, 5, 1000};
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (size_t k = 0; k < sizeof tops / sizeof *tops; k++) {
            random_logits(logits, vocabs[v], 4, v);
            for (size_t i = 0; v > 2 && k % 2 && i < vocabs[v]; i++)
                logits[i] = i % 9 == 4   ? NAN
                            : i % 9 == 5 ? -INFINITY
                                         : roundf(logits[i]); /* ties */
            check_logprobs(logits, vocabs[v], tops[k]);
        }
    qn_logprob got[3];
    float nan[] = {NAN, -INFINITY}, fine[] = {1, 2};
    assert_int_equal(qn_logprobs(device, nan, 2, 0, 1, got, NULL), QN_INVALID);
    assert_int_equal(qn_logprobs(device, fine, 2, 2, 1, got, NULL), QN_INVALID);
    assert_int_equal(qn_logprobs(device, fine, 2, -1, 1, got, NULL), QN_INVALID);
    assert_int_equal(qn_logprobs(device, fine, 2, 0, 1001, got, NULL), QN_INVALID);
}

/* ---- shapes of distributions ---------------------------------------------------------- */

static float bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

enum { FLAT, WIDE, TIES, EQUAL, ONE_HUGE, NOT_NUMBERS, SORTED, COLUMN, SHAPES };
static const char *const shape_names[] = {"flat",     "wide",        "ties",   "equal",
                                          "one huge", "not numbers", "sorted", "column"};

static void fill_shape(float *logits, size_t vocab, int shape, uint64_t seed)
{
    random_logits(logits, vocab, shape == WIDE ? 4 : 1, seed);
    for (size_t i = 0; i < vocab; i++)
        if (shape == TIES)
            logits[i] = bf16_of(logits[i]);
        else if (shape == EQUAL)
            logits[i] = -3.25f;
        else if (shape == NOT_NUMBERS && i % 3)
            logits[i] = i % 3 == 1 ? NAN : -INFINITY;
        else if (shape == SORTED) /* weights without a mean: a sample of neighbours misleads */
            logits[i] = -logf(1e-4f + fabsf(logits[i]) - truncf(fabsf(logits[i])));
        else if (shape == COLUMN && i % 64 == 5)
            logits[i] += 4;
    if (shape == ONE_HUGE)
        logits[vocab / 3] = 25;
    if (shape == SORTED)
        qsort(logits, vocab, sizeof *logits, by_size);
}

/* Nearly as hot as can be, so that each kept token counts, and as it is used. What single precision
 * leaves open at the cut is open here. */
static void check_shape(int shape, size_t vocab, const qn_sampling *p)
{
    static float logits[MOST];
    fill_shape(logits, vocab, shape, vocab + (size_t)shape);
    for (int hot = 0; hot < 2; hot++) {
        qn_sampling s = *p;
        s.temperature = hot ? 1e5f : 0.6f;
        const char *wrong = NULL;
        for (int k = 0; k < 3; k++) {
            qn_sampling near = s;
            near.top_p *= (float[]){1, 1 + 2.4e-7f, 1 - 2.4e-7f}[k];
            if (!(wrong = wrong_draw(logits, vocab, &s, &near, NULL, 0)))
                break;
        }
        if (wrong)
            fail_msg("%s, vocabulary %zu: %s", shape_names[shape], vocab, wrong);
    }
}

static void test_shapes(void **state)
{
    (void)state;
    static const float top_p[] = {0.9f, 0.5f, 1e-6f, 0.999999f, 0.05f, 0.99f};
    static const size_t vocabs[] = {3, 64, 65, 700, SOME};
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
            for (size_t k = 0; k < sizeof top_p / sizeof *top_p; k++)
                if (shape != WIDE || top_p[k] < 0.995f) /* where it ends is a matter of rounding */
                    check_shape(shape, vocabs[v],
                                &(qn_sampling){.size = sizeof(qn_sampling), .top_p = top_p[k]});
            check_shape(shape, vocabs[v],
                        &(qn_sampling){.size = sizeof(qn_sampling), .top_p = 0.8f, .min_p = 0.3f});
            check_shape(shape, vocabs[v],
                        &(qn_sampling){.size = sizeof(qn_sampling), .top_p = 0.8f, .top_k = 300});
            check_shape(shape, vocabs[v],
                        &(qn_sampling){.size = sizeof(qn_sampling), .top_k = 300, .min_p = 0.02f});
        }
    check_shape(FLAT, MOST, &(qn_sampling){.size = sizeof(qn_sampling), .top_p = 0.9f});
    check_shape(TIES, MOST, &(qn_sampling){.size = sizeof(qn_sampling), .top_p = 0.9f});
    check_shape(WIDE, MOST,
                &(qn_sampling){.size = sizeof(qn_sampling), .top_p = 0.9f, .top_k = 50});
}

/* ---- the passes over all logits ------------------------------------------------------- */

static void passes_into(const qn__cpu_kernels *pass, const float *x, size_t n, float *to,
                        size_t room)
{
    static float tops[MOST / 64 + 1], found[MOST];
    static double sums[MOST / 64 + 1];
    float weight[BLOCK], *end = to + room;
    size_t blocks = (n + BLOCK - 1) / BLOCK;
    memset(to, 0, room * sizeof *to);
    *to++ = pass->block_tops(x, n, tops);
    memcpy(to, tops, blocks * sizeof *tops);
    to += blocks;
    double total = pass->weigh(x, n, tops, 4, 1.7f, 0.5f, sums);
    memcpy(to, &total, sizeof total);
    memcpy(to + 2, sums, blocks * sizeof *sums);
    to += 2 + 2 * blocks;
    pass->weigh_block(x, n < BLOCK ? n : BLOCK, 4, 1.7f, 0.5f, weight);
    memcpy(to, weight, sizeof weight);
    to += BLOCK;
    double split[3];
    pass->split(x, n, 4, 1.3f, -0.5f, 1, split);
    memcpy(to, split, sizeof split);
    to += 6;
    size_t kept = pass->collect(x, n, tops, -0.5f, 1, found);
    assert_true(to + kept <= end);
    memcpy(to, found, kept * sizeof *found);
}

/* What one after another gives: counts exactly, weights to single precision. */
static void check_passes(const qn__cpu_kernels *pass, const float *x, size_t n)
{
    static float tops[SOME], found[SOME], want[SOME];
    float top = -INFINITY, weight[BLOCK];
    double all = 0, above = 0, inside = 0;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        double w = isnan(x[i]) ? 0 : exp((double)(x[i] - 4));
        top = x[i] > top ? x[i] : top;
        all += w;
        above += x[i] > 1 ? w : 0;
        inside += x[i] >= -0.5f && x[i] <= 1 ? w : 0;
        if (x[i] >= -0.5f && x[i] <= 1)
            want[kept++] = x[i];
    }
    assert_true(pass->block_tops(x, n, tops) == top);
    double split[3];
    pass->split(x, n, 4, 1, -0.5f, 1, split);
    assert_true(fabs(split[0] - all) <= 3e-7 * all);
    assert_true(fabs(split[1] - above) <= 3e-7 * above);
    assert_true(fabs(split[2] - inside) <= 3e-7 * inside);
    assert_int_equal(pass->collect(x, n, tops, -0.5f, 1, found), kept);
    assert_memory_equal(found, want, kept * sizeof *want);
    double sum = pass->weigh(x, n, NULL, 4, 1, -INFINITY, NULL);
    assert_true(fabs(sum - all) <= 3e-7 * all);
    pass->weigh_block(x, n < BLOCK ? n : BLOCK, 4, 1, -INFINITY, weight);
    for (size_t i = 0; i < BLOCK; i++) {
        double w = i >= n || isnan(x[i]) ? 0 : exp((double)(x[i] - 4));
        if (!(fabs((double)weight[i] - w) <= 2e-7 * w + 2e-45))
            fail_msg("exp(%.9g) is %.9g, not %.9g", (double)(x[i] - 4), (double)weight[i], w);
    }
}

/* Every tier gives the bits of the reference, and they are what they should be. */
static void test_passes(void **state)
{
    (void)state;
    static float x[SOME], plain[4 * SOME], other[4 * SOME];
    for (size_t n = 1; n <= SOME; n += n < 200 ? 1 : 997)
        for (int k = 0; k < 4; k++) {
            random_logits(x, n, k == 1 ? 40 : 1.3, n + (size_t)k);
            for (size_t i = 0; i < n; i++) {
                x[i] = k == 2 ? bf16_of(x[i]) : fminf(x[i], 4);
                if (k == 3 && i % 4 == 1)
                    x[i] = i % 8 == 1 ? NAN : -INFINITY;
            }
            for (int tier = 0; tier < n_tiers; tier++) {
                passes_into(&tables[tier], x, n, tier ? other : plain, 4 * SOME);
                if (tier)
                    assert_memory_equal(plain, other, sizeof plain);
                check_passes(&tables[tier], x, n);
            }
        }
}

/* ---- rows ------------------------------------------------------------------------------ */

/* Settings of the n-th row: all kinds, some without entries. */
static qn_sampling some_sampling(int n, const qn_token_bias *bias)
{
    qn_sampling p = {.size = sizeof p, .seed = (uint64_t)n, .temperature = n % 5 ? 0.8f : 0};
    p.top_k = n % 3 == 1 ? 20 : 0;
    p.top_p = n % 4 == 2 ? 0.9f : 0;
    p.min_p = n % 7 == 3 ? 0.05f : 0;
    p.repeat_penalty = n % 2 ? 1.3f : 0;
    p.repeat_last = n % 3 == 2 ? 4 : 0;
    p.presence_penalty = n % 3 == 2 ? 0.5f : 0;
    p.bias = bias;
    p.n_bias = n % 4 == 3 ? 2 : 0;
    return p;
}

/* Rows of one operation, with settings and histories of their own, draw what each would alone,
 * and leave the logits as they are; also those whose newest token is on the device alone. */
static void test_rows(void **state)
{
    (void)state;
    enum { ROWS = 40 };
    static float logits[ROWS * 700];
    const qn_token_bias bias[] = {{3, 4}, {5, -INFINITY}};
    int32_t history[ROWS], want, got[ROWS], given[ROWS];
    for (size_t vocab = 11; vocab <= 700; vocab += 689) {
        qn__draws draws = {0};
        qn_error err = {0};
        random_logits(logits, ROWS * vocab, 2, vocab);
        assert_int_equal(qn__draws_begin(&draws, ROWS + 1, vocab, &err), QN_OK);
        for (int r = 0; r < ROWS; r++) {
            qn_sampling p = some_sampling(r, bias);
            history[r] = r < 20 ? r % 11 : r * 3 % 11;
            given[ROWS - 1 - r] = r ? history[r - 1] : 0;
            size_t behind = r > 1 && r % 5 < 3, known = (size_t)r - behind, said = (size_t)r / 2;
            qn_status status =
                behind ? qn__draws_set_behind(&draws, (size_t)r + 1, &p, history, known, said - 1,
                                              ROWS - 1 - r, &err)
                       : qn__draws_set(&draws, (size_t)r + 1, &p, history, known, said, &err);
            assert_int_equal(status, QN_OK);
        }
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_reshape(s, qn_from_f32(s, logits, (int64_t)(ROWS * vocab)), 2,
                                 (int64_t[]){ROWS, (int64_t)vocab});
        qn__draws_taken taken = qn__draws_take(s, &draws, 1, ROWS, qn_from_i32(s, given, ROWS));
        qn_array *drawn = qn__draws_choose(s, &taken, x);
        qn_array *after = qn_argmax(s, x, -1, false);
        assert_int_equal(qn_read(s, drawn, got, sizeof got), QN_OK);
        for (int r = 0; r < ROWS; r++) {
            qn_sampling p = some_sampling(r, bias);
            want = qn_sample(device, logits + (size_t)r * vocab, vocab, &p, history, (size_t)r,
                             (size_t)r / 2, &err);
            assert_int_equal(got[r], want);
        }
        assert_int_equal(qn_read(s, after, got, sizeof got), QN_OK);
        for (int r = 0; r < ROWS; r++) {
            want = qn_sample(device, logits + (size_t)r * vocab, vocab, &QN_INIT(qn_sampling), NULL,
                             0, 0, &err);
            assert_int_equal(got[r], want);
        }
        qn_scope_end(s);
        qn__draws_free(&draws);
    }
}

/* Of tokens that are nearly as probable the penalties choose: what they count decides each row, the
 * newest token, which is on the device alone, with the others or for the first time. */
static void test_newest(void **state)
{
    (void)state;
    enum { ROWS = 200, VOCAB = 11, KNOWN = 9 };
    static float logits[ROWS * VOCAB];
    int32_t history[ROWS][KNOWN + 1], given[ROWS], got[ROWS];
    qn_sampling p[ROWS];
    qn__draws draws = {0};
    qn_error err = {0};
    random_logits(logits, ROWS * VOCAB, 0.3, 5);
    for (int i = 0; i < ROWS * (KNOWN + 1); i++)
        history[i / (KNOWN + 1)][i % (KNOWN + 1)] = i * 7 % 13 % VOCAB;
    assert_int_equal(qn__draws_begin(&draws, ROWS, VOCAB, &err), QN_OK);
    for (size_t r = 0; r < ROWS; r++) {
        p[r] = (qn_sampling){.size = sizeof *p,
                             .temperature = r % 2 ? 1.0f : 0,
                             .seed = r,
                             .repeat_penalty = r % 3 ? 0 : 1.5f,
                             .repeat_last = r % 4 ? -1 : 3,
                             .presence_penalty = r % 3 == 1 ? 0.4f : 0,
                             .frequency_penalty = r % 3 ? 0.4f : 0};
        given[ROWS - 1 - r] = r % 40 ? history[r][KNOWN] : -1; /* no token */
        assert_int_equal(qn__draws_set_behind(&draws, r, &p[r], history[r], KNOWN, KNOWN - 2,
                                              (int32_t)(ROWS - 1 - r), &err),
                         QN_OK);
    }
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_reshape(s, qn_from_f32(s, logits, ROWS * VOCAB), 2, (int64_t[]){ROWS, VOCAB});
    qn__draws_taken taken = qn__draws_take(s, &draws, 0, ROWS, qn_from_i32(s, given, ROWS));
    assert_int_equal(qn_read(s, qn__draws_choose(s, &taken, x), got, sizeof got), QN_OK);
    for (size_t r = 0; r < ROWS; r++) {
        if (r % 40 == 0)
            history[r][KNOWN] = -1;
        assert_int_equal(got[r], qn_sample(device, logits + r * VOCAB, VOCAB, &p[r], history[r],
                                           KNOWN + 1, KNOWN - 1, &err));
    }
    qn_scope_end(s);
    qn__draws_free(&draws);
}

/* ---- how often ------------------------------------------------------------------------ */

/* Chi-square of n draws: over seeds, or over positions of one seed. */
static void check_frequencies(const qn_sampling *p, bool over_seeds)
{
    enum { VOCAB = 60, DRAWS = 40000 };
    float logits[VOCAB];
    int32_t ids[VOCAB], history[1] = {0};
    double chance[VOCAB], count[VOCAB] = {0}, statistic = 0;
    random_logits(logits, VOCAB, 1, 3);
    size_t n = distribution(logits, VOCAB, p, history, 0, ids, chance);
    int32_t *long_history = calloc(DRAWS, sizeof *long_history);
    for (int i = 0; i < DRAWS; i++) {
        qn_sampling s = *p;
        s.seed = over_seeds ? (uint64_t)i : 7;
        count[sample(logits, VOCAB, &s, long_history, over_seeds ? 0 : (size_t)i)]++;
    }
    free(long_history);
    double cells = 0, expected_all = 0;
    for (size_t i = 0; i < n; i++) {
        double expected = chance[i] * DRAWS, d = count[ids[i]] - expected;
        expected_all += count[ids[i]];
        if (expected < 5)
            continue;
        statistic += d * d / expected;
        cells++;
    }
    assert_true(expected_all == DRAWS); /* nothing else was drawn */
    double freedom = cells - 1, sigma = (statistic - freedom) / sqrt(2 * freedom + 1e-9);
    if (freedom > 0 && fabs(sigma) > 4)
        fail_msg("chi-square %.1f for %.0f degrees of freedom", statistic, freedom);
}

static void test_frequencies(void **state)
{
    (void)state;
    for (int seeds = 0; seeds < 2; seeds++) {
        check_frequencies(&(qn_sampling){.size = sizeof(qn_sampling), .temperature = 1}, seeds);
        check_frequencies(
            &(qn_sampling){.size = sizeof(qn_sampling), .temperature = 0.5f, .top_k = 12}, seeds);
        check_frequencies(
            &(qn_sampling){.size = sizeof(qn_sampling), .temperature = 1.7f, .top_p = 0.8f}, seeds);
        check_frequencies(
            &(qn_sampling){.size = sizeof(qn_sampling), .temperature = 1, .min_p = 0.1f}, seeds);
    }
}

/* ---- edges ---------------------------------------------------------------------------- */

static void test_edges(void **state)
{
    (void)state;
    float logits[] = {1, 4, -2, 4, 3.999f, NAN, -INFINITY};
    enum { N = sizeof logits / sizeof *logits };
    bool seen[N] = {false};
    for (uint64_t seed = 0; seed < 300; seed++) {
        qn_sampling one = {.size = sizeof one, .temperature = 9, .top_k = 1, .seed = seed};
        assert_int_equal(sample(logits, N, &one, NULL, 0), 1); /* the first of the largest */
        qn_sampling tiny = {.size = sizeof tiny, .temperature = 9, .top_p = 1e-30f, .seed = seed};
        assert_int_equal(sample(logits, N, &tiny, NULL, 0), 1);
        qn_sampling equals = {.size = sizeof equals, .temperature = 9, .min_p = 1, .seed = seed};
        int32_t id = sample(logits, N, &equals, NULL, 0);
        assert_true(id == 1 || id == 3);
        qn_sampling hot = {.size = sizeof hot, .temperature = 1e6f, .seed = seed};
        seen[sample(logits, N, &hot, NULL, 0)] = true;
        qn_sampling cold = {.size = sizeof cold, .temperature = 1e-30f, .seed = seed};
        id = sample(logits, N, &cold, NULL, 0);
        assert_true(id == 1 || id == 3);
        qn_sampling all = {
            .size = sizeof all, .temperature = 9, .top_k = INT32_MAX, .top_p = 1, .seed = seed};
        id = sample(logits, N, &all, NULL, 0);
        assert_true(id < 5);
    }
    assert_true(seen[0] && seen[1] && seen[2] && seen[3] && seen[4] && !seen[5] && !seen[6]);
    qn_sampling greedy = {.size = sizeof greedy, .repeat_penalty = 2};
    assert_int_equal(sample(logits, N, &greedy, (int32_t[]){1, 1, 1}, 3), 3);
    assert_int_equal(sample(logits, N, &greedy, (int32_t[]){1, 3, 1}, 3), 4);
    assert_int_equal(
        sample(logits, N,
               &(qn_sampling){.size = sizeof(qn_sampling), .repeat_penalty = 2, .repeat_last = 1},
               (int32_t[]){3, 1}, 2),
        3);
}

/* A draw from the very end: what float sums lack there must not lead past the last token that has
 * weight. The seeds are those below 4e8 whose first number comes nearest to 1. */
static void test_last_draw(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {14790804, 58885769, 303736646, 370438388};
    for (size_t k = 0; k < sizeof seeds / sizeof *seeds; k++)
        for (size_t vocab = 1; vocab < 130; vocab++) {
            float logits[130];
            random_logits(logits, vocab, 0.5, vocab);
            size_t last = vocab > 5 ? vocab - 4 : vocab;
            for (size_t i = last; i < vocab; i++)
                logits[i] = -INFINITY;
            qn_sampling p = {.size = sizeof p, .temperature = 1, .seed = seeds[k]};
            assert_int_equal(sample(logits, vocab, &p, NULL, 0), last - 1);
        }
}

static void refuse(qn_sampling p, const float *logits, size_t n, const char *part)
{
    float copy[8];
    qn_error err = {0};
    memcpy(copy, logits, n * sizeof *copy);
    assert_int_equal(qn_sample(device, copy, n, &p, NULL, 0, 0, &err), -1);
    assert_int_equal(err.code, QN_INVALID);
    char parts[200];
    snprintf(parts, sizeof parts, "%s", part);
    for (char *save, *one = strtok_r(parts, "|", &save); one; one = strtok_r(NULL, "|", &save))
        if (!strstr(err.message, one))
            fail_msg("\"%s\" does not say \"%s\"", err.message, one);
    memcpy(copy, logits, n * sizeof *copy);
    assert_int_equal(qn_sample(device, copy, n, &p, NULL, 0, 0, NULL), -1);
}

static void test_refusals(void **state)
{
    (void)state;
    float fine[] = {1, 2, 3}, nan[] = {NAN, NAN}, low[] = {-INFINITY, NAN}, high[] = {1, INFINITY};
    refuse((qn_sampling){.size = sizeof(qn_sampling), .temperature = -1}, fine, 3,
           "temperature -1");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .temperature = NAN}, fine, 3,
           "temperature nan");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .temperature = INFINITY}, fine, 3,
           "temperature inf");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .top_p = 1.5f}, fine, 3, "top_p 1.5");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .top_p = NAN}, fine, 3, "top_p nan");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .min_p = -0.25f}, fine, 3, "min_p -0.25");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .top_k = -5}, fine, 3, "top_k -5");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .repeat_penalty = -2}, fine, 3,
           "repeat_penalty -2");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .repeat_penalty = NAN}, fine, 3,
           "repeat_penalty nan");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .presence_penalty = NAN}, fine, 3,
           "presence_penalty nan");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .frequency_penalty = -INFINITY}, fine, 3,
           "frequency_penalty -inf");
    refuse(
        (qn_sampling){.size = sizeof(qn_sampling), .chain = {QN_SAMPLER_TOP_K, QN_SAMPLER_TOP_K}},
        fine, 3, "step 1|twice");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .chain = {QN_SAMPLER_TOP_K, (qn_sampler)77}},
           fine, 3, "step 1|no sampler");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .chain = {1, 2, 3, 4, 5, 1}}, fine, 3,
           "step 5|twice");
    qn_token_bias absent = {3, 1}, negative = {-1, 1}, nan_bias = {1, NAN},
                  high_bias = {1, INFINITY};
    refuse((qn_sampling){.size = sizeof(qn_sampling), .bias = &absent, .n_bias = 1}, fine, 3,
           "token 3, the vocabulary has 3");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .bias = &negative, .n_bias = 1}, fine, 3,
           "token -1");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .bias = &nan_bias, .n_bias = 1}, fine, 3,
           "bias of nan for token 1");
    refuse((qn_sampling){.size = sizeof(qn_sampling), .bias = &high_bias, .n_bias = 1}, fine, 3,
           "bias of inf");
    qn_token_bias all[] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}};
    refuse((qn_sampling){.size = sizeof(qn_sampling), .bias = all, .n_bias = 3}, fine, 3,
           "no token is left");
    for (int t = 0; t < 2; t++) {
        qn_sampling p = {.size = sizeof p, .temperature = (float)t, .top_p = 0.5f};
        refuse(p, nan, 2, "not numbers");
        refuse(p, low, 2, "not numbers");
        refuse(p, high, 2, "not numbers");
        refuse(p, fine, 0, "not numbers");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),    cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_orders),   cmocka_unit_test(test_golden_chains),
        cmocka_unit_test(test_names),    cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_passes),   cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_edges),    cmocka_unit_test(test_last_draw),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_newest),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
