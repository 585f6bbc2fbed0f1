/* SPDX-License-Identifier: Apache-2.0
 *
 * The interpreter of fused chains, compiled for the AVX2 tier.
 */
#define RUN_TAPE qn__cpu_run_tape_avx2
#include "cpu/interpret.inl"
