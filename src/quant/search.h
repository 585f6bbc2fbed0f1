/* SPDX-License-Identifier: Apache-2.0
 *
 * The search behind encoders: codes and scales of a sub-block that make the weighted squared error
 * small.
 *
 * For given codes the best scale (and minimum) is linear least squares; for given scales the best
 * codes come from rounding. So: round at a number of trial scales, fit each, keep the best, round
 * and fit again. Sums run in eight lanes, whatever the compiler makes of them, so that a file is
 * the same bytes wherever it is made.
 *
 * n is a multiple of 8; values are at most 2^30 and weights at most 1 (qn__search_begin sees to
 * it).
 */
#ifndef QN_QUANT_SEARCH_H
#define QN_QUANT_SEARCH_H

#include "quant/codecs.h"

/* Weighted sums over the values x and codes l of a sub-block. */
typedef struct qn__fit {
    float wl, wll, wxl;
} qn__fit;

/* Copies n values so that nothing overflows, and the weights of their errors. importance may be
 * NULL. False: all values are too small for any encoding with f16 scales to tell from 0. */
bool qn__search_begin(const float *values, const float *importance, int n, float *x, float *w);

/* x ~ scale * code - min with codes from 0 to top and scale, min >= 0. `reach` is how far trial
 * scales go to either side, in codes; `trials` their number. */
void qn__search_above(const float *x, const float *w, int n, int top, float reach, int trials,
                      float *scale, float *min);

/* x ~ scale * code with codes from low to high, low < 0 < high; the scale has any sign. */
float qn__search_around(const float *x, const float *w, int n, int low, int high, float reach,
                        int trials);

/* The weighted error of rounding to scale * code - min, or scale * code; and the sums. */
float qn__error_above(const float *x, const float *w, int n, int top, float scale, float min,
                      qn__fit *fit);
float qn__error_around(const float *x, const float *w, int n, int low, int high, float scale,
                       qn__fit *fit);

/* The codes of that, around: from 0 on. */
void qn__codes_above(const float *x, int n, int top, float scale, float min, uint8_t *codes);
void qn__codes_around(const float *x, int n, int low, int high, float scale, uint8_t *codes);

#endif
