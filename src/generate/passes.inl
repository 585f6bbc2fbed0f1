/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The passes of passes.h over lanes of LANES floats; PASS is how their functions begin. A block is
 * eight columns: a pass goes down as many columns at a time as it has lanes, so that each column's
 * sum is the same whatever LANES is. Past the end of the logits stands NaN, which no pass counts.
 */
#include "generate/passes.h"

#include <math.h>
#include <string.h>

enum { BLOCK = QN__PASS_BLOCK, COLUMNS = 8 };

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t int_lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t bit_lanes __attribute__((vector_size(4 * LANES)));

PASS inline lanes load_lanes(const float *p)
{
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* By value: what a loop adds up stays in registers. */
PASS inline void store_lanes(float *p, lanes v)
{
    memcpy(p, &v, sizeof v);
}

PASS inline void store_ints(int32_t *p, int_lanes v)
{
    memcpy(p, &v, sizeof v);
}

PASS inline lanes all_lanes(float x)
{
    return (lanes){0} + x;
}

PASS inline lanes pick_lanes(int_lanes yes, lanes a, lanes b)
{
    return (lanes)((yes & (int_lanes)a) | (~yes & (int_lanes)b));
}

PASS inline lanes keep_lanes(int_lanes yes, lanes a)
{
    return (lanes)(yes & (int_lanes)a);
}

/* exp of lanes at most 0, within 2e-7 of it; below -87 and for NaN 0. x = n ln 2 + r, |r| <= ln 2
 * / 2. */
PASS inline lanes exp_lanes(lanes x)
{
    lanes magic = all_lanes(12582912.0f); /* 1.5 * 2^23 rounds to integers */
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
    bit_lanes power = ((bit_lanes)shifted << 23) + 0x3f800000u; /* wraps below -87 */
    return keep_lanes(x >= -87.0f, y * (lanes)power);
}

/* A whole block: x itself, or its n logits and NaN in `room`. */
PASS inline const float *whole_block(const float *x, size_t n, float room[BLOCK])
{
    if (n >= BLOCK)
        return x;
    for (size_t i = 0; i < BLOCK; i++)
        room[i] = i < n ? x[i] : NAN;
    return room;
}

PASS inline double sum_columns(const float column[COLUMNS])
{
    return (double)((column[0] + column[4]) + (column[2] + column[6])) +
           (double)((column[1] + column[5]) + (column[3] + column[7]));
}

PASS float pass_tops(const float *x, size_t n, float *tops)
{
    float best = -INFINITY, room[BLOCK], column[LANES];
    for (size_t at = 0; at < n; at += BLOCK) {
        const float *block = whole_block(x + at, n - at, room);
        lanes top = all_lanes(-INFINITY);
        for (size_t i = 0; i < BLOCK; i += LANES) {
            lanes v = load_lanes(block + i);
            top = pick_lanes(v > top, v, top);
        }
        store_lanes(column, top);
        float most = column[0];
        for (size_t i = 1; i < LANES; i++)
            most = column[i] > most ? column[i] : most;
        tops[at / BLOCK] = most;
        best = most > best ? most : best;
    }
    return best;
}

PASS double pass_weigh(const float *x, size_t n, const float *tops, float max, float scale,
                       float floor, double *sums)
{
    double total = 0;
    float room[BLOCK], column[COLUMNS];
    for (size_t at = 0; at < n; at += BLOCK) {
        double sum = 0;
        if (!tops || tops[at / BLOCK] >= floor) {
            const float *block = whole_block(x + at, n - at, room);
            for (size_t c = 0; c < COLUMNS; c += LANES) {
                lanes part = {0};
                for (size_t i = c; i < BLOCK; i += COLUMNS) {
                    lanes v = load_lanes(block + i);
                    part += keep_lanes(v >= floor, exp_lanes((v - max) * scale));
                }
                store_lanes(column + c, part);
            }
            sum = sum_columns(column);
        }
        if (sums)
            sums[at / BLOCK] = sum;
        total += sum;
    }
    return total;
}

PASS void pass_weigh_block(const float *x, size_t n, float max, float scale, float floor,
                           float weight[BLOCK])
{
    float room[BLOCK];
    x = whole_block(x, n, room);
    for (size_t i = 0; i < BLOCK; i += LANES) {
        lanes v = load_lanes(x + i), w = keep_lanes(v >= floor, exp_lanes((v - max) * scale));
        store_lanes(weight + i, w);
    }
}

PASS qn__split pass_split(const float *x, size_t n, float max, float scale, float low, float high)
{
    qn__split split = {0};
    float room[BLOCK], total[COLUMNS], above[COLUMNS], inside[COLUMNS];
    for (size_t at = 0; at < n; at += BLOCK) {
        const float *block = whole_block(x + at, n - at, room);
        for (size_t c = 0; c < COLUMNS; c += LANES) {
            lanes all = {0}, over = {0}, within = {0};
            for (size_t i = c; i < BLOCK; i += COLUMNS) {
                lanes v = load_lanes(block + i), w = exp_lanes((v - max) * scale);
                int_lanes higher = v > high;
                all += w;
                over += keep_lanes(higher, w);
                within += keep_lanes(~higher & (v >= low), w);
            }
            store_lanes(total + c, all);
            store_lanes(above + c, over);
            store_lanes(inside + c, within);
        }
        split.total += sum_columns(total);
        split.above += sum_columns(above);
        split.inside += sum_columns(inside);
    }
    return split;
}

/* Which of a block's logits lie in low..high: bit i / 8 of byte i % 8 for the i-th. */
PASS inline uint64_t find_lanes(const float *block, float low, float high)
{
    uint64_t found = 0;
    for (size_t c = 0; c < COLUMNS; c += LANES) {
        int_lanes rows = {0};
        int32_t column[LANES];
        for (size_t r = 0; r < BLOCK / COLUMNS; r++) {
            lanes v = load_lanes(block + r * COLUMNS + c);
            rows |= (v >= low) & (v <= high) & (1 << r);
        }
        store_ints(column, rows);
        for (size_t i = 0; i < LANES; i++)
            found |= (uint64_t)column[i] << (8 * (c + i));
    }
    return found;
}

PASS size_t pass_collect(const float *x, size_t n, const float *tops, float low, float high,
                         float *out)
{
    size_t kept = 0;
    float room[BLOCK];
    for (size_t at = 0; at < n; at += BLOCK) {
        if (!(tops[at / BLOCK] >= low))
            continue;
        const float *block = whole_block(x + at, n - at, room);
        uint64_t found = find_lanes(block, low, high);
        for (; found; found &= found - 1) {
            size_t bit = (size_t)__builtin_ctzll(found);
            out[kept++] = block[bit % 8 * COLUMNS + bit / 8];
        }
    }
    return kept;
}

PASS size_t pass_count_equal(const float *x, size_t n, float value)
{
    int32_t count[LANES], sum = 0;
    float room[BLOCK];
    int_lanes equal = {0};
    x = whole_block(x, n, room);
    for (size_t i = 0; i < BLOCK; i += LANES)
        equal -= load_lanes(x + i) == value;
    store_ints(count, equal);
    for (size_t i = 0; i < LANES; i++)
        sum += count[i];
    return (size_t)sum;
}
