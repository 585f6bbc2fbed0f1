/* SPDX-License-Identifier: Apache-2.0 */
/* The sampling chain's passes in lanes of 4, for any machine. */
#define LANES 4
#define PASS  static

#include "passes.inl"

const qn__passes qn__passes_plain = {pass_tops,  pass_weigh,   pass_weigh_block,
                                     pass_split, pass_collect, pass_count_equal};
