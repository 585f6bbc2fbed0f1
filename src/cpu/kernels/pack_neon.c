/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: packing weights: the shared source on vec_neon.h. */
#include "kernels.h"
#include "vec_neon.h"

#include "pack_vec.inl"

void qn__cpu_fill_pack_neon(qn__cpu_kernels *t)
{
    fill_vec_pack(t);
}
