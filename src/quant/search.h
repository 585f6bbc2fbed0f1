/* SPDX-License-Identifier: Apache-2.0
 *
 * The search behind encoders: codes and scales of a sub-block that make the weighted squared error
 * small.
 *
 * For given codes the best scale (and minimum) is linear least squares; for given scales the best
 * codes come from rounding. So: round at a number of trial scales, fit each, keep the best, round
 * and fit again. Sums run in four lanes on every machine, so that a file is the same bytes
 * wherever it is made.
 *
 * n is a multiple of 4; values are at most 2^30 and weights at most 1 (qn__search_begin sees to
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

/* The codes of a format, and how finely to search. */
typedef struct qn__grid {
    int low, high;   /* the first and last code, or value of the curve; low is 0 beside a min */
    float reach;     /* how far trial scales go to either side, in codes */
    int trials;      /* their number */
    bool curve;      /* iq4's sixteen values, not all whole numbers from low to high */
    bool signed_min; /* min may have either sign */
} qn__grid;

/* What a search finds, as real numbers. */
typedef struct qn__found {
    float scale, min;
    float stiff;      /* the error grows by this times the square of a change of scale */
    float weight, wx; /* the sums of w and of w * x */
} qn__found;

/* x ~ scale * code - min, with scale >= 0 and a min that is >= 0 or signed. n is at most 32. */
qn__found qn__search_above(const qn__grid *g, const float *x, const float *w, int n);

/* x ~ scale * code; the scale has any sign. */
qn__found qn__search_around(const qn__grid *g, const float *x, const float *w, int n);

/* The step of which n numbers are best told as multiples from low to high, where an error counts
 * `stiff` times its square. n is a multiple of 4; 0 when all are 0. */
float qn__search_step(const float *wanted, const float *stiff, int n, int low, int high);

/* The weighted error of the nearest codes for a scale and min, and the sums of those codes. */
float qn__search_error(const qn__grid *g, const float *x, const float *w, int n, float scale,
                       float min, qn__fit *fit);

/* Those codes, counted from 0. */
void qn__search_codes(const qn__grid *g, const float *x, int n, float scale, float min,
                      uint8_t *codes);

#endif
