/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: units of weights, and linear by products of bytes: the shared sources on vec_avx2.h. */
#include "kernels.h"
#include "vec_avx2.h"

#include "units.inl"

#define INT8_DIRECT_ROWS 2
enum { INT8_ROWS = 4, INT8_PANELS = 1 };

#include "int8.inl"
#include "int8_vec.inl"

void qn__cpu_fill_int8_avx2(qn__cpu_kernels *t)
{
    fill_vec_int8(t);
}
