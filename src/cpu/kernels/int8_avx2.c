/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: units of weights, and linear by products of bytes: the shared sources on vec_avx2.h. */
#include "kernels.h"
#include "vec_avx2.h"

#include "units.inl"

#include "int8_vec.inl"

void qn__cpu_fill_int8_avx2(qn__cpu_kernels *t)
{
    fill_vec_int8(t);
}
