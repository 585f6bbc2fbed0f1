/* SPDX-License-Identifier: Apache-2.0
 *
 * Counter-based random numbers: the n-th number of a seed, without state, so that a stream is the
 * same alone and in a batch. Two rounds of the SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA
 * 2014).
 */
#ifndef QN_BASE_RANDOM_H
#define QN_BASE_RANDOM_H

#include <stdint.h>

static inline uint64_t qn__random_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t qn__random_bits(uint64_t seed, uint64_t n)
{
    return qn__random_mix(qn__random_mix(seed + 0x9e3779b97f4a7c15u) +
                          (n + 1) * 0x9e3779b97f4a7c15u);
}

/* In [0, 1), a multiple of 2^-53. */
static inline double qn__random_uniform(uint64_t seed, uint64_t n)
{
    return (double)(qn__random_bits(seed, n) >> 11) * 0x1p-53;
}

#endif
