/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampling chain's passes over logits, written over vec_*.h so that every tier gives the same
 * bits. A block is a quad; past the end of the logits stands NaN, which no pass
 * counts. Sums are in float within a block, of which a tree is made, and in double over blocks.
 */
enum { LOGITS = 64 }; /* of a block */

/* Lanes of x in low..high, 0 elsewhere and for NaN. */
static inline vf keep_between(vf x, float low, float high, vf kept)
{
    vf zero = v_set(0.0f);
    kept = v_pick(v_lt(x, v_set(low)), zero, kept);
    kept = v_pick(v_lt(v_set(high), x), zero, kept);
    return v_pick(v_is_nan(x), zero, kept);
}

static inline vf weigh_lanes(vf x, float max, float scale, float floor)
{
    vf w = v_exp(v_mul(v_sub(x, v_set(max)), v_set(scale)));
    return keep_between(x, floor, INFINITY, w);
}

static inline quad weigh_quad(quad x, float max, float scale, float floor)
{
    return (quad){weigh_lanes(x.a, max, scale, floor), weigh_lanes(x.b, max, scale, floor),
                  weigh_lanes(x.c, max, scale, floor), weigh_lanes(x.d, max, scale, floor)};
}

static inline vf larger_lanes(vf top, vf x)
{
    return v_pick(v_lt(top, x), x, top);
}

static float pass_tops(const float *x, size_t n, float *tops)
{
    float best = -INFINITY;
    for (size_t at = 0; at < n; at += LOGITS) {
        quad q = quad_load(x, at, n, NAN);
        vf top = larger_lanes(larger_lanes(v_set(-INFINITY), q.a), q.b);
        float most = v_top(larger_lanes(larger_lanes(top, q.c), q.d));
        tops[at / LOGITS] = most;
        best = most > best ? most : best;
    }
    return best;
}

static double pass_weigh(const float *x, size_t n, const float *tops, float max, float scale,
                         float floor, double *sums)
{
    double total = 0;
    for (size_t at = 0; at < n; at += LOGITS) {
        double sum = 0;
        if (!tops || tops[at / LOGITS] >= floor)
            sum = (double)quad_sum(weigh_quad(quad_load(x, at, n, NAN), max, scale, floor));
        if (sums)
            sums[at / LOGITS] = sum;
        total += sum;
    }
    return total;
}

static void pass_weigh_block(const float *x, size_t n, float max, float scale, float floor,
                             float weight[LOGITS])
{
    quad w = quad_set(0.0f);
    if (n > 0)
        w = weigh_quad(quad_load(x, 0, n, NAN), max, scale, floor);
    v_store(weight, w.a);
    v_store(weight + 16, w.b);
    v_store(weight + 32, w.c);
    v_store(weight + 48, w.d);
}

/* The weights w of what lies in low..high. */
static inline double sum_between(quad x, quad w, float low, float high)
{
    quad kept = {keep_between(x.a, low, high, w.a), keep_between(x.b, low, high, w.b),
                 keep_between(x.c, low, high, w.c), keep_between(x.d, low, high, w.d)};
    return (double)quad_sum(kept);
}

static void pass_split(const float *x, size_t n, float max, float scale, float low, float high,
                       double sums[3])
{
    float above = nextafterf(high, INFINITY);
    sums[0] = sums[1] = sums[2] = 0;
    for (size_t at = 0; at < n; at += LOGITS) {
        quad q = quad_load(x, at, n, NAN), w = weigh_quad(q, max, scale, -INFINITY);
        sums[0] += (double)quad_sum(w);
        sums[1] += sum_between(q, w, above, INFINITY);
        sums[2] += sum_between(q, w, low, high);
    }
}

/* Lane i in bit i: those in low..high. */
static inline unsigned find_between(vf x, float low, float high)
{
    return ~(v_mask_bits(v_lt(x, v_set(low))) | v_mask_bits(v_lt(v_set(high), x)) |
             v_mask_bits(v_is_nan(x))) &
           0xffffu;
}

static size_t pass_collect(const float *x, size_t n, const float *tops, float low, float high,
                           float *out)
{
    size_t kept = 0;
    for (size_t at = 0; at < n; at += LOGITS) {
        if (!(tops[at / LOGITS] >= low))
            continue;
        quad q = quad_load(x, at, n, NAN);
        uint64_t found = (uint64_t)find_between(q.d, low, high) << 48 |
                         (uint64_t)find_between(q.c, low, high) << 32 |
                         (uint64_t)find_between(q.b, low, high) << 16 |
                         find_between(q.a, low, high);
        for (; found; found &= found - 1)
            out[kept++] = x[at + (size_t)__builtin_ctzll(found)];
    }
    return kept;
}

static void fill_vec_sample(qn__cpu_kernels *t)
{
    t->block_tops = pass_tops;
    t->weigh = pass_weigh;
    t->weigh_block = pass_weigh_block;
    t->split = pass_split;
    t->collect = pass_collect;
}
