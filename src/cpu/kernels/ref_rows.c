/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference: row kernels, rope, maps and conversions, from the sources that every tier shares, on
 * plain C lanes. pow is the C library's in every tier.
 */
#include "kernels.h"
#include "vec_ref.h"

#include "vec_math.inl"

#include "vec_rows.inl"

#include "vec_sample.inl"

static void ref_pow(float *y, const float *x, const float *e, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = powf(x[i], e[i]);
}

void qn__cpu_fill_ref_rows(qn__cpu_kernels *t)
{
    fill_vec_rows(t);
    fill_vec_sample(t);
    t->pow = ref_pow;
}
