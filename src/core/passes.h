/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sampling chain does with all logits of a token, which are on the host: passes in blocks
 * of 64. The CPU's tiers have them (src/cpu/kernels/vec_sample.inl), every device carries a table
 * of them, and each gives the same bits.
 *
 * The weight of a logit is exp((logit - max) * scale), max being the largest one; that of NaN is 0.
 */
#ifndef QN_CORE_PASSES_H
#define QN_CORE_PASSES_H

#include <stddef.h>

enum { QN__PASS_BLOCK = 64 };

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

    /* The weight of all logits, of those above `high`, and of those in low..high. */
    void (*split)(const float *x, size_t n, float max, float scale, float low, float high,
                  double sums[3]);

    /* Copies the logits in low..high, in their order; returns their number. out: [n] */
    size_t (*collect)(const float *x, size_t n, const float *tops, float low, float high,
                      float *out);
} qn__passes;

#endif
