/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: attention: the shared sources on vec_avx2.h. */
#include "kernels.h"
#include "vec_avx2.h"

#include "vec_math.inl"

#include "attend_vec.inl"

#include "widen.inl"

#include "attend_pages.inl"

#include "attend.inl"

void qn__cpu_fill_attend_avx2(qn__cpu_kernels *t)
{
    attend_fill(t);
}
