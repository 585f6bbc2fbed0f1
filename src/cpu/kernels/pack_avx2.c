/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: packing weights: the shared source on vec_avx2.h. */
#include "kernels.h"
#include "vec_avx2.h"

#include "pack_vec.inl"

void qn__cpu_fill_pack_avx2(qn__cpu_kernels *t)
{
    fill_vec_pack(t);
}
