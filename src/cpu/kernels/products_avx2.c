/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: matmul in all its forms, and preparing: the shared source on vec_avx2.h. */
#include "kernels.h"
#include "vec_avx2.h"

#include "products_vec.inl"

void qn__cpu_fill_products_avx2(qn__cpu_kernels *t)
{
    fill_vec_products(t);
}
