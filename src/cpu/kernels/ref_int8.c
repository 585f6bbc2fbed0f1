/* SPDX-License-Identifier: Apache-2.0 */
/* Reference: units of weights, and linear by products of bytes, from the sources that every tier
 * shares, on plain C lanes. */
#include "kernels.h"
#include "vec_ref.h"

#include "units.inl"

#define INT8_DIRECT_ROWS 0
enum { INT8_ROWS = 4, INT8_PANELS = 1 };

#include "int8.inl"
#include "int8_vec.inl"

void qn__cpu_fill_ref_int8(qn__cpu_kernels *t)
{
    fill_vec_int8(t);
}
