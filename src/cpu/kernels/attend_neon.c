/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: attention: the shared sources on vec_neon.h. */
#include "kernels.h"
#include "vec_neon.h"

#include "vec_math.inl"

#include "attend_vec.inl"

#include "widen.inl"

#include "attend_pages.inl"

#include "attend.inl"

void qn__cpu_fill_attend_neon(qn__cpu_kernels *t)
{
    attend_fill(t);
}
