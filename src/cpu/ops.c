/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of the CPU's operations, made from cpu.def.
 */
#include "cpu/cpu.h"

#define CPU_OP(id, symbol) extern const qn__cpu_op symbol;
#include "cpu/cpu.def"
#undef CPU_OP

const qn__cpu_op *const qn__cpu_ops[QN__OP_COUNT] = {
#define CPU_OP(id, symbol) [QN__OP_##id] = &symbol,
#include "cpu/cpu.def"
#undef CPU_OP
};
