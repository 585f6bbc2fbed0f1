/* SPDX-License-Identifier: Apache-2.0
 *
 * The interpreter of fused chains, compiled for the reference tier.
 */
#define RUN_TAPE qn__cpu_run_tape_ref
#include "cpu/interpret.inl"
