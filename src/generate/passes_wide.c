/* SPDX-License-Identifier: Apache-2.0 */
/* The sampling chain's passes in lanes of 8, for machines with AVX2. */
#if defined(__x86_64__)
#define LANES 8
#define PASS  __attribute__((target("avx2"))) static

#include "passes.inl"

const qn__passes qn__passes_wide = {pass_tops,  pass_weigh,   pass_weigh_block,
                                    pass_split, pass_collect, pass_count_equal};
#else
typedef int passes_wide_is_for_x86_64; /* a file may not be empty */
#endif
