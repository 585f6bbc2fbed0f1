/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sampling chain does with all logits: passes in blocks of 64, by lanes.
 *
 * There are two builds of passes.inl, for lanes of 4 floats (SSE2, NEON) and of 8 (AVX2). Both add
 * in the same order, eight partial sums a block, and nothing is contracted: the bits are the same.
 * The weight of a logit is exp((logit - max) * scale), max being the largest one; that of NaN is 0.
 */
#ifndef QN_GENERATE_PASSES_H
#define QN_GENERATE_PASSES_H

#include <stddef.h>
#include <stdint.h>

enum { QN__PASS_BLOCK = 64 };

/* The weight of all logits, of those above a bracket, and of those in it, its ends included. */
typedef struct qn__split {
    double total, above, inside;
} qn__split;

typedef struct qn__passes {
    /* The largest logit of each block, -inf for NaN; returns the largest of all. */
    float (*tops)(const float *x, size_t n, float *tops);

    /* Sums of the weights of logits that reach `floor`, a block each; returns the sum of all.
     * `tops` lets it skip blocks. `tops` and `sums` may be NULL. */
    double (*weigh)(const float *x, size_t n, const float *tops, float max, float scale,
                    float floor, double *sums);

    /* The weights of one block, 0 for those that do not reach `floor` and past the n-th. */
    void (*weigh_block)(const float *x, size_t n, float max, float scale, float floor,
                        float weight[QN__PASS_BLOCK]);

    qn__split (*split)(const float *x, size_t n, float max, float scale, float low, float high);

    /* Copies the logits in low..high, in some order; returns their number. out: [n] */
    size_t (*collect)(const float *x, size_t n, const float *tops, float low, float high,
                      float *out);

    /* How many logits of one block equal `value`. */
    size_t (*count_equal)(const float *x, size_t n, float value);
} qn__passes;

extern const qn__passes qn__passes_plain;
#if defined(__x86_64__)
extern const qn__passes qn__passes_wide;
#endif

/* The widest that this machine runs. */
static inline const qn__passes *qn__passes_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return &qn__passes_wide;
#endif
    return &qn__passes_plain;
}

#endif
