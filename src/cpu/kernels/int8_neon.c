/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: units of weights, and linear by products of bytes: the shared sources on vec_neon.h. */
#include "kernels.h"
#include "vec_neon.h"

#include "units.inl"

#define INT8_DIRECT_ROWS 0
enum { INT8_ROWS = 4, INT8_PANELS = 1 };

#include "int8.inl"
#include "int8_vec.inl"

void qn__cpu_fill_int8_neon(qn__cpu_kernels *t)
{
    fill_vec_int8(t);
}
