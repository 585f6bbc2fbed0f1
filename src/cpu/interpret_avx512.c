/* SPDX-License-Identifier: Apache-2.0
 *
 * The interpreter of fused chains, compiled for the AVX-512 tier.
 */
#define RUN_TAPE qn__cpu_run_tape_avx512
#include "cpu/interpret.inl"
