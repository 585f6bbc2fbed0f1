/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: matmul in all its forms, and preparing: the shared source on vec_neon.h. */
#include "kernels.h"
#include "vec_neon.h"

#include "products_vec.inl"

void qn__cpu_fill_products_neon(qn__cpu_kernels *t)
{
    fill_vec_products(t);
}
