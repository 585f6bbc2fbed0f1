/* SPDX-License-Identifier: Apache-2.0
 *
 * The interpreter of fused chains, compiled for the NEON tier.
 */
#define RUN_TAPE qn__cpu_run_tape_neon
#include "cpu/interpret.inl"
