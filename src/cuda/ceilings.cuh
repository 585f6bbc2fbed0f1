/* SPDX-License-Identifier: Apache-2.0
 *
 * What the loops of ceilings.cu and ceilings_wide.cu have in common.
 */
#ifndef QN_CUDA_CEILINGS_CUH
#define QN_CUDA_CEILINGS_CUH

#include "cuda/ceilings.h"
#include "cuda/common.cuh"
#include "cuda/mma.cuh"

/* Two in bf16, of any sign, from 0.5 up to 2: a multiplication takes more power, and so more time,
 * than one of zeros. */
static __device__ uint32_t two_numbers(uint32_t i)
{
    i = (i + 1) * 2654435761u;
    i = (i ^ i >> 15) * 2246822519u;
    i ^= i >> 13;
    return (i & 0x80ff80ffu) | 0x3f003f00u;
}

/* The compiler cannot leave out what comes to this. */
static __device__ void keep(uint32_t v, uint32_t *result)
{
    if (v == 0x9e3779b9u)
        *result = v;
}

#endif
