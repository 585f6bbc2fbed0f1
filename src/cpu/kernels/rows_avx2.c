/* SPDX-License-Identifier: Apache-2.0 */
/* Row kernels, rope, maps and conversions of this tier: the shared sources on vec_avx2.h. */
#include "kernels.h"
#include "vec_avx2.h"

#include "vec_math.inl"

#include "vec_rows.inl"

#include "vec_sample.inl"

void qn__cpu_fill_rows_avx2(qn__cpu_kernels *t)
{
    fill_vec_rows(t);
    fill_vec_sample(t);
}
