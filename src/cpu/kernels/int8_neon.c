/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: units of weights, and linear by products of bytes: the shared sources on vec_neon.h. */
#include "kernels.h"
#include "vec_neon.h"

#include "units.inl"

#include "int8_vec.inl"

void qn__cpu_fill_int8_neon(qn__cpu_kernels *t)
{
    fill_vec_int8(t);
}
