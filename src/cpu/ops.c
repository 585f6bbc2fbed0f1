/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of the CPU's operations, made from cpu.def.
 */
#include "cpu/cpu.h"

#define CPU_ROUTINE(id, symbol) extern const qn__cpu_routine symbol;
#include "cpu/cpu.def"
#undef CPU_ROUTINE

const qn__cpu_routine *const qn__cpu_routines[QN__OP_COUNT] = {
#define CPU_ROUTINE(id, symbol) [QN__OP_##id] = &symbol,
#include "cpu/cpu.def"
#undef CPU_ROUTINE
};
