/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling: a token from each row of logits, as src/cpu/op_sample.c does it, in one launch. A row
 * whose largest logit is all that is wanted is shared by some blocks, of which the last that is
 * done looks at what the others found. Another row is one block's, which runs the chain and draws.
 *
 * What a chain leaves is a prefix of the tokens in order of falling logit, equal ones by id: those
 * above one logit, and of those that equal it the first ones. A filter finds its end by the digits
 * of the logits, written as numbers that order as they do: three passes, each counts and weighs by
 * digit. Weights are whole numbers, so that their sums do not depend on the order of adding, which
 * atomics leave open.
 */
#include "core/sample.h"
#include "cuda/common.cuh"

enum { ROW_THREADS = 1024, WARPS = ROW_THREADS / 32, DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

typedef unsigned long long weight; /* of a token: exp((x - max) * scale) * 2^40 */

/* What equals x in order: NaN is 0, -inf 1 at least, -0 as 0. */
static __device__ uint32_t key_of(float x)
{
    if (x != x)
        return 0;
    uint32_t u = __float_as_uint(x == 0 ? 0.0f : x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ float of_key(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* ---- the largest logit ----------------------------------------------------------------------- */

/* Larger for the first of the largest; the token is in its lower half. */
static __device__ unsigned long long rank_of(float x, uint32_t id)
{
    return (unsigned long long)key_of(x) << 32 | (0xffffffffu - id);
}

static __device__ bool is_number(unsigned long long best)
{
    float x = of_key((uint32_t)(best >> 32));
    return best >> 32 && x > -CUDART_INF_F && x < CUDART_INF_F;
}

/* The best of a warp, in all its lanes. */
static __device__ unsigned long long warp_best(unsigned long long rank)
{
    const unsigned key = (unsigned)(rank >> 32), best = __reduce_max_sync(~0u, key),
                   id = __reduce_max_sync(~0u, key == best ? (unsigned)rank : 0);
    return (unsigned long long)best << 32 | id;
}

/* ---- a row ----------------------------------------------------------------------------------- */

typedef struct digit_table {
    unsigned count[DIGITS];
    weight sum[DIGITS];
} digit_table;

typedef struct shared_room {
    unsigned long long reduced[WARPS];
    digit_table table;
    uint32_t found_digit;
    unsigned found_count;
    weight found_sum;
    int32_t found;
} shared_room;

typedef struct sampler {
    const qn__sample_row *row;
    const qn__sample_entry *entries;
    float *x; /* [vocab] */
    uint32_t vocab;
    shared_room *room;
    float max, scale;
    uint32_t floor; /* the key of the last logit that is left */
    uint32_t last;  /* of those that equal it, the last id that is left */
} sampler;

static __device__ bool is_left(const sampler *s, uint32_t key, uint32_t id)
{
    return key > s->floor || (key == s->floor && id <= s->last);
}

static __device__ weight weigh(const sampler *s, float x)
{
    return (weight)__double2ull_rn((double)expf((x - s->max) * s->scale) * 0x1p40);
}

static __device__ weight block_total(weight value, shared_room *room)
{
    for (int n = 16; n; n /= 2)
        value += __shfl_down_sync(~0u, value, n);
    if (threadIdx.x % 32 == 0)
        room->reduced[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int w = 0; w < WARPS; w++)
        value += room->reduced[w];
    __syncthreads();
    return value;
}

static __device__ unsigned long long block_best(unsigned long long value, shared_room *room)
{
    value = warp_best(value);
    if (threadIdx.x % 32 == 0)
        room->reduced[threadIdx.x / 32] = value;
    __syncthreads();
    value = warp_best(room->reduced[threadIdx.x % 32]);
    __syncthreads();
    return value;
}

/* When the logits have changed: all are left. False: none is a number. */
static __device__ bool measure(sampler *s)
{
    unsigned long long best = 0;
    for (uint32_t i = threadIdx.x; i < s->vocab; i += ROW_THREADS)
        best = max(best, rank_of(s->x[i], i));
    best = block_best(best, s->room);
    s->max = of_key((uint32_t)(best >> 32));
    s->floor = 1; /* not NaN */
    s->last = s->vocab;
    return is_number(best);
}

/* ---- where a prefix ends --------------------------------------------------------------------- */

/* Of the tokens whose key is like this one from bit `top` on, counts and weights by the digit that
 * lies in bits shift .. top - 1. */
static __device__ void fill_table(const sampler *s, uint32_t like, int top, int shift, bool weighs)
{
    digit_table *t = &s->room->table;
    uint32_t mask = (1u << (top - shift)) - 1;
    for (int d = threadIdx.x; d < DIGITS; d += ROW_THREADS) {
        t->count[d] = 0;
        t->sum[d] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s->vocab; i += ROW_THREADS) {
        uint32_t key = key_of(s->x[i]);
        if ((top < 32 && (key ^ like) >> top) || !is_left(s, key, i))
            continue;
        atomicAdd(&t->count[key >> shift & mask], 1u);
        if (weighs)
            atomicAdd(&t->sum[key >> shift & mask], weigh(s, s->x[i]));
    }
    __syncthreads();
}

/* From the largest digit down the first with which `count` tokens, or the weight, is reached; else
 * the least that any has. Takes what is above it off both. By one warp, 32 digits at a time. */
static __device__ uint32_t find_digit(const sampler *s, unsigned *count, weight *sum)
{
    shared_room *room = s->room;
    if (threadIdx.x < 32) {
        unsigned above = 0, lane = threadIdx.x, least_above = 0;
        weight weight_above = 0, least_weight = 0;
        uint32_t least = 0;
        for (int at = DIGITS - 32; at >= 0; at -= 32) {
            uint32_t d = (uint32_t)at + 31 - lane; /* lanes in falling order */
            unsigned c = room->table.count[d], c_sum = c;
            weight w = room->table.sum[d], w_sum = w;
            for (int n = 1; n < 32; n *= 2) {
                unsigned c_before = __shfl_up_sync(~0u, c_sum, n);
                weight w_before = __shfl_up_sync(~0u, w_sum, n);
                c_sum += lane >= n ? c_before : 0;
                w_sum += lane >= n ? w_before : 0;
            }
            bool ends = c && (above + c_sum >= *count || weight_above + w_sum >= *sum);
            unsigned any = __ballot_sync(~0u, c != 0), who = __ballot_sync(~0u, ends);
            unsigned from = who ? __ffs(who) - 1 : any ? 31 - __clz(any) : 32;
            if (from < 32) {
                least = __shfl_sync(~0u, d, from);
                least_above = above + __shfl_sync(~0u, c_sum - c, from);
                least_weight = weight_above + __shfl_sync(~0u, w_sum - w, from);
            }
            if (who)
                break;
            above += __shfl_sync(~0u, c_sum, 31);
            weight_above += __shfl_sync(~0u, w_sum, 31);
        }
        if (lane == 0) {
            room->found_digit = least;
            room->found_count = least_above;
            room->found_sum = least_weight;
        }
    }
    __syncthreads();
    *count -= room->found_count;
    *sum -= room->found_sum;
    uint32_t digit = room->found_digit;
    __syncthreads();
    return digit;
}

/* The place of the n-th token, n from 1, whose key is this, among those that are left: warps count
 * stretches, then one looks. */
static __device__ uint32_t nth_equal(const sampler *s, uint32_t key, unsigned n)
{
    shared_room *room = s->room;
    uint32_t each = (s->vocab + WARPS - 1) / WARPS, lane = threadIdx.x % 32;
    uint32_t first = threadIdx.x / 32 * each,
             end = first + each < s->vocab ? first + each : s->vocab;
    unsigned mine = 0;
    for (uint32_t i = first + lane; i < end; i += 32)
        mine += key_of(s->x[i]) == key;
    for (int k = 16; k; k /= 2)
        mine += __shfl_xor_sync(~0u, mine, k);
    if (lane == 0)
        room->reduced[threadIdx.x / 32] = mine;
    __syncthreads();
    unsigned before = 0;
    for (uint32_t w = 0; w < threadIdx.x / 32; w++)
        before += (unsigned)room->reduced[w];
    if (before < n && before + mine >= n) {
        for (uint32_t at = first; at < end; at += 32) {
            bool is = at + lane < end && key_of(s->x[at + lane]) == key;
            unsigned all = __ballot_sync(~0u, is);
            if (before + __popc(all) < n) {
                before += __popc(all);
                continue;
            }
            if (is && before + __popc(all & ((2u << lane) - 1)) == n)
                room->found = (int32_t)(at + lane);
            break;
        }
    }
    __syncthreads();
    uint32_t found = (uint32_t)room->found;
    __syncthreads();
    return found;
}

/* Leaves the shortest prefix that has `count` tokens or this weight; all where none does. */
static __device__ void keep_prefix(sampler *s, unsigned count, weight sum)
{
    uint32_t key = 0, digit = 0;
    for (int top = 32; top > 0; top -= DIGIT_BITS) {
        int shift = top > DIGIT_BITS ? top - DIGIT_BITS : 0;
        fill_table(s, key, top, shift, sum != ~0ull);
        digit = find_digit(s, &count, &sum);
        key |= digit << shift;
    }
    unsigned of = s->room->table.count[digit], most = count < of ? count : of;
    weight each = s->room->table.sum[digit] / of;
    if (sum != ~0ull && each && (sum + each - 1) / each < most)
        most = (unsigned)((sum + each - 1) / each);
    __syncthreads();
    if (most < of)
        s->last = nth_equal(s, key, most ? most : 1);
    else if (key > s->floor)
        s->last = s->vocab;
    s->floor = key;
}

/* ---- the steps ------------------------------------------------------------------------------- */

/* Its entries but for the newest token's, which may have the id of one of them. */
static __device__ int32_t others_of(const qn__sample_row *row)
{
    return row->n_entries - (row->newest != 0);
}

static __device__ void penalise_token(const sampler *s, qn__sample_entry e)
{
    const qn__sample_row *p = s->row;
    float x = s->x[e.id];
    if (e.repeats)
        x = x > 0 ? x / p->repeat_penalty : x * p->repeat_penalty;
    if (e.generated)
        x -= (p->presence_penalty + (float)e.generated * p->frequency_penalty) / s->scale;
    s->x[e.id] = x;
}

static __device__ void penalise(sampler *s)
{
    const int32_t others = others_of(s->row);
    const qn__sample_entry newest = s->entries[s->row->n_entries - 1];
    bool known = false;
    for (int32_t i = threadIdx.x; i < others; i += ROW_THREADS) {
        qn__sample_entry e = s->entries[i];
        if (s->row->newest && e.id == newest.id) {
            known = true;
            e.repeats |= newest.repeats;
            e.generated += newest.generated;
        }
        penalise_token(s, e);
    }
    known = __syncthreads_or(known);
    if (s->row->newest && !known && newest.id >= 0 && threadIdx.x == 0)
        penalise_token(s, newest);
    __syncthreads();
}

/* What is out stays out when logits change. */
static __device__ void drop_the_rest(sampler *s)
{
    for (uint32_t i = threadIdx.x; i < s->vocab; i += ROW_THREADS)
        if (!is_left(s, key_of(s->x[i]), i))
            s->x[i] = -CUDART_INF_F;
    __syncthreads();
}

static __device__ bool step_penalties(sampler *s)
{
    const qn__sample_row *p = s->row;
    if (!p->n_entries ||
        (p->repeat_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0))
        return true;
    if (s->floor > 1)
        drop_the_rest(s);
    penalise(s);
    return measure(s);
}

static __device__ void step_top_p(sampler *s)
{
    double p = (double)s->row->top_p;
    if (p <= 0 || p >= 1)
        return;
    weight mine = 0;
    for (uint32_t i = threadIdx.x; i < s->vocab; i += ROW_THREADS)
        if (is_left(s, key_of(s->x[i]), i))
            mine += weigh(s, s->x[i]);
    weight want = __double2ull_ru(p * (double)block_total(mine, s->room));
    keep_prefix(s, s->vocab, want ? want : 1);
}

static __device__ void step_min_p(sampler *s)
{
    if (s->row->min_p <= 0)
        return;
    uint32_t key = key_of(s->max + logf(s->row->min_p) / s->scale);
    if (key > s->floor) {
        s->floor = key;
        s->last = s->vocab;
    }
}

/* Whether a token was chosen, or none can be. */
static __device__ bool run_chain(sampler *s, int32_t *chosen)
{
    const qn__sample_row *p = s->row;
    *chosen = -1;
    if (!measure(s))
        return true;
    for (uint32_t chain = p->chain; chain; chain >>= QN__SAMPLE_STEP_BITS)
        switch (chain & ((1u << QN__SAMPLE_STEP_BITS) - 1)) {
        case QN__SAMPLE_PENALTIES:
            if (!step_penalties(s))
                return true;
            break;
        case QN__SAMPLE_TOP_K:
            if (p->top_k > 0 && (uint32_t)p->top_k < s->vocab)
                keep_prefix(s, (unsigned)p->top_k, ~0ull);
            break;
        case QN__SAMPLE_TOP_P: step_top_p(s); break;
        case QN__SAMPLE_MIN_P: step_min_p(s); break;
        default:
            if (p->temperature == 0) {
                *chosen = (int32_t)nth_equal(s, key_of(s->max), 1);
                return true;
            }
            s->scale = fminf(s->scale / p->temperature, 1e38f);
        }
    return false;
}

/* ---- the draw -------------------------------------------------------------------------------- */

static __device__ uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* As qn__random_uniform (base/random.h). */
static __device__ double uniform(const qn__sample_row *row)
{
    uint64_t seed = row->seed[0] | (uint64_t)row->seed[1] << 32;
    uint64_t bits =
        mix(mix(seed + 0x9e3779b97f4a7c15u) + ((uint64_t)row->position + 1) * 0x9e3779b97f4a7c15u);
    return (double)(bits >> 11) * 0x1p-53;
}

static __device__ weight weight_at(const sampler *s, uint32_t i)
{
    return is_left(s, key_of(s->x[i]), i) ? weigh(s, s->x[i]) : 0;
}

/* Of first .. end - 1, whose weight is more than `left`, the one at which it is reached: warps
 * weigh stretches, the stretch that has it is the next range, until one warp has 32 tokens. */
static __device__ int32_t draw(const sampler *s, double u)
{
    shared_room *room = s->room;
    uint32_t first = 0, end = s->vocab, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    weight left = 0;
    for (bool whole = true;; whole = false) {
        uint32_t each = (end - first + WARPS - 1) / WARPS, from = first + warp * each,
                 to = from + each < end ? from + each : end;
        weight mine = 0, total = 0;
        for (uint32_t i = from + lane; i < to; i += 32)
            mine += weight_at(s, i);
        for (int k = 16; k; k /= 2)
            mine += __shfl_xor_sync(~0u, mine, k);
        if (lane == 0)
            room->reduced[warp] = mine;
        __syncthreads();
        for (int w = 0; whole && w < WARPS; w++)
            total += room->reduced[w];
        if (whole) {
            left = (weight)(u * (double)total);
            left = left < total ? left : total - 1;
        }
        uint32_t chosen = 0;
        while (left >= room->reduced[chosen])
            left -= room->reduced[chosen++];
        __syncthreads();
        first += chosen * each;
        end = first + each < end ? first + each : end;
        if (each == 1)
            return (int32_t)first;
    }
}

/* Adds the biases to a copy of the logits, where there are entries that change any. */
static __device__ void copy_row(sampler *s, float *copy)
{
    for (uint32_t i = threadIdx.x; i < s->vocab; i += ROW_THREADS)
        copy[i] = s->x[i];
    __syncthreads();
    for (int32_t i = threadIdx.x; i < others_of(s->row); i += ROW_THREADS)
        copy[s->entries[i].id] += s->entries[i].bias;
    __syncthreads();
    s->x = copy;
}

/* ---- the largest logit by several blocks ----------------------------------------------------- */

/* Blocks of each row that are done; 0 between launches. */
static __device__ unsigned done[QN__CUDA_SHARED_ROWS];

/* A block's part of a row. The last of the row's blocks writes the token. */
static __device__ void best_part(const qn__cuda_sample_args &a, int64_t row, int64_t part,
                                 shared_room *room)
{
    const float *x = (const float *)a.at[0] + row * a.vocab;
    volatile unsigned long long *parts = (unsigned long long *)a.at[4] + row * a.parts;
    const int64_t size = (a.vocab + a.parts - 1) / a.parts, first = part * size,
                  end = min(first + size, a.vocab);
    const unsigned lane = threadIdx.x;
    unsigned long long best = 0;
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < end; i += ROW_THREADS)
        best = max(best, rank_of(x[i], (uint32_t)i));
    best = block_best(best, room);
    if (lane >= 32)
        return;
    if (a.parts > 1) {
        bool last = true;
        if (lane == 0) {
            parts[part] = best;
            __threadfence();
            last = atomicInc(&done[row], (unsigned)a.parts - 1) == a.parts - 1;
            __threadfence();
        }
        if (!__shfl_sync(~0u, last, 0))
            return;
        for (int64_t i = lane; i < a.parts; i += 32)
            best = max(best, parts[i]);
        best = warp_best(best);
    }
    if (lane == 0)
        ((int32_t *)a.at[3])[row] = is_number(best) ? (int32_t)(0xffffffffu - (uint32_t)best) : -1;
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    sample(const __grid_constant__ qn__cuda_sample_args a)
{
    __shared__ shared_room room;
    const int64_t r = blockIdx.x / a.parts, part = blockIdx.x % a.parts;
    const qn__sample_row *row = (const qn__sample_row *)a.at[1] + r;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    const bool greedy =
        row->chain == QN__SAMPLE_TEMPERATURE && row->temperature == 0 && !row->n_entries;
    wait_for_last();
    if (greedy)
        best_part(a, r, part, &room);
    if (greedy || part)
        return;
    sampler s = {.row = row,
                 .entries = (const qn__sample_entry *)a.at[2] + row->first_entry,
                 .x = (float *)a.at[0] + r * a.vocab,
                 .vocab = (uint32_t)a.vocab,
                 .room = &room,
                 .scale = 1};
    int32_t id;
    if (row->n_entries)
        copy_row(&s, (float *)a.at[5] + r * a.vocab);
    if (!run_chain(&s, &id))
        id = draw(&s, uniform(row));
    if (threadIdx.x == 0)
        ((int32_t *)a.at[3])[r] = id;
}
